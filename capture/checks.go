package capture

import "bytes"

// checkID names what is checked of a value beyond length and characters.
type checkID uint8

const (
	noCheck          checkID = iota
	checkDate0               // YYMMDD, day 00 allowed
	checkDate                // YYMMDD
	checkDateTime            // YYMMDD HHMM
	checkDate0Time           // YYMMDD HHMM; day 00 and time 9999 allowed
	checkDateRange           // YYMMDD, then a second one or nothing
	checkDateOptTime         // YYMMDD, then HHMM or nothing
	checkProdTime            // YYMMDD HH, then MM and SS or nothing
	checkCountry1            // ISO 3166 numeric
	checkCountries           // one to five of them
	checkCountry999          // one, or 999 for many
	checkCurrency            // ISO 4217 numeric
	checkYesNo               // 0 or 1
	checkMinus               // six digits, then "-" for a negative or nothing
	checkMedia               // AIDC media type
	checkRoll                // AI 8001
	checkPieces              // GTIN, piece, total
	checkZeroFirst           // a filler 0
	checkNoZero              // no leading zero
	checkImporter            // AI 7040
	checkPercent             // percent escapes are whole
	checkIBAN
	checkGMN  // check character pair
	checkMUDI // GMN with a character that is no digit
)

const (
	detailDate     = "A date on the label does not exist: set the item aside and report the label."
	detailValue    = "A value on the label is not allowed by GS1: report the label, and scan another code of the item if it has one."
	detailPair     = "The check characters of a value do not fit: the code was misread or is printed wrongly. Scan again."
	detailCountry  = "A country or currency code on the label does not exist: report the label."
	detailPieceBad = "The label's piece number is not within its total: report the label."
)

// checkValue does the check of a value whose length and characters are right. date is of a check that
// reads one.
func checkValue(c checkID, v []byte, today Date) (date Date, r Refusal) {
	ok := true
	switch c {
	case checkDate0:
		date, ok = yymmdd(v, today, true)
	case checkDate:
		date, ok = yymmdd(v, today, false)
	case checkDateTime:
		date, ok = yymmdd(v, today, false)
		ok = ok && hhmm(v[6:])
	case checkDate0Time:
		date, ok = yymmdd(v, today, true)
		ok = ok && (hhmm(v[6:]) || string(v[6:]) == "9999")
	case checkDateRange:
		date, ok = yymmdd(v, today, false)
		if len(v) > 6 && ok {
			if len(v) != 12 {
				return date, refuse(BadLength, detailLength)
			}
			_, ok = yymmdd(v[6:], today, false)
		}
	case checkDateOptTime:
		date, ok = yymmdd(v, today, false)
		if len(v) > 6 && ok {
			if len(v) != 10 {
				return date, refuse(BadLength, detailLength)
			}
			ok = hhmm(v[6:])
		}
	case checkProdTime:
		if len(v)%2 != 0 {
			return date, refuse(BadLength, detailLength)
		}
		date, ok = yymmdd(v, today, false)
		ok = ok && two(v[6:]) <= 23
		for i := 8; i < len(v) && ok; i += 2 {
			ok = two(v[i:]) <= 59
		}
	default:
		return date, checkOther(c, v)
	}
	if !ok {
		return date, refuse(BadDate, detailDate)
	}
	return date, Refusal{}
}

func checkOther(c checkID, v []byte) Refusal {
	value := func(ok bool) Refusal {
		if ok {
			return Refusal{}
		}
		return refuse(BadValue, detailValue)
	}
	switch c {
	case checkCountry1, checkCountries, checkCountry999, checkCurrency:
		return checkCodes(c, v)
	case checkYesNo:
		return value(v[0] <= '1')
	case checkMinus:
		return value(len(v) == 6 || v[6] == '-')
	case checkMedia:
		n := two(v)
		return value(n >= 1 && n <= 10 || n >= 80)
	case checkRoll:
		return value(!allZero(v[:4]) && !allZero(v[4:9]) && !allZero(v[9:12]) && (v[12] <= '1' || v[12] == '9'))
	case checkPieces:
		piece, total := two(v[14:]), two(v[16:])
		if piece == 0 || piece > total {
			return refuse(BadValue, detailPieceBad)
		}
	case checkZeroFirst:
		return value(v[0] == '0')
	case checkNoZero:
		return value(v[0] != '0')
	case checkImporter:
		return value(classes[v[3]]&set64 != 0 && v[3] != '=')
	case checkPercent:
		return value(wholeEscapes(v))
	case checkIBAN:
		return checkIBANValue(v)
	case checkGMN, checkMUDI:
		if !validPair(v) {
			return refuse(CheckChar, detailPair)
		}
		return value(c == checkGMN || !allDigits(v))
	}
	return Refusal{}
}

// checkCodes looks country and currency numbers up.
func checkCodes(c checkID, v []byte) Refusal {
	ok := true
	switch c {
	case checkCurrency:
		ok = currencies.has(v)
	case checkCountry999:
		ok = countries.has(v) || string(v[:3]) == "999"
	case checkCountries:
		if len(v)%3 != 0 {
			return refuse(BadLength, detailLength)
		}
		for i := 0; i < len(v) && ok; i += 3 {
			ok = countries.has(v[i:])
		}
	default:
		ok = countries.has(v)
	}
	if !ok {
		return refuse(BadValue, detailCountry)
	}
	return Refusal{}
}

func wholeEscapes(v []byte) bool {
	for i := 0; i < len(v); i++ {
		if v[i] == '%' {
			if i+2 >= len(v) || unhex(v[i+1]) < 0 || unhex(v[i+2]) < 0 {
				return false
			}
			i += 2
		}
	}
	return true
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}

// checkIBANValue is ISO 13616: two letters, then mod 97 over the text with its first four characters last.
func checkIBANValue(v []byte) Refusal {
	if len(v) < 11 || v[0] < 'A' || v[0] > 'Z' || v[1] < 'A' || v[1] > 'Z' {
		return refuse(BadValue, detailValue)
	}
	sum := 0
	for i := range v {
		c := v[(i+4)%len(v)]
		switch {
		case c >= '0' && c <= '9':
			sum = (sum*10 + int(c-'0')) % 97
		case c >= 'A' && c <= 'Z':
			sum = (sum*100 + int(c-'A') + 10) % 97
		default:
			return refuse(BadCharset, detailCharset)
		}
	}
	if sum != 1 {
		return refuse(CheckDigit, detailPair)
	}
	return Refusal{}
}

const (
	cset82Order = "!\"%&'()*+,-./0123456789:;<=>?ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
	cset32Order = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
)

// validPair checks the check character pair of a Global Model Number (General Specifications 7.9.5): the
// characters' places in CSET 82, weighted with the primes from the right, modulo 1021, as two of CSET 32.
func validPair(v []byte) bool {
	primes := [...]int{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83}
	n := len(v) - 2
	if n < 0 || n > len(primes) {
		return false
	}
	sum := 0
	for i, c := range v[:n] {
		sum += bytes.IndexByte([]byte(cset82Order), c) * primes[n-1-i]
	}
	sum %= 1021
	return v[n] == cset32Order[sum>>5] && v[n+1] == cset32Order[sum&31]
}

// codeSet is a set of three-digit numbers.
type codeSet [1000 / 8]uint8

func (s *codeSet) has(v []byte) bool {
	if len(v) < 3 {
		return false
	}
	n := int(v[0]-'0')*100 + two(v[1:])
	return s[n/8]&(1<<(n%8)) != 0
}

func newCodeSet(codes string) (s codeSet) {
	for i := 0; i+3 <= len(codes); i += 4 {
		n := int(codes[i]-'0')*100 + two([]byte(codes[i+1:i+3]))
		s[n/8] |= 1 << (n % 8)
	}
	return s
}
