package api

import (
	"context"
	"net/http"
	"slices"
)

// Discard says that a person gives records up.
type Discard struct {
	EventIDs []string `json:"event_ids"`
	By       string   `json:"by"`
}

// Discarded answers a Discard.
type Discarded struct {
	Discarded int `json:"discarded"`
}

// Discarder gives records up that can never become rows.
type Discarder interface {
	// Discard gives up those of the named events that are quarantined or held, with their duplicates. The audit has a
	// line of each, which names by. It returns how many there were.
	Discard(ctx context.Context, q Discard) (int, error)
}

func (s *Server) discard(ctx context.Context, _ *http.Request, body []byte) (int, any, error) {
	var q Discard
	if err := required(body, &q, "event_ids", "by"); err != nil {
		return 0, nil, err
	}
	n, err := s.backend.Discard(ctx, q)
	return http.StatusOK, Discarded{n}, err
}

// Discard gives quarantined and held records up, those of the named events with their duplicates, and returns how many
// there were.
func (c *Client) Discard(ctx context.Context, q Discard) (int, error) {
	n := 0
	for part := range slices.Chunk(q.EventIDs, requeueChunk) {
		var r Discarded
		if err := c.call(ctx, http.MethodPost, "/v1/spool/discard", Discard{part, q.By}, &r); err != nil {
			return n, err
		}
		n += r.Discarded
	}
	return n, nil
}
