package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/window"
)

// Once names the request of an application that is to count once, however often it is sent: hashes of its
// Idempotency-Key and of the whole request. The zero Once is none.
type Once struct{ Key, Request [16]byte }

// IsZero says that there is none.
func (o Once) IsZero() bool { return o == Once{} }

// Answer is what such a request was answered: the record that it made.
type Answer struct {
	Request [16]byte
	Event   idem.EventID
	Of      idem.EventID // of a duplicate, the event that it repeats; else zero
	Key     idem.Key
	Window  window.Index
}

func answerOf(r *Record) Answer {
	return Answer{r.Once.Request, r.Event, r.Of, r.Keys.Idem, r.Keys.Window}
}

const (
	keepAnswers = 24 * time.Hour
	// maxAnswers bounds what they take in memory, some 25 MB. To forget one early would count its retry twice.
	maxAnswers = 100_000
)

// ErrHealing says that a file of the spool is damaged and not healed yet.
var ErrHealing = errors.New("cannot look the Idempotency-Key up: a file of the spool is being repaired")

// answers finds the record of a request by its key, for keepAnswers. The record itself has the key, so that both are
// on disk at once or not at all. What a kill does to a request that is sent again:
//
//   - before the commit of its record: nothing of it is there, and it is the first again;
//   - after it, before the answer or the event: the record is in its segment, Recall finds it there, and the first
//     answer is given;
//   - after the settlement: the answer went into state.db with the cursor that passed the record, in one transaction,
//     and a segment is unlinked only after that;
//   - state.db is lost: all that the segments still hold is settled anew, and its answers go into the new one with
//     it; Recall reads them meanwhile. Those of segments that are gone are lost with it.
//
// A record that a damage has taken takes its key along, and rightly so: its movement is unaccounted, and the retry
// counts it.
type answers struct {
	recalling sync.Mutex

	mu    sync.Mutex
	byKey map[[16]byte]Answer
	order []aged // oldest first
	gone  [][16]byte
	whole bool // Recall has found all that the segments hold
}

type aged struct {
	key   [16]byte
	event idem.EventID
}

func newAnswers() *answers { return &answers{byKey: map[[16]byte]Answer{}} }

func outdated(e idem.EventID, now window.UTC) bool { return now.Sub(eventTime(e)) > keepAnswers }

// add keeps an answer, unless the key has one.
func (a *answers) add(key [16]byte, ans Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.byKey[key]; !ok {
		a.byKey[key] = ans
		a.order = append(a.order, aged{key, ans.Event})
	}
}

// drop undoes the last add.
func (a *answers) drop(key [16]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byKey, key)
	if n := len(a.order); n > 0 && a.order[n-1].key == key {
		a.order = a.order[:n-1]
	}
}

// expire forgets what is too old; state.db forgets it with the next settlement. It needs mu.
func (a *answers) expire(now window.UTC) {
	n := 0
	for ; n < len(a.order) && outdated(a.order[n].event, now); n++ {
		if k := a.order[n]; a.byKey[k.key].Event == k.event {
			delete(a.byKey, k.key)
			a.gone = append(a.gone, k.key)
		}
	}
	a.order = a.order[n:]
}

// RoomForKey says whether one more request can be remembered.
func (s *Spool) RoomForKey(now window.UTC) bool {
	a := s.state.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire(now)
	return len(a.byKey) < maxAnswers
}

func (a *answers) sort() {
	slices.SortFunc(a.order, func(x, y aged) int { return bytes.Compare(x.event[:], y.event[:]) }) // by time
}

// leaving are the keys to delete from state.db. They stay until left is called: the transaction may fail.
func (a *answers) leaving(now window.UTC) [][16]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire(now)
	return slices.Clone(a.gone)
}

func (a *answers) left(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = slices.Delete(a.gone, 0, n)
}

// keyed is an answer on its way into state.db.
type keyed struct {
	key [16]byte
	Answer
}

// storeAnswers changes the bucket: first what goes, since a key may be new again. A transaction whose sync failed may be in
// the file all the same; of answers that does no harm, as their records are durable.
func (st *state) storeAnswers(tx *bolt.Tx, gone [][16]byte, came []keyed) error {
	if len(gone) == 0 && len(came) == 0 {
		return nil
	}
	b, err := tx.CreateBucketIfNotExists(bucketAnswers) // a file of an earlier build has none
	if err != nil {
		return err
	}
	for i := range gone {
		if err := b.Delete(gone[i][:]); err != nil {
			return err
		}
	}
	for i := range came {
		k := came[i].key[:]
		if err := b.Put(k, st.seal.seal(string(bucketAnswers), k, came[i].append(nil))); err != nil {
			return err
		}
	}
	return nil
}

func (a *Answer) append(b []byte) []byte {
	e := encoder{append(b, codecVersion)}
	e.b = append(e.b, a.Request[:]...)
	e.event(a.Event)
	e.event(a.Of)
	e.key(a.Key)
	e.int(int64(a.Window))
	return e.b
}

func (a *Answer) decode(b []byte) error {
	d := decoder{b: b}
	if v := d.take(1); v == nil || v[0] != codecVersion {
		return errCodec
	}
	copy(a.Request[:], d.take(16))
	a.Event, a.Of, a.Key, a.Window = d.event(), d.event(), d.key(), window.Index(d.int())
	return d.end()
}

// loadAnswer takes over what state.db says of a key.
func (a *answers) loadAnswer(k, plain []byte) error {
	var ans Answer
	if err := ans.decode(plain); err != nil || len(k) != 16 {
		return fmt.Errorf("the answer of a request: %w", errCodec)
	}
	a.add([16]byte(k), ans)
	return nil
}

// Recall makes sure that Answer knows the requests of before the start. The first call reads the records that are
// not settled; until it has succeeded, no request with a key may be decided. ErrHealing asks to come back later.
func (s *Spool) Recall(ctx context.Context) error {
	a := s.state.answers
	a.recalling.Lock()
	defer a.recalling.Unlock()
	a.mu.Lock()
	whole := a.whole
	a.mu.Unlock()
	if whole {
		return nil
	}
	s.mu.Lock()
	oldest := s.next // what a cursor has passed is in state.db
	for _, seg := range s.segments {
		if c := s.cursorOf(seg); c.Record < seg.last {
			oldest = min(oldest, c.Record+1)
		}
	}
	s.mu.Unlock()
	err := s.Since(oldest-1, func(r *Record) bool {
		if !r.Once.IsZero() {
			a.add(r.Once.Key, answerOf(r))
		}
		return ctx.Err() == nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	sick := slices.ContainsFunc(s.segments, func(seg *segment) bool { return seg.sick != "" })
	s.mu.Unlock()
	if sick {
		return ErrHealing // Since has passed over it
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sort()
	a.whole = true
	return nil
}

// Answer finds what the request with a key was answered. Of a batch that is not committed yet it tells too. The
// intake calls it, after Recall.
func (s *Spool) Answer(key [16]byte, now window.UTC) (Answer, bool) {
	a := s.state.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expire(now)
	ans, ok := a.byKey[key]
	return ans, ok
}

// answered remembers the request of a record, if it has one.
func (b *Batch) answered(r *Record) {
	if !r.Once.IsZero() {
		b.s.state.answers.add(r.Once.Key, answerOf(r))
		b.undo = append(b.undo, undo{once: &r.Once.Key})
	}
}

// Taken is when the record was taken in: At, unless an application gave another time.
func (r *Record) Taken() window.UTC { return eventTime(r.Event) }

// now is t, 0 before Begin.
func (s *Spool) now() window.UTC {
	if s.clock == nil {
		return 0
	}
	return s.clock.Now().T
}
