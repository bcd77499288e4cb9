package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"scanonce/spool"
)

// An act that has begun will have happened, however slow the disk is: its caller waits for it, since "try
// again" would make it happen twice. One whose turn does not come is given up, and never happens.
func TestAnActThatHasBegunIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipeline{calls: make(chan call)}
		disk := make(chan struct{})
		go func() {
			c := <-p.calls
			c.do(nil)
			<-disk // a sync that takes its time
			close(c.over)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		did := 0
		ended := make(chan error, 1)
		go func() { ended <- p.do(ctx, func(*spool.Batch) func(error) { did++; return nil }) }()
		time.Sleep(time.Minute) // of the bubble's time
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("given up after it had begun: %v", err)
		default:
		}
		close(disk)
		if err := <-ended; err != nil || did != 1 {
			t.Fatalf("%v, done %d times", err, did)
		}
		if err := p.do(ctx, func(*spool.Batch) func(error) { did++; return nil }); err == nil || did != 1 {
			t.Fatalf("an act whose turn did not come: %v, done %d times", err, did)
		}
	})
}
