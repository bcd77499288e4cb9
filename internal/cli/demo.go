package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
	"scanonce/internal/config"
)

// demoFacility stands for a facility where none is real.
const demoFacility = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"

func (a *app) demoVerb() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:    "demo",
		Short:  "Run an agent in a temporary folder and simulate a counter's scans",
		Hidden: true,
		Args:   takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			dir, err := os.MkdirTemp("", "scanonce-")
			if err != nil {
				return &failure{code: exitState, kind: "state", detail: fmt.Sprintf("cannot make a temporary folder: %v", err), hint: "make space, or set TMPDIR"}
			}
			err = a.demo(ctx, dir, once)
			if ctx.Err() != nil && !once {
				err = nil // an interrupt is how it ends
			}
			if err != nil {
				fmt.Fprintf(a.stderr, "the agent's state and log are kept in %s\n", dir)
				return err
			}
			return os.RemoveAll(dir)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "stop after the summary")
	return cmd
}

func (a *app) demo(ctx context.Context, dir string, once bool) error {
	s := simulation{scans: 20, retransmits: 6, straddles: 2, rate: 8, timeout: 10 * time.Second}
	steps, err := a.steps(&s, false)
	if err != nil {
		return err
	}
	ndcs := map[string]bool{}
	var list strings.Builder
	for _, st := range steps {
		if !ndcs[st.NDC] {
			ndcs[st.NDC] = true
			fmt.Fprintln(&list, st.NDC)
		}
	}
	directory := filepath.Join(dir, "ndc.txt")
	file := filepath.Join(dir, "scanonce.toml")
	state := filepath.Join(dir, "state")
	text := fmt.Sprintf(`[agent]
facility_uuid = %q
state_dir = %q
[api]
socket = %q
listen = "127.0.0.1:0"
[ndc]
directory = %q
[[scanner]]
id = "SCN-04"
transport = "serial"
path = %q
feedback = { good = "G", duplicate = "D", reject = "R" }
`, demoFacility, state, filepath.Join(state, "scanonce.sock"), directory, filepath.Join(dir, "scn04"))
	for name, text := range map[string]string{directory: list.String(), file: text} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return &failure{code: exitState, kind: "state", detail: fmt.Sprintf("cannot write %s: %v", name, err), hint: "make space, or set TMPDIR"}
		}
	}
	cfg, err := config.Load(config.Options{File: file, FileExplicit: true})
	if err != nil {
		return badConfig(err)
	}
	child, err := a.startAgent(ctx, dir, file)
	if err != nil {
		return err
	}
	defer child.stop()
	c := api.NewClient(cfg.API.Socket)
	defer c.Close()
	if err := c.Ready(ctx); err != nil {
		return told(err)
	}
	if err := a.walk(ctx, c); err != nil {
		return told(err)
	}
	v, err := virtualScanner(cfg, "")
	if err != nil {
		return err
	}
	defer v.Close()
	if err := a.simulate(ctx, cfg, v, &s, steps); err != nil || once {
		return err
	}
	addr, err := os.ReadFile(filepath.Join(state, "api.addr"))
	if err != nil {
		return told(fmt.Errorf("cannot learn where the agent listens: %w", err))
	}
	token, err := os.ReadFile(cfg.TokenFile())
	if err != nil {
		return told(fmt.Errorf("cannot read the agent's token: %w", err))
	}
	fmt.Fprintf(a.stdout, "serving http://%s/#token=%s\nsocket %s\n", strings.TrimSpace(string(addr)), strings.TrimSpace(string(token)), cfg.API.Socket)
	select {
	case <-ctx.Done():
		return nil
	case err := <-child.ended:
		child.ended <- err
		return told(fmt.Errorf("cannot go on: the agent ended: %v", err))
	}
}

// walk takes a claim through adjudication and a prior authorization, as the pharmacy system would, and prints each step.
func (a *app) walk(ctx context.Context, c *api.Client) error {
	const (
		claim = "demo-claim-1"
		token = "rx1.00000000.d3b07384d113edec49eaa6238ad5ff00" // stands for a prescription number
	)
	r, err := c.PutClaim(ctx, "", claim, api.ClaimPut{RxRefToken: token, IngredientCost: "42.10"})
	if err != nil {
		return err
	}
	told := func(r api.ClaimResult) {
		if r.State != nil {
			fmt.Fprintf(a.stdout, "claim %s  %-12s %-20s version %d  cost %s%s\n", r.State.CorrelationID, r.Result, r.State.Node, r.State.Version,
				r.State.IngredientCost, rejectText(r.State.RejectCode))
		}
	}
	told(r)
	move := func(node string, reject *string) {
		if err == nil {
			if r, err = c.AdvanceClaim(ctx, "", claim, api.ClaimAdvance{ExpectedVersion: r.State.Version, Node: node, RejectCode: reject}); err == nil {
				told(r)
			}
		}
	}
	for _, node := range []string{"NORMALIZED", "TAXONOMY_RESOLVED", "ELIGIBILITY_VERIFIED", "PRICING_CALCULATED", "PA_EVALUATED"} {
		move(node, nil)
	}
	if err != nil {
		return err
	}
	var pend api.CaseResult
	for _, again := range []string{"first", "second"} { // another claim for the same drug joins the case
		if pend, err = c.Pend(ctx, "demo-"+again, api.PendRequest{MemberToken: "MTOK_9f2a", GPI: "27100010100320"}); err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "pend  %s  %s version %d  created=%v%s\n", pend.Case.CaseID, *pend.Case.State, *pend.Case.Version, *pend.Case.Created, rejectText(pend.Case.RejectCode))
	}
	move("PA_PENDED", pend.Case.RejectCode)
	for _, state := range []string{"IN_REVIEW", "APPROVED"} {
		if err == nil {
			if pend, err = c.TransitionCase(ctx, "", pend.Case.CaseID, api.Transition{ExpectedVersion: *pend.Case.Version, To: state}); err == nil {
				fmt.Fprintf(a.stdout, "case  %s  %s version %d%s\n", pend.Case.CaseID, *pend.Case.State, *pend.Case.Version, rejectText(pend.Case.RejectCode))
			}
		}
	}
	move("PA_EVALUATED", nil)
	move("RESPONSE_DISPATCHED", nil)
	return err
}

func rejectText(code *string) string {
	if code == nil {
		return ""
	}
	return "  reject " + *code
}

// agentProcess is an agent run as a child.
type agentProcess struct {
	cmd   *exec.Cmd
	ended chan error // gets what Wait returned
}

const (
	startTime = 30 * time.Second
	stopTime  = 10 * time.Second
)

// startAgent runs this program's agent and returns when the agent says that it is ready. The agent ends with
// this process, whatever ends it.
func (a *app) startAgent(ctx context.Context, dir, file string) (*agentProcess, error) {
	fail := func(err error) (*agentProcess, error) {
		return nil, told(fmt.Errorf("cannot start the agent: %w", err))
	}
	exe, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	log, err := os.Create(filepath.Join(dir, "agent.log"))
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	notify := filepath.Join(dir, "notify.sock")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	p := &agentProcess{cmd: exec.Command(exe, "run", "--config", file), ended: make(chan error, 1)}
	for _, e := range a.env {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "SCANONCE_") && name != "NOTIFY_SOCKET" && name != "JOURNAL_STREAM" && !strings.HasPrefix(name, "WATCHDOG_") {
			p.cmd.Env = append(p.cmd.Env, e)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+notify)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// A group of its own: an interrupt typed at the terminal must not reach it beside the signal of stop.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		// The death signal comes when the thread ends that started the child, not the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.ended <- p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fail(err)
	}
	ready := make(chan error, 1)
	go func() { ready <- awaitReady(conn) }()
	limit := time.NewTimer(startTime)
	defer limit.Stop()
	select {
	case err = <-ready:
	case end := <-p.ended:
		p.ended <- end
		said, _ := os.ReadFile(log.Name())
		err = fmt.Errorf("it ended (%v) and said: %s", end, strings.TrimSpace(string(said)))
	case <-limit.C:
		err = fmt.Errorf("it is not ready after %v", startTime)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		p.stop()
		return fail(err)
	}
	return p, nil
}

// awaitReady reads a service's notifications (sd_notify(3)) up to READY=1.
func awaitReady(conn *net.UnixConn) error {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return err
		}
		for _, l := range strings.Split(string(buf[:n]), "\n") {
			if l == "READY=1" {
				return nil
			}
		}
	}
}

// stop ends the agent in an orderly way, by force if that takes too long, and waits for it.
func (p *agentProcess) stop() {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return
	}
	limit := time.NewTimer(stopTime)
	defer limit.Stop()
	select {
	case <-p.ended:
	case <-limit.C:
		p.cmd.Process.Kill()
		<-p.ended
	}
}
