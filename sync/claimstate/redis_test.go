package claimstate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"scanonce/internal/redisconn"
	"scanonce/internal/storetest"
	"scanonce/internal/testenv"
	"scanonce/sync/claimstate"
)

// A server that has lost the scripts gets their text.
func TestRedisLosesTheScripts(t *testing.T) {
	r := testenv.StartRedis(t)
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}})
	c := created(t, s, fresh("c-1", "op-1"))
	for n, to := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified} {
		if n > 0 {
			r.Do("SCRIPT", "FLUSH")
		}
		w, at := answered(t, s, c.Move(to, "", "", fmt.Sprintf("op-%d", n+2)))
		if w != "advanced" {
			t.Fatalf("told %q", w)
		}
		c = at
	}
	if got := s.Stats(); got.Created != 1 || got.Advanced != 3 || got.Failed != 0 {
		t.Errorf("stats %+v", got)
	}
}

// Calls that meet share pipelines and connections. Each has its own answer, also the ones whose script the server has
// lost; one that is given up does not end the others.
func TestRedisCallsMeet(t *testing.T) {
	const callers = 100 // more than two pipelines take
	r := testenv.StartRedis(t)
	p := testenv.NewProxy(t, r.Addr)
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{p.Addr()}, Timeout: time.Minute})
	foreign := fresh("c-0", "another")
	created(t, s, foreign)
	r.Do("SCRIPT", "FLUSH")
	p.Set(t, testenv.Deaf)

	ctx, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, err := s.PutNew(ctx, fresh("c-given-up", "op-1"))
		gaveUp <- err
	}()
	var g errgroup.Group
	for n := range callers {
		g.Go(func() error {
			id := fmt.Sprintf("c-%d", n)
			put, err := s.PutNew(t.Context(), fresh(id, "op-"+id))
			if err != nil {
				return err
			}
			var made, stands claimstate.State
			put.Match(func(s claimstate.State) { made = s }, func(claimstate.State) {}, func(s claimstate.State) { stands = s })
			if n == 0 && stands.OpID != foreign.OpID || n != 0 && made.CorrelationID != id {
				return fmt.Errorf("%s: told created %+v, exists %+v", id, made, stands)
			}
			return nil
		})
	}
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was given up: %v", err)
	}
	p.Set(t, testenv.Pass)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	dialled := p.Stats().Accepted
	for n := range callers {
		g.Go(func() error {
			_, ok, err := s.Get(t.Context(), fmt.Sprintf("c-%d", n))
			if err == nil && !ok {
				err = fmt.Errorf("c-%d is not there", n)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := p.Stats().Accepted - dialled; n > 2 {
		t.Errorf("%d calls at once dialled %d connections", callers, n)
	}
}

// What this package did not write is told as damage, without its content.
func TestRedisForeignHash(t *testing.T) {
	r := testenv.StartRedis(t)
	s := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}})
	for n, change := range [][2]any{{"rx_ref_token", "7003219"}, {"cost", "41.7"}, {"node", "DOE"}, {"version", "x"}, {"op_id", ""}, {"reject_code", "JANE"}} {
		id := fmt.Sprintf("c-%d", n)
		created(t, s, fresh(id, "op-1"))
		r.Do("HSET", "claim:"+id, change[0], change[1])
		_, _, err := s.Get(t.Context(), id)
		var damage *claimstate.DamageError
		if !errors.As(err, &damage) || damage.Hint() == "" {
			t.Errorf("%v: %v", change, err)
		}
		if v := change[1].(string); len(v) > 1 && strings.Contains(fmt.Sprint(err), v) {
			t.Errorf("the error tells the %s", change[0])
		}
	}
	// A key of another type is one wrong claim, and no outage.
	r.Do("SET", "claim:c-text", "x")
	var damage *claimstate.DamageError
	if _, _, err := s.Get(t.Context(), "c-text"); !errors.As(err, &damage) || damage.OfFile() {
		t.Errorf("Get: %v", err)
	}
	if _, err := s.PutNew(t.Context(), fresh("c-text", "op-1")); !errors.As(err, &damage) {
		t.Errorf("PutNew: %v", err)
	}
	if _, err := s.Advance(t.Context(), claimstate.Move{CorrelationID: "c-text", Version: 1, From: claimstate.Ingested, To: claimstate.Normalized, OpID: "op-2"}); !errors.As(err, &damage) {
		t.Errorf("Advance: %v", err)
	}
	// A claim between the two stores is for Split alone.
	c := created(t, s, fresh("c-moved", "op-1"))
	r.Do("HSET", "claim:c-moved", "mark", "moved")
	var mistake *claimstate.ConfigError
	if _, _, err := s.Get(t.Context(), "c-moved"); !errors.As(err, &mistake) {
		t.Errorf("Get: %v", err)
	}
	if _, err := s.PutNew(t.Context(), fresh("c-moved", "op-2")); !errors.As(err, &mistake) {
		t.Errorf("PutNew: %v", err)
	}
	if _, err := s.Advance(t.Context(), c.Move(claimstate.Normalized, "", "", "op-2")); !errors.As(err, &mistake) {
		t.Errorf("Advance: %v", err)
	}
}

func TestRedisMistakes(t *testing.T) {
	locked := testenv.StartRedis(t, "--requirepass", "right")
	evicting := testenv.StartRedis(t, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
	acl := testenv.StartRedis(t)
	acl.Do("ACL", "SETUSER", "agent", "on", ">pw", "~claim:*", "+ping", "+info")
	node := testenv.StartCluster(t, 3)
	for says, cfg := range map[string]claimstate.RedisConfig{
		"wants a password":     {Mode: redisconn.Single, Addrs: []string{locked.Addr}},
		"or the password":      {Mode: redisconn.Single, Addrs: []string{locked.Addr}, Password: "hunter2"},
		"may drop a claim":     {Mode: redisconn.Single, Addrs: []string{evicting.Addr}},
		"ACL does not allow":   {Mode: redisconn.Single, Addrs: []string{acl.Addr}, Username: "agent", Password: "pw"},
		"a node of a cluster":  {Mode: redisconn.Single, Addrs: []string{node[0].Addr}},
		"is no cluster node":   {Mode: redisconn.Cluster, Addrs: []string{acl.Addr}},
		"without a server":     {Mode: redisconn.Single},
		"less than a second":   {Mode: redisconn.Single, Addrs: []string{acl.Addr}, Lives: claimstate.Lives{TTL: 1}},
		"in plaintext":         {Mode: redisconn.Single, Addrs: []string{"redis.example:6379"}},
		"for no time":          {Mode: redisconn.Single, Addrs: []string{acl.Addr}, Timeout: -1},
		"less time than other": {Mode: redisconn.Single, Addrs: []string{acl.Addr}, Lives: claimstate.Lives{TTL: 1e12, Pend: 1e11}},
	} {
		if cfg.Lives == (claimstate.Lives{}) {
			cfg.Lives = storetest.ClaimLives
		}
		if cfg.Timeout == 0 {
			cfg.Timeout = timeout
		}
		cfg.Now = new(clock).now
		s, err := claimstate.NewRedis(cfg)
		for n := 0; err == nil && n < 30; n++ { // keys on all nodes of a cluster
			_, err = s.PutNew(t.Context(), fresh(fmt.Sprintf("c-%d", n), "op-1"))
		}
		if s != nil {
			s.Close()
		}
		var mistake *claimstate.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, says) || mistake.Hint == "" || strings.Contains(fmt.Sprintf("%v %+v", err, cfg), "hunter2") {
			t.Errorf("%s: %v", says, err)
		}
	}
}

var errLeft = errors.New("keys are left")

// The shipped user may do what the stores do, and without any one of its rights something fails, but for those that
// claims on scans alone take: their package's test shows that it needs each.
func TestShippedUserIsEnoughAndNotMore(t *testing.T) {
	single := testenv.StartRedis(t)
	nodes := testenv.StartCluster(t, 3)
	d := testenv.StartDynamo(t)
	user, claims := testenv.ShippedRedisUser(t), testenv.ClaimsRedisUser(t)
	// all runs everything as the user and returns the first failure.
	all := func(cfg claimstate.RedisConfig, servers []*testenv.Redis, user testenv.RedisUser) (err error) {
		user.On(servers...)
		for _, s := range servers {
			s.Do("FLUSHALL")
			s.Do("SCRIPT", "FLUSH")
		}
		var remarks []string
		cfg.Username, cfg.Password, cfg.Timeout, cfg.Lives, cfg.Now = user.Name, testenv.RedisPassword, timeout, storetest.ClaimLives, new(clock).now
		cfg.Warn = func(r string) { remarks = append(remarks, r) }
		split := newSplit(t, cfg, dynamoConfig(d, new(clock)))
		defer split.Close()
		if err := split.Ping(t.Context()); err != nil {
			return err
		}
		for n := range 6 { // keys on several nodes
			c := fresh(fmt.Sprintf("c-%d", n), "op-0")
			p, err := split.PutNew(t.Context(), c)
			if err != nil {
				return err
			}
			var at claimstate.State
			p.Match(func(s claimstate.State) { at = s }, func(claimstate.State) {}, func(claimstate.State) {})
			for k, to := range []claimstate.Node{claimstate.Normalized, claimstate.TaxonomyResolved, claimstate.EligibilityVerified, claimstate.PricingCalculated, claimstate.PAEvaluated, claimstate.PAPended} {
				a, err := split.Advance(t.Context(), at.Move(to, "", "", fmt.Sprintf("op-%d", k+1)))
				if err != nil {
					return err
				}
				a.Match(func(s claimstate.State) { at = s }, func(claimstate.State) {}, func(claimstate.State) {}, func() {})
				if _, _, err := split.Get(t.Context(), c.CorrelationID); err != nil {
					return err
				}
			}
		}
		for _, s := range servers { // a move that could not remove its tombstone is done, and the right is missing all the same
			if left, _ := s.Do("KEYS", "*").([]any); len(left) > 0 {
				return fmt.Errorf("%w: %v", errLeft, left)
			}
		}
		if len(remarks) > 0 {
			return errors.New(remarks[0])
		}
		return nil
	}
	one := claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{single.Addr}}
	many := claimstate.RedisConfig{Mode: redisconn.Cluster, Addrs: []string{nodes[0].Addr}}
	if err := all(one, []*testenv.Redis{single}, user); err != nil {
		t.Errorf("single: %v", err)
	}
	if err := all(many, nodes, user); err != nil {
		t.Errorf("cluster: %v", err)
	}
	for _, g := range user.Grants {
		cfg, servers := one, []*testenv.Redis{single}
		if strings.HasPrefix(g, "+cluster") {
			cfg, servers = many, nodes
		}
		err := all(cfg, servers, user.Without(g))
		if err == nil && !slices.Contains(claims.Grants, g) {
			t.Errorf("the user does not need %s", g)
		}
		var mistake *claimstate.ConfigError
		if err != nil && !errors.As(err, &mistake) && !errors.Is(err, errLeft) && g != "+info" {
			t.Errorf("without %s: %v, want what to grant", g, err)
		}
	}
}

// The server's certificate is checked, the agent's own is shown, and what is wrong is told in one line with the way out.
func TestRedisTLS(t *testing.T) {
	for _, c := range testenv.RedisTLSCases(t) {
		s, err := claimstate.NewRedis(claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{c.Addr}, TLS: c.TLS, Timeout: timeout, Lives: storetest.ClaimLives, Now: new(clock).now})
		if err == nil {
			// The server ends a connection with a certificate that it refuses after the handshake: its reset may come
			// before its reason.
			err = testenv.PastReset(func() error {
				_, err := s.PutNew(t.Context(), fresh("c-1", "op-1"))
				return err
			})
			s.Close()
		}
		if c.Detail == "" {
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
			continue
		}
		var mistake *claimstate.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, c.Detail) || !strings.Contains(mistake.Hint, c.Hint) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q and the hint %q", c.Name, err, c.Detail, c.Hint)
		}
	}
}

// A server that accepts and never answers holds nobody up, on a connection that is there or on a new one.
func TestRedisNeverAnswers(t *testing.T) {
	r := testenv.StartRedis(t)
	const limit = 300 * time.Millisecond
	warm := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}, Timeout: limit})
	created(t, warm, fresh("c-1", "op-1"))
	r.Pause()
	defer r.Resume()
	cold := newRedis(t, claimstate.RedisConfig{Mode: redisconn.Single, Addrs: []string{r.Addr}, Timeout: limit})
	for name, s := range map[string]*claimstate.Redis{"warm": warm, "cold": cold} {
		w := testenv.NewWatch(t)
		_, err := s.PutNew(t.Context(), fresh("c-2", "op-1"))
		w.Within(t, name, 4*limit)
		var mistake *claimstate.ConfigError
		if err == nil || errors.As(err, &mistake) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
