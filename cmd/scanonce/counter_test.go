package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// Scenario 1: an ordinary dispense.
func TestOneScanIsOneRow(t *testing.T) {
	t.Parallel()
	h, _, st, g := bench(t, testenv.Setup{})
	typed := time.Now()
	w := testenv.NewWatch(t)
	e := g.expect("accepted", matrix(bottleGTIN, "SN0001", "A1207"))
	c := g.committed(e.EventID)
	w.Within(t, "the row", time.Second)
	rows, lines := quiet(t, h)
	if len(rows) != 1 {
		t.Fatalf("%d rows, want 1", len(rows))
	}
	r := rows[0]
	if r.NDC != bottleNDC || deref(r.NDC11) != bottleNDC || deref(r.GTIN) != bottleGTIN || r.Lot != "A1207" || deref(r.Expiry) != "2027-11-30" || deref(r.Serial) != "SN0001" ||
		r.ScanType != "dispense" || r.Quantity != 1 || r.ScannerID != "SCN-04" || r.FacilityUUID != testenv.Facility {
		t.Errorf("row %+v", r)
	}
	if e.Key != r.IdemKey || c.Key != r.IdemKey || e.EventID != r.EventID || e.Online == nil || !*e.Online || e.ScanType != "dispense" || e.Quantity != 1 ||
		!e.CapturedAt.Equal(r.CapturedAt) || e.Item == nil || deref(e.Item.NDC11) != bottleNDC || deref(e.Item.Lot) != "A1207" || deref(e.Item.Serial) != "SN0001" || deref(e.Item.Expiry) != "2027-11-30" {
		t.Errorf("event %s", e.Data)
	}
	if d := r.CapturedAt.Sub(typed); d < -time.Second || d > w.Stop().Wall+time.Second {
		t.Errorf("captured at %s, typed at %s", r.CapturedAt, typed)
	}
	if com := linesOf(lines, "committed"); len(com) != 1 || len(lines) != 1 || deref(com[0].Key) != e.Key {
		t.Errorf("audit lines %+v", lines)
	}
	// The published command computes the same keys.
	out := h.Call(t, "--json", "key", "--scanner", r.ScannerID, "--ndc", r.NDC, "--lot", r.Lot, "--serial", deref(r.Serial), "--at", r.CapturedAt.Format(time.RFC3339Nano))
	var k struct {
		Key  string  `json:"key"`
		Edge *string `json:"edge_key"`
	}
	if err := json.Unmarshal([]byte(out.Stdout), &k); err != nil || k.Key != r.IdemKey || deref(k.Edge) != deref(r.EdgeKey) {
		t.Errorf("scanonce key: %s %s, want %s", out.Stdout, out.Stderr, r.IdemKey)
	}
	if n := len(st.Events()); n == 0 || st.Events()[n-1].Kind != "committed" {
		t.Errorf("events end with %+v", st.Events()[n-1])
	}
}

// Scenario 2: a trigger that bounces, at all phases of the window.
func TestBounceIsSuppressed(t *testing.T) {
	t.Parallel()
	const scanners, tries = 8, 25
	var ids []string
	for i := range scanners {
		ids = append(ids, fmt.Sprintf("SCN-%02d", i+1))
	}
	h, _, st, first := bench(t, testenv.Setup{Scanners: ids})
	type try struct{ first, second testenv.Event }
	var mu sync.Mutex
	var all []try
	guns := []*gun{first}
	for _, id := range ids[1:] {
		guns = append(guns, plug(t, h, st, id))
	}
	t.Run("scanners", func(t *testing.T) {
		for _, g := range guns {
			t.Run(g.ID, func(t *testing.T) {
				t.Parallel()
				g.t = t
				for i := range tries {
					pace(t, time.Duration(rand.IntN(150))*time.Millisecond)
					label := matrix(bottleGTIN, "", fmt.Sprintf("L%s%d", strings.TrimPrefix(g.ID, "SCN-"), i))
					if err := g.Type(label); err != nil {
						t.Fatal(err)
					}
					pace(t, 200*time.Millisecond)
					if err := g.Type(label); err != nil {
						t.Fatal(err)
					}
					a, b := g.answer(), g.answer()
					g.tone("GD")
					mu.Lock()
					all = append(all, try{a, b})
					mu.Unlock()
				}
			})
		}
	})
	rows, lines := quiet(t, h)
	suppressed := checkStores(t, rows, lines)
	if len(rows) != scanners*tries || len(all) != scanners*tries {
		t.Fatalf("%d rows for %d tries", len(rows), len(all))
	}
	straddles := 0
	for _, x := range all {
		a, b := x.first, x.second
		if a.Kind != "accepted" || b.Kind != "duplicate" {
			t.Fatalf("answers %s and %s", a.Data, b.Data)
		}
		if b.DuplicateOf != a.EventID || b.Key != a.Key || b.EventID == a.EventID || b.Reason != "bounce" || b.FirstCapturedAt == nil || !b.FirstCapturedAt.Equal(a.CapturedAt) {
			t.Errorf("duplicate %s of %s", b.Data, a.Data)
		}
		if suppressed[a.Key] != 1 {
			t.Errorf("key %s has %d suppressed lines", a.Key, suppressed[a.Key])
		}
		if a.CapturedAt.UnixMilli()/3000 != b.CapturedAt.UnixMilli()/3000 {
			straddles++
		}
	}
	if straddles == 0 {
		t.Error("no try lay over a window boundary: this proves little")
	}
	t.Logf("%d of %d tries over a boundary", straddles, len(all))
}

// Scenario 4: two bottles of one lot are two movements.
func TestTwoSerials(t *testing.T) {
	t.Parallel()
	h, _, _, g := bench(t, testenv.Setup{})
	g.expect("accepted", matrix(ciiGTIN, "B1", "A1207"))
	pace(t, 800*time.Millisecond)
	g.expect("accepted", matrix(ciiGTIN, "B2", "A1207"))
	rows, lines := quiet(t, h)
	if len(rows) != 2 || len(linesOf(lines, "suppressed")) != 0 {
		t.Fatalf("%d rows, lines %+v", len(rows), lines)
	}
	for _, r := range rows {
		if r.NDC != ciiNDC || r.Lot != "A1207" {
			t.Errorf("row %+v", r)
		}
	}
}

// sameAgain asks for it over the interface; nil is the last told duplicate, or else the next scan.
func sameAgain(t *testing.T, h *testenv.Home, scanner string, event *string) (int, struct{ Outcome, EventID, Key, Reason string }) {
	t.Helper()
	code, b := h.Ask(t, http.MethodPost, "/v1/scanners/"+scanner+"/same-again", map[string]any{"event_id": event})
	var a struct {
		Outcome string `json:"outcome"`
		EventID string `json:"event_id"`
		Key     string `json:"key"`
		Reason  string `json:"reason"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("same again: %d %s", code, b)
	}
	return code, struct{ Outcome, EventID, Key, Reason string }(a)
}

// Scenario 5: two bottles that no label tells apart.
func TestTwoLinearBottles(t *testing.T) {
	t.Parallel()
	// told scans two bottles: the second is told as a duplicate, with the way out.
	told := func(t *testing.T) (*testenv.Home, *gun, testenv.Event) {
		h, _, _, g := bench(t, testenv.Setup{})
		a := g.expect("accepted", bottle)
		pace(t, time.Second)
		b := g.expect("duplicate", bottle)
		if b.DuplicateOf != a.EventID || len(b.Actions) != 1 || b.Actions[0] != "same-again" {
			t.Errorf("duplicate %s", b.Data)
		}
		return h, g, b
	}
	rowsOf := func(t *testing.T, h *testenv.Home, want int) []testenv.Row {
		t.Helper()
		rows, lines := quiet(t, h)
		if len(rows) != want {
			t.Errorf("%d rows, want %d", len(rows), want)
		}
		if n := len(linesOf(lines, "suppressed")); want == 2 && n > 1 {
			t.Errorf("%d suppressed lines", n)
		}
		return rows
	}
	t.Run("told", func(t *testing.T) {
		t.Parallel()
		h, _, _ := told(t)
		rowsOf(t, h, 1)
	})
	t.Run("by the interface", func(t *testing.T) {
		t.Parallel()
		h, g, b := told(t)
		code, a := sameAgain(t, h, g.ID, &b.EventID)
		if code != http.StatusCreated || a.Outcome != "accepted" || a.Key == b.Key || a.EventID == "" {
			t.Fatalf("same again: %d %+v", code, a)
		}
		if e := g.answer(); e.Kind != "accepted" || e.EventID != a.EventID || e.Key != a.Key {
			t.Errorf("event %s", e.Data)
		}
		// The same duplicate counts once only.
		if code, a := sameAgain(t, h, g.ID, &b.EventID); code != http.StatusNotFound || a.Reason != "unknown_duplicate" {
			t.Errorf("once more: %d %+v", code, a)
		}
		// What was declared a movement has its echo too.
		g.expect("duplicate", bottle)
		rows, lines := quiet(t, h)
		if len(rows) != 2 || len(linesOf(lines, "suppressed")) != 2 {
			t.Errorf("%d rows, lines %+v, want 2 rows and 2 suppressed", len(rows), lines)
		}
	})
	t.Run("the last one by the interface", func(t *testing.T) {
		t.Parallel()
		h, g, _ := told(t)
		if code, a := sameAgain(t, h, g.ID, nil); code != http.StatusCreated || a.Outcome != "accepted" {
			t.Fatalf("same again: %d %+v", code, a)
		}
		rowsOf(t, h, 2)
	})
	t.Run("by a command barcode", func(t *testing.T) {
		t.Parallel()
		h, g, _ := told(t)
		e := g.expect("accepted", "SCANONCE-SAMEAGAIN")
		if !strings.Contains(rowByEvent(t, rowsOf(t, h, 2), e.EventID).Extras, "again="+e.EventID) {
			t.Errorf("event %s", e.Data)
		}
	})
	t.Run("an older one is not meant by itself", func(t *testing.T) {
		t.Parallel()
		h, _, _, g := bench(t, testenv.Setup{})
		for _, item := range []string{matrix("00300937214106", "S1", "A"), matrix("00300937214106", "S2", "A")} {
			g.expect("accepted", item)
			g.expect("duplicate", item)
		}
		if code, a := sameAgain(t, h, g.ID, nil); code != http.StatusCreated || a.Outcome != "accepted" {
			t.Fatalf("same again: %d %+v", code, a)
		}
		g.answer()
		if code, a := sameAgain(t, h, g.ID, nil); code != http.StatusOK || a.Outcome != "armed" {
			t.Fatalf("once more: %d %+v", code, a)
		}
		rowsOf(t, h, 3)
	})
	t.Run("armed by the interface", func(t *testing.T) {
		t.Parallel()
		h, _, _, g := bench(t, testenv.Setup{})
		g.expect("accepted", bottle)
		if code, a := sameAgain(t, h, g.ID, nil); code != http.StatusOK || a.Outcome != "armed" {
			t.Fatalf("same again: %d %+v", code, a)
		}
		pace(t, 600*time.Millisecond)
		g.expect("accepted", bottle)
		pace(t, 600*time.Millisecond)
		g.expect("duplicate", bottle) // one-shot
		rowsOf(t, h, 2)
	})
	t.Run("armed by a command barcode", func(t *testing.T) {
		t.Parallel()
		h, _, _, g := bench(t, testenv.Setup{})
		g.expect("accepted", bottle)
		if err := g.Type("SCANONCE-SAMEAGAIN"); err != nil {
			t.Fatal(err)
		}
		g.tone("G")
		pace(t, 600*time.Millisecond)
		g.expect("accepted", bottle)
		pace(t, 200*time.Millisecond)
		g.expect("duplicate", bottle)
		rowsOf(t, h, 2)
	})
}

func rowByEvent(t *testing.T, rows []testenv.Row, event string) testenv.Row {
	t.Helper()
	for _, r := range rows {
		if r.EventID == event {
			return r
		}
	}
	t.Fatalf("no row of event %s", event)
	return testenv.Row{}
}

// stalled repeats what a hand did when the machine, not the agent, was too slow for the intended pace.
func stalled(t *testing.T, attempt func(t *testing.T) (onTime bool)) {
	t.Helper()
	for range 10 {
		if attempt(t) {
			return
		}
		t.Log("the machine was too slow for the pace of this test: once more")
	}
	t.Fatal("the machine is too slow for this test")
}

// Scenario 6: a tote of twelve bottles that are all alike, 0.7 s apart.
func TestReceivingATote(t *testing.T) {
	t.Parallel()
	for name, bounce := range map[string]bool{"without a bounce": false, "with a bounce": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stalled(t, func(t *testing.T) bool {
				h, p, _, g := bench(t, testenv.Setup{})
				defer p.Kill()
				if m := g.expect("mode", "SCANONCE-MODE-RECEIVE"); m.ScanType != "receive" || m.Source != "barcode" || m.RevertsAt == nil {
					t.Fatalf("mode event %s", m.Data)
				}
				var got []testenv.Event
				var duplicates int
				tick := time.NewTicker(700 * time.Millisecond)
				defer tick.Stop()
				for i := range 12 {
					got = append(got, g.scan(bottle))
					if bounce && i == 5 {
						pace(t, 150*time.Millisecond)
						b := g.scan(bottle)
						gap := b.CapturedAt.Sub(got[i].CapturedAt)
						if gap >= 400*time.Millisecond {
							return false
						}
						if b.Kind != "duplicate" || b.DuplicateOf != got[i].EventID {
							t.Fatalf("a bounce after %v: %s", gap, b.Data)
						}
						duplicates++
					}
					<-tick.C
				}
				for i := 1; i < len(got); i++ {
					if got[i].CapturedAt.Sub(got[i-1].CapturedAt) < 400*time.Millisecond {
						return false
					}
				}
				rows, lines := quiet(t, h)
				total := 0
				for _, r := range rows {
					if r.ScanType == "receive" && r.NDC == bottleNDC {
						total += r.Quantity
					}
				}
				if total != 12 || len(rows) != 12 || len(linesOf(lines, "suppressed")) != duplicates {
					t.Errorf("received %d in %d rows, %d suppressed, want 12 and %d", total, len(rows), len(linesOf(lines, "suppressed")), duplicates)
				}
				return true
			})
		})
	}
}

// Scenario 12: a quantity holds for one scan.
func TestQuantity(t *testing.T) {
	t.Parallel()
	set := func(t *testing.T, h *testenv.Home, quantity any) (int, string) {
		t.Helper()
		code, b := h.Ask(t, http.MethodPut, "/v1/scanners/SCN-04/quantity", map[string]any{"quantity": quantity})
		return code, string(b)
	}
	for name, byBarcode := range map[string]bool{"by the interface": false, "by a command barcode": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, _, _, g := bench(t, testenv.Setup{})
			if byBarcode {
				if m := g.expect("mode", "SCANONCE-QTY-30"); m.Quantity != 30 || m.ScanType != "dispense" {
					t.Fatalf("mode event %s", m.Data)
				}
			} else if code, b := set(t, h, 30); code != http.StatusOK || !strings.Contains(b, `"quantity":30`) {
				t.Fatalf("PUT quantity: %d %s", code, b)
			}
			a := g.expect("accepted", matrix(bottleGTIN, "", "Q1"))
			pace(t, 200*time.Millisecond)
			b := g.expect("duplicate", matrix(bottleGTIN, "", "Q1"))
			if a.Quantity != 30 || b.Quantity != 30 || b.Key != a.Key || b.DuplicateOf != a.EventID {
				t.Errorf("answers %s and %s", a.Data, b.Data)
			}
			if s := h.Status(t); s.Scanner("SCN-04").Quantity != 1 {
				t.Errorf("the quantity is %d after its use", s.Scanner("SCN-04").Quantity)
			}
			g.expect("accepted", matrix(bottleGTIN, "", "Q2"))
			rows, _ := quiet(t, h)
			if len(rows) != 2 || rowByEvent(t, rows, a.EventID).Quantity != 30 || rows[0].Quantity+rows[1].Quantity != 31 {
				t.Errorf("rows %+v", rows)
			}
		})
	}
	t.Run("runs out", func(t *testing.T) {
		t.Parallel()
		h, _, st, g := bench(t, testenv.Setup{Sections: "[counter]\nquantity_timeout = \"1s\"\n"})
		if code, b := set(t, h, 30); code != http.StatusOK {
			t.Fatalf("PUT quantity: %d %s", code, b)
		}
		m, _ := st.Wait(t, 0, "the end of the quantity", func(e *testenv.Event) bool { return e.Kind == "mode" && e.Source == "idle" })
		if m.Quantity != 1 {
			t.Errorf("event %s", m.Data)
		}
		if e := g.expect("accepted", bottle); e.Quantity != 1 {
			t.Errorf("event %s", e.Data)
		}
	})
	t.Run("out of bounds", func(t *testing.T) {
		t.Parallel()
		h, _, _, g := bench(t, testenv.Setup{})
		for _, q := range []any{0, -1, 1e9, 10000, 1.5, "30", nil} {
			code, b := set(t, h, q)
			if code != http.StatusUnprocessableEntity && code != http.StatusBadRequest || !strings.Contains(b, "cannot ") {
				t.Errorf("quantity %v: %d %s", q, code, b)
			}
		}
		for _, q := range []int{0, 10000} {
			g.expect("rejected", "SCANONCE-QTY-"+strconv.Itoa(q))
		}
		if e := g.expect("accepted", bottle); e.Quantity != 1 {
			t.Errorf("event %s", e.Data)
		}
		rows, _ := quiet(t, h)
		if len(rows) != 1 || rows[0].Quantity != 1 {
			t.Errorf("rows %+v", rows)
		}
	})
}

// Scenario 13: what was dispensed comes back within the window.
func TestReturnWithinTheWindow(t *testing.T) {
	t.Parallel()
	h, _, _, g := bench(t, testenv.Setup{Sections: "[counter]\nmode_idle = \"2s\"\n"})
	g.expect("accepted", bottle)
	pace(t, 500*time.Millisecond)
	g.expect("mode", "SCANONCE-MODE-RETURN")
	s := h.Status(t)
	if sc := s.Scanner("SCN-04"); sc.ScanType != "return" || sc.RevertsAt == nil {
		t.Errorf("status %+v", sc)
	}
	pace(t, 500*time.Millisecond)
	g.expect("accepted", bottle)
	g.expect("duplicate", bottle)
	// Scenario 8: the mode falls back, and says so; the command is no movement.
	m, _ := g.stream.Wait(t, 0, "the end of the mode", func(e *testenv.Event) bool { return e.Kind == "mode" && e.Source == "idle" })
	if m.ScanType != "dispense" {
		t.Errorf("event %s", m.Data)
	}
	rows, lines := quiet(t, h)
	count := map[string]int{}
	for _, r := range rows {
		count[r.ScanType]++
	}
	if len(rows) != 2 || count["dispense"] != 1 || count["return"] != 1 || len(linesOf(lines, "suppressed")) != 1 || len(linesOf(lines, "control")) != 1 {
		t.Errorf("rows %+v, lines %+v", rows, lines)
	}
}

// A burst of noise is refused, told without a byte of it, and holds up nothing behind it.
func TestNoiseHoldsNothingUp(t *testing.T) {
	t.Parallel()
	h, _, stream, g := bench(t, testenv.Setup{})
	for _, noise := range []string{"]d\x00x", "]\xff\xfehello", "]Jo Smith", "\x00\xff\x01"} {
		if e := g.expect("rejected", noise); strings.Contains(string(e.Data), "Jo") {
			t.Errorf("payload in %s", e.Data)
		}
	}
	e := g.expect("accepted", bottle)
	stream.Wait(t, 0, "the row", func(x *testenv.Event) bool { return x.Kind == "committed" && x.EventID == e.EventID })
	rows, lines := quiet(t, h)
	if len(rows) != 1 || len(linesOf(lines, "rejected")) != 4 {
		t.Errorf("%d rows and %d rejected lines", len(rows), len(linesOf(lines, "rejected")))
	}
}
