package ledger

import (
	"fmt"
	"time"
	"unicode/utf8"

	"scanonce/idem"
	"scanonce/window"
)

const maxQuantity = 9999

// Bounds of a time: RFC 3339 has four digits for the year, and PostgreSQL no year 0.
var (
	earliest = window.FromTime(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
	latest   = window.FromTime(time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC))
)

// Flaw says why no ledger can ever take the row, "" if it can: what the table's types and CHECKs refuse.
// Values that may be the content of a barcode stay out of the text.
func (r *Row) Flaw() string {
	switch {
	case r.Keys.Idem.Kind != idem.Idem:
		return "it has no idempotency key"
	case !r.Keys.Edge.IsZero() && r.Keys.Edge.Kind != idem.Edge:
		return "its edge key is of another kind"
	case r.Event.IsZero():
		return "it has no event id"
	case r.Facility == "":
		return "it has no facility"
	case r.Scanner == "":
		return "it has no scanner"
	case r.Agent == "":
		return "it has no agent"
	case r.Quantity < 1 || r.Quantity > maxQuantity:
		return fmt.Sprintf("its quantity %d is not in 1 to %d", r.Quantity, maxQuantity)
	case r.Type < window.Receive || r.Type > window.Count:
		return fmt.Sprintf("its scan type %d is unknown", uint8(r.Type))
	case r.Quality > window.Device:
		return fmt.Sprintf("its clock quality %d is unknown", uint8(r.Quality))
	case r.PkgLevel < -1 || r.PkgLevel > 9:
		return fmt.Sprintf("its packaging level %d is not in 0 to 9", r.PkgLevel)
	case r.CapturedAt < earliest || r.CapturedAt > latest:
		return fmt.Sprintf("its capture time %d ms is not in the years 1 to 9999", int64(r.CapturedAt))
	}
	if r.Expiry != "" {
		if _, err := time.Parse(time.DateOnly, r.Expiry); err != nil {
			return "its expiry is not a day YYYY-MM-DD of the calendar"
		}
	}
	for _, s := range r.texts() {
		if !storable(*s) {
			return "one of its texts is not UTF-8 or holds a NUL"
		}
	}
	for _, f := range r.Flags {
		if !storable(f) {
			return "one of its flags is not UTF-8 or holds a NUL"
		}
	}
	return ""
}

// storable says that PostgreSQL's text type takes s.
func storable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] == 0 {
			return false
		}
	}
	return utf8.ValidString(s)
}

// Flaw says why the audit can never take the line, "" if it can.
func (l *Line) Flaw() string {
	switch {
	case l.Event.IsZero():
		return "it has no event id"
	case l.Agent == "":
		return "it has no agent"
	case l.Outcome == "":
		return "it has no outcome"
	case l.Outcome == Committed:
		return "a committed row is its own line"
	case l.Key.IsZero() == (l.Outcome == Suppressed) || !l.Key.IsZero() && l.Key.Kind != idem.Idem:
		return "the key of the row that stands belongs to a suppressed line, and to no other"
	case l.Type > window.Count:
		return "its scan type is unknown"
	case l.At < earliest || l.At > latest || l.CapturedAt < earliest || l.CapturedAt > latest:
		return "its times are not in the years 1 to 9999"
	case !storable(l.Agent) || !storable(string(l.Outcome)) || !storable(l.Reason) || !storable(l.Scanner) || !storable(l.Symbology):
		return "one of its texts is not UTF-8 or holds a NUL"
	}
	return ""
}
