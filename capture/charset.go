package capture

// The character classes of the GS1 General Specifications, as bits: 82 and 39 are the sets of table
// 7.11-1 and 7.11-2, 64 the file-safe set of AI 8030.
const (
	setN    uint8 = 1 << iota // digits
	set82                     // CSET 82
	set39                     // CSET 39
	set64                     // CSET 64 with its padding
	setText                   // no control character
	markLT                    // "<" or "(": the value may spell out a separator
	markGS                    // GS
)

var classes = classTable()

func classTable() (t [256]uint8) {
	in := func(set uint8, chars string) {
		for i := 0; i < len(chars); i++ {
			t[chars[i]] |= set
		}
	}
	const (
		digits = "0123456789"
		upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
		lower  = "abcdefghijklmnopqrstuvwxyz"
	)
	in(setN, digits)
	in(set82, digits+upper+lower+"!\"%&'()*+,-./:;<=>?_")
	in(set39, digits+upper+"#-/")
	in(set64, digits+upper+lower+"-_=")
	in(markLT, "<(")
	t[gs] = markGS
	for c := range 256 {
		if c >= 0x20 && c != 0x7f {
			t[c] |= setText
		}
	}
	return t
}

// shape is what a value is made of: the classes that all its bytes share, and those that any has.
type shape struct{ all, any uint8 }

func shapeOf(b []byte) shape {
	s := shape{all: 0xff}
	for _, c := range b {
		s.all &= classes[c]
		s.any |= classes[c]
	}
	return s
}

func allDigits(b []byte) bool {
	for _, c := range b {
		if c-'0' > 9 {
			return false
		}
	}
	return len(b) > 0
}

// leadingDigits counts the digits in front, up to most.
func leadingDigits(b []byte, most int) int {
	n := 0
	for n < len(b) && n < most && b[n]-'0' <= 9 {
		n++
	}
	return n
}
