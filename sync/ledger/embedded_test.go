package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/internal/boltfile"
	"scanonce/sync/ledger"
	"scanonce/window"
)

func eventNo(n int) idem.EventID { return killRow(n).Event }

func insert(tb testing.TB, l ledger.Ledger, rows ...ledger.Row) []idem.EventID {
	tb.Helper()
	in, err := l.Insert(tb.Context(), rows)
	if err != nil || len(in.Poison) > 0 {
		tb.Fatalf("insert: %+v, %v", in, err)
	}
	var got []idem.EventID
	for _, r := range in.Receipts {
		got = append(got, r.Event)
	}
	return got
}

func TestSecondOpenerIsTold(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	openAt(t, path)
	for name, open := range map[string]func() (*ledger.Embedded, error){
		"writing": func() (*ledger.Embedded, error) { return ledger.OpenEmbedded(path, counter()) },
		"reading": func() (*ledger.Embedded, error) { return ledger.OpenEmbeddedReadOnly(path) },
	} {
		l, err := open()
		if !errors.Is(err, ledger.ErrInUse) || !strings.HasPrefix(err.Error(), "cannot open the ledger "+path) {
			t.Errorf("second opener, for %s: %v", name, err)
		}
		if l != nil {
			t.Error("a ledger with an error")
		}
	}
}

// Two that find no file make one ledger, not two.
func TestCreatingAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			l, err := ledger.OpenEmbedded(path, counter())
			if errors.Is(err, ledger.ErrInUse) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if got := insert(t, l, killRow(n)); len(got) != 1 {
				t.Errorf("opener %d: %d rows inserted", n, len(got))
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l := openAt(t, path)
	if n, err := l.Count(t.Context()); err != nil || n != 4 {
		t.Errorf("%d rows, %v, want 4", n, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files left in the folder: %v, %v", files, err)
	}
}

// Who comes second with a file of its own leaves the first one's in place.
func TestCreatingReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	insert(t, openAt(t, path), killRow(1))
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := ledger.Create(path); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was replaced, %v", err)
	}
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	openAt(t, path)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
}

func TestFilesThatAreNoLedger(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, b []byte) {
		if err := os.WriteFile(file(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("empty.db", nil)
	write("text.db", bytes.Repeat([]byte("no ledger "), 2000))
	for name, setup := range map[string]func(tx *bolt.Tx) error{
		"other.db": func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("spool")); return err },
		"format.db": func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket([]byte("meta"))
			return errors.Join(err, b.Put([]byte("format"), boltfile.Seal("meta", []byte("format"), []byte{9})))
		},
	} {
		db, err := bolt.Open(file(name), 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(setup), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, want string }{
		{"empty.db", "the file is empty"}, {"text.db", "invalid database"}, {"other.db", "it is no ledger"}, {"format.db", "its format 09 is not 1"},
	} {
		before, err := os.ReadFile(file(c.name))
		if err != nil {
			t.Fatal(err)
		}
		_, werr := ledger.OpenEmbedded(file(c.name), counter())
		_, rerr := ledger.OpenEmbeddedReadOnly(file(c.name))
		for _, err := range []error{werr, rerr} {
			if err == nil || !strings.HasPrefix(err.Error(), "cannot open the ledger "+file(c.name)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want … %s", c.name, err, c.want)
			}
		}
		if after, err := os.ReadFile(file(c.name)); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s was altered, %v", c.name, err)
		}
	}
	if _, err := ledger.OpenEmbeddedReadOnly(file("absent.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading an absent file: %v", err)
	}
	if _, err := os.Stat(file("absent.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the file: %v", err)
	}
	if _, err := ledger.OpenEmbedded(filepath.Join(dir, "no", "ledger.db"), counter()); err == nil || !strings.HasPrefix(err.Error(), "cannot make the ledger ") {
		t.Errorf("no folder: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	insert(t, l, killRow(1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a, err := ledger.OpenEmbeddedReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := ledger.OpenEmbeddedReadOnly(path)
	if err != nil {
		t.Fatal("a second reader:", err)
	}
	defer b.Close()
	if n, err := b.Count(t.Context()); err != nil || n != 1 {
		t.Errorf("count %d, %v", n, err)
	}
	if _, err := a.Insert(t.Context(), []ledger.Row{killRow(2)}); err == nil || !strings.Contains(err.Error(), "for reading only") {
		t.Errorf("insert: %v", err)
	}
	if err := a.AppendLines(t.Context(), []ledger.Line{{Event: eventNo(9), Agent: "a", Outcome: ledger.Notice}}); err == nil || !strings.Contains(err.Error(), "for reading only") {
		t.Errorf("append: %v", err)
	}
}

// Within a call the first of the rows with a common key gets in, and its key counts for those after it.
func TestInsertGoesInTheGivenOrder(t *testing.T) {
	l := openAt(t, filepath.Join(t.TempDir(), "ledger.db"))
	rows := make([]ledger.Row, 5)
	for i := range rows {
		rows[i] = killRow(10 * i)
		rows[i].Keys.Edge = idem.Key{}
	}
	edge := idem.Key{Kind: idem.Edge, Hash: [32]byte{7}}
	rows[0].Keys.Edge, rows[1].Keys.Edge = edge, edge // 1 is refused for its edge
	rows[2].Keys.Idem = rows[1].Keys.Idem             // so that 2 may have the idem key of 1
	rows[3].Event = rows[2].Event                     // 3 is refused for its event
	want := []idem.EventID{rows[0].Event, rows[2].Event, rows[4].Event}
	if got := insert(t, l, rows...); !slices.Equal(got, want) {
		t.Errorf("inserted %v, want %v", got, want)
	}
	i := 0
	err := l.Rows(t.Context(), ledger.Span{}, func(r ledger.Row) error {
		if r.Event != want[i] {
			t.Errorf("row %d is %s, want %s", i, r.Event, want[i])
		}
		i++
		return nil
	})
	if err != nil || i != 3 {
		t.Errorf("%d rows, %v", i, err)
	}
}

// Rows end with what was there at the first look, however fast others write.
func TestRowsEndThoughOthersWrite(t *testing.T) {
	l := openAt(t, filepath.Join(t.TempDir(), "ledger.db"))
	var rows []ledger.Row
	for n := range 600 {
		rows = append(rows, killRow(n))
	}
	insert(t, l, rows...)
	seen := 0
	err := l.Rows(t.Context(), ledger.Span{}, func(r ledger.Row) error {
		if seen%100 == 0 { // a consumer that writes while it reads
			insert(t, l, killRow(1000+seen))
		}
		seen++
		return nil
	})
	if err != nil || seen != 600 {
		t.Errorf("%d rows, %v, want the 600 of the beginning", seen, err)
	}
}

// A slow consumer holds no transaction open, which would keep the file from reusing pages.
func TestConsumersHoldNoTransaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	insert(t, l, killRow(0), killRow(1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil) // with statistics
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, yields := ledger.OfDB(db), 0
	look := func() error {
		yields++
		if n := db.Stats().OpenTxN; n != 0 {
			t.Errorf("%d transactions are open", n)
		}
		return nil
	}
	err = errors.Join(
		l.Rows(t.Context(), ledger.Span{}, func(ledger.Row) error { return look() }),
		l.Lines(t.Context(), ledger.Span{}, func(ledger.Line) error { return look() }))
	if err != nil || yields != 4 {
		t.Errorf("%d yields, %v", yields, err)
	}
}

// A lost reply's repetition writes nothing at all.
func TestNothingNewIsNotCommitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	line := ledger.Line{Event: eventNo(9), Agent: "a", Outcome: ledger.Notice}
	insert(t, l, killRow(1))
	if err := l.AppendLines(t.Context(), []ledger.Line{line}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	insert(t, l, killRow(1))
	if err := l.AppendLines(t.Context(), []ledger.Line{line}); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file changed, %v", err)
	}
}

// Whatever bit of whatever record flips, nothing is read as if it were right.
func TestFlippedBitsAreNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	row := killRow(0)
	row.Flags = []string{"claim_bypassed"}
	if row.Keys.Edge.IsZero() {
		t.Fatal("the row has no edge key: the index would not be tried")
	}
	dup := ledger.Line{Event: eventNo(9), Agent: "a", Key: row.Keys.Idem, Outcome: ledger.Suppressed, Reason: "bounce", Winner: row.Event}
	insert(t, l, row)
	if err := l.AppendLines(t.Context(), []ledger.Line{dup}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	reads := map[string]func(*ledger.Embedded) error{
		"rows": func(l *ledger.Embedded) error {
			return l.Rows(t.Context(), ledger.Span{}, func(ledger.Row) error { return nil })
		},
		"edges": func(l *ledger.Embedded) error {
			_, err := l.Standing(t.Context(), []ledger.Probe{{Keys: row.Keys}})
			return err
		},
		"events": func(l *ledger.Embedded) error {
			_, err := l.Standing(t.Context(), []ledger.Probe{{Event: row.Event}})
			return err
		},
		"log": func(l *ledger.Embedded) error {
			return l.Lines(t.Context(), ledger.Span{}, func(ledger.Line) error { return nil })
		},
		"lines": func(l *ledger.Embedded) error {
			return l.Lines(t.Context(), ledger.Span{}, func(ledger.Line) error { return nil })
		},
		"line_keys": func(l *ledger.Embedded) error {
			_, err := l.LinesOf(t.Context(), row.Keys.Idem)
			return err
		},
	}
	for bucket, read := range reads {
		damaged := filepath.Join(t.TempDir(), bucket+".db")
		if err := os.WriteFile(damaged, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(damaged, 0o600, &bolt.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		var key, value []byte
		db.View(func(tx *bolt.Tx) error {
			k, v := tx.Bucket([]byte(bucket)).Cursor().First()
			key, value = bytes.Clone(k), bytes.Clone(v)
			return nil
		})
		for bit := 0; bit < len(value)*8; bit += 5 {
			spoiled := bytes.Clone(value)
			spoiled[bit/8] ^= 1 << (bit % 8)
			if err := db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte(bucket)).Put(key, spoiled) }); err != nil {
				t.Fatal(err)
			}
			l := ledger.OfDB(db)
			for name, err := range map[string]error{"read": read(l), "check": l.Check(t.Context())} {
				if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
					t.Fatalf("%s: bit %d flipped, %s: %v", bucket, bit, name, err)
				}
			}
		}
		// A record that is gone, or under another key, is noticed too.
		other := bytes.Clone(key)
		other[0] ^= 1
		for name, spoil := range map[string]func(b *bolt.Bucket) error{
			"removed": func(b *bolt.Bucket) error { return errors.Join(b.Put(key, value), b.Delete(key)) },
			"moved":   func(b *bolt.Bucket) error { return errors.Join(b.Delete(key), b.Put(other, value)) },
		} {
			if err := db.Update(func(tx *bolt.Tx) error { return spoil(tx.Bucket([]byte(bucket))) }); err != nil {
				t.Fatal(err)
			}
			if err := ledger.OfDB(db).Check(t.Context()); err == nil {
				t.Errorf("%s: record %s: nothing noticed", bucket, name)
			}
			if bucket != "rows" {
				continue
			}
			for _, index := range []string{"events", "edges", "log"} {
				if err := reads[index](ledger.OfDB(db)); err == nil {
					t.Errorf("row %s: not missed through %s", name, index)
				}
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Records that are sound in themselves and do not fit together.
func TestCheckComparesTheIndexes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	a, b := killRow(0), killRow(3)
	if a.Keys.Edge.IsZero() || b.Keys.Edge.IsZero() {
		t.Fatal("a row has no edge key: the index would not be tried")
	}
	insert(t, l, a, b)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		bucket string
		key    []byte
	}{
		"event id of another row": {"events", a.Event[:]},
		"edge key of another row": {"edges", a.Keys.Edge.Hash[:]},
		"event id of no row":      {"events", make([]byte, 16)},
		"edge key of no row":      {"edges", make([]byte, 32)},
		"stray line":              {"lines", make([]byte, 16)},
		"stray key of a line":     {"line_keys", make([]byte, 40)},
	} {
		damaged := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(damaged, sound, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := bolt.Open(damaged, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			return tx.Bucket([]byte(c.bucket)).Put(c.key, boltfile.Seal(c.bucket, c.key, bytes.Clone(b.Keys.Idem.Hash[:])))
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := ledger.OfDB(db).Check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "cannot vouch for the ledger") {
			t.Errorf("%s: %v", name, err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A log that lost its end is not taken for a shorter one.
func TestCutLogIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := openAt(t, path)
	insert(t, l, killRow(0), killRow(1), killRow(2))
	l.Close()
	copied := filepath.Join(t.TempDir(), "copy.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(copied, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, drop := range []byte{3, 1} {
		if err := db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("log")).Delete([]byte{0, 0, 0, 0, 0, 0, 0, drop}) }); err != nil {
			t.Fatal(err)
		}
		err := ledger.OfDB(db).Rows(t.Context(), ledger.Span{}, func(ledger.Row) error { return nil })
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("entry %d is gone: %v", drop, err)
		}
	}
}

func TestLookUpsAreNamedByTheirErrors(t *testing.T) {
	l := openAt(t, filepath.Join(t.TempDir(), "ledger.db"))
	r := killRow(1)
	r.Lot, r.Quantity = "SECRET\xff", 0
	for _, want := range []string{"quantity 0", "UTF-8"} {
		in, err := l.Insert(t.Context(), []ledger.Row{r})
		if err != nil || len(in.Poison) != 1 || !strings.Contains(in.Poison[0].Detail, want) || strings.Contains(in.Poison[0].Detail, "SECRET") {
			t.Errorf("poison %+v, %v, want … %s, and no content", in, err, want)
		}
		r.Quantity = 1
	}
}

func BenchmarkInsert(b *testing.B) {
	for _, size := range []int{1, 100, 500} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l, err := ledger.OpenEmbedded(filepath.Join(b.TempDir(), "ledger.db"), func() window.UTC { return 1 })
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			n := 0
			for b.Loop() {
				rows := make([]ledger.Row, size)
				for i := range rows {
					rows[i] = killRow(n)
					n++
				}
				insert(b, l, rows...)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
