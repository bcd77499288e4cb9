package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/window"
)

// Lines of a trail by small numbers: event n, key k.
func eventOf(n int) string { return fmt.Sprintf("019aceee-0000-7000-8000-%012d", n) }

func keyOf(k int) string { return fmt.Sprintf("scan:idem:%064x", k) }

func auditLine(event int, outcome string, change func(*api.AuditEntry)) api.AuditEntry {
	scanner, typ, at := "SCN-04", "dispense", window.UTC(1762206339000)
	e := api.AuditEntry{EventID: eventOf(event), AgentID: "agent-a", At: at, Outcome: outcome, ScannerID: &scanner, ScanType: &typ, CapturedAt: &at, RecordedAt: at}
	if change != nil {
		change(&e)
	}
	return e
}

func committedLine(event, key int) api.AuditEntry {
	return auditLine(event, "committed", func(e *api.AuditEntry) { e.Key = ptr(keyOf(key)) })
}

func suppressedLine(event, key, winner int) api.AuditEntry {
	return auditLine(event, "suppressed", func(e *api.AuditEntry) {
		e.Key, e.Winner, e.Reason, e.TTLMS = ptr(keyOf(key)), ptr(eventOf(winner)), ptr("bounce"), ptr(60000)
	})
}

func ptr[T any](v T) *T { return &v }

func goodTrail() []api.AuditEntry {
	return []api.AuditEntry{
		committedLine(1, 1),
		suppressedLine(2, 1, 1),
		suppressedLine(3, 2, 4), // its committed line comes later
		committedLine(4, 2),
		auditLine(5, "rejected", func(e *api.AuditEntry) { e.Reason, e.Length = ptr("check_digit"), ptr(12) }),
		auditLine(6, "quarantined", func(e *api.AuditEntry) { e.Ref = ptr(eventOf(1)) }),
		auditLine(7, "control", func(e *api.AuditEntry) { e.Reason, e.ScanType = ptr("label"), nil }),
		auditLine(8, "notice", func(e *api.AuditEntry) {
			e.Reason, e.ScannerID, e.ScanType, e.CapturedAt = ptr("epoch_start"), nil, nil, nil
			e.Length = ptr(3)
		}),
		auditLine(9, "notice", func(e *api.AuditEntry) { e.Reason = ptr("clock_step") }),
		auditLine(10, "committed", func(e *api.AuditEntry) { e.Key, e.Reason = ptr(keyOf(3)), ptr("claim_bypassed") }),
		auditLine(11, "not_accepted", func(e *api.AuditEntry) { e.Reason = ptr("spool_full") }),
	}
}

func check(trail []api.AuditEntry) (*checker, api.AuditReport) {
	c := newChecker()
	for i := range trail {
		c.add(&trail[i])
	}
	return c, c.report()
}

func TestAuditCheck(t *testing.T) {
	_, r := check(goodTrail())
	if !r.OK || r.Lines != 11 || r.DeclaredGaps != 1 || r.FirstBad != nil {
		t.Fatalf("a good trail: %+v %+v", r, r.FirstBad)
	}
	resolved := goodTrail()
	resolved[8].Reason = ptr("conflict_resolved by R. Okafor")
	if _, r := check(resolved); !r.OK {
		t.Errorf("a conflict that somebody has seen to: %+v", r.FirstBad)
	}
	edit := func(i int, change func(*api.AuditEntry)) func([]api.AuditEntry) []api.AuditEntry {
		return func(tr []api.AuditEntry) []api.AuditEntry { change(&tr[i]); return tr }
	}
	for name, c := range map[string]struct {
		change func([]api.AuditEntry) []api.AuditEntry
		line   int64
		reason string
	}{
		"committed line removed":       {func(tr []api.AuditEntry) []api.AuditEntry { return slices.Delete(tr, 0, 1) }, 1, "missing"},
		"later committed line removed": {func(tr []api.AuditEntry) []api.AuditEntry { return slices.Delete(tr, 3, 4) }, 3, "missing"},
		"two committed lines of a key": {func(tr []api.AuditEntry) []api.AuditEntry { return append(tr, committedLine(12, 1)) }, 12, "altered"},
		"a line twice":                 {func(tr []api.AuditEntry) []api.AuditEntry { return append(tr, tr[4]) }, 12, "altered"},
		"an event with two verdicts":   {func(tr []api.AuditEntry) []api.AuditEntry { return append(tr, suppressedLine(4, 1, 1)) }, 12, "altered"},
		"another winner":               {edit(1, func(e *api.AuditEntry) { e.Winner = ptr(eventOf(4)) }), 2, "altered"},
		"another winner, seen later":   {edit(2, func(e *api.AuditEntry) { e.Winner = ptr(eventOf(1)) }), 3, "altered"},
		"the key of another":           {edit(1, func(e *api.AuditEntry) { e.Key = ptr(keyOf(2)) }), 2, "altered"},
		"the first of two":             {edit(8, func(e *api.AuditEntry) { e.Outcome = "odd"; e.AgentID = "" }), 9, "altered"},
		"a missing one, then another":  {func(tr []api.AuditEntry) []api.AuditEntry { tr[8].Outcome = "odd"; return slices.Delete(tr, 3, 4) }, 3, "missing"},
		"no winner, no committed line": {func(tr []api.AuditEntry) []api.AuditEntry { tr[1].Winner = nil; return tr[1:] }, 1, "altered"},
		"winner in capitals":           {edit(1, func(e *api.AuditEntry) { e.Winner = ptr(strings.ToUpper(*e.Winner)) }), 2, "altered"},
		"outcome":                      {edit(4, func(e *api.AuditEntry) { e.Outcome = "approved" }), 5, "altered"},
		"event_id":                     {edit(4, func(e *api.AuditEntry) { e.EventID = "5" }), 5, "altered"},
		"event_id in capitals":         {edit(4, func(e *api.AuditEntry) { e.EventID = strings.ToUpper(e.EventID) }), 5, "altered"},
		"agent_id":                     {edit(4, func(e *api.AuditEntry) { e.AgentID = "a b" }), 5, "altered"},
		"no time":                      {edit(4, func(e *api.AuditEntry) { e.At = 0 }), 5, "altered"},
		"never recorded":               {edit(4, func(e *api.AuditEntry) { e.RecordedAt = 0 }), 5, "altered"},
		"scan type":                    {edit(4, func(e *api.AuditEntry) { e.ScanType = ptr("sale") }), 5, "altered"},
		"length":                       {edit(4, func(e *api.AuditEntry) { e.Length = ptr(-1) }), 5, "altered"},
		"reason of a refusal":          {edit(4, func(e *api.AuditEntry) { e.Reason = ptr("bounce") }), 5, "altered"},
		"reason of a suppression":      {edit(1, func(e *api.AuditEntry) { e.Reason = nil }), 2, "altered"},
		"reason of a commit":           {edit(0, func(e *api.AuditEntry) { e.Reason = ptr("other_agent") }), 1, "altered"},
		"reason of a notice":           {edit(8, func(e *api.AuditEntry) { e.Reason = ptr("Patient 4711") }), 9, "altered"},
		"a notice by nobody":           {edit(8, func(e *api.AuditEntry) { e.Reason = ptr("conflict_resolved by ") }), 9, "altered"},
		"a notice of another kind":     {edit(8, func(e *api.AuditEntry) { e.Reason = ptr("epoch_start by R. Okafor") }), 9, "altered"},
		"reason of a control":          {edit(6, func(e *api.AuditEntry) { e.Reason = ptr("epoch_start") }), 7, "altered"},
		"reason of not accepted":       {edit(10, func(e *api.AuditEntry) { e.Reason = nil }), 11, "altered"},
		"committed without key":        {edit(0, func(e *api.AuditEntry) { e.Key = nil }), 1, "altered"},
		"a key that is none":           {edit(0, func(e *api.AuditEntry) { e.Key = ptr("scan:idem:1") }), 1, "altered"},
		"an edge key":                  {edit(0, func(e *api.AuditEntry) { e.Key = ptr("scan:edge:" + strings.Repeat("0", 64)) }), 1, "altered"},
		"committed with ref":           {edit(0, func(e *api.AuditEntry) { e.Ref = ptr(eventOf(1)) }), 1, "altered"},
		"committed without scanner":    {edit(0, func(e *api.AuditEntry) { e.ScannerID = nil }), 1, "altered"},
		"committed with winner":        {edit(0, func(e *api.AuditEntry) { e.Winner = ptr(eventOf(4)) }), 1, "altered"},
		"committed with ttl":           {edit(0, func(e *api.AuditEntry) { e.TTLMS = ptr(1) }), 1, "altered"},
		"suppressed without winner":    {edit(1, func(e *api.AuditEntry) { e.Winner = nil }), 2, "altered"},
		"suppressed by itself":         {edit(1, func(e *api.AuditEntry) { e.Winner = ptr(e.EventID) }), 2, "altered"},
		"refusal with key":             {edit(4, func(e *api.AuditEntry) { e.Key = ptr(keyOf(1)) }), 5, "altered"},
		"refusal with a ref":           {edit(4, func(e *api.AuditEntry) { e.Ref = ptr("x") }), 5, "altered"},
		"quarantined without ref":      {edit(5, func(e *api.AuditEntry) { e.Ref = nil }), 6, "altered"},
		"quarantined under its own id": {edit(5, func(e *api.AuditEntry) { e.Ref = ptr(e.EventID) }), 6, "altered"},
	} {
		trail := c.change(goodTrail())
		_, r := check(trail)
		if r.OK || r.FirstBad == nil {
			t.Errorf("%s: not found", name)
			continue
		}
		f := r.FirstBad
		if f.Line != c.line || f.Reason != c.reason || f.Detail == "" || strings.Contains(f.Detail, "Patient") {
			t.Errorf("%s: line %d, %s (%s), want line %d, %s", name, f.Line, f.Reason, f.Detail, c.line, c.reason)
		}
		if e := trail[f.Line-1]; e.EventID != "" && (f.EventID == nil || *f.EventID != e.EventID) {
			t.Errorf("%s: event %s, want %s", name, text(f.EventID), e.EventID)
		}
	}
}

func TestAuditReconciles(t *testing.T) {
	row := func(k, e int) (idem.Key, idem.EventID) {
		key, err := idem.ParseKey(keyOf(k))
		if err != nil {
			t.Fatal(err)
		}
		id, err := idem.ParseEventID(eventOf(e))
		if err != nil {
			t.Fatal(err)
		}
		return key, id
	}
	ledger := func(pairs ...[2]int) map[idem.Key]idem.EventID {
		m := map[idem.Key]idem.EventID{}
		for _, p := range pairs {
			k, e := row(p[0], p[1])
			m[k] = e
		}
		return m
	}
	for name, c := range map[string]struct {
		trail                 []api.AuditEntry
		rows                  map[idem.Key]idem.EventID
		ledgerOnly, auditOnly []string
	}{
		"both agree":               {goodTrail(), ledger([2]int{1, 1}, [2]int{2, 4}, [2]int{3, 10}), []string{}, []string{}},
		"a row without line":       {goodTrail(), ledger([2]int{1, 1}, [2]int{2, 4}, [2]int{3, 10}, [2]int{9, 9}), []string{keyOf(9)}, []string{}},
		"a line without row":       {goodTrail(), ledger([2]int{1, 1}, [2]int{3, 10}), []string{}, []string{keyOf(2)}},
		"another event's row":      {goodTrail(), ledger([2]int{1, 7}, [2]int{2, 4}, [2]int{3, 10}), []string{keyOf(1)}, []string{keyOf(1)}},
		"suppressions without row": {[]api.AuditEntry{suppressedLine(1, 8, 2), suppressedLine(3, 8, 2)}, ledger(), []string{}, []string{keyOf(8)}},
		"suppressed but a row is":  {[]api.AuditEntry{suppressedLine(1, 8, 2)}, ledger([2]int{8, 2}), []string{keyOf(8)}, []string{}},
	} {
		k, r := check(c.trail)
		k.reconcile(c.rows, &r)
		if !slices.Equal(r.LedgerOnly, c.ledgerOnly) || !slices.Equal(r.AuditOnly, c.auditOnly) || r.LedgerOnly == nil || r.AuditOnly == nil {
			t.Errorf("%s: ledger_only %v, audit_only %v", name, r.LedgerOnly, r.AuditOnly)
		}
		if want := r.FirstBad == nil && len(c.ledgerOnly)+len(c.auditOnly) == 0; r.OK != want {
			t.Errorf("%s: ok %v", name, r.OK)
		}
		if k.lacksRow(c.rows) != (len(c.auditOnly) > 0) {
			t.Errorf("%s: a second look at the ledger is not taken when it must be", name)
		}
	}
}

// The files that the command line's tests read are these trails.
func TestTrailsOfTheTests(t *testing.T) {
	var lines, chain []api.AuditItem
	for _, e := range goodTrail() {
		lines = append(lines, api.AuditItem{Line: &e})
	}
	chain = goodChain(t).items
	for name, items := range map[string][]api.AuditItem{"trail.jsonl": lines, "chain.jsonl": chain} {
		var b bytes.Buffer
		for _, i := range items {
			if err := json.NewEncoder(&b).Encode(i); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join("testdata", name)
		if os.Getenv("UPDATE_TRAILS") != "" {
			if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if file, err := os.ReadFile(path); err != nil || !bytes.Equal(file, b.Bytes()) {
			t.Errorf("%s is another trail (%v): run this test with UPDATE_TRAILS=1", path, err)
		}
	}
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}
