package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// movements makes the baselines' rows, one new movement a call: what the agent makes of a label, without
// reading one.
type movements struct {
	n      uint64
	now    func() window.UTC
	policy window.Policy
}

func (m *movements) next() ledger.Row {
	m.n++
	serial := "BASE" + strconv.FormatUint(m.n, 10)
	id := idem.Identity{Facility: facility, Scanner: scannerID, NDC: "00093721410", Lot: "A1207", Serial: serial, Quantity: 1, Type: window.Dispense}
	at := m.now()
	return ledger.Row{Keys: id.Keys(m.policy, at), Event: spool.NewEvent(at), Facility: facility, Scanner: scannerID, NDC: id.NDC, Lot: id.Lot, Serial: serial,
		Quantity: 1, Type: id.Type, Extras: id.Extras(m.policy), GTIN: "00300937214106", NDC11: id.NDC, Expiry: "2027-11-30", Agent: "baseline", CapturedAt: at, Quality: window.Synced}
}

// rowsOf makes n movements.
func rowsOf(m *movements, n int) []ledger.Row {
	rows := make([]ledger.Row, n)
	for i := range rows {
		rows[i] = m.next()
	}
	return rows
}

const baseColumns = `idem_key, edge_key, event_id, facility_uuid, scanner_id, ndc, lot, quantity, scan_type, window_index, extras, gtin, serial, ndc11,
	expiry, pkg_level, agent_id, captured_at, clock_quality`

const insertOne = `INSERT INTO scan_ledger (` + baseColumns + `)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text::date, $16, $17, $18, $19) ON CONFLICT DO NOTHING`

const insertMany = `INSERT INTO scan_ledger (` + baseColumns + `)
SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::int[], $9::text[], $10::bigint[],
	$11::text[], $12::text[], $13::text[], $14::text[], $15::date[], $16::smallint[], $17::text[], $18::timestamptz[], $19::text[]) ON CONFLICT DO NOTHING`

func edgeOf(r *ledger.Row) []byte {
	if r.Keys.Edge.IsZero() {
		return nil
	}
	return r.Keys.Edge.Hash[:]
}

// storeOne inserts a row by itself: a commit.
func (c *central) storeOne(ctx context.Context, r *ledger.Row) error {
	tag, err := c.pg.Exec(ctx, insertOne, r.Keys.Idem.Hash[:], edgeOf(r), [16]byte(r.Event), r.Facility, r.Scanner, r.NDC, r.Lot, r.Quantity, r.Type.String(),
		int64(r.Keys.Window), r.Extras, r.GTIN, r.Serial, r.NDC11, r.Expiry, r.PkgLevel, r.Agent, r.CapturedAt.Time(), r.Quality.String())
	if err == nil && tag.RowsAffected() != 1 {
		err = errors.New("cannot measure: a baseline's row was there already")
	}
	return err
}

var lastDay = time.Date(2027, 11, 30, 0, 0, 0, 0, time.UTC)

// storeMany inserts rows in one statement.
func (c *central) storeMany(ctx context.Context, rows []ledger.Row) error {
	n := len(rows)
	idems, edges, events := make([][]byte, n), make([][]byte, n), make([][16]byte, n)
	facilities, scanners, ndcs, lots, types := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	extras, gtins, serials, ndc11s, agents, qualities := make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	quantities, levels, windows := make([]int32, n), make([]int16, n), make([]int64, n)
	expiries, captured := make([]time.Time, n), make([]time.Time, n)
	for i := range rows {
		r := &rows[i]
		idems[i], edges[i], events[i] = r.Keys.Idem.Hash[:], edgeOf(r), r.Event
		facilities[i], scanners[i], ndcs[i], lots[i], types[i] = r.Facility, r.Scanner, r.NDC, r.Lot, r.Type.String()
		extras[i], gtins[i], serials[i], ndc11s[i], agents[i], qualities[i] = r.Extras, r.GTIN, r.Serial, r.NDC11, r.Agent, r.Quality.String()
		quantities[i], levels[i], windows[i] = int32(r.Quantity), int16(r.PkgLevel), int64(r.Keys.Window)
		expiries[i], captured[i] = lastDay, r.CapturedAt.Time()
	}
	tag, err := c.pg.Exec(ctx, insertMany, idems, edges, events, facilities, scanners, ndcs, lots, quantities, types, windows, extras, gtins, serials, ndc11s,
		expiries, levels, agents, captured, qualities)
	if err == nil && tag.RowsAffected() != int64(n) {
		err = fmt.Errorf("cannot measure: %d of %d of a baseline's rows were written", tag.RowsAffected(), n)
	}
	return err
}

// fullFloor is the least that a scan can cost which is durable here, claimed and committed: an append with its
// fdatasync, a round trip to Redis and a commit, each begun when the one before is over.
type fullFloor struct {
	disk *floor
	c    *central
	rows *movements
	ctx  context.Context
}

func (f *fullFloor) lone() error {
	r := f.rows.next()
	if err := f.disk.lone(); err != nil {
		return err
	}
	if err := f.c.claimNew(f.ctx, &r); err != nil {
		return err
	}
	return f.c.storeOne(f.ctx, &r)
}

// claimNew claims a key that nobody has: one round trip.
func (c *central) claimNew(ctx context.Context, r *ledger.Row) error {
	v, err := c.redis.SetArgs(ctx, r.Keys.Idem.String(), r.Event.String(), redis.SetArgs{Mode: "NX", TTL: claimTTL, Get: true}).Result()
	if !errors.Is(err, redis.Nil) {
		return errors.Join(err, fmt.Errorf("cannot measure: a baseline's claim is held by %q", v))
	}
	return nil
}

// seed is the simple way: for each scan, in turn, SET NX PX and, if it was set, INSERT. Nothing is kept here.
type seed struct {
	c    *central
	rows *movements
	ctx  context.Context
}

func (s *seed) lone() error {
	r := s.rows.next()
	won, err := s.c.redis.SetNX(s.ctx, r.Keys.Idem.String(), "1", claimTTL).Result()
	if err == nil && !won {
		err = errors.New("cannot measure: a baseline's claim is held")
	}
	if err != nil {
		return err
	}
	return s.c.storeOne(s.ctx, &r)
}

func (s *seed) burst(n int) error {
	for range n {
		if err := s.lone(); err != nil {
			return err
		}
	}
	return nil
}

// ceiling writes rows that are in memory already and does nothing else: a pipeline of claims for one batch while
// the batch before is inserted.
func (c *central) ceiling(ctx context.Context, rows []ledger.Row, batch int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	claimed := make(chan []ledger.Row, 1)
	failed := make(chan error, 1)
	go func() {
		defer close(claimed)
		for len(rows) > 0 {
			n := min(batch, len(rows))
			if err := c.claimMany(ctx, rows[:n]); err != nil {
				failed <- err
				return
			}
			select {
			case claimed <- rows[:n]:
			case <-ctx.Done():
				return
			}
			rows = rows[n:]
		}
	}()
	for b := range claimed {
		if err := c.storeMany(ctx, b); err != nil {
			return err
		}
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (c *central) claimMany(ctx context.Context, rows []ledger.Row) error {
	sent := 0
	replies, err := c.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range rows {
			r := &rows[i]
			token := r.Event.String()
			if !r.Keys.Edge.IsZero() {
				p.Do(ctx, "SET", r.Keys.Edge.String(), token, "NX", "PX", claimTTL.Milliseconds(), "GET")
				sent++
			}
			p.Do(ctx, "SET", r.Keys.Idem.String(), token, "NX", "PX", claimTTL.Milliseconds(), "GET")
			sent++
		}
		return nil
	})
	if !errors.Is(err, redis.Nil) || len(replies) != sent {
		return errors.Join(err, errors.New("cannot measure: a claim of the ceiling was refused"))
	}
	for _, r := range replies {
		if !errors.Is(r.Err(), redis.Nil) {
			return errors.Join(r.Err(), errors.New("cannot measure: a claim of the ceiling is held"))
		}
	}
	return nil
}
