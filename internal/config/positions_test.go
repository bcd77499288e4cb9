package config

import (
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestKeyPlaces(t *testing.T) {
	text := `# comment with a = 1
top = 1
[a] # x
  b.c = "]" # d = 2
"q.u" = '''
e = 3
'''
f = [ { g = 1 }, # h = 1
  { i = """\"""" , j.k = 2 } ]
[[l]]
m = 1979-05-27T07:32:00Z
[[l]]
  [l.n]
  o = { p = [1, [2, 3]], q = 'it''s' }
[[l.r]]
s = 1
[[l.r]]
	s = 2
`
	text = strings.Replace(text, "'it''s'", "'it'", 1)
	if _, err := toml.Decode(text, new(map[string]any)); err != nil {
		t.Fatal(err)
	}
	got := keyPlaces(text)
	for path, want := range map[string]place{
		"top": {2, 1}, "a": {3, 1}, "a.b": {4, 3}, "a.b.c": {4, 3}, "a.q.u": {5, 1}, "a.f": {8, 1},
		"a.f[0]": {8, 7}, "a.f[0].g": {8, 9}, "a.f[1]": {9, 3}, "a.f[1].i": {9, 5}, "a.f[1].j": {9, 20}, "a.f[1].j.k": {9, 20},
		"l[0]": {10, 1}, "l[0].m": {11, 1}, "l[1]": {12, 1}, "l[1].n": {13, 3}, "l[1].n.o": {14, 3}, "l[1].n.o.p": {14, 9},
		"l[1].n.o.p[0]": {14, 14}, "l[1].n.o.p[1]": {14, 17}, "l[1].n.o.p[1][1]": {14, 21}, "l[1].n.o.q": {14, 26},
		"l[1].r[0]": {15, 1}, "l[1].r[0].s": {16, 1}, "l[1].r[1]": {17, 1}, "l[1].r[1].s": {18, 2},
		"l[1].n.o.p[1][0]": {14, 18},
	} {
		if got[path] != want {
			t.Errorf("%s is at %v, want %v", path, got[path], want)
		}
		delete(got, path)
	}
	for path, p := range got {
		t.Errorf("%s at %v is none", path, p)
	}
}

// On whatever the parser takes, the walk ends and finds the keys that the parser found. On whatever it does
// not take, loading ends with an error.
func FuzzKeyPlaces(f *testing.F) {
	for _, w := range wrongFiles {
		f.Add(w.text)
	}
	f.Add(Reference())
	f.Add("a = {b = [{c = 1}, {d.e = '''x''''}]}\n[[f.g]]\nh = \"\"\"\\\n x\\\"\"\"\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		md, err := toml.Decode(text, new(map[string]any))
		places := keyPlaces(text)
		if err != nil {
			l := &loader{c: Default(), bad: map[string]bool{}}
			l.c.at = map[string]Position{}
			l.file("x", []byte(text))
			if len(l.errs) != 1 || !l.broken {
				t.Errorf("problems: %v", l.errs)
			}
			return
		}
		if strings.ContainsAny(text, "\\\ufeff[") {
			return // names with escapes or brackets are not comparable as text
		}
		for _, k := range md.Keys() {
			if _, ok := places[strings.Join(k, ".")]; !ok {
				t.Errorf("no place for %q in %q", k, text)
			}
		}
	})
}
