package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"scanonce/capture"
	"scanonce/device"
	"scanonce/idem"
	"scanonce/internal/config"
	"scanonce/internal/events"
	"scanonce/internal/session"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const (
	queueFrames = 1024 // frames that wait for the pipeline; beyond it a scanner is told to send again
	batchFrames = 512  // frames that one commit takes
	toldKept    = 16   // told duplicates a scanner's "same again" may still name
	toldFor     = time.Minute
)

// pipeline is the intake: frames and the user's acts, in the order of their coming, through one goroutine.
// While one batch is being synced the next one collects.
type pipeline struct {
	a      *agent
	frames chan device.Frame
	calls  chan call
	ready  chan struct{}

	// Owned by the goroutine.
	cfg     *config.Config
	decoder *capture.Decoder
	scan    capture.Scan
	secret  *capture.RxSecret
	today   capture.Date
	todayAt window.UTC // first instant of today
	out     []outcome
	saved   map[string]userState // of scanners, as it was before the batch
	waits   bool                 // a repeated batch waits for a person, and no alarm says so yet
	tight   bool                 // the spool was over its warning mark at the last turn
	failing string               // the alarm of the last commit, if it failed
	oldNDC  bool                 // an alarm says that the NDC directory is old
	later   []lateText           // to be typed, once it is known not to repeat a stored batch

	mu       sync.Mutex
	scanners map[string]*scanner // by full id, gun address included
	tally    tally
	overflow []overflow
	isReady  bool
	ndc      ndcDirectory
}

// tally counts frames since the start of the process.
type tally struct {
	frames, captured, notAccepted, rejected, control, voided, inFlight int64
}

// overflow is a frame that found the queue full.
type overflow struct {
	scanner string
	length  int
	at      window.UTC
}

// call is an act of the API's user. do runs within a batch; done is called after the commit.
type call struct {
	do   func(b *spool.Batch) (done func(error))
	over chan struct{}
}

// scanner is what the pipeline keeps of one scanner or gun.
type scanner struct {
	id      string
	cfg     *config.Scanner
	profile capture.Profile

	userState
	burst    capture.Burst
	posts    capture.Burst // of what applications send, which has its own order
	api      bool          // a name of an application's own, not of the configuration
	told     []told        // newest last
	toldLast idem.EventID  // the newest one, also once it is converted
	lastScan window.UTC
}

// userState is what a scanner's user has set. A batch that could not be made durable puts it back.
type userState struct {
	session session.State
	command struct { // the last command barcode that was obeyed
		element idem.Key
		anchor  time.Duration
		equal   time.Duration
	}
	accepted time.Duration // boottime of the last scan that was, 0 for none
	typed    struct {      // the last text typed that names no item
		element idem.Key
		at      time.Duration
	}
	past pastLabel
}

// told is a duplicate that the user has been told of and may declare a movement of its own.
type told struct {
	hidden
	event idem.EventID
	boot  time.Duration
	cand  spool.Candidate
	text  []byte // to be typed
}

func newPipeline(a *agent) (*pipeline, error) {
	p := &pipeline{a: a, frames: make(chan device.Frame, queueFrames), calls: make(chan call), ready: make(chan struct{}),
		scanners: map[string]*scanner{}, saved: map[string]userState{}}
	return p, p.apply(a.cfg, loadNDC(a.cfg.NDC.Directory, ndcDirectory{}))
}

// apply takes a configuration over, with its NDC directory. Sessions go on.
func (p *pipeline) apply(cfg *config.Config, ndc ndcDirectory) error {
	dec := capture.DecoderConfig{Directory: ndc.list}
	for _, r := range cfg.RxProfiles {
		dec.Rx = append(dec.Rx, capture.RxProfile{Name: r.Name, Pattern: r.Pattern})
	}
	decoder, err := capture.NewDecoder(dec)
	if err != nil {
		return &ExitError{Code: ExitUsage, Kind: "config", Detail: err.Error(), Hint: "mend the rx_profile"}
	}
	secret, err := loadRxSecret(cfg)
	if err != nil {
		return err
	}
	p.tellNDC(ndc)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tellSecret(cfg, secret)
	p.cfg, p.decoder, p.secret, p.ndc = cfg, decoder, secret, ndc
	p.a.spool.SetBatches(batchRule(cfg))
	old := p.scanners
	p.scanners = map[string]*scanner{}
	for i := range cfg.Scanners {
		c := &cfg.Scanners[i]
		p.scanners[c.ID] = p.adopt(old[c.ID], c.ID, c)
	}
	for id, s := range old {
		if s.api {
			p.scanners[id] = p.adopt(s, id, s.cfg)
		} else if base, _, isGun := strings.Cut(id, "/"); isGun {
			if c := cfg.Scanner(base); c != nil && c.GunDigits > 0 {
				p.scanners[id] = p.adopt(s, id, c)
			}
		}
	}
	return nil
}

func (p *pipeline) adopt(s *scanner, id string, c *config.Scanner) *scanner {
	settings := session.Settings{Home: c.ScanType, Shared: c.Shared, ModeIdle: p.cfg.Counter.ModeIdle, QuantityTimeout: p.cfg.Counter.QuantityTimeout, RxContext: p.cfg.Counter.RxContext}
	if s == nil {
		s = &scanner{id: id, userState: userState{session: session.New(settings)}}
	}
	s.cfg = c
	s.session.Settings = settings
	s.profile = capture.Profile{GunDigits: c.GunDigits, BareDigits: c.BareDigits, SymbologyPrefix: c.SymbologyPrefix}
	if c.GSSubstitute != "" {
		s.profile.GSSubstitute = c.GSSubstitute[0]
	}
	return s
}

func (p *pipeline) reconfigure(cfg *config.Config) error {
	_, _, before := p.snapshot()
	ndc := loadNDC(cfg.NDC.Directory, before) // a slow disk keeps no scan waiting
	var err error
	p.do(context.Background(), func(*spool.Batch) func(error) {
		err = p.apply(cfg, ndc)
		return nil
	})
	return err
}

func (p *pipeline) String() string             { return "pipeline" }
func (p *pipeline) Format(f fmt.State, _ rune) { io.WriteString(f, p.String()) } // it holds the last scan
func (p *pipeline) Ready() <-chan struct{}     { return p.ready }

func (p *pipeline) setReady() {
	p.mu.Lock()
	p.isReady = true
	p.mu.Unlock()
}

// Offer takes a frame from a device; see device.Sink.
func (p *pipeline) Offer(f device.Frame) bool {
	p.mu.Lock()
	p.tally.frames++
	p.tally.inFlight++
	p.mu.Unlock()
	p.a.metrics.frames.WithLabelValues(f.Scanner).Inc()
	select {
	case p.frames <- f:
		return true
	default:
	}
	p.mu.Lock()
	p.tally.inFlight--
	p.tally.notAccepted++
	if len(p.overflow) < queueFrames {
		p.overflow = append(p.overflow, overflow{f.Scanner, f.Length, f.At.T})
	}
	p.mu.Unlock()
	return false
}

// do runs a call in the pipeline and waits until its batch is durable. ctx bounds the waiting for its turn: a
// call that has begun is waited for, however slow the disk is, since it will have happened.
func (p *pipeline) do(ctx context.Context, f func(b *spool.Batch) func(error)) error {
	c := call{do: f, over: make(chan struct{})}
	select {
	case p.calls <- c:
		<-c.over
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// turn waits for a turn of the pipeline, within ctx all told, and looks at it with f.
func (p *pipeline) turn(ctx context.Context, f func()) error {
	c := call{do: func(*spool.Batch) func(error) { f(); return nil }, over: make(chan struct{})}
	select {
	case p.calls <- c:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-c.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drain waits until every frame taken so far is decided.
func (p *pipeline) drain(ctx context.Context) {
	for {
		p.mu.Lock()
		left := p.tally.inFlight
		p.mu.Unlock()
		if left == 0 || p.do(ctx, func(*spool.Batch) func(error) { return nil }) != nil {
			return
		}
	}
}

// Run takes in until ctx ends.
func (p *pipeline) Run(ctx context.Context) error {
	p.upkeep() // it may have to tell of a full disk
	close(p.ready)
	for {
		timer := time.NewTimer(p.untilExpiry())
		t := intake{Batch: p.a.spool.NewBatch()}
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case f := <-p.frames:
			p.frame(t.Batch, f)
		case c := <-p.calls:
			t.take(c)
		case <-timer.C:
		}
		timer.Stop()
		p.decideAll(&t)
	}
}

// intake is what one turn of the pipeline makes durable together.
type intake struct {
	*spool.Batch
	calls []call
	dones []func(error)
}

func (t *intake) take(c call) {
	t.dones = append(t.dones, c.do(t.Batch))
	t.calls = append(t.calls, c)
}

// decideAll takes what else has come, commits, and tells of it.
func (p *pipeline) decideAll(t *intake) {
more:
	for len(p.out) < batchFrames {
		select {
		case f := <-p.frames:
			p.frame(t.Batch, f)
		case c := <-p.calls:
			t.take(c)
		default:
			break more
		}
	}
	p.overflowed(t.Batch)
	err := t.Commit()
	if err == nil && t.Len() > 0 {
		p.recovered()
	}
	p.deliver(err)
	for i, done := range t.dones {
		if done != nil {
			done(err)
		}
		close(t.calls[i].over)
	}
	p.expire()
	p.upkeep()
}

// kind of an outcome.
type kind uint8

const (
	kAccepted kind = iota
	kDuplicate
	kRejected
	kNotAccepted
	kControl
	kVoided
)

// outcome is what became of one frame; it is told after the commit.
type outcome struct {
	hidden
	kind     kind
	frame    device.Frame // the frame, or only Scanner and At for a conversion
	live     bool         // a frame of a device, as opposed to a conversion
	scanner  *scanner
	decision spool.Decision
	cand     spool.Candidate // of duplicates
	reason   string
	detail   string
	symb     string
	entry    *events.Entry // of a control frame
	answer   device.Answer // to the device
	converts idem.EventID  // the told duplicate that this declares a movement
	post     *post         // of a scan that an application sent
	text     []byte        // to be typed, once it is durable
}

func (p *pipeline) frame(b *spool.Batch, f device.Frame) {
	o := outcome{frame: f, live: true}
	s := p.scanners[f.Scanner]
	if s == nil { // a scanner that a reload has just taken away
		o.kind, o.reason, o.detail = kVoided, "unconfigured", ""
		p.out = append(p.out, o)
		return
	}
	o.scanner = s
	if f.Fault != "" {
		s.burst.Broken(f.Length, f.At.Boot)
		p.between(b, s.cfg.ID)
	}
	switch {
	case f.Fault == device.TooLong:
		p.reject(b, &o, capture.TooLong, "The data is longer than any label a pharmacy scans: check what the scanner is set to send behind each code.")
	case f.Fault != "":
		p.notAccepted(b, &o, "incomplete", incomplete(s.cfg))
	default:
		p.content(b, s, &o)
	}
	p.out = append(p.out, o)
}

// incomplete says what to do. A scanner of packets sends again by itself what was damaged: whoever scanned as well would
// count twice.
func incomplete(c *config.Scanner) string {
	if c.Framing == string(device.SSI) {
		return "Only a part of a scan arrived. The scanner sends it again by itself: scan again only if no tone follows, and check the cable."
	}
	return "Only a part of a scan arrived: scan again, and check the cable and the scanner's suffix setting."
}

func (p *pipeline) content(b *spool.Batch, s *scanner, o *outcome) {
	f := &o.frame
	burst, profile := &s.burst, &s.profile
	if q := o.post; q != nil {
		burst, profile = &s.posts, &q.profile
	}
	if burst.Absorb(f.Data, f.At.Boot) {
		// A document is told of once; the frames that line framing makes of the rest of it are void.
		if burst.Opened() {
			o.symb = capture.Symbology(f.Data)
			p.reject(b, o, capture.IDDocument, documentDetail)
		} else {
			o.kind, o.reason = kVoided, string(capture.IDDocument)
		}
		return
	}
	refusal := p.decoder.Decode(&p.scan, f.Data, profile, p.date(f.At.T))
	sc := &p.scan
	o.symb = strings.Clone(sc.Symbology)
	if sc.Gun != "" {
		s = p.gun(s, sc.Gun)
		o.scanner = s
	}
	if refusal.OK() {
		refusal = sc.AtCounter()
	}
	if o.post == nil && (!refusal.OK() || !sc.IsMovement()) {
		p.between(b, s.cfg.ID)
	}
	if refusal.OK() && s.cfg.Wedge && o.post == nil && sc.Kind != capture.KindCommand {
		o.text = p.toType(s, f)
	}
	if !refusal.OK() {
		p.reject(b, o, refusal.Kind, refusal.Detail)
		return
	}
	switch {
	case sc.Kind == capture.KindCommand:
		p.command(b, s, o)
	case sc.Kind == capture.KindRxLabel:
		b.Heard(s.id)
		p.label(b, s, o)
	case !sc.IsMovement():
		p.unknown(b, s, o)
	default:
		p.movement(b, s, o)
	}
}

// toType is what is typed of the scan, if it is accepted: its data without identifier. Nothing of a text that names no item
// and repeats the one before: no record says so of it.
func (p *pipeline) toType(s *scanner, f *device.Frame) []byte {
	sc := &p.scan
	if !sc.IsMovement() {
		element := idem.PhysicalKey(s.id, sc.Element())
		typ, _ := s.session.Current(f.At.Boot)
		span := p.cfg.Window.For(typ).Width
		if f.Resend {
			span = max(span, typedResend)
		}
		if s.typed.element == element && f.At.Boot-s.typed.at < span {
			return nil
		}
		p.keep(s)
		s.typed.element, s.typed.at = element, f.At.Boot
	}
	text := bytes.Clone(sc.Element()[len(sc.Symbology):])
	if c := s.profile.GSSubstitute; c != 0 && sc.Kind == capture.KindGS1 {
		for i, b := range text {
			if b == c {
				text[i] = 0x1d
			}
		}
	}
	return text
}

// typedResend is how long after a text a scanner may still send it again.
const typedResend = 10 * time.Second

// between says that something else than a movement came from a device: from the scanner, or any gun of a base.
func (p *pipeline) between(b *spool.Batch, device string) {
	for id, s := range p.scanners {
		if s.cfg.ID == device && !s.api {
			b.Between(id)
		}
	}
}

const documentDetail = "This is an identity document. It was not read and nothing of it is kept."

func (p *pipeline) gun(base *scanner, address string) *scanner {
	id := base.cfg.ID + "/" + strings.Clone(address)
	if s := p.scanners[id]; s != nil {
		return s
	}
	s := p.adopt(nil, id, base.cfg)
	p.mu.Lock()
	p.scanners[id] = s
	p.mu.Unlock()
	return s
}

// date is the UTC day of t, for the century of two-digit years.
func (p *pipeline) date(t window.UTC) capture.Date {
	const day = 24 * 60 * 60 * 1000
	if p.today.IsZero() || t < p.todayAt || t >= p.todayAt+day {
		tt := t.Time()
		p.today = capture.DateOf(tt)
		p.todayAt = window.FromTime(time.Date(tt.Year(), tt.Month(), tt.Day(), 0, 0, 0, 0, time.UTC))
	}
	return p.today
}

// keep saves what the user has set before the batch changes it.
func (p *pipeline) keep(s *scanner) {
	if _, ok := p.saved[s.id]; !ok {
		p.saved[s.id] = s.userState
	}
}

func (p *pipeline) movement(b *spool.Batch, s *scanner, o *outcome) {
	f, sc := &o.frame, &p.scan
	typ, quantity := s.session.Current(f.At.Boot)
	if o.post != nil && o.post.quantity != 0 {
		quantity = o.post.quantity
	}
	cand := spool.Candidate{
		Physical: idem.PhysicalKey(s.id, sc.Element()),
		Identity: p.identity(s, sc, typ, quantity),
		Policy:   p.cfg.Window.For(typ),
		Shared:   s.cfg.Shared,
		At:       f.At,
		Act:      s.session.Act(),
		Again:    s.session.Armed(),
		Heard:    o.live && o.post == nil,
	}
	if cand.Heard {
		cand.Resend, cand.Resends = f.Resend, resends(s.cfg, cand.Policy)
	}
	cand.Item = itemOf(sc)
	cand.Item.RxToken = s.session.RxToken(f.At.Boot)
	if q := o.post; q != nil {
		cand.Once, cand.Given, cand.GivenAt = q.once, q.given, q.at
		if q.given != "" {
			cand.Item.RxToken = s.past.rxToken(q.at, typ, s.session.Settings.RxContext)
		}
	}
	cand.Identity.NDC, cand.Identity.Lot, cand.Identity.Serial = cand.Item.NDC, cand.Item.Lot, cand.Item.Serial
	cand.Identity.GTIN, cand.Identity.HIBC = "", ""
	if cand.Item.NDC == "" {
		if cand.Identity.GTIN = cand.Item.GTIN; cand.Identity.GTIN == "" {
			cand.Identity.HIBC = cand.Item.HIBC
		}
	}
	p.decide(b, s, o, &cand)
}

// resends is how a scanner sends again what was not answered. Where the next item may come as soon as that, only a mark
// tells.
func resends(c *config.Scanner, policy window.Policy) spool.Resends {
	r := spool.Resends{Retries: c.Retries, Interval: c.RetryInterval}
	switch {
	case c.Framing == string(device.SSI):
		r.Marked = true
	case c.Framing != string(device.ACKNAK) || policy.Width < c.RetryInterval:
		return spool.Resends{}
	}
	return r
}

func (p *pipeline) identity(s *scanner, sc *capture.Scan, typ window.ScanType, quantity int) idem.Identity {
	return idem.Identity{Facility: p.cfg.Agent.FacilityUUID, Scanner: s.id, Quantity: quantity, Type: typ}
}

func (p *pipeline) decide(b *spool.Batch, s *scanner, o *outcome, cand *spool.Candidate) {
	d, err := b.Decide(cand)
	if err != nil {
		reason, detail := "spool_full", "The workstation's memory for scans is full and nothing more is taken until it can be sent: keep the items aside and call support."
		if errors.Is(err, spool.ErrDiskFull) {
			reason, detail = "disk_full", "The workstation's disk is full and no scan can be kept: call support."
		}
		p.notAccepted(b, o, reason, detail)
		return
	}
	o.decision = d
	p.keep(s)
	s.typed.element = idem.Key{} // what is equal to a text before the movement is no echo of it
	if d.Record.IsDuplicate() {
		o.kind, o.reason, o.cand = kDuplicate, d.Record.Reason, *cand
		if p.secret != nil {
			d.Record.RxToken = p.tokenOf(d.Record.OfSeq)
		}
		s.session.Heard(cand.At.Boot)
		return
	}
	o.kind = kAccepted
	if o.live {
		s.session.Accepted(cand.At.Boot)
		s.accepted = cand.At.Boot
	}
}

// itemOf copies what the scan said; the record outlives the scan's buffer.
func itemOf(sc *capture.Scan) spool.Item {
	it := spool.Item{NDC: strings.Clone(sc.NDC()), Lot: strings.Clone(sc.Lot), GTIN: strings.Clone(sc.GTIN), HIBC: strings.Clone(sc.HIBC),
		Serial: strings.Clone(sc.Serial), NDC11: strings.Clone(sc.NDC11), NDC12: strings.Clone(sc.NDC12), PkgLevel: int(sc.PkgLevel),
		Symbology: strings.Clone(sc.Symbology), Length: sc.Length}
	if !sc.ExpiryLastDay.IsZero() {
		it.Expiry = sc.ExpiryLastDay.String()
	}
	if sc.Flags != 0 {
		it.Flags = sc.Flags.Names()
	}
	if sc.NDC11 == "" {
		for i := range sc.NCandidates {
			it.Candidates = append(it.Candidates, strings.Clone(sc.Candidates11[i]))
		}
	}
	return it
}

// note adds the audit line of a frame that captures nothing.
func (p *pipeline) note(b *spool.Batch, o *outcome, out ledger.Outcome, reason string) {
	l := spool.Line{Event: spool.NewEvent(o.frame.At.T), At: o.frame.At.T, Outcome: string(out), Reason: reason, Scanner: o.frame.Scanner,
		CapturedAt: o.frame.At.T, Length: o.frame.Length, Symbology: o.symb}
	if o.scanner != nil {
		l.Scanner = o.scanner.id
		l.Type, _ = o.scanner.session.Current(o.frame.At.Boot)
	}
	b.Note(l)
}

// reject refuses what a frame says. What cannot be read may be the rest of a scan that a crash cut in two: an
// acceptance that is in doubt stays so.
func (p *pipeline) reject(b *spool.Batch, o *outcome, k capture.ErrorKind, detail string) {
	o.kind, o.reason, o.detail = kRejected, string(k), detail
	p.note(b, o, ledger.Rejected, o.reason)
}

// notAccepted refuses a frame for want of room. Its audit line takes room too, but little.
func (p *pipeline) notAccepted(b *spool.Batch, o *outcome, reason, detail string) {
	o.kind, o.reason, o.detail = kNotAccepted, reason, detail
	if reason != "disk_full" {
		p.note(b, o, ledger.NotAccepted, reason)
	}
}

func (p *pipeline) command(b *spool.Batch, s *scanner, o *outcome) {
	f, cmd := &o.frame, p.scan.Command
	now := f.At.Boot
	element := idem.PhysicalKey(s.id, p.scan.Element())
	p.keep(s)
	c := &s.command
	// A command barcode bounces like any other: the local rule holds for it too.
	typ, _ := s.session.Current(now)
	echo := c.element == element && now-c.anchor < p.cfg.Window.For(typ).Width &&
		(s.session.Act() <= c.anchor && s.accepted <= c.anchor || now-c.equal <= commandEcho) // a scan in between has used it up
	if c.element == element {
		c.equal = now
	}
	o.kind = kControl
	b.Heard(s.id)
	if echo {
		o.reason = controlReason(cmd.Verb)
		p.note(b, o, ledger.Control, o.reason)
		return
	}
	c.element, c.anchor, c.equal = element, now, now
	o.reason = controlReason(cmd.Verb)
	switch cmd.Verb {
	case capture.CommandMode:
		s.session.SetMode(cmd.Type, now)
		o.entry = p.modeEntry(s, f.At, "barcode")
	case capture.CommandQuantity:
		s.session.SetQuantity(cmd.Quantity, now) // its bounds are the parser's
		o.entry = p.modeEntry(s, f.At, "barcode")
	case capture.CommandSameAgain:
		if s.cfg.Shared {
			p.reject(b, o, capture.UnsupportedFormat, "Same again cannot be used at a scanner that several workstations share: set a quantity instead.")
			return
		}
		if t, ok := s.lastTold(now, idem.EventID{}); ok {
			if o.post != nil {
				t.cand.Once = o.post.once // what is sent again finds the movement that it made
			}
			made := p.convert(b, s, t, f.At)
			if o.post == nil {
				made.text = t.text
			} else {
				converted := *made
				o.post.converted = &converted
			}
		} else {
			s.session.Arm(now)
		}
	}
	p.note(b, o, ledger.Control, o.reason)
}

const commandEcho = 300 * time.Millisecond

func controlReason(v capture.Verb) string {
	switch v {
	case capture.CommandMode:
		return "mode"
	case capture.CommandQuantity:
		return "quantity"
	}
	return "same_again"
}

// convert makes a told duplicate a movement of its own. The conversion counts as a frame of its own, since it
// captures one.
func (p *pipeline) convert(b *spool.Batch, s *scanner, t told, at window.Reading) *outcome {
	cand := t.cand
	cand.At, cand.Converts = at, t.boot
	p.mu.Lock()
	p.tally.frames++
	p.tally.inFlight++
	p.mu.Unlock()
	p.a.metrics.frames.WithLabelValues(s.cfg.ID).Inc()
	o := outcome{frame: device.Frame{Scanner: s.cfg.ID, At: at, Length: cand.Item.Length}, scanner: s, symb: cand.Item.Symbology}
	p.decide(b, s, &o, &cand)
	o.converts = t.event
	p.out = append(p.out, o)
	return &p.out[len(p.out)-1]
}

// lastTold finds a told duplicate that may still be converted: the named one, or else the newest, unless that
// has been converted already. An older one is never meant by itself.
func (s *scanner) lastTold(now time.Duration, event idem.EventID) (told, bool) {
	if event.IsZero() {
		event = s.toldLast
	}
	for _, t := range slices.Backward(s.told) {
		if now-t.boot <= toldFor && t.event == event {
			return t, true
		}
	}
	return told{}, false
}

func (p *pipeline) label(b *spool.Batch, s *scanner, o *outcome) {
	o.kind, o.reason = kControl, "label"
	token := p.secret.Token(p.scan.Rx)
	p.keep(s)
	if q := o.post; q != nil && q.given != "" {
		typ, _ := s.session.Current(o.frame.At.Boot)
		s.past = pastLabel{token, q.at, typ}
	} else {
		s.session.SetLabel(token, o.frame.At.Boot)
	}
	rx := p.scan.Clone().Rx
	o.entry = &events.Entry{Kind: "label", At: o.frame.At.T, Body: labelBody{s.id, rx.Profile, nullable(token)}, Live: labelLive{rx: rx}}
	p.note(b, o, ledger.Control, o.reason)
}

func (p *pipeline) unknown(b *spool.Batch, s *scanner, o *outcome) {
	o.kind, o.reason = kControl, "opaque"
	o.entry = &events.Entry{Kind: "unknown", At: o.frame.At.T, Body: unknownBody{s.id, nullable(o.symb), o.frame.Length},
		Live: unknownLive{text: capture.Secret(p.scan.Element())}}
	p.note(b, o, ledger.Control, o.reason)
}

// overflowed tells of the frames that found the queue full.
func (p *pipeline) overflowed(b *spool.Batch) {
	p.mu.Lock()
	lost := p.overflow
	p.overflow = nil
	p.mu.Unlock()
	for _, l := range lost {
		b.Note(spool.Line{Event: spool.NewEvent(l.at), At: l.at, Outcome: string(ledger.NotAccepted), Reason: "overflow", Scanner: l.scanner, CapturedAt: l.at, Length: l.length})
		p.a.metrics.notAccepted.WithLabelValues("overflow").Inc()
		p.a.tell(events.Entry{Kind: "not_accepted", At: l.at, Body: refusedBody{Scanner: l.scanner, Reason: "overflow",
			Detail: "Scans came faster than they could be kept: scan the last item again."}})
	}
}

// deliver tells what became of the batch: to the devices, the events and the counts.
func (p *pipeline) deliver(err error) {
	if err != nil {
		p.failed(err)
	}
	clear(p.saved)
	now := p.a.clock.Boot()
	online := p.a.forward.Online()
	var entries []events.Entry
	var t tally
	for i := range p.out {
		o := &p.out[i]
		t.inFlight--
		answer := device.Accepted
		switch o.kind {
		case kAccepted:
			t.captured++
			p.a.courier.Await(o.decision.Record)
			o.scanner.lastScan = o.frame.At.T
			o.scanner.told = slices.DeleteFunc(o.scanner.told, func(t told) bool { return t.event == o.converts })
			entries = append(entries, acceptedEntry(o.decision.Record, online))
			p.a.metrics.captured.Inc()
			p.a.metrics.accept.Observe((now - o.frame.At.Boot).Seconds())
		case kDuplicate:
			t.captured++
			answer = device.Duplicate
			o.scanner.lastScan = o.frame.At.T
			o.scanner.remember(o)
			entries = append(entries, duplicateEntry(o.decision.Record, o.decision.Winner))
			p.a.metrics.captured.Inc()
			p.a.metrics.accept.Observe((now - o.frame.At.Boot).Seconds())
		case kRejected:
			t.rejected++
			answer = device.Rejected
			p.a.metrics.rejected.WithLabelValues(o.reason).Inc()
			entries = append(entries, events.Entry{Kind: "rejected", At: o.frame.At.T, Body: rejectedBody{o.scanner.id, o.reason, o.detail, nullable(o.symb), o.frame.Length}})
		case kNotAccepted:
			t.notAccepted++
			answer = device.NotAccepted
			p.a.metrics.notAccepted.WithLabelValues(o.reason).Inc()
			entries = append(entries, events.Entry{Kind: "not_accepted", At: o.frame.At.T, Body: refusedBody{o.scanner.id, o.reason, o.detail}})
		case kControl:
			t.control++
			answer = device.Control
			p.a.metrics.control.Inc()
			if o.entry != nil {
				entries = append(entries, *o.entry)
			}
		case kVoided:
			t.voided++
			answer = device.Rejected
			p.a.metrics.voided.WithLabelValues(o.reason).Inc()
		}
		o.answer = answer
	}
	p.a.tell(entries...) // first, so that a kill leaves no answer without its event
	for i := range p.out {
		o := &p.out[i]
		if o.frame.Reply != nil {
			o.frame.Reply.Reply(o.answer)
		}
		p.typeLater(o)
	}
	p.typeNow()
	clear(p.out)
	p.out = p.out[:0]
	p.mu.Lock()
	p.tally.captured += t.captured
	p.tally.rejected += t.rejected
	p.tally.notAccepted += t.notAccepted
	p.tally.control += t.control
	p.tally.voided += t.voided
	p.tally.inFlight += t.inFlight
	p.mu.Unlock()
}

// commitFailure gives a batch that could not be made durable the scanner's words, and the alarm's.
func commitFailure(err error) (reason, detail, alarm, hint string) {
	var ce *spool.CommitError
	if errors.As(err, &ce) && ce.NoSpace {
		return "disk_full", "The workstation's disk is full and no scan can be kept: call support.", alarmDiskFull, hintDiskFull
	}
	return "fsync_failed", "The workstation could not keep the scan: scan again, and call support if it goes on.", alarmFsync, "check the disk under the state folder"
}

const hintDiskFull = "make room on the disk under the state folder"

// failed turns a batch that could not be made durable into refusals, and puts the sessions back.
func (p *pipeline) failed(err error) {
	reason, detail, alarm, hint := commitFailure(err)
	p.a.log.Error("cannot make scans durable", "error", err)
	if p.failing != alarm {
		p.recovered()
	}
	p.failing = alarm
	p.a.alarms.set(alarm, err.Error(), hint)
	p.mu.Lock()
	for id, st := range p.saved {
		if s := p.scanners[id]; s != nil {
			s.userState = st
		}
	}
	p.mu.Unlock()
	for i := range p.out {
		if o := &p.out[i]; o.kind != kVoided {
			o.kind, o.reason, o.detail, o.entry = kNotAccepted, reason, detail, nil
		}
	}
}

func (s *scanner) remember(o *outcome) {
	if len(s.told) == toldKept {
		s.told = slices.Delete(s.told, 0, 1)
	}
	s.toldLast = o.decision.Record.Event
	s.told = append(s.told, told{event: o.decision.Record.Event, boot: o.frame.At.Boot, cand: withRecord(o.cand, o.decision.Record), text: o.text})
}

// withRecord gives a candidate the type and quantity that its duplicate inherited: counted on its own, the
// movement is the same once more.
func withRecord(c spool.Candidate, r *spool.Record) spool.Candidate {
	c.Identity.Type, c.Identity.Quantity = r.Type, r.Quantity
	c.Once = spool.Once{} // the next time it is another request's
	return c
}

// recovered ends the alarm of a commit that failed.
func (p *pipeline) recovered() {
	if p.failing != "" {
		p.a.alarms.clear(p.failing)
		p.failing = ""
	}
}

// tightTurn is how often the pipeline turns while the spool is over its warning mark or the disk is full.
const tightTurn = time.Second

// untilExpiry is the time until a mode or quantity runs out; a day if none is set. While the spool is tight
// it is short: a settled segment makes room only once its acceptances are old enough, and no scan comes to
// turn the pipeline when scans are refused.
func (p *pipeline) untilExpiry() time.Duration {
	now := p.a.clock.Boot()
	until := 24 * time.Hour
	if p.tight || p.failing == alarmDiskFull {
		until = tightTurn
	}
	for _, s := range p.scanners {
		if t, set := s.session.NextExpiry(now); set {
			until = min(until, max(0, t-now))
		}
	}
	if t, set := p.a.spool.LapsesAt(); set {
		until = min(until, max(0, t-now))
	}
	return until
}

// expire tells of modes and quantities that have run out.
func (p *pipeline) expire() {
	now := p.a.clock.Boot()
	var ended []*scanner
	p.mu.Lock()
	for _, s := range p.scanners {
		if s.session.Expire(now) {
			ended = append(ended, s)
		}
	}
	p.mu.Unlock()
	for _, s := range ended {
		p.a.tell(*p.modeEntry(s, p.a.clock.Now(), "idle"))
	}
}

// upkeep does what may wait until the scanners have their answers.
func (p *pipeline) upkeep() {
	p.tight = p.a.spool.Fill() >= p.cfg.Spool.WarnAt
	full := p.a.spool.DiskFull()
	if full && p.failing != alarmDiskFull { // before a scan has to find out
		p.recovered()
		p.failing = alarmDiskFull
		p.a.alarms.set(alarmDiskFull, "the disk is full: scans are refused", hintDiskFull)
	}
	if p.tight || p.failing == alarmDiskFull {
		p.a.spool.Prune()
	}
	if err := p.a.spool.Maintain(); err != nil {
		p.a.log.Warn("cannot maintain the spool", "error", err)
	}
	if p.failing == alarmDiskFull && !p.a.spool.DiskFull() {
		p.recovered() // there is room again, though no scan has come yet
	}
	p.lapse()
	p.a.watchSpool()
	p.watchNDC()
	if steps := p.a.clock.TakeSteps(); len(steps) > 0 {
		b := p.a.spool.NewBatch()
		for _, st := range steps {
			p.a.clockStepped(st)
			b.Note(spool.Line{Event: spool.NewEvent(st.To), At: st.To, Outcome: string(ledger.Notice), Reason: "clock_step"})
		}
		if err := b.Commit(); err != nil {
			p.a.log.Error("cannot note a step of the clock", "error", err)
		}
	}
}

func (p *pipeline) modeEntry(s *scanner, at window.Reading, source string) *events.Entry {
	typ, quantity := s.session.Current(at.Boot)
	return &events.Entry{Kind: "mode", At: at.T, Body: modeBody{s.id, typ, quantity, revertsAt(s, at), source}}
}

// revertsAt is when the mode, or else the quantity, of a scanner falls back; nil if nothing does.
func revertsAt(s *scanner, at window.Reading) *window.UTC {
	end, ok := s.session.ModeEnds(at.Boot)
	if !ok {
		end, ok = s.session.QuantityEnds(at.Boot)
	}
	if !ok {
		return nil
	}
	t := at.T.Add(end - at.Boot)
	return &t
}

func (p *pipeline) snapshot() (t tally, ready bool, ndc ndcDirectory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tally, p.isReady, p.ndc
}
