package device

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

func ms(n int) window.Reading { return window.Reading{Boot: time.Duration(n) * time.Millisecond} }

// caught collects frames and shows them as a text.
type caught []Frame

func (c *caught) add(f Frame) { *c = append(*c, f) }

func (c caught) String() string {
	var b strings.Builder
	for _, f := range c {
		b.WriteString(show([]Message{{Data: f.Data, Fault: f.Fault, Length: f.Length}}))
	}
	return b.String()
}

func newPos(t testing.TB, l HIDPosLayout) (*HIDPos, *caught) {
	t.Helper()
	var got caught
	d, err := NewHIDPos("SCN-04", l, 200*time.Millisecond, got.add)
	if err != nil {
		t.Fatal(err)
	}
	return d, &got
}

// posVendors are the vendors' tables and how each of them sends a scan: from the manuals' pictures of a report,
// not from the tables.
var posVendors = []struct {
	name   string
	layout HIDPosLayout
	send   func(aim, data string) [][]byte
}{
	{"honeywell", hidPosHoneywell, func(aim, data string) (out [][]byte) {
		for pieces := split(data, 56); len(pieces) > 0; pieces = pieces[1:] {
			r := make([]byte, 64)
			r[0], r[1], r[61] = 0x02, byte(len(pieces[0])), 'w'
			copy(r[2:], aim)
			copy(r[5:], pieces[0])
			if len(pieces) > 1 {
				r[63] = 1
			}
			out = append(out, r)
		}
		return out
	}},
	{"newland", hidPosNewland, func(aim, data string) (out [][]byte) {
		for pieces := split(aim+data, 56); len(pieces) > 0; pieces = pieces[1:] {
			r := make([]byte, 64)
			r[0], r[1], r[62] = 0x02, byte(len(pieces[0])), 'u'
			copy(r[2:], pieces[0])
			if len(pieces) > 1 {
				r[63] = 1
			}
			out = append(out, r)
		}
		return out
	}},
	{"microscan", hidPosMicroscan, func(aim, data string) (out [][]byte) {
		for _, piece := range split(aim+data, 62) {
			r := make([]byte, 64)
			r[0], r[1] = 0x01, byte(len(piece))
			copy(r[2:], piece)
			out = append(out, r)
		}
		return out
	}},
}

func split(s string, n int) (out []string) {
	for p := range slices.Chunk([]byte(s), n) {
		out = append(out, string(p))
	}
	return out
}

// body is n bytes of data that no other seed has.
func body(seed, n int) string {
	s := fmt.Sprintf("<%d:", seed)
	for len(s) < n {
		s += string(rune('a' + (seed+len(s))%26))
	}
	return s[:n]
}

func TestHIDPos(t *testing.T) {
	for _, v := range posVendors {
		d, got := newPos(t, v.layout)
		want := ""
		for i, n := range []int{1, 5, 52, 55, 56, 57, 58, 60, 61, 62, 63, 112, 113, 300, 3000} {
			data := body(i, n)
			if len(data) > 10 {
				data = data[:6] + "\x1d\x00\xff" + data[9:]
			}
			full := v.name == "microscan" && (3+n)%62 == 0
			if full {
				want += fmt.Sprintf("<incomplete %d>", n+3)
			} else {
				want += "[]d2" + data + "]"
			}
			for k, r := range v.send("]d2", data) {
				d.Report(r, ms(1000*i+k))
			}
			if full != d.Pending() {
				t.Fatalf("%s: %d bytes: pending %v", v.name, n, d.Pending())
			}
			d.Expire()
		}
		if got.String() != want {
			t.Errorf("%s: got %q", v.name, got)
		}
		for _, f := range *got {
			if f.Scanner != "SCN-04" || f.Reply != nil || f.At.Boot%time.Second != time.Duration((f.Length-1)/max(v.layout.Max, 1))*time.Millisecond && v.name != "honeywell" {
				t.Errorf("%s: %+v", v.name, f)
			}
		}
	}
}

// A real answer of a Voyager to the command REVINF. in the middle of its scans, and Access-IS's example of a
// scan of two reports.
func TestHIDPosRecorded(t *testing.T) {
	pad := func(head []byte, tail ...byte) []byte {
		return append(append(head, make([]byte, 64-len(head)-len(tail))...), tail...)
	}
	d, got := newPos(t, hidPosHoneywell)
	d.Report(pad([]byte("\x02\x38]X0Product Name: Voyager 1602g\r\nBoot Revision: : 8992\r\nSoft"), '?', 0, 1), ms(0))
	d.Report(pad([]byte("\x02\x09]X0um: N/A\r\n"), '?', 0, 0), ms(4))
	d.Report(pad([]byte("\x02\x08]Z6REVINF\x06."), '6', 0, 0), ms(8))
	if d.Pending() || len(*got) > 0 {
		t.Fatalf("an answer is a scan: %q", got)
	}
	d.Report(pad([]byte("\x02\x38]Q0M1GATHERGOOD/MICHAEL  YABCDEF LHRDURAK 3542 052Y003D23  "), 's', 0, 1), ms(12))
	d.Report(pad([]byte("\x02\x04]Q0 100"), 's', 0, 0), ms(16))
	if want := "[]Q0M1GATHERGOOD/MICHAEL  YABCDEF LHRDURAK 3542 052Y003D23   100]"; got.String() != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if (*got)[0].At != ms(16) {
		t.Errorf("at %v", (*got)[0].At)
	}
	// An answer that breaks off is nobody's business, and within a scan it is a gap.
	d.Report(pad([]byte("\x02\x38]X0Product Name: Voyager 1602g\r\nBoot Revision: : 8992\r\nSoft"), '?', 0, 1), ms(20))
	d.Expire()
	d.Report(pad([]byte("\x02\x38]Q0M1GATHERGOOD/MICHAEL  YABCDEF LHRDURAK 3542 052Y003D23  "), 's', 0, 1), ms(24))
	d.Report(pad([]byte("\x02\x08]Z6REVINF\x06."), '6', 0, 0), ms(28))
	d.Report(pad([]byte("\x02\x04]Q0 100"), 's', 0, 0), ms(32))
	d.Report(pad([]byte("\x02\x03]E0123"), 'd', 0, 0), ms(36))
	if want := "<incomplete 63>[]E0123]"; (*got)[1:].String() != want {
		t.Errorf("got %q\nwant %q", (*got)[1:], want)
	}
	// What is lost behind its beginning may be a scan.
	*got = nil
	d.Report(pad([]byte("\x02\x38]X0Product Name: Voyager 1602g\r\nBoot Revision: : 8992\r\nSoft"), '?', 0, 1), ms(40))
	d.Lost(ms(44))
	d.Expire()
	if got.String() != "<incomplete 59>" {
		t.Errorf("lost behind an answer: got %q", got)
	}
	// Only Honeywell's are answers.
	other := hidPosHoneywell
	other.Answers = false
	d, got = newPos(t, other)
	d.Report(pad([]byte("\x02\x03]X0123"), 'd', 0, 0), ms(0))
	if got.String() != "[]X0123]" {
		t.Errorf("got %q", got)
	}
}

// Each fault voids the scan that it falls into and nothing else.
func TestHIDPosFaults(t *testing.T) {
	const (
		first = 1000 // ms
		later = 5000
	)
	for _, v := range posVendors {
		bad := body(1, 150)
		rs := v.send("]d2", bad)
		cut := func(r []byte, n int) []byte { return r[:n] }
		with := func(r []byte, at int, b byte) []byte { r = bytes.Clone(r); r[at] = b; return r }
		for _, tc := range []struct {
			name string
			feed func(d *HIDPos)
			want string
		}{
			{"dropped middle report", func(d *HIDPos) { d.Report(rs[0], ms(first)); d.Lost(ms(first + 2)); d.Report(rs[2], ms(first+2)) }, "<incomplete %2>"},
			{"dropped first report", func(d *HIDPos) { d.Lost(ms(first)); d.Report(rs[1], ms(first)); d.Report(rs[2], ms(first+1)) }, "<incomplete %3>"},
			{"missing last report", func(d *HIDPos) { d.Report(rs[0], ms(first)); d.Report(rs[1], ms(first+1)) }, "<incomplete %4>"},
			{"lost last report", func(d *HIDPos) { d.Report(rs[0], ms(first)); d.Report(rs[1], ms(first+1)); d.Lost(ms(first + 2)) }, "<incomplete %4>"},
			{"lost after silence", func(d *HIDPos) {
				d.Report(rs[0], ms(first))
				d.Lost(ms(first + 200))
				d.Report(rs[1], ms(first+201))
				d.Report(rs[2], ms(first+202))
			}, "<incomplete %1><incomplete %3>"},
			{"lost whole scan", func(d *HIDPos) { d.Lost(ms(first)) }, "<incomplete 0>"},
			{"unplugged", func(d *HIDPos) { d.Report(rs[0], ms(first)); d.Expire(); d.Expire() }, "<incomplete %1>"},
			{"silence", func(d *HIDPos) { d.Report(rs[0], ms(first)); d.Report(rs[1], ms(first+200)); d.Expire() }, "<incomplete %1><incomplete %5>"},
			{"no silence yet", func(d *HIDPos) {
				d.Report(rs[0], ms(first))
				d.Report(rs[1], ms(first+199))
				d.Report(rs[2], ms(first+398))
			}, "[]d2" + bad + "]"},
			{"zero-length reads", func(d *HIDPos) {
				d.Report(nil, ms(first))
				d.Report(rs[0], ms(first))
				d.Report([]byte{}, ms(first+1))
				d.Report(rs[1], ms(first+1))
				d.Report(rs[2], ms(first+2))
			}, "[]d2" + bad + "]"},
			{"another report between scans", func(d *HIDPos) {
				d.Report(with(rs[0], 0, 9), ms(first))
				d.Report([]byte{9}, ms(first))
			}, ""},
			{"another report within", func(d *HIDPos) {
				d.Report(rs[0], ms(first))
				d.Report(with(rs[0], 0, 9), ms(first+1))
				d.Report(rs[1], ms(first+1))
				d.Report(rs[2], ms(first+2))
			}, "<incomplete 153>"},
			{"shorter than declared", func(d *HIDPos) {
				d.Report(rs[0], ms(first))
				d.Report(cut(rs[1], 63), ms(first+1))
				d.Report(rs[2], ms(first+2))
			}, "<incomplete %8>"},
			{"much shorter than declared", func(d *HIDPos) { d.Report(cut(rs[0], 1), ms(first)); d.Report(rs[2], ms(first+2)) }, "<incomplete %6>"},
			{"longer than declared", func(d *HIDPos) {
				d.Report(rs[0], ms(first))
				d.Report(append(bytes.Clone(rs[1]), 0), ms(first+1))
				d.Report(rs[2], ms(first+2))
			}, "<incomplete 153>"},
			{"a length that cannot be", func(d *HIDPos) {
				d.Report(with(rs[0], 1, byte(v.layout.Max+1)), ms(first))
				d.Report(rs[2], ms(first+2))
			}, "<incomplete %7>"},
			{"nothing", func(d *HIDPos) {
				d.Report(with(v.send("]d2", "x")[0], 1, 0), ms(first))
			}, ""},
		} {
			d, got := newPos(t, v.layout)
			feed := func(s string, at int) {
				for _, r := range v.send("]C1", s) {
					d.Report(r, ms(at))
				}
			}
			feed("before", 0)
			tc.feed(d)
			feed("after", later)
			n := [3]int{} // bytes of the reports, the identifier counted once
			for i, r := range rs {
				n[i] = int(r[1])
			}
			head := 0
			if v.layout.AIM != 0 {
				head = 3
			}
			want := strings.NewReplacer("%1", fmt.Sprint(head+n[0]), "%2", fmt.Sprint(head+n[0]+n[2]), "%3", fmt.Sprint(n[1]+n[2]), "%4", fmt.Sprint(head+n[0]+n[1]),
				"%5", fmt.Sprint(head+n[1]), "%6", fmt.Sprint(n[2]), "%7", fmt.Sprint(v.layout.Max+n[2]), "%8", fmt.Sprint(head+n[0]+min(n[1], 63-v.layout.Data)+n[2])).Replace(tc.want)
			if want = "[]C1before]" + want + "[]C1after]"; got.String() != want {
				t.Errorf("%s, %s:\n got %q\nwant %q", v.name, tc.name, got, want)
			}
		}
	}
}

// What the reports themselves say of a gap.
func TestHIDPosGapWithoutSilence(t *testing.T) {
	h := posVendors[0].send
	long := h("]d2", body(1, 100))
	short := bytes.Clone(long[0])
	short[1] = 55
	for _, tc := range []struct {
		name    string
		reports [][]byte
		want    string
	}{
		{"another scan begins", [][]byte{long[0], h("]C1", "next")[0]}, "<incomplete 59>[]C1next]"},
		{"another long scan begins", slices.Concat([][]byte{long[0]}, h("]C1", body(2, 100))), "<incomplete 59>[]C1" + body(2, 100) + "]"},
		{"a report that goes on and is not full", [][]byte{short, long[1]}, "<incomplete 102>"},
		{"the last one is empty", [][]byte{long[0], append([]byte{2, 0}, make([]byte, 62)...)}, "[]d2" + body(1, 100)[:56] + "]"},
	} {
		d, got := newPos(t, hidPosHoneywell)
		for i, r := range tc.reports {
			d.Report(r, ms(i))
		}
		if got.String() != tc.want || d.Pending() {
			t.Errorf("%s: got %q, pending %v, want %q", tc.name, got, d.Pending(), tc.want)
		}
	}
	// Without a mark, a full scan of its own and a following one cannot be told from one that goes on.
	m := posVendors[2].send
	var d *HIDPos
	var got *caught
	for _, aim := range []string{"]C1", "]A0", "]z9"} {
		d, got = newPos(t, hidPosMicroscan)
		for i, r := range slices.Concat(m("]d2", body(1, 59)), m(aim, "next")) {
			d.Report(r, ms(i))
		}
		if got.String() != "<incomplete 69>" {
			t.Errorf("full one and %s: %q", aim, got)
		}
	}
	for i, r := range m("]d2", body(1, 59)+"]d") {
		d.Report(r, ms(1000+i))
	}
	if got.String() != "<incomplete 69>[]d2"+body(1, 59)+"]d]" {
		t.Errorf("full one and another one: %q", got)
	}
}

func TestHIDPosTooLong(t *testing.T) {
	for _, v := range posVendors {
		d, got := newPos(t, v.layout)
		for i, n := range []int{MaxFrame - 3, MaxFrame - 2, 3 * MaxFrame, 5} {
			for _, r := range v.send("]d2", body(i, n)) {
				d.Report(r, ms(i*1000))
			}
		}
		want := fmt.Sprintf("[]d2%s]<too_long %d><too_long %d>[]d2%s]", body(0, MaxFrame-3), MaxFrame+1, 3*MaxFrame+3, body(3, 5))
		if got.String() != want {
			t.Errorf("%s: got %.300q", v.name, got)
		}
	}
}

func TestHIDPosIdentifier(t *testing.T) {
	for _, aim := range []string{"\x00\x00\x00", "   ", "w\x00\x00"} {
		d, got := newPos(t, hidPosHoneywell)
		for _, r := range posVendors[0].send(aim, body(1, 80)) {
			d.Report(r, ms(0))
		}
		if got.String() != "["+body(1, 80)+"]" {
			t.Errorf("%q: got %q", aim, got)
		}
	}
}

// Two scanners at once, as two decoders.
func TestHIDPosInterleaved(t *testing.T) {
	var got caught
	a, err := NewHIDPos("A", hidPosHoneywell, time.Second, got.add)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewHIDPos("B", hidPosNewland, time.Second, got.add)
	if err != nil {
		t.Fatal(err)
	}
	ra, rb := posVendors[0].send("]d2", body(1, 150)), posVendors[1].send("]C1", body(2, 150))
	for i := range ra {
		a.Report(ra[i], ms(i))
		b.Report(rb[i], ms(i))
	}
	if want := "[]d2" + body(1, 150) + "][]C1" + body(2, 150) + "]"; got.String() != want || got[0].Scanner != "A" || got[1].Scanner != "B" {
		t.Errorf("got %q", got)
	}
}

func TestHIDPosLayoutRefused(t *testing.T) {
	for name, l := range map[string]HIDPosLayout{
		"zero":                   {},
		"data beyond the end":    {Report: 2, Size: 64, Length: 1, Data: 5, Max: 60},
		"length at the id":       {Report: 2, Size: 64, Data: 5, Max: 56},
		"length within the data": {Size: 64, Length: 5, Data: 5, Max: 56},
		"length in the AIM id":   {Report: 2, Size: 64, Length: 3, AIM: 2, Data: 5, Max: 56},
		"AIM beyond the end":     {Size: 64, AIM: 62, Data: 5, Max: 56},
		"more beyond the end":    {Size: 64, Data: 5, Max: 56, More: 64, MoreMask: 1},
		"more in the data":       {Size: 64, Data: 5, Max: 56, More: 60, MoreMask: 1},
		"more without a bit":     {Size: 64, Data: 5, Max: 56, More: 63},
		"more than a byte says":  {Size: 4000, Data: 5, Max: 256},
		"data at the id":         {Report: 2, Size: 64, Length: 60, Data: 0, Max: 56},
	} {
		if _, err := NewHIDPos("SCN-04", l, time.Second, nil); err == nil || !strings.HasPrefix(err.Error(), "cannot find ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHIDPosAllocates(t *testing.T) {
	d, err := NewHIDPos("SCN-04", hidPosHoneywell, time.Second, func(Frame) {})
	if err != nil {
		t.Fatal(err)
	}
	rs := posVendors[0].send("]d2", body(1, 150))
	if n := testing.AllocsPerRun(100, func() {
		for _, r := range rs {
			d.Report(r, ms(0))
		}
	}); n > 1 {
		t.Errorf("%v allocations a frame", n)
	}
}

// FuzzHIDPos sends scans with faults, and then anything. A frame is a scan that was sent whole; every scan that
// no fault came near is a frame.
func FuzzHIDPos(f *testing.F) {
	f.Add(uint8(0), uint64(1), []byte("\x02\x38]d2"))
	f.Add(uint8(1), uint64(2), []byte{2, 200, 1, 64, 2, 0})
	f.Add(uint8(2), uint64(3), posVendors[2].send("]d2", body(1, 100))[0])
	f.Add(uint8(0), uint64(4), slices.Concat(posVendors[0].send("]X0", body(1, 100))...))
	f.Fuzz(func(t *testing.T, vendor uint8, seed uint64, raw []byte) {
		v := posVendors[int(vendor)%len(posVendors)]
		d, got := newPos(t, v.layout)
		r := rand.New(rand.NewPCG(seed, 1))
		now, sent := 0, map[string]bool{}
		for i := range 1 + r.IntN(8) {
			data := body(i, 1+r.IntN(400))
			rs := v.send("]d2", data)
			fault, at := r.IntN(8), r.IntN(len(rs))
			unmarked := v.name == "microscan" && (len(data)+3)%62 == 0
		scan:
			for k, p := range rs {
				now += r.IntN(200)
				if k == at {
					switch fault {
					case 0: // dropped, and the reader knows
						d.Lost(ms(now))
						continue
					case 1:
						p = p[:1+r.IntN(len(p)-1)]
					case 2:
						p = append(bytes.Clone(p), 0)
					case 3:
						p = bytes.Clone(p)
						p[1] = byte(v.layout.Max + 1 + r.IntN(255-v.layout.Max))
					case 4: // unplugged
						d.Expire()
						break scan
					}
				}
				d.Report(p, ms(now))
			}
			sent["]d2"+data] = fault > 4 && !unmarked
			now += 200
			before := len(*got)
			d.Report(v.send("]C1", "whole")[0], ms(now))
			if frames := (*got)[before:]; len(frames) == 0 || string(frames[len(frames)-1].Data) != "]C1whole" {
				t.Fatalf("%s: a scan on its own gave %q", v.name, frames)
			}
			now += 200
		}
		for _, f := range *got {
			if s := string(f.Data); f.Fault == "" && s != "]C1whole" {
				if !sent[s] {
					t.Fatalf("%s: a frame that was not sent: %q", v.name, s)
				}
				sent[s] = false
			}
		}
		for s, whole := range sent {
			if whole {
				t.Fatalf("%s: no frame of %q", v.name, s)
			}
		}
		*got = nil
		total := 0
		for len(raw) > 0 {
			n := min(len(raw), 1+r.IntN(70))
			if r.IntN(2) == 0 {
				n = min(len(raw), 64)
			}
			d.Report(raw[:n], ms(now))
			total, raw, now = total+n+3, raw[n:], now+r.IntN(100)
		}
		d.Expire()
		if d.Pending() {
			t.Fatal("pending after Expire")
		}
		for _, f := range *got {
			total -= f.Length
			if (f.Fault == "") != (f.Data != nil) || f.Fault == "" && (len(f.Data) != f.Length || f.Length == 0) || (f.Fault == TooLong) != (f.Length > MaxFrame) {
				t.Fatalf("impossible frame %+v", f)
			}
		}
		if total < 0 {
			t.Fatalf("%d bytes more than were sent", -total)
		}
	})
}
