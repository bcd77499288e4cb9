package spool

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync/atomic"
)

// The marks say how far the spool was surely written: the number of the next record, that of the last settlement,
// that of the journal's last line, and from where on its files must be there. A mark is written after what it tells of is synced and before anybody hears of it, and is not
// synced itself: it survives a kill, and after a power cut it is lower at worst. With them a file that has lost
// its end is found out, and what it lost is counted.
const (
	markName = "mark"
	markSlot = 64
	markSum  = 40 // bytes of a slot that its sum covers
)

const (
	markNext = iota
	markSettled
	markOperations // the last line of the journal
	markGone       // the first record of the oldest segment: all below are settled, and their files may be gone
	markKinds
)

var markMagic = [8]byte{'s', 'c', 'a', 'n', 'm', 'a', 'r', 'k'}

// markFile has two slots for each kind, written in turn.
type markFile struct {
	f     atomic.Pointer[os.File]
	old   []*os.File // that were in place once
	times [markKinds]uint64
	gone  uint64 // what markGone was told last
}

type mark struct {
	times, value uint64
	epoch        string
	boot         [8]byte
}

func bootHash(id string) (h [8]byte) {
	sum := sha256.Sum256([]byte(id))
	copy(h[:], sum[:])
	return h
}

// openMarks is best effort: without the file, or with a damaged one, there is no lower bound.
func openMarks(dir string) *markFile {
	f, err := os.OpenFile(filepath.Join(dir, markName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil
	}
	m := &markFile{}
	m.f.Store(f)
	for kind := range m.times {
		m.times[kind] = readMark(f, kind).times
	}
	return m
}

func (m *markFile) set(kind int, epoch string, boot [8]byte, value uint64) {
	if m == nil {
		return
	}
	m.times[kind]++
	var b [markSlot]byte
	copy(b[:8], markMagic[:])
	binary.LittleEndian.PutUint64(b[8:], m.times[kind])
	copy(b[16:24], epochHash(epoch))
	copy(b[24:32], boot[:])
	binary.LittleEndian.PutUint64(b[32:], value)
	binary.LittleEndian.PutUint32(b[markSum:], crc32.Checksum(b[:markSum], crc32.MakeTable(crc32.Castagnoli)))
	m.f.Load().WriteAt(b[:], slotAt(kind, m.times[kind]))
}

// markGone notes that no file from before the oldest segment that the sidecar names is needed.
func (s *Spool) markGone() {
	if s.marks == nil || len(s.side.Segments) == 0 {
		return
	}
	if first := s.side.Segments[0].First; s.marks.gone != first {
		s.marks.gone = first
		s.marks.set(markGone, s.side.Epoch, s.boot, first)
	}
}

func epochHash(epoch string) []byte {
	sum := sha256.Sum256([]byte(epoch))
	return sum[:8]
}

func slotAt(kind int, times uint64) int64 { return int64(2*kind+int(times%2)) * markSlot }

func (m *markFile) close() {
	if m != nil {
		for _, f := range append(m.old, m.f.Load()) {
			f.Close()
		}
	}
}

// readMark is the newer of the two slots of a kind that are whole.
func readMark(f *os.File, kind int) (newest mark) {
	for i := range uint64(2) {
		var b [markSlot]byte
		if _, err := f.ReadAt(b[:], slotAt(kind, i)); err != nil {
			continue
		}
		times := binary.LittleEndian.Uint64(b[8:])
		if [8]byte(b[:8]) != markMagic || binary.LittleEndian.Uint32(b[markSum:]) != crc32.Checksum(b[:markSum], crc32.MakeTable(crc32.Castagnoli)) ||
			times <= newest.times {
			continue
		}
		newest = mark{times: times, value: binary.LittleEndian.Uint64(b[32:]), epoch: string(b[16:24]), boot: [8]byte(b[24:32])}
	}
	return newest
}

// readMarks reads the marks of a spool whose last run had one of the epochs; zero without any. all has those of other
// epochs too: of a run of which no file is left.
func readMarks(dir string, epochs map[string]bool) (m, all [markKinds]mark) {
	f, err := os.Open(filepath.Join(dir, markName))
	if err != nil {
		return m, all
	}
	defer f.Close()
	known := map[string]bool{}
	for e := range epochs {
		known[string(epochHash(e))] = true
	}
	for kind := range m {
		if all[kind] = readMark(f, kind); known[all[kind].epoch] {
			m[kind] = all[kind]
		}
	}
	return m, all
}
