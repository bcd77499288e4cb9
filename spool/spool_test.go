package spool

import (
	"path/filepath"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// fakeOS is a machine whose clocks the test moves.
type fakeOS struct {
	wall   time.Time
	boot   time.Duration
	bootID string
	synced bool
}

func (o *fakeOS) Wall() time.Time                   { return o.wall }
func (o *fakeOS) Boot() time.Duration               { return o.boot }
func (o *fakeOS) BootID() string                    { return o.bootID }
func (o *fakeOS) WallSynced() (bool, time.Duration) { return o.synced, 0 }
func (o *fakeOS) pass(d time.Duration)              { o.boot += d; o.wall = o.wall.Add(d) }

func newFakeOS() *fakeOS {
	return &fakeOS{wall: time.UnixMilli(1_764_000_000_000), boot: time.Hour, bootID: "boot-1"}
}

// rig is a spool with its clock.
type rig struct {
	t     testing.TB
	os    *fakeOS
	dir   string
	opts  Options
	spool *Spool
	clock *window.Clock
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, os: newFakeOS(), dir: t.TempDir()}
	r.opts = Options{Agent: "agent-1", MaxRecords: 1_000_000, MaxBytes: 1 << 30, SegmentRecords: 100_000, Horizon: 10 * time.Minute, LocalSpan: 3500 * time.Millisecond}
	r.open()
	t.Cleanup(func() { r.spool.Close(true) })
	return r
}

func (r *rig) open() {
	r.t.Helper()
	ring, err := LoadKeyRing(filepath.Join(r.dir, "keys", "spool.key"), true)
	if err != nil {
		r.t.Fatal(err)
	}
	r.opts.Keys, r.opts.BootID, r.opts.Boot = ring, r.os.bootID, r.os.Boot
	if r.spool, err = Open(filepath.Join(r.dir, "spool"), r.opts); err != nil {
		r.t.Fatal(err)
	}
	mark, high := r.spool.Mark()
	r.clock = window.NewClock(r.os, mark, window.ClockOptions{HighWater: high})
	if err := r.spool.Begin(r.clock); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) reopen(clean bool) {
	r.t.Helper()
	if clean {
		if err := r.spool.Close(true); err != nil {
			r.t.Fatal(err)
		}
	} else {
		r.spool.closeFiles() // what a kill leaves: no sidecar, no flag
	}
	r.open()
}

// candidate is a dispense of the item at the current instant.
func (r *rig) candidate(item string) Candidate {
	return Candidate{Physical: idem.PhysicalKey("SCN-04", []byte(item)),
		Identity: idem.Identity{Facility: "F", Scanner: "SCN-04", NDC: "00093721410", Lot: item, Quantity: 1, Type: window.Dispense},
		Policy:   window.Default(window.Dispense), At: r.clock.Now(), Item: Item{NDC: "00093721410", Lot: item, PkgLevel: 0}}
}

// scan decides and commits one candidate.
func (r *rig) scan(c Candidate) Decision {
	r.t.Helper()
	b := r.spool.NewBatch()
	d, err := b.Decide(&c)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		r.t.Fatal(err)
	}
	return d
}

func TestCaptureSettleAndRestart(t *testing.T) {
	r := newRig(t)
	d := r.scan(r.candidate("A"))
	r.os.pass(200 * time.Millisecond)
	dup := r.scan(r.candidate("A"))
	if dup.Record.Of != d.Record.Event || dup.Record.Keys != d.Record.Keys {
		t.Fatalf("the bounce is no duplicate of the first: %+v", dup.Record)
	}
	w, err := r.spool.Next(10)
	if err != nil || len(w.Records) != 2 {
		t.Fatalf("%d records, %v", len(w.Records), err)
	}
	if err := r.spool.Settle(w, []Verdict{{Seq: 1, State: Committed}, {Seq: 2, State: Suppressed, Key: d.Record.Keys.Idem, Winner: d.Record.Event}},
		[]Line{{Event: dup.Record.Event, Outcome: "suppressed"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		st := r.spool.Stats()
		if st.Captured != 2 || st.Committed != 1 || st.Suppressed != 1 || st.Pending != 0 {
			t.Fatalf("%+v", st)
		}
		if w, err := r.spool.Next(10); err != nil || !w.Empty() {
			t.Fatalf("something is left: %+v, %v", w, err)
		}
		lines, err := r.spool.Lines(10)
		if err != nil || len(lines) != 1 || lines[0].Event != dup.Record.Event {
			t.Fatalf("%+v, %v", lines, err)
		}
		r.reopen(false)
	}
	r.os.pass(2 * time.Second)
	if late := r.scan(r.candidate("A")); late.Record.Of != d.Record.Event {
		t.Fatal("after a restart, and with everything drained, the bounce counts as new")
	}
}
