package world

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// outage is how a store is away.
type outage uint8

const (
	refuses  outage = 1 + iota // at once, and nothing is done
	silently                   // it takes the request, and nobody hears of it: done, not done, or done later
	loses                      // it does it, and the reply is lost
	full                       // Redis only: OOM
)

// claimHeld is a key of the simulated Redis.
type claimHeld struct {
	by    string
	until time.Duration
}

// redisStore is the simulated Redis: keys with expiry, which it may lose at any time.
type redisStore struct {
	w     *world
	held  map[string]claimHeld
	mu    sync.Mutex            // guards held and under, for the server's goroutines
	under request               // way
	calls []porcupine.Operation // of the program's clients
	clock int64
	away  outage
	until time.Duration
}

func (s *redisStore) state() outage {
	if s.w.healed || s.w.now >= s.until {
		return 0
	}
	return s.away
}

// setNX is SET key token NX PX ttl GET.
func (s *redisStore) setNX(key, token string, now time.Duration) (holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.held[key]; ok && now < h.until {
		return h.by
	}
	s.held[key] = claimHeld{token, now + s.w.plan.ttl}
	return ""
}

// lose forgets some keys: all at a FLUSHALL or an empty replica, some at an eviction or a lagging one.
func (s *redisStore) lose(share int) {
	lost := []string{}
	s.mu.Lock()
	for _, k := range slices.Sorted(maps.Keys(s.held)) {
		if share == 1 || s.w.chance(share) {
			delete(s.held, k)
			lost = append(lost, k)
		}
	}
	s.mu.Unlock()
	s.forgot(lost)
	s.w.note("redis loses %d keys", len(lost))
}

var (
	errRefused = errors.New("connection refused")
	errTimeout = context.DeadlineExceeded
	errReset   = errors.New("connection reset by peer")
)

// claims is one agent's way to the simulated Redis.
type claims struct {
	n      *node
	s      *redisStore
	client *idem.Redis // the program's, in some worlds
}

func (s *redisStore) of(n *node) *claims {
	c := &claims{n: n, s: s}
	if s.w.plan.client {
		c.client = s.network(n)
	}
	return c
}

// Claim is idem.Authority's.
func (c *claims) Claim(ctx context.Context, asked []idem.Claim) []idem.Outcome {
	w := c.n.w
	out := make([]idem.Outcome, len(asked))
	unknown := func(err error) []idem.Outcome {
		for i := range out {
			out[i] = idem.Unknown(err)
		}
		return out
	}
	for i := range asked {
		w.oracle.attempt(asked[i].Event, asked[i].Keys)
	}
	w.edge(c.n)
	dead := c.n.dead
	if dead && w.chance(2) {
		return unknown(errDead)
	}
	away := c.s.state()
	if c.client != nil && !dead {
		c.s.send(away == silently && w.chance(2))
		end := c.s.ask(asked)
		out = c.client.Claim(ctx, asked)
		w.mark("claims-asked", c.n, uint64(len(asked)))
		w.edge(c.n)
		end(out)
		if c.n.dead {
			return unknown(errDead)
		}
		return out
	}
	if !dead && (away == refuses || away == full || away == silently && w.chance(2)) {
		w.mark("claims-refused", c.n, uint64(len(asked)))
		return unknown(errRefused)
	}
	for i, a := range asked {
		out[i] = idem.Won()
		for _, k := range [...]idem.Key{a.Keys.Edge, a.Keys.Idem} {
			if k.IsZero() {
				continue
			}
			switch holder := c.s.setNX(k.String(), a.Event.String(), w.now); holder {
			case "", a.Event.String():
			default:
				by, err := idem.ParseEventID(holder)
				if err != nil {
					w.fail("a claim holds %q", holder)
				}
				out[i] = idem.Held(by)
			}
		}
	}
	w.mark("claims", c.n, uint64(len(asked)))
	w.edge(c.n)
	if dead || c.n.dead {
		if c.client != nil { // its request was on its way
			c.s.ask(asked)(unknown(errDead))
		}
		return unknown(errDead)
	}
	if away == silently || away == loses {
		return unknown(errTimeout)
	}
	return out
}

// Ping says whether claims can be made.
func (c *claims) Ping(ctx context.Context) error {
	if c.client != nil && !c.n.dead {
		c.s.send(false)
		return c.client.Ping(ctx)
	}
	if c.n.dead || c.s.state() != 0 {
		return errRefused
	}
	return nil
}

// Close ends the connection.
func (c *claims) Close() error {
	if c.client != nil {
		return c.client.Close()
	}
	return nil
}

// rowStore is the simulated ledger.
type rowStore struct {
	ledger.Ledger // what nobody calls
	w             *world
	n             *node

	rows   map[idem.Key]*ledger.Row // by both keys
	events map[idem.EventID]*ledger.Row
	lines  map[idem.EventID]*ledger.Line
	order  []*ledger.Row
	chain  map[chainPlace]*ledger.ChainRecord
	asks   map[string]claimAsk // for whose scan a claim is made
	asked  map[idem.EventID]bool
	poison map[string]bool // lots that no row can have, for now
	shared *rowStore
	away   outage
	until  time.Duration
}

func newRowStore(w *world) *rowStore {
	s := &rowStore{w: w, rows: map[idem.Key]*ledger.Row{}, events: map[idem.EventID]*ledger.Row{}, lines: map[idem.EventID]*ledger.Line{},
		chain: map[chainPlace]*ledger.ChainRecord{}, asks: map[string]claimAsk{}, asked: map[idem.EventID]bool{}, poison: map[string]bool{}}
	s.shared = s
	return s
}

func (s *rowStore) of(n *node) ledger.Ledger { return &rowStore{w: s.w, n: n, shared: s} }

func (s *rowStore) state() outage {
	if s.w.healed || s.w.now >= s.until {
		return 0
	}
	return s.away
}

// call is one statement: the request travels, do is its effect, the reply travels.
func (s *rowStore) call(what string, n int, do func()) error {
	w := s.w
	w.edge(s.n)
	if s.n.dead { // it was on its way when the process died
		switch w.rng.IntN(3) {
		case 0:
			do()
		case 1:
			w.after(w.plan.late(w.rng), do)
		}
		return errDead
	}
	away := s.shared.state()
	switch {
	case away == refuses, away == full:
		w.mark(what+"-refused", s.n, uint64(n))
		return errRefused
	case away == silently && w.chance(3):
		w.mark(what+"-lost", s.n, uint64(n))
		return errTimeout
	case away == silently && w.chance(2):
		w.mark(what+"-late", s.n, uint64(n))
		w.after(w.plan.late(w.rng), do)
		return errTimeout
	}
	do()
	w.mark(what, s.n, uint64(n))
	w.edge(s.n)
	if s.n.dead {
		return errDead
	}
	if away != 0 {
		return errReset
	}
	return nil
}

// Insert is ledger.Ledger's.
func (s *rowStore) Insert(ctx context.Context, rows []ledger.Row) (ledger.Inserted, error) {
	var ins ledger.Inserted
	rows = slices.Clone(rows)
	for i := range rows {
		s.w.oracle.attempt(rows[i].Event, rows[i].Keys)
	}
	err := s.call("insert", len(rows), func() {
		for i := range rows {
			r := &rows[i]
			if f := r.Flaw(); f != "" {
				s.w.fail("a row that no ledger takes: %s", f)
			}
			if s.shared.poison[r.Lot] && !s.w.healed {
				ins.Poison = append(ins.Poison, ledger.Poison{Event: r.Event, Detail: "value out of range"})
				continue
			}
			if s.shared.taken(r) {
				continue
			}
			row := *r
			row.CommittedAt = window.FromTime(s.w.plan.begin.Add(s.w.now))
			s.shared.rows[row.Keys.Idem] = &row
			if !row.Keys.Edge.IsZero() {
				s.shared.rows[row.Keys.Edge] = &row
			}
			s.shared.events[row.Event] = &row
			s.shared.order = append(s.shared.order, &row)
			ins.Receipts = append(ins.Receipts, ledger.Receipt{Event: row.Event, CommittedAt: row.CommittedAt})
		}
	})
	if err != nil {
		return ledger.Inserted{}, err
	}
	return ins, nil
}

// taken says whether one of the unique keys is.
func (s *rowStore) taken(r *ledger.Row) bool {
	return s.rows[r.Keys.Idem] != nil || !r.Keys.Edge.IsZero() && s.rows[r.Keys.Edge] != nil || s.events[r.Event] != nil
}

// Standing is ledger.Ledger's.
func (s *rowStore) Standing(ctx context.Context, probes []ledger.Probe) ([]ledger.Standing, error) {
	out := make([]ledger.Standing, len(probes))
	owner := func(r *ledger.Row) ledger.Owner {
		if r == nil {
			return ledger.Owner{}
		}
		return ledger.Owner{Event: r.Event, Key: r.Keys.Idem, CommittedAt: r.CommittedAt, Agent: r.Agent,
			Bypassed: slices.Contains(r.Flags, ledger.ClaimBypassed)}
	}
	err := s.call("standing", len(probes), func() {
		for i, p := range probes {
			out[i] = ledger.Standing{ByEvent: owner(s.shared.events[p.Event]), ByIdem: owner(s.shared.rows[p.Keys.Idem])}
			if !p.Keys.Edge.IsZero() {
				out[i].ByEdge = owner(s.shared.rows[p.Keys.Edge])
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// AppendLines is ledger.Ledger's.
func (s *rowStore) AppendLines(ctx context.Context, lines []ledger.Line) error {
	lines = slices.Clone(lines)
	return s.call("lines", len(lines), func() {
		for i := range lines {
			l := &lines[i]
			if f := l.Flaw(); f != "" {
				s.w.fail("a line that no audit takes: %s", f)
			}
			if s.shared.lines[l.Event] == nil {
				s.shared.lines[l.Event] = l
				s.w.oracle.line(s.n, l)
			}
		}
	})
}

// chainPlace is the primary key of the chain's table.
type chainPlace struct {
	agent, epoch string
	seq          uint64
}

// AppendChain is ledger.Ledger's.
func (s *rowStore) AppendChain(ctx context.Context, records []ledger.ChainRecord) error {
	records = slices.Clone(records)
	return s.call("chain", len(records), func() {
		for i := range records {
			r := &records[i]
			if f := r.Flaw(); f != "" {
				s.w.fail("a record that no chain takes: %s", f)
			}
			if at := (chainPlace{r.Agent, r.Epoch, r.Seq}); s.shared.chain[at] == nil {
				s.shared.chain[at] = r
			}
		}
	})
}

// claimAsk is a row of the ledger's table of claims.
type claimAsk struct {
	event idem.EventID
	at    time.Duration
}

// Ingest is ledger.Ledger's.
func (s *rowStore) Ingest(ctx context.Context, asks []ledger.Ingest) ([]ledger.Ingested, error) {
	out := make([]ledger.Ingested, len(asks))
	asks = slices.Clone(asks)
	err := s.call("ingest", len(asks), func() {
		for i, q := range asks {
			s.w.oracle.asksFor(q)
			s.shared.asked[q.Event] = true
			a, ok := s.shared.asks[q.Claim]
			if !ok {
				a = claimAsk{q.Event, s.w.now}
				s.shared.asks[q.Claim] = a
				s.w.oracle.ingested(q.Claim, q.Event)
			}
			out[i] = ledger.Ingested{Event: a.event, Age: s.w.now - a.at}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Ping is ledger.Ledger's.
func (s *rowStore) Ping(context.Context) error { return s.call("ping", 0, func() {}) }

// Clock is the reference of all agents.
func (s *rowStore) Clock(context.Context) (t window.UTC, e time.Duration, err error) {
	asked := s.w.now
	err = s.call("clock", 0, func() { t = window.FromTime(s.w.plan.begin.Add(s.w.now)) })
	half := (s.w.now - asked) / 2
	return t.Add(half), half + 2*time.Millisecond, err
}

// Close ends the connection.
func (s *rowStore) Close() error { return nil }
