package world

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"scanonce/capture"
	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/spool"
	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/ledger"
	"scanonce/sync/pacase"
	"scanonce/window"
)

// intent is an operation that a pharmacy system wants to be done, however often it must ask.
type intent struct {
	n    int
	plan *opPlan
	node *node
	id   string // correlation id or case id
	key  string
	cost claimstate.Cost // no other has it: it tells whose doing a claim's state is

	put    api.ClaimPut
	move   api.ClaimAdvance
	pend   api.PendRequest
	change api.Transition

	op       string // what the answers call it; "" for not known
	queuedAs string // the id that a queued pend with a key was told
	created  *bool  // as the answers say
}

// call is one attempt at an intent.
type call struct {
	in    *intent
	node  *node
	born  int
	at    int64          // by the oracle's clock
	seen  map[string]int // versions of cases that somebody was told before
	actor *actor
}

// reply is an agent's answer.
type reply struct {
	op, result string
	claim      *api.Claim
	kase       *api.Case
	err        error
}

// known is what the pharmacy system believes of a claim or a case.
type known struct {
	version int64
	at      string // node or state
}

// pms is a part of the pharmacy system. All share what they know.
type pms struct {
	w     *world
	p     *pmsPlan
	pos   int
	tries int
	again bool
	done  bool
}

// tokenOf is the token of a label.
func tokenOf(label string) string {
	s, err := capture.NewRxSecret(facility, []byte(secret))
	if err != nil {
		panic(err)
	}
	return s.Token(capture.Rx{Rx: capture.Secret(strings.TrimPrefix(label, "RX"))})
}

// claimOf is the correlation id of a fill's claim.
func claimOf(token string) string {
	sum := sha256.Sum256([]byte("claim|" + token))
	return hex.EncodeToString(sum[:])[:32]
}

// claimNamed is a claim of the plan: a fill's, or one that nobody scans for.
func claimNamed(which int) (id, token string) {
	token = tokenOf(labels[which%len(labels)])
	if which < len(labels) {
		return claimOf(token), token
	}
	return fmt.Sprintf("corr-%d", which), token
}

// next does the next thing.
func (u *pms) next() {
	if u.pos == len(u.p.ops) {
		u.done = true
		return
	}
	it := &u.p.ops[u.pos]
	u.pos++
	u.w.after(it.gap, func() {
		u.tries, u.again = it.tries, it.repeat
		u.send(u.w.oracle.intend(it))
	})
}

// send asks the agent.
func (u *pms) send(in *intent) {
	w, n := u.w, in.node
	if n.stage == nil || n.dead || n.booting != nil || n.asleep() {
		u.unanswered(in)
		return
	}
	n.release(nil)
	c := w.oracle.begins(in)
	stage := n.stage
	a := &actor{call: c}
	n.calls = append(n.calls, c)
	c.actor = a
	if w.beginAs(a, func() {
		r := in.ask(stage.Operations())
		n.poke()
		if n.dead || n.born != c.born {
			w.oracle.unanswered(c)
			w.after(0, func() { u.unanswered(in) })
			return
		}
		if w.oracle.answered(c, r) {
			w.after(0, func() { u.answered(in) })
		} else {
			w.after(0, func() { u.unanswered(in) })
		}
	}) == nil {
		c.actor = nil
		n.calls = n.calls[:len(n.calls)-1]
	}
}

func (u *pms) unanswered(in *intent) {
	if u.tries == 0 {
		u.next()
		return
	}
	u.tries--
	u.w.after(in.plan.pause, func() { u.send(in) })
}

func (u *pms) answered(in *intent) {
	if !u.again {
		u.next()
		return
	}
	u.again = false
	u.w.after(in.plan.pause, func() { u.send(in) })
}

// ask makes the request.
func (in *intent) ask(o api.Operations) (r reply) {
	ctx := context.Background()
	switch in.plan.kind {
	case "put", "advance":
		var c api.ClaimResult
		if in.plan.kind == "put" {
			c, r.err = o.PutClaim(ctx, in.key, in.id, in.put)
		} else {
			c, r.err = o.AdvanceClaim(ctx, in.key, in.id, in.move)
		}
		r.op, r.result, r.claim = c.OpID, c.Result, c.State
	case "claim":
		var c api.Claim
		if c, r.err = o.Claim(ctx, in.id); r.err == nil {
			r.claim = &c
		}
	case "case":
		var c api.Case
		if c, r.err = o.Case(ctx, in.id); r.err == nil {
			r.kase = &c
		}
	default:
		var c api.CaseResult
		if in.plan.kind == "pend" {
			c, r.err = o.Pend(ctx, in.key, in.pend)
		} else {
			c, r.err = o.TransitionCase(ctx, in.key, in.id, in.change)
		}
		r.op, r.result, r.kase = c.OpID, c.Result, c.Case
	}
	return r
}

// operations is what the oracle knows of claims and cases.
type operations struct {
	intents []*intent
	clock   int64
	claims  map[string]known
	cases   map[string]known
	caseIDs []string                   // that somebody was told, in that order
	costs   map[claimstate.Cost]string // the operation that goes out with it
	queued  map[string]*intent         // by operation id, those that were told to be
	since   map[string]int64           // and when
	done    map[string]*intent         // those that were told to be done
	pended  map[string]string          // ids that a pend was told, and the last one
	opened  map[string]string          // by case: the event that was told to have opened it
	seen    map[string]int             // by case: the version that somebody was told last
	history map[string]*adjudication

	conflicts int // at the end
}

func newOperations() operations {
	return operations{claims: map[string]known{}, cases: map[string]known{}, costs: map[claimstate.Cost]string{}, queued: map[string]*intent{},
		since: map[string]int64{}, done: map[string]*intent{}, pended: map[string]string{}, opened: map[string]string{}, seen: map[string]int{}, history: map[string]*adjudication{}}
}

func (o *operations) tick() int64 {
	o.clock++
	return o.clock
}

// intend makes of a plan what its maker would ask for now.
func (o *oracle) intend(it *opPlan) *intent {
	in := &intent{n: len(o.intents), plan: it, node: o.w.nodes[it.node]}
	o.intents = append(o.intents, in)
	in.cost = claimstate.Cost(fmt.Sprintf("%d.%02d", 1+in.n/100, in.n%100))
	if it.keyed {
		in.key = fmt.Sprintf("key-%d", in.n)
	}
	older := func(v int64) int64 {
		if it.stale && v > 1 {
			v--
		}
		return v
	}
	switch it.kind {
	case "put", "advance", "claim":
		id, token := claimNamed(it.which)
		in.id = id
		in.put = api.ClaimPut{RxRefToken: token, IngredientCost: string(in.cost)}
		k, ok := o.operations.claims[id]
		if !ok {
			k = known{1, string(claimstate.Ingested)}
		}
		to, reject := moveOf(claimstate.Node(k.at), it.pick)
		cost := string(in.cost)
		in.move = api.ClaimAdvance{ExpectedVersion: older(k.version), Node: string(to), IngredientCost: &cost}
		if reject != "" {
			in.move.RejectCode = &reject
		}
	case "pend":
		q := it.which % 3
		in.pend = api.PendRequest{MemberToken: []string{"MTOK_9f2a", "MTOK_77c1", "MTOK_77c1"}[q], GPI: []string{"27100010100320", "27100010100320", "58160020100310"}[q]}
		if it.pick%3 == 0 {
			day := []string{"2026-03-01", "2026-03-02", "2026-03-03"}[it.pick/3%3]
			in.pend.RequestWindow = &day
		}
	default:
		in.id = "1d12207def3071d4c706b6279fb28084"
		k := known{1, "PENDING"}
		if n := len(o.caseIDs); n > 0 {
			in.id = o.caseIDs[n-1-it.pick%min(n, 3)]
			k = o.operations.cases[in.id]
		}
		next := map[string][]string{"PENDING": {"IN_REVIEW"}, "IN_REVIEW": {"DENIED", "APPROVED", "DENIED", "CANCELLED", "EXPIRED"}, "DENIED": {"APPEALED"}, "APPEALED": {"APPROVED", "DENIED"}}[k.at]
		if next == nil {
			next = []string{"IN_REVIEW"}
		}
		in.change = api.Transition{ExpectedVersion: int(older(k.version)), To: next[it.pick%len(next)]}
	}
	return in
}

// ways are the moves of a claim without a reject code.
var ways = map[claimstate.Node][]claimstate.Node{
	claimstate.Ingested:            {claimstate.Normalized},
	claimstate.Normalized:          {claimstate.TaxonomyResolved},
	claimstate.TaxonomyResolved:    {claimstate.EligibilityVerified},
	claimstate.EligibilityVerified: {claimstate.PricingCalculated},
	claimstate.PricingCalculated:   {claimstate.PAEvaluated},
	claimstate.PAEvaluated:         {claimstate.PAPended, claimstate.ResponseDispatched},
	claimstate.PAPended:            {claimstate.PAEvaluated},
}

// moveOf is one of the moves from a node.
func moveOf(from claimstate.Node, pick int) (to claimstate.Node, reject string) {
	next := ways[from]
	if len(next) == 0 || pick%8 == 0 {
		return claimstate.ResponseDispatched, "70"
	}
	return next[pick%len(next)], ""
}

func (o *oracle) begins(in *intent) *call {
	o.w.mark("asks-"+in.plan.kind, in.node, uint64(in.n))
	if o.w.verbose {
		o.w.note("intent %d at %s: %s %s key=%q version %d %s%d %s %s", in.n, in.node.id, in.plan.kind, in.id, in.key, in.move.ExpectedVersion, in.move.Node, in.change.ExpectedVersion, in.change.To, in.pend.MemberToken)
	}
	return &call{in: in, node: in.node, born: in.node.born, at: o.tick(), seen: maps.Clone(o.seen)}
}

// unanswered notes an attempt of which nobody knows what came.
func (o *oracle) unanswered(c *call) {
	if o.w.verbose {
		o.w.note("intent %d: no answer", c.in.n)
	}
	o.adjudicate(c, adjAnswer{})
}

// answered checks an answer, and says whether it is one: who is told that nothing was taken may try again.
func (o *oracle) answered(c *call, r reply) bool {
	w, in := o.w, c.in
	if w.verbose {
		w.note("intent %d: %s", in.n, r.text())
	}
	w.mark("answer-"+r.result, c.node, uint64(in.n))
	if r.err != nil {
		var e *api.Error
		if !errors.As(r.err, &e) {
			w.fail("intent %d: an error without a status: %v", in.n, r.err)
		}
		switch e.Status {
		case 503:
			o.adjudicate(c, adjAnswer{})
			return false
		case 404:
			o.adjudicate(c, adjAnswer{kind: adjMissing})
			if in.plan.kind == "case" && o.operations.seen[in.id] > 0 {
				w.fail("I12: an id that was told as a case's, %s, leads nowhere", in.id)
			}
		case 422: // a move that cannot be
			if e.Reason != "illegal_move" {
				w.fail("intent %d is refused: %v", in.n, r.err)
			}
		default:
			w.fail("intent %d: status %d: %v", in.n, e.Status, r.err)
		}
		return true
	}
	if r.op != "" {
		pend := in.plan.kind == "pend" && in.key == ""
		if in.op != "" && in.op != r.op && !pend {
			w.fail("intent %d is told under another operation id at the second try", in.n)
		}
		in.op = r.op
	}
	if r.kase != nil {
		o.told(c, r)
	}
	if r.result == api.ResultQueued {
		o.queued[r.op] = in
		o.since[r.op] = o.tick()
		o.adjudicate(c, adjAnswer{})
		if in.plan.kind == "put" || in.plan.kind == "advance" {
			o.guess(in)
		}
		return true
	}
	switch in.plan.kind {
	case "put", "advance", "claim":
		a := adjAnswer{kind: map[string]adjKind{api.ResultCreated: adjMade, api.ResultAdvanced: adjMade, api.ResultAlreadyMine: adjMine, api.ResultConflict: adjOther,
			api.ResultMissing: adjMissing, "": adjOther}[r.result]}
		if r.claim != nil {
			a.version, a.node, a.cost = r.claim.Version, claimstate.Node(r.claim.Node), claimstate.Cost(r.claim.IngredientCost)
			o.operations.claims[in.id] = known{r.claim.Version, r.claim.Node}
		} else {
			delete(o.operations.claims, in.id)
		}
		o.adjudicate(c, a)
		if r.result == api.ResultConflict && a.cost == in.cost {
			w.fail("intent %d was told a conflict by its own doing", in.n)
		}
		if a.kind == adjMade || a.kind == adjMine {
			o.done[r.op] = in
		}
	case "pend":
		o.done[r.op] = in
	case "transition":
		if r.result == "" {
			o.done[r.op] = in
		}
	}
	if o.done[r.op] != nil && !o.is(in, r.op) {
		w.fail("intent %d was told to be done, and is not", in.n)
	}
	return true
}

func (r *reply) text() string {
	if r.err != nil {
		return r.err.Error()
	}
	b, _ := json.Marshal([]any{r.result, r.op, r.claim, r.kase})
	return string(b)
}

// guess is what the pharmacy system takes for granted once its operation is queued.
func (o *oracle) guess(in *intent) {
	if in.plan.kind == "put" {
		o.operations.claims[in.id] = known{1, string(claimstate.Ingested)}
	} else {
		o.operations.claims[in.id] = known{in.move.ExpectedVersion + 1, in.move.Node}
	}
}

// told checks what an answer says of a case.
func (o *oracle) told(c *call, r reply) {
	w, k, in := o.w, r.kase, c.in
	approved := k.State != nil && *k.State == pacase.Approved.String()
	if (k.RejectCode == nil) != approved || k.RejectCode != nil && *k.RejectCode != pacase.RejectPriorAuthorization {
		w.fail("intent %d: a claim would be paid on a case that is not approved", in.n)
	}
	for _, id := range []string{k.CaseID, k.RequestedID} {
		if in.plan.kind == "pend" {
			o.pended[id] = r.op
		}
		if _, ok := o.operations.cases[id]; !ok {
			o.caseIDs = append(o.caseIDs, id)
			o.operations.cases[id] = known{1, "PENDING"}
		}
	}
	if r.result == api.ResultQueued {
		if in.plan.kind == "pend" && in.key != "" {
			if in.queuedAs != "" && in.queuedAs != k.RequestedID && !o.is(in, r.op) {
				w.fail("I12: intent %d waits as %s, and is told %s", in.n, in.queuedAs, k.RequestedID)
			}
			in.queuedAs = k.RequestedID
		}
		if k.State != nil || k.Version != nil || k.Created != nil {
			w.fail("intent %d: a queued request tells of a case's state", in.n)
		}
		return
	}
	if k.State == nil || k.Version == nil || k.Created == nil {
		w.fail("intent %d: the answer says nothing of the case", in.n)
	}
	if s := w.cases.stood[caseVersion{k.CaseID, *k.Version}]; s.String() != *k.State {
		w.fail("intent %d: a case is told to be %s at version %d, and is %s", in.n, *k.State, *k.Version, s)
	}
	if *k.Version < c.seen[k.CaseID] {
		w.fail("I12: intent %d: a case goes back from version %d to %d", in.n, c.seen[k.CaseID], *k.Version)
	}
	o.seen[k.CaseID] = max(o.seen[k.CaseID], *k.Version)
	for _, id := range []string{k.CaseID, k.RequestedID} {
		o.operations.cases[id] = known{int64(*k.Version), *k.State}
		if of := w.cases.refs[id]; of == nil || of.ID != k.CaseID {
			w.fail("I12: intent %d: the id %s does not lead to the case", in.n, id)
		}
	}
	if in.plan.kind != "pend" {
		return
	}
	if in.key != "" && in.created != nil && *in.created != *k.Created {
		w.fail("I12: intent %d is told created=%v, and was told otherwise", in.n, *k.Created)
	}
	in.created = k.Created
	if *k.Created {
		o.creates(k.CaseID, r.op)
	}
}

// creates notes who was told to have opened a case.
func (o *oracle) creates(id, op string) {
	if by, ok := o.opened[id]; ok && by != op {
		o.w.fail("I12: two events are told that they opened the case %s", id)
	}
	o.opened[id] = op
}

// is says that an operation has had its effect.
func (o *oracle) is(in *intent, op string) bool {
	if in.plan.kind == "put" || in.plan.kind == "advance" {
		return o.w.states.ops[op] != nil
	}
	id, err := idem.ParseEventID(op)
	if err != nil {
		o.w.fail("intent %d has no operation id", in.n)
	}
	if _, ok := o.w.cases.pends[pacase.UUID(id)]; in.plan.kind == "pend" {
		return ok
	}
	return o.w.cases.moves[pacase.UUID(id)]
}

// sends checks an operation on a claim that goes out: under the same id at every attempt, for a scan only if the claim
// is made for that one, and not in front of what waits.
func (o *oracle) sends(n *node, id, op string, cost claimstate.Cost) {
	if event, ok := isScan(op); ok {
		if o.w.rows.asks[id].event != event {
			o.w.fail("I9: the claim %s is made for a scan that does not have it", id)
		}
	} else if before, ok := o.costs[cost]; ok && before != op {
		o.w.fail("I6: an operation on %s goes out under another id than before", id)
	} else {
		o.costs[cost] = op
	}
	o.overtakes(n, "claim|"+id)
}

// overtakes checks that an operation that is tried at once has nothing of its subject in front of it.
func (o *oracle) overtakes(n *node, subject string) {
	a := o.w.current
	if a == nil || a.call == nil || n.dead || a.call.in.plan.kind == "claim" {
		return
	}
	for _, op := range n.stage.Spool().Journal().Heads(1, func(op *spool.Operation) bool { return op.Subject == subject }) {
		if since, ok := o.since[op.ID.String()]; ok && since < a.call.at {
			o.w.fail("intent %d overtakes one that was queued before", a.call.in.n)
		}
	}
}

// asksFor checks a scan that asks the ledger for its claim: it has a row there.
func (o *oracle) asksFor(q ledger.Ingest) {
	r := o.w.rows.events[q.Event]
	if r == nil || r.Type != window.Dispense || r.RxToken == "" || claimOf(r.RxToken) != q.Claim {
		o.w.fail("I9: a claim is asked for without a row of that event")
	}
}

// effect checks what an operation does to a claim: no operation does anything twice, and what a scan asks for does not
// come to life again. A request that was sent while the claim lived may arrive a little later.
func (o *oracle) effect(id string, e, before *effect) {
	w := o.w
	if w.verbose {
		w.note("claim %s is at version %d by %s", id, e.version, e.op)
	}
	all := w.states.effects[id]
	event, scan := isScan(e.op)
	if !scan {
		// A put whose every reply was lost makes the next claim of that id once the first one's time is over, and whoever asks
		// for a move again may move that one.
		if before != nil && !before.lost && !e.creates && !slices.ContainsFunc(all[slices.Index(all, before)+1:], func(b *effect) bool { return b.creates }) {
			w.fail("I9: an operation on %s is done twice", id)
		}
		return
	}
	if r := o.events[event]; r != nil && r.node.wallOff.Abs() > time.Second {
		return // started with a wrong clock, it cannot know how old its operation is
	}
	ask := w.rows.asks[id]
	for _, b := range all {
		if b != e && b.creates && !b.lost && b.at >= ask.at && e.at > ask.at+w.plan.life+w.states.reach() {
			w.fail("I9: the claim %s was over, and the scan that asked for it %v before makes it again", id, e.at-ask.at)
		}
	}
}

// operated holds the quiet world to what was said of operations.
func (o *oracle) operated() {
	w := o.w
	conflicts := map[string]forward.Conflict{}
	for _, n := range w.nodes {
		all, err := forward.Conflicts(n.stage.Spool().Journal())
		if err != nil {
			w.fail("%s cannot list its conflicts: %v", n.id, err)
		}
		for _, c := range all {
			conflicts[c.ID.String()] = c
			for _, in := range o.intents {
				if c.Claim != nil && c.Claim.IngredientCost == in.cost && in.op == c.ID.String() {
					w.fail("intent %d is a conflict by its own doing", in.n)
				}
			}
		}
		o.outcomes(n)
	}
	o.conflicts = len(conflicts)
	for op, in := range o.queued {
		if _, ok := conflicts[op]; !ok && !o.is(in, op) {
			w.fail("intent %d was queued, and is neither done nor a conflict", in.n)
		}
	}
	for _, r := range w.rows.order {
		if r.Type != window.Dispense || r.RxToken == "" {
			continue
		}
		id := claimOf(r.RxToken)
		if !w.rows.asked[r.Event] {
			w.fail("I9: a row of a fill has not asked for its claim")
		}
		if _, ok := conflicts[w.rows.asks[id].event.String()]; !ok && len(w.states.effects[id]) == 0 {
			w.fail("I9: a fill has no claim")
		}
	}
	for id, op := range o.pended {
		if _, ok := conflicts[op]; ok || w.cases.refs[id] != nil {
			continue
		}
		if event, err := idem.ParseEventID(op); err == nil && w.cases.pends[pacase.UUID(event)].ref != "" && w.nextDay(op) {
			continue // the first attempt was on the day before, and nobody knew that it had arrived
		}
		w.fail("I12: the id %s was told, and leads nowhere", id)
	}
	for _, c := range w.cases.order {
		op := idem.EventID(c.CreatedBy).String()
		in := o.queued[op]
		if in == nil {
			in = o.done[op]
		}
		if in != nil && o.opened[c.ID] != op && !in.node.powerCut {
			w.fail("I12: intent %d has opened the case %s, and nobody was told", in.n, c.ID)
		}
	}
}

// nextDay says that a pend was asked for again with its key, and that its question is of the day of each request.
func (w *world) nextDay(op string) bool {
	in := w.oracle.queued[op]
	return in != nil && in.key != "" && in.pend.RequestWindow == nil
}

// outcomes checks what an agent has told of operations that were queued.
func (o *oracle) outcomes(n *node) {
	text, _ := os.ReadFile(filepath.Join(n.dir, "events.log"))
	heard := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		i := strings.IndexByte(line, '{')
		var e struct {
			Kind    string    `json:"kind"`
			Op      string    `json:"op_id"`
			Name    string    `json:"op"`
			Result  string    `json:"result"`
			Case    *api.Case `json:"case"`
			Created *bool     `json:"created"`
		}
		if i < 0 || json.Unmarshal([]byte(line[i:]), &e) != nil || e.Kind != "operation" {
			continue
		}
		heard[e.Op] = true
		in := o.queued[e.Op]
		if in != nil && e.Result == "done" && !o.is(in, e.Op) {
			o.w.fail("%s tells that intent %d is done, and it is not", n.id, in.n)
		}
		if e.Created != nil && *e.Created {
			o.creates(e.Case.CaseID, e.Op)
		}
	}
	if n.powerCut {
		return
	}
	for op, in := range o.queued {
		if in.node == n && !heard[op] {
			o.w.fail("%s has not told what became of intent %d", n.id, in.n)
		}
	}
}
