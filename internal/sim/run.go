package sim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scanonce/internal/api"
	"scanonce/window"
)

// Agent is what a run asks of the running agent.
type Agent interface {
	Status(ctx context.Context) (api.Status, error)
	Position(ctx context.Context) (string, error)
	Follow(ctx context.Context, lastID string, kinds []string, yield func(api.Event) error) error
	LedgerExport(ctx context.Context, format api.Format, since, until *window.UTC, w io.Writer) error
}

// Run types steps on one scanner and matches each transmission with its event.
type Run struct {
	Agent    Agent
	Scanner  *Scanner // not plugged in yet; Do plugs it in and leaves it so
	Steps    []Step
	Scripted bool          // the steps are somebody's own: what is new may also be refused
	Policy   window.Policy // of the scanner's scan type
	Host     window.OS
	Timeout  time.Duration       // for each answer of the agent
	Report   func(*Result) error // called for each transmission, in order; may be nil
}

// Result is what became of a transmission.
type Result struct {
	N           int         `json:"n"` // from 1
	ScannerID   string      `json:"scanner_id"`
	Retransmit  bool        `json:"retransmit"`
	Straddle    bool        `json:"straddle"`
	Outcome     Outcome     `json:"outcome"`
	EventID     *string     `json:"event_id"`
	Key         *string     `json:"key"`
	DuplicateOf *string     `json:"duplicate_of"`
	AcceptMS    *float64    `json:"accept_ms"` // from the last byte typed to the event
	CapturedAt  *window.UTC `json:"captured_at"`
	Reason      *string     `json:"reason"`

	Of     int      `json:"-"` // the transmission that DuplicateOf is, 0 if it is none of this run
	Item   api.Item `json:"-"`
	Detail string   `json:"-"`
}

// Outcome is what an agent told of a transmission.
type Outcome string

// The outcomes. A script may also meet label, unknown and mode, the kinds of events that are no movement.
const (
	Committed   Outcome = "committed"
	Duplicate   Outcome = "duplicate"
	Rejected    Outcome = "rejected"
	NotAccepted Outcome = "not_accepted"
	Accepted    Outcome = "accepted" // and no more in time
	Unanswered  Outcome = "none"     // no event in time
)

// Summary is what the agent and its ledger count after a run, and what differs from what must be.
type Summary struct {
	api.Counts
	LedgerRows int64    `json:"ledger_rows"`
	OK         bool     `json:"ok"`
	Problems   []string `json:"problems"` // each begins with "cannot "
}

// inFlight bounds the transmissions whose event has not come: less than an agent queues.
const inFlight = 16

// transmission is one step under way.
type transmission struct {
	Result
	typed time.Duration // boot time
	sent  chan struct{} // closed when it has been typed
	told  chan struct{} // closed at its first event
	final chan struct{} // closed at the event that decides it
}

type run struct {
	*Run
	steps   []Step // straddles move
	all     []*transmission
	from    string // position in the event stream
	slots   chan struct{}
	reading chan struct{} // closed once the agent reads

	mu      sync.Mutex
	waiting []*transmission // typed and not told, in order
	byEvent map[string]*transmission
	strange []string     // problems seen on the way
	offsets []window.UTC // agent's time − boot time, the newest last
}

// Do runs. The error says why the run could not be finished; what came out otherwise than it must is among
// the summary's problems.
func (r *Run) Do(ctx context.Context) (Summary, error) {
	x := &run{
		Run: r, steps: append([]Step(nil), r.Steps...), slots: make(chan struct{}, inFlight),
		reading: make(chan struct{}), byEvent: map[string]*transmission{},
		offsets: []window.UTC{window.FromTime(r.Host.Wall()).Add(-r.Host.Boot())},
	}
	for i := range x.steps {
		x.all = append(x.all, &transmission{
			Result: Result{N: i + 1, ScannerID: r.Scanner.ID, Outcome: Unanswered},
			sent:   make(chan struct{}), told: make(chan struct{}), final: make(chan struct{}),
		})
	}
	if err := r.Scanner.waitUnplugged(ctx, r.Agent); err != nil {
		return Summary{}, err
	}
	before, err := r.Agent.Status(ctx)
	if err != nil {
		return Summary{}, err
	}
	// The device is plugged in behind this position, so that no event of the run can be missed.
	if x.from, err = r.Agent.Position(ctx); err != nil {
		return Summary{}, err
	}
	g, gctx := errgroup.WithContext(ctx)
	gctx, stop := context.WithCancel(gctx)
	defer stop()
	g.Go(func() error { return x.follow(gctx) })
	g.Go(func() error {
		if err := x.plug(gctx); err != nil {
			return err
		}
		return x.send(gctx)
	})
	g.Go(func() error {
		defer stop() // all is reported: the stream is no longer needed
		return x.report(gctx)
	})
	if err := g.Wait(); err != nil {
		return Summary{}, err
	}
	if ctx.Err() != nil {
		return Summary{}, context.Cause(ctx)
	}
	return x.summarize(ctx, before)
}

func (x *run) follow(ctx context.Context) error {
	err := x.Agent.Follow(ctx, x.from, nil, x.event)
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	}
	return errors.New("cannot follow the run: the agent closed its event stream")
}

// plug makes the device appear and waits until the agent reads it.
func (x *run) plug(ctx context.Context) error {
	if err := x.Scanner.Replug(); err != nil {
		return err
	}
	limit := time.NewTimer(x.Timeout)
	defer limit.Stop()
	select {
	case <-x.reading:
		x.Scanner.Opened()
		return nil
	case <-ctx.Done():
		return nil
	case <-limit.C:
		return fmt.Errorf("cannot type on scanner %s: the agent did not open %s within %v", x.Scanner.ID, x.Scanner.Path, x.Timeout)
	}
}

// send types all steps.
func (x *run) send(ctx context.Context) error {
	var last time.Duration // boot time of the transmission before
	for i := range x.steps {
		s, t := &x.steps[i], x.all[i]
		at := last + s.After
		var boundary window.UTC
		switch {
		case i+1 < len(x.steps) && x.steps[i+1].Straddle:
			if i > 0 && !x.answered(ctx, x.all[i-1]) { // its answer tells the agent's time
				return nil
			}
			at, boundary = x.beforeBoundary(max(at, x.Host.Boot()))
		case s.Straddle:
			at = x.behindBoundary(x.all[i-1])
		}
		if !wait(ctx, at-x.Host.Boot()) {
			return nil
		}
		select {
		case x.slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		if err := x.typeStep(s, t); err != nil {
			return err
		}
		last = t.typed
		if boundary != 0 {
			if !x.arrivedBefore(ctx, t, boundary) {
				x.moveStraddle(i + 1)
			}
		}
	}
	return nil
}

func (x *run) typeStep(s *Step, t *transmission) error {
	x.mu.Lock()
	t.Retransmit, t.Straddle = s.Retransmit, s.Straddle
	t.typed = x.Host.Boot()
	x.waiting = append(x.waiting, t)
	x.mu.Unlock()
	if err := x.Scanner.Type(s.Data); err != nil {
		return err
	}
	x.mu.Lock()
	t.typed = max(t.typed, x.Host.Boot())
	x.mu.Unlock()
	close(t.sent)
	return nil
}

// wait waits for d; false if ctx ended before.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// Distances from the boundary at which the two transmissions of a straddle are typed.
const (
	leadMost = 100 * time.Millisecond
	behind   = 40 * time.Millisecond
)

// beforeBoundary returns the boot time shortly before the first boundary that can still be met from at on,
// and that boundary in the agent's time. The time is within the guard of the boundary.
func (x *run) beforeBoundary(at time.Duration) (time.Duration, window.UTC) {
	lead := min(leadMost, x.Policy.Guard/2)
	offset := x.offset()
	now := offset.Add(at)
	i := x.Policy.Index(now)
	boundary := x.Policy.Start(i + 1)
	if boundary.Sub(now) < lead {
		boundary = x.Policy.Start(i + 2)
	}
	return boundary.Add(-lead).Sub(offset), boundary
}

// behindBoundary returns the boot time just behind the boundary that follows the capture of first.
func (x *run) behindBoundary(first *transmission) time.Duration {
	x.mu.Lock()
	captured := *first.CapturedAt
	x.mu.Unlock()
	return x.Policy.Start(x.Policy.Index(captured) + 1).Add(behind).Sub(x.offset())
}

// answered waits for the agent's first word on t, or until its time is up; false if ctx ended.
func (x *run) answered(ctx context.Context, t *transmission) bool {
	limit := time.NewTimer(x.Timeout)
	defer limit.Stop()
	select {
	case <-t.told:
	case <-limit.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// arrivedBefore waits for the agent's answer to t and says whether it was captured within the guard before
// the boundary.
func (x *run) arrivedBefore(ctx context.Context, t *transmission, boundary window.UTC) bool {
	if !x.answered(ctx, t) {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return t.CapturedAt != nil && *t.CapturedAt < boundary && boundary.Sub(*t.CapturedAt) <= x.Policy.Guard
}

// moveStraddle gives up the straddle of step i, whose first transmission came too late, for a later step.
func (x *run) moveStraddle(i int) {
	x.steps[i].Straddle = false
	x.mu.Lock()
	x.offsets = x.offsets[len(x.offsets)-1:] // the agent's clock may have been set
	x.mu.Unlock()
	for j := i + 1; j < len(x.steps); j++ {
		if s := &x.steps[j]; s.Retransmit && !s.Straddle && !x.steps[j-1].Retransmit {
			s.Straddle = true
			return
		}
	}
	x.problem("cannot straddle as often as asked: scan %d was captured too far from the boundary, and there is no other retransmission left", i)
}

// offset is the agent's time − boot time: the least of the last ones seen, since each holds the way of a
// frame to the agent.
func (x *run) offset() window.UTC {
	x.mu.Lock()
	defer x.mu.Unlock()
	least := x.offsets[0]
	for _, o := range x.offsets[1:] {
		least = min(least, o)
	}
	return least
}

const offsetsKept = 8

func (x *run) problem(format string, a ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.strange = append(x.strange, fmt.Sprintf(format, a...))
}

// told is what is read of an event.
type told struct {
	EventID     string      `json:"event_id"`
	ScannerID   string      `json:"scanner_id"`
	CapturedAt  *window.UTC `json:"captured_at"`
	Key         string      `json:"key"`
	Item        api.Item    `json:"item"`
	DuplicateOf string      `json:"duplicate_of"`
	Reason      string      `json:"reason"`
	Detail      string      `json:"detail"`
	State       string      `json:"state"`
	Source      string      `json:"source"`
}

// event takes one event of the agent.
func (x *run) event(ev api.Event) error {
	var e told
	if err := json.Unmarshal(ev.Data, &e); err != nil {
		return fmt.Errorf("cannot read the agent's event %s: %w", ev.ID, err)
	}
	now := x.Host.Boot()
	if ev.Kind == "gap" {
		return errors.New("cannot match the events: the agent no longer has all of them; simulate fewer scans a second")
	}
	if e.ScannerID != x.Scanner.ID && !strings.HasPrefix(e.ScannerID, x.Scanner.ID+"/") {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch ev.Kind {
	case "device":
		select {
		case <-x.reading:
			if e.State != deviceReading {
				x.strange = append(x.strange, fmt.Sprintf("cannot trust the run: scanner %s went to state %s", x.Scanner.ID, e.State))
			}
		default:
			if e.State == deviceReading {
				close(x.reading)
			}
		}
	case "committed":
		if t := x.byEvent[e.EventID]; t != nil {
			t.decide(Committed)
		}
	case "duplicate":
		if t := x.byEvent[e.EventID]; t != nil { // accepted at first, found at settlement
			x.duplicate(t, e)
			return nil
		}
		if t := x.next(e, now); t != nil {
			x.duplicate(t, e)
		}
	case "accepted":
		if t := x.next(e, now); t != nil {
			t.Outcome, t.Item = Accepted, e.Item
		}
	case "rejected", "not_accepted", "label", "unknown":
		if t := x.next(e, now); t != nil {
			t.Detail = e.Detail
			t.decide(Outcome(ev.Kind))
		}
	case "mode":
		if e.Source == "barcode" {
			if t := x.next(e, now); t != nil {
				t.decide(Outcome(ev.Kind))
			}
		}
	}
	return nil
}

// next takes the transmission that has waited longest: an agent answers the frames of a scanner in order.
func (x *run) next(e told, now time.Duration) *transmission {
	if len(x.waiting) == 0 {
		x.strange = append(x.strange, fmt.Sprintf("cannot match an event of scanner %s: it answers nothing that was typed here", e.ScannerID))
		return nil
	}
	t := x.waiting[0]
	x.waiting = x.waiting[1:]
	<-x.slots
	ms := max(0, float64(now-t.typed)) / float64(time.Millisecond)
	t.AcceptMS, t.CapturedAt = &ms, e.CapturedAt
	t.ScannerID = e.ScannerID
	t.EventID, t.Key, t.Reason = text(e.EventID), text(e.Key), text(e.Reason)
	if e.EventID != "" {
		x.byEvent[e.EventID] = t
	}
	if e.CapturedAt != nil {
		x.offsets = append(x.offsets, e.CapturedAt.Add(-t.typed))
		if x.offsets = x.offsets[max(0, len(x.offsets)-offsetsKept):]; t.N == 1 {
			x.offsets = x.offsets[len(x.offsets)-1:] // the first was a guess
		}
	}
	close(t.told)
	return t
}

func (x *run) duplicate(t *transmission, e told) {
	t.DuplicateOf, t.Key, t.Reason = text(e.DuplicateOf), text(e.Key), text(e.Reason)
	if first := x.byEvent[e.DuplicateOf]; first != nil {
		t.Of, t.Item = first.N, first.Item
	}
	t.decide(Duplicate)
}

func (t *transmission) decide(o Outcome) {
	select {
	case <-t.final:
	default:
		t.Outcome = o
		close(t.final)
	}
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// report tells each transmission in order, as soon as it is decided or its time is up.
func (x *run) report(ctx context.Context) error {
	for _, t := range x.all {
		select {
		case <-t.sent: // the pace is the script's
		case <-ctx.Done():
			return nil
		}
		for _, answer := range []<-chan struct{}{t.told, t.final} {
			limit := time.NewTimer(x.Timeout)
			select {
			case <-answer:
			case <-limit.C:
			case <-ctx.Done():
			}
			limit.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
		if x.Report != nil {
			x.mu.Lock()
			r := t.Result
			x.mu.Unlock()
			if err := x.Report(&r); err != nil {
				return err
			}
		}
	}
	return nil
}

// settleCheck is the pause between two looks at the status while something is still pending. No event tells
// of the moment when the last duplicate is settled.
const settleCheck = 20 * time.Millisecond

func (x *run) summarize(ctx context.Context, before api.Status) (Summary, error) {
	var s Summary
	st, err := x.Agent.Status(ctx)
	for deadline := x.Host.Boot() + x.Timeout; err == nil && unsettled(st) && x.Host.Boot() < deadline; {
		if !wait(ctx, settleCheck) {
			return s, context.Cause(ctx)
		}
		st, err = x.Agent.Status(ctx)
	}
	if err != nil {
		return s, err
	}
	rows, total, err := x.ledger(ctx)
	if err != nil {
		return s, err
	}
	s.Counts, s.LedgerRows = st.Counts, total
	x.mu.Lock()
	defer x.mu.Unlock()
	s.Problems = append(append([]string{}, x.strange...), x.expectations(rows)...)
	fail := func(format string, a ...any) { s.Problems = append(s.Problems, fmt.Sprintf(format, a...)) }
	if !st.Counts.Balanced() {
		fail("cannot balance the counts: %+v", st.Counts)
	}
	if !st.Frames.Balanced() || st.Frames.InFlight != 0 {
		fail("cannot balance the frames: %+v", st.Frames)
	}
	var committed, duplicates int64
	for _, t := range x.all {
		switch t.Outcome {
		case Committed:
			committed++
		case Duplicate:
			duplicates++
		}
	}
	if d := st.Counts.Committed - before.Counts.Committed; before.Instance == st.Instance && d < committed {
		fail("cannot find all commits in the status: %d were told, %d counted", committed, d)
	}
	if d := st.Counts.Suppressed - before.Counts.Suppressed; before.Instance == st.Instance && d < duplicates {
		fail("cannot find all duplicates in the status: %d were told, %d counted as suppressed", duplicates, d)
	}
	s.OK = len(s.Problems) == 0
	return s, nil
}

func unsettled(st api.Status) bool { return st.Counts.Pending != 0 || st.Frames.InFlight != 0 }

// ledger returns the keys of the rows of this run's events, and the number of all rows.
func (x *run) ledger(ctx context.Context) (map[string][]string, int64, error) {
	rows, total := map[string][]string{}, int64(0)
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(x.Agent.LedgerExport(ctx, api.JSONL, nil, nil, pw)) }()
	defer pr.Close()
	d := json.NewDecoder(bufio.NewReader(pr))
	for {
		var row api.LedgerRow
		err := d.Decode(&row)
		if errors.Is(err, io.EOF) {
			return rows, total, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("cannot read the ledger: %w", err)
		}
		total++
		x.mu.Lock()
		if x.byEvent[row.EventID] != nil {
			rows[row.EventID] = append(rows[row.EventID], row.IdemKey)
		}
		x.mu.Unlock()
	}
}

// expectations compares every outcome with what the steps say. A retransmission has the fate of its first
// transmission, as its duplicate; a movement is committed, with one row under the key that was told.
func (x *run) expectations(rows map[string][]string) []string {
	var out []string
	first := map[string]*transmission{}
	for i, t := range x.all {
		s := x.steps[i]
		fail := func(format string, a ...any) {
			out = append(out, fmt.Sprintf("cannot confirm scan %02d: ", t.N)+fmt.Sprintf(format, a...))
		}
		of := first[s.Data]
		switch {
		case t.Outcome == Unanswered || t.Outcome == Accepted || t.Outcome == NotAccepted:
			fail("outcome %s%s", t.Outcome, because(t))
		case s.Retransmit && of != nil && of.Outcome == Committed:
			if t.Outcome != Duplicate || t.Of != of.N {
				fail("it is %s, not the duplicate of scan %02d%s", t.Outcome, of.N, because(t))
			} else if *t.Key != *of.Key {
				fail("it names the key %s, and scan %02d has %s", *t.Key, of.N, *of.Key)
			}
		case s.Retransmit && of != nil && t.Outcome != of.Outcome:
			fail("it is %s, and scan %02d before it %s%s", t.Outcome, of.N, of.Outcome, because(t))
		case !s.Retransmit && t.Outcome == Duplicate:
			fail("it is a movement of its own, told as a duplicate%s", because(t))
		case !s.Retransmit && !x.Scripted && t.Outcome != Committed:
			fail("it is %s, not committed%s", t.Outcome, because(t))
		}
		if s.Straddle && !x.straddled(i) {
			fail("it did not straddle: both transmissions were captured in one window")
		}
		if t.EventID != nil {
			got := rows[*t.EventID]
			switch {
			case t.Outcome == Committed && (len(got) != 1 || got[0] != *t.Key):
				fail("the ledger has %d rows of it %v, not one with the key %s", len(got), got, *t.Key)
			case t.Outcome == Duplicate && len(got) != 0:
				fail("it is a duplicate, and the ledger has %d rows of it", len(got))
			}
		}
		if !s.Retransmit {
			first[s.Data] = t
		}
	}
	return out
}

// straddled says whether step i and the one before lie in different windows.
func (x *run) straddled(i int) bool {
	a, b := x.all[i-1].CapturedAt, x.all[i].CapturedAt
	return a != nil && b != nil && x.Policy.Index(*b) == x.Policy.Index(*a)+1
}

func because(t *transmission) string {
	if t.Detail != "" {
		return ": " + t.Detail
	}
	if t.Reason != nil {
		return ": " + *t.Reason
	}
	return ""
}
