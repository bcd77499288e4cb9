package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"scanonce/idem"
	"scanonce/internal/boltfile"
	"scanonce/window"
)

// A record is its body with a checksum of bucket, key and body; see boltfile.Seal. A body begins with its version.
//
// Row body:  version, event 16, committed int64, edge flag (+32), then varints and length-prefixed text.
// Line body: version, then the same in the order of the columns.
const bodyVersion = 1

var errDamaged = errors.New("it does not fit its checksum, or what points to it")

// unseal returns the body of a record.
func unseal(bucket string, key, rec []byte) ([]byte, error) {
	body, ok := boltfile.Unseal(bucket, key, rec)
	if !ok {
		return nil, fmt.Errorf("cannot read record %x of %s: %w", key, bucket, errDamaged)
	}
	return body, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendTime(b []byte, t window.UTC) []byte { return binary.BigEndian.AppendUint64(b, uint64(t)) }

func appendRow(b []byte, r *Row) []byte {
	b = append(append(b, bodyVersion), r.Event[:]...)
	b = appendTime(b, r.CommittedAt)
	if r.Keys.Edge.IsZero() {
		b = append(b, 0)
	} else {
		b = append(append(b, 1), r.Keys.Edge.Hash[:]...)
	}
	b = binary.AppendVarint(b, int64(r.Keys.Window))
	b = binary.AppendUvarint(b, uint64(r.Quantity))
	b = append(b, byte(r.Type), byte(r.Quality))
	b = binary.AppendVarint(b, int64(r.PkgLevel))
	b = appendTime(b, r.CapturedAt)
	for _, s := range r.texts() {
		b = appendText(b, *s)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Flags)))
	for _, f := range r.Flags {
		b = appendText(b, f)
	}
	return b
}

// texts lists the text columns in the order of their encoding.
func (r *Row) texts() [13]*string {
	return [...]*string{&r.Facility, &r.Scanner, &r.NDC, &r.Lot, &r.Extras, &r.GTIN, &r.HIBC, &r.Serial,
		&r.NDC11, &r.NDC12, &r.Expiry, &r.RxToken, &r.Agent}
}

// decodeRow reads a row's body, found under the hash of its idempotency key.
func decodeRow(key, body []byte) (Row, error) {
	d := decoder{b: body}
	r := Row{Event: d.head(), CommittedAt: d.time()}
	r.Keys.Idem = idemKey(key)
	if d.byte(1) == 1 {
		r.Keys.Edge.Kind = idem.Edge
		copy(r.Keys.Edge.Hash[:], d.take(len(r.Keys.Edge.Hash)))
	}
	r.Keys.Window = window.Index(d.varint())
	r.Quantity = int(d.uvarint(maxQuantity))
	r.Type = window.ScanType(d.byte(byte(window.Count)))
	r.Quality = window.Quality(d.byte(byte(window.Device)))
	r.PkgLevel = int(d.varint())
	r.CapturedAt = d.time()
	for _, s := range r.texts() {
		*s = d.text()
	}
	if n := d.uvarint(uint64(len(d.b))); n > 0 { // a flag takes at least a byte
		r.Flags = make([]string, n)
		for i := range r.Flags {
			r.Flags[i] = d.text()
		}
	}
	if len(key) != 32 || !d.done() {
		return Row{}, fmt.Errorf("cannot read row %x: %w", key, errDamaged)
	}
	return r, nil
}

func idemKey(hash []byte) idem.Key {
	k := idem.Key{Kind: idem.Idem}
	copy(k.Hash[:], hash)
	return k
}

func appendLine(b []byte, l *Line) []byte {
	b = append(append(b, bodyVersion), l.Event[:]...)
	b = appendTime(b, l.RecordedAt)
	b = appendTime(b, l.At)
	if l.Key.IsZero() {
		b = append(b, 0)
	} else {
		b = append(append(b, 1), l.Key.Hash[:]...)
	}
	b = append(append(b, l.Ref[:]...), l.Winner[:]...)
	b = append(b, byte(l.Type))
	b = appendTime(b, l.CapturedAt)
	b = binary.AppendVarint(b, int64(l.TTL))
	b = binary.AppendVarint(b, int64(l.Length))
	for _, s := range [...]string{l.Agent, string(l.Outcome), l.Reason, l.Scanner, l.Symbology} {
		b = appendText(b, s)
	}
	return b
}

// decodeLine reads a line's body, found under its event id.
func decodeLine(key, body []byte) (Line, error) {
	d := decoder{b: body}
	l := Line{Event: d.head(), RecordedAt: d.time(), At: d.time()}
	if d.byte(1) == 1 {
		l.Key = idemKey(d.take(len(l.Key.Hash)))
	}
	l.Ref, l.Winner = d.event(), d.event()
	l.Type = window.ScanType(d.byte(byte(window.Count)))
	l.CapturedAt = d.time()
	l.TTL, l.Length = int(d.varint()), int(d.varint())
	l.Agent, l.Outcome, l.Reason, l.Scanner, l.Symbology = d.text(), Outcome(d.text()), d.text(), d.text(), d.text()
	if !d.done() || !slices.Equal(key, l.Event[:]) {
		return Line{}, fmt.Errorf("cannot read line %x: %w", key, errDamaged)
	}
	return l, nil
}

// decoder takes a body apart. After the first thing that does not fit, it is bad and returns zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) byte(most byte) byte {
	v := d.take(1)
	if d.bad || v[0] > most {
		d.bad = true
		return 0
	}
	return v[0]
}

// head reads the version and the event id, with which every body begins.
func (d *decoder) head() idem.EventID {
	if d.byte(bodyVersion) != bodyVersion {
		d.bad = true
	}
	return d.event()
}

func (d *decoder) event() (e idem.EventID) {
	copy(e[:], d.take(len(e)))
	return e
}

func (d *decoder) time() window.UTC {
	v := d.take(8)
	if d.bad {
		return 0
	}
	return window.UTC(binary.BigEndian.Uint64(v))
}

func (d *decoder) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 || v > most {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if d.bad || n <= 0 {
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text() string { return string(d.take(int(d.uvarint(uint64(len(d.b)))))) }

// done says that all was read and fitted.
func (d *decoder) done() bool { return !d.bad && len(d.b) == 0 }
