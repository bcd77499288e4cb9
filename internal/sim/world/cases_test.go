package world

import (
	"context"

	"scanonce/sync/pacase"
	"scanonce/window"
)

// caseStore is the simulated store of prior-authorization cases.
type caseStore struct {
	remote
	cases map[string]*pacase.Case      // by their ids
	order []*pacase.Case               // as they were opened
	refs  map[string]*pacase.Case      // by all ids that lead to them
	pends map[pacase.UUID]caseAnswer   // by event
	moves map[pacase.UUID]bool         // operations that moved a case
	stood map[caseVersion]pacase.State // all that ever was
}

type caseAnswer struct {
	ref     string
	created bool
}

type caseVersion struct {
	id      string
	version int
}

func newCaseStore(w *world) *caseStore {
	return &caseStore{remote: remote{w: w}, cases: map[string]*pacase.Case{}, refs: map[string]*pacase.Case{}, pends: map[pacase.UUID]caseAnswer{},
		moves: map[pacase.UUID]bool{}, stood: map[caseVersion]pacase.State{}}
}

// open finds the open case of a member and a drug.
func (s *caseStore) open(member, gpi string, but *pacase.Case) *pacase.Case {
	for _, c := range s.order {
		if c.MemberToken == member && c.GPI == gpi && c != but && c.State.Open() {
			return c
		}
	}
	return nil
}

func (s *caseStore) now() window.UTC { return window.FromTime(s.w.plan.begin.Add(s.w.now)) }

func (s *caseStore) pend(p *pacase.Pend) pacase.Pended {
	a, known := s.pends[p.Event]
	if !known {
		a.ref = p.DerivedID()
		c := s.refs[a.ref]
		if c == nil {
			c = s.open(p.MemberToken, p.GPI, nil)
		}
		if c == nil {
			a.created = true
			c = &pacase.Case{ID: a.ref, MemberToken: p.MemberToken, GPI: p.GPI, Window: p.Window, State: pacase.Pending, Version: 1,
				CreatedBy: p.Event, LastOp: p.Event, CreatedAt: s.now(), UpdatedAt: s.now()}
			s.cases[c.ID] = c
			s.order = append(s.order, c)
			s.stood[caseVersion{c.ID, 1}] = c.State
		}
		s.refs[a.ref] = c
		s.pends[p.Event] = a
	}
	c := s.refs[a.ref]
	if c.MemberToken != p.MemberToken || c.GPI != p.GPI {
		s.w.fail("an event asks for two questions")
	}
	return pacase.Pended{Case: *c, RequestedID: a.ref, Created: a.created}
}

func (s *caseStore) transition(t *pacase.Transition) pacase.Transitioned {
	c := s.refs[t.ID]
	if c == nil {
		return pacase.Missing()
	}
	var other *pacase.Case
	if t.To.Open() {
		other = s.open(c.MemberToken, c.GPI, c)
	}
	switch {
	case c.LastOp == t.Op && c.State == t.To && c.Version == t.Expected+1:
		return pacase.AlreadyMine(*c)
	case c.Version != t.Expected:
		return pacase.Conflict(*c)
	case !c.State.May(t.To):
		return pacase.Illegal(*c)
	case other != nil:
		return pacase.OtherOpen(*other)
	}
	c.State, c.LastOp, c.UpdatedAt = t.To, t.Op, s.now()
	c.Version++
	s.stood[caseVersion{c.ID, c.Version}] = c.State
	if s.moves[t.Op] {
		s.w.fail("I12: an operation moves a case twice")
	}
	s.moves[t.Op] = true
	return pacase.Moved(*c)
}

// cases is one agent's way to the store.
type cases struct {
	n *node
	s *caseStore
}

// Pend is pacase.Store's.
func (c cases) Pend(_ context.Context, p pacase.Pend) (pacase.Pended, error) {
	if _, err := p.Offline(); err != nil {
		return pacase.Pended{}, err
	}
	c.s.w.oracle.overtakes(c.n, "pa")
	return ask(&c.s.remote, c.n, "pend", func() pacase.Pended { return c.s.pend(&p) })
}

// Transition is pacase.Store's.
func (c cases) Transition(_ context.Context, t pacase.Transition) (pacase.Transitioned, error) {
	if err := t.Validate(); err != nil {
		return pacase.Transitioned{}, err
	}
	c.s.w.oracle.overtakes(c.n, "pa")
	return ask(&c.s.remote, c.n, "transition", func() pacase.Transitioned { return c.s.transition(&t) })
}

// Get is pacase.Store's.
func (c cases) Get(_ context.Context, id string) (pacase.Case, bool, error) {
	k, err := ask(&c.s.remote, c.n, "case", func() *pacase.Case {
		if k := c.s.refs[id]; k != nil {
			copied := *k
			return &copied
		}
		return nil
	})
	if err != nil || k == nil {
		return pacase.Case{}, false, err
	}
	return *k, true, nil
}

// Ping is pacase.Store's.
func (c cases) Ping(context.Context) error { return c.s.ping(c.n) }

// Close is pacase.Store's.
func (c cases) Close() error { return nil }
