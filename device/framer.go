package device

import (
	"fmt"
	"strings"
)

// Framing names how a scanner marks the end of a message.
type Framing string

// The framing profiles. An empty message (nothing between two terminators) is no message. Control
// characters within a message are kept, GS (0x1d) above all.
const (
	// Line ends a message with CR, LF or CRLF.
	Line Framing = "line"
	// CR ends a message with CR; LF is data.
	CR Framing = "cr"
	// LF ends a message with LF; CR is data.
	LF Framing = "lf"
	// CRLF ends a message with CR LF; either alone is data.
	CRLF Framing = "crlf"
	// STXETX holds a message between STX (02) and ETX (03). CR and LF between messages are skipped; other
	// bytes there are the rest of a message whose STX was lost, and a fault. STX within a message begins
	// another one: the first was cut off.
	STXETX Framing = "stx-etx"
	// ACKNAK is for scanners that wait for an answer: ACK (06) or NAK (15) is written for each message.
	// A message that begins with STX ends with ETX as in STXETX, any other one with CR, LF or CRLF. If one
	// that began with STX is voided, what comes up to its ETX is a fault too, whatever lines it holds.
	ACKNAK Framing = "acknak"
)

// Framings are all profiles that a Framer knows, the default first; SSI has packets instead.
func Framings() []Framing { return []Framing{Line, CR, LF, CRLF, STXETX, ACKNAK} }

const (
	stx = 0x02
	etx = 0x03
	ack = 0x06
	nak = 0x15
)

// Message is what lies between two terminators.
type Message struct {
	Data   Payload // valid until the next call of the Framer; nil if Fault is set
	Fault  Fault
	Length int // bytes, without the terminator
}

// Framer cuts the bytes of one device into messages. How the bytes are split over calls makes no
// difference. Not for concurrent use.
type Framer struct {
	framing Framing
	buf     []byte
	n       int  // bytes of the message so far; more than len(buf) once it is too long
	block   bool // STX was seen
	broken  bool // its STX was lost
	lost    bool // ACKNAK alone: its beginning was voided; what comes up to ETX is the rest of it
	cr      bool // CRLF alone: a CR that is data unless LF follows
	ended   bool // buf was handed out
}

// NewFramer makes a framer; "" is Line.
func NewFramer(f Framing) (*Framer, error) {
	if f == "" {
		f = Line
	}
	for _, known := range Framings() {
		if f == known {
			return &Framer{framing: f, buf: make([]byte, 0, MaxFrame)}, nil
		}
	}
	return nil, fmt.Errorf("cannot use framing %q: write one of %s", string(f), framingNames())
}

func framingNames() string {
	var names []string
	for _, f := range append(Framings(), SSI) {
		names = append(names, fmt.Sprintf("%q", string(f)))
	}
	return strings.Join(names, ", ")
}

// Next takes bytes from p up to the end of the next message. It returns how many it took, and the message
// if ok. Without ok all of p was taken.
func (f *Framer) Next(p []byte) (m Message, n int, ok bool) {
	for i, b := range p {
		if m, ok := f.step(b); ok {
			return m, i + 1, true
		}
	}
	return Message{}, len(p), false
}

// Pending says that a message has begun and not ended.
func (f *Framer) Pending() bool { return f.n > 0 || f.block || f.cr }

// Expire ends a message that has begun and voids it: the line was silent for too long, or the device is
// gone. Without ok nothing had come of it.
func (f *Framer) Expire() (m Message, ok bool) {
	if f.cr {
		f.cr = false
		f.add('\r')
	}
	lost := f.framing == ACKNAK && f.block
	m, ok = f.void()
	f.lost = lost
	return m, ok
}

func (f *Framer) step(b byte) (Message, bool) {
	switch f.framing {
	case Line:
		if b == '\r' || b == '\n' {
			return f.end()
		}
	case CR:
		if b == '\r' {
			return f.end()
		}
	case LF:
		if b == '\n' {
			return f.end()
		}
	case CRLF:
		if f.cr {
			f.cr = false
			if b == '\n' {
				return f.end()
			}
			f.add('\r')
		}
		if b == '\r' {
			f.cr = true
			return Message{}, false
		}
	case STXETX, ACKNAK:
		switch {
		case b == stx:
			m, ok := f.void()
			f.block = true
			return m, ok
		case b == etx && f.block:
			return f.end()
		case b == etx:
			return f.void()
		case f.block, f.lost:
		case b == '\r' || b == '\n':
			return f.end()
		case f.framing == STXETX:
			f.broken = true
		}
	}
	f.add(b)
	return Message{}, false
}

func (f *Framer) add(b byte) {
	if f.ended {
		f.buf, f.ended = f.buf[:0], false
	}
	f.n++
	if len(f.buf) < MaxFrame {
		f.buf = append(f.buf, b)
	}
}

// end closes the message at its terminator.
func (f *Framer) end() (Message, bool) {
	if f.broken || f.n == 0 || f.n > MaxFrame {
		return f.void()
	}
	m := Message{Data: f.buf, Length: f.n}
	f.reset()
	return m, true
}

// void closes the message without its data.
func (f *Framer) void() (Message, bool) {
	m := Message{Fault: Incomplete, Length: f.n}
	if f.n > MaxFrame {
		m.Fault = TooLong
	}
	f.reset()
	return m, m.Length > 0
}

func (f *Framer) reset() {
	f.n, f.block, f.broken, f.lost, f.cr = 0, false, false, false, false
	f.ended = true
}
