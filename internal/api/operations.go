package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"scanonce/window"
)

// Claim is where a claim stands in adjudication.
type Claim struct {
	CorrelationID  string     `json:"correlation_id"`
	RxRefToken     string     `json:"rx_ref_token"`
	Node           string     `json:"fsm_node"`
	IngredientCost string     `json:"ingredient_cost"` // decimal text
	RejectCode     *string    `json:"reject_code"`
	Version        int64      `json:"version"`
	ExpiresAt      window.UTC `json:"expires_at"`
}

// ClaimPut asks for a new claim.
type ClaimPut struct {
	RxRefToken     string `json:"rx_ref_token"`
	IngredientCost string `json:"ingredient_cost"`
}

// ClaimAdvance asks to move a claim.
type ClaimAdvance struct {
	ExpectedVersion int64   `json:"expected_version"`
	Node            string  `json:"fsm_node"`
	IngredientCost  *string `json:"ingredient_cost"` // null keeps the one that stands
	RejectCode      *string `json:"reject_code"`
}

// The results of operations.
const (
	ResultCreated     = "created"
	ResultAdvanced    = "advanced"
	ResultAlreadyMine = "already_mine"
	ResultConflict    = "conflict"
	ResultMissing     = "missing"
	ResultQueued      = "queued"
)

// ClaimResult answers an operation on a claim.
type ClaimResult struct {
	Result string `json:"result"`
	State  *Claim `json:"state,omitempty"` // as it stands; nil with missing and queued
	OpID   string `json:"op_id"`
}

// PendRequest asks for a prior authorization.
type PendRequest struct {
	MemberToken   string  `json:"member_token"`
	GPI           string  `json:"gpi"`
	RequestWindow *string `json:"request_window"` // null: the present one
}

// Transition asks to move a case.
type Transition struct {
	ExpectedVersion int    `json:"expected_version"`
	To              string `json:"to"`
}

// Case is a prior-authorization case. What is null is not known: the request is queued.
type Case struct {
	CaseID      string  `json:"case_id"`
	RequestedID string  `json:"requested_id"` // that which was asked with; it resolves to the case for ever
	State       *string `json:"state"`
	Version     *int    `json:"version"`
	Created     *bool   `json:"created"` // by this request: who is told starts the review
	RejectCode  *string `json:"reject_code"`
}

// CaseResult answers an operation on a case.
type CaseResult struct {
	Result string `json:"result"` // queued, missing, conflict, or "" for done
	Reason string `json:"-"`      // of a conflict
	Detail string `json:"-"`
	Case   *Case  `json:"case,omitempty"`
	OpID   string `json:"op_id"`
}

// Conflict is a queued operation that could not be carried out.
type Conflict struct {
	OpID    string          `json:"op_id"`
	Kind    string          `json:"kind"`
	ID      string          `json:"id"` // correlation id or case id
	Wanted  json.RawMessage `json:"wanted"`
	Current json.RawMessage `json:"current"` // a Claim or Case as it stood; null if there was none
	Detail  string          `json:"detail"`
	At      window.UTC      `json:"at"`
}

// PendingOperation is an operation that waits for a store.
type PendingOperation struct {
	OpID string     `json:"op_id"`
	Kind string     `json:"kind"`
	ID   string     `json:"id"` // correlation id or case id
	At   window.UTC `json:"at"` // of its coming
}

// Resolution says that somebody has seen to conflicts.
type Resolution struct {
	OpIDs []string `json:"op_ids"`
	By    string   `json:"by"`
}

// Resolved answers a Resolution.
type Resolved struct {
	Resolved int `json:"resolved"`
}

// Operations are what can be done with claims and prior-authorization cases. key is the request's Idempotency-Key, ""
// for none. A request that no store takes at present is queued durably, and the result says so.
type Operations interface {
	PutClaim(ctx context.Context, key, id string, q ClaimPut) (ClaimResult, error)
	AdvanceClaim(ctx context.Context, key, id string, q ClaimAdvance) (ClaimResult, error)
	Claim(ctx context.Context, id string) (Claim, error)
	Pend(ctx context.Context, key string, q PendRequest) (CaseResult, error)
	TransitionCase(ctx context.Context, key, id string, q Transition) (CaseResult, error)
	Case(ctx context.Context, id string) (Case, error)
	ResolveConflicts(ctx context.Context, q Resolution) (int, error)
}

// required reads one JSON object that must have the named fields, none of them null.
func required(body []byte, v any, fields ...string) error {
	if err := decode(body, v); err != nil {
		return err
	}
	var there map[string]json.RawMessage
	if err := json.Unmarshal(body, &there); err != nil {
		return err
	}
	for _, f := range fields {
		if r := there[f]; len(r) == 0 || string(r) == "null" {
			return badRequest("field_missing", "cannot read the request without "+f, "send one JSON object with the fields that docs/openapi.yaml names")
		}
	}
	return nil
}

func (s *Server) claim(w http.ResponseWriter, r *http.Request) error {
	c, err := s.backend.Claim(r.Context(), r.PathValue("correlation_id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, c)
}

func (s *Server) putClaim(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q ClaimPut
	if err := required(body, &q, "rx_ref_token", "ingredient_cost"); err != nil {
		return 0, nil, err
	}
	res, err := s.backend.PutClaim(ctx, r.Header.Get(idempotencyKey), r.PathValue("correlation_id"), q)
	return claimAnswer(res, err)
}

func (s *Server) advanceClaim(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q ClaimAdvance
	if err := required(body, &q, "expected_version", "fsm_node"); err != nil {
		return 0, nil, err
	}
	res, err := s.backend.AdvanceClaim(ctx, r.Header.Get(idempotencyKey), r.PathValue("correlation_id"), q)
	return claimAnswer(res, err)
}

func claimAnswer(res ClaimResult, err error) (int, any, error) {
	if err != nil {
		return 0, nil, err
	}
	switch res.Result {
	case ResultCreated:
		return http.StatusCreated, res, nil
	case ResultQueued:
		return http.StatusAccepted, res, nil
	case ResultMissing:
		return 0, nil, &Error{Status: http.StatusNotFound, Reason: ResultMissing, Result: ResultMissing, Detail: "cannot find this claim: there is none, or it has expired",
			Hint: "make it with PUT /v1/claims/{correlation_id}"}
	case ResultConflict:
		return 0, nil, &Error{Status: http.StatusConflict, Reason: ResultConflict, Result: ResultConflict, Current: res.State,
			Detail: fmt.Sprintf("cannot do this: the claim is at version %d, %s", res.State.Version, res.State.Node),
			Hint:   "go on from what current says"}
	}
	return http.StatusOK, res, nil
}

func (s *Server) paCase(w http.ResponseWriter, r *http.Request) error {
	c, err := s.backend.Case(r.Context(), r.PathValue("case_id"))
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, c)
}

func (s *Server) pend(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q PendRequest
	if err := required(body, &q, "member_token", "gpi"); err != nil {
		return 0, nil, err
	}
	res, err := s.backend.Pend(ctx, r.Header.Get(idempotencyKey), q)
	switch {
	case err != nil:
		return 0, nil, err
	case res.Result == ResultQueued:
		return http.StatusAccepted, queuedCase{res.Result, res.OpID, res.Case}, nil
	case *res.Case.Created:
		return http.StatusCreated, res.Case, nil
	}
	return http.StatusOK, res.Case, nil
}

// queuedCase has the fields of a Case and of a queued operation.
type queuedCase struct {
	Result string `json:"result"`
	OpID   string `json:"op_id"`
	*Case
}

func (s *Server) transition(ctx context.Context, r *http.Request, body []byte) (int, any, error) {
	var q Transition
	if err := required(body, &q, "expected_version", "to"); err != nil {
		return 0, nil, err
	}
	res, err := s.backend.TransitionCase(ctx, r.Header.Get(idempotencyKey), r.PathValue("case_id"), q)
	switch {
	case err != nil:
		return 0, nil, err
	case res.Result == ResultQueued:
		return http.StatusAccepted, queuedCase{res.Result, res.OpID, res.Case}, nil
	case res.Result == ResultMissing:
		return 0, nil, &Error{Status: http.StatusNotFound, Reason: ResultMissing, Result: ResultMissing, Detail: "cannot find this case",
			Hint: "use a case_id or requested_id of an earlier answer"}
	case res.Result == ResultConflict:
		return 0, nil, &Error{Status: http.StatusConflict, Reason: res.Reason, Result: ResultConflict, Current: res.Case, Detail: res.Detail, Hint: "go on from what current says"}
	}
	return http.StatusOK, res.Case, nil
}

func (s *Server) conflicts(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		return s.backend.Conflicts(ctx, func(c Conflict) error { return enc.Encode(c) })
	})
}

func (s *Server) pendingOperations(w http.ResponseWriter, r *http.Request) error {
	return s.stream(w, r, ndjson, func(ctx context.Context, w io.Writer) error {
		enc := json.NewEncoder(w)
		return s.backend.PendingOperations(ctx, func(o PendingOperation) error { return enc.Encode(o) })
	})
}

func (s *Server) resolve(ctx context.Context, _ *http.Request, body []byte) (int, any, error) {
	var q Resolution
	if err := required(body, &q, "op_ids", "by"); err != nil {
		return 0, nil, err
	}
	n, err := s.backend.ResolveConflicts(ctx, q)
	return http.StatusOK, Resolved{n}, err
}
