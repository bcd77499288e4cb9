package capture

import (
	"fmt"
	"log/slog"
	"strings"
	"unsafe"
)

// Kind is what a payload turned out to be.
type Kind uint8

// The kinds. KindNone is a refused payload.
const (
	KindNone Kind = iota
	KindGS1
	KindDigitalLink
	KindHRI
	KindEANUPC
	KindITF14
	KindHIBC
	KindNDCText
	KindRxLabel
	KindOpaque
	KindCommand
)

var kindNames = [...]string{"", "gs1", "digital_link", "hri", "ean_upc", "itf14", "hibc", "ndc_text", "rx_label", "opaque", "command"}

// String is the lower-case name, "" for KindNone.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MarshalText writes the name.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Flags are remarks about an accepted payload.
type Flags uint16

// The flags.
const (
	FlagNoItemID         Flags = 1 << iota // element strings that name no item
	FlagLooksLikeGS1                       // plain text that reads like an element string: a badly made label
	FlagURL                                // an ordinary link
	FlagMissingSeparator                   // the scanner may drop GS: the last value may hold another element
	FlagNDCUnresolved                      // three readings, none listed
	FlagNDCAmbiguous                       // more than one reading is listed, or the label contradicts itself
	FlagAssumed542                         // 11 digits taken as 5-4-2 by convention
	FlagNeedsPrimary                       // an HIBC secondary: lot or expiry without the item
)

var flagNames = [...]string{"no_item_id", "looks_like_gs1", "url", "missing_separator_suspected", "ndc_unresolved", "ndc_ambiguous", "assumed_5_4_2", "needs_primary"}

// Names lists the flags' names in a fixed order; never nil.
func (f Flags) Names() []string {
	names := make([]string, 0, 2)
	for i, n := range flagNames {
		if f&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	return names
}

// Has says that all of g are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// HIBCData is what an HIBC supplier label says beside lot, serial and expiry.
type HIBCData struct {
	LIC, PCN, UOM string // of a primary
	Link          string // the primary's check character, repeated in a secondary
	Quantity      int    // the label's own figure, never a scan's quantity; −1 if none
}

// Scan is the result of one Decode. Its strings alias its own buffer and are valid until the next Decode
// into it; Clone makes a copy that owns its text. The zero Scan is ready for use. A Scan never prints what
// it holds.
type Scan struct {
	Kind      Kind
	Symbology string // AIM identifier, e.g. "]d2"; "" if none was sent
	Length    int    // bytes of the payload without framing, gun address included
	Gun       string // gun address, e.g. "02"; "" if the profile has none

	GTIN         string    // 14 digits or ""
	NDC10        string    // ten digits without hyphens or ""
	NDC11        string    // 11 digits, only if hyphens, directory, convention or AI 715 decide
	NDC12        string    // 12 digits (6-4-2), only if decided; alone for labelers from 100000
	Candidates11 [3]string // the readings 4-4-2, 5-3-2, 5-4-1 of NDC10
	NCandidates  int       // 3 or 0

	Lot, Serial   string
	HIBC          string // LIC, PCN and unit of measure of a primary, as one string
	HIBCData      HIBCData
	AddOn         string // 2 or 5 digits beside an EAN/UPC
	Expiry        Date   // as labelled: Day 0 is a whole month
	ExpiryLastDay Date   // the last day of use
	PkgLevel      int8   // first digit of the GTIN; −1 without one
	Flags         Flags
	Command       Command // of KindCommand
	Rx            Rx      // of KindRxLabel

	w        *work
	unlooked bool // no directory was there to resolve NDC10
}

// work is what a Scan reuses from one Decode to the next.
type work struct {
	buf      []byte    // the payload behind the gun address, then decoded text; never grows within a Decode
	raw      int       // length of the payload in buf
	arena    []byte    // derived text
	readings [36]byte  // three NDCs of 12 digits
	elems    []element // distinct elements in their order
	seen     aiSet
	slot     [maxAIs]uint16 // position in elems, valid if seen
}

// element is one AI with its value, buf[from:to].
type element struct{ ai, from, to uint16 }

// Element is the payload exactly as received, with its AIM identifier, without framing and gun address:
// what a physical identity hashes. It is valid until the next Decode; nil for a refused payload.
func (s *Scan) Element() []byte {
	if s.w == nil || s.Kind == KindNone {
		return nil
	}
	return s.w.buf[:s.w.raw:s.w.raw]
}

// NDC is the identity's NDC: 11 digits if decided, else the 12 digits of a labeler that has no 11-digit
// form, else "".
func (s *Scan) NDC() string {
	if s.NDC11 != "" {
		return s.NDC11
	}
	return s.NDC12
}

// IsMovement says that the scan names an item and may reach the ledger.
func (s *Scan) IsMovement() bool {
	switch s.Kind {
	case KindGS1, KindDigitalLink, KindHRI, KindEANUPC, KindITF14, KindHIBC, KindNDCText:
		return s.hasItem()
	}
	return false
}

func (s *Scan) hasItem() bool {
	return s.GTIN != "" || s.NDC11 != "" || s.NDC12 != "" || s.HIBC != ""
}

// AIs calls yield with each GS1 element in the order of the payload: AI, title, and the value as received,
// until it returns false.
func (s *Scan) AIs(yield func(ai, title, value string) bool) {
	if s.w == nil {
		return
	}
	for _, e := range s.w.elems {
		info := &ais.list[e.ai]
		if !yield(info.ai, info.title, alias(s.w.buf[e.from:e.to])) {
			return
		}
	}
}

// Clone returns a copy that owns its text.
func (s *Scan) Clone() *Scan {
	c := *s
	for _, p := range c.texts() {
		*p = strings.Clone(*p)
	}
	if s.w != nil {
		c.w = &work{
			buf:   append([]byte(nil), s.w.buf...),
			raw:   s.w.raw,
			elems: append([]element(nil), s.w.elems...),
		}
	}
	return &c
}

// texts lists every field that may alias the buffer.
func (s *Scan) texts() [21]*string {
	return [...]*string{
		&s.Symbology, &s.Gun, &s.GTIN, &s.NDC10, &s.NDC11, &s.NDC12,
		&s.Candidates11[0], &s.Candidates11[1], &s.Candidates11[2],
		&s.Lot, &s.Serial, &s.HIBC, &s.HIBCData.LIC, &s.HIBCData.PCN, &s.HIBCData.UOM, &s.HIBCData.Link,
		&s.AddOn, &s.Rx.Profile, (*string)(&s.Rx.Rx), (*string)(&s.Rx.Refill), (*string)(&s.Rx.Store),
	}
}

// String tells kind, symbology and length, never content.
func (s Scan) String() string {
	return fmt.Sprintf("%s %s [%d bytes]", s.Kind, s.Symbology, s.Length)
}

// Format is String at every verb.
func (s Scan) Format(f fmt.State, _ rune) { hide(f, s) }

// LogValue is String.
func (s Scan) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText is String; Report is the form that shows content.
func (s Scan) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// begin clears s and takes a copy of the payload.
func (s *Scan) begin(payload []byte) {
	w := s.w
	if w == nil {
		w = &work{arena: make([]byte, 0, 128)}
	}
	// Decoded text is never longer than the payload, and a padded GTIN is 14 bytes: with this capacity
	// buf never moves under the strings that alias it.
	if need := 2*len(payload) + 16; cap(w.buf) < need {
		w.buf = make([]byte, 0, max(need, 256))
	}
	w.buf = append(w.buf[:0], payload...)
	w.raw = len(payload)
	w.arena = w.arena[:0]
	w.elems = w.elems[:0]
	w.seen = aiSet{}
	*s = Scan{w: w, PkgLevel: -1}
	s.HIBCData.Quantity = -1
}

// wipe leaves of a refused payload its symbology and gun, and overwrites the rest.
func (s *Scan) wipe(length int) {
	w := s.w
	sym, gun := s.Symbology, s.Gun
	clear(w.buf[:cap(w.buf)][len(sym):])
	clear(w.arena[:cap(w.arena)][len(gun):])
	w.readings = [36]byte{}
	w.elems = w.elems[:0]
	*s = Scan{w: w, PkgLevel: -1, Symbology: sym, Gun: gun, Length: length}
	s.HIBCData.Quantity = -1
}

// put joins parts in the arena.
func (s *Scan) put(parts ...string) string {
	a := s.w.arena
	from := len(a)
	for _, p := range parts {
		a = append(a, p...)
	}
	s.w.arena = a
	return alias(a[from:])
}

// alias is b as a string without a copy.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
