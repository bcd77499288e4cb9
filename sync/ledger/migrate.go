package ledger

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"scanonce/internal/pg"
)

// SchemaVersion is the version of the database schema that this program needs: the number of the
// migrations here.
const SchemaVersion = pg.SchemaVersion

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock keeps two migrations of a database apart; an arbitrary number.
const migrationLock = 0x7363616e6f6e6365

// migration returns the SQL that leads from version n-1 to n.
func migration(n int) (string, error) {
	names, err := fs.Glob(migrations, fmt.Sprintf("migrations/%04d_*.sql", n))
	if err != nil || len(names) != 1 {
		return "", fmt.Errorf("there is no migration %d in this program", n)
	}
	b, err := migrations.ReadFile(names[0])
	return string(b), err
}

// Migrate brings the schema in the database that the owner's DSN names to version to, 0 for the newest:
// all steps in one transaction. from == to says that nothing was to do. The owner's DSN, unlike an
// agent's, may hold a password: it comes from a file of its own. Errors for a DBA are a ConfigError.
func Migrate(ctx context.Context, owner PostgresConfig, to int) (from, reached int, err error) {
	if to == 0 {
		to = SchemaVersion
	}
	if to < 0 || to > SchemaVersion {
		return 0, 0, fmt.Errorf("cannot migrate the ledger to version %d: write a version from 1 to %d, or none for the newest", to, SchemaVersion)
	}
	if err := owner.ValidateOwner(); err != nil {
		return 0, 0, err
	}
	cc, err := owner.ConnConfig()
	if err != nil {
		return 0, 0, fmt.Errorf("cannot migrate the ledger: %w", err)
	}
	c, err := pgx.ConnectConfig(ctx, cc)
	if err == nil {
		defer c.Close(context.WithoutCancel(ctx))
		from, err = migrate(ctx, c, to)
	}
	if err != nil {
		return from, from, fmt.Errorf("cannot migrate the ledger: %w", pg.Explain(ctx, err, true))
	}
	return from, to, nil
}

func migrate(ctx context.Context, c *pgx.Conn, to int) (from int, err error) {
	tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // without effect after Commit
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
		return 0, err
	}
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('scan_schema') IS NOT NULL").Scan(&exists); err != nil {
		return 0, err
	}
	if exists {
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM scan_schema").Scan(&from); err != nil {
			return 0, err
		}
	}
	switch {
	case from > SchemaVersion:
		return from, pg.NewerSchema(from)
	case from > to:
		return from, fmt.Errorf("its schema has version %d, and a step back would lose rows: leave it, or restore a copy from before", from)
	case from == to:
		return from, nil
	}
	if !exists {
		if _, err := tx.Exec(ctx, "CREATE TABLE scan_schema (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"); err != nil {
			return from, err
		}
	}
	for n := from + 1; n <= to; n++ {
		sql, err := migration(n)
		if err == nil {
			_, err = tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		}
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO scan_schema (version) VALUES ($1)", n)
		}
		if err != nil {
			return from, err
		}
	}
	return from, tx.Commit(ctx)
}
