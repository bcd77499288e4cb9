package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// An application that acknowledges goes on behind it, also after a kill of the agent.
func TestAcknowledgedEventsOverAKill(t *testing.T) {
	t.Parallel()
	h, p, _, g := bench(t, testenv.Setup{})
	begins := func() string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/events?client=pms&kind=accepted", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := h.HTTP().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var e testenv.Event
				if err := json.Unmarshal([]byte(data), &e); err != nil {
					t.Fatal(err)
				}
				return e.EventID
			}
		}
		t.Fatalf("the stream ends: %v", lines.Err())
		return ""
	}
	ack := func(client, id string) (int, string) {
		t.Helper()
		code, b := h.Ask(t, http.MethodPost, "/v1/events/ack", map[string]any{"client": client, "id": id})
		var e struct {
			Reason string `json:"reason"`
			Hint   string `json:"hint"`
		}
		if len(b) > 0 && (json.Unmarshal(b, &e) != nil || e.Hint == "") {
			t.Errorf("%d %s", code, b)
		}
		return code, e.Reason
	}
	a := g.expect("accepted", matrix(bottleGTIN, "S1", "A"))
	b := g.expect("accepted", matrix(bottleGTIN, "S2", "A"))
	c := g.expect("accepted", matrix(bottleGTIN, "S3", "A"))
	if code, _ := ack("pms", a.ID); code != http.StatusNoContent {
		t.Errorf("%d", code)
	}
	if got := begins(); got != b.EventID {
		t.Errorf("it goes on with %s, want %s", got, b.EventID)
	}
	if code, reason := ack("pms", "0123456789ab-7"); code != http.StatusUnprocessableEntity || reason != "unknown_event" {
		t.Errorf("%d %s", code, reason)
	}
	if code, reason := ack("the pms", a.ID); code != http.StatusUnprocessableEntity || reason != "bad_client" {
		t.Errorf("%d %s", code, reason)
	}
	if code, _ := ack("pms", b.ID); code != http.StatusNoContent {
		t.Errorf("%d", code)
	}
	p.Kill()
	h.Start(t)
	if got := begins(); got != c.EventID {
		t.Errorf("after a kill it goes on with %s, want %s", got, c.EventID)
	}
}
