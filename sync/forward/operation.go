package forward

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// The kinds of operations.
const (
	OpIngest     = "claim_ingest"  // a committed dispense asks for its claim
	OpPut        = "claim_put"     // PutNew
	OpAdvance    = "claim_advance" // Advance
	OpPend       = "pa_pend"       // Pend
	OpTransition = "pa_transition" // Transition
)

// casesSubject is that of all operations on cases: which of them lead to the same case only the store knows.
const casesSubject = "pa"

func claimSubject(correlationID string) string { return "claim|" + correlationID }

// OperationID makes the id of an operation from what its caller will say again at each attempt: parts, of which the
// first are the agent and the kind. It is a UUID of version 8 (RFC 9562).
func OperationID(parts ...string) (id idem.EventID) {
	b, err := json.Marshal(parts)
	if err != nil {
		panic("operation id: " + err.Error()) // strings
	}
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}

// ClaimOf is the correlation id of the claim that the dispenses of an Rx token ask for: all bottles of one fill are
// one claim, and a refill has a token of its own.
func ClaimOf(rxToken string) string {
	sum := sha256.Sum256([]byte("claim|" + rxToken))
	return hex.EncodeToString(sum[:])[:32]
}

// putBody is what OpIngest and OpPut ask for.
type putBody struct {
	CorrelationID  string           `json:"correlation_id"`
	RxRefToken     claimstate.Token `json:"rx_ref_token"`
	IngredientCost claimstate.Cost  `json:"ingredient_cost"`
}

type advanceBody struct {
	CorrelationID   string          `json:"correlation_id"`
	ExpectedVersion int64           `json:"expected_version"`
	Node            claimstate.Node `json:"fsm_node"`
	IngredientCost  claimstate.Cost `json:"ingredient_cost,omitempty"`
	RejectCode      string          `json:"reject_code,omitempty"`
}

type pendBody struct {
	MemberToken string `json:"member_token"`
	GPI         string `json:"gpi"`
	Window      string `json:"request_window"`
}

type transitionBody struct {
	CaseID          string `json:"case_id"`
	ExpectedVersion int    `json:"expected_version"`
	To              string `json:"to"`
}

func newOperation(id idem.EventID, kind, subject string, body any, at window.UTC) (spool.Operation, error) {
	b, err := json.Marshal(body)
	return spool.Operation{ID: id, Kind: kind, Subject: subject, Body: b, At: at}, err
}

// standing is what a conflict keeps of the store.
type standing struct {
	Claim *claimstate.State `json:"claim,omitempty"`
	Case  *keptCase         `json:"case,omitempty"`
}

// keptCase is a case that the journal keeps: JSON in which its state is a word.
type keptCase pacase.Case

// UnmarshalJSON reads what json.Marshal writes.
func (k *keptCase) UnmarshalJSON(b []byte) (err error) {
	var c struct {
		pacase.Case
		State string
	}
	if err = json.Unmarshal(b, &c); err == nil {
		*k = keptCase(c.Case)
		k.State, err = pacase.ParseState(c.State)
	}
	return err
}

// Conflict is an operation that no store can do any more, for a person to see to.
type Conflict struct {
	ID     idem.EventID // of the operation
	Kind   string
	Target string // correlation id or case id
	Wanted json.RawMessage
	Detail string
	Claim  *claimstate.State // as it stood; nil for none
	Case   *pacase.Case
	Found  window.UTC
}

// Conflicts lists the conflicts of a journal, oldest first. What identifies a member is left out, and so is an
// operation that cannot be read.
func Conflicts(j *spool.Journal) ([]Conflict, error) {
	kept := j.Conflicts()
	out := make([]Conflict, len(kept))
	for i, k := range kept {
		out[i] = Conflict{ID: k.ID, Kind: k.Kind, Detail: k.Detail, Found: k.Found}
		var s standing
		if k.Current != nil {
			if err := json.Unmarshal(k.Current, &s); err != nil {
				return nil, fmt.Errorf("cannot read the conflict %s: %w", k.ID, err)
			}
		}
		out[i].Claim, out[i].Case = s.Claim, (*pacase.Case)(s.Case)
		if target, wanted, err := targetOf(&k.Operation); err == nil {
			out[i].Target, out[i].Wanted = target, wanted
		}
	}
	return out, nil
}

// Waiting is an operation that waits for a store.
type Waiting struct {
	ID     idem.EventID
	Kind   string
	Target string // correlation id or case id; "" for one that cannot be read
	At     window.UTC
}

// WaitingOf lists what waits in a journal, in order.
func WaitingOf(j *spool.Journal) []Waiting {
	ops := j.Waiting()
	out := make([]Waiting, len(ops))
	for i := range ops {
		op := &ops[i]
		out[i] = Waiting{ID: op.ID, Kind: op.Kind, At: op.At}
		if kind, over := strings.CutPrefix(op.Kind, opOver); over { // all but told
			var b overBody
			if json.Unmarshal(op.Body, &b) == nil {
				out[i].Target = b.Outcome.Target
			}
			out[i].Kind = kind
		} else if target, _, err := targetOf(op); err == nil {
			out[i].Target = target
		}
	}
	return out
}

// targetOf is what an operation is about, and what it wants as far as that can be shown.
func targetOf(op *spool.Operation) (target string, wanted json.RawMessage, err error) {
	switch op.Kind {
	case OpPend:
		var p pendBody
		if err = json.Unmarshal(op.Body, &p); err == nil {
			target = p.question().DerivedID()
			p.MemberToken = ""
			wanted, err = json.Marshal(struct {
				GPI    string `json:"gpi"`
				Window string `json:"request_window"`
			}{p.GPI, p.Window})
		}
		return target, wanted, err
	case OpTransition:
		var t transitionBody
		err = json.Unmarshal(op.Body, &t)
		return t.CaseID, op.Body, err
	}
	var p putBody
	err = json.Unmarshal(op.Body, &p)
	return p.CorrelationID, op.Body, err
}

func (p *pendBody) question() pacase.Question {
	return pacase.Question{MemberToken: p.MemberToken, GPI: p.GPI, Window: p.Window}
}
