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
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"scanonce/window"
)

// Unreachable says that no agent answers on the socket.
type Unreachable struct {
	Socket string
	Err    error
}

func (u *Unreachable) Error() string {
	return fmt.Sprintf("cannot reach the agent at %s: %v", u.Socket, u.Err)
}

func (u *Unreachable) Unwrap() error { return u.Err }

// Hint says what to do.
func (u *Unreachable) Hint() string {
	switch {
	case errors.Is(u.Err, fs.ErrPermission):
		return "run as root or as a member of the socket's group"
	case errors.Is(u.Err, fs.ErrNotExist), errors.Is(u.Err, syscall.ECONNREFUSED):
		return "start the agent with scanonce run, or name its socket with --socket"
	}
	return "check that the agent runs and is not stopped or overloaded"
}

// Client calls the agent over its unix socket. Errors are *Unreachable (no agent), *Error (its answer) or
// plain (an answer that breaks off). It is a Reader.
type Client struct {
	socket    string
	http      *http.Client
	transport *http.Transport
}

var _ Reader = (*Client)(nil)

const answerTimeout = time.Minute // until the first byte of an answer

// NewClient makes a client; nothing is dialled before the first call.
func NewClient(socket string) *Client {
	t := &http.Transport{ResponseHeaderTimeout: answerTimeout, DisableCompression: true, MaxIdleConns: 4, IdleConnTimeout: time.Minute}
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, transport: t, http: &http.Client{Transport: t}}
}

// Close drops idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

func (c *Client) send(ctx context.Context, method, path string, query url.Values, header http.Header, body any) (*http.Response, error) {
	u := "http://localhost" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("cannot build the request: %w", err)
		}
		rd = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, u, rd)
	if err != nil {
		return nil, fmt.Errorf("cannot build the request: %w", err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, &Unreachable{c.socket, err}
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

func readProblem(resp *http.Response) error {
	e := &Error{Status: resp.StatusCode, Reason: "unknown", Detail: "cannot do this: the agent answered " + resp.Status, Hint: "check that agent and command are of one version"}
	var p struct {
		problemDetails
		Current json.RawMessage `json:"current"`
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && json.Unmarshal(b, &p) == nil && p.Detail != "" {
		e.Reason, e.Detail, e.Hint, e.Result = p.Reason, p.Detail, p.Hint, p.Result
		if p.Current != nil {
			e.Current = p.Current
		}
	}
	return e
}

func (c *Client) call(ctx context.Context, method, path string, body, into any) error {
	resp, err := c.send(ctx, method, path, nil, nil, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return nil
}

// Status asks how the agent does.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Explain takes a full key or at least 8 hexadecimal digits of one.
func (c *Client) Explain(ctx context.Context, key string) (Explanation, error) {
	var x Explanation
	err := c.call(ctx, http.MethodGet, "/v1/explain/"+url.PathEscape(key), nil, &x)
	return x, err
}

func scannerPath(scanner, what string) string {
	return "/v1/scanners/" + url.PathEscape(scanner) + "/" + what
}

// SetMode changes the scan type of a scanner.
func (c *Client) SetMode(ctx context.Context, scanner string, t window.ScanType) (ModeSet, error) {
	var m ModeSet
	err := c.call(ctx, http.MethodPut, scannerPath(scanner, "mode"), map[string]any{"scan_type": t}, &m)
	return m, err
}

// SetQuantity sets the quantity of a scanner's next scan.
func (c *Client) SetQuantity(ctx context.Context, scanner string, quantity int) (QuantitySet, error) {
	var q QuantitySet
	err := c.call(ctx, http.MethodPut, scannerPath(scanner, "quantity"), map[string]any{"quantity": quantity}, &q)
	return q, err
}

// SameAgain counts the told duplicate eventID as a movement of its own; "" is the scanner's last one.
func (c *Client) SameAgain(ctx context.Context, scanner, eventID string) (SameAgain, error) {
	var id *string
	if eventID != "" {
		id = &eventID
	}
	var a SameAgain
	err := c.call(ctx, http.MethodPost, scannerPath(scanner, "same-again"), map[string]any{"event_id": id}, &a)
	return a, err
}

// requeueChunk is how many event ids one request takes: their text stays well below the limit of a body.
const requeueChunk = 1000

// Requeue tries quarantined records again, those of the named events with their duplicates, or all, and
// returns how many there were.
func (c *Client) Requeue(ctx context.Context, events []string, all bool) (int, error) {
	var r Requeued
	if all {
		err := c.call(ctx, http.MethodPost, "/v1/spool/requeue", map[string]any{"all": true}, &r)
		return r.Requeued, err
	}
	n := 0
	for part := range slices.Chunk(events, requeueChunk) {
		if err := c.call(ctx, http.MethodPost, "/v1/spool/requeue", map[string]any{"event_ids": part}, &r); err != nil {
			return n, err
		}
		n += r.Requeued
	}
	return n, nil
}

// Ready is nil once the agent's spool is open and its pipeline runs.
func (c *Client) Ready(ctx context.Context) error { return c.probe(ctx, "/readyz") }

// Alive is nil while the agent's pipeline turns.
func (c *Client) Alive(ctx context.Context) error { return c.probe(ctx, "/healthz") }

func (c *Client) probe(ctx context.Context, path string) error {
	resp, err := c.send(ctx, http.MethodGet, path, nil, nil, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Metrics writes the agent's metrics in the Prometheus text format.
func (c *Client) Metrics(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, "/metrics", nil, w)
}

// Spool yields the records that wait, at most limit; 0 is all.
func (c *Client) Spool(ctx context.Context, limit int, yield func(SpoolEntry) error) error {
	q := url.Values{}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return lines(ctx, c, "/v1/spool", q, yield)
}

// SpoolExport writes every unsettled record as a JSON line.
func (c *Client) SpoolExport(ctx context.Context, w io.Writer) error {
	return c.copy(ctx, "/v1/spool/export", nil, w)
}

// SpoolVerify reads every record of the spool.
func (c *Client) SpoolVerify(ctx context.Context) (SpoolReport, error) {
	var r SpoolReport
	err := c.call(ctx, http.MethodPost, "/v1/spool/verify", nil, &r)
	return r, err
}

// SpoolBackup writes a consistent copy of the spool, a tar file.
func (c *Client) SpoolBackup(ctx context.Context, w io.Writer) error {
	resp, err := c.send(ctx, http.MethodPost, "/v1/spool/backup", nil, nil, nil)
	return copyBody(resp, err, w)
}

// LedgerExport writes the rows captured in [since, until); nil is no limit.
func (c *Client) LedgerExport(ctx context.Context, format Format, since, until *window.UTC, w io.Writer) error {
	q := intervalQuery(since, until)
	q.Set("format", string(format))
	return c.copy(ctx, "/v1/ledger", q, w)
}

// AuditHead returns the end of the agent's own chain.
func (c *Client) AuditHead(ctx context.Context) (AuditHead, error) {
	var h AuditHead
	err := c.call(ctx, http.MethodGet, "/v1/audit/head", nil, &h)
	return h, err
}

// Audit yields the audit trail; see Reader.
func (c *Client) Audit(ctx context.Context, since, until *window.UTC, yield func(AuditItem) error) error {
	return lines(ctx, c, "/v1/audit", intervalQuery(since, until), yield)
}

func intervalQuery(since, until *window.UTC) url.Values {
	q := url.Values{}
	if since != nil {
		q.Set("since", since.String())
	}
	if until != nil {
		q.Set("until", until.String())
	}
	return q
}

func (c *Client) copy(ctx context.Context, path string, q url.Values, w io.Writer) error {
	resp, err := c.send(ctx, http.MethodGet, path, q, nil, nil)
	return copyBody(resp, err, w)
}

func copyBody(resp *http.Response, err error, w io.Writer) error {
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("cannot read the agent's whole answer: %w", err)
	}
	return nil
}

func lines[T any](ctx context.Context, c *Client, path string, q url.Values, yield func(T) error) error {
	resp, err := c.send(ctx, http.MethodGet, path, q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	for {
		var v T
		if err := d.Decode(&v); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read the agent's whole answer: %w", err)
		}
		if err := yield(v); err != nil {
			return err
		}
	}
}

// Position is where the event stream stands now: following from it yields exactly what comes later.
func (c *Client) Position(ctx context.Context) (string, error) {
	resp, err := c.send(ctx, http.MethodHead, "/v1/events", nil, nil, nil)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	return resp.Header.Get(lastEventID), nil
}

// Follow yields the events after lastID ("" is: from now on), and of kind gap where some are missing. Once
// it was connected it resumes by itself, also when the agent starts anew. It returns nil when ctx ends, the
// error of yield, the error of the first try if that fails, or *Error if the agent refuses
// later.
func (c *Client) Follow(ctx context.Context, lastID string, kinds []string, yield func(Event) error) error {
	q := url.Values{}
	if len(kinds) > 0 {
		q["kind"] = kinds
	}
	var stop *yieldError
	wait := resumeMin
	for first := true; ; first = false {
		h := http.Header{}
		if lastID != "" {
			h.Set(lastEventID, lastID)
		}
		resp, err := c.send(ctx, http.MethodGet, "/v1/events", q, h, nil)
		if err != nil && first && ctx.Err() == nil {
			return err
		}
		if err == nil {
			wait = resumeMin
			if lastID == "" {
				lastID = resp.Header.Get(lastEventID)
			}
			err = readEvents(resp.Body, &lastID, yield)
			resp.Body.Close()
		}
		var refused *Error
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &stop):
			return stop.err
		case errors.As(err, &refused) && refused.Status < http.StatusInternalServerError:
			return err
		}
		t := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		wait = min(2*wait, resumeMax)
	}
}

const (
	resumeMin = 100 * time.Millisecond
	resumeMax = 5 * time.Second
)

// yieldError tells the consumer's error from a broken connection.
type yieldError struct{ err error }

func (e *yieldError) Error() string { return e.err.Error() }

// readEvents reads a stream until it breaks off; an event that is not whole is left to the resume.
func readEvents(r io.Reader, lastID *string, yield func(Event) error) error {
	br := bufio.NewReader(r)
	var e Event
	data := false
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			if data {
				if err := yield(e); err != nil {
					return &yieldError{err}
				}
				*lastID = e.ID
			}
			e, data = Event{}, false
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			e.ID = value
		case "event":
			e.Kind = value
		case "data":
			if data {
				e.Data = append(e.Data, '\n')
			}
			e.Data = append(e.Data, value...)
			data = true
		}
	}
}
