package main

import (
	"fmt"
	"testing"
)

// The row at a small size: each claim is made and moved once, and redis-benchmark does the same, which the row checks
// itself.
func TestClaimStateRow(t *testing.T) {
	m := newBench(t)
	m.rounds, m.tb = 3, &process{dir: m.dir}
	defer func() {
		if err := m.tb.end(); err != nil {
			t.Error(err)
		}
	}()
	rows, err := m.claimStateOf(400)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		t.Log(r.id, r.what, r.measured, r.medians)
		var ratio float64
		if _, err := fmt.Sscanf(r.measured, "%fx", &ratio); err != nil || ratio <= 0.05 || ratio > 20 {
			t.Errorf("%s measured %s", r.what, r.measured)
		}
	}
}
