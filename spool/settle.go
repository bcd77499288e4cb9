package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"scanonce/idem"
)

// Work is the next part of the chain to settle: records in the order of their capture, and the notes of the
// same segment.
type Work struct {
	Records []Record
	Notes   []Line
	seg     *segment
	from    cursor // where the work begins
	noteTo  uint64
	closes  bool // the segment takes no more: settled, it can be closed
	live    bool // in front of a backlog
}

// Empty says that there is nothing to do.
func (w *Work) Empty() bool { return len(w.Records) == 0 && len(w.Notes) == 0 }

// Next returns up to n records, and up to n notes, that no settlement has covered. It returns the same again
// until Settle is called.
func (s *Spool) Next(n int) (Work, error) {
	s.mu.Lock()
	var w Work
	var c cursor
	var to, notes uint64
	for i, seg := range s.segments {
		c = s.cursorOf(seg)
		if c.Record < seg.last || c.Note < seg.notes {
			w.seg, to, notes, w.closes = seg, seg.last, seg.notes, i+1 < len(s.segments)
			if a := s.state.counters; c.Record+1 < a.AheadFrom && a.AheadFrom <= a.AheadTo {
				to = min(to, a.AheadFrom-1)
			}
			break
		}
	}
	if w.seg == nil {
		s.mu.Unlock()
		return w, nil
	}
	w.from = c
	w.Records = s.fromTail(c.Record+1, n)
	s.mu.Unlock()
	var err error
	if over := len(w.Records); over > 0 && w.Records[over-1].Seq > to {
		w.Records = w.Records[:to-c.Record]
	}
	if len(w.Records) == 0 && c.Record < to {
		if w.Records, err = w.seg.read(c.Record+1, to, n); err != nil {
			return Work{}, err
		}
	}
	w.noteTo = c.Note
	if c.Note < notes {
		if w.Notes, err = w.seg.readNotes(c.Note, notes, n); err != nil {
			return Work{}, err
		}
		w.noteTo += uint64(len(w.Notes))
	}
	return w, nil
}

// GoLive lets the scans from now on be settled before the backlog: NextLive returns them. It does nothing
// while a backlog from before an earlier GoLive is left: then all that came since is live already.
func (s *Spool) GoLive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.state.counters
	if c.AheadFrom != 0 && !s.caughtUp() {
		return
	}
	// The cursors take over what was settled ahead, on disk with the next settlement.
	if s.merged == nil {
		s.merged = map[string]cursor{}
	}
	for _, seg := range s.segments {
		if now := s.cursorOf(seg); now != s.state.cursors[seg.name] {
			s.merged[seg.name], s.state.cursors[seg.name] = now, now
		}
	}
	c.AheadFrom, c.AheadTo = s.next, s.next-1
}

// caughtUp says that everything before what was settled ahead is settled. It needs mu.
func (s *Spool) caughtUp() bool {
	a := s.state.counters
	for _, seg := range s.segments {
		if s.cursorOf(seg).Record < min(seg.last, a.AheadFrom-1) {
			return false
		}
	}
	return true
}

// NextLive returns up to n records from the first one behind what was settled ahead; none if no backlog is in
// front of them. It returns the same again until Settle is called.
func (s *Spool) NextLive(n int) (Work, error) {
	s.mu.Lock()
	a := s.state.counters
	from := a.AheadTo + 1
	if a.AheadFrom == 0 || from >= s.next || s.caughtUp() {
		s.mu.Unlock()
		return Work{}, nil
	}
	w := Work{seg: s.segmentOf(from), live: true}
	if w.seg == nil {
		s.mu.Unlock()
		return Work{}, fmt.Errorf("cannot find record %d: its segment is gone", from)
	}
	to := w.seg.last
	w.Records = s.fromTail(from, n)
	s.mu.Unlock()
	if over := len(w.Records); over > 0 && w.Records[over-1].Seq > to {
		w.Records = w.Records[:to-from+1]
	}
	var err error
	if len(w.Records) == 0 {
		if w.Records, err = w.seg.read(from, to, n); err == nil && len(w.Records) == 0 {
			err = fmt.Errorf("cannot find record %d in %s", from, w.seg.name)
		}
	}
	if err != nil {
		return Work{}, err
	}
	return w, nil
}

// Backlog is the number of records that no settlement has covered, exceptions aside.
func (s *Spool) Backlog() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsettled - int64(len(s.state.exceptions))
}

// Settle records, in one transaction, the verdicts on all records of w (in their order) and the audit lines
// that follow from them; w's notes become lines too. Verdicts on exceptions may stand before them, w may be
// empty. Only what the ledger has answered for may be settled. Work that has been settled already is refused:
// after an error ask Next again.
func (s *Spool) Settle(w Work, verdicts []Verdict, lines []Line) error {
	s.mu.Lock()
	st := settlement{counters: s.state.counters}
	known := len(verdicts) - len(w.Records)
	if known < 0 || w.seg != nil && !w.live && s.cursorOf(w.seg) != w.from || w.live && w.Records[0].Seq != s.state.counters.AheadTo+1 {
		s.mu.Unlock()
		return errOrder
	}
	settled := int64(0)
	for i, v := range verdicts {
		x, isException := s.state.exceptions[v.Seq]
		if i >= known {
			if v.Seq != w.Records[i-known].Seq {
				s.mu.Unlock()
				return errOrder
			}
			x = Exception{Seq: v.Seq, Segment: w.seg.name}
		} else if !isException {
			s.mu.Unlock()
			return errOrder
		}
		switch v.State {
		case Committed:
			st.counters.Committed++
		case Suppressed:
			st.counters.Suppressed++
		}
		if v.State.final() {
			settled++
			st.verdicts = append(st.verdicts, v)
			if i < known {
				st.final = append(st.final, v.Seq)
			}
			continue
		}
		x.State, x.Detail = v.State, v.Detail
		x.Attempts++
		st.exceptions = append(st.exceptions, x)
	}
	for i := range w.Records {
		st.counters.High = max(st.counters.High, w.Records[i].At)
	}
	st.forget = s.orphans()
	st.cursors = maps.Clone(s.merged)
	switch {
	case w.live:
		st.counters.AheadTo = w.Records[len(w.Records)-1].Seq
	case w.seg != nil:
		c := s.cursorOf(w.seg)
		if n := len(w.Records); n > 0 {
			c.Record = w.Records[n-1].Seq
		}
		c.Note = w.noteTo
		if st.cursors == nil {
			st.cursors = map[string]cursor{}
		}
		st.cursors[w.seg.name] = c
	}
	s.mu.Unlock()

	st.lines = append(lines[:len(lines):len(lines)], w.Notes...)
	if w.seg == nil && len(verdicts) == 0 && len(st.lines) == 0 {
		return nil
	}
	st.applied = func() {
		s.unsettled -= settled
		s.merged = nil
	}
	if err := s.state.apply(&st); err != nil {
		return err
	}
	bytes := diskBytes(s.state.path)
	s.mu.Lock()
	s.stateLen = bytes
	finished := w.closes && s.finished(w.seg)
	if s.unsettled == 0 && cap(s.tail) > 64 {
		s.tail = nil // a burst's memory
	}
	s.mu.Unlock()
	if finished {
		w.seg.close()
	}
	return nil
}

// Exceptions lists the records that the cursors have passed and that are not final, oldest first.
func (s *Spool) Exceptions() []Exception {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Exception, 0, len(s.state.exceptions))
	for _, x := range s.state.exceptions {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Exception) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return out
}

// Load reads one record.
func (s *Spool) Load(seq uint64) (Record, error) {
	s.mu.Lock()
	rs := s.fromTail(seq, 1)
	seg := s.segmentOf(seq)
	s.mu.Unlock()
	if len(rs) == 1 {
		return rs[0], nil
	}
	if seg == nil {
		return Record{}, fmt.Errorf("cannot find record %d: its segment is gone", seq)
	}
	rs, err := seg.read(seq, seq, 1)
	if err == nil && len(rs) == 0 {
		err = fmt.Errorf("cannot find record %d in %s", seq, seg.name)
	}
	if err != nil {
		return Record{}, err
	}
	return rs[0], nil
}

const sinceRecords = 512 // read at a time, so that no reader holds a transaction while it yields

// Since yields every record still in the chain with a sequence number above seq, in order.
func (s *Spool) Since(seq uint64, yield func(*Record) bool) error {
	s.mu.Lock()
	chain := slices.Clone(s.segments)
	ends := make([]uint64, len(chain))
	for i, seg := range chain {
		ends[i] = seg.last
	}
	s.mu.Unlock()
	for i, seg := range chain {
		for from := max(seq+1, seg.head.First); from <= ends[i]; {
			rs, err := seg.read(from, ends[i], sinceRecords)
			if err != nil {
				if s.gone(seg) {
					break
				}
				return err
			}
			for i := range rs {
				if !yield(&rs[i]) {
					return nil
				}
			}
			if len(rs) == 0 {
				break
			}
			from = rs[len(rs)-1].Seq + 1
		}
	}
	return nil
}

// gone says that a segment left the chain because all of it is settled.
func (s *Spool) gone(seg *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && !slices.Contains(s.segments, seg)
}

// Unsettled yields the records that are not final, with their state, in the order of their capture.
func (s *Spool) Unsettled(yield func(Record, Exception) bool) error {
	s.mu.Lock()
	exceptions := make(map[uint64]Exception, len(s.state.exceptions))
	oldest := s.next
	for seq, x := range s.state.exceptions {
		exceptions[seq] = x
		oldest = min(oldest, seq)
	}
	ahead := s.state.counters
	cursors := map[uint64]uint64{} // of the segment that begins at the key
	var firsts []uint64
	for _, seg := range s.segments {
		c := s.cursorOf(seg)
		cursors[seg.head.First] = c.Record
		firsts = append(firsts, seg.head.First)
		if c.Record < seg.last {
			oldest = min(oldest, c.Record+1)
		}
	}
	s.mu.Unlock()
	return s.Since(oldest-1, func(r *Record) bool {
		if x, ok := exceptions[r.Seq]; ok {
			return yield(*r, x)
		}
		i, _ := slices.BinarySearch(firsts, r.Seq+1)
		if i > 0 && (r.Seq < ahead.AheadFrom || r.Seq > ahead.AheadTo) && r.Seq > cursors[firsts[i-1]] {
			x := Exception{Seq: r.Seq}
			if r.IsDuplicate() {
				x.State = Waiting
			}
			return yield(*r, x)
		}
		return true
	})
}

// LastSettlement is the number of the last settlement that made records final, and those verdicts: whoever
// tells of them can find out after a kill whether it had.
func (s *Spool) LastSettlement() (uint64, []Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.settled, s.state.last
}

// Lines returns up to n audit lines that have not been forwarded.
func (s *Spool) Lines(n int) ([]Line, error) { return s.state.pendingLines(n) }

// LinesForwarded says that the first n of them are in the ledger. They leave with the next settlement; until
// then a crash only forwards them again.
func (s *Spool) LinesForwarded(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.delivered += uint64(n)
}

// Prune sets the segments aside of which every record is final and whose newest one is older than the
// horizon; Maintain unlinks them. It says whether a segment only waits for its age. Close to the bound on
// bytes, and on a full disk, a segment need only outlast the local rule.
func (s *Spool) Prune() (waiting bool) {
	now := s.opts.Boot()
	busy := map[string]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	horizon := s.opts.Horizon
	if s.tight() {
		horizon = s.opts.LocalSpan
	}
	for _, x := range s.state.exceptions {
		busy[x.Segment] = true
	}
	n := 0
	for ; n < len(s.segments)-1; n++ { // the chain is cut from its old end only, and never at the active one
		seg := s.segments[n]
		if !s.finished(seg) || busy[seg.name] {
			break
		}
		if !oldEnough(seg, s.opts.BootID, s.began, now, horizon) {
			waiting = true
			break
		}
	}
	s.pruned = append(s.pruned, s.segments[:n]...)
	s.segments = slices.Delete(s.segments, 0, n)
	return waiting
}

// finished needs mu.
func (s *Spool) finished(seg *segment) bool {
	c := s.cursorOf(seg)
	return c.Record >= seg.last && c.Note >= seg.notes
}

// tight says that room on disk is short. It needs mu.
func (s *Spool) tight() bool { return s.bytes() >= s.opts.MaxBytes/10*8 || s.reserve == reserveSpent }

// unlink removes the files of pruned segments. The sidecar stops naming them first, and the cursors go last:
// what a crash between leaves behind is cleared away at the next start.
func (s *Spool) unlink() error {
	s.mu.Lock()
	gone := slices.Clone(s.pruned)
	s.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	if err := s.writeSidecar(segmentEntry{}); err != nil {
		return err
	}
	for _, seg := range gone {
		seg.end()
		if err := os.Remove(seg.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot unlink a settled segment: %w", err)
		}
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	s.mu.Lock()
	s.pruned = slices.Delete(s.pruned, 0, len(gone))
	s.mu.Unlock()
	return nil
}

// orphans lists the cursors whose segments are gone. It needs mu.
func (s *Spool) orphans() (names []string) {
	for name := range s.state.cursors {
		has := func(g *segment) bool { return g.name == name }
		if !slices.ContainsFunc(s.segments, has) && !slices.ContainsFunc(s.pruned, has) {
			names = append(names, name)
		}
	}
	return names
}

// StandingKey is the key of the row that stands for r.
func (v *Verdict) StandingKey(r *Record) idem.Key {
	if v.Key.IsZero() {
		return r.Keys.Idem
	}
	return v.Key
}
