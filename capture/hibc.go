package capture

import "bytes"

// mod43 is the character order of the HIBC check character (that of Code 39).
const mod43 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-. $/+%"

var mod43Value = mod43Table()

func mod43Table() (t [256]int8) {
	for i := range t {
		t[i] = -1
	}
	for i := 0; i < len(mod43); i++ {
		t[mod43[i]] = int8(i)
	}
	return t
}

const (
	detailHIBCShort    = "The HIBC label was read in part: scan again across the whole code."
	detailHIBCLength   = "A part of the HIBC label is too long: report the label."
	detailHIBCCharset  = "The HIBC label holds a character that HIBC does not allow: it was misread, or Caps Lock is on. Scan again."
	detailHIBCCheck    = "The HIBC check character does not fit: the code was misread, or the interface drops a space at its end. Scan again."
	detailHIBCValue    = "The HIBC label's structure is not known: report the label, and scan another code of the item."
	detailHIBCDate     = "The date on the HIBC label does not exist: set the item aside and report the label."
	detailHIBCProvider = "This is a provider label, which may identify a patient. It is not read. Scan the product's own barcode."
	detailHIBCTwice    = "The HIBC label gives a value twice, differently: report the label."
)

// The longest parts of ANSI/HIBC 2.6.
const (
	maxPCN  = 18
	maxLot  = 18
	uomSize = 1
	licSize = 4
)

// hibc reads a supplier label (ANSI/HIBC 2.6): a primary, a primary with its secondary behind "/", or a
// secondary alone, which ends with the primary's check character as link and its own.
func (d *Decoder) hibc(s *Scan, text []byte, today Date) Refusal {
	if len(text) > 1 && text[1] == '/' {
		return refuse(PHI, detailHIBCProvider)
	}
	if secondScan(text) {
		return refuse(Concatenated, detailTwoScans)
	}
	sum := 0
	for i, c := range text {
		v := mod43Value[c]
		if v < 0 {
			if classes[c]&setText == 0 {
				return refuse(ControlChar, detailControl)
			}
			return refuse(BadCharset, detailHIBCCharset)
		}
		if i < len(text)-1 {
			sum += int(v)
		}
	}
	if len(text) < 4 {
		return refuse(Truncated, detailHIBCShort)
	}
	if mod43[sum%43] != text[len(text)-1] {
		return refuse(CheckChar, detailHIBCCheck)
	}
	s.Kind = KindHIBC
	body := text[1 : len(text)-1]
	var r Refusal
	if c := body[0]; c >= 'A' && c <= 'Z' {
		r = s.hibcPrimary(body, today)
	} else {
		link := len(body) - 1
		s.HIBCData.Link = alias(body[link:])
		s.Flags |= FlagNeedsPrimary
		r = s.hibcSecondary(body[:link], today)
	}
	s.ExpiryLastDay = s.Expiry.LastDay()
	return r
}

func (s *Scan) hibcPrimary(body []byte, today Date) Refusal {
	primary, rest, more := bytes.Cut(body, []byte{'/'})
	pcn := len(primary) - licSize - uomSize
	switch {
	case pcn < 1:
		return refuse(Truncated, detailHIBCShort)
	case pcn > maxPCN:
		return refuse(BadLength, detailHIBCLength)
	}
	for _, c := range primary {
		if !isAlnum(c) {
			return refuse(BadCharset, detailHIBCCharset)
		}
	}
	uom := primary[licSize+pcn:]
	if !allDigits(uom) {
		return refuse(BadCharset, detailHIBCCharset)
	}
	s.HIBC = alias(primary)
	s.HIBCData.LIC = alias(primary[:licSize])
	s.HIBCData.PCN = alias(primary[licSize : licSize+pcn])
	s.HIBCData.UOM = alias(uom)
	if !more {
		return Refusal{}
	}
	return s.hibcSecondary(rest, today)
}

// hibcSecondary reads quantity, date, lot and serial, then the supplements behind "/".
func (s *Scan) hibcSecondary(data []byte, today Date) Refusal {
	first, rest, more := bytes.Cut(data, []byte{'/'})
	var r Refusal
	switch {
	case len(first) == 0:
		return refuse(Truncated, detailHIBCShort)
	case bytes.HasPrefix(first, []byte("$$+")):
		r = s.hibcDated(first[3:], today, &s.Serial, false)
	case bytes.HasPrefix(first, []byte("$$")):
		r = s.hibcDated(first[2:], today, &s.Lot, true)
	case bytes.HasPrefix(first, []byte("$+")):
		r = s.hibcText(first[2:], &s.Serial, 1)
	case first[0] == '$':
		r = s.hibcText(first[1:], &s.Lot, 1)
	case leadingDigits(first, 5) == 5:
		if r = s.hibcDay(first[:5], today); r.OK() {
			r = s.hibcText(first[5:], &s.Lot, 0)
		}
	default:
		r = s.hibcSupplement(first)
	}
	for r.OK() && more {
		first, rest, more = bytes.Cut(rest, []byte{'/'})
		r = s.hibcSupplement(first)
	}
	return r
}

// hibcDated reads what follows "$$": a quantity, if the form has one, a date by its flag, and the rest.
func (s *Scan) hibcDated(v []byte, today Date, to *string, quantity bool) Refusal {
	least := 0
	if !quantity {
		least = 1 // "$$+" is there for the serial number
	}
	if quantity && len(v) > 0 && (v[0] == '8' || v[0] == '9') {
		n := 2
		if v[0] == '9' {
			n = 5
		}
		if len(v) < n+1 {
			return refuse(Truncated, detailHIBCShort)
		}
		q, ok := number(v[1 : n+1])
		if !ok {
			return refuse(BadCharset, detailHIBCCharset)
		}
		s.HIBCData.Quantity = q
		if v = v[n+1:]; len(v) == 0 || v[0] > '7' || v[0] < '0' {
			return s.hibcText(v, to, 0)
		}
	}
	if len(v) == 0 {
		return refuse(Truncated, detailHIBCShort)
	}
	var size int
	switch v[0] {
	case '0', '1': // MMYY, its first digit is the flag
		size = 4
	case '2', '3': // MMDDYY, YYMMDD
		size = 7
	case '4': // YYMMDDHH
		size = 9
	case '5': // YYJJJ
		size = 6
	case '6': // YYJJJHH
		size = 8
	case '7': // none
		return s.hibcText(v[1:], to, least)
	default:
		return refuse(BadValue, detailHIBCValue)
	}
	if len(v) < size {
		return refuse(Truncated, detailHIBCShort)
	}
	date, rest := v[:size], v[size:]
	if !allDigits(date) {
		return refuse(BadCharset, detailHIBCCharset)
	}
	if r := s.hibcDate(date, today); !r.OK() {
		return r
	}
	return s.hibcText(rest, to, least)
}

// hibcDate reads a date with its flag.
func (s *Scan) hibcDate(v []byte, today Date) Refusal {
	ok := true
	var d Date
	switch v[0] {
	case '0', '1':
		d = Date{Year: fullYear(two(v[2:]), today), Month: two(v)}
		ok = d.Month >= 1 && d.Month <= 12
	case '2':
		d = Date{Year: fullYear(two(v[5:]), today), Month: two(v[1:]), Day: two(v[3:])}
		ok = d.exists()
	case '3', '4':
		d, ok = yymmdd(v[1:], today, false)
		ok = ok && (len(v) == 7 || two(v[7:]) <= 23)
	case '5', '6':
		if len(v) == 8 && two(v[6:]) > 23 {
			return refuse(BadDate, detailHIBCDate)
		}
		return s.hibcDay(v[1:6], today)
	}
	if !ok {
		return refuse(BadDate, detailHIBCDate)
	}
	s.Expiry = d
	return Refusal{}
}

// hibcDay reads YYJJJ.
func (s *Scan) hibcDay(v []byte, today Date) Refusal {
	n, _ := number(v[2:5])
	d, ok := dayOfYear(fullYear(two(v), today), n)
	if !ok {
		return refuse(BadDate, detailHIBCDate)
	}
	s.Expiry = d
	return Refusal{}
}

// hibcText takes a lot or a serial number. "/" parts it from what follows; "$" and "+" begin structures.
func (s *Scan) hibcText(v []byte, to *string, least int) Refusal {
	switch {
	case len(v) < least:
		return refuse(BadLength, detailHIBCShort)
	case len(v) > maxLot:
		return refuse(BadLength, detailHIBCLength)
	}
	for _, c := range v {
		if c == '$' || c == '+' {
			return refuse(BadCharset, detailHIBCCharset)
		}
	}
	if *to != "" && *to != alias(v) {
		return refuse(DuplicateAI, detailHIBCTwice)
	}
	*to = alias(v)
	return Refusal{}
}

// hibcSupplement reads one field behind "/": S serial, Q quantity, 14D expiry, 16D manufacture.
func (s *Scan) hibcSupplement(v []byte) Refusal {
	switch {
	case len(v) == 0:
		return refuse(Truncated, detailHIBCShort)
	case v[0] == 'S':
		return s.hibcText(v[1:], &s.Serial, 1)
	case v[0] == 'Q':
		q, ok := number(v[1:])
		if !ok || len(v) > 6 {
			return refuse(BadCharset, detailHIBCCharset)
		}
		if s.HIBCData.Quantity >= 0 && s.HIBCData.Quantity != q {
			return refuse(DuplicateAI, detailHIBCTwice)
		}
		s.HIBCData.Quantity = q
		return Refusal{}
	case bytes.HasPrefix(v, []byte("14D")), bytes.HasPrefix(v, []byte("16D")):
		if len(v) != 11 {
			return refuse(Truncated, detailHIBCShort)
		}
		if !allDigits(v[3:]) {
			return refuse(BadCharset, detailHIBCCharset)
		}
		d := Date{Year: two(v[3:])*100 + two(v[5:]), Month: two(v[7:]), Day: two(v[9:])}
		if !d.exists() {
			return refuse(BadDate, detailHIBCDate)
		}
		if v[1] == '6' {
			return Refusal{}
		}
		if !s.Expiry.IsZero() && s.Expiry != d && s.Expiry.LastDay() != d {
			return refuse(DuplicateAI, detailHIBCTwice)
		}
		s.Expiry = d
		return Refusal{}
	}
	return refuse(UnknownAI, detailHIBCValue)
}
