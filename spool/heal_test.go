package spool

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// fill scans n items, each a movement of its own.
func (r *rig) fill(n int, prefix string) (out []Record) {
	r.t.Helper()
	b := r.spool.NewBatch()
	for i := range n {
		d := r.decide(b, r.candidate(fmt.Sprint(prefix, i)))
		out = append(out, *d.Record)
		if b.Len() == 50 || i == n-1 {
			if err := b.Commit(); err != nil {
				r.t.Fatal(err)
			}
			b = r.spool.NewBatch()
		}
	}
	return out
}

// tend heals everything that is known to be damaged.
func (r *rig) tend() []Healing {
	r.t.Helper()
	for {
		if more, err := r.spool.tendOne(context.Background(), true); err != nil {
			r.t.Fatal(err)
		} else if !more {
			return r.spool.takeHealings()
		}
	}
}

// Files are damaged under a running spool, mapped or not, while everybody uses it: nobody stops, and each record
// is delivered once or counted.
func TestDamageWhileRunning(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	old := r.fill(600, "old ")
	r.reopen(true)   // what is in memory is not lost
	r.spool.GoLive() // a backlog behind which live scans come first
	var names []string
	for _, seg := range r.spool.segments[:6] {
		names = append(names, seg.path)
	}
	// Map them all, as readers do.
	if err := r.spool.Since(0, func(*Record) bool { return true }); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var tending, settling sync.WaitGroup
	var told atomic.Int64
	tending.Go(func() {
		if err := r.spool.Tend(ctx, func(h Healing) { told.Add(h.Unaccounted) }, func(err error) { t.Error(err) }); err != nil {
			t.Error(err)
		}
	})
	var done atomic.Bool
	delivered := map[idem.EventID]int{}
	settling.Go(func() {
		for {
			last := done.Load()
			w, err := r.spool.NextLive(20)
			if err == nil && w.Empty() {
				w, err = r.spool.Next(20)
			}
			if err == nil && w.Empty() {
				if last && r.spool.Backlog() == 0 {
					return
				}
				select {
				case <-r.spool.Wake():
				case <-time.After(time.Millisecond): // a wake may have come before
				}
				continue
			}
			if err == nil {
				for _, rec := range w.Records {
					delivered[rec.Event]++
				}
				err = r.spool.Settle(w, verdictsOf(w.Records), nil, nil)
			}
			if err != nil {
				t.Errorf("settling: %v", err)
				return
			}
		}
	})
	for _, d := range []struct {
		path string
		do   func(path string) error
	}{
		{names[2], func(path string) error { return os.Truncate(path, 3*4096) }},
		{names[4], func(path string) error { return os.Truncate(path, 0) }},
		{names[5], func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt(bytes.Repeat([]byte{0xA5}, 6*4096), 5*4096)
				err = errors.Join(err, f.Close())
			}
			return err
		}},
	} {
		if err := d.do(d.path); err != nil {
			t.Error(err)
		}
	}
	fresh := r.fill(300, "new ")
	if rep, err := r.spool.Verify(ctx); err != nil { // finds what nobody has met yet
		t.Error(err, rep)
	}
	done.Store(true)
	settling.Wait()
	stop()
	tending.Wait()
	for _, h := range r.tend() { // what had nothing left to settle may still wait
		told.Add(h.Unaccounted)
	}
	st := r.law()
	missing := int64(0)
	for _, rec := range append(old, fresh...) {
		switch delivered[rec.Event] {
		case 0:
			missing++
		case 1:
		default:
			t.Errorf("record %d is delivered %d times", rec.Seq, delivered[rec.Event])
		}
	}
	if missing == 0 || missing != st.Unaccounted || missing != told.Load() || st.Pending != 0 {
		t.Errorf("%d records are missing, %d counted, %d told, %d pending", missing, st.Unaccounted, told.Load(), st.Pending)
	}
	for _, rec := range fresh {
		if delivered[rec.Event] != 1 {
			t.Fatalf("record %d of a healthy segment is missing", rec.Seq)
		}
	}
	epoch := r.spool.Epoch()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if r.spool.Epoch() == epoch {
		t.Error("after the healing the epoch goes on")
	}
	if head := r.spool.ChainHead(); head.Unaccounted != uint64(missing) {
		t.Errorf("the new epoch begins with %d unaccounted", head.Unaccounted)
	}
	r.reopen(true)
	if got := r.law(); got.Unaccounted != missing || len(r.tend()) != 0 {
		t.Errorf("after a restart: %+v", got)
	}
}

// A disk that is full while a file is healed delays that, and nothing else.
func TestFullDiskWhileHealing(t *testing.T) {
	for _, atStart := range []bool{true, false} {
		t.Run(fmt.Sprint("at the start: ", atStart), func(t *testing.T) {
			full := false
			r := newRig(t, func(o *Options) {
				o.SegmentRecords = 100
				o.Disk = func(step DiskStep, path string, do func() error) error {
					if full && step == DiskReplace && filepath.Ext(path) == segmentExt {
						return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
					}
					return do()
				}
			})
			old := r.fill(250, "old ")
			damage := r.spool.segments[1].path
			if !atStart {
				r.reopen(true) // what is in memory is not lost
			} else {
				damage = r.spool.segments[2].path // the last one is read before anything else
				r.kill()
			}
			if err := os.Truncate(damage, 6*4096); err != nil {
				t.Fatal(err)
			}
			full = true
			if atStart {
				r.open()
			} else if _, err := r.spool.Verify(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := r.spool.tendOne(t.Context(), true); !IsNoSpace(err) {
				t.Fatalf("healing on a full disk: %v", err)
			}
			before := r.snapshot()[damage]
			r.law()
			fresh := r.fill(100, "new ")
			r.drain() // what is behind the damaged segment need not wait
			if st := r.law(); st.Pending == 0 || st.Committed < 200 {
				t.Fatalf("meanwhile %+v", st)
			}
			for _, x := range r.spool.Exceptions() {
				t.Errorf("exception %+v", x)
			}
			if r.snapshot()[damage] != before {
				t.Error("the damaged file has changed")
			}
			if left, _ := filepath.Glob(r.path("*" + tmpMark + "*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
			full = false
			hs := r.tend()
			if len(hs) != 1 || hs[0].Records == 0 || hs[0].Unaccounted == 0 {
				t.Fatalf("%+v", hs)
			}
			r.drain()
			st := r.law()
			if st.Pending != 0 || st.Unaccounted != hs[0].Unaccounted || st.Committed+st.Unaccounted != int64(len(old)+len(fresh)) {
				t.Errorf("%+v", st)
			}
		})
	}
}

// The child may do what it likes: what it says of a file counts, and what kills it in the middle of one.
func TestChildren(t *testing.T) {
	sh := func(script string) func(context.Context) *exec.Cmd {
		return func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "sh", "-c", script) }
	}
	begins := func(name string) string { return `echo '{"name":"` + name + `","begins":true}'; ` }
	r := newRig(t)
	r.fill(30, "A")
	r.reopen(true)
	name := r.spool.segments[0].name
	whole, err := os.ReadFile(r.path(name))
	if err != nil {
		t.Fatal(err)
	}
	r.spool.patience = 200 * time.Millisecond
	files := []probeFile{{stateName, nil}, {name, nil}}
	for _, c := range []struct {
		what, script string
		broken       bool // the segment really is
		state, seg   bool // what comes of it
	}{
		{"it knows nothing", "cat >/dev/null", false, true, true},
		{"it knows nothing of a damaged file", "cat >/dev/null", true, true, false},
		{"it cannot be found", "exec /nowhere/to/be/found", true, true, false},
		{"it talks nonsense", "echo hello; echo hello", true, true, false},
		{"it dies before it begins", "kill -SEGV $$", true, true, false},
		{"it dies of the first", begins(stateName) + "kill -BUS $$", false, false, true},
		{"it hangs in the first", begins(stateName) + "exec sleep 60", false, false, true},
		{"it hangs before it begins", "exec sleep 60", true, true, false},
		{"it dies of the second", begins(stateName) + `echo '{"name":"` + stateName + `"}'; ` + begins(name) + "kill -9 $$", false, true, false},
		{"it ends in the second", begins(stateName) + `echo '{"name":"` + stateName + `"}'; ` + begins(name), false, true, false},
		{"it tells of damage", begins(stateName) + `echo '{"name":"` + stateName + `","damage":"x"}'`, false, false, true},
		{"it cannot look", begins(stateName) + `echo '{"name":"` + stateName + `","error":"x"}'`, false, true, true},
	} {
		content := slices.Clone(whole)
		if c.broken {
			content = content[:len(content)/2]
		}
		if err := os.WriteFile(r.path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		// The script is of one run; later runs know nothing.
		runs := 0
		r.spool.opts.Probe = func(ctx context.Context) *exec.Cmd {
			if runs++; runs > 1 {
				return sh("cat >/dev/null")(ctx)
			}
			return sh(c.script)(ctx)
		}
		errs := r.spool.probe(t.Context(), files)
		for i, good := range []bool{c.state, c.seg} {
			var damaged *DamageError
			if good != (errs[i] == nil) || !good && !errors.As(errs[i], &damaged) {
				t.Errorf("%s: %s: %v", c.what, files[i].Name, errs[i])
			}
		}
	}
	r.spool.opts.Probe = probeChild
	r.spool.patience = probeStart
	if err := os.WriteFile(r.path(name), whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if errs := r.spool.probe(t.Context(), files); errs[0] != nil || errs[1] == nil {
		t.Errorf("the real one: %v", errs)
	}
	if err := os.WriteFile(r.path(name), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if errs := r.spool.probe(ended, files); !errors.Is(errs[0], context.Canceled) || !errors.Is(errs[1], context.Canceled) {
		t.Errorf("after its end: %v", errs)
	}
}

// What bbolt makes of a file is tried too: here of one that this package's reader lets pass.
func TestBoltHasItsSay(t *testing.T) {
	r := newRig(t)
	r.fill(200, "A")
	path, name := r.spool.active.path, r.spool.active.name
	r.kill()
	x, err := inspect(r.path(""), name, r.opts.Keys, nil)
	if err != nil || x.Records != 200 {
		t.Fatal(x, err)
	}
	if err := tryBolt(path, name, x); err != nil {
		t.Fatal(err)
	}
	x.Values++
	var damaged *DamageError
	if err := tryBolt(path, name, x); !errors.As(err, &damaged) {
		t.Errorf("a value that bbolt does not find: %v", err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if err := tryBolt(path, name, x); !errors.As(err, &damaged) {
		t.Errorf("a file that is cut off: %v", err)
	}
	r.open()
}

// A duplicate of what is lost cannot settle by itself: a person must see it.
func TestDuplicateOfALostRecord(t *testing.T) {
	r := newRig(t)
	first := r.later(0, "A")
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	dup := r.later(100*time.Millisecond, "A")
	r.wantDuplicate(dup, first, ReasonBounce, "the echo")
	if x := r.spool.Exception(first.Record.Seq); x.State != Pending {
		t.Fatalf("%+v", x)
	}
	name := r.spool.segments[0].path
	r.kill()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	r.open()
	if x := r.spool.Exception(first.Record.Seq); x.State != Unaccounted {
		t.Errorf("what it repeats is lost, and it waits: %+v", x)
	}
	if st := r.law(); st.Unaccounted != 1 || st.Pending != 1 {
		t.Errorf("%+v", st)
	}
}

// A lost sidecar takes the bound of t with it: what may have been used beyond the highest t known counts as used.
func TestBoundOfTWithoutTheSidecar(t *testing.T) {
	for _, what := range []string{"gone", "garbled"} {
		r := newRig(t)
		d := r.later(time.Second, "A")
		if err := r.spool.Close(true); err != nil {
			t.Fatal(err)
		}
		var err error
		if what == "gone" {
			err = os.Remove(r.path(sidecarName))
		} else {
			err = os.WriteFile(r.path(sidecarName), []byte("{"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		// Another boot with a clock that is far behind and proves nothing.
		r.os.bootID, r.os.boot, r.os.wall = "other", time.Minute, r.os.wall.Add(-time.Hour)
		r.open()
		if !r.spool.Unclean() {
			t.Errorf("%s: the stop counts as clean", what)
		}
		if now := r.clock.Now(); now.T < d.Record.At.Add(reserveAhead) || !now.Suspect(window.Default(window.Dispense)) {
			t.Errorf("%s: t goes on at %v, and %v was used", what, now.T, d.Record.At)
		}
	}
}

// The sidecar and a segment's header have each other's back; with both gone the key cannot be proven, and
// nothing is touched.
func TestHeaderAndSidecar(t *testing.T) {
	for _, what := range []string{"header", "sidecar", "both"} {
		r := newRig(t)
		r.fill(40, "A")
		name := r.spool.active.name
		id := r.opts.Keys.Current()
		if err := r.spool.Close(true); err != nil {
			t.Fatal(err)
		}
		if what != "sidecar" {
			b, err := os.ReadFile(r.path(name))
			if err != nil {
				t.Fatal(err)
			}
			// In every copy of the header that the file's pages still hold.
			if b = bytes.ReplaceAll(b, []byte(`"key_id":"`+id[:1]), []byte(`"key_id":"x`)); os.WriteFile(r.path(name), b, 0o600) != nil {
				t.Fatal("cannot write")
			}
		}
		if what != "header" {
			if err := os.Remove(r.path(sidecarName)); err != nil {
				t.Fatal(err)
			}
		}
		before := r.snapshot()
		s, err := Open(r.path(""), r.opts)
		var wrong *WrongKeyError
		if what == "both" {
			if !errors.As(err, &wrong) {
				t.Fatalf("both: %v", err)
			}
			r.sameFiles(before)
			r.spool = &Spool{}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		s.closeFiles()
		r.open()
		if st := r.law(); st.Pending != 40 || st.Unaccounted != 0 {
			t.Errorf("%s: %+v", what, st)
		}
	}
}

// A backup is taken while everybody goes on, and can take the spool's place.
func TestBackup(t *testing.T) {
	for more := range 2 { // bbolt copies an odd transaction into the place of an even one
		t.Run(fmt.Sprint("settlements more: ", more), func(t *testing.T) { testBackup(t, more) })
	}
}

func testBackup(t *testing.T, more int) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	first := r.fill(430, "A")
	for range 2 + more {
		w, err := r.spool.Next(100)
		if err != nil {
			t.Fatal(err)
		}
		vs := verdictsOf(w.Records)
		vs[3] = Verdict{Seq: vs[3].Seq, State: Deferred}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.spool.Rotate(); err != nil {
		t.Fatal(err)
	}
	want := r.law()
	pr, pw := io.Pipe()
	var backing sync.WaitGroup
	var failed error
	backing.Go(func() {
		failed = r.spool.Backup(pw)
		pw.CloseWithError(failed)
	})
	tr := tar.NewReader(pr)
	h, err := tr.Next() // it is under way
	if err != nil || h.Name != "spool/" {
		t.Fatal(h, err)
	}
	r.drain()
	for _, x := range r.spool.Exceptions() {
		if err := r.spool.Settle(Work{}, []Verdict{{Seq: x.Seq, State: Committed}}, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.os.pass(time.Hour)
	r.fill(10, "later ")
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	into := fastDir(t)
	if err := os.MkdirAll(filepath.Join(into, "spool"), 0o700); err != nil {
		t.Fatal(err)
	}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err == nil {
			err = os.WriteFile(filepath.Join(into, h.Name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	backing.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(r.path("*" + segmentExt)); err != nil || len(left) > 2 {
		t.Errorf("after the backup the settled segments stay: %v, %v", left, err)
	}

	if err := os.MkdirAll(filepath.Join(into, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(filepath.Join(into, "keys", "spool.key"), filepath.Join(r.dir, "keys", "spool.key")); err != nil {
		t.Fatal(err)
	}
	rep, err := VerifyFolder(into, r.opts.Keys)
	if err != nil || rep.Records != 430 || rep.Readable != 430 || rep.Segments != 5 || len(rep.Damaged) != 0 {
		t.Errorf("%+v, %v", rep, err)
	}
	back := &rig{t: t, os: r.os, dir: into, opts: r.opts}
	back.open()
	defer func() { back.spool.Close(true) }()
	got := back.law()
	if got.Captured != want.Captured || got.Committed != want.Committed || got.Pending != want.Pending || got.Unaccounted != 0 {
		t.Errorf("restored %+v, want %+v", got, want)
	}
	if told := back.tend(); len(told) != 1 || !told[0].Older || told[0].Records != 0 {
		t.Errorf("told of as %+v", told)
	}
	for i, rec := range back.records() {
		if !reflect.DeepEqual(rec, first[i]) {
			t.Fatalf("record %d is another", rec.Seq)
		}
	}
	if len(back.records()) != 430 {
		t.Errorf("%d records", len(back.records()))
	}
	back.drain()
}

// verify tells what is damaged and changes nothing; salvage makes a spool of the rest.
func TestVerifyAndSalvage(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	r.fill(330, "A")
	w, err := r.spool.Next(50)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
		t.Fatal(err)
	}
	if rep, err := r.spool.Verify(t.Context()); err != nil || rep.Records != 330 || rep.Readable != 330 || rep.Unaccounted != 0 || rep.Segments != 4 || len(rep.Damaged) != 0 {
		t.Fatalf("while it runs: %+v, %v", rep, err)
	}
	middle := r.spool.segments[1].name
	r.kill()
	if rep, err := VerifyFolder(r.dir, r.opts.Keys); err != nil || rep.Records != 330 || rep.Readable != 330 || len(rep.Damaged) != 0 {
		t.Fatalf("at rest: %+v, %v", rep, err)
	}
	b, err := os.ReadFile(r.path(middle))
	if err != nil {
		t.Fatal(err)
	}
	clear(b[5*4096 : 9*4096])
	if err := os.WriteFile(r.path(middle), b, 0o600); err != nil {
		t.Fatal(err)
	}
	before := r.snapshot()
	rep, err := VerifyFolder(r.path(""), r.opts.Keys)
	lost := rep.Records - rep.Readable
	if err != nil || rep.Records != 330 || lost < 10 || lost > 99 || rep.Unaccounted != lost || len(rep.Damaged) != 1 || rep.Damaged[0].File != middle {
		t.Errorf("damaged: %+v, %v", rep, err)
	}
	if one, err := VerifyFolder(r.path(middle), r.opts.Keys); err != nil || one.Segments != 1 || one.Readable != 100-lost || len(one.Damaged) != 1 {
		t.Errorf("the file alone: %+v, %v", one, err)
	}
	into := filepath.Join(fastDir(t), "new")
	got, err := Salvage(t.Context(), r.dir, into, r.opts, r.os)
	if err != nil || got.Records != 330 || got.Readable != 330-lost || got.Unaccounted != lost || len(got.Damaged) != 1 || got.Segments != 4 {
		t.Errorf("salvaged: %+v, %v", got, err)
	}
	r.sameFiles(before)
	if _, err := Salvage(t.Context(), r.dir, into, r.opts, r.os); err == nil {
		t.Error("it salvages into a folder that is in use")
	}
	if rep, err := VerifyFolder(into, r.opts.Keys); err != nil || rep.Readable != 330-lost || rep.Readable != rep.Records || rep.Unaccounted != lost || len(rep.Damaged) != 0 {
		t.Errorf("what was salvaged: %+v, %v", rep, err)
	}
	fresh := &rig{t: t, os: r.os, dir: fastDir(t), opts: r.opts}
	if err := os.Rename(into, fresh.path("")); err != nil {
		t.Fatal(err)
	}
	if err := copyFolder(filepath.Join(fresh.dir, "keys"), filepath.Join(r.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	fresh.open()
	if st := fresh.law(); st.Committed != 50 || st.Pending != 280-lost || st.Unaccounted != lost {
		t.Errorf("in its place: %+v", st)
	}
	fresh.drain()
	if err := fresh.spool.Close(true); err != nil {
		t.Fatal(err)
	}

	// A file that was set aside is a spool of its own.
	r.open()
	hs := r.tend()
	if len(hs) != 1 || hs[0].Aside == "" || !strings.HasPrefix(hs[0].Aside, asideName+"/"+middle+".") {
		t.Fatalf("%+v", hs)
	}
	into = filepath.Join(fastDir(t), "one")
	if got, err := Salvage(t.Context(), r.path(hs[0].Aside), into, r.opts, r.os); err != nil || got.Readable != 100-lost {
		t.Errorf("of the file aside: %+v, %v", got, err)
	}
	if _, err := VerifyFolder(filepath.Join(r.dir, "keys"), r.opts.Keys); err == nil {
		t.Error("a folder that is no spool passes for one")
	}
}

func copyFolder(to, from string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	for _, e := range entries {
		if err == nil {
			err = copyFile(filepath.Join(to, e.Name()), filepath.Join(from, e.Name()))
		}
	}
	return err
}

// Salvaging a file that has nothing loses nothing, and changes nothing that anybody sees.
func TestSalvageOfAHealthyFile(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	r.fill(150, "A")
	b := r.spool.NewBatch()
	b.Note(Line{Event: NewEvent(1), At: 1, Outcome: "rejected", Reason: "note"})
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	r.reopen(true)
	want, before := r.records(), r.law()
	for _, seg := range r.spool.segments[:2] {
		if !r.spool.ails(seg, &DamageError{seg.name, "for the test"}) {
			t.Fatal("it is not taken for damaged")
		}
	}
	if st := r.law(); st.Pending != before.Pending {
		t.Fatalf("while they wait for the healing: %+v", st)
	}
	hs := r.tend()
	if len(hs) != 2 || hs[0].Records+hs[1].Records != 150 || hs[0].Unaccounted+hs[1].Unaccounted != 0 {
		t.Fatalf("%+v", hs)
	}
	if got := r.records(); !reflect.DeepEqual(got, want) {
		t.Error("the records are not what they were")
	}
	w, err := r.spool.Next(150)
	if err != nil || len(w.Notes) != 1 || w.Notes[0].Reason != reasonSalvaged {
		t.Fatalf("%+v, %v", w.Notes, err)
	}
	r.drain()
	after := r.law()
	if after.Captured != before.Captured || after.Committed != 150 || after.Unaccounted != 0 {
		t.Errorf("%+v", after)
	}
}

// Numbers may be skipped where the counts of state.db know more than the segments hold, as with a backup that is
// restored: nothing is missing there.
func TestSkippedNumbers(t *testing.T) {
	r := newRig(t)
	r.fill(30, "A")
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	r.fill(20, "B")
	r.drain()
	name := r.spool.active.name
	r.kill()
	// The second segment is in no file and in no list, as if it had come after a copy.
	side, _, err := readSidecar(r.path(""))
	if err != nil {
		t.Fatal(err)
	}
	side.Segments = side.Segments[:len(side.Segments)-1]
	if err := errors.Join(side.write(r.path("")), os.Remove(r.path(name)), os.Remove(r.path(markName))); err != nil {
		t.Fatal(err)
	}
	r.open()
	if d := r.later(time.Minute, "C"); d.Record.Seq != 51 {
		t.Fatalf("the next record has number %d", d.Record.Seq)
	}
	for _, clean := range []bool{false, true} {
		if st := r.law(); st.Committed != 50 || st.Pending != 1 || st.Unaccounted != 0 {
			t.Fatalf("%+v", st)
		}
		if hs := r.tend(); len(hs) != 0 {
			t.Fatalf("healed: %+v", hs)
		}
		r.reopen(clean)
	}
}

// After an unclean stop an older segment is read completely before anything of it is used, by whoever comes first.
func TestOlderSegmentsAreReadBeforeTheyAreUsed(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	r.fill(250, "A")
	r.kill()
	r.os.pass(time.Hour) // nothing of them is for the local rule
	runs := 0
	r.opts.Probe = func(ctx context.Context) *exec.Cmd {
		runs++
		return probeChild(ctx)
	}
	r.open()
	if runs != 2 { // state.db and the last segment
		t.Errorf("%d files are read before the first scan", runs)
	}
	if w, err := r.spool.Next(10); err != nil || len(w.Records) != 10 || runs != 3 {
		t.Errorf("%d records, %v; %d files are read", len(w.Records), err, runs)
	}
	if rec, err := r.spool.Load(150); err != nil || rec.Seq != 150 || runs != 4 {
		t.Errorf("%v; %d files are read", err, runs)
	}
	if hs := r.tend(); len(hs) != 0 || runs != 4 {
		t.Errorf("%+v; %d files are read", hs, runs)
	}
}

// After a clean stop nobody reads ahead: a leaf page that hides its last record is met by whoever reads there.
func TestReadersNoticeGaps(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 100 })
	r.fill(250, "A")
	path := r.spool.segments[0].path
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	hidden := false
	f, err := openRaw(path, filepath.Base(path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	buckets, err := f.root()
	if err != nil {
		t.Fatal(err)
	}
	w := walk{r: f, leaf: func(uint32, []byte, []byte) error { return nil }, page: func(id, _ uint64) error {
		if p := b[id*uint64(f.page):]; flagsOf(p) == leafFlag && !hidden {
			p[10]-- // its count
			hidden = true
		}
		return nil
	}}
	if err := w.run(buckets[string(bucketRecords)]); err != nil || !hidden {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r.os.pass(time.Hour)
	r.open()
	r.drain()
	if hs := r.tend(); len(hs) != 1 || hs[0].Records != 100 || hs[0].Unaccounted != 0 {
		t.Fatalf("%+v", hs)
	}
	r.drain()
	if st := r.law(); st.Committed != 250 || st.Unaccounted != 0 {
		t.Errorf("%+v", st)
	}
}

// A freelist that gives away a page in use would have the next write destroy it.
func TestFreelistIsChecked(t *testing.T) {
	r := newRig(t)
	r.fill(40, "A")
	r.drain()
	r.kill()
	b, err := os.ReadFile(r.path(stateName))
	if err != nil {
		t.Fatal(err)
	}
	f, err := openRaw(r.path(stateName), stateName)
	if err != nil {
		t.Fatal(err)
	}
	list := b[f.meta.freelist*uint64(f.page):]
	n := countOf(list)
	list[10]++ // one more: the root of everything
	list[pageHead+8*n] = byte(f.meta.root)
	f.close()
	if err := os.WriteFile(r.path(stateName), b, 0o600); err != nil {
		t.Fatal(err)
	}
	var damaged *DamageError
	if _, err := inspect(r.path(""), stateName, r.opts.Keys, nil); !errors.As(err, &damaged) {
		t.Fatalf("a page in use is free: %v", err)
	}
	r.open()
	if hs := r.spool.takeHealings(); len(hs) != 1 || hs[0].File != stateName {
		t.Errorf("%+v", hs)
	}
	r.law()
}

// A backup that is taken while operations are added and settled holds each call whole or not at all, and none that
// began behind it. It takes the spool's place in an empty folder; verify tells of a damaged journal in it, and salvage
// saves the other lines.
func TestBackupOfTheJournal(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	j.spare = 4000 // it is written anew meanwhile
	if backup := r.backup(t); backup.has(journalName) {
		t.Error("a journal that never was is in the backup")
	}
	const subjects = 3
	var told, begun [subjects]atomic.Int64 // numbers of a subject: added for sure, and perhaps
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for subject := range subjects {
		busy.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				begun[subject].Store(int64(2 * n))
				if err := j.Add(numbered(0, subject, 2*n-1, fmt.Sprint(subject)), numbered(0, subject, 2*n, fmt.Sprint(subject))); err != nil {
					t.Error(err)
					return
				}
				told[subject].Store(int64(2 * n))
				for range min(2, n/10) {
					ops := j.Heads(1, func(op *Operation) bool { return op.Subject == fmt.Sprint(subject) })
					if err := j.Settle(Settlement{Done: []idem.EventID{ops[0].ID}}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	var last *restored
	for range 20 {
		var least, most [subjects]int64
		for i := range least {
			least[i] = told[i].Load()
		}
		last = r.backup(t)
		for i := range most {
			most[i] = begun[i].Load()
		}
		rep, err := VerifyFolder(last.dir, r.opts.Keys)
		if err != nil || len(rep.Damaged) > 0 {
			t.Fatalf("verify: %+v, %v", rep, err)
		}
		last.open()
		if hs := last.spool.takeHealings(); len(hs) != 1 || !hs[0].Older {
			t.Fatalf("healed: %+v", hs)
		}
		var first, behind [subjects]int64
		for _, op := range last.spool.journal.all().Add {
			at, n := int(op.ID[2]), int64(op.ID[4])<<24|int64(op.ID[5])<<16|int64(op.ID[6])<<8|int64(op.ID[7])
			if behind[at] != 0 && n != behind[at]+1 {
				t.Fatalf("%d comes behind %d", n, behind[at])
			}
			if behind[at] = n; first[at] == 0 {
				first[at] = n
			}
		}
		for i, n := range behind {
			if n < least[i] || n > most[i] || n%2 != 0 || n > 40 && first[i] == 1 {
				t.Fatalf("it ends with operation %d; %d had been told, and %d begun", n, least[i], most[i])
			}
		}
		if err := last.spool.Close(true); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	busy.Wait()

	// verify and salvage, of the backup that was opened last.
	last.open()
	if err := last.spool.journal.Add(numbered(1, 0, 1, "x")); err != nil {
		t.Fatal(err)
	}
	if err := last.spool.journal.Add(numbered(1, 0, 2, "x")); err != nil {
		t.Fatal(err)
	}
	held, err := modelOf(last.spool.journal)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(b, []byte("\n"))
		lines[len(lines)-3][20] ^= 1 // the last but one; behind the last there is nothing
		b = bytes.Join(lines, nil)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	damaged := func(what string, rep Report, err error) {
		t.Helper()
		if err != nil || len(rep.Damaged) != 1 || rep.Damaged[0].File != journalName {
			t.Errorf("%s: %+v, %v", what, rep, err)
		}
	}
	if rep, err := last.spool.Verify(t.Context()); err != nil || len(rep.Damaged) > 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
	spoiled := spoil(last.path(journalName))
	rep, err := last.spool.Verify(t.Context())
	damaged("while it runs", rep, err)
	// Nothing is lost as long as it runs: it is in memory, and a backup holds it.
	if m, err := modelOf(last.spool.journal); err != nil || len(m) != len(held) {
		t.Fatalf("%d operations, %v", len(m), err)
	}
	again := last.backup(t)
	again.open()
	if m, err := modelOf(again.spool.journal); err != nil || !maps.Equal(m, held) || len(again.spool.takeHealings()) != 1 {
		t.Errorf("a backup behind the damage holds %d operations, not %d; %v", len(m), len(held), err)
	}
	again.spool.Close(true)
	last.kill()
	before := last.snapshot()
	rep, err = VerifyFolder(last.dir, r.opts.Keys)
	damaged("at rest", rep, err)
	into := &rig{t: t, os: r.os, dir: fastDir(t), opts: r.opts}
	rep, err = Salvage(t.Context(), last.dir, into.path(""), r.opts, r.os)
	damaged("salvaged", rep, err)
	last.sameFiles(before)
	delete(held, operationNumber(numbered(1, 0, 1, "x").ID))
	if err := copyFolder(filepath.Join(into.dir, "keys"), filepath.Join(r.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	if rep, err := VerifyFolder(into.dir, r.opts.Keys); err != nil || len(rep.Damaged) > 0 {
		t.Errorf("what was salvaged: %+v, %v", rep, err)
	}
	kept, err := filepath.Glob(into.path(asideName + "/" + journalName + ".*"))
	if b, rerr := os.ReadFile(kept[0]); err != nil || rerr != nil || string(b) != spoiled {
		t.Errorf("the damaged journal is not kept: %v, %v, %v", kept, err, rerr)
	}
	into.open()
	defer func() { into.spool.Close(true) }()
	if m, err := modelOf(into.spool.journal); err != nil || !maps.Equal(m, held) || len(into.spool.takeHealings()) > 0 {
		t.Errorf("what was salvaged holds %d operations, not %d; %v", len(m), len(held), err)
	}
}

// restored is a backup in an empty folder, with the keys.
type restored struct{ rig }

func (r *restored) has(name string) bool {
	_, err := os.Stat(r.path(name))
	return err == nil
}

func (r *rig) backup(t *testing.T) *restored {
	t.Helper()
	var b bytes.Buffer
	if err := r.spool.Backup(&b); err != nil {
		t.Fatal(err)
	}
	to := &restored{rig{t: t, os: r.os, dir: fastDir(t), opts: r.opts}}
	if err := errors.Join(os.Mkdir(to.path(""), 0o700), copyFolder(filepath.Join(to.dir, "keys"), filepath.Join(r.dir, "keys"))); err != nil {
		t.Fatal(err)
	}
	in := tar.NewReader(&b)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return to
		}
		if err == nil && h.Typeflag != tar.TypeDir {
			var content []byte
			if content, err = io.ReadAll(in); err == nil {
				err = os.WriteFile(filepath.Join(to.dir, h.Name), content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A series of crashes leaves a segment each. The start behind it reads them with few children, and heals one that is
// damaged in their midst, so that what lies in front of it is in doubt all the same.
func TestManySegmentsAreReadByFewChildren(t *testing.T) {
	const kills, bad = 14, 7
	r := newRig(t)
	at := func(i int) Candidate {
		c := r.candidate("A")
		c.Identity.Scanner = fmt.Sprint("S", i)
		c.Physical = idem.PhysicalKey(c.Identity.Scanner, []byte("A"))
		return c
	}
	var told []Decision
	for i := range kills {
		told = append(told, r.scan(at(i)))
		r.reopen(false)
	}
	seg := r.spool.segments[bad]
	raw, err := openRaw(seg.path, seg.name)
	if err != nil {
		t.Fatal(err)
	}
	records, _, _ := raw.search(seg.seal)
	raw.close()
	r.kill()
	content, err := os.ReadFile(seg.path)
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	content[records[0].off+int64(records[0].size)/2] ^= 1
	if err := os.WriteFile(seg.path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	children := 0
	r.opts.Probe = func(ctx context.Context) *exec.Cmd {
		children++
		return probeChild(ctx)
	}
	r.open()
	if children > kills*2/3 {
		t.Errorf("%d children for %d segments", children, kills)
	}
	r.os.pass(30 * time.Second)
	for i := range kills {
		if d := r.scan(at(i)); i == bad {
			r.wantNew(d, "of what is lost")
		} else {
			r.wantDuplicate(d, told[i], ReasonInDoubt, fmt.Sprint("scanner ", i))
		}
	}
	if st := r.law(); st.Unaccounted != 1 {
		t.Errorf("%+v", st)
	}
}
