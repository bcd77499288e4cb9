package device

import (
	"bytes"
	"fmt"
	"time"

	"scanonce/window"
)

// HIDPosLayout says where a HID-POS scanner's report holds what. Offsets are in bytes from the beginning of
// the report as read.
type HIDPosLayout struct {
	Report   uint8 // id, the report's first byte; 0: reports have none
	Size     int   // bytes of a report
	Length   int   // offset of the byte that counts the data
	AIM      int   // offset of the AIM identifier's three bytes; 0: the data begins with it, or there is none
	Data     int   // offset of the data
	Max      int   // bytes of data in a full report
	More     int   // offset of the byte that says that the next report goes on; 0: a full report says it
	MoreMask byte  // bits of it, any of which says so
	Answers  bool  // the scanner's answers to commands come in the same report, as ]X0 and ]Z6
}

// The layouts of vendors' manuals, for descriptors that name no usages.
var (
	hidPosHoneywell = HIDPosLayout{Report: 2, Size: 64, Length: 1, AIM: 2, Data: 5, Max: 56, More: 63, MoreMask: 1, Answers: true}
	hidPosNewland   = HIDPosLayout{Report: 2, Size: 64, Length: 1, Data: 2, Max: 56, More: 63, MoreMask: 1}
	hidPosMicroscan = HIDPosLayout{Report: 1, Size: 64, Length: 1, Data: 2, Max: 62}
)

// hidPosVendor is the table of a USB vendor id. Microscan's report id is nobody else's, so that it may stand
// for all vendors that are not known.
func hidPosVendor(vendor uint16) HIDPosLayout {
	switch vendor {
	case 0x0c2e: // Honeywell, Metrologic
		return hidPosHoneywell
	case 0x1eab, 0x0acd: // Newland, ID Tech
		return hidPosNewland
	}
	return hidPosMicroscan
}

// FindHIDPos finds the scanned data among the input reports of a device of a USB vendor id: by the usages of
// HID Point of Sale, else by the vendor's table. ok is false if no report can be it.
func FindHIDPos(vendor uint16, reports []HIDReport) (l HIDPosLayout, ok bool) {
	table := hidPosVendor(vendor)
	for _, r := range reports {
		if l, ok := r.pos(); ok {
			l.Answers = table.Answers
			return l, true
		}
	}
	for _, r := range reports {
		if r.ID != table.Report || r.Size != table.Size {
			continue
		}
		for _, f := range r.Fields {
			if f.App == usageScanner || f.App >= vendorUsages {
				return table, true
			}
		}
	}
	return HIDPosLayout{}, false
}

// pos reads the layout from the usages.
func (r HIDReport) pos() (HIDPosLayout, bool) {
	l := HIDPosLayout{Report: r.ID, Size: r.Size}
	if r.ID != 0 {
		l.Length = 1 // unless the descriptor names a Byte Count
	}
	for _, f := range r.Fields {
		if f.App != usageScanner || f.Constant() {
			continue
		}
		if bit, n := f.Find(usageData); n > 0 && f.Size == 8 && bit%8 == 0 && l.Max == 0 {
			l.Data, l.Max = bit/8, min(n, 255)
		}
		if bit, n := f.Find(usageAIM); n == 1 && f.Size == 8 && bit%8 == 0 {
			second, _ := f.Find(usageAIM + 1)
			if third, _ := f.Find(usageAIM + 2); second == bit+8 && third == bit+16 {
				l.AIM = bit / 8
			}
		}
		if bit, n := f.Find(usageContinued); n > 0 && bit%8+f.Size <= 8 {
			l.More, l.MoreMask = bit/8, byte((1<<f.Size-1)<<(bit%8))
		}
		if bit, n := f.Find(usageByteCount); n > 0 && f.Size == 8 && bit%8 == 0 {
			l.Length = bit / 8
		}
	}
	return l, l.check() == nil
}

// check says what of the layout cannot be.
func (l HIDPosLayout) check() error {
	in := func(at, from, n int) bool { return from <= at && at < from+n }
	first := 0
	if l.Report != 0 {
		first = 1
	}
	switch {
	case l.Max < 1 || l.Max > 255 || l.Data < first || l.Data+l.Max > l.Size || l.Size > maxHIDReport:
		return fmt.Errorf("cannot find %d bytes of data at %d in a report of %d bytes", l.Max, l.Data, l.Size)
	case !in(l.Length, first, l.Size-first) || in(l.Length, l.Data, l.Max) || l.AIM != 0 && in(l.Length, l.AIM, 3):
		return fmt.Errorf("cannot find the length of the data at %d in a report of %d bytes", l.Length, l.Size)
	case l.AIM != 0 && (l.AIM < first || l.AIM+3 > l.Size):
		return fmt.Errorf("cannot find an AIM identifier at %d in a report of %d bytes", l.AIM, l.Size)
	case l.More != 0 && (!in(l.More, first, l.Size-first) || in(l.More, l.Data, l.Max) || l.MoreMask == 0):
		return fmt.Errorf("cannot find whether the data goes on at %d in a report of %d bytes", l.More, l.Size)
	}
	return nil
}

// HIDPos makes frames of the reports of one HID-POS scanner. Not for concurrent use.
//
// Reports have no number: that one is missing is seen by what follows it, by silence, or if the reader says
// that it lost some (Lost). A scan with a gap is one faulty frame, up to the report that ends it or to
// silence. Where reports have no mark that the next one goes on (Microscan), a full one is taken to go on: a
// scan of exactly that length cannot be told from one whose end is missing, and is voided.
type HIDPos struct {
	scanner string
	l       HIDPosLayout
	gap     time.Duration
	emit    func(Frame)

	buf    []byte
	n      int // bytes of the scan so far; more than len(buf) once it is too long
	open   bool
	broken bool
	aim    [3]byte // of its first report
	last   window.Reading
}

// NewHIDPos makes the decoder of one opening of a device. gap is the silence that ends a scan under way and
// voids it. emit gets each frame, from within the methods; the frame's data is its own.
func NewHIDPos(scanner string, l HIDPosLayout, gap time.Duration, emit func(Frame)) (*HIDPos, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	return &HIDPos{scanner: scanner, l: l, gap: gap, emit: emit, buf: make([]byte, 0, MaxFrame)}, nil
}

// Report takes one report as it was read at the instant at.
func (d *HIDPos) Report(p []byte, at window.Reading) {
	d.silence(at)
	if len(p) == 0 {
		return
	}
	if d.l.Report != 0 && p[0] != d.l.Report {
		d.broken = d.open // something else: within a scan, a gap
		return
	}
	data, aim, whole := d.read(p)
	if d.open && d.l.Answers && isAnswer(aim) && !isAnswer(d.aim) {
		d.broken = true
		return
	}
	more := d.more(p)
	if whole && len(data) == 0 && !more && !d.open {
		return
	}
	if d.open && !d.broken && whole && len(data) > 0 && d.l.AIM != 0 && aim != d.aim {
		d.Expire() // it has begun another scan: the end of the one before is missing
	}
	goesOn := d.open
	if !goesOn {
		d.open, d.aim = true, aim
		if aim[0] == ']' {
			d.add(aim[:])
		}
	}
	// A report without a mark of its own that begins like a scan may be one.
	if !whole || more && len(data) < d.l.Max || goesOn && d.l.AIM == 0 && d.l.More == 0 && beginsAIM(data) {
		d.broken = true
	}
	d.last = at
	d.add(data)
	if !more {
		d.end()
	}
}

// Lost says that reports were read and not passed on, before the instant at.
func (d *HIDPos) Lost(at window.Reading) {
	d.silence(at)
	d.open, d.broken, d.last = true, true, at
	d.aim = [3]byte{} // among them may be a scan, and this no longer an answer alone
}

// Pending says that a scan has begun and not ended.
func (d *HIDPos) Pending() bool { return d.open }

// Expire voids the scan that has begun: the device was silent for too long, or is gone.
func (d *HIDPos) Expire() {
	if d.open {
		d.broken = true
		d.end()
	}
}

func (d *HIDPos) silence(at window.Reading) {
	if d.open && at.Boot-d.last.Boot >= d.gap {
		d.Expire()
	}
}

// read takes a report apart. Without whole it is not as declared, and data is what there is of it.
func (d *HIDPos) read(p []byte) (data []byte, aim [3]byte, whole bool) {
	if l := d.l; len(p) == l.Size && int(p[l.Length]) <= l.Max {
		if l.AIM != 0 {
			copy(aim[:], p[l.AIM:])
		}
		return p[l.Data : l.Data+int(p[l.Length])], aim, true
	}
	return p[min(d.l.Data, len(p)):min(d.l.Data+d.l.Max, len(p))], aim, false
}

// more says that the next report goes on. What cannot be read may say so.
func (d *HIDPos) more(p []byte) bool {
	if d.l.More == 0 {
		return len(p) <= d.l.Length || int(p[d.l.Length]) >= d.l.Max
	}
	return len(p) <= d.l.More || p[d.l.More]&d.l.MoreMask != 0
}

// isAnswer says that a scanner of Honeywell's answers a command: with text, or with the command and how it went.
func isAnswer(aim [3]byte) bool { return string(aim[:]) == "]X0" || string(aim[:]) == "]Z6" }

func beginsAIM(b []byte) bool {
	return len(b) > 2 && b[0] == ']' && (b[1]|0x20) >= 'a' && (b[1]|0x20) <= 'z' && b[2] >= '0' && b[2] <= '9'
}

func (d *HIDPos) add(b []byte) {
	d.n += len(b)
	d.buf = append(d.buf, b[:min(len(b), MaxFrame-len(d.buf))]...)
}

func (d *HIDPos) end() {
	f := Frame{Scanner: d.scanner, At: d.last, Length: d.n}
	answer := d.l.Answers && isAnswer(d.aim)
	switch {
	case d.n > MaxFrame:
		f.Fault = TooLong
	case d.broken:
		f.Fault = Incomplete
	case !answer:
		f.Data = bytes.Clone(d.buf)
	}
	d.buf, d.n, d.open, d.broken, d.aim = d.buf[:0], 0, false, false, [3]byte{}
	if !answer {
		d.emit(f)
	}
}
