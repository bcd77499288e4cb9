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
	ids := make([]idem.EventID, len(events))
	for i, e := range events {
		var err error
		if ids[i], err = idem.ParseEventID(e); err != nil {
			return 0, &api.Error{Status: http.StatusBadRequest, Reason: "bad_event_id", Detail: err.Error(), Hint: "scanonce spool ls lists the records that are quarantined"}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requeueWithin)
	defer cancel()
	n, err := a.forward.Requeue(ctx, ids, all)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return 0, &api.Error{Status: http.StatusServiceUnavailable, Reason: "busy", Detail: "cannot requeue now: the forwarder waits for a store", Hint: "try again once scanonce status says that the stores answer"}
	case err != nil:
		return 0, unkept(err)
	}
	if n > 0 {
		a.log.Info("quarantined records are tried again", "records", n)
		a.alarms.endQuarantine(func() int64 { return a.spool.Stats().Quarantined })
	}
	return n, nil
}

// endQuarantine ends the alarm if nothing is quarantined any more. The forwarder may refuse a record again
// at the same moment: the second look keeps that alarm up.
func (al *alarms) endQuarantine(quarantined func() int64) {
	if quarantined() > 0 {
		return
	}
	al.clear(alarmQuarantined)
	if quarantined() > 0 {
		al.set(alarmQuarantined, "records are set aside that the ledger refuses", "look at them with scanonce spool ls and call support; nothing else is held up")
	}
}
