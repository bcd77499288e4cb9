package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"scanonce/idem"
	"scanonce/internal/config"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// Check finds what is wrong with the stores of a configuration, as far as that shows without a connection. The
// agent captures all the same.
func Check(cfg *config.Config) error {
	if cfg.Claim.Backend == "redis" {
		if c, err := redisConfig(cfg); err != nil {
			return usageError("redis", err)
		} else if err := c.Validate(); err != nil {
			return usageError("redis", err)
		}
	}
	if cfg.Ledger.Backend == "postgres" {
		if err := postgresConfig(cfg, "").Validate(); err != nil {
			return usageError("postgres", err)
		}
	}
	return nil
}

func usageError(kind string, err error) error {
	detail, hint, _ := configError(err)
	return &ExitError{Code: ExitUsage, Kind: kind, Detail: detail, Hint: hint}
}

// configError splits a failure that somebody must mend into what is wrong and what to do.
func configError(err error) (detail, hint string, ok bool) {
	var r *idem.ConfigError
	var p *ledger.ConfigError
	var d *ledger.DamageError
	switch {
	case errors.As(err, &r):
		return r.Detail, r.Hint, true
	case errors.As(err, &p):
		return "cannot use PostgreSQL: " + p.Detail, p.Hint, true
	case errors.As(err, &d):
		return "cannot use the ledger: " + d.Error(), d.Hint(), true
	}
	return err.Error(), "", false
}

// openLedger makes the ledger of the configuration. A mistake in it is told by the calls: capturing goes on.
func openLedger(cfg *config.Config, agent string, host window.OS, now func() window.UTC) *lateLedger {
	if cfg.Ledger.Backend == "postgres" {
		c := postgresConfig(cfg, agent)
		c.Boot = host.Boot
		return &lateLedger{open: func() (ledger.Ledger, error) {
			p, err := ledger.OpenPostgres(c)
			if err != nil {
				return nil, err
			}
			return p, nil
		}}
	}
	path := filepath.Join(cfg.Agent.StateDir, "ledger.db")
	return &lateLedger{open: func() (ledger.Ledger, error) {
		e, err := ledger.OpenEmbedded(path, now)
		if err != nil {
			return nil, err
		}
		return e, nil
	}}
}

func postgresConfig(cfg *config.Config, agent string) ledger.PostgresConfig {
	p := cfg.Postgres
	return ledger.PostgresConfig{DSN: p.DSN, PasswordFile: p.PasswordFile, ConnectTimeout: p.ConnectTimeout, StatementTimeout: p.StatementTimeout, Agent: agent}
}

// openClaims makes the claim authority of the configuration.
func openClaims(cfg *config.Config, agent, run string, host window.OS) idem.Authority {
	if cfg.Claim.Backend != "redis" {
		return idem.NewEmbedded(host.Boot, cfg.Claim.TTL)
	}
	return &lateClaims{open: func() (*idem.Redis, error) {
		c, err := redisConfig(cfg)
		if err != nil {
			return nil, err
		}
		c.Agent, c.Run, c.Boot = agent, run, host.Boot
		return idem.NewRedis(c)
	}}
}

func redisConfig(cfg *config.Config) (idem.RedisConfig, error) {
	r := cfg.Redis
	c := idem.RedisConfig{Mode: idem.RedisMode(r.Mode), Addrs: r.Addrs, MasterName: r.MasterName, Username: r.Username, DB: r.DB,
		TTL: cfg.Claim.TTL, Timeout: cfg.Claim.Timeout}
	wrong := func(key, path string, err error) error {
		return &idem.ConfigError{Detail: fmt.Sprintf("cannot read redis.%s %s: %s", key, path, cause(err)), Hint: "write the file, readable for the agent's user"}
	}
	if r.PasswordFile != "" {
		b, err := os.ReadFile(r.PasswordFile)
		if err != nil {
			return c, wrong("password_file", r.PasswordFile, err)
		}
		c.Password = idem.Password(strings.TrimRight(string(b), "\r\n"))
	}
	if !r.TLS {
		return c, nil
	}
	c.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if r.CAFile != "" {
		b, err := os.ReadFile(r.CAFile)
		if err != nil {
			return c, wrong("ca_file", r.CAFile, err)
		}
		c.TLS.RootCAs = x509.NewCertPool()
		if !c.TLS.RootCAs.AppendCertsFromPEM(b) {
			return c, wrong("ca_file", r.CAFile, errors.New("it holds no certificate"))
		}
	}
	if r.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(r.CertFile, r.KeyFile)
		if err != nil {
			return c, wrong("cert_file", r.CertFile, err)
		}
		c.TLS.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// lateClaims opens its authority at the first use. After a mistake of configuration it reads files anew, so
// that a password mended on disk is used without a restart.
type lateClaims struct {
	open func() (*idem.Redis, error)

	mu     sync.Mutex
	r      *idem.Redis
	closed bool
}

var errClaimsClosed = errors.New("cannot claim: the authority is closed")

func (l *lateClaims) get() (*idem.Redis, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClaimsClosed
	}
	if l.r == nil {
		r, err := l.open()
		if err != nil {
			return nil, err
		}
		l.r = r
	}
	return l.r, nil
}

// Claim answers every claim; see idem.Authority.
func (l *lateClaims) Claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	r, err := l.get()
	if err == nil {
		return r.Claim(ctx, claims)
	}
	out := make([]idem.Outcome, len(claims))
	for i := range out {
		out[i] = idem.Unknown(err)
	}
	return out
}

// Ping says whether claims can be made, and makes one of no scan: a server may let in whom it allows no claim,
// and a full one still answers.
func (l *lateClaims) Ping(ctx context.Context) error {
	r, err := l.get()
	if err != nil {
		return err
	}
	if err = r.Ping(ctx); err == nil {
		trial := idem.Claim{Keys: idem.Keys{Idem: idem.Key{Kind: idem.Idem, Hash: sha256.Sum256([]byte("trial"))}}, Event: idem.EventID{1}}
		r.Claim(ctx, []idem.Claim{trial})[0].Match(func() {}, func(idem.EventID) {}, func(cause error) { err = cause })
	}
	var mistake *idem.ConfigError
	if errors.As(err, &mistake) {
		l.mu.Lock()
		if l.r == r {
			l.r = nil
			r.Close()
		}
		l.mu.Unlock()
	}
	return err
}

// Resets counts the losses of the store's keys.
func (l *lateClaims) Resets() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.r == nil {
		return 0
	}
	return l.r.Resets()
}

// Notes are remarks about the servers.
func (l *lateClaims) Notes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.r == nil {
		return nil
	}
	return l.r.Notes()
}

// Close closes what is open.
func (l *lateClaims) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.r == nil {
		return nil
	}
	return l.r.Close()
}

// clockedLedger is a ledger whose clock is the fleet's reference.
type clockedLedger struct{ *lateLedger }

// Clock asks the ledger for the time.
func (l clockedLedger) Clock(ctx context.Context) (window.UTC, time.Duration, error) {
	g, err := l.get()
	if err != nil {
		return 0, 0, err
	}
	k, ok := g.(interface {
		Clock(context.Context) (window.UTC, time.Duration, error)
	})
	if !ok {
		return 0, 0, errors.New("cannot ask this ledger for the time")
	}
	return k.Clock(ctx)
}

// forwardLedger is the ledger as the forwarder uses it: an embedded one has no clock but the agent's own.
func forwardLedger(cfg *config.Config, l *lateLedger) ledger.Ledger {
	if cfg.Ledger.Backend == "embedded" {
		return l
	}
	return clockedLedger{l}
}

// lateLedger opens its ledger at the first use and again until it works: a ledger that cannot be opened is an
// outage, not a reason to stop capturing.
type lateLedger struct {
	open func() (ledger.Ledger, error)

	mu     sync.Mutex
	l      ledger.Ledger
	closed bool
}

var errLedgerClosed = errors.New("cannot use the ledger: it is closed")

func (l *lateLedger) get() (ledger.Ledger, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errLedgerClosed
	}
	if l.l == nil {
		opened, err := l.open()
		if err != nil {
			return nil, err
		}
		l.l = opened
	}
	return l.l, nil
}

func (l *lateLedger) Insert(ctx context.Context, rows []ledger.Row) (ledger.Inserted, error) {
	g, err := l.get()
	if err != nil {
		return ledger.Inserted{}, err
	}
	return g.Insert(ctx, rows)
}

func (l *lateLedger) Standing(ctx context.Context, probes []ledger.Probe) ([]ledger.Standing, error) {
	g, err := l.get()
	if err != nil {
		return nil, err
	}
	return g.Standing(ctx, probes)
}

func (l *lateLedger) AppendLines(ctx context.Context, lines []ledger.Line) error {
	g, err := l.get()
	if err != nil {
		return err
	}
	return g.AppendLines(ctx, lines)
}

func (l *lateLedger) Rows(ctx context.Context, s ledger.Span, yield func(ledger.Row) error) error {
	g, err := l.get()
	if err != nil {
		return err
	}
	return g.Rows(ctx, s, yield)
}

func (l *lateLedger) Lines(ctx context.Context, s ledger.Span, yield func(ledger.Line) error) error {
	g, err := l.get()
	if err != nil {
		return err
	}
	return g.Lines(ctx, s, yield)
}

func (l *lateLedger) Find(ctx context.Context, prefix string, limit int) ([]ledger.Row, error) {
	g, err := l.get()
	if err != nil {
		return nil, err
	}
	return g.Find(ctx, prefix, limit)
}

func (l *lateLedger) LinesOf(ctx context.Context, key idem.Key) ([]ledger.Line, error) {
	g, err := l.get()
	if err != nil {
		return nil, err
	}
	return g.LinesOf(ctx, key)
}

func (l *lateLedger) Ping(ctx context.Context) error {
	g, err := l.get()
	if err != nil {
		return err
	}
	return g.Ping(ctx)
}

func (l *lateLedger) Count(ctx context.Context) (int64, error) {
	g, err := l.get()
	if err != nil {
		return 0, err
	}
	return g.Count(ctx)
}

func (l *lateLedger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.l == nil {
		return nil
	}
	return l.l.Close()
}
