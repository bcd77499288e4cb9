package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"scanonce/idem"
)

func TestCursorsOverSegments(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 10 })
	for i := range 35 {
		r.later(time.Second, fmt.Sprint(i))
	}
	b := r.spool.NewBatch()
	note := Line{Event: NewEvent(7), Outcome: "rejected"}
	b.Note(note)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if n := r.spool.Stats().Segments; n != 4 {
		t.Fatalf("%d segments", n)
	}
	for i, seg := range r.spool.segments {
		if mapped := seg.db != nil; mapped != (i == 3) {
			t.Fatalf("segment %d of 4 is mapped: %v", i, mapped)
		}
	}
	var seqs []uint64
	for _, n := range []int{7, 7, 7, 100, 1, 100} {
		r.reopen(len(seqs)%2 == 0)
		w, err := r.spool.Next(n)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.spool.Next(n)
		if err != nil || len(again.Records) != len(w.Records) || len(w.Records) == 0 || again.Records[0].Event != w.Records[0].Event {
			t.Fatalf("not the same work again: %v, %v", again.Records, err)
		}
		for _, rec := range w.Records {
			seqs = append(seqs, rec.Seq)
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err == nil {
			t.Fatal("the same work is settled twice")
		}
		if st := r.law(); st.Committed != int64(len(seqs)) {
			t.Fatalf("%+v", st)
		}
	}
	r.drain()
	want := []uint64{}
	for i := range seqs {
		want = append(want, uint64(i+1))
	}
	if !slices.Equal(seqs, want) {
		t.Fatalf("order %v", seqs)
	}
	lines, err := r.spool.Lines(10)
	if err != nil || len(lines) != 1 || lines[0] != note {
		t.Fatalf("%+v, %v", lines, err)
	}
}

func TestSettleRefusesWhatDoesNotFit(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.later(0, fmt.Sprint(i))
	}
	w, err := r.spool.Next(2)
	if err != nil {
		t.Fatal(err)
	}
	v := verdictsOf(w.Records)
	for name, bad := range map[string][]Verdict{
		"too few":        v[:1],
		"wrong order":    {v[1], v[0]},
		"not exceptions": append([]Verdict{{Seq: 3, State: Committed}}, v...),
	} {
		if err := r.spool.Settle(w, bad, nil, nil); !errors.Is(err, errOrder) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st := r.law(); st.Pending != 3 {
		t.Fatalf("%+v", st)
	}
	if err := r.spool.Settle(w, v, nil, nil); err != nil {
		t.Fatal(err)
	}
}

func TestExceptions(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	for i := range 5 {
		r.later(time.Second, fmt.Sprint(i))
	}
	for {
		w, err := r.spool.Next(10)
		if err != nil {
			t.Fatal(err)
		}
		if w.Empty() {
			break
		}
		vs := verdictsOf(w.Records)
		for i := range vs {
			switch vs[i].Seq {
			case 1:
				vs[i] = Verdict{Seq: 1, State: Deferred, Detail: "held"}
			case 2:
				vs[i] = Verdict{Seq: 2, State: Waiting}
			case 4:
				vs[i] = Verdict{Seq: 4, State: Quarantined, Detail: "22P02"}
			}
		}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.os.pass(time.Hour)
	if r.spool.Prune(); len(r.spool.pruned) != 0 {
		t.Fatal("a segment with exceptions is pruned")
	}
	want := func(pending, quarantined int64, exceptions ...Exception) {
		t.Helper()
		for range 2 {
			st := r.law()
			if st.Pending != pending || st.Quarantined != quarantined || st.Unsettled != pending+quarantined || r.spool.Backlog() != 0 {
				t.Fatalf("%+v, backlog %d", st, r.spool.Backlog())
			}
			got := r.spool.Exceptions()
			for i := range got {
				got[i].Segment = ""
			}
			if !slices.Equal(got, exceptions) {
				t.Fatalf("exceptions %+v, want %+v", got, exceptions)
			}
			var seqs []uint64
			if err := r.spool.Unsettled(func(rec *Record, x Exception) bool {
				if x.Segment = ""; !slices.Contains(exceptions, x) || rec.Seq != x.Seq {
					t.Fatalf("unsettled %d: %+v", rec.Seq, x)
				}
				seqs = append(seqs, rec.Seq)
				return true
			}); err != nil || len(seqs) != len(exceptions) {
				t.Fatalf("unsettled %v, %v", seqs, err)
			}
			r.reopen(false)
		}
	}
	quarantined := Exception{Seq: 4, State: Quarantined, Attempts: 1, Detail: "22P02"}
	want(2, 1, Exception{Seq: 1, State: Deferred, Attempts: 1, Detail: "held"}, Exception{Seq: 2, State: Waiting, Attempts: 1}, quarantined)
	if at := r.spool.Stats().Oldest; at != r.records()[0].At {
		t.Fatalf("oldest %v", at)
	}
	settle := func(vs ...Verdict) {
		t.Helper()
		if err := r.spool.Settle(Work{}, vs, []Line{{Event: NewEvent(1)}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	settle(Verdict{Seq: 1, State: Deferred, Detail: "again"})
	want(2, 1, Exception{Seq: 1, State: Deferred, Attempts: 2, Detail: "again"}, Exception{Seq: 2, State: Waiting, Attempts: 1}, quarantined)
	rec, err := r.spool.Load(1)
	if err != nil || rec.Seq != 1 || rec.Lot != "0" {
		t.Fatalf("%+v, %v", rec, err)
	}
	settle(Verdict{Seq: 1, State: Committed}, Verdict{Seq: 2, State: Suppressed, Key: rec.Keys.Idem, Winner: rec.Event})
	want(0, 1, quarantined)
	if at := r.spool.Stats().Oldest; at != 0 {
		t.Fatalf("oldest pending %v, and only a quarantined one is left", at)
	}
	n, last := r.spool.LastSettlement()
	if n != 3 || len(last) != 2 || last[0].State != Committed || last[1].State != Suppressed || last[1].Winner != rec.Event || last[1].Key != rec.Keys.Idem {
		t.Fatalf("settlement %d: %+v", n, last)
	}
	younger := r.later(time.Second, "younger")
	if at := r.spool.Stats().Oldest; at != younger.Record.At {
		t.Fatalf("oldest pending %v, want %v", at, younger.Record.At)
	}
	r.drain()
	settle(Verdict{Seq: 4, State: Committed})
	want(0, 0)
	r.os.pass(time.Hour)
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.spool.Load(1); err == nil {
		t.Fatal("record 1 is still there")
	}
}

func TestLinesAreToldOnce(t *testing.T) {
	r := newRig(t)
	add := func(n int) {
		t.Helper()
		var ls []Line
		for range n {
			ls = append(ls, Line{Event: NewEvent(1), Outcome: "suppressed"})
		}
		if err := r.spool.Settle(Work{}, nil, ls, nil); err != nil {
			t.Fatal(err)
		}
	}
	lines := func(n int) []Line {
		t.Helper()
		ls, err := r.spool.Lines(n)
		if err != nil {
			t.Fatal(err)
		}
		return ls
	}
	add(5)
	all := lines(10)
	if len(all) != 5 || !slices.Equal(lines(2), all[:2]) {
		t.Fatalf("%d lines", len(all))
	}
	r.spool.LinesForwarded(2)
	if !slices.Equal(lines(10), all[2:]) {
		t.Fatal("forwarded lines come again")
	}
	r.reopen(false) // before a settlement took them away
	if !slices.Equal(lines(10), all) {
		t.Fatal("lines are lost in a crash")
	}
	r.spool.LinesForwarded(3)
	add(1)
	r.reopen(false)
	if got := lines(10); len(got) != 3 || !slices.Equal(got[:2], all[3:]) {
		t.Fatalf("%d lines left", len(got))
	}
	r.spool.LinesForwarded(3)
	if len(lines(10)) != 0 {
		t.Fatal("lines left")
	}
	add(1)
	r.reopen(false)
	if len(lines(10)) != 1 {
		t.Fatal("the numbers of the lines are mixed up")
	}
}

func TestPruneWaitsForTheHorizon(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	for i := range 5 {
		r.later(time.Second, fmt.Sprint(i))
	}
	if r.spool.Prune() || len(r.spool.pruned) != 0 {
		t.Fatal("nothing is settled")
	}
	r.drain()
	prune := func(segments int, waiting bool) {
		t.Helper()
		if got := r.spool.Prune(); got != waiting || len(r.spool.segments) != segments {
			t.Fatalf("waiting %v, %d segments; want %v, %d", got, len(r.spool.segments), waiting, segments)
		}
	}
	prune(3, true)
	// The newest of the first segment came 3 s before the last scan.
	r.os.pass(10*time.Minute - 3*time.Second)
	prune(3, true)
	r.os.pass(time.Nanosecond)
	prune(2, true)
	r.os.pass(2 * time.Second)
	prune(1, false)
	r.os.pass(time.Hour)
	prune(1, false) // the active one stays
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if n := len(r.spool.pruned); n != 0 {
		t.Fatalf("%d files stay", n)
	}
	// After another boot nobody knows how old it is: it counts from the start.
	r.reboot(time.Hour)
	prune(2, true)
	r.os.pass(10 * time.Minute)
	prune(2, true)
	r.os.pass(time.Nanosecond)
	prune(1, false)
}

// model follows what the spool should hold.
type model struct {
	r       *rig
	events  []idem.EventID // all, by sequence number
	state   map[uint64]State
	winner  map[uint64]uint64
	done    map[uint64]bool // settled once, if only to be an exception
	lines   []idem.EventID
	told    int // of lines, since the last settlement
	number  uint64
	items   int
	lastOne string
}

func (m *model) scan(item string) {
	d := m.r.scan(m.r.candidate(item))
	if d.Record.Seq != uint64(len(m.events)+1) {
		m.r.t.Fatalf("number %d after %d records", d.Record.Seq, len(m.events))
	}
	m.events = append(m.events, d.Record.Event)
	m.state[d.Record.Seq] = Pending
	if d.Record.IsDuplicate() {
		m.winner[d.Record.Seq] = d.Record.OfSeq
		m.state[d.Record.Seq] = Waiting
	}
}

func (m *model) settled(lines []Line, final bool) {
	for _, l := range lines {
		m.lines = append(m.lines, l.Event)
	}
	m.lines = m.lines[m.told:]
	m.told = 0
	if final {
		m.number++
	}
}

func (m *model) check() {
	t := m.r.t
	st := m.r.law()
	var want Stats
	want.Captured = int64(len(m.events))
	var open []uint64
	for seq := uint64(1); seq <= uint64(len(m.events)); seq++ {
		s := m.state[seq]
		switch s {
		case Committed:
			want.Committed++
		case Suppressed:
			want.Suppressed++
		case Quarantined:
			want.Quarantined++
		case Held:
			want.Held++
		default:
			want.Pending++
		}
		if !s.final() {
			open = append(open, seq)
		}
	}
	if st.Captured != want.Captured || st.Committed != want.Committed || st.Suppressed != want.Suppressed || st.Quarantined != want.Quarantined ||
		st.Held != want.Held || st.Pending != want.Pending || st.Unsettled != int64(len(open)) {
		t.Fatalf("counts %+v, want %+v", st, want)
	}
	var got []uint64
	if err := m.r.spool.Unsettled(func(rec *Record, x Exception) bool {
		if x.State != m.state[rec.Seq] || rec.Event != m.events[rec.Seq-1] || rec.OfSeq != m.winner[rec.Seq] {
			t.Fatalf("record %d: %v, %v; want %v, %v", rec.Seq, x.State, rec.Event, m.state[rec.Seq], m.events[rec.Seq-1])
		}
		got = append(got, rec.Seq)
		return true
	}); err != nil || !slices.Equal(got, open) {
		t.Fatalf("unsettled %v, want %v; %v", got, open, err)
	}
	ls, err := m.r.spool.Lines(1 << 20)
	if err != nil || len(ls) != len(m.lines)-m.told {
		t.Fatalf("%d lines, want %d; %v", len(ls), len(m.lines)-m.told, err)
	}
	for i, l := range ls {
		if l.Event != m.lines[m.told+i] {
			t.Fatalf("line %d is another", i)
		}
	}
	if n, _ := m.r.spool.LastSettlement(); n != m.number {
		t.Fatalf("settlement %d, want %d", n, m.number)
	}
}

func sameWork(a, b *Work) bool {
	return a.seg == b.seg && a.from == b.from && a.noteTo == b.noteTo && a.closes == b.closes && slices.Equal(a.Notes, b.Notes) &&
		slices.EqualFunc(a.Records, b.Records, func(a, b *Record) bool { return a.Event == b.Event && a.Seq == b.Seq })
}

// Whatever happens in whatever order, every record is counted once, in order, and stays until it is final.
func TestCountsAreConserved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(fastDir(t), "")
		if err != nil {
			rt.Fatal(err)
		}
		m := &model{state: map[uint64]State{}, winner: map[uint64]uint64{}, done: map[uint64]bool{}}
		m.r = rigIn(rt, dir, func(o *Options) { o.SegmentRecords, o.Horizon, o.LocalSpan = 4, 10*time.Minute, 3500*time.Millisecond })
		defer func() { m.r.spool.Close(true) }()
		verdict := func(rec *Record) Verdict {
			v := Verdict{Seq: rec.Seq, State: rapid.SampledFrom([]State{Committed, Committed, Suppressed, Deferred, Waiting, Quarantined, Held}).Draw(rt, "verdict")}
			if v.State == Suppressed {
				v.Key, v.Winner, v.Reason = rec.Keys.Idem, idem.EventID{1}, "bounce"
			}
			return v
		}
		restarted := func() { m.told = 0 }
		rt.Repeat(map[string]func(*rapid.T){
			"scan": func(*rapid.T) {
				for range rapid.IntRange(1, 3).Draw(rt, "scans") {
					m.items++
					m.lastOne = fmt.Sprint(m.items)
					m.scan(m.lastOne)
				}
			},
			"bounce": func(*rapid.T) {
				if m.lastOne != "" {
					m.scan(m.lastOne)
				}
			},
			"failed commit": func(*rapid.T) {
				if m.r.spool.active.count() >= uint64(m.r.opts.SegmentRecords) {
					return // another segment would come first
				}
				m.r.sabotage()
				if _, err := m.r.try(m.r.candidate("lost")); err == nil {
					rt.Fatal("the commit succeeded")
				}
			},
			"note": func(*rapid.T) {
				b := m.r.spool.NewBatch()
				b.Note(Line{Event: NewEvent(1)})
				if err := b.Commit(); err != nil {
					rt.Fatal(err)
				}
			},
			"go live": func(*rapid.T) { m.r.spool.GoLive() },
			"settle": func(*rapid.T) {
				next, live := m.r.spool.Next, rapid.Bool().Draw(rt, "live")
				if live {
					next = m.r.spool.NextLive
				}
				w, err := next(rapid.IntRange(1, 6).Draw(rt, "n"))
				if err != nil {
					rt.Fatal(err)
				}
				if !live && len(w.Records) > 0 {
					for seq := uint64(1); seq < w.Records[0].Seq; seq++ {
						if !m.done[seq] {
							rt.Fatalf("work begins at %d, and %d is left", w.Records[0].Seq, seq)
						}
					}
				}
				var vs []Verdict
				final := false
				take := func(rec *Record) {
					v := verdict(rec)
					vs = append(vs, v)
					m.state[v.Seq] = v.State
					final = final || v.State.final()
				}
				for _, x := range m.r.spool.Exceptions() {
					if rapid.Bool().Draw(rt, "exception") {
						rec, err := m.r.spool.Load(x.Seq)
						if err != nil {
							rt.Fatal(err)
						}
						take(rec)
					}
				}
				for i := range w.Records {
					seq := w.Records[i].Seq
					if m.done[seq] || i > 0 && seq != w.Records[i-1].Seq+1 {
						rt.Fatalf("work of %d has %d, which is done (%v) or out of order", w.Records[0].Seq, seq, m.done[seq])
					}
					m.done[seq] = true
					take(w.Records[i])
				}
				var lines []Line
				for range rapid.IntRange(0, 2).Draw(rt, "lines") {
					lines = append(lines, Line{Event: NewEvent(2)})
				}
				size := rapid.IntRange(1, 6).Draw(rt, "size")
				follows, err := m.r.spool.After(&w, size)
				if err != nil {
					rt.Fatal(err)
				}
				if err := m.r.spool.Settle(w, vs, lines, nil); err != nil {
					rt.Fatal(err)
				}
				if now, err := m.r.spool.Next(size); err != nil || !live && !sameWork(&now, &follows) {
					rt.Fatalf("foreseen %+v, got %+v, %v", follows, now, err)
				}
				if !w.Empty() || len(vs) > 0 || len(lines) > 0 {
					m.settled(append(lines, w.Notes...), final)
				}
			},
			"forward lines": func(*rapid.T) {
				ls, err := m.r.spool.Lines(rapid.IntRange(1, 5).Draw(rt, "n"))
				if err != nil {
					rt.Fatal(err)
				}
				m.r.spool.LinesForwarded(len(ls))
				m.told += len(ls)
			},
			"restart": func(*rapid.T) { m.r.reopen(rapid.Bool().Draw(rt, "clean")); restarted() },
			"reboot":  func(*rapid.T) { m.r.reboot(time.Minute); restarted() },
			"pass": func(*rapid.T) {
				m.r.os.pass(rapid.SampledFrom([]time.Duration{time.Millisecond, 2 * time.Second, time.Minute, time.Hour}).Draw(rt, "time"))
			},
			"prune": func(*rapid.T) { m.r.spool.Prune() },
			"maintain": func(*rapid.T) {
				if err := m.r.spool.Maintain(); err != nil {
					rt.Fatal(err)
				}
			},
			"": func(*rapid.T) { m.check() },
		})
	})
}

// One takes in, one settles, others look: the race detector watches, and nobody sees less or more.
func TestConcurrentUse(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.SegmentRecords, o.Horizon, o.LocalSpan = 200, 5*time.Millisecond, time.Millisecond
	})
	const total = 6000
	var wg sync.WaitGroup
	done := make(chan struct{})
	broken := func(err error) bool { return errors.Is(err, bolt.ErrDatabaseNotOpen) } // between a sabotage and its commit
	wg.Go(func() {                                                                    // intake
		tries := 0
		for n := 0; n < total; {
			r.os.pass(time.Millisecond)
			b := r.spool.NewBatch()
			for i := range 20 {
				c := r.candidate(fmt.Sprint(n + i))
				if _, err := b.Decide(&c); err != nil {
					t.Error(err)
				}
			}
			fails := tries%10 == 9
			tries++
			if fails {
				r.sabotage()
			}
			if err := b.Commit(); (err != nil) != fails {
				t.Error(err)
			}
			if !fails {
				n += 20
			}
			if err := r.spool.Maintain(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Go(func() { // settling
		defer close(done)
		for settled := 0; settled < total; {
			w, err := r.spool.Next(50)
			if broken(err) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			if w.Empty() {
				<-r.spool.Wake()
				continue
			}
			vs := verdictsOf(w.Records)
			if len(vs) > 2 {
				vs[0].State = Deferred
			}
			var exceptions []Verdict
			for _, x := range r.spool.Exceptions() {
				if _, err := r.spool.Load(x.Seq); err != nil && !broken(err) {
					t.Error(err)
				}
				exceptions = append(exceptions, Verdict{Seq: x.Seq, State: Committed})
			}
			if err := r.spool.Settle(w, append(exceptions, vs...), nil, nil); err != nil {
				t.Error(err)
			}
			settled += len(w.Records)
			r.spool.Prune()
		}
	})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				st := r.spool.Stats()
				if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Unaccounted {
					t.Errorf("%+v", st)
				}
				last := uint64(0)
				if err := r.spool.Unsettled(func(rec *Record, x Exception) bool {
					if rec.Seq <= last {
						t.Errorf("%d after %d", rec.Seq, last)
					}
					last = rec.Seq
					return true
				}); err != nil && !broken(err) {
					t.Error(err)
				}
				if err := r.spool.Since(0, func(rec *Record) bool { return true }); err != nil && !broken(err) {
					t.Error(err)
				}
				r.spool.Exceptions()
				r.spool.Backlog()
			}
		})
	}
	wg.Wait()
	if st := r.law(); st.Captured != total || st.Segments > 10 {
		t.Fatalf("%+v", st)
	}
}

// Whoever reads slowly does not hold up the scanners.
func TestASlowReaderHoldsNobodyUp(t *testing.T) {
	r := newRig(t)
	r.scan(r.candidate("first"))
	read, go_ := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		r.spool.Since(0, func(*Record) bool { close(read); <-go_; return false })
	})
	<-read
	for i := range 40 { // the file outgrows its mapping several times
		b := r.spool.NewBatch()
		for j := range 100 {
			r.decide(b, r.candidate(fmt.Sprint(i, j)))
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	r.drain()
	close(go_)
	wg.Wait()
}

// With every segment settled and gone the numbers go on, also without the sidecar.
func TestNumbersGoOnWithoutSegments(t *testing.T) {
	for _, sidecar := range []bool{true, false} {
		r := newRig(t)
		r.later(0, "A")
		r.later(0, "B")
		r.drain()
		r.reopen(true)
		r.os.pass(time.Hour)
		r.spool.Prune()
		if err := r.spool.Close(true); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(r.path("*" + segmentExt)); err != nil || len(left) != 0 {
			t.Fatalf("%v is left: nothing is tested", left)
		}
		if !sidecar {
			if err := os.Remove(r.path(sidecarName)); err != nil {
				t.Fatal(err)
			}
		}
		r.open()
		r.law()
		if d := r.later(0, "C"); d.Record.Seq != 3 {
			t.Fatalf("number %d, sidecar %v", d.Record.Seq, sidecar)
		}
		if st := r.law(); st.Captured != 3 || st.Pending != 1 {
			t.Fatalf("%+v", st)
		}
	}
}

func TestClosedSpool(t *testing.T) {
	r := newRig(t)
	r.scan(r.candidate("A"))
	b := r.spool.NewBatch()
	r.decide(b, r.candidate("B"))
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	var ce *CommitError
	if err := b.Commit(); !errors.As(err, &ce) || !errors.Is(err, ErrClosed) {
		t.Fatalf("commit: %v", err)
	}
	if err := r.spool.Since(0, func(*Record) bool { return true }); !errors.Is(err, ErrClosed) {
		t.Fatalf("read: %v", err)
	}
	if st := r.spool.Stats(); st.Captured != 1 {
		t.Fatalf("%+v", st)
	}
	r.open()
}

// After an outage the scans from now on are settled before the backlog, and each is settled once, whatever is
// killed in between.
func TestLiveScansGoBeforeTheBacklog(t *testing.T) {
	r := newRig(t)
	settle := func(next func(int) (Work, error), n int) (seqs []uint64) {
		w, err := next(n)
		if err != nil {
			t.Fatal(err)
		}
		var vs []Verdict
		for i := range w.Records {
			seqs = append(seqs, w.Records[i].Seq)
			vs = append(vs, Verdict{Seq: w.Records[i].Seq, State: Committed})
		}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	scan := func(n int) {
		for range n {
			r.os.pass(time.Millisecond)
			r.scan(r.candidate(fmt.Sprint("item", r.os.boot)))
		}
	}
	want := func(got []uint64, from, to uint64) {
		t.Helper()
		for seq := from; seq <= to; seq++ {
			if uint64(len(got)) != to-from+1 || got[seq-from] != seq {
				t.Fatalf("settled %v, want %d..%d", got, from, to)
			}
		}
	}
	scan(10)
	if w, err := r.spool.NextLive(5); err != nil || !w.Empty() {
		t.Fatal("something is live before GoLive", err)
	}
	r.spool.GoLive()
	scan(3)
	want(settle(r.spool.NextLive, 5), 11, 13)
	want(settle(r.spool.Next, 4), 1, 4)
	r.reopen(false)
	scan(1)
	want(settle(r.spool.NextLive, 5), 14, 14)
	r.spool.GoLive() // the backlog of before is left: nothing changes
	scan(1)
	want(settle(r.spool.NextLive, 5), 15, 15)
	want(settle(r.spool.Next, 100), 5, 10)
	if w, err := r.spool.NextLive(5); err != nil || !w.Empty() {
		t.Fatal("nothing is in front, and yet something is live", err)
	}
	if st := r.spool.Stats(); st.Pending != 0 || st.Committed != 15 {
		t.Fatalf("%+v", st)
	}
	scan(2)
	want(settle(r.spool.Next, 100), 16, 17)
	scan(5)
	r.spool.GoLive()
	scan(1)
	want(settle(r.spool.NextLive, 5), 23, 23)
	r.reopen(false)
	want(settle(r.spool.Next, 100), 18, 22)
	if st := r.spool.Stats(); st.Pending != 0 || st.Committed != 23 {
		t.Fatalf("%+v", st)
	}
}
