package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scanonce/idem"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const forwardBatch = 500 // records a round, forward.batch's default

// tally counts, and tells when it has come to a number that somebody waits for.
type tally struct {
	mu      sync.Mutex
	n       int
	target  int
	reached chan struct{} // nil: nobody waits
}

func (t *tally) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.reached != nil && t.n >= t.target {
		close(t.reached)
		t.reached = nil
	}
}

// when is closed once the tally is n or more.
func (t *tally) when(n int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := make(chan struct{})
	if t.n >= n {
		close(c)
	} else {
		t.target, t.reached = n, c
	}
	return c
}

// courier is the forwarder of an outbox to the central stores, as the agent composes it, but for the events
// and metrics that the agent makes of what it is told.
type courier struct {
	*forward.Forwarder
	inserted tally // rows whose insert has been answered
	final    tally // scans that are settled

	mu      sync.Mutex
	trouble error

	cancel context.CancelFunc
	ended  chan error
}

func newCourier(o *outbox, c *central) *courier { return courierOf(o, c.claims, c.ledger) }

func courierOf(o *outbox, claims idem.Authority, l *ledger.Postgres) *courier {
	u := &courier{ended: make(chan error, 1)}
	u.Forwarder = forward.New(forward.Config{Agent: "bench", Facility: facility, Batch: forwardBatch, BackoffMin: 100 * time.Millisecond,
		BackoffMax: 5 * time.Second, Timeout: storeTimeout, TTL: claimTTL}, o.spool, claims, countingLedger{l, &u.inserted}, o.clock, u)
	return u
}

func (u *courier) start() {
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel = cancel
	go func() { u.ended <- u.Run(ctx) }()
}

func (u *courier) stop() error {
	u.cancel()
	return errors.Join(<-u.ended, u.fault())
}

func (u *courier) fault() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.trouble
}

func (u *courier) fail(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.trouble = errors.Join(u.trouble, err)
}

// await waits until a tally is reached.
func (u *courier) await(reached <-chan struct{}) error {
	limit := time.NewTimer(5 * time.Minute)
	defer limit.Stop()
	select {
	case <-reached:
		return u.fault()
	case <-limit.C:
		return errors.Join(errors.New("cannot measure: the forwarder does not come to an end"), u.Stats().Cause, u.fault())
	}
}

// Settled implements forward.Listener.
func (u *courier) Settled(_ uint64, records []forward.Settled) {
	for i := range records {
		if v := &records[i].Verdict; v.State != spool.Committed {
			u.fail(fmt.Errorf("cannot measure: a new label is %s", v.State))
		}
	}
	u.final.add(len(records))
}

// LinkChanged implements forward.Listener.
func (u *courier) LinkChanged(l forward.Link, cause error) {
	if l == forward.Offline {
		u.fail(fmt.Errorf("cannot measure: the forwarder went offline: %w", cause))
	}
}

// ClaimsChanged implements forward.Listener.
func (u *courier) ClaimsChanged(cause error) {
	if cause != nil {
		u.fail(fmt.Errorf("cannot measure: no claims are made: %w", cause))
	}
}

// Quarantined implements forward.Listener.
func (u *courier) Quarantined(n int, detail string) {
	u.fail(fmt.Errorf("cannot measure: %d records are refused: %s", n, detail))
}

// countingLedger tells when rows are in.
type countingLedger struct {
	*ledger.Postgres
	inserted *tally
}

// Insert implements ledger.Ledger.
func (l countingLedger) Insert(ctx context.Context, rows []ledger.Row) (ledger.Inserted, error) {
	in, err := l.Postgres.Insert(ctx, rows)
	l.inserted.add(len(in.Receipts))
	return in, err
}

var _ interface {
	ledger.Ledger
	Clock(context.Context) (window.UTC, time.Duration, error)
} = countingLedger{}
