package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scanonce/idem"
	"scanonce/internal/config"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// bubbleOS is the clock of a synctest bubble.
type bubbleOS struct {
	began  time.Time
	synced *atomic.Bool
}

func (o bubbleOS) Wall() time.Time                   { return time.Now() }
func (o bubbleOS) Boot() time.Duration               { return time.Hour + time.Since(o.began) }
func (o bubbleOS) BootID() string                    { return "boot" }
func (o bubbleOS) WallSynced() (bool, time.Duration) { return o.synced.Load(), 0 }

// Old audit lines go once a day, also while the ledger was away at first.
func TestRetentionOnceADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var synced atomic.Bool
		clock := window.NewClock(bubbleOS{time.Now(), &synced}, window.Mark{}, window.ClockOptions{})
		l, err := ledger.OpenEmbedded(filepath.Join(t.TempDir(), "ledger.db"), func() window.UTC { return clock.Now().T })
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		line := func(n byte) {
			if err := l.AppendLines(t.Context(), []ledger.Line{{Event: idem.EventID{n}, Agent: "a", At: clock.Now().T, Outcome: ledger.Notice}}); err != nil {
				t.Fatal(err)
			}
		}
		lines := func() (n int) {
			if err := l.Lines(t.Context(), ledger.Span{}, func(ledger.Line) error { n++; return nil }); err != nil {
				t.Fatal(err)
			}
			return n
		}
		var away atomic.Bool
		away.Store(true)
		cfg := config.Default()
		cfg.Audit.RetentionDays = 2
		a := &agent{cfg: cfg, clock: clock, log: slog.New(slog.DiscardHandler), ledger: newLateLedger(func() (ledger.Ledger, error) {
			if away.Load() {
				return nil, errStoreClosed
			}
			return l, nil
		})}
		line(1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newRetention(a).Run(ctx) }()
		for i, c := range []struct {
			after  time.Duration
			synced bool // from then on
			lines  int  // that are there; one more is written afterwards
		}{
			{time.Hour, false, 1}, {46 * time.Hour, false, 2},
			{25 * time.Hour, true, 3}, // the first two are past two days, by a clock that proves nothing
			{time.Hour, true, 4},      // and now the ledger is away
			{time.Hour, true, 3},
		} {
			time.Sleep(c.after) // of the bubble's time
			synctest.Wait()
			away.Store(i < 3)
			if n := lines(); n != c.lines {
				t.Errorf("step %d: %d lines, want %d", i, n, c.lines)
			}
			line(byte(i + 2))
			synced.Store(c.synced)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
