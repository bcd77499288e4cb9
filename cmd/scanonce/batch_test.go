package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// memory is what a scanner has stored: n labels.
func memory(n int, lot string) (labels []string) {
	for i := range n {
		labels = append(labels, matrix(bottleGTIN, fmt.Sprintf("M%03d", i), lot))
	}
	return labels
}

// dump sends a scanner's memory in one go, and returns the answers.
func (g *gun) dump(labels []string) (answers []testenv.Event) {
	g.t.Helper()
	if err := g.Type(strings.Join(labels, "\r")); err != nil {
		g.t.Fatal(err)
	}
	for range labels {
		answers = append(answers, g.answer())
	}
	return answers
}

// batch waits for the event that tells of a stored batch.
func (g *gun) batch(from int) (e testenv.Event, next int) {
	g.t.Helper()
	return g.stream.Wait(g.t, from, "a stored batch", func(e *testenv.Event) bool { return e.Kind == "batch" && e.ScannerID == g.ID })
}

// decide says what a person makes of a batch.
func decide(t testing.TB, h *testenv.Home, id, what string, body any) (int, string) {
	t.Helper()
	code, b := h.Ask(t, http.MethodPost, "/v1/batches/"+id+"/"+what, body)
	return code, strings.TrimSpace(string(b))
}

// A scanner sends what it has stored a second time: nothing of it is counted until a person says so, over kills, and
// then all of it once.
func TestStoredBatchSentTwice(t *testing.T) {
	t.Parallel()
	h, p, _, g := bench(t, testenv.Setup{})
	labels := memory(50, "A1")
	for _, e := range g.dump(labels) {
		if e.Kind != "accepted" {
			t.Fatalf("the first copy: %s", e.Data)
		}
	}
	first, at := g.batch(0)
	if first.Count != 50 || first.Repeat || first.Held != 0 {
		t.Errorf("the first copy is told as %s", first.Data)
	}
	if rows, _ := quiet(t, h); len(rows) != 50 {
		t.Fatalf("%d rows of the first copy", len(rows))
	}
	if code, body := decide(t, h, first.BatchID, "confirm", map[string]any{}); code != http.StatusNotFound {
		t.Errorf("there is nothing to confirm: %d %s", code, body)
	}

	pace(t, 3500*time.Millisecond) // out of the window
	for _, e := range g.dump(labels) {
		if e.Kind != "accepted" {
			t.Fatalf("the second copy: %s", e.Data)
		}
	}
	second, at := g.batch(at)
	if second.Count != 50 || !second.Repeat || second.Held != 50 {
		t.Errorf("the second copy is told as %s", second.Data)
	}
	waits := func() {
		t.Helper()
		s := h.Await(t, "the second copy is held", func(s *testenv.Status) bool { return s.Counts.Held == 50 && s.Counts.Pending == 0 })
		a := s.Alarm("batch_held")
		if a == nil || !strings.Contains(a.Detail, second.BatchID) || !strings.Contains(a.Hint, "scanonce batches") || s.Balance() != "" {
			t.Errorf("status: %+v, alarm %+v", s.Counts, a)
		}
		if r := h.Call(t, "status"); r.Code != 6 {
			t.Errorf("status: exit code %d", r.Code)
		}
		if n := len(h.Ledger(t)); n != 50 {
			t.Errorf("%d rows", n)
		}
		for _, w := range h.Spool(t) {
			if w.State != "held" {
				t.Errorf("the spool lists %+v", w)
			}
		}
	}
	waits()
	p.Kill()
	p = h.Start(t)
	waits()
	p.Stop(t)
	h.Start(t)
	waits()
	g.reading()

	if r := h.Call(t, "batches"); !strings.Contains(r.Stdout, second.BatchID) || r.Code != 0 {
		t.Errorf("batches: %+v", r)
	}
	for range 2 { // the answer to the first may be lost
		if code, body := decide(t, h, second.BatchID, "confirm", map[string]any{}); code != http.StatusOK || body != `{"accepted":50}` {
			t.Errorf("confirm: %d %s", code, body)
		}
	}
	if code, body := decide(t, h, second.BatchID, "discard", map[string]string{"by": "R. Okafor"}); code != http.StatusConflict {
		t.Errorf("discard after it: %d %s", code, body)
	}
	rows, lines := quiet(t, h)
	s := h.Status(t)
	if len(rows) != 100 || len(linesOf(lines, "held")) != 50 || s.Alarm("batch_held") != nil {
		t.Errorf("%d rows, %d lines held", len(rows), len(linesOf(lines, "held")))
	}

	pace(t, 3500*time.Millisecond)
	more := append(slices.Clone(labels), memory(3, "NEW")...) // three more were stored since
	for _, e := range g.dump(more) {
		if e.Kind != "accepted" {
			t.Fatalf("the third copy: %s", e.Data)
		}
	}
	third, _ := g.batch(at)
	if third.Count != 53 || !third.Repeat || third.Held != 50 {
		t.Errorf("the third copy is told as %s", third.Data)
	}
	if code, body := decide(t, h, third.BatchID, "discard", map[string]string{"by": "<b>"}); code != http.StatusUnprocessableEntity {
		t.Errorf("no name: %d %s", code, body)
	}
	if code, body := decide(t, h, third.BatchID, "discard", map[string]string{"by": "R. Okafor"}); code != http.StatusOK || body != `{"discarded":50}` {
		t.Errorf("discard: %d %s", code, body)
	}
	s = h.Await(t, "the end of it", func(s *testenv.Status) bool { return s.Counts.Pending == 0 })
	if c := s.Counts; c.Committed != 103 || c.Discarded != 50 || c.Held != 0 || s.Alarm("batch_held") != nil {
		t.Errorf("%+v", c)
	}
	verified(t, h)
	named := 0
	for _, l := range h.Audit(t) {
		if l.Outcome == "discarded" && deref(l.Reason) == "by R. Okafor" && l.Ref == nil {
			named++
		}
	}
	if named != 50 {
		t.Errorf("%d lines name who has discarded", named)
	}
	if r := h.Call(t, "batches"); r.Stdout != "" || r.Code != 0 {
		t.Errorf("batches: %+v", r)
	}
}

// A kill in the middle of the second copy does not let a part of it through: what was sent before it and what the
// scanner goes on with afterwards are one run.
func TestKilledWithinARepeatedBatch(t *testing.T) {
	t.Parallel()
	for _, cut := range []int{4, 30, 45} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			t.Parallel()
			for try := 1; ; try++ {
				h, p, _, g := bench(t, testenv.Setup{})
				labels := memory(50, "A1")
				g.dump(labels)
				_, at := g.batch(0)
				quiet(t, h)
				pace(t, 3500*time.Millisecond)
				g.dump(labels[:cut])
				killed := time.Now()
				p.Kill()
				p = h.Start(t)
				g.reading()
				g.dump(labels[cut:])
				if took := time.Since(killed); took > 8*time.Second && try < 3 { // the scanner would have given up
					t.Logf("the machine took %v for the restart: once more", took)
					p.Stop(t)
					continue
				}
				e, _ := g.batch(at)
				if !e.Repeat || e.Held != 50 || e.Count != 50 {
					t.Errorf("it is told as %s", e.Data)
				}
				s := h.Await(t, "the second copy is held", func(s *testenv.Status) bool { return s.Counts.Held == 50 && s.Counts.Pending == 0 })
				if s.Counts.Committed != 50 || s.Balance() != "" {
					t.Errorf("%+v", s.Counts)
				}
				return
			}
		})
	}
}

// What a person does quickly is no batch, and what looks like one costs nothing but the flag.
func TestWhatIsNoStoredBatch(t *testing.T) {
	t.Parallel()
	h, _, st, g := bench(t, testenv.Setup{Scanner: "scan_type = \"receive\"\n"})
	for range 12 { // a tote of equal bottles, twice
		g.expect("accepted", bottle)
		pace(t, 700*time.Millisecond)
	}
	for range 12 {
		g.expect("accepted", bottle)
		pace(t, 450*time.Millisecond)
	}
	for _, e := range st.Events() {
		if e.Kind == "batch" {
			t.Errorf("told as %s", e.Data)
		}
	}
	// A presentation scanner reads both codes of a package over and over. Twice the same, it is nothing to confirm.
	stutter := slices.Repeat([]string{bottle, matrix(bottleGTIN, "", "L")}, 8)
	at := 0
	for range 2 {
		g.dump(stutter)
		var e testenv.Event
		if e, at = g.batch(at); e.Repeat || e.Held != 0 || e.Count != 16 {
			t.Errorf("told as %s", e.Data)
		}
		pace(t, 500*time.Millisecond)
	}
	s := h.Await(t, "nothing is pending", func(s *testenv.Status) bool { return s.Counts.Pending == 0 })
	if s.Counts.Held != 0 || s.Alarm("batch_held") != nil {
		t.Errorf("%+v", s.Counts)
	}
	quiet(t, h)
}

// What a person decides while the stores are away, and the agent is killed then, holds when they are back.
func TestStoredBatchDecidedInAnOutage(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, p, _, g := c.bench(t, testenv.Setup{})
	labels := memory(20, "A1")
	g.dump(labels)
	_, at := g.batch(0)
	if rows, _ := c.settled(t, h); len(rows) != 20 {
		t.Fatalf("%d rows of the first copy", len(rows))
	}
	for _, tc := range []struct {
		what, answer string
		body         any
	}{
		{"confirm", `{"accepted":20}`, map[string]any{}},
		{"discard", `{"discarded":20}`, map[string]string{"by": "R. Okafor"}},
	} {
		pace(t, 3500*time.Millisecond) // out of the window
		c.mode(t, testenv.Refuse)
		g.dump(labels)
		var e testenv.Event
		if e, at = g.batch(at); !e.Repeat || e.Held != 20 {
			t.Fatalf("the copy is told as %s", e.Data)
		}
		for range 2 { // the answer to the first may be lost with the agent
			if code, body := decide(t, h, e.BatchID, tc.what, tc.body); code != http.StatusOK || body != tc.answer {
				t.Errorf("%s: %d %s", tc.what, code, body)
			}
			p.Kill()
			p = h.Start(t)
			g.reading()
		}
		if n := c.count(t, "SELECT count(*) FROM scan_ledger"); n != 20 && tc.what == "confirm" {
			t.Errorf("%d rows in the outage", n)
		}
		c.mode(t, testenv.Pass)
		s := h.Await(t, "an end of what is pending", waitOnline)
		if s.Counts.Committed != 40 || s.Counts.Held != 0 || s.Balance() != "" || s.Alarm("batch_held") != nil {
			t.Errorf("%s: %+v", tc.what, s.Counts)
		}
		discarded := s.Counts.Discarded
		c.await(t, "the audit lines to arrive", func() bool {
			return int64(c.count(t, "SELECT count(*) FROM scan_audit_line WHERE outcome = 'discarded' AND ref IS NULL")) >= discarded
		})
		rows, lines := h.Ledger(t), h.Audit(t)
		checkStores(t, rows, lines)
		if len(rows) != 40 || tc.what == "confirm" && discarded != 0 || tc.what == "discard" && (discarded != 20 || len(linesOf(lines, "discarded")) != 20) {
			t.Errorf("%s: %d rows, %d discarded, %d lines of that", tc.what, len(rows), discarded, len(linesOf(lines, "discarded")))
		}
		c.join(t)
		verified(t, h)
	}
}
