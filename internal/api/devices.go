package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
)

// Device is an attached device, or a configured scanner that is not attached. What is null is not known, or there
// is none.
type Device struct {
	ID        string  `json:"id"`        // by USB identity; of a scanner with a path, the path
	Transport *string `json:"transport"` // null: it is set to a mode that the agent does not read
	VID       *string `json:"vid"`
	PID       *string `json:"pid"`
	Serial    *string `json:"serial"`
	Port      *string `json:"port"`
	Node      *string `json:"node"`
	Ambiguous bool    `json:"ambiguous"` // only its port tells it from another one
	State     *string `json:"state"`     // of the configured scanner in a running agent
	ScannerID *string `json:"scanner_id"`
	Name      *string `json:"name"`
	Scanner   bool    `json:"scanner"` // false: a keyboard that nobody has said to be a scanner
	Config    string  `json:"config"`  // lines of TOML to paste; comments alone where a person must decide first
}

// Devices lists what is attached.
type Devices interface {
	// Devices yields what is attached, scanners first, and configured scanners that are not. Nothing is opened.
	Devices(ctx context.Context, yield func(Device) error) error
}

func (s *Server) devices(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return s.backend.Devices(ctx, func(d Device) error { return enc.Encode(d) })
	})
}

// Devices yields what is attached; see the interface.
func (c *Client) Devices(ctx context.Context, yield func(Device) error) error {
	return lines(ctx, c, "/v1/devices", nil, yield)
}
