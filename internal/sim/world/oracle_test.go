package world

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"scanonce/device"
	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// movement is what really happened: somebody moved an item once.
type movement struct {
	n        int
	item     string
	user     *user
	sooner   bool // than the assumptions allow: it may be told as a duplicate
	accepted bool // some transmission of it was told as accepted
	told     bool // or as a duplicate
	sent     []*transmission
	rows     []*ledger.Row
	until    time.Duration   // of its last sending
	leans    int             // on an act, of which only this process knows: without it, it comes too soon
	typ      window.ScanType // what the user has set in the process born; 0 for not known
	quantity int
	born     int
}

// transmission is one sending of a movement, or of a command, to one agent.
type transmission struct {
	m       *movement // nil for a command
	nth     int       // of the movement
	scanner string
	partial bool
	node    *node
	at      window.UTC
	born    int
	boots   int
	sent    time.Duration
	answer  device.Answer
	lost    bool // nobody listened, or the process died before it answered
	rec     *record
	answers int
}

// Reply takes the agent's answer; see device.Replier.
func (t *transmission) Reply(a device.Answer) {
	n := t.node
	if n.dead || n.born != t.born {
		return
	}
	n.w.mark("answer", n, uint64(a))
	if t.answers++; t.answers > 1 {
		n.w.fail("%s answers twice", n.id)
	}
	t.answer = a
	if m := t.m; m != nil {
		m.accepted = m.accepted || a == device.Accepted
		m.told = m.told || a == device.Duplicate
	}
}

// record is a captured scan as the oracle has seen it in a spool.
type record struct {
	t      *transmission
	node   *node
	seq    uint64
	event  idem.EventID
	of     *record
	keys   idem.Keys
	boot   time.Duration
	boots  int
	span   time.Duration
	reason string
}

// oracle knows what really moved, and holds the agents to it.
type oracle struct {
	w         *world
	movements []*movement
	sent      map[string]map[window.UTC]*transmission // by agent and time
	records   map[string][]*record                    // by agent, in order
	events    map[idem.EventID]*record
	keys      map[idem.Key]*movement
	tried     map[idem.EventID]idem.Keys
	suppress  []*ledger.Line
	operations
}

func newOracle(w *world) *oracle {
	return &oracle{w: w, sent: map[string]map[window.UTC]*transmission{}, records: map[string][]*record{}, events: map[idem.EventID]*record{},
		keys: map[idem.Key]*movement{}, tried: map[idem.EventID]idem.Keys{}, operations: newOperations()}
}

func (o *oracle) move(u *user, item string) *movement {
	m := &movement{n: len(o.movements), item: item, user: u}
	o.movements = append(o.movements, m)
	return m
}

// offered notes a frame that an agent took, under its time.
func (o *oracle) offered(t *transmission) {
	of := o.sent[t.node.id]
	if of == nil {
		of = map[window.UTC]*transmission{}
		o.sent[t.node.id] = of
	}
	of[t.at] = t
	what := "frame"
	if t.m == nil {
		what = "command"
	} else if o.w.verbose {
		what = "frame of movement " + strconv.Itoa(t.m.n) + " (" + t.m.item + ")"
	}
	o.w.mark(what, t.node, uint64(t.at))
}

func (o *oracle) taken(n *node, at window.UTC) bool { return o.sent[n.id][at] != nil }

// time checks I11: an agent's time goes back only at a step of which it tells.
func (o *oracle) time(n *node, t window.UTC, steps uint64) {
	if t < n.lastT && steps == n.lastStep {
		o.w.fail("I11: the time of %s goes back from %v to %v without a step", n.id, n.lastT, t)
	}
	n.lastT, n.lastStep = t, steps
}

// attempt checks I6: the same keys at every attempt.
func (o *oracle) attempt(e idem.EventID, k idem.Keys) {
	if before, ok := o.tried[e]; ok && before != k {
		o.w.fail("I6: event %s goes out under other keys than before", e)
	}
	o.tried[e] = k
}

// started looks at what a process found in its spool.
func (o *oracle) started(n *node) {
	n.lastT, n.lastStep = n.high, 0
	if b, err := os.ReadFile(filepath.Join(n.dir, "spool", journalName)); err == nil && n.journal == nil {
		n.journal = b
	}
	if newest := n.stage.Spool().Newest(); newest < n.known {
		o.w.fail("%s has lost durable records: it knows %d, and had %d", n.id, newest, n.known)
	}
	o.observe(n)
}

func (o *oracle) died(n *node) {
	for _, t := range o.sent[n.id] {
		if t.answer == 0 && t.born == n.born {
			t.lost = true
		}
	}
}

// turned looks at an agent behind a turn of its pipeline.
func (o *oracle) turned(n *node) {
	o.observe(n)
	o.conserved(n)
	frames, captured, notAccepted, rejected, control, voided, inFlight := n.stage.Frames()
	if frames != captured+notAccepted+rejected+control+voided+inFlight {
		o.w.fail("I13: %s: %d frames are not %d captured + %d not accepted + %d rejected + %d control + %d voided + %d in flight",
			n.id, frames, captured, notAccepted, rejected, control, voided, inFlight)
	}
}

// conserved checks I13: every captured scan is somewhere.
func (o *oracle) conserved(n *node) {
	st := n.stage.Spool().Stats()
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Discarded+st.Unaccounted || st.Pending < 0 || st.Unaccounted != 0 {
		o.w.fail("I13: %s: %+v", n.id, st)
	}
	if n.intake == nil && st.Captured != int64(n.known) {
		o.w.fail("I13: %s counts %d captured, and has %d", n.id, st.Captured, n.known)
	}
}

// observe reads the records that came since the last time.
func (o *oracle) observe(n *node) {
	sp := n.stage.Spool()
	for newest := sp.Newest(); n.known < newest; n.known++ {
		r, err := sp.Load(n.known + 1)
		if err != nil {
			o.w.fail("%s cannot read its record %d: %v", n.id, n.known+1, err)
		}
		o.captured(n, r)
	}
}

func (o *oracle) captured(n *node, r *spool.Record) {
	w := o.w
	t := o.sent[n.id][r.At]
	if t == nil {
		w.fail("%s has a record from nowhere: %v", n.id, r.At)
	}
	m := t.m
	if m == nil {
		w.fail("%s took a command for a movement", n.id)
	}
	rec := &record{t: t, node: n, seq: r.Seq, event: r.Event, keys: r.Keys, boot: r.Boot, boots: t.boots, span: r.Span, reason: r.Reason}
	if t.rec != nil {
		w.fail("%s has two records of one transmission of movement %d", n.id, m.n)
	}
	if o.events[r.Event] != nil {
		w.fail("I7: event %s came twice", r.Event)
	}
	t.rec = rec
	o.events[r.Event] = rec
	o.records[n.id] = append(o.records[n.id], rec)
	n.high = max(n.high, r.At)
	w.mark("record", n, r.Seq<<1|uint64(len(r.Reason)&1))
	if k, ok := o.tried[r.Event]; ok && k != r.Keys {
		w.fail("I6: event %s was claimed under other keys than it has", r.Event)
	}
	if !r.IsDuplicate() {
		for _, k := range [...]idem.Key{r.Keys.Idem, r.Keys.Edge} {
			if k.IsZero() {
				continue
			}
			if other := o.keys[k]; other != nil && other != m {
				w.fail("I8: movements %d and %d share the key %s", other.n, m.n, k)
			}
			o.keys[k] = m
		}
		if m.typ != 0 && !m.told && len(m.user.nodes) == 1 && t.born == m.born && (r.Type != m.typ || r.Quantity != m.quantity) {
			w.fail("movement %d was to be %d × %v, and is %d × %v", m.n, m.quantity, m.typ, r.Quantity, r.Type)
		}
		return
	}
	if rec.of = o.events[r.Of]; rec.of == nil {
		w.fail("%s has a duplicate of an event that nobody has", n.id)
	}
	if rec.keys != rec.of.keys {
		w.fail("a duplicate has other keys than what it repeats")
	}
	if rec.of.t.m != m && !o.mayRepeat(rec) {
		w.fail("movement %d was told as a duplicate of movement %d (%s)", m.n, rec.of.t.m.n, r.Reason)
	}
}

// mayRepeat says whether a transmission may rightly be told as the repetition of another movement: one that is
// in doubt behind a crash, or of which nobody was told, or one that comes sooner than the assumptions allow.
func (o *oracle) mayRepeat(r *record) bool {
	m := r.t.m
	return r.reason == spool.ReasonInDoubt || r.of.t.lost || o.unheard(r) || m.sooner || m.leans != 0 && m.leans != r.t.born || r.of.reason == spool.ReasonInDoubt || o.doubted(r)
}

// unheard says that the agent has a duplicate of the same acceptance of which nobody was told.
func (o *oracle) unheard(r *record) bool {
	return slices.ContainsFunc(o.records[r.node.id], func(x *record) bool { return x.of == r.of && x.t.lost })
}

// doubted says that the agent has taken the movement for the repetition in doubt before: its further
// transmissions repeat that too.
func (o *oracle) doubted(r *record) bool {
	return slices.ContainsFunc(r.t.m.sent, func(t *transmission) bool {
		return t.rec != nil && t.node == r.node && t.rec.reason == spool.ReasonInDoubt
	})
}

func (o *oracle) line(n *node, l *ledger.Line) {
	if l.Outcome == ledger.Suppressed {
		o.suppress = append(o.suppress, l)
	}
}

// horizon is how long acceptances are remembered.
const horizon = 10 * time.Minute

// unlinking checks I3 at the removal of a segment: a row shares the keys of each record in it, and the newest of
// them is older than the horizon.
func (o *oracle) unlinking(n *node, name string) {
	first, ok := firstOf(name)
	if !ok {
		return
	}
	next := ^uint64(0)
	others, _ := filepath.Glob(filepath.Join(n.dir, "spool", "*.seg"))
	for _, other := range others {
		if f, ok := firstOf(filepath.Base(other)); ok && f >= first && filepath.Base(other) != name {
			next = min(next, f)
		}
	}
	for _, r := range o.records[n.id] {
		if r.seq < first || r.seq >= next {
			continue
		}
		rows := o.w.rows
		if rows.rows[r.keys.Idem] == nil && (r.keys.Edge.IsZero() || rows.rows[r.keys.Edge] == nil) {
			o.w.fail("I3: %s unlinks %s, and no row shares the keys of its record %d", n.id, name, r.seq)
		}
		least := horizon
		if n.narrow || n.cramped { // a full disk needs the room: the local rule is outlasted, no more
			least = 3500 * time.Millisecond
		}
		if r.boots == n.boots && n.Boot()-r.boot <= least {
			o.w.fail("%s unlinks %s, and its record %d is %v old", n.id, name, r.seq, n.Boot()-r.boot)
		}
	}
}

func firstOf(name string) (uint64, bool) {
	_, number, ok := strings.Cut(strings.TrimSuffix(name, ".seg"), "-")
	if !ok || !strings.HasSuffix(name, ".seg") {
		return 0, false
	}
	n, err := strconv.ParseUint(number, 10, 64)
	return n, err == nil
}

// final holds the quiet world to the promise.
func (o *oracle) final() {
	w := o.w
	for _, r := range w.rows.order {
		rec := o.events[r.Event]
		if rec == nil {
			w.fail("a row of an event that no spool has: %s, captured %v", r.Event, r.CapturedAt)
		}
		if rec.of != nil {
			w.fail("a local duplicate has a row")
		}
		if r.Keys != rec.keys || r.CapturedAt != rec.t.at {
			w.fail("the row of movement %d is not what was captured", rec.t.m.n)
		}
		rec.t.m.rows = append(rec.t.m.rows, r)
	}
	for _, m := range o.movements {
		if len(m.rows) > 1 {
			w.fail("I1: movement %d has %d rows", m.n, len(m.rows))
		}
		if m.accepted && len(m.rows) == 0 {
			w.fail("movement %d was told as accepted, and has no row", m.n)
		}
		for _, t := range m.sent {
			if (t.answer == device.Accepted || t.answer == device.Duplicate) && t.rec == nil {
				w.fail("movement %d was told as taken, and no spool has it", m.n)
			}
		}
	}
	final := map[idem.EventID]*ledger.Line{}
	for _, l := range o.suppress {
		rec := o.events[l.Event]
		if rec == nil {
			w.fail("a suppressed line of an event that no spool has")
		}
		final[l.Event] = l
		row := w.rows.rows[l.Key]
		switch {
		case w.rows.events[l.Event] != nil:
			w.fail("movement %d: an event has a row and a suppressed line", rec.t.m.n)
		case row == nil || row.Keys.Idem != l.Key:
			w.fail("a line of movement %d names a key that no row has", rec.t.m.n)
		case row.Event != l.Winner:
			w.fail("a line of movement %d names another event than the row's", rec.t.m.n)
		}
		if winner := o.events[row.Event]; winner.t.m != rec.t.m && !(rec.of != nil && (winner.t.m == rec.of.t.m || o.sameRow(rec, row)) && o.mayRepeat(rec)) {
			w.fail("movement %d was told as a duplicate by the row of movement %d", rec.t.m.n, winner.t.m.n)
		}
	}
	for e, l := range w.rows.lines {
		if l.Outcome != ledger.Suppressed && o.events[e] != nil {
			w.fail("a line that is not final has the event id of a scan: %s", l.Outcome)
		}
	}
	o.chained()
	o.claimed()
	o.operated()
	o.adjudicated()
	for _, n := range w.nodes {
		o.published(n)
		var committed, suppressed int64
		for _, r := range o.records[n.id] {
			switch {
			case w.rows.events[r.event] != nil:
				committed++
			case final[r.event] != nil:
				suppressed++
			default:
				w.fail("I2: record %d of %s (movement %d) is neither a row nor a duplicate's line", r.seq, n.id, r.t.m.n)
			}
		}
		if st := n.stage.Spool().Stats(); st.Committed != committed || st.Suppressed != suppressed {
			w.fail("%s counts %d committed and %d suppressed; it is %d and %d", n.id, st.Committed, st.Suppressed, committed, suppressed)
		}
	}
}

// chained checks that every line, and every row as the line that it is, is bound once by its agent's chain, that
// each record follows the one before, and that an epoch begins where the one before ended.
func (o *oracle) chained() {
	w := o.w
	bound := map[idem.EventID]bool{}
	hashes := map[string]map[[32]byte]bool{} // of an agent's records
	for at, r := range w.rows.chain {
		if hashes[at.agent] == nil {
			hashes[at.agent] = map[[32]byte]bool{}
		}
		hashes[at.agent][r.Hash] = true
		if before := w.rows.chain[chainPlace{at.agent, at.epoch, at.seq - 1}]; at.seq > 1 && (before == nil || before.Hash != r.Prev) {
			w.fail("the chain of %s breaks before record %d", at.agent, at.seq)
		}
		for i, e := range r.Events {
			l := w.rows.lines[e]
			if row := w.rows.events[e]; row != nil {
				line := row.Line()
				l = &line
			}
			if l == nil || l.Hash() != [32]byte(r.LineHashes[32*i:32*i+32]) {
				w.fail("a record of %s's chain binds a line that is not there, or is another", at.agent)
			}
			if bound[e] {
				w.fail("a line of %s is bound twice", at.agent)
			}
			bound[e] = true
		}
	}
	for at, r := range w.rows.chain {
		if at.seq == 1 && r.Prev != [32]byte{} && !hashes[at.agent][r.Prev] {
			w.fail("an epoch of %s begins behind a record that is not there", at.agent)
		}
	}
	for e := range w.rows.lines {
		if !bound[e] {
			w.fail("a line of %s is in no chain", w.rows.lines[e].Agent)
		}
	}
	for e := range w.rows.events {
		if !bound[e] {
			w.fail("a row is in no chain")
		}
	}
}

// published checks the local events: each captured scan was told, each row of the agent's own too, and nothing
// else. After a power cut the log's end may be missing.
func (o *oracle) published(n *node) {
	told := map[string]map[string]bool{"accepted": {}, "duplicate": {}, "committed": {}}
	text, err := os.ReadFile(filepath.Join(n.dir, "events.log"))
	if err != nil {
		o.w.fail("%s has no event log: %v", n.id, err)
	}
	for line := range strings.Lines(string(text)) {
		i := strings.IndexByte(line, '{')
		var e struct {
			Kind  string `json:"kind"`
			Event string `json:"event_id"`
		}
		if i < 0 || json.Unmarshal([]byte(line[i:]), &e) != nil || told[e.Kind] == nil {
			continue
		}
		told[e.Kind][e.Event] = true
		id, err := idem.ParseEventID(e.Event)
		r := o.events[id]
		switch {
		case err != nil || r == nil || r.node != n:
			o.w.fail("%s tells of an event that it does not have: %s", n.id, e.Kind)
		case e.Kind == "accepted" && r.of != nil, e.Kind == "committed" && o.w.rows.events[id] == nil:
			o.w.fail("%s tells that movement %d is %s, and it is not", n.id, r.t.m.n, e.Kind)
		}
	}
	if n.powerCut {
		return
	}
	for _, r := range o.records[n.id] {
		e := r.event.String()
		switch row := o.w.rows.events[r.event]; {
		case r.of == nil && !told["accepted"][e], r.of != nil && !told["duplicate"][e]:
			o.w.fail("%s has captured movement %d and not told of it", n.id, r.t.m.n)
		case row != nil && !told["committed"][e], r.of == nil && row == nil && !told["duplicate"][e]:
			o.w.fail("%s has settled movement %d and not told of it", n.id, r.t.m.n)
		}
	}
}

// sameRow says that the row stands for what a record repeats.
func (o *oracle) sameRow(r *record, row *ledger.Row) bool {
	for r.of != nil {
		r = r.of
	}
	return row.Keys.Idem == r.keys.Idem || !r.keys.Edge.IsZero() && row.Keys.Edge == r.keys.Edge
}
