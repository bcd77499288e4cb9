package ledger_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// notYet are the rights that this package's ledger does not use: the cases are another package's, whose test has
// them; the views' keys are for people; the rest is for what a later version keeps.
var notYet = []string{
	"INSERT ON pa_cases", "INSERT ON pa_pend", "INSERT ON pa_ref", "SELECT ON pa_cases", "SELECT ON pa_pend", "SELECT ON pa_ref", "UPDATE ON pa_cases",
	"SELECT ON scan_ledger_keys",
	"INSERT ON scan_time_correction", "SELECT ON scan_time_correction",
	"INSERT ON scan_scanner", "SELECT ON scan_scanner", "UPDATE ON scan_scanner",
	"INSERT ON scan_agent_lease", "SELECT ON scan_agent_lease", "UPDATE ON scan_agent_lease",
}

// Each right of the agents' role is needed by some call, but for those that are named above; and the calls are all
// that the ledger has.
func TestEachGrantIsNeeded(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db := p.NewDatabase(t)
	p.Exec(t, db, "CREATE SCHEMA pharmacy AUTHORIZATION scanonce_owner") // in public everybody has USAGE
	const path = "&search_path=pharmacy"
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db) + path}, 0); err != nil {
		t.Fatal(err)
	}
	cfg := ledger.PostgresConfig{DSN: p.AgentDSN(t, db) + path, Agent: "agent-a"}
	ctx := context.Background()
	next := 0
	calls := map[string]func(l *ledger.Postgres) error{
		"Insert": func(l *ledger.Postgres) error { _, err := l.Insert(ctx, []ledger.Row{pgRow(1, next)}); return err },
		"Standing": func(l *ledger.Postgres) error {
			_, err := l.Standing(ctx, []ledger.Probe{probeOf(pgRow(1, next))})
			return err
		},
		"AppendLines": func(l *ledger.Postgres) error {
			return l.AppendLines(ctx, []ledger.Line{{Event: eventNo(next), Agent: "agent-a", At: window.UTC(1_764_060_000_000), Outcome: ledger.Rejected}})
		},
		"AppendChain": func(l *ledger.Postgres) error {
			return l.AppendChain(ctx, []ledger.ChainRecord{{Agent: "agent-a", Epoch: "e", Seq: uint64(next), Events: []idem.EventID{eventNo(next)}, LineHashes: make([]byte, 32), Hash: sha256.Sum256(make([]byte, 64))}})
		},
		"Ingest": func(l *ledger.Postgres) error {
			_, err := l.Ingest(ctx, []ledger.Ingest{{Claim: eventNo(next).String(), Event: eventNo(next)}})
			return err
		},
		"Chain":      func(l *ledger.Postgres) error { return l.Chain(ctx, func(ledger.ChainRecord) error { return nil }) },
		"ChainHeads": func(l *ledger.Postgres) error { _, err := l.ChainHeads(ctx); return err },
		"Rows": func(l *ledger.Postgres) error {
			return l.Rows(ctx, ledger.Span{}, func(ledger.Row) error { return nil })
		},
		"Lines": func(l *ledger.Postgres) error {
			return l.Lines(ctx, ledger.Span{}, func(ledger.Line) error { return nil })
		},
		"Find":    func(l *ledger.Postgres) error { _, err := l.Find(ctx, "00", 1); return err },
		"LinesOf": func(l *ledger.Postgres) error { _, err := l.LinesOf(ctx, pgRow(1, next).Keys.Idem); return err },
		"Ping":    func(l *ledger.Postgres) error { return l.Ping(ctx) },
		"Count":   func(l *ledger.Postgres) error { _, err := l.Count(ctx); return err },
		"Clock":   func(l *ledger.Postgres) error { _, _, err := l.Clock(ctx); return err },
		"Fence":   func(l *ledger.Postgres) error { return l.Fence(ctx) },
	}
	for m := range reflect.TypeFor[*ledger.Postgres]().Methods() {
		if calls[m.Name] == nil && !slices.Contains([]string{"Stats", "Close", "Deallocate"}, m.Name) {
			t.Errorf("%s is not called here", m.Name)
		}
	}
	// fails makes all calls, each with a connection of its own.
	fails := func() (errs []error) {
		next++
		for name, call := range calls {
			l, err := ledger.OpenPostgres(cfg)
			if err != nil {
				t.Fatal(err)
			}
			err = call(l)
			l.Close()
			var mistake *ledger.ConfigError
			switch {
			case err == nil:
			case errors.As(err, &mistake) && strings.Contains(mistake.Hint, "GRANT scanonce_agent") && strings.Contains(mistake.Detail, "permission denied"),
				errors.As(err, &mistake) && strings.Contains(mistake.Hint, "scanonce ledger migrate"): // a schema that may not be used is not seen
				errs = append(errs, err)
			default:
				t.Errorf("%s: %v", name, err)
			}
		}
		return errs
	}
	if errs := fails(); len(errs) > 0 {
		t.Fatalf("the role is not enough: %v", errs)
	}
	grants := listOf(t, p.Connect(t, testenv.PostgresOwner, db), `SELECT privilege_type || ' ON ' || table_name FROM information_schema.role_table_grants
		WHERE grantee = 'scanonce_agent' UNION ALL SELECT 'USAGE ON SCHEMA pharmacy' ORDER BY 1`)
	if len(grants) < len(notYet)+10 {
		t.Fatalf("%d grants: %q", len(grants), grants)
	}
	for _, g := range notYet {
		if !slices.Contains(grants, g) {
			t.Errorf("%s is not granted", g)
		}
	}
	for _, g := range grants {
		at := strings.Replace(g, " ON ", " ON pharmacy.", 1)
		if strings.HasPrefix(g, "USAGE") {
			at = g
		}
		p.Exec(t, db, "REVOKE "+at+" FROM scanonce_agent")
		if needed := len(fails()) > 0; needed == slices.Contains(notYet, g) {
			t.Errorf("%s: needed %v, and named as unused %v", g, needed, !needed)
		}
		p.Exec(t, db, "GRANT "+at+" TO scanonce_agent")
	}
	if errs := fails(); len(errs) > 0 {
		t.Errorf("with all rights again: %v", errs)
	}
}

// The agents' login is nobody but a member of its role: it makes and changes nothing, after what the documentation
// takes from everybody not even a temporary table.
func TestAgentMakesNothing(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, cfg := migrated(t, p)
	p.Exec(t, db, "GRANT CREATE ON SCHEMA public TO PUBLIC") // as PostgreSQL did before 15
	refused := func(sql string) bool {
		err := testenv.ExecAt(t.Context(), cfg.DSN, sql)
		return err != nil && (strings.Contains(err.Error(), "42501") || strings.Contains(err.Error(), "28000"))
	}
	made := []string{"CREATE TABLE mine ()", "CREATE TEMPORARY TABLE scan_ledger ()", "CREATE VIEW mine AS SELECT 1", "CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'"}
	for _, sql := range made {
		if refused("BEGIN; " + sql + "; ROLLBACK") {
			t.Errorf("%s is refused by itself: this test has lost its premise", sql)
		}
	}
	take := "REVOKE " + testenv.Documented(t, "REVOKE ")
	p.Exec(t, db, strings.Replace(take, "DATABASE scanonce", "DATABASE "+db, 1))
	for _, sql := range append(made, "CREATE SCHEMA mine", "CREATE ROLE mine", "CREATE DATABASE mine", "CREATE EXTENSION pg_trgm", "ALTER SYSTEM SET fsync = off",
		"COPY scan_ledger TO PROGRAM 'cat'", "COPY scan_ledger TO '/tmp/x'", "SELECT pg_read_file('postgresql.conf')", "SET ROLE scanonce_owner", "SET SESSION AUTHORIZATION postgres",
		"ALTER ROLE scanonce_agent LOGIN", "GRANT scanonce_owner TO scanonce", "DROP INDEX scan_audit_key",
		"CREATE INDEX ON scan_ledger (lot)", "CREATE RULE mine AS ON INSERT TO scan_ledger DO INSTEAD NOTHING", "CREATE TRIGGER mine BEFORE INSERT ON scan_ledger EXECUTE FUNCTION suppress_redundant_updates_trigger()",
		"LOCK TABLE scan_ledger IN ACCESS EXCLUSIVE MODE", "SET session_replication_role = replica", "SELECT pg_reload_conf()", "SELECT passwd FROM pg_shadow") {
		if strings.HasPrefix(sql, "LOCK") {
			sql = "BEGIN; " + sql
		}
		if err := testenv.ExecAt(t.Context(), cfg.DSN, sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s: %v, want permission denied", sql, err)
		}
	}
	if got := p.Query(t, db, "SELECT rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls, (SELECT count(*) FROM pg_auth_members WHERE member = r.oid) FROM pg_roles r WHERE rolname = 'scanonce_agent'"); strings.Join(got[0], "") != "ffffff0" {
		t.Errorf("the role is more than one of rights: %v", got)
	}
	l := openPostgres(t, cfg)
	insert(t, l, pgRow(1, 0))
	countRows(t, l, 1)
}
