// Package bloom is the prefilter in front of the exact look-up. Its answer is a Hint, in which "duplicate"
// cannot be said: it never decides.
package bloom

import (
	"encoding/binary"
	"time"

	bab "github.com/bits-and-blooms/bloom/v3"

	"scanonce/idem"
)

// Hint is what the filter knows of a scan.
type Hint uint8

// The hints. PerhapsSeen is the zero value: not knowing costs an exact look-up, nothing more.
const (
	PerhapsSeen Hint = iota
	SurelyNew
)

func (h Hint) String() string {
	if h == SurelyNew {
		return "surely new"
	}
	return "perhaps seen"
}

// Filter remembers keys for at least the horizon, in generations: the current one takes new keys, and one
// whose newest key is older than the horizon is dropped whole. It is not safe for concurrent use: the
// intake alone owns it.
type Filter struct {
	capacity uint
	rate     float64
	horizon  time.Duration
	gens     []*generation // oldest first
	spare    *bab.BloomFilter
	complete bool
	at       [maxProbes]uint64 // of the key at hand
}

type generation struct {
	bits        *bab.BloomFilter
	probes      int
	n           uint
	first, last time.Duration // boottime
}

// New makes a filter whose generations take capacity keys each at the false-positive rate. It is
// incomplete until SetComplete: what was accepted before this process may be missing.
func New(capacity uint, rate float64, horizon time.Duration) *Filter {
	return &Filter{capacity: capacity, rate: rate, horizon: horizon}
}

// SetComplete says that every key of the horizon has been added.
func (f *Filter) SetComplete() { f.complete = true }

// Ask is SurelyNew only if the filter is complete and has none of the keys. A caller asks for the physical
// identity and both idempotency keys at once; zero keys are passed over.
func (f *Filter) Ask(keys ...idem.Key) Hint {
	if !f.complete {
		return PerhapsSeen
	}
	for i := range keys {
		if keys[i].IsZero() {
			continue
		}
		f.places(&keys[i])
		for _, g := range f.gens {
			if g.bits.TestLocations(f.at[:min(g.probes, maxProbes)]) {
				return PerhapsSeen
			}
		}
	}
	return SurelyNew
}

// Add remembers the keys of a scan accepted at boottime at.
func (f *Filter) Add(at time.Duration, keys ...idem.Key) {
	for len(f.gens) > 0 && at-f.gens[0].last > f.horizon {
		f.spare = f.gens[0].bits
		f.gens = f.gens[1:]
	}
	g := f.current(at)
	g.last = max(g.last, at)
	bits, size := g.bits.BitSet(), uint64(g.bits.Cap())
	for i := range keys {
		if keys[i].IsZero() {
			continue
		}
		f.places(&keys[i])
		for _, l := range f.at[:min(g.probes, maxProbes)] {
			bits.Set(uint(l % size))
		}
		g.n++
	}
}

// maxProbes is enough for a false-positive rate of one in a million.
const maxProbes = 20

// places are the bits of a key, before they are reduced to the filter's size. A key's hash is SHA-256, so
// there is nothing to hash again: two of its words give all places (Kirsch and Mitzenmacher, "Less hashing,
// same performance"). The kind goes in, so that an edge key is never taken for an idempotency key.
func (f *Filter) places(k *idem.Key) {
	at := binary.LittleEndian.Uint64(k.Hash[:8]) + uint64(k.Kind)*0x9e3779b97f4a7c15
	step := binary.LittleEndian.Uint64(k.Hash[8:16]) | 1
	for i := range f.at {
		f.at[i] = at
		at += step
	}
}

func (f *Filter) current(at time.Duration) *generation {
	if n := len(f.gens); n > 0 {
		if g := f.gens[n-1]; g.n < f.capacity && at-g.first < f.horizon {
			return g
		}
	}
	bits := f.spare
	f.spare = nil
	if bits == nil {
		bits = bab.NewWithEstimates(f.capacity, f.rate)
	} else {
		bits.ClearAll()
	}
	g := &generation{bits: bits, probes: int(bits.K()), first: at, last: at}
	f.gens = append(f.gens, g)
	return g
}

// Stats is a snapshot of the filter's figures.
type Stats struct {
	Generations int
	Keys        uint // in all generations
	Complete    bool
}

// Stats returns the filter's figures.
func (f *Filter) Stats() Stats {
	s := Stats{Generations: len(f.gens), Complete: f.complete}
	for _, g := range f.gens {
		s.Keys += g.n
	}
	return s
}
