package cli

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/agent"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// zipped writes a zip of the named texts, each changed at its time.
func zipped(t *testing.T, name string, texts map[string]string, changed map[string]time.Time) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, entry := range []string{"readme.txt", "product.txt", "sub/Package.TXT"} {
		text, ok := texts[entry]
		if !ok {
			continue
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: entry, Method: zip.Deflate, Modified: changed[entry]})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The zip as the FDA publishes it; the index is dated as the oldest part, by the zip's word, and readable by the
// agent's user, whatever the importing user's habits are.
func TestNDCImportZip(t *testing.T) {
	dir := t.TempDir()
	file, index := filepath.Join(dir, "ndctext.zip"), filepath.Join(dir, "ndc.idx")
	texts := map[string]string{
		"readme.txt":      "read me",
		"product.txt":     "PRODUCTID\tPRODUCTNDC\tPROPRIETARYNAME\r\na\t9990-1001\tx\r\nb\t9990-1\ty\r\n",
		"sub/Package.TXT": "PRODUCTID\tPRODUCTNDC\tNDCPACKAGECODE\tPACKAGEDESCRIPTION\r\na\t9990-1001\t9990-1001-10\tx\r\n",
	}
	old := time.Date(2026, 9, 3, 4, 5, 6, 0, time.UTC)
	zipped(t, file, texts, map[string]time.Time{"product.txt": old, "sub/Package.TXT": old.Add(time.Hour)})
	if err := os.WriteFile(index, []byte("what was here before"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(index)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	out, msg := call(t, exitOK, "--json", "ndc", "import", file, "-o", index)
	if out != `{"packages":1,"products":1,"skipped":1,"written":1}`+"\n" || !strings.Contains(msg, "line 3 of "+file+"/product.txt") {
		t.Errorf("%s%s", out, msg)
	}
	d, dated, err := agent.ReadNDC(index)
	if err != nil || d.Len() != 1 || dated != window.FromTime(old) {
		t.Errorf("%v, dated %v, %v", d, dated, err)
	}
	if b, err := io.ReadAll(reader); err != nil || string(b) != "what was here before" {
		t.Errorf("who had the old file open reads %q, %v", b, err)
	}
	if info, err := os.Stat(index); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("in the folder: %v, %v", left, err)
	}

	// Nothing of a zip that lacks the files, or whose content is damaged, is written.
	before, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none.zip")
	zipped(t, none, map[string]string{"readme.txt": "read me"}, nil)
	if _, msg = call(t, exitUsage, "ndc", "import", none, "-o", index); !strings.Contains(msg, "holds neither package.txt nor product.txt") {
		t.Error(msg)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("Package.TXT"))+20] ^= 0xff
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, msg = call(t, exitUsage, "ndc", "import", file, "-o", index); !strings.Contains(msg, "cannot import "+file+": package.txt: ") {
		t.Error(msg)
	}
	if after, err := os.ReadFile(index); err != nil || !bytes.Equal(before, after) {
		t.Error("the index changed")
	}
}

// The FDA's directory has a quarter of a million packages; it is imported while one waits.
func TestNDCImportLarge(t *testing.T) {
	dir := t.TempDir()
	file, index := filepath.Join(dir, "package.txt"), filepath.Join(dir, "ndc.idx")
	var b strings.Builder
	b.WriteString("PRODUCTID\tPRODUCTNDC\tNDCPACKAGECODE\tPACKAGEDESCRIPTION\tSTARTMARKETINGDATE\tENDMARKETINGDATE\tNDC_EXCLUDE_FLAG\tSAMPLE_PACKAGE\r\n")
	const packages = 250_000
	for i := range packages {
		product := fmt.Sprintf("%05d-%04d", 10000+i/4%80000, i*7919%10000)
		fmt.Fprintf(&b, "%s_7d3c1f56-2b3e-4e3c-9c65-0f3a4c9a1b7e\t%s\t%s-%d\t\"100 TABLET, FILM COATED in 1 BOTTLE, PLASTIC (%s-%d)\"\t20240101\t\tN\tN\r\n", product, product, product, i%4, product, i%4)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	w := testenv.NewWatch(t)
	out, _ := call(t, exitOK, "--json", "ndc", "import", file, "-o", index)
	t.Logf("%d packages in %v", packages, w.Stop())
	if want := fmt.Sprintf(`{"packages":%d,"products":0,"skipped":0,"written":%d}`+"\n", packages, packages); out != want {
		t.Errorf("%s, want %s", out, want)
	}
	w.Within(t, "the import", 3*time.Second)
	if info, err := os.Stat(index); err != nil || info.Size() > 1_300_000 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
}

// The index takes the place of a file, never of a device or a pipe, which a rename would replace.
func TestNDCImportIntoNoFile(t *testing.T) {
	dir := t.TempDir()
	list, pipe := filepath.Join(dir, "list.txt"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(list, []byte("9990-1001-10\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{pipe, dir} {
		if _, msg := call(t, exitUsage, "ndc", "import", list, "-o", name); !strings.Contains(msg, "it is no regular file") {
			t.Error(msg)
		}
	}
	if info, err := os.Stat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the pipe became %v, %v", info.Mode(), err)
	}
}
