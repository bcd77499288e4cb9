package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os/signal"
	"syscall"

	"scanonce/internal/agent"
	"scanonce/internal/api"
	"scanonce/window"
)

// client returns a client of the running agent. Nothing is dialled yet.
func (a *app) client() (*api.Client, error) {
	if a.socket != "" {
		return api.NewClient(a.socket), nil // works beside a configuration that does not load
	}
	cfg, err := a.loadBasics()
	if err != nil {
		return nil, err
	}
	return api.NewClient(cfg.API.Socket), nil
}

// withReader answers from the running agent or, if none runs, from the state folder.
func (a *app) withReader(ctx context.Context, use func(api.Reader) error) error {
	return a.withAgent(ctx, func(c *api.Client) error { return use(c) }, func() error {
		cfg, err := a.loadBasics()
		if err != nil {
			return err
		}
		r, err := agent.OpenReader(cfg)
		if err != nil {
			return err
		}
		defer r.Close()
		return use(r)
	})
}

// withAgent asks the running agent or, if none runs, does without.
func (a *app) withAgent(ctx context.Context, ask func(*api.Client) error, without func() error) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Alive(ctx)
	if !nobodyThere(err) || (a.socket != "" && a.stateDir == "" && a.configFile == "") {
		var gone *api.Unreachable
		if errors.As(err, &gone) {
			return told(err)
		}
		return told(ask(c)) // an agent that is not well may still answer
	}
	return told(without())
}

// nobodyThere says that no process listens on the socket.
func nobodyThere(err error) bool {
	var gone *api.Unreachable
	return errors.As(err, &gone) && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED))
}

// told gives an error of the agent, of its client or of a state folder its exit code.
func told(err error) error {
	var (
		mine   *failure
		gone   *api.Unreachable
		answer *api.Error
		exit   *agent.ExitError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &mine):
		return mine
	case errors.As(err, &gone):
		return &failure{code: exitUnreachable, kind: "unreachable", detail: gone.Error(), hint: gone.Hint()}
	case errors.As(err, &answer):
		f := &failure{code: exitBad, kind: or(answer.Reason, "refused"), detail: answer.Detail, hint: answer.Hint}
		switch {
		case answer.Status == http.StatusBadRequest:
			f.code = exitUsage
		case answer.Status == http.StatusUnauthorized, answer.Status == http.StatusForbidden, answer.Status >= 500:
			f.code = exitUnreachable
		}
		return f
	case errors.As(err, &exit):
		return &failure{code: exit.Code, kind: exit.Kind, detail: exit.Detail, hint: exit.Hint}
	case errors.Is(err, context.Canceled):
		return &failure{code: exitBad, kind: "interrupted", detail: "cannot finish: interrupted"}
	}
	return &failure{code: exitBad, kind: "failed", detail: err.Error()}
}

// untilSignal returns a context that ends at SIGINT or SIGTERM; a second signal kills.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// instant reads a flag's RFC 3339 time, or a date, which is its first instant in UTC; nil for "".
func instant(flag, s string) (*window.UTC, error) {
	if s == "" {
		return nil, nil
	}
	var t window.UTC
	if len(s) == len("2006-01-02") {
		if t.UnmarshalText([]byte(s+"T00:00:00Z")) == nil {
			return &t, nil
		}
	}
	if err := t.UnmarshalText([]byte(s)); err != nil {
		return nil, usage(fmt.Sprintf("cannot use %s %q", flag, s), "write RFC 3339, for example 2026-11-29T08:15:00Z, or a date")
	}
	return &t, nil
}
