package pacase_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/pacase"
)

// manyConns lets 64 agents in, each with a connection, and the tests' own.
var manyConns = []string{"max_connections=100"}

func openPostgres(tb testing.TB, cfg pacase.PostgresConfig) *pacase.Postgres {
	tb.Helper()
	s, err := pacase.OpenPostgres(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		if s := s.Stats(); s.Open != 0 {
			tb.Errorf("%d connections are open after Close", s.Open)
		}
	})
	return s
}

// behind returns a configuration that leads to a migrated database by way of a proxy.
func behind(tb testing.TB, p *testenv.Postgres) (db string, proxy *testenv.Proxy, cfg pacase.PostgresConfig) {
	tb.Helper()
	db, cfg = storetest.PACasePostgres(tb, p)
	proxy = testenv.NewProxy(tb, p.Addr())
	cfg.DSN = p.DSNAt(proxy.Addr(), testenv.PostgresLogin, db)
	return db, proxy, cfg
}

// The tests have one server, each with a database of its own.
func TestPostgres(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Settings: manyConns})
	for _, x := range []struct {
		name string
		run  func(t *testing.T, p *testenv.Postgres)
	}{
		{"conformance", conformance},
		{"lost reply", lostReply},
		{"lossy race", lossyRace},
		{"lock and index", lockAndIndex},
		{"grants", grants},
		{"away", away},
		{"round trips", roundTrips},
		{"indexes", usesIndexes},
		{"pooler", pooler},
		{"unknown state", unknownState},
		{"refused commit", refusedCommit},
		{"refused value", refusedValue},
		{"absent standby", absentStandby},
		{"a plain upsert", plainUpsert},
	} {
		t.Run(x.name, func(t *testing.T) { x.run(t, p) })
	}
}

func conformance(t *testing.T, p *testenv.Postgres) {
	storetest.PACase(t, func(tb testing.TB) storetest.PACaseFixture {
		db, proxy, cfg := behind(tb, p)
		cfg.MaxConns = 1
		return storetest.PACaseFixture{
			Shared:    true,
			Open:      func(tb testing.TB) pacase.Store { return openPostgres(tb, cfg) },
			Count:     func(tb testing.TB) int { return p.Number(tb, db, "SELECT count(*) FROM pa_cases") },
			LoseReply: func(testing.TB) { proxy.Swallow("") },
		}
	})
}

const (
	gpi  = "27100010100320"
	day1 = "2026-07-17"
	day2 = "2026-07-18"
)

// id makes an event or an operation.
func id(n int) (u pacase.UUID) {
	copy(u[:], fmt.Sprintf("%016d", n+1))
	return u
}

func ask(n int, member, window string) pacase.Pend {
	return pacase.Pend{Event: id(n), Question: pacase.Question{MemberToken: member, GPI: gpi, Window: window}}
}

// pendUntilAnswered makes the same call until it is answered.
func pendUntilAnswered(ctx context.Context, s pacase.Store, p pacase.Pend) (out pacase.Pended, tries int, err error) {
	for tries = 1; tries <= 50; tries++ {
		if out, err = s.Pend(ctx, p); err == nil {
			return out, tries, nil
		}
	}
	return out, tries, err
}

// The commit's reply is lost: the caller is told an error, and at the second attempt that it is the creator.
func lostReply(t *testing.T, p *testenv.Postgres) {
	db, proxy, cfg := behind(t, p)
	s := openPostgres(t, cfg)
	if _, err := s.Pend(t.Context(), ask(1, "M-1", day1)); err != nil {
		t.Fatal(err)
	}
	sprung := proxy.Swallow("M-2")
	out, err := s.Pend(t.Context(), ask(2, "M-2", day1))
	var bad *pacase.RequestError
	var config *pacase.ConfigError
	if err == nil || out != (pacase.Pended{}) || errors.As(err, &bad) || errors.As(err, &config) || !strings.HasPrefix(err.Error(), "cannot pend the prior authorization: ") {
		t.Fatalf("a lost reply: %+v, %v", out, err)
	}
	<-sprung
	if n := p.Number(t, db, "SELECT count(*) FROM pa_cases WHERE member_token = 'M-2'"); n != 1 {
		t.Fatalf("%d rows behind the lost reply", n)
	}
	// Somebody else asks before the creator asks again.
	if out, err := s.Pend(t.Context(), ask(3, "M-2", day1)); err != nil || out.Created {
		t.Errorf("another event: %+v, %v", out, err)
	}
	if out, err = s.Pend(t.Context(), ask(2, "M-2", day1)); err != nil || !out.Created {
		t.Errorf("the creator's second attempt: %+v, %v", out, err)
	}
	// A transition whose reply is lost.
	op := id(10)
	sprung = proxy.Swallow(string(op[:]))
	move := pacase.Transition{ID: out.Case.ID, Expected: 1, To: pacase.InReview, Op: op}
	if _, err := s.Transition(t.Context(), move); err == nil {
		t.Fatal("a lost reply is no answer")
	}
	<-sprung
	a, err := s.Transition(t.Context(), move)
	if w := word(a); w != "already mine" || err != nil {
		t.Errorf("the mover's second attempt: %s, %v", w, err)
	}
}

func word(a pacase.Transitioned) (w string) {
	say := func(s string) func(pacase.Case) { return func(pacase.Case) { w = s } }
	a.Match(say("moved"), say("already mine"), say("conflict"), say("other open"), say("illegal"), func() { w = "missing" })
	return w
}

// 64 connections pend one question in 50 rounds, half of them after midnight, while replies are lost, the
// first one of each round among them, and connections are cut.
func lossyRace(t *testing.T, p *testenv.Postgres) {
	const agents, rounds, losses = 64, 50, 2
	db, proxy, cfg := behind(t, p)
	cfg.MaxConns = 1
	var all []*pacase.Postgres
	for range agents {
		all = append(all, openPostgres(t, cfg))
	}
	retried := 0
	for round := range rounds {
		member := fmt.Sprintf("M-%d", round)
		var mu sync.Mutex
		creators, cases := 0, map[string]bool{}
		var wg sync.WaitGroup
		done, lost := make(chan struct{}), proxy.Swallow(member)
		for n, s := range all {
			wg.Go(func() {
				out, tries, err := pendUntilAnswered(t.Context(), s, ask(round*agents+n, member, []string{day1, day2}[n%2]))
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("round %d: %v", round, err)
					return
				}
				if tries > 1 {
					retried++
				}
				if out.Created {
					creators++
				}
				cases[out.Case.ID] = true
			})
		}
		var faults sync.WaitGroup
		faults.Go(func() {
			for n := range losses {
				select {
				case <-lost:
				case <-done:
					return
				}
				if n == 0 && round%5 == 4 {
					proxy.Drop()
				}
				lost = proxy.Swallow(member)
			}
		})
		wg.Wait()
		close(done)
		faults.Wait()
		if creators != 1 || len(cases) != 1 {
			t.Errorf("round %d: %d creators, %d cases", round, creators, len(cases))
		}
	}
	if n := p.Number(t, db, "SELECT count(*) FROM pa_cases"); n != rounds {
		t.Errorf("%d cases, want %d", n, rounds)
	}
	if n := p.Number(t, db, "SELECT count(*) FROM pa_pend WHERE created"); n != rounds {
		t.Errorf("%d creators in the table, want %d", n, rounds)
	}
	swallowed := proxy.Stats().Swallowed
	if retried < rounds || swallowed < rounds {
		t.Errorf("%d calls were made again, %d replies lost: the faults did not bite", retried, swallowed)
	}
	t.Logf("%d calls were made again, %d replies lost", retried, swallowed)
}

// The lock is the rule: without the index there is still one open case, and no transaction is ever refused. The
// index is the net: a writer who takes no lock is noticed.
func lockAndIndex(t *testing.T, p *testenv.Postgres) {
	race := func(cfg pacase.PostgresConfig, rounds int) (retries int64) {
		var all []*pacase.Postgres
		for range 32 {
			all = append(all, openPostgres(t, cfg))
		}
		for round := range rounds {
			var wg sync.WaitGroup
			start := make(chan struct{})
			for n, s := range all {
				wg.Go(func() {
					<-start
					// Two windows and one subject, which holds what is escaped.
					if _, err := s.Pend(t.Context(), ask(round*32+n, fmt.Sprintf(`M|\%d`, round), []string{day1, day2}[n%2])); err != nil {
						t.Error(err)
					}
				})
			}
			close(start)
			wg.Wait()
		}
		for _, s := range all {
			retries += s.Stats().Retries
		}
		return retries
	}
	t.Run("without the index", func(t *testing.T) {
		db, cfg := storetest.PACasePostgres(t, p)
		cfg.MaxConns = 1
		p.Exec(t, db, "DROP INDEX pa_cases_open")
		if n := race(cfg, 20); n != 0 {
			t.Errorf("%d transactions were sent again", n)
		}
		if n := p.Number(t, db, "SELECT count(*) FROM pa_cases"); n != 20 {
			t.Errorf("%d cases, want 20", n)
		}
	})
	t.Run("an appeal takes the lock too", func(t *testing.T) {
		db, cfg := storetest.PACasePostgres(t, p)
		p.Exec(t, db, "DROP INDEX pa_cases_open")
		s := openPostgres(t, cfg)
		out, err := s.Pend(t.Context(), ask(1, `M|\1`, day1))
		if err != nil {
			t.Fatal(err)
		}
		for n, to := range []pacase.State{pacase.InReview, pacase.Denied} {
			if a, err := s.Transition(t.Context(), pacase.Transition{ID: out.Case.ID, Expected: n + 1, To: to, Op: id(10 + n)}); err != nil || word(a) != "moved" {
				t.Fatal(word(a), err)
			}
		}
		// A pend is under way: it has its lock and its new case, and has not committed.
		c := p.Connect(t, testenv.PostgresSuperuser, db)
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		q := ask(2, `M|\1`, day2)
		if _, err := tx.Exec(t.Context(), pacase.LockSQL, pacase.Subject(q.Question)); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), pacase.PendSQL, [16]byte(q.Event), q.DerivedID(), q.MemberToken, q.GPI, q.Window); err != nil {
			t.Fatal(err)
		}
		appealed := make(chan string)
		go func() {
			a, err := s.Transition(context.WithoutCancel(t.Context()), pacase.Transition{ID: out.Case.ID, Expected: 3, To: pacase.Appealed, Op: id(20)})
			appealed <- fmt.Sprint(word(a), err)
		}()
		awaitWaiting(t, p, db, "advisory")
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-appealed; got != "other open<nil>" {
			t.Errorf("the appeal: %s", got)
		}
	})
	t.Run("a writer without the lock", func(t *testing.T) {
		const foreign = "f0000000000000000000000000000000"
		db, cfg := storetest.PACasePostgres(t, p)
		s := openPostgres(t, cfg)
		c := p.Connect(t, testenv.PostgresSuperuser, db)
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), `INSERT INTO pa_cases (case_id, member_token, gpi, request_window, state, created_by, last_op_id)
			VALUES ($3, 'M-1', $1, 'x', 'PENDING', $2, $2)`, gpi, [16]byte(id(1)), foreign); err != nil {
			t.Fatal(err)
		}
		type result struct {
			out pacase.Pended
			err error
		}
		pended := make(chan result)
		go func() {
			out, err := s.Pend(context.WithoutCancel(t.Context()), ask(2, "M-1", day1))
			pended <- result{out, err}
		}()
		awaitWaiting(t, p, db, "transactionid")
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-pended
		if got.err != nil || got.out.Created || got.out.Case.ID != foreign {
			t.Errorf("beside a foreign case: %+v", got)
		}
		if n := s.Stats().Retries; n != 1 {
			t.Errorf("%d retries, want 1", n)
		}
		// A case that was made without a reference is found by its id, and keeps it.
		for _, id := range []string{foreign, got.out.RequestedID} {
			if c, ok, err := s.Get(t.Context(), id); !ok || err != nil || c.ID != foreign {
				t.Errorf("get %s: %+v, %v, %v", id, c, ok, err)
			}
		}
		q := ask(3, "M-3", day1)
		p.Exec(t, db, fmt.Sprintf(`INSERT INTO pa_cases (case_id, member_token, gpi, request_window, state, created_by, last_op_id)
			VALUES ('%s', 'M-3', '%s', '%s', 'DENIED', '%s', '%s')`, q.DerivedID(), gpi, day1, id(1), id(1)))
		for n := range 2 {
			q.Event = id(30 + n)
			if out, err := s.Pend(t.Context(), q); err != nil || out.Created || out.Case.State != pacase.Denied {
				t.Errorf("for a window that a foreign case has: %+v, %v", out, err)
			}
		}
	})
	t.Run("deadlock", func(t *testing.T) {
		db, cfg := storetest.PACasePostgres(t, p)
		p.Exec(t, db, `CREATE TABLE deadlocks (n int);
			CREATE FUNCTION once() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			IF nextval('deadlock') <= 2 THEN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END IF; RETURN NEW; END $$;
			CREATE SEQUENCE deadlock;
			CREATE TRIGGER once BEFORE INSERT ON pa_cases FOR EACH ROW EXECUTE FUNCTION once()`)
		s := openPostgres(t, cfg)
		if out, err := s.Pend(t.Context(), ask(1, "M-1", day1)); err != nil || !out.Created {
			t.Errorf("after deadlocks: %+v, %v", out, err)
		}
		if n := s.Stats().Retries; n != 2 {
			t.Errorf("%d retries, want 2", n)
		}
	})
}

// awaitWaiting returns once a backend of the database waits for a lock of a kind.
func awaitWaiting(t *testing.T, p *testenv.Postgres, db, event string) {
	t.Helper()
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	deadline := time.Now().Add(testenv.Patience)
	for {
		var n int
		err := c.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock' AND wait_event = $2", db, event).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits for a lock of the kind %s", event)
		}
	}
}

// The agent's login can do all that the store does, and nothing else to the tables.
func grants(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	s := openPostgres(t, cfg)
	if _, err := s.Pend(t.Context(), ask(1, "M-1", day1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	got := p.Query(t, db, `SELECT table_name || ' ' || string_agg(privilege_type, ' ' ORDER BY privilege_type)
		FROM information_schema.role_table_grants WHERE grantee = 'scanonce_agent' AND table_name LIKE 'pa\_%' GROUP BY table_name ORDER BY 1`)
	want := [][]string{{"pa_cases INSERT SELECT UPDATE"}, {"pa_pend INSERT SELECT"}, {"pa_ref INSERT SELECT"}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("granted %v, want %v", got, want)
	}
	for _, sql := range []string{
		"DELETE FROM pa_cases", "DELETE FROM pa_ref", "DELETE FROM pa_pend", "TRUNCATE pa_cases CASCADE",
		"UPDATE pa_ref SET case_id = case_id", "UPDATE pa_pend SET created = true", "DROP INDEX pa_cases_open",
	} {
		if err := testenv.ExecAt(t.Context(), cfg.DSN, sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as the agent: %v", sql, err)
		}
	}
	// Each grant is needed: without it some call is refused, in words for a DBA.
	e := 10
	for _, g := range []string{"SELECT ON pa_cases", "INSERT ON pa_cases", "UPDATE ON pa_cases", "SELECT ON pa_ref", "INSERT ON pa_ref", "SELECT ON pa_pend", "INSERT ON pa_pend"} {
		p.Exec(t, db, "REVOKE "+g+" FROM scanonce_agent")
		e++
		out, err := s.Pend(t.Context(), ask(e, fmt.Sprintf("M-%d", e), day1))
		if err == nil {
			_, err = s.Transition(t.Context(), pacase.Transition{ID: out.Case.ID, Expected: 1, To: pacase.InReview, Op: id(1000 + e)})
		}
		var config *pacase.ConfigError
		if !errors.As(err, &config) || !strings.Contains(config.Hint, "GRANT scanonce_agent") {
			t.Errorf("without %s: %v", g, err)
		}
		p.Exec(t, db, "GRANT "+g+" TO scanonce_agent")
	}
}

// A server that does not answer holds no call longer than its context, and Close cuts a call short.
func away(t *testing.T, p *testenv.Postgres) {
	_, proxy, cfg := behind(t, p)
	s := openPostgres(t, cfg)
	if n := s.Stats().Dials; n != 0 {
		t.Errorf("opening dialled %d times", n)
	}
	out, err := s.Pend(t.Context(), ask(1, "M-1", day1))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Set(t, testenv.BlackHole)
	calls := map[string]func(ctx context.Context) error{
		"pend": func(ctx context.Context) error { _, err := s.Pend(ctx, ask(2, "M-2", day1)); return err },
		"move": func(ctx context.Context) error {
			_, err := s.Transition(ctx, pacase.Transition{ID: out.Case.ID, Expected: 1, To: pacase.InReview, Op: id(10)})
			return err
		},
		"get": func(ctx context.Context) error { _, _, err := s.Get(ctx, out.Case.ID); return err },
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		w := testenv.NewWatch(t)
		err := call(ctx)
		w.Within(t, name, time.Second)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s ended with %v", name, err)
		}
		cancel()
	}
	proxy.Set(t, testenv.Refuse)
	for name, call := range calls {
		err := call(t.Context())
		var config *pacase.ConfigError
		var bad *pacase.RequestError
		if err == nil || errors.As(err, &config) || errors.As(err, &bad) || !strings.Contains(err.Error(), "PostgreSQL: ") {
			t.Errorf("%s without a server: %v", name, err)
		}
	}
	proxy.Set(t, testenv.Pass)
	if err := calls["pend"](t.Context()); err != nil {
		t.Error(err)
	}
}

// A call is one round trip, and costs no more connections than there are callers.
func roundTrips(t *testing.T, p *testenv.Postgres) {
	const delay = 40 * time.Millisecond
	_, proxy, cfg := behind(t, p)
	s := openPostgres(t, cfg)
	c := pacase.Case{}
	n := 0
	calls := map[string]func() error{
		"pend": func() error {
			n++
			out, err := s.Pend(t.Context(), ask(n, fmt.Sprintf("M-%d", n), day1))
			c = out.Case
			return err
		},
		"get": func() error { _, _, err := s.Get(t.Context(), c.ID); return err },
		"move": func() error {
			n++
			_, err := s.Transition(t.Context(), pacase.Transition{ID: c.ID, Expected: 1, To: pacase.InReview, Op: id(n)})
			return err
		},
		"appeal": func() error {
			n++
			_, err := s.Transition(t.Context(), pacase.Transition{ID: c.ID, Expected: 1, To: pacase.Appealed, Op: id(n)})
			return err
		},
		"decide": func() error {
			n++
			_, err := s.Transition(t.Context(), pacase.Transition{ID: c.ID, Expected: 1, To: pacase.Approved, Op: id(n)})
			return err
		},
	}
	order := []string{"pend", "get", "move", "appeal", "decide"}
	for _, name := range order { // prepares
		if err := calls[name](); err != nil {
			t.Fatal(err)
		}
	}
	proxy.Delay(delay)
	for _, name := range order {
		best := time.Hour
		for n := 0; n < 20 && best >= 4*delay; n++ { // a busy machine is late with some
			start := time.Now()
			if err := calls[name](); err != nil {
				t.Fatal(err)
			}
			best = min(best, time.Since(start))
		}
		t.Logf("%s: %v", name, best)
		if trips := int(best / (2 * delay)); trips != 1 {
			t.Errorf("%s takes %d round trips", name, trips)
		}
	}
	if d := s.Stats().Dials; d != 1 {
		t.Errorf("%d connections", d)
	}
}

// On empty tables, with a plan for any arguments, everything is looked up by an index.
func usesIndexes(t *testing.T, p *testenv.Postgres) {
	db, _ := storetest.PACasePostgres(t, p)
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	for name, s := range map[string]struct{ sql, types, args string }{
		"pend":    {pacase.PendSQL, "uuid, text, text, text, text", "NULL, '', '', '', ''"},
		"get":     {pacase.GetSQL, "text", "''"},
		"current": {pacase.CurrentSQL, "text", "''"},
		"other":   {pacase.OtherSQL, "text", "''"},
		"lock":    {pacase.LockCaseSQL, "text", "''"},
		"move":    {pacase.MoveSQL, "text, text, uuid, int, text[]", "'', '', NULL, 1, NULL"},
	} {
		out, err := c.PgConn().Exec(t.Context(), fmt.Sprintf("SET plan_cache_mode = force_generic_plan; PREPARE %s_s (%s) AS %s; EXPLAIN EXECUTE %s_s (%s)",
			name, s.types, s.sql, name, s.args)).ReadAll()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var plan []string
		for _, r := range out[len(out)-1].Rows {
			plan = append(plan, string(r[0]))
		}
		if got := strings.Join(plan, "\n"); strings.Contains(got, "Seq Scan") || !strings.Contains(got, "Index Scan") && !strings.Contains(got, "Bitmap") {
			t.Errorf("plan of %s:\n%s", name, got)
		}
	}
}

// Without prepared statements, as behind a pooler, the answers are the same.
func pooler(t *testing.T, p *testenv.Postgres) {
	_, cfg := storetest.PACasePostgres(t, p)
	cfg.MaxConns = 1
	s := openPostgres(t, cfg)
	for n := range 3 {
		out, err := s.Pend(t.Context(), ask(n, "M-1", day1))
		if err != nil || out.Created != (n == 0) {
			t.Errorf("pend %d: %+v, %v", n, out, err)
		}
		if err := s.Deallocate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a, err := s.Transition(t.Context(), pacase.Transition{ID: ask(0, "M-1", day1).DerivedID(), Expected: 1, To: pacase.InReview, Op: id(10)})
	if err != nil || word(a) != "moved" {
		t.Errorf("move: %s, %v", word(a), err)
	}
	if d := s.Stats().Dials; d != 2 {
		t.Errorf("%d connections: more than one change of the way", d)
	}
}

// What a row says that this program does not know is an error, not an answer.
func unknownState(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	s := openPostgres(t, cfg)
	out, err := s.Pend(t.Context(), ask(1, "M-1", day1))
	if err != nil {
		t.Fatal(err)
	}
	p.Exec(t, db, "ALTER TABLE pa_cases DROP CONSTRAINT pa_cases_state_check; UPDATE pa_cases SET state = 'PAUSED'")
	if c, ok, err := s.Get(t.Context(), out.Case.ID); err == nil || ok || c != (pacase.Case{}) {
		t.Errorf("get: %+v, %v, %v", c, ok, err)
	}
	if out, err := s.Pend(t.Context(), ask(2, "M-1", day1)); err == nil || out != (pacase.Pended{}) {
		t.Errorf("pend: %+v, %v", out, err)
	}
}

// What the statements have answered counts for nothing if the commit behind them fails.
func refusedCommit(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	p.Exec(t, db, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON pa_cases DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	s := openPostgres(t, cfg)
	if out, err := s.Pend(t.Context(), ask(1, "M-1", day1)); err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("a pend whose commit was refused: %+v, %v", out, err)
	}
	if n := p.Number(t, db, "SELECT (SELECT count(*) FROM pa_cases) + (SELECT count(*) FROM pa_ref) + (SELECT count(*) FROM pa_pend)"); n != 0 {
		t.Errorf("%d rows of a refused commit", n)
	}
	p.Exec(t, db, "ALTER TABLE pa_cases DISABLE TRIGGER refuse")
	out, err := s.Pend(t.Context(), ask(1, "M-1", day1))
	if err != nil || !out.Created {
		t.Fatal(out, err)
	}
	p.Exec(t, db, "ALTER TABLE pa_cases ENABLE TRIGGER refuse")
	if a, err := s.Transition(t.Context(), pacase.Transition{ID: out.Case.ID, Expected: 1, To: pacase.InReview, Op: id(9)}); err == nil {
		t.Errorf("a move whose commit was refused: %s", word(a))
	}
}

// What a rule of the database refuses stays refused: the request is at fault, and others go on. No value is told.
func refusedValue(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	p.Exec(t, db, "ALTER TABLE pa_cases ADD CONSTRAINT no_poison CHECK (member_token <> 'MTOK_poison2' AND state <> 'CANCELLED')")
	s := openPostgres(t, cfg)
	refused := func(err error, values ...string) {
		t.Helper()
		var bad *pacase.RequestError
		if !errors.As(err, &bad) || bad.Field != "request" || !strings.Contains(bad.Detail, "23514 no_poison") || bad.Hint == "" {
			t.Errorf("a refused value: %v", err)
			return
		}
		for _, v := range values {
			if strings.Contains(err.Error(), v) {
				t.Errorf("the value is told: %v", err)
			}
		}
	}
	_, err := s.Pend(t.Context(), ask(1, "MTOK_poison2", day1))
	refused(err, "poison2", gpi)
	out, err := s.Pend(t.Context(), ask(2, "MTOK_1", day1))
	if err != nil {
		t.Fatal(err)
	}
	for v, to := range []pacase.State{pacase.InReview, pacase.Cancelled} {
		a, err := s.Transition(t.Context(), pacase.Transition{ID: out.Case.ID, Expected: v + 1, To: to, Op: id(10 + v)})
		if to == pacase.Cancelled {
			refused(err, "MTOK_1", out.Case.ID)
		} else if err != nil || word(a) != "moved" {
			t.Errorf("%s, %v", word(a), err)
		}
	}
	// A collision with a writer that takes no lock goes by: it is nobody's fault.
	p.Exec(t, db, "CREATE UNIQUE INDEX one_a_day ON pa_cases (request_window)")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var bad *pacase.RequestError
	if _, err := s.Pend(ctx, ask(3, "MTOK_3", day1)); err == nil || errors.As(err, &bad) {
		t.Errorf("a collision: %v", err)
	}
}

// An answer that only saw rows waits for the synchronous standby too: with none there it is not given.
func absentStandby(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	s := openPostgres(t, cfg)
	if _, err := s.Pend(t.Context(), ask(1, "M-1", day1)); err != nil {
		t.Fatal(err)
	}
	p.Exec(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	p.Exec(t, db, "SELECT pg_reload_conf()")
	defer func() {
		p.Exec(t, db, "ALTER SYSTEM RESET synchronous_standby_names")
		p.Exec(t, db, "SELECT pg_reload_conf()")
	}()
	// The server takes the setting up at some moment; from then on the call waits.
	waiting := "SELECT count(*) FROM pg_stat_activity WHERE datname = '" + db + "' AND wait_event = 'SyncRep'"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	var calls sync.WaitGroup
	calls.Go(func() {
		for ctx.Err() == nil {
			s.Pend(ctx, ask(1, "M-1", day1))
		}
	})
	for p.Number(t, db, waiting) == 0 && ctx.Err() == nil {
	}
	if ctx.Err() != nil {
		t.Error("the stored answer was given without the standby")
	}
	cancel()
	calls.Wait()
}

// upsertSQL is the plain way: the derived id is the case's, and a conflict attaches.
const upsertSQL = `INSERT INTO upserts (case_id, member_token, gpi, state, version, request_window)
VALUES ($1, $2, $3, 'PENDING', 1, $4)
ON CONFLICT (case_id) DO UPDATE SET touched_at = now()
RETURNING case_id, xmax = 0`

// A plain upsert works while nothing goes wrong, and fails where this package does not.
func plainUpsert(t *testing.T, p *testenv.Postgres) {
	db, cfg := storetest.PACasePostgres(t, p)
	s := openPostgres(t, cfg)
	p.Exec(t, db, `CREATE TABLE upserts (case_id text PRIMARY KEY, member_token text NOT NULL, gpi text NOT NULL, state text NOT NULL,
		version int NOT NULL, request_window text NOT NULL, touched_at timestamptz NOT NULL DEFAULT now())`)
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	upsert := func(q pacase.Question) (id string, created bool) {
		t.Helper()
		sum := sha256.Sum256([]byte(q.MemberToken + "|" + q.GPI + "|" + q.Window))
		err := c.QueryRow(t.Context(), upsertSQL, hex.EncodeToString(sum[:])[:32], q.MemberToken, q.GPI, q.Window).Scan(&id, &created)
		if err != nil {
			t.Fatal(err)
		}
		return id, created
	}
	pend := func(p pacase.Pend) pacase.Pended {
		t.Helper()
		out, err := s.Pend(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	// The easy case, which both get right: the same id, one creator.
	first := ask(1, "MTOK_9f2a", day1)
	id, created := upsert(first.Question)
	if out := pend(first); !created || !out.Created || id != out.Case.ID {
		t.Errorf("the upsert made %s, %v; the store %+v", id, created, out)
	}
	// A retry after a lost reply: nobody is told to start the review.
	if _, created := upsert(first.Question); created {
		t.Error("the upsert tells its retried creator: this test has lost its premise")
	}
	if out := pend(first); !out.Created {
		t.Errorf("the retried creator: %+v", out)
	}
	// Around midnight: two open cases.
	next := ask(2, "MTOK_9f2a", day2)
	if other, created := upsert(next.Question); !created || other == id {
		t.Error("the upsert makes one case of two days: this test has lost its premise")
	}
	if n := p.Number(t, db, "SELECT count(*) FROM upserts WHERE state = 'PENDING'"); n != 2 {
		t.Errorf("the upsert left %d open cases", n)
	}
	if out := pend(next); out.Created || out.Case.ID != id {
		t.Errorf("after midnight: %+v", out)
	}
	if n := p.Number(t, db, "SELECT count(*) FROM pa_cases"); n != 1 {
		t.Errorf("%d cases", n)
	}
	// Fields that run into each other: another member's drug gets this one's case.
	a := pacase.Question{MemberToken: "M|27", GPI: "10", Window: day1}
	b := pacase.Question{MemberToken: "M", GPI: "27|10", Window: day1}
	idA, _ := upsert(a)
	if idB, created := upsert(b); idA != idB || created {
		t.Error("the upsert keeps the fields apart: this test has lost its premise")
	}
	if a.DerivedID() == b.DerivedID() {
		t.Error("two questions have one derived id")
	}
}
