package spool

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"scanonce/window"
)

// clearWay sets aside what is no file and stands in the place of one; the files that are looked at more closely see to
// that themselves.
func (s *Spool) clearWay() error {
	for _, name := range [...]string{markName, journalName, reserveName} {
		path := filepath.Join(s.dir, name)
		switch fi, err := os.Stat(path); {
		case err == nil && !fi.Mode().IsRegular(), leadsAstray(err), errors.Is(err, fs.ErrNotExist) && occupied(path):
			aside, err := keepAside(s.dir, name, true)
			if err != nil {
				return fmt.Errorf("cannot set aside what stands in the place of %s: %w", name, err)
			}
			s.healings = append(s.healings, Healing{File: name, Detail: "it is no file", Aside: aside})
		}
	}
	return nil
}

// homeOf is the name under which a file was made, if that is another one: its header says it, and its key proves it.
func homeOf(dir, name string, ring *KeyRing) string {
	r, err := openRaw(filepath.Join(dir, name), name)
	if err != nil {
		return ""
	}
	defer r.close()
	buckets, err := r.root()
	if err != nil {
		return ""
	}
	header, proof, err := r.headOf(buckets)
	var h fileHead
	if err != nil || json.Unmarshal(header, &h) != nil {
		return ""
	}
	home := stateName
	if h.Epoch != "" {
		home = segmentName(h.Epoch, h.First)
		if _, _, ok := parseSegmentName(home); !ok {
			return ""
		}
	}
	if seal, err := newSealer(ring, &h.Seal, h.scope(home), home); home == name || err != nil || !proven(seal, header, proof) {
		return ""
	}
	return home
}

// putBack gives files their names back, by what homeOf has found. What holds something stays in its place: then the
// other one is a copy. Between two steps each file has a name by which the next start finds it.
func (s *Spool) putBack(misplaced map[string]string) (moved bool, err error) {
	at := func(name string) string { return filepath.Join(s.dir, name) }
	taken := func(name string) bool {
		fi, err := os.Lstat(at(name))
		return err == nil && fi.Mode().IsRegular() && fi.Size() > 0
	}
	for before := -1; before != len(misplaced); {
		before = len(misplaced)
		maps.DeleteFunc(misplaced, func(_, home string) bool { _, leaves := misplaced[home]; return taken(home) && !leaves })
	}
	between := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(misplaced)) {
		var salt [4]byte
		rand.Read(salt[:])
		between[name] = "moved-" + hex.EncodeToString(salt[:]) + segmentExt
		if err := os.Rename(at(name), at(between[name])); err != nil {
			return false, fmt.Errorf("cannot give %s its name back: %w", misplaced[name], err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(between)) {
		home := misplaced[name]
		if taken(home) { // by another copy
			continue
		}
		if occupied(at(home)) {
			if _, err := keepAside(s.dir, home, true); err != nil {
				return false, fmt.Errorf("cannot set %s aside: %w", home, err)
			}
		}
		if err := os.Rename(at(between[name]), at(home)); err != nil {
			return false, fmt.Errorf("cannot give %s its name back: %w", home, err)
		}
		moved = true
		s.healings = append(s.healings, Healing{File: home, Detail: "it stood under the name " + name + " and is in its place again"})
	}
	if !moved {
		return false, nil
	}
	return true, syncDir(s.dir)
}

// takeIn looks at the segments that the sidecar does not name. After a crash there may be one that holds nothing yet,
// and those that were settled and to be unlinked. Any other says that the sidecar is older than the files beside
// it, as after a backup was unpacked over them: nothing accepted is lost, so that it comes into the chain again.
// Where its numbers are taken, it is set aside and counted.
func (s *Spool) takeIn(harm *harm) error {
	loose, known := s.loose, s.next
	s.loose = nil
	slices.SortFunc(loose, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(createdOf(a), createdOf(b)), cmp.Compare(a.name, b.name))
	})
	segments, records := 0, int64(0)
	theirs := uint64(0) // behind the last record of the segment of which the mark is, if that is set aside
	c := s.state.counters
	s.recountOpen()
	free := int64(known-1-c.Base) - int64(c.final()+s.unaccounted()) - s.unsettled // numbers that nothing explains
	for _, seg := range loose {
		if seg.first != 0 && seg.sick != "" {
			s.searchLoose(seg)
		}
		empty := seg.count() == 0 && seg.notes == 0
		switch {
		case seg.first == 0 || seg.head != nil && seg.head.Agent != s.opts.Agent:
			if seg.head != nil {
				seg.sick = (&AgentError{seg.head.Agent, s.opts.Agent}).Error()
			}
			if err := s.reject(seg, seg.sick, 0); err != nil {
				return err
			}
		case empty && (seg.sick == "" || seg.first < known || harm.next.epoch != string(epochHash(epochOf(seg))) || harm.next.value <= seg.first),
			seg.first < known && s.settledAll(seg):
			s.strays = append(s.strays, seg.name)
		case seg.last < known && free <= 0 && !s.taken(seg): // nothing that the sidecar knew of is missing
			if err := s.reject(seg, fmt.Sprintf("its records, %d to %d, count as settled", seg.first, seg.last), 0); err != nil {
				return err
			}
		case !s.taken(seg):
			s.insert(seg)
			harm.stale = harm.stale || seg.first >= known
			segments++
			records += s.openIn(seg)
		case s.settledAll(seg):
			s.strays = append(s.strays, seg.name)
		default:
			if harm.next.epoch == string(epochHash(epochOf(seg))) && harm.next.value > seg.first {
				theirs = max(theirs, seg.last+1)
			}
			why := fmt.Sprintf("the numbers of its records, %d to %d, are those of others too", seg.first, seg.last)
			if err := s.reject(seg, why, s.openIn(seg)); err != nil {
				return err
			}
		}
	}
	if segments > 0 && !s.opts.ReadOnly {
		s.healings = append(s.healings, Healing{File: sidecarName, Records: records,
			Detail: fmt.Sprintf("it does not name %d segments beside it, with %d scans that are still to be sent: they are taken in again", segments, records)})
	}
	if theirs > 0 {
		if harm.next.value > theirs {
			harm.beyond = max(harm.beyond, harm.next.value)
		}
		harm.next = mark{}
	}
	if !harm.stale {
		return nil
	}
	if !harm.rolledBack { // what state.db knows nothing of any more was settled, or balance counts it
		s.segments = slices.DeleteFunc(s.segments, func(g *segment) bool {
			_, begun := s.state.cursors[g.name]
			return !begun && g.sick != "" && !occupied(g.path) && g != s.segments[len(s.segments)-1]
		})
	}
	return nil
}

func createdOf(seg *segment) window.UTC {
	if seg.head == nil {
		return 0
	}
	return seg.head.Created
}

func epochOf(seg *segment) string {
	epoch, _, _ := parseSegmentName(seg.name)
	return epoch
}

// searchLoose finds out how far the records of a damaged segment go.
func (s *Spool) searchLoose(seg *segment) {
	r, err := openRaw(seg.path, seg.name)
	if err != nil {
		return
	}
	defer r.close()
	head, seal, err := r.sealerFor(s.opts.Keys, nil)
	if err != nil || seal == nil {
		return
	}
	records, notes, _ := r.search(seal)
	seg.head = head
	if n := len(records); n > 0 {
		seg.last = max(seg.last, records[n-1].number)
	}
	if n := len(notes); n > 0 {
		seg.notes = max(seg.notes, notes[n-1].number)
	}
}

// settledAll says that state.db knows all of a segment to be settled.
func (s *Spool) settledAll(seg *segment) bool {
	if _, begun := s.state.cursors[seg.name]; !begun || !s.finished(seg) {
		return false
	}
	for _, x := range s.state.exceptions {
		if x.Segment == seg.name {
			return false
		}
	}
	return true
}

// reject sets a segment aside that cannot be taken in, and counts what it holds.
func (s *Spool) reject(seg *segment, why string, open int64) error {
	if s.opts.ReadOnly {
		return nil
	}
	aside, err := keepAside(s.dir, seg.name, true)
	if IsNoSpace(err) {
		return nil // it stays where it is, for the next start
	} else if err != nil {
		return fmt.Errorf("cannot set %s aside: %w", seg.name, err)
	}
	s.healings = append(s.healings, Healing{File: seg.name, Detail: why, Aside: aside, Unaccounted: open, Apart: open == 0})
	if open == 0 {
		return nil
	}
	c := s.state.counters
	c.Unaccounted += uint64(open)
	return s.state.apply(&settlement{counters: c, lines: []Line{s.notice(int(open))}})
}

// taken says that records of the chain have the numbers of a segment's. One of the sidecar that took records when that
// was written ends where a younger one begins.
func (s *Spool) taken(seg *segment) bool {
	return slices.ContainsFunc(s.segments, func(g *segment) bool {
		end := max(g.last, g.until)
		if !occupied(g.path) {
			return false
		}
		if g.sick != "" {
			end = max(end, g.first)
		}
		grew := g.until == 0 && g.first < seg.first && createdOf(g) <= createdOf(seg)
		return g.first <= max(seg.last, seg.first) && seg.first <= end && !grew
	})
}

// insert puts a segment into the chain, by its numbers.
func (s *Spool) insert(seg *segment) {
	s.segments = slices.DeleteFunc(s.segments, func(g *segment) bool {
		idle, missing := g.sick == "" && g.count() == 0 && g.notes == 0, !occupied(g.path)
		if g.first > max(seg.last, seg.first) || !idle && !(missing && max(g.first, g.until) >= seg.first) {
			return false
		}
		if !missing {
			s.pruned = append(s.pruned, g)
		}
		return true
	})
	i, _ := slices.BinarySearchFunc(s.segments, seg.first+1, func(g *segment, first uint64) int { return cmp.Compare(g.first, first) })
	if i > 0 {
		if g := s.segments[i-1]; g.sick == "" {
			if g.until == 0 { // what lies between is in no file: balance finds out whether it was settled
				g.until = min(max(g.last, s.state.cursors[g.name].Record), seg.first-1)
			}
			g.last = min(g.last, g.bound(seg))
		}
	}
	if i < len(s.segments) {
		seg.last = min(seg.last, s.segments[i].first-1)
		seg.until = seg.last
	} else {
		s.side.Next = 0
	}
	s.segments = slices.Insert(s.segments, i, seg)
	s.next = max(s.next, seg.last+1, seg.first)
}

// missed accounts for the records of files that are gone so that only the marks tell of them.
func (s *Spool) missed(harm *harm) error {
	if s.opts.ReadOnly {
		return nil
	}
	c := s.state.counters
	oldest, base, lost := s.next, c.Base, uint64(0)
	if len(s.segments) > 0 {
		oldest = s.segments[0].first
	}
	if s.state.made && len(s.segments) > 0 && oldest > 1 { // the one that knew of those before it is lost
		base = oldest - 1
		if harm.gone != 0 && harm.gone < oldest {
			base, lost = harm.gone-1, oldest-harm.gone
		}
	}
	if n := harm.beyond; n > s.next {
		h := Healing{File: "the spool", Detail: fmt.Sprintf("its files are older than its mark: scans number %d to %d are in none of them", s.next, n-1)}
		switch {
		case !harm.rolledBack: // balance knows how many of them were settled
		case s.state.made && harm.gone != 0 && len(s.segments) == 0:
			from := min(max(harm.gone, s.next), n)
			base, lost = base+from-s.next, lost+n-from
		default:
			base += n - s.next
			h.Doubtful = int64(n - s.next)
		}
		s.next = n
		s.healings = append(s.healings, h)
	}
	if base == c.Base && lost == 0 {
		return nil
	}
	c.Base, c.Unaccounted = base, c.Unaccounted+lost
	st := settlement{counters: c}
	if lost > 0 {
		s.healings = append(s.healings, Healing{File: "a segment", Detail: "it is missing, and nothing names it", Unaccounted: int64(lost)})
		st.lines = []Line{s.notice(int(lost))}
	}
	return s.state.apply(&st)
}
