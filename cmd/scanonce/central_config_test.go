package main

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// elsewhere is an address for documentation (RFC 5737): it is not this machine, and nobody is there.
const elsewhere = "192.0.2.1"

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// dials counts the connections to elsewhere that this machine has or tries.
func dials(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), " 010200C0:")
}

// A mistake in the stores' configuration is one alarm with the way out; capturing goes on; and once the
// mistake is mended, on disk or at the server, the store is used without a restart.
func TestCentralMistakes(t *testing.T) {
	t.Parallel()
	type mistake struct {
		stores stores
		more   string // [redis]
		alarm  string // claims_config or ledger_config
		detail string // a part of it
		hint   string // a part of it
		secret string // must not be told
		mend   func() // nil: needs another configuration
	}
	// locked are a redis-server and a PostgreSQL that want a password.
	locked := func(t *testing.T) *central {
		c := &central{redis: testenv.StartRedis(t, "--requirepass", "right horse"), pg: testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Password: true})}
		c.db = c.pg.NewDatabase(t)
		migrate(t, c.pg, c.db)
		c.pg.AgentDSN(t, c.db)
		c.claims, c.rows = testenv.NewProxy(t, c.redis.Addr), testenv.NewProxy(t, c.pg.Addr())
		return c
	}
	for name, prepare := range map[string]func(t *testing.T, dir string) (*central, mistake){
		"Redis password": func(t *testing.T, dir string) (*central, mistake) {
			c := locked(t)
			mine, pg := filepath.Join(dir, "redis"), filepath.Join(dir, "pg")
			writeFile(t, mine, "wrong horse\n")
			writeFile(t, pg, testenv.PostgresPassword+"\n")
			s := c.stores()
			s.postgres = "password_file = " + strconv.Quote(pg)
			return c, mistake{s, "password_file = " + strconv.Quote(mine), "claims_config", "refuses the user name or the password", "redis.password_file", "wrong horse",
				func() { writeFile(t, mine, "right horse\n") }}
		},
		"PostgreSQL password": func(t *testing.T, dir string) (*central, mistake) {
			c := locked(t)
			mine, redis := filepath.Join(dir, "pg"), filepath.Join(dir, "redis")
			writeFile(t, mine, "wrong horse\n")
			writeFile(t, redis, "right horse\n")
			s := c.stores()
			s.postgres = "password_file = " + strconv.Quote(mine)
			return c, mistake{s, "password_file = " + strconv.Quote(redis), "ledger_config", "password authentication failed", "postgres.password_file", "wrong horse",
				func() { writeFile(t, mine, testenv.PostgresPassword+"\n") }}
		},
		"Redis permission": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			c.redis.Do("ACL", "SETUSER", "default", "resetkeys", "~other:*")
			return c, mistake{c.stores(), "", "claims_config", "does not allow", "ACL SETUSER", "", func() { c.redis.Do("ACL", "SETUSER", "default", "~scan:*") }}
		},
		"Redis memory": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			c.redis.Do("CONFIG", "SET", "maxmemory", "1")
			return c, mistake{c.stores(), "", "claims_config", "memory is full", "maxmemory", "", func() { c.redis.Do("CONFIG", "SET", "maxmemory", "0") }}
		},
		"PostgreSQL permission": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			c.pg.Exec(t, c.db, "REVOKE "+testenv.PostgresRole+" FROM "+testenv.PostgresLogin)
			return c, mistake{c.stores(), "", "ledger_config", "permission denied", "GRANT " + testenv.PostgresRole, "",
				func() { c.pg.Exec(t, c.db, "GRANT "+testenv.PostgresRole+" TO "+testenv.PostgresLogin) }}
		},
		"schema": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			c.db = c.pg.NewDatabase(t)
			return c, mistake{c.stores(), "", "ledger_config", "scan_schema", "scanonce ledger migrate", "", func() { migrate(t, c.pg, c.db) }}
		},
		"Redis certificate": func(t *testing.T, dir string) (*central, mistake) {
			right, wrong := authority(t), authority(t)
			cert, key, err := right.Issue("127.0.0.1")
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, filepath.Join(dir, "cert"), string(cert))
			writeFile(t, filepath.Join(dir, "key"), string(key))
			port := testenv.FreePort(t)
			c := newCentral(t, "--tls-port", strconv.Itoa(port), "--tls-cert-file", filepath.Join(dir, "cert"), "--tls-key-file", filepath.Join(dir, "key"), "--tls-auth-clients", "no")
			ca := filepath.Join(dir, "ca")
			writeFile(t, ca, string(wrong.PEM))
			s := c.stores()
			s.redis = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			return c, mistake{s, "tls = true\nca_file = " + strconv.Quote(ca), "claims_config", "certificate", "redis.ca_file", "",
				func() { writeFile(t, ca, string(right.PEM)) }}
		},
		"PostgreSQL certificate": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			c.pg = testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, TLS: true})
			c.db = c.pg.NewDatabase(t)
			migrate(t, c.pg, c.db)
			c.pg.AgentDSN(t, c.db)
			right, err := os.ReadFile(c.pg.CAFile)
			if err != nil {
				t.Fatal(err)
			}
			ca := filepath.Join(dir, "ca")
			writeFile(t, ca, string(authority(t).PEM))
			s := c.stores()
			s.dsn = "postgres://" + testenv.PostgresLogin + "@" + c.pg.Addr() + "/" + c.db + "?sslmode=verify-full&sslrootcert=" + ca
			return c, mistake{s, "", "ledger_config", "certificate", "sslrootcert", "", func() { writeFile(t, ca, string(right)) }}
		},
		"Redis in plaintext": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			s := c.stores()
			s.redis = elsewhere + ":6379"
			return c, mistake{s, "", "claims_config", "in plaintext", "redis.tls = true", "", nil}
		},
		"PostgreSQL in plaintext": func(t *testing.T, dir string) (*central, mistake) {
			c := newCentral(t)
			s := c.stores()
			s.dsn = "postgres://scanonce@" + elsewhere + "/scanonce?sslmode=prefer"
			return c, mistake{s, "", "ledger_config", "without TLS", "sslmode=verify-full", "", nil}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, m := prepare(t, t.TempDir())
			setup := m.stores.in(testenv.Setup{})
			setup.Sections = strings.Replace(setup.Sections, "[redis]\n", "[redis]\n"+m.more+"\n", 1)
			h, _, st, g := bench(t, setup)
			ledger := m.alarm == "claims_config"
			want := "OFFLINE"
			if ledger {
				want = "ONLINE"
			}
			s := h.Await(t, "the alarm", func(s *testenv.Status) bool { return s.Alarm(m.alarm) != nil && s.State == want })
			if dials(t) != 0 {
				t.Errorf("the agent dials %s", elsewhere)
			}
			if a := s.Alarm(m.alarm); len(s.Alarms) != 1 && !(len(s.Alarms) == 2 && s.Alarm("device_absent") != nil) || !strings.HasPrefix(a.Detail, "cannot ") ||
				!strings.Contains(a.Detail, m.detail) || !strings.Contains(a.Hint, m.hint) || strings.Contains(a.Detail+a.Hint, "\n") {
				t.Errorf("alarms %q, want one about %q with the hint %q", s.Alarms, m.detail, m.hint)
			}
			// Capturing goes on.
			a := g.expect("accepted", matrix(bottleGTIN, "M1", "A1207"))
			g.expect("duplicate", matrix(bottleGTIN, "M1", "A1207"))
			if *a.Online != ledger {
				t.Errorf("told %s", a.Data)
			}
			if ledger {
				g.committed(a.EventID)
			}
			r := h.Call(t, "status")
			if r.Code != 6 || strings.Count(r.Stdout, m.alarm+" since ") != 1 || !strings.Contains(r.Stdout, "hint: ") || !strings.Contains(r.Stdout, want) {
				t.Errorf("status ends with %d and says %s", r.Code, r.Stdout)
			}
			log, err := os.ReadFile(h.Log)
			if err != nil {
				t.Fatal(err)
			}
			if m.secret != "" && (strings.Contains(r.Stdout, m.secret) || strings.Contains(string(log), m.secret)) {
				t.Error("the password is told")
			}
			if n := strings.Count(string(log), m.hint); n > 3 {
				t.Errorf("the log says it %d times", n)
			}
			if m.mend == nil {
				if r := h.Call(t, "check-config"); r.Code != 2 || !strings.Contains(r.Stderr, m.detail) || !strings.Contains(r.Stderr, m.hint) {
					t.Errorf("check-config ends with %d: %s", r.Code, r.Stderr)
				}
				if n := dials(t); n != 0 {
					t.Errorf("the agent dials %s", elsewhere)
				}
				return
			}
			m.mend()
			st.Wait(t, 0, "the end of the alarm", alarm(m.alarm, false))
			b := g.expect("accepted", matrix(bottleGTIN, "M2", "A1207"))
			g.committed(b.EventID)
			rows, lines := c.settled(t, h)
			if len(rows) != 2 || len(linesOf(lines, "suppressed")) != 1 || len(rowByEvent(t, rows, b.EventID).Flags) != 0 {
				t.Errorf("rows %+v", rows)
			}
			if r := h.Call(t, "status"); r.Code != 0 {
				t.Errorf("status ends with %d afterwards: %s", r.Code, r.Stdout)
			}
		})
	}
}

// A right is taken away amid the work, that of adding audit lines: no line is lost, and none is there twice.
func TestCentralAuditRefused(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, _, st, g := c.bench(t, testenv.Setup{})
	g.committed(g.expect("accepted", matrix(bottleGTIN, "A0", "A1207")).EventID)
	c.pg.Exec(t, c.db, "REVOKE INSERT ON scan_audit_line FROM "+testenv.PostgresRole)
	g.expect("accepted", matrix(bottleGTIN, "A1", "A1207"))
	g.expect("duplicate", matrix(bottleGTIN, "A1", "A1207"))
	raised, _ := st.Wait(t, 0, "the alarm", alarm("ledger_config", true))
	if !strings.Contains(raised.Detail, "scan_audit_line") || !strings.Contains(raised.Data, "GRANT") {
		t.Errorf("alarm %s", raised.Data)
	}
	g.expect("accepted", matrix(bottleGTIN, "A2", "A1207"))
	g.expect("duplicate", matrix(bottleGTIN, "A2", "A1207"))
	c.pg.Exec(t, c.db, "GRANT INSERT ON scan_audit_line TO "+testenv.PostgresRole)
	st.Wait(t, 0, "the end of the alarm", alarm("ledger_config", false))
	if rows, lines := c.settled(t, h); len(rows) != 3 || len(linesOf(lines, "suppressed")) != 2 {
		t.Errorf("%d rows, %d suppressed lines, want 3 and 2", len(rows), len(linesOf(lines, "suppressed")))
	}
}

func authority(t testing.TB) *testenv.Authority {
	t.Helper()
	a, err := testenv.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}
