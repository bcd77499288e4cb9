// Package testenv runs the real program for tests: it builds the binary, keeps an agent in a private folder
// as a child that dies with the test, kills and restarts it, follows its events over all of that, and reads
// its status, ledger, audit trail and spool. It knows the program by its documented names alone, so that a
// change of those shows.
package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Binary is the path of a built program.
type Binary string

// Build builds the command into a new folder, with the race detector if the test has it. Remove the folder
// with remove.
func Build(pkg string) (b Binary, remove func(), err error) {
	dir, err := os.MkdirTemp("", "scanonce-bin")
	if err != nil {
		return "", nil, fmt.Errorf("cannot make a folder for the binary: %w", err)
	}
	remove = func() { os.RemoveAll(dir) }
	if err = os.Chmod(dir, 0o755); err != nil { // other users run it too
		remove()
		return "", nil, err
	}
	b = Binary(filepath.Join(dir, "scanonce"))
	args := []string{"build", "-o", string(b)}
	if Race {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, pkg)...).CombinedOutput()
	if err != nil {
		remove()
		return "", nil, fmt.Errorf("cannot build %s: %w\n%s", pkg, err, out)
	}
	return b, remove, nil
}

// Facility is the facility of every agent here.
const Facility = "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF"

// Setup is what a home's configuration says beyond the defaults.
type Setup struct {
	Agent     string   // more lines of [agent]
	Sections  string   // other tables
	Scanners  []string // ids; nil is SCN-04 alone
	Scanner   string   // more lines of every [[scanner]]
	Directory []string // NDCs of the directory file; nil is no directory
}

// Home is the private folder of one agent: its state, configuration and log, and the places of its scanners.
type Home struct {
	Dir    string
	State  string // the state folder
	Config string // the configuration file
	Log    string // what all runs of the agent have said on stderr
	Socket string

	bin Binary

	mu  sync.Mutex
	now *Process
	up  chan struct{} // closed while an agent is ready
}

// NewHome makes a home. It is removed at the test's end; of a failed test the log's end is shown.
func (b Binary) NewHome(t testing.TB, s Setup) *Home {
	t.Helper()
	dir, err := os.MkdirTemp("", "so") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	h := b.OpenHome(dir)
	t.Cleanup(func() {
		if t.Failed() {
			if log, err := os.ReadFile(h.Log); err == nil {
				t.Logf("the end of the agent's log:\n%s", log[max(0, len(log)-4000):])
			}
		}
		os.RemoveAll(dir)
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.Configure(t, s)
	return h
}

// Configure writes the configuration anew.
func (h *Home) Configure(t testing.TB, s Setup) {
	t.Helper()
	var c strings.Builder
	fmt.Fprintf(&c, "[agent]\nfacility_uuid = %q\nstate_dir = %q\n%s\n%s\n", Facility, h.State, s.Agent, s.Sections)
	if !strings.Contains(s.Sections, "[api]") {
		fmt.Fprintf(&c, "[api]\nsocket = %q\nsocket_group = \"\"\n", h.Socket)
	}
	if s.Directory != nil {
		path := filepath.Join(h.Dir, "ndc.txt")
		if err := os.WriteFile(path, []byte(strings.Join(s.Directory, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&c, "[ndc]\ndirectory = %q\n", path)
	}
	if s.Scanners == nil {
		s.Scanners = []string{"SCN-04"}
	}
	for _, id := range s.Scanners {
		fmt.Fprintf(&c, "[[scanner]]\nid = %q\ntransport = \"serial\"\npath = %q\n%s\n", id, h.Port(id), s.Scanner)
		if !strings.Contains(s.Scanner, "feedback") {
			c.WriteString("feedback = { good = \"G\", duplicate = \"D\", reject = \"R\" }\n")
		}
	}
	if err := os.WriteFile(h.Config, []byte(c.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Port is where the agent looks for a scanner.
func (h *Home) Port(scanner string) string { return filepath.Join(h.Dir, "port-"+scanner) }

// Command prepares a call of the program on this home. It dies with the test's process.
func (h *Home) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, string(h.bin), append([]string{"--config", h.Config}, args...)...)
	cmd.Dir = h.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.Dir, "TMPDIR=" + h.Dir}
	if Race {
		cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // or each call takes a second more
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// Result is how a call of the program ended.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// Call runs the program and waits for its end.
func (h *Home) Call(t testing.TB, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*Patience) // some verbs have work to do
	defer cancel()
	return Finish(t, h.Command(ctx, args...))
}

// Finish runs a prepared call.
func Finish(t testing.TB, cmd *exec.Cmd) Result {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("cannot run %v: %v", cmd.Args, err)
	}
	return Result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// Process is one run of an agent.
type Process struct {
	home  *Home
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts the agent and waits until it says that it is ready.
func (h *Home) Start(t testing.TB, args ...string) *Process {
	t.Helper()
	p, err := h.Launch(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// StartAs is Start for a command of one's own that ends up as the agent.
func (h *Home) StartAs(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p, err := h.launch(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// Launch is Start for use outside the test's goroutine. Kill the process at the end.
func (h *Home) Launch(ctx context.Context, args ...string) (*Process, error) {
	return h.launch(ctx, h.Command(context.WithoutCancel(ctx), append(args, "run")...))
}

func (h *Home) launch(ctx context.Context, cmd *exec.Cmd) (*Process, error) {
	notify := filepath.Join(h.Dir, "notify")
	os.Remove(notify)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("cannot hear when the agent is ready: %w", err)
	}
	defer conn.Close()
	if err := os.Chmod(notify, 0o666); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(h.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+notify)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the agent: %w", err)
	}
	p := &Process{home: h, cmd: cmd, ended: make(chan struct{})}
	go func() {
		cmd.Wait()
		h.mu.Lock()
		if h.now == p {
			h.now, h.up = nil, make(chan struct{})
		}
		close(p.ended)
		h.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	ready := make(chan bool, 1)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				ready <- false
				return
			}
			if bytes.Contains(buf[:n], []byte("READY=1")) {
				ready <- true
				return
			}
		}
	}()
	select {
	case ok := <-ready:
		if ok {
			h.mu.Lock()
			defer h.mu.Unlock()
			select {
			case <-p.ended:
			default:
				h.now = p
				close(h.up)
			}
			return p, nil
		}
		err = errors.New("its notify socket failed")
	case <-p.ended:
		err = fmt.Errorf("it ended with code %d: see %s", p.Code(), h.Log)
	case <-ctx.Done():
		p.Kill()
		err = ctx.Err()
	}
	return nil, fmt.Errorf("cannot get the agent ready: %w", err)
}

// current is the agent that is ready, once one is.
func (h *Home) current(ctx context.Context) (*Process, error) {
	for {
		h.mu.Lock()
		p, up := h.now, h.up
		h.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-up:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed once the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Code is the exit code of a process that has ended, -1 if a signal ended it.
func (p *Process) Code() int {
	<-p.ended
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal.
func (p *Process) Signal(s os.Signal) { p.cmd.Process.Signal(s) }

// Kill ends the process as a power cut would, without a chance to tidy up, and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.ended
}

// Stop ends the process as a service manager does. It fails the test unless the exit code is 0 within the
// promised 5 seconds.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	w := NewWatch(t)
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		w.Within(t, "the end after SIGTERM", 5*time.Second)
		if code := p.Code(); code != 0 {
			t.Fatalf("after SIGTERM the agent ended with code %d, want 0", code)
		}
	case <-timer.C:
		t.Fatalf("%v after SIGTERM the agent still runs", Patience)
	}
}

// OpenHome is the home of an earlier test, whose end nobody has seen: its machine was switched off. It is not
// removed.
func (b Binary) OpenHome(dir string) *Home {
	return &Home{Dir: dir, State: filepath.Join(dir, "state"), Config: filepath.Join(dir, "scanonce.toml"), Log: filepath.Join(dir, "agent.log"),
		Socket: filepath.Join(dir, "state", "scanonce.sock"), bin: b, up: make(chan struct{})}
}
