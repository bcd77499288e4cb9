package ledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

var errClosed = errors.New("it is closed: open it again")

// pingAfter is how long a connection may have been idle before it is tried out: the server may be gone.
const pingAfter = time.Second

// conns are the connections of a ledger: a few, made when needed, closed soon after. With none open, nothing
// runs and no timer is set.
type conns struct {
	cfg   PostgresConfig
	slots chan struct{} // a token for each that may be in use

	base   context.Context // ends with Close
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	idle  []*idleConn
	socks map[net.Conn]struct{}
	dials int64
	// unnamed: no prepared statements, as a pooler hands each statement to another server process.
	unnamed bool
}

type idleConn struct {
	c     *pgx.Conn
	since time.Duration
	timer *time.Timer
}

func newConns(cfg PostgresConfig) *conns {
	p := &conns{cfg: cfg, slots: make(chan struct{}, cfg.MaxConns), socks: map[net.Conn]struct{}{}}
	p.base, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// with runs f with a connection that is set up, a second time if a statement was lost. After an error of the connection all idle ones go too: what
// broke it has mostly broken them.
func (p *conns) with(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return explain(ctx, ctx.Err(), false)
	}
	defer func() { <-p.slots }()
	for {
		c, err := p.take(ctx)
		if err != nil {
			return explain(ctx, err, false)
		}
		err = f(ctx, c)
		if !p.give(c) {
			p.closeIdle()
		}
		if err == nil {
			return nil
		}
		if !p.lostStatement(err) {
			return explain(ctx, err, false)
		}
	}
}

// lostStatement says that a prepared statement was not where it was prepared, the first time that it
// happens: the statement has done nothing, and from now on none is prepared. It costs a lone row a third
// more time, so that it is not the rule.
func (p *conns) lostStatement(err error) bool {
	pg := serverError(err)
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

// apart runs f with a connection of its own, whose statements may last as long as ctx.
func (p *conns) apart(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, end, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	c, err := p.dial(ctx, 0)
	if err != nil {
		return explain(ctx, err, false)
	}
	defer p.hangUp(c)
	return f(ctx, c)
}

// begin derives the context of a call, which ends with Close too, with its cause.
func (p *conns) begin(ctx context.Context) (context.Context, func(), error) {
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
func (p *conns) take(ctx context.Context) (*pgx.Conn, error) {
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

// give takes a connection back, and says whether it is good for the next.
func (p *conns) give(c *pgx.Conn) bool {
	good := !c.IsClosed() && c.PgConn().TxStatus() == 'I'
	p.mu.Lock()
	if good && p.base.Err() == nil {
		i := &idleConn{c: c, since: p.cfg.Boot()}
		i.timer = time.AfterFunc(p.cfg.IdleTimeout, func() { p.expire(i) })
		p.idle = append(p.idle, i)
		p.mu.Unlock()
		return true
	}
	p.mu.Unlock()
	p.hangUp(c)
	return good
}

func (p *conns) expire(i *idleConn) {
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

// closeIdle does not wait for the good-byes; close does.
func (p *conns) closeIdle() {
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
func (p *conns) hangUp(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.Close(ctx)
}

// close cuts short what is under way and waits for it.
func (p *conns) close() {
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
func (p *conns) dial(ctx context.Context, statementTimeout time.Duration) (*pgx.Conn, error) {
	cc, err := p.cfg.connConfig()
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
		return newerSchema(version)
	}
	return nil
}

// socket dials, and keeps book of what is open: the driver ends a broken connection in the background, and
// takes up to 15 s for a server that does not answer.
func (p *conns) socket(ctx context.Context, network, addr string) (net.Conn, error) {
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
	p *conns
}

func (s *bookedConn) Close() error {
	s.p.mu.Lock()
	delete(s.p.socks, s.Conn)
	s.p.mu.Unlock()
	return s.Conn.Close()
}
