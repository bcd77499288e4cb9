package capture

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
)

// DirectoryImport collects an NDC directory from files, in any order. Three layouts are told apart by the
// first line:
//
//   - the FDA's package.txt: columns separated by tabs, the first line names them, NDCPACKAGECODE among them;
//   - the FDA's product.txt: the same with PRODUCTNDC and no column of packages; its lines are counted and
//     checked, and add nothing to the directory, which lists packages;
//   - a list of one hyphenated NDC a line; "#" begins a comment.
//
// Lines end with LF or CRLF. Columns may be in quotes, as spreadsheets write them; a quoted column ends with its
// line. Only the NDC, which is ASCII, is read, so that text in UTF-8, Windows-1252 or a mixture of both is all
// the same. Packages that the FDA flags as excluded or ended are taken too: they stand on shelves, and where
// the hyphens of an NDC are does not change.
type DirectoryImport struct {
	// Packages, Products and Skipped count lines: all but header lines, blank lines and comments are in one.
	Packages, Products, Skipped int

	b dirBuilder
}

// The bounds of what is taken. The FDA's longest lines have some thousand bytes, its list a quarter of a
// million packages.
const (
	maxImportLine     = 64 << 10
	maxImportPackages = 4 << 20
	maxImportColumns  = 64
)

// Read takes one file. For each line that cannot be used it calls bad with its number, from 1, and the reason as
// the end of a sentence, which never repeats what the line says. A file without a usable line, or whose first
// line lacks the column that is needed, is an error; nothing that Read took may be used then.
func (im *DirectoryImport) Read(r io.Reader, bad func(line int, why string)) error {
	lines := lineReader{r: bufio.NewReaderSize(r, maxImportLine)}
	var l layout
	usable := 0
	for lines.next() {
		text := lines.text
		if l.kind == unknownLayout {
			if lines.long {
				return errors.New("cannot find the columns: its first line is too long for a header")
			}
			if lines.number == 1 {
				text = bytes.TrimPrefix(text, []byte("\ufeff"))
			}
			if isBlank(text) || text[0] == '#' {
				continue
			}
			var err error
			if l, err = layoutOf(text); err != nil {
				return err
			}
			if l.kind != listLayout {
				continue
			}
		}
		if l.kind == listLayout {
			if text = bytes.TrimSpace(text); len(text) > 0 && text[0] == '#' {
				continue
			}
		}
		if !lines.long && isBlank(text) {
			continue
		}
		why := "it is too long"
		if !lines.long {
			why = im.take(l, text)
		}
		if why != "" {
			im.Skipped++
			bad(lines.number, why)
			continue
		}
		usable++
		if len(im.b.all) > maxImportPackages {
			return fmt.Errorf("cannot take more than %d packages: this is no NDC directory", maxImportPackages)
		}
	}
	switch {
	case lines.err != nil:
		return fmt.Errorf("cannot read line %d: %w", lines.number, lines.err)
	case usable == 0:
		return errors.New("cannot use any line of it")
	}
	return nil
}

// Directory is what was read so far. It is an error if that is no package.
func (im *DirectoryImport) Directory() (*Directory, error) {
	if im.Packages == 0 {
		return nil, errors.New("cannot make an NDC index of products alone: package.txt, which lists the packages, is missing")
	}
	return im.b.build(), nil
}

// layout says where the NDC of a line is.
type layout struct {
	kind   layoutKind
	column int
	last   bool // no column follows
}

type layoutKind uint8

const (
	unknownLayout layoutKind = iota
	packageLayout
	productLayout
	listLayout
)

// layoutOf reads a first line, and finds the column of the NDC.
func layoutOf(line []byte) (layout, error) {
	var names []string
	for more := true; more && len(names) < maxImportColumns; {
		var name []byte
		name, line, more = nextColumn(line)
		names = append(names, string(bytes.ToUpper(bytes.TrimSpace(name))))
	}
	has := func(name string) bool { return slices.Contains(names, name) }
	if i := slices.Index(names, "NDCPACKAGECODE"); i >= 0 {
		return layout{packageLayout, i, i == len(names)-1}, nil
	}
	ofPackages := has("PACKAGEDESCRIPTION") || has("SAMPLE_PACKAGE")
	if i := slices.Index(names, "PRODUCTNDC"); i >= 0 && !ofPackages {
		return layout{productLayout, i, i == len(names)-1}, nil
	}
	switch {
	case ofPackages:
		return layout{}, errors.New("cannot find the column NDCPACKAGECODE in its header line")
	case len(names) > 1, has("PRODUCTID"), has("PROPRIETARYNAME"):
		return layout{}, errors.New("cannot find the column NDCPACKAGECODE of packages, or PRODUCTNDC of products, in its header line")
	}
	return layout{kind: listLayout}, nil
}

// take takes one line, or says why it cannot.
func (im *DirectoryImport) take(l layout, line []byte) (why string) {
	if l.kind == listLayout {
		if why = im.b.add(line); why == "" {
			im.Packages++
		}
		return why
	}
	var ndc []byte
	more := true
	for i := 0; i <= l.column; i++ {
		if !more {
			return "it has too few columns"
		}
		ndc, line, more = nextColumn(line)
	}
	if !more && !l.last {
		return "it ends with its NDC, the columns after it are missing" // cut short, an NDC may read as another one
	}
	ndc = bytes.TrimSpace(ndc)
	if l.kind == packageLayout {
		if why = im.b.add(ndc); why == "" {
			im.Packages++
		}
		return why
	}
	var whole [16]byte
	n, ok := parseNDC(append(append(whole[:0], ndc...), "-00"...))
	switch {
	case !ok:
		return "its PRODUCTNDC is not written as 4-4, 5-3, 5-4 or 6-4 digits with a hyphen"
	case allZero(n.digits[:]):
		return allZeros
	}
	im.Products++
	return ""
}

// nextColumn takes the first column off a line, without the quotes around it.
func nextColumn(line []byte) (text, rest []byte, more bool) {
	if len(line) > 0 && line[0] == '"' {
		if end := closingQuote(line); end >= 0 { // what is within the quotes may hold tabs
			text = line[1:end]
			rest, more = bytes.CutPrefix(line[end+1:], tab)
			return text, rest, more
		}
	}
	// A quote that nothing closes is a character like others.
	return bytes.Cut(line, tab)
}

var tab = []byte{'\t'}

// closingQuote finds the quote that ends a column which begins with one, -1 if none does. Within the text two
// quotes are one, and one alone says that the first was no quote either.
func closingQuote(line []byte) int {
	for i := 1; i < len(line); i++ {
		if line[i] != '"' {
			continue
		}
		switch {
		case i+1 == len(line), line[i+1] == '\t':
			return i
		case line[i+1] != '"':
			return -1
		}
		i++
	}
	return -1
}

func isBlank(line []byte) bool { return len(bytes.TrimSpace(line)) == 0 }

// lineReader reads lines of bounded length in bounded memory.
type lineReader struct {
	r      *bufio.Reader
	number int
	text   []byte // without its end; valid until the next call
	long   bool   // the line is longer than the bound, text is its beginning
	err    error
}

func (l *lineReader) next() bool {
	if l.err != nil {
		return false
	}
	text, err := l.r.ReadSlice('\n')
	l.number++
	l.long = errors.Is(err, bufio.ErrBufferFull)
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = l.r.ReadSlice('\n')
	}
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
		return false
	}
	if err != nil && len(text) == 0 { // the end, and no line before it
		l.number--
		return false
	}
	l.text = bytes.TrimRight(text, "\r\n")
	return true
}
