package claimstate

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	pipesUnderWay = 2  // one is answered while the next one is written
	pipeCalls     = 64 // in one, so that the first does not wait long for its answer
)

// redisPipe sends calls that are made at the same time in one round trip: what comes while the pipelines allowed are
// under way collects for the next one. A call that is alone goes at once.
type redisPipe struct {
	client redis.UniversalClient

	mu      sync.Mutex
	waiting []*redisCall
	under   int // pipelines under way
}

// script is a Lua script with its SHA-1 in hexadecimal digits, by which the server knows it.
type script struct{ text, hash string }

func newScript(text string) script { return script{text, redis.NewScript(text).Hash()} }

type redisCall struct {
	ctx  context.Context
	cmd  *redis.Cmd
	done chan struct{}
}

// run calls a script: by its hash, and by its text where the server has lost it. The end of ctx ends the waiting: a
// call that was sent by then may be carried out all the same.
func (p *redisPipe) run(ctx context.Context, s script, key string, args []any) ([]any, error) {
	words := make([]any, 0, 4+len(args))
	words = append(append(words, "evalsha", s.hash, 1, key), args...)
	reply, err := p.call(ctx, words)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		words[0], words[1] = "eval", s.text
		reply, err = p.call(ctx, words)
	}
	return reply, err
}

func (p *redisPipe) call(ctx context.Context, words []any) ([]any, error) {
	c := &redisCall{ctx, redis.NewCmd(ctx, words...), make(chan struct{})}
	c.cmd.SetFirstKeyPos(3)
	p.mu.Lock()
	p.waiting = append(p.waiting, c)
	if p.under < pipesUnderWay {
		p.under++
		go p.send()
	}
	p.mu.Unlock()
	select {
	case <-c.done:
		return c.cmd.Slice()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// send sends what waits until nothing does. No caller's context ends a pipeline that is others' too: the client's own
// limits of time do.
func (p *redisPipe) send() {
	for {
		p.mu.Lock()
		n := min(len(p.waiting), pipeCalls)
		if n == 0 {
			p.under--
			p.mu.Unlock()
			return
		}
		calls := p.waiting[:n:n]
		if p.waiting = p.waiting[n:]; len(p.waiting) == 0 {
			p.waiting = nil
		}
		p.mu.Unlock()
		pipe := p.client.Pipeline()
		for _, c := range calls {
			if c.ctx.Err() == nil {
				pipe.Process(context.Background(), c.cmd)
			}
		}
		pipe.Exec(context.Background()) // each command has its own error
		for _, c := range calls {
			close(c.done)
		}
	}
}
