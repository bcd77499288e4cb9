package spool

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scanonce/idem"
	"scanonce/window"
)

func drawEvent(t *rapid.T) (e idem.EventID) {
	copy(e[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "event"))
	return e
}

func drawKey(t *rapid.T, kind idem.Kind) idem.Key {
	k := idem.Key{Kind: kind}
	copy(k.Hash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash"))
	return k
}

func drawMaybeKey(t *rapid.T, kind idem.Kind) idem.Key {
	if rapid.Bool().Draw(t, "has key") {
		return drawKey(t, kind)
	}
	return idem.Key{}
}

func drawTexts(t *rapid.T) []string {
	if rapid.Bool().Draw(t, "none") {
		return nil
	}
	return rapid.SliceOfN(rapid.String(), 1, 4).Draw(t, "texts")
}

func drawRecord(t *rapid.T) Record {
	text := func(name string) string { return rapid.String().Draw(t, name) }
	r := Record{Seq: 7, Event: drawEvent(t), Physical: drawKey(t, idem.Physical),
		Keys:   idem.Keys{Idem: drawKey(t, idem.Idem), Edge: drawMaybeKey(t, idem.Edge), Window: window.Index(rapid.Int64().Draw(t, "window"))},
		Extras: text("extras"), Scanner: text("scanner"), Type: window.ScanType(rapid.Byte().Draw(t, "type")), Quantity: rapid.IntRange(0, 9999).Draw(t, "quantity"),
		At: window.UTC(rapid.Int64().Draw(t, "at")), Boot: time.Duration(rapid.Int64Range(0, 1<<60).Draw(t, "boot")),
		Span: time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "span")) * time.Millisecond, Quality: window.Quality(rapid.Byte().Draw(t, "quality")),
		Item: Item{NDC: text("ndc"), Lot: text("lot"), GTIN: text("gtin"), HIBC: text("hibc"), Serial: text("serial"), NDC11: text("ndc11"), NDC12: text("ndc12"),
			Candidates: drawTexts(t), Expiry: text("expiry"), PkgLevel: rapid.IntRange(-1, 9).Draw(t, "level"), Flags: drawTexts(t), RxToken: text("rx"),
			Symbology: text("symbology"), Length: rapid.IntRange(0, 1<<20).Draw(t, "length")}}
	r.Anchor = r.Boot - time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "anchor"))
	if rapid.Bool().Draw(t, "duplicate") {
		r.Of, r.OfSeq, r.Reason = drawEvent(t), rapid.Uint64Range(1, 1<<63).Draw(t, "of"), text("reason")
		r.Of[0] |= 1
	}
	if rapid.Bool().Draw(t, "has a request") {
		r.Once = Once{Key: drawEvent(t), Request: drawEvent(t)}
		r.Once.Key[0] |= 1
	}
	return r
}

func drawLine(t *rapid.T) Line {
	text := func(name string) string { return rapid.String().Draw(t, name) }
	return Line{Event: drawEvent(t), At: window.UTC(rapid.Int64().Draw(t, "at")), Key: drawMaybeKey(t, idem.Idem), Ref: drawEvent(t), Outcome: text("outcome"),
		Reason: text("reason"), Winner: drawEvent(t), Scanner: text("scanner"), Type: window.ScanType(rapid.Byte().Draw(t, "type")),
		CapturedAt: window.UTC(rapid.Int64().Draw(t, "captured")), TTL: rapid.IntRange(0, 1<<40).Draw(t, "ttl"), Length: rapid.IntRange(0, 1<<40).Draw(t, "length"), Symbology: text("symb")}
}

func TestRoundTrip(t *testing.T) {
	t.Run("record", rapid.MakeCheck(func(t *rapid.T) {
		want := drawRecord(t)
		got := Record{Seq: 7}
		if err := got.decode(want.append(nil)); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v", got, err)
		}
	}))
	t.Run("line", rapid.MakeCheck(func(t *rapid.T) {
		want := drawLine(t)
		var got Line
		if err := got.decode(want.append(nil)); err != nil || got != want {
			t.Fatalf("got %+v, %v", got, err)
		}
	}))
	t.Run("settled", rapid.MakeCheck(func(t *rapid.T) {
		number := rapid.Uint64().Draw(t, "number")
		var want []Verdict
		for range rapid.IntRange(0, 5).Draw(t, "n") {
			v := Verdict{Seq: rapid.Uint64().Draw(t, "seq"), State: rapid.SampledFrom([]State{Committed, Suppressed}).Draw(t, "state"), CommittedAt: window.UTC(rapid.Int64().Draw(t, "at"))}
			if v.State == Suppressed {
				v.Key, v.Winner, v.Reason = drawKey(t, idem.Idem), drawEvent(t), rapid.String().Draw(t, "reason")
			}
			want = append(want, v)
		}
		n, got, err := decodeSettled(appendSettled(nil, number, want))
		if err != nil || n != number || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %d, %+v, %v", n, got, err)
		}
	}))
}

// Every cut and every byte too many is an error, as is another version.
func TestCodecEnds(t *testing.T) {
	r := Record{Event: NewEvent(1), Of: NewEvent(2), OfSeq: 3, Keys: idem.Keys{Idem: idem.Key{Kind: idem.Idem}}, Item: Item{Candidates: []string{"a"}}}
	l := Line{Event: NewEvent(1), Key: idem.Key{Kind: idem.Idem}}
	for name, c := range map[string]struct {
		b      []byte
		decode func([]byte) error
	}{
		"record":  {r.append(nil), new(Record).decode},
		"line":    {l.append(nil), new(Line).decode},
		"settled": {appendSettled(nil, 1, []Verdict{{Seq: 1, State: Suppressed}}), func(b []byte) error { _, _, err := decodeSettled(b); return err }},
	} {
		if err := c.decode(c.b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for n := range len(c.b) {
			if c.decode(c.b[:n]) == nil {
				t.Errorf("%s: cut to %d of %d", name, n, len(c.b))
			}
		}
		if c.decode(append(c.b[:len(c.b):len(c.b)], 0)) == nil {
			t.Errorf("%s: a byte too many", name)
		}
		if c.decode(append([]byte{codecOnce + 1}, c.b[1:]...)) == nil {
			t.Errorf("%s: another version", name)
		}
	}
}

// What decodes at all, decodes to the same again after an encoding: no bytes make the codec fail otherwise.
func FuzzCodec(f *testing.F) {
	f.Add((&Record{Event: NewEvent(1), Scanner: "S", Item: Item{Candidates: []string{"1", "2"}, Flags: []string{"f"}}}).append(nil))
	f.Add((&Record{Event: NewEvent(1), Of: NewEvent(2), OfSeq: 9, Reason: ReasonBounce, Keys: idem.Keys{Edge: idem.Key{Kind: idem.Edge}}}).append(nil))
	f.Add((&Line{Event: NewEvent(1), Outcome: "rejected"}).append(nil))
	f.Add(appendSettled(nil, 3, []Verdict{{Seq: 1, State: Committed}, {Seq: 2, State: Suppressed, Reason: "r"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, r2 Record
		if r.decode(b) == nil {
			if err := r2.decode(r.append(nil)); err != nil || !reflect.DeepEqual(r, r2) {
				t.Fatalf("record %+v, then %+v, %v", r, r2, err)
			}
		}
		var l, l2 Line
		if l.decode(b) == nil {
			if err := l2.decode(l.append(nil)); err != nil || l != l2 {
				t.Fatalf("line %+v, then %+v, %v", l, l2, err)
			}
		}
		if n, vs, err := decodeSettled(b); err == nil {
			n2, vs2, err := decodeSettled(appendSettled(nil, n, vs))
			if err != nil || n != n2 || !reflect.DeepEqual(vs, vs2) {
				t.Fatalf("settled %d %+v, then %d %+v, %v", n, vs, n2, vs2, err)
			}
		}
	})
}
