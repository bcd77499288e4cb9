package ledger_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// The age of a claim is by the ledger's own clock, from the first question on.
func TestIngestAge(t *testing.T) {
	ask := func(t *testing.T, l ledger.Ledger, event byte) ledger.Ingested {
		t.Helper()
		got, err := l.Ingest(t.Context(), []ledger.Ingest{{Claim: "c", Event: idem.EventID{event}}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0]
	}
	t.Run("embedded", func(t *testing.T) {
		now := window.UTC(1_764_000_000_000)
		l, err := ledger.OpenEmbedded(filepath.Join(t.TempDir(), "ledger.db"), func() window.UTC { return now })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for _, after := range []time.Duration{0, time.Hour, 72 * time.Hour} {
			now = window.UTC(1_764_000_000_000).Add(after)
			if got, want := ask(t, l, byte(1+after.Hours())), (ledger.Ingested{Event: idem.EventID{1}, Age: after}); got != want {
				t.Errorf("%v later %+v, want %+v", after, got, want)
			}
		}
		if err := l.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("postgres", func(t *testing.T) {
		p := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
		db, cfg := migrated(t, p)
		l := openPostgres(t, cfg)
		ask(t, l, 1)
		owner, err := pgx.Connect(t.Context(), p.OwnerDSN(db))
		if err == nil {
			_, err = owner.Exec(t.Context(), `UPDATE claim_ingest SET at = at - interval '3 days'`)
			owner.Close(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(t, l, 2); got.Event != (idem.EventID{1}) || got.Age < 72*time.Hour || got.Age > 73*time.Hour {
			t.Errorf("three days later %+v", got)
		}
	})
}
