package api

import (
	"fmt"
	"strings"
	"testing"
)

func TestScans(t *testing.T) {
	r := newRig(t, nil)
	const accepted = `{"outcome":"accepted","event_id":"first","key":"scan:idem:1","window_index":7}`
	for _, c := range []struct {
		body, key string
		status    int
		want      string // body, or reason of a problem
		called    string
	}{
		{`{"scanner_id":"cam","data":"a\u001db"}`, "", 201, accepted, `scan cam "a\x1db"  now 0 ""`},
		{`{"scanner_id":"cam","data":"x","symbology":null,"captured_at":null,"quantity":null}`, "k", 201, accepted, `scan cam "x"  now 0 "k"`},
		{`{"scanner_id":"cam","data":"x","symbology":"]d2","captured_at":"2026-11-29T08:15:00+01:00","quantity":30}`, "k2", 201, accepted, `scan cam "x" ]d2 2026-11-29T07:15:00.000Z 30 "k2"`},
		{`{"scanner_id":"cam","data":"again"}`, "", 200, `{"outcome":"duplicate","event_id":"second","key":"scan:idem:1","window_index":7,"duplicate_of":"first"}`, `scan cam "again"  now 0 ""`},
		{`{"scanner_id":"cam","data":"SCANONCE-MODE-RETURN"}`, "", 200, `{"outcome":"control","kind":"mode"}`, `scan cam "SCANONCE-MODE-RETURN"  now 0 ""`},
		{`{"scanner_id":"cam","data":""}`, "", 201, accepted, `scan cam ""  now 0 ""`}, // the content is the pipeline's business
		{`{"data":"x"}`, "", 400, "field_missing", ""},
		{`{"scanner_id":"cam"}`, "", 400, "field_missing", ""},
		{`{"scanner_id":"cam","data":null}`, "", 400, "field_missing", ""},
		{`{"scanner_id":"cam","data":7}`, "", 400, "bad_json", ""},
		{`{"scanner_id":"cam","data":"x","scan_type":"return"}`, "", 400, "bad_json", ""},
		{`{"scanner_id":"cam","data":"x"}{}`, "", 400, "bad_json", ""},
		{``, "", 400, "bad_json", ""},
		{`{"scanner_id":"cam","data":"x","symbology":"d2"}`, "", 422, "bad_symbology", ""},
		{`{"scanner_id":"cam","data":"x","symbology":""}`, "", 422, "bad_symbology", ""},
		{`{"scanner_id":"cam","data":"x","captured_at":"yesterday"}`, "k3", 422, "bad_captured_at", ""},
		{`{"scanner_id":"cam","data":"x","captured_at":"2026-11-29T08:15:00Z"}`, "", 400, "idempotency_key_missing", ""},
		{`{"scanner_id":"cam","data":"x","quantity":0}`, "", 422, "bad_quantity", ""},
		{`{"scanner_id":"cam","data":"x","quantity":10000}`, "", 422, "bad_quantity", ""},
		{`{"scanner_id":"cam","data":"x","quantity":1.5}`, "", 422, "bad_quantity", ""},
		{`{"scanner_id":"cam","data":"x","quantity":"3"}`, "", 422, "bad_quantity", ""},
		{`{"scanner_id":"cam","data":"x"}`, strings.Repeat("k", 256), 400, "bad_idempotency_key", ""},
		{`{"scanner_id":"cam","data":"x"}`, "two words", 400, "bad_idempotency_key", ""},
		{`{"scanner_id":"cam","data":"x"}`, "sch\u00f6n", 400, "bad_idempotency_key", ""},
		{`{"scanner_id":"cam","data":"y"}`, "k", 422, "idempotency_key_reused", ""},
		{`{"scanner_id":"cam","data":"` + strings.Repeat("x", 64<<10) + `"}`, "", 413, "body_too_large", ""},
	} {
		h := map[string]string{}
		if c.key != "" {
			h["Idempotency-Key"] = c.key
		}
		resp, body := r.raw(call{method: "POST", path: "/v1/scans", body: c.body, header: h})
		name := c.body[:min(len(c.body), 80)]
		if got := strings.Join(r.fake.took(), ";"); got != c.called {
			t.Errorf("%s: called %q, want %q", name, got, c.called)
		}
		if c.status >= 400 {
			r.problem(resp, body, c.status, c.want)
		} else if resp.StatusCode != c.status || body != c.want+"\n" {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	q := ScanRequest{Data: "1234567890 Jane Doe"}
	for _, f := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		if text := fmt.Sprintf(f, q); strings.Contains(text, "Jane") || strings.Contains(text, "4a616e65") {
			t.Errorf("%s prints the payload", f)
		}
	}
}
