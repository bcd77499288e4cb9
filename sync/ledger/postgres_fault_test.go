package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/window"
)

func probeOf(r ledger.Row) ledger.Probe { return ledger.Probe{Keys: r.Keys, Event: r.Event} }

func countRows(tb testing.TB, l ledger.Ledger, want int64) {
	tb.Helper()
	if n, err := l.Count(tb.Context()); err != nil || n != want {
		tb.Errorf("%d rows, %v, want %d", n, err, want)
	}
}

// behind opens the ledger by way of a proxy.
func behind(tb testing.TB, p *testenv.Postgres, change func(*ledger.PostgresConfig)) (db string, proxy *testenv.Proxy, l *ledger.Postgres) {
	tb.Helper()
	db, cfg := migrated(tb, p)
	proxy = testenv.NewProxy(tb, p.Addr())
	cfg.DSN = p.DSNAt(proxy.Addr(), testenv.PostgresLogin, db)
	if change != nil {
		change(&cfg)
	}
	return db, proxy, openPostgres(tb, cfg)
}

// The server commits, its reply is lost: the caller is told an error, and finds its own rows afterwards.
func TestPostgresLostReply(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{})
	_, proxy, l := behind(t, p, nil)
	insert(t, l, pgRow(1, 0))
	rows := pgRows(1, 1, 500)
	sprung := proxy.Swallow("")
	in, err := l.Insert(t.Context(), rows)
	if err == nil || len(in.Receipts) != 0 || !strings.HasPrefix(err.Error(), "cannot insert into the ledger: ") {
		t.Fatalf("lost reply: %d receipts, %v", len(in.Receipts), err)
	}
	var config *ledger.ConfigError
	if errors.As(err, &config) {
		t.Errorf("a lost reply is called an error of the configuration: %v", err)
	}
	<-sprung
	var probes []ledger.Probe
	for _, r := range rows {
		probes = append(probes, probeOf(r))
	}
	st, err := l.Standing(t.Context(), probes)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range st {
		if s.ByEvent.Event != rows[i].Event || s.ByIdem != s.ByEvent {
			t.Fatalf("row %d after the lost reply: %+v", i, s)
		}
	}
	if got := insert(t, l, rows...); len(got) != 0 {
		t.Errorf("the second attempt wrote %d rows", len(got))
	}
	countRows(t, l, 501)
	if s := proxy.Stats(); s.Swallowed != 1 {
		t.Errorf("proxy %+v", s)
	}
}

// Two inserters whose rows meet in their edge keys, in opposite orders: sorting by key does not help.
func TestPostgresDeadlock(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Settings: []string{"deadlock_timeout=20ms"}})
	db, cfg := migrated(t, p)
	// Time for the other to come in between two rows.
	p.Exec(t, db, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END $$;
		CREATE TRIGGER slow AFTER INSERT ON scan_ledger FOR EACH ROW EXECUTE FUNCTION slow();
		CREATE FUNCTION at_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
		CREATE TRIGGER at_once BEFORE INSERT ON scan_ledger FOR EACH ROW EXECUTE FUNCTION at_once()`)
	const n = 8
	a, b := openPostgres(t, cfg), openPostgres(t, cfg)
	rowsOf := func(family byte, edge func(i int) int) []ledger.Row {
		rows := pgRows(family, int(family)*100, n)
		slices.SortFunc(rows, func(a, b ledger.Row) int { return slices.Compare(a.Keys.Idem.Hash[:], b.Keys.Idem.Hash[:]) })
		for i := range rows {
			rows[i].Keys.Edge = idem.Key{Kind: idem.Edge, Hash: [32]byte{byte(edge(i) + 1)}}
		}
		return rows
	}
	up, down := rowsOf(1, func(i int) int { return i }), rowsOf(2, func(i int) int { return n - 1 - i })
	got := make([][]idem.EventID, 2)
	var wg sync.WaitGroup
	wg.Go(func() { got[0] = insert(t, a, up...) })
	wg.Go(func() { got[1] = insert(t, b, down...) })
	wg.Wait()
	if len(got[0])+len(got[1]) != n {
		t.Errorf("%d and %d rows for %d edge keys", len(got[0]), len(got[1]), n)
	}
	countRows(t, a, n)
	if a.Stats().Retries+b.Stats().Retries == 0 || !strings.Contains(p.Log(), "deadlock detected") {
		t.Error("there was no deadlock to try again after")
	}
}

// What the server alone refuses is found among the others, which get in.
func TestPostgresPoison(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, cfg := migrated(t, p)
	p.Exec(t, db, `ALTER TABLE scan_ledger ADD CONSTRAINT no_poison CHECK (lot NOT LIKE 'secret%');
		ALTER TABLE scan_audit_line ADD CONSTRAINT no_poison CHECK (scanner_id NOT LIKE 'secret%');
		CREATE FUNCTION quote() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.lot = 'secret in words' THEN RAISE EXCEPTION 'no_poison like %', NEW.lot USING ERRCODE = '22023'; END IF; RETURN NEW; END $$;
		CREATE TRIGGER quote BEFORE INSERT ON scan_ledger FOR EACH ROW EXECUTE FUNCTION quote()`)
	l := openPostgres(t, cfg)
	rows := pgRows(1, 0, 500)
	bad := []int{0, 250, 251, 499}
	for _, i := range bad {
		rows[i].Lot = "secret lot"
	}
	rows[250].Lot = "secret in words" // which the server's message quotes
	rows[100].Quantity = 0            // found without the server
	in, err := l.Insert(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	if len(in.Receipts) != 495 || len(in.Poison) != 5 {
		t.Errorf("%d receipts, poison %v", len(in.Receipts), in.Poison)
	}
	for _, x := range in.Poison {
		i := slices.IndexFunc(rows, func(r ledger.Row) bool { return r.Event == x.Event })
		if i != 100 && (!slices.Contains(bad, i) || !strings.Contains(x.Detail, "no_poison") && !strings.Contains(x.Detail, "22023") || strings.Contains(x.Detail, "secret")) {
			t.Errorf("poison %d: %s", i, x.Detail)
		}
	}
	countRows(t, l, 495)
	if s := l.Stats(); s.Poisoned != 4 || s.Retries != 0 {
		t.Errorf("stats %+v", s)
	}
	line := ledger.Line{Event: pgRow(9, 1).Event, Agent: "agent-a", At: 1, Outcome: ledger.Notice, Scanner: "secret"}
	err = l.AppendLines(t.Context(), []ledger.Line{line})
	if err == nil || !strings.Contains(err.Error(), "no_poison") || strings.Contains(err.Error(), "secret") {
		t.Errorf("a refused line: %v", err)
	}
}

// The server is killed again and again under an inserter. What was told is there; a batch whose insert
// failed is there as a whole or not at all; trying again converges.
func TestPostgresKilled(t *testing.T) {
	const batch, rounds = 500, 4
	p := testenv.NewPostgres(t, testenv.PostgresOptions{})
	_, cfg := migrated(t, p)
	l := openPostgres(t, cfg)
	next := 0
	for round := range rounds {
		told := make(chan int, 1000)
		broken := make(chan error)
		go func() {
			for {
				in, err := l.Insert(context.WithoutCancel(t.Context()), pgRows(1, next, batch))
				if err == nil && len(in.Receipts) != batch {
					err = fmt.Errorf("%d receipts", len(in.Receipts))
				}
				if err != nil {
					broken <- err
					return
				}
				next += batch
				told <- next
			}
		}()
		for range round + 1 {
			select {
			case <-told:
			case err := <-broken:
				t.Fatalf("before the kill: %v", err)
			}
		}
		p.Kill(t)
		if err := <-broken; strings.Contains(err.Error(), "receipts") {
			t.Fatal(err)
		}
		p.Start(t)
		rows := pgRows(1, next, batch)
		n, err := l.Count(t.Context())
		if err != nil {
			t.Fatalf("after the restart: %v", err)
		}
		if n != int64(next) && n != int64(next+batch) {
			t.Fatalf("%d rows, %d told, want these or a whole batch more", n, next)
		}
		insert(t, l, rows...)
		st, err := l.Standing(t.Context(), []ledger.Probe{probeOf(rows[0]), probeOf(rows[batch-1])})
		if err != nil || st[0].ByEvent.Event != rows[0].Event || st[1].ByEvent.Event != rows[batch-1].Event {
			t.Fatalf("standing of the batch that was cut off: %+v, %v", st, err)
		}
		next += batch
		countRows(t, l, int64(next))
	}
}

// A server that accepts and never answers holds no call longer than its context.
func TestPostgresBlackHole(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	_, proxy, l := behind(t, p, func(c *ledger.PostgresConfig) { c.ConnectTimeout = 2 * time.Second })
	// All connections are open, and none waits for the farewell of the others.
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() { insert(t, l, pgRows(1, 100*n, 100)...) })
	}
	wg.Wait()
	proxy.Set(t, testenv.BlackHole)
	r := pgRow(1, 900)
	for name, call := range map[string]func(ctx context.Context) error{
		"Insert":   func(ctx context.Context) error { _, err := l.Insert(ctx, []ledger.Row{r}); return err },
		"Standing": func(ctx context.Context) error { _, err := l.Standing(ctx, []ledger.Probe{probeOf(r)}); return err },
		"Clock":    func(ctx context.Context) error { _, _, err := l.Clock(ctx); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		w := testenv.NewWatch(t)
		err := call(ctx)
		w.Within(t, name, time.Second)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s ended with %v", name, err)
		}
		cancel()
	}
	// Without a deadline of the caller's, connecting has its own.
	_, err := l.Count(t.Context())
	var config *ledger.ConfigError
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &config) {
		t.Errorf("connecting into a black hole: %v", err)
	}
	proxy.Set(t, testenv.Pass)
	if n, err := l.Count(t.Context()); err != nil || n < 1 {
		t.Errorf("after the black hole: %d, %v", n, err)
	}
	// A call without a deadline ends with Close.
	proxy.Set(t, testenv.BlackHole)
	began, ended := make(chan struct{}), make(chan error)
	go func() {
		close(began)
		_, err := l.Insert(context.WithoutCancel(t.Context()), []ledger.Row{r})
		ended <- err
	}()
	<-began
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "it is closed") {
		t.Errorf("a call that Close cut short: %v", err)
	}
}

// backends counts the connections of this program's agents that the server has, until it is want.
func awaitBackends(t *testing.T, p *testenv.Postgres, db string, want int) {
	t.Helper()
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	deadline := time.Now().Add(testenv.Patience)
	for {
		var n int
		err := c.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'scanonce agent-a' AND datname = $1", db).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		if n == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d connections of the agent, want %d", n, want)
		}
	}
}

func TestPostgresConnections(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	t.Run("closed when idle", func(t *testing.T) {
		db, cfg := migrated(t, p)
		cfg.IdleTimeout = 300 * time.Millisecond
		l := openPostgres(t, cfg)
		if s := l.Stats(); s.Dials != 0 {
			t.Errorf("opening dialled: %+v", s)
		}
		insert(t, l, pgRow(1, 0))
		insert(t, l, pgRow(1, 1))
		if s := l.Stats(); s.Open != 1 || s.Dials != 1 {
			t.Errorf("after two inserts: %+v", s)
		}
		awaitBackends(t, p, db, 0)
		insert(t, l, pgRow(1, 2))
		if s := l.Stats(); s.Dials != 2 {
			t.Errorf("after the pause: %+v", s)
		}
	})
	t.Run("few", func(t *testing.T) {
		_, cfg := migrated(t, p)
		cfg.MaxConns = 2
		l := openPostgres(t, cfg)
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() { insert(t, l, pgRows(1, 100*n, 100)...) })
		}
		wg.Wait()
		countRows(t, l, 1600)
		if s := l.Stats(); s.Open > 2 || s.Dials > 2 {
			t.Errorf("for 16 callers: %+v", s)
		}
	})
	t.Run("settings", func(t *testing.T) {
		db, cfg := migrated(t, p)
		p.Exec(t, db, fmt.Sprintf(`ALTER DATABASE %s SET synchronous_commit = off; ALTER DATABASE %s SET default_transaction_isolation = 'serializable';
			ALTER DATABASE %s SET TimeZone = 'Asia/Tokyo'; ALTER DATABASE %s SET DateStyle = 'German'`, db, db, db, db))
		p.Exec(t, db, `CREATE TABLE settings (name text, value text); GRANT INSERT ON settings TO scanonce_agent;
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO settings SELECT x, current_setting(x) FROM unnest(ARRAY['synchronous_commit', 'transaction_isolation', 'statement_timeout', 'TimeZone']) x; RETURN NEW; END $$;
			CREATE TRIGGER note BEFORE INSERT ON scan_ledger FOR EACH ROW EXECUTE FUNCTION note()`)
		cfg.StatementTimeout = 7 * time.Second
		l := openPostgres(t, cfg)
		insert(t, l, pgRow(1, 0))
		var got string
		err := p.Connect(t, testenv.PostgresSuperuser, db).QueryRow(t.Context(), "SELECT string_agg(name || '=' || value, ' ' ORDER BY name) FROM settings").Scan(&got)
		if want := "TimeZone=UTC statement_timeout=7s synchronous_commit=on transaction_isolation=read committed"; err != nil || got != want {
			t.Errorf("settings of an insert: %s, %v, want %s", got, err, want)
		}
	})
	t.Run("statement timeout", func(t *testing.T) {
		db, cfg := migrated(t, p)
		p.Exec(t, db, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$;
			CREATE TRIGGER slow BEFORE INSERT ON scan_ledger FOR EACH ROW EXECUTE FUNCTION slow()`)
		cfg.StatementTimeout = 50 * time.Millisecond
		l := openPostgres(t, cfg)
		_, err := l.Insert(t.Context(), []ledger.Row{pgRow(1, 0)})
		if err == nil || !strings.Contains(err.Error(), "statement timeout") {
			t.Errorf("a statement that lasts: %v", err)
		}
		countRows(t, l, 0)
	})
	t.Run("read-only session", func(t *testing.T) {
		db, cfg := migrated(t, p)
		cfg.IdleTimeout = time.Hour // the session does not go by itself
		set := func(value string) {
			p.Exec(t, "postgres", fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = %s`, db, value))
		}
		set("on")
		l := openPostgres(t, cfg)
		_, err := l.Insert(t.Context(), []ledger.Row{pgRow(1, 0)})
		var config *ledger.ConfigError
		if !errors.As(err, &config) || !strings.Contains(config.Hint, "target_session_attrs=read-write") {
			t.Errorf("an insert where only reading is allowed: %v", err)
		}
		set("off")
		insert(t, l, pgRow(1, 0)) // in a new session
		countRows(t, l, 1)
	})
	t.Run("restart", func(t *testing.T) {
		_, cfg := migrated(t, p)
		cfg.MaxConns, cfg.IdleTimeout = 4, time.Minute
		var boot time.Duration
		var mu sync.Mutex
		cfg.Boot = func() time.Duration { mu.Lock(); defer mu.Unlock(); return boot }
		l := openPostgres(t, cfg)
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() { insert(t, l, pgRow(1, n)) })
		}
		wg.Wait()
		p.Restart(t)
		// One call may meet a connection that was cut; then all are known to be.
		failed := 0
		for n := range 3 {
			if _, err := l.Insert(t.Context(), []ledger.Row{pgRow(1, 10+n)}); err != nil {
				failed++
			}
		}
		if failed > 1 {
			t.Errorf("%d calls failed after a restart", failed)
		}
		p.Restart(t)
		mu.Lock()
		boot += time.Minute // long unused: it is tried out first
		mu.Unlock()
		insert(t, l, pgRow(1, 20))
	})
	t.Run("pooler", func(t *testing.T) {
		_, cfg := migrated(t, p)
		cfg.MaxConns = 1
		l := openPostgres(t, cfg)
		insert(t, l, pgRow(1, 0))
		for n := range 3 {
			if err := l.Deallocate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := insert(t, l, pgRow(1, 1+n)); len(got) != 1 {
				t.Errorf("after the statements were lost: %d receipts", len(got))
			}
			if err := l.Deallocate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if lines, err := l.LinesOf(t.Context(), pgRow(1, 1).Keys.Idem); err != nil || len(lines) != 1 {
				t.Errorf("lines after the statements were lost: %v, %v", lines, err)
			}
		}
		countRows(t, l, 4)
		if s := l.Stats(); s.Dials != 2 {
			t.Errorf("more than one change of the way: %+v", s)
		}
	})
}

// All agents have heard the same scans.
func TestPostgresSameRows(t *testing.T) {
	const agents, scans, batch = 8, 5000, 500
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	_, cfg := migrated(t, p)
	var mu sync.Mutex
	winners := map[idem.EventID]bool{}
	var wg sync.WaitGroup
	for a := range agents {
		l := openPostgres(t, cfg)
		wg.Go(func() {
			for n := range scans / batch {
				from := (n + a) % (scans / batch) * batch
				in, err := l.Insert(t.Context(), pgRows(byte(a), from, batch))
				if err != nil {
					t.Errorf("agent %d: %v", a, err)
					return
				}
				mu.Lock()
				for _, r := range in.Receipts {
					winners[r.Event] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	l := openPostgres(t, cfg)
	countRows(t, l, scans)
	if len(winners) != scans {
		t.Errorf("%d receipts for %d movements", len(winners), scans)
	}
	err := l.Rows(t.Context(), ledger.Span{}, func(r ledger.Row) error {
		if !winners[r.Event] {
			return fmt.Errorf("row of %s without a receipt", r.Event)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPostgresClock(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	_, proxy, l := behind(t, p, nil)
	ask := func() (offset, within time.Duration) {
		now, within, err := l.Clock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return now.Sub(window.FromTime(time.Now())), within
	}
	ask()
	proxy.Delay(100 * time.Millisecond)
	// The server's clock is this machine's.
	w := testenv.NewWatch(t)
	offset, within := ask()
	w.Within(t, "the answer", 2*time.Second)
	if within < 100*time.Millisecond || within > w.Stop().Wall || offset.Abs() > w.Stop().Wall+within {
		t.Errorf("the server's clock differs by %v, told to be within %v", offset, within)
	}
}

// The statement of Standing keeps its plan when it was prepared on an empty table, which is what a new
// deployment does; = ANY does not.
func TestPostgresStandingPlan(t *testing.T) {
	const stored, probes = 20_000, 1000
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Settings: []string{"autovacuum=off"}})
	db, cfg := migrated(t, p)
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	const plainSQL = "SELECT event_id, idem_key, committed_at FROM scan_ledger WHERE event_id = ANY ($1::uuid[]) OR idem_key = ANY ($2::bytea[]) OR edge_key = ANY ($3::bytea[])"
	var events [][16]byte
	var idems, edges [][]byte
	run := func(sql string, want int) time.Duration {
		t.Helper()
		start := time.Now()
		tag, err := c.Exec(t.Context(), sql, events, idems, edges) // prepared at its first use
		if err != nil || tag.RowsAffected() != int64(want) {
			t.Fatalf("%s: %v, %v, want %d rows", sql, tag, err, want)
		}
		return time.Since(start)
	}
	for range 10 { // until the plan is kept
		run(ledger.StandingSQL, 0)
		run(plainSQL, 0)
	}
	rows := pgRows(1, 0, stored)
	insert(t, openPostgres(t, cfg), rows...)
	found := 0
	for n := range probes {
		r := &rows[n*stored/probes]
		events, idems = append(events, r.Event), append(idems, r.Keys.Idem.Hash[:])
		found += 2
		if !r.Keys.Edge.IsZero() {
			edges = append(edges, r.Keys.Edge.Hash[:])
			found++
		}
	}
	var took [2][]time.Duration
	for range 5 {
		took[0] = append(took[0], run(ledger.StandingSQL, found))
		took[1] = append(took[1], run(plainSQL, probes))
	}
	ours, plain := slices.Min(took[0]), slices.Min(took[1]) // what a busy machine adds is in the others
	t.Logf("%d probes of %d rows: %v, with = ANY %v, ratio %.0f", probes, stored, ours, plain, float64(plain)/float64(ours))
	if plain < 20*ours {
		t.Errorf("with = ANY %v, not 20 times our %v", plain, ours)
	}
}

// On an empty table, with a plan for any arguments, each kind of key is still looked up by its index.
func TestPostgresStandingUsesIndexes(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, _ := migrated(t, p)
	c := p.Connect(t, testenv.PostgresSuperuser, db)
	out, err := c.PgConn().Exec(t.Context(), "SET plan_cache_mode = force_generic_plan; PREPARE s (uuid[], bytea[], bytea[]) AS "+
		ledger.StandingSQL+"; EXPLAIN EXECUTE s ('{}', '{}', '{}')").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var plan []string
	for _, r := range out[len(out)-1].Rows {
		plan = append(plan, string(r[0]))
	}
	if got := strings.Join(plan, "\n"); strings.Count(got, "Index Scan") != 3 || strings.Contains(got, "Seq Scan") {
		t.Errorf("plan of Standing:\n%s", got)
	}
}
