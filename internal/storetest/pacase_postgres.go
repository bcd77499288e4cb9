package storetest

import (
	"testing"

	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
)

// PACasePostgres makes a migrated database and returns its name and an agent's configuration for it. The
// migrations are the ledger's, which the room of the cases may not enter.
func PACasePostgres(tb testing.TB, p *testenv.Postgres) (db string, cfg pacase.PostgresConfig) {
	tb.Helper()
	db = p.NewDatabase(tb)
	if _, to, err := ledger.Migrate(tb.Context(), ledger.PostgresConfig{DSN: p.OwnerDSN(db)}, 0); to != ledger.SchemaVersion || err != nil {
		tb.Fatalf("migrated to %d, %v", to, err)
	}
	return db, pacase.PostgresConfig{DSN: p.AgentDSN(tb, db), Agent: "agent-a"}
}
