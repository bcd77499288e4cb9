package claimstate

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"scanonce/internal/boltfile"
	"scanonce/window"
)

const (
	sweepEach  = 8 // expired claims that a write removes: more than it adds, so that they cannot pile up
	fileFormat = 1
)

// The buckets. Every value is sealed.
var (
	bktMeta   = []byte("meta")   // "format" → its number
	bktClaims = []byte("claims") // correlation id → record
	bktEnds   = []byte("ends")   // end of life, 8 bytes, correlation id → nothing
	keyFormat = []byte("format")
)

// ErrInUse says that another process holds the claims file.
var ErrInUse = boltfile.ErrInUse

// Embedded is the Store in a file of its own, for an agent alone. Every write is synced before it is answered.
type Embedded struct {
	counters
	db     *bolt.DB
	place  boltfile.Place
	path   string
	lives  Lives
	now    func() window.UTC
	damage atomic.Pointer[DamageError] // what was found wrong with the file, once
}

// record is a claim as the file holds it.
type record struct {
	Token   Token  `json:"rx_ref_token"`
	Node    Node   `json:"node"`
	Cost    Cost   `json:"cost"`
	Reject  string `json:"reject_code,omitempty"`
	Version int64  `json:"version"`
	Op      string `json:"op_id"`
	Ends    int64  `json:"expires_ms"`
}

// OpenEmbedded opens the claims file at path, mode 0600, and makes it if it is not there. now ends claims. One
// process at a time: another gets ErrInUse within a second.
func OpenEmbedded(path string, lives Lives, now func() window.UTC) (*Embedded, error) {
	if err := lives.Validate(); err != nil {
		return nil, err
	}
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = createFile(path)
	}
	e := &Embedded{path: path, lives: lives, now: now}
	if err == nil {
		e.db, err = boltfile.Open(path, false, func(db *bolt.DB) error { return db.View(checkFormat) })
	}
	if err == nil {
		if e.place, err = boltfile.PlaceOf(path); err != nil {
			e.db.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the claims file %s: %w", path, damaged(path, err))
	}
	return e, nil
}

func createFile(path string) error {
	return boltfile.Create(path, func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bktMeta, bktClaims, bktEnds} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return tx.Bucket(bktMeta).Put(keyFormat, boltfile.Seal(string(bktMeta), keyFormat, []byte{fileFormat}))
	})
}

func checkFormat(tx *bolt.Tx) error {
	b := tx.Bucket(bktMeta)
	if b == nil || tx.Bucket(bktClaims) == nil || tx.Bucket(bktEnds) == nil {
		return &boltfile.Fault{Detail: "it is no claims file"}
	}
	v, err := unseal(bktMeta, keyFormat, b.Get(keyFormat))
	if err == nil && (len(v) != 1 || v[0] != fileFormat) {
		err = &boltfile.Fault{Detail: fmt.Sprintf("its format %x is not %d: use the version of scanonce that wrote it, or a newer one", v, fileFormat)}
	}
	return err
}

// use runs f on the file. After damage it is left alone.
func (e *Embedded) use(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot keep claims: %w", err)
	}
	if d := e.damage.Load(); d != nil {
		return d
	}
	err := e.place.Check() // before a read too: what a file says that was taken away is out of date
	if err == nil {
		err = boltfile.Guard(f)
	}
	err = damaged(e.path, err)
	var d *DamageError
	if errors.As(err, &d) {
		e.damage.Store(d)
		return d
	}
	if err != nil {
		return fmt.Errorf("cannot keep claims in %s: %w", e.path, err)
	}
	return nil
}

// load returns a claim that has not expired.
func (e *Embedded) load(tx *bolt.Tx, id string, now window.UTC) (s State, live bool, err error) {
	s, ok, err := e.stored(tx, id)
	return s, ok && s.ExpiresAt > now, err
}

func (e *Embedded) stored(tx *bolt.Tx, id string) (s State, ok bool, err error) {
	rec := tx.Bucket(bktClaims).Get([]byte(id))
	if rec == nil {
		return State{}, false, nil
	}
	body, err := unseal(bktClaims, []byte(id), rec)
	if err != nil {
		return State{}, false, err
	}
	var r record
	if err = json.Unmarshal(body, &r); err == nil {
		s = State{CorrelationID: id, RxRefToken: r.Token, Node: r.Node, IngredientCost: r.Cost, RejectCode: r.Reject, Version: r.Version, OpID: r.Op,
			ExpiresAt: window.UTC(r.Ends)}
		err = s.check()
	}
	if err != nil {
		return State{}, false, fileDamage(e.path, err.Error())
	}
	return s, true, nil
}

// save writes a state in the place of the one that is stored, and removes some that have expired.
func (e *Embedded) save(tx *bolt.Tx, s State, now window.UTC) error {
	old, ok, err := e.stored(tx, s.CorrelationID)
	if err != nil {
		return err
	}
	claims, ends := tx.Bucket(bktClaims), tx.Bucket(bktEnds)
	if ok {
		err = ends.Delete(endKey(old.ExpiresAt, s.CorrelationID))
	}
	var body []byte
	if err == nil {
		body, err = json.Marshal(record{s.RxRefToken, s.Node, s.IngredientCost, s.RejectCode, s.Version, s.OpID, int64(s.ExpiresAt)})
	}
	if err == nil {
		err = claims.Put([]byte(s.CorrelationID), boltfile.Seal(string(bktClaims), []byte(s.CorrelationID), body))
	}
	if err == nil {
		key := endKey(s.ExpiresAt, s.CorrelationID)
		err = ends.Put(key, boltfile.Seal(string(bktEnds), key, nil))
	}
	if err != nil {
		return err
	}
	return e.sweep(tx, now)
}

func endKey(end window.UTC, id string) []byte {
	return append(binary.BigEndian.AppendUint64(nil, uint64(max(end, 0))), id...)
}

// sweep removes the claims that have expired the longest. It comes with every write and needs no timer.
func (e *Embedded) sweep(tx *bolt.Tx, now window.UTC) error {
	claims, ends := tx.Bucket(bktClaims), tx.Bucket(bktEnds)
	var gone [][]byte
	c := ends.Cursor()
	for k, v := c.First(); k != nil && len(gone) < sweepEach; k, v = c.Next() {
		if _, err := unseal(bktEnds, k, v); err != nil {
			return err
		}
		if len(k) < 8 || binary.BigEndian.Uint64(k) > uint64(max(now, 0)) {
			break
		}
		gone = append(gone, append([]byte(nil), k...))
	}
	for _, k := range gone {
		if err := errors.Join(ends.Delete(k), claims.Delete(k[8:])); err != nil {
			return err
		}
	}
	n := uint64(len(gone))
	tx.OnCommit(func() { e.swept.Add(n) })
	return nil
}

// PutNew implements Store.
func (e *Embedded) PutNew(ctx context.Context, n New) (Put, error) { return e.put(e.putNew(ctx, n)) }

func (e *Embedded) putNew(ctx context.Context, n New) (p Put, err error) {
	if err := n.Validate(); err != nil {
		return Put{}, err
	}
	err = e.change(ctx, func(tx *bolt.Tx) (bool, error) {
		now := e.now()
		s, live, err := e.load(tx, n.CorrelationID, now)
		if err != nil || live {
			p = n.judge(s)
			return false, err
		}
		s = n.state(now.Add(e.lives.TTL))
		p = Created(s)
		return true, e.save(tx, s, now)
	})
	return p, err
}

// change runs f in a transaction, which is committed if f says so: a commit costs syncs.
func (e *Embedded) change(ctx context.Context, f func(tx *bolt.Tx) (bool, error)) error {
	return e.use(ctx, func() error {
		tx, err := e.db.Begin(true)
		if err != nil {
			return err
		}
		defer tx.Rollback() // without effect after Commit
		commit, err := f(tx)
		if err != nil || !commit {
			return err
		}
		return tx.Commit()
	})
}

// Get implements Store.
func (e *Embedded) Get(ctx context.Context, id string) (State, bool, error) {
	return e.got(e.get(ctx, id))
}

func (e *Embedded) get(ctx context.Context, id string) (s State, live bool, err error) {
	if err := checkID("correlation_id", id); err != nil {
		return State{}, false, err
	}
	err = e.use(ctx, func() error {
		return e.db.View(func(tx *bolt.Tx) (err error) {
			s, live, err = e.load(tx, id, e.now())
			return err
		})
	})
	if err != nil || !live {
		return State{}, false, err
	}
	return s, true, nil
}

// Advance implements Store.
func (e *Embedded) Advance(ctx context.Context, m Move) (Advance, error) {
	return e.advance(e.step(ctx, m))
}

func (e *Embedded) step(ctx context.Context, m Move) (a Advance, err error) {
	if err := m.Validate(); err != nil {
		return Advance{}, err
	}
	err = e.change(ctx, func(tx *bolt.Tx) (bool, error) {
		now := e.now()
		s, live, err := e.load(tx, m.CorrelationID, now)
		switch {
		case err != nil:
			return false, err
		case !live:
			a = Missing()
			return false, nil
		case s.Version != m.Version || s.Node != m.From:
			a = m.judge(s)
			return false, nil
		}
		s = m.apply(s, now.Add(e.lives.of(m.To)))
		a = Advanced(s)
		return true, e.save(tx, s, now)
	})
	return a, err
}

// Ping implements Store.
func (e *Embedded) Ping(ctx context.Context) error {
	return e.use(ctx, func() error { return e.db.View(func(*bolt.Tx) error { return nil }) })
}

// Close waits for what is under way and releases the file.
func (e *Embedded) Close() error { return e.db.Close() }
