package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/events"
	"scanonce/spool"
	"scanonce/sync/forward"
)

type batchBody struct {
	ID      string `json:"batch_id"`
	Scanner string `json:"scanner_id"`
	Count   int    `json:"count"`
	Repeat  bool   `json:"repeat"`
	Held    int    `json:"held"`
}

// lapse tells of the stored batches that have come to their end. While frames wait, they may go on.
func (p *pipeline) lapse() {
	now := p.a.clock.Boot() // before the look at the queue: what comes behind it is later
	if len(p.frames) > 0 {
		return
	}
	for _, b := range p.a.spool.Lapse(now) {
		p.waits = p.waits || b.Held > 0
		p.a.log.Info("a scanner has sent what it had stored", "scanner", b.Scanner, "batch_id", b.ID.String(), "count", b.Count, "held", b.Held)
		p.a.metrics.batches.WithLabelValues(fmt.Sprint(b.Repeat)).Inc()
		p.a.tell(events.Entry{Kind: "batch", At: b.At, Body: batchBody{b.ID.String(), b.Scanner, b.Count, b.Repeat, b.Held}})
	}
	p.typeNow()
	if err := p.a.spool.KeepBatches(); err != nil { // after the telling, so that a kill leaves none without its event
		p.a.log.Warn("cannot keep what a scanner has sent", "error", err)
	}
	if p.waits && p.a.spool.BatchesKept() { // those that could not be kept yet are not listed yet
		p.waits = false
		p.a.watchBatches()
	}
}

// watchBatches raises and clears the alarm of batches that wait for a person.
func (a *agent) watchBatches() {
	a.batching.Lock()
	defer a.batching.Unlock()
	waiting := a.spool.WaitingBatches()
	if len(waiting) == 0 {
		a.alarms.clear(alarmBatch)
		return
	}
	first, n := &waiting[0], 0
	for i := range waiting {
		n += waiting[i].Held
	}
	more := ""
	if len(waiting) > 1 {
		more = fmt.Sprintf(" and %d more", len(waiting)-1)
	}
	a.alarms.set(alarmBatch, fmt.Sprintf("%d scans came out of a scanner's memory a second time and are not counted: batch %s of scanner %s%s", n, first.ID, first.Scanner, more),
		"scanonce batches lists them; if the items were really moved again, scanonce batches --confirm ID counts them, else scanonce batches --discard ID --by NAME gives them up")
}

// Batches lists the batches that wait for a person; see api.Batches.
func (a *agent) Batches(_ context.Context, yield func(api.Batch) error) error {
	for _, b := range a.spool.WaitingBatches() {
		if err := yield(api.Batch{BatchID: b.ID.String(), ScannerID: b.Scanner, Count: b.Count, Held: b.Held, At: b.At}); err != nil {
			return err
		}
	}
	return nil
}

// ConfirmBatch makes movements of the records of a batch that waits; see api.Batches.
func (a *agent) ConfirmBatch(ctx context.Context, id string) (int, error) {
	return a.decideBatch(ctx, id, spool.BatchConfirmed, "")
}

// DiscardBatch gives the records of a batch up; see api.Batches.
func (a *agent) DiscardBatch(ctx context.Context, id, by string) (int, error) {
	if !nameOfPerson.MatchString(by) {
		return 0, errNoName
	}
	return a.decideBatch(ctx, id, spool.BatchDiscarded, by)
}

func (a *agent) decideBatch(ctx context.Context, id string, d spool.BatchDecision, by string) (int, error) {
	const hint = "scanonce batches lists those that wait"
	batch, err := idem.ParseEventID(id)
	if err != nil {
		return 0, &api.Error{Status: http.StatusBadRequest, Reason: "bad_batch_id", Detail: err.Error(), Hint: hint}
	}
	ctx, cancel := context.WithTimeout(ctx, requeueWithin)
	defer cancel()
	n, err := a.forward.DecideBatch(ctx, batch, d, by)
	switch {
	case errors.Is(err, forward.ErrNoBatch):
		return 0, &api.Error{Status: http.StatusNotFound, Reason: "no_such_batch", Detail: err.Error(), Hint: hint}
	case errors.Is(err, forward.ErrDecided):
		return 0, &api.Error{Status: http.StatusConflict, Reason: "batch_decided", Detail: err.Error(), Hint: "the audit says by whom; scan items again that are missing"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return 0, errForwarderBusy("decide on the batch")
	case err != nil:
		return 0, unkept(err)
	}
	a.log.Warn("a person has decided on a repeated batch", "batch_id", id, "decision", string(d), "records", n, "by", by)
	a.watchBatches()
	return n, nil
}
