package testenv

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Watch measures how long something takes, and beside it what of that is the machine's: how late its timers came, and
// how long tasks waited for a processor or a disk. A promise of the product is held to what is left.
type Watch struct {
	begin         time.Time
	pressed       time.Duration // the machine's count at the beginning
	end, wentHome chan struct{}
	late          time.Duration // by wentHome
	stop          func() Took
}

// Took is what a Watch has measured.
type Took struct {
	Wall    time.Duration
	Late    time.Duration // of timers that were to go off meanwhile
	Pressed time.Duration // in which some task waited for a processor or a disk, at most Wall; 0 on a kernel that does not count it
}

const (
	watchTick  = 10 * time.Millisecond
	watchGrain = 2 * time.Millisecond // a timer is not called late for less
)

// NewWatch begins to measure. It is not for a synctest bubble, whose time stands still.
func NewWatch(t testing.TB) *Watch {
	w := &Watch{begin: time.Now(), pressed: pressure(), end: make(chan struct{}), wentHome: make(chan struct{})}
	w.stop = sync.OnceValue(func() Took {
		k := Took{Wall: time.Since(w.begin)}
		k.Pressed = min(max(0, pressure()-w.pressed), k.Wall)
		close(w.end)
		<-w.wentHome
		k.Late = min(w.late, k.Wall)
		return k
	})
	go w.watch()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *Watch) watch() {
	defer close(w.wentHome)
	timer := time.NewTimer(watchTick)
	defer timer.Stop()
	due := w.begin.Add(watchTick)
	for {
		ended := false
		select {
		case <-timer.C:
		case <-w.end:
			ended = true
		}
		now := time.Now()
		if late := now.Sub(due); late > watchGrain {
			w.late += late
		}
		if ended {
			return
		}
		due = now.Add(watchTick)
		timer.Reset(watchTick)
	}
}

// Stop ends the measurement; a second call returns the same.
func (w *Watch) Stop() Took { return w.stop() }

// Within ends the measurement and fails the test if the promise is not kept.
func (w *Watch) Within(t testing.TB, what string, promise time.Duration) {
	t.Helper()
	if k := w.Stop(); k.Own(promise) > promise {
		t.Errorf("%s took %v, at most %v are promised", what, k, promise)
	}
}

// Within does f and fails the test if that takes longer than is promised.
func Within(t testing.TB, what string, promise time.Duration, f func()) {
	t.Helper()
	w := NewWatch(t)
	f()
	w.Within(t, what, promise)
}

// Own is what is left of the time without what the machine was late. While tasks wait for processors all that runs is
// slower, and by how much is not known: pressure counts for four times the promise at most, and for a second in any case,
// so that what takes far too long is found on a busy machine too.
func (k Took) Own(promise time.Duration) time.Duration {
	return max(0, k.Wall-k.Late-min(k.Pressed, max(4*promise, time.Second)))
}

func (k Took) String() string {
	return fmt.Sprintf("%v (timers were %v late meanwhile, and tasks waited for the machine for %v)",
		k.Wall.Round(time.Millisecond), k.Late.Round(time.Millisecond), k.Pressed.Round(time.Millisecond))
}

// Own returns what is left of each for a promise, sorted.
func Own(all []Took, promise time.Duration) []time.Duration {
	own := make([]time.Duration, len(all))
	for i, k := range all {
		own[i] = k.Own(promise)
	}
	slices.Sort(own)
	return own
}

// pressure is how long some task has waited for a processor or a disk since the machine's start, as the kernel counts it
// (Documentation/accounting/psi.rst).
func pressure() (sum time.Duration) {
	for _, of := range []string{"cpu", "io"} {
		text, err := os.ReadFile("/proc/pressure/" + of)
		if err != nil {
			continue
		}
		some, _, _ := strings.Cut(string(text), "\n")
		if _, total, ok := strings.Cut(some, "total="); ok {
			n, _ := strconv.ParseInt(total, 10, 64)
			sum += time.Duration(n) * time.Microsecond
		}
	}
	return sum
}
