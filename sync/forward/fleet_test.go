package forward_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/internal/testenv"
	"scanonce/spool"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// member is an agent of a fleet from its spool to the stores: all that can storm them.
type member struct {
	id      string
	spool   *spool.Spool
	clock   *window.Clock
	claims  *idem.Redis
	ledger  *ledger.Postgres
	told    *counts
	scanned int

	forwarder *forward.Forwarder
	cancel    context.CancelFunc
	done      chan error
}

// fleet is agents on the same two stores, each behind a proxy.
type fleet struct {
	claims, rows *testenv.Proxy
	redis        *testenv.Redis
	pg           *testenv.Postgres
	db           string
	members      []*member
}

const fleetBackoff = 2 * time.Second // the bound, less than the default so that a test is short

func newFleet(t *testing.T, agents, connections int) *fleet {
	t.Helper()
	f := &fleet{redis: testenv.StartRedis(t), pg: testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Settings: []string{fmt.Sprintf("max_connections=%d", connections)}})}
	f.db = f.pg.NewDatabase(t)
	if _, _, err := ledger.Migrate(t.Context(), ledger.PostgresConfig{DSN: f.pg.OwnerDSN(f.db)}, 0); err != nil {
		t.Fatal(err)
	}
	f.pg.AgentDSN(t, f.db)
	f.claims, f.rows = testenv.NewProxy(t, f.redis.Addr), testenv.NewProxy(t, f.pg.Addr())
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	ring, err := spool.LoadKeyRing(filepath.Join(t.TempDir(), "spool.key"), true)
	if err != nil {
		t.Fatal(err)
	}
	dir := memory(t)
	f.members = make([]*member, agents)
	for i := range f.members {
		m := &member{id: fmt.Sprintf("agent-%03d", i), told: &counts{changed: make(chan struct{}), watched: map[string]func(){}}}
		m.spool, err = spool.Open(filepath.Join(dir, m.id), spool.Options{Agent: m.id, Keys: ring, BootID: host.BootID(), Boot: host.Boot,
			MaxRecords: 1e6, MaxBytes: 1 << 30, SegmentRecords: 1e5, Horizon: 10 * time.Minute, LocalSpan: 3500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		mark, high := m.spool.Mark()
		m.clock = window.NewClock(host, mark, window.ClockOptions{HighWater: high})
		if err := m.spool.Begin(m.clock); err != nil {
			t.Fatal(err)
		}
		if m.claims, err = idem.NewRedis(idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{f.claims.Addr()}, TTL: time.Minute, Timeout: 5 * time.Second,
			Agent: m.id, Run: "run", Boot: host.Boot}); err != nil {
			t.Fatal(err)
		}
		if m.ledger, err = ledger.OpenPostgres(ledger.PostgresConfig{DSN: f.pg.DSNAt(f.rows.Addr(), testenv.PostgresLogin, f.db), Agent: m.id, Boot: host.Boot,
			ConnectTimeout: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		f.members[i] = m
	}
	t.Cleanup(func() {
		for _, m := range f.members {
			if m.cancel != nil {
				m.cancel()
			}
		}
		for _, m := range f.members {
			if m.cancel != nil {
				if err := <-m.done; err != nil {
					t.Error(err)
				}
			}
			m.ledger.Close()
			m.claims.Close()
			m.spool.Close(true)
		}
	})
	return f
}

// memory is a folder in memory, where there is one: a fleet has a disk for each agent, and this machine has one.
func memory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "scanonce-fleet")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (f *fleet) mode(t *testing.T, m testenv.Mode) {
	t.Helper()
	f.claims.Set(t, m)
	f.rows.Set(t, m)
}

// start runs the forwarder as internal/agent makes it.
func (m *member) start() {
	m.forwarder = forward.New(forward.Config{Agent: m.id, Facility: "F", Batch: 500, BackoffMin: 100 * time.Millisecond, BackoffMax: fleetBackoff,
		Timeout: 10 * time.Second, TTL: time.Minute}, m.spool, m.claims, m.ledger, m.clock, m.told)
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.done = make(chan error, 1)
	go func() { m.done <- m.forwarder.Run(ctx) }()
}

// scan takes n movements in, in one batch.
func (m *member) scan(n int) error {
	b := m.spool.NewBatch()
	for range n {
		m.scanned++
		item := strconv.Itoa(m.scanned)
		scanner := m.id + "/SCN"
		if _, err := b.Decide(&spool.Candidate{Physical: idem.PhysicalKey(scanner, []byte(item)),
			Identity: idem.Identity{Facility: "F", Scanner: scanner, NDC: "00093721410", Lot: item, Quantity: 1, Type: window.Dispense},
			Policy:   window.Default(window.Dispense), At: m.clock.Now(), Item: spool.Item{NDC: "00093721410", Lot: item}}); err != nil {
			return err
		}
	}
	return b.Commit()
}

// live takes one movement in, and notes how long that takes, and the commit if the ledger is known to be there.
func (m *member) live(t *testing.T, l *latencies) error {
	online := m.forwarder.Online()
	from := time.Now()
	w := testenv.NewWatch(t)
	if err := m.scan(1); err != nil {
		return err
	}
	took := w.Stop()
	m.told.mu.Lock()
	if online {
		m.told.watched[strconv.Itoa(m.scanned)] = func() { l.saw(time.Since(from)) }
	}
	m.told.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted = append(l.accepted, took)
	return nil
}

// latencies are what people at the counters wait for.
type latencies struct {
	mu        sync.Mutex
	accepted  []testenv.Took
	committed []time.Duration
}

func (l *latencies) saw(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed = append(l.committed, d)
}

// counts is what a test of many needs to know: how many records are settled, and the link.
type counts struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change
	settled int
	link    forward.Link
	watched map[string]func() // called once the movement of this lot is settled
}

func (c *counts) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *counts) Settled(_ uint64, s []forward.Settled) {
	c.note(func() {
		c.settled += len(s)
		for i := range s {
			if f := c.watched[s[i].Record.Lot]; f != nil {
				f()
			}
		}
	})
}
func (c *counts) LinkChanged(k forward.Link, _ error) { c.note(func() { c.link = k }) }
func (c *counts) ClaimsChanged(error)                 {}
func (c *counts) Quarantined(int, string)             {}

func settled(n int) func(*counts) bool { return func(c *counts) bool { return c.settled >= n } }
func offline(c *counts) bool           { return c.link == forward.Offline }

// await waits until the counts are as wanted.
func (c *counts) await(ctx context.Context, who string, wanted func(*counts) bool) error {
	for {
		c.mu.Lock()
		ok, changed, now := wanted(c), c.changed, fmt.Sprintf("%d settled, %s", c.settled, c.link)
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s is not as wanted in time: %s", who, now)
		}
	}
}

// busiest is the most arrivals within a span.
func busiest(at []time.Time, span time.Duration) (most int) {
	from := 0
	for i := range at {
		for at[i].Sub(at[from]) > span {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(float64(len(d)-1)*q)]
}

// clients counts the connections that Redis has.
func (f *fleet) clients() int {
	for _, line := range strings.Split(fmt.Sprint(f.redis.Do("INFO", "clients")), "\r\n") {
		if v, ok := strings.CutPrefix(line, "connected_clients:"); ok {
			n, _ := strconv.Atoi(v)
			return n - 1 // this one
		}
	}
	return -1
}

// A fleet loses both stores at once and gets them back at once. Their return is no storm: the dials are
// spread, a connection is held short where others wait for one, those who scan meanwhile wait no longer for their
// tone, and each movement is a row.
func TestFleetReturns(t *testing.T) {
	const (
		span     = 250 * time.Millisecond
		promised = time.Second // for the tone
	)
	agents, backlog, counters, few := 200, 300, 20, 50
	if testenv.Race { // make test has all of them without the race detector
		agents, backlog, counters, few = 24, 600, 6, 12
	}
	for name, c := range map[string]struct {
		mode        testenv.Mode
		connections int // that the server allows, to all
	}{
		"they refused, and the server has few connections": {testenv.Refuse, few},
		"they never answered":                              {testenv.BlackHole, agents * 3 / 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, agents, c.connections)
			ctx, cancel := context.WithTimeout(t.Context(), 10*testenv.Patience)
			defer cancel()
			all := func(what func(m *member) error) {
				t.Helper()
				failed := make(chan error, len(f.members))
				for _, m := range f.members {
					go func() { failed <- what(m) }()
				}
				for range f.members {
					if err := <-failed; err != nil {
						t.Fatal(err)
					}
				}
			}
			if c.connections < agents { // they are never all connected: the outage is there first
				f.mode(t, c.mode)
			}
			for _, m := range f.members {
				m.start()
			}
			all(func(m *member) error { return m.scan(1) })
			if c.connections > agents {
				all(func(m *member) error { return m.told.await(ctx, m.id, settled(1)) })
				f.mode(t, c.mode)
			}
			all(func(m *member) error { return m.scan(backlog - 1) }) // who scans finds out
			all(func(m *member) error { return m.told.await(ctx, m.id, offline) })
			atTheBound := time.NewTimer(2 * fleetBackoff) // with their waits: this is the time without a signal
			<-atTheBound.C

			f.claims.Observe()
			f.rows.Observe()
			f.mode(t, testenv.Pass)
			returned := time.Now()
			work, closing := context.WithCancel(ctx)
			var wg sync.WaitGroup
			var live latencies
			for _, m := range f.members[:counters] {
				wg.Go(func() {
					tick := time.NewTicker(100 * time.Millisecond)
					defer tick.Stop()
					for work.Err() == nil {
						if err := m.live(t, &live); err != nil {
							t.Error(err)
							return
						}
						<-tick.C
					}
				})
			}
			backends, clients := 0, 0
			watch := f.pg.Connect(t, testenv.PostgresSuperuser, f.db)
			wg.Go(func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for work.Err() == nil {
					var n int
					if err := watch.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'scanonce agent%'").Scan(&n); err != nil {
						t.Error(err)
						return
					}
					backends, clients = max(backends, n), max(clients, f.clients())
					<-tick.C
				}
			})
			all(func(m *member) error {
				if err := m.told.await(ctx, m.id, settled(backlog)); err != nil {
					return fmt.Errorf("%w: %v", err, m.forwarder.Stats().Cause)
				}
				return nil
			})
			drained := time.Since(returned)
			closing()
			wg.Wait()
			all(func(m *member) error { return m.told.await(ctx, m.id, settled(m.scanned)) })

			rows, claims := f.rows.Traffic(), f.claims.Traffic()
			refused := strings.Count(f.pg.Log(), "too many clients") + strings.Count(f.pg.Log(), "remaining connection slots are reserved")
			accepted := testenv.Own(live.accepted, promised)
			t.Logf("drained after %v; %d live scans accepted in %v at p50, %v at p99; committed, once online, in %v at p50, %v at p99", drained,
				len(accepted), quantile(accepted, 0.5), quantile(accepted, 0.99), quantile(live.committed, 0.5), quantile(live.committed, 0.99))
			t.Logf("PostgreSQL: %d dials, %d refused, at most %d in %v, at most %d connections at once", len(rows.Arrivals), refused, busiest(rows.Arrivals, span), span, backends)
			t.Logf("Redis: %d dials, at most %d in %v, at most %d connections at once", len(claims.Arrivals), busiest(claims.Arrivals, span), span, clients)

			if clients > agents*5/4 {
				t.Errorf("Redis has %d connections of %d agents", clients, agents)
			}
			if c.connections < agents {
				for what, seen := range map[string]testenv.Traffic{"PostgreSQL": rows, "Redis": claims} {
					if n := busiest(seen.Arrivals, span); n > agents*2/3 {
						t.Errorf("%s is dialled %d times within %v by %d agents: they come back in step", what, n, span, agents)
					}
				}
				if n := len(claims.Arrivals); n > agents*3/2 {
					t.Errorf("Redis is dialled %d times by %d agents", n, agents)
				}
				if refused == 0 {
					t.Error("the server refused no connection: this proves little")
				}
				// On a slow machine the drain takes longer, and those who wait come again.
				if refused > max(4*agents, int(0.4*float64(agents)*drained.Seconds())) {
					t.Errorf("PostgreSQL has refused %d connections: those who have one keep it too long", refused)
				}
			}
			if p99 := quantile(accepted, 0.99); p99 > promised {
				t.Errorf("live scans are accepted after %v at p99", p99)
			}
			if len(live.committed) < counters {
				t.Errorf("%d live scans were made by agents online: this proves little", len(live.committed))
			}
			f.exact(t)
		})
	}
}

// Full jitter, at the bound too: each wait is drawn from nothing to a bound that doubles.
func TestBackoffIsFullJitter(t *testing.T) {
	r := newRig(t)
	r.ledger.set(errors.New("it refuses"), nil, false)
	var bounds []time.Duration
	f := forward.New(forward.Config{Agent: "agent-1", Batch: 10, BackoffMin: 100 * time.Millisecond, BackoffMax: time.Second, Timeout: time.Second,
		Random: func(n int64) int64 {
			bounds = append(bounds, time.Duration(n-1))
			return n / 3
		}}, r.spool, r.authority, r.ledger, r.clock, &counts{changed: make(chan struct{})})
	const ms = time.Millisecond
	for i, bound := range []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms} {
		wait, wakes := f.Turn(t.Context())
		if len(bounds) != i+1 || bounds[i] != bound || wait != time.Duration(int64(bound)+1)/3 || wakes {
			t.Errorf("try %d: bounds %v, waits %v, woken by a scan: %v; want a bound of %v", i, bounds, wait, wakes, bound)
		}
	}
}

// exact compares each spool with what stands.
func (f *fleet) exact(t *testing.T) {
	t.Helper()
	total := 0
	for _, m := range f.members {
		total += m.scanned
		if st := m.spool.Stats(); st.Captured != int64(m.scanned) || st.Committed != st.Captured || st.Pending != 0 {
			t.Errorf("%s: %d movements, %+v", m.id, m.scanned, st)
		}
	}
	for sql, want := range map[string]int{
		"SELECT count(*) FROM scan_ledger":                                                    total,
		"SELECT count(DISTINCT (scanner_id, lot)) FROM scan_ledger":                           total,
		"SELECT count(DISTINCT scanner_id) FROM scan_ledger":                                  len(f.members),
		"SELECT count(*) FROM scan_audit_line WHERE outcome IN ('suppressed', 'quarantined')": 0,
	} {
		if n := f.pg.Number(t, f.db, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}
