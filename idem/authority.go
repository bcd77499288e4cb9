package idem

import "context"

// Claim asks for one event's keys.
type Claim struct {
	Keys  Keys
	Event EventID // the owner's token: the same at every attempt
}

// Outcome is the answer to a claim: Won, Held by another event, or Unknown. Match is the only way in,
// so a caller cannot forget a case.
type Outcome struct {
	kind uint8
	by   EventID
	err  error
}

// Won says that every key was absent or already carried the own token.
func Won() Outcome { return Outcome{kind: 1} }

// Held says that another event holds one of the keys. by is zero if the holder could not be read.
func Held(by EventID) Outcome { return Outcome{kind: 2, by: by} }

// Unknown says that some reply is missing or an error: nothing may be concluded from it.
func Unknown(err error) Outcome { return Outcome{err: err} }

// Match calls the function of the outcome's case. The zero Outcome is Unknown.
func (o Outcome) Match(won func(), held func(by EventID), unknown func(err error)) {
	switch o.kind {
	case 1:
		won()
	case 2:
		held(o.by)
	default:
		unknown(o.err)
	}
}

// Authority decides which of several claimers goes first. It saves work; it never gives permission: the
// ledger's unique keys are final. A lost claim costs latency only.
type Authority interface {
	// Claim answers every claim, in order. Failures are Unknown outcomes, never an error. A claim is
	// re-entrant: the holder's own token wins again.
	Claim(ctx context.Context, claims []Claim) []Outcome
	Close() error
}
