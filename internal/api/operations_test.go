package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeOperations answers with what a test has set, and keeps what it was asked.
type fakeOperations struct {
	mu    sync.Mutex
	asked []string
	claim ClaimResult
	kase  CaseResult
	err   error
}

func (f *fakeOperations) called(key string, parts ...any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := make([]string, len(parts))
	for i, p := range parts {
		b, _ := json.Marshal(p)
		text[i] = string(b)
	}
	f.asked = append(f.asked, fmt.Sprintf("%s %q", strings.Join(text, " "), key))
	return f.err
}

func (f *fakeOperations) took() (asked []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked, f.asked = f.asked, nil
	return asked
}

// answer sets what comes of the next operations.
func (f *fakeOperations) answer(c ClaimResult, k CaseResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claim, f.kase, f.err = c, k, err
}

func (f *fakeOperations) PutClaim(_ context.Context, key, id string, q ClaimPut) (ClaimResult, error) {
	err := f.called(key, "put", id, q)
	return f.claim, err
}

func (f *fakeOperations) AdvanceClaim(_ context.Context, key, id string, q ClaimAdvance) (ClaimResult, error) {
	err := f.called(key, "advance", id, q)
	return f.claim, err
}

func (f *fakeOperations) Claim(_ context.Context, id string) (Claim, error) {
	err := f.called("", "claim", id)
	if f.claim.State == nil {
		return Claim{}, err
	}
	return *f.claim.State, err
}

func (f *fakeOperations) Pend(_ context.Context, key string, q PendRequest) (CaseResult, error) {
	err := f.called(key, "pend", q)
	return f.kase, err
}

func (f *fakeOperations) TransitionCase(_ context.Context, key, id string, q Transition) (CaseResult, error) {
	err := f.called(key, "transition", id, q)
	return f.kase, err
}

func (f *fakeOperations) Case(_ context.Context, id string) (Case, error) {
	err := f.called("", "case", id)
	if f.kase.Case == nil {
		return Case{}, err
	}
	return *f.kase.Case, err
}

func (f *fakeOperations) ResolveConflicts(_ context.Context, q Resolution) (int, error) {
	return len(q.OpIDs), f.called("", "resolve", q)
}

// operationsRig is a server before a fakeOperations.
func operationsRig(t *testing.T) (*rig, *fakeOperations) {
	t.Helper()
	r, f := newRig(t, nil), &fakeOperations{}
	r.fake.Operations = f
	return r, f
}

const (
	opID   = "019aceee-0000-8000-8000-000000000001"
	caseID = "1d12207def3071d4c706b6279fb28084"

	putBody     = `{"rx_ref_token":"rx1.t","ingredient_cost":"42.10"}`
	advanceBody = `{"expected_version":1,"fsm_node":"NORMALIZED"}`
	pendBody    = `{"member_token":"MTOK_9f2a","gpi":"27100010100320"}`
	moveBody    = `{"expected_version":1,"to":"IN_REVIEW"}`

	claimJSON = `{"correlation_id":"c1","rx_ref_token":"rx1.t","fsm_node":"NORMALIZED","ingredient_cost":"42.10","reject_code":null,"version":2,"expires_at":"2023-11-14T22:13:20.000Z"}`
	caseJSON  = `{"case_id":"` + caseID + `","requested_id":"asked","state":"PENDING","version":1,"created":true,"reject_code":"75"}`
	oldJSON   = `{"case_id":"` + caseID + `","requested_id":"asked","state":"PENDING","version":1,"created":false,"reject_code":"75"}`
	queuedFor = `{"result":"queued","op_id":"` + opID + `","case_id":"` + caseID + `","requested_id":"` + caseID + `","state":null,"version":null,"created":null,"reject_code":"75"}`
)

func testClaim() *Claim {
	return &Claim{CorrelationID: "c1", RxRefToken: "rx1.t", Node: "NORMALIZED", IngredientCost: "42.10", Version: 2, ExpiresAt: testInstant}
}

func ptr[T any](v T) *T { return &v }

func testCase(created bool) *Case {
	return &Case{CaseID: caseID, RequestedID: "asked", State: ptr("PENDING"), Version: ptr(1), Created: &created, RejectCode: ptr("75")}
}

// Each outcome has its status and body; what stands instead of what was wanted comes with a refusal.
func TestOperationAnswers(t *testing.T) {
	r, f := operationsRig(t)
	put := call{method: "PUT", path: "/v1/claims/c1", body: putBody}
	advance := call{method: "POST", path: "/v1/claims/c1/advance", body: advanceBody}
	pend := call{method: "POST", path: "/v1/pa/pends", body: pendBody}
	move := call{method: "POST", path: "/v1/pa/cases/" + caseID + "/transition", body: moveBody}
	claim := func(result string, state *Claim) ClaimResult { return ClaimResult{result, state, opID} }
	kase := func(result, reason string, c *Case) CaseResult {
		return CaseResult{Result: result, Reason: reason, Detail: "cannot move the case", Case: c, OpID: opID}
	}
	queued := &Case{CaseID: caseID, RequestedID: caseID, RejectCode: ptr("75")}
	illegal := &Error{Status: 422, Reason: "illegal_move", Detail: "cannot move so", Hint: "see the moves", Current: testCase(false)}
	conflict := func(current, reason string) string {
		return `"reason":"` + reason + `","result":"conflict","current":` + current + `}`
	}
	for _, c := range []struct {
		call
		claim  ClaimResult
		kase   CaseResult
		err    error
		status int
		want   string // body, or its end from 400 on
		reason string
	}{
		{put, claim(ResultCreated, testClaim()), CaseResult{}, nil, 201, `{"result":"created","state":` + claimJSON + `,"op_id":"` + opID + `"}`, ""},
		{put, claim(ResultAlreadyMine, testClaim()), CaseResult{}, nil, 200, `{"result":"already_mine","state":` + claimJSON + `,"op_id":"` + opID + `"}`, ""},
		{put, claim(ResultQueued, nil), CaseResult{}, nil, 202, `{"result":"queued","op_id":"` + opID + `"}`, ""},
		{put, claim(ResultConflict, testClaim()), CaseResult{}, nil, 409, conflict(claimJSON, "conflict"), "conflict"},
		{advance, claim(ResultAdvanced, testClaim()), CaseResult{}, nil, 200, `{"result":"advanced","state":` + claimJSON + `,"op_id":"` + opID + `"}`, ""},
		{advance, claim(ResultAlreadyMine, testClaim()), CaseResult{}, nil, 200, `{"result":"already_mine","state":` + claimJSON + `,"op_id":"` + opID + `"}`, ""},
		{advance, claim(ResultQueued, nil), CaseResult{}, nil, 202, `{"result":"queued","op_id":"` + opID + `"}`, ""},
		{advance, claim(ResultMissing, nil), CaseResult{}, nil, 404, `"reason":"missing","result":"missing"}`, "missing"},
		{advance, claim(ResultConflict, testClaim()), CaseResult{}, nil, 409, conflict(claimJSON, "conflict"), "conflict"},
		{advance, ClaimResult{}, CaseResult{}, &Error{Status: 422, Reason: "illegal_move", Detail: "cannot move so", Hint: "see the moves"}, 422, `"reason":"illegal_move"}`, "illegal_move"},
		{call{method: "GET", path: "/v1/claims/c1"}, claim("", testClaim()), CaseResult{}, nil, 200, claimJSON, ""},
		{call{method: "GET", path: "/v1/claims/c1"}, ClaimResult{}, CaseResult{}, &Error{Status: 404, Reason: "missing", Detail: "cannot find it", Hint: "make it"}, 404, `"reason":"missing"}`, "missing"},
		{pend, ClaimResult{}, kase("", "", testCase(true)), nil, 201, caseJSON, ""},
		{pend, ClaimResult{}, kase("", "", testCase(false)), nil, 200, oldJSON, ""},
		{pend, ClaimResult{}, kase(ResultQueued, "", queued), nil, 202, queuedFor, ""},
		{move, ClaimResult{}, kase("", "", testCase(false)), nil, 200, oldJSON, ""},
		{move, ClaimResult{}, kase(ResultQueued, "", queued), nil, 202, queuedFor, ""},
		{move, ClaimResult{}, kase(ResultMissing, "", nil), nil, 404, `"reason":"missing","result":"missing"}`, "missing"},
		{move, ClaimResult{}, kase(ResultConflict, "conflict", testCase(false)), nil, 409, conflict(oldJSON, "conflict"), "conflict"},
		{move, ClaimResult{}, kase(ResultConflict, "other_open", testCase(false)), nil, 409, conflict(oldJSON, "other_open"), "other_open"},
		{move, ClaimResult{}, CaseResult{}, illegal, 422, `"reason":"illegal_move","current":` + oldJSON + `}`, "illegal_move"},
		{call{method: "GET", path: "/v1/pa/cases/x"}, ClaimResult{}, kase("", "", testCase(false)), nil, 200, oldJSON, ""},
		{call{method: "POST", path: "/v1/conflicts/resolve", body: `{"op_ids":["a","b"],"by":"R. Okafor"}`}, ClaimResult{}, CaseResult{}, nil, 200, `{"resolved":2}`, ""},
	} {
		f.answer(c.claim, c.kase, c.err)
		resp, body := r.raw(c.call)
		body = strings.TrimSuffix(body, "\n")
		if c.status >= 400 {
			r.problem(resp, body, c.status, c.reason)
			if !strings.HasSuffix(body, c.want) {
				t.Errorf("%s %s: %s, want its end %s", c.method, c.path, body, c.want)
			}
		} else if resp.StatusCode != c.status || body != c.want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, resp.StatusCode, body, c.status, c.want)
		}
		if n := len(f.took()); n != 1 {
			t.Errorf("%s %s: %d calls", c.method, c.path, n)
		}
	}
}

// What cannot be read, lacks a field or has one too many reaches nobody.
func TestOperationRequests(t *testing.T) {
	r, f := operationsRig(t)
	f.answer(ClaimResult{Result: ResultAdvanced, State: testClaim()}, CaseResult{Case: testCase(true)}, nil)
	for _, c := range []struct {
		method, path, body string
		fields             []string // that it must have
		asked              string
	}{
		{"PUT", "/v1/claims/c%2F1", putBody, []string{"rx_ref_token", "ingredient_cost"}, `"put" "c/1" ` + putBody + ` "k"`},
		{"POST", "/v1/claims/c1/advance", advanceBody, []string{"expected_version", "fsm_node"},
			`"advance" "c1" {"expected_version":1,"fsm_node":"NORMALIZED","ingredient_cost":null,"reject_code":null} "k"`},
		{"POST", "/v1/pa/pends", pendBody, []string{"member_token", "gpi"}, `"pend" {"member_token":"MTOK_9f2a","gpi":"27100010100320","request_window":null} "k"`},
		{"POST", "/v1/pa/cases/x/transition", moveBody, []string{"expected_version", "to"}, `"transition" "x" ` + moveBody + ` "k"`},
		{"POST", "/v1/conflicts/resolve", `{"op_ids":["a"],"by":"R. Okafor"}`, []string{"op_ids", "by"}, `"resolve" {"op_ids":["a"],"by":"R. Okafor"} ""`},
	} {
		refuse := func(body string, status int, reason string) {
			t.Helper()
			resp, answer := r.raw(call{method: c.method, path: c.path, body: body})
			r.problem(resp, answer, status, reason)
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(c.body), &fields); err != nil {
			t.Fatal(err)
		}
		with := func(name string, v any) string {
			changed := map[string]any{}
			for k, old := range fields {
				changed[k] = old
			}
			if changed[name] = v; v == nil {
				delete(changed, name)
			}
			b, _ := json.Marshal(changed)
			return string(b)
		}
		refuse("", 400, "bad_json")
		refuse("[]", 400, "bad_json")
		refuse("null", 400, "field_missing")
		refuse(c.body+"{}", 400, "bad_json")
		refuse(with("undocumented", 1), 400, "bad_json")
		refuse(with(c.fields[0], map[string]any{}), 400, "bad_json")
		refuse(c.body+strings.Repeat(" ", 64<<10), 413, "body_too_large")
		for _, field := range c.fields {
			refuse(with(field, nil), 400, "field_missing")
			refuse(strings.Replace(with(field, "N"), `"N"`, "null", 1), 400, "field_missing")
		}
		resp, answer := r.raw(call{method: "DELETE", path: c.path})
		r.problem(resp, answer, 405, "wrong_method")
		if allow := resp.Header.Get("Allow"); !strings.Contains(allow, c.method) {
			t.Errorf("%s allows %q", c.path, allow)
		}
		if asked := f.took(); len(asked) != 0 {
			t.Errorf("%s was carried out: %v", c.path, asked)
		}
		if resp, answer := r.raw(call{method: c.method, path: c.path, body: c.body, header: map[string]string{"Idempotency-Key": "k"}}); resp.StatusCode/100 != 2 {
			t.Errorf("%s: %s", c.path, answer)
		}
		if asked := f.took(); len(asked) != 1 || asked[0] != c.asked {
			t.Errorf("%s asked %v, want %s", c.path, asked, c.asked)
		}
		f.answer(ClaimResult{Result: ResultAdvanced, State: testClaim()}, CaseResult{Case: testCase(true)}, nil)
		r.server.once = answers{boot: r.server.once.boot} // the same key at the next path
	}
}

// The first answer to a key stands for 24 h; but an operation that is queued is asked for again, to learn its end, and
// so is each about a case: an authorization may be over. The key goes with one request all the same, once it had an
// answer.
func TestOperationsKey(t *testing.T) {
	r, f := operationsRig(t)
	ask := func(path, key, body string) (int, string) {
		t.Helper()
		resp, answer := r.raw(call{method: "POST", path: path, body: body, header: map[string]string{"Idempotency-Key": key}})
		return resp.StatusCode, answer
	}
	const pends, moves, claims = "/v1/pa/pends", "/v1/pa/cases/" + caseID + "/transition", "/v1/claims/c1/advance"
	bodies := map[string]string{pends: pendBody, moves: moveBody, claims: advanceBody}
	queued := CaseResult{Result: ResultQueued, OpID: opID, Case: &Case{CaseID: caseID, RequestedID: caseID, RejectCode: ptr("75")}}
	created, attached := CaseResult{Case: testCase(true)}, CaseResult{Case: testCase(false)}
	waits, moved, lost := ClaimResult{ResultQueued, nil, opID}, ClaimResult{ResultAdvanced, testClaim(), opID}, ClaimResult{Result: ResultMissing}
	refused := &Error{Status: 422, Reason: "bad_gpi", Detail: "cannot take it", Hint: "mend it"}
	away := &Error{Status: 503, Reason: "not_durable", Detail: "cannot queue it", Hint: "try again"}
	for _, c := range []struct {
		path, name string
		claims     [2]ClaimResult
		cases      [2]CaseResult
		errs       [2]error
		status     [2]int
		kept       bool
	}{
		{pends, "created", [2]ClaimResult{}, [2]CaseResult{created, attached}, [2]error{}, [2]int{201, 200}, false},
		{pends, "attached", [2]ClaimResult{}, [2]CaseResult{attached, created}, [2]error{}, [2]int{200, 201}, false},
		{pends, "queued", [2]ClaimResult{}, [2]CaseResult{queued, created}, [2]error{}, [2]int{202, 201}, false},
		{pends, "answered, then away", [2]ClaimResult{}, [2]CaseResult{created, created}, [2]error{nil, away}, [2]int{201, 503}, false},
		{pends, "refused", [2]ClaimResult{}, [2]CaseResult{created, created}, [2]error{refused, nil}, [2]int{422, 201}, false},
		{pends, "away", [2]ClaimResult{}, [2]CaseResult{created, created}, [2]error{away, nil}, [2]int{503, 201}, false},
		{moves, "moved", [2]ClaimResult{}, [2]CaseResult{attached, created}, [2]error{}, [2]int{200, 200}, false},
		{moves, "a queued move", [2]ClaimResult{}, [2]CaseResult{queued, attached}, [2]error{}, [2]int{202, 200}, false},
		{claims, "a claim", [2]ClaimResult{moved, lost}, [2]CaseResult{}, [2]error{}, [2]int{200, 200}, true},
		{claims, "no claim", [2]ClaimResult{lost, moved}, [2]CaseResult{}, [2]error{}, [2]int{404, 404}, true},
		{claims, "a queued claim", [2]ClaimResult{waits, moved}, [2]CaseResult{}, [2]error{}, [2]int{202, 200}, false},
		{claims, "a refused claim", [2]ClaimResult{moved, moved}, [2]CaseResult{}, [2]error{refused, nil}, [2]int{422, 422}, true},
		{claims, "a claim without a store", [2]ClaimResult{moved, moved}, [2]CaseResult{}, [2]error{away, nil}, [2]int{503, 200}, false},
	} {
		body, key := bodies[c.path], strings.ReplaceAll(c.name, " ", "-")
		other := func(when string) {
			t.Helper()
			if code, answer := ask(c.path, key, body+" "); code != 422 || !strings.Contains(answer, "idempotency_key_reused") || len(f.took()) != 0 {
				t.Errorf("%s: another request with the key %s: %d %s", c.name, when, code, answer)
			}
		}
		f.answer(c.claims[0], c.cases[0], c.errs[0])
		status, first := ask(c.path, key, body)
		f.took()
		if status < 500 {
			other("behind the first answer")
		}
		f.answer(c.claims[1], c.cases[1], c.errs[1])
		again, second := ask(c.path, key, body)
		if [2]int{status, again} != c.status || (first == second) != c.kept {
			t.Errorf("%s: %d %s, then %d %s", c.name, status, first, again, second)
		}
		if n := len(f.took()); n != map[bool]int{true: 0, false: 1}[c.kept] {
			t.Errorf("%s: asked %d times for the second answer", c.name, n)
		}
		other("behind the second")
	}
	// Of the last one, in which the key's second answer is kept, this is the third.
	if status, _ := ask(claims, "a-claim-without-a-store", advanceBody); status != 200 || len(f.took()) != 0 {
		t.Errorf("the answer behind a failure is not kept: %d", status)
	}
	if status, answer := ask(pends, "a key", pendBody); status != 400 || !strings.Contains(answer, "bad_idempotency_key") {
		t.Errorf("a key with a blank: %d %s", status, answer)
	}
}

// The client hands on results, refusals and what stands.
func TestOperationsClient(t *testing.T) {
	r, f := operationsRig(t)
	ctx := t.Context()
	f.answer(ClaimResult{Result: ResultCreated, State: testClaim(), OpID: opID}, CaseResult{Result: ResultQueued, OpID: opID, Case: testCase(false)}, nil)
	if c, err := r.client.PutClaim(ctx, "k1", "a/b", ClaimPut{"rx1.t", "1.00"}); err != nil || c.Result != ResultCreated || *c.State != *testClaim() || c.OpID != opID {
		t.Errorf("%+v, %v", c, err)
	}
	if k, err := r.client.Pend(ctx, "", PendRequest{MemberToken: "M", GPI: "27"}); err != nil || k.Result != ResultQueued || k.OpID != opID || k.Case.CaseID != caseID || *k.Case.Created {
		t.Errorf("%+v, %v", k, err)
	}
	if c, err := r.client.Claim(ctx, "c1"); err != nil || c != *testClaim() {
		t.Errorf("%+v, %v", c, err)
	}
	if k, err := r.client.Case(ctx, "x/y"); err != nil || k.CaseID != caseID || *k.State != "PENDING" {
		t.Errorf("%+v, %v", k, err)
	}
	if n, err := r.client.ResolveConflicts(ctx, Resolution{[]string{"a", "b"}, "R. Okafor"}); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
	f.answer(ClaimResult{Result: ResultConflict, State: testClaim()}, CaseResult{Result: ResultConflict, Reason: "other_open", Detail: "cannot open it", Case: testCase(false)}, nil)
	var e *Error
	var claim Claim
	if _, err := r.client.AdvanceClaim(ctx, "k2", "c1", ClaimAdvance{ExpectedVersion: 1, Node: "N"}); !errors.As(err, &e) || e.Status != http.StatusConflict || e.Result != ResultConflict ||
		json.Unmarshal(e.Current.(json.RawMessage), &claim) != nil || claim != *testClaim() {
		t.Errorf("%v, %+v", err, e)
	}
	var kase Case
	if _, err := r.client.TransitionCase(ctx, "k3", "x/y", Transition{1, "APPEALED"}); !errors.As(err, &e) || e.Reason != "other_open" ||
		json.Unmarshal(e.Current.(json.RawMessage), &kase) != nil || kase.CaseID != caseID {
		t.Errorf("%v, %+v", err, e)
	}
	f.answer(ClaimResult{Result: ResultMissing}, CaseResult{}, nil)
	if _, err := r.client.AdvanceClaim(ctx, "k4", "c1", ClaimAdvance{ExpectedVersion: 1, Node: "N"}); !errors.As(err, &e) || e.Status != http.StatusNotFound || e.Result != ResultMissing {
		t.Errorf("%v, %+v", err, e)
	}
	want := []string{`"put" "a/b" {"rx_ref_token":"rx1.t","ingredient_cost":"1.00"} "k1"`, `"pend" {"member_token":"M","gpi":"27","request_window":null} ""`,
		`"claim" "c1" ""`, `"case" "x/y" ""`, `"resolve" {"op_ids":["a","b"],"by":"R. Okafor"} ""`,
		`"advance" "c1" {"expected_version":1,"fsm_node":"N","ingredient_cost":null,"reject_code":null} "k2"`,
		`"transition" "x/y" {"expected_version":1,"to":"APPEALED"} "k3"`,
		`"advance" "c1" {"expected_version":1,"fsm_node":"N","ingredient_cost":null,"reject_code":null} "k4"`}
	if asked := f.took(); !slices.Equal(asked, want) {
		t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}
