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
	"time"

	"scanonce/idem"
	"scanonce/internal/config"
	"scanonce/sync/claimstate"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// Check finds what is wrong with the facility's secret, the NDC directory and the stores of a configuration, as
// far as that shows without a connection. Without its directory or its stores the agent captures all the same.
func Check(cfg *config.Config) error {
	if err := checkRxSecret(cfg); err != nil {
		return err
	}
	if cfg.API.TokenFile != "" { // else it is made if it is missing, which is for run to do
		if _, err := apiToken(cfg); err != nil {
			return err
		}
	}
	if cfg.NDC.Directory != "" {
		if _, _, err := ReadNDC(cfg.NDC.Directory); err != nil {
			return err
		}
	}
	if s := cfg.ClaimState.Backend; cfg.Claim.Backend == "redis" || s == "redis" || s == "split" {
		if c, err := redisConfig(cfg); err != nil {
			return usageError("redis", err)
		} else if err := c.Validate(); err != nil {
			return usageError("redis", err)
		}
	}
	if cfg.Ledger.Backend == "postgres" || cfg.PA.Backend == "postgres" {
		if err := postgresConfig(cfg, "").Validate(); err != nil {
			return usageError("postgres", err)
		}
	}
	if s := cfg.ClaimState.Backend; s == "dynamodb" || s == "split" {
		c := stateDynamo(cfg, nil)
		if err := c.Validate(); err != nil {
			return usageError("dynamodb", err)
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
	var states *claimstate.ConfigError
	var stateFile *claimstate.DamageError
	var cases *pacase.DamageError
	switch {
	case errors.As(err, &r):
		return r.Detail, r.Hint, true
	case errors.As(err, &p):
		return "cannot use PostgreSQL: " + p.Detail, p.Hint, true
	case errors.As(err, &d):
		return "cannot use the ledger: " + d.Error(), d.Hint(), true
	}
	switch {
	case errors.As(err, &states):
		return states.Detail, states.Hint, true
	case errors.As(err, &stateFile):
		return stateFile.Error(), stateFile.Hint(), true
	case errors.As(err, &cases):
		return "cannot hold prior-authorization cases: " + cases.Error(), cases.Hint(), true
	}
	return err.Error(), "", false
}

// openLedger makes the ledger of the configuration. A mistake in it is told by the calls: capturing goes on.
func openLedger(cfg *config.Config, agent string, host window.OS, now func() window.UTC) *lateLedger {
	if cfg.Ledger.Backend == "postgres" {
		c := postgresConfig(cfg, agent)
		c.Boot = host.Boot
		return newLateLedger(func() (ledger.Ledger, error) {
			p, err := ledger.OpenPostgres(c)
			if err != nil {
				return nil, err
			}
			return p, nil
		})
	}
	path := filepath.Join(cfg.Agent.StateDir, "ledger.db")
	return newLateLedger(func() (ledger.Ledger, error) {
		e, err := ledger.OpenEmbedded(path, now)
		if err != nil {
			return nil, err
		}
		return e, nil
	})
}

func postgresConfig(cfg *config.Config, agent string) ledger.PostgresConfig {
	p := cfg.Postgres
	return ledger.PostgresConfig{DSN: p.DSN, PasswordFile: p.PasswordFile, ConnectTimeout: p.ConnectTimeout, StatementTimeout: p.StatementTimeout, Agent: agent}
}

// openClaims makes the claim authority of the configuration.
func openClaims(cfg *config.Config, agent, run string, host window.OS, warn func(string)) idem.Authority {
	if cfg.Claim.Backend != "redis" {
		return idem.NewEmbedded(host.Boot, cfg.Claim.TTL)
	}
	return &lateClaims{late[*idem.Redis]{open: func() (*idem.Redis, error) {
		c, err := redisConfig(cfg)
		if err != nil {
			return nil, err
		}
		c.Agent, c.Run, c.Boot, c.Warn = agent, run, host.Boot, warn
		return idem.NewRedis(c)
	}}}
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
type lateClaims struct{ late[*idem.Redis] }

// Claim answers every claim; see idem.Authority.
func (l *lateClaims) Claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	r, err := l.get(ctx)
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
	r, err := l.get(ctx)
	if err != nil {
		return err
	}
	if err = r.Ping(ctx); err == nil {
		trial := idem.Claim{Keys: idem.Keys{Idem: idem.Key{Kind: idem.Idem, Hash: sha256.Sum256([]byte("trial"))}}, Event: idem.EventID{1}}
		r.Claim(ctx, []idem.Claim{trial})[0].Match(func() {}, func(idem.EventID) {}, func(cause error) { err = cause })
	}
	var mistake *idem.ConfigError
	if errors.As(err, &mistake) {
		l.again(r)
	}
	return err
}

// Resets counts the losses of the store's keys.
func (l *lateClaims) Resets() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.opened {
		return 0
	}
	return l.store.Resets()
}

// clockedLedger is a ledger whose clock is the fleet's reference.
type clockedLedger struct{ *lateLedger }

// Clock asks the ledger for the time.
func (l clockedLedger) Clock(ctx context.Context) (window.UTC, time.Duration, error) {
	g, err := l.get(ctx)
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

// Fence waits until the rows that are visible are as durable as acknowledged ones.
func (l clockedLedger) Fence(ctx context.Context) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	if k, ok := g.(interface{ Fence(context.Context) error }); ok {
		return k.Fence(ctx)
	}
	return nil
}

// forwardLedger is the ledger as the forwarder uses it: an embedded one has no clock but the agent's own.
func forwardLedger(cfg *config.Config, l *lateLedger) ledger.Ledger {
	if cfg.Ledger.Backend == "embedded" {
		return l
	}
	return clockedLedger{l}
}

// lateLedger is the ledger, opened when it is needed.
type lateLedger struct{ late[ledger.Ledger] }

func newLateLedger(open func() (ledger.Ledger, error)) *lateLedger {
	return &lateLedger{late[ledger.Ledger]{open: open}}
}

func (l *lateLedger) Insert(ctx context.Context, rows []ledger.Row) (ledger.Inserted, error) {
	g, err := l.get(ctx)
	if err != nil {
		return ledger.Inserted{}, err
	}
	return g.Insert(ctx, rows)
}

func (l *lateLedger) Standing(ctx context.Context, probes []ledger.Probe) ([]ledger.Standing, error) {
	g, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return g.Standing(ctx, probes)
}

func (l *lateLedger) AppendLines(ctx context.Context, lines []ledger.Line) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.AppendLines(ctx, lines)
}

func (l *lateLedger) AppendChain(ctx context.Context, records []ledger.ChainRecord) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.AppendChain(ctx, records)
}

func (l *lateLedger) Ingest(ctx context.Context, asks []ledger.Ingest) ([]ledger.Ingested, error) {
	g, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return g.Ingest(ctx, asks)
}

func (l *lateLedger) Chain(ctx context.Context, yield func(ledger.ChainRecord) error) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.Chain(ctx, yield)
}

func (l *lateLedger) ChainHeads(ctx context.Context) ([]ledger.ChainHead, error) {
	g, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return g.ChainHeads(ctx)
}

// Retain removes old lines from a ledger that lets the agent do so; see ledger.Embedded.
func (l *lateLedger) Retain(ctx context.Context, before window.UTC) (int, error) {
	g, err := l.get(ctx)
	if err != nil {
		return 0, err
	}
	if e, ok := g.(*ledger.Embedded); ok {
		return e.Retain(ctx, before)
	}
	return 0, nil
}

func (l *lateLedger) Rows(ctx context.Context, s ledger.Span, yield func(ledger.Row) error) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.Rows(ctx, s, yield)
}

func (l *lateLedger) Lines(ctx context.Context, s ledger.Span, yield func(ledger.Line) error) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.Lines(ctx, s, yield)
}

func (l *lateLedger) Find(ctx context.Context, prefix string, limit int) ([]ledger.Row, error) {
	g, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return g.Find(ctx, prefix, limit)
}

func (l *lateLedger) LinesOf(ctx context.Context, key idem.Key) ([]ledger.Line, error) {
	g, err := l.get(ctx)
	if err != nil {
		return nil, err
	}
	return g.LinesOf(ctx, key)
}

func (l *lateLedger) Ping(ctx context.Context) error {
	g, err := l.get(ctx)
	if err != nil {
		return err
	}
	return g.Ping(ctx)
}

func (l *lateLedger) Count(ctx context.Context) (int64, error) {
	g, err := l.get(ctx)
	if err != nil {
		return 0, err
	}
	return g.Count(ctx)
}
