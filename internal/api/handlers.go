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

// methods answers one path.
type methods map[string]handler

func (s *Server) routes(metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	get := func(path string, h handler) { mux.Handle(path, s.path(methods{http.MethodGet: h})) }
	get("/v1/status", s.status)
	mux.Handle("/v1/events", s.path(methods{http.MethodGet: s.follow, http.MethodHead: s.position}))
	mux.Handle("/v1/scanners/{id}/mode", s.path(methods{http.MethodPut: s.command(s.setMode)}))
	mux.Handle("/v1/scanners/{id}/quantity", s.path(methods{http.MethodPut: s.command(s.setQuantity)}))
	mux.Handle("/v1/scanners/{id}/same-again", s.path(methods{http.MethodPost: s.command(s.sameAgain)}))
	get("/v1/explain/{key}", s.explain)
	get("/v1/spool", s.spool)
	get("/v1/spool/export", s.spoolExport)
	mux.Handle("/v1/spool/requeue", s.path(methods{http.MethodPost: s.command(s.requeue)}))
	get("/v1/ledger", s.ledger)
	get("/v1/audit", s.audit)
	get("/healthz", s.probe(s.backend.Alive, "not_alive"))
	get("/readyz", s.probe(s.backend.Ready, "not_ready"))
	if metrics != nil {
		get("/metrics", func(w http.ResponseWriter, r *http.Request) error { metrics.ServeHTTP(w, r); return nil })
	}
	get("/{$}", s.page.serve)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &Error{Status: http.StatusNotFound, Reason: "unknown_path", Detail: "cannot find this path", Hint: "see docs/openapi.yaml for the paths"})
	})
	return s.guard(mux)
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

// problemDetails is RFC 9457's object, with the members hint and reason added.
type problemDetails struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	Reason string `json:"reason"`
}

func problemBody(e *Error) []byte {
	b, err := json.Marshal(problemDetails{"about:blank", http.StatusText(e.Status), e.Status, e.Detail, e.Hint, e.Reason})
	if err != nil {
		panic("problem details: " + err.Error()) // strings and a number
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
		return s.backend.Audit(ctx, since, until, func(e AuditEntry) error { return enc.Encode(e) })
	})
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
// Last-Event-ID names the position where the stream begins.
func (s *Server) follow(w http.ResponseWriter, r *http.Request) error {
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
	if last == "" {
		last = s.events.Last() // before the client learns that it is connected
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.streams, cancel)()
	s.open.Add(1)
	defer s.open.Add(-1)

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

// command reads the whole body, and answers a repeated Idempotency-Key with the first answer.
func (s *Server) command(do func(ctx context.Context, r *http.Request, body []byte) (int, any, error)) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			var tooLarge *http.MaxBytesError
			if errors.As(err, &tooLarge) {
				return err
			}
			return badRequest("bad_body", "cannot read the whole request", "send it again")
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
		} else if a, err = s.once.do(r.Context(), key, fingerprint(r, body), run); err != nil {
			return err
		}
		w.Header().Set("Content-Type", a.contentType)
		w.WriteHeader(a.status)
		w.Write(a.body)
		return nil
	}
}

// decode reads one JSON object with no unknown field and nothing after it.
func decode(body []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return badRequest("bad_json", "cannot read the request: "+strings.TrimPrefix(err.Error(), "json: "), "send one JSON object with the fields that docs/openapi.yaml names")
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
	// 30, 30.0 and 3e1 are one number in JSON.
	n, err := strconv.ParseFloat(string(q.Quantity), 64)
	if err != nil || n < 1 || n > 9999 || n != float64(int(n)) {
		return 0, nil, &Error{Status: http.StatusUnprocessableEntity, Reason: "bad_quantity", Detail: "cannot use this quantity", Hint: "write a whole number from 1 to 9999"}
	}
	set, err := s.backend.SetQuantity(ctx, r.PathValue("id"), int(n))
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
