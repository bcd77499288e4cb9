// Package api is the local interface of the agent: HTTP over a unix socket and, if enabled, over loopback.
package api

import (
	"context"
	"encoding/json"
	"io"

	"scanonce/window"
)

// Status is the body of GET /v1/status.
type Status struct {
	AgentID      string          `json:"agent_id"`
	FacilityUUID string          `json:"facility_uuid"`
	Instance     string          `json:"instance"` // of the process
	Version      string          `json:"version"`
	State        string          `json:"state"` // ONLINE, OFFLINE, RECONCILING
	Accepting    bool            `json:"accepting"`
	Clone        bool            `json:"clone"`
	Spool        SpoolStatus     `json:"spool"`
	Stores       Stores          `json:"stores"`
	Operations   PendingStatus   `json:"operations"`
	Clock        ClockStatus     `json:"clock"`
	NDC          *NDCStatus      `json:"ndc"` // null without a directory
	Counts       Counts          `json:"counts"`
	Frames       Frames          `json:"frames"`
	Scanners     []ScannerStatus `json:"scanners"`
	Alarms       []Alarm         `json:"alarms"`
}

// PendingStatus tells of operations on claims and cases that wait for a store.
type PendingStatus struct {
	Pending     int   `json:"pending"`
	OldestAgeMS int64 `json:"oldest_age_ms"` // 0 without any
}

// SpoolStatus tells how full the spool is; sizes in bytes, Fill from 0 to 1.
type SpoolStatus struct {
	Epoch       string  `json:"epoch"`
	Records     int64   `json:"records"` // captured and not yet settled
	MaxRecords  int64   `json:"max_records"`
	Bytes       int64   `json:"bytes"`
	MaxBytes    int64   `json:"max_bytes"`
	Fill        float64 `json:"fill"`
	OldestAgeMS int64   `json:"oldest_age_ms"`
	Quarantined int64   `json:"quarantined"`
	Segments    int     `json:"segments"`
}

// Stores has null for a store that is embedded.
type Stores struct {
	Redis    *StoreStatus `json:"redis"`
	Postgres *StoreStatus `json:"postgres"`
	DynamoDB *StoreStatus `json:"dynamodb"`
}

// StoreStatus tells whether a store answers.
type StoreStatus struct {
	OK        bool        `json:"ok"`
	LastError *string     `json:"last_error"`
	Since     *window.UTC `json:"since"`
}

// ClockStatus tells what stands behind the instants.
type ClockStatus struct {
	Quality  window.Quality `json:"quality"`
	OffsetMS float64        `json:"offset_ms"`
	ErrorMS  float64        `json:"error_ms"`
}

// NDCStatus tells of the NDC directory in use.
type NDCStatus struct {
	Packages int         `json:"packages"`
	Dated    *window.UTC `json:"dated"`
}

// Counts are durable, by event: Captured is the sum of the others.
type Counts struct {
	Captured    int64 `json:"captured"`
	Committed   int64 `json:"committed"`
	Suppressed  int64 `json:"suppressed"`
	Pending     int64 `json:"pending"`
	Held        int64 `json:"held"`
	Quarantined int64 `json:"quarantined"`
	Discarded   int64 `json:"discarded"`
	Unaccounted int64 `json:"unaccounted"`
}

// Balanced checks the law of conservation.
func (c Counts) Balanced() bool {
	return c.Captured == c.Committed+c.Suppressed+c.Pending+c.Held+c.Quarantined+c.Discarded+c.Unaccounted
}

// Frames are counted since the process began: Frames is the sum of the others.
type Frames struct {
	Frames      int64 `json:"frames"`
	Captured    int64 `json:"captured"`
	NotAccepted int64 `json:"not_accepted"`
	Rejected    int64 `json:"rejected"`
	Control     int64 `json:"control"`
	Voided      int64 `json:"voided"`
	InFlight    int64 `json:"in_flight"`
}

// Balanced checks the law of conservation.
func (f Frames) Balanced() bool {
	return f.Frames == f.Captured+f.NotAccepted+f.Rejected+f.Control+f.Voided+f.InFlight
}

// ScannerStatus is what a scanner's user has set, and how the device does.
type ScannerStatus struct {
	ID         string          `json:"id"`
	State      string          `json:"state"`
	ScanType   window.ScanType `json:"scan_type"`
	Quantity   int             `json:"quantity"`
	RevertsAt  *window.UTC     `json:"reverts_at"`
	Ambiguous  bool            `json:"ambiguous"`
	LastScanAt *window.UTC     `json:"last_scan_at"`
}

// Alarm is a state that needs a person.
type Alarm struct {
	Code   string     `json:"code"`
	Detail string     `json:"detail"`
	Hint   string     `json:"hint"`
	Since  window.UTC `json:"since"`
}

// Item is what a scan says of the product.
type Item struct {
	NDC11      *string  `json:"ndc11"`
	Candidates []string `json:"ndc11_candidates"`
	NDC12      *string  `json:"ndc12"`
	GTIN       *string  `json:"gtin"`
	Lot        *string  `json:"lot"`
	Serial     *string  `json:"serial"`
	Expiry     *string  `json:"expiry"`
	Flags      []string `json:"flags"`
}

// ModeSet answers a change of the scan type.
type ModeSet struct {
	ScannerID string          `json:"scanner_id"`
	ScanType  window.ScanType `json:"scan_type"`
	RevertsAt *window.UTC     `json:"reverts_at"` // null in the scanner's own type
}

// QuantitySet answers a one-shot quantity.
type QuantitySet struct {
	ScannerID string     `json:"scanner_id"`
	Quantity  int        `json:"quantity"`
	ExpiresAt window.UTC `json:"expires_at"`
}

// SameAgain answers a same-again: accepted with the new event, or armed for the next scan.
type SameAgain struct {
	Outcome string `json:"outcome"` // accepted, armed
	EventID string `json:"event_id,omitempty"`
	Key     string `json:"key,omitempty"`
}

// SpoolReport says how much of the spool can be read. Unaccounted counts the records that were accepted and are
// lost, all told.
type SpoolReport struct {
	Records     int64         `json:"records"`
	Readable    int64         `json:"readable"`
	Unaccounted int64         `json:"unaccounted"`
	Segments    int           `json:"segments"`
	Damaged     []SpoolDamage `json:"damaged"`
}

// SpoolDamage is a file of the spool that is not as it should be.
type SpoolDamage struct {
	File   string `json:"file"`
	Detail string `json:"detail"`
}

// Requeued is the answer to a requeue.
type Requeued struct {
	Requeued int `json:"requeued"`
}

// Explanation tells why a scan was committed or suppressed.
type Explanation struct {
	Key    string       `json:"key"`
	Ledger *LedgerRow   `json:"ledger"`
	Audit  []AuditEntry `json:"audit"`
	Text   string       `json:"text"`
}

// LedgerRow has the columns of scan_ledger in their order, keys as text.
type LedgerRow struct {
	IdemKey      string          `json:"idem_key"`
	EdgeKey      *string         `json:"edge_key"`
	EventID      string          `json:"event_id"`
	FacilityUUID string          `json:"facility_uuid"`
	ScannerID    string          `json:"scanner_id"`
	NDC          string          `json:"ndc"`
	Lot          string          `json:"lot"`
	Quantity     int             `json:"quantity"`
	ScanType     window.ScanType `json:"scan_type"`
	WindowIndex  int64           `json:"window_index"`
	Extras       string          `json:"extras"`
	GTIN         *string         `json:"gtin"`
	HIBC         *string         `json:"hibc"`
	Serial       *string         `json:"serial"`
	NDC11        *string         `json:"ndc11"`
	NDC12        *string         `json:"ndc12"`
	Expiry       *string         `json:"expiry"`
	PkgLevel     *int            `json:"pkg_level"`
	Flags        []string        `json:"flags"`
	RxToken      *string         `json:"rx_token"`
	AgentID      string          `json:"agent_id"`
	CapturedAt   window.UTC      `json:"captured_at"`
	ClockQuality window.Quality  `json:"clock_quality"`
	CommittedAt  window.UTC      `json:"committed_at"`
}

// AuditEntry has the columns of scan_audit in their order.
type AuditEntry struct {
	EventID    string      `json:"event_id"`
	AgentID    string      `json:"agent_id"`
	At         window.UTC  `json:"at"`
	Key        *string     `json:"key"`
	Ref        *string     `json:"ref"`
	Outcome    string      `json:"outcome"`
	Reason     *string     `json:"reason"`
	Winner     *string     `json:"winner_event_id"`
	ScannerID  *string     `json:"scanner_id"`
	ScanType   *string     `json:"scan_type"`
	CapturedAt *window.UTC `json:"captured_at"`
	TTLMS      *int        `json:"ttl_ms"`
	Length     *int        `json:"length"`
	Symbology  *string     `json:"symbology"`
	RecordedAt window.UTC  `json:"recorded_at"`
}

// AuditRecord is a record of the audit chain: it binds the lines of a settled batch to all before them.
type AuditRecord struct {
	AgentID    string   `json:"agent_id"`
	SpoolEpoch string   `json:"spool_epoch"`
	Seq        int64    `json:"seq"` // from 1 in each epoch
	EventIDs   []string `json:"event_ids"`
	LineHashes string   `json:"line_hashes"` // hexadecimal, 64 digits for each event
	PrevHash   string   `json:"prev_hash"`   // hexadecimal
	Hash       string   `json:"hash"`        // hexadecimal
}

// AuditItem is a line of the audit trail or a record of its chain.
type AuditItem struct {
	Line   *AuditEntry
	Record *AuditRecord
}

// MarshalJSON writes the one that is there.
func (i AuditItem) MarshalJSON() ([]byte, error) {
	if i.Record != nil {
		return json.Marshal(i.Record)
	}
	return json.Marshal(i.Line)
}

// UnmarshalJSON tells them apart by the record's hashes.
func (i *AuditItem) UnmarshalJSON(b []byte) error {
	var which struct {
		LineHashes *string `json:"line_hashes"`
	}
	if err := json.Unmarshal(b, &which); err != nil {
		return err
	}
	*i = AuditItem{}
	if which.LineHashes != nil {
		i.Record = new(AuditRecord)
		return json.Unmarshal(b, i.Record)
	}
	i.Line = new(AuditEntry)
	return json.Unmarshal(b, i.Line)
}

// AuditHead is the last record of the audit chain that an agent has sent, as the agent knows it.
type AuditHead struct {
	AgentID string  `json:"agent_id"`
	Hash    *string `json:"hash"` // hexadecimal; null if none is known
}

// SpoolEntry is one record that waits in the spool.
type SpoolEntry struct {
	EventID    string     `json:"event_id"`
	Kind       string     `json:"kind"` // capture, duplicate
	Key        string     `json:"key"`
	CapturedAt window.UTC `json:"captured_at"`
	State      string     `json:"state"` // pending, deferred, duplicate, held, quarantined
	Attempts   int        `json:"attempts"`
	LastError  *string    `json:"last_error"`
}

// Format of an export.
type Format string

// The export formats.
const (
	CSV   Format = "csv"
	JSONL Format = "jsonl"
)

// Reader answers questions about what is stored. The running agent is one; without one the state folder,
// opened read-only, is another.
type Reader interface {
	// Explain takes a full key or at least 8 hexadecimal digits of one.
	Explain(ctx context.Context, key string) (Explanation, error)
	Spool(ctx context.Context, limit int, yield func(SpoolEntry) error) error
	// SpoolExport writes every unsettled record as a JSON line.
	SpoolExport(ctx context.Context, w io.Writer) error
	// SpoolVerify reads every record of the spool.
	SpoolVerify(ctx context.Context) (SpoolReport, error)
	// SpoolBackup writes a consistent copy of the spool, a tar file.
	SpoolBackup(ctx context.Context, w io.Writer) error
	// LedgerExport writes the rows captured in [since, until); nil is no limit.
	LedgerExport(ctx context.Context, format Format, since, until *window.UTC, w io.Writer) error
	// Audit yields the audit lines decided in [since, until), and, if neither is given, the records of the chain
	// behind the lines that they bind.
	Audit(ctx context.Context, since, until *window.UTC, yield func(AuditItem) error) error
	// Conflicts yields the queued operations that could not be carried out, oldest first.
	Conflicts(ctx context.Context, yield func(Conflict) error) error
	// PendingOperations yields the operations that wait for a store, in order.
	PendingOperations(ctx context.Context, yield func(PendingOperation) error) error
	// AuditHead returns the end of the agent's own chain, by which a chain that was cut shows.
	AuditHead(ctx context.Context) (AuditHead, error)
}

// Backend is what the running agent offers.
type Backend interface {
	Reader
	Discarder
	Batches
	Scans
	Operations
	Reloader
	Verifier
	Devices
	Status(ctx context.Context) (Status, error)
	SetMode(ctx context.Context, scanner string, t window.ScanType) (ModeSet, error)
	SetQuantity(ctx context.Context, scanner string, quantity int) (QuantitySet, error)
	// SameAgain turns a told duplicate into a new event; with eventID "" the scanner's last one, if it is at
	// most 60 s old, else the next scan is armed.
	SameAgain(ctx context.Context, scanner, eventID string) (SameAgain, error)
	// Requeue tries quarantined records again: those of the named events with their duplicates, or all. It
	// returns how many there were.
	Requeue(ctx context.Context, events []string, all bool) (int, error)
	// Ready is nil once the spool is open and the pipeline runs.
	Ready() error
	// Alive is nil while the pipeline turns.
	Alive() error
}

// Event is one entry of the event stream. Data is a JSON object.
type Event struct {
	ID, Kind string
	Data     []byte
}

// Events is the retained, resumable stream.
type Events interface {
	Acks
	// Last is the current position: following from it yields exactly what comes later.
	Last() string
	// Follow yields the events after the one named by lastID ("" is: from now on), as they come, until ctx
	// ends or yield returns an error. kinds empty is every kind. If events after lastID are no longer
	// retained, the first event yielded is of kind "gap". A slow consumer never delays the producer.
	Follow(ctx context.Context, lastID string, kinds []string, yield func(Event) error) error
}

// Error is a failure that the API answers with problem details.
type Error struct {
	Status int    // HTTP status
	Reason string // machine-readable
	Detail string // "cannot …"
	Hint   string // what to do

	// Of an operation on a claim or case: the result, and what stands instead.
	Result  string
	Current any
}

func (e *Error) Error() string { return e.Detail }
