package config

import (
	"fmt"
	"slices"
	"strings"
)

// Position is where something was set.
type Position struct {
	File         string // a path, "environment SCANONCE_X", "--set key"; "" for a built-in default
	Line, Column int    // from 1; 0 if there is none

	rank int // order of the sources
}

// Error is one problem of the configuration.
type Error struct {
	File         string // as in Position; "" if no source is to blame
	Line, Column int    // from 1; 0 if there is none
	Key          string // "spool.max_bytes", "scanner.SCN-04.path"; "" if no key is to blame
	Detail       string // what is wrong
	Hint         string // what to write instead

	rank int
	path string // of the key, with an element's number
}

// Error is one line, without the hint: cannot use FILE:LINE: KEY: DETAIL.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cannot use ")
	switch {
	case e.File == "":
		b.WriteString("the configuration")
	case e.Line == 0:
		b.WriteString(e.File)
	default:
		fmt.Fprintf(&b, "%s:%d", e.File, e.Line)
	}
	if e.Key != "" {
		b.WriteString(": " + e.Key)
	}
	b.WriteString(": " + e.Detail)
	return b.String()
}

// Errors are all problems of a configuration, in the order of their sources and lines.
type Errors []*Error

// Error is a line for each problem, each with the line "hint: …" below it.
func (es Errors) Error() string {
	var lines []string
	for _, e := range es {
		lines = append(lines, e.Error())
		if e.Hint != "" {
			lines = append(lines, "hint: "+e.Hint)
		}
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the problems to errors.As.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

func (es Errors) sorted() Errors {
	slices.SortStableFunc(es, func(a, b *Error) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	return es
}

// list writes values as one reads them: "a", "b" or "c".
func list(values []string) string {
	q := make([]string, len(values))
	for i, v := range values {
		q[i] = `"` + v + `"`
	}
	if len(q) < 2 {
		return strings.Join(q, "")
	}
	return strings.Join(q[:len(q)-1], ", ") + " or " + q[len(q)-1]
}

// nearest returns the known word that is most like s, "" if none is like it.
func nearest(s string, words []string) string {
	best, at := "", max(2, len(s)/4)+1
	for _, w := range words {
		if d := distance(s, w); d < at {
			best, at = w, d
		}
	}
	if best != "" {
		return best
	}
	// The right key in the wrong section, or the start of one (password → password_file).
	leaf := s[strings.LastIndexByte(s, '.')+1:]
	section := s[:len(s)-len(leaf)]
	for _, w := range words {
		if strings.HasPrefix(w, s+"_") && section != "" {
			return w
		}
	}
	for _, w := range words {
		if strings.HasSuffix(w, "."+leaf) {
			return w
		}
	}
	return ""
}

// distance is the number of edits between a and b, a swap of neighbours being one (optimal string alignment).
func distance(a, b string) int {
	two, one := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range one {
		one[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(one[j]+1, row[j-1]+1, one[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], two[j-2]+1)
			}
		}
		two, one = one, row
	}
	return one[len(b)]
}
