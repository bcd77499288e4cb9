package config

import (
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

// place is a line and column, from 1.
type place struct{ line, column int }

// keyPlaces returns where each key and table of a TOML text stands. The text must already have been
// accepted by the parser, which does not tell: so this walk needs to find keys, not to check them.
//
// Paths are like "scanner[0].feedback.good"; a table that is only implied has no place.
func keyPlaces(text string) map[string]place {
	s := &scan{text: text, out: map[string]place{}, lists: map[string]int{}, line: 1}
	s.document()
	return s.out
}

type scan struct {
	text      string
	pos, line int
	lineStart int
	out       map[string]place
	lists     map[string]int // elements of each list of tables so far
}

func (s *scan) peek() byte {
	if s.pos < len(s.text) {
		return s.text[s.pos]
	}
	return 0
}

func (s *scan) has(p string) bool { return strings.HasPrefix(s.text[s.pos:], p) }

func (s *scan) skip(n int) {
	for range n {
		if s.peek() == '\n' {
			s.line++
			s.lineStart = s.pos + 1
		}
		if s.pos < len(s.text) {
			s.pos++
		}
	}
}

func (s *scan) blank(newlines bool) {
	for s.pos < len(s.text) {
		switch c := s.peek(); {
		case c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n'):
			s.skip(1)
		case newlines && c == '#':
			for s.pos < len(s.text) && s.peek() != '\n' {
				s.skip(1)
			}
		default:
			return
		}
	}
}

func (s *scan) here() place { return place{s.line, s.pos - s.lineStart + 1} }

func (s *scan) mark(path string, p place) {
	if _, ok := s.out[path]; !ok {
		s.out[path] = p
	}
}

func (s *scan) document() {
	table := ""
	for {
		s.blank(true)
		if s.pos >= len(s.text) {
			return
		}
		at := s.here()
		switch {
		case s.has("[["):
			s.skip(2)
			table = s.resolve(s.key())
			n := s.lists[table]
			s.lists[table] = n + 1
			table = fmt.Sprintf("%s[%d]", table, n)
			s.mark(table, at)
			s.blank(false)
			s.skip(2)
		case s.has("["):
			s.skip(1)
			table = s.resolve(s.key())
			if n := s.lists[table]; n > 0 { // refused by the parser; do not mix them up
				table = fmt.Sprintf("%s[%d]", table, n-1)
			}
			s.mark(table, at)
			s.blank(false)
			s.skip(1)
		default:
			s.pair(table)
		}
	}
}

// resolve writes the parts of a header, each list of tables standing for its last element.
func (s *scan) resolve(parts []string) string {
	path := ""
	for i, p := range parts {
		path = join(path, p)
		if n := s.lists[path]; n > 0 && i < len(parts)-1 {
			path = fmt.Sprintf("%s[%d]", path, n-1)
		}
	}
	return path
}

func join(path, part string) string {
	if path == "" {
		return part
	}
	return path + "." + part
}

func (s *scan) pair(table string) {
	at := s.here()
	path := table
	for _, p := range s.key() {
		path = join(path, p)
		s.mark(path, at)
	}
	s.blank(false)
	s.skip(1) // =
	s.blank(false)
	s.value(path)
}

// key reads a dotted key.
func (s *scan) key() []string {
	var parts []string
	for {
		s.blank(false)
		start := s.pos
		if c := s.peek(); c == '"' || c == '\'' {
			s.quoted()
			parts = append(parts, unquote(s.text[start:s.pos]))
		} else {
			for s.pos < len(s.text) && !strings.ContainsRune(" \t\r\n.=]", rune(s.peek())) {
				s.skip(1)
			}
			parts = append(parts, s.text[start:s.pos])
		}
		s.blank(false)
		if s.peek() != '.' {
			return parts
		}
		s.skip(1)
	}
}

func unquote(q string) string {
	var doc struct{ V string }
	if _, err := toml.Decode("V = "+q, &doc); err != nil {
		return q
	}
	return doc.V
}

func (s *scan) value(path string) {
	switch c := s.peek(); c {
	case '"', '\'':
		s.quoted()
	case '[':
		s.skip(1)
		for i := 0; ; i++ {
			s.separators()
			if c := s.peek(); c == ']' || c == 0 {
				s.skip(1)
				return
			}
			elem := fmt.Sprintf("%s[%d]", path, i)
			s.mark(elem, s.here())
			s.value(elem)
		}
	case '{':
		s.skip(1)
		for {
			s.separators()
			if c := s.peek(); c == '}' || c == 0 {
				s.skip(1)
				return
			}
			s.pair(path)
		}
	default:
		s.skip(1) // at least: the walk ends on any text
		for s.pos < len(s.text) && !strings.ContainsRune(",]}#\r\n", rune(s.peek())) {
			s.skip(1)
		}
	}
}

func (s *scan) separators() {
	for s.blank(true); s.peek() == ','; s.blank(true) {
		s.skip(1)
	}
}

// quoted skips a string of any of the four forms.
func (s *scan) quoted() {
	q := string(s.peek())
	escapes := q == `"`
	if long := q + q + q; s.has(long) {
		q = long
	}
	s.skip(len(q))
	for s.pos < len(s.text) && !s.has(q) {
		if escapes && s.peek() == '\\' {
			s.skip(1)
		}
		s.skip(1)
	}
	s.skip(len(q))
	if len(q) == 3 { // up to two quotes may stand before the closing ones
		for range 2 {
			if s.peek() == q[0] {
				s.skip(1)
			}
		}
	}
}
