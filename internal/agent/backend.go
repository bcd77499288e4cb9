package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/session"
	"scanonce/spool"
	"scanonce/sync/claimstate"
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
		if scanners[i].State == "" {
			scanners[i].State = string(a.fleet.state(base))
		}
		scanners[i].Ambiguous = a.fleet.ambiguous(base)
	}
	now := a.clock.Now()
	t, _, ndc := a.pipe.snapshot()
	st, clock := a.spool.Stats(), a.clock.Stats()
	return api.Status{
		AgentID: a.id, FacilityUUID: a.cfg.Agent.FacilityUUID, Instance: a.run, Version: a.opts.Version,
		State: string(a.forward.Stats().Link), Accepting: st.Accepting,
		Spool: api.SpoolStatus{Epoch: st.Epoch, Records: st.Unsettled, MaxRecords: st.MaxRecords, Bytes: st.Bytes, MaxBytes: st.MaxBytes,
			Fill: min(1, st.Fill()), OldestAgeMS: age(now.T, st.Oldest), Quarantined: st.Quarantined, Segments: st.Segments},
		Stores: a.stores(), Operations: api.PendingStatus{Pending: a.spool.Journal().Pending(), OldestAgeMS: age(now.T, a.spool.Journal().Oldest())},
		Clock: api.ClockStatus{Quality: now.Quality, OffsetMS: float64(clock.Offset.Microseconds()) / 1e3, ErrorMS: float64(clock.Error.Microseconds()) / 1e3},
		NDC:   ndc.status(),
		Counts: api.Counts{Captured: st.Captured, Committed: st.Committed, Suppressed: st.Suppressed, Pending: st.Pending, Held: st.Held,
			Quarantined: st.Quarantined, Discarded: st.Discarded, Unaccounted: st.Unaccounted},
		Frames: api.Frames{Frames: t.frames, Captured: t.captured, NotAccepted: t.notAccepted, Rejected: t.rejected, Control: t.control,
			Voided: t.voided, InFlight: t.inFlight},
		Scanners: scanners, Alarms: a.alarms.list(),
	}, nil
}

// stores tells of the stores that are not embedded.
func (a *agent) stores() (s api.Stores) {
	fs := a.forward.Stats()
	claims, claimsSince := a.courier.Down(forward.Claims)
	cases, casesSince := a.courier.Down(forward.Cases)
	// What a store is used for may fail by itself: then it is not all right.
	tell := func(at **api.StoreStatus, used bool, cause error, since window.UTC) {
		if used && (*at == nil || (*at).OK && cause != nil) {
			*at = storeStatus(cause, since)
		}
	}
	state := a.cfg.ClaimState.Backend
	ofClaims := func(store string) (error, window.UTC) {
		cause := claims
		if state == "split" { // each has its own failures
			cause = claimstate.Blame(claims, store)
		}
		if cause == nil && claims != nil {
			return nil, 0
		}
		return cause, claimsSince
	}
	inRedis, inRedisSince := ofClaims(claimstate.InRedis)
	inDynamo, inDynamoSince := ofClaims(claimstate.InDynamoDB)
	tell(&s.Redis, a.cfg.Claim.Backend == "redis", fs.ClaimsCause, fs.ClaimsSince)
	tell(&s.Redis, state == "redis" || state == "split", inRedis, inRedisSince)
	tell(&s.Postgres, a.cfg.Ledger.Backend == "postgres", fs.Cause, fs.Since)
	tell(&s.Postgres, a.cfg.PA.Backend == "postgres", cases, casesSince)
	tell(&s.DynamoDB, state == "dynamodb" || state == "split", inDynamo, inDynamoSince)
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

// Journaled tells that what became of operations is kept, or why it cannot be; see forward.CourierListener.
func (a *agent) Journaled(cause error) {
	if cause == nil {
		a.alarms.clear(alarmJournal)
		a.watchConflicts()
		return
	}
	hint := "check the disk under the state folder"
	if spool.IsNoSpace(cause) {
		hint = hintDiskFull
	}
	a.log.Error("cannot keep what became of queued operations; it is tried again", "error", cause)
	a.alarms.set(alarmJournal, "cannot keep what became of queued operations: "+cause.Error(), hint)
}

// watchConflicts keeps the alarm about conflicts as it should be.
func (a *agent) watchConflicts() {
	n, dropped := a.spool.Journal().ConflictCounts()
	more := ""
	if dropped > 0 {
		more = fmt.Sprintf(", and %d older ones that the list has no room for", dropped)
	}
	if before := a.dropped.Swap(int64(dropped)); int64(dropped) > before {
		a.log.Warn("the list of conflicts is full; the oldest are dropped from it", "dropped", int64(dropped)-before, "in_all", dropped)
	}
	if n > 0 {
		a.alarms.set(alarmConflict, fmt.Sprintf("operations on claims or cases that could not be carried out: %d%s", n, more),
			"see scanonce conflicts; once each is seen to, take it off the list with scanonce conflicts --resolve OP_ID --by NAME")
	} else {
		a.alarms.clear(alarmConflict)
	}
}

// PendingOperations lists the operations that wait for a store; see api.Reader.
func (a *agent) PendingOperations(ctx context.Context, yield func(api.PendingOperation) error) error {
	return a.stored().PendingOperations(ctx, yield)
}

func (s stored) PendingOperations(_ context.Context, yield func(api.PendingOperation) error) error {
	if s.spool == nil {
		return nil
	}
	for _, w := range forward.WaitingOf(s.spool.Journal()) {
		if err := yield(api.PendingOperation{OpID: w.ID.String(), Kind: w.Kind, ID: w.Target, At: w.At}); err != nil {
			return err
		}
	}
	return nil
}

// scannerStatus belongs to the pipeline's goroutine.
func (p *pipeline) scannerStatus(at window.Reading) []api.ScannerStatus {
	out := make([]api.ScannerStatus, 0, len(p.scanners))
	for _, s := range p.scanners {
		typ, quantity := s.session.Current(at.Boot)
		st := api.ScannerStatus{ID: s.id, ScanType: typ, Quantity: quantity, RevertsAt: revertsAt(s, at)}
		if s.api {
			st.State = stateAPI
		}
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
	if s := p.scanners[p.a.id+"/"+id]; s != nil && s.api {
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
