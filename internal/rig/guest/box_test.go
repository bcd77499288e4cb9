//go:build usbrig

package guest

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// box holds lines that outlive a power cut: a disk whose sectors each hold one, written through at once.
type box struct {
	mu   sync.Mutex
	t    testing.TB
	file *os.File
	at   int64
}

const sector = 512

// openBox opens it and returns the lines of all boots so far.
func openBox(t testing.TB) (b *box, lines []string) {
	t.Helper()
	f, err := os.OpenFile("/dev/vdc", os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	b = &box{t: t, file: f}
	for {
		var s [sector]byte
		if _, err := f.ReadAt(s[:], b.at); err != nil {
			t.Fatal(err)
		}
		line, _, _ := bytes.Cut(s[:], []byte{0})
		if len(line) == 0 {
			return b, lines
		}
		lines = append(lines, string(line))
		b.at += sector
	}
}

// note writes a line; when it returns, the line is safe.
func (b *box) note(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s [sector]byte
	copy(s[:sector-1], line)
	if _, err := b.file.WriteAt(s[:], b.at); err != nil {
		b.t.Error("cannot note: ", err)
	}
	b.at += sector
}

// noted are the lines of a kind, without it.
func noted(lines []string, kind string) (out []string) {
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, kind+" "); ok {
			out = append(out, rest)
		}
	}
	return out
}
