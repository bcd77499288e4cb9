package device

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Descriptors as devices send them: the HID-POS one has what the usage tables and Honeywell's manuals say, the
// keyboard is a Datalogic Gryphon's.
const (
	descPos = `05 8c 09 02 a1 01 09 12 a1 02 85 02 15 00 26 ff 00 75 08 95 01 05 01 09 3b 81 02
		95 03 05 8c 09 fb 09 fc 09 fd 81 02 95 38 09 fe 82 02 01 95 01 06 66 ff 09 04 81 02 09 00 81 02
		05 8c 75 01 09 ff 81 02 95 07 81 03 c0 85 fd 75 08 95 3f 09 31 91 02 c0`
	descKeyboard = `05 01 09 06 a1 01 05 07 19 e0 29 e7 15 00 25 01 75 01 95 08 81 02 95 01 75 08 81 01 95 05 75 01
		05 08 19 01 29 05 91 02 95 01 75 03 91 01 95 06 75 08 15 00 26 ff 00 05 07 19 00 2a ff 00 81 00 c0`
	descVendor = `06 00 ff 09 01 a1 01 85 02 15 00 26 ff 00 75 08 95 3f 09 02 81 02 c0`
)

func parse(t testing.TB, s string) []HIDReport {
	t.Helper()
	rs, err := ParseHIDDescriptor(unhex(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

func showReports(rs []HIDReport) string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "%d:%d", r.ID, r.Size)
		for _, f := range r.Fields {
			fmt.Fprintf(&b, " %d+%dx%d", f.Bit, f.Count, f.Size)
			for _, u := range f.Usages {
				fmt.Fprintf(&b, ",%x", uint32(u.First))
				if u.Last != u.First {
					fmt.Fprintf(&b, "-%x", uint32(u.Last))
				}
			}
			fmt.Fprintf(&b, "/%x@%x", f.Flags, uint32(f.App))
		}
		b.WriteString(";")
	}
	return b.String()
}

func TestHIDDescriptor(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"scanner", descPos, "2:64 8+1x8,1003b/2@8c0002 16+3x8,8c00fb,8c00fc,8c00fd/2@8c0002 40+56x8,8c00fe/102@8c0002 488+1x8,ff660004/2@8c0002 496+1x8,ff660000/2@8c0002 504+1x1,8c00ff/2@8c0002 505+7x1/3@8c0002;"},
		{"keyboard", descKeyboard, "0:8 0+8x1,700e0-700e7/2@10006 8+1x8/1@10006 16+6x8,70000-700ff/0@10006;"},
		{"vendor", descVendor, "2:64 8+63x8,ff000002/2@ff000001;"},
		{"empty", "", ""},
		{"two reports in turn", "85 01 75 08 95 01 81 02 85 02 81 02 85 01 95 02 81 02", "1:4 8+1x8/2@0 16+2x8/2@0;2:2 8+1x8/2@0;"},
		{"before the first id", "75 08 95 01 81 02 85 07 81 02", "7:2 8+1x8/2@0;"},
		{"push and pop", "05 01 75 08 95 02 85 03 a4 05 07 75 01 95 08 85 04 09 05 81 02 b4 09 05 81 02", "4:2 8+8x1,70005/2@0;3:3 8+2x8,10005/2@0;"},
		{"the page at the main item counts", "05 01 09 30 05 0c 75 08 95 01 81 02", "0:1 0+1x8,c0030/2@0;"},
		{"extended usages", "05 01 0b fe 00 8c 00 1b 01 00 07 00 2b 03 00 07 00 75 08 95 04 81 02", "0:4 0+4x8,8c00fe,70001-70003/2@0;"},
		{"locals end with a main item", "05 09 09 01 91 02 75 08 95 01 81 02", "0:1 0+1x8/2@0;"},
		{"delimiters hold alternatives", "05 01 a9 01 09 01 09 02 a9 00 09 03 75 08 95 02 81 02", "0:2 0+2x8,10001,10003/2@0;"},
		{"ranges that cannot be", "05 01 19 05 29 02 1b 01 00 01 00 29 03 75 08 95 01 81 02", "0:1 0+1x8/2@0;"},
		{"a long item", "fe 02 f0 aa bb 75 08 95 01 81 02", "0:1 0+1x8/2@0;"},
		{"no data in an item", "75 08 95 01 80", "0:1 0+1x8/0@0;"},
		{"four bytes of data", "77 08 00 00 00 97 01 00 00 00 83 02 00 00 00", "0:1 0+1x8/2@0;"},
		{"reserved items", "0c 75 08 95 01 81 02", "0:1 0+1x8/2@0;"},
		{"nested applications", "05 01 09 06 a1 01 75 08 95 01 05 8c 09 02 a1 01 81 02 c0 09 02 a1 02 81 02 c0 c0 81 02", "0:3 0+1x8/2@8c0002 8+1x8/2@10006 16+1x8/2@0;"},
		{"a range over pages", "1b 01 00 07 00 2b 03 00 08 00 75 08 95 01 81 02", "0:1 0+1x8/2@0;"},
		{"a range of one", "05 01 19 05 29 05 75 08 95 01 81 02", "0:1 0+1x8,10005/2@0;"},
		{"the last report id", "85 ff 75 08 95 01 81 02", "255:2 8+1x8/2@0;"},
		{"the longest descriptor", "75 08 95 01 81 02 " + strings.Repeat("05 01 ", 2045), "0:1 0+1x8/2@0;"},
		{"the longest report", "75 08 96 00 10 81 02", "0:4096 0+4096x8/2@0;"},
		{"nothing to send", "75 00 95 05 81 02 75 08 95 00 81 02", ""},
	} {
		if got := showReports(parse(t, tc.in)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
	for _, tc := range []struct{ in, want string }{
		{"75", "an item that is cut off at byte 0"},
		{"75 08 97 01 00 00", "an item that is cut off at byte 2"},
		{"fe", "an item that is cut off at byte 0"},
		{"fe 03 00 01 02", "an item that is cut off at byte 0"},
		{"fe 00", "an item that is cut off at byte 0"},
		{"c0", "the end of a collection that has not begun at byte 0"},
		{"a1 01", "the end within a collection at byte 2"},
		{"b4", "a Pop without its Push at byte 0"},
		{"a4 b4 b4", "a Pop without its Push at byte 2"},
		{strings.Repeat("a4 ", 17), "too many Push items at byte 16"},
		{"85 00", "report id 0, which cannot be at byte 0"},
		{"86 00 01", "report id 256, which cannot be at byte 0"},
		{"a9 01 a9 01", "a delimiter within another one at byte 2"},
		{"a9 00", "a delimiter within another one at byte 0"},
		{"75 01 97 01 80 00 00 81 02", "a report of more than 4096 bytes at byte 7"},
		{"75 08 96 00 08 81 02 81 02 81 02", "a report of more than 4096 bytes at byte 9"},
		{"77 00 00 00 80 95 02 81 02", "a report of more than 4096 bytes at byte 7"},
		{"77 ff ff ff ff 97 ff ff ff ff 81 02", "a report of more than 4096 bytes at byte 10"},
		{strings.Repeat("a4 ", 4097), "4097 bytes, and 4096 are the most"},
	} {
		_, err := ParseHIDDescriptor(unhex(t, tc.in))
		if want := "cannot read the report descriptor: " + tc.want; err == nil || err.Error() != want {
			t.Errorf("%.20s: got %v, want %s", tc.in, err, want)
		}
	}
}

func TestHIDFieldFind(t *testing.T) {
	f := HIDField{Bit: 8, Size: 4, Count: 10, Usages: []HIDRange{{5, 5}, {10, 12}, {7, 7}, {20, 22}}}
	for _, tc := range []struct {
		u      HIDUsage
		bit, n int
	}{{5, 8, 1}, {10, 12, 1}, {12, 20, 1}, {7, 24, 1}, {20, 28, 1}, {21, 32, 1}, {22, 36, 3}, {23, 0, 0}, {6, 0, 0}} {
		if bit, n := f.Find(tc.u); bit != tc.bit || n != tc.n {
			t.Errorf("%d: got %d, %d", tc.u, bit, n)
		}
	}
	f.Count = 6
	if bit, n := f.Find(20); bit != 28 || n != 1 {
		t.Errorf("the last element: %d, %d", bit, n)
	}
	if _, n := f.Find(21); n != 0 {
		t.Error("an element behind the last one")
	}
}

func TestHIDFind(t *testing.T) {
	declared := hidPosHoneywell
	declared.Answers = false
	for _, tc := range []struct {
		name   string
		vendor uint16
		in     string
		want   HIDPosLayout
		ok     bool
	}{
		{"declared", 0, descPos, declared, true},
		{"declared by Honeywell", 0x0c2e, descPos, hidPosHoneywell, true},
		{"says nothing, Honeywell", 0x0c2e, descVendor, hidPosHoneywell, true},
		{"says nothing, Newland", 0x1eab, descVendor, hidPosNewland, true},
		{"says nothing, ID Tech", 0x0acd, descVendor, hidPosNewland, true},
		{"says nothing, Microscan", 0x1234, strings.Replace(descVendor, "85 02", "85 01", 1), hidPosMicroscan, true},
		{"says nothing, nobody's id", 0x1234, descVendor, HIDPosLayout{}, false},
		{"says nothing, too short", 0x0c2e, strings.Replace(descVendor, "95 3f", "95 3e", 1), HIDPosLayout{}, false},
		{"a keyboard", 0x0c2e, descKeyboard, HIDPosLayout{}, false},
		{"a gamepad of that size", 0x0c2e, strings.Replace(descVendor, "06 00 ff 09 01", "05 01 09 05", 1), HIDPosLayout{}, false},
		{"other usage on the scanner's page", 0, strings.Replace(descPos, "09 02 a1 01", "09 04 a1 01", 1), HIDPosLayout{}, false},
		{"no id, no AIM identifier, a whole byte says more", 0,
			"05 8c 09 02 a1 01 75 08 95 01 09 10 81 02 95 14 09 fe 81 02 95 01 09 ff 81 02 c0",
			HIDPosLayout{Size: 22, Data: 1, Max: 20, More: 21, MoreMask: 0xff}, true},
		{"nothing says more", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 95 14 09 fe 81 02 c0",
			HIDPosLayout{Report: 5, Size: 22, Length: 1, Data: 2, Max: 20}, true},
		{"one field for all", 0, "05 8c 09 02 a1 01 85 05 75 08 95 18 09 10 09 fb 09 fc 09 fd 09 fe 81 02 75 04 95 01 81 03 75 01 95 01 09 ff 81 02 75 03 81 03 c0",
			HIDPosLayout{Report: 5, Size: 26, Length: 1, AIM: 2, Data: 5, Max: 20, More: 25, MoreMask: 0x10}, true},
		{"all in another order", 0, "05 8c 09 02 a1 01 85 05 75 08 95 14 09 fe 81 02 95 03 09 fb 09 fc 09 fd 81 02 95 01 05 01 09 3b 81 02 c0",
			HIDPosLayout{Report: 5, Size: 25, Length: 24, AIM: 21, Data: 1, Max: 20}, true},
		{"identifiers in another order", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 95 14 09 fe 81 02 95 03 09 fb 09 fd 09 fc 81 02 c0",
			HIDPosLayout{Report: 5, Size: 25, Length: 1, Data: 2, Max: 20}, true},
		{"identifiers at the end", 0, "05 8c 09 02 a1 01 75 08 95 01 81 03 95 14 09 fe 81 02 95 03 09 fb 09 fc 09 fd 81 02 c0",
			HIDPosLayout{Size: 24, AIM: 21, Data: 1, Max: 20}, true},
		{"identifiers between bytes", 0, "05 8c 09 02 a1 01 75 08 95 01 81 03 95 14 09 fe 81 02 75 04 95 01 81 03 75 08 95 03 09 fb 09 fc 09 fd 81 02 75 04 95 01 81 03 c0",
			HIDPosLayout{Size: 25, Data: 1, Max: 20}, true},
		{"identifiers that are bits", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 95 14 09 fe 81 02 75 01 95 03 09 fb 09 fc 09 fd 81 02 95 05 81 03 c0",
			HIDPosLayout{Report: 5, Size: 23, Length: 1, Data: 2, Max: 20}, true},
		{"data of 16 bits", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 75 10 95 14 09 fe 81 02 c0", HIDPosLayout{}, false},
		{"more across two bytes", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 95 14 09 fe 81 02 75 07 95 01 81 03 75 02 09 ff 81 02 75 07 81 03 c0",
			HIDPosLayout{Report: 5, Size: 24, Length: 1, Data: 2, Max: 20}, true},
		{"two pieces of data", 0, "05 8c 09 02 a1 01 85 05 75 08 95 01 81 03 95 14 09 fe 81 02 95 08 09 fe 81 02 c0",
			HIDPosLayout{Report: 5, Size: 30, Length: 1, Data: 2, Max: 20}, true},
		{"no room for the length", 0, "05 8c 09 02 a1 01 85 05 75 08 95 14 09 fe 81 02 c0", HIDPosLayout{}, false},
		{"the length is part of the identifier", 0, "05 8c 09 02 a1 01 85 05 75 08 95 03 09 fb 09 fc 09 fd 81 02 95 14 09 fe 81 02 c0", HIDPosLayout{}, false},
		{"bits that are no bytes", 0, "05 8c 09 02 a1 01 75 04 95 01 81 03 75 08 95 14 09 fe 81 02 75 04 95 01 81 03 c0", HIDPosLayout{}, false},
		{"padding", 0, "05 8c 09 02 a1 01 75 08 95 01 81 03 95 14 09 fe 81 03 c0", HIDPosLayout{}, false},
	} {
		if l, ok := FindHIDPos(tc.vendor, parse(t, tc.in)); ok != tc.ok || l != tc.want {
			t.Errorf("%s: got %+v, %v", tc.name, l, ok)
		}
	}
	withID := strings.Replace(descKeyboard, "a1 01", "a1 01 85 01", 1)
	for _, tc := range []struct {
		name, in string
		want     HIDKeyboard
		ok       bool
	}{
		{"boot", descKeyboard, BootKeyboard(), true},
		{"with an id", withID, HIDKeyboard{Report: 1, Mods: 1, Keys: 3, Count: 6}, true},
		{"scanner", descPos, HIDKeyboard{}, false},
		{"modifiers alone", "05 01 09 06 a1 01 05 07 19 e0 29 e7 75 01 95 08 81 02 c0", HIDKeyboard{}, false},
		{"a bit for each key", "05 01 09 06 a1 01 05 07 19 e0 29 e7 75 01 95 08 81 02 19 00 29 67 95 68 81 02 c0", HIDKeyboard{}, false},
		{"keys that are padding", strings.Replace(descKeyboard, "81 00 c0", "81 01 c0", 1), HIDKeyboard{}, false},
		{"keys between bytes", strings.Replace(descKeyboard, "95 01 75 08 81 01", "95 01 75 07 81 01", 1), HIDKeyboard{}, false},
		{"modifiers that are bytes", "05 01 09 06 a1 01 05 07 19 e0 29 e7 75 08 95 08 81 02 95 06 19 00 29 ff 81 00 c0", HIDKeyboard{}, false},
		{"a mouse", strings.Replace(descKeyboard, "09 06", "09 02", 1), HIDKeyboard{}, false},
		{"a list of media keys", strings.Replace(descKeyboard, "05 07 19 00", "05 0c 19 00", 1), HIDKeyboard{}, false},
	} {
		if k, ok := FindHIDKeyboard(parse(t, tc.in)); ok != tc.ok || k != tc.want {
			t.Errorf("%s: got %+v, %v", tc.name, k, ok)
		}
	}
}

// checkReports checks what must hold of any descriptor.
func checkReports(t *testing.T, d []byte, rs []HIDReport) {
	ranges, fields := 0, 0
	seen := map[uint8]bool{}
	for _, r := range rs {
		next := 0
		if r.ID != 0 {
			next = 8
		}
		if seen[r.ID] || r.Size > maxHIDReport+1 || len(r.Fields) == 0 || r.ID == 0 && len(rs) > 1 {
			t.Fatalf("report %d of %d bytes", r.ID, r.Size)
		}
		seen[r.ID] = true
		for _, f := range r.Fields {
			if f.Bit != next || f.Size < 1 || f.Count < 1 {
				t.Fatalf("report %d: field %+v, want it at %d", r.ID, f, next)
			}
			next += f.Size * f.Count
			ranges += len(f.Usages)
			fields++
			for _, u := range f.Usages {
				if u.First > u.Last {
					t.Fatalf("usages %x to %x", u.First, u.Last)
				}
				for _, u := range []HIDUsage{u.First, u.Last} {
					if bit, n := f.Find(u); n > 0 && (bit < f.Bit || bit+n*f.Size > next) {
						t.Fatalf("usage %x at %d, %d", u, bit, n)
					}
				}
			}
		}
		if (next+7)/8 != r.Size {
			t.Fatalf("report %d ends at bit %d and has %d bytes", r.ID, next, r.Size)
		}
	}
	if ranges+fields > len(d) {
		t.Fatalf("%d fields and %d usages of %d bytes", fields, ranges, len(d))
	}
	for _, vendor := range []uint16{0, 0x0c2e, 0x1eab} {
		if l, ok := FindHIDPos(vendor, rs); ok {
			if err := l.check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if k, ok := FindHIDKeyboard(rs); ok && (k.Count < 1 || k.Keys < 0 || k.Mods == k.Keys) {
		t.Fatalf("keyboard %+v", k)
	}
}

// What a descriptor costs is bounded by its length, however it is made.
func TestHIDDescriptorCost(t *testing.T) {
	for name, unit := range map[string]string{
		"usages":      "08",
		"collections": "a0",
		"inputs":      "81 02",
		"both":        "08 81 02",
		"push, pop":   "a4 b4",
		"ids":         "85 01 81 02",
	} {
		head := unhex(t, "75 01 95 01")
		u := unhex(t, unit)
		d := append(head, bytes.Repeat(u, (maxHIDDescriptor-len(head))/len(u))...)
		if rs, err := ParseHIDDescriptor(d); err == nil {
			checkReports(t, d, rs)
		}
		if n := testing.AllocsPerRun(5, func() { ParseHIDDescriptor(d) }); n > float64(len(d)/2) {
			t.Errorf("%s: %v allocations for %d bytes", name, n, len(d))
		}
	}
}

func FuzzHIDDescriptor(f *testing.F) {
	for _, s := range []string{descPos, descKeyboard, descVendor, "fe 02 f0 aa bb a4 b4 a9 01 09 01 a9 00 75 08 95 01 81 02",
		"05 8c 09 02 a1 01 85 05 75 08 95 18 09 10 09 fb 09 fc 09 fd 09 fe 81 02 75 01 95 01 09 ff 81 02 c0",
		"1b 01 00 07 00 2b ff ff 07 00 77 08 00 00 00 97 01 00 00 00 83 02 00 00 00"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, d []byte) {
		rs, err := ParseHIDDescriptor(d)
		if err != nil {
			if rs != nil || !strings.HasPrefix(err.Error(), "cannot read the report descriptor: ") {
				t.Fatalf("%v, %v", rs, err)
			}
			return
		}
		checkReports(t, d, rs)
	})
}
