package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
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

// answers keeps the first answer of each Idempotency-Key for 24 h of boottime, at most 10,000: beyond that
// the oldest are forgotten.
type answers struct {
	boot func() time.Duration

	mu    sync.Mutex
	byKey map[string]*kept
	order []*kept // oldest first
}

type kept struct {
	key     string
	request [sha256.Size]byte
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

// do runs a request, or returns the answer that the same key had. A second request that comes while the
// first still runs waits for it.
func (a *answers) do(ctx context.Context, key string, request [sha256.Size]byte, run func() answer) (answer, error) {
	if len(key) > maxIdemKey {
		return answer{}, badRequest("bad_idempotency_key", "cannot use this Idempotency-Key", fmt.Sprintf("write at most %d characters, for example a UUID", maxIdemKey))
	}
	for {
		k, mine, err := a.take(key, request)
		if err != nil {
			return answer{}, err
		}
		if mine {
			return a.finish(k, run), nil
		}
		select {
		case <-k.done:
			if k.answer.status != 0 && k.answer.status < retryLaterMin {
				return k.answer, nil
			}
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

func (a *answers) take(key string, request [sha256.Size]byte) (k *kept, mine bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.boot()
	for len(a.order) > 0 && (now-a.order[0].at >= keepAnswers || len(a.order) >= maxAnswers && a.byKey[key] == nil) {
		a.forget(a.order[0])
	}
	if k := a.byKey[key]; k != nil {
		if k.request != request {
			return nil, false, &Error{Status: http.StatusUnprocessableEntity, Reason: "idempotency_key_reused",
				Detail: "cannot use this Idempotency-Key: it came with another request before", Hint: "take a new key for each new request"}
		}
		return k, false, nil
	}
	k = &kept{key: key, request: request, at: now, done: make(chan struct{})}
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
		if k.answer.status == 0 || k.answer.status >= retryLaterMin {
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
