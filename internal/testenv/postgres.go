package testenv

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"
)

// Logins of every server here. The password counts only with PostgresOptions.Password.
const (
	PostgresSuperuser = "postgres"
	PostgresOwner     = "scanonce_owner" // owns the databases, may create roles
	PostgresLogin     = "scanonce"       // a member of the least-privilege role
	PostgresRole      = "scanonce_agent" // the least-privilege role itself
	PostgresPassword  = "correct horse"
)

// PostgresOptions is what a server has beyond the defaults.
type PostgresOptions struct {
	TLS      bool     // TLS alone is let in by TCP; CAFile is what to trust
	TLSHosts []string // of the certificate; nil: 127.0.0.1 and localhost
	Expired  bool     // the certificate is
	Clients  bool     // with TLS: by TCP, a certificate of the Authority for the login's name alone lets in
	Password bool     // by TCP, SCRAM-SHA-256 with PostgresPassword; else no password
	NoFsync  bool     // faster; a Kill may then lose what was acknowledged
	Settings []string // name=value
	Clock    *Clock   // the server's; nil is the machine's
}

// Postgres is a private server of the newest installed PostgreSQL, on a loopback port and a socket in a
// folder of its own. It dies with the test's process.
type Postgres struct {
	Dir    string // data folder, logs and the unix socket
	Port   int
	CAFile string // PEM, with TLS

	Authority *Authority // with TLS

	bin  string
	opts PostgresOptions
	cred *syscall.Credential // nil: as the test's own user

	granting sync.Mutex // held while roles change

	mu   sync.Mutex
	proc *postmaster
	log  bytes.Buffer
	dbs  int
}

// postmaster is a running server process.
type postmaster struct {
	pid   int
	ready chan struct{}
	ended chan struct{}
}

// What the server says when it takes connections, as a standby too.
const (
	readyLine   = "database system is ready to accept connections"
	standbyLine = "database system is ready to accept read-only connections"
)

// NewPostgres starts a server that ends with the test. It fails the test if PostgreSQL is not installed.
func NewPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	bin, err := postgresFolder()
	if err != nil {
		t.Fatal(err)
	}
	p := &Postgres{bin: bin, opts: o}
	if p.cred, err = serverUser(); err != nil {
		t.Fatal(err)
	}
	template, err := p.template()
	if err != nil {
		t.Fatal(err)
	}
	if p.Dir, err = p.mkdir("scanonce-pg"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill(t)
		os.RemoveAll(p.Dir)
	})
	if err := p.furnish(template); err != nil {
		t.Fatal(err)
	}
	p.Start(t)
	return p
}

// postgresFolder is the folder of the newest version's programs.
func postgresFolder() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	version := func(path string) int {
		v, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return v
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	return "", errors.New("cannot find PostgreSQL: install it (apt-get install postgresql), or run make test, which does")
}

// serverUser is whom the server runs as: it refuses root.
func serverUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("cannot run PostgreSQL as root: make a user postgres (adduser --system postgres): %w", err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// mkdir makes a temporary folder of the server's user. Its path is short, for the socket in it.
func (p *Postgres) mkdir(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err == nil && p.cred != nil {
		err = os.Chown(dir, int(p.cred.Uid), int(p.cred.Gid))
	}
	return dir, err
}

func (p *Postgres) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, name), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	return cmd
}

// template returns a data folder to copy. It is made once and kept beside the temporary files, since initdb
// takes seconds; its name holds all that it depends on.
func (p *Postgres) template() (string, error) {
	const layout = 1 // of the roles and settings below
	version := filepath.Base(filepath.Dir(p.bin))
	uid := os.Getuid()
	if p.cred != nil {
		uid = int(p.cred.Uid)
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("scanonce-pg-template-%s-%d-%d", version, uid, layout))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	tmp, err := p.mkdir("scanonce-pg-new")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	data := filepath.Join(tmp, "data")
	out, err := p.command("initdb", "-D", data, "-U", PostgresSuperuser, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8",
		"--no-sync", "--no-instructions").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot make a database folder: %w\n%s", err, out)
	}
	roles := p.command("postgres", "--single", "-D", data, "postgres")
	roles.Stdin = strings.NewReader(fmt.Sprintf("CREATE ROLE %s LOGIN CREATEROLE PASSWORD '%s'\nCREATE ROLE %s LOGIN PASSWORD '%s'\n",
		PostgresOwner, PostgresPassword, PostgresLogin, PostgresPassword))
	if out, err := roles.CombinedOutput(); err != nil || bytes.Contains(out, []byte("ERROR")) {
		return "", fmt.Errorf("cannot make the roles of a test server: %w\n%s", err, out)
	}
	return dir, os.Rename(data, dir)
}

// furnish fills the folder: a copy of the template, access rules, certificate.
func (p *Postgres) furnish(template string) error {
	data := filepath.Join(p.Dir, "data")
	if out, err := exec.Command("cp", "-a", template, data).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy the database folder: %w\n%s", err, out)
	}
	kind, method := "host", "trust"
	if p.opts.TLS {
		kind = "hostssl"
	}
	if p.opts.Password {
		method = "scram-sha-256"
	}
	if p.opts.Clients {
		method = "cert"
	}
	rules := fmt.Sprintf("local all all trust\n%s all all 127.0.0.1/32 %s\n%s replication all 127.0.0.1/32 %s\n", kind, method, kind, method)
	if err := p.write(filepath.Join("data", "pg_hba.conf"), []byte(rules)); err != nil {
		return err
	}
	if !p.opts.TLS {
		return nil
	}
	var err error
	if p.Authority, err = NewAuthority(); err != nil {
		return err
	}
	hosts := p.opts.TLSHosts
	if hosts == nil {
		hosts = []string{"127.0.0.1", "localhost"}
	}
	issue := p.Authority.Issue
	if p.opts.Expired {
		issue = p.Authority.IssueExpired
	}
	cert, key, err := issue(hosts...)
	if err != nil {
		return err
	}
	p.CAFile = filepath.Join(p.Dir, "ca.pem")
	return errors.Join(p.write("ca.pem", p.Authority.PEM), p.write("server.crt", cert), p.write("server.key", key))
}

// write makes a file that belongs to the server's user, readable by nobody else.
func (p *Postgres) write(name string, content []byte) error {
	path := filepath.Join(p.Dir, name)
	err := os.WriteFile(path, content, 0o600)
	if err == nil && p.cred != nil {
		err = os.Chown(path, int(p.cred.Uid), int(p.cred.Gid))
	}
	return err
}

func (p *Postgres) args() []string {
	settings := append([]string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(p.Port), "unix_socket_directories=" + p.Dir,
		"max_connections=60", "shared_buffers=32MB", "logging_collector=off", "log_destination=stderr",
		"log_line_prefix=%m [%p] %a: ", "timezone=UTC", "autovacuum_naptime=1h", "checkpoint_timeout=1h",
	}, p.opts.Settings...)
	if p.opts.NoFsync {
		settings = append(settings, "fsync=off", "full_page_writes=off")
	}
	if p.opts.TLS {
		settings = append(settings, "ssl=on", "ssl_cert_file="+filepath.Join(p.Dir, "server.crt"), "ssl_key_file="+filepath.Join(p.Dir, "server.key"))
	}
	if p.opts.Clients {
		settings = append(settings, "ssl_ca_file="+p.CAFile)
	}
	args := []string{"-D", filepath.Join(p.Dir, "data")}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	return args
}

// Start starts the server if it is not running, and returns once it accepts connections. After the first
// start the port stays the same.
func (p *Postgres) Start(t testing.TB) {
	t.Helper()
	p.mu.Lock()
	running := p.proc != nil
	p.mu.Unlock()
	if running {
		return
	}
	for try := range 5 {
		if p.Port == 0 || try > 0 && strings.Contains(p.Log(), "Address already in use") {
			fd, port, err := reservePort()
			if err != nil {
				t.Fatal(err)
			}
			unix.Close(fd)
			p.Port = port
		}
		proc, err := p.launch()
		if err != nil {
			t.Fatalf("cannot start PostgreSQL: %v", err)
		}
		select {
		case <-proc.ready:
			p.mu.Lock()
			p.proc = proc
			p.mu.Unlock()
			return
		case <-proc.ended:
			if !strings.Contains(p.Log(), "Address already in use") {
				t.Fatalf("PostgreSQL did not start:\n%s", p.Log())
			}
		}
	}
	t.Fatalf("PostgreSQL found no free port:\n%s", p.Log())
}

func (p *Postgres) launch() (*postmaster, error) {
	cmd := p.command("postgres", p.args()...)
	cmd.Env = append(cmd.Env, p.opts.Clock.environment()...)
	// An immediate shutdown, if the test dies: it takes the children along and frees the shared memory.
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stderr = in
	proc := &postmaster{ready: make(chan struct{}), ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal follows the thread that started the process, so this one must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
			close(proc.ended)
		}
	}()
	if err := <-started; err != nil {
		out.Close()
		return nil, err
	}
	proc.pid = cmd.Process.Pid
	go p.follow(out, proc.ready)
	return proc, nil
}

// follow keeps the log and closes ready when the server says so.
func (p *Postgres) follow(out io.ReadCloser, ready chan struct{}) {
	defer out.Close()
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		p.mu.Lock()
		p.log.WriteString(line)
		p.mu.Unlock()
		if ready != nil && (strings.Contains(line, readyLine) || strings.Contains(line, standbyLine)) {
			close(ready)
			ready = nil
		}
		if err != nil {
			return
		}
	}
}

// Log is all that the server has said.
func (p *Postgres) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// end sends the signal with send and waits until the server's processes are gone.
func (p *Postgres) end(t testing.TB, send func(proc *postmaster)) {
	t.Helper()
	p.mu.Lock()
	proc := p.proc
	p.proc = nil
	p.mu.Unlock()
	if proc == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	send(proc)
	select {
	case <-proc.ended:
	case <-ctx.Done():
		t.Errorf("PostgreSQL does not end:\n%s", p.Log())
	}
}

// Stop shuts the server down in order; connections are cut.
func (p *Postgres) Stop(t testing.TB) {
	t.Helper()
	p.end(t, func(proc *postmaster) { syscall.Kill(proc.pid, syscall.SIGINT) })
}

// Cut shuts the server down without a checkpoint or a good-bye: Start recovers from the log.
func (p *Postgres) Cut(t testing.TB) {
	t.Helper()
	p.end(t, func(proc *postmaster) { syscall.Kill(proc.pid, syscall.SIGQUIT) })
}

// Kill ends all of the server's processes at once by SIGKILL, paused or not. Start brings it back, after
// its crash recovery.
func (p *Postgres) Kill(t testing.TB) {
	t.Helper()
	p.end(t, func(proc *postmaster) {
		syscall.Kill(proc.pid, syscall.SIGSTOP) // it must not start anything new meanwhile
		var fds []int
		for _, pid := range children(proc.pid) {
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				fds = append(fds, fd)
			}
			syscall.Kill(pid, syscall.SIGKILL)
		}
		syscall.Kill(proc.pid, syscall.SIGKILL)
		for _, fd := range fds { // a new server does not start while one of them holds the shared memory
			for {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(Patience.Milliseconds()))
				if err != unix.EINTR {
					break
				}
			}
			unix.Close(fd)
		}
	})
}

// Restart stops and starts the server.
func (p *Postgres) Restart(t testing.TB) {
	t.Helper()
	p.Stop(t)
	p.Start(t)
}

// Pause stops all of the server's processes: it accepts (the kernel does) and never answers.
func (p *Postgres) Pause() { p.signalAll(syscall.SIGSTOP) }

// Resume ends Pause.
func (p *Postgres) Resume() { p.signalAll(syscall.SIGCONT) }

func (p *Postgres) signalAll(s syscall.Signal) {
	p.mu.Lock()
	proc := p.proc
	p.mu.Unlock()
	if proc == nil {
		return
	}
	syscall.Kill(proc.pid, s)
	for _, pid := range children(proc.pid) {
		syscall.Kill(pid, s)
	}
}

// children are the processes that pid has started.
func children(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range lists {
		b, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// Addr is 127.0.0.1 and the port.
func (p *Postgres) Addr() string { return "127.0.0.1:" + strconv.Itoa(p.Port) }

// DSN is a URL without a password, by TCP.
func (p *Postgres) DSN(login, database string) string { return p.DSNAt(p.Addr(), login, database) }

// DSNAt is DSN by way of another address, a Proxy's.
func (p *Postgres) DSNAt(addr, login, database string) string {
	q := url.Values{"sslmode": {"disable"}}
	if p.opts.TLS {
		q = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.CAFile}}
	}
	u := url.URL{Scheme: "postgres", User: url.User(login), Host: addr, Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// SocketDSN is a DSN by the unix socket, where nobody needs a password.
func (p *Postgres) SocketDSN(login, database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s", p.Dir, p.Port, login, database)
}

// Connect opens a connection by the unix socket that the test's end closes.
func (p *Postgres) Connect(t testing.TB, login, database string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, p.SocketDSN(login, database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

// Exec runs SQL, several statements too, as the superuser.
func (p *Postgres) Exec(t testing.TB, database, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := pgx.Connect(ctx, p.SocketDSN(PostgresSuperuser, database))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if _, err := c.PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// NewDatabase makes an empty database of PostgresOwner and returns its name.
func (p *Postgres) NewDatabase(t testing.TB) string {
	t.Helper()
	p.mu.Lock()
	p.dbs++
	name := fmt.Sprintf("db%d", p.dbs)
	p.mu.Unlock()
	p.Exec(t, PostgresSuperuser, fmt.Sprintf("CREATE DATABASE %s OWNER %s", name, PostgresOwner))
	return name
}

// OwnerDSN is the DSN of the database's owner, who may migrate it.
func (p *Postgres) OwnerDSN(database string) string { return p.DSN(PostgresOwner, database) }

// AgentDSN is the DSN of the least-privilege login. It makes the login a member of PostgresRole, which it
// creates if a migration has not yet.
func (p *Postgres) AgentDSN(t testing.TB, database string) string {
	t.Helper()
	p.granting.Lock() // the server does not order them
	defer p.granting.Unlock()
	p.Exec(t, database, fmt.Sprintf(`DO $$ BEGIN CREATE ROLE %s; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$`, PostgresRole))
	p.Exec(t, database, fmt.Sprintf("GRANT %s TO %s", PostgresRole, PostgresLogin))
	return p.DSN(PostgresLogin, database)
}

// PasswordFile writes a file with the password, for the server's logins.
func (p *Postgres) PasswordFile(t testing.TB, password string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
