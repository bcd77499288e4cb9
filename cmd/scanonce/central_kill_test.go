package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// shifts tells people when an agent is there.
type shifts struct {
	mu      sync.Mutex
	now     *epoch
	changed chan struct{}
}

func (s *shifts) set(e *epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = e
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *shifts) next(ctx context.Context) (*epoch, error) {
	for {
		s.mu.Lock()
		e, c := s.now, s.changed
		s.mu.Unlock()
		if e != nil {
			return e, nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// itemOf is what a row's item looks like in a scanner's transmission.
func itemOf(t testing.TB, r *testenv.Row) string {
	t.Helper()
	if r.Serial == nil {
		return "]E0" + deref(r.GTIN)[1:]
	}
	exp, err := time.Parse("2006-01-02", deref(r.Expiry))
	if err != nil {
		t.Fatal(err)
	}
	return "]d201" + deref(r.GTIN) + "21" + deref(r.Serial) + gs + "17" + exp.Format("060102") + "10" + r.Lot
}

// The promise with central stores: kill -9 at random moments under load, connections that break off and claims
// that vanish besides; the ledger has every item that was answered, once.
func TestCentralKilledAgain(t *testing.T) {
	t.Parallel()
	const rounds, scanners = 50, 4
	c := newCentral(t)
	var ids []string
	for i := range scanners {
		ids = append(ids, "SCN-"+strconv.Itoa(i))
	}
	s := c.stores()
	s.forward = "batch = 20\nbackoff_max = \"500ms\""
	s.claim = "timeout = \"500ms\""
	h := program.NewHome(t, s.in(testenv.Setup{Scanners: ids, Sections: "[spool]\nsegment_records = 200\n"}))
	proc := h.Start(t)
	stream := h.Follow(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	var people []*person
	var gate sync.RWMutex
	for i, id := range ids {
		g := plug(t, h, stream, id)
		people = append(people, &person{Scanner: g.Scanner, h: h, stream: stream, work: sim.NewWorkload(seed + uint64(i)<<32),
			rnd: rand.New(rand.NewPCG(seed, uint64(i)+2)), byTone: i%2 == 0, gate: &gate})
	}
	now := &shifts{changed: make(chan struct{})}
	ctx, stopWork := context.WithCancel(t.Context())
	defer stopWork()
	var closing atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, scanners)
	for _, p := range people {
		wg.Go(func() {
			for !closing.Load() {
				if err := p.one(ctx, now.next); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	e := &epoch{over: make(chan struct{})}
	now.set(e)
	for range rounds {
		pace(t, time.Duration(20+rnd.IntN(300))*time.Millisecond)
		switch rnd.IntN(6) {
		case 0:
			c.rows.Drop()
		case 1:
			c.claims.Drop()
		case 2:
			c.redis.Do("FLUSHALL")
		case 3:
			c.rows.Swallow("") // a reply that is lost
		}
		pace(t, time.Duration(rnd.IntN(100))*time.Millisecond)
		proc.Kill()
		from := stream.Len()
		gate.Lock()
		close(e.over)
		now.set(nil)
		for _, p := range people {
			unplug(p.Scanner)
		}
		gate.Unlock()
		proc = h.Start(t)
		for _, p := range people {
			if err := p.Replug(); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range people {
			stream.Wait(t, from, p.ID+" is read", isReading(p.ID))
			p.Opened()
		}
		e = &epoch{over: make(chan struct{})}
		now.set(e)
		select {
		case err := <-failed:
			t.Fatal(err)
		default:
		}
	}
	closing.Store(true)
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
	rows, lines := c.settled(t, h)
	expected := map[string][]testenv.Row{}
	typed, resent := 0, 0
	for _, p := range people {
		typed, resent = typed+p.typed, resent+p.resent
		for _, it := range p.items {
			expected[p.ID+" "+it] = nil
		}
	}
	bypassed := 0
	for i := range rows {
		r := &rows[i]
		item := r.ScannerID + " " + itemOf(t, r)
		if _, ok := expected[item]; !ok {
			t.Errorf("row %s is of an item that nobody scanned: %s", r.EventID, sim.Printable(item))
		}
		expected[item] = append(expected[item], *r)
		if slices.Contains(r.Flags, "claim_bypassed") {
			bypassed++
		}
	}
	for _, p := range people {
		for _, it := range p.items {
			p.rowsOf(t, it, expected[p.ID+" "+it], lines)
		}
	}
	told := map[string]bool{}
	for i := range rows {
		told[rows[i].EventID] = true
		committed(t, stream, rows[i].EventID)
	}
	for _, p := range people {
		for _, id := range p.told {
			if !told[id] {
				t.Errorf("event %s was told to %s and has no row", id, p.ID)
			}
		}
	}
	t.Logf("%d items typed %d times, %d again after a kill; %d rows, %d of them without a claim; %d suppressed",
		len(expected), typed, resent, len(rows), bypassed, len(linesOf(lines, "suppressed")))
	if bypassed > len(rows)/2 {
		t.Errorf("%d of %d rows were written without a claim", bypassed, len(rows))
	}
	if resent == 0 || len(expected) < rounds {
		t.Errorf("%d items, %d resent after a kill: this proves little", len(expected), resent)
	}
}
