package capture

import "unsafe"

// The ways to read ten digits, in the order of Candidates11.
const (
	form442 = iota
	form532
	form541
	form542 // 11 digits
	form642 // 12 digits, 91 FR 10749
)

// resolve10 takes ten digits of an NDC without hyphens. Only the directory can say where the hyphens are.
func (d *Decoder) resolve10(s *Scan, ndc string) {
	// The three readings in 6-4-2, 12 digits each; without their first digit they are 11 digits.
	n := (*[10]byte)(unsafe.Slice(unsafe.StringData(ndc), 10))
	t := &s.w.readings
	t[0], t[1] = '0', '0'
	copy(t[2:12], n[:])
	t[12], t[18] = '0', '0'
	copy(t[13:18], n[:5])
	copy(t[19:24], n[5:])
	t[24], t[34] = '0', '0'
	copy(t[25:34], n[:9])
	t[35] = n[9]
	s.NDC10 = ndc
	s.Candidates11 = [3]string{alias(t[1:12]), alias(t[13:24]), alias(t[25:36])}
	s.NCandidates = 3
	form := form442
	switch listed := d.dir.forms(n); listed {
	case 0:
		s.Flags |= FlagNDCUnresolved
		s.unlooked = d.dir == nil
		return
	case 1 << form442:
	case 1 << form532:
		form = form532
	case 1 << form541:
		form = form541
	default:
		s.Flags |= FlagNDCAmbiguous
		return
	}
	s.NDC11, s.NDC12 = s.Candidates11[form], alias(t[12*form:12*form+12])
}

// decide sets a decided 11-digit NDC and its 12-digit form.
func (s *Scan) decide(ndc11 string) {
	s.NDC11 = ndc11
	s.NDC12 = s.put("0", ndc11)
}

// ndcText is a hyphenated NDC: digits in the 6-4-2 or a shorter form, all padded.
type ndcText struct {
	form   int
	digits [12]byte // 6-4-2
	ten    [10]byte // set for the forms of ten digits
}

// looksHyphenated says that b is three groups of digits with 9 to 13 digits in all, "*" counting as one.
func looksHyphenated(b []byte) bool {
	hyphens, digits, group := 0, 0, 0
	for _, c := range b {
		switch {
		case c == '-':
			if group == 0 {
				return false
			}
			hyphens++
			group = 0
		case c-'0' <= 9 || c == '*':
			digits++
			group++
		default:
			return false
		}
		if digits > 13 {
			return false
		}
	}
	return hyphens == 2 && group > 0 && digits >= 9
}

// parseNDC reads 4-4-2, 5-3-2, 5-4-1, 5-4-2 and 6-4-2. In 5-4-2 one group may begin with "*", which marks
// the digit that only pads (the CMS and HIPAA way to show the ten-digit form).
func parseNDC(b []byte) (n ndcText, ok bool) {
	var size [3]int
	g, star := 0, -1
	for i, c := range b {
		switch {
		case c == '-':
			if g++; g > 2 {
				return n, false
			}
		case c == '*':
			if star >= 0 || i > 0 && b[i-1] != '-' {
				return n, false
			}
			star = g
			size[g]++
		case c-'0' <= 9:
			size[g]++
		default:
			return n, false
		}
	}
	switch size {
	case [3]int{4, 4, 2}:
		n.form = form442
	case [3]int{5, 3, 2}:
		n.form = form532
	case [3]int{5, 4, 1}:
		n.form = form541
	case [3]int{5, 4, 2}:
		n.form = form542
	case [3]int{6, 4, 2}:
		n.form = form642
	default:
		return n, false
	}
	if g != 2 || star >= 0 && n.form != form542 {
		return n, false
	}
	starts := [3]int{6 - size[0], 10 - size[1], 12 - size[2]}
	n.digits = [12]byte{'0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0', '0'}
	g, at, ten := 0, starts[0], n.ten[:0]
	for _, c := range b {
		switch c {
		case '-':
			g++
			at = starts[g]
		case '*':
			at++
		default:
			n.digits[at] = c
			at++
			if len(ten) < 10 {
				ten = append(ten, c)
			}
		}
	}
	if star >= 0 {
		n.form = star // the padded group tells the ten-digit form: labeler 4-4-2, product 5-3-2, package 5-4-1
	}
	return n, true
}

const (
	detailBadNDC  = "This is no NDC: the groups must be 4-4-2, 5-3-2, 5-4-1, 5-4-2 or 6-4-2 digits. Scan the manufacturer's barcode."
	detailZeroNDC = "The NDC is all zeros: this is no product code. Scan the manufacturer's barcode."
)

// takeNDC sets the NDC of hyphenated text.
func (s *Scan) takeNDC(b []byte) Refusal {
	n, ok := parseNDC(b)
	if !ok {
		return refuse(BadNDC, detailBadNDC)
	}
	if allZero(n.digits[:]) {
		return refuse(BadValue, detailZeroNDC)
	}
	if n.form < form542 {
		s.NDC10 = s.put(alias(n.ten[:]))
	}
	s.takeNDC12(alias(n.digits[:]))
	return Refusal{}
}

// takeNDC12 sets a decided 12-digit NDC. Labelers from 100000 have no 11-digit form.
func (s *Scan) takeNDC12(ndc string) {
	s.NDC12 = s.put(ndc)
	s.NDC11 = ""
	if ndc[0] == '0' {
		s.NDC11 = s.NDC12[1:]
	}
}

// nationalNDC takes the value of AI 715: an NDC with or without hyphens.
func (d *Decoder) nationalNDC(s *Scan, v []byte) Refusal {
	before, had := s.Candidates11, s.NCandidates > 0
	switch {
	case looksHyphenated(v):
		ten := s.NDC10
		if r := s.takeNDC(v); !r.OK() {
			return r
		}
		if had {
			s.NDC10 = ten
		}
	case !allDigits(v):
		return refuse(BadNDC, detailBadNDC)
	case allZero(v):
		return refuse(BadValue, detailZeroNDC)
	case len(v) == 12:
		s.takeNDC12(alias(v))
	case len(v) == 11:
		s.decide(alias(v))
		s.Flags |= FlagAssumed542
	case len(v) == 10:
		switch {
		case !had:
			d.resolve10(s, alias(v))
		case s.NDC10 != alias(v):
			// Two packages, and neither number has hyphens: nothing is decided.
			s.NDC11, s.NDC12, s.unlooked = "", "", false
			s.Flags = s.Flags&^FlagNDCUnresolved | FlagNDCAmbiguous
		}
		return Refusal{}
	default:
		return refuse(BadNDC, detailBadNDC)
	}
	s.Flags &^= FlagNDCUnresolved | FlagNDCAmbiguous
	if had && s.NDC11 != before[0] && s.NDC11 != before[1] && s.NDC11 != before[2] {
		s.Flags |= FlagNDCAmbiguous // the label's two numbers name different packages
	}
	return Refusal{}
}
