package capture

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/window"
)

func TestFraming(t *testing.T) {
	const in = "]d2010031234567890610A"
	for _, f := range [][2]string{{"", ""}, {"\x02", "\x03"}, {"", "\r"}, {"", "\n"}, {"", "\r\n"}, {"", "\t"}, {"\x02", "\x03\r\n"}, {"", "\r\n\t\x03"}} {
		s := accepted(t, f[0]+in+f[1])
		if s.Lot != "A" || string(s.Element()) != in || s.Length != len(in) || s.Symbology != "]d2" {
			t.Errorf("%q: %q %d", f, s.Element(), s.Length)
		}
	}
	refused(t, "\x02\x02"+in, ControlChar, Concatenated)
	refused(t, in+" ", BadCharset)
	refused(t, " "+in, BadCharset, Concatenated)
	for _, in := range []string{"", "\r\n", "   ", "\x00", "\x02\x03", " \x00 ", "]d2", "]C0  ", "]E0\r"} {
		refused(t, in, Empty)
	}
	if s := accepted(t, strings.Repeat("X", 4096)+"\r\n"); s.Kind != KindOpaque || s.Length != 4096 {
		t.Errorf("%v", s)
	}
	refused(t, strings.Repeat("X", 4097), TooLong)
	refused(t, "\x16M\rPAPHHF.", ProgrammingCode)
	refused(t, "]C0\x16T", ProgrammingCode)
}

func TestCarriers(t *testing.T) {
	const gs1 = "0100312345678906"
	for _, id := range []string{"]C1", "]d2", "]Q3", "]e0", "]J1"} {
		if s := accepted(t, id+gs1); s.Kind != KindGS1 || s.Symbology != id {
			t.Errorf("%s: %v", id, s)
		}
	}
	for _, id := range []string{"]C0", "]d1", "]Q1", "]A0", "]A1", "]A2", "]A3", "]A4", "]A5", "]A6", "]A7"} {
		s := accepted(t, id+gs1+"\x1d10A")
		if s.Kind != KindOpaque || s.Flags != FlagLooksLikeGS1 || s.GTIN != "" || s.IsMovement() || elementsOf(s) != nil {
			t.Errorf("%s: %+v", id, s.Report())
		}
		if s := accepted(t, id+"00006141411234567890"); s.Flags != FlagLooksLikeGS1 {
			t.Errorf("%s: an SSCC is not flagged", id)
		}
		if s := accepted(t, id+"0193e0d1-a3da"); s.Flags != 0 || s.Kind != KindOpaque {
			t.Errorf("%s: %v", id, s.Flags.Names())
		}
	}
	for _, id := range []string{"]A8", "]C2", "]C4", "]d0", "]d3", "]Q0", "]e1", "]E1", "]E2", "]E5", "]I2", "]L0", "]L2", "]X0", "]Z6", "]U0", "]F0", "]G0", "]z0", "]J0", "]I0", "]zz", "]99"} {
		refused(t, id+"SOMETEXT", UnsupportedSymbology, BadCharset)
	}
	refused(t, "]d", Truncated)
	for in, kind := range map[string]ErrorKind{
		"]E0307811506104":                         BadLength,
		"]E003078115061041":                       BadLength,
		"]E0030781150610A":                        BadCharset,
		"]E00307811506105":                        CheckDigit,
		"]E00000000000000":                        BadValue,
		"]E40307811506104":                        BadLength,
		"]E09638507":                              BadLength,
		"]E30307811506104":                        BadLength,
		"]E303078115061041":                       BadLength,
		"]E303078115061041A":                      BadLength,
		"]I10031234567890":                        BadLength,
		"]I1A0312345678900":                       BadCharset,
		"]I120312345678901":                       CheckDigit,
		"]E00307811506104]E0030":                  Concatenated,
		"]E003078115061040307811506104":           Concatenated,
		"]E00307811506104]e010A":                  Concatenated,
		"]E00307811506104|]e010A]C1":              Concatenated,
		"]E00307811506104|]e0":                    "",
		"]E00307811506104|]e010":                  BadLength,
		"]E00307811506104|]e0010031234567890610A": DuplicateAI,
		"]E00307811506104|]e03710":                IllegalPair,
		"]I12031234567890020312345678900":         Concatenated,
		"307811506104312345678906":                Concatenated,
		"03078115061050312345678909":              "", // the halves are no valid pair
		"307811506104\r\n300937214106":            Concatenated,
		"ABC\nDEF":                                ControlChar,
		"ABC]E00307811506104":                     Concatenated,
		"AB\x7fC":                                 ControlChar,
		"0100312345678907" + "10A":                CheckDigit,
		"00006141411234567891":                    CheckDigit,
		"300450549108":                            CheckDigit,
		"40312345678905":                          CheckDigit,
		"00000000000000":                          BadValue,
		"[)>\x1e06\x1d9N11037528\x1e\x04":         UnsupportedFormat,
		"]d1[)>\x1e05\x1d01":                      UnsupportedFormat,
		"=W12342612345600":                        UnsupportedFormat,
		"]d1&>0271231":                            UnsupportedFormat,
	} {
		if _, r := decode(t, in); r.Kind != kind {
			t.Errorf("%q: %v, want %q", in, r, kind)
		}
	}
	if s := accepted(t, "]E303078115061041"+"2345"); s.AddOn != "12345" || s.GTIN != "00307811506104" {
		t.Errorf("%+v", s.Report())
	}
	if s := accepted(t, "]E496385074|]e01727123110L"); s.GTIN != "00000096385074" || s.Lot != "L" || s.Kind != KindEANUPC || !slices.Equal(elementsOf(s), []string{"01=00000096385074", "17=271231", "10=L"}) {
		t.Errorf("%+v", s.Report())
	}
	if s := accepted(t, "]I040312345678904"); s.Kind != KindITF14 || s.PkgLevel != 4 {
		t.Errorf("%+v", s.Report())
	}
	if s := accepted(t, "00006141411234567890"); s.Kind != KindGS1 || s.Flags != FlagNoItemID || s.IsMovement() {
		t.Errorf("%+v", s.Report())
	}
}

func TestGuns(t *testing.T) {
	d := plainDecoder(t)
	p := &Profile{GunDigits: 2}
	var s Scan
	for _, in := range []string{"02]E00300937214106", "03]E00300937214106\r"} {
		if r := d.Decode(&s, []byte(in), p, vectorDay); !r.OK() || s.Gun != in[:2] || s.GTIN != "00300937214106" || string(s.Element()) != "]E00300937214106" {
			t.Errorf("%q: gun %q, %q, %v", in, s.Gun, s.Element(), r)
		}
	}
	if r := d.Decode(&s, []byte("02]E00300937214107"), p, vectorDay); r.Kind != CheckDigit || s.Gun != "02" || s.Symbology != "]E0" {
		t.Errorf("gun %q of a refused scan, %q, %v", s.Gun, s.Symbology, r)
	}
	for in, want := range map[string]ErrorKind{"]E00300937214106": BadConfig, "0": BadConfig, "02": Empty, "\x16M\rPAPHHF.": ProgrammingCode, "ANSI 636000090002DL": IDDocument, "02@\n\x1e\rANSI 636000090002DL": IDDocument} {
		if r := d.Decode(&s, []byte(in), p, vectorDay); r.Kind != want {
			t.Errorf("%q: %v", in, r)
		}
	}
}

func TestSymbologyPrefix(t *testing.T) {
	d := plainDecoder(t)
	var s Scan
	for _, in := range []string{"*d2010031234567890610A", "]d2010031234567890610A", "*]d2010031234567890610A"} {
		if r := d.Decode(&s, []byte(in), &Profile{SymbologyPrefix: "*"}, vectorDay); !r.OK() || s.Symbology != "]d2" || s.Lot != "A" {
			t.Errorf("%q: %v %v", in, s, r)
		}
	}
}

func TestProfileValidate(t *testing.T) {
	for _, p := range []Profile{{}, {GSSubstitute: '|'}, {GSSubstitute: '~'}, {GSSubstitute: '#'}, {GSSubstitute: ' '}, {GSSubstitute: 0x1e}, {GunDigits: 2}, {BareDigits: "ndc11"}, {BareDigits: "ean8"}, {SymbologyPrefix: "]"}} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, p := range []Profile{{GSSubstitute: '_'}, {GSSubstitute: '?'}, {GSSubstitute: '<'}, {GSSubstitute: 'A'}, {GSSubstitute: '\n'}, {GSSubstitute: 3}, {GunDigits: -1}, {GunDigits: 9}, {BareDigits: "upce"}, {SymbologyPrefix: "d2"}, {SymbologyPrefix: "]]]]]"}, {SymbologyPrefix: "] "}} {
		if err := p.Validate(); err == nil || !strings.HasPrefix(err.Error(), "cannot use ") {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestIDDocument(t *testing.T) {
	for _, in := range []string{
		"@\n\x1e\rANSI 636000090002DL00410278ZV03190008DLDAQT00000000\nDCSSAMPLE\n",
		"]L2@\n\x1e\rANSI 636000090002DL",
		"]L2@\r\n\x1e\r\nANSI 636014040002DL",
		"@\n\x1c\rAAMVA36000102DL",
		"ANSI 636001070002DL00410392",
		"ansi 636001070002dl00410392",
		"\x1e\rANSI 636001070002DL",
		"@ANSI 636001070002DL",
		"@\n\x1e\rAN",
		"]C0@\n\x1e\rANSI 636001070002DL",
	} {
		s, r := decode(t, in)
		if r.Kind != IDDocument {
			t.Errorf("%q: %v", in, r)
		}
		if left := string(s.w.buf[:cap(s.w.buf)]); strings.Trim(left, "\x00]L2C0") != "" {
			t.Errorf("%q: %q is left in memory", in, left)
		}
	}
	for _, in := range []string{"ANSIBLE", "AAMVA", "@home", "A1207", "]C0ANSI 9", "@"} {
		if _, r := decode(t, in); !r.OK() {
			t.Errorf("%q: %v", in, r)
		}
	}
}

const licence = "@\n\x1e\rANSI 636000090002DL00410278ZV03190008DLDAQT64235789\nDCSSAMPLE\nDDEN\nDACMICHAEL\nDDFN\nDADJOHN\nDDGN\nDCUJR\nDCAD\nDCBK\nDCDPH\nDBD06062016\nDBB06061986\nDBA12102024\nDBC1\nDAU068 in\nDAYBRO\nDAG2300 WEST BROAD STREET\nDAIRICHMOND\nDAJVA\nDAK232690000  \nDCF2424244747474786102204\nDCGUSA\nDCK123456789\nDDAF\nDDB06062008\nDDC06062009\nDDD1\rZVZVA01\r"

// Whatever the framing splits at, no line of a document gets through, and the next scan does.
func TestBurst(t *testing.T) {
	split := map[string]func(rune) bool{
		"CR":         func(c rune) bool { return c == '\r' },
		"LF":         func(c rune) bool { return c == '\n' },
		"CR or LF":   func(c rune) bool { return c == '\r' || c == '\n' },
		"one a byte": func(rune) bool { return false },
	}
	for name, at := range split {
		for _, head := range []string{licence, strings.ReplaceAll(licence, "\r", "\r\n"), "]L2" + licence, strings.TrimPrefix(licence, "@\n\x1e\r"), strings.Replace(licence, "ANSI ", "AAMVA", 1)} {
			for perByte := range 3 {
				var b Burst
				now := time.Hour
				for i, line := range strings.FieldsFunc(head, at) {
					now += 3*time.Millisecond + time.Duration(len(line)*perByte*8)*time.Millisecond
					if !b.Absorb([]byte(line), now) {
						t.Fatalf("%s, %d ms a byte: line %d of the document passed", name, perByte*8, i)
					}
				}
				if b.Absorb([]byte("300937214106"), now+time.Second) {
					t.Errorf("%s: the next scan was swallowed", name)
				}
				if b.Absorb([]byte("DCSSAMPLE"), now+1001*time.Millisecond) {
					t.Errorf("%s: the burst goes on behind a scan", name)
				}
			}
		}
	}
}

func TestBurstEnds(t *testing.T) {
	begin := func() *Burst {
		b := new(Burst)
		if !b.Absorb([]byte("ANSI 636000090002DL"), time.Minute) {
			t.Fatal("the header passed")
		}
		return b
	}
	shelf := []byte("SHELF 12-A-0") // 192 ms at a slow keyboard
	if b := begin(); !b.Absorb(shelf, time.Minute+burstSilence+192*time.Millisecond) {
		t.Error("the burst ended within its gap")
	}
	if b := begin(); b.Absorb(shelf, time.Minute+burstSilence+193*time.Millisecond) {
		t.Error("the burst did not end after its gap")
	}
	if b := begin(); b.Absorb([]byte("]E00300937214106"), time.Minute+time.Millisecond) {
		t.Error("a drug carrier's frame was taken for a line of the document")
	}
	if b := begin(); !b.Absorb([]byte("]L2DCSSAMPLE"), time.Minute+time.Millisecond) {
		t.Error("a PDF417 frame passed")
	}
	if b := begin(); b.Absorb(shelf, time.Second) {
		t.Error("a frame before the header was swallowed")
	}
	b, now, n := begin(), time.Minute, 0
	for ; b.Absorb([]byte("SAMPLE"), now) && n < 1000; n++ {
		now += 100 * time.Millisecond
	}
	if now-time.Minute > burstTime+200*time.Millisecond {
		t.Errorf("a burst lasted %v", now-time.Minute)
	}
	b, n = begin(), 0
	for b.Absorb([]byte(strings.Repeat("X", 100)), time.Minute) && n < 1000 {
		n++
	}
	if n > 41 {
		t.Errorf("a burst took %d frames of 100 bytes", n)
	}
	// A gun address may stand in front.
	for _, in := range []string{"02ANSI 636000090002DL", "02]L2@", "02@\n\x1e"} {
		var guns Burst
		if !guns.Absorb([]byte(in), time.Minute) || !guns.Absorb([]byte("DCSSAMPLE"), time.Minute) {
			t.Errorf("%q passed", in)
		}
		if guns.Absorb([]byte("02]E00300937214106"), time.Minute+time.Millisecond) {
			t.Errorf("a drug carrier's frame behind %q was swallowed", in)
		}
	}
	// A header starts a new burst at any time.
	if !b.Absorb([]byte("@"), time.Hour) || !b.Absorb([]byte("\x1e"), time.Hour) {
		t.Error("a split header passed")
	}
	var idle Burst
	for _, in := range []string{"", "300937214106", "]d2010031234567890610A", "DCSSAMPLE", "ANSIBLE", "\r\n"} {
		if idle.Absorb([]byte(in), time.Minute) {
			t.Errorf("%q was swallowed without a document", in)
		}
	}
}

func TestCommands(t *testing.T) {
	for _, st := range window.ScanTypes() {
		want := Command{Verb: CommandMode, Type: st}
		for _, id := range []string{"", "]C0", "]A0", "]d1", "]Q1", "]F0"} {
			s := accepted(t, id+want.String()+"\r")
			if s.Kind != KindCommand || s.Command != want || s.IsMovement() {
				t.Errorf("%s%s: %+v", id, want, s.Command)
			}
		}
	}
	for _, n := range []int{1, 30, 9999} {
		if s := accepted(t, fmt.Sprintf("SCANONCE-QTY-%d", n)); s.Command != (Command{Verb: CommandQuantity, Quantity: n}) || s.Command.String() != fmt.Sprintf("SCANONCE-QTY-%d", n) {
			t.Errorf("%d: %+v", n, s.Command)
		}
	}
	if s := accepted(t, "]d1SCANONCE-SAMEAGAIN"); s.Command != (Command{Verb: CommandSameAgain}) || s.Command.String() != "SCANONCE-SAMEAGAIN" {
		t.Errorf("%+v", s.Command)
	}
	for _, in := range []string{"SCANONCE-QTY-0", "SCANONCE-QTY-10000", "SCANONCE-QTY-", "SCANONCE-QTY-03", "SCANONCE-QTY--3", "SCANONCE-QTY-3 ", "SCANONCE-QTY-9999999999999", "SCANONCE-MODE-", "SCANONCE-MODE-BURN", "SCANONCE-MODE-return", "scanonce-mode-return", "SCANONCE-SAMEAGAIN ", "SCANONCE-"} {
		refused(t, in, BadValue)
		refused(t, "]C0"+in, BadValue)
	}
	// Never under AI parsing, nor as a retail code.
	refused(t, "]d2SCANONCE-SAMEAGAIN", UnknownAI)
	refused(t, "]E0SCANONCE-SAMEAGAIN", BadCharset)
	refused(t, "]I1SCANONCE-QTY-3", BadCharset)
	if (Command{}).String() != "" {
		t.Error("no command has a text")
	}
}

func rxDecoder(t testing.TB, profiles ...RxProfile) *Decoder {
	t.Helper()
	d, err := NewDecoder(DecoderConfig{Rx: profiles})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestRx(t *testing.T) {
	label := RxProfile{"label", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`}
	digits := RxProfile{"digits", `(?P<rx>\d{10,16})`}
	for _, c := range []struct {
		name, in string
		profiles []RxProfile
		kind     Kind
		err      ErrorKind
	}{
		{"plain", "R0000042000001", []RxProfile{label}, KindRxLabel, ""},
		{"whole text only", "R00000420000011", []RxProfile{label}, KindOpaque, ""},
		{"whole text only, in front", "XR0000042000001", []RxProfile{label}, KindOpaque, ""},
		{"line end within", "R0000042000001\nX", []RxProfile{label}, 0, ControlChar},
		{"valid GTIN-14", "20312345678900", []RxProfile{digits}, 0, Ambiguous},
		{"valid UPC", "300937214106", []RxProfile{digits}, 0, Ambiguous},
		{"no valid UPC", "300937214107", []RxProfile{digits}, KindRxLabel, ""},
		{"no identifier, GS1", "0100312345678906", []RxProfile{digits}, 0, Ambiguous},
		{"no identifier, no GS1", "0100312345678907", []RxProfile{digits}, KindRxLabel, ""},
		{"Code 128 decides", "]C0300937214106", []RxProfile{digits}, KindRxLabel, ""},
		{"EAN decides", "]E00300937214106", []RxProfile{digits}, KindEANUPC, ""},
		{"ITF-14 decides", "]I120312345678900", []RxProfile{digits}, KindITF14, ""},
		{"unchecked ITF does not", "]I020312345678900", []RxProfile{digits}, 0, Ambiguous},
		{"unchecked ITF label", "]I012345678901234", []RxProfile{digits}, KindRxLabel, ""},
		{"GS1 decides", "]C10100312345678906", []RxProfile{digits}, KindGS1, ""},
		{"Codabar", "]F0R0000042000001", []RxProfile{label}, KindRxLabel, ""},
		{"Code 93", "]G0R0000042000001", []RxProfile{label}, KindRxLabel, ""},
		{"11 digits", "12345678901", []RxProfile{digits}, KindRxLabel, ""},
		{"11 digits in Code 128", "]C012345678901", []RxProfile{digits}, KindRxLabel, ""},
		{"hyphens of an NDC", "12345-678-90", []RxProfile{{"h", `(?P<rx>\d+)-\d+-\d+`}}, 0, Ambiguous},
		{"hyphens of none", "1234-567-89", []RxProfile{{"h", `(?P<rx>\d+)-\d+-\d+`}}, KindRxLabel, ""},
		{"HIBC is no label", hibcText("+A999TESTPRD11"), []RxProfile{{"any", `(?P<rx>.+)`}}, KindHIBC, ""},
		{"two formats, two readings", "1234567890123456", []RxProfile{{"a", `(?P<rx>\d{7})\d{9}`}, {"b", `\d{9}(?P<rx>\d{7})`}}, 0, Ambiguous},
		{"two formats, one reading", "]C0R0000042000001", []RxProfile{label, {"again", label.Pattern}}, KindRxLabel, ""},
		{"empty number", "RX-", []RxProfile{{"a", `RX-(?P<rx>\d*)`}}, 0, BadValue},
		{"too long to be a label", strings.Repeat("Z", 129), []RxProfile{{"a", `(?P<rx>Z+)`}}, KindOpaque, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Scan
			r := rxDecoder(t, c.profiles...).Decode(&s, []byte(c.in), nil, vectorDay)
			if r.Kind != c.err || s.Kind != c.kind {
				t.Fatalf("%v %v", s.Kind, r)
			}
			if s.Kind == KindRxLabel && (s.IsMovement() || s.Rx.Rx == "" || s.Rx.Profile != c.profiles[0].Name) {
				t.Errorf("%+v", s.Report())
			}
		})
	}
	// A listed NDC and an Rx number of ten digits cannot be told apart.
	dir, err := ParseDirectory([]string{"0093-7214-10"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Rx: []RxProfile{digits}, Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"0093721410", "]C00093721410"} {
		if r := d.Decode(new(Scan), []byte(in), nil, vectorDay); r.Kind != Ambiguous {
			t.Errorf("%s: %v", in, r)
		}
	}
	if r := d.Decode(new(Scan), []byte("00093721410"), &Profile{BareDigits: "ndc11"}, vectorDay); r.Kind != Ambiguous {
		t.Errorf("%v", r)
	}
}

func TestRxConfig(t *testing.T) {
	for _, profiles := range [][]RxProfile{
		{{"", `(?P<rx>\d)`}}, {{"a", `(`}}, {{"a", `\d+`}}, {{"a", `(?P<rx>\d*)`}},
		{{"a", `R)|(?P<rx>\d`}}, {{"a", `(?P<rx>\d)`}, {"a", `(?P<rx>\d\d)`}},
	} {
		if _, err := NewDecoder(DecoderConfig{Rx: profiles}); err == nil || !strings.HasPrefix(err.Error(), "cannot use ") {
			t.Errorf("%v: %v", profiles, err)
		}
	}
}

// Nothing prints what may be PHI but Reveal and the JSON of a Report.
func TestRedaction(t *testing.T) {
	d := rxDecoder(t, RxProfile{"a", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`})
	var s Scan
	if r := d.Decode(&s, []byte("R7654321110099"), nil, vectorDay); !r.OK() {
		t.Fatal(r)
	}
	var log strings.Builder
	logger := slog.New(slog.NewJSONHandler(&log, timeless))
	logger.Info("x", "scan", s, "ptr", &s, "rx", s.Rx, "number", s.Rx.Rx, "report", s.Report())
	logger = slog.New(slog.NewTextHandler(&log, timeless))
	logger.Info("x", "scan", s, "ptr", &s, "rx", s.Rx, "number", s.Rx.Rx, "report", s.Report())
	j, err := json.Marshal(map[string]any{"scan": s, "ptr": &s, "rx": s.Rx})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		all += fmt.Sprintf(verb+verb+verb+verb+verb, s, &s, s.Rx, s.Rx.Rx, s.Report())
	}
	all += fmt.Sprintf("%x%X", s.Rx.Rx, s.Rx.Rx)
	for _, secret := range []string{"7654321", "0099", fmt.Sprintf("%x", "7654321")} {
		if strings.Contains(all, secret) {
			t.Errorf("%s is printed", secret)
		}
	}
	if s.Rx.Rx.Reveal() != "7654321" || s.Report().Rx["rx"] != "7654321" {
		t.Error("the number is lost")
	}
}

// A clone keeps its text when the Scan is used again.
func TestClone(t *testing.T) {
	dir := withDirectory(t, "0093-7214-10")
	var s Scan
	for _, in := range []string{"]d20100300937214106" + "21SN1\x1d1727123110LOT", hibcText("+A999P1/$$3280615LOTX/SSER9"), "]E30300937214106" + "12", "]C000937-214-10", "]Q1https://a.example/01/00300937214106/10/A%2FB"} {
		if r := dir.Decode(&s, []byte(in), nil, vectorDay); !r.OK() {
			t.Fatal(r)
		}
		before, err := json.Marshal(s.Report())
		if err != nil {
			t.Fatal(err)
		}
		c := s.Clone()
		dir.Decode(&s, []byte("]C0"+strings.Repeat("Z", 80)), nil, vectorDay)
		after, err := json.Marshal(c.Report())
		if err != nil || string(after) != string(before) || string(c.Element()) != in {
			t.Errorf("%s became %s", before, after)
		}
		if r := dir.Decode(c, []byte(in), nil, vectorDay); !r.OK() || string(c.Element()) != in {
			t.Errorf("a clone cannot be used again: %v", r)
		}
	}
	if c := new(Scan).Clone(); c.Element() != nil {
		t.Error("an empty clone has an element")
	}
}

// A Scan forgets the last payload entirely.
func TestReuse(t *testing.T) {
	var used Scan
	d := plainDecoder(t)
	for _, v := range vectors(t) {
		d.Decode(&used, latin1(v.In), nil, vectorDay)
		var fresh Scan
		r := d.Decode(&fresh, latin1(v.In), nil, vectorDay)
		a, err := json.Marshal(used.Report())
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(fresh.Report())
		if err != nil {
			t.Fatal(err)
		}
		if string(a) != string(b) || string(used.Element()) != string(fresh.Element()) {
			t.Errorf("%s (%v): %s\n%s", v.ID, r, a, b)
		}
		if !r.OK() && (fresh.Kind != KindNone || fresh.Element() != nil || fresh.IsMovement()) {
			t.Errorf("%s: a refused scan keeps content", v.ID)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	dir, err := ParseDirectory([]string{"0093-7214-10"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Directory: dir, Rx: []RxProfile{{"a", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`}}})
	if err != nil {
		t.Fatal(err)
	}
	var s Scan
	for _, in := range []string{
		"]d20100300937214106" + "21SN000123456\x1d17271130" + "10A1207",
		"0100300937214106" + "21SN000123456\x1d17271130" + "10A1207",
		"]E00300937214106", "300937214106", "]I110300937214103", "]E00300937214106|]e01727113010A",
		"]C0+A999TESTPRD11U", "]C00093-7214-10", "]C00093721410", "(01)00300937214106(10)A",
		"]Q1https://id.gs1.org/01/00312345678906/10/LOT42/21/SN0001?17=271231",
		"]d20100300937214106715000093721410", "]d20100300937214107", "SCANONCE-QTY-30", "ANSI 636000090002DL",
	} {
		data := []byte(in)
		d.Decode(&s, data, nil, vectorDay)
		if n := testing.AllocsPerRun(200, func() { d.Decode(&s, data, nil, vectorDay) }); n != 0 {
			t.Errorf("%q: %v allocations", in, n)
		}
	}
	var b Burst
	line := []byte("DCSSAMPLE")
	if n := testing.AllocsPerRun(100, func() { b.Absorb(line, time.Minute) }); n != 0 {
		t.Errorf("a burst allocates %v times", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	d := rxDecoder(t, RxProfile{"a", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`})
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			var s Scan
			for range 200 {
				lot := fmt.Sprintf("L%d", g)
				if r := d.Decode(&s, []byte("]d2010031234567890610"+lot), nil, vectorDay); !r.OK() || s.Lot != lot {
					t.Errorf("lot %q, want %q", s.Lot, lot)
				}
				if r := d.Decode(&s, []byte("]C0R1234567020001"), nil, vectorDay); !r.OK() || s.Rx.Store != "0001" {
					t.Errorf("%v", r)
				}
			}
		})
	}
	all.Wait()
}

// What a refusal tells on is at most an AIM identifier: three bytes that only look like one are payload, and
// may be a name or no text at all.
func TestNoPayloadInTheSymbology(t *testing.T) {
	d, err := NewDecoder(DecoderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var s Scan
	for in, want := range map[string]string{"]d\x00x": "", "]\xff\xfehello": "", "]Jo Smith": "", "]\x001abc": "", "]L2SOMETEXT": "]L2", "]D201003": "]D2", "]X0": "]X0"} {
		if r := d.Decode(&s, []byte(in), nil, Date{2026, 11, 29}); r.OK() || s.Symbology != want {
			t.Errorf("%q: symbology %q, refused %v; want %q", in, s.Symbology, !r.OK(), want)
		}
	}
}
