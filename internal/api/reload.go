package api

import (
	"context"
	"net/http"
)

// Reloader reads the configuration again.
type Reloader interface {
	// Reload takes the configuration over as far as that needs no restart. One that is wrong is refused as a whole:
	// *Error with reason config.
	Reload(ctx context.Context) (Reloaded, error)
}

// Reloaded answers a reload.
type Reloaded struct {
	OK            bool     `json:"ok"`
	RestartNeeded []string `json:"restart_needed"` // keys that have changed since the start and need a restart
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) error {
	if err := noFields(r); err != nil {
		return err
	}
	done, err := s.backend.Reload(context.WithoutCancel(r.Context()))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, done)
}

// Reload lets the agent read its configuration again.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	var done Reloaded
	err := c.call(ctx, http.MethodPost, "/v1/reload", nil, &done)
	return done, err
}
