package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"scanonce/bloom"
	"scanonce/idem"
	"scanonce/window"
)

// A restart between scan and bounce changes nothing, also when everything was drained. A memory that dies
// with its process, a filter or the claims alone, forgets.
func TestBounceAfterARestart(t *testing.T) {
	for _, clean := range []bool{false, true} {
		for _, drained := range []bool{false, true} {
			t.Run(fmt.Sprintf("clean=%v drained=%v", clean, drained), func(t *testing.T) {
				r := newRig(t)
				c := r.candidate("A")
				c.Identity.Quantity = 30
				first := r.scan(c)
				r.later(10*time.Millisecond, "B") // so that A is not in doubt
				if drained {
					r.drain()
				}
				r.os.pass(time.Second)
				r.reopen(clean)
				r.os.pass(time.Second)

				filter := bloom.New(100, 1e-3, time.Minute)
				filter.SetComplete()
				if filter.Ask(first.Record.Physical, first.Record.Keys.Idem) != bloom.SurelyNew {
					t.Fatal("a new filter knows the scan: nothing is tested")
				}
				won := false
				claims := idem.NewEmbedded(r.os.Boot, time.Minute).Claim(context.Background(), []idem.Claim{{Keys: first.Record.Keys, Event: idem.EventID{1}}})
				claims[0].Match(func() { won = true }, func(idem.EventID) {}, func(error) {})
				if !won {
					t.Fatal("new claims know the scan: nothing is tested")
				}

				r.wantDuplicate(r.scan(r.candidate("A")), first, ReasonBounce, "bounce")
				r.os.pass(989 * time.Millisecond)
				r.wantDuplicate(r.scan(r.candidate("A")), first, ReasonBounce, "1 ms before W")
				r.os.pass(time.Millisecond)
				r.wantNew(r.scan(r.candidate("A")), "at W")
			})
		}
	}
}

// The echo of a one-shot quantity has other keys than the first: only its physical identity is known.
func TestFilterIsAskedForThePhysicalIdentity(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := newRig(t)
		c := r.candidate("A")
		c.Identity.Quantity = 30
		first := r.scan(c)
		if restart {
			r.reopen(true)
		}
		r.os.pass(100 * time.Millisecond)
		echo := r.candidate("A")
		keys := echo.Identity.Keys(echo.Policy, echo.At.T)
		if h := r.spool.filter.Ask(keys.Idem, keys.Edge); h != bloom.SurelyNew {
			t.Fatalf("asked for the keys alone the filter says %v: nothing is tested", h)
		}
		r.wantDuplicate(r.scan(echo), first, ReasonBounce, "echo")
	}
}

// The filter never decides: if it may have seen everything, nothing new becomes a duplicate.
func TestAFilterThatKnowsEverythingDecidesNothing(t *testing.T) {
	r := newRig(t)
	r.spool.filter = bloom.New(100, 1e-3, time.Minute) // incomplete: always "perhaps seen"
	for i := range 20 {
		r.wantNew(r.later(time.Millisecond, fmt.Sprint(i)), "another item")
	}
}

// An echo of the last frame before the stop keeps its 300 ms over a restart.
func TestLastEqualFrameIsKnownAfterARestart(t *testing.T) {
	r := newRig(t)
	first := r.later(0, "A")
	r.wantDuplicate(r.later(time.Second, "A"), first, ReasonBounce, "bounce")
	r.reopen(true)
	r.os.pass(250 * time.Millisecond)
	c := r.candidate("A")
	c.Act = c.At.Boot - 1
	r.wantDuplicate(r.scan(c), first, ReasonBounce, "echo of the bounce")
}

func TestInDoubt(t *testing.T) {
	const another = -1
	for name, tc := range map[string]struct {
		clean    bool
		boot     time.Duration // another boot that begins so much later; 0 is the same
		synced   bool
		first    string // what the scanner sends before; "" nothing
		after    time.Duration
		act      time.Duration // after the restart; 0 is none
		resend   bool
		isResend bool
	}{
		"same boot":                             {after: 30 * time.Second, isResend: true},
		"same boot, 10 min":                     {after: 10 * time.Minute, isResend: true},
		"same boot, later":                      {after: 10*time.Minute + time.Millisecond},
		"same boot, clean stop":                 {clean: true, after: 30 * time.Second},
		"same boot, another frame first":        {first: "B", after: 30 * time.Second},
		"same boot, an act first":               {after: 30 * time.Second, act: time.Second},
		"same boot, an act, but known resend":   {after: 30 * time.Second, act: time.Second, resend: true, isResend: true},
		"another boot":                          {boot: time.Minute, after: time.Second, isResend: true},
		"another boot, another frame first":     {boot: time.Minute, first: "B", after: time.Second},
		"another boot, an act first":            {boot: time.Minute, act: time.Second, after: 2 * time.Second},
		"another boot, up for 10 min":           {boot: time.Minute, after: 10*time.Minute - 20*time.Second, isResend: true},
		"another boot, up for longer":           {boot: time.Minute, after: 10*time.Minute - 20*time.Second + time.Millisecond},
		"another boot, an hour, by a bad clock": {boot: time.Hour, after: time.Second, isResend: true},
		"another boot, an hour, proved":         {boot: time.Hour, synced: true, after: time.Second},
		"another boot, 9 min, proved":           {boot: 9 * time.Minute, synced: true, after: time.Second, isResend: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.os.synced = tc.synced
			r.reopen(true)
			first := r.later(0, "A")
			r.os.pass(time.Millisecond)
			switch {
			case tc.boot > 0:
				r.reboot(tc.boot)
			default:
				r.reopen(tc.clean)
			}
			began := r.os.boot
			if tc.first != "" {
				r.wantNew(r.later(time.Millisecond, tc.first), "the frame before")
			}
			r.os.pass(tc.after - (r.os.boot - began))
			if tc.boot == 0 { // measured from the scan
				r.os.pass(-time.Millisecond)
			}
			c := r.candidate("A")
			c.Resend = tc.resend
			if tc.act > 0 {
				c.Act = began + tc.act
			}
			d := r.scan(c)
			if !tc.isResend {
				r.wantNew(d, "first frame")
				return
			}
			r.wantDuplicate(d, first, ReasonInDoubt, "first frame")
			r.wantDuplicate(r.later(150*time.Millisecond, "A"), first, ReasonBounce, "its echo")
			r.reopen(true)
			r.wantDuplicate(r.later(2849*time.Millisecond, "A"), first, ReasonBounce, "its echo after a restart")
			r.wantNew(r.later(time.Millisecond, "A"), "W after the frame in doubt")
		})
	}
}

// A scanner that sends a label or a command has heard the answer before.
func TestAFrameThatIsNoMovementEndsTheDoubt(t *testing.T) {
	r := newRig(t)
	r.later(0, "A")
	r.reopen(false)
	b := r.spool.NewBatch()
	b.Heard("SCN-04")
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.wantNew(r.later(30*time.Second, "A"), "after a label")
}

// The resend may itself be lost: the doubt counts from the last answer, and repeats the acceptance.
func TestInDoubtTwice(t *testing.T) {
	r := newRig(t)
	first := r.later(0, "A")
	r.reopen(false)
	r.wantDuplicate(r.later(9*time.Minute, "A"), first, ReasonInDoubt, "first resend")
	r.reopen(false)
	r.wantDuplicate(r.later(9*time.Minute, "A"), first, ReasonInDoubt, "second resend")
	r.reboot(time.Minute)
	r.wantDuplicate(r.later(time.Second, "A"), first, ReasonInDoubt, "third resend")
}

// Who heard no answer scans again as soon as the agent is back, perhaps still within the window of the first scan. The
// echo of that second scan may come behind the window, and repeats it all the same.
func TestTheEchoOfAScanThatIsInDoubtWithinTheWindow(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		r := newRig(t)
		first := r.later(0, "A")
		r.wantDuplicate(r.later(100*time.Millisecond, "A"), first, ReasonBounce, "the echo of the first")
		r.reopen(false)
		r.wantDuplicate(r.later(2850*time.Millisecond, "A"), first, ReasonInDoubt, "again, 50 ms before W")
		if stopped {
			r.reopen(true)
		}
		r.wantDuplicate(r.later(100*time.Millisecond, "A"), first, ReasonBounce, "its echo, 50 ms behind W")
		r.wantDuplicate(r.later(2899*time.Millisecond, "A"), first, ReasonBounce, "1 ms before W of the second")
		r.wantNew(r.later(time.Millisecond, "A"), "W after the second")
	}
}

// A clean stop tells nobody what the crash before it has kept from a scanner that was silent in between.
func TestADoubtOutlivesACleanStop(t *testing.T) {
	r := newRig(t)
	at := func(scanner, item string) Candidate {
		c := r.candidate(item)
		c.Physical, c.Identity.Scanner = idem.PhysicalKey(scanner, []byte(item)), scanner
		return c
	}
	silent, other := r.scan(at("S1", "A")), r.scan(at("S2", "A"))
	r.reopen(false)
	r.os.pass(30 * time.Second)
	r.wantDuplicate(r.scan(at("S2", "A")), other, ReasonInDoubt, "the one that was heard")
	r.reopen(true)
	r.os.pass(30 * time.Second)
	r.wantNew(r.scan(at("S2", "A")), "the one that had its answer")
	r.wantDuplicate(r.scan(at("S1", "A")), silent, ReasonInDoubt, "the silent one")
	r.reopen(true)
	r.os.pass(30 * time.Second)
	r.wantNew(r.scan(at("S1", "A")), "all have their answers")
}

// What is in doubt is the answer to the last frame, also if that was a duplicate of an older acceptance.
func TestADuplicateIsInDoubtToo(t *testing.T) {
	r := newRig(t)
	first := r.later(0, "A")
	r.later(time.Second, "B")
	r.wantDuplicate(r.later(time.Second, "A"), first, ReasonBounce, "bounce")
	r.reopen(false)
	r.wantDuplicate(r.later(time.Minute, "A"), first, ReasonInDoubt, "its resend")
}

func TestEachScannerHasItsOwnDoubt(t *testing.T) {
	r := newRig(t)
	at := func(scanner, item string) Candidate {
		c := r.candidate(item)
		c.Physical, c.Identity.Scanner = idem.PhysicalKey(scanner, []byte(item)), scanner
		return c
	}
	one, two := r.scan(at("S1", "A")), r.scan(at("S2", "A"))
	r.reopen(false)
	r.os.pass(time.Minute)
	r.wantDuplicate(r.scan(at("S1", "A")), one, ReasonInDoubt, "first scanner")
	r.wantDuplicate(r.scan(at("S2", "A")), two, ReasonInDoubt, "second scanner")
}

// A clock that was ahead before the boot can bring a window twice: the keys differ all the same.
func TestKeysOfTheBootBeforeAreNotMetAgain(t *testing.T) {
	r := newRig(t)
	r.os.synced = true
	r.reopen(true)
	r.atBoundary(100 * time.Millisecond)
	first := r.later(0, "A")
	r.later(0, "B")
	r.os.wall = r.os.wall.Add(-15 * time.Second)
	r.reboot(0)
	c := r.candidate("A")
	if k := c.Identity.Keys(c.Policy, c.At.T); k.Idem != first.Record.Keys.Idem {
		t.Fatal("the clock goes on elsewhere: nothing is tested")
	}
	d := r.scan(c)
	r.wantNew(d, "another movement in the same window")
	wantAgain(t, d, c.Identity, c.Policy)
}

// A crash may happen between any two steps that change which files there are.
func TestCrashBetweenTheFilesSteps(t *testing.T) {
	read := func(t *testing.T, path string) []byte {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(t *testing.T, path string, b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("a segment is made and not named", func(t *testing.T) {
		for name, content := range map[string]func(whole []byte) []byte{
			"empty":     func([]byte) []byte { return nil },
			"zeros":     func(w []byte) []byte { return make([]byte, len(w)) },
			"half made": func(w []byte) []byte { return append(w[:8192:8192], make([]byte, 8192)...) },
			"whole":     func(w []byte) []byte { return w },
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t)
				r.scan(r.candidate("A"))
				sidecar := read(t, r.path(sidecarName))
				r.os.pass(time.Minute)
				if err := r.spool.roll(); err != nil {
					t.Fatal(err)
				}
				made := r.spool.active.path
				r.kill()
				write(t, r.path(sidecarName), sidecar)
				write(t, made, content(read(t, made)))
				r.open()
				if d := r.later(time.Minute, "B"); d.Record.Seq != 2 {
					t.Fatalf("sequence number %d", d.Record.Seq)
				}
				if got := r.records(); len(got) != 2 {
					t.Fatalf("%d records", len(got))
				}
				if _, err := os.Stat(made); err == nil {
					t.Error("the stray file is still there")
				}
			})
		}
	})
	t.Run("an empty segment is no longer named and not unlinked", func(t *testing.T) {
		r := newRig(t)
		empty := r.spool.active.path
		whole := read(t, empty)
		r.reopen(true)
		r.scan(r.candidate("A"))
		r.kill()
		write(t, empty, whole)
		r.open()
		if got := r.records(); len(got) != 1 {
			t.Fatalf("%d records: the empty segment cut the live one off", len(got))
		}
		if _, err := os.Stat(empty); err == nil {
			t.Error("the empty file is still there")
		}
	})
	t.Run("a settled segment", func(t *testing.T) {
		// unlink: sidecar, file, and last, with a later settlement, the cursor.
		for steps := range 4 {
			r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
			for i := range 5 {
				r.later(time.Minute, fmt.Sprint(i))
			}
			r.drain()
			r.os.pass(time.Hour)
			r.spool.Prune()
			gone := r.spool.pruned
			if len(gone) != 2 {
				t.Fatalf("%d segments pruned", len(gone))
			}
			if steps > 0 {
				if err := r.spool.writeSidecar(segmentEntry{}); err != nil {
					t.Fatal(err)
				}
			}
			for _, seg := range gone[:min(max(steps-1, 0), 2)] {
				if err := os.Remove(seg.path); err != nil {
					t.Fatal(err)
				}
			}
			r.reopen(false)
			st := r.law()
			if st.Captured != 5 || st.Committed != 5 || st.Pending != 0 {
				t.Fatalf("after %d steps: %+v", steps, st)
			}
			if w, err := r.spool.Next(10); err != nil || !w.Empty() {
				t.Fatalf("after %d steps something is settled twice: %v, %v", steps, w.Records, err)
			}
			r.later(time.Minute, "last")
			r.drain()
			left, err := filepath.Glob(r.path("*" + segmentExt))
			if err != nil {
				t.Fatal(err)
			}
			want := 2 // the third of the run before, and the live one
			if steps == 0 {
				want += 2
			}
			if len(left) != want {
				t.Errorf("after %d steps %d segment files are left, want %d", steps, len(left), want)
			}
			if steps > 0 && len(r.spool.state.cursors) > 2 {
				t.Errorf("after %d steps cursors of unlinked segments stay: %v", steps, r.spool.state.cursors)
			}
		}
	})
	t.Run("state.db is made and not known", func(t *testing.T) {
		for _, content := range [][]byte{nil, make([]byte, 16384)} {
			r := newRig(t)
			r.kill()
			if err := os.RemoveAll(r.path("")); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(r.path(""), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, r.path(stateName), content)
			r.open()
			r.scan(r.candidate("A"))
			r.law()
		}
	})
	t.Run("a new sidecar is not in place", func(t *testing.T) {
		r := newRig(t)
		left := r.path(sidecarName + tmpMark + "123")
		write(t, left, []byte("{"))
		r.reopen(false)
		if _, err := os.Stat(left); err == nil {
			t.Error("the unfinished sidecar is still there")
		}
	})
}

// A segment that somebody put into the folder is neither taken up nor deleted.
func TestASegmentPutThereByHandIsKeptAside(t *testing.T) {
	r := newRig(t)
	r.scan(r.candidate("A"))
	name := r.spool.active.name
	r.reopen(false)
	r.kill()
	b, err := os.ReadFile(r.path(name))
	if err != nil {
		t.Fatal(err)
	}
	other := "00000000000000aa-0000000000000007" + segmentExt
	if err := os.WriteFile(r.path(other), b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	aside, err := filepath.Glob(filepath.Join(r.path(asideName), other+".*"))
	if err != nil || len(aside) != 1 {
		t.Fatalf("kept aside: %v, %v", aside, err)
	}
	if got := r.records(); len(got) != 1 {
		t.Fatalf("%d records", len(got))
	}
}

// A start that fails before anything can be taken in changes nothing of how the run before ended.
func TestAFailedBeginIsNoRun(t *testing.T) {
	r := newRig(t)
	r.later(0, "A")
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	s, err := Open(r.path(""), r.opts)
	if err != nil {
		t.Fatal(err)
	}
	s.dir += "-away"
	if err := s.Begin(r.clock); err == nil {
		t.Fatal("it begins in a folder that is not there")
	}
	s.dir = r.path("")
	if err := s.Close(false); err != nil {
		t.Fatal(err)
	}
	r.open()
	if r.spool.Unclean() {
		t.Fatal("the run before ended cleanly")
	}
	r.wantNew(r.later(time.Minute, "A"), "a minute later")
}

// What must exist and does not is counted, and does not pass for new.
func TestMissingFiles(t *testing.T) {
	for _, name := range []string{"segment", stateName} {
		for _, empty := range []bool{false, true} {
			r := newRig(t)
			r.scan(r.candidate("A"))
			path := r.path(name)
			if name == "segment" {
				path = r.spool.active.path
			}
			r.kill()
			var err error
			if empty {
				err = os.Truncate(path, 0)
			} else {
				err = os.Remove(path)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := r.snapshot()
			o := r.opts
			o.ReadOnly = true
			var damaged *DamageError
			if s, err := Open(r.path(""), o); !errors.As(err, &damaged) || damaged.File != filepath.Base(path) {
				t.Errorf("%s, empty %v, opened for reading: %v", filepath.Base(path), empty, err)
				if err == nil {
					s.Close(false)
				}
			}
			r.sameFiles(before)
			r.open()
			if st := r.law(); st.Captured != 1 || name == "segment" && st.Unaccounted != 1 || name == stateName && st.Pending != 1 {
				t.Errorf("%s, empty %v: %+v", filepath.Base(path), empty, st)
			}
		}
	}
}

// Without its sidecar the spool is the same, and the stop counts as unclean.
func TestWithoutTheSidecar(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	for i := range 5 {
		r.later(time.Minute, fmt.Sprint(i))
	}
	r.drain()
	r.os.pass(time.Hour)
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	first := r.later(time.Minute, "A")
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(r.path(sidecarName)); err != nil {
		t.Fatal(err)
	}
	r.open()
	if st := r.law(); st.Captured != 6 || st.Pending != 1 {
		t.Fatalf("%+v", st)
	}
	r.wantDuplicate(r.later(time.Minute, "A"), first, ReasonInDoubt, "first frame")

	// With state.db lost as well, nothing is known of what was unlinked, and it is not counted.
	r.kill()
	for _, name := range []string{sidecarName, stateName} {
		if err := os.Remove(r.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	for range 2 {
		if st := r.law(); st.Captured != 3 || st.Pending != 3 { // 5, A, and its resend
			t.Fatalf("%+v", st)
		}
		r.reopen(false)
	}
}

func TestReadOnly(t *testing.T) {
	r := newRig(t)
	r.scan(r.candidate("A"))
	r.kill()
	o := r.opts
	o.ReadOnly = true
	before := r.snapshot()
	s, err := Open(r.path(""), o)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := s.Unsettled(func(rec *Record, x Exception) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("%d unsettled, %v", n, err)
	}
	if err := s.Begin(r.clock); err == nil {
		t.Error("a spool that is only read begins")
	}
	if err := s.Close(false); err != nil {
		t.Error(err)
	}
	r.sameFiles(before)
	o.ReadOnly = true
	if _, err := Open(filepath.Join(r.dir, "nowhere"), o); err == nil {
		t.Error("a folder that is not there opens")
	}
	if _, err := os.Stat(filepath.Join(r.dir, "nowhere")); err == nil {
		t.Error("looking at a folder makes it")
	}
	r.open()
}

// snapshot reads every file of the spool.
func (r *rig) snapshot() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[path] = string(b)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

func (r *rig) sameFiles(before map[string]string) {
	r.t.Helper()
	after := r.snapshot()
	if len(after) != len(before) {
		r.t.Fatalf("%d files, before %d", len(after), len(before))
	}
	for path, b := range before {
		if after[path] != b {
			r.t.Fatalf("%s has changed", filepath.Base(path))
		}
	}
}

// That a doubt is over in another boot is proved by the reference alone, at both ends.
func TestDoubtIsOverByTheReference(t *testing.T) {
	for _, before := range []window.Quality{window.Unsynced, window.Holdover, window.Synced} {
		for _, now := range []window.Quality{window.Unsynced, window.Holdover, window.Synced} {
			d := &doubt{bootID: "one", boot: time.Hour, at: 1000, quality: before}
			at := window.Reading{T: d.at.Add(11 * time.Minute), Boot: time.Second, Quality: now}
			if got, want := d.provablyOver(at, "two"), before == window.Synced && now == window.Synced; got != want {
				t.Errorf("%v, then %v: over %v, want %v", before, now, got, want)
			}
		}
	}
}
