package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

func newBench(t testing.TB) *bench {
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	return &bench{host: host, dir: t.TempDir(), rounds: 5}
}

// F7's gate: what each scan costs before it is stored leaves nothing for the garbage collector.
func TestPerScanAllocatesNothing(t *testing.T) {
	p, err := newPerScan()
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(5_000, p.next); n != 0 {
		t.Errorf("%v allocations a scan", n)
	}
	if err := p.check(); err != nil {
		t.Error(err)
	}
}

// S5's gate. It counts bytes, so it holds on every machine.
func TestBytesPerScanInBursts(t *testing.T) {
	m := newBench(t)
	w, err := m.weigh(filepath.Join(m.dir, "s5"), 20*batchMost)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f B written, %.0f B on disk", w.written, w.disk)
	if w.written > 450 || w.disk > 450 {
		t.Errorf("a scan of a burst takes %.0f bytes on disk and %.0f of writing, more than 450", w.disk, w.written)
	}
	size, err := storedSize(filepath.Join(m.dir, "size"), m.host)
	if err != nil {
		t.Fatal(err)
	}
	if w.disk < float64(size) || w.written < float64(size) {
		t.Errorf("%.0f bytes on disk and %.0f written cannot hold a record of %d", w.disk, w.written, size)
	}
}

// F3's gate: group commit is there. In a burst bytes tell it everywhere; rates do only where a sync costs
// something, which it does not in a file system in memory.
func TestGroupCommitBeatsUpdatePerScan(t *testing.T) {
	m := newBench(t)
	size, err := storedSize(filepath.Join(m.dir, "size"), m.host)
	if err != nil {
		t.Fatal(err)
	}
	o, err := openOutbox(filepath.Join(m.dir, "spool"), m.host)
	if err != nil {
		t.Fatal(err)
	}
	defer o.close()
	u, err := openUpdatePerScan(filepath.Join(m.dir, "update.db"), size)
	if err != nil {
		t.Fatal(err)
	}
	defer u.close()
	fl, err := openFloor(filepath.Join(m.dir, "floor"))
	if err != nil {
		t.Fatal(err)
	}
	defer fl.close()
	syncs, err := m.paced(20, fl.lone)
	if err != nil {
		t.Fatal(err)
	}
	const gate = 5
	z := intakeSizes{burst: 20 * batchMost, baseline: 100, producers: 64, perProducer: 60, perBase: 2}
	var burst, together []float64
	for round := range m.rounds {
		r, err := m.intakeRound(round, o, u, z)
		if err != nil {
			t.Fatal(err)
		}
		burst, together = append(burst, r.burst.rate/r.base.rate), append(together, r.concurrent.rate/r.baseConcurrent.rate)
		if q := r.base.written / r.burst.written; q < gate {
			t.Errorf("in a burst an update per scan writes %.1f times as much, less than %d", q, gate)
		}
	}
	t.Logf("a sync takes %v; burst %.0f times, 64 producers %.0f times", median(syncs[0]), burst, together)
	if median(syncs[0]) > 100*time.Microsecond {
		if r := median(burst); r < gate {
			t.Errorf("a burst is taken in %.1f times as fast as by an update per scan, less than %d", r, gate)
		}
		if r := median(together); r < gate {
			t.Errorf("64 producers are served %.1f times as fast as by an update per scan, less than %d", r, gate)
		}
	}
	if got, want := o.spool.Stats().Captured, int64(o.labels.n); got != want {
		t.Errorf("%d records for %d labels", got, want)
	}
}

func TestLabelsDiffer(t *testing.T) {
	l := newLabel()
	seen := map[string]bool{}
	for range 12_345 {
		seen[string(l.next())] = true
	}
	if len(seen) != 12_345 {
		t.Errorf("%d different labels of 12345", len(seen))
	}
	if got := string(l.data); got != "]d201003009372141062"+"1SN0000012345\x1d1727113010A1207" {
		t.Errorf("the last one is %q", got)
	}
}

func TestJudgement(t *testing.T) {
	for _, c := range []struct {
		got, want verdict
	}{
		{atMost(1.2, 1.75, 1.2), beyond}, {atMost(1.3, 1.75, 1.2), pass}, {atMost(1.75, 1.75, 1.2), pass}, {atMost(1.76, 1.75, 1.2), miss},
		{atLeast(100, 60, 100), beyond}, {atLeast(60, 60, 100), pass}, {atLeast(59, 60, 100), miss}, {atMost(math.NaN(), 1, 1), miss},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	if m := median([]float64{9, 1, 5}); m != 5 {
		t.Errorf("median %v", m)
	}
	if q := quantile([]time.Duration{4, 3, 2, 1}, 0.99); q != 4 {
		t.Errorf("p99 %v", q)
	}
	if q := median([]float64(nil)); q != 0 {
		t.Errorf("median of none %v", q)
	}
}

func TestTableNamesWhatItMeasured(t *testing.T) {
	var b bytes.Buffer
	if err := printTable(&b, []row{{"F2", "what", "<= 1.75x", "<= 1.2x", "1.50x", "3 µs against 2 µs", pass}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"F2", "<= 1.75x", "1.50x", "3 µs against 2 µs", "pass"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, b.String())
		}
	}
	dir := t.TempDir()
	m := machine(dir)
	for _, want := range []string{" cores", "Linux ", dir, "go1."} {
		if !strings.Contains(m, want) {
			t.Errorf("%q does not name %q", m, want)
		}
	}
	if fs := fileSystem("/proc"); !strings.HasPrefix(fs, "proc ") {
		t.Errorf("/proc lies on %q", fs)
	}
}

// The idle watch reads this process, which works, and must see it.
func TestUsageSeesWork(t *testing.T) {
	before, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPerScan() // a tenth of a second and more
	if err != nil {
		t.Fatal(err)
	}
	after, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if d := after.minus(before); d.cpu < 10*time.Millisecond || d.ticks < 1 || d.switches < 1 || p.label.n == 0 {
		t.Errorf("%+v", d)
	}
}
