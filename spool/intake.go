package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"scanonce/bloom"
	"scanonce/idem"
	"scanonce/window"
)

// Reasons why a record is a local duplicate.
const (
	ReasonBounce  = "bounce"
	ReasonResend  = "resend"
	ReasonInDoubt = "in_doubt"
)

// Candidate is a parsed scan on its way to becoming a record.
type Candidate struct {
	Physical idem.Key
	Identity idem.Identity // Again is the spool's business and must be empty
	Policy   window.Policy
	Shared   bool // several agents hear this scanner
	At       window.Reading
	Act      time.Duration // boottime of the user's last explicit act at this scanner; 0 is none
	Resend   bool          // the device says that it sends this again
	Resends  Resends       // how it does, if it waits for answers
	Again    bool          // "same again" is armed: a new movement even if its keys are taken
	Heard    bool          // a frame of a device, which may come out of its memory
	Item     Item

	// Converts is the boottime of the frame that was told as a duplicate and is now declared a movement of
	// its own; 0 for a live frame. No duplicate rule applies, and the local rule counts from that frame.
	Converts time.Duration

	Once Once // the application's request, to be answered once; RoomForKey says whether it may be there
	// Given is the Idempotency-Key of a scan whose time an application gives, GivenAt that time. The key is in the
	// keys ("again"), so that the ledger knows the scan for ever; no duplicate rule applies, and none counts from it.
	Given   string
	GivenAt window.UTC
}

// Resends is how a device sends a message again to which it has had no answer.
type Resends struct {
	Retries  int           // how often; 0 is not, or with a mark not known
	Interval time.Duration // how long it waits each time; 0 of a device that waits for no answer
	Marked   bool          // it says so each time
}

// within is how long after the acceptance the last resend comes.
func (r *Resends) within() time.Duration { return time.Duration(r.Retries)*r.Interval + resendSlack }

// Winner is the acceptance that a duplicate repeats.
type Winner struct {
	Event idem.EventID
	At    window.UTC
}

// Decision is what became of a candidate. It holds once the batch is committed.
type Decision struct {
	Record *Record
	Winner Winner // of a duplicate
}

// Batch collects what one commit makes durable together. It belongs to the intake goroutine.
type Batch struct {
	s       *Spool
	records []*Record
	notes   []Line
	undo    []undo
	runs    []keptRun
}

type undo struct {
	added    *acceptance // nil if only equal changed
	previous *acceptance // what the physical identity pointed to before
	touched  *acceptance
	equal    time.Duration
	once     *[16]byte
	doubtOf  string
	doubt    *doubt
	beforeOf string
	before   *preceding
}

// NewBatch starts a batch. The batch before must have been committed.
func (s *Spool) NewBatch() *Batch { return &Batch{s: s} }

// Len is the number of records and notes.
func (b *Batch) Len() int { return len(b.records) + len(b.notes) }

// Note adds an audit line for a decision that captures nothing. Near the bound on bytes it waits in memory, up
// to a number, until there is room: such lines must not take the room of scans.
func (b *Batch) Note(l Line) {
	switch {
	case b.s.roomForNotes():
		b.notes = append(b.notes, l)
	case len(b.s.waiting) < waitingNotes:
		b.s.waiting = append(b.s.waiting, l)
	}
}

const waitingNotes = 4096

func (s *Spool) roomForNotes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes() < s.opts.MaxBytes/10*9
}

// noteLate writes the notes that had to wait, once there is room.
func (s *Spool) noteLate() error {
	if len(s.waiting) == 0 || !s.roomForNotes() {
		return nil
	}
	b := s.NewBatch()
	b.notes, s.waiting = s.waiting, nil
	return b.Commit()
}

// Heard says that a scanner sent a frame which is no movement: its acceptance of before an unclean stop is no
// longer in doubt.
func (b *Batch) Heard(scanner string) {
	if d, ok := b.s.recent.doubts[scanner]; ok {
		delete(b.s.recent.doubts, scanner)
		b.undo = append(b.undo, undo{doubtOf: scanner, doubt: d})
	}
}

// Between says that a scanner sent something else than a movement, readable or not: what comes next is no resend of
// the movement before it.
func (b *Batch) Between(scanner string) {
	if b.s.recent.before[scanner] != nil {
		b.precede(scanner, nil)
	}
}

// precede notes a scanner's last movement.
func (b *Batch) precede(scanner string, p *preceding) {
	b.undo = append(b.undo, undo{beforeOf: scanner, before: b.s.recent.before[scanner]})
	b.s.recent.before[scanner] = p
}

// Decide applies the local rule, makes the keys and adds the record to the batch. ErrFull and ErrDiskFull
// refuse the candidate and leave no trace of it.
func (b *Batch) Decide(c *Candidate) (Decision, error) {
	s := b.s
	id := c.Identity
	at, suspect, given := c.At, c.At.Suspect(c.Policy), c.Given != ""
	if given {
		id.Again, at, suspect = c.Given, c.At.AsDevice(c.GivenAt), false
	}
	keys := id.Keys(c.Policy, at.T)
	mark := len(b.undo)
	// The prefilter goes first: of what it has surely not seen nothing is looked up.
	perhaps := s.filter.Ask(c.Physical, keys.Idem, keys.Edge) == bloom.PerhapsSeen
	var winner *acceptance
	var reason string
	if c.Converts == 0 && !given {
		winner, reason = b.repeated(c, &keys, perhaps, suspect)
	}
	if err := s.room(len(b.records), winner != nil); err != nil {
		b.rollback(mark)
		switch {
		case reason == ReasonResend:
			b.follow(c, winner) // it comes once more
		case c.Heard:
			b.Between(id.Scanner)
		}
		return Decision{}, err
	}
	r := &Record{Seq: s.next + uint64(len(b.records)), Event: newEvent(c.At.T), Physical: c.Physical, Scanner: id.Scanner,
		At: at.T, Boot: at.Boot, Anchor: at.Boot, Quality: at.Quality, Once: c.Once, Item: c.Item}
	if winner != nil {
		r.Of, r.OfSeq, r.Reason = winner.event, winner.seq, reason
		r.Keys, r.Extras, r.Type, r.Quantity, r.Span = winner.keys, winner.extras, winner.typ, winner.quantity, winner.span
		b.undo = append(b.undo, undo{touched: winner, equal: winner.equal})
		winner.equal = c.At.Boot
		b.follow(c, winner)
		b.answered(r)
		b.hearFrame(c, r)
		b.records = append(b.records, r)
		return Decision{r, Winner{winner.event, winner.at}}, nil
	}
	if !given && (c.Again || c.Converts != 0 || suspect || perhaps && s.recent.holder(&keys) != nil) {
		id.Again = r.Event.String()
		keys = id.Keys(c.Policy, c.At.T)
	}
	if c.Converts != 0 {
		r.Anchor = c.Converts
	}
	r.Keys, r.Extras, r.Type, r.Quantity = keys, id.Extras(c.Policy), id.Type, id.Quantity
	r.Span = c.Policy.Width
	if c.Shared {
		r.Span += c.Policy.Guard
	}
	if given {
		r.Span = 0
	} else {
		a := acceptanceOf(r)
		b.remember(a, c.At.Boot)
		b.follow(c, a)
	}
	b.answered(r)
	b.hearFrame(c, r)
	b.records = append(b.records, r)
	return Decision{Record: r}, nil
}

// repeated finds the acceptance that a frame repeats, and why.
func (b *Batch) repeated(c *Candidate, keys *idem.Keys, perhaps, suspect bool) (*acceptance, string) {
	s := b.s
	var winner *acceptance
	// What is marked repeats the frame before, and what was refused or unreadable was one too.
	before := s.recent.before[c.Identity.Scanner]
	marked := c.Resend && before != nil && before.acc.physical == c.Physical
	if perhaps {
		winner = s.recent.match(c.Physical, c.At.Boot, c.Act, marked)
	}
	if winner == nil {
		if a := s.recent.resent(c); a != nil {
			return a, ReasonResend
		}
	}
	if d, ok := s.recent.doubts[c.Identity.Scanner]; ok {
		b.Heard(c.Identity.Scanner)
		if d.resend(c, s.opts.BootID) {
			// Also if it comes within the span of the acceptance: the hand that scanned again has echoes of its own, and
			// they repeat this frame. The local rule counts anew from here.
			a := *d.acc
			a.anchor, a.equal = c.At.Boot, c.At.Boot
			b.remember(&a, c.At.Boot)
			return &a, ReasonInDoubt
		}
	}
	switch {
	case winner != nil && marked:
		return winner, ReasonResend
	case winner == nil && perhaps && c.Shared && !c.Again && !suspect:
		winner = s.recent.holder(keys)
	}
	return winner, ReasonBounce
}

// follow notes what a frame of a device that waits for answers was, for the one behind it.
func (b *Batch) follow(c *Candidate, a *acceptance) {
	if c.Heard && c.Resends.Interval > 0 {
		b.precede(c.Identity.Scanner, &preceding{a, c.At.Boot})
	}
}

func (b *Batch) remember(a *acceptance, boot time.Duration) {
	b.undo = append(b.undo, undo{added: a, previous: b.s.recent.physical[a.physical.Hash]})
	b.s.recent.add(a, boot)
	b.s.filter.Add(boot, a.physical, a.keys.Idem, a.keys.Edge)
}

func newEvent(t window.UTC) idem.EventID {
	var random [10]byte
	rand.Read(random[:])
	return idem.NewEventID(t, random)
}

// NewEvent makes an event id for an audit line of its own.
func NewEvent(t window.UTC) idem.EventID { return newEvent(t) }

// room checks the bounds. A duplicate of what is already accepted may use a small reserve: refusing it would
// make the user scan again a movement that is counted.
func (s *Spool) room(inBatch int, duplicate bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, bytes := s.opts.MaxRecords, s.opts.MaxBytes
	if duplicate {
		limit += max(16, limit/100)
		bytes += bytes / 100
	}
	if s.reserve == reserveSpent {
		return ErrDiskFull
	}
	if s.unsettled+int64(inBatch) >= limit || s.bytes() >= bytes {
		return ErrFull
	}
	return nil
}

// rollback undoes what the batch did after the mark.
func (b *Batch) rollback(mark int) {
	for i := len(b.undo) - 1; i >= mark; i-- {
		u := &b.undo[i]
		switch {
		case u.added != nil:
			b.s.recent.restore(u.added, u.previous)
		case u.touched != nil:
			u.touched.equal = u.equal
		case u.once != nil:
			b.s.state.answers.drop(*u.once)
		case u.beforeOf != "":
			b.s.recent.before[u.beforeOf] = u.before
		default:
			b.s.recent.doubts[u.doubtOf] = u.doubt
		}
	}
	b.undo = b.undo[:mark]
}

// CommitError says that nothing of a batch was accepted.
type CommitError struct {
	Err     error
	NoSpace bool
}

func (e *CommitError) Error() string { return "cannot make the scans durable: " + e.Err.Error() }

// Unwrap gives the cause.
func (e *CommitError) Unwrap() error { return e.Err }

// Commit makes the batch durable: one transaction, synced. After an error (*CommitError) nothing of it is
// accepted, the segment is closed for ever and the next commit begins another.
func (b *Batch) Commit() error {
	s := b.s
	if b.Len() == 0 {
		return nil
	}
	err := b.commit()
	if err == nil {
		return nil
	}
	if len(b.records) > 0 {
		b.undoRuns(b.records[0].Seq)
	}
	others := map[string]int{} // by scanner, what was heard besides resends
	for i := range b.undo {
		if scanner := b.undo[i].beforeOf; scanner != "" {
			others[scanner]++
		}
	}
	b.rollback(0)
	for _, r := range b.records {
		if p := s.recent.before[r.Scanner]; p != nil && r.Reason == ReasonResend && others[r.Scanner] > 0 {
			others[r.Scanner]--
			s.recent.before[r.Scanner] = &preceding{p.acc, r.Boot} // it comes once more
		}
	}
	for scanner, n := range others {
		if n > 0 { // refused or unreadable: it comes again, and is no resend of what was before it
			delete(s.recent.before, scanner)
		}
	}
	if errors.Is(err, ErrDiskFull) || errors.Is(err, ErrClosed) {
		return &CommitError{Err: err, NoSpace: IsNoSpace(err)}
	}
	if IsNoSpace(err) {
		s.spendReserve()
	}
	broken := s.active
	if broken != nil {
		broken.close()
		s.mu.Lock()
		s.active = nil
		s.mu.Unlock()
	}
	if s.roll() != nil { // from here on the broken segment's end is known
		s.writeSidecar(segmentEntry{})
	}
	if broken != nil {
		s.ails(broken, err)
	}
	return &CommitError{Err: err, NoSpace: IsNoSpace(err)}
}

func (b *Batch) commit() error {
	s := b.s
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if s.reserve == reserveSpent {
		return ErrDiskFull // what is left is for the drain, not for notes
	}
	if s.active == nil || s.active.count() >= uint64(s.opts.SegmentRecords) || s.active.bytes >= max(1<<18, s.opts.MaxBytes/8) {
		if err := s.roll(); err != nil {
			return fmt.Errorf("cannot begin a segment: %w", err)
		}
	}
	var newest time.Duration
	var high window.UTC
	for _, r := range b.records {
		newest, high = max(newest, r.Boot), max(high, r.At)
	}
	if len(b.records) > 0 && high >= s.side.Clock.Reserved {
		if err := s.writeSidecar(segmentEntry{}); err != nil {
			return err
		}
	}
	if len(b.records) > 0 && !slices.ContainsFunc(b.records, func(r *Record) bool { return r.Run != 0 }) {
		select {
		case s.coming <- b.records:
		default:
		}
	}
	if err := s.opts.durable(DiskCommit, s.active.path, func() error { return s.active.write(b.records, b.notes) }); err != nil {
		return err
	}
	if n := len(b.records); n > 0 {
		s.marks.set(markNext, s.side.Epoch, s.boot, b.records[n-1].Seq+1)
	}
	bytes, gate := diskBytes(s.active.path), s.batches.gateOf()
	s.mu.Lock()
	seg := s.active
	if n := len(b.records); n > 0 {
		seg.last = b.records[n-1].Seq
		seg.newest = max(seg.newest, newest)
		s.next = seg.last + 1
		s.unsettled += int64(n)
		if len(s.tail) >= 2*tailRecords {
			// Whoever reads the old one keeps it; there is room for all that comes until the next time.
			s.tail = append(make([]*Record, 0, 3*tailRecords), s.tail[len(s.tail)-tailRecords:]...)
		}
		s.tail = append(s.tail, b.records...)
	}
	seg.notes += uint64(len(b.notes))
	seg.bytes = bytes
	s.gate = gate
	s.mu.Unlock()
	s.woken()
	return nil
}

func (s *Spool) woken() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

var errOrder = errors.New("cannot settle: the verdicts do not fit the work")
