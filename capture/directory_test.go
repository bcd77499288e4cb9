package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scanonce/window"
)

// importAll imports texts and returns the bad lines as "number: reason".
func importAll(t testing.TB, texts ...[]byte) (im *DirectoryImport, d *Directory, wrong []string) {
	t.Helper()
	im = new(DirectoryImport)
	for _, text := range texts {
		if err := im.Read(bytes.NewReader(text), func(n int, why string) { wrong = append(wrong, fmt.Sprintf("%d: %s", n, why)) }); err != nil {
			t.Fatal(err)
		}
	}
	d, err := im.Directory()
	if err != nil {
		t.Fatal(err)
	}
	return im, d, wrong
}

func sample(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/ndc/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func formsOf(d *Directory, ten string) uint8 { return d.forms((*[10]byte)([]byte(ten))) }

// The sample has what real files have: CRLF, quotes, tabs within them, Windows-1252, 6-4-2, "*", bad lines.
func TestImportSample(t *testing.T) {
	for _, files := range [][]string{{"package.txt", "product.txt"}, {"product.txt", "package.txt"}} {
		im, d, wrong := importAll(t, sample(t, files[0]), sample(t, files[1]))
		if im.Packages != 8 || im.Products != 7 || im.Skipped != 8 || d.Len() != 7 {
			t.Errorf("%d packages, %d products, %d skipped, %d listed", im.Packages, im.Products, im.Skipped, d.Len())
		}
		for _, want := range []string{"8: " + notHyphenated, "9: " + notHyphenated, "10: it has too few columns", "12: " + allZeros,
			"15: it ends with its NDC, the columns after it are missing", "11: " + allZeros} {
			if !slices.Contains(wrong, want) {
				t.Errorf("%q is missing in %q", want, wrong)
			}
		}
		for ten, want := range map[string]uint8{
			"9990100110": 1 << form442, "9990110230": 1 << form532, "9990210031": 1 << form541, "9990310045": 1 << form541,
			"9990410630": 1 << form532, "9990510072": 1 << form541, "9990610081": 0, "9000010051": 0, "1900001005": 0,
		} {
			if got := formsOf(d, ten); got != want {
				t.Errorf("%s: %03b, want %03b", ten, got, want)
			}
		}
	}
}

const packageHeader = "PRODUCTID\tPRODUCTNDC\tNDCPACKAGECODE\tPACKAGEDESCRIPTION\n"

func TestImportLayouts(t *testing.T) {
	const row = "x\t0093-7214\t0093-7214-10\tBOTTLE\n"
	for name, c := range map[string]struct {
		text string
		want string // what the error says; "" is 0093-7214-10 alone
	}{
		"package.txt":          {packageHeader + row, ""},
		"CRLF":                 {strings.ReplaceAll(packageHeader+row, "\n", "\r\n"), ""},
		"byte order mark":      {"\ufeff" + packageHeader + row, ""},
		"quoted header":        {"\"PRODUCTID\"\t\"PRODUCTNDC\"\t\"NDCPACKAGECODE\"\t\"PACKAGEDESCRIPTION\"\n" + row, ""},
		"small letters":        {strings.ToLower(packageHeader) + row, ""},
		"other order":          {"NDCPACKAGECODE\tPRODUCTID\n0093-7214-10\tx\n", ""},
		"last column":          {"PRODUCTID\tNDCPACKAGECODE\nx\t0093-7214-10\n", ""},
		"one column":           {"NDCPACKAGECODE\n0093-7214-10", ""},
		"blank lines first":    {"\n \n" + packageHeader + row, ""},
		"list":                 {"0093-7214-10\n", ""},
		"list with a BOM":      {"\ufeff0093-7214-10\r\n\r\n", ""},
		"list with comments":   {"# NDC\tof us\n 0093-7214-10 \n#\n", ""},
		"quoted tab before":    {packageHeader + "\"x\ty\"\t0093-7214\t0093-7214-10\tBOTTLE\n", ""},
		"quote of inches":      {packageHeader + "\"x\t0093-7214\t0093-7214-10\tBOTTLE\n", ""},
		"quotes within":        {packageHeader + "\"6\" x\t0093-7214\t0093-7214-10\t\"BOTTLE\"\n", ""},
		"spaces":               {packageHeader + "x\t0093-7214\t 0093-7214-10 \tBOTTLE\n", ""},
		"no package column":    {"PRODUCTID\tPRODUCTNDC\tPACKAGEDESCRIPTION\nx\t0093-7214\tBOTTLE\n", "NDCPACKAGECODE"},
		"no product column":    {"PRODUCTID\tPROPRIETARYNAME\nx\ty\n", "PRODUCTNDC"},
		"some table":           {"a\tb\n0093-7214-10\tx\n", "NDCPACKAGECODE"},
		"commas":               {"PRODUCTID,PRODUCTNDC,NDCPACKAGECODE\nx,0093-7214,0093-7214-10\n", "cannot use any line"},
		"UTF-16":               {"\xff\xfeN\x00D\x00C\x00\t\x00", "cannot find the column"},
		"header alone":         {packageHeader, "cannot use any line"},
		"no usable package":    {packageHeader + "x\ty\tz\t\n", "cannot use any line"},
		"empty":                {"", "cannot use any line"},
		"prose":                {"Dear pharmacist\n", "cannot use any line"},
		"one very long line":   {strings.Repeat("NDCPACKAGECODE ", 1<<20), "too long"},
		"products alone":       {"PRODUCTID\tPRODUCTNDC\tPROPRIETARYNAME\nx\t0093-7214\tA\n", "products alone"},
		"products of 3 groups": {"PRODUCTID\tPRODUCTNDC\tPROPRIETARYNAME\nx\t0093-7214-10\tA\n", "cannot use any line"},
	} {
		t.Run(name, func(t *testing.T) {
			var im DirectoryImport
			err := im.Read(strings.NewReader(c.text), func(int, string) {})
			var d *Directory
			if err == nil {
				d, err = im.Directory()
			}
			if c.want != "" {
				if err == nil || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one about %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if im.Packages != 1 || im.Skipped != 0 || d.Len() != 1 || formsOf(d, "0093721410") != 1<<form442 {
				t.Errorf("%+v", im)
			}
		})
	}
}

// A long line costs itself alone, not the memory nor the lines around it.
func TestImportLongLine(t *testing.T) {
	text := packageHeader + "a\tb\t0093-7214-10\tc\n" + "x\ty\t0406-0512-01\t" + strings.Repeat("\"", 5*maxImportLine) + "\na\tb\t12345-678-90\tc\n"
	im, d, wrong := importAll(t, []byte(text))
	if im.Packages != 2 || im.Skipped != 1 || d.Len() != 2 || !slices.Equal(wrong, []string{"3: it is too long"}) {
		t.Errorf("%d packages, skipped %q", im.Packages, wrong)
	}
}

type brokenReader struct{ text []byte }

func (r *brokenReader) Read(p []byte) (int, error) {
	if len(r.text) == 0 {
		return 0, errors.New("the disk is gone")
	}
	n := copy(p, r.text)
	r.text = r.text[n:]
	return n, nil
}

// What was read before an error of the disk is no directory.
func TestImportReadError(t *testing.T) {
	var im DirectoryImport
	err := im.Read(&brokenReader{[]byte("0093-7214-10\n0406-0512-01\n")}, func(int, string) {})
	if err == nil || !strings.Contains(err.Error(), "line 3") || !strings.Contains(err.Error(), "the disk is gone") {
		t.Error(err)
	}
}

// listedForms is the rule, written down a second time: a listed NDC is found by ten digits in the hyphenation in which
// they pad to the same twelve digits, and only in its own if it is written with ten.
func listedForms(listed []string, ten string) (forms uint8) {
	pad := func(ndc string) string {
		g := strings.Split(strings.Replace(ndc, "*", "0", 1), "-")
		return fmt.Sprintf("%06s%04s%02s", g[0], g[1], g[2])
	}
	for form, w := range [][2]int{{4, 8}, {5, 8}, {5, 9}} {
		asked := ten[:w[0]] + "-" + ten[w[0]:w[1]] + "-" + ten[w[1]:]
		for _, l := range listed {
			own := l == asked
			if strings.Contains(l, "*") { // names its ten-digit form by the digit that only pads
				own = strings.Replace(l, "*", "", 1) == asked
			} else if len(l) > 12 {
				own = pad(l) == pad(asked)
			}
			if own {
				forms |= 1 << form
			}
		}
	}
	return forms
}

// Whatever the layout, order, line ends and bad lines between: every imported NDC is found, and no other; two
// listed readings of ten digits decide nothing; and an index says the same as what it was made of.
func TestImportFindsWhatIsListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digit := func(n int) string { return rapid.StringMatching(fmt.Sprintf("[0-2]{%d}", n)).Draw(t, "digits") }
		var listed []string
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			w := rapid.SampledFrom([][3]int{{4, 4, 2}, {5, 3, 2}, {5, 4, 1}, {5, 4, 2}, {6, 4, 2}}).Draw(t, "form")
			g := []string{digit(w[0]), digit(w[1]), digit(w[2])}
			if w == [3]int{5, 4, 2} && rapid.Bool().Draw(t, "star") {
				i := rapid.IntRange(0, 2).Draw(t, "group")
				g[i] = "*" + g[i][1:]
			}
			if n := strings.Join(g, "-"); strings.Trim(n, "0-*") != "" {
				listed = append(listed, n)
			}
		}
		if len(listed) == 0 {
			return
		}
		end := rapid.SampledFrom([]string{"\n", "\r\n"}).Draw(t, "end")
		asTable := rapid.Bool().Draw(t, "table")
		var text strings.Builder
		bad := 0
		if asTable {
			text.WriteString(strings.TrimSuffix(packageHeader, "\n") + end)
		}
		for _, n := range listed {
			if rapid.IntRange(0, 3).Draw(t, "bad") == 0 {
				text.WriteString(rapid.SampledFrom([]string{"nonsense", "a\tb", "a\tb\t1-2-3\tc", "a\tb\t0000-0000-00\tc", "a\tb\t0093-7214-10"}).Draw(t, "line") + end)
				bad++
			}
			switch {
			case !asTable:
				text.WriteString(n + end)
			case rapid.Bool().Draw(t, "quoted"):
				fmt.Fprintf(&text, "\"a\t\"\"b\"\t\"c\"\t\"%s\"\t\"d\te\"%s", n, end)
			default:
				fmt.Fprintf(&text, "a\tb\t%s\t6\" wide%s", n, end)
			}
		}
		var im DirectoryImport
		if err := im.Read(strings.NewReader(text.String()), func(int, string) {}); err != nil {
			if !asTable && bad > 0 && strings.Contains(err.Error(), "header") {
				return // a list that begins with tabs
			}
			t.Fatal(err)
		}
		if im.Packages != len(listed) || im.Skipped != bad {
			t.Fatalf("%d packages and %d skipped of %d and %d", im.Packages, im.Skipped, len(listed), bad)
		}
		made, err := im.Directory()
		if err != nil {
			t.Fatal(err)
		}
		read, err := ReadDirectory(made.AppendIndex(nil, 1))
		if err != nil {
			t.Fatal(err)
		}
		dec, err := NewDecoder(DecoderConfig{Directory: read})
		if err != nil {
			t.Fatal(err)
		}
		ask := []string{digit(10), digit(10)}
		for _, l := range listed { // the digits as listed, and each of their ten neighbours
			d := strings.NewReplacer("-", "", "*", "").Replace(l)
			for i := range len(d) - 9 {
				ask = append(ask, d[i:i+10])
			}
			for i := range d {
				if less := d[:i] + d[i+1:]; len(less) >= 10 {
					ask = append(ask, less[len(less)-10:])
				}
			}
		}
		for _, ten := range ask {
			want := listedForms(listed, ten)
			if got := formsOf(made, ten); got != want {
				t.Fatalf("%s: %03b, want %03b of %q", ten, got, want, listed)
			}
			if got := formsOf(read, ten); got != want {
				t.Fatalf("%s in the index: %03b, want %03b of %q", ten, got, want, listed)
			}
			if ten == "0000000000" {
				continue // refused as a GTIN
			}
			var s Scan
			if r := dec.Decode(&s, []byte("]d20100"+"3"+ten+string(checkDigitOf("003"+ten))), nil, vectorDay); !r.OK() {
				t.Fatalf("%s: %v", ten, r)
			}
			switch want {
			case 0:
				if s.NDC11 != "" || s.Flags != FlagNDCUnresolved {
					t.Fatalf("%s is not listed: %q %v", ten, s.NDC11, s.Flags.Names())
				}
			case 1 << form442, 1 << form532, 1 << form541:
				if want != 1<<slices.Index(s.Candidates11[:], s.NDC11) && !sameCandidates(&s) || s.Flags != 0 {
					t.Fatalf("%s: %q of %v, want %03b", ten, s.NDC11, s.Candidates11, want)
				}
			default:
				if s.NDC11 != "" || s.Flags != FlagNDCAmbiguous || s.GTIN == "" {
					t.Fatalf("%s is listed twice: %q %v", ten, s.NDC11, s.Flags.Names())
				}
			}
		}
	})
}

// sameCandidates says that readings coincide, as those of zeros do.
func sameCandidates(s *Scan) bool {
	c := s.Candidates11
	return c[0] == c[1] || c[1] == c[2] || c[0] == c[2]
}

func checkDigitOf(digits string) byte {
	sum := 0
	for i := range digits {
		w := 1
		if (len(digits)-i)%2 == 1 {
			w = 3
		}
		sum += w * int(digits[i]-'0')
	}
	return '0' + byte((10-sum%10)%10)
}

func sampleIndex(t testing.TB) []byte {
	t.Helper()
	_, d, _ := importAll(t, sample(t, "package.txt"))
	return d.AppendIndex(nil, 1796000000123)
}

func TestIndexFile(t *testing.T) {
	b := sampleIndex(t)
	d, err := ReadDirectory(b)
	if err != nil {
		t.Fatal(err)
	}
	if d.Len() != 7 || d.Dated() != window.UTC(1796000000123) || len(b) != indexHead+6*entrySize+indexTail {
		t.Errorf("%d packages, dated %v, %d bytes", d.Len(), d.Dated(), len(b))
	}
	// The format is fixed: an agent of another version reads it.
	if want := "scan-ndc\x01\x00\x00\x00\x07\x00\x00\x00"; string(b[:16]) != want {
		t.Errorf("head %q, want %q", b[:16], want)
	}
	list, err := ReadDirectory([]byte("0093-7214-10\n"))
	if err != nil || list.Len() != 1 || list.Dated() != 0 {
		t.Errorf("a text list: %v, %v", list, err)
	}
}

// Every flipped bit, every cut and every addition is noticed.
func TestDamagedIndex(t *testing.T) {
	whole := sampleIndex(t)
	for i := range whole {
		for bit := range 8 {
			b := slices.Clone(whole)
			b[i] ^= 1 << bit
			if _, err := ReadDirectory(b); !errors.Is(err, ErrDamagedIndex) {
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
	for n := range whole {
		if _, err := ReadDirectory(whole[:n:n]); err == nil {
			t.Fatalf("cut to %d bytes it is taken", n)
		}
	}
	if _, err := ReadDirectory(append(slices.Clone(whole), 0)); !errors.Is(err, ErrDamagedIndex) {
		t.Error("a longer one is taken")
	}
}

// What has a right checksum and was not written by import does not answer at random.
func TestForeignIndex(t *testing.T) {
	_, d, _ := importAll(t, []byte("0093-7214-10\n0406-0512-01\n"))
	type change struct {
		name string
		do   func(d *Directory)
		want error
	}
	for _, c := range []change{
		{"descending", func(d *Directory) { d.entries = append(slices.Clone(d.entries[entrySize:]), d.entries[:entrySize]...) }, ErrDamagedIndex},
		{"twice", func(d *Directory) {
			d.entries = append(slices.Clone(d.entries[:entrySize]), d.entries[:entrySize]...)
		}, ErrDamagedIndex},
		{"no form", func(d *Directory) { d.entries = slices.Clone(d.entries); d.entries[0] |= 3 }, ErrDamagedIndex},
		{"half an entry", func(d *Directory) { d.entries = d.entries[:entrySize+1] }, ErrDamagedIndex},
		{"no package", func(d *Directory) { d.entries, d.packages = nil, 0 }, ErrEmptyList},
	} {
		changed := *d
		c.do(&changed)
		if _, err := ReadDirectory(changed.AppendIndex(nil, 1)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	newer := d.AppendIndex(nil, 1)
	newer[8]++
	if _, err := ReadDirectory(seal(newer)); !errors.Is(err, ErrNewerIndex) {
		t.Errorf("a newer version: %v", err)
	}
	for _, text := range []string{"", "\n", "# nothing yet\n"} {
		if _, err := ReadDirectory([]byte(text)); !errors.Is(err, ErrEmptyList) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// largeDirectory has as many packages as the FDA's.
func largeDirectory(t testing.TB) *Directory {
	t.Helper()
	var b bytes.Buffer
	for i := range 250_000 {
		fmt.Fprintf(&b, "%05d-%04d-%d\n", 10000+i%50000, i/7%10000, i%10)
	}
	_, d, _ := importAll(t, b.Bytes())
	return d
}

func TestIndexSize(t *testing.T) {
	d := largeDirectory(t)
	if n := len(d.AppendIndex(nil, 1)); n > 6*d.Len() {
		t.Errorf("%d bytes for %d packages", n, d.Len())
	}
	index := d.AppendIndex(nil, 1)
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ReadDirectory(index); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("reading an index allocates %v times: it must not be copied", n)
	}
}

func BenchmarkDirectory(b *testing.B) {
	d := largeDirectory(b)
	keys := make([][10]byte, 4096) // every second is listed
	for i := range keys {
		n := 1_000_000_000 + uint64(i)*7_919_933%4_999_999_999
		if i%2 == 0 {
			n = d.entry(i*61%(len(d.entries)/entrySize)) >> 2
		}
		copy(keys[i][:], fmt.Sprintf("%010d", n))
	}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		d.forms(&keys[i&4095])
		i++
	}
}

// seal gives a changed index its right checksum.
func seal(b []byte) []byte {
	end := len(b) - indexTail
	return binary.LittleEndian.AppendUint32(b[:end:end], crc32.Checksum(b[:end], castagnoli))
}
