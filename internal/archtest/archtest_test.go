package archtest

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's root.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

func TestTheHouse(t *testing.T) {
	dir := root(t)
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(bytes.NewReader(mod))
	if !s.Scan() || s.Text() != "module "+Module {
		t.Fatalf("go.mod begins with %q, want module %s", s.Text(), Module)
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for _, e := range entries {
		if e.IsDir() {
			folders = append(folders, e.Name())
		}
	}
	for _, p := range CheckFolders(folders) {
		t.Error(p)
	}

	seen := map[string]bool{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == ".git" || rel == "bin" || rel == ".cache" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		seen[filepath.ToSlash(filepath.Dir(rel))] = true
		for _, f := range Check(File{Path: rel, Src: string(src)}) {
			t.Error(f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []string{"window", "device", "idem", "internal/archtest"} {
		if !seen[r] {
			t.Errorf("the walk did not see the room %s", r)
		}
	}
}

// The table names only rooms that it has itself, and no arrow leads round in a circle.
func TestTheTableIsSound(t *testing.T) {
	h := house()
	var visit func(name string, above []string)
	visit = func(name string, above []string) {
		for i, a := range above {
			if a == name {
				t.Fatalf("a circle: %v", append(above[i:], name))
			}
		}
		for _, r := range h[name].rooms {
			if _, ok := h[r]; !ok {
				t.Errorf("%s may import %s, which is no room", name, r)
			}
			visit(r, append(append([]string{}, above...), name))
		}
	}
	for name := range h {
		visit(name, nil)
	}
	for _, r := range testRooms("capture") {
		if _, ok := h[r]; !ok {
			t.Errorf("tests may import %s, which is no room", r)
		}
	}
}

func TestFolders(t *testing.T) {
	if f := CheckFolders([]string{"cmd", "configs", ".ci", "docs", "sync"}); f != nil {
		t.Errorf("found %v", f)
	}
	for _, name := range []string{"pkg", "util", "test", "scripts", ".github"} {
		if f := CheckFolders([]string{"cmd", name}); len(f) != 1 || !strings.HasPrefix(f[0], name+": ") {
			t.Errorf("%s: found %v", name, f)
		}
	}
}

func TestRules(t *testing.T) {
	todo, fixme := "TO"+"DO", "FIX"+"ME"
	for _, tt := range []struct {
		name, path, src string
		want            string // "LINE: part of the finding"; "" for none
	}{
		{"one's own arrows", "capture/x.go", `import ("fmt"; "scanonce/window"; "scanonce/device"; "golang.org/x/sync/errgroup")`, ""},
		{"an arrow back", "window/x.go", `import "scanonce/idem"`, "2: window may not import idem"},
		{"a neighbour", "spool/x.go", `import "scanonce/device"`, "2: spool may not import device"},
		{"blank import", "spool/x.go", `import _ "scanonce/sync/forward"`, "2: spool may not import sync/forward"},
		{"raw string import", "spool/x.go", "import `scanonce/sync/forward`", "2: spool may not import sync/forward"},
		{"the composer", "sync/forward/x.go", `import "scanonce/internal/agent"`, "2: sync/forward may not import internal/agent"},
		{"main past the cli", "cmd/scanonce/x.go", `import "scanonce/internal/agent"`, "2: cmd/scanonce may not import internal/agent"},
		{"api and the agent", "internal/api/x.go", `import "scanonce/internal/agent"`, "2: internal/api may not import internal/agent"},
		{"the cli and a store", "internal/cli/x.go", `import "scanonce/sync/pacase"`, "2: internal/cli may not import sync/pacase"},
		{"the test side in the product", "internal/agent/x.go", `import "scanonce/internal/testenv"`, "2: internal/agent may not import internal/testenv"},
		{"benchmarks in the product", "internal/cli/x.go", `import "scanonce/internal/bench"`, "2: internal/cli may not import internal/bench"},
		{"benchmarks may", "internal/bench/x.go", `import ("scanonce/internal/agent"; "scanonce/spool"; "example.org/any")`, ""},

		{"own module", "spool/x.go", `import "go.etcd.io/bbolt"`, ""},
		{"package of own module", "window/x.go", `import "golang.org/x/sys/unix"`, ""},
		{"foreign module", "capture/x.go", `import "go.etcd.io/bbolt"`, "2: capture may not import go.etcd.io/bbolt"},
		{"module with a name that begins alike", "spool/x.go", `import "go.etcd.io/bboltx"`, "2: spool may not import go.etcd.io/bboltx"},
		{"rest of x/sync", "spool/x.go", `import "golang.org/x/sync/singleflight"`, "2: spool may not import golang.org/x/sync/singleflight"},
		{"third party in the session", "internal/session/x.go", `import "github.com/google/uuid"`, "2: internal/session may not import"},
		{"third party in the cli", "internal/cli/x.go", `import "github.com/spf13/cobra"`, ""},

		{"test of a room", "spool/x_test.go", `import ("scanonce/internal/sim"; "scanonce/internal/storetest"; "scanonce/internal/testenv"; "pgregory.net/rapid")`, ""},
		{"test from outside the package", "spool/x_test.go", `import "scanonce/spool"`, ""},
		{"test with a foreign room", "window/x_test.go", `import "scanonce/spool"`, "2: window may not import spool"},
		{"test with a foreign module", "window/x_test.go", `import "github.com/stretchr/testify/assert"`, "2: window may not import github.com/stretchr"},
		{"test library in the product", "window/x.go", `import "pgregory.net/rapid"`, "2: window may not import pgregory.net/rapid"},
		{"test rooms in the product", "spool/x.go", `import "scanonce/internal/sim"`, "2: spool may not import internal/sim"},
		{"own package in the product", "spool/x.go", `import "scanonce/spool"`, "2: spool may not import spool"},

		{"no such room", "internal/util/x.go", ``, "1: the house has no room internal/util"},
		{"a package below a room", "spool/segment/x.go", ``, "1: the house has no room spool/segment"},
		{"the folder sync", "sync/x.go", ``, "1: the house has no room sync"},
		{"Go in configs", "configs/x.go", ``, "1: the house has no room configs"},
		{"Go at the root", "x.go", ``, "1: the house has no room ."},

		{"bloom library", "bloom/x.go", `import bab "github.com/bits-and-blooms/bloom/v3"`, ""},
		{"without alias", "bloom/x.go", `import "github.com/bits-and-blooms/bloom/v3"`, "2: github.com/bits-and-blooms/bloom/v3 goes by the alias bab"},
		{"with another alias", "bloom/x_test.go", `import filter "github.com/bits-and-blooms/bloom/v3"`, "2: github.com/bits-and-blooms/bloom/v3 goes by the alias bab"},
		{"elsewhere", "internal/bench/x.go", `import bab "github.com/bits-and-blooms/bloom/v3"`, "2: only the room bloom imports"},
		{"elsewhere in a test", "spool/x_test.go", `import bab "github.com/bits-and-blooms/bloom/v3"`, "2: only the room bloom imports"},

		{"Now", "spool/x.go", "import \"time\"\nvar x = time.Now()", "3: only the room window uses time.Now"},
		{"Since", "spool/x.go", "import \"time\"\nfunc f(t time.Time) time.Duration { return time.Since(t) }", "3: only the room window uses time.Since"},
		{"Until", "spool/x.go", "import \"time\"\nfunc f(t time.Time) time.Duration { return time.Until(t) }", "3: only the room window uses time.Until"},
		{"as a value", "spool/x.go", "import \"time\"\nvar now = time.Now", "3: only the room window uses time.Now"},
		{"aliased", "spool/x.go", "import clock \"time\"\nvar x = clock.Now()", "3: only the room window uses time.Now"},
		{"aliased, and the name is another's", "spool/x.go", "import clock \"time\"\nvar time struct{ Now func() }\nvar d clock.Duration\nfunc f() { time.Now() }", ""},
		{"imported twice", "spool/x.go", "import (\"time\"; clock \"time\")\nvar d time.Duration\nvar x = clock.Now()", "4: only the room window uses time.Now"},
		{"dot", "spool/x.go", "import . \"time\"\nvar x = Now()", "2: time is not imported with a dot"},
		{"a local of that name", "spool/x.go", "import \"time\"\ntype c struct{}\nfunc (c) Now() time.Duration { return 0 }\nfunc f(time c) { time.Now() }", ""},
		{"another package's Now", "spool/x.go", "import \"scanonce/window\"\nfunc f(c *window.Clock) { c.Now() }", ""},
		{"timers", "spool/x.go", "import \"time\"\nvar x = time.NewTimer(time.Second)", ""},
		{"in window", "window/x.go", "import \"time\"\nvar x = time.Now()", ""},
		{"in a test", "spool/x_test.go", "import \"time\"\nvar x = time.Now()", ""},
		{"in what simulate uses", "internal/sim/x.go", "import \"time\"\nvar x = time.Now()", "3: only the room window uses time.Now"},

		{"init", "spool/x.go", "func init() {}", "2: no init"},
		{"init of a test", "spool/x_test.go", "func init() {}", "2: no init"},
		{"method init", "spool/x.go", "type c struct{}\nfunc (c) init() {}", ""},

		{"unfinished", "spool/x.go", "// " + todo + ": later", "2: " + todo},
		{"unfinished in a test", "spool/x_test.go", "// x\n/* " + fixme + " */", "3: " + fixme},
		{"context", "spool/x.go", "import \"context\"\nvar c = context." + todo + "()", "3: " + todo},
		{"a longer word", "spool/x.go", "// MASTODONS and " + todo + "S are animals", ""},

		{"long main", "cmd/scanonce/main.go", strings.Repeat("\n", 19) + "// 21", "21: main has 21 lines"},
		{"short main", "cmd/scanonce/main.go", strings.Repeat("\n", 18) + "// 20\n\n", ""},
		{"long file beside main", "cmd/scanonce/x_test.go", strings.Repeat("\n", 40), ""},

		{"no Go", "spool/x.go", "func {", "spool/x.go:2:6: expected"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Check(File{Path: tt.path, Src: "package x\n" + tt.src})
			if tt.want == "" {
				if len(got) > 0 {
					t.Errorf("found %q", got)
				}
				return
			}
			want := tt.want
			if !strings.HasPrefix(want, tt.path) {
				want = tt.path + ":" + want
			}
			if len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("found %q, want %q", got, want)
			}
		})
	}
}
