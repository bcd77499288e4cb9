package spool

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// killRounds is how often a child is killed. make test has the greater number too, without the race detector.
func killRounds() int {
	if testenv.Race {
		return 10
	}
	return 30
}

// TestKill runs itself as a child that commits under load, and kills it at random moments: what was told is
// there afterwards, once, in order, and everything that left was final.
func TestKill(t *testing.T) {
	if dir := os.Getenv("SPOOL_KILL_DIR"); dir != "" {
		commitUntilKilled(t, dir)
		return
	}
	dir := fastDir(t)
	var told []string // by sequence number, from 1
	var committed int64
	few := func() bool { return len(told) < 30*killRounds() || committed == 0 }
	round := 0
	for ; round < killRounds() || few() && round < 10*killRounds(); round++ { // a busy machine gets less done in each
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "SPOOL_KILL_DIR="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var kill *time.Timer
		var last string
		soon := func(d time.Duration) {
			kill = time.AfterFunc(rand.N(d), func() { cmd.Process.Kill() })
		}
		if round%2 == 1 {
			soon(100 * time.Millisecond) // perhaps while it starts
		}
		for lines.Scan() {
			var seq int
			var event string
			line := lines.Text()
			if kill == nil { // it is under way
				soon(300 * time.Millisecond)
			}
			var n int64
			if _, err := fmt.Sscanf(line, "settled %d", &n); err == nil {
				committed = n
			} else if _, err := fmt.Sscanf(line, "%d %s", &seq, &event); err == nil && len(event) == 36 {
				if seq != len(told)+1 {
					t.Fatalf("round %d: number %d is told after %d", round, seq, len(told))
				}
				told = append(told, event)
			} else {
				last = line // cut by the kill, or the child's own words
			}
		}
		err = cmd.Wait()
		if kill == nil || err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the child ended by itself: %v, %s", round, err, last)
		}
		told = checkAfterKill(t, dir, told, committed)
	}
	if few() {
		t.Fatalf("only %d records in all, %d committed", len(told), committed)
	}
	t.Logf("%d records over %d kills, %d committed", len(told), round, committed)
}

func killOptions(t *testing.T, dir string) (Options, window.OS) {
	t.Helper()
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := LoadKeyRing(filepath.Join(dir, "spool.key"), true)
	if err != nil {
		t.Fatal(err)
	}
	// Small segments and a short horizon: files come and go all the time.
	return Options{Agent: "agent-1", Keys: ring, BootID: host.BootID(), Boot: host.Boot, MaxRecords: 1 << 40, MaxBytes: 1 << 40,
		SegmentRecords: 300, Horizon: 40 * time.Millisecond, LocalSpan: 20 * time.Millisecond}, host
}

// checkAfterKill looks at the spool between two runs. It returns what the next run continues.
func checkAfterKill(t *testing.T, dir string, told []string, committed int64) []string {
	t.Helper()
	o, _ := killOptions(t, dir)
	o.ReadOnly = true
	s, err := Open(filepath.Join(dir, "spool"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(false)
	st := s.Stats()
	if st.Captured != st.Committed+st.Suppressed+st.Pending+st.Held+st.Quarantined+st.Unaccounted {
		t.Fatalf("counts are not conserved: %+v", st)
	}
	if st.Committed < committed {
		t.Fatalf("%d committed, %d were told", st.Committed, committed)
	}
	if st.Captured < int64(len(told)) {
		t.Fatalf("%d captured, %d were told", st.Captured, len(told))
	}
	next := uint64(0)
	seen := map[string]bool{}
	if err := s.Since(0, func(r *Record) bool {
		if next != 0 && r.Seq != next {
			t.Fatalf("record %d after %d", r.Seq, next-1)
		}
		next = r.Seq + 1
		event := r.Event.String()
		if seen[event] {
			t.Fatalf("record %d is there twice", r.Seq)
		}
		seen[event] = true
		switch {
		case r.Seq <= uint64(len(told)):
			if told[r.Seq-1] != event {
				t.Fatalf("record %d is %s, told was %s", r.Seq, event, told[r.Seq-1])
			}
		case r.Seq == uint64(len(told))+1: // durable, and killed before it was told
			told = append(told, event)
		default:
			t.Fatalf("record %d behind %d told", r.Seq, len(told))
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if st.Captured != int64(len(told)) {
		t.Fatalf("%d captured, %d told or found", st.Captured, len(told))
	}
	unsettled := int64(0)
	if err := s.Unsettled(func(r *Record, _ Exception) bool {
		if !seen[r.Event.String()] {
			t.Fatalf("unsettled record %d is gone", r.Seq)
		}
		unsettled++
		return true
	}); err != nil || unsettled != st.Unsettled {
		t.Fatalf("%d unsettled, counted %d; %v", unsettled, st.Unsettled, err)
	}
	return told
}

func commitUntilKilled(t *testing.T, dir string) {
	o, host := killOptions(t, dir)
	s, err := Open(filepath.Join(dir, "spool"), o)
	if err != nil {
		t.Fatal(err)
	}
	mark, high := s.Mark()
	clock := window.NewClock(host, mark, window.ClockOptions{HighWater: high})
	if err := s.Begin(clock); err != nil {
		t.Fatal(err)
	}
	go func() { // settles most of it, and lets some wait
		for {
			if rand.IntN(20) == 0 {
				s.GoLive()
			}
			next := s.Next
			if rand.IntN(2) == 0 {
				next = s.NextLive
			}
			w, err := next(1 + rand.IntN(100))
			if err == nil && w.Empty() {
				w, err = s.Next(100)
			}
			if err != nil {
				panic(err)
			}
			var vs []Verdict
			for _, x := range s.Exceptions() {
				vs = append(vs, Verdict{Seq: x.Seq, State: Committed})
			}
			vs = append(vs, verdictsOf(w.Records)...)
			for i := range vs {
				if rand.IntN(50) == 0 {
					vs[i].State = Deferred
				}
			}
			var lines []Line
			if len(vs) > 0 {
				lines = []Line{{Event: NewEvent(1)}}
			}
			if err := s.Settle(w, vs, lines, nil); err != nil {
				panic(err)
			}
			fmt.Fprintf(os.Stdout, "settled %d\n", s.Stats().Committed)
			ls, err := s.Lines(10)
			if err != nil {
				panic(err)
			}
			s.LinesForwarded(len(ls))
			s.Prune()
			if w.Empty() {
				<-s.Wake()
			}
		}
	}()
	for n := 0; ; n++ {
		b := s.NewBatch()
		for range 1 + rand.IntN(64) {
			at := clock.Now()
			item := fmt.Sprint(at.T, n, rand.IntN(20))
			c := Candidate{Physical: idem.PhysicalKey("SCN-04", []byte(item)), Policy: window.Default(window.Dispense), At: at,
				Identity: idem.Identity{Facility: "F", Scanner: "SCN-04", Lot: item, Quantity: 1, Type: window.Dispense}}
			if _, err := b.Decide(&c); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		var out []byte
		for _, r := range b.records {
			out = fmt.Appendf(out, "%d %s\n", r.Seq, r.Event)
		}
		os.Stdout.Write(out)
		if err := s.Maintain(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJournalKill does the same to the journal, while several goroutines add and settle operations: each call counts
// whole or not at all, one that returned counts, and the order within a subject stays.
func TestJournalKill(t *testing.T) {
	if dir := os.Getenv("SPOOL_JOURNAL_DIR"); dir != "" {
		operateUntilKilled(t, dir)
		return
	}
	dir := fastDir(t)
	held := journalModel{}
	calls, cut, most := 0, 0, 0
	few := func() bool { return calls < 10*killRounds() || cut < killRounds()/3 || most < 20 }
	round := 0
	for ; round < killRounds() || few() && round < 10*killRounds(); round++ {
		cmd := exec.Command(os.Args[0], "-test.run=^TestJournalKill$")
		cmd.Env = append(os.Environ(), "SPOOL_JOURNAL_DIR="+dir, fmt.Sprint("SPOOL_JOURNAL_ROUND=", round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		underWay := map[string][]string{} // by goroutine
		words := bufio.NewScanner(out)
		var kill *time.Timer
		last := ""
		for words.Scan() {
			if kill == nil {
				kill = time.AfterFunc(rand.N(150*time.Millisecond), func() { cmd.Process.Kill() })
			}
			last = words.Text()
			switch f := strings.Fields(last); {
			case len(f) > 3 && f[0] == "?" && f[len(f)-1] == ".":
				call := f[2 : len(f)-1]
				for name, other := range underWay { // who acts on an operation has seen that what was done to it before was done
					if sameOperations(other, call) {
						held.apply(other)
						delete(underWay, name)
					}
				}
				underWay[f[1]] = call
			case len(f) == 3 && f[0] == "!" && f[2] == ".":
				held.apply(underWay[f[1]])
				delete(underWay, f[1])
				calls++
			}
		}
		if err = cmd.Wait(); kill == nil || err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("round %d: the child ended by itself: %v, %s", round, err, last)
		}
		found, waiting := foundAfterKill(t, dir)
		held = held.settle(t, underWay, found)
		cut, most = cut+len(underWay), max(most, waiting)
	}
	if few() {
		t.Fatalf("only %d calls, %d of them under way at a kill, at most %d waiting", calls, cut, most)
	}
	t.Logf("%d calls over %d kills, %d under way at one, at most %d waiting then", calls, round, cut, most)
}

// journalModel says of each operation that the journal holds whether it "waits", "waits+" after its first step, or is
// a "conflict".
type journalModel map[string]string

// apply does a call: words of act=operation.
func (m journalModel) apply(call []string) {
	for _, w := range call {
		act, id, _ := strings.Cut(w, "=")
		switch is := m[id]; {
		case act == "begin":
			clear(m)
		case act == "add" && is == "":
			m[id] = "waits"
		case act == "next" && is == "waits":
			m[id] = "waits+"
		case act == "conflict":
			m[id] = "conflict"
		case act == "done" && is != "conflict", act == "resolved" && is == "conflict":
			delete(m, id)
		}
	}
}

func sameOperations(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool {
		_, id, _ := strings.Cut(x, "=")
		return slices.ContainsFunc(b, func(y string) bool { return strings.HasSuffix(y, "="+id) })
	})
}

// settle finds which of the calls under way were done: all of each or nothing.
func (m journalModel) settle(t *testing.T, underWay map[string][]string, found journalModel) journalModel {
	t.Helper()
	names := slices.Collect(maps.Keys(underWay)) // in any order: they are of different operations
	for subset := range 1 << len(names) {
		guess := maps.Clone(m)
		for i, name := range names {
			if subset>>i&1 == 1 {
				guess.apply(underWay[name])
			}
		}
		if maps.Equal(guess, found) {
			return guess
		}
	}
	for id, is := range found {
		if m[id] != is {
			t.Errorf("operation %s: %q, and was %q", id, is, m[id])
		}
	}
	for id, was := range m {
		if found[id] == "" {
			t.Errorf("operation %s is gone, and was %q", id, was)
		}
	}
	t.Fatalf("no part of what was under way explains that: %v", underWay)
	return nil
}

func operationNumber(id idem.EventID) string { return fmt.Sprintf("%x", id[:8]) }

// numbered is an operation of which all that is in it shows that it is the one. Their ids grow within a subject.
func numbered(round, adder, n int, subject string) Operation {
	op := Operation{Kind: "waits", Subject: subject, At: 1000}
	binary.BigEndian.PutUint16(op.ID[:], uint16(round))
	op.ID[2] = byte(adder)
	binary.BigEndian.PutUint32(op.ID[4:], uint32(n))
	op.Body = json.RawMessage(`"` + operationNumber(op.ID) + `"`)
	return op
}

// conflictOf gives a numbered operation up.
func conflictOf(op Operation) Conflict {
	return Conflict{Operation: op, Current: json.RawMessage(`{"of":"` + operationNumber(op.ID) + `"}`), Detail: "no", Found: 2000}
}

// modelOf is what a journal of numbered operations holds.
func modelOf(j *Journal) (journalModel, error) {
	m, last := journalModel{}, map[string]string{}
	for _, op := range j.all().Add {
		id := operationNumber(op.ID)
		if string(op.Body) != `"`+id+`"` || op.At != 1000 || id <= last[op.Subject] {
			return nil, fmt.Errorf("operation %s has body %s, and comes behind %s", id, op.Body, last[op.Subject])
		}
		m[id], last[op.Subject] = op.Kind, id
	}
	for _, c := range j.Conflicts() {
		id := operationNumber(c.ID)
		if m[id] != "" || string(c.Body) != `"`+id+`"` || string(c.Current) != `{"of":"`+id+`"}` || c.Detail != "no" {
			return nil, fmt.Errorf("conflict %+v, %q", c, m[id])
		}
		m[id] = "conflict"
	}
	return m, nil
}

func foundAfterKill(t *testing.T, dir string) (journalModel, int) {
	t.Helper()
	o, _ := killOptions(t, dir)
	o.ReadOnly = true
	s, err := Open(filepath.Join(dir, "spool"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(false)
	m, err := modelOf(s.journal)
	if err != nil {
		t.Fatal(err)
	}
	return m, s.journal.Pending()
}

func operateUntilKilled(t *testing.T, dir string) {
	o, host := killOptions(t, dir)
	s, err := Open(filepath.Join(dir, "spool"), o)
	if err != nil {
		t.Fatal(err)
	}
	mark, high := s.Mark()
	if err := s.Begin(window.NewClock(host, mark, window.ClockOptions{HighWater: high})); err != nil {
		t.Fatal(err)
	}
	round, err := strconv.Atoi(os.Getenv("SPOOL_JOURNAL_ROUND"))
	if err != nil {
		t.Fatal(err)
	}
	j := s.Journal()
	j.spare = 4000 // it is written anew all the time
	act := func(name string, call []string, do func() error) {
		fmt.Fprintf(os.Stdout, "? %s %s .\n", name, strings.Join(call, " "))
		if err := do(); err != nil {
			panic(err)
		}
		fmt.Fprintf(os.Stdout, "! %s .\n", name)
	}
	for adder := range 4 {
		go func() {
			for n := 1; ; {
				changed := j.Changed()
				if j.Pending() > 200 {
					<-changed
					continue
				}
				var ops []Operation
				var call []string
				for range 1 + rand.IntN(3) {
					op := numbered(round, adder, n, fmt.Sprint(adder, rand.IntN(3)))
					ops, call = append(ops, op), append(call, "add="+operationNumber(op.ID))
					n++
				}
				act(fmt.Sprint("adder", adder), call, func() error { return j.Add(ops...) })
			}
		}()
	}
	go func() { // settles
		for {
			changed := j.Changed()
			var st Settlement
			var call []string
			for _, op := range j.Heads(1+rand.IntN(8), func(*Operation) bool { return rand.IntN(4) > 0 }) {
				id := operationNumber(op.ID)
				switch n := rand.IntN(10); {
				case n < 3 && op.Kind == "waits":
					next := op
					next.Kind = "waits+"
					st.Next = append(st.Next, &next)
					call = append(call, "next="+id)
				case n == 3:
					st.Conflicts = append(st.Conflicts, conflictOf(op))
					call = append(call, "conflict="+id)
				default:
					st.Done = append(st.Done, op.ID)
					call = append(call, "done="+id)
				}
			}
			if len(call) == 0 {
				<-changed
				continue
			}
			act("settler", call, func() error { return j.Settle(st) })
		}
	}()
	go func() { // copies and reads, as a backup and a verification do
		for {
			changed := j.Changed()
			if b, err := j.copy(); err != nil || len(b) == 0 && j.Pending() > 0 {
				panic(fmt.Sprint("cannot copy: ", err))
			}
			if err := j.verify(); err != nil {
				panic(err)
			}
			<-changed
		}
	}()
	for { // sees to conflicts
		changed := j.Changed()
		cs := j.Conflicts()
		if len(cs) < 5 {
			<-changed
			continue
		}
		act("user", []string{"resolved=" + operationNumber(cs[2].ID)}, func() error { _, err := j.Resolve([]idem.EventID{cs[2].ID}); return err })
	}
}
