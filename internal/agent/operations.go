package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/events"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// patience is how long the caller of an operation waits for a store before it is queued.
const patience = 2 * time.Second

// lateState is the store of claim state, opened when it is needed, and anew after a mistake of configuration.
type lateState struct{ late[claimstate.Store] }

func withStore[T any](ctx context.Context, l *lateState, f func(claimstate.Store) (T, error)) (T, error) {
	s, err := l.get(ctx)
	if err != nil {
		var none T
		return none, err
	}
	out, err := f(s)
	var mistake *claimstate.ConfigError
	if errors.As(err, &mistake) {
		l.again(s)
	}
	return out, err
}

func (l *lateState) PutNew(ctx context.Context, n claimstate.New) (claimstate.Put, error) {
	return withStore(ctx, l, func(s claimstate.Store) (claimstate.Put, error) { return s.PutNew(ctx, n) })
}

func (l *lateState) Get(ctx context.Context, id string) (s claimstate.State, ok bool, err error) {
	s, err = withStore(ctx, l, func(store claimstate.Store) (s claimstate.State, err error) {
		s, ok, err = store.Get(ctx, id)
		return s, err
	})
	return s, ok, err
}

func (l *lateState) Advance(ctx context.Context, m claimstate.Move) (claimstate.Advance, error) {
	return withStore(ctx, l, func(s claimstate.Store) (claimstate.Advance, error) { return s.Advance(ctx, m) })
}

func (l *lateState) Ping(ctx context.Context) error {
	_, err := withStore(ctx, l, func(s claimstate.Store) (struct{}, error) { return struct{}{}, s.Ping(ctx) })
	return err
}

// lateCases is the store of cases, opened when it is needed.
type lateCases struct{ late[pacase.Store] }

func (l *lateCases) Pend(ctx context.Context, p pacase.Pend) (pacase.Pended, error) {
	s, err := l.get(ctx)
	if err != nil {
		return pacase.Pended{}, err
	}
	return s.Pend(ctx, p)
}

func (l *lateCases) Transition(ctx context.Context, t pacase.Transition) (pacase.Transitioned, error) {
	s, err := l.get(ctx)
	if err != nil {
		return pacase.Transitioned{}, err
	}
	return s.Transition(ctx, t)
}

func (l *lateCases) Get(ctx context.Context, id string) (pacase.Case, bool, error) {
	s, err := l.get(ctx)
	if err != nil {
		return pacase.Case{}, false, err
	}
	return s.Get(ctx, id)
}

func (l *lateCases) Ping(ctx context.Context) error {
	s, err := l.get(ctx)
	if err != nil {
		return err
	}
	return s.Ping(ctx)
}

func livesOf(cfg *config.Config) claimstate.Lives {
	return claimstate.Lives{TTL: cfg.ClaimState.TTL, Pend: cfg.ClaimState.PendTTL}
}

func stateRedis(cfg *config.Config, now func() window.UTC, warn func(string)) (claimstate.RedisConfig, error) {
	r, err := redisConfig(cfg)
	if err != nil {
		return claimstate.RedisConfig{}, err
	}
	return claimstate.RedisConfig{Mode: r.Mode, Addrs: r.Addrs, MasterName: r.MasterName, Username: r.Username, Password: r.Password,
		DB: r.DB, TLS: r.TLS, Timeout: r.Timeout, Lives: livesOf(cfg), Now: now, Warn: warn}, nil
}

func stateDynamo(cfg *config.Config, now func() window.UTC) claimstate.DynamoConfig {
	d := cfg.DynamoDB
	return claimstate.DynamoConfig{Endpoint: d.Endpoint, Region: d.Region, Table: d.Table, CreateTable: d.CreateTable, Timeout: storeTimeout, Lives: livesOf(cfg), Now: now}
}

// openState makes the store of claim state of the configuration.
func openState(cfg *config.Config, now func() window.UTC, warn func(string)) *lateState {
	return &lateState{late[claimstate.Store]{open: func() (claimstate.Store, error) {
		switch cfg.ClaimState.Backend {
		case "redis":
			c, err := stateRedis(cfg, now, warn)
			if err != nil {
				return nil, err
			}
			return orNil(claimstate.NewRedis(c))
		case "dynamodb":
			return orNil(claimstate.NewDynamo(context.Background(), stateDynamo(cfg, now)))
		case "split":
			c, err := stateRedis(cfg, now, warn)
			if err != nil {
				return nil, &claimstate.StoreError{Store: claimstate.InRedis, Err: err}
			}
			return orNil(claimstate.NewSplit(context.Background(), c, stateDynamo(cfg, now)))
		}
		return orNil(claimstate.OpenEmbedded(filepath.Join(cfg.Agent.StateDir, "claims.db"), livesOf(cfg), now))
	}}}
}

// orNil keeps a nil pointer from becoming a store.
func orNil[S claimstate.Store](s S, err error) (claimstate.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// openCases makes the store of prior-authorization cases of the configuration.
func openCases(cfg *config.Config, agent string, host window.OS, now func() window.UTC) *lateCases {
	return &lateCases{late[pacase.Store]{open: func() (pacase.Store, error) {
		if cfg.PA.Backend == "postgres" {
			c := postgresConfig(cfg, agent)
			c.Boot = host.Boot
			p, err := pacase.OpenPostgres(c)
			if err != nil {
				return nil, err
			}
			return p, nil
		}
		e, err := pacase.OpenEmbedded(filepath.Join(cfg.Agent.StateDir, "pa.db"), now)
		if err != nil {
			return nil, err
		}
		return e, nil
	}}}
}

// newCourier makes the part that takes operations to their stores.
func (a *agent) newCourier(e Edges, l ledger.Ledger, now func() window.UTC) (err error) {
	if a.windows, err = pacase.NewWindows(a.cfg.PA.RequestWindow, a.cfg.PA.Zone); err != nil {
		detail, hint, _ := configError(err)
		return &ExitError{Code: ExitUsage, Kind: "config", Detail: detail, Hint: hint}
	}
	a.states, a.cases = e.ClaimState, e.Cases
	if a.states == nil {
		a.states = openState(a.cfg, now, func(remark string) { a.log.Warn("the store of claim state could be set up better", "remark", remark) })
	}
	if a.cases == nil {
		a.cases = openCases(a.cfg, a.id, a.os, now)
	}
	a.watchFiles()
	a.courier = forward.NewCourier(forward.CourierConfig{Agent: a.id, BackoffMin: a.cfg.Forward.BackoffMin, BackoffMax: a.cfg.Forward.BackoffMax,
		Timeout: max(storeTimeout, a.cfg.Postgres.StatementTimeout), Patience: patience, ClaimLife: a.cfg.ClaimState.TTL, Random: e.Random, Together: e.Together},
		a.spool.Journal(), l, a.states, a.cases, a.clock, a)
	a.firstNew = a.spool.NextSeq()
	return nil
}

// forwarding is the task of the forwarder. Before it settles anything, the courier learns which claims are going to be
// asked for by what is left of earlier runs.
type forwarding struct {
	*forward.Forwarder
	a *agent
}

func (f forwarding) Run(ctx context.Context) error {
	if err := f.a.awaitClaims(); err != nil {
		f.a.log.Error("cannot look through the spool for dispenses with claims; operations on them do not wait", "error", err)
	}
	return f.Forwarder.Run(ctx)
}

func (a *agent) awaitClaims() error {
	err := a.spool.Unsettled(func(r *spool.Record, _ spool.Exception) bool {
		if r.Seq < a.firstNew {
			a.courier.Await(r)
		}
		return r.Seq < a.firstNew
	})
	a.courier.Begin()
	return err
}

// Carried tells of queued operations that are over; see forward.CourierListener.
func (a *agent) Carried(outcomes []forward.Outcome) {
	at := a.clock.Now().T
	entries := make([]events.Entry, 0, len(outcomes))
	for i := range outcomes {
		o := &outcomes[i]
		if o.Conflict {
			a.log.Warn("an operation cannot be carried out", "op_id", o.ID.String(), "kind", o.Kind, "reason", o.Detail)
		}
		entries = append(entries, events.Entry{Kind: "operation", At: at, Body: operationOf(o)})
	}
	a.tell(entries...)
}

// operationBody is the event of a queued operation that is over.
type operationBody struct {
	OpID    string     `json:"op_id"`
	Op      string     `json:"op"` // its kind
	Target  string     `json:"target"`
	Result  string     `json:"result"` // done, conflict
	Detail  *string    `json:"detail"`
	Claim   *api.Claim `json:"claim"`
	Case    *api.Case  `json:"case"`
	Created *bool      `json:"created"` // of a pend
}

func operationOf(o *forward.Outcome) operationBody {
	b := operationBody{OpID: o.ID.String(), Op: o.Kind, Target: o.Target, Result: "done", Detail: nullable(o.Detail)}
	if o.Conflict {
		b.Result = api.ResultConflict
	}
	if o.Claim != nil {
		c := claimOf(o.Claim)
		b.Claim = &c
	}
	if o.Case != nil {
		c := caseOf(o.Case, o.Target, o.Created)
		b.Case = &c
	}
	if o.Kind == forward.OpPend && !o.Conflict {
		b.Created = &o.Created
	}
	return b
}

// LaneChanged tells that a store answers, or no longer; see forward.CourierListener.
func (a *agent) LaneChanged(l forward.Lane, cause error) {
	if l == forward.Ingests {
		return // the ledger, of which the forwarder tells
	}
	code := map[forward.Lane]string{forward.Claims: alarmClaimState, forward.Cases: alarmCases}[l]
	if cause == nil {
		a.log.Info("a store answers again", "store", string(l))
		a.alarms.clear(code)
		return
	}
	a.log.Warn("a store does not answer; operations are queued", "store", string(l), "error", cause)
	if detail, hint, ok := configError(cause); ok {
		a.alarms.set(code, detail, hint)
	} else if file := a.ownFile(l); file != "" { // a file of one's own is no network that comes back by itself
		a.alarms.set(code, cause.Error(), "see to "+file+"; operations are queued until it can be used")
	} else {
		a.alarms.clear(code)
	}
}

func claimOf(s *claimstate.State) api.Claim {
	return api.Claim{CorrelationID: s.CorrelationID, RxRefToken: string(s.RxRefToken), Node: string(s.Node), IngredientCost: string(s.IngredientCost),
		RejectCode: nullable(s.RejectCode), Version: s.Version, ExpiresAt: s.ExpiresAt}
}

func caseOf(c *pacase.Case, requested string, created bool) api.Case {
	state, version := c.State.String(), c.Version
	return api.Case{CaseID: c.ID, RequestedID: requested, State: &state, Version: &version, Created: &created, RejectCode: nullable(c.State.RejectCode())}
}

// operationError is the answer to an error of the courier.
func operationError(err error) error {
	var invalid *claimstate.InvalidError
	var illegal *claimstate.IllegalMoveError
	var damage *claimstate.DamageError
	var request *pacase.RequestError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &illegal):
		return &api.Error{Status: http.StatusUnprocessableEntity, Reason: "illegal_move", Detail: illegal.Error(), Hint: "see docs/API.md for the moves of a claim"}
	case errors.As(err, &invalid):
		return &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_" + invalid.Field, Detail: err.Error(), Hint: "send tokens and figures, never what identifies a person"}
	case errors.As(err, &request):
		return &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_" + request.Field, Detail: "cannot take the request: " + request.Field + " " + request.Detail, Hint: request.Hint}
	case errors.As(err, &damage) && !damage.OfFile():
		return &api.Error{Status: http.StatusConflict, Reason: "damaged", Detail: damage.Error(), Hint: damage.Hint()}
	case forward.Full(err):
		return &api.Error{Status: http.StatusServiceUnavailable, Reason: "queue_full", Detail: err.Error(), Hint: "wait until the stores answer again: see scanonce status"}
	case spool.IsNoSpace(err):
		return &api.Error{Status: http.StatusServiceUnavailable, Reason: "disk_full", Detail: err.Error(), Hint: "make room on the disk under the state folder"}
	}
	return unkept(err) // what a store does not take is queued, and this could not be
}

// readError is the answer to an error of a store that was asked what stands.
func readError(err error) error {
	if forward.Refused(err) {
		return operationError(err)
	}
	detail, hint, ok := configError(err)
	if !ok {
		hint = "try again; see scanonce status"
	}
	return &api.Error{Status: http.StatusServiceUnavailable, Reason: "store_away", Detail: detail, Hint: hint}
}

// operationID is the id of a request's operation: the same for the same request, and, if it has a key, for that key
// alone.
func (a *agent) operationID(kind, key string, request any) (idem.EventID, error) {
	b, err := json.Marshal(request)
	return forward.OperationID(a.id, kind, key, string(b)), err
}

// refuseLabels keeps what fits an Rx label from being the id of a claim. The decoder has compiled the patterns before.
func (a *agent) refuseLabels(profiles []config.RxProfile) {
	labels := make([]*regexp.Regexp, len(profiles))
	for i, p := range profiles {
		labels[i] = regexp.MustCompile(`\A(?:` + p.Pattern + `)\z`)
	}
	a.labels.Store(&labels)
}

var hexID = regexp.MustCompile(`\A[0-9a-f]{32}\z`)

// notLabel refuses the id of a claim that is the text of an Rx label. The ids that scans make for their claims are none,
// however wide a pattern is.
func (a *agent) notLabel(id string) error {
	if !hexID.MatchString(id) && slices.ContainsFunc(*a.labels.Load(), func(label *regexp.Regexp) bool { return label.MatchString(id) }) {
		return operationError(&claimstate.InvalidError{Field: "correlation_id", Why: "it fits an Rx label; a number from outside does not belong here"})
	}
	return nil
}

// PutClaim makes a claim; see api.Operations.
func (a *agent) PutClaim(ctx context.Context, key, id string, q api.ClaimPut) (api.ClaimResult, error) {
	if err := a.notLabel(id); err != nil {
		return api.ClaimResult{}, err
	}
	op, err := a.operationID(forward.OpPut, key, []any{id, q})
	if err != nil {
		return api.ClaimResult{}, err
	}
	out := api.ClaimResult{Result: api.ResultQueued, OpID: op.String()}
	p, queued, err := a.courier.PutClaim(ctx, claimstate.New{CorrelationID: id, RxRefToken: claimstate.Token(q.RxRefToken),
		IngredientCost: claimstate.Cost(q.IngredientCost), OpID: out.OpID})
	if err != nil || queued {
		return out, operationError(err)
	}
	p.Match(answers(&out, api.ResultCreated), answers(&out, api.ResultAlreadyMine), answers(&out, api.ResultConflict))
	return out, nil
}

// answers sets a result with the claim that stands.
func answers(out *api.ClaimResult, result string) func(claimstate.State) {
	return func(s claimstate.State) {
		c := claimOf(&s)
		out.Result, out.State = result, &c
	}
}

// AdvanceClaim moves a claim; see api.Operations.
func (a *agent) AdvanceClaim(ctx context.Context, key, id string, q api.ClaimAdvance) (api.ClaimResult, error) {
	if err := a.notLabel(id); err != nil {
		return api.ClaimResult{}, err
	}
	op, err := a.operationID(forward.OpAdvance, key, []any{id, q})
	if err != nil {
		return api.ClaimResult{}, err
	}
	out := api.ClaimResult{Result: api.ResultQueued, OpID: op.String()}
	if q.ExpectedVersion < claimstate.FirstVersion {
		return out, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_expected_version", Detail: "cannot use expected_version: it is below 1, a new claim's",
			Hint: "give the version of the claim that you have seen"}
	}
	move := forward.Advance{CorrelationID: id, Version: q.ExpectedVersion, To: claimstate.Node(q.Node), Op: op}
	if q.IngredientCost != nil {
		if move.Cost = claimstate.Cost(*q.IngredientCost); move.Cost == "" {
			return out, operationError(move.Cost.Validate())
		}
	}
	if q.RejectCode != nil {
		move.RejectCode = *q.RejectCode
	}
	moved, queued, err := a.courier.AdvanceClaim(ctx, move)
	if err != nil || queued {
		return out, operationError(err)
	}
	moved.Match(answers(&out, api.ResultAdvanced), answers(&out, api.ResultAlreadyMine), answers(&out, api.ResultConflict), func() { out.Result = api.ResultMissing })
	return out, nil
}

// Claim reads a claim; see api.Operations.
func (a *agent) Claim(ctx context.Context, id string) (api.Claim, error) {
	if err := a.notLabel(id); err != nil {
		return api.Claim{}, err
	}
	s, ok, err := a.courier.Claim(ctx, id)
	switch {
	case err != nil:
		return api.Claim{}, readError(err)
	case !ok:
		return api.Claim{}, &api.Error{Status: http.StatusNotFound, Reason: api.ResultMissing, Detail: "cannot find this claim: there is none, or it has expired",
			Hint: "make it with PUT /v1/claims/{correlation_id}"}
	}
	return claimOf(&s), nil
}

// Pend asks for a prior authorization; see api.Operations. Only a request with a key is known again: of one without,
// nobody can say whether it is a second try or a second claim.
func (a *agent) Pend(ctx context.Context, key string, q api.PendRequest) (api.CaseResult, error) {
	now := a.clock.Now().T
	ask := pacase.Question{MemberToken: q.MemberToken, GPI: q.GPI, Window: a.windows.At(now)}
	if q.RequestWindow != nil {
		ask.Window = *q.RequestWindow
	}
	event := spool.NewEvent(now)
	if key != "" {
		var err error
		if event, err = a.operationID(forward.OpPend, key, q); err != nil {
			return api.CaseResult{}, err
		}
	}
	out := api.CaseResult{OpID: event.String()}
	p, queued, err := a.courier.Pend(ctx, pacase.Pend{Event: pacase.UUID(event), Question: ask})
	switch {
	case err != nil:
		return out, operationError(err)
	case queued:
		out.Result = api.ResultQueued
		out.Case = &api.Case{CaseID: p.RequestedID, RequestedID: p.RequestedID, RejectCode: nullable(pacase.RejectPriorAuthorization)}
	default:
		c := caseOf(&p.Case, p.RequestedID, p.Created)
		out.Case = &c
	}
	return out, nil
}

// TransitionCase moves a case; see api.Operations.
func (a *agent) TransitionCase(ctx context.Context, key, id string, q api.Transition) (api.CaseResult, error) {
	if err := pacase.CheckID(id); err != nil {
		return api.CaseResult{}, operationError(err)
	}
	to, err := pacase.ParseState(q.To)
	if err != nil {
		return api.CaseResult{}, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_to", Detail: "cannot use to: it is no state of a case",
			Hint: "write PENDING, IN_REVIEW, APPROVED, DENIED, APPEALED, CANCELLED or EXPIRED"}
	}
	op, err := a.operationID(forward.OpTransition, key, []any{id, q})
	if err != nil {
		return api.CaseResult{}, err
	}
	out := api.CaseResult{OpID: op.String()}
	t, queued, err := a.courier.Transition(ctx, pacase.Transition{ID: id, Expected: q.ExpectedVersion, To: to, Op: pacase.UUID(op)})
	if err != nil {
		return out, operationError(err)
	}
	if queued {
		out.Result = api.ResultQueued
		out.Case = &api.Case{CaseID: id, RequestedID: id, RejectCode: nullable(pacase.RejectPriorAuthorization)}
		return out, nil
	}
	done := func(c pacase.Case) {
		k := caseOf(&c, id, false)
		out.Case = &k
	}
	conflict := func(reason, detail string) func(pacase.Case) {
		return func(c pacase.Case) {
			done(c)
			out.Result, out.Reason, out.Detail = api.ResultConflict, reason, fmt.Sprintf(detail, c.Version, c.State)
		}
	}
	illegal := false
	t.Match(done, done, conflict(api.ResultConflict, "cannot move the case: it is at version %d, %s"),
		func(c pacase.Case) { // to which no id of this one leads
			conflict("other_open", "cannot open the case again: another one of the same member and drug is open, at version %d, %s")(c)
			out.Case.RequestedID = c.ID
		},
		func(c pacase.Case) { done(c); illegal = true }, func() { out.Result = api.ResultMissing })
	if illegal {
		return out, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "illegal_move", Detail: fmt.Sprintf("cannot move the case from %s to %s", *out.Case.State, to),
			Hint: "see docs/API.md for the transitions of a case", Current: out.Case}
	}
	return out, nil
}

// Case reads a case; see api.Operations.
func (a *agent) Case(ctx context.Context, id string) (api.Case, error) {
	if err := pacase.CheckID(id); err != nil {
		return api.Case{}, operationError(err)
	}
	c, ok, err := a.courier.Case(ctx, id)
	switch {
	case err != nil:
		return api.Case{}, readError(err)
	case !ok:
		return api.Case{}, &api.Error{Status: http.StatusNotFound, Reason: api.ResultMissing, Detail: "cannot find this case",
			Hint: "use a case_id or requested_id of an earlier answer"}
	}
	return caseOf(&c, id, false), nil
}

// Conflicts lists the operations that could not be carried out; see api.Reader.
func (a *agent) Conflicts(ctx context.Context, yield func(api.Conflict) error) error {
	return a.stored().Conflicts(ctx, yield)
}

func (s stored) Conflicts(_ context.Context, yield func(api.Conflict) error) error {
	if s.spool == nil {
		return nil
	}
	all, err := forward.Conflicts(s.spool.Journal())
	for i := range all {
		c := &all[i]
		out := api.Conflict{OpID: c.ID.String(), Kind: c.Kind, ID: c.Target, Wanted: c.Wanted, Detail: c.Detail, At: c.Found}
		var current any
		switch {
		case c.Claim != nil:
			current = claimOf(c.Claim)
		case c.Case != nil:
			current = caseOf(c.Case, c.Target, false)
		}
		if out.Current, err = json.Marshal(current); err != nil {
			return err
		}
		if err := yield(out); err != nil {
			return err
		}
	}
	return err
}

var nameOfPerson = regexp.MustCompile(`^[\pL\pN][\pL\pN ._-]{0,63}$`)

// ResolveConflicts takes conflicts off the list; see api.Operations. That is a decision too, and the audit has it.
func (a *agent) ResolveConflicts(ctx context.Context, q api.Resolution) (int, error) {
	if !nameOfPerson.MatchString(q.By) {
		return 0, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_by", Detail: "cannot use by: it is no name", Hint: "name who has seen to the conflicts, with letters, digits, blanks, dots and hyphens"}
	}
	ids := make([]idem.EventID, len(q.OpIDs))
	for i, text := range q.OpIDs {
		var err error
		if ids[i], err = idem.ParseEventID(text); err != nil {
			return 0, &api.Error{Status: http.StatusUnprocessableEntity, Reason: "bad_op_id", Detail: err.Error(), Hint: "send op_ids as scanonce conflicts lists them"}
		}
	}
	journal := a.spool.Journal()
	seen := slices.DeleteFunc(journal.Conflicts(), func(c spool.Conflict) bool { return !slices.Contains(ids, c.ID) })
	if len(seen) == 0 {
		return 0, nil
	}
	at := a.clock.Now().T
	var failed error
	err := a.inPipeline(ctx, func(b *spool.Batch) func(error) { // first, so that no crash leaves a decision without its note
		for _, c := range seen {
			b.Note(spool.Line{Event: spool.NewEvent(at), At: at, Ref: c.ID, Outcome: string(ledger.Notice), Reason: "conflict_resolved by " + q.By})
		}
		return func(err error) { failed = err }
	})
	if err != nil {
		return 0, firstOf(err)
	}
	if failed != nil {
		return 0, unkept(failed)
	}
	resolved, err := journal.Resolve(ids)
	if err != nil {
		return 0, unkept(err)
	}
	for _, c := range resolved {
		a.log.Info("a conflict was seen to", "op_id", c.ID.String(), "kind", c.Kind, "by", q.By)
	}
	a.watchConflicts()
	return len(resolved), nil
}
