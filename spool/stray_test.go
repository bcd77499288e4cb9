package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scanonce/idem"
)

// copyOf is the content of files of the spool.
func (r *rig) copyOf(names ...string) map[string][]byte {
	r.t.Helper()
	out := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(r.path(name))
		if err != nil {
			r.t.Fatal(err)
		}
		out[name] = b
	}
	return out
}

func (r *rig) putBack(files map[string][]byte) {
	r.t.Helper()
	for name, b := range files {
		if err := os.WriteFile(r.path(name), b, 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

// backedUp is what a backup of the running spool holds.
func (r *rig) backedUp(t *testing.T) map[string][]byte {
	t.Helper()
	if err := r.spool.Rotate(); err != nil {
		t.Fatal(err)
	}
	to := r.backup(t)
	entries, err := os.ReadDir(to.path(""))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return to.copyOf(names...)
}

// waiting lists the events that are still to be sent, and fails if one comes twice.
func (r *rig) waiting() map[idem.EventID]bool {
	r.t.Helper()
	out := map[idem.EventID]bool{}
	if err := r.spool.Unsettled(func(rec *Record, _ Exception) bool {
		if out[rec.Event] {
			r.t.Fatalf("%v comes twice", rec.Event)
		}
		out[rec.Event] = true
		return true
	}); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// tens scans n items, ten in a batch.
func (r *rig) tens(n int, prefix string) (out []Record) {
	r.t.Helper()
	for i := 0; i < n; i += 10 {
		out = append(out, r.fill(min(10, n-i), fmt.Sprint(prefix, i, "."))...)
	}
	return out
}

func (r *rig) settle(n int) {
	r.t.Helper()
	for n > 0 {
		w, err := r.spool.Next(n)
		if err != nil || w.Empty() {
			r.t.Fatal(w, err)
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
			r.t.Fatal(err)
		}
		n -= len(w.Records)
	}
}

// A sidecar that is older than the files beside it, with a state.db that is older too or not, loses nothing that was
// accepted, and says so.
func TestOlderSidecar(t *testing.T) {
	for name, c := range map[string]struct {
		all                  bool // the whole backup is unpacked over the spool, not the sidecar alone
		clean, another, mark bool // the stop; a restart between backup and stop; the mark is kept
		settled              int  // of 100 records, 50 of them older than the backup
		pruned               bool // and what can be unlinked is
		damaged              bool // the first segment that the sidecar does not name
	}{
		"backup unpacked over it":                 {all: true, mark: true},
		"backup unpacked over it, clean":          {all: true, mark: true, clean: true},
		"backup unpacked over it, restarted":      {all: true, mark: true, another: true},
		"backup unpacked over it, some settled":   {all: true, mark: true, settled: 70},
		"backup unpacked over it, all settled":    {all: true, mark: true, settled: 100, clean: true},
		"backup unpacked over it, damaged":        {all: true, mark: true, damaged: true},
		"backup unpacked over it, without a mark": {all: true, another: true},
		"sidecar":                            {mark: true},
		"sidecar, clean":                     {mark: true, clean: true},
		"sidecar, restarted":                 {mark: true, another: true, clean: true},
		"sidecar, some settled":              {mark: true, settled: 65},
		"sidecar, some settled and unlinked": {mark: true, settled: 75, pruned: true, clean: true},
		"sidecar, all settled":               {mark: true, settled: 100, clean: true},
		"sidecar, damaged":                   {mark: true, damaged: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
			told := r.tens(50, "A")
			old := r.backedUp(t)
			told = append(told, r.tens(25, "B")...)
			if c.another {
				r.reopen(true)
			}
			told = append(told, r.tens(25, "C")...)
			r.settle(c.settled)
			if c.pruned {
				r.os.pass(r.opts.Horizon + 1)
				r.spool.Prune()
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
			}
			if c.clean {
				if err := r.spool.Close(true); err != nil {
					t.Fatal(err)
				}
			} else {
				r.kill()
			}
			if !c.all {
				old = map[string][]byte{sidecarName: old[sidecarName]}
			}
			if c.damaged {
				names := slices.DeleteFunc(segmentNames(t, r.path("")), func(n string) bool { return firstOf(n) < "0000000000000051" })
				b := r.copyOf(names[0])
				clear(b[names[0]][4*4096 : 7*4096])
				r.putBack(b)
			}
			r.putBack(old)
			if !c.mark {
				if err := os.Remove(r.path(markName)); err != nil {
					t.Fatal(err)
				}
			}
			ring := r.opts.Keys
			if rep, err := VerifyFolder(r.path(""), ring); err != nil || len(rep.Damaged) == 0 && c.settled < 100 {
				t.Errorf("verify: %+v, %v", rep, err)
			}
			r.open()
			if !r.spool.Unclean() {
				t.Error("the stop counts as clean")
			}
			if _, high := r.spool.Mark(); high <= told[len(told)-1].At {
				t.Error("time may begin at an instant that was used")
			}
			st, waits := r.law(), r.waiting()
			lost := 0
			for i, rec := range told {
				if !waits[rec.Event] && (c.all || i >= c.settled) && (!c.all || !c.pruned) {
					lost++
				}
			}
			if c.all && c.settled > 0 { // settled and unlinked is not lost; all the rest is sent again
				lost = min(lost, 100-c.settled)
			}
			if int64(lost) != st.Unaccounted || lost > 0 && !c.damaged || lost == 0 && c.damaged {
				t.Errorf("%d scans are lost, %d of %d wait: %+v", lost, len(waits), len(told), st)
			}
			hs := r.tend()
			if !slices.ContainsFunc(hs, func(h Healing) bool { return h.File == sidecarName }) {
				t.Errorf("nobody is told: %+v", hs)
			}
			if !c.all && st.Committed != int64(c.settled) {
				t.Errorf("%d were settled: %+v", c.settled, st)
			}
			next := r.scan(r.candidate("next"))
			r.reopen(false)
			if hs := r.tend(); len(hs) != 0 {
				t.Errorf("told again: %+v", hs)
			}
			if again := r.law(); again.Pending != st.Pending+1 || again.Unaccounted != st.Unaccounted || !r.waiting()[next.Record.Event] {
				t.Errorf("after a restart %+v, before %+v", again, st)
			}
			r.drain()
			if end := r.law(); end.Pending != 0 || end.Unaccounted != st.Unaccounted {
				t.Errorf("%+v", end)
			}
			if rep, err := VerifyFolder(r.path(""), ring); err != nil || len(rep.Damaged) != 0 {
				t.Errorf("verify: %+v, %v", rep, err)
			}
		})
	}
}

func segmentNames(t testing.TB, dir string) (out []string) {
	t.Helper()
	names, err := spoolFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if filepath.Ext(n) == segmentExt {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(firstOf(a), firstOf(b)) })
	return out
}

// What a crash leaves behind unnamed is no damage.
func TestStraysOfACrash(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
	r.tens(50, "A")
	gone := r.spool.segments[0].name
	r.settle(30)
	r.os.pass(r.opts.Horizon + 1)
	kept := r.copyOf(gone)
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	r.kill()
	r.putBack(kept) // its name came back
	r.putBack(map[string][]byte{segmentName("00000000000000aa", 51): nil, segmentName("00000000000000ab", 51): make([]byte, 8192)})
	r.open()
	if st, hs := r.law(), r.tend(); len(hs) != 0 || st.Unaccounted != 0 || st.Pending != 20 {
		t.Fatalf("%+v, healed: %+v", st, hs)
	}
	if _, err := os.Stat(r.path(gone)); err == nil {
		t.Error("the settled segment is still there")
	}
}

// The same with a sidecar of a run that took nothing: its segment is gone, and its number is another's.
func TestOlderSidecarOfAnIdleRun(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
	r.tens(50, "A")
	r.drain()
	r.reopen(false)
	old := r.copyOf(sidecarName)
	r.reopen(false)
	told := r.tens(30, "B")
	r.kill()
	r.putBack(old)
	r.open()
	if st, waits := r.law(), r.waiting(); st.Unaccounted != 0 || st.Committed != 50 || st.Captured != 80 || len(waits) != len(told) {
		t.Errorf("%+v", st)
	}
	if hs := r.tend(); len(hs) != 1 || hs[0].File != sidecarName {
		t.Errorf("told: %+v", hs)
	}
}

// A segment of another history, whose numbers are taken, is kept aside and what it holds is counted; one of another
// agent or key too, though nobody knows what it holds.
func TestStrangeSegments(t *testing.T) {
	for _, marked := range []bool{false, true} { // the mark is of the other history too
		t.Run(fmt.Sprint("marked: ", marked), func(t *testing.T) { strangeSegments(t, marked) })
	}
}

func strangeSegments(t *testing.T, marked bool) {
	r := newRig(t)
	r.tens(30, "A")
	old := r.backedUp(t)
	r.tens(30, "B")
	newer := r.spool.active.name
	r.kill()
	kept := r.copyOf(newer)
	if marked {
		kept = r.copyOf(newer, markName)
	}
	if err := errors.Join(os.Remove(r.path(newer)), os.Remove(r.path(markName))); err != nil {
		t.Fatal(err)
	}
	r.putBack(old)
	r.open()
	told := r.tens(10, "C")
	r.kill()
	r.putBack(kept)
	other := newRig(t)
	other.tens(5, "X")
	foreign := other.copyOf(other.spool.active.name)
	r.putBack(foreign)
	r.open()
	hs := r.tend()
	st := r.law()
	if st.Unaccounted != 30 || st.Pending != 40 {
		t.Errorf("%+v", st)
	}
	for _, rec := range told {
		if !r.waiting()[rec.Event] {
			t.Fatal("a scan of this history is lost")
		}
	}
	if len(hs) != 2 || hs[0].Aside == "" || hs[1].Aside == "" || hs[0].Unaccounted+hs[1].Unaccounted != 30 || hs[0].Apart == hs[1].Apart {
		t.Fatalf("%+v", hs)
	}
	r.reopen(false)
	if again := r.law(); again.Unaccounted != 30 || len(r.tend()) != 0 {
		t.Errorf("told again: %+v", again)
	}
}

// Files whose names were changed or swapped are found by their headers.
func TestNamesAreSwapped(t *testing.T) {
	for name, swap := range map[string]func(r *rig, segs []string) []string{
		"two":               func(_ *rig, s []string) []string { return []string{s[1], s[2], s[1]} },
		"all around":        func(_ *rig, s []string) []string { return []string{s[0], s[1], s[2], s[0]} },
		"state.db":          func(_ *rig, s []string) []string { return []string{s[1], stateName, s[1]} },
		"another name":      func(_ *rig, s []string) []string { return []string{s[1], "saved.seg"} },
		"a name of its way": func(_ *rig, s []string) []string { return []string{s[1], segmentName("00000000000000aa", 7)} },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
			r.tens(70, "A")
			r.settle(10)
			want := r.waiting()
			r.kill()
			way := swap(r, segmentNames(t, r.path("")))
			files := r.copyOf(way[:len(way)-1]...)
			for i, from := range way[:len(way)-1] {
				r.putBack(map[string][]byte{way[i+1]: files[from]})
			}
			if last := way[len(way)-1]; last != way[0] {
				if err := os.Remove(r.path(way[0])); err != nil {
					t.Fatal(err)
				}
			}
			r.open()
			if st := r.law(); st.Unaccounted != 0 || st.Committed != 10 || len(r.waiting()) != len(want) {
				t.Errorf("%+v", st)
			}
			if hs := r.tend(); len(hs) == 0 {
				t.Error("nobody is told")
			}
			r.drain()
		})
	}
}

// The same where no sidecar knows the headers.
func TestNamesAreSwappedWithoutASidecar(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
	r.tens(70, "A")
	r.kill()
	segs := segmentNames(t, r.path(""))
	files := r.copyOf(segs[0], segs[2], segs[3])
	r.putBack(map[string][]byte{segs[0]: files[segs[2]], segs[2]: files[segs[0]], "copy.seg": files[segs[3]]})
	if err := os.Remove(r.path(sidecarName)); err != nil {
		t.Fatal(err)
	}
	r.open()
	if st := r.law(); st.Unaccounted != 0 || st.Pending != 70 || len(r.waiting()) != 70 {
		t.Errorf("%+v", st)
	}
}

// A copy of a segment under another name is set aside, and takes no part.
func TestCopiesOfSegments(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
	r.tens(50, "A")
	r.kill()
	name := segmentNames(t, r.path(""))[1]
	r.putBack(map[string][]byte{"copy.seg": r.copyOf(name)[name], segmentName("00000000000000aa", 22): r.copyOf(name)[name]})
	r.open()
	if st := r.law(); st.Unaccounted != 0 || st.Pending != 50 || len(r.waiting()) != 50 {
		t.Errorf("%+v", st)
	}
	if left := segmentNames(t, r.path("")); slices.Contains(left, "copy.seg") {
		t.Errorf("left: %v", left)
	}
}

// Whatever stands in the place of a file, the spool opens, goes on, and counts what it has lost.
func TestNoFile(t *testing.T) {
	things := map[string]func(path string) error{
		"folder": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o700), os.WriteFile(filepath.Join(path, "x"), nil, 0o600))
		},
		"link to itself":  func(path string) error { return os.Symlink(path, path) },
		"link to nowhere": func(path string) error { return os.Symlink(path+".nowhere", path) },
		"link to zeros":   func(path string) error { return os.Symlink("/dev/zero", path) },
		"link to a file's inside": func(path string) error {
			return os.Symlink(filepath.Join(os.Args[0], "inside"), path)
		},
	}
	for what, put := range things {
		for _, place := range []string{sidecarName, stateName, markName, journalName, reserveName, asideName, "first", "last"} {
			t.Run(what+" for "+place, func(t *testing.T) {
				r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
				r.tens(50, "A")
				if err := r.spool.Journal().Add(Operation{ID: NewEvent(1), Kind: "test", Subject: "S"}); err != nil {
					t.Fatal(err)
				}
				r.kill()
				name, segs, lost := place, segmentNames(t, r.path("")), 0
				switch place {
				case "first":
					name, lost = segs[0], 20
				case "last":
					name, lost = segs[2], 10
				case asideName: // needed only if something is damaged
					lost = 20
					if err := os.Remove(r.path(segs[0])); err != nil {
						t.Fatal(err)
					}
				}
				if err := errors.Join(os.RemoveAll(r.path(name)), put(r.path(name))); err != nil {
					t.Fatal(err)
				}
				if place == asideName {
					if err := os.WriteFile(r.path(segs[1]), nil, 0o600); err != nil {
						t.Fatal(err)
					}
					lost = 40
				}
				r.open()
				if st := r.law(); st.Unaccounted != int64(lost) || st.Pending != int64(50-lost) {
					t.Errorf("%+v", st)
				}
				if hs := r.tend(); len(hs) == 0 || hs[0].File != filepath.Base(hs[0].File) {
					t.Errorf("told: %+v", hs)
				}
				r.scan(r.candidate("B"))
				r.reopen(false)
				if st, hs := r.law(), r.tend(); len(hs) != 0 || st.Pending != int64(51-lost) {
					t.Errorf("after a restart: %+v, %+v", st, hs)
				}
				if fi, err := os.Lstat(r.path(name)); err == nil && place != asideName && !fi.Mode().IsRegular() {
					t.Errorf("%s is still %v", name, fi.Mode())
				}
				r.drain()
			})
		}
	}
}

// Without sidecar and state.db it is the mark that says from where on the segments must be there, and how far they went.
func TestMarkTellsOfMissingSegments(t *testing.T) {
	for name, c := range map[string]struct {
		settled, pruned bool
		gone            []int // segments that are removed, of 3 with 20, 20, 10 records; -1 is all
		lost            int
	}{
		"the first":                       {gone: []int{0}, lost: 20},
		"the first two":                   {gone: []int{0, 1}, lost: 40},
		"the last":                        {gone: []int{2}, lost: 10},
		"all":                             {gone: []int{0, 1, 2}, lost: 50},
		"none":                            {},
		"none, one is settled and pruned": {settled: true, pruned: true},
		"the first that was left":         {settled: true, pruned: true, gone: []int{0}, lost: 20},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 20 })
			r.tens(50, "A")
			if c.settled {
				r.settle(20)
			}
			if c.pruned {
				r.os.pass(r.opts.Horizon + 1)
				r.spool.Prune()
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
			}
			r.kill()
			segs := segmentNames(t, r.path(""))
			for _, i := range c.gone {
				if err := os.Remove(r.path(segs[i])); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Remove(r.path(sidecarName)), os.Remove(r.path(stateName))); err != nil {
				t.Fatal(err)
			}
			r.open()
			left := 50 - c.lost
			if c.pruned {
				left -= 20
			}
			if st := r.law(); st.Unaccounted != int64(c.lost) || st.Pending != int64(left) || r.spool.NextSeq() != 51 {
				t.Errorf("next %d, %+v", r.spool.NextSeq(), st)
			}
			told := int64(0)
			for _, h := range r.tend() {
				told += h.Unaccounted
			}
			if told != int64(c.lost) {
				t.Errorf("%d were told, %d are lost", told, c.lost)
			}
			r.reopen(false)
			if st := r.law(); st.Unaccounted != int64(c.lost) || len(r.tend()) != 0 {
				t.Errorf("after a restart: %+v", st)
			}
		})
	}
}
