package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
)

// Fence waits for the synchronous standby, which what it fences may not have reached, with the agents' rights.
func TestPostgresFence(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	_, cfg := migrated(t, p)
	l := openPostgres(t, cfg)
	insert(t, l, pgRow(1, 0))
	if err := l.Fence(t.Context()); err != nil {
		t.Fatalf("without a standby: %v", err)
	}
	p.Synchronous(t, "nobody")
	// Of those that come later, all wait; the configuration is read by each session on its own.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var err error
	for err == nil {
		err = l.Fence(ctx)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("with a standby that is not there: %v", err)
	}
	p.Synchronous(t)
}

// Of several servers the one that takes rows is used, though the first one is silent; a standby alone is a mistake
// that is told.
func TestPostgresSeveralServers(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db, cfg := migrated(t, p)
	standby := p.Standby(t, "standby1", p.Addr())
	silent := testenv.NewProxy(t, p.Addr())
	silent.Set(t, testenv.BlackHole)
	cfg.ConnectTimeout = 3 * time.Second
	cfg.DSN = fmt.Sprintf("postgres://%s@%s,%s,%s/%s?sslmode=disable&target_session_attrs=read-write", testenv.PostgresLogin, silent.Addr(), standby.Addr(), p.Addr(), db)
	l := openPostgres(t, cfg)
	insert(t, l, pgRow(1, 0))
	countRows(t, l, 1)

	cfg.DSN = standby.DSN(testenv.PostgresLogin, db)
	alone := openPostgres(t, cfg)
	_, err := alone.Insert(t.Context(), []ledger.Row{pgRow(1, 1)})
	var mistake *ledger.ConfigError
	if !errors.As(err, &mistake) || mistake.Hint == "" {
		t.Errorf("a row for a standby: %v", err)
	}
}
