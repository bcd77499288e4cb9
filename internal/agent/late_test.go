package agent

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scanonce/sync/claimstate"
)

type closing struct{ closed atomic.Int32 }

func (c *closing) Close() error { c.closed.Add(1); return nil }

// While a store is being opened its users wait no longer than they may, and what comes of it is for all of them.
func TestLateObeysItsUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opens, release := 0, make(chan error)
		store := new(closing)
		l := late[*closing]{open: func() (*closing, error) {
			opens++
			return store, <-release
		}}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		told := make(chan error)
		ask := func(ctx context.Context) {
			_, err := l.get(ctx)
			told <- err
		}
		for range 6 {
			go ask(ctx)
		}
		for range 6 {
			if err := <-told; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 2*time.Second {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		for range 3 {
			go ask(t.Context())
		}
		synctest.Wait()
		failed := errors.New("no")
		release <- failed
		for range 3 {
			if err := <-told; err != failed {
				t.Errorf("the end of the opening: %v", err)
			}
		}
		if opens != 1 {
			t.Errorf("opened %d times at once", opens)
		}
		go ask(t.Context())
		synctest.Wait()
		ended := make(chan error)
		go func() { ended <- l.Close() }() // in the middle of the next opening
		synctest.Wait()
		release <- nil
		if err := errors.Join(<-told, <-ended); err != nil || store.closed.Load() != 1 || opens != 2 {
			t.Errorf("closed in an opening: %v, %d times, of %d openings", err, store.closed.Load(), opens)
		}
		if _, err := l.get(t.Context()); err != errStoreClosed {
			t.Errorf("once closed: %v", err)
		}
	})
}

// A file of claims that another process holds costs no caller more than its patience.
func TestHeldFileCostsNoMoreThanPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bubbleAgent(t)
		defer a.close(true)
		held, err := claimstate.OpenEmbedded(filepath.Join(a.cfg.Agent.StateDir, "claims.db"), livesOf(a.cfg), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		start := time.Now()
		told := make(chan error)
		for range 6 {
			go func() {
				_, _, err := a.courier.Claim(t.Context(), "claim-1")
				told <- err
			}()
		}
		for range 6 {
			if err := <-told; err == nil || time.Since(start) > patience {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
	})
}
