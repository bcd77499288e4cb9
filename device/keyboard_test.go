package device

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// keystroke is a key with modifiers as the first byte of a report has them.
type keystroke struct{ mods, key byte }

// typist knows how a scanner types on a layout, from testdata/keys.txt and not from the program's tables.
type typist map[rune][][]keystroke // the ways of typing a character

func typists(t testing.TB) map[string]typist {
	t.Helper()
	file, err := os.Open("testdata/keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := map[string]typist{}
	for sc := bufio.NewScanner(file); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), "# ") {
			continue
		}
		var layout, char, level string
		var key byte
		if n, err := fmt.Sscanf(sc.Text(), "%s %s %s %x", &layout, &char, &level, &key); n != 4 {
			t.Fatalf("%q: %v", sc.Text(), err)
		}
		mods, ok := map[string]byte{"plain": 0, "shift": 0x02, "altgr": 0x40}[level]
		if !ok {
			t.Fatalf("%q: which level?", sc.Text())
		}
		if out[layout] == nil {
			out[layout] = typist{' ': {{{0, 0x2c}}}}
		}
		strokes := []keystroke{{mods, key}}
		if c, isDead := strings.CutPrefix(char, "dead:"); isDead {
			char, strokes = c, append(strokes, keystroke{0, 0x2c})
		}
		c := []rune(char)[0]
		out[layout][c] = append(out[layout][c], strokes)
	}
	return out
}

// text types s in the first way that there is.
func (ty typist) text(t testing.TB, s string) (out []keystroke) {
	t.Helper()
	for _, c := range s {
		if len(ty[c]) == 0 {
			t.Fatalf("no way to type %q", c)
		}
		out = append(out, ty[c][0]...)
	}
	return out
}

var enter = keystroke{0, 0x28}

// press sends boot reports for keystrokes, modifiers first, as scanners do; each stroke begins step after the
// one before. It returns the time behind the last one.
func press(k *Keyboard, now, step int, strokes ...keystroke) int {
	for _, s := range strokes {
		if s.mods != 0 {
			k.Report([]byte{s.mods, 0, 0, 0, 0, 0, 0, 0}, ms(now))
		}
		k.Report([]byte{s.mods, 0, s.key, 0, 0, 0, 0, 0}, ms(now))
		k.Report([]byte{s.mods, 0, s.key, 0, 0, 0, 0, 0}, ms(now+step/4)) // said again, as it may be
		k.Report(make([]byte, 8), ms(now+step/2))
		now += step
	}
	return now
}

func newKeyboard(t testing.TB, layout string) (*Keyboard, *caught) {
	t.Helper()
	var got caught
	k, err := NewKeyboard("SCN-04", BootKeyboard(), layout, 0, got.add)
	if err != nil {
		t.Fatal(err)
	}
	return k, &got
}

// boot is a report of the keys that are down.
func boot(mods byte, keys ...byte) []byte {
	p := make([]byte, 8)
	p[0] = mods
	copy(p[2:], keys)
	return p
}

func TestKeyboardLayouts(t *testing.T) {
	all := typists(t)
	if len(all) != len(Layouts()) {
		t.Fatalf("%d layouts of %d", len(all), len(Layouts()))
	}
	for _, name := range Layouts() {
		ty := all[name]
		now := 0
		for c := rune(' '); c <= '~'; c++ {
			if len(ty[c]) == 0 {
				t.Errorf("%s: no way to type %q", name, c)
			}
			for _, way := range ty[c] {
				k, got := newKeyboard(t, name)
				now = press(k, now, 10, append(way, enter)...)
				if got.String() != "["+string(c)+"]" {
					t.Errorf("%s: %x gave %q, want %q", name, way, got, c)
				}
			}
		}
		var s strings.Builder
		for c := rune(' '); c <= '~'; c++ {
			s.WriteRune(c)
		}
		k, got := newKeyboard(t, name)
		press(k, now, 16, append(ty.text(t, s.String()), enter)...)
		if got.String() != "["+s.String()+"]" {
			t.Errorf("%s: got %q", name, got)
		}
		// The left Ctrl and Alt together are AltGr, as on Windows.
		for c, ways := range ty {
			for _, way := range ways {
				if way[0].mods == 0x40 {
					k, got := newKeyboard(t, name)
					press(k, 0, 10, append([]keystroke{{0x05, way[0].key}}, append(way[1:], enter)...)...)
					if got.String() != "["+string(c)+"]" {
						t.Errorf("%s: Ctrl+Alt %x gave %q, want %q", name, way, got, c)
					}
				}
			}
		}
	}
	if _, err := NewKeyboard("SCN-04", BootKeyboard(), "us-intl", 0, nil); err == nil || err.Error() != `cannot use layout "us-intl": write one of us, uk, de, fr` {
		t.Errorf("got %v", err)
	}
}

// What is not ASCII, and dead keys before what they do and do not combine with.
func TestKeyboardDeadKeys(t *testing.T) {
	for _, tc := range []struct {
		layout  string
		strokes []keystroke
		want    string
	}{
		{"de", []keystroke{{0, 0x35}, {0, 0x08}}, "ê"},
		{"de", []keystroke{{0, 0x35}, {2, 0x08}}, "Ê"},
		{"de", []keystroke{{0, 0x35}, {0, 0x05}}, "^b"},
		{"de", []keystroke{{0, 0x35}, {0, 0x35}, {0, 0x2c}}, "^^"},
		{"de", []keystroke{{0, 0x35}}, "^"},
		{"de", []keystroke{{0, 0x2e}, {0, 0x1d}}, "ý"},
		{"de", []keystroke{{2, 0x2e}, {0, 0x04}}, "à"},
		{"de", []keystroke{{0, 0x2f}, {2, 0x34}, {0, 0x2d}, {0x40, 0x10}}, "üÄßµ"},
		{"fr", []keystroke{{2, 0x2f}, {0, 0x0c}}, "ï"},
		{"fr", []keystroke{{2, 0x2f}, {0, 0x2c}}, "¨"},
		{"fr", []keystroke{{0x40, 0x1f}, {0, 0x11}}, "ñ"},
		{"fr", []keystroke{{0x40, 0x1f}, {0, 0x08}}, "~e"},
		{"fr", []keystroke{{0x40, 0x1f}, {2, 0x1e}}, "~1"}, // a separator and the next element
		{"fr", []keystroke{{0, 0x1f}, {0, 0x26}, {0x40, 0x08}}, "éç€"},
		{"uk", []keystroke{{2, 0x20}, {0x40, 0x21}}, "£€"},
	} {
		k, got := newKeyboard(t, tc.layout)
		press(k, 0, 10, append(tc.strokes, enter)...)
		if got.String() != "["+tc.want+"]" {
			t.Errorf("%s %x: got %q, want %q", tc.layout, tc.strokes, got, tc.want)
		}
	}
	k, got := newKeyboard(t, "de")
	press(k, 0, 10, keystroke{0, 0x35})
	k.Expire()
	press(k, 5000, 10, keystroke{0, 0x08}, enter)
	if got.String() != "<incomplete 0>[e]" {
		t.Errorf("a dead key that was voided: %q", got)
	}
}

// alt holds an Alt, types digits on the keypad, and lets it go.
func alt(k *Keyboard, now, step int, mod byte, digits string) int {
	k.Report(boot(mod), ms(now))
	for _, c := range digits {
		key := byte(0x62)
		if c != '0' {
			key = 0x58 + byte(c-'0')
		}
		k.Report(boot(mod, key), ms(now))
		k.Report(boot(mod), ms(now))
		now += step
	}
	k.Report(boot(0), ms(now))
	return now
}

func TestKeyboardGS(t *testing.T) {
	all := typists(t)
	for _, name := range Layouts() {
		ways := map[string]func(k *Keyboard, now int) int{
			"Ctrl+] at its US place":       func(k *Keyboard, now int) int { return press(k, now, 10, keystroke{0x01, 0x30}) },
			"with the right Ctrl":          func(k *Keyboard, now int) int { return press(k, now, 10, keystroke{0x10, 0x30}) },
			"Alt+029":                      func(k *Keyboard, now int) int { return alt(k, now, 5, 0x04, "029") },
			"Alt+29":                       func(k *Keyboard, now int) int { return alt(k, now, 5, 0x04, "29") },
			"Alt+0029":                     func(k *Keyboard, now int) int { return alt(k, now, 5, 0x04, "0029") },
			"with Shift, as Ctrl+}":        func(k *Keyboard, now int) int { return press(k, now, 10, keystroke{0x03, 0x30}) },
			"Alt up and the next key down": func(k *Keyboard, now int) int { return alt(k, now, 5, 0x04, "029") },
		}
		if name == "us" {
			ways["the right Alt"] = func(k *Keyboard, now int) int { return alt(k, now, 5, 0x40, "029") }
		}
		for what, way := range ways {
			k, got := newKeyboard(t, name)
			now := press(k, 0, 10, all[name].text(t, "0100312345678906")...)
			now = way(k, now)
			press(k, now, 10, append(all[name].text(t, "10A"), enter)...)
			if got.String() != "[0100312345678906\x1d10A]" {
				t.Errorf("%s, %s: got %q", name, what, got)
			}
		}
	}
}

func TestKeyboardControls(t *testing.T) {
	for _, tc := range []struct {
		layout  string
		strokes []keystroke
		want    string
	}{
		{"us", []keystroke{{1, 0x04}, {1, 0x1d}}, "\x01\x1a"},
		{"us", []keystroke{{1, 0x1f}, {1, 0x2f}, {1, 0x31}, {1, 0x30}, {1, 0x23}, {1, 0x2d}}, "\x00\x1b\x1c\x1d\x1e\x1f"},
		{"us", []keystroke{{3, 0x1f}, {3, 0x23}, {3, 0x2d}}, "\x00\x1e\x1f"},
		{"uk", []keystroke{{1, 0x32}, {1, 0x64}, {3, 0x34}}, "\x1c\x1c\x00"},
		{"de", []keystroke{{1, 0x1c}, {1, 0x2f}, {1, 0x30}, {1, 0x31}, {3, 0x38}}, "\x1a\x1b\x1d\x1c\x1f"},
		{"fr", []keystroke{{1, 0x04}, {1, 0x33}, {1, 0x04}, {1, 0x2f}, {1, 0x30}}, "\x11"}, // Ctrl+Q, then Ctrl+M
		{"us", []keystroke{{0, 0x29}, {0, 0x2a}, {0, 0x4c}}, "\x1b\b\x7f"},
	} {
		k, got := newKeyboard(t, tc.layout)
		press(k, 0, 10, append(tc.strokes, enter)...)
		if want := "[" + tc.want + "]"; !strings.HasPrefix(got.String(), want) {
			t.Errorf("%s %x: got %q, want %q", tc.layout, tc.strokes, got, want)
		}
	}
}

func TestKeyboardKeypad(t *testing.T) {
	for layout, dot := range map[string]string{"us": ".", "uk": ".", "de": ",", "fr": "."} {
		k, got := newKeyboard(t, layout)
		for key := byte(0x54); key <= 0x63; key++ {
			if key != 0x58 {
				press(k, int(key)*10, 10, keystroke{0, key})
			}
		}
		press(k, 1000, 10, keystroke{0, 0x53}, keystroke{0, 0x67}, keystroke{0, 0x58})
		if got.String() != "[/*-+1234567890"+dot+"=]" {
			t.Errorf("%s: got %q", layout, got)
		}
	}
}

// What ends a line.
func TestKeyboardSuffix(t *testing.T) {
	ends := map[string]func(k *Keyboard, now int){
		"Enter":          func(k *Keyboard, now int) { press(k, now, 10, enter) },
		"Tab":            func(k *Keyboard, now int) { press(k, now, 10, keystroke{0, 0x2b}) },
		"keypad Enter":   func(k *Keyboard, now int) { press(k, now, 10, keystroke{0, 0x58}) },
		"Ctrl+M":         func(k *Keyboard, now int) { press(k, now, 10, keystroke{1, 0x10}) },
		"Ctrl+J":         func(k *Keyboard, now int) { press(k, now, 10, keystroke{1, 0x0d}) },
		"Ctrl+I":         func(k *Keyboard, now int) { press(k, now, 10, keystroke{0x10, 0x0c}) },
		"Alt+013":        func(k *Keyboard, now int) { alt(k, now, 10, 4, "013") },
		"Enter, Ctrl+J":  func(k *Keyboard, now int) { press(k, now, 10, enter, keystroke{1, 0x0d}) },
		"Enter, Enter":   func(k *Keyboard, now int) { press(k, now, 10, enter, enter) },
		"Shift is still": func(k *Keyboard, now int) { press(k, now, 10, keystroke{2, 0x28}) },
	}
	for name, end := range ends {
		k, got := newKeyboard(t, "us")
		for i := range 2 {
			now := press(k, i*1000, 10, keystroke{0, 0x04}, keystroke{2, 0x05})
			end(k, now)
			if k.Pending() {
				t.Errorf("%s: pending", name)
			}
		}
		if got.String() != "[aB][aB]" {
			t.Errorf("%s: got %q", name, got)
		}
	}
	k, got := newKeyboard(t, "us")
	press(k, 0, 10, enter, enter, keystroke{0, 0x2b})
	if got.String() != "" {
		t.Errorf("empty lines are %q", got)
	}
	press(k, 500, 10, keystroke{0, 0x04}, enter)
	if f := (*got)[0]; f.At != ms(510) || f.Scanner != "SCN-04" || f.Reply != nil {
		t.Errorf("got %+v", f)
	}
}

// How reports may follow each other.
func TestKeyboardReports(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reports [][]byte
		want    string
	}{
		{"no key up between different keys", [][]byte{boot(0, 4), boot(0, 5), boot(0, 6), boot(0, 0x28)}, "[abc]"},
		{"overlapping keys", [][]byte{boot(0, 4), boot(0, 4, 5), boot(0, 5), boot(0, 5, 6), boot(0), boot(0, 0x28)}, "[abc]"},
		{"one that moves up is no new one", [][]byte{boot(0, 5, 4), boot(0, 4), boot(0), boot(0, 0x28)}, "[ba]"},
		{"several in one report, in its order", [][]byte{boot(0, 6, 4, 5, 7, 9, 8), boot(0), boot(0, 0x28)}, "[cabdfe]"},
		{"twice in one report", [][]byte{boot(0, 4, 4), boot(0), boot(0, 0x28)}, "[a]"},
		{"empty places between", [][]byte{boot(0, 0, 4, 0, 5), boot(0), boot(0, 0x28)}, "[ab]"},
		{"the last key and Enter in one report, and the next line", [][]byte{boot(0, 4, 0x28, 5), boot(0), boot(0, 0x28)}, "[a][b]"},
		{"the same report again", [][]byte{boot(0, 4), boot(0, 4), boot(0, 4), boot(0), boot(0, 4), boot(0), boot(0, 0x28)}, "[aa]"},
		{"modifiers alone", [][]byte{boot(2), boot(2), boot(0), boot(1), boot(0x40), boot(8), boot(0), boot(0, 4), boot(0), boot(0, 0x28)}, "[a]"},
		{"Shift goes down while a key is down", [][]byte{boot(0, 4), boot(2, 4), boot(2, 4, 5), boot(0), boot(0, 0x28)}, "[aB]"},
		{"the right Shift", [][]byte{boot(0x20, 4), boot(0), boot(0, 0x28)}, "[A]"},
		{"roll-over within", [][]byte{boot(0, 4), boot(0, 1, 1, 1, 1, 1, 1), boot(0, 5), boot(0), boot(0, 0x28), boot(0, 6), boot(0, 0x28)}, "<incomplete 2>[c]"},
		{"roll-over alone", [][]byte{boot(0, 1, 1, 1, 1, 1, 1), boot(0), boot(0, 0x28), boot(0, 6), boot(0, 0x28)}, "<incomplete 0>[c]"},
		{"an error of the keyboard", [][]byte{boot(0, 4), boot(0, 3), boot(0, 0x28)}, "<incomplete 1>"},
		{"short report", [][]byte{boot(0, 4), {0, 0, 5}, boot(0, 6), boot(0, 0x28)}, "<incomplete 2>"},
		{"long report", [][]byte{append(boot(0, 4), 9, 9), boot(0, 0x28)}, "[a]"},
		{"zero-length reads", [][]byte{{}, boot(0, 4), nil, boot(0, 0x28)}, "[a]"},
		{"no character", [][]byte{boot(0, 4), boot(0, 0x3a), boot(0, 5), boot(0, 0x28), boot(0, 6), boot(0, 0x28)}, "<incomplete 3>[c]"},
		{"no character in front", [][]byte{boot(0, 0x45), boot(0, 4), boot(0, 0x28)}, "<incomplete 2>"},
		{"a usage just beyond the table", [][]byte{boot(0, 0x68), boot(0, 4), boot(0, 0x28)}, "<incomplete 2>"},
		{"a usage beyond the table", [][]byte{boot(0, 0xff), boot(0, 4), boot(0, 0x28)}, "<incomplete 2>"},
		{"GUI", [][]byte{boot(8, 4), boot(0), boot(0, 0x28)}, "<incomplete 1>"},
		{"the right Alt on a US keyboard", [][]byte{boot(0x40, 4), boot(0), boot(0, 0x28)}, "<incomplete 1>"},
		{"Ctrl and a digit", [][]byte{boot(1, 0x1e), boot(0), boot(0, 0x28)}, "<incomplete 1>"},
		{"Caps Lock around a scan", [][]byte{boot(0, 0x39), boot(0), boot(0, 4), boot(2, 5), boot(0, 0x1e), boot(0, 0x39), boot(0, 6), boot(0, 0x28)}, "[Ab1c]"},
		{"an Alt code of five digits", [][]byte{boot(4), boot(4, 0x62), boot(4), boot(4, 0x62), boot(4), boot(4, 0x62), boot(4), boot(4, 0x5a), boot(4), boot(4, 0x61), boot(0), boot(0, 0x28)}, "<incomplete 1>"},
		{"an Alt code and a letter", [][]byte{boot(4), boot(4, 0x5a), boot(4, 4), boot(0), boot(0, 0x28)}, "<incomplete 2>"},
		{"Alt goes up as a key goes down", [][]byte{boot(4), boot(4, 0x5a), boot(4), boot(4, 0x61), boot(0, 4), boot(0, 0x28)}, "[\x1da]"},
		{"an Alt code with Shift", [][]byte{boot(6), boot(6, 0x5a), boot(0), boot(0, 0x28)}, "<incomplete 1>"},
	} {
		k, got := newKeyboard(t, "us")
		for i, p := range tc.reports {
			k.Report(p, ms(4*i))
		}
		if got.String() != tc.want || k.Pending() {
			t.Errorf("%s: got %q, pending %v, want %q", tc.name, got, k.Pending(), tc.want)
		}
	}
}

func TestKeyboardAltCodes(t *testing.T) {
	for _, tc := range []struct{ digits, want string }{
		{"65", "[A]"}, {"065", "[A]"}, {"127", "[\x7f]"}, {"0233", "[é]"}, {"0255", "[ÿ]"}, {"0160", "[\u00a0]"}, {"0159", "<incomplete 1>"}, {"000", "[\x00]"},
		{"233", "<incomplete 1>"}, {"0128", "<incomplete 1>"}, {"0256", "<incomplete 1>"}, {"9999", "<incomplete 1>"}, {"99999999999999999999999", "<incomplete 1>"},
	} {
		k, got := newKeyboard(t, "us")
		press(k, alt(k, 0, 5, 4, tc.digits), 10, enter)
		if got.String() != tc.want {
			t.Errorf("Alt+%s: got %q, want %q", tc.digits, got, tc.want)
		}
	}
	k, got := newKeyboard(t, "us")
	press(k, 0, 10, keystroke{0, 4})
	if alt(k, 10, 5, 4, "013"); len(*got) != 1 || (*got)[0].At != ms(25) {
		t.Errorf("a line that Alt+013 ends: %+v", *got)
	}
	// What one code was does not count for the next one, nor what was voided.
	k, got = newKeyboard(t, "us")
	now := alt(k, alt(k, 0, 5, 4, "065"), 5, 4, "233")
	now = press(k, now, 10, enter)
	k.Report(boot(4), ms(now))
	k.Report(boot(4, 0x62), ms(now))
	k.Expire()
	press(k, alt(k, now+2000, 5, 4, "233"), 10, enter)
	if got.String() != "<incomplete 2><incomplete 0><incomplete 1>" {
		t.Errorf("codes in a row: %q", got)
	}
}

func TestKeyboardCapsLock(t *testing.T) {
	for _, tc := range []struct {
		layout  string
		strokes []keystroke
		want    string
	}{
		{"us", []keystroke{{0, 4}, {2, 4}, {0, 0x1e}, {2, 0x1e}, {0, 0x30}, {1, 0x30}}, "Aa1!]\x1d"},
		{"de", []keystroke{{0, 0x34}, {2, 0x34}, {0, 0x2d}, {0x40, 0x14}, {0, 0x35}, {0, 0x08}}, "Ää" + "ß@Ê"},
		{"fr", []keystroke{{0, 0x14}, {0, 0x1e}, {2, 0x1e}, {0, 0x10}}, "A&1,"},
	} {
		k, got := newKeyboard(t, tc.layout)
		k.LEDs(0x02)
		now := press(k, 0, 10, append(tc.strokes, enter)...)
		if got.String() != "["+tc.want+"]" {
			t.Errorf("%s: got %q, want %q", tc.layout, got, tc.want)
		}
		k.LEDs(0x05) // the other lamps
		press(k, now, 10, keystroke{0, 0x05}, enter)
		if !strings.HasSuffix(got.String(), "[b]") {
			t.Errorf("%s: off again: %q", tc.layout, got)
		}
	}
}

// A device that numbers its reports.
func TestKeyboardReportID(t *testing.T) {
	var got caught
	k, err := NewKeyboard("SCN-04", HIDKeyboard{Report: 1, Mods: 1, Keys: 3, Count: 6}, "us", 0, got.add)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range [][]byte{{1, 2, 0, 4, 0, 0, 0, 0, 0}, {2, 0xe9, 0}, {1, 0, 0, 0, 0, 0, 0, 0, 0}, {1, 0, 0, 0x28, 0, 0, 0, 0, 0}} {
		k.Report(p, ms(0))
	}
	if got.String() != "[A]" {
		t.Errorf("got %q", got)
	}
}

func TestKeyboardGaps(t *testing.T) {
	a, b, c := keystroke{0, 4}, keystroke{0, 5}, keystroke{0, 6}
	for _, tc := range []struct {
		name string
		feed func(k *Keyboard)
		want string
	}{
		{"just in time", func(k *Keyboard) { press(k, 0, 99, a, b, c, enter) }, "[abc]"},
		{"a person, 100 ms a key", func(k *Keyboard) { press(k, 0, 100, a, b, c, enter) }, "<incomplete 1><incomplete 1><incomplete 1>"},
		{"a person, in bursts", func(k *Keyboard) {
			now := press(k, 0, 30, a, b)
			now = press(k, now+100, 30, a, b)
			press(k, now+100, 30, b, c, enter)
		}, "<incomplete 2><incomplete 2><incomplete 2>"},
		{"a person without Enter, and then a scan", func(k *Keyboard) { press(k, 0, 300, a, b); press(k, 1000, 20, b, c, enter) }, "<incomplete 1><incomplete 1><incomplete 2>"},
		{"a person, a second, and a scan", func(k *Keyboard) { press(k, 0, 300, a, b); press(k, 1300, 20, b, c, enter) }, "<incomplete 1><incomplete 1>[bc]"},
		{"a person, Enter, and a scan", func(k *Keyboard) {
			press(k, 0, 300, a, b)
			press(k, 600, 20, enter, b, c, enter)
		}, "<incomplete 1><incomplete 1>[bc]"},
		{"no end, and the next scan", func(k *Keyboard) { press(k, 0, 20, a, b); press(k, 1020, 20, b, c, enter) }, "<incomplete 2>[bc]"},
		{"no end, and the next scan too soon", func(k *Keyboard) { press(k, 0, 20, a, b); press(k, 1019, 20, b, c, enter) }, "<incomplete 2><incomplete 2>"},
		{"the end comes late", func(k *Keyboard) { press(k, 0, 20, a, b); press(k, 300, 20, enter, b, c, enter) }, "<incomplete 2>[bc]"},
		{"the end comes late behind a timer", func(k *Keyboard) { press(k, 0, 20, a, b); k.Expire(); press(k, 300, 20, enter, b, c, enter) }, "<incomplete 2>[bc]"},
		{"unplugged", func(k *Keyboard) { press(k, 0, 20, a, b); k.Expire(); k.Expire() }, "<incomplete 2>"},
		{"lost within", func(k *Keyboard) { press(k, 0, 20, a, b); k.Lost(ms(50)); press(k, 60, 20, c, enter, a, enter) }, "<incomplete 3>[a]"},
		{"lost in front", func(k *Keyboard) { k.Lost(ms(0)); press(k, 10, 20, c, enter, a, enter) }, "<incomplete 1>[a]"},
		{"lost, and nothing else", func(k *Keyboard) { k.Lost(ms(0)); press(k, 2000, 20, a, enter) }, "<incomplete 0>[a]"},
		{"lost, with a key's release", func(k *Keyboard) {
			k.Report(boot(0, 4), ms(0))
			k.Lost(ms(10))
			press(k, 20, 10, enter, a, b, enter)
			k.Report(boot(0, 4), ms(100))
			k.Lost(ms(110))
			press(k, 120, 10, a, b, enter)
		}, "<incomplete 1>[ab]<incomplete 3>"},
		{"a key's release and the rest lost without a word", func(k *Keyboard) { k.Report(boot(0, 4), ms(0)); press(k, 2000, 10, a, b, enter) }, "<incomplete 1>[ab]"},
		{"an Alt code counts when Alt is up", func(k *Keyboard) {
			k.Report(boot(4), ms(0))
			k.Report(boot(4, 0x5a), ms(0))
			k.Report(boot(4, 0x61), ms(10))
			k.Report(boot(0), ms(100))
			press(k, 190, 10, a, enter)
		}, "[\x1da]"},
		{"an Alt code in its time", func(k *Keyboard) { press(k, alt(k, press(k, 0, 20, a), 99, 4, "029"), 20, enter) }, "[a\x1d]"},
		{"an Alt code that is typed by hand", func(k *Keyboard) { press(k, alt(k, press(k, 0, 20, a), 150, 4, "029"), 20, enter) }, "<incomplete 1><incomplete 0><incomplete 0>"},
		{"a modifier takes its time", func(k *Keyboard) {
			k.Report(boot(2), ms(0))
			k.Report(boot(2, 4), ms(500))
			k.Report(boot(0), ms(590))
			press(k, 599, 20, enter)
		}, "[A]"},
		{"releases prove nothing", func(k *Keyboard) {
			k.Report(boot(0, 4), ms(0))
			k.Report(boot(0), ms(60))
			k.Report(boot(0, 5), ms(120))
			k.Report(boot(0), ms(180))
		}, "<incomplete 1>"},
	} {
		k, got := newKeyboard(t, "us")
		tc.feed(k)
		if got.String() != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestKeyboardTooLong(t *testing.T) {
	k, got := newKeyboard(t, "us")
	now := 0
	for i, n := range []int{MaxFrame, MaxFrame + 1, 3} {
		for range n {
			now = press(k, now, 4, keystroke{0, 4 + byte(i)})
		}
		now = press(k, now, 4, enter)
	}
	if want := "[" + strings.Repeat("a", MaxFrame) + "]<too_long 4097>[ccc]"; got.String() != want {
		t.Errorf("got %.200q", got)
	}
}

func TestKeyboardInterleaved(t *testing.T) {
	a, ga := newKeyboard(t, "us")
	b, gb := newKeyboard(t, "de")
	now := 0
	for _, key := range []byte{0x1c, 0x1d, 0x28} {
		press(a, now, 10, keystroke{0, key})
		now = press(b, now, 10, keystroke{2 * (key & 1), key})
	}
	if ga.String() != "[yz]" || gb.String() != "[zY]" {
		t.Errorf("got %q and %q", ga, gb)
	}
}

func TestKeyboardAllocates(t *testing.T) {
	k, err := NewKeyboard("SCN-04", BootKeyboard(), "fr", 0, func(Frame) {})
	if err != nil {
		t.Fatal(err)
	}
	down, up := boot(0x40, 0x1f), boot(0)
	space, end := boot(0, 0x2c), boot(0, 0x28)
	if n := testing.AllocsPerRun(100, func() {
		for range 20 {
			for _, p := range [][]byte{down, up, space, up} {
				k.Report(p, ms(0))
			}
		}
		k.Report(end, ms(0))
		k.Report(up, ms(0))
	}); n > 1 {
		t.Errorf("%v allocations a frame", n)
	}
}

// FuzzKeyboard types lines with faults, and then anything. A frame is a line that was typed whole; every line
// that no fault came near is a frame.
func FuzzKeyboard(f *testing.F) {
	all := typists(f)
	f.Add(uint8(0), uint64(1), []byte{0, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0x28, 0, 0, 0, 0, 0})
	f.Add(uint8(2), uint64(2), []byte{0x40, 0, 0x14, 0, 0, 0, 0, 0, 4, 0, 0x5a, 0, 0, 0, 0, 0, 0, 0, 0x35, 0x35, 0x2c, 0x28, 0, 0})
	f.Add(uint8(3), uint64(3), []byte{0, 0, 1, 1, 1, 1, 1, 1, 2, 0, 0x2f, 0x39, 0x53, 0, 0, 0, 0x40})
	f.Add(uint8(1), uint64(4), []byte{})
	f.Fuzz(func(t *testing.T, layout uint8, seed uint64, raw []byte) {
		name := Layouts()[int(layout)%len(Layouts())]
		ty := all[name]
		k, got := newKeyboard(t, name)
		r := rand.New(rand.NewPCG(seed, 2))
		now, whole := 0, map[string]bool{}
		for i := range 1 + r.IntN(6) {
			var b strings.Builder
			b.WriteString(strconv.Itoa(i))
			for range r.IntN(40) {
				b.WriteRune(' ' + rune(r.IntN(95)))
			}
			line := b.String()
			var strokes []keystroke
			for _, c := range line {
				strokes = append(strokes, ty[c][r.IntN(len(ty[c]))]...)
			}
			fault, at := r.IntN(8), r.IntN(len(strokes))
			for n, s := range append(strokes, enter) {
				if n == at {
					switch fault {
					case 0:
						k.Lost(ms(now)) // this key
						continue
					case 1:
						k.Report(boot(0, 1, 1, 1, 1, 1, 1), ms(now))
						continue
					case 2:
						k.Report([]byte{s.mods, 0, s.key}, ms(now))
						continue
					case 3:
						now += 100 + r.IntN(800) // too slow
						if n == 0 {
							fault = 7
						}
					case 4:
						s = keystroke{8, s.key}
					}
				}
				now = press(k, now, 1+r.IntN(99), s)
			}
			whole[line] = fault > 4
			now += 1000
		}
		for _, f := range *got {
			if s := string(f.Data); f.Fault == "" {
				if !whole[s] {
					t.Fatalf("%s: a frame that was not typed: %q", name, s)
				}
				whole[s] = false
			}
		}
		for s, missing := range whole {
			if missing {
				t.Fatalf("%s: no frame of %q: %q", name, s, got)
			}
		}
		*got = nil
		most := 0
		for len(raw) > 0 {
			n := 8
			if r.IntN(8) == 0 {
				n = r.IntN(10)
			}
			n = min(n, len(raw))
			k.Report(raw[:n], ms(now))
			most, raw, now = most+12, raw[max(n, 1):], now+r.IntN(60)
		}
		k.Expire()
		if k.Pending() {
			t.Fatal("pending after Expire")
		}
		for _, f := range *got {
			most -= f.Length
			if (f.Fault == "") != (f.Data != nil) || f.Fault == "" && (len(f.Data) != f.Length || f.Length == 0) || (f.Fault == TooLong) != (f.Length > MaxFrame) ||
				strings.ContainsAny(string(f.Data), "\r\n\t") {
				t.Fatalf("impossible frame %+v", f)
			}
		}
		if most < 0 {
			t.Fatalf("%d bytes more than keys", -most)
		}
	})
}

func TestKeyboardGapSetting(t *testing.T) {
	var got caught
	k, err := NewKeyboard("SCN-04", BootKeyboard(), "us", 300*time.Millisecond, got.add)
	if err != nil {
		t.Fatal(err)
	}
	press(k, 0, 299, keystroke{0, 4}, enter)
	press(k, 5000, 300, keystroke{0, 4}, enter)
	if got.String() != "[a]<incomplete 1>" {
		t.Errorf("got %q", got)
	}
}
