package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/sync/forward"
)

// bubbleAgent is an agent in a bubble of time, of which nothing runs.
func bubbleAgent(t *testing.T) *agent {
	t.Helper()
	var synced atomic.Bool
	synced.Store(true)
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.StateDir, cfg.Agent.AgentID = "F", t.TempDir(), "agent-a"
	a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: bubbleOS{time.Now(), &synced}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A pend that is queued is the question of the day on which it was first asked, whenever it is asked again: the id that
// its asker is told leads to the case in the end.
func TestQueuedPendKeepsItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bubbleAgent(t)
		defer a.close(true)
		ctx := t.Context()
		ask := func() api.CaseResult {
			t.Helper()
			r, err := a.Pend(ctx, "key", api.PendRequest{MemberToken: "MTOK_9f2a", GPI: "27100010100320"})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		back := away(&a.cases.(*lateCases).late)
		first := ask()
		time.Sleep(25 * time.Hour) // of the bubble's time
		second := ask()
		if first.Result != api.ResultQueued || second.Result != api.ResultQueued || second.OpID != first.OpID || second.Case.CaseID != first.Case.CaseID {
			t.Errorf("asked on two days: %+v %+v, then %+v %+v", first, first.Case, second, second.Case)
		}
		back()
		for end := time.Now().Add(time.Hour); a.spool.Journal().Pending() > 0 && time.Now().Before(end); {
			wait, _ := a.courier.Turn(ctx, forward.Cases)
			time.Sleep(max(wait, 0))
		}
		c, err := a.Case(ctx, first.Case.CaseID)
		if err != nil || c.CaseID != first.Case.CaseID {
			t.Errorf("the case: %+v, %v", c, err)
		}
		if third := ask(); third.Result != "" || !*third.Case.Created || third.Case.CaseID != first.Case.CaseID || third.Case.RequestedID != first.Case.CaseID {
			t.Errorf("asked once it is there: %+v %+v", third, third.Case)
		}
	})
}

// A conflict is an alarm as soon as it is on the list, which also says how many the list has no room for. A journal that
// cannot be written is an alarm until it can.
func TestConflictsAreAlarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bubbleAgent(t)
		defer a.close(true)
		back := away(&a.states.(*lateState).late)
		r, err := a.AdvanceClaim(t.Context(), "", "c-1", api.ClaimAdvance{ExpectedVersion: 1, Node: "NORMALIZED"})
		if err != nil || r.Result != api.ResultQueued {
			t.Fatalf("%+v, %v", r, err)
		}
		back()
		a.courier.Begin()
		a.Journaled(errors.New("cannot write operations.log: no room"))
		told := func() (codes, details string) {
			for _, al := range a.alarms.list() {
				codes, details = codes+al.Code+" ", details+al.Detail+"; "
			}
			return codes, details
		}
		if codes, details := told(); codes != "journal " || details != "cannot keep what became of queued operations: cannot write operations.log: no room; " {
			t.Errorf("a journal that fails: alarms %s%s", codes, details)
		}
		for end := time.Now().Add(time.Hour); a.spool.Journal().Pending() > 0 && time.Now().Before(end); {
			wait, _ := a.courier.Turn(t.Context(), forward.Claims)
			time.Sleep(max(wait, 0))
		}
		if codes, details := told(); codes != "conflict " || details != "operations on claims or cases that could not be carried out: 1; " {
			t.Errorf("a conflict: alarms %s%s", codes, details)
		}
		many := make([]spool.Conflict, spool.MostConflicts+4)
		for i := range many {
			many[i].ID = forward.OperationID("test", fmt.Sprint(i))
		}
		if err := a.spool.Journal().Settle(spool.Settlement{Conflicts: many}); err != nil {
			t.Fatal(err)
		}
		a.Journaled(nil)
		if _, details := told(); details != "operations on claims or cases that could not be carried out: 10000, and 5 older ones that the list has no room for; " {
			t.Errorf("a full list: alarms %s", details)
		}
	})
}

// A conflict stays on the list as long as the audit cannot have the note of it.
func TestResolvedConflictsAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bubbleAgent(t)
		defer a.close(true)
		j := a.spool.Journal()
		op := spool.Operation{ID: spool.NewEvent(a.clock.Now().T), Kind: forward.OpAdvance, Subject: "claim|a", Body: []byte(`{"correlation_id":"a"}`)}
		if err := errors.Join(j.Add(op), j.Settle(spool.Settlement{Conflicts: []spool.Conflict{{Operation: op, Detail: "there is no such claim"}}})); err != nil {
			t.Fatal(err)
		}
		a.watchConflicts()
		resolve := func(id string) (int, error) {
			return a.ResolveConflicts(t.Context(), api.Resolution{OpIDs: []string{id}, By: "R. Okafor"})
		}
		var e *api.Error
		if n, err := resolve(op.ID.String()); n != 0 || !errors.As(err, &e) || e.Status != 503 || len(j.Conflicts()) != 1 || len(a.alarms.list()) != 1 {
			t.Errorf("with a pipeline that does not turn: %d, %v; conflicts %+v", n, err, j.Conflicts())
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.pipe.Run(ctx) }()
		if n, err := resolve("019aceee-0000-8000-8000-000000000001"); n != 0 || err != nil || len(j.Conflicts()) != 1 || len(a.alarms.list()) != 1 {
			t.Errorf("another one: %d, %v; conflicts %+v", n, err, j.Conflicts())
		}
		if n, err := resolve(op.ID.String()); n != 1 || err != nil || len(j.Conflicts()) != 0 || len(a.alarms.list()) != 0 {
			t.Errorf("resolved: %d, %v; alarms %+v", n, err, a.alarms.list())
		}
		if n, err := resolve(op.ID.String()); n != 0 || err != nil {
			t.Errorf("a second time: %d, %v", n, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The text of a label is no claim's id, and no request with it comes as far as the queue; the ids that scans make for
// their claims are ids, however wide a pattern is.
func TestLabelsAreNoClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bubbleAgent(t)
		defer a.close(true)
		a.refuseLabels([]config.RxProfile{{Name: "a", Pattern: `RX(?P<rx>\d{7})-\d\d`}, {Name: "wide", Pattern: `(?P<rx>[0-9a-z]{9,})`}})
		defer away(&a.states.(*lateState).late)()
		ctx := t.Context()
		put := api.ClaimPut{RxRefToken: "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907", IngredientCost: "0.00"}
		for id, refused := range map[string]bool{"RX1234567-00": true, "claim000001": true, "RX1234567-00a": false, "5d0c6c1be1d21a0e1f9e5a5e6f3b0d42": false} {
			before := a.spool.Journal().Pending()
			_, puts := a.PutClaim(ctx, "", id, put)
			_, moves := a.AdvanceClaim(ctx, "", id, api.ClaimAdvance{ExpectedVersion: 1, Node: "NORMALIZED"})
			_, reads := a.Claim(ctx, id)
			for what, err := range map[string]error{"put": puts, "advance": moves, "read": reads} {
				var e *api.Error
				if got := errors.As(err, &e) && e.Reason == "bad_correlation_id" && e.Status == 422; got != refused {
					t.Errorf("%s %s: %v", what, id, err)
				}
			}
			if n := a.spool.Journal().Pending() - before; n != map[bool]int{true: 0, false: 2}[refused] {
				t.Errorf("%s: %d operations are queued", id, n)
			}
		}
	})
}
