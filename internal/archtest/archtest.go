// Package archtest holds the layout of the house as rules on source files: which room may import which,
// where the time comes from, what a file may not have. Its test applies them to the module.
package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Module is the import path of the module.
const Module = "scanonce"

// File is a Go file of the module.
type File struct {
	Path string // relative to the module's root, with slashes
	Src  string
}

func (f File) isTest() bool { return strings.HasSuffix(f.Path, "_test.go") }

// room says what the files of one folder may import besides the standard library and errgroup.
type room struct {
	rooms    []string // folders of this module
	modules  []string // third-party modules
	anyRoom  bool
	anyThird bool
}

const (
	bbolt     = "go.etcd.io/bbolt"
	bloomLib  = "github.com/bits-and-blooms/bloom/v3"
	redis     = "github.com/redis/go-redis/v9"
	pgx       = "github.com/jackc/pgx/v5"
	aws       = "github.com/aws/aws-sdk-go-v2"
	sys       = "golang.org/x/sys"
	serial    = "go.bug.st/serial"
	usb       = "github.com/karalabe/usb"
	toml      = "github.com/BurntSushi/toml"
	metrics   = "github.com/prometheus/client_golang"
	errgroup  = "golang.org/x/sync/errgroup"
	timePath  = "time"
	mainFile  = "cmd/scanonce/main.go"
	mainLines = 20
)

// house is the table of the rooms. A package that it lacks is a finding.
func house() map[string]room {
	domain := []string{"window", "device", "capture", "idem", "bloom", "spool",
		"sync/ledger", "sync/claimstate", "sync/pacase", "sync/forward", "internal/session", "internal/events"}
	return map[string]room{
		"cmd/scanonce":       {rooms: []string{"internal/cli"}},
		"window":             {modules: []string{sys}},
		"device":             {rooms: []string{"window"}, modules: []string{serial, usb, sys}},
		"capture":            {rooms: []string{"window", "device"}},
		"idem":               {rooms: []string{"capture", "window", "internal/redisconn"}, modules: []string{redis}},
		"bloom":              {rooms: []string{"window", "idem"}, modules: []string{bloomLib}},
		"spool":              {rooms: []string{"bloom", "capture", "idem", "window"}, modules: []string{bbolt}},
		"internal/pg":        {rooms: []string{"window"}, modules: []string{pgx}},
		"sync/ledger":        {rooms: []string{"capture", "idem", "window", "internal/pg", "internal/boltfile"}, modules: []string{pgx, bbolt}},
		"internal/boltfile":  {modules: []string{bbolt}},
		"sync/claimstate":    {rooms: []string{"window", "internal/redisconn", "internal/boltfile"}, modules: []string{redis, aws, bbolt}},
		"sync/pacase":        {rooms: []string{"window", "internal/pg", "internal/boltfile"}, modules: []string{pgx, bbolt}},
		"sync/forward":       {rooms: []string{"spool", "idem", "window", "sync/ledger", "sync/claimstate", "sync/pacase"}},
		"internal/agent":     {rooms: append([]string{"internal/config", "internal/api", "internal/audit"}, domain...), anyThird: true},
		"internal/redisconn": {modules: []string{redis}},
		"internal/session":   {rooms: []string{"capture", "idem", "window"}},
		"internal/events":    {rooms: []string{"window"}},
		"internal/config":    {rooms: []string{"window"}, modules: []string{toml}},
		"internal/audit":     {rooms: []string{"internal/api", "capture", "idem", "spool", "sync/ledger", "window"}},
		"internal/api":       {rooms: []string{"window"}, modules: []string{metrics, sys}}, // sys: modes and peers of the socket
		"internal/cli":       {rooms: []string{"internal/api", "internal/audit", "internal/config", "internal/agent", "internal/sim", "capture", "idem", "device", "spool", "window", "sync/ledger"}, anyThird: true},
		"internal/sim":       {rooms: append([]string{"internal/api"}, domain...), anyThird: true},
		"internal/sim/world": {rooms: append([]string{"internal/agent", "internal/api", "internal/config"}, domain...), anyThird: true},
		"internal/storetest": {rooms: append([]string{"internal/testenv"}, domain...), anyThird: true},
		"internal/testenv":   {rooms: []string{"window"}, anyThird: true},
		"internal/bench":     {anyRoom: true, anyThird: true},
		"internal/archtest":  {},
		"internal/faults":    {},

		"internal/faults/losstable": {rooms: []string{"internal/faults"}},

		"internal/rig":        {},
		"internal/rig/boot":   {modules: []string{sys}},
		"internal/rig/worker": {rooms: []string{"device"}},
		"internal/rig/guest":  {rooms: []string{"device", "window", "internal/testenv"}, modules: []string{sys, usb}},
	}
}

// testRooms are what the test files of a room may import on top of its own arrows.
func testRooms(dir string) []string {
	rooms := []string{"internal/testenv", "internal/storetest", "internal/sim", "internal/faults"}
	if dir == "internal/api" { // the stream that it serves, for real
		rooms = append(rooms, "internal/events")
	}
	return rooms
}

// testSide are the rooms of which nothing is in the program.
func testSide() []string {
	return []string{"internal/testenv", "internal/storetest", "internal/sim/world", "internal/bench", "internal/archtest", "internal/faults",
		"internal/rig", "internal/rig/boot", "internal/rig/worker", "internal/rig/guest"}
}

func testModules() []string {
	return []string{"github.com/google/go-cmp", "pgregory.net/rapid", "go.uber.org/goleak",
		"github.com/rogpeppe/go-internal", "github.com/anishathalye/porcupine", "github.com/getkin/kin-openapi"}
}

// topFolders are the only folders at the module's root. bin and .cache are build products that git ignores.
func topFolders() []string {
	return []string{"cmd", "device", "capture", "window", "bloom", "idem", "spool", "sync", "configs",
		"internal", "docs", ".ci", ".git", "bin", ".cache"}
}

// CheckFolders returns a finding for each folder at the root that does not belong there.
func CheckFolders(names []string) []string {
	var out []string
	for _, n := range names {
		if !slices.Contains(topFolders(), n) {
			out = append(out, fmt.Sprintf("%s: the top level has no such folder: put it into a room, internal or docs", n))
		}
	}
	return out
}

// Check returns the findings on a file, each "path:line: what is wrong".
func Check(f File) []string {
	c := &check{f: f, fset: token.NewFileSet(), dir: path.Dir(f.Path)}
	tree, err := parser.ParseFile(c.fset, f.Path, f.Src, parser.ParseComments)
	if err != nil {
		return []string{err.Error()}
	}
	c.imports(tree)
	c.inits(tree)
	c.unfinished()
	if !f.isTest() && c.dir != "window" && !slices.Contains(testSide(), c.dir) {
		c.time(tree)
	}
	if f.Path == mainFile {
		if n := strings.Count(strings.TrimRight(f.Src, "\n"), "\n") + 1; n > mainLines {
			c.out = append(c.out, fmt.Sprintf("%s:%d: main has %d lines, at most %d: the work belongs into internal/cli", f.Path, mainLines+1, n, mainLines))
		}
	}
	return c.out
}

type check struct {
	f    File
	fset *token.FileSet
	dir  string
	out  []string
}

func (c *check) add(pos token.Pos, format string, args ...any) {
	c.out = append(c.out, fmt.Sprintf("%s:%d: ", c.f.Path, c.fset.Position(pos).Line)+fmt.Sprintf(format, args...))
}

func (c *check) imports(tree *ast.File) {
	r, ok := house()[c.dir]
	if !ok {
		c.add(tree.Package, "the house has no room %s: add it to the table, if it is wanted", c.dir)
		return
	}
	for _, im := range tree.Imports {
		target := strings.Trim(im.Path.Value, "`\"")
		if within(target, bloomLib) {
			switch {
			case c.dir != "bloom":
				c.add(im.Pos(), "only the room bloom imports %s", target)
			case im.Name == nil || im.Name.Name != "bab":
				c.add(im.Pos(), "%s goes by the alias bab", target)
			}
			continue
		}
		if inner, ok := strings.CutPrefix(target, Module+"/"); ok {
			if !c.mayEnter(r, inner) {
				c.add(im.Pos(), "%s may not import %s", c.dir, inner)
			}
			continue
		}
		first, _, _ := strings.Cut(target, "/")
		if !strings.Contains(first, ".") || target == errgroup {
			continue // the standard library, and what may be used anywhere
		}
		if !c.mayUse(r, target) {
			c.add(im.Pos(), "%s may not import %s", c.dir, target)
		}
	}
}

func (c *check) mayEnter(r room, target string) bool {
	if r.anyRoom || slices.Contains(r.rooms, target) {
		return true
	}
	return c.f.isTest() && (target == c.dir || slices.Contains(testRooms(c.dir), target))
}

func (c *check) mayUse(r room, target string) bool {
	in := func(m string) bool { return within(target, m) }
	return r.anyThird || slices.ContainsFunc(r.modules, in) || c.f.isTest() && slices.ContainsFunc(testModules(), in)
}

// within says that an import path is in a module.
func within(target, module string) bool {
	return target == module || strings.HasPrefix(target, module+"/")
}

func (c *check) inits(tree *ast.File) {
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
			c.add(fn.Pos(), "no init: what a room needs, its constructor makes")
		}
	}
}

// The words are not written out, so that this file passes too.
var unfinished = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME)\b`)

func (c *check) unfinished() {
	for i, line := range strings.Split(c.f.Src, "\n") {
		if w := unfinished.FindString(line); w != "" {
			c.out = append(c.out, fmt.Sprintf("%s:%d: %s: finish it, or leave it out and say so in the documents", c.f.Path, i+1, w))
		}
	}
}

// time finds uses of the wall clock, also as a value: instants come from window.Clock.
func (c *check) time(tree *ast.File) {
	name := ""
	for _, im := range tree.Imports {
		if strings.Trim(im.Path.Value, "`\"") != timePath {
			continue
		}
		name = "time"
		if im.Name != nil {
			name = im.Name.Name
		}
		if name == "." {
			c.add(im.Pos(), "time is not imported with a dot: nobody would see where it is used")
			return
		}
		c.clockUses(tree, name)
	}
}

func (c *check) clockUses(tree *ast.File, name string) {
	ast.Inspect(tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		// The parser resolves a local variable of the package's name; the package itself stays unresolved.
		id, ok := sel.X.(*ast.Ident)
		if ok && id.Name == name && id.Obj == nil && slices.Contains([]string{"Now", "Since", "Until"}, sel.Sel.Name) {
			c.add(sel.Pos(), "only the room window uses time.%s: take the instant from window.Clock", sel.Sel.Name)
		}
		return true
	})
}
