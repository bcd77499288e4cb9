package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// Options say where the configuration comes from.
type Options struct {
	File         string   // "" is DefaultFile
	FileExplicit bool     // the file was named by the user and must exist
	Set          []string // "section.key=value", "scanner.ID.key=value"
	Env          []string // as os.Environ; names without the prefix SCANONCE_ are ignored
	StateDir     string   // of --state-dir, "" if not given
	Socket       string   // of --socket, "" if not given
}

const envPrefix = "SCANONCE_"

// Load reads all sources and validates the result. A problem of the configuration's content is among
// Errors, which hold all of them; other errors come from reading the files.
func Load(o Options) (*Config, error) {
	l := &loader{c: Default(), bad: map[string]bool{}}
	l.c.at = map[string]Position{}
	if err := l.readFiles(o); err != nil {
		return nil, err
	}
	l.environment(o.Env)
	for _, s := range o.Set {
		l.set(s)
	}
	if err := l.flags(o); err != nil {
		return nil, err
	}
	l.c.byTransport()
	if !l.broken {
		for _, e := range l.c.problems() {
			if !l.isBad(e.path) {
				l.errs = append(l.errs, e)
			}
		}
	}
	if len(l.errs) > 0 {
		return nil, l.errs.sorted()
	}
	return l.c, nil
}

type loader struct {
	c      *Config
	errs   Errors
	bad    map[string]bool // paths whose value could not be taken, which need no second error
	broken bool            // a file is not TOML: what it would have set is unknown
	rank   int
	keys   map[string]field // of c, nil after a list grew
}

func (l *loader) fields() map[string]field {
	if l.keys == nil {
		l.keys = l.c.fields()
	}
	return l.keys
}

func (l *loader) fail(path string, p Position, key, detail, hint string) {
	l.bad[path] = true
	l.errs = append(l.errs, &Error{File: p.File, Line: p.Line, Column: p.Column, Key: key, Detail: detail,
		Hint: hint, rank: l.rank, path: path})
}

// isBad says that the key or a table around it was already told.
func (l *loader) isBad(path string) bool {
	for {
		if l.bad[path] {
			return true
		}
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return false
		}
		path = path[:i]
	}
}

func (l *loader) readFiles(o Options) error {
	file := o.File
	if file == "" {
		file = DefaultFile
	}
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
		l.file(file, text)
	case errors.Is(err, fs.ErrNotExist) && !o.FileExplicit:
	default:
		return readError(file, err)
	}
	// Glob would read the folder's name as a pattern.
	dir := filepath.Join(filepath.Dir(file), "conf.d")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
		return readError(dir, err)
	}
	for _, e := range entries { // sorted by name
		if !strings.HasSuffix(e.Name(), ".toml") || e.IsDir() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return readError(path, err)
		}
		l.file(path, text)
	}
	return nil
}

func readError(path string, err error) error {
	hint := "check the path and who may read it"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "check the path after --config"
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return Errors{{File: path, Detail: err.Error(), Hint: hint}}
}

func (l *loader) file(path string, text []byte) {
	l.rank++
	l.c.files = append(l.c.files, path)
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	var doc map[string]any
	if _, err := toml.Decode(string(text), &doc); err != nil {
		l.broken = true
		p, detail := Position{File: path}, err.Error()
		var pe toml.ParseError
		if errors.As(err, &pe) {
			p.Line, p.Column, detail = pe.Position.Line, pe.Position.Col, pe.Message
			// A line end where none may be is counted to the next line.
			if start := min(pe.Position.Start, len(text)); strings.Contains(detail, `'\n'`) {
				p.Line = 1 + bytes.Count(text[:start], []byte("\n"))
			}
		}
		l.fail("", p, "", detail, "the file is TOML: [section] lines, below them key = value; texts in double quotes, numbers and true or false without")
		return
	}
	f := &tables{loader: l, file: path, places: keyPlaces(string(text))}
	f.top(doc)
}

// tables puts one file's tables into the configuration.
type tables struct {
	*loader
	file   string
	places map[string]place
}

func (t *tables) position(path string) Position {
	p := t.places[path]
	return Position{File: t.file, Line: p.line, Column: p.column, rank: t.rank}
}

func (t *tables) top(doc map[string]any) {
	names := listNames()
	for _, key := range slices.Sorted(maps.Keys(doc)) {
		if name, ok := names[key]; ok {
			t.elements(key, name, doc[key])
			continue
		}
		t.put(key, key, doc[key])
	}
}

// put sets the key or table at path of the configuration; from is its path in the file.
func (t *tables) put(path, from string, v any) {
	pos := t.position(from)
	if f, ok := t.fields()[path]; ok {
		t.assign(f, pos, v)
		return
	}
	if !t.isTable(path) {
		t.unknown(path, pos)
		return
	}
	table, ok := v.(map[string]any)
	if !ok {
		if pos.Line == 0 {
			pos = t.position(from + "[0]")
		}
		t.fail(path, pos, t.c.display(path), "it is a table, not a value", "write ["+element.ReplaceAllString(path, "")+"] on a line, and its keys below")
		return
	}
	if pos.Line > 0 {
		t.c.at[path] = pos
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		t.put(join(path, key), join(from, key), table[key])
	}
}

func (t *tables) isTable(path string) bool {
	for p := range t.fields() {
		if strings.HasPrefix(p, path+".") {
			return true
		}
	}
	return false
}

// elements adds the tables of a list. One with the name of an element of an earlier source changes that
// element key by key; a second one of that name in the same file is left to the validation.
func (t *tables) elements(key, name string, v any) {
	var tabs []map[string]any
	switch v := v.(type) {
	case []map[string]any:
		tabs = v
	case []any:
		for _, e := range v {
			tab, ok := e.(map[string]any)
			if !ok {
				tabs = nil
				break
			}
			tabs = append(tabs, tab)
		}
		if len(v) > 0 && tabs == nil {
			t.notList(key)
			return
		}
	default:
		t.notList(key)
		return
	}
	before := t.c.names(key)
	for i, tab := range tabs {
		from := fmt.Sprintf("%s[%d]", key, i)
		n := -1
		if s, ok := tab[name].(string); ok {
			n = slices.Index(before, s)
		}
		if n < 0 {
			n, t.keys = t.c.grow(key), nil
		} else {
			before[n] = "\x00" // no longer to be had
		}
		path := fmt.Sprintf("%s[%d]", key, n)
		t.c.at[path] = t.position(from)
		// The name first: errors of the other keys tell it.
		if s, ok := tab[name]; ok {
			t.put(join(path, name), join(from, name), s)
		}
		for _, k := range slices.Sorted(maps.Keys(tab)) {
			if k != name {
				t.put(join(path, k), join(from, k), tab[k])
			}
		}
	}
}

func (t *tables) notList(key string) {
	pos := t.position(key)
	if pos.Line == 0 {
		pos = t.position(key + "[0]")
	}
	t.fail(key, pos, key, "it is a list of tables", "write [["+key+"]] on a line for each one, and its keys below")
}

// names lists the names of the elements of a list of tables.
func (c *Config) names(key string) []string {
	var out []string
	if key == "rx_profile" {
		for _, p := range c.RxProfiles {
			out = append(out, p.Name)
		}
		return out
	}
	for _, s := range c.Scanners {
		out = append(out, s.ID)
	}
	return out
}

// grow appends an element with its defaults and returns its number.
func (c *Config) grow(key string) int {
	if key == "rx_profile" {
		c.RxProfiles = append(c.RxProfiles, RxProfile{})
		return len(c.RxProfiles) - 1
	}
	c.Scanners = append(c.Scanners, DefaultScanner())
	return len(c.Scanners) - 1
}

func (l *loader) assign(f field, pos Position, v any) {
	pos.rank = l.rank
	l.c.at[f.path] = pos
	if err := assign(f.value, v); err != nil {
		l.fail(f.path, pos, l.c.display(f.path), asText(v)+" does not fit", wants(f.value))
		return
	}
	delete(l.bad, f.path)
}

func (l *loader) unknown(path string, pos Position) {
	plain := element.ReplaceAllString(path, "")
	words := known()
	if i := strings.LastIndexByte(plain, '.'); i < 0 || !slices.Contains(tableNames(words), plain[:i]) || plain[:i] == "window" {
		words = append(words, tableNames(words)...)
	}
	hint := "scanonce config reference lists all keys"
	if n := nearest(plain, words); n != "" {
		hint = fmt.Sprintf("did you mean %s?", n)
	}
	what := "there is no such key"
	if !strings.Contains(path, ".") {
		what = "there is no such section"
	}
	l.fail(path, pos, l.c.display(path), what, hint)
}

func tableNames(keys []string) []string {
	var out []string
	for _, k := range keys {
		for i, c := range k {
			if c == '.' {
				out = append(out, k[:i])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

func (l *loader) environment(env []string) {
	l.rank++
	byName := map[string]field{}
	for p, f := range l.fields() {
		if !strings.Contains(p, "[") {
			byName[envName(p)] = f
		}
	}
	for _, e := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		pos := Position{File: "environment " + name}
		if f, ok := byName[name]; ok {
			l.assign(f, pos, fromText(f.value, value))
			continue
		}
		hint := "scanonce config reference lists all keys: SCANONCE_SECTION_KEY sets section.key"
		if n := nearest(name, slices.Sorted(maps.Keys(byName))); n != "" {
			hint = fmt.Sprintf("did you mean %s?", n)
		}
		if strings.HasPrefix(name, envPrefix+"SCANNER_") || strings.HasPrefix(name, envPrefix+"RX_PROFILE_") {
			hint = "a key of a list is not set by the environment: write it into the file, or use --set scanner.ID.key=value"
		}
		l.fail("", pos, "", "there is no such key", hint)
	}
}

func (l *loader) set(s string) {
	l.rank++
	key, value, ok := strings.Cut(s, "=")
	key = strings.TrimSpace(key)
	pos := Position{File: "--set " + key}
	if !ok {
		l.fail("", pos, "", "it has no value", "write --set section.key=value")
		return
	}
	path := key
	for kind := range listNames() {
		rest, ok := strings.CutPrefix(key, kind+".")
		if !ok {
			continue
		}
		id, sub := splitElement(kind, rest)
		if sub == "" {
			l.unknown(key, pos)
			return
		}
		names := l.c.names(kind)
		n := slices.Index(names, id)
		if n < 0 {
			hint := fmt.Sprintf("there is no [[%s]] in the files: --set changes one, it adds none", kind)
			if len(names) > 0 {
				hint = "write one of " + list(names)
			}
			l.fail(key, pos, "", fmt.Sprintf("there is no %s %q", kind, id), hint)
			return
		}
		path = fmt.Sprintf("%s[%d].%s", kind, n, sub)
	}
	f, ok := l.fields()[path]
	if !ok {
		l.unknown(path, pos)
		return
	}
	l.assign(f, pos, fromText(f.value, value))
}

// splitElement splits "SCN.04.feedback.good" into the element's name, which may have dots, and its key.
func splitElement(list, s string) (id, key string) {
	for _, k := range known() {
		sub, ok := strings.CutPrefix(k, list+".")
		if !ok {
			continue
		}
		if rest, ok := strings.CutSuffix(s, "."+sub); ok && rest != "" {
			id, key = rest, sub
		}
	}
	return id, key
}

func (l *loader) flags(o Options) error {
	l.rank++
	for _, g := range []struct{ name, key, value string }{
		{"--state-dir", "agent.state_dir", o.StateDir}, {"--socket", "api.socket", o.Socket},
	} {
		if g.value == "" {
			continue
		}
		abs, err := filepath.Abs(g.value)
		if err != nil {
			return fmt.Errorf("cannot find the folder that %s %s starts from: %w", g.name, g.value, err)
		}
		l.assign(l.fields()[g.key], Position{File: g.name + " " + g.value}, abs)
	}
	if _, set := l.c.at["api.socket"]; o.StateDir != "" && !set {
		pos := l.c.at["agent.state_dir"]
		l.assign(l.fields()["api.socket"], pos, filepath.Join(l.c.Agent.StateDir, "scanonce.sock"))
	}
	return nil
}

// byTransport sets what a keyboard has otherwise unless the file says it: it is listened to beside the pharmacy
// application, and its keys follow each other more quickly than bytes must.
func (c *Config) byTransport() {
	for i := range c.Scanners {
		s := &c.Scanners[i]
		if s.Transport != "hid-keyboard" {
			continue
		}
		if _, set := c.at[fmt.Sprintf("scanner[%d].mode", i)]; !set {
			s.Mode = "listen"
		}
		if _, set := c.at[fmt.Sprintf("scanner[%d].inter_byte_timeout", i)]; !set {
			s.InterByteTimeout = 100 * time.Millisecond
		}
	}
}
