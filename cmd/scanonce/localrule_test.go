package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// until lets time pass up to an instant of the machine's clock, which the agent's follows.
func until(t testing.TB, at time.Time) {
	t.Helper()
	pace(t, time.Until(at))
}

// boundaryAfter is the first window boundary at least ahead of now.
func boundaryAfter(width, ahead time.Duration) time.Time {
	now := time.Now().Add(ahead)
	return now.Truncate(width).Add(width)
}

// A bounce over a window boundary is a duplicate at every phase, inside the guard and outside of it.
func TestStraddles(t *testing.T) {
	t.Parallel()
	type straddle struct{ before, behind time.Duration }
	ms := time.Millisecond
	for name, c := range map[string]struct {
		mode    string
		width   time.Duration
		rounds  int
		phases  []straddle
		perhaps time.Duration // how far off the machine may be
	}{
		"dispense": {"", 3 * time.Second, 2, []straddle{{10 * ms, 10 * ms}, {5 * ms, 490 * ms}, {490 * ms, 5 * ms}, {250 * ms, 250 * ms},
			{495 * ms, 510 * ms}, {505 * ms, 100 * ms}, {800 * ms, 1500 * ms}, {1400 * ms, 1400 * ms}}, 100 * ms},
		"receive": {"SCANONCE-MODE-RECEIVE", 400 * time.Millisecond, 5, []straddle{{10 * ms, 10 * ms}, {100 * ms, 50 * ms}, {195 * ms, 20 * ms},
			{205 * ms, 100 * ms}, {20 * ms, 250 * ms}, {150 * ms, 150 * ms}}, 50 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ids []string
			for i := range c.phases {
				ids = append(ids, fmt.Sprintf("SCN-%d", i))
			}
			h, _, st, first := bench(t, testenv.Setup{Scanners: ids})
			guns := []*gun{first}
			for _, id := range ids[1:] {
				guns = append(guns, plug(t, h, st, id))
			}
			var slow, apart atomic.Int64 // pairs that were no bounce: told as one all the same, or not
			total, straddled := 0, make(chan bool, len(guns)*c.rounds)
			t.Run("phases", func(t *testing.T) {
				for i, g := range guns {
					p := c.phases[i]
					total += c.rounds
					t.Run(fmt.Sprintf("%v and %v", p.before, p.behind), func(t *testing.T) {
						t.Parallel()
						g.t = t
						for round, tried := 0, 0; round < c.rounds; tried++ {
							if c.mode != "" {
								g.expect("mode", c.mode)
								pace(t, 500*time.Millisecond) // the command's own echo is over
							}
							label := matrix(bottleGTIN, "", fmt.Sprintf("S%dR%d", i, tried))
							boundary := boundaryAfter(c.width, p.before+50*time.Millisecond)
							until(t, boundary.Add(-p.before))
							if err := g.Type(label); err != nil {
								t.Fatal(err)
							}
							until(t, boundary.Add(p.behind))
							if err := g.Type(label); err != nil {
								t.Fatal(err)
							}
							a, b := g.answer(), g.answer()
							gap := b.CapturedAt.Sub(a.CapturedAt)
							if gap >= c.width && a.Kind == "accepted" && tried < 50 { // the machine was too slow, and this is no bounce
								g.tone(map[string]string{"accepted": "GG", "duplicate": "GD"}[b.Kind])
								if b.Kind == "accepted" {
									apart.Add(1)
								} else {
									slow.Add(1)
								}
								continue
							}
							round++
							g.tone("GD")
							if a.Kind != "accepted" || b.Kind != "duplicate" || b.DuplicateOf != a.EventID || b.Key != a.Key {
								t.Errorf("%v apart, the answers are %s and %s", gap, a.Data, b.Data)
							}
							width := c.width.Milliseconds()
							straddled <- a.CapturedAt.UnixMilli()/width != b.CapturedAt.UnixMilli()/width
						}
					})
				}
			})
			close(straddled)
			n := 0
			for yes := range straddled {
				if yes {
					n++
				}
			}
			rows, lines := quiet(t, h)
			if s, a := int(slow.Load()), int(apart.Load()); len(rows) != total+s+2*a || len(linesOf(lines, "suppressed")) != total+s {
				t.Errorf("%d rows and %d suppressed lines for %d movements, and %d and %d that were too slow", len(rows), len(linesOf(lines, "suppressed")), total, s, a)
			}
			if n < total*3/4 {
				t.Errorf("only %d of %d pairs lay over a boundary", n, total)
			}
		})
	}
}

// The window is anchored at the first acceptance: echoes do not prolong it, and it does not begin anew at a
// boundary.
func TestWindowIsAnchored(t *testing.T) {
	t.Parallel()
	stalled(t, func(t *testing.T) bool {
		h, p, _, g := bench(t, testenv.Setup{})
		defer p.Kill()
		start := time.Now()
		a := g.scan(bottle)
		until(t, start.Add(1900*time.Millisecond))
		b := g.scan(bottle)
		until(t, start.Add(2800*time.Millisecond))
		c := g.scan(bottle)
		until(t, start.Add(3150*time.Millisecond))
		d := g.scan(bottle)
		if c.CapturedAt.Sub(a.CapturedAt) >= 3*time.Second {
			return false
		}
		if a.Kind != "accepted" || b.Kind != "duplicate" || c.Kind != "duplicate" || c.DuplicateOf != a.EventID || d.Kind != "accepted" || d.Key == a.Key {
			t.Errorf("answers %s, %s, %s, %s", a.Data, b.Data, c.Data, d.Data)
		}
		if rows, _ := quiet(t, h); len(rows) != 2 {
			t.Errorf("%d rows, want 2", len(rows))
		}
		return true
	})
}

// A restart between a scan and its bounce changes nothing, even if all was drained before.
func TestRestartBetweenScanAndBounce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kill, drained bool }{
		"SIGTERM":          {false, false},
		"kill -9":          {true, false},
		"SIGTERM, drained": {false, true},
		"kill -9, drained": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stalled(t, func(t *testing.T) bool {
				h, p, st, g := bench(t, longWindow())
				defer func() { p.Kill() }()
				// Not the first record of its scanner nor the last before the stop, so that no doubt about the
				// last one helps.
				g.expect("accepted", matrix(bottleGTIN, "X0", "A1207"))
				a := g.scan(matrix(bottleGTIN, "X1", "A1207"))
				last := g.scan(matrix(bottleGTIN, "X2", "A1207"))
				if c.drained {
					committed(t, st, last.EventID)
					h.Await(t, "an empty spool", func(s *testenv.Status) bool { return s.Counts.Pending == 0 })
				}
				if c.kill {
					p.Kill()
				} else {
					p.Stop(t)
				}
				g.pos = st.Len()
				p = h.Start(t)
				g.reading()
				b := g.scan(matrix(bottleGTIN, "X1", "A1207"))
				if b.CapturedAt.Sub(a.CapturedAt) >= longWidth {
					return false
				}
				if b.Kind != "duplicate" || b.DuplicateOf != a.EventID || b.Key != a.Key || b.Reason != "bounce" {
					t.Errorf("the bounce of %s is %s", a.Data, b.Data)
				}
				rows, lines := quiet(t, h)
				if len(rows) != 3 || len(linesOf(lines, "suppressed")) != 1 {
					t.Errorf("%d rows, lines %+v", len(rows), lines)
				}
				return true
			})
		})
	}
}

// After a kill the scanner's user may not have heard the answer to the last scan: that one again, even late,
// is its duplicate, told with the way out. After an orderly stop it is a movement.
func TestInDoubt(t *testing.T) {
	t.Parallel()
	t.Run("kill -9", func(t *testing.T) {
		t.Parallel()
		h, p, st, g := bench(t, testenv.Setup{})
		a := g.expect("accepted", bottle)
		p.Kill()
		g.pos = st.Len()
		h.Start(t)
		g.reading()
		until(t, a.CapturedAt.Add(3200*time.Millisecond))
		b := g.expect("duplicate", bottle)
		if b.Reason != "in_doubt" || b.DuplicateOf != a.EventID || b.Key != a.Key || len(b.Actions) != 1 {
			t.Errorf("duplicate %s", b.Data)
		}
		if g.expect("duplicate", bottle).DuplicateOf != a.EventID { // its echo
			t.Error("the echo of a scan in doubt names another scan")
		}
		if code, again := sameAgain(t, h, g.ID, &b.EventID); code != http.StatusCreated || again.Outcome != "accepted" {
			t.Errorf("same again: %d %+v", code, again)
		}
		rows, lines := quiet(t, h)
		if sup := linesOf(lines, "suppressed"); len(rows) != 2 || len(sup) != 2 || deref(sup[0].Reason) != "in_doubt" && deref(sup[1].Reason) != "in_doubt" {
			t.Errorf("%d rows, suppressed %+v", len(rows), sup)
		}
	})
	t.Run("the rest of an echo first", func(t *testing.T) {
		t.Parallel()
		for rest, answer := range map[string]string{"21SN0001\x1d17271130\x1d10A1207": "unknown", "207": "unknown", "]d201003": "rejected"} {
			h, p, st, g := bench(t, testenv.Setup{})
			a := g.expect("accepted", bottle)
			p.Kill()
			g.pos = st.Len()
			h.Start(t)
			g.reading()
			g.expect(answer, rest)
			until(t, a.CapturedAt.Add(3200*time.Millisecond))
			if b := g.expect("duplicate", bottle); b.Reason != "in_doubt" || b.DuplicateOf != a.EventID {
				t.Errorf("%q: duplicate %s", rest, b.Data)
			}
			if rows, _ := quiet(t, h); len(rows) != 1 {
				t.Errorf("%q: %d rows, want 1", rest, len(rows))
			}
		}
	})
	t.Run("another item first", func(t *testing.T) {
		t.Parallel()
		h, p, st, g := bench(t, testenv.Setup{})
		a := g.expect("accepted", bottle)
		p.Kill()
		g.pos = st.Len()
		h.Start(t)
		g.reading()
		g.expect("accepted", matrix(ciiGTIN, "Y1", "A1"))
		until(t, a.CapturedAt.Add(3200*time.Millisecond))
		g.expect("accepted", bottle)
		if rows, _ := quiet(t, h); len(rows) != 3 {
			t.Errorf("%d rows, want 3", len(rows))
		}
	})
	t.Run("SIGTERM", func(t *testing.T) {
		t.Parallel()
		h, p, st, g := bench(t, testenv.Setup{})
		a := g.expect("accepted", bottle)
		p.Stop(t)
		g.pos = st.Len()
		h.Start(t)
		g.reading()
		until(t, a.CapturedAt.Add(3200*time.Millisecond))
		g.expect("accepted", bottle)
		if rows, _ := quiet(t, h); len(rows) != 2 {
			t.Errorf("%d rows, want 2", len(rows))
		}
	})
}
