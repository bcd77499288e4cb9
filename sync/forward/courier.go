package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// CourierConfig is what the courier is told.
type CourierConfig struct {
	Agent      string
	BackoffMin time.Duration // full jitter between 0 and a bound that doubles from here …
	BackoffMax time.Duration // … to here
	Timeout    time.Duration // of one call to a store
	Patience   time.Duration // of a caller: then the operation is queued
	ClaimLife  time.Duration // how long an idle claim lives

	// Random and Together are as in Config.
	Random   func(n int64) int64
	Together func(steps ...func())
}

// Lane names a store that operations go to. Each has an outage and a pace of its own.
type Lane string

// The lanes.
const (
	Ingests Lane = "claim ingest" // the ledger, which knows for which scan a claim is made
	Claims  Lane = "claim state"
	Cases   Lane = "prior-authorization cases"
)

// Outcome tells what became of an operation that had been queued. One of Claim and Case is set, or none.
type Outcome struct {
	ID       idem.EventID
	Kind     string
	Target   string // correlation id or case id
	Conflict bool
	Detail   string // of a conflict
	Claim    *claimstate.State
	Case     *pacase.Case
	Created  bool // of a pend: this one opened the case, and its asker starts the review
}

// CourierListener is told what happens. Its methods must not block.
type CourierListener interface {
	// Carried tells of queued operations that are over, after that is durable. After a kill it may tell of the same again.
	Carried(outcomes []Outcome)
	// LaneChanged tells that a store does not answer (cause), does again (nil), or of another mistake behind that.
	LaneChanged(l Lane, cause error)
	// Journaled tells that the journal has taken what became of operations, or why it cannot. The lane tries again.
	Journaled(cause error)
}

// ingester is the part of a Ledger that knows for which scan a claim is made.
type ingester interface {
	Ingest(ctx context.Context, asks []ledger.Ingest) ([]ledger.Ingested, error)
}

// Courier takes operations on claims and cases to their stores: at once, or, if a store does not answer or something
// that comes first is not there yet, by way of the spool's journal. Of one claim, and of all cases, it keeps the
// order. It is a task.
type Courier struct {
	cfg      CourierConfig
	journal  *spool.Journal
	ledger   ingester
	claims   claimstate.Store
	cases    pacase.Store
	clock    *window.Clock
	listener CourierListener
	ready    chan struct{}
	lanes    []*lane

	mu      sync.Mutex
	begun   bool
	awaited map[string]int        // subjects of accepted dispenses that are not settled; below 0 for a moment at most
	aged    map[idem.EventID]bool // scans' puts of which this run has asked the ledger how old they are
}

// lane is a store's. What is above poke belongs to its goroutine.
type lane struct {
	name    Lane
	kinds   []string
	ping    func(context.Context) error
	backoff time.Duration
	told    map[idem.EventID]bool // told of, and not settled: the disk is full
	poke    chan struct{}

	telling sync.Mutex // the listener hears of changes in their order

	mu     sync.Mutex
	asked  bool // the store has answered, or failed to, once
	failed int  // how often
	cause  error
	since  window.UTC
}

// NewCourier makes a courier.
func NewCourier(cfg CourierConfig, j *spool.Journal, l ledger.Ledger, claims claimstate.Store, cases pacase.Store, clock *window.Clock, listener CourierListener) *Courier {
	if cfg.Random == nil {
		cfg.Random = rand.Int64N
	}
	if cfg.Together == nil {
		cfg.Together = together
	}
	c := &Courier{cfg: cfg, journal: j, ledger: l, claims: claims, cases: cases, clock: clock, listener: listener, ready: make(chan struct{}),
		awaited: map[string]int{}, aged: map[idem.EventID]bool{}}
	for _, l := range []*lane{
		{name: Ingests, kinds: []string{OpIngest}, ping: claims.Ping}, // see turn
		{name: Claims, kinds: []string{OpPut, OpAdvance}, ping: claims.Ping},
		{name: Cases, kinds: []string{OpPend, OpTransition}, ping: cases.Ping},
	} {
		l.poke, l.told = make(chan struct{}, 1), map[idem.EventID]bool{}
		c.lanes = append(c.lanes, l)
	}
	return c
}

func (c *Courier) String() string { return "courier" }

// Ready is closed at once: nothing waits for a store.
func (c *Courier) Ready() <-chan struct{} { return c.ready }

// Run carries until ctx ends.
func (c *Courier) Run(ctx context.Context) error {
	close(c.ready)
	var g errgroup.Group
	for _, l := range c.lanes {
		g.Go(func() error {
			for ctx.Err() == nil {
				changed := c.journal.Changed()
				wait, wakes := c.turn(ctx, l)
				if wait != 0 || wakes {
					l.sleep(ctx, wait, wakes, changed)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// sleep waits for d (for ever if negative), for ctx, or, if wakes, for something to do.
func (l *lane) sleep(ctx context.Context, d time.Duration, wakes bool, changed <-chan struct{}) {
	var timer <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	poke := l.poke
	if !wakes {
		changed, poke = nil, nil
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case <-changed:
	case <-poke:
	}
}

func (l *lane) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// answers says that the store was asked, and has answered the last time.
func (l *lane) answers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked && l.cause == nil
}

// Lanes lists the lanes, for Turn.
func (c *Courier) Lanes() (names []Lane) {
	for _, l := range c.lanes {
		names = append(names, l.name)
	}
	return names
}

func (c *Courier) lane(name Lane) *lane {
	return c.lanes[slices.IndexFunc(c.lanes, func(l *lane) bool { return l.name == name })]
}

// Turn does one round of a lane. The next one is due after wait, or never if that is negative, and, if wakes, as soon
// as something changes.
func (c *Courier) Turn(ctx context.Context, name Lane) (wait time.Duration, wakes bool) {
	return c.turn(ctx, c.lane(name))
}

func (l *lane) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Down says why a lane's store is not asked at once, and since when; nil if it is.
func (c *Courier) Down(name Lane) (cause error, since window.UTC) {
	l := c.lane(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause, l.since
}

const (
	roundOperations = 64
	roundTogether   = 8
)

// opVerdict is what came of one operation.
type opVerdict struct {
	over     bool // false: a store must be asked again, err says why
	err      error
	next     *spool.Operation // what is left to do
	conflict *spool.Conflict
	outcome  Outcome
}

// opOver comes before the kind of an operation that is over and has to be told of: a kill before that must not lose
// who starts a review.
const opOver = "over|"

// overBody is what such an operation has instead of its own body.
type overBody struct {
	Outcome  Outcome         `json:"outcome"`
	Case     *keptCase       `json:"case,omitempty"`
	Conflict *spool.Conflict `json:"conflict,omitempty"`
}

// keep makes the verdict on op durable in the place of op.
func (v *opVerdict) keep(op spool.Operation) *spool.Operation {
	b := overBody{v.outcome, (*keptCase)(v.outcome.Case), v.conflict}
	b.Outcome.Case = nil
	op.Kind = opOver + op.Kind
	op.Body, _ = json.Marshal(b) // of strings and numbers
	return &op
}

// kept is the verdict that keep has made durable.
func (c *Courier) kept(op *spool.Operation) opVerdict {
	var b overBody
	if err := decode(op.Body, &b); err != nil {
		return c.refused(op, err, standing{})
	}
	b.Outcome.Case = (*pacase.Case)(b.Case)
	return opVerdict{over: true, outcome: b.Outcome, conflict: b.Conflict}
}

func (c *Courier) turn(ctx context.Context, l *lane) (wait time.Duration, wakes bool) {
	ops := c.journal.Heads(roundOperations, func(op *spool.Operation) bool {
		kind, over := strings.CutPrefix(op.Kind, opOver)
		return slices.Contains(l.kinds, kind) && (over || op.Early || !c.awaits(op.Subject)) // early: of a row that is there
	})
	failures := l.failures()
	switch {
	case len(ops) == 0 && (l.name == Ingests || l.answers()): // the forwarder looks after the ledger
		return -1, true
	case len(ops) == 0 || l.name == Ingests:
		// Scans ask for their claims when these can be made: what was asked for long ago may be over.
		err := c.within(ctx, l.ping)
		if err != nil || len(ops) == 0 {
			wait, well := c.rest(ctx, l, err, failures)
			return wait, well
		}
	}
	verdicts := c.judge(ctx, l, ops)
	if ctx.Err() != nil {
		return 0, false
	}
	var over, end spool.Settlement
	var outcomes []Outcome
	var failed error
	asked := false
	for i := range verdicts {
		v := &verdicts[i]
		isOver := strings.HasPrefix(ops[i].Kind, opOver)
		asked = asked || !isOver
		switch {
		case !v.over:
			failed = v.err
			continue
		case v.next != nil:
			over.Next = append(over.Next, v.next)
			continue
		case v.conflict != nil:
			end.Conflicts = append(end.Conflicts, *v.conflict)
		default:
			end.Done = append(end.Done, ops[i].ID)
		}
		if !isOver {
			over.Next = append(over.Next, v.keep(ops[i]))
		}
		if !l.told[ops[i].ID] {
			outcomes = append(outcomes, v.outcome)
		}
	}
	if asked && ctx.Err() == nil {
		c.setCause(l, failed, failures) // whatever becomes of the journal
	}
	if c.settle(over) != nil {
		return c.pause(ctx, l), false
	}
	if len(outcomes) > 0 {
		c.listener.Carried(outcomes)
	}
	for i := range outcomes {
		l.told[outcomes[i].ID] = true
	}
	if c.settle(end) != nil {
		if !asked && !l.answers() { // nothing else asks the store while the journal cannot be written
			failures = l.failures()
			c.setCause(l, c.within(ctx, l.ping), failures)
		}
		return c.pause(ctx, l), false
	}
	clear(l.told)
	if !asked {
		return 0, false
	}
	wait, _ = c.rest(ctx, l, failed, failures)
	return wait, false
}

// settle is the journal's.
func (c *Courier) settle(s spool.Settlement) error {
	if len(s.Done)+len(s.Next)+len(s.Conflicts) == 0 {
		return nil
	}
	err := c.journal.Settle(s)
	c.listener.Journaled(err)
	return err
}

// judge asks a lane's store about operations.
func (c *Courier) judge(ctx context.Context, l *lane, ops []spool.Operation) []opVerdict {
	verdicts := make([]opVerdict, len(ops))
	var asks []int
	var steps []func()
	for i := range ops {
		switch {
		case strings.HasPrefix(ops[i].Kind, opOver):
			verdicts[i] = c.kept(&ops[i])
		case l.name == Ingests:
			asks = append(asks, i)
		default:
			steps = append(steps, func() { verdicts[i] = c.carry(ctx, &ops[i]) })
		}
	}
	for some := range slices.Chunk(steps, roundTogether) {
		c.cfg.Together(some...)
	}
	if len(asks) > 0 {
		c.ingest(ctx, ops, asks, verdicts)
	}
	return verdicts
}

// rest notes whether the store answers, and is how long to wait now. well says that it does; see setCause for failures.
func (c *Courier) rest(ctx context.Context, l *lane, err error, failures int) (wait time.Duration, well bool) {
	if ctx.Err() != nil {
		return 0, err == nil
	}
	if !c.setCause(l, err, failures) {
		return 0, false
	}
	if err == nil {
		l.backoff = 0
		return 0, true
	}
	return c.pause(ctx, l), false
}

// pause is how long to wait after a failure.
func (c *Courier) pause(ctx context.Context, l *lane) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	l.backoff = min(max(2*l.backoff, c.cfg.BackoffMin), c.cfg.BackoffMax)
	return time.Duration(c.cfg.Random(int64(l.backoff) + 1)) // full jitter, at the bound too
}

// setCause notes what a lane's store has answered. That it does, nil, holds only if no call has failed since there were
// failures of them: that one knows better. It says whether the answer holds.
func (c *Courier) setCause(l *lane, cause error, failures int) bool {
	now := c.clock.Now().T
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	if cause == nil && l.failed != failures {
		l.mu.Unlock()
		return false
	}
	if (l.cause == nil) != (cause == nil) {
		l.since = now
	}
	changed := (l.cause == nil) != (cause == nil) || mistake(l.cause) != mistake(cause)
	l.cause, l.asked = cause, true
	if cause != nil {
		l.failed++
	}
	l.mu.Unlock()
	if changed {
		c.listener.LaneChanged(l.name, cause)
	}
	return true
}

func (c *Courier) within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return f(ctx)
}

// ingest asks the ledger for which scans claims are made, about the operations that asks names.
func (c *Courier) ingest(ctx context.Context, ops []spool.Operation, asks []int, verdicts []opVerdict) {
	bodies := make([]putBody, len(ops))
	asks = slices.DeleteFunc(asks, func(i int) bool {
		err := decode(ops[i].Body, &bodies[i])
		if err != nil {
			verdicts[i] = c.refused(&ops[i], err, standing{})
		}
		return err != nil
	})
	questions := make([]ledger.Ingest, len(asks))
	for n, i := range asks {
		questions[n] = ledger.Ingest{Claim: bodies[i].CorrelationID, Event: ops[i].ID}
	}
	var got []ledger.Ingested
	now := c.clock.Now().T // of the asking: an answer may have waited while the machine slept
	err := c.within(ctx, func(ctx context.Context) (err error) {
		got, err = c.ledger.Ingest(ctx, questions)
		return err
	})
	for n, i := range asks {
		v, op := &verdicts[i], &ops[i]
		if err != nil {
			v.err = err
			continue
		}
		v.over = true
		v.outcome = Outcome{ID: op.ID, Kind: op.Kind, Target: bodies[i].CorrelationID}
		if got[n].Event != op.ID { // another bottle of the same fill
			continue
		}
		next := *op
		next.Kind, next.At = OpPut, now.Add(-got[n].Age) // when it was first asked for
		v.next = &next
		c.setAged(op.ID, true)
	}
}

// isAged says that a scan's put has its time from this run's clock. An earlier one may have been ahead of it.
func (c *Courier) isAged(id idem.EventID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aged[id]
}

func (c *Courier) setAged(id idem.EventID, aged bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if aged {
		c.aged[id] = true
	} else {
		delete(c.aged, id)
	}
}

// late is for a dispense that asked for its claim about as long ago as an idle claim lives: an attempt of which the reply
// was lost may have made it, and it may have come to its end since. It must not begin a second time.
func (c *Courier) late(ctx context.Context, op *spool.Operation, b *putBody, v *opVerdict) error {
	s, there, err := c.claims.Get(ctx, b.CorrelationID)
	switch {
	case err != nil:
		return err
	case there:
		c.first(op, b, v, s)
	default:
		*v = c.refused(op, errors.New("the claim of this dispense was asked for before, and may be over: make it by hand if it is not"), standing{})
	}
	return nil
}

// first is for a claim that was there.
func (c *Courier) first(op *spool.Operation, b *putBody, v *opVerdict, s claimstate.State) {
	if op.Early && s.RxRefToken == b.RxRefToken { // a scan's, and the pharmacy system was first
		v.outcome.Claim = &s
		return
	}
	*v = c.refused(op, errors.New("there is another claim of this correlation id"), standing{Claim: &s})
}

// refused is the verdict on an operation that a person must see to.
func (c *Courier) refused(op *spool.Operation, why error, current standing) opVerdict {
	v := opVerdict{over: true, outcome: Outcome{ID: op.ID, Kind: op.Kind, Conflict: true, Detail: why.Error(), Claim: current.Claim, Case: (*pacase.Case)(current.Case)}}
	v.outcome.Target, _, _ = targetOf(op)
	v.conflict = &spool.Conflict{Operation: *op, Detail: why.Error(), Found: c.clock.Now().T}
	if current != (standing{}) {
		if b, err := json.Marshal(current); err == nil {
			v.conflict.Current = b
		}
	}
	return v
}

// unreadable is a failure to read an operation of the journal.
type unreadable struct{ error }

func decode(body json.RawMessage, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return unreadable{fmt.Errorf("cannot read the operation: %w", err)}
	}
	return nil
}

// hopeless says that an error stays whenever the operation is tried.
func hopeless(err error) bool {
	var body unreadable
	var invalid *claimstate.InvalidError
	var illegal *claimstate.IllegalMoveError
	var damage *claimstate.DamageError
	var request *pacase.RequestError
	return errors.As(err, &body) || errors.As(err, &invalid) || errors.As(err, &illegal) || errors.As(err, &damage) && !damage.OfFile() || errors.As(err, &request)
}

// carry takes a queued operation to its store.
func (c *Courier) carry(ctx context.Context, op *spool.Operation) (v opVerdict) {
	v.outcome = Outcome{ID: op.ID, Kind: op.Kind}
	v.outcome.Target, _, _ = targetOf(op)
	err := c.within(ctx, func(ctx context.Context) error {
		switch op.Kind {
		case OpPut:
			return c.carryPut(ctx, op, &v)
		case OpAdvance:
			return c.carryAdvance(ctx, op, &v)
		case OpPend:
			return c.carryPend(ctx, op, &v)
		}
		return c.carryTransition(ctx, op, &v)
	})
	switch {
	case err == nil:
		v.over = true
	case hopeless(err):
		v = c.refused(op, err, standing{})
	default:
		v.err = err
	}
	if v.over {
		c.setAged(op.ID, false)
	}
	return v
}

func (c *Courier) carryPut(ctx context.Context, op *spool.Operation, v *opVerdict) error {
	var b putBody
	if err := decode(op.Body, &b); err != nil {
		return err
	}
	if op.Early && !c.isAged(op.ID) {
		again := *op
		again.Kind = OpIngest
		v.next = &again
		return nil
	}
	if op.Early && c.clock.Now().T.Sub(op.At) >= max(c.cfg.ClaimLife-c.cfg.Timeout, c.cfg.ClaimLife/2) { // a scan's, and the call takes time too
		return c.late(ctx, op, &b, v)
	}
	p, err := c.claims.PutNew(ctx, claimstate.New{CorrelationID: b.CorrelationID, RxRefToken: b.RxRefToken, IngredientCost: b.IngredientCost, OpID: op.ID.String()})
	if err != nil {
		return err
	}
	done := func(s claimstate.State) { v.outcome.Claim = &s }
	p.Match(done, done, func(s claimstate.State) { c.first(op, &b, v, s) })
	return nil
}

// noCost is what a scan knows of its claim's cost.
const noCost = claimstate.Cost("0.00")

func (c *Courier) carryAdvance(ctx context.Context, op *spool.Operation, v *opVerdict) error {
	var b advanceBody
	if err := decode(op.Body, &b); err != nil {
		return err
	}
	a, err := claimstate.Step(ctx, c.claims, b.CorrelationID, b.ExpectedVersion, b.Node, b.IngredientCost, b.RejectCode, op.ID.String())
	var illegal *claimstate.IllegalMoveError
	if errors.As(err, &illegal) {
		s, there, failed := c.claims.Get(ctx, b.CorrelationID)
		if failed == nil && there {
			*v = c.refused(op, illegal, standing{Claim: &s})
		}
		if there || failed != nil {
			return failed
		}
	}
	if err != nil {
		return err
	}
	done := func(s claimstate.State) { v.outcome.Claim = &s }
	a.Match(done, done, func(s claimstate.State) {
		*v = c.refused(op, fmt.Errorf("the claim is at version %d, %s, and not at %d", s.Version, s.Node, b.ExpectedVersion), standing{Claim: &s})
	}, func() {
		*v = c.refused(op, errors.New("there is no such claim, or it has expired"), standing{})
	})
	return nil
}

func (c *Courier) carryPend(ctx context.Context, op *spool.Operation, v *opVerdict) error {
	var b pendBody
	if err := decode(op.Body, &b); err != nil {
		return err
	}
	p, err := c.cases.Pend(ctx, pacase.Pend{Event: pacase.UUID(op.ID), Question: b.question()})
	if err == nil {
		v.outcome.Case, v.outcome.Created = &p.Case, p.Created
	}
	return err
}

func (c *Courier) carryTransition(ctx context.Context, op *spool.Operation, v *opVerdict) error {
	var b transitionBody
	if err := decode(op.Body, &b); err != nil {
		return err
	}
	to, err := pacase.ParseState(b.To)
	if err != nil {
		return unreadable{err}
	}
	t, err := c.cases.Transition(ctx, pacase.Transition{ID: b.CaseID, Expected: b.ExpectedVersion, To: to, Op: pacase.UUID(op.ID)})
	if err != nil {
		return err
	}
	done := func(k pacase.Case) { v.outcome.Case = &k }
	conflict := func(format string, a ...any) func(pacase.Case) {
		return func(k pacase.Case) {
			*v = c.refused(op, fmt.Errorf(format, append(a, k.State, k.Version)...), standing{Case: (*keptCase)(&k)})
		}
	}
	t.Match(done, done, conflict("the case is %[2]s at version %[3]d, and not at version %[1]d", b.ExpectedVersion),
		conflict("another case of the same member and drug is open: %[1]s at version %[2]d"),
		conflict("a case does not go from %[2]s to %[1]s (version %[3]d)", b.To),
		func() { *v = c.refused(op, errors.New("there is no such case"), standing{}) })
	return nil
}
