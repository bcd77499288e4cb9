package testenv

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Event is what tests read of an event, whatever its kind.
type Event struct {
	ID              string     `json:"id"`
	Kind            string     `json:"kind"`
	At              time.Time  `json:"at"`
	EventID         string     `json:"event_id"`
	ScannerID       string     `json:"scanner_id"`
	ScanType        string     `json:"scan_type"`
	Quantity        int        `json:"quantity"`
	CapturedAt      time.Time  `json:"captured_at"`
	Key             string     `json:"key"`
	Online          *bool      `json:"online"`
	Item            *Item      `json:"item"`
	RxToken         *string    `json:"rx_token"`
	DuplicateOf     string     `json:"duplicate_of"`
	FirstCapturedAt *time.Time `json:"first_captured_at"`
	Reason          string     `json:"reason"`
	Detail          string     `json:"detail"`
	Actions         []string   `json:"actions"`
	State           string     `json:"state"`
	Source          string     `json:"source"`
	RevertsAt       *time.Time `json:"reverts_at"`
	Code            string     `json:"code"`
	Active          *bool      `json:"active"`
	Redacted        bool       `json:"redacted"`
	Rx              *string    `json:"rx"`
	Refill          *string    `json:"refill"`
	Store           *string    `json:"store"`
	Text            *string    `json:"text"`
	BatchID         string     `json:"batch_id"`
	Count           int        `json:"count"`
	Repeat          bool       `json:"repeat"`
	Held            int        `json:"held"`

	Data string `json:"-"` // as sent
}

// Item is what an accepted event says of the product.
type Item struct {
	NDC11  *string `json:"ndc11"`
	GTIN   *string `json:"gtin"`
	Lot    *string `json:"lot"`
	Serial *string `json:"serial"`
	Expiry *string `json:"expiry"`
}

// Stream follows an agent's events, as an application at the counter does: when the agent goes away, it
// resumes at the next one behind the last event that it has.
type Stream struct {
	home   *Home
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	events  []Event
	lastID  string
	changed chan struct{}
	failed  error
}

// Follow begins a stream at the agent's present position. The agent must be running.
func (h *Home) Follow(t testing.TB) *Stream {
	t.Helper()
	return h.FollowFrom(t, "")
}

// FollowFrom begins a stream behind the event named by lastID.
func (h *Home) FollowFrom(t testing.TB, lastID string) *Stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &Stream{home: h, ctx: ctx, cancel: cancel, done: make(chan struct{}), lastID: lastID, changed: make(chan struct{})}
	t.Cleanup(s.Close)
	resp, err := s.connect()
	if err != nil {
		close(s.done)
		t.Fatal(err)
	}
	if s.lastID == "" {
		s.lastID = resp.Header.Get("Last-Event-ID")
	}
	go s.run(resp)
	return s
}

// Close ends the stream.
func (s *Stream) Close() {
	s.cancel()
	<-s.done
}

func (s *Stream) connect() (*http.Response, error) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "http://agent/v1/events", nil)
	if err != nil {
		return nil, err
	}
	if s.lastID != "" {
		req.Header.Set("Last-Event-ID", s.lastID)
	}
	resp, err := s.home.HTTP().Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("GET /v1/events: %s", resp.Status)
	}
	return resp, nil
}

func (s *Stream) run(resp *http.Response) {
	defer close(s.done)
	for {
		if err := s.read(resp); err != nil {
			s.fail(err)
			return
		}
		for resp = nil; resp == nil; {
			p, err := s.home.current(s.ctx)
			if err != nil || s.ctx.Err() != nil {
				return
			}
			if resp, err = s.connect(); err != nil {
				// It is about to end, or not yet known to have ended.
				timer := time.NewTimer(20 * time.Millisecond)
				select {
				case <-p.ended:
				case <-timer.C:
				case <-s.ctx.Done():
				}
				timer.Stop()
				resp = nil
			}
		}
	}
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	close(s.changed)
	s.changed = make(chan struct{})
}

// read takes events until the connection breaks off; an event that is not whole does not count.
func (s *Stream) read(resp *http.Response) error {
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	var id, kind, data string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil
		}
		line = strings.TrimSuffix(line, "\n")
		switch name, value, _ := strings.Cut(line, ":"); {
		case line == "" && data != "":
			e := Event{Data: data}
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return fmt.Errorf("cannot read event %s: %w", id, err)
			}
			if e.ID != id || e.Kind != kind {
				return fmt.Errorf("event %s of kind %s says that it is %s of kind %s", id, kind, e.ID, e.Kind)
			}
			s.mu.Lock()
			s.lastID = id
			s.events = append(s.events, e)
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
			id, kind, data = "", "", ""
		case name == "id":
			id = strings.TrimPrefix(value, " ")
		case name == "event":
			kind = strings.TrimPrefix(value, " ")
		case name == "data":
			data += strings.TrimPrefix(value, " ")
		}
	}
}

// Events returns the events so far.
func (s *Stream) Events() []Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// Len is the number of events so far: a position to search from.
func (s *Stream) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

// LastID is the id of the last event so far.
func (s *Stream) LastID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastID
}

// ErrTimeout says that an event did not come.
var ErrTimeout = errors.New("cannot see the event that should have come")

// Next waits for the first event from position from on that is wanted, and returns it with the position
// behind it.
func (s *Stream) Next(ctx context.Context, from int, wanted func(*Event) bool) (Event, int, error) {
	for i := from; ; {
		s.mu.Lock()
		changed, failed := s.changed, s.failed
		for ; i < len(s.events); i++ {
			if wanted(&s.events[i]) {
				e := s.events[i]
				s.mu.Unlock()
				return e, i + 1, nil
			}
		}
		s.mu.Unlock()
		if failed != nil {
			return Event{}, i, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Event{}, i, ErrTimeout
		}
	}
}

// Wait is Next for a test, within Patience.
func (s *Stream) Wait(t testing.TB, from int, what string, wanted func(*Event) bool) (Event, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	e, next, err := s.Next(ctx, from, wanted)
	if err != nil {
		t.Fatalf("%s: %v; since then came %s", what, err, summary(s.Events()[min(from, s.Len()):]))
	}
	return e, next
}

func summary(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "[%s %s %s%s%s] ", e.Kind, e.ScannerID, e.State, e.Reason, e.Code)
	}
	return b.String()
}
