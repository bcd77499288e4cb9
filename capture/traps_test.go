package capture

import (
	"strings"
	"testing"
)

// The mistakes that other readers of these labels make, each shown on a label that they read wrongly.
func TestTrapsOfOtherReaders(t *testing.T) {
	const item = "0100312345678906"
	t.Run("no check digit test", func(t *testing.T) {
		for _, in := range []string{"]d20100312345678907", "]E00307811506105", "]I140312345678905", "300450549108", "https://a.example/01/00312345678907", "(01)00312345678907", "]d200006141411234567891"} {
			refused(t, in, CheckDigit)
		}
		refused(t, "+A999TESTPRD11A", CheckChar)
	})
	t.Run("no test of characters and lengths", func(t *testing.T) {
		refused(t, "]d2"+item+"10LOT#1", BadCharset)
		refused(t, "]d2"+item+"10LOT 1", BadCharset)
		refused(t, "]d2"+item+"10"+strings.Repeat("L", 21), BadLength)
		refused(t, "]d2"+item+"21\x1d10L", BadLength)
		refused(t, "]d2"+item+"30X", BadCharset)
	})
	t.Run("-00 left in a date", func(t *testing.T) {
		s := accepted(t, "]d2"+item+"17280200")
		if s.Expiry.String() != "2028-02" || s.ExpiryLastDay.String() != "2028-02-29" || strings.Contains(s.ExpiryLastDay.String()+s.Expiry.String(), "-00") {
			t.Errorf("%s, last day %s", s.Expiry, s.ExpiryLastDay)
		}
		// Nor rolled into another month, as package time does.
		for _, in := range []string{"17280231", "17270229", "17270431", "17271301", "17270001"} {
			refused(t, "]d2"+item+in, BadDate)
		}
		// Nor with package time's century, which turns at 69.
		if s := accepted(t, "]d2"+item+"17700131"); s.Expiry.String() != "2070-01-31" {
			t.Errorf("%s", s.Expiry)
		}
	})
	t.Run("the serial swallowed into the lot", func(t *testing.T) {
		if s := accepted(t, "]d2"+item+"10LOT42\x1d21SN1"); s.Lot != "LOT42" || s.Serial != "SN1" {
			t.Errorf("lot %q, serial %q", s.Lot, s.Serial)
		}
		if s := accepted(t, item+"10LOT4221SN1"); s.Serial != "" || !s.Flags.Has(FlagMissingSeparator) {
			t.Errorf("lot %q, serial %q, %v", s.Lot, s.Serial, s.Flags.Names())
		}
		// Nor an element cut out of a value that only looks like it.
		if s := accepted(t, "]d2"+item+"10A1721\x1d211021"); s.Lot != "A1721" || s.Serial != "1021" {
			t.Errorf("lot %q, serial %q", s.Lot, s.Serial)
		}
	})
	t.Run("0.29 × 100 is 28", func(t *testing.T) {
		s := accepted(t, "]d2"+item+"392229\x1d31020000"+"29")
		if got := strings.Join(elementsOf(s), " "); got != "01=00312345678906 3922=29 3102=000029" {
			t.Errorf("%s", got)
		}
		if Plain("3922", "29", vectorDay) != "0.29" || Plain("3102", "000029", vectorDay) != "0.29 kg" || Plain("3922", "900719925474099", vectorDay) != "9007199254740.99" {
			t.Errorf("%s", Plain("3922", "29", vectorDay))
		}
	})
	t.Run("%2F decoded before the path is split", func(t *testing.T) {
		if s := accepted(t, "https://a.example/01/00312345678906/10/A%2F21%2FB"); s.Lot != "A/21/B" || s.Serial != "" {
			t.Errorf("lot %q, serial %q", s.Lot, s.Serial)
		}
		if s := accepted(t, "https://a.example/01/00312345678906/10/A%252FB"); s.Lot != "A%2FB" {
			t.Errorf("lot %q", s.Lot)
		}
	})
	t.Run("digits of other scripts", func(t *testing.T) {
		refused(t, "]d2010031234567890٦", BadCharset, Truncated, BadLength)
		refused(t, "]d2"+item+"1727113٠", BadCharset, Truncated, BadLength)
		refused(t, "]E0030781150610٤", BadCharset, BadLength)
		if s := accepted(t, "]C0１２３４５６７８９０"); s.Kind != KindOpaque {
			t.Errorf("fullwidth digits are %v", s.Kind)
		}
		if s := accepted(t, "]C0"+"12345-678-9٠"); s.Kind != KindOpaque {
			t.Errorf("an NDC with an Arabic-Indic digit is %v", s.Kind)
		}
	})
	t.Run("spaces trimmed", func(t *testing.T) {
		const in = "+$$52001510X3+ " // its check character is the space
		if s := accepted(t, in+"\r\n"); string(s.Element()) != in {
			t.Errorf("%q", s.Element())
		}
		refused(t, strings.TrimSpace(in), CheckChar)
		refused(t, "]d2"+item+"10A ", BadCharset)
	})
	t.Run("case folded, zeros dropped", func(t *testing.T) {
		if s := accepted(t, "]d2"+item+"100aB\x1d21000"); s.Lot != "0aB" || s.Serial != "000" {
			t.Errorf("lot %q, serial %q", s.Lot, s.Serial)
		}
	})
	t.Run("a fixed size taken for a predefined length", func(t *testing.T) {
		for _, in := range []string{"422840" + "10A", "7003270630235910A", "715012345067890123456789" + "10A"} {
			refused(t, "]d2"+item+in, BadLength, BadCharset)
		}
	})
	t.Run("an NDC padded by guess", func(t *testing.T) {
		s := accepted(t, "]d2"+item)
		if s.NDC() != "" || s.NCandidates != 3 || !s.Flags.Has(FlagNDCUnresolved) {
			t.Errorf("%q", s.NDC())
		}
	})
	t.Run("the content of a pallet taken for the item", func(t *testing.T) {
		if s := accepted(t, "]d20200312345678906"+"3712"); s.GTIN != "" || s.IsMovement() {
			t.Errorf("GTIN %q", s.GTIN)
		}
	})
}
