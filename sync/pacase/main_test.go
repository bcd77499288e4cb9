package pacase_test

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"scanonce/internal/storetest"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// childEnv names the file of cases that a child process of the kill test writes.
const childEnv = "SCANONCE_TEST_PACASE"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(pendUntilKilled(path))
	}
	os.Exit(m.Run())
}

// counter is a clock that ticks a millisecond a look.
func counter() func() window.UTC {
	var t atomic.Int64
	t.Store(1_784_246_400_000)
	return func() window.UTC { return window.UTC(t.Add(1)) }
}

// openAt opens the file of cases at path; at the end of the test it is closed and checked.
func openAt(tb testing.TB, path string) *pacase.Embedded {
	tb.Helper()
	s, err := pacase.OpenEmbedded(path, counter())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
		check(tb, path)
	})
	return s
}

func check(tb testing.TB, path string) {
	tb.Helper()
	s, err := pacase.OpenEmbedded(path, counter())
	if err != nil {
		tb.Error(err)
		return
	}
	defer s.Close()
	if err := s.Check(context.Background()); err != nil {
		tb.Error(err)
	}
}

func TestEmbeddedConformance(t *testing.T) {
	storetest.PACase(t, func(tb testing.TB) storetest.PACaseFixture {
		path := filepath.Join(tb.TempDir(), "pa.db")
		return storetest.PACaseFixture{
			Open: func(tb testing.TB) pacase.Store { return openAt(tb, path) },
			Count: func(tb testing.TB) int {
				n, err := pacase.CountCases(path)
				if err != nil {
					tb.Fatal(err)
				}
				return n
			},
		}
	})
}
