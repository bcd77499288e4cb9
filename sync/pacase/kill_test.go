package pacase_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"scanonce/sync/pacase"
)

// killSteps are the child's calls for question n, the same at every attempt: two pends, and a case's way to an
// approval.
func killSteps(ctx context.Context, s *pacase.Embedded, n int) error {
	member := fmt.Sprintf("M-%d", n)
	for e, window := range []string{day1, day2} {
		out, err := s.Pend(ctx, ask(2*n+e, member, window))
		if err != nil {
			return err
		}
		if out.Created != (e == 0) {
			return fmt.Errorf("pend %d of %s: created %v", e, member, out.Created)
		}
	}
	q := ask(2*n, member, day1)
	for v, to := range []pacase.State{pacase.InReview, pacase.Approved} {
		a, err := s.Transition(ctx, pacase.Transition{ID: q.DerivedID(), Expected: v + 1, To: to, Op: id(1_000_000 + 2*n + v)})
		if err != nil {
			return err
		}
		// Once the second move is done, the first is told of a conflict.
		if w := word(a); w != "moved" && w != "already mine" && w != "conflict" {
			return fmt.Errorf("move %d of %s: %s", v, member, w)
		}
	}
	c, ok, err := s.Get(ctx, q.DerivedID())
	if err == nil && (!ok || c.State != pacase.Approved || c.Version != 3) {
		err = fmt.Errorf("%s ended as %+v", member, c)
	}
	return err
}

// pendUntilKilled goes on from the questions that are there, and says on stdout how many are done. It begins
// with the last two once more, as after a lost reply.
func pendUntilKilled(path string) int {
	s, err := pacase.OpenEmbedded(path, counter())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	done := 0
	for {
		_, ok, err := s.Get(context.Background(), ask(2*done, fmt.Sprintf("M-%d", done), day1).DerivedID())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if !ok {
			break
		}
		done++
	}
	for n := max(0, done-2); ; n++ {
		if err := killSteps(context.Background(), s, n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(n + 1)
	}
}

// A killed writer loses nothing that it was told, and whoever takes up the calls ends with the same cases.
func TestKilledWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pa.db")
	for round := range 8 {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewScanner(out)
		acked := 0
		for stop := rand.IntN(12); stop >= 0 && said.Scan(); stop-- {
			fmt.Sscan(said.Text(), &acked)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for said.Scan() { // what it said before it died
			fmt.Sscan(said.Text(), &acked)
		}
		cmd.Wait()
		if acked == 0 {
			t.Fatalf("round %d: the child did nothing", round)
		}
		check(t, path)
		s := openAt(t, path)
		for n := range acked {
			c, ok, err := s.Get(t.Context(), ask(2*n, fmt.Sprintf("M-%d", n), day1).DerivedID())
			if err != nil || !ok || c.State != pacase.Approved {
				t.Fatalf("round %d: question %d of %d: %+v, %v, %v", round, n, acked, c, ok, err)
			}
		}
		if err := killSteps(t.Context(), s, acked); err != nil { // the one that was under way
			t.Errorf("round %d: %v", round, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
