package bloom

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"scanonce/idem"
)

func key(kind idem.Kind, n uint64) idem.Key {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return idem.Key{Kind: kind, Hash: sha256.Sum256(b[:])}
}

func TestIncompleteFilterNeverSaysNew(t *testing.T) {
	f := New(100, 1e-3, time.Minute)
	if h := f.Ask(key(idem.Physical, 1)); h != PerhapsSeen {
		t.Fatalf("incomplete filter said %v", h)
	}
	f.SetComplete()
	if h := f.Ask(key(idem.Physical, 1)); h != SurelyNew {
		t.Fatalf("complete empty filter said %v", h)
	}
}

// A filter that is asked for the idempotency keys alone says "surely new" of a bounce after a one-shot
// quantity: the bounce's keys carry quantity 1. The physical identity must be asked for too.
func TestAskedForKeysAloneMissesAOneShotQuantityBounce(t *testing.T) {
	f := New(1000, 1e-6, time.Minute)
	f.SetComplete()
	phys, first, bounce := key(idem.Physical, 7), key(idem.Idem, 30), key(idem.Idem, 1)
	f.Add(0, phys, first)
	if h := f.Ask(bounce); h != SurelyNew {
		t.Fatalf("keys alone: %v; the premise of this test is gone", h)
	}
	if h := f.Ask(phys, bounce); h != PerhapsSeen {
		t.Fatalf("with the physical identity: %v", h)
	}
}

func TestKindsAreApart(t *testing.T) {
	f := New(1000, 1e-9, time.Minute)
	f.SetComplete()
	f.Add(0, key(idem.Idem, 5))
	if h := f.Ask(key(idem.Edge, 5)); h != SurelyNew {
		t.Fatalf("an idempotency key was found as an edge key: %v", h)
	}
}

func TestNothingWithinTheHorizonIsForgotten(t *testing.T) {
	const horizon = time.Minute
	f := New(50, 1e-4, horizon) // far too small on purpose: generations must chain
	f.SetComplete()
	rnd := rand.New(rand.NewPCG(1, 2))
	type added struct {
		k  idem.Key
		at time.Duration
	}
	var all []added
	var now time.Duration
	for i := range 5000 {
		now += time.Duration(rnd.IntN(100)) * time.Millisecond
		k := key(idem.Physical, uint64(i))
		f.Add(now, k)
		all = append(all, added{k, now})
		for _, a := range all[max(0, len(all)-200):] {
			if now-a.at <= horizon && f.Ask(a.k) != PerhapsSeen {
				t.Fatalf("key added %v ago was forgotten", now-a.at)
			}
		}
	}
	if n := f.Stats().Generations; n > 40 {
		t.Fatalf("%d generations kept", n)
	}
	now += 3 * horizon
	f.Add(now, key(idem.Physical, 1<<40))
	if s := f.Stats(); s.Generations != 1 || s.Keys != 1 {
		t.Fatalf("after three idle horizons: %+v", s)
	}
	if f.Ask(all[0].k) != SurelyNew {
		t.Fatal("a key of long ago is still there")
	}
}

func TestFalsePositiveRate(t *testing.T) {
	f := New(20000, 1e-3, time.Hour)
	f.SetComplete()
	for i := range uint64(20000) {
		f.Add(0, key(idem.Idem, i))
	}
	wrong := 0
	for i := range uint64(100000) {
		if f.Ask(key(idem.Idem, 1<<32+i)) == PerhapsSeen {
			wrong++
		}
	}
	if wrong > 300 {
		t.Fatalf("%d of 100000 false positives; 100 are expected", wrong)
	}
}

func TestAskAndAddDoNotAllocate(t *testing.T) {
	f := New(1<<20, 1e-3, time.Hour)
	f.SetComplete()
	var n uint64
	f.Add(0, key(idem.Idem, 0))
	if a := testing.AllocsPerRun(1000, func() {
		n++
		p, i, e := key(idem.Physical, n), key(idem.Idem, n), key(idem.Edge, n)
		if f.Ask(p, i, e) == SurelyNew {
			f.Add(0, p, i, e)
		}
	}); a != 0 {
		t.Fatalf("%v allocations a scan", a)
	}
}

func BenchmarkAskAndAdd(b *testing.B) {
	f := New(1<<16, 1e-3, time.Hour)
	f.SetComplete()
	keys := make([]idem.Key, 3*4096)
	for i := range keys {
		keys[i] = key(idem.Kind(i%3+1), uint64(i))
	}
	for i := 0; b.Loop(); i++ {
		n := i % 4096 * 3
		if f.Ask(keys[n], keys[n+1], keys[n+2]) == SurelyNew {
			f.Add(time.Duration(i), keys[n], keys[n+1], keys[n+2])
		}
	}
}
