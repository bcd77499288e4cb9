package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the document for technicians shows can be pasted as it is.
func TestDevicesDocument(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "DEVICES.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, tables := "[agent]\nfacility_uuid = \"F\"\n", 0
	for _, line := range strings.Split(string(b), "\n") {
		code, ok := strings.CutPrefix(line, "    ")
		if ok && (strings.HasPrefix(code, "[") || strings.Contains(code, " = ")) {
			text += code + "\n"
		}
		if ok && code == "[[scanner]]" {
			tables++
		}
	}
	c, err := Load(Options{File: write(t, t.TempDir(), "scanonce.toml", text), FileExplicit: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if tables < 7 || len(c.Scanners) != tables {
		t.Errorf("%d scanners of %d tables", len(c.Scanners), tables)
	}
}
