package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// entry is one file of an archive. Its folders need not be named.
type entry struct {
	name string // without a slash in front
	mode uint32 // permissions
	data []byte
}

const (
	modeFile   = 0o100000
	modeFolder = 0o040000
)

// writeCPIO writes an archive in the form "newc" of Linux' Documentation/driver-api/early-userspace/buffer-format.rst:
// per file "070701", thirteen numbers of eight hex digits, the name with a zero, and the data, each filled up to
// four bytes. The kernel unpacks several of them one behind the other.
func writeCPIO(w io.Writer, files []entry) error {
	var all []entry
	seen := map[string]bool{}
	for _, f := range files {
		for i, c := range f.name {
			if dir := f.name[:i]; c == '/' && !seen[dir] {
				seen[dir] = true
				all = append(all, entry{name: dir, mode: modeFolder | 0o755})
			}
		}
		all = append(all, entry{f.name, modeFile | f.mode, f.data})
	}
	all = append(all, entry{name: "TRAILER!!!"})
	for i, f := range all {
		var b strings.Builder
		b.WriteString("070701")
		// ino, mode, uid, gid, nlink, mtime, filesize, maj, min, rmaj, rmin, namesize, chksum
		for _, n := range []int{i + 1, int(f.mode), 0, 0, 1, 0, len(f.data), 0, 0, 0, 0, len(f.name) + 1, 0} {
			fmt.Fprintf(&b, "%08X", n)
		}
		b.WriteString(f.name + "\x00")
		if err := writePadded(w, []byte(b.String())); err != nil {
			return err
		}
		if err := writePadded(w, f.data); err != nil {
			return err
		}
	}
	return nil
}

func writePadded(w io.Writer, b []byte) error {
	_, err := w.Write(slices.Concat(b, make([]byte, -len(b)&3)))
	return err
}
