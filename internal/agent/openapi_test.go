package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// notProvoked are the documented answers that the test below does not get, and why.
var notProvoked = map[string]string{
	"POST /v1/spool/requeue 503":        "comes 30 s later: TestRequeueAnswersInTime has it",
	"POST /v1/spool/discard 503":        "likewise",
	"POST /v1/batches/{id}/confirm 503": "likewise, by the same waiting",
	"POST /v1/batches/{id}/discard 503": "likewise, by the same waiting",
	"POST /v1/spool/backup 503":         "only between a damage of the spool and its healing, which the keeper begins at once",
}

func readDocument(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

func operationsOf(doc *openapi3.T) map[string]*openapi3.Operation {
	out := map[string]*openapi3.Operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			out[method+" "+path] = op
		}
	}
	return out
}

// The document has what the server serves, and nothing else.
func TestDocumentHasEveryRoute(t *testing.T) {
	doc := readDocument(t)
	documented := slices.Sorted(maps.Keys(operationsOf(doc)))
	served := api.New(api.Config{}, &agent{}, eventStream{}, http.NotFoundHandler(), slog.New(slog.DiscardHandler)).Routes()
	if !slices.Equal(documented, served) {
		t.Errorf("documented:\n%s\nserved:\n%s", strings.Join(documented, "\n"), strings.Join(served, "\n"))
	}
	// A route that needs a list of its own is not forgotten by this test.
	if len(served) < 30 {
		t.Errorf("only %d routes", len(served))
	}
}

// Every object is closed, so that a field that is not documented fails; and every field of an answer is required, but
// for those that say with what they come.
func TestDocumentIsStrict(t *testing.T) {
	doc := readDocument(t)
	requests := map[*openapi3.Schema]bool{}
	for _, op := range operationsOf(doc) {
		if op.RequestBody != nil {
			requests[op.RequestBody.Value.Content["application/json"].Schema.Value] = true
			for _, one := range op.RequestBody.Value.Content["application/json"].Schema.Value.OneOf {
				requests[one.Value] = true
			}
		}
	}
	parts := map[*openapi3.Schema]bool{} // of events, which are closed
	for _, name := range []string{"EventHead", "ScanPart"} {
		parts[doc.Components.Schemas[name].Value] = true
	}
	seen := map[*openapi3.Schema]bool{}
	var look func(where string, ref *openapi3.SchemaRef)
	look = func(where string, ref *openapi3.SchemaRef) {
		if ref == nil || ref.Value == nil || seen[ref.Value] {
			return
		}
		s := ref.Value
		seen[s] = true
		closed := s.AdditionalProperties.Has != nil && !*s.AdditionalProperties.Has || s.UnevaluatedProperties.Has != nil && !*s.UnevaluatedProperties.Has
		if len(s.Properties) > 0 && !closed && !parts[s] {
			t.Errorf("%s is open", where)
		}
		for name, p := range s.Properties {
			if !requests[s] && !slices.Contains(s.Required, name) && name != "kind" && !strings.HasPrefix(p.Value.Description, "Only with") {
				t.Errorf("%s.%s is not required, and does not say when it is there", where, name)
			}
			look(where+"."+name, p)
		}
		look(where+"[]", s.Items)
		for _, l := range []openapi3.SchemaRefs{s.OneOf, s.AnyOf, s.AllOf} {
			for i, r := range l {
				look(fmt.Sprintf("%s(%d)", where, i), r)
			}
		}
	}
	for name, s := range doc.Components.Schemas {
		look(name, s)
	}
	for where, op := range operationsOf(doc) {
		if op.Summary == "" || op.OperationID == "" || len(op.Tags) != 1 {
			t.Errorf("%s has no summary, id or tag", where)
		}
		for status, r := range op.Responses.Map() {
			for kind, c := range r.Value.Content {
				if c.Schema == nil {
					t.Errorf("%s %s: %s has no schema", where, status, kind)
				}
				look(where+" "+status, c.Schema)
			}
		}
	}
}

// got is what was got: "GET /v1/status 200", "event accepted".
type got struct {
	mu  sync.Mutex
	all map[string]bool
}

func (g *got) add(what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all[what] = true
}

// documented is an agent whose requests and answers are held against the document.
type documented struct {
	t        *testing.T
	doc      *openapi3.T
	a        *agent
	dir      string
	socket   *http.Client
	loopback string // address
	got      *got

	reloads error // what is wrong with the configuration

	mu   sync.Mutex
	disk error // what the disk says
}

const documentToken = "0123456789abcdef0123456789abcdef"

// newDocumented builds an agent on embedded stores, with its local interface on a socket and on loopback. Nothing runs.
func newDocumented(t *testing.T, doc *openapi3.T, got *got) *documented {
	t.Helper()
	dir, err := os.MkdirTemp("", "so") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.StateDir, cfg.Agent.AgentID = "F", filepath.Join(dir, "state"), "agent-a"
	cfg.Agent.FacilitySecretFile = file("secret", "golden facility secret")
	cfg.API.Socket, cfg.API.SocketGroup, cfg.API.Listen, cfg.API.TokenFile = filepath.Join(dir, "s"), "", "127.0.0.1:0", file("token", documentToken)
	cfg.NDC.Directory = file("ndc", "0093-7214-10")
	cfg.RxProfiles = []config.RxProfile{{Name: "a", Pattern: `R(?P<rx>\d{7})`}}
	cfg.Scanners = []config.Scanner{{ID: "SCN-04", Transport: "serial", Path: filepath.Join(dir, "port"), ScanType: window.Dispense, Framing: "line"},
		{ID: "SHARED", Transport: "serial", Path: filepath.Join(dir, "other"), ScanType: window.Dispense, Framing: "line", Shared: true}}
	folder, err := openFolder(cfg.Agent.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	d := &documented{t: t, doc: doc, dir: dir, got: got}
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	if d.a, err = core(cfg, Options{Version: "test", Log: slog.New(slog.DiscardHandler),
		Reload: func() (*config.Config, error) { return cfg, d.reloads }}, Edges{OS: host, Disk: func(_ spool.DiskStep, _ string, do func() error) error {
		d.mu.Lock()
		broken := d.disk
		d.mu.Unlock()
		if broken != nil {
			return broken
		}
		return do()
	}}); err != nil {
		t.Fatal(err)
	}
	d.a.fleet = newFleet(d.a)
	d.a.metrics.collect(d.a)
	if d.a.server, err = newLocalAPI(d.a); err != nil {
		t.Fatal(err)
	}
	d.socket = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dial net.Dialer
		return dial.DialContext(ctx, "unix", cfg.API.Socket)
	}}}
	return d
}

// run runs a part of the agent, or all of it, until the test's end.
func (d *documented) run(run func(context.Context) error) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	d.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
	})
	select {
	case <-d.a.server.Ready():
	case err := <-ended:
		ended <- nil
		d.t.Fatalf("the agent ended: %v", err)
	}
	d.loopback = d.a.server.addr()
}

func (d *documented) breakDisk(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.disk = err
}

// become gives a store that opens late another way to open, and closes what is open.
func become[T io.Closer](l *late[T], open func() (T, error)) (before func() (T, error)) {
	l.lock()
	defer l.mu.Unlock()
	before, l.open = l.open, open
	if l.opened {
		l.store.Close()
		l.opened = false
	}
	return before
}

// away makes a store unreachable until back is called.
func away[T io.Closer](l *late[T]) (back func()) {
	open := become(l, func() (T, error) {
		var none T
		return none, errors.New("cannot reach the store: connection refused")
	})
	return func() { become(l, open) }
}

// ask is one request.
type ask struct {
	method, path string // path as sent
	body         string
	header       map[string]string
	host         string // over loopback, with this Host
	refused      bool   // by the document too
}

func (d *documented) httpRequest(q ask) *http.Request {
	d.t.Helper()
	base := "http://localhost"
	if q.host != "" {
		base = "http://" + d.loopback
	}
	var body io.Reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	r, err := http.NewRequest(q.method, base+q.path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	if q.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for k, v := range q.header {
		r.Header.Set(k, v)
	}
	if q.host != "" {
		r.Host = q.host
	}
	return r
}

// route finds what the document says of a request.
func (d *documented) route(r *http.Request) (*routers.Route, map[string]string) {
	d.t.Helper()
	sent := strings.Split(r.URL.EscapedPath(), "/")
paths:
	for path, item := range d.doc.Paths.Map() {
		want := strings.Split(path, "/")
		params := map[string]string{}
		if len(want) != len(sent) || item.GetOperation(r.Method) == nil {
			continue
		}
		// A fixed segment comes before one that may be anything.
		for i, w := range want {
			if name, ok := strings.CutPrefix(w, "{"); ok {
				value, err := url.PathUnescape(sent[i])
				if err != nil {
					d.t.Fatal(err)
				}
				params[strings.TrimSuffix(name, "}")] = value
			} else if w != sent[i] {
				continue paths
			}
		}
		return &routers.Route{Spec: d.doc, Path: path, PathItem: item, Method: r.Method, Operation: item.GetOperation(r.Method)}, params
	}
	d.t.Fatalf("%s %s is not documented", r.Method, r.URL)
	return nil, nil
}

// send sends a request and holds it and its answer against the document. It returns the answer's body.
func (d *documented) send(want int, q ask) []byte {
	d.t.Helper()
	name := q.method + " " + q.path + " " + q.body[:min(len(q.body), 80)]
	check := d.httpRequest(q)
	route, params := d.route(check)
	input := &openapi3filter.RequestValidationInput{Request: check, PathParams: params, Route: route, QueryParams: check.URL.Query(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, RejectWhenRequestBodyNotSpecified: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}}
	if err := openapi3filter.ValidateRequest(d.t.Context(), input); (err != nil) != q.refused {
		d.t.Errorf("%s: the document says of the request: %v", name, err)
	}
	client := d.socket
	if q.host != "" {
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	}
	ctx, cancel := context.WithTimeout(d.t.Context(), testenv.Patience)
	defer cancel()
	resp, err := client.Do(d.httpRequest(q).WithContext(ctx))
	if err != nil {
		d.t.Fatalf("%s: %v", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != want {
		body, _ := io.ReadAll(resp.Body)
		d.t.Errorf("%s: %d %s, want %d", name, resp.StatusCode, body, want)
		return body
	}
	return d.answered(name, input, resp)
}

// answered holds an answer against the document.
func (d *documented) answered(name string, input *openapi3filter.RequestValidationInput, resp *http.Response) []byte {
	d.t.Helper()
	described := input.Route.Operation.Responses.Status(resp.StatusCode)
	if described == nil {
		d.t.Errorf("%s: %d is not documented", name, resp.StatusCode)
		return nil
	}
	kind := resp.Header.Get("Content-Type")
	base, _, _ := mime.ParseMediaType(kind)
	stream := base == "text/event-stream"
	var body []byte
	if !stream {
		var err error
		if body, err = io.ReadAll(resp.Body); err != nil {
			d.t.Fatalf("%s: %v", name, err)
		}
	}
	for header, h := range described.Value.Headers {
		if h.Value.Required && resp.Header.Get(header) == "" {
			d.t.Errorf("%s: no header %s", name, header)
		}
	}
	content := described.Value.Content
	if len(content) == 0 && len(body) > 0 {
		d.t.Errorf("%s: a body that is not documented: %s", name, body)
	}
	if len(content) > 0 {
		media := content[base]
		if media == nil {
			d.t.Errorf("%s: content of type %q is not documented", name, kind)
			return body
		}
		switch base {
		case "application/json", "application/problem+json":
			out := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: resp.StatusCode, Header: resp.Header, Options: input.Options}
			out.SetBodyBytes(body)
			if err := openapi3filter.ValidateResponse(d.t.Context(), out); err != nil {
				d.t.Errorf("%s: %v", name, err)
			}
		case "application/x-ndjson":
			if len(body) == 0 {
				return body // an empty list shows nothing
			}
			for line := range bytes.Lines(body) {
				d.fits(name, media.Schema, line)
			}
		case "text/event-stream":
			body = d.firstEvent(name, media.Schema, resp.Body)
		case "text/plain", "text/html":
			text, _ := json.Marshal(string(body))
			d.fits(name, media.Schema, text)
		}
	}
	d.got.add(fmt.Sprintf("%s %s %d", input.Route.Method, input.Route.Path, resp.StatusCode))
	return body
}

// fits holds JSON against a schema.
func (d *documented) fits(name string, schema *openapi3.SchemaRef, text []byte) {
	d.t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		d.t.Errorf("%s: %v: %s", name, err, text)
		return
	}
	if err := schema.Value.VisitJSON(v, openapi3.EnableJSONSchema2020(), openapi3.VisitAsResponse()); err != nil {
		d.t.Errorf("%s: %v", name, err)
	}
}

// firstEvent reads a stream as far as its first event.
func (d *documented) firstEvent(name string, schema *openapi3.SchemaRef, r io.Reader) []byte {
	d.t.Helper()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			d.fits(name, schema, []byte(data))
			return []byte(data)
		}
	}
	d.t.Errorf("%s: no event: %v", name, lines.Err())
	return nil
}

func (d *documented) into(v any, body []byte) {
	d.t.Helper()
	if err := json.Unmarshal(body, v); err != nil {
		d.t.Errorf("%v: %s", err, body)
	}
}

// example is the path of an operation with the parameters of the document's examples.
func example(path string, item *openapi3.PathItem, op *openapi3.Operation) string {
	for _, p := range append(slices.Clone(item.Parameters), op.Parameters...) {
		if p.Value.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Value.Name+"}", url.PathEscape(fmt.Sprint(p.Value.Example)))
		}
	}
	return path
}

// everywhere asks every operation for what all of one kind refuse.
func (d *documented) everywhere() {
	for path, item := range d.doc.Paths.Map() {
		for method, op := range item.Operations() {
			q := ask{method: method, path: example(path, item, op), host: "evil.example"}
			q.refused = op.RequestBody != nil && op.RequestBody.Value.Required // there is none
			d.send(http.StatusForbidden, q)
			if op.Security == nil {
				q.host = "localhost"
				d.send(http.StatusUnauthorized, q)
				q.header = map[string]string{"Authorization": "Bearer wrong"}
				d.send(http.StatusUnauthorized, q)
			}
			if op.RequestBody == nil {
				continue
			}
			q = ask{method: method, path: q.path, refused: true}
			schema := op.RequestBody.Value.Content["application/json"].Schema.Value
			q.body = `{"undocumented":1}`
			d.send(http.StatusBadRequest, q)
			q.body = `{"` + strings.Repeat("x", 64<<10) + `":1}`
			d.send(http.StatusRequestEntityTooLarge, q)
			for _, missing := range schema.Required {
				q.body = without(op, missing)
				d.send(http.StatusBadRequest, q)
			}
			if op.RequestBody.Value.Required {
				q.body = ""
				d.send(http.StatusBadRequest, q)
			}
			if op.Parameters.GetByInAndName("header", "Idempotency-Key") == nil {
				continue
			}
			q.body, q.header = `{"undocumented":1}`, map[string]string{"Idempotency-Key": "a key"}
			d.send(http.StatusBadRequest, q)
			q.header = map[string]string{"Idempotency-Key": "used at " + method + path}
			q.header["Idempotency-Key"] = strings.ReplaceAll(q.header["Idempotency-Key"], " ", "-")
			d.send(http.StatusBadRequest, q)
			q.body = `{"undocumented":2}`
			d.send(http.StatusUnprocessableEntity, q)
		}
	}
}

// without is an example of a request that lacks a field.
func without(op *openapi3.Operation, field string) string {
	media := op.RequestBody.Value.Content["application/json"]
	v := media.Example
	for _, e := range media.Examples {
		v = e.Value.Value
	}
	lacks := maps.Clone(v.(map[string]any))
	delete(lacks, field)
	b, err := json.Marshal(lacks)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// ambiguous finds several rows.
type ambiguous struct{ ledger.Ledger }

func (ambiguous) Find(context.Context, string, int) ([]ledger.Row, error) {
	return make([]ledger.Row, 2), nil
}
func (ambiguous) Close() error { return nil }

func key(k string) map[string]string { return map[string]string{"Idempotency-Key": k} }

// listen follows the events, holds each against the document, and returns a way to wait for one.
func (d *documented) listen() func(what string, wanted func(kind string, data []byte) bool) {
	d.t.Helper()
	schema := d.doc.Components.Schemas["Event"]
	c := api.NewClient(d.a.cfg.API.Socket)
	ctx, cancel := context.WithCancel(context.Background())
	at, err := c.Position(ctx)
	if err != nil {
		d.t.Fatal(err)
	}
	var mu sync.Mutex
	var all []api.Event
	more := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Follow(ctx, at, nil, func(e api.Event) error {
			mu.Lock()
			defer mu.Unlock()
			d.fits("event "+e.Kind, schema, e.Data)
			d.got.add("event " + e.Kind)
			all = append(all, api.Event{ID: e.ID, Kind: e.Kind, Data: bytes.Clone(e.Data)})
			select {
			case more <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	d.t.Cleanup(func() { cancel(); <-done; c.Close() })
	return func(what string, wanted func(string, []byte) bool) {
		d.t.Helper()
		limit := time.NewTimer(testenv.Patience)
		defer limit.Stop()
		for {
			mu.Lock()
			found := slices.ContainsFunc(all, func(e api.Event) bool { return wanted(e.Kind, e.Data) })
			mu.Unlock()
			if found {
				return
			}
			select {
			case <-more:
			case <-limit.C:
				d.t.Fatalf("no event: %s", what)
			}
		}
	}
}

// Real requests get what the document says, and every answer of the document is got.
func TestDocumentAgainstTheAgent(t *testing.T) {
	doc := readDocument(t)
	got := &got{all: map[string]bool{}}
	t.Run("well", func(t *testing.T) { documentedWell(t, doc, got) })
	t.Run("stuck", func(t *testing.T) { documentedStuck(t, doc, got) })
	var missing []string
	for where, op := range operationsOf(doc) {
		for status := range op.Responses.Map() {
			name := where + " " + status
			switch {
			case !got.all[name] && notProvoked[name] == "":
				missing = append(missing, name)
			case got.all[name] && notProvoked[name] != "":
				t.Errorf("%s is got: take it off the list", name)
			}
		}
	}
	for _, s := range doc.Components.Schemas["Event"].Value.OneOf {
		if kind := "event " + fmt.Sprint(s.Value.Properties["kind"].Value.Const); !got.all[kind] {
			missing = append(missing, kind)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("documented and not got:\n%s", strings.Join(missing, "\n"))
	}
}

func documentedWell(t *testing.T, doc *openapi3.T, got *got) {
	d := newDocumented(t, doc, got)
	d.run(d.a.serve)
	await := d.listen()
	get := func(want int, path string) []byte { t.Helper(); return d.send(want, ask{method: "GET", path: path}) }
	post := func(want int, path, body string) []byte {
		t.Helper()
		return d.send(want, ask{method: "POST", path: path, body: body})
	}
	put := func(want int, path, body string) []byte {
		t.Helper()
		return d.send(want, ask{method: "PUT", path: path, body: body})
	}
	bad := func(want int, method, path, body string) {
		t.Helper()
		d.send(want, ask{method: method, path: path, body: body, refused: true})
	}
	d.everywhere()

	// At the counter.
	get(200, "/healthz")
	get(200, "/readyz")
	get(200, "/")
	get(200, "/metrics")
	if err := os.WriteFile(filepath.Join(d.dir, "port"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await("the scanner that is none", func(kind string, _ []byte) bool { return kind == "device" })
	post(200, "/v1/reload", "")
	d.reloads = errors.New("cannot use scanner.id: it is there twice")
	post(422, "/v1/reload", "{}")
	for _, c := range []struct{ data, kind string }{{"R1234567", "label"}, {itemA, "accepted"}, {itemA, "duplicate"}, {"SHELF 12", "unknown"}} {
		want := map[bool]int{true: 201, false: 200}[c.kind == "accepted"]
		post(want, "/v1/scans", fmt.Sprintf(`{"scanner_id":"SCN-04","data":%q}`, c.data))
		await(c.kind, func(kind string, _ []byte) bool { return kind == c.kind })
	}
	await("the commit", func(kind string, _ []byte) bool { return kind == "committed" })
	post(422, "/v1/scans", `{"scanner_id":"SCN-04","data":"300937214107","symbology":null,"quantity":null,"captured_at":null}`)
	bad(422, "POST", "/v1/scans", `{"scanner_id":"SCN-04","data":"300937214106","quantity":0}`)
	post(409, "/v1/scans", `{"scanner_id":"SHARED","data":"300937214106","quantity":2}`)
	put(200, "/v1/scanners/SCN-04/mode", `{"scan_type":"return"}`)
	put(404, "/v1/scanners/NONE/mode", `{"scan_type":"return"}`)
	put(409, "/v1/scanners/SHARED/mode", `{"scan_type":"return"}`)
	bad(422, "PUT", "/v1/scanners/SCN-04/mode", `{"scan_type":"steal"}`)
	put(200, "/v1/scanners/SCN-04/mode", `{"scan_type":"dispense"}`)
	put(200, "/v1/scanners/SCN-04/quantity", `{"quantity":1}`)
	put(404, "/v1/scanners/NONE/quantity", `{"quantity":30}`)
	put(409, "/v1/scanners/SHARED/quantity", `{"quantity":30}`)
	bad(422, "PUT", "/v1/scanners/SCN-04/quantity", `{"quantity":10000}`)
	post(201, "/v1/scanners/SCN-04/same-again", `{"event_id":null}`)
	post(200, "/v1/scanners/SCN-04/same-again", "")
	post(404, "/v1/scanners/SCN-04/same-again", `{"event_id":"019aceee-0000-7000-8000-000000000001"}`)
	post(409, "/v1/scanners/SHARED/same-again", `{}`)

	// Claims.
	const token = "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907"
	walk := "/v1/claims/claim-a"
	put(201, walk, `{"rx_ref_token":"`+token+`","ingredient_cost":"42.10"}`)
	put(200, walk, `{"rx_ref_token":"`+token+`","ingredient_cost":"42.10"}`)
	put(409, walk, `{"rx_ref_token":"`+token+`","ingredient_cost":"42.11"}`)
	bad(422, "PUT", walk, `{"rx_ref_token":"1234567","ingredient_cost":"42.10"}`)
	get(200, walk)
	get(404, "/v1/claims/claim-b")
	get(422, "/v1/claims/12345678")
	for i, node := range []string{"NORMALIZED", "TAXONOMY_RESOLVED", "ELIGIBILITY_VERIFIED", "PRICING_CALCULATED", "PA_EVALUATED"} {
		post(200, walk+"/advance", fmt.Sprintf(`{"expected_version":%d,"fsm_node":%q,"ingredient_cost":"41.00"}`, i+1, node))
	}
	post(422, walk+"/advance", `{"expected_version":6,"fsm_node":"NORMALIZED"}`)
	post(409, walk+"/advance", `{"expected_version":2,"fsm_node":"RESPONSE_DISPATCHED"}`)
	post(404, "/v1/claims/claim-b/advance", `{"expected_version":1,"fsm_node":"NORMALIZED"}`)
	post(200, walk+"/advance", `{"expected_version":6,"fsm_node":"PA_PENDED","reject_code":"75"}`)
	get(200, walk)

	// Cases.
	var c, other api.Case
	pend := `{"member_token":"MTOK_9f2a","gpi":"27100010100320","request_window":"2026-07-17"}`
	d.into(&c, d.send(201, ask{method: "POST", path: "/v1/pa/pends", body: pend, header: key("pend-1")}))
	d.send(201, ask{method: "POST", path: "/v1/pa/pends", body: pend, header: key("pend-1")})
	post(200, "/v1/pa/pends", pend)
	bad(422, "POST", "/v1/pa/pends", `{"member_token":"MTOK_9f2a","gpi":"2"}`)
	at := "/v1/pa/cases/" + c.CaseID
	get(200, at)
	get(404, "/v1/pa/cases/00000000000000000000000000000000")
	bad(422, "GET", "/v1/pa/cases/none", "")
	post(200, at+"/transition", `{"expected_version":1,"to":"IN_REVIEW"}`)
	post(409, at+"/transition", `{"expected_version":1,"to":"CANCELLED"}`)
	post(422, at+"/transition", `{"expected_version":2,"to":"PENDING"}`)
	bad(422, "POST", at+"/transition", `{"expected_version":2,"to":"LOST"}`)
	post(404, "/v1/pa/cases/00000000000000000000000000000000/transition", `{"expected_version":1,"to":"IN_REVIEW"}`)
	bad(422, "POST", "/v1/pa/cases/none/transition", `{"expected_version":1,"to":"IN_REVIEW"}`)
	post(200, at+"/transition", `{"expected_version":2,"to":"DENIED"}`)
	d.into(&other, post(201, "/v1/pa/pends", strings.Replace(pend, "-17", "-18", 1)))
	post(409, at+"/transition", `{"expected_version":3,"to":"APPEALED"}`) // the other one is open
	for i, to := range []string{"IN_REVIEW", "APPROVED"} {
		post(200, "/v1/pa/cases/"+other.CaseID+"/transition", fmt.Sprintf(`{"expected_version":%d,"to":%q}`, i+1, to))
	}
	post(200, at+"/transition", `{"expected_version":3,"to":"APPEALED"}`)

	// With the stores away: queued, and later done or in conflict.
	backStates, backCases := away(&d.a.states.(*lateState).late), away(&d.a.cases.(*lateCases).late)
	get(503, walk)
	get(503, at)
	put(202, "/v1/claims/claim-c", `{"rx_ref_token":"`+token+`","ingredient_cost":"1.00"}`)
	post(202, walk+"/advance", `{"expected_version":2,"fsm_node":"NORMALIZED"}`)
	post(202, "/v1/claims/claim-b/advance", `{"expected_version":1,"fsm_node":"NORMALIZED"}`)
	post(202, "/v1/pa/pends", `{"member_token":"MTOK_0001","gpi":"27"}`)
	post(202, at+"/transition", `{"expected_version":1,"to":"IN_REVIEW"}`)
	var waiting []api.PendingOperation
	for line := range bytes.Lines(get(200, "/v1/operations")) {
		var o api.PendingOperation
		d.into(&o, line)
		waiting = append(waiting, o)
	}
	// The configured ports are on the list without any USB.
	var listed []api.Device
	for line := range bytes.Lines(get(200, "/v1/devices")) {
		var dev api.Device
		d.into(&dev, line)
		listed = append(listed, dev)
	}
	if !slices.ContainsFunc(listed, func(dev api.Device) bool {
		return dev.ScannerID != nil && *dev.ScannerID == "SHARED" && dev.State != nil && *dev.State == "absent" && dev.Node != nil
	}) {
		t.Errorf("the configured scanner is not listed: %+v", listed)
	}
	var counted api.Status
	d.into(&counted, get(200, "/v1/status"))
	if o := counted.Operations; len(waiting) != 5 || o.Pending != 5 || o.OldestAgeMS < 0 || waiting[0].ID != "claim-c" || waiting[0].Kind != "claim_put" || waiting[4].ID != c.CaseID {
		t.Errorf("five operations wait: %+v, the status says %+v", waiting, o)
	}
	// Nor can anything be queued on a disk that fails.
	d.breakDisk(errors.New("input/output error"))
	put(503, "/v1/claims/claim-d", `{"rx_ref_token":"`+token+`","ingredient_cost":"1.00"}`)
	post(503, walk+"/advance", `{"expected_version":7,"fsm_node":"PA_EVALUATED"}`)
	post(503, "/v1/pa/pends", `{"member_token":"MTOK_0002","gpi":"27"}`)
	post(503, at+"/transition", `{"expected_version":4,"to":"APPROVED"}`)
	post(503, "/v1/scans", `{"scanner_id":"SCN-04","data":"`+itemB+`"}`)
	put(503, "/v1/scanners/SCN-04/mode", `{"scan_type":"return"}`)
	put(503, "/v1/scanners/SCN-04/quantity", `{"quantity":3}`)
	post(503, "/v1/scanners/SCN-04/same-again", `{}`)
	await("what was not accepted", func(kind string, _ []byte) bool { return kind == "not_accepted" })
	d.breakDisk(nil)
	backStates()
	backCases()
	var conflicts []api.Conflict
	for n := 0; n < 5; n++ {
		await("the end of an operation", func(kind string, _ []byte) bool { return kind == "operation" })
	}
	for end := time.Now().Add(testenv.Patience); len(conflicts) < 3 && time.Now().Before(end); {
		conflicts = conflicts[:0]
		for line := range bytes.Lines(get(200, "/v1/conflicts")) {
			var c api.Conflict
			d.into(&c, line)
			conflicts = append(conflicts, c)
		}
		if len(conflicts) < 3 {
			await("the alarm", func(kind string, data []byte) bool {
				return kind == "alarm" && bytes.Contains(data, []byte(`"conflict"`))
			})
		}
	}
	if len(conflicts) != 3 {
		t.Fatalf("conflicts %+v", conflicts)
	}
	resolve := fmt.Sprintf(`{"op_ids":[%q],"by":"R. Okafor"}`, conflicts[0].OpID)
	d.breakDisk(errors.New("input/output error"))
	post(503, "/v1/conflicts/resolve", resolve)
	d.breakDisk(nil)
	if got := string(post(200, "/v1/conflicts/resolve", resolve)); got != `{"resolved":1}`+"\n" {
		t.Errorf("resolved %s", got)
	}
	post(422, "/v1/conflicts/resolve", `{"op_ids":["none"],"by":"R. Okafor"}`)
	bad(422, "POST", "/v1/conflicts/resolve", `{"op_ids":["019aceee-0000-7000-8000-000000000001"],"by":""}`)

	documentedBatches(d, await)

	// A claim that is none, in a store that others write to.
	redis := testenv.StartRedis(t)
	redis.Do("HSET", "claim:foreign", "version", "x")
	states := &d.a.states.(*lateState).late
	open := become(states, func() (claimstate.Store, error) {
		return orNil(claimstate.NewRedis(claimstate.RedisConfig{Mode: "single", Addrs: []string{redis.Addr}, Timeout: storeTimeout, Lives: livesOf(d.a.cfg),
			Now: func() window.UTC { return d.a.clock.Now().T }}))
	})
	get(409, "/v1/claims/foreign")
	become(states, open)

	// Records.
	backLedger := away(&d.a.ledger.late)
	post(201, "/v1/scans", `{"scanner_id":"camera","data":"`+itemB+`"}`)
	await("the outage", func(kind string, data []byte) bool {
		return kind == "online" && bytes.Contains(data, []byte("OFFLINE"))
	})
	get(200, "/v1/spool?limit=5")
	get(200, "/v1/spool/export")
	get(503, "/v1/explain/fc903c16")
	get(503, "/v1/ledger")
	get(503, "/v1/audit")
	post(503, "/v1/audit/verify", "{}")
	backLedger()
	await("the outage's end", func(kind string, data []byte) bool { return kind == "online" && bytes.Contains(data, []byte("ONLINE")) })
	bad(400, "GET", "/v1/spool?limit=0", "")
	post(200, "/v1/spool/verify", "{}")
	post(200, "/v1/spool/backup", "")
	post(200, "/v1/spool/requeue", `{"all":true}`)
	post(400, "/v1/spool/requeue", `{"event_ids":["none"]}`)
	post(200, "/v1/spool/discard", `{"event_ids":["019aceee-0000-7000-8000-000000000001"],"by":"R. Okafor"}`)
	post(400, "/v1/spool/discard", `{"event_ids":["none"],"by":"R. Okafor"}`)
	bad(422, "POST", "/v1/spool/discard", `{"event_ids":["019aceee-0000-7000-8000-000000000001"],"by":"<nobody>"}`)
	rows := bytes.Split(get(200, "/v1/ledger?since=2020-01-01T00:00:00.000Z"), []byte("\n"))
	var row map[string]any
	d.into(&row, rows[0])
	csv, _, _ := bytes.Cut(get(200, "/v1/ledger?format=csv"), []byte("\r\n"))
	if want := strings.Join(doc.Components.Schemas["LedgerRow"].Value.Required, ","); string(csv) != want {
		t.Errorf("CSV has the columns %s, want %s", csv, want)
	}
	bad(400, "GET", "/v1/ledger?format=xml", "")
	get(200, "/v1/audit")
	bad(400, "GET", "/v1/audit?until=yesterday", "")
	get(200, "/v1/audit/head")
	post(200, "/v1/audit/verify", "")
	post(200, "/v1/audit/verify", `{"ledger":true}`)
	get(200, "/v1/explain/"+url.PathEscape(fmt.Sprint(row["idem_key"])))
	get(400, "/v1/explain/x")
	get(404, "/v1/explain/00000000")
	find := become(&d.a.ledger.late, func() (ledger.Ledger, error) { return ambiguous{}, nil })
	get(409, "/v1/explain/fc903c16")
	become(&d.a.ledger.late, find)
	get(200, "/v1/status")

	// The stream.
	d.send(200, ask{method: "HEAD", path: "/v1/events"})
	var first struct{ Kind, ID string }
	d.into(&first, get(200, "/v1/events?since=nothing"))
	if first.Kind != "gap" {
		t.Errorf("the first event behind an unknown one is %q", first.Kind)
	}
	got.add("event gap")
	post(204, "/v1/events/ack", `{"client":"pms","id":"`+first.ID+`"}`)
	post(422, "/v1/events/ack", `{"client":"pms","id":"nothing"}`)
	bad(422, "GET", "/v1/events?client=a+b", "")
	for n := range 63 {
		post(204, "/v1/events/ack", fmt.Sprintf(`{"client":"c%d","id":%q}`, n, first.ID))
	}
	post(429, "/v1/events/ack", `{"client":"one-more","id":"`+first.ID+`"}`)
	get(429, "/v1/events?client=one-more")
	for n := range 300 {
		body := fmt.Sprintf(`{"scanner_id":"place-%d","data":"SHELF %d"}`, n, n)
		r, err := d.socket.Do(d.httpRequest(ask{method: "POST", path: "/v1/scans", body: body}))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode == http.StatusTooManyRequests {
			break
		}
	}
	post(429, "/v1/scans", `{"scanner_id":"one-more","data":"SHELF 1"}`)
}

// documentedBatches has a scanner's memory come three times.
func documentedBatches(d *documented, await func(string, func(string, []byte) bool)) {
	d.t.Helper()
	post := func(want int, path, body string) []byte {
		d.t.Helper()
		return d.send(want, ask{method: "POST", path: path, body: body})
	}
	d.send(200, ask{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"receive"}`})
	told := map[string]bool{}
	for n := range 3 {
		at := d.a.clock.Now() // of all: a busy machine does not stretch the copy
		for i := range 12 {
			data := device.Payload(fmt.Sprintf("]d201003009372141062100B%02d\x1d17271130", i))
			d.a.pipe.Offer(device.Frame{Scanner: "SCN-04", Data: data, Length: len(data), At: at})
		}
		await("the batch", func(kind string, data []byte) bool {
			if kind == "batch" && !told[string(data)] {
				told[string(data)] = true
				if !bytes.Contains(data, fmt.Appendf(nil, `"repeat":%t`, n > 0)) {
					d.t.Errorf("copy %d: %s", n, data)
				}
			}
			return len(told) == n+1
		})
		wait := time.NewTimer(500 * time.Millisecond) // the next copy is no echo
		<-wait.C
	}
	var held []api.Batch
	for line := range bytes.Lines(d.send(200, ask{method: "GET", path: "/v1/batches"})) {
		var b api.Batch
		d.into(&b, line)
		held = append(held, b)
	}
	if len(held) != 2 || held[0].Held != 12 || held[0].Count != 12 {
		d.t.Fatalf("%+v", held)
	}
	at := "/v1/batches/" + held[0].BatchID
	if got := string(post(200, at+"/confirm", "")); got != `{"accepted":12}`+"\n" {
		d.t.Errorf("confirmed: %s", got)
	}
	post(200, at+"/confirm", "{}")
	post(409, at+"/discard", `{"by":"R. Okafor"}`)
	at = "/v1/batches/" + held[1].BatchID
	d.send(422, ask{method: "POST", path: at + "/discard", body: `{"by":"<nobody>"}`, refused: true})
	if got := string(post(200, at+"/discard", `{"by":"R. Okafor"}`)); got != `{"discarded":12}`+"\n" {
		d.t.Errorf("discarded: %s", got)
	}
	post(409, at+"/confirm", "{}")
	for _, path := range []string{"/v1/batches/none/", "/v1/batches/019aceee-0000-7000-8000-000000000001/"} {
		want := map[bool]int{true: 400, false: 404}[strings.Contains(path, "none")]
		post(want, path+"confirm", "{}")
		post(want, path+"discard", `{"by":"R. Okafor"}`)
	}
	d.send(200, ask{method: "PUT", path: "/v1/scanners/SCN-04/mode", body: `{"scan_type":"dispense"}`})
}

// documentedStuck is an agent of which the local interface alone runs.
func documentedStuck(t *testing.T, doc *openapi3.T, got *got) {
	d := newDocumented(t, doc, got)
	d.run(d.a.server.Run)
	t.Cleanup(func() { d.a.close(false) })
	for _, path := range []string{"/v1/status", "/healthz", "/readyz"} {
		d.send(503, ask{method: "GET", path: path})
	}
	// In the place of the file of acknowledgements there is something else.
	if err := os.MkdirAll(filepath.Join(d.a.cfg.Agent.StateDir, "events.log.acks", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	at := d.a.events.Last()
	d.send(503, ask{method: "GET", path: "/v1/events?client=pms"})
	d.send(503, ask{method: "POST", path: "/v1/events/ack", body: `{"client":"pms","id":"` + at + `"}`})
}

// table reads the rows of a table of docs/API.md whose head begins with two columns: by the first, the second.
func table(t *testing.T, page, heading string) map[string]string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+heading+"\n")
	_, rest, ok2 := strings.Cut(rest, "| from | to |\n|---|---|\n")
	if !ok || !ok2 {
		t.Fatalf("no table under %q", heading)
	}
	out := map[string]string{}
	for line := range strings.Lines(rest) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			break
		}
		out[strings.TrimSpace(cells[1])] = cells[2]
	}
	return out
}

// The page for people has the moves that there are, and paths that there are.
func TestPageOfTheInterface(t *testing.T) {
	b, err := os.ReadFile("../../docs/API.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	claims := table(t, page, "Claims")
	nodes := slices.Sorted(maps.Keys(claims))
	nodes = append(slices.DeleteFunc(nodes, func(n string) bool { return !claimstate.Node(n).Valid() }), string(claimstate.ResponseDispatched))
	if len(nodes) != 8 {
		t.Errorf("the moves of %v", nodes)
	}
	words := func(cell string) []string {
		return strings.FieldsFunc(cell, func(r rune) bool { return r != '_' && (r < 'A' || r > 'Z') })
	}
	for _, from := range nodes {
		for _, to := range nodes {
			m := claimstate.Move{CorrelationID: "a", Version: 1, From: claimstate.Node(from), To: claimstate.Node(to), OpID: "b"}
			if legal := m.Validate() == nil; legal != slices.Contains(words(claims[from]), to) {
				t.Errorf("a claim from %s to %s: %v, the page says otherwise", from, to, legal)
			}
			m.RejectCode = "70"
			if legal := m.Validate() == nil; to == string(claimstate.ResponseDispatched) && legal != (from != to) {
				t.Errorf("a claim from %s to its end with a reject code: %v", from, legal)
			}
		}
	}
	cases := table(t, page, "Prior authorizations")
	for _, from := range pacase.States() {
		for _, to := range pacase.States() {
			if from.May(to) != slices.Contains(words(cases[from.String()]), to.String()) {
				t.Errorf("a case from %s to %s: %v, the page says otherwise", from, to, from.May(to))
			}
		}
	}
	doc := readDocument(t)
	for _, m := range regexp.MustCompile("(GET|PUT|POST) +(/v1/[a-z/_{}-]+)").FindAllStringSubmatch(page, -1) {
		if item := doc.Paths.Value(m[2]); item == nil || item.GetOperation(m[1]) == nil {
			t.Errorf("the page has %s %s", m[1], m[2])
		}
	}
}
