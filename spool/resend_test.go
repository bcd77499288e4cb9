package spool

import (
	"errors"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// A device that waits for answers sends its last message again; by its mark, or by when it comes, it is known beyond the
// window.
func TestResends(t *testing.T) {
	unmarked := Resends{Retries: 2, Interval: 2 * time.Second}
	marked := Resends{Interval: 2 * time.Second, Marked: true}
	type step struct {
		after  time.Duration
		item   string // "" is something that is no movement
		again  bool   // the mark
		reason string // of a duplicate, "" for a movement
	}
	for name, c := range map[string]struct {
		how   Resends
		steps []step
	}{
		"both resends, by their time":          {unmarked, []step{{0, "a", false, ""}, {2 * time.Second, "a", false, ReasonBounce}, {2 * time.Second, "a", false, ReasonResend}}},
		"no third one":                         {unmarked, []step{{0, "a", false, ""}, {2 * time.Second, "a", false, ReasonBounce}, {2 * time.Second, "a", false, ReasonResend}, {2 * time.Second, "a", false, ""}}},
		"not at that time":                     {unmarked, []step{{0, "a", false, ""}, {3200 * time.Millisecond, "a", false, ""}}},
		"another between":                      {unmarked, []step{{0, "a", false, ""}, {2 * time.Second, "b", false, ""}, {2 * time.Second, "a", false, ""}}},
		"something unread between":             {unmarked, []step{{0, "a", false, ""}, {2 * time.Second, "a", false, ReasonBounce}, {time.Second, "", false, ""}, {time.Second, "a", false, ""}}},
		"by the mark":                          {marked, []step{{0, "a", false, ""}, {2 * time.Second, "a", true, ReasonResend}, {2 * time.Second, "a", true, ReasonResend}}},
		"without the mark, a movement":         {marked, []step{{0, "a", false, ""}, {2 * time.Second, "a", true, ReasonResend}, {2 * time.Second, "a", false, ""}}},
		"marked, but the first was never read": {marked, []step{{0, "a", false, ""}, {5 * time.Second, "", false, ""}, {100 * time.Millisecond, "a", true, ""}}},
		"marked, of a movement long ago":       {marked, []step{{0, "a", false, ""}, {time.Minute, "a", true, ""}}},
		"a device that waits for nothing":      {Resends{}, []step{{0, "a", false, ""}, {4 * time.Second, "a", false, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for i, s := range c.steps {
				r.os.pass(s.after)
				if s.item == "" {
					b := r.spool.NewBatch()
					b.Between("SCN-04")
					if err := b.Commit(); err != nil {
						t.Fatal(err)
					}
					continue
				}
				cand := r.candidate(s.item)
				cand.Heard, cand.Resends, cand.Resend = true, c.how, s.again
				if d := r.scan(cand); d.Record.Reason != s.reason {
					t.Errorf("step %d: %q, want %q", i, d.Record.Reason, s.reason)
				}
			}
		})
	}
}

// What a scanner marks repeats the frame before. If that was damaged or refused, it is no resend of what was accepted
// before, and the user's act in between counts.
func TestMarkedBehindWhatWasNotTaken(t *testing.T) {
	how := Resends{Interval: 2 * time.Second, Marked: true}
	for name, between := range map[string]struct {
		lost func(r *rig, c Candidate)
		want string // reason of the marked frame that follows; "" is a movement
	}{
		"damaged": {func(r *rig, _ Candidate) { r.spool.NewBatch().Between("SCN-04") }, ""},
		"refused by the disk": {func(r *rig, c Candidate) {
			b := r.spool.NewBatch()
			r.decide(b, c)
			r.sabotage()
			if b.Commit() == nil {
				t.Fatal("committed")
			}
		}, ""},
		"refused for want of room": {func(r *rig, c Candidate) {
			r.spool.reserve = reserveSpent
			if _, err := r.spool.NewBatch().Decide(&c); !errors.Is(err, ErrDiskFull) {
				t.Fatal(err)
			}
			r.spool.reserve = reserveKept
		}, ""},
		"a resend that the disk refused": {func(r *rig, c Candidate) {
			b := r.spool.NewBatch()
			c.Resend = true
			r.decide(b, c)
			r.sabotage()
			if b.Commit() == nil {
				t.Fatal("committed")
			}
		}, ReasonResend},
		"a resend for which there was no room": {func(r *rig, c Candidate) {
			r.spool.reserve = reserveSpent
			c.Resend = true
			if _, err := r.spool.NewBatch().Decide(&c); !errors.Is(err, ErrDiskFull) {
				t.Fatal(err)
			}
			r.spool.reserve = reserveKept
		}, ReasonResend},
		"damaged, in a batch that the disk refused": {func(r *rig, c Candidate) {
			b := r.spool.NewBatch()
			b.Between("SCN-04")
			c.Identity.Scanner, c.Physical = "SCN-05", idem.PhysicalKey("SCN-05", []byte("b"))
			r.decide(b, c)
			r.sabotage()
			if b.Commit() == nil {
				t.Fatal("committed")
			}
		}, ""},
		"a scan of an application that the disk refused": {func(r *rig, c Candidate) {
			b := r.spool.NewBatch()
			c.Heard, c.Resends = false, Resends{}
			r.decide(b, c)
			r.sabotage()
			if b.Commit() == nil {
				t.Fatal("committed")
			}
		}, ReasonResend},
		"resends that were refused, for longer than one may take": {func(r *rig, c Candidate) {
			for _, after := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
				r.os.pass(after)
				c.At, c.Resend = r.clock.Now(), true
				b := r.spool.NewBatch()
				if d := r.decide(b, c); d.Record.Reason != ReasonResend {
					t.Fatalf("%+v", d.Record)
				}
				r.sabotage()
				if b.Commit() == nil {
					t.Fatal("committed")
				}
			}
			r.os.pass(2 * time.Second)
			r.spool.reserve = reserveSpent
			c.At = r.clock.Now()
			if _, err := r.spool.NewBatch().Decide(&c); !errors.Is(err, ErrDiskFull) {
				t.Fatal(err)
			}
			r.spool.reserve = reserveKept
			r.os.pass(2 * time.Second)
		}, ReasonResend},
		"nothing": {func(*rig, Candidate) {}, ReasonResend},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			candidate := func() Candidate {
				c := r.candidate("a")
				c.Heard, c.Resends = true, how
				return c
			}
			r.wantNew(r.scan(candidate()), "dispensed")
			r.os.pass(700 * time.Millisecond)
			act := r.os.boot // the API sets the type: nothing comes from the scanner
			r.os.pass(700 * time.Millisecond)
			c := candidate()
			c.Act, c.Identity.Type = act, window.Return
			between.lost(r, c)
			r.os.pass(50 * time.Millisecond)
			c = candidate()
			c.Act, c.Identity.Type, c.Resend = act, window.Return, true
			if d := r.scan(c); d.Record.Reason != between.want {
				t.Errorf("%q, want %q", d.Record.Reason, between.want)
			}
		})
	}
}
