package storetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// LedgerFixture is a fresh, empty ledger.
type LedgerFixture struct {
	// Open opens the ledger; again after a Close, it opens the same one.
	Open func(tb testing.TB) ledger.Ledger
	// Shared says that several handles may be open at once, as those of several agents are.
	Shared bool
}

// pair returns two handles, the same one twice where only one may be open.
func (f LedgerFixture) pair(tb testing.TB) (a, b ledger.Ledger) {
	a = f.Open(tb)
	if b = a; f.Shared {
		b = f.Open(tb)
	}
	return a, b
}

type ledgerCase struct {
	name string
	run  func(tb testing.TB, f LedgerFixture)
}

// Ledger runs the suite. open makes a fixture with a ledger of its own for every case; the fixture closes
// what is left open.
func Ledger(t *testing.T, open func(tb testing.TB) LedgerFixture) {
	for _, c := range ledgerCases() {
		t.Run(c.name, func(t *testing.T) { c.run(t, open(t)) })
	}
}

func ledgerCases() []ledgerCase {
	return []ledgerCase{
		{"every column comes back", ledgerColumns},
		{"unique keys across calls", ledgerUnique},
		{"unique keys within a call", ledgerUniqueWithin},
		{"a refused row leaves nothing", ledgerRefused},
		{"lost reply", ledgerLostReply},
		{"standing", ledgerStanding},
		{"poison", ledgerPoison},
		{"lines are idempotent", ledgerLinesOnce},
		{"lines that do not belong", ledgerLinesRefused},
		{"chain", ledgerChain},
		{"chain of one", ledgerChainOrder},
		{"chain records that contradict themselves", ledgerChainRefused},
		{"a claim is one scan's", ledgerIngest},
		{"no row without its line", ledgerRowLines},
		{"order of commit", ledgerOrder},
		{"spans", ledgerSpans},
		{"find by prefix", ledgerFind},
		{"yield", ledgerYield},
		{"8 inserters", ledgerConcurrent},
		{"cancelled", ledgerCancelled},
		{"restart", ledgerRestart},
		{"closed", ledgerClosed},
	}
}

const capturedAt = window.UTC(1_764_058_500_123) // of row 0; row n is n seconds later

// row is event e's row under idem key i, and edge key b if b is not 0.
func row(e, i, b int) ledger.Row {
	r := ledger.Row{
		Keys:  idem.Keys{Idem: idemKey(i), Window: window.Index(588019500 + i)},
		Event: eventID(e), Facility: "F-1", Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207", Quantity: 1,
		Type: window.Dispense, NDC11: "00093721410", PkgLevel: -1, Agent: "agent-a",
		CapturedAt: capturedAt + window.UTC(1000*e), Quality: window.Synced,
	}
	if b != 0 {
		r.Keys.Edge = edgeKey(b)
	}
	return r
}

// insert inserts and returns the numbers of the events that got in, in rising order.
func insert(tb testing.TB, l ledger.Ledger, rows ...ledger.Row) []int {
	tb.Helper()
	in, err := l.Insert(tb.Context(), rows)
	if err != nil {
		tb.Fatal(err)
	}
	if len(in.Poison) > 0 {
		tb.Fatalf("good rows called poison: %v", in.Poison)
	}
	got := []int{}
	for _, rc := range in.Receipts {
		if rc.CommittedAt == 0 {
			tb.Errorf("receipt of %s has no time", rc.Event)
		}
		got = append(got, number(tb, rc.Event))
	}
	slices.Sort(got)
	return got
}

func number(tb testing.TB, e idem.EventID) int {
	tb.Helper()
	for n := range 2000 {
		if eventID(n) == e {
			return n
		}
	}
	tb.Fatalf("event %s is none of the test's", e)
	return 0
}

func expectIn(tb testing.TB, got []int, want ...int) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Errorf("receipts for events %v, want %v", got, want)
	}
}

func expectCount(tb testing.TB, l ledger.Ledger, want int) {
	tb.Helper()
	n, err := l.Count(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	rows := allRows(tb, l, ledger.Span{})
	if n != int64(want) || len(rows) != want {
		tb.Errorf("count %d, %d rows read, want %d", n, len(rows), want)
	}
}

func allRows(tb testing.TB, l ledger.Ledger, s ledger.Span) (rows []ledger.Row) {
	tb.Helper()
	if err := l.Rows(tb.Context(), s, func(r ledger.Row) error { rows = append(rows, r); return nil }); err != nil {
		tb.Fatal(err)
	}
	return rows
}

func allLines(tb testing.TB, l ledger.Ledger, s ledger.Span) (lines []ledger.Line) {
	tb.Helper()
	if err := l.Lines(tb.Context(), s, func(x ledger.Line) error { lines = append(lines, x); return nil }); err != nil {
		tb.Fatal(err)
	}
	return lines
}

func standing(tb testing.TB, l ledger.Ledger, probes ...ledger.Probe) []ledger.Standing {
	tb.Helper()
	st, err := l.Standing(tb.Context(), probes)
	if err != nil {
		tb.Fatal(err)
	}
	if len(st) != len(probes) {
		tb.Fatalf("%d answers to %d probes", len(st), len(probes))
	}
	return st
}

func probe(r ledger.Row) ledger.Probe { return ledger.Probe{Keys: r.Keys, Event: r.Event} }

func expectSame(tb testing.TB, what string, got, want any) {
	tb.Helper()
	if !reflect.DeepEqual(got, want) {
		tb.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

func ledgerColumns(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	full := ledger.Row{
		Keys:  idem.Keys{Idem: idemKey(1), Edge: edgeKey(1), Window: -7},
		Event: eventID(1), Facility: "F-1", Scanner: "agent-a/SCN|04", NDC: "00093721410", Lot: `A|1\`, Quantity: 9999,
		Type: window.Return, Extras: "serial=S|w=5000", GTIN: "00300937214106", HIBC: "A9991234", Serial: "S", NDC11: "00093721410",
		NDC12: "000937214109", Expiry: "2028-02-29", PkgLevel: 0, Flags: []string{"expiry_day_zero", ledger.ClaimBypassed, "a,b \"c\""},
		RxToken: "rx1.0123abcd.00", Agent: "agent-a", CapturedAt: -1, Quality: window.Device,
	}
	bare := row(2, 2, 0)
	bare.NDC, bare.Lot, bare.NDC11 = "", "", ""
	in, err := l.Insert(tb.Context(), []ledger.Row{full, bare})
	if err != nil || len(in.Receipts) != 2 {
		tb.Fatalf("insert: %+v, %v", in, err)
	}
	for _, rc := range in.Receipts {
		want := full
		if rc.Event == bare.Event {
			want = bare
		}
		want.CommittedAt = rc.CommittedAt
		found, err := l.Find(tb.Context(), hex.EncodeToString(want.Keys.Idem.Hash[:]), 2)
		if err != nil {
			tb.Fatal(err)
		}
		expectSame(tb, "found", found, []ledger.Row{want})
		i := slices.IndexFunc(allRows(tb, l, ledger.Span{}), func(r ledger.Row) bool { return reflect.DeepEqual(r, want) })
		if i < 0 {
			tb.Errorf("row of %s is not among Rows as it was inserted", rc.Event)
		}
	}
	// For every scan type and quality.
	var rows []ledger.Row
	for i, t := range window.ScanTypes() {
		r := row(10+i, 10+i, 0)
		r.Type, r.Quality, r.PkgLevel = t, window.Quality(i%4), i
		rows = append(rows, r)
	}
	insert(tb, l, rows...)
	for _, want := range rows {
		found, err := l.Find(tb.Context(), hex.EncodeToString(want.Keys.Idem.Hash[:]), 2)
		if err != nil || len(found) != 1 {
			tb.Fatalf("find: %v, %v", found, err)
		}
		want.CommittedAt = found[0].CommittedAt
		expectSame(tb, "found", found[0], want)
	}
}

func ledgerUnique(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	expectIn(tb, insert(tb, a), []int{}...)
	expectIn(tb, insert(tb, a, row(1, 1, 1)), 1)
	expectIn(tb, insert(tb, b, row(2, 1, 0)), []int{}...)                              // idem taken
	expectIn(tb, insert(tb, b, row(2, 1, 2)), []int{}...)                              // idem taken, edge free
	expectIn(tb, insert(tb, b, row(2, 2, 1)), []int{}...)                              // edge taken
	expectIn(tb, insert(tb, b, row(1, 3, 0)), []int{}...)                              // event taken
	expectIn(tb, insert(tb, b, row(4, 4, 0), row(2, 2, 1), row(5, 5, 5)), 4, 5)        // the neighbours get in
	expectIn(tb, insert(tb, b, row(6, 6, 0), row(7, 7, 0)), 6, 7)                      // no edge is no key
	expectIn(tb, insert(tb, a, row(8, 4, 0), row(9, 9, 5), row(6, 10, 0)), []int{}...) // one of each
	expectCount(tb, a, 5)
}

func ledgerUniqueWithin(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	for i, two := range [][2]ledger.Row{
		{row(1, 1, 0), row(2, 1, 0)}, // idem
		{row(3, 3, 3), row(4, 4, 3)}, // edge
		{row(5, 5, 0), row(5, 6, 0)}, // event
		{row(7, 7, 7), row(7, 7, 7)}, // all
		{row(8, 8, 8), row(9, 8, 9)}, // idem, edges differ
		{row(10, 10, 0), row(11, 10, 10)},
	} {
		if got := insert(tb, l, two[0], two[1]); len(got) != 1 {
			tb.Errorf("two rows with a common key: receipts for %v, want one", got)
		}
		expectCount(tb, l, i+1)
	}
}

func ledgerRefused(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	expectIn(tb, insert(tb, l, row(1, 1, 1)), 1)
	expectIn(tb, insert(tb, l, row(2, 2, 1)), []int{}...) // for its edge; must leave neither idem 2 nor event 2
	expectIn(tb, insert(tb, l, row(3, 1, 3)), []int{}...) // for its idem; must not leave edge 3
	expectIn(tb, insert(tb, l, row(3, 2, 3)), 3)
	expectIn(tb, insert(tb, l, row(2, 4, 0)), 2)
	expectCount(tb, l, 3)
}

func ledgerLostReply(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	rows := []ledger.Row{row(1, 1, 1), row(2, 2, 0), row(3, 3, 3)}
	expectIn(tb, insert(tb, a, rows[:2]...), 1, 2)
	expectIn(tb, insert(tb, b, rows...), 3) // the reply was lost: the same rows again, and one that was not sent
	expectCount(tb, a, 3)
	for i, s := range standing(tb, b, probe(rows[0]), probe(rows[1]), probe(rows[2])) {
		if s.ByEvent.Event != rows[i].Event || s.ByEvent.Key != rows[i].Keys.Idem || s.ByEvent.CommittedAt == 0 {
			tb.Errorf("own row of event %d: %+v", i+1, s.ByEvent)
		}
	}
}

func ledgerStanding(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	rows := map[int]ledger.Row{1: row(1, 1, 1), 2: row(2, 2, 2), 3: row(3, 3, 0)}
	bypassed := rows[2]
	bypassed.Flags, bypassed.Agent = []string{"expiry_day_zero", ledger.ClaimBypassed}, "agent-b"
	rows[2] = bypassed
	insert(tb, a, rows[1], rows[2], rows[3])
	owners := map[int]ledger.Owner{}
	for _, r := range allRows(tb, a, ledger.Span{}) {
		owners[number(tb, r.Event)] = ledger.Owner{Event: r.Event, Key: r.Keys.Idem, CommittedAt: r.CommittedAt, Agent: r.Agent, Bypassed: r.Flags != nil}
	}
	var probes []ledger.Probe
	var want []ledger.Standing
	for e := 1; e <= 4; e++ { // 4 has no row
		for i := 1; i <= 4; i++ {
			for edge := 0; edge <= 4; edge++ { // 0 is no edge key; no row has edge 3 or 4
				r := row(e, i, edge)
				probes = append(probes, probe(r))
				s := ledger.Standing{ByEvent: owners[e], ByIdem: owners[i]}
				if edge == 1 || edge == 2 {
					s.ByEdge = owners[edge]
				}
				want = append(want, s)
			}
		}
	}
	for i, got := range standing(tb, b, probes...) {
		if got != want[i] {
			tb.Errorf("probe %d: %+v, want %+v", i, got, want[i])
		}
	}
	// A key is met under its own kind only.
	mixed := row(9, 9, 9)
	mixed.Keys.Idem.Hash, mixed.Keys.Edge.Hash = rows[1].Keys.Edge.Hash, rows[1].Keys.Idem.Hash
	if s := standing(tb, b, probe(mixed))[0]; s != (ledger.Standing{}) {
		tb.Errorf("idem and edge keys mixed up: %+v", s)
	}
	standing(tb, b)
}

func ledgerPoison(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	bad := map[string]func(r *ledger.Row){
		"no key":            func(r *ledger.Row) { r.Keys.Idem = idem.Key{} },
		"key of other kind": func(r *ledger.Row) { r.Keys.Idem.Kind = idem.Edge },
		"edge of no kind":   func(r *ledger.Row) { r.Keys.Edge = idemKey(77) },
		"no facility":       func(r *ledger.Row) { r.Facility = "" },
		"no scanner":        func(r *ledger.Row) { r.Scanner = "" },
		"no agent":          func(r *ledger.Row) { r.Agent = "" },
		"quantity 0":        func(r *ledger.Row) { r.Quantity = 0 },
		"quantity -1":       func(r *ledger.Row) { r.Quantity = -1 },
		"quantity 10000":    func(r *ledger.Row) { r.Quantity = 10000 },
		"type 0":            func(r *ledger.Row) { r.Type = 0 },
		"type 8":            func(r *ledger.Row) { r.Type = 8 },
		"quality 4":         func(r *ledger.Row) { r.Quality = 4 },
		"expiry text":       func(r *ledger.Row) { r.Expiry = "soon" },
		"expiry 02-30":      func(r *ledger.Row) { r.Expiry = "2027-02-30" },
		"expiry 6 digits":   func(r *ledger.Row) { r.Expiry = "270228" },
		"level 10":          func(r *ledger.Row) { r.PkgLevel = 10 },
		"level -2":          func(r *ledger.Row) { r.PkgLevel = -2 },
		"NUL":               func(r *ledger.Row) { r.Lot = "A\x00" },
		"not UTF-8":         func(r *ledger.Row) { r.Serial = "\xff" },
		"flag not UTF-8":    func(r *ledger.Row) { r.Flags = []string{"\xff"} },
		"year 10000":        func(r *ledger.Row) { r.CapturedAt = 253402300800000 },
	}
	n := 0
	var batch []ledger.Row
	var poison, good []idem.EventID
	for name, spoil := range bad {
		r := row(n, n+1, 0)
		spoil(&r)
		in, err := l.Insert(tb.Context(), []ledger.Row{r})
		if err != nil || len(in.Receipts) != 0 || len(in.Poison) != 1 || in.Poison[0].Event != r.Event || in.Poison[0].Detail == "" {
			tb.Errorf("%s, alone: %+v, %v; want it named as poison", name, in, err)
		}
		ok := row(n+1, n+2, 0)
		batch = append(batch, r, ok)
		poison, good = append(poison, r.Event), append(good, ok.Event)
		n += 2
	}
	in, err := l.Insert(tb.Context(), batch)
	if err != nil {
		tb.Fatal(err)
	}
	var named, got []idem.EventID
	for _, p := range in.Poison {
		named = append(named, p.Event)
	}
	for _, rc := range in.Receipts {
		got = append(got, rc.Event)
	}
	for _, list := range [][]idem.EventID{poison, good, named, got} {
		slices.SortFunc(list, func(a, b idem.EventID) int { return slices.Compare(a[:], b[:]) })
	}
	expectSame(tb, "poison among good rows", named, poison)
	expectSame(tb, "good rows among poison", got, good)
	expectCount(tb, l, len(good))
	none := row(900, 900, 0)
	none.Event = idem.EventID{}
	if in, err := l.Insert(tb.Context(), []ledger.Row{none}); err != nil || len(in.Poison) != 1 {
		tb.Errorf("row without an event id: %+v, %v; want poison", in, err)
	}
}

// line is event e's audit line.
func line(e int, o ledger.Outcome) ledger.Line {
	return ledger.Line{Event: eventID(e), Agent: "agent-a", At: capturedAt + window.UTC(1000*e), Outcome: o, Reason: "reason"}
}

func suppressed(e, i, winner int) ledger.Line {
	l := line(e, ledger.Suppressed)
	l.Key, l.Winner, l.Reason = idemKey(i), eventID(winner), "bounce"
	return l
}

func appendLines(tb testing.TB, l ledger.Ledger, lines ...ledger.Line) {
	tb.Helper()
	if err := l.AppendLines(tb.Context(), lines); err != nil {
		tb.Fatal(err)
	}
}

func ledgerLinesOnce(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	full := ledger.Line{Event: eventID(1), Agent: "agent-a", At: -1, Key: idemKey(1), Ref: eventID(2),
		Outcome: ledger.Suppressed, Reason: "bounce", Winner: eventID(3), Scanner: "SCN-04", Type: window.Count,
		CapturedAt: capturedAt, TTL: 60000, Length: 4096, Symbology: "]d2"}
	other := line(1, ledger.Rejected)
	bare := ledger.Line{Event: eventID(4), Agent: "agent-a", At: capturedAt, Outcome: ledger.Notice}
	appendLines(tb, a)
	appendLines(tb, a, full, other)
	appendLines(tb, b, other, bare, full)
	appendLines(tb, b, bare, other)
	got := allLines(tb, a, ledger.Span{})
	if len(got) != 2 {
		tb.Fatalf("%d lines, want 2: %+v", len(got), got)
	}
	for i := range got {
		if got[i].RecordedAt == 0 {
			tb.Errorf("line %d has no recorded_at", i)
		}
		got[i].RecordedAt = 0
	}
	expectSame(tb, "lines", got, []ledger.Line{full, bare})
}

func ledgerLinesRefused(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	for name, x := range map[string]ledger.Line{
		"committed":              line(1, ledger.Committed),
		"no outcome":             line(1, ""),
		"no event":               {Agent: "agent-a", Outcome: ledger.Notice},
		"no agent":               {Event: eventID(1), Outcome: ledger.Notice},
		"suppressed without key": line(1, ledger.Suppressed),
		"key of another outcome": {Event: eventID(1), Agent: "agent-a", Outcome: ledger.Rejected, Key: idemKey(1)},
		"edge key":               {Event: eventID(1), Agent: "agent-a", Outcome: ledger.Suppressed, Key: edgeKey(1)},
		"not UTF-8":              {Event: eventID(1), Agent: "agent-a", Outcome: ledger.Notice, Reason: "\xff"},
	} {
		if err := l.AppendLines(tb.Context(), []ledger.Line{x}); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			tb.Errorf("%s: %v, want an error that begins with cannot", name, err)
		}
	}
	if got := allLines(tb, l, ledger.Span{}); len(got) != 0 {
		tb.Errorf("refused lines are there: %+v", got)
	}
}

// chained is number seq of an epoch's chain, about some events, behind prev.
func chained(agent, epoch string, seq uint64, prev [32]byte, events ...int) ledger.ChainRecord {
	r := ledger.ChainRecord{Agent: agent, Epoch: epoch, Seq: seq, Prev: prev}
	for _, e := range events {
		h := hash("line of "+agent, e)
		r.Events = append(r.Events, eventID(e))
		r.LineHashes = append(r.LineHashes, h[:]...)
	}
	r.Hash = ledger.ChainHash(prev, r.LineHashes)
	return r
}

// ledgerIngest: the first row that asks for a claim has it, whoever asks and how often.
func ledgerIngest(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	ask := func(l ledger.Ledger, asks ...ledger.Ingest) []ledger.Ingested {
		tb.Helper()
		got, err := l.Ingest(tb.Context(), asks)
		if err != nil || len(got) != len(asks) {
			tb.Fatalf("%d answers to %d questions, %v", len(got), len(asks), err)
		}
		for _, g := range got {
			if g.Age < 0 || g.Age > 10*time.Minute {
				tb.Errorf("an age of %v", g.Age)
			}
		}
		return got
	}
	is := func(got []ledger.Ingested, events ...int) {
		tb.Helper()
		for i, e := range events {
			if got[i].Event != eventID(e) {
				tb.Errorf("claim %d is that of event %s, want %s", i, got[i].Event, eventID(e))
			}
		}
	}
	is(ask(a, ledger.Ingest{Claim: "c2", Event: eventID(2)}, ledger.Ingest{Claim: "c1", Event: eventID(1)}), 2, 1)
	is(ask(a, ledger.Ingest{Claim: "c1", Event: eventID(1)}), 1) // once more
	is(ask(b, ledger.Ingest{Claim: "c3", Event: eventID(3)}, ledger.Ingest{Claim: "c1", Event: eventID(3)}, ledger.Ingest{Claim: "c2", Event: eventID(4)}), 3, 1, 2)
	is(ask(a, ledger.Ingest{Claim: "c4", Event: eventID(5)}, ledger.Ingest{Claim: "c4", Event: eventID(6)}, ledger.Ingest{Claim: "c3", Event: eventID(3)}), 5, 5, 3)
	if got := ask(a); len(got) != 0 {
		tb.Errorf("no question, %d answers", len(got))
	}
	var asking sync.WaitGroup
	winners := make([]ledger.Ingested, 16)
	for i := range winners {
		asking.Go(func() {
			l := a
			if i%2 == 1 {
				l = b
			}
			got, err := l.Ingest(tb.Context(), []ledger.Ingest{{Claim: "c5", Event: eventID(100 + i)}})
			if err != nil {
				tb.Error(err)
				return
			}
			winners[i] = got[0]
		})
	}
	asking.Wait()
	winner := ask(b, ledger.Ingest{Claim: "c5", Event: eventID(99)})[0].Event
	for i, w := range winners {
		if w.Event != winner {
			tb.Errorf("asker %d was told event %s, and it is %s", i, w.Event, winner)
		}
	}
	if err := a.Close(); err != nil {
		tb.Fatal(err)
	}
	is(ask(f.Open(tb), ledger.Ingest{Claim: "c4", Event: eventID(7)}), 5)
}

func appendChain(tb testing.TB, l ledger.Ledger, records ...ledger.ChainRecord) {
	tb.Helper()
	if err := l.AppendChain(tb.Context(), records); err != nil {
		tb.Fatal(err)
	}
}

func chain(tb testing.TB, l ledger.Ledger) (records []ledger.ChainRecord) {
	tb.Helper()
	if err := l.Chain(tb.Context(), func(r ledger.ChainRecord) error { records = append(records, r); return nil }); err != nil {
		tb.Fatal(err)
	}
	return records
}

func ledgerChain(tb testing.TB, f LedgerFixture) {
	a, b := f.pair(tb)
	one := chained("agent-a", "00000000000000aa", 1, [32]byte{}, 1, 2, 3)
	two := chained("agent-a", "00000000000000aa", 2, one.Hash, 4)
	other := chained("agent-a", "00000000000000bb", 1, two.Hash, 5, 6)
	foreign := chained("agent-b", "00000000000000aa", 1, [32]byte{7}, 7)
	appendChain(tb, a)
	appendChain(tb, a, one, foreign)
	changed := chained("agent-a", "00000000000000aa", 1, [32]byte{}, 9)
	appendChain(tb, b, one, two, other, changed)
	appendChain(tb, a, two)
	expectSame(tb, "chain", chain(tb, b), []ledger.ChainRecord{one, two, other, foreign})
	heads, err := a.ChainHeads(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	slices.SortFunc(heads, func(x, y ledger.ChainHead) int { return strings.Compare(x.Agent+x.Epoch, y.Agent+y.Epoch) })
	expectSame(tb, "heads", heads, []ledger.ChainHead{{Agent: "agent-a", Epoch: one.Epoch, Seq: 2}, {Agent: "agent-a", Epoch: other.Epoch, Seq: 1},
		{Agent: "agent-b", Epoch: one.Epoch, Seq: 1}})
	stop := errors.New("enough")
	n := 0
	if err := a.Chain(tb.Context(), func(ledger.ChainRecord) error { n++; return stop }); !errors.Is(err, stop) || n != 1 {
		tb.Errorf("%d records after the consumer had enough, %v", n, err)
	}
	if lines := allLines(tb, a, ledger.Span{}); len(lines) != 0 {
		tb.Errorf("the chain's records are lines: %+v", lines)
	}
}

// A chain is in the order of its numbers, however many there are.
func ledgerChainOrder(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	const n = 700
	var prev [32]byte
	var records []ledger.ChainRecord
	for seq := uint64(1); seq <= n; seq++ {
		records = append(records, chained("agent-a", "00000000000000aa", seq, prev, int(seq)))
		prev = records[seq-1].Hash
	}
	for i := len(records); i > 0; i -= 100 {
		appendChain(tb, l, records[i-100:i]...)
	}
	for i, r := range chain(tb, l) {
		if r.Seq != uint64(i+1) || r.Flaw() != "" {
			tb.Fatalf("record %d is %d (%s)", i+1, r.Seq, r.Flaw())
		}
	}
	if got := len(chain(tb, l)); got != n {
		tb.Errorf("%d records, want %d", got, n)
	}
}

func ledgerChainRefused(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	good := chained("agent-a", "00000000000000aa", 1, [32]byte{}, 1, 2)
	for name, spoil := range map[string]func(r *ledger.ChainRecord){
		"hash":             func(r *ledger.ChainRecord) { r.Hash[31] ^= 1 },
		"previous hash":    func(r *ledger.ChainRecord) { r.Prev[0] ^= 1 },
		"a hash too few":   func(r *ledger.ChainRecord) { r.LineHashes = r.LineHashes[:32] },
		"an event too few": func(r *ledger.ChainRecord) { r.Events = r.Events[:1] },
		"no number":        func(r *ledger.ChainRecord) { r.Seq = 0 },
		"no epoch":         func(r *ledger.ChainRecord) { r.Epoch = "" },
		"no agent":         func(r *ledger.ChainRecord) { r.Agent = "" },
	} {
		r := good
		spoil(&r)
		if err := l.AppendChain(tb.Context(), []ledger.ChainRecord{r}); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			tb.Errorf("%s: %v, want an error that begins with cannot", name, err)
		}
	}
	if got := chain(tb, l); len(got) != 0 {
		tb.Errorf("refused records are there: %+v", got)
	}
}

func ledgerRowLines(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	plain, bypassed := row(1, 1, 1), row(2, 2, 0)
	bypassed.Flags = []string{"expiry_day_zero", ledger.ClaimBypassed}
	insert(tb, l, plain, bypassed)
	dup, dup2 := suppressed(3, 1, 1), suppressed(4, 1, 1)
	appendLines(tb, l, dup, line(5, ledger.Rejected), dup2, suppressed(6, 2, 2))

	want := map[idem.EventID]ledger.Line{}
	for _, r := range allRows(tb, l, ledger.Span{}) {
		x := ledger.Line{Event: r.Event, Agent: r.Agent, At: r.CommittedAt, Key: r.Keys.Idem, Outcome: ledger.Committed,
			Scanner: r.Scanner, Type: r.Type, CapturedAt: r.CapturedAt, RecordedAt: r.CommittedAt}
		if r.Event == bypassed.Event {
			x.Reason = ledger.ClaimBypassed
		}
		want[r.Event] = x
	}
	committed := 0
	for _, x := range allLines(tb, l, ledger.Span{}) {
		if x.Outcome == ledger.Committed {
			committed++
			expectSame(tb, "committed line", x, want[x.Event])
		}
	}
	if committed != 2 {
		tb.Errorf("%d committed lines for 2 rows", committed)
	}
	got, err := l.LinesOf(tb.Context(), plain.Keys.Idem)
	if err != nil {
		tb.Fatal(err)
	}
	var events []idem.EventID
	for _, x := range got {
		events = append(events, x.Event)
	}
	expectSame(tb, "lines of the key", events, []idem.EventID{plain.Event, dup.Event, dup2.Event})
	if len(got) > 0 {
		expectSame(tb, "the row's line", got[0], want[plain.Event])
	}
	if none, err := l.LinesOf(tb.Context(), idemKey(99)); err != nil || len(none) != 0 {
		tb.Errorf("lines of an unknown key: %v, %v", none, err)
	}
	if _, err := l.LinesOf(tb.Context(), plain.Keys.Edge); err == nil {
		tb.Error("lines of an edge key: no error")
	}
}

// ledgerOrder leaves the order within one call open.
func ledgerOrder(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	const calls, rows = 25, 12 // more than a page
	var events, all [][]idem.EventID
	for n := range calls {
		var batch []ledger.Row
		var ids []idem.EventID
		for i := range rows {
			e := (n*rows + i) * 7 % (calls * rows)
			batch, ids = append(batch, row(e, e, 0)), append(ids, eventID(e))
		}
		insert(tb, l, batch...)
		appendLines(tb, l, line(1000+n, ledger.Control))
		events = append(events, ids)
		all = append(all, ids, []idem.EventID{eventID(1000 + n)})
	}
	var got, lines []idem.EventID
	last := window.UTC(0)
	for _, r := range allRows(tb, l, ledger.Span{}) {
		if r.CommittedAt < last {
			tb.Errorf("row %s is older than the one before it", r.Event)
		}
		last = r.CommittedAt
		got = append(got, r.Event)
	}
	for _, x := range allLines(tb, l, ledger.Span{}) {
		lines = append(lines, x.Event)
	}
	expectOrder(tb, "rows", got, events)
	expectOrder(tb, "lines", lines, all)
}

// expectOrder compares the events with those of the calls, whatever their order within a call.
func expectOrder(tb testing.TB, what string, got []idem.EventID, calls [][]idem.EventID) {
	tb.Helper()
	for n, call := range calls {
		for range call {
			if len(got) == 0 || !slices.Contains(call, got[0]) {
				tb.Errorf("%s are not in the order of their commit: call %d of %d", what, n, len(calls))
				return
			}
			got = got[1:]
		}
	}
	if len(got) != 0 {
		tb.Errorf("%d %s too many", len(got), what)
	}
}

func ledgerSpans(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	var rows []ledger.Row
	var lines []ledger.Line
	for n := range 10 {
		rows, lines = append(rows, row(n, n, 0)), append(lines, line(100+n, ledger.Control))
	}
	insert(tb, l, rows...)
	appendLines(tb, l, lines...)
	at := func(n int) window.UTC { return capturedAt + window.UTC(1000*n) }
	for _, c := range []struct {
		s           ledger.Span
		first, next int
	}{
		{ledger.Span{}, 0, 10},
		{ledger.Span{From: at(3)}, 3, 10},
		{ledger.Span{Until: at(3)}, 0, 3},
		{ledger.Span{From: at(3), Until: at(7)}, 3, 7},
		{ledger.Span{From: at(3) + 1, Until: at(6) + 1}, 4, 7},
		{ledger.Span{From: at(20)}, 10, 10},
	} {
		got, want := []int{}, []int{}
		for _, r := range allRows(tb, l, c.s) {
			got = append(got, number(tb, r.Event))
		}
		slices.Sort(got)
		for n := c.first; n < c.next; n++ {
			want = append(want, n)
		}
		expectSame(tb, fmt.Sprintf("rows of %+v", c.s), got, want)
	}
	got := []int{}
	for _, x := range allLines(tb, l, ledger.Span{From: at(104), Until: at(107)}) {
		if x.Outcome != ledger.Committed {
			got = append(got, number(tb, x.Event))
		}
	}
	slices.Sort(got)
	expectSame(tb, "lines of a span", got, []int{104, 105, 106})
}

func ledgerFind(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	hashes := []string{"00", "0a", "0abc", "0abd", "0b", "a0", "ab", "ab01", "abcd", "abce", "abd0", "ac", "ff", "ffff"}
	var all []ledger.Row
	for n, h := range hashes {
		r := row(n, n, 0)
		hex.Decode(r.Keys.Idem.Hash[:], []byte(h+strings.Repeat("0", 63-len(h))+"1"))
		hashes[n] = hex.EncodeToString(r.Keys.Idem.Hash[:])
		all = append(all, r)
	}
	insert(tb, l, all...)
	for _, prefix := range []string{"0", "a", "f", "00", "0a", "ab", "abc", "abcd", "0abc", "ffff", "fffff", "1", "b", "abcdef", hashes[8], hashes[8][:63]} {
		var want, got []string
		for _, h := range hashes {
			if strings.HasPrefix(h, prefix) {
				want = append(want, h)
			}
		}
		rows, err := l.Find(tb.Context(), prefix, 100)
		if err != nil {
			tb.Fatal(err)
		}
		for _, r := range rows {
			got = append(got, hex.EncodeToString(r.Keys.Idem.Hash[:]))
		}
		slices.Sort(got)
		expectSame(tb, "find "+prefix, got, want)
		if rows, err := l.Find(tb.Context(), prefix, 2); err != nil || len(rows) != min(2, len(want)) {
			tb.Errorf("find %s, at most 2: %d rows, %v", prefix, len(rows), err)
		}
	}
	for _, prefix := range []string{"", "xy", "a%", "scan:idem:ab", strings.Repeat("a", 65)} {
		if _, err := l.Find(tb.Context(), prefix, 10); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			tb.Errorf("find %q: %v, want an error that begins with cannot", prefix, err)
		}
	}
}

func ledgerYield(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	for n := range 3 {
		insert(tb, l, row(n, n, 0))
	}
	stop, seen := errors.New("enough"), 0
	again := func() error {
		if seen++; seen == 2 {
			return stop
		}
		return nil
	}
	if err := l.Rows(tb.Context(), ledger.Span{}, func(ledger.Row) error { return again() }); err != stop || seen != 2 {
		tb.Errorf("rows: %v after %d, want the consumer's own error after 2", err, seen)
	}
	seen = 0
	if err := l.Lines(tb.Context(), ledger.Span{}, func(ledger.Line) error { return again() }); err != stop || seen != 2 {
		tb.Errorf("lines: %v after %d, want the consumer's own error after 2", err, seen)
	}
	// A consumer may use the ledger, and writing does not wait for it.
	next := 10
	err := l.Rows(tb.Context(), ledger.Span{}, func(ledger.Row) error {
		next++
		insert(tb, l, row(next, next, 0))
		return nil
	})
	if err != nil || next < 13 {
		tb.Errorf("inserting while reading: %v, %d rows inserted", err, next-10)
	}
}

func ledgerConcurrent(tb testing.TB, f LedgerFixture) {
	const writers, keys, batch = 8, 60, 12
	a, b := f.pair(tb)
	var mu sync.Mutex
	receipts := map[idem.EventID]bool{}
	var wg sync.WaitGroup
	for w := range writers {
		l := a
		if w%2 == 1 {
			l = b
		}
		wg.Go(func() {
			for from := 0; from < keys; from += batch {
				var rows []ledger.Row
				for i := range batch {
					k := from + (i*5+w)%batch // each in an order of its own
					rows = append(rows, row(w*keys+k, k, k+1))
				}
				in, err := l.Insert(tb.Context(), rows)
				if err != nil {
					tb.Errorf("writer %d: %v", w, err)
				}
				mu.Lock()
				for _, rc := range in.Receipts {
					if receipts[rc.Event] {
						tb.Errorf("two receipts for %s", rc.Event)
					}
					receipts[rc.Event] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	expectCount(tb, a, keys)
	idems, edges := map[idem.Key]bool{}, map[idem.Key]bool{}
	for _, r := range allRows(tb, a, ledger.Span{}) {
		idems[r.Keys.Idem], edges[r.Keys.Edge] = true, true
		if !receipts[r.Event] {
			tb.Errorf("row of %s without a receipt", r.Event)
		}
	}
	if len(idems) != keys || len(edges) != keys || len(receipts) != keys {
		tb.Errorf("%d idem keys, %d edge keys, %d receipts, want %d of each", len(idems), len(edges), len(receipts), keys)
	}
}

// calls makes every call once and returns the errors by name.
func calls(ctx context.Context, l ledger.Ledger) map[string]error {
	errs := map[string]error{}
	_, errs["Insert"] = l.Insert(ctx, []ledger.Row{row(1, 1, 1)})
	_, errs["Standing"] = l.Standing(ctx, []ledger.Probe{probe(row(1, 1, 1))})
	errs["AppendLines"] = l.AppendLines(ctx, []ledger.Line{line(2, ledger.Notice)})
	errs["Rows"] = l.Rows(ctx, ledger.Span{}, func(ledger.Row) error { return nil })
	errs["Lines"] = l.Lines(ctx, ledger.Span{}, func(ledger.Line) error { return nil })
	_, errs["Find"] = l.Find(ctx, "ab", 1)
	_, errs["LinesOf"] = l.LinesOf(ctx, idemKey(1))
	_, errs["Count"] = l.Count(ctx)
	errs["Ping"] = l.Ping(ctx)
	return errs
}

func ledgerCancelled(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	cancel()
	for name, err := range calls(ctx, l) {
		if !errors.Is(err, context.Canceled) {
			tb.Errorf("%s: %v, want context.Canceled", name, err)
		}
	}
	expectCount(tb, l, 0)
}

func ledgerRestart(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	for n := 1; n <= 4; n += 2 {
		insert(tb, l, row(n, n, n), row(n+1, n+1, n+1))
		appendLines(tb, l, suppressed(100+n, n, n), suppressed(101+n, n+1, n+1))
	}
	rows, lines := allRows(tb, l, ledger.Span{}), allLines(tb, l, ledger.Span{})
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	l = f.Open(tb)
	expectSame(tb, "rows after a restart", allRows(tb, l, ledger.Span{}), rows)
	expectSame(tb, "lines after a restart", allLines(tb, l, ledger.Span{}), lines)
	expectCount(tb, l, 4)
	expectIn(tb, insert(tb, l, row(10, 1, 0), row(11, 11, 2), row(3, 12, 0), row(13, 13, 13)), 13)
	if of, err := l.LinesOf(tb.Context(), idemKey(4)); err != nil || len(of) != 2 {
		tb.Errorf("lines of a key after a restart: %+v, %v", of, err)
	}
}

func ledgerClosed(tb testing.TB, f LedgerFixture) {
	l := f.Open(tb)
	if err := l.Close(); err != nil {
		tb.Fatal(err)
	}
	for name, err := range calls(tb.Context(), l) {
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			tb.Errorf("%s: %v, want an error that begins with cannot", name, err)
		}
	}
}
