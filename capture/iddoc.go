package capture

import "time"

// isIDDocument finds the header of a driver's licence or identity card (AAMVA DL/ID card design standard,
// annex D): "@", LF, RS, CR, "ANSI " and the issuer's number; older cards have FS, or "AAMVA". Framing may
// have changed or eaten the control characters, and Caps Lock the case.
func isIDDocument(text []byte) bool {
	if c := text[0]; c > ' ' && c != '@' && c != 'A' && c != 'a' {
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

// What a Burst takes for one document. Line framing sends its lines back to back, but each frame's time
// is that of its last byte, so a line may take as long as its own transmission: two 8 ms reports a
// character from a slow keyboard.
const (
	burstSilence = 300 * time.Millisecond
	burstPerByte = 16 * time.Millisecond
	burstTime    = 20 * time.Second
	burstBytes   = maxPayload
)

// Burst drops the frames of an identity document that line framing has shattered. It belongs to one
// scanner and is not safe for concurrent use; the zero Burst is ready.
//
// It begins with the frame that has the document's header, or the header's first line "@". It ends with
// 300 ms of silence before a frame (the frame's own transmission, 16 ms a byte at most, not counted), with
// a frame that carries an AIM identifier of a drug carrier, which no line of a document does, or after
// 20 s or 4096 bytes in all, so that it cannot swallow the scans behind it.
type Burst struct {
	active      bool
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
	marked, rest := headerStart(text)
	if len(text) > 0 && isIDDocument(text) || marked && len(rest) == 0 {
		if !b.active {
			b.began, b.bytes = at, 0
		}
		b.active, b.last = true, at
		b.bytes += len(data)
		return true
	}
	if !b.active {
		return false
	}
	quiet := at - b.last - time.Duration(len(data))*burstPerByte
	if drug || quiet > burstSilence || at < b.last || at-b.began > burstTime || b.bytes+len(data) > burstBytes {
		*b = Burst{}
		return false
	}
	b.last = at
	b.bytes += len(data)
	return true
}
