package cli

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func readRoot(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Every module that the build may take has its licence in NOTICE.
func TestNoticeNamesEveryModule(t *testing.T) {
	notice, modules := readRoot(t, "NOTICE"), 0
	for l := range strings.Lines(readRoot(t, "go.mod")) {
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

// Section 2 of NOTICE tells what is in the binary, section 3 what is not.
func TestNoticeTellsWhatIsLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "../../cmd/scanonce").Output()
	if err != nil {
		t.Fatal(err)
	}
	var linked []string
	for _, m := range strings.Fields(string(out)) {
		if strings.Contains(m, ".") && !slices.Contains(linked, m) {
			linked = append(linked, m)
		}
	}
	_, rest, ok := strings.Cut(readRoot(t, "NOTICE"), "\n2. ")
	inside, outside, ok2 := strings.Cut(rest, "\n3. ")
	if !ok || !ok2 || len(linked) == 0 {
		t.Fatalf("%d modules linked; NOTICE has sections 2 and 3: %v, %v", len(linked), ok, ok2)
	}
	var named []string
	for l := range strings.Lines(inside) {
		if f := strings.Fields(l); strings.HasPrefix(l, "  ") && len(f) > 1 && strings.Contains(f[0], "/") {
			named = append(named, f[0])
		}
	}
	slices.Sort(linked)
	slices.Sort(named)
	if !slices.Equal(linked, named) {
		t.Errorf("linked are\n%s\nand section 2 of NOTICE names\n%s", strings.Join(linked, "\n"), strings.Join(named, "\n"))
	}
	for _, m := range linked {
		if strings.Contains(outside, "  "+m+" ") {
			t.Errorf("section 3 of NOTICE says that %s is not in the binary", m)
		}
	}
}
