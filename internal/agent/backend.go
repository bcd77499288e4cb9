package agent

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/session"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/window"
)

// turnWithin is how long a question may wait for the pipeline.
const turnWithin = 2 * time.Second

// inPipeline runs f in the pipeline and waits until what it did is durable.
func (a *agent) inPipeline(ctx context.Context, f func(b *spool.Batch) func(error)) error {
	ctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	if a.pipe.do(ctx, f) != nil {
		return errBusy()
	}
	return nil
}

// errBusy says that nothing has been done.
func errBusy() error {
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: "busy", Detail: "cannot answer now: the pipeline does not turn", Hint: "try again; if it goes on, check the disk under the state folder"}
}

// Ready is nil once the spool is open and the pipeline runs.
func (a *agent) Ready() error {
	if _, ready, _ := a.pipe.snapshot(); !ready {
		return errors.New("cannot take scans yet: the agent is starting")
	}
	return nil
}

// Alive is nil while the pipeline turns.
func (a *agent) Alive() error {
	ctx, cancel := context.WithTimeout(context.Background(), turnWithin)
	defer cancel()
	if a.pipe.turn(ctx, func() {}) != nil {
		return errBusy()
	}
	return nil
}

// Status tells how the agent does.
func (a *agent) Status(ctx context.Context) (api.Status, error) {
	told := make(chan []api.ScannerStatus, 1)
	tctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	if a.pipe.turn(tctx, func() { told <- a.pipe.scannerStatus(a.clock.Now()) }) != nil {
		return api.Status{}, errBusy()
	}
	scanners := <-told
	for i := range scanners {
		base, _, _ := strings.Cut(scanners[i].ID, "/")
		scanners[i].State = string(a.fleet.state(base))
	}
	now := a.clock.Now()
	t, _, ndc := a.pipe.snapshot()
	st, clock := a.spool.Stats(), a.clock.Stats()
	return api.Status{
		AgentID: a.id, FacilityUUID: a.cfg.Agent.FacilityUUID, Instance: a.run, Version: a.opts.Version,
		State: string(a.forward.Stats().Link), Accepting: st.Accepting,
		Spool: api.SpoolStatus{Epoch: st.Epoch, Records: st.Unsettled, MaxRecords: st.MaxRecords, Bytes: st.Bytes, MaxBytes: st.MaxBytes,
			Fill: min(1, st.Fill()), OldestAgeMS: age(now.T, st.Oldest), Quarantined: st.Quarantined, Segments: st.Segments},
		Stores: a.stores(),
		Clock:  api.ClockStatus{Quality: now.Quality, OffsetMS: float64(clock.Offset.Microseconds()) / 1e3, ErrorMS: float64(clock.Error.Microseconds()) / 1e3},
		NDC:    ndc,
		Counts: api.Counts{Captured: st.Captured, Committed: st.Committed, Suppressed: st.Suppressed, Pending: st.Pending, Held: st.Held,
			Quarantined: st.Quarantined, Unaccounted: st.Unaccounted},
		Frames: api.Frames{Frames: t.frames, Captured: t.captured, NotAccepted: t.notAccepted, Rejected: t.rejected, Control: t.control,
			Voided: t.voided, InFlight: t.inFlight},
		Scanners: scanners, Alarms: a.alarms.list(),
	}, nil
}

// stores tells of the stores that are not embedded.
func (a *agent) stores() (s api.Stores) {
	fs := a.forward.Stats()
	if a.cfg.Claim.Backend == "redis" {
		s.Redis = storeStatus(fs.ClaimsCause, fs.ClaimsSince)
	}
	if a.cfg.Ledger.Backend == "postgres" {
		s.Postgres = storeStatus(fs.Cause, fs.Since)
	}
	return s
}

func storeStatus(cause error, since window.UTC) *api.StoreStatus {
	st := &api.StoreStatus{OK: cause == nil, Since: nullableTime(since)}
	if cause != nil {
		text := cause.Error()
		st.LastError = &text
	}
	return st
}

// scannerStatus belongs to the pipeline's goroutine.
func (p *pipeline) scannerStatus(at window.Reading) []api.ScannerStatus {
	out := make([]api.ScannerStatus, 0, len(p.scanners))
	for _, s := range p.scanners {
		typ, quantity := s.session.Current(at.Boot)
		st := api.ScannerStatus{ID: s.id, ScanType: typ, Quantity: quantity, RevertsAt: revertsAt(s, at)}
		if s.lastScan != 0 {
			last := s.lastScan
			st.LastScanAt = &last
		}
		out = append(out, st)
	}
	slices.SortFunc(out, func(x, y api.ScannerStatus) int { return strings.Compare(x.ID, y.ID) })
	return out
}

// at finds a scanner for the API's user; a gun that has not been heard yet begins its session here. It
// belongs to the pipeline's goroutine.
func (p *pipeline) at(id string) (*scanner, error) {
	if s := p.scanners[id]; s != nil {
		return s, nil
	}
	if base, address, ok := strings.Cut(id, "/"); ok {
		if s := p.scanners[base]; s != nil && s.cfg.GunDigits > 0 && len(address) == s.cfg.GunDigits && strings.Trim(address, "0123456789") == "" {
			return p.gun(s, address), nil
		}
	}
	return nil, &api.Error{Status: http.StatusNotFound, Reason: "unknown_scanner", Detail: "cannot find that scanner", Hint: "GET /v1/status lists the scanners"}
}

// act runs f on a scanner's session in the pipeline.
func (a *agent) act(ctx context.Context, id, reason string, f func(s *scanner, at window.Reading) error) error {
	var failed error
	err := a.inPipeline(ctx, func(b *spool.Batch) func(error) {
		s, err := a.pipe.at(id)
		if err == nil && s.cfg.Shared {
			err = session.ErrShared
		}
		at := a.clock.Now()
		if err == nil {
			a.pipe.keep(s)
			err = f(s, at)
		}
		if err != nil {
			failed = apiError(err)
			return nil
		}
		typ, _ := s.session.Current(at.Boot)
		b.Note(spool.Line{Event: spool.NewEvent(at.T), At: at.T, Outcome: "control", Reason: reason, Scanner: s.id, Type: typ})
		return func(err error) {
			if err != nil {
				failed = unkept(err)
				return
			}
			a.tell(*a.pipe.modeEntry(s, at, "api"))
		}
	})
	return errors.Join(err, failed)
}

func apiError(err error) error {
	switch {
	case errors.Is(err, session.ErrShared):
		return &api.Error{Status: http.StatusConflict, Reason: "shared_scanner", Detail: err.Error(), Hint: "use a command barcode: every workstation hears it"}
	case errors.Is(err, session.ErrQuantity):
		return &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_value", Detail: err.Error(), Hint: "send a whole number from 1 to 9999"}
	}
	return err
}

func unkept(err error) error {
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: "not_durable", Detail: err.Error(), Hint: "check the disk under the state folder, then try again"}
}

// SetMode sets a scanner's scan type until it has been idle.
func (a *agent) SetMode(ctx context.Context, id string, t window.ScanType) (api.ModeSet, error) {
	var out api.ModeSet
	err := a.act(ctx, id, "mode", func(s *scanner, at window.Reading) error {
		s.session.SetMode(t, at.Boot)
		out = api.ModeSet{ScannerID: s.id, ScanType: t}
		if end, ok := s.session.ModeEnds(at.Boot); ok {
			ends := at.T.Add(end - at.Boot)
			out.RevertsAt = &ends
		}
		return nil
	})
	return out, firstOf(err)
}

// SetQuantity sets the quantity of a scanner's next scan.
func (a *agent) SetQuantity(ctx context.Context, id string, quantity int) (api.QuantitySet, error) {
	var out api.QuantitySet
	err := a.act(ctx, id, "quantity", func(s *scanner, at window.Reading) error {
		if err := s.session.SetQuantity(quantity, at.Boot); err != nil {
			return err
		}
		end, _ := s.session.QuantityEnds(at.Boot)
		out = api.QuantitySet{ScannerID: s.id, Quantity: quantity, ExpiresAt: at.T.Add(end - at.Boot)}
		return nil
	})
	return out, firstOf(err)
}

// firstOf takes the API's own error out of a join.
func firstOf(err error) error {
	var e *api.Error
	if errors.As(err, &e) {
		return e
	}
	return err
}

// SameAgain makes a told duplicate a movement of its own, or arms the next scan.
func (a *agent) SameAgain(ctx context.Context, id, event string) (api.SameAgain, error) {
	var named idem.EventID
	if event != "" {
		var err error
		if named, err = idem.ParseEventID(event); err != nil {
			return api.SameAgain{}, &api.Error{Status: http.StatusBadRequest, Reason: "bad_event_id", Detail: err.Error(), Hint: "send the event_id of a duplicate event"}
		}
	}
	var out api.SameAgain
	var failed error
	err := a.inPipeline(ctx, func(b *spool.Batch) func(error) {
		s, err := a.pipe.at(id)
		if err == nil && s.cfg.Shared {
			err = session.ErrShared
		}
		if err != nil {
			failed = apiError(err)
			return nil
		}
		at := a.clock.Now()
		a.pipe.keep(s)
		t, ok := s.lastTold(at.Boot, named)
		b.Note(spool.Line{Event: spool.NewEvent(at.T), At: at.T, Outcome: "control", Reason: "same_again", Scanner: s.id})
		switch {
		case !ok && !named.IsZero():
			failed = &api.Error{Status: http.StatusNotFound, Reason: "unknown_duplicate", Detail: "cannot find that duplicate at this scanner, or it was told more than 60 s ago, or it is counted already",
				Hint: "leave event_id null to arm the next scan, then scan the item"}
			return nil
		case !ok:
			s.session.Arm(at.Boot)
			out = api.SameAgain{Outcome: "armed"}
			return func(err error) {
				if err != nil {
					failed = unkept(err)
				}
			}
		}
		o := *a.pipe.convert(b, s, t, at)
		if o.kind != kAccepted {
			failed = &api.Error{Status: http.StatusServiceUnavailable, Reason: o.reason, Detail: "cannot count the scan: " + o.detail, Hint: "see GET /v1/status"}
			return nil
		}
		return func(err error) {
			if err != nil {
				failed = unkept(err)
				return
			}
			r := o.decision.Record
			out = api.SameAgain{Outcome: "accepted", EventID: r.Event.String(), Key: r.Keys.Idem.String()}
		}
	})
	return out, firstOf(errors.Join(err, failed))
}

var _ forward.Listener = (*agent)(nil)
var _ api.Backend = (*agent)(nil)
