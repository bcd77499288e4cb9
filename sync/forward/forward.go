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
	"scanonce/sync/claimstate"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
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

	// Random and Together stand for chance and concurrency where a run must be repeatable: Random(n) is in 0…n-1,
	// and Together runs the steps of a batch, in any order or at once. nil is the real thing.
	Random   func(n int64) int64
	Together func(steps ...func())
}

// Settled is a record that has become final, and how.
type Settled struct {
	Record  *spool.Record // shared: not to be changed
	Verdict spool.Verdict
}

// Listener is told what happens. Its methods must not block. Those about records are called one at a time.
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

// fencer is a Ledger that may show a row before it is as durable as an acknowledged one. Fence waits until it is.
type fencer interface{ Fence(context.Context) error }

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
	size     int           // records a round: less than Batch after rounds that did not come to an end
	compared time.Duration // boottime of the last look at the ledger's clock, 0 for never

	stopping bool          // nothing waits for more
	chainDue time.Duration // boottime at which records of the audit chain no longer wait for more; 0 if none wait
	early    *batch        // claimed while it was being written; of use only if that succeeds

	// Of decide, kept for the next batch.
	rows []ledger.Row
	at   map[idem.EventID]int // the captures' places in the batch

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
	if cfg.Random == nil {
		cfg.Random = rand.Int64N
	}
	if cfg.Together == nil {
		cfg.Together = together
	}
	return &Forwarder{cfg: cfg, size: cfg.Batch, spool: s, authority: a, ledger: l, clock: clock, listener: listener,
		ready: make(chan struct{}), due: map[uint64]time.Duration{}, at: map[idem.EventID]int{}, claimsLost: make(chan struct{}, 1), calls: make(chan func())}
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
		wait, wakes := f.Turn(ctx)
		if wait != 0 || wakes {
			f.sleep(ctx, wait, wakes)
		}
	}
	return nil
}

// Turn does one round and what follows from it. The next turn is due after wait, or never if that is negative,
// and, if wakes, as soon as the spool commits.
func (f *Forwarder) Turn(ctx context.Context) (wait time.Duration, wakes bool) {
	f.attend()
	n, err := f.round(ctx)
	if ctx.Err() == nil {
		f.judge(n, err)
	}
	f.readyOnce.Do(func() { close(f.ready) })
	if ctx.Err() != nil {
		return 0, false
	}
	if err != nil {
		f.backoff = f.grow(f.backoff)
		f.size = max(1, f.size/2) // a slow ledger may come to an end with less
		return f.jitter(f.backoff), false
	}
	f.backoff = 0
	f.size = min(2*f.size, f.cfg.Batch)
	f.compareClocks(ctx)
	if n > 0 {
		if f.cfg.RateLimit > 0 && f.spool.Backlog() > 0 {
			return time.Duration(n) * time.Second / time.Duration(f.cfg.RateLimit), false
		}
		return 0, false
	}
	waiting := f.spool.Prune()
	wait = -1
	if at, ok := f.nextDue(); ok {
		wait = max(0, at-f.clock.Boot())
	} else if waiting {
		wait = time.Minute
	}
	return wait, true
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
	f.stopping = true
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
	var coming <-chan []*spool.Record
	var calls <-chan func()
	if wakes {
		wake, coming, calls = f.spool.Wake(), f.spool.Coming(), f.calls
	}
	for {
		select {
		case <-ctx.Done():
		case <-timer:
		case <-wake:
		case records := <-coming: // the claims need not wait for the disk; the rows do
			f.ClaimEarly(ctx, records)
			continue
		case call := <-calls:
			call()
		}
		return
	}
}

// ClaimEarly makes the claims of records that are just being written.
func (f *Forwarder) ClaimEarly(ctx context.Context, records []*spool.Record) {
	f.early = f.claim(ctx, spool.Work{Records: records}, nil)
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
	return f.between(ctx, func() (int, error) { return f.requeue(events, all) })
}

// between runs do between two rounds.
func (f *Forwarder) between(ctx context.Context, do func() (int, error)) (int, error) {
	n, failed := 0, error(nil)
	done := make(chan struct{})
	call := func() {
		defer close(done)
		n, failed = do()
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
	if err := f.spool.Settle(spool.Work{}, verdicts, nil, nil); err != nil {
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
func (f *Forwarder) jitter(d time.Duration) time.Duration {
	return time.Duration(f.cfg.Random(int64(d) + 1))
}

// together runs the steps at once.
func together(steps ...func()) {
	var beside sync.WaitGroup
	for _, s := range steps[1:] {
		beside.Go(s)
	}
	steps[0]()
	beside.Wait()
}

// probeClaims asks an authority that was away until it answers again. It has a goroutine of its own, so that
// an authority that never answers delays no commit.
func (f *Forwarder) probeClaims(ctx context.Context, p pinger) {
	if err := f.ask(ctx, p); err != nil && ctx.Err() == nil { // before the first scan has to find out
		f.setClaims(err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.claimsLost:
		}
		for d := f.grow(0); ; d = f.grow(d) {
			f.sleep(ctx, f.jitter(d), false)
			if ctx.Err() != nil || f.AskClaims(ctx) {
				break
			}
		}
	}
}

func (f *Forwarder) ask(ctx context.Context, p pinger) error {
	c, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	return p.Ping(c)
}

// AskClaims asks the authority, if it can be away, whether it answers, and notes it.
func (f *Forwarder) AskClaims(ctx context.Context) (answers bool) {
	p, ok := f.authority.(pinger)
	if !ok {
		return true
	}
	err := f.ask(ctx, p)
	if ctx.Err() != nil {
		return false
	}
	f.setClaims(err)
	return err == nil
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
	var states *claimstate.ConfigError
	var stateFile *claimstate.DamageError
	var cases *pacase.DamageError
	var own *spool.DamageError
	switch {
	case errors.As(err, &own) && own.OfState():
		return own.Error()
	case errors.As(err, &claims):
		return claims.Error()
	case errors.As(err, &rows):
		return rows.Error()
	case errors.As(err, &file):
		return file.Error()
	case errors.As(err, &states):
		return states.Error()
	case errors.As(err, &stateFile):
		return stateFile.Error()
	case errors.As(err, &cases):
		return cases.Error()
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

// round settles what has come since an outage, then a part of the backlog, and forwards audit lines. It returns how
// much it moved. While the ledger is not known to answer, a round without work still asks it.
func (f *Forwarder) round(ctx context.Context) (int, error) {
	// Scans go before what is said of them: with the ledger away they are still claimed.
	retried, err := f.dueExceptions()
	if err != nil {
		return 0, err
	}
	live, err := f.spool.NextLive(f.size)
	if err != nil {
		return 0, err
	}
	moved := len(live.Records) + len(retried)
	if moved > 0 {
		if err := f.process(ctx, live, retried); err != nil {
			return 0, err
		}
	}
	w, err := f.spool.Next(f.size)
	if err != nil {
		return 0, err
	}
	if !w.Empty() {
		n, err := f.drain(ctx, w)
		if err != nil {
			return 0, err
		}
		moved += n
	}
	for _, forward := range [...]func(context.Context) (int, error){f.forwardLines, f.forwardChain} {
		n, err := forward(ctx)
		if err != nil {
			return 0, err
		}
		moved += n
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

// process takes one batch through its three steps.
func (f *Forwarder) process(ctx context.Context, w spool.Work, retried []*spool.Record) error {
	b := f.claim(ctx, w, retried)
	if err := f.decide(ctx, b); err != nil {
		return err
	}
	return f.settle(b)
}

// chain is how many batches a round drains before lines, exceptions and callers have their turn.
const chain = 16

// drain takes a batch through its steps, and full ones behind it: while one is being decided, the claims of the
// next are made and the verdicts on the one before are written. A batch is settled only after the one before
// it. It returns how many records and notes were settled.
func (f *Forwarder) drain(ctx context.Context, w spool.Work) (moved int, err error) {
	b := f.claim(ctx, w, nil)
	var before *batch
	for n := 1; ; n++ {
		var next *batch
		var settled, followed error
		var err error
		steps := []func(){func() { err = f.decide(ctx, b) }}
		if before != nil {
			steps = append(steps, func() { settled = f.settle(before) })
		}
		if n < chain && len(b.work.Records) == f.size {
			steps = append(steps, func() { next, followed = f.follow(ctx, &b.work) })
		}
		f.cfg.Together(steps...)
		if settled != nil {
			return moved, settled
		}
		moved += before.size()
		if err != nil {
			return moved, err
		}
		if next == nil {
			err := f.settle(b)
			return moved + b.size(), cmp.Or(err, followed)
		}
		before, b = b, next
	}
}

// follow begins the batch behind w, if nothing else wants the next turn.
func (f *Forwarder) follow(ctx context.Context, w *spool.Work) (*batch, error) {
	if f.cfg.RateLimit > 0 || !f.began || f.current() == Offline || f.spool.PendingLines() >= f.size {
		return nil, nil
	}
	if live, err := f.spool.NextLive(1); err != nil || !live.Empty() {
		return nil, err
	}
	next, err := f.spool.After(w, f.size)
	if err != nil || next.Empty() {
		return nil, err
	}
	return f.claim(ctx, next, nil), nil
}

func (f *Forwarder) forwardLines(ctx context.Context) (int, error) {
	lines, err := f.spool.Lines(f.size)
	if err != nil || len(lines) == 0 {
		return 0, err
	}
	out := make([]ledger.Line, len(lines))
	for i := range lines {
		out[i] = f.entry(&lines[i])
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
func (f *Forwarder) dueExceptions() ([]*spool.Record, error) {
	now := f.clock.Boot()
	var out []*spool.Record
	for _, x := range f.spool.Exceptions() {
		if x.State != spool.Deferred && x.State != spool.Waiting || f.due[x.Seq] > now || len(out) == f.size {
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
	at, found := f.chainDue, f.chainDue != 0
	for _, d := range f.due {
		if !found || d < at {
			at, found = d, true
		}
	}
	return at, found
}

// batch is records on their way to their verdicts.
type batch struct {
	work     spool.Work
	records  []*spool.Record       // those retried, then the work's
	ways     []way                 // of the records, in their order
	verdicts []spool.Verdict       // likewise, once it is decided
	agents   map[int]string        // of those whose row an agent of another name has written, by their place
	waits    map[int]spool.Verdict // of those held, by their place: what becomes of them unless a row stands
	notes    []spool.Line          // of the audit, beside those of the records
}

func (b *batch) size() int {
	if b == nil {
		return 0
	}
	return len(b.work.Records) + len(b.work.Notes)
}

// way is how a record goes to the ledger.
type way uint8

const (
	repeats  way = iota // it does not: its winner's row is asked for
	unwon               // it does not: another holds the claim, or nobody knows; the rows that stand are asked for
	won                 // with its claim
	bypassed            // without one: the unique keys decide
	held                // it does not: a person decides, or has; rows that stand are asked for, since state.db may be a new one
)

// Reasons of a suppression that the stores decided.
const (
	reasonOtherAgent = "other_agent"
	reasonClaimLost  = "claim_lost" // the claim was won, and yet another event's row stands
)

const (
	reasonLost      = "segment_salvaged" // of the notice of a duplicate whose winner a damage has taken
	reasonRepeated  = "repeated_batch"   // of a held record
	reasonConfirmed = "batch_confirmed"  // of the notice that a person has decided so
	discardedBy     = "by "              // and the name of who has given a record up
)

// claim begins a batch. retried records were deferred before: they go without a claim, and so do all while
// the authority is away.
func (f *Forwarder) claim(ctx context.Context, w spool.Work, retried []*spool.Record) *batch {
	if early := f.early; early != nil {
		f.early = nil
		if len(retried) == 0 && slices.Equal(early.records, w.Records) {
			early.work = w
			return early
		}
	}
	b := &batch{work: w, records: w.Records}
	if len(retried) > 0 {
		b.records = slices.Concat(retried, w.Records)
	}
	b.ways = make([]way, len(b.records))
	f.mu.Lock()
	away := f.claimsCause != nil
	f.mu.Unlock()
	claims := make([]idem.Claim, 0, len(w.Records))
	claimed := make([]int, 0, len(w.Records))
	for i, r := range b.records {
		id, waits := w.HeldIn(r.Seq)
		switch {
		case r.IsDuplicate():
			b.ways[i] = repeats
		case waits && f.holds(b, i, id):
			b.ways[i] = held
		case away || i < len(retried):
			b.ways[i] = bypassed
		default:
			b.ways[i] = unwon
			claims = append(claims, idem.Claim{Keys: r.Keys, Event: r.Event})
			claimed = append(claimed, i)
		}
	}
	if len(claims) == 0 {
		return b
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	out := f.authority.Claim(ctx, claims)
	var failed error
	f.mu.Lock()
	f.stats.Batches++
	for i, o := range out {
		o.Match(func() {
			f.stats.Won++
			b.ways[claimed[i]] = won
		}, func(idem.EventID) { f.stats.Held++ }, func(err error) {
			f.stats.Unknown++
			failed = err
		})
	}
	f.mu.Unlock()
	if _, ok := f.authority.(pinger); ok && failed != nil && ctx.Err() == nil {
		f.setClaims(failed)
	}
	return b
}

// decide asks the ledger about a batch. An error says nothing about any of the records.
func (f *Forwarder) decide(ctx context.Context, b *batch) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	b.verdicts = make([]spool.Verdict, len(b.records))
	rows := f.rows[:0]
	clear(f.at)
	at := f.at
	for i, r := range b.records {
		b.verdicts[i].Seq = r.Seq
		switch b.ways[i] {
		case won:
			rows = append(rows, f.row(r))
		case bypassed:
			rows = append(rows, f.row(r, ledger.ClaimBypassed))
		}
		if !r.IsDuplicate() {
			at[r.Event] = i
		}
	}
	f.rows = rows
	if len(rows) > 0 {
		ins, err := f.ledger.Insert(ctx, rows)
		if err != nil {
			return err
		}
		for i := range ins.Receipts {
			v := &b.verdicts[at[ins.Receipts[i].Event]]
			v.State, v.CommittedAt = spool.Committed, ins.Receipts[i].CommittedAt
			if b.ways[at[ins.Receipts[i].Event]] == bypassed {
				v.Reason = ledger.ClaimBypassed
			}
		}
		for _, p := range ins.Poison {
			v := &b.verdicts[at[p.Event]]
			v.State, v.Detail = spool.Quarantined, p.Detail
		}
	}
	var probes []ledger.Probe
	var asked []int
	for i, r := range b.records {
		event := r.Event
		if r.IsDuplicate() {
			event = r.Of // and its keys are its winner's
			if _, here := at[event]; here {
				continue
			}
		}
		if b.verdicts[i].State == spool.Pending {
			probes = append(probes, ledger.Probe{Keys: r.Keys, Event: event})
			asked = append(asked, i)
		}
	}
	if len(probes) > 0 {
		standing, err := f.ledger.Standing(ctx, probes)
		if err != nil {
			return err
		}
		if len(standing) != len(probes) {
			return errors.New("cannot settle: the ledger answered another number of questions")
		}
		unacknowledged := false
		for i, s := range standing {
			b.verdicts[asked[i]] = f.verdict(b.records[asked[i]], s, b.ways[asked[i]])
			if w, ok := b.waits[asked[i]]; ok && b.verdicts[asked[i]].State == spool.Deferred {
				b.verdicts[asked[i]] = w
			}
			// The row that a duplicate names was settled before it.
			unacknowledged = unacknowledged || !b.records[asked[i]].IsDuplicate() && b.verdicts[asked[i]].State.Stands()
			if own := s.ByEvent.Agent; b.verdicts[asked[i]].State == spool.Committed && own != f.cfg.Agent {
				if b.agents == nil {
					b.agents = map[int]string{}
				}
				b.agents[asked[i]] = own
			}
		}
		if l, ok := f.ledger.(fencer); ok && unacknowledged {
			if err := l.Fence(ctx); err != nil {
				return err
			}
		}
	}
	for i, r := range b.records {
		if winner, here := at[r.Of]; here {
			b.verdicts[i] = duplicateOf(r, &b.verdicts[winner])
		}
	}
	f.answered = true
	return nil
}

// verdict judges by the rows that stand. A suppression is final only because a row is there; without one the
// record is deferred, whoever holds its claim.
func (f *Forwarder) verdict(r *spool.Record, s ledger.Standing, w way) spool.Verdict {
	v := spool.Verdict{Seq: r.Seq, State: spool.Suppressed, Reason: reasonOtherAgent}
	if w == won {
		v.Reason = reasonClaimLost
	}
	owner := s.ByIdem
	switch {
	case !s.ByEvent.Event.IsZero():
		if !r.IsDuplicate() {
			v := spool.Verdict{Seq: r.Seq, State: spool.Committed, CommittedAt: s.ByEvent.CommittedAt}
			if s.ByEvent.Bypassed {
				v.Reason = ledger.ClaimBypassed
			}
			return v
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
			v.State, v.Detail = f.unresolved(r)
		}
		return v
	}
	v.Key, v.Winner = owner.Key, owner.Event
	return v
}

// unresolved is the state of a duplicate whose winner has no row, and why: it shares the winner's fate. If that is lost,
// so is the duplicate, but not before the ledger has been asked twice.
func (f *Forwarder) unresolved(r *spool.Record) (spool.State, string) {
	x := f.spool.Exception(r.OfSeq)
	switch x.State {
	case spool.Unaccounted:
		if f.spool.Exception(r.Seq).Attempts == 0 {
			break
		}
		return x.State, x.Detail
	case spool.Quarantined, spool.Held, spool.Discarded:
		return x.State, x.Detail
	}
	return spool.Waiting, ""
}

// duplicateOf is the verdict of a local duplicate whose winner is judged in the same batch.
func duplicateOf(r *spool.Record, winner *spool.Verdict) spool.Verdict {
	v := spool.Verdict{Seq: r.Seq, State: spool.Suppressed, Reason: r.Reason}
	switch winner.State {
	case spool.Committed:
		v.Key, v.Winner = r.Keys.Idem, r.Of
	case spool.Suppressed:
		v.Key, v.Winner = winner.Key, winner.Winner
	case spool.Quarantined, spool.Held, spool.Discarded:
		v.State, v.Reason, v.Detail = winner.State, "", winner.Detail
	default:
		v.State, v.Reason = spool.Waiting, ""
	}
	return v
}

// settle makes the verdicts durable with their audit lines, then tells of them.
func (f *Forwarder) settle(b *batch) error {
	now := f.clock.Now().T
	var lines []spool.Line
	final := make([]Settled, 0, len(b.records))
	quarantined, detail := 0, ""
	for i, r := range b.records {
		switch v := &b.verdicts[i]; v.State {
		case spool.Committed:
			final = append(final, Settled{r, *v})
		case spool.Suppressed:
			final = append(final, Settled{r, *v})
			l := f.line(r, ledger.Suppressed, v.Reason, now)
			l.Event, l.Ref, l.Key, l.Winner, l.TTL = r.Event, idem.EventID{}, v.Key, v.Winner, int(f.cfg.TTL.Milliseconds())
			lines = append(lines, l)
		case spool.Discarded:
			final = append(final, Settled{r, *v})
			l := f.line(r, ledger.Discarded, discardedBy+v.Detail, now)
			l.Event, l.Ref = r.Event, idem.EventID{}
			lines = append(lines, l)
		case spool.Unaccounted:
			final = append(final, Settled{r, *v})
			l := f.line(r, ledger.Notice, reasonLost, now)
			l.Length, l.Symbology = 1, "" // of a notice, the number of records
			lines = append(lines, l)
		case spool.Quarantined:
			quarantined++
			detail = cmp.Or(v.Detail, detail)
			lines = append(lines, f.line(r, ledger.Quarantined, "", now))
		case spool.Held:
			lines = append(lines, f.line(r, ledger.Held, reasonRepeated, now))
		}
	}
	lines = append(lines, b.notes...)
	if err := f.askForClaims(b); err != nil {
		return err
	}
	lines, record := f.bind(b, lines, now)
	if err := f.spool.Settle(b.work, b.verdicts, lines, record); err != nil {
		return err
	}
	boot := f.clock.Boot()
	for i := range b.verdicts {
		v := &b.verdicts[i]
		if v.State == spool.Deferred || v.State == spool.Waiting {
			f.due[v.Seq] = boot + retryDeferred + time.Duration(f.cfg.Random(int64(retryDeferred)))
		} else if len(f.due) > 0 {
			delete(f.due, v.Seq)
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

// askForClaims queues the operations that follow from the batch's rows. They go first: after a crash in between the
// batch is settled again, and asking twice is asking once.
func (f *Forwarder) askForClaims(b *batch) error {
	var ops []spool.Operation
	for i, r := range b.records {
		if b.verdicts[i].State != spool.Committed || !asksForClaim(r) {
			continue
		}
		op, err := ingestOf(r)
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	if len(ops) == 0 {
		return nil
	}
	return f.spool.Journal().AddAnyway(ops...)
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
