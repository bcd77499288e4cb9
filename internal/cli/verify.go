package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/capture"
	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

func (a *app) auditVerifyVerb() *cobra.Command {
	var withLedger bool
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Check the audit trail, and with --ledger the ledger against it",
		Long: `Check the audit trail: every line is of the form that its outcome asks for, no event has two lines, every key
has exactly one committed line, and every suppressed line names the one that stands. Without FILE the trail is
that of the running agent or, if none runs, of the state folder; FILE is what audit export wrote, whole, and
"-" is standard input.

With --ledger each row must have its committed line, and each key of the trail its row: what lacks the other is
listed. Rows that were committed after FILE was written have no line in it.

Exit code 1: something is wrong. The first bad line tells what: altered, or missing, if the line that it
belongs to is not there.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return takes("FILE")(cmd, args)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c := newAuditCheck()
			read := func(r api.Reader) error {
				return r.Audit(ctx, nil, nil, func(e api.AuditEntry) error { c.add(&e); return nil })
			}
			if len(args) == 1 {
				f, err := a.open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				read = func(api.Reader) error { return c.addLines(f) }
			}
			var out auditReport
			verify := func(r api.Reader) error {
				rows := map[idem.Key]idem.EventID{}
				if withLedger {
					if err := ledgerRows(ctx, r, rows); err != nil {
						return err
					}
				}
				if err := read(r); err != nil {
					return err
				}
				out = c.report()
				if !withLedger {
					return nil
				}
				// Rows come and never go: one that the trail knows and the ledger did not yet is there now.
				if c.lacksRow(rows) {
					if err := ledgerRows(ctx, r, rows); err != nil {
						return err
					}
				}
				c.reconcile(rows, &out)
				return nil
			}
			var err error
			if len(args) == 1 && !withLedger {
				err = told(verify(nil))
			} else {
				err = a.withReader(ctx, verify)
			}
			if err != nil {
				return err
			}
			if err := a.print(out, out.text()); err != nil {
				return err
			}
			if !out.OK {
				return bad()
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&withLedger, "ledger", false, "compare with the rows of the ledger too")
	return cmd
}

func (a *app) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(a.stdin), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, usage(fmt.Sprintf("cannot read the audit trail: %v", err), "name a file that scanonce audit export wrote")
	}
	return f, nil
}

// auditReport is the result of a verification.
type auditReport struct {
	OK           bool     `json:"ok"`
	Lines        int64    `json:"lines"`
	DeclaredGaps int64    `json:"declared_gaps"`
	FirstBad     *badLine `json:"first_bad"`
	LedgerOnly   []string `json:"ledger_only"` // keys of rows without their committed line; null: not compared
	AuditOnly    []string `json:"audit_only"`  // keys of lines without their row; null: not compared
}

// badLine is the first line, in the order of the trail, that is wrong. A line that can't be read has no ids.
type badLine struct {
	Line       int64   `json:"line"` // counted from 1
	AgentID    *string `json:"agent_id"`
	SpoolEpoch *string `json:"spool_epoch"`
	Seq        *int64  `json:"seq"`
	EventID    *string `json:"event_id"`
	Reason     string  `json:"reason"`
	Detail     string  `json:"detail"`
}

// The reasons of a bad line.
const (
	lineAltered = "altered"
	lineMissing = "missing"
)

func (r *auditReport) text() string {
	var b strings.Builder
	verdict := "ok"
	if !r.OK {
		verdict = "NOT OK"
	}
	fmt.Fprintf(&b, "%s: %d lines, %d declared gaps\n", verdict, r.Lines, r.DeclaredGaps)
	if f := r.FirstBad; f != nil {
		fmt.Fprintf(&b, "line %d of agent %s, event %s: %s: %s\n", f.Line, orNull(f.AgentID), orNull(f.EventID), f.Reason, f.Detail)
	}
	for _, k := range r.LedgerOnly {
		fmt.Fprintf(&b, "%s has a row and no committed line\n", k)
	}
	for _, k := range r.AuditOnly {
		fmt.Fprintf(&b, "%s has lines and no row\n", k)
	}
	return b.String()
}

// gapReason is the reason of a notice that declares a gap: lines that are known to be lost.
const gapReason = "gap"

// auditCheck reads a trail line by line.
type auditCheck struct {
	lines, gaps int64
	first       *badLine
	events      map[idem.EventID]struct{}
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

func newAuditCheck() *auditCheck {
	return &auditCheck{events: map[idem.EventID]struct{}{}, rows: map[idem.Key]idem.EventID{}, reasons: knownReasons()}
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
func (c *auditCheck) fault(f badLine) {
	if c.first == nil || f.Line < c.first.Line {
		c.first = &f
	}
}

// auditColumns is how many columns scan_audit has.
const auditColumns = 15

// addLines reads JSON lines. An error is one of reading; what a line says is judged.
func (c *auditCheck) addLines(r io.Reader) error {
	b := bufio.NewReader(r)
	for {
		text, err := b.ReadBytes('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			e, perr := parseAuditLine(text)
			if perr != nil {
				c.lines++
				c.fault(badLine{Line: c.lines, Reason: lineAltered, Detail: perr.Error()})
			} else {
				c.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return usage(fmt.Sprintf("cannot read the audit trail: %v", err), "name a file that scanonce audit export wrote")
		}
	}
}

func parseAuditLine(text []byte) (*api.AuditEntry, error) {
	// The parser's own words may quote the text.
	var columns map[string]json.RawMessage
	if json.Unmarshal(text, &columns) != nil {
		return nil, errors.New("it is not a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	e := new(api.AuditEntry)
	if d.Decode(e) != nil || len(columns) != auditColumns {
		return nil, errors.New("it does not have the columns of scan_audit")
	}
	return e, nil
}

// add judges one line.
func (c *auditCheck) add(e *api.AuditEntry) {
	c.lines++
	bad := func(detail string) {
		f := badLine{Line: c.lines, Reason: lineAltered, Detail: detail}
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
	c.events[l.Event] = struct{}{}
	switch l.Outcome {
	case ledger.Notice:
		if l.Reason == gapReason {
			c.gaps++
		}
	case ledger.Committed:
		if _, twice := c.rows[l.Key]; twice {
			bad("its key has another committed line")
			return
		}
		c.rows[l.Key] = l.Event
	case ledger.Suppressed:
		s := suppression{c.lines, l.Agent, l.Event, l.Winner, l.Key}
		if _, ok := c.rows[l.Key]; !ok {
			c.waiting = append(c.waiting, s)
			return
		}
		c.judge(s)
	}
}

// judge compares a suppressed line with the committed one of its key.
func (c *auditCheck) judge(s suppression) {
	row, ok := c.rows[s.key]
	agent, event := s.agent, s.event.String()
	f := badLine{Line: s.line, AgentID: &agent, EventID: &event}
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
)

// shape reads a line, and says what it lacks or should not have. The text of a value goes into no error: it
// may be anything.
func (c *auditCheck) shape(e *api.AuditEntry) (l ledger.Line, err error) {
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
	if e.At == 0 || e.RecordedAt == 0 {
		return fail("it has no time")
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
	l.Outcome = ledger.Outcome(e.Outcome)
	if e.Reason != nil {
		l.Reason = *e.Reason
	}
	known, listed := c.reasons[l.Outcome]
	if listed && !slices.Contains(known, l.Reason) || !reasonForm.MatchString(l.Reason) {
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
	case ledger.Held, ledger.Quarantined:
		if e.Ref == nil || l.Ref == l.Event {
			return fail("it does not name its scan in ref")
		}
	case ledger.Rejected, ledger.NotAccepted, ledger.Discarded, ledger.Control, ledger.Notice:
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
func (c *auditCheck) report() auditReport {
	for _, s := range c.waiting {
		c.judge(s)
	}
	return auditReport{OK: c.first == nil, Lines: c.lines, DeclaredGaps: c.gaps, FirstBad: c.first}
}

// keys yields the trail's keys with the event that each must have in the ledger; zero if no line tells.
func (c *auditCheck) keys(yield func(idem.Key, idem.EventID) bool) {
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

func (c *auditCheck) lacksRow(rows map[idem.Key]idem.EventID) bool {
	for k, e := range c.keys {
		if !rowOf(rows, k, e) {
			return true
		}
	}
	return false
}

// reconcile compares both ways.
func (c *auditCheck) reconcile(rows map[idem.Key]idem.EventID, out *auditReport) {
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
