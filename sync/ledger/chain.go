package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"scanonce/idem"
	"scanonce/window"
)

// ChainRecord binds the audit lines of one settled batch to all lines before them: whatever is altered or
// removed later no longer fits. An agent has one chain a spool epoch, numbered from 1; the first record's Prev
// is the last hash of the epoch before, as far as it is known.
type ChainRecord struct {
	Agent, Epoch string
	Seq          uint64
	Events       []idem.EventID // of the lines
	LineHashes   []byte         // Line.Hash of each, in the same order
	Prev         [32]byte
	Hash         [32]byte // SHA-256 of Prev and LineHashes
}

// EpochStart is the reason of the notice that opens the chain of an epoch: its length is how many records were found
// lost since the epoch before, and the record that holds it has the last hash known as its previous one.
const EpochStart = "epoch_start"

// ChainHash is what the hash of a record with these values is.
func ChainHash(prev [32]byte, lineHashes []byte) (hash [32]byte) {
	h := sha256.New()
	h.Write(prev[:])
	h.Write(lineHashes)
	return [32]byte(h.Sum(nil))
}

// Flaw says what in the record contradicts itself, "" for nothing.
func (r *ChainRecord) Flaw() string {
	switch {
	case r.Agent == "" || r.Epoch == "" || r.Seq == 0 || r.Seq > 1<<62:
		return "it has no place in a chain"
	case len(r.LineHashes) != sha256.Size*len(r.Events):
		return "it does not have one hash for each line"
	case ChainHash(r.Prev, r.LineHashes) != r.Hash:
		return "its hash is not that of its content"
	}
	return ""
}

// ChainHead is the last record of a chain.
type ChainHead struct {
	Agent, Epoch string
	Seq          uint64
}

// Hash is the SHA-256 of the line's canonical form.
func (l *Line) Hash() [32]byte {
	var b [640]byte
	return sha256.Sum256(l.AppendCanonical(b[:0]))
}

// AppendCanonical appends the line's columns, event_id to symbology, as JSON in the canonical form of RFC 8785.
func (l *Line) AppendCanonical(b []byte) []byte {
	text := func(name, s string) {
		b = append(append(append(b, '"'), name...), `":`...)
		if s == "" {
			b = append(b, "null,"...)
			return
		}
		b = append(appendCanonicalText(b, s), ',')
	}
	number := func(name string, n int) {
		b = append(append(append(b, '"'), name...), `":`...)
		if n == 0 {
			b = append(b, "null,"...)
			return
		}
		b = append(strconv.AppendInt(b, int64(n), 10), ',')
	}
	event := func(e idem.EventID) string {
		if e.IsZero() {
			return ""
		}
		return e.String()
	}
	instant := func(t window.UTC) string {
		if t == 0 {
			return ""
		}
		return t.String()
	}
	b = append(b, '{')
	text("agent_id", l.Agent)
	text("at", l.At.String())
	text("captured_at", instant(l.CapturedAt))
	text("event_id", l.Event.String())
	text("key", l.Key.String())
	number("length", l.Length)
	text("outcome", string(l.Outcome))
	text("reason", l.Reason)
	text("ref", event(l.Ref))
	text("scan_type", l.Type.String())
	text("scanner_id", l.Scanner)
	text("symbology", l.Symbology)
	number("ttl_ms", l.TTL)
	text("winner_event_id", event(l.Winner))
	b[len(b)-1] = '}'
	return b
}

// appendCanonicalText is a JSON string as RFC 8785 section 3.2.2.2 has it.
func appendCanonicalText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\f':
			b = append(b, `\f`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			if c < 0x20 {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

const appendChainSQL = `INSERT INTO scan_audit_chain (agent_id, spool_epoch, seq, event_ids, line_hashes, prev_hash, hash)
SELECT agent_id, spool_epoch, seq, ($8::uuid[])[first:last], line_hashes, prev_hash, hash
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::int[], $5::int[], $6::bytea[], $7::bytea[], $9::bytea[])
	AS t (agent_id, spool_epoch, seq, first, last, line_hashes, prev_hash, hash)
ON CONFLICT DO NOTHING`

// AppendChain implements Ledger.
func (p *Postgres) AppendChain(ctx context.Context, records []ChainRecord) error {
	if err := checkChain(records); err != nil {
		return err
	}
	all := make([]*ChainRecord, len(records))
	for i := range records {
		all[i] = &records[i]
	}
	err := write(ctx, p, all, func(ctx context.Context, c *pgx.Conn, records []*ChainRecord) error {
		// The events of all records in one array, of which each record has a slice.
		var events []*idem.EventID
		last := make(map[*ChainRecord]int, len(records))
		for _, r := range records {
			for i := range r.Events {
				events = append(events, &r.Events[i])
			}
			last[r] = len(events)
		}
		return send(ctx, c, appendChainSQL, func(a *arrays) {
			texts(a, records, func(r *ChainRecord) string { return r.Agent })
			texts(a, records, func(r *ChainRecord) string { return r.Epoch })
			int8s(a, records, func(r *ChainRecord) int64 { return int64(r.Seq) })
			int4s(a, records, func(r *ChainRecord) int { return last[r] - len(r.Events) + 1 })
			int4s(a, records, func(r *ChainRecord) int { return last[r] })
			hashes(a, records, func(r *ChainRecord) []byte { return notNull(r.LineHashes) })
			hashes(a, records, func(r *ChainRecord) []byte { return r.Prev[:] })
			uuids(a, events, func(e *idem.EventID) []byte { return e[:] })
			hashes(a, records, func(r *ChainRecord) []byte { return r.Hash[:] })
		}, func([][]byte) {})
	}, nil)
	if err != nil {
		return fmt.Errorf("cannot append to the audit chain: %w", err)
	}
	return nil
}

func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func checkChain(records []ChainRecord) error {
	for i := range records {
		if detail := records[i].Flaw(); detail != "" {
			return fmt.Errorf("cannot append record %d of the audit chain of epoch %s: %s", records[i].Seq, records[i].Epoch, detail)
		}
	}
	return nil
}

func scanChain(res pgx.CollectableRow) (r ChainRecord, err error) {
	var events [][16]byte
	var prev, hash []byte
	var seq int64
	if err := res.Scan(&r.Agent, &r.Epoch, &seq, &events, &r.LineHashes, &prev, &hash); err != nil {
		return r, err
	}
	r.Seq = uint64(seq)
	r.Events = make([]idem.EventID, len(events))
	for i := range events {
		r.Events[i] = events[i]
	}
	// What does not fit is the verifier's business: it must not stop the reading.
	copy(r.Prev[:], prev)
	copy(r.Hash[:], hash)
	return r, nil
}

// Chain implements Ledger.
func (p *Postgres) Chain(ctx context.Context, yield func(ChainRecord) error) error {
	return stream(ctx, p, `SELECT agent_id, spool_epoch, seq, event_ids, line_hashes, prev_hash, hash FROM scan_audit_chain
		ORDER BY agent_id, spool_epoch, seq`, scanChain, yield)
}

// ChainHeads implements Ledger.
func (p *Postgres) ChainHeads(ctx context.Context) (heads []ChainHead, err error) {
	err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		heads, err = collect(ctx, c, func(res pgx.CollectableRow) (h ChainHead, err error) {
			var seq int64
			err = res.Scan(&h.Agent, &h.Epoch, &seq)
			h.Seq = uint64(seq)
			return h, err
		}, "SELECT agent_id, spool_epoch, max(seq) FROM scan_audit_chain GROUP BY agent_id, spool_epoch")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look up the audit chain: %w", err)
	}
	return heads, nil
}

// The embedded ledger keys a chain record by agent, epoch and number.

func chainKey(r *ChainRecord) []byte {
	return binary.BigEndian.AppendUint64(append(append(append([]byte(r.Agent), 0), r.Epoch...), 0), r.Seq)
}

// AppendChain implements Ledger.
func (e *Embedded) AppendChain(ctx context.Context, records []ChainRecord) error {
	if err := checkChain(records); err != nil {
		return err
	}
	err := e.write(ctx, func(b buckets) (bool, error) {
		wrote := false
		for i := range records {
			k := chainKey(&records[i])
			if b.chain.Get(k) != nil {
				continue
			}
			if err := put(b.chain, bktChain, k, appendChain(nil, &records[i])); err != nil {
				return false, err
			}
			wrote = true
		}
		return wrote, nil
	})
	if err != nil {
		return fmt.Errorf("cannot append to the audit chain: %w", err)
	}
	return nil
}

// Chain implements Ledger. It holds no transaction while yield runs.
func (e *Embedded) Chain(ctx context.Context, yield func(ChainRecord) error) error {
	for from := []byte{}; ; {
		var found []ChainRecord
		err := e.read(ctx, func(b buckets) error {
			if b.chain == nil {
				return nil
			}
			c := b.chain.Cursor()
			for k, v := c.Seek(from); k != nil && len(found) < page; k, v = c.Next() {
				body, err := unseal(bktChain, k, v)
				if err != nil {
					return err
				}
				r, err := decodeChain(k, body)
				if err != nil {
					return err
				}
				found = append(found, r)
				from = append(append(from[:0], k...), 0)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("cannot read the audit chain: %w", err)
		}
		for _, r := range found {
			if err := yield(r); err != nil {
				return err
			}
		}
		if len(found) < page {
			return nil
		}
	}
}

// ChainHeads implements Ledger.
func (e *Embedded) ChainHeads(ctx context.Context) (heads []ChainHead, err error) {
	err = e.Chain(ctx, func(r ChainRecord) error {
		if n := len(heads); n > 0 && heads[n-1].Agent == r.Agent && heads[n-1].Epoch == r.Epoch {
			heads[n-1].Seq = r.Seq
		} else {
			heads = append(heads, ChainHead{r.Agent, r.Epoch, r.Seq})
		}
		return nil
	})
	return heads, err
}

func appendChain(b []byte, r *ChainRecord) []byte {
	b = append(b, bodyVersion)
	b = appendText(appendText(b, r.Agent), r.Epoch)
	b = binary.AppendUvarint(b, r.Seq)
	b = append(append(b, r.Prev[:]...), r.Hash[:]...)
	b = binary.AppendUvarint(b, uint64(len(r.Events)))
	for i := range r.Events {
		b = append(b, r.Events[i][:]...)
	}
	return append(b, r.LineHashes...)
}

func decodeChain(key, body []byte) (ChainRecord, error) {
	d := decoder{b: body}
	if d.byte(bodyVersion) != bodyVersion {
		d.bad = true
	}
	r := ChainRecord{Agent: d.text(), Epoch: d.text(), Seq: d.uvarint(1 << 62)}
	copy(r.Prev[:], d.take(32))
	copy(r.Hash[:], d.take(32))
	n := int(d.uvarint(uint64(len(d.b) / 48)))
	for range n {
		r.Events = append(r.Events, d.event())
	}
	r.LineHashes = slices.Clone(d.take(32 * n))
	if !d.done() || !bytes.Equal(key, chainKey(&r)) {
		return ChainRecord{}, fmt.Errorf("cannot read record %x of the audit chain: %w", key, errDamaged)
	}
	return r, nil
}
