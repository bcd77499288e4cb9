package idem

import (
	"testing"
	"time"
)

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
	// An entry whose key was claimed anew does not take the new claim with it.
	boot += 2 * time.Minute
	e.jitter = func(int64) int64 { return 0 }
	if !claim(1, 3) || claim(1, 4) {
		t.Error("a key claimed anew after its expiry does not stand")
	}
	if s := e.Stats(); s.Held != 1 {
		t.Errorf("%d held after all had expired but one", s.Held)
	}
}
