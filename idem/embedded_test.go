package idem_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/storetest"
)

// restartable is an Embedded that a test can replace, as a restart of the agent does.
type restartable struct{ *atomic.Pointer[idem.Embedded] }

func (r restartable) Claim(ctx context.Context, c []idem.Claim) []idem.Outcome {
	return r.Load().Claim(ctx, c)
}
func (r restartable) Close() error { return r.Load().Close() }

func TestEmbeddedConformance(t *testing.T) {
	storetest.Authority(t, func(testing.TB) storetest.AuthorityFixture {
		const ttl = time.Minute
		var boot atomic.Int64
		clock := func() time.Duration { return time.Duration(boot.Load()) }
		r := restartable{new(atomic.Pointer[idem.Embedded])}
		r.Store(idem.NewEmbedded(clock, ttl))
		return storetest.AuthorityFixture{
			Open:  func(testing.TB) idem.Authority { return r },
			TTL:   ttl,
			Pass:  func(_ testing.TB, d time.Duration) { boot.Add(int64(d)) },
			Flush: func(testing.TB) { r.Store(idem.NewEmbedded(clock, ttl)) },
		}
	})
}

func claimOf(n int) idem.Claim {
	id := plain()
	id.Quantity = n + 1
	return idem.Claim{Keys: id.KeysAt(threeSeconds, 0, nil), Event: event(n)}
}

func event(n int) (e idem.EventID) {
	e[0], e[14], e[15] = 1, byte(n>>8), byte(n)
	return e
}

// Expired claims leave memory as others come, although nobody asks for their keys again.
func TestEmbeddedMemoryIsBounded(t *testing.T) {
	boot := time.Duration(0)
	e := idem.NewEmbedded(func() time.Duration { return boot }, time.Second)
	most := 0
	for n := range 20_000 {
		boot += time.Millisecond
		e.Claim(t.Context(), []idem.Claim{claimOf(n)})
		most = max(most, e.Stats().Held)
	}
	// A claim a millisecond, each living 1000 to 1100 ms and leaving at most 100 ms late.
	if most < 1000 || most > 1210 {
		t.Errorf("at most %d claims in memory, want 1000 to 1210", most)
	}
	if s := e.Stats(); s.Evicted != 0 {
		t.Errorf("%d claims evicted", s.Evicted)
	}
}

func TestEmbeddedJitterIsATenthAtMost(t *testing.T) {
	for n := range 200 {
		boot := time.Duration(0)
		e := idem.NewEmbedded(func() time.Duration { return boot }, time.Second)
		first, second := claimOf(1), claimOf(1)
		second.Event = event(1000 + n)
		won := func(c idem.Claim) (ok bool) {
			e.Claim(t.Context(), []idem.Claim{c})[0].Match(func() { ok = true }, func(idem.EventID) {}, func(error) {})
			return ok
		}
		if !won(first) {
			t.Fatal("first claim is not won")
		}
		if boot = time.Second - 1; won(second) {
			t.Fatal("claim ended before its ttl")
		}
		if boot = 1100*time.Millisecond + 1; !won(second) {
			t.Fatal("claim outlived its ttl by more than a tenth")
		}
	}
}

func TestEmbeddedRefusesClaimsWithoutKeyOrEvent(t *testing.T) {
	e := idem.NewEmbedded(func() time.Duration { return 0 }, time.Minute)
	noKey, noEvent := claimOf(1), claimOf(2)
	noKey.Keys, noEvent.Event = idem.Keys{}, idem.EventID{}
	for i, o := range e.Claim(t.Context(), []idem.Claim{noKey, noEvent}) {
		o.Match(
			func() { t.Errorf("claim %d won", i) },
			func(idem.EventID) { t.Errorf("claim %d held", i) },
			func(err error) {
				if err == nil {
					t.Errorf("claim %d: no reason", i)
				}
			})
	}
	if h := e.Stats().Held; h != 0 {
		t.Errorf("%d keys held", h)
	}
}

func TestZeroOutcomeIsUnknown(t *testing.T) {
	var zero idem.Outcome
	unknown := false
	zero.Match(func() {}, func(idem.EventID) {}, func(error) { unknown = true })
	if !unknown {
		t.Error("the zero Outcome is not Unknown")
	}
}

// Closing while others claim: nothing is won afterwards.
func TestEmbeddedCloseIsSafe(t *testing.T) {
	e := idem.NewEmbedded(func() time.Duration { return 0 }, time.Minute)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 200 {
				e.Claim(t.Context(), []idem.Claim{claimOf(n*200 + i)})
			}
		})
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if h := e.Stats().Held; h != 0 {
		t.Errorf("%d keys held after Close", h)
	}
}
