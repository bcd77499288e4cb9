package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

var bucket = []byte("b")

// fill makes a bucket with records over some pages.
func fill(tx *bolt.Tx) error {
	b, err := tx.CreateBucket(bucket)
	for i := range 200 {
		if err == nil {
			err = b.Put(fmt.Appendf(nil, "%04d", i), make([]byte, 100))
		}
	}
	return err
}

func readAll(db *bolt.DB) error {
	return db.View(func(tx *bolt.Tx) error {
		n := 0
		if b := tx.Bucket(bucket); b != nil {
			b.ForEach(func(_, v []byte) error { n += len(v); return nil })
		}
		if n != 200*100 {
			return errors.New("it is not the file")
		}
		return nil
	})
}

func isFault(err error) bool {
	var f *Fault
	return errors.As(err, &f)
}

func TestCreateIsWholeAndFirst(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.db")
	failed := errors.New("no")
	if err := Create(path, func(*bolt.Tx) error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Fatalf("a failed creation leaves %v", left)
	}
	if err := Create(path, fill); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, func(tx *bolt.Tx) error { return nil }); err != nil { // another creator was first
		t.Fatal(err)
	}
	db, err := Open(path, false, readAll)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, false, readAll); !errors.Is(err, ErrInUse) {
		t.Errorf("a second opener gets %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || len(left) != 1 {
		t.Errorf("%v, %v, %v", info, err, left)
	}
	refused := errors.New("refused")
	if _, err := Open(path, false, func(*bolt.DB) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("the check's error is %v", err)
	}
	if db, err = Open(path, true, readAll); err != nil { // and the refused one has let go of it
		t.Fatal(err)
	}
	db.Close()
}

func TestDamageIsAFault(t *testing.T) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.db")
	if err := Create(whole, fill); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	tries := 0
	try := func(b []byte) error {
		t.Helper()
		tries++
		path := filepath.Join(dir, fmt.Sprint(tries)) // what is damaged may stay locked
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := Open(path, false, readAll)
		if err == nil {
			db.Close()
		}
		return err
	}
	if err := try(content); err != nil {
		t.Fatalf("an undamaged copy: %v", err)
	}
	if err := try(content[:4*page]); !isFault(err) || !strings.Contains(err.Error(), "must have at least") { // before it is mapped
		t.Errorf("cut short: %v", err)
	}
	faults := 0
	for at := 2 * page; at < len(content); at += page {
		b := slices.Clone(content)
		for i := range page {
			b[at+i] = byte(i*7 + 255)
		}
		if err := try(b); isFault(err) {
			faults++
		}
	}
	if faults == 0 {
		t.Error("no page of garbage is a fault: this proves little")
	}
}

// A mapping that loses its file faults, and the process goes on.
func TestPageFaultIsAFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	if err := Create(path, fill); err != nil {
		t.Fatal(err)
	}
	db, err := Open(path, true, readAll)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if err := Guard(func() error { return readAll(db) }); !isFault(err) {
		t.Errorf("a page that is gone: %v", err)
	}
}

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "x.db"), filepath.Join(dir, "y.db")
	for _, p := range []string{path, other} {
		if err := Create(p, fill); err != nil {
			t.Fatal(err)
		}
	}
	p, err := PlaceOf(path)
	if err != nil || p.Check() != nil {
		t.Fatal(err, p.Check())
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(); !isFault(err) || !strings.Contains(err.Error(), "another file") {
		t.Errorf("replaced: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(); !isFault(err) || !strings.Contains(err.Error(), "moved away or removed") {
		t.Errorf("removed: %v", err)
	}
}

func TestSeal(t *testing.T) {
	// CRC-32C of the check string of RFC 3720, appendix B.4, cut over bucket, key and body: 32 zero bytes.
	if got := checksum(string(make([]byte, 8)), make([]byte, 8), make([]byte, 16)); got != 0x8a9136aa {
		t.Errorf("checksum %08x, want 8a9136aa", got)
	}
	key := []byte("key")
	record := Seal("b", key, []byte("body"))
	if body, ok := Unseal("b", key, record); !ok || string(body) != "body" {
		t.Errorf("%q, %v", body, ok)
	}
	for bit := range 8 * len(record) {
		bad := slices.Clone(record)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, ok := Unseal("b", key, bad); ok {
			t.Fatalf("bit %d is not noticed", bit)
		}
	}
	if _, ok := Unseal("c", key, record); ok {
		t.Error("another bucket is not noticed")
	}
	if _, ok := Unseal("b", []byte("kez"), record); ok {
		t.Error("another key is not noticed")
	}
	if _, ok := Unseal("b", key, record[:3]); ok {
		t.Error("less than a checksum is a record")
	}
}
