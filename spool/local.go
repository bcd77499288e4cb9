package spool

import (
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// acceptance is what the local rule remembers of an accepted scan.
type acceptance struct {
	event    idem.EventID
	seq      uint64
	physical idem.Key
	keys     idem.Keys
	extras   string
	typ      window.ScanType
	quantity int
	at       window.UTC
	anchor   time.Duration // boottime
	equal    time.Duration // boottime of the last frame with this physical identity
	span     time.Duration
}

// doubt is the acceptance behind a scanner's last record before an unclean stop: the scanner may not have
// heard the answer. The times are the record's.
type doubt struct {
	acc     *acceptance
	bootID  string
	boot    time.Duration
	at      window.UTC
	quality window.Quality
}

// doubtful is how long after an unclean stop an equal first frame counts as the resend of an answer that
// was never heard.
const doubtful = 10 * time.Minute

// bounce is how soon after the last equal frame a frame counts as its echo whatever the user did between.
const bounce = 300 * time.Millisecond

// preceding is a scanner's last movement, and when its frame came, if nothing has come of the scanner since.
type preceding struct {
	acc  *acceptance
	boot time.Duration
}

// How far a resend may be from where its device's settings put it, and how much longer it may come after the first
// acceptance.
const (
	resendJitter = 300 * time.Millisecond
	resendSlack  = 500 * time.Millisecond
)

// recent is the exact look-up behind the prefilter: the acceptances of the last horizon, by physical
// identity and by key. The intake alone uses it.
type recent struct {
	horizon  time.Duration
	physical map[[32]byte]*acceptance
	keys     map[idem.Key]*acceptance
	queue    []*acceptance // in the order of their adding
	head     int
	doubts   map[string]*doubt
	before   map[string]*preceding // by scanner
}

func newRecent(horizon time.Duration) *recent {
	return &recent{horizon: horizon, physical: map[[32]byte]*acceptance{}, keys: map[idem.Key]*acceptance{}, doubts: map[string]*doubt{}, before: map[string]*preceding{}}
}

// match finds the acceptance of which a frame is a retransmission, by the anchored rule: same physical
// identity, less than its span after the acceptance itself, whatever window either lies in. An explicit act
// of the user in between ends the match, but not for a known resend nor for an echo of the last equal frame.
func (r *recent) match(physical idem.Key, boot, act time.Duration, resend bool) *acceptance {
	a := r.physical[physical.Hash]
	if a == nil || boot-a.anchor >= a.span || r.broken(a, boot, act, resend) {
		return nil
	}
	return a
}

// resent finds the acceptance of which a frame is the resend, by a device that waits for answers. It sends again only what
// it sent last. Its mark decides; without one, when the frame comes.
func (r *recent) resent(c *Candidate) *acceptance {
	p := r.before[c.Identity.Scanner]
	if p == nil || c.Resends.Interval == 0 || p.acc.physical != c.Physical {
		return nil
	}
	gap := c.At.Boot - p.boot
	if c.Resends.Marked {
		if c.Resend && gap <= c.Resends.Interval+resendSlack {
			return p.acc
		}
		return nil
	}
	if c.Resends.Retries > 0 && gap >= c.Resends.Interval-resendJitter && gap <= c.Resends.Interval+resendJitter &&
		c.At.Boot-p.acc.anchor < c.Resends.within() {
		return p.acc
	}
	return nil
}

func (r *recent) broken(a *acceptance, boot, act time.Duration, resend bool) bool {
	return act > a.anchor && act <= boot && !resend && boot-a.equal > bounce
}

// resend says whether the scanner's first frame since must be taken for the resend of the doubtful one. An
// explicit act of the user in between says that it is not, but not for a known resend.
func (d *doubt) resend(c *Candidate, bootID string) bool {
	acted := c.Act > 0 && (d.bootID != bootID || c.Act > d.boot) && !c.Resend
	return d.acc.physical == c.Physical && !acted && !d.provablyOver(c.At, bootID)
}

func (d *doubt) provablyOver(at window.Reading, bootID string) bool {
	if d.bootID == bootID {
		return at.Boot-d.boot > doubtful
	}
	if at.Boot > doubtful { // this boot alone has lasted longer
		return true
	}
	// Both by the reference: a kernel that calls its clock disciplined before the reference has looked at it may be off by
	// more than doubtful.
	return d.quality == window.Synced && at.Quality == window.Synced && at.T.Sub(d.at) > doubtful
}

// holder returns the acceptance that has one of the keys.
func (r *recent) holder(k *idem.Keys) *acceptance {
	if a := r.keys[k.Idem]; a != nil {
		return a
	}
	if !k.Edge.IsZero() {
		return r.keys[k.Edge]
	}
	return nil
}

func (r *recent) add(a *acceptance, now time.Duration) {
	r.expire(now)
	r.physical[a.physical.Hash] = a
	for _, k := range [...]idem.Key{a.keys.Idem, a.keys.Edge} {
		if !k.IsZero() && r.keys[k] == nil { // taken already if a is the second anchor of an acceptance in doubt
			r.keys[k] = a
		}
	}
	r.queue = append(r.queue, a)
}

// restore undoes an add: previous is what the physical identity pointed to before.
func (r *recent) restore(a, previous *acceptance) {
	r.forget(a)
	if previous != nil {
		r.physical[previous.physical.Hash] = previous
	}
}

func (r *recent) forget(a *acceptance) {
	if r.physical[a.physical.Hash] == a {
		delete(r.physical, a.physical.Hash)
	}
	if r.keys[a.keys.Idem] == a {
		delete(r.keys, a.keys.Idem)
	}
	if r.keys[a.keys.Edge] == a {
		delete(r.keys, a.keys.Edge)
	}
}

// expire drops the acceptances that are older than the horizon.
func (r *recent) expire(now time.Duration) {
	for r.head < len(r.queue) && now-r.queue[r.head].anchor > r.horizon {
		r.forget(r.queue[r.head])
		r.queue[r.head] = nil
		r.head++
	}
	if r.head > 1024 && r.head > len(r.queue)/2 {
		r.queue = append(r.queue[:0], r.queue[r.head:]...)
		r.head = 0
	}
}

// acceptanceOf is what the local rule keeps of a record. Of a duplicate it is the acceptance that it repeats,
// anchored at the duplicate: what an event id says of its time is as good as the record's.
func acceptanceOf(r *Record) *acceptance {
	a := &acceptance{event: r.Event, seq: r.Seq, physical: r.Physical, keys: r.Keys, extras: r.Extras, typ: r.Type, quantity: r.Quantity,
		at: r.At, anchor: r.Anchor, equal: r.Boot, span: r.Span}
	if r.IsDuplicate() {
		a.event, a.seq, a.at = r.Of, r.OfSeq, eventTime(r.Of)
	}
	return a
}

// eventTime is the instant in a UUIDv7.
func eventTime(e idem.EventID) window.UTC {
	var ms window.UTC
	for _, b := range e[:6] {
		ms = ms<<8 | window.UTC(b)
	}
	return ms
}
