package agent

import (
	"context"
	"fmt"
	"time"

	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
)

// remembers is the task that asks the ledger, at the start and after each outage, whether it still has the last row that
// it has acknowledged: nobody else would miss one that was put back from an older copy, replaced or removed.
type remembers struct {
	a       *agent
	ready   chan struct{}
	missing *ledger.Probe // the row that the ledger was found to lack, in this run
}

func newRemembers(a *agent) *remembers { return &remembers{a: a, ready: make(chan struct{})} }

func (r *remembers) String() string { return "ledger's memory" }

// Ready is closed at once.
func (r *remembers) Ready() <-chan struct{} { return r.ready }

const rememberAgain = 10 * time.Second // after a ledger that did not answer

// Run asks until ctx ends.
func (r *remembers) Run(ctx context.Context) error {
	close(r.ready)
	var row *ledger.Probe
	for {
		var again <-chan time.Time
		if row != nil && r.ask(ctx, row) != nil {
			again = time.After(rememberAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case next := <-r.a.linked:
			if row = next; r.missing != nil {
				row = r.missing
			}
		case <-again:
		}
	}
}

func (r *remembers) ask(ctx context.Context, row *ledger.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	standing, err := r.a.ledger.Standing(ctx, []ledger.Probe{*row})
	switch {
	case err != nil:
		return err
	case standing[0].ByEvent.Event == row.Event:
		r.missing = nil
		r.a.alarms.clear(alarmLedgerLost)
	default:
		r.missing = row
		r.a.log.Error("the ledger lacks a row that it has acknowledged", "event_id", row.Event.String())
		r.a.alarms.set(alarmLedgerLost, fmt.Sprintf("the ledger lacks the row of event %s, which it has acknowledged: it was put back from an older copy, replaced or removed", row.Event),
			"stop the agent, put the newest copy of the ledger back, and start it again: movements that were committed since an older copy are not in that; scanonce audit verify tells of what is missing")
	}
	return nil
}

// remember keeps the last row that the ledger has acknowledged. It belongs to the forwarder's
// goroutine, or comes before that.
func (a *agent) remember(records []forward.Settled) {
	for i := range records {
		if r := records[i].Record; records[i].Verdict.State == spool.Committed {
			a.acknowledged = &ledger.Probe{Keys: r.Keys, Event: r.Event}
		}
	}
}

// recall is remember for what an earlier run has settled last, if its record is still there.
func (a *agent) recall() {
	_, verdicts := a.spool.LastSettlement()
	for i := range verdicts {
		if verdicts[i].State != spool.Committed {
			continue
		}
		if r, err := a.spool.Load(verdicts[i].Seq); err == nil {
			a.remember([]forward.Settled{{Record: r, Verdict: verdicts[i]}})
		}
	}
	a.suspect = a.acknowledged
	a.askWhetherThere()
}

// askWhetherThere has the ledger asked for the row that was the last one before it went away.
func (a *agent) askWhetherThere() {
	if a.suspect == nil {
		return
	}
	select {
	case a.linked <- a.suspect:
	default:
	}
}
