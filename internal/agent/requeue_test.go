package agent

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"scanonce/internal/api"
	"scanonce/internal/events"
	"scanonce/sync/forward"
	"scanonce/window"
)

func TestRequeueAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A forwarder that does not run is one that a store holds up.
		a := &agent{forward: forward.New(forward.Config{}, nil, nil, nil, nil, nil)}
		for _, c := range []struct {
			event  string
			status int
			reason string
		}{
			{"019aceee", http.StatusBadRequest, "bad_event_id"},
			{"019aceee-0000-7000-8000-000000000001", http.StatusServiceUnavailable, "busy"},
		} {
			n, err := a.Requeue(t.Context(), []string{c.event}, false)
			var e *api.Error
			if !errors.As(err, &e) || n != 0 || e.Status != c.status || e.Reason != c.reason || e.Hint == "" {
				t.Errorf("%s: %d, %v", c.event, n, err)
			}
		}
	})
}

func TestQuarantineAlarmEnds(t *testing.T) {
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	clock := window.NewClock(host, window.Mark{}, window.ClockOptions{})
	for _, c := range []struct {
		name  string
		looks []int64 // how many are quarantined at each look
		up    bool
	}{
		{"all are requeued", []int64{0, 0}, false},
		{"some are left", []int64{1}, true},
		{"one comes back at once", []int64{0, 1}, true},
	} {
		al := newAlarms(clock, func(...events.Entry) {})
		al.set(alarmQuarantined, "records are set aside", "call support")
		looks := c.looks
		al.endQuarantine(func() int64 { n := looks[0]; looks = looks[1:]; return n })
		if up := len(al.list()) == 1; up != c.up || len(looks) != 0 {
			t.Errorf("%s: the alarm is up: %v, want %v", c.name, up, c.up)
		}
	}
}
