package pacase_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	"scanonce/internal/boltfile"
	"scanonce/sync/pacase"
)

// furnished makes a file of cases with n members, every third of whose cases is denied.
func furnished(t *testing.T, n int) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "pa.db")
	s, err := pacase.OpenEmbedded(path, counter())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range n {
		out, err := s.Pend(t.Context(), ask(i, fmt.Sprintf("MTOK_%d", i), day1))
		if err != nil {
			t.Fatal(err)
		}
		for v, to := range []pacase.State{pacase.InReview, pacase.Denied} {
			if i%3 == 0 {
				if a, err := s.Transition(t.Context(), pacase.Transition{ID: out.Case.ID, Expected: v + 1, To: to, Op: id(10_000 + 2*i + v)}); err != nil || word(a) != "moved" {
					t.Fatal(word(a), err)
				}
			}
		}
	}
	return path
}

func TestSecondOpenerIsTold(t *testing.T) {
	path := furnished(t, 1)
	s := openAt(t, path)
	if _, err := pacase.OpenEmbedded(path, counter()); !errors.Is(err, pacase.ErrInUse) {
		t.Errorf("a second opener: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openAt(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// Two that find no file at the same time make one.
func TestCreatingReplacesNothing(t *testing.T) {
	path := furnished(t, 1)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := pacase.Create(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n, err := pacase.CountCases(path); n != 1 || err != nil {
		t.Errorf("%d cases, %v", n, err)
	}
	left, err := filepath.Glob(path + "*")
	if err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestFilesThatAreNoCases(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, f func(tx *bolt.Tx) error) string {
		path := filepath.Join(dir, name)
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(f), db.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bytes := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	random := make([]byte, 12<<10)
	rand.NewChaCha8([32]byte{1}).Read(random)
	format := func(seal func() []byte) string {
		path := furnished(t, 1)
		db, err := pacase.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("format"), seal()) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for path, want := range map[string]string{
		bytes("empty", nil):               "it is empty",
		bytes("hello", []byte("hello\n")): "damaged",
		bytes("random", random):           "damaged",
		write("other", func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("meta")); return err }):   "no file of cases",
		format(func() []byte { return boltfile.Seal("meta", []byte("format"), []byte{2}) }):                 "its format",
		format(func() []byte { return boltfile.Seal("meta", []byte("other"), []byte{1}) }):                  "damaged",
		filepath.Join(dir, "nowhere", "pa.db"):                                                              "cannot make",
		write("nothing", func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("rows")); return err }): "no file of cases",
	} {
		s, err := pacase.OpenEmbedded(path, counter())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		var d *pacase.DamageError
		if told := errors.As(err, &d) && d.Hint() != ""; told != (want != "cannot make") {
			t.Errorf("%s: damage is told: %v (%v)", path, told, err)
		}
		if s != nil {
			s.Close()
		}
	}
}

// A bit that flips in any record is noticed by whoever reads it, and nothing is decided on it.
func TestFlippedBits(t *testing.T) {
	path := furnished(t, 3)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for _, bucket := range []string{"cases", "open", "refs", "pends"} {
		for n := range 3 {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			db, err := pacase.OpenFile(path)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error {
				b := tx.Bucket([]byte(bucket))
				k, v := b.Cursor().First()
				for range n {
					if nk, nv := b.Cursor().Seek(append(append([]byte(nil), k...), 0)); nk != nil {
						k, v = nk, nv
					}
				}
				bad := append([]byte(nil), v...)
				bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
				return b.Put(append([]byte(nil), k...), bad)
			})
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
			s, err := pacase.OpenEmbedded(path, counter())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("a flipped bit in %s: %v", bucket, err)
			}
			s.Close() // what is damaged answers no more until it is opened anew
			if s, err = pacase.OpenEmbedded(path, counter()); err != nil {
				t.Fatal(err)
			}
			met := 0
			for i := range 3 {
				// Pends of the same event, of another with the same window, and of the next day, meet every bucket.
				for _, p := range []pacase.Pend{ask(i, fmt.Sprintf("MTOK_%d", i), day1), ask(100+i, fmt.Sprintf("MTOK_%d", i), day1), ask(200+i, fmt.Sprintf("MTOK_%d", i), day2)} {
					out, err := s.Pend(t.Context(), p)
					if err != nil {
						met++
						var d *pacase.DamageError
						if strings.Contains(err.Error(), "MTOK") || !errors.As(err, &d) {
							t.Errorf("%s: %v", bucket, err)
						}
					} else if i%3 != 0 && (out.Case.State != pacase.Pending || out.Case.ID != ask(0, p.MemberToken, day1).DerivedID()) {
						t.Errorf("%s: another case: %+v", bucket, out)
					}
				}
			}
			if met == 0 {
				t.Errorf("no pend met the flipped bit in %s", bucket)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Check compares the buckets with each other.
func TestCheckComparesTheBuckets(t *testing.T) {
	first := ask(1, "MTOK_1", day1) // open
	denied := ask(0, "MTOK_0", day1)
	subject := pacase.Subject(first.Question)
	for name, change := range map[string]func(tx *bolt.Tx) error{
		"a case without a reference": func(tx *bolt.Tx) error { return tx.Bucket([]byte("refs")).Delete([]byte(first.DerivedID())) },
		"an open case not listed":    func(tx *bolt.Tx) error { return tx.Bucket([]byte("open")).Delete([]byte(subject)) },
		"a reference to nothing":     func(tx *bolt.Tx) error { return tx.Bucket([]byte("cases")).Delete([]byte(denied.DerivedID())) },
		"a denied case as open": func(tx *bolt.Tx) error {
			k := []byte(pacase.Subject(denied.Question))
			return tx.Bucket([]byte("open")).Put(k, boltfile.Seal("open", k, []byte(denied.DerivedID())))
		},
		"a pend to nothing": func(tx *bolt.Tx) error {
			k := make([]byte, 16)
			return tx.Bucket([]byte("pends")).Put(k, boltfile.Seal("pends", k, []byte("\x01nothing")))
		},
		"an empty pend": func(tx *bolt.Tx) error {
			k := make([]byte, 16)
			return tx.Bucket([]byte("pends")).Put(k, boltfile.Seal("pends", k, nil))
		},
	} {
		path := furnished(t, 3)
		db, err := pacase.OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(change), db.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := pacase.OpenEmbedded(path, counter())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "cannot vouch for the cases: ") {
			t.Errorf("%s: %v", name, err)
		}
		s.Close()
	}
}

// A file that was cut short or has a page of garbage never takes the process down, and after damage was met
// nothing more is written.
func TestDamagedFile(t *testing.T) {
	const members, page = 300, 4096
	ctx := context.Background()
	path := furnished(t, members)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	use := func(name string, b []byte) (opened, damaged bool) {
		path := filepath.Join(t.TempDir(), "pa.db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := pacase.OpenEmbedded(path, counter())
		if err != nil {
			return false, true
		}
		defer s.Close()
		var met *pacase.DamageError
		for i := 0; i < members; i += 7 {
			p := ask(i, fmt.Sprintf("MTOK_%d", i), day1)
			c, ok, err := s.Get(ctx, p.DerivedID())
			if err == nil && ok && c.MemberToken != p.MemberToken {
				t.Errorf("%s: member %d has another's case", name, i)
			}
			damaged = damaged || err != nil
			errors.As(err, &met)
		}
		if err := s.Check(ctx); err != nil {
			damaged = true
			errors.As(err, &met)
		}
		if met != nil {
			var again *pacase.DamageError
			if _, err := s.Pend(ctx, ask(9000, "MTOK_9000", day1)); !errors.As(err, &again) || again.Hint() == "" {
				t.Errorf("%s: written after damage: %v", name, err)
			}
		}
		return true, damaged
	}
	if opened, damaged := use("whole", content); !opened || damaged {
		t.Fatalf("the whole file: opened %v, damaged %v", opened, damaged)
	}
	cut := 0
	for n := 1; n < 16; n++ {
		if opened, _ := use(fmt.Sprint("cut at ", n), content[:len(content)*n/16]); !opened {
			cut++
		}
	}
	if cut < 8 {
		t.Errorf("only %d of 15 files that were cut short were refused", cut)
	}
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for n := 2; n < len(content)/page; n += 2 {
		b := append([]byte(nil), content...)
		for i := range page {
			b[n*page+i] = byte(r.Uint32())
		}
		if _, damaged := use(fmt.Sprint("garbage in page ", n), b); damaged {
			found++
		}
	}
	if found < 5 {
		t.Errorf("damage was told of %d files with a page of garbage: this test has lost its premise", found)
	}
}

// A file that was taken away, or another in its place, answers nothing more, not even a read.
func TestFileTakenAway(t *testing.T) {
	p := ask(0, "MTOK_0", day1)
	for name, take := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced": func(path string) error {
			content, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path+".copy", content, 0o600), os.Rename(path+".copy", path))
		},
	} {
		for call, ask := range map[string]func(s *pacase.Embedded) error{
			"get":  func(s *pacase.Embedded) error { _, _, err := s.Get(t.Context(), p.DerivedID()); return err },
			"ping": func(s *pacase.Embedded) error { return s.Ping(t.Context()) },
			"pend": func(s *pacase.Embedded) error { _, err := s.Pend(t.Context(), p); return err },
		} {
			path := furnished(t, 1)
			s, err := pacase.OpenEmbedded(path, counter())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(ask(s), take(path)); err != nil {
				t.Fatal(err)
			}
			var d *pacase.DamageError
			if err := ask(s); !errors.As(err, &d) {
				t.Errorf("%s, %s: %v", name, call, err)
			}
			s.Close()
		}
	}
}

// Nothing new costs no commit: an event's stored answer and a refused transition leave the file as it is.
func TestNothingNewIsNotCommitted(t *testing.T) {
	path := furnished(t, 1)
	s := openAt(t, path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := s.Pend(t.Context(), ask(0, "MTOK_0", day1)); err != nil || !out.Created {
		t.Fatal(out, err)
	}
	if a, err := s.Transition(t.Context(), pacase.Transition{ID: ask(0, "MTOK_0", day1).DerivedID(), Expected: 1, To: pacase.InReview, Op: id(77)}); err != nil || word(a) != "conflict" {
		t.Fatal(word(a), err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the file has changed, %v", err)
	}
}
