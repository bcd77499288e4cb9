package spool

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/window"
)

// Healing tells of a file that was damaged.
type Healing struct {
	File        string
	Detail      string // what was wrong with it
	Aside       string // where it is kept; "" if there was none
	Records     int64  // that were saved
	Unaccounted int64  // that were accepted, never settled, and are lost
	Operations  int64  // lines of the journal that are lost: operations that waited, or what became of them
	Apart       bool   // it is kept aside, and what it holds takes no part: nobody knows whether that was sent
	Moved       bool   // the file is whole, and was not where it belongs
	Doubtful    int64  // that are in no file any more: they were sent, or are lost
	Older       bool   // it is whole, but went back to an earlier time: Records that were settled since no longer count
}

// reasonSalvaged is that of the audit's notice; its length is the number of records unaccounted.
const reasonSalvaged = "segment_salvaged"

// found is a value of a damaged file that its key has authenticated, or a record that is still in memory.
type found struct {
	number uint64
	off    int64
	size   int
	record *Record
}

// search finds all records and notes of a damaged segment that are whole, in order, and what was known to be lost
// of it before.
func (r *raw) search(seal *sealer) (records, notes []found, lost ranges) {
	var seen [2]map[uint64]bool
	seen[0], seen[1] = map[uint64]bool{}, map[uint64]bool{}
	var plain []byte
	r.sweep(func(k, v []byte, off int64) {
		if len(k) != 8 {
			if plain, err := seal.open(string(bucketLost), k, v); err == nil {
				json.Unmarshal(plain, &lost)
			}
			return
		}
		for i, bucket := range [...][]byte{bucketRecords, bucketNotes} {
			number := binary.BigEndian.Uint64(k)
			if seen[i][number] {
				continue
			}
			var err error
			if plain, err = seal.openOnce(plain[:0], string(bucket), k, v); err != nil {
				continue
			}
			f := found{number: number, off: off, size: len(v)}
			if seen[i][number] = true; i == 0 {
				records = append(records, f)
			} else {
				notes = append(notes, f)
			}
			return
		}
	})
	order := func(a, b found) int { return cmp.Compare(a.number, b.number) }
	slices.SortFunc(records, order)
	slices.SortFunc(notes, order)
	return records, notes, lost
}

// claims is what is known of a segment from elsewhere.
type claims struct {
	last   uint64 // up to here records were accepted
	most   uint64 // and none behind this
	exact  bool   // none behind last was answered for
	note   uint64 // up to here notes were written
	detail string // what is wrong with the file
}

// salvage puts what can be saved of a damaged segment in its place, under the same name and numbers: cursors,
// exceptions and whoever else points into it stay right. The damaged file is kept aside. Until the new one is
// in place nothing changes, so that a crash or a full disk only delays it; seg is sick until then.
func (s *Spool) salvage(seg *segment, c claims) (Healing, error) {
	h := Healing{File: seg.name, Detail: c.detail}
	var kept *fileHead
	if seg.head != nil {
		kept = seg.head
	}
	var head *fileHead
	var seal *sealer
	var records, notes []found
	var before ranges
	r, err := openRaw(seg.path, seg.name)
	var damaged *DamageError
	if err != nil && !errors.As(err, &damaged) {
		return h, err
	}
	there := err == nil
	if there {
		defer r.close()
		if head, seal, err = r.sealerFor(s.opts.Keys, kept); err != nil {
			return h, err
		}
	}
	if seal != nil {
		records, notes, before = r.search(seal)
	}
	if head == nil {
		if head = kept; head == nil {
			epoch, first, _ := parseSegmentName(seg.name)
			head = &fileHead{Agent: s.opts.Agent, Epoch: epoch, First: first}
		}
	}
	records = slices.DeleteFunc(records, func(f found) bool { return f.number < seg.first || f.number > c.most })
	if c.exact { // behind what was answered for only what a batch holds that was durable and not yet told
		for i, f := range records {
			if f.number > c.last && (i == 0 && f.number != seg.first || i > 0 && records[i-1].number != f.number-1) {
				records = records[:i]
				break
			}
		}
	}
	last := max(c.last, seg.first-1)
	if n := len(records); n > 0 {
		last = max(last, records[n-1].number)
	}
	records = s.fromMemory(records, seg.first, last)
	note := c.note
	if n := len(notes); n > 0 {
		note = max(note, notes[n-1].number)
	}
	lost := missing(records, seg.first, last)
	s.mu.Lock()
	seg.sick, seg.last, seg.lost = c.detail, last, lost
	s.recountOpen()
	h.Records, h.Unaccounted = int64(len(records)), s.lostNow(seg, before)
	s.mu.Unlock()

	salt, aside := make([]byte, 4), ""
	rand.Read(salt)
	tmp := seg.path + tmpMark + hex.EncodeToString(salt)
	fresh, freshSeal, err := newHead(s.opts.Keys, fileHead{Agent: head.Agent, Epoch: head.Epoch, First: seg.first, BootID: head.BootID,
		Created: head.Created, Salvaged: true}, seg.name)
	if err != nil {
		return h, err
	}
	w := &salvageWriter{r: r, old: seal, seal: freshSeal}
	err = w.write(tmp, fresh, seg.first, last, records, notes, s.notice(int(h.Unaccounted)), note+1)
	if err == nil {
		err = s.opts.durable(DiskReplace, seg.path, func() (err error) {
			if occupied(seg.path) {
				if aside, err = keepAside(s.dir, seg.name, false); err != nil {
					return err
				}
			}
			if err := os.Rename(tmp, seg.path); err != nil {
				return err
			}
			return syncDir(s.dir)
		})
	}
	if err != nil {
		os.Remove(tmp)
		return h, fmt.Errorf("cannot salvage %s: %w", seg.name, err)
	}
	seg.open.Lock()
	if seg.db != nil {
		seg.db.Close()
		seg.db = nil
	}
	s.mu.Lock()
	seg.head, seg.seal, seg.lost, seg.notes, seg.sick, seg.sound = fresh, freshSeal, w.lost, note+1, "", true
	seg.newest = max(seg.newest, w.newest)
	seg.measure()
	s.recountOpen()
	h.Aside, h.Unaccounted = aside, s.lostNow(seg, before)
	s.mu.Unlock()
	seg.open.Unlock()
	return h, nil
}

// fromMemory adds the records first..last that no file needs to tell of: the newest ones of this run.
func (s *Spool) fromMemory(records []found, first, last uint64) []found {
	s.mu.Lock()
	for _, x := range missing(records, first, last) {
		for seq := x[0]; seq <= x[1]; seq++ {
			if rs := s.fromTail(seq, 1); len(rs) == 1 {
				records = append(records, found{number: seq, record: rs[0]})
			}
		}
	}
	s.mu.Unlock()
	slices.SortFunc(records, func(a, b found) int { return cmp.Compare(a.number, b.number) })
	return records
}

// lostNow counts the lost records of a segment that are not final: those that no cursor has passed, and
// exceptions; not those known before. It needs mu.
func (s *Spool) lostNow(seg *segment, before ranges) int64 {
	n := int64(s.lostOpen(seg))
	from := s.storedCursor(seg).Record
	for _, x := range before {
		n -= int64(s.lostIn(seg, max(from, x[0]-1), x[1]))
	}
	for _, x := range s.state.exceptions {
		if x.Segment == seg.name && seg.lost.has(x.Seq) {
			n++
		}
	}
	return n
}

// notice is the audit's line about a healing.
func (s *Spool) notice(unaccounted int) Line {
	at := s.high
	if s.clock != nil {
		at = s.clock.Now().T
	} else if s.opts.Wall != nil {
		at = window.FromTime(s.opts.Wall())
	}
	return Line{Event: newEvent(at), At: at, Outcome: "notice", Reason: reasonSalvaged, Length: unaccounted}
}

// missing lists the numbers first..last that are not among the records.
func missing(records []found, first, last uint64) (out ranges) {
	next := first
	for _, f := range records {
		if f.number > next {
			out = append(out, [2]uint64{next, f.number - 1})
		}
		next = f.number + 1
	}
	if next <= last {
		out = append(out, [2]uint64{next, last})
	}
	return out
}

type salvageWriter struct {
	r         *raw
	old, seal *sealer
	lost      ranges
	newest    time.Duration
}

const salvagePiece = 4096 // records in a transaction

// write makes the new file and syncs it. A value that cannot be read a second time is lost.
func (w *salvageWriter) write(path string, head *fileHead, first, last uint64, records, notes []found, notice Line, noticeAt uint64) error {
	o := boltOptions(false)
	o.NoSync, o.NoGrowSync = true, true
	db, err := newSegmentFile(path, head, w.seal, o)
	if err != nil {
		return err
	}
	defer db.Close()
	var rec Record
	var line Line
	got := records[:0]
	for part := range slices.Chunk(records, salvagePiece) {
		if err := db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucketRecords)
			b.FillPercent = 0.95
			for _, f := range part {
				plain, ok := w.plain(string(bucketRecords), f)
				if !ok || rec.decode(plain) != nil {
					continue
				}
				w.newest = max(w.newest, rec.Boot)
				got = append(got, f)
				if err := b.Put(seqKey(f.number), w.seal.sealOnce(nil, string(bucketRecords), seqKey(f.number), plain)); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	w.lost = missing(got, first, last)
	lost, err := json.Marshal(w.lost)
	if err != nil {
		return err
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketNotes)
		for _, f := range notes {
			plain, ok := w.plain(string(bucketNotes), f)
			if !ok || line.decode(plain) != nil {
				continue
			}
			if err := b.Put(seqKey(f.number), w.seal.sealOnce(nil, string(bucketNotes), seqKey(f.number), plain)); err != nil {
				return err
			}
		}
		if err := b.Put(seqKey(noticeAt), w.seal.sealOnce(nil, string(bucketNotes), seqKey(noticeAt), notice.append(nil))); err != nil {
			return err
		}
		b, err := tx.CreateBucket(bucketLost)
		if err != nil {
			return err
		}
		return b.Put(keyRanges, w.seal.seal(string(bucketLost), keyRanges, lost))
	}); err != nil {
		return err
	}
	return db.Sync()
}

func (w *salvageWriter) plain(bucket string, f found) ([]byte, bool) {
	if f.record != nil {
		return f.record.append(nil), true
	}
	v, err := w.r.at(f.off, f.size)
	if err != nil {
		return nil, false
	}
	plain, err := w.old.openOnce(nil, bucket, seqKey(f.number), v)
	return plain, err == nil
}

const asideTime = "20060102T150405.000000000Z"

// keepAside keeps a file under quarantine, by the time of its last change; it stays in its place too unless
// move says otherwise. It returns the name under the spool's folder.
func keepAside(dir, name string, move bool) (string, error) {
	path := filepath.Join(dir, name)
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, asideName)
	if fi, err := os.Lstat(to); err == nil && !fi.IsDir() { // what stands there goes into it
		old := to + "." + fi.ModTime().UTC().Format(asideTime)
		if err := os.Rename(to, old); err != nil {
			return "", err
		}
		defer keepAside(dir, filepath.Base(old), true)
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return "", err
	}
	base := filepath.Join(asideName, name+"."+fi.ModTime().UTC().Format(asideTime))
	for n := 0; ; n++ {
		aside := base
		if n > 0 {
			aside = fmt.Sprintf("%s.%d", base, n)
		}
		if other, err := os.Lstat(filepath.Join(dir, aside)); err == nil {
			if os.SameFile(fi, other) && !move { // by an attempt that did not get further
				return aside, nil
			}
			continue
		}
		if fi.Mode().IsRegular() && !move {
			err = os.Link(path, filepath.Join(dir, aside))
		} else {
			err = os.Rename(path, filepath.Join(dir, aside))
		}
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = syncDir(to)
		}
		return aside, err
	}
}

// lostOpen counts the lost records of a segment that no settlement has covered. It needs mu.
func (s *Spool) lostOpen(seg *segment) uint64 {
	c, ok := s.state.cursors[seg.name]
	if !ok {
		c.Record = seg.first - 1
	}
	return s.lostIn(seg, c.Record, seg.last)
}

// lostIn counts the lost records after..to of a segment that were not settled ahead. It needs mu.
func (s *Spool) lostIn(seg *segment, after, to uint64) uint64 {
	if len(seg.lost) == 0 || to <= after {
		return 0
	}
	n := seg.lost.within(after+1, to)
	if a := s.state.counters; a.AheadFrom != 0 && a.AheadFrom <= a.AheadTo {
		if from, end := max(a.AheadFrom, after+1), min(a.AheadTo, to); from <= end {
			n -= seg.lost.within(from, end)
		}
	}
	return n
}

// unaccounted counts all lost records. It needs mu.
func (s *Spool) unaccounted() uint64 {
	n := s.state.counters.Unaccounted
	for _, seg := range s.segments {
		n += s.lostOpen(seg)
	}
	return n
}

// dropLost ends the exceptions whose records are lost, and counts them.
func (s *Spool) dropLost() error {
	s.settling.Lock()
	defer s.settling.Unlock()
	s.mu.Lock()
	st := settlement{counters: s.state.counters}
	for seq, x := range s.state.exceptions {
		if seg := s.segmentNamed(x.Segment); seg != nil && seg.lost.has(seq) {
			st.counters.Unaccounted++
			st.final = append(st.final, seq)
		}
	}
	n := int64(len(st.final))
	s.mu.Unlock()
	if n == 0 {
		return nil
	}
	st.applied = func() { s.unsettled -= n }
	return s.state.apply(&st)
}

// segmentNamed needs mu.
func (s *Spool) segmentNamed(name string) *segment {
	for _, seg := range s.segments {
		if seg.name == name {
			return seg
		}
	}
	return nil
}

// heal salvages one sick segment of a running spool, which takes no more records.
func (s *Spool) heal(seg *segment) error {
	if s.place.left(s.dir) {
		s.lost("and comes back with the next scan")
		return errors.New("cannot heal: the spool folder is not in its place")
	}
	s.mu.Lock()
	c := claims{last: seg.last, most: seg.last, note: max(seg.notes, s.state.cursors[seg.name].Note), detail: seg.sick}
	s.mu.Unlock()
	h, err := s.salvage(seg, c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.healings = append(s.healings, h)
	s.renew = true
	s.mu.Unlock()
	s.woken()
	return s.dropLost()
}

// ails notes that a segment's file is damaged, if err says so. Until it is healed its records wait.
func (s *Spool) ails(seg *segment, err error) bool {
	var damaged *DamageError
	if !errors.As(err, &damaged) || s.opts.ReadOnly {
		return false
	}
	s.mu.Lock()
	if seg.sick == "" {
		seg.sick = damaged.Detail
	}
	s.mu.Unlock()
	select {
	case s.ail <- struct{}{}:
	default:
	}
	return true
}

const healAgain = 10 * time.Second // after a failure: a full disk, mostly

// Tend looks after the files of the chain while the spool is used, until ctx ends: after an unclean stop it
// reads the segments that Open has not read, and it salvages what turns out to be damaged. tell is called for
// each healing, those of Open first, and failed for each that must be tried again.
func (s *Spool) Tend(ctx context.Context, tell func(Healing), failed func(error)) error {
	var again <-chan time.Time
	told := func() {
		for _, h := range s.takeHealings() {
			tell(h)
		}
	}
	defer told()
	for ctx.Err() == nil {
		told()
		worked, err := s.tendOne(ctx, again == nil)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failed(err)
			again = time.After(healAgain)
		case worked:
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.ail:
		case <-again:
			again = nil
		}
	}
	return nil
}

func (s *Spool) takeHealings() []Healing {
	s.mu.Lock()
	defer s.mu.Unlock()
	hs := s.healings
	s.healings = nil
	return hs
}

// tendOne heals or reads one segment; false if there is none.
func (s *Spool) tendOne(ctx context.Context, heals bool) (bool, error) {
	var sick, unread *segment
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false, nil
	}
	for _, seg := range slices.Backward(s.segments) {
		switch {
		case seg == s.active:
		case seg.sick != "":
			sick = seg
		case !seg.sound && s.unclean:
			unread = seg
		}
	}
	s.mu.Unlock()
	switch {
	case sick != nil && heals:
		return true, s.heal(sick)
	case unread != nil:
		return true, s.readWhole(ctx, unread)
	}
	return false, nil
}

// fileOf is a segment for a probe.
func (s *Spool) fileOf(seg *segment) probeFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	return probeFile{seg.name, seg.head}
}

// readBack reads up to n segments, the one with index i and those in front of it, with one child: to start one for each
// of the many that a series of crashes leaves would take longer than the reading. What is found sound is; all else is for
// readWhole to tell, when the segment is needed.
func (s *Spool) readBack(i, n int) {
	var segs []*segment
	var files []probeFile
	for ; i >= 0 && len(segs) < n; i-- {
		if seg := s.segments[i]; seg.sick == "" && !seg.sound {
			segs, files = append(segs, seg), append(files, s.fileOf(seg))
		}
	}
	if s.opts.Probe == nil || len(segs) < 2 {
		return
	}
	for k, err := range s.probe(context.Background(), files) {
		if err == nil {
			s.mu.Lock()
			segs[k].sound = true
			s.mu.Unlock()
		}
	}
}

// readWhole reads a segment completely before anybody else does; a damaged one is sick afterwards.
func (s *Spool) readWhole(ctx context.Context, seg *segment) error {
	err := s.probe(ctx, []probeFile{s.fileOf(seg)})[0]
	if err == nil {
		s.mu.Lock()
		seg.sound = true
		s.mu.Unlock()
		return nil
	}
	if s.ails(seg, err) || s.gone(seg) {
		return nil
	}
	return err
}
