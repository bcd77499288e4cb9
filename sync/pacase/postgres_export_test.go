package pacase

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// The statements, for tests that send them by themselves or look at their plans.
const (
	LockSQL     = lockSQL
	LockCaseSQL = lockCaseSQL
	PendSQL     = pendSQL
	CurrentSQL  = currentSQL
	OtherSQL    = otherSQL
	MoveSQL     = moveSQL
	GetSQL      = getSQL
)

// Subject is what the lock is taken on.
func Subject(q Question) string { return q.subject() }

// Deallocate makes the server forget the prepared statements of a connection, as if another of a pooler's
// server processes had got it.
func (p *Postgres) Deallocate(ctx context.Context) error {
	return p.conns.With(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol)
		return err
	})
}
