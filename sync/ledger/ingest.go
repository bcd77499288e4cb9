package ledger

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"scanonce/idem"
	"scanonce/window"
)

// Ingest says that a scan's row asks for a claim.
type Ingest struct {
	Claim string // correlation id
	Event idem.EventID
}

// Ingested tells for which scan a claim is made: of all rows that ask for it, the first one's.
type Ingested struct {
	Event idem.EventID
	Age   time.Duration // since that one asked
}

// ingestSQL: without a target the one unique key is meant.
const ingestSQL = `INSERT INTO claim_ingest (correlation_id, event_id) SELECT * FROM unnest($1::text[], $2::uuid[]) ON CONFLICT DO NOTHING`

// ingestedSQL has a snapshot of its own, which has the rows that stood in the way.
const ingestedSQL = `SELECT n, f.event_id, f.ms FROM unnest($1::text[]) WITH ORDINALITY AS p (v, n)
  CROSS JOIN LATERAL (SELECT event_id, (extract(epoch FROM now() - at) * 1000)::bigint AS ms FROM claim_ingest WHERE correlation_id = p.v OFFSET 0) AS f`

// Ingest implements Ledger, with two statements for each 1000 claims at most.
func (p *Postgres) Ingest(ctx context.Context, asks []Ingest) ([]Ingested, error) {
	all := make([]*Ingest, len(asks))
	at := make(map[*Ingest]int, len(asks))
	for i := range asks {
		all[i] = &asks[i]
		at[all[i]] = i
	}
	slices.SortStableFunc(all, func(a, b *Ingest) int { return strings.Compare(a.Claim, b.Claim) })
	out := make([]Ingested, len(asks))
	err := write(ctx, p, all, func(ctx context.Context, c *pgx.Conn, asks []*Ingest) error {
		err := send(ctx, c, ingestSQL, func(a *arrays) {
			texts(a, asks, func(i *Ingest) string { return i.Claim })
			uuids(a, asks, func(i *Ingest) []byte { return i.Event[:] })
		}, func([][]byte) {})
		if err != nil {
			return err
		}
		return send(ctx, c, ingestedSQL, func(a *arrays) { texts(a, asks, func(i *Ingest) string { return i.Claim }) }, func(v [][]byte) {
			age := time.Duration(binary.BigEndian.Uint64(v[2])) * time.Millisecond
			age = max(0, age) // another's transaction may have begun later
			out[at[asks[binary.BigEndian.Uint64(v[0])-1]]] = Ingested{Event: idem.EventID(v[1]), Age: age}
		})
	}, nil)
	if err == nil && slices.ContainsFunc(out, func(i Ingested) bool { return i.Event.IsZero() }) {
		err = fmt.Errorf("the database does not show what it has stored")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot note for which scan a claim is made: %w", err)
	}
	return out, nil
}

// Ingest implements Ledger.
func (e *Embedded) Ingest(ctx context.Context, asks []Ingest) ([]Ingested, error) {
	out := make([]Ingested, len(asks))
	now := e.now()
	err := e.write(ctx, func(b buckets) (bool, error) {
		made := false
		for i, ask := range asks {
			body, err := get(b.claims, bktClaims, []byte(ask.Claim))
			if err != nil {
				return false, err
			}
			if body == nil {
				made = true
				body = binary.BigEndian.AppendUint64(slices.Clone(ask.Event[:]), uint64(now))
				if err := put(b.claims, bktClaims, []byte(ask.Claim), slices.Clone(body)); err != nil {
					return false, err
				}
			}
			if out[i], err = decodeIngest([]byte(ask.Claim), body, now); err != nil {
				return false, err
			}
		}
		return made, nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot note for which scan a claim is made: %w", err)
	}
	return out, nil
}

func decodeIngest(claim, body []byte, now window.UTC) (i Ingested, err error) {
	if len(body) != len(i.Event)+8 {
		return i, fmt.Errorf("cannot read the claim %q: %w", claim, errDamaged)
	}
	copy(i.Event[:], body)
	i.Age = max(0, now.Sub(window.UTC(binary.BigEndian.Uint64(body[len(i.Event):]))))
	return i, nil
}
