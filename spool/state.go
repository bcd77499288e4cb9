package spool

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"scanonce/idem"
	"scanonce/window"
)

var (
	bucketCursors    = []byte("cursors")
	bucketExceptions = []byte("exceptions")
	bucketLines      = []byte("lines")
	bucketMeta       = []byte("meta")
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
)

var stateNames = [...]string{"pending", "committed", "suppressed", "deferred", "duplicate", "quarantined", "held"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

func (s State) final() bool { return s == Committed || s == Suppressed }

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
	Unaccounted uint64     `json:"unaccounted"`
	Base        uint64     `json:"base"` // sequence numbers that no count covers: state.db was lost behind them
	High        window.UTC `json:"high"` // highest t settled
	// Records AheadFrom..AheadTo were settled before older ones: live scans go before a backlog.
	AheadFrom uint64 `json:"ahead_from,omitempty"`
	AheadTo   uint64 `json:"ahead_to,omitempty"`
}

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
	seal *sealer
	made bool // by this process

	mu         *sync.Mutex // guards what follows
	cursors    map[string]cursor
	exceptions map[uint64]Exception
	counters   counters
	settled    uint64 // number of the last settlement
	last       []Verdict
	firstLine  uint64 // first line not forwarded
	nextLine   uint64
	delivered  uint64 // lines below it are forwarded and not yet deleted
}

// openState opens state.db. With mayMake a missing one is made, and one that was never finished is made anew.
func openState(dir string, ring *KeyRing, agent string, mu *sync.Mutex, mayMake, readOnly bool) (*state, error) {
	st, err := tryState(dir, ring, agent, mu, mayMake, readOnly)
	var wrong *WrongKeyError
	if err == nil || !mayMake || readOnly || errors.As(err, &wrong) || errors.Is(err, berrors.ErrTimeout) || IsNoSpace(err) {
		return st, err
	}
	if setAside(dir, stateName) != nil {
		return nil, err
	}
	return tryState(dir, ring, agent, mu, mayMake, readOnly)
}

func tryState(dir string, ring *KeyRing, agent string, mu *sync.Mutex, mayMake, readOnly bool) (*state, error) {
	st := &state{mu: mu, path: filepath.Join(dir, stateName), cursors: map[string]cursor{}, exceptions: map[uint64]Exception{}}
	fail := func(err error) (*state, error) {
		if st.db != nil {
			st.db.Close()
		}
		var wrong *WrongKeyError
		if errors.As(err, &wrong) {
			return nil, err
		}
		return nil, fmt.Errorf("cannot open %s: %w", stateName, err)
	}
	if fi, err := os.Stat(st.path); (!mayMake || readOnly) && (err != nil || fi.Size() == 0) {
		return fail(errors.New("it is missing or empty and must not be"))
	}
	var err error
	if st.db, err = bolt.Open(st.path, 0o600, boltOptions(readOnly)); err != nil {
		return fail(err)
	}
	var head segmentHead
	err = st.db.View(func(tx *bolt.Tx) error {
		h := tx.Bucket(bucketHead)
		if h == nil {
			st.made = true
			return nil
		}
		return json.Unmarshal(h.Get(keyHeader), &head)
	})
	if err == nil && st.made {
		if !mayMake || readOnly {
			return fail(errors.New("it has no header"))
		}
		head = segmentHead{Version: codecVersion, Agent: agent, Seal: newSealParams(ring)}
	}
	if err == nil {
		st.seal, err = newSealer(ring, &head.Seal, head.Agent+"|state", stateName)
	}
	if err == nil && st.made {
		err = st.make(&head)
	}
	if err == nil {
		err = st.db.View(st.load)
	}
	if err == nil && head.Seal.KeyID != ring.current && !readOnly {
		err = st.reseal(ring, head)
	}
	if err != nil {
		return fail(err)
	}
	return st, nil
}

// reseal seals everything with the current key, so that an older one is not needed for ever.
func (st *state) reseal(ring *KeyRing, head segmentHead) error {
	head.Seal = newSealParams(ring)
	seal, err := newSealer(ring, &head.Seal, head.Agent+"|state", stateName)
	if err != nil {
		return err
	}
	b, err := json.Marshal(head)
	if err != nil {
		return err
	}
	err = st.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketCursors, bucketExceptions, bucketLines, bucketMeta} {
			bucket := tx.Bucket(name)
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
		return tx.Bucket(bucketHead).Put(keyHeader, b)
	})
	if err == nil {
		st.seal = seal
	}
	return err
}

func (st *state) make(head *segmentHead) error {
	return st.db.Update(func(tx *bolt.Tx) error {
		h, err := tx.CreateBucket(bucketHead)
		if err != nil {
			return err
		}
		b, err := json.Marshal(head)
		if err != nil {
			return err
		}
		if err := h.Put(keyHeader, b); err != nil {
			return err
		}
		for _, n := range [][]byte{bucketCursors, bucketExceptions, bucketLines, bucketMeta} {
			if _, err := tx.CreateBucket(n); err != nil {
				return err
			}
		}
		return nil
	})
}

func (st *state) load(tx *bolt.Tx) error {
	each := func(bucket []byte, f func(k, plain []byte) error) error {
		b := tx.Bucket(bucket)
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
		st.exceptions[x.Seq] = x
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
	st.firstLine, st.nextLine = 1, 1
	c := tx.Bucket(bucketLines).Cursor()
	if k, _ := c.First(); k != nil {
		st.firstLine = binary.BigEndian.Uint64(k)
	}
	if k, _ := c.Last(); k != nil {
		st.nextLine = binary.BigEndian.Uint64(k) + 1
	} else {
		st.nextLine = st.firstLine
	}
	st.delivered = st.firstLine
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

// settlement is one change of the state.
type settlement struct {
	cursors    map[string]cursor // by segment
	exceptions []Exception       // new or changed
	final      []uint64          // exceptions that are over
	verdicts   []Verdict         // the final ones, for those who must be told
	lines      []Line
	counters   counters
	forget     []string // segments that are gone
	applied    func()   // what else changes in memory with it; called with the lock held, or nil
}

func (st *state) apply(s *settlement) error {
	number := st.settled
	if len(s.verdicts) > 0 {
		number++
	}
	next := st.nextLine
	err := st.db.Update(func(tx *bolt.Tx) error {
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
		if len(s.verdicts) > 0 {
			if err := raw(bucketMeta, keySettled, appendSettled(nil, number, s.verdicts)); err != nil {
				return err
			}
		}
		return put(bucketMeta, keyCounters, s.counters)
	})
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", stateName, err)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	for name, c := range s.cursors {
		st.cursors[name] = c
	}
	for _, name := range s.forget {
		delete(st.cursors, name)
	}
	for _, x := range s.exceptions {
		st.exceptions[x.Seq] = x
	}
	for _, seq := range s.final {
		delete(st.exceptions, seq)
	}
	st.firstLine, st.nextLine = st.delivered, next
	if len(s.verdicts) > 0 {
		st.settled, st.last = number, s.verdicts
	}
	st.counters = s.counters
	if s.applied != nil {
		s.applied()
	}
	return nil
}

// pendingLines returns up to n lines that have not been forwarded.
func (st *state) pendingLines(n int) ([]Line, error) {
	if st.delivered >= st.nextLine {
		return nil, nil
	}
	var out []Line
	err := st.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketLines).Cursor()
		for k, v := c.Seek(seqKey(st.delivered)); k != nil && len(out) < n; k, v = c.Next() {
			plain, err := st.seal.open("lines", k, v)
			var l Line
			if err == nil {
				err = l.decode(plain)
			}
			if err != nil {
				return fmt.Errorf("cannot read an audit line of %s: %w", stateName, err)
			}
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

func (st *state) close() error { return st.db.Close() }

// oldEnough says whether everything of a segment is older than the horizon. A segment of another boot is
// measured from the start of this process, which is later than anything in it.
func oldEnough(s *segment, bootID string, began, now, horizon time.Duration) bool {
	newest := began
	if s.head.BootID == bootID && s.newest != 0 {
		newest = s.newest
	}
	return now-newest > horizon
}
