package spool

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

const killRounds = 30

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
	for round := range killRounds {
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
	if len(told) < 30*killRounds || committed == 0 {
		t.Fatalf("only %d records in all, %d committed", len(told), committed)
	}
	t.Logf("%d records over %d kills, %d committed", len(told), killRounds, committed)
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
	if err := s.Unsettled(func(r Record, _ Exception) bool {
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
			if err := s.Settle(w, vs, lines); err != nil {
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
