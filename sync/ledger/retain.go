package ledger

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"scanonce/window"
)

const (
	logPurged   = 'x' // a log entry whose line was removed
	purgeAtOnce = 1000
)

var keyPurged = []byte("purged") // in bktMeta: log entries up to it are done with

// Retain removes the audit lines that were recorded before an instant, and returns how many. Rows stay, and so do the
// records of the chain, which tell that a line was there. It goes in small transactions, so that others have their
// turn, and ends at the first line that is to stay; one that was recorded by a clock that was ahead of now is passed over,
// and stays for good. If nothing at all was recorded since that instant, nothing is removed: a clock that is years ahead
// must not empty the trail.
func (e *Embedded) Retain(ctx context.Context, before window.UTC) (removed int, err error) {
	now := e.now()
	for more := true; more; {
		n := 0
		err := e.write(ctx, func(b buckets) (commit bool, err error) {
			if k, v := b.log.Cursor().Last(); removed == 0 {
				if k == nil {
					return false, nil
				}
				if at, err := b.recorded(k, v); err != nil || at < before {
					more = false
					return false, err
				}
			}
			n, more, err = b.purge(before, now)
			return more || n > 0, err
		})
		if err != nil {
			return removed, fmt.Errorf("cannot remove old lines of the audit trail: %w", err)
		}
		removed += n
	}
	return removed, nil
}

// recorded is when an entry of the log was made; 0 for a line that was removed.
func (b buckets) recorded(k, v []byte) (window.UTC, error) {
	_, id, err := logEntry(k, v)
	if err != nil {
		return 0, err
	}
	switch id[0] {
	case 'r':
		o, err := b.owner(id[1:])
		return o.CommittedAt, err
	case 'l':
		l, err := b.line(id[1:])
		return l.RecordedAt, err
	}
	return 0, nil
}

// purge looks at the next entries of the log and removes the lines among them that are too old. It says whether
// there may be more.
func (b buckets) purge(before, now window.UTC) (removed int, more bool, err error) {
	from := uint64(1)
	v, err := get(b.meta, bktMeta, keyPurged)
	if err != nil {
		return 0, false, err
	}
	if len(v) == 8 {
		from = binary.BigEndian.Uint64(v) + 1
	}
	var old []Line
	var places [][]byte // their entries' keys
	next := from
	c := b.log.Cursor()
	for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, from)); k != nil; k, v = c.Next() {
		seq, id, err := logEntry(k, v)
		if err != nil {
			return 0, false, err
		}
		if more = seq-from >= purgeAtOnce; more {
			break
		}
		if id[0] == 'r' {
			o, err := b.owner(id[1:])
			if err != nil {
				return 0, false, err
			}
			if o.CommittedAt >= before && o.CommittedAt <= now {
				break
			}
		} else if id[0] == 'l' {
			l, err := b.line(id[1:])
			if err != nil {
				return 0, false, err
			}
			if l.RecordedAt >= before && l.RecordedAt <= now {
				break
			}
			if l.RecordedAt > now {
				next = seq + 1
				continue
			}
			old, places = append(old, l), append(places, slices.Clone(k))
		}
		next = seq + 1
	}
	for i, l := range old {
		if !l.Key.IsZero() {
			if err := b.lineKeys.Delete(append(l.Key.Hash[:], places[i]...)); err != nil {
				return 0, false, err
			}
		}
		if err := b.lines.Delete(l.Event[:]); err != nil {
			return 0, false, err
		}
		if err := put(b.log, bktLog, places[i], append([]byte{logPurged}, l.Event[:]...)); err != nil {
			return 0, false, err
		}
	}
	if next == from {
		return 0, false, nil
	}
	return len(old), more, put(b.meta, bktMeta, keyPurged, binary.BigEndian.AppendUint64(nil, next-1))
}
