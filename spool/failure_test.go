package spool

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// sabotage closes the active segment's file underneath, so that the next commit fails.
func (r *rig) sabotage() {
	r.t.Helper()
	if err := r.spool.active.db.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// memory is a copy of what the local rule remembers.
func (r *rig) memory() string {
	var b strings.Builder
	for hash, a := range r.spool.recent.physical {
		fmt.Fprintf(&b, "%x %+v\n", hash[:4], *a)
	}
	lines := strings.Split(b.String(), "\n")
	keys := map[string]string{}
	for k, a := range r.spool.recent.keys {
		keys[k.String()] = a.event.String()
	}
	doubts := map[string]string{}
	for s, d := range r.spool.recent.doubts {
		doubts[s] = fmt.Sprint(d.acc.event, d.boot)
	}
	set := map[string]bool{}
	for _, l := range lines {
		set[l] = true
	}
	return fmt.Sprint(set, keys, doubts)
}

func TestFailedCommitLeavesNoTrace(t *testing.T) {
	r := newRig(t)
	r.later(0, "old")
	r.later(0, "last")
	r.reopen(false) // "last" is in doubt
	r.os.pass(time.Second)
	before := r.memory()
	name := r.spool.active.name

	b := r.spool.NewBatch()
	c := r.candidate("new")
	c.Identity.Scanner = "SCN-05" // does not end the doubt
	r.wantNew(r.decide(b, c), "first of the batch")
	r.wantDuplicate(r.decide(b, c), Decision{Record: b.records[0], Winner: Winner{b.records[0].Event, b.records[0].At}}, ReasonBounce, "bounce in the batch")
	r.decide(b, r.candidate("old"))
	r.os.pass(time.Minute)
	r.wantNew(r.decide(b, r.candidate("old")), "old again")
	conv := r.candidate("old")
	conv.Converts = conv.At.Boot - time.Second
	r.decide(b, conv)
	b.Note(Line{Event: NewEvent(1), Outcome: "rejected"})
	r.sabotage()
	var ce *CommitError
	if err := b.Commit(); !errors.As(err, &ce) || ce.NoSpace || !errors.Is(err, bolt.ErrDatabaseNotOpen) {
		t.Fatalf("commit: %v", err)
	}
	if after := r.memory(); after != before {
		t.Fatalf("the local rule remembers\n%s\nbefore it was\n%s", after, before)
	}
	if st := r.law(); st.Captured != 2 {
		t.Fatalf("%+v", st)
	}
	if r.spool.active == nil || r.spool.active.name == name {
		t.Fatal("the broken segment is still the active one")
	}
	if d := r.scan(c); d.Record.Seq != 3 || d.Record.IsDuplicate() {
		t.Fatalf("the scan that was not accepted comes again: %+v", d.Record)
	}
	r.reopen(false)
	if got := r.records(); len(got) != 3 || got[2].Seq != 3 {
		t.Fatalf("%d records", len(got))
	}
}

// A transaction that failed may be on disk all the same. Nothing of it was accepted, whichever segment broke
// and whether another could be begun.
func TestRecordsBehindTheCutAreIgnored(t *testing.T) {
	type stop struct {
		name  string
		block func(r *rig) (undo func()) // keeps a segment from being begun
		clean bool
	}
	noSegment := func(r *rig) func() {
		next := r.path(segmentName(r.spool.epoch, r.spool.next))
		if err := os.MkdirAll(filepath.Join(next, "in the way"), 0o700); err != nil {
			r.t.Fatal(err)
		}
		return func() {}
	}
	nothing := func(r *rig) func() {
		r.spool.dir += "-away"
		return func() { r.spool.dir = r.path("") }
	}
	for _, accepted := range []int{0, 1, 3} {
		stops := []stop{{"rolled", nil, false}, {"rolled, clean", nil, true}, {"nothing could be written, clean", nothing, true}}
		if accepted > 0 {
			stops = append(stops, stop{"no segment could be made", noSegment, false})
		}
		for _, stop := range stops {
			t.Run(fmt.Sprintf("%d accepted, %s", accepted, stop.name), func(t *testing.T) {
				tries := 1
				if accepted == 0 { // two segments begin at 1: the order of their random names must not matter
					tries = 6
				}
				for range tries {
					r := newRig(t)
					for i := range accepted {
						r.later(time.Minute, fmt.Sprint(i))
					}
					r.os.pass(time.Minute)
					b := r.spool.NewBatch()
					for i := range 3 {
						r.decide(b, r.candidate(fmt.Sprint("lost", i)))
					}
					if err := r.spool.active.write(b.records, nil); err != nil { // it reached the disk
						t.Fatal(err)
					}
					r.sabotage()
					undo := func() {}
					if stop.block != nil {
						undo = stop.block(r)
					}
					if err := b.Commit(); err == nil {
						t.Fatal("the commit succeeded")
					}
					undo()
					want := accepted
					if stop.block == nil {
						r.later(time.Minute, "next")
						r.later(time.Minute, "and next")
						want += 2
					}
					r.reopen(stop.clean)
					got := r.records()
					if len(got) != want {
						t.Fatalf("%d records, want %d", len(got), want)
					}
					for i, rec := range got {
						if rec.Seq != uint64(i+1) || strings.HasPrefix(rec.Lot, "lost") {
							t.Fatalf("record %d has number %d and lot %s", i, rec.Seq, rec.Lot)
						}
					}
					if st := r.law(); st.Captured != int64(want) {
						t.Fatalf("%+v", st)
					}
				}
			})
		}
	}
}

// Every t that a record has was reserved before, so that a later run on a bad clock begins behind it.
func TestEveryTIsReserved(t *testing.T) {
	r := newRig(t)
	for range 5 {
		d := r.later(50*time.Second, "A")
		side, _, err := readSidecar(r.path(""))
		if err != nil || side.Clock.Reserved <= d.Record.At {
			t.Fatalf("t %v, reserved up to %v; %v", d.Record.At, side.Clock.Reserved, err)
		}
	}
}

// What a failed attempt left in the place of a segment does not stay in the way.
func TestHalfMadeSegmentIsInNobodysWay(t *testing.T) {
	r := newRig(t)
	r.later(0, "A")
	if err := os.WriteFile(r.path(segmentName(r.spool.epoch, r.spool.next)), make([]byte, 16384), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.roll(); err == nil {
		t.Fatal("a segment is made of zeros")
	}
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	r.later(0, "B")
	if got := r.records(); len(got) != 2 {
		t.Fatalf("%d records", len(got))
	}
}

func TestBoundOnRecords(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxRecords = 20 })
	var last Decision
	for i := range 20 {
		last = r.later(0, fmt.Sprint(i))
	}
	if f := r.spool.Stats().Fill(); f != 1 {
		t.Errorf("fill %v", f)
	}
	if _, err := r.try(r.candidate("more")); !errors.Is(err, ErrFull) {
		t.Fatalf("number 21: %v", err)
	}
	b := r.spool.NewBatch()
	for i := range 16 {
		r.wantDuplicate(r.decide(b, r.candidate("19")), last, ReasonBounce, fmt.Sprint("duplicate ", i))
	}
	c := r.candidate("19")
	if _, err := b.Decide(&c); !errors.Is(err, ErrFull) {
		t.Fatalf("the reserve for duplicates has no end: %v", err)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if st := r.law(); st.Captured != 36 {
		t.Fatalf("%+v", st)
	}
	w, err := r.spool.Next(17)
	if err != nil {
		t.Fatal(err)
	}
	verdicts := verdictsOf(w.Records)
	verdicts[0].State = Quarantined
	if err := r.spool.Settle(w, verdicts, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.try(r.candidate("more")); !errors.Is(err, ErrFull) { // 19 left and the quarantined one
		t.Fatalf("the quarantined one does not count: %v", err)
	}
	r.drain()
	r.wantNew(r.scan(r.candidate("more")), "after the drain")
}

// A refused frame leaves no trace, also when it was in doubt: it is when it comes again.
func TestRefusedFrameStaysInDoubt(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxRecords = 1 })
	first := r.later(0, "A")
	for range 16 {
		r.later(0, "A")
	}
	r.reopen(false)
	r.os.pass(time.Minute)
	before := r.memory()
	if _, err := r.try(r.candidate("A")); !errors.Is(err, ErrFull) {
		t.Fatalf("full: %v", err)
	}
	if after := r.memory(); after != before {
		t.Fatalf("the refused frame left\n%s\nbefore it was\n%s", after, before)
	}
	r.drain()
	r.wantDuplicate(r.scan(r.candidate("A")), first, ReasonInDoubt, "the resend")

	// A frame that is refused does not bring back a doubt that another one ended.
	r.opts.MaxRecords = 0
	r.reopen(false)
	b := r.spool.NewBatch()
	b.Heard("SCN-04")
	c := r.candidate("B")
	if _, err := b.Decide(&c); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	if len(r.spool.recent.doubts) != 0 {
		t.Fatal("the doubt is back")
	}
}

// A small bound on bytes fills, drains, and takes scans again, over and over: files are given back.
func TestBoundOnBytes(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxBytes = 1 << 20 })
	rest := func() {
		t.Helper()
		for range 3 { // end the active one; prune; unlink
			r.os.pass(4 * time.Second)
			r.spool.Prune()
			if err := r.spool.Maintain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := 0
	for range 5 {
		accepted := 0
		for {
			b := r.spool.NewBatch()
			var err error
			for range 100 {
				c := r.candidate(fmt.Sprint(n))
				if _, err = b.Decide(&c); err != nil {
					break
				}
				n++
				accepted++
			}
			if e := b.Commit(); e != nil {
				t.Fatal(e)
			}
			if err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				break
			}
		}
		if accepted < 500 {
			t.Fatalf("only %d accepted", accepted)
		}
		if st := r.law(); st.Captured != int64(n) || st.Bytes > st.MaxBytes+1<<18 {
			t.Fatalf("%d accepted, %+v", n, st)
		}
		rest()
		if st := r.law(); st.Pending != int64(accepted) {
			t.Fatalf("something accepted is gone: %+v", st)
		}
		r.drain()
		rest()
		if st := r.law(); st.Bytes > st.MaxBytes/2 {
			t.Fatalf("after the drain %+v", st)
		}
	}
	// Notes alone fill segments too.
	for range 400 {
		b := r.spool.NewBatch()
		for range 10 {
			b.Note(Line{Event: NewEvent(1), Outcome: "rejected", Scanner: "SCN-04", Reason: "gs1_bad_check_digit"})
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	r.drain()
	rest()
	var lines int
	for {
		ls, err := r.spool.Lines(1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(ls) == 0 {
			break
		}
		lines += len(ls)
		r.spool.LinesForwarded(len(ls))
	}
	if lines != 4000 {
		t.Fatalf("%d lines of 4000 notes", lines)
	}
	if r.spool.Stats().Segments > 2 {
		t.Fatalf("%d segments left", r.spool.Stats().Segments)
	}
	r.wantNew(r.scan(r.candidate("after all")), "after all")
}

// With a tiny bound the active segment alone can fill it. Once settled, it must not stand in the way.
func TestTinyBoundOnBytes(t *testing.T) {
	for _, notes := range []bool{false, true} {
		r := newRig(t, func(o *Options) { o.MaxBytes = 200 << 10 })
		for round := range 3 {
			n := 0
			for ; r.spool.Stats().Accepting && len(r.spool.waiting) == 0; n++ {
				b := r.spool.NewBatch()
				for i := range 10 {
					if notes {
						b.Note(Line{Event: NewEvent(1), Outcome: "rejected", Reason: "gs1_bad_check_digit"})
					} else {
						r.decide(b, r.candidate(fmt.Sprint(round, n, i)))
					}
				}
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			if n == 0 {
				t.Fatalf("notes %v, round %d: nothing is taken in: %+v", notes, round, r.spool.Stats())
			}
			if notes {
				r.spool.waiting = nil // they would come back as soon as there is room
			} else if _, err := r.try(r.candidate("more")); !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			r.drain()
			for range 4 {
				r.os.pass(4 * time.Second)
				r.spool.Prune()
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
			}
			if a := r.spool.active; a.count() != 0 || a.notes != 0 || r.spool.Stats().Segments != 1 {
				t.Fatalf("notes %v: the settled segment stays: %+v", notes, r.spool.Stats())
			}
			if notes {
				break // their lines have made state.db itself too large for so tiny a bound
			}
		}
	}
}

// TestFullDisk runs itself on a small file system of its own.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv("SPOOL_SMALL_DISK"); dir != "" {
		onSmallDisk(t, dir)
		return
	}
	flags := uintptr(syscall.CLONE_NEWNS)
	attr := &syscall.SysProcAttr{Cloneflags: flags}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "SPOOL_SMALL_DISK="+t.TempDir())
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "the disk was full") {
		t.Fatalf("the disk was never full:\n%s", out)
	}
}

func writeAny(dir string) error {
	path := filepath.Join(dir, "any")
	defer os.Remove(path)
	return os.WriteFile(path, make([]byte, 4096), 0o600)
}

func onSmallDisk(t *testing.T, dir string) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=5m"); err != nil {
		t.Fatal(err)
	}
	r := rigIn(t, dir, func(o *Options) { o.SegmentRecords = 1000 })
	n := 0
	fill := func() {
		t.Helper()
		for {
			b := r.spool.NewBatch()
			for i := range 100 {
				r.decide(b, r.candidate(fmt.Sprint(n+i)))
			}
			err := b.Commit()
			var ce *CommitError
			if err != nil {
				if !errors.As(err, &ce) || !ce.NoSpace || !IsNoSpace(err) {
					t.Fatalf("after %d: %v", n, err)
				}
				return
			}
			n += 100
		}
	}
	refused := func() {
		t.Helper()
		for _, item := range []string{"more", fmt.Sprint(n - 1)} {
			if _, err := r.try(r.candidate(item)); !errors.Is(err, ErrDiskFull) {
				t.Fatalf("on a full disk %s: %v", item, err)
			}
		}
		free, err := freeBytes(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			b := r.spool.NewBatch()
			b.Note(Line{Event: NewEvent(1), Outcome: "not_accepted"})
			if err := b.Commit(); !IsNoSpace(err) {
				t.Fatalf("a note on a full disk: %v", err)
			}
		}
		if left, err := freeBytes(dir); err != nil || left != free {
			t.Fatalf("notes take what is left for the drain: %d of %d bytes, %v", left, free, err)
		}
	}
	check := func() {
		t.Helper()
		if st := r.law(); st.Captured != int64(n) {
			t.Fatalf("%d accepted, %+v", n, st)
		}
	}
	recover := func() {
		t.Helper()
		for range 10 {
			r.os.pass(4 * time.Second)
			r.spool.Prune()
			if err := r.spool.Maintain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A start on a disk that something else has filled gives the reserve up, and can drain.
	r.scan(r.candidate("before"))
	n++
	r.kill()
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = ballast.Write(make([]byte, 4096))
	}
	if err := ballast.Close(); err != nil || !IsNoSpace(writeAny(dir)) {
		t.Fatalf("the disk is not full: %v", err)
	}
	r.open()
	refused()
	r.drain()
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	recover()
	check()
	for round := range 4 {
		fill()
		t.Logf("the disk was full after %d", n)
		refused()
		check()
		if round == 1 {
			r.reopen(false)
			refused()
			check()
		}
		recover()
		refused()
		r.drain()
		check()
		if round == 2 {
			r.reopen(true)
		}
		recover()
		check()
		r.scan(r.candidate("after"))
		n++
		check()
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
}

// A settlement whose sync failed behind its last write is in the file for whoever reads it next. The next one,
// which may say otherwise, leaves nothing of it there.
func TestNothingStaysOfAFailedSettlement(t *testing.T) {
	r := newRig(t)
	r.later(0, "A")
	r.later(time.Minute, "B")
	settle := func(verdicts []Verdict, lines ...Line) error {
		w, err := r.spool.Next(10)
		if err != nil {
			t.Fatal(err)
		}
		return r.spool.Settle(w, verdicts, lines, nil)
	}
	commit := r.spool.state.commit
	r.spool.state.commit = func(do func() error) error {
		if err := commit(do); err != nil {
			return err
		}
		return syscall.EIO
	}
	line := func() Line { return Line{Event: NewEvent(1), Outcome: "quarantined", At: 1} }
	if err := settle([]Verdict{{Seq: 1, State: Deferred}, {Seq: 2, State: Quarantined}}, line(), line()); err == nil {
		t.Fatal("the sync did not fail")
	}
	r.spool.state.commit = commit
	if err := settle([]Verdict{{Seq: 1, State: Committed}, {Seq: 2, State: Committed}}, line()); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"at once", "behind a restart"} {
		st := r.law()
		if st.Captured != 2 || st.Committed != 2 || st.Unsettled != 0 || len(r.spool.Exceptions()) != 0 {
			t.Errorf("%s: %+v, exceptions %+v", when, st, r.spool.Exceptions())
		}
		if lines, err := r.spool.Lines(10); err != nil || len(lines) != 1 || r.spool.PendingLines() != 1 {
			t.Errorf("%s: %d lines, %d pending, %v", when, len(lines), r.spool.PendingLines(), err)
		}
		r.reopen(true)
	}
}
