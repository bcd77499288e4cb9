package capture

import "bytes"

// DecoderConfig is what a site knows of its labels.
type DecoderConfig struct {
	Rx        []RxProfile
	Directory *Directory // nil: no NDC directory
}

// Decoder reads payloads. It is immutable and safe for concurrent use.
type Decoder struct {
	rx  []rxPattern
	dir *Directory
}

// NewDecoder compiles the patterns. An error names the profile and the fix.
func NewDecoder(c DecoderConfig) (*Decoder, error) {
	rx, err := compileRx(c.Rx)
	if err != nil {
		return nil, err
	}
	return &Decoder{rx: rx, dir: c.Directory}, nil
}

const (
	detailEmpty       = "Nothing was read: scan again."
	detailTooLong     = "The data is longer than 4096 bytes: this is no label that a pharmacy scans."
	detailProgramming = "The scanner sent a programming command, not a scan: scan the item again."
	detailID          = "This is an identity document. It was not read and nothing of it is kept."
	detailSymbology   = "This kind of barcode is never a drug label: scan the product's own barcode."
	detailFormat      = "This label's format is not used for drugs here: scan the product's own barcode."
	detailCase        = "The symbology identifier arrived in the wrong case: turn Caps Lock off, then scan again."
	detailNoGun       = "The base sent no gun address: check gun_digits of this scanner."
	detailSubstitute  = "This scanner's gs_substitute may stand within a value: choose one character outside the GS1 set, for example | ~ ^ or #."
	detailRxOrGTIN    = "The digits are a valid item number and also fit an Rx label format: let the scanner send AIM identifiers, or make the rx_profile stricter."
	detailRxOrNDC     = "The text is an NDC and also fits an Rx label format: make the rx_profile stricter."
	detailBare8       = "Eight digits may be EAN-8 or UPC-E: let the scanner send AIM identifiers, or set bare_digits of this scanner."
	detailBare11      = "Eleven digits may be an NDC or a UPC without its check digit: let the scanner send AIM identifiers, or set bare_digits of this scanner."
	detailEANLength   = "The EAN/UPC has the wrong number of digits: set the scanner to send the check digit and the number system."
	detailITFLength   = "The ITF code has not 14 digits: it was read in part. Scan again across the whole code."
	detailNotDigits   = "The code holds a character that is no digit: it was misread. Scan again."
)

// Decode reads one payload into s, with the framing still around it or not. p may be nil; today is the
// local day, for the century of two-digit years. A refused payload leaves only Symbology, Length and Gun
// in s, and nothing of the data in its memory.
func (d *Decoder) Decode(s *Scan, data []byte, p *Profile, today Date) Refusal {
	var none Profile
	if p == nil {
		p = &none
	}
	body := strip(data)
	if len(body) > maxPayload {
		s.begin(nil)
		s.Length = len(body)
		return refuse(TooLong, detailTooLong)
	}
	s.begin(body)
	s.Length = len(body)
	r := d.decode(s, body, p, today)
	if !r.OK() {
		s.wipe(len(body))
	}
	return r
}

func (d *Decoder) decode(s *Scan, body []byte, p *Profile, today Date) Refusal {
	w := s.w
	switch {
	case !p.substituteOK():
		return refuse(BadConfig, detailSubstitute)
	case blank(body):
		return refuse(Empty, detailEmpty)
	case body[0] == syn:
		return refuse(ProgrammingCode, detailProgramming)
	}
	if p.GunDigits > 0 {
		if leadingDigits(body, p.GunDigits) < p.GunDigits {
			if isIDDocument(body) {
				return refuse(IDDocument, detailID)
			}
			return refuse(BadConfig, detailNoGun)
		}
		s.Gun = s.put(alias(body[:p.GunDigits]))
		body = body[p.GunDigits:]
		w.buf = append(w.buf[:0], body...)
		w.raw = len(body)
	}
	if n := len(p.SymbologyPrefix); n > 0 && len(body) > n && alias(body[:n]) == p.SymbologyPrefix {
		w.buf = w.buf[:0]
		if body[n] != ']' {
			w.buf = append(w.buf, ']')
		}
		w.buf = append(w.buf, body[n:]...)
		w.raw = len(w.buf)
	}
	kind := carrierNone
	var letter, modifier byte // of the AIM identifier
	text := w.buf[:w.raw]
	if len(text) > 0 && text[0] == ']' {
		if len(text) < 3 {
			return refuse(Truncated, detailTruncated)
		}
		letter, modifier = text[1], text[2]
		kind = carrierOf(letter, modifier)
		if kind != carrierUnknown || isAlnum(letter) && letter > '9' && modifier >= '0' && modifier <= '9' {
			s.Symbology = alias(text[:3]) // anything else is no identifier: it may be the start of a name
		}
		text = text[3:]
	}
	if blank(text) {
		return refuse(Empty, detailEmpty)
	}
	switch {
	case text[0] == syn:
		return refuse(ProgrammingCode, detailProgramming)
	case isIDDocument(text):
		return refuse(IDDocument, detailID)
	}
	from := w.raw - len(text)
	switch kind {
	case carrierAI:
		return d.decodeAI(s, from, p, today)
	case carrierNone:
		return d.decodeBare(s, text, p, today)
	case carrierPlain, carrierPlain2D:
		return d.decodePlain(s, text, kind, today)
	case carrierRare:
		return d.decodeRare(s, text, today)
	case carrierEAN13, carrierEAN8, carrierEANAddOn:
		return d.decodeEAN(s, text, kind, p, today)
	case carrierITF, carrierITFUnchecked:
		return d.decodeITF(s, text, kind)
	}
	if c := letter; carrierOf(c^0x20, modifier) != carrierUnknown && isAlnum(c) && c > '9' {
		return refuse(UnsupportedSymbology, detailCase)
	}
	return refuse(UnsupportedSymbology, detailSymbology)
}

// decodeAI reads the element string of a carrier that says so.
func (d *Decoder) decodeAI(s *Scan, from int, p *Profile, today Date) Refusal {
	w := s.w
	if secondScan(w.buf[from:w.raw]) {
		return refuse(Concatenated, detailTwoScans)
	}
	if r := d.elementString(s, from, p.GSSubstitute, today); !r.OK() {
		return r
	}
	// Caps Lock turns ]E0 into ]e0. No DataBar holds 13 digits with a check digit and no GTIN element.
	if text := w.buf[from:w.raw]; s.Symbology == "]e0" && s.GTIN == "" && len(text) == 13 && allDigits(text) && validMod10(text) {
		return refuse(Ambiguous, detailCase)
	}
	return Refusal{}
}

func (d *Decoder) elementString(s *Scan, from int, sep byte, today Date) Refusal {
	s.Kind = KindGS1
	if r := d.elements(s, from, s.w.raw, sep, today); !r.OK() {
		return r
	}
	if len(s.w.elems) == 0 {
		return refuse(Empty, detailEmpty)
	}
	return d.finish(s)
}

// formatRefused names the label formats that are recognized to be refused: ISO/IEC 15434 envelopes and
// ISBT 128 blood labels.
func formatRefused(text []byte) bool {
	if bytes.HasPrefix(text, []byte("[)>")) {
		return true
	}
	return len(text) > 2 && (text[0] == '=' || text[0] == '&') && classes[text[1]]&setText != 0 && text[1] != ' '
}

// startsGTIN says that text begins with 01 and 14 digits, and whether they are a valid GTIN.
func startsGTIN(text []byte) (looks, valid bool) {
	if len(text) < 16 || text[0] != '0' || text[1] != '1' || !allDigits(text[2:16]) {
		return false, false
	}
	return true, validMod10(text[2:16])
}

// isSSCC says that text is 00 and 18 digits and nothing else, and whether they are a valid SSCC.
func isSSCC(text []byte) (looks, valid bool) {
	if len(text) != 20 || text[0] != '0' || text[1] != '0' || !allDigits(text) {
		return false, false
	}
	return true, validMod10(text[2:])
}

// decodeBare reads text that came without AIM identifier. Only strong evidence makes it GS1: a GS, or a
// valid GTIN or SSCC in first place.
func (d *Decoder) decodeBare(s *Scan, text []byte, p *Profile, today Date) Refusal {
	if formatRefused(text) {
		return refuse(UnsupportedFormat, detailFormat)
	}
	if isCommand(text) {
		return s.takeCommand(text)
	}
	looks, valid := startsGTIN(text)
	if !looks {
		looks, valid = isSSCC(text)
	}
	sep := hasSeparator(text, 0)
	if !sep && p.GSSubstitute != 0 && hasSeparator(text, p.GSSubstitute) {
		rest := text
		for len(rest) > 0 && rest[0] == p.GSSubstitute {
			rest = rest[1:]
		}
		i, _ := ais.find(rest)
		sep = i != noAI
	}
	switch {
	case looks && !sep && d.rxMatches(text):
		if valid {
			return refuse(Ambiguous, detailRxOrGTIN)
		}
		return d.rxOnly(s, text)
	case sep || valid:
		if secondScan(text) || twoLines(text) {
			return refuse(Concatenated, detailTwoScans)
		}
		r := d.elementString(s, 0, p.GSSubstitute, today)
		if r.OK() && !sep {
			s.suspectLostSeparator()
		}
		return r
	case looks:
		return refuse(CheckDigit, detailCheckDigit)
	case isURI(text):
		return d.digitalLink(s, 0, today)
	case isHRI(text):
		return d.hri(s, 0, today)
	case text[0] == '+':
		return d.hibc(s, text, today)
	case allDigits(text):
		return d.bareDigits(s, text, p)
	}
	return d.words(s, text, 0)
}

// bareDigits reads digits that came without AIM identifier.
func (d *Decoder) bareDigits(s *Scan, digits []byte, p *Profile) Refusal {
	rx := d.rxMatches(digits)
	switch n := len(digits); {
	case n >= 12 && n <= 14:
		if rx && validMod10(digits) {
			return refuse(Ambiguous, detailRxOrGTIN)
		}
		if rx {
			return d.rxOnly(s, digits)
		}
		kind := KindEANUPC
		if n == 14 {
			kind = KindITF14
		}
		return d.retail(s, digits, kind)
	case n == 8 && p.BareDigits == "ean8":
		if rx && validMod10(digits) {
			return refuse(Ambiguous, detailRxOrGTIN)
		}
		if rx {
			return d.rxOnly(s, digits)
		}
		return d.retail(s, digits, KindEANUPC)
	case n == 11 && p.BareDigits == "ndc11":
		if rx {
			return refuse(Ambiguous, detailRxOrNDC)
		}
		return s.assume542(digits)
	case rx:
		if n == 10 && d.listed(digits) {
			return refuse(Ambiguous, detailRxOrNDC)
		}
		return d.rxOnly(s, digits)
	case n == 8:
		return refuse(Ambiguous, detailBare8)
	case n == 11:
		return refuse(Ambiguous, detailBare11)
	case n == 10:
		return d.tenDigits(s, digits)
	case merged(digits):
		return refuse(Concatenated, detailTwoScans)
	}
	s.Kind = KindOpaque
	return Refusal{}
}

// decodePlain reads text of a carrier without AIs, even if it looks like AIs.
func (d *Decoder) decodePlain(s *Scan, text []byte, kind carrier, today Date) Refusal {
	switch {
	case formatRefused(text):
		return refuse(UnsupportedFormat, detailFormat)
	case isCommand(text):
		return s.takeCommand(text)
	case isURI(text) && kind == carrierPlain2D:
		return d.digitalLink(s, s.w.raw-len(text), today)
	case text[0] == '+':
		return d.hibc(s, text, today)
	case allDigits(text) && (len(text) == 10 || len(text) == 11):
		if d.rxMatches(text) {
			if len(text) == 10 && d.listed(text) {
				return refuse(Ambiguous, detailRxOrNDC)
			}
			return d.rxOnly(s, text)
		}
		if len(text) == 11 {
			return s.assume542(text)
		}
		return d.tenDigits(s, text)
	}
	var flags Flags
	_, gtin := startsGTIN(text)
	_, sscc := isSSCC(text)
	if gtin || sscc || isHRI(text) {
		flags = FlagLooksLikeGS1
	}
	return d.words(s, text, flags)
}

// words reads hyphenated NDCs and Rx labels; everything else is opaque.
func (d *Decoder) words(s *Scan, text []byte, flags Flags) Refusal {
	if secondScan(text) || twoLines(text) {
		return refuse(Concatenated, detailTwoScans)
	}
	for _, c := range text {
		if classes[c]&setText == 0 && c != gs {
			return refuse(ControlChar, detailControl)
		}
	}
	if looksHyphenated(text) {
		if d.rxMatches(text) {
			if _, ok := parseNDC(text); ok {
				return refuse(Ambiguous, detailRxOrNDC)
			}
			return d.rxOnly(s, text)
		}
		s.Kind = KindNDCText
		return s.takeNDC(text)
	}
	if taken, r := d.takeRx(s, text); taken || !r.OK() {
		return r
	}
	if isURI(text) {
		flags |= FlagURL
	}
	s.Kind = KindOpaque
	s.Flags = flags
	return Refusal{}
}

// rxOnly reads text that a profile fits and nothing else.
func (d *Decoder) rxOnly(s *Scan, text []byte) Refusal {
	_, r := d.takeRx(s, text)
	return r
}

// decodeRare takes only what proves itself: commands, HIBC and Rx labels.
func (d *Decoder) decodeRare(s *Scan, text []byte, today Date) Refusal {
	switch {
	case isCommand(text):
		return s.takeCommand(text)
	case text[0] == '+':
		return d.hibc(s, text, today)
	}
	if taken, r := d.takeRx(s, text); taken || !r.OK() {
		return r
	}
	return refuse(UnsupportedSymbology, detailSymbology)
}

func (s *Scan) takeCommand(text []byte) Refusal {
	c, r := parseCommand(alias(text))
	if r.OK() {
		s.Kind, s.Command = KindCommand, c
	}
	return r
}

// assume542 takes 11 digits as 5-4-2, the form of billing systems.
func (s *Scan) assume542(digits []byte) Refusal {
	if allZero(digits) {
		return refuse(BadValue, detailZeroNDC)
	}
	s.Kind = KindNDCText
	s.decide(alias(digits))
	s.Flags |= FlagAssumed542
	return Refusal{}
}

// listed says that ten digits are an NDC of the directory.
func (d *Decoder) listed(digits []byte) bool { return d.dir.forms((*[10]byte)(digits)) != 0 }

func (d *Decoder) tenDigits(s *Scan, digits []byte) Refusal {
	if allZero(digits) {
		return refuse(BadValue, detailZeroNDC)
	}
	s.Kind = KindNDCText
	d.resolve10(s, alias(digits))
	return Refusal{}
}

// decodeEAN reads EAN/UPC, alone, with an add-on, or with a composite component behind "|]e0".
func (d *Decoder) decodeEAN(s *Scan, text []byte, kind carrier, p *Profile, today Date) Refusal {
	size := 13
	if kind == carrierEAN8 {
		size = 8
	}
	digits, rest := text, text[:0]
	if len(text) > size {
		digits, rest = text[:size], text[size:]
	}
	composite := bytes.HasPrefix(rest, []byte("|]e0"))
	addOn := kind == carrierEANAddOn && (len(rest) == 2 || len(rest) == 5) && allDigits(rest)
	switch {
	case secondScan(text) && (!composite || secondScan(rest[4:])):
		return refuse(Concatenated, detailTwoScans)
	case twoLines(text) || allDigits(text) && merged(text):
		return refuse(Concatenated, detailTwoScans)
	case len(digits) > 0 && !allDigits(digits):
		if shapeOf(digits).all&setText == 0 {
			return refuse(ControlChar, detailControl)
		}
		return refuse(BadCharset, detailNotDigits)
	case len(digits) < size, kind == carrierEANAddOn && !addOn, !addOn && !composite && len(rest) > 0:
		return refuse(BadLength, detailEANLength)
	}
	if r := d.retail(s, digits, KindEANUPC); !r.OK() || len(rest) == 0 {
		return r
	}
	if addOn {
		s.AddOn = alias(rest)
		return Refusal{}
	}
	w := s.w
	from := len(w.buf)
	w.buf = append(w.buf, s.GTIN...)
	if r := s.add(ais.two[1], from, from+14, shape{all: setN | setText}, today); !r.OK() {
		return r
	}
	if r := d.elements(s, w.raw-len(rest)+4, w.raw, p.GSSubstitute, today); !r.OK() {
		return r
	}
	return d.finish(s)
}

// decodeITF reads ITF-14. Only a reader that verified the check digit says ]I1; with ]I0 other lengths
// may be a pharmacy's own label.
func (d *Decoder) decodeITF(s *Scan, text []byte, kind carrier) Refusal {
	if secondScan(text) || twoLines(text) || allDigits(text) && merged(text) {
		return refuse(Concatenated, detailTwoScans)
	}
	if kind == carrierITFUnchecked && d.rxMatches(text) {
		if len(text) == 14 && allDigits(text) && validMod10(text) {
			return refuse(Ambiguous, detailRxOrGTIN)
		}
		return d.rxOnly(s, text)
	}
	switch {
	case !allDigits(text):
		return refuse(BadCharset, detailNotDigits)
	case len(text) == 14:
		return d.retail(s, text, KindITF14)
	case kind == carrierITFUnchecked:
		return refuse(UnsupportedSymbology, detailSymbology)
	}
	return refuse(BadLength, detailITFLength)
}
