package capture

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// worstCase is a payload that is as dear as its kind can be.
type worstCase struct {
	name string
	in   []byte
}

// worstCases are of size bytes each. What stands in front makes the parser go the whole way.
func worstCases(size int) (all []worstCase) {
	add := func(name, prefix, unit string) {
		b := []byte(prefix)
		b = append(b, strings.Repeat(unit, size/len(unit)+1)...)
		all = append(all, worstCase{name, b[:size]})
	}
	const item, link = "0100312345678906", "https://a.example/01/00312345678906"
	add("GS", "]d2", "\x1d")
	add("GS behind an element", "]d2"+item, "\x1d")
	add("same predefined", "]d2", "2000")
	add("same variable", "]d2", "10A\x1d")
	add("same date", "]d2", "17271231")
	add("same GTIN", "]d2", item)
	add("same IBAN", "]d2", "8007GB29NWBK60161331926819\x1d")
	add("same GMN", "]d2", "80131987654Ad4X4bL5ttr2310c2K\x1d")
	add("same countries", "]d2", "423840276036250724\x1d")
	add("same long value", "]d2", "99"+strings.Repeat("A", 90)+"\x1d")
	add("same GTIN, bare", "", item)
	add("same lot, bare", item, "10A\x1d")
	add("substitute", "]d2", "10A|")
	add("long lot", "]d2"+item+"10", "01003123456789")
	add("angle brackets", "]d210", "<G")
	add("round brackets", "]d210", "(F")
	add("identifiers", "]d210", "]")
	add("digits", "", "1")
	add("ten valid UPCs", "", "307811506104")
	add("hyphens", "", "1-")
	add("line ends", "AB", "\n")
	add("opaque", "", "x")
	add("opaque, plain carrier", "]C0", "x")
	add("near an identifier", "]C0", "]C")
	add("near a command", "]C0", "SCANONCE-")
	add("add-on", "]E30307811506104", "1")
	add("composite", "]E00307811506104|]e0", "2000")
	add("ITF", "]I1", "40312345678904")
	add("brackets", "", "(99)A")
	add("brackets of an element again", "(01)00312345678906", "(10)A")
	add("open brackets", "(99)", "(")
	add("brackets that are no AI", "(99)A", "(1234")
	add("long number in brackets", "(", "1")
	add("URI", "https://a.example", "/01")
	add("URI of slashes", "https://a.example", "/")
	add("URI of pairs", "https://a.example/x", "/10/A")
	add("URI that may mean a GTIN", "https://a.example", "/gtin/1234567")
	add("URI of keys", "https://a.example", "/0/i/g")
	add("URI, packed", "https://id.gs1.org/", "A")
	add("URI escapes", link+"/10/", "%41")
	add("URI escapes in the query", link+"?240=", "%41")
	add("URI, others' parameters", link+"?", "a=1&")
	add("URI, empty parameters", link+"?", "&")
	add("URI, parameters without value", link+"?", "1&")
	add("URI, short parameters", link+"?", "a=&")
	add("URI, an attribute again", link+"/22/V/10/L/21/S?11=260101", "&17=271231")
	add("URI, a short attribute again", link+"/22/V/10/L/21/S?20=01", "&20=01")
	add("URI, a price again", link+"/22/V/10/L/21/S?", "3922=9&")
	add("HIBC", "+A999", "A")
	add("HIBC supplements", "+A999A1", "/S1")
	add("header", "@", "\n")
	add("header of spaces", "@", " ")
	add("STX and CR", "\x02", "\r")
	// HIBC again with its right check character, so that the supplements are read.
	b := []byte("+A999A1" + strings.Repeat("/SA", size/3))[:size-2]
	if b[len(b)-1] == '/' {
		b[len(b)-1] = 'A'
	}
	all = append(all, worstCase{"HIBC, checked", []byte(hibcText(string(b)))}, worstCase{"every AI", everyAI(size)})
	return all
}

// everyAI has as many different elements as fit.
func everyAI(size int) []byte {
	b := []byte("]d2")
	for i := 1; i <= ais.n; i++ {
		info, value := &ais.list[i], ""
		switch {
		case info.set == set82 && info.check == noCheck && info.num == 0 && info.min == 1 && info.flags&person == 0 && !slices.Contains([]string{"235", "420", "715", "7240"}, info.ai):
			value = "A\x1d"
		case info.flags&fixed != 0 && info.ai[0] == '3' && info.ai[3] == '0':
			value = "000001"
		}
		if value != "" && len(b)+len(info.ai)+len(value) <= size {
			b = append(append(b, info.ai...), value...)
		}
	}
	for len(b) < size {
		b = append(b, gs)
	}
	return b
}

// costDecoder has patterns that are dear to try.
func costDecoder(t testing.TB) *Decoder {
	t.Helper()
	dir, err := ParseDirectory([]string{"0093-7214-10", "0406-0512-01"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Directory: dir, Rx: []RxProfile{
		{"a", `(?P<rx>(\d|[A-Z])+)X`},
		{"b", `(?P<rx>(\d{1,7}){1,9})Y`},
		{"c", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fastest is the shortest time of many.
func fastest(d *Decoder, s *Scan, in []byte, p *Profile) time.Duration {
	best := time.Hour
	for range 50 {
		start := time.Now()
		d.Decode(s, in, p, vectorDay)
		best = min(best, time.Since(start))
	}
	return best
}

// No payload of 4096 bytes is out of line: the goal is 50 µs, the gate leaves room for a busy machine and the
// race detector. And the time is linear in the length: four times the bytes take at most about five times.
func TestWorstCases(t *testing.T) {
	d := costDecoder(t)
	p := &Profile{GSSubstitute: '|'}
	long, short := worstCases(4096), worstCases(1024)
	var s Scan
	for i, c := range long {
		if len(c.in) > 4096 || len(c.in) < 4000 {
			t.Fatalf("%s has %d bytes", c.name, len(c.in))
		}
		at4096, at1024, ratio := time.Hour, time.Hour, 0.0
		for try := range 40 { // a busy machine disturbs some
			at4096, at1024 = min(at4096, fastest(d, &s, c.in, p)), min(at1024, fastest(d, &s, short[i].in, p))
			// Half a microsecond goes to what does not depend on the length, and to the clock.
			ratio = float64(at4096) / float64(at1024+500*time.Nanosecond)
			if ratio <= 5 && (at4096 <= 50*time.Microsecond || try > 2) {
				break
			}
		}
		t.Logf("%-30s %8v, a quarter of it %8v, ratio %.1f  %s", c.name, at4096, at1024, ratio, d.Decode(&s, c.in, p, vectorDay).Kind)
		if at4096 > time.Millisecond {
			t.Errorf("%s takes %v", c.name, at4096)
		}
		if ratio > 6 {
			t.Errorf("%s: four times the length takes %.1f times as long", c.name, ratio)
		}
	}
}

// A pattern only sees texts of at most 128 bytes, and RE2 is linear in them.
func TestRxPatternsAreBounded(t *testing.T) {
	d := costDecoder(t)
	var s Scan
	for _, n := range []int{maxRxText, maxRxText + 1} {
		for _, unit := range []string{"1", "A", "1A"} {
			in := []byte("]C0" + strings.Repeat(unit, n)[:n])
			if best := fastest(d, &s, in, nil); best > time.Millisecond {
				t.Errorf("%d bytes of %q take %v", n, unit, best)
			}
			if s.Kind != KindOpaque {
				t.Errorf("%d bytes of %q are %v", n, unit, s.Kind)
			}
		}
	}
	if r := d.Decode(&s, []byte(strings.Repeat("A", maxRxText-1)+"X"), nil, vectorDay); !r.OK() || s.Kind != KindRxLabel {
		t.Errorf("%v %v", s.Kind, r)
	}
	if r := d.Decode(&s, []byte(strings.Repeat("A", maxRxText)+"X"), nil, vectorDay); !r.OK() || s.Kind != KindOpaque {
		t.Errorf("%v %v", s.Kind, r)
	}
}

// The AI is found by its digits, not by going through the table: the last row is as near as the first.
func TestAILookUpIsNoSearch(t *testing.T) {
	cost := func(ai string) time.Duration {
		text := []byte(ai + "000000")
		best := time.Hour
		for range 200 {
			start := time.Now()
			for range 100 {
				if i, _ := ais.find(text); i == noAI {
					t.Fatalf("%s is not found", ai)
				}
			}
			best = min(best, time.Since(start))
		}
		return best
	}
	for _, pair := range [][2]string{{"00", "99"}, {"3100", "8200"}, {"235", "717"}} {
		if first, last := cost(pair[0]), cost(pair[1]); last > 5*first {
			t.Errorf("%s takes %v, %s %v", pair[0], first/100, pair[1], last/100)
		}
	}
	if s, r := decode(t, string(everyAI(4096))); !r.OK() || len(elementsOf(s)) < 90 {
		t.Errorf("%v, %d elements", r, len(elementsOf(s)))
	}
	// The last row is far behind the first: a search would show.
	if ais.exact([]byte("99")) < 500 {
		t.Error("the table is too short for this test")
	}
}

// The label that DSCSA asks for costs under 1 µs on an idle core (see BenchmarkDecode); the gate leaves room.
func TestDSCSATime(t *testing.T) {
	d := costDecoder(t)
	in := []byte("]d20100300937214106" + "21SN000123456\x1d17271130" + "10A1207")
	var s Scan
	if best := fastest(d, &s, in, nil); best > 20*time.Microsecond {
		t.Errorf("%v", best)
	}
	if s.NDC11 != "00093721410" {
		t.Errorf("NDC %q", s.NDC11)
	}
}

// BenchmarkWorst tells what the dearest payloads of 4096 bytes cost.
func BenchmarkWorst(b *testing.B) {
	d := costDecoder(b)
	p := &Profile{GSSubstitute: '|'}
	for _, c := range worstCases(4096) {
		b.Run(strings.NewReplacer(" ", "_", ",", "", "'", "").Replace(c.name), func(b *testing.B) {
			var s Scan
			b.ReportAllocs()
			for b.Loop() {
				d.Decode(&s, c.in, p, vectorDay)
			}
		})
	}
}
