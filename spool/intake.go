package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
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
	Again    bool          // "same again" is armed: a new movement even if its keys are taken
	Item     Item

	// Converts is the boottime of the frame that was told as a duplicate and is now declared a movement of
	// its own; 0 for a live frame. No duplicate rule applies, and the local rule counts from that frame.
	Converts time.Duration
}

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
}

type undo struct {
	added    *acceptance // nil if only equal changed
	previous *acceptance // what the physical identity pointed to before
	touched  *acceptance
	equal    time.Duration
	doubtOf  string
	doubt    doubt
}

// NewBatch starts a batch. The batch before must have been committed.
func (s *Spool) NewBatch() *Batch { return &Batch{s: s} }

// Len is the number of records and notes.
func (b *Batch) Len() int { return len(b.records) + len(b.notes) }

// Note adds an audit line for a decision that captures nothing.
func (b *Batch) Note(l Line) { b.notes = append(b.notes, l) }

// Heard says that a scanner sent a frame which is no movement: its acceptance of before an unclean stop is no
// longer in doubt.
func (b *Batch) Heard(scanner string) {
	if d, ok := b.s.recent.doubts[scanner]; ok {
		delete(b.s.recent.doubts, scanner)
		b.undo = append(b.undo, undo{doubtOf: scanner, doubt: d})
	}
}

// Decide applies the local rule, makes the keys and adds the record to the batch. The prefilter goes first:
// only what it may have seen is looked up. ErrFull refuses the candidate and leaves no trace of it.
func (b *Batch) Decide(c *Candidate) (Decision, error) {
	s := b.s
	id := c.Identity
	keys := id.Keys(c.Policy, c.At.T)
	var winner *acceptance
	reason := ReasonBounce
	if s.filter.Ask(c.Physical, keys.Idem, keys.Edge) == bloom.PerhapsSeen && c.Converts == 0 {
		winner = s.recent.match(c.Physical, c.At.Boot, c.Act, c.Resend)
		if winner != nil && c.Resend {
			reason = ReasonResend
		}
		if d, ok := s.recent.doubts[c.Identity.Scanner]; ok {
			doubted := s.recent.resolveDoubt(c.Identity.Scanner, c.Physical, c.At, s.opts.BootID, c.Act)
			b.undo = append(b.undo, undo{doubtOf: c.Identity.Scanner, doubt: d})
			if winner == nil && doubted != nil {
				winner, reason = doubted, ReasonInDoubt
			}
		}
		if winner == nil && c.Shared && !c.Again {
			winner = s.recent.holder(&keys)
		}
	} else {
		b.Heard(c.Identity.Scanner)
	}
	if err := s.room(len(b.records), winner != nil); err != nil {
		b.rollbackDoubt(c.Identity.Scanner)
		return Decision{}, err
	}
	r := &Record{Seq: s.next + uint64(len(b.records)), Event: newEvent(c.At.T), Physical: c.Physical, Scanner: c.Identity.Scanner,
		At: c.At.T, Boot: c.At.Boot, Anchor: c.At.Boot, Quality: c.At.Quality, Item: c.Item}
	if winner != nil {
		r.Of, r.OfSeq, r.Reason = winner.event, winner.seq, reason
		r.Keys, r.Extras, r.Type, r.Quantity, r.Span = winner.keys, winner.extras, winner.typ, winner.quantity, winner.span
		b.undo = append(b.undo, undo{touched: winner, equal: winner.equal})
		winner.equal = c.At.Boot
		b.records = append(b.records, r)
		return Decision{r, Winner{winner.event, winner.at}}, nil
	}
	if c.Again || c.Converts != 0 || c.At.Suspect(c.Policy) || s.recent.holder(&keys) != nil {
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
	a := acceptanceOf(r)
	a.equal = c.At.Boot
	b.undo = append(b.undo, undo{added: a, previous: s.recent.physical[a.physical.Hash]})
	s.recent.add(a, c.At.Boot)
	s.filter.Add(c.At.Boot, a.physical, keys.Idem, keys.Edge)
	b.records = append(b.records, r)
	return Decision{Record: r}, nil
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
	limit := s.opts.MaxRecords
	if duplicate {
		limit += max(16, limit/100)
	}
	if s.reserve == reserveSpent {
		return ErrDiskFull
	}
	if s.unsettled+int64(inBatch) >= limit || s.bytes() >= s.opts.MaxBytes {
		return ErrFull
	}
	return nil
}

func (b *Batch) rollbackDoubt(scanner string) {
	if n := len(b.undo); n > 0 && b.undo[n-1].doubtOf == scanner {
		b.s.recent.doubts[scanner] = b.undo[n-1].doubt
		b.undo = b.undo[:n-1]
	}
}

func (b *Batch) rollback() {
	for i := len(b.undo) - 1; i >= 0; i-- {
		u := &b.undo[i]
		switch {
		case u.added != nil:
			b.s.recent.restore(u.added, u.previous)
		case u.touched != nil:
			u.touched.equal = u.equal
		default:
			b.s.recent.doubts[u.doubtOf] = u.doubt
		}
	}
	b.undo = nil
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
	b.rollback()
	if IsNoSpace(err) {
		s.spendReserve()
	}
	if s.active != nil {
		s.active.close()
		s.active = nil
		s.roll() // at once if it can be: from here on the broken segment's end is known
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
	if s.active == nil || s.active.count() >= uint64(s.opts.SegmentRecords) || s.active.count() > 0 && s.active.bytes >= max(1<<18, s.opts.MaxBytes/8) {
		if err := s.roll(); err != nil {
			return fmt.Errorf("cannot begin a segment: %w", err)
		}
	}
	if n := len(b.records); n > 0 && b.records[n-1].At >= s.side.Clock.Reserved {
		if err := s.writeSidecar(segmentEntry{}); err != nil {
			return err
		}
	}
	if err := s.active.write(b.records, b.notes); err != nil {
		return err
	}
	bytes := diskBytes(s.active.path)
	s.mu.Lock()
	seg := s.active
	if n := len(b.records); n > 0 {
		seg.last = b.records[n-1].Seq
		seg.newest = max(seg.newest, b.records[n-1].Boot)
		s.next = seg.last + 1
		s.unsettled += int64(n)
		if len(s.tail) >= 2*tailRecords {
			s.tail = append([]Record(nil), s.tail[len(s.tail)-tailRecords:]...)
		}
		for _, r := range b.records {
			s.tail = append(s.tail, *r)
		}
	}
	seg.notes += uint64(len(b.notes))
	seg.bytes = bytes
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return nil
}

var errOrder = errors.New("cannot settle: the verdicts do not fit the work")
