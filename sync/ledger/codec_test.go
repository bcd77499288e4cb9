package ledger

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scanonce/idem"
	"scanonce/internal/boltfile"
	"scanonce/window"
)

func drawKey(t *rapid.T, kind idem.Kind, label string) idem.Key {
	return idem.Key{Kind: kind, Hash: [32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, label))}
}

func drawEvent(t *rapid.T, label string) idem.EventID {
	return idem.EventID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label))
}

func drawTime(t *rapid.T, label string) window.UTC {
	return window.UTC(rapid.Int64().Draw(t, label))
}

func TestRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Row{Event: drawEvent(t, "event"), Quantity: rapid.IntRange(1, maxQuantity).Draw(t, "quantity"),
			Type: window.ScanType(rapid.IntRange(0, 7).Draw(t, "type")), Quality: window.Quality(rapid.IntRange(0, 3).Draw(t, "quality")),
			PkgLevel: rapid.IntRange(-1, 9).Draw(t, "level"), CapturedAt: drawTime(t, "captured"), CommittedAt: drawTime(t, "committed")}
		r.Keys = idem.Keys{Idem: drawKey(t, idem.Idem, "idem"), Window: window.Index(rapid.Int64().Draw(t, "window"))}
		if rapid.Bool().Draw(t, "edge") {
			r.Keys.Edge = drawKey(t, idem.Edge, "edge")
		}
		for _, s := range r.texts() {
			*s = rapid.String().Draw(t, "text")
		}
		if n := rapid.IntRange(0, 3).Draw(t, "flags"); n > 0 {
			r.Flags = rapid.SliceOfN(rapid.String(), n, n).Draw(t, "flag")
		}
		body := appendRow(nil, &r)
		got, err := decodeRow(r.Keys.Idem.Hash[:], body)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v, %v, want %+v", got, err, r)
		}
		for n := range body { // cut anywhere
			if _, err := decodeRow(r.Keys.Idem.Hash[:], body[:n]); err == nil {
				t.Fatalf("%d of %d bytes are read as a row", n, len(body))
			}
		}
		if _, err := decodeRow(r.Keys.Idem.Hash[:], append(body, 0)); err == nil {
			t.Fatal("a byte too many is not noticed")
		}
	})
}

func TestLinesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := func(label string) string { return rapid.String().Draw(t, label) }
		l := Line{Event: drawEvent(t, "event"), Agent: text("agent"), At: drawTime(t, "at"), Ref: drawEvent(t, "ref"),
			Outcome: Outcome(text("outcome")), Reason: text("reason"), Winner: drawEvent(t, "winner"), Scanner: text("scanner"),
			Type: window.ScanType(rapid.IntRange(0, 7).Draw(t, "type")), CapturedAt: drawTime(t, "captured"),
			TTL: rapid.Int().Draw(t, "ttl"), Length: rapid.Int().Draw(t, "length"), Symbology: text("symbology"), RecordedAt: drawTime(t, "recorded")}
		if rapid.Bool().Draw(t, "key") {
			l.Key = drawKey(t, idem.Idem, "key hash")
		}
		body := appendLine(nil, &l)
		got, err := decodeLine(l.Event[:], body)
		if err != nil || got != l {
			t.Fatalf("%+v, %v, want %+v", got, err, l)
		}
		for n := range body {
			if _, err := decodeLine(l.Event[:], body[:n]); err == nil {
				t.Fatalf("%d of %d bytes are read as a line", n, len(body))
			}
		}
		if _, err := decodeLine(l.Event[:], append(body, 0)); err == nil {
			t.Fatal("a byte too many is not noticed")
		}
		other := l.Event
		other[3] ^= 1
		if _, err := decodeLine(other[:], body); err == nil {
			t.Fatal("a line under another event id is not noticed")
		}
	})
}

// A count that cannot be true costs no memory.
func TestAbsurdCountsAreRefused(t *testing.T) {
	r := Row{Event: idem.EventID{1}, Quantity: 1}
	body := appendRow(nil, &r)
	for _, n := range []uint64{1, 1 << 40, math.MaxUint64} {
		if _, err := decodeRow(make([]byte, 32), binary.AppendUvarint(bytes.Clone(body[:len(body)-1]), n)); err == nil {
			t.Errorf("a row with %d flags in no bytes is read", n)
		}
	}
}

// The stored form is pinned: a change needs a new version.
func TestStoredFormIsPinned(t *testing.T) {
	r := Row{Event: idem.EventID{1}, Facility: "F", Scanner: "S", NDC: "N", Lot: "L", Quantity: 300, Type: window.Dispense,
		Extras: "X", GTIN: "G", HIBC: "H", Serial: "s", NDC11: "1", NDC12: "2", Expiry: "E", PkgLevel: -1, Flags: []string{"f"},
		RxToken: "R", Agent: "A", CapturedAt: 2, Quality: window.Synced, CommittedAt: 3}
	r.Keys.Window = -1
	want := "\x01\x01" + strings.Repeat("\x00", 15) + "\x00\x00\x00\x00\x00\x00\x00\x03\x00\x01\xac\x02\x02\x02\x01" +
		"\x00\x00\x00\x00\x00\x00\x00\x02\x01F\x01S\x01N\x01L\x01X\x01G\x01H\x01s\x011\x012\x01E\x01R\x01A\x01\x01f"
	if got := string(appendRow(nil, &r)); got != want {
		t.Errorf("row body\n%q, want\n%q", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	r := Row{Event: idem.EventID{1}, Facility: "F", Scanner: "S", Quantity: 1, Type: window.Count, PkgLevel: 9, Flags: []string{"a", ""}, Agent: "A"}
	f.Add(appendRow(nil, &r))
	r.Keys.Edge = idem.Key{Kind: idem.Edge}
	f.Add(appendRow(nil, &r))
	l := Line{Event: idem.EventID{2}, Agent: "A", Outcome: Notice, TTL: math.MaxInt, Key: idem.Key{Kind: idem.Idem}}
	f.Add(appendLine(nil, &l))
	f.Add([]byte{1})
	key := make([]byte, 32)
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := decodeRow(key, body); err == nil {
			again, err := decodeRow(key, appendRow(nil, &r))
			if err != nil || !reflect.DeepEqual(again, r) {
				t.Errorf("row %+v comes back as %+v, %v", r, again, err)
			}
		} else if !strings.HasPrefix(err.Error(), "cannot ") {
			t.Error(err)
		}
		event := make([]byte, 16)
		copy(event, bytes.TrimPrefix(body, []byte{1}))
		if l, err := decodeLine(event, body); err == nil {
			again, err := decodeLine(event, appendLine(nil, &l))
			if err != nil || again != l {
				t.Errorf("line %+v comes back as %+v, %v", l, again, err)
			}
		} else if !strings.HasPrefix(err.Error(), "cannot ") {
			t.Error(err)
		}
		if b, err := unseal("rows", key, body); err == nil && !bytes.Equal(boltfile.Seal("rows", key, bytes.Clone(b)), body) {
			t.Error("a record was unsealed that was not sealed")
		}
	})
}
