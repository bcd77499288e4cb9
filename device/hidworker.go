package device

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"scanonce/window"
)

// hidQueue bounds the reports that wait for the agent to read them: seconds of what the fastest scanner sends.
const hidQueue = 1024

// RunHIDWorker is the process that reads one HID device for the agent: the library that it uses may crash, and
// may never come back. It returns once stdin ends, the device is gone, or the agent does not read any more, and
// leaves the closing to the end of the process, which cannot fail: the library's Close can, and a Read that waits
// must not meet it. What it reads goes to stdout and nowhere else.
func RunHIDWorker(stdin io.Reader, stdout io.Writer) error {
	host, err := window.Host()
	if err != nil {
		return fmt.Errorf("cannot read a device: %w", err)
	}
	return hidWorker{open: openHID, boot: host.Boot}.run(stdin, stdout)
}

type hidWorker struct {
	// open returns the device and, if it was wanted, its report descriptor. After an error the device may be
	// anything, a nil pointer in an interface too.
	open func(hidRequest) (hidDevice, []byte, error)
	boot func() time.Duration // CLOCK_BOOTTIME
}

// hidDevice is an open device. Read gives a report a call, or nothing.
type hidDevice interface{ Read(p []byte) (int, error) }

// hidStamper is a hidDevice that knows when the last report came, or 0, and how many before it were lost.
type hidStamper interface {
	Stamp() (at time.Duration, lost int)
}

func openHID(r hidRequest) (hidDevice, []byte, error) {
	switch r.Via {
	case viaUSB:
		return openHIDUSB("/", r)
	case viaHIDRaw:
		d, err := openHIDRaw("/", r)
		return d, nil, err
	case viaEvdev, viaGrab:
		d, err := openEvdev("/", r)
		return d, nil, err
	}
	return nil, nil, hidErrorf(hidRefuse, "cannot read a device via %q", string(r.Via))
}

func (w hidWorker) run(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(io.LimitReader(stdin, maxHIDRequest))
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("cannot read which device is meant: %w: the agent starts this process", err)
	}
	var req hidRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return fmt.Errorf("cannot read which device is meant: %w: the agent starts this process", err)
	}
	ended := make(chan error, 2)
	go func() { // the agent is gone, or wants the device no more
		io.Copy(io.Discard, in)
		ended <- nil
	}()
	q := newReportQueue()
	go func() { q.finish(hidErrorRecord(w.read(req, q), w.boot())) }()
	go func() { ended <- q.write(stdout) }()
	return <-ended
}

// read opens the device and queues what it sends until it fails.
func (w hidWorker) read(req hidRequest, q *reportQueue) error {
	dev, desc, err := w.open(req)
	if err != nil {
		return err
	}
	q.put(hidRecord{recOpened, w.boot(), desc})
	var buf [maxHIDReport]byte
	for empty := 0; empty < emptyReads; {
		n, err := dev.Read(buf[:])
		if err != nil {
			return err
		}
		at, lost := w.boot(), 0
		if st, ok := dev.(hidStamper); ok {
			var when time.Duration
			if when, lost = st.Stamp(); when != 0 {
				at = when
			}
		}
		q.lose(lost, at)
		if n > 0 {
			q.put(hidRecord{recReport, at, bytes.Clone(buf[:n])})
		}
		if empty++; n > 0 || lost > 0 {
			empty = 0
		}
	}
	return io.ErrNoProgress
}

// reportQueue takes what is read without ever blocking, in order. What finds no room is lost, and counted where
// it is missing.
type reportQueue struct {
	mu    sync.Mutex
	some  sync.Cond
	recs  []hidRecord
	lost  int           // behind the last record
	at    time.Duration // of the last one lost
	ended bool
}

func newReportQueue() *reportQueue {
	q := &reportQueue{}
	q.some.L = &q.mu
	return q
}

func (q *reportQueue) put(r hidRecord) {
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.some.Signal()
	if len(q.recs) >= hidQueue {
		q.lost++
		q.at = r.at
		return
	}
	q.flush()
	q.recs = append(q.recs, r)
}

func (q *reportQueue) lose(n int, at time.Duration) {
	if n == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost += n
	q.at = at
	q.some.Signal()
}

// flush turns what was lost into a record. It needs mu.
func (q *reportQueue) flush() {
	if q.lost > 0 {
		q.recs = append(q.recs, hidRecord{recLost, q.at, binary.LittleEndian.AppendUint32(nil, uint32(q.lost))})
		q.lost = 0
	}
}

// finish queues the last record.
func (q *reportQueue) finish(r hidRecord) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flush()
	q.recs = append(q.recs, r)
	q.ended = true
	q.some.Signal()
}

// take waits for what there is. more is false at the end.
func (q *reportQueue) take() (recs []hidRecord, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.recs) == 0 && q.lost == 0 {
		q.some.Wait()
	}
	q.flush()
	recs, q.recs = q.recs, nil
	return recs, !q.ended
}

func (q *reportQueue) write(w io.Writer) error {
	var buf []byte
	for {
		recs, more := q.take()
		for _, r := range recs {
			buf = appendHIDRecord(buf[:0], r)
			if _, err := w.Write(buf); err != nil {
				return fmt.Errorf("cannot pass on what a device sends: %w", err)
			}
		}
		if !more {
			return nil
		}
	}
}
