package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// verdict is what audit verify says.
type verdict struct {
	OK       bool  `json:"ok"`
	Lines    int64 `json:"lines"`
	Gaps     int64 `json:"declared_gaps"`
	FirstBad *struct {
		AgentID    *string `json:"agent_id"`
		SpoolEpoch *string `json:"spool_epoch"`
		Seq        *int64  `json:"seq"`
		EventID    *string `json:"event_id"`
		Reason     string  `json:"reason"`
	} `json:"first_bad"`
}

func verify(t testing.TB, h *testenv.Home, args ...string) verdict {
	t.Helper()
	r := h.Call(t, append([]string{"--json", "audit", "verify"}, args...)...)
	var v verdict
	if err := json.Unmarshal([]byte(r.Stdout), &v); err != nil {
		t.Fatalf("audit verify: %v: %s%s", err, r.Stdout, r.Stderr)
	}
	if want := map[bool]int{true: 0, false: 1}[v.OK]; r.Code != want {
		t.Errorf("audit verify: exit code %d: %s", r.Code, r.Stdout)
	}
	return v
}

// Some runs of one agent, ended in both ways, make one chain of epochs; whatever is done to its export later is
// pointed at.
func TestAuditChainOverRuns(t *testing.T) {
	t.Parallel()
	h, p, _, g := bench(t, testenv.Setup{Directory: directory})
	first := g.expect("accepted", matrix(bottleGTIN, "SN0001", "A1207"))
	g.committed(first.EventID)
	bounce := g.expect("duplicate", matrix(bottleGTIN, "SN0001", "A1207"))
	refused := g.expect("rejected", "]d20100300937214107")
	quiet(t, h)
	p.Kill()
	p = h.Start(t)
	st := h.Follow(t)
	g = plug(t, h, st, "SCN-04")
	second := g.expect("accepted", matrix(bottleGTIN, "SN0002", "A1207"))
	g.committed(second.EventID)
	quiet(t, h)
	// The agent says the same as the command line.
	for body, want := range map[string]string{`{"ledger":true}`: `"ledger_only":[],"audit_only":[]}`, "": `"ledger_only":null,"audit_only":null}`} {
		var ask any
		if body != "" {
			ask = json.RawMessage(body)
		}
		code, answer := h.Ask(t, http.MethodPost, "/v1/audit/verify", ask)
		var v verdict
		if err := json.Unmarshal(answer, &v); code != http.StatusOK || err != nil || !v.OK || v.Lines != 6 || !strings.HasSuffix(strings.TrimSpace(string(answer)), want) {
			t.Errorf("audit verify of the agent: %d %s", code, answer)
		}
	}
	p.Stop(t)

	if v := verify(t, h, "--ledger"); !v.OK || v.Lines != 6 || v.Gaps != 0 {
		t.Fatalf("%+v %+v", v, v.FirstBad)
	}
	r := h.Call(t, "audit", "export")
	lines := strings.SplitAfter(strings.TrimSpace(r.Stdout)+"\n", "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" })
	epochs := map[string]bool{}
	for _, l := range lines {
		var rec struct {
			Epoch string `json:"spool_epoch"`
		}
		if err := json.Unmarshal([]byte(l), &rec); err != nil {
			t.Fatal(err)
		}
		if rec.Epoch != "" {
			epochs[rec.Epoch] = true
		}
	}
	if len(epochs) != 2 {
		t.Errorf("%d epochs in the chain, want 2:\n%s", len(epochs), r.Stdout)
	}
	path := filepath.Join(t.TempDir(), "trail.jsonl")
	of := func(event string) func(string) bool {
		return func(l string) bool { return strings.HasPrefix(l, `{"event_id":"`+event) }
	}
	for name, c := range map[string]struct {
		change func(ls []string) []string
		event  string
		reason string
	}{
		"a suppressed line removed": {func(ls []string) []string { return slices.DeleteFunc(ls, of(bounce.EventID)) }, bounce.EventID, "missing"},
		"the last row removed":      {func(ls []string) []string { return slices.DeleteFunc(ls, of(second.EventID)) }, second.EventID, "missing"},
		"a row's scanner altered": {func(ls []string) []string {
			i := slices.IndexFunc(ls, of(first.EventID))
			ls[i] = strings.Replace(ls[i], `"SCN-04"`, `"SCN-05"`, 1)
			return ls
		}, first.EventID, "altered"},
		"a refusal's reason altered": {func(ls []string) []string {
			i := slices.IndexFunc(ls, func(l string) bool { return strings.Contains(l, `"`+refused.Reason+`"`) })
			ls[i] = strings.Replace(ls[i], `"`+refused.Reason+`"`, `"bad_date"`, 1)
			return ls
		}, "", "altered"},
	} {
		if err := os.WriteFile(path, []byte(strings.Join(c.change(slices.Clone(lines)), "")), 0o600); err != nil {
			t.Fatal(err)
		}
		v := verify(t, h, path)
		if v.OK || v.FirstBad == nil || v.FirstBad.Reason != c.reason || c.event != "" && deref(v.FirstBad.EventID) != c.event || v.FirstBad.SpoolEpoch == nil {
			t.Errorf("%s: %+v %+v", name, v, v.FirstBad)
		}
	}
}

// Somebody with the database owner's rights alters lines and rows: the chain points at each.
func TestCentralAuditChain(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, _, _, g := c.bench(t, testenv.Setup{})
	first := g.expect("accepted", matrix(bottleGTIN, "SN0001", "A1207"))
	g.committed(first.EventID)
	bounce := g.expect("duplicate", matrix(bottleGTIN, "SN0001", "A1207"))
	second := g.expect("accepted", matrix(bottleGTIN, "SN0002", "A1207"))
	g.committed(second.EventID)
	c.settled(t, h)
	c.await(t, "the whole chain", func() bool {
		return c.count(t, "SELECT count(*) FROM scan_audit") == c.count(t, "SELECT coalesce(sum(cardinality(event_ids)), 0) FROM scan_audit_chain")
	})
	for name, x := range map[string]struct{ do, undo, event, reason string }{
		"a line's time":    {"UPDATE scan_audit_line SET at = at + interval '1 ms' WHERE event_id = '" + bounce.EventID + "'", "UPDATE scan_audit_line SET at = at - interval '1 ms' WHERE event_id = '" + bounce.EventID + "'", bounce.EventID, "altered"},
		"a row's scanner":  {"UPDATE scan_ledger SET scanner_id = 'SCN-05' WHERE event_id = '" + second.EventID + "'", "UPDATE scan_ledger SET scanner_id = 'SCN-04' WHERE event_id = '" + second.EventID + "'", second.EventID, "altered"},
		"a record's lines": {"UPDATE scan_audit_chain SET line_hashes = line_hashes || line_hashes", "UPDATE scan_audit_chain SET line_hashes = substring(line_hashes FROM 1 FOR octet_length(line_hashes) / 2)", "", "altered"},
	} {
		c.pg.Exec(t, c.db, x.do)
		v := verify(t, h)
		if v.OK || v.FirstBad == nil || v.FirstBad.Reason != x.reason || deref(v.FirstBad.EventID) != x.event || v.FirstBad.Seq == nil {
			t.Errorf("%s: %+v %+v", name, v, v.FirstBad)
		}
		c.pg.Exec(t, c.db, x.undo)
		if v := verify(t, h, "--ledger"); !v.OK {
			t.Errorf("%s, put back: %+v %+v", name, v, v.FirstBad)
		}
	}
	// The end of the chain, with its lines and rows: the agent knows what it has sent.
	const last = "(SELECT unnest(event_ids) FROM scan_audit_chain WHERE seq = (SELECT max(seq) FROM scan_audit_chain))"
	c.pg.Exec(t, c.db, "BEGIN; DELETE FROM scan_ledger WHERE event_id IN "+last+"; DELETE FROM scan_audit_line WHERE event_id IN "+last+
		"; CREATE TABLE aside AS SELECT * FROM scan_audit_chain ORDER BY seq DESC LIMIT 1; DELETE FROM scan_audit_chain WHERE seq = (SELECT max(seq) FROM scan_audit_chain); COMMIT")
	if v := verify(t, h, "--ledger"); v.OK || v.FirstBad == nil || v.FirstBad.Reason != "missing" {
		t.Errorf("the end of the chain cut off: %+v %+v", v, v.FirstBad)
	}
	c.pg.Exec(t, c.db, "INSERT INTO scan_audit_chain SELECT * FROM aside")
	c.pg.Exec(t, c.db, "DELETE FROM scan_audit_line WHERE event_id = '"+bounce.EventID+"'")
	if v := verify(t, h); v.OK || v.FirstBad == nil || v.FirstBad.Reason != "missing" || deref(v.FirstBad.EventID) != bounce.EventID {
		t.Errorf("a line removed: %+v %+v", v, v.FirstBad)
	}
}
