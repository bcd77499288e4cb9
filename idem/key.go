// Package idem holds the identity of a scan, its idempotency keys, and the claim Authority.
package idem

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"scanonce/window"
)

// Kind tags a hash with what it is a hash of, so that look-up structures never mix them.
type Kind uint8

// The kinds of key.
const (
	Physical Kind = 1 + iota // scanner and element string: what the local rule matches
	Idem                     // identity in a window: the ledger's primary key
	Edge                     // identity at a window boundary
)

// Key is a tagged SHA-256. The zero Key is no key.
type Key struct {
	Kind Kind
	Hash [32]byte
}

const (
	idemPrefix = "scan:idem:"
	edgePrefix = "scan:edge:"
	edgeMark   = "edge|" // in front of an edge key's material
)

// String is the key's full text, scan:idem:<64 hex> or scan:edge:<64 hex>; "" for no key.
func (k Key) String() string {
	switch k.Kind {
	case Idem:
		return idemPrefix + hex.EncodeToString(k.Hash[:])
	case Edge:
		return edgePrefix + hex.EncodeToString(k.Hash[:])
	case Physical:
		return "phys:" + hex.EncodeToString(k.Hash[:])
	}
	return ""
}

// IsZero says that there is no key.
func (k Key) IsZero() bool { return k.Kind == 0 }

// ParseKey reads String's form of an idempotency or edge key.
func ParseKey(s string) (Key, error) {
	var k Key
	rest, ok := strings.CutPrefix(s, idemPrefix)
	if ok {
		k.Kind = Idem
	} else if rest, ok = strings.CutPrefix(s, edgePrefix); ok {
		k.Kind = Edge
	}
	if !ok || len(rest) != 64 {
		return Key{}, errors.New("cannot read the key: write scan:idem: and 64 hexadecimal digits")
	}
	if _, err := hex.Decode(k.Hash[:], []byte(rest)); err != nil {
		return Key{}, errors.New("cannot read the key: after scan:idem: come 64 hexadecimal digits")
	}
	return k, nil
}

// Identity is what makes two movements the same one when they fall in one window. Facility, Scanner and
// Type are always set; NDC is 11 digits if decided, else 12 digits, else empty; GTIN is set only without
// an NDC, HIBC only without both.
type Identity struct {
	Facility, Scanner  string
	NDC, Lot           string
	Quantity           int
	Type               window.ScanType
	GTIN, HIBC, Serial string
	Again              string // makes a scan fresh: its own event id, or an API caller's Idempotency-Key
}

// Keys are computed once, at capture, and persisted: every attempt uses the same bytes.
type Keys struct {
	Idem   Key
	Edge   Key // zero outside the guard zones
	Window window.Index
}

// Keys returns the keys of a scan that arrived at t.
func (id *Identity) Keys(p window.Policy, t window.UTC) Keys {
	k := Keys{Window: p.Index(t)}
	var buf [512]byte
	b := id.appendFields(append(buf[:0], edgeMark...))
	from := len(b)
	b = strconv.AppendInt(b, int64(k.Window), 10)
	to := len(b)
	b = id.appendExtras(b, p)
	k.Idem = Key{Kind: Idem, Hash: sha256.Sum256(b[len(edgeMark):])}
	boundary, ok := p.Boundary(t)
	if !ok {
		return k
	}
	// The edge key's material is the same but for the mark in front and the number.
	var digits [20]byte
	if n := strconv.AppendInt(digits[:0], int64(boundary), 10); len(n) == to-from {
		copy(b[from:to], n)
		k.Edge = Key{Kind: Edge, Hash: sha256.Sum256(b)}
	} else {
		k.Edge = id.edge(p, boundary)
	}
	return k
}

// KeysAt returns the idempotency key for window i, and the edge key of boundary b if b is not nil.
func (id *Identity) KeysAt(p window.Policy, i window.Index, b *window.Index) Keys {
	k := Keys{Window: i, Idem: id.idem(p, i)}
	if b != nil {
		k.Edge = id.edge(p, *b)
	}
	return k
}

func (id *Identity) idem(p window.Policy, i window.Index) Key {
	var buf [512]byte
	return Key{Kind: Idem, Hash: sha256.Sum256(id.AppendMaterial(buf[:0], p, i))}
}

func (id *Identity) edge(p window.Policy, b window.Index) Key {
	var buf [512]byte
	return Key{Kind: Edge, Hash: sha256.Sum256(id.AppendMaterial(append(buf[:0], edgeMark...), p, b))}
}

// AppendMaterial appends the text that is hashed: the six identity fields and the window index, joined
// by "|", then the extra fields as "|name=value" in their fixed order, each only if it applies.
func (id *Identity) AppendMaterial(b []byte, p window.Policy, i window.Index) []byte {
	return id.appendExtras(strconv.AppendInt(id.appendFields(b), int64(i), 10), p)
}

func (id *Identity) appendFields(b []byte) []byte {
	for _, f := range [...]string{id.Facility, id.Scanner, id.NDC, id.Lot} {
		b = append(appendEscaped(b, f), '|')
	}
	b = append(strconv.AppendInt(b, int64(id.Quantity), 10), '|')
	return append(append(b, id.Type.String()...), '|')
}

func (id *Identity) appendExtras(b []byte, p window.Policy) []byte {
	b = appendExtra(b, "gtin", id.GTIN)
	b = appendExtra(b, "hibc", id.HIBC)
	b = appendExtra(b, "serial", id.Serial)
	if p.Width != window.Default(id.Type).Width {
		b = strconv.AppendInt(append(b, "|w="...), int64(p.Width/time.Millisecond), 10)
	}
	return appendExtra(b, "again", id.Again)
}

// Extras is the extra fields' part of the material, without the leading "|".
func (id *Identity) Extras(p window.Policy) string {
	var buf [256]byte
	b := id.appendExtras(buf[:0], p)
	if len(b) == 0 {
		return ""
	}
	return string(b[1:])
}

func appendExtra(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(append(append(b, '|'), name...), '=')
	return appendEscaped(b, value)
}

// appendEscaped keeps a field from running into the next: "\" becomes "\\" and "|" becomes "\p".
func appendEscaped(b []byte, s string) []byte {
	if strings.IndexByte(s, '|') < 0 && strings.IndexByte(s, '\\') < 0 {
		return append(b, s...)
	}
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			b = append(b, `\\`...)
		case '|':
			b = append(b, `\p`...)
		default:
			b = append(b, s[i])
		}
	}
	return b
}

// PhysicalKey hashes what the local rule compares: the scanner and the exact element string, and not
// quantity, type or what a directory says.
func PhysicalKey(scanner string, element []byte) Key {
	var buf [512]byte
	b := append(appendEscaped(append(buf[:0], "phys|"...), scanner), '|')
	return Key{Kind: Physical, Hash: sha256.Sum256(append(b, element...))}
}

// EventID is a UUIDv7, made once at capture and never again.
type EventID [16]byte

// NewEventID makes a UUIDv7 (RFC 9562) from an instant and 10 random bytes.
func NewEventID(t window.UTC, random [10]byte) EventID {
	var e EventID
	ms := uint64(t)
	for i := range 6 {
		e[i] = byte(ms >> (40 - 8*i))
	}
	copy(e[6:], random[:])
	e[6] = e[6]&0x0f | 0x70
	e[8] = e[8]&0x3f | 0x80
	return e
}

// IsZero says that there is no event.
func (e EventID) IsZero() bool { return e == EventID{} }

// String is the UUID's text form.
func (e EventID) String() string {
	var b [36]byte
	hex.Encode(b[:8], e[:4])
	hex.Encode(b[9:13], e[4:6])
	hex.Encode(b[14:18], e[6:8])
	hex.Encode(b[19:23], e[8:10])
	hex.Encode(b[24:], e[10:])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// MarshalText writes String's form.
func (e EventID) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText reads String's form.
func (e *EventID) UnmarshalText(b []byte) error {
	v, err := ParseEventID(string(b))
	if err == nil {
		*e = v
	}
	return err
}

// ParseEventID reads a UUID in text form.
func ParseEventID(s string) (EventID, error) {
	var e EventID
	bad := fmt.Errorf("cannot read %q as an event id: write a UUID, for example 019aceee-0000-7000-8000-000000000001", s)
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return e, bad
	}
	if _, err := hex.Decode(e[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return EventID{}, bad
	}
	return e, nil
}
