package capture

import (
	"fmt"
	"strconv"
	"strings"
)

// SymbologyName names what an AIM identifier (ISO/IEC 15424) stands for, "" if it is none of those told
// here.
func SymbologyName(id string) string {
	if len(id) != 3 || id[0] != ']' {
		return ""
	}
	if name := symbologies[id]; name != "" {
		return name
	}
	return symbologies[id[:2]]
}

var symbologies = map[string]string{
	"]A": "Code 39", "]B": "Telepen", "]C": "Code 128", "]C1": "GS1-128", "]E0": "EAN-13 or UPC", "]E3": "EAN-13 or UPC with add-on",
	"]E4": "EAN-8", "]e": "GS1 DataBar", "]F": "Codabar", "]G": "Code 93", "]H": "Code 11", "]I": "ITF", "]J": "DotCode", "]J1": "GS1 DotCode",
	"]L": "PDF417", "]M": "MSI", "]Q": "QR", "]Q3": "GS1 QR", "]U": "MaxiCode", "]d": "DataMatrix", "]d2": "GS1 DataMatrix", "]z": "Aztec",
}

// Plain tells in plain words what the value of an AI means, where the bare value does not: dates with their
// century as of today, the decimal point of measures and amounts, pieces. "" if there is nothing to tell.
// The value is one that Decode accepted.
func Plain(ai, value string, today Date) string {
	i := ais.exact([]byte(ai))
	info := &ais.list[i]
	if i == noAI || len(value) < int(info.min) || len(value) > int(info.max) {
		return ""
	}
	v := []byte(value)
	switch info.check {
	case checkDate0, checkDate, checkDateTime, checkDate0Time, checkDateRange, checkDateOptTime, checkProdTime:
		return plainDate(info.check, v, today)
	case checkMinus:
		sign := ""
		if len(value) == 7 {
			sign = "−"
		}
		return sign + decimal(value[:6], 2) + " °" + info.title[len(info.title)-1:]
	case checkPieces:
		return fmt.Sprintf("piece %d of %d of %s", two(v[14:]), two(v[16:]), value[:14])
	}
	if len(ai) == 4 {
		places := int(ai[3] - '0')
		switch ai[:3] {
		case "390", "392", "395":
			return decimal(value, places)
		case "391", "393":
			return decimal(value[3:], places) + ", currency " + value[:3]
		case "394":
			return decimal(value, places) + " %"
		}
		if info.flags&fixed != 0 { // the measures, 31nn to 36nn
			return decimal(value, places) + unit(info.title)
		}
	}
	switch ai {
	case "30", "37":
		return "the label's own figure, never the quantity of the scan"
	case "02":
		return "what the logistic unit holds, not the item itself"
	}
	return ""
}

// unit is what a measure's title has in brackets, with a space before it.
func unit(title string) string {
	_, u, ok := strings.Cut(title, "(")
	if !ok {
		_, u, ok = strings.Cut(title, "KG PER ")
		if ok {
			return " kg/" + u
		}
		return ""
	}
	return " " + strings.TrimSuffix(strings.TrimSuffix(u, ", log"), ")")
}

// decimal puts a point before the last places digits and takes needless zeros in front off. No float is
// used: 0.29 × 100 is less than 29 in them.
func decimal(digits string, places int) string {
	if n := places + 1 - len(digits); n > 0 {
		digits = strings.Repeat("0", n) + digits
	}
	whole, part := digits[:len(digits)-places], digits[len(digits)-places:]
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if part == "" {
		return whole
	}
	return whole + "." + part
}

// plainDate tells a date, with its time or its end.
func plainDate(check checkID, v []byte, today Date) string {
	d, ok := yymmdd(v, today, true)
	if !ok {
		return ""
	}
	words := d.Words()
	rest := string(v[6:])
	switch {
	case rest == "" || rest == "9999":
		return words
	case check == checkDateRange:
		end, ok := yymmdd(v[6:], today, false)
		if !ok {
			return ""
		}
		return words + " to " + end.Words()
	}
	switch len(rest) {
	case 2:
		return words + ", hour " + rest
	case 4:
		return words + ", " + rest[:2] + ":" + rest[2:]
	}
	return words + ", " + rest[:2] + ":" + rest[2:4] + ":" + rest[4:]
}

var months = [...]string{"January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"}

// Words is the day as people write it, "all of February 2028" for a whole month, "" for no date.
func (d Date) Words() string {
	switch {
	case d.Month < 1 || d.Month > 12:
		return ""
	case d.Day == 0:
		return "all of " + months[d.Month-1] + " " + strconv.Itoa(d.Year)
	}
	return strconv.Itoa(d.Day) + " " + months[d.Month-1] + " " + strconv.Itoa(d.Year)
}

// NDCReason tells in one sentence how the NDC was concluded, or why there is none; "" for a scan that has
// neither GTIN nor NDC.
func (s *Scan) NDCReason() string {
	switch {
	case s.GTIN == "" && s.NDC() == "" && s.NCandidates == 0:
		return ""
	case s.NDC() == "" && s.NCandidates == 0 && s.GTIN[1:3] == "03":
		return "none: a first digit of 9 is a variable measure, which carries no NDC"
	case s.NDC() == "" && s.NCandidates == 0:
		return "none: the GTIN has not the prefix 03 of U.S. drugs behind its first digit"
	case s.NDC() == "" && s.unlooked:
		return "not decided: ten digits have three readings, and there is no NDC directory to tell which"
	case s.NDC() == "" && s.Flags.Has(FlagNDCAmbiguous) && s.twoNumbers():
		return "not decided: the GTIN and the label's element 715 name different packages"
	case s.NDC() == "" && s.Flags.Has(FlagNDCAmbiguous):
		return "not decided: the NDC directory lists more than one of the readings"
	case s.NDC() == "":
		return "not decided: the NDC directory lists none of the readings"
	case s.Flags.Has(FlagAssumed542):
		return "eleven digits without hyphens, taken as 5-4-2 as billing systems write them"
	case s.hasNationalNDC():
		return "the label's element 715 gives it"
	case s.NCandidates > 0:
		return "the NDC directory lists only this reading of the ten digits"
	}
	return "the label's hyphens show its parts"
}

// twoNumbers says that AI 715 has other ten digits than the GTIN.
func (s *Scan) twoNumbers() bool {
	differ := false
	s.AIs(func(ai, _, value string) bool {
		differ = ai == "715" && value != s.NDC10
		return !differ
	})
	return differ
}

// hasNationalNDC says that AI 715 decided: ten digits there leave it to the directory.
func (s *Scan) hasNationalNDC() bool {
	decides := false
	s.AIs(func(ai, _, value string) bool {
		decides = ai == "715" && len(value) != 10
		return !decides
	})
	return decides
}

// LostSeparator names, for a scan with FlagMissingSeparator, the last element and the one that its value may
// hide: their titles, "" without the flag.
func (s *Scan) LostSeparator() (last, hidden string) {
	if !s.Flags.Has(FlagMissingSeparator) || len(s.w.elems) == 0 {
		return "", ""
	}
	e := s.w.elems[len(s.w.elems)-1]
	if i := hides(s.w.buf[e.from:e.to]); i != noAI {
		return ais.list[e.ai].title, ais.list[i].title
	}
	return "", ""
}

// redacted stands for what no output shows.
const redacted = "[redacted]"

// Redacted is the report without what may be PHI: the parts of an Rx label.
func (r Report) Redacted() Report {
	if r.Rx != nil {
		groups := make(map[string]string, len(r.Rx))
		for g := range r.Rx {
			groups[g] = redacted
		}
		r.Rx = groups
	}
	return r
}

// kindMeaning is an error kind with its words.
type kindMeaning struct {
	kind    ErrorKind
	meaning string
}

var kindMeanings = [...]kindMeaning{
	{Empty, "nothing was read"},
	{UnsupportedSymbology, "a kind of barcode that drugs do not have"},
	{UnsupportedFormat, "a label format that is not for drugs"},
	{IDDocument, "an identity document"},
	{PHI, "a label that may identify a person"},
	{CheckDigit, "a number's check digit does not fit"},
	{CheckChar, "a check character does not fit"},
	{UnknownAI, "an element that does not exist"},
	{Truncated, "the data ends too early"},
	{BadLength, "a value of the wrong length"},
	{BadCharset, "a character that may not stand there"},
	{ControlChar, "a control character within the data"},
	{BadDate, "a date that does not exist"},
	{BadValue, "a value that is not allowed"},
	{DuplicateAI, "one element twice, with different values"},
	{IllegalPair, "elements that exclude each other"},
	{MissingSeparator, "the separator between elements is missing"},
	{Ambiguous, "the data can be read in more than one way"},
	{Concatenated, "two scans run together"},
	{ProgrammingCode, "a command of the scanner's own"},
	{BadNDC, "not the form of an NDC"},
	{BadURI, "not the form of a product link"},
	{BadConfig, "a setting that does not fit"},
	{TooLong, "more data than a label holds"},
}

// Meaning is the kind in a few words, "" for an unknown one.
func (k ErrorKind) Meaning() string {
	for _, m := range kindMeanings {
		if m.kind == k {
			return m.meaning
		}
	}
	return ""
}
