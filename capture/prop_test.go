package capture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// label is what a medicine's label says, as a printer would write it.
type label struct{ ai, value string }

// genLabel draws GTIN, lot and serial with the elements that stand beside them on medicines, in any order.
// Lots and serials are of the characters that printers use.
func genLabel(t *rapid.T) []label {
	gtin := []byte(rapid.StringMatching(`0[0-9]{13}`).Draw(t, "gtin"))
	gtin[5] = '7'
	setCheckDigit(gtin)
	text := rapid.StringMatching(`[A-Z0-9-]{1,20}`)
	all := []label{{"10", text.Draw(t, "lot")}, {"21", text.Draw(t, "serial")}}
	if rapid.Bool().Draw(t, "has expiry") {
		all = append(all, label{"17", genDate(t, true)})
	}
	if rapid.Bool().Draw(t, "has production date") {
		all = append(all, label{"11", genDate(t, true)})
	}
	if rapid.Bool().Draw(t, "has count") {
		all = append(all, label{"30", rapid.StringMatching(`[0-9]{1,8}`).Draw(t, "count")})
	}
	all = rapid.Permutation(all).Draw(t, "order")
	return append([]label{{"01", string(gtin)}}, all...)
}

func genDate(t *rapid.T, wholeMonth bool) string {
	least := 1
	if wholeMonth {
		least = 0
	}
	return fmt.Sprintf("%02d%02d%02d", rapid.IntRange(0, 99).Draw(t, "year"), rapid.IntRange(1, 12).Draw(t, "month"), rapid.IntRange(least, 28).Draw(t, "day"))
}

// write encodes a label. The separators that it needs are left out where lost says so; needed is their number.
func write(all []label, lost func(n int) bool) (text string, needed int) {
	var b strings.Builder
	for i, l := range all {
		b.WriteString(l.ai + l.value)
		predefined := slices.Contains([]string{"01", "11", "17"}, l.ai)
		if predefined || i == len(all)-1 {
			continue
		}
		if !lost(needed) {
			b.WriteByte(gs)
		}
		needed++
	}
	return b.String(), needed
}

func value(all []label, ai string) string {
	for _, l := range all {
		if l.ai == ai {
			return l.value
		}
	}
	return ""
}

// A lost separator never yields a wrong lot or serial number in silence. Without AIM identifier the scan is
// flagged or refused when no separator is left. Whatever the carrier, a value is never cut where no separator
// was: what ran together stays together, or is refused.
func TestLostSeparatorIsNeverSilent(t *testing.T) {
	d := plainDecoder(t)
	silent, flagged, refusals := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		all := genLabel(t)
		_, needed := write(all, func(int) bool { return false })
		if needed == 0 {
			t.Fatal("two texts and no separator between them")
		}
		which := rapid.IntRange(0, needed-1).Draw(t, "lost separator")
		one, _ := write(all, func(n int) bool { return n == which })
		none, _ := write(all, func(int) bool { return true })
		for _, in := range []string{none, one, "]d2" + one, "]C1" + none} {
			var s Scan
			r := d.Decode(&s, []byte(in), nil, vectorDay)
			if !r.OK() {
				refusals++
				continue
			}
			if s.Flags.Has(FlagMissingSeparator) {
				flagged++
				continue
			}
			if in == none {
				t.Fatalf("%q: lot %q and serial %q, without a flag", in, s.Lot, s.Serial)
			}
			// Not flagged, since a separator or an identifier vouches for the scanner: each value ends at a
			// separator or at the end, so that nothing was guessed.
			silent++
			for _, e := range s.w.elems {
				info, to := &ais.list[e.ai], int(e.to)
				if info.flags&fixed == 0 && to != s.w.raw && s.w.buf[to] != gs {
					t.Fatalf("%q: %s was cut at %d", in, info.title, to)
				}
			}
		}
	})
	t.Logf("%d refused, %d flagged, %d kept whole", refusals, flagged, silent)
	if refusals == 0 || flagged == 0 || silent == 0 {
		t.Errorf("%d refused, %d flagged, %d kept whole: the samples are too narrow", refusals, flagged, silent)
	}
}

// With its separators a label reads as it was written, whatever the order, carrier and looks of its values.
func TestLabelRoundTrip(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		all := genLabel(t)
		text, _ := write(all, func(int) bool { return false })
		for _, carrier := range []string{"]d2", "]C1", "]Q3", "]J1", "]e0", ""} {
			var s Scan
			if r := d.Decode(&s, []byte(carrier+text), nil, vectorDay); r.Kind == Concatenated {
				continue // a value that holds 01 and the label's own GTIN
			} else if !r.OK() {
				t.Fatalf("%q: %v", carrier+text, r)
			}
			if s.GTIN != value(all, "01") || s.Lot != value(all, "10") || s.Serial != value(all, "21") || s.Flags.Has(FlagMissingSeparator) {
				t.Fatalf("%q: GTIN %q lot %q serial %q %v", carrier+text, s.GTIN, s.Lot, s.Serial, s.Flags.Names())
			}
			if got := len(elementsOf(&s)); got != len(all) {
				t.Fatalf("%q: %d elements, want %d", carrier+text, got, len(all))
			}
		}
	})
}

// calendar is another way to the same dates: package time, and the nearest century found by trying.
func calendar(yymmdd string, now int, wholeMonth bool) (day, last string, ok bool) {
	var yy, m, d int
	if _, err := fmt.Sscanf(yymmdd, "%2d%2d%2d", &yy, &m, &d); err != nil {
		return "", "", false
	}
	year := 0
	for y := now - 49; y <= now+50; y++ {
		if y%100 == yy {
			year = y
		}
	}
	if m < 1 || m > 12 {
		return "", "", false
	}
	first := time.Date(year, time.Month(m), 1, 0, 0, 0, 0, time.UTC)
	if d == 0 {
		return first.Format("2006-01"), first.AddDate(0, 1, -1).Format(time.DateOnly), wholeMonth
	}
	t := first.AddDate(0, 0, d-1)
	if t.Month() != first.Month() {
		return "", "", false
	}
	return t.Format(time.DateOnly), t.Format(time.DateOnly), true
}

// Dates agree with an independent reading, for every day that six digits can write and any year of today.
func TestDatesAgainstTheCalendar(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		now := Date{Year: rapid.IntRange(1990, 2150).Draw(t, "now"), Month: 6, Day: 15}
		digits := fmt.Sprintf("%02d%02d%02d", rapid.IntRange(0, 99).Draw(t, "year"), rapid.IntRange(0, 13).Draw(t, "month"), rapid.IntRange(0, 32).Draw(t, "day"))
		for _, c := range []struct {
			in         string
			wholeMonth bool
		}{
			{"]d20100312345678906" + "17" + digits, true},
			{"]d20100312345678906" + "7003" + digits + "1200", false},
			{hibcText("+A999P1/$$3" + digits + "L"), false},
			{hibcText("+A999P1/$$2" + digits[2:] + digits[:2] + "L"), false},
			{"]Q1https://a.example/01/00312345678906?17=" + digits, true},
			{"(01)00312345678906(17)" + digits, true},
		} {
			want, last, ok := calendar(digits, now.Year, c.wholeMonth)
			var s Scan
			r := d.Decode(&s, []byte(c.in), nil, now)
			if ok != r.OK() || !ok && r.Kind != BadDate {
				t.Fatalf("%q in %d: %v, want it accepted: %v", c.in, now.Year, r, ok)
			}
			if ok && (s.Expiry.String() != want || s.ExpiryLastDay.String() != last) {
				t.Fatalf("%q in %d: %v, last day %v, want %s, %s", c.in, now.Year, s.Expiry, s.ExpiryLastDay, want, last)
			}
		}
	})
}

// Every form of an HIBC label reads as it was written.
func TestHIBCRoundTrip(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		day := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, rapid.IntRange(0, 3000).Draw(t, "day"))
		hour := fmt.Sprintf("%02d", rapid.IntRange(0, 23).Draw(t, "hour"))
		whole := day.Format("2006-01-02")
		yyjjj := day.Format("06") + fmt.Sprintf("%03d", day.YearDay())
		date := rapid.SampledFrom([][2]string{
			{day.Format("0106"), day.Format("2006-01")}, {"2" + day.Format("010206"), whole}, {"3" + day.Format("060102"), whole},
			{"4" + day.Format("060102") + hour, whole}, {"5" + yyjjj, whole}, {"6" + yyjjj + hour, whole}, {"7", ""},
		}).Draw(t, "date")
		qty := rapid.SampledFrom([]int{-1, 0, 7, 99, 100, 99999}).Draw(t, "quantity")
		number := rapid.StringMatching(`[A-Z][A-Z0-9. -]{0,17}`).Draw(t, "lot or serial")
		serial := qty < 0 && rapid.Bool().Draw(t, "serial")
		form := "$$"
		switch {
		case serial:
			form = "$$+"
		case qty > 99:
			form += fmt.Sprintf("9%05d", qty)
		case qty >= 0:
			form += fmt.Sprintf("8%02d", qty)
		}
		secondary := form + date[0] + number
		primary := rapid.StringMatching(`[A-Z][A-Z0-9]{3}[A-Z0-9]{1,18}[0-9]`).Draw(t, "primary")
		for _, body := range []string{"+" + primary + "/" + secondary, "+" + secondary + "K"} {
			var s Scan
			in := hibcText(body)
			if r := d.Decode(&s, []byte(in), nil, vectorDay); !r.OK() {
				t.Fatalf("%q: %v", in, r)
			}
			alone := body[1] == '$'
			if serial && s.Serial != number || !serial && s.Lot != number || s.Expiry.String() != date[1] || s.HIBCData.Quantity != qty {
				t.Fatalf("%q: %+v", in, s.HIBCData)
			}
			if alone && (s.HIBC != "" || s.HIBCData.Link != "K") || !alone && s.HIBC != primary {
				t.Fatalf("%q: primary %q, link %q", in, s.HIBC, s.HIBCData.Link)
			}
		}
	})
}

// Retail numbers: one wrong digit anywhere, or two neighbours swapped that differ by other than five, is
// refused under every carrier.
func TestRetailCorruption(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		carrier := rapid.SampledFrom([]struct {
			id   string
			size int
		}{{"]E0", 13}, {"]E4", 8}, {"]I1", 14}, {"]I0", 14}, {"", 12}, {"", 13}, {"", 14}}).Draw(t, "carrier")
		b := []byte(rapid.StringMatching(fmt.Sprintf(`[0-9]{%d}`, carrier.size)).Draw(t, "number"))
		b[1] = '7'
		setCheckDigit(b)
		var s Scan
		if r := d.Decode(&s, append([]byte(carrier.id), b...), nil, vectorDay); !r.OK() {
			t.Fatalf("%s%s: %v", carrier.id, b, r)
		}
		i := rapid.IntRange(0, carrier.size-2).Draw(t, "position")
		wrong := slices.Clone(b)
		wrong[i] = '0' + (b[i]-'0'+byte(rapid.IntRange(1, 9).Draw(t, "shift")))%10
		swapped := slices.Clone(b)
		swapped[i], swapped[i+1] = b[i+1], b[i]
		if r := d.Decode(&s, append([]byte(carrier.id), wrong...), nil, vectorDay); r.Kind != CheckDigit {
			t.Fatalf("%s%s: %v", carrier.id, wrong, r)
		}
		differ := (int(b[i]) - int(b[i+1]) + 10) % 5
		if r := d.Decode(&s, append([]byte(carrier.id), swapped...), nil, vectorDay); (r.Kind == CheckDigit) != (differ != 0) {
			t.Fatalf("%s%s from %s: %v", carrier.id, swapped, b, r)
		}
	})
}
