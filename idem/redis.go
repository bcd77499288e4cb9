package idem

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisMode is how the servers work together.
type RedisMode string

// The modes.
const (
	RedisSingle   RedisMode = "single"
	RedisSentinel RedisMode = "sentinel"
	RedisCluster  RedisMode = "cluster"
)

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
	// Agent and Run name the agent and its process, and Boot is elapsed time: with them a hint key tells whether
	// the store has lost its keys. Agent "" leaves it out.
	Agent, Run string
	Boot       func() time.Duration
}

const (
	agentPrefix = "scan:agent:"
	hintTTL     = time.Minute
	hintSure    = hintTTL - 10*time.Second // younger than this, the hint cannot have expired
)

// Password never prints.
type Password string

func (p Password) String() string { return "[password]" }

// GoString is String.
func (p Password) GoString() string { return p.String() }

// MarshalText writes String's form.
func (p Password) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ConfigError is a failure that no retry mends: somebody must change something. The claims it stands in are
// Unknown, and the ledger decides meanwhile.
type ConfigError struct {
	Detail string // "cannot …"
	Hint   string
}

func (e *ConfigError) Error() string { return e.Detail + ": " + e.Hint }

// Validate checks what can be checked without a connection. Its errors are *ConfigError.
func (c *RedisConfig) Validate() error {
	wrong := func(hint, detail string, args ...any) error {
		return &ConfigError{Detail: fmt.Sprintf(detail, args...), Hint: hint}
	}
	if len(c.Addrs) == 0 {
		return wrong(`write redis.addrs = ["host:6379"]`, "cannot claim in Redis without a server")
	}
	switch c.Mode {
	case RedisSingle:
		if len(c.Addrs) > 1 {
			return wrong(`name one, or write redis.mode = "cluster" or "sentinel"`, `cannot use several redis.addrs with mode = "single"`)
		}
	case RedisSentinel:
		if c.MasterName == "" {
			return wrong(`write redis.master_name`, `cannot ask the sentinels without a master's name`)
		}
	case RedisCluster:
		if c.DB != 0 {
			return wrong(`leave redis.db out`, `cannot use redis.db with a cluster`)
		}
	default:
		return wrong("write single, sentinel or cluster", "cannot use redis.mode %q", c.Mode)
	}
	for _, a := range c.Addrs {
		host, _, err := net.SplitHostPort(a)
		if err != nil {
			return wrong("write host:port", "cannot use the Redis address %q", a)
		}
		if c.TLS == nil && !loopback(host) {
			return wrong("write redis.tls = true", "cannot send claims and the password to %s in plaintext", host)
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Redis is the Authority in Redis: SET NX PX with the event's id as the owner's token.
type Redis struct {
	cfg    RedisConfig
	client redis.UniversalClient

	mu      sync.Mutex
	legacy  bool // the server is older than 7.0: SET has no NX with GET
	checked bool // the eviction policy has been looked at
	refused error
	notes   []string
	hinted  time.Duration // when the hint was last set; 0 if it may be gone by rights
	resets  uint64
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

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// NewRedis makes the authority. It does not connect: an unreachable server is an outage, told by the claims.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	redis.SetLogger(silent{}) // the library would print addresses and errors by itself
	o := &redis.UniversalOptions{
		Addrs: cfg.Addrs, MasterName: cfg.MasterName, Username: cfg.Username, Password: string(cfg.Password), DB: cfg.DB, TLSConfig: cfg.TLS,
		// A retry inside the client would see its own lost SET as another's and answer "held".
		MaxRetries: -1, DialerRetries: 1, MaxRedirects: redirects(cfg.Mode),
		ContextTimeoutEnabled: true, DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		PoolSize: 2, MaxIdleConns: 1, ConnMaxIdleTime: time.Minute, DisableIdentity: true, IsClusterMode: cfg.Mode == RedisCluster,
	}
	if cfg.Mode == RedisSentinel {
		o.SentinelUsername, o.SentinelPassword = "", ""
	} else {
		o.MasterName = ""
	}
	return &Redis{cfg: cfg, client: redis.NewUniversalClient(o)}, nil
}

// redirects lets a cluster client follow MOVED, which is no retry: the node that answers it has done nothing.
func redirects(m RedisMode) int {
	if m == RedisCluster {
		return 3
	}
	return -1
}

// Close closes the connections.
func (r *Redis) Close() error { return r.client.Close() }

// Ping says whether the servers take claims.
func (r *Redis) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if err := r.client.Ping(ctx).Err(); err != nil {
		r.forget()
		return classify(err)
	}
	return r.check(ctx)
}

// Notes are remarks about the servers that do not stop the claims.
func (r *Redis) Notes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.notes
}

func (r *Redis) forget() {
	r.mu.Lock()
	r.checked = false
	r.mu.Unlock()
}

// check looks at the eviction policy, once per connection. A server that may drop any key under memory
// pressure is refused: its answers would look like first claims.
func (r *Redis) check(ctx context.Context) error {
	r.mu.Lock()
	done, refused := r.checked, r.refused
	r.mu.Unlock()
	if done {
		return refused
	}
	var notes []string
	refused = nil
	one := func(ctx context.Context, c redis.Cmdable) error {
		v, err := c.ConfigGet(ctx, "maxmemory-policy").Result()
		policy := v["maxmemory-policy"]
		switch {
		case err != nil && (isReply(err, "NOPERM") || isReply(err, "ERR unknown command")):
			notes = append(notes, "cannot see maxmemory-policy: make sure that it is noeviction or volatile-ttl")
		case err != nil:
			return err
		case strings.HasPrefix(policy, "allkeys-"):
			refused = &ConfigError{Detail: fmt.Sprintf("cannot claim in this Redis: maxmemory-policy is %s, so that it may drop a claim at any moment", policy),
				Hint: "set maxmemory-policy noeviction or volatile-ttl; the ledger decides meanwhile"}
		case policy != "noeviction" && policy != "volatile-ttl":
			notes = append(notes, fmt.Sprintf("maxmemory-policy is %s: noeviction or volatile-ttl loses fewer claims", policy))
		}
		return nil
	}
	var err error
	if c, ok := r.client.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		err = c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			return one(ctx, m)
		})
	} else {
		err = one(ctx, r.client)
	}
	if err != nil {
		return classify(err)
	}
	r.mu.Lock()
	r.checked, r.refused, r.notes = true, refused, notes
	r.mu.Unlock()
	return refused
}

// Claim sends all claims in one pipeline.
func (r *Redis) Claim(ctx context.Context, claims []Claim) []Outcome {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	out := make([]Outcome, len(claims))
	if err := r.check(ctx); err != nil {
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
		out[i].Match(func() {}, func(EventID) {}, func(error) { r.forget() })
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
		return Unknown(classify(err)), isReply(err, "ERR syntax error")
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

// isReply says whether err is a reply of the server that begins with prefix.
func isReply(err error, prefix string) bool {
	return err != nil && strings.HasPrefix(err.Error(), prefix)
}

// classify tells configuration from weather.
func classify(err error) error {
	var c *ConfigError
	if errors.As(err, &c) {
		return err
	}
	for _, k := range []struct{ prefix, detail, hint string }{
		{"WRONGPASS", "cannot log in to Redis: it refuses the user name or the password", "check redis.username and the content of redis.password_file"},
		{"NOAUTH", "cannot use Redis: it wants a password", "set redis.password_file, and redis.username for an ACL user"},
		{"NOPERM", "cannot claim in Redis: its ACL does not allow the agent's user SET, GET and PING on scan:*", "grant: ACL SETUSER <user> on ~scan:* +set +get +ping +config|get, and +cluster|slots +cluster|shards +readonly for a cluster"},
		{"MOVED", `cannot claim in this Redis: it is a node of a cluster`, `write redis.mode = "cluster"`},
		{"ERR This instance has cluster support disabled", `cannot find a cluster at redis.addrs: the server is no cluster node`, `write redis.mode = "single"`},
		{"OOM", "cannot claim in Redis: its memory is full", "raise maxmemory; the ledger decides meanwhile"},
	} {
		if isReply(err, k.prefix) {
			return &ConfigError{Detail: k.detail, Hint: k.hint}
		}
	}
	var authority *tls.CertificateVerificationError
	if errors.As(err, &authority) {
		return &ConfigError{Detail: "cannot trust the Redis server's certificate: " + authority.Err.Error(), Hint: "set redis.ca_file to the authority that signed it, and use the name in the certificate in redis.addrs"}
	}
	return fmt.Errorf("cannot reach Redis: %w", err)
}
