package spool

import (
	"bytes"
	"cmp"
	"container/list"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"scanonce/idem"
	"scanonce/window"
)

const journalName = "operations.log"

// Operation is an act on a claim or a case that a store must still hear of. What is in it is its maker's business.
type Operation struct {
	ID      idem.EventID    `json:"id"` // the same at every attempt
	Kind    string          `json:"kind"`
	Subject string          `json:"subject"` // those of one subject are done in the order of their coming
	Body    json.RawMessage `json:"body"`
	At      window.UTC      `json:"at"`
	Early   bool            `json:"early,omitempty"` // comes in front of those of its subject that are of a later At
}

// Conflict is an operation that no store can do any more. It stays until a person says that it is seen to.
type Conflict struct {
	Operation
	Current json.RawMessage `json:"current,omitempty"` // what stands in the store instead; nil if that is not why
	Detail  string          `json:"detail"`
	Found   window.UTC      `json:"found"`
}

// journalEntry is one line of the journal.
type journalEntry struct {
	Begin     bool           `json:"begin,omitempty"`   // the file's first line, which has all that is in memory
	Dropped   int            `json:"dropped,omitempty"` // with begin
	Add       []*Operation   `json:"add,omitempty"`
	Next      []*Operation   `json:"next,omitempty"` // each in the place of the one that has its id
	Done      []idem.EventID `json:"done,omitempty"`
	Conflicts []Conflict     `json:"conflicts,omitempty"` // no longer waiting either
	Resolved  []idem.EventID `json:"resolved,omitempty"`  // no longer conflicts
}

// Journal keeps operations until they are done, and conflicts until they are resolved: a text file that grows line by
// line, each sealed, numbered without gaps and with a sum of its own, and that is written anew when little of it is
// still needed. All of it is in memory too. It is safe for concurrent use.
type Journal struct {
	s     *Spool
	path  string
	spare int64 // a smaller file is not worth writing anew

	mu        sync.Mutex
	f         *os.File // nil until the first line of this run
	size      int64
	least     int64  // size after the last time that it was written anew
	number    uint64 // of the last line
	anew      bool   // the file must be written anew before anything is added
	closed    bool
	pending   *list.List // of *waiter, in the order of their coming
	waiting   map[idem.EventID]*list.Element
	subjects  map[string]*waiters
	conflicts []Conflict
	dropped   int // conflicts for which there was no room, since there was none
	changed   chan struct{}
	seals     map[string]cipher.AEAD // by key id
}

// waiter is an operation in its places.
type waiter struct {
	*Operation
	queue *waiters
}

// waiters are the operations of a subject, in order.
type waiters struct{ of []*list.Element }

// MostOperations may wait in a journal.
const MostOperations = 50_000

// MostConflicts are kept, and of each operation one: the oldest have to go.
const MostConflicts = 10_000

// ErrJournalFull refuses an operation.
var ErrJournalFull = errors.New("cannot queue the operation: too many wait already")

// A line is version, key id, number, the sealed entry in base64, and the CRC-32C of what is before it: a line that is
// damaged must not pass for one that needs another key.
const (
	journalVersion = 1
	journalParts   = 5
	journalSumLen  = 8       // hexadecimal digits
	compactAt      = 1 << 18 // bytes
)

var errLine = errors.New("cannot read the line")

func newJournal(s *Spool) *Journal {
	return &Journal{s: s, path: filepath.Join(s.dir, journalName), spare: compactAt, pending: list.New(), waiting: map[idem.EventID]*list.Element{},
		subjects: map[string]*waiters{}, changed: make(chan struct{}), seals: map[string]cipher.AEAD{}}
}

// owner is whose the mark is. It outlives the epochs: a run may pass without a line.
func (j *Journal) owner() string { return j.s.opts.Agent + "|" + journalName }

// marked is the number of the last line that was surely written, as far as the mark tells; 0 without it.
func (j *Journal) marked() uint64 {
	f, err := os.Open(filepath.Join(j.s.dir, markName))
	if err != nil {
		return 0
	}
	defer f.Close()
	m := readMark(f, markOperations)
	if m.epoch != string(epochHash(j.owner())) {
		return 0
	}
	return m.value
}

// load reads the journal of a run that wrote at least so many lines, and returns how many of them are lost; not one
// that a crash has torn, of which nobody was told. there says whether there is a file.
func (j *Journal) load(last uint64) (lost uint64, there bool, err error) {
	content, err := os.ReadFile(j.path)
	if there = err == nil; !there && !errors.Is(err, fs.ErrNotExist) {
		return 0, false, fmt.Errorf("cannot read %s: %w", journalName, err)
	}
	last = max(last, j.marked())
	type found struct {
		number uint64
		size   int
		entry  journalEntry
	}
	var lines []found
	bad, torn := uint64(0), false
	for line := range bytes.Lines(content) {
		number, current, e, err := j.read(line)
		var wrong *WrongKeyError
		var schema *SchemaError
		if errors.As(err, &wrong) || errors.As(err, &schema) {
			return 0, there, err
		}
		if torn = err != nil; torn {
			bad++
			continue
		}
		lines = append(lines, found{number, len(line), e})
		j.anew = j.anew || !current
	}
	// Damage can put lines into another place, and into two; what is older than the file's own beginning does not count.
	slices.SortStableFunc(lines, func(a, b found) int { return cmp.Compare(a.number, b.number) })
	lines = slices.CompactFunc(lines, func(a, b found) bool { return a.number == b.number })
	for i := len(lines) - 1; i > 0; i-- {
		if lines[i].entry.Begin {
			lines = lines[i:]
			break
		}
	}
	for i := range lines {
		j.apply(&lines[i].entry)
		j.number = lines[i].number
	}
	lost = last - min(last, j.number)
	if len(lines) > 0 {
		first := lines[0].number
		if j.least = int64(lines[0].size); !lines[0].entry.Begin {
			first-- // the line with which it began is gone, and all that was in it
		}
		lost += j.number - first + 1 - uint64(len(lines))
	}
	if lost == 0 && (bad > 1 || bad == 1 && !torn) {
		lost = bad // they had no number that anybody knows
	}
	j.number, j.size = max(j.number, last), int64(len(content))
	j.anew = j.anew || bad+lost > 0 || !there
	return lost, there, nil
}

// openJournal reads the journal. If lines of it are lost, the file is kept aside and a healing tells of it.
func (s *Spool) openJournal(last uint64) error {
	j := newJournal(s)
	s.journal = j
	if s.opts.ReadOnly {
		return j.damage(last)
	}
	lost, there, err := j.load(last)
	if err != nil {
		return err
	}
	if lost > 0 {
		h := Healing{File: journalName, Detail: "lines of it are missing or cannot be read", Records: int64(j.pending.Len()), Operations: int64(lost)}
		if there {
			if h.Aside, err = keepAside(s.dir, journalName, false); err != nil && !IsNoSpace(err) {
				return fmt.Errorf("cannot set the damaged %s aside: %w", journalName, err)
			}
		}
		s.healings = append(s.healings, h)
	}
	if j.anew && (there || lost > 0) { // or the same would be told again, and an old key needed, until something is added
		if err := j.rewrite(); err != nil && !IsNoSpace(err) {
			return err
		}
	}
	return nil
}

// verify reads the file again, beside whoever uses it.
func (j *Journal) verify() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return newJournal(j.s).damage(j.number)
}

// damage says what is wrong with a journal that is only looked at.
func (j *Journal) damage(last uint64) error {
	lost, _, err := j.load(last)
	if err == nil && lost > 0 {
		err = &DamageError{journalName, fmt.Sprintf("%d lines of it are missing or cannot be read", lost)}
	}
	return err
}

// copy is a file that holds what is in memory; nil if there never was any. The file itself may be half written.
func (j *Journal) copy() ([]byte, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.number == 0 {
		return nil, nil
	}
	return j.line(j.number, j.all())
}

// all is the entry with which a file begins. It needs mu.
func (j *Journal) all() *journalEntry {
	e := &journalEntry{Begin: true, Dropped: j.dropped, Conflicts: j.conflicts}
	for w := j.pending.Front(); w != nil; w = w.Next() {
		e.Add = append(e.Add, w.Value.(*waiter).Operation)
	}
	return e
}

// seal is the cipher of a master key. Nonces are random, so that all lines of all files can share it.
func (j *Journal) seal(keyID string) (cipher.AEAD, error) {
	if a := j.seals[keyID]; a != nil {
		return a, nil
	}
	master, ok := j.s.opts.Keys.keys[keyID]
	if !ok {
		return nil, &WrongKeyError{File: journalName, KeyID: keyID}
	}
	key, err := hkdf.Key(sha256.New, master, nil, "scanonce spool|"+j.s.opts.Agent+"|"+journalName, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	a, err := cipher.NewGCMWithRandomNonce(block)
	if err == nil {
		j.seals[keyID] = a
	}
	return a, err
}

func journalSum(text string) string {
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

func (j *Journal) line(number uint64, e *journalEntry) ([]byte, error) {
	plain, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	id := j.s.opts.Keys.current
	a, err := j.seal(id)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("%d %s %d", journalVersion, id, number)
	text += " " + base64.StdEncoding.EncodeToString(a.Seal(nil, nil, plain, []byte(text)))
	return []byte(text + " " + journalSum(text) + "\n"), nil
}

// read reads a line. current says that it is sealed with the current key.
func (j *Journal) read(line []byte) (number uint64, current bool, e journalEntry, err error) {
	text, ended := strings.CutSuffix(string(line), "\n")
	parts := strings.Split(text, " ")
	if !ended || len(parts) != journalParts || len(parts[4]) != journalSumLen || journalSum(text[:len(text)-journalSumLen-1]) != parts[4] {
		return 0, false, e, errLine
	}
	version, err := strconv.Atoi(parts[0])
	if err == nil && version != journalVersion {
		return 0, false, e, &SchemaError{journalName, version}
	}
	if err == nil {
		number, err = strconv.ParseUint(parts[2], 10, 64)
	}
	if err != nil || number == 0 {
		return 0, false, e, errLine
	}
	a, err := j.seal(parts[1])
	if err != nil {
		return 0, false, e, err
	}
	b, err := base64.StdEncoding.DecodeString(parts[3])
	if err == nil {
		b, err = a.Open(nil, nil, b, []byte(strings.Join(parts[:3], " ")))
	}
	if err != nil || json.Unmarshal(b, &e) != nil {
		return 0, false, e, errLine
	}
	return number, parts[1] == j.s.opts.Keys.current, e, nil
}

// apply makes what a line says so in memory. It needs mu, but for the opening.
func (j *Journal) apply(e *journalEntry) {
	for _, op := range e.Add {
		if j.waiting[op.ID] != nil {
			continue
		}
		q := j.subjects[op.Subject]
		if q == nil {
			q = &waiters{}
			j.subjects[op.Subject] = q
		}
		at := len(q.of)
		if op.Early && !e.Begin {
			if i := slices.IndexFunc(q.of, func(w *list.Element) bool { return w.Value.(*waiter).At > op.At }); i >= 0 {
				at = i
			}
		}
		var w *list.Element
		if at < len(q.of) {
			w = j.pending.InsertBefore(&waiter{op, q}, q.of[at])
		} else {
			w = j.pending.PushBack(&waiter{op, q})
		}
		j.waiting[op.ID] = w
		q.of = slices.Insert(q.of, at, w)
	}
	for _, next := range e.Next {
		if w := j.waiting[next.ID]; w != nil {
			at := w.Value.(*waiter)
			next.Subject = at.Subject
			at.Operation = next
		}
	}
	for _, id := range e.Done {
		j.drop(id)
	}
	j.dropped += e.Dropped
	if len(e.Conflicts) > 0 {
		j.conflict(e.Conflicts)
	}
	if len(e.Resolved) > 0 {
		resolved := setOf(e.Resolved)
		j.conflicts = slices.DeleteFunc(j.conflicts, func(c Conflict) bool { return resolved[c.ID] })
		if len(j.conflicts) == 0 {
			j.dropped = 0
		}
	}
}

// conflict puts conflicts at the end of the list, each in the place of an older one of the same operation.
func (j *Journal) conflict(found []Conflict) {
	last := make(map[idem.EventID]int, len(found))
	for i := range found {
		j.drop(found[i].ID)
		last[found[i].ID] = i
	}
	j.conflicts = slices.DeleteFunc(j.conflicts, func(c Conflict) bool { _, again := last[c.ID]; return again })
	for i := range found {
		if last[found[i].ID] == i {
			j.conflicts = append(j.conflicts, found[i])
		}
	}
	if over := len(j.conflicts) - MostConflicts; over > 0 {
		j.conflicts = slices.Delete(j.conflicts, 0, over)
		j.dropped += over
	}
}

// drop ends the waiting of an operation.
func (j *Journal) drop(id idem.EventID) {
	w := j.waiting[id]
	if w == nil {
		return
	}
	delete(j.waiting, id)
	at := j.pending.Remove(w).(*waiter)
	i := slices.Index(at.queue.of, w)
	if at.queue.of = slices.Delete(at.queue.of, i, i+1); len(at.queue.of) == 0 {
		delete(j.subjects, at.Subject)
	}
}

func setOf(ids []idem.EventID) map[idem.EventID]bool {
	set := make(map[idem.EventID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// commit makes an entry durable, and then so in memory. After a failure the line may be in the file all the same: it
// is written anew before anything else is. It needs mu.
func (j *Journal) commit(e *journalEntry) error {
	if j.s.opts.ReadOnly {
		return errors.New("cannot change the journal: the spool is open for reading only")
	}
	if j.closed {
		return ErrClosed
	}
	if err := j.ready(); err != nil {
		return err
	}
	line, err := j.line(j.number+1, e)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", journalName, err)
	}
	undone := false
	if err = j.s.opts.durable(DiskCommit, j.path, func() error {
		_, err := j.f.WriteAt(line, j.size)
		if err == nil {
			return j.f.Sync()
		}
		undone = cmp.Or(j.f.Truncate(j.size), j.f.Sync()) == nil // it is not whole: a full disk
		return err
	}); err != nil {
		j.anew = !undone
		return fmt.Errorf("cannot write %s: %w", journalName, err)
	}
	j.number++
	j.size += int64(len(line))
	j.apply(e)
	j.s.marks.set(markOperations, j.owner(), j.s.boot, j.number)
	close(j.changed)
	j.changed = make(chan struct{})
	return nil
}

// ready makes the file one to which a line can be added. It needs mu.
func (j *Journal) ready() (err error) {
	if j.f == nil && !j.anew {
		j.f, err = os.OpenFile(j.path, os.O_RDWR, 0)
		j.anew = err != nil
	}
	if !j.anew && (j.size <= j.spare || j.size <= 4*j.least) {
		return nil
	}
	needed := j.anew
	if err = j.rewrite(); err == nil || needed || !IsNoSpace(err) || !j.inPlace() {
		return err
	}
	j.anew, j.least = false, j.size/2 // a full disk: the file is as good as before, and may grow to twice its size
	return nil
}

// inPlace says that the file that is open is the one with the journal's name.
func (j *Journal) inPlace() bool {
	opened, err := j.f.Stat()
	named, err2 := os.Stat(j.path)
	return err == nil && err2 == nil && os.SameFile(opened, named)
}

// rewrite puts a file in place that holds what is in memory and nothing else. It needs mu.
func (j *Journal) rewrite() error {
	line, err := j.line(j.number+1, j.all())
	if err != nil {
		return err
	}
	err = j.s.opts.durable(DiskReplace, j.path, func() error { return replaceFile(j.path, line) })
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(j.path, os.O_RDWR, 0)
	}
	if err != nil {
		j.anew = true // in place or not
		return fmt.Errorf("cannot write %s anew: %w", journalName, err)
	}
	if j.f != nil {
		j.f.Close()
	}
	j.f, j.number, j.size, j.least, j.anew = f, j.number+1, int64(len(line)), int64(len(line)), false
	j.s.marks.set(markOperations, j.owner(), j.s.boot, j.number)
	return nil
}

func (j *Journal) close() {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed = true; j.f != nil {
		j.f.Close()
		j.f = nil
	}
}

// Journal is the spool's journal of operations. It may be used from Begin on.
func (s *Spool) Journal() *Journal { return s.journal }

// Add queues operations, durably; those that wait already are not queued again. ErrJournalFull and ErrDiskFull refuse
// all of them.
func (j *Journal) Add(ops ...Operation) error { return j.add(ops, true) }

// AddAnyway is Add without the bounds: for what has happened already and cannot be refused.
func (j *Journal) AddAnyway(ops ...Operation) error { return j.add(ops, false) }

func (j *Journal) add(ops []Operation, bounded bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var e journalEntry
	for _, op := range ops {
		if j.waiting[op.ID] == nil {
			e.Add = append(e.Add, &op)
		}
	}
	switch {
	case len(e.Add) == 0:
		return nil
	case bounded && j.pending.Len()+len(e.Add) > MostOperations:
		return ErrJournalFull
	case bounded && j.s.spent():
		return ErrDiskFull // what is left is for settlements
	}
	return j.commit(&e)
}

// spent says that the reserve is given up, for a full disk.
func (s *Spool) spent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve == reserveSpent
}

// Heads returns, in order, up to n operations that come first for their subject and that want takes, which must not
// call the journal.
func (j *Journal) Heads(n int, want func(*Operation) bool) (out []Operation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for w := j.pending.Front(); w != nil && len(out) < n; w = w.Next() {
		if at := w.Value.(*waiter); at.queue.of[0] == w && want(at.Operation) {
			out = append(out, *at.Operation)
		}
	}
	return out
}

// Waits says that operations of a subject wait.
func (j *Journal) Waits(subject string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.subjects[subject] != nil
}

// Find returns the operation of an id, if it waits.
func (j *Journal) Find(id idem.EventID) (op Operation, waits bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.waiting[id]
	if w == nil {
		return op, false
	}
	return *w.Value.(*waiter).Operation, true
}

// Pending is the number of operations that wait.
func (j *Journal) Pending() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pending.Len()
}

// Oldest is the least At of the operations that wait; 0 without any.
func (j *Journal) Oldest() (at window.UTC) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for w := j.pending.Front(); w != nil; w = w.Next() {
		if op := w.Value.(*waiter); at == 0 || op.At < at {
			at = op.At
		}
	}
	return at
}

// Waiting lists the operations that wait, in order.
func (j *Journal) Waiting() []Operation {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := make([]Operation, 0, j.pending.Len())
	for w := j.pending.Front(); w != nil; w = w.Next() {
		out = append(out, *w.Value.(*waiter).Operation)
	}
	return out
}

// Changed is closed at the next change.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

// Settlement is what has become of operations.
type Settlement struct {
	Done      []idem.EventID
	Next      []*Operation // what is left to do of the one with the same id and subject, in its place
	Conflicts []Conflict
}

// Settle records a settlement, durably.
func (j *Journal) Settle(s Settlement) error {
	if len(s.Done)+len(s.Next)+len(s.Conflicts) == 0 {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	e := journalEntry{Done: s.Done, Conflicts: s.Conflicts}
	for _, next := range s.Next {
		op := *next
		e.Next = append(e.Next, &op)
	}
	return j.commit(&e)
}

// Conflicts lists the conflicts, oldest first.
func (j *Journal) Conflicts() []Conflict {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.conflicts)
}

// ConflictCounts says how many conflicts there are, and how many more there was no room for since the list was empty.
func (j *Journal) ConflictCounts() (kept, dropped int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.conflicts), j.dropped
}

// Resolve takes conflicts that a person has seen to off the list, durably, and returns them.
func (j *Journal) Resolve(ids []idem.EventID) (resolved []Conflict, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var e journalEntry
	seen := setOf(ids)
	for _, c := range j.conflicts {
		if seen[c.ID] {
			resolved = append(resolved, c)
			e.Resolved = append(e.Resolved, c.ID)
		}
	}
	if len(resolved) == 0 {
		return nil, nil
	}
	return resolved, j.commit(&e)
}
