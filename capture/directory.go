package capture

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"

	"scanonce/window"
)

// Directory is an NDC directory: which hyphenation of ten digits is a listed package. It is immutable;
// nil is an empty one.
//
// Its entries are packed integers of five bytes, ten digits × 4 + form, in ascending order, in memory as in an
// index file: a look-up is one binary search, and a quarter of a million packages are 1.25 MB. That is little
// enough to read the file: mapped, it would end the process if somebody shortened it.
type Directory struct {
	entries  []byte
	packages int
	dated    window.UTC
}

const entrySize = 5

// Len is the number of listed packages.
func (d *Directory) Len() int {
	if d == nil {
		return 0
	}
	return d.packages
}

// Dated is the date of the source that an index names; 0 for a text list, which names none.
func (d *Directory) Dated() window.UTC { return d.dated }

func (d *Directory) entry(i int) uint64 {
	e := d.entries[i*entrySize : i*entrySize+entrySize : i*entrySize+entrySize]
	return uint64(binary.LittleEndian.Uint32(e)) | uint64(e[4])<<32
}

// forms returns the listed hyphenations of ten digits as bits.
func (d *Directory) forms(ndc *[10]byte) (listed uint8) {
	if d == nil {
		return 0
	}
	key := packed(ndc[:]) << 2
	n := len(d.entries) / entrySize
	lo, hi := 0, n
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); d.entry(mid) < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for ; lo < n; lo++ {
		e := d.entry(lo)
		if e>>2 != key>>2 {
			break
		}
		listed |= 1 << (e & 3)
	}
	return listed
}

// ParseDirectory makes a directory of hyphenated NDCs: 4-4-2, 5-3-2, 5-4-1, and the padded 5-4-2 and
// 6-4-2, which list every ten-digit form that pads to them.
func ParseDirectory(ndcs []string) (*Directory, error) {
	var b dirBuilder
	for _, n := range ndcs {
		if b.add([]byte(n)) != "" {
			return nil, errors.New("cannot read an NDC of the directory: write it with hyphens, for example 0093-7214-10")
		}
	}
	return b.build(), nil
}

// LoadDirectory reads a text file with one hyphenated NDC a line; blank lines and lines that begin with
// "#" are skipped. An error names the line.
func LoadDirectory(r io.Reader) (*Directory, error) {
	var b dirBuilder
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		text := strings.TrimSpace(sc.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		if b.add([]byte(text)) != "" {
			return nil, fmt.Errorf("cannot read the NDC in line %d: write one hyphenated NDC a line, for example 0093-7214-10", line)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the NDC directory: %w; it must be a text file with one hyphenated NDC a line", err)
	}
	return b.build(), nil
}

// The index file, all numbers little-endian:
//
//	 0  8 bytes  "scan-ndc"
//	 8  uint32   version, 1
//	12  uint32   listed packages
//	16  int64    date of the source, milliseconds since 1970 UTC
//	24  n × 5    entries, strictly ascending
//	 …  uint32   CRC-32C of all before it
const (
	indexMagic   = "scan-ndc"
	indexVersion = 1
	indexHead    = 24
	indexTail    = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendIndex appends the directory as an index file whose source is of the given date.
func (d *Directory) AppendIndex(b []byte, dated window.UTC) []byte {
	at := len(b)
	b = append(b, indexMagic...)
	b = binary.LittleEndian.AppendUint32(b, indexVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(d.packages))
	b = binary.LittleEndian.AppendUint64(b, uint64(dated))
	b = append(b, d.entries...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// Errors of ReadDirectory, besides those of LoadDirectory.
var (
	ErrDamagedIndex = errors.New("cannot use the NDC index: it is damaged")
	ErrNewerIndex   = errors.New("cannot use the NDC index: a newer version of scanonce wrote it")
	ErrEmptyList    = errors.New("cannot use the NDC directory: it lists no package")
)

// ReadDirectory reads what a configuration may name: an index file, known by its first bytes, or a text list
// as LoadDirectory does. The directory keeps b, which must not change any more. A directory that lists nothing
// is an error: it would only hide that there is none.
func ReadDirectory(b []byte) (d *Directory, err error) {
	switch {
	case bytes.HasPrefix(b, []byte(indexMagic)):
		d, err = readIndex(b)
	case bytes.IndexByte(b, 0) >= 0: // no text: an index whose first bytes are damaged too
		err = ErrDamagedIndex
	default:
		d, err = LoadDirectory(bytes.NewReader(b))
	}
	if err == nil && d.packages == 0 {
		err = ErrEmptyList
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

func readIndex(b []byte) (*Directory, error) {
	end := len(b) - indexTail
	if end < indexHead || crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, ErrDamagedIndex
	}
	if binary.LittleEndian.Uint32(b[8:]) != indexVersion {
		return nil, ErrNewerIndex
	}
	if (end-indexHead)%entrySize != 0 {
		return nil, ErrDamagedIndex
	}
	d := &Directory{entries: b[indexHead:end:end], packages: int(binary.LittleEndian.Uint32(b[12:])), dated: window.UTC(binary.LittleEndian.Uint64(b[16:]))}
	// A search needs the order: what was written by something else must not answer at random.
	for i, before := 0, uint64(0); i < len(d.entries)/entrySize; i++ {
		e := d.entry(i)
		if e <= before || e&3 > form541 {
			return nil, ErrDamagedIndex
		}
		before = e
	}
	return d, nil
}

// dirBuilder collects packages.
type dirBuilder struct {
	index []uint64
	all   []uint64 // 12 digits, to count packages once
}

// Why a line names no package, as the end of a sentence.
const (
	notHyphenated = "its NDC is not written as 4-4-2, 5-3-2, 5-4-1, 5-4-2 or 6-4-2 digits with hyphens"
	allZeros      = "its NDC is all zeros"
)

// add takes one hyphenated NDC, or says why it cannot.
func (b *dirBuilder) add(text []byte) (why string) {
	n, ok := parseNDC(text)
	switch {
	case !ok:
		return notHyphenated
	case allZero(n.digits[:]):
		return allZeros
	}
	d := n.digits
	b.all = append(b.all, packed(d[:])<<3|uint64(n.form))
	six, four, pack := d[:6], d[6:10], d[10:]
	if six[0] != '0' {
		return "" // no ten-digit form
	}
	has := func(form int) bool { return n.form == form || n.form >= form542 }
	if six[1] == '0' && has(form442) {
		b.put(form442, six[2:], four, pack)
	}
	if four[0] == '0' && has(form532) {
		b.put(form532, six[1:], four[1:], pack)
	}
	if pack[0] == '0' && has(form541) {
		b.put(form541, six[1:], four, pack[1:])
	}
	return ""
}

func (b *dirBuilder) put(form uint64, groups ...[]byte) {
	var n uint64
	for _, g := range groups {
		for _, c := range g {
			n = n*10 + uint64(c-'0')
		}
	}
	b.index = append(b.index, n<<2|form)
}

func packed(d []byte) (n uint64) {
	for _, c := range d {
		n = n*10 + uint64(c-'0')
	}
	return n
}

func (b *dirBuilder) build() *Directory {
	slices.Sort(b.index)
	slices.Sort(b.all)
	index := slices.Compact(b.index)
	d := &Directory{entries: make([]byte, 0, len(index)*entrySize), packages: len(slices.Compact(b.all))}
	for _, e := range index {
		d.entries = append(binary.LittleEndian.AppendUint32(d.entries, uint32(e)), byte(e>>32))
	}
	return d
}
