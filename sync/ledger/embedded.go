package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"scanonce/idem"
	"scanonce/internal/boltfile"
	"scanonce/window"
)

// The buckets. Every value is sealed; a row is never changed or removed, so the sequence of bktRows is the
// number of rows.
const (
	bktMeta     = "meta"      // "format" → format version
	bktRows     = "rows"      // idem hash → row
	bktEdges    = "edges"     // edge hash → idem hash
	bktEvents   = "events"    // event id → idem hash
	bktLog      = "log"       // sequence, 8 bytes → 'r' idem hash | 'l' event id | 'x' that of a removed line, in the order of commit
	bktLines    = "lines"     // event id → audit line
	bktLineKeys = "line_keys" // idem hash, sequence → event id
	bktChain    = "chain"     // agent, epoch, number → record of the audit chain
	bktClaims   = "claims"    // correlation id → event id of the scan for which it is made, and when that asked
)

const (
	formatVersion = 1
	page          = 256 // records a read transaction fetches
)

// ErrInUse says that another process holds the ledger file.
var ErrInUse = boltfile.ErrInUse

// Embedded is the Ledger in a file of its own, for an agent without PostgreSQL. Every write is fsynced
// before it is acknowledged.
type Embedded struct {
	db    *bolt.DB
	place boltfile.Place
	now   func() window.UTC
	path  string
	// damage is what was found wrong with the file, once.
	damage atomic.Pointer[DamageError]
}

// use runs f on the file. After damage it is left alone.
func (e *Embedded) use(f func() error) error {
	if d := e.damage.Load(); d != nil {
		return d
	}
	err := damaged(e.path, boltfile.Guard(f))
	var d *DamageError
	if errors.As(err, &d) {
		e.damage.Store(d)
	}
	return err
}

// OpenEmbedded opens the ledger file at path, mode 0600, and makes it if it is not there. now gives
// committed_at and recorded_at. One process at a time: another gets ErrInUse within a second.
func OpenEmbedded(path string, now func() window.UTC) (*Embedded, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, fmt.Errorf("cannot make the ledger %s: %w", path, err)
		}
	}
	return open(path, now, false)
}

// OpenEmbeddedReadOnly opens an existing ledger file for reading. Several readers may hold it, no writer.
func OpenEmbeddedReadOnly(path string) (*Embedded, error) { return open(path, nil, true) }

func open(path string, now func() window.UTC, readOnly bool) (*Embedded, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() == 0 {
		// bbolt would take it for a new one, and every movement in it would count again.
		err = errors.New("the file is empty: restore it from a copy, or remove it to begin a new ledger")
	}
	var db *bolt.DB
	if err == nil {
		db, err = boltfile.Open(path, readOnly, func(db *bolt.DB) error {
			if err := db.View(checkFormat); err != nil || readOnly {
				return err
			}
			return complete(db)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger %s: %w", path, damaged(path, err))
	}
	place, err := boltfile.PlaceOf(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the ledger %s: %w", path, err), db.Close())
	}
	return &Embedded{db: db, place: place, now: now, path: path}, nil
}

func create(path string) error {
	return boltfile.Create(path, func(tx *bolt.Tx) error {
		for _, name := range []string{bktMeta, bktRows, bktEdges, bktEvents, bktLog, bktLines, bktLineKeys, bktChain, bktClaims} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return put(tx.Bucket([]byte(bktMeta)), bktMeta, []byte("format"), []byte{formatVersion})
	})
}

// complete adds the buckets that an older version did not make.
func complete(db *bolt.DB) error {
	var missing []string
	err := db.View(func(tx *bolt.Tx) error {
		for _, name := range []string{bktChain, bktClaims} {
			if tx.Bucket([]byte(name)) == nil {
				missing = append(missing, name)
			}
		}
		return nil
	})
	if err != nil || missing == nil {
		return err
	}
	return db.Update(func(tx *bolt.Tx) (err error) {
		for _, name := range missing {
			_, failed := tx.CreateBucket([]byte(name))
			err = errors.Join(err, failed)
		}
		return err
	})
}

func checkFormat(tx *bolt.Tx) error {
	b := tx.Bucket([]byte(bktMeta))
	if b == nil {
		return errors.New("it is no ledger: name the right file")
	}
	v, err := get(b, bktMeta, []byte("format"))
	switch {
	case err != nil:
		return err
	case len(v) != 1 || v[0] != formatVersion:
		return fmt.Errorf("its format %x is not %d: use the version of scanonce that wrote it, or a newer one", v, formatVersion)
	}
	return nil
}

// Close waits for what is under way and releases the file.
func (e *Embedded) Close() error { return e.db.Close() }

// put seals and stores a value.
func put(b *bolt.Bucket, name string, key, body []byte) error {
	return b.Put(key, boltfile.Seal(name, key, body))
}

// get returns a value's body, valid within the transaction; nil if there is none.
func get(b *bolt.Bucket, name string, key []byte) ([]byte, error) {
	rec := b.Get(key)
	if rec == nil {
		return nil, nil
	}
	return unseal(name, key, rec)
}

// buckets are a transaction's buckets.
type buckets struct {
	meta, rows, edges, events, log, lines, lineKeys, chain, claims *bolt.Bucket
}

func bucketsOf(tx *bolt.Tx) buckets {
	b := buckets{
		meta:     tx.Bucket([]byte(bktMeta)),
		rows:     tx.Bucket([]byte(bktRows)),
		edges:    tx.Bucket([]byte(bktEdges)),
		events:   tx.Bucket([]byte(bktEvents)),
		log:      tx.Bucket([]byte(bktLog)),
		lines:    tx.Bucket([]byte(bktLines)),
		lineKeys: tx.Bucket([]byte(bktLineKeys)),
		chain:    tx.Bucket([]byte(bktChain)),
		claims:   tx.Bucket([]byte(bktClaims)),
	}
	b.log.FillPercent = 0.95 // its keys only rise
	return b
}

// Insert implements Ledger: one transaction, the constraints checked in the order of the rows, those of
// the same call included.
func (e *Embedded) Insert(ctx context.Context, rows []Row) (Inserted, error) {
	var in Inserted
	good := make([]*Row, 0, len(rows))
	for i := range rows {
		if detail := rows[i].Flaw(); detail != "" {
			in.Poison = append(in.Poison, Poison{Event: rows[i].Event, Detail: detail})
			continue
		}
		good = append(good, &rows[i])
	}
	err := e.write(ctx, func(b buckets) (bool, error) {
		now := e.now()
		for _, r := range good {
			ok, err := b.insert(*r, now)
			if err != nil {
				return false, err
			}
			if ok {
				in.Receipts = append(in.Receipts, Receipt{Event: r.Event, CommittedAt: now})
			}
		}
		return len(in.Receipts) > 0, nil
	})
	if err != nil {
		return Inserted{}, fmt.Errorf("cannot insert into the ledger: %w", err)
	}
	return in, nil
}

// write runs f in a transaction, which it commits if f says so: a commit costs fsyncs.
func (e *Embedded) write(ctx context.Context, f func(b buckets) (bool, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return e.use(func() error {
		if err := e.place.Check(); err != nil {
			return err
		}
		return e.transact(f)
	})
}

func (e *Embedded) transact(f func(b buckets) (bool, error)) error {
	tx, err := e.db.Begin(true)
	if errors.Is(err, bolterrors.ErrDatabaseReadOnly) {
		return errors.New("it is open for reading only: open it for writing")
	}
	if err != nil {
		return err
	}
	defer tx.Rollback() // without effect after Commit
	commit, err := f(bucketsOf(tx))
	if err != nil || !commit {
		return err
	}
	return tx.Commit()
}

func (b buckets) insert(r Row, now window.UTC) (bool, error) {
	key := r.Keys.Idem.Hash[:]
	if b.rows.Get(key) != nil || b.events.Get(r.Event[:]) != nil {
		return false, nil
	}
	edge := !r.Keys.Edge.IsZero()
	if edge && b.edges.Get(r.Keys.Edge.Hash[:]) != nil {
		return false, nil
	}
	if _, err := b.rows.NextSequence(); err != nil {
		return false, err
	}
	r.CommittedAt = now
	err := put(b.rows, bktRows, key, appendRow(nil, &r))
	if err == nil && edge {
		err = put(b.edges, bktEdges, r.Keys.Edge.Hash[:], slices.Clone(key))
	}
	if err == nil {
		err = put(b.events, bktEvents, r.Event[:], slices.Clone(key))
	}
	if err == nil {
		_, err = b.appendLog('r', key)
	}
	return true, err
}

func (b buckets) appendLog(kind byte, id []byte) ([]byte, error) {
	seq, err := b.log.NextSequence()
	if err != nil {
		return nil, err
	}
	key := binary.BigEndian.AppendUint64(nil, seq)
	return key, put(b.log, bktLog, key, append([]byte{kind}, id...))
}

// Standing implements Ledger.
func (e *Embedded) Standing(ctx context.Context, probes []Probe) ([]Standing, error) {
	out := make([]Standing, len(probes))
	err := e.read(ctx, func(b buckets) error {
		for i := range probes {
			if err := b.standing(&probes[i], &out[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look up the ledger: %w", err)
	}
	return out, nil
}

func (e *Embedded) read(ctx context.Context, f func(b buckets) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return e.use(func() error {
		return e.db.View(func(tx *bolt.Tx) error { return f(bucketsOf(tx)) })
	})
}

func (b buckets) standing(p *Probe, s *Standing) (err error) {
	if s.ByEvent, err = b.ownerVia(b.events, bktEvents, p.Event[:]); err != nil {
		return err
	}
	if s.ByIdem, err = b.owner(p.Keys.Idem.Hash[:]); err != nil {
		return err
	}
	if !p.Keys.Edge.IsZero() {
		s.ByEdge, err = b.ownerVia(b.edges, bktEdges, p.Keys.Edge.Hash[:])
	}
	return err
}

// ownerVia finds a row by an index; the zero Owner if the index has no such entry.
func (b buckets) ownerVia(index *bolt.Bucket, name string, key []byte) (Owner, error) {
	hash, err := get(index, name, key)
	if hash == nil || err != nil {
		return Owner{}, err
	}
	o, err := b.owner(hash)
	if err == nil && o.Event.IsZero() {
		err = fmt.Errorf("cannot find the row %x that %s names: %w", hash, name, errDamaged)
	}
	return o, err
}

func (b buckets) owner(hash []byte) (Owner, error) {
	body, err := get(b.rows, bktRows, hash)
	if body == nil || err != nil {
		return Owner{}, err
	}
	r, err := decodeRow(hash, body)
	return Owner{Event: r.Event, Key: r.Keys.Idem, CommittedAt: r.CommittedAt, Agent: r.Agent, Bypassed: slices.Contains(r.Flags, ClaimBypassed)}, err
}

// row returns the row that must be there.
func (b buckets) row(hash []byte) (Row, error) {
	body, err := get(b.rows, bktRows, hash)
	if err != nil {
		return Row{}, err
	}
	if body == nil {
		return Row{}, fmt.Errorf("cannot find row %x: %w", hash, errDamaged)
	}
	return decodeRow(hash, body)
}

func (b buckets) line(event []byte) (Line, error) {
	body, err := get(b.lines, bktLines, event)
	if err != nil {
		return Line{}, err
	}
	if body == nil {
		return Line{}, fmt.Errorf("cannot find line %x: %w", event, errDamaged)
	}
	return decodeLine(event, body)
}

// AppendLines implements Ledger.
func (e *Embedded) AppendLines(ctx context.Context, lines []Line) error {
	for i := range lines {
		if detail := lines[i].Flaw(); detail != "" {
			return fmt.Errorf("cannot append the audit line %s: %s", lines[i].Event, detail)
		}
	}
	err := e.write(ctx, func(b buckets) (bool, error) {
		now, wrote := e.now(), false
		for _, l := range lines {
			if b.lines.Get(l.Event[:]) != nil {
				continue
			}
			l.RecordedAt = now
			if err := b.appendLine(&l); err != nil {
				return false, err
			}
			wrote = true
		}
		return wrote, nil
	})
	if err != nil {
		return fmt.Errorf("cannot append to the audit trail: %w", err)
	}
	return nil
}

func (b buckets) appendLine(l *Line) error {
	if err := put(b.lines, bktLines, l.Event[:], appendLine(nil, l)); err != nil {
		return err
	}
	seq, err := b.appendLog('l', l.Event[:])
	if err != nil || l.Key.IsZero() {
		return err
	}
	return put(b.lineKeys, bktLineKeys, append(l.Key.Hash[:], seq...), slices.Clone(l.Event[:]))
}

// Rows implements Ledger. The span is of the capture times. It ends with what was there when it began, and
// holds no transaction while yield runs.
func (e *Embedded) Rows(ctx context.Context, s Span, yield func(Row) error) error {
	return walk(ctx, e, func(b buckets, kind byte, id []byte) (Row, bool, error) {
		if kind != 'r' {
			return Row{}, false, nil
		}
		r, err := b.row(id)
		return r, s.has(r.CapturedAt), err
	}, yield)
}

// Lines implements Ledger. The span is of the times of decision (Line.At).
func (e *Embedded) Lines(ctx context.Context, s Span, yield func(Line) error) error {
	return walk(ctx, e, func(b buckets, kind byte, id []byte) (l Line, ok bool, err error) {
		if kind == 'r' {
			var r Row
			r, err = b.row(id)
			l = r.Line()
		} else {
			l, err = b.line(id)
		}
		return l, s.has(l.At), err
	}, yield)
}

func (s Span) has(t window.UTC) bool {
	return (s.From == 0 || t >= s.From) && (s.Until == 0 || t < s.Until)
}

// walk pages through the log.
func walk[T any](ctx context.Context, e *Embedded, pick func(b buckets, kind byte, id []byte) (T, bool, error), yield func(T) error) error {
	var found []T
	last := uint64(0) // number of the newest entry when the walk began
	fetch := func(from uint64) (next uint64, err error) {
		found = found[:0]
		next = from
		err = e.read(ctx, func(b buckets) error {
			if last == 0 {
				last = b.log.Sequence()
			}
			c := b.log.Cursor()
			for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, from)); k != nil && next < from+page; k, v = c.Next() {
				seq, id, err := logEntry(k, v)
				if err != nil {
					return err
				}
				if seq > last {
					break
				}
				if seq != next {
					return fmt.Errorf("cannot find entry %d of the log: %w", next, errDamaged)
				}
				next = seq + 1
				if id[0] == logPurged {
					continue
				}
				x, ok, err := pick(b, id[0], id[1:])
				if err != nil {
					return err
				}
				if ok {
					found = append(found, x)
				}
			}
			return nil
		})
		return next, err
	}
	for from := uint64(1); ; {
		next, err := fetch(from)
		if err != nil {
			return fmt.Errorf("cannot read the ledger: %w", err)
		}
		for _, x := range found {
			if err := yield(x); err != nil {
				return err
			}
		}
		if next == from {
			if next <= last {
				return fmt.Errorf("cannot read the ledger: the log ends at %d of %d: %w", next-1, last, errDamaged)
			}
			return nil
		}
		from = next
	}
}

// logEntry returns the number of an entry and its id with the kind in front.
func logEntry(k, v []byte) (uint64, []byte, error) {
	id, err := unseal(bktLog, k, v)
	if err != nil {
		return 0, nil, err
	}
	if len(k) != 8 || !(len(id) == 33 && id[0] == 'r') && !(len(id) == 17 && (id[0] == 'l' || id[0] == logPurged)) {
		return 0, nil, fmt.Errorf("cannot read entry %x of the log: %w", k, errDamaged)
	}
	return binary.BigEndian.Uint64(k), id, nil
}

// Find implements Ledger.
func (e *Embedded) Find(ctx context.Context, prefix string, limit int) ([]Row, error) {
	lowest, err := hex.DecodeString(prefix + "0"[:len(prefix)%2])
	if err != nil || prefix == "" || len(prefix) > 64 {
		return nil, fmt.Errorf("cannot search for %q: write 1 to 64 hexadecimal digits of the key", prefix)
	}
	whole, odd := lowest, false
	if odd = len(prefix)%2 == 1; odd {
		whole = lowest[:len(lowest)-1]
	}
	var rows []Row
	err = e.read(ctx, func(b buckets) error {
		c := b.rows.Cursor()
		for k, v := c.Seek(lowest); k != nil && len(rows) < limit; k, v = c.Next() {
			if !bytes.HasPrefix(k, whole) || odd && (len(k) == len(whole) || k[len(whole)]>>4 != lowest[len(whole)]>>4) {
				return nil
			}
			body, err := unseal(bktRows, k, v)
			if err != nil {
				return err
			}
			r, err := decodeRow(k, body)
			if err != nil {
				return err
			}
			rows = append(rows, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot search the ledger: %w", err)
	}
	return rows, nil
}

// LinesOf implements Ledger: the row's own line first, then the others in the order of their commit.
func (e *Embedded) LinesOf(ctx context.Context, key idem.Key) ([]Line, error) {
	if key.Kind != idem.Idem {
		return nil, errors.New("cannot look up lines by this key: give an idempotency key, scan:idem:")
	}
	var lines []Line
	err := e.read(ctx, func(b buckets) error {
		body, err := get(b.rows, bktRows, key.Hash[:])
		if err != nil {
			return err
		}
		if body != nil {
			r, err := decodeRow(key.Hash[:], body)
			if err != nil {
				return err
			}
			lines = append(lines, r.Line())
		}
		c := b.lineKeys.Cursor()
		for k, v := c.Seek(key.Hash[:]); bytes.HasPrefix(k, key.Hash[:]); k, v = c.Next() {
			event, err := unseal(bktLineKeys, k, v)
			if err != nil {
				return err
			}
			l, err := b.line(event)
			if err != nil {
				return err
			}
			lines = append(lines, l)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look up the audit trail: %w", err)
	}
	return lines, nil
}

// Ping implements Ledger.
func (e *Embedded) Ping(ctx context.Context) error {
	if err := e.read(ctx, func(buckets) error { return nil }); err != nil {
		return fmt.Errorf("cannot reach the ledger: %w", err)
	}
	return nil
}

// Count implements Ledger.
func (e *Embedded) Count(ctx context.Context) (n int64, err error) {
	err = e.read(ctx, func(b buckets) error {
		n = int64(b.rows.Sequence())
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("cannot count the ledger: %w", err)
	}
	return n, nil
}

// Line is the row's own audit line.
func (r *Row) Line() Line {
	l := Line{Event: r.Event, Agent: r.Agent, At: r.CommittedAt, Key: r.Keys.Idem, Outcome: Committed,
		Scanner: r.Scanner, Type: r.Type, CapturedAt: r.CapturedAt, RecordedAt: r.CommittedAt}
	if slices.Contains(r.Flags, ClaimBypassed) {
		l.Reason = ClaimBypassed
	}
	return l
}
