package forward

import (
	"context"
	"slices"

	"scanonce/idem"
	"scanonce/spool"
)

// Discard gives up those of the given events that are quarantined or held, with their duplicates, in the name of a
// person. The count and the audit's lines are one change. It returns how many there were.
func (f *Forwarder) Discard(ctx context.Context, events []idem.EventID, by string) (int, error) {
	return f.between(ctx, func() (int, error) { return f.discard(events, by) })
}

func (f *Forwarder) discard(events []idem.EventID, by string) (int, error) {
	b := &batch{}
	chosen := map[uint64]bool{}
	for _, x := range f.spool.Exceptions() { // oldest first: a duplicate comes behind its winner
		r, err := f.spool.Load(x.Seq)
		if err != nil {
			return 0, err
		}
		stuck := x.State == spool.Quarantined || x.State == spool.Held
		if !chosen[r.OfSeq] && !(stuck && slices.Contains(events, r.Event)) {
			continue
		}
		chosen[r.Seq] = true
		b.records = append(b.records, r)
		b.verdicts = append(b.verdicts, spool.Verdict{Seq: r.Seq, State: spool.Discarded, Detail: by})
	}
	if len(b.records) == 0 {
		return 0, nil
	}
	return len(b.records), f.settle(b)
}
