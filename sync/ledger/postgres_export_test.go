package ledger

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// StandingSQL is the statement of Standing.
const StandingSQL = standingSQL

// Deallocate makes the server forget the prepared statements of a connection, as if another of a pooler's
// server processes had got it.
func (p *Postgres) Deallocate(ctx context.Context) error {
	return p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol)
		return err
	})
}
