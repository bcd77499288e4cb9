package idem_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"scanonce/idem"
	"scanonce/internal/testenv"
)

// oldConn makes of the SET with NX and GET one that no server takes, as one before 7.0 does not.
type oldConn struct{ net.Conn }

var setGet = regexp.MustCompile(`(\$2\r\nNX\r\n\$2\r\nPX\r\n\$\d+\r\n\d+\r\n\$3\r\n)GET`)

func (c oldConn) Write(b []byte) (int, error) {
	if _, err := c.Conn.Write(setGet.ReplaceAll(b, []byte("${1}GOT"))); err != nil {
		return 0, err
	}
	return len(b), nil
}

func dialOld(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return oldConn{c}, nil
}

// claimAll does all that the authority does in Redis, and returns what did not work or was remarked.
func claimAll(t *testing.T, cfg idem.RedisConfig) error {
	var remarks []string
	cfg.Warn = func(r string) { remarks = append(remarks, r) }
	cfg.Agent, cfg.Run, cfg.Boot = "agent-1", "run-1", func() time.Duration { return time.Hour }
	a := newRedis(t, cfg)
	defer a.Close()
	if err := a.Ping(t.Context()); err != nil {
		return err
	}
	for n := range 30 { // on all nodes of a cluster
		for k, want := range []string{"won", "held"} {
			c := redisClaim(n)
			c.Event[15] = byte(k + 1)
			if w, _, err := claimOne(a, c); w != want {
				return fmt.Errorf("%s: %w", w, errors.Join(err, errors.New("not "+want)))
			}
		}
	}
	if len(remarks) > 0 {
		return errors.New(remarks[0])
	}
	return nil
}

// The documented user for claims on scans may do all of it, and without any one of its grants something fails. It
// has no grant that the shipped one lacks.
func TestClaimsUserIsEnoughAndNotMore(t *testing.T) {
	u := testenv.ClaimsRedisUser(t)
	single, nodes := testenv.StartRedis(t), testenv.StartCluster(t, 3)
	// what fails of the ways to claim, with these grants
	fails := func(u testenv.RedisUser) (errs []error) {
		u.On(append(slices.Clone(nodes), single)...)
		for _, cfg := range []idem.RedisConfig{
			{Mode: idem.RedisSingle, Addrs: []string{single.Addr}},
			{Mode: idem.RedisSingle, Addrs: []string{single.Addr}, Dial: dialOld},
			{Mode: idem.RedisCluster, Addrs: []string{nodes[0].Addr}},
		} {
			for _, s := range append(slices.Clone(nodes), single) {
				s.Do("FLUSHALL")
			}
			cfg.Username, cfg.Password = u.Name, testenv.RedisPassword
			if err := claimAll(t, cfg); err != nil {
				errs = append(errs, err)
			}
		}
		return errs
	}
	if errs := fails(u); len(errs) > 0 {
		t.Fatalf("the user is not enough: %v", errs)
	}
	// What the client tries besides, the documentation tells of: it would look like an attack.
	for _, s := range append(slices.Clone(nodes), single) {
		for _, refusal := range s.Do("ACL", "LOG").([]any) {
			if what := refusal.(map[any]any)["object"]; what != "command" || s == single {
				t.Errorf("the server has noted a refusal of %v", what)
			}
		}
	}
	shipped := testenv.ShippedRedisUser(t)
	for _, g := range u.Grants {
		if !slices.Contains(shipped.Grants, g) {
			t.Errorf("configs/redis-acl.conf lacks %s", g)
		}
		if errs := fails(u.Without(g)); len(errs) == 0 {
			t.Errorf("the user does not need %s", g)
		}
	}
}

// What the shipped user must not do, in a script either.
func TestShippedUserIsRefused(t *testing.T) {
	u := testenv.ShippedRedisUser(t)
	s := testenv.StartRedis(t, append(u.File(t), "--enable-debug-command", "yes")...)
	s.Do("SET", "foreign", "x")
	s.Do("CONFIG", "SET", "masterauth", "hush-hush")
	c := redis.NewClient(&redis.Options{Addr: s.Addr, Username: u.Name, Password: testenv.RedisPassword, DisableIdentity: true})
	defer c.Close()
	for _, command := range []string{
		"GET foreign", "SET foreign y", "DEL foreign", "EXISTS foreign", "HSET foreign f v", "GET scan", "GET claimed:x", "EVAL return\u00a01 1 foreign",
		"FLUSHALL", "FLUSHDB", "SWAPDB 0 1", "KEYS *", "SCAN 0", "RANDOMKEY", "DBSIZE", "RENAME scan:a scan:b", "COPY scan:a scan:b", "DUMP scan:a",
		"RESTORE scan:a 0 x", "MIGRATE 127.0.0.1 1 scan:a 0 10", "MOVE scan:a 1", "PERSIST scan:a", "GETDEL scan:a", "EXPIRE scan:a 1", "UNLINK scan:a",
		"HGETALL claim:a", "SELECT 1", "CONFIG GET masterauth", "CONFIG SET maxmemory-policy allkeys-lru", "CONFIG REWRITE", "CONFIG RESETSTAT",
		"DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "SAVE", "BGSAVE", "BGREWRITEAOF", "REPLICAOF NO ONE", "FAILOVER", "SYNC", "PSYNC ? -1", "MONITOR", "SLOWLOG GET",
		"ACL LIST", "ACL SETUSER scanonce +@all", "ACL WHOAMI", "CLIENT LIST", "CLIENT KILL TYPE normal", "CLIENT PAUSE 1", "SCRIPT FLUSH", "SCRIPT KILL",
		"SCRIPT LOAD x", "FUNCTION LIST", "FCALL f 0", "MODULE LIST", "PUBLISH scan:a x", "SUBSCRIBE scan:a", "OBJECT ENCODING scan:a", "MEMORY USAGE scan:a",
		"CLUSTER NODES", "CLUSTER RESET", "CLUSTER FAILOVER", "LATENCY RESET", "COMMAND", "TIME", "WAIT 0 1",
	} {
		args := []any{}
		for _, w := range strings.Split(command, " ") {
			args = append(args, strings.ReplaceAll(w, "\u00a0", " "))
		}
		if err := c.Do(t.Context(), args...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("%s: %v, want NOPERM", command, err)
		}
	}
	for script, says := range map[string]string{"redis.call('GET', 'foreign')": "can't access", "redis.call('FLUSHALL')": "can't run", "redis.call('KEYS', '*')": "can't run",
		"redis.call('CONFIG', 'GET', 'masterauth')": "not allowed"} {
		if err := c.Do(t.Context(), "EVAL", "return "+script, 0).Err(); err == nil || !strings.Contains(err.Error(), says) && !strings.Contains(err.Error(), "ACL failure") {
			t.Errorf("in a script, %s: %v", script, err)
		}
	}
	info, err := c.Info(t.Context()).Result()
	if err != nil || strings.Contains(info, "hush-hush") {
		t.Errorf("INFO: %v", err)
	}
	if v := s.Do("GET", "foreign"); v != "x" {
		t.Errorf("foreign holds %v", v)
	}
}

// redis.db takes a grant that the file does not have.
func TestRedisDatabaseTakesSelect(t *testing.T) {
	u := testenv.ShippedRedisUser(t)
	s := testenv.StartRedis(t, u.File(t)...)
	cfg := idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{s.Addr}, Username: u.Name, Password: testenv.RedisPassword, DB: 1}
	var mistake *idem.ConfigError
	if err := claimAll(t, cfg); !errors.As(err, &mistake) || !strings.Contains(mistake.Hint, "+select") {
		t.Errorf("without +select: %v", err)
	}
	s.Do("ACL", "SETUSER", u.Name, "+select")
	if err := claimAll(t, cfg); err != nil {
		t.Errorf("with +select: %v", err)
	}
}

// The documented rights on a Sentinel are what the client uses there. One that it lacks is in the server's log of
// refusals.
func TestSentinelRightsAreEnoughAndNotMore(t *testing.T) {
	rights := testenv.SentinelRights(t)
	refused := func(rights []string) (list []string, err error) {
		master := testenv.StartRedis(t)
		sentinel := testenv.StartSentinels(t, 1, master)[0] // one alone: nobody else is refused
		defer master.Kill()
		defer sentinel.Kill()
		sentinel.Do("ACL", "SETUSER", "admin", "on", ">admin", "~*", "&*", "+@all")
		admin := redis.NewClient(&redis.Options{Addr: sentinel.Addr, Username: "admin", Password: "admin", DisableIdentity: true, MaxRetries: -1})
		defer admin.Close()
		args := []any{"ACL", "SETUSER", "default", "resetkeys", "resetchannels", "-@all"}
		for _, r := range rights {
			args = append(args, r)
		}
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		admin.Do(t.Context(), "ACL", "LOG", "RESET")
		err = claimAll(t, idem.RedisConfig{Mode: idem.RedisSentinel, Addrs: []string{sentinel.Addr}, MasterName: testenv.MasterName, Timeout: time.Second})
		entries, lerr := admin.ACLLog(t.Context(), 100).Result()
		if lerr != nil {
			t.Fatal(lerr)
		}
		for _, e := range entries {
			list = append(list, e.Object)
		}
		return list, err
	}
	if list, err := refused(rights); err != nil || len(list) > 0 {
		t.Errorf("not enough: %v, refused %q", err, list)
	}
	for i, r := range rights {
		if r == "+ping" { // on a subscription that has been silent for 3 s
			continue
		}
		if list, err := refused(slices.Delete(slices.Clone(rights), i, i+1)); len(list) == 0 {
			t.Errorf("%s is not needed: %v", r, err)
		}
	}
}

// The server's certificate is checked, the agent's own is shown, and what is wrong is told in one line with the way out.
func TestRedisTLS(t *testing.T) {
	for _, c := range testenv.RedisTLSCases(t) {
		cfg := idem.RedisConfig{Mode: idem.RedisSingle, Addrs: []string{c.Addr}, TLS: c.TLS, TTL: time.Minute, Timeout: 5 * time.Second, Password: "hush-hush"}
		if c.Detail == "" {
			cfg.Password = ""
		}
		a, err := idem.NewRedis(cfg)
		if err == nil {
			err = testenv.PastReset(func() error {
				_, _, err := claimOne(a, redisClaim(1))
				return err
			})
			a.Close()
		}
		if c.Detail == "" {
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
			continue
		}
		var mistake *idem.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, c.Detail) || !strings.Contains(mistake.Hint, c.Hint) || !strings.HasPrefix(err.Error(), "cannot ") ||
			strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("%s: %v, want %q and the hint %q", c.Name, err, c.Detail, c.Hint)
		}
	}
}

// Sentinels and cluster nodes that name a server beyond this machine do not lead plaintext there.
func TestRedisRedirectsStayPrivate(t *testing.T) {
	node := testenv.StartCluster(t, 3)[0]
	node.Do("CONFIG", "SET", "cluster-announce-ip", "192.0.2.1")
	node.WaitFor("the node to name another machine", func() bool { return strings.Contains(fmt.Sprint(node.Do("CLUSTER", "SLOTS")), "192.0.2.1") })
	sentinel := testenv.StartSentinels(t, 1, &testenv.Redis{Addr: "192.0.2.1:6379"})[0]
	for _, cfg := range []idem.RedisConfig{
		{Mode: idem.RedisCluster, Addrs: []string{node.Addr}},
		{Mode: idem.RedisSentinel, Addrs: []string{sentinel.Addr}, MasterName: testenv.MasterName},
	} {
		_, _, err := claimOne(newRedis(t, cfg), redisClaim(1))
		var mistake *idem.ConfigError
		if !errors.As(err, &mistake) || !strings.Contains(mistake.Detail, "192.0.2.1 in plaintext") || !strings.Contains(mistake.Hint, "redis.tls") {
			t.Errorf("%s: %v", cfg.Mode, err)
		}
	}
}

// By TLS the nodes name each other's TLS ports and Sentinels their masters', and each asks for the agent's certificate.
func TestRedisTLSEverywhere(t *testing.T) {
	ca := testenv.MustAuthority(t)
	cert, key := ca.Files(t, "127.0.0.1")
	files := []string{"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca.File(t), "--tls-auth-clients", "yes"}
	pair, err := tls.LoadX509KeyPair(ca.Files(t, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
	config.RootCAs.AppendCertsFromPEM(ca.PEM)
	bare := config.Clone()
	bare.Certificates = nil

	nodes := testenv.StartCluster(t, 3, files...)
	var addrs []string
	for _, n := range nodes {
		port := testenv.FreePort(t)
		n.Do("CONFIG", "SET", "tls-port", port)
		n.Do("CONFIG", "SET", "tls-cluster", "yes")
		n.Do("CONFIG", "SET", "cluster-announce-tls-port", port)
		addrs = append(addrs, fmt.Sprintf("127.0.0.1:%d", port))
	}
	c := redis.NewClient(&redis.Options{Addr: addrs[0], TLSConfig: config, DisableIdentity: true})
	defer c.Close()
	nodes[0].WaitFor("the nodes to have told each other", func() bool {
		slots, err := c.ClusterSlots(t.Context()).Result()
		return err == nil && len(slots) == 3 && !slices.ContainsFunc(slots, func(s redis.ClusterSlot) bool { return !slices.Contains(addrs, s.Nodes[0].Addr) })
	})
	_, master := testenv.RedisTLS(t, ca, cert, key)
	port := strconv.Itoa(testenv.FreePort(t))
	testenv.StartSentinels(t, 1, &testenv.Redis{Addr: master}, append(files, "--tls-port", port, "--tls-replication", "yes")...)
	for _, cfg := range []idem.RedisConfig{
		{Mode: idem.RedisCluster, Addrs: addrs[:1], TLS: config},
		{Mode: idem.RedisSentinel, Addrs: []string{"127.0.0.1:" + port}, MasterName: testenv.MasterName, TLS: config},
	} {
		if err := claimAll(t, cfg); err != nil {
			t.Errorf("%s: %v", cfg.Mode, err)
		}
		cfg.TLS = bare
		var mistake *idem.ConfigError
		if err := claimAll(t, cfg); !errors.As(err, &mistake) || !strings.Contains(mistake.Hint, "redis.cert_file") {
			t.Errorf("%s without a certificate: %v", cfg.Mode, err)
		}
	}
}
