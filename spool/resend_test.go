package spool

import (
	"testing"
	"time"
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
