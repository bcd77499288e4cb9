package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	keepAnswers   = 24 * time.Hour
	maxAnswers    = 10000
	maxIdemKey    = 255
	retryLaterMin = http.StatusInternalServerError // such answers are not kept: a retry may do better
)

type answer struct {
	status      int
	contentType string
	body        []byte
}

// decided says that the key goes with this request from now on.
func (a *answer) decided() bool { return a.status != 0 && a.status < retryLaterMin }

// final says that the answer may stand for the next ones. One that says that the request is queued may not: sent again,
// the request finds its own operation, and what has become of it.
func (a *answer) final() bool { return a.decided() && a.status != http.StatusAccepted }

// answers keeps the request of each Idempotency-Key, and its first answer unless each attempt is to be asked for anew,
// for 24 h of boottime, at most 10,000: beyond that the oldest are forgotten.
type answers struct {
	boot func() time.Duration

	mu    sync.Mutex
	byKey map[string]*kept
	order []*kept // oldest first
}

type kept struct {
	key     string
	request [sha256.Size]byte
	anew    bool // each attempt is asked for
	known   bool // from an attempt before, which was decided
	at      time.Duration
	done    chan struct{}
	answer  answer // after done
}

func fingerprint(r *http.Request, body []byte) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %d\n", r.Method, r.URL.EscapedPath(), len(body))
	h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// stands says that k has an answer for the next ones; after done.
func (k *kept) stands() bool { return k.answer.final() && !k.anew }

// do runs a request, or returns the answer that the same key had, unless it is to be asked for anew. A second request
// that comes while the first still runs waits for it.
func (a *answers) do(ctx context.Context, key string, request [sha256.Size]byte, anew bool, run func() answer) (answer, error) {
	if len(key) > maxIdemKey || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return answer{}, badRequest("bad_idempotency_key", "cannot use this Idempotency-Key", fmt.Sprintf("write at most %d visible ASCII characters, for example a UUID", maxIdemKey))
	}
	for {
		k, mine, err := a.take(key, request, anew)
		if err != nil {
			return answer{}, err
		}
		if mine {
			return a.finish(k, run), nil
		}
		select {
		case <-k.done:
			if k.stands() {
				return k.answer, nil
			}
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

func (a *answers) take(key string, request [sha256.Size]byte, anew bool) (k *kept, mine bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, known := a.boot(), false
	for len(a.order) > 0 && (now-a.order[0].at >= keepAnswers || len(a.order) >= maxAnswers && a.byKey[key] == nil) {
		a.forget(a.order[0])
	}
	if k := a.byKey[key]; k != nil {
		if k.request != request {
			return nil, false, &Error{Status: http.StatusUnprocessableEntity, Reason: "idempotency_key_reused",
				Detail: "cannot use this Idempotency-Key: it came with another request before", Hint: "take a new key for each new request"}
		}
		select {
		case <-k.done:
		default:
			return k, false, nil
		}
		if k.stands() {
			return k, false, nil
		}
		a.forget(k) // another attempt takes its place
		known = true
	}
	k = &kept{key: key, request: request, anew: anew, known: known, at: now, done: make(chan struct{})}
	if a.byKey == nil {
		a.byKey = map[string]*kept{}
	}
	a.byKey[key] = k
	a.order = append(a.order, k)
	return k, true, nil
}

func (a *answers) finish(k *kept, run func() answer) answer {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !k.answer.decided() && !k.known {
			a.forget(k)
		}
		close(k.done)
	}()
	k.answer = run()
	return k.answer
}

// forget drops k, if it is still there.
func (a *answers) forget(k *kept) {
	if a.byKey[k.key] == k {
		delete(a.byKey, k.key)
	}
	for i, o := range a.order {
		if o == k {
			if i == 0 {
				a.order[0] = nil
				a.order = a.order[1:]
			} else {
				a.order = append(a.order[:i], a.order[i+1:]...)
			}
			return
		}
	}
}
