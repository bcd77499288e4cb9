package cli

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scanonce/spool"
)

// spoolProbeVerb is the child process that reads the spool's files in the agent's place: a damaged one may end it.
func (a *app) spoolProbeVerb() *cobra.Command {
	return &cobra.Command{
		Use:    "spoolprobe",
		Short:  "Read files of the spool for the agent",
		Hidden: true,
		Args:   takes(),
		RunE: func(*cobra.Command, []string) error {
			limitProbe()
			if err := spool.Probe(a.stdin, a.stdout); err != nil {
				return &failure{code: exitBad, kind: "failed", detail: err.Error()}
			}
			return nil
		},
	}
}

const (
	probeMemory = 1 << 30 // bytes of address space beyond what a start takes, and beyond the files it maps
	probeMapped = 4 << 30
	probeCPU    = 600 // seconds
)

// limitProbe lets neither the keys nor the scans in this process into a core file, and bounds it: whatever a
// damaged file makes of it must not take the machine along.
func limitProbe() {
	keepMemory()
	unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: probeCPU, Max: probeCPU})
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		pages, _, _ := strings.Cut(string(b), " ")
		if n, err := strconv.ParseUint(pages, 10, 64); err == nil {
			most := n*uint64(os.Getpagesize()) + probeMemory + probeMapped
			unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: most, Max: most})
		}
	}
}

// probe makes the command of the child, which is this program.
func probe() func(context.Context) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		return nil
	}
	return func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, exe, "spoolprobe")
		cmd.Args[0] = os.Args[0]
		cmd.Env = []string{}
		if v := os.Getenv("GORACE"); v != "" { // in tests
			cmd.Env = append(cmd.Env, "GORACE="+v)
		}
		return cmd
	}
}
