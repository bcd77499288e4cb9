package agent

import (
	"context"
	"sync"
	"time"

	"scanonce/internal/api"
)

// localAPI keeps the local interface up. That it cannot listen must not stop the capture.
type localAPI struct {
	a     *agent
	cfg   api.Config
	ready chan struct{}

	mu     sync.Mutex
	server *api.Server
}

const listenAgain = 5 * time.Second

func newLocalAPI(a *agent) (*localAPI, error) {
	token, err := apiToken(a.cfg)
	if err != nil {
		return nil, err
	}
	c := a.cfg.API
	return &localAPI{a: a, ready: make(chan struct{}), cfg: api.Config{Socket: c.Socket, SocketGroup: c.SocketGroup, Listen: c.Listen,
		Token: token, AllowedHosts: c.AllowedHosts, AllowedOrigins: c.AllowedOrigins, OS: a.os}}, nil
}

func (l *localAPI) String() string { return "local interface" }

// Ready is closed once the interface listens, or could not for the first time.
func (l *localAPI) Ready() <-chan struct{} { return l.ready }

// Run serves until ctx ends.
func (l *localAPI) Run(ctx context.Context) error {
	var once sync.Once
	for ctx.Err() == nil {
		s := api.New(l.cfg, l.a, eventStream{l.a.events}, l.a.metrics.handler(), l.a.log)
		l.mu.Lock()
		l.server = s
		l.mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		var err error
		select {
		case <-s.Ready():
			l.a.alarms.clear(alarmAPI)
			once.Do(func() { close(l.ready) })
			err = <-ended
		case err = <-ended:
		}
		if ctx.Err() != nil {
			return nil
		}
		l.a.log.Error("cannot serve the local interface", "error", err)
		l.a.alarms.set(alarmAPI, "cannot serve the local interface: "+errText(err), "see api.socket and api.listen; capturing goes on meanwhile")
		once.Do(func() { close(l.ready) })
		t := time.NewTimer(listenAgain)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
	return nil
}

func errText(err error) string {
	if err == nil {
		return "it ended"
	}
	return err.Error()
}

// addr is the loopback address, "" if there is none.
func (l *localAPI) addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return ""
	}
	return l.server.Addr()
}
