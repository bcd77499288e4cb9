package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// wedgeQueue is how many texts wait for their turn.
	wedgeQueue = 16
	// wedgeLate is how long after its scan a text is typed at the latest. A long one takes a second.
	wedgeLate = 3 * time.Second
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
// only. A text is typed within 3 s of its scan or not at all: whoever has the focus later must not get it.
type Wedge struct {
	cfg   WedgeConfig
	keys  *keymap
	clock Clock
	open  func() (*os.File, error)
	queue chan typing
	ready atomic.Bool
	caps  atomic.Bool
	typed atomic.Uint64
	lost  atomic.Uint64

	mu     sync.Mutex // held while notice runs, so that what is told last is true
	notice func(error)
	failed uint64 // how often one was told
}

// typing is a text on its way.
type typing struct {
	strokes []stroke
	at      time.Duration // boottime of its scan
	failed  uint64        // the failures before it
}

// WedgeStats are a Wedge's figures since it was made.
type WedgeStats struct {
	Typed, Lost uint64 // texts; a lost one was not typed at all, or not to its end
}

// NewWedge makes a wedge. notice gets, from any goroutine, why it cannot type, and nil once it can again.
func NewWedge(cfg WedgeConfig, clock Clock, notice func(error)) (*Wedge, error) {
	keys, err := newKeymap(cfg.Layout)
	if err != nil {
		return nil, err
	}
	for key, r := range keys.altGr { // on a desktop of Linux no key is dead with AltGr (xkeyboard-config)
		if dead(r) {
			keys.altGr[key] = accent(r)
		}
	}
	if r, n := utf8.DecodeRuneInString(cfg.GS); n != len(cfg.GS) || r == utf8.RuneError && n > 0 {
		return nil, fmt.Errorf("cannot type %q for GS: write one character, or nothing", cfg.GS)
	}
	w := &Wedge{cfg: cfg, keys: keys, clock: clock, notice: notice, queue: make(chan typing, wedgeQueue)}
	w.open = func() (*os.File, error) { return newWedgeKeyboard(cfg.Root) }
	if _, err := w.strokes([]byte("\x1d")); err != nil {
		return nil, err
	}
	return w, nil
}

// Type queues the text of a scan, which came at the instant at by the boottime. It does not wait; what cannot be typed now
// is lost, and the notice tells why.
func (w *Wedge) Type(text []byte, at time.Duration) {
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	strokes, err := w.strokes(text)
	switch {
	case err != nil:
	case !w.ready.Load():
		w.lost.Add(1) // why was told when it came
		return
	case time.Duration(len(strokes))*wedgePace >= wedgeLate:
		err = fmt.Errorf("cannot type a scan: it takes more than %v", wedgeLate)
	default:
		select {
		case w.queue <- typing{strokes, at, failed}:
			return
		default:
			err = errors.New("cannot type a scan: too many wait to be typed")
		}
	}
	w.fail(err)
}

// fail tells that a text is lost.
func (w *Wedge) fail(err error) {
	w.lost.Add(1)
	w.tell(err)
}

// tell tells of a failure, or, by nil, of its end.
func (w *Wedge) tell(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed++
	}
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
		w.tell(err)
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
	w.tell(nil)
	if !wait(ctx, wedgeSettle) {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case text := <-w.queue:
			switch err := w.play(ctx, keyboard, text); {
			case err == nil:
				w.typed.Add(1)
				w.played(text)
			case errors.Is(err, errLate):
				w.fail(err)
			default:
				w.lost.Add(1)
				return err
			}
		}
	}
}

var errLate = errors.New("cannot type a scan: the machine, or what was typed before it, left no time for it")

// play types a text. The error is errLate if that came too late, or was interrupted for too long.
func (w *Wedge) play(ctx context.Context, keyboard *os.File, text typing) error {
	left := time.Duration(len(text.strokes)) * wedgePace
	if w.clock.Now().Boot-text.at+left > wedgeLate {
		return errLate
	}
	for _, s := range text.strokes {
		if w.clock.Now().Boot-text.at > 2*wedgeLate { // the machine slept
			return errLate
		}
		for _, report := range s.reports(w.caps.Load()) {
			if _, err := keyboard.Write(report); err != nil {
				return fmt.Errorf("cannot type on %s: %w", keyboard.Name(), err)
			}
		}
		if !wait(ctx, wedgePace) {
			return ctx.Err()
		}
	}
	return nil
}

// played tells the end of the failures that came before a text.
func (w *Wedge) played(text typing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed == text.failed {
		w.notice(nil)
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
	if r == 0 || r < ' ' && !strings.ContainsRune("\r\t\b\x1b", r) {
		return m.controlStroke(r)
	}
	for _, level := range []struct {
		chars *[keypadEqual + 1]rune
		with  stroke
	}{{&m.plain, stroke{}}, {&m.shift, stroke{shift: true}}, {&m.altGr, stroke{altGr: true}}} {
		for key := byte(keyA); key <= keyNonUS; key++ {
			if level.chars[key] == r && linuxKey(key) != 0 {
				s := level.with
				s.key, s.letter = key, !s.altGr && m.plain[key] != m.shift[key] && unicode.ToUpper(m.plain[key]) == m.shift[key]
				return s, true
			}
		}
	}
	return stroke{}, false
}

// controlStroke types a control character with Ctrl and the key of the character that it is the control of.
func (m *keymap) controlStroke(r rune) (stroke, bool) {
	s, ok := m.stroke(unicode.ToLower(r + '@'))
	s.ctrl, s.letter = true, false
	return s, ok
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
