// Package sim types into a running agent as scanners do: virtual scanners behind a pseudo terminal, a
// workload as a pharmacy counter makes it, and a run that matches every transmission with its event.
package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Framing is what a scanner sends around each message.
type Framing struct{ Prefix, Suffix string }

// Frame returns data as the scanner sends it.
func (f Framing) Frame(data string) string { return f.Prefix + data + f.Suffix }

// FramingOf returns the bytes of a framing profile, by its name in the configuration. A scanner with the
// profile "line" or "acknak" may end its messages in several ways; this one sends CR.
func FramingOf(profile string) (Framing, error) {
	switch profile {
	case "line", "cr", "acknak":
		return Framing{Suffix: "\r"}, nil
	case "lf":
		return Framing{Suffix: "\n"}, nil
	case "crlf":
		return Framing{Suffix: "\r\n"}, nil
	case "stx-etx":
		return Framing{Prefix: "\x02", Suffix: "\x03"}, nil
	}
	return Framing{}, fmt.Errorf("cannot type with framing %q: write line, cr, lf, crlf, stx-etx or acknak", profile)
}

// Scanner is a virtual serial scanner: a pseudo terminal whose slave is found through a symbolic link at
// Path. Typing goes to the agent; what the agent writes is feedback. Safe for concurrent use.
type Scanner struct {
	ID      string  // as configured in the agent
	Path    string  // where the agent looks for the device
	Framing Framing // the zero value types nothing around a message

	mu       sync.Mutex
	master   *os.File
	slave    *os.File // held until the agent reads, so that no byte is lost to a missing reader
	node     string   // the slave's name
	reader   chan struct{}
	feedback []byte
	arrived  chan struct{} // closed and replaced when feedback grows or the scanner is unplugged
}

// Plug makes a scanner appear at path. The agent opens it within a second; WaitReading tells when.
func Plug(id, path string, f Framing) (*Scanner, error) {
	s := &Scanner{ID: id, Path: path, Framing: f}
	if err := s.Replug(); err != nil {
		return nil, err
	}
	return s, nil
}

// Replug connects a new pseudo terminal in the place of one that was unplugged. The link is renamed into
// place, so that the agent never sees half of the change. A file at Path that is no link, or a link to
// something that exists and is no pseudo terminal, stays untouched and is an error.
func (s *Scanner) Replug() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.master != nil {
		return fmt.Errorf("cannot plug in scanner %s: it is plugged in already", s.ID)
	}
	if err := mayReplace(s.Path); err != nil {
		return err
	}
	master, slave, node, err := openPTY()
	if err != nil {
		return err
	}
	if err := placeLink(node, s.Path); err != nil {
		master.Close()
		slave.Close()
		return err
	}
	s.master, s.slave, s.node = master, slave, node
	s.reader = make(chan struct{})
	if s.arrived == nil {
		s.arrived = make(chan struct{})
	}
	go s.readFeedback(master, s.reader)
	return nil
}

// Unplug takes the device away as a pulled cable does: the agent's reads and writes fail. The link stays,
// leading nowhere.
func (s *Scanner) Unplug() error {
	s.mu.Lock()
	master, slave, reader := s.master, s.slave, s.reader
	s.master, s.slave = nil, nil
	s.mu.Unlock()
	if master == nil {
		return nil
	}
	err := master.Close()
	if slave != nil {
		slave.Close()
	}
	<-reader
	s.mu.Lock()
	s.wake()
	s.mu.Unlock()
	return err
}

// Close unplugs the scanner and removes its link, unless somebody else has put another in its place.
func (s *Scanner) Close() error {
	err := s.Unplug()
	if to, e := os.Readlink(s.Path); e == nil && to == s.node {
		err = errors.Join(err, os.Remove(s.Path))
	}
	return err
}

// Type sends one message, with the framing around it.
func (s *Scanner) Type(data string) error { return s.Write([]byte(s.Framing.Frame(data))) }

// Write sends bytes as they are, for example half a message.
func (s *Scanner) Write(b []byte) error {
	s.mu.Lock()
	master := s.master
	s.mu.Unlock()
	if master == nil {
		return fmt.Errorf("cannot type on scanner %s: it is unplugged", s.ID)
	}
	if _, err := master.Write(b); err != nil {
		return fmt.Errorf("cannot type on scanner %s: %w", s.ID, err)
	}
	return nil
}

// Feedback waits for n bytes from the agent and takes them. It returns what there is, with an error, if ctx
// ends or the scanner is unplugged before.
func (s *Scanner) Feedback(ctx context.Context, n int) (string, error) {
	for {
		s.mu.Lock()
		plugged, arrived := s.master != nil, s.arrived
		have := min(n, len(s.feedback))
		if have == n || !plugged || ctx.Err() != nil {
			got := string(s.feedback[:have])
			s.feedback = append([]byte(nil), s.feedback[have:]...)
			s.mu.Unlock()
			switch {
			case have == n:
				return got, nil
			case !plugged:
				return got, fmt.Errorf("cannot read %d bytes of feedback from scanner %s: it is unplugged, %d came", n, s.ID, have)
			}
			return got, fmt.Errorf("cannot read %d bytes of feedback from scanner %s: %d came: %w", n, s.ID, have, ctx.Err())
		}
		s.mu.Unlock()
		select {
		case <-arrived:
		case <-ctx.Done():
		}
	}
}

// Opened says that the agent holds the device open: from now on the scanner's own descriptor of the slave
// is not needed, and an agent that goes away leaves the device closed.
func (s *Scanner) Opened() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slave != nil {
		s.slave.Close()
		s.slave = nil
	}
}

func (s *Scanner) wake() {
	close(s.arrived)
	s.arrived = make(chan struct{})
}

// readFeedback collects what the agent writes until the master is closed. While nobody holds the slave open
// a read fails with EIO; that only means to wait for the next event, such as bytes from an agent that opened
// it again.
func (s *Scanner) readFeedback(master *os.File, done chan<- struct{}) {
	defer close(done)
	conn, err := master.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 256)
	for {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			m, err := unix.Read(int(fd), buf)
			if err == unix.EAGAIN || err == unix.EIO || err == unix.EINTR {
				return false
			}
			n = m
			return true
		})
		if err != nil || n <= 0 {
			return
		}
		s.mu.Lock()
		s.feedback = append(s.feedback, buf[:n]...)
		s.wake()
		s.mu.Unlock()
	}
}

// openPTY returns both ends of a new pseudo terminal; the slave is raw, so that bytes pass unchanged.
func openPTY() (master, slave *os.File, node string, err error) {
	fail := func(err error) (*os.File, *os.File, string, error) {
		if master != nil {
			master.Close()
		}
		if slave != nil {
			slave.Close()
		}
		return nil, nil, "", fmt.Errorf("cannot make a pseudo terminal: %w", err)
	}
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return fail(err)
	}
	var number int
	err = control(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
		number = int(n)
		return err
	})
	if err != nil {
		return fail(err)
	}
	node = "/dev/pts/" + strconv.Itoa(number)
	if slave, err = os.OpenFile(node, os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return fail(err)
	}
	if err = control(slave, makeRaw); err != nil {
		return fail(err)
	}
	return master, slave, node, nil
}

func control(f *os.File, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = do(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// makeRaw does what cfmakeraw(3) does.
func makeRaw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

// mayReplace refuses what is not a virtual scanner's: a file or device node, or a link to an existing one.
func mayReplace(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot look at %s: %w", path, err)
	case info.Mode()&os.ModeSymlink == 0:
		return fmt.Errorf("cannot put a virtual scanner at %s: it exists and is no symbolic link; give the scanner another path, or remove the file", path)
	}
	to, err := filepath.EvalSymlinks(path)
	if err == nil && !strings.HasPrefix(to, "/dev/pts/") {
		return fmt.Errorf("cannot put a virtual scanner at %s: it is a link to %s, which exists and is no pseudo terminal; unplug the real scanner, or give the virtual one another path", path, to)
	}
	return nil
}

func placeLink(node, path string) error {
	temp := fmt.Sprintf("%s.%d-%s", path, os.Getpid(), filepath.Base(node))
	if err := os.Symlink(node, temp); err != nil {
		return fmt.Errorf("cannot put a virtual scanner at %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return fmt.Errorf("cannot put a virtual scanner at %s: %w", path, err)
	}
	return nil
}
