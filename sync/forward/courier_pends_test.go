package forward_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/forward"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// asker is one connection's way to the cases: a courier, with a store of its own.
type asker struct {
	*depot
	store *pacase.Postgres
}

// askers are n of them on one database, behind a proxy. They run.
func askers(t *testing.T, n int) (all []asker, p *testenv.Proxy, count func(sql string) int) {
	t.Helper()
	pg := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Settings: []string{fmt.Sprint("max_connections=", 3*n+20)}})
	db, cfg := storetest.PACasePostgres(t, pg)
	p = testenv.NewProxy(t, pg.Addr())
	cfg.DSN = pg.DSNAt(p.Addr(), testenv.PostgresLogin, db)
	cfg.IdleTimeout = time.Minute
	dir := memory(t)
	s := newShelf(t, dir, newMoment(), claimLives)
	host := must[window.OS](t)(window.Host())
	for i := range n {
		store := must[*pacase.Postgres](t)(pacase.OpenPostgres(cfg))
		d := newDepot(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("agent-%d", i), host, s.ledger, s.claims, store)
		t.Cleanup(func() { store.Close() })
		d.cfg.BackoffMin, d.cfg.BackoffMax, d.cfg.Patience = 5*time.Millisecond, 200*time.Millisecond, callTime
		d.renew()
		d.run()
		all = append(all, asker{d, store})
	}
	conn := pg.Connect(t, testenv.PostgresSuperuser, db)
	return all, p, func(sql string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// answer is what an asker has in the end heard of a pend.
func (a *asker) answer(t *testing.T, id idem.EventID, p pacase.Pended, word string) (caseID string, created bool) {
	switch word {
	case "created", "attached":
		return p.Case.ID, p.Created
	case "queued":
	default:
		t.Errorf("a pend is answered with %q", word)
		return "", false
	}
	var o forward.Outcome
	a.told.until(t, "the outcome", func() (ok bool) { o, ok = a.told.of(id); return ok })
	if o.Conflict || o.Case == nil {
		t.Errorf("told %s", saidOf(&o))
		return "", false
	}
	return o.Case.ID, o.Created
}

// 64 connections pend the same in each of 50 rounds: of one window, of two around midnight, and with replies lost.
func TestPends(t *testing.T) {
	const connections = 64
	rounds := 50
	if testenv.Race { // make test has all of them without the race detector
		rounds = 10
	}
	all, proxy, count := askers(t, connections)
	days := []string{"2026-07-16", "2026-07-17"}
	for _, c := range []struct {
		name    string
		windows int
		lossy   bool
	}{{"one window", 1, false}, {"midnight", 2, false}, {"lost replies", 1, true}, {"lost replies at midnight", 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			before := [2]int{count("SELECT count(*) FROM pa_cases"), count("SELECT count(*) FROM pa_ref")}
			r := rand.New(rand.NewPCG(1, 2))
			queued := 0
			for round := range rounds {
				member := fmt.Sprintf("%d_%v_%d", c.windows, c.lossy, round)
				var mu sync.Mutex
				var wg sync.WaitGroup
				created, cases := 0, map[string]bool{}
				begin := make(chan struct{})
				for i := range all {
					wg.Go(func() {
						<-begin
						id := eventOf(c.name, round, i)
						p, word := all[i].pend(id, member, days[i%c.windows])
						caseID, mine := all[i].answer(t, id, p, word)
						again, word2 := all[i].pend(id, member, days[i%c.windows]) // who asks again hears the same
						sameCase, same := all[i].answer(t, id, again, word2)
						mu.Lock()
						defer mu.Unlock()
						if sameCase != caseID || same != mine {
							t.Errorf("round %d: told %s, %v, and then %s, %v", round, caseID, mine, sameCase, same)
						}
						cases[caseID] = true
						if mine {
							created++
						}
						if word == "queued" {
							queued++
						}
					})
				}
				close(begin)
				if c.lossy {
					for range 3 {
						part := eventOf(c.name, round, r.IntN(connections))
						select {
						case <-proxy.Swallow(string(part[:])):
						case <-time.After(50 * time.Millisecond): // it was too late for this one
						}
					}
				}
				wg.Wait()
				if created != 1 || len(cases) != 1 {
					t.Errorf("round %d: %d told that they opened one of %d cases", round, created, len(cases))
				}
			}
			if got := count("SELECT count(*) FROM pa_cases") - before[0]; got != rounds {
				t.Errorf("%d cases, want %d", got, rounds)
			}
			if got := count("SELECT count(*) FROM pa_ref") - before[1]; got != rounds*c.windows {
				t.Errorf("%d ids lead to them, want %d", got, rounds*c.windows)
			}
			if got := count("SELECT count(*) FROM (SELECT FROM pa_pend JOIN pa_ref USING (ref_id) WHERE created GROUP BY case_id) AS c"); got != count("SELECT count(*) FROM pa_cases") {
				t.Errorf("%d cases have a creator", got)
			}
			if c.lossy && queued == 0 {
				t.Error("no reply was lost: this test has lost its premise")
			}
			t.Logf("%d of %d pends went by way of the journal", queued, rounds*connections)
		})
	}
	if got := count("SELECT count(*) FROM pa_pend"); got != 4*rounds*connections {
		t.Errorf("%d pends, want %d", got, 4*rounds*connections)
	}
	for i := range all {
		all[i].emptied()
		if j := all[i].spool.Journal(); j.Pending() != 0 || len(j.Conflicts()) != 0 {
			t.Errorf("asker %d: %d wait, %d conflicts", i, j.Pending(), len(j.Conflicts()))
		}
	}
}

// A pend that was queued and comes after the decision: in the same window it is answered with that case, in the next
// one with a new one; and who has an old version decides nothing, at once or by way of the journal.
func TestPendsLate(t *testing.T) {
	const day1, day2 = "2026-07-16", "2026-07-17"
	all, proxy, _ := askers(t, 2)
	here, there := all[0], all[1]
	p, word := here.pend(eventOf(1), "a", day1)
	want(t, "the first", word, "created")
	id := p.Case.ID
	proxy.Set(t, testenv.Refuse)
	_, word = there.pend(eventOf(2), "a", day1)
	want(t, "offline", word, "queued")
	_, word = there.pend(eventOf(3), "a", day2)
	want(t, "offline", word, "queued")
	want(t, "a stale approval", there.move(eventOf(4), id, 1, pacase.Approved), "queued")
	want(t, "an approval of a version to come", there.move(eventOf(5), id, 2, pacase.Approved), "queued")
	there.close(false)
	proxy.Set(t, testenv.Pass)
	p, word = here.pend(eventOf(9), "b", day1) // its connection was cut
	here.answer(t, eventOf(9), p, word)
	here.emptied()
	want(t, "review", here.move(eventOf(6), id, 1, pacase.InReview), "moved")
	want(t, "denial", here.move(eventOf(7), id, 2, pacase.Denied), "moved")
	want(t, "a stale approval at once", here.move(eventOf(8), id, 1, pacase.Approved), "conflict")
	there.open()
	there.run()
	there.told.until(t, "the outcomes", func() bool { return len(there.told.outcomes) == 4 })
	want(t, "told", saidAll(there.told.outcomes), "pa_pend done, DENIED v3; pa_pend done, PENDING v1, created; "+
		"pa_transition conflict: the case is DENIED at version 3, and not at version 1, DENIED v3; pa_transition conflict: the case is DENIED at version 3, and not at version 2, DENIED v3")
	if c, ok, err := here.courier.Case(t.Context(), id); err != nil || !ok || c.State != pacase.Denied || c.Version != 3 {
		t.Errorf("the case is %+v, %v, %v", c, ok, err)
	}
}
