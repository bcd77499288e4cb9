package ledger_test

import (
	"testing"

	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
)

// migrated returns the configuration of an agent for a new, migrated database.
func migrated(tb testing.TB, p *testenv.Postgres) (db string, cfg ledger.PostgresConfig) {
	tb.Helper()
	db = p.NewDatabase(tb)
	from, to, err := ledger.Migrate(tb.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db)}, 0)
	if from != 0 || to != ledger.SchemaVersion || err != nil {
		tb.Fatalf("migrated from %d to %d, %v", from, to, err)
	}
	return db, ledger.PostgresConfig{DSN: p.AgentDSN(tb, db), Agent: "agent-a"}
}

func openPostgres(tb testing.TB, cfg ledger.PostgresConfig) *ledger.Postgres {
	tb.Helper()
	l, err := ledger.OpenPostgres(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
		if s := l.Stats(); s.Open != 0 {
			tb.Errorf("%d connections are open after Close", s.Open)
		}
	})
	return l
}

func TestPostgresConformance(t *testing.T) {
	p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	storetest.Ledger(t, func(tb testing.TB) storetest.LedgerFixture {
		_, cfg := migrated(tb, p)
		return storetest.LedgerFixture{Shared: true, Open: func(tb testing.TB) ledger.Ledger { return openPostgres(tb, cfg) }}
	})
}
