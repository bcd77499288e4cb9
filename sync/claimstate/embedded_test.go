package claimstate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/internal/boltfile"
	"scanonce/internal/storetest"
	"scanonce/sync/claimstate"
)

// keysIn counts the entries of the buckets of a closed file.
func keysIn(t *testing.T, path string) (claims, ends int) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		claims, ends = tx.Bucket([]byte("claims")).Stats().KeyN, tx.Bucket([]byte("ends")).Stats().KeyN
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return claims, ends
}

// Expired claims go with later writes; one that was renewed does not go with its old end.
func TestEmbeddedSweeps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claims.db")
	c := new(clock)
	s := openEmbedded(t, path, c)
	kept := created(t, s, fresh("kept", "op-1"))
	for n := range 20 {
		created(t, s, fresh(fmt.Sprintf("c-%d", n), "op-1"))
	}
	c.forward(storetest.ClaimLives.TTL - time.Minute)
	_, kept = answered(t, s, kept.Move(claimstate.Normalized, "", "", "op-2"))
	c.forward(2 * time.Minute)
	if got := s.Stats().Swept; got != 0 {
		t.Fatalf("%d claims were swept too early", got)
	}
	created(t, s, fresh("c-0", "op-2")) // takes the place of an expired one
	for n := range 3 {
		created(t, s, fresh(fmt.Sprintf("new-%d", n), "op-1"))
	}
	if got := s.Stats().Swept; got != 19 {
		t.Errorf("%d claims were swept, want 19", got)
	}
	if got, ok, err := s.Get(t.Context(), "kept"); err != nil || !ok || got != kept {
		t.Errorf("the renewed claim is %+v, %v, %v", got, ok, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if claims, ends := keysIn(t, path); claims != 5 || ends != 5 {
		t.Errorf("the file has %d claims and %d ends, want 5", claims, ends)
	}
}

func TestEmbeddedHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claims.db")
	openEmbedded(t, path, new(clock))
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := claimstate.OpenEmbedded(path, storetest.ClaimLives, new(clock).now); !errors.Is(err, claimstate.ErrInUse) {
		t.Errorf("a second writer gets %v", err)
	}
	var mistake *claimstate.ConfigError
	if _, err := claimstate.OpenEmbedded(filepath.Join(t.TempDir(), "x.db"), claimstate.Lives{}, new(clock).now); !errors.As(err, &mistake) {
		t.Errorf("without lives: %v", err)
	}
}

// A file that was cut short, has pages of garbage or flipped bits never takes the process down, and never answers
// wrong: what is not right is a *DamageError, after which nothing more is written.
func TestEmbeddedDamage(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "claims.db")
	c := new(clock)
	s := openEmbedded(t, whole, c)
	var want []claimstate.State
	for n := range 150 {
		want = append(want, created(t, s, fresh(fmt.Sprintf("c-%d", n), "op-1")))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, b []byte) (damaged bool) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "claims.db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var d *claimstate.DamageError
		s, err := claimstate.OpenEmbedded(path, storetest.ClaimLives, c.now)
		if err != nil {
			if !errors.As(err, &d) || d.Hint() == "" {
				t.Errorf("%s: opening fails with %v", name, err)
			}
			return true
		}
		defer s.Close()
		for _, st := range want {
			got, ok, err := s.Get(t.Context(), st.CorrelationID)
			switch {
			case errors.As(err, &d):
				damaged = true
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case ok && got != st:
				t.Errorf("%s: %s has become %+v", name, st.CorrelationID, got)
			}
		}
		_, err = s.PutNew(t.Context(), fresh("c-new", "op-9"))
		if damaged && !errors.As(err, &d) {
			t.Errorf("%s: after damage a claim is written: %v", name, err)
		}
		return damaged
	}
	if try("whole", content) {
		t.Fatal("the whole file is told as damaged")
	}
	for _, size := range []int{0, 100, 4096, 8192, len(content) / 2} {
		if !try(fmt.Sprintf("cut to %d", size), content[:size]) {
			t.Errorf("a file cut to %d bytes is taken", size)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for n := 8; n < len(content)/4096; n++ {
		b := append([]byte(nil), content...)
		for i := range 4096 {
			b[n*4096+i] = byte(r.Uint32())
		}
		try(fmt.Sprintf("garbage in page %d", n), b)
	}
	// Bits of the costs: some lie in pages that are no longer used.
	flipped := 0
	for at := 0; ; at++ {
		next := strings.Index(string(content[at:]), "42.10")
		if next < 0 {
			break
		}
		at += next
		if r.IntN(50) == 0 {
			b := append([]byte(nil), content...)
			b[at] ^= 1
			if try(fmt.Sprintf("bit at %d", at), b) {
				flipped++
			}
		}
	}
	if flipped == 0 {
		t.Error("no flipped bit was found")
	}
}

// Whatever stands in the place of the claims file is told as damage, with what to do.
func TestEmbeddedForeignFiles(t *testing.T) {
	random := make([]byte, 12<<10)
	rand.NewChaCha8([32]byte{1}).Read(random)
	bolted := func(f func(tx *bolt.Tx) error) []byte {
		path := filepath.Join(t.TempDir(), "claims.db")
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		content := []byte(nil)
		err = errors.Join(db.Update(f), db.Close())
		if err == nil {
			content, err = os.ReadFile(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	for name, content := range map[string][]byte{
		"empty": nil, "hello": []byte("hello\n"), "random": random,
		"other": bolted(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("meta")); return err }),
		"newer": bolted(func(tx *bolt.Tx) error {
			for _, bucket := range []string{"claims", "ends", "meta"} {
				if _, err := tx.CreateBucket([]byte(bucket)); err != nil {
					return err
				}
			}
			return tx.Bucket([]byte("meta")).Put([]byte("format"), boltfile.Seal("meta", []byte("format"), []byte{2}))
		}),
	} {
		path := filepath.Join(t.TempDir(), "claims.db")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		var d *claimstate.DamageError
		if s, err := claimstate.OpenEmbedded(path, storetest.ClaimLives, new(clock).now); s != nil || !errors.As(err, &d) || d.Hint() == "" || !d.OfFile() {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(path); err != nil || string(left) != string(content) {
			t.Errorf("%s: the file is not left as it was: %v", name, err)
		}
	}
}

// A file that was taken away answers nothing more, not even a read.
func TestEmbeddedFileTakenAway(t *testing.T) {
	for call, ask := range map[string]func(s *claimstate.Embedded) error{
		"get":  func(s *claimstate.Embedded) error { _, _, err := s.Get(t.Context(), "c-1"); return err },
		"ping": func(s *claimstate.Embedded) error { return s.Ping(t.Context()) },
		"put":  func(s *claimstate.Embedded) error { _, err := s.PutNew(t.Context(), fresh("c-1", "op-1")); return err },
	} {
		path := filepath.Join(t.TempDir(), "claims.db")
		s := openEmbedded(t, path, new(clock))
		created(t, s, fresh("c-1", "op-1"))
		if err := errors.Join(ask(s), os.Remove(path)); err != nil {
			t.Fatal(err)
		}
		var d *claimstate.DamageError
		if err := ask(s); !errors.As(err, &d) {
			t.Errorf("%s: %v", call, err)
		}
	}
}
