package spool

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// dscsa is a scan of a typical serialized package: GTIN, serial, lot, expiry.
func (r *rig) dscsa(n int) Candidate {
	serial := fmt.Sprintf("SN%012d", n)
	element := "010030093721410617261130" + "10A1207B" + "\x1d21" + serial
	c := Candidate{Physical: idem.PhysicalKey("SCN-04", []byte(element)), Policy: window.Default(window.Dispense), At: r.clock.Now(),
		Identity: idem.Identity{Facility: "6f1c2b3e-8a55-4d0f-9a3b-2f6f6d0f5b11", Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207B", Serial: serial, Quantity: 1, Type: window.Dispense}}
	c.Item = Item{NDC: "00093721410", NDC11: "00093721410", Lot: "A1207B", GTIN: "00300937214106", Serial: serial, Expiry: "2026-11-30", PkgLevel: 0,
		Symbology: "d2", Length: len(element)}
	return c
}

// written is what this process has handed to the kernel to write.
func written(t testing.TB) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "wchar: %d", &n); err == nil {
			return n
		}
	}
	t.Fatal("no wchar in /proc/self/io")
	return 0
}

// In bursts a scan costs at most 450 bytes of writing, its settlement included.
func TestBytesWrittenPerScan(t *testing.T) {
	for _, batch := range []int{500, 1000} {
		r := newRig(t)
		total := 30000
		if testenv.Race { // make test has all of them without the race detector
			total = 5000
		}
		cs := make([]Candidate, total)
		for i := range cs {
			r.os.pass(time.Millisecond)
			cs[i] = r.dscsa(i)
		}
		before := written(t)
		for i := 0; i < total; i += batch {
			b := r.spool.NewBatch()
			for j := range batch {
				r.decide(b, cs[i+j])
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		intake := written(t) - before
		for range total / batch {
			w, err := r.spool.Next(batch)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		all := written(t) - before
		st := r.law()
		if st.Committed != int64(total) {
			t.Fatalf("%+v", st)
		}
		t.Logf("batches of %d: %d B written a scan by the intake, %d B with its settlement; %d B a scan on disk", batch, intake/int64(total), all/int64(total), st.Bytes/int64(total))
		if all/int64(total) > 450 {
			t.Errorf("batches of %d: %d bytes a scan", batch, all/int64(total))
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, bounce := range []bool{false, true} {
		b.Run(fmt.Sprintf("bounce=%v", bounce), func(b *testing.B) {
			r := newRig(b)
			cs := make([]Candidate, 1000)
			for i := range cs {
				cs[i] = r.dscsa(i)
			}
			b.ReportAllocs()
			batch := r.spool.NewBatch()
			n := 0
			for b.Loop() {
				c := &cs[n%len(cs)]
				if !bounce && n%len(cs) == 0 { // in the next round all are new again
					b.StopTimer()
					r.os.pass(10 * time.Second)
					batch = r.spool.NewBatch()
					at := r.clock.Now()
					for i := range cs {
						cs[i].At = at
					}
					b.StartTimer()
				} else if n%len(cs) == 0 {
					batch = r.spool.NewBatch()
				}
				if _, err := batch.Decide(c); err != nil {
					b.Fatal(err)
				}
				n++
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1, 64, 512} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r := rigIn(b, b.TempDir()) // on the disk
			defer func() { r.spool.Close(true) }()
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				batch := r.spool.NewBatch()
				for range size {
					r.os.pass(time.Millisecond)
					c := r.dscsa(n)
					n++
					if _, err := batch.Decide(&c); err != nil {
						b.Fatal(err)
					}
				}
				if err := batch.Commit(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "scans/s")
		})
	}
}

func BenchmarkDrain(b *testing.B) {
	r := rigIn(b, b.TempDir())
	defer func() { r.spool.Close(true) }()
	n := 0
	for b.Loop() {
		b.StopTimer()
		batch := r.spool.NewBatch()
		for range 500 {
			r.os.pass(time.Millisecond)
			c := r.dscsa(n)
			n++
			if _, err := batch.Decide(&c); err != nil {
				b.Fatal(err)
			}
		}
		if err := batch.Commit(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		w, err := r.spool.Next(500)
		if err != nil {
			b.Fatal(err)
		}
		if err := r.spool.Settle(w, verdictsOf(w.Records), nil, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "scans/s")
}
