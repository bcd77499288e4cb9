package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/sync/claimstate"
	"scanonce/window"
)

// ClaimStateFixture is a fresh, empty store of claim state and what a test can do to it. Its claims live by
// ClaimLives.
type ClaimStateFixture struct {
	// Open returns a handle on the store. Where only one can be open, it may return the same again.
	Open func(tb testing.TB) claimstate.Store
	// Now is the store's time.
	Now func() window.UTC
	// Pass lets d pass for the store. What expires may stay physically there.
	Pass func(tb testing.TB, d time.Duration)
	// Margin is how long an expired claim still stands in the way of a new one.
	Margin time.Duration
	// Reopen returns a handle on the store after a restart of the agent.
	Reopen func(tb testing.TB, s claimstate.Store) claimstate.Store
	// Lose loses the reply to the next request that contains part; nil where no reply can be lost.
	Lose func(tb testing.TB, part string)
	// Break makes the store fail under its open handles.
	Break func(tb testing.TB)
}

// ClaimLives are the lives of a fixture's claims.
var ClaimLives = claimstate.Lives{TTL: 15 * time.Minute, Pend: 720 * time.Hour}

type claimStateCase struct {
	name string
	run  func(tb testing.TB, f ClaimStateFixture)
}

// ClaimState runs the suite. open makes a fixture with a store of its own for every case.
func ClaimState(t *testing.T, open func(tb testing.TB) ClaimStateFixture) {
	for _, c := range claimStateCases() {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func claimStateCases() []claimStateCase {
	return []claimStateCase{
		{"created", claimCreated},
		{"create twice", claimCreateTwice},
		{"the whole way", claimWholeWay},
		{"dispatched with a reject code", claimRejected},
		{"missing", claimMissing},
		{"conflict", claimConflict},
		{"own operation", claimOwnOperation},
		{"claims are apart", claimsApart},
		{"64 creators", claimCreators},
		{"64 movers", claimMovers},
		{"64 attempts of one", claimAttempts},
		{"pended or dispatched", claimPendRace},
		{"illegal moves", claimIllegal},
		{"values refused", claimValues},
		{"money", claimMoney},
		{"expiry", claimExpiry},
		{"pended expiry", claimPendedExpiry},
		{"writing renews", claimRenewed},
		{"reading does not renew", claimNotRenewed},
		{"pended lives longer", claimPendedLife},
		{"lost reply to create", claimLostCreate},
		{"lost reply to advance", claimLostAdvance},
		{"restart", claimRestart},
		{"by version alone", claimStep},
		{"cancelled", claimCancelled},
		{"broken", claimBroken},
	}
}

const claimToken = claimstate.Token("rx1.0a1b2c3d.00112233445566778899aabbccddeeff")

func newClaim(id, op string) claimstate.New {
	return claimstate.New{CorrelationID: id, RxRefToken: claimToken, IngredientCost: "42.10", OpID: op}
}

// toldClaim puts a state into words.
func toldClaim(word string, s claimstate.State) string {
	return fmt.Sprintf("%s %s v%d %s %s %s", word, s.Node, s.Version, s.IngredientCost, s.RejectCode, s.OpID)
}

func putAnswer(p claimstate.Put) (word string, s claimstate.State) {
	in := func(w string) func(claimstate.State) { return func(x claimstate.State) { word, s = w, x } }
	p.Match(in("created"), in("already mine"), in("exists"))
	return word, s
}

func advanceAnswer(a claimstate.Advance) (word string, s claimstate.State) {
	in := func(w string) func(claimstate.State) { return func(x claimstate.State) { word, s = w, x } }
	a.Match(in("advanced"), in("already mine"), in("conflict"), func() { word = "missing" })
	return word, s
}

// putClaim expects an answer, and returns its state.
func putClaim(tb testing.TB, s claimstate.Store, n claimstate.New, want string) claimstate.State {
	tb.Helper()
	p, err := s.PutNew(tb.Context(), n)
	if err != nil {
		tb.Fatalf("PutNew(%s, %s): %v", n.CorrelationID, n.OpID, err)
	}
	word, state := putAnswer(p)
	if word != want {
		tb.Fatalf("PutNew(%s, %s) is told %q, want %q", n.CorrelationID, n.OpID, toldClaim(word, state), want)
	}
	return state
}

// advanceClaim expects an answer, and returns its state.
func advanceClaim(tb testing.TB, s claimstate.Store, m claimstate.Move, want string) claimstate.State {
	tb.Helper()
	a, err := s.Advance(tb.Context(), m)
	if err != nil {
		tb.Fatalf("Advance(%s to %s, %s): %v", m.CorrelationID, m.To, m.OpID, err)
	}
	word, state := advanceAnswer(a)
	if word != want {
		tb.Fatalf("Advance(%s to %s, %s) is told %q, want %q", m.CorrelationID, m.To, m.OpID, toldClaim(word, state), want)
	}
	return state
}

// expectClaim compares what Get returns with want, but for the end of its life.
func expectClaim(tb testing.TB, s claimstate.Store, want claimstate.State) {
	tb.Helper()
	got, ok, err := s.Get(tb.Context(), want.CorrelationID)
	if err != nil || !ok {
		tb.Fatalf("Get(%s) is %v, %v", want.CorrelationID, ok, err)
	}
	got.ExpiresAt, want.ExpiresAt = 0, 0
	if got != want {
		tb.Errorf("Get(%s) is\n%+v, want\n%+v", want.CorrelationID, got, want)
	}
}

func expectNoClaim(tb testing.TB, s claimstate.Store, id string) {
	tb.Helper()
	if got, ok, err := s.Get(tb.Context(), id); err != nil || ok {
		tb.Fatalf("Get(%s) is %q, %v, %v, want nothing", id, toldClaim("", got), ok, err)
	}
}

// claimAt makes a claim and moves it to a node of the first six.
func claimAt(tb testing.TB, s claimstate.Store, id string, node claimstate.Node) claimstate.State {
	tb.Helper()
	state := putClaim(tb, s, newClaim(id, "op-new"), "created")
	for _, n := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified, claimstate.PricingCalculated, claimstate.PAEvaluated} {
		if state.Node == node {
			return state
		}
		state = advanceClaim(tb, s, state.Move(n, "", "", "op-"+string(n)), "advanced")
	}
	return state
}

// expectEnd says that a state lives for life from now, but for a minute.
func expectEnd(tb testing.TB, f ClaimStateFixture, s claimstate.State, life time.Duration) {
	tb.Helper()
	if left := s.ExpiresAt.Sub(f.Now()); left < life-time.Minute || left > life+time.Minute {
		tb.Errorf("%s lives for %v, want %v", toldClaim("the claim", s), left, life)
	}
}

func claimCreated(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	expectNoClaim(tb, s, "c-1")
	got := putClaim(tb, s, newClaim("c-1", "op-1"), "created")
	want := claimstate.State{CorrelationID: "c-1", RxRefToken: claimToken, Node: claimstate.Ingested, IngredientCost: "42.10", Version: 1, OpID: "op-1", ExpiresAt: got.ExpiresAt}
	if got != want {
		tb.Errorf("created %+v, want %+v", got, want)
	}
	expectEnd(tb, f, got, ClaimLives.TTL)
	expectClaim(tb, f.Open(tb), want)
	if err := s.Ping(tb.Context()); err != nil {
		tb.Error(err)
	}
}

func claimCreateTwice(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	first := putClaim(tb, a, newClaim("c-1", "op-1"), "created")
	putClaim(tb, a, newClaim("c-1", "op-1"), "already mine")
	putClaim(tb, b, newClaim("c-1", "op-1"), "already mine")
	other := newClaim("c-1", "op-2")
	other.IngredientCost = "1.00"
	if got := putClaim(tb, b, other, "exists"); got.OpID != "op-1" || got.IngredientCost != "42.10" {
		tb.Errorf("exists %+v", got)
	}
	expectClaim(tb, b, first)
	next := advanceClaim(tb, b, first.Move(claimstate.Normalized, "", "", "op-3"), "advanced")
	if got := putClaim(tb, a, newClaim("c-1", "op-1"), "exists"); got.Version != 2 || got.OpID != "op-3" {
		tb.Errorf("exists %+v", got)
	}
	expectClaim(tb, a, next)
}

func claimWholeWay(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	s := putClaim(tb, a, newClaim("c-1", "op-0"), "created")
	for n, step := range []struct {
		to     claimstate.Node
		cost   claimstate.Cost
		reject string
	}{
		{claimstate.Normalized, "", ""}, {claimstate.TaxonomyResolved, "", ""}, {claimstate.EligibilityVerified, "", ""},
		{claimstate.PricingCalculated, "1207.35", ""}, {claimstate.PAEvaluated, "", ""}, {claimstate.PAPended, "", "75"},
		{claimstate.PAEvaluated, "", ""}, {claimstate.PAPended, "", ""}, {claimstate.PAEvaluated, "1207.36", ""}, {claimstate.ResponseDispatched, "", ""},
	} {
		store := a
		if n%2 == 1 {
			store = b
		}
		m := s.Move(step.to, step.cost, step.reject, fmt.Sprintf("op-%d", n+1))
		s = advanceClaim(tb, store, m, "advanced")
		cost := "42.10"
		if n >= 3 {
			cost = "1207.35"
		}
		if n >= 8 {
			cost = "1207.36"
		}
		want := claimstate.State{CorrelationID: "c-1", RxRefToken: claimToken, Node: step.to, IngredientCost: claimstate.Cost(cost), RejectCode: step.reject,
			Version: int64(n + 2), OpID: m.OpID, ExpiresAt: s.ExpiresAt}
		if s != want {
			tb.Errorf("advanced to %+v, want %+v", s, want)
		}
		expectClaim(tb, a, want)
		expectClaim(tb, b, want)
		if got := advanceClaim(tb, store, m, "already mine"); got.Version != want.Version || got.Node != want.Node {
			tb.Errorf("already mine: %+v", got)
		}
		if got := putClaim(tb, store, newClaim("c-1", "op-late"), "exists"); got.Version != want.Version {
			tb.Errorf("a late PutNew is told %+v", got)
		}
	}
}

func claimRejected(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	for n, node := range []claimstate.Node{claimstate.Ingested, claimstate.EligibilityVerified, claimstate.PAEvaluated} {
		c := claimAt(tb, s, fmt.Sprintf("c-%d", n), node)
		got := advanceClaim(tb, s, c.Move(claimstate.ResponseDispatched, "", "70", "op-r"), "advanced")
		if got.RejectCode != "70" || got.Node != claimstate.ResponseDispatched {
			tb.Errorf("advanced to %+v", got)
		}
		expectClaim(tb, s, got)
	}
	c := claimAt(tb, s, "c-p", claimstate.PAEvaluated)
	c = advanceClaim(tb, s, c.Move(claimstate.PAPended, "", "", "op-p"), "advanced")
	expectClaim(tb, s, advanceClaim(tb, s, c.Move(claimstate.ResponseDispatched, "", "75", "op-r"), "advanced"))
}

func claimMissing(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	for _, from := range []claimstate.Node{claimstate.Ingested, claimstate.PAEvaluated, claimstate.PAPended} {
		absent := claimstate.State{CorrelationID: "c-1", Node: from, Version: 1}
		to := claimstate.Normalized
		if from != claimstate.Ingested {
			to = claimstate.ResponseDispatched
		}
		advanceClaim(tb, s, absent.Move(to, "9.99", rejectFor(to), "op-1"), "missing")
		expectNoClaim(tb, s, "c-1")
	}
	putClaim(tb, s, newClaim("c-1", "op-1"), "created") // and nothing of it is left
	pend := claimstate.State{CorrelationID: "c-2", Node: claimstate.PAEvaluated, Version: 6}
	advanceClaim(tb, s, pend.Move(claimstate.PAPended, "", "", "op-1"), "missing")
	expectNoClaim(tb, s, "c-2")
}

func rejectFor(to claimstate.Node) string {
	if to == claimstate.ResponseDispatched {
		return "70"
	}
	return ""
}

func claimConflict(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	first := putClaim(tb, a, newClaim("c-1", "op-0"), "created")
	second := advanceClaim(tb, a, first.Move(claimstate.Normalized, "", "", "op-1"), "advanced")
	stale := first.Move(claimstate.ResponseDispatched, "0.01", "70", "op-2")
	if got := advanceClaim(tb, b, stale, "conflict"); got.Version != 2 || got.OpID != "op-1" || got.Node != claimstate.Normalized {
		tb.Errorf("conflict with %+v", got)
	}
	ahead := second
	ahead.Version = 3
	advanceClaim(tb, b, ahead.Move(claimstate.TaxonomyResolved, "", "", "op-3"), "conflict")
	// The version alone does not say where a claim is.
	elsewhere := second
	elsewhere.Node = claimstate.PricingCalculated
	advanceClaim(tb, b, elsewhere.Move(claimstate.PAEvaluated, "", "", "op-4"), "conflict")
	elsewhere.Node = claimstate.PAPended
	advanceClaim(tb, b, elsewhere.Move(claimstate.PAEvaluated, "", "", "op-5"), "conflict")
	expectClaim(tb, b, second)
	pended := claimAt(tb, a, "c-2", claimstate.PAEvaluated)
	moved := advanceClaim(tb, a, pended.Move(claimstate.PAPended, "", "", "op-6"), "advanced")
	advanceClaim(tb, b, pended.Move(claimstate.ResponseDispatched, "", "", "op-7"), "conflict")
	advanceClaim(tb, b, pended.Move(claimstate.PAPended, "", "", "op-8"), "conflict")
	early := claimstate.State{CorrelationID: "c-2", Node: claimstate.Normalized, Version: 2}
	if got := advanceClaim(tb, b, early.Move(claimstate.TaxonomyResolved, "", "", "op-9"), "conflict"); got.Version != moved.Version {
		tb.Errorf("conflict with %+v", got)
	}
	expectClaim(tb, b, moved)
}

func claimOwnOperation(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	first := putClaim(tb, a, newClaim("c-1", "op-0"), "created")
	m := first.Move(claimstate.Normalized, "", "", "op-1")
	second := advanceClaim(tb, a, m, "advanced")
	for _, s := range []claimstate.Store{a, b} {
		if got := advanceClaim(tb, s, m, "already mine"); got.Version != 2 {
			tb.Errorf("already mine: %+v", got)
		}
	}
	upper := m
	upper.OpID = "OP-1"
	advanceClaim(tb, b, upper, "conflict")
	// The same id for a further move is a further move.
	third := advanceClaim(tb, b, second.Move(claimstate.TaxonomyResolved, "", "", "op-1"), "advanced")
	advanceClaim(tb, b, third.Move(claimstate.EligibilityVerified, "", "", "op-2"), "advanced")
	advanceClaim(tb, a, m, "conflict") // others have gone on
}

func claimsApart(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	var want []claimstate.State
	for n := range 20 {
		id := fmt.Sprintf("c_%d-%s", n, strings.Repeat("x", n))
		c := putClaim(tb, s, newClaim(id, fmt.Sprintf("op-%d", n)), "created")
		if n%2 == 0 {
			c = advanceClaim(tb, s, c.Move(claimstate.Normalized, claimstate.Cost(fmt.Sprintf("%d.05", n)), "", "op-n"), "advanced")
		}
		want = append(want, c)
	}
	for _, c := range want {
		expectClaim(tb, s, c)
	}
}

// claimRace runs n callers at once on two handles and returns their answers in words.
func claimRace(tb testing.TB, f ClaimStateFixture, n int, call func(s claimstate.Store, i int) (string, claimstate.State, error)) ([]string, []claimstate.State) {
	tb.Helper()
	handles := []claimstate.Store{f.Open(tb), f.Open(tb)}
	words, states := make([]string, n), make([]claimstate.State, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			w, s, err := call(handles[i%2], i)
			if err != nil {
				w = "error: " + err.Error()
			}
			words[i], states[i] = w, s
		})
	}
	close(start)
	wg.Wait()
	return words, states
}

const claimRacers = 64

// expectOne says that one answer is won and all others lost, and returns the winner.
func expectOne(tb testing.TB, words []string, won, lost string) int {
	tb.Helper()
	winner := -1
	for i, w := range words {
		switch {
		case w == won && winner < 0:
			winner = i
		case w == won:
			tb.Errorf("%d and %d are both told %q", winner, i, won)
		case w != lost:
			tb.Errorf("%d is told %q, want %q", i, w, lost)
		}
	}
	if winner < 0 {
		tb.Fatalf("nobody is told %q", won)
	}
	return winner
}

func claimCreators(tb testing.TB, f ClaimStateFixture) {
	words, states := claimRace(tb, f, claimRacers, func(s claimstate.Store, i int) (string, claimstate.State, error) {
		p, err := s.PutNew(tb.Context(), newClaim("c-1", fmt.Sprintf("op-%d", i)))
		if err != nil {
			return "", claimstate.State{}, err
		}
		w, c := putAnswer(p)
		return w, c, nil
	})
	winner := fmt.Sprintf("op-%d", expectOne(tb, words, "created", "exists"))
	for i, s := range states {
		if s.OpID != winner || s.Version != 1 {
			tb.Errorf("creator %d is told %+v, the winner is %s", i, s, winner)
		}
	}
}

func moveAll(tb testing.TB, f ClaimStateFixture, from claimstate.State, move func(i int) claimstate.Move) ([]string, []claimstate.State) {
	tb.Helper()
	return claimRace(tb, f, claimRacers, func(s claimstate.Store, i int) (string, claimstate.State, error) {
		a, err := s.Advance(tb.Context(), move(i))
		if err != nil {
			return "", claimstate.State{}, err
		}
		w, c := advanceAnswer(a)
		return w, c, nil
	})
}

func claimMovers(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-new"), "created")
	for round, to := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified,
		claimstate.PricingCalculated, claimstate.PAEvaluated, claimstate.PAPended, claimstate.PAEvaluated} {
		words, states := moveAll(tb, f, c, func(i int) claimstate.Move { return c.Move(to, "", "", fmt.Sprintf("op-%d-%d", round, i)) })
		winner := states[expectOne(tb, words, "advanced", "conflict")]
		for i, got := range states {
			if got.OpID != winner.OpID || got.Version != c.Version+1 {
				tb.Errorf("mover %d is told %+v, the winner is %+v", i, got, winner)
			}
		}
		expectClaim(tb, s, winner)
		c = winner
	}
}

func claimAttempts(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := claimAt(tb, s, "c-1", claimstate.PAEvaluated)
	m := c.Move(claimstate.PAPended, "", "", "op-one")
	words, _ := moveAll(tb, f, c, func(int) claimstate.Move { return m })
	for i, w := range words {
		if w != "advanced" && w != "already mine" {
			tb.Errorf("attempt %d is told %q", i, w)
		}
	}
	if got, ok, err := s.Get(tb.Context(), "c-1"); err != nil || !ok || got.Version != c.Version+1 || got.OpID != "op-one" {
		tb.Errorf("%+v, %v, %v", got, ok, err)
	}
}

func claimPendRace(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	for round := range 4 {
		id := fmt.Sprintf("c-%d", round)
		c := claimAt(tb, s, id, claimstate.PAEvaluated)
		words, states := moveAll(tb, f, c, func(i int) claimstate.Move {
			to := claimstate.PAPended
			if i%2 == round%2 {
				to = claimstate.ResponseDispatched
			}
			return c.Move(to, "", "", fmt.Sprintf("op-%d", i))
		})
		expectClaim(tb, s, states[expectOne(tb, words, "advanced", "conflict")])
	}
}

func claimIllegal(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	if err := s.Close(); err != nil { // no store is asked
		tb.Fatal(err)
	}
	way := []claimstate.Node{claimstate.Ingested, claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified,
		claimstate.PricingCalculated, claimstate.PAEvaluated, claimstate.ResponseDispatched, claimstate.PAPended, "SHIPPED", ""}
	for i, from := range way {
		for j, to := range way {
			for _, code := range []string{"", "70"} {
				terminal := to == claimstate.ResponseDispatched && from != claimstate.ResponseDispatched && i < 8
				pend := from == claimstate.PAEvaluated && to == claimstate.PAPended
				back := from == claimstate.PAPended && to == claimstate.PAEvaluated
				next := j == i+1 && j <= 6
				if terminal && code != "" || pend || (next || back) && code == "" {
					continue // these are legal
				}
				m := claimstate.Move{CorrelationID: c.CorrelationID, Version: 1, From: from, To: to, RejectCode: code, OpID: "op-1"}
				_, err := s.Advance(tb.Context(), m)
				var illegal *claimstate.IllegalMoveError
				if !errors.As(err, &illegal) || illegal.From != from || illegal.To != to || illegal.Why == "" {
					tb.Errorf("%s to %s with %q: %v", from, to, code, err)
				}
			}
		}
	}
}

func claimValues(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	refused := func(field, value string, err error) {
		tb.Helper()
		var invalid *claimstate.InvalidError
		switch {
		case !errors.As(err, &invalid) || invalid.Field != field:
			tb.Errorf("%s: %v, want a refusal of %s", value, err, field)
		case value != "" && strings.Contains(err.Error(), value):
			tb.Errorf("the refusal of %s tells the value", field)
		}
	}
	for _, v := range []string{"", "7003219", "000007003219", "DOE", "MTOK_9f2a", "rx1.0a1b2c3d", "rx1.0a1b2c3d.00112233445566778899aabbccddeef", "rx1.0A1B2C3D.00112233445566778899aabbccddeeff",
		"rx2.0a1b2c3d.00112233445566778899aabbccddeeff", string(claimToken) + "\n", " " + string(claimToken), string(claimToken) + "7003219"} {
		n := newClaim("c-1", "op-1")
		n.RxRefToken = claimstate.Token(v)
		_, err := s.PutNew(tb.Context(), n)
		refused("rx_ref_token", v, err)
	}
	ids := []string{"", "7003219", "98765432109876543210", "JANE DOE", "c:1", "c{1}", "é", "c\n", strings.Repeat("c", 65)}
	for _, v := range ids {
		_, err := s.PutNew(tb.Context(), newClaim(v, "op-1"))
		refused("correlation_id", v, err)
		_, _, err = s.Get(tb.Context(), v)
		refused("correlation_id", v, err)
		_, err = s.Advance(tb.Context(), claimstate.Move{CorrelationID: v, Version: 1, From: claimstate.Ingested, To: claimstate.Normalized, OpID: "op-1"})
		refused("correlation_id", v, err)
		_, err = s.PutNew(tb.Context(), newClaim("c-1", v))
		refused("op_id", v, err)
		_, err = s.Advance(tb.Context(), claimstate.Move{CorrelationID: "c-1", Version: 1, From: claimstate.Ingested, To: claimstate.Normalized, OpID: v})
		refused("op_id", v, err)
	}
	for _, v := range []string{"7003219", "xq", "7a", "75 ", "é"} {
		_, err := s.Advance(tb.Context(), claimstate.Move{CorrelationID: "c-1", Version: 1, From: claimstate.Ingested, To: claimstate.ResponseDispatched, RejectCode: v, OpID: "op-1"})
		refused("reject_code", v, err)
	}
	_, err := s.Advance(tb.Context(), claimstate.Move{CorrelationID: "c-1", From: claimstate.Ingested, To: claimstate.Normalized, OpID: "op-1"})
	refused("version", "", err)
	expectNoClaim(tb, s, "c-1")
	// The hash of a token may have no letter.
	putClaim(tb, s, newClaim(strings.Repeat("1", 32), "op-1"), "created")
}

func claimMoney(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	for n, v := range []claimstate.Cost{"0.00", "0.10", "-12.30", "999999.99", "-999999.99", "100000.00", "0.07"} {
		id := fmt.Sprintf("c-%d", n)
		c := newClaim(id, "op-1")
		c.IngredientCost = v
		first := putClaim(tb, s, c, "created")
		expectClaim(tb, s, first)
		c.IngredientCost, c.CorrelationID = "1.00", id+"-m"
		second := putClaim(tb, s, c, "created")
		moved := advanceClaim(tb, s, second.Move(claimstate.Normalized, v, "", "op-2"), "advanced")
		if first.IngredientCost != v || moved.IngredientCost != v {
			tb.Errorf("%s became %s and %s", v, first.IngredientCost, moved.IngredientCost)
		}
		expectClaim(tb, s, moved)
	}
	c := putClaim(tb, s, newClaim("c-x", "op-1"), "created")
	for _, v := range []claimstate.Cost{"", "42", "42.1", "42.100", "42,10", "042.10", "00.00", ".50", "-0.00", "+1.00", "1e3", "NaN", "1000000.00", "1 000.00", "42.10 ", "٤٢.10", "$42.10"} {
		n := newClaim("c-y", "op-2")
		n.IngredientCost = v
		_, err := s.PutNew(tb.Context(), n)
		var invalid *claimstate.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "ingredient_cost" {
			tb.Errorf("PutNew with %q: %v", v, err)
		}
		if v == "" {
			continue // keeps the cost, in a move
		}
		if _, err := s.Advance(tb.Context(), c.Move(claimstate.Normalized, v, "", "op-3")); !errors.As(err, &invalid) || invalid.Field != "ingredient_cost" {
			tb.Errorf("Advance with %q: %v", v, err)
		}
	}
	expectClaim(tb, s, c)
	expectNoClaim(tb, s, "c-y")
}

func claimExpiry(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	c := putClaim(tb, a, newClaim("c-1", "op-1"), "created")
	c = advanceClaim(tb, a, c.Move(claimstate.Normalized, "7.00", "", "op-2"), "advanced")
	putClaim(tb, a, newClaim("c-2", "op-1"), "created")
	f.Pass(tb, ClaimLives.TTL-time.Minute)
	expectClaim(tb, b, c)
	f.Pass(tb, time.Minute+2*time.Second)
	for _, s := range []claimstate.Store{a, b} {
		expectNoClaim(tb, s, "c-1")
		advanceClaim(tb, s, c.Move(claimstate.TaxonomyResolved, "", "", "op-3"), "missing")
		first := claimstate.State{CorrelationID: "c-1", Node: claimstate.Ingested, Version: 1}
		advanceClaim(tb, s, first.Move(claimstate.Normalized, "", "", "op-2"), "missing") // the own one, too
	}
	expectNoClaim(tb, a, "c-1")
	f.Pass(tb, f.Margin)
	again := putClaim(tb, b, newClaim("c-1", "op-4"), "created")
	if again.Version != 1 || again.Node != claimstate.Ingested || again.IngredientCost != "42.10" {
		tb.Errorf("after its end the claim begins anew as %+v", again)
	}
	expectClaim(tb, a, again)
	putClaim(tb, a, newClaim("c-2", "op-1"), "created") // the same operation, after the end of what it made
	expectEnd(tb, f, again, ClaimLives.TTL)
}

func claimPendedExpiry(tb testing.TB, f ClaimStateFixture) {
	a, b := f.Open(tb), f.Open(tb)
	c := claimAt(tb, a, "c-1", claimstate.PAEvaluated)
	c = advanceClaim(tb, a, c.Move(claimstate.PAPended, "", "", "op-p"), "advanced")
	f.Pass(tb, ClaimLives.Pend+2*time.Second)
	expectNoClaim(tb, b, "c-1")
	advanceClaim(tb, b, c.Move(claimstate.PAEvaluated, "", "", "op-e"), "missing")
	f.Pass(tb, f.Margin)
	again := claimAt(tb, b, "c-1", claimstate.PAEvaluated)
	expectClaim(tb, a, again)
	again = advanceClaim(tb, b, again.Move(claimstate.PAPended, "", "", "op-p2"), "advanced")
	expectClaim(tb, a, again)
}

func claimRenewed(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	for n, to := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified} {
		f.Pass(tb, ClaimLives.TTL*2/3)
		c = advanceClaim(tb, s, c.Move(to, "", "", fmt.Sprintf("op-%d", n+1)), "advanced")
		expectEnd(tb, f, c, ClaimLives.TTL)
	}
	expectClaim(tb, s, c)
	f.Pass(tb, ClaimLives.TTL+2*time.Second)
	expectNoClaim(tb, s, "c-1")
}

func claimNotRenewed(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	f.Pass(tb, ClaimLives.TTL*2/3)
	expectClaim(tb, s, c)
	putClaim(tb, s, newClaim("c-1", "op-0"), "already mine")
	putClaim(tb, s, newClaim("c-1", "op-1"), "exists")
	ahead := c
	ahead.Version = 9
	advanceClaim(tb, s, ahead.Move(claimstate.Normalized, "", "", "op-2"), "conflict")
	f.Pass(tb, ClaimLives.TTL*2/3)
	expectNoClaim(tb, s, "c-1")
}

func claimPendedLife(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := claimAt(tb, s, "c-1", claimstate.PAEvaluated)
	c = advanceClaim(tb, s, c.Move(claimstate.PAPended, "", "75", "op-p"), "advanced")
	expectEnd(tb, f, c, ClaimLives.Pend)
	f.Pass(tb, ClaimLives.Pend-time.Hour)
	expectClaim(tb, s, c)
	c = advanceClaim(tb, s, c.Move(claimstate.PAEvaluated, "", "", "op-e"), "advanced")
	expectClaim(tb, s, c)
	f.Pass(tb, ClaimLives.TTL-time.Minute)
	expectClaim(tb, s, advanceClaim(tb, s, c.Move(claimstate.ResponseDispatched, "", "", "op-d"), "advanced"))
}

func claimLostCreate(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	putClaim(tb, s, newClaim("warm", "op-0"), "created") // connections, scripts
	n := newClaim("c-lost", "op-1")
	if f.Lose == nil {
		putClaim(tb, s, n, "created")
	} else {
		f.Lose(tb, "c-lost")
		switch p, err := s.PutNew(tb.Context(), n); {
		case err != nil: // the reply did not come, and the caller asks again
		default:
			if w, c := putAnswer(p); w == "exists" {
				tb.Fatalf("a lost reply is told as %q", toldClaim(w, c))
			}
		}
	}
	putClaim(tb, s, n, "already mine")
	putClaim(tb, s, newClaim("c-lost", "op-2"), "exists")
}

func claimLostAdvance(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	for n, node := range []claimstate.Node{claimstate.Ingested, claimstate.PAEvaluated} {
		id := fmt.Sprintf("c-lost-%d", n)
		c := claimAt(tb, s, id, node)
		to := claimstate.PAPended
		if node == claimstate.Ingested {
			to = claimstate.Normalized
			warm := putClaim(tb, s, newClaim("warm", "op-0"), "created")
			advanceClaim(tb, s, warm.Move(to, "", "", "op-1"), "advanced")
		}
		m := c.Move(to, "3.00", "", "op-lost")
		if f.Lose == nil {
			advanceClaim(tb, s, m, "advanced")
		} else {
			f.Lose(tb, id)
			switch a, err := s.Advance(tb.Context(), m); {
			case err != nil:
			default:
				if w, c := advanceAnswer(a); w != "already mine" && w != "advanced" {
					tb.Fatalf("a lost reply is told as %q", toldClaim(w, c))
				}
			}
		}
		a, err := s.Advance(tb.Context(), m)
		if err != nil {
			tb.Fatal(err)
		}
		// Only the reply of a read before the move may have been lost.
		if w, got := advanceAnswer(a); w != "already mine" && !(w == "advanced" && f.Lose != nil && to == claimstate.PAPended) {
			tb.Fatalf("the attempt after a lost reply is told %q", toldClaim(w, got))
		}
		got := advanceClaim(tb, s, m, "already mine")
		if got.Version != c.Version+1 || got.IngredientCost != "3.00" {
			tb.Errorf("%s", toldClaim("the claim is", got))
		}
	}
}

func claimRestart(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	one := putClaim(tb, s, newClaim("c-1", "op-1"), "created")
	one = advanceClaim(tb, s, one.Move(claimstate.Normalized, "5.00", "", "op-2"), "advanced")
	two := claimAt(tb, s, "c-2", claimstate.PAEvaluated)
	two = advanceClaim(tb, s, two.Move(claimstate.PAPended, "", "75", "op-3"), "advanced")
	s = f.Reopen(tb, s)
	expectClaim(tb, s, one)
	expectClaim(tb, s, two)
	advanceClaim(tb, s, two.Move(claimstate.PAEvaluated, "", "", "op-4"), "advanced")
	putClaim(tb, s, newClaim("c-1", "op-9"), "exists")
}

func claimStep(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	step := func(version int64, to claimstate.Node, op, want string) {
		tb.Helper()
		a, err := claimstate.Step(tb.Context(), s, "c-1", version, to, "", "", op)
		if err != nil {
			tb.Fatal(err)
		}
		if w, c := advanceAnswer(a); w != want {
			tb.Errorf("to %s from version %d: %s, want %s", to, version, toldClaim(w, c), want)
		}
	}
	step(1, claimstate.Normalized, "op-1", "missing")
	putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	step(1, claimstate.Normalized, "op-1", "advanced")
	step(1, claimstate.Normalized, "op-1", "already mine")
	step(1, claimstate.Normalized, "op-2", "conflict")
	step(1, claimstate.PAPended, "op-2", "conflict")
	_, err := claimstate.Step(tb.Context(), s, "c-1", 2, claimstate.PAPended, "", "", "op-3")
	var illegal *claimstate.IllegalMoveError
	if !errors.As(err, &illegal) || illegal.From != claimstate.Normalized {
		tb.Errorf("an illegal step: %v", err)
	}
}

func claimCancelled(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	if _, err := s.PutNew(ctx, newClaim("c-2", "op-1")); err == nil {
		tb.Error("PutNew answers after its end")
	}
	if _, err := s.Advance(ctx, c.Move(claimstate.Normalized, "", "", "op-1")); err == nil {
		tb.Error("Advance answers after its end")
	}
	if _, _, err := s.Get(ctx, "c-1"); err == nil {
		tb.Error("Get answers after its end")
	}
	expectClaim(tb, s, c)
	expectNoClaim(tb, s, "c-2")
}

func claimBroken(tb testing.TB, f ClaimStateFixture) {
	s := f.Open(tb)
	c := putClaim(tb, s, newClaim("c-1", "op-0"), "created")
	f.Break(tb)
	fails := func(what string, err error) {
		tb.Helper()
		if err == nil {
			tb.Errorf("%s answers", what)
		} else if !strings.HasPrefix(err.Error(), "cannot ") {
			tb.Errorf("%s fails with %q", what, err)
		}
	}
	_, err := s.PutNew(tb.Context(), newClaim("c-2", "op-1"))
	fails("PutNew", err)
	_, err = s.Advance(tb.Context(), c.Move(claimstate.Normalized, "", "", "op-1"))
	fails("Advance", err)
	_, _, err = s.Get(tb.Context(), "c-1")
	fails("Get", err)
	fails("Ping", s.Ping(tb.Context()))
}
