package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

func damageRow(n int) ledger.Row {
	id := idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: fmt.Sprintf("%011d", n), Quantity: 1, Type: window.Dispense}
	return ledger.Row{Keys: id.Keys(window.Default(window.Dispense), window.UTC(n*3000+100)), Event: idem.NewEventID(window.UTC(n), [10]byte{byte(n), byte(n >> 8)}),
		Facility: "F", Scanner: "SCN-04", NDC: id.NDC, Quantity: 1, Type: window.Dispense, PkgLevel: -1, Agent: "a", CapturedAt: window.UTC(n)}
}

// A ledger file that was cut short or has pages of garbage never takes the process down: bbolt alone panics,
// or faults. What still answers answers right, and after damage was met nothing more is written.
func TestDamagedFileIsAnErrorNotACrash(t *testing.T) {
	ctx := context.Background()
	now := func() window.UTC { return 1 }
	whole := filepath.Join(t.TempDir(), "ledger.db")
	l, err := ledger.OpenEmbedded(whole, now)
	if err != nil {
		t.Fatal(err)
	}
	var rows []ledger.Row
	for n := range 400 {
		rows = append(rows, damageRow(n))
	}
	for at := 0; at < len(rows); at += 20 {
		if _, err := l.Insert(ctx, rows[at:at+20]); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	try := func(name string, b []byte) (opened, damaged bool) {
		path := filepath.Join(t.TempDir(), "ledger.db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := ledger.OpenEmbedded(path, now)
		if err != nil {
			return false, true
		}
		defer l.Close()
		check := func(err error) {
			var d *ledger.DamageError
			if errors.As(err, &d) && d.Hint() == "" {
				t.Errorf("%s: no hint", name)
			}
			damaged = damaged || err != nil
		}
		for n := 0; n < len(rows); n += 7 {
			s, err := l.Standing(ctx, []ledger.Probe{{Keys: rows[n].Keys, Event: rows[n].Event}})
			check(err)
			if err == nil && !s[0].ByIdem.Event.IsZero() && s[0].ByIdem.Event != rows[n].Event {
				t.Errorf("%s: row %d has become another's", name, n)
			}
		}
		_, err = l.Insert(ctx, []ledger.Row{damageRow(9000)})
		check(err)
		check(l.Lines(ctx, ledger.Span{}, func(ledger.Line) error { return nil }))
		check(l.Check(ctx))
		return true, damaged
	}
	if opened, damaged := try("whole", content); !opened || damaged {
		t.Fatalf("the whole file: opened %v, damaged %v", opened, damaged)
	}
	cut := 0
	for n := int64(1); n < 64; n++ {
		if opened, _ := try(fmt.Sprint("cut at ", n), content[:int64(len(content))*n/64]); !opened {
			cut++
		}
	}
	if cut < 30 {
		t.Errorf("only %d of 63 files that were cut short were refused", cut)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	found, opens := 0, 0
	for n := 2; n < len(content)/page; n++ {
		b := append([]byte(nil), content...)
		for i := range page {
			b[n*page+i] = byte(rnd.Uint32())
		}
		opened, damaged := try(fmt.Sprint("garbage in page ", n), b)
		if damaged {
			found++
		}
		if opened {
			opens++
		}
	}
	if found < 10 || opens < 10 {
		t.Errorf("%d files with a page of garbage opened, damage was told of %d: this test has lost its premise", opens, found)
	}
}

// Once damage was met the file is left alone: a key that hides in a damaged page would be written twice.
func TestNothingIsWrittenAfterDamage(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := ledger.OpenEmbedded(path, func() window.UTC { return 1 })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for n := range 300 {
		if _, err := l.Insert(ctx, []ledger.Row{damageRow(n)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Truncate(path, 3*4096); err != nil {
		t.Fatal(err)
	}
	var d *ledger.DamageError
	failed := 0
	for n := range 300 {
		if _, err := l.Standing(ctx, []ledger.Probe{{Keys: damageRow(n).Keys}}); err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Fatal("a file cut short under its mapping still answers: this test has lost its premise")
	}
	if _, err := l.Insert(ctx, []ledger.Row{damageRow(9000)}); !errors.As(err, &d) {
		t.Fatalf("written after damage: %v", err)
	}
}

// A file that is moved away or replaced while it is in use takes no more rows: nobody would find them again.
func TestMovedAwayIsDamage(t *testing.T) {
	for _, how := range []string{"removed", "moved", "replaced"} {
		path := filepath.Join(t.TempDir(), "ledger.db")
		l, err := ledger.OpenEmbedded(path, counter())
		if err != nil {
			t.Fatal(err)
		}
		line := ledger.Line{Event: idem.EventID{1}, Agent: "a", At: 1_764_000_000_000, Outcome: ledger.Notice}
		if err := l.AppendLines(t.Context(), []ledger.Line{line}); err != nil {
			t.Fatal(err)
		}
		if how == "removed" {
			err = os.Remove(path)
		} else {
			err = os.Rename(path, path+".old")
		}
		if how == "replaced" {
			other, oerr := ledger.OpenEmbedded(path, counter())
			err = errors.Join(err, oerr, other.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		line.Event = idem.EventID{2}
		var damage *ledger.DamageError
		if err := l.AppendLines(t.Context(), []ledger.Line{line}); !errors.As(err, &damage) {
			t.Errorf("%s: %v", how, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
