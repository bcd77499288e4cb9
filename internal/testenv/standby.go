package testenv

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Standby makes a hot standby of p, which it reaches at addr, a proxy's perhaps. name is what p knows it by. It
// ends with the test.
func (p *Postgres) Standby(t testing.TB, name, addr string) *Postgres {
	t.Helper()
	s := &Postgres{bin: p.bin, opts: p.opts, cred: p.cred}
	var err error
	if s.Dir, err = s.mkdir("scanonce-pg"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill(t)
		os.RemoveAll(s.Dir)
	})
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	from := fmt.Sprintf("host=%s port=%s user=%s application_name=%s", host, port, PostgresSuperuser, name)
	out, err := s.command("pg_basebackup", "-d", from, "-D", filepath.Join(s.Dir, "data"), "-R", "-X", "stream", "-c", "fast", "--no-sync").CombinedOutput()
	if err != nil {
		t.Fatalf("cannot copy the primary: %v\n%s", err, out)
	}
	s.Start(t)
	return s
}

// Synchronous makes p wait for one of the standbys of these names before it acknowledges a commit; none ends that.
func (p *Postgres) Synchronous(t testing.TB, names ...string) {
	t.Helper()
	value := ""
	if len(names) > 0 {
		value = "ANY 1 (" + strings.Join(names, ", ") + ")"
	}
	p.Exec(t, PostgresSuperuser, fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = '%s'", value))
	p.Exec(t, PostgresSuperuser, "SELECT pg_reload_conf()")
}

// Promote makes a standby a primary that waits for nobody.
func (p *Postgres) Promote(t testing.TB) {
	t.Helper()
	p.Synchronous(t)
	p.Exec(t, PostgresSuperuser, "SELECT pg_promote()")
}
