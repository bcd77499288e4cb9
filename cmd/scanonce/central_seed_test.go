package main

import (
	"context"
	"fmt"
	"testing"

	"scanonce/internal/testenv"
)

// seed commits as the plain recipe does: SET NX PX with the value 1 gives permission, and then a row is
// inserted. The tests show where that loses or doubles what ours keeps.
type seed struct {
	t   testing.TB
	c   *central
	ttl int // ms
}

func newSeed(t testing.TB, c *central) *seed {
	t.Helper()
	c.pg.Exec(t, c.db, "CREATE TABLE IF NOT EXISTS seed_ledger (key text NOT NULL, event text NOT NULL); GRANT ALL ON seed_ledger TO "+testenv.PostgresLogin)
	return &seed{t: t, c: c, ttl: 60000}
}

// claim says whether the caller may write.
func (d *seed) claim(key string) bool {
	return d.c.redis.Do("SET", key, "1", "NX", "PX", d.ttl) == "OK"
}

// insert writes the row.
func (d *seed) insert(key, event string) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), testenv.Patience)
	defer cancel()
	return testenv.ExecAt(ctx, d.c.stores().dsn, fmt.Sprintf("INSERT INTO seed_ledger VALUES ('%s', '%s')", key, event))
}

// scan is claim and insert; a duplicate is suppressed without an error.
func (d *seed) scan(key, event string) error {
	if !d.claim(key) {
		return nil
	}
	return d.insert(key, event)
}

// swallowInsert loses the reply of the next insert.
func (d *seed) swallowInsert() { d.c.rows.Swallow("INSERT INTO seed_ledger") }

func (d *seed) rows(key string) int {
	return d.c.count(d.t, fmt.Sprintf("SELECT count(*) FROM seed_ledger WHERE key = '%s'", key))
}
