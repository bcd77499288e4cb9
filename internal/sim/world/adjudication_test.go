package world

import (
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"scanonce/idem"
	"scanonce/sync/claimstate"
)

// adjudication is the history of one claim as pharmacy systems have seen it.
type adjudication struct {
	ops      []porcupine.Operation
	reverted bool
}

// adjState is a claim in its model; the zero one is none.
type adjState struct {
	version int64
	node    claimstate.Node
	cost    claimstate.Cost
	op      string
}

// adjCall is what is asked for, or what happens to a claim without being asked for.
type adjCall struct {
	kind    string // put, advance, claim, expired, reverted
	version int64
	to      claimstate.Node
	reject  bool
	cost    claimstate.Cost
	op      string
	state   adjState
}

type adjKind uint8

// Answers. The zero one is none: done or not.
const (
	adjMade adjKind = 1 + iota
	adjMine
	adjOther
	adjMissing
)

type adjAnswer struct {
	kind    adjKind
	version int64
	node    claimstate.Node
	cost    claimstate.Cost
}

// of says that an answer tells of a state.
func (a *adjAnswer) of(s adjState) bool {
	return s.version == a.version && s.node == a.node && s.cost == a.cost
}

func (o *oracle) historyOf(id string) *adjudication {
	h := o.history[id]
	if h == nil {
		h = &adjudication{}
		o.history[id] = h
	}
	return h
}

// adjudicate notes an attempt at a claim.
func (o *oracle) adjudicate(c *call, a adjAnswer) {
	in := c.in
	q := adjCall{kind: in.plan.kind, version: in.move.ExpectedVersion, to: claimstate.Node(in.move.Node), reject: in.move.RejectCode != nil, cost: in.cost, op: string(in.cost)}
	switch q.kind {
	case "put", "advance":
	case "claim":
		if a.kind == 0 {
			return
		}
	default:
		return
	}
	end := o.tick()
	if a.kind == 0 {
		end = math.MaxInt64 // it may be done at any time from now on
	}
	o.noted(in.id, q, a, c.at, end)
}

func (o *oracle) noted(id string, q adjCall, a adjAnswer, from, to int64) {
	h := o.historyOf(id)
	h.ops = append(h.ops, porcupine.Operation{ClientId: len(h.ops), Input: q, Output: a, Call: from, Return: to})
}

// ingested notes that a scan may make a claim from now on.
func (o *oracle) ingested(id string, event idem.EventID) {
	o.noted(id, adjCall{kind: "put", cost: "0.00", op: event.String()}, adjAnswer{}, o.tick(), math.MaxInt64)
}

// expired notes that a claim's time is over.
func (o *oracle) expired(id string, version int64) {
	o.noted(id, adjCall{kind: "expired", version: version}, adjAnswer{}, o.tick(), o.tick())
}

// reverted notes that a claim is what it was before its last write.
func (o *oracle) reverted(id string, c claimLife) {
	s := adjState{c.Version, c.Node, c.IngredientCost, c.OpID}
	if in := slices.IndexFunc(o.intents, func(in *intent) bool { return in.cost == s.cost }); in >= 0 {
		s.op = string(s.cost)
	}
	o.historyOf(id).reverted = true
	o.noted(id, adjCall{kind: "reverted", state: s}, adjAnswer{}, o.tick(), o.tick())
}

// adjModel is a store of one claim as it should be.
func adjModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{adjState{}} },
		Step: func(state, input, output any) []any {
			s, q, a := state.(adjState), input.(adjCall), output.(adjAnswer)
			next := s
			stays := false
			switch q.kind {
			case "expired":
				if s.version != q.version {
					return nil
				}
				return []any{adjState{}}
			case "reverted":
				return []any{q.state}
			case "claim":
				stays = s.version == 0 && a.kind == adjMissing || s.version > 0 && a.kind == adjOther && a.of(s)
			case "put":
				if s.version == 0 {
					next = adjState{1, claimstate.Ingested, q.cost, q.op}
				}
			case "advance":
				if s.version == q.version && s.version > 0 && mayMove(s.node, q.to, q.reject) {
					next = adjState{s.version + 1, q.to, q.cost, q.op}
				}
			}
			switch {
			case q.kind == "claim":
			case a.kind == 0:
				return []any{s, next}
			case next != s:
				if a.kind == adjMade && a.of(next) {
					return []any{next}
				}
			case s.version == 0:
				stays = a.kind == adjMissing
			case s.op == q.op:
				stays = a.kind == adjMine && a.of(s)
			default:
				stays = a.kind == adjOther && a.of(s)
			}
			if stays {
				return []any{s}
			}
			return nil
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return m.ToModel()
}

func mayMove(from, to claimstate.Node, reject bool) bool {
	if from == claimstate.ResponseDispatched {
		return false
	}
	if to == claimstate.ResponseDispatched && reject {
		return true
	}
	if reject && to != claimstate.PAPended {
		return false
	}
	return slices.Contains(ways[from], to)
}

// adjudicated checks that the answers about each claim could have come from one store.
func (o *oracle) adjudicated() {
	for id, h := range o.history {
		ops := slices.Clip(h.ops)
		for _, op := range h.ops {
			q := op.Input.(adjCall)
			if op.Return == math.MaxInt64 && h.reverted { // it may have been lost, and done again
				ops = append(ops, op)
			}
			for _, e := range o.w.states.effects[id] { // its request may have come once more when the claim's time was over
				if e.creates && e.cost == q.cost && q.kind == "put" {
					ops = append(ops, porcupine.Operation{Input: q, Output: adjAnswer{}, Call: op.Call, Return: math.MaxInt64})
				}
			}
		}
		if porcupine.CheckOperationsTimeout(adjModel(), ops, time.Second) == porcupine.Illegal {
			o.w.fail("the answers about the claim %s fit no order of them", id)
		}
	}
}
