package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// keyed sends a request with its Idempotency-Key and reads the answer.
func (c *Client) keyed(ctx context.Context, method, path, key string, body, into any) error {
	h := http.Header{}
	if key != "" {
		h.Set(idempotencyKey, key)
	}
	resp, err := c.send(ctx, method, path, nil, h, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("cannot read the agent's answer: %w", err)
	}
	return nil
}

// PutClaim makes a claim. With the same key (or none) and request it may be sent again until an answer comes. That
// there is another claim is an *Error with Result "conflict" and the claim's JSON in Current.
func (c *Client) PutClaim(ctx context.Context, key, id string, q ClaimPut) (ClaimResult, error) {
	var r ClaimResult
	err := c.keyed(ctx, http.MethodPut, "/v1/claims/"+url.PathEscape(id), key, q, &r)
	return r, err
}

// AdvanceClaim moves a claim; see PutClaim. That there is none is an *Error with Result "missing".
func (c *Client) AdvanceClaim(ctx context.Context, key, id string, q ClaimAdvance) (ClaimResult, error) {
	var r ClaimResult
	err := c.keyed(ctx, http.MethodPost, "/v1/claims/"+url.PathEscape(id)+"/advance", key, q, &r)
	return r, err
}

// Claim reads a claim.
func (c *Client) Claim(ctx context.Context, id string) (Claim, error) {
	var k Claim
	err := c.call(ctx, http.MethodGet, "/v1/claims/"+url.PathEscape(id), nil, &k)
	return k, err
}

// Pend asks for a prior authorization. Without a key a second attempt is a second request, which is not told that
// the case was created.
func (c *Client) Pend(ctx context.Context, key string, q PendRequest) (CaseResult, error) {
	return c.caseCall(ctx, "/v1/pa/pends", key, q)
}

// TransitionCase moves a case. That it is not where the mover saw it is an *Error with Result "conflict" and the case's
// JSON in Current.
func (c *Client) TransitionCase(ctx context.Context, key, id string, q Transition) (CaseResult, error) {
	return c.caseCall(ctx, "/v1/pa/cases/"+url.PathEscape(id)+"/transition", key, q)
}

func (c *Client) caseCall(ctx context.Context, path, key string, q any) (CaseResult, error) {
	var r queuedCase
	r.Case = new(Case)
	err := c.keyed(ctx, http.MethodPost, path, key, q, &r)
	return CaseResult{Result: r.Result, Case: r.Case, OpID: r.OpID}, err
}

// Case reads a case.
func (c *Client) Case(ctx context.Context, id string) (Case, error) {
	var k Case
	err := c.call(ctx, http.MethodGet, "/v1/pa/cases/"+url.PathEscape(id), nil, &k)
	return k, err
}

// Conflicts yields the queued operations that could not be carried out; see Reader.
func (c *Client) Conflicts(ctx context.Context, yield func(Conflict) error) error {
	return lines(ctx, c, "/v1/conflicts", nil, yield)
}

// PendingOperations yields the operations that wait for a store; see Reader.
func (c *Client) PendingOperations(ctx context.Context, yield func(PendingOperation) error) error {
	return lines(ctx, c, "/v1/operations", nil, yield)
}

// ResolveConflicts takes conflicts off the list that somebody has seen to, and returns how many there were.
func (c *Client) ResolveConflicts(ctx context.Context, q Resolution) (int, error) {
	var r Resolved
	err := c.call(ctx, http.MethodPost, "/v1/conflicts/resolve", q, &r)
	return r.Resolved, err
}
