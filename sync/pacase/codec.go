package pacase

import (
	"encoding/binary"
	"errors"
	"fmt"

	"scanonce/internal/boltfile"
	"scanonce/window"
)

// A record is its body with a checksum of bucket, key and body; see boltfile.Seal.
//
// Case body: version, state, varint version of the case, created by 16, last operation 16, created and updated
// int64, then member token, GPI and window, each with its length. Pend body: created flag, reference.
const bodyVersion = 1

var errDamaged = errors.New("it is damaged")

// unseal returns the body of a record. Its errors name no key: one holds a member's token.
func unseal(bucket string, key, rec []byte) ([]byte, error) {
	body, ok := boltfile.Unseal(bucket, key, rec)
	if !ok {
		return nil, fmt.Errorf("cannot read a record of %s: %w", bucket, errDamaged)
	}
	return body, nil
}

func appendCase(b []byte, c *Case) []byte {
	b = append(b, bodyVersion, byte(c.State))
	b = binary.AppendUvarint(b, uint64(c.Version))
	b = append(append(b, c.CreatedBy[:]...), c.LastOp[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.CreatedAt))
	b = binary.BigEndian.AppendUint64(b, uint64(c.UpdatedAt))
	for _, s := range [...]string{c.MemberToken, c.GPI, c.Window} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// decodeCase reads a case's body, found under its id.
func decodeCase(id, body []byte) (Case, error) {
	d := decoder{b: body}
	version, state := d.take(1), d.take(1)
	c := Case{ID: string(id), Version: int(d.uvarint(maxVersion + 1))}
	copy(c.CreatedBy[:], d.take(16))
	copy(c.LastOp[:], d.take(16))
	c.CreatedAt, c.UpdatedAt = d.time(), d.time()
	c.MemberToken, c.GPI, c.Window = d.text(), d.text(), d.text()
	if d.bad || len(d.b) > 0 || version[0] != bodyVersion || !State(state[0]).known() {
		return Case{}, fmt.Errorf("cannot read the case %s: %w", id, errDamaged)
	}
	c.State = State(state[0])
	return c, nil
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

func (d *decoder) text() string { return string(d.take(int(d.uvarint(uint64(len(d.b)))))) }
