package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// spoilPages overwrites all but the first two pages of a file with noise, as a bad disk does under a mapping.
func spoilPages(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	noise := make([]byte, fi.Size()-8192)
	for i := range noise {
		noise[i] = byte(i*7 + i>>8)
	}
	_, err = f.WriteAt(noise, 8192)
	return err
}

var spoilings = []struct {
	name string
	do   func(path string) error
}{
	{"cut to nothing", func(path string) error { return os.Truncate(path, 0) }},
	{"cut in the middle", func(path string) error { return os.Truncate(path, 8192) }},
	{"garbled", spoilPages},
}

// A page of the active segment that goes bad refuses a batch at most: the file is salvaged, and capturing goes on.
func TestActiveSegmentGoesBad(t *testing.T) {
	for _, s := range spoilings {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t)
			for i := range 600 {
				r.later(time.Second, fmt.Sprint(i))
			}
			broken := r.spool.active
			if err := s.do(broken.path); err != nil {
				t.Fatal(err)
			}
			refused := 0
			for i := range 3 {
				r.os.pass(time.Second)
				if _, err := r.try(r.candidate(fmt.Sprint("behind ", i))); err != nil {
					var damaged *DamageError
					if !errors.As(err, &damaged) || damaged.File != broken.name || i > 0 {
						t.Fatal(err)
					}
					refused++
				}
			}
			if refused != 1 {
				t.Errorf("%d batches were refused", refused)
			}
			told := r.tend()
			if len(told) != 1 || told[0].File != broken.name || told[0].Unaccounted != 0 || told[0].Records != 600 {
				t.Errorf("%+v", told)
			}
			if st := r.law(); st.Captured != 602 || st.Unaccounted != 0 || !st.Accepting {
				t.Errorf("%+v", st)
			}
			if err := r.spool.Maintain(); err != nil {
				t.Error(err)
			}
			if n := len(r.records()); n != 602 {
				t.Errorf("%d records", n)
			}
			r.reopen(false)
			r.drain()
			if st := r.law(); st.Committed != 602 || len(r.spool.takeHealings()) != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// state.db that goes bad under a run ends no run: scans are kept, nothing is settled, and the next start heals it.
func TestStateGoesBad(t *testing.T) {
	for _, s := range spoilings {
		t.Run(s.name, func(t *testing.T) {
			r := newRig(t)
			for i := range 100 {
				r.later(time.Second, fmt.Sprint(i))
			}
			w, err := r.spool.Next(50)
			if err != nil {
				t.Fatal(err)
			}
			lines := make([]Line, 50)
			for i := range lines {
				lines[i] = Line{Event: NewEvent(1), Outcome: "notice"}
			}
			chain := &ChainRecord{Epoch: r.spool.Epoch(), Seq: 1}
			if err := r.spool.Settle(w, verdictsOf(w.Records), lines, chain); err != nil {
				t.Fatal(err)
			}
			if err := s.do(r.path(stateName)); err != nil {
				t.Fatal(err)
			}
			of := func(what string, err error) {
				t.Helper()
				var damaged *DamageError
				if !errors.As(err, &damaged) || !damaged.OfState() {
					t.Errorf("%s: %v", what, err)
				}
			}
			_, err = r.spool.Lines(100)
			of("lines", err)
			_, err = r.spool.Chain(10)
			of("the chain", err)
			_, err = r.spool.ChainSent()
			of("what was sent of it", err)
			if w, err = r.spool.Next(50); err != nil {
				t.Fatal(err)
			}
			of("a settlement", r.spool.Settle(w, verdictsOf(w.Records), nil, nil))
			report, err := r.spool.Verify(context.Background())
			if err != nil || len(report.Damaged) != 1 || !report.Damaged[0].OfState() {
				t.Errorf("%+v, %v", report, err)
			}
			r.spool.Prune()
			r.later(time.Second, "accepted all the same")
			if err := r.spool.Maintain(); err != nil {
				t.Error(err)
			}
			if st := r.law(); st.Captured != 101 || st.Committed != 50 || st.Pending != 51 || !st.Accepting {
				t.Errorf("%+v", st)
			}
			r.reopen(false)
			told := r.spool.takeHealings()
			if len(told) != 1 || told[0].File != stateName || told[0].Unaccounted != 0 {
				t.Errorf("%+v", told)
			}
			r.drain()
			if st := r.law(); st.Committed != 101 || st.Unaccounted != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}
