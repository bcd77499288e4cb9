package forward

import (
	"context"
	"errors"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/ledger"
)

// ErrNoBatch says that no batch of that id waits for a person, or did.
var ErrNoBatch = errors.New("cannot find a repeated batch of that id")

// ErrDecided says that a person has decided otherwise before.
var ErrDecided = errors.New("cannot decide on the batch: it is decided")

// holds says whether a record of a repeated batch, at place i, does not become a row, and notes what becomes of it.
func (f *Forwarder) holds(b *batch, i int, id idem.EventID) bool {
	v := spool.Verdict{Seq: b.records[i].Seq, State: spool.Held, Detail: id.String()}
	switch d, _ := f.spool.StoredBatch(id); d.Decision {
	case spool.BatchConfirmed:
		return false
	case spool.BatchDiscarded:
		v.State, v.Detail = spool.Discarded, d.By
	}
	if b.waits == nil {
		b.waits = map[int]spool.Verdict{}
	}
	b.waits[i] = v
	return true
}

// DecideBatch carries out a person's decision on a batch that came a second time: its records become movements of
// their own, or are given up in the name of by. It returns how many they are, local duplicates aside, and the same for
// a decision that was made before. Those that are not settled yet follow when their turn comes.
func (f *Forwarder) DecideBatch(ctx context.Context, id idem.EventID, d spool.BatchDecision, by string) (int, error) {
	return f.between(ctx, func() (int, error) { return f.decideBatch(id, d, by) })
}

func (f *Forwarder) decideBatch(id idem.EventID, d spool.BatchDecision, by string) (int, error) {
	known, ok := f.spool.StoredBatch(id)
	switch {
	case !ok || known.Held == 0:
		return 0, ErrNoBatch
	case known.Decision == d:
		return known.Held, nil
	case known.Decision != spool.Undecided:
		return 0, ErrDecided
	}
	known.Decision, known.By = d, by
	b := &batch{work: spool.Decided(known)}
	now := f.clock.Now().T
	for _, x := range f.spool.Exceptions() {
		if x.State != spool.Held || x.Detail != id.String() {
			continue
		}
		r, err := f.spool.Load(x.Seq)
		if err != nil {
			return 0, err
		}
		v := spool.Verdict{Seq: r.Seq, State: spool.Deferred}
		switch {
		case d == spool.BatchDiscarded:
			v.State, v.Detail = spool.Discarded, by
		case r.IsDuplicate():
			v.State = spool.Waiting
		}
		b.records = append(b.records, r)
		b.verdicts = append(b.verdicts, v)
	}
	if d == spool.BatchConfirmed {
		b.notes = append(b.notes, spool.Line{Event: spool.NewEvent(now), At: now, Outcome: string(ledger.Notice), Reason: reasonConfirmed,
			Scanner: known.Scanner, CapturedAt: known.At, Length: known.Held})
	}
	if err := f.settle(b); err != nil {
		return 0, err
	}
	for i := range b.verdicts {
		delete(f.due, b.verdicts[i].Seq) // at once
	}
	return known.Held, nil
}
