// Package boltfile is what the embedded stores have in common: a bbolt file of their own that is made whole or not at
// all, whose records carry a checksum, and that is left alone once it turns out to be damaged. bbolt sees to none of
// these.
package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const lockTimeout = time.Second

// ErrInUse says that another process holds the file.
var ErrInUse = errors.New("another process holds it: stop that agent, or ask it through its socket")

// Fault says that a file cannot be trusted: a page makes no sense, a part is missing, or it is another kind of file.
type Fault struct{ Detail string }

func (e *Fault) Error() string { return e.Detail }

// Open opens a file that is there and looks at it with check. A *Fault is damage, ErrInUse another process.
func Open(path string, readOnly bool, check func(*bolt.DB) error) (db *bolt.DB, err error) {
	if err := checkLength(path); err != nil {
		return nil, err
	}
	err = Guard(func() (err error) {
		if db, err = open(path, readOnly); err != nil {
			return err
		}
		return check(db)
	})
	switch {
	case err == nil:
		return db, nil
	case db != nil:
		db.Close()
	default:
		runtime.GC() // a panic in the opening leaves the file behind with its lock: the finalizer closes it
	}
	if errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) || errors.Is(err, bolterrors.ErrVersionMismatch) {
		return nil, &Fault{err.Error()}
	}
	return nil, err
}

func open(path string, readOnly bool) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, FreelistType: bolt.FreelistMapType, ReadOnly: readOnly, NoStatistics: true})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, ErrInUse
	}
	return db, err
}

// Create makes a file, mode 0600, with what fill puts into it. It is complete before it gets its name, so that a crash
// leaves no half of one, and a second creator does not replace the first one's.
func Create(path string, fill func(*bolt.Tx) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".new*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := f.Close(); err != nil {
		return err
	}
	db, err := open(f.Name(), false)
	if err != nil {
		return err
	}
	if err = errors.Join(db.Update(fill), db.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Guard runs f and turns a panic or a page fault in it into a *Fault: bbolt panics on a page that makes no sense, and
// the mapping of a file that was cut short faults. bbolt may keep its locks then: the file must be left alone.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &Fault{fmt.Sprint(r)}
		}
	}()
	return f()
}

// Place is where an open file lies.
type Place struct {
	path string
	info fs.FileInfo
}

// PlaceOf is where the file that was just opened lies.
func PlaceOf(path string) (Place, error) {
	info, err := os.Stat(path)
	return Place{path, info}, err
}

// Check returns a *Fault if the file is no longer there: what is written to it from then on, nobody finds again.
func (p *Place) Check() error {
	info, err := os.Stat(p.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &Fault{"it was moved away or removed while it was in use"}
	case err == nil && !os.SameFile(info, p.info):
		return &Fault{"another file was put in its place while it was in use"}
	}
	return nil
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
	if info.Size() == 0 { // bbolt would take it for a new one
		return &Fault{"it is empty"}
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
		return &Fault{fmt.Sprintf("it has %d bytes and must have at least %d", info.Size(), want)}
	}
	return nil
}

const crcSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(bucket string, key, body []byte) uint32 {
	c := crc32.Update(0, castagnoli, []byte(bucket))
	c = crc32.Update(c, castagnoli, key)
	return crc32.Update(c, castagnoli, body)
}

// Seal appends to body the CRC-32C of bucket, key and body: bbolt does not notice a flipped bit, and a value that
// landed under another key must not pass either.
func Seal(bucket string, key, body []byte) []byte {
	return binary.BigEndian.AppendUint32(body, checksum(bucket, key, body))
}

// Unseal returns the body of what Seal made, or false.
func Unseal(bucket string, key, record []byte) (body []byte, ok bool) {
	n := len(record) - crcSize
	if n < 0 || binary.BigEndian.Uint32(record[n:]) != checksum(bucket, key, record[:n]) {
		return nil, false
	}
	return record[:n:n], true
}
