package capture

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// hibcText puts the check character behind.
func hibcText(body string) string {
	sum := 0
	for _, c := range []byte(body) {
		sum += strings.IndexByte(mod43, c)
	}
	return body + string(mod43[sum%43])
}

func TestHIBC(t *testing.T) {
	for _, c := range []struct {
		body, hibc, lot, serial, expiry string
		qty                             int
		err                             ErrorKind
	}{
		{"+A999TESTPRD11", "A999TESTPRD11", "", "", "", -1, ""},
		{"+A999B0", "A999B0", "", "", "", -1, ""},
		{"+A999" + strings.Repeat("P", 18) + "9", "A999" + strings.Repeat("P", 18) + "9", "", "", "", -1, ""},
		{"+A999" + strings.Repeat("P", 19) + "9", "", "", "", "", -1, BadLength},
		{"+A9990", "", "", "", "", -1, Truncated},
		{"+A999PRDX", "", "", "", "", -1, BadCharset}, // unit of measure is a letter
		{"+A99.PRD1", "", "", "", "", -1, BadCharset},
		{"+A999P1/$$0628LOT", "A999P1", "LOT", "", "2028-06", -1, ""},
		{"+A999P1/$$1228", "A999P1", "", "", "2028-12", -1, ""},
		{"+A999P1/$$1328LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$0028LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$2022928LOT", "A999P1", "LOT", "", "2028-02-29", -1, ""},
		{"+A999P1/$$2022927LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$3270431LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$3270400LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$428061523LOT", "A999P1", "LOT", "", "2028-06-15", -1, ""},
		{"+A999P1/$$428061524LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$528366LOT", "A999P1", "LOT", "", "2028-12-31", -1, ""},
		{"+A999P1/$$527366LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$528000LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$62806000LOT", "A999P1", "LOT", "", "2028-02-29", -1, ""},
		{"+A999P1/$$62806024LOT", "", "", "", "", -1, BadDate},
		{"+A999P1/$$7LOT", "A999P1", "LOT", "", "", -1, ""},
		{"+A999P1/$$8240628LOT", "A999P1", "LOT", "", "2028-06", 24, ""},
		{"+A999P1/$$90010037LOT", "", "", "", "", -1, Truncated}, // flag 3 wants six digits
		{"+A999P1/$$9001007LOT", "A999P1", "LOT", "", "", 100, ""},
		{"+A999P1/$$824LOT", "A999P1", "LOT", "", "", 24, ""},
		{"+A999P1/$$8X4LOT", "", "", "", "", -1, BadCharset},
		{"+A999P1/$$82", "", "", "", "", -1, Truncated},
		{"+A999P1/$$LOT", "", "", "", "", -1, BadValue},
		{"+A999P1/$$", "", "", "", "", -1, Truncated},
		{"+A999P1/$$327A431LOT", "", "", "", "", -1, BadCharset},
		{"+A999P1/$LOT", "A999P1", "LOT", "", "", -1, ""},
		{"+A999P1/$", "", "", "", "", -1, BadLength},
		{"+A999P1/$+SER1", "A999P1", "", "SER1", "", -1, ""},
		{"+A999P1/$$+0628SER1", "A999P1", "", "SER1", "2028-06", -1, ""},
		{"+A999P1/$$+7SER1", "A999P1", "", "SER1", "", -1, ""},
		{"+A999P1/$$+7", "", "", "", "", -1, BadLength},
		{"+A999P1/$$+824SER", "", "", "", "", -1, BadValue},
		{"+A999P1/28060LOT", "A999P1", "LOT", "", "2028-02-29", -1, ""},
		{"+A999P1/$LOT/SSER1/14D20280613/16D20260101/Q12", "A999P1", "LOT", "SER1", "2028-06-13", 12, ""},
		{"+A999P1/SSER1", "A999P1", "", "SER1", "", -1, ""},
		{"+A999P1/14D20280613", "A999P1", "", "", "2028-06-13", -1, ""},
		{"+A999P1/$LOT/14D20280631", "", "", "", "", -1, BadDate},
		{"+A999P1/$LOT/16D20280631", "", "", "", "", -1, BadDate},
		{"+A999P1/$LOT/14D280613", "", "", "", "", -1, Truncated},
		{"+A999P1/$$3280612LOT/14D20280613", "", "", "", "", -1, DuplicateAI},
		{"+A999P1/$$0628LOT/14D20280630", "A999P1", "LOT", "", "2028-06-30", -1, ""},
		{"+A999P1/$+SER1/SSER2", "", "", "", "", -1, DuplicateAI},
		{"+A999P1/$$824LOT/Q12", "", "", "", "", -1, DuplicateAI},
		{"+A999P1/$LOT/9Z1", "", "", "", "", -1, UnknownAI},
		{"+A999P1/$LOT/", "", "", "", "", -1, Truncated},
		{"+A999P1/", "", "", "", "", -1, Truncated},
		{"+A999P1/$" + strings.Repeat("L", 18), "A999P1", strings.Repeat("L", 18), "", "", -1, ""},
		{"+A999P1/$" + strings.Repeat("L", 19), "", "", "", "", -1, BadLength},
		{"+A999P1/$LOT$2", "", "", "", "", -1, BadCharset},
		{"+.999P1", "", "", "", "", -1, UnknownAI}, // the labeler's code begins with a letter
		{"+/EP1234567", "", "", "", "", -1, PHI},
		{"+", "", "", "", "", -1, Truncated},
	} {
		t.Run(c.body, func(t *testing.T) {
			for _, carrier := range []string{"", "]C0", "]A0", "]d1", "]Q1", "]z0"} {
				in := carrier + hibcText(c.body)
				s, r := decode(t, in)
				if r.Kind != c.err || s.HIBC != c.hibc || s.Lot != c.lot || s.Serial != c.serial || s.Expiry.String() != c.expiry {
					t.Fatalf("%q: %q lot %q serial %q expiry %s: %v", in, s.HIBC, s.Lot, s.Serial, s.Expiry, r)
				}
				if s.HIBCData.Quantity != c.qty || r.OK() && (s.Kind != KindHIBC || !s.IsMovement() || s.PkgLevel != -1) {
					t.Fatalf("%q: quantity %d, %s, movement %v", in, s.HIBCData.Quantity, s.Kind, s.IsMovement())
				}
			}
		})
	}
}

// A secondary alone ends with the primary's check character and its own; it names no item.
func TestHIBCSecondary(t *testing.T) {
	for _, link := range []byte(mod43) {
		in := hibcText("+$$3280615LOTX" + string(link))
		s := accepted(t, in)
		if s.Lot != "LOTX" || s.HIBCData.Link != string(link) || s.HIBC != "" || s.Flags != FlagNeedsPrimary || s.IsMovement() {
			t.Errorf("link %q: %+v", link, s.Report())
		}
	}
	if s := accepted(t, hibcText("+28060LOTU")); s.Lot != "LOT" || s.Expiry.String() != "2028-02-29" {
		t.Errorf("%+v", s.Report())
	}
	refused(t, hibcText("+$U"), Truncated, BadLength)
}

// The check character may be a space: framing goes, spaces stay.
func TestHIBCSpace(t *testing.T) {
	in := "+$$52001510X3+ "
	if hibcText(in[:len(in)-1]) != in {
		t.Fatal("the sample's check character is no space")
	}
	for _, frame := range [][2]string{{"", ""}, {"", "\r\n"}, {"\x02", "\x03"}, {"", "\t"}} {
		if s := accepted(t, frame[0]+in+frame[1]); s.Lot != "10X3" || string(s.Element()) != in {
			t.Errorf("%q: %q", frame, s.Element())
		}
	}
	refused(t, strings.TrimSpace(in), CheckChar)
	refused(t, in+" ", CheckChar)
}

// One wrong character anywhere is refused.
func TestHIBCCorruption(t *testing.T) {
	d := plainDecoder(t)
	rapid.Check(t, func(t *rapid.T) {
		in := []byte(hibcText(rapid.StringMatching(`\+[A-Z][A-Z0-9]{3}[A-Z0-9]{1,18}[0-9](/\$[A-Z0-9]{1,18})?`).Draw(t, "label")))
		var s Scan
		if r := d.Decode(&s, in, nil, vectorDay); !r.OK() {
			t.Fatalf("%q: %v", in, r)
		}
		i := rapid.IntRange(1, len(in)-1).Draw(t, "position")
		old := in[i]
		if in[i] = mod43[rapid.IntRange(0, 42).Draw(t, "character")]; in[i] == old {
			return
		}
		want := CheckChar
		if i == 1 && in[1] == '/' {
			want = PHI
		}
		if r := d.Decode(&s, in, nil, vectorDay); r.Kind != want {
			t.Fatalf("%q: %v", in, r)
		}
	})
}
