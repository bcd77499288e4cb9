package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// transmission is one of a movement's: who hears it, and how long behind the movement's first one.
type transmission struct {
	who   int
	after time.Duration
}

// Two agents hear the same scanner. Whatever the phase of the window, each movement is one row, and the other
// agent is told of it.
func TestCentralSharedScanner(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		scanType     string
		width, guard time.Duration
		rounds       int
		phases       []time.Duration // of the first transmission, from a window boundary on
		gaps         []time.Duration // between the agents
		bounce       []time.Duration // of an echo, behind the first
	}{
		"dispense": {"dispense", 3000 * ms, 500 * ms, 4,
			[]time.Duration{-1500 * ms, -510 * ms, -495 * ms, -390 * ms, -300 * ms, -200 * ms, -120 * ms, -60 * ms, -20 * ms, 0, 250 * ms, 505 * ms},
			[]time.Duration{0, 30 * ms, 150 * ms, 300 * ms, 400 * ms}, []time.Duration{600 * ms, 1200 * ms, 2400 * ms}},
		"receive": {"receive", 400 * ms, 200 * ms, 10,
			[]time.Duration{-260 * ms, -205 * ms, -195 * ms, -150 * ms, -110 * ms, -80 * ms, -50 * ms, -20 * ms, -5 * ms, 0, 100 * ms, 205 * ms},
			[]time.Duration{0, 20 * ms, 60 * ms, 120 * ms}, []time.Duration{150 * ms, 250 * ms, 350 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newCentral(t)
			var ids []string
			for i := range c.phases {
				ids = append(ids, fmt.Sprintf("SCN-%02d", i))
			}
			setup := testenv.Setup{Scanners: ids, Scanner: shared + "\nscan_type = \"" + c.scanType + "\""}
			var homes [2]*testenv.Home
			var streams [2]*testenv.Stream
			var guns [2][]*gun
			for a := range homes {
				h, _, st, first := bench(t, db.stores().in(setup))
				homes[a], streams[a], guns[a] = h, st, []*gun{first}
				for _, id := range ids[1:] {
					guns[a] = append(guns[a], plug(t, h, st, id))
				}
			}
			patterns := func(gap, echo time.Duration) [][]transmission {
				return [][]transmission{
					{{0, 0}, {1, gap}},
					{{1, 0}, {0, gap}},
					{{0, 0}, {1, gap}, {0, echo}},
					{{0, 0}, {1, gap}, {1, echo}},
					{{0, 0}, {0, gap / 2}, {1, gap}},
					{{0, 0}, {1, gap}, {0, echo}, {1, echo}},
				}
			}
			echoes, total := 0, 0
			var wg sync.WaitGroup
			failed := make(chan error, len(ids))
			for i := range ids {
				plans := make([][]transmission, c.rounds)
				for r := range plans {
					all := patterns(c.gaps[rand.IntN(len(c.gaps))], c.bounce[rand.IntN(len(c.bounce))])
					plans[r] = all[(i+r)%len(all)]
					echoes += len(plans[r]) - 2
					total++
				}
				wg.Go(func() {
					for r, plan := range plans {
						label := matrix(bottleGTIN, "", fmt.Sprintf("P%dR%d", i, r))
						start := boundaryAfter(c.width, -c.phases[i]+20*ms).Add(c.phases[i])
						for _, x := range plan {
							if err := sleepUntil(t.Context(), start.Add(x.after)); err != nil {
								failed <- err
								return
							}
							if err := guns[x.who][i].Type(label); err != nil {
								failed <- err
								return
							}
						}
					}
				})
			}
			wg.Wait()
			close(failed)
			for err := range failed {
				t.Fatal(err)
			}
			// All are heard: an accepted event of either agent for each movement.
			heard := map[string][2]testenv.Event{} // by lot
			bounced := 0
			for a, st := range streams {
				for from, n := 0, 0; n < total; n++ {
					var e testenv.Event
					e, from = st.Wait(t, from, "a movement", func(e *testenv.Event) bool { return e.Kind == "accepted" })
					pair := heard[deref(e.Item.Lot)]
					pair[a] = e
					heard[deref(e.Item.Lot)] = pair
				}
			}
			db.await(t, "the bounces to be told", func() bool {
				bounced = 0
				for _, st := range streams {
					for _, e := range st.Events() {
						if e.Kind == "duplicate" && e.Reason == "bounce" {
							bounced++
						}
					}
				}
				return bounced == echoes
			})
			rows, lines := db.settled(t, homes[0], homes[1])
			byLot, by := map[string]int{}, map[string]int{}
			for _, r := range rows {
				byLot[r.Lot]++
				by[r.AgentID]++
			}
			straddles, late, twice := 0, 0, 0
			for lot, pair := range heard {
				gap := pair[0].CapturedAt.Sub(pair[1].CapturedAt).Abs()
				if gap > c.guard { // by the machine's fault: nothing is promised
					late++
					twice += byLot[lot] - 1
				} else if byLot[lot] != 1 {
					t.Errorf("movement %s has %d rows: heard %v apart, at %s and %s", lot, byLot[lot], gap, pair[0].CapturedAt, pair[1].CapturedAt)
				}
				if w := c.width.Milliseconds(); pair[0].CapturedAt.UnixMilli()/w != pair[1].CapturedAt.UnixMilli()/w {
					straddles++
				}
			}
			if late > total/2 {
				t.Fatalf("the machine is too slow: %d of %d movements were heard too far apart", late, total)
			}
			reasons := map[string]int{}
			for _, l := range linesOf(lines, "suppressed") {
				reasons[deref(l.Reason)]++
			}
			t.Logf("%d movements, %d over a boundary; rows by agent %v; suppressed for %v", total, straddles, by, reasons)
			if len(rows) != total+twice || reasons["other_agent"] != total-twice || reasons["bounce"] != echoes {
				t.Errorf("%d rows, suppressed for %v; want %d, as many for the other agent, and %d bounces", len(rows), reasons, total, echoes)
			}
			if straddles < total/8 {
				t.Errorf("%d of %d pairs lay over a boundary: this proves little", straddles, total)
			}
			// Each of the accepted is told its end: one agent committed, the other a duplicate of that.
			for _, pair := range heard {
				ends := [2]testenv.Event{}
				for a, st := range streams {
					ends[a], _ = st.Wait(t, 0, "an end", func(e *testenv.Event) bool {
						return e.EventID == pair[a].EventID && (e.Kind == "committed" || e.Kind == "duplicate")
					})
				}
				if byLot[deref(pair[0].Item.Lot)] == 1 && (ends[0].Kind == ends[1].Kind || ends[0].Key != ends[1].Key) {
					t.Errorf("the agents are told %s and %s", ends[0].Data, ends[1].Data)
				}
			}
		})
	}
}

func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Two agents heard the same 5,000 movements in an outage, and a third one is a restored copy of the first. All
// of them replay at once.
func TestCentralSameBacklog(t *testing.T) {
	t.Parallel()
	items := 5000
	if testenv.Race { // make test has all of them without the race detector
		items = 2000
	}
	c := newCentral(t)
	c.mode(t, testenv.Refuse)
	s := c.stores()
	s.forward = "batch = 100\nrate_limit = 2500\nbackoff_max = \"200ms\""
	others := testenv.NewProxy(t, c.pg.Addr())
	others.Set(t, testenv.Refuse)
	bs := s
	bs.dsn = c.pg.DSNAt(others.Addr(), testenv.PostgresLogin, c.db)
	a, b := listen(t, s, wideWindow()), listen(t, bs, wideWindow())
	var labels []string
	for i := range items {
		labels = append(labels, matrix(bottleGTIN, fmt.Sprintf("SAME%05d", i), "A1207"))
	}
	together(t, labels, 25, a, b)
	a.p.Stop(t)
	clone := program.NewHome(t, s.in(testenv.Setup{Scanner: shared, Sections: wideWindow().Sections}))
	clone.CopyState(t, a.h)
	a.h.Start(t)
	clone.Start(t)
	written := func(n int) func() bool {
		return func() bool { return c.count(t, "SELECT count(*) FROM scan_ledger") >= n }
	}
	// The other one begins, and stumbles later: each of them is ahead for a while.
	others.Set(t, testenv.Pass)
	c.await(t, "the first rows", written(1))
	c.mode(t, testenv.Pass)
	c.await(t, "a third", written(items/3))
	others.Set(t, testenv.Refuse)
	c.await(t, "two thirds", written(2*items/3))
	others.Set(t, testenv.Pass)
	homes := []*testenv.Home{a.h, clone, b.h}
	var counts [3]testenv.Counts
	for i, h := range homes {
		s := h.Await(t, "an end of what is pending", waitOnline)
		counts[i] = s.Counts
		if broken := s.Balance(); broken != "" {
			t.Error(broken)
		}
	}
	t.Logf("committed: %d, its copy %d, the other %d", counts[0].Committed, counts[1].Committed, counts[2].Committed)
	if counts[0] != counts[1] || counts[0].Committed+counts[2].Committed != int64(items) || counts[0].Committed+counts[0].Suppressed != int64(items) {
		t.Errorf("counts %+v", counts)
	}
	if counts[0].Committed == 0 || counts[2].Committed == 0 {
		t.Error("one of them wrote all rows: this proves little")
	}
	c.await(t, "the audit lines to arrive", func() bool {
		return c.count(t, "SELECT count(*) FROM scan_audit_line WHERE outcome = 'suppressed'") == items
	})
	rows, lines := a.h.Ledger(t), a.h.Audit(t)
	checkStores(t, rows, lines)
	c.join(t)
	if len(rows) != items || len(linesOf(lines, "suppressed")) != items {
		t.Errorf("%d rows and %d suppressed lines, want %d of both", len(rows), len(linesOf(lines, "suppressed")), items)
	}
}
