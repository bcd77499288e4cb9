package device

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// usbRig is a tree with its bus running, and scanners on it.
type usbRig struct {
	*testenv.USBTree
	t   *testing.T
	bus *Bus
}

func newUSBRig(t *testing.T) *usbRig {
	t.Helper()
	u := &usbRig{testenv.NewUSBTree(t), t, nil}
	u.bus = NewBus(u.Root, testClock())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- u.bus.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-u.bus.Ready()
	return u
}

// scanner starts the task of what usb and port mean.
func (u *usbRig) scanner(usb, port string) *rig {
	u.t.Helper()
	return u.named("SCN-04", usb, port)
}

func (u *usbRig) named(id, usb, port string) *rig {
	u.t.Helper()
	sel, err := ParseUSBSelector(usb, port)
	must(u.t, err)
	r := &rig{t: u.t, frames: make(chan Frame, 100), states: make(chan stateEvent, 10000)}
	r.serial, err = NewUSBSerial(SerialConfig{ID: id}, sel, u.bus, hostClock(u.t), r, func(id string, st State, detail string) { r.states <- stateEvent{id, st, detail} })
	must(u.t, err)
	r.start()
	return r
}

// pty plugs a device in whose port is a virtual one.
func (u *usbRig) pty(s testenv.USBSpec) *ptmx {
	u.t.Helper()
	p := openPty(u.t)
	u.Lead(s.Interfaces[0].TTY, p.port)
	u.Plug(s)
	return p
}

// A scanner is found by its serial number on whatever port and node it comes back; what was begun before is
// voided, and another device that has got its node is not heard.
func TestUSBSerialRenumbered(t *testing.T) {
	u := newUSBRig(t)
	r := u.scanner("05e0:1701:S/N:0123 A", "")
	if e := r.wait(Absent); !strings.Contains(e.detail, "05e0:1701:S/N:0123 A") {
		t.Errorf("told %+v", e)
	}
	p := u.pty(zebraCDC("1-1", "ttyACM0"))
	r.wait(Reading)
	p.send("one\rha")
	r.data("one")
	u.Unplug("1-1")
	p.unplug()
	r.fault(Incomplete, 2)
	r.wait(Absent)

	other := zebraCDC("1-1", "ttyACM0")
	other.Serial = "ANOTHER"
	q := u.pty(other)
	p = u.pty(zebraCDC("1-2.3", "ttyACM1"))
	r.wait(Reading)
	q.send("not this one\r")
	p.send("lf\r")
	r.data("lf")
	if st := r.serial.Stats(); st.Reopens != 1 || st.Voided[VoidUnplugged] != 1 || st.Frames != 3 {
		t.Errorf("%+v", st)
	}
}

// A replug that no event came between is noticed by the device's new address.
func TestUSBSerialReplugged(t *testing.T) {
	u := newUSBRig(t)
	r := u.scanner("05e0:1701", "")
	u.pty(zebraCDC("1-1", "ttyACM0"))
	r.wait(Reading)
	u.Unplug("1-1") // the first one's far side stays open: its port does not fail
	p := u.pty(zebraCDC("1-1", "ttyACM0"))
	r.wait(Reading)
	p.send("new\r")
	r.data("new")
}

// Twins without a serial number are who their port says, also after they have changed places; one that could be
// either is told of, and is heard once it is alone.
func TestUSBSerialTwins(t *testing.T) {
	twin := func(port, tty string) testenv.USBSpec {
		s := zebraCDC(port, tty)
		s.Serial = ""
		return s
	}
	u := newUSBRig(t)
	a, b := u.named("SCN-04", "05e0:1701", "1-2.1"), u.named("SCN-04", "05e0:1701", "1-2.2")
	p, q := u.pty(twin("1-2.1", "ttyACM0")), u.pty(twin("1-2.2", "ttyACM1"))
	a.wait(Reading)
	b.wait(Reading)
	p.send("port 1\r")
	q.send("port 2\r")
	a.data("port 1")
	b.data("port 2")
	for _, d := range u.bus.Devices() {
		if !d.Ambiguous {
			t.Errorf("%+v is not marked", d)
		}
	}

	u.Unplug("1-2.1")
	p.unplug()
	u.Unplug("1-2.2")
	q.unplug()
	a.wait(Absent)
	b.wait(Absent)
	q, p = u.pty(twin("1-2.2", "ttyACM0")), u.pty(twin("1-2.1", "ttyACM1"))
	a.wait(Reading)
	b.wait(Reading)
	p.send("port 1 again\r")
	q.send("port 2 again\r")
	a.data("port 1 again")
	b.data("port 2 again")

	either := u.named("EITHER", "05e0:1701", "")
	if e := either.wait(Backoff); !strings.Contains(e.detail, `write port = "1-2.1" or port = "1-2.2" in`) {
		t.Errorf("told %+v", e)
	}
	a.stop()
	u.Unplug("1-2.2")
	q.unplug()
	either.wait(Reading)
	p.send("alone\r")
	if f := either.frame(); string(f.Data) != "alone" || f.Scanner != "EITHER" {
		t.Errorf("got %q of %s", []byte(f.Data), f.Scanner)
	}
	// A twin that comes later does not take away what is open.
	u.pty(twin("1-2.2", "ttyACM0"))
	eventually(t, "both are seen", func() bool { return len(u.bus.Devices()) == 2 })
	p.send("still\r")
	if f := either.frame(); string(f.Data) != "still" {
		t.Errorf("got %q", []byte(f.Data))
	}
}

// One device is one scanner's, whatever tables say.
func TestUSBSerialClaimedTwice(t *testing.T) {
	u := newUSBRig(t)
	p := u.pty(zebraCDC("1-1", "ttyACM0"))
	first := u.named("SCN-04", "05e0:1701", "")
	first.wait(Reading)
	second := u.named("SECOND", "05e0:1701", "1-1")
	if e := second.wait(Backoff); !strings.Contains(e.detail, "it is scanner SCN-04 already") {
		t.Errorf("told %+v", e)
	}
	p.send("a\r")
	first.data("a")
	first.stop()
	second.wait(Reading)
}

// The node comes later than the device, as udev makes it, and the wait for it ends at once.
func TestUSBSerialNodeLate(t *testing.T) {
	u := newUSBRig(t)
	r := u.scanner("0403:6001", "")
	spec := ftdi("1-1", "ttyUSB0")
	p := openPty(t)
	must(t, os.Symlink("nowhere", u.Dev("ttyUSB0")))
	u.Plug(spec)
	r.wait(Opening)
	r.wait(Absent)
	must(t, os.Symlink(p.port, u.Dev("new")))
	must(t, os.Rename(u.Dev("new"), u.Dev("ttyUSB0")))
	r.wait(Reading)
	p.send("a\r")
	r.data("a")
}

// A scanner in another mode has no port, and is told what to do.
func TestUSBSerialWithoutPort(t *testing.T) {
	u := newUSBRig(t)
	u.Plug(honeywellPOS("1-1", "hidraw0", ""))
	r := u.scanner("0c2e:0b81", "")
	if e := r.wait(Backoff); !strings.Contains(e.detail, "set it to USB serial") {
		t.Errorf("told %+v", e)
	}
	bare := zebraCDC("1-2.1", "")
	bare.Interfaces[0].Driver, bare.Interfaces[1].Driver = "", ""
	u.Plug(bare)
	if e := u.scanner("05e0:1701", "").wait(Backoff); !strings.Contains(e.detail, "cdc_acm") {
		t.Errorf("told %+v", e)
	}
}

// What is attached changes while the port is opened: the port may be another device's.
func TestUSBSerialGoneWhileOpened(t *testing.T) {
	u := newUSBRig(t)
	p := u.pty(zebraCDC("1-1", "ttyACM0"))
	eventually(t, "it is seen", func() bool { return len(u.bus.Devices()) == 1 })
	o := &usbSerialOpener{scanner: "SCN-04", sel: USBSelector{Vendor: 0x05e0, Product: 0x1701}, bus: u.bus, baud: DefaultBaud}
	read := u.bus.read
	for name, devs := range map[string]func() ([]USBDevice, error){
		"gone": func() ([]USBDevice, error) { return nil, errors.New("no bus") },
		"plugged in anew": func() ([]USBDevice, error) {
			devs, err := read()
			devs[0].Address++
			return devs, err
		},
		"renumbered": func() ([]USBDevice, error) {
			devs, err := read()
			devs[0].Interfaces[0].TTY += "9"
			return devs, err
		},
	} {
		o.bus = &Bus{root: u.Root, clock: testClock(), known: true, devs: u.bus.Devices(), claims: map[string]string{}, read: devs}
		if _, err := o.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "while its port was opened") {
			t.Errorf("%s: %v", name, err)
		}
		if len(o.bus.claims) != 0 {
			t.Errorf("%s: still claimed", name)
		}
	}
	if _, fds := descriptors(t, p.port); len(fds) != 0 {
		t.Errorf("descriptors %v are left", fds)
	}
}

func TestSerialPort(t *testing.T) {
	for _, c := range []struct {
		ifs  []USBInterface
		want string
	}{
		{nil, ""},
		{[]USBInterface{{Class: 3}}, ""},
		{[]USBInterface{{Class: 0xff, TTY: "/dev/ttyUSB0"}, {Number: 1, Class: 0xff, TTY: "/dev/ttyUSB1"}}, "/dev/ttyUSB0"},
		{[]USBInterface{{Class: 0xff, TTY: "/dev/ttyUSB0"}, {Number: 1, Class: 2, SubClass: 2, TTY: "/dev/ttyACM0"}, {Number: 2, Class: 10}}, "/dev/ttyACM0"},
		{[]USBInterface{{Class: 3, HIDRaw: "/dev/hidraw0"}, {Number: 1, Class: 2, TTY: "/dev/ttyACM1"}, {Number: 3, Class: 2, TTY: "/dev/ttyACM2"}}, "/dev/ttyACM1"},
	} {
		if got := (USBDevice{Interfaces: c.ifs}).SerialPort(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.ifs, got, c.want)
		}
	}
}

func TestNewUSBSerialRefuses(t *testing.T) {
	_, err := NewUSBSerial(SerialConfig{ID: "A B", Path: "/dev/ttyACM0", Baud: 1}, USBSelector{}, NewBus("", testClock()), hostClock(t), nil, nil)
	for _, want := range []string{"cannot use scanner id", "leave one out", "to 1 baud"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
