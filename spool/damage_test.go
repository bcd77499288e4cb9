package spool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// TestProbeChild is the child process of the tests: the test binary, run for this one.
func TestProbeChild(t *testing.T) {
	if os.Getenv("SPOOL_PROBE") == "" {
		var out bytes.Buffer
		if err := Probe(strings.NewReader("{"), &out); err == nil || out.Len() > 0 {
			t.Fatalf("an order that is cut off is carried out: %v, %s", err, &out)
		}
		return
	}
	if Probe(os.Stdin, os.Stdout) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func probeChild(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProbeChild$")
	cmd.Env = append(os.Environ(), "SPOOL_PROBE=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

// estate is a spool as a run leaves it, with what is in it.
type estate struct {
	rig     *rig
	clean   bool
	records map[idem.EventID]Record // all that are in the chain
	open    map[idem.EventID]bool   // not final
	stats   Stats
	files   map[string]string
	seg     []string // names of the segments, oldest first
	journal *writtenJournal
}

// newEstate makes a spool with everything in it: four segments with pages of all kinds, duplicates, notes,
// records of many sizes, exceptions, lines on their way, and scans that were settled ahead of a backlog.
func newEstate(t *testing.T, clean bool) *estate {
	t.Helper()
	r := rigIn(t, fastDir(t), func(o *Options) { o.SegmentRecords = 200 })
	rnd := rand.New(rand.NewPCG(7, 7))
	n := 0
	burst := func(count int) {
		for count > 0 {
			b := r.spool.NewBatch()
			for range min(count, 1+rnd.IntN(20)) {
				n++
				count--
				c := r.candidate(fmt.Sprint("item ", n))
				if n%17 == 0 {
					c.Item.Serial = strings.Repeat("S", rnd.IntN(3500)) // pages with overflow
				}
				r.decide(b, c)
				if n%9 == 0 {
					r.os.pass(50 * time.Millisecond)
					c.At = r.clock.Now()
					r.decide(b, c)
				}
				if n%13 == 0 {
					b.Note(Line{Event: NewEvent(c.At.T), At: c.At.T, Outcome: "rejected", Reason: fmt.Sprint("note ", n)})
				}
				r.os.pass(10 * time.Millisecond)
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	settle := func(next func(int) (Work, error), count int) {
		for count > 0 {
			w, err := next(min(count, 130))
			if err != nil {
				t.Fatal(err)
			}
			if w.Empty() {
				return
			}
			count -= len(w.Records) + len(w.Notes)
			vs := verdictsOf(w.Records)
			var lines []Line
			for i := range vs {
				switch {
				case rnd.IntN(25) == 0:
					vs[i] = Verdict{Seq: vs[i].Seq, State: Deferred}
				case rnd.IntN(40) == 0:
					vs[i] = Verdict{Seq: vs[i].Seq, State: Quarantined, Detail: "no"}
				case vs[i].State == Suppressed:
					lines = append(lines, Line{Event: w.Records[i].Event, Outcome: "suppressed"})
				}
			}
			if err := r.spool.Settle(w, vs, lines, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	journal := writeJournal(t, r.spool.journal)
	burst(260)
	settle(r.spool.Next, 230)
	burst(150)
	r.spool.GoLive()
	burst(150)
	settle(r.spool.NextLive, 100)
	settle(r.spool.Next, 60)
	burst(150)
	e := &estate{rig: r, clean: clean, records: map[idem.EventID]Record{}, open: map[idem.EventID]bool{}, files: map[string]string{}, journal: journal}
	for _, rec := range r.records() {
		e.records[rec.Event] = rec
	}
	if err := r.spool.Unsettled(func(rec *Record, _ Exception) bool { e.open[rec.Event] = true; return true }); err != nil {
		t.Fatal(err)
	}
	e.stats = r.law()
	for _, seg := range r.spool.segments {
		e.seg = append(e.seg, seg.name)
	}
	if clean {
		if err := r.spool.Close(true); err != nil {
			t.Fatal(err)
		}
	} else {
		r.kill()
	}
	for path, content := range r.snapshot() {
		if name, err := filepath.Rel(r.path(""), path); err == nil && filepath.Dir(name) == "." && name != reserveName {
			e.files[name] = content
		}
	}
	if len(e.seg) < 4 || len(e.open) == len(e.records) || len(r.spool.state.exceptions) < 10 || r.spool.state.counters.AheadTo == 0 {
		t.Fatalf("the estate is poor: %d segments, %d of %d records open, %d exceptions", len(e.seg), len(e.open), len(e.records), len(r.spool.state.exceptions))
	}
	return e
}

// damaged is a case: what is done to which file.
type damaged struct {
	file, what string
	content    []byte // nil: the file is gone
}

// damages makes the cases for one bbolt file: at every page, whatever it is for, and at every length.
func damages(e *estate, file string, rnd *rand.Rand) (out []damaged) {
	whole := []byte(e.files[file])
	const page = 4096
	role := func(id int) string {
		p := whole[id*page:]
		if id < 2 {
			return fmt.Sprint("meta", id)
		}
		switch k := flagsOf(p); {
		case binary.NativeEndian.Uint64(p) != uint64(id) || k != leafFlag && k != branchFlag && k != freelistFlag:
			return "overflow or free"
		case k == leafFlag:
			return "leaf"
		case k == branchFlag:
			return "branch"
		}
		return "freelist"
	}
	add := func(what string, content []byte) { out = append(out, damaged{file, what, content}) }
	edit := func(id int, what string, f func(p []byte)) {
		b := slices.Clone(whole)
		f(b[id*page : (id+1)*page])
		add(fmt.Sprintf("page %d (%s): %s", id, role(id), what), b)
	}
	pages := len(whole) / page
	used := pages
	for used > 0 && bytes.Count(whole[(used-1)*page:used*page], []byte{0}) == page {
		used--
	}
	for id := range used {
		edit(id, "zeroed", func(p []byte) { clear(p) })
		edit(id, "garbage", func(p []byte) {
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
		})
		other := rnd.IntN(used)
		edit(id, fmt.Sprint("swapped with ", other), func(p []byte) { copy(p, whole[other*page:(other+1)*page]) })
		b := slices.Clone(whole)
		copy(b[id*page:], whole[other*page:(other+1)*page])
		copy(b[other*page:], whole[id*page:(id+1)*page])
		add(fmt.Sprintf("pages %d and %d exchanged", id, other), b)
		edit(id, "a bit of the header", func(p []byte) { p[rnd.IntN(16)] ^= 1 << rnd.IntN(8) })
		edit(id, "a bit of an element", func(p []byte) { p[16+rnd.IntN(64)] ^= 1 << rnd.IntN(8) })
		edit(id, "a bit", func(p []byte) { p[rnd.IntN(page)] ^= 1 << rnd.IntN(8) })
		edit(id, "its second half zeroed", func(p []byte) { clear(p[page/2:]) })
		add(fmt.Sprintf("cut off at page %d", id), whole[:id*page])
		add(fmt.Sprintf("cut off within page %d", id), whole[:id*page+rnd.IntN(page)])
	}
	// A meta page that says all is well with a tree that runs in a circle.
	for id := range used {
		if role(id) == "branch" {
			edit(id, "its first child is itself", func(p []byte) { binary.NativeEndian.PutUint64(p[16+8:], uint64(id)) })
		}
	}
	add("empty", []byte{})
	add("gone", nil)
	return out
}

func sidecarDamages(e *estate, rnd *rand.Rand) (out []damaged) {
	whole := []byte(e.files[sidecarName])
	for i := range 120 {
		b := slices.Clone(whole)
		at := rnd.IntN(len(b))
		b[at] ^= 1 << rnd.IntN(8)
		if i%10 == 0 {
			b = b[:at]
		}
		out = append(out, damaged{sidecarName, fmt.Sprint("garbled at ", at), b})
	}
	return append(out, damaged{sidecarName, "empty", []byte{}}, damaged{sidecarName, "gone", nil})
}

// TestDamage opens spools with one damaged file each. None may end the process or go on for ever; every record
// is there with its values or counted as lost, none is there twice, and scanning goes on. SPOOL_DAMAGE=all tries
// every case, with a child process to read the files after an unclean stop.
func TestDamage(t *testing.T) {
	all := os.Getenv("SPOOL_DAMAGE") == "all"
	rnd := rand.New(rand.NewPCG(1, 2))
	type job struct {
		e     *estate
		d     damaged
		child bool
	}
	var jobs []job
	for _, clean := range []bool{false, true} {
		e := newEstate(t, clean)
		cases := []damaged{{stateName, "nothing", []byte(e.files[stateName])}}
		for _, file := range []string{stateName, e.seg[len(e.seg)-1], e.seg[len(e.seg)-2], e.seg[0]} {
			cases = append(cases, damages(e, file, rnd)...)
		}
		cases = append(cases, sidecarDamages(e, rnd)...)
		for _, d := range e.journal.damages(rnd) { // TestDamagedJournal has the others
			if rnd.IntN(30) == 0 {
				cases = append(cases, d)
			}
		}
		for i, d := range cases {
			if all || i == 0 || d.file == journalName || rnd.IntN(share(16)) == 0 {
				jobs = append(jobs, job{e, d, all || len(jobs)%8 == 0})
			}
		}
	}
	queue := make(chan job)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var lost, healed int64
	for range 4 {
		wg.Go(func() {
			for j := range queue {
				l, h := j.e.open1(t, j.d, j.child)
				mu.Lock()
				lost, healed = lost+l, healed+h
				mu.Unlock()
			}
		})
	}
	for _, j := range jobs {
		if t.Failed() {
			break
		}
		queue <- j
	}
	close(queue)
	wg.Wait()
	if all && len(jobs) < 1000 {
		t.Errorf("only %d cases", len(jobs))
	}
	if lost == 0 || healed == 0 {
		t.Error("nothing was damaged: this proves nothing")
	}
	t.Logf("%d damaged files: %d healed, %d records lost and counted", len(jobs), healed, lost)
}

// share is one case of how many is tried: of fewer with the race detector. make test tries more without it.
func share(of int) int {
	if testenv.Race {
		return 4 * of
	}
	return of
}

// in puts the estate into a folder of its own, with the damage, and returns it unopened.
func (e *estate) in(t *testing.T, dir string, d damaged) *rig {
	from := e.rig.os
	r := &rig{t: t, os: &fakeOS{wall: from.wall, boot: from.boot, bootID: from.bootID, synced: from.synced}, dir: dir, opts: e.rig.opts}
	r.os.pass(time.Second)
	r.opts.Boot = r.os.Boot
	key, err := os.ReadFile(filepath.Join(e.rig.dir, "keys", "spool.key"))
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "keys"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "keys", "spool.key"), key, 0o600)
	}
	if err == nil {
		err = os.Mkdir(r.path(""), 0o700)
	}
	for name, content := range e.files {
		if name == d.file {
			if d.content == nil {
				continue
			}
			content = string(d.content)
		}
		if err == nil {
			err = os.WriteFile(r.path(name), []byte(content), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// open1 opens one damaged spool, and settles and scans in it. It returns how many records are lost, and how many
// files were healed.
func (e *estate) open1(t *testing.T, d damaged, child bool) (int64, int64) {
	what := fmt.Sprintf("clean %v, %s, %s", e.clean, d.file, d.what)
	dir, err := os.MkdirTemp(filepath.Dir(e.rig.dir), "damage-")
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	defer os.RemoveAll(dir)
	var failed bool
	fatal := func(format string, a ...any) {
		failed = true
		t.Errorf(what+": "+format, a...)
	}
	r := e.in(t, dir, d)
	if child {
		r.opts.Probe = probeChild
	}

	// Under another key nothing is touched, whatever is damaged.
	before := r.snapshot()
	o := r.opts
	o.Keys = &KeyRing{current: "00000000", keys: map[string][]byte{"00000000": bytes.Repeat([]byte{7}, 32)}}
	var wrong *WrongKeyError
	if s, err := Open(r.path(""), o); err == nil {
		s.closeFiles()
		fatal("it opens with another key")
	} else if !errors.As(err, &wrong) || wrong.KeyID != e.rig.opts.Keys.Current() {
		fatal("with another key: %v", err)
	}
	if after := r.snapshot(); !reflect.DeepEqual(before, after) {
		fatal("under another key something has changed")
	}

	ring, err := LoadKeyRing(filepath.Join(dir, "keys", "spool.key"), false)
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	r.opts.Keys = ring
	begin := func() bool {
		if r.spool, err = Open(r.path(""), r.opts); err != nil {
			fatal("it does not open: %v", err)
			return false
		}
		mark, high := r.spool.Mark()
		r.clock = window.NewClock(r.os, mark, window.ClockOptions{HighWater: high})
		if err := r.spool.Begin(r.clock); err != nil {
			fatal("it does not begin: %v", err)
			return false
		}
		return true
	}
	if !begin() {
		return 0, 0
	}
	defer func() { r.spool.closeFiles() }()
	var healings []Healing
	tend := func() {
		for {
			healings = append(healings, r.spool.takeHealings()...)
			if more, err := r.spool.tendOne(t.Context(), true); err != nil {
				fatal("it cannot be healed: %v", err)
				return
			} else if !more {
				healings = append(healings, r.spool.takeHealings()...)
				return
			}
		}
	}
	law := func() Stats {
		st := r.spool.Stats()
		if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Unaccounted {
			fatal("counts are not conserved: %+v", st)
		}
		return st
	}
	law()

	// A scan is accepted before anything else is tried.
	first, err := r.try(r.candidate("first"))
	if err != nil || first.Record.IsDuplicate() {
		fatal("a new scan: %v, %v", first.Record, err)
		return 0, 0
	}
	content := []byte(e.files[journalName])
	if d.file == journalName {
		content = d.content
	}
	operations, err := e.journal.check(r.spool.journal, content, &healings)
	if err != nil {
		fatal("%v", err)
		return 0, 0
	}
	delivered := map[idem.EventID]bool{}
	var lines []Line
	settle := func(next func(int) (Work, error)) {
		for !failed {
			w, err := next(100)
			if err != nil {
				fatal("next: %v", err)
				return
			}
			if w.Empty() {
				return
			}
			for _, rec := range w.Records {
				if delivered[rec.Event] {
					fatal("record %d is delivered twice", rec.Seq)
				}
				delivered[rec.Event] = true
				if want, ok := e.records[rec.Event]; ok && !reflect.DeepEqual(*rec, want) {
					fatal("record %d has other values: %+v, want %+v", rec.Seq, *rec, want)
				} else if !ok && rec.Event != first.Record.Event {
					fatal("record %d is nobody's", rec.Seq)
				}
			}
			lines = append(lines, w.Notes...)
			if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
				fatal("settle: %v", err)
				return
			}
			law()
		}
	}
	settle(r.spool.NextLive) // what the damage lets through; what waits comes after the healing
	settle(r.spool.Next)
	tend()
	if failed {
		return 0, 0
	}
	settle(r.spool.NextLive)
	settle(r.spool.Next)
	for _, x := range r.spool.Exceptions() {
		rec, err := r.spool.Load(x.Seq)
		if err != nil {
			fatal("exception %d: %v", x.Seq, err)
			return 0, 0
		}
		if delivered[rec.Event] || !reflect.DeepEqual(*rec, e.records[rec.Event]) {
			fatal("exception %d is not what it was", x.Seq)
		}
		delivered[rec.Event] = true
		if err := r.spool.Settle(Work{}, []Verdict{{Seq: x.Seq, State: Committed}}, nil, nil); err != nil {
			fatal("exception %d: %v", x.Seq, err)
		}
	}
	st := law()
	if st.Pending != 0 || st.Unsettled != 0 {
		fatal("something stays: %+v", st)
	}

	// Each record is delivered, or was final, or is counted.
	missing, again := int64(0), int64(0)
	stateLost := slices.ContainsFunc(healings, func(h Healing) bool { return h.File == stateName })
	for event := range e.records {
		switch {
		case delivered[event] && !e.open[event]:
			again++
		case !delivered[event] && (e.open[event] || stateLost):
			missing++
		}
	}
	if again > 0 && !stateLost {
		fatal("%d records are settled twice", again)
	}
	if st.Unaccounted != missing {
		fatal("%d records are missing, and %d are counted", missing, st.Unaccounted)
	}
	if want := e.stats.Captured + 1; !stateLost && st.Captured != want {
		fatal("%d captured, want %d", st.Captured, want)
	}
	told, noticed := int64(0), int64(0)
	for _, h := range healings {
		told += h.Unaccounted
		if h.Aside != "" {
			if kept, err := os.ReadFile(r.path(h.Aside)); err != nil || h.File == d.file && string(kept) != string(d.content) {
				fatal("the damaged file is not kept as it was: %v", err)
			}
		}
	}
	for _, l := range lines {
		if l.Reason == reasonSalvaged {
			noticed += int64(l.Length)
		}
	}
	if told != missing || noticed != missing && !stateLost {
		fatal("%d records are missing, %d are told of and %d noted in the audit", missing, told, noticed)
	}
	if os.Getenv("SPOOL_DAMAGE_LOG") != "" {
		fmt.Println(what, "HEALED", len(healings), missing)
	}
	harmless := d.what == "nothing" || d.content != nil && string(d.content) == e.files[d.file]
	if harmless && len(healings) > 0 {
		fatal("a healthy file is healed: %+v", healings)
	}

	// All of that is durable, and nothing is left to heal.
	if err := r.spool.Maintain(); err != nil {
		fatal("maintain: %v", err)
	}
	if err := r.spool.Close(true); err != nil {
		fatal("close: %v", err)
	}
	if !begin() {
		return missing, int64(len(healings))
	}
	n := len(healings)
	tend()
	if len(healings) > n {
		fatal("after the healing: %+v", healings[n:])
	}
	if now, err := modelOf(r.spool.journal); err != nil || !maps.Equal(now, operations) {
		fatal("after a restart the journal holds %v, before %v; %v", now, operations, err)
	}
	if got := law(); got.Unaccounted != missing || got.Captured != st.Captured || got.Committed != st.Committed {
		fatal("after a restart %+v, before %+v", got, st)
	}
	return missing, int64(n)
}

// A file of another version is refused by name, and left alone.
func TestAnotherFormat(t *testing.T) {
	e := newEstate(t, true)
	rewrite := func(path, name string, version int) {
		edit(t, path, func(tx *bolt.Tx) error {
			h := *e.rig.spool.state.head
			if name != stateName {
				h = *e.rig.spool.segmentNamed(name).head
			}
			seal, err := newSealer(e.rig.opts.Keys, &h.Seal, h.scope(name), name)
			if err != nil {
				return err
			}
			h.Version = version
			return h.put(tx, seal)
		})
	}
	for _, name := range []string{stateName, e.seg[0], e.seg[2], sidecarName} {
		for _, version := range []int{1, 99} {
			r := e.in(t, fastDir(t), damaged{})
			if name == sidecarName {
				side, _, err := readSidecar(r.path(""))
				if err != nil {
					t.Fatal(err)
				}
				side.Version = version
				if err := side.write(r.path("")); err != nil {
					t.Fatal(err)
				}
			} else {
				rewrite(r.path(name), name, version)
			}
			before := r.snapshot()
			var schema *SchemaError
			if s, err := Open(r.path(""), r.opts); !errors.As(err, &schema) || schema.File != name || schema.Version != version {
				t.Errorf("%s of version %d: %v", name, version, err)
				if err == nil {
					s.closeFiles()
				}
			}
			r.sameFiles(before)
		}
	}
}

// writtenJournal is a journal whose every line is known, and what it was before.
type writtenJournal struct {
	lines  []string // of the file
	calls  map[string][]string
	before []string // older copies of the file
}

// writeJournal writes some forty lines, in two generations of the file.
func writeJournal(t *testing.T, j *Journal) *writtenJournal {
	t.Helper()
	w := &writtenJournal{calls: map[string][]string{}}
	held := journalModel{}
	read := func() string {
		b, err := os.ReadFile(j.path)
		if err != nil {
			t.Fatal(err)
		}
		w.lines = strings.SplitAfter(string(b), "\n")
		w.lines = w.lines[:len(w.lines)-1]
		return string(b)
	}
	did := func(err error, call ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		read()
		if first := w.lines[0]; w.calls[first] == nil {
			w.calls[first] = []string{"begin=0"}
			for id, is := range held {
				if is != "conflict" {
					w.calls[first] = append(w.calls[first], "add="+id)
				}
				w.calls[first] = append(w.calls[first], map[string]string{"waits": "", "waits+": "next=", "conflict": "conflict="}[is]+id)
			}
		}
		held.apply(call)
		w.calls[w.lines[len(w.lines)-1]] = call
	}
	n := 0
	round := func() {
		var ops []Operation
		var call []string
		for range 3 {
			n++
			ops = append(ops, numbered(0, 0, n, fmt.Sprint("s", n%5)))
			call = append(call, "add="+operationNumber(ops[len(ops)-1].ID))
		}
		did(j.Add(ops...), call...)
		if n > 10 {
			heads := j.Heads(2, any1)
			next := heads[1]
			next.Kind = "waits+"
			did(j.Settle(Settlement{Done: []idem.EventID{heads[0].ID}, Next: []*Operation{&next}}),
				"done="+operationNumber(heads[0].ID), "next="+operationNumber(next.ID))
		}
		if n%9 == 0 {
			gone := j.Heads(3, any1)[2]
			did(j.Settle(Settlement{Conflicts: []Conflict{conflictOf(gone)}}), "conflict="+operationNumber(gone.ID))
		}
		if n%27 == 0 {
			id := j.Conflicts()[0].ID
			_, err := j.Resolve([]idem.EventID{id})
			did(err, "resolved="+operationNumber(id))
		}
	}
	for range 10 {
		round()
	}
	w.before = append(w.before, read())
	j.anew = true // as when it has grown
	for i := range 15 {
		if round(); i == 6 {
			w.before = append(w.before, read())
		}
	}
	if now, err := modelOf(j); err != nil || !maps.Equal(now, held) || len(w.lines) < 30 || len(w.calls) < 50 {
		t.Fatalf("it holds %v, want %v; %v; %d lines of %d", now, held, err, len(w.lines), len(w.calls))
	}
	return w
}

func (w *writtenJournal) content() string { return strings.Join(w.lines, "") }

func numberOf(line string) (n int) {
	fmt.Sscanf(strings.Split(line, " ")[2], "%d", &n)
	return n
}

// check compares a journal with what can be read in the content that it was opened with (nil: no file), and with what
// it tells. It takes the spool's healings, and returns what the journal holds.
func (w *writtenJournal) check(j *Journal, content []byte, healings *[]Healing) (journalModel, error) {
	var left []string
	for line := range strings.Lines(string(content)) {
		if w.calls[line] != nil && !slices.Contains(left, line) {
			left = append(left, line)
		}
	}
	slices.SortFunc(left, func(a, b string) int { return numberOf(a) - numberOf(b) })
	want := journalModel{}
	for _, line := range left {
		want.apply(w.calls[line])
	}
	now, err := modelOf(j)
	if err != nil || !maps.Equal(now, want) {
		return nil, fmt.Errorf("the journal holds %v, and in the file are %v; %w", now, want, err)
	}
	told := int64(0)
	for _, h := range j.s.takeHealings() {
		*healings = append(*healings, h)
		if h.File == journalName {
			told += h.Operations
		}
	}
	newest := 0 // lines that are left of the newest generation
	for _, line := range left {
		if slices.Contains(w.lines, line) {
			newest++
		}
	}
	lost, ever := len(w.lines)-newest, numberOf(w.lines[len(w.lines)-1])
	switch {
	case lost == 0 && (told == 0 || string(content) != w.content() && told < 99):
	case lost > 0 && slices.Contains(left, w.lines[0]) && told == int64(lost): // where it begins is known
	case lost > 0 && !slices.Contains(left, w.lines[0]) && told > 0 && told <= int64(ever):
	default:
		return nil, fmt.Errorf("%d lines of %d are lost, and %d are told of", lost, len(w.lines), told)
	}
	return now, nil
}

// damages makes the cases for the journal: all that a disk does to sectors and pages, cuts, and older copies.
func (w *writtenJournal) damages(rnd *rand.Rand) (out []damaged) {
	whole := []byte(w.content())
	add := func(what string, content []byte) { out = append(out, damaged{journalName, what, content}) }
	for range 100 {
		b := slices.Clone(whole)
		at, bit := rnd.IntN(len(b)), rnd.IntN(8)
		b[at] ^= 1 << bit
		add(fmt.Sprintf("bit %d at %d", bit, at), b)
	}
	for _, size := range []int{512, 4096} {
		count := (len(whole) + size - 1) / size
		piece := func(b []byte, i int) []byte { return b[i*size : min(len(b), (i+1)*size)] }
		for i := range count {
			edit := func(what string, f func(p []byte)) {
				b := slices.Clone(whole)
				f(piece(b, i))
				add(fmt.Sprintf("%d bytes at %d: %s", size, i*size, what), b)
			}
			other := rnd.IntN(count)
			edit("zeroed", func(p []byte) { clear(p) })
			edit("garbage", func(p []byte) {
				for i := range p {
					p[i] = byte(rnd.Uint32())
				}
			})
			edit("ends of line", func(p []byte) { copy(p, bytes.Repeat([]byte{'\n'}, size)) })
			edit(fmt.Sprint("as at ", other*size), func(p []byte) { copy(p, piece(whole, other)) })
			b := slices.Clone(whole)
			copy(piece(b, i), piece(whole, other))
			copy(piece(b, other), piece(whole, i))
			add(fmt.Sprintf("%d bytes at %d and %d exchanged", size, i*size, other*size), b)
			add(fmt.Sprintf("%d bytes at %d cut out", size, i*size), slices.Concat(whole[:i*size], whole[min(len(whole), (i+1)*size):]))
			add(fmt.Sprintf("%d bytes at %d twice", size, i*size), slices.Concat(whole[:i*size], piece(whole, i), whole[i*size:]))
			add(fmt.Sprintf("%d bytes at %d as in an older copy", size, i*size),
				append(slices.Clone(whole[:i*size]), append([]byte(w.before[i%2])[min(i*size, len(w.before[i%2])):min((i+1)*size, len(w.before[i%2]))], whole[min((i+1)*size, len(whole)):]...)...))
		}
	}
	for i := range w.lines {
		cut := strings.Join(w.lines[:i], "")
		add(fmt.Sprintf("cut off behind line %d", i), []byte(cut))
		add(fmt.Sprintf("cut off within line %d", i+1), []byte(cut+w.lines[i][:rnd.IntN(len(w.lines[i]))]))
		add(fmt.Sprintf("without line %d", i+1), []byte(cut+strings.Join(w.lines[i+1:], "")))
		other := rnd.IntN(len(w.lines))
		b := slices.Clone(w.lines)
		b[i], b[other] = b[other], b[i]
		add(fmt.Sprintf("lines %d and %d exchanged", i+1, other+1), []byte(strings.Join(b, "")))
		b = slices.Clone(w.lines)
		b[i] = b[other]
		add(fmt.Sprintf("line %d in place of line %d", other+1, i+1), []byte(strings.Join(b, "")))
	}
	for range 40 {
		at := rnd.IntN(len(whole))
		add(fmt.Sprint("cut off at ", at), whole[:at])
	}
	for i, older := range w.before {
		add(fmt.Sprint("older copy ", i), []byte(older))
		add(fmt.Sprint("behind an older copy ", i), append([]byte(older), whole...))
	}
	add("garbage behind it", append(slices.Clone(whole), "garbage"...))
	add("empty", []byte{})
	add("gone", nil)
	return out
}

// TestDamagedJournal opens spools with a damaged journal. Each line that can be read counts, in the order in which the
// lines were written, and nothing else does; the others are told of, once; and operations are taken in again. verify
// says the same, without changing anything, and so does a spool that is opened for reading. SPOOL_DAMAGE=all tries
// every case.
func TestDamagedJournal(t *testing.T) {
	r := newRig(t)
	w := writeJournal(t, r.spool.journal)
	rnd := rand.New(rand.NewPCG(3, 4))
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	all := os.Getenv("SPOOL_DAMAGE") == "all"
	cases := w.damages(rnd)
	if !all {
		cases = slices.DeleteFunc(cases, func(d damaged) bool { return d.content != nil && rnd.IntN(share(4)) > 0 })
	}
	cases = append(cases, damaged{journalName, "nothing", []byte(w.content())})
	healed, lost := 0, int64(0)
	for i, d := range cases {
		dir := fastDir(t)
		fatal := func(format string, a ...any) {
			t.Helper()
			t.Fatalf(d.what+": "+format, a...)
		}
		if err := copyFolder(filepath.Join(dir, "spool"), r.spool.dir); err != nil {
			t.Fatal(err)
		}
		c := &rig{t: t, os: r.os, dir: dir, opts: r.opts}
		err := os.WriteFile(c.path(journalName), d.content, 0o600)
		if d.content == nil {
			err = os.Remove(c.path(journalName))
		}
		if err := errors.Join(err, copyFolder(filepath.Join(dir, "keys"), filepath.Join(r.dir, "keys"))); err != nil {
			t.Fatal(err)
		}
		before := c.snapshot()
		o := c.opts
		o.ReadOnly = true
		var damage *DamageError
		s, looked := Open(c.path(""), o)
		if looked == nil {
			s.closeFiles()
		} else if !errors.As(looked, &damage) || damage.File != journalName {
			fatal("opened for reading: %v", looked)
		}
		report, err := VerifyFolder(c.dir, o.Keys)
		if err != nil || d.content != nil && len(report.Damaged) > 0 != (looked != nil) {
			fatal("verify says %+v, %v; a spool opened for reading %v", report, err, looked)
		}
		c.sameFiles(before)

		c.open()
		var hs []Healing
		held, err := w.check(c.spool.journal, d.content, &hs)
		if err != nil {
			fatal("%v", err)
		}
		if len(hs) > 0 != (looked != nil) {
			fatal("healings %+v, and opened for reading: %v", hs, looked)
		}
		for _, h := range hs {
			if kept, err := os.ReadFile(c.path(h.Aside)); d.content != nil && (err != nil || string(kept) != string(d.content)) {
				fatal("the damaged file is not kept as it was: %v", err)
			}
			healed, lost = healed+1, lost+h.Operations
		}
		// What was told once is not told again, though nothing was added; and everything goes on.
		for again := range 2 {
			c.reopen((i+again)%2 == 0)
			if hs := c.spool.takeHealings(); len(hs) > 0 {
				fatal("healed again: %+v", hs)
			}
			if now, err := modelOf(c.spool.journal); err != nil || !maps.Equal(now, held) {
				fatal("after a restart it holds %v, before %v; %v", now, held, err)
			}
			op := numbered(1, 0, again, "s1")
			if err := c.spool.journal.Add(op); err != nil {
				fatal("%v", err)
			}
			held.apply([]string{"add=" + operationNumber(op.ID)})
		}
		if report, err := VerifyFolder(c.dir, o.Keys); err != nil || len(report.Damaged) > 0 {
			fatal("verify afterwards: %+v, %v", report, err)
		}
		if err := c.spool.Close(true); err != nil {
			t.Fatal(err)
		}
		os.RemoveAll(dir)
	}
	if len(cases) < 400/share(4) || all && len(cases) < 500 || healed < len(cases)*3/4 {
		t.Errorf("%d cases, %d healed", len(cases), healed)
	}
	t.Logf("%d damaged journals: %d healed, %d lines lost", len(cases), healed, lost)
}
