package testenv

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is one private redis-server or sentinel, a child that dies with the test.
type Redis struct {
	Addr string

	t    testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
	log  *os.File
}

func lookRedis(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: run make test-deps, or apt-get install redis-server redis-sentinel redis-tools", name)
	}
	return path
}

// FreePort is a loopback port that nothing listens on at the moment.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// StartRedis starts a server with more arguments, such as "--maxmemory", "3mb".
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	dir := t.TempDir()
	port := strconv.Itoa(FreePort(t))
	return startRedis(t, dir, port, append([]string{lookRedis(t, "redis-server"), "--port", port, "--bind", "127.0.0.1", "--dir", dir,
		"--save", "", "--appendonly", "no", "--protected-mode", "no"}, args...))
}

func startRedis(t testing.TB, dir, port string, args []string) *Redis {
	t.Helper()
	r := &Redis{Addr: "127.0.0.1:" + port, t: t, dir: dir, args: args}
	t.Cleanup(r.Kill)
	r.Start()
	return r
}

// Start starts the server again, after Kill.
func (r *Redis) Start() {
	r.t.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = log
	r.cmd = exec.Command(r.args[0], r.args[1:]...)
	r.cmd.Stdout, r.cmd.Stderr = log, log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for {
		if answersPing(ctx, r.Addr) {
			return
		}
		if ctx.Err() != nil || r.cmd.ProcessState != nil {
			text, _ := os.ReadFile(log.Name())
			r.t.Fatalf("redis does not answer:\n%s", text)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// pause waits between two looks at a foreign program, which gives no signal.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// answersPing takes an authentication error for an answer too.
func answersPing(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") || strings.HasPrefix(line, "-NOPERM"))
}

// Kill ends the server at once.
func (r *Redis) Kill() {
	if r.cmd == nil {
		return
	}
	r.cmd.Process.Signal(syscall.SIGCONT)
	r.cmd.Process.Kill()
	r.cmd.Wait()
	r.log.Close()
	r.cmd = nil
}

// Pause makes the server accept and never answer; Resume ends that.
func (r *Redis) Pause() { r.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (r *Redis) Resume() { r.cmd.Process.Signal(syscall.SIGCONT) }

// Do runs a command on the server itself.
func (r *Redis) Do(args ...any) any {
	r.t.Helper()
	c := redis.NewClient(&redis.Options{Addr: r.Addr, DisableIdentity: true})
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil {
		r.t.Fatalf("redis %v: %v", args, err)
	}
	return v
}

// WaitFor asks the server until ok says so.
func (r *Redis) WaitFor(what string, ok func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for !ok() {
		if ctx.Err() != nil {
			r.t.Fatalf("not within %v: %s", Patience, what)
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// Replicate makes r a replica that reaches its master at addr, a proxy's perhaps, and waits until it is one.
func (r *Redis) Replicate(addr string) {
	r.t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	r.Do("REPLICAOF", host, port)
	r.WaitFor("the replica to be in sync", func() bool {
		return strings.Contains(fmt.Sprint(r.Do("INFO", "replication")), "master_link_status:up")
	})
}

// MasterName is the name under which StartSentinels watches.
const MasterName = "claims"

// StartSentinels starts n sentinels over a master, each with more arguments; they agree on a failover by majority.
func StartSentinels(t testing.TB, n int, master *Redis, args ...string) []*Redis {
	t.Helper()
	host, port, _ := net.SplitHostPort(master.Addr)
	var out []*Redis
	for range n {
		dir := t.TempDir()
		p := strconv.Itoa(FreePort(t))
		conf := filepath.Join(dir, "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nprotected-mode no\nsentinel monitor %s %s %s %d\nsentinel down-after-milliseconds %s 400\nsentinel failover-timeout %s 3000\nsentinel parallel-syncs %s 1\n",
			p, dir, MasterName, host, port, n/2+1, MasterName, MasterName, MasterName)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out = append(out, startRedis(t, dir, p, append([]string{lookRedis(t, "redis-server"), conf, "--sentinel"}, args...)))
	}
	for _, s := range out {
		s.WaitFor("the sentinels to see each other", func() bool {
			v := fmt.Sprint(s.Do("SENTINEL", "MASTER", MasterName))
			return strings.Contains(v, fmt.Sprintf("num-other-sentinels:%d", n-1)) || strings.Contains(v, fmt.Sprintf("num-other-sentinels %d", n-1))
		})
	}
	return out
}

// StartCluster starts a cluster of n masters, each with more arguments.
func StartCluster(t testing.TB, n int, args ...string) []*Redis {
	t.Helper()
	var nodes []*Redis
	var addrs []string
	for range n {
		r := StartRedis(t, append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", strconv.Itoa(FreePort(t)),
			"--cluster-require-full-coverage", "no"}, args...)...)
		nodes = append(nodes, r)
		addrs = append(addrs, r.Addr)
	}
	var out bytes.Buffer
	cmd := exec.Command(lookRedis(t, "redis-cli"), append(append([]string{"--cluster", "create"}, addrs...), "--cluster-yes")...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("cannot form a cluster: %v\n%s", err, out.Bytes())
	}
	for _, r := range nodes {
		r.WaitFor("the cluster to be whole", func() bool { return strings.Contains(fmt.Sprint(r.Do("CLUSTER", "INFO")), "cluster_state:ok") })
	}
	return nodes
}
