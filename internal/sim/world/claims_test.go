package world

import (
	"maps"
	"time"

	"github.com/anishathalye/porcupine"

	"scanonce/idem"
)

// claimCall is a claim as the agent's client made it, or the loss of all that the store held.
type claimCall struct {
	at        time.Duration // when the server may have done it
	edge, key string
	token     string
	ttl       time.Duration
	lost      []string
}

// claimAnswer is what the client concluded.
type claimAnswer struct {
	kind uint8 // 0: unknown
	by   idem.EventID
}

const (
	answerWon = 1 + iota
	answerHeld
)

// ask notes a batch of claims that begins, and returns what notes its end.
func (s *redisStore) ask(asked []idem.Claim) (end func([]idem.Outcome)) {
	s.clock++
	call, at := s.clock, s.w.now
	return func(out []idem.Outcome) {
		s.clock++
		for i, a := range asked {
			op := porcupine.Operation{ClientId: len(s.calls), Call: call, Return: s.clock, Input: claimCall{at: at, edge: a.Keys.Edge.String(), key: a.Keys.Idem.String(), token: a.Event.String(), ttl: s.w.plan.ttl}}
			var answer claimAnswer
			out[i].Match(func() { answer.kind = answerWon }, func(by idem.EventID) { answer = claimAnswer{answerHeld, by} }, func(error) {})
			op.Output = answer
			s.calls = append(s.calls, op)
		}
	}
}

// forgot notes that the store lost keys.
func (s *redisStore) forgot(keys []string) {
	s.clock += 2
	s.calls = append(s.calls, porcupine.Operation{ClientId: len(s.calls), Call: s.clock - 1, Return: s.clock, Input: claimCall{lost: keys}, Output: claimAnswer{}})
}

// claimState is what a store of claims holds.
type claimState map[string]claimHeld

// claimModel is a store of claims as it should be: each key has one holder until it expires or is lost.
func claimModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{claimState{}} },
		Step: func(state, input, output any) []any {
			before, c, a := state.(claimState), input.(claimCall), output.(claimAnswer)
			after := maps.Clone(before)
			if c.lost != nil {
				for _, k := range c.lost {
					delete(after, k)
				}
				return []any{after}
			}
			other := ""
			for _, k := range [...]string{c.edge, c.key} {
				if k == "" {
					continue
				}
				h, held := after[k]
				switch held = held && c.at < h.until; {
				case !held:
					after[k] = claimHeld{c.token, c.at + c.ttl}
				case h.by != c.token:
					other = h.by
				}
			}
			switch {
			case a.kind == 0:
				return []any{before, after} // done or not
			case a.kind == answerWon && other == "", a.kind == answerHeld && a.by.String() == other:
				return []any{after}
			}
			return nil
		},
		Equal: func(a, b any) bool { return maps.Equal(a.(claimState), b.(claimState)) },
	}
	return m.ToModel()
}

// claimed checks that what the agents' clients concluded could have come from such a store.
func (o *oracle) claimed() {
	if len(o.w.redis.calls) > 0 && porcupine.CheckOperationsTimeout(claimModel(), o.w.redis.calls, 10*time.Second) == porcupine.Illegal {
		o.w.fail("the answers to the claims fit no order of them")
	}
}
