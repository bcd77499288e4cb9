//go:build usbrig

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/device"
	"scanonce/internal/testenv"
)

func keyboardTable(mode string) string {
	id := keyboardScanner()
	return fmt.Sprintf("[[scanner]]\nid = \"SCN-04\"\ntransport = \"hid-keyboard\"\nusb = \"%04x:%04x:%s\"\nmode = %q\n", id.vendor, id.product, id.serial, mode)
}

// upc is a code whose digits are keys of one row.
const upc = "300937214106"

const keyEnter = 28 // of linux/input-event-codes.h

// upcCodes are the keys that type it, with the Enter behind it.
func upcCodes() (codes []int) {
	for _, digit := range []byte(upc) {
		code := int(digit-'0') + 1
		if digit == '0' {
			code = 11
		}
		codes = append(codes, code)
	}
	return append(codes, keyEnter)
}

// typeOn presses and releases a key of QEMU's keyboard.
func typeOn(q *qemu, key string) {
	q.t.Helper()
	err := q.call("send-key", map[string]any{"keys": []map[string]string{{"type": "qcode", "data": key}}, "hold-time": 20})
	if err != nil {
		q.t.Fatal(err)
	}
}

func keyboard(mode device.HIDMode) device.HIDConfig {
	id := keyboardScanner()
	return device.HIDConfig{Device: device.USBSelector{Vendor: id.vendor, Product: id.product, Serial: id.serial}, Keyboard: true, Mode: mode, Layout: "us", Gap: 10 * time.Second}
}

// Listening, the agent hears the scanner, and so does the console: every key reaches both.
func TestKeyboardListen(t *testing.T) {
	g := newKeyboard(t, 0, keyboardScanner())
	g.plug()
	screen := openConsole(t, g.node("*/input/input*/event*"))
	s := hidScanner(t, runBus(t), keyboard(device.Listen))
	s.wait(device.Reading)
	for i := range 3 {
		text := label(fmt.Sprintf("k%d", i))
		screen.skip(g.types(text + "\r"))
		s.data(text)
	}
	g.types(upc + "\r")
	screen.pressed(upcCodes()...)
	s.data(upc)

	// Unplugged within a scan: that is void, and nothing of it is joined to the next one.
	g.types("30093")
	screen.pressed(upcCodes()[:5]...)
	g.unplug()
	w := testenv.NewWatch(t)
	g.plug()
	node := g.node("*/input/input*/event*")
	heardAgain(t, s, w, "plugged in again")
	screen = openConsole(t, node)
	g.types(upc + "\r")
	screen.pressed(upcCodes()...)
	s.void(5)
	s.data(upc)
	s.stop()
	s.nothing()
	g.types(upc + "\r")
	screen.pressed(upcCodes()...)
}

// Grabbing, the agent hears the scanner, and what it types reaches the console through a device of the agent's own
// alone. When the agent stops, or what reads the device is killed, the keyboard types again by itself.
func TestKeyboardGrab(t *testing.T) {
	g := newKeyboard(t, 0, keyboardScanner())
	g.plug()
	screen := openConsole(t, g.node("*/input/input*/event*"))
	s := hidScanner(t, runBus(t), keyboard(device.Grab))
	s.wait(device.Reading)
	own := ownKeyboard(t)
	passed := openConsole(t, own)
	g.types(upc + "\r")
	passed.pressed(upcCodes()...)
	s.data(upc)
	screen.silent()

	if err := syscall.Kill(worker(t, os.Getpid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.wait(device.Reading)
	passed = openConsole(t, ownKeyboard(t))
	text := "Mixed-" + upc
	passed.skip(g.types(text + "\r"))
	s.data(text)
	screen.silent()

	s.stop()
	s.nothing()
	eventually(t, "the agent's own keyboard is gone", func() bool { return len(glob(virtualKeyboards)) == 0 })
	g.types(upc + "\r")
	screen.pressed(upcCodes()...)
}

const virtualKeyboards = "/sys/devices/virtual/input/input*/event*"

// ownKeyboard waits for the keyboard on which the agent passes keys on.
func ownKeyboard(t testing.TB) (node string) {
	t.Helper()
	eventually(t, "the agent has a keyboard of its own", func() bool {
		found := glob(virtualKeyboards)
		if len(found) != 1 {
			return false
		}
		node = "/dev/input/" + filepath.Base(found[0])
		return exists(node)
	})
	return node
}

// Exclusive use of a boot keyboard would take the pharmacist's keyboard away: it is refused, in words, and the
// keyboard goes on typing.
func TestKeyboardExclusiveRefused(t *testing.T) {
	g := newKeyboard(t, 0, keyboardScanner())
	g.plug()
	screen := openConsole(t, g.node("*/input/input*/event*"))
	h := newHome(t, keyboardTable("exclusive"))
	r := h.Call(t, "check-config")
	if r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "force = true") {
		t.Errorf("check-config: code %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	cfg := keyboard(device.Exclusive)
	cfg.ID = "SCN-04"
	if err := cfg.Validate(); err == nil {
		t.Error("the device's configuration takes it")
	}
	// A table that calls it a HID-POS scanner does not get at it either.
	cfg.Keyboard, cfg.Layout = false, ""
	s := hidScanner(t, runBus(t), cfg)
	if st := s.task.Stats(); st.State == device.Reading || st.Detail == "" {
		t.Errorf("as a HID-POS scanner: %+v", st)
	}
	g.types(upc + "\r")
	screen.pressed(upcCodes()...)
}

// QEMU's own keyboard, as a person types on it: the agent listens, and it still types.
func TestKeyboardOfQEMU(t *testing.T) {
	q := openQEMU(t)
	q.add("usb-kbd", "kbd0", map[string]string{"serial": "QK-0001"})
	t.Cleanup(func() { q.call("device_del", map[string]string{"id": "kbd0"}) })
	var node string
	eventually(t, "the keyboard has its node", func() bool { node = inputDevice("QEMU QEMU USB Keyboard"); return exists(node) })
	screen := openConsole(t, node)
	cfg := keyboard(device.Listen)
	cfg.Device = device.USBSelector{Vendor: 0x0627, Product: 0x0001, Serial: "QK-0001"}
	s := hidScanner(t, runBus(t), cfg)
	s.wait(device.Reading)
	for i, digit := range strings.Split(upc, "") {
		typeOn(q, digit)
		screen.pressed(upcCodes()[i])
	}
	typeOn(q, "ret")
	screen.pressed(keyEnter)
	s.data(upc)
	q.del("kbd0")
	s.wait(device.Absent)
	q.add("usb-kbd", "kbd0", map[string]string{"serial": "QK-0001"})
	s.wait(device.Reading)
	s.stop()
	s.nothing()
}
