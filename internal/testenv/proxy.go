package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is what a Proxy does with the connections it has and gets.
type Mode int

const (
	// Pass forwards both ways.
	Pass Mode = iota
	// Refuse resets what is open and refuses what comes.
	Refuse
	// BlackHole accepts and keeps everything open, and forwards nothing either way. With Pass again, what
	// was held goes on its way, but for connections that the client has closed before the server heard of them.
	BlackHole
	// Deaf forwards requests and holds the replies. With Pass again, they arrive.
	Deaf
	// HalfOpen closes the server's side and keeps the client's: its bytes are taken and never answered. A
	// later Set resets these connections.
	HalfOpen
)

// ProxyStats counts since the start, but for Open.
type ProxyStats struct {
	Accepted  int   // connections
	Open      int   // connections now
	Dropped   int   // connections that the proxy ended by a fault
	Swallowed int   // replies
	Up, Down  int64 // bytes sent on to the server, to the client
}

// Proxy stands between a client and a TCP server and makes faults. Its port stays its own while it refuses.
type Proxy struct {
	target string
	port   int
	guard  int // a bound socket that does not listen: it keeps the port
	wg     sync.WaitGroup

	mu      sync.Mutex
	mode    Mode
	delay   time.Duration
	changed chan struct{} // closed when mode or delay change
	ln      net.Listener  // nil while refusing
	conns   map[*proxied]struct{}
	trap    *trap
	stats   ProxyStats
	traffic Traffic
	closed  bool
}

// Traffic is what became of connections since the last Observe.
type Traffic struct {
	Arrivals []time.Time // of the connections that were accepted
	Peak     int         // how many were open at once
}

// requestRest is how long the rest of a request may take after the first byte of the answer.
const requestRest = 20 * time.Millisecond

// trap is an armed Swallow.
type trap struct {
	part   []byte
	sprung chan struct{}
}

// proxied is a client's connection and its counterpart to the server.
type proxied struct {
	client, server *net.TCPConn
	end            chan struct{}
	once           sync.Once

	mu   sync.Mutex
	trap *trap // replies are swallowed from now on
	half bool  // the server's side is closed on purpose
}

// NewProxy starts a proxy to target, an address of the form 127.0.0.1:5432. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, changed: make(chan struct{}), conns: map[*proxied]struct{}{}}
	fd, port, err := reservePort()
	if err != nil {
		t.Fatalf("cannot start a proxy: %v", err)
	}
	p.guard, p.port = fd, port
	t.Cleanup(p.close)
	p.Set(t, Pass)
	return p
}

// reservePort binds a free loopback port without listening on it: connecting is refused, and nobody else
// is given the port.
func reservePort() (fd, port int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	var sa unix.Sockaddr
	if err == nil {
		sa, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return 0, 0, err
	}
	return fd, sa.(*unix.SockaddrInet4).Port, nil
}

func listenShared(addr string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctl := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(ctl, err)
	}}
	return lc.Listen(context.Background(), "tcp4", addr)
}

// Port is the loopback port to connect to.
func (p *Proxy) Port() int { return p.port }

// Addr is 127.0.0.1 and the port.
func (p *Proxy) Addr() string { return fmt.Sprintf("127.0.0.1:%d", p.port) }

// Stats returns the counters.
func (p *Proxy) Stats() ProxyStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Open = len(p.conns)
	return s
}

// Retarget sends new connections to another server.
func (p *Proxy) Retarget(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Observe begins to count the traffic anew.
func (p *Proxy) Observe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traffic = Traffic{Peak: len(p.conns)}
}

// Traffic returns the count since Observe.
func (p *Proxy) Traffic() Traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Traffic{slices.Clone(p.traffic.Arrivals), p.traffic.Peak}
}

// Set changes the mode, for the connections that are open too.
func (p *Proxy) Set(t testing.TB, m Mode) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.mode = m
	p.wake()
	if m == Refuse {
		if p.ln != nil {
			p.ln.Close()
			p.ln = nil
		}
		p.drop(func(*proxied) bool { return true })
		return
	}
	if p.ln == nil {
		ln, err := listenShared(p.Addr())
		if err != nil {
			t.Fatalf("cannot listen as a proxy: %v", err)
		}
		p.ln = ln
		p.wg.Go(func() { p.accept(ln) })
	}
	if m != HalfOpen {
		p.drop((*proxied).isHalf)
		return
	}
	for c := range p.conns {
		c.halve()
	}
}

// Delay makes every piece of data wait d in each direction; 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
	p.wake()
}

// Drop resets all open connections and returns their number. New ones are not touched.
func (p *Proxy) Drop() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.drop(func(*proxied) bool { return true })
}

// Swallow lets the next request through that contains part ("" is any), keeps its reply from the client,
// and resets the client's connection once the server has done with all it was sent. The channel is closed
// then.
func (p *Proxy) Swallow(part string) <-chan struct{} {
	tr := &trap{part: []byte(part), sprung: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = tr
	return tr.sprung
}

func (p *Proxy) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) drop(which func(*proxied) bool) (n int) {
	for c := range p.conns {
		if which(c) {
			c.reset()
			delete(p.conns, c)
			p.stats.Dropped++
			n++
		}
	}
	return n
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.wake()
	if p.ln != nil {
		p.ln.Close()
	}
	for c := range p.conns {
		c.reset()
	}
	p.mu.Unlock()
	p.wg.Wait()
	unix.Close(p.guard)
}

func (p *Proxy) accept(ln net.Listener) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		c := &proxied{client: client.(*net.TCPConn), end: make(chan struct{})}
		p.mu.Lock()
		if p.closed || p.mode == Refuse {
			p.mu.Unlock()
			c.reset()
			continue
		}
		p.stats.Accepted++
		p.conns[c] = struct{}{}
		p.traffic.Arrivals = append(p.traffic.Arrivals, time.Now())
		p.traffic.Peak = max(p.traffic.Peak, len(p.conns))
		p.wg.Go(func() { p.serve(c) })
		p.mu.Unlock()
	}
}

func (p *Proxy) serve(c *proxied) {
	defer func() {
		c.reset()
		p.mu.Lock()
		delete(p.conns, c)
		p.mu.Unlock()
	}()
	if !p.pass(c, true) || c.left() { // who gave up while nothing went through was never heard of
		return
	}
	p.mu.Lock()
	half := p.mode == HalfOpen
	p.mu.Unlock()
	if !half {
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			return
		}
		if !c.join(server.(*net.TCPConn)) {
			return
		}
	} else {
		c.halve()
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		p.pumpUp(c)
	}()
	p.pumpDown(c)
	<-up
}

// pass waits until the mode lets data of a direction through; false if the connection has ended.
func (p *Proxy) pass(c *proxied, up bool) bool {
	for {
		p.mu.Lock()
		mode, changed := p.mode, p.changed
		p.mu.Unlock()
		if mode != BlackHole && (up || mode != Deaf) {
			select {
			case <-c.end:
				return false
			default:
				return true
			}
		}
		select {
		case <-c.end:
			return false
		case <-changed:
		}
	}
}

// late waits for the delay that is set.
func (p *Proxy) late(c *proxied) {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.end:
	}
}

func (p *Proxy) pumpUp(c *proxied) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		if n > 0 {
			if !p.pass(c, true) {
				return
			}
			p.late(c)
			p.spring(c, buf[:n])
			server := c.peer()
			if server != nil {
				p.count(int64(n), 0) // before the answer to it can come
				if _, err := server.Write(buf[:n]); err != nil && !c.isHalf() {
					return
				}
			}
		}
		if err != nil {
			if server := c.peer(); server == nil || c.isHalf() {
				c.reset()
			} else if p.pass(c, true) {
				server.CloseWrite()
			}
			return
		}
	}
}

// spring gives an armed trap to the connection whose request fits.
func (p *Proxy) spring(c *proxied, request []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trap == nil || !bytes.Contains(request, p.trap.part) {
		return
	}
	c.mu.Lock()
	c.trap = p.trap
	c.mu.Unlock()
	p.trap = nil
}

func (p *Proxy) pumpDown(c *proxied) {
	server := c.peer()
	if server == nil { // half-open from the start
		<-c.end
		return
	}
	buf := make([]byte, 64<<10)
	answered := false
	for {
		n, err := server.Read(buf)
		tr := c.trapped()
		if n > 0 && tr != nil && !answered {
			// The server has begun to answer. What is left of the request is on its way; after that the
			// server sees the end of the stream, and ends by itself when it has done all.
			answered = true
			time.AfterFunc(requestRest, func() { c.client.SetReadDeadline(time.Unix(1, 0)) })
		}
		if n > 0 && tr == nil {
			if !p.pass(c, false) {
				return
			}
			p.late(c)
			if c.trapped() == nil {
				p.count(0, int64(n))
				if _, werr := c.client.Write(buf[:n]); werr != nil {
					return
				}
			}
		}
		if err == nil {
			continue
		}
		switch {
		case tr != nil:
			p.mu.Lock()
			p.stats.Swallowed++
			p.stats.Dropped++
			p.mu.Unlock()
			c.reset()
			close(tr.sprung)
		case c.isHalf():
			<-c.end
		case errors.Is(err, io.EOF):
			if p.pass(c, false) { // the end of a stream is held like its data
				c.client.CloseWrite()
			}
		default:
			c.reset()
		}
		return
	}
}

func (p *Proxy) count(up, down int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Up += up
	p.stats.Down += down
}

// join sets the server's side; false if the connection has ended meanwhile.
func (c *proxied) join(server *net.TCPConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.end:
		server.Close()
		return false
	default:
	}
	c.server = server
	if c.half {
		server.Close()
	}
	return true
}

// left says that the client has closed its side.
func (c *proxied) left() bool {
	raw, err := c.client.SyscallConn()
	if err != nil {
		return true
	}
	const closeWait = 8 // TCP_CLOSE_WAIT of linux/tcp.h
	left := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		left = err != nil || info.State == closeWait
	})
	return err != nil || left
}

func (c *proxied) peer() *net.TCPConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

func (c *proxied) trapped() *trap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trap
}

func (c *proxied) isHalf() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.half
}

func (c *proxied) halve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.half = true
	if c.server != nil {
		c.server.Close()
	}
}

// reset ends both sides; the client sees a reset, not an orderly end.
func (c *proxied) reset() {
	c.once.Do(func() {
		c.client.SetLinger(0)
		c.client.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.end)
		if c.server != nil {
			c.server.Close()
		}
	})
}
