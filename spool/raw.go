package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// The layout of a bbolt file, https://github.com/etcd-io/bbolt (internal/common): pages of one size, each with
// a header; two meta pages, a freelist, branch pages and leaf pages.
const (
	boltMagic    = 0xED0CDAED
	boltVersion  = 2
	pageHead     = 16 // id 8, flags 2, count 2, overflow 4
	elementSize  = 16
	branchFlag   = 0x01
	leafFlag     = 0x02
	metaFlag     = 0x04
	freelistFlag = 0x10
	bucketFlag   = 0x01 // of a leaf element: its value is a bucket

	metaLen      = 64
	leastPage    = 512
	mostPage     = 64 << 10
	deepest      = 32       // no tree of ours comes near it
	mostValue    = 16 << 20 // nor a value
	mostOverflow = mostValue / leastPage
)

// DamageError says that a file holds something that nobody has written there.
type DamageError struct{ File, Detail string }

func (e *DamageError) Error() string { return fmt.Sprintf("cannot use %s: %s", e.File, e.Detail) }

// OfState says that the file is state.db, which only a start makes anew.
func (e *DamageError) OfState() bool { return e.File == stateName }

// SchemaError says that another version of the program has written a file. The file is left as it is.
type SchemaError struct {
	File    string
	Version int
}

func (e *SchemaError) Error() string {
	return fmt.Sprintf("cannot use %s: its format has version %d, and this program reads version %d", e.File, e.Version, fileVersion)
}

// AgentError says that a spool is another agent's. It is left as it is.
type AgentError struct{ Owner, Agent string }

func (e *AgentError) Error() string {
	return fmt.Sprintf("cannot use this spool: it belongs to agent %s, and this agent is %s", e.Owner, e.Agent)
}

type meta struct {
	ok                     bool
	page                   int
	root, freelist, bounds uint64 // bounds: no page from here on belongs to the file
	txid                   uint64
}

// raw is a bbolt file that is read page by page, by position: never mapped and never by bbolt. Whatever stands
// in the file, reading it ends with an error at worst.
type raw struct {
	f     *os.File
	name  string
	size  int64
	page  int
	metas [2]meta
	meta  meta // the newer one that is whole
}

func (r *raw) damage(format string, a ...any) error {
	return &DamageError{r.name, fmt.Sprintf(format, a...)}
}

// openRaw opens a file without judging it: check does. A missing file is a *DamageError.
func openRaw(path, name string) (*raw, error) {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &DamageError{name, "it is missing"}
	case leadsAstray(err):
		return nil, &DamageError{name, "it is a link that leads nowhere"}
	case err != nil:
		return nil, fmt.Errorf("cannot open %s: %w", name, err)
	case !fi.Mode().IsRegular():
		return nil, &DamageError{name, "it is no file"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", name, err)
	}
	r := &raw{f: f, name: name, size: fi.Size()}
	for _, at := range [...]int64{0, 4096, 1024, 2048, 8192, 16384, 32768, 65536} { // where bbolt looks for a meta page
		if m := r.metaAt(at); m.ok && (at == 0 || at == int64(m.page)) {
			r.page = m.page
			break
		}
	}
	if r.page == 0 {
		r.page = os.Getpagesize()
	}
	for i := range r.metas {
		m := r.metaAt(int64(i) * int64(r.page))
		m.ok = m.ok && m.page == r.page && m.txid%2 == uint64(i)
		r.metas[i] = m
		if m.ok && (!r.meta.ok || m.txid > r.meta.txid) {
			r.meta = m
		}
	}
	return r, nil
}

func (r *raw) close() { r.f.Close() }

// leadsAstray says that something stands under a name by which no file can be reached, whoever asks.
func leadsAstray(err error) bool {
	return errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENXIO)
}

// occupied says that a name is taken, be it by a folder or a link to nowhere.
func occupied(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// at reads n bytes at an offset; a bad sector is damage too.
func (r *raw) at(off int64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := r.f.ReadAt(b, off); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.EIO) {
			return nil, r.damage("it cannot be read at %d", off)
		}
		return nil, fmt.Errorf("cannot read %s: %w", r.name, err)
	}
	return b, nil
}

func (r *raw) metaAt(off int64) (m meta) {
	b, err := r.at(off, pageHead+metaLen)
	if err != nil {
		return m
	}
	id, flags := binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint16(b[8:])
	b = b[pageHead:]
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	h := fnv.New64a()
	h.Write(b[:56])
	m = meta{page: int(u32(8)), root: u64(16), freelist: u64(32), bounds: u64(40), txid: u64(48)}
	m.ok = flags == metaFlag && id == m.txid%2 && u32(0) == boltMagic && u32(4) == boltVersion && u64(56) == h.Sum64() &&
		m.page >= leastPage && m.page <= mostPage && m.page&(m.page-1) == 0
	return m
}

// load reads a page of the tree with its overflow, and how many pages it takes.
func (r *raw) load(id uint64) (p []byte, span uint64, err error) {
	if id < 2 || id >= r.meta.bounds {
		return nil, 0, r.damage("page %d is outside of it", id)
	}
	off := int64(id) * int64(r.page)
	if p, err = r.at(off, r.page); err != nil {
		return nil, 0, err
	}
	span = 1 + uint64(binary.NativeEndian.Uint32(p[12:]))
	if binary.NativeEndian.Uint64(p) != id || id+span > r.meta.bounds || span > 1+mostOverflow && flagsOf(p) != freelistFlag {
		return nil, 0, r.damage("page %d has a wrong header", id)
	}
	if span > 1 {
		p, err = r.at(off, r.page*int(span))
	}
	return p, span, err
}

func flagsOf(p []byte) uint16 { return binary.NativeEndian.Uint16(p[8:]) }
func countOf(p []byte) int    { return int(binary.NativeEndian.Uint16(p[10:])) }

// leafElement is an element of a leaf page; off is where its value begins in the page.
func leafElement(p []byte, i int) (flags uint32, k, v []byte, off int, ok bool) {
	base := pageHead + elementSize*i
	if base+elementSize > len(p) {
		return 0, nil, nil, 0, false
	}
	e := p[base:]
	from := uint64(base) + uint64(binary.NativeEndian.Uint32(e[4:]))
	mid := from + uint64(binary.NativeEndian.Uint32(e[8:]))
	end := mid + uint64(binary.NativeEndian.Uint32(e[12:]))
	if from < uint64(base)+elementSize || end > uint64(len(p)) {
		return 0, nil, nil, 0, false
	}
	return binary.NativeEndian.Uint32(e), p[from:mid:mid], p[mid:end:end], int(mid), true
}

func branchElement(p []byte, i int) (k []byte, child uint64, ok bool) {
	base := pageHead + elementSize*i
	if base+elementSize > len(p) {
		return nil, 0, false
	}
	e := p[base:]
	from := uint64(base) + uint64(binary.NativeEndian.Uint32(e))
	end := from + uint64(binary.NativeEndian.Uint32(e[4:]))
	if from < uint64(base)+elementSize || end > uint64(len(p)) {
		return nil, 0, false
	}
	return p[from:end:end], binary.NativeEndian.Uint64(e[8:]), true
}

// tree is a bucket: its root page, or the page itself if that stands in its parent's value.
type tree struct {
	root   uint64
	inline []byte
}

func (r *raw) treeOf(v []byte) (tree, error) {
	if len(v) < 16 {
		return tree{}, r.damage("a bucket is cut off")
	}
	t := tree{root: binary.NativeEndian.Uint64(v)}
	if t.root == 0 {
		if t.inline = v[16:]; len(t.inline) < pageHead || flagsOf(t.inline) != leafFlag {
			return tree{}, r.damage("a bucket has no page")
		}
	}
	return t, nil
}

// walk goes through a tree in the order of its keys, which it checks, with all that bbolt takes for granted:
// page is told of each page, also of leaf pages if leaf is nil, which are not read then.
type walk struct {
	r    *raw
	page func(id, span uint64) error
	leaf func(flags uint32, k, v []byte) error
	last []byte // key
	any  bool
}

func (w *walk) run(t tree) error {
	if t.inline != nil {
		return w.leaves(t.inline)
	}
	return w.down(t.root, 0)
}

func (w *walk) down(id uint64, depth int) error {
	if depth > deepest {
		return w.r.damage("its tree is too deep")
	}
	p, span, err := w.r.load(id)
	if err != nil {
		return err
	}
	if w.page != nil {
		if err := w.page(id, span); err != nil {
			return err
		}
	}
	switch flagsOf(p) {
	case leafFlag:
		if w.leaf == nil {
			return nil
		}
		return w.leaves(p)
	case branchFlag:
	default:
		return w.r.damage("page %d is of no kind that belongs there", id)
	}
	n := countOf(p)
	if n == 0 {
		return w.r.damage("page %d has no children", id)
	}
	leavesBelow := false
	if w.leaf == nil { // the children are of one kind: one tells for all
		if _, child, ok := branchElement(p, 0); ok {
			c, _, err := w.r.load(child)
			if err != nil {
				return err
			}
			leavesBelow = flagsOf(c) == leafFlag
		}
	}
	var before []byte
	for i := range n {
		k, child, ok := branchElement(p, i)
		if !ok || i > 0 && bytes.Compare(k, before) <= 0 || w.any && bytes.Compare(k, w.last) <= 0 {
			return w.r.damage("page %d is garbled", id)
		}
		before = k
		if leavesBelow {
			if child < 2 || child >= w.r.meta.bounds {
				return w.r.damage("page %d is outside of it", child)
			}
			if err := w.page(child, 1); err != nil {
				return err
			}
			continue
		}
		floor := &walk{r: w.r, page: w.page, leaf: w.leaf, last: w.last, any: w.any}
		first := k
		if w.leaf != nil {
			floor.leaf = func(flags uint32, key, v []byte) error {
				if bytes.Compare(key, first) < 0 {
					return w.r.damage("page %d leads astray", id)
				}
				return w.leaf(flags, key, v)
			}
		}
		if err := floor.down(child, depth+1); err != nil {
			return err
		}
		w.last, w.any = floor.last, floor.any
	}
	return nil
}

func (w *walk) leaves(p []byte) error {
	for i := range countOf(p) {
		flags, k, v, _, ok := leafElement(p, i)
		if !ok || len(k) == 0 || len(v) > mostValue || w.any && bytes.Compare(k, w.last) <= 0 {
			return w.r.damage("a leaf page is garbled")
		}
		w.last, w.any = k, true
		if err := w.leaf(flags, k, v); err != nil {
			return err
		}
	}
	return nil
}

// root finds the buckets of the file. Only a file of which both meta pages are whole, and that is as long as
// they say, is trusted: with one meta page bbolt would go back by a transaction without a word.
func (r *raw) root() (map[string]tree, error) {
	if r.size == 0 {
		return nil, r.damage("it is empty")
	}
	if !r.metas[0].ok || !r.metas[1].ok {
		return nil, r.damage("a meta page is damaged")
	}
	if a, b := r.metas[0].txid, r.metas[1].txid; a+1 != b && b+1 != a {
		return nil, r.damage("a meta page is out of date")
	}
	if r.meta.bounds > uint64(r.size)/uint64(r.page) {
		return nil, r.damage("it is cut off")
	}
	buckets := map[string]tree{}
	w := walk{r: r, leaf: func(flags uint32, k, v []byte) error {
		if flags&bucketFlag == 0 {
			return r.damage("something stands outside of its buckets")
		}
		t, err := r.treeOf(v)
		buckets[string(k)] = t
		return err
	}}
	return buckets, w.run(tree{root: r.meta.root})
}

// pages checks that each page of the file is in one tree, or free: a writer would put new pages over what a
// damaged freelist gives away.
func (r *raw) pages(trees []tree, leaf func(i int, k, v []byte) error) error {
	used := make([]bool, r.meta.bounds)
	take := func(id, span uint64) error {
		for ; span > 0; id, span = id+1, span-1 {
			if id >= r.meta.bounds || used[id] {
				return r.damage("page %d is used twice", id)
			}
			used[id] = true
		}
		return nil
	}
	used[0], used[1] = true, true
	root := walk{r: r, page: take, leaf: func(uint32, []byte, []byte) error { return nil }}
	if err := root.run(tree{root: r.meta.root}); err != nil {
		return err
	}
	for i, t := range trees {
		w := walk{r: r, page: take, leaf: func(flags uint32, k, v []byte) error {
			if flags != 0 {
				return r.damage("a bucket stands within a bucket")
			}
			return leaf(i, k, v)
		}}
		if err := w.run(t); err != nil {
			return err
		}
	}
	p, span, err := r.load(r.meta.freelist)
	if err == nil && flagsOf(p) != freelistFlag {
		err = r.damage("its freelist is lost")
	}
	if err == nil {
		err = take(r.meta.freelist, span)
	}
	if err != nil {
		return err
	}
	n, ids := uint64(countOf(p)), p[pageHead:]
	if n == 0xFFFF && len(ids) >= 8 { // then the number stands in front of the list
		n, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		return r.damage("its freelist is garbled")
	}
	for i := range n {
		if err := take(binary.NativeEndian.Uint64(ids[8*i:]), 1); err != nil {
			return err
		}
	}
	for id, u := range used {
		if !u {
			return r.damage("page %d is lost", id)
		}
	}
	return nil
}

// edge is the last key of a tree, nil if it is empty.
func (r *raw) edge(t tree) ([]byte, error) {
	p, id := t.inline, t.root
	for depth := 0; ; depth++ {
		if p == nil {
			var err error
			if p, _, err = r.load(id); err != nil {
				return nil, err
			}
		}
		n := countOf(p)
		switch {
		case depth > deepest:
			return nil, r.damage("its tree is too deep")
		case flagsOf(p) == leafFlag && n == 0:
			return nil, nil
		case flagsOf(p) == leafFlag:
			_, k, _, _, ok := leafElement(p, n-1)
			if !ok {
				return nil, r.damage("a leaf page is garbled")
			}
			return k, nil
		case flagsOf(p) != branchFlag || n == 0:
			return nil, r.damage("a page is of no kind that belongs there")
		}
		_, child, ok := branchElement(p, n-1)
		if !ok {
			return nil, r.damage("page %d is garbled", id)
		}
		p, id = nil, child
	}
}

// get finds a value of a small tree.
func (r *raw) get(t tree, key []byte) (found []byte, err error) {
	w := walk{r: r, leaf: func(_ uint32, k, v []byte) error {
		if bytes.Equal(k, key) {
			found = v
		}
		return nil
	}}
	return found, w.run(t)
}

// outline checks the branch pages of a tree: with them in order a search ends, and ends within the file.
func (r *raw) outline(t tree) error {
	if t.inline != nil {
		return nil
	}
	seen := make([]bool, r.meta.bounds) // which load and walk keep the ids below
	w := walk{r: r, page: func(id, _ uint64) error {
		if seen[id] {
			return r.damage("page %d is used twice", id)
		}
		seen[id] = true
		return nil
	}}
	return w.run(t)
}

// sweep yields whatever looks like an element of a leaf page of a segment, page by page, also of
// pages that no tree reaches any more, and ignores everything that makes no sense. off is where the value
// stands in the file.
func (r *raw) sweep(yield func(k, v []byte, off int64)) {
	for off := int64(0); off < r.size; off += int64(r.page) {
		n := 4 * r.page
		if head, err := r.at(off, min(pageHead, int(r.size-off))); err == nil && len(head) == pageHead && flagsOf(head) == leafFlag {
			if over := binary.NativeEndian.Uint32(head[12:]); over < mostOverflow {
				n = max(n, r.page*int(1+over))
			}
		}
		p := r.readable(off, int(min(int64(n), r.size-off)))
		sweepPage(p, r.page, func(k, v []byte, at int) { yield(k, v, off+int64(at)) }, 0)
	}
}

// readable reads as much from off on as can be read.
func (r *raw) readable(off int64, n int) []byte {
	b := make([]byte, n)
	got, err := r.f.ReadAt(b, off)
	if err != nil && got == 0 && n > r.page { // a bad sector behind this page
		got, _ = r.f.ReadAt(b[:r.page], off)
	}
	return b[:got]
}

func sweepPage(p []byte, page int, yield func(k, v []byte, at int), depth int) {
	for i := 0; pageHead+elementSize*(i+1) <= min(page, len(p)); i++ {
		_, k, v, at, ok := leafElement(p, i)
		switch {
		case !ok:
		case len(k) == 8 || bytes.Equal(k, keyRanges):
			yield(k, v, at)
		case depth == 0 && len(v) > 16+pageHead+elementSize: // a small bucket stands in its parent's page
			sweepPage(v[16:], page, func(k, v []byte, in int) { yield(k, v, at+16+in) }, 1)
		}
	}
}
