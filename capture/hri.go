package capture

// isHRI says that text begins with digits in brackets.
func isHRI(text []byte) bool {
	_, n := bracketed(text)
	return n > 0
}

// bracketed returns the digits in brackets that text begins with, and the length with the brackets; 0 if
// it does not.
func bracketed(text []byte) (digits []byte, n int) {
	if len(text) < 3 || text[0] != '(' {
		return nil, 0
	}
	k := leadingDigits(text[1:], len(text))
	if k == 0 || len(text) < k+2 || text[k+1] != ')' {
		return nil, 0
	}
	return text[1 : k+1], k + 2
}

// startsAI says that text begins with two to four digits in brackets.
func startsAI(text []byte) bool {
	k := leadingDigits(text[1:], maxAILen)
	return k >= 2 && k+1 < len(text) && text[k+1] == ')'
}

// hri reads element strings with their AIs in brackets, as they are printed for people (General
// Specifications 4.14): no separator is needed. A bracket within a value stands only for itself if no
// AI is in it.
func (d *Decoder) hri(s *Scan, from int, today Date) Refusal {
	w := s.w
	s.Kind = KindHRI
	if secondScan(w.buf[from:w.raw]) {
		return refuse(Concatenated, detailTwoScans)
	}
	for p := from; p < w.raw; {
		digits, n := bracketed(w.buf[p:w.raw])
		i := ais.exact(digits)
		if i == noAI {
			return refuse(UnknownAI, detailUnknownAI)
		}
		p += n
		end := p
		for end < w.raw && !(w.buf[end] == '(' && startsAI(w.buf[end:w.raw])) {
			end++
		}
		if end == p {
			return refuse(BadLength, detailLength)
		}
		if r := s.add(i, p, end, shapeOf(w.buf[p:end]), today); !r.OK() {
			return r
		}
		p = end
	}
	return d.finish(s)
}
