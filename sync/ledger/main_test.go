package ledger_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"scanonce/internal/storetest"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// childEnv names the ledger file that a child process of the kill test writes.
const childEnv = "SCANONCE_TEST_LEDGER"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(writeUntilKilled(path))
	}
	os.Exit(m.Run())
}

// counter is a clock that ticks a millisecond a look.
func counter() func() window.UTC {
	var t atomic.Int64
	t.Store(1_764_060_000_000)
	return func() window.UTC { return window.UTC(t.Add(1)) }
}

// openAt opens the ledger at path; at the end of the test it is checked and closed.
func openAt(tb testing.TB, path string) *ledger.Embedded {
	tb.Helper()
	l, err := ledger.OpenEmbedded(path, counter())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
		ro, err := ledger.OpenEmbeddedReadOnly(path)
		if err != nil {
			tb.Error(err)
			return
		}
		defer ro.Close()
		if err := ro.Check(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func TestEmbeddedConformance(t *testing.T) {
	storetest.Ledger(t, func(tb testing.TB) storetest.LedgerFixture {
		path := filepath.Join(tb.TempDir(), "ledger.db")
		return storetest.LedgerFixture{Open: func(tb testing.TB) ledger.Ledger { return openAt(tb, path) }}
	})
}
