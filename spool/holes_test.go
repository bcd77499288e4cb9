package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// holed is a chain of five segments of two records, of which the second and fourth hold a quarantined one, with
// everything else settled and old.
func holed(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	for i := range 10 {
		r.later(time.Second, fmt.Sprint(i))
	}
	r.settleBut(map[uint64]Verdict{3: {State: Quarantined, Detail: "poison"}, 8: {State: Held}})
	r.os.pass(time.Hour)
	return r
}

// settleBut settles what is next, with other verdicts on some records.
func (r *rig) settleBut(other map[uint64]Verdict) {
	r.t.Helper()
	for {
		w, err := r.spool.Next(100)
		if err != nil {
			r.t.Fatal(err)
		}
		if w.Empty() {
			return
		}
		vs := verdictsOf(w.Records)
		for i, v := range vs {
			if o, ok := other[v.Seq]; ok {
				o.Seq = v.Seq
				vs[i] = o
			}
		}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			r.t.Fatal(err)
		}
	}
}

// prune prunes and unlinks.
func (r *rig) prune() {
	r.t.Helper()
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		r.t.Fatal(err)
	}
}

// files are the numbers at which the segment files begin.
func (r *rig) files() (firsts []uint64) {
	r.t.Helper()
	names, err := spoolFiles(r.path(""))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, n := range names {
		if _, first, ok := parseSegmentName(n); ok {
			firsts = append(firsts, first)
		}
	}
	slices.Sort(firsts)
	return firsts
}

// A record that waits for a person keeps its own segment, and no other.
func TestBusySegmentsHoldNobodyUp(t *testing.T) {
	r := holed(t)
	if r.spool.Prune() {
		t.Error("nothing waits for its age")
	}
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	want := []uint64{3, 7, 9}
	if got := r.files(); !slices.Equal(got, want) {
		t.Fatalf("the segments that stay begin at %v, want %v", got, want)
	}
	check := func(when string) {
		t.Helper()
		st := r.law()
		if st.Captured != 10 || st.Committed != 8 || st.Quarantined != 1 || st.Held != 1 || st.Unaccounted != 0 {
			t.Errorf("%s: %+v", when, st)
		}
		if hs := r.spool.takeHealings(); len(hs) != 0 {
			t.Errorf("%s: %+v", when, hs)
		}
		var seqs []uint64
		for _, x := range r.records() {
			seqs = append(seqs, x.Seq)
		}
		for _, seq := range []uint64{3, 4, 7, 8} {
			if !slices.Contains(seqs, seq) {
				t.Errorf("%s: record %d is gone: %v", when, seq, seqs)
			}
		}
		for _, seq := range []uint64{3, 8} {
			if rec, err := r.spool.Load(seq); err != nil || rec.Seq != seq {
				t.Errorf("%s: record %d: %v", when, seq, err)
			}
		}
		for _, seq := range []uint64{1, 2, 5, 6} {
			if rec, err := r.spool.Load(seq); err == nil && len(r.spool.tail) == 0 {
				t.Errorf("%s: record %d is %d", when, seq, rec.Seq)
			}
		}
		var open []uint64
		if err := r.spool.Unsettled(func(rec *Record, x Exception) bool { open = append(open, rec.Seq); return true }); err != nil || !slices.Equal(open, []uint64{3, 8}) {
			t.Errorf("%s: unsettled %v, %v", when, open, err)
		}
		if w, err := r.spool.Next(10); err != nil || !w.Empty() {
			t.Errorf("%s: %+v, %v", when, w, err)
		}
		report, err := r.spool.Verify(context.Background())
		if err != nil || len(report.Damaged) != 0 || report.Unaccounted != 0 || report.Records != report.Readable {
			t.Errorf("%s: %+v, %v", when, report, err)
		}
	}
	check("at once")
	for _, how := range []string{"kill", "clean stop"} {
		r.reopen(how != "kill")
		check("after a " + how)
	}
	verify := func(when string) {
		t.Helper()
		report, err := VerifyFolder(r.path(""), r.opts.Keys)
		if err != nil || len(report.Damaged) != 0 || report.Unaccounted != 0 || report.Records != report.Readable {
			t.Errorf("%s: %+v, %v", when, report, err)
		}
	}
	r.kill()
	verify("in the folder")
	if err := os.Remove(r.path(sidecarName)); err != nil {
		t.Fatal(err)
	}
	verify("without the sidecar")
	r.open()
	check("without the sidecar")
	// Once it is final its segment goes too.
	vs := []Verdict{{Seq: 3, State: Committed}, {Seq: 8, State: Committed}}
	if err := r.spool.Settle(Work{}, vs, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.os.pass(time.Hour)
	r.prune()
	if got := r.spool.Stats(); got.Segments != 1 || got.Committed != 10 {
		t.Errorf("%+v", got)
	}
}

// A segment that has lost its end is damaged, hole behind it or not.
func TestLostEndBesideAHole(t *testing.T) {
	r := holed(t)
	r.prune()
	seg := r.spool.segments[0] // records 3 and 4
	r.kill()
	short, err := openSegment(r.path(""), seg.name, r.opts.Keys, seg.head)
	if err != nil {
		t.Fatal(err)
	}
	cutAfter(t, r, short, 3)
	r.open()
	if st := r.law(); st.Quarantined != 1 || st.Committed != 8 || st.Unaccounted != 0 {
		t.Errorf("%+v", st) // record 4 was settled
	}
	hs := r.spool.takeHealings()
	if len(hs) != 1 || hs[0].File != seg.name || hs[0].Records != 1 || hs[0].Unaccounted != 0 {
		t.Errorf("%+v", hs)
	}
	if got := r.spool.segments[0]; got.last != 4 || !got.lost.has(4) || got.lost.has(3) || got.lost.within(5, 100) != 0 {
		t.Errorf("%d, %v", got.last, got.lost)
	}
}

// cutAfter writes a segment anew without its records behind one.
func cutAfter(t *testing.T, r *rig, seg *segment, last uint64) {
	t.Helper()
	rs, err := seg.read(seg.first, last, 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := seg.end(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(seg.path); err != nil {
		t.Fatal(err)
	}
	fresh, err := createSegment(r.path(""), r.opts.Keys, *seg.head)
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.write(rs, nil); err != nil {
		t.Fatal(err)
	}
	if err := fresh.end(); err != nil {
		t.Fatal(err)
	}
}

// Records behind a hole that are lost together with the sidecar are told of.
func TestLossBesideAHoleWithoutTheSidecar(t *testing.T) {
	r := holed(t)
	r.prune()
	for range 3 {
		r.later(time.Second, fmt.Sprint("more ", r.spool.NextSeq()))
	}
	r.kill()
	// Records 11 and 12 are pending; their segment and the sidecar go.
	for _, seg := range r.spool.segments {
		if seg.first == 11 {
			if err := os.Remove(seg.path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Remove(r.path(sidecarName)); err != nil {
		t.Fatal(err)
	}
	r.open()
	if st := r.law(); st.Captured != 13 || st.Unaccounted != 2 || st.Pending != 1 || st.Committed != 8 {
		t.Errorf("%+v", st)
	}
	lost := int64(0)
	for _, h := range r.spool.takeHealings() {
		lost += h.Unaccounted
	}
	if lost != 2 {
		t.Errorf("%d are told of", lost)
	}
}

// The backlog and live scans find their way over a hole.
func TestWorkOverAHole(t *testing.T) {
	r := holed(t)
	r.prune()
	for range 4 {
		r.later(time.Second, fmt.Sprint("backlog ", r.spool.NextSeq()))
	}
	r.spool.GoLive()
	for range 4 {
		r.later(time.Second, fmt.Sprint("live ", r.spool.NextSeq()))
	}
	var live []uint64
	for {
		w, err := r.spool.NextLive(10)
		if err != nil {
			t.Fatal(err)
		}
		if w.Empty() {
			break
		}
		for _, rec := range w.Records {
			live = append(live, rec.Seq)
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(live, []uint64{15, 16, 17, 18}) {
		t.Errorf("live: %v", live)
	}
	r.drain()
	r.os.pass(time.Hour)
	r.prune()
	if got := r.files(); !slices.Equal(got, []uint64{3, 7, 17}) {
		t.Errorf("%v", got)
	}
	r.reopen(false)
	if st := r.law(); st.Captured != 18 || st.Committed != 16 || st.Pending != 0 {
		t.Errorf("%+v", st)
	}
}

// A backup of a chain with holes is as good as one without.
func TestBackupOfAHoledChain(t *testing.T) {
	r := holed(t)
	r.prune()
	if err := r.spool.Rotate(); err != nil {
		t.Fatal(err)
	}
	b := r.backup(t)
	b.open()
	defer b.spool.Close(true)
	if st := b.law(); st.Captured != 10 || st.Committed != 8 || st.Quarantined != 1 || st.Held != 1 || st.Unaccounted != 0 {
		t.Errorf("%+v", st)
	}
}

// What state.db loses of a holed chain is sent again as far as it is there, and the rest was settled.
func TestStateLostWithHoles(t *testing.T) {
	r := holed(t)
	r.prune()
	r.kill()
	if err := os.Remove(r.path(stateName)); err != nil {
		t.Fatal(err)
	}
	r.open()
	if st := r.law(); st.Pending != 6 || st.Unaccounted != 0 || st.Captured != 6 {
		t.Errorf("%+v", st)
	}
	r.drain()
	r.law()
}

// What a damage has taken stays counted when its segment goes, also over a kill right behind that.
func TestUnaccountedOutlastsItsSegment(t *testing.T) {
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprintf("a settlement before the kill %v", settled), func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 4 })
			for i := range 6 {
				r.later(time.Second, fmt.Sprint(i))
			}
			seg := r.spool.segments[0]
			r.kill()
			short, err := openSegment(r.path(""), seg.name, r.opts.Keys, seg.head)
			if err != nil {
				t.Fatal(err)
			}
			cutAfter(t, r, short, 2)
			r.open()
			if st := r.law(); st.Unaccounted != 2 || st.Pending != 4 {
				t.Fatalf("%+v", st)
			}
			r.spool.takeHealings()
			r.drain()
			r.os.pass(time.Hour)
			r.spool.Prune()
			if st := r.law(); st.Unaccounted != 2 || st.Committed != 4 {
				t.Errorf("once it is pruned: %+v", st)
			}
			if err := r.spool.Maintain(); err != nil {
				t.Fatal(err)
			}
			if settled {
				r.later(time.Second, "one more")
				r.drain()
			}
			r.reopen(false)
			if st := r.law(); st.Unaccounted != 2 || st.Pending != 0 {
				t.Errorf("after the kill: %+v", st)
			}
			if hs := r.spool.takeHealings(); len(hs) != 0 {
				t.Errorf("the same loss is told again: %+v", hs)
			}
		})
	}
}

// In front of a hole nothing is a scanner's last acceptance: that is gone for its age.
func TestDoubtEndsAtAHole(t *testing.T) {
	r := holed(t)
	r.reopen(false)
	r.os.pass(time.Hour)
	r.prune()
	if got := r.files(); !slices.Equal(got, []uint64{3, 7, 11}) {
		t.Fatalf("%v", got)
	}
	r.reboot(time.Minute)
	old := r.candidate("7") // the last record in front of the hole
	r.wantNew(r.scan(old), "an item of long ago")
}

// A record that is given up is final, its duplicates are known by it, and its segment goes.
func TestDiscarded(t *testing.T) {
	fails := false
	r := newRig(t, func(o *Options) {
		o.SegmentRecords = 2
		o.Disk = func(step DiskStep, _ string, do func() error) error {
			if err := do(); err != nil || !fails || step != DiskCommit {
				return err
			}
			fails = false
			return errors.New("the disk is gone")
		}
	})
	first := r.later(time.Second, "A")
	r.later(time.Second, "B")
	r.settleBut(map[uint64]Verdict{1: {State: Quarantined, Detail: "poison"}})
	again := r.later(100*time.Millisecond, "A")
	r.wantDuplicate(again, first, ReasonBounce, "an echo")
	line := Line{Event: first.Record.Event, Outcome: "discarded"}
	give := []Verdict{{Seq: 1, State: Discarded, Detail: "J. Doe"}}
	if err := r.spool.Settle(Work{}, give, []Line{line}, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Settle(Work{}, give, []Line{line}, nil); err != errOrder {
		t.Errorf("twice: %v", err)
	}
	check := func(when string, discarded, pending int64) {
		t.Helper()
		if st := r.law(); st.Discarded != discarded || st.Pending != pending || st.Quarantined != 0 || st.Unaccounted != 0 {
			t.Errorf("%s: %+v", when, st)
		}
		if xs := r.spool.Exceptions(); len(xs) != 0 {
			t.Errorf("%s: %+v", when, xs)
		}
	}
	check("at once", 1, 1)
	fails = true
	for want := range 2 { // a transaction that fails leaves nothing, and what undoes it forgets nothing
		if err := r.spool.Settle(Work{}, nil, []Line{{Event: first.Record.Of, Outcome: "notice"}}, nil); (err == nil) != (want == 1) {
			t.Fatal(err)
		}
	}
	r.reopen(false)
	check("after a kill", 1, 1)
	if x := r.spool.Exception(1); x.State != Discarded || x.Detail != "J. Doe" {
		t.Fatalf("%+v", x)
	}
	r.os.pass(time.Hour)
	r.prune()
	if got := r.files(); got[0] != 3 {
		t.Errorf("%v", got)
	}
	if x := r.spool.Exception(1); x.State != Discarded {
		t.Fatalf("its duplicate waits, and nobody knows: %+v", x)
	}
	w, err := r.spool.Next(10)
	if err != nil || len(w.Records) != 1 {
		t.Fatal(w, err)
	}
	if err := r.spool.Settle(w, []Verdict{{Seq: 3, State: Discarded, Detail: "J. Doe"}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	check("with its duplicate", 2, 0)
	r.later(time.Second, "C")
	r.drain()
	r.later(time.Second, "D")
	r.drain()
	if len(r.spool.state.discarded) != 0 {
		t.Errorf("remembered for ever: %+v", r.spool.state.discarded)
	}
	r.reopen(false)
	check("in the end", 2, 0)
	if len(r.spool.state.discarded) != 0 {
		t.Errorf("remembered for ever: %+v", r.spool.state.discarded)
	}
}

// A gap of numbers that no time explains ends no doubt: the scan in front of it may be typed again.
func TestDoubtInFrontOfAGap(t *testing.T) {
	r := newRig(t)
	first := r.candidate("A")
	b := r.spool.NewBatch()
	told := r.decide(b, first)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.spool.mu.Lock()
	r.spool.next += 3
	r.spool.mu.Unlock()
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	r.kill()
	r.os.pass(5 * time.Second)
	r.open()
	again := r.candidate("A")
	if d := r.decide(r.spool.NewBatch(), again); d.Record.Of != told.Record.Event || d.Record.Reason != ReasonInDoubt {
		t.Errorf("typed again behind a kill: %+v", d.Record)
	}
}
