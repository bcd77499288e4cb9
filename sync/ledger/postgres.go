package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"scanonce/idem"
	"scanonce/internal/pg"
	"scanonce/window"
)

const (
	statementRows = 1000 // at most, in a statement
	conflictTries = 12   // of a call, after deadlocks
	conflictWait  = 10 * time.Millisecond
	conflictMost  = 500 * time.Millisecond
)

// PostgresConfig says how to reach the ledger's database.
type PostgresConfig = pg.Config

// ConfigError is an error that stays until a person changes something: credentials, schema, certificates.
type ConfigError = pg.ConfigError

// Postgres is the Ledger in PostgreSQL, common to all agents. Every statement is a transaction of its own,
// READ COMMITTED, durable when its reply is complete.
type Postgres struct {
	conns    *pg.Conns
	retries  atomic.Int64
	poisoned atomic.Int64
}

// PostgresStats are figures since the opening, but for Open.
type PostgresStats struct {
	Open     int   // sockets, those included that are being closed
	Dials    int64 // connections tried
	Retries  int64 // statements sent again after a deadlock
	Poisoned int64 // rows that the server refused
}

// OpenPostgres makes a ledger of the database that cfg names. It does not connect: an unreachable server, a
// wrong password or a missing schema is told by the calls, the latter two as a ConfigError, and the calls
// work as soon as that is mended. The error is Validate's.
func OpenPostgres(cfg PostgresConfig) (*Postgres, error) {
	conns, err := pg.Open(cfg)
	if err != nil {
		return nil, err
	}
	return &Postgres{conns: conns}, nil
}

// Stats returns the figures.
func (p *Postgres) Stats() PostgresStats {
	s := p.conns.Stats()
	return PostgresStats{Open: s.Open, Dials: s.Dials, Retries: p.retries.Load(), Poisoned: p.poisoned.Load()}
}

// Close cuts short the calls under way, waits for them, and closes the connections.
func (p *Postgres) Close() error {
	p.conns.Close()
	return nil
}

// Clock returns the server's time now and the largest error of it: half of the round trip that it took to
// ask.
func (p *Postgres) Clock(ctx context.Context) (now window.UTC, within time.Duration, err error) {
	err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		before := p.conns.Boot()
		r, err := c.PgConn().Exec(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").ReadAll()
		if err != nil {
			return err
		}
		within = (p.conns.Boot() - before) / 2
		micro, err := strconv.ParseInt(string(r[0].Rows[0][0]), 10, 64)
		now = window.FromTime(time.UnixMicro(micro).Add(within))
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("cannot ask for the ledger's time: %w", err)
	}
	return now, within, nil
}

// Fence returns once all rows that are visible now are as durable as acknowledged ones. They need not be: where
// somebody gave up waiting for a commit, or the server was restarted in it, the row is seen, and no synchronous
// standby may have it. A commit behind them waits for the standby, and so for them.
func (p *Postgres) Fence(ctx context.Context) error {
	err := p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.PgConn().Exec(ctx, "SELECT pg_logical_emit_message(true, 'scanonce', '')").ReadAll()
		if e := pg.ServerError(err); e != nil && e.Code == "42883" { // another engine, which has no such standby
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot make sure of the ledger's rows: %w", err)
	}
	return nil
}

// insertSQL takes arrays, one a column, and tells the rows that it wrote. Without a target, ON CONFLICT
// covers all three keys. Empty text stands for null where the column allows it.
const insertSQL = `INSERT INTO scan_ledger (idem_key, edge_key, event_id, facility_uuid, scanner_id, ndc, lot, quantity, scan_type,
	window_index, extras, gtin, hibc, serial, ndc11, ndc12, expiry, pkg_level, flags, rx_token, agent_id, captured_at, clock_quality)
SELECT idem_key, edge_key, event_id, facility_uuid, scanner_id, ndc, lot, quantity, scan_type,
	window_index, extras, nullif(gtin, ''), nullif(hibc, ''), nullif(serial, ''), nullif(ndc11, ''), nullif(ndc12, ''),
	nullif(expiry, '')::date, nullif(pkg_level, -1), flags::text[], nullif(rx_token, ''), agent_id, captured_at, clock_quality
FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::text[],
	$10::bigint[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::smallint[],
	$19::text[], $20::text[], $21::text[], $22::timestamptz[], $23::text[])
	AS t (idem_key, edge_key, event_id, facility_uuid, scanner_id, ndc, lot, quantity, scan_type,
	window_index, extras, gtin, hibc, serial, ndc11, ndc12, expiry, pkg_level, flags, rx_token, agent_id, captured_at, clock_quality)
ON CONFLICT DO NOTHING
RETURNING event_id, committed_at`

// bytesOrNull is a key's hash; nil, which is null, for no key.
func bytesOrNull(k *idem.Key) []byte {
	if k.IsZero() {
		return nil
	}
	return k.Hash[:]
}

func rowArrays(a *arrays, rows []*Row) {
	hashes(a, rows, func(r *Row) []byte { return r.Keys.Idem.Hash[:] })
	hashes(a, rows, func(r *Row) []byte { return bytesOrNull(&r.Keys.Edge) })
	uuids(a, rows, func(r *Row) []byte { return r.Event[:] })
	texts(a, rows, func(r *Row) string { return r.Facility })
	texts(a, rows, func(r *Row) string { return r.Scanner })
	texts(a, rows, func(r *Row) string { return r.NDC })
	texts(a, rows, func(r *Row) string { return r.Lot })
	int4s(a, rows, func(r *Row) int { return r.Quantity })
	texts(a, rows, func(r *Row) string { return r.Type.String() })
	int8s(a, rows, func(r *Row) int64 { return int64(r.Keys.Window) })
	texts(a, rows, func(r *Row) string { return r.Extras })
	texts(a, rows, func(r *Row) string { return r.GTIN })
	texts(a, rows, func(r *Row) string { return r.HIBC })
	texts(a, rows, func(r *Row) string { return r.Serial })
	texts(a, rows, func(r *Row) string { return r.NDC11 })
	texts(a, rows, func(r *Row) string { return r.NDC12 })
	texts(a, rows, func(r *Row) string { return r.Expiry })
	int2s(a, rows, func(r *Row) int { return r.PkgLevel })
	texts(a, rows, func(r *Row) string { return arrayText(r.Flags) }) // unnest would flatten an array of arrays
	texts(a, rows, func(r *Row) string { return r.RxToken })
	texts(a, rows, func(r *Row) string { return r.Agent })
	instants(a, rows, false, func(r *Row) window.UTC { return r.CapturedAt })
	texts(a, rows, func(r *Row) string { return r.Quality.String() })
}

// Insert implements Ledger, with a statement for each 1000 rows at most.
func (p *Postgres) Insert(ctx context.Context, rows []Row) (Inserted, error) {
	var in Inserted
	good := make([]*Row, 0, len(rows))
	for i := range rows {
		if detail := rows[i].Flaw(); detail != "" {
			in.Poison = append(in.Poison, Poison{Event: rows[i].Event, Detail: detail})
			continue
		}
		good = append(good, &rows[i])
	}
	// In one order for all, two inserters of the same keys wait for each other instead of deadlocking.
	slices.SortStableFunc(good, func(a, b *Row) int { return bytes.Compare(a.Keys.Idem.Hash[:], b.Keys.Idem.Hash[:]) })
	err := write(ctx, p, good, func(ctx context.Context, c *pgx.Conn, rows []*Row) error {
		receipts, err := insertRows(ctx, c, rows)
		in.Receipts = append(in.Receipts, receipts...)
		return err
	}, func(r *Row, why error) {
		in.Poison = append(in.Poison, Poison{Event: r.Event, Detail: why.Error()})
	})
	if err != nil {
		return Inserted{}, fmt.Errorf("cannot insert into the ledger: %w", err)
	}
	return in, nil
}

// insertRows returns receipts only once the reply is complete, and with it the commit.
func insertRows(ctx context.Context, c *pgx.Conn, rows []*Row) ([]Receipt, error) {
	receipts := make([]Receipt, 0, len(rows))
	err := send(ctx, c, insertSQL, func(a *arrays) { rowArrays(a, rows) }, func(v [][]byte) {
		receipts = append(receipts, Receipt{Event: idem.EventID(v[0]), CommittedAt: instant(v[1])})
	})
	if err != nil {
		return nil, err
	}
	return receipts, nil
}

// write sends the items in batches. A batch that met a deadlock is sent again in halves after a while, one
// with a value that the server refuses is halved until the item is found; that goes to refused, if there is
// one.
func write[T any](ctx context.Context, p *Postgres, items []*T, send func(context.Context, *pgx.Conn, []*T) error, refused func(*T, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var batches [][]*T // the next one last
	for chunk := range slices.Chunk(items, statementRows) {
		batches = append(batches, chunk)
	}
	slices.Reverse(batches)
	for tries := 0; len(batches) > 0; {
		b := batches[len(batches)-1]
		batches = batches[:len(batches)-1]
		var conflict, refusal bool
		err := p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
			err := send(ctx, c, b)
			conflict, refusal = kindOf(err)
			return err
		})
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return err
		case refusal && refused != nil:
			if len(b) == 1 {
				p.poisoned.Add(1)
				refused(b[0], err)
				continue
			}
		case conflict && tries < conflictTries:
			tries++
			p.retries.Add(1)
			if err := pg.Pause(ctx, min(conflictWait<<tries, conflictMost)); err != nil {
				return err
			}
		default:
			return err
		}
		if half := len(b) / 2; half > 0 {
			batches = append(batches, b[half:], b[:half])
		} else {
			batches = append(batches, b)
		}
	}
	return nil
}

// kindOf sorts a server's error: the statement met others and can be sent again, or a value can never be
// stored. What pgx says about whether a retry is safe is of no use: it says so after a lost COMMIT reply.
func kindOf(err error) (conflict, refusal bool) {
	e := pg.ServerError(err)
	if e == nil {
		return false, false
	}
	switch {
	case e.Code == "40P01", e.Code == "40001":
		return true, false
	case strings.HasPrefix(e.Code, "22"), strings.HasPrefix(e.Code, "23"):
		return false, true
	}
	return false, false
}

const ownerSQL = `event_id, idem_key, committed_at, agent_id, '` + ClaimBypassed + `' = ANY (flags) FROM scan_ledger`

// standingSQL looks up each kind of key by its index. OFFSET 0 keeps the planner from making a join of it,
// which for a table that it believes empty would read the whole table.
const standingSQL = `
SELECT n, 1, f.* FROM unnest($1::uuid[]) WITH ORDINALITY AS p (v, n)
  CROSS JOIN LATERAL (SELECT ` + ownerSQL + ` WHERE event_id = p.v OFFSET 0) AS f
UNION ALL
SELECT n, 2, f.* FROM unnest($2::bytea[]) WITH ORDINALITY AS p (v, n)
  CROSS JOIN LATERAL (SELECT ` + ownerSQL + ` WHERE idem_key = p.v OFFSET 0) AS f
UNION ALL
SELECT n, 3, f.* FROM unnest($3::bytea[]) WITH ORDINALITY AS p (v, n)
  CROSS JOIN LATERAL (SELECT ` + ownerSQL + ` WHERE edge_key = p.v OFFSET 0) AS f`

// Standing implements Ledger: a statement for each 1000 probes, each with a snapshot of its own.
func (p *Postgres) Standing(ctx context.Context, probes []Probe) ([]Standing, error) {
	out := make([]Standing, len(probes))
	err := ctx.Err()
	for from := 0; from < len(probes) && err == nil; from += statementRows {
		until := min(from+statementRows, len(probes))
		err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
			return findOwners(ctx, c, probes[from:until], out[from:until])
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look up the ledger: %w", err)
	}
	return out, nil
}

func findOwners(ctx context.Context, c *pgx.Conn, probes []Probe, out []Standing) error {
	all := make([]*Probe, len(probes))
	for i := range probes {
		all[i] = &probes[i]
	}
	return send(ctx, c, standingSQL, func(a *arrays) {
		uuids(a, all, func(p *Probe) []byte { return p.Event[:] })
		hashes(a, all, func(p *Probe) []byte { return bytesOrNull(&p.Keys.Idem) })
		hashes(a, all, func(p *Probe) []byte { return bytesOrNull(&p.Keys.Edge) })
	}, func(v [][]byte) {
		o := Owner{Event: idem.EventID(v[2]), Key: idemKey(v[3]), CommittedAt: instant(v[4]), Agent: string(v[5]), Bypassed: v[6][0] == 1}
		switch s := &out[binary.BigEndian.Uint64(v[0])-1]; binary.BigEndian.Uint32(v[1]) {
		case 1:
			s.ByEvent = o
		case 2:
			s.ByIdem = o
		default:
			s.ByEdge = o
		}
	})
}

const appendSQL = `INSERT INTO scan_audit_line (event_id, agent_id, at, key, ref, outcome, reason, winner_event_id, scanner_id, scan_type,
	captured_at, ttl_ms, length, symbology)
SELECT event_id, agent_id, at, nullif(key, ''), nullif(ref, ''), outcome, nullif(reason, ''), winner_event_id, nullif(scanner_id, ''),
	nullif(scan_type, ''), captured_at, nullif(ttl_ms, 0), nullif(length, 0), nullif(symbology, '')
FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[],
	$10::text[], $11::timestamptz[], $12::int[], $13::int[], $14::text[])
	AS t (event_id, agent_id, at, key, ref, outcome, reason, winner_event_id, scanner_id, scan_type, captured_at, ttl_ms, length, symbology)
ON CONFLICT DO NOTHING`

func lineArrays(a *arrays, lines []*Line) {
	uuids(a, lines, func(l *Line) []byte { return l.Event[:] })
	texts(a, lines, func(l *Line) string { return l.Agent })
	instants(a, lines, false, func(l *Line) window.UTC { return l.At })
	texts(a, lines, func(l *Line) string { return l.Key.String() })
	texts(a, lines, func(l *Line) string {
		if l.Ref.IsZero() {
			return ""
		}
		return l.Ref.String()
	})
	texts(a, lines, func(l *Line) string { return string(l.Outcome) })
	texts(a, lines, func(l *Line) string { return l.Reason })
	uuids(a, lines, func(l *Line) []byte {
		if l.Winner.IsZero() {
			return nil
		}
		return l.Winner[:]
	})
	texts(a, lines, func(l *Line) string { return l.Scanner })
	texts(a, lines, func(l *Line) string {
		if l.Type == 0 {
			return ""
		}
		return l.Type.String()
	})
	instants(a, lines, true, func(l *Line) window.UTC { return l.CapturedAt })
	int4s(a, lines, func(l *Line) int { return l.TTL })
	int4s(a, lines, func(l *Line) int { return l.Length })
	texts(a, lines, func(l *Line) string { return l.Symbology })
}

// AppendLines implements Ledger.
func (p *Postgres) AppendLines(ctx context.Context, lines []Line) error {
	all := make([]*Line, len(lines))
	for i := range lines {
		if detail := lines[i].Flaw(); detail != "" {
			return fmt.Errorf("cannot append the audit line %s: %s", lines[i].Event, detail)
		}
		all[i] = &lines[i]
	}
	slices.SortStableFunc(all, func(a, b *Line) int { return bytes.Compare(a.Event[:], b.Event[:]) })
	err := write(ctx, p, all, func(ctx context.Context, c *pgx.Conn, lines []*Line) error {
		return send(ctx, c, appendSQL, func(a *arrays) { lineArrays(a, lines) }, func([][]byte) {})
	}, nil)
	if err != nil {
		return fmt.Errorf("cannot append to the audit trail: %w", err)
	}
	return nil
}

const rowSQL = `SELECT idem_key, edge_key, event_id, facility_uuid, scanner_id, ndc, lot, quantity, scan_type, window_index, extras,
	coalesce(gtin, ''), coalesce(hibc, ''), coalesce(serial, ''), coalesce(ndc11, ''), coalesce(ndc12, ''),
	coalesce(to_char(expiry, 'YYYY-MM-DD'), ''), coalesce(pkg_level, -1), flags, coalesce(rx_token, ''), agent_id, captured_at,
	clock_quality, committed_at FROM scan_ledger`

func scanRow(res pgx.CollectableRow) (r Row, err error) {
	var key, edge []byte
	var event [16]byte
	var scanType, quality string
	var captured, committed time.Time
	err = res.Scan(&key, &edge, &event, &r.Facility, &r.Scanner, &r.NDC, &r.Lot, &r.Quantity, &scanType, (*int64)(&r.Keys.Window), &r.Extras,
		&r.GTIN, &r.HIBC, &r.Serial, &r.NDC11, &r.NDC12, &r.Expiry, &r.PkgLevel, &r.Flags, &r.RxToken, &r.Agent, &captured, &quality, &committed)
	if err != nil {
		return r, err
	}
	r.Keys.Idem, r.Event = idemKey(key), event
	if edge != nil {
		r.Keys.Edge.Kind = idem.Edge
		copy(r.Keys.Edge.Hash[:], edge)
	}
	if len(r.Flags) == 0 {
		r.Flags = nil
	}
	r.CapturedAt, r.CommittedAt = window.FromTime(captured), window.FromTime(committed)
	if r.Type, err = window.ParseScanType(scanType); err != nil {
		return r, err
	}
	for r.Quality = 0; r.Quality.String() != quality; r.Quality++ {
		if r.Quality > window.Device {
			return r, fmt.Errorf("a row's clock quality %q is unknown: install a newer scanonce", quality)
		}
	}
	return r, nil
}

const lineColumnsSQL = `SELECT event_id, agent_id, at, coalesce(key, ''), coalesce(ref, ''), outcome, coalesce(reason, ''), winner_event_id,
	coalesce(scanner_id, ''), coalesce(scan_type, ''), captured_at, coalesce(ttl_ms, 0), coalesce(length, 0), coalesce(symbology, ''), recorded_at`

func scanLine(res pgx.CollectableRow) (l Line, err error) {
	var event [16]byte
	var winner *[16]byte
	var key, ref, scanType string
	var at, recorded time.Time
	var captured *time.Time
	err = res.Scan(&event, &l.Agent, &at, &key, &ref, (*string)(&l.Outcome), &l.Reason, &winner, &l.Scanner, &scanType, &captured,
		&l.TTL, &l.Length, &l.Symbology, &recorded)
	if err != nil {
		return l, err
	}
	l.Event, l.At, l.RecordedAt = event, window.FromTime(at), window.FromTime(recorded)
	if winner != nil {
		l.Winner = *winner
	}
	if captured != nil {
		l.CapturedAt = window.FromTime(*captured)
	}
	if key != "" {
		l.Key, err = idem.ParseKey(key)
	}
	if ref != "" && err == nil {
		l.Ref, err = idem.ParseEventID(ref)
	}
	if scanType != "" && err == nil {
		l.Type, err = window.ParseScanType(scanType)
	}
	return l, err
}

// bounds returns the span's limits, infinite where there are none.
func (s Span) bounds() (from, until string) {
	limit := func(t window.UTC, none string) string {
		if t == 0 {
			return none
		}
		return min(max(t, earliest), latest).Time().Format("2006-01-02 15:04:05.000+00")
	}
	return limit(s.From, "-infinity"), limit(s.Until, "infinity")
}

// stream yields what a query finds as it comes. Its snapshot and its connection live until the end.
func stream[T any](ctx context.Context, p *Postgres, sql string, scan func(pgx.CollectableRow) (T, error), yield func(T) error, args ...any) error {
	var own error // the consumer's, handed back as it is
	err := p.conns.Apart(ctx, func(ctx context.Context, c *pgx.Conn) error {
		res, err := c.Query(ctx, sql, args...)
		if err != nil {
			return pg.Explain(ctx, err, false)
		}
		defer res.Close()
		for res.Next() {
			x, err := scan(res)
			if err != nil {
				return err
			}
			if own = yield(x); own != nil {
				// The rest is not worth the wait.
				c.PgConn().Conn().Close()
				return own
			}
		}
		if err := res.Err(); err != nil {
			return pg.Explain(ctx, err, false)
		}
		return nil
	})
	if err != nil && own == nil {
		return fmt.Errorf("cannot read the ledger: %w", err)
	}
	return err
}

// Rows implements Ledger. The span is of the capture times. It holds a connection while yield runs, and
// ends with what was there when it began.
func (p *Postgres) Rows(ctx context.Context, s Span, yield func(Row) error) error {
	from, until := s.bounds()
	return stream(ctx, p, rowSQL+` WHERE captured_at >= $1::text::timestamptz AND captured_at < $2::text::timestamptz ORDER BY committed_at, event_id`, scanRow, yield, from, until)
}

// Lines implements Ledger. The span is of the times of decision (Line.At).
func (p *Postgres) Lines(ctx context.Context, s Span, yield func(Line) error) error {
	from, until := s.bounds()
	return stream(ctx, p, lineColumnsSQL+` FROM scan_audit WHERE at >= $1::text::timestamptz AND at < $2::text::timestamptz ORDER BY recorded_at, event_id`, scanLine, yield, from, until)
}

// collect runs a query of few rows.
func collect[T any](ctx context.Context, c *pgx.Conn, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	res, err := c.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(res, scan)
}

// Find implements Ledger.
func (p *Postgres) Find(ctx context.Context, prefix string, limit int) (rows []Row, err error) {
	const digits = 64
	if prefix == "" || len(prefix) > digits {
		return nil, errPrefix(prefix)
	}
	lowest, err := hex.DecodeString(prefix + strings.Repeat("0", digits-len(prefix)))
	if err != nil {
		return nil, errPrefix(prefix)
	}
	highest, err := hex.DecodeString(prefix + strings.Repeat("f", digits-len(prefix)))
	if err != nil {
		return nil, errPrefix(prefix)
	}
	err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err = collect(ctx, c, scanRow, rowSQL+` WHERE idem_key BETWEEN $1 AND $2 ORDER BY idem_key LIMIT $3`, lowest, highest, max(limit, 0))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot search the ledger: %w", err)
	}
	return rows, nil
}

func errPrefix(prefix string) error {
	return fmt.Errorf("cannot search for %q: write 1 to 64 hexadecimal digits of the key", prefix)
}

// LinesOf implements Ledger: the row's own line first, then the others in the order of their commit.
func (p *Postgres) LinesOf(ctx context.Context, key idem.Key) (lines []Line, err error) {
	if key.Kind != idem.Idem {
		return nil, errors.New("cannot look up lines by this key: give an idempotency key, scan:idem:")
	}
	err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		// Not by way of the view: there, the key of a row has no index.
		rows, err := collect(ctx, c, scanRow, rowSQL+` WHERE idem_key = $1`, key.Hash[:])
		if err != nil {
			return err
		}
		lines = nil
		for i := range rows {
			lines = append(lines, rows[i].Line())
		}
		others, err := collect(ctx, c, scanLine, lineColumnsSQL+` FROM scan_audit_line WHERE key = $1 ORDER BY recorded_at, event_id`, key.String())
		lines = append(lines, others...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look up the audit trail: %w", err)
	}
	return lines, nil
}

// Ping implements Ledger: the connection's setup has looked at the schema, and this at the right to read.
func (p *Postgres) Ping(ctx context.Context) error {
	err := p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT 1 FROM scan_ledger LIMIT 1")
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot reach the ledger: %w", err)
	}
	return nil
}

// Count implements Ledger.
func (p *Postgres) Count(ctx context.Context) (n int64, err error) {
	err = p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT count(*) FROM scan_ledger").Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("cannot count the ledger: %w", err)
	}
	return n, nil
}
