package pacase

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"scanonce/internal/boltfile"
	"scanonce/window"
)

// The buckets. Every value is sealed.
const (
	bktMeta  = "meta"  // "format" → format version
	bktCases = "cases" // case id → case
	bktOpen  = "open"  // subject → id of its open case
	bktRefs  = "refs"  // derived id → case id
	bktPends = "pends" // event id → created flag, derived id
)

const formatVersion = 1

// ErrInUse says that another process holds the file of cases.
var ErrInUse = boltfile.ErrInUse

var errClosed = errors.New("it is closed: open it again")

// Embedded is the Store in a file of its own, for an agent without PostgreSQL. Every write is fsynced before it
// is acknowledged.
type Embedded struct {
	db    *bolt.DB
	place boltfile.Place
	now   func() window.UTC
	path  string
	// damage is what was found wrong with the file, once.
	damage atomic.Pointer[DamageError]
}

// OpenEmbedded opens the file of cases at path, mode 0600, and makes it if it is not there. now gives the times
// of creations and transitions. One process at a time: another gets ErrInUse within a second.
func OpenEmbedded(path string, now func() window.UTC) (*Embedded, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return nil, fmt.Errorf("cannot make the file of cases %s: %w", path, err)
		}
	}
	db, err := boltfile.Open(path, false, func(db *bolt.DB) error { return db.View(checkFormat) })
	if err != nil {
		return nil, fmt.Errorf("cannot open the file of cases %s: %w", path, damaged(path, err))
	}
	place, err := boltfile.PlaceOf(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot open the file of cases %s: %w", path, err), db.Close())
	}
	return &Embedded{db: db, place: place, now: now, path: path}, nil
}

func create(path string) error {
	return boltfile.Create(path, func(tx *bolt.Tx) error {
		for _, name := range []string{bktMeta, bktCases, bktOpen, bktRefs, bktPends} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return put(tx, bktMeta, "format", []byte{formatVersion})
	})
}

func checkFormat(tx *bolt.Tx) error {
	for _, name := range []string{bktMeta, bktCases, bktOpen, bktRefs, bktPends} {
		if tx.Bucket([]byte(name)) == nil {
			return &boltfile.Fault{Detail: "it is no file of cases"}
		}
	}
	v, err := get(tx, bktMeta, "format")
	if err == nil && (len(v) != 1 || v[0] != formatVersion) {
		err = &boltfile.Fault{Detail: fmt.Sprintf("its format %x is not %d: use the version of scanonce that wrote it, or a newer one", v, formatVersion)}
	}
	return err
}

// Close waits for what is under way and releases the file.
func (e *Embedded) Close() error { return e.db.Close() }

// put seals and stores a value.
func put(tx *bolt.Tx, bucket, key string, body []byte) error {
	return tx.Bucket([]byte(bucket)).Put([]byte(key), boltfile.Seal(bucket, []byte(key), body))
}

// get returns a value's body, valid within the transaction; nil if there is none.
func get(tx *bolt.Tx, bucket, key string) ([]byte, error) {
	rec := tx.Bucket([]byte(bucket)).Get([]byte(key))
	if rec == nil {
		return nil, nil
	}
	return unseal(bucket, []byte(key), rec)
}

// use runs f on the file. After damage it is left alone.
func (e *Embedded) use(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d := e.damage.Load(); d != nil {
		return d
	}
	err := e.place.Check() // before a read too: what a file says that was taken away may have been undone elsewhere
	if err == nil {
		err = boltfile.Guard(f)
	}
	err = damaged(e.path, err)
	var d *DamageError
	if errors.As(err, &d) {
		e.damage.Store(d)
	}
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return errClosed
	}
	return err
}

// write runs f in a transaction, which it commits if f says so: a commit costs fsyncs.
func (e *Embedded) write(ctx context.Context, f func(tx *bolt.Tx) (bool, error)) error {
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

// resolve returns the case that an id leads to; nil if there is none.
func resolve(tx *bolt.Tx, id string) (*Case, error) {
	own, err := get(tx, bktRefs, id)
	if own == nil || err != nil {
		return nil, err
	}
	return mustGet(tx, string(own))
}

// mustGet returns the case that another record names.
func mustGet(tx *bolt.Tx, id string) (*Case, error) {
	body, err := get(tx, bktCases, id)
	if err != nil {
		return nil, err
	}
	if body == nil {
		return nil, fmt.Errorf("cannot find the case %s: %w", id, errDamaged)
	}
	c, err := decodeCase([]byte(id), body)
	return &c, err
}

// openCase returns the open case of a subject; nil if there is none.
func openCase(tx *bolt.Tx, subject string) (*Case, error) {
	id, err := get(tx, bktOpen, subject)
	if id == nil || err != nil {
		return nil, err
	}
	return mustGet(tx, string(id))
}

func (c *Case) subject() string {
	q := Question{MemberToken: c.MemberToken, GPI: c.GPI}
	return q.subject()
}

// store writes the case, and keeps the open one of its subject in step.
func store(tx *bolt.Tx, c *Case) error {
	if err := put(tx, bktCases, c.ID, appendCase(nil, c)); err != nil {
		return err
	}
	if c.State.Open() {
		return put(tx, bktOpen, c.subject(), []byte(c.ID))
	}
	return tx.Bucket([]byte(bktOpen)).Delete([]byte(c.subject()))
}

// Pend implements Store.
func (e *Embedded) Pend(ctx context.Context, r Pend) (Pended, error) {
	if err := r.check(); err != nil {
		return Pended{}, err
	}
	var out Pended
	err := e.write(ctx, func(tx *bolt.Tx) (commit bool, err error) {
		out, commit, err = pend(tx, &r, e.now())
		return commit, err
	})
	if err != nil {
		return Pended{}, fmt.Errorf("cannot pend the prior authorization: %w", err)
	}
	if out.Case.MemberToken != r.MemberToken || out.Case.GPI != r.GPI {
		return Pended{}, errReused()
	}
	return out, nil
}

func pend(tx *bolt.Tx, r *Pend, now window.UTC) (out Pended, commit bool, err error) {
	known, err := get(tx, bktPends, string(r.Event[:]))
	if err != nil {
		return out, false, err
	}
	if len(known) > 0 {
		out.Created, out.RequestedID = known[0] == 1, string(known[1:])
		c, err := resolve(tx, out.RequestedID)
		if err == nil && c == nil {
			err = fmt.Errorf("cannot find the reference %s: %w", out.RequestedID, errDamaged)
		}
		if err != nil {
			return out, false, err
		}
		out.Case = *c
		commit, err = refer(tx, r, c)
		return out, commit, err
	}
	out.RequestedID = r.DerivedID()
	c, err := resolve(tx, out.RequestedID)
	referred := c != nil
	if err == nil && !referred {
		c, err = openCase(tx, r.subject())
	}
	if err == nil && c == nil {
		out.Created = true
		c = &Case{ID: out.RequestedID, MemberToken: r.MemberToken, GPI: r.GPI, Window: r.Window, State: Pending, Version: 1,
			CreatedBy: r.Event, LastOp: r.Event, CreatedAt: now, UpdatedAt: now}
		err = store(tx, c)
	}
	if err == nil && !referred {
		err = put(tx, bktRefs, out.RequestedID, []byte(c.ID))
	}
	if err == nil {
		created := byte(0)
		if out.Created {
			created = 1
		}
		err = put(tx, bktPends, string(r.Event[:]), append([]byte{created}, out.RequestedID...))
	}
	if err != nil {
		return Pended{}, false, err
	}
	out.Case = *c
	return out, true, nil
}

// refer has the derived id of a later attempt lead to the event's case: the asker may have been told that id.
func refer(tx *bolt.Tx, r *Pend, c *Case) (commit bool, err error) {
	id := r.DerivedID()
	if taken, err := get(tx, bktRefs, id); taken != nil || err != nil || c.MemberToken != r.MemberToken || c.GPI != r.GPI {
		return false, err
	}
	return true, put(tx, bktRefs, id, []byte(c.ID))
}

// Transition implements Store.
func (e *Embedded) Transition(ctx context.Context, t Transition) (Transitioned, error) {
	if err := t.Validate(); err != nil {
		return Transitioned{}, err
	}
	answer := Missing()
	err := e.write(ctx, func(tx *bolt.Tx) (bool, error) {
		c, err := resolve(tx, t.ID)
		if c == nil || err != nil {
			return false, err
		}
		other, err := openCase(tx, c.subject())
		if err != nil {
			return false, err
		}
		if other != nil && other.ID == c.ID {
			other = nil
		}
		if !c.movable(&t, other) {
			answer = c.refusal(&t, other)
			return false, nil
		}
		c.State, c.Version, c.LastOp, c.UpdatedAt = t.To, c.Version+1, t.Op, e.now()
		answer = Moved(*c)
		return true, store(tx, c)
	})
	if err != nil {
		return Transitioned{}, fmt.Errorf("cannot move the case: %w", err)
	}
	return answer, nil
}

// Get implements Store.
func (e *Embedded) Get(ctx context.Context, id string) (Case, bool, error) {
	if !isID(id) {
		return Case{}, false, nil
	}
	var c *Case
	err := e.use(ctx, func() error {
		return e.db.View(func(tx *bolt.Tx) (err error) {
			c, err = resolve(tx, id)
			return err
		})
	})
	if err != nil {
		return Case{}, false, fmt.Errorf("cannot read the case: %w", err)
	}
	if c == nil {
		return Case{}, false, nil
	}
	return *c, true, nil
}

// Ping implements Store.
func (e *Embedded) Ping(ctx context.Context) error {
	err := e.use(ctx, func() error { return e.db.View(checkFormat) })
	if err != nil {
		return fmt.Errorf("cannot reach the prior-authorization cases: %w", err)
	}
	return nil
}

// Check reads every record and compares the buckets with each other. It returns the first thing that does not
// fit. It holds one read transaction all the time: for an agent at rest.
func (e *Embedded) Check(ctx context.Context) error {
	err := e.use(ctx, func() error {
		return e.db.View(func(tx *bolt.Tx) error {
			for err := range tx.Check() {
				return err
			}
			return check(ctx, tx)
		})
	})
	if err != nil {
		return fmt.Errorf("cannot vouch for the cases: %w", err)
	}
	return nil
}

func check(ctx context.Context, tx *bolt.Tx) error {
	open := 0
	err := each(ctx, tx, bktCases, func(id string, _ []byte) error {
		c, err := mustGet(tx, id)
		if err != nil {
			return err
		}
		own, err := resolve(tx, id)
		if err == nil && (own == nil || own.ID != id) {
			err = fmt.Errorf("the case %s is no reference to itself", id)
		}
		if err != nil || !c.State.Open() {
			return err
		}
		open++
		o, err := openCase(tx, c.subject())
		if err == nil && (o == nil || o.ID != id) {
			err = fmt.Errorf("the case %s is open and not listed as its member's", id)
		}
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, tx, bktRefs, func(id string, _ []byte) error {
		_, err := resolve(tx, id)
		return err
	})
	if err != nil {
		return err
	}
	err = each(ctx, tx, bktPends, func(_ string, body []byte) error {
		if len(body) < 1 {
			return errDamaged
		}
		c, err := resolve(tx, string(body[1:]))
		if err == nil && c == nil {
			err = fmt.Errorf("a pend leads to no case: %w", errDamaged)
		}
		return err
	})
	if err != nil {
		return err
	}
	listed := 0
	err = each(ctx, tx, bktOpen, func(string, []byte) error { listed++; return nil })
	if err == nil && listed != open {
		err = fmt.Errorf("%d cases are open, and %d are listed as open", open, listed)
	}
	return err
}

// each walks through a bucket's records.
func each(ctx context.Context, tx *bolt.Tx, bucket string, f func(key string, body []byte) error) error {
	return tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		body, err := unseal(bucket, k, v)
		if err != nil {
			return err
		}
		return f(string(k), body)
	})
}
