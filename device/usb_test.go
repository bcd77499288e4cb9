package device

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The library is used only where it reads no strings of a device: to list HID devices it converts them from UTF-16,
// which needs the C library's converters (gconv), and without these it gives empty ones and says nothing.
func TestUSBLibraryReadsNoStrings(t *testing.T) {
	harmless := []string{"Supported", "EnumerateRaw", "DeviceInfo"} // DeviceInfo.Open takes the path alone
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	used := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"github.com/karalabe/usb"` }) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if id, ok := s.X.(*ast.Ident); ok && id.Name == "usb" {
				used++
				if !slices.Contains(harmless, s.Sel.Name) {
					t.Errorf("%s: usb.%s", fset.Position(s.Pos()), s.Sel.Name)
				}
			}
			return true
		})
	}
	if used == 0 {
		t.Error("the library is not used at all")
	}
}
