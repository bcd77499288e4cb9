package capture

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// plainDecoder has no Rx profile and no directory.
func plainDecoder(t testing.TB) *Decoder {
	t.Helper()
	d, err := NewDecoder(DecoderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func decode(t testing.TB, in string) (*Scan, Refusal) {
	t.Helper()
	s := new(Scan)
	return s, plainDecoder(t).Decode(s, []byte(in), nil, vectorDay)
}

func accepted(t testing.TB, in string) *Scan {
	t.Helper()
	s, r := decode(t, in)
	if !r.OK() {
		t.Fatalf("%q refused: %v", in, r)
	}
	return s
}

func refused(t testing.TB, in string, kinds ...ErrorKind) {
	t.Helper()
	if _, r := decode(t, in); !slices.Contains(kinds, r.Kind) {
		t.Errorf("%q: got %q, want %v", in, r.Kind, kinds)
	}
}

func elementsOf(s *Scan) (out []string) {
	s.AIs(func(ai, _, value string) bool {
		out = append(out, ai+"="+strings.Clone(value))
		return true
	})
	return out
}

// encodeGS1 writes the elements of a scan as an element string.
func encodeGS1(s *Scan) string {
	var b strings.Builder
	b.WriteString("]d2")
	gap := false
	for _, e := range s.w.elems {
		if gap {
			b.WriteByte(gs)
		}
		info := &ais.list[e.ai]
		b.WriteString(info.ai)
		b.Write(s.w.buf[e.from:e.to])
		gap = info.flags&fixed == 0
	}
	return b.String()
}

func TestAITable(t *testing.T) {
	if ais.n >= maxAIs {
		t.Fatalf("%d AIs do not fit the table", ais.n)
	}
	// The count of the GS1 Syntax Dictionary, release 2026-01-27, ranges expanded.
	if ais.n != 541 {
		t.Errorf("%d AIs", ais.n)
	}
	sizes := map[string]int{}
	for i := 1; i <= ais.n; i++ {
		info := ais.list[i]
		if got := ais.exact([]byte(info.ai)); int(got) != i {
			t.Errorf("AI %s is found at %d, not %d", info.ai, got, i)
		}
		// All AIs with the same first two digits have the same length, else a string could not be parsed.
		if n, ok := sizes[info.ai[:2]]; ok && n != len(info.ai) {
			t.Errorf("AI %s: two lengths of AI with these first digits", info.ai)
		}
		sizes[info.ai[:2]] = len(info.ai)
		if info.title == "" || info.min < 1 || info.max < info.min || info.set == 0 {
			t.Errorf("AI %s is incomplete: %+v", info.ai, info)
		}
		if info.flags&fixed != 0 && (info.min != info.max || info.set != setN) {
			t.Errorf("AI %s is predefined but not of one length in digits", info.ai)
		}
		for _, q := range info.quals {
			for _, ai := range strings.Split(q, ",") {
				if ais.exact([]byte(ai)) == noAI {
					t.Errorf("AI %s has the unknown qualifier %s", info.ai, ai)
				}
			}
		}
		for _, pattern := range info.ex {
			if !slices.ContainsFunc(info.excluded, func(j uint16) bool { return aiMatches(ais.list[j].ai, pattern) }) {
				t.Errorf("AI %s excludes %s, which is nothing", info.ai, pattern)
			}
		}
	}
}

// The two first digits of predefined-length AIs (General Specifications, figure 7.8.5-2), as far as they
// are assigned. All others need a GS, whatever their format.
func TestPredefinedLength(t *testing.T) {
	predefined := map[string]uint8{"00": 20, "01": 16, "02": 16, "03": 16, "11": 8, "12": 8, "13": 8, "15": 8, "16": 8, "17": 8, "20": 4,
		"31": 10, "32": 10, "33": 10, "34": 10, "35": 10, "36": 10, "41": 16}
	for i := 1; i <= ais.n; i++ {
		info := ais.list[i]
		total, ok := predefined[info.ai[:2]]
		if got := info.flags&fixed != 0; got != ok {
			t.Errorf("AI %s: predefined is %v", info.ai, got)
		}
		if ok && total != uint8(len(info.ai))+info.max {
			t.Errorf("AI %s: %d characters, want %d", info.ai, uint8(len(info.ai))+info.max, total)
		}
	}
}

func TestAILengths(t *testing.T) {
	for _, c := range []struct {
		ai       string
		min, max uint8
	}{
		{"10", 1, 20}, {"21", 1, 20}, {"22", 1, 20}, {"235", 1, 28}, {"240", 1, 30}, {"253", 13, 30}, {"255", 13, 25},
		{"30", 1, 8}, {"37", 1, 8}, {"3909", 1, 15}, {"3919", 4, 18}, {"3943", 4, 4}, {"3955", 6, 6}, {"401", 4, 30},
		{"402", 17, 17}, {"421", 4, 12}, {"422", 3, 3}, {"423", 3, 15}, {"4326", 6, 6}, {"4330", 6, 7}, {"7003", 10, 10},
		{"7004", 1, 4}, {"7011", 6, 10}, {"7039", 4, 30}, {"7040", 4, 4}, {"715", 1, 20}, {"717", 1, 20}, {"7239", 3, 30},
		{"8003", 14, 30}, {"8006", 18, 18}, {"8008", 8, 12}, {"8013", 6, 25}, {"8019", 1, 10}, {"8030", 1, 90},
		{"8043", 18, 20}, {"90", 1, 30}, {"91", 1, 90}, {"99", 1, 90},
	} {
		info := ais.list[ais.exact([]byte(c.ai))]
		if info.min != c.min || info.max != c.max {
			t.Errorf("AI %s: %d to %d, want %d to %d", c.ai, info.min, info.max, c.min, c.max)
		}
	}
	for _, ai := range []string{"04", "05", "14", "18", "19", "23", "38", "232", "317", "3106", "358", "396", "3956", "428", "4327", "4334", "7012", "704", "718", "7260", "8015", "8021", "8044", "81", "8201", "88"} {
		if ais.exact([]byte(ai)) != noAI {
			t.Errorf("AI %s is not assigned", ai)
		}
	}
}

func TestPersonsAreRefused(t *testing.T) {
	var list []string
	for n := 4300; n <= 4319; n++ {
		list = append(list, fmt.Sprint(n))
	}
	for n := 7250; n <= 7259; n++ {
		list = append(list, fmt.Sprint(n))
	}
	for _, ai := range append(list, "8018") {
		refused(t, "]d20100312345678906"+ai+"1234", PHI)
		refused(t, "(01)00312345678906("+ai+")1234", PHI)
		refused(t, "https://a.example/01/00312345678906?"+ai+"=1234", PHI)
	}
	for i := 1; i <= ais.n; i++ {
		if info := ais.list[i]; (info.flags&person != 0) != slices.Contains(append(list, "8018"), info.ai) {
			t.Errorf("AI %s: person is %v", info.ai, info.flags&person != 0)
		}
	}
}

func TestGS1Traps(t *testing.T) {
	const item = "0100312345678906"
	for _, c := range []struct {
		name, in string
		kinds    []ErrorKind
	}{
		{"check digit", "]d20100312345678905", []ErrorKind{CheckDigit}},
		{"SSCC check digit", "]C100006141411234567891", []ErrorKind{CheckDigit}},
		{"GLN check digit", "]d24146141411234561", []ErrorKind{CheckDigit}},
		{"content check digit", "]d20200312345678905" + "3710", []ErrorKind{CheckDigit}},
		{"all zeros", "]d20200000000000000", []ErrorKind{BadValue}},
		{"lot of 21", "]d2" + item + "10" + strings.Repeat("A", 21), []ErrorKind{BadLength}},
		{"serial of 21", "]d2" + item + "21" + strings.Repeat("1", 21), []ErrorKind{BadLength}},
		{"426 without GS", "]d2" + item + "42684010Z", []ErrorKind{BadLength, BadCharset}},
		{"7003 without GS", "]d2" + item + "700327123112002112", []ErrorKind{BadLength}},
		{"8006 without GS", "]d28006003123456789060102" + "10A", []ErrorKind{BadLength}},
		{"letter in 30", "]d2" + item + "301X", []ErrorKind{BadCharset}},
		{"non-ASCII digit", "]d2010031234567890٣", []ErrorKind{BadCharset, Truncated}},
		{"non-ASCII date digit", "]d2" + item + "172712\xb23", []ErrorKind{BadCharset, Truncated}},
		{"space", "]d2" + item + "10A ", []ErrorKind{BadCharset}},
		{"tab inside", "]d2" + item + "10A\tB", []ErrorKind{ControlChar}},
		{"spelled GS", "]d2" + item + "10A<GS>21B", []ErrorKind{MissingSeparator}},
		{"spelled FNC1", "]d2" + item + "10A<FNC1>21B", []ErrorKind{MissingSeparator}},
		{"spelled GS where an AI should be", "]d2" + item + "<GS>10A", []ErrorKind{MissingSeparator}},
		{"01 and 37", "]d2" + item + "3710", []ErrorKind{IllegalPair}},
		{"01 and 8006", "]d2" + item + "8006003123456789060102", []ErrorKind{IllegalPair}},
		{"235 before 21", "]d2" + item + "235T\x1d21S", []ErrorKind{IllegalPair}},
		{"3100 and 3101", "]d2" + item + "31000000013101000010", []ErrorKind{IllegalPair}},
		{"422 and 426", "]d2" + item + "422840\x1d426840", []ErrorKind{IllegalPair}},
		{"two serials", "]d2" + item + "21A\x1d21a", []ErrorKind{DuplicateAI}},
		{"country", "]d2" + item + "422000", []ErrorKind{BadValue}},
		{"currency", "]d2802012\x1d39120001", []ErrorKind{BadValue}},
		{"piece 3 of 2", "]d28006003123456789060302", []ErrorKind{BadValue}},
		{"swallowed second scan", "]d2" + item + "10L" + item + "10L", []ErrorKind{Concatenated}},
		{"swallowed second scan, too long", "]d2" + item + "10LOT42" + item + "10LOT42", []ErrorKind{Concatenated}},
		{"swallowed second scan of 19", "01003123456789061701010110L" + item + "10", []ErrorKind{Concatenated, UnknownAI}},
		{"AIM identifier within", "]C1" + item + "10A]d221B", []ErrorKind{Concatenated}},
		{"only GS", "]d2\x1d\x1d", []ErrorKind{Empty}},
		{"stray letter", "]d2" + item + "A", []ErrorKind{UnknownAI}},
		{"half an AI", "]d2" + item + "70", []ErrorKind{Truncated}},
		{"GMN check pair", "]d280131987654Ad4X4bL5ttr2310c2L", []ErrorKind{CheckChar}},
		{"IBAN check", "]d2" + "8007DE88370400440532013000", []ErrorKind{CheckDigit}},
		{"MUDI of digits", "]d2" + "8014123456", []ErrorKind{CheckChar, BadValue}},
	} {
		t.Run(c.name, func(t *testing.T) { refused(t, c.in, c.kinds...) })
	}
	for name, in := range map[string]string{
		"requisites are not asked for": "]d210A",
		"GMN":                          "]d280131987654Ad4X4bL5ttr2310c2K",
		"IBAN":                         "]d28007DE89370400440532013000",
		"same value twice":             "]d2" + item + "10A\x1d10A",
		"same element, GTIN last":      "]d210A\x1d" + item + item,
		"day 00 of a due date":         "]d212280200",
		"negative temperature":         "]d24330001250-",
		"two countries":                "]d2" + item + "423840276",
		"many GS":                      "]d2\x1d\x1d" + item + "\x1d\x1d10A\x1d\x1d",
	} {
		if _, r := decode(t, in); !r.OK() {
			t.Errorf("%s: %q refused: %v", name, in, r)
		}
	}
}

// The serial must not be swallowed into the lot, nor split out of it.
func TestSplitOnlyBySeparator(t *testing.T) {
	s := accepted(t, "]d2010031234567890610A21B\x1d2117X")
	if s.Lot != "A21B" || s.Serial != "17X" {
		t.Errorf("lot %q, serial %q", s.Lot, s.Serial)
	}
	if s.Flags.Has(FlagMissingSeparator) {
		t.Error("flagged although a GS was sent")
	}
	for in, want := range map[string]bool{
		"010031234567890610LOT4221SN1":        true,
		"010031234567890610A17271231":         true,
		"010031234567890610A172712":           false,
		"010031234567890610A3012":             true,
		"010031234567890610A30X":              false,
		"010031234567890610A0100312345":       true, // "10" hides in it
		"010031234567890610LOT":               false,
		"01003123456789061721" + "12" + "31":  false, // ends with a predefined length
		"010031234567890610A\x1d21LOT4221SN1": false,
		"]d2010031234567890610LOT4221SN1":     false,
		"10LOT4221SN1\x1d0100312345678906":    false,
	} {
		if s := accepted(t, in); s.Flags.Has(FlagMissingSeparator) != want {
			t.Errorf("%q: flagged %v", in, !want)
		}
	}
}

func TestGSSubstitute(t *testing.T) {
	d := plainDecoder(t)
	for _, c := range []struct {
		in  string
		sub byte
		lot string
		err ErrorKind
	}{
		{"]d2010031234567890610A|21B", '|', "A", ""},
		{"]d2|010031234567890610A||21B|", '|', "A", ""},
		{"]d2010031234567890610A\x1d21B", '|', "A", ""},
		{"10A~0100312345678906", '~', "A", ""},
		{"]d20100312345678906172712|10A", '|', "", Truncated},
		{"]d2010031234567890610A|21B", '#', "", BadCharset},
		{"]d2010031234567890610A%21B", '%', "", BadConfig},
		{"]d2010031234567890610A", '\r', "", BadConfig},
		{"]d2010031234567890610A\xa721B", 0xa7, "A", ""},
	} {
		var s Scan
		r := d.Decode(&s, []byte(c.in), &Profile{GSSubstitute: c.sub}, vectorDay)
		if r.Kind != c.err || s.Lot != c.lot {
			t.Errorf("%q: %q %v", c.in, s.Lot, r)
		}
	}
	// Text that only holds the character is not GS1.
	var s Scan
	if r := d.Decode(&s, []byte("RX|77"), &Profile{GSSubstitute: '|'}, vectorDay); !r.OK() || s.Kind != KindOpaque {
		t.Errorf("%v %v", s.Kind, r)
	}
}

func TestCapsLock(t *testing.T) {
	refused(t, "]D20100312345678906", UnsupportedSymbology)
	refused(t, "]c10100312345678906", UnsupportedSymbology)
	refused(t, "]e04006381333931", Ambiguous) // would be order number 6381333931
	refused(t, "]e00307811506104", Truncated)
	if s := accepted(t, "]e04006381333932"); s.IsMovement() {
		t.Error("an order number is no item")
	}
}

func genValue(t *rapid.T, info *aiInfo) string {
	chars := "0123456789"
	switch info.set {
	case set82:
		chars = "!\"%&'()*+,-./0123456789:;<=>?ABCXYZ_abcxyz"
	case set39:
		chars = "#-/0123456789ABCXYZ"
	case set64:
		chars = "-_0123456789ABCXYZabcxyz"
	}
	n := rapid.IntRange(int(info.min), int(info.max)).Draw(t, "length")
	date := func(month0 bool) string {
		d := Date{Year: rapid.IntRange(1977, 2076).Draw(t, "year"), Month: rapid.IntRange(1, 12).Draw(t, "month")}
		low := 1
		if month0 {
			low = 0
		}
		d.Day = rapid.IntRange(low, daysIn(d.Year, d.Month)).Draw(t, "day")
		return fmt.Sprintf("%02d%02d%02d", d.Year%100, d.Month, d.Day)
	}
	hour := func() string {
		return fmt.Sprintf("%02d%02d", rapid.IntRange(0, 23).Draw(t, "hour"), rapid.IntRange(0, 59).Draw(t, "minute"))
	}
	either := func(a, b string) string { return rapid.SampledFrom([]string{a, b}).Draw(t, "form") }
	switch info.check {
	case checkDate0:
		return date(true)
	case checkDate:
		return date(false)
	case checkDateTime:
		return date(false) + hour()
	case checkDate0Time:
		return date(true) + either(hour(), "9999")
	case checkDateRange:
		return date(false) + either("", date(false))
	case checkDateOptTime:
		return date(false) + either("", hour())
	case checkProdTime:
		return date(false) + hour()[:2] + either("", hour()[2:])
	case checkYesNo:
		return either("0", "1")
	case checkMedia:
		return either("07", "99")
	case checkRoll:
		return "00120003400510"
	case checkIBAN:
		return "DE89370400440532013000"
	case checkGMN, checkMUDI:
		return "1987654Ad4X4bL5ttr2310c2K"
	case checkMinus:
		return "001250" + either("", "-")
	case checkCountries:
		return "840" + either("", "276")
	case checkPercent:
		return either("A%20B", "AB")
	}
	b := make([]byte, n)
	for i := range b {
		set := chars
		if i < int(info.num) {
			set = "0123456789"
		}
		b[i] = set[rapid.IntRange(0, len(set)-1).Draw(t, "char")]
	}
	switch info.check {
	case checkCountry1, checkCountry999:
		copy(b, "840")
	case checkCurrency:
		copy(b, "978")
	case checkNoZero:
		b[0] = '7'
	case checkZeroFirst:
		b[0] = '0'
	case checkPieces:
		copy(b[14:], "0203")
	case checkImporter:
		b[3] = 'z'
	}
	if k := int(info.key); k > 0 {
		if info.flags&gtinKey != 0 {
			b[3] = '7'
		}
		setCheckDigit(b[:k])
	}
	return string(b)
}

func setCheckDigit(b []byte) {
	for c := byte('0'); c <= '9'; c++ {
		if b[len(b)-1] = c; validMod10(b) {
			return
		}
	}
}

// Any valid elements in any order come back as they were, with every carrier that has AIs, and from
// brackets; and what is re-encoded reads the same.
func TestElementsRoundTrip(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		var want []string
		var raw, printed strings.Builder
		var used aiSet
		raw.WriteString(rapid.SampledFrom([]string{"]d2", "]C1", "]Q3", "]e0", "]J1"}).Draw(t, "carrier"))
		gap := false
		for range rapid.IntRange(1, 8).Draw(t, "elements") {
			i := uint16(rapid.IntRange(1, ais.n).Draw(t, "ai"))
			info := &ais.list[i]
			if used.has(i) || info.flags&person != 0 || info.ai == "715" || slices.ContainsFunc(info.excluded, used.has) {
				continue
			}
			used.add(i)
			v := genValue(t, info)
			if spelledSeparator([]byte(v)) || strings.Contains(v, "(") {
				continue
			}
			if gap || rapid.Bool().Draw(t, "needless GS") {
				raw.WriteByte(gs)
			}
			raw.WriteString(info.ai + v)
			printed.WriteString("(" + info.ai + ")" + v)
			gap = info.flags&fixed == 0
			want = append(want, info.ai+"="+v)
		}
		if len(want) == 0 {
			return
		}
		var a, b, c Scan
		if r := d.Decode(&a, []byte(raw.String()), nil, vectorDay); !r.OK() && r.Kind != Ambiguous {
			t.Fatalf("%q refused: %v", raw.String(), r)
		} else if r.Kind == Ambiguous {
			return // 13 digits under ]e0
		}
		if got := elementsOf(&a); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if r := d.Decode(&b, []byte(encodeGS1(&a)), nil, vectorDay); !r.OK() || !slices.Equal(elementsOf(&b), want) {
			t.Fatalf("re-encoded: %v %v", elementsOf(&b), r)
		}
		if r := d.Decode(&c, []byte(printed.String()), nil, vectorDay); !r.OK() || !slices.Equal(elementsOf(&c), want) {
			t.Fatalf("printed %q: %v %v", printed.String(), elementsOf(&c), r)
		}
		if a.GTIN != c.GTIN || a.Lot != c.Lot || a.Serial != c.Serial || a.Expiry != c.Expiry || a.Flags != c.Flags {
			t.Fatalf("printed reads differently: %+v %+v", a.Report(), c.Report())
		}
	})
}

// One wrong digit anywhere in a GTIN is refused.
func TestGTINCorruption(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(rapid.StringMatching(`[1-9][0-9]{13}`).Draw(t, "gtin"))
		setCheckDigit(b)
		d := plainDecoder(&testing.T{})
		var s Scan
		if r := d.Decode(&s, append([]byte("]d201"), b...), nil, vectorDay); !r.OK() {
			t.Fatalf("%s refused: %v", b, r)
		}
		i := rapid.IntRange(0, 13).Draw(t, "position")
		b[i] = '0' + (b[i]-'0'+byte(rapid.IntRange(1, 9).Draw(t, "shift")))%10
		for _, prefix := range []string{"]d201", "]I1", "", "(01)", "]Q1https://a.example/01/"} {
			if r := d.Decode(&s, append([]byte(prefix), b...), nil, vectorDay); r.Kind != CheckDigit {
				t.Fatalf("%s%s: %v", prefix, b, r)
			}
		}
	})
}

func TestExclusionsBothWays(t *testing.T) {
	for i := 1; i <= ais.n; i++ {
		for _, j := range ais.list[i].excluded {
			if !slices.Contains(ais.list[j].excluded, uint16(i)) {
				t.Errorf("%s excludes %s but not the other way", ais.list[i].ai, ais.list[j].ai)
			}
		}
	}
	pair := func(a, b string) bool {
		return slices.Contains(ais.list[ais.exact([]byte(a))].excluded, ais.exact([]byte(b)))
	}
	for _, p := range [][2]string{{"01", "02"}, {"01", "03"}, {"01", "37"}, {"01", "255"}, {"01", "8006"}, {"21", "235"}, {"02", "8026"},
		{"3100", "3105"}, {"3920", "3939"}, {"3950", "8005"}, {"420", "421"}, {"8006", "8026"}, {"4330", "4331"}, {"7240", "03"}, {"3900", "8111"}} {
		if !pair(p[0], p[1]) {
			t.Errorf("%s and %s may stand together", p[0], p[1])
		}
	}
	if pair("02", "37") || pair("01", "10") || pair("3100", "3200") {
		t.Error("a legal pair is excluded")
	}
}

func TestAIsStops(t *testing.T) {
	s := accepted(t, "]d20100312345678906172712311010A")
	var titles []string
	s.AIs(func(_, title, _ string) bool {
		titles = append(titles, title)
		return len(titles) < 2
	})
	if !slices.Equal(titles, []string{"GTIN", "USE BY OR EXPIRY"}) {
		t.Errorf("%v", titles)
	}
	new(Scan).AIs(func(_, _, _ string) bool { t.Error("an empty Scan has elements"); return false })
}
