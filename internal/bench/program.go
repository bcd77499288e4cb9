package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/sim"
)

// attended is the program itself, run as a process of its own, with one serial scanner behind a pseudo terminal.
type attended struct {
	cmd     *exec.Cmd
	scanner *sim.Scanner
	label   *label
	socket  string
	ctx     context.Context
	cancel  context.CancelFunc

	committed chan error // one for each scan, once followed; an error is the stream's end
}

const (
	answerTime = 20 * time.Second
	stopTime   = 10 * time.Second
)

// agentsLabels is where the serial numbers of an agent's labels begin: in one ledger with an outbox's, both are
// movements of their own.
const agentsLabels = 5_000_000_000

// build makes the program into dir.
func build(ctx context.Context, dir string) (string, error) {
	to := filepath.Join(dir, "scanonce")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", to, "scanonce/cmd/scanonce")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the program: %w: %s", err, out)
	}
	return to, nil
}

// attend starts the program in dir, with more settings, and returns when it reads its scanner and has answered a
// first scan. With follow it hears of commits, from the first scan's on.
func attend(program, dir, settings string, follow bool) (a *attended, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	port, socket := filepath.Join(dir, "port"), filepath.Join(dir, "scanonce.sock")
	list, file := filepath.Join(dir, "ndc.txt"), filepath.Join(dir, "scanonce.toml")
	text := fmt.Sprintf(`[agent]
facility_uuid = %q
state_dir = %q
[api]
socket = %q
[ndc]
directory = %q
[[scanner]]
id = %q
transport = "serial"
path = %q
feedback = { good = "G", duplicate = "D", reject = "R" }
%s`, facility, filepath.Join(dir, "state"), socket, list, scannerID, port, settings)
	if err := errors.Join(os.WriteFile(list, []byte(listedNDC+"\n"), 0o600), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "agent.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	a = &attended{label: &label{data: newLabel().data, n: agentsLabels}, socket: socket, cmd: exec.Command(program, "run", "--config", file)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SCANONCE_") && !strings.HasPrefix(e, "NOTIFY_SOCKET=") && !strings.HasPrefix(e, "WATCHDOG_") {
			a.cmd.Env = append(a.cmd.Env, e)
		}
	}
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the agent: %w", err)
	}
	defer func() {
		if err != nil {
			a.close()
			said, _ := os.ReadFile(log.Name())
			err = fmt.Errorf("%w; the agent said: %s", err, strings.TrimSpace(string(said)))
		}
	}()
	framing, err := sim.FramingOf("line")
	if err != nil {
		return nil, err
	}
	if a.scanner, err = sim.Plug(scannerID, port, framing); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, answerTime)
	defer cancel()
	client := api.NewClient(socket)
	defer client.Close()
	if err := awaitReady(ctx, client); err != nil {
		return nil, err
	}
	if err := a.scanner.WaitReading(ctx, client); err != nil {
		return nil, err
	}
	if !follow {
		return a, a.scan()
	}
	if err := a.follow(); err != nil {
		return nil, err
	}
	return a, a.scanCommitted()
}

// awaitReady asks until the agent says that it is ready.
func awaitReady(ctx context.Context, c *api.Client) error {
	ask := time.NewTicker(20 * time.Millisecond)
	defer ask.Stop()
	for {
		err := c.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ask.C:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait longer for the agent: %w", err)
		}
	}
}

// scan types a new label and waits for the feedback that it is accepted.
func (a *attended) scan() error {
	if err := a.scanner.Type(string(a.label.next())); err != nil {
		return err
	}
	got, err := a.scanner.Feedback(a.ctx, 1)
	if err == nil && got != "G" {
		err = fmt.Errorf("cannot measure: the agent answered %q to a new label", got)
	}
	return err
}

// follow begins to hear of commits, one for each scan.
func (a *attended) follow() error {
	client := api.NewClient(a.socket)
	from, err := client.Position(a.ctx)
	if err != nil {
		client.Close()
		return err
	}
	a.committed = make(chan error, 1)
	go func() {
		defer client.Close()
		err := client.Follow(a.ctx, from, []string{"committed"}, func(api.Event) error {
			a.committed <- nil
			return nil
		})
		a.committed <- errors.Join(err, errors.New("cannot follow the agent's events any longer"))
	}()
	return nil
}

// scanCommitted types a new label and waits for the event that it is committed.
func (a *attended) scanCommitted() error {
	if err := a.scan(); err != nil {
		return err
	}
	limit := time.NewTimer(answerTime)
	defer limit.Stop()
	select {
	case err := <-a.committed:
		return err
	case <-limit.C:
		return errors.New("cannot measure: the agent does not say that a scan is committed")
	}
}

func (a *attended) close() error {
	a.cancel()
	ended := make(chan error, 1)
	a.cmd.Process.Signal(syscall.SIGTERM)
	go func() { ended <- a.cmd.Wait() }()
	limit := time.NewTimer(stopTime)
	defer limit.Stop()
	var err error
	select {
	case err = <-ended:
	case <-limit.C:
		a.cmd.Process.Kill()
		err = <-ended
	}
	if a.scanner != nil {
		err = errors.Join(err, a.scanner.Close())
	}
	return err
}
