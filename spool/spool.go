// Package spool is the durable outbox: a chain of bbolt segments that only grow, and one small state.db that
// says what has become of the records. Nothing is accepted before it is on disk, and nothing leaves before a
// row in the ledger shares its keys.
package spool

import (
	"cmp"
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

// Options are the spool's settings. All are required but the last two.
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
	ReadOnly       bool          // to look at a spool that no agent holds: nothing is written, Begin is refused
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
	recent  *recent
	filter  *bloom.Filter
	clock   *window.Clock
	side    sidecar
	active  *segment
	waiting []Line     // notes for which there is no room yet
	begun   bool       // Begin has succeeded: until then the run before is not over
	strays  []string   // files that a crash left behind
	steps   uint64     // of the clock, when the sidecar was written
	high    window.UTC // highest t in the records that were read at the start

	wake chan struct{}

	mu        sync.Mutex
	state     *state
	segments  []*segment        // oldest first; the active one is last
	pruned    []*segment        // settled and old, to be unlinked
	merged    map[string]cursor // cursors that are on disk with the next settlement
	next      uint64            // sequence number of the next record
	unsettled int64
	tail      []Record
	stateLen  int64
	unclean   bool
	closed    bool
	reserve   int // written by the intake alone
	epoch     string
	began     time.Duration
}

// spoolFiles lists the names of the sealed files and of the sidecar.
func spoolFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the spool folder: %w", err)
	}
	for _, e := range entries {
		if n := e.Name(); n == sidecarName || n == stateName || filepath.Ext(n) == segmentExt {
			names = append(names, n)
		}
	}
	return names, nil
}

// Open opens the spool in dir, or makes it. It reads what the run before left and rebuilds the local rule's
// memory; it writes no record and changes no segment. A *WrongKeyError leaves everything as it is.
func Open(dir string, o Options) (*Spool, error) {
	if !o.ReadOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the spool folder: %w", err)
		}
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
	s.side = side
	if found && side.Agent != o.Agent {
		return nil, fmt.Errorf("cannot use this spool: it belongs to agent %s, and this agent is %s", side.Agent, o.Agent)
	}
	if err := s.openSegments(found); err != nil {
		s.closeFiles()
		return nil, err
	}
	s.unclean = !side.Clean && (found || len(s.segments) > 0)
	if s.state, err = openState(dir, o.Keys, o.Agent, &s.mu, !side.HasState, o.ReadOnly); err != nil {
		s.closeFiles()
		return nil, err
	}
	if s.state.made && len(s.segments) > 0 && s.segments[0].head.First > 1 { // the one that knew of them is lost
		if err := s.state.apply(&settlement{counters: counters{Base: s.segments[0].head.First - 1}}); err != nil {
			s.closeFiles()
			return nil, err
		}
	}
	s.recount()
	if err := s.rebuild(); err != nil {
		s.closeFiles()
		return nil, err
	}
	return s, nil
}

// openSegments opens the chain. Where a later segment begins, an earlier one ends: what it holds beyond that
// was never acknowledged. The sidecar's order counts: a segment that broke before it took anything begins at
// the same number as the one after it.
func (s *Spool) openSegments(found bool) error {
	names, err := spoolFiles(s.dir)
	if err != nil {
		return err
	}
	place := map[string]int{}
	for i, e := range s.side.Segments {
		if !slices.Contains(names, e.Name) {
			return fmt.Errorf("cannot open the spool: the segment %s is missing; put it back, or remove its line from %s to go on without its records", e.Name, sidecarName)
		}
		place[e.Name] = i
	}
	for _, name := range names {
		if filepath.Ext(name) != segmentExt {
			continue
		}
		if _, named := place[name]; found && !named {
			s.strays = append(s.strays, name)
			continue
		}
		seg, err := openSegment(s.dir, name, s.opts.Keys)
		if err != nil {
			return err
		}
		s.segments = append(s.segments, seg)
	}
	slices.SortFunc(s.segments, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(place[a.name], place[b.name]), cmp.Compare(a.head.First, b.head.First),
			cmp.Compare(a.head.Created, b.head.Created), cmp.Compare(a.name, b.name))
	})
	s.next = max(1, s.side.Next)
	for i, seg := range s.segments {
		if i+1 < len(s.segments) {
			seg.last = min(seg.last, s.segments[i+1].head.First-1)
		} else if s.side.Next != 0 {
			seg.last = min(seg.last, s.side.Next-1)
		}
		s.next = max(s.next, seg.last+1, seg.head.First)
	}
	return nil
}

// clear takes away what a crash left behind. A stray whose cursor stands was settled when it was to be unlinked.
// Any other was hardly used, and is not opened to find out: it may be half made. It is kept aside.
func (s *Spool) clear() {
	for _, name := range s.strays {
		if _, settled := s.state.cursors[name]; settled {
			os.Remove(filepath.Join(s.dir, name))
		} else {
			setAside(s.dir, name)
		}
	}
	s.strays = nil
	if tmp, err := os.ReadDir(s.dir); err == nil {
		for _, e := range tmp {
			if strings.HasPrefix(e.Name(), sidecarName+tmpMark) {
				os.Remove(filepath.Join(s.dir, e.Name()))
			}
		}
	}
}

func (s *Spool) recount() {
	s.unsettled = int64(len(s.state.exceptions))
	for _, seg := range s.segments {
		s.unsettled += s.openIn(seg)
	}
	// Every record counted has had a number, also if its segment is gone.
	c := &s.state.counters
	s.next = max(s.next, c.Base+c.Committed+c.Suppressed+c.Unaccounted+uint64(s.unsettled)+1)
	s.stateLen = diskBytes(s.state.path)
}

// cursorOf is the progress in a segment, with what was settled ahead once the cursor has come to it. It needs
// mu.
func (s *Spool) cursorOf(seg *segment) cursor {
	c, ok := s.state.cursors[seg.name]
	if !ok {
		c.Record = seg.head.First - 1
	}
	if a := s.state.counters; a.AheadFrom != 0 && c.Record+1 >= a.AheadFrom {
		c.Record = max(c.Record, min(seg.last, a.AheadTo))
	}
	return c
}

// openIn counts the records of a segment that no settlement has covered. It needs mu.
func (s *Spool) openIn(seg *segment) int64 {
	c, a := s.cursorOf(seg), s.state.counters
	if seg.last <= c.Record {
		return 0
	}
	n := int64(seg.last - c.Record)
	if from, to := max(a.AheadFrom, c.Record+1), min(a.AheadTo, seg.last); a.AheadFrom != 0 && from <= to {
		n -= int64(to - from + 1)
	}
	return n
}

// rebuild fills the local rule's memory and the prefilter from the newest records backwards, until one is
// older than the horizon.
func (s *Spool) rebuild() error {
	now := s.opts.Boot()
	var newest []*acceptance // newest first
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
			}
			first = r.Boot
			seg.newest = max(seg.newest, r.Boot)
			s.high = max(s.high, r.At)
			if sameBoot && now-r.Boot > s.opts.Horizon || last-r.Boot > s.opts.Horizon {
				done = true
				return false
			}
			if _, ok := s.recent.doubts[r.Scanner]; s.unclean && !ok {
				s.recent.doubts[r.Scanner] = &doubt{acc: acceptanceOf(r), bootID: seg.head.BootID, boot: r.Boot, at: r.At, quality: r.Quality}
			}
			switch {
			case !sameBoot && !r.IsDuplicate():
				// Never matched: only its keys count, which a clock that was ahead could meet again.
				a := acceptanceOf(r)
				a.anchor, a.equal, a.span = now, now, 0
				newest = append(newest, a)
			case sameBoot:
				equal[r.Physical.Hash] = max(equal[r.Physical.Hash], r.Boot)
				if !r.IsDuplicate() || r.Reason == ReasonInDoubt {
					newest = append(newest, acceptanceOf(r))
				}
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
	for _, a := range slices.Backward(newest) {
		a.equal = max(a.equal, equal[a.physical.Hash])
		s.recent.add(a, now)
		s.filter.Add(now, a.physical, a.keys.Idem, a.keys.Edge)
	}
	s.filter.SetComplete()
	return nil
}

// Mark is the clock's state that the run before left, and highWater the highest t in what was read.
func (s *Spool) Mark() (m window.Mark, highWater window.UTC) {
	return s.side.Clock, max(s.state.counters.High, s.high)
}

// Unclean says that the run before did not close the spool.
func (s *Spool) Unclean() bool { return s.unclean }

// Begin starts a new epoch: its first segment, and the sidecar that names it. Records may be taken in
// afterwards.
func (s *Spool) Begin(clock *window.Clock) error {
	if s.opts.ReadOnly {
		return errors.New("cannot begin: the spool is open for reading only")
	}
	s.clock = clock
	s.newEpoch()
	s.side.Version, s.side.Agent, s.side.Clean, s.side.HasState = codecVersion, s.opts.Agent, false, true
	s.clear()
	s.dropEmpty()
	s.makeReserve() // a full disk shows at the first scan
	err := s.roll()
	if IsNoSpace(err) && s.reserve == reserveKept {
		s.spendReserve()
		err = s.roll()
	}
	if err != nil {
		return err
	}
	s.begun = true
	if err := s.unlink(); !IsNoSpace(err) {
		return err
	}
	return nil // Maintain tries again
}

func (s *Spool) newEpoch() {
	var b [8]byte
	rand.Read(b[:])
	s.side.Epoch = hex.EncodeToString(b[:])
	s.mu.Lock()
	s.epoch = s.side.Epoch
	s.mu.Unlock()
}

// dropEmpty sets the segments aside that never took a record or note.
func (s *Spool) dropEmpty() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = slices.DeleteFunc(s.segments, func(seg *segment) bool {
		if seg == s.active || seg.count() > 0 || seg.notes > 0 {
			return false
		}
		s.pruned = append(s.pruned, seg)
		return true
	})
}

// roll begins a new segment, and stops writing the one before.
func (s *Spool) roll() error {
	s.mu.Lock()
	first := s.next
	chain := s.segments
	s.mu.Unlock()
	if n := len(chain); n > 0 && chain[n-1].head.First == first && chain[n-1].head.Epoch == s.side.Epoch {
		s.newEpoch() // the one before took no record: its name must not come again
	}
	head := segmentHead{Agent: s.opts.Agent, Epoch: s.side.Epoch, First: first, BootID: s.opts.BootID, Created: s.clock.Now().T}
	seg, err := createSegment(s.dir, s.opts.Keys, head)
	if err != nil {
		return err
	}
	if err := s.writeSidecar(segmentEntry{seg.name, first}); err != nil {
		// The sidecar may name it all the same: it goes when one that does not is surely in place.
		seg.close()
		s.newEpoch()
		s.mu.Lock()
		s.pruned = append(s.pruned, seg)
		s.mu.Unlock()
		return err
	}
	s.mu.Lock()
	before := s.active
	s.segments = append(s.segments, seg)
	s.active = seg
	s.mu.Unlock()
	if before != nil {
		before.close() // only read from now on, and mapped only for that
	}
	return nil
}

// writeSidecar writes the chain as it is, with one more segment if add names one.
func (s *Spool) writeSidecar(add segmentEntry) error {
	s.steps = s.clock.Stats().Steps
	s.side.Clock = s.clock.Mark(reserveAhead)
	s.side.Segments = s.side.Segments[:0]
	s.mu.Lock()
	for _, seg := range s.segments {
		s.side.Segments = append(s.side.Segments, segmentEntry{seg.name, seg.head.First})
	}
	s.side.Next = 0
	if s.active == nil && add.Name == "" {
		s.side.Next = s.next
	}
	s.mu.Unlock()
	if add.Name != "" {
		s.side.Segments = append(s.side.Segments, add)
	}
	return s.side.write(s.dir)
}

// Maintain does what can wait until no scan is waiting: it renews the reservation of t, also when the clock
// has stepped back, unlinks what Prune has set aside, ends a settled active segment that stands in the way of new scans, and rebuilds the reserve
// that a full disk has used up. A disk that is still full is no error. The intake calls it.
func (s *Spool) Maintain() error {
	s.mu.Lock()
	a := s.active
	inTheWay := a != nil && (a.count() > 0 || a.notes > 0) && s.tight() && s.finished(a)
	s.mu.Unlock()
	var errs []error
	try := func(err error) {
		if !IsNoSpace(err) || s.reserve != reserveSpent {
			errs = append(errs, err)
		}
	}
	try(s.unlink()) // first, since it makes room
	if s.reserve == reserveSpent {
		s.makeReserve()
	}
	if inTheWay {
		try(s.roll())
	}
	try(s.noteLate())
	if s.clock.Now().T.Add(reserveAgain) >= s.side.Clock.Reserved || s.clock.Stats().Steps != s.steps {
		try(s.writeSidecar(segmentEntry{}))
	}
	return errors.Join(errs...)
}

const (
	reserveName  = "reserve"
	reserveBytes = 2 << 20
	reserveSlack = 1 << 20 // free beside the reserve, or new scans would only spend it again
)

// The reserve is a file that is given up when the disk is full, so that the drain, which is what makes room,
// can go on writing. While it is spent nothing new is accepted.
const (
	reserveNone = iota // the file system has no way to set space aside
	reserveKept
	reserveSpent
)

func (s *Spool) makeReserve() {
	path := filepath.Join(s.dir, reserveName)
	if diskBytes(path) < reserveBytes {
		if free, err := freeBytes(s.dir); err == nil && free < reserveBytes+reserveSlack {
			os.Remove(path)
			s.setReserve(reserveSpent) // trying would take the room that the drain needs, if only for a moment
			return
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		if !IsNoSpace(err) {
			s.setReserve(reserveNone)
		}
		return
	}
	defer f.Close()
	switch err := syscall.Fallocate(int(f.Fd()), 0, 0, reserveBytes); {
	case err == nil:
		s.setReserve(reserveKept)
	case IsNoSpace(err):
		os.Remove(path)
		s.setReserve(reserveSpent)
	default:
		s.setReserve(reserveNone)
	}
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
	if s.begun {
		s.active = nil
		s.dropEmpty()
		s.side.Clean = clean
		if err = s.writeSidecar(segmentEntry{}); err == nil {
			err = s.unlink()
		}
	}
	return errors.Join(err, s.closeFiles())
}

func (s *Spool) closeFiles() error {
	var errs []error
	for _, seg := range slices.Concat(s.segments, s.pruned) {
		errs = append(errs, seg.end())
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
	Accepting   bool       // the next scan would not be refused for want of room
	Oldest      window.UTC // captured time of the oldest pending record; 0 if there is none
}

// Fill is how full the spool is, by records or bytes, whichever is nearer to its bound.
func (st Stats) Fill() float64 {
	return fill(st.Unsettled, st.MaxRecords, st.Bytes, st.MaxBytes)
}

// Stats returns the spool's figures.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	c := s.state.counters
	st := Stats{Epoch: s.epoch, Captured: int64(s.next - 1 - c.Base), Committed: int64(c.Committed), Suppressed: int64(c.Suppressed),
		Unaccounted: int64(c.Unaccounted), Unsettled: s.unsettled, MaxRecords: s.opts.MaxRecords, Bytes: s.bytes(),
		MaxBytes: s.opts.MaxBytes, Segments: len(s.segments),
		Accepting: !s.closed && s.reserve != reserveSpent && s.unsettled < s.opts.MaxRecords && s.bytes() < s.opts.MaxBytes}
	for _, x := range s.state.exceptions {
		switch x.State {
		case Quarantined:
			st.Quarantined++
		case Held:
			st.Held++
		}
	}
	st.Pending = s.unsettled - st.Held - st.Quarantined
	oldest := s.oldest()
	s.mu.Unlock()
	if st.Pending > 0 {
		if r, err := s.Load(oldest); err == nil {
			st.Oldest = r.At
		}
	}
	return st
}

// bytes needs mu.
func (s *Spool) bytes() int64 {
	n := s.stateLen
	for _, seg := range s.segments {
		n += seg.bytes
	}
	return n
}

// oldest is the first pending record, 0 if there is none. It needs mu.
func (s *Spool) oldest() (first uint64) {
	for _, x := range s.state.exceptions {
		if (first == 0 || x.Seq < first) && x.State != Quarantined && x.State != Held {
			first = x.Seq
		}
	}
	for _, g := range s.segments {
		if c := s.cursorOf(g); g.last > c.Record {
			if first == 0 || c.Record < first {
				first = c.Record + 1
			}
			break
		}
	}
	return first
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
