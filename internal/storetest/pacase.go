package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"scanonce/sync/pacase"
)

// PACaseFixture is a fresh, empty store of prior-authorization cases.
type PACaseFixture struct {
	// Open opens the store; again after a Close, it opens the same one.
	Open func(tb testing.TB) pacase.Store
	// Shared says that several handles may be open at once, as those of several agents are.
	Shared bool
	// Count counts the cases from behind the store.
	Count func(tb testing.TB) int
	// LoseReply makes the handles lose the reply to some request soon, so that a call fails and nobody knows
	// whether it was done; nil where no reply can be lost.
	LoseReply func(tb testing.TB)
}

// handles returns n of them, all the same where only one may be open.
func (f PACaseFixture) handles(tb testing.TB, n int) []pacase.Store {
	h := []pacase.Store{f.Open(tb)}
	for len(h) < n {
		if f.Shared {
			h = append(h, f.Open(tb))
		} else {
			h = append(h, h[0])
		}
	}
	return h
}

type paCase struct {
	name string
	run  func(tb testing.TB, f PACaseFixture)
}

// PACase runs the suite. open makes a fixture with a store of its own for every case; the fixture closes what
// is left open.
func PACase(t *testing.T, open func(tb testing.TB) PACaseFixture) {
	for _, c := range paCases() {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func paCases() []paCase {
	return []paCase{
		{"created", paCreated},
		{"same event again", paSameEvent},
		{"later attempt", paLaterAttempt},
		{"same question", paSameQuestion},
		{"next day, open", paNextDayOpen},
		{"next day, decided", paNextDayDecided},
		{"same window, decided", paSameWindowDecided},
		{"late pend", paLate},
		{"every id resolves", paResolves},
		{"questions apart", paApart},
		{"reused event", paReused},
		{"bad requests", paBad},
		{"moves", paAllMoves},
		{"stale writer", paStale},
		{"own replay", paReplay},
		{"appeal", paAppeal},
		{"missing", paMissing},
		{"64 pending one", paConcurrent},
		{"64 across midnight", paMidnight},
		{"appeals race pends", paAppealRace},
		{"16 deciding one", paDecideRace},
		{"random histories", paHistories},
		{"cancelled", paCancelled},
		{"restart", paRestart},
		{"closed", paClosed},
	}
}

const (
	paGPI = "27100010100320"
	day1  = "2026-07-17"
	day2  = "2026-07-18"
	day3  = "2026-07-19"
)

// rounds of a race: fewer where each write costs an fsync and one handle is all that can race.
func (f PACaseFixture) rounds() int {
	if f.Shared {
		return 50
	}
	return 10
}

// paID is the n-th event or operation.
func paID(n int) pacase.UUID { return pacase.UUID(eventID(n)) }

// ask is event e's pend for a member in a window.
func ask(e int, member, window string) pacase.Pend {
	return pacase.Pend{Event: paID(e), Question: pacase.Question{MemberToken: member, GPI: paGPI, Window: window}}
}

func mustPend(tb testing.TB, s pacase.Store, p pacase.Pend) pacase.Pended {
	tb.Helper()
	out, err := s.Pend(tb.Context(), p)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// move makes a transition and returns the answer in words, "moved" for example, with the case it names.
func move(tb testing.TB, s pacase.Store, t pacase.Transition) (string, pacase.Case) {
	tb.Helper()
	a, err := s.Transition(tb.Context(), t)
	if err != nil {
		tb.Fatal(err)
	}
	return moveAnswer(a)
}

func moveAnswer(a pacase.Transitioned) (word string, named pacase.Case) {
	say := func(w string) func(pacase.Case) {
		return func(c pacase.Case) { word, named = w, c }
	}
	a.Match(say("moved"), say("already mine"), say("conflict"), say("other open"), say("illegal"), func() { word = "missing" })
	return word, named
}

// mustMove brings a case through the states.
func mustMove(tb testing.TB, s pacase.Store, c pacase.Case, to ...pacase.State) pacase.Case {
	tb.Helper()
	for _, st := range to {
		word, next := move(tb, s, pacase.Transition{ID: c.ID, Expected: c.Version, To: st, Op: paOp(c, st)})
		if word != "moved" || next.State != st || next.Version != c.Version+1 || next.ID != c.ID {
			tb.Fatalf("from %s to %s: %s %+v", c.State, st, word, next)
		}
		c = next
	}
	return c
}

// paOp is an operation of its own for a move of a case.
func paOp(c pacase.Case, to pacase.State) pacase.UUID {
	h := hash("op "+c.ID, c.Version<<8|int(to))
	return pacase.UUID(h[:16])
}

func mustGet(tb testing.TB, s pacase.Store, id string) pacase.Case {
	tb.Helper()
	c, ok, err := s.Get(tb.Context(), id)
	if err != nil || !ok {
		tb.Fatalf("get %s: %v, %v", id, ok, err)
	}
	return c
}

func expectPended(tb testing.TB, got pacase.Pended, caseID string, state pacase.State, version int, created bool) {
	tb.Helper()
	if got.Case.ID != caseID || got.Case.State != state || got.Case.Version != version || got.Created != created {
		tb.Errorf("pended: case %s, %s, version %d, created %v; want %s, %s, %d, %v",
			got.Case.ID, got.Case.State, got.Case.Version, got.Created, caseID, state, version, created)
	}
}

func expectCases(tb testing.TB, f PACaseFixture, want int) {
	tb.Helper()
	if n := f.Count(tb); n != want {
		tb.Errorf("%d cases, want %d", n, want)
	}
}

func paCreated(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	if err := h[0].Ping(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	p := ask(1, "MTOK_9f2a", day1)
	got := mustPend(tb, h[0], p)
	const golden = "1d12207def3071d4c706b6279fb28084"
	if got.RequestedID != golden {
		tb.Errorf("requested id %s, want %s", got.RequestedID, golden)
	}
	expectPended(tb, got, golden, pacase.Pending, 1, true)
	c := got.Case
	if c.MemberToken != p.MemberToken || c.GPI != p.GPI || c.Window != p.Window || c.CreatedBy != p.Event || c.LastOp != p.Event ||
		c.CreatedAt == 0 || c.UpdatedAt != c.CreatedAt {
		tb.Errorf("case %+v", c)
	}
	if again := mustGet(tb, h[1], golden); again != c {
		tb.Errorf("read as %+v, pended as %+v", again, c)
	}
	expectCases(tb, f, 1)
	c = mustMove(tb, h[1], c, pacase.InReview)
	if c.UpdatedAt == 0 || c.CreatedBy != p.Event || c.Window != p.Window {
		tb.Errorf("moved case %+v", c)
	}
	if again := mustGet(tb, h[0], golden); again != c {
		tb.Errorf("read as %+v, moved to %+v", again, c)
	}
	// Hours are windows as well, and a part of a GPI is a drug.
	q := ask(2, "MTOK_9f2a", "2026-07-17T12:00Z/PT6H")
	q.GPI = "2710"
	if got := mustPend(tb, h[0], q); !got.Created || got.Case.GPI != "2710" || got.Case.Window != q.Window {
		tb.Errorf("pended %+v", got)
	}
}

func paSameEvent(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	first := mustPend(tb, h[0], ask(1, "M-1", day1))
	second := mustPend(tb, h[0], ask(2, "M-1", day1))
	for i := range 3 { // the reply was lost: the winner stays the winner, whatever has become of the case
		expectPended(tb, mustPend(tb, h[i%2], ask(1, "M-1", day1)), first.Case.ID, pacase.Pending, 1, true)
		expectPended(tb, mustPend(tb, h[i%2], ask(2, "M-1", day1)), first.Case.ID, pacase.Pending, 1, false)
	}
	mustMove(tb, h[0], first.Case, pacase.InReview, pacase.Approved)
	expectPended(tb, mustPend(tb, h[1], ask(1, "M-1", day1)), first.Case.ID, pacase.Approved, 3, true)
	expectPended(tb, mustPend(tb, h[1], ask(2, "M-1", day1)), first.Case.ID, pacase.Approved, 3, false)
	// A retry after midnight, with a window computed anew, is still the same event.
	retry := mustPend(tb, h[1], ask(1, "M-1", day2))
	expectPended(tb, retry, first.Case.ID, pacase.Approved, 3, true)
	if retry.RequestedID != first.RequestedID || second.RequestedID != first.RequestedID {
		tb.Errorf("requested ids %s, %s, %s", first.RequestedID, second.RequestedID, retry.RequestedID)
	}
	expectCases(tb, f, 1)
}

// The first attempt's answer was lost, and a later one was queued and told the derived id of its own day: that leads to
// the event's case too, unless it leads to another one already.
func paLaterAttempt(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	first := mustPend(tb, h[0], ask(1, "M-1", day1))
	later := ask(1, "M-1", day2)
	for range 2 {
		if got := mustPend(tb, h[1], later); got.RequestedID != first.RequestedID || !got.Created {
			tb.Errorf("the later attempt: %+v", got)
		}
		if c := mustGet(tb, h[0], later.DerivedID()); c != first.Case {
			tb.Errorf("its id leads to %+v", c)
		}
	}
	// It is a reference like any other: of a question, and for a transition.
	word, c := move(tb, h[0], pacase.Transition{ID: later.DerivedID(), Expected: 1, To: pacase.InReview, Op: paID(100)})
	if word != "moved" || c.ID != first.Case.ID {
		tb.Errorf("by the later id: %s %+v", word, c)
	}
	mustMove(tb, h[0], c, pacase.Denied)
	expectPended(tb, mustPend(tb, h[1], ask(2, "M-1", day2)), first.Case.ID, pacase.Denied, 3, false)
	// What somebody else has asked on that day meanwhile keeps its case.
	other := mustPend(tb, h[0], ask(3, "M-1", day3))
	expectPended(tb, other, other.RequestedID, pacase.Pending, 1, true)
	expectPended(tb, mustPend(tb, h[1], ask(1, "M-1", day3)), first.Case.ID, pacase.Denied, 3, true)
	if c := mustGet(tb, h[0], other.RequestedID); c != other.Case {
		tb.Errorf("the other's id leads to %+v", c)
	}
	// A reused event refers to nothing.
	wrong := ask(1, "M-2", day2)
	if got, err := h[0].Pend(tb.Context(), wrong); err == nil {
		tb.Errorf("a reused event: %+v", got)
	}
	if c, ok, err := h[1].Get(tb.Context(), wrong.DerivedID()); ok || err != nil {
		tb.Errorf("its id leads to %+v, %v", c, err)
	}
	expectCases(tb, f, 2)
}

func paSameQuestion(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	first := mustPend(tb, h[0], ask(1, "M-1", day1))
	for e := 2; e < 5; e++ {
		expectPended(tb, mustPend(tb, h[e%2], ask(e, "M-1", day1)), first.Case.ID, pacase.Pending, 1, false)
	}
	mustMove(tb, h[1], first.Case, pacase.InReview)
	expectPended(tb, mustPend(tb, h[0], ask(5, "M-1", day1)), first.Case.ID, pacase.InReview, 2, false)
	expectCases(tb, f, 1)
}

func paNextDayOpen(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	first := mustPend(tb, s, ask(1, "M-1", day1))
	next := mustPend(tb, s, ask(2, "M-1", day2))
	expectPended(tb, next, first.Case.ID, pacase.Pending, 1, false)
	if next.RequestedID == first.RequestedID {
		tb.Error("two days have one derived id")
	}
	c := mustMove(tb, s, first.Case, pacase.InReview)
	expectPended(tb, mustPend(tb, s, ask(3, "M-1", day3)), first.Case.ID, pacase.InReview, 2, false)
	// An appealed case is open again.
	mustMove(tb, s, c, pacase.Denied, pacase.Appealed)
	expectPended(tb, mustPend(tb, s, ask(4, "M-1", "2026-07-20")), first.Case.ID, pacase.Appealed, 4, false)
	expectCases(tb, f, 1)
}

// decisions are the ways to each state that is not open.
func decisions() map[pacase.State][]pacase.State {
	return map[pacase.State][]pacase.State{
		pacase.Approved:  {pacase.InReview, pacase.Approved},
		pacase.Denied:    {pacase.InReview, pacase.Denied},
		pacase.Cancelled: {pacase.InReview, pacase.Cancelled},
		pacase.Expired:   {pacase.InReview, pacase.Expired},
	}
}

func paNextDayDecided(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	e := 0
	for state, way := range decisions() {
		member := "MTOK_" + state.String()
		first := mustPend(tb, s, ask(e, member, day1))
		mustMove(tb, s, first.Case, way...)
		next := mustPend(tb, s, ask(e+1, member, day2))
		expectPended(tb, next, next.RequestedID, pacase.Pending, 1, true)
		if next.Case.ID == first.Case.ID {
			tb.Errorf("a case that is %s takes a new day's question", state)
		}
		expectPended(tb, mustPend(tb, s, ask(e+2, member, day3)), next.Case.ID, pacase.Pending, 1, false)
		e += 3
	}
	expectCases(tb, f, 2*len(decisions()))
}

func paSameWindowDecided(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	e := 0
	for state, way := range decisions() {
		member := "MTOK_" + state.String()
		first := mustPend(tb, s, ask(e, member, day1))
		mustMove(tb, s, first.Case, way...)
		expectPended(tb, mustPend(tb, s, ask(e+1, member, day1)), first.Case.ID, state, 3, false)
		e += 2
	}
	expectCases(tb, f, len(decisions()))
}

// A pend that comes days late, from a workstation that was cut off, finds the decision of its own day.
func paLate(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	first := mustPend(tb, s, ask(1, "M-1", day1))
	mustMove(tb, s, first.Case, pacase.InReview, pacase.Denied)
	second := mustPend(tb, s, ask(2, "M-1", day2))
	expectPended(tb, mustPend(tb, s, ask(3, "M-1", day1)), first.Case.ID, pacase.Denied, 3, false)
	expectPended(tb, mustPend(tb, s, ask(4, "M-1", day2)), second.Case.ID, pacase.Pending, 1, false)
	// Day 3 was attached to day 2's case, and keeps its decision.
	mustPend(tb, s, ask(5, "M-1", day3))
	mustMove(tb, s, second.Case, pacase.InReview, pacase.Approved)
	third := mustPend(tb, s, ask(6, "M-1", "2026-07-20"))
	expectPended(tb, third, third.RequestedID, pacase.Pending, 1, true)
	expectPended(tb, mustPend(tb, s, ask(7, "M-1", day3)), second.Case.ID, pacase.Approved, 3, false)
	expectCases(tb, f, 3)
}

func paResolves(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	want := map[string]string{}
	for e, w := range []string{day1, day2, day3, day1} {
		got := mustPend(tb, h[0], ask(e, "M-1", w))
		want[got.RequestedID], want[got.Case.ID] = got.Case.ID, got.Case.ID
		if w == day2 {
			mustMove(tb, h[1], got.Case, pacase.InReview, pacase.Denied)
		}
	}
	if len(want) != 3 {
		tb.Errorf("%d ids of three windows", len(want))
	}
	for id, c := range want {
		if got := mustGet(tb, h[1], id); got.ID != c {
			tb.Errorf("%s leads to %s, want %s", id, got.ID, c)
		}
	}
	// A transition takes any of them: an answer without a store has only a derived id.
	q := ask(0, "M-1", day3).Question
	offline, err := q.Offline()
	if err != nil {
		tb.Fatal(err)
	}
	word, c := move(tb, h[0], pacase.Transition{ID: offline.RequestedID(), Expected: 1, To: pacase.InReview, Op: paID(100)})
	if word != "moved" || c.ID != want[offline.RequestedID()] {
		tb.Errorf("by its derived id: %s %+v", word, c)
	}
	expectCases(tb, f, 2)
}

func paApart(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	all := []pacase.Question{
		{MemberToken: "M-1", GPI: paGPI, Window: day1},
		{MemberToken: "M-2", GPI: paGPI, Window: day1},
		{MemberToken: "m-1", GPI: paGPI, Window: day1},
		{MemberToken: "M-1", GPI: "2710001010", Window: day1},
		{MemberToken: "M1|27", GPI: "10", Window: day1},
		{MemberToken: `M1\p27`, GPI: "10", Window: day1},
		{MemberToken: `M1\\p27`, GPI: "10", Window: day1},
		{MemberToken: "M0", GPI: "27", Window: day1},
	}
	for e, q := range all {
		if got := mustPend(tb, s, pacase.Pend{Event: paID(e), Question: q}); !got.Created || got.Case.MemberToken != q.MemberToken || got.Case.GPI != q.GPI {
			tb.Errorf("question %d: %+v", e, got)
		}
	}
	expectCases(tb, f, len(all))
	// The same text, cut in another place.
	if a, b := (pacase.Question{MemberToken: "M1|27", GPI: "10", Window: day1}), (pacase.Question{MemberToken: "M1", GPI: "27|10", Window: day1}); a.DerivedID() == b.DerivedID() ||
		newPAModel("").derive(a) != a.DerivedID() {
		tb.Error("two questions with one id")
	}
	if got, want := mustPend(tb, s, pacase.Pend{Event: paID(50), Question: all[4]}).RequestedID, newPAModel("").derive(all[4]); got != want {
		tb.Errorf("derived id %s, want %s", got, want)
	}
}

func paReused(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	mustPend(tb, s, ask(1, "M-1", day1))
	other := ask(1, "M-1", day1)
	other.GPI = "58200060100105"
	for _, p := range []pacase.Pend{ask(1, "M-2", day1), other} {
		var bad *pacase.RequestError
		if got, err := s.Pend(tb.Context(), p); !errors.As(err, &bad) || bad.Field != "event_id" {
			tb.Errorf("an event that asked something else before: %+v, %v", got, err)
		}
	}
	expectCases(tb, f, 1)
}

func paBad(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	c := mustPend(tb, s, ask(1, "M-1", day1)).Case
	for name, spoil := range map[string]func(p *pacase.Pend){
		"event_id":       func(p *pacase.Pend) { p.Event = pacase.UUID{} },
		"member_token":   func(p *pacase.Pend) { p.MemberToken = "W123456789" },
		"gpi":            func(p *pacase.Pend) { p.GPI = "00093721410" },
		"request_window": func(p *pacase.Pend) { p.Window = "today" },
	} {
		p := ask(2, "M-2", day1)
		spoil(&p)
		var bad *pacase.RequestError
		if _, err := s.Pend(tb.Context(), p); !errors.As(err, &bad) || bad.Field != name || bad.Hint == "" {
			tb.Errorf("a pend with a bad %s: %v", name, err)
		}
	}
	for name, spoil := range map[string]func(t *pacase.Transition){
		"no id":      func(t *pacase.Transition) { t.ID = "" },
		"no op":      func(t *pacase.Transition) { t.Op = pacase.UUID{} },
		"version 0":  func(t *pacase.Transition) { t.Expected = 0 },
		"no state":   func(t *pacase.Transition) { t.To = 0 },
		"state 8":    func(t *pacase.Transition) { t.To = 8 },
		"huge":       func(t *pacase.Transition) { t.Expected = 1 << 40 },
		"NUL in id":  func(t *pacase.Transition) { t.ID = "a\x00" },
		"not UTF-8":  func(t *pacase.Transition) { t.ID = "\xff" },
		"long id":    func(t *pacase.Transition) { t.ID = strings.Repeat("a", 1000) },
		"version -1": func(t *pacase.Transition) { t.Expected = -1 },
	} {
		t := pacase.Transition{ID: c.ID, Expected: 1, To: pacase.InReview, Op: paID(9)}
		spoil(&t)
		var bad *pacase.RequestError
		if _, err := s.Transition(tb.Context(), t); !errors.As(err, &bad) {
			tb.Errorf("a transition with %s: %v", name, err)
		}
	}
	expectCases(tb, f, 1)
	if got := mustGet(tb, s, c.ID); got != c {
		tb.Errorf("bad requests made %+v of %+v", got, c)
	}
}

// ways lead a new case to each state.
func ways() map[pacase.State][]pacase.State {
	w := decisions()
	w[pacase.Pending] = nil
	w[pacase.InReview] = []pacase.State{pacase.InReview}
	w[pacase.Appealed] = []pacase.State{pacase.InReview, pacase.Denied, pacase.Appealed}
	return w
}

func paAllMoves(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	e, moves := 0, 0
	for from, way := range ways() {
		for _, to := range pacase.States() {
			e++
			c := mustPend(tb, s, ask(e, fmt.Sprintf("M-%d", e), day1)).Case
			c = mustMove(tb, s, c, way...)
			word, got := move(tb, s, pacase.Transition{ID: c.ID, Expected: c.Version, To: to, Op: paID(1000 + e)})
			want := "illegal"
			if paLegal(from, to) {
				want = "moved"
				moves++
				c.State, c.Version, c.LastOp, c.UpdatedAt = to, c.Version+1, paID(1000+e), got.UpdatedAt
			}
			if word != want || got != c || mustGet(tb, s, c.ID) != c {
				tb.Errorf("from %s to %s: %s %+v, want %s %+v", from, to, word, got, want, c)
			}
			if to.RejectCode() != "75" && to != pacase.Approved || pacase.Approved.RejectCode() != "" {
				tb.Errorf("reject code %q for %s", to.RejectCode(), to)
			}
		}
	}
	if moves != 8 {
		tb.Errorf("%d legal moves", moves)
	}
}

func paStale(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	seen := mustPend(tb, h[0], ask(1, "M-1", day1)).Case
	c := mustMove(tb, h[1], seen, pacase.InReview, pacase.Denied)
	// Who has seen the case pending may not approve it, nor do anything else to it.
	for i, to := range pacase.States() {
		word, got := move(tb, h[0], pacase.Transition{ID: seen.ID, Expected: seen.Version, To: to, Op: paID(10 + i)})
		if word != "conflict" || got != c {
			tb.Errorf("a stale move to %s: %s %+v", to, word, got)
		}
	}
	// Nor may who claims to have seen more than there is.
	if word, got := move(tb, h[0], pacase.Transition{ID: c.ID, Expected: c.Version + 1, To: pacase.Appealed, Op: paID(30)}); word != "conflict" || got != c {
		tb.Errorf("a move from a version to come: %s %+v", word, got)
	}
	if got := mustGet(tb, h[0], seen.ID); got != c {
		tb.Errorf("stale writers made %+v of %+v", got, c)
	}
}

func paReplay(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	c := mustPend(tb, h[0], ask(1, "M-1", day1)).Case
	review := pacase.Transition{ID: c.ID, Expected: 1, To: pacase.InReview, Op: paID(10)}
	_, reviewed := move(tb, h[0], review)
	for i := range 2 {
		if word, got := move(tb, h[i], review); word != "already mine" || got != reviewed {
			tb.Errorf("the same operation again: %s %+v", word, got)
		}
	}
	// The same operation for something else, or another for the same, is none of it.
	deny := review
	deny.To = pacase.Denied
	if word, _ := move(tb, h[0], deny); word != "conflict" {
		tb.Errorf("another move by the same operation: %s", word)
	}
	other := review
	other.Op = paID(11)
	if word, _ := move(tb, h[0], other); word != "conflict" {
		tb.Errorf("the same move by another operation: %s", word)
	}
	mustMove(tb, h[0], reviewed, pacase.Denied)
	if word, got := move(tb, h[0], review); word != "conflict" || got.State != pacase.Denied {
		tb.Errorf("an operation that others came after: %s %+v", word, got)
	}
}

func paAppeal(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 2)
	denied := mustMove(tb, h[0], mustPend(tb, h[0], ask(1, "M-1", day1)).Case, pacase.InReview, pacase.Denied)
	second := mustPend(tb, h[1], ask(2, "M-1", day2)).Case
	appeal := pacase.Transition{ID: denied.ID, Expected: denied.Version, To: pacase.Appealed, Op: paID(10)}
	if word, got := move(tb, h[0], appeal); word != "other open" || got != second {
		tb.Errorf("an appeal beside an open case: %s %+v", word, got)
	}
	second = mustMove(tb, h[1], second, pacase.InReview)
	if word, got := move(tb, h[0], appeal); word != "other open" || got != second {
		tb.Errorf("an appeal beside a case in review: %s %+v", word, got)
	}
	mustMove(tb, h[1], second, pacase.Denied)
	if word, got := move(tb, h[0], appeal); word != "moved" || got.State != pacase.Appealed || got.ID != denied.ID {
		tb.Errorf("an appeal with none open: %s %+v", word, got)
	}
	// Another member's or another drug's case is no obstacle.
	other := mustMove(tb, h[0], mustPend(tb, h[0], ask(3, "M-2", day1)).Case, pacase.InReview, pacase.Denied)
	p := ask(4, "M-2", day2)
	p.GPI = "2710"
	mustPend(tb, h[0], p)
	mustMove(tb, h[0], other, pacase.Appealed, pacase.Approved)
}

func paMissing(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	mustPend(tb, s, ask(1, "M-1", day1))
	unknown := ask(1, "M-2", day1).Question
	for _, id := range []string{unknown.DerivedID(), "x", "", "\x00", "\xff", strings.Repeat("a", 1000)} {
		if c, ok, err := s.Get(tb.Context(), id); ok || err != nil {
			tb.Errorf("get %q: %+v, %v, %v", id, c, ok, err)
		}
	}
	for _, to := range pacase.States() {
		if word, _ := move(tb, s, pacase.Transition{ID: unknown.DerivedID(), Expected: 1, To: to, Op: paID(9)}); word != "missing" {
			tb.Errorf("a move of no case to %s: %s", to, word)
		}
	}
	expectCases(tb, f, 1)
}

// race runs f at once for each handle, for each of several rounds.
func race(h []pacase.Store, rounds int, f func(round, n int, s pacase.Store)) {
	for round := range rounds {
		var wg sync.WaitGroup
		start := make(chan struct{})
		for n, s := range h {
			wg.Go(func() {
				<-start
				f(round, n, s)
			})
		}
		close(start)
		wg.Wait()
	}
}

// gather collects what racing pends were told.
type gather struct {
	tb      testing.TB
	mu      sync.Mutex
	created map[int]int             // by round
	cases   map[int]map[string]bool // by round
	ids     map[string]string       // id → case
}

func newGather(tb testing.TB) *gather {
	return &gather{tb: tb, created: map[int]int{}, cases: map[int]map[string]bool{}, ids: map[string]string{}}
}

func (g *gather) pend(round int, s pacase.Store, p pacase.Pend) {
	got, err := s.Pend(g.tb.Context(), p)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.tb.Errorf("round %d: %v", round, err)
		return
	}
	if got.Created {
		g.created[round]++
	}
	if g.cases[round] == nil {
		g.cases[round] = map[string]bool{}
	}
	g.cases[round][got.Case.ID] = true
	g.ids[got.RequestedID], g.ids[got.Case.ID] = got.Case.ID, got.Case.ID
}

// one expects one case with one creator in each round.
func (g *gather) one(rounds int, s pacase.Store) {
	g.tb.Helper()
	for round := range rounds {
		if g.created[round] != 1 || len(g.cases[round]) != 1 {
			g.tb.Errorf("round %d: %d cases, %d told that they made it", round, len(g.cases[round]), g.created[round])
		}
	}
	g.resolve(s)
}

func (g *gather) resolve(s pacase.Store) {
	g.tb.Helper()
	for id, c := range g.ids {
		if got := mustGet(g.tb, s, id); got.ID != c {
			g.tb.Errorf("%s leads to %s, want %s", id, got.ID, c)
		}
	}
}

func paConcurrent(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 64)
	rounds := f.rounds()
	g := newGather(tb)
	race(h, rounds, func(round, n int, s pacase.Store) {
		g.pend(round, s, ask(64*round+n, fmt.Sprintf("M-%d", round), day1))
	})
	g.one(rounds, h[0])
	expectCases(tb, f, rounds)
}

func paMidnight(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 64)
	rounds := f.rounds()
	g := newGather(tb)
	race(h, rounds, func(round, n int, s pacase.Store) {
		g.pend(round, s, ask(64*round+n, fmt.Sprintf("M-%d", round), []string{day1, day2}[n%2]))
	})
	g.one(rounds, h[0])
	if len(g.ids) != 2*rounds {
		tb.Errorf("%d ids of two windows a round", len(g.ids))
	}
	expectCases(tb, f, rounds)
}

// Either an appeal opens the denied case again and all pends attach to it, or a pend opens a new one and every
// appeal is told of it.
func paAppealRace(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 16)
	rounds := f.rounds()
	var denied []pacase.Case
	for round := range rounds {
		c := mustPend(tb, h[0], ask(round, fmt.Sprintf("M-%d", round), day1)).Case
		denied = append(denied, mustMove(tb, h[0], c, pacase.InReview, pacase.Denied))
	}
	g := newGather(tb)
	var mu sync.Mutex
	appealed, told := map[int]int{}, map[int]string{}
	race(h, rounds, func(round, n int, s pacase.Store) {
		if n%2 == 0 {
			g.pend(round, s, ask(1000+16*round+n, fmt.Sprintf("M-%d", round), day2))
			return
		}
		a, err := s.Transition(tb.Context(), pacase.Transition{ID: denied[round].ID, Expected: 3, To: pacase.Appealed, Op: paID(5000 + 16*round + n)})
		word, c := moveAnswer(a)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			tb.Errorf("round %d: %v", round, err)
		case word == "moved":
			appealed[round]++
		case word == "other open":
			told[round] = c.ID
		case word != "conflict":
			tb.Errorf("round %d: an appeal was answered with %s", round, word)
		}
	})
	news := 0
	for round := range rounds {
		again := appealed[round] == 1 && g.created[round] == 0 && g.cases[round][denied[round].ID] && told[round] == ""
		fresh := appealed[round] == 0 && g.created[round] == 1 && !g.cases[round][denied[round].ID] && g.cases[round][told[round]]
		if len(g.cases[round]) != 1 || again == fresh {
			tb.Errorf("round %d: appealed %d times, %d new cases, pends at %v, appeals told of %q", round, appealed[round], g.created[round], g.cases[round], told[round])
		}
		news += g.created[round]
	}
	g.resolve(h[0])
	expectCases(tb, f, rounds+news)
}

func paDecideRace(tb testing.TB, f PACaseFixture) {
	h := f.handles(tb, 16)
	rounds := f.rounds()
	var cases []pacase.Case
	for round := range rounds {
		c := mustPend(tb, h[0], ask(round, fmt.Sprintf("M-%d", round), day1)).Case
		cases = append(cases, mustMove(tb, h[0], c, pacase.InReview))
	}
	var mu sync.Mutex
	winners, told := map[int][]pacase.Case{}, map[int]map[pacase.Case]bool{}
	race(h, rounds, func(round, n int, s pacase.Store) {
		to := []pacase.State{pacase.Approved, pacase.Denied}[n%2]
		a, err := s.Transition(tb.Context(), pacase.Transition{ID: cases[round].ID, Expected: 2, To: to, Op: paID(1000 + 16*round + n)})
		word, c := moveAnswer(a)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err != nil:
			tb.Errorf("round %d: %v", round, err)
		case word == "moved":
			winners[round] = append(winners[round], c)
		case word == "conflict":
			if told[round] == nil {
				told[round] = map[pacase.Case]bool{}
			}
			told[round][c] = true
		default:
			tb.Errorf("round %d: %s", round, word)
		}
	})
	for round := range rounds {
		w := winners[round]
		if len(w) != 1 || len(told[round]) != 1 || !told[round][w[0]] || mustGet(tb, h[0], cases[round].ID) != w[0] {
			tb.Errorf("round %d: won by %+v, others told of %+v", round, w, told[round])
		}
	}
}

// plain is a case without its times, for comparing with the model's.
func plain(c pacase.Case) pacase.Case {
	c.CreatedAt, c.UpdatedAt = 0, 0
	return c
}

// paHistories makes random histories of pends, moves, replays of both, lost replies and crashes, and compares
// every answer and the end with the model's.
func paHistories(tb testing.TB, f PACaseFixture) {
	const histories, steps = 8, 80
	m := newPAModel("")
	for n := range histories {
		h := &paHistory{tb: tb, f: f, m: m, s: f.Open(tb), n: n, r: rand.New(rand.NewPCG(7, uint64(n)))}
		for step := range steps {
			h.step(step)
			if tb.Failed() {
				tb.Fatalf("history %d, after step %d: %s", n, step, strings.Join(h.log, "; "))
			}
		}
		for _, id := range h.ids {
			h.get(id)
		}
		if err := h.s.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	expectCases(tb, f, m.count())
}

type paHistory struct {
	tb    testing.TB
	f     PACaseFixture
	m     *paModel
	s     pacase.Store
	n     int
	r     *rand.Rand
	made  int
	ids   []string
	pends []pacase.Pend
	moves []pacase.Transition
	log   []string
}

func (h *paHistory) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// id makes an event or an operation of this history.
func (h *paHistory) id() pacase.UUID {
	h.made++
	x := hash("history", h.n<<16|h.made)
	return pacase.UUID(x[:16])
}

func (h *paHistory) step(n int) {
	switch k := h.r.IntN(20); {
	case k < 6 || n == 0:
		p := ask(0, fmt.Sprintf("M-%d-%d", h.n, h.r.IntN(2)), []string{day1, day2, day3}[min(2, h.r.IntN(1+n/10))])
		p.Event = h.id()
		h.pends = append(h.pends, p)
		h.pend(p)
	case k < 8:
		p := h.pends[h.r.IntN(len(h.pends))]
		if h.r.IntN(2) == 0 { // a later attempt
			p.Window = []string{day1, day2, day3}[h.r.IntN(3)]
			h.ids = append(h.ids, p.DerivedID())
		}
		h.pend(p)
	case k < 16:
		t := pacase.Transition{ID: h.ids[h.r.IntN(len(h.ids))], Op: h.id()}
		c, _ := h.m.get(t.ID)
		t.Expected = max(1, c.Version)
		t.To = pacase.States()[h.r.IntN(7)]
		if next := strings.Fields(paMoves[c.State.String()]); len(next) > 0 && h.r.IntN(4) > 0 {
			t.To, _ = pacase.ParseState(next[h.r.IntN(len(next))])
		}
		if h.r.IntN(6) == 0 {
			t.Expected = 1 + h.r.IntN(4)
		}
		if h.r.IntN(8) == 0 && len(h.moves) > 0 { // an operation that is not its own
			t.Op = h.moves[len(h.moves)-1].Op
		}
		h.moves = append(h.moves, t)
		h.move(t)
	case k < 17 && len(h.moves) > 0:
		h.move(h.moves[h.r.IntN(len(h.moves))])
	case k < 18:
		h.note("crash")
		if err := h.s.Close(); err != nil {
			h.tb.Error(err)
		}
		h.s = h.f.Open(h.tb)
	default:
		h.get(h.ids[h.r.IntN(len(h.ids))])
	}
}

// call makes a call until it is answered, sometimes with its reply lost, and says whether that happened.
func (h *paHistory) call(f func() error) (lost bool) {
	if h.r.IntN(5) == 0 {
		lost = true
		h.note("reply lost")
		if h.f.LoseReply != nil {
			h.f.LoseReply(h.tb)
		}
		var bad *pacase.RequestError
		if err := f(); errors.As(err, &bad) {
			h.tb.Error(err)
		}
	}
	for range 5 {
		err := f()
		if err == nil {
			return lost
		}
		if !lost {
			h.tb.Error(err)
			return lost
		}
	}
	h.tb.Error("no answer after 5 tries")
	return lost
}

func (h *paHistory) pend(p pacase.Pend) {
	h.note("pend %x %s %s", p.Event[:2], p.MemberToken, p.Window)
	var got pacase.Pended
	h.call(func() (err error) { got, err = h.s.Pend(h.tb.Context(), p); return err })
	want, err := h.m.pend(p)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.ids = append(h.ids, got.RequestedID, got.Case.ID)
	got.Case, want.Case = plain(got.Case), plain(want.Case)
	if got != want {
		h.tb.Errorf("pended %+v, want %+v", got, want)
	}
}

func (h *paHistory) move(t pacase.Transition) {
	h.note("move %s %d %s %x", t.ID[:4], t.Expected, t.To, t.Op[:2])
	var got pacase.Transitioned
	lost := h.call(func() (err error) { got, err = h.s.Transition(h.tb.Context(), t); return err })
	wantWord, want := moveAnswer(h.m.transition(t))
	word, c := moveAnswer(got)
	if lost && word == "already mine" && wantWord == "moved" {
		word = "moved"
	}
	if word != wantWord || plain(c) != plain(want) {
		h.tb.Errorf("%s %+v, want %s %+v", word, c, wantWord, want)
	}
}

func (h *paHistory) get(id string) {
	got := mustGet(h.tb, h.s, id)
	if want, ok := h.m.get(id); !ok || plain(got) != plain(want) {
		h.tb.Errorf("got %+v, want %+v", got, want)
	}
}

func paCancelled(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	c := mustPend(tb, s, ask(1, "M-1", day1)).Case
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	_, err := s.Pend(ctx, ask(2, "M-2", day1))
	_, moveErr := s.Transition(ctx, pacase.Transition{ID: c.ID, Expected: 1, To: pacase.InReview, Op: paID(9)})
	_, _, getErr := s.Get(ctx, c.ID)
	for name, err := range map[string]error{"pend": err, "transition": moveErr, "get": getErr, "ping": s.Ping(ctx)} {
		if !errors.Is(err, context.Canceled) {
			tb.Errorf("%s: %v", name, err)
		}
	}
	expectCases(tb, f, 1)
	if got := mustGet(tb, s, c.ID); got != c {
		tb.Errorf("a cancelled call made %+v of %+v", got, c)
	}
}

func paRestart(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	first := mustPend(tb, s, ask(1, "M-1", day1))
	c := mustMove(tb, s, first.Case, pacase.InReview, pacase.Denied)
	second := mustPend(tb, s, ask(2, "M-1", day2))
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	s = f.Open(tb)
	if got := mustGet(tb, s, first.RequestedID); got != c {
		tb.Errorf("after a restart %+v, before %+v", got, c)
	}
	expectPended(tb, mustPend(tb, s, ask(2, "M-1", day2)), second.Case.ID, pacase.Pending, 1, true)
	expectPended(tb, mustPend(tb, s, ask(3, "M-1", day3)), second.Case.ID, pacase.Pending, 1, false)
	expectPended(tb, mustPend(tb, s, ask(1, "M-1", day1)), c.ID, pacase.Denied, 3, true)
	expectCases(tb, f, 2)
}

func paClosed(tb testing.TB, f PACaseFixture) {
	s := f.Open(tb)
	c := mustPend(tb, s, ask(1, "M-1", day1)).Case
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
	_, err := s.Pend(tb.Context(), ask(2, "M-2", day1))
	_, moveErr := s.Transition(tb.Context(), pacase.Transition{ID: c.ID, Expected: 1, To: pacase.InReview, Op: paID(9)})
	_, _, getErr := s.Get(tb.Context(), c.ID)
	for name, err := range map[string]error{"pend": err, "transition": moveErr, "get": getErr, "ping": s.Ping(tb.Context())} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			tb.Errorf("%s of a closed store: %v", name, err)
		}
	}
	expectCases(tb, f, 1)
}
