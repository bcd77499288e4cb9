package main

import (
	"fmt"
	"net"
	"testing"

	"scanonce/internal/testenv"
)

// Where the plain recipe fails and the tests beside this one hold: TestCentralClaimsAway, TestCentralSameBacklog
// and TestCentralSharedScanner.
func TestCentralSeedFails(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	d := newSeed(t, c)
	t.Run("Redis away, ledger up", func(t *testing.T) {
		// The claim gives the permission, so without an answer nothing may be written, although the ledger is there.
		c.claims.Set(t, testenv.Refuse)
		defer c.claims.Set(t, testenv.Pass)
		conn, err := net.Dial("tcp", c.claims.Addr())
		if err == nil {
			conn.Close()
			t.Fatal("the claim store answers: this test has lost its premise")
		}
		if c.count(t, "SELECT 1") != 1 || d.rows("scan:idem:away") != 0 {
			t.Fatal("the ledger does not answer, or the seed wrote without a claim")
		}
	})
	t.Run("the same backlog at two agents", func(t *testing.T) {
		const held = 20
		for _, agent := range []string{"first", "restored"} {
			for i := range held {
				if err := d.scan(fmt.Sprint("scan:idem:backlog", i), agent); err != nil {
					t.Fatal(err)
				}
			}
			c.redis.Do("FLUSHALL") // hours lie between the two replays: every claim has expired
		}
		if n := c.count(t, "SELECT count(*) FROM seed_ledger WHERE key LIKE 'scan:idem:backlog%'"); n != 2*held {
			t.Fatalf("%d rows for %d movements: the seed does not fail here", n, held)
		}
	})
	t.Run("two agents at a shared scanner", func(t *testing.T) {
		// One movement heard 50 ms apart, at every phase of 3,000 ms: where the boundary lies between, the plain
		// window key is another one, and both agents win.
		twice := 0
		for phase := range 3000 {
			if first, second := phase/3000, (phase+50)/3000; first != second {
				twice++
			}
		}
		if twice != 50 {
			t.Fatalf("%d of 3000 phases straddle", twice)
		}
		for agent, window := range []int{2999 / 3000, 3049 / 3000} {
			if err := d.scan(fmt.Sprint("scan:idem:straddle", window), fmt.Sprint(agent)); err != nil {
				t.Fatal(err)
			}
		}
		if n := c.count(t, "SELECT count(*) FROM seed_ledger WHERE key LIKE 'scan:idem:straddle%'"); n != 2 {
			t.Fatalf("%d rows for one movement: the seed does not fail here", n)
		}
	})
}
