package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/device"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/window"
)

// A label whose batch could not be made durable changes no context, and the user hears that it was not accepted.
func TestALabelThatWasNotAcceptedChangesNothing(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("golden facility secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.FacilitySecretFile, cfg.Agent.StateDir = "F", secret, dir
	cfg.RxProfiles = []config.RxProfile{{Name: "a", Pattern: `R(?P<rx>\d{7})`}}
	cfg.Scanners = []config.Scanner{{ID: "SCN-04", ScanType: window.Dispense}}
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	var broken error // the disk
	a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: host, Disk: func(_ spool.DiskStep, _ string, do func() error) error {
		if broken != nil {
			return broken
		}
		return do()
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(false) })
	p := a.pipe
	at := a.clock.Now()
	answers := make(chan device.Answer, 1)
	scan := func(text string) device.Answer {
		at.Boot += time.Second
		at.T = at.T.Add(time.Second)
		b := a.spool.NewBatch()
		p.frame(b, device.Frame{Scanner: "SCN-04", Data: device.Payload(text), Length: len(text), At: at, Reply: replies(answers)})
		p.deliver(b.Commit())
		return <-answers
	}
	context := func() string { return p.scanners["SCN-04"].session.RxToken(at.Boot) }
	if answer := scan("R1111111"); answer != device.Control {
		t.Fatalf("the label is answered with %d", answer)
	}
	first := context()
	broken = errors.New("input/output error")
	if answer := scan("R2222222"); answer != device.NotAccepted {
		t.Fatalf("a label on a broken disk is answered with %d", answer)
	}
	if first == "" || context() != first {
		t.Errorf("the context is %q, want %q", context(), first)
	}
	broken = nil
	if answer := scan("R2222222"); answer != device.Control || context() == first || context() == "" {
		t.Errorf("the label once more: answer %d, context %q", answer, context())
	}
}

type replies chan device.Answer

func (r replies) Reply(a device.Answer) { r <- a }

// A secret that is no regular file is refused at once: a pipe would stop the agent's start, or its reload.
func TestSecretThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(large, make([]byte, maxSecretFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, large, "/dev/zero", dir, filepath.Join(dir, "absent")} {
		cfg := config.Default()
		cfg.Agent.FacilityUUID, cfg.Agent.FacilitySecretFile = "F", path
		s, err := loadRxSecret(cfg)
		var wrong *ExitError
		if s != nil || !errors.As(err, &wrong) || wrong.Code != ExitUsage || wrong.Hint == "" {
			t.Errorf("%s: %v, %v", path, s, err)
		}
	}
}
