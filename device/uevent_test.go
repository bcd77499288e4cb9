package device

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func uevent(fields ...string) []byte { return []byte(strings.Join(fields, "\x00") + "\x00") }

var ttyAdded = uevent("add@/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/tty/ttyACM0", "ACTION=add",
	"DEVPATH=/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/tty/ttyACM0", "SUBSYSTEM=tty", "MAJOR=166", "MINOR=0", "DEVNAME=ttyACM0", "SEQNUM=4711")

func TestConcernsUSB(t *testing.T) {
	for _, c := range []struct {
		msg  []byte
		want bool
	}{
		{ttyAdded, true},
		{uevent("bind@/devices/x", "SUBSYSTEM=usb"), true},
		{uevent("remove@/devices/x", "ACTION=remove", "SUBSYSTEM=hidraw"), true},
		{uevent("add@/devices/x", "SUBSYSTEM=block"), false},
		{uevent("add@/devices/x", "XSUBSYSTEM=usb"), false},
		{uevent("add@/devices/x"), false},
		{[]byte("add@/devices/x"), false},
		{uevent("libudev", "SUBSYSTEM=usb"), false},
		{nil, false},
	} {
		if got := concernsUSB(c.msg); got != c.want {
			t.Errorf("%q: %v", c.msg, got)
		}
	}
}

func FuzzConcernsUSB(f *testing.F) {
	f.Add(ttyAdded)
	f.Add([]byte("@\x00SUBSYSTEM="))
	f.Fuzz(func(t *testing.T, msg []byte) {
		if concernsUSB(msg) && !strings.Contains(string(msg), "\x00SUBSYSTEM=") {
			t.Errorf("%q", msg)
		}
	})
}

// next runs in the background, since it waits.
func nextEvent(e busEvents) <-chan error {
	c := make(chan error, 1)
	go func() { c <- e.next() }()
	return c
}

func await(t *testing.T, c <-chan error, what string) error {
	t.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		t.Fatal("nothing came: " + what)
		return nil
	}
}

func TestDatagrams(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	defer unix.Close(fds[1])
	believed := false
	d := newDatagrams(fds[0], func(unix.Sockaddr) bool { return believed })
	must(t, unix.Send(fds[1], ttyAdded, 0))
	got := nextEvent(d)
	for queued := 1; queued > 0; { // until it was read with believed false
		queued, err = unix.IoctlGetInt(fds[0], unix.TIOCINQ)
		must(t, err)
	}
	select {
	case err := <-got:
		t.Fatalf("believed somebody: %v", err)
	default:
	}
	d.close()
	if err := await(t, got, "the end"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}

	fds, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	defer unix.Close(fds[1])
	d = newDatagrams(fds[0], func(unix.Sockaddr) bool { return true })
	must(t, unix.Send(fds[1], uevent("add@/devices/x", "SUBSYSTEM=block"), 0))
	must(t, unix.Send(fds[1], ttyAdded, 0))
	must(t, await(t, nextEvent(d), "the tty's event"))
	if n, _ := unix.IoctlGetInt(fds[0], unix.TIOCINQ); n != 0 {
		t.Errorf("%d bytes are left: the disk's event was told", n)
	}
	got = nextEvent(d)
	must(t, unix.Send(fds[1], ttyAdded, 0))
	must(t, await(t, got, "an event that is waited for"))
	d.close()
}

// The kernel of this machine takes the subscription without privilege, and what another program sends to the
// socket is not believed.
func TestUevents(t *testing.T) {
	e, err := openUevents()
	must(t, err)
	d := e.(*datagrams)
	liar, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	must(t, err)
	defer unix.Close(liar)
	must(t, unix.Bind(liar, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	address := func(fd int) *unix.SockaddrNetlink {
		sa, err := unix.Getsockname(fd)
		must(t, err)
		return sa.(*unix.SockaddrNetlink)
	}
	liarID := address(liar).Pid
	heard := make(chan bool, 1)
	d.believe = func(from unix.Sockaddr) bool {
		ok := fromKernel(from)
		if from.(*unix.SockaddrNetlink).Pid == liarID {
			heard <- ok
		}
		return ok
	}
	var to *unix.SockaddrNetlink
	c, err := d.file.SyscallConn()
	must(t, err)
	c.Control(func(fd uintptr) { to = address(int(fd)) })
	if to.Groups != kernelEvents || to.Pid == 0 {
		t.Errorf("subscribed as %+v", to)
	}
	got := nextEvent(d)
	err = unix.Sendto(liar, ttyAdded, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: to.Pid})
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		heard <- false // the kernel lets root alone lie
	} else {
		must(t, err)
	}
	select {
	case believed := <-heard:
		if believed {
			t.Error("another program was believed")
		}
	case <-time.After(patience):
		t.Fatal("what another program sent did not come")
	}
	d.close()
	await(t, got, "the end")
}

func TestFromKernel(t *testing.T) {
	for _, c := range []struct {
		from unix.Sockaddr
		want bool
	}{
		{&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelEvents}, true},
		{&unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: 4711, Groups: kernelEvents}, false},
		{&unix.SockaddrUnix{}, false},
		{nil, false},
	} {
		if got := fromKernel(c.from); got != c.want {
			t.Errorf("%+v: %v", fmt.Sprint(c.from), got)
		}
	}
}
