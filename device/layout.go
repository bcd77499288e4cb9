package device

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Keyboard usages by what they do (HID Usage Tables, page 0x07).
const (
	keyA          = 0x04
	keyEnter      = 0x28
	keyTab        = 0x2b
	keySpace      = 0x2c
	keyMinus      = 0x2d
	keySlash      = 0x38
	keyCapsLock   = 0x39
	keyScrollLock = 0x47
	keyNumLock    = 0x53
	keypadSlash   = 0x54
	keypadOne     = 0x59
	keypadZero    = 0x62
	keypadDot     = 0x63
	keyNonUS      = 0x64 // beside the left Shift of a European keyboard
	keypadEqual   = 0x67
)

// layoutRows is a keyboard layout as data: the characters of the keys a to z, 1 to 0, from minus to slash
// (0x2d to 0x38) and of the key beside the left Shift, alone and with Shift. A dead key is the combining
// character that it stands for.
type layoutRows struct {
	name         string
	plain, shift string
	altGr        map[byte]rune // nil: the right Alt is an Alt like the left one
	dot          rune          // of the keypad
}

// layouts are as in xkeyboard-config (symbols us, gb, de and fr, each "basic"), but for what is not ASCII with
// AltGr, and for French AltGr+2 and AltGr+7: they are dead as on Windows, which scanners are made for.
func layouts() []layoutRows {
	return []layoutRows{
		{"us", "abcdefghijklmnopqrstuvwxyz1234567890-=[]\\\\;'`,./\\",
			"ABCDEFGHIJKLMNOPQRSTUVWXYZ!@#$%^&*()_+{}||:\"~<>?|", nil, '.'},
		{"uk", "abcdefghijklmnopqrstuvwxyz1234567890-=[]##;'`,./\\",
			"ABCDEFGHIJKLMNOPQRSTUVWXYZ!\"£$%^&*()_+{}~~:@¬<>?|", map[byte]rune{0x14: '@',
				0x21: '€', 0x24: '{', 0x25: '[', 0x26: ']', 0x27: '}', 0x2d: '\\', 0x35: '|', 0x64: '|'}, '.'},
		{"de", "abcdefghijklmnopqrstuvwxzy1234567890ß\u0301ü+##öä\u0302,.-<",
			"ABCDEFGHIJKLMNOPQRSTUVWXZY!\"§$%&/()=?\u0300Ü*''ÖÄ°;:_>", map[byte]rune{0x08: '€', 0x10: 'µ', 0x14: '@',
				0x1f: '²', 0x20: '³', 0x24: '{', 0x25: '[', 0x26: ']', 0x27: '}', 0x2d: '\\', 0x30: '~', 0x64: '|'}, ','},
		{"fr", "qbcdefghijkl,noparstuvzxyw&é\"'(-è_çà)=\u0302$**mù²;:!<",
			"QBCDEFGHIJKL?NOPARSTUVZXYW1234567890°+\u0308£µµM%~./§>", map[byte]rune{0x04: '@', 0x08: '€', 0x1f: '\u0303', 0x20: '#',
				0x21: '{', 0x22: '[', 0x23: '|', 0x24: '\u0300', 0x25: '\\', 0x26: '^', 0x27: '@', 0x2d: ']', 0x2e: '}', 0x30: '¤'}, '.'},
	}
}

// Layouts are the names of the keyboard layouts, the default first.
func Layouts() []string {
	var names []string
	for _, l := range layouts() {
		names = append(names, l.name)
	}
	return names
}

// keymap says what the keys of a layout type. 0 is no character.
type keymap struct {
	plain, shift, altGr [keypadEqual + 1]rune
	hasAltGr            bool
}

func newKeymap(layout string) (*keymap, error) {
	for _, l := range layouts() {
		if l.name == layout {
			return l.keymap(), nil
		}
	}
	return nil, fmt.Errorf("cannot use layout %q: write one of %s", layout, strings.Join(Layouts(), ", "))
}

func (l layoutRows) keymap() *keymap {
	m := &keymap{hasAltGr: l.altGr != nil}
	fill := func(keys *[keypadEqual + 1]rune, rows string) {
		i := 0
		for _, r := range rows {
			switch { // i counts characters; three blocks of keys
			case i < keyEnter-keyA:
				keys[keyA+i] = r
			case i < keyEnter-keyA+keyCapsLock-keyMinus:
				keys[keyMinus+i-(keyEnter-keyA)] = r
			default:
				keys[keyNonUS] = r
			}
			i++
		}
		copy(keys[keyEnter:], []rune{'\r', 0x1b, '\b', '\t', ' '})
		copy(keys[keypadSlash:], []rune("/*-+\r1234567890"))
		keys[0x4c] = 0x7f // Delete
		keys[keypadDot], keys[keypadEqual] = l.dot, '='
	}
	fill(&m.plain, l.plain)
	fill(&m.shift, l.shift)
	for key, r := range l.altGr {
		m.altGr[key] = r
	}
	return m
}

// char is what a key types. Caps Lock turns Shift over for letters alone.
func (m *keymap) char(key byte, shift, altGr, caps bool) rune {
	switch {
	case int(key) >= len(m.plain), altGr && shift:
		return 0
	case altGr:
		return m.altGr[key]
	case caps && m.plain[key] != m.shift[key] && unicode.ToUpper(m.plain[key]) == m.shift[key]:
		shift = !shift
	}
	if shift {
		return m.shift[key]
	}
	return m.plain[key]
}

// control is what a key types with Ctrl: the control character of what it types without, or else of what
// the key types on a US keyboard, since scanners send Ctrl+] at that place on any layout, as Windows has it.
// ok is false if there is none.
func (m *keymap) control(key byte, shift bool) (c rune, ok bool) {
	c = m.char(key, shift, false, false)
	switch {
	case c >= '@' && c <= '_' || c >= 'a' && c <= 'z':
		return c & 0x1f, true
	case key == 0x1f: // 2
		return 0x00, true
	case key == 0x2f: // [
		return 0x1b, true
	case key == 0x31 || key == 0x32 || key == keyNonUS: // backslash
		return 0x1c, true
	case key == 0x30: // ]
		return 0x1d, true
	case key == 0x23: // 6
		return 0x1e, true
	case key == keyMinus:
		return 0x1f, true
	}
	return 0, false
}

func dead(r rune) bool { return r >= 0x300 && r <= 0x36f }

// accent is what a dead key types before a space, and before what it does not combine with.
func accent(r rune) rune {
	switch r {
	case 0x300:
		return '`'
	case 0x301:
		return '´'
	case 0x302:
		return '^'
	case 0x303:
		return '~'
	}
	return '¨'
}

// compose is what a dead key and a letter type together, 0 if they do not combine.
func compose(mark, letter rune) rune {
	var pairs string // a letter and what becomes of it
	switch mark {
	case 0x300:
		pairs = "aàeèiìoòuùAÀEÈIÌOÒUÙ"
	case 0x301:
		pairs = "aáeéiíoóuúyýAÁEÉIÍOÓUÚYÝ"
	case 0x302:
		pairs = "aâeêiîoôuûAÂEÊIÎOÔUÛ"
	case 0x303:
		pairs = "aãnñoõAÃNÑOÕ"
	case 0x308:
		pairs = "aäeëiïoöuüyÿAÄEËIÏOÖUÜ"
	}
	if i := strings.IndexRune(pairs, letter); i >= 0 && letter < utf8.RuneSelf {
		r, _ := utf8.DecodeRuneInString(pairs[i+1:])
		return r
	}
	return 0
}
