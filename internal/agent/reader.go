package agent

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// stored answers questions from a spool and a ledger; see api.Reader.
type stored struct {
	spool  *spool.Spool // nil: there is none yet
	ledger ledger.Ledger
	agent  string
}

func (a *agent) stored() stored { return stored{a.spool, a.ledger, a.id} }

// Explain tells why a scan was committed or suppressed.
func (a *agent) Explain(ctx context.Context, key string) (api.Explanation, error) {
	return a.stored().Explain(ctx, key)
}

// Spool yields the records that wait.
func (a *agent) Spool(ctx context.Context, limit int, yield func(api.SpoolEntry) error) error {
	return a.stored().Spool(ctx, limit, yield)
}

// SpoolExport writes the records that wait.
func (a *agent) SpoolExport(ctx context.Context, w io.Writer) error {
	return a.stored().SpoolExport(ctx, w)
}

// LedgerExport writes the rows.
func (a *agent) LedgerExport(ctx context.Context, f api.Format, since, until *window.UTC, w io.Writer) error {
	return a.stored().LedgerExport(ctx, f, since, until, w)
}

// Audit yields the audit lines.
func (a *agent) Audit(ctx context.Context, since, until *window.UTC, yield func(api.AuditItem) error) error {
	return a.stored().Audit(ctx, since, until, yield)
}

// AuditHead returns the end of the agent's own chain.
func (a *agent) AuditHead(ctx context.Context) (api.AuditHead, error) {
	return a.stored().AuditHead(ctx)
}

func storeError(err error) error {
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: "ledger_unreachable", Detail: err.Error(), Hint: "the ledger does not answer; what is captured meanwhile is kept and sent later"}
}

// leastDigits is how much of a key names it.
const leastDigits = 8

func (s stored) Explain(ctx context.Context, text string) (api.Explanation, error) {
	digits := strings.ToLower(strings.TrimPrefix(text, "scan:idem:"))
	if len(digits) < leastDigits || len(digits) > 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		return api.Explanation{}, &api.Error{Status: http.StatusBadRequest, Reason: "bad_key", Detail: "cannot look that key up", Hint: "write scan:idem: and 64 hexadecimal digits, or at least 8 of the digits"}
	}
	rows, err := s.ledger.Find(ctx, digits, 2)
	if err != nil {
		return api.Explanation{}, storeError(err)
	}
	if len(rows) > 1 {
		return api.Explanation{}, &api.Error{Status: http.StatusConflict, Reason: "ambiguous", Detail: "cannot tell which key is meant: several begin with these digits", Hint: "write more digits of the key"}
	}
	var e api.Explanation
	var waiting []api.SpoolEntry
	if err := s.Spool(ctx, 0, func(w api.SpoolEntry) error {
		if strings.HasPrefix(w.Key, "scan:idem:"+digits) {
			waiting = append(waiting, w)
		}
		return nil
	}); err != nil {
		return e, err
	}
	switch {
	case len(rows) == 1:
		e.Key = rows[0].Keys.Idem.String()
		row := ledgerRow(&rows[0])
		e.Ledger = &row
	case len(waiting) > 0:
		e.Key = waiting[0].Key
	case len(digits) == 64:
		e.Key = "scan:idem:" + digits
	default:
		return e, &api.Error{Status: http.StatusNotFound, Reason: "unknown_key", Detail: "cannot find a key that begins with these digits in the ledger or the spool", Hint: "take the key from an event or from ledger export"}
	}
	key, err := idem.ParseKey(e.Key)
	if err != nil {
		return e, err
	}
	lines, err := s.ledger.LinesOf(ctx, key)
	if err != nil {
		return e, storeError(err)
	}
	e.Audit = make([]api.AuditEntry, 0, len(lines))
	for i := range lines {
		e.Audit = append(e.Audit, auditEntry(&lines[i]))
	}
	e.Text = explain(&e, waiting)
	return e, nil
}

func explain(e *api.Explanation, waiting []api.SpoolEntry) string {
	var b strings.Builder
	if r := e.Ledger; r != nil {
		item := r.NDC
		if item == "" && r.GTIN != nil {
			item = "GTIN " + *r.GTIN
		}
		fmt.Fprintf(&b, "One movement stands: %s of %s, quantity %d, scanned at %s by scanner %s, in the ledger since %s.", r.ScanType, item, r.Quantity, r.CapturedAt, r.ScannerID, r.CommittedAt)
	} else {
		b.WriteString("The ledger has no row with this key.")
	}
	for _, l := range e.Audit {
		if l.Outcome != string(ledger.Suppressed) {
			continue
		}
		why := "it repeats the scan that stands"
		if l.Reason != nil {
			switch *l.Reason {
			case spool.ReasonBounce:
				why = "the scanner sent the same code again within the window"
			case spool.ReasonResend:
				why = "the scanner sent it again because it had not heard the answer"
			case spool.ReasonInDoubt:
				why = "it was the first scan after the agent had stopped unexpectedly, and equal to the last one before"
			case "other_agent":
				why = "another workstation had recorded the same movement"
			case "claim_lost":
				why = "another workstation's row for the same movement was there first"
			}
		}
		at := l.At
		if l.CapturedAt != nil {
			at = *l.CapturedAt
		}
		fmt.Fprintf(&b, " The transmission at %s was not counted: %s.", at, why)
	}
	for _, w := range waiting {
		fmt.Fprintf(&b, " A scan of %s with this key is in the spool (%s).", w.CapturedAt, w.State)
	}
	return b.String()
}

func (s stored) Spool(_ context.Context, limit int, yield func(api.SpoolEntry) error) error {
	if s.spool == nil {
		return nil
	}
	var failed error
	n := 0
	err := s.spool.Unsettled(func(r *spool.Record, x spool.Exception) bool {
		e := api.SpoolEntry{EventID: r.Event.String(), Kind: "capture", Key: r.Keys.Idem.String(), CapturedAt: r.At, State: x.State.String(), Attempts: x.Attempts, LastError: nullable(x.Detail)}
		if r.IsDuplicate() {
			e.Kind = "duplicate"
		}
		failed = yield(e)
		n++
		return failed == nil && n != limit
	})
	return errors.Join(failed, err)
}

// exported is a line of `spool export`: what the record says, without payload.
type exported struct {
	api.SpoolEntry
	EdgeKey     *string         `json:"edge_key"`
	DuplicateOf *string         `json:"duplicate_of"`
	ScannerID   string          `json:"scanner_id"`
	ScanType    window.ScanType `json:"scan_type"`
	Quantity    int             `json:"quantity"`
	WindowIndex int64           `json:"window_index"`
	Extras      string          `json:"extras"`
	NDC         string          `json:"ndc"`
	Lot         string          `json:"lot"`
	GTIN        *string         `json:"gtin"`
	HIBC        *string         `json:"hibc"`
	Serial      *string         `json:"serial"`
	Expiry      *string         `json:"expiry"`
	Flags       []string        `json:"flags"`
	RxToken     *string         `json:"rx_token"`
	Quality     window.Quality  `json:"clock_quality"`
}

func (s stored) SpoolExport(_ context.Context, w io.Writer) error {
	if s.spool == nil {
		return nil
	}
	enc := json.NewEncoder(w)
	var failed error
	err := s.spool.Unsettled(func(r *spool.Record, x spool.Exception) bool {
		e := exported{SpoolEntry: api.SpoolEntry{EventID: r.Event.String(), Kind: "capture", Key: r.Keys.Idem.String(), CapturedAt: r.At, State: x.State.String(), Attempts: x.Attempts, LastError: nullable(x.Detail)},
			EdgeKey: nullable(r.Keys.Edge.String()), ScannerID: r.Scanner, ScanType: r.Type, Quantity: r.Quantity, WindowIndex: int64(r.Keys.Window),
			Extras: r.Extras, NDC: r.NDC, Lot: r.Lot, GTIN: nullable(r.GTIN), HIBC: nullable(r.HIBC), Serial: nullable(r.Serial),
			Expiry: nullable(r.Expiry), Flags: list(r.Flags), RxToken: nullable(r.RxToken), Quality: r.Quality}
		if r.IsDuplicate() {
			e.Kind, e.DuplicateOf = "duplicate", nullable(r.Of.String())
		}
		failed = enc.Encode(e)
		return failed == nil
	})
	return errors.Join(failed, err)
}

func span(since, until *window.UTC) (s ledger.Span) {
	if since != nil {
		s.From = *since
	}
	if until != nil {
		s.Until = *until
	}
	return s
}

func (s stored) LedgerExport(ctx context.Context, f api.Format, since, until *window.UTC, w io.Writer) error {
	each := func(yield func(ledger.Row) error) error { return s.ledger.Rows(ctx, span(since, until), yield) }
	if err := s.ledger.Ping(ctx); err != nil { // before the first byte, so that the failure has a status
		return storeError(err)
	}
	if f == api.CSV {
		return ledger.WriteCSV(w, each)
	}
	return ledger.WriteJSONL(w, each)
}

func (s stored) Audit(ctx context.Context, since, until *window.UTC, yield func(api.AuditItem) error) error {
	if err := s.ledger.Ping(ctx); err != nil {
		return storeError(err)
	}
	// A record comes behind its lines, also if more of both are added meanwhile.
	ends := map[ledger.ChainHead]uint64{}
	if since == nil && until == nil {
		heads, err := s.ledger.ChainHeads(ctx)
		if err != nil {
			return storeError(err)
		}
		for _, h := range heads {
			ends[ledger.ChainHead{Agent: h.Agent, Epoch: h.Epoch}] = h.Seq
		}
	}
	err := s.ledger.Lines(ctx, span(since, until), func(l ledger.Line) error {
		e := auditEntry(&l)
		return yield(api.AuditItem{Line: &e})
	})
	if err != nil || len(ends) == 0 {
		return err
	}
	return s.ledger.Chain(ctx, func(r ledger.ChainRecord) error {
		if r.Seq > ends[ledger.ChainHead{Agent: r.Agent, Epoch: r.Epoch}] {
			return nil
		}
		e := api.AuditRecord{AgentID: r.Agent, SpoolEpoch: r.Epoch, Seq: int64(r.Seq), EventIDs: make([]string, len(r.Events)),
			LineHashes: hex.EncodeToString(r.LineHashes), PrevHash: hex.EncodeToString(r.Prev[:]), Hash: hex.EncodeToString(r.Hash[:])}
		for i := range r.Events {
			e.EventIDs[i] = r.Events[i].String()
		}
		return yield(api.AuditItem{Record: &e})
	})
}

func (s stored) AuditHead(context.Context) (api.AuditHead, error) {
	h := api.AuditHead{AgentID: s.agent}
	if s.spool == nil {
		return h, nil
	}
	sent, err := s.spool.ChainSent()
	if err == nil && sent != ([32]byte{}) {
		h.Hash = nullable(hex.EncodeToString(sent[:]))
	}
	return h, err
}

func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func nullableTime(t window.UTC) *window.UTC {
	if t == 0 {
		return nil
	}
	return &t
}

func nullableInt(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

func nullableEvent(e idem.EventID) *string {
	if e.IsZero() {
		return nil
	}
	return nullable(e.String())
}

func ledgerRow(r *ledger.Row) api.LedgerRow {
	out := api.LedgerRow{IdemKey: r.Keys.Idem.String(), EdgeKey: nullable(r.Keys.Edge.String()), EventID: r.Event.String(), FacilityUUID: r.Facility,
		ScannerID: r.Scanner, NDC: r.NDC, Lot: r.Lot, Quantity: r.Quantity, ScanType: r.Type, WindowIndex: int64(r.Keys.Window), Extras: r.Extras,
		GTIN: nullable(r.GTIN), HIBC: nullable(r.HIBC), Serial: nullable(r.Serial), NDC11: nullable(r.NDC11), NDC12: nullable(r.NDC12),
		Expiry: nullable(r.Expiry), Flags: list(r.Flags), RxToken: nullable(r.RxToken), AgentID: r.Agent, CapturedAt: r.CapturedAt,
		ClockQuality: r.Quality, CommittedAt: r.CommittedAt}
	if r.PkgLevel >= 0 {
		level := r.PkgLevel
		out.PkgLevel = &level
	}
	return out
}

func auditEntry(l *ledger.Line) api.AuditEntry {
	return api.AuditEntry{EventID: l.Event.String(), AgentID: l.Agent, At: l.At, Key: nullable(l.Key.String()), Ref: nullableEvent(l.Ref), Outcome: string(l.Outcome),
		Reason: nullable(l.Reason), Winner: nullableEvent(l.Winner), ScannerID: nullable(l.Scanner), ScanType: nullable(l.Type.String()),
		CapturedAt: nullableTime(l.CapturedAt), TTLMS: nullableInt(l.TTL), Length: nullableInt(l.Length), Symbology: nullable(l.Symbology), RecordedAt: l.RecordedAt}
}

// OpenReader opens the state folder of cfg for reading, while no agent runs on it. It returns an *ExitError
// (code 4 or 5) if it cannot.
func OpenReader(cfg *config.Config) (StoredReader, error) {
	dir := cfg.Agent.StateDir
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return nil, &ExitError{Code: ExitState, Kind: "state_folder", Detail: fmt.Sprintf("cannot read the state folder %s: there is none", dir), Hint: "name the agent's folder with --state-dir, or its socket with --socket"}
	}
	folder, err := openFolder(dir)
	if err != nil {
		return nil, err
	}
	r := &folderReader{folder: folder}
	fail := func(err error) (StoredReader, error) {
		r.Close()
		return nil, err
	}
	used, err := spool.Used(filepath.Join(dir, "spool"))
	if err != nil {
		return fail(stateError(dir, err))
	}
	if used {
		host, err := window.Host()
		if err != nil {
			return fail(stateError(dir, err))
		}
		id, _, err := agentID(dir, cfg.Agent.AgentID)
		if err != nil {
			return fail(err)
		}
		r.stored.agent = id
		if r.stored.spool, err = openSpool(cfg, id, Edges{OS: host}, true); err != nil {
			return fail(err)
		}
	}
	r.stored.ledger = newLateLedger(func() (ledger.Ledger, error) {
		if cfg.Ledger.Backend == "postgres" {
			return ledger.OpenPostgres(postgresConfig(cfg, "reader"))
		}
		return ledger.OpenEmbeddedReadOnly(filepath.Join(dir, "ledger.db"))
	})
	return r, nil
}

type folderReader struct {
	stored
	folder *os.File
}

func (r *folderReader) Close() error {
	var errs []error
	if r.stored.spool != nil {
		errs = append(errs, r.stored.spool.Close(false))
	}
	if r.stored.ledger != nil {
		errs = append(errs, r.stored.ledger.Close())
	}
	return errors.Join(append(errs, r.folder.Close())...)
}
