package events

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"

	"scanonce/window"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	crcDigits = 8
	atLayout  = "2006-01-02T15:04:05.000Z"
	format    = 1
)

// meta is what a "#" line says: everything that must outlive the lines before it.
type meta struct {
	Format int              `json:"format"`
	Last   uint64           `json:"last"` // every seq up to here was given
	Gens   []generation     `json:"gens"`
	Marks  map[uint8]uint64 `json:"marks"`
}

// seal fills in the checksum of the line that begins at start and ends it.
func seal(b []byte, start int) []byte {
	sum := crc32.Checksum(b[start+crcDigits+1:], castagnoli)
	hex.Encode(b[start:], []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
	return append(b, '\n')
}

func appendHead(b []byte, id, kind string, at window.UTC) []byte {
	b = append(b, `{"id":"`...)
	b = append(b, id...)
	b = append(b, `","kind":"`...)
	b = append(b, kind...)
	b = append(b, `","at":"`...)
	b = at.Time().AppendFormat(b, atLayout)
	return append(b, '"')
}

// appendLine appends the stored form of e; the record's offset is that in b, and its live copy is set if
// there is one.
func appendLine(b []byte, gen string, seq uint64, e *Entry) ([]byte, record, error) {
	if !validKind(e.Kind) {
		return b, record{}, fmt.Errorf("cannot append an event of kind %q: write lower-case letters, digits and _", e.Kind)
	}
	r := record{seq: seq, at: e.At, off: int64(len(b)), kind: e.Kind, stream: e.Stream, mark: e.Mark}
	start := len(b)
	b = append(b, "00000000 "...)
	b = strconv.AppendUint(b, uint64(e.Stream), 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, e.Mark, 10)
	b = append(b, ' ')
	data := len(b)
	b = append(b, `{"id":"`...)
	b = append(b, gen...)
	b = append(b, '-')
	b = strconv.AppendUint(b, seq, 10)
	b = append(b, `","kind":"`...)
	b = append(b, e.Kind...)
	b = append(b, `","at":"`...)
	b = e.At.Time().AppendFormat(b, atLayout)
	b = append(b, '"')
	b, err := appendFields(b, e.Body)
	if err != nil {
		return b, record{}, fmt.Errorf("cannot append an event of kind %s: %w", e.Kind, err)
	}
	if e.Live != nil {
		shared := len(b)
		liveFields, err := appendFields(nil, e.Live)
		if err != nil {
			return b, record{}, fmt.Errorf("cannot append an event of kind %s: %w", e.Kind, err)
		}
		r.live = slices.Concat(b[data:shared], liveFields, []byte{'}'})
		if b, err = appendNulls(b, liveFields); err != nil {
			return b, record{}, fmt.Errorf("cannot append an event of kind %s: %w", e.Kind, err)
		}
		b = append(b, `,"redacted":true`...)
	}
	b = append(b, '}')
	b = seal(b, start)
	if len(b)-start > maxLine {
		return b, record{}, fmt.Errorf("cannot append an event of kind %s: it has %d bytes, at most %d are allowed", e.Kind, len(b)-start, maxLine)
	}
	r.line, r.data = int32(len(b)-start), int32(data-start)
	return b, r, nil
}

func validKind(k string) bool {
	for i := range len(k) {
		if c := k[i]; c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return k != ""
}

// appendFields appends v's fields, each with a comma before it.
func appendFields(b []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return b, nil
	case FieldAppender:
		start := len(b)
		b = v.AppendJSONFields(append(b, ','))
		if len(b) == start+1 {
			return b[:start], nil
		}
		if bytes.IndexByte(b[start:], '\n') >= 0 {
			return b, errors.New("its fields hold a newline")
		}
		return b, nil
	}
	j, err := json.Marshal(v)
	if err != nil {
		return b, err
	}
	if j[0] != '{' {
		return b, fmt.Errorf("its %T is no JSON object", v)
	}
	if len(j) > 2 {
		b = append(append(b, ','), j[1:len(j)-1]...)
	}
	return b, nil
}

// appendNulls appends the names of fields, each null.
func appendNulls(b, fields []byte) ([]byte, error) {
	if len(fields) == 0 {
		return b, nil
	}
	var names map[string]json.RawMessage
	if err := json.Unmarshal(slices.Concat([]byte{'{'}, fields[1:], []byte{'}'}), &names); err != nil {
		return b, err
	}
	for _, n := range slices.Sorted(maps.Keys(names)) {
		q, err := json.Marshal(n)
		if err != nil {
			return b, err
		}
		b = append(append(append(b, ','), q...), ":null"...)
	}
	return b, nil
}

// metaLine is the "#" line that stands after seq last: the lines that follow it hold the later ones.
func (l *Log) metaLine(last uint64) []byte {
	m := meta{Format: format, Last: last, Gens: []generation{}, Marks: map[uint8]uint64{}}
	for _, g := range l.gens {
		if g.First <= last {
			m.Gens = append(m.Gens, generation{g.ID, g.First, min(g.Last, last)})
		}
	}
	for s, v := range l.marks {
		if v > 0 {
			m.Marks[uint8(s)] = v
		}
	}
	j, err := json.Marshal(m)
	if err != nil {
		panic("meta: " + err.Error()) // plain data
	}
	return seal(append([]byte("00000000 # "), j...), 0)
}

// load reads the file and cuts off what follows the last whole line. An unreadable line in the middle is a
// gap.
func (l *Log) load() error {
	f := l.file.f
	buf := make([]byte, 0, 256<<10)
	var off, good int64 // of buf[0]; end of the last whole line
	for {
		n, err := f.ReadAt(buf[len(buf):cap(buf)], off+int64(len(buf)))
		buf = buf[:len(buf)+n]
		rest := buf
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			at := off + int64(len(buf)-len(rest))
			ok, lerr := l.loadLine(rest[:i+1], at)
			if lerr != nil {
				return lerr
			}
			if ok {
				good = at + int64(i) + 1
			} else {
				l.stats.Skipped++
			}
			rest = rest[i+1:]
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot read the event log: %w", err)
		}
		off += int64(len(buf) - len(rest))
		if len(rest) == cap(buf) && len(rest) > maxLine {
			// No line is that long: garbage without a newline.
			off += int64(len(rest))
			rest = rest[:0]
		}
		if len(rest) == cap(buf) {
			buf = append(make([]byte, 0, 2*cap(buf)), rest...)
		} else {
			buf = buf[:copy(buf[:cap(buf)], rest)]
		}
	}
	if err := f.Truncate(good); err != nil {
		return fmt.Errorf("cannot cut the torn end of the event log: %w", err)
	}
	l.end = good
	if good == 0 {
		b := l.metaLine(0)
		if _, err := f.WriteAt(b, 0); err != nil {
			return fmt.Errorf("cannot write the event log: %w", err)
		}
		l.end = int64(len(b))
	}
	return nil
}

// loadLine takes in one line, which ends in a newline; ok says that it is whole.
func (l *Log) loadLine(line []byte, off int64) (ok bool, err error) {
	body := line[:len(line)-1]
	if len(body) < crcDigits+2 || body[crcDigits] != ' ' {
		return false, nil
	}
	sum, perr := strconv.ParseUint(string(body[:crcDigits]), 16, 32)
	if perr != nil || uint32(sum) != crc32.Checksum(body[crcDigits+1:], castagnoli) {
		return false, nil
	}
	place, data, found := bytes.Cut(body[crcDigits+1:], []byte{' '})
	if !found {
		return false, nil
	}
	if string(place) == "#" {
		var m meta
		if json.Unmarshal(data, &m) != nil {
			return false, nil
		}
		if m.Format != format {
			return false, fmt.Errorf("cannot read the event log %s: its format is %d, this version reads %d; use the version that wrote it, or move the file away", l.path, m.Format, format)
		}
		if m.Last < l.last {
			return false, nil
		}
		l.gens, l.last = m.Gens, m.Last
		for s, v := range m.Marks {
			l.marks[s] = max(l.marks[s], v)
		}
		return true, nil
	}
	r := record{off: off, line: int32(len(line)), data: int32(len(body) - len(data))}
	stream, mark, _ := bytes.Cut(place, []byte{'.'})
	s, e1 := strconv.ParseUint(string(stream), 10, 8)
	m, e2 := strconv.ParseUint(string(mark), 10, 64)
	id, rest, ok1 := field(data, `{"id":"`)
	kind, rest, ok2 := field(rest, `,"kind":"`)
	at, _, ok3 := field(rest, `,"at":"`)
	gen, seq, ok4 := parseID(string(id))
	if e1 != nil || e2 != nil || !ok1 || !ok2 || !ok3 || !ok4 || seq <= l.last || r.at.UnmarshalText(at) != nil {
		return false, nil
	}
	r.seq, r.stream, r.mark = seq, uint8(s), m
	r.kind = l.kindName(kind)
	l.seen(gen, seq)
	l.index = append(l.index, r)
	l.marks[r.stream] = max(l.marks[r.stream], m)
	return true, nil
}

// kindName shares one string among equal kinds.
func (l *Log) kindName(kind []byte) string {
	for i := len(l.index) - 1; i >= max(0, len(l.index)-64); i-- {
		if l.index[i].kind == string(kind) {
			return l.index[i].kind
		}
	}
	return string(kind)
}

// field takes the text between prefix and the next quote; what appendHead writes needs no unquoting.
func field(b []byte, prefix string) (value, rest []byte, ok bool) {
	if !bytes.HasPrefix(b, []byte(prefix)) {
		return nil, b, false
	}
	b = b[len(prefix):]
	i := bytes.IndexByte(b, '"')
	if i < 0 {
		return nil, b, false
	}
	return b[:i], b[i+1:], true
}
