// Package audit judges an audit trail: its lines, the chains that bind them, and the ledger's rows against both. The
// command line does it, also without an agent, and the agent for the local interface.
package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"scanonce/capture"
	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// ErrTrail says that a file of a trail cannot be read.
var ErrTrail = errors.New("cannot read the audit trail")

// Options say what to verify.
type Options struct {
	File     io.Reader  // what audit export wrote, whole; nil: the reader's own trail
	Ledger   bool       // compare with the rows of the ledger too
	Retained window.UTC // lines of before may have been removed; 0: none
	Now      window.UTC // the time; 0: not known
}

// Verify reads a trail and judges it. Without File, or with Ledger, it asks r; else r may be nil. What is wrong with the
// trail is in the report; an error is one of reading, ErrTrail if File is to blame.
func Verify(ctx context.Context, r api.Reader, o Options) (out api.AuditReport, err error) {
	c := newChecker()
	c.retained, c.now = o.Retained, o.Now
	rows := map[idem.Key]idem.EventID{}
	if o.Ledger {
		if err := ledgerRows(ctx, r, rows); err != nil {
			return out, err
		}
	}
	if o.File != nil {
		err = c.addLines(o.File)
	} else {
		err = c.read(ctx, r)
	}
	if err != nil {
		return out, err
	}
	out = c.report()
	if !o.Ledger {
		return out, nil
	}
	// Rows come and never go: one that the trail knows and the ledger did not yet is there now.
	if c.lacksRow(rows) {
		if err := ledgerRows(ctx, r, rows); err != nil {
			return out, err
		}
	}
	c.reconcile(rows, &out)
	return out, nil
}

// read takes the trail of an agent or of its folder.
func (c *checker) read(ctx context.Context, r api.Reader) error {
	head, err := r.AuditHead(ctx) // before the trail, which goes on
	if err != nil {
		return err
	}
	if head.Hash != nil {
		c.heads[head.AgentID] = *head.Hash
	}
	return r.Audit(ctx, nil, nil, func(i api.AuditItem) error { c.item(&i); return nil })
}

// The reasons of a bad line.
const (
	lineAltered = "altered"
	lineMissing = "missing"
	lineOrder   = "order"
)

// checker reads a trail line by line.
type checker struct {
	place       int64 // of what is read: lines and records, from 1
	lines, gaps int64
	first       *api.AuditFault
	events      map[idem.EventID]lineSeen
	records     []chainSeen
	retained    window.UTC                // lines of before may have been removed; 0: none
	now         window.UTC                // 0: not known
	heads       map[string]string         // of agents, the hash of the last record that they have sent
	broken      bool                      // a record is wrong or missing: lines that it would bind are not told of
	rows        map[idem.Key]idem.EventID // of the committed lines
	waiting     []suppression             // their committed line has not come yet
	reasons     map[ledger.Outcome][]string
}

// suppression is what a suppressed line says.
type suppression struct {
	line          int64
	agent         string
	event, winner idem.EventID
	key           idem.Key
}

func newChecker() *checker {
	return &checker{events: map[idem.EventID]lineSeen{}, heads: map[string]string{}, rows: map[idem.Key]idem.EventID{}, reasons: knownReasons()}
}

// knownReasons are what a line of an outcome may have as its reason, "" for none. Outcomes that are not here
// may have any word.
func knownReasons() map[ledger.Outcome][]string {
	return map[ledger.Outcome][]string{
		ledger.Committed:   {"", ledger.ClaimBypassed},
		ledger.Suppressed:  {spool.ReasonBounce, spool.ReasonResend, spool.ReasonInDoubt, "other_agent", "claim_lost"},
		ledger.NotAccepted: {"spool_full", "disk_full", "fsync_failed", "overflow", "incomplete"},
		ledger.Control:     {"mode", "quantity", "same_again", "label", "opaque"},
		ledger.Rejected: {string(capture.Empty), string(capture.UnsupportedSymbology), string(capture.UnsupportedFormat), string(capture.IDDocument),
			string(capture.PHI), string(capture.CheckDigit), string(capture.CheckChar), string(capture.UnknownAI), string(capture.Truncated),
			string(capture.BadLength), string(capture.BadCharset), string(capture.ControlChar), string(capture.BadDate), string(capture.BadValue),
			string(capture.DuplicateAI), string(capture.IllegalPair), string(capture.MissingSeparator), string(capture.Ambiguous),
			string(capture.Concatenated), string(capture.ProgrammingCode), string(capture.BadNDC), string(capture.BadURI),
			string(capture.BadConfig), string(capture.TooLong)},
	}
}

// fault keeps the first bad line.
func (c *checker) fault(f api.AuditFault) {
	if c.first == nil || f.Line < c.first.Line {
		c.first = &f
	}
}

// lineColumns is how many columns scan_audit has.
const lineColumns = 15

// addLines reads JSON lines. An error is one of reading; what a line says is judged.
func (c *checker) addLines(r io.Reader) error {
	b := bufio.NewReader(r)
	for {
		text, err := b.ReadBytes('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			i, perr := parseItem(text)
			if perr != nil {
				c.place++
				c.lines++
				c.fault(api.AuditFault{Line: c.place, Reason: lineAltered, Detail: perr.Error()})
			} else {
				c.item(i)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrTrail, err)
		}
	}
}

func parseItem(text []byte) (*api.AuditItem, error) {
	// The parser's own words may quote the text.
	var columns map[string]json.RawMessage
	if json.Unmarshal(text, &columns) != nil {
		return nil, errors.New("it is not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if _, isRecord := columns["line_hashes"]; isRecord {
		r := new(api.AuditRecord)
		if d.Decode(r) != nil || len(columns) != chainColumns {
			return nil, errors.New("it does not have the columns of scan_audit_chain")
		}
		return &api.AuditItem{Record: r}, nil
	}
	e := new(api.AuditEntry)
	if d.Decode(e) != nil || len(columns) != lineColumns {
		return nil, errors.New("it does not have the columns of scan_audit")
	}
	return &api.AuditItem{Line: e}, nil
}

// item judges a line, or notes a record until all lines are there.
func (c *checker) item(i *api.AuditItem) {
	if i.Record != nil {
		c.addRecord(i.Record)
		return
	}
	c.add(i.Line)
}

// add judges one line.
func (c *checker) add(e *api.AuditEntry) {
	c.place++
	c.lines++
	bad := func(detail string) {
		f := api.AuditFault{Line: c.place, Reason: lineAltered, Detail: detail}
		if e.AgentID != "" {
			f.AgentID = &e.AgentID
		}
		if e.EventID != "" {
			f.EventID = &e.EventID
		}
		c.fault(f)
	}
	l, err := c.shape(e)
	if err != nil {
		bad(err.Error())
		return
	}
	if _, twice := c.events[l.Event]; twice {
		bad("a line with its event id came before")
		return
	}
	start := l.Outcome == ledger.Notice && l.Reason == ledger.EpochStart
	seen := lineSeen{place: c.place, agent: l.Agent, at: l.At, recorded: l.RecordedAt, start: start, lost: start && l.Length > 0, hash: l.Hash()}
	c.events[l.Event] = seen
	switch l.Outcome {
	case ledger.Notice:
		if seen.lost {
			c.gaps++
		}
	case ledger.Committed:
		if _, twice := c.rows[l.Key]; twice {
			bad("its key has another committed line")
			return
		}
		c.rows[l.Key] = l.Event
	case ledger.Suppressed:
		s := suppression{c.place, l.Agent, l.Event, l.Winner, l.Key}
		if _, ok := c.rows[l.Key]; !ok {
			c.waiting = append(c.waiting, s)
			return
		}
		c.judge(s)
	}
}

// judge compares a suppressed line with the committed one of its key.
func (c *checker) judge(s suppression) {
	row, ok := c.rows[s.key]
	agent, event := s.agent, s.event.String()
	f := api.AuditFault{Line: s.line, AgentID: &agent, EventID: &event}
	switch {
	case !ok:
		f.Reason, f.Detail = lineMissing, "the committed line of its key is not there"
	case row != s.winner:
		f.Reason, f.Detail = lineAltered, "its winner is not the event that was committed under its key"
	default:
		return
	}
	c.fault(f)
}

var (
	agentIDForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	reasonForm  = regexp.MustCompile(`^[a-z0-9_]{0,64}$`)
	// discardedForm names the person who has given a record up.
	discardedForm = regexp.MustCompile(`^by [\pL\pN][\pL\pN ._-]{0,63}$`)
	// noticeForm names the person who has seen to a conflict.
	noticeForm = regexp.MustCompile(`^([a-z0-9_]{0,64}|conflict_resolved by [\pL\pN][\pL\pN ._-]{0,63})$`)
)

// shape reads a line, and says what it lacks or should not have. The text of a value goes into no error: it
// may be anything.
func (c *checker) shape(e *api.AuditEntry) (l ledger.Line, err error) {
	fail := func(detail string) (ledger.Line, error) { return l, errors.New(detail) }
	event := func(s *string) (id idem.EventID, ok bool) {
		if s == nil {
			return id, true
		}
		id, err := idem.ParseEventID(*s)
		return id, err == nil && !id.IsZero() && id.String() == *s
	}
	var ok bool
	if l.Event, ok = event(&e.EventID); !ok {
		return fail("its event_id is no UUID")
	}
	if l.Ref, ok = event(e.Ref); !ok {
		return fail("its ref is no UUID")
	}
	if l.Winner, ok = event(e.Winner); !ok {
		return fail("its winner_event_id is no UUID")
	}
	if l.Agent = e.AgentID; !agentIDForm.MatchString(l.Agent) {
		return fail("its agent_id is none")
	}
	if l.At, l.RecordedAt = e.At, e.RecordedAt; e.At == 0 || e.RecordedAt == 0 {
		return fail("it has no time")
	}
	if e.CapturedAt != nil {
		l.CapturedAt = *e.CapturedAt
	}
	if e.ScannerID != nil {
		l.Scanner = *e.ScannerID
	}
	if e.Symbology != nil {
		l.Symbology = *e.Symbology
	}
	if e.Key != nil {
		if l.Key, err = idem.ParseKey(*e.Key); err != nil || l.Key.Kind != idem.Idem || l.Key.String() != *e.Key {
			return fail("its key is no idempotency key")
		}
	}
	if e.ScanType != nil {
		if l.Type, err = window.ParseScanType(*e.ScanType); err != nil {
			return fail("its scan type is unknown")
		}
	}
	if e.Length != nil && *e.Length < 1 || e.TTLMS != nil && *e.TTLMS < 1 {
		return fail("its length or ttl_ms is not positive")
	}
	if e.Length != nil {
		l.Length = *e.Length
	}
	if e.TTLMS != nil {
		l.TTL = *e.TTLMS
	}
	l.Outcome = ledger.Outcome(e.Outcome)
	if e.Reason != nil {
		l.Reason = *e.Reason
	}
	known, listed := c.reasons[l.Outcome]
	form := reasonForm
	switch l.Outcome {
	case ledger.Discarded:
		form = discardedForm
	case ledger.Notice:
		form = noticeForm
	}
	if listed && !slices.Contains(known, l.Reason) || !form.MatchString(l.Reason) {
		return fail("its reason is unknown")
	}
	whole := e.ScannerID != nil && e.ScanType != nil && e.CapturedAt != nil
	switch l.Outcome {
	case ledger.Committed, ledger.Suppressed:
		switch {
		case e.Key == nil:
			return fail("it has no key")
		case e.Ref != nil:
			return fail("it has a ref: its event_id is the scan's own")
		case !whole:
			return fail("it lacks scanner_id, scan_type or captured_at")
		}
	case ledger.Discarded:
		switch {
		case e.Ref != nil:
			return fail("it has a ref: its event_id is the scan's own")
		case !whole:
			return fail("it lacks scanner_id, scan_type or captured_at")
		}
	case ledger.Held, ledger.Quarantined:
		if e.Ref == nil || l.Ref == l.Event {
			return fail("it does not name its scan in ref")
		}
	case ledger.Rejected, ledger.NotAccepted, ledger.Control, ledger.Notice:
	default:
		return fail("its outcome is unknown")
	}
	switch {
	case e.Key != nil && l.Outcome != ledger.Committed && l.Outcome != ledger.Suppressed:
		return fail("it has a key, which only committed and suppressed lines have")
	case l.Outcome == ledger.Suppressed && (e.Winner == nil || l.Winner == l.Event):
		return fail("it does not name its winner")
	case l.Outcome != ledger.Suppressed && (e.Winner != nil || e.TTLMS != nil):
		return fail("it has a winner or a ttl_ms, which only suppressed lines have")
	}
	return l, nil
}

// report judges what waited for lines that never came.
func (c *checker) report() api.AuditReport {
	for _, s := range c.waiting {
		c.judge(s)
	}
	c.judgeChains()
	return api.AuditReport{OK: c.first == nil, Lines: c.lines, Records: int64(len(c.records)), DeclaredGaps: c.gaps, FirstBad: c.first}
}

// keys yields the trail's keys with the event that each must have in the ledger; zero if no line tells.
func (c *checker) keys(yield func(idem.Key, idem.EventID) bool) {
	for k, e := range c.rows {
		if !yield(k, e) {
			return
		}
	}
	for _, s := range c.waiting {
		if _, ok := c.rows[s.key]; !ok && !yield(s.key, idem.EventID{}) {
			return
		}
	}
}

// rowOf says that the ledger has the row that the trail tells of.
func rowOf(rows map[idem.Key]idem.EventID, k idem.Key, e idem.EventID) bool {
	row, ok := rows[k]
	return ok && (e.IsZero() || row == e)
}

func (c *checker) lacksRow(rows map[idem.Key]idem.EventID) bool {
	for k, e := range c.keys {
		if !rowOf(rows, k, e) {
			return true
		}
	}
	return false
}

// reconcile compares both ways.
func (c *checker) reconcile(rows map[idem.Key]idem.EventID, out *api.AuditReport) {
	out.LedgerOnly, out.AuditOnly = []string{}, []string{}
	for k, e := range rows {
		if line, ok := c.rows[k]; !ok || line != e {
			out.LedgerOnly = append(out.LedgerOnly, k.String())
		}
	}
	for k, e := range c.keys {
		if !rowOf(rows, k, e) {
			out.AuditOnly = append(out.AuditOnly, k.String())
		}
	}
	slices.Sort(out.LedgerOnly)
	slices.Sort(out.AuditOnly)
	out.AuditOnly = slices.Compact(out.AuditOnly)
	out.OK = out.OK && len(out.LedgerOnly) == 0 && len(out.AuditOnly) == 0
}

// ledgerRows adds the ledger's keys with their events.
func ledgerRows(ctx context.Context, r api.Reader, rows map[idem.Key]idem.EventID) error {
	pr, pw := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pw.CloseWithError(r.LedgerExport(ctx, api.JSONL, nil, nil, pw))
	}()
	defer func() { pr.Close(); <-ended }()
	d := json.NewDecoder(pr)
	for {
		var row struct {
			Key   string       `json:"idem_key"`
			Event idem.EventID `json:"event_id"`
		}
		err := d.Decode(&row)
		if err == io.EOF {
			return nil
		}
		var k idem.Key
		if err == nil {
			k, err = idem.ParseKey(row.Key)
		}
		if err != nil {
			return err
		}
		rows[k] = row.Event
	}
}
