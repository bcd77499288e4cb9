package device

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 5 * time.Second
	// unwatchedMax replaces backoffMax where the kernel gives no inotify watch.
	unwatchedMax = time.Second
	healthyAfter = 10 * time.Second
	// quarantineAfter crashes in a row a device is left alone until it is plugged in anew, but for a look now and
	// then: what took the reader down may have been the machine's need, and gone.
	quarantineAfter = 5
	quarantineRetry = time.Minute
	// drainFor and closeFor together bound the time that a stop takes.
	drainFor = 500 * time.Millisecond
	// lastWordsFor is how long a device that is gone is heard for what was read of it before.
	lastWordsFor = 50 * time.Millisecond
	closeFor     = 300 * time.Millisecond
)

// watcher tells of changes at the place of a device.
type watcher interface {
	// arm looks at the place anew. Changes from now on are told.
	arm()
	changed() <-chan struct{}
	close()
}

// unwatched is where nothing can be watched.
type unwatched struct{}

func (unwatched) arm()                     {}
func (unwatched) changed() <-chan struct{} { return nil }
func (unwatched) close()                   {}

// chooser is an Opener that knows which changes concern its device: to open it may make some.
type chooser interface {
	// Worth says that after the changes so far there is a reason to open the device, or to open it anew.
	Worth() bool
}

// crashError is a failure of what reads a device for the agent, and not of the device.
type crashError struct{ err error }

func (e crashError) Error() string { return e.err.Error() }
func (e crashError) Unwrap() error { return e.err }

// supervisor keeps one device open, whatever its transport.
type supervisor struct {
	id    string
	place string        // for messages
	gap   time.Duration // silence that voids a message under way
	good  []byte        // that a frame is durable, or need not come again; nil for a device that waits for no answer
	bad   []byte        // that it must
	tones Feedback

	opener  Opener
	decode  func(src Source, emit func(Frame)) (decoder, error) // for each opening
	clock   Clock
	sink    Sink
	onState StateFunc
	watch   func() (watcher, error) // nil: none
	ready   chan struct{}
	crashes int // in a row; belongs to run

	mu    sync.Mutex
	stats Stats
}

func newSupervisor(cfg SerialConfig, opener Opener, clock Clock, sink Sink, onState StateFunc) (*supervisor, error) {
	s := supervise(cfg.ID, cfg.Path, opener, clock, sink, onState)
	s.gap, s.tones = cfg.InterByteTimeout, cfg.Feedback
	if cfg.Framing == SSI {
		s.good, s.bad = ssiPacket(ssiAck), ssiPacket(ssiNak, ssiResend)
		s.decode = func(_ Source, emit func(Frame)) (decoder, error) {
			return &ssi{scanner: cfg.ID, gap: cfg.InterByteTimeout, retry: cfg.RetryInterval, emit: emit}, nil
		}
		return s, nil
	}
	framer, err := NewFramer(cfg.Framing)
	if err != nil {
		return nil, err
	}
	if cfg.Framing == ACKNAK {
		s.good, s.bad = []byte{ack}, []byte{nak}
	}
	s.decode = func(_ Source, emit func(Frame)) (decoder, error) {
		return &stream{scanner: cfg.ID, framer: framer, gap: cfg.InterByteTimeout, emit: emit}, nil
	}
	return s, nil
}

// supervise makes a supervisor that lacks decode and gap.
func supervise(id, place string, opener Opener, clock Clock, sink Sink, onState StateFunc) *supervisor {
	if onState == nil {
		onState = func(string, State, string) {}
	}
	return &supervisor{id: id, place: place, opener: opener, clock: clock, sink: sink, onState: onState, ready: make(chan struct{}),
		stats: Stats{Scanner: id, State: Absent, Voided: map[Void]uint64{
			VoidIncomplete: 0, VoidTooLong: 0, VoidUnplugged: 0, VoidStopped: 0}}}
}

func (s *supervisor) snapshot() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Voided = make(map[Void]uint64, len(s.stats.Voided))
	for reason, n := range s.stats.Voided {
		st.Voided[reason] = n
	}
	return st
}

func (s *supervisor) count(f func(*Stats)) {
	s.mu.Lock()
	f(&s.stats)
	s.mu.Unlock()
}

// state reports a change; nothing is said twice.
func (s *supervisor) state(st State, detail string) {
	s.mu.Lock()
	same := s.stats.State == st && s.stats.Detail == detail
	s.stats.State, s.stats.Detail = st, detail
	s.mu.Unlock()
	if !same {
		s.onState(s.id, st, detail)
	}
}

func (s *supervisor) run(ctx context.Context) error {
	var (
		w       = watcher(unwatched{})
		ceiling = backoffMax
		ready   = sync.OnceFunc(func() { close(s.ready) })
		retry   = time.NewTimer(0)
		fails   int
		opened  bool // ever
		quiet   bool // a repeated attempt that nothing called for tells no state but a new one
	)
	defer retry.Stop()
	if s.watch != nil {
		if found, err := s.watch(); err != nil {
			ceiling = unwatchedMax
		} else {
			w = found
			defer w.close()
		}
	}
	for {
		w.arm()
		src, again := s.attempt(ctx, w, quiet)
		if ctx.Err() != nil {
			if src != nil {
				src.Close()
			}
			return nil
		}
		if src != nil {
			if opened {
				s.count(func(st *Stats) { st.Reopens++ })
			}
			opened = true
			since := s.clock.Now().Boot
			again = s.serve(ctx, src, w, ready)
			if ctx.Err() != nil {
				return nil
			}
			if s.clock.Now().Boot-since >= healthyAfter {
				fails, s.crashes = 0, min(s.crashes, 1)
			}
		}
		ready()
		if again {
			fails, s.crashes, quiet = 0, 0, false
			continue
		}
		st := s.snapshot().State
		if st == Quarantined {
			retry.Reset(quarantineRetry)
		} else {
			retry.Reset(backoff(fails, ceiling))
		}
		fails++
		if s.wait(ctx, w, retry.C) {
			fails, s.crashes, quiet = 0, 0, false // what failed so far was another device, or in another place
		} else {
			quiet = src == nil && (st == Backoff || st == Quarantined)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// wait returns at the next attempt. It says whether a change is the reason.
func (s *supervisor) wait(ctx context.Context, w watcher, retry <-chan time.Time) (changed bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.changed():
			if s.worth() {
				return true
			}
			w.arm()
		case <-retry:
			return false
		}
	}
}

// worth says that a change at the device's place is one of its own.
func (s *supervisor) worth() bool {
	c, ok := s.opener.(chooser)
	return !ok || c.Worth()
}

// backoff is exponential with full jitter, so that scanners of one hub do not come back in step.
func backoff(fails int, ceiling time.Duration) time.Duration {
	return 1 + rand.N(min(ceiling, backoffFirst<<min(fails, 10)))
}

// attempt opens the device; nil if that did not succeed, with again if a change meanwhile is a reason not to wait.
// An Open that hangs is left behind when ctx ends.
func (s *supervisor) attempt(ctx context.Context, w watcher, quiet bool) (src Source, again bool) {
	if !s.opener.Attached() {
		s.absent()
		return nil, false
	}
	if !quiet {
		s.state(Opening, "")
	}
	type result struct {
		src Source
		err error
	}
	opening, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan result)
	go func() {
		src, err := s.opener.Open(opening)
		select {
		case done <- result{src, err}:
		case <-ctx.Done():
			if err == nil {
				src.Close()
			}
		}
	}()
	var changed <-chan struct{}
	if _, ok := s.opener.(chooser); ok {
		changed = w.changed()
	}
	for {
		select {
		case <-ctx.Done():
			return nil, false
		case <-changed:
			if s.worth() { // what is being opened is no longer what is wanted
				again = true
				cancel()
			}
			w.arm()
		case r := <-done:
			if r.err != nil && !again {
				s.failed(r.err)
			}
			return r.src, again
		}
	}
}

// failed tells why the device is not open, and counts what was not its own fault.
func (s *supervisor) failed(err error) {
	var crash crashError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.absent()
	case !errors.As(err, &crash):
		s.state(Backoff, err.Error())
	default:
		s.count(func(st *Stats) { st.Crashes++ })
		if s.crashes++; s.crashes < quarantineAfter {
			s.state(Backoff, err.Error())
		} else {
			s.state(Quarantined, err.Error()+": plug the scanner in anew")
		}
	}
}

func (s *supervisor) absent() { s.state(Absent, "cannot find "+s.place+": plug the scanner in") }
