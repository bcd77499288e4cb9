package api

import (
	"strings"
	"testing"
)

func TestAcknowledgedEvents(t *testing.T) {
	r := newRig(t, nil)
	first := r.put("accepted", 1)
	r.put("accepted", 2)
	ack := func(body string) (int, string) {
		t.Helper()
		resp, answer := r.raw(call{method: "POST", path: "/v1/events/ack", body: body})
		return resp.StatusCode, answer
	}
	if code, body := ack(`{"client":"pms","id":"` + first + `"}`); code != 204 || body != "" {
		t.Errorf("%d %s", code, body)
	}
	resp, br := r.sse("/v1/events?client=pms", "")
	if got := resp.Header.Get("Last-Event-ID"); got != first {
		t.Errorf("it begins behind %s", got)
	}
	r.block(br) // the greeting
	if b := r.block(br); !strings.Contains(b, `"n":2`) {
		t.Errorf("it begins with %s", b)
	}
	// A position of its own goes before.
	if resp, _ := r.sse("/v1/events?client=pms", r.log.Last()); resp.Header.Get("Last-Event-ID") != r.log.Last() {
		t.Errorf("it begins behind %s", resp.Header.Get("Last-Event-ID"))
	}
	for _, c := range []struct {
		body   string
		status int
		reason string
	}{
		{`{"client":"pms"}`, 400, "field_missing"},
		{`{"id":"` + first + `"}`, 400, "field_missing"},
		{`{"client":"pms","id":"` + first + `","kind":"x"}`, 400, "bad_json"},
		{``, 400, "bad_json"},
		{`{"client":"` + strings.Repeat("x", 64<<10) + `"}`, 413, "body_too_large"},
	} {
		resp, body := r.raw(call{method: "POST", path: "/v1/events/ack", body: c.body})
		r.problem(resp, body, c.status, c.reason)
	}
	resp, body := r.raw(call{method: "GET", path: "/v1/events/ack"})
	r.problem(resp, body, 405, "wrong_method")
}
