package world

import (
	"context"
	"maps"
	"slices"
	"time"

	"scanonce/idem"
	"scanonce/sync/claimstate"
	"scanonce/window"
)

// remote is a store that agents reach over a network.
type remote struct {
	w     *world
	away  outage
	until time.Duration
	only  *node // the one that cannot reach it; nil for all
	era   int   // requests of an earlier one reach nobody: another server has taken over
}

func (r *remote) state(n *node) outage {
	if r.w.healed || r.w.now >= r.until || r.only != nil && r.only != n {
		return 0
	}
	return r.away
}

// reach is how long a request can be on its way.
func (r *remote) reach() time.Duration { return r.w.plan.life / 4 }

// ask takes a request of a node's to the store and its answer back. do is what the store does, as often as the request
// arrives: what later ones answer reaches nobody.
func ask[T any](r *remote, n *node, what string, do func() T) (answer T, err error) {
	w := r.w
	from, era := w.now, r.era
	begun := func() {
		if r.era == era {
			do()
		}
	}
	late := func() { w.after(time.Duration(w.rng.Int64N(int64(r.reach()-(w.now-from)))), begun) }
	w.edge(n)
	if w.now-from >= r.reach() {
		return answer, errTimeout
	}
	if n.dead { // it was on its way when the process died
		switch w.rng.IntN(3) {
		case 0:
			begun()
		case 1:
			late()
		}
		return answer, errDead
	}
	away := r.state(n)
	switch {
	case away == refuses, away == full:
		w.mark(what+"-refused", n, 0)
		return answer, errRefused
	case r.era != era, away == silently && w.chance(3):
		w.mark(what+"-lost", n, 0)
		return answer, errTimeout
	case away == silently && w.chance(2):
		w.mark(what+"-late", n, 0)
		late()
		return answer, errTimeout
	}
	answer = do()
	w.mark(what, n, 0)
	if w.plan.twice && w.chance(6) {
		late()
	}
	w.edge(n)
	switch {
	case n.dead:
		return answer, errDead
	case away != 0:
		return answer, errReset
	}
	return answer, nil
}

// ping says whether the store answers.
func (r *remote) ping(n *node) error {
	_, err := ask(r, n, "ping", func() struct{} { return struct{}{} })
	return err
}

// stateStore is the simulated store of claim state: one state a claim, until its time is over. If the plan says so, it
// loses its last writes when another server takes over.
type stateStore struct {
	remote
	claims  map[string]claimLife
	before  map[string][]claimLife // what each write of a claim has replaced
	effects map[string][]*effect   // all that was ever done to a claim
	ops     map[string]*effect     // by the operation's id and claim
}

// claimLife is a claim at one version; the zero one is none.
type claimLife struct {
	claimstate.State
	until time.Duration
	at    time.Duration // of the write
}

// effect is what an operation did to a claim.
type effect struct {
	op      string
	creates bool
	cost    claimstate.Cost
	version int64
	at      time.Duration
	lost    bool // with a server
}

func newStateStore(w *world) *stateStore {
	return &stateStore{remote: remote{w: w}, claims: map[string]claimLife{}, before: map[string][]claimLife{}, effects: map[string][]*effect{}, ops: map[string]*effect{}}
}

// alive returns the claim, unless there is none or its time is over.
func (s *stateStore) alive(id string) (claimLife, bool) {
	c, ok := s.claims[id]
	if ok && s.w.now >= c.until {
		s.w.oracle.expired(id, c.Version)
		delete(s.claims, id)
		s.before[id] = nil
		ok = false
	}
	return c, ok
}

// write puts a state in place.
func (s *stateStore) write(c claimstate.State, creates bool) claimstate.State {
	life := s.w.plan.life
	if c.Node == claimstate.PAPended {
		life *= 3
	}
	s.before[c.CorrelationID] = append(s.before[c.CorrelationID], s.claims[c.CorrelationID])
	c.ExpiresAt = window.FromTime(s.w.plan.begin.Add(s.w.now + life))
	s.claims[c.CorrelationID] = claimLife{c, s.w.now + life, s.w.now}
	e := &effect{c.OpID, creates, c.IngredientCost, c.Version, s.w.now, false}
	s.effects[c.CorrelationID] = append(s.effects[c.CorrelationID], e)
	s.w.oracle.effect(c.CorrelationID, e, s.ops[c.OpID])
	s.ops[c.OpID] = e
	return c
}

// fail lets another server take over, which has not the writes of the last moments.
func (s *stateStore) fail(lag time.Duration) {
	s.era++
	lost := 0
	for _, id := range slices.Sorted(maps.Keys(s.before)) {
		c, ok := s.alive(id)
		b := s.before[id]
		for ok && len(b) > 0 && c.at > s.w.now-lag {
			s.ops[c.OpID].lost = true
			c = b[len(b)-1]
			b = b[:len(b)-1]
			ok = c.CorrelationID != ""
			lost++
			if ok {
				s.claims[id] = c
			} else {
				delete(s.claims, id)
			}
			s.w.oracle.reverted(id, c)
		}
		s.before[id] = b
	}
	s.w.note("the claim state loses %d writes", lost)
}

// states is one agent's way to the store.
type states struct {
	n *node
	s *stateStore
}

// PutNew is claimstate.Store's.
func (c states) PutNew(_ context.Context, q claimstate.New) (claimstate.Put, error) {
	if err := q.Validate(); err != nil {
		return claimstate.Put{}, err
	}
	s := c.s
	s.w.oracle.sends(c.n, q.CorrelationID, q.OpID, q.IngredientCost)
	return ask(&s.remote, c.n, "put", func() claimstate.Put {
		switch old, ok := s.alive(q.CorrelationID); {
		case !ok:
			return claimstate.Created(s.write(claimstate.State{CorrelationID: q.CorrelationID, RxRefToken: q.RxRefToken, Node: claimstate.Ingested,
				IngredientCost: q.IngredientCost, Version: claimstate.FirstVersion, OpID: q.OpID}, true))
		case old.OpID == q.OpID:
			return claimstate.PutAlready(old.State)
		default:
			return claimstate.Exists(old.State)
		}
	})
}

// Get is claimstate.Store's.
func (c states) Get(_ context.Context, id string) (claimstate.State, bool, error) {
	type found struct {
		claimstate.State
		ok bool
	}
	c.s.w.oracle.overtakes(c.n, "claim|"+id)
	f, err := ask(&c.s.remote, c.n, "get", func() found {
		old, ok := c.s.alive(id)
		return found{old.State, ok}
	})
	if err != nil || !f.ok {
		return claimstate.State{}, false, err
	}
	return f.State, true, nil
}

// Advance is claimstate.Store's.
func (c states) Advance(_ context.Context, m claimstate.Move) (claimstate.Advance, error) {
	if err := m.Validate(); err != nil {
		return claimstate.Advance{}, err
	}
	s := c.s
	s.w.oracle.sends(c.n, m.CorrelationID, m.OpID, m.Cost)
	return ask(&s.remote, c.n, "advance", func() claimstate.Advance {
		old, ok := s.alive(m.CorrelationID)
		switch {
		case !ok:
			return claimstate.Missing()
		case old.Version == m.Version && old.Node == m.From:
			next := old.State
			next.Node, next.RejectCode, next.Version, next.OpID = m.To, m.RejectCode, m.Version+1, m.OpID
			if m.Cost != "" {
				next.IngredientCost = m.Cost
			}
			return claimstate.Advanced(s.write(next, false))
		case old.OpID == m.OpID:
			return claimstate.AlreadyMine(old.State)
		}
		return claimstate.Conflict(old.State)
	})
}

// Ping is claimstate.Store's.
func (c states) Ping(context.Context) error { return c.s.ping(c.n) }

// Close is claimstate.Store's.
func (c states) Close() error { return nil }

// isScan says that an operation has the id of a scan's event.
func isScan(op string) (idem.EventID, bool) {
	id, err := idem.ParseEventID(op)
	return id, err == nil && id[6]>>4 == 7
}
