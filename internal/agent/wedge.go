package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"scanonce/device"
	"scanonce/internal/config"
)

// wedge types accepted scans for applications that know scanners as keyboards only. It runs while a scanner of the
// configuration wants it.
type wedge struct {
	a    *agent
	make func(device.WedgeConfig, func(error)) (typist, error)

	mu      sync.Mutex
	cfg     config.Wedge
	typist  typist // nil: nobody wants it
	stop    func()
	stopped bool // for good
	before  device.WedgeStats
}

// typist is a device.Wedge.
type typist interface {
	Run(context.Context)
	Type(text []byte, at time.Duration)
	Stats() device.WedgeStats
}

func newWedge(a *agent) *wedge {
	return &wedge{a: a, make: func(cfg device.WedgeConfig, notice func(error)) (typist, error) {
		return device.NewWedge(cfg, a.clock, notice)
	}}
}

// reconfigure starts, stops and restarts it.
func (w *wedge) reconfigure(cfg *config.Config) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wanted := !w.stopped && slices.ContainsFunc(cfg.Scanners, func(s config.Scanner) bool { return s.Wedge })
	if wanted == (w.typist != nil) && (!wanted || cfg.Wedge == w.cfg) {
		return
	}
	w.end()
	if !wanted {
		w.a.alarms.clear(alarmWedge)
		return
	}
	w.cfg = cfg.Wedge
	typist, err := w.make(device.WedgeConfig{Root: w.a.opts.USBRoot, Layout: w.cfg.Layout, GS: w.cfg.GS, End: w.cfg.End}, w.notice)
	if err != nil {
		w.notice(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		typist.Run(ctx)
	}()
	w.typist, w.stop = typist, func() { cancel(); <-done }
}

// end needs mu.
func (w *wedge) end() {
	if w.typist == nil {
		return
	}
	w.stop()
	w.before = w.figures()
	w.typist = nil
	w.a.alarms.clear(alarmWedge)
}

// close ends it for good.
func (w *wedge) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	w.end()
}

// typeText types the text of a scan, which came at the instant at by the boottime, if anybody wants it. It does not wait.
func (w *wedge) typeText(text []byte, at time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.typist != nil {
		w.typist.Type(text, at)
	}
}

func (w *wedge) stats() device.WedgeStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.figures()
}

// figures needs mu.
func (w *wedge) figures() device.WedgeStats {
	st := w.before
	if w.typist != nil {
		now := w.typist.Stats()
		st.Typed, st.Lost = st.Typed+now.Typed, st.Lost+now.Lost
	}
	return st
}

// notice tells that scans are not typed, or are again.
func (w *wedge) notice(err error) {
	if err == nil {
		w.a.alarms.clear(alarmWedge)
		return
	}
	w.a.alarms.set(alarmWedge, err.Error()+"; scans are counted all the same, and not typed later", "mend it, and until then type what the application needs by hand")
}

// lateText is the text of an accepted scan.
type lateText struct {
	hidden
	scanner string
	seq     uint64 // of its record, 0 for none
	at      time.Duration
	text    []byte
}

// typeLater takes the text of an outcome. What is held because it came before is not typed: a person says what it is.
func (p *pipeline) typeLater(o *outcome) {
	var seq uint64
	switch o.kind {
	case kAccepted, kDuplicate:
		r := o.decision.Record
		if !r.Batch.IsZero() {
			p.later = slices.DeleteFunc(p.later, func(l lateText) bool { return l.scanner == o.scanner.id && l.seq >= r.Run })
			return
		}
		seq = r.Seq
	case kControl:
	default:
		return
	}
	if o.text != nil && o.kind != kDuplicate {
		p.later = append(p.later, lateText{scanner: o.scanner.id, seq: seq, at: o.frame.At.Boot, text: o.text})
	}
}

// typeNow types what may not turn out to repeat a stored batch any more, of each scanner in its order.
func (p *pipeline) typeNow() {
	var wait []string
	p.later = slices.DeleteFunc(p.later, func(t lateText) bool {
		if slices.Contains(wait, t.scanner) {
			return false
		}
		if since := p.a.spool.MayRepeat(t.scanner); since != 0 && t.seq >= since {
			wait = append(wait, t.scanner)
			return false
		}
		p.a.wedge.typeText(t.text, t.at)
		return true
	})
}
