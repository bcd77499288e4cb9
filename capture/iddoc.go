package capture

import (
	"bytes"
	"time"
)

// isIDDocument finds the header of a driver's licence or identity card (AAMVA DL/ID card design standard,
// annex D): "@", LF, RS, CR, "ANSI " and the issuer's number; older cards have FS, or "AAMVA". Framing may
// have changed or eaten the control characters, and Caps Lock the case. The tracks of a card's magnetic
// stripe (annex F), which readers on the same port send, count as well.
func isIDDocument(text []byte) bool {
	switch c := text[0]; {
	case c == '%' || c == ';':
		return isTrack(text)
	case c > ' ' && c != '@' && c != 'A' && c != 'a':
		return false
	}
	marked, rest := headerStart(text)
	for _, mark := range [...]string{"ANSI ", "ANSI", "AAMVA ", "AAMVA"} {
		if n := len(mark); len(rest) > n && equalFold(rest[:n], mark) && leadingDigits(rest[n:], 5) == 5 {
			return true
		}
	}
	// "@" and a control character begin nothing else: the header was cut.
	return marked && len(text) > 1 && text[1] < ' '
}

// isTrack says that text is a track of a magnetic stripe: "%", fields parted by "^", "?"; or ";", a number
// of at least eight digits, "=" (ISO/IEC 7813, which the licences follow).
func isTrack(text []byte) bool {
	if text[0] == ';' {
		n := leadingDigits(text[1:], 19)
		return n >= 8 && len(text) > n+1 && text[n+1] == '='
	}
	sep := bytes.IndexByte(text, '^')
	return sep > 0 && bytes.IndexByte(text[sep:], '?') > 0
}

// Symbology is the AIM identifier in front of a payload, behind a gun address or not; "" if there is none.
func Symbology(data []byte) string {
	body := strip(data)
	b := body[leadingDigits(body, maxGunDigits):]
	if len(b) < 3 || b[0] != ']' || !isAlnum(b[1]) || b[1] <= '9' || b[2] < '0' || b[2] > '9' {
		return ""
	}
	return string(b[:3])
}

// headerStart passes over "@" and control characters; marked says that "@" was there.
func headerStart(text []byte) (marked bool, rest []byte) {
	if len(text) > 0 && text[0] == '@' {
		marked, text = true, text[1:]
	}
	for len(text) > 0 && (text[0] < 0x20 || text[0] == ' ') {
		text = text[1:]
	}
	return marked, text
}

// documentLine says that text reads like a line of a document: an element id (D and A to D and one more, or
// Z and two letters: annex D, tables D.3 and D.4), behind the subfile's name or not.
func documentLine(text []byte) bool {
	if len(text) > 5 && (equalFold(text[:2], "DL") || equalFold(text[:2], "ID") || equalFold(text[:2], "EN")) {
		text = text[2:]
	}
	if len(text) < 3 || !isAlnum(text[2]) {
		return false
	}
	a, b := text[0]&^0x20, text[1]&^0x20
	return a == 'D' && b >= 'A' && b <= 'D' || a == 'Z' && b >= 'A' && b <= 'Z'
}

// drugEvidence says that a frame without AIM identifier proves itself as a scan of its own: a retail number,
// element strings that begin with a GTIN, an HIBC label, each with a valid check, or a command barcode. No
// line of a document begins like them. A gun address may stand in front.
func drugEvidence(body []byte) bool {
	digits := leadingDigits(body, len(body))
	for from := 0; from <= min(digits, maxGunDigits); from++ {
		b := body[from:]
		switch {
		case len(b) == 0:
			return false
		case b[0] == '+' && validMod43(b), isCommand(b):
			return true
		case digits == len(body) && len(b) >= 12 && len(b) <= 14 && validMod10(b) && !allZero(b):
			return true
		}
		if _, valid := startsGTIN(b); valid {
			return true
		}
	}
	return false
}

// validMod43 says that the last character is the HIBC check character of what stands before it.
func validMod43(b []byte) bool {
	sum, last := 0, len(b)-1
	for i, c := range b {
		v := int(mod43Value[c])
		switch {
		case v < 0:
			return false
		case i == last:
			return last > 1 && sum%43 == v
		}
		sum += v
	}
	return false
}

// What a Burst takes for one document. Line framing sends its lines back to back, but each frame's time
// is that of its last byte, so a line may take as long as its own transmission: two 8 ms reports a
// character from a slow keyboard. Lines that say themselves what they are may come slower: a port may be set
// to 300 baud, or to a pause behind each character.
const (
	burstSilence  = 300 * time.Millisecond
	burstPerByte  = 16 * time.Millisecond
	burstTime     = 20 * time.Second
	burstBytes    = maxPayload
	documentGap   = 10 * time.Second // before a line that reads like one of a document
	documentLasts = 3 * time.Minute  // of such lines: 4096 bytes at 300 baud
)

// Burst drops the frames of an identity document that line framing has shattered. It belongs to one
// scanner and is not safe for concurrent use; the zero Burst is ready.
//
// It begins with the frame that has the document's header, or the header's first line "@". It ends with
// 300 ms of silence before a frame (the frame's own transmission, 16 ms a byte at most, not counted), with
// a frame that no line of a document can be (an AIM identifier of a drug carrier, or a label that proves
// itself by its check digit), or after 20 s or 4096 bytes in all, so that it cannot swallow the scans behind
// it. A frame that reads like a document's line still belongs to it within 10 s. So does whatever follows a
// message that broke off in it, an AIM identifier excepted: the rest of a line may be digits alone.
type Burst struct {
	active      bool
	opened      bool // the last frame absorbed began a document
	bare        bool // it was a header's beginning alone: the rest is to come
	torn        bool // a message broke off: its rest is to come
	began, last time.Duration
	bytes       int
}

// Absorb says that a frame belongs to an identity document and must be dropped: refused as id_document,
// with nothing of it logged or kept. at is the boottime of the frame's last byte.
func (b *Burst) Absorb(data []byte, at time.Duration) (drop bool) {
	body := strip(data)
	text, drug := body[leadingDigits(body, maxGunDigits):], false // a gun address may stand in front
	if len(text) >= 3 && text[0] == ']' {
		drug = carrierOf(text[1], text[2]) != carrierUnknown
		text = text[3:]
	}
	quiet := at - b.last - time.Duration(len(data))*burstPerByte
	marked, rest := headerStart(text)
	bare := marked && len(rest) == 0
	if bare || len(text) > 0 && isIDDocument(text) {
		again := b.active && at >= b.last && (quiet <= burstSilence || b.bare && quiet <= documentGap)
		if !again {
			*b = Burst{began: at}
		}
		b.active, b.opened, b.bare = true, !again, bare
		b.take(len(data), at)
		return true
	}
	if !b.active {
		return false
	}
	ends := drug || at < b.last || b.bytes+len(data) > burstBytes || !b.torn && drugEvidence(body)
	if !ends && (quiet > burstSilence || at-b.began > burstTime) {
		ends = quiet > documentGap || at-b.began > documentLasts || !b.torn && !documentLine(text)
	}
	if ends {
		*b = Burst{}
		return false
	}
	b.opened, b.bare = false, b.bare && len(rest) == 0
	b.take(len(data), at)
	return true
}

// Opened says that the frame absorbed last began a document, which is told; the rest of it is not.
func (b *Burst) Opened() bool { return b.opened }

// Broken notes a message that came in part only, length bytes up to boottime at: within a document what
// comes next is the rest of it.
func (b *Burst) Broken(length int, at time.Duration) {
	if !b.active || at < b.last || at-b.last > documentGap {
		return
	}
	b.take(length, at)
	b.torn = true
}

func (b *Burst) take(length int, at time.Duration) {
	b.last = at
	b.bytes += length
	b.torn = false
}
