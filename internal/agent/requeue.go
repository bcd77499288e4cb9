package agent

import (
	"context"
	"errors"
	"net/http"

	"scanonce/idem"
	"scanonce/internal/api"
)

// requeueWithin is how long a requeue may wait for the round under way, which ends with its calls to the
// stores.
const requeueWithin = 3 * storeTimeout

// Requeue tries quarantined records again; see api.Backend.
func (a *agent) Requeue(ctx context.Context, events []string, all bool) (int, error) {
	n, err := a.onQuarantined(ctx, events, "requeue", func(ctx context.Context, ids []idem.EventID) (int, error) {
		return a.forward.Requeue(ctx, ids, all)
	})
	if n > 0 {
		a.log.Info("quarantined records are tried again", "records", n)
	}
	return n, err
}

// Discard gives quarantined and held records up; see api.Discarder.
func (a *agent) Discard(ctx context.Context, q api.Discard) (int, error) {
	if !nameOfPerson.MatchString(q.By) {
		return 0, errNoName
	}
	n, err := a.onQuarantined(ctx, q.EventIDs, "discard", func(ctx context.Context, ids []idem.EventID) (int, error) {
		return a.forward.Discard(ctx, ids, q.By)
	})
	if n > 0 {
		a.log.Warn("records were discarded", "records", n, "by", q.By)
		a.watchBatches()
	}
	return n, err
}

var errNoName = &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_by", Detail: "cannot use by: it is no name",
	Hint: "name who gives the records up, with letters, digits, blanks, dots and hyphens, at most 64"}

func errForwarderBusy(what string) error {
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: "busy", Detail: "cannot " + what + " now: the forwarder waits for a store", Hint: "try again once scanonce status says that the stores answer"}
}

// onQuarantined does what a person wants with quarantined records.
func (a *agent) onQuarantined(ctx context.Context, events []string, what string, do func(context.Context, []idem.EventID) (int, error)) (int, error) {
	ids := make([]idem.EventID, len(events))
	for i, e := range events {
		var err error
		if ids[i], err = idem.ParseEventID(e); err != nil {
			return 0, &api.Error{Status: http.StatusBadRequest, Reason: "bad_event_id", Detail: err.Error(), Hint: "scanonce spool ls lists the records that are quarantined"}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requeueWithin)
	defer cancel()
	n, err := do(ctx, ids)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return 0, errForwarderBusy(what)
	case err != nil:
		return 0, unkept(err)
	}
	if n > 0 {
		a.alarms.endQuarantine(func() int64 { return a.spool.Stats().Quarantined })
	}
	return n, nil
}

const quarantineHint = "look at them with scanonce spool ls; once the cause is mended scanonce spool requeue tries them again, and scanonce spool discard gives them up; nothing else is held up but what is queued for the claims of their prescriptions"

// endQuarantine ends the alarm if nothing is quarantined any more. The forwarder may refuse a record again
// at the same moment: the second look keeps that alarm up.
func (al *alarms) endQuarantine(quarantined func() int64) {
	if quarantined() > 0 {
		return
	}
	al.clear(alarmQuarantined)
	if quarantined() > 0 {
		al.set(alarmQuarantined, "records are set aside that the ledger refuses", quarantineHint)
	}
}
