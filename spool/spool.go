// Package spool is the durable outbox: a chain of bbolt segments that only grow, and one small state.db that
// says what has become of the records. Nothing is accepted before it is on disk, and nothing leaves before a
// row in the ledger shares its keys.
package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"scanonce/bloom"
	"scanonce/window"
)

// Options are the spool's settings. All are required.
type Options struct {
	Agent          string
	Keys           *KeyRing
	BootID         string
	Boot           func() time.Duration // CLOCK_BOOTTIME
	MaxRecords     int64                // unsettled records
	MaxBytes       int64                // on disk
	SegmentRecords int
	Horizon        time.Duration // H: how long an acceptance is remembered and its segment kept
	LocalSpan      time.Duration // the longest W+G: how long at least
	FilterKeys     uint          // keys a filter generation takes; 0 is a default for a workstation
}

const (
	reserveAhead  = time.Minute      // how far ahead of t the sidecar reserves
	reserveAgain  = 20 * time.Second // less than this left: reserve again, out of the way of the next scan
	tailRecords   = 4096             // kept in memory for a forwarder that is close behind
	defaultFilter = 1 << 16
	filterRate    = 1e-3
)

// ErrFull refuses a scan: the bound on records or bytes is reached, and nothing accepted is ever dropped.
var ErrFull = errors.New("cannot accept: the spool is full")

// ErrDiskFull refuses a scan: the disk is full, and what is left of it is for draining.
var ErrDiskFull = errors.New("cannot accept: the disk is full")

// ErrClosed is returned by a spool that has been closed.
var ErrClosed = errors.New("cannot use the spool: it is closed")

// Spool is the chain. One goroutine takes in (Batch, Commit), one settles (Next, Settle, …), any may ask.
type Spool struct {
	dir  string
	opts Options

	// Owned by the intake.
	recent *recent
	filter *bloom.Filter
	clock  *window.Clock
	side   sidecar
	active *segment

	wake chan struct{}

	mu        sync.Mutex
	state     *state
	segments  []*segment // oldest first; the active one is last
	pruned    []*segment // settled and old, to be unlinked
	next      uint64     // sequence number of the next record
	unsettled int64
	tail      []Record
	stateLen  int64
	unclean   bool
	closed    bool
	reserve   int // written by the intake alone
	epoch     string
	began     time.Duration
}

// Open opens the spool in dir, or makes it. It reads what the run before left and rebuilds the local rule's
// memory; it writes no record and changes no segment. A *WrongKeyError leaves everything as it is.
func Open(dir string, o Options) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the spool folder: %w", err)
	}
	if o.FilterKeys == 0 {
		o.FilterKeys = defaultFilter
	}
	s := &Spool{dir: dir, opts: o, wake: make(chan struct{}, 1), recent: newRecent(o.Horizon),
		filter: bloom.New(o.FilterKeys, filterRate, o.Horizon), began: o.Boot()}
	side, found, err := readSidecar(dir)
	if err != nil {
		return nil, err
	}
	s.side, s.unclean = side, found && !side.Clean
	if found && side.Agent != o.Agent {
		return nil, fmt.Errorf("cannot use this spool: it belongs to agent %s, and this agent is %s", side.Agent, o.Agent)
	}
	if err := s.openSegments(); err != nil {
		s.closeFiles()
		return nil, err
	}
	if s.state, err = openState(dir, o.Keys, o.Agent, &s.mu, !side.HasState); err != nil {
		s.closeFiles()
		return nil, err
	}
	if !side.HasState && len(s.segments) > 0 { // never made, or the sidecar that knew of it is gone
		s.state.counters.Base = s.segments[0].head.First - 1
	}
	s.recount()
	if err := s.rebuild(); err != nil {
		s.closeFiles()
		return nil, err
	}
	return s, nil
}

// openSegments opens the chain. Where a later segment begins, an earlier one ends: what it holds beyond that
// was never acknowledged.
func (s *Spool) openSegments() error {
	names, err := filepath.Glob(filepath.Join(s.dir, "*"+segmentExt))
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, path := range names {
		found[filepath.Base(path)] = true
	}
	for _, e := range s.side.Segments {
		if !found[e.Name] {
			return fmt.Errorf("cannot open the spool: the segment %s is missing; put it back, or remove its line from %s to go on without its records", e.Name, sidecarName)
		}
	}
	for name := range found {
		seg, err := openSegment(s.dir, name, s.opts.Keys)
		if err != nil {
			return err
		}
		s.segments = append(s.segments, seg)
	}
	slices.SortFunc(s.segments, func(a, b *segment) int {
		if a.head.First != b.head.First {
			if a.head.First < b.head.First {
				return -1
			}
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	s.next = 1
	for i, seg := range s.segments {
		if i+1 < len(s.segments) {
			seg.last = min(seg.last, s.segments[i+1].head.First-1)
		}
		s.next = max(s.next, seg.last+1, seg.head.First)
	}
	return nil
}

func (s *Spool) recount() {
	s.unsettled = int64(len(s.state.exceptions))
	for _, seg := range s.segments {
		if c := s.cursorOf(seg); seg.last > c.Record {
			s.unsettled += int64(seg.last - c.Record)
		}
	}
	s.stateLen = diskBytes(s.state.path)
}

func (s *Spool) cursorOf(seg *segment) cursor {
	c, ok := s.state.cursors[seg.name]
	if !ok {
		c.Record = seg.head.First - 1
	}
	return c
}

// rebuild fills the local rule's memory and the prefilter from the newest records backwards, until one is
// older than the horizon. Records of another boot are needed only for the doubt after an unclean stop.
func (s *Spool) rebuild() error {
	now := s.opts.Boot()
	var newest []*Record // newest first
	equal := map[[32]byte]time.Duration{}
	var passed time.Duration // time that surely lies between the record looked at and the end of the chain
	for i := len(s.segments) - 1; i >= 0 && passed <= s.opts.Horizon; i-- {
		seg := s.segments[i]
		sameBoot := seg.head.BootID == s.opts.BootID
		var last, first time.Duration
		done := false
		if err := seg.scanBack(func(r *Record) bool {
			if last == 0 {
				last = r.Boot
				seg.newest = last
			}
			first = r.Boot
			if sameBoot && now-r.Boot > s.opts.Horizon || last-r.Boot > s.opts.Horizon {
				done = true
				return false
			}
			if sameBoot {
				equal[r.Physical.Hash] = max(equal[r.Physical.Hash], r.Boot)
			}
			if s.unclean && !r.IsDuplicate() {
				if _, ok := s.recent.doubts[r.Scanner]; !ok {
					s.recent.doubts[r.Scanner] = doubt{acc: acceptanceOf(r), bootID: seg.head.BootID, boot: r.Boot, at: r.At, quality: r.Quality}
				}
			}
			if sameBoot && !r.IsDuplicate() {
				newest = append(newest, r)
			}
			return true
		}); err != nil {
			return err
		}
		passed += last - first
		if err := seg.close(); err != nil {
			return err
		}
		if done {
			break
		}
	}
	for _, r := range slices.Backward(newest) {
		a := acceptanceOf(r)
		a.equal = max(a.equal, equal[a.physical.Hash])
		s.recent.add(a, now)
		s.filter.Add(now, a.physical, a.keys.Idem, a.keys.Edge)
	}
	for _, d := range s.recent.doubts {
		s.filter.Add(now, d.acc.physical)
	}
	s.filter.SetComplete()
	return nil
}

// Mark is the clock's state that the run before left, and HighWater the highest t in any record.
func (s *Spool) Mark() (m window.Mark, highWater window.UTC) {
	highWater = s.state.counters.High
	for i := len(s.segments) - 1; i >= 0; i-- {
		if seg := s.segments[i]; seg.count() > 0 {
			if rs, err := seg.read(seg.last, seg.last, 1); err == nil && len(rs) == 1 {
				highWater = max(highWater, rs[0].At)
			}
			break
		}
	}
	return s.side.Clock, highWater
}

// Unclean says that the run before did not close the spool.
func (s *Spool) Unclean() bool { return s.unclean }

// Begin starts a new epoch: the sidecar that announces it, then its first segment. Records may be taken in
// afterwards.
func (s *Spool) Begin(clock *window.Clock) error {
	s.clock = clock
	s.newEpoch()
	s.side.Version, s.side.Agent, s.side.Clean, s.side.HasState = codecVersion, s.opts.Agent, false, true
	s.dropEmpty()
	s.makeReserve() // a full disk shows at the first scan
	return s.roll()
}

func (s *Spool) newEpoch() {
	var b [8]byte
	rand.Read(b[:])
	s.side.Epoch = hex.EncodeToString(b[:])
	s.mu.Lock()
	s.epoch = s.side.Epoch
	s.mu.Unlock()
}

// dropEmpty removes segments that never took a record or note.
func (s *Spool) dropEmpty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = slices.DeleteFunc(s.segments, func(seg *segment) bool {
		if seg == s.active || seg.count() > 0 || seg.notes > 0 {
			return false
		}
		seg.close()
		return os.Remove(seg.path) == nil
	})
}

// roll begins a new segment. The sidecar names it first.
func (s *Spool) roll() error {
	s.mu.Lock()
	first := s.next
	chain := s.segments
	s.mu.Unlock()
	if n := len(chain); n > 0 && chain[n-1].head.First == first && chain[n-1].head.Epoch == s.side.Epoch {
		// The one before was broken before it took anything. Its name must not come again.
		s.newEpoch()
	}
	head := segmentHead{Agent: s.opts.Agent, Epoch: s.side.Epoch, First: first, BootID: s.opts.BootID, Created: s.clock.Now().T}
	if err := s.writeSidecar(segmentEntry{}); err != nil {
		return err
	}
	seg, err := createSegment(s.dir, s.opts.Keys, head)
	if err != nil {
		return err
	}
	if err := s.writeSidecar(segmentEntry{seg.name, first}); err != nil {
		seg.close()
		os.Remove(seg.path)
		return err
	}
	s.mu.Lock()
	s.segments = append(s.segments, seg)
	s.mu.Unlock()
	s.active = seg
	return nil
}

// writeSidecar writes the chain as it is, with one more segment if add names one.
func (s *Spool) writeSidecar(add segmentEntry) error {
	s.side.Clock = s.clock.Mark(reserveAhead)
	s.side.Segments = s.side.Segments[:0]
	s.mu.Lock()
	for _, seg := range s.segments {
		s.side.Segments = append(s.side.Segments, segmentEntry{seg.name, seg.head.First})
	}
	s.mu.Unlock()
	if add.Name != "" {
		s.side.Segments = append(s.side.Segments, add)
	}
	return s.side.write(s.dir)
}

// Maintain does what can wait until no scan is waiting: it renews the reservation of t, unlinks what Prune
// has set aside, ends a settled active segment that stands in the way of new scans, and rebuilds the reserve
// that a full disk has used up.
func (s *Spool) Maintain() error {
	s.mu.Lock()
	inTheWay := s.active != nil && s.active.count() > 0 && s.tight() && s.finished(s.active)
	s.mu.Unlock()
	var errs []error
	if s.reserve == reserveSpent {
		if err := s.makeReserve(); err != nil {
			return nil // the disk is still full: nothing below could be written
		}
	}
	if inTheWay {
		errs = append(errs, s.roll())
	}
	errs = append(errs, s.unlink())
	if s.clock.Now().T.Add(reserveAgain) >= s.side.Clock.Reserved {
		errs = append(errs, s.writeSidecar(segmentEntry{}))
	}
	return errors.Join(errs...)
}

const (
	reserveName  = "reserve"
	reserveBytes = 2 << 20
)

// The reserve is a file that is given up when the disk is full, so that the drain, which is what makes room,
// can go on writing. While it is spent nothing new is accepted.
const (
	reserveNone = iota // the file system has no way to set space aside
	reserveKept
	reserveSpent
)

func (s *Spool) makeReserve() error {
	path := filepath.Join(s.dir, reserveName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, reserveBytes); err != nil {
		if IsNoSpace(err) {
			os.Remove(path)
			s.setReserve(reserveSpent)
			return err
		}
		s.setReserve(reserveNone)
		return nil
	}
	s.setReserve(reserveKept)
	return nil
}

func (s *Spool) spendReserve() {
	if s.reserve == reserveKept {
		os.Remove(filepath.Join(s.dir, reserveName))
		s.setReserve(reserveSpent)
	}
}

func (s *Spool) setReserve(r int) {
	s.mu.Lock()
	s.reserve = r
	s.mu.Unlock()
}

// Epoch names the run of the spool, 16 hexadecimal digits.
func (s *Spool) Epoch() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Wake is signalled after every commit.
func (s *Spool) Wake() <-chan struct{} { return s.wake }

// Close closes the spool. A clean close says that every answer was told.
func (s *Spool) Close(clean bool) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	var err error
	if s.clock != nil {
		s.active = nil
		s.dropEmpty()
		s.side.Clean = clean
		err = s.writeSidecar(segmentEntry{})
	}
	return errors.Join(err, s.closeFiles())
}

func (s *Spool) closeFiles() error {
	var errs []error
	for _, seg := range s.segments {
		errs = append(errs, seg.close())
	}
	if s.state != nil {
		errs = append(errs, s.state.close())
	}
	return errors.Join(errs...)
}

// Stats is a snapshot of the spool's figures.
type Stats struct {
	Epoch       string
	Captured    int64 // sequence numbers given, less those that no count covers
	Committed   int64
	Suppressed  int64
	Pending     int64
	Held        int64
	Quarantined int64
	Unaccounted int64
	Unsettled   int64 // pending, held and quarantined: what the bound on records counts
	MaxRecords  int64
	Bytes       int64
	MaxBytes    int64
	Segments    int
	Oldest      window.UTC // captured time of the oldest pending record; 0 if there is none
}

// Fill is how full the spool is, by records or bytes, whichever is nearer to its bound.
func (st Stats) Fill() float64 {
	return max(float64(st.Unsettled)/float64(st.MaxRecords), float64(st.Bytes)/float64(st.MaxBytes))
}

// Stats returns the spool's figures.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.counters
	st := Stats{Epoch: s.epoch, Captured: int64(s.next - 1 - c.Base), Committed: int64(c.Committed), Suppressed: int64(c.Suppressed),
		Unaccounted: int64(c.Unaccounted), Unsettled: s.unsettled, MaxRecords: s.opts.MaxRecords, Bytes: s.bytes(),
		MaxBytes: s.opts.MaxBytes, Segments: len(s.segments)}
	for _, x := range s.state.exceptions {
		switch x.State {
		case Quarantined:
			st.Quarantined++
		case Held:
			st.Held++
		}
	}
	st.Pending = s.unsettled - st.Held - st.Quarantined
	if st.Pending > 0 {
		st.Oldest = s.oldest()
	}
	return st
}

func (s *Spool) bytes() int64 {
	n := s.stateLen
	for _, seg := range s.segments {
		n += seg.bytes
	}
	return n
}

// oldest needs mu.
func (s *Spool) oldest() window.UTC {
	var first uint64
	var seg *segment
	for _, x := range s.state.exceptions {
		if (first == 0 || x.Seq < first) && x.State != Quarantined && x.State != Held {
			first, seg = x.Seq, s.byName(x.Segment)
		}
	}
	for _, g := range s.segments {
		if c := s.cursorOf(g); g.last > c.Record {
			if first == 0 || c.Record+1 < first {
				first, seg = c.Record+1, g
			}
			break
		}
	}
	if seg == nil {
		return 0
	}
	if rs := s.fromTail(first, 1); len(rs) == 1 {
		return rs[0].At
	}
	rs, err := seg.read(first, first, 1)
	if err != nil || len(rs) == 0 {
		return 0
	}
	return rs[0].At
}

func (s *Spool) byName(name string) *segment {
	for _, seg := range s.segments {
		if seg.name == name {
			return seg
		}
	}
	return nil
}

func (s *Spool) segmentOf(seq uint64) *segment {
	for _, seg := range slices.Backward(s.segments) {
		if seg.head.First <= seq {
			return seg
		}
	}
	return nil
}

// fromTail needs mu. The records are shared and must not be changed.
func (s *Spool) fromTail(from uint64, n int) []Record {
	if len(s.tail) == 0 || from < s.tail[0].Seq {
		return nil
	}
	i := from - s.tail[0].Seq
	if i >= uint64(len(s.tail)) {
		return nil
	}
	return s.tail[i:min(i+uint64(n), uint64(len(s.tail)))]
}
