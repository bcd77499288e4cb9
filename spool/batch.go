package spool

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// BatchRule says which frames of a scanner are the content of its memory, and how long their list is kept. The
// zero rule finds none.
type BatchRule struct {
	Count  int           // this many frames …
	Within time.Duration // … in this time
	Keep   time.Duration // a stretch of a kept list that comes again waits for a person
}

const (
	// quiet ends a run of frames; a frame may be taken in lateBy after it came.
	quiet  = 300 * time.Millisecond
	lateBy = 100 * time.Millisecond
	// resumeFor is how long after a start a scanner may go on with a run that was cut less than cutFor before.
	resumeFor = 10 * time.Second
	cutFor    = time.Minute
	// batchKinds different codes make a stretch that can be told from a scanner that stutters in front of one
	// package, which may bear two codes.
	batchKinds = 3
	// maxList bounds the frames of one list, maxListed those of all.
	maxList   = 1 << 14
	maxListed = 1 << 17
	// decidedFor is how long a person's decision is kept at least: longer than an outage.
	decidedFor = 90 * 24 * time.Hour
	// keepAgain is how soon lists that could not be written are tried again.
	keepAgain = 10 * time.Second
	// runBeside marks a record that lies between the frames of a run and is none of them.
	runBeside = ^uint64(0)
)

// BatchDecision is what a person has made of a batch that came a second time.
type BatchDecision string

// The decisions.
const (
	Undecided      BatchDecision = ""
	BatchConfirmed BatchDecision = "confirmed" // movements of their own
	BatchDiscarded BatchDecision = "discarded"
)

// StoredBatch is a run of frames that came out of a scanner's memory. Its list holds hashes.
type StoredBatch struct {
	ID       idem.EventID  `json:"-"`
	Scanner  string        `json:"scanner"`
	At       window.UTC    `json:"at"` // of its last frame, or of the last run that repeats all of it
	Count    int           `json:"count"`
	Repeat   bool          `json:"repeat,omitempty"` // at least a part of it came before
	Held     int           `json:"held,omitempty"`   // acceptances that wait, or did, for a person
	Last     uint64        `json:"last,omitempty"`   // the last record that is held
	Decision BatchDecision `json:"decision,omitempty"`
	By       string        `json:"by,omitempty"`
	Codes    []byte        `json:"codes,omitempty"` // 8 bytes each; none if an earlier list has them all
	end      uint64        // the last record of its run
}

func (b *StoredBatch) len() int { return len(b.Codes) / 8 }

// heard is one frame of a run.
type heard struct {
	code     uint64 // of its content, at its scanner
	seq      uint64
	at       time.Duration // boottime, without the time that a stop took
	movement bool          // an acceptance, no local duplicate
}

// run is a scanner's frames since it was last silent.
type run struct {
	id      idem.EventID // of its first record
	scanner string
	at      window.UTC
	frames  []heard
	batch   bool
	held    int
	heldTo  uint64        // its last record that is held
	follows []follow      // the stretches of kept lists that its last frame goes on with, longest first
	last    time.Duration // boottime of its last frame
	resume  time.Duration // until then it may go on, after a start; 0 once it has
	skip    time.Duration // what the stop took
}

// follow is a stretch of a kept list that a run repeats, up to its last frame.
type follow struct {
	list  *StoredBatch
	next  int    // place in the list of what would go on with it
	n     int    // frames
	since uint64 // its first record
	begun time.Duration
	kinds [batchKinds]uint64 // different codes
	nk    int
	whole bool // from the run's first frame on
}

func (f *follow) saw(x *heard) {
	if f.n == 0 {
		f.since, f.begun, f.nk = x.seq, x.at, 0
	}
	f.n++
	f.next++
	if f.nk < batchKinds && !slices.Contains(f.kinds[:f.nk], x.code) {
		f.kinds[f.nk] = x.code
		f.nk++
	}
}

// spot is a place in a kept list.
type spot struct {
	list *StoredBatch
	at   int
}

// batches finds stored batches. The intake alone uses it.
type batches struct {
	rule   BatchRule
	runs   map[string]*run
	places map[string]map[uint64][]spot
	listed int
	ended  []StoredBatch // not told yet
	dirty  map[idem.EventID]*StoredBatch
	tried  time.Duration // when the dirty ones could not be written
}

func newBatches(rule BatchRule) *batches {
	return &batches{rule: rule, runs: map[string]*run{}, places: map[string]map[uint64][]spot{}, dirty: map[idem.EventID]*StoredBatch{}}
}

// list makes the frames of a batch known, to be recognized.
func (t *batches) list(b *StoredBatch) {
	if b.len() == 0 {
		return
	}
	at := t.places[b.Scanner]
	if at == nil {
		at = map[uint64][]spot{}
		t.places[b.Scanner] = at
	}
	for i := range b.len() {
		code := binary.LittleEndian.Uint64(b.Codes[8*i:])
		at[code] = append(at[code], spot{b, i})
	}
	t.listed += b.len()
}

// unlist forgets the lists for which gone is true.
func (t *batches) unlist(gone func(*StoredBatch) bool) {
	for scanner, at := range t.places {
		for code, places := range at {
			places = slices.DeleteFunc(places, func(p spot) bool {
				g := gone(p.list)
				if g {
					t.listed--
				}
				return g
			})
			if len(places) == 0 {
				delete(at, code)
			} else {
				at[code] = places
			}
		}
		if len(at) == 0 {
			delete(t.places, scanner)
		}
	}
}

func codeAt(b *StoredBatch, i int) (uint64, bool) {
	if i >= b.len() {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b.Codes[8*i:]), true
}

func codeOf(physical idem.Key) uint64 { return binary.LittleEndian.Uint64(physical.Hash[:8]) }

// over says whether a run has ended by boottime now.
func (r *run) over(now time.Duration) bool { return now >= r.end()+lateBy }

func (r *run) end() time.Duration { return max(r.last+quiet, r.resume) }

// pending is the first record of a run that may still turn out to repeat a kept list, 0 if there is none.
func (r *run) pending(rule *BatchRule) (since uint64) {
	for i := range r.follows {
		if f := &r.follows[i]; f.n > 0 && !r.holds(f, rule) && (since == 0 || f.since < since) {
			since = f.since
		}
	}
	return since
}

// holds says that what a follow has seen is the content of a memory that was sent before.
func (r *run) holds(f *follow, rule *BatchRule) bool {
	return r.batch && f.n >= rule.Count && f.nk >= min(batchKinds, rule.Count)
}

// hear takes a frame, which became the record rec, into its scanner's run. It returns the mark of the record: the
// first one of what it may repeat, and the batch in which it is held.
func (t *batches) hear(rec *Record) (since uint64, batch idem.EventID) {
	if t.rule.Count == 0 {
		return 0, batch
	}
	r := t.runs[rec.Scanner]
	if r != nil && rec.Boot >= r.end() {
		t.finish(r)
		r = nil
	}
	if r != nil && len(r.frames) >= maxList && r.pending(&t.rule) == 0 {
		r = t.split(r)
	}
	if r == nil {
		r = &run{scanner: rec.Scanner}
	}
	if len(r.frames) == 0 {
		r.id = rec.Event
	}
	if r.resume != 0 {
		r.skip, r.resume = r.skip+rec.Boot-r.last, 0
	}
	t.runs[rec.Scanner] = r
	f := heard{codeOf(rec.Physical), rec.Seq, rec.Boot - r.skip, !rec.IsDuplicate()}
	r.frames, r.at, r.last = append(r.frames, f), rec.At, rec.Boot
	if n := len(r.frames); n >= t.rule.Count && f.at-r.frames[n-t.rule.Count].at <= t.rule.Within {
		r.batch = true
	}
	t.goOn(r, &f)
	for i := range r.follows {
		if w := &r.follows[i]; r.holds(w, &t.rule) && (since == 0 || w.since < since) {
			since = w.since
		}
	}
	if since == 0 {
		return r.pending(&t.rule), batch
	}
	for _, x := range slices.Backward(r.frames) {
		if x.seq <= r.heldTo || x.seq < since {
			break
		}
		if x.movement {
			r.held++
		}
	}
	r.heldTo = f.seq
	return since, r.id
}

// goOn moves the run's follows on by a frame: those that it breaks end, and it begins new ones.
func (t *batches) goOn(r *run, f *heard) {
	before := r.follows
	r.follows = nil // what was there belongs to a copy that may be put back
	for _, w := range before {
		if code, ok := codeAt(w.list, w.next); !ok || code != f.code || t.expired(w.list, r.at) {
			continue
		}
		w.saw(f)
		if !r.holds(&w, &t.rule) && f.at-w.begun > 2*t.rule.Within {
			w.n, w.whole = 0, false // slower than a memory, or always the same: its frames wait no longer
		}
		r.follows = append(r.follows, w)
	}
	for _, p := range t.places[r.scanner][f.code] {
		if t.expired(p.list, r.at) || slices.ContainsFunc(r.follows, func(w follow) bool { return w.list == p.list && w.next == p.at+1 }) {
			continue
		}
		w := follow{list: p.list, next: p.at, whole: len(r.frames) == 1}
		w.saw(f)
		r.follows = append(r.follows, w)
	}
}

func (t *batches) expired(b *StoredBatch, now window.UTC) bool { return now.Sub(b.At) > t.rule.Keep }

// split ends a run that has become too long for one list; what goes on with a kept list goes on.
func (t *batches) split(r *run) *run {
	follows := slices.Clone(r.follows)
	for i := range follows {
		follows[i].whole = false
	}
	next := &run{scanner: r.scanner, batch: r.batch, heldTo: r.heldTo, follows: follows, last: r.last, skip: r.skip}
	t.finish(r)
	return next
}

// kinds is how many different codes a run has, batchKinds at most.
func (r *run) kinds() int {
	seen := map[uint64]bool{}
	for _, f := range r.frames {
		if seen[f.code] = true; len(seen) == batchKinds {
			break
		}
	}
	return len(seen)
}

// finish ends a run. What was a batch is told, and its list is kept.
func (t *batches) finish(r *run) {
	delete(t.runs, r.scanner)
	if !r.batch {
		return
	}
	b := &StoredBatch{ID: r.id, Scanner: r.scanner, At: r.at, Count: len(r.frames), Repeat: r.heldTo != 0, Held: r.held, Last: r.heldTo, end: r.frames[len(r.frames)-1].seq}
	i := slices.IndexFunc(r.follows, func(w follow) bool { return w.whole && w.n == len(r.frames) })
	if i >= 0 {
		again := r.follows[i].list
		again.At = max(again.At, r.at)
		t.dirty[again.ID] = again
	} else if r.kinds() >= min(batchKinds, t.rule.Count) { // others are never held, and would only delay
		for _, f := range r.frames {
			b.Codes = binary.LittleEndian.AppendUint64(b.Codes, f.code)
		}
		t.list(b)
	}
	t.dirty[b.ID] = b
	told := *b
	told.Codes = nil
	t.ended = append(t.ended, told)
}

// MayRepeat is the number of the first record of a scanner that may still turn out to repeat a stored batch, 0 for none.
// Only the intake calls it.
func (s *Spool) MayRepeat(scanner string) uint64 {
	if r := s.batches.runs[scanner]; r != nil {
		return r.pending(&s.batches.rule)
	}
	return 0
}

// SetBatches takes a new rule over. The intake calls it.
func (s *Spool) SetBatches(rule BatchRule) { s.batches.rule = rule }

// hearFrame gives the record of a frame its place in its scanner's run.
func (b *Batch) hearFrame(c *Candidate, r *Record) {
	t := b.s.batches
	if t.rule.Count == 0 {
		return
	}
	if !c.Heard || r.resent() {
		if open := t.runs[r.Scanner]; open != nil && open.pending(&t.rule) != 0 {
			r.Run = runBeside
		}
		return
	}
	if !slices.ContainsFunc(b.runs, func(k keptRun) bool { return k.scanner == r.Scanner }) {
		if open := t.runs[r.Scanner]; open != nil && r.Boot >= open.end() {
			t.finish(open) // whatever becomes of this frame
		}
		k := keptRun{scanner: r.Scanner}
		if open := t.runs[r.Scanner]; open != nil {
			was := *open
			k.run = &was
		}
		b.runs = append(b.runs, k)
	}
	r.Run, r.Batch = t.hear(r)
}

// resent says that a record is known to be of a frame that the scanner had sent before: no further one of its memory.
func (r *Record) resent() bool { return r.Reason == ReasonResend || r.Reason == ReasonInDoubt }

// keptRun is a scanner's run before a commit; nil if there was none.
type keptRun struct {
	scanner string
	run     *run
}

// undoRuns brings the runs back to what they were before the batch, of which nothing was accepted; first is its first
// record. A run that has ended with frames of it never was.
func (b *Batch) undoRuns(first uint64) {
	t := b.s.batches
	t.ended = slices.DeleteFunc(t.ended, func(e StoredBatch) bool {
		if e.end < first {
			return false
		}
		delete(t.dirty, e.ID)
		t.unlist(func(l *StoredBatch) bool { return l.ID == e.ID })
		return true
	})
	for _, k := range b.runs {
		if k.run == nil {
			delete(t.runs, k.scanner)
		} else {
			t.runs[k.scanner] = k.run
		}
	}
	b.runs = nil
}

// gateOf is the first record that must wait: it may be of a batch that came before. 0 if there is none.
func (t *batches) gateOf() (gate uint64) {
	for _, r := range t.runs {
		if since := r.pending(&t.rule); since != 0 && (gate == 0 || since < gate) {
			gate = since
		}
	}
	return gate
}

// LapsesAt is the boottime at which Lapse has something to do, if nothing comes.
func (s *Spool) LapsesAt() (at time.Duration, ok bool) {
	t := s.batches
	for _, r := range t.runs {
		if end := r.end() + lateBy; (r.batch || len(r.follows) > 0) && (!ok || end < at) {
			at, ok = end, true
		}
	}
	if again := t.tried + keepAgain; len(t.dirty) > 0 && (!ok || again < at) {
		at, ok = again, true
	}
	return at, ok
}

// Lapse ends the runs of the scanners that have been silent for long enough, and returns the stored batches that
// have come to their end since the last call. The caller tells of them and calls KeepBatches then. The intake calls it.
func (s *Spool) Lapse(now time.Duration) []StoredBatch {
	t := s.batches
	for _, r := range t.runs {
		if r.over(now) {
			t.finish(r)
		}
	}
	gate := t.gateOf()
	s.mu.Lock()
	opened := s.gate != 0 && gate != s.gate
	s.gate = gate
	s.mu.Unlock()
	if opened {
		s.woken()
	}
	ended := t.ended
	t.ended = nil
	return ended
}

// KeepBatches makes the lists of the batches that Lapse has returned durable. After an error Lapse's time comes again.
func (s *Spool) KeepBatches() error {
	t := s.batches
	now := s.opts.Boot()
	if len(t.dirty) == 0 || t.tried != 0 && now-t.tried < keepAgain {
		return nil
	}
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	st := settlement{counters: s.state.counters, cursors: maps.Clone(s.merged)}
	var last window.UTC
	for id, b := range t.dirty {
		last = max(last, b.At)
		if known := s.state.batches[id]; known != nil { // settled, or decided, before its run had ended
			b.Decision, b.By, b.Held = known.Decision, known.By, max(b.Held, known.Held)
		}
		copied := *b
		st.batches = append(st.batches, &copied)
	}
	st.unlisted = t.outdated(s.state.batches, last, s.waits)
	s.mu.Unlock()
	slices.SortFunc(st.batches, func(a, b *StoredBatch) int { return slices.Compare(a.ID[:], b.ID[:]) })
	st.applied = func() { s.merged = nil }
	if err := s.state.apply(&st); err != nil {
		t.tried = max(now, 1)
		return err
	}
	t.tried = 0
	clear(t.dirty)
	return nil
}

// BatchesKept says that KeepBatches has nothing left to do.
func (s *Spool) BatchesKept() bool { return len(s.batches.dirty) == 0 }

// outdated lists the batches that nothing needs any more, and forgets their lists. It needs mu.
func (t *batches) outdated(known map[idem.EventID]*StoredBatch, now window.UTC, waits func(*StoredBatch) bool) (ids []idem.EventID) {
	gone := map[idem.EventID]bool{}
	for id, b := range known {
		age := now.Sub(b.At)
		if !waits(b) && !(b.Held > 0 && age <= decidedFor) && age > t.rule.Keep && t.dirty[id] == nil {
			gone[id] = true
		}
	}
	if t.listed > maxListed { // the oldest lists give way
		var all []*StoredBatch
		for _, b := range known {
			all = append(all, b)
		}
		slices.SortFunc(all, func(a, b *StoredBatch) int { return cmp.Compare(a.At, b.At) })
		for over, i := t.listed-maxListed, 0; over > 0 && i < len(all); i++ {
			if b := all[i]; t.dirty[b.ID] == nil && b.len() > 0 && b.Held == 0 {
				over -= b.len()
				gone[b.ID] = true
			}
		}
	}
	if len(gone) == 0 {
		return nil
	}
	t.unlist(func(b *StoredBatch) bool { return gone[b.ID] })
	for id := range gone {
		ids = append(ids, id)
	}
	return ids
}

// waits says that records of a batch wait for a person, or come to that. It needs mu.
func (s *Spool) waits(b *StoredBatch) bool {
	if b.Held == 0 || b.Decision != Undecided {
		return false
	}
	id := b.ID.String()
	for _, x := range s.state.exceptions {
		if x.State == Held && x.Detail == id {
			return true
		}
	}
	seg, a := s.segmentOf(b.Last), s.state.counters
	ahead := a.AheadFrom != 0 && b.Last >= a.AheadFrom && b.Last <= a.AheadTo
	return seg != nil && !ahead && s.cursorOf(seg).Record < b.Last
}

// WaitingBatches lists the batches that wait for a person, since they came before, oldest first, without their lists.
func (s *Spool) WaitingBatches() (out []StoredBatch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.state.batches {
		if s.waits(b) {
			c := *b
			c.Codes = nil
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b StoredBatch) int {
		return cmp.Or(cmp.Compare(a.At, b.At), slices.Compare(a.ID[:], b.ID[:]))
	})
	return out
}

// StoredBatch is the batch with an id, without its list.
func (s *Spool) StoredBatch(id idem.EventID) (b StoredBatch, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.state.batches[id]
	if known == nil {
		return b, false
	}
	b = *known
	b.Codes = nil
	return b, true
}

func (st *state) loadBatch(k, p []byte) error {
	b := &StoredBatch{}
	if len(k) != len(b.ID) {
		return errCodec
	}
	copy(b.ID[:], k)
	if err := json.Unmarshal(p, b); err != nil || len(b.Codes)%8 != 0 {
		return cmp.Or(err, errCodec)
	}
	st.batches[b.ID] = b
	return nil
}

// Decided is work without records, for what follows from a person's decision on a batch: it is one change with it.
func Decided(b StoredBatch) Work { return Work{decided: &b} }

// HeldIn names the batch for which a record of the work waits for a person.
func (w *Work) HeldIn(seq uint64) (batch idem.EventID, held bool) {
	batch, held = w.held[seq]
	return batch, held
}

// missBatch makes an entry for the batch of a held record, if there is none: state.db was lost since it came.
func (st *settlement) missBatch(known map[idem.EventID]*StoredBatch, r *Record, id idem.EventID) {
	if k := known[id]; k != nil && k.Count > 0 {
		return // its run has ended, and tells how many
	}
	i := slices.IndexFunc(st.batches, func(b *StoredBatch) bool { return b.ID == id })
	if i < 0 {
		b := StoredBatch{ID: id, Scanner: r.Scanner, Repeat: true}
		if k := known[id]; k != nil {
			b = *k
		}
		i, st.batches = len(st.batches), append(st.batches, &b)
	}
	b := st.batches[i]
	b.Held, b.At = b.Held+1, max(b.At, r.At)
}

// beside is how far behind a record the search for its run's fate goes, by capture.
const beside = 2 * time.Minute

// sortOut finds the records of the work that are held. That a record may be of a batch which came before is written with it;
// that it is, with a later one of its scanner, which is on disk before the gate lets this one pass.
func (s *Spool) sortOut(w *Work) error {
	for i, r := range w.Records {
		if r.Run == 0 || r.Run == runBeside || r.IsDuplicate() {
			continue
		}
		batch, decided := r.Batch, !r.Batch.IsZero()
		look := func(q *Record) bool {
			switch {
			case q.At.Sub(r.At) > beside:
				decided = true
			case q.Scanner != r.Scanner || q.Run == runBeside:
			case q.Run == 0 || q.Run > r.Seq:
				decided = true
			case !q.Batch.IsZero():
				batch, decided = q.Batch, true
			}
			return !decided
		}
		for _, q := range w.Records[i+1:] {
			if decided || !look(q) {
				break
			}
		}
		if !decided {
			if err := s.Since(w.Records[len(w.Records)-1].Seq, look); err != nil {
				return err
			}
		}
		if !batch.IsZero() {
			if w.held == nil {
				w.held = map[uint64]idem.EventID{}
			}
			w.held[r.Seq] = batch
		}
	}
	return nil
}

// trail is what the start reads of a scanner's last run.
type trail struct {
	records []*Record // newest first
	bootID  string
	over    bool
}

// resumeRuns takes the scanners' last runs up again: a batch that a stop has cut off from its telling is told, and one
// whose frames still come goes on.
func (s *Spool) resumeRuns(trails map[string]*trail, now time.Duration) {
	for _, b := range s.state.batches {
		own := *b
		s.batches.list(&own)
	}
	for _, scanner := range slices.Sorted(maps.Keys(trails)) {
		tr := trails[scanner]
		for _, r := range slices.Backward(tr.records) {
			s.batches.hear(r)
			if open := s.batches.runs[scanner]; open != nil && !r.Batch.IsZero() {
				open.id = r.Batch
			}
		}
		open := s.batches.runs[scanner]
		switch {
		case open == nil:
		case s.state.batches[open.id] != nil && s.state.batches[open.id].Count >= len(open.frames):
			delete(s.batches.runs, scanner) // it was told, and ended there
		case tr.bootID == s.opts.BootID && now-open.last < cutFor:
			open.resume = now + resumeFor
		default:
			s.batches.finish(open)
		}
	}
	s.gate = s.batches.gateOf()
}

// addTrail takes a record, older than those before it, for the last run of its scanner.
func addTrail(trails map[string]*trail, r *Record, bootID string) {
	if r.Quality == window.Device || !r.Once.IsZero() || r.Anchor != r.Boot || r.Run == runBeside || r.resent() {
		return
	}
	tr := trails[r.Scanner]
	if tr == nil {
		tr = &trail{bootID: bootID}
		trails[r.Scanner] = tr
	}
	n := len(tr.records)
	switch {
	case n > 0 && tr.records[n-1].Seq <= r.Seq: // a damaged file is read again
	case tr.over || n >= maxList || n > 0 && (tr.bootID != bootID || tr.records[n-1].Boot-r.Boot >= quiet):
		tr.over = true
	default:
		tr.records = append(tr.records, r)
	}
}
