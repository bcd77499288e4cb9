package window_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/window"
)

// fakeOS is a machine whose clocks a test moves.
type fakeOS struct {
	mu     sync.Mutex
	wall   time.Time // at boot 0
	boot   time.Duration
	synced bool
	err    time.Duration
	id     string
}

func (o *fakeOS) Wall() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wall.Add(o.boot)
}

func (o *fakeOS) WallSynced() (bool, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.synced, o.err
}

func (o *fakeOS) Boot() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.boot
}

func (o *fakeOS) BootID() string { return o.id }

// pass lets time pass, on both clocks.
func (o *fakeOS) pass(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.boot += d
}

// step sets the wall clock, and says whether it is disciplined afterwards.
func (o *fakeOS) step(d time.Duration, synced bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wall, o.synced = o.wall.Add(d), synced
}

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

const hour = time.Hour

// machine booted an hour before noon.
func machine(synced bool) *fakeOS {
	return &fakeOS{wall: noon.Add(-hour), boot: hour, synced: synced, id: "boot-1"}
}

func expectT(t *testing.T, what string, got window.Reading, want time.Time) {
	t.Helper()
	if got.T != window.FromTime(want) {
		t.Errorf("%s: t = %s, want %s", what, got.T, window.FromTime(want))
	}
}

func TestWallStepsDoNotMoveT(t *testing.T) {
	for _, step := range []time.Duration{8 * hour, -8 * hour, hour, -hour, time.Second, -time.Second} {
		o := machine(true)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
		expectT(t, "start", c.Now(), noon)
		o.step(step, false) // by hand: the discipline ends
		for range 20 {
			o.pass(30 * time.Second)
			c.Now()
		}
		r := c.Now()
		expectT(t, "after a step of "+step.String(), r, noon.Add(10*time.Minute))
		if r.Quality != window.Holdover || r.Suspect(threeSeconds) {
			t.Errorf("after a step of %v: quality %s, suspect %v, want holdover and no suspicion", step, r.Quality, r.Suspect(threeSeconds))
		}
		if s := c.TakeSteps(); len(s) != 0 {
			t.Errorf("steps %v", s)
		}
	}
}

var threeSeconds = window.Default(window.Dispense)

func TestSuspendCounts(t *testing.T) {
	o := machine(true)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	before := c.Now()
	o.pass(9 * hour) // CLOCK_BOOTTIME goes on while the machine sleeps
	after := c.Now()
	expectT(t, "after suspend", after, noon.Add(9*hour))
	if d := after.Boot - before.Boot; d != 9*hour {
		t.Errorf("boottime moved by %v, want 9h", d)
	}
}

func TestQualityFollowsTheKernel(t *testing.T) {
	o := machine(false)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	quality := func(want window.Quality) {
		t.Helper()
		if got := c.Now().Quality; got != want || c.Stats().Quality != want {
			t.Errorf("quality %s, in stats %s, want %s", got, c.Stats().Quality, want)
		}
	}
	quality(window.Unsynced)
	o.pass(2 * time.Minute)
	quality(window.Unsynced)
	o.step(0, true)
	o.pass(2 * time.Minute)
	quality(window.Synced)
	o.step(0, false)
	quality(window.Synced) // asked again after a minute at the earliest
	o.pass(2 * time.Minute)
	quality(window.Holdover)
	o.pass(100 * hour)
	quality(window.Holdover)
	o.step(0, true)
	o.pass(2 * time.Minute)
	quality(window.Synced)
	if q := c.Now().AsDevice(5); q.Quality != window.Device || q.T != 5 || q.Boot != o.Boot() || q.Suspect(threeSeconds) {
		t.Errorf("as device: %+v", q)
	}
}

func TestForwardCorrectionAtOnce(t *testing.T) {
	for _, ahead := range []time.Duration{3 * time.Millisecond, time.Second, 20 * hour} {
		o := machine(false)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true})
		c.Now()
		c.Correct(window.FromTime(noon.Add(ahead)), time.Millisecond)
		r := c.Now()
		expectT(t, "corrected", r, noon.Add(ahead-time.Millisecond)) // the nearer end of what the reference knows
		if r.Quality != window.Synced || r.Suspect(threeSeconds) || len(c.TakeSteps()) != 0 {
			t.Errorf("%v forward: %+v", ahead, r)
		}
		if s := c.Stats(); s.Offset != ahead || s.Error != time.Millisecond || s.Steps != 0 {
			t.Errorf("%v forward: stats %+v", ahead, s)
		}
	}
}

func TestCorrectionWithinTheErrorIsNone(t *testing.T) {
	o := machine(false)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true})
	for _, off := range []time.Duration{40 * time.Millisecond, -40 * time.Millisecond} {
		c.Correct(window.FromTime(noon.Add(off)), 40*time.Millisecond)
		expectT(t, "within the error", c.Now(), noon)
	}
	o.pass(hour)
	expectT(t, "an hour later", c.Now(), noon.Add(hour))
}

func TestBackwardCorrectionIsSlewed(t *testing.T) {
	for _, behind := range []time.Duration{time.Second, 299 * time.Second, 5 * time.Minute} {
		o := machine(false)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true})
		c.Correct(window.FromTime(noon.Add(-behind)), 0)
		last := c.Now()
		expectT(t, "at the correction", last, noon)
		for passed := time.Duration(0); passed < 10*behind; {
			d := 73 * time.Millisecond
			o.pass(d)
			passed += d
			r := c.Now()
			if moved := r.T.Sub(last.T); moved < d*9/10-time.Millisecond || moved > d+time.Millisecond {
				t.Fatalf("t moved by %v in %v, want 90 to 100 %%", moved, d)
			}
			last = r
		}
		o.pass(time.Second)
		want := window.FromTime(o.Wall().Add(-behind))
		if d := c.Now().T.Sub(want).Abs(); d > 2*time.Millisecond {
			t.Errorf("%v behind: still %v off after ten times that", behind, d)
		}
		if c.Now().Suspect(threeSeconds) || len(c.TakeSteps()) != 0 {
			t.Error("a slewed correction left a suspicion or a step")
		}
	}
}

// A reference known only to within its slow reply moves the clock no further than it must: what it says of the
// rest may be as wrong as that.
func TestAVagueReferenceMovesLittle(t *testing.T) {
	for _, off := range []time.Duration{870 * time.Millisecond, -870 * time.Millisecond} {
		o := machine(false)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true})
		c.Now()
		c.Correct(window.FromTime(noon.Add(off)), 850*time.Millisecond)
		o.pass(time.Minute)
		expectT(t, off.String(), c.Now(), noon.Add(time.Minute+off/87*2))
	}
}

// What is left of a slew ends when the reference agrees again.
func TestSlewEndsWhenTheReferenceAgrees(t *testing.T) {
	o := machine(false)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true})
	c.Correct(window.FromTime(noon.Add(-time.Minute)), 0)
	o.pass(10 * time.Second)
	at := c.Now().T
	c.Correct(at, 0)
	o.pass(10 * time.Second)
	if got := c.Now().T.Sub(at); got != 10*time.Second {
		t.Errorf("t moved by %v in 10s after the reference agreed", got)
	}
}

func TestFarAheadStepsBackAtOnce(t *testing.T) {
	for _, c := range []struct{ ahead, alarm time.Duration }{{5*time.Minute + time.Millisecond, 0}, {100 * 365 * 24 * hour, 0}, {2 * time.Second, time.Second}} {
		o := machine(false)
		k := window.NewClock(o, window.Mark{}, window.ClockOptions{NoKernelReference: true, Alarm: c.alarm})
		o.pass(time.Minute)
		highest := k.Now().T
		k.Correct(highest.Add(-c.ahead), time.Millisecond)
		r := k.Now()
		if r.T != highest.Add(-c.ahead) {
			t.Errorf("%v ahead: t = %s, want %s", c.ahead, r.T, highest.Add(-c.ahead))
		}
		if s := k.TakeSteps(); len(s) != 1 || s[0] != (window.Step{From: highest, To: r.T}) {
			t.Errorf("%v ahead: steps %v", c.ahead, s)
		}
		if s := k.TakeSteps(); len(s) != 0 || k.Stats().Steps != 1 {
			t.Errorf("%v ahead: steps again %v, stats %+v", c.ahead, s, k.Stats())
		}
		// Suspect up to and at the highest t + W + G, not after it.
		o.pass(c.ahead + 3500*time.Millisecond)
		if r := k.Now(); r.T != highest.Add(3500*time.Millisecond) || !r.Suspect(threeSeconds) || r.Suspect(window.Default(window.Count)) {
			t.Errorf("%v ahead: at %s suspect %v, by the short window %v", c.ahead, r.T, r.Suspect(threeSeconds), r.Suspect(window.Default(window.Count)))
		}
		o.pass(time.Millisecond)
		if k.Now().Suspect(threeSeconds) {
			t.Errorf("%v ahead: suspect for ever", c.ahead)
		}
	}
}

func TestKernelFarBehindStepsBack(t *testing.T) {
	o := machine(false)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	c.Now()
	o.step(-hour, true) // a time service found the clock an hour fast
	o.pass(2 * time.Minute)
	r := c.Now()
	expectT(t, "after the kernel's step", r, noon.Add(2*time.Minute-hour))
	if r.Quality != window.Synced || !r.Suspect(threeSeconds) || len(c.TakeSteps()) != 1 {
		t.Errorf("after the kernel's step: %+v, suspect %v", r, r.Suspect(threeSeconds))
	}
}

func TestRestartInTheSameBootGoesOn(t *testing.T) {
	for _, c := range []struct {
		before bool // disciplined before the restart
		want   window.Quality
	}{{true, window.Holdover}, {false, window.Unsynced}} {
		o := machine(c.before)
		m := window.NewClock(o, window.Mark{}, window.ClockOptions{}).Mark(10 * time.Second)
		if m.BootID != "boot-1" || m.T != window.FromTime(noon) || m.Boot != hour || m.Reserved != m.T.Add(10*time.Second) {
			t.Errorf("mark %+v", m)
		}
		o.step(8*hour, false)
		o.pass(time.Minute)
		r := window.NewClock(o, m, window.ClockOptions{}).Now()
		expectT(t, "after the restart", r, noon.Add(time.Minute))
		if r.Quality != c.want || r.Suspect(threeSeconds) {
			t.Errorf("after the restart: quality %s, want %s; suspect %v", r.Quality, c.want, r.Suspect(threeSeconds))
		}
	}
}

// A clock that was stepped back keeps its suspicion over a restart, whatever is believed then.
func TestRestartKeepsTheSuspicion(t *testing.T) {
	for _, synced := range []bool{false, true} {
		o := machine(false)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
		c.Now()
		o.step(-hour, true)
		o.pass(2 * time.Minute)
		if !c.Now().Suspect(threeSeconds) {
			t.Fatal("no suspicion after the step")
		}
		m := c.Mark(10 * time.Second)
		o.step(0, synced)
		o.pass(time.Minute)
		r := window.NewClock(o, m, window.ClockOptions{}).Now()
		expectT(t, "after the restart", r, noon.Add(3*time.Minute-hour))
		if !r.Suspect(threeSeconds) {
			t.Errorf("kernel synced %v: the suspicion did not outlast the restart", synced)
		}
		o.pass(hour + time.Minute)
		if window.NewClock(o, m, window.ClockOptions{}).Now().Suspect(threeSeconds) {
			t.Errorf("kernel synced %v: suspect although t is past all that was used", synced)
		}
	}
}

func TestRestartInAnotherBootWithoutProof(t *testing.T) {
	m := window.NewClock(machine(true), window.Mark{}, window.ClockOptions{}).Mark(10 * time.Second)
	for _, c := range []struct {
		name    string
		wall    time.Time
		start   time.Time
		suspect bool
	}{
		{"battery empty", time.Unix(0, 0), noon.Add(10 * time.Second), true},
		{"just before", noon.Add(9 * time.Second), noon.Add(10 * time.Second), true},
		{"within W+G of the bound", noon.Add(13 * time.Second), noon.Add(13 * time.Second), true},
		{"well after", noon.Add(hour), noon.Add(hour), false},
	} {
		o := &fakeOS{wall: c.wall, id: "boot-2"}
		k := window.NewClock(o, m, window.ClockOptions{})
		r := k.Now()
		expectT(t, c.name, r, c.start)
		if r.Quality != window.Unsynced || r.Suspect(threeSeconds) != c.suspect {
			t.Errorf("%s: quality %s, suspect %v, want unsynced, %v", c.name, r.Quality, r.Suspect(threeSeconds), c.suspect)
		}
		// The next mark reserves beyond what is reserved already, so that two such starts do not meet.
		if next := k.Mark(10 * time.Second); next.Reserved < r.T.Add(10*time.Second) || next.Reserved < m.Reserved.Add(10*time.Second) {
			t.Errorf("%s: reserved to %s", c.name, next.Reserved)
		}
		o.pass(14 * time.Second)
		if k.Now().Suspect(threeSeconds) {
			t.Errorf("%s: suspect past the bound + W + G", c.name)
		}
	}
	// An uptime that would fit proves nothing.
	o := &fakeOS{wall: noon.Add(-3 * hour), boot: 2 * hour, id: "boot-2"}
	r := window.NewClock(o, m, window.ClockOptions{}).Now()
	expectT(t, "longer up", r, noon.Add(10*time.Second))
	if r.Quality != window.Unsynced || !r.Suspect(threeSeconds) {
		t.Errorf("longer up: %+v", r)
	}
	// A boot id that comes back with an earlier boottime is another boot.
	o = &fakeOS{wall: noon.Add(-hour), boot: time.Minute, id: "boot-1"}
	if r := window.NewClock(o, m, window.ClockOptions{}).Now(); r.Quality != window.Unsynced || !r.Suspect(threeSeconds) {
		t.Errorf("boottime went back: %+v", r)
	}
}

func TestSyncedKernelIsBelievedAtStart(t *testing.T) {
	m := window.NewClock(machine(true), window.Mark{}, window.ClockOptions{}).Mark(10 * time.Second)
	for _, id := range []string{"boot-1", "boot-2"} {
		o := &fakeOS{wall: noon.Add(time.Second - 2*hour), boot: 2 * hour, synced: true, id: id}
		r := window.NewClock(o, m, window.ClockOptions{}).Now()
		expectT(t, id, r, noon.Add(time.Second))
		if r.Quality != window.Synced || r.Suspect(threeSeconds) {
			t.Errorf("%s: quality %s, suspect %v", id, r.Quality, r.Suspect(threeSeconds))
		}
	}
}

func TestHighWater(t *testing.T) {
	at := window.FromTime(noon)
	for _, synced := range []bool{true, false} {
		// A little ahead: t begins there and slews back.
		o := machine(synced)
		c := window.NewClock(o, window.Mark{}, window.ClockOptions{HighWater: at.Add(10 * time.Second)})
		r := c.Now()
		expectT(t, "10 s ahead", r, noon.Add(10*time.Second))
		if r.Suspect(threeSeconds) || len(c.TakeSteps()) != 0 {
			t.Errorf("10 s ahead: suspect %v", r.Suspect(threeSeconds))
		}
		for range 20 {
			o.pass(10 * time.Second)
			next := c.Now()
			if next.T < r.T {
				t.Fatal("t went back")
			}
			r = next
		}
		expectT(t, "10 s ahead, slewed", r, noon.Add(200*time.Second))
		// Far ahead: t is the reference's at once, and suspect.
		o = machine(synced)
		c = window.NewClock(o, window.Mark{}, window.ClockOptions{HighWater: at.Add(24 * hour)})
		r = c.Now()
		expectT(t, "a day ahead", r, noon)
		if s := c.TakeSteps(); !r.Suspect(threeSeconds) || len(s) != 1 || s[0] != (window.Step{From: at.Add(24 * hour), To: at}) {
			t.Errorf("a day ahead: suspect %v, steps %v", r.Suspect(threeSeconds), s)
		}
	}
	// Behind: no matter.
	c := window.NewClock(machine(true), window.Mark{}, window.ClockOptions{HighWater: at.Add(-time.Second)})
	expectT(t, "behind", c.Now(), noon)
}

func TestTIsCutTowardsThePast(t *testing.T) {
	for _, c := range []struct {
		ns   int64
		want window.UTC
	}{{-1, -1}, {-1e6, -1}, {-1e6 - 1, -2}, {0, 0}, {999_999, 0}, {1e6, 1}} {
		o := &fakeOS{wall: time.Unix(0, c.ns), id: "boot-1"}
		if got := window.NewClock(o, window.Mark{}, window.ClockOptions{}).Now().T; got != c.want {
			t.Errorf("%d ns is t = %d ms, want %d", c.ns, got, c.want)
		}
	}
}

func TestTNeverDecreasesButAtAStep(t *testing.T) {
	o := machine(true)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	last := c.Now().T
	steps := []time.Duration{-time.Second, 4 * time.Minute, -4 * time.Minute, -10 * time.Millisecond, -4 * time.Minute, time.Minute}
	for i := range 6000 {
		o.pass(time.Duration(37+i%100) * time.Millisecond)
		if i%500 == 0 {
			o.step(steps[i/500%len(steps)], true)
		}
		now := c.Now().T
		if now < last {
			if s := c.TakeSteps(); len(s) == 0 {
				t.Fatalf("t went from %s to %s without a step", last, now)
			}
		}
		last = now
	}
}

func TestClockConcurrently(t *testing.T) {
	o := machine(true)
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			var last window.Reading
			for i := range 500 {
				r := c.Now()
				if r.T < last.T || r.Boot < last.Boot {
					t.Errorf("went from %+v to %+v", last, r)
				}
				last = r
				switch (i + n) % 5 {
				case 0:
					o.pass(time.Millisecond)
				case 1:
					c.Correct(r.T.Add(-time.Second), 0)
				case 2:
					c.Mark(time.Second)
				case 3:
					c.Stats()
				case 4:
					c.TakeSteps()
				}
			}
		})
	}
	wg.Wait()
	if c.Stats().Steps != 0 {
		t.Errorf("%d steps for corrections of a second", c.Stats().Steps)
	}
}

func TestHost(t *testing.T) {
	o, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	if id := o.BootID(); len(id) < 36 || strings.TrimSpace(id) != id {
		t.Errorf("boot id %q", id)
	}
	if again, err := window.Host(); err != nil || again.BootID() != o.BootID() {
		t.Errorf("the boot has two ids: %v", err)
	}
	if d := time.Until(o.Wall()).Abs(); d > time.Minute {
		t.Errorf("the wall clock is %v off", d)
	}
	a := o.Boot()
	b := o.Boot()
	if a <= 0 || b < a {
		t.Errorf("boottime %v, then %v", a, b)
	}
	if _, e := o.WallSynced(); e < 0 {
		t.Errorf("estimated error %v", e)
	}
	c := window.NewClock(o, window.Mark{}, window.ClockOptions{})
	if d := window.FromTime(time.Now()).Sub(c.Now().T).Abs(); d > time.Minute {
		t.Errorf("t is %v from the wall clock", d)
	}
	if c.BootID() != o.BootID() || c.Boot() < b {
		t.Errorf("the clock's boot %s, %v", c.BootID(), c.Boot())
	}
}
