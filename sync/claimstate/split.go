package claimstate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
)

// Marks of a claim in Redis that is not at rest.
const (
	markNew   = "new:"  // and a nonce: made, before the durable store was asked for an older life of it
	markMoved = "moved" // a tombstone: the state belongs into the durable store
	turns     = 8       // after so many changes by others a call gives up
)

// fastStore is what Split needs of Redis.
type fastStore interface {
	reserve(ctx context.Context, n New, mark string) (made bool, e entry, err error)
	move(ctx context.Context, m Move, mark string) (made, ok bool, e entry, err error)
	look(ctx context.Context, id string) (e entry, ok bool, err error)
	rest(ctx context.Context, e entry) (s State, done bool, err error)
	drop(ctx context.Context, e entry) error
	Ping(ctx context.Context) error
	Close() error
}

// durableStore is what Split needs of DynamoDB.
type durableStore interface {
	find(ctx context.Context, id string) (s State, live, occupied bool, err error)
	install(ctx context.Context, s State) (made bool, current State, err error)
	step(ctx context.Context, m Move) (Advance, error)
	Ping(ctx context.Context) error
	Close() error
}

// Split is the Store in Redis as long as a claim is at the point of sale, and in DynamoDB from PAPended on, to its
// end. At any moment one of the two has the claim at rest.
//
// The move is three steps, of which any may be the last: the claim in Redis becomes a tombstone with the state
// after the move, which no Advance changes; that state is written durably; the tombstone goes. The move is
// answered after the second step. Whoever meets a tombstone does the rest. It carries the end of its life, and
// durable states live at least as long: one who comes too late writes what has expired already.
//
// A new claim is made under a mark, too, until the durable store is known to have none of that name. The other
// way round, a claim that is moved between the question and the making would come to life twice.
//
// Which of the two failed a *StoreError in the error says; see Blame.
type Split struct {
	counters
	fast    fastStore
	durable durableStore
}

// NewSplit makes the store. It does not connect. Both live by fast.Lives; those of durable are not used.
func NewSplit(ctx context.Context, fast RedisConfig, durable DynamoConfig) (*Split, error) {
	r, err := NewRedis(fast)
	if err != nil {
		return nil, of(InRedis, err)
	}
	durable.Lives = Lives{TTL: fast.Lives.Pend, Pend: fast.Lives.Pend}
	d, err := NewDynamo(ctx, durable)
	if err != nil {
		return nil, errors.Join(of(InDynamoDB, err), r.Close())
	}
	return &Split{fast: namedFast{r}, durable: namedDurable{d}}, nil
}

func nonce() string {
	var b [8]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// settle brings a marked claim to rest. It returns the durable state, if there is one, or e's, if that came to rest in
// Redis by this call.
func (s *Split) settle(ctx context.Context, e entry) (state State, there, rests bool, err error) {
	if e.mark == markMoved {
		state, err = s.install(ctx, e)
		there = true
	} else {
		state, _, there, err = s.durable.find(ctx, e.CorrelationID)
	}
	switch {
	case err != nil:
		return State{}, false, false, err
	case there:
		return state, true, false, s.fast.drop(ctx, e)
	}
	state, rests, err = s.fast.rest(ctx, e)
	return state, false, rests, err
}

// install writes a tombstone's state durably, unless somebody has.
func (s *Split) install(ctx context.Context, e entry) (State, error) {
	made, current, err := s.durable.install(ctx, e.State)
	switch {
	case err != nil:
		return State{}, err
	case made:
		s.moved.Add(1)
		return e.State, nil
	case current.Version < e.Version:
		return State{}, &DamageError{Where: "the claim " + e.CorrelationID, Detail: fmt.Sprintf("DynamoDB has it at version %d, and Redis has moved it there at version %d", current.Version, e.Version),
			hint: "delete the item in DynamoDB if its claim is over; the next call moves the other one there"}
	}
	return current, nil
}

// PutNew implements Store.
func (s *Split) PutNew(ctx context.Context, n New) (Put, error) { return s.put(s.putNew(ctx, n)) }

func (s *Split) putNew(ctx context.Context, n New) (Put, error) {
	if err := n.Validate(); err != nil {
		return Put{}, err
	}
	created := false // by this call, though another may bring it to rest
	for range turns {
		made, e, err := s.fast.reserve(ctx, n, markNew+nonce())
		if err != nil {
			return Put{}, err
		}
		created = created || made
		switch {
		case made || e.mark != "":
		case created && e.OpID == n.OpID:
			return Created(e.State), nil
		default:
			return n.judge(e.State), nil
		}
		state, there, rests, err := s.settle(ctx, e)
		switch {
		case err != nil:
			return Put{}, err
		case there:
			return n.judge(state), nil
		case made && rests:
			return Created(state), nil
		}
	}
	return Put{}, errTurns("create")
}

// Get implements Store. While Redis is away, a claim in DynamoDB is still found.
func (s *Split) Get(ctx context.Context, id string) (State, bool, error) {
	return s.got(s.get(ctx, id))
}

func (s *Split) get(ctx context.Context, id string) (State, bool, error) {
	if err := checkID("correlation_id", id); err != nil {
		return State{}, false, err
	}
	for range turns {
		e, ok, err := s.fast.look(ctx, id)
		switch {
		case err == nil && ok && e.mark != "":
			if _, _, _, err := s.settle(ctx, e); err != nil {
				return State{}, false, err
			}
			continue
		case err == nil && ok && e.Node != PAEvaluated:
			return e.State, true, nil
		}
		// At PAEvaluated a server that took over in Redis may have missed the move.
		d, live, _, derr := s.durable.find(ctx, id)
		switch {
		case derr == nil && live:
			return d, true, nil
		case err != nil || derr != nil:
			return State{}, false, errors.Join(err, derr)
		case ok:
			return e.State, true, nil
		}
		return State{}, false, nil
	}
	return State{}, false, errTurns("read")
}

// Advance implements Store.
func (s *Split) Advance(ctx context.Context, m Move) (Advance, error) {
	return s.advance(s.step(ctx, m))
}

func (s *Split) step(ctx context.Context, m Move) (Advance, error) {
	if err := m.Validate(); err != nil {
		return Advance{}, err
	}
	mark := ""
	if m.To == PAPended {
		mark = markMoved
	}
	for range turns {
		if m.From == PAEvaluated || m.From == PAPended {
			switch _, live, _, err := s.durable.find(ctx, m.CorrelationID); {
			case err != nil:
				return Advance{}, err
			case live:
				return s.durable.step(ctx, m)
			}
		}
		made, ok, e, err := s.fast.move(ctx, m, mark)
		switch {
		case err != nil:
			return Advance{}, err
		case made && mark == "":
			return Advanced(e.State), nil
		case made:
			if _, err := s.install(ctx, e); err != nil {
				return Advance{}, err
			}
			// The claim is durable; if the tombstone stays, the next one who meets it removes it.
			s.fast.drop(ctx, e)
			return Advanced(e.State), nil
		case !ok:
			d, live, _, err := s.durable.find(ctx, m.CorrelationID)
			if err != nil || !live {
				return Missing(), err
			}
			return m.judge(d), nil
		case e.mark == "":
			return m.judge(e.State), nil
		}
		if _, _, _, err := s.settle(ctx, e); err != nil {
			return Advance{}, err
		}
	}
	return Advance{}, errTurns("move")
}

// Ping implements Store.
func (s *Split) Ping(ctx context.Context) error {
	return errors.Join(s.fast.Ping(ctx), s.durable.Ping(ctx))
}

// Close closes both.
func (s *Split) Close() error { return errors.Join(s.fast.Close(), s.durable.Close()) }
