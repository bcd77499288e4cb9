package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The rows against real servers, at a small size: every side writes exactly one row a scan, which the rows
// check themselves. Rates are reported and not tested, as the disk may stand still; processor time is, far from its goal,
// since the race detector slows down this side more.
func TestStoreRows(t *testing.T) {
	m := newBench(t)
	m.rounds, m.tb = 3, &process{dir: m.dir}
	m.sizes = storeSizes{lone: 20, paced: 20, drain: 2_000, burst: 4_000, seed: 100}
	defer func() {
		if err := m.tb.end(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		measure func() ([]row, error)
		ids     []string
	}{
		{func() ([]row, error) { return m.lone("") }, []string{"F1", ""}},
		{m.drain, []string{"F4"}},
		{m.burst, []string{"F5", "F6"}},
		{func() ([]row, error) { return m.pacedCost("") }, []string{"F6"}},
	} {
		rows, err := c.measure()
		if err != nil {
			t.Fatalf("%s: %v", c.ids[0], err)
		}
		var ids []string
		for _, r := range rows {
			ids = append(ids, r.id)
			t.Log(r.id, r.measured, r.medians)
			if strings.Contains(r.measured, "NaN") || strings.Contains(r.measured, "Inf") || strings.HasPrefix(r.measured, "0.00x") {
				t.Errorf("%s measured %s", r.id, r.measured)
			}
		}
		if !slices.Equal(ids, c.ids) {
			t.Errorf("rows %q, want %q", ids, c.ids)
		}
		if rows[0].id == "F5" {
			var ratio float64
			if _, err := fmt.Sscanf(rows[1].measured, "1/%f", &ratio); err != nil || ratio < 1.3 {
				t.Errorf("a scan of a burst takes %s of the seed's processor time: it is handled by itself (%v)", rows[1].measured, err)
			}
		}
	}
	ctx := context.Background()
	if err := m.central.expect(ctx, 1); err == nil || !strings.Contains(err.Error(), "rows for 1 scans") {
		t.Errorf("a wrong number of rows is told as %v", err)
	}
	if v := m.central.version(ctx); !strings.HasPrefix(v, "redis-server 7") && !strings.HasPrefix(v, "redis-server 6") && !strings.HasPrefix(v, "redis-server 8") || strings.Contains(v, "PostgreSQL ?") {
		t.Errorf("the servers are %q", v)
	}
	// A row that is there already, or a key that is held, is no figure.
	g := m.movements()
	r := g.next()
	if err := errors.Join(m.central.empty(ctx), m.central.claimNew(ctx, &r), m.central.storeOne(ctx, &r)); err != nil {
		t.Fatal(err)
	}
	rows := append(slices.Clone(rowsOf(g, 3)), r)
	for what, err := range map[string]error{"claim": m.central.claimNew(ctx, &r), "insert": m.central.storeOne(ctx, &r),
		"pipeline": m.central.claimMany(ctx, rows), "statement": m.central.storeMany(ctx, append(rowsOf(g, 2), r))} {
		if err == nil {
			t.Errorf("a repeated %s counts", what)
		}
	}
}

func TestProcessStandsInForATest(t *testing.T) {
	p := &process{dir: t.TempDir()}
	var order []int
	var dir string
	err := p.attempt(func() error {
		dir = p.TempDir()
		p.Cleanup(func() { order = append(order, 1) })
		p.Cleanup(func() { order = append(order, 2) })
		p.Fatalf("no %s", "server")
		return nil
	})
	if err == nil || err.Error() != "no server" {
		t.Errorf("Fatalf ends with %v", err)
	}
	if _, err := os.Stat(dir); err != nil || !strings.HasPrefix(dir, p.dir) {
		t.Errorf("temporary folder %q, %v", dir, err)
	}
	if err := p.end(); err != nil || !slices.Equal(order, []int{2, 1}) {
		t.Errorf("cleaned up %v, %v", order, err)
	}
	if err := p.attempt(func() error { return os.ErrClosed }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("an error of its own comes back as %v", err)
	}
}

func TestTally(t *testing.T) {
	var n tally
	c := n.when(3)
	n.add(2)
	select {
	case <-c:
		t.Fatal("told at 2 of 3")
	default:
	}
	n.add(2)
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	for _, c := range []<-chan struct{}{c, n.when(4)} {
		select {
		case <-c:
		case <-limit.C:
			t.Fatal("not told")
		}
	}
	if w := worst(pass, miss); w != miss {
		t.Errorf("worst of pass and miss is %s", w)
	}
	if w := worst(beyond, pass); w != pass {
		t.Errorf("worst of stretch and pass is %s", w)
	}
}
