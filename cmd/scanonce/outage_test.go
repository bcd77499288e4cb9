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

// hold takes the lock of the embedded ledger, as another process would: to the agent it is an outage. release
// ends it.
func hold(t testing.TB, h *testenv.Home) (release func()) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(h.State, "ledger.db"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return func() { f.Close() }
}

// outage is a bench whose ledger is held by somebody else.
func outage(t testing.TB, s testenv.Setup) (h *testenv.Home, p *testenv.Process, st *testenv.Stream, g *gun, release func()) {
	t.Helper()
	s.Directory = directory
	h = program.NewHome(t, s)
	h.Start(t).Stop(t) // makes the ledger
	release = hold(t, h)
	p = h.Start(t)
	st = h.Follow(t)
	h.Await(t, "OFFLINE", func(s *testenv.Status) bool { return s.State == "OFFLINE" })
	return h, p, st, plug(t, h, st, "SCN-04"), release
}

func alarm(code string, active bool) func(*testenv.Event) bool {
	return func(e *testenv.Event) bool {
		return e.Kind == "alarm" && e.Code == code && e.Active != nil && *e.Active == active
	}
}

// Scenario 22: the spool fills up during an outage.
func TestSpoolFull(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		bound   string
		scans   int
		records int // that are accepted, 0 if the bytes decide
	}{
		"by records": {"max_records = 1000", 1100, 1000},
		"by bytes":   {"max_bytes = \"1MiB\"", 4000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, _, st, g, release := outage(t, testenv.Setup{Sections: "[spool]\n" + c.bound + "\nsegment_records = 300\n"})
			accepted := map[string]string{} // event, label
			label := func(i int) string { return matrix(bottleGTIN, fmt.Sprintf("F%05d", i), "A1207") }
			var refused []string
			var last testenv.Event
			echoes := 0
			for i := 0; i < c.scans && (c.records > 0 || len(refused) < 50); i++ {
				e := g.scan(label(i))
				switch e.Kind {
				case "accepted":
					g.tone("G")
					if len(refused) > 0 {
						t.Fatalf("scan %d is accepted after %d were refused", i, len(refused))
					}
					if e.Online == nil || *e.Online {
						t.Fatalf("online in an outage: %s", e.Data)
					}
					accepted[e.EventID] = label(i)
					last = e
				case "not_accepted":
					g.tone("R")
					if e.Reason != "spool_full" || e.Detail == "" {
						t.Fatalf("event %s", e.Data)
					}
					refused = append(refused, label(i))
					if len(refused) > 1 {
						break
					}
					// What repeats an accepted scan is told so even now, while the reserve for that lasts:
					// refusing it would have it scanned again.
					again := g.scan(accepted[last.EventID])
					switch {
					case again.Kind == "duplicate" && again.DuplicateOf == last.EventID:
						g.tone("D")
						echoes++
					case again.Kind == "not_accepted" && (c.records == 0 || again.At.Sub(last.CapturedAt) >= 3*time.Second):
						g.tone("R")
					default:
						t.Fatalf("what repeats the last accepted scan is answered with %s", again.Data)
					}
				default:
					t.Fatalf("event %s", e.Data)
				}
				if i == 10 && c.records == 0 {
					echoes++ // a duplicate takes room too
					g.expect("duplicate", label(i))
				}
			}
			if c.records > 0 && (len(accepted) != c.records || len(refused) != c.scans-c.records) {
				t.Fatalf("%d accepted, %d refused", len(accepted), len(refused))
			}
			if len(refused) == 0 {
				t.Fatal("the bound was never reached")
			}
			warned, n := st.Wait(t, 0, "the warning", alarm("spool_fill", true))
			before := 0
			for _, e := range st.Events()[:n] {
				if e.Kind == "accepted" {
					before++
				}
			}
			if share := float64(before) / float64(len(accepted)); share < 0.6 || share > 0.95 || warned.Detail == "" {
				t.Errorf("the warning came after %d of %d", before, len(accepted))
			}
			st.Wait(t, n, "the alarm", alarm("spool_full", true))
			s := h.Status(t)
			if s.Accepting || s.State != "OFFLINE" || s.Alarm("spool_full") == nil || s.Counts.Pending != int64(len(accepted)+echoes) || s.Spool.Fill < 1 || s.Balance() != "" {
				t.Errorf("status %+v, %s", s, s.Balance())
			}
			if r := h.Call(t, "status"); r.Code != 6 {
				t.Errorf("status ends with %d, want 6", r.Code)
			}
			if n := len(h.Spool(t)); n != len(accepted)+echoes {
				t.Errorf("the spool lists %d records, want %d", n, len(accepted)+echoes)
			}
			release()
			st.Wait(t, n, "the end of the alarm", alarm("spool_full", false))
			st.Wait(t, n, "RECONCILING", func(e *testenv.Event) bool { return e.Kind == "online" && e.State == "RECONCILING" })
			st.Wait(t, n, "ONLINE", func(e *testenv.Event) bool { return e.Kind == "online" && e.State == "ONLINE" })
			st.Wait(t, n, "the end of the warning", alarm("spool_fill", false))
			rows, lines := quiet(t, h)
			if len(rows) != len(accepted) {
				t.Errorf("%d rows of %d accepted scans", len(rows), len(accepted))
			}
			for _, r := range rows {
				if accepted[r.EventID] == "" {
					t.Errorf("row %s was never told", r.EventID)
				}
			}
			if n := len(linesOf(lines, "not_accepted")); n < len(refused) {
				t.Errorf("%d lines not_accepted of %d refused scans", n, len(refused))
			}
			if r := h.Call(t, "status"); r.Code != 0 {
				t.Errorf("status ends with %d afterwards: %s", r.Code, r.Stdout)
			}
			g.expect("accepted", refused[0])
			if rows, _ := quiet(t, h); len(rows) != len(accepted)+1 {
				t.Errorf("%d rows, want %d", len(rows), len(accepted)+1)
			}
		})
	}
}

// An outage changes no answer and no key; what waits is listed by a running agent and, without one, from the
// folder.
func TestOutage(t *testing.T) {
	t.Parallel()
	h, p, st, g, release := outage(t, testenv.Setup{})
	a := g.expect("accepted", matrix(bottleGTIN, "O1", "A1207"))
	b := g.expect("duplicate", matrix(bottleGTIN, "O1", "A1207"))
	if *a.Online || b.Key != a.Key || b.DuplicateOf != a.EventID {
		t.Errorf("answers %s and %s", a.Data, b.Data)
	}
	waiting := func() {
		t.Helper()
		w := h.Spool(t)
		if len(w) != 2 || w[0].EventID != a.EventID || w[0].Kind != "capture" || w[0].Key != a.Key || w[1].EventID != b.EventID || w[1].Kind != "duplicate" || w[1].Key != a.Key {
			t.Errorf("the spool lists %+v", w)
		}
		if r := h.Call(t, "spool", "ls", "--limit", "1"); r.Code != 0 || strings.Count(r.Stdout, "\n") != 1 {
			t.Errorf("spool ls --limit 1: %d %s", r.Code, r.Stdout)
		}
		if r := h.Call(t, "spool", "export"); r.Code != 0 || strings.Count(r.Stdout, "\n") != 2 {
			t.Errorf("spool export: %d %s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	waiting()
	if r := h.Call(t, "status"); r.Code != 0 || !strings.Contains(r.Stdout, "OFFLINE") { // nobody need come for that
		t.Errorf("status: %d %s", r.Code, r.Stdout)
	}
	if code, body := h.Ask(t, http.MethodGet, "/v1/ledger", nil); code != http.StatusServiceUnavailable {
		t.Errorf("GET /v1/ledger in an outage: %d %s", code, body)
	}
	if r := h.Call(t, "ledger", "export"); r.Code != 3 || !strings.Contains(r.Stderr, "scanonce: cannot ") {
		t.Errorf("ledger export in an outage: %d %s", r.Code, r.Stderr)
	}
	p.Stop(t) // with the ledger away, too, within its time
	waiting()
	g.pos = st.Len()
	h.Start(t)
	g.reading()
	waiting()
	release()
	rows, lines := quiet(t, h)
	if len(rows) != 1 || rows[0].IdemKey != a.Key || rows[0].EventID != a.EventID || !rows[0].CapturedAt.Equal(a.CapturedAt) || len(linesOf(lines, "suppressed")) != 1 {
		t.Errorf("rows %+v, lines %+v", rows, lines)
	}
	committed(t, st, a.EventID)
}
