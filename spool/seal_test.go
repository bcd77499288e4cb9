package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
)

const (
	secretElement = "01003009372141061721123110LOT-SECRET21SERIAL-SECRET"
	secretLot     = "LOT-SECRET"
	secretSerial  = "SERIAL-SECRET"
	secretNDC     = "00093721499"
)

// secrets captures, settles and keeps in exceptions and lines what no file may show.
func (r *rig) secrets() {
	r.t.Helper()
	for i := range 4 {
		c := r.candidate(fmt.Sprint(secretLot, i))
		c.Physical = idem.PhysicalKey("SCN-SECRET", []byte(fmt.Sprint(secretElement, i)))
		c.Identity.NDC, c.Identity.Serial, c.Identity.Scanner = secretNDC, secretSerial, "SCN-SECRET"
		c.Item = Item{NDC: secretNDC, Lot: secretLot, Serial: secretSerial, GTIN: "00300937214994", RxToken: "rx1.SECRET", Symbology: "d2"}
		r.scan(c)
	}
	b := r.spool.NewBatch()
	b.Note(Line{Event: NewEvent(1), Scanner: "SCN-SECRET", Reason: "note-SECRET"})
	if err := b.Commit(); err != nil {
		r.t.Fatal(err)
	}
	w, err := r.spool.Next(3)
	if err != nil {
		r.t.Fatal(err)
	}
	vs := verdictsOf(w.Records)
	vs[0] = Verdict{Seq: 1, State: Deferred, Detail: "detail-SECRET"}
	vs[1] = Verdict{Seq: 2, State: Suppressed, Key: w.Records[0].Keys.Idem, Winner: w.Records[0].Event, Reason: "reason-SECRET"}
	if err := r.spool.Settle(w, vs, []Line{{Event: NewEvent(1), Scanner: "SCN-SECRET"}}, nil); err != nil {
		r.t.Fatal(err)
	}
}

func TestNothingIsInClear(t *testing.T) {
	r := newRig(t)
	r.secrets()
	var keys [][]byte
	for _, rec := range r.records() {
		keys = append(keys, rec.Keys.Idem.Hash[:], rec.Physical.Hash[:], rec.Event[:])
	}
	for _, clean := range []bool{false, true} {
		r.reopen(clean)
		for path, content := range r.snapshot() {
			if !strings.HasPrefix(path, r.path("")) {
				continue // the key file
			}
			for _, s := range []string{"SECRET", secretNDC, "0093721499", "00300937214994", "0030093721406"} {
				if strings.Contains(content, s) {
					t.Errorf("%s shows %s", filepath.Base(path), s)
				}
			}
			for _, k := range keys {
				if strings.Contains(content, string(k)) {
					t.Errorf("%s shows a key or event", filepath.Base(path))
				}
			}
		}
	}
}

func TestWrongKey(t *testing.T) {
	keyPath := func(r *rig) string { return filepath.Join(r.dir, "keys", "spool.key") }
	for _, onlyState := range []bool{false, true} {
		t.Run(fmt.Sprintf("only state.db left: %v", onlyState), func(t *testing.T) {
			r := newRig(t)
			if !onlyState {
				r.secrets()
			}
			if err := r.spool.Close(true); err != nil {
				t.Fatal(err)
			}
			right, err := os.ReadFile(keyPath(r))
			if err != nil {
				t.Fatal(err)
			}
			id := r.opts.Keys.Current()
			if err := os.Remove(keyPath(r)); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadKeyRing(keyPath(r), false); err == nil {
				t.Fatal("a missing key file loads")
			}
			if _, err := os.Stat(keyPath(r)); err == nil {
				t.Fatal("a key file is made although it must exist")
			}
			ring, err := LoadKeyRing(keyPath(r), true)
			if err != nil {
				t.Fatal(err)
			}
			fi, err := os.Stat(keyPath(r))
			if err != nil || fi.Mode().Perm() != 0o600 {
				t.Fatalf("mode %v, %v", fi.Mode(), err)
			}
			before := r.snapshot()
			o := r.opts
			o.Keys = ring
			var wrong *WrongKeyError
			if _, err := Open(r.path(""), o); !errors.As(err, &wrong) || wrong.KeyID != id || !strings.Contains(err.Error(), id) {
				t.Fatalf("with another key: %v", err)
			}
			o.Keys = &KeyRing{current: id, keys: map[string][]byte{id: bytes.Repeat([]byte{1}, 32)}} // the id is short
			if _, err := Open(r.path(""), o); !errors.As(err, &wrong) {
				t.Fatalf("with another key of the same id: %v", err)
			}
			r.sameFiles(before)
			if err := os.WriteFile(keyPath(r), right, 0o600); err != nil {
				t.Fatal(err)
			}
			r.open()
			if want := 4; !onlyState && len(r.records()) != want {
				t.Fatal("the right key does not open it any more")
			}
		})
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k")
	good := strings.Repeat("ab", 32)
	for _, bad := range []string{"", "\n\n", "xyz", good[1:], good + "\n" + good + "00"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKeyRing(path, true); err == nil {
			t.Errorf("%q loads", bad)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != bad {
			t.Errorf("%q has been overwritten", bad)
		}
	}
	if err := os.WriteFile(path, []byte("\n "+good+" \r\n"+strings.Repeat("cd", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	ring, err := LoadKeyRing(path, false)
	if err != nil || ring.Current() != keyID(bytes.Repeat([]byte{0xab}, 32)) || len(ring.keys) != 2 {
		t.Fatalf("%v, %v", ring, err)
	}
	if s := fmt.Sprint(ring); strings.Contains(s, good) {
		t.Fatalf("a ring shows its keys: %s", s)
	}
}

// A new key seals new segments; the old one stays for the old ones.
func TestKeyRotation(t *testing.T) {
	r := newRig(t)
	r.secrets()
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(r.dir, "keys", "spool.key")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fresh := strings.Repeat("0f", 32) + "\n"
	if err := os.WriteFile(path, append([]byte(fresh), old...), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.later(time.Minute, "new")
	if len(r.records()) != 5 {
		t.Fatal("records are missing")
	}
	if id := r.spool.active.head.Seal.KeyID; id != r.opts.Keys.Current() || id != keyID(bytes.Repeat([]byte{0x0f}, 32)) {
		t.Fatalf("the new segment is sealed with %s", id)
	}
	r.reopen(false)
	if len(r.records()) != 5 {
		t.Fatal("records are missing after a restart")
	}

	// Once the old segments are settled and gone, nothing needs the old key.
	lines, err := r.spool.Lines(10)
	if err != nil || len(lines) != 2 { // the settlement's and the note
		t.Fatalf("%d lines, %v", len(lines), err)
	}
	if err := r.spool.Settle(Work{}, []Verdict{{Seq: 1, State: Committed}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.drain()
	r.os.pass(time.Hour)
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(fresh), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	if st := r.law(); st.Captured != 5 || st.Pending != 0 {
		t.Fatalf("%+v", st)
	}
}

// edit changes a closed spool's file with bbolt itself.
func edit(t *testing.T, path string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(f); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Any flipped bit of a sealed value is found, and so is a value in another's place.
func TestSealedValues(t *testing.T) {
	r := newRig(t)
	seg := r.spool.active
	rec := &Record{Seq: 1, Event: NewEvent(1), Scanner: "SCN-04", Item: Item{Lot: "L"}}
	plain := rec.append(nil)
	k := seqKey(1)
	once := seg.seal.sealOnce(nil, "records", k, plain)
	many := seg.seal.seal("records", k, plain)
	if got, err := seg.seal.openOnce(nil, "records", k, once); err != nil || !bytes.Equal(got, plain) {
		t.Fatal(err)
	}
	if got, err := seg.seal.open("records", k, many); err != nil || !bytes.Equal(got, plain) {
		t.Fatal(err)
	}
	if bytes.Equal(many, seg.seal.seal("records", k, plain)) {
		t.Fatal("a value that may change under its key is sealed with one nonce")
	}
	for bit := range 8 * len(once) {
		bad := slices.Clone(once)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := seg.decode(new(Record), nil, k, bad); err == nil {
			t.Fatalf("bit %d of %d", bit, 8*len(once))
		}
	}
	for bit := range 8 * len(many) {
		bad := slices.Clone(many)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := seg.seal.open("records", k, bad); err == nil {
			t.Fatalf("bit %d of %d", bit, 8*len(many))
		}
	}
	for n := range len(once) {
		if _, err := seg.decode(new(Record), nil, k, once[:n]); err == nil {
			t.Fatalf("cut to %d", n)
		}
	}
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	other := r.spool.active
	for name, f := range map[string]func() ([]byte, error){
		"key":           func() ([]byte, error) { return seg.seal.openOnce(nil, "records", seqKey(2), once) },
		"bucket":        func() ([]byte, error) { return seg.seal.openOnce(nil, "notes", k, once) },
		"segment":       func() ([]byte, error) { return other.seal.openOnce(nil, "records", k, once) },
		"key, state":    func() ([]byte, error) { return seg.seal.open("records", seqKey(2), many) },
		"bucket, state": func() ([]byte, error) { return seg.seal.open("meta", k, many) },
		"state.db":      func() ([]byte, error) { return r.spool.state.seal.open("records", k, many) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("it opens under another %s", name)
		}
	}
}

func TestDamagedFilesAreNoticed(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, segment, state, other string){
		"a bit of a record": func(t *testing.T, segment, _, _ string) {
			edit(t, segment, func(tx *bolt.Tx) error {
				v := slices.Clone(tx.Bucket(bucketRecords).Get(seqKey(4)))
				v[20] ^= 4
				return tx.Bucket(bucketRecords).Put(seqKey(4), v)
			})
		},
		"two records have changed places": func(t *testing.T, segment, _, _ string) {
			edit(t, segment, func(tx *bolt.Tx) error {
				b := tx.Bucket(bucketRecords)
				x, y := slices.Clone(b.Get(seqKey(3))), slices.Clone(b.Get(seqKey(4)))
				if err := b.Put(seqKey(3), y); err != nil {
					return err
				}
				return b.Put(seqKey(4), x)
			})
		},
		"a bit of an exception": func(t *testing.T, _, state, _ string) {
			edit(t, state, func(tx *bolt.Tx) error {
				v := slices.Clone(tx.Bucket(bucketExceptions).Get(seqKey(1)))
				v[15] ^= 1
				return tx.Bucket(bucketExceptions).Put(seqKey(1), v)
			})
		},
		"a segment has another's name": func(t *testing.T, segment, _, other string) {
			b, err := os.ReadFile(segment)
			if err == nil {
				err = os.WriteFile(other, b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.secrets()
			segment := r.spool.active.path
			if err := r.spool.roll(); err != nil {
				t.Fatal(err)
			}
			r.scan(r.candidate("other"))
			other := r.spool.active.path
			r.kill()
			damage(t, segment, r.path(stateName), other)
			r.open()
			for {
				if more, err := r.spool.tendOne(t.Context(), true); err != nil {
					t.Fatal(err)
				} else if !more {
					break
				}
			}
			if hs := r.spool.takeHealings(); len(hs) != 1 {
				t.Errorf("the damage is not noticed: %+v", hs)
			}
			r.law()
		})
	}
}
