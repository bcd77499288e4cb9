package spool

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// fakeOS is a machine whose clocks the test moves.
type fakeOS struct {
	mu     sync.Mutex // of pass against those who look
	wall   time.Time
	boot   time.Duration
	bootID string
	synced bool
}

func (o *fakeOS) Wall() time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wall
}

func (o *fakeOS) Boot() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.boot
}

func (o *fakeOS) BootID() string                    { return o.bootID }
func (o *fakeOS) WallSynced() (bool, time.Duration) { return o.synced, 0 }

func (o *fakeOS) pass(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.boot, o.wall = o.boot+d, o.wall.Add(d)
}

func newFakeOS() *fakeOS {
	return &fakeOS{wall: time.UnixMilli(1_764_000_000_000), boot: time.Hour, bootID: "boot-1"}
}

// tb is what a rig needs of a test, ordinary or by properties.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// rig is a spool with its clock.
type rig struct {
	t     tb
	os    *fakeOS
	dir   string
	opts  Options
	spool *Spool
	clock *window.Clock
}

func newRig(t testing.TB, set ...func(*Options)) *rig {
	t.Helper()
	r := rigIn(t, fastDir(t), set...)
	t.Cleanup(func() {
		if err := r.spool.Close(true); err != nil {
			t.Error(err)
		}
	})
	return r
}

// fastDir is a temporary folder in memory, if the machine has one: no test here cuts the power.
func fastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "spool-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func rigIn(t tb, dir string, set ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, os: newFakeOS(), dir: dir}
	r.opts = Options{Agent: "agent-1", MaxRecords: 1_000_000, MaxBytes: 1 << 30, SegmentRecords: 100_000, Horizon: 10 * time.Minute, LocalSpan: 3500 * time.Millisecond}
	for _, f := range set {
		f(&r.opts)
	}
	r.open()
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, "spool", name) }

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

// kill ends the run as SIGKILL does: no sidecar, no flag.
func (r *rig) kill() { r.spool.closeFiles() }

func (r *rig) reopen(clean bool) {
	r.t.Helper()
	if clean {
		if err := r.spool.Close(true); err != nil {
			r.t.Fatal(err)
		}
	} else {
		r.kill()
	}
	r.open()
}

// reboot starts the machine anew: the boottime begins again, off later.
func (r *rig) reboot(off time.Duration) {
	r.t.Helper()
	r.kill()
	r.os.bootID += "+"
	r.os.boot = 20 * time.Second
	r.os.wall = r.os.wall.Add(off)
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
	d, err := r.try(c)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) try(c Candidate) (Decision, error) {
	b := r.spool.NewBatch()
	d, err := b.Decide(&c)
	if err == nil {
		err = b.Commit()
	}
	return d, err
}

// later scans the item d after now.
func (r *rig) later(d time.Duration, item string) Decision {
	r.t.Helper()
	r.os.pass(d)
	return r.scan(r.candidate(item))
}

func (r *rig) wantNew(d Decision, what string) {
	r.t.Helper()
	if d.Record.IsDuplicate() {
		r.t.Fatalf("%s: told as a duplicate (%s)", what, d.Record.Reason)
	}
}

func (r *rig) wantDuplicate(d, of Decision, reason, what string) {
	r.t.Helper()
	got, first := d.Record, of.Record
	if !got.IsDuplicate() {
		r.t.Fatalf("%s: told as new", what)
	}
	if got.Of != first.Event || got.OfSeq != first.Seq || got.Reason != reason {
		r.t.Fatalf("%s: of %v (%d), %s; want of %v (%d), %s", what, got.Of, got.OfSeq, got.Reason, first.Event, first.Seq, reason)
	}
	if got.Keys != first.Keys || got.Extras != first.Extras || got.Quantity != first.Quantity || got.Type != first.Type {
		r.t.Fatalf("%s: keys, quantity or type are not those of the first", what)
	}
	if d.Winner.Event != first.Event || d.Winner.At != first.At {
		r.t.Fatalf("%s: winner %v at %v; want %v at %v", what, d.Winner.Event, d.Winner.At, first.Event, first.At)
	}
}

// law checks the conservation of counts.
func (r *rig) law() Stats {
	r.t.Helper()
	st := r.spool.Stats()
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Discarded+st.Unaccounted {
		r.t.Fatalf("counts are not conserved: %+v", st)
	}
	return st
}

// drain settles everything as committed or, for duplicates, suppressed.
func (r *rig) drain() {
	r.t.Helper()
	for {
		w, err := r.spool.Next(500)
		if err != nil {
			r.t.Fatal(err)
		}
		if w.Empty() {
			return
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
			r.t.Fatal(err)
		}
		r.law()
	}
}

func verdictsOf(rs []*Record) (vs []Verdict) {
	for _, rec := range rs {
		v := Verdict{Seq: rec.Seq, State: Committed}
		if rec.IsDuplicate() {
			v = Verdict{Seq: rec.Seq, State: Suppressed, Key: rec.Keys.Idem, Winner: rec.Of, Reason: rec.Reason}
		}
		vs = append(vs, v)
	}
	return vs
}

// records lists the whole chain.
func (r *rig) records() (out []Record) {
	r.t.Helper()
	if err := r.spool.Since(0, func(rec *Record) bool { out = append(out, *rec); return true }); err != nil {
		r.t.Fatal(err)
	}
	return out
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
		[]Line{{Event: dup.Record.Event, Outcome: "suppressed"}}, nil); err != nil {
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
