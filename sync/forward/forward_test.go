package forward_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// rig is a forwarder between a real spool and real embedded stores, with faults in between.
type rig struct {
	t      *testing.T
	dir    string
	os     window.OS
	clock  *window.Clock
	spool  *spool.Spool
	claims *faultyAuthority
	ledger *faultyLedger
	told   *listener
	stop   func()

	foreign   int64          // rows of other agents
	authority idem.Authority // claims, or a wrapper of it
}

type faultyAuthority struct {
	idem.Authority
	mu     sync.Mutex
	answer func(idem.Claim) (idem.Outcome, bool) // overrides the authority's answer
	asked  int
	more   chan struct{} // if not nil, closed and made anew when something is asked
}

func (a *faultyAuthority) Claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	out := a.Authority.Claim(ctx, claims)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked += len(claims)
	if a.more != nil {
		close(a.more)
		a.more = make(chan struct{})
	}
	for i, c := range claims {
		if a.answer != nil {
			if o, ok := a.answer(c); ok {
				out[i] = o
			}
		}
	}
	return out
}

type faultyLedger struct {
	ledger.Ledger
	mu     sync.Mutex
	before error  // refuses a call
	after  error  // loses the reply of an Insert that was done
	hang   bool   // answers only at the caller's time-out
	refuse string // every row is poison, and why
	calls  int
	called chan struct{} // if not nil, one call after the other

	inserting func(rows []ledger.Row) // called at the beginning of an Insert
	most      int                     // rows that an Insert can come to an end with; 0 is any number
}

func (l *faultyLedger) set(before, after error, hang bool) {
	l.mu.Lock()
	l.before, l.after, l.hang = before, after, hang
	l.mu.Unlock()
}

// untilCalled waits for n more calls.
func (l *faultyLedger) untilCalled(t *testing.T, n int) {
	t.Helper()
	called := make(chan struct{})
	watch := func(c chan struct{}) {
		l.mu.Lock()
		l.called = c
		l.mu.Unlock()
	}
	watch(called)
	defer watch(nil)
	limit := time.NewTimer(testenv.Patience)
	defer limit.Stop()
	for range n {
		select {
		case <-called:
		case <-limit.C:
			t.Fatal("the ledger is not called any more")
		}
	}
}

func (l *faultyLedger) gate(ctx context.Context) error {
	l.mu.Lock()
	hang, before := l.hang, l.before
	l.calls++
	called := l.called
	l.mu.Unlock()
	if called != nil {
		select {
		case called <- struct{}{}:
		case <-ctx.Done():
		}
	}
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return before
}

func (l *faultyLedger) Insert(ctx context.Context, rows []ledger.Row) (ledger.Inserted, error) {
	if err := l.gate(ctx); err != nil {
		return ledger.Inserted{}, err
	}
	l.mu.Lock()
	refuse, inserting := l.refuse, l.inserting
	l.mu.Unlock()
	if inserting != nil {
		inserting(rows)
	}
	if l.most != 0 && len(rows) > l.most {
		return ledger.Inserted{}, context.DeadlineExceeded
	}
	if refuse != "" {
		var ins ledger.Inserted
		for _, r := range rows {
			ins.Poison = append(ins.Poison, ledger.Poison{Event: r.Event, Detail: refuse})
		}
		return ins, nil
	}
	ins, err := l.Ledger.Insert(ctx, rows)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.after != nil {
		return ledger.Inserted{}, l.after
	}
	return ins, err
}

func (l *faultyLedger) Standing(ctx context.Context, p []ledger.Probe) ([]ledger.Standing, error) {
	if err := l.gate(ctx); err != nil {
		return nil, err
	}
	return l.Ledger.Standing(ctx, p)
}

func (l *faultyLedger) Ping(ctx context.Context) error {
	if err := l.gate(ctx); err != nil {
		return err
	}
	return l.Ledger.Ping(ctx)
}

// listener collects what is told and lets a test wait for it.
type listener struct {
	mu          sync.Mutex
	cond        *sync.Cond
	settled     []forward.Settled
	numbers     []uint64
	links       []forward.Link
	claims      []error
	quarantined int
	refusal     string // of the last quarantined
}

func (l *listener) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.cond.Broadcast()
}

func (l *listener) Settled(n uint64, s []forward.Settled) {
	l.note(func() { l.settled = append(l.settled, s...); l.numbers = append(l.numbers, n) })
}
func (l *listener) LinkChanged(k forward.Link, _ error) {
	l.note(func() { l.links = append(l.links, k) })
}
func (l *listener) ClaimsChanged(err error) {
	l.note(func() { l.claims = append(l.claims, err) })
}
func (l *listener) Quarantined(n int, detail string) {
	l.note(func() { l.quarantined, l.refusal = l.quarantined+n, detail })
}

// until waits until f holds.
func (l *listener) until(t *testing.T, what string, f func() bool) {
	t.Helper()
	over := false
	late := time.AfterFunc(testenv.Patience, func() { l.note(func() { over = true }) })
	defer late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !f() {
		if over {
			t.Fatalf("not within %v: %s (links %v, settled %d)", testenv.Patience, what, l.links, len(l.settled))
		}
		l.cond.Wait()
	}
}

// longWindow keeps a bounce a bounce on a machine that is slow to make it.
var longWindow = window.Policy{Width: 30 * time.Second, Guard: 500 * time.Millisecond}

func newRig(t *testing.T) *rig {
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: t.TempDir(), os: host}
	r.claims = &faultyAuthority{Authority: idem.NewEmbedded(host.Boot, time.Minute)}
	r.authority = r.claims
	l, err := ledger.OpenEmbedded(filepath.Join(r.dir, "ledger.db"), func() window.UTC { return r.clock.Now().T })
	if err != nil {
		t.Fatal(err)
	}
	r.ledger = &faultyLedger{Ledger: l}
	r.open()
	t.Cleanup(func() {
		r.stopForwarder()
		r.spool.Close(true)
		l.Close()
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	ring, err := spool.LoadKeyRing(filepath.Join(r.dir, "spool.key"), true)
	if err != nil {
		r.t.Fatal(err)
	}
	r.spool, err = spool.Open(filepath.Join(r.dir, "spool"), spool.Options{Agent: "agent-1", Keys: ring, BootID: r.os.BootID(), Boot: r.os.Boot,
		MaxRecords: 1e6, MaxBytes: 1 << 30, SegmentRecords: 1e5, Horizon: 10 * time.Minute, LocalSpan: longWindow.Width + longWindow.Guard})
	if err != nil {
		r.t.Fatal(err)
	}
	mark, high := r.spool.Mark()
	r.clock = window.NewClock(r.os, mark, window.ClockOptions{HighWater: high})
	if err := r.spool.Begin(r.clock); err != nil {
		r.t.Fatal(err)
	}
}

// start runs a forwarder as after a start of the agent.
func (r *rig) start() *forward.Forwarder {
	r.told = &listener{}
	r.told.cond = sync.NewCond(&r.told.mu)
	f := forward.New(forward.Config{Agent: "agent-1", Facility: "F", Batch: 100, BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
		Timeout: 300 * time.Millisecond, TTL: time.Minute}, r.spool, r.authority, r.ledger, r.clock, r.told)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
	return f
}

func (r *rig) stopForwarder() {
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

func (r *rig) scan(items ...string) []*spool.Record {
	r.t.Helper()
	b := r.spool.NewBatch()
	var out []*spool.Record
	for _, item := range items {
		d, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey("SCN-04", []byte(item)),
			Identity: idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: "00093721410", Lot: item, Quantity: 1, Type: window.Dispense},
			Policy:   longWindow, At: r.clock.Now(), Item: spool.Item{NDC: "00093721410", Lot: item, PkgLevel: 0}})
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, d.Record)
	}
	if err := b.Commit(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// final waits until n records are final and checks both laws and the audit.
func (r *rig) final(n int) map[idem.EventID]spool.Verdict {
	r.t.Helper()
	r.told.until(r.t, fmt.Sprintf("%d final records", n), func() bool { return len(r.told.settled) >= n })
	out := map[idem.EventID]spool.Verdict{}
	r.told.mu.Lock()
	for _, s := range r.told.settled {
		if _, twice := out[s.Record.Event]; twice {
			r.t.Errorf("event %v was told twice", s.Record.Event)
		}
		out[s.Record.Event] = s.Verdict
	}
	r.told.mu.Unlock()
	st := r.spool.Stats()
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Discarded+st.Unaccounted {
		r.t.Errorf("the law of conservation is broken: %+v", st)
	}
	rows, err := r.ledger.Ledger.Count(context.Background())
	if err != nil || rows != st.Committed+r.foreign {
		r.t.Errorf("%d rows for %d committed, %v", rows, st.Committed, err)
	}
	return out
}

// audit returns the final lines by event, once all have been forwarded.
func (r *rig) audit(want int) map[idem.EventID]ledger.Line {
	r.t.Helper()
	out := map[idem.EventID]ledger.Line{}
	for end := time.Now().Add(testenv.Patience); len(out) < want && time.Now().Before(end); {
		clear(out)
		if err := r.ledger.Ledger.Lines(context.Background(), ledger.Span{}, func(l ledger.Line) error {
			if l.Outcome == ledger.Committed || l.Outcome == ledger.Suppressed {
				out[l.Event] = l
			}
			return nil
		}); err != nil {
			r.t.Fatal(err)
		}
	}
	if len(out) != want {
		r.t.Fatalf("%d final audit lines, want %d", len(out), want)
	}
	r.bound()
	return out
}

// bound waits until the chain binds each line of the audit, rows included, and checks that it binds it as it stands.
func (r *rig) bound() {
	r.t.Helper()
	ctx := context.Background()
	lines, hashes := map[idem.EventID][32]byte{}, map[idem.EventID][32]byte{}
	for end := time.Now().Add(testenv.Patience); time.Now().Before(end); {
		clear(lines)
		clear(hashes)
		var prev [32]byte
		if err := errors.Join(r.ledger.Ledger.Lines(ctx, ledger.Span{}, func(l ledger.Line) error {
			if l.Agent == "agent-1" {
				lines[l.Event] = l.Hash()
			}
			return nil
		}), r.ledger.Ledger.Chain(ctx, func(c ledger.ChainRecord) error {
			if c.Seq > 1 && c.Prev != prev || c.Flaw() != "" {
				r.t.Errorf("record %d of epoch %s does not follow the one before: %s", c.Seq, c.Epoch, c.Flaw())
			}
			prev = c.Hash
			for i, e := range c.Events {
				hashes[e] = [32]byte(c.LineHashes[32*i:])
			}
			return nil
		})); err != nil {
			r.t.Fatal(err)
		}
		if len(hashes) >= len(lines) {
			break
		}
	}
	for e, h := range lines {
		if hashes[e] != h {
			r.t.Errorf("the chain does not bind the line of %v as it stands", e)
		}
	}
}

func TestLoneScanAndItsBounce(t *testing.T) {
	r := newRig(t)
	r.start()
	first := r.scan("A")[0]
	r.final(1)
	bounce := r.scan("A")[0]
	v := r.final(2)
	if v[first.Event].State != spool.Committed {
		t.Fatalf("first: %+v", v[first.Event])
	}
	if b := v[bounce.Event]; b.State != spool.Suppressed || b.Winner != first.Event || b.Key != first.Keys.Idem || b.Reason != spool.ReasonBounce {
		t.Fatalf("bounce: %+v", b)
	}
	lines := r.audit(2)
	if l := lines[bounce.Event]; l.Key != first.Keys.Idem || l.Winner != first.Event {
		t.Fatalf("the suppressed line names %v of %v", l.Key, l.Winner)
	}
}

func TestBacklogWithBouncesInOneBatch(t *testing.T) {
	r := newRig(t)
	var items []string
	for i := range 250 {
		items = append(items, fmt.Sprint("L", i))
		if i%5 == 0 {
			items = append(items, fmt.Sprint("L", i))
		}
	}
	r.scan(items...)
	r.start()
	r.final(len(items))
	if st := r.spool.Stats(); st.Committed != 250 || st.Suppressed != 50 {
		t.Fatalf("%+v", st)
	}
	r.audit(300)
}

// The seed suppresses whenever the key is held, with a value that names nobody: after a crash between claim
// and commit the retry finds its own key and the dispense is lost. Here the claim carries the event's token.
func TestCrashBetweenClaimAndCommit(t *testing.T) {
	r := newRig(t)
	rec := r.scan("A")[0]
	claim := []idem.Claim{{Keys: rec.Keys, Event: rec.Event}}
	r.claims.Claim(context.Background(), claim) // claimed, and then the agent died
	seedSuppresses := false
	// The seed's store holds "1", which is nobody's token: any second claimer is refused.
	seed := idem.NewEmbedded(r.os.Boot, time.Minute)
	one := idem.EventID{1}
	seed.Claim(context.Background(), []idem.Claim{{Keys: rec.Keys, Event: one}})
	seed.Claim(context.Background(), claim)[0].Match(func() {}, func(idem.EventID) { seedSuppresses = true }, func(error) {})
	if !seedSuppresses {
		t.Fatal("the seed's way does not fail here: this test has lost its premise")
	}
	r.start()
	if v := r.final(1)[rec.Event]; v.State != spool.Committed {
		t.Fatalf("%+v", v)
	}
}

// Held says who goes first, not who wins: without a row the record is deferred, then the unique keys decide.
func TestHeldWithoutARowIsDeferredThenCommitted(t *testing.T) {
	r := newRig(t)
	r.claims.answer = func(idem.Claim) (idem.Outcome, bool) { return idem.Held(idem.EventID{9}), true }
	rec := r.scan("A")[0]
	dup := r.scan("A")[0]
	r.start()
	v := r.final(2)
	if v[rec.Event].State != spool.Committed || v[dup.Event].State != spool.Suppressed {
		t.Fatalf("%+v", v)
	}
	if r.claims.asked != 1 {
		t.Fatalf("%d claims: the retry must not ask again", r.claims.asked)
	}
	if l := r.audit(2)[rec.Event]; l.Reason != ledger.ClaimBypassed {
		t.Fatalf("reason %q", l.Reason)
	}
}

func TestUnknownClaimChangesNothingButLatency(t *testing.T) {
	r := newRig(t)
	r.claims.answer = func(idem.Claim) (idem.Outcome, bool) { return idem.Unknown(errors.New("no reply")), true }
	rec := r.scan("A")[0]
	r.start()
	if v := r.final(1)[rec.Event]; v.State != spool.Committed {
		t.Fatalf("%+v", v)
	}
}

// awayAuthority can be asked whether it is there.
type awayAuthority struct {
	*faultyAuthority
	ping func() error
}

func (a *awayAuthority) Ping(context.Context) error { return a.ping() }

// An authority that is away costs one round; from then on the ledger decides alone, and the authority is used
// again without a scan having to find out.
func TestClaimsAway(t *testing.T) {
	r := newRig(t)
	var mu sync.Mutex
	away := errors.New("no route")
	r.claims.answer = func(idem.Claim) (idem.Outcome, bool) {
		mu.Lock()
		defer mu.Unlock()
		return idem.Unknown(away), away != nil
	}
	r.authority = &awayAuthority{r.claims, func() error { mu.Lock(); defer mu.Unlock(); return away }}
	f := r.start()
	first := r.scan("A")[0]
	r.final(1)
	r.told.until(t, "claims lost", func() bool { return len(r.told.claims) == 1 && r.told.claims[0] != nil })
	asked := r.claims.asked
	second := r.scan("B")[0]
	testenv.Within(t, "a scan while the claims are away", 200*time.Millisecond, func() { r.final(2) })
	if r.claims.asked != asked {
		t.Error("an authority known to be away was asked")
	}
	lines := r.audit(2)
	for _, rec := range []*spool.Record{first, second} {
		if l := lines[rec.Event]; l.Reason != ledger.ClaimBypassed {
			t.Errorf("reason %q", l.Reason)
		}
	}
	mu.Lock()
	away = nil
	mu.Unlock()
	r.told.until(t, "claims back", func() bool { return len(r.told.claims) == 2 && r.told.claims[1] == nil })
	if f.Stats().ClaimsCause != nil {
		t.Error("a cause is left")
	}
	third := r.scan("C")[0]
	r.final(3)
	if l := r.audit(3)[third.Event]; l.Reason != "" {
		t.Errorf("reason %q after the return", l.Reason)
	}
}

// A lost reply says nothing: the row may be there. The retry finds it as its own.
func TestLostInsertReply(t *testing.T) {
	r := newRig(t)
	r.ledger.set(nil, errors.New("connection reset"), false)
	recs := r.scan("A", "B", "A")
	r.start()
	r.told.until(t, "offline", func() bool { return len(r.told.links) > 0 && r.told.links[0] == forward.Offline })
	r.ledger.set(nil, nil, false)
	v := r.final(3)
	if v[recs[0].Event].State != spool.Committed || v[recs[1].Event].State != spool.Committed || v[recs[2].Event].State != spool.Suppressed {
		t.Fatalf("%+v", v)
	}
	r.audit(3)
}

func TestOutageNeedsNoScanToEnd(t *testing.T) {
	for _, hang := range []bool{false, true} {
		t.Run(fmt.Sprint("hang=", hang), func(t *testing.T) {
			r := newRig(t)
			r.ledger.set(errors.New("refused"), nil, hang)
			f := r.start()
			r.told.until(t, "offline without a scan", func() bool { return len(r.told.links) > 0 })
			if f.Online() {
				t.Fatal("online")
			}
			r.scan("A", "B", "A")
			if st := r.spool.Stats(); st.Pending != 3 {
				t.Fatalf("%+v", st)
			}
			r.ledger.untilCalled(t, 2) // the second call is of a round that has seen them
			r.ledger.set(nil, nil, false)
			r.final(3)
			r.told.until(t, "reconciling, then online", func() bool {
				l := r.told.links
				return len(l) >= 3 && l[0] == forward.Offline && l[1] == forward.Reconciling && l[2] == forward.Online
			})
		})
	}
}

// After an outage a scan does not wait for the backlog: live before replay.
func TestLiveBeforeReplay(t *testing.T) {
	r := newRig(t)
	r.ledger.set(errors.New("refused"), nil, false)
	var items []string
	for i := range 3000 {
		items = append(items, fmt.Sprint("L", i))
	}
	r.scan(items...)
	r.start()
	r.told.until(t, "offline", func() bool { return len(r.told.links) > 0 })
	r.ledger.set(nil, nil, false)
	r.told.until(t, "reconciling", func() bool { return len(r.told.links) > 1 && len(r.told.settled) > 0 })
	live := r.scan("live")[0]
	bounce := r.scan("L2999")[0] // its winner may still be in the backlog
	r.final(3002)
	r.told.mu.Lock()
	at := 0
	for i, s := range r.told.settled {
		if s.Record.Event == live.Event {
			at = i
		}
	}
	r.told.mu.Unlock()
	if at > 1500 {
		t.Errorf("the live scan was settled behind %d of 3000 records of the backlog", at)
	}
	if v := r.final(3002)[bounce.Event]; v.State != spool.Suppressed || v.Winner.IsZero() {
		t.Errorf("bounce of a scan in the backlog: %+v", v)
	}
	r.told.until(t, "online at the end", func() bool { return r.told.links[len(r.told.links)-1] == forward.Online })
	if st := r.spool.Stats(); st.Committed != 3001 || st.Pending != 0 {
		t.Errorf("%+v", st)
	}
}

// A start with a backlog is like the end of an outage: RECONCILING, and live scans go first. Who waits for the
// start sees that already.
func TestBacklogAtTheStart(t *testing.T) {
	r := newRig(t)
	var items []string
	for i := range 3000 {
		items = append(items, fmt.Sprint("L", i))
	}
	r.scan(items...)
	f := r.start()
	<-f.Ready()
	if l := f.Stats().Link; l != forward.Reconciling {
		t.Errorf("once ready the link is %s", l)
	}
	live := r.scan("live")[0]
	r.final(3001)
	r.told.mu.Lock()
	at := slices.IndexFunc(r.told.settled, func(s forward.Settled) bool { return s.Record.Event == live.Event })
	r.told.mu.Unlock()
	if at > 1500 {
		t.Errorf("the live scan was settled behind %d of 3000 records of the backlog", at)
	}
	r.told.until(t, "online at the end", func() bool { return len(r.told.links) == 2 && r.told.links[1] == forward.Online })
}

// Who waits for the start of an agent without its ledger sees an outage.
func TestOfflineAtTheStart(t *testing.T) {
	r := newRig(t)
	r.ledger.set(errors.New("refused"), nil, false)
	f := r.start()
	<-f.Ready()
	if f.Online() {
		t.Error("once ready the forwarder is online, without a ledger")
	}
}

// The settlement is the last step: what is told twice would count twice. A kill in front of it repeats the
// work, and finds the own rows.
func TestStateLostAfterCommit(t *testing.T) {
	r := newRig(t)
	recs := r.scan("A", "B", "A")
	rows := []ledger.Row{}
	for _, rec := range recs[:2] {
		rows = append(rows, ledger.Row{Keys: rec.Keys, Event: rec.Event, Facility: "F", Scanner: rec.Scanner, NDC: rec.NDC, Lot: rec.Lot, Quantity: 1,
			Type: rec.Type, PkgLevel: 0, Agent: "agent-1", CapturedAt: rec.At})
	}
	if _, err := r.ledger.Ledger.Insert(context.Background(), rows); err != nil {
		t.Fatal(err)
	}
	r.start()
	v := r.final(3)
	if v[recs[0].Event].State != spool.Committed || v[recs[2].Event].Winner != recs[0].Event {
		t.Fatalf("%+v", v)
	}
}

// Two agents that heard one movement: the row of the one stands, the other's scan is suppressed by it, and a
// local duplicate of that scan names the row that stands, not the scan that lost.
func TestOtherAgentsRowStands(t *testing.T) {
	r := newRig(t)
	recs := r.scan("A", "A")
	other := idem.EventID{7}
	row := ledger.Row{Keys: recs[0].Keys, Event: other, Facility: "F", Scanner: "SCN-04", NDC: "00093721410", Lot: "A", Quantity: 1, Type: window.Dispense,
		PkgLevel: 0, Agent: "agent-2", CapturedAt: recs[0].At}
	if _, err := r.ledger.Ledger.Insert(context.Background(), []ledger.Row{row}); err != nil {
		t.Fatal(err)
	}
	r.foreign = 1
	r.start()
	v := r.final(2)
	for i, reason := range []string{"claim_lost", spool.ReasonBounce} {
		if x := v[recs[i].Event]; x.State != spool.Suppressed || x.Winner != other || x.Key != row.Keys.Idem || x.Reason != reason {
			t.Fatalf("record %d: %+v", i, x)
		}
	}
	late := r.scan("A")[0] // its winner was settled in another batch
	if x := r.final(3)[late.Event]; x.Winner != other {
		t.Fatalf("late duplicate: %+v", x)
	}
}

// An edge row of the neighbouring window stands for a straddling scan.
func TestEdgeRowSuppresses(t *testing.T) {
	r := newRig(t)
	p := window.Default(window.Dispense)
	now := r.clock.Now()
	edge := p.Start(p.Index(now.T) + 1)
	id := idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: "1", Quantity: 1, Type: window.Dispense}
	before, after := edge-100, edge+100
	other := idem.EventID{7}
	if _, err := r.ledger.Ledger.Insert(context.Background(), []ledger.Row{{Keys: id.Keys(p, before), Event: other, Facility: "F", Scanner: "SCN-04", NDC: "1",
		Quantity: 1, Type: window.Dispense, PkgLevel: -1, Agent: "agent-2", CapturedAt: before}}); err != nil {
		t.Fatal(err)
	}
	r.foreign = 1
	if id.Keys(p, before).Idem == id.Keys(p, after).Idem {
		t.Fatal("the seed's key does not differ over the boundary: this test has lost its premise")
	}
	at := now
	at.T = after
	b := r.spool.NewBatch()
	d, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey("SCN-04", []byte("x")), Identity: id, Policy: p, At: at, Item: spool.Item{PkgLevel: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.start()
	if v := r.final(1)[d.Record.Event]; v.State != spool.Suppressed || v.Winner != other {
		t.Fatalf("%+v", v)
	}
}

// A row that the ledger can never take is set aside with its duplicates, and holds nothing up.
func TestPoisonIsQuarantined(t *testing.T) {
	r := newRig(t)
	b := r.spool.NewBatch()
	c := spool.Candidate{Physical: idem.PhysicalKey("SCN-04", []byte("bad")), Policy: window.Default(window.Dispense), At: r.clock.Now(),
		Identity: idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: "1", Quantity: 0, Type: window.Dispense}}
	if _, err := b.Decide(&c); err != nil {
		t.Fatal(err)
	}
	c.At = r.clock.Now()
	if d, err := b.Decide(&c); err != nil || !d.Record.IsDuplicate() {
		t.Fatal("no duplicate", err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.scan("A", "B")
	r.start()
	r.final(2)
	r.told.until(t, "two quarantined", func() bool { return r.told.quarantined == 2 })
	if st := r.spool.Stats(); st.Committed != 2 || st.Quarantined != 2 || st.Pending != 0 {
		t.Fatalf("%+v", st)
	}
	r.scan("C")
	r.final(3)
	again := r.spool.NewBatch() // a batch later
	c.At = r.clock.Now()
	if d, err := again.Decide(&c); err != nil || !d.Record.IsDuplicate() {
		t.Fatal("no duplicate", err)
	}
	if err := again.Commit(); err != nil {
		t.Fatal(err)
	}
	r.told.until(t, "three quarantined", func() bool { return r.told.quarantined == 3 && r.told.refusal != "" })
	for _, x := range r.spool.Exceptions() {
		if x.Detail == "" {
			t.Errorf("record %d is quarantined for no reason", x.Seq)
		}
	}
}

// An audit line that no ledger could store must not hold up the rows behind it.
func TestALineNoLedgerStoresHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	b := r.spool.NewBatch()
	now := r.clock.Now().T
	b.Note(spool.Line{Event: spool.NewEvent(now), At: now, Outcome: "rejected", Reason: "unsupported_symbology", Scanner: "SCN-04", Symbology: "]d\x00"})
	b.Note(spool.Line{Event: spool.NewEvent(now), At: now, Outcome: "rejected", Reason: "unsupported_symbology", Scanner: "SCN-04", Symbology: "]\xff\xfe"})
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.scan("A", "B")
	r.start()
	r.final(2)
	rejected := 0
	for end := time.Now().Add(testenv.Patience); rejected < 2 && time.Now().Before(end); {
		rejected = 0
		if err := r.ledger.Ledger.Lines(context.Background(), ledger.Span{}, func(l ledger.Line) error {
			if l.Outcome == ledger.Rejected {
				rejected++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if rejected != 2 {
		t.Fatalf("%d of 2 lines are in the ledger", rejected)
	}
}

// What the ledger refused for a mistake of its own is tried again when a person says so.
func TestRequeue(t *testing.T) {
	r := newRig(t)
	r.ledger.refuse = "constraint"
	recs := r.scan("A", "A", "B")
	f := r.start()
	r.told.until(t, "three quarantined", func() bool { return r.told.quarantined == 3 })
	ctx := context.Background()
	if n, err := f.Requeue(ctx, []idem.EventID{{9}}, false); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	r.ledger.mu.Lock()
	r.ledger.refuse = ""
	r.ledger.mu.Unlock()
	if n, err := f.Requeue(ctx, []idem.EventID{recs[0].Event}, false); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	r.final(2)
	if n, err := f.Requeue(ctx, nil, true); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	v := r.final(3)
	if v[recs[1].Event].Winner != recs[0].Event || r.spool.Stats().Quarantined != 0 {
		t.Fatalf("%+v", v)
	}
}

// Events that come again make no second row, and what is settled is not claimed again after a restart.
func TestSettledRecordsAreNotTriedAgain(t *testing.T) {
	r := newRig(t)
	recs := r.scan("A", "B", "A", "C")
	r.start()
	r.final(4)
	r.stopForwarder()
	claimsBefore := r.claims.asked
	// As a restored copy of the spool would send them.
	ctx := context.Background()
	var rows []ledger.Row
	for _, rec := range recs {
		if !rec.IsDuplicate() {
			rows = append(rows, ledger.Row{Keys: rec.Keys, Event: rec.Event, Facility: "F", Scanner: "SCN-04", NDC: rec.NDC, Lot: rec.Lot, Quantity: 1, Type: rec.Type, Agent: "agent-1", CapturedAt: rec.At})
		}
	}
	ins, err := r.ledger.Insert(ctx, rows)
	if err != nil || len(ins.Receipts) != 0 {
		t.Fatalf("a repeated event made a row: %+v, %v", ins, err)
	}
	if n, _ := r.ledger.Ledger.Count(ctx); n != 3 {
		t.Fatalf("%d rows", n)
	}
	r.start()
	r.scan("D")
	r.final(1)
	if r.claims.asked != claimsBefore+1 {
		t.Fatalf("settled records were claimed again: %d", r.claims.asked-claimsBefore)
	}
}
