package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
)

// fakeKeys is a keyboard as its driver shows it: each key's event comes behind its usage.
type fakeKeys struct {
	t       *testing.T
	now     time.Duration
	events  []byte
	down    bits
	grabbed bool
	grabs   int
	slips   uint16 // a key that goes down during the next grab
	busy    bool
}

func newFakeKeys(t *testing.T) *fakeKeys { return &fakeKeys{t: t, down: make(bits, keyCodes/8)} }

func (f *fakeKeys) event(kind, code uint16, value int32) {
	b := appendEvent(nil, kind, code, value)
	binary.NativeEndian.PutUint64(b, uint64(f.now/time.Second))
	binary.NativeEndian.PutUint64(b[evdevTime/2:], uint64(f.now%time.Second/time.Microsecond))
	f.events = append(f.events, b...)
}

// keyCode is some code for a usage, as the kernel's table would give.
func keyCode(usage int) uint16 { return uint16(usage) + 100 }

// key makes a key go down or come up, in a report of its own.
func (f *fakeKeys) key(usage int, down bool) {
	f.now += time.Millisecond
	value := int32(0)
	f.down[keyCode(usage)/8] &^= 1 << (keyCode(usage) % 8)
	if down {
		value = 1
		f.down[keyCode(usage)/8] |= 1 << (keyCode(usage) % 8)
	}
	f.event(evMsc, mscScan, int32(0x70000+usage))
	f.event(evKey, keyCode(usage), value)
	f.event(evSyn, synReport, 0)
}

func (f *fakeKeys) stroke(usages ...int) {
	for _, u := range usages {
		f.key(u, true)
		f.key(u, false)
	}
}

var errNoMore = errors.New("no more")

func (f *fakeKeys) Read(p []byte) (int, error) {
	if len(f.events) == 0 {
		return 0, errNoMore
	}
	n := copy(p, f.events)
	f.events = f.events[n:]
	return n, nil
}

func (f *fakeKeys) keys() (bits, error) { return append(bits{}, f.down...), nil }
func (f *fakeKeys) boot() time.Duration { return f.now }

func (f *fakeKeys) grab(on bool) error {
	if f.busy {
		return errors.New("busy")
	}
	f.grabbed = on
	if on {
		f.grabs++
	}
	if on && f.slips != 0 {
		f.key(int(f.slips), true)
		f.slips = 0
	}
	return nil
}

// typed is what the other keyboard was given: a key down as "+30", up as "-30", the end of a report as ".".
type typed struct{ strings.Builder }

func (w *typed) Write(b []byte) (int, error) {
	for rest := b; len(rest) >= evdevEvent; rest = rest[evdevEvent:] {
		switch e := readEvent(rest); {
		case e.kind == evSyn:
			w.WriteString(".")
		case e.kind == evKey && e.value != 0:
			fmt.Fprintf(&w.Builder, "+%d", e.code)
		case e.kind == evKey:
			fmt.Fprintf(&w.Builder, "-%d", e.code)
		case e.kind == evLED:
			fmt.Fprintf(&w.Builder, "led%d=%d", e.code, e.value)
		}
	}
	return len(b), nil
}

// hear reads all reports and returns what the keyboard's decoder makes of them.
func hear(t *testing.T, d *evdev) string {
	t.Helper()
	var got caught
	k, err := NewKeyboard("SCN-04", evdevKeyboard(), "us", time.Hour, got.add)
	must(t, err)
	buf := make([]byte, maxHIDReport)
	for {
		n, err := d.Read(buf)
		if err != nil {
			if err != errNoMore {
				t.Fatal(err)
			}
			return got.String()
		}
		at, lost := d.Stamp()
		if lost > 0 {
			k.Lost(ms(int(at.Milliseconds())))
		}
		k.Report(buf[:n], ms(int(at.Milliseconds())))
	}
}

const shiftKey = 0xe1

func TestEvdevListens(t *testing.T) {
	f := newFakeKeys(t)
	d := &evdev{node: f}
	f.key(shiftKey, true)
	f.stroke(0x04)
	f.key(shiftKey, false)
	f.stroke(0x04)
	f.event(evKey, keyCode(0x04), 2) // repeated by the kernel
	f.event(evSyn, synReport, 0)
	f.event(evMsc, mscScan, 0xc00e9) // a media key
	f.event(evKey, 115, 1)
	f.event(evSyn, synReport, 0)
	f.event(evLED, 1, 1)
	f.event(evSyn, synReport, 0)
	// Two keys in one report, as they come.
	f.event(evMsc, mscScan, 0x70005)
	f.event(evKey, keyCode(5), 1)
	f.event(evMsc, mscScan, 0x70006)
	f.event(evKey, keyCode(6), 1)
	f.event(evSyn, synReport, 0)
	f.stroke(0x28)
	if got := hear(t, d); got != "[Aabc]" {
		t.Errorf("got %q", got)
	}
	if f.grabs != 0 {
		t.Error("taken")
	}
	if d.at != f.now {
		t.Errorf("the last report is of %v, want %v", d.at, f.now)
	}
}

// What the kernel drops, it tells; the line is void, and no key counts as held.
func TestEvdevDropped(t *testing.T) {
	f := newFakeKeys(t)
	d := &evdev{node: f}
	f.stroke(0x04)
	f.key(shiftKey, true)
	f.event(evSyn, synDropped, 0)
	f.event(evKey, keyCode(0x05), 1) // the rest of a report
	f.event(evSyn, synReport, 0)
	f.stroke(0x06, 0x28, 0x07, 0x28)
	if got := hear(t, d); got != "<incomplete 2>[d]" {
		t.Errorf("got %q", got)
	}
	// More keys than a report has room for.
	for u := range evdevKeys + 1 {
		f.key(0x04+u, true)
	}
	f.stroke(0x28, 0x07, 0x28)
	if got := hear(t, d); !strings.HasPrefix(got, "<incomplete") || !strings.HasSuffix(got, ">[d]") {
		t.Errorf("got %q", got)
	}
}

func TestEvdevPassesOn(t *testing.T) {
	f := newFakeKeys(t)
	var out typed
	d := &evdev{node: f, pass: &keyPass{out: &out}}
	must(t, d.take())
	f.key(shiftKey, true)
	f.stroke(0x04)
	f.event(evKey, keyCode(0x04), 2)
	f.event(evSyn, synReport, 0)
	f.event(evLED, 1, 1) // its own lamp
	f.event(evSyn, synReport, 0)
	f.key(shiftKey, false)
	f.stroke(0x28)
	if got := hear(t, d); got != "[A]" {
		t.Errorf("heard %q", got)
	}
	if want := "+325.+104.-104.-325.+140.-140."; out.String() != want {
		t.Errorf("passed on %q, want %q", out.String(), want)
	}
}

// A keyboard is taken while no key is down, and what everybody has seen is not typed twice.
func TestEvdevTakesAtRest(t *testing.T) {
	f := newFakeKeys(t)
	var out typed
	d := &evdev{node: f, pass: &keyPass{out: &out}}
	f.key(0x28, true) // the one that has started the agent
	f.events = nil
	must(t, d.take())
	if d.taken || f.grabbed {
		t.Error("taken with a key down")
	}
	f.key(0x28, false)
	f.key(0x04, true)
	hear(t, d)
	if d.taken {
		t.Error("taken with a key down")
	}
	f.key(0x04, false)
	f.stroke(0x05) // waits to be read when the keyboard is taken
	hear(t, d)
	if !d.taken || !f.grabbed || out.String() != "" {
		t.Errorf("taken %v, typed %q", d.taken, out.String())
	}
	f.stroke(0x06)
	hear(t, d)
	if out.String() != "+106.-106." {
		t.Errorf("typed %q", out.String())
	}

	// One that goes down just then.
	f = newFakeKeys(t)
	out.Reset()
	d = &evdev{node: f, pass: &keyPass{out: &out}}
	f.slips = 0x04
	must(t, d.take())
	if d.taken || f.grabbed {
		t.Error("a key is down that comes up for nobody")
	}
	f.key(0x04, false)
	hear(t, d)
	if !d.taken || f.grabs != 2 || out.String() != "" {
		t.Errorf("taken %v at the grab %d, typed %q", d.taken, f.grabs, out.String())
	}
	f.busy = true
	if err := (&evdev{node: f, pass: &keyPass{}}).take(); err == nil {
		t.Error("taken from another program")
	}
}

// After a gap the other keyboard is as the first one is: nothing stays down.
func TestEvdevPassSync(t *testing.T) {
	f := newFakeKeys(t)
	var out typed
	d := &evdev{node: f, pass: &keyPass{out: &out}}
	must(t, d.take())
	f.key(0x04, true)
	hear(t, d)
	f.key(0x04, false) // among what is dropped
	f.key(shiftKey, true)
	f.events = nil
	f.event(evSyn, synDropped, 0)
	f.event(evKey, keyCode(0x07), 1)
	f.event(evSyn, synReport, 0)
	f.stroke(0x05)
	hear(t, d)
	if want := "+104.-104+325.+105.-105."; out.String() != want {
		t.Errorf("passed on %q, want %q", out.String(), want)
	}
}

func TestLamps(t *testing.T) {
	var events []byte
	events = appendEvent(events, evKey, 30, 1)
	events = appendEvent(events, evLED, 1, 1)
	events = appendEvent(events, evSyn, synReport, 0)
	var out typed
	out.Write(lamps(events))
	if out.String() != "led1=1." {
		t.Errorf("got %q", out.String())
	}
	if b := lamps(appendEvent(nil, evSyn, synReport, 0)); b != nil {
		t.Errorf("got %v", b)
	}
}

// ringOf is a hidraw node as a socket that keeps packets apart.
func ringOf(t *testing.T) (*hidRaw, func(string)) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	f := os.NewFile(uintptr(fds[0]), "hidraw")
	t.Cleanup(func() { f.Close(); unix.Close(fds[1]) })
	h, err := newHIDRaw(f)
	must(t, err)
	return h, func(s string) {
		t.Helper()
		_, err := unix.Write(fds[1], []byte(s))
		must(t, err)
	}
}

// Reports that waited in the number that the kernel keeps may have others missing behind them.
func TestHIDRawLoss(t *testing.T) {
	read := func(h *hidRaw) (string, int) {
		t.Helper()
		b := make([]byte, 64)
		n, err := h.Read(b)
		must(t, err)
		_, lost := h.Stamp()
		return string(b[:n]), lost
	}
	h, send := ringOf(t)
	for i := range hidrawRing - 1 {
		send(fmt.Sprint("r", i))
	}
	for i := range hidrawRing - 1 {
		if got, lost := read(h); got != fmt.Sprint("r", i) || lost != 0 {
			t.Fatalf("report %d: %q, %d lost", i, got, lost)
		}
	}
	later := make(chan struct{})
	go func() { // it waits, so that it is not behind any more
		defer close(later)
		if got, lost := read(h); got != "a" || lost != 0 {
			t.Errorf("got %q, %d lost", got, lost)
		}
	}()
	eventually(t, "the reader waits", func() bool {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		return slices.ContainsFunc(strings.Split(string(stacks), "\n\n"), func(s string) bool {
			return strings.Contains(s, "[IO wait") && strings.Contains(s, "hidRaw).Read")
		})
	})
	send("a")
	<-later
	for i := range hidrawRing + 1 {
		send(fmt.Sprint("r", i))
	}
	total := 0
	for i := range hidrawRing + 1 {
		got, lost := read(h)
		if total += lost; got != fmt.Sprint("r", i) || lost > 0 && i < hidrawRing-1 {
			t.Fatalf("report %d: %q, %d lost", i, got, lost)
		}
	}
	if total == 0 {
		t.Error("nothing is told of")
	}
	if got, lost := read(h); got != "" || lost == 0 {
		t.Errorf("at the end: %q, %d lost", got, lost)
	}
}

func TestOfInterface(t *testing.T) {
	r := hidRequest{Port: "1-1.2", Interface: 10}
	for dir, want := range map[string]bool{
		"/sys/devices/pci/usb1/1-1/1-1.2/1-1.2:1.10/0003:0C2E:0B61.0004/hidraw/hidraw3": true,
		"/sys/devices/pci/usb1/1-1/1-1.2/1-1.2:1.1/hidraw/hidraw3":                      false,
		"/sys/devices/pci/usb1/1-1/1-1.2/1-1.2.1/1-1.2.1:1.10/hidraw/hidraw3":           false,
		"/sys/devices/virtual/misc/uhid/0003:0C2E:0B61.0004/hidraw/hidraw3":             false,
	} {
		if got := ofInterface(dir, r); got != want {
			t.Errorf("%s: %v", dir, got)
		}
	}
}

// A node's name may have become another device's since it was looked up.
func TestOpenNode(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(keyboardScanner("1-1", "hidraw1", "event3", ""))
	d, err := ReadUSB(u.Root)
	must(t, err)
	r := hidRequest{Vendor: d[0].Vendor, Product: d[0].Product, Port: "1-1", Bus: d[0].Bus, Address: d[0].Address, Nodes: []string{u.Dev("hidraw1")}}
	node := u.Dev("hidraw1")
	must(t, os.Remove(node))
	must(t, os.Symlink("/dev/null", node)) // 1:3
	char := filepath.Join(u.Root, "sys/dev/char")
	must(t, os.MkdirAll(char, 0o755))
	link := filepath.Join(char, "1:3")
	for name, tc := range map[string]struct {
		port string // the node's
		set  func(*hidRequest)
		want string
	}{
		"the device's":   {"1-1:1.0", func(*hidRequest) {}, ""},
		"another one's":  {"1-1:1.1", func(*hidRequest) {}, "another device's now"},
		"another device": {"1-1:1.0", func(r *hidRequest) { r.Address++ }, "any more"},
		"another model":  {"1-1:1.0", func(r *hidRequest) { r.Product++ }, "any more"},
		"no node":        {"1-1:1.0", func(r *hidRequest) { r.Nodes = []string{u.Dev("hidraw7")} }, "plug the scanner in"},
	} {
		os.Remove(link)
		target := filepath.Join(u.Root, "sys/devices/x", tc.port, "hidraw/hidraw1")
		must(t, os.MkdirAll(target, 0o755))
		must(t, os.Symlink(target, link))
		r := r
		tc.set(&r)
		h, err := openHIDRaw(u.Root, r)
		if err == nil {
			h.file.Close()
		}
		if (err == nil) != (tc.want == "") || err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), "cannot ")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := openHIDRaw(u.Root, hidRequest{}); err == nil {
		t.Error("opened without a node")
	}
}

func TestHIDUSBRefused(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(keyboardScanner("1-1", "hidraw1", "event3", ""))
	d, err := ReadUSB(u.Root)
	must(t, err)
	r := hidRequest{Via: viaUSB, Vendor: d[0].Vendor, Product: d[0].Product, Port: "1-1", Bus: d[0].Bus, Address: d[0].Address}
	for name, tc := range map[string]struct {
		set  func(*hidRequest)
		want string
	}{
		"a keyboard":        {func(*hidRequest) {}, `write mode = "listen"`},
		"gone":              {func(r *hidRequest) { r.Address++ }, "any more"},
		"no such interface": {func(r *hidRequest) { r.Interface++ }, "any more"},
		"no node":           {func(r *hidRequest) { r.Force = true }, "plug the scanner in"},
	} {
		r := r
		tc.set(&r)
		_, _, err := openHIDUSB(u.Root, r)
		if err == nil || USBSupported() && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The length of a report descriptor is found among the device's descriptors (USB HID 1.11, appendix E).
func TestHIDDescriptorLen(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, usbDevices, "1-1")
	must(t, os.MkdirAll(dir, 0o755))
	b := unhex(t, `12 01 00 02 00 00 00 40 2e 0c 81 0b 00 01 01 02 00 01
		09 02 3b 00 02 01 00 a0 32
		09 04 00 00 01 03 01 01 00 09 21 11 01 00 01 22 3f 00 07 05 81 03 08 00 0a
		09 04 01 00 01 03 00 00 00 09 21 11 01 00 01 22 02 01 07 05 82 03 40 00 0a`)
	must(t, os.WriteFile(filepath.Join(dir, "descriptors"), b, 0o644))
	for iface, want := range map[int]int{0: 0x3f, 1: 0x102, 2: 0} {
		if got := hidDescriptorLen(root, hidRequest{Port: "1-1", Interface: iface}); got != want {
			t.Errorf("interface %d: %d, want %d", iface, got, want)
		}
	}
	if got := hidDescriptorLen(root, hidRequest{Port: "1-2"}); got != 0 {
		t.Errorf("got %d for a device that is gone", got)
	}
	for n := range b {
		must(t, os.WriteFile(filepath.Join(dir, "descriptors"), b[:n], 0o644))
		hidDescriptorLen(root, hidRequest{Port: "1-1", Interface: 1})
	}
}
