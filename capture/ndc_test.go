package capture

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func withDirectory(t testing.TB, ndcs ...string) *Decoder {
	t.Helper()
	dir, err := ParseDirectory(ndcs)
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDirectoryDecides(t *testing.T) {
	for _, c := range []struct {
		name  string
		dir   []string
		in    string
		ndc11 string
		flags Flags
	}{
		{"4-4-2", []string{"0093-7214-10"}, "]E00300937214106", "00093721410", 0},
		{"5-3-2", []string{"00937-214-10"}, "]E00300937214106", "00937021410", 0},
		{"5-4-1", []string{"00937-2141-0"}, "]E00300937214106", "00937214100", 0},
		{"padded 5-4-2", []string{"00937-0214-10"}, "]E00300937214106", "00937021410", 0},
		{"padded 6-4-2", []string{"000093-7214-10"}, "]E00300937214106", "00093721410", 0},
		{"star", []string{"00937-*214-10"}, "]E00300937214106", "00937021410", 0},
		{"not listed", []string{"0406-0512-01"}, "]E00300937214106", "", FlagNDCUnresolved},
		{"two listed", []string{"0093-7214-10", "00937-2141-0"}, "]E00300937214106", "", FlagNDCAmbiguous},
		{"six-digit labeler lists no ten digits", []string{"100937-2141-00"}, "]E00300937214106", "", FlagNDCUnresolved},
		{"carton", []string{"0093-7214-10"}, "]I110300937214103", "00093721410", 0},
		{"bare ten digits", []string{"0093-7214-10"}, "]C00093721410", "00093721410", 0},
		{"bracketed", []string{"0093-7214-10"}, "(01)00300937214106", "00093721410", 0},
		{"link", []string{"0093-7214-10"}, "https://a.example/01/00300937214106", "00093721410", 0},
		{"ITIP", []string{"0093-7214-10"}, "]d28006003009372141060101", "00093721410", 0},
		{"two numbers without hyphens", []string{"0093-7214-10", "12345-678-90"}, "]d201003009372141067151234567890", "", FlagNDCAmbiguous},
		{"AI 715 wins", []string{"0093-7214-10"}, "]d201003009372141067150093-7214-10", "00093721410", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s Scan
			r := withDirectory(t, c.dir...).Decode(&s, []byte(c.in), nil, vectorDay)
			if !r.OK() || s.NDC11 != c.ndc11 || s.Flags != c.flags || s.NDC10 != "0093721410" {
				t.Fatalf("%v: %s, %v", r, s.NDC11, s.Flags.Names())
			}
			if c.ndc11 == "" && s.NDC12 != "" || c.ndc11 != "" && s.NDC12 != "0"+c.ndc11 {
				t.Errorf("12 digits: %q", s.NDC12)
			}
			if want := [3]string{"00093721410", "00937021410", "00937214100"}; s.Candidates11 != want || s.NCandidates != 3 {
				t.Errorf("candidates %v", s.Candidates11)
			}
			if s.IsMovement() != (s.GTIN != "" || s.NDC11 != "") {
				t.Errorf("movement: %v", s.IsMovement())
			}
		})
	}
}

// Without a directory a scan is accepted with its candidates and the GTIN, and says that it is unresolved.
func TestNoDirectory(t *testing.T) {
	s := accepted(t, "]E00300937214106")
	if s.NDC() != "" || s.Flags != FlagNDCUnresolved || s.GTIN != "00300937214106" || !s.IsMovement() {
		t.Errorf("%+v", s.Report())
	}
	if s := accepted(t, "]C00093721410"); s.IsMovement() {
		t.Error("ten digits without a directory name no item")
	}
}

func TestWhatCarriesAnNDC(t *testing.T) {
	for in, want := range map[string]string{
		"300937214106":      "0093721410", // UPC-A: 3 is its first digit
		"0300937214106":     "0093721410",
		"3400930000007":     "", // EAN-13 of France
		"]E03400930000007":  "",
		"]I190300937214109": "", // variable measure
		"]I180300937214102": "0093721410",
		"5012345678900":     "",
		"]E496385074":       "",
	} {
		if s := accepted(t, in); s.NDC10 != want {
			t.Errorf("%s: NDC %q, want %q", in, s.NDC10, want)
		}
	}
}

func TestNDCText(t *testing.T) {
	for _, c := range []struct {
		in, ndc11, ndc12 string
		err              ErrorKind
	}{
		{"0093-7214-10", "00093721410", "000093721410", ""},
		{"00937-214-10", "00937021410", "000937021410", ""},
		{"00937-2141-0", "00937214100", "000937214100", ""},
		{"00093-7214-10", "00093721410", "000093721410", ""},
		{"*0093-7214-10", "00093721410", "000093721410", ""},
		{"12345-*678-09", "12345067809", "012345067809", ""},
		{"12345-0678-*9", "12345067809", "012345067809", ""},
		{"]A0100000-0001-02", "", "100000000102", ""},
		{"099999-0001-02", "99999000102", "099999000102", ""},
		{"1234-567-89", "", "", BadNDC},
		{"123-45-6789", "", "", BadNDC}, // a social security number
		{"555-123-4567", "", "", BadNDC},
		{"12345-6*78-09", "", "", BadNDC},
		{"*2345-*678-09", "", "", BadNDC},
		{"1234-*678-09", "", "", BadNDC},
		{"00000-0000-00", "", "", BadValue},
	} {
		s, r := decode(t, c.in)
		if r.Kind != c.err || s.NDC11 != c.ndc11 || s.NDC12 != c.ndc12 || r.OK() && s.Kind != KindNDCText {
			t.Errorf("%s: %q %q %v", c.in, s.NDC11, s.NDC12, r)
		}
	}
	for _, in := range []string{"1-2-3", "12345-678", "12345--6789-0", "-1234-5678-90", "12345-678-9O", "1234-5678-90-1", "１２３４５-678-90"} {
		if s := accepted(t, in); s.Kind != KindOpaque {
			t.Errorf("%q is %s", in, s.Kind)
		}
	}
}

func TestBareDigits(t *testing.T) {
	d := plainDecoder(t)
	for _, c := range []struct {
		in, profile string
		kind        Kind
		err         ErrorKind
	}{
		{"00093721410", "", 0, Ambiguous},
		{"00093721410", "ndc11", KindNDCText, ""},
		{"00093721410", "ean8", 0, Ambiguous},
		{"96385074", "", 0, Ambiguous},
		{"96385074", "ean8", KindEANUPC, ""},
		{"96385075", "ean8", 0, CheckDigit},
		{"00000000", "ean8", 0, BadValue},
		{"00000000000", "ndc11", 0, BadValue},
		{"1234567", "", KindOpaque, ""},
		{"123456789012345", "", KindOpaque, ""},
		{"]C000093721410", "", KindNDCText, ""},
		{"]C096385074", "", KindOpaque, ""},
	} {
		var s Scan
		r := d.Decode(&s, []byte(c.in), &Profile{BareDigits: c.profile}, vectorDay)
		if r.Kind != c.err || s.Kind != c.kind {
			t.Errorf("%s with %q: %v %v", c.in, c.profile, s.Kind, r)
		}
		if s.Kind == KindNDCText && !s.Flags.Has(FlagAssumed542) {
			t.Errorf("%s is not flagged as assumed", c.in)
		}
	}
}

func TestNationalNDC(t *testing.T) {
	for _, c := range []struct {
		in, ndc11, ndc12 string
		flags            Flags
		err              ErrorKind
	}{
		{"]d27150093-7214-10", "00093721410", "000093721410", 0, ""},
		{"]d2715000093721410", "00093721410", "000093721410", 0, ""},
		{"]d271500093721410", "00093721410", "000093721410", FlagAssumed542, ""},
		{"]d2715100001000102", "", "100001000102", 0, ""},
		{"]d27150093721410", "", "", FlagNDCUnresolved | FlagNoItemID, ""},
		{"]d201003009372141067150093721410", "", "", FlagNDCUnresolved, ""},
		// The order of the elements does not matter.
		{"]d2715000093721410\x1d0100300937214106", "00093721410", "000093721410", 0, ""},
		// The two numbers name different packages: AI 715 stands, and it is said.
		{"]d20100300937214106715012345067890", "12345067890", "012345067890", FlagNDCAmbiguous, ""},
		{"]d20100300937214106715100001000102", "", "100001000102", FlagNDCAmbiguous, ""},
		{"]d201003009372141067151234567890", "", "", FlagNDCAmbiguous, ""},
		{"]d2715123", "", "", 0, BadNDC},
		{"]d2715ABC", "", "", 0, BadNDC},
		{"]d27151234-567-89", "", "", 0, BadNDC},
		{"]d2715000000000000", "", "", 0, BadValue},
	} {
		s, r := decode(t, c.in)
		if r.Kind != c.err || s.NDC11 != c.ndc11 || s.NDC12 != c.ndc12 || s.Flags != c.flags {
			t.Errorf("%q: %q %q %v %v", c.in, s.NDC11, s.NDC12, s.Flags.Names(), r)
		}
	}
}

func TestLoadDirectory(t *testing.T) {
	dir, err := LoadDirectory(strings.NewReader("# packages\r\n\r\n0093-7214-10\r\n  0406-0512-01  \n0093-7214-10\n100001-0001-02"))
	if err != nil {
		t.Fatal(err)
	}
	if dir.Len() != 3 {
		t.Errorf("%d packages, want 3", dir.Len())
	}
	for bad, line := range map[string]string{
		"0093-7214-10\n0093721410\n": "line 2",
		"\n\n1234-567-89":            "line 3",
		"00000-0000-00":              "line 1",
		strings.Repeat("x", 100_000): "directory",
	} {
		_, err := LoadDirectory(strings.NewReader(bad))
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), line) || !strings.Contains(err.Error(), "hyphen") {
			t.Errorf("%v", err)
		}
	}
	if _, err := ParseDirectory([]string{"0093721410"}); err == nil {
		t.Error("an NDC without hyphens was taken")
	}
	var none *Directory
	if none.Len() != 0 {
		t.Error("nil directory is not empty")
	}
}

// The packed index answers as a plain map of all listed packages does.
func TestDirectoryIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.StringMatching(`[0-3]{10}`)
		shapes := [][3]int{{4, 4, 2}, {5, 3, 2}, {5, 4, 1}}
		listed := map[string]uint8{}
		var list []string
		for range rapid.IntRange(0, 40).Draw(t, "n") {
			n, form := digits.Draw(t, "ndc"), rapid.IntRange(0, 2).Draw(t, "form")
			if strings.Trim(n, "0") == "" {
				continue
			}
			w := shapes[form]
			list = append(list, n[:w[0]]+"-"+n[w[0]:w[0]+w[1]]+"-"+n[w[0]+w[1]:])
			listed[n] |= 1 << form
		}
		dir, err := ParseDirectory(list)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(list)
		if dir.Len() != len(slices.Compact(list)) {
			t.Fatalf("%d packages of %v", dir.Len(), list)
		}
		ask := digits.Draw(t, "absent")
		for n := range listed {
			if got := dir.forms((*[10]byte)([]byte(n))); got != listed[n] {
				t.Fatalf("%s: %b, want %b", n, got, listed[n])
			}
		}
		if got := dir.forms((*[10]byte)([]byte(ask))); got != listed[ask] {
			t.Fatalf("%s: %b, want %b", ask, got, listed[ask])
		}
	})
}

func TestLargeDirectory(t *testing.T) {
	var b bytes.Buffer
	for i := range 200_000 {
		fmt.Fprintf(&b, "%05d-%04d-%d\n", 10000+i%50000, i/7%10000, i%10)
	}
	dir, err := LoadDirectory(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { dir.forms((*[10]byte)([]byte("1000000000"))) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	if got := dir.forms((*[10]byte)([]byte("1000000000"))); got != 1<<form541 {
		t.Errorf("forms %b", got)
	}
}
