package spool

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// TestCrashPoints records every write, sync, rename, truncation and unlink that the spool does in two runs, with
// strace(1), and recovers from the disk as a power cut leaves it at each of them: what was not synced is there, is
// not there, or is there in part, sector by sector; a folder's entries are there up to some point. Whatever was
// acknowledged must be there with its values, settled once and for all if that was told, and nothing unaccounted. The
// last run finds a damaged record and salvages the others: it alone is unaccounted, at each of the points. So it is with
// the journal of operations: it holds what it held behind the last call that returned, in order, or behind the one
// under way; in the last run without the operation of a damaged line.
func TestCrashPoints(t *testing.T) {
	if dir := os.Getenv("SPOOL_CRASH_DIR"); dir != "" {
		crashWorkload(t, dir)
		return
	}
	dir := fastDir(t)
	if _, err := LoadKeyRing(filepath.Join(dir, "keys", "spool.key"), true); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "spool"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := newDisk(dir)
	images, points := 0, 0
	var work sync.WaitGroup
	next := make(chan image) // one at a time: together they are gigabytes
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for im := range next {
				if t.Failed() {
					continue
				}
				if err := im.recover(t, dir); err != nil {
					t.Errorf("%s: %v", im.name, err)
				}
			}
		})
	}
	stop := sync.OnceFunc(func() {
		close(next)
		work.Wait()
	})
	defer stop()
	lost, line := map[uint64]bool{}, ""
	for run := range 4 {
		if run == 3 {
			lost[d.spoil(t)] = true
			line = d.spoilLine(t)
		}
		for _, op := range record(t, dir, run) {
			if !d.apply(op) {
				continue
			}
			points++
			if testenv.Race && points%6 != 0 { // make test has all of them without the race detector
				continue
			}
			for _, how := range []string{"nothing", "everything", "some", "some"} {
				images++
				im := d.cut(how, uint64(images), op, maps.Clone(lost))
				im.line = line
				next <- im
			}
		}
		d.compare(t)
	}
	stop()
	if points < 250 {
		t.Fatalf("only %d points: is the spool's I/O recorded at all?", points)
	}
	if d.begun < 6 { // made, healed, and compacted in each run
		t.Fatalf("the journal was written anew only %d times", d.begun)
	}
	t.Logf("%d images of %d points", images, points)
}

// Options of the workload: segments come and go within it.
func crashRig(t tb, dir string, run int) *rig {
	r := &rig{t: t, os: newFakeOS(), dir: dir}
	r.opts = Options{Agent: "agent-1", MaxRecords: 1_000_000, MaxBytes: 1 << 30, SegmentRecords: 4, Horizon: 5 * time.Second, LocalSpan: 3500 * time.Millisecond}
	r.os.pass(time.Duration(run) * time.Hour)
	r.open()
	for worked := true; worked; { // what the agent does beside taking in
		var err error
		if worked, err = r.spool.tendOne(context.Background(), true); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// crashWorkload takes in, settles, seals and unlinks, and says in a file beside the spool what it is about to do
// and what it has been told is done: the words of "said".
func crashWorkload(t *testing.T, dir string) {
	run, err := strconv.Atoi(os.Getenv("SPOOL_CRASH_RUN"))
	if err != nil {
		t.Fatal(err)
	}
	words, err := os.OpenFile(filepath.Join(dir, "words"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	say := func(text string) {
		if _, err := words.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	r := crashRig(t, dir, run)
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	ops := newCrashOperations(t, r, dir, run, say)
	for i := range 12 {
		ops.step(i)
		b := r.spool.NewBatch()
		var intent, done strings.Builder
		item := fmt.Sprintf("%d-%d", run, i)
		for _, lot := range []string{item, item + "b", item}[:1+i%3] { // the third is a bounce
			c := r.candidate(lot)
			d, err := b.Decide(&c)
			check(err)
			fmt.Fprintf(&intent, "take %d %s %s %s\n", d.Record.Seq, d.Record.Event, d.Record.Keys.Idem, d.Record.Lot)
			fmt.Fprintf(&done, "taken %d\n", d.Record.Seq)
			r.os.pass(50 * time.Millisecond)
		}
		if i%4 == 1 {
			l := Line{Event: NewEvent(r.clock.Now().T), At: r.clock.Now().T, Outcome: "rejected"}
			b.Note(l)
			fmt.Fprintf(&done, "noted %s\n", l.Event)
		}
		say(intent.String())
		check(b.Commit())
		say(done.String())
		r.os.pass(2 * time.Second)
		if i%3 == 2 {
			w, err := r.spool.Next(7)
			check(err)
			var verdicts []Verdict
			var lines []Line
			done.Reset()
			var records []*Record
			for _, x := range r.spool.Exceptions() {
				rec, err := r.spool.Load(x.Seq)
				check(err)
				verdicts = append(verdicts, Verdict{Seq: x.Seq, State: Committed})
				records = append(records, rec)
			}
			for n, rec := range w.Records {
				v := Verdict{Seq: rec.Seq, State: Committed}
				switch {
				case rec.IsDuplicate():
					v = Verdict{Seq: rec.Seq, State: Suppressed, Key: rec.Keys.Idem, Winner: rec.Of, Reason: rec.Reason}
				case n == 2:
					v.State = Deferred
				}
				verdicts = append(verdicts, v)
				records = append(records, rec)
			}
			for n, v := range verdicts {
				if v.State.final() {
					fmt.Fprintf(&done, "settled %d\n", v.Seq)
				}
				if v.State == Suppressed {
					l := Line{Event: records[n].Event, At: r.clock.Now().T, Outcome: "suppressed", Key: v.Key, Winner: v.Winner}
					lines = append(lines, l)
					fmt.Fprintf(&done, "line %s\n", l.Event)
				}
			}
			for _, l := range w.Notes {
				fmt.Fprintf(&done, "line %s\n", l.Event)
			}
			head := r.spool.ChainHead()
			c := &ChainRecord{Epoch: head.Epoch, Seq: head.Seq + 1, Prev: head.Hash, Hash: sha256.Sum256([]byte(done.String()))}
			fmt.Fprintf(&done, "chain %s\n", hex.EncodeToString(c.Hash[:]))
			check(r.spool.Settle(w, verdicts, lines, c))
			say(done.String())
		}
		r.spool.Prune()
		check(r.spool.Maintain())
	}
	ops.end()
	switch run {
	case 0, 3: // ends as by a kill
	case 1:
		check(r.spool.Close(true))
	case 2:
		check(r.spool.Close(false))
	}
	say("end\n")
}

// crashOperations queues and settles operations, and says what the journal must hold: "operations?" before a call, as
// it will be behind it, and "operations!" behind it.
type crashOperations struct {
	t         *testing.T
	j         *Journal
	run       byte
	n         byte
	say       func(string)
	pending   []Operation
	conflicts []Conflict
}

func newCrashOperations(t *testing.T, r *rig, dir string, run int, say func(string)) *crashOperations {
	words, err := os.ReadFile(filepath.Join(dir, "words"))
	if err != nil {
		t.Fatal(err)
	}
	c := &crashOperations{t: t, j: r.spool.Journal(), run: byte(run + 1), say: say, conflicts: r.spool.Journal().Conflicts()}
	c.j.spare = 3000 // so that it is written anew
	for _, op := range c.j.all().Add {
		c.pending = append(c.pending, *op)
	}
	if _, now := heldOperations(strings.Split(string(words), "\n"), ""); run != 3 && c.holds() != now {
		t.Fatalf("run %d begins with operations %s, and %s were there", run, c.holds(), now)
	}
	return c
}

// holds tells of all that the journal should hold.
func (c *crashOperations) holds() string { return describe(c.pending, c.conflicts) }

func describe(pending []Operation, conflicts []Conflict) string {
	var b strings.Builder
	one := func(op *Operation) {
		fmt.Fprintf(&b, "%x/%s/%s/%x/%d", op.ID[:2], op.Kind, op.Subject, sha256.Sum256(op.Body), op.At)
	}
	for i := range pending {
		one(&pending[i])
		b.WriteByte(';')
	}
	for i := range conflicts {
		b.WriteByte('!')
		one(&conflicts[i].Operation)
		fmt.Fprintf(&b, "/%s/%s/%d;", conflicts[i].Current, conflicts[i].Detail, conflicts[i].Found)
	}
	return b.String()
}

// heldOperations is what the journal must hold by the words: as behind the last call that returned, or as behind the
// one that may have. line is the operation that was lost in between.
func heldOperations(words []string, line string) (perhaps, surely string) {
	for _, w := range words {
		if held, ok := strings.CutPrefix(w, "operations?"); ok {
			perhaps = held
		} else if held, ok := strings.CutPrefix(w, "operations!"); ok {
			perhaps, surely = held, held
		}
	}
	if line != "" {
		lost := regexp.MustCompile(line + "/[^;]*;")
		perhaps, surely = lost.ReplaceAllString(perhaps, ""), lost.ReplaceAllString(surely, "")
	}
	return perhaps, surely
}

// act is a call of the journal, and what it changes.
func (c *crashOperations) act(call func() error) {
	c.say("operations?" + c.holds() + "\n")
	if err := call(); err != nil {
		c.t.Fatal(err)
	}
	c.say("operations!" + c.holds() + "\n")
}

func (c *crashOperations) add(subjects ...string) {
	var ops []Operation
	for _, subject := range subjects {
		c.n++
		op := operation(c.n, subject)
		op.ID[1] = c.run
		ops = append(ops, op)
	}
	c.pending = append(c.pending, ops...)
	c.act(func() error { return c.j.Add(ops...) })
}

// settle ends the first, moves the second on, and gives up the third.
func (c *crashOperations) settle() {
	var st Settlement
	next := c.pending[1]
	next.Kind += "+"
	gone := Conflict{Operation: c.pending[2], Current: json.RawMessage(fmt.Sprintf(`{"n":%d}`, c.n)), Detail: "no", Found: 2000}
	st.Done, st.Next, st.Conflicts = []idem.EventID{c.pending[0].ID}, []*Operation{&next}, []Conflict{gone}
	c.pending = append([]Operation{next}, c.pending[3:]...)
	c.conflicts = append(c.conflicts, gone)
	c.act(func() error { return c.j.Settle(st) })
}

func (c *crashOperations) step(i int) {
	if i == 8 {
		gone := c.conflicts[0].ID
		c.conflicts = c.conflicts[1:]
		c.act(func() error { _, err := c.j.Resolve([]idem.EventID{gone}); return err })
	}
	if i%4 == 3 { // in front of all others of its subject
		c.n++
		early := operation(c.n, "a")
		early.ID[1], early.At, early.Early = c.run, window.UTC(900-i), true
		at := slices.IndexFunc(c.pending, func(op Operation) bool { return op.Subject == "a" })
		if at < 0 {
			at = len(c.pending)
		}
		c.pending = slices.Insert(c.pending, at, early)
		c.act(func() error { return c.j.Add(early) })
	}
	c.add("a", fmt.Sprint("b", i%3))
	if len(c.pending) > 4 {
		c.settle()
	}
}

// end adds two: the line of the first one is the last but one.
func (c *crashOperations) end() {
	c.add("last but one")
	c.say(fmt.Sprintf("spoil %x\n", c.pending[len(c.pending)-1].ID[:2]))
	c.add("last")
}

// spoilLine flips a bit of the last line of the journal but one, and returns the operation that is in it.
func (d *disk) spoilLine(t *testing.T) (id string) {
	t.Helper()
	path := filepath.Join(d.dir, "spool", journalName)
	f := d.names[path]
	content := bytes.Clone(f.durable)
	last := bytes.LastIndexByte(content[:len(content)-1], '\n')
	content[last-20] ^= 1
	for _, w := range d.words {
		fmt.Sscanf(w, "spoil %s", &id)
	}
	f.durable = content
	if err := os.WriteFile(path, content, 0o600); err != nil || id == "" {
		t.Fatalf("cannot spoil the line of operation %s: %v", id, err)
	}
	return id
}

// ioOp is one call of the recorded program that succeeded.
type ioOp struct {
	call string
	path string // of the file, or the old name
	to   string // new name
	at   int64  // offset, or length
	data []byte
	made bool // an open that makes or truncates
}

var (
	tracedCall = regexp.MustCompile(`^(\d+) +(\w+)\((.*)\) += (-?\d+)`)
	unfinished = regexp.MustCompile(`^(\d+) +(.*) <unfinished \.\.\.>$`)
	resumed    = regexp.MustCompile(`^(\d+) +<\.\.\. \w+ resumed>(.*)$`)
)

// record runs the workload under strace and returns its I/O below dir, in order.
func record(t *testing.T, dir string, run int) (ops []ioOp) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-y", "-xx", "-s", "8388608", "-o", log,
		"-e", "trace=openat,write,pwrite64,fsync,fdatasync,ftruncate,fallocate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat",
		os.Args[0], "-test.run=^TestCrashPoints$")
	cmd.Env = append(os.Environ(), "SPOOL_CRASH_DIR="+dir, fmt.Sprintf("SPOOL_CRASH_RUN=%d", run), "GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot record the workload: %v\n%s", err, out)
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	half := map[string]string{}
	offsets := map[string]int64{} // of plain writes, by descriptor
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	for lines.Scan() {
		line := lines.Text()
		if m := unfinished.FindStringSubmatch(line); m != nil {
			half[m[1]] = m[2]
			continue
		}
		if m := resumed.FindStringSubmatch(line); m != nil {
			line = m[1] + " " + half[m[1]] + m[2]
			delete(half, m[1])
		}
		m := tracedCall.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(m[4], "-") {
			continue
		}
		if op, ok := parseCall(t, m[2], strings.Split(m[3], ", "), m[4], offsets); ok && strings.HasPrefix(op.path, dir+"/") && !strings.Contains(op.path, "/keys/") {
			ops = append(ops, op)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return ops
}

func parseCall(t *testing.T, call string, args []string, result string, offsets map[string]int64) (op ioOp, ok bool) {
	t.Helper()
	text := func(s string) []byte {
		s = strings.Trim(s, `"`)
		b, err := hex.DecodeString(strings.ReplaceAll(s, `\x`, ""))
		if err != nil {
			t.Fatalf("cannot read what strace says: %.100q", s)
		}
		return b
	}
	file := func(s string) string { // 7</path>
		from, to := strings.IndexByte(s, '<'), strings.LastIndexByte(s, '>')
		if from < 0 || to < from {
			return ""
		}
		return string(text(s[from+1 : to]))
	}
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatalf("cannot read what strace says: %.100q", s)
		}
		return n
	}
	op.call = call
	switch call {
	case "openat":
		op.path = string(text(args[1]))
		op.made = strings.Contains(args[2], "O_CREAT") || strings.Contains(args[2], "O_TRUNC")
		offsets[result] = 0
		return op, op.made
	case "write":
		fd, _, _ := strings.Cut(args[0], "<")
		op.path, op.data, op.at = file(args[0]), text(args[1]), offsets[fd]
		offsets[fd] += int64(len(op.data))
	case "pwrite64":
		op.path, op.data, op.at = file(args[0]), text(args[1]), number(args[3])
	case "fsync", "fdatasync":
		op.path = file(args[0])
	case "ftruncate":
		op.path, op.at = file(args[0]), number(args[1])
	case "fallocate":
		op.path, op.at = file(args[0]), number(args[2])+number(args[3])
	case "rename", "unlink", "mkdir", "link":
		op.path = string(text(args[0]))
		if len(args) > 1 && strings.HasPrefix(args[1], `"`) {
			op.to = string(text(args[1]))
		}
	case "renameat", "renameat2", "linkat":
		op.call = strings.TrimRight(call, "at2")
		op.path, op.to = string(text(args[1])), string(text(args[3]))
	case "unlinkat", "mkdirat":
		op.call = strings.TrimSuffix(call, "at")
		op.path = string(text(args[1]))
	}
	return op, true
}

// disk is what is known of the files below a folder: what is on the disk for sure, and what may be.
type disk struct {
	dir     string
	names   map[string]*inode // as the program sees them
	durable map[string]*inode
	entries []ioOp // changes of names that no folder's sync has covered
	files   []*inode
	words   []string
	begun   int // times that the journal was put in place
}

type inode struct {
	durable []byte
	pending []ioOp
}

func newDisk(dir string) *disk {
	return &disk{dir: dir, names: map[string]*inode{}, durable: map[string]*inode{}}
}

// apply does one operation, and says whether it is one of the spool's.
func (d *disk) apply(op ioOp) bool {
	if op.path == filepath.Join(d.dir, "words") {
		for l := range strings.Lines(string(op.data)) {
			d.words = append(d.words, strings.TrimSpace(l))
		}
		return false
	}
	f := d.names[op.path]
	switch op.call {
	case "openat":
		if f == nil {
			d.names[op.path] = &inode{}
			d.entries = append(d.entries, op)
		}
		return f == nil
	case "mkdir":
		return false // a folder alone changes nothing
	case "rename", "link":
		if filepath.Base(op.to) == journalName {
			d.begun++
		}
		d.names[op.to] = f
		if op.call == "rename" {
			delete(d.names, op.path)
		}
		d.entries = append(d.entries, op)
	case "unlink":
		if f == nil {
			return false // a folder, or a temporary file that is gone
		}
		delete(d.names, op.path)
		d.entries = append(d.entries, op)
	case "fsync", "fdatasync":
		if f != nil {
			for _, p := range f.pending {
				f.durable = p.on(f.durable, nil)
			}
			f.pending = nil
			break
		}
		d.entries = slices.DeleteFunc(d.entries, func(e ioOp) bool {
			if filepath.Dir(e.path) != op.path && filepath.Dir(e.to) != op.path {
				return false
			}
			e.rename(d.durable, d.names)
			return true
		})
	default:
		if f == nil {
			return false // unlinked already
		}
		f.pending = append(f.pending, op)
	}
	return true
}

// rename applies a change of names.
func (op *ioOp) rename(to, live map[string]*inode) {
	switch op.call {
	case "openat":
		if f := live[op.path]; f != nil {
			to[op.path] = f
		} else {
			to[op.path] = &inode{}
		}
	case "rename", "link":
		if f := live[op.to]; f != nil {
			to[op.to] = f
		}
		if op.call == "rename" {
			delete(to, op.path)
		}
	case "unlink":
		delete(to, op.path)
	}
}

// on applies a write to content; of its sectors those that keep says, all if nil.
func (op *ioOp) on(content []byte, keep func() bool) []byte {
	switch op.call {
	case "ftruncate", "fallocate":
		if keep != nil && !keep() {
			return content
		}
		if n := op.at; n <= int64(len(content)) {
			if op.call == "ftruncate" {
				content = content[:n:n]
			}
			return content
		} else {
			return append(content[:len(content):len(content)], make([]byte, n-int64(len(content)))...)
		}
	}
	const sector = 512
	content = slices.Clone(content)
	for from := 0; from < len(op.data); {
		at := op.at + int64(from)
		n := min(len(op.data)-from, sector-int(at%sector))
		if keep == nil || keep() {
			if end := at + int64(n); end > int64(len(content)) {
				content = append(content, make([]byte, end-int64(len(content)))...)
			}
			copy(content[at:], op.data[from:from+n])
		}
		from += n
	}
	return content
}

// compare says whether the record of the I/O gives the files that are really there.
func (d *disk) compare(t *testing.T) {
	t.Helper()
	found := 0
	for path, f := range d.names {
		if filepath.Base(path) == reserveName {
			continue // made by fallocate alone
		}
		content := f.durable
		for i := range f.pending {
			content = f.pending[i].on(content, nil)
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(b, content) {
			t.Fatalf("%s is not as recorded: %d bytes, %d recorded, %v", path, len(b), len(content), err)
		}
		found++
	}
	if found < 3 {
		t.Fatalf("only %d files", found)
	}
}

// spoil flips a bit of a record that waits, in the last segment that has one, and returns its number. A page that
// bbolt has freed may hold a copy, which salvage would find: all are spoiled.
func (d *disk) spoil(t *testing.T) (seq uint64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(d.dir, "spool", "*"+segmentExt))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(filepath.Base(b)[17:], filepath.Base(a)[17:]) })
	settled := map[uint64]bool{}
	for _, w := range d.words {
		var n uint64
		if _, err := fmt.Sscanf(w, "settled %d", &n); err == nil {
			settled[n] = true
		}
	}
	for _, name := range names {
		var value []byte
		db, err := bolt.Open(name, 0o600, boltOptions(true))
		if err != nil {
			t.Fatal(err)
		}
		db.View(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketRecords).ForEach(func(k, v []byte) error {
				if n := binary.BigEndian.Uint64(k); !settled[n] && value == nil {
					seq, value = n, bytes.Clone(v)
				}
				return nil
			})
		})
		db.Close()
		if value == nil {
			continue
		}
		f := d.names[name]
		wrong := bytes.Clone(value)
		wrong[len(wrong)/2] ^= 1
		f.durable = bytes.ReplaceAll(f.durable, value, wrong)
		if err := os.WriteFile(name, f.durable, 0o600); err != nil {
			t.Fatal(err)
		}
		return seq
	}
	t.Fatal("no record waits at the end")
	return 0
}

// image is the disk after a power cut.
type image struct {
	name  string
	files map[string][]byte // by path below the folder
	words []string          // said before it
	lost  map[uint64]bool   // records that were damaged before
	line  string            // likewise, the operation of a line
}

func (d *disk) cut(how string, seed uint64, op ioOp, lost map[uint64]bool) image {
	random := rand.New(rand.NewPCG(seed, 7))
	im := image{name: fmt.Sprintf("image %d, %s of what is not synced, after %s of %s", seed, how, op.call, strings.TrimPrefix(op.path, d.dir)),
		files: map[string][]byte{}, words: d.words[:len(d.words):len(d.words)], lost: lost}
	names := maps.Clone(d.durable)
	entries := d.entries
	switch how {
	case "nothing":
		entries = nil
	case "some":
		entries = entries[:random.IntN(len(entries)+1)]
	}
	for i := range entries {
		entries[i].rename(names, d.names)
	}
	for path, f := range names {
		content := f.durable
		for i := range f.pending {
			switch how {
			case "everything":
				content = f.pending[i].on(content, nil)
			case "some":
				odds := random.IntN(5) // of four: none, half, all but a few, all
				content = f.pending[i].on(content, func() bool { return random.IntN(4) < odds })
			}
		}
		im.files[strings.TrimPrefix(path, d.dir)] = content
	}
	return im
}

// recover opens the image and says what is wrong with what it finds.
func (im *image) recover(t *testing.T, keys string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(keys), "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for path, content := range im.files {
		full := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(full, content, 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "keys"), 0o700); err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(keys, "keys", "spool.key"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "keys", "spool.key"), key, 0o600)
	}
	if err != nil {
		return err
	}

	type intent struct{ event, key, lot string }
	intents := map[uint64]intent{}
	taken, settled := map[uint64]bool{}, map[uint64]bool{}
	lines, noted := map[string]bool{}, map[string]bool{}
	chain := ""
	for _, w := range im.words {
		f := strings.Fields(w)
		seq := uint64(0)
		if len(f) > 1 {
			seq, _ = strconv.ParseUint(f[1], 10, 64)
		}
		switch f[0] {
		case "take":
			intents[seq] = intent{f[2], f[3], f[4]}
		case "taken":
			taken[seq] = true
		case "settled":
			settled[seq] = true
		case "noted":
			noted[f[1]] = true
		case "line":
			lines[f[1]] = true
		case "chain":
			chain = f[1]
		}
	}

	fail := &failure{}
	var r *rig
	fail.catch(func() { r = crashRig(fail, dir, 9) })
	if fail.text != "" {
		return fmt.Errorf("it does not open: %s", fail.text)
	}
	defer r.spool.Close(true)
	st := r.spool.Stats()
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Unaccounted || st.Unaccounted != int64(len(im.lost)) {
		return fmt.Errorf("counts %+v", st)
	}
	if err := im.recoverOperations(r.spool); err != nil {
		return err
	}
	waiting := map[uint64]bool{}
	if err := r.spool.Unsettled(func(rec *Record, x Exception) bool {
		waiting[rec.Seq] = true
		if in, known := intents[rec.Seq]; !known || in.event != rec.Event.String() || in.key != rec.Keys.Idem.String() || in.lot != rec.Lot {
			err = fmt.Errorf("record %d is not the one that was taken in: %v", rec.Seq, rec.Event)
		}
		if settled[rec.Seq] {
			err = fmt.Errorf("record %d was settled and waits again", rec.Seq)
		}
		return true
	}); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	final := -int64(len(im.lost))
	for seq := range taken {
		if !waiting[seq] {
			final++
			if !settled[seq] && !im.lost[seq] && !im.settling(seq) {
				return fmt.Errorf("record %d was acknowledged and is gone", seq)
			}
		}
	}
	if got := st.Committed + st.Suppressed; got < int64(len(settled)) || got < final {
		return fmt.Errorf("%d are settled, and %d were", got, max(int64(len(settled)), final))
	}
	if st.Captured < int64(len(taken)) || st.Captured > int64(len(intents)) {
		return fmt.Errorf("%d captured, of %d acknowledged and %d tried", st.Captured, len(taken), len(intents))
	}
	// Lines that were recorded are on their way, and notes on theirs to be lines.
	ls, err := r.spool.Lines(1 << 20)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range ls {
		there[ls[i].Event.String()] = true
	}
	for e := range lines {
		if !there[e] {
			return fmt.Errorf("line %s is lost", e)
		}
	}
	if head := r.spool.ChainHead(); chain != "" && hex.EncodeToString(head.Hash[:]) != chain && !im.settling(0) {
		return fmt.Errorf("the chain ends in %x, not in %s", head.Hash, chain)
	}
	// It goes on: a new scan is taken in, and everything drains.
	d, err := r.try(r.candidate("after"))
	if err != nil {
		return err
	}
	for {
		w, err := r.spool.Next(100)
		if err != nil {
			return err
		}
		for i := range w.Notes {
			there[w.Notes[i].Event.String()] = true
		}
		var vs []Verdict
		for _, x := range r.spool.Exceptions() {
			vs = append(vs, Verdict{Seq: x.Seq, State: Committed})
		}
		for _, rec := range w.Records {
			vs = append(vs, Verdict{Seq: rec.Seq, State: Committed})
		}
		if w.Empty() && len(vs) == 0 {
			break
		}
		if err := r.spool.Settle(w, vs, nil, nil); err != nil {
			return err
		}
	}
	for e := range noted {
		if !there[e] {
			return fmt.Errorf("note %s is lost", e)
		}
	}
	if st := r.spool.Stats(); st.Pending != 0 || uint64(st.Captured) != d.Record.Seq || st.Unaccounted != int64(len(im.lost)) {
		return fmt.Errorf("after the drain: %+v, last %d", st, d.Record.Seq)
	}
	r.os.pass(time.Hour)
	r.spool.Prune()
	return r.spool.Maintain()
}

// recoverOperations says what is wrong with the journal, which also goes on.
func (im *image) recoverOperations(s *Spool) error {
	for _, h := range s.takeHealings() {
		if h.File == journalName && (im.line == "" || h.Operations != 1) {
			return fmt.Errorf("a power cut is taken for damage: %+v", h)
		}
	}
	held := func(j *Journal) string {
		var ops []Operation
		for _, op := range j.all().Add {
			ops = append(ops, *op)
		}
		return describe(ops, j.Conflicts())
	}
	perhaps, surely := heldOperations(im.words, im.line)
	j := s.Journal()
	now := held(j)
	if now != perhaps && now != surely {
		return fmt.Errorf("the journal holds %s, not %s or %s", now, surely, perhaps)
	}
	if err := j.Add(operation(99, "after"), operation(98, "after")); err != nil {
		return err
	}
	if err := j.Settle(Settlement{Done: []idem.EventID{{98}}}); err != nil {
		return err
	}
	again := newJournal(s)
	if lost, _, err := again.load(0); err != nil || lost != 0 || held(again) != held(j) {
		return fmt.Errorf("the journal goes on, and then %d lines are lost, %v: it holds %s", lost, err, held(again))
	}
	if want := describe([]Operation{operation(99, "after")}, nil); !strings.Contains(held(j), want) || len(held(j)) != len(now)+len(want) {
		return fmt.Errorf("the journal goes on from %s, and holds %s", now, held(j))
	}
	return nil
}

// settling says that a settlement may have been under way at the cut: of records that no word tells of.
func (im *image) settling(seq uint64) bool {
	// The words of a settlement come behind it: the last ones before the cut are those of a commit or of nothing.
	last := ""
	for _, w := range im.words {
		if !strings.HasPrefix(w, "operations") {
			last = w
		}
	}
	return strings.HasPrefix(last, "taken") || strings.HasPrefix(last, "noted")
}

// failure is a tb that ends in an error.
type failure struct{ text string }

type failed struct{}

func (f *failure) Helper()                      {}
func (f *failure) Fatal(args ...any)            { f.text = fmt.Sprint(args...); panic(failed{}) }
func (f *failure) Fatalf(s string, args ...any) { f.text = fmt.Sprintf(s, args...); panic(failed{}) }
func (f *failure) catch(do func()) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(failed); !ok {
				panic(r)
			}
		}
	}()
	do()
}
