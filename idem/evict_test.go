package idem

import (
	"testing"
	"time"
)

// What is spent of the queue is given back.
func TestEmbeddedQueueIsBounded(t *testing.T) {
	boot := time.Duration(0)
	e := NewEmbedded(func() time.Duration { return boot }, time.Second)
	for n := range 10_000 {
		boot += 10 * time.Millisecond
		e.Claim(t.Context(), []Claim{{Keys: Keys{Idem: Key{Kind: Idem, Hash: [32]byte{byte(n), byte(n >> 8)}}}, Event: EventID{1}}})
		if len(e.queue) > 300 || cap(e.queue) > 1000 {
			t.Fatalf("after %d claims the queue has %d entries, room for %d, for %d claims that stand", n, len(e.queue), cap(e.queue), len(e.held))
		}
	}
}

// Beyond the bound the oldest claims give way, the newest stand.
func TestEmbeddedEvictsTheOldest(t *testing.T) {
	boot := time.Duration(0)
	e := NewEmbedded(func() time.Duration { return boot }, time.Minute)
	e.limit = 10
	claim := func(n, by byte) (won bool) {
		c := Claim{Keys: Keys{Idem: Key{Kind: Idem, Hash: [32]byte{n}}}, Event: EventID{by}}
		e.Claim(t.Context(), []Claim{c})[0].Match(func() { won = true }, func(EventID) {}, func(error) {})
		return won
	}
	for n := range byte(30) {
		if !claim(n, 1) {
			t.Fatalf("claim %d is not won", n)
		}
		if len(e.held) > 10 || len(e.queue) > 100 {
			t.Fatalf("%d held, %d queued", len(e.held), len(e.queue))
		}
	}
	if s := e.Stats(); s.Held != 10 || s.Evicted != 20 {
		t.Errorf("stats %+v, want 10 held, 20 evicted", s)
	}
	if claim(29, 2) || claim(20, 2) {
		t.Error("one of the newest claims was lost")
	}
	if !claim(0, 2) {
		t.Error("the oldest claim still stands")
	}
}

// Behind an entry that lives longer by jitter, an expired one waits for its sweep: its key is free all the
// same, and the sweep does not take the key's new claim with it.
func TestEmbeddedKeyClaimedAnew(t *testing.T) {
	boot := time.Duration(0)
	e := NewEmbedded(func() time.Duration { return boot }, time.Second)
	claim := func(n, by byte, jitter time.Duration) (won bool) {
		e.jitter = func(int64) int64 { return int64(jitter) }
		c := Claim{Keys: Keys{Idem: Key{Kind: Idem, Hash: [32]byte{n}}}, Event: EventID{by}}
		e.Claim(t.Context(), []Claim{c})[0].Match(func() { won = true }, func(EventID) {}, func(error) {})
		return won
	}
	if !claim(1, 1, 100*time.Millisecond) || !claim(2, 1, 0) {
		t.Fatal("a first claim is not won")
	}
	if boot = time.Second - 1; claim(2, 2, 0) {
		t.Error("claimed anew before its expiry")
	}
	if boot = time.Second; !claim(2, 2, 0) {
		t.Error("not free at its expiry")
	}
	if boot = 1100 * time.Millisecond; claim(2, 3, 0) {
		t.Error("the sweep took the new claim")
	}
	if s := e.Stats(); s.Held != 1 || s.Evicted != 0 {
		t.Errorf("stats %+v, want the new claim alone", s)
	}
}
