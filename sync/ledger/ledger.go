// Package ledger is the ledger of movements and its audit trail. Its unique keys make a decision final.
package ledger

import (
	"context"

	"scanonce/idem"
	"scanonce/window"
)

// Row is one movement. Empty text means that the column is null where the table allows it.
type Row struct {
	Keys               idem.Keys
	Event              idem.EventID
	Facility, Scanner  string
	NDC, Lot           string // identity fields, "" if none
	Quantity           int    // 1..9999
	Type               window.ScanType
	Extras             string // the extra identity fields, as in the key material
	GTIN, HIBC, Serial string
	NDC11, NDC12       string
	Expiry             string // last usable calendar day, YYYY-MM-DD
	PkgLevel           int    // indicator digit of the GTIN; -1 is null
	Flags              []string
	RxToken            string
	Agent              string
	CapturedAt         window.UTC
	Quality            window.Quality
	CommittedAt        window.UTC // set by the ledger
}

// Flag of a row whose claim was not waited for: the unique keys alone decided.
const ClaimBypassed = "claim_bypassed"

// Outcome is what became of a frame, in the words of the audit.
type Outcome string

// The outcomes. Committed is never written as a line: the row is its own line.
const (
	Committed   Outcome = "committed"
	Suppressed  Outcome = "suppressed"
	Rejected    Outcome = "rejected"
	NotAccepted Outcome = "not_accepted"
	Held        Outcome = "held"
	Quarantined Outcome = "quarantined"
	Discarded   Outcome = "discarded"
	Control     Outcome = "control"
	Notice      Outcome = "notice"
)

// Line is one audit line: a decision, without payload. Event is the scan's own id only in its final line;
// every other line has an id of its own and names the scan in Ref. Key is set for committed and suppressed
// only: the key of the row that stands.
type Line struct {
	Event      idem.EventID
	Agent      string
	At         window.UTC
	Key        idem.Key
	Ref        idem.EventID
	Outcome    Outcome
	Reason     string
	Winner     idem.EventID
	Scanner    string
	Type       window.ScanType
	CapturedAt window.UTC // 0 is null
	TTL        int        // of the claim, ms; 0 is null
	Length     int        // bytes received; 0 is null
	Symbology  string
	RecordedAt window.UTC // set by the ledger
}

// Receipt names a row that an Insert wrote.
type Receipt struct {
	Event       idem.EventID
	CommittedAt window.UTC
}

// Poison is a row that the ledger can never take, and why. It must not stop the rows around it.
type Poison struct {
	Event  idem.EventID
	Detail string
}

// Inserted is the result of an Insert. A row in neither list met a key that is taken.
type Inserted struct {
	Receipts []Receipt
	Poison   []Poison
}

// Probe asks for the rows that stand in the way of an event, or are its own.
type Probe struct {
	Keys  idem.Keys
	Event idem.EventID
}

// Owner names a row of the ledger.
type Owner struct {
	Event       idem.EventID
	Key         idem.Key // its idempotency key
	CommittedAt window.UTC
	Agent       string
	Bypassed    bool // it has the flag ClaimBypassed
}

// Standing is what the ledger holds for a probe; a zero Owner is no row.
type Standing struct {
	ByEvent Owner // the event's own row
	ByIdem  Owner
	ByEdge  Owner
}

// Span limits an export to rows and lines with From ≤ captured (or decided) < Until; 0 is no limit.
type Span struct{ From, Until window.UTC }

// Ledger is a store of rows that are never changed or removed. Implementations are safe for concurrent use.
type Ledger interface {
	// Insert writes each row whose idempotency key, edge key and event id are all free, durably, before it
	// returns. On an error any part of the rows may have been written: ask Standing, never assume.
	Insert(ctx context.Context, rows []Row) (Inserted, error)
	// Standing answers every probe, in order, from a snapshot taken after the call began.
	Standing(ctx context.Context, probes []Probe) ([]Standing, error)
	// AppendLines writes audit lines durably; a line whose event id is already there stays as it is.
	AppendLines(ctx context.Context, lines []Line) error
	// AppendChain writes records of the audit chain durably; one that is already there stays as it is. Their
	// lines come first.
	AppendChain(ctx context.Context, records []ChainRecord) error
	// Ingest notes durably, for each claim, the scan of the first row that asks for it, and answers in order with
	// those that stand.
	Ingest(ctx context.Context, asks []Ingest) ([]Ingested, error)
	// Chain yields the records by agent, epoch and number.
	Chain(ctx context.Context, yield func(ChainRecord) error) error
	// ChainHeads returns the last record of each chain.
	ChainHeads(ctx context.Context) ([]ChainHead, error)
	// Rows yields the rows in the order of their commit until yield returns an error.
	Rows(ctx context.Context, s Span, yield func(Row) error) error
	// Lines yields the audit, committed rows as lines included, in the order of their commit.
	Lines(ctx context.Context, s Span, yield func(Line) error) error
	// Find returns the rows whose idempotency key begins with prefix (hexadecimal digits), at most limit.
	Find(ctx context.Context, prefix string, limit int) ([]Row, error)
	// LinesOf returns the audit lines of a key, the committed row's included.
	LinesOf(ctx context.Context, key idem.Key) ([]Line, error)
	// Ping says whether rows can be written, at the cost of a round trip however large the ledger is.
	Ping(ctx context.Context) error
	// Count returns the number of rows.
	Count(ctx context.Context) (int64, error)
	Close() error
}
