//go:build usbrig

package guest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// gadgets is where the kernel makes USB devices by the names of folders:
// Linux' Documentation/usb/gadget_configfs.rst.
const gadgets = "/sys/kernel/config/usb_gadget"

// identity is what a USB device says of itself.
type identity struct {
	vendor, product uint16
	serial          string // "" for none
	name            string
}

// gadget is a USB device that the kernel plays on one of dummy_hcd's ports.
type gadget struct {
	t        testing.TB
	dir      string
	function string // folder of its only function
	udc      string // port's controller
	port     int
	far      *os.File // what plays the device's side; nil while unplugged
	plugged  bool
}

// newGadget makes a device that is not plugged in, with one function such as "hid.usb0" and its attributes. At the
// test's end it is taken away.
func newGadget(t testing.TB, port int, id identity, function string, attributes map[string]string) *gadget {
	t.Helper()
	g := &gadget{t: t, dir: filepath.Join(gadgets, fmt.Sprintf("g%d", port)), udc: fmt.Sprintf("dummy_udc.%d", port), port: port}
	g.function = filepath.Join(g.dir, "functions", function)
	for _, dir := range []string{g.dir, g.dir + "/strings/0x409", g.dir + "/configs/c.1", g.function} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, g.dir+"/idVendor", fmt.Sprintf("%#04x", id.vendor))
	write(t, g.dir+"/idProduct", fmt.Sprintf("%#04x", id.product))
	write(t, g.dir+"/strings/0x409/manufacturer", "Rig")
	write(t, g.dir+"/strings/0x409/product", id.name)
	if id.serial != "" {
		write(t, g.dir+"/strings/0x409/serialnumber", id.serial)
	}
	for name, value := range attributes {
		write(t, g.function+"/"+name, value)
	}
	link := g.dir + "/configs/c.1/" + function
	if err := os.Symlink(g.function, link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.unplug()
		for _, path := range []string{link, g.dir + "/configs/c.1", g.function, g.dir + "/strings/0x409", g.dir} {
			err := unix.Rmdir(path)
			if errors.Is(err, unix.ENOTDIR) {
				err = os.Remove(path)
			}
			if err != nil {
				t.Errorf("cannot take %s away: %v", path, err)
			}
		}
	})
	return g
}

// plug connects the device to the emulated host.
func (g *gadget) plug() {
	g.t.Helper()
	write(g.t, g.dir+"/UDC", g.udc)
	g.plugged = true
}

// unplug takes the device away from the host, whatever both are doing. Its own side's node is closed first: some
// kernels free it while it is open.
func (g *gadget) unplug() {
	g.t.Helper()
	if g.far != nil {
		g.far.Close()
		g.far = nil
	}
	if g.plugged {
		write(g.t, g.dir+"/UDC", "\n")
		g.plugged = false
	}
}

// bus is the host's name of the port, such as "3-1": the port of dummy_hcd's root hub.
func (g *gadget) bus() string {
	g.t.Helper()
	hubs := glob(fmt.Sprintf("/sys/devices/platform/dummy_hcd.%d/usb*", g.port))
	if len(hubs) != 1 {
		g.t.Fatalf("port %d has the root hubs %v", g.port, hubs)
	}
	return strings.TrimPrefix(filepath.Base(hubs[0]), "usb") + "-1"
}

// node waits for the device node that the host makes; the pattern is that of its folder in sysfs, below the
// device's interfaces, such as "tty/*".
func (g *gadget) node(pattern string) (path string) {
	g.t.Helper()
	eventually(g.t, "the host has a node "+pattern+" for the device at "+g.bus(), func() bool {
		found := glob("/sys/bus/usb/devices/" + g.bus() + ":1.*/" + pattern)
		if len(found) != 1 {
			return false
		}
		for line := range strings.Lines(text(found[0] + "/uevent")) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
				path = "/dev/" + name
			}
		}
		return path != "" && exists(path)
	})
	return path
}

// attached says whether the host has the device with its interface.
func (g *gadget) attached() bool { return exists("/sys/bus/usb/devices/" + g.bus() + ":1.0") }

// driver is the host's driver of the device's first interface, "" if none has it.
func (g *gadget) driver() string {
	link, err := os.Readlink("/sys/bus/usb/devices/" + g.bus() + ":1.0/driver")
	if err != nil {
		return ""
	}
	return filepath.Base(link)
}

// open opens the device's own side.
func (g *gadget) open(path string) *os.File {
	g.t.Helper()
	if g.far == nil {
		eventually(g.t, path, func() bool { return exists(path) })
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		if err != nil {
			g.t.Fatal(err)
		}
		g.far = f
	}
	return g.far
}

// newACM makes a serial scanner of the class CDC-ACM.
func newACM(t testing.TB, port int, id identity) *gadget {
	return newGadget(t, port, id, fmt.Sprintf("acm.%d", port), nil)
}

// line is the scanner's side of a serial scanner.
func (g *gadget) line() *os.File {
	g.t.Helper()
	fresh := g.far == nil
	f := g.open("/dev/ttyGS" + text(g.function+"/port_num"))
	if fresh {
		makeRaw(g.t, f)
	}
	return f
}

// send makes a serial scanner send s.
func (g *gadget) send(s string) {
	g.t.Helper()
	sendTo(g.t, g.line(), s)
}

func sendTo(t testing.TB, f *os.File, s string) {
	t.Helper()
	f.SetWriteDeadline(time.Now().Add(patience))
	if _, err := f.WriteString(s); err != nil {
		t.Fatalf("cannot send: %v", err)
	}
}

// expect reads exactly what the agent should have sent to a serial scanner.
func expect(t testing.TB, f *os.File, want string) {
	t.Helper()
	got := make([]byte, len(want))
	f.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(f, got); err != nil || string(got) != want {
		t.Fatalf("the scanner was sent %q, %v; want %q", got[:n], err, want)
	}
}

func makeRaw(t testing.TB, f *os.File) {
	t.Helper()
	c, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	c.Control(func(fd uintptr) {
		tio, e := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		if err = e; err != nil {
			return
		}
		tio.Iflag, tio.Oflag, tio.Lflag = 0, 0, 0
		tio.Cflag = tio.Cflag&^unix.CBAUD | unix.B115200 | unix.CLOCAL | unix.CREAD
		tio.Cc[unix.VMIN], tio.Cc[unix.VTIME] = 1, 0
		err = unix.IoctlSetTermios(int(fd), unix.TCSETS, tio)
	})
	if err != nil {
		t.Fatal(err)
	}
}
