// Package claimstate keeps where each claim stands in adjudication, from INGESTED to RESPONSE_DISPATCHED, in
// Redis, DynamoDB, both, or a file.
//
// A state holds tokens and figures, never what identifies a person. Of the fields of the NCPDP
// Telecommunication Standard (version D.0, its data dictionary):
//
//	302-C2  Cardholder ID                           never here: Token and the ids refuse what is no token
//	310-CA  Patient First Name                      never here
//	402-D2  Prescription/Service Reference Number   as its token, RxRefToken
//	409-D9  Ingredient Cost Submitted, s9(6)v99     IngredientCost, decimal text
//	511-FB  Reject Code, X(3)                       RejectCode
//
// A writer's operation has an id. Of the answers to PutNew and Advance none is an error: who asks again after a
// lost reply is told AlreadyMine, as long as nobody has moved the claim on since. Errors are outages, a
// *ConfigError, a *DamageError, or an *InvalidError or *IllegalMoveError for what no store was asked about.
//
// No store logs or starts anything by itself, and none connects when it is made.
package claimstate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"scanonce/window"
)

// State is a claim as a store holds it.
type State struct {
	CorrelationID  string
	RxRefToken     Token // of 402-D2
	Node           Node
	IngredientCost Cost   // 409-D9
	RejectCode     string // 511-FB, "" for none
	Version        int64  // 1 when new; one more at every move
	OpID           string // of the operation that wrote it
	ExpiresAt      window.UTC
}

// New asks for a new claim, at Ingested and version FirstVersion.
type New struct {
	CorrelationID  string
	RxRefToken     Token
	IngredientCost Cost
	OpID           string // the writer's: the same at every attempt
}

// FirstVersion is a new claim's.
const FirstVersion = 1

// Validate returns an *InvalidError about a value that must not reach a store.
func (n *New) Validate() error {
	return errors.Join(checkID("correlation_id", n.CorrelationID), n.RxRefToken.Validate(), n.IngredientCost.Validate(), checkID("op_id", n.OpID))
}

func (n *New) state(expires window.UTC) State {
	return State{CorrelationID: n.CorrelationID, RxRefToken: n.RxRefToken, Node: Ingested, IngredientCost: n.IngredientCost,
		Version: FirstVersion, OpID: n.OpID, ExpiresAt: expires}
}

// Move asks to move a claim from the state that the asker knows. State.Move makes one.
type Move struct {
	CorrelationID string
	Version       int64 // that is moved from
	From, To      Node
	Cost          Cost   // "" keeps the one that stands
	RejectCode    string // of To
	OpID          string // the writer's: the same at every attempt
}

// Move is the move from s to a node. cost "" keeps the one that stands.
func (s *State) Move(to Node, cost Cost, reject, op string) Move {
	return Move{CorrelationID: s.CorrelationID, Version: s.Version, From: s.Node, To: to, Cost: cost, RejectCode: reject, OpID: op}
}

// Validate returns an *IllegalMoveError, or an *InvalidError about a value that must not reach a store.
func (m *Move) Validate() error {
	err := errors.Join(checkID("correlation_id", m.CorrelationID), checkID("op_id", m.OpID))
	if m.Cost != "" {
		err = errors.Join(err, m.Cost.Validate())
	}
	if m.RejectCode != "" {
		err = errors.Join(err, checkReject(m.RejectCode))
	}
	if m.Version < FirstVersion {
		err = errors.Join(err, &InvalidError{Field: "version", Why: "it is below 1, a new claim's"})
	}
	if err != nil {
		return err
	}
	return legal(m.From, m.To, m.RejectCode)
}

// apply is the state after the move.
func (m *Move) apply(s State, expires window.UTC) State {
	s.Node, s.RejectCode, s.Version, s.OpID, s.ExpiresAt = m.To, m.RejectCode, m.Version+1, m.OpID, expires
	if m.Cost != "" {
		s.IngredientCost = m.Cost
	}
	return s
}

// Put is the answer to a PutNew. Match is the only way in, so a caller cannot forget a case.
type Put struct {
	kind answer
	s    State
}

// Advance is the answer to a Store's Advance. Match is the only way in.
type Advance struct {
	kind answer
	s    State
}

type answer uint8

const (
	none answer = iota
	made        // Created, or Advanced
	mine
	other // Exists, or Conflict
	missing
)

// Created says that the claim is new, by this call.
func Created(s State) Put { return Put{made, s} }

// PutAlready says that an earlier attempt of the same operation made the claim.
func PutAlready(s State) Put { return Put{mine, s} }

// Exists says that the correlation id is taken.
func Exists(current State) Put { return Put{other, current} }

// Match calls the function of the answer's case. A zero Put is no answer: it comes with an error.
func (p Put) Match(created, alreadyMine, exists func(State)) {
	switch p.kind {
	case made:
		created(p.s)
	case mine:
		alreadyMine(p.s)
	case other:
		exists(p.s)
	default:
		panic("claimstate: no answer was given")
	}
}

// Advanced says that the claim was moved, by this call.
func Advanced(s State) Advance { return Advance{made, s} }

// AlreadyMine says that an earlier attempt of the same operation moved the claim, and that nobody has since.
func AlreadyMine(s State) Advance { return Advance{mine, s} }

// Conflict says that the claim is not where the move began.
func Conflict(current State) Advance { return Advance{other, current} }

// Missing says that there is no such claim, or that it has expired.
func Missing() Advance { return Advance{kind: missing} }

// Match calls the function of the answer's case. A zero Advance is no answer: it comes with an error.
func (a Advance) Match(advanced, alreadyMine, conflict func(State), missed func()) {
	switch a.kind {
	case made:
		advanced(a.s)
	case mine:
		alreadyMine(a.s)
	case other:
		conflict(a.s)
	case missing:
		missed()
	default:
		panic("claimstate: no answer was given")
	}
}

// judge is the answer about a claim that a move did not change.
func (m *Move) judge(current State) Advance {
	if current.OpID == m.OpID {
		return AlreadyMine(current)
	}
	return Conflict(current)
}

// judge is the answer about a claim that was there.
func (n *New) judge(current State) Put {
	if current.OpID == n.OpID {
		return PutAlready(current)
	}
	return Exists(current)
}

// Store is a store of claim state. Implementations are safe for concurrent use. Every write renews the time to
// live; a state whose time is over is no state, whether or not it is still there.
type Store interface {
	// PutNew makes a claim, unless there is one.
	PutNew(ctx context.Context, n New) (Put, error)
	// Get returns a claim; false if there is none.
	Get(ctx context.Context, correlationID string) (State, bool, error)
	// Advance moves a claim if it still is at the move's version and node.
	Advance(ctx context.Context, m Move) (Advance, error)
	// Ping says whether claims can be kept.
	Ping(ctx context.Context) error
	Close() error
}

// CheckStep returns an *InvalidError about a value with which Step cannot do anything, or an *IllegalMoveError if no
// claim can be moved so.
func CheckStep(correlationID string, version int64, to Node, cost Cost, reject, op string) error {
	m := Move{CorrelationID: correlationID, Version: version, To: to, Cost: cost, RejectCode: reject, OpID: op}
	var illegal *IllegalMoveError
	var err error
	for from := range transitions {
		m.From = from
		if err = m.Validate(); err == nil || !errors.As(err, &illegal) {
			return err
		}
	}
	return &IllegalMoveError{To: to, Why: "no claim is moved so, wherever it is"}
}

// Step moves a claim of which the caller knows the version alone: it reads the claim, and refuses an illegal
// move before it asks for one.
func Step(ctx context.Context, s Store, correlationID string, version int64, to Node, cost Cost, reject, op string) (Advance, error) {
	if err := checkID("correlation_id", correlationID); err != nil {
		return Advance{}, err
	}
	current, ok, err := s.Get(ctx, correlationID)
	switch {
	case err != nil:
		return Advance{}, err
	case !ok:
		return Missing(), nil
	}
	m := current.Move(to, cost, reject, op)
	if current.Version != version {
		return m.judge(current), nil
	}
	return s.Advance(ctx, m)
}

// Lives are the times to live of idle claims.
type Lives struct {
	TTL  time.Duration // of a claim
	Pend time.Duration // of one at PAPended
}

// Validate returns a *ConfigError.
func (l Lives) Validate() error {
	switch {
	case l.TTL < time.Second:
		return &ConfigError{"cannot keep claims for less than a second", `write for example claimstate.ttl = "15m"`}
	case l.Pend < l.TTL:
		return &ConfigError{"cannot keep pended claims for less time than others", `write for example claimstate.pend_ttl = "720h"`}
	}
	return nil
}

func (l Lives) of(n Node) time.Duration {
	if n == PAPended {
		return l.Pend
	}
	return l.TTL
}

// ConfigError is a failure that no retry mends: somebody must change something.
type ConfigError struct {
	Detail string // "cannot …"
	Hint   string
}

func (e *ConfigError) Error() string { return e.Detail + ": " + e.Hint }

// Stats counts a store's answers since it was made.
type Stats struct {
	Created, Advanced uint64
	AlreadyMine       uint64 // of both operations
	Exists, Conflicts uint64
	Missing           uint64
	Failed            uint64 // calls that ended with an error
	Moved             uint64 // claims brought from Redis into the durable store, of Split
	Swept             uint64 // expired claims removed, of Embedded
}

// counters are a store's Stats in the making.
type counters struct {
	created, advanced, mine, exists, conflicts, missing, failed, moved, swept atomic.Uint64
}

func (c *counters) put(p Put, err error) (Put, error) {
	if err != nil {
		c.failed.Add(1)
		return Put{}, err
	}
	tick := func(n *atomic.Uint64) func(State) { return func(State) { n.Add(1) } }
	p.Match(tick(&c.created), tick(&c.mine), tick(&c.exists))
	return p, nil
}

func (c *counters) advance(a Advance, err error) (Advance, error) {
	if err != nil {
		c.failed.Add(1)
		return Advance{}, err
	}
	tick := func(n *atomic.Uint64) func(State) { return func(State) { n.Add(1) } }
	a.Match(tick(&c.advanced), tick(&c.mine), tick(&c.conflicts), func() { c.missing.Add(1) })
	return a, nil
}

func (c *counters) got(s State, ok bool, err error) (State, bool, error) {
	if err != nil {
		c.failed.Add(1)
		return State{}, false, err
	}
	return s, ok, nil
}

// Stats returns the counts.
func (c *counters) Stats() Stats {
	return Stats{Created: c.created.Load(), Advanced: c.advanced.Load(), AlreadyMine: c.mine.Load(), Exists: c.exists.Load(),
		Conflicts: c.conflicts.Load(), Missing: c.missing.Load(), Failed: c.failed.Load(), Moved: c.moved.Load(), Swept: c.swept.Load()}
}

// errTurns ends a loop that answers to others' changes.
func errTurns(what string) error {
	return fmt.Errorf("cannot %s the claim: others change it all the time; try again", what)
}
