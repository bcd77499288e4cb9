package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// central are the stores that the agents of a chain share: claims in Redis, rows in PostgreSQL. Agents reach
// them through proxies, which make the faults.
type central struct {
	redis  *testenv.Redis
	pg     *testenv.Postgres
	db     string
	claims *testenv.Proxy // to redis
	rows   *testenv.Proxy // to pg
}

func newCentral(t testing.TB, redisArgs ...string) *central {
	t.Helper()
	return centralOn(t, testenv.StartRedis(t, redisArgs...), testenv.PostgresOptions{NoFsync: true})
}

func centralOn(t testing.TB, redis *testenv.Redis, o testenv.PostgresOptions) *central {
	t.Helper()
	c := &central{redis: redis, pg: testenv.NewPostgres(t, o)}
	c.db = c.pg.NewDatabase(t)
	migrate(t, c.pg, c.db)
	c.pg.AgentDSN(t, c.db)
	c.claims, c.rows = testenv.NewProxy(t, c.redis.Addr), testenv.NewProxy(t, c.pg.Addr())
	return c
}

// migrate makes the schema, as the owner.
func migrate(t testing.TB, pg *testenv.Postgres, db string) {
	t.Helper()
	owner := filepath.Join(t.TempDir(), "owner.dsn")
	if err := os.WriteFile(owner, []byte(pg.SocketDSN(testenv.PostgresOwner, db)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := program.NewHome(t, testenv.Setup{})
	if r := h.Call(t, "ledger", "migrate", "--dsn-file", owner); r.Code != 0 {
		t.Fatalf("ledger migrate ends with %d: %s", r.Code, r.Stderr)
	}
}

// stores are the configuration's tables for servers at these addresses. more are lines of [claim], [postgres]
// and [forward].
type stores struct {
	redis, dsn               string
	claim, postgres, forward string
}

func (s stores) in(setup testenv.Setup) testenv.Setup {
	setup.Sections += fmt.Sprintf("[claim]\nbackend = \"redis\"\n%s\n[ledger]\nbackend = \"postgres\"\n[redis]\naddrs = [%q]\n[postgres]\ndsn = %q\n%s\n[forward]\n%s\n",
		s.claim, s.redis, s.dsn, s.postgres, s.forward)
	if setup.Directory == nil {
		setup.Directory = directory
	}
	return setup
}

// stores are the ones behind the proxies.
func (c *central) stores() stores {
	return stores{redis: c.claims.Addr(), dsn: c.pg.DSNAt(c.rows.Addr(), testenv.PostgresLogin, c.db)}
}

// bench is an agent on these stores with its stream and first scanner.
func (c *central) bench(t testing.TB, s testenv.Setup) (*testenv.Home, *testenv.Process, *testenv.Stream, *gun) {
	t.Helper()
	return bench(t, c.stores().in(s))
}

// mode sets both proxies.
func (c *central) mode(t testing.TB, m testenv.Mode) {
	t.Helper()
	c.claims.Set(t, m)
	c.rows.Set(t, m)
}

func (c *central) count(t testing.TB, sql string) int {
	t.Helper()
	return c.pg.Number(t, c.db, sql)
}

func waitOnline(s *testenv.Status) bool {
	return s.Counts.Pending == 0 && s.Frames.InFlight == 0 && s.State == "ONLINE"
}

// settled waits until nothing is pending at any of the agents, checks the laws of conservation, the exports,
// and the auditor's join in SQL, and returns rows and lines.
func (c *central) settled(t testing.TB, homes ...*testenv.Home) ([]testenv.Row, []testenv.Line) {
	t.Helper()
	var committed, suppressed int64
	for _, h := range homes {
		s := h.Await(t, "an end of what is pending", waitOnline)
		if broken := s.Balance(); broken != "" {
			t.Error(broken)
		}
		if n := s.Counts; n.Held+n.Quarantined+n.Discarded+n.Unaccounted != 0 {
			t.Errorf("counts %+v", n)
		}
		committed, suppressed = committed+s.Counts.Committed, suppressed+s.Counts.Suppressed
		if w := h.Spool(t); len(w) != 0 {
			t.Errorf("the spool still lists %+v", w)
		}
	}
	c.await(t, "the audit lines to arrive", func() bool {
		return int64(c.count(t, "SELECT count(*) FROM scan_audit_line WHERE outcome = 'suppressed'")) >= suppressed
	})
	rows, lines := homes[0].Ledger(t), homes[0].Audit(t)
	total := 0
	for _, n := range checkStores(t, rows, lines) {
		total += n
	}
	if committed != int64(len(rows)) || suppressed != int64(total) {
		t.Errorf("the agents count %d committed and %d suppressed, there are %d rows and %d lines", committed, suppressed, len(rows), total)
	}
	c.join(t)
	verified(t, homes[0])
	return rows, decisions(lines)
}

// await asks the database until it is as wanted: it gives no signal.
func (c *central) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testenv.Patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", testenv.Patience, what)
		}
		pace(t, 20*time.Millisecond)
	}
}

// join is the auditor's: ledger and audit agree, both ways.
func (c *central) join(t testing.TB) {
	t.Helper()
	for what, sql := range map[string]string{
		"keys without exactly one committed line": `SELECT count(*) FROM (SELECT key FROM scan_audit WHERE key IS NOT NULL GROUP BY key
			HAVING count(*) FILTER (WHERE outcome = 'committed') <> 1) AS x`,
		"rows without their committed line": `SELECT count(*) FROM scan_ledger_keys AS l LEFT JOIN scan_audit AS a
			ON a.key = l.key AND a.event_id = l.event_id AND a.outcome = 'committed' WHERE a.key IS NULL`,
		"committed lines without their row": `SELECT count(*) FROM scan_audit AS a LEFT JOIN scan_ledger_keys AS l
			ON a.key = l.key AND a.event_id = l.event_id WHERE a.outcome = 'committed' AND l.key IS NULL`,
		"suppressed lines that name no row": `SELECT count(*) FROM scan_audit AS a LEFT JOIN scan_ledger_keys AS l
			ON a.key = l.key AND a.winner_event_id = l.event_id WHERE a.outcome = 'suppressed' AND l.key IS NULL`,
		"events with two lines":                "SELECT count(*) FROM (SELECT event_id FROM scan_audit GROUP BY event_id HAVING count(*) > 1) AS x",
		"keys on lines that may not have them": "SELECT count(*) FROM scan_audit WHERE (key IS NOT NULL) <> (outcome IN ('committed', 'suppressed'))",
	} {
		if n := c.count(t, sql); n != 0 {
			t.Errorf("auditor's join: %d %s", n, what)
		}
	}
}

// claimed is the event that holds a claim in Redis, "" if none does.
func (c *central) claimed(key string) string {
	v, _ := c.redis.Do("GET", key).(string)
	return v
}

// Scenario 1 with central stores.
func TestCentralOneScanIsOneRow(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, _, _, g := c.bench(t, testenv.Setup{})
	h.Await(t, "ONLINE", waitOnline)
	w := testenv.NewWatch(t)
	e := g.expect("accepted", matrix(bottleGTIN, "SN0001", "A1207"))
	g.committed(e.EventID)
	w.Within(t, "the row", time.Second)
	if holder := c.claimed(e.Key); holder != e.EventID {
		t.Errorf("the claim is held by %q, want %s", holder, e.EventID)
	}
	rows, lines := c.settled(t, h)
	if len(rows) != 1 || len(lines) != 1 {
		t.Fatalf("%d rows, lines %+v", len(rows), lines)
	}
	if r := rows[0]; r.EventID != e.EventID || r.IdemKey != e.Key || r.NDC != bottleNDC || r.Lot != "A1207" || deref(r.Serial) != "SN0001" || deref(r.Expiry) != "2027-11-30" ||
		r.ScanType != "dispense" || r.Quantity != 1 || !r.CapturedAt.Equal(e.CapturedAt) || len(r.Flags) != 0 || !*e.Online {
		t.Errorf("row %+v of %s", r, e.Data)
	}
}

// Scenario 2 with central stores: bounces at all phases of the window.
func TestCentralBounceIsSuppressed(t *testing.T) {
	t.Parallel()
	const scanners, tries = 8, 6
	var ids []string
	for i := range scanners {
		ids = append(ids, fmt.Sprintf("SCN-%02d", i))
	}
	c := newCentral(t)
	h, _, st, first := c.bench(t, testenv.Setup{Scanners: ids})
	guns := []*gun{first}
	for _, id := range ids[1:] {
		guns = append(guns, plug(t, h, st, id))
	}
	type try struct{ a, b testenv.Event }
	var mu sync.Mutex
	var all []try
	t.Run("scanners", func(t *testing.T) {
		for n, g := range guns {
			t.Run(g.ID, func(t *testing.T) {
				t.Parallel()
				g.t = t
				for i := range tries {
					if i == 0 { // one over a boundary for certain
						until(t, boundaryAfter(3*time.Second, 200*time.Millisecond).Add(-100*time.Millisecond))
					} else {
						pace(t, time.Duration(rand.IntN(300))*time.Millisecond)
					}
					label := matrix(bottleGTIN, "", fmt.Sprintf("L%dT%d", n, i))
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
	rows, lines := c.settled(t, h)
	suppressed := checkStores(t, rows, lines)
	if len(rows) != scanners*tries || len(all) != scanners*tries {
		t.Fatalf("%d rows, %d answers for %d tries", len(rows), len(all), scanners*tries)
	}
	straddles := 0
	for _, x := range all {
		if x.a.Kind != "accepted" || x.b.Kind != "duplicate" || x.b.DuplicateOf != x.a.EventID || x.b.Key != x.a.Key || suppressed[x.a.Key] != 1 {
			t.Errorf("answers %s and %s, %d suppressed lines", x.a.Data, x.b.Data, suppressed[x.a.Key])
		}
		if x.a.CapturedAt.UnixMilli()/3000 != x.b.CapturedAt.UnixMilli()/3000 {
			straddles++
		}
	}
	if straddles == 0 {
		t.Error("no try lay over a window boundary: this proves little")
	}
}

// Scenarios 4, 5, 12 and 13 with central stores.
func TestCentralAtTheCounter(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, _, _, g := c.bench(t, testenv.Setup{})
	// 4: two bottles for one prescription.
	g.expect("accepted", matrix(ciiGTIN, "B1", "A1207"))
	pace(t, 800*time.Millisecond)
	g.expect("accepted", matrix(ciiGTIN, "B2", "A1207"))
	// 5: two bottles that no label tells apart, told, and counted by "same again".
	a := g.expect("accepted", bottle)
	pace(t, time.Second)
	b := g.expect("duplicate", bottle)
	if b.DuplicateOf != a.EventID || len(b.Actions) != 1 {
		t.Errorf("duplicate %s", b.Data)
	}
	again := g.expect("accepted", "SCANONCE-SAMEAGAIN")
	// 12: a quantity for one scan.
	if code, body := h.Ask(t, http.MethodPut, "/v1/scanners/SCN-04/quantity", map[string]any{"quantity": 30}); code != http.StatusOK {
		t.Fatalf("PUT quantity: %d %s", code, body)
	}
	q := g.expect("accepted", matrix(bottleGTIN, "", "Q1"))
	g.expect("duplicate", matrix(bottleGTIN, "", "Q1"))
	one := g.expect("accepted", matrix(bottleGTIN, "", "Q2"))
	// 13: a return within the window.
	d := g.expect("accepted", matrix(ciiGTIN, "R1", "A1207"))
	pace(t, 500*time.Millisecond)
	g.expect("mode", "SCANONCE-MODE-RETURN")
	pace(t, 500*time.Millisecond)
	r := g.expect("accepted", matrix(ciiGTIN, "R1", "A1207"))
	rows, lines := c.settled(t, h)
	if len(rows) != 8 || len(linesOf(lines, "suppressed")) != 2 {
		t.Errorf("%d rows, %d suppressed lines, want 8 and 2", len(rows), len(linesOf(lines, "suppressed")))
	}
	if x := rowByEvent(t, rows, again.EventID); !strings.Contains(x.Extras, "again="+again.EventID) || x.IdemKey == a.Key {
		t.Errorf("the row of \"same again\" is %+v", x)
	}
	if rowByEvent(t, rows, q.EventID).Quantity != 30 || rowByEvent(t, rows, one.EventID).Quantity != 1 {
		t.Error("the quantity did not hold for one scan")
	}
	if rowByEvent(t, rows, d.EventID).ScanType != "dispense" || rowByEvent(t, rows, r.EventID).ScanType != "return" {
		t.Error("dispense and return are not told apart")
	}
}
