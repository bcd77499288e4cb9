package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Clock is a wall clock that can be stepped under a running server, by libfaketime. Elapsed time is not touched.
type Clock struct{ lib, file string }

// NewClock makes a clock that goes right.
func NewClock(t testing.TB) *Clock {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if len(found) == 0 {
		t.Fatal("libfaketime is missing: run make test-deps, or apt-get install libfaketime")
	}
	dir, err := os.MkdirTemp("", "scanonce-clock") // a server of another user reads it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c := &Clock{lib: found[0], file: filepath.Join(dir, "offset")}
	c.Step(t, 0)
	return c
}

// Step sets the clock to the machine's plus d, at once.
func (c *Clock) Step(t testing.TB, d time.Duration) {
	t.Helper()
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+.3f\n", d.Seconds()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, c.file); err != nil {
		t.Fatal(err)
	}
}

// environment makes a program use the clock.
func (c *Clock) environment() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.lib, "FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1", "DONT_FAKE_MONOTONIC=1"}
}
