package claimstate

import "context"

// The stores of Split.
const (
	InRedis    = "redis"
	InDynamoDB = "dynamodb"
)

// StoreError says which of the stores of Split failed.
type StoreError struct {
	Store string
	Err   error
}

func (e *StoreError) Error() string { return e.Err.Error() }
func (e *StoreError) Unwrap() error { return e.Err }

// Blame is the part of err that is a store's; err itself if it names none, and nil if it names only others.
func Blame(err error, store string) error {
	all := blamed(err)
	for _, e := range all {
		if e.Store == store {
			return e
		}
	}
	if len(all) > 0 {
		return nil
	}
	return err
}

func blamed(err error) (all []*StoreError) {
	switch e := err.(type) {
	case *StoreError:
		return []*StoreError{e}
	case interface{ Unwrap() error }:
		return blamed(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			all = append(all, blamed(err)...)
		}
	}
	return all
}

func of(store string, err error) error {
	if err == nil {
		return nil
	}
	return &StoreError{store, err}
}

// namedFast says in its errors whose they are, and namedDurable so.
type namedFast struct{ fastStore }

func (f namedFast) reserve(ctx context.Context, n New, mark string) (bool, entry, error) {
	made, e, err := f.fastStore.reserve(ctx, n, mark)
	return made, e, of(InRedis, err)
}

func (f namedFast) move(ctx context.Context, m Move, mark string) (made, ok bool, e entry, err error) {
	made, ok, e, err = f.fastStore.move(ctx, m, mark)
	return made, ok, e, of(InRedis, err)
}

func (f namedFast) look(ctx context.Context, id string) (entry, bool, error) {
	e, ok, err := f.fastStore.look(ctx, id)
	return e, ok, of(InRedis, err)
}

func (f namedFast) rest(ctx context.Context, e entry) (State, bool, error) {
	s, done, err := f.fastStore.rest(ctx, e)
	return s, done, of(InRedis, err)
}

func (f namedFast) drop(ctx context.Context, e entry) error {
	return of(InRedis, f.fastStore.drop(ctx, e))
}
func (f namedFast) Ping(ctx context.Context) error { return of(InRedis, f.fastStore.Ping(ctx)) }

type namedDurable struct{ durableStore }

func (d namedDurable) find(ctx context.Context, id string) (s State, live, occupied bool, err error) {
	s, live, occupied, err = d.durableStore.find(ctx, id)
	return s, live, occupied, of(InDynamoDB, err)
}

func (d namedDurable) install(ctx context.Context, s State) (bool, State, error) {
	made, current, err := d.durableStore.install(ctx, s)
	return made, current, of(InDynamoDB, err)
}

func (d namedDurable) step(ctx context.Context, m Move) (Advance, error) {
	a, err := d.durableStore.step(ctx, m)
	return a, of(InDynamoDB, err)
}

func (d namedDurable) Ping(ctx context.Context) error {
	return of(InDynamoDB, d.durableStore.Ping(ctx))
}
