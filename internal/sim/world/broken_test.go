package world

import (
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

// What happens outside of the assumptions is known too, and documented: each of these worlds breaks one.
func TestBrokenAssumptions(t *testing.T) {
	const ms = time.Millisecond
	worldOf := func(users ...*userPlan) *plan {
		p := &plan{seed: 1, begin: base, uptime: time.Hour, ttl: time.Minute, life: time.Minute, batch: 500, segment: 1000, lasts: 10 * time.Second,
			nodes: []nodePlan{{id: "a1"}, {id: "a2"}}, users: users}
		return p
	}
	shared := func(apart time.Duration, items ...itemPlan) *userPlan {
		for i := range items {
			items[i].apart = [][]time.Duration{{0}, {apart}}
		}
		return &userPlan{scanner: "SHARED", nodes: []string{"a1", "a2"}, begins: time.Second, items: items}
	}
	alone := func(items ...itemPlan) *userPlan {
		return &userPlan{scanner: "SCN-1", nodes: []string{"a1"}, begins: time.Second, items: items}
	}
	for _, c := range []struct {
		name string
		p    *plan
		want string // of the finding; "" for none
	}{
		{"within all of them", worldOf(shared(500*ms, itemPlan{item: "lot"})), ""},
		{"A1: agents hear a shared scanner further apart than G, in two windows", worldOf(shared(2500*ms, itemPlan{item: "lot"})), "I1: movement 0 has 2 rows"},
		{"A2: a transmission comes W after the first acceptance", worldOf(alone(itemPlan{item: "lot", bounces: []time.Duration{3000 * ms}})), "I1: movement 0 has 2 rows"},
		{"A2: a moment sooner it is one", worldOf(alone(itemPlan{item: "lot", bounces: []time.Duration{2999 * ms}})), ""},
		{"A3: the next movement comes within W: it is told as a duplicate, and has no row", worldOf(alone(itemPlan{item: "lot"}, itemPlan{item: "lot", sooner: true})), ""},
		{"A3: and same again gives it one", worldOf(alone(itemPlan{item: "lot"}, itemPlan{item: "lot", sooner: true, again: true})), ""},
		{"A4: another W at one of two agents", func() *plan {
			p := worldOf(shared(100*ms, itemPlan{item: "lot"}))
			p.nodes[1].policy = func(w *window.Policies) { w[window.Dispense].Width = 2900 * ms }
			return p
		}(), "I1: movement 0 has 2 rows"},
		{"A7: the ledger loses what it has acknowledged", func() *plan {
			p := worldOf(alone(itemPlan{item: "lot"}))
			p.faults = []faultPlan{{at: 5 * time.Second, kind: "rows lost"}}
			return p
		}(), "movement 0 was told as accepted, and has no row"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, w := play(t, c.p, ramDisk(t)+"/run", true)
			if found != c.want && (c.want == "" || !strings.HasPrefix(found, c.want)) {
				t.Fatalf("found %q, want %q\n%s", found, c.want, w.history())
			}
			if !strings.HasPrefix(c.name, "A3") {
				return
			}
			rows, told := 1, w.oracle.movements[1].told
			if c.p.users[0].items[1].again {
				rows = 2
			}
			if len(w.rows.order) != rows || !told {
				t.Errorf("%d rows, the second movement told as a duplicate: %v\n%s", len(w.rows.order), told, w.history())
			}
		})
	}
}
