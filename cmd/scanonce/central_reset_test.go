package main

import (
	"fmt"
	"testing"

	"scanonce/internal/testenv"
)

// Whoever reads the audit later sees that the claim store had lost its keys, and when: the rows are none the
// worse for it.
func TestCentralResetIsOnRecord(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, _, stream, g := c.bench(t, testenv.Setup{})
	at := 0
	for n := range 3 {
		if n == 2 {
			c.redis.Do("FLUSHALL")
		}
		e := g.expect("accepted", matrix("00300937214106", fmt.Sprint("R", n), "LOT"))
		_, at = stream.Wait(t, at, "the row", func(x *testenv.Event) bool { return x.Kind == "committed" && x.EventID == e.EventID })
	}
	c.await(t, "the notice", func() bool {
		return c.count(t, "SELECT count(*) FROM scan_audit_line WHERE outcome = 'notice' AND reason = 'store_reset'") == 1
	})
	if rows, _ := c.settled(t, h); len(rows) != 3 {
		t.Errorf("%d rows", len(rows))
	}
}
