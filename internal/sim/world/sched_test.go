package world

import (
	"container/heap"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"
)

// base is where the true time of a run begins, shifted by the seed so that every phase of a window comes up.
var base = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

// world is one run.
type world struct {
	plan *plan
	rng  *rand.Rand // the schedule: drawn from while the run goes on
	now  time.Duration
	due  timed
	nth  int

	dir    string // of the agents' folders
	redis  *redisStore
	rows   *rowStore
	states *stateStore
	cases  *caseStore
	nodes  []*node
	users  []*user
	pms    []*pms
	oracle *oracle

	current  *actor
	healed   bool // no fault begins any more
	healedAt time.Duration
	steps    int
	crashes  int
	torn     int // disk steps that a crash met

	verbose bool
	log     []string
	hash    interface {
		Write([]byte) (int, error)
		Sum64() uint64
	}
}

func newWorld(p *plan, dir string) *world {
	w := &world{plan: p, rng: rand.New(rand.NewPCG(p.seed, 1)), dir: dir, hash: fnv.New64a()}
	w.oracle = newOracle(w)
	w.redis = &redisStore{w: w, held: map[string]claimHeld{}}
	w.rows = newRowStore(w)
	w.states, w.cases = newStateStore(w), newCaseStore(w)
	return w
}

// note appends to the run's log, of which two runs of a seed must agree.
func (w *world) note(format string, args ...any) {
	line := fmt.Sprintf("%9.3f  ", w.now.Seconds()) + fmt.Sprintf(format, args...)
	w.hash.Write([]byte(line))
	if w.verbose {
		w.log = append(w.log, line)
	}
}

// mark is note for what is frequent: it costs no text unless somebody reads.
func (w *world) mark(what string, n *node, number uint64) {
	if w.verbose {
		w.log = append(w.log, fmt.Sprintf("%9.3f  %s %s %d", w.now.Seconds(), n.id, what, number))
	}
	var b [17]byte
	binary.LittleEndian.PutUint64(b[:], uint64(w.now))
	binary.LittleEndian.PutUint64(b[8:], number)
	b[16] = n.id[1]
	w.hash.Write(b[:])
	w.hash.Write([]byte(what))
}

// chance is true once in n.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// violation is what the oracle found. It ends the run.
type violation struct{ text string }

func (w *world) fail(format string, args ...any) {
	panic(violation{fmt.Sprintf(format, args...)})
}

// timed is what is to happen, by its time and, at one time, in the order of its planning.
type timed []timedCall

type timedCall struct {
	at  time.Duration
	nth int
	do  func()
}

func (t timed) Len() int { return len(t) }
func (t timed) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].nth < t[j].nth
}
func (t timed) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *timed) Push(x any)   { *t = append(*t, x.(timedCall)) }
func (t *timed) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

// at plans a call.
func (w *world) at(t time.Duration, do func()) {
	w.nth++
	heap.Push(&w.due, timedCall{max(t, w.now), w.nth, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }

// actor is a part of an agent in the middle of its work: it stops at every edge that it reaches, and goes on
// when the schedule says so.
type actor struct {
	next    func() (struct{}, bool)
	yield   func(struct{}) bool
	step    *diskStep // the disk step at which it stands, not yet done
	settles bool      // it stands within a change of state.db
	queues  bool      // it stands within a change of the journal of operations, whose lock it holds
	call    *call     // that it makes for a pharmacy system
}

// begin starts an actor, up to its first edge. It returns nil if it is over by then.
func (w *world) begin(work func()) *actor { return w.beginAs(&actor{}, work) }

func (w *world) beginAs(a *actor, work func()) *actor {
	a.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		a.yield = yield
		defer func() { // the stack is lost behind this
			if r := recover(); r != nil {
				if _, ok := r.(violation); !ok {
					r = violation{fmt.Sprintf("panic: %v\n%s", r, debug.Stack())}
				}
				panic(r)
			}
		}()
		work()
	})
	if !w.resume(a) {
		return nil
	}
	return a
}

// resume lets an actor go on to its next edge; false means that it is over.
func (w *world) resume(a *actor) bool {
	before := w.current
	w.current = a
	_, more := a.next()
	w.current = before
	return more
}

// edge stops the running actor.
func (w *world) edge(n *node) {
	if a := w.current; a != nil && !n.dead {
		a.yield(struct{}{})
	}
}

const (
	maxSteps   = 200000
	settleTime = 20 * time.Minute // of the run's own time, for all to become quiet
	// deferredTime is for a record to be tried again while all is well: the longest back-off, the wait, and the way, each
	// step of which may take a second here, behind what else has waited for an outage's end (seed 406758: 21 s).
	deferredTime = time.Minute
)

// run plays the plan to its end and through the quiet behind it.
func (w *world) run() {
	w.setUp()
	for !w.played() {
		w.turn()
	}
	w.heal()
	w.settle()
	w.oracle.final()
	w.tearDown()
}

// turn does one thing: it moves an actor, begins a turn, or lets time pass to what comes next.
func (w *world) turn() {
	if w.steps++; w.steps > maxSteps {
		w.fail("the run does not end: %d steps, at %v", w.steps, w.now)
	}
	type choice struct {
		weight int
		do     func()
	}
	var choices [48]choice
	k := 0
	add := func(weight int, do func()) {
		choices[k] = choice{weight, do}
		k++
	}
	for _, n := range w.nodes {
		if n.asleep() {
			continue
		}
		if n.booting != nil {
			add(3, func() { n.move(&n.booting) })
		}
		if n.stage == nil {
			continue
		}
		if h := n.holder(); h != nil { // all others wait for its lock
			add(3, func() { n.move(h) })
			continue
		}
		if n.intake != nil {
			add(3, func() { n.move(&n.intake) })
		} else if due, _ := n.stage.Silent(); due || n.stage.Queued() {
			add(2, n.beginTurn)
		}
		for _, c := range n.calls {
			add(3, func() { n.move(&c.actor) })
		}
		for _, c := range n.carriers {
			switch {
			case c.actor != nil:
				add(3, func() { n.move(&c.actor) })
			case n.carrierDue(c):
				add(2, func() { n.beginCarrier(c) })
			}
		}
		if n.drain != nil {
			add(3, func() { n.move(&n.drain) })
		} else if n.early != nil {
			add(2, n.beginEarly)
		} else if n.drainDue() {
			add(2, n.beginDrain)
		}
	}
	if len(w.due) > 0 {
		weight := 1
		if k > 0 && w.due[0].at-w.now > w.plan.patience {
			weight = 0 // a store or a disk is slow, but not that slow
		}
		if weight > 0 {
			add(weight, w.pass)
		}
	}
	if k == 0 {
		w.fail("nothing is left to do")
	}
	total := 0
	for _, c := range choices[:k] {
		total += c.weight
	}
	r := w.rng.IntN(total)
	for _, c := range choices[:k] {
		if r -= c.weight; r < 0 {
			c.do()
			w.sprung()
			return
		}
	}
}

// pass lets time pass to the next planned call and makes it.
func (w *world) pass() {
	c := heap.Pop(&w.due).(timedCall)
	if w.plan.client { // the client's timers go with the world's time
		time.Sleep(c.at - w.now)
	}
	w.now = c.at
	c.do()
}

// played says that all users have done what they wanted.
func (w *world) played() bool {
	for _, u := range w.users {
		if !u.done() {
			return false
		}
	}
	for _, u := range w.pms {
		if !u.done {
			return false
		}
	}
	return w.now >= w.plan.lasts
}

func (w *world) history() string { return strings.Join(w.log, "\n") }
