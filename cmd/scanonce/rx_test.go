package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

const (
	goldenSecret = "golden facility secret"
	// printf %s "$FACILITY|0123456|1234567|" | openssl dgst -sha256 -hmac "$SECRET" -r | cut -c1-32
	goldenToken = "rx1.c01737db.a36eace327bac08200d2f9b3b1c55907"
	goldenLabel = "1234567,0123456"
)

// secretFile writes a facility's secret for its owner alone.
func secretFile(t testing.TB, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "facility.secret")
	if err := os.WriteFile(path, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// rxSetup is a workstation whose labels hold a number and the pharmacy's NCPDP id.
func rxSetup(secretPath string) testenv.Setup {
	return testenv.Setup{
		Agent:     fmt.Sprintf("facility_secret_file = %q\n", secretPath),
		Sections:  "[[rx_profile]]\nname = \"ncpdp\"\npattern = '^(?P<rx>\\d{7}),(?P<store>\\d{7})$'\n",
		Directory: directory,
	}
}

// Scenario 9: a label is told to the application that listens, and is kept as a token only.
func TestRxLabel(t *testing.T) {
	t.Parallel()
	private := secrets{"the number": "1234567", "the store": "0123456", "the secret": goldenSecret}
	token := func(t *testing.T, setup testenv.Setup, framing, prefix, suffix string, args ...string) string {
		t.Helper()
		setup.Scanner = "framing = \"" + framing + "\"\n"
		h := program.NewHome(t, setup)
		p := h.Start(t, args...)
		st := h.Follow(t)
		begin := st.LastID()
		g := plugAs(t, h, st, "SCN-04", suffix)
		g.Framing.Prefix = prefix
		e := g.scan(goldenLabel)
		if framing != "acknak" {
			g.tone("G")
		}
		if e.Kind != "label" || deref(e.Rx) != "1234567" || deref(e.Store) != "0123456" || e.Refill != nil || e.Redacted || !strings.Contains(e.Data, `"profile":"ncpdp"`) || !strings.Contains(e.Data, `"refill":null`) {
			t.Errorf("event %s", e.Data)
		}
		rows, lines := quiet(t, h)
		control := linesOf(lines, "control")
		if len(rows) != 0 || len(control) != 1 || len(control)+len(linesOf(lines, "notice")) != len(lines) || deref(control[0].Reason) != "label" || control[0].Key != nil {
			t.Errorf("rows %+v, lines %+v", rows, lines)
		}
		copied, _ := h.FollowFrom(t, begin).Wait(t, 0, "the copied label", func(e *testenv.Event) bool { return e.Kind == "label" })
		if !copied.Redacted || copied.Rx != nil || copied.Store != nil || !strings.Contains(copied.Data, `"rx":null`) || deref(copied.RxToken) != deref(e.RxToken) {
			t.Errorf("copied event %s", copied.Data)
		}
		p.Stop(t)
		private.searchFolder(t, h.State)
		log, err := os.ReadFile(h.Log)
		if err != nil || !strings.Contains(string(log), `"secret_id":"`) {
			t.Errorf("the log does not name the secret: %v", err)
		}
		private.search(t, "the log", log)
		return deref(e.RxToken)
	}
	setup := rxSetup(secretFile(t, goldenSecret))
	first := token(t, setup, "cr", "", "\r")
	second := token(t, rxSetup(secretFile(t, goldenSecret)), "stx-etx", "\x02", "\x03") // another workstation, another framing
	third := token(t, setup, "acknak", "\x02]C0", "\x03")
	if first != goldenToken || second != first || third != first {
		t.Errorf("tokens %s, %s and %s, want %s", first, second, third, goldenToken)
	}
	elsewhere := token(t, rxSetup(secretFile(t, "the secret of elsewhere")), "line", "", "\r\n", "--set", "agent.facility_uuid=ELSEWHERE")
	sameSecret := token(t, setup, "line", "", "\n", "--set", "agent.facility_uuid=OTHER")
	if elsewhere == first || sameSecret != "rx1.c01737db.67dc4b49a130151f43760c9e7bbb41c8" {
		t.Errorf("another facility's tokens %s and %s", elsewhere, sameSecret)
	}
}

// A label's token goes with the product scans behind it on its scanner.
func TestPickContext(t *testing.T) {
	t.Parallel()
	const a, b = goldenLabel, "7654321,0123456"
	item := func(n string) string { return matrix(bottleGTIN, n, "A1207") }
	setup := func(t *testing.T, sections string, scanners ...string) testenv.Setup {
		s := rxSetup(secretFile(t, goldenSecret))
		s.Sections += sections
		s.Scanners = scanners
		return s
	}
	tokenOf := func(e testenv.Event) string { return deref(e.RxToken) }
	want := func(t *testing.T, e testenv.Event, token string) {
		t.Helper()
		if tokenOf(e) != token || !strings.Contains(e.Data, `"rx_token":`) {
			t.Errorf("event %s, want the token %q", e.Data, token)
		}
	}

	t.Run("on its scanner, in order", func(t *testing.T) {
		t.Parallel()
		h, p, st, g := bench(t, setup(t, "", "SCN-04", "SCN-05"))
		other := plug(t, h, st, "SCN-05")
		expected := map[string]string{} // by event
		accept := func(g *gun, n, token string) testenv.Event {
			t.Helper()
			e := g.expect("accepted", item(n))
			want(t, e, token)
			expected[e.EventID] = token
			return e
		}
		accept(g, "S1", "")
		ta := tokenOf(g.expect("label", a))
		accept(g, "S2", ta)
		accept(other, "S3", "")
		g.expect("duplicate", item("S2")) // uses nothing up
		accept(g, "S4", ta)
		g.expect("rejected", "300937214107")
		g.expect("unknown", "SHELF 12")
		g.expect("mode", "SCANONCE-QTY-2")
		accept(g, "S5", ta)
		tb := tokenOf(g.expect("label", b))
		if ta != goldenToken || tb == "" || tb == ta {
			t.Fatalf("tokens %s and %s", ta, tb)
		}
		accept(g, "S6", tb)
		accept(other, "S7", "")
		tother := tokenOf(other.expect("label", a))
		accept(other, "S8", tother)
		accept(g, "S9", tb)
		// What arrives at once is decided in its order.
		if err := g.Write([]byte(a + "\r" + item("T1") + "\r" + b + "\r" + item("T2") + "\r" + item("T3") + "\rSCANONCE-MODE-RETURN\r" + item("T4") + "\r" + a + "\r" + item("T5") + "\r")); err != nil {
			t.Fatal(err)
		}
		for i, token := range []string{"label", ta, "label", tb, tb, "mode", "", "label", ta} {
			e := g.answer()
			if token == "label" || token == "mode" {
				if e.Kind != token {
					t.Fatalf("answer %d: %s, want %s", i, e.Data, token)
				}
				continue
			}
			want(t, e, token)
			expected[e.EventID] = token
		}
		rows, _ := quiet(t, h)
		if len(rows) != len(expected) {
			t.Errorf("%d rows, want %d", len(rows), len(expected))
		}
		for _, r := range rows {
			if deref(r.RxToken) != expected[r.EventID] {
				t.Errorf("row %+v has the token %q, want %q", r, deref(r.RxToken), expected[r.EventID])
			}
		}
		// A restart forgets the label, at every scanner.
		p.Stop(t)
		h.Start(t)
		g.reading()
		other.reading()
		accept(g, "U1", "")
		accept(other, "U2", "")
	})

	t.Run("for its time", func(t *testing.T) {
		t.Parallel()
		const lasts = 2 * time.Second
		h, _, _, g := bench(t, setup(t, "[counter]\nrx_context = \"2s\"\n"))
		label := g.expect("label", a)
		seen := map[bool]int{}
		for i := 0; seen[false] < 2; i++ {
			e := g.expect("accepted", item(fmt.Sprintf("S%d", i)))
			within := e.CapturedAt.Sub(label.At) < lasts
			if d := e.CapturedAt.Sub(label.At) - lasts; d > -10*time.Millisecond && d < 10*time.Millisecond {
				continue // on the edge
			}
			if (tokenOf(e) == goldenToken) != within || (tokenOf(e) == "") == within {
				t.Errorf("%v behind the label: %s", e.CapturedAt.Sub(label.At), e.Data)
			}
			seen[within]++
			pace(t, 150*time.Millisecond)
		}
		if seen[true] == 0 {
			t.Error("no scan came within the label's time")
		}
		quiet(t, h)
	})

	t.Run("in its scan type", func(t *testing.T) {
		t.Parallel()
		h, _, st, g := bench(t, setup(t, "[counter]\nmode_idle = \"1s\"\n"))
		g.expect("label", a)
		g.expect("mode", "SCANONCE-MODE-RECEIVE")
		want(t, g.expect("accepted", item("S1")), "")
		g.expect("mode", "SCANONCE-MODE-RETURN")
		g.expect("label", a)
		want(t, g.expect("accepted", item("S2")), goldenToken)
		st.Wait(t, 0, "the end of the mode", func(e *testenv.Event) bool { return e.Kind == "mode" && e.Source == "idle" && e.ScanType == "dispense" })
		want(t, g.expect("accepted", item("S3")), "")
		g.expect("label", a)
		if code, b := h.Ask(t, http.MethodPut, "/v1/scanners/SCN-04/mode", map[string]any{"scan_type": "waste"}); code != http.StatusOK {
			t.Fatalf("PUT mode: %d %s", code, b)
		}
		want(t, g.expect("accepted", item("S4")), "")
	})

	t.Run("of a gun", func(t *testing.T) {
		t.Parallel()
		s := setup(t, "")
		s.Scanner = "gun_digits = 2\n"
		h, _, st, g := bench(t, s)
		scan := func(gun, data string) testenv.Event {
			t.Helper()
			if err := g.Type(gun + data); err != nil {
				t.Fatal(err)
			}
			var e testenv.Event
			e, g.pos = st.Wait(t, g.pos, "an answer", isAnswer("SCN-04/"+gun))
			return e
		}
		if e := scan("01", a); e.Kind != "label" {
			t.Fatalf("event %s", e.Data)
		}
		want(t, scan("02", item("S1")), "")
		want(t, scan("01", item("S1")), goldenToken)
		tb := tokenOf(scan("02", b))
		want(t, scan("01", item("S2")), goldenToken)
		want(t, scan("02", item("S2")), tb)
		quiet(t, h)
	})

	t.Run("a duplicate has its acceptance's", func(t *testing.T) {
		t.Parallel()
		h, _, _, g, release := outage(t, setup(t, "")) // the spool keeps it
		ta := tokenOf(g.expect("label", a))
		first := g.expect("accepted", bottle)
		tb := tokenOf(g.expect("label", b))
		dup := g.expect("duplicate", bottle)
		// Declared a movement of its own it is the scan that it was: behind the second label.
		again := g.expect("accepted", "SCANONCE-SAMEAGAIN")
		want(t, first, ta)
		want(t, again, tb)
		out := h.Call(t, "spool", "export")
		kept := map[string]string{}
		for _, r := range testenv.ParseLines[struct {
			EventID string  `json:"event_id"`
			RxToken *string `json:"rx_token"`
		}](t, out.Stdout) {
			kept[r.EventID] = deref(r.RxToken)
		}
		if len(kept) != 3 || kept[first.EventID] != ta || kept[dup.EventID] != ta || kept[again.EventID] != tb {
			t.Errorf("records %v, of %s, %s and %s", kept, first.EventID, dup.EventID, again.EventID)
		}
		release()
		rows, _ := quiet(t, h)
		if len(rows) != 2 || deref(rowByEvent(t, rows, first.EventID).RxToken) != ta || deref(rowByEvent(t, rows, again.EventID).RxToken) != tb {
			t.Errorf("rows %+v", rows)
		}
	})
}

// What is wrong with the facility's secret is told by check-config and ends run with code 2.
func TestFacilitySecretFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name, path, want string
		runs             bool
	}{
		{"missing", filepath.Join(dir, "none"), "no such file", false},
		{"a folder", dir, "is a directory", false},
		{"empty", write("empty", "\n", 0o600), "it is empty", false},
		{"short", write("short", "fifteen bytes..\n", 0o600), "15 bytes, at least 16", false},
		{"two secrets", write("two", goldenSecret+"\nformer facility secret\n", 0o600), "several lines", false},
		{"readable for all", write("open", goldenSecret+"\n", 0o644), "every user", true},
		{"readable for the group", write("good", goldenSecret+"\n", 0o640), "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := program.NewHome(t, rxSetup(c.path))
			r := h.Call(t, "check-config")
			if c.want == "" {
				if r.Code != 0 {
					t.Errorf("check-config: %d %s", r.Code, r.Stderr)
				}
			} else if r.Code != 2 || !strings.Contains(r.Stderr, "cannot use the facility's secret in "+c.path) || !strings.Contains(r.Stderr, c.want) || !strings.Contains(r.Stderr, "hint: ") {
				t.Errorf("check-config: %d %s", r.Code, r.Stderr)
			}
			said := r.Stderr + r.Stdout
			if c.runs {
				h.Start(t).Stop(t)
				log, err := os.ReadFile(h.Log)
				if err != nil || strings.Contains(string(log), "every user") != (c.want != "") {
					t.Errorf("the log: %v %s", err, log)
				}
				said += string(log)
			} else {
				if r = h.Call(t, "run"); r.Code != 2 || !strings.Contains(r.Stderr, c.want) {
					t.Errorf("run: %d %s", r.Code, r.Stderr)
				}
				said += r.Stderr
			}
			for _, secret := range []string{goldenSecret, "former", "fifteen"} {
				if strings.Contains(said, secret) {
					t.Errorf("the secret is told: %s", said)
				}
			}
		})
	}
}

// A facility that changes its secret gets other tokens from the reload on; one that is no good is refused.
func TestFacilitySecretChanges(t *testing.T) {
	t.Parallel()
	path := secretFile(t, goldenSecret)
	h, p, _, g := bench(t, rxSetup(path))
	if e := g.expect("label", goldenLabel); deref(e.RxToken) != goldenToken {
		t.Fatalf("event %s", e.Data)
	}
	if err := os.WriteFile(path, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGHUP)
	s := h.Await(t, "the refused reload", func(s *testenv.Status) bool { return s.Alarm("config") != nil })
	if al := s.Alarm("config"); !strings.Contains(al.Detail, "at least 16") || strings.Contains(al.Detail, "short") {
		t.Errorf("alarm %+v", al)
	}
	if e := g.expect("label", goldenLabel); deref(e.RxToken) != goldenToken {
		t.Errorf("after a refused reload: %s", e.Data)
	}
	if err := os.WriteFile(path, []byte("another facility secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGHUP)
	h.Await(t, "the reload", func(s *testenv.Status) bool { return s.Alarm("config") == nil })
	if e := g.expect("label", goldenLabel); deref(e.RxToken) != "rx1.4016cd07.4757883488ce735edb9a951157b62192" {
		t.Errorf("after the reload: %s", e.Data)
	}
}
