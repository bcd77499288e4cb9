package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// claim is one as the API shows it.
type claim struct {
	CorrelationID string  `json:"correlation_id"`
	Token         string  `json:"rx_ref_token"`
	Node          string  `json:"fsm_node"`
	Cost          string  `json:"ingredient_cost"`
	RejectCode    *string `json:"reject_code"`
	Version       int     `json:"version"`
}

// paCase is a prior-authorization case as the API shows it, or what is known of one.
type paCase struct {
	CaseID      string  `json:"case_id"`
	RequestedID string  `json:"requested_id"`
	State       *string `json:"state"`
	Version     *int    `json:"version"`
	Created     *bool   `json:"created"`
	RejectCode  *string `json:"reject_code"`
}

// told is the answer to an operation, refusals too.
type told struct {
	Result  string          `json:"result"`
	OpID    string          `json:"op_id"`
	State   json.RawMessage `json:"state"` // a claim, or a case's
	Reason  string          `json:"reason"`
	Current json.RawMessage `json:"current"`

	code int
	body string
	kase paCase
}

func (o *told) claim(t testing.TB) claim {
	t.Helper()
	var c claim
	if err := json.Unmarshal(o.State, &c); err != nil {
		t.Fatalf("%v: %s", err, o.body)
	}
	return c
}

// operate sends an operation and wants a status.
func operate(t testing.TB, h *testenv.Home, want int, method, path, key string, body any) *told {
	t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, in)
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := h.HTTP().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	o := &told{code: resp.StatusCode, body: string(b)}
	if err == nil {
		err = json.Unmarshal(b, o)
	}
	if err != nil || o.code != want {
		t.Fatalf("%s %s: %d %s, %v; want %d", method, path, resp.StatusCode, b, err, want)
	}
	json.Unmarshal(b, &o.kase) // of a claim there is nothing in it
	return o
}

type fields map[string]any

func putClaim(t testing.TB, h *testenv.Home, want int, id, key, cost string) *told {
	t.Helper()
	return operate(t, h, want, "PUT", "/v1/claims/"+id, key, fields{"rx_ref_token": goldenToken, "ingredient_cost": cost})
}

func advance(t testing.TB, h *testenv.Home, want int, id, key string, version int, node string, more fields) *told {
	t.Helper()
	body := fields{"expected_version": version, "fsm_node": node}
	for k, v := range more {
		body[k] = v
	}
	return operate(t, h, want, "POST", "/v1/claims/"+id+"/advance", key, body)
}

func getClaim(t testing.TB, h *testenv.Home, id string) claim {
	t.Helper()
	o := operate(t, h, http.StatusOK, "GET", "/v1/claims/"+id, "", nil)
	var c claim
	if err := json.Unmarshal([]byte(o.body), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func pend(t testing.TB, h *testenv.Home, want int, key, member, window string) *told {
	t.Helper()
	return operate(t, h, want, "POST", "/v1/pa/pends", key, fields{"member_token": member, "gpi": "27100010100320", "request_window": window})
}

func transition(t testing.TB, h *testenv.Home, want int, id, key string, version int, to string) *told {
	t.Helper()
	return operate(t, h, want, "POST", "/v1/pa/cases/"+id+"/transition", key, fields{"expected_version": version, "to": to})
}

// carried is the event of a queued operation that is over.
type carried struct {
	OpID    string  `json:"op_id"`
	Op      string  `json:"op"`
	Target  string  `json:"target"`
	Result  string  `json:"result"`
	Claim   *claim  `json:"claim"`
	Case    *paCase `json:"case"`
	Created *bool   `json:"created"`
}

func carriedOf(e *testenv.Event) (c carried) {
	json.Unmarshal([]byte(e.Data), &c)
	return c
}

// ended waits for the end of an operation.
func ended(t testing.TB, st *testenv.Stream, op string) carried {
	t.Helper()
	e, _ := st.Wait(t, 0, "the end of operation "+op, func(e *testenv.Event) bool { return e.Kind == "operation" && carriedOf(e).OpID == op })
	return carriedOf(&e)
}

var adjudication = []string{"NORMALIZED", "TAXONOMY_RESOLVED", "ELIGIBILITY_VERIFIED", "PRICING_CALCULATED", "PA_EVALUATED", "RESPONSE_DISPATCHED"}

// A claim walks through adjudication; what is sent again, in the wrong order or about no claim has its answer.
func TestClaimWalk(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{})
	p := h.Start(t)
	const id = "claim-a"
	first := putClaim(t, h, 201, id, "put-1", "42.10")
	if c := first.claim(t); first.Result != "created" || c != (claim{id, goldenToken, "INGESTED", "42.10", nil, 1}) {
		t.Errorf("created %s", first.body)
	}
	if o := putClaim(t, h, 201, id, "put-1", "42.10"); o.body != first.body {
		t.Errorf("the same key: %s", o.body)
	}
	if o := putClaim(t, h, 409, id, "put-2", "42.10"); o.Result != "conflict" || !strings.Contains(string(o.Current), `"version":1`) {
		t.Errorf("another key: %s", o.body)
	}
	if o := putClaim(t, h, 409, id, "", "0.00"); o.Reason != "conflict" {
		t.Errorf("another cost: %s", o.body)
	}
	advance(t, h, 404, "claim-b", "", 1, adjudication[0], nil)
	operate(t, h, 404, "GET", "/v1/claims/claim-b", "", nil)
	for i, node := range adjudication {
		version, key := i+1, fmt.Sprint("step-", i)
		for _, wrong := range adjudication {
			if wrong != node && wrong != "RESPONSE_DISPATCHED" {
				if o := advance(t, h, 422, id, "", version, wrong, nil); o.Reason != "illegal_move" {
					t.Errorf("%s at version %d: %s", wrong, version, o.body)
				}
			}
		}
		more := fields{}
		if node == "PRICING_CALCULATED" {
			more["ingredient_cost"] = "41.00"
		}
		done := advance(t, h, 200, id, key, version, node, more)
		if c := done.claim(t); done.Result != "advanced" || c.Node != node || c.Version != version+1 || c.RejectCode != nil {
			t.Errorf("%s: %s", node, done.body)
		}
		if i == 2 { // the answers that were kept are gone; the store knows the operation
			p.Kill()
			p = h.Start(t)
		}
		if o := advance(t, h, 200, id, key, version, node, more); i == 2 && o.Result != "already_mine" || i != 2 && o.body != done.body {
			t.Errorf("%s again: %s", node, o.body)
		}
		if o := advance(t, h, 409, id, "late-"+key, version, "RESPONSE_DISPATCHED", fields{"reject_code": "70"}); o.Result != "conflict" ||
			!strings.Contains(string(o.Current), fmt.Sprintf(`"version":%d`, version+1)) {
			t.Errorf("from an old version: %s", o.body)
		}
	}
	if o := advance(t, h, 422, id, "", 0, "NORMALIZED", nil); o.Reason != "bad_expected_version" || strings.Contains(o.body, "person") {
		t.Errorf("version 0: %s", o.body)
	}
	if c := getClaim(t, h, id); c != (claim{id, goldenToken, "RESPONSE_DISPATCHED", "41.00", nil, 7}) {
		t.Errorf("claim %+v", c)
	}
	advance(t, h, 422, id, "", 7, "RESPONSE_DISPATCHED", fields{"reject_code": "70"})

	// A reject code ends a claim from anywhere; without keys an operation is known by what it asks for.
	created := putClaim(t, h, 201, "claim-c", "", "0.00")
	if o := putClaim(t, h, 200, "claim-c", "", "0.00"); o.Result != "already_mine" || o.OpID != created.OpID {
		t.Errorf("the same again: %s", o.body)
	}
	reject := fields{"reject_code": "70"}
	advance(t, h, 200, "claim-c", "", 1, "RESPONSE_DISPATCHED", reject)
	if o := advance(t, h, 200, "claim-c", "", 1, "RESPONSE_DISPATCHED", reject); o.Result != "already_mine" || deref(o.claim(t).RejectCode) != "70" {
		t.Errorf("the same again: %s", o.body)
	}
	p.Stop(t)
}

const noCase = "00000000000000000000000000000000"

// Numbers of cards and prescriptions are refused where a token belongs, and are nowhere afterwards.
func TestOperationsTakeNoNumbers(t *testing.T) {
	t.Parallel()
	s := secrets{"a card's number": "90445566778", "a card's id": "CWX9044556677", "a prescription's number": "7711447", "a card's number with separators": "4532-0151-1283-0366",
		"a prescription's label": "RX8822331-00", "a name": "JOHNSMITH", "another name": "SMITH_JOHN", "a key of the application": "KEY-8833551199"}
	h := program.NewHome(t, testenv.Setup{Agent: fmt.Sprintf("log_level = \"debug\"\nfacility_secret_file = %q\n", secretFile(t, goldenSecret)),
		Sections: "[[rx_profile]]\nname = \"fills\"\npattern = 'RX(?P<rx>\\d{7})-(?P<refill>\\d{2})'\n"})
	p := h.Start(t)
	st := h.Follow(t)
	var answers []string
	refused := func(method, path string, body fields) {
		t.Helper()
		o := operate(t, h, 422, method, path, "", body)
		answers = append(answers, o.body)
	}
	for what, n := range s {
		if strings.Contains(what, "key") {
			continue
		}
		refused("GET", "/v1/pa/cases/"+n, nil)
		refused("POST", "/v1/pa/cases/"+n+"/transition", fields{"expected_version": 1, "to": "IN_REVIEW"})
		if strings.Contains(what, "name") {
			continue
		}
		refused("PUT", "/v1/claims/"+n, fields{"rx_ref_token": goldenToken, "ingredient_cost": "0.00"})
		refused("POST", "/v1/claims/"+n+"/advance", fields{"expected_version": 1, "fsm_node": "NORMALIZED"})
		refused("GET", "/v1/claims/"+n, nil)
	}
	for _, n := range s {
		refused("PUT", "/v1/claims/claim-a", fields{"rx_ref_token": n, "ingredient_cost": "0.00"})
		refused("PUT", "/v1/claims/claim-a", fields{"rx_ref_token": goldenToken, "ingredient_cost": n})
		if !strings.HasPrefix(n, "KEY") && !strings.HasPrefix(n, "RX") {
			refused("POST", "/v1/pa/pends", fields{"member_token": n, "gpi": "27100010100320"})
		}
		refused("POST", "/v1/pa/pends", fields{"member_token": "MTOK_9f2a", "gpi": n})
		refused("POST", "/v1/pa/pends", fields{"member_token": "MTOK_9f2a", "gpi": "27", "request_window": n})
		refused("POST", "/v1/pa/cases/"+noCase+"/transition", fields{"expected_version": 1, "to": n})
		refused("POST", "/v1/claims/claim-a/advance", fields{"expected_version": 1, "fsm_node": n})
		refused("POST", "/v1/claims/claim-a/advance", fields{"expected_version": 1, "fsm_node": "RESPONSE_DISPATCHED", "reject_code": n})
		refused("POST", "/v1/conflicts/resolve", fields{"op_ids": []string{}, "by": "@" + n})
	}
	putClaim(t, h, 201, "claim-a", s["a key of the application"], "0.00")
	pend(t, h, 201, s["a key of the application"]+"-2", "MTOK_9f2a", "2026-07-17")
	p.Stop(t)
	for i, a := range answers {
		s.search(t, fmt.Sprintf("answer %d", i), []byte(a))
	}
	for _, e := range st.Events() {
		s.search(t, "an event", []byte(e.Data))
	}
	log, err := os.ReadFile(h.Log)
	if err != nil || len(log) == 0 {
		t.Fatalf("the log has %d bytes: %v", len(log), err)
	}
	s.search(t, "the log", log)
	s.searchFolder(t, h.State)
}

// claimOf is the correlation id of a fill's claim, by the published recipe.
func claimOf(token string) string {
	sum := sha256.Sum256([]byte("claim|" + token))
	return hex.EncodeToString(sum[:])[:32]
}

// A dispense behind a label asks for its fill's claim: two bottles of one fill have one, a refill has its own.
func TestDispenseMakesItsClaim(t *testing.T) {
	t.Parallel()
	s := rxSetup(secretFile(t, goldenSecret))
	s.Sections = "[[rx_profile]]\nname = \"fills\"\npattern = '^(?P<rx>\\d{7})-(?P<refill>\\d{2}),(?P<store>\\d{7})$'\n"
	h, p, st, g := bench(t, s)
	g.expect("accepted", matrix(bottleGTIN, "S0", "A1207")) // without a label, and without a claim
	fill := deref(g.expect("label", "1234567-00,0123456").RxToken)
	one := g.expect("accepted", matrix(bottleGTIN, "S1", "A1207"))
	g.expect("duplicate", matrix(bottleGTIN, "S1", "A1207"))
	two := g.expect("accepted", matrix(bottleGTIN, "S2", "A1207"))
	refill := deref(g.expect("label", "1234567-01,0123456").RxToken)
	three := g.expect("accepted", matrix(bottleGTIN, "S3", "A1207"))
	g.expect("mode", "SCANONCE-MODE-RETURN")
	g.expect("label", "7654321-00,0123456")
	g.expect("accepted", matrix(bottleGTIN, "S4", "A1207")) // a return dispenses nothing
	if fill == refill || fill == "" {
		t.Fatalf("tokens %s and %s", fill, refill)
	}
	for _, e := range []testenv.Event{one, two, three} {
		token := fill
		if e.EventID == three.EventID {
			token = refill
		}
		if c := ended(t, st, e.EventID); c.Target != claimOf(token) || c.Result != "done" {
			t.Errorf("operation %+v", c)
		}
		if c := getClaim(t, h, claimOf(token)); c != (claim{claimOf(token), token, "INGESTED", "0.00", nil, 1}) {
			t.Errorf("claim %+v", c)
		}
	}
	quiet(t, h)
	// The pharmacy's system goes on from there; a third bottle, behind a kill, does not begin the claim anew.
	advance(t, h, 200, claimOf(fill), "", 1, "NORMALIZED", fields{"ingredient_cost": "12.50"})
	p.Kill()
	h.Start(t)
	g.reading()
	g.expect("label", "1234567-00,0123456")
	four := g.expect("accepted", matrix(bottleGTIN, "S5", "A1207"))
	ended(t, st, four.EventID)
	if c := getClaim(t, h, claimOf(fill)); c != (claim{claimOf(fill), fill, "NORMALIZED", "12.50", nil, 2}) {
		t.Errorf("claim %+v", c)
	}
	quiet(t, h)
	ops := 0
	for _, e := range st.Events() {
		if e.Kind == "operation" {
			ops++
		}
	}
	if ops != 4 {
		t.Errorf("%d operations, want one for each dispense behind a label", ops)
	}
}

// One open case for a member and a drug; its one creator is told so at every attempt, over a kill too.
func TestPendAndTransitions(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{})
	p := h.Start(t)
	const member, day, next = "MTOK_9f2a", "2026-07-17", "2026-07-18"
	first := pend(t, h, 201, "pend-1", member, day)
	id := first.kase.CaseID
	if id != "1d12207def3071d4c706b6279fb28084" || first.kase.RequestedID != id || !*first.kase.Created || deref(first.kase.State) != "PENDING" || *first.kase.Version != 1 || deref(first.kase.RejectCode) != "75" {
		t.Errorf("pend %s", first.body)
	}
	if o := pend(t, h, 200, "pend-2", member, day); *o.kase.Created || o.kase.CaseID != id {
		t.Errorf("another claim: %s", o.body)
	}
	p.Kill()
	p = h.Start(t)
	if o := pend(t, h, 201, "pend-1", member, day); o.body != first.body {
		t.Errorf("the first one again: %s, want %s", o.body, first.body)
	}
	if o := pend(t, h, 200, "pend-2", member, day); *o.kase.Created {
		t.Errorf("the second one again: %s", o.body)
	}
	attached := pend(t, h, 200, "", member, next)
	if attached.kase.CaseID != id || attached.kase.RequestedID == id {
		t.Errorf("the next day: %s", attached.body)
	}
	if o := operate(t, h, 200, "GET", "/v1/pa/cases/"+attached.kase.RequestedID, "", nil); o.kase.CaseID != id {
		t.Errorf("by the other id: %s", o.body)
	}
	operate(t, h, 404, "GET", "/v1/pa/cases/"+noCase, "", nil)
	transition(t, h, 404, noCase, "", 1, "IN_REVIEW")
	if o := transition(t, h, 422, id, "", 1, "APPROVED"); o.Reason != "illegal_move" || !strings.Contains(string(o.Current), `"PENDING"`) {
		t.Errorf("an illegal move: %s", o.body)
	}
	if o := transition(t, h, 422, id, "", 1<<31, "IN_REVIEW"); o.Reason != "bad_expected_version" || !strings.Contains(o.body, "1 to 2147483646") {
		t.Errorf("a version that no case has: %s", o.body)
	}
	for i, to := range []string{"IN_REVIEW", "DENIED"} {
		o := transition(t, h, 200, id, "move-"+to, i+1, to)
		if deref(o.kase.State) != to || *o.kase.Version != i+2 || deref(o.kase.RejectCode) != "75" {
			t.Errorf("to %s: %s", to, o.body)
		}
	}
	if o := transition(t, h, 409, id, "", 1, "CANCELLED"); o.Result != "conflict" || o.Reason != "conflict" || !strings.Contains(string(o.Current), `"DENIED"`) {
		t.Errorf("from an old version: %s", o.body)
	}
	p.Kill()
	p = h.Start(t)
	if o := transition(t, h, 200, id, "move-DENIED", 2, "DENIED"); *o.kase.Version != 3 {
		t.Errorf("the last one again: %s", o.body)
	}
	// Decided: another day makes another case, beside which the first one is not opened again.
	other := pend(t, h, 201, "pend-3", member, "2026-07-19")
	if o := transition(t, h, 409, id, "", 3, "APPEALED"); o.Reason != "other_open" || !strings.Contains(string(o.Current), other.kase.CaseID) {
		t.Errorf("an appeal beside an open case: %s", o.body)
	}
	transition(t, h, 200, other.kase.CaseID, "", 1, "IN_REVIEW")
	transition(t, h, 200, other.kase.CaseID, "", 2, "CANCELLED")
	transition(t, h, 200, id, "", 3, "APPEALED")
	if o := transition(t, h, 200, id, "", 4, "APPROVED"); o.kase.RejectCode != nil || deref(o.kase.State) != "APPROVED" {
		t.Errorf("approved: %s", o.body)
	}
	if o := pend(t, h, 200, "", member, day); o.kase.RejectCode != nil || *o.kase.Created {
		t.Errorf("asked when it is approved: %s", o.body)
	}
	p.Stop(t)
}

// adjudicators are the stores of claims and cases, each behind a proxy.
type adjudicators struct {
	*central
	dynamo *testenv.Dynamo
	pended *testenv.Proxy // to dynamo
}

func newAdjudicators(t testing.TB) (*adjudicators, *testenv.Home) {
	t.Helper()
	a := &adjudicators{central: newCentral(t), dynamo: testenv.StartDynamo(t)}
	a.pended = testenv.NewProxy(t, a.dynamo.Addr)
	s := rxSetup(secretFile(t, goldenSecret))
	s.Sections += fmt.Sprintf("[claimstate]\nbackend = \"split\"\n[pa]\nbackend = \"postgres\"\n[dynamodb]\nendpoint = \"http://%s\"\nregion = \"us-east-1\"\ncreate_table = true\n", a.pended.Addr())
	h := program.NewHome(t, a.stores().in(s))
	// The program's home has no other credentials.
	b, err := os.ReadFile(a.dynamo.Credentials)
	if err == nil {
		err = os.Mkdir(filepath.Join(h.Dir, ".aws"), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(h.Dir, ".aws", "credentials"), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a, h
}

func (a *adjudicators) mode(t testing.TB, m testenv.Mode) {
	t.Helper()
	a.central.mode(t, m)
	a.pended.Set(t, m)
}

// With its stores away an operation is taken all the same, fails closed, and is carried out once they are back: each
// once, those of one claim in their order, a conflict shown until somebody has seen to it.
func TestOperationsInAnOutage(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]testenv.Mode{"refused": testenv.Refuse, "never answered": testenv.BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, h := newAdjudicators(t)
			p := h.Start(t)
			st := h.Follow(t)
			g := plug(t, h, st, "SCN-04")
			// Before: one claim that waits for its authorization, in the durable store, and one on its way.
			putClaim(t, h, 201, "pended", "", "9.99")
			for i, node := range append(slices.Clone(adjudication[:5]), "PA_PENDED") {
				advance(t, h, 200, "pended", "", i+1, node, nil)
			}
			putClaim(t, h, 201, "moved", "", "1.00")
			advance(t, h, 200, "moved", "", 1, "NORMALIZED", nil)

			a.mode(t, mode)
			const member, day = "MTOK_9f2a", "2026-07-17"
			queued := func(o *told) string {
				t.Helper()
				if o.Result != "queued" || o.OpID == "" {
					t.Errorf("queued %s", o.body)
				}
				return o.OpID
			}
			var ops []string
			ops = append(ops, queued(putClaim(t, h, 202, "new", "", "42.10")))
			for i, node := range adjudication[:3] {
				ops = append(ops, queued(advance(t, h, 202, "new", fmt.Sprint("new-", i), i+1, node, nil)))
			}
			ops = append(ops, queued(advance(t, h, 202, "pended", "", 7, "PA_EVALUATED", nil)))
			lost := queued(advance(t, h, 202, "moved", "", 1, "RESPONSE_DISPATCHED", fields{"reject_code": "70"})) // somebody was faster
			none := queued(advance(t, h, 202, "nowhere", "", 1, "NORMALIZED", nil))
			asked := func() string {
				t.Helper()
				o := pend(t, h, 202, "pend-1", member, day)
				if k := o.kase; k.CaseID != "1d12207def3071d4c706b6279fb28084" || k.RequestedID != k.CaseID || deref(k.RejectCode) != "75" || k.State != nil || k.Created != nil || k.Version != nil {
					t.Errorf("a pend that is queued: %s", o.body)
				}
				return queued(o)
			}
			created := asked()
			attached := queued(pend(t, h, 202, "pend-2", member, day))
			review := queued(transition(t, h, 202, "1d12207def3071d4c706b6279fb28084", "", 1, "IN_REVIEW"))
			// A dispense that waits for its row comes before what was asked of its claim behind it.
			fill := deref(g.expect("label", goldenLabel).RxToken)
			scanned := g.expect("accepted", matrix(bottleGTIN, "S1", "A1207"))
			behind := queued(advance(t, h, 202, claimOf(fill), "", 1, "NORMALIZED", fields{"ingredient_cost": "12.50"}))
			operate(t, h, 503, "GET", "/v1/claims/pended", "", nil)
			operate(t, h, 503, "GET", "/v1/pa/cases/1d12207def3071d4c706b6279fb28084", "", nil)
			_, b := h.Ask(t, http.MethodGet, "/v1/operations", nil)
			pending := h.Call(t, "--json", "conflicts", "--pending")
			if pending.Code != 0 || pending.Stdout != string(b) || !strings.Contains(pending.Stdout, behind) || strings.Count(pending.Stdout, "\n") != len(ops)+6 || strings.Contains(pending.Stdout, member) {
				t.Errorf("what waits: %+v", pending)
			}
			if r := h.Call(t, "status"); !strings.Contains(r.Stdout, fmt.Sprintf("\nqueued    %d operations wait for a store", len(ops)+6)) {
				t.Errorf("the status says %s", r.Stdout)
			}

			p.Kill()
			if r := h.Call(t, "--json", "conflicts", "--pending"); r.Stdout != pending.Stdout {
				t.Errorf("what waits in the state folder: %+v, was %s", r, pending.Stdout)
			}
			p = h.Start(t)
			if again := asked(); again != created {
				t.Errorf("asked again behind a kill the operation is %s, was %s", again, created)
			}
			if n := a.count(t, "SELECT count(*) FROM pa_cases"); n != 0 {
				t.Errorf("%d cases in the outage", n)
			}
			a.mode(t, testenv.Pass)
			ended(t, st, ops[0]) // and once more, in the middle of it
			p.Kill()
			h.Start(t)

			for _, op := range ops {
				if c := ended(t, st, op); c.Result != "done" || c.Claim == nil {
					t.Errorf("operation %+v", c)
				}
			}
			if c := getClaim(t, h, "new"); c != (claim{"new", goldenToken, "ELIGIBILITY_VERIFIED", "42.10", nil, 4}) {
				t.Errorf("claim %+v", c)
			}
			if c := getClaim(t, h, "pended"); c.Node != "PA_EVALUATED" || c.Version != 8 {
				t.Errorf("claim %+v", c)
			}
			if c := ended(t, st, scanned.EventID); c.Result != "done" || c.Target != claimOf(fill) {
				t.Errorf("the dispense's claim %+v", c)
			}
			if c := ended(t, st, behind); c.Result != "done" {
				t.Errorf("what was asked of it %+v", c)
			}
			if c := getClaim(t, h, claimOf(fill)); c != (claim{claimOf(fill), fill, "NORMALIZED", "12.50", nil, 2}) {
				t.Errorf("claim %+v", c)
			}
			if c := ended(t, st, created); c.Result != "done" || c.Created == nil || !*c.Created || c.Case == nil || c.Case.CaseID != c.Target {
				t.Errorf("the pend %+v", c)
			}
			if c := ended(t, st, attached); c.Result != "done" || c.Created == nil || *c.Created {
				t.Errorf("the second pend %+v", c)
			}
			if c := ended(t, st, review); c.Result != "done" || deref(c.Case.State) != "IN_REVIEW" {
				t.Errorf("the transition %+v", c)
			}
			if o := pend(t, h, 201, "pend-1", member, day); !*o.kase.Created || deref(o.kase.State) != "IN_REVIEW" {
				t.Errorf("the creator again: %s", o.body)
			}
			if cases, creators := a.count(t, "SELECT count(*) FROM pa_cases"), a.count(t, "SELECT count(*) FROM pa_pend WHERE created"); cases != 1 || creators != 1 {
				t.Errorf("%d cases, %d creators", cases, creators)
			}
			for _, op := range []string{lost, none} {
				if c := ended(t, st, op); c.Result != "conflict" {
					t.Errorf("operation %+v", c)
				}
			}
			// An end that the kill has hidden may be told once more, as it was.
			ends, place := map[string][]string{}, map[string]int{}
			for i, e := range st.Events() {
				if e.Kind != "operation" {
					continue
				}
				op := carriedOf(&e).OpID
				_, told, _ := strings.Cut(e.Data, `"op_id"`)
				ends[op] = append(ends[op], told)
				if len(ends[op]) == 1 {
					place[op] = i
				}
			}
			for op, told := range ends {
				if len(told) > 2 || told[0] != told[len(told)-1] {
					t.Errorf("the end of %s is told as %q", op, told)
				}
			}
			if !slices.IsSortedFunc(ops[:4], func(x, y string) int { return place[x] - place[y] }) || place[created] > place[attached] || place[attached] > place[review] {
				t.Errorf("the ends come in another order: %v of %v", place, ops)
			}
			// The log names the operation, but not what it was about.
			log, err := os.ReadFile(h.Log)
			if err != nil || !bytes.Contains(log, []byte(none)) || bytes.Contains(log, []byte("nowhere")) {
				t.Errorf("the log: %v\n%s", err, log)
			}
			conflictsEnd(t, h, lost, none)
		})
	}
}

// conflictsEnd looks at two conflicts wherever they are shown, and resolves them.
func conflictsEnd(t *testing.T, h *testenv.Home, lost, none string) {
	t.Helper()
	type conflict struct {
		OpID    string `json:"op_id"`
		Kind    string `json:"kind"`
		ID      string `json:"id"`
		Wanted  fields `json:"wanted"`
		Current *claim `json:"current"`
		Detail  string `json:"detail"`
	}
	shown := func(want ...string) {
		t.Helper()
		code, b := h.Ask(t, http.MethodGet, "/v1/conflicts", nil)
		verb := h.Call(t, "--json", "conflicts")
		if code != http.StatusOK || verb.Code != 0 || verb.Stdout != string(b) {
			t.Fatalf("GET /v1/conflicts: %d %s; the verb: %+v", code, b, verb)
		}
		var ids []string
		for _, c := range testenv.ParseLines[conflict](t, string(b)) {
			ids = append(ids, c.OpID)
			switch c.OpID {
			case lost:
				if c.Kind != "claim_advance" || c.ID != "moved" || c.Wanted["reject_code"] != "70" || c.Current == nil || c.Current.Node != "NORMALIZED" || c.Current.Version != 2 || c.Detail == "" {
					t.Errorf("conflict %+v", c)
				}
			case none:
				if c.ID != "nowhere" || c.Current != nil || c.Detail == "" {
					t.Errorf("conflict %+v", c)
				}
			}
		}
		slices.Sort(ids)
		slices.Sort(want)
		if !slices.Equal(ids, want) {
			t.Errorf("conflicts %v, want %v", ids, want)
		}
		_, figures := h.Ask(t, http.MethodGet, "/metrics", nil)
		if line := fmt.Sprintf("\nscanonce_conflicts %d\n", len(want)); !bytes.Contains(figures, []byte(line)) {
			t.Errorf("no line %q in the metrics", line)
		}
		s := h.Await(t, "the end of the outage", waitOnline)
		al, status := s.Alarm("conflict"), h.Call(t, "status")
		if len(want) > 0 && (al == nil || al.Hint == "" || status.Code != 6 || !strings.Contains(status.Stdout, "conflict")) || len(want) == 0 && (al != nil || status.Code != 0) {
			t.Errorf("with %d conflicts: alarm %+v, exit code %d of status: %s", len(want), al, status.Code, status.Stdout)
		}
	}
	shown(lost, none)
	if r := h.Call(t, "conflicts"); !strings.Contains(r.Stdout, "moved") || !strings.Contains(r.Stdout, lost) {
		t.Errorf("the verb says %s", r.Stdout)
	}
	if r := h.Call(t, "conflicts", "--resolve", lost); r.Code != 2 || !strings.Contains(r.Stderr, "--by") {
		t.Errorf("without a name: %+v", r)
	}
	if r := h.Call(t, "conflicts", "--resolve", lost, "--by", "R. Okafor"); r.Code != 0 {
		t.Errorf("resolve: %+v", r)
	}
	shown(none)
	if r := h.Call(t, "conflicts", "--resolve", lost, "--by", "R. Okafor"); r.Code != 1 {
		t.Errorf("resolved a second time: %+v", r)
	}
	if r := h.Call(t, "conflicts", "--resolve", none, "--by", "R. Okafor"); r.Code != 0 {
		t.Errorf("resolve: %+v", r)
	}
	shown()
	noted := 0
	for _, l := range linesOf(h.Audit(t), "notice") {
		if deref(l.Reason) == "conflict_resolved by R. Okafor" && (deref(l.Ref) == lost || deref(l.Ref) == none) {
			noted++
		}
	}
	if noted != 2 {
		t.Errorf("the audit notes %d of the two", noted)
	}
	if r := h.Call(t, "audit", "verify"); r.Code != 0 {
		t.Errorf("audit verify: %+v", r)
	}
}
