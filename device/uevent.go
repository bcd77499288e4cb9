package device

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// kernelEvents is the multicast group in which the kernel itself speaks; udev's is another one.
	kernelEvents = 1
	// maxUevent is more than the kernel's buffer for one event (UEVENT_BUFFER_SIZE, 2048, and the header).
	maxUevent = 8192
	// ueventRoom holds the events of a large hub that is plugged in while the machine is busy.
	ueventRoom = 1 << 20 // bytes
)

// usbSubsystems are those in which something happens when a scanner comes or goes.
func usbSubsystems() []string { return []string{"usb", "usb-serial", "tty", "hid", "hidraw", "input"} }

// datagrams are events that come as messages on a socket.
type datagrams struct {
	file *os.File
	buf  []byte
	// believe says whether the sender is the kernel.
	believe func(unix.Sockaddr) bool
}

// openUevents subscribes to the kernel's events (NETLINK_KOBJECT_UEVENT). It takes no privilege.
func openUevents() (busEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("cannot hear of USB devices from the kernel: %w: let the service use AF_NETLINK", err)
	}
	unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, ueventRoom) // less room is made good by rescans
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelEvents}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot hear of USB devices from the kernel: %w", err)
	}
	return newDatagrams(fd, fromKernel), nil
}

func newDatagrams(fd int, believe func(unix.Sockaddr) bool) *datagrams {
	return &datagrams{file: os.NewFile(uintptr(fd), "uevent"), buf: make([]byte, maxUevent), believe: believe}
}

// fromKernel: any program may send to the socket, and only the kernel has the address 0 (netlink(7)).
func fromKernel(from unix.Sockaddr) bool {
	nl, ok := from.(*unix.SockaddrNetlink)
	return ok && nl.Pid == 0
}

func (d *datagrams) next() error {
	c, err := d.file.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var (
			n    int
			from unix.Sockaddr
			rerr error
		)
		err := c.Read(func(fd uintptr) bool {
			for {
				n, from, rerr = unix.Recvfrom(int(fd), d.buf, 0)
				if !errors.Is(rerr, syscall.EINTR) {
					return !errors.Is(rerr, syscall.EAGAIN)
				}
			}
		})
		switch {
		case err != nil:
			return os.ErrClosed
		case errors.Is(rerr, syscall.ENOBUFS):
			return errEventsLost
		case rerr != nil:
			return fmt.Errorf("cannot hear of USB devices from the kernel: %w", rerr)
		case d.believe(from) && concernsUSB(d.buf[:n]):
			return nil
		}
	}
}

func (d *datagrams) close() { d.file.Close() }

// concernsUSB reads a message of the kernel: "add@/devices/…", and after it KEY=VALUE strings, each ended by
// a zero byte.
func concernsUSB(msg []byte) bool {
	head, rest, ok := bytes.Cut(msg, []byte{0})
	if !ok || bytes.IndexByte(head, '@') <= 0 {
		return false
	}
	for len(rest) > 0 {
		var field []byte
		field, rest, _ = bytes.Cut(rest, []byte{0})
		if subsystem, ok := bytes.CutPrefix(field, []byte("SUBSYSTEM=")); ok {
			return slices.Contains(usbSubsystems(), string(subsystem))
		}
	}
	return false
}

// devEvents are changes of the nodes below dev. They stand in where the kernel cannot be heard: a scanner in use
// has a node, or lacks it.
type devEvents struct {
	file *os.File
	buf  []byte
}

func openDevEvents(root string) (busEvents, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch for USB devices: %w: raise fs.inotify.max_user_instances", err)
	}
	dev := filepath.Join(root, "dev")
	const mask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dev, mask); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot watch %s for USB devices: %w", dev, err)
	}
	buses, _ := filepath.Glob(filepath.Join(dev, "bus/usb/*"))
	for _, sub := range append(buses, filepath.Join(dev, "input")) {
		unix.InotifyAddWatch(fd, sub, mask) // not there without such devices
	}
	return &devEvents{os.NewFile(uintptr(fd), "inotify"), make([]byte, 64*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))}, nil
}

func (d *devEvents) next() error {
	_, err := d.file.Read(d.buf) // what happened there is found by looking
	return err
}

func (d *devEvents) close() { d.file.Close() }
