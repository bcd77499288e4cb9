// Package redisconn is how a room reaches Redis: the same servers, options, rules about plaintext and words
// about mistakes for the claims on scans and for claim state.
package redisconn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Mode is how the servers work together.
type Mode string

// The modes.
const (
	Single   Mode = "single"
	Sentinel Mode = "sentinel"
	Cluster  Mode = "cluster"
)

// Password never prints.
type Password string

func (p Password) String() string { return "[password]" }

// GoString is String.
func (p Password) GoString() string { return p.String() }

// MarshalText writes String's form.
func (p Password) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ConfigError is a failure that no retry mends: somebody must change something.
type ConfigError struct {
	Detail string // "cannot …"
	Hint   string
}

func (e *ConfigError) Error() string { return e.Detail + ": " + e.Hint }

// Config says which servers.
type Config struct {
	Mode       Mode
	Addrs      []string // host:port of the server, of the sentinels, or of some cluster nodes
	MasterName string   // of Sentinel
	Username   string   // ACL user; "" is the default one
	Password   Password
	DB         int
	TLS        *tls.Config   // nil: plaintext, allowed to loopback only
	Timeout    time.Duration // of a round trip, dialling included
	// Dial opens a connection; nil is the network's way. A simulation puts its server here.
	Dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	Conns int // dialled at once, to each server
	Idle  int // of them kept while nothing is sent, for a minute
}

// Validate checks what can be checked without a connection. Its errors are *ConfigError.
func (c *Config) Validate() error {
	wrong := func(hint, detail string, args ...any) error {
		return &ConfigError{Detail: fmt.Sprintf(detail, args...), Hint: hint}
	}
	if len(c.Addrs) == 0 {
		return wrong(`write redis.addrs = ["host:6379"]`, "cannot keep claims in Redis without a server")
	}
	switch c.Mode {
	case Single:
		if len(c.Addrs) > 1 {
			return wrong(`name one, or write redis.mode = "cluster" or "sentinel"`, `cannot use several redis.addrs with mode = "single"`)
		}
	case Sentinel:
		if c.MasterName == "" {
			return wrong(`write redis.master_name`, `cannot ask the sentinels without a master's name`)
		}
	case Cluster:
		if c.DB != 0 {
			return wrong(`leave redis.db out`, `cannot use redis.db with a cluster`)
		}
	default:
		return wrong("write single, sentinel or cluster", "cannot use redis.mode %q", c.Mode)
	}
	for _, a := range c.Addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return wrong("write host:port", "cannot use the Redis address %q", a)
		}
		if err := c.private(a); err != nil {
			return err
		}
	}
	return nil
}

// private refuses an address to which plaintext would go over a network.
func (c *Config) private(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || c.TLS != nil || loopback(host) {
		return err
	}
	return &ConfigError{Detail: fmt.Sprintf("cannot send claims and the password to %s in plaintext", host), Hint: "write redis.tls = true"}
}

// dial is for plaintext alone. Sentinels and cluster nodes name other servers, which must be on this machine too.
func (c *Config) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if err := c.private(addr); err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: c.Timeout}
	return d.DialContext(ctx, network, addr)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Client makes a client, with the check of its servers' policy, which tells warn (nil for nobody) what is merely
// unwise. It does not connect.
func (c *Config) Client(w Words, warn func(remark string)) (redis.UniversalClient, *Policy) {
	p := &Policy{words: w, warn: warn}
	redis.SetLogger(silent{}) // the library would print addresses and errors by itself
	o := &redis.UniversalOptions{
		Addrs: c.Addrs, MasterName: c.MasterName, Username: c.Username, Password: string(c.Password), DB: c.DB, TLSConfig: c.TLS, Dialer: c.Dial,
		// A retry inside the client would see its own lost write as another's.
		MaxRetries: -1, DialerRetries: 1, MaxRedirects: redirects(c.Mode),
		ContextTimeoutEnabled: true, DialTimeout: c.Timeout, ReadTimeout: c.Timeout, WriteTimeout: c.Timeout, PoolTimeout: c.Timeout,
		// The size of the pool counts failed dials besides: behind that many the library dials by itself, once a second
		// and in step with all that lost the server together, and gives the caller's own dials, which are jittered, no
		// try. Without a pool of their own, pipelines share the connection.
		PoolSize: 4096, MaxConcurrentDials: c.Conns, PipelinePoolSize: -1, ReadBufferSize: 128 << 10, WriteBufferSize: 128 << 10,
		MaxIdleConns: c.Idle, ConnMaxIdleTime: time.Minute, DisableIdentity: true, IsClusterMode: c.Mode == Cluster,
		// The library dials again without a word: it may be another server, or one that was set up anew.
		OnConnect: func(context.Context, *redis.Conn) error { p.Forget(); return nil },
	}
	if c.Mode != Sentinel {
		o.MasterName = ""
	}
	if c.TLS == nil && c.Dial == nil {
		o.Dialer = c.dial
	}
	p.client = redis.NewUniversalClient(o)
	return p.client, p
}

// redirects lets a cluster client follow MOVED, which is no retry: the node that answers it has done nothing.
func redirects(m Mode) int {
	if m == Cluster {
		return 3
	}
	return -1
}

// Words are a room's own in the messages about the servers.
type Words struct {
	Denied    string // what the ACL does not allow
	Grant     string // the rights to grant
	Meanwhile string // what happens until it is mended
}

// Policy looks at the eviction policy of all masters, once per connection. A server that may drop any key
// under memory pressure is refused: a dropped claim looks like none.
type Policy struct {
	client redis.UniversalClient
	words  Words
	warn   func(remark string)

	mu      sync.Mutex
	checked bool
	refused error
	told    []string
	looking *look // under way; nil: none is
}

// look is one asking of the servers, for all calls that wait for it: each on its own would dial, and a new connection
// forgets what was found before.
type look struct {
	done  chan struct{}
	err   error // of Check
	ended bool  // by the end of the context of the call that looked: the others look again
}

// Forget makes the next Check look again: the servers may have changed behind an error.
func (p *Policy) Forget() {
	p.mu.Lock()
	p.checked = false
	p.mu.Unlock()
}

// Check is nil if keys are safe in the servers, a *ConfigError if not, another error if they cannot be asked.
func (p *Policy) Check(ctx context.Context) error {
	for {
		p.mu.Lock()
		done, refused, l := p.checked, p.refused, p.looking
		mine := !done && l == nil
		if mine {
			l = &look{done: make(chan struct{})}
			p.looking = l
		}
		p.mu.Unlock()
		switch {
		case done:
			return refused
		case mine:
			l.err = p.look(ctx)
			l.ended = ctx.Err() != nil
			p.mu.Lock()
			p.looking = nil
			p.mu.Unlock()
			close(l.done)
			return l.err
		}
		select {
		case <-l.done:
			if !l.ended {
				return l.err
			}
		case <-ctx.Done():
			return Classify(ctx.Err(), p.words)
		}
	}
}

func (p *Policy) look(ctx context.Context) error {
	var (
		notes   []string
		refused error
	)
	one := func(ctx context.Context, c redis.Cmdable) error {
		// Not by CONFIG GET: who may do that reads the servers' own passwords.
		v, err := c.Info(ctx, "memory").Result()
		_, policy, _ := strings.Cut(v, "maxmemory_policy:")
		policy, _, _ = strings.Cut(policy, "\r\n")
		switch {
		case err == nil && policy == "", err != nil && (IsReply(err, "NOPERM") || IsReply(err, "ERR unknown command")):
			notes = append(notes, "cannot see maxmemory-policy: make sure that it is noeviction or volatile-ttl")
		case err != nil:
			return err
		case strings.HasPrefix(policy, "allkeys-"):
			refused = &ConfigError{Detail: fmt.Sprintf("cannot claim in this Redis: maxmemory-policy is %s, so that it may drop a claim at any moment", policy),
				Hint: "set maxmemory-policy noeviction or volatile-ttl; " + p.words.Meanwhile}
		case policy != "noeviction" && policy != "volatile-ttl":
			notes = append(notes, fmt.Sprintf("maxmemory-policy is %s: noeviction or volatile-ttl loses fewer claims", policy))
		}
		return nil
	}
	var err error
	if c, ok := p.client.(*redis.ClusterClient); ok {
		var mu sync.Mutex
		err = c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			return one(ctx, m)
		})
	} else {
		err = one(ctx, p.client)
	}
	if err != nil {
		return Classify(err, p.words)
	}
	slices.Sort(notes)
	notes = slices.Compact(notes) // the nodes of a cluster are set up alike
	p.mu.Lock()
	told := p.told
	p.checked, p.refused, p.told = true, refused, notes
	p.mu.Unlock()
	if p.warn != nil && !slices.Equal(notes, told) {
		for _, n := range notes {
			p.warn(n)
		}
	}
	return refused
}

// IsReply says whether err is a reply of the server that begins with prefix.
func IsReply(err error, prefix string) bool {
	return err != nil && strings.HasPrefix(err.Error(), prefix)
}

// Classify tells configuration, a *ConfigError, from weather.
func Classify(err error, w Words) error {
	var c *ConfigError
	if errors.As(err, &c) {
		return err
	}
	for _, k := range []struct{ prefix, detail, hint string }{
		{"WRONGPASS", "cannot log in to Redis: it refuses the user name or the password", "check redis.username and the content of redis.password_file"},
		{"NOAUTH", "cannot use Redis: it wants a password", "set redis.password_file, and redis.username for an ACL user"},
		{"NOPERM", "cannot claim in Redis: its ACL does not allow the agent's user " + w.Denied, "grant: " + w.Grant},
		{"ERR The user executing the script can't", "cannot claim in Redis: its ACL does not allow the agent's user " + w.Denied, "grant: " + w.Grant}, // 7.0
		{"ERR ACL failure in script", "cannot claim in Redis: its ACL does not allow the agent's user " + w.Denied, "grant: " + w.Grant},               // from 7.2 on
		{"MOVED", `cannot claim in this Redis: it is a node of a cluster`, `write redis.mode = "cluster"`},
		{"ERR This instance has cluster support disabled", `cannot find a cluster at redis.addrs: the server is no cluster node`, `write redis.mode = "single"`},
		{"READONLY", "cannot claim in this Redis: it is a replica", `name its master in redis.addrs, or write redis.mode = "sentinel" and redis.master_name`},
		{"OOM", "cannot claim in Redis: its memory is full", "raise maxmemory; " + w.Meanwhile},
	} {
		if IsReply(err, k.prefix) {
			return &ConfigError{Detail: k.detail, Hint: k.hint}
		}
	}
	if e := classifyTLS(err); e != nil {
		return e
	}
	return fmt.Errorf("cannot reach Redis: %w", err)
}

func classifyTLS(err error) error {
	var (
		authority *tls.CertificateVerificationError
		invalid   x509.CertificateInvalidError
		remote    *net.OpError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return &ConfigError{Detail: "cannot trust the Redis server's certificate: " + invalid.Error(), Hint: "give the server a valid certificate, and check this machine's date"}
	case errors.As(err, &authority):
		return &ConfigError{Detail: "cannot trust the Redis server's certificate: " + authority.Err.Error(), Hint: "set redis.ca_file to the authority that signed it, and use the name in the certificate in redis.addrs"}
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert of the server's
		return &ConfigError{Detail: "cannot use Redis: it refuses the TLS connection: " + remote.Err.Error(), Hint: "set redis.cert_file and redis.key_file to a valid certificate from an authority that the server trusts"}
	}
	return nil
}
