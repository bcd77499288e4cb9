// Package pacase holds prior-authorization cases: one open case for a member and a drug, however many claims
// ask for it, at however many agents, in whatever order they arrive.
package pacase

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"scanonce/window"
)

// State is where a case stands. The zero State is none.
type State uint8

// The states, in the words of the table.
const (
	Pending State = iota + 1
	InReview
	Approved
	Denied
	Appealed
	Cancelled
	Expired
)

// states are the properties of each state, by its number.
var states = [...]struct {
	name string
	open bool // somebody works on the case: no other may be made for the same member and drug
	next []State
}{
	Pending:   {"PENDING", true, []State{InReview}},
	InReview:  {"IN_REVIEW", true, []State{Approved, Denied, Cancelled, Expired}},
	Approved:  {"APPROVED", false, nil},
	Denied:    {"DENIED", false, []State{Appealed}},
	Appealed:  {"APPEALED", true, []State{Approved, Denied}},
	Cancelled: {"CANCELLED", false, nil},
	Expired:   {"EXPIRED", false, nil},
}

// States are all states.
func States() []State {
	return []State{Pending, InReview, Approved, Denied, Appealed, Cancelled, Expired}
}

func (s State) known() bool { return s >= Pending && s <= Expired }

// String is the state's name, as in the table.
func (s State) String() string {
	if !s.known() {
		return fmt.Sprintf("state %d", uint8(s))
	}
	return states[s].name
}

// MarshalText writes String's form.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ParseState reads String's form.
func ParseState(name string) (State, error) {
	for _, s := range States() {
		if states[s].name == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("cannot read %q as the state of a case: write PENDING, IN_REVIEW, APPROVED, DENIED, APPEALED, CANCELLED or EXPIRED", name)
}

// Open says that somebody works on a case in this state.
func (s State) Open() bool { return s.known() && states[s].open }

// May says that a case can go from s to the state to.
func (s State) May(to State) bool { return s.known() && slices.Contains(states[s].next, to) }

// before returns the states from which a case can go to s.
func (s State) before() (from []State) {
	for _, f := range States() {
		if f.May(s) {
			from = append(from, f)
		}
	}
	return from
}

// RejectPriorAuthorization is NCPDP reject code 75, "prior authorization required".
const RejectPriorAuthorization = "75"

// RejectCode is what a claim for a case in this state is refused with; "" for an approved one alone.
func (s State) RejectCode() string {
	if s == Approved {
		return ""
	}
	return RejectPriorAuthorization
}

// UUID names an event or an operation: a value that its maker never uses for anything else.
type UUID [16]byte

// IsZero says that there is none.
func (u UUID) IsZero() bool { return u == UUID{} }

// String is the UUID's text form.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Case is one case as a store holds it.
type Case struct {
	ID          string // the derived id of the question that opened it
	MemberToken string
	GPI         string
	Window      string // of the question that opened it
	State       State
	Version     int  // 1 at first, one more with each transition
	CreatedBy   UUID // the event that opened it
	LastOp      UUID // the last transition, at first the event that opened it
	CreatedAt   window.UTC
	UpdatedAt   window.UTC
}

// Question is what a prior authorization is asked for.
type Question struct {
	MemberToken string // opaque; never a cardholder id (NCPDP 302-C2)
	GPI         string // generic product identifier, 14 characters or the first pairs of them
	Window      string // of the request, made by Windows.At when it was first heard, and kept
}

// Pend asks for a question's case. The same event asks the same question at every attempt.
type Pend struct {
	Event UUID
	Question
}

// Pended is the case that answers a pend.
type Pended struct {
	Case        Case   // as it stands now
	RequestedID string // the question's derived id; resolves to Case for ever
	// Created says that this event opened the case, and is told at every attempt of that event: who is told
	// starts the review, with a transition out of version 1, which can succeed once.
	Created bool
}

// Transition moves a case on.
type Transition struct {
	ID       string // of the case, or any id that led to it
	Expected int    // the version that the mover has seen
	To       State
	Op       UUID // the same at every attempt
}

// Transitioned is the answer to a transition. Match is the only way in, so a caller cannot forget a case of it.
type Transitioned struct {
	kind uint8
	c    Case
}

// Moved says that the case went on; c is what it is now.
func Moved(c Case) Transitioned { return Transitioned{1, c} }

// AlreadyMine says that this very operation moved the case before, and nobody has since.
func AlreadyMine(c Case) Transitioned { return Transitioned{2, c} }

// Conflict says that the case is not at the expected version.
func Conflict(current Case) Transitioned { return Transitioned{3, current} }

// OtherOpen says that the case cannot be opened again, as another one of the same member and drug is open.
func OtherOpen(open Case) Transitioned { return Transitioned{4, open} }

// Illegal says that no case goes from the current state to the one that was asked for.
func Illegal(current Case) Transitioned { return Transitioned{5, current} }

// Missing says that no store has ever given out the id.
func Missing() Transitioned { return Transitioned{} }

// Match calls the function of the answer's case. The zero Transitioned is Missing.
func (t Transitioned) Match(moved, alreadyMine, conflict, otherOpen, illegal func(Case), missing func()) {
	switch t.kind {
	case 1:
		moved(t.c)
	case 2:
		alreadyMine(t.c)
	case 3:
		conflict(t.c)
	case 4:
		otherOpen(t.c)
	case 5:
		illegal(t.c)
	default:
		missing()
	}
}

// movable says that t moves c. other is an open case of the same member and drug, if there is one beside c.
func (c *Case) movable(t *Transition, other *Case) bool {
	return c.Version == t.Expected && c.State.May(t.To) && other == nil
}

// refusal is the answer to a transition that did not move c.
func (c *Case) refusal(t *Transition, other *Case) Transitioned {
	switch {
	case c.LastOp == t.Op && c.State == t.To && c.Version == t.Expected+1:
		return AlreadyMine(*c)
	case c.Version == t.Expected && !c.State.May(t.To):
		return Illegal(*c)
	case c.Version == t.Expected && other != nil:
		return OtherOpen(*other)
	}
	return Conflict(*c)
}

// Store is a store of cases. Implementations are safe for concurrent use. After an error, nothing is known about
// what became of the call: the same call again finds out. A RequestError can never succeed.
type Store interface {
	// Pend answers with the event's stored answer; else with the case that the question's derived id already
	// leads to, whatever its state; else with the open case of the member and drug; else with a new case. The
	// derived id leads to that case from then on, if it led to none: that of a later attempt in another window too.
	// It is durable before it returns.
	Pend(ctx context.Context, p Pend) (Pended, error)
	// Transition moves a case if it is at the expected version, durably.
	Transition(ctx context.Context, t Transition) (Transitioned, error)
	// Get returns the case that an id leads to: a case's own, or one that a pend asked with. ok is false if
	// there is none.
	Get(ctx context.Context, id string) (c Case, ok bool, err error)
	// Ping says whether cases can be read, at the cost of a round trip.
	Ping(ctx context.Context) error
	Close() error
}
