package testenv

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// query returns the single text that sql yields by dsn.
func query(t *testing.T, dsn, password, sql string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password = password
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	var s string
	err = c.QueryRow(ctx, sql).Scan(&s)
	return s, err
}

func expectQuery(t *testing.T, dsn, password, sql, want string) {
	t.Helper()
	if got, err := query(t, dsn, password, sql); err != nil || got != want {
		t.Fatalf("%s: %q, %v, want %q", sql, got, err, want)
	}
}

func TestPostgresLives(t *testing.T) {
	p := NewPostgres(t, PostgresOptions{})
	db, other := p.NewDatabase(t), p.NewDatabase(t)
	expectQuery(t, p.OwnerDSN(db), "", "SELECT current_user || ' ' || current_database()", "scanonce_owner "+db)
	expectQuery(t, p.AgentDSN(t, other), "", "SELECT current_user || ' ' || current_database()", "scanonce "+other)
	expectQuery(t, p.SocketDSN(PostgresSuperuser, db), "", "SHOW fsync", "on")
	p.Exec(t, db, "CREATE TABLE kept AS SELECT 1 AS n; CREATE TABLE more ()")

	port := p.Port
	p.Restart(t)
	expectQuery(t, p.OwnerDSN(db), "", "SELECT count(*)::text FROM pg_tables WHERE tablename IN ('kept', 'more')", "2")
	c := p.Connect(t, PostgresOwner, db)
	p.Kill(t)
	if err := c.Ping(t.Context()); err == nil {
		t.Error("a connection to a killed server answers")
	}
	if _, err := query(t, p.OwnerDSN(db), "", "SELECT 'there'"); err == nil {
		t.Error("a killed server answers")
	}
	p.Start(t)
	if p.Port != port {
		t.Errorf("the port changed from %d to %d", port, p.Port)
	}
	expectQuery(t, p.OwnerDSN(db), "", "SELECT count(*)::text FROM pg_tables WHERE tablename IN ('kept', 'more')", "2")
	if !strings.Contains(p.Log(), "automatic recovery in progress") {
		t.Errorf("the kill was no crash:\n%s", p.Log())
	}
}

func TestPostgresPauses(t *testing.T) {
	p := NewPostgres(t, PostgresOptions{NoFsync: true})
	c := p.Connect(t, PostgresSuperuser, "postgres")
	answer := make(chan error)
	p.Pause()
	go func() {
		_, err := c.Exec(context.Background(), "SELECT 1")
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("a paused server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	p.Resume()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	p.Pause()
	p.Kill(t) // paused or not
	p.Start(t)
	expectQuery(t, p.SocketDSN(PostgresSuperuser, "postgres"), "", "SHOW fsync", "off")
}

func TestPostgresGuardsTheDoor(t *testing.T) {
	p := NewPostgres(t, PostgresOptions{TLS: true, Password: true, NoFsync: true, Settings: []string{"max_connections=7"}})
	db := p.NewDatabase(t)
	expectQuery(t, p.OwnerDSN(db), PostgresPassword, "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()", "TLSv1.3")
	expectQuery(t, p.AgentDSN(t, db), PostgresPassword, "SHOW max_connections", "7")
	var refused *pgconn.PgError
	if _, err := query(t, p.OwnerDSN(db), "wrong", "SELECT 'in'"); !errors.As(err, &refused) || refused.Code != "28P01" {
		t.Errorf("wrong password: %v", err)
	}
	plain := "postgres://scanonce@" + p.Addr() + "/" + db + "?sslmode=disable"
	if _, err := query(t, plain, PostgresPassword, "SELECT 'in'"); !errors.As(err, &refused) || refused.Code != "28000" {
		t.Errorf("without TLS: %v", err)
	}
	if b, err := os.ReadFile(p.PasswordFile(t, PostgresPassword)); err != nil || strings.TrimSpace(string(b)) != PostgresPassword {
		t.Errorf("password file %q, %v", b, err)
	}
}
