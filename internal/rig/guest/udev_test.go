//go:build usbrig

package guest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// owner is who may use a node.
func owner(t testing.TB, node string) (group uint32, mode os.FileMode) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(node, &st); err != nil {
		t.Fatal(err)
	}
	return st.Gid, os.FileMode(st.Mode & 0o777)
}

// property is one that udev has given to a device.
func property(t testing.TB, node, key string) string {
	t.Helper()
	out, err := exec.Command("udevadm", "info", "--query=property", "--property="+key, "--value", "--name="+node).CombinedOutput()
	if err != nil {
		t.Fatalf("udevadm info of %s: %v: %s", node, err, out)
	}
	return strings.TrimSpace(string(out))
}

// usbNode is the node of the whole device, which libusb opens.
func (g *gadget) usbNode() string {
	g.t.Helper()
	dir := "/sys/bus/usb/devices/" + g.bus()
	eventually(g.t, "the host has the device", func() bool { return exists(dir + "/devnum") })
	return busNode(number(g.t, dir+"/busnum"), number(g.t, dir+"/devnum"))
}

// The shipped rules, in the machine's own udev: a known scanner's nodes belong to the service's group, ModemManager
// is told to leave its port alone, and it is not put to sleep. A keyboard that is no scanner stays as it was.
func TestBusRules(t *testing.T) {
	pos, serial := newPos(t, 0, posVendors()[0]), newACM(t, 1, acmScanner("CDC-77"))
	scanner, person := newKeyboard(t, 2, keyboardScanner()), newKeyboard(t, 3, identity{0x1d6b, 0x0104, "PERSON", "Keyboard"})
	for _, g := range []*gadget{pos, serial, scanner, person} {
		g.plug()
	}
	for _, tt := range []struct {
		what, node string
		group      uint32
		mode       os.FileMode
	}{
		{"the HID-POS scanner", pos.usbNode(), serviceUser, 0o660},
		{"its hidraw node", pos.node("*/hidraw/*"), serviceUser, 0o640},
		{"the serial scanner's port", serial.node("tty/*"), serviceUser, 0o660},
		{"the keyboard scanner's hidraw node", scanner.node("*/hidraw/*"), serviceUser, 0o640},
		{"its event node", scanner.node("*/input/input*/event*"), serviceUser, 0o640},
		{"somebody's keyboard", person.usbNode(), 0, 0o664},
		{"its hidraw node", person.node("*/hidraw/*"), 0, 0o600},
		{"its event node", person.node("*/input/input*/event*"), 104, 0o660},
	} {
		eventually(t, "udev has settled "+tt.what, func() bool {
			group, mode := owner(t, tt.node)
			return group == tt.group && mode == tt.mode
		})
	}
	if out, err := exec.Command("udevadm", "settle").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tt := range []struct {
		what, node string
		group      uint32
		mode       os.FileMode
	}{
		{"somebody's hidraw node", person.node("*/hidraw/*"), 0, 0o600},
		{"somebody's event node", person.node("*/input/input*/event*"), 104, 0o660},
		{"the scanner itself in keyboard mode", scanner.usbNode(), 0, 0o664},
	} {
		if group, mode := owner(t, tt.node); group != tt.group || mode != tt.mode {
			t.Errorf("%s belongs to %d with %v, and was to be %d's with %v", tt.what, group, mode, tt.group, tt.mode)
		}
	}
	for what, node := range map[string]string{"the serial scanner": serial.usbNode(), "its port": serial.node("tty/*")} {
		if got := property(t, node, "ID_MM_DEVICE_IGNORE"); got != "1" {
			t.Errorf("%s: ID_MM_DEVICE_IGNORE is %q", what, got)
		}
	}
	for _, g := range []*gadget{pos, serial, scanner} {
		if got := text("/sys/bus/usb/devices/" + g.bus() + "/power/control"); got != "on" {
			t.Errorf("%s: power/control is %q", g.bus(), got)
		}
	}
	// What udev itself says of its rules, without doing anything.
	out, err := exec.Command("udevadm", "test", "--action=add", "/sys/class/tty/"+strings.TrimPrefix(serial.node("tty/*"), "/dev/")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ID_MM_DEVICE_IGNORE=1") {
		t.Errorf("udevadm test: %v:\n%s", err, out)
	}
}

// rule has udev keep one more rule, behind all others, until the test's end.
func rule(t testing.TB, text string) {
	t.Helper()
	const path = "/etc/udev/rules.d/99-test.rules"
	reload := func() {
		if out, err := exec.Command("udevadm", "control", "--reload").CombinedOutput(); err != nil {
			t.Fatalf("udevadm control: %v: %s", err, out)
		}
	}
	write(t, path, text+"\n")
	t.Cleanup(func() { os.Remove(path); reload() })
	reload()
}
