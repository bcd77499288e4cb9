package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Status is what tests read of GET /v1/status.
type Status struct {
	AgentID   string `json:"agent_id"`
	Instance  string `json:"instance"`
	State     string `json:"state"`
	Accepting bool   `json:"accepting"`
	Spool     struct {
		Epoch       string  `json:"epoch"`
		Records     int64   `json:"records"`
		MaxRecords  int64   `json:"max_records"`
		Bytes       int64   `json:"bytes"`
		MaxBytes    int64   `json:"max_bytes"`
		Fill        float64 `json:"fill"`
		OldestAgeMS int64   `json:"oldest_age_ms"`
	} `json:"spool"`
	Counts   Counts    `json:"counts"`
	Frames   Frames    `json:"frames"`
	Scanners []Scanner `json:"scanners"`
	Alarms   []Alarm   `json:"alarms"`
}

// Counts are by event, over all runs.
type Counts struct {
	Captured, Committed, Suppressed, Pending, Held, Quarantined, Discarded, Unaccounted int64
}

// Frames are of one run.
type Frames struct {
	Frames      int64 `json:"frames"`
	Captured    int64 `json:"captured"`
	NotAccepted int64 `json:"not_accepted"`
	Rejected    int64 `json:"rejected"`
	Control     int64 `json:"control"`
	Voided      int64 `json:"voided"`
	InFlight    int64 `json:"in_flight"`
}

// Scanner is one scanner's status.
type Scanner struct {
	ID        string     `json:"id"`
	State     string     `json:"state"`
	ScanType  string     `json:"scan_type"`
	Quantity  int        `json:"quantity"`
	RevertsAt *time.Time `json:"reverts_at"`
}

// Alarm is an alarm that is up.
type Alarm struct{ Code, Detail, Hint string }

// Alarm finds an alarm by its code.
func (s *Status) Alarm(code string) *Alarm {
	for i := range s.Alarms {
		if s.Alarms[i].Code == code {
			return &s.Alarms[i]
		}
	}
	return nil
}

// Scanner finds a scanner by its id.
func (s *Status) Scanner(id string) *Scanner {
	for i := range s.Scanners {
		if s.Scanners[i].ID == id {
			return &s.Scanners[i]
		}
	}
	return nil
}

// Balance says how the laws of conservation are broken, "" if they hold.
func (s *Status) Balance() string {
	c, f := s.Counts, s.Frames
	if c.Captured != c.Committed+c.Suppressed+c.Pending+c.Held+c.Quarantined+c.Discarded+c.Unaccounted {
		return fmt.Sprintf("counts do not balance: %+v", c)
	}
	if f.Frames != f.Captured+f.NotAccepted+f.Rejected+f.Control+f.Voided+f.InFlight {
		return fmt.Sprintf("frames do not balance: %+v", f)
	}
	return ""
}

// Row is a row of the ledger as exported.
type Row struct {
	IdemKey      string    `json:"idem_key"`
	EdgeKey      *string   `json:"edge_key"`
	EventID      string    `json:"event_id"`
	FacilityUUID string    `json:"facility_uuid"`
	ScannerID    string    `json:"scanner_id"`
	NDC          string    `json:"ndc"`
	Lot          string    `json:"lot"`
	Quantity     int       `json:"quantity"`
	ScanType     string    `json:"scan_type"`
	WindowIndex  int64     `json:"window_index"`
	Extras       string    `json:"extras"`
	GTIN         *string   `json:"gtin"`
	Serial       *string   `json:"serial"`
	NDC11        *string   `json:"ndc11"`
	Expiry       *string   `json:"expiry"`
	Flags        []string  `json:"flags"`
	RxToken      *string   `json:"rx_token"`
	AgentID      string    `json:"agent_id"`
	CapturedAt   time.Time `json:"captured_at"`
	ClockQuality string    `json:"clock_quality"`
	CommittedAt  time.Time `json:"committed_at"`
}

// Line is a line of the audit trail as exported.
type Line struct {
	EventID    string     `json:"event_id"`
	Key        *string    `json:"key"`
	Ref        *string    `json:"ref"`
	Outcome    string     `json:"outcome"`
	Reason     *string    `json:"reason"`
	Winner     *string    `json:"winner_event_id"`
	ScannerID  *string    `json:"scanner_id"`
	CapturedAt *time.Time `json:"captured_at"`
}

// Waiting is a record in the spool as listed.
type Waiting struct {
	EventID  string `json:"event_id"`
	Kind     string `json:"kind"`
	Key      string `json:"key"`
	State    string `json:"state"`
	Attempts int    `json:"attempts"`
}

// HTTP is a client of the agent's socket.
func (h *Home) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", h.Socket)
		},
	}}
}

// Ask sends a request with a JSON body, nil for none, and returns the answer's status and body.
func (h *Home) Ask(t testing.TB, method, path string, body any) (int, []byte) {
	t.Helper()
	code, answer, err := h.TryAsk(t.Context(), method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return code, answer
}

// TryAsk is Ask for use outside the test's goroutine.
func (h *Home) TryAsk(ctx context.Context, method, path string, body any) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, in)
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := h.HTTP().Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// Status asks the agent how it does.
func (h *Home) Status(t testing.TB) Status {
	t.Helper()
	code, b := h.Ask(t, http.MethodGet, "/v1/status", nil)
	var s Status
	if err := json.Unmarshal(b, &s); code != http.StatusOK || err != nil {
		t.Fatalf("GET /v1/status: %d, %v: %s", code, err, b)
	}
	return s
}

// Await asks for the status until it is as wanted: for what the agent tells of in no event.
func (h *Home) Await(t testing.TB, what string, wanted func(*Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := h.Status(t)
		if wanted(&s) {
			return s
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("cannot see %s: %+v", what, s)
		}
	}
}

// Ledger exports the ledger's rows, from the agent or, if none runs, from its folder.
func (h *Home) Ledger(t testing.TB) []Row {
	t.Helper()
	return list[Row](t, h, "ledger", "export", "--format", "jsonl")
}

// Audit exports the lines of the audit trail. The chain's records are audit verify's business.
func (h *Home) Audit(t testing.TB) []Line {
	t.Helper()
	items := list[struct {
		Line
		Hashes *string `json:"line_hashes"`
	}](t, h, "audit", "export")
	var lines []Line
	for _, i := range items {
		if i.Hashes == nil {
			lines = append(lines, i.Line)
		}
	}
	return lines
}

// Spool lists the records that wait.
func (h *Home) Spool(t testing.TB) []Waiting {
	t.Helper()
	return list[Waiting](t, h, "spool", "ls")
}

func list[T any](t testing.TB, h *Home, args ...string) []T {
	t.Helper()
	r := h.Call(t, append([]string{"--json"}, args...)...)
	if r.Code != 0 {
		t.Fatalf("%v: exit code %d: %s", args, r.Code, r.Stderr)
	}
	return ParseLines[T](t, r.Stdout)
}

// ParseLines reads one JSON object a line.
func ParseLines[T any](t testing.TB, text string) []T {
	t.Helper()
	var out []T
	d := json.NewDecoder(strings.NewReader(text))
	for {
		var v T
		switch err := d.Decode(&v); err {
		case nil:
			out = append(out, v)
		case io.EOF:
			return out
		default:
			t.Fatalf("cannot read the program's lines: %v", err)
		}
	}
}
