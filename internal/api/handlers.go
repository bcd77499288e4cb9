package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"scanonce/window"
)

const (
	lastEventID    = "Last-Event-ID"
	idempotencyKey = "Idempotency-Key"
	ndjson         = "application/x-ndjson"
	problemJSON    = "application/problem+json"
)

type handler func(w http.ResponseWriter, r *http.Request) error

// methods answers one path. What has no HEAD of its own answers it as GET.
type methods map[string]handler

// table has the methods of each path of the interface. docs/openapi.yaml describes exactly these.
func (s *Server) table(metrics http.Handler) map[string]methods {
	get := func(h handler) methods { return methods{http.MethodGet: h} }
	put := func(do commandFunc) methods { return methods{http.MethodPut: s.command(do)} }
	post := func(do commandFunc) methods { return methods{http.MethodPost: s.command(do)} }
	t := map[string]methods{
		"/v1/status":                          get(s.status),
		"/v1/events":                          {http.MethodGet: s.follow, http.MethodHead: s.position},
		"/v1/events/ack":                      {http.MethodPost: s.ack},
		"/v1/scans":                           post(s.scan),
		"/v1/scanners/{id}/mode":              put(s.setMode),
		"/v1/scanners/{id}/quantity":          put(s.setQuantity),
		"/v1/scanners/{id}/same-again":        post(s.sameAgain),
		"/v1/claims/{correlation_id}":         {http.MethodGet: s.claim, http.MethodPut: s.command(s.putClaim)},
		"/v1/claims/{correlation_id}/advance": post(s.advanceClaim),
		"/v1/pa/pends":                        {http.MethodPost: s.caseCommand(s.pend)},
		"/v1/pa/cases/{case_id}":              get(s.paCase),
		"/v1/pa/cases/{case_id}/transition":   {http.MethodPost: s.caseCommand(s.transition)},
		"/v1/conflicts":                       get(s.conflicts),
		"/v1/conflicts/resolve":               post(s.resolve),
		"/v1/operations":                      get(s.pendingOperations),
		"/v1/devices":                         get(s.devices),
		"/v1/explain/{key}":                   get(s.explain),
		"/v1/spool":                           get(s.spool),
		"/v1/spool/export":                    get(s.spoolExport),
		"/v1/spool/verify":                    {http.MethodPost: s.spoolVerify},
		"/v1/spool/backup":                    {http.MethodPost: s.spoolBackup},
		"/v1/spool/requeue":                   post(s.requeue),
		"/v1/spool/discard":                   post(s.discard),
		"/v1/batches":                         get(s.batches),
		"/v1/batches/{id}/confirm":            post(s.confirmBatch),
		"/v1/batches/{id}/discard":            post(s.discardBatch),
		"/v1/audit/verify":                    {http.MethodPost: s.auditVerify},
		"/v1/reload":                          {http.MethodPost: s.reload},
		"/v1/ledger":                          get(s.ledger),
		"/v1/audit":                           get(s.audit),
		"/v1/audit/head":                      get(s.auditHead),
		"/healthz":                            get(s.probe(s.backend.Alive, "not_alive")),
		"/readyz":                             get(s.probe(s.backend.Ready, "not_ready")),
		"/":                                   get(s.page.serve),
	}
	if metrics != nil {
		t["/metrics"] = get(func(w http.ResponseWriter, r *http.Request) error { metrics.ServeHTTP(w, r); return nil })
	}
	return t
}

// Routes lists the methods and paths of the interface, "GET /v1/status", sorted. A path is as docs/openapi.yaml writes
// it; HEAD is listed where it has an answer of its own.
func (s *Server) Routes() []string { return slices.Clone(s.served) }

func (s *Server) routes(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	for path, m := range s.table(metrics) {
		for method := range m {
			s.served = append(s.served, method+" "+path)
		}
		if strings.HasSuffix(path, "/") {
			path += "{$}"
		}
		mux.Handle(path, s.path(m))
	}
	slices.Sort(s.served)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { unknownPath(w) })
	return s.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.EscapedPath(), "//") { // which the mux would answer with a page about another path
			unknownPath(w)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

func unknownPath(w http.ResponseWriter) {
	writeError(w, &Error{Status: http.StatusNotFound, Reason: "unknown_path", Detail: "cannot find this path", Hint: "see docs/openapi.yaml for the paths"})
}

func (s *Server) path(m methods) http.Handler {
	if m[http.MethodGet] != nil && m[http.MethodHead] == nil {
		m[http.MethodHead] = m[http.MethodGet]
	}
	var allow []string
	for name := range m {
		allow = append(allow, name)
	}
	slices.Sort(allow)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := m[r.Method]
		if h == nil {
			w.Header().Set("Allow", strings.Join(allow, ", "))
			writeError(w, &Error{Status: http.StatusMethodNotAllowed, Reason: "wrong_method",
				Detail: "cannot use " + r.Method + " here", Hint: "use " + strings.Join(allow, " or ")})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.MaxBody)
		if err := h(w, r); err != nil {
			writeError(w, s.problem(r, err))
		}
	})
}

// problem is what to answer for an error; one that is not meant for users goes to the log.
func (s *Server) problem(r *http.Request, err error) *Error {
	var e *Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &e) && e.Status >= 400 && e.Status <= 599:
		return e
	case errors.As(err, &tooLarge):
		return &Error{Status: http.StatusRequestEntityTooLarge, Reason: "body_too_large",
			Detail: fmt.Sprintf("cannot read a request of more than %d bytes", tooLarge.Limit), Hint: "send less at a time"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Status: http.StatusServiceUnavailable, Reason: "interrupted", Detail: "cannot finish this request now", Hint: "ask again"}
	}
	s.log.Error("cannot answer a request", "method", r.Method, "route", r.Pattern, "error", err)
	return &Error{Status: http.StatusInternalServerError, Reason: "internal", Detail: "cannot answer: the agent met an error of its own", Hint: "look into the agent's log"}
}

// problemDetails is RFC 9457's object, with more members.
type problemDetails struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	Reason string `json:"reason"`

	Result  string `json:"result,omitempty"`
	Current any    `json:"current,omitempty"`
}

func problemBody(e *Error) []byte {
	b, err := json.Marshal(problemDetails{"about:blank", http.StatusText(e.Status), e.Status, e.Detail, e.Hint, e.Reason, e.Result, e.Current})
	if err != nil {
		panic("problem details: " + err.Error()) // strings, numbers, and what can be an answer as well
	}
	return append(b, '\n')
}

func writeError(w http.ResponseWriter, e *Error) {
	w.Header().Set("Content-Type", problemJSON)
	w.WriteHeader(e.Status)
	w.Write(problemBody(e))
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
	return nil
}

func badRequest(reason, detail, hint string) *Error {
	return &Error{Status: http.StatusBadRequest, Reason: reason, Detail: detail, Hint: hint}
}

// --- questions

func (s *Server) status(w http.ResponseWriter, r *http.Request) error {
	st, err := s.backend.Status(r.Context())
	if err != nil {
		return err
	}
	if st.Scanners == nil {
		st.Scanners = []ScannerStatus{}
	}
	if st.Alarms == nil {
		st.Alarms = []Alarm{}
	}
	return writeJSON(w, http.StatusOK, st)
}

func (s *Server) probe(ask func() error, reason string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := ask(); err != nil {
			return &Error{Status: http.StatusServiceUnavailable, Reason: reason, Detail: err.Error(), Hint: "see scanonce status and the agent's log"}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, "ok\n")
		return nil
	}
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) error {
	x, err := s.backend.Explain(r.Context(), r.PathValue("key"))
	if err != nil {
		return err
	}
	if x.Audit == nil {
		x.Audit = []AuditEntry{}
	}
	return writeJSON(w, http.StatusOK, x)
}

func (s *Server) spool(w http.ResponseWriter, r *http.Request) error {
	limit := 0
	if q := r.URL.Query().Get("limit"); q != "" {
		n, err := strconv.Atoi(q)
		if err != nil || n < 1 {
			return badRequest("bad_query", fmt.Sprintf("cannot use limit %q", q), "write a whole number above 0")
		}
		limit = n
	}
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		return s.backend.Spool(ctx, limit, func(e SpoolEntry) error { return enc.Encode(e) })
	})
}

func (s *Server) spoolExport(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, ndjson, s.backend.SpoolExport)
}

// noFields demands an empty body, or an object without fields.
func noFields(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	return decode(body, new(struct{}))
}

func (s *Server) spoolVerify(w http.ResponseWriter, r *http.Request) error {
	if err := noFields(r); err != nil {
		return err
	}
	return s.stream(w, r, "application/json", func(ctx context.Context, w io.Writer) error {
		report, err := s.backend.SpoolVerify(ctx)
		if err != nil {
			return err
		}
		if report.Damaged == nil {
			report.Damaged = []SpoolDamage{}
		}
		return json.NewEncoder(w).Encode(report)
	})
}

func (s *Server) spoolBackup(w http.ResponseWriter, r *http.Request) error {
	if err := noFields(r); err != nil {
		return err
	}
	return s.stream(w, r, "application/x-tar", s.backend.SpoolBackup)
}

func (s *Server) ledger(w http.ResponseWriter, r *http.Request) error {
	since, until, err := interval(r)
	if err != nil {
		return err
	}
	format, contentType := JSONL, ndjson
	switch f := r.URL.Query().Get("format"); f {
	case "", string(JSONL):
	case string(CSV):
		format, contentType = CSV, "text/csv; charset=utf-8"
	default:
		return badRequest("bad_query", fmt.Sprintf("cannot use format %q", f), "write csv or jsonl")
	}
	return s.stream(w, r, contentType, func(ctx context.Context, w io.Writer) error {
		return s.backend.LedgerExport(ctx, format, since, until, w)
	})
}

func (s *Server) audit(w http.ResponseWriter, r *http.Request) error {
	since, until, err := interval(r)
	if err != nil {
		return err
	}
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		return s.backend.Audit(ctx, since, until, func(i AuditItem) error { return enc.Encode(i) })
	})
}

func (s *Server) auditHead(w http.ResponseWriter, r *http.Request) error {
	h, err := s.backend.AuditHead(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, h)
}

func interval(r *http.Request) (since, until *window.UTC, err error) {
	read := func(name string) (*window.UTC, error) {
		q := r.URL.Query().Get(name)
		if q == "" {
			return nil, nil
		}
		var t window.UTC
		if t.UnmarshalText([]byte(q)) != nil {
			return nil, badRequest("bad_query", fmt.Sprintf("cannot use %s %q", name, q), "write RFC 3339, for example 2026-11-29T08:15:00.000Z")
		}
		return &t, nil
	}
	if since, err = read("since"); err != nil {
		return nil, nil, err
	}
	until, err = read("until")
	return since, until, err
}

// stream answers with what write writes, however long it takes, as long as the client keeps reading. An
// error before the first 32 KiB is a proper answer; later the connection is broken off, so that the client
// cannot take a part for the whole.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, contentType string, write func(context.Context, io.Writer) error) error {
	w.Header().Set("Content-Type", contentType)
	rw := s.rolling(w)
	b := bufio.NewWriterSize(rw, 32<<10)
	err := write(r.Context(), b)
	if err == nil {
		err = b.Flush()
	}
	if err != nil && rw.wrote {
		if r.Context().Err() == nil && rw.err == nil {
			s.log.Error("cannot finish an export", "route", r.Pattern, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return err
}

// rollingWriter gives each write a deadline of its own instead of one for the whole answer.
type rollingWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	wall  func() time.Time
	limit time.Duration
	wrote bool
	err   error
}

func (s *Server) rolling(w http.ResponseWriter) *rollingWriter {
	return &rollingWriter{w: w, rc: http.NewResponseController(w), wall: s.cfg.OS.Wall, limit: s.limits.write}
}

func (w *rollingWriter) begin() {
	w.wrote = true
	_ = w.rc.SetWriteDeadline(w.wall().Add(w.limit))
}

func (w *rollingWriter) Write(b []byte) (int, error) {
	w.begin()
	n, err := w.w.Write(b)
	if err != nil {
		w.err = err
	}
	return n, err
}

func (w *rollingWriter) flush() error {
	w.begin()
	return w.rc.Flush()
}

// --- events

func (s *Server) position(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(lastEventID, s.events.Last())
	w.WriteHeader(http.StatusOK)
	return nil
}

// follow streams events as in the HTML standard, section 9.2 "Server-sent events". The response header
// Last-Event-ID names the position where the stream begins. A client that names itself and no position goes on behind
// the last event that it has acknowledged.
func (s *Server) follow(w http.ResponseWriter, r *http.Request) error {
	defer s.open.Add(-1)
	if s.open.Add(1) > maxStreams {
		return &Error{Status: http.StatusServiceUnavailable, Reason: "too_many_streams", Detail: fmt.Sprintf("cannot open another event stream: %d are open", maxStreams),
			Hint: "close streams that nobody reads, and use one for each application"}
	}
	q := r.URL.Query()
	last := r.Header.Get(lastEventID)
	if last == "" {
		last = q.Get("since")
	}
	var kinds []string
	for _, k := range q["kind"] {
		for k := range strings.SplitSeq(k, ",") {
			if k = strings.TrimSpace(k); k != "" {
				kinds = append(kinds, k)
			}
		}
	}
	if last == "" && q.Has("client") {
		var err error
		if last, err = s.events.Acked(q.Get("client")); err != nil {
			return err
		}
	}
	if last == "" {
		last = s.events.Last() // before the client learns that it is connected
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set(lastEventID, last)
	w.Header().Set("X-Accel-Buffering", "no")
	out := &sse{w: s.rolling(w)}
	if err := out.write(func(b []byte) []byte { return append(b, ":\n\n"...) }); err != nil {
		return nil
	}
	var beats sync.WaitGroup
	defer beats.Wait()
	defer cancel()
	beats.Go(func() { out.beat(ctx, s.limits.heartbeat, cancel) })
	err := s.events.Follow(ctx, last, kinds, func(e Event) error {
		return out.write(func(b []byte) []byte { return appendEvent(b, e) })
	})
	if err != nil && ctx.Err() == nil && out.failed() == nil {
		s.log.Error("cannot go on with an event stream", "error", err)
	}
	return nil
}

// sse writes to one client, from the follower and from the heartbeat.
type sse struct {
	mu  sync.Mutex
	w   *rollingWriter
	buf []byte
}

func (o *sse) write(fill func([]byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w.err != nil {
		return o.w.err
	}
	o.buf = fill(o.buf[:0])
	if _, err := o.w.Write(o.buf); err != nil {
		return err
	}
	err := o.w.flush()
	if err != nil {
		o.w.err = err
	}
	return err
}

func (o *sse) failed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.w.err
}

func (o *sse) beat(ctx context.Context, every time.Duration, stop func()) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if o.write(func(b []byte) []byte { return append(b, ":\n\n"...) }) != nil {
				stop()
				return
			}
		}
	}
}

func appendEvent(b []byte, e Event) []byte {
	b = append(append(append(b, "id: "...), e.ID...), '\n')
	b = append(append(append(b, "event: "...), e.Kind...), '\n')
	for line := range bytes.SplitSeq(e.Data, []byte{'\n'}) {
		b = append(append(append(b, "data: "...), line...), '\n')
	}
	return append(b, '\n')
}

// --- commands

// commandFunc carries out a request and returns status and body of the answer.
type commandFunc func(ctx context.Context, r *http.Request, body []byte) (int, any, error)

// command reads the whole body, and answers a repeated Idempotency-Key with the first answer.
func (s *Server) command(do commandFunc) handler { return s.keyed(false, do) }

// caseCommand is a command about a case: what was answered before is not what stands, so each attempt is carried out
// anew. The store knows an operation again.
func (s *Server) caseCommand(do commandFunc) handler { return s.keyed(true, do) }

func (s *Server) keyed(anew bool, do commandFunc) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := readBody(r)
		if err != nil {
			return err
		}
		run := func() answer {
			// A command that has begun is not broken off by a client that leaves.
			status, v, err := do(context.WithoutCancel(r.Context()), r, body)
			if err == nil {
				var b []byte
				if b, err = json.Marshal(v); err == nil {
					return answer{status, "application/json", append(b, '\n')}
				}
			}
			e := s.problem(r, err)
			return answer{e.Status, problemJSON, problemBody(e)}
		}
		var a answer
		if key := r.Header.Get(idempotencyKey); key == "" {
			a = run()
		} else if a, err = s.once.do(r.Context(), key, fingerprint(r, body), anew, run); err != nil {
			return err
		}
		w.Header().Set("Content-Type", a.contentType)
		w.WriteHeader(a.status)
		w.Write(a.body)
		return nil
	}
}

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		err = badRequest("bad_body", "cannot read the whole request", "send it again")
	}
	return body, err
}

// decode reads one JSON object with no unknown field and nothing after it.
func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		detail := strings.TrimPrefix(err.Error(), "json: ")
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) { // its text names types of this program, and the number itself
			kind, _, _ := strings.Cut(wrong.Value, " ")
			if detail = "it is no object but of type " + kind; wrong.Field != "" {
				detail = fmt.Sprintf("the field %s cannot be of type %s, or not with this value", wrong.Field, kind)
			}
		}
		return badRequest("bad_json", "cannot read the request: "+detail, "send one JSON object with the fields that docs/openapi.yaml names")
	}
	if _, err := d.Token(); err != io.EOF {
		return badRequest("bad_json", "cannot read the request: something follows the JSON object", "send one JSON object")
	}
	return nil
}

func (s *Server) setMode(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q struct {
		ScanType *string `json:"scan_type"`
	}
	if err := decode(body, &q); err != nil {
		return 0, nil, err
	}
	const types = "write receive, dispense, waste, return, adjust, transfer or count"
	if q.ScanType == nil {
		return 0, nil, badRequest("field_missing", "cannot set the mode without scan_type", types)
	}
	t, err := window.ParseScanType(*q.ScanType)
	if err != nil {
		return 0, nil, &Error{Status: http.StatusUnprocessableEntity, Reason: "bad_scan_type", Detail: fmt.Sprintf("cannot use scan type %q", *q.ScanType), Hint: types}
	}
	m, err := s.backend.SetMode(ctx, r.PathValue("id"), t)
	return http.StatusOK, m, err
}

func (s *Server) setQuantity(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q struct {
		Quantity json.RawMessage `json:"quantity"`
	}
	if err := decode(body, &q); err != nil {
		return 0, nil, err
	}
	if len(q.Quantity) == 0 || !strings.ContainsRune("-0123456789", rune(q.Quantity[0])) {
		return 0, nil, badRequest("field_missing", "cannot set the quantity without a number in quantity", "write a whole number from 1 to 9999")
	}
	n, err := quantityOf(q.Quantity)
	if err != nil {
		return 0, nil, err
	}
	set, err := s.backend.SetQuantity(ctx, r.PathValue("id"), n)
	return http.StatusOK, set, err
}

func (s *Server) sameAgain(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q struct {
		EventID *string `json:"event_id"`
	}
	if len(bytes.TrimSpace(body)) > 0 {
		if err := decode(body, &q); err != nil {
			return 0, nil, err
		}
	}
	id := ""
	if q.EventID != nil {
		if id = *q.EventID; id == "" {
			return 0, nil, badRequest("field_missing", "cannot use an empty event_id", "write null for the last duplicate told")
		}
	}
	a, err := s.backend.SameAgain(ctx, r.PathValue("id"), id)
	if err != nil {
		return 0, nil, err
	}
	if a.Outcome == "accepted" {
		return http.StatusCreated, a, nil
	}
	return http.StatusOK, a, nil
}

func (s *Server) requeue(ctx context.Context, _ *http.Request, body []byte) (int, any, error) {
	var q struct {
		EventIDs []string `json:"event_ids"`
		All      bool     `json:"all"`
	}
	if err := decode(body, &q); err != nil {
		return 0, nil, err
	}
	if q.All == (len(q.EventIDs) > 0) {
		return 0, nil, badRequest("field_missing", "cannot tell which records to requeue", "write event_ids, or all as true, not both")
	}
	n, err := s.backend.Requeue(ctx, q.EventIDs, q.All)
	return http.StatusOK, Requeued{n}, err
}
