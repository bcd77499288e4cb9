package agent

import (
	"context"
	"time"

	"scanonce/window"
)

// retention is the task that removes audit lines past audit.retention_days from an embedded ledger. In PostgreSQL that
// is for the owner of the tables: an agent has no right to remove anything.
type retention struct {
	a     *agent
	ready chan struct{}
}

func newRetention(a *agent) *retention { return &retention{a: a, ready: make(chan struct{})} }

func (r *retention) String() string { return "audit retention" }

// Ready is closed at once: nothing waits for old lines to go.
func (r *retention) Ready() <-chan struct{} { return r.ready }

const (
	retainEvery = 24 * time.Hour
	retainAgain = 10 * time.Minute // after a failure: the ledger's file is away, or the disk full
)

// Run removes what is too old at the start and once a day, until ctx ends.
func (r *retention) Run(ctx context.Context) error {
	close(r.ready)
	for ctx.Err() == nil {
		wait := retainEvery
		now := r.a.clock.Now()
		if now.Quality != window.Synced && now.Quality != window.Holdover { // a wrong year would empty the trail
			r.pause(ctx, retainAgain)
			continue
		}
		before := now.T.Add(-time.Duration(r.a.cfg.Audit.RetentionDays) * 24 * time.Hour)
		if n, err := r.a.ledger.Retain(ctx, before); err != nil && ctx.Err() == nil {
			r.a.log.Warn("audit lines past their retention stay for now", "error", err)
			wait = retainAgain
		} else if n > 0 {
			r.a.log.Info("audit lines past their retention removed", "lines", n, "before", before.String())
		}
		r.pause(ctx, wait)
	}
	return nil
}

func (r *retention) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
