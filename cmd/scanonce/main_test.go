package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// program is the binary under test.
var program testenv.Binary

func TestMain(m *testing.M) {
	bin, remove, err := testenv.Build("scanonce/cmd/scanonce")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = bin
	// The tests mostly wait, for a hand's pace or a window: more run side by side than there are processors.
	flag.Parse()
	flag.Set("test.parallel", "8")
	code := m.Run()
	remove()
	os.Exit(code)
}

const (
	gs = "\x1d"
	// bottle is GTIN 00300937214106, NDC 0093-7214-10, as a UPC-A and in full.
	bottle     = "300937214106"
	bottleGTIN = "00300937214106"
	bottleNDC  = "00093721410"
	ciiGTIN    = "00304060512016"
	ciiNDC     = "00406051201"
)

// directory decides both.
var directory = []string{"0093-7214-10", "0406-0512-01"}

// matrix is a DataMatrix label as a scanner sends it; serial and lot may be empty.
func matrix(gtin, serial, lot string) string {
	s := "]d201" + gtin
	if serial != "" {
		s += "21" + serial + gs
	}
	s += "17271130"
	if lot != "" {
		s += "10" + lot
	}
	return s
}

// gun is a virtual scanner in a person's hand: what it types is answered by an event and a tone.
type gun struct {
	*sim.Scanner
	t      testing.TB
	stream *testenv.Stream
	pos    int
}

// plug connects a scanner and waits until the agent reads it.
func plug(t testing.TB, h *testenv.Home, st *testenv.Stream, id string) *gun {
	t.Helper()
	return plugAs(t, h, st, id, "\r")
}

func plugAs(t testing.TB, h *testenv.Home, st *testenv.Stream, id, suffix string) *gun {
	t.Helper()
	g := &gun{t: t, stream: st, pos: st.Len()}
	var err error
	if g.Scanner, err = sim.Plug(id, h.Port(id), sim.Framing{Suffix: suffix}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unplug(g.Scanner) })
	g.reading()
	return g
}

// unplug takes a scanner away, its link first: the number of its pseudo terminal is given to the next one, and
// through a link that is left an agent would hear another test's scanner.
func unplug(s *sim.Scanner) {
	os.Remove(s.Path)
	s.Unplug()
}

func (g *gun) reading() {
	g.t.Helper()
	_, g.pos = g.stream.Wait(g.t, g.pos, g.ID+" is read", isReading(g.ID))
	g.Opened()
}

func isReading(id string) func(*testenv.Event) bool {
	return func(e *testenv.Event) bool { return e.Kind == "device" && e.ScannerID == id && e.State == "reading" }
}

// isAnswer says that an event is what becomes of a frame. A command barcode may have none.
func isAnswer(id string) func(*testenv.Event) bool {
	return func(e *testenv.Event) bool {
		if e.ScannerID != id {
			return false
		}
		switch e.Kind {
		case "accepted", "duplicate", "rejected", "not_accepted", "label", "unknown":
			return true
		}
		return e.Kind == "mode" && e.Source == "barcode"
	}
}

// answer waits for the scanner's next answer.
func (g *gun) answer() testenv.Event {
	g.t.Helper()
	var e testenv.Event
	e, g.pos = g.stream.Wait(g.t, g.pos, g.ID+" has an answer", isAnswer(g.ID))
	return e
}

// scan types a label and waits for the answer.
func (g *gun) scan(data string) testenv.Event {
	g.t.Helper()
	if err := g.Type(data); err != nil {
		g.t.Fatal(err)
	}
	return g.answer()
}

// expect is scan for one kind of answer, with its tone.
func (g *gun) expect(kind, data string) testenv.Event {
	g.t.Helper()
	e := g.scan(data)
	if e.Kind != kind {
		g.t.Fatalf("%s: the answer is %s, want %s", sim.Printable(data), e.Data, kind)
	}
	switch kind {
	case "accepted", "label", "unknown", "mode":
		g.tone("G")
	case "duplicate":
		g.tone("D")
	default:
		g.tone("R")
	}
	return e
}

// tone waits for what the scanner is sent.
func (g *gun) tone(want string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), testenv.Patience)
	defer cancel()
	got, err := g.Feedback(ctx, len(want))
	if err != nil || got != want {
		g.t.Fatalf("scanner %s is sent %q (%v), want %q", g.ID, got, err, want)
	}
}

// committed waits for the event that tells of an event's row.
func (g *gun) committed(event string) testenv.Event {
	g.t.Helper()
	return committed(g.t, g.stream, event)
}

func committed(t testing.TB, st *testenv.Stream, event string) testenv.Event {
	t.Helper()
	e, _ := st.Wait(t, 0, "the commit of "+event, func(e *testenv.Event) bool { return e.Kind == "committed" && e.EventID == event })
	return e
}

// pace lets time pass between two movements of a hand.
func pace(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test is over")
	}
}

// windows are the width and guard of a scan type in milliseconds, by the documented defaults.
func windows(scanType string) (width, guard int64) {
	if scanType == "receive" || scanType == "count" {
		return 400, 200
	}
	return 3000, 500
}

// clockError is how far an agent's clock may be from its ledger's on a busy machine.
const clockError = 250 * time.Millisecond

func keyOf(parts ...string) string {
	h := sha256.Sum256([]byte(strings.Join(parts, "|")))
	return hex.EncodeToString(h[:])
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

// checkRow computes a row's keys anew from its fields, by the published recipe. No field in these tests needs
// escaping.
func checkRow(t testing.TB, r *testenv.Row) {
	t.Helper()
	width, guard := windows(r.ScanType)
	for _, long := range []struct{ width, guard time.Duration }{{longWidth, 500 * time.Millisecond}, {wideWidth, wideGuard}} {
		if slices.Contains(strings.Split(r.Extras, "|"), fmt.Sprint("w=", long.width.Milliseconds())) {
			width, guard = long.width.Milliseconds(), long.guard.Milliseconds()
		}
	}
	ms := r.CapturedAt.UnixMilli()
	index := ms / width
	if r.WindowIndex != index {
		t.Errorf("row %s: window %d, want %d of %s", r.EventID, r.WindowIndex, index, r.CapturedAt)
	}
	var extras []string
	if r.NDC == "" && r.GTIN != nil {
		extras = append(extras, "gtin="+*r.GTIN)
	}
	if r.Serial != nil {
		extras = append(extras, "serial="+*r.Serial)
	}
	if normal, _ := windows(r.ScanType); width != normal {
		extras = append(extras, fmt.Sprint("w=", width))
	}
	if i := strings.Index(r.Extras, "again="); i >= 0 && r.ClockQuality == "device" {
		extras = append(extras, r.Extras[i:]) // a request's key
	} else if i >= 0 {
		extras = append(extras, "again="+r.EventID)
	}
	if got := strings.Join(extras, "|"); got != r.Extras {
		t.Errorf("row %s: extras %q, want %q", r.EventID, r.Extras, got)
	}
	parts := func(n int64, more ...string) []string {
		return append(append(more, r.FacilityUUID, r.ScannerID, r.NDC, r.Lot, strconv.Itoa(r.Quantity), r.ScanType, strconv.FormatInt(n, 10)), extras...)
	}
	if want := "scan:idem:" + keyOf(parts(index)...); r.IdemKey != want {
		t.Errorf("row %s: key %s, want %s", r.EventID, r.IdemKey, want)
	}
	want := ""
	switch {
	case ms-index*width < guard:
		want = "scan:edge:" + keyOf(parts(index, "edge")...)
	case (index+1)*width-ms <= guard:
		want = "scan:edge:" + keyOf(parts(index+1, "edge")...)
	}
	if got := deref(r.EdgeKey); got != want {
		t.Errorf("row %s captured %d ms into its window: edge key %q, want %q", r.EventID, ms-index*width, got, want)
	}
	// With a ledger of its own clock the two may differ by half of the round trip in which the agent asked for it.
	if !r.CapturedAt.Equal(r.CapturedAt.UTC()) || r.CommittedAt.Before(r.CapturedAt.Add(-clockError)) {
		t.Errorf("row %s: captured %s, committed %s", r.EventID, r.CapturedAt, r.CommittedAt)
	}
}

// checkStores checks what must hold between rows and audit lines, once nothing is pending: every key has one
// committed line, which is a row, and any number of suppressed ones, each of which names the row's event.
func checkStores(t testing.TB, rows []testenv.Row, lines []testenv.Line) (suppressed map[string]int) {
	t.Helper()
	byKey, byEvent := map[string]string{}, map[string]bool{}
	edges := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		checkRow(t, r)
		if byKey[r.IdemKey] != "" || byEvent[r.EventID] || r.EdgeKey != nil && edges[*r.EdgeKey] {
			t.Errorf("row %s is not alone with its keys", r.EventID)
		}
		byKey[r.IdemKey], byEvent[r.EventID] = r.EventID, true
		if r.EdgeKey != nil {
			edges[*r.EdgeKey] = true
		}
	}
	committed := map[string]int{}
	suppressed = map[string]int{}
	seen := map[string]bool{}
	for _, l := range lines {
		if seen[l.EventID] {
			t.Errorf("event %s has two audit lines", l.EventID)
		}
		seen[l.EventID] = true
		switch l.Outcome {
		case "committed":
			if l.Key == nil || byKey[*l.Key] != l.EventID {
				t.Errorf("committed line %s with key %s has no row", l.EventID, deref(l.Key))
				continue
			}
			committed[*l.Key]++
		case "suppressed":
			if l.Key == nil || byKey[*l.Key] == "" || byKey[*l.Key] != deref(l.Winner) {
				t.Errorf("suppressed line %s with key %s names %s, not the row that stands", l.EventID, deref(l.Key), deref(l.Winner))
				continue
			}
			if byEvent[l.EventID] {
				t.Errorf("event %s is suppressed and has a row", l.EventID)
			}
			suppressed[*l.Key]++
		default:
			if l.Key != nil {
				t.Errorf("a line %s has a key", l.Outcome)
			}
		}
	}
	for key := range byKey {
		if committed[key] != 1 {
			t.Errorf("key %s has %d committed lines", key, committed[key])
		}
	}
	return suppressed
}

// quiet waits until nothing is pending, checks the laws of conservation and what is stored, and returns it.
func quiet(t testing.TB, h *testenv.Home) ([]testenv.Row, []testenv.Line) {
	t.Helper()
	s := h.Await(t, "an end of what is pending", func(s *testenv.Status) bool {
		return s.Counts.Pending == 0 && s.Frames.InFlight == 0 && s.State == "ONLINE"
	})
	if broken := s.Balance(); broken != "" {
		t.Error(broken)
	}
	rows, lines := h.Ledger(t), h.Audit(t)
	total := 0
	for _, n := range checkStores(t, rows, lines) {
		total += n
	}
	if c := s.Counts; c.Committed != int64(len(rows)) || c.Suppressed != int64(total) || c.Held+c.Quarantined+c.Discarded+c.Unaccounted != 0 {
		t.Errorf("counts %+v, with %d rows and %d suppressed lines", c, len(rows), total)
	}
	if w := h.Spool(t); len(w) != 0 {
		t.Errorf("the spool still lists %+v", w)
	}
	verified(t, h)
	return rows, decisions(lines)
}

// verified says that the audit trail with its chain is whole and agrees with the ledger.
func verified(t testing.TB, h *testenv.Home) {
	t.Helper()
	if r := h.Call(t, "audit", "verify", "--ledger"); r.Code != 0 {
		t.Errorf("audit verify: exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// decisions leaves out the notices with which each run opens its chain.
func decisions(lines []testenv.Line) []testenv.Line {
	return slices.DeleteFunc(slices.Clone(lines), func(l testenv.Line) bool { return l.Outcome == "notice" && deref(l.Reason) == "epoch_start" })
}

// linesOf selects audit lines of one outcome.
func linesOf(lines []testenv.Line, outcome string) []testenv.Line {
	return slices.DeleteFunc(slices.Clone(lines), func(l testenv.Line) bool { return l.Outcome != outcome })
}

// bench is an agent with its stream and its first scanner, ready to be used.
func bench(t testing.TB, s testenv.Setup) (*testenv.Home, *testenv.Process, *testenv.Stream, *gun) {
	t.Helper()
	if s.Directory == nil {
		s.Directory = directory
	}
	h := program.NewHome(t, s)
	p := h.Start(t)
	st := h.Follow(t)
	id := "SCN-04"
	if s.Scanners != nil {
		id = s.Scanners[0]
	}
	return h, p, st, plug(t, h, st, id)
}
