package capture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// declaredKinds reads the error kinds from their declaration.
func declaredKinds(t *testing.T) (kinds []ErrorKind) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "refusal.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := v.Type.(*ast.Ident); ok && id.Name == "ErrorKind" {
			s, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, ErrorKind(s))
		}
		return true
	})
	return kinds
}

// Every error kind has words, and a payload that meets it; what is told names a cause or what to do, and
// nothing of the payload.
func TestEveryKindOfRefusal(t *testing.T) {
	gun := &Profile{GunDigits: 2}
	cases := map[ErrorKind]struct {
		in string
		p  *Profile
		do string
	}{
		Empty:                {"\r\n", nil, "scan again"},
		UnsupportedSymbology: {"]L2SAMPLE", nil, "scan the product's own barcode"},
		UnsupportedFormat:    {"[)>\x1e06\x1d9N110375286414", nil, "scan the product's own barcode"},
		IDDocument:           {"ANSI 636001070002DL00410392", nil, "nothing of it is kept"},
		PHI:                  {"]d27253SAMPLE", nil, "Scan the product's own barcode"},
		CheckDigit:           {"]E00307811506105", nil, "Scan again"},
		CheckChar:            {"+A999TESTPRD11A", nil, "Scan again"},
		UnknownAI:            {"]d205SAMPLE", nil, "Scan again"},
		Truncated:            {"]d217271", nil, "scan again"},
		BadLength:            {"]d210SAMPLE-SAMPLE-SAMPLE-SAMPLE", nil, "separator between it and the next element"},
		BadCharset:           {"]d210SAM~PLE", nil, "gs_substitute"},
		ControlChar:          {"]d210SAM\x01PLE", nil, "interface settings"},
		BadDate:              {"]d217270431", nil, "set the item aside"},
		BadValue:             {"]d20100000000000000", nil, "Scan the product's own label"},
		DuplicateAI:          {"]d210SAMPLE\x1d10SIMPLE", nil, "one label at a time"},
		IllegalPair:          {"]d201003123456789063710", nil, "scan another code"},
		MissingSeparator:     {"]d210SAMPLE<GS>21X", nil, "set it to send the GS character"},
		Ambiguous:            {"04256212", nil, "set bare_digits"},
		Concatenated:         {"]E00307811506104]E00307811506104", nil, "suffix (CR)"},
		ProgrammingCode:      {"\x16M\rSAMPLE.", nil, "scan the item again"},
		BadNDC:               {"1234-567-89", nil, "Scan the manufacturer's barcode"},
		BadURI:               {"]Q1https://sample.example/01/00312345678906/17/271231", nil, "scan another code"},
		BadConfig:            {"]E00307811506104", gun, "check gun_digits"},
		TooLong:              {strings.Repeat("SAMPLE", 700), nil, "no label"},
	}
	declared := declaredKinds(t)
	if n := len(declared); n != 24 || len(cases) != n || len(kindMeanings) < n {
		t.Errorf("%d kinds declared, %d with a case, %d with a meaning", len(declared), len(cases), len(kindMeanings))
	}
	d := plainDecoder(t)
	for _, kind := range declared {
		c := cases[kind]
		if m := kind.Meaning(); m == "" || strings.HasSuffix(m, ".") {
			t.Errorf("%s means %q", kind, m)
		}
		var s Scan
		r := d.Decode(&s, []byte(c.in), c.p, vectorDay)
		if r.Kind != kind {
			t.Errorf("%q: %v, want %s", c.in, r, kind)
			continue
		}
		if !strings.Contains(r.Detail, c.do) {
			t.Errorf("%s does not say %q: %s", kind, c.do, r.Detail)
		}
		if strings.Contains(strings.ToUpper(r.Detail), "SAMPLE") {
			t.Errorf("%s repeats the payload: %s", kind, r.Detail)
		}
	}
	if ErrorKind("other").Meaning() != "" {
		t.Error("an unknown kind has a meaning")
	}
	if r := DocumentRefused(); r.Kind != IDDocument || r.Detail != detailID {
		t.Errorf("%v", r)
	}
}

// A lost separator is told by the names of what ran together.
func TestLostSeparatorByName(t *testing.T) {
	const item = "0100312345678906"
	for in, want := range map[string]string{
		"]d2" + item + "10LOT4217271231ABCDEFGHIJ":      detailLongLot,
		"]d2" + item + "21SN00010010203040510LOTX":      detailLongSerial,
		"]d2" + item + "240A" + strings.Repeat("B", 30): detailLongValue,
		"]d2" + item + "42284010Z9":                     detailLongValue,
	} {
		if _, r := decode(t, in); r != refuse(BadLength, want) {
			t.Errorf("%q: %v", in, r)
		}
	}
	for in, want := range map[string]string{
		item + "10LOT4221SN1":         "BATCH/LOT SERIAL",
		item + "21SN1" + "10LOT":      "SERIAL BATCH/LOT",
		item + "21SN9" + "17271231":   "SERIAL USE BY OR EXPIRY",
		item + "240REF30" + "12":      "ADDITIONAL ID VAR. COUNT",
		item + "10A" + "0100312":      "BATCH/LOT BATCH/LOT", // 10 stands in it
		"]d2" + item + "10LOT4221SN1": " ",
		"SCANONCE-SAMEAGAIN":          " ",
	} {
		s := accepted(t, in)
		if last, hidden := s.LostSeparator(); last+" "+hidden != want {
			t.Errorf("%q: %q hides %q, want %q", in, last, hidden, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for _, c := range []struct{ ai, value, want string }{
		{"17", "271231", "31 December 2027"},
		{"17", "280200", "all of February 2028"},
		{"11", "770101", "1 January 1977"},
		{"15", "760101", "1 January 2076"},
		{"7003", "2706302359", "30 June 2027, 23:59"},
		{"7006", "270601", "1 June 2027"},
		{"7007", "270601", "1 June 2027"},
		{"7007", "270601270630", "1 June 2027 to 30 June 2027"},
		{"7011", "2706010830", "1 June 2027, 08:30"},
		{"8008", "27060108", "1 June 2027, hour 08"},
		{"8008", "2706010830", "1 June 2027, 08:30"},
		{"8008", "270601083059", "1 June 2027, 08:30:59"},
		{"4324", "2706019999", "1 June 2027"},
		{"4324", "2706001200", "all of June 2027, 12:00"},
		{"3100", "000525", "525 kg"},
		{"3103", "000525", "0.525 kg"},
		{"3105", "000525", "0.00525 kg"},
		{"3105", "000000", "0.00000 kg"},
		{"3160", "123456", "123456 m³"},
		{"3372", "000150", "1.50 kg/m²"},
		{"3611", "000015", "1.5 gal (US)"},
		{"3353", "000015", "0.015 l"},
		{"3920", "29", "29"},
		{"3922", "29", "0.29"},
		{"3929", "1", "0.000000001"},
		{"3932", "840499", "4.99, currency 840"},
		{"3930", "9785", "5, currency 978"},
		{"3912", "978050", "0.50, currency 978"},
		{"3941", "0125", "12.5 %"},
		{"3950", "000125", "125"},
		{"4330", "001250-", "−12.50 °F"},
		{"4333", "002500", "25.00 °C"},
		{"8006", "003123456789060102", "piece 1 of 2 of 00312345678906"},
		{"30", "12", "the label's own figure, never the quantity of the scan"},
		{"02", "00312345678906", "what the logistic unit holds, not the item itself"},
		{"01", "00312345678906", ""}, {"10", "271231", ""}, {"7004", "12", ""}, {"4321", "1", ""}, {"8200", "https://a.example", ""},
		{"17", "27123", ""}, {"17", "", ""}, {"05", "1", ""}, {"17", "271331", ""}, {"7007", "270601271331", ""}, {"", "", ""},
	} {
		if got := Plain(c.ai, c.value, vectorDay); got != c.want {
			t.Errorf("(%s)%s: %q, want %q", c.ai, c.value, got, c.want)
		}
	}
	if (Date{}).Words() != "" || (Date{2027, 13, 1}).Words() != "" {
		t.Error("no date has words")
	}
}

// Whatever Decode accepts, Plain tells without failing.
func TestPlainOfEveryVector(t *testing.T) {
	told := 0
	for _, v := range vectors(t) {
		s, r := decode(t, string(latin1(v.In)))
		if !r.OK() {
			continue
		}
		s.AIs(func(ai, _, value string) bool {
			if Plain(ai, value, vectorDay) != "" {
				told++
			}
			return true
		})
		s.NDCReason()
	}
	if told < 50 {
		t.Errorf("only %d values were explained", told)
	}
}

func TestSymbologyName(t *testing.T) {
	for id, want := range map[string]string{
		"]d2": "GS1 DataMatrix", "]d1": "DataMatrix", "]C1": "GS1-128", "]C0": "Code 128", "]A7": "Code 39", "]E0": "EAN-13 or UPC",
		"]I1": "ITF", "]L2": "PDF417", "]X0": "", "": "", "]d": "", "d22": "", "]E9": "",
	} {
		if got := SymbologyName(id); got != want {
			t.Errorf("%s: %q", id, got)
		}
	}
}

func TestNDCReason(t *testing.T) {
	two := []string{"12345-678-90", "12345-6789-0"}
	for _, c := range []struct {
		in   string
		dir  []string // nil: none
		want string
	}{
		{"]d20100312345678906", nil, "there is no NDC directory"},
		{"]d20100312345678906", []string{"0093-7214-10"}, "lists none of the readings"},
		{"]d20100312345678906", two, "lists more than one"},
		{"]d20100312345678906" + "7150093721410", two, "name different packages"},
		{"]d20100312345678906", two[:1], "lists only this reading"},
		{"]C01234567890", two[:1], "lists only this reading"},
		{"]d20100312345678906" + "715012345067890", two, "element 715 gives it"},
		{"]d20100312345678906" + "7151234567890", two[:1], "lists only this reading"},
		{"]d20100312345678906" + "71501234567890", nil, "taken as 5-4-2"},
		{"]C0" + "12345-678-90", nil, "hyphens"},
		{"]C0" + "01234567890", nil, "taken as 5-4-2"},
		{"]d20190312345678909", nil, "variable measure"},
		{"]E05012345678900", nil, "not the prefix 03"},
		{"]d210A", nil, ""},
		{"SCANONCE-SAMEAGAIN", nil, ""},
		{hibcText("+A999P1"), nil, ""},
	} {
		var dir *Directory
		if c.dir != nil {
			var err error
			if dir, err = ParseDirectory(c.dir); err != nil {
				t.Fatal(err)
			}
		}
		d, err := NewDecoder(DecoderConfig{Directory: dir})
		if err != nil {
			t.Fatal(err)
		}
		var s Scan
		if r := d.Decode(&s, []byte(c.in), nil, vectorDay); !r.OK() {
			t.Fatal(r)
		}
		if got := s.NDCReason(); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%q with %v: %q, want %q", c.in, c.dir, got, c.want)
		}
	}
}

// The sheet's commands are all that capture knows, each with a title and words of its own.
func TestCommandWords(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Commands(1, 30) {
		if got, r := parseCommand(c.String()); !r.OK() || got != c {
			t.Errorf("%v: %v", c, r)
		}
		for _, words := range []string{c.String(), c.Title(), c.Meaning()} {
			if words == "" || seen[words] {
				t.Errorf("%v: %q is empty or told twice", c, words)
			}
			seen[words] = true
		}
	}
	if len(seen) != 3*(7+1+2) || !slices.Equal(Commands(), Commands(5)[:8]) {
		t.Errorf("%d words", len(seen))
	}
	if (Command{}).Title() != "" || (Command{}).Meaning() != "" {
		t.Error("no command has words")
	}
}

func TestRedacted(t *testing.T) {
	d := rxDecoder(t, RxProfile{"a", `R(?P<rx>\d{7})(?P<store>\d{4})`})
	var s Scan
	if r := d.Decode(&s, []byte("R76543210099"), nil, vectorDay); !r.OK() {
		t.Fatal(r)
	}
	rep := s.Report()
	hidden := rep.Redacted()
	if len(hidden.Rx) != 2 || hidden.Rx["rx"] != "[redacted]" || hidden.Rx["store"] != "[redacted]" || *hidden.RxProfile != "a" {
		t.Errorf("%v", hidden.Rx)
	}
	if rep.Rx["rx"] != "7654321" {
		t.Error("the report itself was changed")
	}
	if (Report{}).Redacted().Rx != nil {
		t.Error("no label has an Rx part")
	}
}
