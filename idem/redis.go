package idem

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/internal/redisconn"
)

// RedisMode is how the servers work together.
type RedisMode = redisconn.Mode

// The modes.
const (
	RedisSingle   = redisconn.Single
	RedisSentinel = redisconn.Sentinel
	RedisCluster  = redisconn.Cluster
)

// Password never prints.
type Password = redisconn.Password

// ConfigError is a failure that no retry mends: somebody must change something. The claims it stands in are
// Unknown, and the ledger decides meanwhile.
type ConfigError = redisconn.ConfigError

// RedisConfig says which servers hold the claims.
type RedisConfig struct {
	Mode       RedisMode
	Addrs      []string // host:port of the server, of the sentinels, or of some cluster nodes
	MasterName string   // of RedisSentinel
	Username   string   // ACL user; "" is the default one
	Password   Password
	DB         int
	TLS        *tls.Config   // nil: plaintext, allowed to loopback only
	TTL        time.Duration // of a claim, plus up to 10 % so that a batch does not expire at once
	Timeout    time.Duration // of a round trip, dialling included
	// Dial opens a connection; nil is the network's way. A simulation puts its server here.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Agent and Run name the agent and its process, and Boot is elapsed time: with them a hint key tells whether
	// the store has lost its keys. Agent "" leaves it out.
	Agent, Run string
	Boot       func() time.Duration
	// Warn is told of what about the servers is not as it should be and does not stop the claims; nil for nobody.
	Warn func(remark string)
}

const (
	agentPrefix = "scan:agent:"
	hintTTL     = time.Minute
	hintSure    = hintTTL - 10*time.Second // younger than this, the hint cannot have expired
)

// words are what the messages about the servers say here.
func words() redisconn.Words {
	return redisconn.Words{
		Denied:    "SET, GET, PING and INFO on scan:*",
		Grant:     "ACL SETUSER <user> on ~scan:* +set +get +ping +info, and +cluster|slots for a cluster, +select for a redis.db",
		Meanwhile: "the ledger decides meanwhile",
	}
}

// Validate checks what can be checked without a connection. Its errors are *ConfigError.
func (c *RedisConfig) Validate() error { return c.conn().Validate() }

func (c *RedisConfig) conn() *redisconn.Config {
	return &redisconn.Config{Mode: c.Mode, Addrs: c.Addrs, MasterName: c.MasterName, Username: c.Username, Password: c.Password, DB: c.DB,
		TLS: c.TLS, Dial: c.Dial, Timeout: c.Timeout, Conns: 2, Idle: 1}
}

// Redis is the Authority in Redis: SET NX PX with the event's id as the owner's token.
type Redis struct {
	cfg    RedisConfig
	client redis.UniversalClient

	policy *redisconn.Policy

	mu     sync.Mutex
	legacy bool          // the server is older than 7.0: SET has no NX with GET
	hinted time.Duration // when the hint was last set; 0 if it may be gone by rights
	resets uint64
}

// Resets counts how often the store was found to have lost what it held: a flush, an empty replica promoted,
// memory pressure. It costs nothing but a second look at the ledger.
func (r *Redis) Resets() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resets
}

// sawHint judges the reply to the hint's SET … GET.
func (r *Redis) sawHint(cmd *redis.Cmd, at time.Duration) {
	err := cmd.Err()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.hinted = at
	case errors.Is(err, redis.Nil):
		if r.hinted != 0 && at-r.hinted < hintSure {
			r.resets++
		}
		r.hinted = at
	default:
		r.hinted = 0
	}
}

// NewRedis makes the authority. It does not connect: an unreachable server is an outage, told by the claims.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	client, policy := cfg.conn().Client(words(), cfg.Warn)
	return &Redis{cfg: cfg, client: client, policy: policy}, nil
}

// Close closes the connections.
func (r *Redis) Close() error { return r.client.Close() }

// Ping says whether the servers take claims.
func (r *Redis) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if err := r.client.Ping(ctx).Err(); err != nil {
		r.policy.Forget()
		return classify(err)
	}
	return r.policy.Check(ctx)
}

// Claim sends all claims in one pipeline.
func (r *Redis) Claim(ctx context.Context, claims []Claim) []Outcome {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	out := make([]Outcome, len(claims))
	if err := r.policy.Check(ctx); err != nil {
		for i := range out {
			out[i] = Unknown(err)
		}
		return out
	}
	r.mu.Lock()
	legacy := r.legacy
	r.mu.Unlock()
	if r.attempt(ctx, claims, out, legacy) && !legacy {
		r.mu.Lock()
		r.legacy = true
		r.mu.Unlock()
		r.attempt(ctx, claims, out, true)
	}
	return out
}

// asked is one key's SET, and before Redis 7 the GET behind it.
type asked struct{ set, get *redis.Cmd }

// attempt fills out. It says whether the server does not know NX together with GET; then nothing was set.
func (r *Redis) attempt(ctx context.Context, claims []Claim, out []Outcome, legacy bool) (tooOld bool) {
	pipe := r.client.Pipeline()
	ask := func(k Key, token string) asked {
		ms := r.cfg.TTL.Milliseconds()
		ms += rand.Int64N(ms/10 + 1)
		if legacy {
			return asked{pipe.Do(ctx, "SET", k.String(), token, "NX", "PX", ms), pipe.Do(ctx, "GET", k.String())}
		}
		return asked{set: pipe.Do(ctx, "SET", k.String(), token, "NX", "PX", ms, "GET")}
	}
	sent := make([][2]asked, len(claims))
	for i := range claims {
		c := &claims[i]
		token := c.Event.String()
		if !c.Keys.Edge.IsZero() {
			sent[i][0] = ask(c.Keys.Edge, token)
		}
		sent[i][1] = ask(c.Keys.Idem, token)
	}
	var hint *redis.Cmd
	var at time.Duration
	if r.cfg.Agent != "" && !legacy {
		at = r.cfg.Boot()
		hint = pipe.Do(ctx, "SET", agentPrefix+r.cfg.Agent, r.cfg.Run, "PX", hintTTL.Milliseconds(), "GET")
	}
	_, failed := pipe.Exec(ctx)
	if hint != nil {
		r.sawHint(hint, at)
	}
	for i := range claims {
		out[i] = Won()
		for _, a := range sent[i] {
			if a.set == nil {
				continue
			}
			o, old := a.outcome(claims[i].Event, failed)
			tooOld = tooOld || old
			out[i] = worse(out[i], o)
		}
		out[i].Match(func() {}, func(EventID) {}, func(error) { r.policy.Forget() })
	}
	return tooOld
}

// worse keeps the outcome that says less: Unknown before Held before Won. Of two holders the later one, the
// idempotency key's, is named.
func worse(a, b Outcome) Outcome {
	rank := func(o Outcome) (n int) {
		o.Match(func() { n = 0 }, func(EventID) { n = 1 }, func(error) { n = 2 })
		return n
	}
	if rank(b) >= rank(a) {
		return b
	}
	return a
}

// outcome reads one key's replies. With NX and GET, nil means that the key was absent and is now held; with
// NX alone it means the opposite, so the value read behind it decides.
func (a asked) outcome(mine EventID, failed error) (o Outcome, tooOld bool) {
	reply := a.set
	if a.get != nil {
		if err := a.set.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return Unknown(classify(err)), false
		}
		reply = a.get
	}
	v, err := reply.Text()
	switch {
	case errors.Is(err, redis.Nil) && a.get == nil:
		return Won(), false
	case errors.Is(err, redis.Nil): // set and gone again: expired, evicted or flushed in between
		return Unknown(errors.New("cannot claim: the key vanished")), false
	case err != nil:
		return Unknown(classify(err)), redisconn.IsReply(err, "ERR syntax error")
	case failed != nil && v == "":
		return Unknown(classify(failed)), false
	case v == mine.String():
		return Won(), false
	}
	by, err := ParseEventID(v)
	if err != nil {
		return Held(EventID{}), false // held by something that is no event: another program's key, or an old agent's
	}
	return Held(by), false
}

func classify(err error) error { return redisconn.Classify(err, words()) }
