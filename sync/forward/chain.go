package forward

import (
	"cmp"
	"context"
	"time"

	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const (
	chainRecords = 16                     // forwarded together, at most; as many do not wait
	chainWait    = 100 * time.Millisecond // how long fewer of them wait for more
)

// entry is an audit line as the ledger has it.
func (f *Forwarder) entry(l *spool.Line) ledger.Line {
	out := ledger.Line{Event: l.Event, Agent: f.cfg.Agent, At: l.At, Key: l.Key, Ref: l.Ref, Outcome: ledger.Outcome(l.Outcome),
		Reason: l.Reason, Winner: l.Winner, Scanner: l.Scanner, Type: l.Type, CapturedAt: l.CapturedAt, TTL: l.TTL,
		Length: l.Length, Symbology: l.Symbology}
	if out.Flaw() != "" {
		mend(&out)
	}
	return out
}

// bind makes the chain's record of a batch that is about to be settled with these lines; nil if it has neither
// row nor line. At the beginning of an epoch it adds the line that says so.
func (f *Forwarder) bind(b *batch, lines []spool.Line, now window.UTC) ([]spool.Line, *spool.ChainRecord) {
	rows := 0
	for i := range b.verdicts {
		if b.verdicts[i].State == spool.Committed {
			rows++
		}
	}
	if rows+len(lines)+len(b.work.Notes) == 0 {
		return lines, nil
	}
	head := f.spool.ChainHead()
	r := &spool.ChainRecord{Epoch: head.Epoch, Seq: head.Seq + 1, Prev: head.Hash}
	add := func(l *ledger.Line) {
		hash := l.Hash()
		r.Events = append(r.Events, l.Event)
		r.LineHashes = append(r.LineHashes, hash[:]...)
	}
	if head.Seq == 0 {
		start := spool.Line{Event: spool.NewEvent(now), At: now, Outcome: string(ledger.Notice), Reason: ledger.EpochStart, Length: int(head.Unaccounted)}
		lines = append([]spool.Line{start}, lines...)
	}
	for i := range lines {
		l := f.entry(&lines[i])
		add(&l)
	}
	for i, rec := range b.records { // the lines that the rows are
		v := &b.verdicts[i]
		if v.State != spool.Committed {
			continue
		}
		l := ledger.Line{Event: rec.Event, Agent: cmp.Or(b.agents[i], f.cfg.Agent), At: v.CommittedAt, Key: rec.Keys.Idem, Outcome: ledger.Committed,
			Reason: v.Reason, Scanner: rec.Scanner, Type: rec.Type, CapturedAt: rec.At}
		add(&l)
	}
	for i := range b.work.Notes {
		l := f.entry(&b.work.Notes[i])
		add(&l)
	}
	r.Hash = ledger.ChainHash(r.Prev, r.LineHashes)
	return lines, r
}

// forwardChain sends records whose lines are in the ledger. A few wait a little for more.
func (f *Forwarder) forwardChain(ctx context.Context) (int, error) {
	n := f.spool.PendingChain()
	switch {
	case n == 0:
		f.chainDue = 0
		return 0, nil
	case f.chainDue == 0:
		f.chainDue = f.clock.Boot() + chainWait
	}
	if n < chainRecords && !f.stopping && f.clock.Boot() < f.chainDue {
		return 0, nil
	}
	records, err := f.spool.Chain(chainRecords)
	if err != nil || len(records) == 0 {
		return 0, err
	}
	out := make([]ledger.ChainRecord, len(records))
	for i, r := range records {
		out[i] = ledger.ChainRecord{Agent: f.cfg.Agent, Epoch: r.Epoch, Seq: r.Seq, Events: r.Events, LineHashes: r.LineHashes, Prev: r.Prev, Hash: r.Hash}
	}
	c, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	if err := f.ledger.AppendChain(c, out); err != nil {
		return 0, err
	}
	f.spool.ChainForwarded(len(records))
	f.chainDue = 0
	return len(records), nil
}
