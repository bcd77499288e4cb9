package forward_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// trial is a testing.TB of one run of a property.
type trial struct {
	testing.TB
	rt  *rapid.T
	end []func()
}

func (t *trial) Helper()                           {}
func (t *trial) Cleanup(f func())                  { t.end = append(t.end, f) }
func (t *trial) Error(args ...any)                 { t.rt.Error(args...) }
func (t *trial) Errorf(format string, args ...any) { t.rt.Errorf(format, args...) }
func (t *trial) Fatal(args ...any)                 { t.rt.Fatal(args...) }
func (t *trial) Fatalf(format string, args ...any) { t.rt.Fatalf(format, args...) }

func (t *trial) close() {
	for _, f := range slices.Backward(t.end) {
		f()
	}
}

// asked is an operation that an agent has accepted.
type asked struct {
	id      idem.EventID
	agent   int
	subject string // a claim, or "pa"
	put     *claimstate.New
	scan    bool // the put is what a scan asks for
	advance *forward.Advance
	pend    *pacase.Pend
	move    *pacase.Transition
	queued  bool
	told    string // at once
	again   bool   // asked again after its effect
}

// effect is what an operation came to in a store, as the servers saw it.
type effect struct {
	id      idem.EventID
	changed bool
}

// record keeps the effects of operations in their order, beneath all faults.
type record struct {
	effects  []effect
	versions map[string]int64
	fell     string // what has gone back to an older version
}

func (r *record) note(id idem.EventID, changed bool, subject string, version int64) {
	r.effects = append(r.effects, effect{id, changed})
	if version < r.versions[subject] {
		r.fell = subject
	}
	r.versions[subject] = max(version, r.versions[subject])
}

type recordedClaims struct {
	claimstate.Store
	*record
}

func (s recordedClaims) PutNew(ctx context.Context, n claimstate.New) (claimstate.Put, error) {
	p, err := s.Store.PutNew(ctx, n)
	if err == nil {
		id, _ := idem.ParseEventID(n.OpID)
		is := func(changed bool) func(claimstate.State) {
			return func(c claimstate.State) { s.note(id, changed, c.CorrelationID, c.Version) }
		}
		p.Match(is(true), is(false), is(false))
	}
	return p, err
}

func (s recordedClaims) Advance(ctx context.Context, m claimstate.Move) (claimstate.Advance, error) {
	a, err := s.Store.Advance(ctx, m)
	if err == nil {
		id, _ := idem.ParseEventID(m.OpID)
		is := func(changed bool) func(claimstate.State) {
			return func(c claimstate.State) { s.note(id, changed, c.CorrelationID, c.Version) }
		}
		a.Match(is(true), is(false), is(false), func() { s.note(id, false, "", 0) })
	}
	return a, err
}

type recordedCases struct {
	pacase.Store
	*record
}

func (s recordedCases) Pend(ctx context.Context, p pacase.Pend) (pacase.Pended, error) {
	out, err := s.Store.Pend(ctx, p)
	if err == nil {
		s.note(idem.EventID(p.Event), true, out.Case.ID, int64(out.Case.Version))
	}
	return out, err
}

func (s recordedCases) Transition(ctx context.Context, t pacase.Transition) (pacase.Transitioned, error) {
	out, err := s.Store.Transition(ctx, t)
	if err == nil {
		is := func(changed bool) func(pacase.Case) {
			return func(c pacase.Case) { s.note(idem.EventID(t.Op), changed, c.ID, int64(c.Version)) }
		}
		out.Match(is(true), is(false), is(false), is(false), is(false), func() { s.note(idem.EventID(t.Op), false, "", 0) })
	}
	return out, err
}

// online is what claims and cases come to if one operation follows another, and no store is ever away.
type online struct {
	claims map[string]claimstate.State
	cases  map[string]*pacase.Case
	refs   map[string]string // id → case
}

func newOnline() *online {
	return &online{claims: map[string]claimstate.State{}, cases: map[string]*pacase.Case{}, refs: map[string]string{}}
}

var nodes = []claimstate.Node{claimstate.Ingested, claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified, claimstate.PricingCalculated}

// do does an operation and says what came of it.
func (o *online) do(a *asked) string {
	switch {
	case a.put != nil:
		c, there := o.claims[a.subject]
		switch {
		case !there:
			o.claims[a.subject] = claimstate.State{CorrelationID: a.subject, Node: claimstate.Ingested, Version: 1, RxRefToken: a.put.RxRefToken, IngredientCost: a.put.IngredientCost}
			return "done"
		case a.scan && c.RxRefToken == a.put.RxRefToken:
			return "done"
		}
		return "conflict"
	case a.advance != nil:
		c, there := o.claims[a.subject]
		if !there || c.Version != a.advance.Version || c.Version >= int64(len(nodes)) || nodes[c.Version] != a.advance.To {
			return "conflict"
		}
		c.Node, c.Version = a.advance.To, c.Version+1
		o.claims[a.subject] = c
		return "done"
	case a.pend != nil:
		id := a.pend.DerivedID()
		if _, known := o.refs[id]; known {
			return "done"
		}
		if c := o.open(a.pend.MemberToken); c != nil {
			o.refs[id] = c.ID
			return "done"
		}
		o.refs[id] = id
		o.cases[id] = &pacase.Case{ID: id, MemberToken: a.pend.MemberToken, State: pacase.Pending, Version: 1, LastOp: a.pend.Event}
		return "created"
	}
	c := o.cases[o.refs[a.move.ID]]
	if c == nil || c.Version != a.move.Expected || !c.State.May(a.move.To) {
		return "conflict"
	}
	if other := o.open(c.MemberToken); a.move.To.Open() && other != nil && other != c {
		return "conflict"
	}
	c.State, c.Version, c.LastOp = a.move.To, c.Version+1, a.move.Op
	return "done"
}

func (o *online) open(member string) *pacase.Case {
	for _, c := range o.cases {
		if c.MemberToken == member && c.State.Open() {
			return c
		}
	}
	return nil
}

// history is a random one of some agents.
type history struct {
	t       *trial
	s       *shelf
	rec     *record
	agents  []*depot
	gates   [][3]*gate // of claims, cases and the ledger, as each agent reaches them
	ops     []*asked
	by      map[idem.EventID]*asked
	bottles int
	hope    *online // what the operations come to if each is done at once
}

var days = []string{"2026-07-16", "2026-07-17", "2026-07-18"}

// Operations of hours, at two or three agents whose ways to three stores fail independently, with lost replies, kills
// and any order of replay that the courier may choose: claims and cases end as if the operations had followed each
// other online, in an order that keeps each agent's, for each claim and over all cases. Each is done or is a conflict.
func TestCourierConverges(t *testing.T) {
	dir := memory(t)
	n := 0
	queued, conflicts, lost, all := 0, 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		x := &trial{TB: t, rt: rt}
		defer x.close()
		h := newHistory(x, filepath.Join(dir, fmt.Sprint(n)), rapid.IntRange(2, 3).Draw(rt, "agents"))
		for step := range rapid.IntRange(40, 120).Draw(rt, "steps") {
			h.step(rt, step)
		}
		h.finish()
		for _, a := range h.ops {
			all++
			if a.queued {
				queued++
			}
			if a.again {
				lost++
			}
		}
		for _, d := range h.agents {
			conflicts += len(d.spool.Journal().Conflicts())
		}
	})
	t.Logf("%d histories, %d operations: %d by way of the journal, %d of them conflicts, %d asked again after their effect", n, all, queued, conflicts, lost)
	if queued == 0 || conflicts == 0 || lost == 0 {
		t.Error("this test has lost its premise")
	}
}

func newHistory(t *trial, dir string, agents int) *history {
	const life = 720 * time.Hour // nothing comes to its end meanwhile
	at := newMoment()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := newShelf(t, dir, at, claimstate.Lives{TTL: life, Pend: life})
	h := &history{t: t, s: s, rec: &record{versions: map[string]int64{}}, by: map[idem.EventID]*asked{}, hope: newOnline()}
	for i := range agents {
		g := [3]*gate{{}, {}, {}}
		d := newDepot(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint("agent-", i), at, gatedLedger{s.ledger.Ledger, g[2]},
			gatedClaims{recordedClaims{s.claims.Store, h.rec}, g[0]}, gatedCases{recordedCases{s.cases.Store, h.rec}, g[1]})
		d.cfg.Random, d.cfg.Together, d.cfg.ClaimLife = lastOf, inOrder, life
		d.renew()
		h.agents, h.gates = append(h.agents, d), append(h.gates, g)
	}
	return h
}

func (h *history) step(rt *rapid.T, step int) {
	h.s.at.pass(time.Duration(rapid.IntRange(1, 10*60*1000).Draw(rt, "pass")) * time.Millisecond)
	i := rapid.IntRange(0, len(h.agents)-1).Draw(rt, "agent")
	d, g := h.agents[i], h.gates[i]
	switch act := rapid.IntRange(0, 19).Draw(rt, "act"); {
	case act < 9:
		h.ask(rt, step, i)
	case act < 11:
		h.scan(rt, i)
	case act < 14:
		which := g[rapid.IntRange(0, 2).Draw(rt, "store")]
		if rapid.Bool().Draw(rt, "away") {
			which.shut(errAway)
		} else {
			which.shut(nil)
		}
	case act < 15:
		h.lose(g[rapid.IntRange(0, 1).Draw(rt, "store")], nil)
	case act < 18:
		if l := d.courier.Lanes()[rapid.IntRange(0, 2).Draw(rt, "lane")]; true {
			d.courier.Turn(h.t.Context(), l)
		}
	case act < 19: // killed behind a store's answer
		ctx, cancel := context.WithCancel(h.t.Context())
		which := rapid.IntRange(0, 1).Draw(rt, "store")
		h.lose(g[which], cancel)
		d.courier.Turn(ctx, []forward.Lane{forward.Claims, forward.Cases}[which])
		cancel()
		g[which].set(func(g *gate) { g.lose = nil })
		d.again()
	default:
		d.again()
	}
}

// lose loses the next reply with an effect; killed is called instead, if given.
func (h *history) lose(g *gate, killed func()) {
	g.set(func(g *gate) {
		g.lose = func(what string) bool {
			if what == "ping" || what[:4] == "get " {
				return false
			}
			g.lose = nil
			if killed != nil {
				killed()
			}
			return killed == nil
		}
	})
}

// accept notes an operation and has it asked for; do says in a word what is told.
func (h *history) accept(a *asked, do func() string) {
	h.ops = append(h.ops, a)
	h.by[a.id] = a
	h.hope.do(a)
	a.told = do()
	a.queued = a.told == "queued"
}

func (h *history) ask(rt *rapid.T, step, i int) {
	d := h.agents[i]
	a := &asked{id: eventOf("op", step), agent: i}
	claim := rapid.IntRange(0, 2).Draw(rt, "claim")
	token := claimToken(claim)
	version := int64(rapid.IntRange(1, 4).Draw(rt, "version"))
	id := forward.ClaimOf(string(token))
	hopeful := rapid.IntRange(0, 3).Draw(rt, "hopeful") > 0
	if v := h.hope.claims[id].Version; hopeful && v > 0 && v < int64(len(nodes)) {
		version = v
	}
	member := string(rune('a' + rapid.IntRange(0, 1).Draw(rt, "member")))
	day := days[rapid.IntRange(0, min(len(days)-1, step/15)).Draw(rt, "day")]
	switch kind := rapid.IntRange(0, 9).Draw(rt, "kind"); {
	case kind < 1:
		a.subject = id
		a.put = &claimstate.New{CorrelationID: id, RxRefToken: token, IngredientCost: "42.10", OpID: a.id.String()}
		h.accept(a, func() string { return d.putAs(a.id, id, token) })
	case kind < 5:
		to := nodes[version]
		if rapid.IntRange(0, 7).Draw(rt, "skip") == 0 {
			to = claimstate.PAEvaluated
		}
		a.subject = id
		a.advance = &forward.Advance{CorrelationID: id, Version: version, To: to, Op: a.id}
		h.accept(a, func() string { return d.advanceAs(a.id, id, version, to) })
	case kind < 7:
		a.subject = "pa"
		p := pend(a.id, member, day)
		a.pend = &p
		h.accept(a, func() string { _, word := d.pend(a.id, member, day); return word })
		if rapid.IntRange(0, 3).Draw(rt, "again") == 0 { // the caller's own retry
			d.pend(a.id, member, day)
		}
	default:
		a.subject = "pa"
		to := []pacase.State{pacase.InReview, pacase.InReview, pacase.Approved, pacase.Denied, pacase.Appealed}[rapid.IntRange(0, 4).Draw(rt, "to")]
		expected := map[pacase.State]int{pacase.InReview: 1, pacase.Approved: 2, pacase.Denied: 2, pacase.Appealed: 3}[to]
		asks := question(member, day).DerivedID()
		if c := h.hope.cases[h.hope.refs[asks]]; hopeful && c != nil {
			expected = c.Version
			for n := 0; n < len(pacase.States()) && !c.State.May(to); n++ {
				to = pacase.States()[int(to)%len(pacase.States())]
			}
		}
		a.move = &pacase.Transition{ID: asks, Expected: expected, To: to, Op: pacase.UUID(a.id)}
		h.accept(a, func() string { return d.move(a.id, a.move.ID, expected, to) })
	}
}

// scan accepts a bottle, and perhaps drains the spool.
func (h *history) scan(rt *rapid.T, i int) {
	if rapid.Bool().Draw(rt, "bottle") {
		token := claimToken(rapid.IntRange(0, 2).Draw(rt, "fill"))
		h.bottles++
		r := h.agents[i].scan(fmt.Sprint("B", h.bottles), token, window.Dispense)
		id := forward.ClaimOf(string(token))
		a := &asked{id: r.Event, agent: i, subject: id, scan: true, queued: true, told: "queued", put: &claimstate.New{CorrelationID: id, RxRefToken: token, IngredientCost: "0.00"}}
		h.ops = append(h.ops, a)
		h.by[a.id] = a
		return
	}
	h.agents[i].settle()
}

// finish ends all outages, lets the agents carry what they have, and compares.
func (h *history) finish() {
	t := h.t
	for i, d := range h.agents {
		for _, g := range h.gates[i] {
			g.set(func(g *gate) { g.away, g.lose = nil, nil })
		}
		d.settle()
	}
	for range 3 {
		for _, d := range h.agents {
			d.carry()
		}
	}
	if h.rec.fell != "" {
		t.Errorf("%s has gone back to an older version", h.rec.fell)
	}
	// The place of an operation in the order is where it had its effect, or where it was judged the last time.
	place, changed := map[idem.EventID]int{}, map[idem.EventID]bool{}
	for n, e := range h.rec.effects {
		if !changed[e.id] {
			place[e.id], changed[e.id] = n, e.changed
		} else {
			h.by[e.id].again = true
		}
	}
	outcome := map[idem.EventID]string{}
	for _, d := range h.agents {
		for i := range d.told.outcomes {
			o := &d.told.outcomes[i]
			outcome[o.ID] = "done"
			if o.Conflict {
				outcome[o.ID] = "conflict"
			} else if o.Created {
				outcome[o.ID] = "created"
			}
		}
		if n := d.spool.Journal().Pending(); n != 0 {
			t.Errorf("%s: %d operations wait still", d.agent, n)
		}
		kept := d.spool.Journal().Conflicts()
		for _, a := range h.ops {
			is := slices.ContainsFunc(kept, func(c spool.Conflict) bool { return c.ID == a.id })
			if h.agents[a.agent] == d && is != (a.queued && outcome[a.id] == "conflict") {
				t.Errorf("%s: %v is kept as a conflict: %v, told %q", d.agent, a.id, is, outcome[a.id])
			}
		}
	}
	for _, a := range h.ops {
		if !a.queued {
			outcome[a.id] = map[string]string{"created": "done", "already mine": "done", "advanced": "done", "moved": "done", "attached": "done"}[a.told]
			if outcome[a.id] == "" {
				outcome[a.id] = "conflict"
			}
			if a.pend != nil && a.told == "created" {
				outcome[a.id] = "created"
			}
		}
		if outcome[a.id] == "" {
			t.Errorf("nothing is told of %+v", a)
		}
	}
	order := slices.Clone(h.ops)
	order = slices.DeleteFunc(order, func(a *asked) bool { _, ok := place[a.id]; return !ok }) // no store was asked: no claim, an illegal move, another bottle
	last := map[string]*asked{}
	for _, a := range order {
		key := fmt.Sprint(a.agent, a.subject)
		if before := last[key]; before != nil && place[before.id] > place[a.id] {
			t.Errorf("agent %d: of %s, an operation was overtaken by one behind it (%s, %s)", a.agent, a.subject, outcome[before.id], outcome[a.id])
		}
		last[key] = a
	}
	slices.SortFunc(order, func(a, b *asked) int { return place[a.id] - place[b.id] })
	m := newOnline()
	creators := map[string]int{}
	for _, a := range order {
		got, want := outcome[a.id], m.do(a)
		if got != want && !(got == "conflict" && want == "done" && changed[a.id] && a.queued) { // its reply was lost, and others have moved on
			t.Errorf("%s of agent %d at place %d is told %q, online %q", a.subject, a.agent, place[a.id], got, want)
		}
		if a.pend != nil && got == "created" {
			creators[m.refs[a.pend.DerivedID()]]++
		}
	}
	h.compare(m, creators)
}

// compare looks at what the stores hold in the end.
func (h *history) compare(m *online, creators map[string]int) {
	t := h.t
	for n := range 3 {
		id := forward.ClaimOf(string(claimToken(n)))
		c, ok, err := h.s.claims.Store.Get(t.Context(), id)
		want, there := m.claims[id]
		if err != nil || ok != there || c.Node != want.Node || c.Version != want.Version || c.IngredientCost != want.IngredientCost {
			t.Errorf("claim %d is %s v%d %s, %v, %v, online %s v%d %s, %v", n, c.Node, c.Version, c.IngredientCost, ok, err, want.Node, want.Version, want.IngredientCost, there)
		}
	}
	for id, of := range m.refs {
		c, ok, err := h.s.cases.Store.Get(t.Context(), id)
		want := m.cases[of]
		if err != nil || !ok || c.ID != of || c.State != want.State || c.Version != want.Version || c.LastOp != want.LastOp {
			t.Errorf("%s leads to %s %s v%d, %v, %v, online to %s %s v%d", id, c.ID, c.State, c.Version, ok, err, of, want.State, want.Version)
		}
	}
	for id := range m.cases {
		if creators[id] != 1 {
			t.Errorf("%d are told that they opened the case %s", creators[id], id)
		}
	}
	if len(creators) != len(m.cases) {
		t.Errorf("creators of %v, cases %v", creators, slices.Collect(maps.Keys(m.cases)))
	}
}
