package spool

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

var (
	bucketRecords = []byte("records")
	bucketNotes   = []byte("notes")
	bucketLost    = []byte("lost")
	keyRanges     = []byte("ranges")
)

// segment is one bbolt file of the chain. Only the last one of the running process takes records; all others
// never change, but a damaged one is replaced by what could be saved of it.
type segment struct {
	name string
	path string
	head *fileHead // nil while the header is lost
	seal *sealer

	open sync.RWMutex // held for reading while db is used
	db   *bolt.DB     // nil while closed
	size int64        // of the file when it was mapped, if it is only read
	// written is the file's size behind the last write; the intake's.
	written int64
	ended   bool // closed for good: the file is gone, or the spool is closed
	sound   bool // every record has been authenticated since the file was opened, or written by this process

	first  uint64        // number of the first record
	until  uint64        // the last one, by the sidecar; 0 if that does not know
	last   uint64        // last record; first-1 if there is none
	notes  uint64        // last note; 0 if there is none
	lost   ranges        // numbers up to last that a damage has taken; changed with open and the spool's mu held
	sick   string        // what is wrong with the file, until it is healed; guarded by the spool's mu
	newest time.Duration // boottime of the newest record, if of this boot
	bytes  int64         // on disk
}

func segmentName(epoch string, first uint64) string {
	return fmt.Sprintf("%s-%016d%s", epoch, first, segmentExt)
}

func boltOptions(readOnly bool) *bolt.Options {
	return &bolt.Options{Timeout: 2 * time.Second, ReadOnly: readOnly, FreelistType: bolt.FreelistMapType}
}

func createSegment(dir string, ring *KeyRing, head fileHead) (*segment, error) {
	s := &segment{name: segmentName(head.Epoch, head.First), first: head.First, last: head.First - 1, sound: true}
	s.path = filepath.Join(dir, s.name)
	var err error
	if s.head, s.seal, err = newHead(ring, head, s.name); err != nil {
		return nil, err
	}
	if s.db, err = newSegmentFile(s.path, s.head, s.seal, boltOptions(false)); err == nil {
		if err = syncDir(dir); err != nil {
			s.db.Close()
			os.Remove(s.path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the segment %s: %w", s.name, err)
	}
	s.measure()
	return s, nil
}

// newSegmentFile makes a bbolt file with a segment's buckets.
func newSegmentFile(path string, head *fileHead, seal *sealer, o *bolt.Options) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, o)
	if err != nil {
		os.Remove(path) // a full disk leaves an empty file
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		if err := head.put(tx, seal); err != nil {
			return err
		}
		if _, err := tx.CreateBucket(bucketRecords); err != nil {
			return err
		}
		_, err := tx.CreateBucket(bucketNotes)
		return err
	})
	if err != nil {
		db.Close()
		os.Remove(path)
		return nil, err
	}
	return db, nil
}

// openSegment looks at a segment without mapping it: header, ends, and the outline of its trees. kept is the
// sidecar's copy of the header, or nil. With a *DamageError it returns what is known of the segment all the same.
func openSegment(dir, name string, ring *KeyRing, kept *fileHead) (*segment, error) {
	s := &segment{name: name, path: filepath.Join(dir, name), head: kept}
	if _, first, ok := parseSegmentName(name); ok {
		s.first, s.last = first, first-1
	} else if kept != nil {
		s.first, s.last = kept.First, kept.First-1
	}
	r, err := openRaw(s.path, name)
	if err == nil {
		defer r.close()
		err = s.look(r, ring, kept)
	}
	var damaged *DamageError
	if err != nil && !errors.As(err, &damaged) {
		return nil, err
	}
	s.measure()
	return s, err
}

func (s *segment) look(r *raw, ring *KeyRing, kept *fileHead) error {
	buckets, err := r.root()
	if err != nil {
		return err
	}
	header, proof, err := r.headOf(buckets)
	if err != nil {
		return err
	}
	head, seal, err := unlock(ring, s.name, header, proof, kept)
	if err != nil {
		return err
	}
	end := func(name []byte) (uint64, error) {
		t, ok := buckets[string(name)]
		if !ok {
			return 0, r.damage("its bucket %s is missing", name)
		}
		if err := r.outline(t); err != nil {
			return 0, err
		}
		k, err := r.edge(t)
		if err != nil || k == nil {
			return 0, err
		}
		if len(k) != 8 {
			return 0, r.damage("a number is garbled")
		}
		return binary.BigEndian.Uint64(k), nil
	}
	last, err := end(bucketRecords)
	if err != nil {
		return err
	}
	notes, err := end(bucketNotes)
	if err != nil {
		return err
	}
	if t, ok := buckets[string(bucketLost)]; ok != head.Salvaged {
		return r.damage("what is known to be lost of it is garbled")
	} else if ok {
		sealed, err := r.get(t, keyRanges)
		if err != nil {
			return err
		}
		plain, err := seal.open(string(bucketLost), keyRanges, sealed)
		if err == nil {
			err = json.Unmarshal(plain, &s.lost)
		}
		if err != nil {
			return r.damage("what is known to be lost of it is garbled")
		}
		last = max(last, s.lost.end())
	}
	s.head, s.seal, s.first, s.last, s.notes = head, seal, head.First, max(last, head.First-1), notes
	return nil
}

// view runs f in a read transaction; a closed segment is mapped for it and stays so until close. f must be
// short: the intake waits for it when the active segment outgrows its mapping.
func (s *segment) view(f func(*bolt.Tx) error) error {
	for {
		s.open.RLock()
		if db := s.db; db != nil {
			err := s.uncut()
			if err == nil {
				err = guarded(s.name, func() error { return db.View(f) })
			}
			s.open.RUnlock()
			var broke *brokenOff
			if errors.As(err, &broke) {
				s.abandon(db)
				err = broke.damage
			}
			return err
		}
		s.open.RUnlock()
		if err := s.reopen(); err != nil {
			return err
		}
	}
}

func (s *segment) reopen() error {
	s.open.Lock()
	defer s.open.Unlock()
	if s.ended {
		return ErrClosed
	}
	if s.db != nil {
		return nil
	}
	fi, err := os.Stat(s.path)
	if err == nil {
		s.size = fi.Size()
		err = guarded(s.name, func() (err error) {
			s.db, err = bolt.Open(s.path, 0o600, boltOptions(true))
			return err
		})
	}
	if err != nil {
		s.db = nil
		return fmt.Errorf("cannot open the segment %s: %w", s.name, asDamage(s.name, err))
	}
	return nil
}

// uncut says that a file that is only read is as long as it was: beyond its end the mapping must not be touched.
func (s *segment) uncut() error {
	if s.size == 0 {
		return nil
	}
	if fi, err := os.Stat(s.path); err != nil || fi.Size() < s.size {
		return &DamageError{s.name, "it has been cut off"}
	}
	return nil
}

// abandon forgets a mapped file in which a read broke off: bbolt may hold its locks for ever, so that closing it
// would wait. Its mapping stays until the process ends.
func (s *segment) abandon(db *bolt.DB) {
	s.open.Lock()
	defer s.open.Unlock()
	if s.db == db {
		s.db = nil
	}
}

// brokenOff is a damage at which a read ended in the middle of bbolt.
type brokenOff struct{ damage *DamageError }

func (b *brokenOff) Error() string { return b.damage.Error() }

// Unwrap gives the damage.
func (b *brokenOff) Unwrap() error { return b.damage }

// guarded runs what reads a mapped file: a file that is cut off or garbled behind the checks' back ends in a
// *brokenOff, not the process.
func guarded(name string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &brokenOff{&DamageError{name, fmt.Sprint("reading it fails: ", r)}}
		}
	}()
	return f()
}

// asDamage tells what bbolt finds wrong with a file from what is wrong with the machine.
func asDamage(name string, err error) error {
	for _, is := range [...]error{berrors.ErrInvalid, berrors.ErrVersionMismatch, berrors.ErrChecksum, fs.ErrNotExist} {
		if errors.Is(err, is) {
			return &DamageError{name, err.Error()}
		}
	}
	return err
}

// close unmaps the segment until somebody reads it.
func (s *segment) close() error { return s.shut(false) }

// end closes the segment for good.
func (s *segment) end() error { return s.shut(true) }

func (s *segment) shut(ended bool) error {
	s.open.Lock()
	defer s.open.Unlock()
	s.ended = s.ended || ended
	if s.db == nil {
		return nil
	}
	err := s.db.Close()
	s.db = nil
	return err
}

// bound is the last number that the segment has in front of the next one.
func (s *segment) bound(next *segment) uint64 {
	if s.until != 0 {
		return min(s.until, next.first-1)
	}
	return next.first - 1
}

func (s *segment) count() uint64 { return s.last + 1 - s.first }

func (s *segment) measure() { s.bytes = diskBytes(s.path) }

// write makes records and notes durable in one transaction. The records' sequence numbers follow s.last.
// After an error the segment must not be written again: what it holds beyond s.last is not known. A *DamageError says
// that the file has gone bad since it was made.
func (s *segment) write(records []*Record, notes []Line) error {
	s.open.RLock()
	db := s.db
	s.open.RUnlock()
	if db == nil {
		return ErrClosed
	}
	if fi, err := os.Stat(s.path); err == nil && fi.Mode().IsRegular() && fi.Size() < s.written { // bbolt would fill it up with nothing
		s.abandon(db)
		return &DamageError{s.name, "it has been cut off"}
	}
	err := guarded(s.name, func() error { return db.Update(s.putAll(records, notes)) })
	var broke *brokenOff
	if errors.As(err, &broke) {
		s.abandon(db)
		return broke.damage
	}
	if fi, err := os.Stat(s.path); err == nil {
		s.written = fi.Size()
	}
	return asDamage(s.name, err)
}

func (s *segment) putAll(records []*Record, notes []Line) func(*bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		var plain, sealed []byte
		var k [8]byte // bbolt copies keys, and keeps values until the commit
		put := func(b *bolt.Bucket, name string, seq uint64) error {
			binary.BigEndian.PutUint64(k[:], seq)
			from := len(sealed)
			sealed = s.seal.sealOnce(sealed, name, k[:], plain)
			return b.Put(k[:], sealed[from:len(sealed):len(sealed)])
		}
		if len(records) > 0 {
			b := tx.Bucket(bucketRecords)
			b.FillPercent = 0.95 // keys only grow
			for _, r := range records {
				plain = r.append(plain[:0])
				if sealed == nil {
					sealed = make([]byte, 0, len(records)*(len(plain)+64))
				}
				if err := put(b, "records", r.Seq); err != nil {
					return err
				}
			}
		}
		if len(notes) > 0 {
			b := tx.Bucket(bucketNotes)
			b.FillPercent = 0.95
			for i := range notes {
				plain = notes[i].append(plain[:0])
				if err := put(b, "notes", s.notes+1+uint64(i)); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// read returns up to n records from..to, in order. A record that is neither there nor known to be lost, and one
// that cannot be unsealed, end it with a *DamageError.
func (s *segment) read(from, to uint64, n int) ([]*Record, error) {
	n = int(min(uint64(n), to+1-from))
	records := make([]Record, n) // in one piece
	out := make([]*Record, 0, n)
	var plain []byte
	err := s.view(func(tx *bolt.Tx) error {
		want := s.lost.skip(from)
		b := tx.Bucket(bucketRecords)
		if b == nil {
			return &DamageError{s.name, "its records are gone"}
		}
		c := b.Cursor()
		for k, v := c.Seek(seqKey(from)); len(out) < n && want <= to; k, v = c.Next() {
			if k == nil || len(k) != 8 || binary.BigEndian.Uint64(k) != want {
				return &DamageError{s.name, fmt.Sprintf("record %d is missing", want)}
			}
			r := &records[len(out)]
			var err error
			if plain, err = s.decode(r, plain[:0], k, v); err != nil {
				return err
			}
			out = append(out, r)
			want = s.lost.skip(want + 1)
		}
		return nil
	})
	return out, err
}

// scanBack yields the records from the last to the first.
func (s *segment) scanBack(yield func(*Record) bool) error {
	const piece = 256
	for to := s.last; to >= s.first; {
		from := max(s.first, to-min(to, piece-1))
		rs, err := s.read(from, to, piece)
		if err != nil {
			return err
		}
		for _, r := range slices.Backward(rs) {
			if !yield(r) {
				return nil
			}
		}
		to = from - 1
	}
	return nil
}

// decode unseals a record by way of plain, which it returns to be used again.
func (s *segment) decode(r *Record, plain, k, v []byte) ([]byte, error) {
	r.Seq = binary.BigEndian.Uint64(k)
	plain, err := s.seal.openOnce(plain, "records", k, v)
	if err == nil {
		err = r.decode(plain)
	}
	if err != nil {
		return nil, &DamageError{s.name, fmt.Sprintf("record %d: %v", r.Seq, err)}
	}
	return plain, nil
}

// readNotes returns up to n notes with numbers after..to, after excluded, and the number up to which that is all.
func (s *segment) readNotes(after, to uint64, n int) (out []Line, up uint64, err error) {
	up = after
	err = s.view(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketNotes)
		if b == nil {
			return &DamageError{s.name, "its notes are gone"}
		}
		c := b.Cursor()
		k, v := c.Seek(seqKey(after + 1))
		for ; k != nil && len(k) == 8 && len(out) < n && binary.BigEndian.Uint64(k) <= to; k, v = c.Next() {
			number := binary.BigEndian.Uint64(k)
			if number != up+1 && !s.head.Salvaged {
				return &DamageError{s.name, fmt.Sprintf("note %d is missing", up+1)}
			}
			plain, err := s.seal.openOnce(nil, "notes", k, v)
			var l Line
			if err == nil {
				err = l.decode(plain)
			}
			if err != nil {
				return &DamageError{s.name, fmt.Sprintf("note %d: %v", number, err)}
			}
			out = append(out, l)
			up = number
		}
		if len(out) < n {
			if up != to {
				return &DamageError{s.name, fmt.Sprintf("note %d is missing", to)}
			}
		}
		return nil
	})
	return out, up, err
}

// ranges are numbers, from and to included, in order and apart.
type ranges [][2]uint64

// skip is the first number from n on that is not among them.
func (r ranges) skip(n uint64) uint64 {
	i, _ := slices.BinarySearchFunc(r, n, func(x [2]uint64, n uint64) int { return cmp.Compare(x[1], n) })
	for ; i < len(r) && r[i][0] <= n; i++ {
		n = r[i][1] + 1
	}
	return n
}

// has says that n is among them.
func (r ranges) has(n uint64) bool { return r.skip(n) != n }

// within counts those in from..to.
func (r ranges) within(from, to uint64) (n uint64) {
	for _, x := range r {
		if a, b := max(x[0], from), min(x[1], to); a <= b {
			n += b - a + 1
		}
	}
	return n
}

// end is the last one, 0 if there is none.
func (r ranges) end() uint64 {
	if len(r) == 0 {
		return 0
	}
	return r[len(r)-1][1]
}
