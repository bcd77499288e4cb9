package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// shared is a scanner that several workstations hear.
const shared = "shared = true"

// listener is one of the agents that hear a shared scanner.
type listener struct {
	h  *testenv.Home
	p  *testenv.Process
	st *testenv.Stream
	g  *gun
}

func listen(t testing.TB, s stores, more testenv.Setup) *listener {
	t.Helper()
	more.Scanner = shared
	l := &listener{}
	l.h, l.p, l.st, l.g = bench(t, s.in(more))
	return l
}

// heard waits for the answer to the next scan, past what the stores make of earlier ones.
func (l *listener) heard(t testing.TB) testenv.Event {
	t.Helper()
	for {
		if e := l.g.answer(); e.Kind != "duplicate" || e.Reason != "other_agent" && e.Reason != "claim_lost" {
			return e
		}
	}
}

// outcome waits for what the stores made of an accepted scan: committed, or duplicate.
func (l *listener) outcome(t testing.TB, event string) testenv.Event {
	t.Helper()
	e, _ := l.st.Wait(t, 0, "the outcome of "+event, func(e *testenv.Event) bool {
		return e.EventID == event && (e.Kind == "committed" || e.Kind == "duplicate")
	})
	return e
}

// Scenario 21: Redis loses the claim between a scan and its echo at another workstation. The ledger's keys
// decide; the reason says that a claim was lost.
func TestCentralClaimsLost(t *testing.T) {
	t.Parallel()
	t.Run("FLUSHALL", func(t *testing.T) {
		t.Parallel()
		c := newCentral(t)
		claimsLost(t, c, c.stores(), func() { c.redis.Do("FLUSHALL") }, "claim_lost")
	})
	t.Run("restarted empty", func(t *testing.T) {
		t.Parallel()
		c := newCentral(t)
		claimsLost(t, c, c.stores(), func() { c.redis.Kill(); c.redis.Start() }, "claim_lost", "other_agent")
	})
	t.Run("failover to a replica that lacks it", func(t *testing.T) {
		t.Parallel()
		c := newCentral(t)
		cut := testenv.NewProxy(t, c.redis.Addr)
		replica := testenv.StartRedis(t)
		replica.Replicate(cut.Addr())
		cut.Set(t, testenv.BlackHole)
		after := c.stores()
		after.redis = replica.Addr // where the second agent is led
		claimsLost(t, c, after, func() {
			c.redis.Kill()
			replica.Do("REPLICAOF", "NO", "ONE")
		}, "claim_lost", "other_agent") // the latter until the agent has seen that it may write there
	})
}

func claimsLost(t *testing.T, c *central, second stores, lose func(), reasons ...string) {
	t.Helper()
	a := listen(t, c.stores(), longWindow())
	b := listen(t, second, longWindow())
	a.g.committed(a.g.expect("accepted", matrix(ciiGTIN, "WARM-A", "A1207")).EventID)
	if c.redis.Addr != second.redis {
		b.h.Await(t, "ONLINE", waitOnline)
	}
	first, echo := oneWindow(t, matrix(bottleGTIN, "LOSE", "A1207"), a.g, b.g, func(first testenv.Event) {
		a.g.committed(first.EventID)
		if c.claimed(first.Key) != first.EventID {
			t.Error("the claim was not in Redis")
		}
		lose()
	})
	if o := b.outcome(t, echo.EventID); o.Kind != "duplicate" || o.DuplicateOf != first.EventID || o.Key != first.Key || !slices.Contains(reasons, o.Reason) {
		t.Errorf("%v behind %s the other workstation is told %s", echo.CapturedAt.Sub(first.CapturedAt), first.Data, o.Data)
	}
	rows, lines := c.settled(t, a.h, b.h)
	if sup := linesOf(lines, "suppressed"); len(rows) != 2 || len(sup) != 1 || !slices.Contains(reasons, deref(sup[0].Reason)) {
		t.Errorf("%d rows, suppressed %+v", len(rows), sup)
	}
}

// longWidth is a window in which much happens on a busy machine too.
const longWidth = 10 * time.Second

func longWindow() testenv.Setup {
	return testenv.Setup{Sections: fmt.Sprintf("[window.dispense]\nwidth = %q\n", longWidth)}
}

// oneWindow scans a label at one workstation and, after what happens between, at another, well inside of one
// long window.
func oneWindow(t testing.TB, label string, a, b *gun, between func(first testenv.Event)) (first, second testenv.Event) {
	t.Helper()
	until(t, boundaryAfter(longWidth, 0).Add(600*time.Millisecond))
	first = a.expect("accepted", label)
	between(first)
	second = b.expect("accepted", label)
	if first.CapturedAt.Truncate(longWidth) != second.CapturedAt.Truncate(longWidth) {
		t.Fatalf("the machine is too slow: %v lie between two scans", second.CapturedAt.Sub(first.CapturedAt))
	}
	return first, second
}

// Scenario 21, with nothing but the ledger left to know: Redis was flushed and the workstation's folder is gone.
func TestCentralOnlyTheLedgerKnows(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, p, st, g := c.bench(t, longWindow())
	fresh := program.NewHome(t, c.stores().in(longWindow()))
	label := matrix(bottleGTIN, "KNOWN", "A1207")
	until(t, boundaryAfter(longWidth, 0).Add(550*time.Millisecond))
	first := g.expect("accepted", label)
	g.committed(first.EventID)
	p.Kill()
	st.Close()
	if err := os.RemoveAll(h.State); err != nil {
		t.Fatal(err)
	}
	c.redis.Do("FLUSHALL")
	fresh.Start(t)
	st = fresh.Follow(t)
	g = plug(t, fresh, st, "SCN-04")
	echo := g.expect("accepted", label)
	if first.CapturedAt.Truncate(longWidth) != echo.CapturedAt.Truncate(longWidth) {
		t.Fatalf("the machine is too slow: %v lie between two scans", echo.CapturedAt.Sub(first.CapturedAt))
	}
	o, _ := st.Wait(t, 0, "the outcome", func(e *testenv.Event) bool { return e.Kind == "committed" || e.Kind == "duplicate" })
	if o.Kind != "duplicate" || o.DuplicateOf != first.EventID || o.Key != first.Key || o.Reason != "claim_lost" {
		t.Errorf("told %s, want a duplicate of %s", o.Data, first.Data)
	}
	fresh.Await(t, "an end of what is pending", waitOnline)
	c.join(t)
	if n := c.count(t, "SELECT count(*) FROM scan_ledger"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}

	// The seed's way: who asks a store that has lost the key is told to write.
	d := newSeed(t, c)
	for _, lose := range []func(){func() {}, func() { c.redis.Do("FLUSHALL") }} {
		lose()
		if err := d.scan("scan:idem:seed", "one"); err != nil {
			t.Fatal(err)
		}
	}
	if d.rows("scan:idem:seed") != 2 {
		t.Fatal("the seed's way does not fail here: this test has lost its premise")
	}
}

// Redis is away and the ledger is not: rows are written as fast as ever, and say so. Redis is used again soon
// after its return, without a scan to find out.
func TestCentralClaimsAway(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]testenv.Mode{"it refuses": testenv.Refuse, "it never answers": testenv.BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCentral(t)
			h, _, st, g := c.bench(t, testenv.Setup{})
			plain := g.expect("accepted", matrix(bottleGTIN, "PLAIN", "A1207"))
			g.committed(plain.EventID)
			c.claims.Set(t, mode)
			first := g.expect("accepted", matrix(bottleGTIN, "FIRST", "A1207"))
			testenv.Within(t, "the row of the scan that found out", 3*time.Second, func() { g.committed(first.EventID) })
			st.Wait(t, 0, "the alarm", alarm("store_unreachable", true))
			var took []testenv.Took
			var away []testenv.Event
			for i := range 50 {
				w := testenv.NewWatch(t)
				e := g.expect("accepted", matrix(bottleGTIN, fmt.Sprintf("AWAY%d", i), "A1207"))
				if !*e.Online {
					t.Errorf("the ledger is there, and a scan is told as %s", e.Data)
				}
				g.committed(e.EventID)
				took = append(took, w.Stop())
				away = append(away, e)
			}
			own := testenv.Own(took, answerTime)
			t.Logf("without what the machine was late, a row after %v in the median, %v at most", own[len(own)/2], own[len(own)-1])
			if own[len(own)/2] > answerTime {
				t.Errorf("rows take %v in the median while the claims are away: %v", own[len(own)/2], took)
			}
			if s := h.Status(t); s.State != "ONLINE" || s.Alarm("store_unreachable") == nil {
				t.Errorf("status %+v", s)
			}
			if r := h.Call(t, "status"); r.Code != 0 {
				t.Errorf("status ends with %d: nobody need come", r.Code)
			}
			w := testenv.NewWatch(t)
			c.claims.Set(t, testenv.Pass)
			st.Wait(t, 0, "the end of the alarm", alarm("store_unreachable", false))
			w.Within(t, "the way back to claims", usedAgain)
			back := g.expect("accepted", matrix(bottleGTIN, "BACK", "A1207"))
			g.committed(back.EventID)
			if c.claimed(back.Key) != back.EventID {
				t.Error("the claims are not made again")
			}
			rows, _ := c.settled(t, h)
			if len(rows) != len(away)+3 {
				t.Errorf("%d rows, want %d", len(rows), len(away)+3)
			}
			for _, e := range append(away, first) {
				if !slices.Contains(rowByEvent(t, rows, e.EventID).Flags, "claim_bypassed") {
					t.Errorf("row %s does not say that no claim was made", e.EventID)
				}
			}
			for _, e := range []testenv.Event{plain, back} {
				if f := rowByEvent(t, rows, e.EventID).Flags; len(f) != 0 {
					t.Errorf("row %s has the flags %v", e.EventID, f)
				}
			}
		})
	}
}

// An agent is destroyed between its claim and its row. Another one that heard the movement writes it within
// seconds, not when the claim expires.
func TestCentralDestroyedHolder(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	own := testenv.NewProxy(t, c.pg.Addr())
	s := c.stores()
	s.dsn = c.pg.DSNAt(own.Addr(), testenv.PostgresLogin, c.db)
	a, b := listen(t, s, longWindow()), listen(t, c.stores(), longWindow())
	a.g.committed(a.g.expect("accepted", matrix(ciiGTIN, "WARM-A", "A1207")).EventID)
	b.g.committed(b.g.expect("accepted", matrix(ciiGTIN, "WARM-B", "A1207")).EventID)
	// Nothing of before waits for the ledger when the scan comes.
	c.await(t, "both chains", func() bool { return c.count(t, "SELECT count(DISTINCT agent_id) FROM scan_audit_chain") == 2 })
	own.Set(t, testenv.BlackHole)
	var claimed *testenv.Watch
	first, second := oneWindow(t, matrix(bottleGTIN, "HELD", "A1207"), a.g, b.g, func(first testenv.Event) {
		c.redis.WaitFor("the claim", func() bool { return c.claimed(first.Key) == first.EventID })
		claimed = testenv.NewWatch(t)
		a.p.Kill()
		if err := os.RemoveAll(a.h.State); err != nil {
			t.Error(err)
		}
	})
	o := b.outcome(t, second.EventID)
	claimed.Within(t, "the row of the other workstation", 10*time.Second)
	if o.Kind != "committed" || o.Key != first.Key {
		t.Errorf("the other workstation is told %s", o.Data)
	}
	if c.claimed(first.Key) != first.EventID {
		t.Error("the claim expired meanwhile: this proves little")
	}
	b.h.Await(t, "an end of what is pending", waitOnline)
	c.join(t)
	if rows := b.h.Ledger(t); len(rows) != 3 || !slices.Contains(rowByEvent(t, rows, second.EventID).Flags, "claim_bypassed") {
		t.Errorf("rows %+v", rows)
	}

	// The seed's way: the claim says 1 and stands, and the movement is lost.
	d := newSeed(t, c)
	if !d.claim("scan:idem:seed") { // and then the first one dies
		t.Fatal("no claim")
	}
	if err := d.scan("scan:idem:seed", "second"); err != nil || d.rows("scan:idem:seed") != 0 {
		t.Fatalf("the seed's way does not fail here (%v): this test has lost its premise", err)
	}
}

// The edge key is held by one event and the key of the window by another, neither of which will ever write:
// the ledger's keys settle it within seconds.
func TestCentralSplitClaims(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	a, b := listen(t, c.stores(), testenv.Setup{}), listen(t, c.stores(), testenv.Setup{})
	const lot, nobody1, nobody2 = "SPLIT1", "019aceee-0000-7000-8000-000000000001", "019aceee-0000-7000-8000-000000000002"
	boundary := boundaryAfter(3*time.Second, time.Second)
	index := boundary.UnixMilli() / 3000
	parts := func(n int64) []string {
		return []string{testenv.Facility, "SCN-04", bottleNDC, lot, "1", "dispense", strconv.FormatInt(n, 10)}
	}
	edge := "scan:edge:" + keyOf(append([]string{"edge"}, parts(index)...)...)
	c.redis.Do("SET", edge, nobody1, "PX", 60000)
	for _, n := range []int64{index - 1, index} {
		c.redis.Do("SET", "scan:idem:"+keyOf(parts(n)...), nobody2, "PX", 60000)
	}
	until(t, boundary.Add(-100*time.Millisecond))
	label := matrix(bottleGTIN, "", lot)
	w := testenv.NewWatch(t)
	first := a.g.expect("accepted", label)
	second := b.g.expect("accepted", label)
	x, y := a.outcome(t, first.EventID), b.outcome(t, second.EventID)
	w.Within(t, "the settlement", 10*time.Second)
	if x.Kind == y.Kind || x.Key != y.Key {
		t.Errorf("told %s and %s, want one row", x.Data, y.Data)
	}
	if c.claimed(edge) != nobody1 {
		t.Error("the claim expired meanwhile: this proves little")
	}
	rows, lines := c.settled(t, a.h, b.h)
	if sup := linesOf(lines, "suppressed"); len(rows) != 1 || deref(rows[0].EdgeKey) != edge || !slices.Contains(rows[0].Flags, "claim_bypassed") || len(sup) != 1 || deref(sup[0].Reason) != "other_agent" {
		t.Errorf("rows %+v, suppressed %+v", rows, sup)
	}
}

// Redis runs out of memory and drops claims; the rows stay exact.
func TestCentralEviction(t *testing.T) {
	t.Parallel()
	c := newCentral(t, "--maxmemory-policy", "volatile-ttl")
	a, b := listen(t, c.stores(), wideWindow()), listen(t, c.stores(), wideWindow())
	info := func(section, name string) int {
		t.Helper()
		for _, l := range strings.Split(fmt.Sprint(c.redis.Do("INFO", section)), "\r\n") {
			if v, ok := strings.CutPrefix(l, name+":"); ok {
				n, err := strconv.Atoi(v)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatalf("Redis does not tell %s", name)
		return 0
	}
	a.g.committed(a.g.expect("accepted", matrix(ciiGTIN, "WARM-A", "A1207")).EventID)
	b.g.committed(b.g.expect("accepted", matrix(ciiGTIN, "WARM-B", "A1207")).EventID)
	c.redis.Do("CONFIG", "SET", "maxmemory", info("memory", "used_memory")+40<<10)
	const items = 600
	var labels []string
	for i := range items {
		labels = append(labels, matrix(bottleGTIN, fmt.Sprintf("EVICT%04d", i), "A1207"))
	}
	together(t, labels, 20, a, b)
	rows, lines := c.settled(t, a.h, b.h)
	if len(rows) != items+2 || len(linesOf(lines, "suppressed")) != items {
		t.Errorf("%d rows and %d suppressed lines, want %d and %d", len(rows), len(linesOf(lines, "suppressed")), items+2, items)
	}
	evicted := info("stats", "evicted_keys")
	t.Logf("%d claims dropped", evicted)
	if evicted < items/2 {
		t.Errorf("%d claims were dropped: this proves little", evicted)
	}

	// The seed's way: each item once more, a moment later. There are more of them than the memory holds.
	d := newSeed(t, c)
	c.redis.Do("CONFIG", "SET", "maxmemory", info("memory", "used_memory")+40<<10) // connections have taken their part
	const many = 3000
	won := 0
	for range 2 {
		for i := range many {
			if d.claim(fmt.Sprintf("scan:idem:seed%d", i)) {
				won++
			}
		}
	}
	if won <= many {
		t.Fatal("the seed's way does not fail here: this test has lost its premise")
	}
}

// wideGuard is how far apart workstations may hear one scan in a test that is not about that, on a busy machine.
const (
	wideGuard = 5 * time.Second
	wideWidth = 4 * wideGuard
)

func wideWindow() testenv.Setup {
	return testenv.Setup{Sections: fmt.Sprintf("[window.dispense]\nwidth = %q\nguard = %q\n", wideWidth, wideGuard)}
}

// together scans each label at all the workstations, which have a wide guard, at nearly the same moment, some labels
// ahead of the answers.
func together(t testing.TB, labels []string, ahead int, at ...*listener) {
	t.Helper()
	for some := range slices.Chunk(labels, ahead) {
		for _, label := range some {
			for _, l := range at {
				if err := l.g.Type(label); err != nil {
					t.Fatal(err)
				}
			}
		}
		captured := make([]time.Time, len(some))
		for n, l := range at {
			for i, label := range some {
				e := l.heard(t)
				if e.Kind != "accepted" {
					t.Fatalf("%q is answered with %s", label, e.Data)
				}
				if n == 0 {
					captured[i] = e.CapturedAt
				} else if gap := e.CapturedAt.Sub(captured[i]).Abs(); gap > wideGuard {
					t.Fatalf("the machine is too slow: two workstations heard a scan %v apart", gap)
				}
			}
			l.g.tone(strings.Repeat("G", len(some)))
		}
	}
}
