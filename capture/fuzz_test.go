package capture

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

func seeds(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(latin1(v.In))
	}
}

// decodeAny checks what holds of every payload, and returns the scan if it was accepted.
func decodeAny(t *testing.T, d *Decoder, data []byte, p *Profile) *Scan {
	t.Helper()
	s := new(Scan)
	given := string(data)
	r := d.Decode(s, data, p, vectorDay)
	if string(data) != given {
		t.Fatal("the payload was changed")
	}
	if !r.OK() {
		if r.Detail == "" || r.Detail[0] < 'A' || r.Detail[0] > 'Z' || !strings.HasSuffix(r.Detail, ".") {
			t.Fatalf("%s has the detail %q", r.Kind, r.Detail)
		}
		if !staticDetails[r.Detail] {
			t.Fatalf("the detail %q is not fixed text", r.Detail)
		}
		nothingLeft(t, s)
		return nil
	}
	if r.Detail != "" || s.Kind == KindNone {
		t.Fatalf("accepted with %q as %v", r.Detail, s.Kind)
	}
	if e := s.Element(); !strings.Contains(given, string(e)) || len(e) > maxPayload {
		t.Fatalf("element %q of %q", e, given)
	}
	if s.IsMovement() && s.GTIN == "" && s.NDC() == "" && s.HIBC == "" {
		t.Fatal("a movement names no item")
	}
	if s.GTIN != "" && (len(s.GTIN) != 14 || !allDigits([]byte(s.GTIN)) || !validMod10([]byte(s.GTIN)) || int(s.PkgLevel) != int(s.GTIN[0]-'0')) {
		t.Fatalf("GTIN %q, level %d", s.GTIN, s.PkgLevel)
	}
	if n := s.NDC(); n != "" && (len(n) != 11 && len(n) != 12 || !allDigits([]byte(n))) {
		t.Fatalf("NDC %q", n)
	}
	if !s.Expiry.IsZero() && (!s.ExpiryLastDay.exists() || s.Expiry.LastDay() != s.ExpiryLastDay) {
		t.Fatalf("expiry %v, last day %v", s.Expiry, s.ExpiryLastDay)
	}
	s.Report()
	return s
}

// nothingLeft checks that of a refused payload only an AIM identifier, the gun's digits and the length are
// left, in the fields and in the memory behind them.
func nothingLeft(t *testing.T, s *Scan) {
	t.Helper()
	w := s.w
	want := Scan{w: w, PkgLevel: -1, Symbology: s.Symbology, Gun: s.Gun, Length: s.Length}
	want.HIBCData.Quantity = -1
	if *s != want || s.Element() != nil || s.IsMovement() || len(elementsOf(s)) != 0 {
		t.Fatal("a refused scan keeps content")
	}
	if sym := s.Symbology; sym != "" && (len(sym) != 3 || sym[0] != ']' || !isAlnum(sym[1]) || !isAlnum(sym[2])) {
		t.Fatalf("the symbology %q is no identifier", sym)
	}
	if s.Gun != "" && (len(s.Gun) > maxGunDigits || !allDigits([]byte(s.Gun))) {
		t.Fatalf("the gun %q is no address", s.Gun)
	}
	if strings.Trim(string(w.buf[:cap(w.buf)][len(s.Symbology):])+string(w.arena[:cap(w.arena)][len(s.Gun):])+string(w.readings[:]), "\x00") != "" {
		t.Fatal("the payload is left in memory")
	}
}

// accountsFor checks that the elements are all that the element string says: passing over GS, each of its
// bytes belongs to one of them, and a value without predefined length ends at GS or at the end.
func accountsFor(t *testing.T, s *Scan, text string) {
	t.Helper()
	for text != "" {
		if text[0] == gs {
			text = text[1:]
			continue
		}
		found := ""
		s.AIs(func(ai, _, value string) bool {
			e := ai + value
			predefined := ais.list[ais.exact([]byte(ai))].flags&fixed != 0
			if strings.HasPrefix(text, e) && (predefined || len(text) == len(e) || text[len(e)] == gs) {
				found = e
			}
			return found == ""
		})
		if found == "" {
			t.Fatalf("%q is in no element", text)
		}
		text = text[len(found):]
	}
	for ai, field := range map[string]string{"10": s.Lot, "21": s.Serial} {
		got := ""
		s.AIs(func(a, _, value string) bool {
			if a == ai {
				got = value
			}
			return true
		})
		if got != field {
			t.Fatalf("element %s is %q, the scan says %q", ai, got, field)
		}
	}
}

// staticDetails are all sentences that a refusal may say.
var staticDetails = map[string]bool{
	detailEmpty: true, detailTooLong: true, detailProgramming: true, detailID: true, detailSymbology: true, detailFormat: true,
	detailCase: true, detailNoGun: true, detailSubstitute: true, detailRxOrGTIN: true, detailRxOrNDC: true, detailBare8: true,
	detailBare11: true, detailEANLength: true, detailITFLength: true, detailNotDigits: true, detailLength: true, detailLongValue: true, detailLongLot: true, detailLongSerial: true,
	detailTruncated: true, detailCharset: true, detailControl: true, detailUnknownAI: true, detailPHI: true, detailDuplicate: true,
	detailIllegal: true, detailSpelled: true, detailTwoScans: true, detailDate: true, detailValue: true, detailPair: true,
	detailCountry: true, detailPieceBad: true, detailCheckDigit: true, detailZeroGTIN: true, detailBadNDC: true, detailZeroNDC: true,
	detailHIBCShort: true, detailHIBCLength: true, detailHIBCCharset: true, detailHIBCCheck: true, detailHIBCValue: true,
	detailHIBCDate: true, detailHIBCProvider: true, detailHIBCTwice: true, detailURI: true, detailURIEscape: true,
	detailCommand: true, detailCommandCase: true, detailQuantity: true, detailTwoRx: true, detailRxEmpty: true,
}

func FuzzFrame(f *testing.F) {
	seeds(f)
	dir, err := ParseDirectory([]string{"0093-7214-10", "12345-678-90"})
	if err != nil {
		f.Fatal(err)
	}
	d, err := NewDecoder(DecoderConfig{Directory: dir, Rx: []RxProfile{{"a", `R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4})`}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range []*Profile{nil, {GSSubstitute: '|', GunDigits: 2, BareDigits: "ndc11"}, {GSSubstitute: '~', BareDigits: "ean8"}} {
			decodeAny(t, d, data, p)
		}
	})
}

// Re-encoding the elements of an accepted scan reads the same.
func FuzzElementString(f *testing.F) {
	seeds(f)
	d := plainDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := decodeAny(t, d, append([]byte("]d2"), data...), nil)
		if s == nil {
			return
		}
		accountsFor(t, s, string(s.Element()[3:]))
		again := decodeAny(t, d, []byte(encodeGS1(s)), nil)
		if again == nil {
			t.Fatalf("%q is refused", encodeGS1(s))
		}
		if a, b := strings.Join(elementsOf(s), "\x1d"), strings.Join(elementsOf(again), "\x1d"); a != b {
			t.Fatalf("%q became %q", a, b)
		}
		if s.GTIN != again.GTIN || s.Lot != again.Lot || s.Serial != again.Serial || s.Expiry != again.Expiry || s.Flags != again.Flags || s.NDC() != again.NDC() {
			t.Fatalf("%q reads differently", encodeGS1(s))
		}
	})
}

// Whatever follows the plus sign, with its right check character: the parts are what the text says.
func FuzzHIBC(f *testing.F) {
	for _, v := range vectors(f) {
		if i := strings.IndexByte(v.In, '+'); i >= 0 {
			f.Add([]byte(v.In[i+1:]))
		}
	}
	d := plainDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		decodeAny(t, d, append([]byte("]C0+"), data...), nil)
		body := []byte("+")
		for _, c := range data {
			if mod43Value[c] >= 0 {
				body = append(body, c)
			}
		}
		s := decodeAny(t, d, []byte(hibcText(string(body))), nil)
		if s == nil {
			return
		}
		for _, part := range []string{s.HIBC, s.Lot, s.Serial, s.HIBCData.Link} {
			if !strings.Contains(string(body), part) {
				t.Fatalf("%q is not in the label", part)
			}
		}
		if (s.HIBC == "") != s.Flags.Has(FlagNeedsPrimary) || s.HIBC != s.HIBCData.LIC+s.HIBCData.PCN+s.HIBCData.UOM {
			t.Fatalf("primary %q", s.HIBC)
		}
	})
}

func FuzzDigitalLink(f *testing.F) {
	for _, v := range vectors(f) {
		if i := strings.Index(strings.ToLower(v.In), "://"); i >= 0 {
			f.Add([]byte(v.In[i+3:]))
		}
	}
	d := plainDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := decodeAny(t, d, append([]byte("]Q1https://"), data...), nil)
		if s == nil || s.Kind != KindDigitalLink {
			return
		}
		// The same elements read the same from an element string.
		again := decodeAny(t, d, []byte(encodeGS1(s)), nil)
		if again == nil || strings.Join(elementsOf(s), "\x1d") != strings.Join(elementsOf(again), "\x1d") {
			t.Fatalf("%q reads differently", encodeGS1(s))
		}
	})
}

// No part of a document that follows its header passes while its lines come back to back, and a scan
// after a pause always does.
func FuzzAAMVA(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Error == string(IDDocument) {
			f.Add(latin1(v.In))
		}
	}
	f.Add([]byte(licence))
	f.Add([]byte(strings.Repeat("\t", 350)))
	d := plainDecoder(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		decodeAny(t, d, data, nil)
		for _, header := range []string{"@\n\x1e\rANSI 636000", "]L2@\r\n\x1e\r\nANSI 636000", "AAMVA636000"} {
			if decodeAny(t, d, append([]byte(header), data...), nil) != nil {
				t.Fatalf("%q was read", header)
			}
		}
		var b Burst
		now := time.Hour
		if !b.Absorb([]byte("ANSI 636000090002DL"), now) {
			t.Fatal("the header passed")
		}
		total := len("ANSI 636000090002DL")
		for _, line := range strings.FieldsFunc(string(data), func(c rune) bool { return c == '\r' || c == '\n' }) {
			now += time.Duration(len(line)) * time.Millisecond
			total += len(line)
			if total > burstBytes/2 || strings.Contains(line, "]") || drugEvidence([]byte(line)) {
				break
			}
			if !b.Absorb([]byte(line), now) {
				t.Fatalf("line %q passed", line)
			}
		}
		for _, next := range []string{"300937214106", "SHELF 12"} {
			if c := b; c.Absorb([]byte(next), now+time.Second) {
				t.Fatalf("the next scan was swallowed: %s", next)
			}
		}
	})
}

func FuzzDirectory(f *testing.F) {
	f.Add("0093-7214-10\n# comment\n\n12345-*678-09")
	f.Add("100001-0001-02\r\n012345-0678-90")
	f.Add("1234-567-89")
	f.Fuzz(func(t *testing.T, text string) {
		dir, err := LoadDirectory(strings.NewReader(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "cannot read ") {
				t.Fatal(err)
			}
			return
		}
		listed := 0
		for line := range strings.Lines(text) {
			n, ok := parseNDC([]byte(strings.TrimSpace(line)))
			if !ok {
				continue
			}
			listed++
			if n.form < form542 && dir.forms(&n.ten)&(1<<n.form) == 0 {
				t.Fatalf("%q is not found", line)
			}
		}
		if dir.Len() > listed || listed > 0 && dir.Len() == 0 {
			t.Fatalf("%d packages of %d lines", dir.Len(), listed)
		}
	})
}

// Whatever is imported: each line is counted once, what a list names is found, the file is read in one way, and an
// index says the same as what it was made of. Whatever is read as a directory is an answer or an error.
func FuzzImportNDC(f *testing.F) {
	for _, name := range []string{"package.txt", "product.txt"} {
		f.Add(sample(f, name))
	}
	f.Add(sampleIndex(f))
	for _, text := range []string{
		"0093-7214-10\r\n# comment\r\n12345-*678-09\n100001-0001-02", "\ufeffNDCPACKAGECODE\n0093-7214-10\n",
		"\"NDCPACKAGECODE\"\t\"x\"\n\"0093-7214-10\"\t\"a\tb\"\n", "PRODUCTNDC\tx\n0093-7214\t\"\n\"0093-721\t",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if d, err := ReadDirectory(bytes.Clone(data)); err == nil {
			for i := range len(d.entries) / entrySize {
				var ten [10]byte
				copy(ten[:], fmt.Sprintf("%010d", d.entry(i)>>2))
				if d.forms(&ten)&(1<<(d.entry(i)&3)) == 0 {
					t.Fatalf("entry %d is not found", i)
				}
			}
		} else if !strings.HasPrefix(err.Error(), "cannot ") {
			t.Fatal(err)
		}
		var im DirectoryImport
		last := 0
		if err := im.Read(bytes.NewReader(data), func(n int, why string) {
			if n <= last || why == "" {
				t.Fatalf("line %d after %d: %q", n, last, why)
			}
			last = n
		}); err != nil {
			if !strings.HasPrefix(err.Error(), "cannot ") {
				t.Fatal(err)
			}
			return
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		if n := im.Packages + im.Products + im.Skipped; n > lines || n < 1 || im.Packages+im.Products == 0 || im.Packages > 0 && im.Products > 0 {
			t.Fatalf("%d packages, %d products, %d skipped of %d lines", im.Packages, im.Products, im.Skipped, lines)
		}
		made, err := im.Directory()
		if (err == nil) != (im.Packages > 0) {
			t.Fatalf("%d packages: %v", im.Packages, err)
		}
		if err != nil {
			return
		}
		read, err := ReadDirectory(made.AppendIndex(nil, 7))
		if err != nil || read.Len() != made.Len() || !bytes.Equal(read.entries, made.entries) || read.Dated() != 7 {
			t.Fatalf("the index differs: %v", err)
		}
		if list, err := LoadDirectory(bytes.NewReader(data)); err == nil && list.Len() > 0 && !bytes.Equal(list.entries, made.entries) {
			t.Fatal("the list and its import differ")
		}
	})
}
