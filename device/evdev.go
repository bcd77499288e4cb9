package device

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/input.h and linux/input-event-codes.h.
const (
	evSyn = 0x00
	evKey = 0x01
	evRel = 0x02
	evMsc = 0x04
	evLED = 0x11
	evRep = 0x14

	synReport  = 0
	synDropped = 3
	mscScan    = 4
	keyCodes   = 0x300 // KEY_CNT
	keyCodeA   = 30
	keyCodeRet = 28

	evdevTime  = 2 * unsafe.Sizeof(uintptr(0)) // seconds and microseconds, a long each
	evdevEvent = int(evdevTime) + 8            // bytes of struct input_event
)

// evdevKeys is how many keys that are down a report has room for.
const evdevKeys = 14

// evdevKeyboard is the form of the reports that are made of events.
func evdevKeyboard() HIDKeyboard { return HIDKeyboard{Keys: 2, Count: evdevKeys} }

// inputEvent is struct input_event.
type inputEvent struct {
	at    time.Duration // on the clock that the reader has chosen
	kind  uint16
	code  uint16
	value int32
}

// readEvent takes an event of evdevEvent bytes.
func readEvent(b []byte) inputEvent {
	word := func(b []byte) time.Duration {
		if evdevTime == 8 {
			return time.Duration(binary.NativeEndian.Uint32(b))
		}
		return time.Duration(binary.NativeEndian.Uint64(b))
	}
	t := b[evdevTime:]
	return inputEvent{at: word(b)*time.Second + word(b[evdevTime/2:])*time.Microsecond,
		kind: binary.NativeEndian.Uint16(t), code: binary.NativeEndian.Uint16(t[2:]), value: int32(binary.NativeEndian.Uint32(t[4:]))}
}

// appendEvent leaves the time to the kernel.
func appendEvent(b []byte, kind, code uint16, value int32) []byte {
	b = append(b, make([]byte, evdevTime)...)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, code)
	return binary.NativeEndian.AppendUint32(b, uint32(value))
}

// usageKeys makes reports like a keyboard's of the events that the kernel makes of a keyboard's reports. Each key's
// event comes behind one with its usage (MSC_SCAN of drivers/hid/hid-input.c).
type usageKeys struct {
	usage   int32
	mods    byte
	down    []byte
	changed bool
	dropped bool // events were; what follows up to the next SYN_REPORT is of no use
}

// event takes an event. At the end of a report it returns it, nil if no key has changed, and how many were lost.
func (k *usageKeys) event(e inputEvent) (report []byte, lost int) {
	switch {
	case e.kind == evSyn && e.code == synDropped:
		*k = usageKeys{dropped: true}
	case e.kind == evSyn && e.code == synReport:
		if k.dropped || len(k.down) > evdevKeys {
			*k = usageKeys{}
			return nil, 1
		}
		if !k.changed {
			return nil, 0
		}
		k.changed = false
		report = make([]byte, 2+evdevKeys)
		report[0] = k.mods
		copy(report[2:], k.down)
	case e.kind == evMsc && e.code == mscScan:
		k.usage = e.value
	case e.kind == evKey && e.value != 2 && !k.dropped: // 2: repeated by the kernel
		k.key(HIDUsage(k.usage), e.value != 0)
		k.usage = 0
	}
	return report, 0
}

func (k *usageKeys) key(u HIDUsage, down bool) {
	switch {
	case u < usageFirstKey || u > usageFirstKey+0xff:
		return // no text
	case u >= usageModifiers && u < usageModifiers+8:
		bit := byte(1) << (u - usageModifiers)
		if k.mods &^= bit; down {
			k.mods |= bit
		}
	default:
		k.down = slices.DeleteFunc(k.down, func(b byte) bool { return b == byte(u) })
		if down {
			k.down = append(k.down, byte(u))
		}
	}
	k.changed = true
}

// keyPass passes the events of a keyboard on to another one, and knows what it has left down there.
type keyPass struct {
	out  io.Writer
	down []uint16 // key codes
	buf  []byte
}

// event takes an event, and writes what has come at the end of a report.
func (p *keyPass) event(e inputEvent) error {
	switch {
	case e.kind == evKey && e.value != 2: // the other one repeats by itself
		p.down = slices.DeleteFunc(p.down, func(c uint16) bool { return c == e.code })
		if e.value != 0 {
			p.down = append(p.down, e.code)
		}
		p.buf = appendEvent(p.buf, evKey, e.code, e.value)
	case e.kind == evMsc || e.kind == evRel:
		p.buf = appendEvent(p.buf, e.kind, e.code, e.value)
	case e.kind == evSyn && e.code == synReport:
		return p.flush()
	}
	return nil
}

// sync makes the other one as the first one is, after events were dropped.
func (p *keyPass) sync(now bits) error {
	p.buf = p.buf[:0]
	for code := range uint16(keyCodes) {
		if was, is := slices.Contains(p.down, code), now.has(code); was != is {
			value := int32(0)
			if is {
				value = 1
			}
			p.event(inputEvent{kind: evKey, code: code, value: value})
		}
	}
	return p.flush()
}

func (p *keyPass) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	b := appendEvent(p.buf, evSyn, synReport, 0)
	p.buf = p.buf[:0]
	_, err := p.out.Write(b)
	return err
}

// bits is a bit mask of the kernel's.
type bits []byte

func (b bits) has(n uint16) bool { return int(n/8) < len(b) && b[n/8]>>(n%8)&1 != 0 }
func (b bits) none() bool        { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// evdevNode is what is asked of a keyboard's node.
type evdevNode interface {
	io.Reader // events; blocks
	keys() (bits, error)
	grab(on bool) error
	boot() time.Duration // CLOCK_BOOTTIME, as the events have it
}

// evdev reads a keyboard through the events that the kernel makes of its reports. With pass it takes the keyboard
// and passes the events on: from the first moment at which no key is down, since what takes a keyboard never
// sees a key come up that went down before. The kernel gives the keyboard back, and lets all keys go that the
// other one has down, once the process has ended, whatever ended it.
type evdev struct {
	node evdevNode
	keys usageKeys
	pass *keyPass // nil: listens only

	taken bool
	gap   bool          // events were dropped; nothing is passed on up to the end of the report
	since time.Duration // events before it were everybody's

	buf  [64 * evdevEvent]byte
	rest []byte // of buf
	at   time.Duration
	lost int
}

// Read waits for a report.
func (d *evdev) Read(p []byte) (int, error) {
	for {
		for len(d.rest) >= evdevEvent {
			e := readEvent(d.rest)
			d.rest = d.rest[evdevEvent:]
			report, lost, err := d.event(e)
			if err != nil {
				return 0, err
			}
			if report != nil || lost > 0 {
				d.at, d.lost = e.at, lost
				return copy(p, report), nil
			}
		}
		n, err := d.node.Read(d.buf[:])
		if err != nil {
			return 0, err
		}
		d.rest = d.buf[:n]
	}
}

// Stamp says when the kernel had what the last Read gave, and how many reports before it were lost.
func (d *evdev) Stamp() (at time.Duration, lost int) { return d.at, d.lost }

func (d *evdev) event(e inputEvent) (report []byte, lost int, err error) {
	report, lost = d.keys.event(e)
	end := e.kind == evSyn && e.code == synReport
	switch {
	case d.pass == nil:
	case e.kind == evSyn && e.code == synDropped:
		d.gap = true
	case !d.taken && end:
		d.gap = false
		err = d.take()
	case d.gap && end:
		d.gap = false
		var now bits
		if now, err = d.node.keys(); err == nil {
			err = d.pass.sync(now)
		}
	case d.taken && !d.gap && e.at > d.since:
		err = d.pass.event(e)
	}
	return report, lost, err
}

// take takes the keyboard, if no key is down.
func (d *evdev) take() error {
	now, err := d.node.keys()
	if err != nil || !now.none() {
		return err
	}
	if err := d.node.grab(true); err != nil {
		return err
	}
	d.since = d.node.boot()
	// One that went down meanwhile was everybody's, and must come up for everybody.
	if now, err = d.node.keys(); err != nil || !now.none() {
		return errors.Join(err, d.node.grab(false))
	}
	d.taken = true
	return nil
}

func evdevRequest(dir, nr, size uintptr) uintptr { return dir<<30 | size<<16 | 'E'<<8 | nr }

// evdevFile is a node of the kernel's.
type evdevFile struct{ *os.File }

func (f evdevFile) control(do func(fd int) error) error { return control(f.File, do) }

// control does something with a file's descriptor, which stays open meanwhile.
func control(f *os.File, do func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := c.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}

// mask asks for a bit mask of n bits.
func (f evdevFile) mask(nr uintptr, n int) (bits, error) {
	b := make(bits, (n+7)/8)
	return b, f.control(func(fd int) error { return ioctlPtr(fd, evdevRequest(2, nr, uintptr(len(b))), unsafe.Pointer(&b[0])) })
}

func (f evdevFile) keys() (bits, error) { return f.mask(0x18, keyCodes) } // EVIOCGKEY

// can asks which codes of a kind of events there are; of kind 0, which kinds.
func (f evdevFile) can(kind uint16) (bits, error) { return f.mask(0x20+uintptr(kind), keyCodes) } // EVIOCGBIT

func (f evdevFile) grab(on bool) error {
	v := 0
	if on {
		v = 1
	}
	err := f.control(func(fd int) error { return unix.IoctlSetInt(fd, uint(evdevRequest(1, 0x90, 4)), v) }) // EVIOCGRAB
	if errors.Is(err, unix.EBUSY) {
		return hidErrorf(hidRefuse, "cannot take %s: another program has taken it: stop that", f.Name())
	}
	return err
}

// useBoot stamps events with CLOCK_BOOTTIME, and drops those so far.
func (f evdevFile) useBoot() error {
	clock := int32(unix.CLOCK_BOOTTIME)
	return f.control(func(fd int) error { return ioctlPtr(fd, evdevRequest(1, 0xa0, 4), unsafe.Pointer(&clock)) }) // EVIOCSCLOCKID
}

func (f evdevFile) boot() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}

// openEvdev opens the keyboard among the nodes of an interface, and takes it if that is wanted.
func openEvdev(root string, r hidRequest) (*evdev, error) {
	mode := unix.O_RDONLY
	if r.Via == viaGrab {
		mode = unix.O_RDWR // its lamps
	}
	for _, node := range r.Nodes {
		file, err := openNode(root, node, mode, r)
		if err != nil {
			return nil, err
		}
		f := evdevFile{file}
		keys, err1 := f.can(evKey)
		msc, err2 := f.can(evMsc)
		if err := errors.Join(err1, err2, f.useBoot()); err != nil {
			return nil, hidErrorf(hidFailed, "cannot use %s: %v", node, err)
		}
		if !keys.has(keyCodeA) || !keys.has(keyCodeRet) || !msc.has(mscScan) {
			f.Close()
			continue
		}
		d := &evdev{node: f}
		if r.Via == viaGrab {
			out, err := cloneKeyboard(root, f, r)
			if err != nil {
				return nil, err
			}
			d.pass = &keyPass{out: out}
			if err := d.take(); err != nil {
				return nil, err
			}
		}
		return d, nil
	}
	return nil, hidErrorf(hidRefuse, `cannot find a keyboard among the input devices of interface %d at port %s: set the scanner to USB keyboard mode, or write transport = "hid-pos"`, r.Interface, r.Port)
}
