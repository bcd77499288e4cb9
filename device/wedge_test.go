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

	"scanonce/window"
)

func newTestWedge(t *testing.T, cfg WedgeConfig, notice func(error)) *Wedge {
	t.Helper()
	w, err := NewWedge(cfg, notice)
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
			if !slices.ContainsFunc(ways, func(way []keystroke) bool { return slices.Equal(way, typed) }) {
				t.Errorf("%s: %q is typed as %v, want one of %v", layout, c, typed, ways)
			}
			text.WriteRune(c)
		}
		for c := range rune(0x20) {
			if c != '\r' && c != '\n' && c != '\t' {
				text.WriteRune(c)
			}
		}
		for c := rune(' '); c <= '~'; c++ {
			text.WriteRune(c)
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
		if _, err := NewWedge(cfg, nil); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// wedgeBench is a wedge whose keyboard is a pipe: what is typed is read at its end.
type wedgeBench struct {
	*Wedge
	mu      sync.Mutex
	notices []string
	fail    error
	typed   *os.File
}

func newWedgeBench(t *testing.T) *wedgeBench {
	b := &wedgeBench{}
	b.Wedge = newTestWedge(t, WedgeConfig{Layout: "us", GS: "\x1d", End: "enter"}, func(err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.notices = append(b.notices, fmt.Sprint(err))
	})
	b.open = func() (*os.File, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.fail != nil {
			return nil, b.fail
		}
		r, w, err := os.Pipe()
		b.typed = r
		return w, err
	}
	return b
}

func (b *wedgeBench) told() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.notices)
}

// A text is typed at once or never, and whoever sees to the workstation is told.
func TestWedgeTypesNowOrNever(t *testing.T) {
	b := newWedgeBench(t)
	b.fail = errors.New("cannot type scans: there is no /dev/uinput")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	await := func(what string, ok func() bool) {
		t.Helper()
		for end := time.After(10 * time.Second); !ok(); {
			select {
			case <-end:
				t.Fatalf("never %s: %q", what, b.told())
			case <-time.After(time.Millisecond):
			}
		}
	}
	await("told", func() bool { return len(b.told()) > 0 })
	b.Type([]byte("before"))
	if st := b.Stats(); st != (WedgeStats{Lost: 1}) {
		t.Errorf("stats %+v", st)
	}
	b.mu.Lock()
	b.fail = nil
	b.mu.Unlock()
	await("ready", b.ready.Load)
	if got := b.told(); got[len(got)-1] != "<nil>" {
		t.Errorf("told %q", got)
	}
	b.Type([]byte("a\u20ac")) // no key of this layout
	if got := b.told(); got[len(got)-1] != `cannot type a scan: it has a character that the keyboard layout "us" lacks` {
		t.Errorf("told %q", got)
	}
	b.Type([]byte("Ab"))
	await("typed", func() bool { return b.Stats().Typed == 1 })
	buf := make([]byte, 4096)
	n, err := b.typed.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e := buf[:n]; len(e) > 0; e = e[evdevEvent:] {
		v := readEvent(e[:evdevEvent])
		got = append(got, fmt.Sprintf("%d/%d/%d", v.kind, v.code, v.value))
	}
	if want := "1/42/1 0/0/0 1/30/1 0/0/0 1/30/0 1/42/0 0/0/0 1/48/1 0/0/0 1/48/0 0/0/0 1/28/1 0/0/0 1/28/0 0/0/0"; strings.Join(got, " ") != want {
		t.Errorf("typed %q, want %q", got, want)
	}
	// The keyboard fails.
	b.typed.Close()
	b.Type([]byte("gone"))
	await("told", func() bool { got := b.told(); return strings.HasPrefix(got[len(got)-1], "cannot type on ") })
	await("ready again", b.ready.Load)
	if st := b.Stats(); st.Lost != 3 {
		t.Errorf("stats %+v", st)
	}
	// More than the queue holds.
	for range 2*wedgeQueue + 2 {
		b.Type([]byte(strings.Repeat("long", 50)))
	}
	if got := b.told(); got[len(got)-1] != "cannot type a scan: too many wait to be typed" {
		t.Errorf("told %q", got)
	}
	cancel()
	<-ended
	if st := b.Stats(); st != (WedgeStats{Typed: 1, Lost: 3 + 2*wedgeQueue + 2}) {
		t.Errorf("stats %+v", st)
	}
}

// A reader that is late keeps what was typed: keys come one at a time, and seldom enough.
func TestWedgePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newWedgeBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); b.Run(ctx) }()
		time.Sleep(wedgeSettle)
		synctest.Wait()
		start := time.Now()
		b.Type([]byte("0123456789"))
		for b.Stats().Typed == 0 {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(start); d < 11*wedgePace {
			t.Errorf("eleven keys in %v", d)
		}
		b.typed.Close()
		cancel()
		<-ended
	})
}
