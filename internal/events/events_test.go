package events

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scanonce/window"
)

const (
	t0        = window.UTC(1_700_000_000_000)
	childPath = "EVENTS_TEST_CHILD"
)

// TestMain is also the process that TestKill kills.
func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		l, err := Open(path, Options{MaxEvents: 300, Now: func() window.UTC { return t0 }})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		pad := strings.Repeat("x", 8000) // compaction runs all the time
		for i := uint64(1); ; i++ {
			if err := l.Append(Entry{Kind: "accepted", At: t0, Body: map[string]any{"n": i, "pad": pad}, Stream: 1, Mark: i}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			os.Stdout.WriteString(l.Last() + "\n")
		}
	}
	goleak.VerifyTestMain(m)
}

type num struct {
	N int `json:"n"`
}

type fast int

func (f fast) AppendJSONFields(b []byte) []byte {
	return strconv.AppendInt(append(b, `"n":`...), int64(f), 10)
}

func at(now *window.UTC) Options { return Options{Now: func() window.UTC { return *now }} }

func open(t *testing.T, path string, o Options) *Log {
	t.Helper()
	if o.Now == nil {
		o.Now = func() window.UTC { return t0 }
	}
	l, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func put(t *testing.T, l *Log, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := l.Append(Entry{Kind: "accepted", At: t0, Body: num{i}}); err != nil {
			t.Fatal(err)
		}
	}
}

type got struct {
	id, kind string
	data     map[string]any
}

func (g got) String() string {
	if g.kind == KindGap {
		return "gap"
	}
	return fmt.Sprint(g.data["n"])
}

var errEnough = errors.New("enough")

func toGot(t *testing.T, id, kind string, data []byte) got {
	g := got{id: id, kind: kind}
	if err := json.Unmarshal(data, &g.data); err != nil {
		t.Errorf("data of %s: %v: %s", id, err, data)
	}
	if g.data["id"] != id || g.data["kind"] != kind || g.data["at"] == nil {
		t.Errorf("data %s does not say id %s and kind %s", data, id, kind)
	}
	return g
}

// resume collects what a resume from id yields up to the current position.
func resume(t *testing.T, l *Log, id string, kinds ...string) []got {
	t.Helper()
	var all []got
	end := "end"
	if err := l.Append(Entry{Kind: end, At: l.opts.Now(), Body: num{-1}}); err != nil {
		t.Fatal(err)
	}
	if len(kinds) > 0 {
		kinds = append(kinds, end)
	}
	err := l.Follow(t.Context(), id, kinds, func(id, kind string, data []byte) error {
		if kind == end {
			if id == l.Last() {
				return errEnough
			}
			return nil
		}
		all = append(all, toGot(t, id, kind, data))
		return nil
	})
	if err != errEnough {
		t.Fatal(err)
	}
	return all
}

func check(t *testing.T, all []got, want string) {
	t.Helper()
	var s []string
	for _, g := range all {
		s = append(s, g.String())
	}
	if have := strings.Join(s, " "); have != want {
		t.Fatalf("got %q, want %q", have, want)
	}
}

func seqRange(from, to int) string {
	var s []string
	for i := from; i <= to; i++ {
		s = append(s, strconv.Itoa(i))
	}
	return strings.Join(s, " ")
}

// following starts a follower and waits until it is counted.
func following(t *testing.T, l *Log, id string, yield func(id, kind string, data []byte) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	before := l.Stats().Followers
	go func() { done <- l.Follow(ctx, id, nil, yield) }()
	for l.Stats().Followers == before {
		select {
		case err := <-done:
			t.Fatal("follower ended: ", err)
		default:
		}
	}
	return func() error { cancel(); return <-done }
}

func TestData(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	start := l.Last()
	err := l.Append(
		Entry{Kind: "accepted", At: t0, Body: map[string]any{"key": "a\nb\u001d<", "none": nil}},
		Entry{Kind: "online", At: t0.Add(5 * time.Millisecond)},
		Entry{Kind: "accepted", At: t0, Body: fast(7)},
		Entry{Kind: "accepted", At: t0, Body: &num{7}},
		Entry{Kind: "accepted", At: t0, Body: struct{}{}})
	if err != nil {
		t.Fatal(err)
	}
	var data []string
	err = l.Follow(t.Context(), start, nil, func(id, kind string, d []byte) error {
		toGot(t, id, kind, d)
		data = append(data, strings.Replace(string(d), id, "ID", 1))
		if len(data) == 5 {
			return errEnough
		}
		return nil
	})
	if err != errEnough {
		t.Fatal(err)
	}
	want := []string{
		`{"id":"ID","kind":"accepted","at":"2023-11-14T22:13:20.000Z","key":"a\nb\u001d\u003c","none":null}`,
		`{"id":"ID","kind":"online","at":"2023-11-14T22:13:20.005Z"}`,
		`{"id":"ID","kind":"accepted","at":"2023-11-14T22:13:20.000Z","n":7}`,
		`{"id":"ID","kind":"accepted","at":"2023-11-14T22:13:20.000Z","n":7}`,
		`{"id":"ID","kind":"accepted","at":"2023-11-14T22:13:20.000Z"}`,
	}
	if !slices.Equal(data, want) {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(data, "\n"), strings.Join(want, "\n"))
	}
}

type newline struct{}

func (newline) AppendJSONFields(b []byte) []byte { return append(b, "\"a\":1,\n\"b\":2"...) }

func TestAppendRefuses(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	for name, e := range map[string]Entry{
		"no kind":    {},
		"bad kind":   {Kind: "a b"},
		"no object":  {Kind: "a", Body: 1},
		"no JSON":    {Kind: "a", Body: map[string]any{"f": func() {}}},
		"newline":    {Kind: "a", Body: newline{}},
		"live array": {Kind: "a", Live: []int{1}},
		"too large":  {Kind: "a", Body: map[string]any{"x": strings.Repeat("x", maxLine)}},
	} {
		before := l.Last()
		err := l.Append(Entry{Kind: "good", At: t0}, e)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%s: %v", name, err)
		}
		if l.Last() != before || l.Stats().Appended != 0 {
			t.Errorf("%s: something was appended", name)
		}
	}
}

func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	beginning := l.Last()
	put(t, l, 1, 10)
	all := resume(t, l, beginning)
	check(t, all, seqRange(1, 10))
	check(t, resume(t, l, all[3].id), seqRange(5, 10))
	l.Close()

	l = open(t, path, Options{})
	check(t, resume(t, l, all[3].id), seqRange(5, 10))
	put(t, l, 11, 12)
	check(t, resume(t, l, all[8].id), seqRange(10, 12))
	end := l.Last()
	l.Close()

	l = open(t, path, Options{})
	if l.Last() != end {
		t.Fatalf("position moved from %s to %s by opening", end, l.Last())
	}
	check(t, resume(t, l, end), "")
	check(t, resume(t, l, all[8].id), seqRange(10, 12))
	if g := l.Stats().Gaps; g != 0 {
		t.Fatalf("%d gaps", g)
	}
	// Ids of three openings, all different and in order.
	more := resume(t, l, beginning)
	check(t, more, seqRange(1, 12))
	ids := map[string]bool{}
	for _, g := range more {
		ids[g.id] = true
	}
	if len(ids) != 12 {
		t.Fatal("ids repeat")
	}
}

func TestFromNowOn(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	put(t, l, 1, 3)
	seen := make(chan got)
	stop := following(t, l, "", func(id, kind string, data []byte) error { seen <- toGot(t, id, kind, data); return nil })
	put(t, l, 4, 4)
	check(t, []got{<-seen}, "4")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// Closing ends a follower with an error.
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- l.Follow(t.Context(), l.Last(), nil, func(string, string, []byte) error { close(ready); return nil })
	}()
	for l.Stats().Followers == 0 {
	}
	put(t, l, 5, 5)
	<-ready
	l.Close()
	if err := <-done; err != ErrClosed {
		t.Fatal(err)
	}
	if err := l.Append(Entry{Kind: "a"}); err != ErrClosed {
		t.Fatal(err)
	}
}

func TestKinds(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	start := l.Last()
	for i := range 1000 {
		if err := l.Append(Entry{Kind: []string{"a", "b", "c"}[i%3], At: t0, Body: num{i}}); err != nil {
			t.Fatal(err)
		}
	}
	all := resume(t, l, start, "b", "c")
	if len(all) != 666 || all[0].kind != "b" || all[1].kind != "c" || all[665].String() != "998" {
		t.Fatal(len(all), all[:2], all[665])
	}
	check(t, resume(t, l, "garbage", "nothing"), "gap") // whatever the filter
}

func TestUnknownID(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	for _, id := range []string{"x", "0", "000000000000-0", l.gen + "-999", l.gen + "-", l.gen + "-00", "-"} {
		check(t, resume(t, l, id), "gap")
	}
	put(t, l, 1, 3)
	for _, id := range []string{"x", "000000000000-1", l.gen + "-99", l.gen + "-01", l.gen + "--1", l.gen + "-18446744073709551616", "\x00"} {
		all := resume(t, l, id)
		check(t, all, "gap 1 2 3")
		check(t, resume(t, l, all[0].id), "1 2 3") // the gap's id resumes behind the gap
	}
}

func TestRetention(t *testing.T) {
	now := t0
	path := filepath.Join(t.TempDir(), "events.log")
	o := at(&now)
	o.MaxEvents, o.Retention = 10, time.Hour
	l := open(t, path, o)
	start := l.Last()
	put(t, l, 1, 25)
	ids := resume(t, l, start) // 25 and "end"
	check(t, ids, "gap "+seqRange(17, 25))
	check(t, resume(t, l, ids[3].id), seqRange(20, 25))
	id17 := ids[1].id
	put(t, l, 26, 30)
	check(t, resume(t, l, id17), "gap "+seqRange(24, 30)) // three "end" events are retained, too

	now = now.Add(time.Hour + time.Millisecond)
	last := l.Last()
	if s := l.Stats(); s.Events != 0 {
		t.Fatalf("%d events after the retention", s.Events)
	}
	check(t, resume(t, l, last), "") // nothing missed, nothing retained
	check(t, resume(t, l, ids[9].id), "gap")
	l.Close()
	l = open(t, path, o)
	check(t, resume(t, l, last), "")
	check(t, resume(t, l, ids[9].id), "gap")
}

func TestMarks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{MaxEvents: 5})
	put := func(s uint8, m uint64) {
		if err := l.Append(Entry{Kind: "a", At: t0, Stream: s, Mark: m}); err != nil {
			t.Fatal(err)
		}
	}
	put(1, 7)
	put(1, 5)
	put(2, 1<<63)
	put(0, 0)
	want := func(when string) {
		t.Helper()
		if a, b, c := l.Mark(1), l.Mark(2), l.Mark(3); a != 7 || b != 1<<63 || c != 0 {
			t.Fatalf("%s: marks %d, %d, %d", when, a, b, c)
		}
	}
	want("at first")
	l.Close()
	l = open(t, path, Options{MaxEvents: 5})
	want("after a restart")
	for range 10 {
		put(0, 0)
	}
	if err := l.compact(); err != nil {
		t.Fatal(err)
	}
	want("after compaction")
	l.Close()
	l = open(t, path, Options{MaxEvents: 5})
	if l.Stats().Events != 5 {
		t.Fatal(l.Stats())
	}
	want("after compaction and a restart")
}

// TestTornTail cuts the file at each byte of its last lines, and fills the rest with zeros.
func TestTornTail(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events.log")
	l := open(t, path, Options{})
	start := l.Last()
	put(t, l, 1, 3)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := resume(t, l, start)
	lineStart := func(n int) int {
		return bytes.Index(b, []byte(fmt.Sprintf(`%s-%d"`, l.gen, n))) - len(`00000000 0.0 {"id":"`)
	}
	for cut := lineStart(2); cut < len(b); cut++ {
		whole := 1
		if cut >= lineStart(3) {
			whole = 2
		}
		for _, zeros := range []int{0, 5000} {
			p := filepath.Join(dir, "torn.log")
			if err := os.WriteFile(p, slices.Concat(b[:cut], make([]byte, zeros)), 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := Open(p, Options{Now: func() window.UTC { return t0 }})
			if err != nil {
				t.Fatal(err)
			}
			put(t, l, 77, 77)
			check(t, resume(t, l, all[whole-1].id), "77")
			check(t, resume(t, l, all[whole].id), "gap "+seqRange(1, whole)+" 77") // it was lost
			l.Close()
			if l, err = Open(p, Options{Now: func() window.UTC { return t0 }}); err != nil {
				t.Fatal(err)
			}
			check(t, resume(t, l, all[0].id), strings.TrimSpace(seqRange(2, whole)+" 77"))
			if s := l.Stats(); s.Skipped != 0 {
				t.Fatalf("cut %d: torn rest was left in the file", cut)
			}
			l.Close()
		}
	}
	// All of it lost.
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	l = open(t, path, Options{})
	put(t, l, 1, 1)
	check(t, resume(t, l, all[0].id), "gap 1")
}

func TestDamageInTheMiddle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	start := l.Last()
	put(t, l, 1, 9)
	all := resume(t, l, start)
	l.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte(`"n":5`))+4] ^= 1
	zero := bytes.Index(b, []byte(`"n":7`))
	clear(b[zero : zero+60]) // over the end of the line
	again := bytes.Index(b, []byte(`"n":2`))
	from, to := bytes.LastIndexByte(b[:again], '\n')+1, again+bytes.IndexByte(b[again:], '\n')+1
	b = append(b, b[from:to]...) // an old line once more
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l = open(t, path, Options{})
	check(t, resume(t, l, all[1].id), "3 4 gap 6 gap 9")
	check(t, resume(t, l, all[4].id), "6 gap 9") // who has seen the damaged one misses nothing there
	check(t, resume(t, l, all[7].id), "9")
	if l.Stats().Skipped == 0 {
		t.Fatal("damage was not counted")
	}
}

func TestGarbageFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	for _, b := range [][]byte{bytes.Repeat([]byte("x"), 3*maxLine), bytes.Repeat([]byte("x\n"), 1000), make([]byte, 1<<20)} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, path, Options{})
		put(t, l, 1, 2)
		check(t, resume(t, l, "x"), "gap 1 2")
		l.Close()
		if fi, err := os.Stat(path); err != nil || fi.Size() > 1000 {
			t.Fatal(fi.Size(), err)
		}
	}
	// A newer format is left alone.
	newer := seal([]byte(`00000000 # {"format":2,"last":5}`), 0)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "format is 2") {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, newer) {
		t.Fatal("the file was changed", err)
	}
}

func TestCompaction(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	o := Options{MaxEvents: 100, Now: func() window.UTC { return t0 }}
	l := open(t, path, o)
	pad := strings.Repeat("x", 4000)
	next := 1
	seen := make(chan struct{}, 20)
	stop := following(t, l, "", func(id, kind string, data []byte) error {
		if kind == KindGap {
			t.Error("gap for a follower that keeps up")
		}
		if n := int(toGot(t, id, kind, data).data["n"].(float64)); n != next {
			t.Errorf("got %d, want %d", n, next)
		}
		next++
		seen <- struct{}{}
		return nil
	})
	largest := int64(0)
	for i := 1; i <= 3000; i++ {
		if err := l.Append(Entry{Kind: "a", At: t0, Body: map[string]any{"n": i, "pad": pad}, Stream: 1, Mark: uint64(i)}); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, fi.Size())
		if i%20 == 0 { // the follower keeps up
			for range 20 {
				<-seen
			}
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s := l.Stats()
	// 400 KB live, 1 MiB dead start a compaction; what comes while it runs is on top.
	if s.Compactions < 3 || largest > 6<<20 {
		t.Fatalf("%d compactions, largest file %d", s.Compactions, largest)
	}
	if next != 3001 {
		t.Fatalf("followed up to %d", next)
	}
	id := l.Last()
	l.Close()
	l = open(t, path, o)
	if l.Last() != id || l.Mark(1) != 3000 || l.Stats().Events != 100 {
		t.Fatal(l.Last(), id, l.Mark(1), l.Stats())
	}
}

// TestCompactionCrash leaves off at each step; what lies on disk then is all that the next opening has.
func TestCompactionCrash(t *testing.T) {
	for _, step := range []string{"created", "copied", "synced", "renamed"} {
		path := filepath.Join(t.TempDir(), "events.log")
		o := Options{MaxEvents: 10, Now: func() window.UTC { return t0 }}
		l := open(t, path, o)
		put(t, l, 1, 30)
		if err := l.Append(Entry{Kind: "accepted", At: t0, Body: num{31}, Stream: 3, Mark: 9}); err != nil {
			t.Fatal(err)
		}
		id := l.Last()
		put(t, l, 32, 34)
		l.crash = func(s string) bool { return s == step }
		if err := l.compact(); (err == errCrash) != (step != "renamed") {
			t.Fatal(step, err)
		}
		// No Close: the process is gone.
		r := open(t, path, o)
		if _, err := os.Stat(path + newSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: half-written file left", step)
		}
		check(t, resume(t, r, id), "32 33 34")
		check(t, resume(t, r, "x"), "gap "+seqRange(27, 34)) // two "end"s
		if r.Mark(3) != 9 {
			t.Errorf("%s: mark %d", step, r.Mark(3))
		}
	}
}

func TestCompactionWithoutEvents(t *testing.T) {
	now := t0
	path := filepath.Join(t.TempDir(), "events.log")
	o := at(&now)
	l := open(t, path, o)
	put(t, l, 1, 9)
	id := l.Last()
	now = now.Add(25 * time.Hour)
	l.Stats() // prunes
	if err := l.compact(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	l = open(t, path, o)
	check(t, resume(t, l, id), "")
	if l.Stats().Gaps != 0 || l.Last() == id {
		t.Fatal(l.Stats(), l.Last())
	}
}

func TestCompactionFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "events.log")
	l := open(t, path, Options{MaxEvents: 10})
	put(t, l, 1, 30)
	if err := os.Mkdir(path+newSuffix, 0o700); err != nil { // in its way
		t.Fatal(err)
	}
	if err := l.compact(); err == nil {
		t.Fatal("no error")
	}
	put(t, l, 31, 31)
	check(t, resume(t, l, "x"), "gap "+seqRange(23, 31))
}

func TestDiskFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	live := make(chan got, 10)
	stop := following(t, l, "", func(id, kind string, data []byte) error { live <- toGot(t, id, kind, data); return nil })
	put(t, l, 1, 2)
	good := l.write
	l.write = func(f *os.File, b []byte, off int64) (int, error) {
		n, _ := f.WriteAt(b[:len(b)-9], off) // and torn
		return n, errors.New("no space left on device")
	}
	err := l.Append(Entry{Kind: "accepted", At: t0, Body: num{3}, Stream: 1, Mark: 3}, Entry{Kind: "accepted", At: t0, Body: num{4}})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot store 2 events") {
		t.Fatal(err)
	}
	if l.Mark(1) != 0 {
		t.Fatal("mark of an event that is not stored")
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != l.Stats().Bytes {
		t.Fatal("the torn write was left in the file", fi.Size(), l.Stats().Bytes, err)
	}
	l.write = good
	var all []got
	for range 4 {
		all = append(all, <-live)
	}
	check(t, all, "1 2 3 4")
	// With nothing after it yet, and nobody who saw it, the place is a gap.
	check(t, resume(t, l, all[1].id), "gap")
	put(t, l, 5, 5)
	check(t, resume(t, l, all[1].id), "gap 5")
	check(t, resume(t, l, all[2].id), "gap 5")
	check(t, resume(t, l, all[3].id), "5") // has seen them
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.Failed != 2 || len(l.fresh) != 0 {
		t.Fatal(s, len(l.fresh))
	}
	l.Close()
	l = open(t, path, Options{})
	check(t, resume(t, l, all[0].id), "2 gap 5")
	check(t, resume(t, l, all[3].id), "5")
	// The last events before the end of the process.
	last := l.Last()
	l.write = func(*os.File, []byte, int64) (int, error) { return 0, errors.New("no space left on device") }
	if err := l.Append(Entry{Kind: "accepted", At: t0}); err == nil {
		t.Fatal("no error")
	}
	l.write = good
	lost := l.Last()
	l.Close()
	l = open(t, path, Options{})
	check(t, resume(t, l, last), "gap")
	check(t, resume(t, l, lost), "")
	if l.Last() <= lost && strings.HasPrefix(l.Last(), lost[:genDigits]) {
		t.Fatal("an id was given again")
	}
}

func TestLiveOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	l := open(t, path, Options{})
	start := l.Last()
	hold := make(chan struct{})
	type seen struct{ data []byte }
	var mu sync.Mutex
	var first []seen
	arrived := make(chan struct{}, 10)
	stop := following(t, l, "", func(_, _ string, data []byte) error {
		mu.Lock()
		first = append(first, seen{slices.Clone(data)})
		mu.Unlock()
		arrived <- struct{}{}
		<-hold
		return nil
	})
	label := func() {
		t.Helper()
		err := l.Append(Entry{Kind: "label", At: t0, Body: map[string]any{"rx_token": "rx1.x"},
			Live: map[string]any{"rx": "PHI1234567", "store": "PHI0123456", "refill": nil}})
		if err != nil {
			t.Fatal(err)
		}
	}
	label()
	<-arrived
	label() // while the follower is busy: it was there, so it gets the live copy, late
	late := make(chan []byte, 2)
	stopLate := following(t, l, start, func(_, _ string, data []byte) error {
		late <- slices.Clone(data)
		return nil
	})
	redacted := `"rx_token":"rx1.x","refill":null,"rx":null,"store":null,"redacted":true}`
	for range 2 { // the second is still held for the other follower
		if d := <-late; !strings.HasSuffix(string(d), redacted) {
			t.Fatalf("resumed copy %s", d)
		}
	}
	close(hold)
	<-arrived
	l.mu.Lock()
	if len(l.fresh) != 0 {
		t.Error("live fields are held although all have passed them")
	}
	l.mu.Unlock()
	if err := errors.Join(stop(), stopLate()); err != nil {
		t.Fatal(err)
	}
	for _, s := range first {
		if !strings.HasSuffix(string(s.data), `"rx_token":"rx1.x","refill":null,"rx":"PHI1234567","store":"PHI0123456"}`) {
			t.Fatalf("live copy %s", s.data)
		}
	}
	if len(first) != 2 {
		t.Fatal(len(first))
	}
	if len(l.fresh) != 0 {
		t.Fatal("live fields are held although nobody waits for them")
	}
	label() // nobody there
	if len(l.fresh) != 0 {
		t.Fatal("live fields are held although nobody was there")
	}
	for _, g := range resume(t, l, start) {
		if g.data["rx"] != nil || g.data["redacted"] != true {
			t.Fatal(g.data)
		}
	}
	if err := l.compact(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	b, err := os.ReadFile(path)
	if err != nil || bytes.Contains(b, []byte("PHI")) || !bytes.Contains(b, []byte(redacted)) {
		t.Fatal("live fields in the file", err)
	}
}

// TestSlowFollower blocks one follower: appends and another follower go on, and it gets a gap.
func TestSlowFollower(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{MaxEvents: 500})
	hold, first := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var slow []got
	var once sync.Once
	all := make(chan struct{})
	stop := following(t, l, "", func(id, kind string, data []byte) error {
		once.Do(func() { close(first) })
		<-hold
		mu.Lock()
		defer mu.Unlock()
		slow = append(slow, toGot(t, id, kind, data))
		if slow[len(slow)-1].String() == "2000" {
			close(all)
		}
		return nil
	})
	put(t, l, 1, 1)
	<-first
	put(t, l, 2, 1990)
	id := l.Last()
	put(t, l, 1991, 2000)
	check(t, resume(t, l, id), seqRange(1991, 2000)) // another reader is not delayed
	close(hold)
	<-all
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for i, g := range slow {
		if g.kind == KindGap {
			check(t, slow[:i], seqRange(1, i))
			check(t, slow[i:i+2], "gap "+slow[i+1].String())
			if n := len(slow[i+1:]); n != 499 && n != 500 {
				t.Fatalf("%d events after the gap", n)
			}
			return
		}
	}
	t.Fatal("no gap")
}

// TestManyFollowers checks order and completeness under compaction and concurrent appends.
func TestManyFollowers(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{MaxEvents: 20000})
	start := l.Last()
	const writers, each = 4, 1000
	pad := strings.Repeat("x", 1000)
	var wg sync.WaitGroup
	for f := range 3 {
		wg.Go(func() {
			last, n := uint64(0), 0
			perWriter := make([]float64, writers)
			err := l.Follow(t.Context(), start, nil, func(id, kind string, data []byte) error {
				g := toGot(t, id, kind, data)
				_, seq, _ := parseID(id)
				if kind == KindGap || seq != last+1 {
					return fmt.Errorf("follower %d: %s after %d", f, g, last)
				}
				w := int(g.data["w"].(float64))
				if i := g.data["i"].(float64); i != perWriter[w] {
					return fmt.Errorf("follower %d: writer %d: %v after %v", f, w, i, perWriter[w])
				}
				perWriter[w]++
				last = seq
				if n++; n == writers*each {
					return errEnough
				}
				return nil
			})
			if err != errEnough {
				t.Error(err)
			}
		})
	}
	for w := range writers {
		wg.Go(func() {
			for i := 0; i < each; i += 2 {
				err := l.Append(Entry{Kind: "a", At: t0, Body: map[string]any{"w": w, "i": i, "pad": pad}},
					Entry{Kind: "a", At: t0, Body: map[string]any{"w": w, "i": i + 1}})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestKill kills a writing process again and again: no event that Append has returned for is lost.
func TestKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.log")
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childPath+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var text []byte
		buf := make([]byte, 4096)
		for len(text) < (300+200*round)*20 {
			n, err := out.Read(buf)
			if err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			text = append(text, buf[:n]...)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(out)
		cmd.Wait()
		ids := strings.Fields(string(append(text, rest...)))
		if !bytes.HasSuffix(append(text, rest...), []byte("\n")) {
			ids = ids[:len(ids)-1]
		}
		l := open(t, path, Options{MaxEvents: 300})
		all := resume(t, l, ids[len(ids)-101])
		if len(all) < 100 || l.Mark(1) < uint64(len(ids)) {
			t.Fatalf("round %d: %d events, mark %d of %d", round, len(all), l.Mark(1), len(ids))
		}
		for i, g := range all[:100] {
			if g.id != ids[len(ids)-100+i] {
				t.Fatalf("round %d: %s instead of %s", round, g.id, ids[len(ids)-100+i])
			}
		}
		l.Close()
	}
}

type hot struct {
	eventID, scanner, key string
	quantity              int
}

func (h *hot) AppendJSONFields(b []byte) []byte {
	b = append(append(append(b, `"event_id":"`...), h.eventID...), `","scanner_id":"`...)
	b = append(append(append(b, h.scanner...), `","key":"`...), h.key...)
	return strconv.AppendInt(append(b, `","quantity":`...), int64(h.quantity), 10)
}

func BenchmarkAppend(b *testing.B) {
	body := &hot{"019aceee-0000-7000-8000-000000000001", "SCN-04", "scan:idem:" + strings.Repeat("f", 64), 1}
	for _, n := range []int{1, 64} {
		for _, followers := range []int{0, 1} {
			b.Run(fmt.Sprintf("batch=%d/followers=%d", n, followers), func(b *testing.B) {
				host, err := window.Host()
				if err != nil {
					b.Fatal(err)
				}
				clock := window.NewClock(host, window.Mark{}, window.ClockOptions{})
				now := clock.Now().T
				l, err := Open(filepath.Join(b.TempDir(), "events.log"), Options{Now: func() window.UTC { return clock.Now().T }})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				ctx, cancel := context.WithCancel(context.Background())
				var wg sync.WaitGroup
				for range followers {
					wg.Go(func() { l.Follow(ctx, "", nil, func(string, string, []byte) error { return nil }) })
				}
				entries := make([]Entry, n)
				for i := range entries {
					entries[i] = Entry{Kind: "accepted", At: now, Body: body, Stream: 1, Mark: 1}
				}
				b.ReportAllocs()
				for i := 0; i < b.N; i += n {
					if err := l.Append(entries...); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				cancel()
				wg.Wait()
			})
		}
	}
}

// What waits for a follower may be a patient's: no verb prints it.
func TestTheLogDoesNotPrint(t *testing.T) {
	const plain = "PHI1234567"
	l := open(t, filepath.Join(t.TempDir(), "events.log"), Options{})
	l.mu.Lock()
	l.followers = append(l.followers, &follower{wake: make(chan struct{}, 1)}) // a slow one
	l.mu.Unlock()
	if err := l.Append(Entry{Kind: "label", At: t0, Live: map[string]any{"rx": plain}}); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.fresh) != 1 || !bytes.Contains(l.fresh[0].data, []byte(plain)) {
		t.Fatalf("%d events wait", len(l.fresh))
	}
	values := []any{l, l.fresh, l.fresh[0], &l.fresh[0], delivery{data: l.fresh[0].data}, []delivery{{data: l.fresh[0].data}}, record{live: l.fresh[0].data}}
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			out := fmt.Sprintf(verb, v)
			for _, form := range []string{plain, fmt.Sprintf("%x", plain), strings.Trim(fmt.Sprint([]byte(plain)), "[]"), "0x50, 0x48, 0x49"} {
				if strings.Contains(out, form) {
					t.Errorf("%s of %T: %s", verb, v, out)
				}
			}
		}
	}
}
