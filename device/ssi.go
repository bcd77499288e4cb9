package device

import (
	"bytes"
	"time"

	"scanonce/window"
)

// SSI is Zebra's Simple Serial Interface (Simple Serial Interface Programmer's Guide, 72E-40451; what follows is as in
// the SSI chapters of the SE955 Integration Guide, pages "CMD_ACK" and following, and of the DS9908 Product Reference
// Guide, pages 247 to 251). A packet is
//
//	length, opcode, source, status, data …, checksum high, checksum low
//
// where length counts the bytes in front of the checksum, which is the two's complement of their sum, 16 bits. Source is
// 0 of a scanner and 4 of a host. Of status, bit 0 marks what is sent again, bit 1 what goes on in the next packet.
// DECODE_DATA has the type of barcode in front of the data. Every packet of the scanner is answered: CMD_ACK, or CMD_NAK
// with a cause. Without an answer within the response timeout, 2 s by default, it is sent again, twice, and so it is
// after the cause "resend". A scan in several packets must be sent as "multi-packet option 1", which is the default: each of
// them is answered.
const SSI Framing = "ssi"

const (
	ssiAck    = 0xd0
	ssiNak    = 0xd1
	ssiBeep   = 0xe6
	ssiDecode = 0xf3
	ssiEvent  = 0xf6

	ssiHost  = 4
	ssiAgain = 1 << 0
	ssiMore  = 1 << 1

	ssiHead     = 4 // of the least packet
	ssiChecksum = 2

	ssiResend     = 1 // causes of a CMD_NAK
	ssiBadContext = 2

	// ssiSlack is how much later than after the response timeout a packet may begin that is sent again: clocks
	// differ, and the line is not read at once.
	ssiSlack = time.Second
)

// ssiPacket makes a host's packet.
func ssiPacket(opcode byte, data ...byte) []byte {
	p := append([]byte{byte(ssiHead + len(data)), opcode, ssiHost, 0}, data...)
	sum := ssiSum(p)
	return append(p, byte(sum>>8), byte(sum))
}

func ssiSum(p []byte) uint16 {
	var sum uint16
	for _, b := range p {
		sum += uint16(b)
	}
	return -sum
}

// ssi makes frames of packets. A packet that is none, cut off or damaged, is an incomplete frame, whose answer asks the
// scanner to send it again.
type ssi struct {
	scanner string
	gap     time.Duration
	retry   time.Duration // the scanner's response timeout
	emit    func(Frame)
	send    func([]byte) // answers that the pipeline has no part in

	last   window.Reading
	packet []byte        // so far
	began  time.Duration // boottime of its first byte
	data   []byte        // of the packets before, of a scan in several
	parts  int
	partAt time.Duration // boottime of the end of the last of them, resends and damaged ones included
	before []byte        // the data of the packet before, by which it is known again
	whole  []byte        // the last scan, if it came in several packets
}

func (d *ssi) Report(p []byte, at window.Reading) {
	if at.Boot-d.last.Boot >= d.gap {
		d.Expire()
	}
	d.last = at
	for _, b := range p {
		if len(d.packet) == 0 && b == 0 {
			continue // wakes a host up
		}
		if len(d.packet) == 0 {
			d.began = at.Boot
		}
		d.packet = append(d.packet, b)
		if n := int(d.packet[0]); n < ssiHead {
			d.fault() // whatever follows ends with the next silence
		} else if len(d.packet) == n+ssiChecksum {
			d.take(d.packet[:n], uint16(d.packet[n])<<8|uint16(d.packet[n+1]))
			d.packet = d.packet[:0]
		}
	}
}

func (d *ssi) take(p []byte, sum uint16) {
	switch {
	case ssiSum(p) != sum:
		d.fault()
		return
	case p[2] == ssiHost:
		return // an echo of our own
	}
	switch p[1] {
	case ssiAck, ssiNak: // the answer to a tone
	case ssiEvent:
		d.send(ssiPacket(ssiAck))
	case ssiDecode:
		if len(p) <= ssiHead {
			d.fault()
			return
		}
		d.decoded(p[ssiHead+1:], p[3]&ssiAgain != 0, p[3]&ssiMore != 0)
	default:
		d.send(ssiPacket(ssiNak, ssiBadContext))
	}
}

func (d *ssi) decoded(data []byte, again, more bool) {
	// The next packet of a scan is sent upon our answer to the one before, and without one that is sent again: what
	// begins later is of another scan.
	if again {
		d.within(d.retry + ssiSlack)
	} else {
		d.within(d.retry)
	}
	if again && d.parts > 0 && more && bytes.Equal(data, d.before) { // our answer to it was lost
		d.partAt = d.last.Boot
		d.send(ssiPacket(ssiAck))
		return
	}
	if again && d.parts == 0 && d.whole != nil && !more && bytes.Equal(data, d.before) { // the end of the last scan
		d.frame(d.whole, true)
		return
	}
	d.before = append(d.before[:0], data...)
	d.data = append(d.data, data[:min(len(data), MaxFrame-len(d.data))]...)
	d.parts++
	d.partAt = d.last.Boot
	if more {
		d.send(ssiPacket(ssiAck))
		return
	}
	d.whole = nil
	if d.parts > 1 {
		d.whole, again = bytes.Clone(d.data), false // its first packet was new
	}
	d.frame(d.data, again)
	d.data, d.parts = d.data[:0], 0
}

func (d *ssi) frame(data []byte, again bool) {
	f := Frame{Scanner: d.scanner, Data: bytes.Clone(data), At: d.last, Length: len(data), Resend: again}
	if len(data) >= MaxFrame {
		f.Data, f.Fault = nil, TooLong
	}
	d.emit(f)
}

// within gives up the packets so far if the one under way has begun so long after the last of them.
func (d *ssi) within(bound time.Duration) {
	if d.began-d.partAt >= bound {
		d.giveUp()
	}
}

// fault voids the packet under way. The packets before it stay: the scanner sends this one again.
func (d *ssi) fault() {
	d.within(d.retry + ssiSlack) // it may have been one that is sent again
	d.partAt = d.last.Boot
	n := len(d.packet)
	d.packet = d.packet[:0]
	d.emit(Frame{Scanner: d.scanner, At: d.last, Fault: Incomplete, Length: n})
}

// giveUp voids the packets of a scan whose other ones do not come any more. Nobody waits for an answer to them.
func (d *ssi) giveUp() {
	if d.parts == 0 {
		return
	}
	d.emit(Frame{Scanner: d.scanner, At: d.last, Fault: Incomplete, Length: len(d.data), mute: true})
	clear(d.data)
	clear(d.before)
	d.data, d.parts, d.whole = d.data[:0], 0, nil // no end that is sent again is that of the scan before
}

// Lost is never said of bytes.
func (d *ssi) Lost(window.Reading) { d.Expire() }

func (d *ssi) Pending() bool { return len(d.packet) > 0 }

func (d *ssi) Expire() {
	if len(d.packet) > 0 {
		d.fault()
	}
}

// talk is how the session gives the decoder its line back to the scanner.
func (d *ssi) talk(send func([]byte)) { d.send = send }

// talker is a decoder that answers by itself where the pipeline has no part.
type talker interface{ talk(send func([]byte)) }

// parter is a decoder that keeps parts of a message through a silence. giveUp voids them.
type parter interface{ giveUp() }
