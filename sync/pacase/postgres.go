package pacase

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"scanonce/internal/pg"
	"scanonce/window"
)

const uniqueViolation = "23505" // SQLSTATE

const (
	conflictTries = 12 // of a call, after it met others
	conflictWait  = 10 * time.Millisecond
	conflictMost  = 500 * time.Millisecond
)

// PostgresConfig says how to reach the cases' database.
type PostgresConfig = pg.Config

// Postgres is the Store in PostgreSQL, common to all agents and whoever decides the cases. Each call is one
// transaction, READ COMMITTED, sent and answered in one round trip.
type Postgres struct {
	conns   *pg.Conns
	retries atomic.Int64
}

// PostgresStats are figures since the opening, but for Open.
type PostgresStats struct {
	Open    int   // sockets, those included that are being closed
	Dials   int64 // connections tried
	Retries int64 // transactions sent again, as they met a deadlock or a writer that takes no lock
}

// OpenPostgres makes a store of the database that cfg names. It does not connect: what is wrong there is told
// by the calls, as a ConfigError where a person must mend it. The error is Validate's.
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
	return PostgresStats{Open: s.Open, Dials: s.Dials, Retries: p.retries.Load()}
}

// Close cuts short the calls under way, waits for them, and closes the connections.
func (p *Postgres) Close() error {
	p.conns.Close()
	return nil
}

// The statements of a transaction go out together. Each has a snapshot of its own, so that what stands behind a
// lock sees what the lock's last holder has committed: a lock in the same statement would come too late.
const (
	// lockSQL keeps all others from opening a case of the same subject until the commit.
	lockSQL = `SELECT pg_advisory_xact_lock(hashtextextended($1, 0))`

	// lockCaseSQL is the same for the subject of a case, whose member and drug never change.
	lockCaseSQL = `SELECT pg_advisory_xact_lock(hashtextextended(
	replace(replace(member_token, '\', '\\'), '|', '\p') || '|' || replace(replace(gpi, '\', '\\'), '|', '\p'), 0))
FROM pa_cases WHERE case_id = ` + resolveSQL

	// resolveSQL is the id of the case that $1 leads to. Whoever made a case without us gave it no reference.
	resolveSQL = `coalesce((SELECT case_id FROM pa_ref WHERE ref_id = $1), $1)`

	openSQL = `state IN ('PENDING', 'IN_REVIEW', 'APPEALED')`

	caseSQL = `c.case_id, c.member_token, c.gpi, c.request_window, c.state, c.version, c.created_by, c.last_op_id, c.created_at, c.updated_at`

	// pendSQL decides and writes in one statement: $1 event, $2 derived id, $3 member, $4 drug, $5 window.
	pendSQL = `
WITH known AS MATERIALIZED (
  SELECT r.ref_id, r.case_id, p.created FROM pa_pend p JOIN pa_ref r USING (ref_id) WHERE p.event_id = $1
), met AS MATERIALIZED (
  SELECT case_id FROM (
    SELECT 1 AS n, case_id FROM pa_ref WHERE ref_id = $2
    UNION ALL
    SELECT 2, case_id FROM pa_cases WHERE case_id = $2
    UNION ALL
    SELECT 3, case_id FROM pa_cases WHERE member_token = $3 AND gpi = $4 AND ` + openSQL + `
  ) AS all_met WHERE NOT EXISTS (SELECT FROM known) ORDER BY n LIMIT 1
), made AS (
  INSERT INTO pa_cases (case_id, member_token, gpi, request_window, state, created_by, last_op_id)
  SELECT $2, $3, $4, $5, 'PENDING', $1, $1 WHERE NOT EXISTS (SELECT FROM known) AND NOT EXISTS (SELECT FROM met)
  RETURNING *
), new_ref AS (
  INSERT INTO pa_ref (ref_id, case_id)
  SELECT $2, case_id FROM (SELECT case_id FROM met UNION ALL SELECT case_id FROM made UNION ALL
    SELECT c.case_id FROM known CROSS JOIN LATERAL (SELECT * FROM pa_cases WHERE case_id = known.case_id OFFSET 0) AS c
    WHERE c.member_token = $3 AND c.gpi = $4 AND NOT EXISTS (SELECT FROM pa_cases WHERE case_id = $2)
  ) AS target
  WHERE NOT EXISTS (SELECT FROM pa_ref WHERE ref_id = $2)
), new_pend AS (
  INSERT INTO pa_pend (event_id, ref_id, created)
  SELECT $1, $2, EXISTS (SELECT FROM made) WHERE NOT EXISTS (SELECT FROM known)
)
SELECT known.ref_id, known.created, ` + caseSQL + ` FROM known CROSS JOIN LATERAL (SELECT * FROM pa_cases WHERE case_id = known.case_id OFFSET 0) AS c
UNION ALL
SELECT $2, false, ` + caseSQL + ` FROM met CROSS JOIN LATERAL (SELECT * FROM pa_cases WHERE case_id = met.case_id OFFSET 0) AS c
UNION ALL
SELECT $2, true, ` + caseSQL + ` FROM made AS c`

	// currentSQL holds the case until the commit, so that what it says is what the move is decided on.
	currentSQL = `SELECT ` + caseSQL + ` FROM pa_cases c WHERE case_id = ` + resolveSQL + ` FOR NO KEY UPDATE`

	// otherSQL finds an open case of the same subject beside the case.
	otherSQL = `SELECT ` + caseSQL + ` FROM pa_cases c JOIN pa_cases own USING (member_token, gpi)
WHERE own.case_id = ` + resolveSQL + ` AND c.case_id <> own.case_id AND c.` + openSQL

	// moveSQL: $2 state, $3 operation, $4 expected version, $5 states that lead to it.
	moveSQL = `UPDATE pa_cases c SET state = $2, version = version + 1, last_op_id = $3, updated_at = now()
WHERE case_id = ` + resolveSQL + ` AND version = $4 AND state = ANY ($5::text[]) AND NOT EXISTS (
  SELECT FROM pa_cases o WHERE o.member_token = c.member_token AND o.gpi = c.gpi AND o.case_id <> c.case_id AND o.` + openSQL + `)
RETURNING ` + caseSQL

	// fenceSQL makes a transaction that only saw rows wait for the synchronous standby like one that wrote: a row is
	// seen as well where somebody gave up waiting for its commit.
	fenceSQL = `SELECT pg_logical_emit_message(true, 'scanonce', '')`

	getSQL = `SELECT ` + caseSQL + ` FROM pa_cases c WHERE case_id = ` + resolveSQL
)

// fields are where the columns of caseSQL go.
type fields struct {
	c                Case
	state            string
	created, updated time.Time
}

func (f *fields) scan(row pgx.Row, before ...any) (Case, error) {
	c := &f.c
	err := row.Scan(append(before, &c.ID, &c.MemberToken, &c.GPI, &c.Window, &f.state, &c.Version,
		(*[16]byte)(&c.CreatedBy), (*[16]byte)(&c.LastOp), &f.created, &f.updated)...)
	if err != nil {
		return Case{}, err
	}
	c.CreatedAt, c.UpdatedAt = window.FromTime(f.created), window.FromTime(f.updated)
	c.State, err = ParseState(f.state)
	return *c, err
}

// scanCase returns nil if there is no row.
func scanCase(row pgx.Row) (*Case, error) {
	c, err := new(fields).scan(row)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &c, nil
}

// transact sends the statements that queue gives as one transaction, again if it met another in a way that a
// lock would have prevented. read takes the results in order; what it has read counts only when transact returns
// nil, as the commit is the end of the reply.
func (p *Postgres) transact(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	for tries := 0; ; tries++ {
		var conflict bool
		err := p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
			// Without BEGIN: all that is sent up to one Sync is one transaction. A batch belongs to the
			// connection that has prepared its statements.
			b := &pgx.Batch{}
			queue(b)
			b.Queue(fenceSQL)
			res := c.SendBatch(ctx, b)
			err := read(res)
			if end := res.Close(); err == nil {
				err = end
			}
			conflict = isConflict(err)
			return err
		})
		if err == nil || !conflict || tries == conflictTries {
			return err
		}
		p.retries.Add(1)
		if err := pg.Pause(ctx, min(conflictWait<<tries, conflictMost)); err != nil {
			return err
		}
	}
}

// refused makes a request's own error of what the server refuses at each attempt. One that met others until its tries
// were used up is none of these.
func refused(err error) error {
	var r *pg.RefusedError
	if !errors.As(err, &r) || r.Code == uniqueViolation {
		return err
	}
	return &RequestError{"request", "is refused by the database (" + strings.TrimSpace(r.Code+" "+r.Constraint) + ")",
		"see which rule of the database it meets; once that is mended, ask again"}
}

// isConflict says that the server took nothing of the transaction because of another one. What pgx says about
// whether a retry is safe is of no use: it says so after a lost COMMIT reply.
func isConflict(err error) bool {
	e := pg.ServerError(err)
	return e != nil && (e.Code == "40P01" || e.Code == "40001" || e.Code == uniqueViolation)
}

// Pend implements Store.
func (p *Postgres) Pend(ctx context.Context, r Pend) (Pended, error) {
	if err := r.check(); err != nil {
		return Pended{}, err
	}
	var out Pended
	err := p.transact(ctx, func(b *pgx.Batch) {
		b.Queue(lockSQL, r.subject())
		b.Queue(pendSQL, [16]byte(r.Event), r.DerivedID(), r.MemberToken, r.GPI, r.Window)
	}, func(res pgx.BatchResults) (err error) {
		if _, err := res.Exec(); err != nil {
			return err
		}
		out = Pended{}
		out.Case, err = new(fields).scan(res.QueryRow(), &out.RequestedID, &out.Created)
		return err
	})
	if err != nil {
		return Pended{}, fmt.Errorf("cannot pend the prior authorization: %w", refused(err))
	}
	if out.Case.MemberToken != r.MemberToken || out.Case.GPI != r.GPI {
		return Pended{}, errReused()
	}
	return out, nil
}

// Transition implements Store.
func (p *Postgres) Transition(ctx context.Context, t Transition) (Transitioned, error) {
	if err := t.Validate(); err != nil {
		return Transitioned{}, err
	}
	var from []string
	for _, s := range t.To.before() {
		from = append(from, s.String())
	}
	var current, other, moved *Case
	err := p.transact(ctx, func(b *pgx.Batch) {
		if t.To.Open() {
			b.Queue(lockCaseSQL, t.ID)
		}
		b.Queue(currentSQL, t.ID)
		b.Queue(otherSQL, t.ID)
		b.Queue(moveSQL, t.ID, t.To.String(), [16]byte(t.Op), t.Expected, from)
	}, func(res pgx.BatchResults) (err error) {
		if t.To.Open() {
			_, err = res.Exec()
		}
		for _, c := range []**Case{&current, &other, &moved} {
			if err == nil {
				*c, err = scanCase(res.QueryRow())
			}
		}
		return err
	})
	switch {
	case err != nil:
		return Transitioned{}, fmt.Errorf("cannot move the case: %w", refused(err))
	case current == nil:
		return Missing(), nil
	case moved != nil:
		return Moved(*moved), nil
	}
	return current.refusal(&t, other), nil
}

// Get implements Store.
func (p *Postgres) Get(ctx context.Context, id string) (Case, bool, error) {
	if !isID(id) {
		return Case{}, false, nil
	}
	var c *Case
	err := p.conns.With(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		c, err = scanCase(conn.QueryRow(ctx, getSQL, id))
		return err
	})
	if err != nil {
		return Case{}, false, fmt.Errorf("cannot read the case: %w", err)
	}
	if c == nil {
		return Case{}, false, nil
	}
	return *c, true, nil
}

// Ping implements Store: the connection's setup has looked at the schema, and this at the right to read.
func (p *Postgres) Ping(ctx context.Context) error {
	err := p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "SELECT 1 FROM pa_cases LIMIT 1")
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot reach the prior-authorization cases: %w", err)
	}
	return nil
}
