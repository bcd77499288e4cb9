package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scanonce/internal/api"
)

// trailLines reads a trail of the audit's own tests.
func trailLines(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "audit", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
}

func TestAuditVerifyFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, lines ...string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := trailLines(t, "trail.jsonl")
	out, _ := call(t, exitBad, "--json", "audit", "verify", write("good.jsonl", append(good, "", "")...)) // but for its chain
	if want := `{"ok":false,"lines":11,"records":0,"declared_gaps":1,"first_bad":{"line":12,"agent_id":"agent-a",`; !strings.HasPrefix(out, want) || !strings.Contains(out, `"reason":"missing"`) {
		t.Errorf("%s, want %s", out, want)
	}
	out, _ = call(t, exitOK, "audit", "verify", write("empty.jsonl"))
	if out != "ok: 0 lines, 0 records, 0 declared gaps\n" {
		t.Errorf("an empty trail: %q", out)
	}
	for name, broken := range map[string]string{
		"cut off":          good[4][:len(good[4])-9],
		"no JSON":          "Patient 4711",
		"a list":           "[]",
		"a column more":    strings.Replace(good[4], "{", `{"patient":"4711",`, 1),
		"a column less":    strings.Replace(good[4], `"symbology":null,`, "", 1),
		"a column renamed": strings.Replace(good[4], `"symbology"`, `"symbol"`, 1),
		"another type":     strings.Replace(good[4], `"length":12`, `"length":"12"`, 1),
		"a time of its":    strings.Replace(good[4], `"at":"2025`, `"at":"Patient 4711`, 1),
		"something after":  good[4] + "{}",
	} {
		out, _ := call(t, exitBad, "--json", "audit", "verify", write("bad.jsonl", slices.Replace(slices.Clone(good), 4, 5, broken)...))
		var r api.AuditReport
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if f := r.FirstBad; r.OK || r.Lines != 11 || f == nil || f.Line != 5 || f.Reason != "altered" || strings.Contains(out, "4711") {
			t.Errorf("%s: %s", name, out)
		}
	}
	out, _ = call(t, exitBad, "audit", "verify", write("two.jsonl", good[1:]...))
	if !strings.HasPrefix(out, "NOT OK: 10 lines, 0 records, 1 declared gaps\nline 1 of agent agent-a, event 019aceee-0000-7000-8000-000000000002: missing: ") {
		t.Errorf("for people: %q", out)
	}
	var std, msg bytes.Buffer
	if code := Main([]string{"audit", "verify", "-"}, strings.NewReader(strings.Join(trailLines(t, "chain.jsonl"), "\n")), &std, &msg, nil); code != exitOK || std.String() != "ok: 8 lines, 4 records, 0 declared gaps\n" {
		t.Errorf("standard input: %d, %s%s", code, &std, &msg)
	}
}

func TestChainInAFile(t *testing.T) {
	lines := trailLines(t, "chain.jsonl")
	path := filepath.Join(t.TempDir(), "trail.jsonl")
	write := func() {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write()
	out, _ := call(t, exitOK, "--json", "audit", "verify", path)
	if want := `{"ok":true,"lines":8,"records":4,"declared_gaps":0,"first_bad":null,"ledger_only":null,"audit_only":null}` + "\n"; out != want {
		t.Errorf("%s, want %s", out, want)
	}
	lines[5] = strings.Replace(lines[5], `"SCN-04"`, `"SCN-05"`, 1)
	write()
	out, _ = call(t, exitBad, "--json", "audit", "verify", path)
	want := `"first_bad":{"line":6,"agent_id":"agent-a","spool_epoch":"000000000000000a","seq":2,"event_id":"019aceee-0000-7000-8000-000000000005","reason":"altered",`
	if !strings.Contains(out, want) {
		t.Errorf("%s, want %s", out, want)
	}
	lines[6] = strings.Replace(lines[6], `"seq":2`, `"seq":2,"patient":"4711"`, 1)
	lines = slices.Delete(lines, 5, 6)
	write()
	if out, _ = call(t, exitBad, "--json", "audit", "verify", path); !strings.Contains(out, `"line":6,"agent_id":null`) || strings.Contains(out, "4711") {
		t.Errorf("a column more: %s", out)
	}
}
