package forward_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/ledger"
)

// lineOf waits for a line of the audit.
func (r *rig) lineOf(is func(*ledger.Line) bool) (found ledger.Line) {
	r.t.Helper()
	for end := time.Now().Add(testenv.Patience); time.Now().Before(end); {
		ok := false
		if err := r.ledger.Ledger.Lines(context.Background(), ledger.Span{}, func(l ledger.Line) error {
			if is(&l) {
				found, ok = l, true
			}
			return nil
		}); err != nil {
			r.t.Fatal(err)
		}
		if ok {
			return found
		}
	}
	r.t.Fatal("the line is not in the ledger")
	return found
}

// A person gives a record up that the ledger refuses: it is counted, the audit says by whom, and what repeats it goes
// with it, also what comes later.
func TestDiscard(t *testing.T) {
	r := newRig(t)
	r.ledger.refuse = "constraint"
	recs := r.scan("A", "A", "B")
	f := r.start()
	r.told.until(t, "three quarantined", func() bool { return r.told.quarantined == 3 })
	ctx := context.Background()
	discard := func(want int, events ...idem.EventID) {
		t.Helper()
		if n, err := f.Discard(ctx, events, "J. Doe"); n != want || err != nil {
			t.Fatal(n, err)
		}
	}
	discard(0, idem.EventID{9})
	discard(2, recs[0].Event)
	discard(0, recs[0].Event)
	r.final(2)
	late := r.scan("A")[0]
	if !late.IsDuplicate() || late.Of != recs[0].Event {
		t.Fatal("the echo is no duplicate")
	}
	v := r.final(3)
	for _, rec := range []*spool.Record{recs[0], recs[1], late} {
		if v[rec.Event].State != spool.Discarded {
			t.Errorf("record %d: %+v", rec.Seq, v[rec.Event])
		}
		l := r.lineOf(func(l *ledger.Line) bool { return l.Event == rec.Event })
		if l.Outcome != ledger.Discarded || l.Reason != "by J. Doe" || !l.Key.IsZero() || !l.Ref.IsZero() || l.Scanner != "SCN-04" || l.CapturedAt != rec.At {
			t.Errorf("record %d: %+v", rec.Seq, l)
		}
	}
	if st := r.spool.Stats(); st.Discarded != 3 || st.Quarantined != 1 || st.Pending != 0 {
		t.Errorf("%+v", st)
	}
	r.bound()
	// Over a kill it stays so, and a duplicate can be given up without its winner.
	r.stopForwarder()
	r.spool.Close(false)
	r.open()
	if again := r.scan("B")[0]; !again.IsDuplicate() {
		t.Fatal("the echo is no duplicate")
	}
	f = r.start()
	r.told.until(t, "its duplicate", func() bool { return r.told.quarantined == 1 })
	for _, x := range r.spool.Exceptions() {
		if rec, err := r.spool.Load(x.Seq); err != nil {
			t.Error(err)
		} else if rec.IsDuplicate() {
			discard(1, rec.Event)
		}
	}
	if st := r.spool.Stats(); st.Discarded != 4 || st.Quarantined != 1 {
		t.Errorf("%+v", st)
	}
	r.bound()
}

// A duplicate whose winner is lost ends by itself: by the row that stands, or as lost too.
func TestDuplicateOfWhatIsLost(t *testing.T) {
	for _, row := range []bool{true, false} {
		name := "without a row"
		if row {
			name = "with a row"
		}
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			first := r.scan("A")[0]
			if row {
				r.start()
				r.final(1)
				r.stopForwarder()
			}
			r.spool.Close(true)
			segments, err := filepath.Glob(filepath.Join(r.dir, "spool", "*.seg"))
			if err != nil || len(segments) != 1 {
				t.Fatal(segments, err)
			}
			r.open()
			dup := r.scan("A")[0]
			if dup.Of != first.Event {
				t.Fatal("the echo is no duplicate")
			}
			r.spool.Close(false)
			if err := os.Truncate(segments[0], 0); err != nil {
				t.Fatal(err)
			}
			r.open()
			r.start()
			v := r.final(1)[dup.Event]
			st := r.spool.Stats()
			if row {
				if v.State != spool.Suppressed || v.Winner != first.Event || v.Key != first.Keys.Idem {
					t.Errorf("%+v", v)
				}
				if st.Committed != 1 || st.Suppressed != 1 || st.Unaccounted != 0 {
					t.Errorf("%+v", st)
				}
				r.bound()
				return
			}
			if v.State != spool.Unaccounted || st.Unaccounted != 2 || st.Pending+st.Quarantined != 0 {
				t.Errorf("%+v, %+v", v, st)
			}
			l := r.lineOf(func(l *ledger.Line) bool { return l.Ref == dup.Event })
			if l.Outcome != ledger.Notice || l.Reason != "segment_salvaged" || l.Length != 1 || !l.Key.IsZero() {
				t.Errorf("%+v", l)
			}
			r.bound()
			r.stopForwarder()
			r.spool.Close(false)
			r.open()
			if again := r.spool.Stats(); again.Unaccounted != 2 || again.Captured != 2 {
				t.Errorf("after a kill: %+v", again)
			}
		})
	}
}
