//go:build usbrig

package guest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/device"
)

// task is what supervises a scanner.
type task interface {
	Run(context.Context) error
	Ready() <-chan struct{}
	Stats() device.Stats
}

// scanner is a supervised scanner with everything that it reports.
type scanner struct {
	t      testing.TB
	task   task
	frames chan device.Frame
	states chan state
	kept   *device.Frame // the next one, looked at
	stop   func()

	mu      sync.Mutex
	history []string // of its states, for who looks at a failure
}

type state struct {
	name   device.State
	detail string
	at     time.Time
}

// Offer takes what was scanned, and answers.
func (s *scanner) Offer(f device.Frame) bool {
	s.frames <- f
	if f.Reply != nil {
		f.Reply.Reply(device.Accepted)
	}
	return true
}

func (s *scanner) onState(_ string, st device.State, detail string) {
	now := time.Now()
	s.states <- state{st, detail, now}
	s.mu.Lock()
	s.history = append(s.history, fmt.Sprintf("%s %s %s", now.Format("05.000"), st, detail))
	s.mu.Unlock()
}

// supervise runs the task that make gives until the test's end, or s.stop.
func supervise(t testing.TB, make_ func(sink device.Sink, onState device.StateFunc) (task, error)) *scanner {
	t.Helper()
	s := &scanner{t: t, frames: make(chan device.Frame, 1<<16), states: make(chan state, 1<<16)}
	var err error
	if s.task, err = make_(s, s.onState); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.task.Run(ctx) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(patience):
			t.Error("the scanner's task does not stop")
		}
	}
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("its states:\n%s", strings.Join(s.history[max(0, len(s.history)-40):], "\n"))
		}
	})
	select {
	case <-s.task.Ready():
	case <-time.After(patience):
		t.Fatal("the scanner's task is not ready")
	}
	return s
}

// wait waits for a state.
func (s *scanner) wait(want device.State) state {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case st := <-s.states:
			if st.name == want {
				return st
			}
		case <-deadline:
			s.t.Fatalf("never %s; now %+v", want, s.task.Stats())
		}
	}
}

func (s *scanner) frame() device.Frame {
	s.t.Helper()
	if f := s.kept; f != nil {
		s.kept = nil
		return *f
	}
	select {
	case f := <-s.frames:
		return f
	case <-time.After(patience):
		s.t.Fatalf("no frame; %+v", s.task.Stats())
		return device.Frame{}
	}
}

// data waits for a complete message.
func (s *scanner) data(want string) {
	s.t.Helper()
	if f := s.frame(); f.Fault != "" || string(f.Data) != want {
		s.t.Fatalf("got %q, fault %q, %d bytes; want %q", []byte(f.Data), f.Fault, f.Length, want)
	}
}

// void takes the void that may lie in front of what is due: of a part of a scan of so many bytes. A device that went
// away may have taken that part with it.
func (s *scanner) void(length int) {
	s.t.Helper()
	f := s.frame()
	if f.Fault == "" {
		s.kept = &f
	} else if f.Fault != device.Incomplete || f.Length != length {
		s.t.Fatalf("got fault %q, %d bytes; want fault %q, %d bytes", f.Fault, f.Length, device.Incomplete, length)
	}
}

// fault waits for a message that was voided after so many bytes.
func (s *scanner) fault(want device.Fault, length int) {
	s.t.Helper()
	if f := s.frame(); f.Fault != want || f.Length != length || f.Data != nil {
		s.t.Fatalf("got %q, fault %q, %d bytes; want fault %q, %d bytes", []byte(f.Data), f.Fault, f.Length, want, length)
	}
}

// nothing checks that nothing more has come.
func (s *scanner) nothing() {
	s.t.Helper()
	select {
	case f := <-s.frames:
		s.t.Fatalf("one more: %q, fault %q, %d bytes", []byte(f.Data), f.Fault, f.Length)
	default:
	}
}

func serialScanner(t testing.TB, cfg device.SerialConfig) *scanner {
	t.Helper()
	clock := hostClock(t)
	return supervise(t, func(sink device.Sink, onState device.StateFunc) (task, error) {
		return device.NewSerial(cfg, clock, sink, onState)
	})
}
