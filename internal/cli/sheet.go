package cli

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/boombuler/barcode/code128"
	"github.com/spf13/cobra"

	"scanonce/capture"
)

// The measures of a printed symbol. A module is the width of the narrowest bar: 0.375 mm (15 mil) is within
// reach of every gun and printer, and with it the widest symbol, of 297 modules, is 112 mm: it fits on
// Letter and A4, with its words beside it. Height: at least 15 % of the width (ISO/IEC 15417).
const (
	moduleMM   = 0.375
	barModules = 45 // 17 mm, so that the scan types and same again fill one page of Letter
	quietZone  = 10 // modules on either side that stay white
)

// quantities are the sheet's, if none are chosen.
var quantities = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 24, 30, 48, 50, 60, 100}

func (a *app) sheetVerb() *cobra.Command {
	var format, out string
	var chosen []int
	cmd := &cobra.Command{
		Use:   "sheet",
		Short: "Print the command barcodes: scan types, same again, quantities",
		Long: `Write the sheet of command barcodes, with which a scanner's user changes the scan type, sets a quantity or
says "same again". The barcodes are Code 128, which every scanner reads. html is a page to print at 100 %, on
Letter or A4. svg is one drawing in millimetres, as tall as its barcodes, for a layout program.`,
		Example: `  scanonce sheet -o sheet.html
  scanonce sheet --quantity 28,30,84,90 -o sheet.html`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			if format != "html" && format != "svg" {
				return usage(fmt.Sprintf("cannot write format %q", format), "write --format html or svg")
			}
			var numbers []int
			for _, n := range chosen {
				if n < 1 || n > capture.MaxQuantity {
					return usage(fmt.Sprintf("cannot make a barcode of quantity %d", n), fmt.Sprintf("write --quantity with numbers from 1 to %d", capture.MaxQuantity))
				}
				if !slices.Contains(numbers, n) {
					numbers = append(numbers, n)
				}
			}
			sheet, err := newSheet(numbers)
			if err != nil {
				return err
			}
			return a.export(out, func(w io.Writer) error {
				if err := sheetTemplates.ExecuteTemplate(w, format, sheet); err != nil {
					return fmt.Errorf("cannot write the sheet: %w", err)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "html", "html or svg")
	cmd.Flags().IntSliceVar(&chosen, "quantity", quantities, "the quantities `N` on the sheet, in their order; may be repeated")
	outFlag(cmd, &out)
	return cmd
}

// sheet is what the templates are filled with.
type sheet struct{ Sections []section }

type section struct {
	ID, Title, Words string
	Symbols          []symbol
}

// symbol is one barcode with its words. Its path is drawn in modules, the quiet zones included.
type symbol struct {
	Text, Title, Meaning string
	Modules              int    // width
	Path                 string // of SVG: a rectangle a bar
	Y                    int    // from the top of the drawing, in mm
}

// newSheet draws every command.
func newSheet(quantities []int) (*sheet, error) {
	all := []section{
		{ID: "types", Title: "Scan types", Words: "Scan one to say what happens to the items scanned after it. It holds until another is scanned or the scanner rests."},
		{ID: "again", Title: "Same again", Words: "Scan it for a second item that looks like the first: two bottles of one lot without serial numbers."},
		{ID: "quantities", Title: "Quantities", Words: "Scan one before the item that it is for. It serves one item, and lapses if none follows soon."},
	}
	for _, c := range capture.Commands(quantities...) {
		s, err := draw(c)
		if err != nil {
			return nil, err
		}
		to := &all[0]
		switch c.Verb {
		case capture.CommandSameAgain:
			to = &all[1]
		case capture.CommandQuantity:
			to = &all[2]
		}
		to.Symbols = append(to.Symbols, s)
	}
	sh := &sheet{}
	y := svgHead
	for _, sec := range all {
		if len(sec.Symbols) == 0 {
			continue
		}
		for i := range sec.Symbols {
			sec.Symbols[i].Y = y
			y += svgPitch
		}
		sh.Sections = append(sh.Sections, sec)
	}
	return sh, nil
}

// draw encodes a command.
func draw(c capture.Command) (symbol, error) {
	text := c.String()
	code, err := code128.Encode(text)
	if err != nil {
		return symbol{}, fmt.Errorf("cannot draw the barcode %s: %w", text, err)
	}
	width := code.Bounds().Dx()
	black := func(x int) bool {
		r, _, _, _ := code.At(x, 0).RGBA()
		return r == 0
	}
	var path strings.Builder
	for x := 0; x < width; {
		if !black(x) {
			x++
			continue
		}
		from := x
		for x < width && black(x) {
			x++
		}
		fmt.Fprintf(&path, "M%d 0h%dv%dh-%dz", quietZone+from, x-from, barModules, x-from)
	}
	return symbol{Text: text, Title: c.Title(), Meaning: c.Meaning(), Modules: width + 2*quietZone, Path: path.String()}, nil
}

// The drawing's layout, in mm. The words stand to the right of the widest symbol.
const (
	svgHead  = 22
	svgPitch = 30
	svgText  = 118
	svgWidth = 186
)

// MM is a width in modules as millimetres.
func (symbol) MM(modules int) string {
	return strconv.FormatFloat(float64(modules)*moduleMM, 'f', -1, 64)
}

// Bars is the height of the bars in modules.
func (symbol) Bars() int { return barModules }

// Lines breaks the meaning for a drawing, which wraps no text.
func (s symbol) Lines() []string {
	const most = 44
	var lines []string
	for _, word := range strings.Fields(s.Meaning) {
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= most {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Plus is an offset within the drawing.
func (s symbol) Plus(mm float64) string { return strconv.FormatFloat(float64(s.Y)+mm, 'f', -1, 64) }

// LineY is the base of line i of the meaning.
func (s symbol) LineY(i int) string { return s.Plus(14 + 4.5*float64(i)) }

// Height is the drawing's, in mm.
func (s *sheet) Height() int {
	n := 0
	for _, sec := range s.Sections {
		n += len(sec.Symbols)
	}
	return svgHead + n*svgPitch
}

// Width is the drawing's, in mm.
func (*sheet) Width() int { return svgWidth }

// TextX is where a drawing's words begin, in mm.
func (symbol) TextX() int { return svgText }

var sheetTemplates = template.Must(template.New("").Parse(`{{define "html"}}<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>scanonce: command barcodes</title>
<style>
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 12mm auto; max-width: 186mm; padding: 0 2mm; background: #fff; color: #000; font: 11pt/1.35 system-ui, sans-serif; }
h1 { font-size: 18pt; margin: 0 0 2mm; }
h2 { font-size: 14pt; margin: 6mm 0 1mm; break-after: avoid; }
p { margin: 0 0 3mm; break-after: avoid; }
ul { list-style: none; margin: 0; padding: 0; }
li { display: flex; align-items: flex-start; gap: 5mm; padding: 1.5mm 0; break-inside: avoid; }
figure { margin: 0; flex: 0 0 112mm; }
figure svg { display: block; }
figcaption { font: 9pt/1.3 ui-monospace, monospace; padding-left: 3.75mm; }
h3 { font-size: 13pt; margin: 0; }
li p { font-size: 10pt; margin: 1mm 0 0; }
@page { margin: 12mm; }
@media print {
  body { margin: 0; padding: 0; max-width: none; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  #quantities { break-before: page; }
}
</style>
</head>
<body>
<main>
<h1>scanonce: command barcodes</h1>
<p>Print at 100 %, not “fit to page”. Cover the neighbours of a barcode with your hand if the scanner reads the wrong one.</p>
{{range .Sections}}<section id="{{.ID}}" aria-labelledby="{{.ID}}-title">
<h2 id="{{.ID}}-title">{{.Title}}</h2>
<p>{{.Words}}</p>
<ul>
{{range .Symbols}}<li>
<figure><svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Barcode {{.Text}}" width="{{.MM .Modules}}mm" height="{{.MM .Bars}}mm" viewBox="0 0 {{.Modules}} {{.Bars}}" shape-rendering="crispEdges"><title>{{.Text}}</title><path fill="#000" d="{{.Path}}"/></svg>
<figcaption>{{.Text}}</figcaption></figure>
<div><h3>{{.Title}}</h3>
<p>{{.Meaning}}</p></div>
</li>
{{end}}</ul>
</section>
{{end}}</main>
</body>
</html>
{{end}}{{define "svg"}}<svg xmlns="http://www.w3.org/2000/svg" lang="en" width="{{.Width}}mm" height="{{.Height}}mm" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif">
<title>scanonce: command barcodes</title>
<desc>Print at 100 %: a narrow bar is 0.375 mm wide.</desc>
<rect width="{{.Width}}" height="{{.Height}}" fill="#fff"/>
<text x="3.75" y="10" font-size="7" font-weight="bold">scanonce: command barcodes</text>
{{range .Sections}}{{range .Symbols}}<svg role="img" aria-label="Barcode {{.Text}}" y="{{.Y}}" width="{{.MM .Modules}}" height="{{.MM .Bars}}" viewBox="0 0 {{.Modules}} {{.Bars}}" shape-rendering="crispEdges"><title>{{.Text}}</title><path fill="#000" d="{{.Path}}"/></svg>
<text x="3.75" y="{{.Plus 21}}" font-size="3.2" font-family="monospace">{{.Text}}</text>
<text x="{{.TextX}}" y="{{.Plus 6}}" font-size="5.5" font-weight="bold">{{.Title}}</text>
{{$s := .}}{{range $i, $line := .Lines}}<text x="{{$s.TextX}}" y="{{$s.LineY $i}}" font-size="3.4">{{$line}}</text>
{{end}}{{end}}{{end}}</svg>
{{end}}`))
