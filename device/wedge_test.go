package device

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/window"
)

func newTestWedge(t *testing.T, cfg WedgeConfig, notice func(error)) *Wedge {
	t.Helper()
	w, err := NewWedge(cfg, &bubbleClock{start: time.Now()}, notice)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// What is typed is what a scanner would type, by a table of another source, and the agent reads the same text of it.
func TestWedgeTypesEveryLayout(t *testing.T) {
	for layout, ty := range typists(t) {
		w := newTestWedge(t, WedgeConfig{Layout: layout, GS: "\x1d", End: "enter"}, nil)
		var text strings.Builder
		for c, ways := range ty {
			got, ok := w.keys.strokes(c)
			if !ok {
				t.Errorf("%s: no way to type %q", layout, c)
				continue
			}
			var typed []keystroke
			for _, s := range got {
				typed = append(typed, s.keystroke())
			}
			alive := layout == "fr" && strings.ContainsRune("~`", c) // to scanners they are dead with AltGr, as on Windows
			if !slices.ContainsFunc(ways, func(way []keystroke) bool {
				return slices.Equal(way, typed) || alive && slices.Equal(way[:1], typed)
			}) || alive && len(typed) != 1 {
				t.Errorf("%s: %q is typed as %v, want one of %v", layout, c, typed, ways)
			}
			if !alive {
				text.WriteRune(c)
			}
		}
		for c := range rune(0x20) {
			// On the other layouts it is Ctrl with AltGr, which to a scanner is AltGr.
			if c != '\r' && c != '\n' && c != '\t' && (layout == "us" || layout == "uk") {
				text.WriteRune(c)
			}
		}
		for _, caps := range []bool{false, true} {
			if got := w.read(t, text.String(), caps); got != text.String() {
				t.Errorf("%s, Caps Lock %v: typed %q, read %q", layout, caps, text.String(), got)
			}
		}
	}
}

func (s stroke) keystroke() keystroke {
	k := keystroke{key: s.key}
	for mod, on := range map[byte]bool{0x02: s.shift, 0x40: s.altGr, 0x01: s.ctrl} {
		if on {
			k.mods |= mod
		}
	}
	return k
}

// read types a text and reads it as that of a scanner.
func (w *Wedge) read(t *testing.T, text string, caps bool) string {
	t.Helper()
	var got []byte
	k, err := NewKeyboard("W", BootKeyboard(), w.cfg.Layout, 0, func(f Frame) { got = append(got, f.Data...) })
	if err != nil {
		t.Fatal(err)
	}
	if caps {
		k.LEDs(2)
	}
	strokes, err := w.strokes([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	usages := map[uint16]byte{42: 0xe1, 100: 0xe6, 29: 0xe0}
	for u := byte(keyA); u <= keyNonUS; u++ {
		if c := linuxKey(u); c != 0 && usages[c] == 0 { // two usages share 43
			usages[c] = u
		}
	}
	keys := evdev{}
	for _, s := range strokes {
		for _, r := range s.reports(caps) {
			for ; len(r) > 0; r = r[evdevEvent:] {
				e := readEvent(r[:evdevEvent])
				if e.kind == evKey {
					if usages[e.code] == 0 {
						t.Fatalf("the code %d is no key's", e.code)
					}
					keys.keys.event(inputEvent{kind: evMsc, code: mscScan, value: int32(usageFirstKey) + int32(usages[e.code])})
				}
				if report, _ := keys.keys.event(e); report != nil {
					k.Report(append(report, make([]byte, 8)...), window.Reading{})
				}
			}
		}
	}
	return string(got)
}

// The codes of linux/input-event-codes.h, by their names.
func TestLinuxKeys(t *testing.T) {
	for usage, want := range map[byte]uint16{
		0x04: 30 /* A */, 0x1d: 44 /* Z */, 0x14: 16 /* Q */, 0x10: 50 /* M */, 0x1e: 2 /* 1 */, 0x27: 11, /* 0 */
		0x28: 28 /* ENTER */, 0x29: 1 /* ESC */, 0x2a: 14 /* BACKSPACE */, 0x2b: 15 /* TAB */, 0x2c: 57 /* SPACE */, 0x2d: 12, /* MINUS */
		0x2e: 13 /* EQUAL */, 0x2f: 26 /* LEFTBRACE */, 0x30: 27 /* RIGHTBRACE */, 0x31: 43 /* BACKSLASH */, 0x33: 39, /* SEMICOLON */
		0x34: 40 /* APOSTROPHE */, 0x35: 41 /* GRAVE */, 0x36: 51 /* COMMA */, 0x37: 52 /* DOT */, 0x38: 53 /* SLASH */, 0x64: 86, /* 102ND */
		0x39: 0, 0x53: 0, 0x59: 0, 0x03: 0,
	} {
		if got := linuxKey(usage); got != want {
			t.Errorf("usage %#x: code %d, want %d", usage, got, want)
		}
	}
}

// A desktop makes GS of Ctrl and the key of the bracket, wherever the layout has it (xkeyboard-config).
func TestWedgeGSByLayout(t *testing.T) {
	for layout, want := range map[string]stroke{"us": {key: 0x30, ctrl: true}, "uk": {key: 0x30, ctrl: true},
		"de": {key: 0x26, altGr: true, ctrl: true}, "fr": {key: 0x2d, altGr: true, ctrl: true}} {
		w := newTestWedge(t, WedgeConfig{Layout: layout, GS: "\x1d", End: "none"}, nil)
		if got, err := w.strokes([]byte("\x1d")); err != nil || !slices.Equal(got, []stroke{want}) {
			t.Errorf("%s: %+v, %v", layout, got, err)
		}
	}
}

// Latin-1, as some scanners send it, is typed as the character that it is.
func TestWedgeLatin1(t *testing.T) {
	w := newTestWedge(t, WedgeConfig{Layout: "de", End: "none"}, nil)
	a, err1 := w.strokes([]byte("\xe4"))
	b, err2 := w.strokes([]byte("ä"))
	if err1 != nil || err2 != nil || !slices.Equal(a, b) || len(a) != 1 {
		t.Errorf("%v, %v; %v, %v", a, err1, b, err2)
	}
}

func TestWedgeGSAndEnd(t *testing.T) {
	for _, tc := range []struct{ gs, end, want string }{
		{"\x1d", "enter", "[{0 4} {1 48} {0 5} {0 40}]"},
		{"|", "tab", "[{0 4} {2 49} {0 5} {0 43}]"},
		{"", "none", "[{0 4} {0 5}]"},
	} {
		w := newTestWedge(t, WedgeConfig{Layout: "us", GS: tc.gs, End: tc.end}, nil)
		strokes, err := w.strokes([]byte("a\x1db"))
		var got []keystroke
		for _, s := range strokes {
			got = append(got, s.keystroke())
		}
		if err != nil || fmt.Sprint(got) != tc.want {
			t.Errorf("gs %q, end %q: %v, %v, want %s", tc.gs, tc.end, got, err, tc.want)
		}
	}
	for _, cfg := range []WedgeConfig{{Layout: "xx"}, {Layout: "us", GS: "ab"}, {Layout: "us", GS: "\xff"}, {Layout: "us", GS: "ß"}} {
		if _, err := NewWedge(cfg, nil, nil); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// wedgeBench is a wedge whose keyboard is a pipe: what is typed is read at its end. With lamps it is a socket, at which these
// are written; a bubble's time would stand still while it is read.
type wedgeBench struct {
	*Wedge
	clock *bubbleClock

	mu      sync.Mutex
	notices []string
	fail    error
	far     *os.File
	lamps   bool
}

func newWedgeBench(t *testing.T) *wedgeBench {
	t.Helper()
	b := &wedgeBench{clock: &bubbleClock{start: time.Now()}}
	w, err := NewWedge(WedgeConfig{Layout: "us", GS: "\x1d", End: "enter"}, b.clock, func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.notices = append(b.notices, fmt.Sprint(err))
	})
	if err != nil {
		t.Fatal(err)
	}
	w.open = func() (*os.File, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fail != nil {
			return nil, b.fail
		}
		if !b.lamps {
			r, w, err := os.Pipe()
			if b.far != nil {
				b.far.Close()
			}
			b.far = r
			return w, err
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		b.far = os.NewFile(uintptr(fds[0]), "far")
		return os.NewFile(uintptr(fds[1]), "/dev/uinput"), nil
	}
	b.Wedge = w
	return b
}

// begin runs it until the test's end.
func (b *wedgeBench) begin(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	return func() {
		cancel()
		<-ended
		if b.far != nil {
			b.far.Close()
		}
	}
}

func (b *wedgeBench) scan(text string) { b.Type([]byte(text), b.clock.Now().Boot) }

func (b *wedgeBench) told() (last string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.notices) == 0 {
		return ""
	}
	return b.notices[len(b.notices)-1]
}

func (b *wedgeBench) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.notices)
}

func (b *wedgeBench) set(fail error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = fail
}

// events are what is typed and not read yet: kind/code/value.
func (b *wedgeBench) events(t *testing.T) string {
	t.Helper()
	buf := make([]byte, 1<<16)
	c, err := b.far.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	c.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) })
	var got []string
	for e := buf[:max(n, 0)]; len(e) >= evdevEvent; e = e[evdevEvent:] {
		v := readEvent(e[:evdevEvent])
		got = append(got, fmt.Sprintf("%d/%d/%d", v.kind, v.code, v.value))
	}
	return strings.Join(got, " ")
}

const enterKey = " 1/28/1 0/0/0 1/28/0 0/0/0"

func TestWedgeTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedgeBench(t)
		b.set(errors.New("cannot type scans: there is no /dev/uinput"))
		defer b.begin(t)()
		synctest.Wait()
		if got := b.told(); !strings.Contains(got, "no /dev/uinput") {
			t.Errorf("told %q", got)
		}
		b.scan("before")
		if st := b.Stats(); st != (WedgeStats{Lost: 1}) {
			t.Errorf("stats %+v", st)
		}
		b.set(nil)
		time.Sleep(wedgeRetryFirst)
		synctest.Wait()
		if got := b.told(); got != "<nil>" {
			t.Errorf("told %q", got)
		}
		// The desktop has to find the keyboard first.
		b.scan("Ab")
		time.Sleep(wedgeSettle - time.Millisecond)
		synctest.Wait()
		if got := b.events(t); got != "" {
			t.Errorf("typed at once: %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got, want := b.events(t), "1/42/1 0/0/0 1/30/1 0/0/0 1/30/0 1/42/0 0/0/0 1/48/1 0/0/0 1/48/0 0/0/0"+enterKey; got != want {
			t.Errorf("typed %q, want %q", got, want)
		}
		if st := b.Stats(); st != (WedgeStats{Typed: 1, Lost: 1}) {
			t.Errorf("stats %+v", st)
		}
		// What the layout lacks is told, until another text is typed.
		b.scan("a\u20ac")
		if got := b.told(); got != `cannot type a scan: it has a character that the keyboard layout "us" lacks` {
			t.Errorf("told %q", got)
		}
		b.scan("1")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := b.events(t); got != "1/2/1 0/0/0 1/2/0 0/0/0"+enterKey || b.told() != "<nil>" {
			t.Errorf("typed %q, told %q", got, b.told())
		}
		// Longer than anybody waits.
		b.scan(strings.Repeat("x", int(wedgeLate/wedgePace)))
		if got := b.told(); got != "cannot type a scan: it takes more than 3s" {
			t.Errorf("told %q", got)
		}
	})
}

// Caps Lock of the desktop turns the letters of this keyboard over as well.
func TestWedgeCapsLock(t *testing.T) {
	b := newWedgeBench(t)
	b.lamps = true
	stop := b.begin(t)
	defer stop()
	await := func(ok func() bool) {
		t.Helper()
		for end := time.After(30 * time.Second); !ok(); {
			select {
			case <-end:
				t.Fatalf("never; told %q", b.told())
			case <-time.After(time.Millisecond):
			}
		}
	}
	await(b.ready.Load)
	for _, tc := range []struct {
		lamp int32
		want string
	}{{1, "1/42/1 0/0/0 1/30/1 0/0/0 1/30/0 1/42/0 0/0/0 1/48/1 0/0/0 1/48/0 0/0/0 1/2/1 0/0/0 1/2/0 0/0/0" + enterKey},
		{0, "1/30/1 0/0/0 1/30/0 0/0/0 1/42/1 0/0/0 1/48/1 0/0/0 1/48/0 1/42/0 0/0/0 1/2/1 0/0/0 1/2/0 0/0/0" + enterKey}} {
		lamps := appendEvent(appendEvent(nil, evLED, 0, 1-tc.lamp), evLED, 1, tc.lamp) // NumLock is none of its business
		if _, err := b.far.Write(lamps); err != nil {
			t.Fatal(err)
		}
		await(func() bool { return b.caps.Load() == (tc.lamp != 0) })
		before := b.Stats().Typed
		b.scan("aB1")
		await(func() bool { return b.Stats().Typed == before+1 })
		if got := b.events(t); got != tc.want {
			t.Errorf("lamp %d: typed %q, want %q", tc.lamp, got, tc.want)
		}
	}
}

// A text is typed soon or never, and that it was not stays told until a later one is.
func TestWedgeTypesNowOrNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedgeBench(t)
		defer b.begin(t)()
		time.Sleep(time.Minute)
		synctest.Wait()
		const n = wedgeQueue + 1
		for range n { // half a second each
			b.scan(strings.Repeat("1", 60))
			synctest.Wait()
		}
		began := b.clock.Now().Boot
		for b.Stats().Typed+b.Stats().Lost < n {
			time.Sleep(wedgePace)
			synctest.Wait()
			if b.events(t); b.Stats().Typed > 0 && b.Stats().Lost == 0 && b.clock.Now().Boot-began > wedgeLate {
				t.Fatalf("still typing after %v", b.clock.Now().Boot-began)
			}
		}
		if st := b.Stats(); st.Typed < 5 || st.Typed > 7 || !strings.HasPrefix(b.told(), "cannot type a scan: the machine, or what was typed before it") {
			t.Errorf("stats %+v, told %q", st, b.told())
		}
		b.scan("1")
		time.Sleep(time.Second)
		synctest.Wait()
		if b.told() != "<nil>" {
			t.Errorf("told %q", b.told())
		}
		// More than the queue holds: told until one is typed that came later.
		b.events(t)
		for range wedgeQueue + 3 {
			b.scan("11")
		}
		if got := b.told(); got != "cannot type a scan: too many wait to be typed" {
			t.Errorf("told %q", got)
		}
		time.Sleep(wedgeLate)
		synctest.Wait()
		if got := b.told(); got != "cannot type a scan: too many wait to be typed" {
			t.Errorf("told %q, and nothing came since", got)
		}
		b.scan("1")
		time.Sleep(time.Second)
		synctest.Wait()
		if b.told() != "<nil>" {
			t.Errorf("told %q", b.told())
		}
		// The machine sleeps amid a text.
		b.events(t)
		before := b.Stats()
		b.scan(strings.Repeat("1", 60))
		time.Sleep(10 * wedgePace)
		b.clock.mu.Lock()
		b.clock.skip = time.Hour
		b.clock.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := strings.Count(b.events(t), "1/2/1"); got > 12 || b.Stats() != (WedgeStats{before.Typed, before.Lost + 1}) {
			t.Errorf("%d keys of it were typed, stats %+v", got, b.Stats())
		}
	})
}

// A keyboard that fails is made anew, what waited for it is forgotten, and tries are seldom.
func TestWedgeKeyboardFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedgeBench(t)
		defer b.begin(t)()
		time.Sleep(wedgeSettle)
		synctest.Wait()
		b.far.Close()
		b.set(errors.New("cannot type scans: gone"))
		b.scan("one")
		b.scan("two")
		synctest.Wait()
		if got := b.told(); !strings.HasPrefix(got, "cannot type on |1: ") {
			t.Errorf("told %q", got)
		}
		if st := b.Stats(); st != (WedgeStats{Lost: 2}) {
			t.Errorf("stats %+v", st)
		}
		before := b.count()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := b.count() - before; n < 100 || n > 130 {
			t.Errorf("%d tries in an hour", n)
		}
		b.set(nil)
		time.Sleep(wedgeRetryMax + wedgeSettle)
		synctest.Wait()
		b.scan("1")
		time.Sleep(time.Second)
		synctest.Wait()
		if got := b.events(t); got != "1/2/1 0/0/0 1/2/0 0/0/0"+enterKey {
			t.Errorf("typed %q", got)
		}
	})
}

// A reader that is late keeps what was typed: keys come one at a time, and seldom enough.
func TestWedgePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedgeBench(t)
		defer b.begin(t)()
		time.Sleep(wedgeSettle)
		synctest.Wait()
		start := time.Now()
		b.scan("0123456789")
		for b.Stats().Typed == 0 {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(start); d < 11*wedgePace {
			t.Errorf("eleven keys in %v", d)
		}
	})
}
