package main

import (
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// A command that a scan has used up is obeyed anew, however soon it comes; its echo is not.
func TestCommandAfterItsScan(t *testing.T) {
	t.Parallel()
	h, _, _, g := bench(t, testenv.Setup{})
	for _, serial := range []string{"Q1", "Q2", "Q3"} {
		if m := g.expect("mode", "SCANONCE-QTY-5"); m.Quantity != 5 {
			t.Errorf("%s: mode %s", serial, m.Data)
		}
		if a := g.expect("accepted", matrix(bottleGTIN, serial, "A1")); a.Quantity != 5 {
			t.Errorf("%s: accepted with quantity %d, want 5", serial, a.Quantity)
		}
		pace(t, 400*time.Millisecond) // more than an echo's, less than a window
	}
	if a := g.expect("accepted", matrix(bottleGTIN, "Q4", "A1")); a.Quantity != 1 {
		t.Errorf("without the command: quantity %d", a.Quantity)
	}
	if rows, _ := quiet(t, h); len(rows) != 4 {
		t.Errorf("%d rows, want 4", len(rows))
	}
}
