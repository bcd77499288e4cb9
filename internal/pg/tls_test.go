package pg_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"scanonce/internal/pg"
	"scanonce/internal/testenv"
)

// The server's certificate is checked, the agent's own is shown, and what is wrong is told in one line with the way out.
func TestTLS(t *testing.T) {
	start := func(o testenv.PostgresOptions) *testenv.Postgres {
		o.NoFsync, o.TLS = true, true
		p := testenv.NewPostgres(t, o)
		p.Exec(t, "postgres", "CREATE TABLE scan_schema (version int); INSERT INTO scan_schema VALUES (1); GRANT SELECT ON scan_schema TO "+testenv.PostgresLogin)
		return p
	}
	plain, clients := start(testenv.PostgresOptions{TLSHosts: []string{"127.0.0.1"}}), start(testenv.PostgresOptions{Clients: true})
	expired := start(testenv.PostgresOptions{Expired: true})
	// at is the login's DSN with some parameters set otherwise, or with "" left out.
	at := func(p *testenv.Postgres, change ...string) string {
		u, err := url.Parse(p.DSN(testenv.PostgresLogin, "postgres"))
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		for i := 0; i < len(change); i += 2 {
			switch {
			case change[i] == "host":
				u.Host = change[i+1] + ":" + u.Port()
			case change[i+1] == "":
				q.Del(change[i])
			default:
				q.Set(change[i], change[i+1])
			}
		}
		u.RawQuery = q.Encode()
		return u.String()
	}
	own := func(cert, key string) []string { return []string{"sslcert", cert, "sslkey", key} }
	other := testenv.MustAuthority(t)
	for _, c := range []struct{ name, dsn, detail, hint string }{
		{"verify-full", at(plain), "", ""},
		{"another authority", at(plain, "sslrootcert", other.File(t)), "not from the authority", "sslrootcert"},
		{"the system's authorities", at(plain, "sslrootcert", ""), "not from the authority", "sslrootcert"},
		{"no file of authorities", at(plain, "sslrootcert", "/nowhere/ca.pem"), "/nowhere/ca.pem", "sslrootcert"},
		{"another host", at(plain, "host", "localhost"), "for another host", "the host's name as in the certificate"},
		{"another host, by verify-ca", at(plain, "host", "localhost", "sslmode", "verify-ca"), "", ""},
		{"an expired certificate", at(expired), "expired", "this machine's date"},
		{"plaintext", at(plain, "sslmode", "disable"), "no encryption", "sslmode"},
		{"plaintext beyond this machine", "postgres://scanonce@192.0.2.1/scanonce?sslmode=disable", "a connection to 192.0.2.1 without TLS", "write sslmode=verify-full and sslrootcert=FILE"},
		{"perhaps plaintext beyond this machine", "postgres://scanonce@db.example.com/scanonce", "a connection to db.example.com without TLS", "write sslmode=verify-full and sslrootcert=FILE"},
		{"one's own certificate", at(clients, own(clients.Authority.Files(t, testenv.PostgresLogin))...), "", ""},
		{"none of one's own", at(clients), "client certificate", "sslcert and sslkey"},
		{"for another login", at(clients, own(clients.Authority.Files(t, testenv.PostgresOwner))...), "certificate authentication failed", "sslcert and sslkey"},
		{"from another authority", at(clients, own(other.Files(t, testenv.PostgresLogin))...), "refuses the TLS connection", "sslcert and sslkey"},
		{"one that has expired", at(clients, own(clients.Authority.ExpiredFiles(t, testenv.PostgresLogin))...), "refuses the TLS connection", "sslcert and sslkey"},
		{"no such file", at(clients, own("/nowhere/cert.pem", "/nowhere/key.pem")...), "/nowhere/", "write postgres://"},
	} {
		err := connect(t, c.dsn)
		for range 20 { // a server that refuses a certificate may close before its reason is read; the next attempt tells it
			if err == nil || !strings.Contains(err.Error(), syscall.ECONNRESET.Error()) {
				break
			}
			err = connect(t, c.dsn)
		}
		var mistake *pg.ConfigError
		switch {
		case c.detail == "":
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, c.detail) || !strings.Contains(mistake.Hint, c.hint) || strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: %v, want %q and the hint %q", c.name, err, c.detail, c.hint)
		}
	}
}

// connect asks a server for an encrypted connection.
func connect(t *testing.T, dsn string) error {
	t.Helper()
	conns, err := pg.Open(pg.Config{DSN: dsn})
	if err != nil {
		return err
	}
	defer conns.Close()
	var encrypted bool
	err = conns.With(t.Context(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted)
	})
	if err == nil && !encrypted {
		err = errors.New("it went in plaintext")
	}
	return err
}
