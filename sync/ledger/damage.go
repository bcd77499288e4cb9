package ledger

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"runtime/debug"
)

// DamageError says that the embedded ledger's file cannot be trusted any more. Nothing is read from it or
// written to it until it is opened anew: a damaged page could hide a key, and a movement would count twice.
type DamageError struct {
	Path   string
	Detail string
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the ledger file %s is damaged: %s", e.Path, e.Detail)
}

// Hint says what to do.
func (e *DamageError) Hint() string {
	return "stop the agent, put the file back from a copy (or move it away to begin a new ledger), and start it again"
}

// guard runs f and turns a panic or a page fault in it into a DamageError: bbolt panics on a page that makes
// no sense, and the mapping of a file that was cut short faults.
func guard(path string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &DamageError{Path: path, Detail: fmt.Sprint(r)}
		}
	}()
	return f()
}

// The head of a bbolt page and its meta, as bbolt lays them out; numbers are in the machine's order.
const (
	pageHead    = 16
	metaSize    = 64
	metaMagic   = 0xED0CDAED
	metaChecked = 56 // bytes that the checksum covers
)

// checkLength compares the file's length with the pages that its newest valid meta counts. A file that was cut
// short would be mapped all the same, and read until the first fault.
func checkLength(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var pages, pageSize, newest uint64
	for _, size := range []int64{int64(os.Getpagesize()), 4096, 16384, 65536} {
		for n := range int64(2) {
			var b [pageHead + metaSize]byte
			if _, err := f.ReadAt(b[:], n*size); err != nil {
				continue
			}
			m := b[pageHead:]
			sum := fnv.New64a()
			sum.Write(m[:metaChecked])
			if binary.NativeEndian.Uint32(m) != metaMagic || binary.NativeEndian.Uint64(m[metaChecked:]) != sum.Sum64() {
				continue
			}
			if tx := binary.NativeEndian.Uint64(m[48:]); pages == 0 || tx > newest {
				newest = tx
				pageSize, pages = uint64(binary.NativeEndian.Uint32(m[8:])), binary.NativeEndian.Uint64(m[40:])
			}
		}
	}
	if want := pages * pageSize; uint64(info.Size()) < want {
		return &DamageError{Path: path, Detail: fmt.Sprintf("it has %d bytes and must have at least %d", info.Size(), want)}
	}
	return nil
}

// freeLeaked lets the finalizer close a file that a panic in the opening left behind, with its lock.
func freeLeaked() { runtime.GC() }
