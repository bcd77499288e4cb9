package ledger_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
)

// listOf returns the texts that a query finds.
func listOf(t *testing.T, c *pgx.Conn, sql string) []string {
	t.Helper()
	rows, err := c.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func expectList(t *testing.T, what string, got []string, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(want), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	slices.Sort(lines)
	slices.Sort(got)
	for _, x := range got {
		if !slices.Contains(lines, x) {
			t.Errorf("%s: there is %q", what, x)
		}
	}
	for _, x := range lines {
		if !slices.Contains(got, x) {
			t.Errorf("%s: there is no %q", what, x)
		}
	}
}

// The schema, in the words of PostgreSQL's catalog. Others read these tables: what changes here is a change
// of the interface.
func TestMigratedSchema(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, _ := migrated(t, p)
	c := p.Connect(t, testenv.PostgresOwner, db)

	expectList(t, "columns", listOf(t, c, `SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
		|| CASE WHEN a.attnotnull THEN ' not null' ELSE '' END || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
		FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND a.attnum > 0`), `
		scan_schema.version integer not null
		scan_schema.applied_at timestamp with time zone not null default now()
		scan_ledger.idem_key bytea not null
		scan_ledger.edge_key bytea
		scan_ledger.event_id uuid not null
		scan_ledger.facility_uuid text not null
		scan_ledger.scanner_id text not null
		scan_ledger.ndc text not null default ''::text
		scan_ledger.lot text not null default ''::text
		scan_ledger.quantity integer not null
		scan_ledger.scan_type text not null
		scan_ledger.window_index bigint not null
		scan_ledger.extras text not null default ''::text
		scan_ledger.gtin text
		scan_ledger.hibc text
		scan_ledger.serial text
		scan_ledger.ndc11 text
		scan_ledger.ndc12 text
		scan_ledger.expiry date
		scan_ledger.pkg_level smallint
		scan_ledger.flags text[] not null default '{}'::text[]
		scan_ledger.rx_token text
		scan_ledger.agent_id text not null
		scan_ledger.captured_at timestamp with time zone not null
		scan_ledger.clock_quality text not null
		scan_ledger.committed_at timestamp with time zone not null default now()
		scan_time_correction.event_id uuid not null
		scan_time_correction.captured_at_corrected timestamp with time zone not null
		scan_time_correction.recorded_at timestamp with time zone not null default now()
		scan_audit_line.event_id uuid not null
		scan_audit_line.agent_id text not null
		scan_audit_line.at timestamp with time zone not null
		scan_audit_line.key text
		scan_audit_line.ref text
		scan_audit_line.outcome text not null
		scan_audit_line.reason text
		scan_audit_line.winner_event_id uuid
		scan_audit_line.scanner_id text
		scan_audit_line.scan_type text
		scan_audit_line.captured_at timestamp with time zone
		scan_audit_line.ttl_ms integer
		scan_audit_line.length integer
		scan_audit_line.symbology text
		scan_audit_line.recorded_at timestamp with time zone not null default now()
		scan_audit_chain.agent_id text not null
		scan_audit_chain.spool_epoch text not null
		scan_audit_chain.seq bigint not null
		scan_audit_chain.event_ids uuid[] not null
		scan_audit_chain.line_hashes bytea not null
		scan_audit_chain.prev_hash bytea not null
		scan_audit_chain.hash bytea not null
		scan_scanner.facility_uuid text not null
		scan_scanner.scanner_id text not null
		scan_scanner.agent_id text not null
		scan_scanner.shared boolean not null default false
		scan_agent_lease.agent_id text not null
		scan_agent_lease.facility_uuid text not null
		scan_agent_lease.nonce text not null
		scan_agent_lease.lease_until timestamp with time zone not null
		scan_agent_lease.heartbeat_at timestamp with time zone not null default now()
		scan_agent_lease.policy_hash text not null
		scan_agent_lease.version text not null
		claim_ingest.correlation_id text not null
		claim_ingest.event_id uuid not null
		claim_ingest.at timestamp with time zone not null default now()
		pa_cases.case_id text not null
		pa_cases.member_token text not null
		pa_cases.gpi text not null
		pa_cases.request_window text not null
		pa_cases.version integer not null default 1
		pa_cases.state text not null
		pa_cases.created_by uuid not null
		pa_cases.last_op_id uuid not null
		pa_cases.created_at timestamp with time zone not null default now()
		pa_cases.updated_at timestamp with time zone not null default now()
		pa_ref.ref_id text not null
		pa_ref.case_id text not null
		pa_pend.event_id uuid not null
		pa_pend.ref_id text not null
		pa_pend.created boolean not null`)

	expectList(t, "constraints", listOf(t, c, `SELECT conrelid::regclass || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
		WHERE connamespace = 'public'::regnamespace`), `
		scan_schema PRIMARY KEY (version)
		scan_ledger PRIMARY KEY (idem_key)
		scan_ledger UNIQUE (edge_key)
		scan_ledger UNIQUE (event_id)
		scan_ledger CHECK ((octet_length(idem_key) = 32))
		scan_ledger CHECK ((octet_length(edge_key) = 32))
		scan_ledger CHECK (((quantity >= 1) AND (quantity <= 9999)))
		scan_ledger CHECK ((scan_type = ANY (ARRAY['receive'::text, 'dispense'::text, 'waste'::text, 'return'::text, 'adjust'::text, 'transfer'::text, 'count'::text])))
		scan_ledger CHECK ((clock_quality = ANY (ARRAY['synced'::text, 'holdover'::text, 'unsynced'::text, 'device'::text])))
		scan_time_correction PRIMARY KEY (event_id)
		scan_audit_line PRIMARY KEY (event_id)
		scan_audit_chain PRIMARY KEY (agent_id, spool_epoch, seq)
		scan_scanner PRIMARY KEY (facility_uuid, scanner_id)
		scan_agent_lease PRIMARY KEY (agent_id)
		claim_ingest PRIMARY KEY (correlation_id)
		pa_cases PRIMARY KEY (case_id)
		pa_cases CHECK ((state = ANY (ARRAY['PENDING'::text, 'IN_REVIEW'::text, 'APPROVED'::text, 'DENIED'::text, 'APPEALED'::text, 'CANCELLED'::text, 'EXPIRED'::text])))
		pa_ref PRIMARY KEY (ref_id)
		pa_ref FOREIGN KEY (case_id) REFERENCES pa_cases(case_id)
		pa_pend PRIMARY KEY (event_id)`)

	expectList(t, "indexes", listOf(t, c, `SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexname IN ('scan_audit_key', 'pa_cases_open')`), `
		CREATE INDEX scan_audit_key ON public.scan_audit_line USING btree (key) WHERE (key IS NOT NULL)
		CREATE UNIQUE INDEX pa_cases_open ON public.pa_cases USING btree (member_token, gpi) WHERE (state = ANY (ARRAY['PENDING'::text, 'IN_REVIEW'::text, 'APPEALED'::text]))`)

	expectList(t, "views", listOf(t, c, `SELECT c.relname || ' ' || string_agg(a.attname || ' ' || format_type(a.atttypid, -1), ', ' ORDER BY a.attnum)
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'v' GROUP BY c.relname`), `
		scan_audit event_id uuid, agent_id text, at timestamp with time zone, key text, ref text, outcome text, reason text, winner_event_id uuid, scanner_id text, scan_type text, captured_at timestamp with time zone, ttl_ms integer, length integer, symbology text, recorded_at timestamp with time zone
		scan_ledger_keys key text, idem_key bytea, edge_key bytea, event_id uuid, facility_uuid text, scanner_id text, ndc text, lot text, quantity integer, scan_type text, window_index bigint, extras text, gtin text, hibc text, serial text, ndc11 text, ndc12 text, expiry date, pkg_level smallint, flags text[], rx_token text, agent_id text, captured_at timestamp with time zone, clock_quality text, committed_at timestamp with time zone`)

	expectList(t, "grants", listOf(t, c, `SELECT table_name || ' ' || string_agg(privilege_type, ' ' ORDER BY privilege_type)
		FROM information_schema.table_privileges WHERE table_schema = 'public' AND grantee <> 'scanonce_owner' GROUP BY table_name, grantee`), `
		scan_schema SELECT
		scan_audit SELECT
		scan_ledger_keys SELECT
		scan_ledger INSERT SELECT
		scan_audit_line INSERT SELECT
		scan_audit_chain INSERT SELECT
		scan_time_correction INSERT SELECT
		claim_ingest INSERT SELECT
		pa_ref INSERT SELECT
		pa_pend INSERT SELECT
		pa_cases INSERT SELECT UPDATE
		scan_scanner INSERT SELECT UPDATE
		scan_agent_lease INSERT SELECT UPDATE`)
}

// What an agent's login can do with the ledger and the audit is add to them.
func TestAgentCannotChangeWhatIsWritten(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, cfg := migrated(t, p)
	insert(t, openPostgres(t, cfg), pgRow(1, 0))
	c := p.Connect(t, testenv.PostgresLogin, db)
	for _, table := range []string{"scan_ledger", "scan_audit_line", "scan_audit_chain", "scan_time_correction", "claim_ingest", "pa_ref", "pa_pend",
		"scan_schema", "pa_cases", "scan_scanner", "scan_agent_lease"} {
		sql := []string{"DELETE FROM " + table, "TRUNCATE " + table, "DROP TABLE " + table, "ALTER TABLE " + table + " ADD x int"}
		switch table {
		case "pa_cases", "scan_scanner", "scan_agent_lease":
		case "scan_schema":
			sql = append(sql, "UPDATE scan_schema SET version = 2", "INSERT INTO scan_schema VALUES (2)")
		default:
			col := listOf(t, c, "SELECT min(attname::text) FROM pg_attribute WHERE attnum > 0 AND attrelid = '"+table+"'::regclass")[0]
			sql = append(sql, "UPDATE "+table+" SET "+col+" = NULL")
		}
		for _, s := range sql {
			_, err := c.Exec(t.Context(), s)
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != "42501" {
				t.Errorf("%s: %v, want permission denied", s, err)
			}
		}
	}
	for _, s := range []string{
		"INSERT INTO scan_scanner (facility_uuid, scanner_id, agent_id) VALUES ('F', 'S', 'a')",
		"UPDATE scan_scanner SET shared = true",
		"SELECT * FROM scan_audit", "SELECT * FROM scan_ledger_keys", "SELECT * FROM pa_pend",
	} {
		if tag, err := c.Exec(t.Context(), s); err != nil || strings.HasSuffix(s, "true") && tag.RowsAffected() != 1 {
			t.Errorf("%s: %v, %v", s, tag, err)
		}
	}
	var key string
	err := c.QueryRow(t.Context(), "SELECT key FROM scan_audit JOIN scan_ledger_keys USING (key) WHERE outcome = 'committed'").Scan(&key)
	if err != nil || key != pgRow(1, 0).Keys.Idem.String() {
		t.Errorf("the row's key by the views: %q, %v", key, err)
	}
}

func TestMigrateAgainAndTogether(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	// Four at the same database, two at another one, which has the role in common.
	a, b := p.NewDatabase(t), p.NewDatabase(t)
	var mu sync.Mutex
	firsts := map[string]int{}
	var wg sync.WaitGroup
	for n := range 6 {
		db := a
		if n >= 4 {
			db = b
		}
		wg.Go(func() {
			from, to, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db)}, 0)
			if err != nil || to != ledger.SchemaVersion || from != 0 && from != to {
				t.Errorf("%s: from %d to %d, %v", db, from, to, err)
			}
			if from == 0 {
				mu.Lock()
				firsts[db]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if firsts[a] != 1 || firsts[b] != 1 {
		t.Errorf("migrated from nothing: %v, want once each", firsts)
	}
	insert(t, openPostgres(t, ledger.PostgresConfig{DSN: p.AgentDSN(t, a)}), pgRow(1, 0))
	if from, to, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(a)}, ledger.SchemaVersion); from != ledger.SchemaVersion || to != from || err != nil {
		t.Errorf("again: from %d to %d, %v", from, to, err)
	}
	countRows(t, openPostgres(t, ledger.PostgresConfig{DSN: p.AgentDSN(t, a)}), 1)
}

func TestMigrateRefuses(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Password: true})
	db := p.NewDatabase(t)
	login := p.AgentDSN(t, db)
	file := p.PasswordFile(t, testenv.PostgresPassword)
	migrate := func(dsn string, to int) error {
		_, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: dsn, PasswordFile: file}, to)
		return err
	}
	expect := func(what string, err error, detail, hint string, config bool) {
		t.Helper()
		var c *ledger.ConfigError
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), detail) || !strings.Contains(err.Error(), hint) || errors.As(err, &c) != config {
			t.Errorf("%s: %v, want %q and %q", what, err, detail, hint)
		}
	}
	expect("not the owner", migrate(login, 0), "permission denied for schema public", "the database's owner", true)
	expect("unknown version", migrate(p.OwnerDSN(db), 99), "version 99", "write a version from 1 to", false)
	expect("negative version", migrate(p.OwnerDSN(db), -1), "version -1", "write a version from 1 to", false)
	expect("no schema in the path", migrate(p.OwnerDSN(db)+"&search_path=nowhere", 0), "no schema has been selected", "search_path", true)
	expect("plaintext", migrate("postgres://owner@db.example.com/scanonce", 0), "without TLS", "verify-full", true)

	// An owner that may not create roles, in a server without the role.
	p.Exec(t, db, "DROP ROLE scanonce_agent; ALTER ROLE scanonce_owner NOCREATEROLE")
	expect("no right to create the role", migrate(p.OwnerDSN(db), 0), "permission denied to create role", "let a superuser create role scanonce_agent", true)
	if got := listOf(t, p.Connect(t, testenv.PostgresOwner, db), "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"); len(got) != 0 {
		t.Errorf("a migration that failed left %v", got)
	}
	p.Exec(t, db, "CREATE ROLE scanonce_agent")
	// The owner's DSN comes from a file of its own and may hold the password.
	with := strings.Replace(p.OwnerDSN(db), "@", ":"+strings.ReplaceAll(testenv.PostgresPassword, " ", "%20")+"@", 1)
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: with}, 0); err != nil {
		t.Errorf("with the role there, and the password in the DSN: %v", err)
	}
	p.Exec(t, db, "INSERT INTO scan_schema (version) VALUES (1000)")
	expect("newer schema", migrate(p.OwnerDSN(db), 0), "version 1000, newer", "install a newer scanonce", true)
	p.Stop(t)
	expect("server down", migrate(p.OwnerDSN(db), 0), "refused", "", false)
}

// In a schema of its own, the role gets what it needs to look into it.
func TestMigrateIntoASchema(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db := p.NewDatabase(t)
	p.Exec(t, db, "CREATE SCHEMA pharmacy AUTHORIZATION scanonce_owner")
	const path = "&search_path=pharmacy"
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db) + path}, 0); err != nil {
		t.Fatal(err)
	}
	l := openPostgres(t, ledger.PostgresConfig{DSN: p.AgentDSN(t, db) + path})
	insert(t, l, pgRow(1, 0))
	countRows(t, l, 1)
	if got := listOf(t, p.Connect(t, testenv.PostgresOwner, db), "SELECT count(*)::text FROM pharmacy.scan_audit"); got[0] != "1" {
		t.Errorf("lines in the schema: %v", got)
	}
}
