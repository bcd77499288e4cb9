package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// backlog is what a shift scans while the stores are away: 360 movements, 40 of which bounce.
type backlog struct {
	accepted   map[string]testenv.Event // by label
	duplicates int
	took       []testenv.Took // from typing to the answer
}

const movements, bounces = 360, 40

// usedAgain is when a store is used again after its return: the longest wait, and a moment.
const usedAgain = 5500 * time.Millisecond

// answerTime is what an answer is promised in, at p99.
const answerTime = 100 * time.Millisecond

// shift scans the backlog, one item after the other.
func shift(t testing.TB, g *gun, prefix string) *backlog {
	t.Helper()
	b := &backlog{accepted: map[string]testenv.Event{}}
	one := func(kind, label string) testenv.Event {
		w := testenv.NewWatch(t)
		e := g.scan(label)
		b.took = append(b.took, w.Stop())
		if e.Kind != kind {
			t.Fatalf("scan %d is answered with %s, want %s", len(b.took), e.Data, kind)
		}
		g.tone(map[string]string{"accepted": "G", "duplicate": "D"}[kind])
		return e
	}
	for i := range movements {
		label := matrix(bottleGTIN, fmt.Sprintf("%s%05d", prefix, i), "A1207")
		a := one("accepted", label)
		if a.Online == nil || *a.Online {
			t.Fatalf("in an outage a scan is told as %s", a.Data)
		}
		b.accepted[label] = a
		if i%(movements/bounces) == 0 {
			if d := one("duplicate", label); d.DuplicateOf != a.EventID || d.Key != a.Key {
				t.Fatalf("the bounce of %s is told as %s", a.Data, d.Data)
			}
			b.duplicates++
		}
	}
	return b
}

// check finds each movement of the backlog in one row, with its key and time of capture.
func (b *backlog) check(t testing.TB, rows []testenv.Row) {
	t.Helper()
	byEvent := map[string]*testenv.Row{}
	for i := range rows {
		byEvent[rows[i].EventID] = &rows[i]
	}
	for label, a := range b.accepted {
		r := byEvent[a.EventID]
		if r == nil {
			t.Errorf("%s was accepted and has no row", label)
			continue
		}
		if r.IdemKey != a.Key || !r.CapturedAt.Equal(a.CapturedAt) {
			t.Errorf("row %s captured at %s, told %s and %s", r.IdemKey, r.CapturedAt, a.Key, a.CapturedAt)
		}
	}
}

func link(state string) func(*testenv.Event) bool {
	return func(e *testenv.Event) bool { return e.Kind == "online" && e.State == state }
}

// Scenario 15: both stores are away, in each of the two ways; 400 scans; they come back.
func TestCentralOutage(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]testenv.Mode{"they refuse": testenv.Refuse, "they never answer": testenv.BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCentral(t)
			s := c.stores()
			s.forward = "batch = 20\nrate_limit = 100"
			h, _, st, g := bench(t, s.in(testenv.Setup{}))
			before := g.expect("accepted", matrix(bottleGTIN, "BEFORE", "A1207"))
			g.committed(before.EventID)
			c.mode(t, mode)
			// The first scan of the outage finds out, without waiting for that itself.
			typed := time.Now()
			w := testenv.NewWatch(t)
			found := g.expect("accepted", matrix(bottleGTIN, "FOUND", "A1207"))
			w.Within(t, "the answer to the first scan of the outage", time.Second)
			st.Wait(t, 0, "OFFLINE", link("OFFLINE"))
			began := time.Now()
			b := shift(t, g, "T")
			own := testenv.Own(b.took, answerTime)
			p99 := own[len(own)*99/100]
			t.Logf("without what the machine was late, accepted after %v at most, p99 %v, median %v", own[len(own)-1], p99, own[len(own)/2])
			if p99 >= answerTime {
				t.Errorf("accepted after %v at p99, want less than %v: %v", p99, answerTime, b.took)
			}
			scanned := time.Since(began)
			status := h.Await(t, "all records", func(s *testenv.Status) bool { return s.Counts.Pending >= movements+bounces+1 })
			if n := int64(len(b.took)) + 1; status.State != "OFFLINE" || status.Spool.Records != n || status.Counts.Pending != n || !status.Accepting ||
				status.Spool.OldestAgeMS < scanned.Milliseconds()-1000 || status.Spool.OldestAgeMS > time.Since(typed).Milliseconds()+1000 {
				t.Errorf("status in the outage %+v, want OFFLINE with %d records since %v", status, n, time.Since(typed))
			}
			if r := h.Call(t, "status"); r.Code != 0 {
				t.Errorf("status ends with %d: nobody need come", r.Code)
			}

			from := st.Len()
			w = testenv.NewWatch(t)
			c.mode(t, testenv.Pass)
			_, n := st.Wait(t, from, "RECONCILING", link("RECONCILING"))
			w.Within(t, "the use of the stores, without a scan", usedAgain)
			// Live scans go before what is left.
			var live []testenv.Event
			for i := range 5 {
				a := g.expect("accepted", matrix(ciiGTIN, fmt.Sprintf("LIVE%d", i), "A1207"))
				if !*a.Online {
					t.Errorf("a scan while reconciling is told as %s", a.Data)
				}
				live = append(live, a)
				g.committed(a.EventID)
			}
			_, end := st.Wait(t, n, "ONLINE", link("ONLINE"))
			all := st.Events()[:end]
			last := map[string]int{} // event, place of its commit
			for i, e := range all {
				if e.Kind == "committed" {
					last[e.EventID] = i
				}
			}
			replayed := 0
			for _, a := range b.accepted {
				if last[a.EventID] == 0 {
					t.Errorf("ONLINE is told before the commit of %s", a.EventID)
				}
				if last[a.EventID] > last[live[len(live)-1].EventID] {
					replayed++
				}
			}
			if last[found.EventID] == 0 || replayed < movements/4 {
				t.Errorf("%d of the backlog were committed behind the live scans", replayed)
			}
			for _, e := range all[from : end-1] {
				if link("ONLINE")(&e) {
					t.Error("ONLINE is told while reconciling")
				}
			}
			rows, lines := c.settled(t, h)
			b.check(t, rows)
			if want := movements + 2 + len(live); len(rows) != want || len(linesOf(lines, "suppressed")) != bounces || b.duplicates != bounces {
				t.Errorf("%d rows and %d suppressed lines, want %d and %d", len(rows), len(linesOf(lines, "suppressed")), want, bounces)
			}
		})
	}
}

// An agent that was down too finds its backlog at the start: that is RECONCILING as well, and no wait for those
// at the counter.
func TestCentralStartWithBacklog(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(testing.TB, *testenv.Process){
		"SIGTERM": func(t testing.TB, p *testenv.Process) { p.Stop(t) },
		"kill -9": func(_ testing.TB, p *testenv.Process) { p.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCentral(t)
			c.mode(t, testenv.Refuse)
			s := c.stores()
			s.forward = "rate_limit = 60\nbackoff_max = \"200ms\""
			h, p, st, g := bench(t, s.in(testenv.Setup{}))
			b := shift(t, g, "B")
			stop(t, p)
			c.mode(t, testenv.Pass)
			g.pos = st.Len()
			h.Start(t)
			if s := h.Await(t, "the ledger's first answer", func(s *testenv.Status) bool { return s.State != "OFFLINE" }); s.State != "RECONCILING" || s.Counts.Pending < movements/2 {
				t.Errorf("at the start with a backlog of %d the state is %s, want RECONCILING", s.Counts.Pending, s.State)
			}
			g.reading()
			a := g.expect("accepted", matrix(ciiGTIN, "LIVE", "A1207"))
			g.committed(a.EventID)
			if n := h.Status(t).Counts.Pending; n == 0 {
				t.Errorf("the live scan was committed behind the backlog")
			}
			st.Wait(t, 0, "ONLINE", link("ONLINE"))
			rows, lines := c.settled(t, h)
			b.check(t, rows)
			if len(rows) != movements+1 || len(linesOf(lines, "suppressed")) != bounces {
				t.Errorf("%d rows and %d suppressed lines", len(rows), len(linesOf(lines, "suppressed")))
			}
		})
	}
}

// Scenario 16: kill -9 at random moments of the replay.
func TestCentralKilledInReplay(t *testing.T) {
	t.Parallel()
	const kills = 20
	c := newCentral(t)
	s := c.stores()
	s.forward = "batch = 8\nrate_limit = 40\nbackoff_max = \"200ms\""
	c.mode(t, testenv.Refuse)
	h, p, st, g := bench(t, s.in(testenv.Setup{}))
	b := shift(t, g, "K")
	p.Kill()
	c.mode(t, testenv.Pass)
	amid := 0
	for range kills {
		var err error
		if p, err = h.Launch(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		pace(t, time.Duration(rand.IntN(250))*time.Millisecond)
		if rand.IntN(4) == 0 {
			c.rows.Drop() // and the connection with it
		}
		p.Kill()
		if n := c.count(t, "SELECT count(*) FROM scan_ledger"); n > 0 && n < movements {
			amid++
		}
	}
	if amid < kills/2 {
		t.Errorf("%d of %d kills fell into the replay: this proves little", amid, kills)
	}
	h.Configure(t, c.stores().in(testenv.Setup{})) // at full speed
	h.Start(t)
	rows, lines := c.settled(t, h)
	b.check(t, rows)
	if len(rows) != movements || len(linesOf(lines, "suppressed")) != bounces {
		t.Errorf("%d rows and %d suppressed lines, want %d and %d", len(rows), len(linesOf(lines, "suppressed")), movements, bounces)
	}
	for _, a := range b.accepted {
		committed(t, st, a.EventID)
	}
	t.Logf("%d kills in the replay", amid)
}

// Scenario 18: committed, the reply lost, the claim expired, replayed.
func TestCentralReplayAfterTTL(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	s := c.stores()
	s.claim = "ttl = \"3500ms\""
	s.forward = "backoff_max = \"500ms\""
	h, _, st, g := bench(t, s.in(testenv.Setup{}))
	g.committed(g.expect("accepted", matrix(bottleGTIN, "WARM", "A1207")).EventID)
	var a testenv.Event
	for i := 0; ; i++ {
		serial := fmt.Sprintf("LOST%d", i)
		sprung := c.rows.Swallow(serial)
		a = g.expect("accepted", matrix(bottleGTIN, serial, "A1207"))
		<-sprung
		c.mode(t, testenv.Refuse)
		h.Await(t, "OFFLINE", func(s *testenv.Status) bool { return s.State == "OFFLINE" || s.Counts.Pending == 0 })
		if h.Status(t).Counts.Pending == 1 {
			break
		}
		if i == 5 {
			t.Fatal("the agent always asks again before the outage begins")
		}
		c.mode(t, testenv.Pass) // it asked again before the outage began
		g.committed(a.EventID)
	}
	stands := fmt.Sprintf("SELECT count(*) FROM scan_ledger WHERE event_id = '%s'", a.EventID)
	if c.count(t, stands) != 1 {
		t.Fatal("the row was not committed before the outage")
	}
	c.redis.WaitFor("the claim to expire", func() bool { return c.claimed(a.Key) == "" })
	testenv.Within(t, "the replay, with a backoff_max of 500 ms,", 2*time.Second, func() {
		c.mode(t, testenv.Pass)
		committed(t, st, a.EventID)
	})
	rows, lines := c.settled(t, h)
	if r := rowByEvent(t, rows, a.EventID); r.IdemKey != a.Key || len(linesOf(lines, "suppressed")) != 0 || c.count(t, stands) != 1 {
		t.Errorf("row %+v, lines %+v", r, lines)
	}

	// The seed's way: its claim has expired too, and nothing else stands in the way of a second row.
	d := newSeed(t, c)
	d.ttl = 50
	d.swallowInsert()
	if d.scan("scan:idem:seed", "first") == nil {
		t.Fatal("the seed's reply was not lost: this test has lost its premise")
	}
	c.redis.WaitFor("the seed's claim to expire", func() bool { return c.claimed("scan:idem:seed") == "" })
	if err := d.scan("scan:idem:seed", "first"); err != nil || d.rows("scan:idem:seed") != 2 {
		t.Fatalf("the seed's way does not fail here (%v, %d rows): this test has lost its premise", err, d.rows("scan:idem:seed"))
	}
}
