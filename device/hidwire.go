package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// hidRequest tells the process that reads a HID device which one it is. It is one line of JSON on its standard
// input, which then stays open for as long as the agent wants the device.
type hidRequest struct {
	Via       hidVia
	Vendor    uint16
	Product   uint16
	Port      string // port path
	Bus       int
	Address   int
	Interface int
	Nodes     []string // hidraw: the node; evdev, grab: those of the interface
	Force     bool     // usb: take a keyboard too
	Describe  bool     // usb: the report descriptor is wanted
}

// hidVia is a way to the reports.
type hidVia string

const (
	viaUSB    hidVia = "usb"    // without the kernel's driver
	viaHIDRaw hidVia = "hidraw" // beside it
	viaEvdev  hidVia = "evdev"  // what it makes of a keyboard's reports
	viaGrab   hidVia = "grab"   // the same, taken and passed on
)

// maxHIDRequest bounds the line, in bytes.
const maxHIDRequest = 64 << 10

// What the process writes are records: a byte that says what it is, the length of the data in two bytes and an
// instant (CLOCK_BOOTTIME, ns) in eight, little-endian, and the data.
const (
	recOpened byte = 'O' // the first one if all went well; the report descriptor, if it was wanted
	recReport byte = 'R' // a report
	recLost   byte = 'L' // so many reports were lost here: four bytes
	recError  byte = 'E' // the last one: a hidFailure and a text
)

const hidHeader = 1 + 2 + 8

type hidRecord struct {
	what byte
	at   time.Duration
	data []byte
}

func appendHIDRecord(b []byte, r hidRecord) []byte {
	b = append(b, r.what)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(r.data)))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.at))
	return append(b, r.data...)
}

// errHIDRecord is of something that is no record.
var errHIDRecord = errors.New("it wrote what is no record")

// readHIDRecord reads a record into buf, which holds maxHIDReport bytes.
func readHIDRecord(r io.Reader, buf []byte) (hidRecord, error) {
	var h [hidHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return hidRecord{}, err
	}
	rec := hidRecord{what: h[0], at: time.Duration(binary.LittleEndian.Uint64(h[3:]))}
	n := int(binary.LittleEndian.Uint16(h[1:]))
	switch rec.what {
	case recOpened, recReport, recError:
	case recLost:
		if n != 4 {
			return rec, errHIDRecord
		}
	default:
		return rec, errHIDRecord
	}
	if n > len(buf) {
		return rec, errHIDRecord
	}
	rec.data = buf[:n]
	if _, err := io.ReadFull(r, rec.data); err != nil {
		return rec, errors.Join(err, errHIDRecord)
	}
	return rec, nil
}

// hidFailure says of what kind an error is.
type hidFailure byte

const (
	hidGone   hidFailure = 'g' // the device is not attached
	hidRefuse hidFailure = 'r' // it is there, and cannot be used as it is; it was not touched
	hidFailed hidFailure = 'f' // it was opened, or half so
)

// hidError is an error on its way through the wire. Its text holds nothing that was scanned.
type hidError struct {
	kind hidFailure
	text string
}

func (e *hidError) Error() string { return e.text }

func (e *hidError) Is(target error) bool { return e.kind == hidGone && target == fs.ErrNotExist }

func hidErrorf(kind hidFailure, format string, a ...any) error {
	return &hidError{kind, fmt.Sprintf(format, a...)}
}

func hidErrorRecord(err error, at time.Duration) hidRecord {
	kind := hidFailed
	var e *hidError
	if errors.As(err, &e) {
		kind = e.kind
	}
	text := err.Error()
	return hidRecord{what: recError, at: at, data: append([]byte{byte(kind)}, text[:min(len(text), 1000)]...)}
}

// err is the error that a record tells of.
func (r hidRecord) err() error {
	if len(r.data) < 2 {
		return errHIDRecord
	}
	switch kind := hidFailure(r.data[0]); kind {
	case hidGone, hidRefuse, hidFailed:
		return &hidError{kind, string(r.data[1:])}
	}
	return errHIDRecord
}
