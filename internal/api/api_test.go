package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scanonce/internal/events"
	"scanonce/window"
)

const (
	testToken   = "s3cret-token"
	peerSocket  = "API_TEST_PEER_SOCKET"
	testInstant = window.UTC(1_700_000_000_000)
)

// TestMain is also the process that connects as another user.
func TestMain(m *testing.M) {
	if socket := os.Getenv(peerSocket); socket != "" {
		c := NewClient(socket)
		_, err := c.Status(context.Background())
		var e *Error
		var u *Unreachable
		switch {
		case err == nil:
			fmt.Print("in")
		case errors.As(err, &e):
			fmt.Print(e.Status, " ", e.Reason)
		case errors.As(err, &u) && errors.Is(err, fs.ErrPermission):
			fmt.Print("no permission")
		default:
			fmt.Print(err)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// fake is the agent behind the interface.
type fake struct {
	Operations // see operations_test.go

	mu       sync.Mutex
	calls    []string
	err      error // of every answer
	ready    error
	alive    error
	rows     int
	breakAt  int // rows after which an export fails, 0 = never
	entered  chan struct{}
	release  chan struct{}
	sawSince *window.UTC
	sawUntil *window.UTC
}

func (f *fake) called(format string, args ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.err
}

func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.calls
	f.calls = nil
	return c
}

func (f *fake) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *fake) Status(context.Context) (Status, error) {
	return Status{AgentID: "a1", State: "ONLINE"}, f.called("status")
}

func (f *fake) SetMode(ctx context.Context, scanner string, t window.ScanType) (ModeSet, error) {
	if f.entered != nil {
		f.entered <- struct{}{}
		<-f.release
	}
	if err := ctx.Err(); err != nil {
		return ModeSet{}, err
	}
	at := testInstant
	return ModeSet{ScannerID: scanner, ScanType: t, RevertsAt: &at}, f.called("mode %s %s", scanner, t)
}

func (f *fake) SetQuantity(_ context.Context, scanner string, n int) (QuantitySet, error) {
	return QuantitySet{ScannerID: scanner, Quantity: n, ExpiresAt: testInstant}, f.called("quantity %s %d", scanner, n)
}

func (f *fake) SameAgain(_ context.Context, scanner, eventID string) (SameAgain, error) {
	err := f.called("same-again %s %q", scanner, eventID)
	if eventID == "" {
		return SameAgain{Outcome: "armed"}, err
	}
	return SameAgain{Outcome: "accepted", EventID: "new", Key: "scan:idem:1"}, err
}

func (f *fake) Scan(_ context.Context, q ScanRequest) (ScanAnswer, error) {
	at, index, of := "now", int64(7), "first"
	if q.CapturedAt != nil {
		at = q.CapturedAt.String()
	}
	err := f.called("scan %s %q %s %s %d %q", q.Scanner, string(q.Data), q.Symbology, at, q.Quantity, q.Key)
	switch {
	case err != nil:
		return ScanAnswer{}, err
	case strings.HasPrefix(string(q.Data), "SCANONCE"):
		return ScanAnswer{Outcome: "control", Kind: "mode"}, nil
	case q.Data == "again":
		return ScanAnswer{Outcome: "duplicate", EventID: "second", Key: "scan:idem:1", WindowIndex: &index, DuplicateOf: &of}, nil
	}
	return ScanAnswer{Outcome: "accepted", EventID: "first", Key: "scan:idem:1", WindowIndex: &index}, nil
}

func (f *fake) Reload(context.Context) (Reloaded, error) {
	return Reloaded{OK: true, RestartNeeded: []string{"forward.batch"}}, f.called("reload")
}

func (f *fake) AuditVerify(_ context.Context, ledger bool) (AuditReport, error) {
	return AuditReport{OK: true, Lines: 3}, f.called("audit verify %t", ledger)
}

func (f *fake) Discard(_ context.Context, q Discard) (int, error) {
	return len(q.EventIDs), f.called("discard %d %s", len(q.EventIDs), q.By)
}

func (f *fake) Batches(_ context.Context, yield func(Batch) error) error {
	if err := f.called("batches"); err != nil {
		return err
	}
	return yield(Batch{BatchID: "019aceee-0000-7000-8000-000000000001", ScannerID: "SCN-04", Count: 50, Held: 50})
}

func (f *fake) ConfirmBatch(_ context.Context, id string) (int, error) {
	return 50, f.called("confirm %s", id)
}

func (f *fake) DiscardBatch(_ context.Context, id, by string) (int, error) {
	return 49, f.called("discard %s %s", id, by)
}

func (f *fake) Requeue(_ context.Context, events []string, all bool) (int, error) {
	return max(len(events), 1), f.called("requeue %d %t", len(events), all)
}

func (f *fake) Explain(_ context.Context, key string) (Explanation, error) {
	return Explanation{Key: key, Text: "told"}, f.called("explain %s", key)
}

func (f *fake) Spool(_ context.Context, limit int, yield func(SpoolEntry) error) error {
	if err := f.called("spool %d", limit); err != nil {
		return err
	}
	for i := range f.rows {
		if limit > 0 && i == limit {
			break
		}
		if f.breakAt > 0 && i == f.breakAt {
			return errors.New("cannot read a page")
		}
		if err := yield(SpoolEntry{EventID: fmt.Sprint(i), Kind: "capture", State: "pending", CapturedAt: testInstant}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) SpoolExport(_ context.Context, w io.Writer) error {
	if err := f.called("export"); err != nil {
		return err
	}
	_, err := io.WriteString(w, strings.Repeat("{\"n\":1}\n", 1+f.breakAt))
	if f.breakAt > 0 {
		return errors.New("cannot read a page")
	}
	return err
}

func (f *fake) SpoolVerify(context.Context) (SpoolReport, error) {
	return SpoolReport{Records: 5, Readable: 4, Unaccounted: 1, Segments: 2}, f.called("verify")
}

func (f *fake) SpoolBackup(_ context.Context, w io.Writer) error {
	if err := f.called("backup"); err != nil {
		return err
	}
	_, err := io.WriteString(w, "tar\n")
	return err
}

func (f *fake) LedgerExport(_ context.Context, format Format, since, until *window.UTC, w io.Writer) error {
	f.sawSince, f.sawUntil = since, until
	if err := f.called("ledger %s", format); err != nil {
		return err
	}
	_, err := io.WriteString(w, string(format)+"\n")
	return err
}

func (f *fake) Audit(_ context.Context, since, until *window.UTC, yield func(AuditItem) error) error {
	f.sawSince, f.sawUntil = since, until
	if err := f.called("audit"); err != nil {
		return err
	}
	return errors.Join(yield(AuditItem{Line: &AuditEntry{EventID: "1", Outcome: "committed", At: testInstant}}),
		yield(AuditItem{Record: &AuditRecord{SpoolEpoch: "aa", Seq: 1, EventIDs: []string{"1"}}}))
}

func (f *fake) Conflicts(_ context.Context, yield func(Conflict) error) error {
	return f.called("conflicts")
}

func (f *fake) PendingOperations(_ context.Context, yield func(PendingOperation) error) error {
	return f.called("operations")
}

func (f *fake) AuditHead(context.Context) (AuditHead, error) {
	hash := "aa"
	return AuditHead{AgentID: "agent-a", Hash: &hash}, f.called("audit head")
}

func (f *fake) Ready() error { return f.ready }
func (f *fake) Alive() error { return f.alive }

// stream makes the real event log an Events.
type stream struct{ *events.Log }

func (s stream) Follow(ctx context.Context, lastID string, kinds []string, yield func(Event) error) error {
	return s.Log.Follow(ctx, lastID, kinds, func(id, kind string, data []byte) error { return yield(Event{id, kind, data}) })
}

type rig struct {
	t      *testing.T
	dir    string
	fake   *fake
	log    *events.Log
	server *Server
	client *Client
	stop   func() error
	config Config
	logged *bytes.Buffer // after stop
}

func newRig(t *testing.T, change func(*Config, *Server)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir, fake: &fake{rows: 3}, client: NewClient(filepath.Join(dir, "s.sock"))}
	t.Cleanup(r.client.Close)
	r.openLog()
	r.config = Config{Socket: filepath.Join(dir, "s.sock"), Listen: "127.0.0.1:0", Token: testToken,
		AllowedHosts: []string{"localhost", "127.0.0.1"}, AllowedOrigins: []string{"https://pms.example"}}
	r.start(change)
	return r
}

func (r *rig) openLog() {
	r.t.Helper()
	log, err := events.Open(filepath.Join(r.dir, "events.log"), events.Options{Now: func() window.UTC { return testInstant }})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = log
	r.t.Cleanup(func() { log.Close() })
}

func (r *rig) start(change func(*Config, *Server)) {
	r.t.Helper()
	cfg := r.config
	if change != nil {
		change(&cfg, nil)
	}
	r.logged = &bytes.Buffer{}
	s := New(cfg, r.fake, stream{r.log}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "scanonce_up 1\n") }),
		slog.New(slog.NewTextHandler(r.logged, nil)))
	if change != nil {
		change(&cfg, s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		r.t.Fatal(err)
	}
	r.server = s
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	r.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			r.t.Error(err)
		}
	})
}

type call struct {
	method, path, body string
	header             map[string]string
	host               string
}

// raw sends a request; over loopback if it has an Authorization header or a host, else over the socket.
func (r *rig) raw(c call) (*http.Response, string) {
	r.t.Helper()
	base, hc := "http://x", r.client.http
	if c.host != "" {
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		base, hc = "http://"+r.server.Addr(), &http.Client{Transport: tr}
	}
	req, err := http.NewRequest(c.method, base+c.path, strings.NewReader(c.body))
	if err != nil {
		r.t.Fatal(err)
	}
	if c.host != "" {
		req.Host = c.host
	}
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	resp, err := hc.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(b)
}

// problem checks that an answer is whole problem details.
func (r *rig) problem(resp *http.Response, body string, status int, reason string) {
	r.t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		r.t.Fatalf("%v: %s", err, body)
	}
	if resp.StatusCode != status || p["status"] != float64(status) || p["reason"] != reason || resp.Header.Get("Content-Type") != "application/problem+json" ||
		p["type"] != "about:blank" || p["title"] != http.StatusText(status) || !strings.HasPrefix(p["detail"].(string), "cannot ") || p["hint"] == "" {
		r.t.Fatalf("got %s %s, want %d %s", resp.Status, body, status, reason)
	}
}

func TestAnswers(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		call
		status int
		want   string // body, or reason from 400 on
		called string
	}{
		{call{method: "GET", path: "/v1/status"}, 200, "", "status"},
		{call{method: "HEAD", path: "/v1/status"}, 200, "", "status"},
		{call{method: "PUT", path: "/v1/scanners/SCN-04%2F02/mode", body: `{"scan_type":"return"}`}, 200, `{"scanner_id":"SCN-04/02","scan_type":"return","reverts_at":"2023-11-14T22:13:20.000Z"}`, "mode SCN-04/02 return"},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: ` {"scan_type":"return"} ` + "\n"}, 200, "", "mode SCN-04 return"},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"steal"}`}, 422, "bad_scan_type", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":7}`}, 400, "bad_json", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{}`}, 400, "field_missing", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: ``}, 400, "bad_json", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"return","x":1}`}, 400, "bad_json", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"return"}x`}, 400, "bad_json", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"return"}{}`}, 400, "bad_json", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"return"` + strings.Repeat(" ", 64<<10) + `}`}, 413, "body_too_large", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":30}`}, 200, `{"scanner_id":"SCN-04","quantity":30,"expires_at":"2023-11-14T22:13:20.000Z"}`, "quantity SCN-04 30"},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":9999}`}, 200, "", "quantity SCN-04 9999"},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":0}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":-1}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":10000}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":1e9}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":1e999}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":1.5}`}, 422, "bad_quantity", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":"30"}`}, 400, "field_missing", ""},
		{call{method: "PUT", path: "/v1/scanners/SCN-04/quantity", body: `{"quantity":null}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/scanners/SCN-04/same-again", body: `{"event_id":null}`}, 200, `{"outcome":"armed"}`, `same-again SCN-04 ""`},
		{call{method: "POST", path: "/v1/scanners/SCN-04/same-again"}, 200, `{"outcome":"armed"}`, `same-again SCN-04 ""`},
		{call{method: "POST", path: "/v1/scanners/SCN-04/same-again", body: `{"event_id":"e1"}`}, 201, `{"outcome":"accepted","event_id":"new","key":"scan:idem:1"}`, `same-again SCN-04 "e1"`},
		{call{method: "POST", path: "/v1/scanners/SCN-04/same-again", body: `{"event_id":""}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"event_ids":["e1","e2"]}`}, 200, `{"requeued":2}`, "requeue 2 false"},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"all":true}`}, 200, `{"requeued":1}`, "requeue 0 true"},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"event_ids":["e1"],"all":true}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"event_ids":[]}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"all":false}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/requeue"}, 400, "bad_json", ""},
		{call{method: "POST", path: "/v1/spool/requeue", body: `{"events":["e1"]}`}, 400, "bad_json", ""},
		{call{method: "GET", path: "/v1/spool/requeue"}, 405, "wrong_method", ""},
		{call{method: "POST", path: "/v1/spool/discard", body: `{"event_ids":["e1","e2"],"by":"J. Doe"}`}, 200, `{"discarded":2}`, "discard 2 J. Doe"},
		{call{method: "POST", path: "/v1/spool/discard", body: `{"event_ids":["e1"]}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/discard", body: `{"by":"J. Doe"}`}, 400, "field_missing", ""},
		{call{method: "POST", path: "/v1/spool/discard", body: `{"event_ids":["e1"],"by":"J. Doe","all":true}`}, 400, "bad_json", ""},
		{call{method: "GET", path: "/v1/spool/discard"}, 405, "wrong_method", ""},
		{call{method: "POST", path: "/v1/spool/verify"}, 200, `{"records":5,"readable":4,"unaccounted":1,"segments":2,"damaged":[]}`, "verify"},
		{call{method: "POST", path: "/v1/spool/verify", body: "{}"}, 200, "", "verify"},
		{call{method: "POST", path: "/v1/spool/verify", body: `{"path":"/"}`}, 400, "bad_json", ""},
		{call{method: "GET", path: "/v1/spool/verify"}, 405, "wrong_method", ""},
		{call{method: "POST", path: "/v1/spool/backup"}, 200, "tar", "backup"},
		{call{method: "POST", path: "/v1/spool/backup", body: "x"}, 400, "bad_json", ""},
		{call{method: "POST", path: "/v1/audit/verify"}, 200, `{"ok":true,"lines":3,"records":0,"declared_gaps":0,"first_bad":null,"ledger_only":null,"audit_only":null}`, "audit verify false"},
		{call{method: "POST", path: "/v1/audit/verify", body: `{"ledger":true}`}, 200, "", "audit verify true"},
		{call{method: "POST", path: "/v1/audit/verify", body: `{"file":"/etc/passwd"}`}, 400, "bad_json", ""},
		{call{method: "GET", path: "/v1/audit/verify"}, 405, "wrong_method", ""},
		{call{method: "POST", path: "/v1/reload"}, 200, `{"ok":true,"restart_needed":["forward.batch"]}`, "reload"},
		{call{method: "POST", path: "/v1/reload", body: "{}"}, 200, "", "reload"},
		{call{method: "POST", path: "/v1/reload", body: `{"file":"/etc/passwd"}`}, 400, "bad_json", ""},
		{call{method: "GET", path: "/v1/reload"}, 405, "wrong_method", ""},
		{call{method: "GET", path: "/v1/explain/scan:idem:fc903c16"}, 200, `{"key":"scan:idem:fc903c16","ledger":null,"audit":[],"text":"told"}`, "explain scan:idem:fc903c16"},
		{call{method: "GET", path: "/v1/spool?limit=2"}, 200, "", "spool 2"},
		{call{method: "GET", path: "/v1/spool"}, 200, "", "spool 0"},
		{call{method: "GET", path: "/v1/spool?limit=0"}, 400, "bad_query", ""},
		{call{method: "GET", path: "/v1/spool?limit=x"}, 400, "bad_query", ""},
		{call{method: "GET", path: "/v1/spool/export"}, 200, `{"n":1}`, "export"},
		{call{method: "GET", path: "/v1/ledger"}, 200, "jsonl", "ledger jsonl"},
		{call{method: "GET", path: "/v1/ledger?format=csv"}, 200, "csv", "ledger csv"},
		{call{method: "GET", path: "/v1/ledger?format=xml"}, 400, "bad_query", ""},
		{call{method: "GET", path: "/v1/ledger?since=yesterday"}, 400, "bad_query", ""},
		{call{method: "GET", path: "/v1/audit?until=now"}, 400, "bad_query", ""},
		{call{method: "GET", path: "/v1/audit"}, 200, "", "audit"},
		{call{method: "GET", path: "/v1/audit/head"}, 200, `{"agent_id":"agent-a","hash":"aa"}`, "audit head"},
		{call{method: "GET", path: "/healthz"}, 200, "ok", ""},
		{call{method: "GET", path: "/readyz"}, 200, "ok", ""},
		{call{method: "GET", path: "/metrics"}, 200, "scanonce_up 1", ""},
		{call{method: "GET", path: "/nope"}, 404, "unknown_path", ""},
		{call{method: "GET", path: "/v1/scanners/SCN-04/02/mode"}, 404, "unknown_path", ""},
		{call{method: "GET", path: "//v1/status"}, 404, "unknown_path", ""},
		{call{method: "POST", path: "/v1//status"}, 404, "unknown_path", ""},
		{call{method: "DELETE", path: "/v1/status"}, 405, "wrong_method", ""},
		{call{method: "GET", path: "/v1/scanners/SCN-04/mode"}, 405, "wrong_method", ""},
	} {
		resp, body := r.raw(c.call)
		name := c.method + " " + c.path + " " + c.body[:min(len(c.body), 60)]
		if got := strings.Join(r.fake.took(), ";"); got != c.called {
			t.Errorf("%s: called %q, want %q", name, got, c.called)
		}
		if c.status >= 400 {
			r.problem(resp, body, c.status, c.want)
		} else if resp.StatusCode != c.status || c.want != "" && body != c.want+"\n" {
			t.Errorf("%s: %s %s", name, resp.Status, body)
		}
	}
	// What is wrong with a field is told in words of JSON, and a number that does not fit is not repeated.
	for body, want := range map[string]string{`{"scan_type":4532015112830366}`: "the field scan_type cannot be of type number", `["x"]`: "it is no object but of type array"} {
		if _, b := r.raw(call{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: body}); !strings.Contains(b, want) || strings.Contains(b, "Go ") || strings.Contains(b, "45320") {
			t.Errorf("%s: %s", body, b)
		}
	}
	resp, _ := r.raw(call{method: "POST", path: "/v1/scanners/SCN-04/mode"})
	if a := resp.Header.Get("Allow"); a != "PUT" {
		t.Errorf("Allow: %q", a)
	}
	resp, _ = r.raw(call{method: "POST", path: "/v1/status"})
	if a := resp.Header.Get("Allow"); a != "GET, HEAD" {
		t.Errorf("Allow: %q", a)
	}
	resp, _ = r.raw(call{method: "GET", path: "/v1/ledger?since=2023-11-14T22:13:20Z&until=2023-11-14T23:13:20%2B01:00"})
	if *r.fake.sawSince != testInstant || *r.fake.sawUntil != testInstant || resp.Header.Get("Content-Type") != ndjson {
		t.Error(r.fake.sawSince, r.fake.sawUntil, resp.Header)
	}
	_, body := r.raw(call{method: "GET", path: "/v1/status"})
	if !strings.Contains(body, `"scanners":[],"alarms":[]`) {
		t.Error(body)
	}
}

func TestBackendErrors(t *testing.T) {
	r := newRig(t, nil)
	get := func(path string) (*http.Response, string) { return r.raw(call{method: "GET", path: path}) }
	r.fake.fail(&Error{Status: 409, Reason: "shared_scanner", Detail: "cannot do this", Hint: "use the command barcode"})
	resp, body := r.raw(call{method: "POST", path: "/v1/scanners/a/same-again"})
	r.problem(resp, body, 409, "shared_scanner")
	resp, body = get("/v1/audit")
	r.problem(resp, body, 409, "shared_scanner")
	r.fake.fail(context.DeadlineExceeded)
	resp, body = get("/v1/status")
	r.problem(resp, body, 503, "interrupted")
	r.fake.fail(errors.New("cannot read page 7"))
	resp, body = get("/v1/status")
	r.problem(resp, body, 500, "internal")
	if strings.Contains(body, "page 7") {
		t.Error("inner error told: ", body)
	}
	r.fake.fail(nil)
	r.fake.alive, r.fake.ready = errors.New("cannot turn"), errors.New("cannot open the spool")
	resp, body = get("/healthz")
	r.problem(resp, body, 503, "not_alive")
	resp, body = get("/readyz")
	r.problem(resp, body, 503, "not_ready")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.logged.String(), "cannot read page 7") {
		t.Error("inner error not logged")
	}
}

func TestClient(t *testing.T) {
	r := newRig(t, nil)
	ctx := t.Context()
	c := r.client
	st, err := c.Status(ctx)
	if err != nil || st.AgentID != "a1" {
		t.Fatal(st, err)
	}
	m, err := c.SetMode(ctx, "SCN-04/02", window.Return)
	if err != nil || m.ScannerID != "SCN-04/02" || m.ScanType != window.Return || *m.RevertsAt != testInstant {
		t.Fatal(m, err)
	}
	q, err := c.SetQuantity(ctx, "SCN-04", 30)
	if err != nil || q.Quantity != 30 {
		t.Fatal(q, err)
	}
	a, err := c.SameAgain(ctx, "SCN-04", "")
	if err != nil || a.Outcome != "armed" {
		t.Fatal(a, err)
	}
	if a, err = c.SameAgain(ctx, "SCN-04", "e1"); err != nil || a.EventID != "new" {
		t.Fatal(a, err)
	}
	if v, err := c.SpoolVerify(ctx); err != nil || v.Records != 5 || v.Readable != 4 || v.Unaccounted != 1 || v.Segments != 2 {
		t.Fatal(v, err)
	}
	var tar strings.Builder
	if err := c.SpoolBackup(ctx, &tar); err != nil || tar.String() != "tar\n" {
		t.Fatal(tar.String(), err)
	}
	r.fake.took()
	n, err := c.Requeue(ctx, nil, true)
	if err != nil || n != 1 {
		t.Fatal(n, err)
	}
	// Many ids go in several requests, each within the limit of a body.
	many := slices.Repeat([]string{"019aceee-0000-7000-8000-000000000001"}, 2500)
	if n, err = c.Requeue(ctx, many, false); err != nil || n != 2500 {
		t.Fatal(n, err)
	}
	if n, err = c.Discard(ctx, Discard{many[:1500], "J. Doe"}); err != nil || n != 1500 {
		t.Fatal(n, err)
	}
	if got := strings.Join(r.fake.took(), ";"); got != "requeue 0 true;requeue 1000 false;requeue 1000 false;requeue 500 false;discard 1000 J. Doe;discard 500 J. Doe" {
		t.Fatal(got)
	}
	var held []Batch
	if err := c.Batches(ctx, func(b Batch) error { held = append(held, b); return nil }); err != nil || len(held) != 1 || held[0].Held != 50 {
		t.Fatal(held, err)
	}
	if n, err = c.ConfirmBatch(ctx, "a b"); err != nil || n != 50 {
		t.Fatal(n, err)
	}
	if n, err = c.DiscardBatch(ctx, "a/b", "J. Doe"); err != nil || n != 49 {
		t.Fatal(n, err)
	}
	if got := strings.Join(r.fake.took(), ";"); got != "batches;confirm a b;discard a/b J. Doe" {
		t.Fatal(got)
	}
	x, err := c.Explain(ctx, "fc903c16")
	if err != nil || x.Key != "fc903c16" || x.Text != "told" {
		t.Fatal(x, err)
	}
	if err := errors.Join(c.Ready(ctx), c.Alive(ctx)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	since := testInstant
	if err := errors.Join(c.Metrics(ctx, &out), c.SpoolExport(ctx, &out), c.LedgerExport(ctx, CSV, &since, nil, &out)); err != nil ||
		out.String() != "scanonce_up 1\n{\"n\":1}\ncsv\n" || *r.fake.sawSince != since || r.fake.sawUntil != nil {
		t.Fatal(out.String(), err)
	}
	var ids []string
	if err := c.Spool(ctx, 2, func(e SpoolEntry) error { ids = append(ids, e.EventID); return nil }); err != nil || !slices.Equal(ids, []string{"0", "1"}) {
		t.Fatal(ids, err)
	}
	if err := c.Audit(ctx, nil, &since, func(i AuditItem) error {
		if i.Record != nil {
			ids = append(ids, i.Record.EventIDs...)
		} else {
			ids = append(ids, i.Line.Outcome)
		}
		return nil
	}); err != nil || !slices.Equal(ids[2:], []string{"committed", "1"}) {
		t.Fatal(ids, err)
	}
	if h, err := c.AuditHead(ctx); err != nil || h.AgentID != "agent-a" || *h.Hash != "aa" {
		t.Fatal(h, err)
	}
	stop := errors.New("stop")
	if err := c.Spool(ctx, 0, func(SpoolEntry) error { return stop }); err != stop {
		t.Fatal(err)
	}

	_, err = c.SetQuantity(ctx, "SCN-04", 0)
	var e *Error
	if !errors.As(err, &e) || e.Status != 422 || e.Reason != "bad_quantity" || e.Hint == "" {
		t.Fatal(err)
	}
	// A long answer that breaks off is not taken for the whole.
	r.fake.rows, r.fake.breakAt = 20000, 10000
	if err := c.Spool(ctx, 0, func(SpoolEntry) error { return nil }); err == nil {
		t.Fatal("half an answer was taken for the whole")
	}
	r.fake.breakAt = 10000
	if err := c.SpoolExport(ctx, io.Discard); err == nil {
		t.Fatal("half an export was taken for the whole")
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	var u *Unreachable
	if _, err = c.Status(ctx); !errors.As(err, &u) || !strings.Contains(u.Hint(), "scanonce run") {
		t.Fatal(err)
	}
	if err := c.Follow(ctx, "", nil, nil); !errors.As(err, &u) {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r.config.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("socket left behind", err)
	}
}

func TestIdempotencyKey(t *testing.T) {
	r := newRig(t, nil)
	var now time.Duration
	var mu sync.Mutex
	r.server.once.boot = func() time.Duration { mu.Lock(); defer mu.Unlock(); return now }
	put := func(key, path, body string) (*http.Response, string) {
		return r.raw(call{method: "PUT", path: path, body: body, header: map[string]string{"Idempotency-Key": key}})
	}
	const mode, ret, waste = "/v1/scanners/a/mode", `{"scan_type":"return"}`, `{"scan_type":"waste"}`
	r1, b1 := put("k1", mode, ret)
	r2, b2 := put("k1", mode, ret)
	if calls := r.fake.took(); len(calls) != 1 || b1 != b2 || r1.StatusCode != 200 || r2.StatusCode != 200 {
		t.Fatal(calls, b1, b2)
	}
	for _, other := range [][2]string{{mode, waste}, {"/v1/scanners/b/mode", ret}} {
		resp, body := put("k1", other[0], other[1])
		r.problem(resp, body, 422, "idempotency_key_reused")
	}
	put("k2", mode, waste)
	if calls := r.fake.took(); len(calls) != 1 {
		t.Fatal(calls)
	}
	resp, body := put(strings.Repeat("k", 256), mode, ret)
	r.problem(resp, body, 400, "bad_idempotency_key")

	// A refusal is an answer, too; a failure is not.
	r.fake.fail(&Error{Status: 409, Reason: "shared_scanner", Detail: "cannot", Hint: "x"})
	put("k3", mode, ret)
	r.fake.fail(nil)
	if resp, _ = put("k3", mode, ret); resp.StatusCode != 409 {
		t.Fatal(resp.Status)
	}
	r.fake.fail(errors.New("cannot now"))
	if resp, _ = put("k4", mode, ret); resp.StatusCode != 500 {
		t.Fatal(resp.Status)
	}
	r.fake.fail(nil)
	if resp, _ = put("k4", mode, ret); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	r.fake.took()

	// 24 h later the key is new.
	mu.Lock()
	now = 24*time.Hour - 1
	mu.Unlock()
	put("k1", mode, ret)
	if calls := r.fake.took(); len(calls) != 0 {
		t.Fatal("forgotten too early")
	}
	mu.Lock()
	now = 24 * time.Hour
	mu.Unlock()
	put("k1", mode, ret)
	if calls := r.fake.took(); len(calls) != 1 {
		t.Fatal("kept too long")
	}
	if n := len(r.server.once.order); n != 1 {
		t.Fatalf("%d answers kept", n)
	}

	// Two at once: one call; and the first goes on although its client leaves.
	r.fake.entered, r.fake.release = make(chan struct{}), make(chan struct{})
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "PUT", "http://x"+mode, strings.NewReader(ret))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "k5")
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := r.client.http.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	<-r.fake.entered
	leave()
	<-gone
	second := make(chan string)
	go func() { _, b := put("k5", mode, ret); second <- b }()
	close(r.fake.release)
	if b := <-second; b != b1 {
		t.Fatal(b)
	}
	if calls := r.fake.took(); len(calls) != 1 {
		t.Fatal(calls)
	}
}

// Streams and connections that nothing comes over leave room for short requests, however many there are.
func TestStreamsLeaveRoom(t *testing.T) {
	r := newRig(t, nil)
	open := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		c, err := net.Dial("unix", r.config.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(30 * time.Second))
		return c, bufio.NewReader(c)
	}
	get := func(c net.Conn, br *bufio.Reader, path string) (*http.Response, string) {
		t.Helper()
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("Content-Type") == "text/event-stream" {
			return resp, ""
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	var first net.Conn // of the streams
	for n := range maxConns + 50 {
		c, br := open()
		if resp, body := get(c, br, "/v1/events"); n >= maxStreams {
			r.problem(resp, body, 503, "too_many_streams")
		} else if resp.StatusCode != 200 {
			t.Fatalf("stream %d: %s", n, resp.Status)
		}
		if n == 0 {
			first = c
		}
	}
	if n := r.server.Stats().Streams; n != maxStreams {
		t.Errorf("%d streams", n)
	}
	var idle []net.Conn
	var last *bufio.Reader
	for range maxConns + 50 {
		c, br := open()
		if resp, body := get(c, br, "/healthz"); resp.StatusCode != 200 {
			t.Fatal(body)
		}
		idle, last = append(idle, c), br
	}
	if _, err := idle[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that has been idle for longest: %v", err)
	}
	if resp, body := get(idle[len(idle)-1], last, "/healthz"); resp.StatusCode != 200 {
		t.Errorf("the last one: %s", body)
	}
	// A stream that ends makes room for another.
	first.Close()
	for end := time.Now().Add(time.Minute); r.server.Stats().Streams == maxStreams && time.Now().Before(end); {
		runtime.Gosched()
	}
	if resp, body := get(idle[len(idle)-1], last, "/v1/events"); resp.StatusCode != 200 {
		t.Errorf("behind the end of a stream: %s", body)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	a := answers{boot: func() time.Duration { return 0 }}
	for i := range maxAnswers + 5 {
		if _, err := a.do(t.Context(), fmt.Sprint(i), [32]byte{}, false, func() answer { return answer{status: 200} }); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.order) != maxAnswers || len(a.byKey) != maxAnswers || a.byKey["4"] != nil || a.byKey["5"] == nil {
		t.Fatal(len(a.order), len(a.byKey))
	}
}

func TestLoopback(t *testing.T) {
	r := newRig(t, nil)
	bearer := "Bearer " + testToken
	for _, c := range []struct {
		name, path, host, origin, auth string
		status                         int
		reason                         string
	}{
		{"all right", "/v1/status", "", "", bearer, 200, ""},
		{"scheme in lower case", "/v1/status", "", "", "bearer " + testToken, 200, ""},
		{"localhost", "/v1/status", "localhost:80", "", bearer, 200, ""},
		{"localhost without port", "/v1/status", "LOCALHOST", "", bearer, 200, ""},
		{"no token", "/v1/status", "", "", "", 401, "token_wrong"},
		{"wrong token", "/v1/status", "", "", "Bearer x", 401, "token_wrong"},
		{"token and more", "/v1/status", "", "", bearer + "x", 401, "token_wrong"},
		{"part of the token", "/v1/status", "", "", bearer[:len(bearer)-1], 401, "token_wrong"},
		{"empty token", "/v1/status", "", "", "Bearer ", 401, "token_wrong"},
		{"other scheme", "/v1/status", "", "", "Basic " + testToken, 401, "token_wrong"},
		{"events need it", "/v1/events", "", "", "", 401, "token_wrong"},
		{"metrics need it", "/metrics", "", "", "", 401, "token_wrong"},
		{"readyz needs it", "/readyz", "", "", "", 401, "token_wrong"},
		{"unknown paths need it", "/nope", "", "", "", 401, "token_wrong"},
		{"healthz does not", "/healthz", "", "", "", 200, ""},
		{"the page does not", "/", "", "", "", 200, ""},
		{"other host", "/v1/status", "evil.example", "", bearer, 403, "host_not_allowed"},
		{"other host with our name in it", "/v1/status", "localhost.evil.example:80", "", bearer, 403, "host_not_allowed"},
		{"page at another host", "/", "evil.example", "", "", 403, "host_not_allowed"},
		{"healthz at another host", "/healthz", "evil.example:7411", "", "", 403, "host_not_allowed"},
		{"allowed origin", "/v1/status", "", "https://pms.example", bearer, 200, ""},
		{"own origin", "/v1/status", "", "self", bearer, 200, ""},
		{"other origin", "/v1/status", "", "https://evil.example", bearer, 403, "origin_not_allowed"},
		{"null origin", "/v1/status", "", "null", bearer, 403, "origin_not_allowed"},
		{"other origin, page", "/", "", "https://evil.example", "", 403, "origin_not_allowed"},
		{"other port of this host", "/v1/status", "", "http://127.0.0.1:1", bearer, 403, "origin_not_allowed"},
		{"allowed origin, no token", "/v1/status", "", "https://pms.example", "", 401, "token_wrong"},
	} {
		h := map[string]string{}
		if c.auth != "" {
			h["Authorization"] = c.auth
		}
		if c.origin == "self" {
			c.origin = "http://" + r.server.Addr()
		}
		if c.origin != "" {
			h["Origin"] = c.origin
		}
		if c.host == "" {
			c.host = r.server.Addr()
		}
		resp, body := r.raw(call{method: "GET", path: c.path, host: c.host, header: h})
		if c.status >= 400 {
			r.problem(resp, body, c.status, c.reason)
			if len(r.fake.took()) != 0 {
				t.Errorf("%s: reached the agent", c.name)
			}
		} else if resp.StatusCode != c.status {
			t.Errorf("%s: %s", c.name, resp.Status)
		}
		if (resp.StatusCode == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: WWW-Authenticate %q", c.name, resp.Header.Get("WWW-Authenticate"))
		}
		want := ""
		if c.origin == "https://pms.example" {
			want = c.origin
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != want {
			t.Errorf("%s: Access-Control-Allow-Origin %q", c.name, got)
		}
		r.fake.took()
	}
	pre := map[string]string{"Origin": "https://pms.example", "Access-Control-Request-Method": "PUT"}
	resp, _ := r.raw(call{method: "OPTIONS", path: "/v1/scanners/a/mode", host: r.server.Addr(), header: pre})
	if resp.StatusCode != 204 || !strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "Authorization") {
		t.Error(resp.Status, resp.Header)
	}
	pre["Origin"] = "https://evil.example"
	resp, body := r.raw(call{method: "OPTIONS", path: "/v1/scanners/a/mode", host: r.server.Addr(), header: pre})
	r.problem(resp, body, 403, "origin_not_allowed")
	if s := r.server.Stats(); s.Refused == 0 || s.Requests <= s.Refused {
		t.Error(s)
	}
}

func TestListenRefuses(t *testing.T) {
	for _, c := range []Config{
		{Listen: "0.0.0.0:0", Token: "x"}, {Listen: ":0", Token: "x"}, {Listen: "[::]:0", Token: "x"}, {Listen: "192.0.2.1:0", Token: "x"},
		{Listen: "127.0.0.1", Token: "x"}, {Listen: "127.0.0.1:0"}, {Socket: "/tmp/" + strings.Repeat("x", 110)}, {Socket: "/proc/nope/s.sock"},
	} {
		err := New(c, &fake{}, nil, nil, slog.New(slog.DiscardHandler)).Run(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestSocketFile(t *testing.T) {
	r := newRig(t, nil)
	mode := func() fs.FileMode {
		fi, err := os.Lstat(r.config.Socket)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode().Perm()
	}
	if m := mode(); m != 0o600 {
		t.Fatalf("mode %o without a group", m)
	}
	// A second server leaves a live one alone.
	err := New(r.config, r.fake, stream{r.log}, nil, slog.New(slog.DiscardHandler)).Run(t.Context())
	if !errors.Is(err, ErrSocketInUse) {
		t.Fatal(err)
	}
	if _, err := r.client.Status(t.Context()); err != nil {
		t.Fatal("the live socket was disturbed: ", err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	// A dead one's file is replaced.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.config.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	mode()
	r.start(func(c *Config, _ *Server) { c.SocketGroup = "no-such-group-here" })
	if _, err := r.client.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m := mode(); m != 0o600 {
		t.Fatalf("mode %o with a missing group", m)
	}
	// Somebody else's socket at the path is not removed at the end.
	if err := os.Remove(r.config.Socket); err != nil {
		t.Fatal(err)
	}
	if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: r.config.Socket, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	mode()
	l.Close()
	if !strings.Contains(r.logged.String(), "no-such-group-here") {
		t.Error("missing group not logged: ", r.logged)
	}
	// A file is never taken for a socket.
	if err := os.WriteFile(r.config.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = New(r.config, r.fake, stream{r.log}, nil, slog.New(slog.DiscardHandler)).Run(t.Context())
	if b, rerr := os.ReadFile(r.config.Socket); err == nil || rerr != nil || string(b) != "precious" {
		t.Fatal(err, rerr)
	}
}

func TestPeerRule(t *testing.T) {
	for _, c := range []struct {
		p     peer
		group int
		in    bool
	}{
		{peer{uid: 0, gid: 5}, -1, true},
		{peer{uid: 1000, gid: 5}, -1, true},
		{peer{uid: 1001, gid: 5}, -1, false},
		{peer{uid: 1001, gid: 5}, 7, false},
		{peer{uid: 1001, gid: 7}, 7, true},
		{peer{uid: 1001, gid: 5, groups: []int{1, 7}}, 7, true},
		{peer{uid: 1001, gid: 5, groups: []int{-1}}, -1, false},
	} {
		if c.p.allowed(1000, c.group) != c.in {
			t.Errorf("%+v, group %d: want %v", c.p, c.group, c.in)
		}
	}
}

// TestPeerCredentials connects as other users, on a socket that the file system lets everybody open.
func TestPeerCredentials(t *testing.T) {
	if os.Getuid() != 0 {
		// Without root no other user can be had: the agent's own user must be let in.
		r := newRig(t, nil)
		if _, err := r.client.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	r := newRig(t, func(c *Config, _ *Server) { c.SocketGroup = "daemon" })
	fi, err := os.Lstat(r.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	gid := fi.Sys().(*syscall.Stat_t).Gid
	if fi.Mode().Perm() != 0o660 || int64(gid) != r.server.group.Load() {
		t.Fatal(fi.Mode(), gid)
	}
	exe := filepath.Join(r.dir, "test")
	b, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(exe, b, 0o755)
	}
	if err == nil {
		err = os.Chmod(r.dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(uid, gid uint32, groups ...uint32) string {
		t.Helper()
		cmd := exec.Command(exe)
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), peerSocket+"="+r.config.Socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if got := as(54321, 54321); got != "no permission" {
		t.Errorf("stranger at a closed file: %s", got)
	}
	if got := as(54321, 54321, gid); got != "in" {
		t.Errorf("member: %s", got)
	}
	if err := os.Chmod(r.config.Socket, 0o666); err != nil {
		t.Fatal(err)
	}
	var many []uint32
	for i := range uint32(200) {
		many = append(many, 60000+i)
	}
	for _, c := range []struct {
		uid, gid uint32
		groups   []uint32
		want     string
	}{
		{54321, 54321, nil, "403 peer_not_allowed"},
		{54321, 54321, many, "403 peer_not_allowed"},
		{54321, gid, nil, "in"},
		{54321, 54321, []uint32{5, gid}, "in"},
		{54321, 54321, append(many, gid), "in"},
		{0, 54321, nil, "in"},
	} {
		if got := as(c.uid, c.gid, c.groups...); got != c.want {
			t.Errorf("uid %d, gid %d, %d groups: %s, want %s", c.uid, c.gid, len(c.groups), got, c.want)
		}
	}
}

// sseClient reads a stream of the socket line by line.
func (r *rig) sse(path, last string) (*http.Response, *bufio.Reader) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), "GET", "http://x"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := r.client.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		r.t.Fatal(resp.Status, resp.Header)
	}
	return resp, bufio.NewReader(resp.Body)
}

func (r *rig) block(br *bufio.Reader) string {
	r.t.Helper()
	var s string
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			r.t.Fatal(err)
		}
		if line == "\n" {
			return s
		}
		s += line
	}
}

func (r *rig) put(kind string, n int) string {
	r.t.Helper()
	if err := r.log.Append(events.Entry{Kind: kind, At: testInstant, Body: map[string]any{"n": n}}); err != nil {
		r.t.Fatal(err)
	}
	return r.log.Last()
}

func TestEventStream(t *testing.T) {
	r := newRig(t, nil)
	id0 := r.put("mode", 0)
	resp, br := r.sse("/v1/events?kind=accepted,duplicate&kind=mode", "")
	if resp.Header.Get("Last-Event-ID") != id0 {
		t.Fatal(resp.Header)
	}
	if b := r.block(br); b != ":\n" {
		t.Fatalf("%q", b)
	}
	id1 := r.put("accepted", 1)
	want := func(br *bufio.Reader, id, kind string, n int) {
		t.Helper()
		w := fmt.Sprintf("id: %s\nevent: %s\ndata: {\"id\":\"%s\",\"kind\":\"%s\",\"at\":\"%s\",\"n\":%d}\n", id, kind, id, kind, testInstant, n)
		if b := r.block(br); b != w {
			t.Fatalf("got %q, want %q", b, w)
		}
	}
	want(br, id1, "accepted", 1)
	r.put("device", 2) // filtered
	id3 := r.put("mode", 3)
	want(br, id3, "mode", 3)

	// Both ways to resume; the header wins.
	_, br = r.sse("/v1/events?kind=mode&since="+id0, "")
	r.block(br)
	want(br, id3, "mode", 3)
	_, br = r.sse("/v1/events?since=x", id1)
	r.block(br)
	r.block(br)
	want(br, id3, "mode", 3)
	_, br = r.sse("/v1/events?since=x", "")
	r.block(br)
	if b := r.block(br); !strings.Contains(b, "event: gap\n") {
		t.Fatal(b)
	}
	want(br, id0, "mode", 0)
	if pos, err := r.client.Position(t.Context()); err != nil || pos != id3 {
		t.Fatal(pos, err)
	}
	// The end of the server ends the stream; so many streams do not delay it.
	if n := r.server.Stats().Streams; n != 4 {
		t.Fatalf("%d streams", n)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(br); err != nil {
		t.Fatal("stream was broken off, not ended: ", err)
	}
	if n := r.server.Stats().Streams; n != 0 {
		t.Fatalf("%d streams", n)
	}
}

func TestHeartbeat(t *testing.T) {
	r := newRig(t, func(_ *Config, s *Server) {
		if s != nil {
			if s.limits.heartbeat != 15*time.Second {
				t.Error(s.limits.heartbeat)
			}
			s.limits = limits{readHeader: 100 * time.Millisecond, read: 100 * time.Millisecond, write: 100 * time.Millisecond, heartbeat: 10 * time.Millisecond}
		}
	})
	_, br := r.sse("/v1/events", "")
	for range 50 { // far longer than an answer and a request may take
		if b := r.block(br); b != ":\n" {
			t.Fatalf("%q", b)
		}
	}
}

// TestFollowAcrossRestarts restarts agent and event log under a following client.
func TestFollowAcrossRestarts(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan Event, 100)
	done := make(chan error, 1)
	n := 0
	next := func() {
		t.Helper()
		n++
		id := r.put("accepted", n)
		e := <-seen
		if e.ID != id || e.Kind != "accepted" || !bytes.Contains(e.Data, fmt.Appendf(nil, `"n":%d}`, n)) {
			t.Fatalf("event %d: %s %s %s", n, e.ID, e.Kind, e.Data)
		}
	}
	start, err := r.client.Position(ctx)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		done <- r.client.Follow(ctx, start, nil, func(e Event) error { seen <- e; return nil })
	}()
	next()
	for range 3 {
		next()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		n++
		r.put("accepted", n) // while it is away
		r.log.Close()
		r.openLog()
		r.start(nil)
		if e := <-seen; !bytes.Contains(e.Data, fmt.Appendf(nil, `"n":%d}`, n)) {
			t.Fatalf("event %d: %s", n, e.Data)
		}
		next()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	if err := r.client.Follow(t.Context(), start, []string{"accepted"}, func(Event) error { return enough }); err != enough {
		t.Fatal(err)
	}
}

// TestFollowFromNowOn loses nothing although the connection breaks before the first event.
func TestFollowFromNowOn(t *testing.T) {
	r := newRig(t, nil)
	r.put("accepted", 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan Event, 10)
	done := make(chan error, 1)
	go func() { done <- r.client.Follow(ctx, "", nil, func(e Event) error { seen <- e; return nil }) }()
	for r.server.Stats().Streams == 0 {
	}
	// The stream is counted before its header is out; a second one, by the same road, is later.
	_, br := r.sse("/v1/events", "")
	r.block(br)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	id := r.put("accepted", 2)
	r.start(nil)
	if e := <-seen; e.ID != id {
		t.Fatal(e.ID, id)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestSlowReader does not read: appends and another reader go on.
func TestSlowReader(t *testing.T) {
	r := newRig(t, nil)
	_, slow := r.sse("/v1/events", "")
	r.block(slow)
	start := r.log.Last()
	pad := strings.Repeat("x", 4000)
	const n = 2000 // 8 MB: more than the buffers of a socket
	for i := range n {
		if err := r.log.Append(events.Entry{Kind: "a", At: testInstant, Body: map[string]any{"n": i, "pad": pad}}); err != nil {
			t.Fatal(err)
		}
	}
	_, fast := r.sse("/v1/events", start)
	r.block(fast)
	for range n {
		r.block(fast)
	}
	for i := range n { // nothing was lost for the slow one
		if b := r.block(slow); !strings.Contains(b, fmt.Sprintf(`"n":%d,`, i)) {
			t.Fatalf("event %d: %.100s", i, b)
		}
	}
}

// TestStalledReader ends the stream of a client that takes nothing any more.
func TestStalledReader(t *testing.T) {
	r := newRig(t, func(_ *Config, s *Server) {
		if s != nil {
			s.limits.write = 50 * time.Millisecond
		}
	})
	_, br := r.sse("/v1/events", "")
	r.block(br)
	pad := strings.Repeat("x", 100000)
	for range 100 {
		if err := r.log.Append(events.Entry{Kind: "a", At: testInstant, Body: map[string]any{"pad": pad}}); err != nil {
			t.Fatal(err)
		}
	}
	for r.server.Stats().Streams > 0 {
		runtime.Gosched()
	}
	if _, err := io.Copy(io.Discard, br); err == nil {
		t.Fatal("a stream that was broken off looks like one that ended")
	}
}

func TestSlowHeaders(t *testing.T) {
	for _, sent := range []string{"", "GET /healthz HTT", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "PUT /v1/scanners/a/mode HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + testToken + "\r\nContent-Length: 9\r\n\r\n{"} {
		r := newRig(t, func(_ *Config, s *Server) {
			if s != nil {
				if l := s.limits; l.readHeader <= 0 || l.read <= 0 || l.write <= 0 || l.idle <= 0 {
					t.Errorf("a limit is missing: %+v", l)
				}
				s.limits.readHeader, s.limits.read = 20*time.Millisecond, 40*time.Millisecond
			}
		})
		c, err := net.Dial("tcp", r.server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, sent); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 && !bytes.HasPrefix(b, []byte("HTTP/1.1 4")) {
			t.Fatalf("%q: %q %v", sent, b, err)
		}
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t, nil)
	resp, _ := r.raw(call{method: "GET", path: "/v1/status", header: map[string]string{"X-Long": strings.Repeat("x", 64<<10)}})
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Fatal(resp.Status)
	}
	// More connections than allowed wait; they get in as others leave.
	var conns []net.Conn
	for range maxConns {
		c, err := net.Dial("tcp", r.server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	last, err := net.Dial("tcp", r.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	if _, err := io.WriteString(last, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Status(t.Context()); err != nil { // the socket has places of its own
		t.Fatal(err)
	}
	for _, c := range conns {
		c.Close()
	}
	if b, err := io.ReadAll(last); err != nil || !bytes.HasPrefix(b, []byte("HTTP/1.1 200")) {
		t.Fatal(string(b), err)
	}
}

func TestPage(t *testing.T) {
	r := newRig(t, nil)
	resp, body := r.raw(call{method: "GET", path: "/", host: r.server.Addr()})
	policy := resp.Header.Get("Content-Security-Policy")
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		t.Fatal(resp.Status, resp.Header)
	}
	for _, part := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("policy lacks %s", part)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Error(policy)
	}
	for element, directive := range map[string]string{"script": "script-src", "style": "style-src"} {
		if n := strings.Count(body, "<"+element); n != 1 {
			t.Errorf("%d %s elements, one is hashed", n, element)
		}
		if want := directive + " " + sourceHash(element); !strings.Contains(policy, want) || len(sourceHash(element)) < 50 {
			t.Errorf("policy lacks %s", want)
		}
	}
	// Nothing from outside, nothing that makes markup of data, nothing inline that the policy would stop.
	body = strings.ReplaceAll(body, "http://…", "") // told to the reader
	for _, bad := range []string{`(?i)https?:`, `url\(`, `@import`, `innerHTML`, `outerHTML`, `insertAdjacent`, `document\.write`, `\beval\b`, `\son[a-z]+=`, `\sstyle=`, `src=`} {
		if m := regexp.MustCompile(bad).FindString(body); m != "" {
			t.Errorf("page holds %q", m)
		}
	}
	if strings.Contains(body, testToken) || strings.Count(body, "\n") > 300 {
		t.Error("token in the page, or page too long")
	}
	for _, need := range []string{`<html lang="en">`, `aria-live="polite"`, `prefers-color-scheme: dark`, `class="skip"`, `scope="col"`, `"/v1/events?kind="`} {
		if !strings.Contains(body, need) {
			t.Errorf("page lacks %s", need)
		}
	}
}
