package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
)

// posDescriptor is a HID-POS scanner's with the usages of the standard, and keyDescriptor a boot keyboard's:
// enough of either to tell them.
var (
	posDescriptor = []byte{0x05, 0x8c, 0x09, 0x02, 0xa1, 0x01, 0x85, 0x02, 0x15, 0x00, 0x26, 0xff, 0x00, 0x75, 0x08,
		0x95, 0x01, 0x05, 0x01, 0x09, 0x3b, 0x81, 0x02, 0x95, 0x03, 0x05, 0x8c, 0x09, 0xfb, 0x09, 0xfc, 0x09, 0xfd, 0x81, 0x02,
		0x95, 0x38, 0x09, 0xfe, 0x82, 0x02, 0x01, 0xc0}
	keyDescriptor = []byte{0x05, 0x01, 0x09, 0x06, 0xa1, 0x01, 0x05, 0x07, 0x19, 0xe0, 0x29, 0xe7, 0x15, 0x00, 0x25, 0x01,
		0x75, 0x01, 0x95, 0x08, 0x81, 0x02, 0x95, 0x01, 0x75, 0x08, 0x81, 0x01, 0x95, 0x06, 0x75, 0x08, 0x15, 0x00, 0x26, 0xff, 0x00,
		0x05, 0x07, 0x19, 0x00, 0x2a, 0xff, 0x00, 0x81, 0x00, 0xc0}
)

// The scanners of the tests, as their drivers show them.
func zebraCDC(port, tty string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: "05e0", Product: "1701", Serial: "S/N:0123 A", Manufacturer: "Symbol Technologies, Inc, 2008", Name: "Symbol Bar Code Scanner::EA",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: tty}, {Class: 10, Driver: "cdc_acm"}}}
}

func honeywellPOS(port, hidraw, serial string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: "0c2e", Product: "0b81", Serial: serial, Manufacturer: "Honeywell", Name: "1900",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, Driver: "usbhid", HIDRaw: hidraw, Descriptor: posDescriptor}}}
}

func keyboardScanner(port, hidraw, event, serial string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: "05f9", Product: "2206", Serial: serial, Name: "USB Scanner",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", HIDRaw: hidraw, Event: event, Descriptor: keyDescriptor}}}
}

func ftdi(port, tty string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: "0403", Product: "6001", Serial: "FT0G8X", Manufacturer: "FTDI", Name: "FT232R USB UART",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 0xff, SubClass: 0xff, Protocol: 0xff, Driver: "ftdi_sio", TTY: tty}}}
}

func testClock() Clock { return &bubbleClock{start: time.Now()} }

func TestReadUSB(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(zebraCDC("1-1", "ttyACM0"))
	u.Plug(honeywellPOS("1-2.10", "hidraw0", ""))
	u.Plug(keyboardScanner("1-2.2", "hidraw1", "event3", "000"))
	u.Plug(ftdi("1-2.3", "ttyUSB0"))
	got, err := ReadUSB(u.Root)
	must(t, err)
	want := []USBDevice{
		{Vendor: 0x05e0, Product: 0x1701, Serial: "S/N:0123 A", Port: "1-1", Bus: 1, Address: 3, Manufacturer: "Symbol Technologies, Inc, 2008", Name: "Symbol Bar Code Scanner::EA",
			Interfaces: []USBInterface{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: u.Dev("ttyACM0")}, {Number: 1, Class: 10, Driver: "cdc_acm"}}},
		{Vendor: 0x05f9, Product: 0x2206, Serial: "000", Port: "1-2.2", Bus: 1, Address: 5, Name: "USB Scanner",
			Interfaces: []USBInterface{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", HIDRaw: u.Dev("hidraw1"), Events: []string{u.Dev("event3")}, Descriptor: keyDescriptor}}},
		{Vendor: 0x0403, Product: 0x6001, Serial: "FT0G8X", Port: "1-2.3", Bus: 1, Address: 6, Manufacturer: "FTDI", Name: "FT232R USB UART",
			Interfaces: []USBInterface{{Class: 0xff, SubClass: 0xff, Protocol: 0xff, Driver: "ftdi_sio", TTY: u.Dev("ttyUSB0")}}},
		{Vendor: 0x0c2e, Product: 0x0b81, Port: "1-2.10", Bus: 1, Address: 4, Manufacturer: "Honeywell", Name: "1900",
			Interfaces: []USBInterface{{Class: 3, Driver: "usbhid", HIDRaw: u.Dev("hidraw0"), Descriptor: posDescriptor}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	u.Unplug("1-2.10")
	if got, err = ReadUSB(u.Root); err != nil || len(got) != 3 {
		t.Errorf("after an unplug: %+v, %v", got, err)
	}
}

func TestReadUSBWithoutBus(t *testing.T) {
	if devs, err := ReadUSB(t.TempDir()); !errors.Is(err, fs.ErrNotExist) || devs != nil || !strings.HasPrefix(err.Error(), "cannot list the USB devices: ") {
		t.Errorf("got %v, %v", devs, err)
	}
}

// A device may be half there: its folder exists, and not yet what is in it.
func TestReadUSBHalfThere(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(zebraCDC("1-1", "ttyACM0"))
	for _, gone := range []string{"1-1:1.0/tty/ttyACM0", "1-1:1.0/tty", "1-1:1.0/driver", "1-1:1.1/bInterfaceNumber", "1-1:1.0", "serial", "devnum", "idProduct"} {
		must(t, os.RemoveAll(filepath.Join(u.Folder("1-1"), gone)))
		devs, err := ReadUSB(u.Root)
		must(t, err)
		if gone == "idProduct" {
			if len(devs) != 0 {
				t.Errorf("a device without its ids: %+v", devs)
			}
		} else if len(devs) != 1 || devs[0].Vendor != 0x05e0 {
			t.Errorf("without %s: %+v", gone, devs)
		}
	}
}

// Twins are ambiguous unless their serial numbers tell them apart.
func TestAmbiguous(t *testing.T) {
	for _, c := range []struct {
		serials []string
		want    []bool
	}{
		{[]string{""}, []bool{false}},
		{[]string{"A"}, []bool{false}},
		{[]string{"A", "B"}, []bool{false, false}},
		{[]string{"A", "A"}, []bool{true, true}},
		{[]string{"", ""}, []bool{true, true}},
		{[]string{"A", "", "A", "B"}, []bool{true, true, true, false}},
		{[]string{"  ", "\x01\x02"}, []bool{true, true}}, // no number that a person could write down
	} {
		u := testenv.NewUSBTree(t)
		for i, s := range c.serials {
			u.Plug(honeywellPOS(fmt.Sprintf("1-2.%d", i+1), fmt.Sprintf("hidraw%d", i), s))
		}
		u.Plug(keyboardScanner("1-1", "hidraw9", "event9", "A")) // another model's number is no matter
		devs, err := ReadUSB(u.Root)
		must(t, err)
		var got []bool
		for _, d := range devs[1:] {
			got = append(got, d.Ambiguous)
		}
		if devs[0].Ambiguous || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %v, want %v", c.serials, got, c.want)
		}
	}
}

// What is attached is found without opening any of its nodes, and without a write into sysfs.
func TestReadUSBOpensNothing(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(zebraCDC("1-1", "ttyACM0"))
	u.Plug(honeywellPOS("1-2.1", "hidraw0", ""))
	u.Plug(keyboardScanner("1-2.2", "hidraw1", "event3", ""))
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(fd)
	for _, dir := range []string{"dev", "dev/input", "dev/bus/usb/001"} {
		_, err := unix.InotifyAddWatch(fd, filepath.Join(u.Root, dir), unix.IN_OPEN|unix.IN_ACCESS|unix.IN_MODIFY|unix.IN_ATTRIB)
		must(t, err)
	}
	must(t, filepath.WalkDir(filepath.Join(u.Root, "sys"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_, err = unix.InotifyAddWatch(fd, path, unix.IN_MODIFY|unix.IN_CREATE|unix.IN_DELETE|unix.IN_ATTRIB)
		}
		return err
	}))
	buf := make([]byte, 4096)
	if devs, err := ReadUSB(u.Root); err != nil || len(devs) != 3 {
		t.Fatalf("%+v, %v", devs, err)
	}
	if n, err := unix.Read(fd, buf); err != unix.EAGAIN {
		t.Errorf("%d bytes of events, %v: something was opened or written", n, err)
	}
	f, err := os.Open(u.Dev("hidraw0"))
	must(t, err)
	f.Close()
	if n, err := unix.Read(fd, buf); n <= 0 {
		t.Errorf("an open was not seen: %v", err)
	}
}

// fakeEvents is a source whose events a test sends.
type fakeEvents struct {
	events chan error
	closed chan struct{}
	once   sync.Once
}

func newFakeEvents() *fakeEvents {
	return &fakeEvents{events: make(chan error), closed: make(chan struct{})}
}

func (f *fakeEvents) next() error {
	select {
	case err := <-f.events:
		return err
	case <-f.closed:
		return os.ErrClosed
	}
}

func (f *fakeEvents) close() { f.once.Do(func() { close(f.closed) }) }

// fakeBus is a Bus in a synctest bubble, over what a test says is attached.
type fakeBus struct {
	*Bus
	mu   sync.Mutex
	devs []USBDevice
}

func (b *fakeBus) attach(devs ...USBDevice) {
	markAmbiguous(devs)
	b.mu.Lock()
	b.devs = devs
	b.mu.Unlock()
}

func (b *fakeBus) attached() []USBDevice {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.devs
}

func newFakeBus(t *testing.T, open ...func() (busEvents, error)) *fakeBus {
	t.Helper()
	b := &fakeBus{Bus: NewBus("/", testClock())}
	b.sources = nil
	for i, o := range open {
		b.sources = append(b.sources, busSource{[]string{"netlink", "inotify"}[i], o})
	}
	b.read = func() ([]USBDevice, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.devs, nil
	}
	return b
}

func (b *fakeBus) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	<-b.Ready()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the bus ended with %v", err)
		}
	}
}

func signalled(w watcher) bool {
	synctest.Wait()
	select {
	case <-w.changed():
		return true
	default:
		return false
	}
}

// A burst of events is one look, and those alone are told whose devices have changed.
func TestBusTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeEvents()
		b := newFakeBus(t, func() (busEvents, error) { return src, nil })
		defer b.start(t)()
		all, err := b.Watch()
		must(t, err)
		defer all.close()
		one, err := b.WatchDevice(USBSelector{Vendor: 0x0c2e, Product: 0x0b81}, nil)
		must(t, err)
		defer one.close()
		all.arm()
		one.arm()
		before := b.Stats().Scans

		mine, other := USBDevice{Vendor: 0x0c2e, Product: 0x0b81, Port: "1-1", Address: 4}, USBDevice{Vendor: 1, Product: 2, Port: "1-2", Address: 5}
		b.attach(other)
		for range 12 {
			src.events <- nil
		}
		if signalled(all) || len(b.Devices()) != 0 {
			t.Error("told before the burst ended")
		}
		time.Sleep(settle)
		if !signalled(all) || signalled(one) || len(b.Devices()) != 1 {
			t.Errorf("another device plugged in: %+v", b.Devices())
		}
		if st := b.Stats(); st.Scans != before+1 || st.Events != 12 || st.Devices != 1 || st.Told != "netlink" || st.Detail != "" {
			t.Errorf("%+v", st)
		}
		for _, step := range []struct {
			devs []USBDevice
			one  bool
		}{
			{[]USBDevice{other, mine}, true},
			{[]USBDevice{mine}, false},
			{[]USBDevice{{Vendor: 0x0c2e, Product: 0x0b81, Port: "1-1", Address: 6}}, true}, // replugged between two looks
			{nil, true},
		} {
			b.attach(step.devs...)
			src.events <- nil
			time.Sleep(settle)
			if !signalled(all) || signalled(one) != step.one {
				t.Errorf("%+v: the device's watcher should be told: %v", step.devs, step.one)
			}
		}
		src.events <- nil
		time.Sleep(settle)
		if signalled(all) {
			t.Error("told although nothing had changed")
		}
	})
}

// An interface that was taken from its driver keeps the descriptor that it had, as long as it is the same device.
func TestBusKeepsDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeEvents()
		b := newFakeBus(t, func() (busEvents, error) { return src, nil })
		pos := func(address int, descriptor []byte) USBDevice {
			return USBDevice{Port: "1-1", Address: address, Interfaces: []USBInterface{{Number: 0, Class: 8}, {Number: 1, Class: classHID, Descriptor: descriptor}}}
		}
		b.attach(pos(4, posDescriptor))
		defer b.start(t)()
		for _, step := range []struct {
			now  USBDevice
			want []byte
		}{{pos(4, nil), posDescriptor}, {pos(4, keyDescriptor), keyDescriptor}, {pos(4, nil), keyDescriptor}, {pos(5, nil), nil}} {
			b.attach(step.now)
			src.events <- nil
			time.Sleep(settle)
			synctest.Wait()
			if got := b.Devices()[0].Interfaces; !slices.Equal(got[1].Descriptor, step.want) || got[0].Descriptor != nil {
				t.Errorf("address %d: %+v, want % x", step.now.Address, got, step.want)
			}
		}
	})
}

// A change of which no event tells is found within half a minute, and nothing else wakes the bus.
func TestBusRescans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeEvents()
		b := newFakeBus(t, func() (busEvents, error) { return src, nil })
		defer b.start(t)()
		w, err := b.Watch()
		must(t, err)
		defer w.close()
		before := b.Stats().Scans
		b.attach(USBDevice{Port: "1-1"})
		time.Sleep(rescanEvery - time.Millisecond)
		if signalled(w) {
			t.Error("told too early")
		}
		time.Sleep(time.Millisecond)
		if !signalled(w) {
			t.Error("not told")
		}
		time.Sleep(10 * rescanEvery)
		synctest.Wait()
		if n := b.Stats().Scans - before; n != 11 {
			t.Errorf("%d looks within 11 rescans", n)
		}
		b.attach()
		src.events <- errEventsLost
		time.Sleep(settle)
		if !signalled(w) || b.Stats().Lost != 1 {
			t.Error("events were lost, and the bus was not looked at")
		}
	})
}

// A look that fails says nothing of what is attached.
func TestBusLookFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeEvents()
		b := newFakeBus(t, func() (busEvents, error) { return src, nil })
		b.attach(USBDevice{Port: "1-1"})
		read, failed := b.read, errors.New("too many open files")
		var fails atomic.Bool
		b.read = func() ([]USBDevice, error) {
			if fails.Load() {
				return nil, failed
			}
			return read()
		}
		defer b.start(t)()
		w, err := b.Watch()
		must(t, err)
		defer w.close()
		fails.Store(true)
		time.Sleep(rescanEvery)
		if signalled(w) || len(b.Devices()) != 1 || b.Stats().Unread != failed.Error() {
			t.Errorf("devices %+v, stats %+v", b.Devices(), b.Stats())
		}
		fails.Store(false)
		b.attach()
		time.Sleep(rescanEvery)
		if !signalled(w) || len(b.Devices()) != 0 || b.Stats().Unread != "" {
			t.Errorf("then devices %+v, stats %+v", b.Devices(), b.Stats())
		}
	})
}

// Without the kernel's events dev is watched, without that the bus is looked at every other second; and a
// source that fails is opened again.
func TestBusSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened []*fakeEvents
		works := false
		b := newFakeBus(t, func() (busEvents, error) { return nil, errors.New("cannot hear") }, func() (busEvents, error) {
			if !works {
				return nil, errors.New("cannot watch")
			}
			opened = append(opened, newFakeEvents())
			return opened[len(opened)-1], nil
		})
		stop := b.start(t)
		w, err := b.Watch()
		must(t, err)
		if st := b.Stats(); st.Told != "rescan" || st.Detail != "cannot hear\ncannot watch" {
			t.Errorf("%+v", st)
		}
		b.attach(USBDevice{Port: "1-1"})
		time.Sleep(blindRescan)
		if !signalled(w) {
			t.Error("not told without any source")
		}
		stop()
		w.close()

		works = true
		b.ready = make(chan struct{})
		stop = b.start(t)
		defer stop()
		if st := b.Stats(); st.Told != "inotify" || st.Detail != "cannot hear" {
			t.Errorf("%+v", st)
		}
		opened[0].events <- errors.New("cannot go on")
		synctest.Wait()
		if st := b.Stats(); st.Told != "rescan" || st.Detail != "cannot go on" {
			t.Errorf("%+v", st)
		}
		time.Sleep(blindRescan)
		synctest.Wait()
		if len(opened) != 2 || b.Stats().Told != "inotify" {
			t.Errorf("opened %d times, %+v", len(opened), b.Stats())
		}
	})
}

// Two scanners cannot have one device, and a device that was unplugged is free.
func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeEvents()
		b := newFakeBus(t, func() (busEvents, error) { return src, nil })
		d := USBDevice{Vendor: 0x0c2e, Product: 0x0b81, Port: "1-1", Address: 4}
		b.attach(d)
		defer b.start(t)()
		release, err := b.Claim(d, "A")
		must(t, err)
		if _, err := b.Claim(d, "B"); err == nil || !strings.Contains(err.Error(), "it is scanner A already") || !strings.Contains(err.Error(), "write usb with the serial number, or port") {
			t.Errorf("taken twice: %v", err)
		}
		again, err := b.Claim(d, "A") // opened anew after a failure
		must(t, err)
		again()
		releaseB, err := b.Claim(d, "B")
		must(t, err)
		release() // A's, late
		if _, err := b.Claim(d, "A"); err == nil {
			t.Error("a late release freed another one's device")
		}
		_ = releaseB
		b.attach()
		src.events <- nil
		time.Sleep(settle)
		synctest.Wait()
		if _, err := b.Claim(d, "A"); err != nil {
			t.Errorf("still taken after its unplugging: %v", err)
		}
	})
}

// The tree's own dev is watched, since the kernel does not speak of it.
func TestBusFollowsDev(t *testing.T) {
	u := testenv.NewUSBTree(t)
	b := NewBus(u.Root, testClock())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	<-b.Ready()
	if st := b.Stats(); st.Told != "inotify" {
		t.Errorf("%+v", st)
	}
	w, err := b.Watch()
	must(t, err)
	defer w.close()
	for _, step := range []struct {
		do   func()
		want int
	}{
		{func() { u.Plug(zebraCDC("1-1", "ttyACM0")) }, 1},
		{func() { u.Plug(keyboardScanner("1-2.4", "", "event3", "")) }, 2},
		{func() { u.Unplug("1-1") }, 1},
	} {
		step.do()
		for len(b.Devices()) != step.want { // a device may be seen before its node
			select {
			case <-w.changed():
			case <-time.After(patience):
				t.Fatalf("%d devices, want %d", len(b.Devices()), step.want)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
