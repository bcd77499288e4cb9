package audit

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// trail is an audit trail in the making: lines with the records that bind them.
type trail struct {
	t        *testing.T
	items    []api.AuditItem
	next     int // event
	retained window.UTC
	now      window.UTC
	heads    map[string]*api.AuditRecord
}

func epochStart(lost int) func(*api.AuditEntry) {
	return func(e *api.AuditEntry) {
		e.Reason, e.ScannerID, e.ScanType, e.CapturedAt = ptr("epoch_start"), nil, nil, nil
		if lost > 0 {
			e.Length = &lost
		}
	}
}

// hashOf is the hash of a line, by way of the ledger's.
func (b *trail) hashOf(e *api.AuditEntry) []byte {
	l, err := newChecker().shape(e)
	if err != nil {
		b.t.Fatalf("a line of the test: %v", err)
	}
	h := l.Hash()
	return h[:]
}

// settle adds lines and the record that binds them, behind the epoch's last one or else behind prev.
func (b *trail) settle(epoch, prev string, lines ...api.AuditEntry) *api.AuditRecord {
	r := &api.AuditRecord{AgentID: "agent-a", SpoolEpoch: epoch, Seq: 1, PrevHash: prev}
	if before := b.heads[epoch]; before != nil {
		r.Seq, r.PrevHash = before.Seq+1, before.Hash
	}
	for i := range lines {
		r.EventIDs = append(r.EventIDs, lines[i].EventID)
		r.LineHashes += hex.EncodeToString(b.hashOf(&lines[i]))
		b.items = append(b.items, api.AuditItem{Line: &lines[i]})
	}
	b.seal(r)
	b.items = append(b.items, api.AuditItem{Record: r})
	b.heads[epoch] = r
	return r
}

// seal gives a record the hash of its content.
func (b *trail) seal(r *api.AuditRecord) {
	prev, err := hex.DecodeString(r.PrevHash)
	if err != nil {
		b.t.Fatal(err)
	}
	lines, err := hex.DecodeString(r.LineHashes)
	if err != nil {
		b.t.Fatal(err)
	}
	h := ledger.ChainHash([32]byte(prev), lines)
	r.Hash = hex.EncodeToString(h[:])
}

const epochA, epochB, epochC = "000000000000000a", "000000000000000b", "000000000000000c"

var zeroHash = strings.Repeat("0", 64)

func idOf(t *testing.T, n int) idem.EventID {
	t.Helper()
	id, err := idem.ParseEventID(eventOf(n))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// at makes a line minutes later.
func at(minutes int, e api.AuditEntry) api.AuditEntry {
	e.At += window.UTC(minutes * 60_000)
	e.RecordedAt = e.At
	return e
}

// good is a trail of two epochs: lines 1-4 with record 5, line 6 with record 7, lines 8-9 with record 10, line 11 with
// record 12.
func goodChain(t *testing.T) *trail {
	b := &trail{t: t, heads: map[string]*api.AuditRecord{}}
	b.settle(epochA, zeroHash, auditLine(1, "notice", epochStart(0)), committedLine(2, 1), suppressedLine(3, 1, 2),
		auditLine(4, "rejected", func(e *api.AuditEntry) { e.Reason, e.Length, e.Symbology = ptr("check_digit"), ptr(12), ptr("]d2") }))
	a := b.settle(epochA, "", committedLine(5, 2))
	b.settle(epochB, a.Hash, at(5, auditLine(6, "notice", epochStart(0))), at(5, committedLine(7, 3)))
	b.settle(epochB, "", at(5, suppressedLine(8, 3, 7)))
	return b
}

func (b *trail) check() api.AuditReport {
	c := newChecker()
	c.retained, c.now = b.retained, b.now
	for i := range b.items {
		c.item(&b.items[i])
	}
	return c.report()
}

func TestChainOfAGoodTrail(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *trail)
		gaps   int64
	}{
		"as it is": {func(*trail) {}, 0},
		"records behind all lines": {func(b *trail) {
			slices.SortStableFunc(b.items, func(x, y api.AuditItem) int {
				rank := func(i api.AuditItem) int {
					if i.Record != nil {
						return 1
					}
					return 0
				}
				return rank(x) - rank(y)
			})
		}, 0},
		"the last line is not bound yet": {func(b *trail) {
			l := at(6, committedLine(9, 4))
			b.items = append(b.items, api.AuditItem{Line: &l})
		}, 0},
		"a start that tells of lost records": {func(b *trail) {
			b.settle(epochC, b.heads[epochB].Hash, at(9, auditLine(9, "notice", epochStart(17))))
		}, 1},
		"a start without memory": {func(b *trail) { b.settle(epochC, zeroHash, at(9, auditLine(9, "notice", epochStart(0)))) }, 1},
		"lines that nobody bound before a start without memory": {func(b *trail) {
			l := at(1, committedLine(10, 5))
			b.items = append([]api.AuditItem{{Line: &l}}, b.items...)
			b.settle(epochC, zeroHash, at(9, auditLine(9, "notice", epochStart(0))))
		}, 1},
		"lines past their retention are gone": {func(b *trail) {
			for n := 1; n <= 5; n++ {
				b.items = slices.DeleteFunc(b.items, func(i api.AuditItem) bool { return i.Line != nil && i.Line.EventID == eventOf(n) && i.Line.Key == nil })
			}
			b.retained = eventTime(idOf(b.t, 1)) + 1
		}, 0},
		"settled again after the memory of it was lost": {func(b *trail) {
			b.settle(epochC, zeroHash, at(9, auditLine(9, "notice", epochStart(0))), at(9, committedLine(10, 5)))
			r := b.items[len(b.items)-1].Record
			other := at(9, suppressedLine(3, 1, 2)) // as the line of event 3, decided later: the first one stands
			r.EventIDs = append(r.EventIDs, eventOf(3), eventOf(2))
			two := committedLine(2, 1)
			r.LineHashes += hex.EncodeToString(b.hashOf(&other)) + hex.EncodeToString(b.hashOf(&two))
			b.seal(r)
		}, 1},
	} {
		b := goodChain(t)
		c.change(b)
		if r := b.check(); !r.OK || r.DeclaredGaps != c.gaps {
			t.Errorf("%s: %d gaps, %+v", name, r.DeclaredGaps, r.FirstBad)
		}
	}
}

// line returns line n of the trail, counted from 1 with the records.
func (b *trail) line(n int) *api.AuditEntry { return b.items[n-1].Line }

func (b *trail) record(n int) *api.AuditRecord { return b.items[n-1].Record }

func (b *trail) remove(n int) { b.items = slices.Delete(b.items, n-1, n) }

func TestChainFindsWhatWasDone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b *trail)
		line   int64
		reason string
		event  int // of the line that is told; 0 is a record
	}{
		"time of a line":                          {func(b *trail) { b.line(4).At++ }, 4, "altered", 4},
		"agent of a line":                         {func(b *trail) { b.line(4).AgentID = "agent-b" }, 4, "altered", 4},
		"reason of a line":                        {func(b *trail) { b.line(4).Reason = ptr("bad_date") }, 4, "altered", 4},
		"length of a line":                        {func(b *trail) { b.line(4).Length = ptr(13) }, 4, "altered", 4},
		"symbology of a line":                     {func(b *trail) { b.line(4).Symbology = nil }, 4, "altered", 4},
		"scanner of a row":                        {func(b *trail) { b.line(6).ScannerID = ptr("SCN-05") }, 6, "altered", 5},
		"type of a row":                           {func(b *trail) { b.line(6).ScanType = ptr("return") }, 6, "altered", 5},
		"capture time of a row":                   {func(b *trail) { *b.line(6).CapturedAt++ }, 6, "altered", 5},
		"key of a row":                            {func(b *trail) { b.line(6).Key = ptr(keyOf(9)) }, 6, "altered", 5},
		"ttl of a line":                           {func(b *trail) { b.line(3).TTLMS = ptr(1) }, 3, "altered", 3},
		"a line less":                             {func(b *trail) { b.remove(4) }, 4, "missing", 4},
		"a row less":                              {func(b *trail) { b.remove(6) }, 6, "missing", 5},
		"a line more":                             {func(b *trail) { l := committedLine(9, 4); b.items = append(b.items, api.AuditItem{Line: &l}) }, 13, "missing", 9},
		"a record less":                           {func(b *trail) { b.remove(5) }, 6, "missing", 0},
		"the last of an epoch less":               {func(b *trail) { b.remove(7) }, 9, "missing", 0},
		"the last of an epoch less with its line": {func(b *trail) { b.remove(7); b.remove(6) }, 8, "missing", 0},
		"an epoch less":                           {func(b *trail) { b.items = b.items[7:] }, 3, "missing", 0},
		"records swapped":                         {func(b *trail) { b.items[4], b.items[6] = b.items[6], b.items[4] }, 5, "missing", 0},
		"a record twice":                          {func(b *trail) { b.items = append(b.items, b.items[6]) }, 13, "order", 0},
		"two epochs follow one":                   {func(b *trail) { b.settle(epochC, b.record(7).Hash, at(5, auditLine(9, "notice", epochStart(0)))) }, 14, "order", 0},
		"a hash":                                  {func(b *trail) { b.record(7).Hash = zeroHash }, 7, "altered", 0},
		"a line's hash, made to fit": {func(b *trail) {
			r := b.record(7)
			r.LineHashes = zeroHash
			b.seal(r)
		}, 6, "altered", 5},
		"a link, made to fit": {func(b *trail) {
			r := b.record(12)
			r.PrevHash = zeroHash
			b.seal(r)
		}, 12, "altered", 0},
		"a start without its notice": {func(b *trail) { b.settle(epochC, b.heads[epochB].Hash, at(5, committedLine(9, 4))) }, 14, "altered", 0},
		"the records of an agent": {func(b *trail) {
			b.items = slices.DeleteFunc(b.items, func(i api.AuditItem) bool { return i.Record != nil })
			b.now = b.items[0].Line.RecordedAt + 61_000
		}, 9, "missing", 0},
		"a line more, of a time to come": {func(b *trail) {
			l := at(6, committedLine(9, 4))
			b.now = l.RecordedAt
			l.RecordedAt += 301_000
			b.items = append(b.items, api.AuditItem{Line: &l})
		}, 13, "altered", 9},
		"a line more, and the others said to be older": {func(b *trail) {
			for _, i := range b.items {
				if i.Line != nil {
					i.Line.RecordedAt -= 3600_000
				}
			}
			l := committedLine(9, 4)
			b.items = append(b.items, api.AuditItem{Line: &l})
		}, 13, "missing", 9},
		"an event that is none": {func(b *trail) { b.record(7).EventIDs[0] = "5" }, 7, "altered", 0},
		"a hash too few":        {func(b *trail) { b.record(5).EventIDs = b.record(5).EventIDs[1:] }, 5, "altered", 0},
	} {
		b := goodChain(t)
		c.change(b)
		r := b.check()
		if r.OK || r.FirstBad == nil {
			t.Errorf("%s: not found", name)
			continue
		}
		f := r.FirstBad
		if f.Line != c.line || f.Reason != c.reason || f.Detail == "" {
			t.Errorf("%s: line %d, %s (%s), want line %d, %s", name, f.Line, f.Reason, f.Detail, c.line, c.reason)
		}
		if c.event != 0 && (f.EventID == nil || *f.EventID != eventOf(c.event)) {
			t.Errorf("%s: event %s, want %d", name, text(f.EventID), c.event)
		}
	}
}

// An agent knows the last record that it has sent: a chain that was cut shows.
func TestChainIsNotCut(t *testing.T) {
	for name, c := range map[string]struct {
		cut  int // items at the end that are gone
		head func(b *trail) string
		ok   bool
	}{
		"whole":                       {0, func(b *trail) string { return b.record(12).Hash }, true},
		"more came since":             {0, func(b *trail) string { return b.record(7).Hash }, true},
		"the last record is cut off":  {1, func(b *trail) string { return b.record(12).Hash }, false},
		"the last batch is cut off":   {2, func(b *trail) string { return b.record(12).Hash }, false},
		"the last epoch is cut off":   {5, func(b *trail) string { return b.record(10).Hash }, false},
		"all of the chain is cut off": {12, func(b *trail) string { return b.record(12).Hash }, false},
		"a head that is none":         {0, func(b *trail) string { return "zz" }, false},
	} {
		b := goodChain(t)
		k := newChecker()
		k.heads["agent-a"] = c.head(b)
		b.items = b.items[:len(b.items)-c.cut]
		for i := range b.items {
			k.item(&b.items[i])
		}
		r := k.report()
		if r.OK != c.ok || !c.ok && (r.FirstBad.Reason != "missing" || r.FirstBad.Line != int64(len(b.items)+1)) {
			t.Errorf("%s: %+v %+v", name, r, r.FirstBad)
		}
	}
}
