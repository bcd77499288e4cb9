package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Query runs one statement as the superuser and returns its rows as text, null as "".
func (p *Postgres) Query(t testing.TB, database, sql string) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, p.SocketDSN(PostgresSuperuser, database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	results, err := c.PgConn().Exec(ctx, sql).ReadAll()
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	var out [][]string
	for _, r := range results {
		for _, row := range r.Rows {
			text := make([]string, len(row))
			for i, v := range row {
				text[i] = string(v)
			}
			out = append(out, text)
		}
	}
	return out
}

// Number runs a statement that yields one number.
func (p *Postgres) Number(t testing.TB, database, sql string) int {
	t.Helper()
	rows := p.Query(t, database, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		t.Fatalf("%s: %v, want one number", sql, rows)
	}
	n, err := strconv.Atoi(rows[0][0])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// ExecAt runs SQL by a DSN of one's own, a proxy's for example, and returns what went wrong.
func ExecAt(ctx context.Context, dsn, sql string) error {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer c.Close(context.WithoutCancel(ctx))
	_, err = c.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

// CopyState gives h the state folder of another home, as a restored backup does. No agent may run on either.
func (h *Home) CopyState(t testing.TB, from *Home) {
	t.Helper()
	err := filepath.WalkDir(from.State, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from.State, path)
		if err != nil {
			return err
		}
		to := filepath.Join(h.State, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o700)
		case !d.Type().IsRegular(): // a socket that a kill has left
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o600)
	})
	if err != nil {
		t.Fatal(fmt.Errorf("cannot copy the state folder: %w", err))
	}
}
