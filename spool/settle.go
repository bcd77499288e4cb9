package spool

import (
	"context"
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
	Records []*Record // shared: not to be changed
	Notes   []Line
	seg     *segment
	from    cursor // where the work begins
	noteTo  uint64
	closes  bool                    // the segment takes no more: settled, it can be closed
	live    bool                    // in front of a backlog
	held    map[uint64]idem.EventID // of a batch that came before, and its id; nil if there are none
	decided *StoredBatch
}

// end is the cursor once w is settled.
func (w *Work) end() cursor {
	c := cursor{Record: w.from.Record, Note: w.noteTo}
	if n := len(w.Records); n > 0 {
		c.Record = w.Records[n-1].Seq
	}
	return c
}

// Empty says that there is nothing to do.
func (w *Work) Empty() bool { return len(w.Records) == 0 && len(w.Notes) == 0 }

// Next returns up to n records, and up to n notes, that no settlement has covered. It returns the same again
// until Settle is called.
func (s *Spool) Next(n int) (Work, error) { return s.After(&Work{}, n) }

// After returns what Next will return once before, which came from Next or After, is settled. It must not be
// settled earlier.
func (s *Spool) After(before *Work, n int) (Work, error) {
	s.mu.Lock()
	var w Work
	var c cursor
	var to, notes uint64
	skipped := false
	for i, seg := range s.segments {
		if c = s.cursorOf(seg); seg == before.seg {
			c = s.passOver(seg, before.end())
		}
		if c.Record >= seg.last && c.Note >= seg.notes {
			continue
		}
		a := s.state.counters
		if skipped && a.AheadFrom != 0 && seg.last >= a.AheadFrom && c.Record+1 >= a.AheadFrom {
			break // NextLive is not through with them
		}
		if seg.sick != "" { // what is behind it need not wait
			skipped = skipped || c.Record < seg.last
			continue
		}
		w.seg, to, notes, w.closes = seg, seg.last, seg.notes, i+1 < len(s.segments)
		if c.Record+1 < a.AheadFrom && a.AheadFrom <= a.AheadTo {
			to = min(to, a.AheadFrom-1)
		}
		if s.gate != 0 {
			to = max(c.Record, min(to, s.gate-1))
		}
		break
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
	w.noteTo = c.Note
	fromFile := len(w.Records) == 0 && c.Record < to || c.Note < notes
	if fromFile {
		err = s.whole(w.seg)
	}
	if err == nil && len(w.Records) == 0 && c.Record < to {
		w.Records, err = w.seg.read(c.Record+1, to, n)
	}
	if err == nil && c.Note < notes {
		w.Notes, w.noteTo, err = w.seg.readNotes(c.Note, notes, n)
	}
	if err == nil {
		err = s.sortOut(&w)
	}
	if err != nil {
		if s.ails(w.seg, err) {
			return s.After(before, n) // without it
		}
		return Work{}, err
	}
	return w, nil
}

// whole reads a segment completely before anything of it counts, if the stop before was unclean and nobody has.
func (s *Spool) whole(seg *segment) error {
	s.mu.Lock()
	sick, unread := seg.sick, !seg.sound && s.unclean && !s.opts.ReadOnly
	s.mu.Unlock()
	if sick == "" && unread {
		if err := s.readWhole(context.Background(), seg); err != nil {
			return err
		}
		s.mu.Lock()
		sick = seg.sick
		s.mu.Unlock()
	}
	if sick != "" {
		return &DamageError{seg.name, sick}
	}
	return nil
}

// GoLive lets the scans from now on be settled before the backlog: NextLive returns them. It does nothing
// while a backlog from before an earlier GoLive is left: then all that came since is live already.
func (s *Spool) GoLive() {
	s.settling.Lock()
	defer s.settling.Unlock()
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
			c.Unaccounted += s.lostIn(seg, s.storedCursor(seg).Record, now.Record)
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
	from := s.present(a.AheadTo + 1)
	if a.AheadFrom == 0 || from >= s.next || s.gate != 0 && from >= s.gate || s.caughtUp() {
		s.mu.Unlock()
		return Work{}, nil
	}
	w := Work{seg: s.segmentOf(from), live: true}
	if w.seg == nil {
		s.mu.Unlock()
		return Work{}, fmt.Errorf("cannot find record %d: its segment is gone", from)
	}
	if w.seg.sick != "" {
		s.mu.Unlock()
		return Work{}, nil
	}
	to := w.seg.last
	if s.gate != 0 {
		to = min(to, s.gate-1)
	}
	w.Records = s.fromTail(from, n)
	s.mu.Unlock()
	if over := len(w.Records); over > 0 && w.Records[over-1].Seq > to {
		w.Records = w.Records[:to-from+1]
	}
	var err error
	if len(w.Records) == 0 {
		if err = s.whole(w.seg); err == nil {
			w.Records, err = w.seg.read(from, to, n)
		}
		if err == nil && len(w.Records) == 0 {
			err = fmt.Errorf("cannot find record %d in %s", from, w.seg.name)
		}
	}
	if err == nil {
		err = s.sortOut(&w)
	}
	if err != nil {
		if s.ails(w.seg, err) {
			return Work{}, nil
		}
		return Work{}, err
	}
	return w, nil
}

// present is the first number from seq on whose record is not lost. It needs mu.
func (s *Spool) present(seq uint64) uint64 {
	for {
		seg := s.segmentOf(seq)
		if seg == nil || !seg.lost.has(seq) {
			return seq
		}
		seq = seg.lost.skip(seq)
	}
}

// Backlog is the number of records that no settlement has covered, exceptions aside.
func (s *Spool) Backlog() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsettled - int64(len(s.state.exceptions))
}

// Settle records, in one transaction, the verdicts on all records of w (in their order) and the audit lines
// that follow from them; w's notes become lines too, behind the others. chain, or nil, binds the lines and the
// rows. Verdicts on exceptions may stand before those on w, and w may be empty. Only what the ledger has answered
// for may be settled. Work that has been settled already, and a record that does not fit the chain, are refused:
// after an error ask Next and ChainHead again.
func (s *Spool) Settle(w Work, verdicts []Verdict, lines []Line, chain *ChainRecord) error {
	decided := w.decided
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	st := settlement{counters: s.state.counters, chain: chain}
	if decided != nil {
		known := s.state.batches[decided.ID]
		if known == nil {
			s.mu.Unlock()
			return errOrder
		}
		b := *known
		b.Decision, b.By = decided.Decision, decided.By
		st.batches = append(st.batches, &b)
	}
	if chain != nil {
		if err := st.counters.extend(chain, s.unaccounted()); err != nil {
			s.mu.Unlock()
			return err
		}
	}
	known := len(verdicts) - len(w.Records)
	if known < 0 || w.seg != nil && !w.live && s.cursorOf(w.seg) != w.from || w.live && w.Records[0].Seq != s.present(s.state.counters.AheadTo+1) {
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
		case Discarded:
			st.counters.Discarded++
		case Unaccounted:
			st.counters.Unaccounted++
		}
		x.State, x.Detail = v.State, v.Detail
		x.Attempts++
		switch {
		case v.State.final():
			settled++
			st.verdicts = append(st.verdicts, v)
			if v.State == Discarded && (i < known || !w.Records[i-known].IsDuplicate()) { // nothing repeats a duplicate
				st.exceptions = append(st.exceptions, x) // remembered for what repeats it
			} else if i < known {
				st.final = append(st.final, v.Seq)
			}
		default:
			st.exceptions = append(st.exceptions, x)
		}
	}
	st.final = append(st.final, s.forgotten(len(w.Records))...)
	now := s.now()
	for i, r := range w.Records {
		st.counters.High = max(st.counters.High, r.At)
		if verdicts[known+i].State == Held && !r.IsDuplicate() {
			st.missBatch(s.state.batches, r, w.held[r.Seq])
		}
		if !r.Once.IsZero() && !outdated(r.Event, now) {
			st.answers = append(st.answers, keyed{r.Once.Key, answerOf(r)})
		}
	}
	st.outdated = s.state.answers.leaving(now)
	st.forget = s.orphans()
	st.cursors = maps.Clone(s.merged)
	switch {
	case w.live:
		to := w.Records[len(w.Records)-1].Seq
		for _, seg := range s.segments {
			st.counters.Unaccounted += seg.lost.within(st.counters.AheadTo+1, to)
		}
		st.counters.AheadTo = to
	case w.seg != nil:
		if st.cursors == nil {
			st.cursors = map[string]cursor{}
		}
		st.counters.Unaccounted += s.lostIn(w.seg, s.storedCursor(w.seg).Record, w.end().Record)
		st.cursors[w.seg.name] = w.end()
	}
	epoch := s.epoch
	s.mu.Unlock()

	st.lines = append(lines[:len(lines):len(lines)], w.Notes...)
	if w.seg == nil && len(verdicts) == 0 && len(st.lines) == 0 && decided == nil {
		return nil
	}
	st.applied = func() {
		s.unsettled -= settled
		s.merged = nil
	}
	if err := s.state.apply(&st); err != nil {
		return err
	}
	s.marks.set(markSettled, epoch, s.boot, s.state.settled)
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

// forgotten lists the discarded records that nothing can repeat any more: their segment is gone for its age, and behind a
// settlement of n records nothing waits that came since. It needs mu.
func (s *Spool) forgotten(n int) (seqs []uint64) {
	if len(s.state.discarded) == 0 || s.unsettled-int64(n) > int64(len(s.state.exceptions)) {
		return nil
	}
	for seq, x := range s.state.discarded {
		if s.segmentNamed(x.Segment) == nil {
			seqs = append(seqs, seq)
		}
	}
	return seqs
}

// Exceptions lists the records that the cursors have passed and that are not final, oldest first.
func (s *Spool) Exceptions() []Exception {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Exception, 0, len(s.state.exceptions))
	for _, x := range s.state.exceptions {
		if seg := s.segmentNamed(x.Segment); seg == nil || seg.sick == "" { // those of a damaged one wait for its healing
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b Exception) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return out
}

// Exception is the exception with a number; a zero one, Pending, if there is none. A record that a person has given up
// is Discarded while something may repeat it, and one that a damage has taken is Unaccounted.
func (s *Spool) Exception(seq uint64) Exception {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.state.exceptions[seq]; ok || seq == 0 {
		return x
	}
	if x, ok := s.state.discarded[seq]; ok {
		return x
	}
	if seg := s.segmentOf(seq); seg == nil || seg.sick == "" && seg.lost.has(seq) {
		return Exception{Seq: seq, State: Unaccounted, Detail: "what it repeats is lost"}
	}
	return Exception{}
}

// Load reads one record.
func (s *Spool) Load(seq uint64) (*Record, error) {
	s.mu.Lock()
	rs := s.fromTail(seq, 1)
	seg := s.segmentOf(seq)
	s.mu.Unlock()
	if len(rs) == 1 {
		return rs[0], nil
	}
	if seg == nil {
		return nil, fmt.Errorf("cannot find record %d: its segment is gone", seq)
	}
	err := s.whole(seg)
	if err == nil {
		rs, err = seg.read(seq, seq, 1)
	}
	if err == nil && len(rs) == 0 {
		err = fmt.Errorf("cannot find record %d in %s", seq, seg.name)
	}
	if err != nil {
		s.ails(seg, err)
		return nil, err
	}
	return rs[0], nil
}

const sinceRecords = 512 // read at a time, so that no reader holds a transaction while it yields

// Since yields every record still in the chain with a sequence number above seq, in order; not those of a
// damaged segment that is still to be healed.
func (s *Spool) Since(seq uint64, yield func(*Record) bool) error {
	s.mu.Lock()
	chain := slices.Clone(s.segments)
	ends := make([]uint64, len(chain))
	for i, seg := range chain {
		ends[i] = seg.last
	}
	s.mu.Unlock()
	for i, seg := range chain {
		for from := max(seq+1, seg.first); from <= ends[i]; {
			var rs []*Record
			err := s.whole(seg)
			if err == nil {
				rs, err = seg.read(from, ends[i], sinceRecords)
			}
			if err != nil {
				if s.gone(seg) || s.ails(seg, err) {
					break
				}
				return err
			}
			for _, r := range rs {
				if !yield(r) {
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
func (s *Spool) Unsettled(yield func(*Record, Exception) bool) error {
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
		cursors[seg.first] = c.Record
		firsts = append(firsts, seg.first)
		if c.Record < seg.last {
			oldest = min(oldest, c.Record+1)
		}
	}
	s.mu.Unlock()
	return s.Since(oldest-1, func(r *Record) bool {
		if x, ok := exceptions[r.Seq]; ok {
			return yield(r, x)
		}
		i, _ := slices.BinarySearch(firsts, r.Seq+1)
		if i > 0 && (r.Seq < ahead.AheadFrom || r.Seq > ahead.AheadTo) && r.Seq > cursors[firsts[i-1]] {
			x := Exception{Seq: r.Seq}
			if r.IsDuplicate() {
				x.State = Waiting
			}
			return yield(r, x)
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

// PendingLines is the number of audit lines that have not been forwarded.
func (s *Spool) PendingLines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.state.nextLine - s.state.delivered)
}

// LinesForwarded says that the first n of them are in the ledger. They leave with the next settlement; until
// then a crash only forwards them again.
func (s *Spool) LinesForwarded(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.delivered += uint64(n)
}

// Prune sets the segments aside of which every record is final and whose newest one is older than the
// horizon; Maintain unlinks them. It says whether a segment only waits for its age. Close to the bound on
// bytes, and on a full disk, a segment need only outlast the local rule. One that an exception keeps busy stays and
// holds none behind it up: the chain has a hole there, of numbers that are settled.
func (s *Spool) Prune() (waiting bool) {
	now := s.opts.Boot()
	busy := map[string]bool{}
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	horizon := s.opts.Horizon
	if s.tight() {
		horizon = s.opts.LocalSpan
	}
	for _, x := range s.state.exceptions {
		busy[x.Segment] = true
	}
	n, gone := 0, 0
	for ; n < len(s.segments)-1; n++ { // never the active one
		seg := s.segments[n]
		if !s.finished(seg) || seg.sick != "" {
			break
		}
		if !oldEnough(seg, s.opts.BootID, s.began, now, horizon) {
			waiting = true
			break
		}
		if !busy[seg.name] {
			gone++
		}
	}
	if gone == 0 || s.passed(n) != nil {
		return waiting
	}
	chain := s.segments
	s.segments = slices.Clone(chain[n:])
	for _, seg := range slices.Backward(chain[:n]) {
		if busy[seg.name] {
			s.segments = slices.Insert(s.segments, 0, seg)
		} else {
			s.pruned = append(s.pruned, seg)
		}
	}
	return waiting
}

// passed makes durable that the first n segments are settled to their ends, if only because the cursor came to what was
// settled ahead or is lost: from then on the counts need none of the files, and a hole behind one of them can be told
// from a lost end. It needs settling and mu.
func (s *Spool) passed(n int) error {
	st := settlement{counters: s.state.counters, cursors: maps.Clone(s.merged), applied: func() { s.merged = nil }}
	if st.cursors == nil {
		st.cursors = map[string]cursor{}
	}
	news := false
	for _, seg := range s.segments[:n] {
		was := s.storedCursor(seg)
		if c := s.cursorOf(seg); c != was {
			st.counters.Unaccounted += s.lostIn(seg, was.Record, c.Record)
			st.cursors[seg.name], news = c, true
		}
	}
	if !news {
		return nil
	}
	s.mu.Unlock()
	err := s.state.apply(&st)
	s.mu.Lock()
	return err
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
	if s.backups > 0 {
		gone = nil // later
	}
	s.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	if err := s.writeSidecar(segmentEntry{}); err != nil {
		return err
	}
	for _, seg := range gone {
		seg.end()
		err := s.opts.durable(DiskRemove, seg.path, func() error { return os.Remove(seg.path) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
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
