package idem

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// maxHeld bounds the memory of an Embedded at some 20 MB. Beyond it the oldest claims give way, as keys do
// in a store with volatile-ttl eviction: a lost claim costs latency only.
const maxHeld = 100_000

// Embedded is the Authority of an agent without Redis: claims in memory, with expiry, lost at a restart.
// It answers as SET NX PX does: a claim that stands is not prolonged by its holder.
type Embedded struct {
	boot   func() time.Duration
	ttl    time.Duration
	jitter func(n int64) int64 // uniform in [0, n)
	limit  int

	mu     sync.Mutex
	held   map[Key]holder
	queue  []expiry // in the order of the claims; queue[:head] is spent
	head   int
	lost   uint64
	closed bool
}

type holder struct {
	by    EventID
	until time.Duration
}

type expiry struct {
	key   Key
	until time.Duration
}

// EmbeddedStats is a snapshot of an Embedded's figures.
type EmbeddedStats struct {
	Held    int    // keys in memory, the expired ones not yet swept included
	Evicted uint64 // claims that gave way before their time because of the bound
}

var errClosed = errors.New("cannot claim: the authority is closed; the ledger decides alone")

// NewEmbedded makes an empty Embedded. boot is a clock that never goes back (window.Clock.Boot). Each key
// lives for ttl and up to a tenth more.
func NewEmbedded(boot func() time.Duration, ttl time.Duration) *Embedded {
	return &Embedded{boot: boot, ttl: ttl, jitter: rand.Int64N, limit: maxHeld, held: map[Key]holder{}}
}

// Claim implements Authority.
func (e *Embedded) Claim(ctx context.Context, claims []Claim) []Outcome {
	out := make([]Outcome, len(claims))
	e.mu.Lock()
	defer e.mu.Unlock()
	err := ctx.Err()
	if err == nil && e.closed {
		err = errClosed
	}
	if err != nil {
		for i := range out {
			out[i] = Unknown(err)
		}
		return out
	}
	now := e.boot()
	e.sweep(now)
	for i := range claims {
		out[i] = e.claim(now, &claims[i])
	}
	return out
}

func (e *Embedded) claim(now time.Duration, c *Claim) Outcome {
	if c.Keys.Idem.IsZero() || c.Event.IsZero() {
		return Unknown(errors.New("cannot claim without a key and an event id: give both"))
	}
	// Both are always tried, and each is kept even if the other is refused, since two plain SETs in one
	// pipeline cannot do otherwise.
	edge := c.Event
	if !c.Keys.Edge.IsZero() {
		edge = e.setNX(now, c.Keys.Edge, c.Event)
	}
	switch idem := e.setNX(now, c.Keys.Idem, c.Event); {
	case idem != c.Event:
		return Held(idem)
	case edge != c.Event:
		return Held(edge)
	}
	return Won()
}

// setNX returns who holds k afterwards.
func (e *Embedded) setNX(now time.Duration, k Key, by EventID) EventID {
	if h, ok := e.held[k]; ok && now < h.until {
		return h.by
	}
	until := now + e.ttl
	if n := int64(e.ttl / 10); n > 0 {
		until += time.Duration(e.jitter(n + 1))
	}
	e.held[k] = holder{by: by, until: until}
	e.queue = append(e.queue, expiry{key: k, until: until})
	for len(e.held) > e.limit {
		if e.pop() {
			e.lost++
		}
	}
	return by
}

// sweep drops what has expired. The queue is in the order of expiry but for the jitter, so that an entry
// leaves a tenth of a ttl late at worst; a look-up checks the time by itself.
func (e *Embedded) sweep(now time.Duration) {
	for e.head < len(e.queue) && e.queue[e.head].until <= now {
		e.pop()
	}
}

// pop takes the head of the queue, and its claim unless the key was claimed anew since.
func (e *Embedded) pop() bool {
	x := e.queue[e.head]
	e.head++
	h, ok := e.held[x.key]
	if ok = ok && h.until == x.until; ok {
		delete(e.held, x.key)
	}
	if e.head == len(e.queue) {
		e.queue, e.head = e.queue[:0], 0
	} else if e.head >= 64 && e.head*2 >= len(e.queue) {
		n := copy(e.queue, e.queue[e.head:])
		e.queue, e.head = e.queue[:n], 0
	}
	return ok
}

// Stats returns the figures.
func (e *Embedded) Stats() EmbeddedStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return EmbeddedStats{Held: len(e.held), Evicted: e.lost}
}

// Close drops every claim; a later Claim is Unknown.
func (e *Embedded) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed, e.held, e.queue, e.head = true, nil, nil, 0
	return nil
}
