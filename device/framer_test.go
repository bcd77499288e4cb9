package device

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// cut feeds chunks to a new framer and lists what came out, data copied.
func cut(t testing.TB, framing Framing, chunks ...[]byte) []Message {
	t.Helper()
	f, err := NewFramer(framing)
	if err != nil {
		t.Fatal(err)
	}
	var out []Message
	for _, p := range chunks {
		for len(p) > 0 {
			m, n, ok := f.Next(p)
			if n == 0 {
				t.Fatalf("%s: took nothing of %q", framing, p)
			}
			if p = p[n:]; ok {
				m.Data = bytes.Clone(m.Data)
				out = append(out, m)
			}
		}
	}
	if m, ok := f.Expire(); ok {
		out = append(out, m)
	}
	if f.Pending() {
		t.Fatalf("%s: pending after Expire", framing)
	}
	return out
}

func show(ms []Message) string {
	var b strings.Builder
	for _, m := range ms {
		if m.Fault != "" {
			fmt.Fprintf(&b, "<%s %d>", m.Fault, m.Length)
		} else {
			fmt.Fprintf(&b, "[%s]", string(m.Data))
		}
	}
	return b.String()
}

func bytewise(p []byte) [][]byte { return slices.Collect(slices.Chunk(p, 1)) }

func TestFramer(t *testing.T) {
	long := strings.Repeat("x", MaxFrame)
	for _, tc := range []struct {
		framing  Framing
		in, want string
	}{
		{Line, "a\rb\nc\r\nd\n\re\r\r\nf\r", "[a][b][c][d][e][f]"},
		{Line, "\r\n\r\n\n", ""},
		{Line, "01003\x1d10A\x1e\x04\x02\x03 \x00\xff\r", "[01003\x1d10A\x1e\x04\x02\x03 \x00\xff]"},
		{Line, "abc\rde", "[abc]<incomplete 2>"},
		{Line, strings.Repeat("x", 600), "<incomplete 600>"},
		{Line, long + "\rb\r", "[" + long + "][b]"},
		{Line, long + "y\rb\r", "<too_long 4097>[b]"},
		{Line, strings.Repeat("x", 5000) + "\r\nb\r", "<too_long 5000>[b]"},
		{Line, strings.Repeat("x", 5000), "<too_long 5000>"},
		{CR, "a\rb\nc\r\rd\r", "[a][b\nc][d]"},
		{CR, "a\r\nb\r", "[a][\nb]"},
		{LF, "a\nb\rc\n\nd\n", "[a][b\rc][d]"},
		{CRLF, "a\r\nb\rc\nd\r\n\r\ne\r\r\n", "[a][b\rc\nd][e\r]"},
		{CRLF, "a\r", "<incomplete 2>"},
		{CRLF, "\r", "<incomplete 1>"},
		{CRLF, long + "\r\nb\r\n", "[" + long + "][b]"},
		{CRLF, long + "\r\r\nb\r\n", "<too_long 4097>[b]"},
		{STXETX, "\x02a\x03\x02b\r\n\x1dc\x03\r\n\x02d\x03", "[a][b\r\n\x1dc][d]"},
		{STXETX, "\x02\x03\x02\x02\x03\x03\x02a\x03", "[a]"},
		{STXETX, "\x02abc\x02de\x03", "<incomplete 3>[de]"},
		{STXETX, "bc\x03\x02de\x03", "<incomplete 2>[de]"},
		{STXETX, "bc\r\x02de\x03", "<incomplete 2>[de]"},
		{STXETX, "bc\x02de\x03", "<incomplete 2>[de]"},
		{STXETX, "\x02de", "<incomplete 2>"},
		{STXETX, "\x02", ""},
		{STXETX, "\x02" + long + "y\r\x03\x02b\x03", "<too_long 4098>[b]"},
		{STXETX, "\x02" + long + "yy\x02b\x03", "<too_long 4098>[b]"},
		{ACKNAK, "a\rb\nc\r\n\x02d\re\x03\r\n\x02f\x03g\r", "[a][b][c][d\re][f][g]"},
		{ACKNAK, "ab\x02c\x03", "<incomplete 2>[c]"},
		{ACKNAK, "ab\x03c\r", "<incomplete 2>[c]"},
		{ACKNAK, "\x03\x03a\r", "[a]"},
		{"", "a\r\nb\n", "[a][b]"},
	} {
		in := []byte(tc.in)
		if got := show(cut(t, tc.framing, in)); got != tc.want {
			t.Errorf("%s %.40q: got %.80q, want %.80q", tc.framing, tc.in, got, tc.want)
		}
		if got := show(cut(t, tc.framing, bytewise(in)...)); got != tc.want {
			t.Errorf("%s %.40q byte by byte: got %.80q, want %.80q", tc.framing, tc.in, got, tc.want)
		}
	}
}

func TestFramerExpireNeverJoins(t *testing.T) {
	for _, framing := range Framings() {
		f, err := NewFramer(framing)
		if err != nil {
			t.Fatal(err)
		}
		if framing == STXETX {
			f.Next([]byte{stx})
		}
		f.Next([]byte("half"))
		if !f.Pending() {
			t.Errorf("%s: half a message is not pending", framing)
		}
		if m, ok := f.Expire(); !ok || m.Fault != Incomplete || m.Data != nil || m.Length != 4 {
			t.Errorf("%s: Expire gave %+v, %v", framing, m, ok)
		}
		if m, ok := f.Expire(); ok {
			t.Errorf("%s: expired twice: %+v", framing, m)
		}
		m, _, ok := f.Next([]byte("\x02whole\x03\r\n"))
		want := "whole"
		if framing == Line || framing == CR || framing == LF || framing == CRLF {
			want = "\x02whole\x03"
		}
		if framing == LF {
			want += "\r"
		}
		if !ok || string(m.Data) != want || m.Fault != "" {
			t.Errorf("%s: after Expire got %q %q, %v; want %q", framing, m.Data, m.Fault, ok, want)
		}
	}
}

// The rest of a message between STX and ETX that was voided is no message, though it holds line endings: it may
// be the rest of a driver's licence.
func TestFramerRestOfAVoidedBlock(t *testing.T) {
	for _, framing := range []Framing{STXETX, ACKNAK} {
		f, err := NewFramer(framing)
		if err != nil {
			t.Fatal(err)
		}
		feed := func(in string) []Message {
			var out []Message
			for p := []byte(in); len(p) > 0; {
				m, n, ok := f.Next(p)
				if p = p[n:]; ok {
					m.Data = bytes.Clone(m.Data)
					out = append(out, m)
				}
			}
			return out
		}
		feed("\x02head\nli")
		if m, ok := f.Expire(); !ok || m.Fault != Incomplete {
			t.Fatalf("%s: %v, %v", framing, m, ok)
		}
		for _, m := range feed("ne\nline\r\nline\x03") {
			if m.Fault == "" {
				t.Errorf("%s: %q is a message", framing, string(m.Data))
			}
		}
		if got := show(feed("\x02whole\x03")); got != "[whole]" {
			t.Errorf("%s: %s behind it", framing, got)
		}
		// A silence ends the rest that has no ETX.
		feed("\x02head")
		f.Expire()
		feed("rest")
		if m, ok := f.Expire(); !ok || m.Fault != Incomplete || m.Length != 4 {
			t.Errorf("%s: the rest is %v, %v", framing, m, ok)
		}
		if got := show(feed("line\r")); framing == ACKNAK && got != "[line]" {
			t.Errorf("%s: %s behind it", framing, got)
		}
	}
}

func TestFramerUnknown(t *testing.T) {
	_, err := NewFramer("etx")
	if err == nil || !strings.HasPrefix(err.Error(), `cannot use framing "etx": write one of "line"`) {
		t.Errorf("got %v", err)
	}
}

func TestFramerAllocatesNothing(t *testing.T) {
	f, err := NewFramer(Line)
	if err != nil {
		t.Fatal(err)
	}
	in := []byte("]d201003009372141061727113010A1207\r\n")
	if n := testing.AllocsPerRun(100, func() {
		for p := in; len(p) > 0; {
			_, k, _ := f.Next(p)
			p = p[k:]
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// model cuts p by searching for whole terminators, for the profiles without STX.
func model(framing Framing, p []byte) []Message {
	var parts []string
	s := string(p)
	switch framing {
	case Line:
		parts = strings.Split(strings.ReplaceAll(s, "\n", "\r"), "\r")
	case CR:
		parts = strings.Split(s, "\r")
	case LF:
		parts = strings.Split(s, "\n")
	case CRLF:
		parts = strings.Split(s, "\r\n")
	}
	var out []Message
	for i, part := range parts {
		switch {
		case part == "":
		case len(part) > MaxFrame:
			out = append(out, Message{Fault: TooLong, Length: len(part)})
		case i == len(parts)-1:
			out = append(out, Message{Fault: Incomplete, Length: len(part)})
		default:
			out = append(out, Message{Data: []byte(part), Length: len(part)})
		}
	}
	return out
}

func FuzzFramer(f *testing.F) {
	seeds := []string{"a\rb\nc\r\nd", "\r\r\n\n\r", "\x02a\x03\x02b\x02c\x03d\x03\r\n", "x\x1d10A\r", "\x06\x15\x02\x03",
		strings.Repeat("x", MaxFrame) + "\r\n", strings.Repeat("y", MaxFrame) + "\r\r\nz\r\n", "\x02" + strings.Repeat("z", 5000) + "\x03a\r"}
	for i := range Framings() {
		for _, s := range seeds {
			f.Add(uint8(i), []byte(s), uint64(len(s)))
		}
	}
	f.Fuzz(func(t *testing.T, profile uint8, in []byte, seed uint64) {
		framing := Framings()[int(profile)%len(Framings())]
		whole := cut(t, framing, in)
		r := rand.New(rand.NewPCG(seed, 1))
		var chunks [][]byte
		for p := in; len(p) > 0; {
			n := 1 + r.IntN(min(len(p), 1+r.IntN(600)))
			chunks, p = append(chunks, p[:n]), p[n:]
		}
		if a, b := show(whole), show(cut(t, framing, chunks...)); a != b {
			t.Fatalf("%s: split differently, %q is %q", framing, a, b)
		}
		total := 0
		for _, m := range whole {
			total += m.Length
			if m.Length <= 0 || (m.Fault == "") != (m.Data != nil) || m.Fault == "" && len(m.Data) != m.Length ||
				(m.Fault == "" || m.Fault == Incomplete) && m.Length > MaxFrame || m.Fault == TooLong && m.Length <= MaxFrame {
				t.Fatalf("%s: impossible message %q, %d bytes, length %d", framing, m.Fault, len(m.Data), m.Length)
			}
		}
		if total > len(in) {
			t.Fatalf("%s: %d bytes out of %d", framing, total, len(in))
		}
		if framing != STXETX && framing != ACKNAK {
			if a, b := show(whole), show(model(framing, in)); a != b {
				t.Fatalf("%s: got %q, the model says %q", framing, a, b)
			}
		}
	})
}
