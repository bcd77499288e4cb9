package cli

import (
	"os"
	"strings"
	"testing"
)

// Every module that the build may take has its licence in NOTICE.
func TestNoticeNamesEveryModule(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	notice, modules := read("NOTICE"), 0
	for l := range strings.Lines(read("go.mod")) {
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(l), "require "))
		if len(f) < 2 || !strings.HasPrefix(f[1], "v") || !strings.Contains(f[0], ".") {
			continue
		}
		modules++
		if !strings.Contains(notice, "  "+f[0]+" ") {
			t.Errorf("NOTICE lacks %s: look up its licence and add a line", f[0])
		}
	}
	if modules == 0 {
		t.Error("no module found in go.mod")
	}
}
