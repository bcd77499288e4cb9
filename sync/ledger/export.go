package ledger

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"scanonce/idem"
	"scanonce/window"
)

// columns of scan_ledger, in its order.
var columns = [...]string{"idem_key", "edge_key", "event_id", "facility_uuid", "scanner_id", "ndc", "lot", "quantity",
	"scan_type", "window_index", "extras", "gtin", "hibc", "serial", "ndc11", "ndc12", "expiry", "pkg_level", "flags",
	"rx_token", "agent_id", "captured_at", "clock_quality", "committed_at"}

// Each calls yield with every row until it returns an error, which it hands back. Ledger.Rows with its
// context and span bound is one.
type Each func(yield func(Row) error) error

// WriteCSV writes the rows of each as RFC 4180 CSV with a header: the columns of scan_ledger in its order,
// keys in full text, times RFC 3339 in UTC with milliseconds, null as an empty field, flags as a
// PostgreSQL array, {a,b}. Fields are written as they are: a value that begins like a formula (=, +, -, @)
// is not altered, so import the columns as text into a spreadsheet.
func WriteCSV(w io.Writer, each Each) error {
	out := bufio.NewWriter(w)
	out.WriteString(strings.Join(columns[:], ",") + "\r\n")
	var line []byte
	err := each(func(r Row) error {
		line = line[:0]
		for i, f := range r.fields() {
			if i > 0 {
				line = append(line, ',')
			}
			line = appendCSV(line, f)
		}
		_, err := out.Write(append(line, '\r', '\n'))
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

func (r *Row) fields() [len(columns)]string {
	level := ""
	if r.PkgLevel >= 0 {
		level = strconv.Itoa(r.PkgLevel)
	}
	return [...]string{r.Keys.Idem.String(), r.Keys.Edge.String(), r.Event.String(), r.Facility, r.Scanner, r.NDC, r.Lot,
		strconv.Itoa(r.Quantity), r.Type.String(), strconv.FormatInt(int64(r.Keys.Window), 10), r.Extras, r.GTIN, r.HIBC,
		r.Serial, r.NDC11, r.NDC12, r.Expiry, level, arrayText(r.Flags), r.RxToken, r.Agent, r.CapturedAt.String(),
		r.Quality.String(), r.CommittedAt.String()}
}

// appendCSV quotes what RFC 4180 section 2 wants quoted, and outer blanks, which some readers would trim.
// (encoding/csv with CRLF line ends rewrites line ends within a field.)
func appendCSV(b []byte, f string) []byte {
	if !strings.ContainsAny(f, ",\"\r\n") && strings.TrimSpace(f) == f {
		return append(b, f...)
	}
	b = append(b, '"')
	b = append(b, strings.ReplaceAll(f, `"`, `""`)...)
	return append(b, '"')
}

// arrayText is PostgreSQL's output form of a text[].
func arrayText(list []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, s := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		if s != "" && !strings.ContainsAny(s, "{},\"\\ \t\n\r\v\f") && !strings.EqualFold(s, "null") {
			b.WriteString(s)
			continue
		}
		b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`)
	}
	b.WriteByte('}')
	return b.String()
}

// WriteJSONL writes the rows of each as JSON Lines (see Row.MarshalJSON).
func WriteJSONL(w io.Writer, each Each) error {
	out := bufio.NewWriter(w)
	enc := jsonLines(out)
	if err := each(func(r Row) error { return enc.Encode(r) }); err != nil {
		return err
	}
	return out.Flush()
}

// WriteLinesJSONL writes audit lines as JSON Lines (see Line.MarshalJSON).
func WriteLinesJSONL(w io.Writer, each func(yield func(Line) error) error) error {
	out := bufio.NewWriter(w)
	enc := jsonLines(out)
	if err := each(func(l Line) error { return enc.Encode(l) }); err != nil {
		return err
	}
	return out.Flush()
}

func jsonLines(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// null is the JSON form of a nullable text column.
func null(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func nullEvent(e idem.EventID) *idem.EventID {
	if e.IsZero() {
		return nil
	}
	return &e
}

func nullInt(n, null int) *int {
	if n == null {
		return nil
	}
	return &n
}

func nullTime(t window.UTC) *window.UTC {
	if t == 0 {
		return nil
	}
	return &t
}

// jsonRow has the columns of scan_ledger in its order.
type jsonRow struct {
	IdemKey     string          `json:"idem_key"`
	EdgeKey     *string         `json:"edge_key"`
	Event       idem.EventID    `json:"event_id"`
	Facility    string          `json:"facility_uuid"`
	Scanner     string          `json:"scanner_id"`
	NDC         string          `json:"ndc"`
	Lot         string          `json:"lot"`
	Quantity    int             `json:"quantity"`
	Type        window.ScanType `json:"scan_type"`
	Window      window.Index    `json:"window_index"`
	Extras      string          `json:"extras"`
	GTIN        *string         `json:"gtin"`
	HIBC        *string         `json:"hibc"`
	Serial      *string         `json:"serial"`
	NDC11       *string         `json:"ndc11"`
	NDC12       *string         `json:"ndc12"`
	Expiry      *string         `json:"expiry"`
	PkgLevel    *int            `json:"pkg_level"`
	Flags       []string        `json:"flags"`
	RxToken     *string         `json:"rx_token"`
	Agent       string          `json:"agent_id"`
	CapturedAt  window.UTC      `json:"captured_at"`
	Quality     window.Quality  `json:"clock_quality"`
	CommittedAt window.UTC      `json:"committed_at"`
}

// MarshalJSON writes an object with the columns of scan_ledger in its order: keys in full text, times
// RFC 3339 in UTC with milliseconds, null where a column is null, flags as an array.
func (r Row) MarshalJSON() ([]byte, error) {
	flags := r.Flags
	if flags == nil {
		flags = []string{}
	}
	return marshal(jsonRow{r.Keys.Idem.String(), null(r.Keys.Edge.String()), r.Event, r.Facility, r.Scanner, r.NDC, r.Lot,
		r.Quantity, r.Type, r.Keys.Window, r.Extras, null(r.GTIN), null(r.HIBC), null(r.Serial), null(r.NDC11),
		null(r.NDC12), null(r.Expiry), nullInt(r.PkgLevel, -1), flags, null(r.RxToken), r.Agent, r.CapturedAt, r.Quality,
		r.CommittedAt})
}

// jsonLine has the columns of scan_audit in its order.
type jsonLine struct {
	Event      idem.EventID  `json:"event_id"`
	Agent      string        `json:"agent_id"`
	At         window.UTC    `json:"at"`
	Key        *string       `json:"key"`
	Ref        *idem.EventID `json:"ref"`
	Outcome    Outcome       `json:"outcome"`
	Reason     *string       `json:"reason"`
	Winner     *idem.EventID `json:"winner_event_id"`
	Scanner    *string       `json:"scanner_id"`
	Type       *string       `json:"scan_type"`
	CapturedAt *window.UTC   `json:"captured_at"`
	TTL        *int          `json:"ttl_ms"`
	Length     *int          `json:"length"`
	Symbology  *string       `json:"symbology"`
	RecordedAt *window.UTC   `json:"recorded_at"`
}

// MarshalJSON writes an object with the columns of scan_audit in its order; recorded_at is null until the
// ledger has the line.
func (l Line) MarshalJSON() ([]byte, error) {
	return marshal(jsonLine{l.Event, l.Agent, l.At, null(l.Key.String()), nullEvent(l.Ref), l.Outcome, null(l.Reason),
		nullEvent(l.Winner), null(l.Scanner), null(l.Type.String()), nullTime(l.CapturedAt), nullInt(l.TTL, 0),
		nullInt(l.Length, 0), null(l.Symbology), nullTime(l.RecordedAt)})
}

// marshal leaves <, > and & as they are where the caller's encoder does too.
func marshal(v any) ([]byte, error) {
	var b strings.Builder
	if err := jsonLines(&b).Encode(v); err != nil {
		return nil, fmt.Errorf("cannot write a record as JSON: %w", err)
	}
	return []byte(b.String()), nil
}
