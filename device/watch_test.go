package device

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func told(t *testing.T, w *pathWatch, what string) {
	t.Helper()
	select {
	case <-w.changed():
	case <-time.After(patience):
		t.Fatal("not told of " + what)
	}
}

// Each step changes what the path leads to and is told, once the watches are set anew.
func TestPathWatch(t *testing.T) {
	root := t.TempDir()
	path := root + "/serial/by-id/scanner"
	node := root + "/dev/ttyACM0"
	w, err := newPathWatch(path)
	must(t, err)
	defer w.close()
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"the folder of the folder", func() error { return os.Mkdir(root+"/serial", 0o755) }},
		{"the folder", func() error { return os.Mkdir(root+"/serial/by-id", 0o755) }},
		{"a link to nothing", func() error { return os.Symlink("../../dev/ttyACM0", path) }},
		{"the folder of its target", func() error { return os.Mkdir(root+"/dev", 0o755) }},
		{"its target", func() error { return os.WriteFile(node, nil, 0) }},
		{"permissions of its target", func() error { return os.Chmod(node, 0o660) }},
		{"its target replaced", func() error {
			must(t, os.WriteFile(root+"/dev/new", nil, 0o660))
			return os.Rename(root+"/dev/new", node)
		}},
		{"its target gone", func() error { return os.Remove(node) }},
		{"the folder of its target gone", func() error { return os.Remove(root + "/dev") }},
		{"the link moved away", func() error { return os.Rename(path, path+".old") }},
		{"the folder moved away", func() error { return os.Rename(root+"/serial/by-id", root+"/serial/old") }},
		{"the folder back", func() error { return os.Rename(root+"/serial/old", root+"/serial/by-id") }},
		{"the link back", func() error { return os.Rename(path+".old", path) }},
		{"the folder gone", func() error { return os.RemoveAll(root + "/serial") }},
		{"the folder made anew", func() error { return os.MkdirAll(root+"/serial/by-id", 0o755) }},
	} {
		w.arm()
		for drained := false; !drained; {
			select {
			case <-w.changed(): // a second event of the step before
			default:
				drained = true
			}
		}
		must(t, step.do())
		told(t, w, step.what)
	}
	w.arm()
	// What it no longer needs is no longer watched.
	if n := watches(t, w); n != 1 {
		t.Errorf("%d folders are watched, want the last one", n)
	}
}

// watches asks the kernel.
func watches(t *testing.T, w *pathWatch) (n int) {
	t.Helper()
	c, err := w.file.SyscallConn()
	must(t, err)
	c.Control(func(fd uintptr) {
		info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
		must(t, err)
		n = strings.Count(string(info), "inotify wd:")
	})
	return n
}

func TestPathWatchFiltersNames(t *testing.T) {
	w := &pathWatch{names: map[int32]map[string]bool{3: {"ttyACM0": true}}}
	event := func(wd int32, mask uint32, name string) []byte {
		size := (len(name) + 16) / 16 * 16
		b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = binary.NativeEndian.AppendUint32(b, uint32(size))
		return append(append(b, name...), make([]byte, size-len(name))...)
	}
	noise := slices.Concat(event(3, unix.IN_CREATE, "ttyACM1"), event(4, unix.IN_CREATE, "ttyACM0"), event(3, unix.IN_ATTRIB, ""), event(3, unix.IN_IGNORED, ""))
	if w.matters(noise) {
		t.Error("told of other names")
	}
	for what, e := range map[string][]byte{
		"its name":     event(3, unix.IN_CREATE, "ttyACM0"),
		"the folder":   event(3, unix.IN_DELETE_SELF, ""),
		"lost events":  event(-1, unix.IN_Q_OVERFLOW, ""),
		"the folder's": event(3, unix.IN_MOVE_SELF, ""),
	} {
		if !w.matters(append(slices.Clone(noise), e...)) {
			t.Errorf("not told of %s", what)
		}
	}
}

func TestSpots(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(root+"/a/b", 0o755))
	must(t, os.Symlink("a", root+"/link"))
	must(t, os.Symlink("../node", root+"/a/b/one")) // relative to the folder that it lies in
	must(t, os.Symlink(root+"/a/b/one", root+"/two"))
	must(t, os.Symlink("loop", root+"/loop"))
	must(t, os.WriteFile(root+"/file", nil, 0o600))
	for path, want := range map[string][]spot{
		"/two":         {{root, "two"}, {root + "/a/b", "one"}, {root + "/a", "node"}},
		"/link/b/one":  {{root + "/link/b", "one"}, {root + "/a", "node"}},
		"/none/x/y":    {{root, "none"}},
		"/file/x":      {{root, "file"}},
		"/a/../a/b/..": {{root, "a"}},
	} {
		if got := spots(root + path); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if n := len(spots(root + "/loop")); n != maxLinks {
		t.Errorf("a loop of links gives %d spots", n)
	}
}
