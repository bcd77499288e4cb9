package world

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

// ramDisk is a folder in memory, if the machine has one: the simulated disk decides what is lost, not a real one.
func ramDisk(t *testing.T) string {
	dir := "/dev/shm"
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		dir = ""
	}
	dir, err := os.MkdirTemp(dir, "scanonce-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// play runs a plan. It returns what the oracle found, "" for nothing, and the run.
func play(t *testing.T, p *plan, dir string, verbose bool) (found string, w *world) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, p.seed)
		w = newWorld(p, dir)
		w.verbose = verbose
		defer func() {
			r := recover()
			defer time.Sleep(10 * time.Second) // the bubble's: what the clients' pools still try ends
			if r == nil {
				return
			}
			if v, ok := r.(violation); ok {
				found = v.text
			} else {
				found = fmt.Sprintf("panic: %v\n%s", r, debug.Stack())
			}
			w.wreck()
		}()
		w.run()
	})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	return found, w
}

// number is a setting of the environment.
func number(name string, otherwise uint64) uint64 {
	if v, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return v
	}
	return otherwise
}

// share is how many seeds the ordinary tests play.
const share = 1500

// Many worlds keep the promise. SEED and N choose which: "make sim SEED=17 N=1" plays one, and says what happens
// in it.
func TestSeeds(t *testing.T) {
	n := number("N", share)
	if testing.Short() || raceEnabled {
		n = number("N", share/15)
	}
	dir := ramDisk(t)
	from := number("SEED", 1)
	start := time.Now()
	var played plays
	for seed := from; seed < from+n; seed++ {
		found, w := play(t, newPlan(seed), dir+"/run", n == 1 && testing.Verbose())
		played.add(w)
		if found != "" {
			if os.Getenv("SCANONCE_MUTANT") != "" {
				t.Fatalf("killed at seed %d: %s", seed, found)
			}
			t.Fatal(story(t, seed, found, dir+"/run"))
		}
		if n == 1 && testing.Verbose() {
			t.Log("\n" + w.history())
		}
	}
	t.Logf("%d seeds from %d in %v, %v a seed: %v", n, from, time.Since(start).Round(time.Second), (time.Since(start) / time.Duration(n)).Round(10*time.Microsecond), &played)
}

// plays counts what happened in many worlds.
type plays struct{ movements, sent, records, rows, crashes, torn, steps, intents, queued, claims, cases, conflicts int }

func (p *plays) add(w *world) {
	p.movements += len(w.oracle.movements)
	p.records += len(w.oracle.events)
	p.rows += len(w.rows.order)
	p.crashes += w.crashes
	p.torn += w.torn
	p.steps += w.steps
	p.intents += len(w.oracle.intents)
	p.queued += len(w.oracle.queued)
	for _, of := range w.states.effects {
		for _, e := range of {
			if e.creates {
				p.claims++
			}
		}
	}
	p.cases += len(w.cases.order)
	p.conflicts += w.oracle.conflicts
	for _, m := range w.oracle.movements {
		p.sent += len(m.sent)
	}
}

func (p *plays) String() string {
	return fmt.Sprintf("%d movements in %d transmissions, %d records, %d rows, %d crashes that tore %d disk steps, %d steps of the schedule, "+
		"%d operations, of which %d queued and %d in conflict at the end, %d claims, %d cases",
		p.movements, p.sent, p.records, p.rows, p.crashes, p.torn, p.steps, p.intents, p.queued, p.conflicts, p.claims, p.cases)
}

// A seed is a run: it can be played again, to the same end by the same way.
func TestASeedIsARun(t *testing.T) {
	dir := ramDisk(t)
	differ := map[uint64]bool{}
	for seed := uint64(1); seed <= 60; seed++ {
		_, a := play(t, newPlan(seed), dir+"/run", false)
		_, b := play(t, newPlan(seed), dir+"/run", false)
		if a.hash.Sum64() != b.hash.Sum64() {
			_, a := play(t, newPlan(seed), dir+"/run", true)
			_, b := play(t, newPlan(seed), dir+"/run", true)
			for i := range min(len(a.log), len(b.log)) {
				if a.log[i] != b.log[i] {
					t.Fatalf("seed %d takes two ways from step %d:\n%s\n%s", seed, i, a.log[i], b.log[i])
				}
			}
			t.Fatalf("seed %d takes two ways", seed)
		}
		differ[a.hash.Sum64()] = true
	}
	if len(differ) < 60 {
		t.Errorf("60 seeds give %d runs", len(differ))
	}
}
