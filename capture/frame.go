package capture

import (
	"bytes"
	"fmt"

	"scanonce/device"
)

// Profile is how one device sends; the zero Profile sends plain data with or without AIM identifiers.
type Profile struct {
	// GSSubstitute is what the device sends for GS, outside CSET 82 so that no value can hold it; 0 if it
	// sends GS.
	GSSubstitute byte
	// GunDigits is how many digits of gun address a base puts in front of every payload.
	GunDigits int
	// BareDigits says what 11 or 8 digits without AIM identifier are: "ndc11", "ean8", or "" to refuse both.
	BareDigits string
	// SymbologyPrefix is what the device sends in place of or before the "]" of an AIM identifier; "" if it
	// sends "]".
	SymbologyPrefix string
}

// Validate checks the profile.
func (p *Profile) Validate() error {
	switch {
	case !p.substituteOK():
		return fmt.Errorf("cannot use gs_substitute %q: take one character that no value may hold, for example | ~ ^ or #", p.GSSubstitute)
	case p.GunDigits < 0 || p.GunDigits > maxGunDigits:
		return fmt.Errorf("cannot use gun_digits %d: write 0 to 8", p.GunDigits)
	case p.BareDigits != "" && p.BareDigits != "ndc11" && p.BareDigits != "ean8":
		return fmt.Errorf("cannot use bare_digits %q: write ndc11, ean8 or nothing", p.BareDigits)
	case len(p.SymbologyPrefix) > 4:
		return fmt.Errorf("cannot use symbology_prefix %q: write at most four characters", p.SymbologyPrefix)
	}
	for i := 0; i < len(p.SymbologyPrefix); i++ {
		if c := p.SymbologyPrefix[i]; c <= 0x20 || c >= 0x7f || i == 0 && isAlnum(c) {
			return fmt.Errorf("cannot use symbology_prefix %q: begin with a printable character that is no letter and no digit", p.SymbologyPrefix)
		}
	}
	return nil
}

// substituteOK refuses characters that a value or the framing uses.
func (p *Profile) substituteOK() bool {
	switch p.GSSubstitute {
	case 0:
		return true
	case stx, etx, '\r', '\n', '\t':
		return false
	}
	return classes[p.GSSubstitute]&set82 == 0
}

const maxGunDigits = 8

const (
	stx = 0x02
	etx = 0x03
	syn = 0x16
)

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// strip takes one STX in front and CR, LF, TAB, ETX behind off; never a space, which is a check character
// of HIBC.
func strip(b []byte) []byte {
	if len(b) > 0 && b[0] == stx {
		b = b[1:]
	}
	for n := len(b); n > 0; n-- {
		switch b[n-1] {
		case '\r', '\n', '\t', etx:
		default:
			return b[:n]
		}
	}
	return b[:0]
}

// blank says that there is nothing but spaces and NULs.
func blank(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != 0 {
			return false
		}
	}
	return true
}

// carrier is what an AIM identifier (ISO/IEC 15424) says of the data.
type carrier uint8

const (
	carrierUnknown carrier = iota // refused
	carrierNone                   // no identifier was sent
	carrierAI                     // element strings
	carrierPlain                  // text
	carrierPlain2D                // text or a Digital Link URI
	carrierRare                   // text, but only labels that prove themselves are taken
	carrierEAN13
	carrierEANAddOn
	carrierEAN8
	carrierITF
	carrierITFUnchecked
)

func carrierOf(letter, modifier byte) carrier {
	switch letter {
	case 'C':
		switch modifier {
		case '0':
			return carrierPlain
		case '1':
			return carrierAI
		}
	case 'd':
		switch modifier {
		case '1':
			return carrierPlain2D
		case '2':
			return carrierAI
		}
	case 'Q':
		switch modifier {
		case '1':
			return carrierPlain2D
		case '3':
			return carrierAI
		}
	case 'e':
		if modifier == '0' {
			return carrierAI
		}
	case 'J':
		switch modifier {
		case '0':
			return carrierRare
		case '1':
			return carrierAI
		}
	case 'A':
		if modifier >= '0' && modifier <= '7' {
			return carrierPlain
		}
	case 'E':
		switch modifier {
		case '0':
			return carrierEAN13
		case '3':
			return carrierEANAddOn
		case '4':
			return carrierEAN8
		}
	case 'I':
		switch modifier {
		case '0':
			return carrierITFUnchecked
		case '1':
			return carrierITF
		}
	case 'F', 'G', 'z': // Codabar, Code 93, Aztec: pharmacies' own labels and HIBC
		if modifier == '0' {
			return carrierRare
		}
	}
	return carrierUnknown
}

// secondScan finds an AIM identifier of a carrier within the data: two scans that were run together.
func secondScan(b []byte) bool {
	i := bytes.IndexByte(b, ']')
	if i < 0 {
		return false
	}
	for ; i+2 < len(b); i++ {
		if b[i] == ']' && carrierOf(b[i+1], b[i+2]) != carrierUnknown {
			return true
		}
	}
	return false
}

// twoLines says that a line ending within the data parts two scans.
func twoLines(b []byte) bool {
	i := bytes.IndexAny(b, "\r\n")
	if i < 0 {
		return false
	}
	rest := bytes.TrimLeft(b[i:], "\r\n")
	first, _ := startsGTIN(b)
	second, _ := startsGTIN(rest)
	return len(rest) > 2 && (rest[0] == ']' || first && second || allDigits(b[:i]) && allDigits(rest))
}

// merged says that a run of digits is two or more valid UPC, EAN or GTIN-14 numbers in a row.
func merged(digits []byte) bool {
	const most = 60
	if len(digits) < 24 || len(digits) > most {
		return false
	}
	var reached [most + 1]bool
	reached[0] = true
	for i := range digits {
		if !reached[i] {
			continue
		}
		for n := 12; n <= 14 && i+n <= len(digits); n++ {
			if d := digits[i : i+n]; validMod10(d) {
				reached[i+n] = true
			}
		}
	}
	return reached[len(digits)]
}

// maxPayload is the longest payload without framing, in bytes.
const maxPayload = device.MaxFrame
