package cli

import (
	"bytes"
	"encoding/xml"
	"flag"
	"fmt"
	"image"
	"image/color"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/makiuchi-d/gozxing"
	"github.com/makiuchi-d/gozxing/oned"

	"scanonce/capture"
)

var update = flag.Bool("update", false, "write the golden files anew")

// printSheet runs the verb.
func printSheet(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := Main(append([]string{"sheet"}, args...), strings.NewReader(""), &out, &errs, nil); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	return out.String()
}

// printed is one symbol as a page shows it.
type printed struct {
	label, title  string
	width, height float64 // mm
	box           string
	bars          [][2]int // from, width, in modules
	barHeight     int      // modules
}

var (
	symbolPattern = regexp.MustCompile(`(?s)<svg [^>]*aria-label="Barcode ([^"]*)"[^>]*>.*?</svg>`)
	barPattern    = regexp.MustCompile(`M(\d+) 0h(\d+)v(\d+)h-(\d+)z`)
)

func symbolsOf(t *testing.T, page string) (all []printed) {
	t.Helper()
	for _, m := range symbolPattern.FindAllStringSubmatch(page, -1) {
		var x struct {
			Width  string `xml:"width,attr"`
			Height string `xml:"height,attr"`
			Box    string `xml:"viewBox,attr"`
			Title  string `xml:"title"`
			Path   struct {
				D string `xml:"d,attr"`
			} `xml:"path"`
		}
		if err := xml.Unmarshal([]byte(m[0]), &x); err != nil {
			t.Fatal(err)
		}
		p := printed{label: m[1], title: x.Title, box: x.Box}
		var err [2]error
		p.width, err[0] = strconv.ParseFloat(strings.TrimSuffix(x.Width, "mm"), 64)
		p.height, err[1] = strconv.ParseFloat(strings.TrimSuffix(x.Height, "mm"), 64)
		if err[0] != nil || err[1] != nil {
			t.Fatal(err)
		}
		if barPattern.ReplaceAllString(x.Path.D, "") != "" {
			t.Fatalf("the path of %s is not of bars alone", p.label)
		}
		for _, b := range barPattern.FindAllStringSubmatch(x.Path.D, -1) {
			n := make([]int, 4)
			for i := range n {
				if n[i], err[0] = strconv.Atoi(b[i+1]); err[0] != nil {
					t.Fatal(err[0])
				}
			}
			if n[1] != n[3] {
				t.Fatalf("a bar of %s is no rectangle", p.label)
			}
			p.bars, p.barHeight = append(p.bars, [2]int{n[0], n[1]}), n[2]
		}
		all = append(all, p)
	}
	return all
}

// raster draws a symbol at three pixels a module, as a camera would see it.
func (p *printed) raster(modules int) image.Image {
	const px = 3
	img := image.NewGray(image.Rect(0, 0, modules*px, 30))
	for i := range img.Pix {
		img.Pix[i] = 0xff
	}
	for _, b := range p.bars {
		for x := b[0] * px; x < (b[0]+b[1])*px; x++ {
			for y := range 30 {
				img.Set(x, y, color.Black)
			}
		}
	}
	return img
}

// Every symbol, read by another library's Code 128 reader, is the text of its label, and capture takes it for
// the command that the sheet says it is.
func TestSheetReadsBack(t *testing.T) {
	d, err := capture.NewDecoder(capture.DecoderConfig{})
	if err != nil {
		t.Fatal(err)
	}
	chosen := []int{1, 2, 10, 99, 123, 1000, 9999}
	want := capture.Commands(chosen...)
	if len(want) != 8+len(chosen) {
		t.Fatalf("%d commands", len(want))
	}
	for _, format := range []string{"html", "svg"} {
		page := printSheet(t, "--format", format, "--quantity", "1,2,10,99,123", "--quantity", "1000,9999,10")
		symbols := symbolsOf(t, page)
		if len(symbols) != len(want) {
			t.Fatalf("%s: %d symbols, want %d", format, len(symbols), len(want))
		}
		for i, s := range symbols {
			text := want[i].String()
			last := s.bars[len(s.bars)-1]
			modules := last[0] + last[1] + 10
			if s.bars[0][0] != 10 || s.box != fmt.Sprintf("0 0 %d %d", modules, s.barHeight) {
				t.Errorf("%s %s: no quiet zones of 10 modules: first bar at %d, box %s", format, text, s.bars[0][0], s.box)
			}
			module := s.width / float64(modules)
			if module < 0.33 || module > 0.5 || s.width > 112 {
				t.Errorf("%s %s: a module is %.3f mm, the symbol %.1f mm wide", format, text, module, s.width)
			}
			if s.height < 0.15*s.width || s.height < 6.35 || s.height/float64(s.barHeight) != module {
				t.Errorf("%s %s: %.1f mm high and %.1f mm wide", format, text, s.height, s.width)
			}
			bitmap, err := gozxing.NewBinaryBitmapFromImage(s.raster(modules))
			if err != nil {
				t.Fatal(err)
			}
			read, err := oned.NewCode128Reader().Decode(bitmap, nil)
			if err != nil {
				t.Errorf("%s %s cannot be read: %v", format, text, err)
				continue
			}
			if read.GetText() != text || s.label != text || s.title != text {
				t.Errorf("%s: %q read, label %q, title %q, want %q", format, read, s.label, s.title, text)
			}
			var scan capture.Scan
			if r := d.Decode(&scan, []byte("]C0"+read.GetText()+"\r"), nil, capture.Date{Year: 2026, Month: 11, Day: 29}); !r.OK() || scan.Command != want[i] {
				t.Errorf("%s: %q is the command %v: %v", format, read, scan.Command, r)
			}
			for _, words := range []string{">" + text + "<", ">" + want[i].Title() + "<"} {
				if strings.Count(page, words) < 1 {
					t.Errorf("%s lacks %q", format, words)
				}
			}
			if want[i].Meaning() == "" || format == "html" && !strings.Contains(page, ">"+want[i].Meaning()+"<") {
				t.Errorf("%s does not say what %s does", format, text)
			}
		}
	}
}

// The sheet is the same on every run and machine; --update after an intended change.
func TestSheetGolden(t *testing.T) {
	for _, format := range []string{"html", "svg"} {
		got := printSheet(t, "--format", format)
		name := "testdata/sheet." + format
		if *update {
			if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not as in %s: look at the difference, then run with -update", format, name)
		}
	}
	if printSheet(t) != printSheet(t, "--format", "html") {
		t.Error("html is not the default")
	}
}

// Nothing is loaded from elsewhere, and what the eye sees is told too.
func TestSheetStandsAlone(t *testing.T) {
	page, drawing := printSheet(t), printSheet(t, "--format", "svg")
	for _, want := range []string{`<html lang="en">`, "<title>scanonce: command barcodes</title>", `<meta charset="utf-8">`, `role="img"`, "@page", "break-inside: avoid", "break-before: page", "color-scheme: light"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for _, s := range []string{page, drawing} {
		for _, bad := range []string{"href", "src=", "url(", "@import", "<script", "&lt;"} {
			if strings.Contains(s, bad) {
				t.Errorf("%s on the sheet", bad)
			}
		}
		if n := strings.Count(strings.ReplaceAll(s, "http://www.w3.org/2000/svg", ""), "://"); n != 0 {
			t.Errorf("%d addresses", n)
		}
	}
	// The drawing is one well-formed document, and all its symbols and words lie within it and apart.
	x := xml.NewDecoder(strings.NewReader(drawing))
	var tops []int
	depth, roots := 0, 0
	for {
		tok, err := x.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if depth++; depth == 1 {
				roots++
			}
			for _, a := range e.Attr {
				if a.Name.Local == "y" && e.Name.Local == "svg" {
					y, err := strconv.Atoi(a.Value)
					if err != nil {
						t.Fatal(err)
					}
					tops = append(tops, y)
				}
			}
		case xml.EndElement:
			depth--
		}
	}
	if roots != 1 || len(tops) != 8+len(quantities) || !slices.IsSorted(tops) {
		t.Fatalf("%d documents, %d symbols", roots, len(tops))
	}
	for i := 1; i < len(tops); i++ {
		if tops[i]-tops[i-1] < 24 {
			t.Errorf("symbol %d lies %d mm below the one before", i, tops[i]-tops[i-1])
		}
	}
	if h := fmt.Sprintf(`height="%dmm"`, tops[len(tops)-1]+svgPitch); !strings.Contains(drawing, h) {
		t.Errorf("the drawing is not of %s", h)
	}
}

// Long sentences are broken for the drawing, and no word is lost.
func TestSheetLines(t *testing.T) {
	for _, c := range capture.Commands(1, 9999) {
		lines := symbol{Meaning: c.Meaning()}.Lines()
		if strings.Join(lines, " ") != c.Meaning() || len(lines) > 3 {
			t.Errorf("%q", lines)
		}
		for _, l := range lines {
			if len(l) > 44 {
				t.Errorf("%q is too long", l)
			}
		}
	}
}
