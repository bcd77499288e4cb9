package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/idem"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/window"
)

// redisTTL is long enough for 64 claimers on a busy machine, and short enough to wait for.
const redisTTL = 3 * time.Second

func newRedis(t testing.TB, cfg idem.RedisConfig) *idem.Redis {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = time.Minute
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	r, err := idem.NewRedis(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// fixture is one claim store on servers that a whole suite shares; every case begins with a flush. The authority
// logs in as the shipped user.
func fixture(t testing.TB, cfg idem.RedisConfig, servers []*testenv.Redis, breakable bool) storetest.AuthorityFixture {
	cfg.Username, cfg.Password = testenv.ShippedRedisUser(t).Name, testenv.RedisPassword
	flush := func(testing.TB) {
		for _, s := range servers {
			s.Do("FLUSHALL")
		}
	}
	flush(t)
	cfg.TTL = redisTTL
	f := storetest.AuthorityFixture{
		Open:  func(tb testing.TB) idem.Authority { return newRedis(tb, cfg) },
		TTL:   redisTTL,
		Pass:  func(_ testing.TB, d time.Duration) { <-time.After(d) }, // the server's clock cannot be moved
		Flush: flush,
	}
	if breakable {
		f.Break = func(tb testing.TB) {
			for _, s := range servers {
				s.Kill()
			}
			tb.Cleanup(func() {
				for _, s := range servers {
					s.Start()
				}
			})
		}
	}
	return f
}

func TestRedisSingleConforms(t *testing.T) {
	s := testenv.StartRedis(t, testenv.ShippedRedisUser(t).File(t)...)
	storetest.Authority(t, func(tb testing.TB) storetest.AuthorityFixture {
		return fixture(tb, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}}, []*testenv.Redis{s}, true)
	})
}

// As to a server before Redis 7.0, which does not know NX together with GET.
func TestRedisOldConforms(t *testing.T) {
	s := testenv.StartRedis(t, testenv.ShippedRedisUser(t).File(t)...)
	storetest.Authority(t, func(tb testing.TB) storetest.AuthorityFixture {
		return fixture(tb, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, Dial: dialOld}, []*testenv.Redis{s}, true)
	})
}

func TestRedisSentinelConforms(t *testing.T) {
	s := testenv.StartRedis(t, testenv.ShippedRedisUser(t).File(t)...)
	var addrs []string
	for _, x := range testenv.StartSentinels(t, 3, s) {
		addrs = append(addrs, x.Addr)
	}
	storetest.Authority(t, func(tb testing.TB) storetest.AuthorityFixture {
		return fixture(tb, idem.RedisConfig{Mode: idem.RedisSentinel, Addrs: addrs, MasterName: testenv.MasterName}, []*testenv.Redis{s}, false)
	})
}

func TestRedisClusterConforms(t *testing.T) {
	nodes := testenv.StartCluster(t, 3, testenv.ShippedRedisUser(t).File(t)...)
	storetest.Authority(t, func(tb testing.TB) storetest.AuthorityFixture {
		return fixture(tb, idem.RedisConfig{Mode: idem.RedisCluster, Addrs: []string{nodes[0].Addr}}, nodes, false)
	})
}

func redisClaim(n int) idem.Claim {
	id := idem.Identity{Facility: "F", Scanner: "S", NDC: fmt.Sprint(n), Quantity: 1, Type: window.Dispense}
	return idem.Claim{Keys: id.Keys(window.Default(window.Dispense), 1000), Event: idem.NewEventID(window.UTC(n), [10]byte{byte(n)})}
}

// name tells an outcome in one word, and its error.
func name(o idem.Outcome) (word string, by idem.EventID, err error) {
	o.Match(func() { word = "won" }, func(b idem.EventID) { word, by = "held", b }, func(e error) { word, err = "unknown", e })
	return word, by, err
}

func claimOne(a idem.Authority, c idem.Claim) (string, idem.EventID, error) {
	return name(a.Claim(context.Background(), []idem.Claim{c})[0])
}

// What is stored is what the contract says, so that another program can read it.
func TestRedisKeysAndValues(t *testing.T) {
	s := testenv.StartRedis(t)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, TTL: time.Minute})
	c := redisClaim(1)
	c.Keys.Edge = idem.Key{Kind: idem.Edge, Hash: [32]byte{1}}
	if w, _, err := claimOne(a, c); w != "won" {
		t.Fatal(w, err)
	}
	for _, k := range []idem.Key{c.Keys.Idem, c.Keys.Edge} {
		if v := s.Do("GET", k.String()); v != c.Event.String() {
			t.Errorf("%s holds %v", k, v)
		}
		if ms := s.Do("PTTL", k.String()).(int64); ms < 55_000 || ms > 66_000 {
			t.Errorf("PTTL %d", ms)
		}
	}
}

// The jitter keeps a drained batch from expiring at one moment.
func TestRedisTTLsAreSpread(t *testing.T) {
	s := testenv.StartRedis(t)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, TTL: time.Hour})
	var claims []idem.Claim
	for n := range 200 {
		claims = append(claims, redisClaim(n))
	}
	a.Claim(context.Background(), claims)
	least, most := int64(1<<62), int64(0)
	for _, c := range claims {
		ms := s.Do("PTTL", c.Keys.Idem.String()).(int64)
		least, most = min(least, ms), max(most, ms)
	}
	if most-least < 5*60_000 || least < 59*60_000 || most > 66*60_000 {
		t.Fatalf("TTLs from %d to %d ms", least, most)
	}
}

// A client that retries a SET NX whose reply was lost finds its own key and reports it as another's. Ours
// sends it once, says Unknown, and its next attempt, with the same token, has won.
func TestRedisLostReply(t *testing.T) {
	s := testenv.StartRedis(t)
	p := testenv.NewProxy(t, s.Addr)
	seed := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: 3, DisableIdentity: true, MinRetryBackoff: time.Millisecond})
	defer seed.Close()
	ctx := context.Background()
	if err := seed.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	p.Swallow("scan:idem:seed")
	if first, err := seed.SetNX(ctx, "scan:idem:seed", "1", time.Minute).Result(); err != nil || first {
		t.Fatalf("the seed's way does not fail here (%v, %v): this test has lost its premise", first, err)
	}

	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{p.Addr()}})
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" { // a warm connection
		t.Fatal(w, err)
	}
	p.Swallow("scan:idem:")
	if w, _, err := claimOne(a, redisClaim(2)); w != "unknown" {
		t.Fatalf("a lost reply is %s, %v", w, err)
	}
	if v := s.Do("GET", redisClaim(2).Keys.Idem.String()); v != redisClaim(2).Event.String() {
		t.Fatalf("the claim did not reach the server: %v", v)
	}
	if w, _, err := claimOne(a, redisClaim(2)); w != "won" {
		t.Fatalf("the retry is %s, %v", w, err)
	}
}

// The seed's value names nobody: after a crash between claim and commit the retry is refused by its own key.
func TestRedisClaimIsReentrant(t *testing.T) {
	s := testenv.StartRedis(t)
	c := redisClaim(1)
	if v := s.Do("SET", "scan:idem:seed", "1", "NX", "PX", 60000); v != "OK" {
		t.Fatal(v)
	}
	if v := s.Do("SET", "scan:idem:seed", "1", "NX", "PX", 60000); v != nil {
		t.Fatalf("the seed's retry is not refused (%v): this test has lost its premise", v)
	}
	cfg := idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}}
	if w, _, err := claimOne(newRedis(t, cfg), c); w != "won" {
		t.Fatal(w, err)
	}
	if w, _, err := claimOne(newRedis(t, cfg), c); w != "won" { // the process after the crash
		t.Fatal(w, err)
	}
}

func TestRedisNeverAnswers(t *testing.T) {
	s := testenv.StartRedis(t)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, Timeout: 300 * time.Millisecond})
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" {
		t.Fatal(w, err)
	}
	s.Pause()
	defer s.Resume()
	watch := testenv.NewWatch(t)
	w, _, err := claimOne(a, redisClaim(2))
	watch.Within(t, "a claim", 2*time.Second)
	if w != "unknown" {
		t.Fatalf("%s, %v", w, err)
	}
	var c *idem.ConfigError
	if errors.As(err, &c) {
		t.Fatalf("a silent server is no mistake of configuration: %v", err)
	}
}

// A failover to a replica that never got the key: a second claimer wins in Redis. The ledger's keys decide
// then; here it is only shown that this is so.
func TestRedisFailoverMayLoseAClaim(t *testing.T) {
	master := testenv.StartRedis(t)
	p := testenv.NewProxy(t, master.Addr)
	replica := testenv.StartRedis(t)
	replica.Replicate(p.Addr())
	p.Set(t, testenv.BlackHole)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{master.Addr}})
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" {
		t.Fatal(w, err)
	}
	master.Kill()
	replica.Do("REPLICAOF", "NO", "ONE")
	other := redisClaim(1)
	other.Event = idem.EventID{9}
	b := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{replica.Addr}})
	if w, _, err := claimOne(b, other); w != "won" {
		t.Fatalf("%s, %v: the promoted replica knows the claim, and the test its premise no more", w, err)
	}
}

func TestRedisMistakesOfConfiguration(t *testing.T) {
	plain := testenv.StartRedis(t)
	locked := testenv.StartRedis(t, "--requirepass", "right")
	acl := testenv.StartRedis(t)
	acl.Do("ACL", "SETUSER", "agent", "on", ">pw", "~other:*", "+ping", "+set", "+get", "+info")
	blind := testenv.StartRedis(t)
	blind.Do("ACL", "SETUSER", "agent", "on", ">pw", "~scan:*", "+ping", "+set", "+get")
	replica := testenv.StartRedis(t)
	replica.Replicate(plain.Addr)
	nodes := testenv.StartCluster(t, 3)
	node := nodes[0]
	evicting := testenv.StartRedis(t, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
	lru := testenv.StartRedis(t, "--maxmemory", "50mb", "--maxmemory-policy", "volatile-lru")
	for _, c := range []struct {
		name, word, says string
		cfg              idem.RedisConfig
	}{
		{"no password", "unknown", "wants a password", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{locked.Addr}}},
		{"wrong password", "unknown", "refuses the user name or the password", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{locked.Addr}, Password: "wrong"}},
		{"right password", "won", "", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{locked.Addr}, Password: "right"}},
		{"NOPERM", "unknown", "ACL does not allow", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{acl.Addr}, Username: "agent", Password: "pw"}},
		{"no INFO", "won", "", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{blind.Addr}, Username: "agent", Password: "pw"}},
		{"cluster node as single", "unknown", "node of a cluster", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{node.Addr}}},
		{"single as cluster", "unknown", "no cluster node", idem.RedisConfig{Mode: idem.RedisCluster, Addrs: []string{plain.Addr}}},
		{"a replica", "unknown", "is a replica", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{replica.Addr}}},
		{"allkeys-lru", "unknown", "may drop a claim", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{evicting.Addr}}},
		{"volatile-lru", "won", "", idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{lru.Addr}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var remarks []string
			c.cfg.Warn = func(remark string) { remarks = append(remarks, remark) }
			a := newRedis(t, c.cfg)
			// Keys spread over a cluster's slots: one of them is on another node.
			word, says, err := "won", "", error(nil)
			for n := range 30 {
				if w, _, e := claimOne(a, redisClaim(n)); w != "won" {
					word, err = w, e
					break
				}
			}
			var ce *idem.ConfigError
			if errors.As(err, &ce) {
				says = ce.Detail
				if ce.Hint == "" {
					t.Error("no hint")
				}
			}
			if word != c.word || !strings.Contains(says, c.says) || c.says == "" && err != nil {
				t.Fatalf("%s, %v; want %s, %q", word, err, c.word, c.says)
			}
			if strings.Contains(fmt.Sprint(err), "wrong") && c.cfg.Password == "wrong" && strings.Contains(fmt.Sprint(err), "\"wrong\"") {
				t.Error("the password is in the error")
			}
			switch c.name {
			case "no INFO", "volatile-lru":
				if len(remarks) != 1 || !strings.Contains(remarks[0], "maxmemory-policy") {
					t.Errorf("of the policy was said %q, want one remark", remarks)
				}
			default:
				if len(remarks) != 0 {
					t.Errorf("remarks %q", remarks)
				}
			}
		})
	}
}

// What a server was set up for is looked at again with each connection: the library dials without a word.
func TestRedisPolicyChangesBehindAConnection(t *testing.T) {
	s := testenv.StartRedis(t)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}})
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" {
		t.Fatal(w, err)
	}
	s.Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	s.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	var err error
	for n := 2; n < 5 && !strings.Contains(fmt.Sprint(err), "allkeys-lru"); n++ { // one finds out that the connection is gone
		_, _, err = claimOne(a, redisClaim(n))
	}
	if !strings.Contains(fmt.Sprint(err), "allkeys-lru") {
		t.Errorf("the policy is not looked at again: %v", err)
	}
}

// A store that lost its keys is found out by the hint that it should still hold.
func TestRedisResetIsNoticed(t *testing.T) {
	s := testenv.StartRedis(t)
	boot := time.Hour
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, Agent: "agent-1", Run: "run-1", Boot: func() time.Duration { return boot }})
	step := func(n int, pass time.Duration, want uint64) {
		t.Helper()
		boot += pass
		if w, _, err := claimOne(a, redisClaim(n)); w != "won" || a.Resets() != want {
			t.Fatalf("%s, %v: %d resets, want %d", w, err, a.Resets(), want)
		}
	}
	step(1, 0, 0)
	step(2, time.Second, 0)
	if v := s.Do("GET", "scan:agent:agent-1"); v != "run-1" {
		t.Fatalf("the hint holds %v", v)
	}
	s.Do("FLUSHALL")
	step(1, time.Second, 1)
	step(3, time.Second, 1)
	s.Do("DEL", "scan:agent:agent-1") // as if it had expired
	step(4, 2*time.Minute, 1)
}

// A server under memory pressure with noeviction refuses claims; it does not drop them.
func TestRedisFullMemory(t *testing.T) {
	s := testenv.StartRedis(t)
	a := newRedis(t, idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}})
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" {
		t.Fatal(w, err)
	}
	s.Do("CONFIG", "SET", "maxmemory", "1")
	w, _, err := claimOne(a, redisClaim(2))
	if w != "unknown" || !strings.Contains(fmt.Sprint(err), "memory is full") {
		t.Fatal(w, err)
	}
	s.Do("CONFIG", "SET", "maxmemory", "0")
	if w, _, err := claimOne(a, redisClaim(1)); w != "won" {
		t.Fatalf("the claim of before is %s, %v", w, err)
	}
}

func TestRedisConfigIsChecked(t *testing.T) {
	good := idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{"127.0.0.1:6379"}, Password: "hunter2"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*idem.RedisConfig){
		"redis.addrs":        func(c *idem.RedisConfig) { c.Addrs = nil },
		"several":            func(c *idem.RedisConfig) { c.Addrs = []string{"a:1", "b:1"} },
		"master_name":        func(c *idem.RedisConfig) { c.Mode = idem.RedisSentinel },
		"redis.db":           func(c *idem.RedisConfig) { c.Mode, c.DB = idem.RedisCluster, 1 },
		"redis.mode":         func(c *idem.RedisConfig) { c.Mode = "" },
		"host:port":          func(c *idem.RedisConfig) { c.Addrs = []string{"localhost"} },
		"redis.tls = true":   func(c *idem.RedisConfig) { c.Addrs = []string{"10.0.0.1:6379"} },
		"in plaintext":       func(c *idem.RedisConfig) { c.Addrs = []string{"redis.store.example:6379"} },
		"cannot send claims": func(c *idem.RedisConfig) { c.Addrs = []string{"[2001:db8::1]:6379"} },
	} {
		c := good
		change(&c)
		err := c.Validate()
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(fmt.Sprintf("%v %+v %#v", err, c, c), "hunter2") {
			t.Errorf("%s: %v", says, err)
		}
	}
}
