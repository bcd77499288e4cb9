package spool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/window"
)

var (
	bucketHead    = []byte("head")
	bucketRecords = []byte("records")
	bucketNotes   = []byte("notes")
	keyHeader     = []byte("header")
)

// segmentHead is the header of a segment, in clear.
type segmentHead struct {
	Version int        `json:"version"`
	Agent   string     `json:"agent_id"`
	Epoch   string     `json:"spool_epoch"`
	First   uint64     `json:"first_seq"`
	BootID  string     `json:"boot_id"`
	Created window.UTC `json:"created"`
	Seal    sealParams `json:"seal"`
}

// segment is one bbolt file of the chain. Only the last one of the running process takes records; all others
// never change.
type segment struct {
	name string
	path string
	head segmentHead
	seal *sealer

	open  sync.RWMutex // held for reading while db is used
	db    *bolt.DB     // nil while closed
	ended bool         // closed for good: the file is gone, or the spool is closed

	last   uint64        // last record; First-1 if there is none
	notes  uint64        // last note; 0 if there is none
	newest time.Duration // boottime of the newest record, if of this boot
	bytes  int64         // on disk
}

func segmentName(epoch string, first uint64) string {
	return fmt.Sprintf("%s-%016d%s", epoch, first, segmentExt)
}

func boltOptions(readOnly bool) *bolt.Options {
	return &bolt.Options{Timeout: 2 * time.Second, ReadOnly: readOnly, FreelistType: bolt.FreelistMapType}
}

func createSegment(dir string, ring *KeyRing, head segmentHead) (*segment, error) {
	s := &segment{name: segmentName(head.Epoch, head.First), head: head, last: head.First - 1}
	s.path = filepath.Join(dir, s.name)
	s.head.Version = codecVersion
	s.head.Seal = newSealParams(ring)
	var err error
	if s.seal, err = newSealer(ring, &s.head.Seal, s.scope(), s.name); err != nil {
		return nil, err
	}
	if s.db, err = bolt.Open(s.path, 0o600, boltOptions(false)); err != nil {
		os.Remove(s.path) // a full disk leaves an empty file
		return nil, fmt.Errorf("cannot make the segment %s: %w", s.name, err)
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		b, err := json.Marshal(s.head)
		if err != nil {
			return err
		}
		h, err := tx.CreateBucket(bucketHead)
		if err != nil {
			return err
		}
		if err := h.Put(keyHeader, b); err != nil {
			return err
		}
		if _, err = tx.CreateBucket(bucketRecords); err != nil {
			return err
		}
		_, err = tx.CreateBucket(bucketNotes)
		return err
	})
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		s.db.Close()
		os.Remove(s.path)
		return nil, fmt.Errorf("cannot make the segment %s: %w", s.name, err)
	}
	s.measure()
	return s, nil
}

// openSegment opens a segment for reading.
func openSegment(dir, name string, ring *KeyRing) (*segment, error) {
	s := &segment{name: name, path: filepath.Join(dir, name)}
	if fi, err := os.Stat(s.path); err != nil {
		return nil, fmt.Errorf("cannot open the segment %s: %w", name, err)
	} else if fi.Size() == 0 {
		return nil, fmt.Errorf("cannot open the segment %s: it is empty and must not be", name)
	}
	var err error
	if s.db, err = bolt.Open(s.path, 0o600, boltOptions(true)); err != nil {
		return nil, fmt.Errorf("cannot open the segment %s: %w", name, err)
	}
	err = s.db.View(func(tx *bolt.Tx) error {
		h, rec, notes := tx.Bucket(bucketHead), tx.Bucket(bucketRecords), tx.Bucket(bucketNotes)
		if h == nil || rec == nil || notes == nil {
			return errors.New("a bucket is missing")
		}
		if err := json.Unmarshal(h.Get(keyHeader), &s.head); err != nil {
			return err
		}
		s.last = s.head.First - 1
		if k, _ := rec.Cursor().Last(); k != nil {
			s.last = binary.BigEndian.Uint64(k)
		}
		if k, _ := notes.Cursor().Last(); k != nil {
			s.notes = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	if err == nil && segmentName(s.head.Epoch, s.head.First) != name {
		err = errors.New("its header is that of another segment: give the file its name back")
	}
	if err == nil {
		s.seal, err = newSealer(ring, &s.head.Seal, s.scope(), name)
	}
	if err != nil {
		s.db.Close()
		var wrong *WrongKeyError
		if errors.As(err, &wrong) {
			return nil, err
		}
		return nil, fmt.Errorf("cannot open the segment %s: %w", name, err)
	}
	s.measure()
	return s, nil
}

// view runs f in a read transaction; a closed segment is mapped for it and stays so until close. f must be
// short: the intake waits for it when the active segment outgrows its mapping.
func (s *segment) view(f func(*bolt.Tx) error) error {
	for {
		s.open.RLock()
		if s.db != nil {
			defer s.open.RUnlock()
			return s.db.View(f)
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
	db, err := bolt.Open(s.path, 0o600, boltOptions(true))
	if err != nil {
		return fmt.Errorf("cannot open the segment %s: %w", s.name, err)
	}
	s.db = db
	return nil
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

func (s *segment) scope() string { return s.head.Agent + "|" + s.head.Epoch + "|" + s.name }

func (s *segment) count() uint64 { return s.last + 1 - s.head.First }

func (s *segment) measure() { s.bytes = diskBytes(s.path) }

// write makes records and notes durable in one transaction. The records' sequence numbers follow s.last.
// After an error the segment must not be written again: what it holds beyond s.last is not known.
func (s *segment) write(records []*Record, notes []Line) error {
	return s.db.Update(func(tx *bolt.Tx) error {
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
	})
}

// read returns up to n records from..to, in order. A record that cannot be unsealed ends it with an error.
func (s *segment) read(from, to uint64, n int) ([]Record, error) {
	var out []Record
	err := s.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketRecords).Cursor()
		for k, v := c.Seek(seqKey(from)); k != nil && len(out) < n && binary.BigEndian.Uint64(k) <= to; k, v = c.Next() {
			r, err := s.decode(k, v)
			if err != nil {
				return err
			}
			out = append(out, *r)
		}
		return nil
	})
	return out, err
}

// scanBack yields the records from the last to the first.
func (s *segment) scanBack(yield func(*Record) bool) error {
	return s.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketRecords).Cursor()
		for k, v := c.Last(); k != nil; k, v = c.Prev() {
			if binary.BigEndian.Uint64(k) > s.last {
				continue
			}
			r, err := s.decode(k, v)
			if err != nil {
				return err
			}
			if !yield(r) {
				return nil
			}
		}
		return nil
	})
}

func (s *segment) decode(k, v []byte) (*Record, error) {
	r := &Record{Seq: binary.BigEndian.Uint64(k)}
	plain, err := s.seal.openOnce(nil, "records", k, v)
	if err == nil {
		err = r.decode(plain)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read record %d of %s: %w", r.Seq, s.name, err)
	}
	return r, nil
}

// readNotes returns up to n notes with numbers after..to, after excluded.
func (s *segment) readNotes(after, to uint64, n int) ([]Line, error) {
	var out []Line
	err := s.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketNotes).Cursor()
		for k, v := c.Seek(seqKey(after + 1)); k != nil && len(out) < n && binary.BigEndian.Uint64(k) <= to; k, v = c.Next() {
			plain, err := s.seal.openOnce(nil, "notes", k, v)
			var l Line
			if err == nil {
				err = l.decode(plain)
			}
			if err != nil {
				return fmt.Errorf("cannot read note %d of %s: %w", binary.BigEndian.Uint64(k), s.name, err)
			}
			out = append(out, l)
		}
		return nil
	})
	return out, err
}
