package forward_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/ledger"
)

// await waits until n claims have been asked for.
func (a *faultyAuthority) await(n int) error {
	limit := time.After(testenv.Patience)
	for {
		a.mu.Lock()
		asked, more := a.asked, a.more
		a.mu.Unlock()
		if asked >= n {
			return nil
		}
		select {
		case <-more:
		case <-limit:
			return fmt.Errorf("%d claims, want %d", asked, n)
		}
	}
}

// unfounded says that verdicts are settled whose rows do not stand.
func (r *rig) unfounded() error {
	settled := r.spool.Stats().Committed
	rows, err := r.ledger.Ledger.Count(context.Background())
	if err == nil && settled > rows {
		err = fmt.Errorf("%d are settled as committed, and %d rows stand", settled, rows)
	}
	return err
}

// A backlog with duplicates of items some batches before.
func backlog() (items []string, movements, duplicates int) {
	for i := range 1500 {
		items = append(items, fmt.Sprint("L", i))
		if i >= 130 && i%10 == 0 {
			items = append(items, fmt.Sprint("L", i-130))
			duplicates++
		}
	}
	return items, 1500, duplicates
}

// While a batch is being inserted, the next one's claims are made.
func TestDrainOverlaps(t *testing.T) {
	r := newRig(t)
	items, movements, duplicates := backlog()
	r.scan(items...)
	r.claims.more = make(chan struct{})
	inserts := 0
	r.ledger.inserting = func(rows []ledger.Row) {
		inserts++
		if err := r.unfounded(); err != nil {
			t.Error(err)
		}
		if inserts == 1 || inserts > 10 { // the first batch goes alone: the ledger may not be there; nothing follows the last
			return
		}
		if err := r.claims.await((inserts + 1) * 85); err != nil {
			t.Errorf("insert %d: the next claims are not made: %v", inserts, err)
		}
	}
	r.start()
	r.final(len(items))
	if st := r.spool.Stats(); st.Committed != int64(movements) || st.Suppressed != int64(duplicates) {
		t.Errorf("%+v", st)
	}
	r.audit(len(items))
}

// Replies are lost in the middle of a drain, and then nothing is settled that is not known to stand.
func TestDrainLosesReplies(t *testing.T) {
	r := newRig(t)
	items, movements, duplicates := backlog()
	r.scan(items...)
	inserts := 0
	r.ledger.inserting = func(rows []ledger.Row) {
		if err := r.unfounded(); err != nil {
			t.Error(err)
		}
		var lost error
		if inserts++; inserts%3 == 0 {
			lost = errors.New("connection reset")
		}
		r.ledger.set(nil, lost, false)
	}
	r.start()
	r.final(len(items))
	if st := r.spool.Stats(); st.Committed != int64(movements) || st.Suppressed != int64(duplicates) {
		t.Errorf("%+v", st)
	}
	r.audit(len(items))
}

// A ledger that is too slow for a whole batch within the time-out gets what it can take.
func TestSlowLedgerGetsLess(t *testing.T) {
	r := newRig(t)
	r.ledger.most = 7
	var items []string
	for i := range 300 {
		items = append(items, fmt.Sprint("L", i))
	}
	r.scan(items...)
	r.start()
	r.final(len(items))
	if st := r.spool.Stats(); st.Committed != 300 {
		t.Errorf("%+v", st)
	}
}

// A lone scan is claimed while it is being written, once, and inserted only when it is durable.
func TestClaimDuringTheWrite(t *testing.T) {
	r := newRig(t)
	const scans = 200
	early := 0
	r.claims.answer = func(c idem.Claim) (idem.Outcome, bool) {
		if !r.durable(c.Event) {
			early++
		}
		return idem.Outcome{}, false
	}
	r.ledger.inserting = func(rows []ledger.Row) {
		for i := range rows {
			if !r.durable(rows[i].Event) {
				t.Error("a row is sent before its record is durable")
			}
		}
	}
	r.start()
	done, best := 0, 0
	for try := 0; try < 5 && best < scans/2; try++ { // on a busy machine the write is often the first
		before := early
		for range scans {
			r.scan(fmt.Sprint("L", done))
			done++
			r.final(done)
		}
		best = max(best, early-before)
	}
	if best < scans/2 {
		t.Errorf("%d of %d lone scans were claimed during their write", best, scans)
	}
	if r.claims.asked != done {
		t.Errorf("%d claims for %d scans", r.claims.asked, done)
	}
}

// durable says whether the spool gives the event back.
func (r *rig) durable(e idem.EventID) bool {
	found := false
	r.spool.Since(0, func(rec *spool.Record) bool {
		found = rec.Event == e
		return !found
	})
	return found
}
