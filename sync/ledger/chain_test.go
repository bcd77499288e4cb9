package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"scanonce/idem"
	"scanonce/window"
)

// The canonical form and the hash of a line, computed with sha256sum from the text.
func TestLineHash(t *testing.T) {
	l := Line{Event: idem.EventID{0x01, 0x9a, 0xce, 0xee, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 1}, Agent: "agent-a", At: 1_764_058_500_123,
		Key: idem.Key{Kind: idem.Idem, Hash: sha256.Sum256([]byte("key"))}, Outcome: Committed, Scanner: "SCN-04", Type: window.Dispense, CapturedAt: 1_764_058_500_000}
	const want = `{"agent_id":"agent-a","at":"2025-11-25T08:15:00.123Z","captured_at":"2025-11-25T08:15:00.000Z",` +
		`"event_id":"019aceee-0000-7000-8000-000000000001",` +
		`"key":"scan:idem:2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683",` +
		`"length":null,"outcome":"committed","reason":null,"ref":null,"scan_type":"dispense","scanner_id":"SCN-04",` +
		`"symbology":null,"ttl_ms":null,"winner_event_id":null}`
	if got := string(l.AppendCanonical(nil)); got != want {
		t.Errorf("canonical form\n%s, want\n%s", got, want)
	}
	const sum = "6ba065b37da09c489cb506472bcfd366631470417610a3581e4519beab60ac02"
	if h := l.Hash(); hex.EncodeToString(h[:]) != sum {
		t.Errorf("hash %x, want %s", h, sum)
	}
}

// The canonical form is what a JSON encoder writes that sorts the names, and it reads back.
func TestCanonicalFormIsSortedJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("aZ09_-]|\\\"/<>&\b\f\n\r\t\x00\x01\x1d\x1f\x7f é€𝄞")))
		l := Line{Event: drawEvent(t, "event"), Agent: "a" + text.Draw(t, "agent"), At: drawTime(t, "at"), Outcome: Outcome("o" + text.Draw(t, "outcome")),
			Reason: text.Draw(t, "reason"), Scanner: text.Draw(t, "scanner"), Symbology: text.Draw(t, "symbology"),
			TTL: rapid.IntRange(0, 1<<31).Draw(t, "ttl"), Length: rapid.IntRange(0, 4096).Draw(t, "length"),
			Type: window.ScanType(rapid.IntRange(0, 7).Draw(t, "type"))}
		if rapid.Bool().Draw(t, "more") {
			l.Ref, l.Winner, l.CapturedAt, l.Key = drawEvent(t, "ref"), drawEvent(t, "winner"), drawTime(t, "captured"), drawKey(t, idem.Idem, "key")
		}
		var columns map[string]any
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(&columns); err != nil {
			t.Fatal(err)
		}
		delete(columns, "recorded_at")
		var want bytes.Buffer
		enc := json.NewEncoder(&want) // sorts a map's names
		enc.SetEscapeHTML(false)
		if err := enc.Encode(columns); err != nil {
			t.Fatal(err)
		}
		if got := l.AppendCanonical(nil); !bytes.Equal(got, bytes.TrimSuffix(want.Bytes(), []byte("\n"))) {
			t.Fatalf("\n%s, want\n%s", got, want.Bytes())
		}
	})
}
