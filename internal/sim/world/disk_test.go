package world

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"scanonce/spool"
)

// errDead ends what a dead process was doing: nothing that it still does is seen by anybody.
var errDead = errors.New("the process is dead")

// diskStep is a step that stands before its beginning.
type diskStep struct {
	step spool.DiskStep
	path string
	do   func() error
}

// diskFault makes steps of an agent fail for a while.
type diskFault struct {
	until time.Duration
	err   error
	after bool // the step is done all the same: only its answer is wrong
	state bool // of state.db, not of the segments
}

// journalName is the file of the journal of operations.
const journalName = "operations.log"

// disk is the agent's disk; see spool.Options.
func (n *node) disk(step spool.DiskStep, path string, do func() error) error {
	if n.dead {
		return errDead
	}
	w := n.w
	settles := strings.HasSuffix(path, "state.db") // with a lock held, which a pipeline without room waits for
	if a := w.current; a != nil && !(settles && n.narrow) {
		a.settles, a.queues = settles, strings.HasSuffix(path, journalName)
		defer func() { a.settles, a.queues = false, false }()
		a.step = &diskStep{step, path, do}
		if strings.HasSuffix(path, ".seg") && step == spool.DiskCommit {
			n.heardComing()
		}
		w.edge(n)
		a.step = nil
		if n.dead {
			return errDead
		}
	}
	if f := n.fault; f != nil && w.now < f.until && f.state == settles && !w.healed && step != spool.DiskRemove {
		w.mark("disk-fault", n, uint64(step))
		if f.after && step == spool.DiskCommit {
			do()
		}
		return f.err
	}
	if step == spool.DiskRemove {
		if strings.HasSuffix(path, ".seg") {
			w.oracle.unlinking(n, filepath.Base(path))
		}
		if b, err := os.ReadFile(path); err == nil {
			n.removed[filepath.Base(path)] = b
		}
	}
	err := do()
	if err != nil {
		return err
	}
	if step == spool.DiskMake || step == spool.DiskReplace {
		clear(n.removed) // they sync the folder
	}
	if strings.HasSuffix(path, journalName) {
		n.journal, _ = os.ReadFile(path)
	}
	w.mark("disk", n, uint64(step))
	if !(settles && n.narrow) {
		w.edge(n)
	}
	if n.dead {
		return errDead
	}
	return nil
}

// image is what a folder holds after the power came back.
type image map[string][]byte

func readImage(dir string) image {
	m := image{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return m
	}
	for _, e := range entries {
		if e.IsDir() || e.Name() == "reserve" {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			m[e.Name()] = b
		}
	}
	return m
}

// write puts the image in the place of what is there.
func (m image) write(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, b := range m {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// crashImage is the folder after a crash at which some steps stood before their beginning: of each, any part
// may have reached the disk.
func (n *node) crashImage(steps []*diskStep, power bool) image {
	dir := filepath.Join(n.dir, "spool")
	rng := n.w.rng
	torn := map[string][]byte{}
	gone := map[string]bool{}
	for _, s := range steps {
		name := filepath.Base(s.path)
		before, _ := os.ReadFile(s.path)
		how, seed := rng.IntN(5), rng.Uint64()
		if how == 0 {
			n.w.mark("torn-nothing", n, uint64(s.step))
			torn[name] = before
			if before == nil {
				gone[name] = true
			}
			continue
		}
		if s.step == spool.DiskRemove {
			n.w.oracle.unlinking(n, name)
		}
		s.do()
		after, err := os.ReadFile(s.path)
		n.w.mark("torn", n, uint64(s.step)<<8|uint64(how))
		switch s.step {
		case spool.DiskCommit:
			if name == journalName {
				torn[name] = tearLine(seed, before, after, how)
			} else {
				torn[name] = tear(seed, before, after, how)
			}
		case spool.DiskMake:
			switch {
			case err != nil || how == 1:
				gone[name] = true
			case how == 2:
				torn[name] = []byte{}
			case how == 3:
				torn[name] = sectors(seed, make([]byte, len(after)), after)
			default:
				torn[name] = after
			}
		case spool.DiskReplace:
			if how <= 2 {
				torn[name] = before
				if before == nil {
					gone[name] = true
				}
				torn[name+".tmp-1"] = after[:int(seed%uint64(len(after)+1))]
			} else {
				torn[name] = after
			}
		case spool.DiskRemove:
			n.removed[name] = before
		}
	}
	m := readImage(dir)
	if b := m[journalName]; power && b != nil && len(torn[journalName]) == 0 && rng.IntN(2) == 0 {
		m[journalName] = n.journal // what was not synced is gone
	}
	if power {
		for _, name := range slices.Sorted(maps.Keys(n.removed)) {
			if b := n.removed[name]; b != nil && rng.IntN(2) == 0 {
				m[name] = b
			}
		}
	}
	if mark := m["mark"]; power && mark != nil { // it is never synced
		if seed := rng.Uint64(); seed%3 == 0 {
			delete(m, "mark")
		} else {
			m["mark"] = parts(seed, make([]byte, len(mark)), mark, 64)
		}
	}
	for name := range gone {
		delete(m, name)
	}
	for name, b := range torn {
		if !gone[name] {
			m[name] = b
		}
	}
	return m
}

const (
	pageSize   = 4096
	sectorSize = 512
)

// tear mixes the file before a transaction of bbolt and after it. All pages but the meta page are written before
// the first sync, the meta page after it; a torn sector does not happen, a torn page does.
func tear(seed uint64, before, after []byte, how int) []byte {
	out := slices.Clone(after)
	old := make([]byte, len(after))
	copy(old, before)
	const data = 2 * pageSize
	switch how {
	case 1: // a part of the data
		copy(out[:data], old)
		copy(out[data:], sectors(seed, old[data:], after[data:]))
	case 2: // all of it
		copy(out[:data], old)
	case 3: // and a part of the meta page
		copy(out[:data], sectors(seed, old[:data], after[:data]))
	}
	return out
}

// tearLine mixes a text file before a line was added and after it.
func tearLine(seed uint64, before, after []byte, how int) []byte {
	if len(after) <= len(before) {
		return after
	}
	added := after[len(before):]
	switch how {
	case 1: // the beginning of the line
		return after[:len(before)+int(seed%uint64(len(added)))]
	case 2: // its place
		return append(slices.Clone(before), make([]byte, len(added))...)
	case 3:
		return append(slices.Clone(before), sectors(seed, make([]byte, len(added)), added)...)
	}
	return after
}

// sectors takes each sector from one of the two. How often it draws does not depend on what is in them: where
// bbolt puts its pages is its own affair.
func sectors(seed uint64, before, after []byte) []byte { return parts(seed, before, after, sectorSize) }

func parts(seed uint64, before, after []byte, size int) []byte {
	rng := rand.New(rand.NewPCG(seed, 2))
	out := slices.Clone(after)
	for i := 0; i < len(after); i += size {
		if rng.IntN(2) == 0 {
			copy(out[i:min(i+size, len(after))], before[i:])
		}
	}
	return out
}

// What the kernel says of a full disk, and of one that cannot keep what it was given.
var (
	errNoSpace = &os.PathError{Op: "write", Path: "disk", Err: syscall.ENOSPC}
	errSync    = &os.PathError{Op: "fdatasync", Path: "disk", Err: syscall.EIO}
)
