package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scanonce/window"
)

// Config of the server.
type Config struct {
	Socket         string   // path of the unix socket
	SocketGroup    string   // whose members may use it; "" or missing: only root and the agent's own user
	Listen         string   // loopback address with port, "" is none
	Token          string   // that loopback requests must carry
	AllowedHosts   []string // of the Host header, without port
	AllowedOrigins []string // of the Origin header, beside the status page's own
	MaxBody        int64    // bytes of a request, default 64 KiB
	OS             window.OS
}

// Stats is a snapshot of the server's figures.
type Stats struct {
	Requests uint64
	Refused  uint64 // 401 and 403
	Streams  int64  // open event streams
}

// Server is the local interface. It is a task.
type Server struct {
	cfg     Config
	backend Backend
	events  Events
	log     *slog.Logger

	handler http.Handler
	served  []string // see Routes
	token   [sha256.Size]byte
	page    page
	once    answers
	limits  limits
	ready   chan struct{}
	addr    atomic.Pointer[string]
	// streams ends the event streams, which Shutdown would wait for.
	streams    context.Context
	endStreams context.CancelFunc
	group      atomic.Int64 // of the socket, -1 for none

	requests, refused atomic.Uint64
	open              atomic.Int64
}

const (
	maxHeader = 16 << 10
	// The rest of the connections is for requests that end.
	maxConns   = 256 // a listener
	maxStreams = 64
	maxIdle    = 64
	drain      = 2 * time.Second
)

// limits of time for a connection; fields for the tests' sake.
type limits struct {
	readHeader, read time.Duration
	write            time.Duration // of an answer, or of one write of a stream
	idle, heartbeat  time.Duration
}

func defaultLimits() limits {
	return limits{readHeader: 5 * time.Second, read: 15 * time.Second, write: 30 * time.Second, idle: 2 * time.Minute, heartbeat: 15 * time.Second}
}

// New builds the server; metrics may be nil. Nothing is opened before Run.
func New(cfg Config, backend Backend, events Events, metrics http.Handler, log *slog.Logger) *Server {
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = 64 << 10
	}
	s := &Server{cfg: cfg, backend: backend, events: events, log: log, limits: defaultLimits(),
		ready: make(chan struct{}), token: sha256.Sum256([]byte(cfg.Token)), page: newPage()}
	s.group.Store(-1)
	s.streams, s.endStreams = context.WithCancel(context.Background())
	s.handler = s.routes(metrics)
	return s
}

func (s *Server) String() string { return "api" }

// Ready is closed once the listeners are open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr is the address of the loopback listener, "" if there is none or before Ready.
func (s *Server) Addr() string {
	if a := s.addr.Load(); a != nil {
		return *a
	}
	return ""
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	return Stats{Requests: s.requests.Load(), Refused: s.refused.Load(), Streams: s.open.Load()}
}

// Run serves until ctx ends, then lets the requests at hand finish, for 2 s at most, and removes the
// socket. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	defer s.endStreams()
	if s.cfg.OS == nil {
		h, err := window.Host()
		if err != nil {
			return err
		}
		s.cfg.OS = h
	}
	s.once.boot = s.cfg.OS.Boot

	var listeners []net.Listener
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	if s.cfg.Socket != "" {
		l, gid, err := listenUnix(ctx, s.cfg.Socket, s.cfg.SocketGroup, s.log)
		if err != nil {
			return err
		}
		s.group.Store(int64(gid))
		listeners = append(listeners, l)
	}
	if s.cfg.Listen != "" {
		l, err := s.listenLoopback(ctx)
		if err != nil {
			closeAll()
			return err
		}
		a := l.Addr().String()
		s.addr.Store(&a)
		listeners = append(listeners, l)
	}

	base, stopRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRequests()
	srv := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: s.limits.readHeader, ReadTimeout: s.limits.read,
		WriteTimeout: s.limits.write, IdleTimeout: s.limits.idle, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: connContext,
		ConnState:   new(idlers).changed,
	}
	failed := make(chan error, len(listeners))
	var serving sync.WaitGroup
	for _, l := range listeners {
		serving.Go(func() { failed <- srv.Serve(newLimited(l, maxConns)) })
	}
	close(s.ready)

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("cannot go on serving the local interface: %w", err)
	}
	s.endStreams()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if srv.Shutdown(last) != nil {
		stopRequests()
		srv.Close()
	}
	serving.Wait()
	return err
}

func (s *Server) listenLoopback(ctx context.Context) (net.Listener, error) {
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: write a loopback address with a port, for example 127.0.0.1:7411", s.cfg.Listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("cannot listen on %q: only a loopback address is allowed, for example 127.0.0.1:7411", s.cfg.Listen)
	}
	if s.cfg.Token == "" {
		return nil, fmt.Errorf("cannot listen on %q without a token: set api.token_file", s.cfg.Listen)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w; free the port or choose another in api.listen", s.cfg.Listen, err)
	}
	return l, nil
}

// limited accepts no more than a number of connections at a time.
type limited struct {
	net.Listener
	slots chan struct{}
	done  chan struct{}
	once  sync.Once
}

type limitedConn struct {
	net.Conn
	release func()
}

func newLimited(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, n), done: make(chan struct{})}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{c, sync.OnceFunc(func() { <-l.slots })}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite lets the server end an answer to a request that it has not read to the end.
func (c *limitedConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return nil
}

// idlers closes the connection that has been idle for longest when there are too many.
type idlers struct {
	mu    sync.Mutex
	conns []net.Conn // oldest first
}

func (i *idlers) changed(c net.Conn, s http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns = slices.DeleteFunc(i.conns, func(o net.Conn) bool { return o == c })
	if s != http.StateIdle {
		return
	}
	i.conns = append(i.conns, c)
	if len(i.conns) > maxIdle {
		i.conns[0].Close()
		i.conns = slices.Delete(i.conns, 0, 1)
	}
}

type peerKey struct{}

// connContext keeps the peer of a unix socket; a connection without one came over loopback.
func connContext(ctx context.Context, c net.Conn) context.Context {
	lc, ok := c.(*limitedConn)
	if !ok {
		return ctx
	}
	u, ok := lc.Conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	p, err := peerOf(u)
	if err != nil {
		p = nil // refused
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// guard lets in who may use the interface.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if p, ok := r.Context().Value(peerKey{}).(*peer); ok {
			if p == nil || !p.allowed(os.Geteuid(), int(s.group.Load())) {
				s.refuse(w, &Error{Status: http.StatusForbidden, Reason: "peer_not_allowed",
					Detail: "cannot let this user in", Hint: "run as root, as the agent's user, or as a member of the group of the socket"})
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if !s.hostAllowed(r.Host) {
			s.refuse(w, &Error{Status: http.StatusForbidden, Reason: "host_not_allowed",
				Detail: "cannot serve this Host header", Hint: "use http://localhost or http://127.0.0.1, or add the name to api.allowed_hosts"})
			return
		}
		if origin := r.Header.Get("Origin"); origin != "" {
			listed := slices.Contains(s.cfg.AllowedOrigins, origin)
			if !listed && origin != "http://"+r.Host {
				s.refuse(w, &Error{Status: http.StatusForbidden, Reason: "origin_not_allowed",
					Detail: "cannot serve pages of this origin", Hint: "add the origin to api.allowed_origins, for example \"https://pms.example\""})
				return
			}
			if listed {
				h.Set("Access-Control-Allow-Origin", origin)
				h.Set("Access-Control-Expose-Headers", lastEventID)
				h.Add("Vary", "Origin")
				if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
					h.Set("Access-Control-Allow-Methods", "GET, PUT, POST")
					h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key, Last-Event-ID")
					h.Set("Access-Control-Max-Age", "600")
					w.WriteHeader(http.StatusNoContent)
					return
				}
			}
		}
		if r.URL.Path != "/" && r.URL.Path != "/healthz" && !s.tokenOK(r) {
			h.Set("WWW-Authenticate", `Bearer realm="scanonce"`)
			s.refuse(w, &Error{Status: http.StatusUnauthorized, Reason: "token_wrong",
				Detail: "cannot let this request in: its bearer token is missing or wrong", Hint: "send Authorization: Bearer with the content of api.token_file"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) refuse(w http.ResponseWriter, e *Error) {
	s.refused.Add(1)
	writeError(w, e)
}

func (s *Server) hostAllowed(host string) bool {
	u := url.URL{Host: host}
	name := u.Hostname()
	return name != "" && slices.ContainsFunc(s.cfg.AllowedHosts, func(a string) bool {
		return strings.EqualFold(strings.Trim(a, "[]"), name)
	})
}

// tokenOK compares digests, so that neither content nor length shows in the time taken.
func (s *Server) tokenOK(r *http.Request) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || s.cfg.Token == "" {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}

// ErrSocketInUse says that a running agent answers on the socket.
var ErrSocketInUse = errors.New("another agent answers on it")
