package ledger_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// pgRow is the n-th movement of a test, by event family's own event; every third has an edge key.
func pgRow(family byte, n int) ledger.Row {
	id := idem.Identity{Facility: "F-1", Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207", Quantity: 1, Type: window.Dispense}
	r := ledger.Row{Facility: id.Facility, Scanner: id.Scanner, NDC: id.NDC, NDC11: id.NDC, Lot: id.Lot, Quantity: 1, Type: id.Type,
		GTIN: "00300937214106", Expiry: "2028-02-29", PkgLevel: 0, Agent: "agent-a", Quality: window.Synced,
		CapturedAt: 1_764_000_000_000 + window.UTC(n)*4000}
	r.Keys = id.Keys(window.Default(window.Dispense), r.CapturedAt)
	random := [10]byte{2: family}
	binary.BigEndian.PutUint32(random[3:], uint32(n))
	r.Event = idem.NewEventID(r.CapturedAt, random)
	return r
}

func pgRows(family byte, from, n int) []ledger.Row {
	rows := make([]ledger.Row, n)
	for i := range rows {
		rows[i] = pgRow(family, from+i)
	}
	return rows
}

// What a statement for many rows is worth, beside one for each row. A b.N is a row.
func BenchmarkPostgresInsert(b *testing.B) {
	p := testenv.NewPostgres(b, testenv.PostgresOptions{})
	for _, size := range []int{1, 100, 500, 1000} {
		b.Run(fmt.Sprintf("rows=%d", size), func(b *testing.B) {
			_, cfg := migrated(b, p)
			l := openPostgres(b, cfg)
			if _, err := l.Count(b.Context()); err != nil {
				b.Fatal(err)
			}
			rows := pgRows(0, 0, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			for from := 0; from < b.N; from += size {
				n := min(size, b.N-from)
				in, err := l.Insert(context.Background(), rows[from:from+n])
				if err != nil || len(in.Receipts) != n {
					b.Fatalf("%d receipts, %v", len(in.Receipts), err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

func BenchmarkPostgresStanding(b *testing.B) {
	const stored = 50_000
	p := testenv.NewPostgres(b, testenv.PostgresOptions{NoFsync: true})
	_, cfg := migrated(b, p)
	l := openPostgres(b, cfg)
	rows := pgRows(0, 0, stored)
	if _, err := l.Insert(b.Context(), rows); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 500, 1000} {
		b.Run(fmt.Sprintf("probes=%d", size), func(b *testing.B) {
			probes := make([]ledger.Probe, size)
			for n := 0; b.Loop(); n++ {
				for i := range probes {
					r := &rows[(n*size+i)*7919%stored]
					probes[i] = ledger.Probe{Keys: r.Keys, Event: r.Event}
				}
				st, err := l.Standing(context.Background(), probes)
				if err != nil || st[0].ByEvent.Event != probes[0].Event {
					b.Fatalf("%+v, %v", st[0], err)
				}
			}
			b.ReportMetric(float64(size)*float64(b.N)/b.Elapsed().Seconds(), "probes/s")
		})
	}
}
