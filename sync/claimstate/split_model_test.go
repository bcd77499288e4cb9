package claimstate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scanonce/window"
)

// The split store over a model of Redis and DynamoDB, every call of either a step. Actors run as coroutines;
// which one goes next, and who crashes before or after a step, is chosen from outside.

const (
	modelToken = Token("rx1.0a1b2c3d.00112233445566778899aabbccddeeff")
	modelStart = window.UTC(1_764_000_000_000)
)

var (
	modelLives = Lives{TTL: 15 * time.Minute, Pend: 720 * time.Hour}
	errCrash   = errors.New("crashed")
)

// world is both stores and what was told of them.
type world struct {
	now     window.UTC
	fast    map[string]entry
	durable map[string]State
	flaws   []string

	acked    map[int64]string // version → operation that was told to have made it
	written  map[int64]string // version → operation whose write took effect, in either store
	lastRead int64            // highest version told to anybody
}

func newWorld() *world {
	return &world{now: modelStart, fast: map[string]entry{}, durable: map[string]State{}, acked: map[int64]string{}, written: map[int64]string{}}
}

func (w *world) flaw(format string, args ...any) {
	w.flaws = append(w.flaws, fmt.Sprintf(format, args...))
}

// entryAt is the fast store's entry, unless it has expired, which removes it.
func (w *world) entryAt(id string) (entry, bool) {
	e, ok := w.fast[id]
	if ok && e.ExpiresAt <= w.now {
		delete(w.fast, id)
		return entry{}, false
	}
	return e, ok
}

// check looks at the world after a step: at most one claim at rest, a tombstone not ahead of what came of it.
func (w *world) check() {
	for id := range w.fast {
		e, ok := w.entryAt(id)
		d, live := w.durable[id]
		live = live && d.ExpiresAt > w.now
		switch {
		case !ok || !live:
		case e.mark == "":
			w.flaw("two live states: Redis at version %d, DynamoDB at %d", e.Version, d.Version)
		case e.mark == markMoved && d.Version < e.Version:
			w.flaw("a tombstone at version %d above DynamoDB at %d", e.Version, d.Version)
		}
	}
}

// wrote notes a write of a version.
func (w *world) wrote(s State) {
	if by, ok := w.written[s.Version]; ok && by != s.OpID {
		w.flaw("version %d is written by %s and by %s", s.Version, by, s.OpID)
	}
	w.written[s.Version] = s.OpID
}

// ack notes that op was told to have made version v.
func (w *world) ack(v int64, op string) {
	if by, ok := w.acked[v]; ok && by != op {
		w.flaw("version %d was told as made to %s and to %s", v, by, op)
	}
	w.acked[v] = op
}

// seen notes a version told to a reader who asked when highest was the highest told.
func (w *world) seen(highest int64, s State) {
	if s.Version < highest {
		w.flaw("version %d is told after version %d", s.Version, highest)
	}
	w.lastRead = max(w.lastRead, s.Version)
}

// steps is an actor's access to the world. gate lets it go on, or crash.
type steps struct {
	w    *world
	gate func() fate
}

type fate int

const (
	goOn fate = iota
	crashBefore
	crashAfter // the write takes effect, and its reply is lost
)

// do runs f as one step.
func (s steps) do(f func()) error {
	switch s.gate() {
	case crashBefore:
		return errCrash
	case crashAfter:
		f()
		s.w.check()
		return errCrash
	}
	f()
	s.w.check()
	return nil
}

type modelFast struct{ steps }

func (m modelFast) reserve(_ context.Context, n New, mark string) (made bool, e entry, err error) {
	err = m.do(func() {
		var ok bool
		if e, ok = m.w.entryAt(n.CorrelationID); ok {
			return
		}
		made, e = true, entry{mark: mark, State: n.state(m.w.now.Add(modelLives.TTL))}
		m.w.fast[n.CorrelationID] = e
	})
	return made, e, err
}

func (m modelFast) move(_ context.Context, mv Move, mark string) (made, ok bool, e entry, err error) {
	err = m.do(func() {
		e, ok = m.w.entryAt(mv.CorrelationID)
		if !ok || e.mark != "" || e.Version != mv.Version || e.Node != mv.From {
			return
		}
		made, e = true, entry{mark: mark, State: mv.apply(e.State, m.w.now.Add(modelLives.of(mv.To)))}
		m.w.fast[mv.CorrelationID] = e
		m.w.wrote(e.State)
	})
	return made, ok, e, err
}

func (m modelFast) look(_ context.Context, id string) (e entry, ok bool, err error) {
	err = m.do(func() { e, ok = m.w.entryAt(id) })
	return e, ok, err
}

// stands says that e still is what is there.
func (m modelFast) stands(e entry) bool {
	at, ok := m.w.entryAt(e.CorrelationID)
	return ok && at.mark == e.mark && at.Version == e.Version && at.OpID == e.OpID
}

func (m modelFast) rest(_ context.Context, e entry) (s State, done bool, err error) {
	err = m.do(func() {
		if done = m.stands(e); done {
			e.mark, e.ExpiresAt = "", m.w.now.Add(modelLives.of(e.Node))
			m.w.fast[e.CorrelationID] = e
		}
	})
	return e.State, done, err
}

func (m modelFast) drop(_ context.Context, e entry) error {
	return m.do(func() {
		if m.stands(e) {
			delete(m.w.fast, e.CorrelationID)
		}
	})
}

func (modelFast) Ping(context.Context) error { return nil }
func (modelFast) Close() error               { return nil }

type modelDurable struct{ steps }

func (m modelDurable) find(_ context.Context, id string) (s State, live, occupied bool, err error) {
	err = m.do(func() {
		var ok bool
		s, ok = m.w.durable[id]
		live, occupied = ok && s.ExpiresAt > m.w.now, ok && s.ExpiresAt > m.w.now.Add(-dynamoMargin)
	})
	return s, live, occupied, err
}

func (m modelDurable) install(_ context.Context, s State) (made bool, current State, err error) {
	err = m.do(func() {
		d, ok := m.w.durable[s.CorrelationID]
		if ok && d.ExpiresAt > m.w.now.Add(-dynamoMargin) {
			current = d
			return
		}
		made = true
		m.w.durable[s.CorrelationID] = s
	})
	return made, current, err
}

func (m modelDurable) step(_ context.Context, mv Move) (a Advance, err error) {
	err = m.do(func() {
		s, ok := m.w.durable[mv.CorrelationID]
		switch {
		case !ok || s.ExpiresAt <= m.w.now:
			a = Missing()
		case s.Version != mv.Version || s.Node != mv.From:
			a = mv.judge(s)
		default:
			s = mv.apply(s, m.w.now.Add(modelLives.Pend))
			m.w.durable[mv.CorrelationID] = s
			m.w.wrote(s)
			a = Advanced(s)
		}
	})
	return a, err
}

func (modelDurable) Ping(context.Context) error { return nil }
func (modelDurable) Close() error               { return nil }

// actor runs a script of calls against the split store.
type actor struct {
	next func() (struct{}, bool) // runs until before its next step
	stop func()
	fate fate
	done bool
}

// splitOver makes a Split for one actor.
func splitOver(s steps) Store { return &Split{fast: modelFast{s}, durable: modelDurable{s}} }

// start makes an actor that stands before its first step. store is what its calls go to.
func (w *world) start(store func(steps) Store, script func(ctx context.Context, s Store, w *world)) *actor {
	a := &actor{}
	a.next, a.stop = iter.Pull(func(yield func(struct{}) bool) {
		gate := func() fate {
			if !yield(struct{}{}) {
				return crashBefore
			}
			f := a.fate
			a.fate = goOn
			return f
		}
		script(context.Background(), store(steps{w, gate}), w)
	})
	_, ok := a.next()
	a.done = !ok
	return a
}

// run moves actors by choose until all are done: it is given the number of those that are not, and of the fates
// that there are, and returns a number below the product. crashes bounds the crashes.
func run(actors []*actor, crashes int, choose func(ready, fates int) int) {
	for {
		var ready []*actor
		for _, a := range actors {
			if !a.done {
				ready = append(ready, a)
			}
		}
		if len(ready) == 0 {
			return
		}
		fates := 1
		if crashes > 0 {
			fates = 3
		}
		c := choose(len(ready), fates)
		a := ready[c%len(ready)]
		if a.fate = fate(c / len(ready)); a.fate != goOn {
			crashes--
		}
		_, ok := a.next()
		a.done = !ok
	}
}

// attempt makes a move until it is answered, as one does who retries after a crash, and notes the answer.
func attempt(ctx context.Context, s Store, w *world, m Move) (won bool) {
	for range 4 {
		before := w.lastRead
		a, err := s.Advance(ctx, m)
		if err != nil {
			continue
		}
		told := func(st State) { w.seen(before, st) }
		made := func(st State) {
			won = true
			w.ack(m.Version+1, m.OpID)
			told(st)
		}
		a.Match(func(st State) { w.ack(m.Version+1, m.OpID); won = true; w.lastRead = max(w.lastRead, st.Version) }, made, told, func() { w.flaw("%s is told that the claim is missing", m.OpID) })
		return won
	}
	return false
}

func reading(ctx context.Context, s Store, w *world) (State, bool) {
	before := w.lastRead
	st, ok, err := s.Get(ctx, "c-1")
	if err != nil {
		return State{}, false
	}
	if !ok {
		w.flaw("the claim is told as missing")
		return State{}, false
	}
	w.seen(before, st)
	return st, true
}

// finish reads with a sound actor: what was told must stand, as the last version or under it.
func (w *world) finish(store func(steps) Store) {
	s := store(steps{w, func() fate { return goOn }})
	st, ok, err := s.Get(context.Background(), "c-1")
	switch {
	case err != nil || !ok:
		w.flaw("at the end the claim is %v, %v", ok, err)
		return
	case st.Version < w.lastRead:
		w.flaw("at the end the claim is at version %d, after %d was told", st.Version, w.lastRead)
	}
	for v, op := range w.acked {
		switch {
		case v > st.Version:
			w.flaw("version %d of %s was told and is lost: the claim is at %d", v, op, st.Version)
		case v == st.Version && st.OpID != op:
			w.flaw("version %d was told to %s and is of %s", v, op, st.OpID)
		case w.written[v] != op && v > FirstVersion:
			w.flaw("version %d was told to %s and written by %s", v, op, w.written[v])
		}
	}
	if e, ok := w.entryAt("c-1"); ok && e.mark != "" {
		w.flaw("after a reading the claim is not at rest")
	}
}

// atPAEvaluated is a world with a claim at PAEvaluated, version 6, in Redis.
func atPAEvaluated() (*world, State) {
	w := newWorld()
	s := State{CorrelationID: "c-1", RxRefToken: modelToken, Node: PAEvaluated, IngredientCost: "42.10", Version: 6, OpID: "op-6", ExpiresAt: w.now.Add(modelLives.TTL)}
	w.fast["c-1"], w.written[6], w.lastRead = entry{State: s}, "op-6", 6
	return w, s
}

// raceOfMove is the race of the model: one pends, one dispatches, one reads and goes on from what it read.
func raceOfMove(store func(steps) Store, readers int) (*world, []*actor) {
	w, s := atPAEvaluated()
	actors := []*actor{
		w.start(store, func(ctx context.Context, st Store, w *world) {
			attempt(ctx, st, w, s.Move(PAPended, "", "75", "op-pend"))
		}),
		w.start(store, func(ctx context.Context, st Store, w *world) {
			attempt(ctx, st, w, s.Move(ResponseDispatched, "", "", "op-dispatch"))
		}),
	}
	for n := range readers {
		actors = append(actors, w.start(store, func(ctx context.Context, st Store, w *world) {
			if at, ok := reading(ctx, st, w); ok && at.Node == PAPended {
				attempt(ctx, st, w, at.Move(PAEvaluated, "", "", fmt.Sprintf("op-back-%d", n)))
			}
			reading(ctx, st, w)
		}))
	}
	return w, actors
}

// everySchedule runs f with every sequence of choices, up to limit of them, and returns how many there were.
func everySchedule(limit int, f func(choose func(ready, fates int) int)) int {
	var path, width []int
	for n := 1; ; n++ {
		at := 0
		f(func(ready, fates int) int {
			if at == len(path) {
				path, width = append(path, 0), append(width, ready*fates)
			}
			at++
			return path[at-1]
		})
		path, width = path[:at], width[:at]
		for len(path) > 0 && path[len(path)-1]+1 == width[len(path)-1] {
			path, width = path[:len(path)-1], width[:len(width)-1]
		}
		if len(path) == 0 || n == limit {
			return n
		}
		path[len(path)-1]++
	}
}

// Every interleaving of a pend and a dispatch, with a crash anywhere, and after each the reading of
// somebody else.
func TestSplitMoveEveryInterleaving(t *testing.T) {
	n := everySchedule(100_000, func(choose func(ready, fates int) int) {
		w, actors := raceOfMove(splitOver, 0)
		run(actors, 1, choose)
		w.finish(splitOver)
		if len(w.flaws) > 0 && !t.Failed() {
			t.Errorf("%s", strings.Join(w.flaws, "\n"))
		}
	})
	t.Logf("%d schedules", n)
	if n < 1000 || n == 100_000 {
		t.Errorf("%d schedules are not all of them", n)
	}
}

// drawn chooses by rapid: a crash at one step in ten.
func drawn(t *rapid.T) func(ready, fates int) int {
	return func(ready, fates int) int {
		c := rapid.IntRange(0, ready-1).Draw(t, "next")
		if fates > 1 && rapid.IntRange(0, 9).Draw(t, "crash") == 0 {
			c += ready * rapid.IntRange(1, fates-1).Draw(t, "fate")
		}
		return c
	}
}

// A pend, a dispatch and two who read and go on, with up to five crashes, at random.
func TestSplitMoveRandomInterleavings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			w, actors := raceOfMove(splitOver, 2)
			run(actors, rapid.IntRange(0, 5).Draw(t, "crashes"), drawn(t))
			w.finish(splitOver)
			if len(w.flaws) > 0 {
				t.Fatal(strings.Join(w.flaws, "\n"))
			}
		}
	})
}

// The whole life of a claim under several creators, movers and readers and crashes.
func TestSplitLifeRandomInterleavings(t *testing.T) {
	ended, pended := 0, 0
	life := func(t *rapid.T) {
		w := newWorld()
		var actors []*actor
		for n := range rapid.IntRange(2, 3).Draw(t, "actors") {
			actors = append(actors, w.start(splitOver, func(ctx context.Context, s Store, w *world) {
				made := false
				for try := 0; try < 3 && !made; try++ {
					op := fmt.Sprintf("op-%d-new", n)
					p, err := s.PutNew(ctx, New{CorrelationID: "c-1", RxRefToken: modelToken, IngredientCost: "42.10", OpID: op})
					if made = err == nil; made {
						p.Match(func(st State) { w.ack(FirstVersion, op); w.wrote(st) }, func(State) { w.ack(FirstVersion, op) }, func(State) {})
					}
				}
				if !made {
					return
				}
				for k := range 12 {
					at, ok := reading(ctx, s, w)
					if !ok || at.Node == ResponseDispatched {
						continue
					}
					to := transitions[at.Node][0]
					if at.Node == PAEvaluated && k%2 == 0 {
						to = PAPended
					}
					attempt(ctx, s, w, at.Move(to, "", "", fmt.Sprintf("op-%d-%d", n, k)))
				}
			}))
		}
		run(actors, rapid.IntRange(0, 8).Draw(t, "crashes"), drawn(t))
		if len(w.acked) > 0 {
			w.finish(splitOver)
		}
		if len(w.flaws) > 0 {
			t.Fatal(strings.Join(w.flaws, "\n"))
		}
		if d, ok := w.durable["c-1"]; ok {
			pended++
			if d.Node == ResponseDispatched {
				ended++
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 20 {
			life(t)
		}
	})
	t.Logf("%d claims were pended, %d of them dispatched", pended, ended)
	if pended < 10 || ended < 1 {
		t.Errorf("%d claims were pended and %d of them dispatched: the test goes nowhere", pended, ended)
	}
}

// createThenDelete is a split store whose move writes the durable store first and then deletes the key in Redis.
type createThenDelete struct{ *Split }

func createFirst(s steps) Store { return createThenDelete{splitOver(s).(*Split)} }

func (c createThenDelete) Advance(ctx context.Context, m Move) (Advance, error) {
	if m.To != PAPended {
		return c.Split.Advance(ctx, m)
	}
	e, ok, err := c.fast.look(ctx, m.CorrelationID)
	if err != nil || !ok || e.Version != m.Version {
		if err == nil {
			return c.Split.Advance(ctx, m)
		}
		return Advance{}, err
	}
	after := m.apply(e.State, e.ExpiresAt.Add(modelLives.Pend))
	if _, _, err := c.durable.install(ctx, after); err != nil {
		return Advance{}, err
	}
	w := c.fast.(modelFast).w
	w.wrote(after)
	err = c.fast.(modelFast).do(func() { delete(w.fast, m.CorrelationID) })
	return Advanced(after), err
}

// The obvious order, durable create and then delete, loses a dispatch that was told in between.
func TestCreateThenDeleteLosesAnAdvance(t *testing.T) {
	found := map[string]bool{}
	everySchedule(100_000, func(choose func(ready, fates int) int) {
		w, actors := raceOfMove(createFirst, 0)
		run(actors, 0, choose)
		w.finish(createFirst)
		for _, f := range w.flaws {
			found[f] = true
		}
	})
	for _, want := range []string{"version 7 was told as made to op-pend and to op-dispatch", "version 7 was told as made to op-dispatch and to op-pend"} {
		if found[want] {
			return
		}
	}
	t.Errorf("it loses nothing, and this test has lost its premise: %v", found)
}
