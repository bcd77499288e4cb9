package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// place is where the files of a running spool are: a name can come to mean another file while this process goes on
// writing the one that had it, of which the next start would know nothing.
type place struct {
	mu     sync.Mutex
	folder *os.File    // nil before Begin
	is     os.FileInfo // of folder
	told   bool        // that it is lost and cannot be made again

	// Owned by the intake: the files that are written.
	active, state, side os.FileInfo
	apart               bool // what stands under state.db's name is a copy: Close makes a new one
}

// settleDown takes note of the folder in which the spool begins.
func (p *place) settleDown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot open the spool folder: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("cannot look at the spool folder: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.folder != nil {
		p.folder.Close()
	}
	p.folder, p.is, p.told = f, fi, false
	return nil
}

// left says that the folder's name means another one, or none.
func (p *place) left(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.folder != nil && !same(dir, p.is)
}

func (p *place) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.folder != nil {
		p.folder.Close()
		p.folder = nil
	}
}

func same(path string, fi os.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && fi != nil && os.SameFile(now, fi)
}

// lost tells once that the folder is not where it was.
func (s *Spool) lost(why string) {
	s.place.mu.Lock()
	told := s.place.told
	s.place.told = true
	s.place.mu.Unlock()
	if !told {
		s.tell(Healing{File: "the spool folder", Detail: "it was moved, replaced or removed while it is used, " + why, Moved: true})
	}
}

// tell adds a healing for Tend.
func (s *Spool) tell(h Healing) {
	s.mu.Lock()
	s.healings = append(s.healings, h)
	s.mu.Unlock()
	select {
	case s.ail <- struct{}{}:
	default:
	}
}

// keepPlace looks whether the folder and the files that are written are those under their names, and puts them there
// if they are not. The intake calls it.
func (s *Spool) keepPlace() error {
	p := &s.place
	if p.folder == nil {
		return nil
	}
	moved := p.left(s.dir)
	if moved {
		if err := s.comeBack(); err != nil {
			s.lost("and cannot be made again: " + err.Error())
			return fmt.Errorf("cannot put the spool folder in its place again: %w", err)
		}
	}
	var copied []string
	if !same(s.state.path, p.state) {
		if err := s.rescue(s.state.db, stateName); err != nil {
			return fmt.Errorf("cannot put %s in its place again: %w", stateName, err)
		}
		p.state, _ = os.Stat(s.state.path)
		p.apart = true
		copied = append(copied, stateName)
	}
	roll := moved
	if a := s.active; a != nil && !same(a.path, p.active) {
		if err := s.rescue(a.db, a.name); err != nil {
			return fmt.Errorf("cannot put %s in its place again: %w", a.name, err)
		}
		roll = true
		copied = append(copied, a.name)
	}
	if err := s.journal.keepPlace(); err != nil {
		return err
	}
	s.marks.reopen(s.dir)
	var err error
	if roll { // what is written from now on is in its place
		err = s.roll()
	} else if !same(filepath.Join(s.dir, sidecarName), p.side) {
		err = s.writeSidecar(segmentEntry{})
	}
	if err != nil {
		return err
	}
	if moved {
		s.lost("and stands in its place again, with what was left of it")
	}
	for _, name := range copied {
		if !moved {
			s.tell(Healing{File: name, Detail: "it was moved, replaced or removed while it is used; a copy of it stands in its place", Moved: true})
		}
	}
	return nil
}

// comeBack makes the folder again, with the files of the one that is still open: the same ones if the file system can
// link them, which one that was removed cannot.
func (s *Spool) comeBack() error {
	if fi, err := os.Stat(s.dir); err == nil && !fi.IsDir() || err != nil && occupied(s.dir) {
		at, err := os.Lstat(s.dir)
		if err == nil {
			err = os.Rename(s.dir, s.dir+"."+at.ModTime().UTC().Format(asideTime))
		}
		if err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(s.dir)); err != nil {
		return err
	}
	s.mu.Lock()
	chain := slices.Clone(s.segments)
	s.mu.Unlock()
	names := []string{stateName, markName, journalName}
	for _, seg := range chain {
		names = append(names, seg.name)
	}
	old := fmt.Sprintf("/proc/self/fd/%d", s.place.folder.Fd())
	for _, name := range names {
		from, to := filepath.Join(old, name), filepath.Join(s.dir, name)
		fi, err := os.Lstat(from)
		if err != nil || !fi.Mode().IsRegular() || same(to, fi) {
			continue
		}
		if occupied(to) {
			if _, err := keepAside(s.dir, name, true); err != nil {
				return err
			}
		}
		if err = os.Link(from, to); err != nil && !IsNoSpace(err) && filepath.Ext(name) == segmentExt && (s.active == nil || name != s.active.name) {
			err = copyFile(to, from) // it does not change any more
		}
		if IsNoSpace(err) {
			return err
		}
	}
	for _, seg := range chain {
		if seg != s.active && !occupied(seg.path) {
			s.ails(seg, &DamageError{seg.name, "it was removed while it was used"})
		}
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	s.makeReserve()
	return s.place.settleDown(s.dir)
}

// rescue puts a copy of an open file under its name, and what stands there aside.
func (s *Spool) rescue(db *bolt.DB, name string) error {
	salt := make([]byte, 4)
	rand.Read(salt)
	path := filepath.Join(s.dir, name)
	tmp := path + tmpMark + hex.EncodeToString(salt)
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = guarded(name, func() error {
		return db.View(func(tx *bolt.Tx) error { _, err := tx.WriteTo(f); return err })
	})
	if err == nil {
		err = orderMetas(f, db.Info().PageSize)
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil && occupied(path) {
		_, err = keepAside(s.dir, name, true)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	return syncDir(s.dir)
}

// keepPlace writes the file anew if its name means another one, or none.
func (j *Journal) keepPlace() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.f == nil && (j.number == 0 || occupied(j.path)) || j.f != nil && j.inPlace() {
		return nil
	}
	return j.rewrite()
}

// reopen goes on in the file that stands in dir now, if it is another one. The next mark of a kind tells anew how far
// that has got.
func (m *markFile) reopen(dir string) {
	if m == nil {
		return
	}
	fi, err := m.f.Load().Stat()
	if err == nil && same(filepath.Join(dir, markName), fi) {
		return
	}
	f, err := os.OpenFile(filepath.Join(dir, markName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	f.Truncate(0)
	var b [2 * markKinds * markSlot]byte
	if n, err := m.f.Load().ReadAt(b[:], 0); n > 0 && (err == nil || !errors.Is(err, fs.ErrClosed)) {
		f.WriteAt(b[:n], 0)
	}
	m.old = append(m.old, m.f.Swap(f)) // somebody may be writing it
}
