package capture

import "bytes"

const gs = 0x1d // stands for FNC1 between elements

const (
	detailLength     = "A value on the label has the wrong length: the code was misread or is printed wrongly. Scan again; if it stays, report the label."
	detailLongLot    = "The lot runs past 20 characters: the separator between it and the next element, mostly the serial number, is missing. The scanner's GS setting is wrong, or the label: have the scanner send GS (FNC1), then scan again."
	detailLongSerial = "The serial number runs past 20 characters: the separator between it and the next element, mostly the lot, is missing. The scanner's GS setting is wrong, or the label: have the scanner send GS (FNC1), then scan again."
	detailLongValue  = "A value runs past its longest length: the separator behind it is lost. Set the scanner to send GS (FNC1), then scan again."
	detailTruncated  = "The code ends too early, or a separator stands inside a value: scan again; if it stays, report the label."
	detailCharset    = "A value holds a character that GS1 does not allow. If the scanner replaces GS by another character, enter it as gs_substitute of this scanner."
	detailControl    = "The data holds a control character: check the scanner's interface settings, then scan again."
	detailUnknownAI  = "The label uses an element that does not exist: nothing behind it can be trusted. Scan again; if it stays, report the label."
	detailPHI        = "This code may identify a person and is not read. Scan the product's own barcode."
	detailDuplicate  = "The label gives one element twice with different values, or two labels were read together: scan one label at a time."
	detailIllegal    = "The label combines elements that exclude each other: report the label, and scan another code of the item."
	detailSpelled    = "The scanner spells the separator out as text: set it to send the GS character (hex 1D) itself."
	detailTwoScans   = "Two scans arrived as one: give the scanner a suffix (CR), and scan one label at a time."
)

// elements reads the element string buf[from:to]. sep also separates elements, if it is not 0.
//
// General Specifications 7.8: an AI of predefined length ends by itself, every other one at the next GS,
// whatever its format. A leading, trailing or doubled GS carries nothing and is passed over.
func (d *Decoder) elements(s *Scan, from, to int, sep byte, today Date) Refusal {
	if sep == 0 {
		sep = gs
	}
	buf := s.w.buf[:to]
	for p := from; ; {
		for p < to && (buf[p] == gs || buf[p] == sep) {
			p++
		}
		if p >= to {
			return Refusal{}
		}
		i, size := ais.find(buf[p:])
		if i == noAI {
			return badAI(buf[p:], size)
		}
		info := &ais.list[i]
		p += size
		end := to
		if info.flags&fixed != 0 {
			end = min(to, p+int(info.max))
		}
		// One pass finds the end and what the value is made of.
		v := buf[p:end]
		shape := shape{all: 0xff}
		for j, c := range v {
			k := classes[c]
			if k == markGS || c == sep {
				end = p + j
				break
			}
			shape.all &= k
			shape.any |= k
		}
		if r := s.add(i, p, end, shape, today); !r.OK() {
			return r
		}
		p = end
	}
}

// badAI says why rest begins with no AI.
func badAI(rest []byte, size int) Refusal {
	switch c := rest[0]; {
	case spelledSeparator(rest):
		return refuse(MissingSeparator, detailSpelled)
	case classes[c]&setText == 0:
		return refuse(ControlChar, detailControl)
	case allDigits(rest) && (len(rest) < 2 || len(rest) < size):
		return refuse(Truncated, detailTruncated)
	}
	return refuse(UnknownAI, detailUnknownAI)
}

// spelledSeparator finds, in the first 256 bytes, the texts that scanners are set to send for FNC1 and
// that are legal CSET 82.
func spelledSeparator(v []byte) bool {
	v = v[:min(len(v), 256)]
	for i, c := range v {
		if c != '<' && c != '(' {
			continue
		}
		for _, t := range [...]string{"<GS>", "<FNC1>", "(GS)", "(FNC1)", "<0x1D>", "<1D>"} {
			if len(v)-i >= len(t) && equalFold(v[i:i+len(t)], t) {
				return true
			}
		}
	}
	return false
}

func equalFold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		d := s[i]
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		if d >= 'a' && d <= 'z' {
			d -= 'a' - 'A'
		}
		if c != d {
			return false
		}
	}
	return true
}

// add checks the value buf[from:to] of AI i, whose shape is known, and keeps it.
func (s *Scan) add(i uint16, from, to int, sh shape, today Date) Refusal {
	w, info := s.w, &ais.list[i]
	if info.flags&person != 0 {
		return refuse(PHI, detailPHI)
	}
	v := w.buf[from:to]
	again := w.seen.has(i)
	if again {
		old := w.elems[w.slot[i]]
		if bytes.Equal(v, w.buf[old.from:old.to]) {
			return Refusal{}
		}
	}
	if r := s.checkShape(info, v, sh); !r.OK() {
		return r
	}
	if info.key != 0 {
		key := v[:info.key]
		if !validMod10(key) {
			return refuse(CheckDigit, detailCheckDigit)
		}
		if info.flags&gtinKey != 0 && allZero(key) {
			return refuse(BadValue, detailZeroGTIN)
		}
	}
	var date Date
	if info.check != noCheck {
		var r Refusal
		if date, r = checkValue(info.check, v, today); !r.OK() {
			return r
		}
	}
	if again {
		return refuse(DuplicateAI, detailDuplicate)
	}
	w.seen.add(i)
	w.slot[i] = uint16(len(w.elems))
	w.elems = append(w.elems, element{ai: i, from: uint16(from), to: uint16(to)})
	switch info.field {
	case fieldGTIN, fieldITIP:
		s.GTIN = alias(v[:14])
	case fieldLot:
		s.Lot = alias(v)
	case fieldSerial:
		s.Serial = alias(v)
	case fieldExpiry:
		s.Expiry = date
	case fieldExpiryTime:
		if s.Expiry.IsZero() {
			s.Expiry = date
		}
	}
	return Refusal{}
}

// checkShape checks length and characters.
func (s *Scan) checkShape(info *aiInfo, v []byte, sh shape) Refusal {
	all, any := sh.all, sh.any
	switch {
	case len(v) >= int(info.min) && len(v) <= int(info.max) && all&info.set != 0 && any&markLT == 0 && info.num == 0:
		return Refusal{}
	case len(v) < int(info.min):
		if len(v) == 0 && info.flags&fixed == 0 {
			return refuse(BadLength, detailLength)
		}
		if all&setText == 0 {
			return refuse(ControlChar, detailControl)
		}
		return refuse(Truncated, detailTruncated)
	case any&markLT != 0 && spelledSeparator(v):
		return refuse(MissingSeparator, detailSpelled)
	case all&info.set == 0:
		if all&setText == 0 {
			return refuse(ControlChar, detailControl)
		}
		if info.set == setN && all&set82 != 0 && len(v) > int(info.max) {
			return s.tooLong(info, v)
		}
		return refuse(BadCharset, detailCharset)
	case len(v) > int(info.max):
		return s.tooLong(info, v)
	case leadingDigits(v, int(info.num)) < int(info.num):
		return refuse(BadCharset, detailCharset)
	}
	return Refusal{}
}

// tooLong tells two scans in one frame from a lost separator.
func (s *Scan) tooLong(info *aiInfo, v []byte) Refusal {
	switch {
	case s.repeats(v):
		return refuse(Concatenated, detailTwoScans)
	case info.field == fieldLot:
		return refuse(BadLength, detailLongLot)
	case info.field == fieldSerial:
		return refuse(BadLength, detailLongSerial)
	}
	return refuse(BadLength, detailLongValue)
}

// repeats says that a value holds the scan's own GTIN as an element: the next scan, swallowed.
func (s *Scan) repeats(v []byte) bool {
	for s.GTIN != "" && len(v) >= 16 {
		i := bytes.Index(v, []byte("01"))
		if i < 0 || len(v)-i < 16 {
			return false
		}
		if alias(v[i+2:i+16]) == s.GTIN {
			return true
		}
		v = v[i+1:]
	}
	return false
}

// finish judges the elements together.
func (d *Decoder) finish(s *Scan) Refusal {
	w := s.w
	for _, e := range w.elems {
		info := &ais.list[e.ai]
		for _, other := range info.excluded {
			if w.seen.has(other) {
				return refuse(IllegalPair, detailIllegal)
			}
		}
		if e.to-e.from > 16 && info.field != fieldITIP && s.repeats(w.buf[e.from:e.to]) {
			return refuse(Concatenated, detailTwoScans)
		}
	}
	if s.GTIN != "" && s.PkgLevel < 0 {
		d.setGTIN(s, s.GTIN)
	}
	if w.seen.has(ais.three[715]) {
		e := w.elems[w.slot[ais.three[715]]]
		if r := d.nationalNDC(s, w.buf[e.from:e.to]); !r.OK() {
			return r
		}
	}
	s.ExpiryLastDay = s.Expiry.LastDay()
	if !s.hasItem() {
		s.Flags |= FlagNoItemID
	}
	return Refusal{}
}

// hasSeparator says that b holds GS, or sep if it is not 0.
func hasSeparator(b []byte, sep byte) bool {
	return bytes.IndexByte(b, gs) >= 0 || sep != 0 && bytes.IndexByte(b, sep) >= 0
}

// hides looks for an AI of those that go with medicines, with something that fits it behind, within a value:
// an element whose separator was lost. noAI if there is none.
func hides(v []byte) uint16 {
	for i := 1; i+2 < len(v); i++ {
		rest := v[i+2:]
		ok := false
		switch string(v[i : i+2]) {
		case "10", "21":
			ok = true
		case "30", "37":
			ok = rest[0]-'0' <= 9
		case "11", "15", "17":
			ok = leadingDigits(rest, 6) == 6
		case "01":
			ok = leadingDigits(rest, 14) == 14
		}
		if ok {
			return ais.two[two(v[i:])]
		}
	}
	return noAI
}

// suspectLostSeparator flags a scan without AIM identifier and GS whose last value could hide an element.
func (s *Scan) suspectLostSeparator() {
	if n := len(s.w.elems); n > 0 {
		e := s.w.elems[n-1]
		if ais.list[e.ai].flags&fixed == 0 && hides(s.w.buf[e.from:e.to]) != noAI {
			s.Flags |= FlagMissingSeparator
		}
	}
}
