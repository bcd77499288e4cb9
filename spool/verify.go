package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"scanonce/window"
)

// Report says how much of a spool can be read.
type Report struct {
	Records     int64 // that should be there
	Readable    int64 // of them, those that their key authenticates
	Unaccounted int64 // accepted, never settled, and lost: those counted before, and those found missing now
	Segments    int
	Damaged     []*DamageError // files that are not as they should be
}

func (r *Report) damaged(err error) bool {
	var d *DamageError
	if errors.As(err, &d) {
		r.Damaged = append(r.Damaged, d)
	}
	return d != nil
}

// Verify reads everything while the spool is used. Damaged segments are healed afterwards, if Tend runs.
func (s *Spool) Verify(ctx context.Context) (r Report, err error) {
	s.mu.Lock()
	chain := slices.Clone(s.segments)
	active := s.active
	r.Unaccounted = int64(s.unaccounted())
	s.mu.Unlock()
	r.Segments = len(chain)
	for _, seg := range chain {
		s.mu.Lock()
		want := int64(seg.count() - seg.lost.within(seg.first, seg.last))
		last := seg.last
		s.mu.Unlock()
		if seg == active {
			err = s.readThrough(ctx, seg, last)
		} else {
			err = s.probe(ctx, []probeFile{s.fileOf(seg)})[0]
		}
		if err != nil && s.gone(seg) {
			r.Segments--
			continue
		}
		r.Records += want
		if err == nil {
			r.Readable += want
			continue
		}
		if !r.damaged(err) {
			return r, err
		}
		found := min(want, readable(seg.path, seg.name, s.opts.Keys, seg.head))
		r.Readable += found
		r.Unaccounted += want - found
		s.ails(seg, err)
	}
	err = s.state.view(s.state.authenticate)
	if err != nil && !r.damaged(err) {
		return r, err
	}
	if err := s.journal.verify(); err != nil && !r.damaged(err) {
		return r, err
	}
	return r, nil
}

func (s *Spool) readThrough(ctx context.Context, seg *segment, last uint64) error {
	for from := seg.first; from <= last; from += sinceRecords {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := seg.read(from, min(last, from+sinceRecords-1), sinceRecords); err != nil {
			return err
		}
	}
	return nil
}

func (st *state) authenticate(tx *bolt.Tx) error {
	return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
		if string(name) == string(bucketHead) {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			if _, err := st.seal.open(string(name), k, v); err != nil {
				return &DamageError{stateName, err.Error()}
			}
			return nil
		})
	})
}

// readable counts the records of a damaged segment that could be saved.
func readable(path, name string, ring *KeyRing, kept *fileHead) int64 {
	f, err := openRaw(path, name)
	if err != nil {
		return 0
	}
	defer f.close()
	_, seal, err := f.sealerFor(ring, kept)
	if err != nil || seal == nil {
		return 0
	}
	records, _, _ := f.search(seal)
	return int64(len(records))
}

// Folder is the spool folder that path means: itself, or the one within a state folder; or path is one segment
// file, also one that was set aside.
func Folder(path string) (dir string, files []string, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", nil, fmt.Errorf("cannot find a spool: %w", err)
	}
	if !fi.IsDir() {
		return filepath.Dir(path), []string{filepath.Base(path)}, nil
	}
	if sub := filepath.Join(path, "spool"); isDir(sub) {
		path = sub
	}
	if files, err = spoolFiles(path); err == nil && len(files) == 0 {
		err = fmt.Errorf("cannot find a spool in %s", path)
	}
	return path, files, err
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// properName is the name under which a file was written: one that was set aside has a time behind it.
func properName(file string) string {
	for _, end := range [...]string{segmentExt, stateName, sidecarName, journalName} {
		if name, _, found := strings.Cut(file, end+"."); found {
			return name + end
		}
	}
	return file
}

// VerifyFolder reads the spool at path, which nobody uses, and changes nothing; see Folder.
func VerifyFolder(path string, ring *KeyRing) (r Report, err error) {
	dir, files, err := Folder(path)
	if err != nil {
		return r, err
	}
	whole := isDir(path)
	var side sidecar
	found := false
	if whole {
		if side, found, err = readSidecar(dir); err != nil && !r.damaged(err) {
			return r, err
		}
	}
	kept, until := map[string]*fileHead{}, map[string]uint64{}
	order := []string{}
	for _, e := range side.Segments {
		kept[e.Name], until[e.Name] = e.Head, e.Last
		order = append(order, e.Name)
	}
	if !found {
		for _, f := range files {
			if _, _, ok := parseSegmentName(properName(f)); ok {
				order = append(order, f)
			}
		}
		slices.SortFunc(order, func(a, b string) int { return strings.Compare(firstOf(a), firstOf(b)) })
	}
	var known *Spool
	if side.HasState || slices.Contains(files, stateName) {
		_, err := inspect(dir, stateName, ring, side.State)
		if err != nil && !r.damaged(err) {
			return r, err
		}
		if err == nil {
			if known, err = stateAt(dir, ring); err != nil {
				return r, err
			}
			r.Unaccounted += int64(known.state.counters.Unaccounted)
		}
	}
	if whole && slices.Contains(files, journalName) {
		j := newJournal(&Spool{dir: dir, opts: Options{Agent: agentOf(dir, files), Keys: ring}})
		if err := j.damage(0); err != nil && !r.damaged(err) {
			return r, err
		}
	}
	if found {
		if err := r.unnamed(dir, files, order, ring, known); err != nil {
			return r, err
		}
	}
	for i, file := range order {
		name := properName(file)
		_, first, _ := parseSegmentName(name)
		r.Segments++
		x, seg, err := inspectAs(dir, file, name, ring, kept[name])
		next := uint64(0) // where the records of the next one begin
		if last := until[name]; last != 0 {
			next = last + 1
		} else if i+1 < len(order) {
			_, next, _ = parseSegmentName(properName(order[i+1]))
		} else if side.Next > first {
			next = side.Next
		}
		if err == nil && !found && known != nil && seg.count() > 0 && known.storedCursor(seg).Record == seg.last {
			next = seg.last + 1 // what is between them may be settled and gone
		}
		if err == nil {
			n := int64(x.Records)
			if next != 0 {
				n = int64(next - first - seg.lost.within(first, next-1))
			}
			r.Records += n
			r.Readable += min(n, int64(x.Records))
			if known != nil {
				r.Unaccounted += int64(known.lostOpen(seg)) // no settlement has taken it over yet
			}
			if n > int64(x.Records) {
				err = &DamageError{file, fmt.Sprintf("%d records are missing at its end", n-int64(x.Records))}
				r.Unaccounted += n - int64(x.Records)
			}
		} else {
			n := readable(filepath.Join(dir, file), name, ring, kept[name])
			want := n
			if next != 0 {
				want = int64(next - first)
			}
			r.Records += want
			r.Readable += min(n, want)
			r.Unaccounted += want - min(n, want)
		}
		if err != nil && !r.damaged(err) {
			return r, err
		}
	}
	return r, nil
}

// unnamed tells of segments that the sidecar does not name and that hold what state.db does not know to be settled.
func (r *Report) unnamed(dir string, files, order []string, ring *KeyRing, known *Spool) error {
	for _, file := range files {
		if filepath.Ext(file) != segmentExt || slices.Contains(order, file) {
			continue
		}
		n, err := int64(0), error(nil)
		if seg, oerr := openSegment(dir, file, ring, nil); oerr == nil {
			if known != nil && known.settledAll(seg) {
				continue
			}
			n = int64(seg.count() - seg.lost.within(seg.first, seg.last))
		} else if n = readable(filepath.Join(dir, file), file, ring, nil); n == 0 {
			if home := homeOf(dir, file, ring); home != "" {
				err = &DamageError{file, "it is " + home + " under another name"}
			} else if !errors.As(oerr, new(*DamageError)) {
				err = &DamageError{file, oerr.Error()}
			}
		}
		if n > 0 {
			err = &DamageError{file, fmt.Sprintf("the sidecar does not name it, and it holds %d records", n)}
			r.Segments, r.Records, r.Readable = r.Segments+1, r.Records+n, r.Readable+n
		}
		r.damaged(err)
	}
	return nil
}

// firstOf makes names sortable by the number at which their segments begin.
func firstOf(file string) string {
	_, rest, _ := strings.Cut(file, "-")
	return rest + file
}

// inspectAs is inspect for a segment file under another name.
func inspectAs(dir, file, name string, ring *KeyRing, kept *fileHead) (extent, *segment, error) {
	if file != name {
		tmp, err := os.MkdirTemp("", "scanonce-verify-")
		if err != nil {
			return extent{}, nil, err
		}
		defer os.RemoveAll(tmp)
		if err := copyFile(filepath.Join(tmp, name), filepath.Join(dir, file)); err != nil {
			return extent{}, nil, err
		}
		dir = tmp
	}
	x, err := inspect(dir, name, ring, kept)
	if err != nil {
		return x, nil, err
	}
	seg, err := openSegment(dir, name, ring, kept)
	return x, seg, err
}

// stateAt reads counters and cursors of a healthy state.db, as far as counting what is lost needs them.
func stateAt(dir string, ring *KeyRing) (*Spool, error) {
	r, err := openRaw(filepath.Join(dir, stateName), stateName)
	if err != nil {
		return nil, err
	}
	defer r.close()
	st := &state{cursors: map[string]cursor{}, exceptions: map[uint64]Exception{}}
	buckets, err := r.root()
	if err != nil {
		return nil, err
	}
	header, proof, err := r.headOf(buckets)
	if err == nil {
		st.head, st.seal, err = unlock(ring, stateName, header, proof, nil)
	}
	read := func(bucket []byte, take func(k, plain []byte) error) {
		w := walk{r: r, leaf: func(_ uint32, k, v []byte) error {
			plain, err := st.seal.open(string(bucket), k, v)
			if err == nil {
				err = take(k, plain)
			}
			return err
		}}
		if t, ok := buckets[string(bucket)]; ok && err == nil {
			err = w.run(t)
		}
	}
	read(bucketCursors, func(k, plain []byte) error {
		var c cursor
		err := json.Unmarshal(plain, &c)
		st.cursors[string(k)] = c
		return err
	})
	read(bucketMeta, func(k, plain []byte) error {
		if string(k) != string(keyCounters) {
			return nil
		}
		return json.Unmarshal(plain, &st.counters)
	})
	return &Spool{state: st}, err
}

// Salvage makes a new spool folder into from the spool at path, which nobody uses and which is not changed: what
// is whole is copied, and what can be saved of the rest. path may also be one segment file; see Folder. Of o the
// keys and clocks are used.
func Salvage(ctx context.Context, path, into string, o Options, host window.OS) (r Report, err error) {
	dir, files, err := Folder(path)
	if err != nil {
		return r, err
	}
	if entries, err := os.ReadDir(into); err == nil && len(entries) > 0 {
		return r, fmt.Errorf("cannot salvage into %s: it is not empty", into)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("cannot salvage into %s: %w", into, err)
	}
	if err := os.MkdirAll(into, 0o700); err != nil {
		return r, fmt.Errorf("cannot make %s: %w", into, err)
	}
	if isDir(path) {
		files = append(files, markName)
	}
	for _, f := range files {
		if err := copyFile(filepath.Join(into, properName(f)), filepath.Join(dir, f)); err != nil && !(f == markName && errors.Is(err, fs.ErrNotExist)) {
			return r, fmt.Errorf("cannot copy %s: %w", f, err)
		}
	}
	o.Agent = agentOf(into, files)
	s, err := Open(into, o)
	if err != nil {
		return r, err
	}
	defer s.closeFiles()
	for {
		if more, err := s.tendOne(ctx, true); err != nil {
			return r, err
		} else if !more {
			break
		}
	}
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	for _, h := range s.takeHealings() {
		if h.Older || h.File == stateName && !isDir(path) {
			continue // of a backup; and one segment file never had it
		}
		r.Damaged = append(r.Damaged, &DamageError{h.File, h.Detail})
	}
	r.Segments, r.Unaccounted = len(s.segments), int64(s.unaccounted())
	for _, seg := range s.segments {
		r.Records += int64(seg.count())
		r.Readable += int64(seg.count() - seg.lost.within(seg.first, seg.last))
	}
	mark, high := s.Mark()
	if err := s.Begin(window.NewClock(host, mark, window.ClockOptions{HighWater: high})); err != nil {
		return r, err
	}
	return r, s.Close(false) // whoever takes it up reads it once more
}

// Owner is the agent to which the spool in dir says to belong; "" if there is no spool, or nothing in it can be read.
// Only opening it proves that.
func Owner(dir string) string {
	files, err := spoolFiles(dir)
	if err != nil {
		return ""
	}
	return agentOf(dir, files)
}

// agentOf finds whose spool it is, from what is in clear.
func agentOf(dir string, files []string) string {
	if side, _, err := readSidecar(dir); err == nil && side.Agent != "" {
		return side.Agent
	}
	for _, f := range files {
		r, err := openRaw(filepath.Join(dir, properName(f)), properName(f))
		if err != nil {
			continue
		}
		buckets, err := r.root()
		var head fileHead
		if err == nil {
			if header, _, err := r.headOf(buckets); err == nil && json.Unmarshal(header, &head) != nil {
				head.Agent = ""
			}
		}
		r.close()
		if head.Agent != "" {
			return head.Agent
		}
	}
	return ""
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
