// Package forward drains the spool into the stores: claim, commit, settle, audit. A lone scan and a backlog
// of days go through the same function, as a batch of one or of many.
package forward

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// Link is how the forwarder stands with the ledger.
type Link string

// The links. Reconciling is Online with a backlog of an outage still to drain.
const (
	Online      Link = "ONLINE"
	Offline     Link = "OFFLINE"
	Reconciling Link = "RECONCILING"
)

// Config is what the forwarder is told.
type Config struct {
	Agent      string
	Facility   string
	Batch      int           // records a round
	BackoffMin time.Duration // full jitter between 0 and a bound that doubles from here …
	BackoffMax time.Duration // … to here
	RateLimit  int           // rows a second while draining; 0 is no limit
	Timeout    time.Duration // of one call to a store
	TTL        time.Duration // of a claim, for the audit
}

// Settled is a record that has become final, and how.
type Settled struct {
	Record  spool.Record
	Verdict spool.Verdict
}

// Listener is told what happens. Its methods are called from the forwarder's goroutine and must not block.
type Listener interface {
	// Settled tells of the final records of one settlement, in order, after it is durable.
	Settled(number uint64, records []Settled)
	// LinkChanged tells of a new link, and of another mistake behind the same outage.
	LinkChanged(l Link, cause error)
	// ClaimsChanged tells that the claim authority does not answer (cause), or does again (nil).
	ClaimsChanged(cause error)
	Quarantined(n int, detail string)
}

// pinger is an Authority that can be away. While it is, the ledger's unique keys decide alone.
type pinger interface{ Ping(context.Context) error }

// timekeeper is a Ledger with a clock: the reference of all its agents. It returns the ledger's UTC now and
// the error of that.
type timekeeper interface {
	Clock(context.Context) (window.UTC, time.Duration, error)
}

// referenceEvery is how often the ledger's clock is asked, while something is sent at all.
const referenceEvery = time.Minute

// retryDeferred is how long a record waits, plus up to as much again, before the ledger's keys alone decide.
const retryDeferred = 250 * time.Millisecond

// Forwarder is the task that drains. Only one may run on a spool.
type Forwarder struct {
	cfg       Config
	spool     *spool.Spool
	authority idem.Authority
	ledger    ledger.Ledger
	clock     *window.Clock
	listener  Listener
	ready     chan struct{}
	readyOnce sync.Once

	due      map[uint64]time.Duration // boottime at which an exception is tried again
	answered bool                     // the ledger has, once
	began    bool                     // a round has succeeded
	backoff  time.Duration
	compared time.Duration // boottime of the last look at the ledger's clock, 0 for never

	claimsLost chan struct{}
	calls      chan func() // run between two rounds

	mu          sync.Mutex
	link        Link
	cause       error
	since       window.UTC
	claimsCause error // why no claims are made; nil while they are
	claimsSince window.UTC
	stats       Stats
}

// Stats is a snapshot of the forwarder's figures.
type Stats struct {
	Link                        Link
	Cause                       error      // of the last failure while Offline
	Since                       window.UTC // when the link became what it is; 0 at the start
	ClaimsCause                 error      // why claims are not made at present
	ClaimsSince                 window.UTC
	Won, Held, Unknown, Batches uint64
	AmbiguousWinners            uint64
}

// New makes a forwarder.
func New(cfg Config, s *spool.Spool, a idem.Authority, l ledger.Ledger, clock *window.Clock, listener Listener) *Forwarder {
	if cfg.RateLimit > 0 { // a live scan waits for the pause behind a batch: a quarter of a second at most
		cfg.Batch = min(cfg.Batch, max(1, cfg.RateLimit/4))
	}
	return &Forwarder{cfg: cfg, spool: s, authority: a, ledger: l, clock: clock, listener: listener,
		ready: make(chan struct{}), due: map[uint64]time.Duration{}, claimsLost: make(chan struct{}, 1), calls: make(chan func())}
}

func (f *Forwarder) String() string { return "forwarder" }

// Ready is closed once the first round is over, whether or not the stores answered.
func (f *Forwarder) Ready() <-chan struct{} { return f.ready }

// Stats returns the forwarder's figures.
func (f *Forwarder) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.stats
	s.Link, s.Cause, s.ClaimsCause = f.link, f.cause, f.claimsCause
	if s.Link == "" { // nothing is known yet
		s.Link = Offline
	}
	s.Since, s.ClaimsSince = f.since, f.claimsSince
	return s
}

// Online says whether an accepted scan will be forwarded at once.
func (f *Forwarder) Online() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.link == Online || f.link == Reconciling
}

// Run drains until ctx ends. A store that fails is tried again with full jitter; what waits stays where it is.
func (f *Forwarder) Run(ctx context.Context) error {
	var probing sync.WaitGroup
	defer probing.Wait()
	if p, ok := f.authority.(pinger); ok {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		probing.Go(func() { f.probeClaims(ctx, p) })
	}
	for ctx.Err() == nil {
		f.attend()
		n, err := f.round(ctx)
		if ctx.Err() == nil {
			f.judge(n, err)
		}
		f.readyOnce.Do(func() { close(f.ready) })
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			f.backoff = f.grow(f.backoff)
			f.sleep(ctx, jitter(f.backoff), false)
			continue
		}
		f.backoff = 0
		f.compareClocks(ctx)
		if n > 0 {
			if f.cfg.RateLimit > 0 && f.spool.Backlog() > 0 {
				f.sleep(ctx, time.Duration(n)*time.Second/time.Duration(f.cfg.RateLimit), false)
			}
			continue
		}
		waiting := f.spool.Prune()
		wait := time.Duration(-1)
		if at, ok := f.nextDue(); ok {
			wait = max(0, at-f.clock.Boot())
		} else if waiting {
			wait = time.Minute
		}
		f.sleep(ctx, wait, true)
	}
	return nil
}

// judge sets the link by what came of a round. A backlog that is there at the start is that of an outage too.
func (f *Forwarder) judge(moved int, err error) {
	switch {
	case err != nil:
		f.setLink(Offline, err)
		return
	case moved == 0:
		f.setLink(Online, nil)
	case f.current() == Offline || !f.began && f.spool.Backlog() > 0:
		f.spool.GoLive()
		f.setLink(Reconciling, nil)
	}
	f.began = true
}

// Flush drains once more, as far as ctx allows: for an orderly stop.
func (f *Forwarder) Flush(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := f.round(ctx); n == 0 || err != nil {
			return
		}
	}
}

// sleep waits for d (for ever if negative), for ctx, or, if wakes, for a commit of the spool.
func (f *Forwarder) sleep(ctx context.Context, d time.Duration, wakes bool) {
	var timer <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timer = t.C
	}
	var wake <-chan struct{}
	var calls <-chan func()
	if wakes {
		wake, calls = f.spool.Wake(), f.calls
	}
	select {
	case <-ctx.Done():
	case <-timer:
	case <-wake:
	case call := <-calls:
		call()
	}
}

// attend runs the calls that have come.
func (f *Forwarder) attend() {
	for {
		select {
		case call := <-f.calls:
			call()
		default:
			return
		}
	}
}

// Requeue tries quarantined records again, after what made the ledger refuse them has been mended: those of
// the given events with their duplicates, or all. It returns how many there were.
func (f *Forwarder) Requeue(ctx context.Context, events []idem.EventID, all bool) (int, error) {
	n, failed := 0, error(nil)
	done := make(chan struct{})
	call := func() {
		defer close(done)
		n, failed = f.requeue(events, all)
	}
	select {
	case f.calls <- call:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	<-done
	return n, failed
}

func (f *Forwarder) requeue(events []idem.EventID, all bool) (int, error) {
	var verdicts []spool.Verdict
	chosen := map[uint64]bool{}
	for _, x := range f.spool.Exceptions() { // oldest first: a duplicate comes behind its winner
		if x.State != spool.Quarantined {
			continue
		}
		r, err := f.spool.Load(x.Seq)
		if err != nil {
			return 0, err
		}
		if !all && !slices.Contains(events, r.Event) && !chosen[r.OfSeq] {
			continue
		}
		chosen[r.Seq] = true
		v := spool.Verdict{Seq: r.Seq, State: spool.Deferred, Detail: x.Detail}
		if r.IsDuplicate() {
			v.State = spool.Waiting
		}
		verdicts = append(verdicts, v)
	}
	if len(verdicts) == 0 {
		return 0, nil
	}
	if err := f.spool.Settle(spool.Work{}, verdicts, nil); err != nil {
		return 0, err
	}
	for _, v := range verdicts {
		delete(f.due, v.Seq)
	}
	return len(verdicts), nil
}

func (f *Forwarder) grow(d time.Duration) time.Duration {
	return min(max(2*d, f.cfg.BackoffMin), f.cfg.BackoffMax)
}

// jitter is full: a fleet that lost its store together does not come back together, at the bound either.
func jitter(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d) + 1)) }

// probeClaims asks an authority that was away until it answers again. It has a goroutine of its own, so that
// an authority that never answers delays no commit.
func (f *Forwarder) probeClaims(ctx context.Context, p pinger) {
	ask := func() error {
		c, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
		defer cancel()
		return p.Ping(c)
	}
	if err := ask(); err != nil && ctx.Err() == nil { // before the first scan has to find out
		f.setClaims(err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.claimsLost:
		}
		for d := f.grow(0); ; d = f.grow(d) {
			f.sleep(ctx, jitter(d), false)
			if ctx.Err() != nil {
				return
			}
			err := ask()
			if ctx.Err() != nil {
				return
			}
			f.setClaims(err)
			if err == nil {
				break
			}
		}
	}
}

// setClaims notes whether claims can be made, and tells of changes.
func (f *Forwarder) setClaims(cause error) {
	now := f.clock.Now().T
	f.mu.Lock()
	if (f.claimsCause == nil) != (cause == nil) {
		f.claimsSince = now
	}
	changed := (f.claimsCause == nil) != (cause == nil) || mistake(f.claimsCause) != mistake(cause)
	lost := f.claimsCause == nil && cause != nil
	f.claimsCause = cause
	f.mu.Unlock()
	if lost {
		select {
		case f.claimsLost <- struct{}{}:
		default:
		}
	}
	if changed {
		f.listener.ClaimsChanged(cause)
	}
}

// mistake is what a person must mend, "" for weather: an outage says something else at every try, and only
// news of the former kind is worth telling again.
func mistake(err error) string {
	var claims *idem.ConfigError
	var rows *ledger.ConfigError
	var file *ledger.DamageError
	switch {
	case errors.As(err, &claims):
		return claims.Error()
	case errors.As(err, &rows):
		return rows.Error()
	case errors.As(err, &file):
		return file.Error()
	}
	return ""
}

// compareClocks takes the ledger's clock for the reference of normalized time. Failing is no failure.
func (f *Forwarder) compareClocks(ctx context.Context) {
	k, ok := f.ledger.(timekeeper)
	now := f.clock.Boot()
	if !ok || f.compared != 0 && now-f.compared < referenceEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	if t, e, err := k.Clock(ctx); err == nil {
		f.clock.Correct(t, e)
		f.compared = now
	}
}

func (f *Forwarder) current() Link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.link
}

func (f *Forwarder) setLink(l Link, cause error) {
	now := f.clock.Now().T
	f.mu.Lock()
	if f.link != l {
		f.since = now
	}
	changed := f.link != l || mistake(f.cause) != mistake(cause)
	f.link, f.cause = l, cause
	f.mu.Unlock()
	if changed {
		f.listener.LinkChanged(l, cause)
	}
}

// round settles what has come since an outage, then one batch of the backlog, and returns how many records and
// lines it moved. While the ledger is not known to answer, a round without work still asks it.
func (f *Forwarder) round(ctx context.Context) (int, error) {
	moved, err := f.forwardLines(ctx)
	if err != nil {
		return 0, err
	}
	retried, err := f.dueExceptions()
	if err != nil {
		return 0, err
	}
	live, err := f.spool.NextLive(f.cfg.Batch)
	if err == nil && (!live.Empty() || len(retried) > 0) {
		moved += len(live.Records) + len(retried)
		err = f.process(ctx, live, retried)
	}
	if err != nil {
		return 0, err
	}
	w, err := f.spool.Next(f.cfg.Batch)
	if err != nil {
		return 0, err
	}
	if !w.Empty() {
		return moved + len(w.Records) + len(w.Notes), f.process(ctx, w, nil)
	}
	if moved == 0 && (f.current() == Offline || !f.answered) {
		c, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
		defer cancel()
		if err := f.ledger.Ping(c); err != nil {
			return 0, err
		}
		f.answered = true
	}
	return moved, nil
}

// process decides on a batch and settles it.
func (f *Forwarder) process(ctx context.Context, w spool.Work, retried []spool.Record) error {
	verdicts, err := f.decide(ctx, retried, w.Records)
	if err != nil {
		return err
	}
	f.answered = true
	return f.settle(w, retried, verdicts)
}

func (f *Forwarder) forwardLines(ctx context.Context) (int, error) {
	lines, err := f.spool.Lines(f.cfg.Batch)
	if err != nil || len(lines) == 0 {
		return 0, err
	}
	out := make([]ledger.Line, len(lines))
	for i, l := range lines {
		out[i] = ledger.Line{Event: l.Event, Agent: f.cfg.Agent, At: l.At, Key: l.Key, Ref: l.Ref, Outcome: ledger.Outcome(l.Outcome),
			Reason: l.Reason, Winner: l.Winner, Scanner: l.Scanner, Type: l.Type, CapturedAt: l.CapturedAt, TTL: l.TTL,
			Length: l.Length, Symbology: l.Symbology}
		if out[i].Flaw() != "" {
			mend(&out[i])
		}
	}
	c, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	if err := f.ledger.AppendLines(c, out); err != nil {
		return 0, err
	}
	f.spool.LinesForwarded(len(lines))
	return len(lines), nil
}

// mend takes out of a line what no ledger stores. A line must never hold up the rows behind it.
func mend(l *ledger.Line) {
	for _, s := range [...]*string{&l.Reason, &l.Scanner, &l.Symbology} {
		*s = strings.ReplaceAll(strings.ToValidUTF8(*s, ""), "\x00", "")
	}
	if l.Type > window.Count {
		l.Type = 0
	}
}

// dueExceptions loads the deferred and waiting records whose time has come. After a restart all have.
func (f *Forwarder) dueExceptions() ([]spool.Record, error) {
	now := f.clock.Boot()
	var out []spool.Record
	for _, x := range f.spool.Exceptions() {
		if x.State != spool.Deferred && x.State != spool.Waiting || f.due[x.Seq] > now || len(out) == f.cfg.Batch {
			continue
		}
		r, err := f.spool.Load(x.Seq)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (f *Forwarder) nextDue() (time.Duration, bool) {
	var at time.Duration
	found := false
	for _, d := range f.due {
		if !found || d < at {
			at, found = d, true
		}
	}
	return at, found
}

// decide asks the stores about a batch. retried records were deferred before: they are inserted without a
// claim, since the unique keys decide. An error says nothing about any of the records.
func (f *Forwarder) decide(ctx context.Context, retried, fresh []spool.Record) (map[uint64]spool.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	var rows []ledger.Row
	var captures, duplicates []*spool.Record
	reasons := map[uint64]string{} // why a capture is suppressed, if it is
	for i := range retried {
		r := &retried[i]
		if r.IsDuplicate() {
			duplicates = append(duplicates, r)
			continue
		}
		captures = append(captures, r)
		rows = append(rows, f.row(r, ledger.ClaimBypassed))
		reasons[r.Seq] = reasonOtherAgent
	}
	bypass := f.Stats().ClaimsCause != nil
	var claims []idem.Claim
	var claimed []*spool.Record
	for i := range fresh {
		r := &fresh[i]
		if r.IsDuplicate() {
			duplicates = append(duplicates, r)
			continue
		}
		captures = append(captures, r)
		if bypass {
			rows = append(rows, f.row(r, ledger.ClaimBypassed))
			reasons[r.Seq] = reasonOtherAgent
			continue
		}
		claims = append(claims, idem.Claim{Keys: r.Keys, Event: r.Event})
		claimed = append(claimed, r)
	}
	for i, o := range f.claim(ctx, claims) {
		r := claimed[i]
		reasons[r.Seq] = reasonOtherAgent
		o.Match(func() {
			rows = append(rows, f.row(r))
			reasons[r.Seq] = reasonClaimLost
		}, func(idem.EventID) {}, func(error) {})
	}
	verdicts := make(map[uint64]spool.Verdict, len(captures)+len(duplicates))
	written := map[idem.EventID]window.UTC{}
	poison := map[idem.EventID]string{}
	if len(rows) > 0 {
		ins, err := f.ledger.Insert(ctx, rows)
		if err != nil {
			return nil, err
		}
		for _, r := range ins.Receipts {
			written[r.Event] = r.CommittedAt
		}
		for _, p := range ins.Poison {
			poison[p.Event] = p.Detail
		}
	}
	inBatch := map[idem.EventID]uint64{}
	var probes []ledger.Probe
	var asked []*spool.Record
	for _, r := range captures {
		inBatch[r.Event] = r.Seq
		if at, ok := written[r.Event]; ok {
			verdicts[r.Seq] = spool.Verdict{Seq: r.Seq, State: spool.Committed, CommittedAt: at}
		} else if detail, ok := poison[r.Event]; ok {
			verdicts[r.Seq] = spool.Verdict{Seq: r.Seq, State: spool.Quarantined, Detail: detail}
		} else {
			probes = append(probes, ledger.Probe{Keys: r.Keys, Event: r.Event})
			asked = append(asked, r)
		}
	}
	for _, r := range duplicates {
		if _, ok := inBatch[r.Of]; !ok { // its keys are its winner's
			probes = append(probes, ledger.Probe{Keys: r.Keys, Event: r.Of})
			asked = append(asked, r)
		}
	}
	if len(probes) > 0 {
		standing, err := f.ledger.Standing(ctx, probes)
		if err != nil {
			return nil, err
		}
		if len(standing) != len(probes) {
			return nil, errors.New("cannot settle: the ledger answered another number of questions")
		}
		for i, s := range standing {
			verdicts[asked[i].Seq] = f.verdict(asked[i], s, reasons)
		}
	}
	for _, r := range duplicates {
		if seq, ok := inBatch[r.Of]; ok {
			verdicts[r.Seq] = duplicateOf(r, verdicts[seq])
		}
	}
	return verdicts, nil
}

// Reasons of a suppression that the stores decided.
const (
	reasonOtherAgent = "other_agent"
	reasonClaimLost  = "claim_lost" // the claim was won, and yet another event's row stands
)

func (f *Forwarder) claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	if len(claims) == 0 {
		return nil
	}
	out := f.authority.Claim(ctx, claims)
	var failed error
	f.mu.Lock()
	f.stats.Batches++
	for _, o := range out {
		o.Match(func() { f.stats.Won++ }, func(idem.EventID) { f.stats.Held++ }, func(err error) { f.stats.Unknown++; failed = err })
	}
	f.mu.Unlock()
	if _, ok := f.authority.(pinger); ok && failed != nil && ctx.Err() == nil {
		f.setClaims(failed)
	}
	return out
}

// verdict judges by the rows that stand. A suppression is final only because a row is there; without one the
// record is deferred, whoever holds its claim.
func (f *Forwarder) verdict(r *spool.Record, s ledger.Standing, reasons map[uint64]string) spool.Verdict {
	v := spool.Verdict{Seq: r.Seq, State: spool.Suppressed, Reason: reasons[r.Seq]}
	owner := s.ByIdem
	switch {
	case !s.ByEvent.Event.IsZero():
		if !r.IsDuplicate() {
			return spool.Verdict{Seq: r.Seq, State: spool.Committed, CommittedAt: s.ByEvent.CommittedAt}
		}
		owner = s.ByEvent
	case owner.Event.IsZero():
		owner = s.ByEdge
	case !s.ByEdge.Event.IsZero() && s.ByEdge.Event != owner.Event:
		f.mu.Lock()
		f.stats.AmbiguousWinners++
		f.mu.Unlock()
	}
	if r.IsDuplicate() {
		v.Reason = r.Reason
	}
	if owner.Event.IsZero() {
		v.State, v.Reason = spool.Deferred, ""
		if r.IsDuplicate() {
			v.State = f.unresolved(r)
		}
		return v
	}
	v.Key, v.Winner = owner.Key, owner.Event
	return v
}

// unresolved is the state of a duplicate whose winner has no row: it shares the winner's fate.
func (f *Forwarder) unresolved(r *spool.Record) spool.State {
	for _, x := range f.spool.Exceptions() {
		if x.Seq == r.OfSeq && (x.State == spool.Quarantined || x.State == spool.Held) {
			return x.State
		}
	}
	return spool.Waiting
}

// duplicateOf is the verdict of a local duplicate whose winner is judged in the same batch.
func duplicateOf(r *spool.Record, winner spool.Verdict) spool.Verdict {
	v := spool.Verdict{Seq: r.Seq, State: spool.Suppressed, Reason: r.Reason}
	switch winner.State {
	case spool.Committed:
		v.Key, v.Winner = r.Keys.Idem, r.Of
	case spool.Suppressed:
		v.Key, v.Winner = winner.Key, winner.Winner
	case spool.Quarantined, spool.Held:
		v.State, v.Reason, v.Detail = winner.State, "", winner.Detail
	default:
		v.State, v.Reason = spool.Waiting, ""
	}
	return v
}

// settle makes the verdicts durable with their audit lines, then tells of them.
func (f *Forwarder) settle(w spool.Work, retried []spool.Record, verdicts map[uint64]spool.Verdict) error {
	now := f.clock.Now().T
	all := slices.Concat(retried, w.Records)
	ordered := make([]spool.Verdict, len(all))
	var lines []spool.Line
	var final []Settled
	quarantined, detail := 0, ""
	for i := range all {
		r := &all[i]
		v := verdicts[r.Seq]
		ordered[i] = v
		switch v.State {
		case spool.Committed:
			final = append(final, Settled{*r, v})
		case spool.Suppressed:
			final = append(final, Settled{*r, v})
			l := f.line(r, ledger.Suppressed, v.Reason, now)
			l.Event, l.Ref, l.Key, l.Winner, l.TTL = r.Event, idem.EventID{}, v.Key, v.Winner, int(f.cfg.TTL.Milliseconds())
			lines = append(lines, l)
		case spool.Quarantined:
			quarantined++
			detail = cmp.Or(v.Detail, detail)
			lines = append(lines, f.line(r, ledger.Quarantined, "", now))
		}
	}
	if err := f.spool.Settle(w, ordered, lines); err != nil {
		return err
	}
	boot := f.clock.Boot()
	for i := range ordered {
		delete(f.due, ordered[i].Seq)
		if s := ordered[i].State; s == spool.Deferred || s == spool.Waiting {
			f.due[ordered[i].Seq] = boot + retryDeferred + time.Duration(rand.Int64N(int64(retryDeferred)))
		}
	}
	if len(final) > 0 {
		number, _ := f.spool.LastSettlement()
		f.listener.Settled(number, final)
	}
	if quarantined > 0 {
		f.listener.Quarantined(quarantined, detail)
	}
	return nil
}

// line is an audit line about r that is not its final one.
func (f *Forwarder) line(r *spool.Record, o ledger.Outcome, reason string, now window.UTC) spool.Line {
	return spool.Line{Event: spool.NewEvent(now), At: now, Ref: r.Event, Outcome: string(o), Reason: reason, Scanner: r.Scanner,
		Type: r.Type, CapturedAt: r.At, Length: r.Length, Symbology: r.Symbology}
}

func (f *Forwarder) row(r *spool.Record, flags ...string) ledger.Row {
	return ledger.Row{Keys: r.Keys, Event: r.Event, Facility: f.cfg.Facility, Scanner: r.Scanner, NDC: r.NDC, Lot: r.Lot, Quantity: r.Quantity,
		Type: r.Type, Extras: r.Extras, GTIN: r.GTIN, HIBC: r.HIBC, Serial: r.Serial, NDC11: r.NDC11, NDC12: r.NDC12, Expiry: r.Expiry,
		PkgLevel: r.PkgLevel, Flags: append(slices.Clone(r.Flags), flags...), RxToken: r.RxToken, Agent: f.cfg.Agent,
		CapturedAt: r.At, Quality: r.Quality}
}
