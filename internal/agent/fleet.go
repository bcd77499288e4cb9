package agent

import (
	"context"
	"reflect"
	"sync"

	"scanonce/device"
	"scanonce/internal/config"
	"scanonce/internal/events"
)

// fleet runs the scanners of the configuration, each for itself.
type fleet struct {
	a     *agent
	ready chan struct{}

	mu      sync.Mutex
	ctx     context.Context
	wait    sync.WaitGroup
	running map[string]*runningScanner
	states  map[string]scannerState
}

type runningScanner struct {
	cfg    config.Scanner
	source *device.Serial
	cancel context.CancelFunc
	done   chan struct{}
}

type scannerState struct {
	state  device.State
	detail string
}

func newFleet(a *agent) *fleet {
	return &fleet{a: a, ready: make(chan struct{}), running: map[string]*runningScanner{}, states: map[string]scannerState{}}
}

func (f *fleet) String() string         { return "scanners" }
func (f *fleet) Ready() <-chan struct{} { return f.ready }

// Run runs the scanners until ctx ends.
func (f *fleet) Run(ctx context.Context) error {
	f.mu.Lock()
	f.ctx = ctx
	f.mu.Unlock()
	f.reconfigure(f.a.cfg)
	close(f.ready)
	<-ctx.Done()
	f.wait.Wait()
	return nil
}

// reconfigure starts, stops and restarts scanners until they are as cfg says.
func (f *fleet) reconfigure(cfg *config.Config) {
	f.mu.Lock()
	var stopping []*runningScanner
	for id, r := range f.running {
		if c := cfg.Scanner(id); c == nil || !reflect.DeepEqual(*c, r.cfg) {
			r.cancel()
			stopping = append(stopping, r)
			delete(f.running, id)
			if c == nil {
				delete(f.states, id)
				f.a.alarms.clear(alarmDevice + ":" + id)
			}
		}
	}
	f.mu.Unlock()
	for _, r := range stopping {
		<-r.done // a port is opened by one at a time
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range cfg.Scanners {
		if c := cfg.Scanners[i]; f.running[c.ID] == nil {
			f.start(c)
		}
	}
}

// start needs mu.
func (f *fleet) start(c config.Scanner) {
	src, err := device.NewSerial(device.SerialConfig{ID: c.ID, Path: c.Path, Baud: c.Baud, Framing: device.Framing(c.Framing), InterByteTimeout: c.InterByteTimeout,
		Feedback: device.Feedback{Good: []byte(c.Feedback.Good), Duplicate: []byte(c.Feedback.Duplicate), Reject: []byte(c.Feedback.Reject)}},
		f.a.clock, f.a.pipe, f.stateChanged)
	if err != nil {
		f.a.log.Error("cannot use a scanner", "scanner", c.ID, "error", err)
		f.a.alarms.set(alarmDevice+":"+c.ID, err.Error(), "mend the scanner's configuration")
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	r := &runningScanner{cfg: c, source: src, cancel: cancel, done: make(chan struct{})}
	f.running[c.ID] = r
	f.wait.Add(1)
	go func() {
		defer f.wait.Done()
		defer close(r.done)
		if err := src.Run(ctx); err != nil {
			f.a.log.Error("scanner ended", "scanner", c.ID, "error", err)
		}
	}()
}

func (f *fleet) stateChanged(id string, s device.State, detail string) {
	f.mu.Lock()
	f.states[id] = scannerState{s, detail}
	f.mu.Unlock()
	f.a.log.Info("scanner", "scanner", id, "state", s, "detail", detail)
	f.a.tell(events.Entry{Kind: "device", At: f.a.clock.Now().T, Body: deviceBody{id, string(s), false, nullable(detail)}})
	switch s {
	case device.Reading:
		f.a.alarms.clear(alarmDevice + ":" + id)
	case device.Absent, device.Backoff:
		f.a.alarms.set(alarmDevice+":"+id, "scanner "+id+" is not connected: "+detail, "plug it in, or correct its path; it is taken up by itself")
	}
}

// state is absent for a scanner that has not said anything yet.
func (f *fleet) state(id string) device.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.states[id]; ok {
		return s.state
	}
	return device.Absent
}

// stats returns the figures of the running scanners.
func (f *fleet) stats() []device.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]device.Stats, 0, len(f.running))
	for _, r := range f.running {
		out = append(out, r.source.Stats())
	}
	return out
}
