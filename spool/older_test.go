package spool

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"scanonce/idem"
)

// settleChained settles what is next, a record of the chain with each batch.
func (r *rig) settleChained() {
	r.t.Helper()
	for {
		w, err := r.spool.Next(2)
		if err != nil {
			r.t.Fatal(err)
		}
		if w.Empty() {
			return
		}
		h := r.spool.ChainHead()
		c := &ChainRecord{Epoch: h.Epoch, Seq: h.Seq + 1, Prev: h.Hash, Events: []idem.EventID{NewEvent(1)}, LineHashes: make([]byte, 32)}
		c.Hash = sha256.Sum256(fmt.Append(h.Hash[:], h.Seq))
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, c); err != nil {
			r.t.Fatal(err)
		}
	}
}

// A state.db that went back to an earlier time is told of, and the chain begins with it anew: what followed the last record
// that it knows is not known to it.
func TestOlderState(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(t *testing.T, r *rig, old []byte) *rig
	}{
		{"an older state.db", func(t *testing.T, r *rig, old []byte) *rig {
			if err := os.WriteFile(r.path(stateName), old, 0o600); err != nil {
				t.Fatal(err)
			}
			return r
		}},
		{"and no mark", func(t *testing.T, r *rig, old []byte) *rig {
			if err := os.WriteFile(r.path(stateName), old, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(r.path(markName)); err != nil {
				t.Fatal(err)
			}
			return r
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 4 })
			for i := range 6 {
				r.later(time.Second, fmt.Sprint(i))
			}
			r.settleChained()
			r.reopen(true)
			old, err := os.ReadFile(r.path(stateName))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 12 {
				r.later(time.Second, fmt.Sprint("more ", i))
				r.settleChained()
			}
			r.os.pass(time.Hour)
			r.prune() // the first eight are in no file any more
			was := r.law()
			r.kill()
			r = c.harm(t, r, old)
			r.open()
			told := r.spool.takeHealings()
			if len(told) != 1 || told[0].File != stateName || !told[0].Older || told[0].Records == 0 || told[0].Unaccounted != 0 {
				t.Errorf("%+v", told)
			}
			if st := r.law(); st.Unaccounted != 0 || was.Captured-st.Captured != told[0].Records {
				t.Errorf("%+v, before %+v", st, was)
			}
			if h := r.spool.ChainHead(); h.Seq != 0 || h.Hash != ([32]byte{}) || h.Unaccounted != 0 {
				t.Errorf("the chain goes on: %+v", h)
			}
			lines, err := r.spool.Lines(100)
			notices := slices.DeleteFunc(lines, func(l Line) bool { return l.Reason != "restated" })
			if err != nil || len(notices) != 1 || notices[0].Outcome != "notice" || int64(notices[0].Length) != told[0].Records {
				t.Errorf("%+v, %v", notices, err)
			}
			r.reopen(false)
			if told := r.spool.takeHealings(); len(told) != 0 {
				t.Errorf("it is told of twice: %+v", told)
			}
			r.settleChained()
			r.reopen(false)
			if told := r.spool.takeHealings(); len(told) != 0 || r.law().Pending != 0 {
				t.Errorf("%+v", told)
			}
			if h := r.spool.ChainHead(); h.Hash == ([32]byte{}) {
				t.Error("a chain that has begun begins again")
			}
		})
	}
}

// A backup that is used again goes on from the time of the copy, and so does a state.db that is no older.
func TestBackupBeginsTheChainAnew(t *testing.T) {
	r := newRig(t)
	for i := range 6 {
		r.later(time.Second, fmt.Sprint(i))
	}
	r.settleChained()
	r.reopen(false)
	if told := r.spool.takeHealings(); len(told) != 0 || r.spool.ChainHead().Hash == ([32]byte{}) {
		t.Fatalf("a kill is no backup: %+v", told)
	}
	b := r.backup(t)
	b.open()
	defer func() { b.spool.Close(true) }()
	if told := b.spool.takeHealings(); len(told) != 1 || !told[0].Older || told[0].Records != 0 {
		t.Errorf("%+v", told)
	}
	if h := b.spool.ChainHead(); h.Seq != 0 || h.Hash != ([32]byte{}) {
		t.Errorf("%+v", h)
	}
	b.later(time.Second, "A")
	b.settleChained()
	b.reopen(false)
	if told := b.spool.takeHealings(); len(told) != 0 || b.spool.ChainHead().Hash == ([32]byte{}) {
		t.Errorf("it is told of twice: %+v", told)
	}
}
