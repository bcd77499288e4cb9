package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
	"scanonce/window"
)

const (
	claimTTL     = time.Minute // the configuration's defaults
	claimTimeout = time.Second
	storeTimeout = 10 * time.Second
)

// central are the stores of a facility: a private redis-server and a private PostgreSQL that syncs each commit,
// with what the agent uses to reach them and what a baseline does. One side measures at a time.
type central struct {
	server   *testenv.Redis
	redis    *redis.Client // the baselines'
	pg       *pgx.Conn     // the baselines', as the login that agents have
	admin    *pgx.Conn
	claims   *idem.Redis
	ledger   *ledger.Postgres
	agentDSN string
}

// postgresSettings are those of a server that is not a test's: the rest of the settings are defaults, and
// those of durability too.
func postgresSettings() []string { return []string{"shared_buffers=128MB", "max_wal_size=2GB"} }

func startCentral(tb testing.TB, host window.OS) (*central, error) {
	c := &central{server: testenv.StartRedis(tb)}
	p := testenv.NewPostgres(tb, testenv.PostgresOptions{Settings: postgresSettings()})
	db := p.NewDatabase(tb)
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if _, _, err := ledger.Migrate(ctx, ledger.PostgresConfig{DSN: p.OwnerDSN(db)}, 0); err != nil {
		return nil, err
	}
	c.agentDSN = p.AgentDSN(tb, db)
	c.admin = p.Connect(tb, testenv.PostgresSuperuser, db)
	var err error
	if c.pg, err = pgx.Connect(ctx, c.agentDSN); err != nil {
		return nil, err
	}
	tb.Cleanup(func() { c.pg.Close(context.Background()) })
	c.redis = redis.NewClient(&redis.Options{Addr: c.server.Addr, MaxRetries: -1, DisableIdentity: true})
	tb.Cleanup(func() { c.redis.Close() })
	if c.claims, err = idem.NewRedis(idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{c.server.Addr}, TTL: claimTTL, Timeout: claimTimeout}); err != nil {
		return nil, err
	}
	tb.Cleanup(func() { c.claims.Close() })
	if c.ledger, err = ledger.OpenPostgres(ledger.PostgresConfig{DSN: c.agentDSN, Agent: "bench", Boot: host.Boot}); err != nil {
		return nil, err
	}
	tb.Cleanup(func() { c.ledger.Close() })
	return c, nil
}

// empty makes the stores as new, so that neither side of a comparison finds them fuller than the other, and
// makes the agent's connections: which of the two had to dial is not what is measured.
func (c *central) empty(ctx context.Context) error {
	if err := c.redis.FlushAll(ctx).Err(); err != nil {
		return err
	}
	for _, sql := range []string{"TRUNCATE scan_ledger, scan_audit_line", "CHECKPOINT"} {
		if _, err := c.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return c.warm(ctx)
}

func (c *central) warm(ctx context.Context) error {
	_, err := c.ledger.Count(ctx)
	return errors.Join(err, c.claims.Ping(ctx), c.pg.Ping(ctx), c.redis.Ping(ctx).Err())
}

// expect says whether the ledger holds n rows: a figure for anything but one row a scan is none.
func (c *central) expect(ctx context.Context, n int) error {
	got, err := c.ledger.Count(ctx)
	if err == nil && got != int64(n) {
		err = fmt.Errorf("cannot measure: the ledger has %d rows for %d scans", got, n)
	}
	return err
}

// settings are what an agent's configuration says of the stores.
func (c *central) settings() string {
	return fmt.Sprintf("[claim]\nbackend = \"redis\"\n[ledger]\nbackend = \"postgres\"\n[redis]\naddrs = [%q]\n[postgres]\ndsn = %q\n", c.server.Addr, c.agentDSN)
}

func (c *central) version(ctx context.Context) string {
	var pg string
	if c.admin.QueryRow(ctx, "SHOW server_version").Scan(&pg) != nil {
		pg = "?"
	}
	info, _ := c.redis.InfoMap(ctx, "server").Result()
	return fmt.Sprintf("redis-server %s and PostgreSQL %s on this machine, by TCP", info["Server"]["redis_version"], pg)
}

// process stands in for a test where the starters of servers want one. What would fail a test ends the call
// within attempt with an error.
type process struct {
	testing.TB
	dir      string
	cleanups []func()
}

type failure struct{ error }

func (p *process) Helper()                   {}
func (p *process) Cleanup(f func())          { p.cleanups = append(p.cleanups, f) }
func (p *process) Logf(string, ...any)       {}
func (p *process) Failed() bool              { return false }
func (p *process) Fatal(a ...any)            { panic(failure{errors.New(fmt.Sprint(a...))}) }
func (p *process) Error(a ...any)            { fmt.Fprintln(os.Stderr, a...) }
func (p *process) Errorf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (p *process) Fatalf(f string, a ...any) { panic(failure{fmt.Errorf(f, a...)}) }

func (p *process) TempDir() string {
	dir, err := os.MkdirTemp(p.dir, "")
	if err != nil {
		p.Fatal(err)
	}
	return dir
}

// attempt runs f and makes an error of a Fatal in it.
func (p *process) attempt(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	return f()
}

func (p *process) end() error {
	return p.attempt(func() error {
		for _, f := range slices.Backward(p.cleanups) {
			f()
		}
		p.cleanups = nil
		return nil
	})
}
