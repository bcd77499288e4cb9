package ledger

import (
	"bytes"
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Check reads every record and compares the indexes with the rows and lines, both ways. It returns the
// first thing that does not fit. It holds one read transaction all the time: for an agent at rest.
func (e *Embedded) Check(ctx context.Context) error {
	err := e.use(func() error {
		return e.db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			return bucketsOf(tx).check(ctx)
		})
	})
	if err != nil {
		return fmt.Errorf("cannot vouch for the ledger: %w", err)
	}
	return nil
}

func (b buckets) check(ctx context.Context) error {
	var rows, edges, lines, keyed uint64 // as the log and the records tell
	next := uint64(1)
	err := each(ctx, b.log, func(k, v []byte) error {
		seq, id, err := logEntry(k, v)
		if err != nil {
			return err
		}
		if seq != next {
			return fmt.Errorf("log entry %d is missing", next)
		}
		next++
		if id[0] == logPurged {
			return nil
		}
		if id[0] == 'l' {
			l, err := b.line(id[1:])
			if err != nil {
				return err
			}
			lines++
			if l.Key.IsZero() {
				return nil
			}
			keyed++
			event, err := get(b.lineKeys, bktLineKeys, append(l.Key.Hash[:], k...))
			if err == nil && !bytes.Equal(event, l.Event[:]) {
				err = fmt.Errorf("line %s is missing under its key", l.Event)
			}
			return err
		}
		r, err := b.row(id[1:])
		if err != nil {
			return err
		}
		rows++
		s := Standing{}
		if err := b.standing(&Probe{Keys: r.Keys, Event: r.Event}, &s); err != nil {
			return err
		}
		if s.ByEvent.Key != r.Keys.Idem {
			return fmt.Errorf("row %s is missing under its event id", r.Keys.Idem)
		}
		if r.Keys.Edge.IsZero() {
			return nil
		}
		if edges++; s.ByEdge.Key != r.Keys.Idem {
			return fmt.Errorf("row %s is missing under its edge key", r.Keys.Idem)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if next-1 != b.log.Sequence() || rows != b.rows.Sequence() {
		return fmt.Errorf("%d log entries and %d rows, but %d and %d were written", next-1, rows, b.log.Sequence(), b.rows.Sequence())
	}
	for _, c := range []struct {
		bucket *bolt.Bucket
		name   string
		want   uint64
	}{{b.rows, bktRows, rows}, {b.edges, bktEdges, edges}, {b.events, bktEvents, rows}, {b.lines, bktLines, lines}, {b.lineKeys, bktLineKeys, keyed}} {
		n := uint64(0)
		err := each(ctx, c.bucket, func(k, v []byte) error {
			n++
			_, err := unseal(c.name, k, v)
			return err
		})
		if err != nil {
			return err
		}
		if n != c.want {
			return fmt.Errorf("%d records in %s, want %d", n, c.name, c.want)
		}
	}
	err = each(ctx, b.chain, func(k, v []byte) error {
		body, err := unseal(bktChain, k, v)
		if err == nil {
			_, err = decodeChain(k, body)
		}
		return err
	})
	if err != nil {
		return err
	}
	return each(ctx, b.claims, func(k, v []byte) error {
		body, err := unseal(bktClaims, k, v)
		if err == nil {
			_, err = decodeIngest(k, body, 0)
		}
		return err
	})
}

func each(ctx context.Context, b *bolt.Bucket, f func(k, v []byte) error) error {
	if b == nil { // of a file of an older version, opened for reading
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return f(k, v)
	})
}
