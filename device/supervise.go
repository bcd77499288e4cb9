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
	// drainFor and closeFor together bound the time that a stop takes.
	drainFor = 500 * time.Millisecond
	closeFor = 300 * time.Millisecond
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

// supervisor keeps one device open, whatever its transport.
type supervisor struct {
	id        string
	place     string // for messages
	interByte time.Duration
	ack       bool // the device waits for ACK or NAK
	tones     Feedback

	opener  Opener
	framer  *Framer
	clock   Clock
	sink    Sink
	onState StateFunc
	watch   func() (watcher, error) // nil: none
	ready   chan struct{}

	mu    sync.Mutex
	stats Stats
}

func newSupervisor(cfg SerialConfig, opener Opener, clock Clock, sink Sink, onState StateFunc) (*supervisor, error) {
	framer, err := NewFramer(cfg.Framing)
	if err != nil {
		return nil, err
	}
	if onState == nil {
		onState = func(string, State, string) {}
	}
	return &supervisor{
		id: cfg.ID, place: cfg.Path, interByte: cfg.InterByteTimeout,
		ack: cfg.Framing == ACKNAK, tones: cfg.Feedback,
		opener: opener, framer: framer, clock: clock, sink: sink, onState: onState,
		ready: make(chan struct{}),
		stats: Stats{Scanner: cfg.ID, State: Absent, Voided: map[Void]uint64{
			VoidIncomplete: 0, VoidTooLong: 0, VoidUnplugged: 0, VoidStopped: 0}},
	}, nil
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
		src := s.attempt(ctx, quiet)
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
			again := s.serve(ctx, src, w, ready)
			if ctx.Err() != nil {
				return nil
			}
			if s.clock.Now().Boot-since >= healthyAfter {
				fails = 0
			}
			if again {
				quiet = false
				continue
			}
		}
		ready()
		retry.Reset(backoff(fails, ceiling))
		fails++
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed():
			quiet = false
		case <-retry.C:
			quiet = src == nil && s.snapshot().State == Backoff
		}
	}
}

// backoff is exponential with full jitter, so that scanners of one hub do not come back in step.
func backoff(fails int, ceiling time.Duration) time.Duration {
	return 1 + rand.N(min(ceiling, backoffFirst<<min(fails, 10)))
}

// attempt opens the device; nil if that did not succeed. An Open that hangs is left behind when ctx ends.
func (s *supervisor) attempt(ctx context.Context, quiet bool) Source {
	if !s.opener.Attached() {
		s.absent()
		return nil
	}
	if !quiet {
		s.state(Opening, "")
	}
	type result struct {
		src Source
		err error
	}
	done := make(chan result)
	go func() {
		src, err := s.opener.Open()
		select {
		case done <- result{src, err}:
		case <-ctx.Done():
			if err == nil {
				src.Close()
			}
		}
	}()
	select {
	case <-ctx.Done():
		return nil
	case r := <-done:
		switch {
		case r.err == nil:
			return r.src
		case errors.Is(r.err, fs.ErrNotExist):
			s.absent()
		default:
			s.state(Backoff, r.err.Error())
		}
		return nil
	}
}

func (s *supervisor) absent() { s.state(Absent, "cannot find "+s.place+": plug the scanner in") }
