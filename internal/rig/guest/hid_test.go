//go:build usbrig

package guest

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/device"
)

// The report descriptors of HID Point of Sale scanners as three vendors lay their reports out: HID Point of Sale
// Usage Tables 1.02, sections 3 and 4. Microscan's names no usages, so that the vendor's table
// has to do.
const (
	descHoneywell = `
		05 8c  09 02  a1 01              (bar code scanner, application)
		09 12  a1 02  85 02              (scanned data report, logical, report 2)
		15 00  26 ff 00  75 08
		95 01  05 01  09 3b  81 02       (byte count)
		95 03  05 8c  09 fb  09 fc  09 fd  81 02   (symbology identifier 1 to 3)
		95 38  09 fe  82 02 01           (decoded data)
		95 01  06 66 ff  09 04  81 02    (code id)
		09 00  81 02                     (reserved)
		05 8c  75 01  25 01  09 ff  81 02  95 07  81 03   (decoded data continued)
		c0 c0`
	descNewland = `
		05 8c  09 02  a1 01
		09 12  a1 02  85 02
		15 00  26 ff 00  75 08
		95 01  05 01  09 3b  81 02
		95 38  05 8c  09 fe  82 02 01
		95 04  06 66 ff  09 00  81 02    (reserved)
		95 01  09 04  81 02              (symbology)
		05 8c  75 01  25 01  09 ff  81 02  95 07  81 03
		c0 c0`
	descMicroscan = `
		06 00 ff  09 01  a1 01  85 01
		15 00  26 ff 00  75 08
		95 3f  09 02  81 02
		c0`
	// HID 1.11, appendix E.6: a keyboard of the boot protocol.
	descKeyboard = `
		05 01  09 06  a1 01
		05 07  19 e0  29 e7  15 00  25 01  75 01  95 08  81 02
		95 01  75 08  81 03
		95 05  75 01  05 08  19 01  29 05  91 02  95 01  75 03  91 03
		95 06  75 08  15 00  25 65  05 07  19 00  29 65  81 00
		c0`
)

func descriptor(t testing.TB, s string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "(")
		for _, word := range strings.Fields(line) {
			v, err := hex.DecodeString(word)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(v)
		}
	}
	return b.String()
}

// posVendor is a make of HID-POS scanners: what it is, and how it sends a scan.
type posVendor struct {
	name    string
	id      identity
	desc    string
	size    int // bytes of data in a report
	reports func(aim, data string) [][]byte
}

func posVendors() []posVendor {
	return []posVendor{
		{"honeywell", identity{0x0c2e, 0x0b8f, "HW-0001", "HID-POS Scanner"}, descHoneywell, 56, honeywellReports},
		{"newland", identity{0x1eab, 0x8010, "NL-0001", "HID-POS Scanner"}, descNewland, 56, newlandReports},
		{"microscan", identity{0x05e0, 0x2100, "MS-0001", "HID-POS Scanner"}, descMicroscan, 62, microscanReports},
	}
}

func (v posVendor) selector() device.USBSelector {
	return device.USBSelector{Vendor: v.id.vendor, Product: v.id.product, Serial: v.id.serial}
}

// pieces cuts a scan to what fits into reports; an empty one is one report.
func pieces(s string, n int) (out []string) {
	for len(s) > n {
		out, s = append(out, s[:n]), s[n:]
	}
	return append(out, s)
}

func honeywellReports(aim, data string) (out [][]byte) {
	all := pieces(data, 56)
	for i, p := range all {
		r := make([]byte, 64)
		r[0], r[1], r[61] = 2, byte(len(p)), 'w'
		copy(r[2:5], aim)
		copy(r[5:61], p)
		if i < len(all)-1 {
			r[63] = 1
		}
		out = append(out, r)
	}
	return out
}

func newlandReports(aim, data string) (out [][]byte) {
	all := pieces(aim+data, 56)
	for i, p := range all {
		r := make([]byte, 64)
		r[0], r[1], r[62] = 2, byte(len(p)), 'u'
		copy(r[2:58], p)
		if i < len(all)-1 {
			r[63] = 1
		}
		out = append(out, r)
	}
	return out
}

func microscanReports(aim, data string) (out [][]byte) {
	for _, p := range pieces(aim+data, 62) {
		r := make([]byte, 64)
		r[0], r[1] = 1, byte(len(p))
		copy(r[2:], p)
		out = append(out, r)
	}
	return out
}

// newPos makes a HID-POS scanner.
func newPos(t testing.TB, port int, v posVendor) *gadget {
	return newGadget(t, port, v.id, fmt.Sprintf("hid.%d", port), map[string]string{
		"protocol": "0", "subclass": "0", "report_length": "64", "report_desc": descriptor(t, v.desc)})
}

// newKeyboard makes a boot keyboard, as most scanners are when they leave the factory.
func newKeyboard(t testing.TB, port int, id identity) *gadget {
	return newGadget(t, port, id, fmt.Sprintf("hid.%d", port), map[string]string{
		"protocol": "1", "subclass": "1", "report_length": "8", "report_desc": descriptor(t, descKeyboard)})
}

// keyboardScanner is one that a scanner's maker has made, as the shipped rules know.
func keyboardScanner() identity {
	return identity{0x05e0, 0x1200, "KB-0001", "Bar Code Scanner"}
}

// hidg is the scanner's side of a HID gadget: the node of the number that the kernel has given it.
func (g *gadget) hidg() *os.File {
	g.t.Helper()
	_, minor, _ := strings.Cut(text(g.function+"/dev"), ":")
	return g.open("/dev/hidg" + minor)
}

// report sends one report; it waits until the host fetches reports.
func (g *gadget) report(p []byte) {
	g.t.Helper()
	f := g.hidg()
	f.SetWriteDeadline(time.Now().Add(patience))
	if n, err := f.Write(p); err != nil || n != len(p) {
		g.t.Fatalf("cannot send a report of %d bytes within %v: %d, %v", len(p), patience, n, err)
	}
}

// fetched waits until the host has fetched the last report: only then does the gadget take another one.
func (g *gadget) fetched() {
	g.t.Helper()
	fd := []unix.PollFd{{Fd: int32(fileno(g.t, g.hidg())), Events: unix.POLLOUT}}
	for {
		n, err := unix.Poll(fd, int(patience/time.Millisecond))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 || fd[0].Revents&unix.POLLOUT == 0 {
			g.t.Fatalf("the host does not fetch the report: %d, %v, %#x", n, err, fd[0].Revents)
		}
		return
	}
}

func fileno(t testing.TB, f *os.File) (n uintptr) {
	t.Helper()
	c, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.Control(func(fd uintptr) { n = fd })
	return n
}

// scan sends a scan of a HID-POS scanner, whole.
func (g *gadget) scan(v posVendor, aim, data string) {
	g.t.Helper()
	for _, r := range v.reports(aim, data) {
		g.report(r)
	}
}

// keys are the usages of what a keyboard of the US types: HID Usage Tables 1.12, section 10.
func keys(t testing.TB, s string) (out [][2]byte) {
	t.Helper()
	const (
		plain   = "\x00\x00\x00\x00abcdefghijklmnopqrstuvwxyz1234567890\r\x1b\b\t -=[]\\\x00;'`,./"
		shifted = "\x00\x00\x00\x00ABCDEFGHIJKLMNOPQRSTUVWXYZ!@#$%^&*()\x00\x00\x00\x00\x00_+{}|\x00:\"~<>?"
	)
	for _, c := range []byte(s) {
		if c == 0x1d { // GS is Ctrl and ]
			out = append(out, [2]byte{1, 0x30})
		} else if i := strings.IndexByte(plain, c); i >= 4 {
			out = append(out, [2]byte{0, byte(i)})
		} else if i := strings.IndexByte(shifted, c); i >= 4 {
			out = append(out, [2]byte{2, byte(i)})
		} else {
			t.Fatalf("no key types %q", c)
		}
	}
	return out
}

// types sends keys as a scanner in keyboard mode does, each pressed and released, and returns how many presses and
// releases these are, modifiers included. It is no faster than such a scanner: who reads the kernel's events has room for
// 64 of them.
func (g *gadget) types(s string) (n int) {
	g.t.Helper()
	for _, k := range keys(g.t, s) {
		n += 2
		if k[0] != 0 {
			n += 2
		}
		for _, r := range [][]byte{{k[0], 0, k[1], 0, 0, 0, 0, 0}, make([]byte, 8)} {
			g.report(r)
			wait()
		}
	}
	return n
}
