package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"
	"time"

	"go.bug.st/serial"
	"golang.org/x/sys/unix"

	"scanonce/window"
)

// Clock gives the instant at which a message ended.
type Clock interface{ Now() window.Reading }

// Serial is the task that keeps one serial scanner open and offers its messages to a sink. Several run
// independently of each other.
type Serial struct{ sup *supervisor }

// NewSerial makes the task of one scanner. onState may be nil.
func NewSerial(cfg SerialConfig, clock Clock, sink Sink, onState StateFunc) (*Serial, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s, err := newSupervisor(cfg, &serialOpener{path: cfg.Path, baud: cfg.Baud}, clock, sink, onState)
	if err != nil {
		return nil, err
	}
	s.watch = func() (watcher, error) { return newPathWatch(cfg.Path) }
	return &Serial{s}, nil
}

// Run supervises the scanner until ctx ends, then returns nil within a second. An absent or failing port is
// no error. It may be called once.
func (s *Serial) Run(ctx context.Context) error { return s.sup.run(ctx) }

// Ready is closed once the port was looked for and its place is watched, whether or not it is there.
func (s *Serial) Ready() <-chan struct{} { return s.sup.ready }

// String names the task.
func (s *Serial) String() string { return "scanner " + s.sup.id }

// Stats returns the figures so far.
func (s *Serial) Stats() Stats { return s.sup.snapshot() }

// writeTimeout bounds one answer: a scanner that waits for an ACK gives up after about 2 s, and an ACK that
// comes later would be taken for that of its next message.
const writeTimeout = 1500 * time.Millisecond

type serialOpener struct {
	path string
	baud int
}

func (o *serialOpener) Attached() bool {
	_, err := os.Stat(o.path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Open opens the port on a descriptor of our own, which the runtime polls, and lets the library set the
// line through it. The library's own descriptor is not kept: its Write cannot be ended, its Read panics
// from descriptor 1024 on, and it is inherited by child processes, which would keep an unplugged port busy.
func (o *serialOpener) Open(context.Context) (Source, error) {
	fd, err := unix.Open(o.path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w%s", o.path, err, openHint(err))
	}
	if err := o.configure(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	p := &serialPort{File: os.NewFile(uintptr(fd), o.path)}
	if p.opened, err = p.File.Stat(); err != nil {
		p.File.Close()
		return nil, fmt.Errorf("cannot open %s: %w", o.path, err)
	}
	return p, nil
}

func (o *serialOpener) configure(fd int) error {
	// By way of the descriptor, so that it is the same device even if the symlink has changed meanwhile.
	// No fork may happen while the library's descriptors are open.
	syscall.ForkLock.RLock()
	port, err := serial.Open("/proc/self/fd/"+strconv.Itoa(fd), &serial.Mode{BaudRate: o.baud})
	if err == nil {
		err = port.Close()
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return fmt.Errorf("cannot set %s to %d baud: %w%s", o.path, o.baud, err, openHint(err))
	}
	// Closing took the library's exclusive access away.
	if err := unix.IoctlSetInt(fd, unix.TIOCEXCL, 0); err != nil {
		return fmt.Errorf("cannot take %s for this agent alone: %w", o.path, err)
	}
	return nil
}

func openHint(err error) string {
	var pe *serial.PortError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return ": give the agent's user the group of the port (often dialout), or the right to it with the rules of scanonce udev"
	case errors.Is(err, unix.EBUSY):
		return ": another program holds the port; stop it"
	case errors.As(err, &pe) && pe.Code() == serial.InvalidSerialPort:
		return ": the path must lead to a serial port"
	}
	return ""
}

// serialPort does its input and output through the runtime's poller: a port that is idle costs nothing,
// and Close ends a Read and a Write that wait.
type serialPort struct {
	*os.File
	opened os.FileInfo
}

func (p *serialPort) Write(b []byte) (int, error) {
	expired := make(chan struct{})
	t := time.AfterFunc(writeTimeout, func() {
		p.File.SetWriteDeadline(time.Unix(1, 0))
		close(expired)
	})
	n, err := p.File.Write(b)
	if !t.Stop() {
		<-expired
		p.File.SetWriteDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.discardOutput()
	}
	return n, err
}

func (p *serialPort) discardOutput() {
	if c, err := p.File.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCOFLUSH) })
	}
}

// Moved says that the path now leads to another device.
func (p *serialPort) Moved() bool {
	now, err := os.Stat(p.Name())
	return err == nil && !os.SameFile(now, p.opened)
}
