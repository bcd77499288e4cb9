// Package storetest holds the conformance suites of the store interfaces: what every implementation must
// answer, whatever it is made of.
package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// AuthorityFixture is a fresh, empty store of claims and what a test can do to it.
type AuthorityFixture struct {
	// Open returns a handle on the store. Each call stands for a further agent; where all agents must
	// share one value, it may return the same.
	Open func(tb testing.TB) idem.Authority
	// TTL is the store's time to live of a claim, without the jitter.
	TTL time.Duration
	// Pass lets d pass for the store: it moves a fake clock, or waits.
	Pass func(tb testing.TB, d time.Duration)
	// Flush loses every key at once, as a restart or a FLUSHALL does. Open handles go on.
	Flush func(tb testing.TB)
	// Break makes the store fail under its open handles; nil if it can only be closed.
	Break func(tb testing.TB)
}

type authorityCase struct {
	name string
	run  func(tb testing.TB, f AuthorityFixture)
}

// Authority runs the suite. open makes a fixture with a store of its own for every case.
func Authority(t *testing.T, open func(tb testing.TB) AuthorityFixture) {
	for _, c := range authorityCases() {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func authorityCases() []authorityCase {
	return []authorityCase{
		{"won", authorityWon},
		{"held", authorityHeld},
		{"re-entrant", authorityReentrant},
		{"edge held", authorityEdgeHeld},
		{"refused keys are kept", authorityKeepsRefused},
		{"kinds are apart", authorityKinds},
		{"expiry", authorityExpiry},
		{"holder does not prolong", authorityNoProlong},
		{"flush", authorityFlush},
		{"batch order", authorityBatch},
		{"duplicates in a batch", authorityBatchDuplicates},
		{"cancelled", authorityCancelled},
		{"closed", authorityClosed},
		{"broken", authorityBroken},
		{"64 claimers", authorityConcurrent},
	}
}

// hash makes the n-th of a family of distinct hashes.
func hash(family string, n int) [32]byte {
	return sha256.Sum256(binary.BigEndian.AppendUint64([]byte(family), uint64(n)))
}

// idemKey and edgeKey are the n-th keys of their kind.
func idemKey(n int) idem.Key { return idem.Key{Kind: idem.Idem, Hash: hash("idem", n)} }
func edgeKey(n int) idem.Key { return idem.Key{Kind: idem.Edge, Hash: hash("edge", n)} }

// eventID is the n-th event.
func eventID(n int) idem.EventID {
	h := hash("event", n)
	return idem.NewEventID(window.UTC(1_764_000_000_000+n), [10]byte(h[:10]))
}

// claim is event e's claim of idem key i, and of edge key b if b is not 0.
func claim(e, i, b int) idem.Claim {
	c := idem.Claim{Event: eventID(e), Keys: idem.Keys{Idem: idemKey(i)}}
	if b != 0 {
		c.Keys.Edge = edgeKey(b)
	}
	return c
}

// answer puts an outcome into words: "won", "held by 3" (the number of the event), "unknown".
func answer(o idem.Outcome) (s string) {
	o.Match(
		func() { s = "won" },
		func(by idem.EventID) {
			s = "held by " + by.String()
			for n := range 300 {
				if eventID(n) == by {
					s = fmt.Sprintf("held by %d", n)
				}
			}
		},
		func(error) { s = "unknown" })
	return s
}

// expectClaims makes the claims in one batch and compares the answers.
func expectClaims(tb testing.TB, a idem.Authority, claims []idem.Claim, want ...string) {
	tb.Helper()
	var got []string
	for _, o := range a.Claim(tb.Context(), claims) {
		got = append(got, answer(o))
	}
	if !slices.Equal(got, want) {
		tb.Errorf("claims answered %q, want %q", got, want)
	}
}

func authorityWon(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, nil)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 0)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(2, 2, 2)}, "won")
}

func authorityHeld(tb testing.TB, f AuthorityFixture) {
	a, b := f.Open(tb), f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(2, 1, 1)}, "held by 1")
	expectClaims(tb, b, []idem.Claim{claim(3, 1, 0)}, "held by 1")
}

func authorityReentrant(tb testing.TB, f AuthorityFixture) {
	a, b := f.Open(tb), f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	expectClaims(tb, b, []idem.Claim{claim(1, 1, 1)}, "won")
	// One of the two keys was lost: the rest is still the own one.
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 9)}, "won")
}

func authorityEdgeHeld(tb testing.TB, f AuthorityFixture) {
	a, b := f.Open(tb), f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	expectClaims(tb, b, []idem.Claim{claim(2, 2, 1)}, "held by 1")
	expectClaims(tb, b, []idem.Claim{claim(3, 1, 2)}, "held by 1")
	// Where the two keys have two holders, the idempotency key's is named.
	expectClaims(tb, a, []idem.Claim{claim(4, 4, 0), claim(5, 4, 1)}, "won", "held by 4")
}

func authorityKeepsRefused(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(2, 2, 1)}, "held by 1") // keeps idem 2
	expectClaims(tb, a, []idem.Claim{claim(3, 2, 0)}, "held by 2")
	expectClaims(tb, a, []idem.Claim{claim(4, 1, 4)}, "held by 1") // keeps edge 4
	expectClaims(tb, a, []idem.Claim{claim(5, 5, 4)}, "held by 4")
}

func authorityKinds(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	same := hash("both", 0)
	first, second := claim(1, 1, 1), claim(2, 2, 2)
	first.Keys.Idem.Hash, second.Keys.Edge.Hash = same, same
	expectClaims(tb, a, []idem.Claim{first}, "won")
	expectClaims(tb, a, []idem.Claim{second}, "won")
}

func authorityExpiry(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	f.Pass(tb, f.TTL/2)
	expectClaims(tb, a, []idem.Claim{claim(2, 1, 0), claim(3, 3, 1)}, "held by 1", "held by 1")
	f.Pass(tb, f.TTL*7/10) // now past ttl and the tenth of jitter; idem 3 stays
	expectClaims(tb, a, []idem.Claim{claim(4, 1, 1)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(5, 3, 0)}, "held by 3")
}

func authorityNoProlong(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 0)}, "won")
	f.Pass(tb, f.TTL/2)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 0)}, "won")
	f.Pass(tb, f.TTL*7/10)
	expectClaims(tb, a, []idem.Claim{claim(2, 1, 0)}, "won")
}

func authorityFlush(tb testing.TB, f AuthorityFixture) {
	a, b := f.Open(tb), f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "won")
	f.Flush(tb)
	expectClaims(tb, b, []idem.Claim{claim(2, 1, 1)}, "won")
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1)}, "held by 2")
}

func authorityBatch(tb testing.TB, f AuthorityFixture) {
	a, b := f.Open(tb), f.Open(tb)
	var first, all []idem.Claim
	var won, want []string
	for n := range 200 {
		switch {
		case n%3 == 0:
			first, won = append(first, claim(n, n, 0)), append(won, "won")
			all, want = append(all, claim(201+n%90, n, 0)), append(want, fmt.Sprintf("held by %d", n))
		case n%3 == 1:
			all, want = append(all, claim(n, n, n)), append(want, "won")
		default:
			all, want = append(all, claim(n, n, n-1)), append(want, fmt.Sprintf("held by %d", n-1))
		}
	}
	expectClaims(tb, a, first, won...)
	expectClaims(tb, b, all, want...)
}

func authorityBatchDuplicates(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a,
		[]idem.Claim{claim(1, 1, 0), claim(2, 1, 0), claim(1, 1, 0), claim(3, 3, 3), claim(4, 4, 3), claim(3, 3, 3)},
		"won", "held by 1", "won", "won", "held by 3", "won")
}

func authorityCancelled(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	out := a.Claim(ctx, []idem.Claim{claim(1, 1, 1), claim(2, 2, 0)})
	expectUnknown(tb, out, 2)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 1), claim(2, 2, 0)}, "won", "won")
}

func expectUnknown(tb testing.TB, out []idem.Outcome, n int) {
	tb.Helper()
	if len(out) != n {
		tb.Fatalf("%d outcomes, want %d", len(out), n)
	}
	for i, o := range out {
		o.Match(
			func() { tb.Errorf("claim %d: won, want unknown", i) },
			func(idem.EventID) { tb.Errorf("claim %d: held, want unknown", i) },
			func(err error) {
				if err == nil {
					tb.Errorf("claim %d: unknown without a reason", i)
				}
			})
	}
}

func authorityClosed(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 0)}, "won")
	if err := a.Close(); err != nil {
		tb.Fatal(err)
	}
	expectUnknown(tb, a.Claim(tb.Context(), []idem.Claim{claim(1, 1, 0), claim(2, 1, 0), claim(3, 3, 3)}), 3)
}

func authorityBroken(tb testing.TB, f AuthorityFixture) {
	a := f.Open(tb)
	expectClaims(tb, a, []idem.Claim{claim(1, 1, 0)}, "won")
	if f.Break == nil {
		return // closed is its only way to fail
	}
	f.Break(tb)
	expectUnknown(tb, a.Claim(tb.Context(), []idem.Claim{claim(1, 1, 0), claim(2, 1, 0), claim(3, 3, 3)}), 3)
}

func authorityConcurrent(tb testing.TB, f AuthorityFixture) {
	const claimers = 64
	handles := []idem.Authority{f.Open(tb), f.Open(tb)}
	for round := range 8 {
		var wg sync.WaitGroup
		start := make(chan struct{})
		outs := make([]string, claimers)
		for n := range claimers {
			c := claim(n, round, 0)
			if round%2 == 1 { // the edge key alone is common
				c = claim(n, 1000*round+n, round)
			}
			wg.Go(func() {
				<-start
				outs[n] = answer(handles[n%2].Claim(tb.Context(), []idem.Claim{c})[0])
			})
		}
		close(start)
		wg.Wait()
		winner := slices.Index(outs, "won")
		for n, o := range outs {
			if n != winner && o != fmt.Sprintf("held by %d", winner) {
				tb.Errorf("round %d: claimer %d is told %q, the first winner is %d", round, n, o, winner)
			}
		}
	}
}
