package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo is a server that answers each line with itself, and keeps what it was asked.
type echo struct {
	addr string
	mu   sync.Mutex
	got  []string
	came chan struct{} // one for each line
	ends chan struct{} // one for each connection that has ended
}

func newEcho(t *testing.T) *echo {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{addr: ln.Addr().String(), came: make(chan struct{}, 100), ends: make(chan struct{}, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { c.Close(); e.ends <- struct{}{} }()
				for s := bufio.NewScanner(c); s.Scan(); {
					e.mu.Lock()
					e.got = append(e.got, s.Text())
					e.mu.Unlock()
					e.came <- struct{}{}
					fmt.Fprintln(c, s.Text())
				}
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return e
}

func (e *echo) asked() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.got, " ")
}

type caller struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *caller {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{Conn: c, r: bufio.NewReader(c)}
}

// ask sends a line and returns the answer, waiting for it at most wait.
func (c *caller) ask(line string, wait time.Duration) (string, error) {
	if line != "" {
		if _, err := fmt.Fprintln(c, line); err != nil {
			return "", err
		}
	}
	c.SetReadDeadline(time.Now().Add(wait))
	s, err := c.r.ReadString('\n')
	return strings.TrimSpace(s), err
}

func (c *caller) expect(t *testing.T, line, want string) {
	t.Helper()
	if got, err := c.ask(line, Patience); got != want || err != nil {
		t.Fatalf("%q was answered %q, %v, want %q", line, got, err, want)
	}
}

// expectSilence makes sure that nothing comes, neither data nor an end.
func (c *caller) expectSilence(t *testing.T, line string) {
	t.Helper()
	var timeout net.Error
	if got, err := c.ask(line, 50*time.Millisecond); got != "" || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Fatalf("%q was answered %q, %v, want silence", line, got, err)
	}
}

func (c *caller) expectReset(t *testing.T) {
	t.Helper()
	if got, err := c.ask("", Patience); got != "" || !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("read %q, %v, want a reset", got, err)
	}
}

func TestProxyPassesAndEnds(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	c := dial(t, p)
	c.expect(t, "one", "one")
	c.expect(t, "two", "two")
	if s := p.Stats(); s != (ProxyStats{Accepted: 1, Open: 1, Up: 8, Down: 8}) {
		t.Errorf("stats %+v", s)
	}
	c.Conn.(*net.TCPConn).CloseWrite()
	if _, err := c.ask("", Patience); !errors.Is(err, io.EOF) {
		t.Errorf("the server's end arrived as %v", err)
	}
	<-e.ends
}

func TestProxyRefuses(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	c := dial(t, p)
	c.expect(t, "one", "one")
	p.Set(t, Refuse)
	c.expectReset(t)
	for range 3 {
		if x, err := net.Dial("tcp", p.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dialling: %v, %v, want refused", x, err)
		}
	}
	p.Set(t, Pass)
	dial(t, p).expect(t, "two", "two")
	if s := p.Stats(); s.Dropped != 1 || s.Accepted != 2 {
		t.Errorf("stats %+v", s)
	}
}

func TestProxyDropsOnce(t *testing.T) {
	p := NewProxy(t, newEcho(t).addr)
	a, b := dial(t, p), dial(t, p)
	a.expect(t, "a", "a")
	b.expect(t, "b", "b")
	if n := p.Drop(); n != 2 {
		t.Errorf("dropped %d", n)
	}
	a.expectReset(t)
	b.expectReset(t)
	dial(t, p).expect(t, "c", "c")
}

func TestProxyBlackHole(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	old := dial(t, p)
	old.expect(t, "one", "one")
	p.Set(t, BlackHole)
	fresh := dial(t, p)
	old.expectSilence(t, "two")
	fresh.expectSilence(t, "three")
	if got := e.asked(); got != "one" {
		t.Errorf("the server was asked %q", got)
	}
	p.Set(t, Pass)
	old.expect(t, "", "two")
	fresh.expect(t, "", "three")
}

func TestProxyDeaf(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	c := dial(t, p)
	c.expect(t, "one", "one")
	<-e.came
	p.Set(t, Deaf)
	c.expectSilence(t, "two")
	<-e.came
	if got := e.asked(); got != "one two" {
		t.Errorf("the server was asked %q", got)
	}
	p.Set(t, Pass)
	c.expect(t, "", "two")
}

func TestProxyHalfOpen(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	old := dial(t, p)
	old.expect(t, "one", "one")
	p.Set(t, HalfOpen)
	<-e.ends // the server saw the end
	fresh := dial(t, p)
	old.expectSilence(t, "two")
	old.expectSilence(t, "three")
	fresh.expectSilence(t, "four")
	if got := e.asked(); got != "one" {
		t.Errorf("the server was asked %q", got)
	}
	p.Set(t, Pass)
	old.expectReset(t)
	fresh.expectReset(t)
	dial(t, p).expect(t, "five", "five")
}

func TestProxySwallowsOneReply(t *testing.T) {
	e := newEcho(t)
	p := NewProxy(t, e.addr)
	a, b := dial(t, p), dial(t, p)
	a.expect(t, "a", "a")
	b.expect(t, "b", "b")
	sprung := p.Swallow("commit")
	a.expect(t, "other", "other") // does not fit
	if _, err := fmt.Fprintln(b, "commit"); err != nil {
		t.Fatal(err)
	}
	b.expectReset(t)
	<-sprung
	if got := e.asked(); got != "a b other commit" {
		t.Errorf("the server was asked %q", got)
	}
	a.expect(t, "commit", "commit") // once
	if s := p.Stats(); s.Swallowed != 1 || s.Dropped != 1 {
		t.Errorf("stats %+v", s)
	}
}

func TestProxyDelays(t *testing.T) {
	p := NewProxy(t, newEcho(t).addr)
	c := dial(t, p)
	c.expect(t, "one", "one")
	p.Delay(100 * time.Millisecond)
	start := time.Now()
	c.expect(t, "two", "two")
	if d := time.Since(start); d < 200*time.Millisecond {
		t.Errorf("there and back took %v, want 200 ms", d)
	}
	p.Delay(0)
	c.expect(t, "three", "three")
}

// A server that is down is a client that is cut off.
func TestProxyWithoutServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	p := NewProxy(t, ln.Addr().String())
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client got %v, want a reset", err)
	}
}
