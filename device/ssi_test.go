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

// newTestSSI makes a decoder of a scanner with the response timeout by default. told is called with each frame.
func newTestSSI(told func(Frame)) *ssi {
	return &ssi{scanner: "S", gap: DefaultInterByteTimeout, retry: DefaultRetryInterval, emit: told, send: func([]byte) {}}
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
		d := newTestSSI(func(f Frame) {
			switch {
			case f.Fault != "":
				got = append(got, string(f.Fault))
			case f.Resend:
				got = append(got, "again "+string(f.Data))
			default:
				got = append(got, string(f.Data))
			}
		})
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
	d := newTestSSI(func(f Frame) { got = append(got, string(f.Fault)+string(f.Data)) })
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

// ssiHeard are the frames that packets lead to: of a scan its data, "again" in front of what was sent again, "void" and
// the length of what is incomplete, in brackets if an answer to it is due.
func ssiHeard(t *testing.T, retry time.Duration, packets ...ssiSent) string {
	t.Helper()
	var got []string
	d := newTestSSI(func(f Frame) {
		switch {
		case f.Fault == Incomplete && f.mute:
			got = append(got, fmt.Sprintf("void %d", f.Length))
		case f.Fault != "":
			got = append(got, fmt.Sprintf("[void %d]", f.Length))
		case f.Resend:
			got = append(got, "again "+string(f.Data))
		default:
			got = append(got, string(f.Data))
		}
	})
	d.retry = retry
	for _, p := range packets {
		for i := range p.packet { // as slowly as the line
			d.Report(p.packet[i:i+1], window.Reading{Boot: time.Hour + p.at + time.Duration(i)*p.each})
		}
	}
	return strings.Join(got, "|")
}

// ssiSent is a packet whose first byte comes at an instant, and the others one by one.
type ssiSent struct {
	at, each time.Duration
	packet   []byte
}

// The packets of a scan whose end does not come are never joined to the next scan, and are told once. The next packet
// of a scan begins within the response timeout, what is sent again shortly after it, from the end of the last one on,
// whatever that was and however slow the line is.
func TestSSIWithoutItsEnd(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	part, again := decoderPacket(ssiMore, "PART"), decoderPacket(ssiMore|ssiAgain, "PART")
	end, endAgain, two := decoderPacket(0, "END"), decoderPacket(ssiAgain, "END"), decoderPacket(0, "TWO")
	damaged := bytes.Clone(endAgain)
	damaged[6] ^= 0x20
	n := time.Duration(len(part) - 1) // bytes behind the first
	for name, c := range map[string]struct {
		retry time.Duration
		sent  []ssiSent
		want  string
	}{
		"whole":                      {2 * s, []ssiSent{{0, 0, part}, {0, 0, end}}, "PARTEND"},
		"in time":                    {2 * s, []ssiSent{{0, 0, part}, {2*s - 1, 0, end}}, "PARTEND"},
		"the next scan":              {2 * s, []ssiSent{{0, 0, part}, {2 * s, 0, two}}, "void 4|TWO"},
		"sent again in time":         {2 * s, []ssiSent{{0, 0, part}, {3*s - 1, 0, endAgain}}, "PARTEND"},
		"sent again too late":        {2 * s, []ssiSent{{0, 0, part}, {3 * s, 0, endAgain}}, "void 4|again END"},
		"a slow scanner":             {9 * s, []ssiSent{{0, 0, part}, {9 * s, 0, again}, {18 * s, 0, again}, {18 * s, 0, end}}, "PARTEND"},
		"a quick one":                {s, []ssiSent{{0, 0, part}, {s, 0, two}}, "void 4|TWO"},
		"all our answers are lost":   {2 * s, []ssiSent{{0, 0, part}, {2 * s, 0, again}, {4 * s, 0, again}, {8 * s, 0, two}}, "void 4|TWO"},
		"as soon as it gives up":     {2 * s, []ssiSent{{0, 0, part}, {2 * s, 0, again}, {4 * s, 0, again}, {6 * s, 0, two}}, "void 4|TWO"},
		"two of our answers":         {2 * s, []ssiSent{{0, 0, part}, {2 * s, 0, again}, {4 * s, 0, again}, {4 * s, 0, end}}, "PARTEND"},
		"two damaged":                {2 * s, []ssiSent{{0, 0, part}, {2 * s, 0, damaged}, {4 * s, 0, damaged}, {6 * s, 0, endAgain}}, "[void 10]|[void 10]|PARTEND"},
		"a damaged one too late":     {2 * s, []ssiSent{{0, 0, part}, {3 * s, 0, damaged}, {4 * s, 0, two}}, "void 4|[void 10]|TWO"},
		"a slow line":                {2 * s, []ssiSent{{0, 150 * ms, part}, {n*150*ms + s, 150 * ms, end}}, "PARTEND"},
		"a slow line, the next scan": {2 * s, []ssiSent{{0, 150 * ms, part}, {n*150*ms + 2*s, 150 * ms, two}}, "void 4|TWO"},
		"the end of an older one":    {2 * s, []ssiSent{{0, 0, part}, {0, 0, end}, {s, 0, part}, {4 * s, 0, endAgain}}, "PARTEND|void 4|again END"},
		"no end of an older one":     {2 * s, []ssiSent{{0, 0, decoderPacket(ssiMore, "X")}, {0, 0, end}, {s, 0, part}, {4 * s, 0, decoderPacket(ssiAgain, "\x00\x00\x00\x00")}}, "XEND|void 4|again \x00\x00\x00\x00"},
	} {
		if got := ssiHeard(t, c.retry, c.sent...); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A scan of several packets that is too long is told as one, and takes no more room than the longest.
func TestSSITooLong(t *testing.T) {
	const size = 249 // what a packet has room for
	for _, length := range []int{MaxFrame - 1, MaxFrame, MaxFrame + 1, 2 * MaxFrame} {
		var got []Frame
		d := newTestSSI(func(f Frame) { got = append(got, f) })
		d.data = make([]byte, 0, MaxFrame-1) // how much room there is, is the allocator's affair
		for left := length; left > 0; left -= size {
			status := byte(ssiMore)
			if left <= size {
				status = 0
			}
			d.Report(decoderPacket(status, strings.Repeat("x", min(left, size))), window.Reading{Boot: time.Hour})
		}
		want, fault := length, Fault("")
		if length >= MaxFrame {
			want, fault = 0, TooLong
		}
		if len(got) != 1 || got[0].Fault != fault || len(got[0].Data) != want || got[0].Length != min(length, MaxFrame) {
			t.Errorf("%d bytes: %d frames, %+v", length, len(got), got)
		}
	}
}

// Nothing of a scan that is given up stays in memory.
func TestSSIGivenUpIsForgotten(t *testing.T) {
	d := newTestSSI(func(Frame) {})
	d.Report(decoderPacket(ssiMore, "SECRET"), window.Reading{Boot: time.Hour})
	data, before := d.data, d.before
	if string(data) != "SECRET" || string(before) != "SECRET" {
		t.Fatalf("kept %q and %q", data, before)
	}
	d.giveUp()
	if got := string(data) + string(before) + string(d.before); strings.Trim(got, "\x00") != "" {
		t.Errorf("still there: %q", got)
	}
}
