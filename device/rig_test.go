package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
	"scanonce/window"
)

// patience bounds every wait of a test; it is no part of what is measured.
const patience = time.Minute

// ptmx is the far side of a virtual serial port.
type ptmx struct {
	t    testing.TB
	file *os.File
	port string // the near side's node
}

func openPty(t testing.TB) *ptmx {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	// Set on this side, the settings are those of the other one.
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Iflag, tio.Oflag, tio.Lflag = 0, 0, 0
	tio.Cc[unix.VMIN], tio.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	p := &ptmx{t: t, file: os.NewFile(uintptr(fd), "ptmx"), port: fmt.Sprintf("/dev/pts/%d", n)}
	t.Cleanup(func() { p.file.Close() })
	return p
}

func (p *ptmx) send(s string) {
	p.t.Helper()
	if _, err := p.file.WriteString(s); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads exactly what the scanner should have been sent.
func (p *ptmx) expect(want string) {
	p.t.Helper()
	got := make([]byte, len(want))
	p.file.SetReadDeadline(time.Now().Add(patience))
	n, err := io.ReadFull(p.file, got)
	if err != nil || string(got) != want {
		p.t.Fatalf("the scanner was sent %q, %v; want %q", got[:n], err, want)
	}
}

// expectNothing checks that nothing lies there to be read.
func (p *ptmx) expectNothing() {
	p.t.Helper()
	if n := p.queued(); n != 0 {
		p.t.Fatalf("the scanner was sent %d more bytes", n)
	}
}

// queued counts the bytes that the scanner was sent and has not taken.
func (p *ptmx) queued() (n int) {
	p.t.Helper()
	c, err := p.file.SyscallConn()
	if err != nil {
		p.t.Fatal(err)
	}
	c.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *ptmx) unplug() { p.file.Close() }

// plug puts a symlink to the port at path, by renaming, as udev does.
func (p *ptmx) plug(path string) {
	p.t.Helper()
	tmp := path + ".new"
	if err := os.Symlink(p.port, tmp); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		p.t.Fatal(err)
	}
}

type stateEvent struct {
	scanner string
	state   State
	detail  string
}

// rig is a scanner task with everything that it reports.
type rig struct {
	t      testing.TB
	path   string
	serial *Serial
	frames chan Frame
	states chan stateEvent
	full   bool // the sink refuses
	reply  Answer
	stop   func()
}

func (r *rig) Offer(f Frame) bool {
	if r.full {
		return false
	}
	r.frames <- f
	if r.reply != 0 && f.Reply != nil {
		f.Reply.Reply(r.reply)
	}
	return true
}

func hostClock(t testing.TB) *window.Clock {
	t.Helper()
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	return window.NewClock(host, window.Mark{}, window.ClockOptions{})
}

// newRig makes a scanner that is not yet plugged in nor supervised.
func newRig(t testing.TB, set func(*SerialConfig)) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "scn04"), frames: make(chan Frame, 10000), states: make(chan stateEvent, 10000)}
	cfg := SerialConfig{ID: "SCN-04", Path: r.path}
	if set != nil {
		set(&cfg)
	}
	r.path = cfg.Path
	s, err := NewSerial(cfg, hostClock(t), r, func(id string, st State, detail string) { r.states <- stateEvent{id, st, detail} })
	if err != nil {
		t.Fatal(err)
	}
	r.serial = s
	return r
}

// start runs the task; the end of the test, or r.stop, stops it and checks that this takes less than 1 s.
func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.serial.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		w := testenv.NewWatch(r.t)
		cancel()
		if err := <-ended; err != nil {
			r.t.Errorf("Run returned %v", err)
		}
		w.Within(r.t, "the stop", time.Second)
	}
	r.t.Cleanup(r.stop)
	select {
	case <-r.serial.Ready():
	case <-time.After(patience):
		r.t.Fatal("not ready")
	}
}

func (r *rig) wait(want State) stateEvent {
	r.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e := <-r.states:
			if e.state == want {
				return e
			}
		case <-deadline:
			r.t.Fatalf("never %s; now %+v", want, r.serial.Stats())
		}
	}
}

func (r *rig) frame() Frame {
	r.t.Helper()
	select {
	case f := <-r.frames:
		return f
	case <-time.After(patience):
		r.t.Fatalf("no frame; %+v", r.serial.Stats())
		return Frame{}
	}
}

// data waits for a complete message.
func (r *rig) data(want string) Frame {
	r.t.Helper()
	f := r.frame()
	if f.Fault != "" || string(f.Data) != want || f.Length != len(want) || f.Scanner != "SCN-04" {
		r.t.Fatalf("got %q, fault %q, length %d of %s; want %q", []byte(f.Data), f.Fault, f.Length, f.Scanner, want)
	}
	return f
}

func (r *rig) fault(want Fault, length int) Frame {
	r.t.Helper()
	f := r.frame()
	if f.Fault != want || f.Length != length || f.Data != nil {
		r.t.Fatalf("got %q, fault %q, length %d; want %q, %d", []byte(f.Data), f.Fault, f.Length, want, length)
	}
	return f
}

// plugged starts the task with a port in place and waits until it is read.
func plugged(t testing.TB, set func(*SerialConfig)) (*rig, *ptmx) {
	t.Helper()
	r := newRig(t, set)
	p := openPty(t)
	p.plug(r.path)
	r.start()
	r.wait(Reading)
	return r, p
}

// descriptors counts this process's descriptors and lists those of them that lead to port.
func descriptors(t testing.TB, port string) (all int, toPort []int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range fds {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if errors.Is(err, os.ErrNotExist) {
			continue // the one that lists
		}
		all++
		if port != "" && strings.TrimSuffix(target, " (deleted)") == port {
			fd, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			toPort = append(toPort, fd)
		}
	}
	return all, toPort
}

// eventually polls what nobody signals: the state of the kernel or of the runtime.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}
