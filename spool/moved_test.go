package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// The folder or a file of it is moved, replaced or removed under a running spool: the spool says so, and what is
// scanned before and afterwards is there after a kill.
func TestPlaceIsLost(t *testing.T) {
	rename := func(from, to string) error { return os.Rename(from, to) }
	for name, c := range map[string]struct {
		harm  func(r *rig) error
		lost  int  // of 50 scans before: those that stood in a removed file alone
		again bool // some settled ones are sent once more
		whole bool // nobody needs to be told
	}{
		"the folder is moved":   {harm: func(r *rig) error { return rename(r.path(""), r.path("")+".old") }},
		"the folder is removed": {harm: func(r *rig) error { return os.RemoveAll(r.path("")) }, lost: 45, again: true},
		"an empty folder": {harm: func(r *rig) error {
			return errors.Join(rename(r.path(""), r.path("")+".old"), os.Mkdir(r.path(""), 0o700))
		}},
		"a file": {harm: func(r *rig) error {
			return errors.Join(rename(r.path(""), r.path("")+".old"), os.WriteFile(filepath.Join(r.dir, "spool"), nil, 0o600))
		}},
		"a link to nowhere": {harm: func(r *rig) error {
			return errors.Join(rename(r.path(""), r.path("")+".old"), os.Symlink("nowhere", filepath.Join(r.dir, "spool")))
		}},
		"the folder is moved, with a link to it": {harm: func(r *rig) error {
			return errors.Join(rename(r.path(""), r.path("")+".old"), os.Symlink("spool.old", filepath.Join(r.dir, "spool")))
		}, whole: true},
		"a copy": {harm: func(r *rig) error {
			return errors.Join(rename(r.path(""), r.path("")+".old"), copyFolder(r.path(""), r.path("")+".old"))
		}},
		"state.db is removed":           {harm: func(r *rig) error { return os.Remove(r.path(stateName)) }, again: true},
		"state.db is replaced":          {harm: func(r *rig) error { return replaceFile(r.path(stateName), []byte("x")) }, again: true},
		"the active segment is removed": {harm: func(r *rig) error { return os.Remove(r.spool.active.path) }},
		"the active segment is moved": {harm: func(r *rig) error {
			return rename(r.spool.active.path, r.path("x"))
		}},
		"the active segment is a folder": {harm: func(r *rig) error {
			return errors.Join(os.Remove(r.spool.active.path), os.Mkdir(r.spool.active.path, 0o700))
		}},
		"the sidecar is removed":  {harm: func(r *rig) error { return os.Remove(r.path(sidecarName)) }, whole: true},
		"the sidecar is replaced": {harm: func(r *rig) error { return replaceFile(r.path(sidecarName), []byte("{}")) }, whole: true},
		"the mark is removed":     {harm: func(r *rig) error { return os.Remove(r.path(markName)) }, whole: true},
		"the journal is removed":  {harm: func(r *rig) error { return os.Remove(r.path(journalName)) }, whole: true},
	} {
		for _, how := range []string{"killed", "closed"} {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
				told := r.tens(50, "A")
				if err := r.spool.Journal().Add(Operation{ID: NewEvent(1), Kind: "test", Subject: "S"}); err != nil {
					t.Fatal(err)
				}
				r.settle(5)
				r.reopen(true) // what is in memory is not lost
				told = append(told, r.tens(10, "B")...)
				if err := c.harm(r); err != nil {
					t.Fatal(err)
				}
				told = append(told, r.tens(10, "C")...) // before anybody has looked
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
				told = append(told, r.tens(10, "D")...)
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
				if hs := r.spool.takeHealings(); c.whole == (len(hs) > 0) {
					t.Errorf("told: %+v", hs)
				}
				for _, name := range []string{sidecarName, stateName, markName, journalName, r.spool.active.name} {
					if fi, err := os.Stat(r.path(name)); err != nil || !fi.Mode().IsRegular() {
						t.Errorf("%s is not in its place: %v", name, err)
					}
				}
				r.tend()
				if how == "killed" {
					r.settle(3)
				} else {
					r.drain()
				}
				before := r.law()
				r.reopen(how == "closed")
				if hs := r.tend(); len(hs) > 0 && !(c.again && len(hs) == 1 && hs[0].Older) {
					t.Errorf("told after the restart: %+v", hs)
				}
				st, waits := r.law(), r.waiting()
				if how == "closed" {
					if st.Pending != 0 || st.Unaccounted != before.Unaccounted || st.Committed != before.Committed {
						t.Errorf("%+v, before %+v", st, before)
					}
				} else if !c.again && c.lost == 0 && (st.Committed != 8 || st.Pending != 72 || st.Unaccounted != 0) {
					t.Errorf("%+v", st)
				}
				missing, settled := int64(0), 8
				if c.again {
					settled = 5
				}
				for i, rec := range told {
					if i >= settled && !waits[rec.Event] {
						missing++
					}
				}
				if how == "killed" && (missing != st.Unaccounted || missing != int64(c.lost)) {
					t.Errorf("%d scans are missing: %+v", missing, st)
				}
				if n := r.spool.Journal().Pending(); n != 1 {
					t.Errorf("%d operations wait", n)
				}
				r.scan(r.candidate(fmt.Sprint("E ", name)))
			})
		}
	}
}

// A folder that cannot be made again is told of, and nothing that is already open stops.
func TestPlaceCannotBeMade(t *testing.T) {
	r := newRig(t)
	r.tens(10, "A")
	parent := r.dir
	if err := errors.Join(os.Rename(parent, parent+".away"), os.WriteFile(parent, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.spool.Maintain(); err == nil {
			t.Fatal("no error")
		}
	}
	if hs := r.spool.takeHealings(); len(hs) != 1 || !hs[0].Moved {
		t.Fatalf("told: %+v", hs)
	}
	r.tens(10, "B")
	if err := errors.Join(os.Remove(parent), os.Rename(parent+".away", parent)); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	r.reopen(false)
	if st := r.law(); st.Pending != 20 {
		t.Errorf("%+v", st)
	}
}
