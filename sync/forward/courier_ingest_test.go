package forward_test

import (
	"context"
	"errors"
	"fmt"
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
	"scanonce/window"
)

// puts counts the claims that were asked for.
func (s *shelf) puts(id string) (n int) {
	for _, c := range s.claims.made() {
		if c == "put "+id {
			n++
		}
	}
	return n
}

// All bottles of one fill are one claim, a refill is another, and what is no committed dispense of a prescription asks
// for none: at one agent and at two, whose ledger is one.
func TestIngestOneClaimAFill(t *testing.T) {
	servers := map[string]func(t *testing.T, s *shelf) ledger.Ledger{
		"embedded": func(_ *testing.T, s *shelf) ledger.Ledger { return s.ledger },
		"PostgreSQL": func(t *testing.T, s *shelf) ledger.Ledger {
			_, l := newPostgresLedger(t, testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true}))
			return gatedLedger{l, s.ledger.gate}
		},
	}
	for name, open := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, at := t.TempDir(), newMoment()
			s := newShelf(t, dir, at, claimLives)
			rows := open(t, s)
			var d [2]*depot
			for i := range d {
				d[i] = newDepot(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint("agent-", i), at, rows, s.claims, s.cases)
				d[i].cfg.Random, d[i].cfg.Together = lastOf, inOrder
				d[i].renew()
			}
			fill, refill := claimToken(1), claimToken(2)
			first := d[0].scan("B1", fill, window.Dispense)
			d[0].scan("B1", fill, window.Dispense) // the bounce of the first bottle
			d[0].scan("B2", fill, window.Dispense)
			d[1].scan("B3", fill, window.Dispense)
			d[1].scan("B1", fill, window.Dispense) // a shared scanner's: the other agent has it
			d[1].scan("B4", refill, window.Dispense)
			d[0].scan("B5", "", window.Dispense)
			for _, kind := range []window.ScanType{window.Return, window.Waste, window.Adjust, window.Transfer, window.Receive, window.Count} {
				d[0].scan("B6", claimToken(10+int(kind)), kind)
			}
			suppressed := d[1].scan("B5", claimToken(30), window.Dispense) // as before
			for _, d := range d {
				d.settle()
			}
			at.pass(time.Second)
			for _, d := range d {
				d.settle() // what was deferred
			}
			st := d[1].spool.Stats()
			if st.Committed != 2 || st.Suppressed != 2 || st.Pending != 0 {
				t.Errorf("the second agent has %+v", st)
			}
			for range 2 {
				d[0].carry()
				d[1].carry()
			}
			for token, want := range map[claimstate.Token]int{fill: 1, refill: 1} {
				id := forward.ClaimOf(string(token))
				if n := s.puts(id); n != want {
					t.Errorf("%d claims asked for, want %d", n, want)
				}
				c, ok, err := s.claims.Store.Get(t.Context(), id)
				if err != nil || !ok || c.RxRefToken != token || c.IngredientCost != "0.00" || c.Version != 1 {
					t.Errorf("the claim is %+v, %v, %v", c, ok, err)
				}
			}
			want(t, "a suppressed scan's claim", d[1].claim(forward.ClaimOf(suppressed.RxToken)), "none")
			if calls := s.claims.made(); slices.ContainsFunc(calls, func(c string) bool {
				return strings.HasPrefix(c, "put ") && c != "put "+forward.ClaimOf(string(fill)) && c != "put "+forward.ClaimOf(string(refill))
			}) {
				t.Errorf("asked of the store: %v", calls)
			}
			told := slices.Concat(d[0].told.outcomes, d[1].told.outcomes)
			done, claims := 0, 0
			for i := range told {
				if !told[i].Conflict && told[i].Target != "" {
					done++
				}
				if told[i].Claim != nil {
					claims++
				}
			}
			if len(told) != 4 || done != 4 || claims != 2 { // four bottles
				t.Errorf("told of %s", saidAll(told))
			}
			if _, ok := d[0].told.of(first.Event); !ok {
				t.Error("nothing is told of the first bottle")
			}
			for _, d := range d {
				if j := d.spool.Journal(); j.Pending() != 0 || len(j.Conflicts()) != 0 {
					t.Errorf("%d wait, %d conflicts", j.Pending(), len(j.Conflicts()))
				}
			}
		})
	}
}

// newPostgresLedger makes a migrated database with a ledger on it.
func newPostgresLedger(t testing.TB, p *testenv.Postgres) (db string, l *ledger.Postgres) {
	t.Helper()
	db = p.NewDatabase(t)
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db)}, 0); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.OpenPostgres(ledger.PostgresConfig{DSN: p.AgentDSN(t, db), Agent: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return db, l
}

// The journal knows of a row's claim before the settlement that says the row is there. A kill at any durable step in
// between, or of the ways to the ledger and the store behind it, leaves one claim, and nobody who waits for ever.
func TestIngestKilled(t *testing.T) {
	kill := errors.New("killed")
	for n := 1; ; n++ {
		passed := false
		for _, before := range []bool{true, false} {
			dir, at := t.TempDir(), newMoment()
			s := newShelf(t, dir, at, claimLives)
			d := s.counter(t, dir, "agent-1")
			r := d.scan("B1", claimToken(1), window.Dispense)
			claim := forward.ClaimOf(r.RxToken)
			want(t, "an advance of the claim to come", d.advance(claim, 1, claimstate.Normalized), "queued")
			d.close(false)
			steps := 0
			d.disk = func(_ spool.DiskStep, path string, do func() error) error {
				steps++
				at := steps
				if at == n && before {
					panic(kill)
				}
				err := do()
				if at == n {
					panic(kill)
				}
				return err
			}
			killed := func() (killed bool) {
				defer func() {
					if x := recover(); x != nil && x != any(kill) {
						panic(x)
					} else if x != nil {
						killed = true
					}
				}()
				d.open()
				d.settle()
				d.carry()
				d.settle()
				return false
			}()
			d.disk, steps = nil, n+1 // no more
			if killed {
				passed = true
				d.dir = copyFolder(t, d.dir)
				d.open()
				d.settle()
				d.carry()
			}
			st, j := d.spool.Stats(), d.spool.Journal()
			if st.Committed != 1 || j.Pending() != 0 || len(j.Conflicts()) != 0 || d.claim(claim) != "NORMALIZED v2" {
				t.Errorf("killed at step %d (before it: %v): %d committed, %d wait, %d conflicts, claim %s", n, before, st.Committed, j.Pending(), len(j.Conflicts()), d.claim(claim))
			}
			for _, id := range []idem.EventID{r.Event, eventOf("advance", claim, 1, claimstate.Normalized)} {
				if o, ok := d.told.of(id); !ok || o.Conflict {
					t.Errorf("killed at step %d (before it: %v): told %s", n, before, saidOr(o, ok))
				}
			}
		}
		if !passed {
			if n < 10 {
				t.Errorf("there were %d durable steps only", n-1)
			}
			return
		}
	}
}

// A settlement that fails behind the journal's line is made again: one claim.
func TestIngestSettledAgain(t *testing.T) {
	dir, at := t.TempDir(), newMoment()
	s := newShelf(t, dir, at, claimLives)
	d := s.counter(t, dir, "agent-1")
	fail := false
	d.close(true)
	d.disk = func(_ spool.DiskStep, path string, do func() error) error {
		if fail && filepath.Base(path) == "state.db" {
			return errors.New("no room")
		}
		return do()
	}
	d.open()
	r := d.scan("B1", claimToken(1), window.Dispense)
	fail = true
	d.settle()
	if n, st := d.spool.Journal().Pending(), d.spool.Stats(); n != 1 || st.Committed != 0 {
		t.Fatalf("%d wait, %+v: this test has lost its premise", n, st)
	}
	d.carry() // the row is there: its claim may be
	id := forward.ClaimOf(r.RxToken)
	want(t, "the claim", d.claim(id), "INGESTED v1")
	want(t, "an advance", d.advance(id, 1, claimstate.Normalized), "queued") // its dispense is not settled
	fail = false
	d.settle()
	d.carry()
	want(t, "the claim", d.claim(id), "NORMALIZED v2")
	if n := len(d.spool.Journal().Conflicts()); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}

// What is asked for of a claim while its dispense is on the way waits for it, over a restart too; what was asked for
// before the scan comes before it.
func TestIngestComesFirst(t *testing.T) {
	for _, restart := range []bool{false, true} {
		d, s := newCounter(t)
		s.ledger.shut(errAway)
		d.carry()
		early, late := claimToken(1), claimToken(2)
		s.claims.shut(errAway)
		d.put("other", claimToken(3))
		want(t, "put before the scan", d.putAs(eventOf("early"), forward.ClaimOf(string(early)), early), "queued")
		d.os.(*moment).pass(time.Second)
		s.claims.shut(nil)
		d.courier.Turn(t.Context(), forward.Ingests)
		a, b := d.scan("B1", early, window.Dispense), d.scan("B2", late, window.Dispense)
		d.os.(*moment).pass(time.Second)
		want(t, "put behind the scan", d.putAs(eventOf("late"), forward.ClaimOf(string(late)), late), "queued")
		want(t, "advance", d.advance(forward.ClaimOf(string(late)), 1, claimstate.Normalized), "queued")
		if restart {
			d.again()
		}
		d.carry()
		want(t, "another claim", d.claim("other"), "INGESTED v1")
		want(t, "the claims of dispenses on their way", d.claim(forward.ClaimOf(string(early)))+" "+d.claim(forward.ClaimOf(string(late))), "none none")
		d.settle()
		d.carry() // the rows are there, but nothing says for which scan the claims are made
		want(t, "the claim of the second dispense", d.claim(forward.ClaimOf(string(late))), "none")
		s.ledger.shut(nil)
		d.carry()
		for _, x := range []struct {
			id   idem.EventID
			want string
		}{
			{eventOf("early"), "claim_put done, INGESTED v1"},
			{a.Event, "claim_put done, INGESTED v1"},
			{b.Event, "claim_put done, INGESTED v1"},
			{eventOf("late"), "claim_put conflict: there is another claim of this correlation id, INGESTED v1"},
			{eventOf("advance", forward.ClaimOf(string(late)), 1, claimstate.Normalized), "claim_advance done, NORMALIZED v2"},
		} {
			if o, ok := d.told.of(x.id); saidOr(o, ok) != x.want {
				t.Errorf("restart %v: told %s, want %s", restart, saidOr(o, ok), x.want)
			}
		}
		if c, _, _ := s.claims.Store.Get(t.Context(), forward.ClaimOf(string(early))); c.IngredientCost != "42.10" {
			t.Errorf("the claim that was there first: %+v", c)
		}
	}
}

// Until the courier knows which dispenses earlier runs have left, operations on claims wait, those on cases do not.
func TestIngestBegin(t *testing.T) {
	d, _ := newCounter(t)
	d.courier = forward.NewCourier(d.cfg, d.spool.Journal(), d.ledger, d.claims, d.cases, d.clock, d.told)
	d.carry()
	want(t, "put", d.put("c-1", claimToken(1)), "queued")
	_, word := d.pend(eventOf("p"), "a", "2026-07-17")
	want(t, "pend", word, "created")
	d.carry()
	want(t, "c-1", d.claim("c-1"), "none")
	d.run()
	d.courier.Begin()
	d.told.until(t, "the put", func() bool { return len(d.told.outcomes) == 1 })
}

// Await and Arrived may come in either order, and the same claim may be awaited for several bottles.
func TestIngestAwaits(t *testing.T) {
	d, _ := newCounter(t)
	d.carry()
	r, again := d.scan("B1", claimToken(1), window.Dispense), d.scan("B2", claimToken(1), window.Dispense)
	id := forward.ClaimOf(r.RxToken)
	d.courier.Arrived(r)
	want(t, "one of two bottles is there", d.put(id, claimToken(1)), "queued")
	d.courier.Arrived(again)
	d.carry()
	want(t, "both are", d.claim(id), "INGESTED v1")
	third := d.scan("B3", claimToken(2), window.Dispense)
	d.courier.Arrived(third)
	d.courier.Arrived(third) // as if the next Await were late
	d.courier.Await(third)
	want(t, "a late Await", d.put(forward.ClaimOf(third.RxToken), claimToken(2)), "created")
}

// The pharmacy system's claim is the scan's.
func TestIngestPharmacyFirst(t *testing.T) {
	d, _ := newCounter(t)
	d.carry()
	token := claimToken(1)
	id := forward.ClaimOf(string(token))
	want(t, "put", d.put(id, token), "created")
	want(t, "advance", d.advance(id, 1, claimstate.Normalized), "advanced")
	d.scan("B1", token, window.Dispense)
	d.settle()
	d.carry()
	want(t, "told", saidAll(d.told.outcomes), "claim_put done, NORMALIZED v2")
	want(t, "the claim", d.claim(id), "NORMALIZED v2")
	// And one of another prescription under the same id is not.
	other := claimToken(2)
	want(t, "put", d.put(forward.ClaimOf(string(other)), claimToken(3)), "created")
	d.scan("B2", other, window.Dispense)
	d.settle()
	d.carry()
	want(t, "told", saidAll(d.told.outcomes[1:]), "claim_put conflict: there is another claim of this correlation id, INGESTED v1")
}

// A put of the pharmacy system's is not a scan's, though it says no more of its claim: queued, it is a conflict where it
// would have been one at once.
func TestQueuedPutIsNoScan(t *testing.T) {
	d, s := newCounter(t)
	d.carry()
	want(t, "put", d.put("c-1", claimToken(1)), "created")
	s.claims.shut(errAway)
	n := claimstate.New{CorrelationID: "c-1", RxRefToken: claimToken(1), IngredientCost: "0.00", OpID: eventOf("another").String()}
	if _, queued, err := d.courier.PutClaim(t.Context(), n); err != nil || !queued {
		t.Fatalf("queued %v, %v", queued, err)
	}
	s.claims.shut(nil)
	d.carry()
	want(t, "told", saidAll(d.told.outcomes), "claim_put conflict: there is another claim of this correlation id, INGESTED v1")
}

// A scan does not make its claim a second time after that may have come to its end: not when the ledger's answer, nor
// when the store's was lost and the outage was longer than an idle claim lives. An outage of any length in which
// nothing was asked loses nothing.
func TestIngestLate(t *testing.T) {
	token := claimToken(1)
	id := forward.ClaimOf(string(token))
	finish := func(t *testing.T, s *shelf) { // others bring the claim to its end
		t.Helper()
		if a, err := claimstate.Step(t.Context(), s.claims.Store, id, 1, claimstate.ResponseDispatched, "", "70", eventOf("end").String()); err != nil {
			t.Fatal(a, err)
		}
	}
	const young = claimLife - 11*time.Second // a call takes up to 10 s
	const over = "claim_put conflict: the claim of this dispense was asked for before, and may be over: make it by hand if it is not"
	for _, c := range []struct {
		name  string
		lost  func(s *shelf) *gate // whose reply
		after time.Duration
		end   bool
		want  string
	}{
		{"the ledger's answer is lost", func(s *shelf) *gate { return s.ledger.gate }, young, false, "claim_put done, INGESTED v1"},
		{"the ledger's answer is lost for long", func(s *shelf) *gate { return s.ledger.gate }, claimLife, false, over},
		{"the store's answer is lost", func(s *shelf) *gate { return s.claims.gate }, young, false, "claim_put done, INGESTED v1"},
		{"the store's answer is lost, and others end the claim", func(s *shelf) *gate { return s.claims.gate }, 2 * claimLife, true, over},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, ", restart ", restart), func(t *testing.T) {
				d, s := newCounter(t)
				d.carry()
				d.scan("B1", token, window.Dispense)
				d.settle()
				g := c.lost(s)
				g.set(func(g *gate) {
					g.lose = func(what string) bool { return what == "ingest" || what == "put "+id }
				})
				for _, l := range d.courier.Lanes() {
					d.courier.Turn(t.Context(), l)
				}
				g.set(func(g *gate) { g.lose = nil })
				s.claims.shut(errAway)
				s.ledger.shut(errAway)
				if c.end {
					finish(t, s)
				}
				for range 3 {
					d.os.(*moment).pass(c.after / 3)
					d.carry()
				}
				if restart {
					d.again()
				}
				s.claims.shut(nil)
				s.ledger.shut(nil)
				d.carry()
				want(t, "told", saidAll(d.told.outcomes), c.want)
				if conflicts, err := forward.Conflicts(d.spool.Journal()); err != nil || len(conflicts) != strings.Count(c.want, "conflict") {
					t.Errorf("conflicts %+v, %v", conflicts, err)
				}
			})
		}
	}
	t.Run("the claim is there", func(t *testing.T) {
		d, s := newCounter(t)
		d.carry()
		d.scan("B1", token, window.Dispense)
		d.settle()
		s.claims.set(func(g *gate) { g.lose = func(what string) bool { return what == "put "+id } })
		for _, l := range d.courier.Lanes() {
			d.courier.Turn(t.Context(), l)
		}
		s.claims.set(func(g *gate) { g.lose = nil })
		s.claims.shut(errAway)
		version := int64(1)
		for _, to := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved} { // others go on with it, and it lives
			d.os.(*moment).pass(claimLife * 2 / 3)
			if _, err := claimstate.Step(t.Context(), s.claims.Store, id, version, to, "", "", eventOf(to).String()); err != nil {
				t.Fatal(err)
			}
			version++
		}
		s.claims.shut(nil)
		d.carry()
		want(t, "told", saidAll(d.told.outcomes), "claim_put done, TAXONOMY_RESOLVED v3")
	})
	t.Run("a call begins young and may end late", func(t *testing.T) { // so the call's own time counts too
		d, s := newCounter(t)
		d.carry()
		d.scan("B1", token, window.Dispense)
		d.settle()
		s.claims.set(func(g *gate) { g.lose = func(what string) bool { return what == "put "+id } })
		for _, l := range d.courier.Lanes() {
			d.courier.Turn(t.Context(), l)
		}
		finish(t, s)
		d.os.(*moment).pass(claimLife - d.cfg.Timeout)
		s.claims.set(func(g *gate) {
			g.lose = nil
			g.fails = func(what string) bool {
				if what == "put "+id {
					d.os.(*moment).pass(d.cfg.Timeout)
				}
				return false
			}
		})
		d.carry()
		want(t, "told", saidAll(d.told.outcomes), "claim_put done, RESPONSE_DISPATCHED v2")
	})
	t.Run("a start after which the clock is behind", func(t *testing.T) { // the ledger's is not
		d, s := newCounter(t)
		d.carry()
		d.scan("B1", token, window.Dispense)
		d.settle()
		s.claims.set(func(g *gate) { g.lose = func(what string) bool { return what == "put "+id } })
		for _, l := range d.courier.Lanes() {
			d.courier.Turn(t.Context(), l)
		}
		s.claims.set(func(g *gate) { g.lose = nil })
		finish(t, s)
		s.at.pass(2 * claimLife)
		d.os = behind{s.at}
		d.again()
		d.carry()
		want(t, "told", saidAll(d.told.outcomes), over)
	})
	for _, away := range []string{"claims", "ledger", "both"} {
		t.Run("six hours without "+away, func(t *testing.T) {
			d, s := newCounter(t)
			d.carry()
			if away != "ledger" {
				s.claims.shut(errAway)
			}
			if away != "claims" {
				s.ledger.shut(errAway)
			}
			for i := range 12 {
				d.os.(*moment).pass(time.Hour / 2)
				d.scan(fmt.Sprint("B", i), claimToken(i), window.Dispense)
				d.settle()
				d.carry()
				if i == 6 {
					d.again()
				}
			}
			s.claims.shut(nil)
			s.ledger.shut(nil)
			d.carry()
			for i := range 12 {
				want(t, "a claim", d.claim(forward.ClaimOf(string(claimToken(i)))), "INGESTED v1")
			}
			if n := len(d.spool.Journal().Conflicts()); n != 0 {
				t.Errorf("%d conflicts", n)
			}
		})
	}
}

// behind is a machine whose clock was set back while it was off.
type behind struct{ *moment }

func (b behind) Wall() time.Time { return b.moment.Wall().Add(-2 * claimLife) }
func (b behind) BootID() string  { return "boot-2" }

// A damaged claim is a conflict of the scan that finds it, whichever way.
func TestIngestDamagedClaim(t *testing.T) {
	d, s := newCounter(t)
	d.carry()
	damage := &claimstate.DamageError{Where: "the hash", Detail: "no node"}
	for i, how := range []string{"put", "late"} {
		token := claimToken(i)
		d.scan("B"+how, token, window.Dispense)
		d.settle()
		if how == "late" {
			s.claims.set(func(g *gate) { g.lose = func(what string) bool { return strings.HasPrefix(what, "put ") } })
			for _, l := range d.courier.Lanes() {
				d.courier.Turn(t.Context(), l)
			}
			s.claims.set(func(g *gate) { g.lose = nil })
			d.os.(*moment).pass(claimLife)
		}
		d.claims = damagedClaims{s.claims, damage}
		d.renew()
		d.carry()
		o := d.told.outcomes[i]
		want(t, how, saidOf(&o), "claim_put conflict: "+damage.Error())
		if o.Target != forward.ClaimOf(string(token)) || d.spool.Journal().Pending() != 0 {
			t.Errorf("%s: %+v", how, o)
		}
		d.claims = s.claims
		d.renew()
		d.carry()
	}
}

// damagedClaims finds every claim damaged, as a store does that was tampered with.
type damagedClaims struct {
	gatedClaims
	damage error
}

func (s damagedClaims) PutNew(context.Context, claimstate.New) (claimstate.Put, error) {
	return claimstate.Put{}, s.damage
}

func (s damagedClaims) Get(context.Context, string) (claimstate.State, bool, error) {
	return claimstate.State{}, false, s.damage
}

// Many bottles of few fills at two agents at once, on one ledger: a claim for each fill.
func TestIngestRace(t *testing.T) {
	dir := t.TempDir()
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	s := newShelf(t, dir, newMoment(), claimLives)
	_, rows := newPostgresLedger(t, testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true}))
	const fills, bottles = 20, 4
	var all sync.WaitGroup
	var d [2]*depot
	for i := range d {
		d[i] = newDepot(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint("agent-", i), host, rows, s.claims, s.cases)
		for f := range fills {
			for b := range bottles {
				d[i].scan(fmt.Sprintf("A%dF%dB%d", i, f, b), claimToken(f), window.Dispense)
			}
		}
	}
	for _, d := range d {
		d.run()
		all.Go(d.settle)
	}
	all.Wait()
	for _, d := range d {
		d.told.until(t, "all bottles", func() bool { return len(d.told.outcomes) == fills*bottles })
	}
	for f := range fills {
		if n := s.puts(forward.ClaimOf(string(claimToken(f)))); n != 1 {
			t.Errorf("%d claims are asked for fill %d", n, f)
		}
		want(t, "the claim", d[0].claim(forward.ClaimOf(string(claimToken(f)))), "INGESTED v1")
	}
	if n := len(d[0].spool.Journal().Conflicts()) + len(d[1].spool.Journal().Conflicts()); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}
