package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// secrets are texts that may stand nowhere but in the live events of a client that is there.
type secrets map[string]string // what it is, the text

// search says where a text is found, as it is or in one of its other forms.
func (s secrets) search(t *testing.T, where string, data []byte) {
	t.Helper()
	for what, text := range s {
		for _, form := range forms(text) {
			if i := bytes.Index(data, []byte(form)); i >= 0 {
				t.Errorf("%s holds %s: …%q…", where, what, data[max(0, i-60):min(len(data), i+len(form)+20)])
			}
		}
	}
}

// forms are the ways in which a text could stand in a file: as it is, in hexadecimal digits, in base64 at any
// place.
func forms(text string) []string {
	out := []string{text, hex.EncodeToString([]byte(text)), strings.ToUpper(hex.EncodeToString([]byte(text)))}
	for lead := range 3 {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("-", lead) + text))
		out = append(out, b[(lead*8+5)/6:(lead+len(text))*8/6]) // the digits that the text alone decides
	}
	return out
}

// searchFolder looks into every file, as grep -a does.
func (s secrets) searchFolder(t *testing.T, dir string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		s.search(t, strings.TrimPrefix(path, dir), b)
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("searched %d files: %v", files, err)
	}
}

// No payload and nothing about a patient in any output or file.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	const (
		rx      = "RX904455667-07-3388221"
		opaque  = "Jane Canary 1950-02-03 warfarin"
		licence = "@\n\x1e\rANSI 636014080002DL00410288ZC03290015DLDAQCANARYD1234562\nDCSCANARYSURNAME\nDACCANARYGIVEN\nDBB02031950\nDAG1 CANARY STREET\nDAICANARYTOWN\r"
	)
	label := matrix(bottleGTIN, "CANARYSERIAL77", "CANARYLOT")
	s := secrets{
		"an element string":      strings.TrimPrefix(label, "]d2"),
		"a piece of one":         "21CANARYSERIAL77",
		"a serial and its GS":    "CANARYSERIAL77" + gs,
		"an Rx number":           "904455667",
		"a store number":         "3388221",
		"an unknown text":        "Jane Canary",
		"its drug":               "warfarin",
		"a licence number":       "CANARYD1234562",
		"a licence's name":       "CANARYSURNAME",
		"a given name":           "CANARYGIVEN",
		"a street":               "CANARY STREET",
		"a town":                 "CANARYTOWN",
		"a date of birth":        "DBB02031950",
		"a code with a bad sum":  "300937214107",
		"half a scan":            "HALFCANARY",
		"a text without an end":  "LONGCANARY",
		"the facility's secret":  "canary facility secret",
		"a truncated DataMatrix": "CANARYCUT",
	}
	secretFile := filepath.Join(t.TempDir(), "facility.secret")
	if err := os.WriteFile(secretFile, []byte("canary facility secret 0123456789\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	setup := testenv.Setup{
		Agent:     "facility_secret_file = \"" + secretFile + "\"\nlog_level = \"debug\"\n",
		Sections:  "[[rx_profile]]\nname = \"canary\"\npattern = '^RX(?P<rx>\\d{9})-(?P<refill>\\d{2})-(?P<store>\\d{7})$'\n",
		Scanners:  []string{"SCN-04", "SCN-05", "SCN-06"},
		Directory: directory,
	}
	h := program.NewHome(t, setup)
	// Each scanner has a framing of its own.
	cfg, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	text := string(cfg)
	for id, framing := range map[string]string{"SCN-04": "cr", "SCN-05": "lf", "SCN-06": "crlf"} {
		text = strings.Replace(text, "id = \""+id+"\"\n", "id = \""+id+"\"\nframing = \""+framing+"\"\n", 1)
	}
	if err := os.WriteFile(h.Config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Start(t).Stop(t)
	release := hold(t, h) // so that the spool has to keep it
	p := h.Start(t)
	st := h.Follow(t)
	begin := st.LastID()
	guns := []*gun{plugAs(t, h, st, "SCN-04", "\r"), plugAs(t, h, st, "SCN-05", "\n"), plugAs(t, h, st, "SCN-06", "\r\n")}

	look := func() {
		t.Helper()
		s.searchFolder(t, h.State)
		log, err := os.ReadFile(h.Log)
		if err != nil || len(log) == 0 {
			t.Fatalf("the log has %d bytes: %v", len(log), err)
		}
		s.search(t, "the log", log)
	}
	token := map[string]bool{}
	for _, g := range guns {
		g.expect("accepted", label)
		g.expect("duplicate", label)
		e := g.expect("label", rx)
		if deref(e.Rx) != "904455667" || deref(e.Refill) != "07" || deref(e.Store) != "3388221" || !strings.HasPrefix(deref(e.RxToken), "rx1.") || e.Redacted {
			t.Errorf("label event %s", e.Data)
		}
		token[deref(e.RxToken)] = true
		if e = g.expect("accepted", matrix(bottleGTIN, "CANARYSERIAL78", "CANARYLOT")); !token[deref(e.RxToken)] {
			t.Errorf("event %s", e.Data)
		}
		if e = g.expect("unknown", opaque); deref(e.Text) != opaque || e.Redacted {
			t.Errorf("unknown event %s", e.Data)
		}
		g.expect("rejected", "]E00300937214107")
		g.expect("rejected", "]d201"+bottleGTIN+"99CANARYCUT"+gs+"21")
		before := h.Status(t).Frames
		e = g.scan(licence)
		if e.Kind != "rejected" || e.Reason != "id_document" {
			t.Errorf("scanner %s: the licence is answered with %s", g.ID, e.Data)
		}
		// What line framing makes of its other lines is void, and told of by nothing but the tone.
		pace(t, 500*time.Millisecond)
		after := h.Status(t).Frames
		if after.Rejected != before.Rejected+1 || after.Control != before.Control || after.Captured != before.Captured || after.NotAccepted != before.NotAccepted {
			t.Errorf("scanner %s: frames %+v, before the licence %+v", g.ID, after, before)
		}
		if err := g.Write([]byte("]d201HALFCANARY")); err != nil {
			t.Fatal(err)
		}
		if e := g.answer(); e.Kind != "not_accepted" || e.Reason != "incomplete" {
			t.Errorf("half a scan is answered with %s", e.Data)
		}
		if e := g.scan(strings.Repeat("LONGCANARY", 500)); e.Kind != "rejected" || e.Reason != "too_long" {
			t.Errorf("5000 bytes are answered with %s", e.Data)
		}
		if err := g.Type("SCANONCE-SAMEAGAIN"); err != nil { // brings the last duplicate out of the agent's memory
			t.Fatal(err)
		}
		if e := g.answer(); e.Kind != "accepted" {
			t.Errorf("same again is answered with %s", e.Data)
		}
	}
	if len(token) != 1 || token[""] {
		t.Errorf("tokens of one label: %v", token)
	}
	look()
	if r := h.Call(t, "spool", "export"); r.Code != 0 || strings.Count(r.Stdout, "\n") != 12 || strings.Count(r.Stdout, `"rx_token":"rx1.`) != 3 {
		t.Errorf("spool export: %d %s%s", r.Code, r.Stdout, r.Stderr)
	} else {
		s.search(t, "spool export", []byte(r.Stdout))
	}
	// What is sealed does not show a serial number either.
	segments, err := filepath.Glob(filepath.Join(h.State, "spool", "*"))
	if err != nil || len(segments) < 3 {
		t.Fatalf("files of the spool: %v, %v", segments, err)
	}
	for _, path := range segments {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, plain := range []string{"CANARYSERIAL77", "CANARYLOT", bottleNDC, bottleGTIN} {
			if bytes.Contains(b, []byte(plain)) {
				t.Errorf("%s holds %s in clear", filepath.Base(path), plain)
			}
		}
	}
	p.Kill()
	look()
	release()
	h.Start(t)
	rows, _ := quiet(t, h)
	linked := 0 // the scans behind the labels
	for _, r := range rows {
		if r.RxToken != nil && token[*r.RxToken] {
			linked++
		}
	}
	if len(rows) != 9 || linked != 3 {
		t.Errorf("%d rows, %d of them with the label's token, want 9 and 3", len(rows), linked)
	}
	// A copy of the stream that is read later has the tokens, and nothing else of it.
	copied := h.FollowFrom(t, begin)
	_, end := copied.Wait(t, 0, "the copied events", func(e *testenv.Event) bool { return e.Kind == "committed" })
	labels, unknowns := 0, 0
	for _, e := range copied.Events()[:end] {
		s.search(t, "a copied event", []byte(e.Data))
		switch e.Kind {
		case "gap":
			t.Errorf("the copy has a gap: %s", e.Data)
		case "label":
			labels++
			if !e.Redacted || e.Rx != nil || e.Refill != nil || e.Store != nil || !token[deref(e.RxToken)] || !strings.Contains(e.Data, `"rx":null`) {
				t.Errorf("copied event %s", e.Data)
			}
		case "unknown":
			unknowns++
			if !e.Redacted || e.Text != nil || !strings.Contains(e.Data, `"text":null`) {
				t.Errorf("copied event %s", e.Data)
			}
		}
	}
	if labels != 3 || unknowns != 3 {
		t.Errorf("%d labels and %d unknown texts in the copy", labels, unknowns)
	}
	look()
	_, metrics := h.Ask(t, http.MethodGet, "/metrics", nil)
	audit := h.Call(t, "audit", "export")
	ledger := h.Call(t, "ledger", "export", "--format", "jsonl")
	s.search(t, "ledger export", []byte(ledger.Stdout))
	status := h.Call(t, "--json", "status")
	for what, out := range map[string][]byte{"/metrics": metrics, "audit export": []byte(audit.Stdout + audit.Stderr), "status": []byte(status.Stdout)} {
		if len(out) < 200 {
			t.Errorf("%s has %d bytes", what, len(out))
		}
		s.search(t, what, out)
		for _, serial := range []string{"CANARYSERIAL77", "CANARYLOT"} {
			if bytes.Contains(out, []byte(serial)) {
				t.Errorf("%s holds %s", what, serial)
			}
		}
	}
	log, err := os.ReadFile(h.Log)
	if err != nil || bytes.Contains(log, []byte("CANARYSERIAL77")) || !bytes.Contains(log, []byte(`"level":"`)) {
		t.Errorf("the log names a serial number, or is none: %v", err)
	}
}
