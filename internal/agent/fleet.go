package agent

import (
	"context"
	"reflect"
	"slices"
	"sync"

	"scanonce/device"
	"scanonce/internal/config"
	"scanonce/internal/events"
)

// fleet runs the scanners of the configuration, each for itself.
type fleet struct {
	a     *agent
	bus   *device.Bus
	ready chan struct{}

	mu       sync.Mutex
	ctx      context.Context
	wait     sync.WaitGroup
	running  map[string]*runningScanner
	states   map[string]scannerState
	scanners []config.Scanner // as configured now
}

type runningScanner struct {
	cfg    config.Scanner
	source source
	cancel context.CancelFunc
	done   chan struct{}
}

// source is the task of a scanner.
type source interface {
	Run(context.Context) error
	Stats() device.Stats
}

type scannerState struct {
	state  device.State
	detail string
}

func newFleet(a *agent) *fleet {
	return &fleet{a: a, bus: device.NewBus(a.opts.USBRoot, a.clock), ready: make(chan struct{}), running: map[string]*runningScanner{}, states: map[string]scannerState{}}
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
	f.scanners = cfg.Scanners
	for i := range cfg.Scanners {
		if c := cfg.Scanners[i]; f.running[c.ID] == nil {
			f.start(c)
		}
	}
}

// start needs mu.
func (f *fleet) start(c config.Scanner) {
	src, err := f.source(c)
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

// source makes the task of a scanner.
func (f *fleet) source(c config.Scanner) (source, error) {
	var sel device.USBSelector
	if c.USB != "" || c.Transport != "serial" {
		var err error
		if sel, err = device.ParseUSBSelector(c.USB, c.Port); err != nil {
			return nil, err
		}
	}
	if c.Transport != "serial" {
		return device.NewHID(device.HIDConfig{ID: c.ID, Device: sel, Keyboard: c.Transport == "hid-keyboard", Mode: device.HIDMode(c.Mode), Force: c.Force,
			Layout: c.Layout, Gap: c.InterByteTimeout, Worker: f.a.opts.HIDWorker}, f.bus, f.a.clock, f.a.pipe, f.stateChanged)
	}
	s := device.SerialConfig{ID: c.ID, Path: c.Path, Baud: c.Baud, Framing: device.Framing(c.Framing), InterByteTimeout: c.InterByteTimeout, RetryInterval: c.RetryInterval,
		Feedback: feedbackOf(&c.Feedback)}
	if c.USB == "" {
		return device.NewSerial(s, f.a.clock, f.a.pipe, f.stateChanged)
	}
	return device.NewUSBSerial(s, sel, f.bus, f.a.clock, f.a.pipe, f.stateChanged)
}

// ambiguous says that only its port tells a scanner from another device, or that nothing does.
func (f *fleet) ambiguous(id string) bool {
	f.mu.Lock()
	i := slices.IndexFunc(f.scanners, func(c config.Scanner) bool { return c.ID == id })
	if i < 0 {
		f.mu.Unlock()
		return false
	}
	c := f.scanners[i]
	f.mu.Unlock()
	return isAmbiguous(c, f.bus.Devices())
}

func (f *fleet) stateChanged(id string, s device.State, detail string) {
	f.mu.Lock()
	f.states[id] = scannerState{s, detail}
	f.mu.Unlock()
	f.a.log.Info("scanner", "scanner", id, "state", s, "detail", detail)
	f.a.tell(events.Entry{Kind: "device", At: f.a.clock.Now().T, Body: deviceBody{id, string(s), f.ambiguous(id), nullable(detail)}})
	switch s {
	case device.Reading:
		f.a.alarms.clear(alarmDevice + ":" + id)
	case device.Quarantined:
		f.a.alarms.set(alarmDevice+":"+id, "scanner "+id+" is left alone: "+detail, "unplug it and plug it in again; if that does not help, plug it in elsewhere, or have it replaced")
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

// feedbackOf is what a device is told: its own bytes, and for the rest those of its family.
func feedbackOf(c *config.Feedback) device.Feedback {
	own := device.Feedback{Good: []byte(c.Good), Duplicate: []byte(c.Duplicate), Reject: []byte(c.Reject)}
	family, _ := device.FeedbackOf(c.Profile)
	return own.Or(family)
}
