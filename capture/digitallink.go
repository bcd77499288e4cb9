package capture

import (
	"bytes"
	"strings"
)

const (
	detailURI       = "The product link on the label is not a valid GS1 Digital Link: report the label, and scan another code of the item."
	detailURIEscape = "The product link holds a broken percent escape: it was misread or is printed wrongly. Scan again."
)

// isURI says that text begins with http:// or https://, in any case.
func isURI(text []byte) bool { return schemeLen(text) > 0 }

func schemeLen(text []byte) int {
	for _, scheme := range [...]string{"https://", "http://"} {
		if len(text) >= len(scheme) && strings.EqualFold(alias(text[:len(scheme)]), scheme) {
			return len(scheme)
		}
	}
	return 0
}

// uriParts are offsets into a URI: host begins at host, the path at path, ends at pathEnd; the query is
// from query to end.
type uriParts struct{ host, path, pathEnd, query, end int }

func splitURI(u []byte) (p uriParts) {
	p.host = schemeLen(u)
	p.end = len(u)
	if i := bytes.IndexByte(u, '#'); i >= 0 {
		p.end = i
	}
	p.pathEnd, p.query = p.end, p.end
	if i := bytes.IndexByte(u[:p.end], '?'); i >= 0 {
		p.pathEnd, p.query = i, i+1
	}
	p.path = p.pathEnd
	if i := bytes.IndexByte(u[min(p.host, p.pathEnd):p.pathEnd], '/'); i >= 0 {
		p.path = p.host + i
	}
	return p
}

// digitalLink reads the URI buf[from:raw] by GS1 Digital Link: URI syntax 1.4. It is never opened. A URI
// without a product key is an ordinary link.
//
// The path is split before percent escapes are decoded, once; only then %2F stays a part of its value.
func (d *Decoder) digitalLink(s *Scan, from int, today Date) Refusal {
	w := s.w
	u := w.buf[from:w.raw]
	p := splitURI(u)
	root := findKey(u, p)
	if root < 0 {
		if path := u[p.path:p.pathEnd]; intendsKey(path) || compressed(u[p.host:p.path], path) {
			return refuse(BadURI, detailURI)
		}
		return d.words(s, u, 0)
	}
	if !uriCharacters(u) || !hostCharacters(u[p.host:p.path]) {
		return refuse(BadURI, detailURI)
	}
	s.Kind = KindDigitalLink
	key := uint16(noAI)
	var quals [4]uint16 // one more than any key has
	n := 0
	for at := root; at < p.pathEnd; {
		ai, value, next := pair(u, at, p.pathEnd)
		i := ais.exact(ai)
		switch {
		case i == noAI || len(value) == 0:
			return refuse(BadURI, detailURI)
		case key == noAI:
			key = i
		default:
			quals[n] = i
			n++
		}
		if ais.list[i].flags&person != 0 {
			return refuse(PHI, detailPHI)
		}
		if !qualifies(key, quals[:n]) {
			return refuse(BadURI, detailURI)
		}
		if r := s.addEscaped(i, value, false, today); !r.OK() {
			return r
		}
		at = next
	}
	if r := s.query(u[p.query:p.end], key, quals[:n], today); !r.OK() {
		return r
	}
	return d.finish(s)
}

// query reads the attributes. Keys that are no numbers belong to others.
func (s *Scan) query(q []byte, key uint16, quals []uint16, today Date) Refusal {
	for next := 0; next < len(q); {
		at := next
		equals, end := -1, at
		for ; end < len(q) && q[end] != '&'; end++ {
			if q[end] == '=' && equals < 0 {
				equals = end
			}
		}
		next = end + 1
		if equals < 0 || !allDigits(q[at:equals]) {
			continue
		}
		name, value := q[at:equals], q[equals+1:end]
		i := ais.exact(name)
		info := &ais.list[i]
		switch {
		case info.flags&person != 0:
			return refuse(PHI, detailPHI)
		case i == noAI || info.flags&attr == 0 || len(value) == 0 || !s.w.seen.has(i) && belongsInPath(i, key, quals):
			return refuse(BadURI, detailURI)
		}
		if r := s.addEscaped(i, value, true, today); !r.OK() {
			return r
		}
	}
	return Refusal{}
}

// addEscaped decodes a value once and adds it.
func (s *Scan) addEscaped(i uint16, value []byte, query bool, today Date) Refusal {
	w := s.w
	from := len(w.buf)
	out := w.buf
	for j := 0; j < len(value); j++ {
		c := value[j]
		switch {
		case c == '%':
			if j+2 >= len(value) || unhex(value[j+1]) < 0 || unhex(value[j+2]) < 0 {
				return refuse(BadURI, detailURIEscape)
			}
			c = byte(unhex(value[j+1])<<4 | unhex(value[j+2]))
			j += 2
		case c == '+' && query:
			c = ' '
		}
		out = append(out, c)
	}
	if i == ais.two[1] {
		out = padGTIN(out, from)
	}
	w.buf = out
	return s.add(i, from, len(out), shapeOf(out[from:]), today)
}

// padGTIN pads a GTIN-8, -12 or -13, an older spelling, to 14 digits.
func padGTIN(b []byte, from int) []byte {
	n := len(b) - from
	if n != 8 && n != 12 && n != 13 || !allDigits(b[from:]) {
		return b
	}
	b = append(b, "000000"[:14-n]...)
	copy(b[from+14-n:], b[from:from+n])
	for i := from; i < from+14-n; i++ {
		b[i] = '0'
	}
	return b
}

// pair reads "/ai/value" at at.
func pair(u []byte, at, end int) (ai, value []byte, next int) {
	slash := bytes.IndexByte(u[at+1:end], '/')
	if slash < 0 {
		return u[at+1 : end], nil, end
	}
	ai = u[at+1 : at+1+slash]
	from := at + slash + 2
	next = end
	if i := bytes.IndexByte(u[from:end], '/'); i >= 0 {
		next = from + i
	}
	return ai, u[from:next], next
}

// findKey walks back from the end of the path over pairs of AI and value to a primary key, and returns
// where its pair begins, −1 if there is none.
func findKey(u []byte, p uriParts) int {
	for end := p.pathEnd; end > p.path; {
		value := bytes.LastIndexByte(u[p.path:end], '/')
		if value <= 0 {
			return -1
		}
		ai := bytes.LastIndexByte(u[p.path:p.path+value], '/')
		if ai < 0 {
			return -1
		}
		i := ais.exact(u[p.path+ai+1 : p.path+value])
		if i == noAI {
			return -1
		}
		if ais.list[i].flags&dlKey != 0 {
			if !plausibleKey(i, u[p.path+value+1:end]) {
				return -1
			}
			return p.path + ai
		}
		end = p.path + ai
	}
	return -1
}

// plausibleKey keeps the page numbers and names of ordinary links from being read as keys.
func plausibleKey(i uint16, value []byte) bool {
	want := 8
	if ais.list[i].set != setN && ais.list[i].key == 0 {
		want = 4
	}
	return leadingEscaped(value, want) == want
}

// leadingEscaped is leadingDigits for a part of a URI, in which a digit may be escaped.
func leadingEscaped(b []byte, most int) int {
	for n := 0; n < most; n++ {
		switch {
		case leadingDigits(b, 1) == 1:
			b = b[1:]
		case len(b) > 2 && b[0] == '%' && b[1] == '3' && b[2]-'0' <= 9:
			b = b[3:]
		default:
			return n
		}
	}
	return most
}

// intendsKey says that a path holds a GTIN somewhere, though not as a Digital Link may: out of its place, or
// behind a name, which early versions had in place of the AI.
func intendsKey(path []byte) bool {
	for i := 0; i+4 < len(path); i++ {
		if path[i] != '/' {
			continue
		}
		name := 0
		switch path[i+1] {
		case '0':
			name = len("01")
		case 'G', 'g', 'I', 'i':
			name = len("gtin")
		default:
			continue
		}
		rest := path[i+1:]
		if len(rest) <= name || rest[name] != '/' || leadingEscaped(rest[name+1:], 8) < 8 {
			continue
		}
		if n := rest[:name]; string(n) == "01" || equalFold(n, "gtin") || equalFold(n, "itip") {
			return true
		}
	}
	return false
}

// compressed says that a link to GS1's own resolver has nothing but a packed text for a path: a compressed
// Digital Link. At another address it cannot be told from an ordinary link, and is taken for one.
func compressed(host, path []byte) bool {
	const shortest = 10 // a GTIN alone takes more
	if !equalFold(host, "id.gs1.org") || len(path) <= shortest {
		return false
	}
	for _, c := range path[1:] {
		if !isAlnum(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// qualifies says that the qualifiers are, in their order, a part of one of the key's alternatives.
func qualifies(key uint16, quals []uint16) bool {
	if len(quals) == 0 {
		return true
	}
	for _, alternative := range ais.list[key].quals {
		k := 0
		for alternative != "" && k < len(quals) {
			var q string
			q, alternative, _ = strings.Cut(alternative, ",")
			if q == ais.list[quals[k]].ai {
				k++
			}
		}
		if k == len(quals) {
			return true
		}
	}
	return false
}

// belongsInPath says that AI i would be a valid qualifier at some place of the path.
func belongsInPath(i, key uint16, quals []uint16) bool {
	var try [5]uint16
	for at := 0; at <= len(quals); at++ {
		n := copy(try[:], quals[:at])
		try[n] = i
		n += 1 + copy(try[n+1:], quals[at:])
		if qualifies(key, try[:n]) {
			return true
		}
	}
	return false
}

func uriCharacters(u []byte) bool {
	for _, c := range u {
		if !isAlnum(c) && strings.IndexByte("-._~:/?#[]@!$&'()*+,;=%", c) < 0 {
			return false
		}
	}
	return true
}

func hostCharacters(host []byte) bool {
	for _, c := range host {
		if !isAlnum(c) && strings.IndexByte("-.:[]", c) < 0 {
			return false
		}
	}
	return len(host) > 0
}
