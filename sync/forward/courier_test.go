package forward_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// With its store at hand an operation is done at once, and no line of the journal is written.
func TestCourierAtOnce(t *testing.T) {
	d, _ := newCounter(t)
	d.carry()
	want(t, "put", d.put("c-1", claimToken(1)), "created")
	want(t, "put again", d.put("c-1", claimToken(1)), "already mine")
	want(t, "another put", d.putAs(eventOf("x"), "c-1", claimToken(1)), "exists")
	want(t, "advance", d.advance("c-1", 1, claimstate.Normalized), "advanced")
	want(t, "advance again", d.advance("c-1", 1, claimstate.Normalized), "already mine")
	want(t, "a stale advance", d.advanceAs(eventOf("y"), "c-1", 1, claimstate.Normalized), "conflict")
	want(t, "an advance of no claim", d.advance("c-2", 1, claimstate.Normalized), "missing")
	if got := d.advance("c-1", 2, claimstate.PAEvaluated); !strings.Contains(got, "without skips") {
		t.Errorf("a skip: %s", got)
	}
	p, word := d.pend(eventOf("p"), "a", "2026-07-17")
	want(t, "pend", word, "created")
	want(t, "move", d.move(eventOf("m"), p.RequestedID, 1, pacase.InReview), "moved")
	want(t, "a stale move", d.move(eventOf("n"), p.RequestedID, 1, pacase.InReview), "conflict")
	want(t, "an illegal move", d.move(eventOf("o"), p.RequestedID, 2, pacase.Appealed), "illegal")
	want(t, "a move of no case", d.move(eventOf("q"), noCase, 1, pacase.InReview), "missing")
	if s, ok, err := d.courier.Claim(t.Context(), "c-1"); !ok || err != nil || s.Version != 2 {
		t.Errorf("the claim is read as %+v, %v, %v", s, ok, err)
	}
	if c, ok, err := d.courier.Case(t.Context(), p.RequestedID); !ok || err != nil || c.Version != 2 {
		t.Errorf("the case is read as %+v, %v, %v", c, ok, err)
	}
	if j := d.spool.Journal(); j.Pending() != 0 || len(j.Conflicts()) != 0 || len(d.told.outcomes) != 0 {
		t.Errorf("%d wait, told of %s", j.Pending(), saidAll(d.told.outcomes))
	}
}

// What cannot be asked for at all is refused, whether or not there is a store, and is not queued.
func TestCourierRefuses(t *testing.T) {
	d, s := newCounter(t)
	for _, away := range []error{nil, errAway} {
		s.claims.shut(away)
		s.cases.shut(away)
		d.carry()
		_, _, put := d.courier.PutClaim(t.Context(), claimstate.New{CorrelationID: "c-1", RxRefToken: "4711", IngredientCost: "1.00", OpID: eventOf(1).String()})
		_, _, skip := d.courier.AdvanceClaim(t.Context(), forward.Advance{CorrelationID: "c-1", Version: 1, To: claimstate.Ingested, Op: eventOf(2)})
		_, _, card := d.courier.Pend(t.Context(), pacase.Pend{Event: pacase.UUID(eventOf(3)), Question: pacase.Question{MemberToken: "123456789", GPI: "27", Window: "2026-07-17"}})
		_, _, none := d.courier.Transition(t.Context(), pacase.Transition{ID: "x", To: pacase.Approved, Op: pacase.UUID(eventOf(4))})
		for what, err := range map[string]error{"a prescription's number": put, "back to the beginning": skip, "a card's number": card, "version 0": none} {
			if !forward.Refused(err) {
				t.Errorf("away %v: %s: %v", away, what, err)
			}
		}
		if n := d.spool.Journal().Pending(); n != 0 {
			t.Errorf("away %v: %d of them wait", away, n)
		}
	}
}

// While a store is away its operations are queued: at once if that is known, else after the caller's patience. Those
// of the other store are not touched.
func TestCourierQueues(t *testing.T) {
	d, s := newCounter(t)
	d.cfg.Patience = 50 * time.Millisecond
	d.renew()
	d.carry()
	s.claims.set(func(g *gate) { g.hang = true })
	w := testenv.NewWatch(t)
	want(t, "put to a store that says nothing", d.put("c-1", claimToken(1)), "queued")
	if k := w.Stop(); k.Wall < 50*time.Millisecond {
		t.Errorf("given up after %v", k)
	}
	w.Within(t, "to give up", time.Second) // and a call may take 10 s
	if cause, since := d.courier.Down(forward.Claims); cause == nil || since == 0 {
		t.Errorf("the store counts as there: %v, %v", cause, since)
	}
	d.cfg.Patience = time.Hour // of which the next ones need nothing
	asked := len(s.claims.made())
	want(t, "the same again", d.put("c-1", claimToken(1)), "queued")
	want(t, "one more", d.put("c-2", claimToken(2)), "queued")
	want(t, "an advance", d.advance("c-1", 1, claimstate.Normalized), "queued")
	if got := len(s.claims.made()); got != asked {
		t.Error("a store that is known to be away is asked")
	}
	_, word := d.pend(eventOf("p"), "a", "2026-07-17")
	want(t, "pend", word, "created")
	if n := d.spool.Journal().Pending(); n != 3 {
		t.Errorf("%d wait, want 3: the same operation is one", n)
	}
	d.again()
	s.claims.set(func(g *gate) { g.hang = false })
	d.carry()
	want(t, "told", saidAll(d.told.outcomes), "claim_put done, INGESTED v1; claim_put done, INGESTED v1; claim_advance done, NORMALIZED v2")
	want(t, "c-1", d.claim("c-1"), "NORMALIZED v2")
	if n := d.spool.Journal().Pending(); n != 0 {
		t.Errorf("%d wait still", n)
	}
	want(t, "the next one", d.advance("c-1", 2, claimstate.TaxonomyResolved), "advanced")
}

// A caller that gives up says nothing about the store; what it asked for is done.
func TestCourierCallerGoes(t *testing.T) {
	d, s := newCounter(t)
	d.carry()
	s.claims.set(func(g *gate) { g.hang = true })
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, queued, err := d.courier.PutClaim(ctx, claimstate.New{CorrelationID: "c-1", RxRefToken: claimToken(1), IngredientCost: "1.00", OpID: eventOf(1).String()})
	if !queued || err != nil {
		t.Fatalf("queued %v, %v", queued, err)
	}
	if cause, _ := d.courier.Down(forward.Claims); cause != nil {
		t.Errorf("the store counts as away: %v", cause)
	}
	s.claims.set(func(g *gate) { g.hang = false })
	d.carry()
	want(t, "c-1", d.claim("c-1"), "INGESTED v1")
}

// What is asked for while an earlier operation of the same claim waits goes behind it, though its store is back.
func TestCourierDoesNotOvertake(t *testing.T) {
	d, s := newCounter(t)
	d.carry()
	s.claims.shut(errAway)
	s.cases.shut(errAway)
	want(t, "put", d.put("c-1", claimToken(1)), "queued")
	_, word := d.pend(eventOf("p"), "a", "2026-07-17")
	want(t, "pend", word, "queued")
	s.claims.shut(nil)
	s.cases.shut(nil)
	d.courier.Turn(t.Context(), forward.Ingests) // notices nothing of it
	// The lanes know that their stores are back, and have not come to what waits.
	held := true
	s.claims.set(func(g *gate) { g.fails = func(what string) bool { return held && what == "put c-1" } })
	s.cases.set(func(g *gate) {
		g.fails = func(what string) bool { return held && strings.HasPrefix(what, "pend MTOK_a") }
	})
	want(t, "an advance behind its put", d.advance("c-1", 1, claimstate.Normalized), "queued")
	q := question("a", "2026-07-17")
	want(t, "a move behind its pend", d.move(eventOf("m"), q.DerivedID(), 1, pacase.InReview), "queued")
	_, word = d.pend(eventOf("p2"), "b", "2026-07-17")
	want(t, "a pend behind another", word, "queued") // only the store knows what belongs together
	d.carry()
	if calls := s.claims.made(); slices.ContainsFunc(calls, func(c string) bool { return c != "ping" }) {
		t.Errorf("asked of the store: %v", calls)
	}
	held = false
	d.carry()
	slices.SortStableFunc(d.told.outcomes, func(a, b forward.Outcome) int { return strings.Compare(a.Kind[:2], b.Kind[:2]) }) // by lane
	want(t, "told", saidAll(d.told.outcomes), "claim_put done, INGESTED v1; claim_advance done, NORMALIZED v2; "+
		"pa_pend done, PENDING v1, created; pa_transition done, IN_REVIEW v2; pa_pend done, PENDING v1, created")
}

// One claim of which operations fail holds up no other one, and no ingest.
func TestCourierOneClaimFails(t *testing.T) {
	d, s := newCounter(t)
	s.claims.set(func(g *gate) { g.fails = func(what string) bool { return strings.HasSuffix(what, " bad") } })
	s.claims.shut(errAway)
	d.carry()
	want(t, "put", d.put("bad", claimToken(1)), "queued")
	want(t, "advance", d.advance("bad", 1, claimstate.Normalized), "queued")
	for i := range 20 {
		want(t, "put", d.put(fmt.Sprint("good-", i), claimToken(i)), "queued")
	}
	r := d.scan("B1", claimToken(99), window.Dispense)
	d.settle()
	s.claims.shut(nil)
	d.carry()
	for i := range 20 {
		want(t, "another claim", d.claim(fmt.Sprint("good-", i)), "INGESTED v1")
	}
	want(t, "the scan's claim", d.claim(forward.ClaimOf(r.RxToken)), "INGESTED v1")
	// The next round comes soon, and takes what has come meanwhile.
	want(t, "one more", d.put("good-20", claimToken(20)), "queued")
	if wait, wakes := d.courier.Turn(t.Context(), forward.Claims); wait <= 0 || wait > d.cfg.BackoffMax || wakes {
		t.Errorf("the lane waits %v, %v", wait, wakes)
	}
	want(t, "good-20", d.claim("good-20"), "INGESTED v1")
	if n := d.spool.Journal().Pending(); n != 2 {
		t.Errorf("%d wait, want the two of the bad one", n)
	}
}

// One store's outage stops neither other lane.
func TestCourierLanesAreApart(t *testing.T) {
	for _, c := range []struct{ away, want string }{ // the claim, whether there is a case, the scan's claim
		{"claims", "none, true, none"},
		{"cases", "INGESTED v1, false, INGESTED v1"},
		{"ledger", "INGESTED v1, true, none"},
	} {
		d, s := newCounter(t)
		for _, g := range []*gate{s.claims.gate, s.cases.gate, s.ledger.gate} {
			g.shut(errAway)
		}
		d.carry()
		want(t, "put", d.put("c-1", claimToken(1)), "queued")
		_, word := d.pend(eventOf("p"), "a", "2026-07-17")
		want(t, "pend", word, "queued")
		r := d.scan("B1", claimToken(7), window.Dispense)
		d.settle() // Insert and Standing are not gated
		for name, g := range map[string]*gate{"claims": s.claims.gate, "cases": s.cases.gate, "ledger": s.ledger.gate} {
			if name != c.away {
				g.shut(nil)
			}
		}
		d.carry()
		s.claims.shut(nil)
		s.cases.shut(nil)
		_, ok, err := d.cases.Get(t.Context(), question("a", "2026-07-17").DerivedID())
		if err != nil {
			t.Fatal(err)
		}
		want(t, c.away+" away", fmt.Sprintf("%s, %v, %s", d.claim("c-1"), ok, d.claim(forward.ClaimOf(r.RxToken))), c.want)
		s.ledger.shut(nil)
		d.carry()
		want(t, c.away+" back", d.claim("c-1")+", "+d.claim(forward.ClaimOf(r.RxToken)), "INGESTED v1, INGESTED v1")
	}
}

// A store that is away is asked again for ever, at most BackoffMax apart, and with full jitter from a bound that
// doubles; with something to do, and without.
func TestCourierBackoff(t *testing.T) {
	for _, queued := range []bool{true, false} {
		d, s := newCounter(t)
		var bounds []time.Duration
		d.cfg.Random = func(n int64) int64 { bounds = append(bounds, time.Duration(n-1)); return (n - 1) / 3 }
		d.renew()
		s.claims.shut(errAway)
		if queued {
			want(t, "put", d.put("c-1", claimToken(1)), "queued")
		}
		for n := range 40 {
			wait, wakes := d.courier.Turn(t.Context(), forward.Claims)
			if len(bounds) != n+1 || wait != bounds[n]/3 || wakes {
				t.Fatalf("after %d failures the lane waits %v, %v; bounds %v", n+1, wait, wakes, bounds)
			}
		}
		next := 100 * time.Millisecond
		for n, b := range bounds {
			if b != next {
				t.Errorf("queued %v: the bound after %d failures is %v, want %v", queued, n+1, b, next)
			}
			next = min(2*next, 5*time.Second)
		}
		s.claims.shut(nil)
		d.carry()
		s.claims.shut(errAway)
		bounds = nil
		want(t, "put", d.put("c-2", claimToken(2)), "queued")
		if d.courier.Turn(t.Context(), forward.Claims); len(bounds) != 1 || bounds[0] != 100*time.Millisecond {
			t.Errorf("queued %v: the next outage begins with the bounds %v", queued, bounds)
		}
	}
}

// A failure that cannot be queued is found out about, too: the lane asks until the store is back.
func TestCourierFullDisk(t *testing.T) {
	at := newMoment()
	dir := t.TempDir()
	s := newShelf(t, dir, at, claimLives)
	var full atomic.Bool
	d := s.counter(t, dir, "agent-1")
	d.close(true)
	d.disk = func(_ spool.DiskStep, path string, do func() error) error {
		if full.Load() && filepath.Base(path) == "operations.log" {
			return errors.New("no room")
		}
		return do()
	}
	d.open()
	d.cfg.Random = nil
	d.cfg.BackoffMin, d.cfg.BackoffMax = time.Millisecond, 5*time.Millisecond
	d.renew()
	d.run()
	s.claims.shut(errAway)
	want(t, "put", d.put("c-0", claimToken(0)), "queued")
	s.claims.shut(nil)
	d.told.until(t, "an outage with an end", func() bool { return len(d.told.outcomes) == 1 && len(d.told.lanes)%2 == 0 })
	d.told.note(func() { d.told.lanes = nil })
	full.Store(true)
	s.claims.shut(errAway)
	if got := d.put("c-1", claimToken(1)); !strings.Contains(got, "no room") {
		t.Errorf("put: %s", got)
	}
	d.told.until(t, "the outage", func() bool { return len(d.told.lanes) == 1 && d.told.lanes[0].cause != nil })
	s.claims.shut(nil)
	d.told.until(t, "its end", func() bool { return len(d.told.lanes) == 2 && d.told.lanes[1].cause == nil })
	want(t, "put", d.put("c-1", claimToken(1)), "created")
}

// A journal that cannot be written is no outage of the store: it is told by itself, and what was queued waits.
func TestCourierJournalFails(t *testing.T) {
	dir := t.TempDir()
	s := newShelf(t, dir, newMoment(), claimLives)
	d := s.counter(t, dir, "agent-1")
	d.close(true)
	fails := 0
	d.disk = func(_ spool.DiskStep, path string, do func() error) error {
		if fails > 0 && filepath.Base(path) == "operations.log" {
			fails--
			return errors.New("no room")
		}
		return do()
	}
	d.open()
	d.carry()
	for _, away := range []int{1, 4} {
		d.told.lanes, d.told.journal, d.told.outcomes = nil, nil, nil
		id := fmt.Sprint("c-", away)
		s.claims.shut(errAway)
		want(t, "put", d.put(id, claimToken(away)), "queued")
		s.claims.shut(nil)
		fails = away
		var waits []time.Duration
		for range away {
			wait, _ := d.courier.Turn(t.Context(), forward.Claims)
			waits = append(waits, wait)
		}
		if cause, _ := d.courier.Down(forward.Claims); cause != nil || len(d.told.lanes) != 2 || slices.Contains(waits, 0) || len(d.told.journal) != away || d.told.journal[away-1] == nil {
			t.Errorf("%d failures: the store is down for %v, told %v and of the journal %v, waits %v", away, cause, d.told.lanes, d.told.journal, waits)
		}
		want(t, "another put", d.put("x"+id, claimToken(9+away)), "created")
		d.carry()
		want(t, "told", saidAll(d.told.outcomes), "claim_put done, INGESTED v1")
		if n := len(d.told.journal); d.told.journal[n-1] != nil || d.spool.Journal().Pending() != 0 {
			t.Errorf("%d failures, in the end: told of the journal %v", away, d.told.journal)
		}
	}
}

// What an operation came to is told, once the journal has it, whichever durable step of the journal a kill comes
// before or after; and who opened a case is told so.
func TestCourierKilled(t *testing.T) {
	type step struct {
		n      int
		before bool
	}
	kill := errors.New("killed")
	told := map[string]bool{}
	for n := 1; ; n++ {
		passed := false
		for _, before := range []bool{true, false} {
			at := newMoment()
			dir := t.TempDir()
			s := newShelf(t, dir, at, claimLives)
			d := s.counter(t, dir, "agent-1")
			s.claims.shut(errAway)
			s.cases.shut(errAway)
			s.ledger.shut(errAway)
			d.carry()
			d.put("c-1", claimToken(1))
			d.advance("c-1", 1, claimstate.Normalized)
			d.advanceAs(eventOf("stale"), "c-1", 1, claimstate.Normalized)
			d.pend(eventOf("p"), "a", "2026-07-17")
			d.move(eventOf("m"), question("a", "2026-07-17").DerivedID(), 1, pacase.InReview)
			r := d.scan("B1", claimToken(9), window.Dispense)
			d.settle()
			s.claims.shut(nil)
			s.cases.shut(nil)
			s.ledger.shut(nil)
			count := 0
			d.close(true)
			d.disk = func(_ spool.DiskStep, path string, do func() error) error {
				if filepath.Base(path) != "operations.log" {
					return do()
				}
				if count++; count == n && before {
					panic(kill)
				}
				err := do()
				if count == n {
					panic(kill)
				}
				return err
			}
			d.open()
			killed := func() (killed bool) {
				defer func() {
					if x := recover(); x != nil && x != any(kill) {
						panic(x)
					} else if x != nil {
						killed = true
					}
				}()
				d.carry()
				return false
			}()
			d.disk = nil
			if killed {
				passed = true
				// The dead process holds the journal's lock for ever; its files are what counts.
				d.dir = copyFolder(t, d.dir)
				d.open()
				d.carry()
			}
			for _, x := range []struct {
				id   idem.EventID
				want string
			}{
				{eventOf("put", "c-1"), "claim_put done, INGESTED v1"},
				{eventOf("advance", "c-1", 1, claimstate.Normalized), "claim_advance done, NORMALIZED v2"},
				{eventOf("stale"), "claim_advance conflict: the claim is at version 2, NORMALIZED, and not at 1, NORMALIZED v2"},
				{eventOf("p"), "pa_pend done, PENDING v1, created"},
				{eventOf("m"), "pa_transition done, IN_REVIEW v2"},
				{r.Event, "claim_put done, INGESTED v1"},
			} {
				o, ok := d.told.of(x.id)
				if got := saidOf(&o); !ok || got != x.want {
					t.Errorf("killed at step %d (before it: %v): told of %q, want %q", n, before, got, x.want)
				}
				told[x.want] = told[x.want] || ok
			}
			if j := d.spool.Journal(); j.Pending() != 0 || len(j.Conflicts()) != 1 {
				t.Errorf("killed at step %d (before it: %v): %d wait, conflicts %+v", n, before, j.Pending(), j.Conflicts())
			}
		}
		if !passed {
			if n < 8 {
				t.Errorf("the journal took %d steps only", n-1)
			}
			return
		}
	}
}

// A full disk does not make the same news told over and over.
func TestCourierTellsOnce(t *testing.T) {
	d, s := newCounter(t)
	s.cases.shut(errAway)
	d.carry()
	d.pend(eventOf("p"), "a", "2026-07-17")
	s.cases.shut(nil)
	writes := 0
	d.close(true)
	d.disk = func(_ spool.DiskStep, path string, do func() error) error {
		if filepath.Base(path) == "operations.log" {
			if writes++; writes > 1 && writes < 20 {
				return errors.New("no room")
			}
		}
		return do()
	}
	d.open()
	asked := question("a", "2026-07-17").DerivedID()
	p, word := d.pend(eventOf("p"), "a", "2026-07-18") // it stays the question of the first day
	want(t, "the same pend, that waits", word+" "+p.RequestedID, "queued "+asked)
	for n := range 30 {
		d.courier.Turn(t.Context(), forward.Cases)
		if n == 5 && d.spool.Journal().Pending() == 1 {
			p, word = d.pend(eventOf("p"), "a", "2026-07-18")
			want(t, "the same pend, that is over", word+" "+p.RequestedID+" "+p.Case.ID, "created "+asked+" "+asked)
		}
	}
	want(t, "told", saidAll(d.told.outcomes), "pa_pend done, PENDING v1, created")
	want(t, "the end", fmt.Sprint(d.spool.Journal().Pending(), " wait, then ", word), "0 wait, then created")
}

// What no store does any more is kept with what stands instead, and what is behind it goes on.
func TestCourierConflicts(t *testing.T) {
	d, s := newCounter(t)
	ctx := t.Context()
	d.carry()
	for i, id := range []string{"moved", "token", "illegal", "over"} {
		want(t, "put", d.put(id, claimToken(i)), "created")
	}
	cases := map[string]pacase.Case{}
	for _, m := range []string{"decided", "appeal", "illegal"} {
		p, _ := d.pend(eventOf("first", m), m, "2026-07-16")
		cases[m] = p.Case
	}
	move := func(id string, version int, to pacase.State) {
		t.Helper()
		if got, err := s.cases.Store.Transition(ctx, pacase.Transition{ID: id, Expected: version, To: to, Op: pacase.UUID(eventOf("other", id, to))}); err != nil {
			t.Fatal(err, got)
		}
	}
	for _, m := range []string{"decided", "appeal"} {
		move(cases[m].ID, 1, pacase.InReview)
	}
	move(cases["appeal"].ID, 2, pacase.Denied)
	s.claims.shut(errAway)
	s.cases.shut(errAway)
	d.carry()
	type wanted struct {
		op     idem.EventID
		target string
		detail string
		stands string // of the claim or the case
	}
	var all []wanted
	ask := func(op idem.EventID, target, word, detail, stands string) {
		t.Helper()
		want(t, target+" "+detail, word, "queued")
		all = append(all, wanted{op, target, detail, stands})
	}
	op := eventOf("a1")
	ask(op, "moved", d.advanceAs(op, "moved", 1, claimstate.Normalized), "version 2, NORMALIZED, and not at 1", "NORMALIZED v2")
	op = eventOf("a2")
	ask(op, "token", d.putAs(op, "token", claimToken(77)), "another claim of this correlation id", "INGESTED v1")
	op = eventOf("a3")
	ask(op, "missing", d.advanceAs(op, "missing", 1, claimstate.Normalized), "there is no such claim", "")
	op = eventOf("a4")
	ask(op, "illegal", d.advanceAs(op, "illegal", 1, claimstate.PAEvaluated), "without skips", "INGESTED v1")
	op = eventOf("c1")
	ask(op, cases["decided"].ID, d.move(op, cases["decided"].ID, 2, pacase.Approved), "DENIED at version 3, and not at version 2", "DENIED v3")
	op = eventOf("c2")
	ask(op, cases["appeal"].ID, d.move(op, cases["appeal"].ID, 3, pacase.Appealed), "another case of the same member and drug is open: PENDING at version 1", "PENDING v1")
	op = eventOf("c3")
	ask(op, cases["illegal"].ID, d.move(op, cases["illegal"].ID, 1, pacase.Approved), "does not go from PENDING to APPROVED", "PENDING v1")
	op = eventOf("c4")
	ask(op, noCase, d.move(op, noCase, 1, pacase.InReview), "there is no such case", "")
	op = eventOf("first", "illegal") // a pend by an event that has asked something else
	_, word := d.pend(op, "someone", "2026-07-17")
	ask(op, question("someone", "2026-07-17").DerivedID(), word, "event_id", "")
	// Behind each of them.
	want(t, "behind", d.advance("moved", 2, claimstate.TaxonomyResolved), "queued")
	want(t, "behind", d.advance("token", 1, claimstate.Normalized), "queued")
	want(t, "behind", d.advance("illegal", 1, claimstate.Normalized), "queued")
	_, word = d.pend(eventOf("last"), "last", "2026-07-17")
	want(t, "behind", word, "queued")
	// Meanwhile others act.
	if _, err := claimstate.Step(ctx, s.claims.Store, "moved", 1, claimstate.Normalized, "", "", eventOf("other").String()); err != nil {
		t.Fatal(err)
	}
	move(cases["decided"].ID, 2, pacase.Denied)
	if p, err := s.cases.Store.Pend(ctx, pend(eventOf("other"), "appeal", "2026-07-18")); err != nil || !p.Created {
		t.Fatal(p, err)
	}
	d.again()
	s.claims.shut(nil)
	s.cases.shut(nil)
	d.carry()
	check := func() {
		t.Helper()
		conflicts, err := forward.Conflicts(d.spool.Journal())
		if err != nil {
			t.Fatal(err)
		}
		if len(conflicts) != len(all) {
			t.Errorf("%d conflicts, want %d", len(conflicts), len(all))
		}
		for _, w := range all {
			i := slices.IndexFunc(conflicts, func(c forward.Conflict) bool { return c.ID == w.op })
			if i < 0 {
				t.Errorf("%s, %q: no conflict", w.target, w.detail)
				continue
			}
			c := conflicts[i]
			stands := ""
			if c.Claim != nil {
				stands = fmt.Sprintf("%s v%d", c.Claim.Node, c.Claim.Version)
			}
			if c.Case != nil {
				stands = fmt.Sprintf("%s v%d", c.Case.State, c.Case.Version)
			}
			if c.Target != w.target || !strings.Contains(c.Detail, w.detail) || stands != w.stands || !json.Valid(c.Wanted) || c.Found == 0 {
				t.Errorf("%s, %q: %+v with %q, want %q", w.target, w.detail, c, stands, w.stands)
			}
			if strings.Contains(string(c.Wanted), "MTOK_") {
				t.Errorf("%s shows its member: %s", w.target, c.Wanted)
			}
		}
	}
	check()
	d.again()
	check()
	for _, w := range all {
		if o, ok := d.told.of(w.op); !ok || !o.Conflict || o.Target != w.target || !strings.Contains(o.Detail, w.detail) {
			t.Errorf("%s, %q: told %s", w.target, w.detail, saidOr(o, ok))
		}
	}
	want(t, "behind", d.claim("moved")+", "+d.claim("token")+", "+d.claim("illegal"), "TAXONOMY_RESOLVED v3, NORMALIZED v2, NORMALIZED v2")
	if o, _ := d.told.of(eventOf("last")); !o.Created {
		t.Errorf("behind: %s", saidOf(&o))
	}
	if n := d.spool.Journal().Pending(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// An operation that cannot be read is a conflict, and hides none of the others.
func TestCourierUnreadable(t *testing.T) {
	d, _ := newCounter(t)
	var ops []spool.Operation
	for _, kind := range []string{forward.OpIngest, forward.OpPut, forward.OpAdvance, forward.OpPend, forward.OpTransition, "over|" + forward.OpPut} {
		ops = append(ops, spool.Operation{ID: eventOf(kind), Kind: kind, Subject: "claim|" + kind, Body: json.RawMessage(`"MTOK_1"`), At: 1})
	}
	ops = append(ops, spool.Operation{ID: eventOf("to"), Kind: forward.OpTransition, Subject: "pa", Body: json.RawMessage(`{"case_id":"k","expected_version":1,"to":"GONE"}`), At: 1})
	if err := d.spool.Journal().Add(ops...); err != nil {
		t.Fatal(err)
	}
	d.carry()
	conflicts, err := forward.Conflicts(d.spool.Journal())
	if err != nil || len(conflicts) != len(ops) || d.spool.Journal().Pending() != 0 {
		t.Fatalf("%d conflicts, %d wait, %v", len(conflicts), d.spool.Journal().Pending(), err)
	}
	for _, c := range conflicts {
		if c.Detail == "" || strings.Contains(c.Detail+string(c.Wanted), "MTOK_1") {
			t.Errorf("%+v", c)
		}
	}
}

// What waits can be listed, by what it is about and nothing else; also what is over, and only not told yet.
func TestCourierWaiting(t *testing.T) {
	dir := t.TempDir()
	s := newShelf(t, dir, newMoment(), claimLives)
	d := s.counter(t, dir, "agent-1")
	d.close(true)
	left := 10 // writes of the journal
	d.disk = func(_ spool.DiskStep, path string, do func() error) error {
		if filepath.Base(path) == "operations.log" {
			if left--; left < 0 {
				return errors.New("no room")
			}
		}
		return do()
	}
	d.open()
	s.claims.shut(errAway)
	s.cases.shut(errAway)
	want(t, "put", d.put("c-1", claimToken(1)), "queued")
	_, word := d.pend(eventOf("p"), "a", "2026-07-17")
	want(t, "pend", word, "queued")
	if err := d.spool.Journal().Add(spool.Operation{ID: eventOf("x"), Kind: forward.OpPut, Subject: "x", Body: json.RawMessage(`"MTOK_1"`), At: 1}); err != nil {
		t.Fatal(err)
	}
	listed := func() (all string) {
		for _, w := range forward.WaitingOf(d.spool.Journal()) {
			all += fmt.Sprintf("%s %s %v; ", w.Kind, w.Target, w.At == 1 || w.At == s.at.now())
		}
		return all
	}
	all := "claim_put c-1 true; pa_pend " + question("a", "2026-07-17").DerivedID() + " true; claim_put  true; "
	want(t, "what waits", listed(), all)
	s.cases.shut(nil)
	left = 1
	d.courier.Turn(t.Context(), forward.Cases) // the disk is full behind the verdict
	if o, ok := d.told.of(eventOf("p")); !ok || d.spool.Journal().Pending() != 3 {
		t.Fatalf("told %s, %d wait: this test has lost its premise", saidOr(o, ok), d.spool.Journal().Pending())
	}
	want(t, "what waits", listed(), all)
}

// The listener hears of an outage, of another mistake behind it, and of its end, each once.
func TestCourierTellsOfLanes(t *testing.T) {
	d, s := newCounter(t)
	d.carry()
	mistake := &claimstate.ConfigError{Detail: "cannot log in", Hint: "write the password"}
	steps := []error{errAway, errors.New("another outage"), mistake, mistake, errAway, nil, nil}
	for _, err := range steps {
		s.claims.shut(err)
		d.put("c-1", claimToken(1))
		d.courier.Turn(t.Context(), forward.Claims)
		d.courier.Turn(t.Context(), forward.Claims)
	}
	var got []string
	for _, l := range d.told.lanes {
		got = append(got, fmt.Sprint(l.lane, ": ", l.cause))
	}
	want(t, "told", strings.Join(got, "; "), fmt.Sprintf("claim state: %v; claim state: %v; claim state: %v; claim state: <nil>", errAway, mistake, errAway))
}

// An answer that a lane has had before a call failed does not end the outage that the call has found, however late the
// lane's turn comes to its end.
func TestCourierOlderAnswer(t *testing.T) {
	at := newMoment()
	dir := t.TempDir()
	s := newShelf(t, dir, at, claimLives)
	d := s.counter(t, dir, "agent-1")
	s.claims.shut(errAway)
	want(t, "put", d.put("c-0", claimToken(0)), "queued")
	s.claims.shut(nil)
	asked := false
	d.told.hook = func([]forward.Outcome) { // the outcome is told before the turn ends
		if !asked {
			asked = true
			s.claims.shut(errAway)
			want(t, "put", d.put("c-1", claimToken(1)), "queued")
		}
	}
	d.courier.Turn(t.Context(), forward.Claims)
	if cause, _ := d.courier.Down(forward.Claims); !asked || cause == nil {
		t.Errorf("outcome told: %v, and the store that failed meanwhile is taken for well", asked)
	}
}
