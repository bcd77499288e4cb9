package device

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hidrawRing is how many reports the kernel keeps for a reader (HIDRAW_BUFFER_SIZE, of which one place stays
// free). It drops what finds no room and says nothing.
const hidrawRing = 63

// hidRaw reads a device's reports beside everybody else, and needs the right to read its node only.
type hidRaw struct {
	file *os.File
	conn syscall.RawConn
	run  int // reports read without having had to wait
	lost int
}

func openHIDRaw(root string, r hidRequest) (*hidRaw, error) {
	if len(r.Nodes) != 1 {
		return nil, hidErrorf(hidRefuse, "cannot listen to interface %d at port %s: the kernel has made no hidraw node: load its module hid", r.Interface, r.Port)
	}
	f, err := openNode(root, r.Nodes[0], unix.O_RDONLY, r)
	if err != nil {
		return nil, err
	}
	return newHIDRaw(f)
}

func newHIDRaw(f *os.File) (*hidRaw, error) {
	c, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, hidErrorf(hidFailed, "cannot read %s: %v", f.Name(), err)
	}
	return &hidRaw{file: f, conn: c}, nil
}

// Read waits for a report. That some were dropped is seen by their number: it takes as many that wait as the
// kernel keeps.
func (h *hidRaw) Read(p []byte) (n int, err error) {
	h.lost = 0
	failed := h.conn.Read(func(fd uintptr) bool {
		n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), p) })
		if err != unix.EAGAIN {
			return true
		}
		full := h.run >= hidrawRing
		if h.run = 0; full { // what was dropped was the last
			n, err, h.lost = 0, nil, 1
		}
		return full
	})
	if err = errors.Join(failed, err); err != nil {
		return 0, err
	}
	if n > 0 {
		if h.run >= hidrawRing {
			h.lost = 1
		}
		h.run++
	}
	return n, nil
}

// Stamp says how many reports at least were dropped before what the last Read gave. When that came is not known
// better than by the reader's clock.
func (h *hidRaw) Stamp() (at time.Duration, lost int) { return 0, h.lost }

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// openNode opens a node of the interface, and checks that the name has not gone to another one meanwhile.
func openNode(root, node string, mode int, r hidRequest) (*os.File, error) {
	if _, err := hidAttached(root, r); err != nil {
		return nil, err
	}
	fd, err := unix.Open(node, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nodeError(node, r, err)
	}
	f := os.NewFile(uintptr(fd), node)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		var dir string
		dir, err = filepath.EvalSymlinks(filepath.Join(root, fmt.Sprintf("sys/dev/char/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))))
		if err == nil && !ofInterface(dir, r) {
			err = errors.New("it is another device's now")
		}
	}
	if err != nil {
		f.Close()
		return nil, hidErrorf(hidGone, "cannot use %s: %v", node, err)
	}
	return f, nil
}

// ofInterface says that a folder of sysfs is below that of the interface, "1-1.2:1.0" with the configuration in
// its middle.
func ofInterface(dir string, r hidRequest) bool {
	for _, name := range strings.Split(dir, "/") {
		if rest, ok := strings.CutPrefix(name, r.Port+":"); ok && strings.HasSuffix(rest, fmt.Sprintf(".%d", r.Interface)) {
			return true
		}
	}
	return false
}
