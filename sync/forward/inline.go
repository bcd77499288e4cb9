package forward

import (
	"context"
	"errors"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// Begin says that Await was called for all records that earlier runs have left. Until then operations on claims wait.
func (c *Courier) Begin() {
	c.mu.Lock()
	c.begun = true
	c.mu.Unlock()
	c.lane(Claims).wake()
}

// Await says that a record was accepted, and Arrived that it is final: operations on the claim that it may ask for
// wait until it has. The two may come in either order.
func (c *Courier) Await(r *spool.Record) { c.await(r, 1) }

// Arrived is for the record's settlement; see Await.
func (c *Courier) Arrived(r *spool.Record) {
	if c.await(r, -1) {
		c.lane(Claims).wake()
	}
}

func (c *Courier) await(r *spool.Record, by int) bool {
	if !asksForClaim(r) {
		return false
	}
	subject := claimSubject(ClaimOf(r.RxToken))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaited[subject] += by; c.awaited[subject] == 0 {
		delete(c.awaited, subject)
	}
	return true
}

// asksForClaim says that a claim is made once the record's row is committed and its own.
func asksForClaim(r *spool.Record) bool {
	return r.Type == window.Dispense && r.RxToken != "" && !r.IsDuplicate()
}

// ingestOf is the operation by which a committed record asks for its claim.
func ingestOf(r *spool.Record) (spool.Operation, error) {
	claim := ClaimOf(r.RxToken)
	op, err := newOperation(r.Event, OpIngest, claimSubject(claim), putBody{claim, claimstate.Token(r.RxToken), noCost}, r.Taken()-1)
	op.Early = true // what was asked for after the scan, or in the same millisecond, is behind it
	return op, err
}

func (c *Courier) awaits(subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.begun && subject != casesSubject || c.awaited[subject] > 0
}

// direct tries an operation at its store, if nothing is in front of it and the store is not known to be away. queued
// says that it is in the journal instead, durably, and will be carried. An error says that neither is so.
func (c *Courier) direct(ctx context.Context, name Lane, id idem.EventID, kind, subject string, body any, try func(context.Context) error) (queued bool, err error) {
	if cause, _ := c.Down(name); cause == nil && !c.journal.Waits(subject) && !c.awaits(subject) {
		within, cancel := context.WithTimeout(ctx, c.cfg.Patience)
		err := try(within)
		cancel()
		if err == nil || hopeless(err) {
			return false, err
		}
		if ctx.Err() == nil { // a caller that went away says nothing about the store
			c.setCause(c.lane(name), err, 0)
		}
	}
	op, err := newOperation(id, kind, subject, body, c.clock.Now().T)
	if err == nil {
		err = c.journal.Add(op)
	}
	if err != nil {
		c.lane(name).wake() // nothing else tells it of an outage
	}
	return err == nil, err
}

// PutClaim makes a claim. The error is an *claimstate.InvalidError, spool.ErrJournalFull or one of the journal's.
func (c *Courier) PutClaim(ctx context.Context, n claimstate.New) (p claimstate.Put, queued bool, err error) {
	if err := n.Validate(); err != nil {
		return p, false, err
	}
	id, err := idem.ParseEventID(n.OpID)
	if err != nil {
		return p, false, err
	}
	queued, err = c.direct(ctx, Claims, id, OpPut, claimSubject(n.CorrelationID), putBody{n.CorrelationID, n.RxRefToken, n.IngredientCost},
		func(ctx context.Context) (err error) {
			p, err = c.claims.PutNew(ctx, n)
			return err
		})
	return p, queued, err
}

// Advance is what AdvanceClaim asks for.
type Advance struct {
	CorrelationID string
	Version       int64
	To            claimstate.Node
	Cost          claimstate.Cost // "" keeps the one that stands
	RejectCode    string
	Op            idem.EventID
}

// AdvanceClaim moves a claim. The error is an *claimstate.InvalidError, an *claimstate.IllegalMoveError,
// spool.ErrJournalFull or one of the journal's.
func (c *Courier) AdvanceClaim(ctx context.Context, a Advance) (out claimstate.Advance, queued bool, err error) {
	if err := claimstate.CheckStep(a.CorrelationID, a.Version, a.To, a.Cost, a.RejectCode, a.Op.String()); err != nil {
		return out, false, err
	}
	queued, err = c.direct(ctx, Claims, a.Op, OpAdvance, claimSubject(a.CorrelationID), advanceBody{a.CorrelationID, a.Version, a.To, a.Cost, a.RejectCode},
		func(ctx context.Context) (err error) {
			out, err = claimstate.Step(ctx, c.claims, a.CorrelationID, a.Version, a.To, a.Cost, a.RejectCode, a.Op.String())
			return err
		})
	return out, queued, err
}

// Claim reads a claim; false if there is none.
func (c *Courier) Claim(ctx context.Context, correlationID string) (s claimstate.State, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Patience)
	defer cancel()
	return c.claims.Get(ctx, correlationID)
}

// Pend asks for a case. queued says that nothing but the id that leads to it, out.RequestedID, is known yet, and a claim
// must be refused with code 75. The error is a *pacase.RequestError, spool.ErrJournalFull or one of the journal's.
func (c *Courier) Pend(ctx context.Context, p pacase.Pend) (out pacase.Pended, queued bool, err error) {
	if _, err := p.Question.Offline(); err != nil {
		return out, false, err
	}
	if op, waits := c.journal.Find(idem.EventID(p.Event)); waits { // it stays the question of the window in which it was first heard
		var b pendBody
		if op.Kind == OpPend {
			if err := decode(op.Body, &b); err != nil {
				return out, false, err
			}
			p.Question = b.question()
		} else if v := c.kept(&op); v.outcome.Case != nil { // over, and just being told of
			return pacase.Pended{Case: *v.outcome.Case, RequestedID: v.outcome.Target, Created: v.outcome.Created}, false, nil
		}
	}
	queued, err = c.direct(ctx, Cases, idem.EventID(p.Event), OpPend, casesSubject, pendBody{p.MemberToken, p.GPI, p.Window},
		func(ctx context.Context) (err error) {
			out, err = c.cases.Pend(ctx, p)
			return err
		})
	if queued {
		out = pacase.Pended{RequestedID: p.DerivedID()}
	}
	return out, queued, err
}

// Transition moves a case. The error is a *pacase.RequestError, spool.ErrJournalFull or one of the journal's.
func (c *Courier) Transition(ctx context.Context, t pacase.Transition) (out pacase.Transitioned, queued bool, err error) {
	if err := t.Validate(); err != nil {
		return out, false, err
	}
	queued, err = c.direct(ctx, Cases, idem.EventID(t.Op), OpTransition, casesSubject, transitionBody{t.ID, t.Expected, t.To.String()},
		func(ctx context.Context) (err error) {
			out, err = c.cases.Transition(ctx, t)
			return err
		})
	return out, queued, err
}

// Case reads the case that an id leads to; false if there is none.
func (c *Courier) Case(ctx context.Context, id string) (k pacase.Case, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Patience)
	defer cancel()
	return c.cases.Get(ctx, id)
}

// Refused says that an error is about what was asked for, and stays whenever that is asked.
func Refused(err error) bool { return hopeless(err) }

// Full says that no more operations can be queued.
func Full(err error) bool { return errors.Is(err, spool.ErrJournalFull) }
