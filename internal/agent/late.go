package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
)

// late opens a store at the first use, and again until that works: a store that cannot be opened is an outage, not a
// reason to stop capturing.
type late[T io.Closer] struct {
	open func() (T, error)

	mu      sync.Mutex
	opening *opening[T] // under way; nil: none
	store   T
	opened  bool
	closed  bool
}

// opening is one try to open a store, for all who want it meanwhile.
type opening[T io.Closer] struct {
	done  chan struct{} // closed at its end
	store T
	err   error
}

var errStoreClosed = errors.New("cannot use the store: it is closed")

// get returns the store. However long it takes to open, nobody waits longer than his ctx.
func (l *late[T]) get(ctx context.Context) (none T, err error) {
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("cannot open the store: %w", err)
	}
	l.mu.Lock()
	if l.closed || l.opened {
		defer l.mu.Unlock()
		if l.closed {
			return none, errStoreClosed
		}
		return l.store, nil
	}
	o := l.opening
	if o == nil {
		o = &opening[T]{done: make(chan struct{})}
		l.opening = o
		go l.begin(o, l.open)
	}
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.store, o.err
	case <-ctx.Done():
		return none, fmt.Errorf("cannot open the store in time: %w", ctx.Err())
	}
}

func (l *late[T]) begin(o *opening[T], open func() (T, error)) {
	o.store, o.err = open()
	l.mu.Lock()
	l.opening = nil
	if o.err == nil {
		l.store, l.opened = o.store, true
	}
	l.mu.Unlock()
	close(o.done)
}

// lock takes the mutex while nobody opens the store.
func (l *late[T]) lock() {
	l.mu.Lock()
	for l.opening != nil {
		done := l.opening.done
		l.mu.Unlock()
		<-done
		l.mu.Lock()
	}
}

// again closes s, if it still is the store: the next use opens it with what the files of the configuration say by then.
func (l *late[T]) again(s T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.opened && !l.closed && any(l.store) == any(s) {
		l.store.Close()
		l.opened = false
	}
}

// Close closes what is open, for good.
func (l *late[T]) Close() error {
	l.mu.Lock()
	l.closed = true // before it waits: nobody begins anew
	l.mu.Unlock()
	l.lock()
	defer l.mu.Unlock()
	if !l.opened {
		return nil
	}
	return l.store.Close()
}
