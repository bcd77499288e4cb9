package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const killBatch = 7

// killRow is row n of the child: every third has an edge key.
func killRow(n int) ledger.Row {
	id := idem.Identity{Facility: "F-1", Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207", Quantity: 1, Type: window.Dispense}
	p := window.Default(window.Dispense)
	r := ledger.Row{Facility: id.Facility, Scanner: id.Scanner, NDC: id.NDC, Lot: id.Lot, Quantity: 1, Type: id.Type,
		PkgLevel: -1, Agent: "agent-a", Quality: window.Synced, CapturedAt: window.UTC(n) * 4000}
	r.Keys = id.Keys(p, r.CapturedAt)
	r.Event = idem.NewEventID(r.CapturedAt, [10]byte{1, 2, 3})
	return r
}

// writeUntilKilled goes on from the rows that are there, and says on stdout how many it was told are
// durable. It begins each round by inserting the rows before once more, as after a lost reply.
func writeUntilKilled(path string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := ledger.OpenEmbedded(path, counter())
	if err != nil {
		return fail(err)
	}
	ctx := context.Background()
	count, err := l.Count(ctx)
	if err != nil {
		return fail(err)
	}
	for n := int(count); ; n += killBatch {
		var rows []ledger.Row
		var lines []ledger.Line
		for i := max(0, n-killBatch); i < n+killBatch; i++ {
			r := killRow(i)
			rows = append(rows, r)
			dup := idem.NewEventID(r.CapturedAt, [10]byte{9})
			lines = append(lines, ledger.Line{Event: dup, Agent: r.Agent, At: r.CapturedAt, Key: r.Keys.Idem,
				Outcome: ledger.Suppressed, Reason: "bounce", Winner: r.Event})
		}
		in, err := l.Insert(ctx, rows)
		if err != nil {
			return fail(err)
		}
		if len(in.Receipts) != killBatch {
			return fail(fmt.Errorf("%d receipts, want %d", len(in.Receipts), killBatch))
		}
		if err := l.AppendLines(ctx, lines); err != nil {
			return fail(err)
		}
		fmt.Println(n + killBatch)
	}
}

func TestKilledWriterLosesNothingAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
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
		for said.Scan() { // what it still said before it died
			fmt.Sscan(said.Text(), &acked)
		}
		cmd.Wait()
		if cmd.ProcessState.Exited() {
			t.Fatalf("round %d: the child ended by itself: %v", round, cmd.ProcessState)
		}
		checkKilled(t, path, acked)
	}
}

func checkKilled(t *testing.T, path string, acked int) {
	t.Helper()
	l, err := ledger.OpenEmbedded(path, counter())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	n := 0
	err = l.Rows(t.Context(), ledger.Span{}, func(r ledger.Row) error {
		if want := killRow(n); r.Keys != want.Keys || r.Event != want.Event {
			return fmt.Errorf("row %d is %s, want %s", n, r.Keys.Idem, want.Keys.Idem)
		}
		n++
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n < acked || n%killBatch != 0 {
		t.Errorf("%d rows, %d acknowledged, want whole batches of %d and none lost", n, acked, killBatch)
	}
	for i := range acked {
		if lines, err := l.LinesOf(t.Context(), killRow(i).Keys.Idem); err != nil || len(lines) != 2 {
			t.Errorf("row %d: lines %v, %v, want its own and one suppressed", i, lines, err)
		}
	}
}
