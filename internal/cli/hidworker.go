package cli

import (
	"os"
	"os/exec"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"scanonce/device"
)

// hidWorkerVerb is the child process that reads one HID device in the agent's place: the library that it uses may
// end it, or never come back.
func (a *app) hidWorkerVerb() *cobra.Command {
	return &cobra.Command{
		Use:    "hidworker",
		Short:  "Read a HID scanner for the agent",
		Hidden: true,
		Args:   takes(),
		RunE: func(*cobra.Command, []string) error {
			keepMemory()
			if err := device.RunHIDWorker(a.stdin, a.stdout); err != nil {
				return &failure{code: exitBad, kind: "failed", detail: err.Error()}
			}
			return nil
		},
	}
}

// keepMemory lets nothing of this process into a core file or a debugger.
func keepMemory() {
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}

// hidWorker makes the command of the process: this program as it was started, whatever an upgrade has put in its
// place meanwhile.
func hidWorker() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "hidworker")
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{}
	if v := os.Getenv("GORACE"); v != "" { // in tests
		cmd.Env = append(cmd.Env, "GORACE="+v)
	}
	return cmd
}
