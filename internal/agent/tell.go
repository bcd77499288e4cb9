package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"scanonce/capture"
	"scanonce/idem"
	"scanonce/internal/events"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/window"
)

// Streams of the event log's marks: a kill between the spool and the log is found by them.
const (
	streamCaptured = 1 // mark: sequence number of the record
	streamSettled  = 2 // mark: number of the settlement
)

// tell appends events. The stream is for those at the counter; that it fails must not stop the capture.
func (a *agent) tell(entries ...events.Entry) {
	if len(entries) == 0 {
		return
	}
	if err := a.events.Append(entries...); err != nil {
		if !errors.Is(err, events.ErrClosed) && a.eventsDown.CompareAndSwap(false, true) {
			a.log.Error("cannot keep local events", "error", err)
			a.alarms.set(alarmEvents, "cannot keep local events: "+err.Error(), "check the disk under the state folder; applications that resume the stream will see a gap")
		}
		return
	}
	if a.eventsDown.CompareAndSwap(true, false) {
		a.alarms.clear(alarmEvents)
	}
}

// scanPart is what every event of a scan has.
type scanPart struct {
	event    idem.EventID
	scanner  string
	typ      window.ScanType
	quantity int
	at       window.UTC
	key      idem.Key
}

func partOf(r *spool.Record) scanPart {
	return scanPart{r.Event, r.Scanner, r.Type, r.Quantity, r.At, r.Keys.Idem}
}

func (s *scanPart) append(b []byte) []byte {
	b = append(b, `"event_id":"`...)
	b = appendEvent(b, s.event)
	b = append(b, `","scanner_id":`...)
	b = appendText(b, s.scanner)
	b = append(append(append(b, `,"scan_type":"`...), s.typ.String()...), `","quantity":`...)
	b = strconv.AppendInt(b, int64(s.quantity), 10)
	b = append(b, `,"captured_at":"`...)
	b = appendTime(b, s.at)
	b = append(b, `","key":"scan:idem:`...)
	b = hex.AppendEncode(b, s.key.Hash[:])
	return append(b, '"')
}

func appendEvent(b []byte, e idem.EventID) []byte { return append(b, e.String()...) }

func appendTime(b []byte, t window.UTC) []byte {
	return t.Time().AppendFormat(b, "2006-01-02T15:04:05.000Z")
}

// appendText quotes text for JSON. What does not come from a fixed set here comes from GS1's character sets,
// so invalid UTF-8 cannot occur; it would become escapes of its bytes.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < 0x20 || c >= 0x7f:
			b = append(b, fmt.Sprintf(`\u%04x`, c)...)
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

func appendNullable(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendText(b, s)
}

func appendList(b []byte, l []string) []byte {
	b = append(b, '[')
	for i, s := range l {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, s)
	}
	return append(b, ']')
}

type acceptedBody struct {
	scanPart
	online bool
	item   spool.Item
}

// AppendJSONFields writes the event's fields.
func (e *acceptedBody) AppendJSONFields(b []byte) []byte {
	b = e.scanPart.append(b)
	b = strconv.AppendBool(append(b, `,"online":`...), e.online)
	it := &e.item
	b = appendNullable(append(b, `,"item":{"ndc11":`...), it.NDC11)
	b = appendList(append(b, `,"ndc11_candidates":`...), it.Candidates)
	b = appendNullable(append(b, `,"ndc12":`...), it.NDC12)
	b = appendNullable(append(b, `,"gtin":`...), it.GTIN)
	b = appendNullable(append(b, `,"lot":`...), it.Lot)
	b = appendNullable(append(b, `,"serial":`...), it.Serial)
	b = appendNullable(append(b, `,"expiry":`...), it.Expiry)
	b = appendList(append(b, `,"flags":`...), it.Flags)
	return appendNullable(append(b, `},"rx_token":`...), it.RxToken)
}

func acceptedEntry(r *spool.Record, online bool) events.Entry {
	return events.Entry{Kind: "accepted", At: r.Taken(), Stream: streamCaptured, Mark: r.Seq, Body: &acceptedBody{partOf(r), online, r.Item}}
}

type duplicateBody struct {
	scanPart
	of     idem.EventID
	first  window.UTC
	reason string
	again  bool
}

// AppendJSONFields writes the event's fields.
func (e *duplicateBody) AppendJSONFields(b []byte) []byte {
	b = e.scanPart.append(b)
	b = appendEvent(append(b, `,"duplicate_of":"`...), e.of)
	if e.first == 0 {
		b = append(b, `","first_captured_at":null`...)
	} else {
		b = append(appendTime(append(b, `","first_captured_at":"`...), e.first), '"')
	}
	b = appendText(append(b, `,"reason":`...), e.reason)
	if e.again {
		return append(b, `,"actions":["same-again"]`...)
	}
	return append(b, `,"actions":[]`...)
}

func duplicateEntry(r *spool.Record, w spool.Winner) events.Entry {
	return events.Entry{Kind: "duplicate", At: r.At, Stream: streamCaptured, Mark: r.Seq, Body: &duplicateBody{partOf(r), w.Event, w.At, r.Reason, true}}
}

type committedBody struct {
	scanPart
	at      window.UTC
	quality window.Quality
}

// AppendJSONFields writes the event's fields.
func (e *committedBody) AppendJSONFields(b []byte) []byte {
	b = e.scanPart.append(b)
	b = appendTime(append(b, `,"committed_at":"`...), e.at)
	b = append(append(b, `","clock_quality":"`...), e.quality.String()...)
	return append(b, '"')
}

// settledEntries are the events of one settlement. Local duplicates were told of when they came.
func settledEntries(number uint64, records []forward.Settled, at window.UTC) []events.Entry {
	out := make([]events.Entry, 0, len(records))
	for i := range records {
		s := &records[i]
		e := events.Entry{At: at, Stream: streamSettled, Mark: number}
		switch {
		case s.Verdict.State == spool.Committed:
			e.Kind, e.Body = "committed", &committedBody{partOf(s.Record), s.Verdict.CommittedAt, s.Record.Quality}
		case s.Verdict.State == spool.Suppressed && !s.Record.IsDuplicate():
			part := partOf(s.Record)
			part.key = s.Verdict.Key
			e.Kind, e.Body = "duplicate", &duplicateBody{part, s.Verdict.Winner, 0, s.Verdict.Reason, false}
		default:
			continue
		}
		out = append(out, e)
	}
	return out
}

type rejectedBody struct {
	Scanner   string  `json:"scanner_id"`
	Reason    string  `json:"reason"`
	Detail    string  `json:"detail"`
	Symbology *string `json:"symbology"`
	Length    int     `json:"length"`
}

type refusedBody struct {
	Scanner string `json:"scanner_id"`
	Reason  string `json:"reason"`
	Detail  string `json:"detail"`
}

type labelBody struct {
	Scanner string  `json:"scanner_id"`
	Profile string  `json:"profile"`
	RxToken *string `json:"rx_token"`
}

// labelLive is what only an application that listens gets of a label; a group that the label lacks is null.
type labelLive struct {
	hidden
	rx capture.Rx
}

// AppendJSONFields writes the event's fields.
func (e labelLive) AppendJSONFields(b []byte) []byte {
	b = appendSecret(append(b, `"rx":`...), e.rx.Rx)
	b = appendSecret(append(b, `,"refill":`...), e.rx.Refill)
	return appendSecret(append(b, `,"store":`...), e.rx.Store)
}

type unknownBody struct {
	Scanner   string  `json:"scanner_id"`
	Symbology *string `json:"symbology"`
	Length    int     `json:"length"`
}

// unknownLive is what only an application that listens gets of a text that names no item.
type unknownLive struct {
	hidden
	text capture.Secret
}

// AppendJSONFields writes the event's fields.
func (e unknownLive) AppendJSONFields(b []byte) []byte {
	return appendSecret(append(b, `"text":`...), e.text)
}

func appendSecret(b []byte, s capture.Secret) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	j, err := json.Marshal(s.Reveal())
	if err != nil {
		return append(b, "null"...) // a string always marshals
	}
	return append(b, j...)
}

// hidden makes what embeds it print as nothing but this: it holds a payload or a patient's data.
type hidden struct{}

func (hidden) String() string                 { return "[hidden]" }
func (h hidden) Format(f fmt.State, _ rune)   { io.WriteString(f, h.String()) }
func (h hidden) LogValue() slog.Value         { return slog.StringValue(h.String()) }
func (h hidden) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

type modeBody struct {
	Scanner   string          `json:"scanner_id"`
	ScanType  window.ScanType `json:"scan_type"`
	Quantity  int             `json:"quantity"`
	RevertsAt *window.UTC     `json:"reverts_at"`
	Source    string          `json:"source"`
}

type deviceBody struct {
	Scanner   string  `json:"scanner_id"`
	State     string  `json:"state"`
	Ambiguous bool    `json:"ambiguous"`
	Detail    *string `json:"detail"`
}

type onlineBody struct {
	State       forward.Link `json:"state"`
	Backlog     int64        `json:"backlog"`
	OldestAgeMS int64        `json:"oldest_age_ms"`
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// retell tells of what a kill has kept from the event log: the last settlement, and captured records behind
// the last one told.
func (a *agent) retell() {
	now := a.clock.Now().T
	from := a.events.Mark(streamCaptured)
	if newest := a.spool.Newest(); newest > uint64(a.cfg.Events.MaxEvents) {
		from = max(from, newest-uint64(a.cfg.Events.MaxEvents))
	}
	var entries []events.Entry
	err := a.spool.Since(from, func(r *spool.Record) bool {
		if !r.IsDuplicate() {
			entries = append(entries, acceptedEntry(r, a.forward.Online()))
			return true
		}
		w := spool.Winner{Event: r.Of}
		if first, err := a.spool.Load(r.OfSeq); err == nil {
			w.At = first.At
		}
		entries = append(entries, duplicateEntry(r, w))
		return true
	})
	if err != nil {
		a.log.Warn("cannot read again what was captured last", "error", err)
	}
	a.tell(entries...)
	number, verdicts := a.spool.LastSettlement()
	if number <= a.events.Mark(streamSettled) {
		return
	}
	var settled []forward.Settled
	for _, v := range verdicts {
		r, err := a.spool.Load(v.Seq)
		if err != nil {
			a.log.Warn("cannot read again what was settled last", "error", err)
			continue
		}
		settled = append(settled, forward.Settled{Record: r, Verdict: v})
	}
	a.tell(settledEntries(number, settled, now)...)
}

// Settled tells of final records; see forward.Listener.
func (a *agent) Settled(number uint64, records []forward.Settled) {
	a.remember(records)
	now := a.clock.Boot()
	for i := range records {
		s := &records[i]
		a.courier.Arrived(s.Record)
		switch s.Verdict.State {
		case spool.Committed:
			a.metrics.committed.Inc()
			a.metrics.commit.Observe((now - s.Record.Boot).Seconds())
		case spool.Suppressed:
			a.metrics.suppressed.WithLabelValues(s.Verdict.Reason).Inc()
		case spool.Unaccounted:
			a.log.Error("a duplicate is unaccounted for: what it repeats is lost, and no row stands", "event_id", s.Record.Event.String())
		}
	}
	a.tell(settledEntries(number, records, a.clock.Now().T)...)
	a.watchSpool()
	a.watchClaims()
}

// watchClaims notes in the audit that the claim store has lost its keys.
func (a *agent) watchClaims() {
	c, ok := a.claims.(interface{ Resets() uint64 })
	if !ok {
		return
	}
	n := c.Resets()
	if n == a.resets {
		return
	}
	a.resets = n
	if n == 0 {
		return // opened anew
	}
	a.log.Warn("the claim store has lost its keys; the ledger decides what they would have")
	now := a.clock.Now().T
	go a.inPipeline(context.Background(), func(b *spool.Batch) func(error) {
		b.Note(spool.Line{Event: spool.NewEvent(now), At: now, Outcome: "notice", Reason: "store_reset"})
		return nil
	})
}

// LinkChanged tells of an outage and its end; see forward.Listener.
func (a *agent) LinkChanged(l forward.Link, cause error) {
	st := a.spool.Stats()
	now := a.clock.Now().T
	if l != a.linkTold {
		a.linkTold = l
		a.tell(events.Entry{Kind: "online", At: now, Body: onlineBody{l, st.Pending, age(now, st.Oldest)}})
	}
	if l == forward.Offline {
		a.suspect = a.acknowledged
		a.log.Warn("offline: scans are kept and sent later", "error", cause)
		var damaged *spool.DamageError
		if errors.As(cause, &damaged) && damaged.OfState() {
			a.alarms.clear(alarmOffline)
			a.alarms.clear(alarmLedgerConfig)
			a.alarms.set(alarmStateDamage, damaged.Error()+"; scans are kept, and none is sent", "restart the agent, which heals it: nothing is lost; then check the disk under the state folder")
			return
		}
		if detail, hint, ok := configError(cause); ok {
			a.alarms.clear(alarmOffline)
			a.alarms.set(alarmLedgerConfig, detail, hint+"; scans are kept meanwhile")
			return
		}
		a.alarms.clear(alarmLedgerConfig)
		a.alarms.set(alarmOffline, cause.Error(), "nothing is lost: scans are kept and sent when the ledger answers again")
		return
	}
	a.askWhetherThere()
	a.log.Info("link", "state", l, "backlog", st.Pending)
	a.alarms.clear(alarmOffline)
	a.alarms.clear(alarmLedgerConfig)
}

const ledgerDecides = "the ledger decides meanwhile"

// ClaimsChanged tells that the claim authority is away, or back; see forward.Listener.
func (a *agent) ClaimsChanged(cause error) {
	if cause == nil {
		a.log.Info("claims are made again")
		a.alarms.clear(alarmClaims)
		a.alarms.clear(alarmClaimsConfig)
		return
	}
	a.log.Warn("claims cannot be made; the ledger decides alone", "error", cause)
	if detail, hint, ok := configError(cause); ok {
		a.alarms.clear(alarmClaims)
		if !strings.HasSuffix(hint, ledgerDecides) {
			hint += "; " + ledgerDecides
		}
		a.alarms.set(alarmClaimsConfig, detail, hint)
		return
	}
	a.alarms.clear(alarmClaimsConfig)
	a.alarms.set(alarmClaims, cause.Error(), "nothing is lost: the ledger's unique keys decide until it answers again")
}

// Quarantined tells of records that the ledger can never take; see forward.Listener.
func (a *agent) Quarantined(n int, detail string) {
	a.log.Error("records set aside: the ledger refuses them for good", "records", n, "reason", detail)
	a.alarms.set(alarmQuarantined, fmt.Sprintf("records are set aside that the ledger refuses: %s", detail), quarantineHint)
}

func (a *agent) clockStepped(st window.Step) {
	a.log.Error("clock stepped back", "from", st.From.String(), "to", st.To.String())
	a.alarms.set(alarmClock, fmt.Sprintf("the clock was ahead and went back from %s to %s", st.From, st.To), "see why the workstation's clock was wrong; scans stay exact meanwhile")
}

func age(now, t window.UTC) int64 {
	if t == 0 {
		return 0
	}
	return max(0, int64(now-t))
}

// watchSpool raises and clears the alarms of a filling spool.
func (a *agent) watchSpool() {
	fill := a.spool.Fill()
	switch {
	case fill >= 1:
		a.alarms.set(alarmSpoolFull, "the spool is full: scans are refused", a.makeRoom()+", or raise spool.max_records or spool.max_bytes")
	case fill < a.cfg.Spool.WarnAt:
		a.alarms.clear(alarmSpoolFull)
		a.alarms.clear(alarmSpoolFill)
		return
	default:
		a.alarms.clear(alarmSpoolFull)
	}
	a.alarms.set(alarmSpoolFill, "the spool is filling up", a.makeRoom()+"; at 100 % scans are refused")
}

// makeRoom is what empties the spool: the ledger, or, if that answers, somebody who sees to what it refuses.
func (a *agent) makeRoom() string {
	if a.spool.Waiting() && a.forward.Online() {
		return "see to the records that scanonce spool ls lists as quarantined or held, with scanonce spool requeue or discard: each keeps its file"
	}
	return "bring the ledger back"
}
