package claimstate_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/redisconn"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
	"scanonce/window"
)

// clock goes with the real one, and can be set forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() window.UTC         { return window.UTC(time.Now().UnixMilli() + c.ahead.Load()) }
func (c *clock) forward(d time.Duration) { c.ahead.Add(d.Milliseconds()) }

// age makes the keys of a Redis older by d.
func age(servers []*testenv.Redis, d time.Duration) {
	for _, s := range servers {
		keys, _ := s.Do("KEYS", "*").([]any)
		for _, k := range keys {
			if left, _ := s.Do("PTTL", k).(int64); left > 0 {
				s.Do("PEXPIRE", k, max(left-d.Milliseconds(), 0)) // 0 deletes
			}
		}
	}
}

func flush(servers []*testenv.Redis) {
	for _, s := range servers {
		s.Do("FLUSHALL")
	}
}

// timeout leaves room for 64 callers on a busy machine.
const timeout = 10 * time.Second

func newRedis(tb testing.TB, cfg claimstate.RedisConfig) *claimstate.Redis {
	tb.Helper()
	if cfg.Lives == (claimstate.Lives{}) {
		cfg.Lives = storetest.ClaimLives
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = timeout
	}
	if cfg.Now == nil {
		cfg.Now = new(clock).now
	}
	s, err := claimstate.NewRedis(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// redisFixture is a store on servers that a whole suite shares; every case begins with a flush. The store logs in as
// the shipped user.
func redisFixture(tb testing.TB, cfg claimstate.RedisConfig, servers []*testenv.Redis) storetest.ClaimStateFixture {
	flush(servers)
	c := new(clock)
	cfg.Now, cfg.Username, cfg.Password = c.now, testenv.ShippedRedisUser(tb).Name, testenv.RedisPassword
	open := func(tb testing.TB) claimstate.Store { return newRedis(tb, cfg) }
	return storetest.ClaimStateFixture{Open: open, Now: c.now,
		Pass: func(_ testing.TB, d time.Duration) { c.forward(d); age(servers, d) },
		Reopen: func(tb testing.TB, s claimstate.Store) claimstate.Store {
			if err := s.Close(); err != nil {
				tb.Fatal(err)
			}
			return open(tb)
		},
		Break: func(tb testing.TB) { kill(tb, servers) },
	}
}

// kill ends servers until the end of the case.
func kill(tb testing.TB, servers []*testenv.Redis) {
	for _, s := range servers {
		s.Kill()
	}
	tb.Cleanup(func() {
		for _, s := range servers {
			s.Start()
		}
	})
}

func TestRedisConformance(t *testing.T) {
	s := testenv.StartRedis(t, testenv.ShippedRedisUser(t).File(t)...)
	p := testenv.NewProxy(t, s.Addr)
	storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
		f := redisFixture(tb, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{p.Addr()}}, []*testenv.Redis{s})
		f.Lose = func(_ testing.TB, part string) { p.Swallow(part) }
		return f
	})
}

func TestRedisSentinelConformance(t *testing.T) {
	master := testenv.StartRedis(t, testenv.ShippedRedisUser(t).File(t)...)
	var addrs []string
	for _, s := range testenv.StartSentinels(t, 3, master) {
		addrs = append(addrs, s.Addr)
	}
	storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
		return redisFixture(tb, claimstate.RedisConfig{Mode: redisconn.Sentinel, Addrs: addrs, MasterName: testenv.MasterName}, []*testenv.Redis{master})
	})
}

func TestRedisClusterConformance(t *testing.T) {
	nodes := testenv.StartCluster(t, 3, testenv.ShippedRedisUser(t).File(t)...)
	storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
		f := redisFixture(tb, claimstate.RedisConfig{Mode: redisconn.Cluster, Addrs: []string{nodes[0].Addr, nodes[1].Addr}}, nodes)
		open, opened := f.Open, []claimstate.Store(nil)
		f.Open = func(tb testing.TB) claimstate.Store { opened = append(opened, open(tb)); return opened[len(opened)-1] }
		f.Break = func(testing.TB) { // killed nodes would take long to agree again
			for _, s := range opened {
				s.Close()
			}
		}
		return f
	})
}

// table gives every case a table of its own.
var table atomic.Int64

func dynamoConfig(d *testenv.Dynamo, c *clock) claimstate.DynamoConfig {
	return claimstate.DynamoConfig{Endpoint: d.URL(), Region: "us-east-1", Table: "claims_" + time.Duration(table.Add(1)).String(), CreateTable: true,
		CredentialsFile: d.Credentials, Timeout: timeout, Lives: storetest.ClaimLives, Now: c.now}
}

func newDynamo(tb testing.TB, cfg claimstate.DynamoConfig) *claimstate.Dynamo {
	tb.Helper()
	s, err := claimstate.NewDynamo(context.Background(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// margin is the time after its end in which a claim in DynamoDB is still in the way.
const margin = 5*time.Minute + 2*time.Second

// The conformance suite makes exactly the requests that the shipped policy allows: those of making the table apart, and
// about no other table.
func TestDynamoConformance(t *testing.T) {
	d := testenv.StartDynamo(t)
	policy := readPolicy(t)
	for _, makes := range []bool{true, false} {
		f, url := newFront(t, d)
		p := testenv.NewProxy(t, strings.TrimPrefix(url, "http://"))
		t.Run(map[bool]string{true: "create_table", false: "made before"}[makes], func(t *testing.T) {
			storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
				c := new(clock)
				cfg := dynamoConfig(d, c)
				if !makes {
					if err := newDynamo(tb, cfg).Ping(tb.Context()); err != nil {
						tb.Fatal(err)
					}
				}
				cfg.Endpoint, cfg.CreateTable = "http://"+p.Addr(), makes
				f.allow(cfg.Table)
				open := func(tb testing.TB) claimstate.Store { return newDynamo(tb, cfg) }
				return storetest.ClaimStateFixture{Open: open, Now: c.now, Margin: margin,
					Pass: func(_ testing.TB, d time.Duration) { c.forward(d) },
					Reopen: func(tb testing.TB, s claimstate.Store) claimstate.Store {
						if err := s.Close(); err != nil {
							tb.Fatal(err)
						}
						return open(tb)
					},
					Lose: func(_ testing.TB, part string) { p.Swallow(part) },
					Break: func(tb testing.TB) {
						p.Set(tb, testenv.Refuse)
						tb.Cleanup(func() { p.Set(t, testenv.Pass) })
					},
				}
			})
		})
		want := policy["Claims"]
		if makes {
			want = slices.Sorted(slices.Values(append(want, policy["OnlyWithCreateTable"]...)))
		}
		if got := f.used(); !slices.Equal(got, want) {
			t.Errorf("with create_table = %v, %q are used, and the policy allows %q", makes, got, want)
		}
		if f.foreign != 0 {
			t.Errorf("%d requests name another table", f.foreign)
		}
	}
}

func TestSplitConformance(t *testing.T) {
	user := testenv.ShippedRedisUser(t)
	r := testenv.StartRedis(t, user.File(t)...)
	rp := testenv.NewProxy(t, r.Addr)
	d := testenv.StartDynamo(t)
	dp := testenv.NewProxy(t, d.Addr)
	servers := []*testenv.Redis{r}
	// The reply that is lost is Redis's, or DynamoDB's.
	for name, lossy := range map[string]*testenv.Proxy{"redis": rp, "dynamodb": dp} {
		t.Run(name, func(t *testing.T) {
			storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
				flush(servers)
				c := new(clock)
				fast := claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{rp.Addr()}, Username: user.Name, Password: testenv.RedisPassword, Timeout: timeout, Lives: storetest.ClaimLives, Now: c.now}
				durable := dynamoConfig(d, c)
				durable.Endpoint = "http://" + dp.Addr()
				open := func(tb testing.TB) claimstate.Store { return newSplit(tb, fast, durable) }
				return storetest.ClaimStateFixture{Open: open, Now: c.now, Margin: margin,
					Pass: func(_ testing.TB, d time.Duration) { c.forward(d); age(servers, d) },
					Reopen: func(tb testing.TB, s claimstate.Store) claimstate.Store {
						if err := s.Close(); err != nil {
							tb.Fatal(err)
						}
						return open(tb)
					},
					Lose:  func(_ testing.TB, part string) { lossy.Swallow(part) },
					Break: func(tb testing.TB) { kill(tb, servers) },
				}
			})
		})
	}
}

func newSplit(tb testing.TB, fast claimstate.RedisConfig, durable claimstate.DynamoConfig) *claimstate.Split {
	tb.Helper()
	s, err := claimstate.NewSplit(context.Background(), fast, durable)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

func openEmbedded(tb testing.TB, path string, c *clock) *claimstate.Embedded {
	tb.Helper()
	s, err := claimstate.OpenEmbedded(path, storetest.ClaimLives, c.now)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

func TestEmbeddedConformance(t *testing.T) {
	storetest.ClaimState(t, func(tb testing.TB) storetest.ClaimStateFixture {
		path := filepath.Join(tb.TempDir(), "claims.db")
		c := new(clock)
		s := openEmbedded(tb, path, c)
		return storetest.ClaimStateFixture{Now: c.now,
			Open: func(testing.TB) claimstate.Store { return s }, // a file has one writer
			Pass: func(_ testing.TB, d time.Duration) { c.forward(d) },
			Reopen: func(tb testing.TB, s claimstate.Store) claimstate.Store {
				if err := s.Close(); err != nil {
					tb.Fatal(err)
				}
				return openEmbedded(tb, path, c)
			},
			Break: func(testing.TB) { s.Close() },
		}
	})
}
