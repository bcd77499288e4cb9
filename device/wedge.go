package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// wedgeQueue is how many texts wait for their turn. A long one takes half a second; who scans faster than that for
	// so long is not watching what the application does with it.
	wedgeQueue = 16
	// wedgePace is the time between two keys. A reader that the kernel's events have to wait for has room for 64 of them
	// (drivers/input/evdev.c), up to nine a key, and loses all when there are more.
	wedgePace = 8 * time.Millisecond
	// wedgeSettle is how long a desktop takes to find a keyboard that is new.
	wedgeSettle = 2 * time.Second
	// A keyboard that cannot be made is tried again, seldom.
	wedgeRetryFirst = time.Second
	wedgeRetryMax   = 30 * time.Second
)

// WedgeConfig says how a Wedge types.
type WedgeConfig struct {
	Root   string // folder that holds dev; "" is /
	Layout string // of the desktop that gets the keys; one of Layouts
	GS     string // what is typed for GS, one character: GS itself is Ctrl+]; "" is nothing
	End    string // behind each text: "enter", "tab" or "none"
}

// Wedge is a keyboard of the kernel's (uinput) that types texts, for applications that know scanners as keyboards
// only. A text is typed at once or never: whoever has the focus later must not get it.
type Wedge struct {
	cfg    WedgeConfig
	keys   *keymap
	notice func(error)
	open   func() (*os.File, error)
	queue  chan []stroke
	ready  atomic.Bool
	caps   atomic.Bool
	typed  atomic.Uint64
	lost   atomic.Uint64
}

// WedgeStats are a Wedge's figures since it was made.
type WedgeStats struct {
	Typed, Lost uint64 // texts; a lost one was not typed at all, or not to its end
}

// NewWedge makes a wedge. notice gets, from any goroutine, why it cannot type, and nil once it can again.
func NewWedge(cfg WedgeConfig, notice func(error)) (*Wedge, error) {
	keys, err := newKeymap(cfg.Layout)
	if err != nil {
		return nil, err
	}
	if r, n := utf8.DecodeRuneInString(cfg.GS); n != len(cfg.GS) || r == utf8.RuneError && n > 0 {
		return nil, fmt.Errorf("cannot type %q for GS: write one character, or nothing", cfg.GS)
	}
	w := &Wedge{cfg: cfg, keys: keys, notice: notice, queue: make(chan []stroke, wedgeQueue)}
	w.open = func() (*os.File, error) { return newWedgeKeyboard(cfg.Root) }
	if _, err := w.strokes([]byte("\x1d")); err != nil {
		return nil, err
	}
	return w, nil
}

// Type queues a text. It does not wait; what cannot be typed now is lost, and the notice tells why.
func (w *Wedge) Type(text []byte) {
	strokes, err := w.strokes(text)
	switch {
	case err != nil:
	case !w.ready.Load():
		w.lost.Add(1) // why was told when it came
		return
	default:
		select {
		case w.queue <- strokes:
			return
		default:
			err = errors.New("cannot type a scan: too many wait to be typed")
		}
	}
	w.lost.Add(1)
	w.notice(err)
}

// Stats returns the figures.
func (w *Wedge) Stats() WedgeStats { return WedgeStats{Typed: w.typed.Load(), Lost: w.lost.Load()} }

// Run makes the keyboard and types until ctx ends. The kernel takes the keyboard away with the process.
func (w *Wedge) Run(ctx context.Context) {
	retry := wedgeRetryFirst
	for {
		keyboard, err := w.open()
		if err == nil {
			err = w.serve(ctx, keyboard)
			keyboard.Close()
			retry = wedgeRetryFirst
		}
		if ctx.Err() != nil {
			return
		}
		w.notice(err)
		if !wait(ctx, retry) {
			return
		}
		retry = min(2*retry, wedgeRetryMax)
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (w *Wedge) serve(ctx context.Context, keyboard *os.File) error {
	go w.watchLamps(keyboard)
	w.forget()
	w.ready.Store(true)
	defer w.forget() // nothing is typed late
	defer w.ready.Store(false)
	w.notice(nil)
	if !wait(ctx, wedgeSettle) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case strokes := <-w.queue:
			for _, s := range strokes {
				for _, report := range s.reports(w.caps.Load()) {
					if _, err := keyboard.Write(report); err != nil {
						w.lost.Add(1)
						return fmt.Errorf("cannot type on %s: %w", keyboard.Name(), err)
					}
				}
				if !wait(ctx, wedgePace) {
					w.lost.Add(1)
					return nil
				}
			}
			w.typed.Add(1)
			w.notice(nil)
		}
	}
}

// forget gives up what waits to be typed.
func (w *Wedge) forget() {
	for {
		select {
		case <-w.queue:
			w.lost.Add(1)
		default:
			return
		}
	}
}

// watchLamps knows whether Caps Lock is on, which turns the letters of every keyboard of a desktop over.
func (w *Wedge) watchLamps(keyboard *os.File) {
	const capsLock = 1 // LED_CAPSL
	var buf [16 * evdevEvent]byte
	for {
		n, err := keyboard.Read(buf[:])
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= evdevEvent; b = b[evdevEvent:] {
			if e := readEvent(b); e.kind == evLED && e.code == capsLock {
				w.caps.Store(e.value != 0)
			}
		}
	}
}

// stroke is one key that goes down and up, with modifiers around it.
type stroke struct {
	key                byte // usage
	shift, altGr, ctrl bool
	letter             bool // Caps Lock turns Shift over
}

// reports are the events of a stroke as the kernel takes them: modifiers, the key down, and all up again.
func (s stroke) reports(caps bool) [][]byte {
	var mods []uint16
	if s.shift != (caps && s.letter) {
		mods = append(mods, 42) // KEY_LEFTSHIFT
	}
	if s.altGr {
		mods = append(mods, 100) // KEY_RIGHTALT
	}
	if s.ctrl {
		mods = append(mods, 29) // KEY_LEFTCTRL
	}
	var out [][]byte
	report := func(value int32, codes ...uint16) {
		var b []byte
		for _, c := range codes {
			b = appendEvent(b, evKey, c, value)
		}
		out = append(out, appendEvent(b, evSyn, synReport, 0))
	}
	if len(mods) > 0 {
		report(1, mods...)
	}
	report(1, linuxKey(s.key))
	report(0, append([]uint16{linuxKey(s.key)}, mods...)...)
	return out
}

// linuxKey is the code of linux/input-event-codes.h for a usage (hid_keyboard of drivers/hid/hid-input.c); 0 for one that
// is no character's.
func linuxKey(usage byte) uint16 {
	const codes = "\x1e\x30\x2e\x20\x12\x21\x22\x23\x17\x24\x25\x26\x32\x31\x18\x19\x10\x13\x1f\x14\x16\x2f\x11\x2d\x15\x2c" + // a to z
		"\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b" + // 1 to 0
		"\x1c\x01\x0e\x0f\x39\x0c\x0d\x1a\x1b\x2b\x2b\x27\x28\x29\x33\x34\x35" // Enter, Esc, Backspace, Tab, Space, - to /
	switch i := int(usage) - keyA; {
	case usage == keyNonUS:
		return 86 // KEY_102ND
	case i >= 0 && i < len(codes):
		return uint16(codes[i])
	}
	return 0
}

// strokes are the keys that type a text on the layout. The error names no character of it.
func (w *Wedge) strokes(text []byte) ([]stroke, error) {
	out := make([]stroke, 0, len(text)+1)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			r = rune(text[0]) // Latin-1, as scanners send it
		}
		text = text[n:]
		if r == '\x1d' {
			if w.cfg.GS == "" {
				continue
			}
			r, _ = utf8.DecodeRuneInString(w.cfg.GS)
		}
		s, ok := w.keys.strokes(r)
		if !ok {
			return nil, fmt.Errorf("cannot type a scan: it has a character that the keyboard layout %q lacks", w.cfg.Layout)
		}
		out = append(out, s...)
	}
	switch w.cfg.End {
	case "enter":
		out = append(out, stroke{key: keyEnter})
	case "tab":
		out = append(out, stroke{key: keyTab})
	}
	return out, nil
}

// strokes are the keys that type r: one, or a dead key and the space behind it, or the letter.
func (m *keymap) strokes(r rune) ([]stroke, bool) {
	if r == '\n' {
		r = '\r'
	}
	if s, ok := m.stroke(r); ok {
		return []stroke{s}, true
	}
	for _, mark := range []rune{0x300, 0x301, 0x302, 0x303, 0x308} {
		d, ok := m.stroke(mark)
		if !ok {
			continue
		}
		if accent(mark) == r {
			return []stroke{d, {key: keySpace}}, true
		}
		for letter := rune('A'); letter <= 'z'; letter++ {
			if compose(mark, letter) == r {
				if s, ok := m.stroke(letter); ok {
					return []stroke{d, s}, true
				}
			}
		}
	}
	return nil, false
}

// stroke is the one key that types r, not on the keypad, whose digits NumLock decides.
func (m *keymap) stroke(r rune) (stroke, bool) {
	try := func(key byte) (stroke, bool) {
		letter := m.plain[key] != m.shift[key] && unicode.ToUpper(m.plain[key]) == m.shift[key]
		switch r {
		case m.plain[key]:
			return stroke{key: key, letter: letter}, true
		case m.shift[key]:
			return stroke{key: key, shift: true, letter: letter}, true
		case m.altGr[key]:
			return stroke{key: key, altGr: true}, true
		}
		return stroke{}, false
	}
	if r == 0 || r < ' ' && !strings.ContainsRune("\r\t\b\x1b", r) {
		return m.controlStroke(r)
	}
	for key := byte(keyA); key <= keySlash; key++ {
		if s, ok := try(key); ok {
			return s, true
		}
	}
	return try(keyNonUS)
}

// controlStroke types a control character with Ctrl, as scanners do.
func (m *keymap) controlStroke(r rune) (stroke, bool) {
	for key := byte(keyA); key <= keySlash; key++ {
		if c, ok := m.control(key, false); ok && c == r {
			return stroke{key: key, ctrl: true}, true
		}
	}
	return stroke{}, false
}

// newWedgeKeyboard makes the kernel's keyboard.
func newWedgeKeyboard(root string) (*os.File, error) {
	file, err := openUinput(filepath.Join("/", root), "cannot type scans", "take wedge out of the scanners' tables")
	if err != nil {
		return nil, err
	}
	set := func(nr uintptr, v int) {
		if err == nil {
			err = control(file, func(fd int) error { return unix.IoctlSetInt(fd, uinputRequest(1, nr, 4), v) })
		}
	}
	set(uiSetEvents, evKey)
	set(uiSetEvents, evLED)
	for led := range 3 { // NumLock, CapsLock, ScrollLock
		set(uiSetLEDs, led)
	}
	// All of a keyboard's first codes: udev takes what has them for a keyboard (input_id of systemd).
	for code := 1; code < 128; code++ {
		set(uiSetKeys, code)
	}
	if err == nil {
		err = control(file, func(fd int) error { return createKeyboard(fd, 0, 0, "scanonce wedge") })
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot type scans: %w", err)
	}
	return file, nil
}
