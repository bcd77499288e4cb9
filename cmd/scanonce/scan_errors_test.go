package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// Scenario 8: the scan type is shown at once and falls back by itself; the command is no movement.
func TestModeIsVisible(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	h, _, st, g := bench(t, testenv.Setup{Sections: "[counter]\nmode_idle = \"2s\"\n"})
	w := testenv.NewWatch(t)
	m := g.expect("mode", "SCANONCE-MODE-RETURN")
	s := h.Status(t)
	w.Within(t, "the mode, until it is shown,", time.Second)
	if m.ScanType != "return" || m.RevertsAt == nil || (m.RevertsAt.Sub(m.At)-idle).Abs() > 2*time.Millisecond {
		t.Errorf("event %s", m.Data)
	}
	if sc := s.Scanner("SCN-04"); sc.ScanType != "return" || sc.RevertsAt == nil || sc.RevertsAt.Sub(*m.RevertsAt).Abs() > 2*time.Millisecond { // of rounding
		t.Errorf("status %+v", sc)
	}
	w = testenv.NewWatch(t)
	back, _ := st.Wait(t, 0, "the end of the mode", func(e *testenv.Event) bool { return e.Kind == "mode" && e.Source == "idle" })
	w.Within(t, "the end of the mode", idle+time.Second)
	if early := m.RevertsAt.Sub(back.At); back.ScanType != "dispense" || back.RevertsAt != nil || early > 2*time.Millisecond {
		t.Errorf("event %s, %v early", back.Data, early)
	}
	s = h.Status(t)
	if sc := s.Scanner("SCN-04"); sc.ScanType != "dispense" || sc.RevertsAt != nil {
		t.Errorf("status %+v", sc)
	}
	rows, lines := quiet(t, h)
	control := linesOf(lines, "control")
	if len(rows) != 0 || len(control) != 1 || len(control)+len(linesOf(lines, "notice")) != len(lines) || deref(control[0].Reason) != "mode" {
		t.Errorf("rows %+v, lines %+v", rows, lines)
	}
}

// technical are words that a technician need not know.
var technical = regexp.MustCompile(`(?i)cannot parse|panic|nil|invalid|regexp|\berr\b|error|exception|byte 0|AI\(|mod ?10|0x`)

// Scenario 11: what cannot be read, or is no drug, is refused in words, and the next scan counts.
func TestUnreadableAndForeignCodes(t *testing.T) {
	t.Parallel()
	h, _, _, g := bench(t, testenv.Setup{})
	serial := strings.Repeat("S", 16)
	counted := 0
	next := func() {
		t.Helper()
		g.expect("accepted", matrix(bottleGTIN, "NEXT"+string(rune('A'+counted)), "A1207"))
		counted++
	}
	for _, c := range []struct{ name, data, reason, says string }{
		{"coupon", "512345678900", "unsupported_format", "coupon"},
		{"coupon with an identifier", "]E00512345678900", "unsupported_format", "coupon"},
		{"coupon in DataBar", "]e08110106141416543213500110000310123196000", "unsupported_format", "coupon"},
		{"link in a QR code", "]Q1https://brand.example/leaflet?id=1", "unsupported_format", "link"},
		{"link without an identifier", "https://brand.example/leaflet", "unsupported_format", "link"},
		{"no GS between lot and serial", "]d201" + bottleGTIN + "17271130" + "10A1207" + "21" + serial, "bad_length", ""},
		{"no GS between serial and lot", "]d201" + bottleGTIN + "21" + serial + "10A1207", "bad_length", ""},
		{"cut within the expiry", "]d201" + bottleGTIN + "21SN0001" + gs + "172711", "truncated", ""},
		{"cut within the number", "]d2010030093721", "truncated", ""},
		{"cut behind the lot's identifier", "]d201" + bottleGTIN + "1727113010", "", ""},
		{"wrong check digit", "300937214107", "check_digit", "check digit"},
		{"wrong check digit in a DataMatrix", "]d20100300937214107" + "21SN0001" + gs + "17271130" + "10A1207", "check_digit", "check digit"},
		{"impossible date", "]d201" + bottleGTIN + "17270230" + "10A1207", "bad_date", ""},
		{"case of a postal parcel", "]C0" + "[)>\x1e06\x1d", "", ""},
	} {
		e := g.scan(c.data)
		if e.Kind != "rejected" || c.reason != "" && e.Reason != c.reason {
			t.Fatalf("%s: the answer is %s, want it rejected for %s", c.name, e.Data, c.reason)
		}
		g.tone("R")
		if !strings.Contains(strings.ToLower(e.Detail), c.says) || len(e.Detail) < 25 || !strings.HasSuffix(e.Detail, ".") || technical.MatchString(e.Detail) {
			t.Errorf("%s is told as %q", c.name, e.Detail)
		}
		for _, guess := range []string{"A1207", serial, "SN0001", "brand.example"} {
			if strings.Contains(e.Data, guess) {
				t.Errorf("%s: %s", c.name, e.Data)
			}
		}
		next()
	}
	// 600 bytes without a terminator are ended by the line's silence.
	if err := g.Write([]byte(strings.Repeat("01", 300))); err != nil {
		t.Fatal(err)
	}
	if e := g.answer(); e.Kind != "not_accepted" || e.Reason != "incomplete" || !strings.Contains(e.Detail, "scan again") {
		t.Errorf("600 bytes without an end are answered with %s", e.Data)
	}
	g.tone("R")
	next()
	// With its identifier a symbol without GS is read by the standard: the whole text is the lot, never split by
	// guess. From a scanner that sends no identifiers it is flagged.
	whole := g.expect("accepted", "]d201"+bottleGTIN+"17271130"+"10A120721SN0001")
	flagged := g.expect("accepted", "01"+bottleGTIN+"17271130"+"10A120721SN0002")
	counted += 2
	if deref(whole.Item.Lot) != "A120721SN0001" || whole.Item.Serial != nil || deref(flagged.Item.Lot) != "A120721SN0002" || flagged.Item.Serial != nil ||
		!strings.Contains(flagged.Data, `"flags":["missing_separator_suspected"]`) {
		t.Errorf("events %s and %s", whole.Data, flagged.Data)
	}
	rows, lines := quiet(t, h)
	if len(rows) != counted || len(linesOf(lines, "rejected")) != 14 || len(linesOf(lines, "not_accepted")) != 1 {
		t.Errorf("%d rows, %d rejected and %d not accepted, want %d, 14 and 1", len(rows), len(linesOf(lines, "rejected")), len(linesOf(lines, "not_accepted")), counted)
	}
}
