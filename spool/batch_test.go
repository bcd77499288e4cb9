package spool

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"scanonce/idem"
)

var testRule = BatchRule{Count: 5, Within: time.Second, Keep: 24 * time.Hour}

// gunRig is a rig that types frames and drains as a forwarder does, at every chance.
type gunRig struct {
	*rig
	told  []StoredBatch
	fates map[idem.EventID]State // of all that are settled or held
	names map[idem.EventID]string
}

func newGunRig(t testing.TB, set ...func(*Options)) *gunRig {
	t.Helper()
	return &gunRig{rig: newRig(t, append([]func(*Options){func(o *Options) { o.Batches = testRule }}, set...)...),
		fates: map[idem.EventID]State{}, names: map[idem.EventID]string{}}
}

// frame is a frame of a scanner, after a while.
func (r *gunRig) frame(scanner, item string, after time.Duration) Decision {
	r.t.Helper()
	r.os.pass(after)
	c := r.candidate(item)
	c.Identity.Scanner, c.Heard = scanner, true
	c.Physical = idem.PhysicalKey(scanner, []byte(item))
	d := r.scan(c)
	r.names[d.Record.Event] = item
	return d
}

// lapse is the pipeline's turn without frames.
func (r *gunRig) lapse() {
	r.t.Helper()
	r.told = append(r.told, r.spool.Lapse(r.os.Boot())...)
	if err := r.spool.KeepBatches(); err != nil {
		r.t.Fatal(err)
	}
}

// settle settles what may be, as a forwarder with its ledger at hand.
func (r *gunRig) settle() {
	r.t.Helper()
	for {
		w, err := r.spool.Next(3)
		if err != nil {
			r.t.Fatal(err)
		}
		if w.Empty() {
			return
		}
		var vs []Verdict
		for _, rec := range w.Records {
			v := Verdict{Seq: rec.Seq, State: Committed}
			if batch, held := w.HeldIn(rec.Seq); held {
				v.State, v.Detail = Held, batch.String()
			} else if rec.IsDuplicate() {
				if v.State = r.fates[rec.Of]; v.State == Committed {
					v.State = Suppressed
				}
			}
			r.fates[rec.Event] = v.State
			vs = append(vs, v)
		}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			r.t.Fatal(err)
		}
	}
}

func items(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

// dump sends items in one go, settling behind each frame, and returns the events.
func (r *gunRig) dump(scanner string, items []string) (events []idem.EventID) {
	r.t.Helper()
	for i, it := range items {
		after := 40 * time.Millisecond
		if i == 0 {
			after = 10 * time.Second
		}
		events = append(events, r.frame(scanner, it, after).Record.Event)
		r.settle()
	}
	r.os.pass(quiet + lateBy)
	r.lapse()
	r.settle()
	return events
}

func (r *gunRig) want(state State, events []idem.EventID, what string) {
	r.t.Helper()
	for i, e := range events {
		if got, ok := r.fates[e]; !ok || got != state {
			r.t.Fatalf("%s: frame %d (%s) is %s, %t; want %s", what, i, r.names[e], got, ok, state)
		}
	}
}

func TestRepeatedBatchIsHeld(t *testing.T) {
	r := newGunRig(t)
	a := items("a", 20)
	r.want(Committed, r.dump("S", a), "the first copy")
	r.want(Committed, r.dump("T", a), "another scanner's")
	again := r.dump("S", a)
	r.want(Held, again, "the second copy")
	if b := r.told[len(r.told)-1]; len(r.told) != 3 || !b.Repeat || b.Held != 20 || b.Count != 20 || b.ID != again[0] {
		t.Errorf("told: %+v", r.told)
	}
	// From the middle on, with more behind it, and with something else in between.
	part := r.dump("S", slices.Concat(a[12:], items("b", 3), a[2:8], items("c", 1)))
	r.want(Held, part[:8], "the rest of a copy")
	r.want(Committed, part[8:11], "what is new")
	r.want(Held, part[11:17], "another part of it")
	r.want(Committed, part[17:], "what is new behind it")
	if b := r.told[len(r.told)-1]; b.Count != 18 || b.Held != 14 {
		t.Errorf("told: %+v", b)
	}
	// Less than a batch of it is none, and neither is a batch that it does not make.
	r.want(Committed, r.dump("S", slices.Concat(a[:4], items("d", 4))), "four of it")
	r.want(Committed, r.dump("S", []string{"a3", "a2", "a1", "a0", "a9", "a5"}), "another order")
	r.want(Committed, r.dump("S", []string{"a7"}), "one of it")
	if got := len(r.spool.WaitingBatches()); got != 2 {
		t.Errorf("%d batches wait", got)
	}
	if s := r.law(); s.Held != 34 || s.Pending != 0 {
		t.Errorf("%+v", s)
	}
}

// Who stutters, types, or sends slowly has nothing held; while it may be a batch, nothing behind it is settled either.
func TestNoRepeatedBatch(t *testing.T) {
	r := newGunRig(t)
	two := slices.Repeat([]string{"u", "m"}, 10)
	r.dump("S", two)
	for _, e := range r.dump("S", two) {
		if r.fates[e] == Held {
			t.Fatal("two codes that a scanner reads over and over are held")
		}
	}
	a := items("a", 12)
	slow := func() (events []idem.EventID) {
		r.os.pass(10 * time.Second)
		for _, it := range a {
			events = append(events, r.frame("P", it, 280*time.Millisecond).Record.Event)
			r.settle()
		}
		r.os.pass(quiet + lateBy)
		r.lapse()
		r.settle()
		return events
	}
	slow()
	r.dump("P", a)
	r.want(Committed, slow(), "one in 280 ms")

	r.os.pass(time.Minute)
	mine := r.frame("P", "a0", 0).Record.Event
	other := r.frame("Q", "x", time.Millisecond).Record.Event
	r.settle()
	if _, ok := r.fates[mine]; ok {
		t.Error("what may be of a batch is settled")
	}
	r.frame("P", "y", 50*time.Millisecond)
	r.settle()
	r.want(Committed, []idem.EventID{mine, other}, "after it went on otherwise")
	mine = r.frame("P", "a0", time.Minute).Record.Event
	r.settle()
	at, ok := r.spool.LapsesAt()
	if !ok || at != r.os.Boot()+quiet+lateBy {
		t.Errorf("it lapses at %v, %t", at, ok)
	}
	r.os.pass(at - r.os.Boot())
	r.lapse()
	r.settle()
	r.want(Committed, []idem.EventID{mine}, "after silence")
}

// A scanner that stutters in front of one package leaves no list behind: it could hold nothing, and would delay.
func TestAStutterLeavesNoList(t *testing.T) {
	r := newGunRig(t)
	for i := range 20 {
		r.frame("SCN-04", []string{"A", "B"}[i%2], 100*time.Millisecond)
	}
	r.os.pass(time.Second)
	r.lapse()
	if len(r.told) != 1 || r.told[0].Count != 20 || r.spool.batches.listed != 0 || !r.spool.BatchesKept() {
		t.Errorf("told %+v, %d frames listed", r.told, r.spool.batches.listed)
	}
	r.frame("SCN-04", "A", time.Minute)
	if r.settle(); len(r.fates) != len(r.names) {
		t.Errorf("%d of %d are settled at once", len(r.fates), len(r.names))
	}
}

func TestListsExpire(t *testing.T) {
	r := newGunRig(t)
	a := items("a", 10)
	r.dump("S", a)
	r.os.pass(20 * time.Hour)
	r.want(Held, r.dump("S", a), "after 20 h") // and the list lives on
	r.os.pass(20 * time.Hour)
	r.reopen(true)
	r.want(Held, r.dump("S", a), "20 h later")
	r.os.pass(25 * time.Hour)
	r.want(Committed, r.dump("S", a), "after its time")
	r.spool.SetBatches(BatchRule{})
	r.want(Committed, r.dump("S", a), "without the rule")
}

// However the agent is killed within a copy of what a memory holds, no part of the copy is committed, and each batch is
// told.
func TestBatchOverKills(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r := newGunRig(t, func(o *Options) { o.SegmentRecords = 7 })
		a := items("a", 10+rnd.IntN(20))
		copies, kills := 0, 0
		copyOf := func() (events []idem.EventID) {
			r.os.pass(15 * time.Second)
			copies++
			for _, it := range a {
				events = append(events, r.frame("S", it, time.Duration(20+rnd.IntN(100))*time.Millisecond).Record.Event)
				switch rnd.IntN(12) {
				case 0, 1, 2:
					r.settle()
				case 3:
					r.lapse()
				case 4:
					r.frame("T", fmt.Sprint("t", rnd.Uint64()), 0)
				case 5:
					if kills == copies {
						continue // of two stops in one copy the second may split it
					}
					kills = copies
					r.os.pass(time.Duration(rnd.IntN(2000)) * time.Millisecond)
					r.reopen(rnd.IntN(2) == 0)
					if rnd.IntN(2) == 0 {
						r.settle()
					}
					r.lapse()
					r.os.pass(time.Duration(rnd.IntN(2000)) * time.Millisecond)
				}
			}
			r.os.pass(resumeFor + quiet + lateBy)
			r.lapse()
			r.settle()
			return events
		}
		r.want(Committed, copyOf(), fmt.Sprintf("seed %d: the first copy", seed))
		second := copyOf()
		r.want(Held, second, fmt.Sprintf("seed %d: the second copy", seed))
		told := map[idem.EventID]bool{}
		held := 0
		for _, b := range r.told {
			if b.Repeat && !told[b.ID] {
				held += b.Held
			}
			told[b.ID] = true
		}
		if held != len(a) {
			t.Fatalf("seed %d: %d of %d records are told as held: %+v", seed, held, len(a), r.told)
		}
		if s := r.law(); s.Held != int64(len(a)) || s.Pending != 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}

// A batch that could not be made durable was never heard.
func TestBatchAfterAFailedCommit(t *testing.T) {
	var fail bool
	r := newGunRig(t, func(o *Options) {
		o.Disk = func(step DiskStep, _ string, do func() error) error {
			if fail && step == DiskCommit {
				return errors.New("it broke")
			}
			return do()
		}
	})
	a := items("a", 10)
	r.dump("S", a)
	r.os.pass(10 * time.Second)
	var events []idem.EventID
	for i, it := range a {
		if i == 3 || i == 6 {
			fail = true
			c := r.candidate(it)
			c.Identity.Scanner, c.Heard, c.Physical = "S", true, idem.PhysicalKey("S", []byte(it))
			if _, err := r.try(c); err == nil {
				t.Fatal("it is accepted")
			}
			fail = false
		}
		events = append(events, r.frame("S", it, 40*time.Millisecond).Record.Event)
		r.settle()
	}
	r.os.pass(quiet + lateBy)
	r.lapse()
	r.settle()
	r.want(Held, events, "the second copy")
	if b := r.told[1]; b.Count != 10 || b.Held != 10 {
		t.Errorf("told: %+v", b)
	}
}

// What a failed commit took with it was not sent before: neither the frames of a run that ended in it, nor its list.
func TestAListOfAFailedCommit(t *testing.T) {
	var fail bool
	r := newGunRig(t, func(o *Options) {
		o.Disk = func(step DiskStep, _ string, do func() error) error {
			if fail && step == DiskCommit {
				return errors.New("it broke")
			}
			return do()
		}
	})
	a := items("a", 10)
	b := r.spool.NewBatch()
	for i, it := range append(slices.Clone(a), "next") {
		r.os.pass(40 * time.Millisecond)
		if i == len(a) {
			r.os.pass(time.Second)
		}
		c := r.candidate(it)
		c.Identity.Scanner, c.Heard, c.Physical = "S", true, idem.PhysicalKey("S", []byte(it))
		if _, err := b.Decide(&c); err != nil {
			t.Fatal(err)
		}
	}
	fail = true
	if b.Commit() == nil {
		t.Fatal("it is durable")
	}
	fail = false
	r.os.pass(10 * time.Second)
	r.lapse()
	if len(r.told) != 0 || r.spool.batches.listed != 0 || !r.spool.BatchesKept() {
		t.Errorf("told %+v, %d listed", r.told, r.spool.batches.listed)
	}
	r.want(Committed, r.dump("S", a), "the first copy that is durable")
	r.os.pass(10 * time.Second)
	r.want(Held, r.dump("S", a), "the second copy")
}

// What a person decides is one change with what follows from it, and what is not settled yet follows it.
func TestDecideBatch(t *testing.T) {
	r := newGunRig(t)
	a := items("a", 10)
	r.dump("S", a)
	b := r.dump("S", a)
	known, ok := r.spool.StoredBatch(b[0])
	if !ok || known.Held != 10 || known.Decision != Undecided {
		t.Fatalf("%+v", known)
	}
	known.Decision, known.By = BatchDiscarded, "R. Okafor"
	var vs []Verdict
	for _, x := range r.spool.Exceptions() {
		vs = append(vs, Verdict{Seq: x.Seq, State: Discarded, Detail: known.By})
	}
	if err := r.spool.Settle(Decided(known), vs, nil, nil); err != nil {
		t.Fatal(err)
	}
	r.reopen(false)
	if again, _ := r.spool.StoredBatch(b[0]); again.Decision != BatchDiscarded || again.By != "R. Okafor" || len(r.spool.WaitingBatches()) != 0 {
		t.Errorf("%+v", again)
	}
	if s := r.law(); s.Discarded != 10 || s.Held != 0 {
		t.Errorf("%+v", s)
	}
	if err := r.spool.Settle(Decided(StoredBatch{ID: b[1]}), nil, nil, nil); err == nil {
		t.Error("a batch that is none is decided")
	}
	r.want(Held, r.dump("S", a), "a third copy")
}

// state.db may be lost: the records say that they are held, and a person can still decide.
func TestBatchAfterStateIsLost(t *testing.T) {
	r := newGunRig(t)
	a := items("a", 10)
	r.dump("S", a)
	b := r.dump("S", a)
	r.os.pass(2 * cutFor)
	r.spool.closeFiles()
	if err := os.Truncate(r.path(stateName), 4096); err != nil {
		t.Fatal(err)
	}
	r.open()
	clear(r.fates)
	r.settle()
	r.want(Held, b, "the second copy")
	w := r.spool.WaitingBatches()
	if len(w) != 1 || w[0].ID != b[0] || w[0].Held != 10 || w[0].Scanner != "S" {
		t.Errorf("%+v", w)
	}
}
