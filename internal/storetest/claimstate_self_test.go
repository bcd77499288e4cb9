package storetest

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/sync/claimstate"
	"scanonce/window"
)

// Every fault that the suite claims to detect makes its case fail, and none fails without a fault.
func TestClaimStateSuiteDetects(t *testing.T) {
	names := map[string]func(testing.TB, ClaimStateFixture){}
	for _, c := range claimStateCases() {
		names[c.name] = c.run
		for _, lossy := range []bool{true, false} {
			if failed, log := record(t, func(tb testing.TB) {
				f := fakeClaims("")
				if !lossy {
					f.Lose = nil
				}
				c.run(tb, f)
			}); failed {
				t.Errorf("%s fails on a sound store: %q", c.name, log)
			}
		}
	}
	detected := map[string]bool{}
	for fault, cases := range map[string]string{
		"version 0":                 "created",
		"forgets the token":         "created",
		"overwrites":                "create twice",
		"own create is exists":      "create twice",
		"cost of the move is lost":  "the whole way",
		"no way back":               "the whole way",
		"reject code is lost":       "dispatched with a reject code",
		"advance creates":           "missing",
		"missing is conflict":       "missing",
		"version ignored":           "conflict",
		"node ignored":              "conflict",
		"own advance is conflict":   "own operation",
		"op by letters":             "own operation",
		"own for ever":              "own operation",
		"ids cut":                   "claims are apart",
		"check, then create":        "64 creators",
		"check, then advance":       "64 movers|pended or dispatched",
		"every attempt moves":       "64 attempts of one",
		"illegal moves":             "illegal moves",
		"raw values":                "values refused",
		"refusal tells":             "values refused",
		"numbers only by length":    "values refused",
		"float money":               "money",
		"any money":                 "money",
		"serves expired":            "expiry|pended expiry|reading does not renew",
		"expired blocks create":     "expiry|pended expiry",
		"expired advances":          "expiry",
		"expired is own":            "expiry",
		"advance does not renew":    "writing renews",
		"reads renew":               "reading does not renew",
		"pend by ttl":               "pended lives longer",
		"lost create is exists":     "lost reply to create",
		"lost advance is conflict":  "lost reply to advance",
		"lost at a restart":         "restart",
		"cancelled writes":          "cancelled",
		"broken answers":            "broken",
		"broken without words":      "broken",
		"refuses the right version": "by version alone",
	} {
		for _, name := range strings.Split(cases, "|") {
			detected[name] = true
			if failed, _ := record(t, func(tb testing.TB) { names[name](tb, fakeClaims(fault)) }); !failed {
				t.Errorf("case %q does not detect the fault %q", name, fault)
			}
		}
	}
	for name := range names {
		if !detected[name] {
			t.Errorf("no fault proves case %q", name)
		}
	}
}

// claims is a store of claim state with a fault.
type claims struct {
	fault string

	mu     sync.Mutex
	at     window.UTC
	held   map[string]claimstate.State
	ops    map[string]bool
	lose   string
	broken bool
}

func fakeClaims(fault string) ClaimStateFixture {
	c := &claims{fault: fault, at: 1_764_000_000_000, held: map[string]claimstate.State{}, ops: map[string]bool{}}
	locked := func(f func()) {
		c.mu.Lock()
		defer c.mu.Unlock()
		f()
	}
	return ClaimStateFixture{
		Open:   func(testing.TB) claimstate.Store { return c },
		Now:    func() window.UTC { return c.at },
		Pass:   func(_ testing.TB, d time.Duration) { locked(func() { c.at = c.at.Add(d) }) },
		Margin: time.Minute,
		Reopen: func(testing.TB, claimstate.Store) claimstate.Store {
			if fault == "lost at a restart" {
				locked(func() { clear(c.held) })
			}
			return c
		},
		Lose:  func(_ testing.TB, part string) { locked(func() { c.lose = part }) },
		Break: func(testing.TB) { locked(func() { c.broken = true }) },
	}
}

func (c *claims) Close() error { return nil }

func (c *claims) Ping(ctx context.Context) error { return c.fails(ctx) }

func (c *claims) fails(ctx context.Context) error {
	switch {
	case ctx.Err() != nil && c.fault != "cancelled writes":
		return errors.New("cannot answer: cancelled")
	case c.broken && c.fault == "broken without words":
		return errors.New("EOF")
	case c.broken && c.fault != "broken answers":
		return errors.New("cannot answer: broken")
	}
	return nil
}

// key is what the fault makes of an id.
func (c *claims) key(id string) string {
	if c.fault == "ids cut" && len(id) > 3 {
		return id[:3]
	}
	return id
}

// stored returns what there is, and whether it has expired.
func (c *claims) stored(id string) (s claimstate.State, there, live bool) {
	s, there = c.held[c.key(id)]
	return s, there, there && s.ExpiresAt > c.at
}

func (c *claims) end(n claimstate.Node) window.UTC {
	if n == claimstate.PAPended && c.fault != "pend by ttl" {
		return c.at.Add(ClaimLives.Pend)
	}
	return c.at.Add(ClaimLives.TTL)
}

// keep writes a state; the reply to it may be lost.
func (c *claims) keep(s claimstate.State) (lost bool) {
	if f, err := strconv.ParseFloat(string(s.IngredientCost), 32); c.fault == "float money" && err == nil {
		s.IngredientCost = claimstate.Cost(strconv.FormatFloat(math.Floor(f*10)/10, 'f', 2, 32))
	}
	c.held[c.key(s.CorrelationID)] = s
	lost = c.lose != "" && strings.Contains(s.CorrelationID, c.lose)
	if lost {
		c.lose = ""
	}
	return lost
}

var errReply = errors.New("cannot answer: the reply is lost")

// yield lets others in between a look and a write, if that is the fault.
func (c *claims) yield(fault string) {
	if c.fault == fault {
		c.mu.Unlock()
		runtime.Gosched()
		time.Sleep(time.Millisecond)
		c.mu.Lock()
	}
}

func (c *claims) own(s claimstate.State, op string) bool {
	if c.fault == "op by letters" {
		return strings.EqualFold(s.OpID, op)
	}
	return s.OpID == op || c.fault == "own for ever" && c.ops[op]
}

func (c *claims) PutNew(ctx context.Context, n claimstate.New) (claimstate.Put, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := n.Validate(); err != nil && !c.lets(err) {
		if c.fault == "refusal tells" {
			err = errors.Join(err, errors.New(string(n.RxRefToken)+n.CorrelationID))
		}
		return claimstate.Put{}, err
	}
	if err := c.fails(ctx); err != nil {
		return claimstate.Put{}, err
	}
	s, there, live := c.stored(n.CorrelationID)
	in := live || there && c.fault == "expired blocks create"
	if there && c.fault == "expired is own" && c.own(s, n.OpID) {
		return claimstate.PutAlready(s), nil
	}
	c.yield("check, then create")
	if in && c.fault != "overwrites" {
		if live && c.fault == "reads renew" {
			s.ExpiresAt = c.end(s.Node)
			c.keep(s)
		}
		lost := c.fault == "lost create is exists" && strings.Contains(n.CorrelationID, "lost")
		if c.own(s, n.OpID) && c.fault != "own create is exists" && !lost {
			return claimstate.PutAlready(s), nil
		}
		return claimstate.Exists(s), nil
	}
	s = claimstate.State{CorrelationID: n.CorrelationID, RxRefToken: n.RxRefToken, Node: claimstate.Ingested, IngredientCost: n.IngredientCost, Version: 1,
		OpID: n.OpID, ExpiresAt: c.end(claimstate.Ingested)}
	switch c.fault {
	case "version 0":
		s.Version = 0
	case "forgets the token":
		s.RxRefToken = ""
	}
	if c.keep(s) {
		return claimstate.Put{}, errReply
	}
	return claimstate.Created(s), nil
}

// lets says that the fault is to overlook a refusal.
func (c *claims) lets(err error) bool {
	var illegal *claimstate.IllegalMoveError
	var invalid *claimstate.InvalidError
	switch {
	case errors.As(err, &illegal):
		return c.fault == "illegal moves"
	case errors.As(err, &invalid):
		return c.fault == "raw values" && invalid.Field == "rx_ref_token" || c.fault == "any money" && invalid.Field == "ingredient_cost" ||
			c.fault == "numbers only by length" && strings.Contains(invalid.Why, "bare number")
	}
	return false
}

func (c *claims) Get(ctx context.Context, id string) (claimstate.State, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	probe := claimstate.New{CorrelationID: id, RxRefToken: claimToken, IngredientCost: "0.00", OpID: "op"}
	if err := probe.Validate(); err != nil {
		return claimstate.State{}, false, err
	}
	if err := c.fails(ctx); err != nil {
		return claimstate.State{}, false, err
	}
	s, there, live := c.stored(id)
	if live && c.fault == "reads renew" {
		s.ExpiresAt = c.end(s.Node)
		c.keep(s)
	}
	if there && c.fault == "serves expired" {
		return s, true, nil
	}
	if !live {
		return claimstate.State{}, false, nil
	}
	return s, true, nil
}

func (c *claims) Advance(ctx context.Context, m claimstate.Move) (claimstate.Advance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := m.Validate(); err != nil && !c.lets(err) {
		return claimstate.Advance{}, err
	}
	if err := c.fails(ctx); err != nil {
		return claimstate.Advance{}, err
	}
	s, there, live := c.stored(m.CorrelationID)
	live = live || there && c.fault == "expired advances"
	if !live {
		switch c.fault {
		case "advance creates":
			c.keep(claimstate.State{CorrelationID: m.CorrelationID, Version: m.Version + 1, Node: m.To, OpID: m.OpID, ExpiresAt: c.end(m.To)})
		case "missing is conflict":
			return claimstate.Conflict(s), nil
		}
		return claimstate.Missing(), nil
	}
	fits := (s.Version == m.Version || c.fault == "version ignored") && (s.Node == m.From || c.fault == "node ignored" || c.fault == "version ignored")
	if c.fault == "refuses the right version" && m.Version == s.Version {
		fits = m.OpID != "op-1"
	}
	c.yield("check, then advance")
	lost := c.fault == "lost advance is conflict" && m.OpID == "op-lost"
	switch {
	case !fits && c.own(s, m.OpID) && c.fault == "every attempt moves":
		s.Version++
		c.keep(s)
		return claimstate.Advanced(s), nil
	case !fits && c.own(s, m.OpID) && c.fault != "own advance is conflict" && !lost:
		return claimstate.AlreadyMine(s), nil
	case !fits, c.fault == "no way back" && m.From == claimstate.PAPended:
		return claimstate.Conflict(s), nil
	}
	s.Node, s.RejectCode, s.Version, s.OpID = m.To, m.RejectCode, m.Version+1, m.OpID
	c.ops[m.OpID] = true
	if m.Cost != "" && c.fault != "cost of the move is lost" {
		s.IngredientCost = m.Cost
	}
	if c.fault == "reject code is lost" {
		s.RejectCode = ""
	}
	if c.fault != "advance does not renew" {
		s.ExpiresAt = c.end(m.To)
	}
	if c.keep(s) {
		return claimstate.Advance{}, errReply
	}
	return claimstate.Advanced(s), nil
}
