package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"scanonce/window"
)

var errClosed = errors.New("it is closed: open it again")

// readOnly is the server's code for a write in a session that may only read.
const readOnly = "25006"

// pingAfter is how long a connection may have been idle before it is tried out: the server may be gone.
const pingAfter = time.Second

// After a dial that failed, whoever lost the server too is coming back: for a while a connection is held so short
// that the next one soon has its turn, but not so short that one drain needs two.
const (
	crowdedFor  = 30 * time.Second
	crowdedIdle = 400 * time.Millisecond
)

// Conns are the connections of a store: a few, made when needed, closed soon after. With none open, nothing
// runs and no timer is set.
type Conns struct {
	cfg   Config
	slots chan struct{} // a token for each that may be in use

	base   context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	idle  []*idleConn
	socks map[net.Conn]struct{}
	dials int64
	// crowded is the elapsed time up to which connections are held short.
	crowded time.Duration
	// unnamed: no prepared statements, as a pooler hands each statement to another server process.
	unnamed bool
}

type idleConn struct {
	c     *pgx.Conn
	since time.Duration
	timer *time.Timer
}

// Stats are figures since the opening, but for Open.
type Stats struct {
	Open  int   // sockets, those included that are being closed
	Dials int64 // connections tried
}

// Open makes the connections of a store, none for now: what is wrong with the server, the login or the schema
// is told by the calls, the latter two as a ConfigError, and the calls work as soon as that is mended. The error
// is Validate's.
func Open(cfg Config) (*Conns, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Boot == nil {
		host, err := window.Host()
		if err != nil {
			return nil, err
		}
		cfg.Boot = host.Boot
	}
	p := &Conns{cfg: cfg, slots: make(chan struct{}, cfg.MaxConns), socks: map[net.Conn]struct{}{}}
	p.base, p.cancel = context.WithCancelCause(context.Background())
	return p, nil
}

// Stats returns the figures.
func (p *Conns) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{Open: len(p.socks), Dials: p.dials}
}

// Boot is the clock that Config.Boot gives.
func (p *Conns) Boot() time.Duration { return p.cfg.Boot() }

// Pause waits for a random part of most.
func Pause(ctx context.Context, most time.Duration) error {
	t := time.NewTimer(rand.N(most))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// With runs f with a connection that is set up, a second time if a statement was lost: then f has done nothing.
// After an error of the connection all idle ones go too: what broke it has mostly broken them.
func (p *Conns) With(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return Explain(ctx, ctx.Err(), false)
	}
	defer func() { <-p.slots }()
	for {
		c, err := p.take(ctx)
		if err != nil {
			return Explain(ctx, err, false)
		}
		err = f(ctx, c)
		if !p.give(c, err) {
			p.closeIdle()
		}
		if err == nil {
			return nil
		}
		if !p.lostStatement(err) {
			return Explain(ctx, err, false)
		}
	}
}

// lostStatement says that a prepared statement was not where it was prepared, the first time that it
// happens: the statement has done nothing, and from now on none is prepared. It costs a lone row a third
// more time, so that it is not the rule.
func (p *Conns) lostStatement(err error) bool {
	pg := ServerError(err)
	if pg == nil || pg.Code != "26000" && pg.Code != "42P05" {
		return false
	}
	p.mu.Lock()
	first := !p.unnamed
	p.unnamed = true
	p.mu.Unlock()
	p.closeIdle()
	return first
}

// Apart runs f with a connection of its own, whose statements may last as long as ctx.
func (p *Conns) Apart(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	c, err := p.dial(ctx, 0)
	if err != nil {
		return Explain(ctx, err, false)
	}
	defer p.hangUp(c)
	return f(ctx, c)
}

// begin derives the context of a call, which ends with Close too, with its cause.
func (p *Conns) begin(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base.Err() != nil {
		return nil, nil, errClosed
	}
	p.wg.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(p.base, func() { cancel(errClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		p.wg.Done()
	}, nil
}

// take returns an idle connection, the last used one, or a new one.
func (p *Conns) take(ctx context.Context) (*pgx.Conn, error) {
	for {
		p.mu.Lock()
		n := len(p.idle)
		if n == 0 {
			p.mu.Unlock()
			return p.dial(ctx, p.cfg.StatementTimeout)
		}
		i := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		i.timer.Stop()
		if p.cfg.Boot()-i.since < pingAfter {
			return i.c, nil
		}
		quick, cancel := context.WithTimeout(ctx, p.cfg.ConnectTimeout)
		err := i.c.Ping(quick)
		cancel()
		if err == nil {
			return i.c, nil
		}
		p.hangUp(i.c)
		p.closeIdle()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// give takes a connection back after a use that ended with err, and says whether it is good for the next. A
// session that cannot write may stay like that when new ones can: after a failover, or with a setting mended.
func (p *Conns) give(c *pgx.Conn, err error) bool {
	said := ServerError(err)
	good := !c.IsClosed() && c.PgConn().TxStatus() == 'I' && (said == nil || said.Code != readOnly)
	p.mu.Lock()
	if good && p.base.Err() == nil {
		i := &idleConn{c: c, since: p.cfg.Boot()}
		idle := p.cfg.IdleTimeout
		if i.since < p.crowded {
			idle = min(idle, crowdedIdle)
		}
		i.timer = time.AfterFunc(idle, func() { p.expire(i) })
		p.idle = append(p.idle, i)
		p.mu.Unlock()
		return true
	}
	p.mu.Unlock()
	p.hangUp(c)
	return good
}

func (p *Conns) expire(i *idleConn) {
	p.mu.Lock()
	for n, x := range p.idle {
		if x == i {
			p.idle = append(p.idle[:n], p.idle[n+1:]...)
			p.mu.Unlock()
			p.hangUp(i.c)
			return
		}
	}
	p.mu.Unlock()
}

// closeIdle does not wait for the good-byes; Close does.
func (p *Conns) closeIdle() {
	p.mu.Lock()
	all := p.idle
	p.idle = nil
	p.mu.Unlock()
	for _, i := range all {
		i.timer.Stop()
		p.wg.Go(func() { p.hangUp(i.c) })
	}
}

// hangUp says good-bye to the server, which may not listen any more.
func (p *Conns) hangUp(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx)
}

// Close cuts short what is under way and waits for it.
func (p *Conns) Close() {
	p.mu.Lock()
	p.cancel(errClosed)
	p.mu.Unlock()
	p.wg.Wait()
	p.closeIdle()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.socks { // of connections that the driver is still ending in the background
		s.Close()
	}
	clear(p.socks)
}

// dial makes a connection and sets it up.
func (p *Conns) dial(ctx context.Context, statementTimeout time.Duration) (*pgx.Conn, error) {
	cc, err := p.cfg.ConnConfig()
	if err != nil {
		return nil, err
	}
	cc.DialFunc = p.socket
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ConnectTimeout)
	defer cancel()
	p.mu.Lock()
	p.dials++
	if p.unnamed {
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	p.mu.Unlock()
	c, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		p.mu.Lock()
		p.crowded = p.cfg.Boot() + crowdedFor
		p.mu.Unlock()
		return nil, err
	}
	if err := setUp(ctx, c, statementTimeout); err != nil {
		p.hangUp(c)
		return nil, err
	}
	return c, nil
}

// setUp makes no use of the server's defaults for what durability and the retries rest on, and makes sure
// of the schema. One round trip.
func setUp(ctx context.Context, c *pgx.Conn, statementTimeout time.Duration) error {
	results, err := c.PgConn().Exec(ctx, fmt.Sprintf(`
		SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED;
		SET synchronous_commit = on;
		SET statement_timeout = %d;
		SET TimeZone = 'UTC';
		SELECT coalesce(max(version), 0) FROM scan_schema`, statementTimeout.Milliseconds())).ReadAll()
	if err != nil {
		return err
	}
	last := results[len(results)-1]
	var version int
	if len(last.Rows) != 1 {
		return errors.New("the answer about the schema's version is incomplete")
	}
	if _, err := fmt.Sscan(string(last.Rows[0][0]), &version); err != nil {
		return fmt.Errorf("the schema's version is not a number: %w", err)
	}
	switch {
	case version < SchemaVersion:
		return &ConfigError{fmt.Sprintf("the database schema has version %d, older than this program's %d", version, SchemaVersion), migrateHint}
	case version > SchemaVersion:
		return NewerSchema(version)
	}
	return nil
}

// socket dials, and keeps book of what is open: the driver ends a broken connection in the background, and
// takes up to 15 s for a server that does not answer.
func (p *Conns) socket(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.base, cancel)()
	var d net.Dialer
	raw, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s := &bookedConn{Conn: raw, p: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.base.Err() != nil {
		raw.Close()
		return nil, errClosed
	}
	p.socks[raw] = struct{}{}
	return s, nil
}

type bookedConn struct {
	net.Conn
	p *Conns
}

func (s *bookedConn) Close() error {
	s.p.mu.Lock()
	delete(s.p.socks, s.Conn)
	s.p.mu.Unlock()
	return s.Conn.Close()
}
