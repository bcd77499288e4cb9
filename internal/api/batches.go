package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"scanonce/window"
)

// Batch is what a scanner's memory held and sent a second time; Held of its scans wait for a person.
type Batch struct {
	BatchID   string     `json:"batch_id"`
	ScannerID string     `json:"scanner_id"`
	Count     int        `json:"count"` // 0 if that is not known any more
	Held      int        `json:"held"`
	At        window.UTC `json:"at"` // of its last scan
}

// BatchConfirmed answers a confirmation.
type BatchConfirmed struct {
	Accepted int `json:"accepted"`
}

// Batches are stored batches that came a second time.
type Batches interface {
	// Batches yields those that wait for a person, oldest first.
	Batches(ctx context.Context, yield func(Batch) error) error
	// ConfirmBatch makes movements of the records that a batch holds, and returns how many there are. Again it changes
	// nothing and returns the same.
	ConfirmBatch(ctx context.Context, id string) (int, error)
	// DiscardBatch gives them up, in the name of by. The audit has a line of each. Again it returns the same.
	DiscardBatch(ctx context.Context, id, by string) (int, error)
}

func (s *Server) batches(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		return s.backend.Batches(ctx, func(b Batch) error { return enc.Encode(b) })
	})
}

func (s *Server) confirmBatch(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	if len(bytes.TrimSpace(body)) > 0 {
		if err := decode(body, &struct{}{}); err != nil {
			return 0, nil, err
		}
	}
	n, err := s.backend.ConfirmBatch(ctx, r.PathValue("id"))
	return http.StatusOK, BatchConfirmed{n}, err
}

func (s *Server) discardBatch(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q struct {
		By string `json:"by"`
	}
	if err := required(body, &q, "by"); err != nil {
		return 0, nil, err
	}
	n, err := s.backend.DiscardBatch(ctx, r.PathValue("id"), q.By)
	return http.StatusOK, Discarded{n}, err
}

// Batches yields the batches that wait for a person, oldest first.
func (c *Client) Batches(ctx context.Context, yield func(Batch) error) error {
	return lines(ctx, c, "/v1/batches", nil, yield)
}

// ConfirmBatch makes movements of the records that a batch holds, and returns how many there are.
func (c *Client) ConfirmBatch(ctx context.Context, id string) (int, error) {
	var a BatchConfirmed
	err := c.call(ctx, http.MethodPost, "/v1/batches/"+url.PathEscape(id)+"/confirm", struct{}{}, &a)
	return a.Accepted, err
}

// DiscardBatch gives the records that a batch holds up, and returns how many there are.
func (c *Client) DiscardBatch(ctx context.Context, id, by string) (int, error) {
	var a Discarded
	err := c.call(ctx, http.MethodPost, "/v1/batches/"+url.PathEscape(id)+"/discard", map[string]string{"by": by}, &a)
	return a.Discarded, err
}
