// Package spool is the durable outbox: a chain of bbolt segments that only grow, and one small state.db that
// says what has become of the records. Nothing is accepted before it is on disk, and nothing leaves before a
// row in the ledger shares its keys.
package spool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"scanonce/bloom"
	"scanonce/window"
)

// Options are the spool's settings. All are required down to LocalSpan.
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
	Batches        BatchRule     // none by default
	ReadOnly       bool          // to look at a spool that no agent holds: nothing is written, Begin is refused

	// Wall is the time for what is told before Begin.
	Wall func() time.Time
	// Probe makes the command that runs Probe: a process that may die of a damaged file in place of this one.
	// Without it the files are read here, which is as thorough but for what bbolt itself makes of them.
	Probe func(context.Context) *exec.Cmd

	// Disk runs each durable step: do is the step, and Disk's error counts as its own. nil only runs it. A
	// simulation puts its disk here.
	Disk func(step DiskStep, path string, do func() error) error
}

// DiskStep is a step of the spool after which its folder holds something else.
type DiskStep uint8

// The steps.
const (
	DiskMake    DiskStep = iota // a bbolt file is made with its first content, and its name
	DiskCommit                  // a transaction of a bbolt file
	DiskReplace                 // the sidecar takes the place of the one before
	DiskRemove                  // a file goes; its name may come back after a power cut
)

func (o *Options) durable(step DiskStep, path string, do func() error) error {
	if o.Disk == nil {
		return do()
	}
	return o.Disk(step, path, do)
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
	batches *batches
	clock   *window.Clock
	side    sidecar
	active  *segment
	waiting []Line     // notes for which there is no room yet
	begun   bool       // Begin has succeeded: until then the run before is not over
	strays  []string   // files that a crash left behind
	loose   []*segment // until they are looked at: segments that the sidecar does not name
	steps   uint64     // of the clock, when the sidecar was written
	high    window.UTC // highest t in the records that were read at the start
	margin  bool       // the bound of t is lost: what lies beyond high may have been used
	marks   *markFile
	place   place
	journal *Journal
	boot    [8]byte

	wake   chan struct{}
	coming chan []*Record
	ail    chan struct{} // a segment is sick

	settling sync.Mutex // held through each change of state.db, before mu

	mu        sync.Mutex
	healings  []Healing // not told yet
	renew     bool      // a segment has been salvaged: a new epoch is due
	backups   int       // under way
	state     *state
	segments  []*segment        // oldest first; the active one is last
	pruned    []*segment        // settled and old, to be unlinked
	merged    map[string]cursor // cursors that are on disk with the next settlement
	next      uint64            // sequence number of the next record
	unsettled int64
	tail      []*Record
	gate      uint64 // the first record that is not to be settled yet: it may be of a batch that came before; 0 for none
	stateLen  int64
	unclean   bool
	closed    bool
	reserve   int // written by the intake alone
	epoch     string
	began     time.Duration
	patience  time.Duration // with a child process, beside what the size of the files allows it
}

// spoolFiles lists the names of the sealed files and of the sidecar.
func spoolFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the spool folder: %w", err)
	}
	for _, e := range entries {
		if n := e.Name(); n == sidecarName || n == stateName || n == journalName || filepath.Ext(n) == segmentExt {
			names = append(names, n)
		}
	}
	return names, nil
}

// Open opens the spool in dir, or makes it. It reads what the run before left, heals what is damaged, and
// rebuilds the local rule's memory; it takes no record in. A *WrongKeyError or *SchemaError leaves everything as
// it is, and so does a *DamageError, which only a spool that is opened for reading meets.
func Open(dir string, o Options) (*Spool, error) {
	if !o.ReadOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the spool folder: %w", err)
		}
	}
	if o.FilterKeys == 0 {
		o.FilterKeys = defaultFilter
	}
	s := &Spool{dir: dir, opts: o, wake: make(chan struct{}, 1), coming: make(chan []*Record), ail: make(chan struct{}, 1), recent: newRecent(o.Horizon), batches: newBatches(o.Batches),
		filter: bloom.New(o.FilterKeys, filterRate, o.Horizon), began: o.Boot(), boot: bootHash(o.BootID), patience: probeStart}
	if err := s.open(); err != nil {
		s.closeFiles()
		return nil, err
	}
	return s, nil
}

// open looks at everything first, so that a wrong key or format is found before anything is changed.
func (s *Spool) open() error {
	var harm harm
	var damaged *DamageError
	side, found, err := readSidecar(s.dir)
	if errors.As(err, &damaged) {
		harm.sidecar, found = damaged.Detail, false
	} else if err != nil {
		return err
	}
	s.side = side
	if found && side.Agent != s.opts.Agent {
		return &AgentError{side.Agent, s.opts.Agent}
	}
	if !s.opts.ReadOnly {
		if err := s.clearWay(); err != nil {
			return err
		}
	}
	if err := s.openSegments(found); err != nil {
		return err
	}
	s.unclean = !side.Clean && (found || harm.sidecar != "" || len(s.segments) > 0) ||
		slices.ContainsFunc(s.loose, func(g *segment) bool { return g.first >= s.next })
	if err := s.openState(&harm); err != nil {
		return err
	}
	if err := s.openJournal(harm.operations); err != nil {
		return err
	}
	if err := s.takeIn(&harm); err != nil {
		return err
	}
	if !s.opts.ReadOnly {
		s.marks = openMarks(s.dir)
		if err := s.healAll(&harm); err != nil {
			return err
		}
	}
	if err := s.missed(&harm); err != nil {
		return err
	}
	if s.unclean && !s.opts.ReadOnly {
		if err := s.syncAll(); err != nil {
			return err
		}
	}
	s.recount()
	if err := s.rebuild(); err != nil {
		return err
	}
	if err := s.balance(&harm); err != nil {
		return err
	}
	s.margin = (!found || harm.stale) && s.high != 0
	return nil
}

// openSegments looks at the chain. Where a later segment begins, an earlier one ends: what it holds beyond that
// was never acknowledged. The sidecar's order counts: a segment that broke before it took anything begins at
// the same number as the one after it.
func (s *Spool) openSegments(found bool) error {
	names, err := spoolFiles(s.dir)
	if err != nil {
		return err
	}
	s.segments, s.loose, s.strays = nil, nil, nil
	misplaced := map[string]string{}
	if home := homeOf(s.dir, stateName, s.opts.Keys); home != "" {
		misplaced[stateName] = home
	}
	place, kept, until := map[string]int{}, map[string]*fileHead{}, map[string]uint64{}
	for i, e := range s.side.Segments {
		place[e.Name], kept[e.Name], until[e.Name] = i, e.Head, e.Last
		if !slices.Contains(names, e.Name) {
			names = append(names, e.Name) // it is missing
		}
	}
	for _, name := range names {
		if filepath.Ext(name) != segmentExt {
			continue
		}
		_, named := place[name]
		_, _, ours := parseSegmentName(name)
		loose := found && !named || !ours
		seg, err := openSegment(s.dir, name, s.opts.Keys, kept[name])
		var damaged *DamageError
		errors.As(err, &damaged)
		home := ""
		if err != nil {
			if home = homeOf(s.dir, name, s.opts.Keys); home != "" {
				misplaced[name] = home
			}
		}
		switch {
		case !ours, home != "" && !named:
			s.strays = append(s.strays, name)
			continue
		case loose && err != nil && damaged == nil: // sealed with another key, mostly
			s.loose = append(s.loose, &segment{name: name, path: filepath.Join(s.dir, name), sick: err.Error()})
			continue
		case damaged != nil && (loose || !s.opts.ReadOnly):
			seg.sick = damaged.Detail
		case err != nil:
			return err
		}
		if loose {
			s.loose = append(s.loose, seg)
			continue
		}
		if seg.head != nil && seg.head.Agent != s.opts.Agent {
			return &AgentError{seg.head.Agent, s.opts.Agent}
		}
		seg.until = until[name]
		s.segments = append(s.segments, seg)
	}
	if len(misplaced) > 0 && !s.opts.ReadOnly {
		if moved, err := s.putBack(misplaced); err != nil {
			return err
		} else if moved {
			return s.openSegments(found) // each of them stands in its place now
		}
	}
	slices.SortFunc(s.segments, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(place[a.name], place[b.name]), cmp.Compare(a.first, b.first),
			cmp.Compare(createdOf(a), createdOf(b)), cmp.Compare(a.name, b.name))
	})
	s.next = max(1, s.side.Next)
	for i, seg := range s.segments {
		if i+1 < len(s.segments) {
			seg.last = min(seg.last, seg.bound(s.segments[i+1]))
		} else if s.side.Next != 0 {
			seg.last = min(seg.last, s.side.Next-1)
		}
		s.next = max(s.next, seg.last+1, seg.first)
	}
	return nil
}

// harm is what Open finds damaged.
type harm struct {
	sidecar, state string
	rolledBack     bool   // state.db is not what it was at the end of the last run
	older          bool   // likewise, and it is not a new one either
	next           mark   // how far the last run got for sure
	operations     uint64 // likewise, with the journal
	beyond         uint64 // how far a run got of which no file is left
	gone           uint64 // from here on all was in files at the end of the last run; 0 if that is not known
	stale          bool   // the sidecar is older than the files beside it
}

// openState opens state.db, or makes it: a damaged or missing one anew. Then everything in the chain is sent
// once more, and finds its own rows.
func (s *Spool) openState(harm *harm) error {
	epochs := map[string]bool{s.side.Epoch: true}
	for _, seg := range slices.Concat(s.segments, s.loose) {
		if epoch, _, ok := parseSegmentName(seg.name); ok {
			epochs[epoch] = true
		}
	}
	marks, all := readMarks(s.dir, epochs)
	settled := marks[markSettled]
	harm.next, harm.operations, harm.gone = marks[markNext], marks[markOperations].value, all[markGone].value
	if harm.gone == 0 && all[markNext].times > 0 && all[markSettled].times == 0 {
		harm.gone = 1 // nothing was ever settled
	}
	if next := all[markNext]; next.value > s.next && next.epoch != marks[markNext].epoch {
		harm.beyond, settled = next.value, all[markSettled]
	}
	path := filepath.Join(s.dir, stateName)
	fi, serr := os.Stat(path)
	must := s.side.HasState || len(s.segments) > 0 || harm.sidecar != ""
	var err error
	var damaged *DamageError
	switch {
	case serr == nil && !fi.Mode().IsRegular(), leadsAstray(serr), errors.Is(serr, fs.ErrNotExist) && occupied(path):
		err = &DamageError{stateName, "it is no file"}
	case serr == nil && fi.Size() > 0 || serr == nil && s.side.HasState:
		// Read here first: a wrong key or format is not for the child to find.
		r, rerr := openRaw(filepath.Join(s.dir, stateName), stateName)
		if err = rerr; err == nil {
			err = headOnly(r, s.opts.Keys, s.side.State)
			r.close()
		}
		if err == nil {
			files := []probeFile{{stateName, s.side.State}}
			if s.unclean {
				err = s.probe(context.Background(), files)[0]
			} else {
				_, err = inspect(s.dir, stateName, s.opts.Keys, s.side.State)
			}
		}
	case errors.Is(serr, fs.ErrNotExist) && must, serr == nil && must:
		err = &DamageError{stateName, "it is missing or empty"}
	case serr != nil && !errors.Is(serr, fs.ErrNotExist):
		err = fmt.Errorf("cannot open %s: %w", stateName, serr)
	}
	if errors.As(err, &damaged) {
		if s.opts.ReadOnly {
			return err
		}
		if must || serr != nil {
			harm.state = damaged.Detail
		}
	} else if err != nil {
		return err
	}
	var aside string
	if damaged != nil && occupied(path) {
		if aside, err = keepAside(s.dir, stateName, true); err != nil {
			return fmt.Errorf("cannot set the damaged %s aside: %w", stateName, err)
		}
	}
	open := func() (err error) {
		s.state, err = openState(s.dir, s.opts.Keys, s.opts.Agent, &s.mu, damaged != nil || serr != nil || fi.Size() == 0, s.opts.ReadOnly)
		return err
	}
	if damaged == nil && serr == nil && fi.Size() > 0 || s.opts.ReadOnly {
		err = open()
	} else {
		if err = s.opts.durable(DiskMake, path, open); IsNoSpace(err) { // the reserve is for such a day
			os.Remove(path)
			os.Remove(filepath.Join(s.dir, reserveName))
			err = s.opts.durable(DiskMake, path, open)
		}
	}
	if err != nil {
		return err
	}
	s.place.state, _ = os.Stat(path)
	s.state.commit = func(do func() error) error { return s.opts.durable(DiskCommit, s.state.path, do) }
	last := max(settled.value, s.side.Settled)
	harm.older = !s.state.made && (last > s.state.settled || s.side.Copy)
	harm.rolledBack = s.state.made || harm.older
	s.state.settled = max(s.state.settled, last)
	if harm.state != "" {
		s.healings = append(s.healings, Healing{File: stateName, Detail: harm.state, Aside: aside})
		return s.state.apply(&settlement{lines: []Line{s.notice(0)}, numbered: true}) // or the next start would take it for older
	}
	return nil
}

// syncAll makes durable what a process that was killed has written and not synced: it is read from the cache as if it
// were on disk, is told of and relied on, and a power cut would take it back.
func (s *Spool) syncAll() error {
	names := []string{stateName, sidecarName}
	for _, seg := range s.segments {
		names = append(names, seg.name)
	}
	for _, name := range names {
		if err := syncFile(filepath.Join(s.dir, name)); err != nil {
			return fmt.Errorf("cannot make sure of %s: %w", name, err)
		}
	}
	if s.journal.size > 0 {
		if err := s.opts.durable(DiskCommit, s.journal.path, func() error { return syncFile(s.journal.path) }); err != nil {
			return fmt.Errorf("cannot make sure of %s: %w", journalName, err)
		}
	}
	return syncDir(s.dir)
}

// syncFile syncs a file by its name; one that is not there is no error.
func syncFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// headOnly judges a file's header.
func headOnly(r *raw, ring *KeyRing, kept *fileHead) error {
	buckets, err := r.root()
	if err == nil {
		var header, proof []byte
		if header, proof, err = r.headOf(buckets); err == nil {
			_, _, err = unlock(ring, r.name, header, proof, kept)
		}
	}
	return err
}

// healAll salvages the segments that are damaged, as far as that shows without reading all of them. The last
// one with records is read completely after an unclean stop.
func (s *Spool) healAll(harm *harm) error {
	if harm.sidecar != "" {
		aside, err := keepAside(s.dir, sidecarName, false)
		if err != nil && !IsNoSpace(err) {
			return fmt.Errorf("cannot set the damaged sidecar aside: %w", err)
		}
		s.healings = append(s.healings, Healing{File: sidecarName, Detail: harm.sidecar, Aside: aside})
	}
	exact := harm.next.boot == s.boot && harm.next.value != 0
	for i, seg := range slices.Backward(s.segments) {
		c := claims{last: seg.first - 1, most: 1<<63 - 1}
		s.mu.Lock()
		if cur, ok := s.state.cursors[seg.name]; ok {
			c.last, c.note = max(c.last, cur.Record), cur.Note
		}
		for _, x := range s.state.exceptions {
			if x.Segment == seg.name {
				c.last = max(c.last, x.Seq)
			}
		}
		s.mu.Unlock()
		if i+1 < len(s.segments) {
			c.most = seg.bound(s.segments[i+1])
			// Without the sidecar, what is missing behind a segment that is settled to its end may have been settled and
			// unlinked: the counts tell whether it was.
			if settled := s.storedCursor(seg).Record; seg.until != 0 || harm.rolledBack || settled < seg.last || seg.count() == 0 {
				c.last = c.most
			}
		} else {
			if s.side.Next != 0 {
				c.most = s.side.Next - 1
				c.last = max(c.last, c.most)
			}
			if harm.next.value > 0 {
				c.last = max(c.last, min(harm.next.value-1, c.most))
				c.exact = exact
			}
			if a := s.state.counters; a.AheadFrom != 0 && !harm.rolledBack {
				c.last = max(c.last, min(a.AheadTo, c.most))
			}
		}
		c.last = min(max(c.last, seg.first-1), c.most)
		if seg.sick == "" && seg.last < c.last {
			seg.sick = fmt.Sprintf("it ends with record %d, and %d had been accepted", seg.last, c.last)
		}
		if seg.sick == "" && seg.notes < c.note {
			seg.sick = fmt.Sprintf("it ends with note %d, and %d had been written", seg.notes, c.note)
		}
		if seg.sick == "" && s.unclean && s.lastWithRecords(i) {
			var damaged *DamageError
			if err := s.probe(context.Background(), []probeFile{s.fileOf(seg)})[0]; errors.As(err, &damaged) {
				seg.sick = damaged.Detail
			} else if err != nil {
				return err
			} else {
				seg.sound = true
			}
		}
		if seg.sick == "" {
			continue
		}
		c.detail, c.note = seg.sick, max(c.note, seg.notes)
		if err := s.healAtStart(seg, c); err != nil {
			return err
		}
	}
	return s.dropLost()
}

// healAtStart salvages a segment; on a full disk it stays sick, and Tend tries again.
func (s *Spool) healAtStart(seg *segment, c claims) error {
	h, err := s.salvage(seg, c)
	if err != nil && !IsNoSpace(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = max(s.next, seg.last+1)
	if err == nil {
		s.healings = append(s.healings, h)
	}
	return nil
}

// lastWithRecords says that segment i is the last one that holds any.
func (s *Spool) lastWithRecords(i int) bool {
	for _, seg := range s.segments[i+1:] {
		if seg.count() > 0 || seg.notes > 0 {
			return false
		}
	}
	return true
}

// balance accounts for sequence numbers that nothing explains any more: whole segments are gone whose names
// nobody knows, and then they are lost; or state.db went back, and what it does not know of was settled.
func (s *Spool) balance(harm *harm) error {
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	c := s.state.counters
	final := []uint64{}
	for seq, x := range s.state.exceptions {
		if s.segmentNamed(x.Segment) == nil { // it was final when its segment was unlinked
			final = append(final, seq)
		}
	}
	open := s.unsettled - int64(len(final))
	free := int64(s.next-1-c.Base) - int64(c.final()+s.unaccounted()) - open
	s.mu.Unlock()
	if free <= 0 && len(final) == 0 && !harm.older || s.opts.ReadOnly {
		return nil
	}
	if free > 0 && !harm.rolledBack && len(final) == 0 {
		c.Unaccounted += uint64(free)
		s.healings = append(s.healings, Healing{File: "a segment", Detail: "it is missing, and nothing names it", Unaccounted: free})
	} else if free > 0 {
		c.Base += uint64(free)
	}
	st := settlement{counters: c, final: final, applied: func() { s.unsettled = open }}
	if free > 0 && !harm.rolledBack {
		st.lines = []Line{s.notice(int(free))}
	}
	if harm.older {
		s.wentBack(&st, max(0, free))
	}
	return s.state.apply(&st)
}

// clear takes away what a crash left behind. A stray whose cursor stands was settled when it was to be unlinked.
// Any other was hardly used, and is not opened to find out: it may be half made. It is kept aside.
func (s *Spool) clear() {
	for _, name := range s.strays {
		if _, settled := s.state.cursors[name]; settled {
			path := filepath.Join(s.dir, name)
			s.opts.durable(DiskRemove, path, func() error { return os.Remove(path) })
		} else {
			keepAside(s.dir, name, true)
		}
	}
	s.strays = nil
	if tmp, err := os.ReadDir(s.dir); err == nil {
		for _, e := range tmp {
			if strings.Contains(e.Name(), tmpMark) {
				os.Remove(filepath.Join(s.dir, e.Name()))
			}
		}
	}
}

func (s *Spool) recount() {
	s.recountOpen()
	// Every record counted has had a number, also if its segment is gone.
	c := &s.state.counters
	s.next = max(s.next, c.Base+c.final()+s.unaccounted()+uint64(s.unsettled)+1)
	s.stateLen = diskBytes(s.state.path)
}

// recountOpen needs mu.
func (s *Spool) recountOpen() {
	s.unsettled = int64(len(s.state.exceptions))
	for _, seg := range s.segments {
		s.unsettled += s.openIn(seg)
	}
}

// cursorOf is the progress in a segment, with what was settled ahead and what is lost once the cursor has come
// to it. It needs mu.
func (s *Spool) cursorOf(seg *segment) cursor { return s.passOver(seg, s.storedCursor(seg)) }

// storedCursor needs mu.
func (s *Spool) storedCursor(seg *segment) cursor {
	c, ok := s.state.cursors[seg.name]
	if !ok {
		c.Record = seg.first - 1
	}
	return c
}

// passOver takes a cursor over what was settled ahead, and over lost records, if it has come to them. It needs mu.
func (s *Spool) passOver(seg *segment, c cursor) cursor {
	for {
		at := c.Record
		if len(seg.lost) > 0 {
			c.Record = max(c.Record, min(seg.lost.skip(c.Record+1)-1, seg.last))
		}
		if a := s.state.counters; a.AheadFrom != 0 && c.Record+1 >= a.AheadFrom {
			c.Record = max(c.Record, min(seg.last, a.AheadTo))
		}
		if c.Record == at {
			return c
		}
	}
}

// openIn counts the records of a segment that no settlement has covered and that are not lost. It needs mu.
func (s *Spool) openIn(seg *segment) int64 {
	c, a := s.storedCursor(seg), s.state.counters
	if seg.last <= c.Record {
		return 0
	}
	n := int64(seg.last-c.Record) - int64(s.lostIn(seg, c.Record, seg.last))
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
	trails := map[string]*trail{}
	var passed time.Duration // time that surely lies between the record looked at and the end of the chain
	ahead := 1
	for i := len(s.segments) - 1; i >= 0 && passed <= s.opts.Horizon; i-- {
		seg := s.segments[i]
		if hole := i+1 < len(s.segments) && seg.last+1 < s.segments[i+1].first; hole && (seg.head == nil || seg.head.BootID != s.opts.BootID) {
			break // what was between is old enough to be gone; within a boot the records themselves tell how old they are
		}
		if seg.sick != "" {
			continue
		}
		if !seg.sound && s.unclean && !s.opts.ReadOnly {
			s.readBack(i, ahead)
			ahead *= 2
		}
		if !seg.sound && s.unclean && !s.opts.ReadOnly {
			if err := s.readWhole(context.Background(), seg); err != nil {
				return err
			}
		}
		var last, first time.Duration
		done := false
		if seg.sick == "" {
			err := s.scanSegment(seg, now, &newest, equal, trails, &first, &last, &done)
			if err != nil && !s.ails(seg, err) {
				return err
			}
		}
		if seg.sick != "" { // found out only now: what was read of it counts, and the rest after the healing
			if err := s.healAtStart(seg, claims{last: seg.last, most: seg.last, note: max(seg.notes, s.state.cursors[seg.name].Note), detail: seg.sick}); err != nil {
				return err
			}
			if err := s.dropLost(); err != nil {
				return err
			}
			if seg.sick == "" {
				i++
			}
			continue
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
	s.resumeRuns(trails, now)
	return nil
}

// scanSegment adds what rebuild wants of one segment. Records that were seen before a damage was found are seen
// again after it is healed; that changes nothing.
func (s *Spool) scanSegment(seg *segment, now time.Duration, newest *[]*acceptance, equal map[[32]byte]time.Duration, trails map[string]*trail, first, last *time.Duration, done *bool) error {
	sameBoot := seg.head.BootID == s.opts.BootID
	var mine []*acceptance
	err := seg.scanBack(func(r *Record) bool {
		if *last == 0 {
			*last = r.Boot
		}
		*first = r.Boot
		seg.newest = max(seg.newest, r.Boot)
		s.high = max(s.high, r.At)
		if sameBoot && now-r.Boot > s.opts.Horizon || *last-r.Boot > s.opts.Horizon {
			*done = true
			return false
		}
		addTrail(trails, r, seg.head.BootID)
		if r.Quality == window.Device {
			return true // no duplicate rule counts from it
		}
		if _, ok := s.recent.doubts[r.Scanner]; !ok && (s.unclean || slices.Contains(s.side.InDoubt, r.Scanner)) {
			s.recent.doubts[r.Scanner] = &doubt{acc: acceptanceOf(r), bootID: seg.head.BootID, boot: r.Boot, at: r.At, quality: r.Quality}
		}
		switch {
		case !sameBoot && !r.IsDuplicate():
			// Never matched: only its keys count, which a clock that was ahead could meet again.
			a := acceptanceOf(r)
			a.anchor, a.equal, a.span = now, now, 0
			mine = append(mine, a)
		case sameBoot:
			equal[r.Physical.Hash] = max(equal[r.Physical.Hash], r.Boot)
			if !r.IsDuplicate() || r.Reason == ReasonInDoubt {
				mine = append(mine, acceptanceOf(r))
			}
		}
		return true
	})
	if err == nil {
		*newest = append(*newest, mine...)
	}
	return err
}

// Mark is the clock's state that the run before left, and highWater the highest t in what was read.
func (s *Spool) Mark() (m window.Mark, highWater window.UTC) {
	m, highWater = s.side.Clock, max(s.state.counters.High, s.high)
	if s.margin { // the sidecar would have known it
		highWater = highWater.Add(reserveAhead)
		m.Reserved = max(m.Reserved, highWater)
	}
	return m, highWater
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
	s.side.Version, s.side.Agent, s.side.Clean, s.side.HasState = fileVersion, s.opts.Agent, false, true
	s.side.InDoubt, s.side.Copy = nil, false
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
	if err := s.place.settleDown(s.dir); err != nil {
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
	if n := len(chain); n > 0 && chain[n-1].first == first && strings.HasPrefix(chain[n-1].name, s.side.Epoch) {
		s.newEpoch() // the one before took no record: its name must not come again
	}
	head := fileHead{Agent: s.opts.Agent, Epoch: s.side.Epoch, First: first, BootID: s.opts.BootID, Created: s.clock.Now().T}
	var seg *segment
	err := s.opts.durable(DiskMake, filepath.Join(s.dir, segmentName(head.Epoch, head.First)), func() (err error) {
		seg, err = createSegment(s.dir, s.opts.Keys, head)
		return err
	})
	if err != nil {
		if seg != nil {
			seg.close()
		}
		return err
	}
	if err := s.writeSidecar(segmentEntry{Name: seg.name, First: first, Head: seg.head}); err != nil {
		// The sidecar may name it all the same: it goes when one that does not is surely in place.
		seg.close()
		s.newEpoch()
		s.mu.Lock()
		s.pruned = append(s.pruned, seg)
		s.mu.Unlock()
		return err
	}
	s.place.active, _ = os.Stat(seg.path)
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

// reserved is the clock's state with the bound up to which t may be used.
func (s *Spool) reserved() window.Mark {
	if s.clock == nil {
		return s.side.Clock
	}
	return s.clock.Mark(reserveAhead)
}

// writeSidecar writes the chain as it is, with one more segment if add names one.
func (s *Spool) writeSidecar(add segmentEntry) error {
	s.steps = s.clock.Stats().Steps
	s.side.Clock = s.reserved()
	s.side.State = s.state.head
	s.side.Segments = s.side.Segments[:0]
	s.mu.Lock()
	s.side.Settled = s.state.settled
	for _, seg := range s.segments {
		e := segmentEntry{seg.name, seg.first, seg.last, seg.head}
		if seg == s.active && add.Name == "" {
			e.Last = 0
		}
		s.side.Segments = append(s.side.Segments, e)
	}
	s.side.Next = 0
	if s.active == nil && add.Name == "" {
		s.side.Next = s.next
	}
	s.mu.Unlock()
	if add.Name != "" {
		s.side.Segments = append(s.side.Segments, add)
	}
	err := s.opts.durable(DiskReplace, filepath.Join(s.dir, sidecarName), func() error { return s.side.write(s.dir) })
	if err == nil {
		s.place.side, _ = os.Stat(filepath.Join(s.dir, sidecarName))
		s.markGone()
	}
	return err
}

// Maintain does what can wait until no scan is waiting: it renews the reservation of t, also when the clock
// has stepped back, unlinks what Prune has set aside, ends a settled active segment that stands in the way of new scans, and rebuilds the reserve
// that a full disk has used up. A disk that is still full is no error. The intake calls it.
func (s *Spool) Maintain() error {
	s.mu.Lock()
	a, renew := s.active, s.renew
	inTheWay := a != nil && (a.count() > 0 || a.notes > 0) && s.tight() && s.finished(a)
	sick := a != nil && a.sick != ""
	s.mu.Unlock()
	var errs []error
	if err := s.keepPlace(); err != nil {
		return err // nothing can be done in the wrong place
	}
	try := func(err error) {
		if !IsNoSpace(err) || s.reserve != reserveSpent {
			errs = append(errs, err)
		}
	}
	try(s.unlink()) // first, since it makes room
	if s.reserve == reserveSpent {
		s.makeReserve()
	}
	if renew {
		s.newEpoch()
	}
	if inTheWay || sick || renew {
		err := s.roll()
		try(err)
		if err == nil {
			s.mu.Lock()
			s.renew = false
			s.mu.Unlock()
		}
	}
	if sick {
		s.ails(a, &DamageError{a.name, a.sick}) // it can be salvaged now
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

// NextSeq is the number that the next record gets.
func (s *Spool) NextSeq() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

// Coming hands over the records of a commit that begins, if somebody is receiving just then. Nothing durable may
// be done with them: they count only once Next returns them, and if the commit fails they never do.
func (s *Spool) Coming() <-chan []*Record { return s.coming }

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
		err = s.keepPlace()
		if s.place.apart {
			err = errors.Join(err, s.rescue(s.state.db, stateName))
		}
		s.active = nil
		s.dropEmpty()
		s.side.Clean, s.side.InDoubt = clean, slices.Sorted(maps.Keys(s.recent.doubts))
		if werr := s.writeSidecar(segmentEntry{}); werr == nil {
			err = errors.Join(err, s.unlink())
		} else {
			err = errors.Join(err, werr)
		}
	}
	return errors.Join(err, s.closeFiles())
}

func (s *Spool) closeFiles() error {
	s.marks.close()
	s.place.close()
	s.journal.close()
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
	Discarded   int64
	Unaccounted int64
	Unsettled   int64 // pending, held and quarantined: what the bound on records counts
	MaxRecords  int64
	Bytes       int64
	MaxBytes    int64
	Segments    int
	Accepting   bool       // the next scan would not be refused for want of room
	Oldest      window.UTC // when the oldest pending record was taken in; 0 if there is none
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
		Discarded: int64(c.Discarded), Unaccounted: int64(s.unaccounted()), Unsettled: s.unsettled, MaxRecords: s.opts.MaxRecords, Bytes: s.bytes(),
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
			st.Oldest = r.Taken()
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
		if c := s.cursorOf(g); g.last > c.Record && g.sick == "" {
			if first == 0 || c.Record < first {
				first = c.Record + 1
			}
			break
		}
	}
	return first
}

// segmentOf is the segment that has a record, nil if it is gone or was never there. It needs mu.
func (s *Spool) segmentOf(seq uint64) *segment {
	for _, seg := range slices.Backward(s.segments) {
		if seg.first <= seq {
			if seq > seg.last {
				return nil
			}
			return seg
		}
	}
	return nil
}

// fromTail needs mu. The records are shared and must not be changed.
func (s *Spool) fromTail(from uint64, n int) []*Record {
	if len(s.tail) == 0 || from < s.tail[0].Seq {
		return nil
	}
	i := from - s.tail[0].Seq
	if i >= uint64(len(s.tail)) {
		return nil
	}
	return s.tail[i:min(i+uint64(n), uint64(len(s.tail)))]
}
