//go:build usbrig

package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/device"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// resume is the promise on how soon a scanner that is plugged in again is heard.
const resume = 3 * time.Second

func acmScanner(serial string) identity {
	return identity{vendor: 0x05e0, product: 0x1701, serial: serial, name: "CDC Scanner"}
}

// byID is the link that udev makes to the port of a scanner, by what the scanner says of itself.
func byID(t testing.TB, id identity) string {
	t.Helper()
	var found []string
	eventually(t, "udev links the port of "+id.serial, func() bool {
		found = glob("/dev/serial/by-id/usb-*" + id.serial + "*")
		return len(found) == 1
	})
	return found[0]
}

// again waits until a scanner is heard again that was plugged in at an instant, and holds it to the promise once the
// kernel and udev have made its node, another one than before. How long these take on the emulated machine is told,
// not judged.
func again(t testing.TB, plugged time.Time, path string, before os.FileInfo, s *scanner) {
	t.Helper()
	eventually(t, path+" leads to a node", func() bool {
		now, err := os.Stat(path)
		return err == nil && !os.SameFile(before, now)
	})
	made := time.Now()
	w := testenv.NewWatch(t)
	st := s.wait(device.Reading)
	w.Within(t, "to be heard again", resume)
	t.Logf("%v after it was plugged in the scanner has its node, %v after that it is heard", made.Sub(plugged), st.at.Sub(made))
}

func stat(t testing.TB, path string) os.FileInfo {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi
}

// A CDC-ACM scanner is unplugged within a message and comes back under another name: the half is voided, never
// joined, and the scanner is heard again in time.
func TestSerialUnplugged(t *testing.T) {
	id := acmScanner("CDC-77")
	g := newACM(t, 0, id)
	g.plug()
	path := byID(t, id)
	s := serialScanner(t, device.SerialConfig{ID: "SCN-04", Path: path, InterByteTimeout: 10 * time.Second})
	s.wait(device.Reading)
	g.send("]C10109501101530003\r")
	s.data("]C10109501101530003")

	for i, pause := range []time.Duration{50 * time.Millisecond, 50 * time.Millisecond, 10 * time.Second} {
		first, before := g.node("tty/*"), stat(t, path)
		half := fmt.Sprintf("HALF%d", i)
		g.send("BEFORE\r" + half) // one packet: where its first part is, the half is too
		s.data("BEFORE")
		g.unplug()
		s.fault(device.Incomplete, len(half))
		var other *gadget
		if i == 1 { // its name is taken meanwhile
			other = newACM(t, 1, acmScanner("CDC-78"))
			other.plug()
			if other.node("tty/*") != first {
				t.Fatalf("the other scanner is %s, and was to be %s", other.node("tty/*"), first)
			}
		}
		<-time.After(pause)
		plugged := time.Now()
		g.plug()
		again(t, plugged, path, before, s)
		t.Logf("unplugged for %v; now %s, before %s", pause, g.node("tty/*"), first)
		if i == 1 && g.node("tty/*") == first {
			t.Errorf("the scanner has its name %s again", first)
		}
		whole := fmt.Sprintf("WHOLE%d", i)
		g.send(whole + "\r")
		s.data(whole)
		if other != nil {
			other.send("OTHER\r")
			other.unplug()
		}
	}
	s.stop()
	s.nothing()
	if st := s.task.Stats(); st.Reopens != 3 || st.Voided[device.VoidUnplugged] != 3 || st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
}

// readClock tells of each look at the time, which a scanner's task takes at its start, at its end, and once for each
// read of its port that has given bytes.
type readClock struct {
	device.Clock
	looks chan struct{}
}

func (c readClock) Now() window.Reading {
	c.looks <- struct{}{}
	return c.Clock.Now()
}

// FTDI: QEMU's adapter, with its far end on another port of the machine. It is unplugged within a message and comes
// back, once under another name since a program holds the old node: the half is voided, never joined, and the scanner
// is heard again in time.
func TestSerialFTDI(t *testing.T) {
	q := openQEMU(t)
	far := openLine(t, farLine0)
	adapter := func() {
		q.add("usb-serial", "ftdi0", map[string]string{"chardev": "line0", "serial": "FT-0001"})
	}
	adapter()
	t.Cleanup(func() { q.call("device_del", map[string]string{"id": "ftdi0"}) })
	path := byID(t, identity{serial: "FT-0001"})
	clock := readClock{hostClock(t), make(chan struct{}, 1<<16)}
	s := supervise(t, func(sink device.Sink, onState device.StateFunc) (task, error) {
		return device.NewSerial(device.SerialConfig{ID: "SCN-04", Path: path, InterByteTimeout: 10 * time.Second}, clock, sink, onState)
	})
	s.wait(device.Reading)
	// half sends what the adapter may cut anywhere, byte by byte: a byte that the task has not read is lost with it.
	half := func(text string) {
		for i := range len(text) {
			for len(clock.looks) > 0 {
				<-clock.looks
			}
			sendTo(t, far, text[i:i+1])
			select {
			case <-clock.looks:
			case <-time.After(patience):
				t.Fatalf("%q of %q is not read", text[i], text)
			}
		}
	}
	target := func() string {
		link, err := os.Readlink(path)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(link)
	}
	for i := range 3 {
		whole := fmt.Sprintf("]d2010950110153000310LOT%d", i)
		sendTo(t, far, whole+"\r")
		s.data(whole)
		first, node := target(), stat(t, path)
		var holder *os.File
		if i == 1 { // root may open what the agent has for itself
			var err error
			if holder, err = os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0); err != nil {
				t.Fatal(err)
			}
			defer holder.Close()
		}
		begun := fmt.Sprintf("HALF%d", i)
		half(begun)
		s.nothing()
		q.del("ftdi0")
		s.fault(device.Incomplete, len(begun))
		s.wait(device.Absent)
		plugged := time.Now()
		adapter()
		again(t, plugged, path, node, s)
		after := target()
		t.Logf("now %s, before %s", after, first)
		if holder != nil {
			holder.Close()
			if after == first {
				t.Errorf("the scanner has its name %s again", first)
			}
		}
	}
	sendTo(t, far, "LAST\r")
	s.data("LAST")
	s.stop()
	s.nothing()
	if st := s.task.Stats(); st.Reopens != 3 || st.Voided[device.VoidUnplugged] != 3 || st.Dropped != 0 {
		t.Errorf("%+v", st)
	}
}

// The rights to a port come later than the port: the agent, which is not root, waits, says so, and hears the scanner
// as soon as it may.
func TestSerialPermissionLate(t *testing.T) {
	rule(t, `SUBSYSTEM=="tty", ATTRS{idVendor}=="05e0", ATTRS{idProduct}=="1701", GROUP="root", MODE="0600"`)
	id := acmScanner("CDC-79")
	g := newACM(t, 0, id)
	g.plug()
	path := byID(t, id)
	node := g.node("tty/*")
	eventually(t, "only root may use the port", func() bool { group, mode := owner(t, node); return group == 0 && mode == 0o600 })
	c := newCounter(t, fmt.Sprintf("[[scanner]]\nid = \"SCN-04\"\ntransport = \"serial\"\npath = %q\n", path))
	c.home.Await(t, "the agent may not open the port", func(s *testenv.Status) bool {
		sc := s.Scanner("SCN-04")
		return sc != nil && sc.State == "backoff"
	})
	from := c.events.Len()
	w := testenv.NewWatch(t)
	if err := os.Chown(node, 0, serviceUser); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(node, 0o660); err != nil {
		t.Fatal(err)
	}
	c.heard("SCN-04", from)
	w.Within(t, "to be heard once it may", resume)
	t.Logf("heard %v after it may", w.Stop())
	g.send(label("LATE") + "\r")
	c.accepted("LATE", "A1207")
}

func usbScanner(t *testing.T, bus *device.Bus, scanner, usb, port string) *scanner {
	t.Helper()
	sel, err := device.ParseUSBSelector(usb, port)
	if err != nil {
		t.Fatal(err)
	}
	clock := hostClock(t)
	return supervise(t, func(sink device.Sink, onState device.StateFunc) (task, error) {
		return device.NewUSBSerial(device.SerialConfig{ID: scanner, InterByteTimeout: 10 * time.Second}, sel, bus, clock, sink, onState)
	})
}

// Two scanners of one model without serial numbers are told apart by their ports, whatever names their nodes have,
// and a table that names no port is told what to write.
func TestSerialTwins(t *testing.T) {
	bus := runBus(t)
	twins := []*gadget{newACM(t, 0, acmScanner("")), newACM(t, 1, acmScanner(""))}
	twins[0].plug()
	first := twins[0].node("tty/*")
	twins[1].plug()
	second := twins[1].node("tty/*")
	var s []*scanner
	for i, g := range twins {
		s = append(s, usbScanner(t, bus, fmt.Sprintf("SCN-0%d", i+1), "05e0:1701", g.bus()))
		s[i].wait(device.Reading)
	}
	nameless := usbScanner(t, bus, "SCN-03", "05e0:1701", "")
	if st := nameless.task.Stats(); st.State == device.Reading || !strings.Contains(st.Detail, "write port = ") {
		t.Errorf("a table without a port: %s, %q", st.State, st.Detail)
	}
	nameless.stop()

	for i, g := range twins {
		g.send(fmt.Sprintf("FROM%d\rHALF", i))
		s[i].data(fmt.Sprintf("FROM%d", i))
	}
	for i, g := range twins {
		g.unplug()
		s[i].fault(device.Incomplete, len("HALF"))
	}
	for i := range twins {
		s[i].wait(device.Absent)
	}
	for i := len(twins) - 1; i >= 0; i-- { // the other way round, so that the kernel gives the names the other way round
		twins[i].plug()
		plugged := time.Now()
		twins[i].node("tty/*")
		made := time.Now()
		w := testenv.NewWatch(t)
		st := s[i].wait(device.Reading)
		w.Within(t, "to be heard again", resume)
		t.Logf("%s has its node %v after it was plugged in, and is heard %v after that", twins[i].bus(), made.Sub(plugged), st.at.Sub(made))
	}
	if a, b := twins[0].node("tty/*"), twins[1].node("tty/*"); a != second || b != first {
		t.Errorf("the nodes are %s and %s, before %s and %s: they were to be exchanged", a, b, first, second)
	}
	for i, g := range twins {
		g.send(fmt.Sprintf("AGAIN%d\r", i))
		s[i].data(fmt.Sprintf("AGAIN%d", i))
		s[i].stop()
		s[i].nothing()
	}
}
