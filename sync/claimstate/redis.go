package claimstate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/internal/redisconn"
	"scanonce/window"
)

// RedisConfig says which servers hold the claims, and for how long.
type RedisConfig struct {
	Mode       redisconn.Mode
	Addrs      []string // host:port of the server, of the sentinels, or of some cluster nodes
	MasterName string   // with mode "sentinel"
	Username   string   // ACL user; "" is the default one
	Password   redisconn.Password
	DB         int
	TLS        *tls.Config   // nil: plaintext, allowed to loopback only
	Timeout    time.Duration // of a round trip, and of dialling
	Lives      Lives
	Now        func() window.UTC // tells ExpiresAt; the server's own clock ends a claim
	// Warn is told of what about the servers is not as it should be and does not stop the claims; nil for nobody.
	Warn func(remark string)
}

// Validate checks what can be checked without a connection. Its errors are *ConfigError.
func (c *RedisConfig) Validate() error {
	if err := c.conn().Validate(); err != nil {
		return redisMistake(err)
	}
	if c.Timeout <= 0 {
		return &ConfigError{"cannot wait for Redis for no time", "give a timeout"}
	}
	return c.Lives.Validate()
}

func (c *RedisConfig) conn() *redisconn.Config {
	return &redisconn.Config{Mode: c.Mode, Addrs: c.Addrs, MasterName: c.MasterName, Username: c.Username, Password: c.Password, DB: c.DB,
		TLS: c.TLS, Timeout: c.Timeout, Conns: redisConns, Idle: redisConns}
}

const (
	redisConns = 8
	redisKey   = "claim:"
)

func redisWords() redisconn.Words {
	return redisconn.Words{
		Denied:    "the scripts of claim state on claim:*",
		Grant:     "the user in configs/redis-acl.conf",
		Meanwhile: "claims wait meanwhile",
	}
}

// redisMistake makes a mistake in the set-up this package's own error.
func redisMistake(err error) error {
	var c *redisconn.ConfigError
	if errors.As(err, &c) {
		return &ConfigError{c.Detail, c.Hint}
	}
	return err
}

// Redis is the Store in Redis: a hash for each claim, changed by one script for each operation, so that no crash
// leaves half of it. A server that fails over may lose the last writes: what must not be lost belongs into
// DynamoDB.
//
// Beside the fields of the state a hash may have a mark, used by Split. A marked claim is not at rest, and no
// Advance changes it.
type Redis struct {
	counters
	cfg    RedisConfig
	client redis.UniversalClient
	pipe   redisPipe
	policy *redisconn.Policy

	scripts struct{ create, advance, read, settle script }
}

// NewRedis makes the store. It does not connect: an unreachable server is an outage, told by the calls.
func NewRedis(cfg RedisConfig) (*Redis, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	client, policy := cfg.conn().Client(redisWords(), cfg.Warn)
	r := &Redis{cfg: cfg, client: client, pipe: redisPipe{client: client}, policy: policy}
	r.scripts.create, r.scripts.advance = newScript(createScript), newScript(advanceScript)
	r.scripts.read, r.scripts.settle = newScript(readScript), newScript(settleScript)
	return r, nil
}

// What a script returns first. The state as it stands follows after codeStands, see readEntry.
const (
	codeMissing = 0
	codeDone    = 1
	codeStands  = 2
)

const (
	stands = `
local function stands(k)
  local r = redis.call('HMGET', k, 'version', 'node', 'cost', 'rx_ref_token', 'reject_code', 'op_id', 'mark', 'expires_at')
  return {2, redis.call('PTTL', k), unpack(r, 1, 8)}
end
`
	// cost, token, op, ttl in ms, mark
	createScript = stands + `
local k = KEYS[1]
if redis.call('EXISTS', k) == 1 then return stands(k) end
redis.call('HSET', k, 'version', '1', 'node', 'INGESTED', 'cost', ARGV[1], 'rx_ref_token', ARGV[2], 'reject_code', '', 'op_id', ARGV[3])
if ARGV[5] ~= '' then redis.call('HSET', k, 'mark', ARGV[5]) end
redis.call('PEXPIRE', k, ARGV[4])
return {1}
`
	// version, from, next version, to, cost or '', reject code, op, ttl in ms, mark, end of life in ms
	advanceScript = stands + `
local k = KEYS[1]
local r = redis.call('HMGET', k, 'version', 'node', 'mark', 'cost', 'rx_ref_token')
if not r[1] then return {0} end
if r[3] or r[1] ~= ARGV[1] or r[2] ~= ARGV[2] then return stands(k) end
redis.call('HSET', k, 'version', ARGV[3], 'node', ARGV[4], 'reject_code', ARGV[6], 'op_id', ARGV[7])
if ARGV[5] ~= '' then redis.call('HSET', k, 'cost', ARGV[5]) end
if ARGV[9] ~= '' then redis.call('HSET', k, 'mark', ARGV[9], 'expires_at', ARGV[10]) end
redis.call('PEXPIRE', k, ARGV[8])
return {1, r[4], r[5]}
`
	readScript = stands + `
if redis.call('EXISTS', KEYS[1]) == 0 then return {0} end
return stands(KEYS[1])
`
	// mark, version, op, ttl in ms of a claim that comes to rest here, or '' to remove it
	settleScript = `
local k = KEYS[1]
local r = redis.call('HMGET', k, 'mark', 'version', 'op_id')
if r[1] ~= ARGV[1] or r[2] ~= ARGV[2] or r[3] ~= ARGV[3] then return {0} end
if ARGV[4] == '' then
  redis.call('DEL', k)
else
  redis.call('HDEL', k, 'mark')
  redis.call('PEXPIRE', k, ARGV[4])
end
return {1}
`
)

// entry is a state with its mark, "" for a claim at rest.
type entry struct {
	State
	mark string
}

// run calls a script. The client bounds each step in time; a timer of the call's own would take a tenth of it.
func (r *Redis) run(ctx context.Context, s script, id string, args ...any) ([]any, error) {
	if err := r.policy.Check(ctx); err != nil {
		return nil, redisMistake(err)
	}
	reply, err := r.pipe.run(ctx, s, redisKey+id, args)
	if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // of a server that answers: this one key is wrong
		return nil, &DamageError{Where: "the key " + redisKey + id + " in Redis", Detail: "it is no hash", hint: "delete it; the claim begins anew"}
	}
	if err != nil {
		r.policy.Forget()
		return nil, redisMistake(redisconn.Classify(err, redisWords()))
	}
	if len(reply) == 0 {
		return nil, errors.New("cannot understand Redis: a script answers nothing")
	}
	return reply, nil
}

// readEntry reads a reply of codeStands.
func (r *Redis) readEntry(id string, reply []any) (entry, error) {
	if len(reply) != 10 {
		return entry{}, fmt.Errorf("cannot understand Redis: a claim of %d values", len(reply))
	}
	text := func(i int) string { s, _ := reply[i].(string); return s }
	e := entry{mark: text(8), State: State{CorrelationID: id, Node: Node(text(3)), IngredientCost: Cost(text(4)), RxRefToken: Token(text(5)),
		RejectCode: text(6), OpID: text(7)}}
	e.Version, _ = strconv.ParseInt(text(2), 10, 64)
	if left, _ := reply[1].(int64); left > 0 {
		e.ExpiresAt = r.cfg.Now() + window.UTC(left)
	}
	if end := text(9); end != "" { // the one that a move fixed
		ms, _ := strconv.ParseInt(end, 10, 64)
		e.ExpiresAt = window.UTC(ms)
	}
	if err := e.check(); err != nil {
		return entry{}, &DamageError{Where: "the hash " + redisKey + id + " in Redis", Detail: err.Error(), hint: "delete it; the claim begins anew"}
	}
	return e, nil
}

// reserve makes a claim, perhaps with a mark. It returns the one that stands instead, if any.
func (r *Redis) reserve(ctx context.Context, n New, mark string) (made bool, e entry, err error) {
	life := r.cfg.Lives.TTL
	reply, err := r.run(ctx, r.scripts.create, n.CorrelationID, string(n.IngredientCost), string(n.RxRefToken), n.OpID, life.Milliseconds(), mark)
	if err != nil {
		return false, entry{}, err
	}
	if reply[0] == int64(codeDone) {
		return true, entry{mark: mark, State: n.state(r.cfg.Now().Add(life))}, nil
	}
	e, err = r.readEntry(n.CorrelationID, reply)
	return false, e, err
}

// move moves a claim at rest, perhaps under a mark. ok is false if there is none; made says that it was moved.
func (r *Redis) move(ctx context.Context, m Move, mark string) (made, ok bool, e entry, err error) {
	life := r.cfg.Lives.of(m.To)
	end := r.cfg.Now().Add(life)
	reply, err := r.run(ctx, r.scripts.advance, m.CorrelationID, m.Version, string(m.From), m.Version+1, string(m.To), string(m.Cost), m.RejectCode, m.OpID,
		life.Milliseconds(), mark, int64(end))
	if err != nil {
		return false, false, entry{}, err
	}
	switch {
	case reply[0] == int64(codeMissing):
		return false, false, entry{}, nil
	case reply[0] == int64(codeDone) && len(reply) == 3:
		cost, _ := reply[1].(string)
		token, _ := reply[2].(string)
		s := m.apply(State{CorrelationID: m.CorrelationID, RxRefToken: Token(token), IngredientCost: Cost(cost)}, end)
		return true, true, entry{s, mark}, nil
	}
	e, err = r.readEntry(m.CorrelationID, reply)
	return false, true, e, err
}

// look reads a claim.
func (r *Redis) look(ctx context.Context, id string) (e entry, ok bool, err error) {
	reply, err := r.run(ctx, r.scripts.read, id)
	if err != nil || reply[0] == int64(codeMissing) {
		return entry{}, false, err
	}
	e, err = r.readEntry(id, reply)
	return e, err == nil, err
}

// rest brings e to rest, if it is still the one that stands. Its life begins anew: it may have waited for the durable
// store until little of it was left.
func (r *Redis) rest(ctx context.Context, e entry) (s State, done bool, err error) {
	life := r.cfg.Lives.of(e.Node)
	s = e.State
	s.ExpiresAt = r.cfg.Now().Add(life)
	done, err = r.end(ctx, e, strconv.FormatInt(life.Milliseconds(), 10))
	return s, done, err
}

// drop removes e, if it is still the one that stands.
func (r *Redis) drop(ctx context.Context, e entry) error {
	_, err := r.end(ctx, e, "")
	return err
}

func (r *Redis) end(ctx context.Context, e entry, life string) (bool, error) {
	reply, err := r.run(ctx, r.scripts.settle, e.CorrelationID, e.mark, e.Version, e.OpID, life)
	return err == nil && reply[0] == int64(codeDone), err
}

// errMarked says that a claim is between two stores, and this is one of them alone.
var errMarked = &ConfigError{"cannot use this claim: it is between Redis and DynamoDB", `write claimstate.backend = "split", as on the agent that began the move`}

// PutNew implements Store.
func (r *Redis) PutNew(ctx context.Context, n New) (Put, error) {
	return r.put(r.putNew(ctx, n))
}

func (r *Redis) putNew(ctx context.Context, n New) (Put, error) {
	if err := n.Validate(); err != nil {
		return Put{}, err
	}
	made, e, err := r.reserve(ctx, n, "")
	switch {
	case err != nil:
		return Put{}, err
	case made:
		return Created(e.State), nil
	case e.mark != "":
		return Put{}, errMarked
	}
	return n.judge(e.State), nil
}

// Get implements Store.
func (r *Redis) Get(ctx context.Context, id string) (State, bool, error) {
	return r.got(r.get(ctx, id))
}

func (r *Redis) get(ctx context.Context, id string) (State, bool, error) {
	if err := checkID("correlation_id", id); err != nil {
		return State{}, false, err
	}
	e, ok, err := r.look(ctx, id)
	if ok && e.mark != "" {
		return State{}, false, errMarked
	}
	return e.State, ok, err
}

// Advance implements Store.
func (r *Redis) Advance(ctx context.Context, m Move) (Advance, error) {
	return r.counters.advance(r.step(ctx, m))
}

func (r *Redis) step(ctx context.Context, m Move) (Advance, error) {
	if err := m.Validate(); err != nil {
		return Advance{}, err
	}
	made, ok, e, err := r.move(ctx, m, "")
	switch {
	case err != nil:
		return Advance{}, err
	case made:
		return Advanced(e.State), nil
	case !ok:
		return Missing(), nil
	case e.mark != "":
		return Advance{}, errMarked
	}
	return m.judge(e.State), nil
}

// Ping implements Store.
func (r *Redis) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	if err := r.client.Ping(ctx).Err(); err != nil {
		r.policy.Forget()
		return redisMistake(redisconn.Classify(err, redisWords()))
	}
	return redisMistake(r.policy.Check(ctx))
}

// Close closes the connections.
func (r *Redis) Close() error { return r.client.Close() }
