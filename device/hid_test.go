package device

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/window"
)

// fakeHIDEnv makes of the test program the process that reads a device. The device is the other end of a socket,
// whose address is the value: it is sent the device's USB address; the first packet from it says how the opening goes,
// each one after it what a Read gives, by its first byte.
const fakeHIDEnv = "SCANONCE_TEST_HIDWORKER"

func fakeHIDWorker(at string) int {
	host, err := window.Host()
	if err != nil {
		return 3
	}
	var dev *fakeHIDDevice // stays nil where the opening fails, as the library's does
	w := hidWorker{boot: host.Boot, open: func(r hidRequest) (hidDevice, []byte, error) {
		c, err := net.Dial("unixpacket", at)
		if err != nil {
			return dev, nil, err
		}
		d := &fakeHIDDevice{c}
		if _, err := c.Write([]byte{byte(r.Address)}); err != nil {
			return dev, nil, err
		}
		how := make([]byte, 1000)
		n, err := c.Read(how)
		if err != nil {
			return dev, nil, err
		}
		switch how := string(how[:n]); how {
		case "open":
			if r.Describe {
				return d, fullPos(), nil
			}
			return d, nil, nil
		case "hang":
			select {}
		case "die":
			d.die()
		case "talk":
			os.Stdout.WriteString("a half barcode, and whatever else a broken program says\n")
			select {}
		case "gone":
			return dev, nil, hidErrorf(hidGone, "cannot find it")
		default:
			return dev, nil, hidErrorf(hidRefuse, "%s", how)
		}
		return nil, nil, nil
	}}
	if w.run(os.Stdin, os.Stdout) != nil {
		return 1
	}
	return 0
}

var errUnplugged = errors.New("no such device")

type fakeHIDDevice struct{ net.Conn }

func (d *fakeHIDDevice) die() {
	unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

func (d *fakeHIDDevice) Read(p []byte) (int, error) {
	buf := make([]byte, maxHIDReport+1)
	n, err := d.Conn.Read(buf)
	if err != nil {
		return 0, err
	}
	switch buf[0] {
	case 'r':
		return copy(p, buf[1:n]), nil
	case 'e':
		return 0, errUnplugged
	case 'd':
		d.die()
	case 't':
		os.Stdout.WriteString("what is no record")
	}
	return 0, nil
}

// gadget is the device's side of one opening.
type gadget struct {
	t       testing.TB
	c       *net.UnixConn
	pid     int // of the process that has it open
	address int // on its bus; 0 if the process has ended before it said so
}

func (g *gadget) send(reports ...[]byte) {
	g.t.Helper()
	for _, r := range reports {
		g.say("r" + string(r))
	}
}

func (g *gadget) say(s string) {
	g.t.Helper()
	if _, err := g.c.Write([]byte(s)); err != nil {
		g.t.Fatal(err)
	}
}

// closed waits until nobody has the device open.
func (g *gadget) closed() {
	g.t.Helper()
	g.c.SetReadDeadline(time.Now().Add(patience))
	if _, err := g.c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		g.t.Fatalf("the device is still open: %v", err)
	}
	eventually(g.t, "the process is gone and waited for", func() bool { return unix.Kill(g.pid, 0) == unix.ESRCH })
}

// hidRig is a HID scanner with the bus that it is on.
type hidRig struct {
	*rig
	bus    *fakeBus
	events *fakeEvents
	hid    *HID
	sock   *net.UnixListener
	heard  chan struct{} // one for each report that was decoded
}

// listener tells of what a decoder is given.
type listener struct {
	decoder
	heard chan struct{}
}

func (l listener) Report(p []byte, at window.Reading) {
	l.decoder.Report(p, at)
	l.heard <- struct{}{}
}

// hear waits until n more reports are decoded.
func (r *hidRig) hear(n int) {
	r.t.Helper()
	for range n {
		select {
		case <-r.heard:
		case <-time.After(patience):
			r.t.Fatalf("a report was not heard; %+v", r.hid.Stats())
		}
	}
}

// posDevice is the scanner of the tests at a port, with an address.
func posDevice(port string, address int) USBDevice {
	return USBDevice{Vendor: 0x0c2e, Product: 0x0b81, Port: port, Bus: 1, Address: address, Interfaces: []USBInterface{
		{Number: 0, Class: classHID, Driver: "usbhid", HIDRaw: fmt.Sprintf("/dev/hidraw%d", address), Descriptor: fullPos()}}}
}

func fullPos() []byte {
	b, _ := hex.DecodeString(strings.Join(strings.Fields(descPos), ""))
	return b
}

func newHIDRig(t *testing.T, set func(*HIDConfig)) *hidRig {
	t.Helper()
	r := &hidRig{rig: &rig{t: t, frames: make(chan Frame, 10000), states: make(chan stateEvent, 10000)}, events: newFakeEvents()}
	r.bus = newFakeBus(t, func() (busEvents, error) { return r.events, nil })
	r.path = filepath.Join(t.TempDir(), "device")
	var err error
	if r.sock, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: r.path, Net: "unixpacket"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.sock.Close() })
	cfg := HIDConfig{ID: "SCN-04", Device: USBSelector{Vendor: 0x0c2e, Product: 0x0b81}, Mode: Exclusive, Worker: r.worker}
	if set != nil {
		set(&cfg)
	}
	r.hid, err = NewHID(cfg, r.bus.Bus, hostClock(t), r, func(id string, st State, detail string) { r.states <- stateEvent{id, st, detail} })
	if err != nil {
		t.Fatal(err)
	}
	r.heard = make(chan struct{}, 10000)
	decode := r.hid.sup.decode
	r.hid.sup.decode = func(src Source, emit func(Frame)) (decoder, error) {
		d, err := decode(src, emit)
		return listener{d, r.heard}, err
	}
	return r
}

func (r *hidRig) worker() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fakeHIDEnv+"="+r.path)
	return cmd
}

// attach changes what is on the bus, and tells.
func (r *hidRig) attach(devs ...USBDevice) {
	r.bus.attach(devs...)
	r.events.events <- nil
}

func (r *hidRig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- r.bus.Run(ctx) }()
	<-r.bus.Ready()
	go func() { ended <- r.hid.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 2 {
			select {
			case err := <-ended:
				if err != nil {
					r.t.Errorf("Run returned %v", err)
				}
			case <-time.After(patience):
				r.t.Error("not stopped")
			}
		}
	}
	r.t.Cleanup(r.stop)
}

// opening waits for the process to open the device, and says how that goes.
func (r *hidRig) opening(how string) *gadget {
	r.t.Helper()
	for {
		g := r.accept()
		// One that began just before a change is given up for it.
		if !slices.ContainsFunc(r.bus.attached(), func(d USBDevice) bool { return d.Address == g.address }) {
			continue
		}
		if _, err := g.c.Write([]byte(how)); !errors.Is(err, unix.EPIPE) {
			return g
		}
	}
}

func (r *hidRig) accept() *gadget {
	r.t.Helper()
	r.sock.SetDeadline(time.Now().Add(patience))
	c, err := r.sock.AcceptUnix()
	if err != nil {
		r.t.Fatalf("the device is not opened: %v; %+v", err, r.hid.Stats())
	}
	r.t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err != nil {
		r.t.Fatal(err)
	}
	g := &gadget{t: r.t, c: c}
	raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			g.pid = int(peer.Pid)
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(patience))
	address := make([]byte, 1)
	if n, _ := c.Read(address); n == 1 {
		g.address = int(address[0])
	}
	return g
}

func (r *hidRig) wait(want State) stateEvent {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-r.states:
			if e.state == want {
				return e
			}
		case <-deadline:
			r.t.Fatalf("never %s; now %+v", want, r.hid.Stats())
		}
	}
}

// reading starts the scanner with its device in place.
func readingHID(t *testing.T, set func(*HIDConfig)) (*hidRig, *gadget) {
	t.Helper()
	r := newHIDRig(t, set)
	r.bus.attach(posDevice("1-1", 4))
	r.start()
	g := r.opening("open")
	r.wait(Reading)
	return r, g
}

func pos(data string) [][]byte { return posVendors[0].send("]C1", data) }

func TestHIDScans(t *testing.T) {
	r, g := readingHID(t, nil)
	before := hostClock(t).Now().Boot
	for i := range 200 {
		want := body(i, 1+i%150)
		g.send(posVendors[0].send("]d2", want)...)
		g.say("z") // a Read that gives nothing
		f := r.frame()
		if string(f.Data) != "]d2"+want || f.Fault != "" {
			t.Fatalf("scan %d: got %q, %q", i, []byte(f.Data), f.Fault)
		}
		if now := hostClock(t).Now().Boot; f.At.Boot < before || f.At.Boot > now {
			t.Fatalf("scan %d is of %v, now is %v", i, f.At.Boot, now)
		}
		if f.Reply != nil {
			t.Fatal("a HID scanner takes no answer")
		}
	}
	if st := r.hid.Stats(); st.Frames != 200 || st.Lost != 0 || st.Crashes != 0 || st.Reopens != 0 || st.State != Reading {
		t.Errorf("stats %+v", st)
	}
	r.stop()
	g.closed()
	if e := r.wait(Draining); e.detail != "stopping" {
		t.Errorf("told %+v", e)
	}
}

// A scan that is cut off is void, and what comes from the device plugged in anew is none of it.
func TestHIDUnpluggedWithinAScan(t *testing.T) {
	for name, unplug := range map[string]func(*hidRig, *gadget){
		"the process notices":    func(r *hidRig, g *gadget) { g.say("e"); r.wait(Backoff); r.attach() },
		"the bus tells":          func(r *hidRig, g *gadget) { r.attach() },
		"another one comes soon": func(r *hidRig, g *gadget) {},
	} {
		t.Run(name, func(t *testing.T) {
			r, g := readingHID(t, nil)
			long := pos(body(1, 150))
			g.send(pos("one")...)
			r.data("]C1one")
			g.send(long[0])
			r.hear(2)
			unplug(r, g)
			r.attach(posDevice("1-1", 5))
			r.fault(Incomplete, 59)
			g.closed()
			g = r.opening("open")
			g.send(pos("two")...)
			r.data("]C1two")
			if st := r.hid.Stats(); st.Crashes != 0 || st.Voided[VoidUnplugged] != 1 || st.Reopens != 1 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// A process that ends or that talks nonsense voids the scan under way, and is replaced. Others go on.
func TestHIDWorkerFails(t *testing.T) {
	other, og := readingHID(t, nil)
	for name, fail := range map[string]func(*gadget){
		"killed":   func(g *gadget) { unix.Kill(g.pid, unix.SIGKILL) },
		"dies":     func(g *gadget) { g.say("d") },
		"nonsense": func(g *gadget) { g.say("t") },
	} {
		t.Run(name, func(t *testing.T) {
			r, g := readingHID(t, nil)
			g.send(pos(body(1, 150))[0])
			r.hear(1)
			fail(g)
			r.fault(Incomplete, 59)
			if e := r.wait(Backoff); !strings.Contains(e.detail, "its process failed") {
				t.Errorf("told %+v", e)
			}
			g.closed()
			g = r.opening("open")
			g.send(pos("two")...)
			r.data("]C1two")
			if st := r.hid.Stats(); st.Crashes != 1 || st.Reopens != 1 {
				t.Errorf("stats %+v", st)
			}
		})
	}
	og.send(pos("other")...)
	other.data("]C1other")
	if st := other.hid.Stats(); st.Crashes != 0 || st.Reopens != 0 {
		t.Errorf("stats of the other one %+v", st)
	}
}

// A process that fails again and again is not started for ever, until the scanner is plugged in anew.
func TestHIDQuarantine(t *testing.T) {
	r := newHIDRig(t, nil)
	r.bus.attach(posDevice("1-1", 4))
	r.start()
	for _, how := range []string{"die", "talk", "talk", "die", "die"} {
		r.opening(how).closed()
	}
	if e := r.wait(Quarantined); !strings.Contains(e.detail, "plug the scanner in anew") {
		t.Errorf("told %+v", e)
	}
	if st := r.hid.Stats(); st.Crashes != quarantineAfter {
		t.Errorf("stats %+v", st)
	}
	// Its own opening changes drivers and nodes: that is no reason.
	changed := posDevice("1-1", 4)
	changed.Interfaces[0] = USBInterface{Class: classHID, Driver: ""}
	r.attach(changed)
	r.sock.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := r.sock.AcceptUnix(); err == nil {
		t.Fatal("opened for its own change")
	}
	r.attach(posDevice("1-1", 5))
	g := r.opening("open")
	g.send(pos("two")...)
	r.data("]C1two")
}

// What the device refuses is told, and tried again when something changes.
func TestHIDRefused(t *testing.T) {
	r := newHIDRig(t, nil)
	r.bus.attach(posDevice("1-1", 4))
	r.start()
	var told stateEvent
	for i := range quarantineAfter + 1 { // no fault of the process
		r.opening("cannot open it: give the right")
		if i == 0 { // the same again is not told again
			told = r.wait(Backoff)
		}
	}
	changed := posDevice("1-1", 4)
	changed.Name = "changed"
	r.attach(changed)
	if e := told; e.detail != "cannot open it: give the right" {
		t.Errorf("told %+v", e)
	}
	r.opening("gone")
	r.wait(Absent)
	r.opening("open")
	r.wait(Reading)
	if st := r.hid.Stats(); st.Crashes != 0 || st.Reopens != 0 {
		t.Errorf("stats %+v", st)
	}
}

// An Open that hangs is ended after a while.
func TestHIDOpenTakesTooLong(t *testing.T) {
	r := newHIDRig(t, nil)
	r.hid.opener.openFor = time.Second
	r.bus.attach(posDevice("1-1", 4))
	r.start() // and nobody lets the device open
	if e := r.wait(Backoff); !strings.Contains(e.detail, "within 1s") {
		t.Errorf("told %+v", e)
	}
	if st := r.hid.Stats(); st.Crashes != 1 {
		t.Errorf("stats %+v", st)
	}
}

// An Open that hangs is left as soon as another device is there, and at a stop.
func TestHIDOpenHangs(t *testing.T) {
	r := newHIDRig(t, nil)
	r.hid.opener.openFor = time.Hour
	r.bus.attach(posDevice("1-1", 4))
	r.start()
	g := r.opening("hang")
	r.attach(posDevice("1-1", 5))
	g.closed()
	g = r.opening("open")
	g.send(pos("one")...)
	r.data("]C1one")
	r.attach()
	r.wait(Absent)
	r.attach(posDevice("1-1", 6))
	g = r.opening("hang")
	r.stop()
	g.closed()
	if st := r.hid.Stats(); st.Crashes != 0 || st.Reopens != 0 {
		t.Errorf("stats %+v", st)
	}
}

// To open a device changes its drivers and nodes, and that is no reason to open it anew.
func TestHIDOpeningTouches(t *testing.T) {
	r := newHIDRig(t, nil)
	r.bus.attach(posDevice("1-1", 4))
	r.start()
	g := r.accept()
	for i, driver := range []string{"", "usbfs"} {
		d := posDevice("1-1", 4)
		d.Interfaces[0] = USBInterface{Class: classHID, Driver: driver}
		r.attach(d)
		eventually(t, "the bus has the change", func() bool { return r.bus.Devices()[0].Interfaces[0].Driver == driver })
		if i == 0 {
			g.say("open")
			r.wait(Reading)
		}
	}
	g.send(pos("one")...)
	r.data("]C1one")
	r.stop()
	for len(r.states) > 0 {
		if e := <-r.states; e.state != Draining {
			t.Errorf("told %+v", e)
		}
	}
	if st := r.hid.Stats(); st.Reopens != 0 || st.Frames != 1 {
		t.Errorf("stats %+v", st)
	}
}

// A second device that fits does not take the first one away.
func TestHIDTwinComes(t *testing.T) {
	r, g := readingHID(t, nil)
	r.attach(posDevice("1-1", 4), posDevice("1-2", 5))
	g.send(pos("one")...)
	r.data("]C1one")
	r.attach(posDevice("1-2", 5))
	g.closed()
	g = r.opening("open")
	g.send(pos("two")...)
	r.data("]C1two")
}

// The descriptor of an interface that an earlier agent has left without a driver comes from the device.
func TestHIDWithoutDriver(t *testing.T) {
	r := newHIDRig(t, nil)
	d := posDevice("1-1", 4)
	d.Interfaces[0] = USBInterface{Class: classHID}
	r.bus.attach(d)
	r.start()
	if e := r.wait(Backoff); !strings.Contains(e.detail, "no driver for it yet") {
		t.Errorf("told %+v", e)
	}
	g := r.opening("open")
	g.send(posVendors[0].send("]d2", body(1, 150))...)
	r.data("]d2" + body(1, 150))
}

func TestHIDOpensAndCloses(t *testing.T) {
	r, g := readingHID(t, nil)
	r.attach()
	g.closed()
	fds, _ := descriptors(t, "")
	const cycles = 40
	for i := range cycles {
		r.attach(posDevice("1-1", 5+i))
		g := r.opening("open")
		g.send(pos("x")...)
		r.data("]C1x")
		r.attach()
		g.closed()
		g.c.Close()
	}
	r.wait(Absent)
	eventually(t, "as many descriptors as before", func() bool {
		now, _ := descriptors(t, "")
		return now <= fds
	})
	if st := r.hid.Stats(); st.Frames != cycles || st.Crashes != 0 || st.Reopens != cycles {
		t.Errorf("stats %+v", st)
	}
}

func TestHIDConfig(t *testing.T) {
	worker := func() *exec.Cmd { return nil }
	ok := HIDConfig{ID: "SCN-04", Mode: Exclusive, Worker: worker}
	for want, set := range map[string]func(*HIDConfig){
		"":                   func(c *HIDConfig) {},
		"scanner id":         func(c *HIDConfig) { c.ID = "a b" },
		"cannot use mode":    func(c *HIDConfig) { c.Mode = "" },
		"only keys":          func(c *HIDConfig) { c.Mode = Grab },
		"take the keyboard":  func(c *HIDConfig) { c.Keyboard, c.Layout = true, "us" },
		"cannot use layout":  func(c *HIDConfig) { c.Keyboard, c.Layout, c.Mode = true, "xx", Listen },
		"is not found":       func(c *HIDConfig) { c.Worker = nil },
		"inter_byte_timeout": func(c *HIDConfig) { c.Gap = time.Hour },
	} {
		c := ok
		set(&c)
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	forced := HIDConfig{ID: "a", Keyboard: true, Layout: "us", Mode: Exclusive, Force: true, Worker: worker}
	if err := forced.Validate(); err != nil {
		t.Error(err)
	}
}

// Which interface is taken, and how.
func TestHIDChoice(t *testing.T) {
	key := USBInterface{Number: 0, Class: classHID, SubClass: 1, Protocol: 1, Driver: "usbhid", HIDRaw: "/none/hidraw0", Events: []string{"/none/event0"}, Descriptor: keyDescriptor}
	media := USBInterface{Number: 1, Class: classHID, Driver: "usbhid", HIDRaw: "/none/hidraw1", Descriptor: []byte{0x05, 0x0c, 0x09, 0x01, 0xa1, 0x01, 0xc0}}
	scan := USBInterface{Number: 2, Class: classHID, Driver: "usbhid", HIDRaw: "/none/hidraw2", Descriptor: posDescriptor}
	tty := USBInterface{Number: 3, Class: classComm, Driver: "cdc_acm"}
	bare := func(i USBInterface) USBInterface {
		i.Driver, i.HIDRaw, i.Events, i.Descriptor = "", "", nil, nil
		return i
	}
	readable := filepath.Join(t.TempDir(), "event9")
	if err := os.WriteFile(readable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := key
	open.Events = []string{readable}
	for _, tc := range []struct {
		name     string
		keyboard bool
		mode     HIDMode
		ifaces   []USBInterface
		want     string // interface, way and nodes, or words of the error
	}{
		{"pos", false, Exclusive, []USBInterface{key, media, scan, tty}, "2 usb []"},
		{"pos beside", false, Listen, []USBInterface{key, media, scan}, "2 hidraw [/none/hidraw2]"},
		{"keyboard", true, Listen, []USBInterface{media, key, scan}, "0 hidraw [/none/hidraw0]"},
		{"keyboard without the right", true, Listen, []USBInterface{open}, "0 evdev [" + readable + "]"},
		{"keyboard taken", true, Grab, []USBInterface{key}, "0 grab [/none/event0]"},
		{"keyboard alone", true, Exclusive, []USBInterface{key}, "0 usb []"},
		{"no driver", false, Exclusive, []USBInterface{key, bare(scan)}, "2 usb []"},
		{"no driver, listening", false, Listen, []USBInterface{bare(scan)}, "no driver for it yet"},
		{"no driver, two", false, Exclusive, []USBInterface{bare(scan), bare(media)}, "no driver for it yet"},
		{"no driver, a keyboard", false, Exclusive, []USBInterface{bare(key)}, "no such interface"},
		{"set to keyboard", false, Exclusive, []USBInterface{key}, `write transport = "hid-keyboard"`},
		{"set to pos", true, Listen, []USBInterface{scan}, `write transport = "hid-pos"`},
		{"serial", false, Exclusive, []USBInterface{tty}, "scan the HID-POS barcode of its manual"},
	} {
		clock := &bubbleClock{start: time.Now()}
		b := newFakeBus(t)
		d := USBDevice{Vendor: 0x0c2e, Product: 0x0b81, Port: "1-1", Address: 4, Interfaces: tc.ifaces}
		b.attach(d)
		o := &hidOpener{cfg: HIDConfig{Device: USBSelector{Vendor: 0x0c2e, Product: 0x0b81}, Keyboard: tc.keyboard, Mode: tc.mode}, bus: b.Bus, clock: clock}
		o.find()
		clock.skip = driverFor
		f, err := o.find()
		got := fmt.Sprint(f.req.Interface, " ", f.req.Via, " ", f.req.Nodes)
		if err != nil {
			got = err.Error()
		}
		if got != tc.want && (err == nil || !strings.Contains(got, tc.want)) {
			t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
		}
		if err == nil && f.req.Describe != (f.iface.Descriptor == nil) {
			t.Errorf("%s: %+v", tc.name, f.req)
		}
	}
	// What was known of a device is not taken for another one's.
	b := newFakeBus(t)
	d := posDevice("1-1", 4)
	b.attach(d)
	o := &hidOpener{cfg: HIDConfig{Device: USBSelector{Vendor: 0x0c2e, Product: 0x0b81}, Mode: Exclusive}, bus: b.Bus, clock: testClock()}
	o.find()
	for address, want := range map[int]string{4: "", 5: "no driver for it yet"} {
		d := posDevice("1-1", address)
		d.Interfaces[0] = bare(d.Interfaces[0])
		b.attach(d)
		b.scan()
		if _, err := o.find(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("address %d: %v", address, err)
		}
		o.find()
		b.attach(posDevice("1-1", 4))
		b.scan()
		o.find()
	}
	if nodes := o.nodes(d); !slices.Equal(nodes, []string{"/dev/bus/usb/000/004"}) && !slices.Equal(nodes, []string{"/dev/bus/usb/001/004"}) {
		t.Errorf("watches %v", nodes)
	}
}
