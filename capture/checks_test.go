package capture

import (
	"fmt"
	"strings"
	"testing"
)

// Values that are right and wrong beyond length and characters, by the Syntax Dictionary's rules.
func TestValueRules(t *testing.T) {
	for _, c := range []struct {
		ai, value string
		want      ErrorKind
	}{
		{"253", "6141411234562DOC7", ""}, {"253", "6141411234561DOC7", CheckDigit}, {"253", "614141123456X", BadCharset},
		{"255", "6141411234562123456789012", ""}, {"255", "61414112345621234567890123", BadLength},
		{"3912", "978499", ""}, {"3912", "000499", BadValue}, {"3932", "840499", ""}, {"3912", "978", Truncated},
		{"401", "6141ABC", ""}, {"401", "614XABC", BadCharset}, {"401", "614", Truncated},
		{"402", "61414112345678901", CheckDigit},
		{"421", "840SW1A", ""}, {"421", "000SW1A", BadValue}, {"421", "84XSW1A", BadCharset}, {"421", "840", Truncated},
		{"422", "276", ""}, {"422", "999", BadValue}, {"424", "036", ""}, {"426", "001", BadValue},
		{"423", "276840", ""}, {"423", "2768", BadLength}, {"423", "276001", BadValue}, {"425", "276840036250724", ""},
		{"425", "276840036250724380", BadLength},
		{"4320", "A%20B", ""}, {"4320", "A%2", BadValue}, {"4320", "A%G0", BadValue}, {"4320", "%41", ""},
		{"4321", "1", ""}, {"4321", "2", BadValue},
		{"4324", "2802001230", ""}, {"4324", "2802009999", ""}, {"4324", "2802302300", BadDate}, {"4324", "2802002400", BadDate},
		{"4330", "001250-", ""}, {"4330", "001250", ""}, {"4330", "001250+", BadValue}, {"4330", "00125", Truncated},
		{"7007", "270101", ""}, {"7007", "2701010", BadLength}, {"7007", "270101270131", ""}, {"7007", "270101270132", BadDate},
		{"7011", "2701012359", ""}, {"7011", "27010123", BadLength}, {"7011", "2701012360", BadDate}, {"7011", "270101", ""},
		{"7030", "840ABC", ""}, {"7030", "999ABC", ""}, {"7030", "001ABC", BadValue}, {"7030", "840", Truncated},
		{"7040", "1AB_", ""}, {"7040", "1AB/", BadValue}, {"7040", "1AB=", BadValue}, {"7040", "XAB_", BadCharset},
		{"7230", "XX1", ""}, {"7230", "XX", Truncated},
		{"7241", "01", ""}, {"7241", "10", ""}, {"7241", "11", BadValue}, {"7241", "00", BadValue}, {"7241", "80", ""}, {"7241", "79", BadValue},
		{"8001", "12341234512310", ""},
		{"8001", "12341234512390", ""}, {"8001", "12341234512320", BadValue}, {"8001", "00001234512310", BadValue},
		{"8001", "12340000012310", BadValue}, {"8001", "12341234500010", BadValue},
		{"8003", "06141411234562SER", ""}, {"8003", "16141411234562", CheckDigit}, {"8003", "06141411234561", CheckDigit},
		{"8004", "6141ASSET", ""},
		{"8006", "003123456789060202", ""}, {"8006", "003123456789060002", BadValue}, {"8006", "003123456789060302", BadValue},
		{"8006", "003123456789060100", BadValue}, {"8006", "003123456789070102", CheckDigit}, {"8006", "000000000000000102", BadValue},
		{"8007", "GB29NWBK60161331926819", ""}, {"8007", "GB28NWBK60161331926819", CheckDigit}, {"8007", "1B29NWBK60161331926819", BadValue},
		{"8007", "GB29nwbk60161331926819", BadCharset}, {"8007", "GB29NWBK60", BadValue},
		{"8008", "27010123", ""}, {"8008", "2701012359", ""}, {"8008", "270101235959", ""}, {"8008", "270101236", BadLength},
		{"8008", "27010124", BadDate}, {"8008", "2701012360", BadDate}, {"8008", "270101235960", BadDate}, {"8008", "27013123", ""}, {"8008", "27023123", BadDate},
		{"8010", "6141#-/A", ""}, {"8010", "6141a", BadCharset}, {"8010", "A141", BadCharset},
		{"8011", "1", ""}, {"8011", "01", BadValue},
		{"8013", "1987654Ad4X4bL5ttr2310c2K", ""}, {"8013", "1987654Ad4X4bL5ttr2310c2L", CheckChar}, {"8013", "198765", CheckChar},
		{"8014", "1987654Ad4X4bL5ttr2310c2K", ""}, {"8014", "1987654Ad4X4bL5ttr2310c2L", CheckChar},
		{"8017", "614141123456789012", ""}, {"8017", "614141123456789013", CheckDigit},
		{"8030", "AZaz09-_=", ""}, {"8030", "A/B", BadCharset},
		{"8200", "https://x.example/p?a=1", ""},
	} {
		in := "]d2" + c.ai + c.value
		if c.ai == "8017" || c.ai == "402" {
			// The check digit is computed here; the sample says whether it is to be right.
			b := []byte(c.value)
			if c.want == "" {
				setCheckDigit(b)
			} else if validMod10(b) {
				b[len(b)-1] ^= 1
			}
			in = "]d2" + c.ai + string(b)
		}
		s, r := decode(t, in)
		if r.Kind != c.want {
			t.Errorf("(%s)%s: %v, want %q", c.ai, c.value, r, c.want)
		}
		if r.OK() && !strings.HasPrefix(elementsOf(s)[0], c.ai+"=") {
			t.Errorf("(%s)%s: %v", c.ai, c.value, elementsOf(s))
		}
	}
}

// A MUDI of digits only has a right check pair, but names no model.
func TestMUDINeedsACharacter(t *testing.T) {
	for n := range 10_000 {
		body := fmt.Sprintf("1234%04d", n)
		for pair := range 100 {
			value := body + fmt.Sprintf("%02d", pair)
			if !validPair([]byte(value)) {
				continue
			}
			refused(t, "]d28014"+value, BadValue)
			if s := accepted(t, "]d28013"+value); len(elementsOf(s)) != 1 {
				t.Errorf("%v", elementsOf(s))
			}
			return
		}
	}
	t.Fatal("no sample found")
}
