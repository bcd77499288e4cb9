package device

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

// decoderPacket is DECODE_DATA as a scanner sends it.
func decoderPacket(status byte, data string) []byte {
	p := append([]byte{byte(5 + len(data)), ssiDecode, 0, status, 0x1b}, data...)
	sum := ssiSum(p)
	return append(p, byte(sum>>8), byte(sum))
}

// The host's packets, byte for byte: CMD_ACK is that of the guides.
func TestSSIPackets(t *testing.T) {
	for want, got := range map[string][]byte{
		"04 d0 04 00 ff 28":    ssiPacket(ssiAck),
		"05 d1 04 00 01 ff 25": ssiPacket(ssiNak, ssiResend),
		"05 e6 04 00 06 ff 0b": ssiPacket(ssiBeep, 6),
	} {
		if g := fmt.Sprintf("% x", got); g != want {
			t.Errorf("%s, want %s", g, want)
		}
	}
}

// However a line cuts the bytes, the same frames and answers come of them; what is damaged is none, and voids nothing else.
func TestSSI(t *testing.T) {
	damaged := decoderPacket(0, "DAMAGED")
	damaged[7] ^= 0x20
	long := strings.Repeat("x", 200)
	all := bytes.Join([][]byte{
		{0, 0}, decoderPacket(0, "ONE\x1d"), decoderPacket(ssiAgain, "ONE\x1d"), damaged, decoderPacket(ssiAgain, "TWO"),
		ssiPacket(ssiAck), // our own, echoed
		{4, ssiAck, 0, 0, 0xff, 0x2c}, {5, ssiEvent, 0, 0, 3, 0xff, 0x02}, {4, 0xa4, 0, 0, 0xff, 0x58},
		decoderPacket(ssiMore, long), decoderPacket(ssiMore|ssiAgain, long), decoderPacket(0, "END"), decoderPacket(ssiAgain, "END"),
		decoderPacket(0, ""),
	}, nil)
	want := []string{"ONE\x1d", "again ONE\x1d", "incomplete", "again TWO", "d0", "d1 2", "d0", "d0", long + "END", "again " + long + "END", ""}
	for cut := range len(all) {
		var got []string
		d := &ssi{scanner: "S", gap: 200 * time.Millisecond}
		d.emit = func(f Frame) {
			switch {
			case f.Fault != "":
				got = append(got, string(f.Fault))
			case f.Resend:
				got = append(got, "again "+string(f.Data))
			default:
				got = append(got, string(f.Data))
			}
		}
		d.talk(func(p []byte) {
			what := fmt.Sprintf("%x", p[1])
			if p[1] == ssiNak {
				what += fmt.Sprintf(" %d", p[4])
			}
			got = append(got, what)
		})
		at := window.Reading{Boot: time.Hour}
		d.Report(all[:cut], at)
		at.Boot += 100 * time.Millisecond
		d.Report(all[cut:], at)
		if strings.Join(got, "|") != strings.Join(want, "|") {
			t.Fatalf("cut at %d: %q, want %q", cut, got, want)
		}
		if d.Pending() {
			t.Fatalf("cut at %d: something is left", cut)
		}
	}
}

// A packet that breaks off is void after the silence, and is not joined to the next.
func TestSSICutOff(t *testing.T) {
	var got []string
	d := &ssi{scanner: "S", gap: 200 * time.Millisecond, send: func([]byte) {}}
	d.emit = func(f Frame) { got = append(got, string(f.Fault)+string(f.Data)) }
	at := window.Reading{Boot: time.Hour}
	d.Report(decoderPacket(0, "ONE")[:6], at)
	if !d.Pending() {
		t.Error("nothing is under way")
	}
	at.Boot += 200 * time.Millisecond
	d.Report(decoderPacket(0, "TWO"), at)
	d.Report([]byte{3}, at) // no packet is so short
	d.Report(decoderPacket(0, "THREE")[:4], at)
	d.Expire()
	if s := strings.Join(got, "|"); s != "incomplete|TWO|incomplete|incomplete" {
		t.Error(s)
	}
}

// The packets of a scan whose end does not come are never joined to the next scan, and are told once nobody sends more.
func TestSSIWithoutItsEnd(t *testing.T) {
	for _, c := range []struct {
		silence time.Duration
		want    string
	}{{ssiGiveUp - 1, "PARTEND|TWO"}, {ssiGiveUp, "incomplete 4, unanswered|END|TWO"}} {
		var got []string
		d := &ssi{scanner: "S", gap: 200 * time.Millisecond, send: func([]byte) {}}
		d.emit = func(f Frame) {
			if f.Fault != "" {
				got = append(got, fmt.Sprintf("%s %d, unanswered", f.Fault, f.Length))
			} else {
				got = append(got, string(f.Data))
			}
			if f.mute != (f.Fault != "") {
				t.Errorf("an answer is due: %t", !f.mute)
			}
		}
		at := window.Reading{Boot: time.Hour}
		d.Report(decoderPacket(ssiMore, "PART"), at)
		at.Boot += c.silence
		d.Report(decoderPacket(0, "END"), at)
		d.Report(decoderPacket(0, "TWO"), at)
		d.giveUp()
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("after %v: %q, want %q", c.silence, s, c.want)
		}
		got = nil
		d.Report(decoderPacket(ssiMore, "PART"), at)
		d.giveUp() // the session is over
		if len(got) != 1 || !strings.HasPrefix(got[0], "incomplete 4") {
			t.Errorf("at the end: %q", got)
		}
	}
}
