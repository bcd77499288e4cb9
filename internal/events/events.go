// Package events is the retained, resumable stream of local events, kept in one file of text lines.
//
// A line is "<crc32c, 8 hex> <stream>.<mark> <event as JSON>\n"; a line with "#" in the second place holds
// what compaction must keep of the lines it drops. Appending is one write(2) without fsync: a killed process
// loses nothing, a power cut may lose the tail, and the ids of the lost tail are never given again.
package events

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"scanonce/window"
)

// KindGap is the kind of the event that stands where events are missing.
const KindGap = "gap"

// ErrClosed is returned by Append and Follow after Close.
var ErrClosed = errors.New("cannot use the event log: it is closed")

// Entry is one event to append.
type Entry struct {
	Kind string // lower-case letters, digits and _
	At   window.UTC
	// Body gives the event's own fields: anything that encoding/json marshals to an object, a
	// FieldAppender, or nil. The names id, kind, at and redacted belong to the log.
	Body any
	// Live gives fields that only followers present at the append see, as a JSON object. They are never
	// stored: every other copy has them null, and "redacted":true.
	Live any
	// Stream and Mark say where in the spool the event comes from; Mark 0 is nowhere.
	Stream uint8
	Mark   uint64
}

// FieldAppender is a body that needs no reflection: it appends `"a":1,"b":2`, without braces and newlines.
type FieldAppender interface {
	AppendJSONFields(b []byte) []byte
}

// Options bound the log; the zero value takes the defaults.
type Options struct {
	MaxEvents int           // default 10000
	Retention time.Duration // by Entry.At; default 24h
	Now       func() window.UTC
}

// Stats is a snapshot of the log's figures.
type Stats struct {
	Events      int    // retained
	Bytes       int64  // of the file
	Followers   int    // now
	Appended    uint64 // since Open, failed ones included
	Failed      uint64 // told to the followers but not stored
	Gaps        uint64 // told
	Compactions uint64
	Skipped     uint64 // lines found unreadable at Open
}

// Log is the stream. Safe for concurrent use.
type Log struct {
	path string
	opts Options
	gen  string // of this opening
	acks acks

	// appending serializes Append and the last step of compaction; taken before mu.
	appending sync.Mutex
	buf       []byte
	recs      []record

	mu         sync.Mutex
	file       *handle
	end        int64 // logical offset of the end of the file
	index      []record
	head       int // index[:head] is pruned
	gens       []generation
	last       uint64 // highest seq given
	marks      [256]uint64
	fresh      []freshEvent
	followers  []*follower
	compacting bool
	compactAt  int64 // dead bytes that start a compaction
	closed     bool
	stats      Stats
	work       sync.WaitGroup

	// seams for tests
	write func(f *os.File, b []byte, off int64) (int, error)
	crash func(step string) bool
}

// String names the log. What waits for its followers may be a patient's, so nothing of it is printed.
func (l *Log) String() string { return "event log " + l.path }

// Format is String at every verb.
func (l *Log) Format(f fmt.State, _ rune) { io.WriteString(f, l.String()) }

// hidden makes what embeds it print as nothing but this.
type hidden struct{}

func (hidden) String() string               { return "[hidden]" }
func (h hidden) Format(f fmt.State, _ rune) { io.WriteString(f, h.String()) }

// record is one event of the file. Offsets are logical: they grow over compactions.
type record struct {
	hidden
	seq    uint64
	at     window.UTC
	off    int64
	line   int32 // length with the newline
	data   int32 // where the JSON begins in the line
	kind   string
	stream uint8
	mark   uint64
	live   []byte
}

// generation is a run of ids given by one opening.
type generation struct {
	ID    string `json:"id"`
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// handle is one file, open as long as somebody reads it. The file offset is the logical offset − shift.
type handle struct {
	f       *os.File
	shift   int64
	refs    int
	retired bool
}

// freshEvent is held in memory for the followers that were there when it was appended: its live copy, or
// its only one if it could not be stored.
type freshEvent struct {
	hidden
	seq  uint64
	kind string
	data []byte
}

type follower struct {
	pos, start uint64
	wake       chan struct{} // holds at most one signal
}

const (
	maxLine      = 1 << 20
	minDead      = 1 << 20
	maxFresh     = 1024
	batchEvents  = 256
	batchBytes   = 256 << 10
	newSuffix    = ".new"
	genDigits    = 12
	compactTries = 4
)

// Open reads the file at path, or makes it, cuts a torn tail and begins a new generation of ids.
func Open(path string, o Options) (*Log, error) {
	if o.MaxEvents <= 0 {
		o.MaxEvents = 10000
	}
	if o.Retention <= 0 {
		o.Retention = 24 * time.Hour
	}
	if o.Now == nil {
		h, err := window.Host()
		if err != nil {
			return nil, err
		}
		o.Now = func() window.UTC { return window.FromTime(h.Wall()) }
	}
	// Left behind by a crash before the rename: the old file is whole.
	if err := os.Remove(path + newSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot remove a half-written event log: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the event log: %w", err)
	}
	var g [genDigits / 2]byte
	rand.Read(g[:])
	l := &Log{path: path, opts: o, gen: hex.EncodeToString(g[:]), file: &handle{f: f}, compactAt: minDead,
		write: func(f *os.File, b []byte, off int64) (int, error) { return f.WriteAt(b, off) },
		crash: func(string) bool { return false }}
	err = l.load()
	if err == nil {
		err = l.loadAcks()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	l.mu.Lock()
	l.prune()
	l.mu.Unlock()
	l.compactIfDue()
	return l, nil
}

// Append stores the entries with one write(2), gives them ids and wakes the followers. If the write fails
// the followers present still get the events; one who resumes later gets a gap in their place. An entry
// that cannot be marshalled fails the call before anything is done.
func (l *Log) Append(entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	l.appending.Lock()
	defer l.compactIfDue()
	defer l.appending.Unlock()
	l.mu.Lock()
	closed, first, end, file := l.closed, l.last+1, l.end, l.file
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}

	b, recs := l.buf[:0], l.recs[:0]
	var err error
	for i := range entries {
		var r record
		if b, r, err = appendLine(b, l.gen, first+uint64(i), &entries[i]); err != nil {
			return err
		}
		recs = append(recs, r)
	}
	l.buf, l.recs = b, recs
	if cap(l.buf) > maxLine {
		l.buf = nil
	}
	_, werr := l.write(file.f, b, end-file.shift)
	if werr != nil {
		// The next write starts at the same place, and may be shorter.
		_ = file.f.Truncate(end - file.shift)
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.stats.Appended += uint64(len(recs))
	for i := range recs {
		r := recs[i]
		l.seen(l.gen, r.seq)
		data := b[r.off+int64(r.data) : r.off+int64(r.line)-1]
		r.off += end
		switch {
		case r.live != nil && len(l.followers) > 0:
			l.fresh = append(l.fresh, freshEvent{seq: r.seq, kind: r.kind, data: r.live})
		case werr != nil && len(l.followers) > 0:
			l.fresh = append(l.fresh, freshEvent{seq: r.seq, kind: r.kind, data: slices.Clone(data)})
		}
		r.live = nil
		if werr == nil {
			l.index = append(l.index, r)
			l.marks[r.stream] = max(l.marks[r.stream], r.mark)
		}
	}
	clear(recs)
	if n := len(l.fresh) - maxFresh; n > 0 {
		l.fresh = slices.Delete(l.fresh, 0, n)
	}
	if werr == nil {
		l.end += int64(len(b))
	} else {
		l.stats.Failed += uint64(len(recs))
	}
	l.prune()
	for _, f := range l.followers {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	if werr != nil {
		return fmt.Errorf("cannot store %d events, they were told but not kept: %w; free space on the disk of %s", len(entries), werr, l.path)
	}
	return nil
}

// Mark returns the highest mark stored of a stream, 0 for none.
func (l *Log) Mark(stream uint8) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marks[stream]
}

// Last returns the current position: following from there yields exactly what comes later.
func (l *Log) Last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position(l.last)
}

// Stats returns the log's figures.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prune()
	s := l.stats
	s.Events, s.Bytes, s.Followers = len(l.index)-l.head, l.end-l.file.shift, len(l.followers)
	return s
}

// Close ends the followers and syncs the file.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	for _, f := range l.followers {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
	l.mu.Unlock()
	l.work.Wait()

	l.appending.Lock()
	defer l.appending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if n := len(l.index); l.last > 0 && (n == 0 || l.index[n-1].seq < l.last) {
		// The last events are not stored: say so, or a resume after the restart would not see the gap.
		_, err = l.write(l.file.f, l.metaLine(l.last), l.end-l.file.shift)
	}
	err = errors.Join(err, l.file.f.Sync())
	l.retire(l.file)
	if err != nil {
		return fmt.Errorf("cannot finish the event log: %w", err)
	}
	return nil
}

// Follow yields the events after lastID ("" is: from now on) as they come, until ctx ends (nil), yield fails
// (its error) or the log is closed (ErrClosed). kinds empty is every kind. Where events are missing,
// because lastID is not known, or they are past retention or were never stored, it yields one of
// kind gap, whatever kinds says, and goes on with the next event that is retained. data is valid until
// yield returns. A slow yield delays nobody else.
func (l *Log) Follow(ctx context.Context, lastID string, kinds []string, yield func(id, kind string, data []byte) error) error {
	f := &follower{wake: make(chan struct{}, 1)}
	l.mu.Lock()
	l.prune()
	f.pos, f.start = l.last, l.last
	unknown := false
	if lastID != "" {
		pos, ok := l.resolve(lastID)
		if !ok {
			pos, unknown = l.firstRetained()-1, true
		}
		f.pos = pos
	}
	l.followers = append(l.followers, f)
	l.mu.Unlock()
	defer l.leave(f)

	var span []byte
	for {
		b, err := l.next(f, kinds, unknown)
		if err != nil {
			return err
		}
		unknown = false
		if b.n > 0 {
			if cap(span) < b.n {
				span = make([]byte, b.n)
			}
			span = span[:b.n]
			_, err = b.file.f.ReadAt(span, b.off-b.file.shift)
		}
		l.release(b.file)
		if err != nil {
			return fmt.Errorf("cannot read the event log: %w", err)
		}
		for _, e := range b.events {
			if ctx.Err() != nil {
				return nil
			}
			data := e.data
			if data == nil {
				data = span[e.from:e.to]
			}
			if err := yield(e.id, e.kind, data); err != nil {
				return err
			}
		}
		if b.more {
			continue
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

type batch struct {
	events []delivery
	file   *handle
	off    int64 // logical
	n      int   // bytes to read at off; 0 if no event lies in the file
	more   bool
}

type delivery struct {
	hidden
	id, kind string
	data     []byte // nil: from the file, span[from:to]
	from, to int
}

// next moves the follower on over the events that are there, at most a batch of them.
func (l *Log) next(f *follower, kinds []string, gap bool) (batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return batch{}, ErrClosed
	}
	var b batch
	if gap {
		b.events = append(b.events, l.gapAt(f.pos))
	}
	i := l.head + sort.Search(len(l.index)-l.head, func(i int) bool { return l.index[l.head+i].seq > f.pos })
	j := sort.Search(len(l.fresh), func(j int) bool { return l.fresh[j].seq > max(f.pos, f.start) })
	for f.pos < l.last {
		if len(b.events) >= batchEvents {
			b.more = true
			break
		}
		var r *record
		var fr *freshEvent
		seq := l.last + 1
		if i < len(l.index) {
			r, seq = &l.index[i], l.index[i].seq
		}
		if j < len(l.fresh) && l.fresh[j].seq <= seq {
			fr, seq = &l.fresh[j], l.fresh[j].seq
		}
		if seq != f.pos+1 {
			f.pos = seq - 1
			b.events = append(b.events, l.gapAt(f.pos))
			continue
		}
		if r != nil && r.seq == seq {
			i++
		} else {
			r = nil
		}
		if fr != nil {
			j++
			if want(kinds, fr.kind) {
				b.events = append(b.events, delivery{id: l.position(seq), kind: fr.kind, data: fr.data})
			}
		} else if want(kinds, r.kind) {
			if b.n == 0 {
				b.off = r.off
			}
			end := int(r.off-b.off) + int(r.line)
			if b.n > 0 && end > batchBytes {
				b.more = true
				break
			}
			b.n = end
			b.events = append(b.events, delivery{id: l.position(seq), kind: r.kind,
				from: int(r.off-b.off) + int(r.data), to: end - 1})
		}
		f.pos = seq
	}
	if b.n > 0 {
		b.file = l.file
		b.file.refs++
	}
	l.forgetFresh()
	return b, nil
}

func want(kinds []string, kind string) bool { return len(kinds) == 0 || slices.Contains(kinds, kind) }

// gapAt is a gap whose id is the position pos itself: resuming from it goes on where the gap ends.
func (l *Log) gapAt(pos uint64) delivery {
	l.stats.Gaps++
	d := delivery{id: l.position(pos), kind: KindGap}
	d.data = append(appendHead(nil, d.id, KindGap, l.opts.Now()), '}')
	return d
}

func (l *Log) release(h *handle) {
	if h == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h.refs--
	if h.retired && h.refs == 0 {
		h.f.Close()
	}
}

func (l *Log) retire(h *handle) {
	h.retired = true
	if h.refs == 0 {
		h.f.Close()
	}
}

func (l *Log) leave(f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.followers = slices.DeleteFunc(l.followers, func(o *follower) bool { return o == f })
	l.forgetFresh()
}

// forgetFresh drops what every follower has passed: live fields may be PHI, so they are held no longer
// than somebody waits for them.
func (l *Log) forgetFresh() {
	if len(l.fresh) == 0 {
		return
	}
	low := l.last
	for _, f := range l.followers {
		low = min(low, f.pos)
	}
	l.fresh = slices.DeleteFunc(l.fresh, func(e freshEvent) bool { return e.seq <= low })
}

// seen notes that seq was given in generation gen.
func (l *Log) seen(gen string, seq uint64) {
	if n := len(l.gens); n > 0 && l.gens[n-1].ID == gen {
		l.gens[n-1].Last = seq
	} else {
		l.gens = append(l.gens, generation{gen, seq, seq})
	}
	l.last = seq
}

// position is the id of seq, or of the place before the first event of all.
func (l *Log) position(seq uint64) string {
	gen := l.gen
	for i := len(l.gens) - 1; i >= 0; i-- {
		gen = l.gens[i].ID
		if l.gens[i].First <= seq {
			break
		}
	}
	return gen + "-" + strconv.FormatUint(seq, 10)
}

func parseID(id string) (gen string, seq uint64, ok bool) {
	gen, n, ok := strings.Cut(id, "-")
	if !ok || len(gen) != genDigits {
		return "", 0, false
	}
	seq, err := strconv.ParseUint(n, 10, 64)
	return gen, seq, err == nil && n == strconv.FormatUint(seq, 10)
}

// resolve finds the position that id names, if it was given by this file and not lost since.
func (l *Log) resolve(id string) (uint64, bool) {
	gen, seq, ok := parseID(id)
	if !ok {
		return 0, false
	}
	for _, g := range l.gens {
		if g.ID == gen {
			return seq, g.First-1 <= seq && seq <= g.Last
		}
	}
	return seq, len(l.gens) == 0 && gen == l.gen && seq == l.last
}

func (l *Log) firstRetained() uint64 {
	if l.head < len(l.index) {
		return l.index[l.head].seq
	}
	return l.last + 1
}

// prune drops what is past retention from the index; compaction frees the file.
func (l *Log) prune() {
	cutoff := l.opts.Now().Add(-l.opts.Retention)
	for l.head < len(l.index) && (len(l.index)-l.head > l.opts.MaxEvents || l.index[l.head].at < cutoff) {
		l.head++
	}
	if l.head > len(l.index)/2 {
		n := copy(l.index, l.index[l.head:])
		clear(l.index[n:])
		l.index, l.head = l.index[:n], 0
	}
	for len(l.gens) > 1 && l.gens[0].Last+1 < l.firstRetained() {
		l.gens = l.gens[1:]
	}
}

// firstByte is the logical offset where the retained part of the file begins.
func (l *Log) firstByte() int64 {
	if l.head < len(l.index) {
		return l.index[l.head].off
	}
	return l.end
}

func (l *Log) compactIfDue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	dead := l.firstByte() - l.file.shift
	if l.closed || l.compacting || dead < max(l.compactAt, l.end-l.firstByte()) {
		return
	}
	l.compacting = true
	l.work.Go(func() {
		err := l.compact()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.compacting = false
		if err != nil {
			l.compactAt = 2 * dead // no space, most likely: try again when it is worth more
			return
		}
		l.compactAt = minDead
		l.stats.Compactions++
	})
}

var errCrash = errors.New("cannot go on: crashed by a test")

// compact writes what is retained to a new file and renames it over the old one. Appends go on meanwhile
// but for the last step, which copies what came in between.
func (l *Log) compact() (err error) {
	l.mu.Lock()
	old, from, done, meta := l.file, l.firstByte(), l.end, l.metaLine(l.firstRetained()-1)
	old.refs++
	l.mu.Unlock()
	defer l.release(old)

	name := l.path + newSuffix
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			if err != errCrash {
				os.Remove(name)
			}
		}
	}()
	if _, err = f.Write(meta); err != nil {
		return err
	}
	if l.crash("created") {
		return errCrash
	}
	copyRange := func(from, to int64) error {
		_, err := io.Copy(f, io.NewSectionReader(old.f, from-old.shift, to-from))
		return err
	}
	if err = copyRange(from, done); err != nil {
		return err
	}
	if l.crash("copied") {
		return errCrash
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if l.crash("synced") {
		return errCrash
	}

	l.appending.Lock()
	defer l.appending.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err = copyRange(done, l.end); err != nil {
		return err
	}
	if err = os.Rename(name, l.path); err != nil {
		return err
	}
	l.file = &handle{f: f, shift: from - int64(len(meta))}
	l.retire(old)
	if l.crash("renamed") {
		return nil
	}
	return syncFolder(filepath.Dir(l.path))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
