package ledger_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
)

func TestPostgresConfigValidate(t *testing.T) {
	for _, name := range []string{"PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGSSLMODE", "PGSSLROOTCERT", "PGSERVICE", "PGPASSFILE"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	ca, err := testenv.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, good := range []string{
		"postgres://scanonce@127.0.0.1:5432/scanonce?sslmode=disable",
		"postgres://scanonce@[::1]:5432/scanonce",
		"postgresql://scanonce@localhost/scanonce?sslmode=prefer",
		"host=/var/run/postgresql user=scanonce dbname=scanonce",
		"postgres:///scanonce?host=/var/run/postgresql&user=scanonce",
		"postgres://scanonce@db.example.com/scanonce?sslmode=require",
		"postgres://scanonce@db.example.com/scanonce?sslmode=verify-full&sslrootcert=" + caFile,
		"postgres://scanonce@db1.example.com:5432,db2.example.com:5432/scanonce?sslmode=verify-full&target_session_attrs=read-write",
		"host=db.example.com user=scanonce dbname=scanonce sslmode=verify-ca sslrootcert=" + caFile + " search_path=pharmacy",
	} {
		if err := (ledger.PostgresConfig{DSN: good}).Validate(); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, c := range []struct{ dsn, detail, hint string }{
		{"", "no postgres.dsn", "write one"},
		{"postgres://scanonce@db.example.com/scanonce", "db.example.com without TLS", "sslmode=verify-full"},
		{"postgres://scanonce@db.example.com/scanonce?sslmode=prefer", "db.example.com without TLS", "sslmode=verify-full"},
		{"postgres://scanonce@db.example.com/scanonce?sslmode=allow", "db.example.com without TLS", "sslmode=verify-full"},
		{"postgres://scanonce@db.example.com/scanonce?sslmode=disable", "db.example.com without TLS", "sslmode=verify-full"},
		{"postgres://scanonce@10.1.2.3/scanonce?sslmode=disable", "10.1.2.3 without TLS", "sslmode=verify-full"},
		{"postgres://scanonce@127.0.0.1,db.example.com/scanonce?sslmode=disable", "db.example.com without TLS", "sslmode=verify-full"},
		{"host=db.example.com user=scanonce sslmode=prefer", "db.example.com without TLS", "sslmode=verify-full"},
		{"postgres://scanonce:hush-hush@127.0.0.1/scanonce", "password in postgres.dsn", "postgres.password_file"},
		{"postgres://127.0.0.1/scanonce?user=scanonce&password=hush-hush", "password in postgres.dsn", "postgres.password_file"},
		{"host=127.0.0.1 user=scanonce password=hush-hush", "password in postgres.dsn", "postgres.password_file"},
		{"host=127.0.0.1 user=scanonce PassWord = 'hush-hush'", "password in postgres.dsn", "postgres.password_file"},
		{"postgres://scanonce@127.0.0.1/scanonce?sslpassword=hush-hush", "password in postgres.dsn", "postgres.password_file"},
		{"postgres://scan:hush-hush@[::1/scanonce", "not a URL", "write postgres://"},
		{"postgres://scanonce@127.0.0.1/scanonce?sslmode=perhaps", "sslmode is invalid", "write postgres://"},
		{"postgres://scanonce@db.example.com/scanonce?sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem", "write postgres://"},
		{"some words", "cannot be read", "write postgres://"},
	} {
		err := ledger.PostgresConfig{DSN: c.dsn}.Validate()
		var config *ledger.ConfigError
		if !errors.As(err, &config) || !strings.HasPrefix(err.Error(), "cannot use PostgreSQL: ") ||
			!strings.Contains(config.Detail, c.detail) || !strings.Contains(config.Hint, c.hint) || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("%s: %v, want %q and the hint %q", c.dsn, err, c.detail, c.hint)
		}
		if l, opened := ledger.OpenPostgres(ledger.PostgresConfig{DSN: c.dsn}); l != nil || opened == nil {
			t.Errorf("%s: opened", c.dsn)
		}
	}
	// What the environment adds is no way around.
	t.Setenv("PGSSLMODE", "prefer")
	if err := (ledger.PostgresConfig{DSN: "host=db.example.com user=scanonce"}).Validate(); err == nil {
		t.Error("plaintext by PGSSLMODE is allowed")
	}
	if err := (ledger.PostgresConfig{DSN: "postgres://scanonce@127.0.0.1/scanonce", MaxConns: -1}).Validate(); err == nil {
		t.Error("a negative number of connections is allowed")
	}
}

// expectConfigError makes a call that fails until someone mends the configuration.
func expectConfigError(t *testing.T, what string, l *ledger.Postgres, detail, hint string) {
	t.Helper()
	_, err := l.Standing(t.Context(), []ledger.Probe{probeOf(pgRow(1, 0))})
	var config *ledger.ConfigError
	if !errors.As(err, &config) {
		t.Errorf("%s: %v, want a ConfigError", what, err)
		return
	}
	if !strings.HasPrefix(err.Error(), "cannot look up the ledger: ") || !strings.Contains(config.Detail, detail) || !strings.Contains(config.Hint, hint) ||
		strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), testenv.PostgresPassword) {
		t.Errorf("%s: %v, want %q and the hint %q", what, err, detail, hint)
	}
}

func TestPostgresConfigErrors(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{TLS: true, Password: true, NoFsync: true})
	good, bad := p.PasswordFile(t, testenv.PostgresPassword), p.PasswordFile(t, "wrong")
	db := p.NewDatabase(t)
	cfg := ledger.PostgresConfig{DSN: p.AgentDSN(t, db), PasswordFile: good}
	open := func(change func(c *ledger.PostgresConfig)) *ledger.Postgres {
		c := cfg
		change(&c)
		return openPostgres(t, c)
	}
	same := func(*ledger.PostgresConfig) {}

	l := open(same)
	expectConfigError(t, "no schema", l, `"scan_schema" does not exist`, "scanonce ledger migrate")
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db), PasswordFile: good}, 0); err != nil {
		t.Fatal(err)
	}
	if got := insert(t, l, pgRow(1, 0)); len(got) != 1 {
		t.Errorf("after the migration: %v", got)
	}

	password := open(func(c *ledger.PostgresConfig) { c.PasswordFile = bad })
	expectConfigError(t, "wrong password", password, "password authentication failed", "postgres.password_file")
	if err := os.WriteFile(bad, []byte(testenv.PostgresPassword), 0o600); err != nil {
		t.Fatal(err)
	}
	countRows(t, password, 1) // with the password mended, without a restart
	expectConfigError(t, "no password", open(func(c *ledger.PostgresConfig) { c.PasswordFile = "" }), "password", "postgres.password_file")
	expectConfigError(t, "password file", open(func(c *ledger.PostgresConfig) { c.PasswordFile = "/nowhere/password" }), "/nowhere/password", "readable")
	expectConfigError(t, "no database", open(func(c *ledger.PostgresConfig) { c.DSN = p.DSN(testenv.PostgresLogin, "nowhere") }), "nowhere", "create the database")
	expectConfigError(t, "no such login", open(func(c *ledger.PostgresConfig) { c.DSN = p.DSN("stranger", db) }), "stranger", "")
	expectConfigError(t, "plaintext", open(func(c *ledger.PostgresConfig) { c.DSN = strings.Replace(c.DSN, "verify-full", "disable", 1) }), "no encryption", "sslmode")

	other, err := testenv.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	wrongCA := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(wrongCA, other.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	expectConfigError(t, "other CA", open(func(c *ledger.PostgresConfig) {
		c.DSN = "host=127.0.0.1 port=" + strings.TrimPrefix(p.Addr(), "127.0.0.1:") + " user=scanonce dbname=" + db + " sslmode=verify-full sslrootcert=" + wrongCA
	}), "authority", "sslrootcert")

	p.Exec(t, db, "INSERT INTO scan_schema (version) VALUES (1000)")
	expectConfigError(t, "schema too new", open(same), "version 1000, newer", "install a newer scanonce")
	p.Exec(t, db, "DELETE FROM scan_schema")
	expectConfigError(t, "schema too old", open(same), "version 0, older", "scanonce ledger migrate")
	p.Exec(t, db, "INSERT INTO scan_schema (version) VALUES (1)")
	countRows(t, open(same), 1)
	p.Exec(t, db, "REVOKE scanonce_agent FROM scanonce")
	expectConfigError(t, "no grant", open(same), "permission denied", "GRANT scanonce_agent")

	p.Stop(t)
	_, err = open(same).Count(t.Context())
	var config *ledger.ConfigError
	if err == nil || errors.As(err, &config) || !strings.HasPrefix(err.Error(), "cannot count the ledger: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a server that is down: %v, want an error, not of the configuration", err)
	}
}

func TestPostgresCertificateOfAnotherHost(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{TLS: true, TLSHosts: []string{"db.example.com"}, NoFsync: true})
	l := openPostgres(t, ledger.PostgresConfig{DSN: p.DSN(testenv.PostgresLogin, "postgres")})
	expectConfigError(t, "other host", l, "for another host", "as in the certificate")
}

func TestPostgresWithoutTLSAtTheServer(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	_, cfg := migrated(t, p)
	cfg.DSN = strings.Replace(cfg.DSN, "sslmode=disable", "sslmode=require", 1)
	expectConfigError(t, "no TLS", openPostgres(t, cfg), "does not speak TLS", "ssl = on")
}
