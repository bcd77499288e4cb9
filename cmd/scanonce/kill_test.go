package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// epoch is one run of the agent as the people at the counter see it.
type epoch struct {
	over chan struct{} // closed when it was killed
}

// person scans one item after the other at a scanner. Some of the scans bounce. Who hears no answer before
// the agent dies scans the item again once the scanner works again.
type person struct {
	*sim.Scanner
	h      *testenv.Home
	stream *testenv.Stream
	work   *sim.Workload
	rnd    *rand.Rand
	byTone bool // goes by the tone; others go by the event
	gate   *sync.RWMutex

	fails  bool            // the scanner's agent may refuse a scan; then the person puts the item aside
	took   []time.Duration // from a scan without an echo to its answer
	items  []string        // all that were answered, as typed
	aside  []string        // all that were refused
	late   []string        // whose echo may have come a window behind them, by the machine's fault
	hand   []typing        // what was typed, in order
	told   []string        // their event ids, of those who go by the event
	typed  int
	resent int
}

// typing is one transmission, at the instant before its first byte.
type typing struct {
	item string
	run  *epoch
	at   time.Time
}

// errRefused says that the agent did not accept the item.
var errRefused = errors.New("refused")

// errKilled says that the agent died before the answer.
var errKilled = errors.New("killed")

// one scans an item until it has been answered.
func (p *person) one(ctx context.Context, next func(context.Context) (*epoch, error)) error {
	item := p.work.Next().Data
	for try := 0; ; try++ {
		e, err := next(ctx)
		if err != nil {
			return err
		}
		p.typed++
		if try > 0 {
			p.resent++
		}
		switch err := p.transmit(ctx, e, item); {
		case err == nil:
			p.items = append(p.items, item)
			return nil
		case errors.Is(err, errRefused) && p.fails:
			p.aside = append(p.aside, item)
			return nil
		case !errors.Is(err, errKilled):
			return err
		}
		// Heard while dying, or told of since: what was captured is told again.
		if tone, _ := p.Feedback(canceled(), 1); p.byTone && tone != "" {
			if tone == "R" {
				continue
			}
			p.items = append(p.items, item)
			return nil
		}
	}
}

// press types an item, but not into a terminal of a later epoch: its answer would be taken for another's.
func (p *person) press(e *epoch, item string) error {
	p.gate.RLock()
	defer p.gate.RUnlock()
	select {
	case <-e.over:
		return errKilled
	default:
	}
	at := time.Now()
	if p.Type(item) != nil {
		return errKilled
	}
	p.hand = append(p.hand, typing{item, e, at})
	return nil
}

// dispenseWindow is W of what people scan here.
const dispenseWindow = 3 * time.Second

// movements is how many rows the typing of an item may have made. One, however often the agent was killed; one more
// for an echo that a machine which stood still let this hand type a window behind the scan, to the same run: that is
// no retransmission (assumption A2).
func (p *person) movements(item string) int {
	n := 1
	var scan typing
	for _, x := range p.hand {
		switch {
		case x.item != item:
		case x.run != scan.run:
			scan = x
		case x.at.Sub(scan.at) >= dispenseWindow:
			n, scan = n+1, x
		}
	}
	return n
}

// rowsOf judges the rows of an item that was answered: one, or more if so many echoes were typed too late, each a window
// behind the row before it.
func (p *person) rowsOf(t testing.TB, item string, rows []testenv.Row, lines []testenv.Line) {
	t.Helper()
	slices.SortFunc(rows, func(a, b testenv.Row) int { return a.CapturedAt.Compare(b.CapturedAt) })
	ok := len(rows) == 1 || len(rows) > 1 && len(rows) <= p.movements(item)
	for i := 1; i < len(rows); i++ {
		ok = ok && rows[i].CapturedAt.Sub(rows[i-1].CapturedAt) >= dispenseWindow
	}
	if ok {
		return
	}
	var b strings.Builder
	keys, runs := map[string]bool{}, map[*epoch]int{}
	for _, r := range rows {
		keys[r.IdemKey] = true
		fmt.Fprintf(&b, "\nrow %s captured %s, window %d, key %s, edge %s, extras %q, flags %v", r.EventID, r.CapturedAt.Format(clockTime), r.WindowIndex, r.IdemKey, deref(r.EdgeKey), r.Extras, r.Flags)
	}
	for _, l := range lines {
		if keys[deref(l.Key)] {
			fmt.Fprintf(&b, "\nline %s %s %s", l.EventID, l.Outcome, deref(l.Reason))
			if l.CapturedAt != nil {
				fmt.Fprintf(&b, " captured %s", l.CapturedAt.Format(clockTime))
			}
		}
	}
	for _, x := range p.hand {
		if runs[x.run] == 0 {
			runs[x.run] = len(runs) + 1
		}
		if x.item == item {
			fmt.Fprintf(&b, "\ntyped %s to run %d", x.at.UTC().Format(clockTime), runs[x.run])
		}
	}
	t.Errorf("%s: %s was answered and has %d rows%s", p.ID, sim.Printable(item), len(rows), &b)
}

const clockTime = "15:04:05.000"

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// transmit types an item, and perhaps its bounce, and waits for all answers in this epoch.
func (p *person) transmit(ctx context.Context, e *epoch, item string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	from := p.stream.Len()
	p.Feedback(canceled(), 1000) // an echo's tone, heard from an agent that has died since, answers nothing here
	frames := 1
	typed := time.Now()
	defer func() {
		if frames > 1 && time.Since(typed) > 2*time.Second {
			p.late = append(p.late, item)
		}
	}()
	if err := p.press(e, item); err != nil {
		return err
	}
	if p.rnd.IntN(3) == 0 {
		timer := time.NewTimer(time.Duration(10+p.rnd.IntN(120)) * time.Millisecond)
		select {
		case <-timer.C:
			frames = 2
			if err := p.press(e, item); err != nil {
				return err
			}
		case <-ctx.Done():
			timer.Stop()
		}
	}
	first, refused := "", 0
	for i := range frames {
		if p.byTone {
			tone, err := p.Feedback(ctx, 1)
			if err != nil {
				if tone == "" && i == 0 {
					return errKilled
				}
				if refused > 0 {
					return errKilled
				}
				return nil // the echo's answer is nobody's concern
			}
			if frames == 1 {
				p.took = append(p.took, time.Since(typed))
			}
			if tone == "R" {
				refused++
			}
			if refused == frames {
				return fmt.Errorf("scanner %s: %w: %s", p.ID, errRefused, sim.Printable(item))
			}
			continue
		}
		ev, n, err := p.stream.Next(ctx, from, isAnswer(p.ID))
		if err != nil {
			if i == 0 {
				return errKilled
			}
			return nil
		}
		from = n
		if frames == 1 {
			p.took = append(p.took, time.Since(typed))
		}
		if ev.Kind != "accepted" && ev.Kind != "duplicate" {
			return fmt.Errorf("scanner %s: %s is answered with %s", p.ID, sim.Printable(item), ev.Data)
		}
		if first == "" {
			first = ev.EventID
			if ev.Kind == "duplicate" {
				first = ev.DuplicateOf
			}
			p.told = append(p.told, first)
		}
		p.Feedback(ctx, 1)
	}
	return nil
}

// The promise: kill -9 at random moments under load, and every movement that was told is one row.
func TestKilledAgain(t *testing.T) {
	t.Parallel()
	const rounds, scanners = 50, 4
	var ids []string
	for i := range scanners {
		ids = append(ids, fmt.Sprintf("SCN-%d", i))
	}
	h := program.NewHome(t, testenv.Setup{Scanners: ids, Sections: "[spool]\nsegment_records = 200\n"})
	proc := h.Start(t)
	stream := h.Follow(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))

	var now atomic.Pointer[epoch] // nil while the agent is down
	var mu sync.Mutex
	changed := make(chan struct{})
	set := func(e *epoch) {
		mu.Lock()
		defer mu.Unlock()
		now.Store(e)
		close(changed)
		changed = make(chan struct{})
	}
	next := func(ctx context.Context) (*epoch, error) {
		for {
			mu.Lock()
			e, c := now.Load(), changed
			mu.Unlock()
			if e != nil {
				select {
				case <-e.over:
				default:
					return e, nil
				}
			}
			select {
			case <-c:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	var people []*person
	var gate sync.RWMutex
	plugAll := func(from int) {
		for _, p := range people {
			if err := p.Replug(); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range people {
			stream.Wait(t, from, p.ID+" is read", isReading(p.ID))
			p.Opened()
		}
	}
	for i, id := range ids {
		s, err := sim.Plug(id, h.Port(id), sim.Framing{Suffix: "\r"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unplug(s) })
		people = append(people, &person{Scanner: s, h: h, stream: stream, work: sim.NewWorkload(seed + uint64(i)<<32), rnd: rand.New(rand.NewPCG(seed, uint64(i)+2)), byTone: i%2 == 0, gate: &gate})
		stream.Wait(t, 0, id+" is read", isReading(id))
		s.Opened()
	}
	ctx, stopWork := context.WithCancel(t.Context())
	defer stopWork()
	var closing atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, scanners)
	for _, p := range people {
		wg.Go(func() {
			for !closing.Load() {
				if err := p.one(ctx, next); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	set(&epoch{over: make(chan struct{})})
	for range rounds {
		pace(t, time.Duration(20+rnd.IntN(500))*time.Millisecond)
		proc.Kill()
		e := now.Load()
		from := stream.Len()
		gate.Lock()
		close(e.over)
		set(nil)
		for _, p := range people {
			// Bytes that the dead agent had not read are gone, as those of a closed port are.
			unplug(p.Scanner)
		}
		gate.Unlock()
		proc = h.Start(t)
		plugAll(from)
		set(&epoch{over: make(chan struct{})})
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

	rows, lines := quiet(t, h)
	expected := map[string][]testenv.Row{}
	typed, resent := 0, 0
	for _, p := range people {
		typed, resent = typed+p.typed, resent+p.resent
		for _, it := range p.items {
			expected[p.ID+" "+it] = nil
		}
	}
	t.Logf("%d items, typed %d times, %d of them again after a kill; %d rows, %d suppressed, %d in doubt", len(expected), typed, resent, len(rows), len(linesOf(lines, "suppressed")), inDoubt(lines))
	for _, r := range rows {
		item := "]E0" + deref(r.GTIN)[1:]
		if r.Serial != nil {
			exp, err := time.Parse("2006-01-02", deref(r.Expiry))
			if err != nil {
				t.Fatal(err)
			}
			item = "]d201" + deref(r.GTIN) + "21" + deref(r.Serial) + gs + "17" + exp.Format("060102") + "10" + r.Lot
		}
		if _, ok := expected[r.ScannerID+" "+item]; !ok {
			t.Errorf("row %s is of an item that nobody scanned: %s %s", r.EventID, r.ScannerID, sim.Printable(item))
		}
		expected[r.ScannerID+" "+item] = append(expected[r.ScannerID+" "+item], r)
	}
	for _, p := range people {
		for _, it := range p.items {
			p.rowsOf(t, it, expected[p.ID+" "+it], lines)
		}
	}
	if len(expected) < rounds {
		t.Errorf("%d items in %d rounds: too little load", len(expected), rounds)
	}
	if resent == 0 {
		t.Error("no kill fell between a scan and its answer: this proves little")
	}

	// The stream, resumed over all kills, has told of each event once.
	for _, r := range rows {
		committed(t, stream, r.EventID)
	}
	told := map[string]map[string]int{"accepted": {}, "committed": {}, "duplicate": {}}
	for _, e := range stream.Events() {
		if e.Kind == "gap" {
			t.Errorf("the stream has a gap: %s", e.Data)
		}
		if m := told[e.Kind]; m != nil {
			m[e.EventID]++
		}
	}
	for kind, m := range told {
		want := len(rows)
		if kind == "duplicate" {
			want = len(linesOf(lines, "suppressed"))
		}
		if len(m) != want {
			t.Errorf("%d events %s, want %d", len(m), kind, want)
		}
		for id, n := range m {
			if n != 1 {
				t.Errorf("%s of %s was told %d times", kind, id, n)
			}
		}
	}
	for _, r := range rows {
		if told["accepted"][r.EventID] != 1 {
			t.Errorf("row %s: accepted was told %d times", r.EventID, told["accepted"][r.EventID])
		}
	}
	for _, p := range people {
		for _, id := range p.told {
			if !slices.ContainsFunc(rows, func(r testenv.Row) bool { return r.EventID == id }) {
				t.Errorf("event %s was told to %s and has no row", id, p.ID)
			}
		}
	}
}

func inDoubt(lines []testenv.Line) (n int) {
	for _, l := range lines {
		if deref(l.Reason) == "in_doubt" {
			n++
		}
	}
	return n
}
