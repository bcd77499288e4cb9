package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// Files of the spool that go bad under a running agent do not end it: scans are kept, what cannot be healed at once is
// told of, and the next start heals it.
func TestFilesGoBadWhileRunning(t *testing.T) {
	t.Parallel()
	h, p, st, g := bench(t, testenv.Setup{})
	accepted := map[string]bool{}
	scan := func(label string) {
		t.Helper()
		e := g.scan(matrix(bottleGTIN, label, "A1"))
		if e.Kind == "accepted" {
			accepted[e.EventID] = true
		}
	}
	scan("FIRST")
	active, err := filepath.Glob(filepath.Join(h.State, "spool", "*.seg"))
	if err != nil || len(active) != 1 {
		t.Fatal(active, err)
	}
	if err := os.Truncate(active[0], 0); err != nil {
		t.Fatal(err)
	}
	scan("REFUSED")
	scan("SECOND")
	st.Wait(t, 0, "the healing", alarm("spool_damage", true))
	if err := os.Truncate(filepath.Join(h.State, "spool", "state.db"), 0); err != nil {
		t.Fatal(err)
	}
	scan("THIRD")
	scan("FOURTH")
	s := h.Await(t, "the alarm of state.db", func(s *testenv.Status) bool {
		for _, a := range s.Alarms {
			if a.Code == "spool_damage" && strings.Contains(a.Hint, "restart the agent") {
				return true
			}
		}
		return false
	})
	if !s.Accepting || s.Counts.Unaccounted != 0 || s.Balance() != "" {
		t.Errorf("status %+v: %s", s, s.Balance())
	}
	if len(accepted) != 4 {
		t.Errorf("%d of 5 scans were accepted", len(accepted))
	}
	p.Stop(t)
	h.Start(t)
	rows, _ := quiet(t, h)
	if len(rows) != len(accepted) {
		t.Errorf("%d rows of %d accepted scans", len(rows), len(accepted))
	}
	for _, r := range rows {
		if !accepted[r.EventID] {
			t.Errorf("row %s was never told", r.EventID)
		}
	}
}
