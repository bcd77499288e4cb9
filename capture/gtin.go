package capture

// validMod10 checks the last digit by GS1 General Specifications 7.9: weights 3 and 1 in turn from the
// right. The bytes must be digits.
func validMod10(d []byte) bool {
	var odd, even int // odd holds the check digit
	for i := len(d) - 1; i >= 0; i -= 2 {
		odd += int(d[i] - '0')
		if i > 0 {
			even += int(d[i-1] - '0')
		}
	}
	return (odd+3*even)%10 == 0
}

func allZero(d []byte) bool {
	for _, c := range d {
		if c != '0' {
			return false
		}
	}
	return true
}

const (
	detailCheckDigit = "The check digit does not fit: the code was misread or is printed wrongly. Scan again; if it stays, report the label."
	detailZeroGTIN   = "The item number is all zeros: this is no product code. Scan the product's own label."
)

// retail takes 8, 12, 13 or 14 digits as a trade item number.
func (d *Decoder) retail(s *Scan, digits []byte, kind Kind) Refusal {
	if !validMod10(digits) {
		return refuse(CheckDigit, detailCheckDigit)
	}
	if allZero(digits) {
		return refuse(BadValue, detailZeroGTIN)
	}
	s.Kind = kind
	d.setGTIN(s, s.pad14(digits))
	return Refusal{}
}

// setGTIN takes 14 checked digits as the item's number and derives package level and NDC from it.
func (d *Decoder) setGTIN(s *Scan, gtin string) {
	s.GTIN = gtin
	s.PkgLevel = int8(gtin[0] - '0')
	// An NDC stands in a GTIN behind the U.S. prefix 03; indicator 9 is a variable measure.
	if gtin[0] != '9' && gtin[1] == '0' && gtin[2] == '3' {
		d.resolve10(s, gtin[3:13])
	}
}

// pad14 puts zeros in front.
func (s *Scan) pad14(digits []byte) string {
	if len(digits) == 14 {
		return alias(digits)
	}
	return s.put("00000000000000"[:14-len(digits)], alias(digits))
}
