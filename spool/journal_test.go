package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/window"
)

func operation(n byte, subject string) Operation {
	return Operation{ID: idem.EventID{n}, Kind: "k", Subject: subject, Body: json.RawMessage(fmt.Sprintf(`{"secret":%d}`, n)), At: 1000}
}

func any1(*Operation) bool { return true }

func ids(ops []Operation) (out []byte) {
	for _, op := range ops {
		out = append(out, op.ID[0])
	}
	return out
}

// What happened before an operation was asked for comes before it, though it is queued behind it.
func TestJournalEarly(t *testing.T) {
	r := newRig(t)
	ops := []Operation{operation(1, "a"), operation(2, "b"), operation(3, "a"), operation(4, "a")}
	for i := range ops {
		ops[i].At = window.UTC(1000 * (i + 1))
	}
	early := operation(5, "a")
	early.At, early.Early = 2500, true
	late := operation(6, "a")
	late.At, late.Early = 9000, true
	if err := r.spool.Journal().Add(append(ops, early, late)...); err != nil {
		t.Fatal(err)
	}
	r.reopen(true)
	var got []byte
	j := r.spool.Journal()
	for j.Pending() > 0 {
		for _, op := range j.Heads(9, any1) {
			if op.Subject == "a" {
				got = append(got, op.ID[0])
			}
			if err := j.Settle(Settlement{Done: []idem.EventID{op.ID}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := []byte{1, 5, 3, 4, 6}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Operations wait in their order, one of a subject at a time, over restarts, until they are done or a conflict.
func TestJournalKeepsOrder(t *testing.T) {
	r := newRig(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	j := r.spool.Journal()
	changed := j.Changed()
	must(j.Add(operation(1, "a"), operation(2, "a"), operation(3, "b"), operation(4, "c")))
	<-changed
	must(j.Add(operation(2, "a"))) // waits already
	check := func(want ...byte) {
		t.Helper()
		if got := ids(r.spool.Journal().Heads(9, any1)); !slices.Equal(got, want) {
			t.Errorf("first of their subjects: %v, want %v", got, want)
		}
	}
	check(1, 3, 4)
	if got := ids(j.Heads(2, any1)); !slices.Equal(got, []byte{1, 3}) {
		t.Errorf("two of them: %v", got)
	}
	if got := ids(j.Heads(9, func(op *Operation) bool { return op.ID[0] != 1 })); !slices.Equal(got, []byte{3, 4}) {
		t.Errorf("without the first one: %v; what is behind it must not overtake it", got)
	}
	r.reopen(true)
	check(1, 3, 4)
	j = r.spool.Journal()
	next := operation(1, "a")
	next.Kind = "second step"
	must(j.Settle(Settlement{Next: []*Operation{&next}, Done: []idem.EventID{{3}},
		Conflicts: []Conflict{{Operation: operation(4, "c"), Current: json.RawMessage(`{}`), Detail: "no", Found: 2000}}}))
	check(1)
	if j.Waits("b") || !j.Waits("a") || j.Waits("c") || j.Pending() != 2 {
		t.Errorf("%d wait", j.Pending())
	}
	r.reopen(true)
	check(1)
	j = r.spool.Journal()
	if op := j.Heads(1, any1)[0]; op.Kind != "second step" || string(op.Body) != `{"secret":1}` || op.At != 1000 {
		t.Errorf("%+v", op)
	}
	cs := j.Conflicts()
	if len(cs) != 1 || cs[0].ID[0] != 4 || string(cs[0].Current) != "{}" || cs[0].Detail != "no" || cs[0].Found != 2000 || cs[0].Subject != "c" {
		t.Fatalf("conflicts %+v", cs)
	}
	must(j.Settle(Settlement{Done: []idem.EventID{{1}}}))
	check(2)
	if gone, err := j.Resolve([]idem.EventID{{4}, {9}}); err != nil || len(gone) != 1 {
		t.Errorf("resolved %v, %v", gone, err)
	}
	must(j.Settle(Settlement{Done: []idem.EventID{{2}}}))
	r.reopen(true)
	check()
	if j := r.spool.Journal(); len(j.Conflicts()) != 0 || j.Pending() != 0 || j.Waits("a") {
		t.Error("something is left")
	}
}

func TestJournalHasABound(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	many := make([]Operation, MostOperations)
	for i := range many {
		many[i] = operation(byte(i), fmt.Sprint(i))
		many[i].ID = idem.EventID{byte(i), byte(i >> 8), 1}
	}
	if err := j.Add(many...); err != nil {
		t.Fatal(err)
	}
	one := operation(200, "x")
	if err := j.Add(one); !errors.Is(err, ErrJournalFull) || j.Waits("x") {
		t.Fatalf("one more: %v", err)
	}
	if err := j.AddAnyway(one); err != nil || !j.Waits("x") {
		t.Fatal(err)
	}
	r.reopen(true)
	if n := r.spool.Journal().Pending(); n != MostOperations+1 {
		t.Errorf("%d wait", n)
	}
}

// What waits is listed in order; the oldest need not be the first.
func TestJournalListsWhatWaits(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	if j.Oldest() != 0 || len(j.Waiting()) != 0 {
		t.Errorf("of none the oldest is %v, %d wait", j.Oldest(), len(j.Waiting()))
	}
	a, b, c := operation(1, "a"), operation(2, "b"), operation(3, "a")
	a.At, b.At, c.At = 20, 10, 30
	if err := j.Add(a, b, c); err != nil {
		t.Fatal(err)
	}
	r.reopen(true)
	j = r.spool.Journal()
	if got := ids(j.Waiting()); j.Oldest() != 10 || !slices.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("%v wait, the oldest since %v", got, j.Oldest())
	}
}

// A conflict takes the place of an older one of the same operation. The list has a bound, and what it has dropped is
// known until it is empty, over a start and a file written anew too.
func TestJournalConflictsHaveABound(t *testing.T) {
	r := newRig(t)
	conflict := func(n int) Conflict {
		op := operation(byte(n), fmt.Sprint(n))
		op.ID = idem.EventID{byte(n), byte(n >> 8), 1}
		return Conflict{Operation: op, Detail: "d", Found: window.UTC(n)}
	}
	settle := func(c ...Conflict) {
		t.Helper()
		if err := r.spool.Journal().Settle(Settlement{Conflicts: c}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, kept, dropped int) {
		t.Helper()
		for range 2 {
			if k, d := r.spool.Journal().ConflictCounts(); k != kept || d != dropped {
				t.Fatalf("%s: %d kept, %d dropped, want %d and %d", what, k, d, kept, dropped)
			}
			r.reopen(true)
		}
	}
	one := conflict(1)
	settle(one)
	settle(conflict(2))
	one.Detail = "found again"
	settle(one)
	if c := r.spool.Journal().Conflicts(); len(c) != 2 || c[1].ID != one.ID || c[1].Detail != one.Detail {
		t.Fatalf("one of two found again: %+v", c)
	}
	settle(one, one)
	expect("one found again and again", 2, 0)
	var many []Conflict
	for i := range MostConflicts {
		many = append(many, conflict(i+3))
	}
	settle(many[:MostConflicts-2]...)
	expect("a full list", MostConflicts, 0)
	settle(many[MostConflicts-2:]...)
	expect("two too many", MostConflicts, 2)
	j := r.spool.Journal()
	j.mu.Lock()
	err := j.rewrite()
	j.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	settle(conflict(MostConflicts + 3))
	expect("one more, behind a file written anew", MostConflicts, 3)
	kept := r.spool.Journal().Conflicts()
	if kept[0].ID != many[1].ID {
		t.Errorf("the first that is left is of %v", kept[0].Found)
	}
	var all []idem.EventID
	for _, c := range kept {
		all = append(all, c.ID)
	}
	resolve := func(ids []idem.EventID) {
		t.Helper()
		if _, err := r.spool.Journal().Resolve(ids); err != nil {
			t.Fatal(err)
		}
	}
	resolve(all[1:])
	expect("all but one are seen to", 1, 3)
	resolve(all[:1])
	expect("all are seen to", 0, 0)
}

// The file is written anew when most of it is over, and nothing in it is in clear.
func TestJournalStaysSmall(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	stays := operation(1, "stays")
	if err := j.Add(stays); err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	for i := range 3000 {
		op := operation(2, "goes")
		op.ID[1], op.ID[2] = byte(i), byte(i>>8)
		op.Body = json.RawMessage(`"` + strings.Repeat("x", 200) + `"`)
		if err := j.Add(op); err != nil {
			t.Fatal(err)
		}
		if err := j.Settle(Settlement{Done: []idem.EventID{op.ID}}); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(j.path); err == nil {
			most = max(most, fi.Size())
		}
	}
	if most > 2*compactAt {
		t.Errorf("the journal grew to %d bytes", most)
	}
	b, err := os.ReadFile(j.path)
	if err != nil || strings.Contains(string(b), "secret") || strings.Contains(string(b), "stays") {
		t.Errorf("in clear: %v", err)
	}
	r.reopen(true)
	if got := ids(r.spool.Journal().Heads(9, any1)); !slices.Equal(got, []byte{1}) {
		t.Errorf("%v wait", got)
	}
}

// Whatever is done to the file is told, and what can be read of it stays.
func TestJournalDamage(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	for n := byte(1); n <= 4; n++ {
		if err := j.Add(operation(n, fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(r.spool.dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(string(whole), "\n")+"\n", "\n")
	lines = lines[:len(lines)-1]
	if len(lines) != 5 {
		t.Fatalf("%d lines", len(lines))
	}
	const atLeastOne = -1
	without := func(n int) string { return strings.Join(append(slices.Clone(lines[:n]), lines[n+1:]...), "") }
	cases := map[string]struct {
		content string // "" is no file
		lost    int64
		left    []byte
	}{
		"whole":            {string(whole), 0, []byte{1, 2, 3, 4}},
		"first line gone":  {without(0), 1, []byte{1, 2, 3, 4}},
		"third line gone":  {without(2), 1, []byte{1, 3, 4}},
		"last line gone":   {without(4), 1, []byte{1, 2, 3}},
		"all but two gone": {lines[0] + lines[3], 3, []byte{3}},
		"all gone":         {"\n", 5, nil},
		"no file":          {"", 5, nil},
		"garbage between":  {lines[0] + "garbage\n" + strings.Join(lines[1:], ""), 1, []byte{1, 2, 3, 4}},
		"garbage behind":   {string(whole) + "1 2 3", 0, []byte{1, 2, 3, 4}}, // as a torn line
		"two behind":       {string(whole) + "1 2 3\n1 2 3\n", 2, []byte{1, 2, 3, 4}},
		"cut":              {string(whole[:len(whole)-1]), 1, []byte{1, 2, 3}},
		"twice":            {string(whole) + lines[4], 0, []byte{1, 2, 3, 4}},
	}
	for i := range whole {
		if whole[i] != '\n' && whole[i] != ' ' && i%11 != 0 {
			continue
		}
		b := slices.Clone(whole)
		b[i] ^= 1 << (i % 7)
		n := strings.Count(string(whole[:i]), "\n")
		left := slices.DeleteFunc([]byte{1, 2, 3, 4}, func(k byte) bool {
			return k == byte(n) || k == byte(n+1) && whole[i] == '\n' // two lines in one
		})
		cases[fmt.Sprintf("bit at %d", i)] = struct {
			content string
			lost    int64
			left    []byte
		}{string(b), atLeastOne, left}
	}
	for name, c := range cases {
		dir := fastDir(t)
		if err := copyFolder(dir, r.spool.dir); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, journalName)
		if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if c.content == "" {
			os.Remove(path)
		}
		o := r.opts
		s, err := Open(dir, o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Begin(r.clock); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lost := int64(0)
		for _, h := range s.takeHealings() {
			if h.File == journalName {
				lost = h.Operations
				if kept, err := os.ReadFile(filepath.Join(dir, h.Aside)); c.content != "" && (err != nil || string(kept) != c.content) {
					t.Errorf("%s: what was there is not kept aside: %v", name, err)
				}
			}
		}
		if got := ids(s.journal.Heads(9, any1)); lost != c.lost && (c.lost != atLeastOne || lost == 0) || !slices.Equal(got, c.left) {
			t.Errorf("%s: %d lost and %v left, want %d and %v", name, lost, got, c.lost, c.left)
		}
		if err := s.journal.Add(operation(9, "9")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Close(true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s, err = Open(dir, o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if hs := s.takeHealings(); len(hs) != 0 {
			t.Errorf("%s: healed again: %+v", name, hs)
		}
		if got := ids(s.journal.Heads(9, any1)); !slices.Equal(got, append(slices.Clone(c.left), 9)) {
			t.Errorf("%s: afterwards %v", name, got)
		}
		s.Close(true)
	}
}

// With a wrong key nothing is changed; with a new one the old one may go.
func TestJournalKeys(t *testing.T) {
	r := newRig(t)
	if err := r.spool.Journal().Add(operation(1, "a")); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	ring := func(keys ...string) *KeyRing {
		path := filepath.Join(fastDir(t), "key")
		if err := os.WriteFile(path, []byte(strings.Join(keys, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := LoadKeyRing(path, false)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	other, old := strings.Repeat("ab", 32), fmt.Sprintf("%x", r.opts.Keys.keys[r.opts.Keys.current])
	whole, err := os.ReadFile(filepath.Join(r.spool.dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	s := &Spool{dir: r.spool.dir, opts: r.opts}
	s.opts.Keys = ring(other)
	var wrong *WrongKeyError
	if err := s.openJournal(0); !errors.As(err, &wrong) || wrong.KeyID != r.opts.Keys.current {
		t.Errorf("another key: %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(r.spool.dir, journalName)); err != nil || string(b) != string(whole) {
		t.Errorf("it was touched: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "keys", "spool.key"), []byte(other+"\n"+old+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open() // also if nothing is added
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	s = &Spool{dir: r.spool.dir, opts: r.opts}
	s.opts.Keys = ring(other)
	if err := s.openJournal(0); err != nil || s.journal.Pending() != 1 {
		t.Errorf("without the old key: %v, %d operations", err, s.journal.Pending())
	}
}

// A write that fails, whether or not it reached the file, leaves neither too much nor too little.
func TestJournalWriteFails(t *testing.T) {
	for _, step := range []DiskStep{DiskCommit, DiskReplace} {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprint(step, done), func(t *testing.T) {
				var broken error
				r := newRig(t, func(o *Options) {
					o.Disk = func(s DiskStep, path string, do func() error) error {
						if broken == nil || s != step || filepath.Base(path) != journalName {
							return do()
						}
						if done {
							do()
						}
						return broken
					}
				})
				j := r.spool.Journal()
				if err := j.Add(operation(1, "a")); err != nil {
					t.Fatal(err)
				}
				j.anew = step == DiskReplace
				before, err := os.Stat(j.path)
				if err != nil {
					t.Fatal(err)
				}
				broken = errors.New("no disk")
				if err := j.Add(operation(2, "b")); !errors.Is(err, broken) || j.Waits("b") {
					t.Fatalf("a failed write: %v", err)
				}
				gone := Conflict{Operation: operation(1, "a")}
				for _, st := range []Settlement{{Done: []idem.EventID{{1}}}, {Conflicts: []Conflict{gone}}} {
					j.anew = j.anew || step == DiskReplace
					if err := j.Settle(st); !errors.Is(err, broken) || !j.Waits("a") || len(j.Conflicts()) > 0 {
						t.Fatalf("a failed settlement: %v, conflicts %v", err, j.Conflicts())
					}
				}
				broken = nil
				if err := j.Add(operation(3, "c")); err != nil {
					t.Fatal(err)
				}
				// Nobody knows what a file holds whose sync has failed: another one takes its place.
				if after, err := os.Stat(j.path); err != nil || os.SameFile(before, after) {
					t.Errorf("the file goes on behind a failed write: %v", err)
				}
				want := ids(j.Heads(9, any1))
				r.reopen(true)
				if got := ids(r.spool.Journal().Heads(9, any1)); !slices.Equal(got, want) || len(r.spool.takeHealings()) != 0 {
					t.Errorf("after a restart %v wait, before it %v", got, want)
				}
			})
		}
	}
}

// A journal that is only looked at stays as it is.
func TestJournalReadOnly(t *testing.T) {
	r := newRig(t)
	if err := r.spool.Journal().Add(operation(1, "a")); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	before := r.snapshot()
	o := r.opts
	o.ReadOnly = true
	s, err := Open(r.spool.dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(true)
	if got := ids(s.Journal().Heads(9, any1)); !slices.Equal(got, []byte{1}) {
		t.Errorf("%v", got)
	}
	if err := s.Journal().Add(operation(2, "b")); err == nil {
		t.Error("something was added")
	}
	r.sameFiles(before)
}

// A file that cannot be written anew, whether or not the new one came into its place, loses nothing. On a full disk
// the old one goes on.
func TestJournalCompactionFails(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC} {
		for _, done := range []bool{false, true} {
			for _, killed := range []bool{false, true} {
				t.Run(fmt.Sprint(fault, done, killed), func(t *testing.T) {
					broken, tries := false, 0
					r := newRig(t, func(o *Options) {
						o.Disk = func(s DiskStep, path string, do func() error) error {
							if !broken || s != DiskReplace || filepath.Base(path) != journalName {
								return do()
							}
							tries++
							if done {
								if err := do(); err != nil {
									return err
								}
							}
							return fault
						}
					})
					j := r.spool.Journal()
					if err := j.Add(operation(1, "a"), operation(2, "b")); err != nil {
						t.Fatal(err)
					}
					if err := j.Settle(Settlement{Done: []idem.EventID{{2}}}); err != nil {
						t.Fatal(err)
					}
					want := []byte{1}
					j.spare, j.least, broken = 0, 1, true
					for n := byte(3); n < 6; n++ {
						err := j.Add(operation(n, fmt.Sprint(n)))
						if goesOn := fault == syscall.ENOSPC && !done; goesOn && err != nil || !goesOn && !errors.Is(err, fault) {
							t.Fatalf("while the file cannot be written anew: %v", err)
						}
						if err == nil {
							want = append(want, n)
						}
					}
					if len(want) > 1 && tries != 1 {
						t.Errorf("it is tried again %d times, though the file has hardly grown", tries)
					}
					broken = false
					if !killed {
						if err := j.Add(operation(9, "9")); err != nil {
							t.Fatal(err)
						}
						want = append(want, 9)
						if err := j.verify(); err != nil {
							t.Error(err)
						}
					}
					r.reopen(false)
					if got := ids(r.spool.Journal().Heads(9, any1)); !slices.Equal(got, want) || len(r.spool.takeHealings()) != 0 {
						t.Errorf("after a restart %v wait, want %v", got, want)
					}
				})
			}
		}
	}
}

// The mark tells of a file that is gone, cut off or older, also where runs have passed without a line. Without it only
// what is missing between lines is seen; so after a power cut, which leaves the mark behind.
func TestJournalMark(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	var sizes []int64
	for n := byte(1); n <= 6; n++ {
		if err := j.Add(operation(n, fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, j.size)
	}
	r.fill(3, "A")
	for range 3 { // nothing of the epoch that wrote the lines is left
		r.drain()
		r.os.pass(time.Hour)
		r.reopen(true)
		r.spool.Prune()
		if err := r.spool.Maintain(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(r.path(journalName))
	if err != nil {
		t.Fatal(err)
	}
	for _, marked := range []bool{true, false} {
		for name, c := range map[string]struct {
			content        []byte
			lost, unmarked int64 // told of, with the mark and without
			waiting        int
		}{
			"whole":               {whole, 0, 0, 6},
			"gone":                {nil, 7, 0, 0},
			"empty":               {[]byte{}, 7, 0, 0},
			"older":               {whole[:sizes[1]], 4, 0, 2},
			"cut off in the last": {whole[:sizes[5]-5], 1, 0, 5},
			"cut off before it":   {whole[:sizes[4]-5], 2, 0, 4},
			"a line missing":      {slices.Concat(whole[:sizes[1]], whole[sizes[2]:]), 1, 1, 5},
		} {
			dir := fastDir(t)
			if err := copyFolder(dir, r.spool.dir); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, journalName)
			err := os.WriteFile(path, c.content, 0o600)
			if c.content == nil {
				err = os.Remove(path)
			}
			if !marked {
				err = errors.Join(err, os.Remove(filepath.Join(dir, markName)))
			}
			if err != nil {
				t.Fatal(err)
			}
			want := c.lost
			if !marked {
				want = c.unmarked
			}
			s, err := Open(dir, r.opts)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			told := int64(0)
			for _, h := range s.takeHealings() {
				told += h.Operations
			}
			if told != want || s.Journal().Pending() != c.waiting {
				t.Errorf("%s, with the mark %v: %d lines are told of, want %d; %d wait", name, marked, told, want, s.Journal().Pending())
			}
			s.closeFiles()
		}
	}
}

// With all that may wait, nothing takes time by the product of that and what is done. The bounds are far from what it
// takes, for a machine that is busy with others and the race detector; what went by the product took more.
func TestJournalIsQuick(t *testing.T) {
	for _, subjects := range []int{MostOperations, 1} {
		r := newRig(t)
		j := r.spool.Journal()
		many := make([]Operation, MostOperations)
		for i := range many {
			many[i] = numbered(0, 0, i, fmt.Sprint(i%subjects))
		}
		if err := j.Add(many...); err != nil {
			t.Fatal(err)
		}
		at := 0 // of many: what is before it is settled
		best := func(what string, bound time.Duration, do func() Settlement) {
			best := time.Hour
			for range 5 {
				w := testenv.NewWatch(t)
				if err := j.Settle(do()); err != nil {
					t.Fatal(err)
				}
				best = min(best, w.Stop().Own(bound))
			}
			t.Logf("%d subjects: %s takes %v, without what the machine was late", subjects, what, best)
			if best > bound {
				t.Errorf("with %d subjects %s takes %v", subjects, what, best)
			}
		}
		best("a round of 64", 50*time.Millisecond, func() (st Settlement) {
			j.Heads(64, func(*Operation) bool { return false })
			for i, op := range j.Heads(64, any1) {
				if i%2 == 0 {
					st.Done = append(st.Done, op.ID)
				} else {
					st.Next = append(st.Next, &op)
				}
			}
			return st
		})
		best("a step of 5000", 400*time.Millisecond, func() (st Settlement) {
			for i := range 5000 {
				st.Next = append(st.Next, &many[40_000+i])
			}
			return st
		})
		best("one after the other, 400", 400*time.Millisecond, func() (st Settlement) {
			for range 400 {
				at++
				if err := j.Settle(Settlement{Done: []idem.EventID{many[10_000+at].ID}}); err != nil {
					t.Fatal(err)
				}
			}
			return Settlement{Done: []idem.EventID{many[30_000+at].ID}}
		})
	}
}

// What a journal that is closed is asked for does not touch the file, which may have another user.
func TestJournalClosed(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	if err := j.Add(operation(1, "a")); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
	before := r.snapshot()
	if err := j.Add(operation(2, "b")); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := j.Settle(Settlement{Done: []idem.EventID{{1}}}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	r.sameFiles(before)
}

// What is handed in and out is a copy: nobody changes what waits.
func TestJournalCopies(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	ops := []Operation{operation(1, "a"), operation(2, "b")}
	if err := j.Add(ops...); err != nil {
		t.Fatal(err)
	}
	ops[0].Kind, ops[1].Kind = "changed", "changed"
	next := j.Heads(1, any1)[0]
	next.Kind, next.Subject = "next", "other" // it stays with its subject
	if err := j.Settle(Settlement{Next: []*Operation{&next}}); err != nil {
		t.Fatal(err)
	}
	next.Kind = "changed"
	for range 2 {
		j = r.spool.Journal()
		if hs := j.Heads(9, any1); len(hs) != 2 || hs[0].Kind != "next" || hs[0].Subject != "a" || hs[1].Kind != "k" || j.Waits("other") {
			t.Errorf("%+v", hs)
		}
		r.reopen(true)
	}
	// A body that is not JSON is refused, and in nobody's way.
	bad := operation(3, "c")
	bad.Body = json.RawMessage("{")
	if err := r.spool.Journal().Add(bad); err == nil || r.spool.Journal().Waits("c") {
		t.Errorf("a body that is none: %v", err)
	}
	if err := r.spool.Journal().Add(operation(4, "d")); err != nil {
		t.Error(err)
	}
}

// Lines that a crash has torn, at any byte, are not told of, and nothing is left of them.
func TestJournalTornLine(t *testing.T) {
	r := newRig(t)
	j := r.spool.Journal()
	if err := j.Add(operation(1, "a")); err != nil {
		t.Fatal(err)
	}
	size := j.size
	mark, err := os.ReadFile(r.path(markName))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Add(operation(2, "b")); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	r.kill()
	for cut := size; cut <= int64(len(whole)); cut++ {
		if err := errors.Join(os.WriteFile(j.path, whole[:cut], 0o600), os.WriteFile(r.path(markName), mark, 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := Open(r.spool.dir, r.opts)
		if err != nil {
			t.Fatal(err)
		}
		want := 1
		if cut == int64(len(whole)) {
			want = 2
		}
		if hs := s.takeHealings(); len(hs) > 0 || s.journal.Pending() != want {
			t.Errorf("cut at %d: %d wait, healings %+v", cut, s.journal.Pending(), hs)
		}
		if b, err := os.ReadFile(j.path); err != nil || b[len(b)-1] != '\n' {
			t.Errorf("cut at %d: the torn line stays: %v", cut, err)
		}
		s.closeFiles()
	}
	r.open()
}

// TestJournalFullDisk runs itself on a small file system of its own.
func TestJournalFullDisk(t *testing.T) {
	if dir := os.Getenv("SPOOL_SMALL_JOURNAL"); dir != "" {
		journalOnSmallDisk(t, dir)
		return
	}
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestJournalFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), "SPOOL_SMALL_JOURNAL="+t.TempDir())
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "the disk was full") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func journalOnSmallDisk(t *testing.T, dir string) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=6m"); err != nil {
		t.Fatal(err)
	}
	r := rigIn(t, dir)
	j := r.spool.Journal()
	held, n := journalModel{}, 0
	add := func() error {
		n++
		op := numbered(0, 0, n, fmt.Sprint(n%3))
		err := r.spool.Journal().Add(op)
		if err == nil {
			held.apply([]string{"add=" + operationNumber(op.ID)})
		}
		return err
	}
	large := operation(1, "large")
	large.Body = json.RawMessage(`"` + strings.Repeat("x", 50_000) + `"`)
	settle := func() error {
		op := r.spool.Journal().Heads(1, any1)[0]
		err := r.spool.Journal().Settle(Settlement{Done: []idem.EventID{op.ID}})
		if err == nil {
			held.apply([]string{"done=" + operationNumber(op.ID)})
		}
		return err
	}
	check := func(what string) {
		t.Helper()
		if now, err := modelOf(r.spool.Journal()); err != nil || !maps.Equal(now, held) {
			t.Fatalf("%s it holds %v, want %v; %v", what, now, held, err)
		}
		if err := r.spool.Journal().verify(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if fi, err := os.Stat(r.spool.Journal().path); err != nil || fi.Size() != r.spool.Journal().size {
			t.Fatalf("%s the file has %d bytes, not %d; %v", what, fi.Size(), r.spool.Journal().size, err)
		}
		again := newJournal(r.spool)
		if _, _, err := again.load(0); err != nil {
			t.Fatal(err)
		}
		if now, err := modelOf(again); err != nil || !maps.Equal(now, held) {
			t.Fatalf("%s there is %v in the file, want %v; %v", what, now, held, err)
		}
	}
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	fill := func(left int64) {
		t.Helper()
		fi, err := ballast.Stat()
		size := fi.Size()
		for err == nil {
			var k int
			k, err = ballast.WriteAt(make([]byte, 4096), size)
			size += int64(k)
		}
		if err = ballast.Truncate(size - left); err != nil || left == 0 && !IsNoSpace(writeAny(dir)) {
			t.Fatalf("the disk is not full: %v", err)
		}
		t.Log("the disk was full")
	}
	for range 1500 {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := settle(); err != nil {
			t.Fatal(err)
		}
	}
	// Whoever meets the full disk first is refused, and leaves nothing half done.
	fill(0)
	if err := j.Add(large); !IsNoSpace(err) || errors.Is(err, ErrDiskFull) {
		t.Fatalf("on a full disk: %v", err)
	}
	for range 100 {
		if err = add(); err != nil {
			break
		}
	}
	if !IsNoSpace(err) {
		t.Fatalf("a hundred lines on a full disk: %v", err)
	}
	check("on a full disk")
	r.reopen(false) // what is there can be opened, too, and the reserve is given up
	check("opened on a full disk")
	if err := add(); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("what is left is for settlements: %v", err)
	}
	if err := settle(); err != nil {
		t.Fatal(err)
	}
	// There is room for a line, but none for another file: that one grows on.
	j = r.spool.Journal()
	fill(64 << 10)
	before, err := os.Stat(j.path)
	if err != nil {
		t.Fatal(err)
	}
	j.spare, j.least = 0, 1
	for range 3 {
		if err := settle(); err != nil {
			t.Fatalf("a settlement on a full disk: %v", err)
		}
	}
	after, err := os.Stat(j.path)
	if err != nil || !os.SameFile(before, after) || after.Size() <= before.Size() {
		t.Fatalf("it was written anew on a full disk? %v", err)
	}
	check("grown on a full disk")
	// A damaged one does not keep a full disk's spool from starting.
	r.kill()
	b, err := os.ReadFile(j.path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-20] ^= 1
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	fill(48 << 10) // a segment needs some
	for range 2 {  // told until it can be healed
		r.open()
		if hs := r.spool.takeHealings(); len(hs) != 1 || hs[0].Operations != 1 {
			t.Fatalf("%+v", hs)
		}
		r.kill()
	}
	if err := ballast.Truncate(0); err != nil {
		t.Fatal(err)
	}
	r.open()
	if hs := r.spool.takeHealings(); len(hs) != 1 {
		t.Fatalf("%+v", hs)
	}
	r.reopen(false)
	if hs := r.spool.takeHealings(); len(hs) != 0 {
		t.Fatalf("%+v", hs)
	}
	if held, err = modelOf(r.spool.Journal()); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		r.os.pass(4 * time.Second)
		if err := r.spool.Maintain(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.spool.Journal().Add(large); err != nil {
		t.Fatal(err)
	}
	if err := r.spool.Journal().Settle(Settlement{Done: []idem.EventID{large.ID}}); err != nil {
		t.Fatal(err)
	}
	r.reopen(true)
	check("with room again")
	if err := r.spool.Close(true); err != nil {
		t.Fatal(err)
	}
}

// The order does not change when the file is written anew, whatever has become of the times.
func TestJournalEarlyStays(t *testing.T) {
	r := newRig(t)
	early := operation(2, "a")
	early.At, early.Early = 2000, true
	if err := r.spool.Journal().Add(operation(1, "a"), early, operation(3, "a")); err != nil {
		t.Fatal(err)
	}
	next := operation(1, "a")
	next.At = 3000
	if err := r.spool.Journal().Settle(Settlement{Next: []*Operation{&next}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var got []byte
		for _, op := range r.spool.Journal().all().Add {
			got = append(got, op.ID[0])
		}
		if !slices.Equal(got, []byte{1, 2, 3}) {
			t.Errorf("%v", got)
		}
		r.spool.Journal().anew = true
		if err := r.spool.Journal().ready(); err != nil {
			t.Fatal(err)
		}
		r.reopen(true)
	}
}

// What a killed run has written may not be on disk yet: nobody relies on it before it is.
func TestWhatAKilledRunWroteIsSynced(t *testing.T) {
	var steps []string
	r := newRig(t, func(o *Options) {
		o.Disk = func(step DiskStep, path string, do func() error) error {
			if step == DiskCommit {
				steps = append(steps, filepath.Base(path))
			}
			return do()
		}
	})
	if err := r.spool.Journal().Add(operation(1, "a")); err != nil {
		t.Fatal(err)
	}
	for _, clean := range []bool{false, true} {
		if steps = nil; clean {
			if err := r.spool.Close(true); err != nil {
				t.Fatal(err)
			}
			steps = nil
		} else {
			r.kill()
		}
		s, err := Open(r.spool.dir, r.opts)
		if err != nil {
			t.Fatal(err)
		}
		if synced := slices.Contains(steps, journalName); synced == clean {
			t.Errorf("after a stop that was clean (%v): synced %v, steps %v", clean, synced, steps)
		}
		s.closeFiles()
		r.open()
	}
}
