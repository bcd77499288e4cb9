package testenv

import (
	"testing"
	"time"
)

func TestWatch(t *testing.T) {
	w := NewWatch(t)
	<-time.NewTimer(200 * time.Millisecond).C
	k := w.Stop()
	if k.Wall < 200*time.Millisecond || k.Late > k.Wall || k.Pressed > k.Wall || w.Stop() != k {
		t.Errorf("%+v, and then %+v", k, w.Stop())
	}
	const ms = time.Millisecond
	for _, c := range []struct {
		name    string
		k       Took
		promise time.Duration
		kept    bool
	}{
		{"in time", Took{Wall: 900 * ms}, 1000 * ms, true},
		{"too late on a quiet machine", Took{Wall: 1100 * ms, Late: 20 * ms, Pressed: 30 * ms}, 1000 * ms, false},
		{"the machine stood", Took{Wall: 9000 * ms, Late: 8200 * ms}, 1000 * ms, true},
		{"the machine was busy", Took{Wall: 4000 * ms, Pressed: 3900 * ms}, 1000 * ms, true},
		{"far too late, however busy the machine was", Took{Wall: 20000 * ms, Late: 500 * ms, Pressed: 20000 * ms}, 3000 * ms, false},
		{"little is promised", Took{Wall: 900 * ms, Pressed: 850 * ms}, 100 * ms, true},
	} {
		if own := c.k.Own(c.promise); (own <= c.promise) != c.kept {
			t.Errorf("%s: %v are left of %v", c.name, own, c.k)
		}
	}
}

// What a watch subtracts is what the machine is late: of a timer that is too long, nothing is.
func TestWatchFindsWhatIsLate(t *testing.T) {
	f := &failures{TB: t}
	for n := 0; n < 10 && f.n == 0; n++ { // a busy machine may hide one
		Within(f, "nothing", 50*time.Millisecond, func() { <-time.NewTimer(1500 * time.Millisecond).C })
	}
	if f.n == 0 {
		t.Error("30 times what is promised is not found")
	}
}

// failures counts the errors of a test instead of failing it.
type failures struct {
	testing.TB
	n int
}

func (f *failures) Helper()               {}
func (f *failures) Errorf(string, ...any) { f.n++ }
