package ledger_test

import (
	"context"
	"path/filepath"
	"testing"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// Lines past their retention go, rows and younger lines stay, and what is left is as readable as before.
func TestRetain(t *testing.T) {
	ctx := context.Background()
	now := window.UTC(1_764_000_000_000)
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := ledger.OpenEmbedded(path, func() window.UTC { return now })
	if err != nil {
		t.Fatal(err)
	}
	key := func(n int) idem.Key { return idem.Key{Kind: idem.Idem, Hash: [32]byte{1, byte(n >> 8), byte(n)}} }
	event := func(kind byte, n int) idem.EventID { return idem.EventID{kind, byte(n >> 8), byte(n), 1} }
	const days = 30
	for day := range days { // a hundred rows and as many lines a day
		var rows []ledger.Row
		var lines []ledger.Line
		for n := day * 100; n < day*100+100; n++ {
			rows = append(rows, ledger.Row{Keys: idem.Keys{Idem: key(n)}, Event: event('r', n), Facility: "F", Scanner: "S", Quantity: 1,
				Type: window.Dispense, PkgLevel: -1, Agent: "a", CapturedAt: now})
			lines = append(lines, ledger.Line{Event: event('l', n), Agent: "a", At: now, Key: key(n), Winner: event('r', n), Outcome: ledger.Suppressed, Reason: "bounce"})
		}
		if in, err := l.Insert(ctx, rows); err != nil || len(in.Receipts) != 100 {
			t.Fatal(len(in.Receipts), err)
		}
		if err := l.AppendLines(ctx, lines); err != nil {
			t.Fatal(err)
		}
		now += 24 * 3600 * 1000
	}
	begin := window.UTC(1_764_000_000_000)
	count := func(l *ledger.Embedded) (rows, lines int) {
		t.Helper()
		if err := l.Lines(ctx, ledger.Span{}, func(x ledger.Line) error {
			if x.Outcome == ledger.Committed {
				rows++
			} else {
				lines++
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return rows, lines
	}
	check := func(l *ledger.Embedded, want int) {
		t.Helper()
		if rows, lines := count(l); rows != days*100 || lines != want {
			t.Errorf("%d rows and %d lines, want %d and %d", rows, lines, days*100, want)
		}
	}
	for _, c := range []struct{ day, removed int }{{0, 0}, {1, 100}, {1, 0}, {12, 1100}, {5, 0}, {29, 1700}} {
		n, err := l.Retain(ctx, begin+window.UTC(c.day*24*3600*1000))
		if err != nil || n != c.removed {
			t.Fatalf("day %d: %d lines removed, %v, want %d", c.day, n, err, c.removed)
		}
	}
	check(l, 100)
	if of, err := l.LinesOf(ctx, key(5)); err != nil || len(of) != 1 {
		t.Errorf("lines of a key whose line is gone: %+v, %v", of, err)
	}
	if of, err := l.LinesOf(ctx, key(days*100-1)); err != nil || len(of) != 2 {
		t.Errorf("lines of a key of the last day: %+v, %v", of, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = ledger.OpenEmbedded(path, func() window.UTC { return now }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	check(l, 100)
	if n, err := l.Retain(ctx, now); err != nil || n != 0 {
		t.Errorf("%d removed, %v: nothing was recorded since", n, err)
	}
	notice := func(n int) {
		t.Helper()
		if err := l.AppendLines(ctx, []ledger.Line{{Event: event('n', n), Agent: "a", At: now, Outcome: ledger.Notice}}); err != nil {
			t.Fatal(err)
		}
	}
	const year = 365 * 24 * 3600 * 1000
	now += 3 * year // by a clock that is ahead
	notice(1)
	if n, err := l.Retain(ctx, now); err != nil || n != 100 {
		t.Errorf("%d removed, %v", n, err)
	}
	now -= 3 * year
	notice(2)
	if n, err := l.Retain(ctx, now); err != nil || n != 0 {
		t.Errorf("%d lines of this very instant removed, %v", n, err)
	}
	check(l, 2)
	now += 1000
	notice(3)
	if n, err := l.Retain(ctx, now); err != nil || n != 1 { // the line of the clock that was ahead stops nothing
		t.Errorf("%d removed, %v", n, err)
	}
	check(l, 2)
	if err := l.Check(ctx); err != nil { // indexes included
		t.Error(err)
	}
}
