package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// What the kernel would unpack is read back, folders included, and two archives one behind the other.
func TestCPIO(t *testing.T) {
	var b bytes.Buffer
	files := []entry{{"init", 0o755, []byte("#!")}, {"lib/modules/a.ko", 0o644, []byte("12345")}, {"lib/modules/b.ko", 0o600, nil}}
	if err := writeCPIO(&b, files); err != nil {
		t.Fatal(err)
	}
	if b.Len()%4 != 0 {
		t.Fatalf("%d bytes: the next archive would not begin at a multiple of four", b.Len())
	}
	if err := writeCPIO(&b, []entry{{"args", 0o644, []byte("x\n")}}); err != nil {
		t.Fatal(err)
	}
	type file struct {
		mode int64
		data string
	}
	got := map[string]file{}
	var order []string
	for rest := b.Bytes(); len(rest) > 0; {
		if string(rest[:6]) != "070701" {
			t.Fatalf("no header at the %d bytes from the end: %q", len(rest), rest[:6])
		}
		number := func(i int) (n int64) {
			for _, c := range rest[6+8*i : 14+8*i] {
				n = n<<4 | int64(bytes.IndexByte([]byte("0123456789ABCDEF"), c))
			}
			return n
		}
		mode, size, nameSize := number(1), number(6), number(11)
		name := string(rest[110 : 110+nameSize-1])
		at := (110 + nameSize + 3) &^ 3
		if name != "TRAILER!!!" {
			got[name] = file{mode, string(rest[at : at+size])}
			order = append(order, name)
		}
		rest = rest[(at+size+3)&^3:]
	}
	want := map[string]file{"init": {0o100755, "#!"}, "lib": {0o040755, ""}, "lib/modules": {0o040755, ""},
		"lib/modules/a.ko": {0o100644, "12345"}, "lib/modules/b.ko": {0o100600, ""}, "args": {0o100644, "x\n"}}
	if len(got) != len(want) || len(order) != len(want) {
		t.Errorf("unpacked %v, want %v", order, want)
	}
	for name, f := range want {
		if got[name] != f {
			t.Errorf("%s is %+v, want %+v", name, got[name], f)
		}
	}
	if slices.Index(order, "lib/modules") > slices.Index(order, "lib/modules/a.ko") {
		t.Errorf("a folder comes behind its files: %v", order)
	}
}

func TestModuleNotes(t *testing.T) {
	for in, want := range map[string][]string{
		"license=GPL\x00depends=udc-core,libcomposite\x00retpoline=Y\x00": {"udc_core", "libcomposite"},
		"\x00\x00depends=\x00name=configfs\x00":                           nil,
		"name=a\x00":                                                      nil,
	} {
		if got := parseDependencies([]byte(in)); !slices.Equal(got, want) {
			t.Errorf("%q depends on %q, want %q", in, got, want)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "modules.builtin"), []byte("kernel/drivers/tty/8250/8250.ko\nkernel/a/b-c.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err := findModules(dir, []string{"8250", "b_c"}); err != nil || len(m) != 0 {
		t.Errorf("found %v, %v; both are built in", m, err)
	}
	if _, err := findModules(dir, []string{"dummy_hcd"}); err == nil || !strings.Contains(err.Error(), "cannot find the module dummy_hcd") {
		t.Errorf("a module that is missing: %v", err)
	}
}

func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		name, said string
		ok         bool
	}{
		{"passed", "@@READY after 17.1 s\n=== RUN   TestA\n--- PASS: TestA (1.00s)\nPASS\n@@EXIT 0\n", true},
		{"failed", "--- PASS: TestA (1.00s)\n--- FAIL: TestB (1.00s)\nFAIL\n@@EXIT 1\n", false},
		{"skipped", "--- PASS: TestA (1.00s)\n--- SKIP: TestB (1.00s)\nPASS\n@@EXIT 0\n", false},
		{"none ran", "testing: warning: no tests to run\nPASS\n@@EXIT 0\n", false},
		{"no verdict", "--- PASS: TestA (1.00s)\n", false},
		{"panic behind the tests", "--- PASS: TestA (1.00s)\npanic: x\n@@EXIT 2\n", false},
		{"a test that quotes", "    a_test.go:1: --- FAIL: TestB (1.00s)\n--- PASS: TestA (1.00s)\n@@EXIT 0\n", true},
	} {
		var o outcome
		for line := range strings.Lines(tt.said) {
			o.hear(strings.TrimSuffix(line, "\n"))
		}
		if o.ok() != tt.ok {
			t.Errorf("%s: ok is %v: %+v", tt.name, o.ok(), o)
		}
	}
	var o outcome
	if after := o.hear("@@CUT after 250 ms"); after != 250*time.Millisecond {
		t.Errorf("the power is to be cut after %v", after)
	}
}

func TestComplaints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "console")
	said := "[    1.0] usb 3-1: new high-speed USB device\n[    2.0] BUG: kernel NULL pointer dereference, address: 0\n[    3.0] reboot: Power down\n"
	if err := os.WriteFile(path, []byte(said), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := complaints(path)
	if err != nil || len(got) != 1 || !strings.Contains(got[0], "NULL pointer") {
		t.Errorf("found %q, %v", got, err)
	}
}

// A machine of which nothing is heard is ended, and its end told.
func TestMachineEnded(t *testing.T) {
	dir := t.TempDir()
	silent := "#!/bin/sh\necho @@READY after 1 s\nexec sleep 3600\n"
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(silent), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := machine{}.run(context.Background(), io.Discard, 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "nothing was heard") {
		t.Errorf("a silent machine: %v", err)
	}
	cut := "#!/bin/sh\necho @@CUT after 10 ms\nexec sleep 3600\n"
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(cut), 0o755); err != nil {
		t.Fatal(err)
	}
	o, err := machine{}.run(context.Background(), io.Discard, time.Hour)
	if err != nil || !o.cut || o.exited || o.ok() {
		t.Errorf("a machine whose power was cut: %+v, %v", o, err)
	}
}

func TestLibraries(t *testing.T) {
	got := libraries("\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n")
	if want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// Every test of the guest's runs in exactly one group, but for those that run again with the address sanitizer, and
// the quick ones are among them.
func TestGroups(t *testing.T) {
	files, err := filepath.Glob("guest/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	var names []string
	for _, f := range files {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(src, -1) {
			names = append(names, string(m[1]))
		}
	}
	matches := func(list []group, asan bool, name string) (n int) {
		for _, g := range list {
			if g.asan == asan && slices.ContainsFunc(g.boots, func(b string) bool { return regexp.MustCompile(b).MatchString(name) }) {
				n++
			}
		}
		return n
	}
	quickly := 0
	for _, name := range names {
		if n, again := matches(groups(), false, name), matches(groups(), true, name); n != 1 && (n != 0 || again != 1) {
			t.Errorf("%s runs in %d groups", name, n)
		}
		quickly += matches(quick(), false, name)
	}
	if want := strings.Count(quick()[0].boots[0], "|") + 1; quickly != want {
		t.Errorf("%d tests are quick, want %d", quickly, want)
	}
}
