package device

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hidOpenFor bounds the time that the process takes to start and to open its device, on a machine that is busy too. The
// library's Open may hang for ever.
const hidOpenFor = 15 * time.Second

// hidSource is a HID device as its process reads it. Read gives a report a call.
type hidSource struct {
	cmd    *exec.Cmd
	in     *os.File // open for as long as the device is wanted
	out    *os.File
	exited chan struct{} // closed once the process is gone, and waited for
	status error         // then

	desc []byte // report descriptor, if it was wanted
	at   time.Duration
	lost int
	busy atomic.Bool // a record is being read

	moved func() bool
	freed func() // once the process is gone; may be nil
}

// startHID starts the process, and returns once it has opened the device. command makes it; it must be RunHIDWorker's.
func startHID(ctx context.Context, command func() *exec.Cmd, req hidRequest, within time.Duration) (*hidSource, error) {
	line, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for a device: %w", err)
	}
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start a process that reads the device: %w", err)
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		childIn.Close()
		in.Close()
		return nil, fmt.Errorf("cannot start a process that reads the device: %w", err)
	}
	s := &hidSource{cmd: command(), in: in, out: out, exited: make(chan struct{})}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = childIn, childOut, nil
	// Of its own group: what ends the agent by its terminal must leave it the time to void what is under way.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go s.mind(started)
	err = <-started
	childIn.Close()
	childOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("cannot start a process that reads the device: %w", err)
	}
	if err := s.open(ctx, append(line, '\n'), within); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// mind starts the process and waits for its end.
func (s *hidSource) mind(started chan<- error) {
	// The kernel sends the signal of the parent's death when the thread ends that has made the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := s.cmd.Start()
	started <- err
	if err == nil {
		s.status = s.cmd.Wait()
		close(s.exited)
	}
}

// open sends the request and waits for the answer.
func (s *hidSource) open(ctx context.Context, line []byte, within time.Duration) error {
	var late atomic.Bool
	limit := time.AfterFunc(within, func() {
		late.Store(true)
		s.kill()
	})
	defer limit.Stop()
	keep := context.AfterFunc(ctx, s.kill)
	defer keep()
	_, err := s.in.Write(line)
	var rec hidRecord
	if err == nil {
		rec, err = readHIDRecord(s.out, make([]byte, maxHIDReport))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case late.Load(), err == nil && !limit.Stop():
		return crashError{fmt.Errorf("cannot open the device within %v: its process hung and was ended", within)}
	case err != nil:
		return s.crashed(err)
	case rec.what == recError:
		return rec.err()
	case rec.what != recOpened:
		return s.crashed(errHIDRecord)
	case !keep(): // it is being killed
		return ctx.Err()
	}
	s.desc = rec.data
	return nil
}

// kill ends the process, which may hang. It is safe at any time.
func (s *hidSource) kill() { s.cmd.Process.Kill() }

// crashed is the error of a process that has ended without a last word, or that does not keep to the records.
func (s *hidSource) crashed(err error) error {
	s.kill()
	<-s.exited
	switch {
	case errors.Is(err, errHIDRecord):
	case s.status != nil:
		err = s.status
	default:
		err = errors.New("it ended")
	}
	return crashError{fmt.Errorf("cannot go on reading the device: its process failed: %w", err)}
}

func (s *hidSource) Read(p []byte) (int, error) {
	s.busy.Store(false)
	rec, err := readHIDRecord(s.out, p)
	s.busy.Store(true)
	s.at, s.lost = rec.at, 0
	switch {
	case err != nil:
		return 0, s.crashed(err)
	case rec.what == recReport:
		return len(rec.data), nil
	case rec.what == recLost:
		s.lost = int(binary.LittleEndian.Uint32(rec.data))
		return 0, nil
	case rec.what == recError:
		return 0, rec.err()
	}
	return 0, s.crashed(errHIDRecord)
}

// Stamp says when what the last Read gave came, and how many reports before it were lost.
func (s *hidSource) Stamp() (at time.Duration, lost int) { return s.at, s.lost }

// Waiting says that there is something to read, or that it is being read.
func (s *hidSource) Waiting() bool {
	if s.busy.Load() {
		return true
	}
	n := 0
	if c, err := s.out.SyscallConn(); err == nil {
		c.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n > 0
}

// Moved says that the device is gone, or that another one is meant now. The process may not notice the first.
func (s *hidSource) Moved() bool { return s.moved() }

// Write fails: no HID scanner takes an answer that it understands.
func (s *hidSource) Write([]byte) (int, error) {
	return 0, errors.New("cannot answer a HID scanner")
}

// Close ends the process and returns once it is gone.
func (s *hidSource) Close() error {
	s.kill()
	<-s.exited
	s.in.Close()
	err := s.out.Close()
	if s.freed != nil {
		s.freed()
	}
	return err
}
