package forward_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// moment is a machine's time that a test sets forward.
type moment struct {
	mu   sync.Mutex
	boot time.Duration
}

func (m *moment) pass(d time.Duration) {
	m.mu.Lock()
	m.boot += d
	m.mu.Unlock()
}

func (m *moment) Boot() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boot
}

func (m *moment) Wall() time.Time                   { return time.UnixMilli(1_784_246_400_000).Add(m.Boot()) }
func (m *moment) WallSynced() (bool, time.Duration) { return true, time.Millisecond }
func (m *moment) BootID() string                    { return "boot-1" }
func (m *moment) now() window.UTC                   { return window.FromTime(m.Wall()) }
func newMoment() *moment                            { return &moment{boot: time.Hour} }
func lastOf(n int64) int64                          { return n - 1 } // the longest jitter
func eventOf(parts ...any) idem.EventID             { return forward.OperationID("test", fmt.Sprint(parts...)) }
func claimToken(n int) claimstate.Token {
	return claimstate.Token(fmt.Sprintf("rx1.0a1b2c3d.%032x", n))
}
func question(member, day string) pacase.Question {
	return pacase.Question{MemberToken: "MTOK_" + member, GPI: "27100010100320", Window: day}
}
func pend(id idem.EventID, member, day string) pacase.Pend {
	return pacase.Pend{Event: pacase.UUID(id), Question: question(member, day)}
}

var errAway = errors.New("cannot reach the store: a test took it away")

// gate stands between a courier and real stores. It can be shut, and it can lose replies.
type gate struct {
	mu    sync.Mutex
	away  error                  // refuses every call
	slow  time.Duration          // each call takes so long
	hang  bool                   // no call is answered before its caller gives up
	fails func(what string) bool // refuses a call, by what it names
	lose  func(what string) bool // does a call and loses its reply
	calls []string               // that got through
}

func (g *gate) set(f func(g *gate)) {
	g.mu.Lock()
	f(g)
	g.mu.Unlock()
}

func (g *gate) shut(err error) { g.set(func(g *gate) { g.away = err }) }

func (g *gate) made() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.calls)
}

func (g *gate) pass(ctx context.Context, what string, call func() error) error {
	g.mu.Lock()
	away, hang, slow := g.away, g.hang, g.slow
	if away == nil && g.fails != nil && g.fails(what) {
		away = errAway
	}
	lost := g.lose != nil && g.lose(what)
	if away == nil && !hang {
		g.calls = append(g.calls, what)
	}
	g.mu.Unlock()
	switch {
	case away != nil:
		return away
	case hang:
		<-ctx.Done()
		return ctx.Err()
	case slow > 0:
		timer := time.NewTimer(slow)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
	if err := call(); err != nil || !lost {
		return err
	}
	return errors.New("cannot hear the store: the reply is lost")
}

type gatedClaims struct {
	claimstate.Store
	*gate
}

func (s gatedClaims) PutNew(ctx context.Context, n claimstate.New) (p claimstate.Put, err error) {
	err = s.pass(ctx, "put "+n.CorrelationID, func() error { p, err = s.Store.PutNew(ctx, n); return err })
	return p, err
}

func (s gatedClaims) Get(ctx context.Context, id string) (c claimstate.State, ok bool, err error) {
	err = s.pass(ctx, "get "+id, func() error { c, ok, err = s.Store.Get(ctx, id); return err })
	return c, ok, err
}

func (s gatedClaims) Advance(ctx context.Context, m claimstate.Move) (a claimstate.Advance, err error) {
	err = s.pass(ctx, fmt.Sprintf("advance %s %d", m.CorrelationID, m.Version), func() error { a, err = s.Store.Advance(ctx, m); return err })
	return a, err
}

func (s gatedClaims) Ping(ctx context.Context) error {
	return s.pass(ctx, "ping", func() error { return s.Store.Ping(ctx) })
}

type gatedCases struct {
	pacase.Store
	*gate
}

func (s gatedCases) Pend(ctx context.Context, p pacase.Pend) (out pacase.Pended, err error) {
	err = s.pass(ctx, "pend "+p.MemberToken+" "+p.Window, func() error { out, err = s.Store.Pend(ctx, p); return err })
	return out, err
}

func (s gatedCases) Transition(ctx context.Context, t pacase.Transition) (out pacase.Transitioned, err error) {
	err = s.pass(ctx, "move to "+t.To.String(), func() error { out, err = s.Store.Transition(ctx, t); return err })
	return out, err
}

func (s gatedCases) Ping(ctx context.Context) error {
	return s.pass(ctx, "ping", func() error { return s.Store.Ping(ctx) })
}

type gatedLedger struct {
	ledger.Ledger
	*gate
}

func (l gatedLedger) Ingest(ctx context.Context, asks []ledger.Ingest) (got []ledger.Ingested, err error) {
	err = l.pass(ctx, "ingest", func() error { got, err = l.Ledger.Ingest(ctx, asks); return err })
	return got, err
}

// carried collects what a courier tells, and lets a test wait for it.
type carried struct {
	mu       sync.Mutex
	changed  chan struct{}
	outcomes []forward.Outcome
	lanes    []laneChange
	journal  []error
	hook     func([]forward.Outcome) // called first
}

type laneChange struct {
	lane  forward.Lane
	cause error
	at    time.Time
}

func newCarried() *carried { return &carried{changed: make(chan struct{})} }

func (c *carried) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *carried) Carried(o []forward.Outcome) {
	if c.hook != nil {
		c.hook(o)
	}
	c.note(func() { c.outcomes = append(c.outcomes, o...) })
}

func (c *carried) LaneChanged(l forward.Lane, cause error) {
	c.note(func() { c.lanes = append(c.lanes, laneChange{l, cause, time.Now()}) })
}

func (c *carried) Journaled(cause error) { c.note(func() { c.journal = append(c.journal, cause) }) }

// until waits until f, which may look at c, holds.
func (c *carried) until(t testing.TB, what string, f func() bool) {
	t.Helper()
	limit := time.NewTimer(testenv.Patience)
	defer limit.Stop()
	for {
		c.mu.Lock()
		ok, changed := f(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Fatalf("not within %v: %s; told of %s, lanes %v", testenv.Patience, what, saidAll(c.outcomes), c.lanes)
		}
	}
}

// of is the last outcome of an operation. It needs mu, or nothing that runs.
func (c *carried) of(id idem.EventID) (o forward.Outcome, ok bool) {
	for _, x := range c.outcomes {
		if x.ID == id {
			o, ok = x, true
		}
	}
	return o, ok
}

// saidOf puts an outcome into words.
func saidOf(o *forward.Outcome) string {
	w := o.Kind + " done"
	if o.Conflict {
		w = o.Kind + " conflict: " + o.Detail
	}
	if o.Claim != nil {
		w += fmt.Sprintf(", %s v%d", o.Claim.Node, o.Claim.Version)
	}
	if o.Case != nil {
		w += fmt.Sprintf(", %s v%d", o.Case.State, o.Case.Version)
	}
	if o.Created {
		w += ", created"
	}
	return w
}

func saidAll(outcomes []forward.Outcome) string {
	var w []string
	for i := range outcomes {
		w = append(w, saidOf(&outcomes[i]))
	}
	return strings.Join(w, "; ")
}

const (
	claimLife = 15 * time.Minute
	noCase    = "00000000000000000000000000000000" // no id of a case
)

var claimLives = claimstate.Lives{TTL: claimLife, Pend: 720 * time.Hour}

// shelf is what the agents of a test have in common: real embedded stores, with a gate in front of each.
type shelf struct {
	at     *moment
	ledger gatedLedger
	claims gatedClaims
	cases  gatedCases
}

func newShelf(t testing.TB, dir string, at *moment, lives claimstate.Lives) *shelf {
	t.Helper()
	l, err := ledger.OpenEmbedded(filepath.Join(dir, "ledger.db"), at.now)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := claimstate.OpenEmbedded(filepath.Join(dir, "claims.db"), lives, at.now)
	if err != nil {
		t.Fatal(err)
	}
	cases, err := pacase.OpenEmbedded(filepath.Join(dir, "pa.db"), at.now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cases.Close(); claims.Close(); l.Close() })
	return &shelf{at, gatedLedger{l, &gate{}}, gatedClaims{claims, &gate{}}, gatedCases{cases, &gate{}}}
}

// depot is an agent from its spool to the stores, driven turn by turn, or running.
type depot struct {
	t      testing.TB
	dir    string
	agent  string
	os     window.OS
	clock  *window.Clock
	spool  *spool.Spool
	cfg    forward.CourierConfig
	ledger ledger.Ledger
	claims claimstate.Store
	cases  pacase.Store
	told   *carried
	disk   func(step spool.DiskStep, path string, do func() error) error

	courier   *forward.Courier
	authority idem.Authority
	forwarder *forward.Forwarder
	news      uint64 // the first record of this run
	stop      func()
}

// Settled, LinkChanged, ClaimsChanged and Quarantined are forward.Listener, as the agent is one.
func (d *depot) Settled(_ uint64, records []forward.Settled) {
	for _, s := range records {
		d.courier.Arrived(s.Record)
	}
}
func (d *depot) LinkChanged(forward.Link, error) {}
func (d *depot) ClaimsChanged(error)             {}
func (d *depot) Quarantined(int, string)         {}

func newDepot(t testing.TB, dir, agent string, host window.OS, l ledger.Ledger, claims claimstate.Store, cases pacase.Store) *depot {
	t.Helper()
	d := &depot{t: t, dir: dir, agent: agent, os: host, ledger: l, claims: claims, cases: cases, told: newCarried(), authority: idem.NewEmbedded(host.Boot, time.Minute),
		cfg: forward.CourierConfig{Agent: agent, BackoffMin: 100 * time.Millisecond, BackoffMax: 5 * time.Second, Timeout: 10 * time.Second,
			Patience: 2 * time.Second, ClaimLife: claimLife}}
	d.open()
	t.Cleanup(func() { d.close(true) })
	return d
}

// newCounter is a depot of its own stores that is driven turn by turn.
func newCounter(t testing.TB) (*depot, *shelf) {
	t.Helper()
	dir := t.TempDir()
	at := newMoment()
	s := newShelf(t, dir, at, claimLives)
	return s.counter(t, dir, "agent-1"), s
}

func (s *shelf) counter(t testing.TB, dir, agent string) *depot {
	d := newDepot(t, filepath.Join(dir, agent), agent, s.at, s.ledger, s.claims, s.cases)
	d.cfg.Random, d.cfg.Together = lastOf, inOrder
	d.renew()
	return d
}

func inOrder(steps ...func()) {
	for _, s := range steps {
		s()
	}
}

func (d *depot) open() {
	d.t.Helper()
	ring, err := spool.LoadKeyRing(filepath.Join(d.dir, "spool.key"), true)
	if err != nil {
		d.t.Fatal(err)
	}
	d.spool, err = spool.Open(filepath.Join(d.dir, "spool"), spool.Options{Agent: d.agent, Keys: ring, BootID: d.os.BootID(), Boot: d.os.Boot,
		MaxRecords: 1e6, MaxBytes: 1 << 30, SegmentRecords: 1e5, Horizon: 10 * time.Minute, LocalSpan: 3500 * time.Millisecond, Disk: d.disk})
	if err != nil {
		d.t.Fatal(err)
	}
	mark, high := d.spool.Mark()
	d.clock = window.NewClock(d.os, mark, window.ClockOptions{HighWater: high})
	if err := d.spool.Begin(d.clock); err != nil {
		d.t.Fatal(err)
	}
	d.renew()
}

// renew makes the tasks anew, as a start of the agent does.
func (d *depot) renew() {
	d.t.Helper()
	d.courier = forward.NewCourier(d.cfg, d.spool.Journal(), d.ledger, d.claims, d.cases, d.clock, d.told)
	d.forwarder = forward.New(forward.Config{Agent: d.agent, Facility: "F", Batch: 100, BackoffMin: d.cfg.BackoffMin, BackoffMax: d.cfg.BackoffMax,
		Timeout: d.cfg.Timeout, TTL: time.Minute, Random: d.cfg.Random, Together: d.cfg.Together}, d.spool, d.authority, d.ledger, d.clock, d)
	d.news = d.spool.NextSeq()
	if err := d.spool.Unsettled(func(r *spool.Record, _ spool.Exception) bool {
		d.courier.Await(r)
		return true
	}); err != nil {
		d.t.Fatal(err)
	}
	d.courier.Begin()
}

func (d *depot) close(clean bool) {
	if d.stop != nil {
		d.stop()
		d.stop = nil
	}
	d.spool.Close(clean)
}

// again is a kill, and a new start.
func (d *depot) again() {
	d.t.Helper()
	d.close(false)
	d.open()
}

// run starts the courier as a task.
func (d *depot) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := d.courier
	go func() { done <- c.Run(ctx) }()
	d.stop = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
	}
}

// carry turns all lanes until each rests.
func (d *depot) carry() {
	d.t.Helper()
	for busy, n := true, 0; busy; n++ {
		if n > 10_000 {
			d.t.Fatal("the courier does not come to rest")
		}
		busy = false
		for _, l := range d.courier.Lanes() {
			wait, wakes := d.courier.Turn(d.t.Context(), l)
			busy = busy || wait == 0 && !wakes
		}
	}
}

// emptied waits until nothing waits in the journal.
func (d *depot) emptied() {
	d.t.Helper()
	limit := time.NewTimer(testenv.Patience)
	defer limit.Stop()
	for j := d.spool.Journal(); ; {
		changed := j.Changed()
		if j.Pending() == 0 {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			d.t.Fatalf("after %v %d operations wait", testenv.Patience, j.Pending())
		}
	}
}

// settle drains the spool into the ledger.
func (d *depot) settle() {
	d.t.Helper()
	for {
		if wait, wakes := d.forwarder.Turn(d.t.Context()); wait != 0 || wakes {
			return
		}
	}
}

// scan accepts a bottle with the token of a prescription, "" for none.
func (d *depot) scan(bottle string, token claimstate.Token, kind window.ScanType) *spool.Record {
	d.t.Helper()
	b := d.spool.NewBatch()
	x, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey("SCN-04", []byte(bottle)),
		Identity: idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: "00093721410", Lot: bottle, Quantity: 1, Type: kind},
		Policy:   window.Default(kind), At: d.clock.Now(), Item: spool.Item{NDC: "00093721410", Lot: bottle, RxToken: string(token)}})
	if err == nil {
		err = b.Commit()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.courier.Await(x.Record)
	return x.Record
}

// put makes a claim and says in a word what is answered.
func (d *depot) put(id string, token claimstate.Token) string {
	d.t.Helper()
	return d.putAs(eventOf("put", id), id, token)
}

func (d *depot) putAs(op idem.EventID, id string, token claimstate.Token) (word string) {
	d.t.Helper()
	p, queued, err := d.courier.PutClaim(d.t.Context(), claimstate.New{CorrelationID: id, RxRefToken: token, IngredientCost: "42.10", OpID: op.String()})
	switch {
	case err != nil:
		return err.Error()
	case queued:
		return "queued"
	}
	is := func(w string) func(claimstate.State) { return func(claimstate.State) { word = w } }
	p.Match(is("created"), is("already mine"), is("exists"))
	return word
}

func (d *depot) advance(id string, version int64, to claimstate.Node) string {
	d.t.Helper()
	return d.advanceAs(eventOf("advance", id, version, to), id, version, to)
}

func (d *depot) advanceAs(op idem.EventID, id string, version int64, to claimstate.Node) (word string) {
	d.t.Helper()
	a, queued, err := d.courier.AdvanceClaim(d.t.Context(), forward.Advance{CorrelationID: id, Version: version, To: to, Op: op})
	switch {
	case err != nil:
		return err.Error()
	case queued:
		return "queued"
	}
	is := func(w string) func(claimstate.State) { return func(claimstate.State) { word = w } }
	a.Match(is("advanced"), is("already mine"), is("conflict"), func() { word = "missing" })
	return word
}

func (d *depot) pend(id idem.EventID, member, day string) (p pacase.Pended, word string) {
	d.t.Helper()
	p, queued, err := d.courier.Pend(d.t.Context(), pend(id, member, day))
	switch {
	case err != nil:
		return p, err.Error()
	case queued:
		return p, "queued"
	case p.Created:
		return p, "created"
	}
	return p, "attached"
}

func (d *depot) move(op idem.EventID, id string, version int, to pacase.State) (word string) {
	d.t.Helper()
	m, queued, err := d.courier.Transition(d.t.Context(), pacase.Transition{ID: id, Expected: version, To: to, Op: pacase.UUID(op)})
	switch {
	case err != nil:
		return err.Error()
	case queued:
		return "queued"
	}
	is := func(w string) func(pacase.Case) { return func(pacase.Case) { word = w } }
	m.Match(is("moved"), is("already mine"), is("conflict"), is("other open"), is("illegal"), func() { word = "missing" })
	return word
}

func (d *depot) claim(id string) string {
	d.t.Helper()
	s, ok, err := d.claims.Get(d.t.Context(), id)
	switch {
	case err != nil:
		d.t.Fatal(err)
	case !ok:
		return "none"
	}
	return fmt.Sprintf("%s v%d", s.Node, s.Version)
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// copyFolder copies a state folder as a kill leaves it.
func copyFolder(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func saidOr(o forward.Outcome, ok bool) string {
	if !ok {
		return "nothing"
	}
	return saidOf(&o)
}
