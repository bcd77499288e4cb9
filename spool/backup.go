package spool

import (
	"archive/tar"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// Rotate ends the active segment, so that a backup has all records until now. The intake calls it.
func (s *Spool) Rotate() error {
	if a := s.active; a == nil || a.count() == 0 && a.notes == 0 {
		return nil
	}
	return s.roll()
}

// Backup writes a tar file that holds the spool as it is, beside whoever uses it: state.db, the journal, the
// segments that take no more, and a sidecar that names them, all sealed as they are. What comes meanwhile is not in it. state.db
// is copied first: what the copy does not know to be settled is sent again and finds its own row.
func (s *Spool) Backup(w io.Writer) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.backups++ // nothing is unlinked meanwhile
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.backups--
		s.mu.Unlock()
	}()
	state, err := s.stateCopy()
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", stateName, err)
	}
	defer state.Close()
	side := sidecar{Version: fileVersion, Agent: s.opts.Agent, HasState: true, Clock: s.reserved(), Copy: true}
	var chain []*segment
	s.settling.Lock() // state.db and the chain at one moment
	var tx *bolt.Tx
	err = s.state.use(func() (err error) {
		tx, err = s.state.db.Begin(false)
		return err
	})
	if err == nil {
		s.mu.Lock()
		side.State, side.Epoch, side.Next, side.Settled = s.state.head, s.epoch, s.next, s.state.settled
		for _, seg := range s.segments {
			if seg == s.active {
				side.Next = seg.first
				break
			}
			if seg.sick != "" {
				err = &DamageError{seg.name, seg.sick}
			}
			chain = append(chain, seg)
			side.Segments = append(side.Segments, segmentEntry{seg.name, seg.first, seg.last, seg.head})
		}
		s.mu.Unlock()
	}
	s.settling.Unlock()
	if tx != nil {
		if err == nil && !s.opts.ReadOnly {
			err = s.state.use(func() error { _, err := tx.WriteTo(state); return err })
			if err == nil {
				err = orderMetas(state, s.state.db.Info().PageSize)
			}
		}
		tx.Rollback()
	}
	if err != nil {
		return fmt.Errorf("cannot copy the spool: %w", err)
	}
	operations, err := s.journal.copy() // behind state.db: what that says is settled has its operation here
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", journalName, err)
	}
	b, err := side.bytes()
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	head := tar.Header{Name: "spool/", Typeflag: tar.TypeDir, Mode: 0o700}
	if err = out.WriteHeader(&head); err == nil {
		head = tar.Header{Name: "spool/" + sidecarName, Mode: 0o600, Size: int64(len(b))}
		if err = out.WriteHeader(&head); err == nil {
			_, err = out.Write(b)
		}
	}
	if err == nil {
		_, err = state.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = addFile(out, stateName, state)
	}
	if err == nil && operations != nil {
		if err = out.WriteHeader(&tar.Header{Name: "spool/" + journalName, Mode: 0o600, Size: int64(len(operations))}); err == nil {
			_, err = out.Write(operations)
		}
	}
	for _, seg := range chain {
		if err == nil {
			err = s.addSegment(out, seg)
		}
	}
	if err == nil {
		err = out.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	return nil
}

// orderMetas puts the meta pages of a copy made by bbolt where its own writes would have put them, the one of an
// even transaction first.
func orderMetas(f *os.File, page int) error {
	var metas [2][]byte
	for i := range metas {
		metas[i] = make([]byte, page)
		if _, err := f.ReadAt(metas[i], int64(i)*int64(page)); err != nil {
			return err
		}
	}
	if binary.NativeEndian.Uint64(metas[0][pageHead+48:])%2 == 0 {
		return nil
	}
	metas[0], metas[1] = metas[1], metas[0]
	for i, m := range metas {
		binary.NativeEndian.PutUint64(m, uint64(i))
		if _, err := f.WriteAt(m, int64(i)*int64(page)); err != nil {
			return err
		}
	}
	return nil
}

// stateCopy is an empty file for a copy of state.db, or, if nobody writes that, state.db itself.
func (s *Spool) stateCopy() (*os.File, error) {
	if s.opts.ReadOnly {
		return os.Open(s.state.path)
	}
	f, err := os.CreateTemp(s.dir, stateName+tmpMark+"*")
	if err == nil {
		err = os.Remove(f.Name()) // it goes with its last user
	}
	return f, err
}

func (s *Spool) addSegment(out *tar.Writer, seg *segment) error {
	f, err := os.Open(filepath.Join(s.dir, seg.name)) // closed for writing; a healing replaces it as a whole
	if err != nil {
		return err
	}
	defer f.Close()
	return addFile(out, seg.name, f)
}

func addFile(out *tar.Writer, name string, f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Name: "spool/" + name, Mode: 0o600, Size: fi.Size(), ModTime: fi.ModTime()}); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}
