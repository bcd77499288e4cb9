package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/window"
)

var (
	bucketCursors    = []byte("cursors")
	bucketExceptions = []byte("exceptions")
	bucketLines      = []byte("lines")
	bucketMeta       = []byte("meta")
	bucketChain      = []byte("chain")
	bucketAnswers    = []byte("answers")
	bucketBatches    = []byte("batches")
	keyCounters      = []byte("counters")
	keySettled       = []byte("settled")
)

// State is what has become of a captured record.
type State uint8

// The states. Pending, Deferred and Waiting records still move; Quarantined and Held ones wait for a person.
const (
	Pending     State = iota // not tried yet
	Committed                // its row stands in the ledger
	Suppressed               // another event's row stands for it
	Deferred                 // a claim refused it, but no row stands yet
	Waiting                  // a duplicate whose winner is not final
	Quarantined              // the ledger can never take it
	Held                     // a person must confirm it
	Discarded                // a person has given it up; who, says Detail
	Unaccounted              // what it repeats is lost, and no row stands
)

var stateNames = [...]string{"pending", "committed", "suppressed", "deferred", "duplicate", "quarantined", "held", "discarded", "unaccounted"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

func (s State) final() bool {
	return s == Committed || s == Suppressed || s == Discarded || s == Unaccounted
}

// Stands says that a row of the record's keys was seen in the ledger.
func (s State) Stands() bool { return s == Committed || s == Suppressed }

// Exception points to a record that the cursor has passed and that is not final.
type Exception struct {
	Seq      uint64
	Segment  string
	State    State
	Attempts int
	Detail   string // the last error, without payload
}

// cursor is the progress in one segment: everything up to Record and Note is settled, or an exception.
type cursor struct {
	Record uint64 `json:"record"`
	Note   uint64 `json:"note"`
}

// counters are durable totals. They change in the same transaction as the verdicts that they count.
type counters struct {
	Committed   uint64     `json:"committed"`
	Suppressed  uint64     `json:"suppressed"`
	Discarded   uint64     `json:"discarded,omitempty"`
	Unaccounted uint64     `json:"unaccounted"`
	Base        uint64     `json:"base"` // sequence numbers that no count covers: state.db was lost behind them
	High        window.UTC `json:"high"` // highest t settled
	// Records AheadFrom..AheadTo were settled before older ones: live scans go before a backlog.
	AheadFrom uint64 `json:"ahead_from,omitempty"`
	AheadTo   uint64 `json:"ahead_to,omitempty"`
	// The last record of the audit chain.
	ChainEpoch string `json:"chain_epoch,omitempty"`
	ChainSeq   uint64 `json:"chain_seq,omitempty"`
	ChainHash  []byte `json:"chain_hash,omitempty"`
	ChainLost  uint64 `json:"chain_lost,omitempty"` // of Unaccounted, what its epochs have told of
	NextLine   uint64 `json:"next_line,omitempty"`  // lines are never numbered twice: the chain counts on it
}

// final counts the records that are, but for those that are lost.
func (c *counters) final() uint64 { return c.Committed + c.Suppressed + c.Discarded }

// Verdict is what was decided of one record.
type Verdict struct {
	Seq         uint64
	State       State
	Key         idem.Key     // of the row that stands; zero if none does
	Winner      idem.EventID // the row's event, if it is not the record's own
	Reason      string
	Detail      string
	CommittedAt window.UTC
}

// state is state.db: one small bbolt file, changed in one transaction for each settled batch.
type state struct {
	path string
	db   *bolt.DB
	head *fileHead
	seal *sealer
	made bool // by this process
	// commit runs a transaction.
	commit func(do func() error) error
	failed bool // the last transaction has, and may be in the file all the same
	// broken is the damage at which a use of the file broke off, nil if none has.
	broken atomic.Pointer[DamageError]
	// answers has a lock of its own.
	answers *answers

	mu         *sync.Mutex // guards what follows
	cursors    map[string]cursor
	exceptions map[uint64]Exception
	discarded  map[uint64]Exception // whose duplicates may still come; kept in the same bucket
	batches    map[idem.EventID]*StoredBatch
	counters   counters
	settled    uint64 // number of the last settlement
	last       []Verdict
	firstLine  uint64 // first line not forwarded
	nextLine   uint64
	delivered  uint64 // lines below it are forwarded and not yet deleted
	chain      queue
}

// openState opens state.db, which has been read completely, or makes it.
func openState(dir string, ring *KeyRing, agent string, mu *sync.Mutex, make, readOnly bool) (*state, error) {
	st := &state{mu: mu, path: filepath.Join(dir, stateName), made: make, cursors: map[string]cursor{}, exceptions: map[uint64]Exception{},
		discarded: map[uint64]Exception{}, batches: map[idem.EventID]*StoredBatch{}, answers: newAnswers()}
	err := guarded(stateName, func() error { return st.open(ring, agent, make, readOnly) })
	var wrong *WrongKeyError
	switch {
	case err == nil:
		return st, nil
	case st.db != nil:
		st.db.Close()
	}
	if errors.As(err, &wrong) {
		return nil, err
	}
	return nil, fmt.Errorf("cannot open %s: %w", stateName, err)
}

func (st *state) open(ring *KeyRing, agent string, make, readOnly bool) (err error) {
	if st.db, err = bolt.Open(st.path, 0o600, boltOptions(readOnly)); err != nil {
		return err
	}
	if make {
		err = st.make(ring, agent)
	} else {
		err = st.db.View(func(tx *bolt.Tx) error {
			h := tx.Bucket(bucketHead)
			if h == nil {
				return &DamageError{stateName, "it has no header"}
			}
			st.head, st.seal, err = unlock(ring, stateName, h.Get(keyHeader), h.Get(keyProof), nil)
			return err
		})
	}
	if err == nil {
		err = st.db.View(st.load)
	}
	if err == nil && st.head.Seal.KeyID != ring.current && !readOnly {
		err = st.reseal(ring)
	}
	return err
}

// reseal seals everything with the current key, so that an older one is not needed for ever.
func (st *state) reseal(ring *KeyRing) error {
	head, seal, err := newHead(ring, *st.head, stateName)
	if err != nil {
		return err
	}
	err = st.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketCursors, bucketExceptions, bucketLines, bucketMeta, bucketChain, bucketAnswers, bucketBatches} {
			bucket := tx.Bucket(name)
			if bucket == nil {
				continue
			}
			var keys, values [][]byte
			if err := bucket.ForEach(func(k, v []byte) error {
				plain, err := st.seal.open(string(name), k, v)
				keys = append(keys, bytes.Clone(k))
				values = append(values, seal.seal(string(name), k, plain))
				return err
			}); err != nil {
				return err
			}
			for i, k := range keys {
				if err := bucket.Put(k, values[i]); err != nil {
					return err
				}
			}
		}
		return head.put(tx, seal)
	})
	if err == nil {
		st.head, st.seal = head, seal
	}
	return err
}

func (st *state) make(ring *KeyRing, agent string) (err error) {
	if st.head, st.seal, err = newHead(ring, fileHead{Agent: agent}, stateName); err != nil {
		return err
	}
	return st.db.Update(func(tx *bolt.Tx) error {
		for _, n := range [][]byte{bucketCursors, bucketExceptions, bucketLines, bucketMeta, bucketChain, bucketAnswers, bucketBatches} {
			if _, err := tx.CreateBucket(n); err != nil {
				return err
			}
		}
		return st.head.put(tx, st.seal)
	})
}

func (st *state) load(tx *bolt.Tx) error {
	each := func(bucket []byte, f func(k, plain []byte) error) error {
		b := tx.Bucket(bucket)
		if b == nil && (string(bucket) == string(bucketAnswers) || string(bucket) == string(bucketBatches)) {
			return nil // a file of an earlier build has none
		}
		if b == nil {
			return fmt.Errorf("bucket %s is missing", bucket)
		}
		return b.ForEach(func(k, v []byte) error {
			plain, err := st.seal.open(string(bucket), k, v)
			if err != nil {
				return fmt.Errorf("bucket %s: %w", bucket, err)
			}
			return f(k, plain)
		})
	}
	if err := each(bucketCursors, func(k, p []byte) error {
		var c cursor
		err := json.Unmarshal(p, &c)
		st.cursors[string(k)] = c
		return err
	}); err != nil {
		return err
	}
	if err := each(bucketExceptions, func(k, p []byte) error {
		var x Exception
		err := json.Unmarshal(p, &x)
		st.except(x)
		return err
	}); err != nil {
		return err
	}
	if err := each(bucketMeta, func(k, p []byte) error {
		switch string(k) {
		case string(keyCounters):
			return json.Unmarshal(p, &st.counters)
		case string(keySettled):
			var err error
			st.settled, st.last, err = decodeSettled(p)
			return err
		}
		return nil
	}); err != nil {
		return err
	}
	if err := each(bucketAnswers, st.answers.loadAnswer); err != nil {
		return err
	}
	if err := each(bucketBatches, st.loadBatch); err != nil {
		return err
	}
	st.answers.sort()
	lines := queueOf(tx.Bucket(bucketLines))
	if lines.first == lines.next {
		lines.first, lines.next = max(1, st.counters.NextLine), max(1, st.counters.NextLine)
	}
	st.firstLine, st.nextLine, st.delivered = lines.first, lines.next, lines.first
	st.chain = queueOf(tx.Bucket(bucketChain))
	return nil
}

// appendSettled encodes the last settlement: what was decided of each record, in few bytes, since it is
// written with every batch. The key of a committed record is the record's own.
func appendSettled(b []byte, number uint64, verdicts []Verdict) []byte {
	e := encoder{append(b, codecVersion)}
	e.uint(number)
	e.uint(uint64(len(verdicts)))
	for i := range verdicts {
		v := &verdicts[i]
		e.uint(v.Seq)
		e.b = append(e.b, byte(v.State))
		e.int(int64(v.CommittedAt))
		if v.State == Suppressed {
			e.key(v.Key)
			e.event(v.Winner)
			e.text(v.Reason)
		}
	}
	return e.b
}

func decodeSettled(b []byte) (number uint64, verdicts []Verdict, err error) {
	d := decoder{b: b}
	if v := d.take(1); v == nil || v[0] != codecVersion {
		return 0, nil, errCodec
	}
	number = d.uint()
	for n := d.uint(); n > 0 && !d.bad; n-- {
		v := Verdict{Seq: d.uint()}
		if t := d.take(1); t != nil {
			v.State = State(t[0])
		}
		v.CommittedAt = window.UTC(d.int())
		if v.State == Suppressed {
			v.Key, v.Winner, v.Reason = d.key(), d.event(), d.text()
		}
		verdicts = append(verdicts, v)
	}
	return number, verdicts, d.end()
}

// except files an exception.
func (st *state) except(x Exception) {
	if x.State == Discarded {
		delete(st.exceptions, x.Seq)
		st.discarded[x.Seq] = x
		return
	}
	st.exceptions[x.Seq] = x
}

// settlement is one change of the state.
type settlement struct {
	cursors    map[string]cursor // by segment
	exceptions []Exception       // new or changed
	final      []uint64          // exceptions that are over, and discarded records of which nothing more comes
	verdicts   []Verdict         // the final ones, for those who must be told
	lines      []Line
	chain      *ChainRecord // or nil
	counters   counters
	numbered   bool     // the number of the last settlement is not in the file yet
	forget     []string // segments that are gone
	outdated   [][16]byte
	answers    []keyed
	batches    []*StoredBatch // new or changed
	unlisted   []idem.EventID // batches that nothing needs any more
	applied    func()         // what else changes in memory with it; called with the lock held, or nil
}

// undo brings the file to what is in memory. A transaction whose sync failed behind its last write is in the file
// for whoever reads it next, bbolt included, and its verdicts need not be those of the next try.
func (st *state) undo(tx *bolt.Tx, put func(bucket, k []byte, v any) error) error {
	st.mu.Lock()
	cursors, exceptions, batches := maps.Clone(st.cursors), maps.Clone(st.exceptions), maps.Clone(st.batches)
	maps.Copy(exceptions, st.discarded)
	st.mu.Unlock()
	drop := func(bucket []byte, gone func(k []byte) bool) error {
		b := tx.Bucket(bucket)
		if b == nil { // of a file of before the chain
			return nil
		}
		var keys [][]byte
		c := b.Cursor()
		for k, _ := c.First(); k != nil; k, _ = c.Next() {
			keys = append(keys, bytes.Clone(k))
		}
		for _, k := range keys {
			if gone(k) {
				if err := b.Delete(k); err != nil {
					return err
				}
			}
		}
		return nil
	}
	from := func(next uint64) func([]byte) bool {
		return func(k []byte) bool { return binary.BigEndian.Uint64(k) >= next }
	}
	if err := errors.Join(drop(bucketCursors, func([]byte) bool { return true }), drop(bucketExceptions, func([]byte) bool { return true }),
		drop(bucketLines, from(st.nextLine)), drop(bucketChain, from(st.chain.next)),
		drop(bucketBatches, func([]byte) bool { return true })); err != nil {
		return err
	}
	for id, b := range batches {
		if _, err := tx.CreateBucketIfNotExists(bucketBatches); err != nil {
			return err
		}
		if err := put(bucketBatches, id[:], b); err != nil {
			return err
		}
	}
	for name, c := range cursors {
		if err := put(bucketCursors, []byte(name), c); err != nil {
			return err
		}
	}
	for seq, x := range exceptions {
		if err := put(bucketExceptions, seqKey(seq), x); err != nil {
			return err
		}
	}
	if st.settled == 0 {
		return tx.Bucket(bucketMeta).Delete(keySettled)
	}
	return tx.Bucket(bucketMeta).Put(keySettled, st.seal.seal(string(bucketMeta), keySettled, appendSettled(nil, st.settled, st.last)))
}

func (st *state) apply(s *settlement) error {
	number := st.settled
	if len(s.verdicts) > 0 {
		number++
	}
	next := st.nextLine
	update := func(tx *bolt.Tx) error {
		raw := func(bucket, k, p []byte) error {
			return tx.Bucket(bucket).Put(k, st.seal.seal(string(bucket), k, p))
		}
		put := func(bucket, k []byte, v any) error {
			p, err := json.Marshal(v)
			if err != nil {
				return err
			}
			return raw(bucket, k, p)
		}
		if st.failed {
			if err := st.undo(tx, put); err != nil {
				return err
			}
		}
		for name, c := range s.cursors {
			if err := put(bucketCursors, []byte(name), c); err != nil {
				return err
			}
		}
		for _, name := range s.forget {
			if err := tx.Bucket(bucketCursors).Delete([]byte(name)); err != nil {
				return err
			}
		}
		for _, x := range s.exceptions {
			if err := put(bucketExceptions, seqKey(x.Seq), x); err != nil {
				return err
			}
		}
		for _, seq := range s.final {
			if err := tx.Bucket(bucketExceptions).Delete(seqKey(seq)); err != nil {
				return err
			}
		}
		lines := tx.Bucket(bucketLines)
		for seq := st.firstLine; seq < st.delivered; seq++ {
			if err := lines.Delete(seqKey(seq)); err != nil {
				return err
			}
		}
		lines.FillPercent = 0.95
		for i := range s.lines {
			k := seqKey(next)
			if err := raw(bucketLines, k, s.lines[i].append(nil)); err != nil {
				return err
			}
			next++
		}
		records, err := tx.CreateBucketIfNotExists(bucketChain) // a file of before the chain has none
		if err != nil {
			return err
		}
		for seq := st.chain.first; seq < st.chain.delivered; seq++ {
			if err := records.Delete(seqKey(seq)); err != nil {
				return err
			}
		}
		if s.chain != nil {
			if err := raw(bucketChain, seqKey(st.chain.next), s.chain.append(nil, next)); err != nil {
				return err
			}
		}
		if len(s.verdicts) > 0 || s.numbered {
			if err := raw(bucketMeta, keySettled, appendSettled(nil, number, s.verdicts)); err != nil {
				return err
			}
		}
		if err := st.storeAnswers(tx, s.outdated, s.answers); err != nil {
			return err
		}
		if len(s.batches)+len(s.unlisted) > 0 {
			b, err := tx.CreateBucketIfNotExists(bucketBatches) // a file of an earlier build has none
			if err != nil {
				return err
			}
			for _, id := range s.unlisted {
				if err := b.Delete(id[:]); err != nil {
					return err
				}
			}
			for _, x := range s.batches {
				if err := put(bucketBatches, x.ID[:], x); err != nil {
					return err
				}
			}
		}
		s.counters.NextLine = next
		return put(bucketMeta, keyCounters, s.counters)
	}
	if err := st.commit(func() error { return st.use(func() error { return st.db.Update(update) }) }); err != nil {
		st.failed = true
		return fmt.Errorf("cannot write %s: %w", stateName, err)
	}
	st.failed = false
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, c := range s.cursors {
		st.cursors[name] = c
	}
	for _, name := range s.forget {
		delete(st.cursors, name)
	}
	for _, x := range s.exceptions {
		st.except(x)
	}
	for _, seq := range s.final {
		delete(st.exceptions, seq)
		delete(st.discarded, seq)
	}
	st.firstLine, st.nextLine = st.delivered, next
	st.chain.first = st.chain.delivered
	if s.chain != nil {
		st.chain.next++
	}
	if len(s.verdicts) > 0 || s.numbered {
		st.settled, st.last = number, s.verdicts
	}
	st.counters = s.counters
	st.answers.left(len(s.outdated))
	for i := range s.answers {
		st.answers.add(s.answers[i].key, s.answers[i].Answer)
	}
	for _, id := range s.unlisted {
		delete(st.batches, id)
	}
	for _, b := range s.batches {
		st.batches[b.ID] = b
	}
	if s.applied != nil {
		s.applied()
	}
	return nil
}

// use runs what reads or writes the file. A page that has gone bad ends it with a *DamageError, and bbolt's locks may be
// held for ever then: the file is not used again. The next start makes it anew.
func (st *state) use(f func() error) error {
	if d := st.broken.Load(); d != nil {
		return d
	}
	err := guarded(stateName, f)
	var broke *brokenOff
	if errors.As(err, &broke) {
		st.broken.CompareAndSwap(nil, broke.damage)
		return broke.damage
	}
	return err
}

func (st *state) view(f func(*bolt.Tx) error) error {
	return st.use(func() error { return st.db.View(f) })
}

// garbled is the damage of a value that cannot be read.
func garbled(what string, err error) error {
	return &DamageError{stateName, fmt.Sprintf("%s cannot be read: %v", what, err)}
}

// pendingLines returns up to n lines that have not been forwarded.
func (st *state) pendingLines(n int) ([]Line, error) {
	if st.delivered >= st.nextLine {
		return nil, nil
	}
	var out []Line
	err := st.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketLines).Cursor()
		for k, v := c.Seek(seqKey(st.delivered)); k != nil && len(out) < n; k, v = c.Next() {
			plain, err := st.seal.open("lines", k, v)
			var l Line
			if err == nil {
				err = l.decode(plain)
			}
			if err != nil {
				return garbled("an audit line", err)
			}
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

func (st *state) close() error {
	if st.broken.Load() != nil {
		return nil // it would wait for ever
	}
	return st.db.Close()
}

// oldEnough says whether everything of a segment is older than the horizon. A segment of another boot is
// measured from the start of this process, which is later than anything in it.
func oldEnough(s *segment, bootID string, began, now, horizon time.Duration) bool {
	newest := began
	if s.head.BootID == bootID && s.newest != 0 {
		newest = s.newest
	}
	return now-newest > horizon
}
