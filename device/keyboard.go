package device

import (
	"bytes"
	"slices"
	"time"
	"unicode/utf8"

	"scanonce/window"
)

const (
	// DefaultKeyGap is the longest time between two keys of one scan. Scanners take up to about 20 ms; people
	// rarely less than 100 ms.
	DefaultKeyGap = 100 * time.Millisecond
	// keyRest is how long without a key makes sure that the next one begins a new line, if the end of the one
	// before did not come. Within it what follows a voided scan is the rest of it.
	keyRest = time.Second
)

// HIDKeyboard says where a keyboard's report holds what. Offsets are in bytes from the beginning of the
// report as read.
type HIDKeyboard struct {
	Report uint8 // id, the report's first byte; 0: reports have none
	Mods   int   // offset of the byte of modifiers
	Keys   int   // offset of the keys that are down, a byte each
	Count  int   // of them
}

// BootKeyboard is the report of the boot protocol (USB HID 1.11, appendix B.1).
func BootKeyboard() HIDKeyboard { return HIDKeyboard{Keys: 2, Count: 6} }

// FindHIDKeyboard finds a keyboard's report among the input reports of a device. ok is false if there is none
// that lists the keys that are down.
func FindHIDKeyboard(reports []HIDReport) (HIDKeyboard, bool) {
	for _, r := range reports {
		k, mods := HIDKeyboard{Report: r.ID}, false
		for _, f := range r.Fields {
			if f.App != usageKeyboard || f.Constant() || f.Bit%8 != 0 {
				continue
			}
			bit, n := f.Find(usageModifiers)
			switch {
			case f.Variable() && f.Size == 1 && f.Count == 8 && n == 1 && bit == f.Bit:
				k.Mods, mods = f.Bit/8, true
			case !f.Variable() && f.Size == 8 && len(f.Usages) > 0 && f.Usages[0].First >= usageFirstKey && f.Usages[0].Last <= usageLastKey:
				k.Keys, k.Count = f.Bit/8, f.Count
			}
		}
		if mods && k.Count > 0 {
			return k, true
		}
	}
	return HIDKeyboard{}, false
}

// The bits of the modifiers (USB HID 1.11, section 8.3). The right-hand ones are four bits further up.
const (
	modCtrl     = 0x11
	modShift    = 0x22
	modLeftAlt  = 0x04
	modRightAlt = 0x40
	modGUI      = 0x88
)

// Keyboard makes frames of the reports of one scanner that sends as a keyboard. Not for concurrent use.
//
// Enter, Tab and the keypad's Enter end a frame, and so do CR, LF and HT however they are typed. Keys that go
// down in one report count in the order of the report, as in Linux; the standard leaves that order open
// (USB HID 1.11, appendix C). NumLock changes nothing: a keypad's digit is one.
//
// A frame is text whose keys follow each other within the gap, the ending one included. A slower key voids
// what came before; what follows up to the end of the line, or to 1 s without a key, is taken for the rest of
// it and is faulty too. So nothing comes of a person who types, unless each key of a line, Enter included,
// follows within the gap. A key that has no character in the layout voids its line.
type Keyboard struct {
	scanner string
	form    HIDKeyboard
	keys    *keymap
	gap     time.Duration
	emit    func(Frame)

	mods byte
	down []byte // the keys of the report before
	caps bool

	buf    []byte
	n      int  // bytes of the line so far; more than len(buf) once it is too long
	open   bool // a key of the line was seen
	broken bool
	tail   bool // it is the rest of a line that was voided
	rest   bool // the line before did not end: a tail may follow
	dead   rune // waits for the next key; 0: none
	code   int  // Alt and digits of the keypad
	digits int  // of code
	zero   bool // its first digit is 0
	last   window.Reading
}

// NewKeyboard makes the decoder of one opening of a device. gap is the time without a key that voids a line
// under way, 0 is DefaultKeyGap. emit gets each frame, from within the methods; the frame's data is its own,
// what is not ASCII in UTF-8. The error says what is wrong with the layout's name.
func NewKeyboard(scanner string, form HIDKeyboard, layout string, gap time.Duration, emit func(Frame)) (*Keyboard, error) {
	keys, err := newKeymap(layout)
	if err != nil {
		return nil, err
	}
	if gap == 0 {
		gap = DefaultKeyGap
	}
	return &Keyboard{scanner: scanner, form: form, keys: keys, gap: gap, emit: emit,
		down: make([]byte, 0, form.Count), buf: make([]byte, 0, MaxFrame)}, nil
}

// LEDs tells what the host last sent to the device's lamps (USB HID 1.11, appendix B.1): a scanner that
// follows Caps Lock turns Shift over. Until it is told, Caps Lock is off, and its key turns it over.
func (k *Keyboard) LEDs(leds byte) { k.caps = leds&2 != 0 }

// Report takes one report as it was read at the instant at. It may be longer than declared.
func (k *Keyboard) Report(p []byte, at window.Reading) {
	switch {
	case len(p) == 0 || k.form.Report != 0 && p[0] != k.form.Report:
		return // nothing, or keys that are no text
	case len(p) < max(k.form.Keys+k.form.Count, k.form.Mods+1):
		k.Lost(at)
		return
	}
	mods, keys := p[k.form.Mods], p[k.form.Keys:k.form.Keys+k.form.Count]
	if slices.ContainsFunc(keys, func(key byte) bool { return key >= 1 && key <= 3 }) {
		k.Lost(at) // roll-over or a fault of the keyboard: which keys are down is not known
		return
	}
	k.silence(at)
	if k.digits > 0 && mods&(modLeftAlt|modRightAlt) == 0 {
		k.altEnd(at)
	}
	k.mods = mods
	for i, key := range keys {
		if key != 0 && !slices.Contains(k.down, key) && !slices.Contains(keys[:i], key) {
			k.press(key, at)
		}
	}
	k.down = append(k.down[:0], keys...)
}

// Lost says that reports were read and not passed on, before the instant at.
func (k *Keyboard) Lost(at window.Reading) {
	k.touch(at)
	k.broken = true
	k.down = k.down[:0] // among them may be that a key came up
}

// Pending says that a line has begun and not ended.
func (k *Keyboard) Pending() bool { return k.open }

// Expire voids the line that has begun: no key came for too long, or the device is gone.
func (k *Keyboard) Expire() {
	if k.open {
		k.broken = true
		k.end()
		k.rest = true
		k.down = k.down[:0] // no scanner holds a key for so long: that it came up was lost
	}
}

func (k *Keyboard) silence(at window.Reading) {
	if k.open && at.Boot-k.last.Boot >= k.gap {
		k.Expire()
	}
}

// touch begins a line or goes on with it.
func (k *Keyboard) touch(at window.Reading) {
	k.silence(at)
	if !k.open {
		k.open, k.tail = true, k.rest && at.Boot-k.last.Boot < keyRest
	}
	k.last = at
}

func (k *Keyboard) press(key byte, at window.Reading) {
	switch key {
	case keyCapsLock:
		k.caps = !k.caps
		return
	case keyNumLock, keyScrollLock:
		return
	}
	k.touch(at)
	if k.altMode() && key >= keypadOne && key <= keypadZero {
		k.zero = k.zero || k.digits == 0 && key == keypadZero
		k.digits++
		k.code = min(10*k.code+int(key-keypadOne+1)%10, 9999)
		return
	}
	if r, ok := k.char(key); ok {
		k.put(r)
	} else {
		k.n++
		k.broken = true
	}
}

// altMode says that the digits of the keypad make a code.
func (k *Keyboard) altMode() bool {
	alt := byte(modLeftAlt)
	if !k.keys.hasAltGr {
		alt |= modRightAlt
	}
	return k.mods&alt != 0 && k.mods&^alt == 0
}

// altEnd types the code once Alt is up: as on Windows a character of Latin-1 if it begins with 0. Without, only
// ASCII is the same in every code page.
func (k *Keyboard) altEnd(at window.Reading) {
	k.touch(at)
	code, digits, zero := k.code, k.digits, k.zero
	k.code, k.digits, k.zero = 0, 0, false
	if digits <= 4 && (code < 0x80 || zero && code >= 0xa0 && code <= 0xff) {
		k.put(rune(code))
	} else {
		k.n++
		k.broken = true
	}
}

// char is what a key types with the modifiers that are down. Ctrl with Alt is AltGr where there is one, as on
// Windows.
func (k *Keyboard) char(key byte) (r rune, ok bool) {
	ctrl, shift, alt := k.mods&modCtrl != 0, k.mods&modShift != 0, k.mods&(modLeftAlt|modRightAlt) != 0
	altGr := k.keys.hasAltGr && (k.mods&modRightAlt != 0 || ctrl && alt)
	switch {
	case k.mods&modGUI != 0, alt && !altGr, k.digits > 0:
		return 0, false
	case ctrl && !altGr:
		return k.keys.control(key, shift)
	}
	r = k.keys.char(key, shift, altGr, k.caps)
	return r, r != 0
}

// put types a character.
func (k *Keyboard) put(r rune) {
	mark := k.dead
	k.dead = 0
	switch {
	case mark == 0:
	case r == ' ':
		r = accent(mark)
	case compose(mark, r) != 0:
		r = compose(mark, r)
	default:
		k.add(accent(mark))
	}
	switch {
	case dead(r):
		k.dead = r
	case r == '\r' || r == '\n' || r == '\t':
		k.end()
	default:
		k.add(r)
	}
}

func (k *Keyboard) add(r rune) {
	k.n += utf8.RuneLen(r)
	if k.n <= MaxFrame {
		k.buf = utf8.AppendRune(k.buf, r)
	}
}

// end closes the line. An empty one is none.
func (k *Keyboard) end() {
	f := Frame{Scanner: k.scanner, At: k.last, Length: k.n}
	switch {
	case k.n > MaxFrame:
		f.Fault = TooLong
	case k.broken || k.tail:
		f.Fault = Incomplete
	default:
		f.Data = bytes.Clone(k.buf)
	}
	none := k.n == 0 && !k.broken
	k.buf, k.n, k.open, k.broken, k.rest = k.buf[:0], 0, false, false, false
	k.dead, k.code, k.digits, k.zero = 0, 0, 0, false
	if !none {
		k.emit(f)
	}
}
