package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"scanonce/window"
)

// Scans takes scans from applications.
type Scans interface {
	// Scan takes one in as from a scanner. Its refusals are *Error: 422 with the content's error kind as reason,
	// 503 if it could not be made durable.
	Scan(ctx context.Context, q ScanRequest) (ScanAnswer, error)
}

// ScanRequest is a scan of a camera, a phone or a web page.
type ScanRequest struct {
	Scanner    string
	Data       Payload
	Symbology  string      // an AIM identifier to put in front of data that has none; "" is none
	CapturedAt *window.UTC // nil: now
	Quantity   int         // 0: what the scanner's user has set
	// Key is the Idempotency-Key, "" for none, and Request the fingerprint of the whole request.
	Key     string
	Request [32]byte
}

// Payload is what a barcode holds, one character a byte up to U+00FF. It does not print.
type Payload string

func (p Payload) String() string               { return fmt.Sprintf("[%d characters]", len(p)) }
func (p Payload) Format(f fmt.State, _ rune)   { io.WriteString(f, p.String()) }
func (p Payload) LogValue() slog.Value         { return slog.StringValue(p.String()) }
func (p Payload) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ScanAnswer is what became of it.
type ScanAnswer struct {
	Outcome     string  `json:"outcome"`                // accepted, duplicate, control
	EventID     string  `json:"event_id,omitempty"`     // of accepted and duplicate
	Key         string  `json:"key,omitempty"`          // likewise
	WindowIndex *int64  `json:"window_index,omitempty"` // likewise
	DuplicateOf *string `json:"duplicate_of,omitempty"` // of duplicate: the event that it repeats
	Kind        string  `json:"kind,omitempty"`         // of control: label, mode, quantity, same_again, opaque
}

var aimIdentifier = regexp.MustCompile(`^\][A-Za-z][0-9]$`)

func unusable(reason, detail, hint string) *Error {
	return &Error{Status: http.StatusUnprocessableEntity, Reason: reason, Detail: detail, Hint: hint}
}

func (s *Server) scan(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var in struct {
		Scanner    *string         `json:"scanner_id"`
		Data       *string         `json:"data"`
		Symbology  *string         `json:"symbology"`
		CapturedAt *string         `json:"captured_at"`
		Quantity   json.RawMessage `json:"quantity"`
	}
	if err := decode(body, &in); err != nil {
		return 0, nil, err
	}
	q := ScanRequest{Key: r.Header.Get(idempotencyKey), Request: fingerprint(r, body)}
	switch {
	case in.Scanner == nil:
		return 0, nil, badRequest("field_missing", "cannot take a scan without scanner_id", "write the id of a configured scanner, or a name for the camera or page that scans")
	case in.Data == nil:
		return 0, nil, badRequest("field_missing", "cannot take a scan without data", "write what the barcode holds, as a scanner would send it")
	}
	q.Scanner, q.Data = *in.Scanner, Payload(*in.Data)
	if in.Symbology != nil {
		if q.Symbology = *in.Symbology; !aimIdentifier.MatchString(q.Symbology) {
			return 0, nil, unusable("bad_symbology", "cannot use this symbology", "write an AIM identifier, for example ]d2 for a GS1 DataMatrix, or null")
		}
	}
	if in.CapturedAt != nil {
		var t window.UTC
		if t.UnmarshalText([]byte(*in.CapturedAt)) != nil {
			return 0, nil, unusable("bad_captured_at", "cannot read captured_at as a time", "write RFC 3339, for example 2026-11-29T08:15:00.000Z, or null for now")
		}
		if q.CapturedAt = &t; q.Key == "" {
			return 0, nil, badRequest("idempotency_key_missing", "cannot take a scan with captured_at without an Idempotency-Key", "send the header Idempotency-Key, a new one for each scan, and the same one when the scan is sent again")
		}
	}
	if len(in.Quantity) > 0 && string(in.Quantity) != "null" {
		n, err := quantityOf(in.Quantity)
		if err != nil {
			return 0, nil, err
		}
		q.Quantity = n
	}
	a, err := s.backend.Scan(ctx, q)
	if a.Outcome == "accepted" {
		return http.StatusCreated, a, err
	}
	return http.StatusOK, a, err
}

// quantityOf reads a number. 30, 30.0 and 3e1 are one number in JSON.
func quantityOf(raw json.RawMessage) (int, error) {
	if len(raw) > 0 && strings.ContainsRune("-0123456789", rune(raw[0])) {
		n, err := strconv.ParseFloat(string(raw), 64)
		if err == nil && n >= 1 && n <= 9999 && n == float64(int(n)) {
			return int(n), nil
		}
	}
	return 0, unusable("bad_quantity", "cannot use this quantity", "write a whole number from 1 to 9999")
}
