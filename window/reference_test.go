package window

import (
	"testing"
	"time"
)

// The ledger's clock is the reference of a whole fleet. While it is away the clock goes on alone, and says so.
func TestAFedReferenceAges(t *testing.T) {
	o := &refOS{boot: time.Hour, wall: time.UnixMilli(1_764_000_000_000)}
	c := NewClock(o, Mark{}, ClockOptions{NoKernelReference: true})
	if q := c.Now().Quality; q != Unsynced {
		t.Fatalf("before any reference: %v", q)
	}
	c.Correct(FromTime(o.wall).Add(3*time.Second), 5*time.Millisecond)
	if r := c.Now(); r.Quality != Synced || r.T != FromTime(o.wall)+3000-5 {
		t.Fatalf("after a reference: %v %v", r.Quality, r.T)
	}
	o.pass(referenceAge)
	if q := c.Now().Quality; q != Synced {
		t.Fatalf("at its age: %v", q)
	}
	o.pass(time.Second)
	if q := c.Now().Quality; q != Holdover {
		t.Fatalf("beyond its age: %v", q)
	}
	c.Correct(c.Now().T, 0)
	if q := c.Now().Quality; q != Synced {
		t.Fatalf("after the next reference: %v", q)
	}
}

// A disciplined kernel clock proves the start, in another boot too, although another reference follows: until that has
// confirmed it, it is no more than what went on without.
func TestASyncedKernelProvesTheStart(t *testing.T) {
	o := &refOS{boot: time.Hour, wall: time.UnixMilli(1_764_000_000_000), synced: true}
	last := Mark{BootID: "another", T: FromTime(o.wall) - 1000, Reserved: FromTime(o.wall) + 50_000}
	c := NewClock(o, last, ClockOptions{NoKernelReference: true})
	r := c.Now()
	if r.T != FromTime(o.wall) || r.Quality != Holdover || r.Suspect(Default(Dispense)) {
		t.Fatalf("%v %v, suspect %v", r.T, r.Quality, r.Suspect(Default(Dispense)))
	}
	c.Correct(r.T, 0)
	if r := c.Now(); r.Quality != Synced || r.T != FromTime(o.wall) {
		t.Fatalf("confirmed: %v %v", r.T, r.Quality)
	}
	if r := NewClock(o, last, ClockOptions{}).Now(); r.Quality != Synced {
		t.Fatalf("as the reference itself: %v", r.Quality)
	}
}

type refOS struct {
	boot   time.Duration
	wall   time.Time
	synced bool
}

func (o *refOS) Boot() time.Duration               { return o.boot }
func (o *refOS) Wall() time.Time                   { return o.wall }
func (o *refOS) BootID() string                    { return "boot" }
func (o *refOS) WallSynced() (bool, time.Duration) { return o.synced, 0 }
func (o *refOS) pass(d time.Duration)              { o.boot += d; o.wall = o.wall.Add(d) }
