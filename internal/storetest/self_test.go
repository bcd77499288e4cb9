package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// recorder is a testing.TB that notes failures and passes none on.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	log    []string
}

func (r *recorder) fail(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.log = append(r.log, s)
}

func (r *recorder) Error(args ...any)                 { r.fail(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) { r.fail(fmt.Sprintf(format, args...)) }
func (r *recorder) Fatal(args ...any)                 { r.Error(args...); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Fail()                             { r.fail("") }
func (r *recorder) FailNow()                          { r.fail(""); runtime.Goexit() }
func (r *recorder) Failed() bool                      { return r.failed }
func (r *recorder) Helper()                           {}

// record runs f against a recorder and returns what it complained of.
func record(t *testing.T, f func(tb testing.TB)) (failed bool, log []string) {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() { // of its own, so that Fatal ends it alone
		defer close(done)
		f(r)
	}()
	<-done
	return r.failed, r.log
}

// Every fault that the suite claims to detect makes its case fail, and none fails without a fault.
func TestAuthoritySuiteDetects(t *testing.T) {
	cases := authorityCases()
	names := map[string]func(testing.TB, AuthorityFixture){}
	for _, c := range cases {
		names[c.name] = c.run
		if failed, log := record(t, func(tb testing.TB) { c.run(tb, fakeAuthority("")) }); failed {
			t.Errorf("%s fails on a sound authority: %q", c.name, log)
		}
	}
	detected := map[string]bool{"won": true} // the other cases begin with a won claim
	for fault, name := range map[string]string{
		"never wins":              "won",
		"idem not claimed":        "held",
		"holder not named":        "held",
		"value 1":                 "re-entrant",
		"edge not claimed":        "edge held",
		"edge holder named first": "edge held",
		"both or none":            "refused keys are kept",
		"kinds mixed":             "kinds are apart",
		"no expiry":               "expiry",
		"expires early":           "expiry",
		"prolongs":                "holder does not prolong",
		"flush keeps keys":        "flush",
		"answers reversed":        "batch order",
		"batch does not see self": "duplicates in a batch",
		"cancelled claims":        "cancelled",
		"closed claims":           "closed",
		"broken claims":           "broken",
		"broken is held":          "broken",
		"check, then set":         "64 claimers",
	} {
		detected[name] = true
		if failed, _ := record(t, func(tb testing.TB) { names[name](tb, fakeAuthority(fault)) }); !failed {
			t.Errorf("case %q does not detect the fault %q", name, fault)
		}
	}
	for name := range names {
		if !detected[name] {
			t.Errorf("no fault proves case %q", name)
		}
	}
}

// authority is a store of claims with a fault.
type authority struct {
	fault string

	mu     sync.Mutex
	now    time.Duration
	held   map[idem.Key]claimed
	broken bool
}

type claimed struct {
	by    idem.EventID
	until time.Duration
}

type authorityHandle struct {
	*authority
	closed *bool
}

func fakeAuthority(fault string) AuthorityFixture {
	a := &authority{fault: fault, held: map[idem.Key]claimed{}}
	locked := func(f func()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		f()
	}
	return AuthorityFixture{
		Open: func(testing.TB) idem.Authority { return authorityHandle{a, new(bool)} },
		TTL:  time.Minute,
		Pass: func(_ testing.TB, d time.Duration) { locked(func() { a.now += d }) },
		Flush: func(testing.TB) {
			if fault != "flush keeps keys" {
				locked(func() { clear(a.held) })
			}
		},
		Break: func(testing.TB) { locked(func() { a.broken = true }) },
	}
}

func (h authorityHandle) Close() error { *h.closed = true; return nil }

func (h authorityHandle) Claim(ctx context.Context, claims []idem.Claim) []idem.Outcome {
	a := h.authority
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]idem.Outcome, len(claims))
	if ctx.Err() != nil && a.fault != "cancelled claims" || *h.closed && a.fault != "closed claims" || a.broken && a.fault != "broken claims" {
		for i := range out {
			out[i] = idem.Unknown(errors.New("cannot claim"))
			if a.broken && a.fault == "broken is held" {
				out[i] = idem.Held(eventID(1))
			}
		}
		return out
	}
	before := map[idem.Key]claimed{}
	if a.fault == "batch does not see self" {
		for k, v := range a.held {
			before[k] = v
		}
	} else {
		before = a.held
	}
	for i, c := range claims {
		out[i] = a.claim(before, c)
	}
	if a.fault == "answers reversed" {
		slices.Reverse(out)
	}
	return out
}

func (a *authority) claim(before map[idem.Key]claimed, c idem.Claim) idem.Outcome {
	idemKey, edgeKey := c.Keys.Idem, c.Keys.Edge
	switch a.fault {
	case "never wins":
		return idem.Unknown(errors.New("cannot claim"))
	case "edge not claimed":
		edgeKey = idem.Key{}
	case "idem not claimed":
		idemKey = idem.Key{}
	case "kinds mixed":
		idemKey.Kind, edgeKey.Kind = 9, 9*min(1, edgeKey.Kind)
	}
	edge, edgeFree := a.holder(before, edgeKey)
	by, idemFree := a.holder(before, idemKey)
	refused := !edgeFree && edge != c.Event || !idemFree && by != c.Event
	if a.fault == "check, then set" {
		a.mu.Unlock()
		runtime.Gosched()
		a.mu.Lock()
	}
	if !refused || a.fault != "both or none" {
		a.set(edgeKey, edgeFree, c.Event)
		a.set(idemKey, idemFree, c.Event)
	}
	if a.fault == "value 1" && (!edgeFree || !idemFree) {
		return idem.Held(idem.EventID{})
	}
	switch {
	case refused && a.fault == "holder not named":
		return idem.Held(idem.EventID{})
	case a.fault == "edge holder named first" && !edgeFree && edge != c.Event:
		return idem.Held(edge)
	case !idemFree && by != c.Event:
		return idem.Held(by)
	case !edgeFree && edge != c.Event:
		return idem.Held(edge)
	}
	return idem.Won()
}

func (a *authority) holder(held map[idem.Key]claimed, k idem.Key) (by idem.EventID, free bool) {
	h, ok := held[k]
	if k.IsZero() || !ok || a.now >= h.until && a.fault != "no expiry" {
		return by, true
	}
	return h.by, false
}

func (a *authority) set(k idem.Key, free bool, by idem.EventID) {
	ttl := time.Minute
	if a.fault == "expires early" {
		ttl /= 4
	}
	switch {
	case k.IsZero():
	case free:
		a.held[k] = claimed{by, a.now + ttl}
	case a.fault == "prolongs":
		a.held[k] = claimed{a.held[k].by, a.now + ttl}
	}
}

// Every fault that the suite claims to detect makes its case fail, and none fails without a fault.
func TestLedgerSuiteDetects(t *testing.T) {
	names := map[string]func(testing.TB, LedgerFixture){}
	for _, c := range ledgerCases() {
		names[c.name] = c.run
		if failed, log := record(t, func(tb testing.TB) { c.run(tb, fakeLedger("")) }); failed {
			t.Errorf("%s fails on a sound ledger: %q", c.name, log)
		}
	}
	detected := map[string]bool{}
	for fault, name := range map[string]string{
		"drops the serial":          "every column comes back",
		"drops flags":               "every column comes back",
		"null level is 0":           "every column comes back",
		"no unique idem":            "unique keys across calls",
		"no unique edge":            "unique keys across calls",
		"no unique event":           "unique keys across calls",
		"stops at a taken key":      "unique keys across calls",
		"zero edge is a key":        "unique keys across calls",
		"call does not see itself":  "unique keys within a call",
		"refused keeps its edge":    "a refused row leaves nothing",
		"refused keeps its event":   "a refused row leaves nothing",
		"receipt for a row there":   "lost reply",
		"own row not found":         "lost reply",
		"edge found by idem":        "standing",
		"answers by event":          "standing",
		"poison stops the call":     "poison",
		"poison not named":          "poison",
		"takes any quantity":        "poison",
		"line replaced":             "lines are idempotent",
		"line twice":                "lines are idempotent",
		"takes any line":            "lines that do not belong",
		"record replaced":           "chain",
		"chain mixes agents":        "chain",
		"chain as it came":          "chain of one",
		"takes any record":          "chain records that contradict themselves",
		"claim taken over":          "a claim is one scan's",
		"claim of the call":         "a claim is one scan's",
		"claim forgotten":           "a claim is one scan's",
		"rows have no line":         "no row without its line",
		"bypass not told":           "no row without its line",
		"key finds its row only":    "no row without its line",
		"order of keys":             "order of commit",
		"until included":            "spans",
		"from excluded":             "spans",
		"odd digit cut":             "find by prefix",
		"no limit":                  "find by prefix",
		"any prefix":                "find by prefix",
		"consumer's error is lost":  "yield",
		"consumer is not heard":     "yield",
		"check, then insert":        "8 inserters",
		"cancelled works":           "cancelled",
		"forgets rows at restart":   "restart",
		"forgets edges at restart":  "restart",
		"works closed":              "closed",
		"closed without an error's": "closed",
	} {
		detected[name] = true
		if failed, _ := record(t, func(tb testing.TB) { names[name](tb, fakeLedger(fault)) }); !failed {
			t.Errorf("case %q does not detect the fault %q", name, fault)
		}
	}
	for name := range names {
		if !detected[name] {
			t.Errorf("no fault proves case %q", name)
		}
	}
}

// memory is a ledger in memory with a fault.
type memory struct {
	fault string

	mu     sync.Mutex
	now    window.UTC
	rows   []ledger.Row
	log    []ledger.Line // of the rows too
	chain  []ledger.ChainRecord
	claims map[string]idem.EventID
	idems  map[idem.Key]idem.EventID
	edges  map[idem.Key]idem.EventID
	events map[idem.EventID]bool
}

type memoryHandle struct {
	*memory
	closed *bool
}

func fakeLedger(fault string) LedgerFixture {
	m := &memory{fault: fault, now: capturedAt, claims: map[string]idem.EventID{}, idems: map[idem.Key]idem.EventID{}, edges: map[idem.Key]idem.EventID{}, events: map[idem.EventID]bool{}}
	return LedgerFixture{Shared: true, Open: func(testing.TB) ledger.Ledger { return memoryHandle{m, new(bool)} }}
}

func (h memoryHandle) Close() error {
	*h.closed = true
	switch h.fault {
	case "forgets rows at restart":
		h.rows, h.log = nil, nil
	case "forgets edges at restart":
		clear(h.edges)
	}
	return nil
}

func (h memoryHandle) ready(ctx context.Context) error {
	if *h.closed && h.fault == "closed without an error's" {
		return errors.New("database not open")
	}
	if *h.closed && h.fault != "works closed" {
		return errors.New("cannot use a closed ledger")
	}
	if h.fault == "cancelled works" {
		return nil
	}
	return ctx.Err()
}

func (h memoryHandle) Insert(ctx context.Context, rows []ledger.Row) (in ledger.Inserted, err error) {
	if err := h.ready(ctx); err != nil {
		return in, err
	}
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now++
	var added []ledger.Row
	taken := func(r ledger.Row) bool {
		_, idemTaken := m.idems[r.Keys.Idem]
		_, edgeTaken := m.edges[r.Keys.Edge]
		edgeTaken = edgeTaken && (!r.Keys.Edge.IsZero() || m.fault == "zero edge is a key")
		return idemTaken && m.fault != "no unique idem" || edgeTaken && m.fault != "no unique edge" ||
			m.events[r.Event] && m.fault != "no unique event"
	}
	add := func(r ledger.Row) {
		m.rows = append(m.rows, r)
		m.log = append(m.log, r.Line())
		m.idems[r.Keys.Idem], m.events[r.Event] = r.Event, true
		if !r.Keys.Edge.IsZero() || m.fault == "zero edge is a key" {
			m.edges[r.Keys.Edge] = r.Event
		}
	}
	for _, r := range rows {
		if detail := m.poison(r); detail != "" {
			if m.fault == "poison stops the call" {
				return in, errors.New("cannot insert: " + detail)
			}
			if m.fault != "poison not named" {
				in.Poison = append(in.Poison, ledger.Poison{Event: r.Event, Detail: detail})
			}
			continue
		}
		busy := taken(r)
		if m.fault == "check, then insert" {
			m.mu.Unlock()
			runtime.Gosched()
			m.mu.Lock()
		}
		if busy {
			switch {
			case m.fault == "stops at a taken key":
				return in, nil
			case m.fault == "receipt for a row there" && m.events[r.Event]:
				in.Receipts = append(in.Receipts, ledger.Receipt{Event: r.Event, CommittedAt: m.now})
			case m.fault == "refused keeps its edge" && m.edges[r.Keys.Edge].IsZero():
				m.edges[r.Keys.Edge] = r.Event
			case m.fault == "refused keeps its event":
				m.events[r.Event] = true
			}
			continue
		}
		r.CommittedAt = m.now
		switch m.fault {
		case "drops the serial":
			r.Serial = ""
		case "drops flags":
			r.Flags = nil
		case "null level is 0":
			r.PkgLevel = max(r.PkgLevel, 0)
		}
		if m.fault == "call does not see itself" {
			added = append(added, r)
		} else {
			add(r)
		}
		in.Receipts = append(in.Receipts, ledger.Receipt{Event: r.Event, CommittedAt: m.now})
	}
	for _, r := range added {
		add(r)
	}
	return in, nil
}

func (m *memory) poison(r ledger.Row) string {
	if m.fault == "takes any quantity" {
		r.Quantity = 1
	}
	return r.Flaw()
}

func (h memoryHandle) Standing(ctx context.Context, probes []ledger.Probe) ([]ledger.Standing, error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	owner := func(e idem.EventID) (o ledger.Owner) {
		for _, r := range h.rows {
			if !e.IsZero() && r.Event == e {
				o = ledger.Owner{Event: r.Event, Key: r.Keys.Idem, CommittedAt: r.CommittedAt, Agent: r.Agent, Bypassed: slices.Contains(r.Flags, ledger.ClaimBypassed)}
			}
		}
		return o
	}
	out := make([]ledger.Standing, len(probes))
	for i, p := range probes {
		s := ledger.Standing{ByEvent: owner(p.Event), ByIdem: owner(h.idems[p.Keys.Idem]), ByEdge: owner(h.edges[p.Keys.Edge])}
		switch h.fault {
		case "own row not found":
			s.ByEvent = ledger.Owner{}
		case "edge found by idem":
			s.ByEdge = s.ByIdem
		case "answers by event":
			s.ByIdem = s.ByEvent
		}
		out[i] = s
	}
	return out, nil
}

func (h memoryHandle) Ingest(ctx context.Context, asks []ledger.Ingest) ([]ledger.Ingested, error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]ledger.Ingested, len(asks))
	for i, a := range asks {
		if _, ok := h.claims[a.Claim]; (!ok || h.fault == "claim taken over") && h.fault != "claim forgotten" {
			h.claims[a.Claim] = a.Event
		}
		out[i].Event = h.claims[a.Claim]
		if h.fault == "claim of the call" {
			out[i].Event = a.Event
		}
	}
	return out, nil
}

func (h memoryHandle) AppendChain(ctx context.Context, records []ledger.ChainRecord) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	for _, r := range records {
		if flaw := r.Flaw(); flaw != "" && h.fault != "takes any record" {
			return errors.New("cannot append: " + flaw)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range records {
		i := slices.IndexFunc(h.chain, func(o ledger.ChainRecord) bool {
			return o.Epoch == r.Epoch && o.Seq == r.Seq && (o.Agent == r.Agent || h.fault == "chain mixes agents")
		})
		switch {
		case i < 0:
			h.chain = append(h.chain, r)
		case h.fault == "record replaced":
			h.chain[i] = r
		}
	}
	return nil
}

func (h memoryHandle) Chain(ctx context.Context, yield func(ledger.ChainRecord) error) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	all := slices.Clone(h.chain)
	h.mu.Unlock()
	if h.fault != "chain as it came" {
		slices.SortFunc(all, func(a, b ledger.ChainRecord) int {
			return cmp.Or(strings.Compare(a.Agent, b.Agent), strings.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq))
		})
	}
	for _, r := range all {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

func (h memoryHandle) ChainHeads(ctx context.Context) (heads []ledger.ChainHead, err error) {
	err = h.Chain(ctx, func(r ledger.ChainRecord) error {
		i := slices.IndexFunc(heads, func(x ledger.ChainHead) bool { return x.Agent == r.Agent && x.Epoch == r.Epoch })
		if i < 0 {
			heads = append(heads, ledger.ChainHead{Agent: r.Agent, Epoch: r.Epoch, Seq: r.Seq})
		} else {
			heads[i].Seq = max(heads[i].Seq, r.Seq)
		}
		return nil
	})
	return heads, err
}

func (h memoryHandle) AppendLines(ctx context.Context, lines []ledger.Line) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	for _, l := range lines {
		if flaw := l.Flaw(); flaw != "" && h.fault != "takes any line" {
			return errors.New("cannot append: " + flaw)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range lines {
		l.RecordedAt = h.now
		i := slices.IndexFunc(h.log, func(o ledger.Line) bool { return o.Event == l.Event && o.Outcome != ledger.Committed })
		switch {
		case i < 0 || h.fault == "line twice":
			h.log = append(h.log, l)
		case h.fault == "line replaced":
			h.log[i] = l
		}
	}
	return nil
}

func (m *memory) within(s ledger.Span, t window.UTC) bool {
	if m.fault == "until included" && t == s.Until {
		return true
	}
	if m.fault == "from excluded" && t == s.From {
		return false
	}
	return (s.From == 0 || t >= s.From) && (s.Until == 0 || t < s.Until)
}

func (m *memory) heard(err error) (stop bool, told error) {
	switch {
	case err == nil || m.fault == "consumer is not heard":
		return false, nil
	case m.fault == "consumer's error is lost":
		return true, nil
	}
	return true, err
}

func (h memoryHandle) Rows(ctx context.Context, s ledger.Span, yield func(ledger.Row) error) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	rows := slices.Clone(h.rows)
	h.mu.Unlock()
	if h.fault == "order of keys" {
		slices.SortFunc(rows, func(a, b ledger.Row) int { return bytes.Compare(a.Keys.Idem.Hash[:], b.Keys.Idem.Hash[:]) })
	}
	for _, r := range rows {
		if h.within(s, r.CapturedAt) {
			if stop, err := h.heard(yield(r)); stop {
				return err
			}
		}
	}
	return nil
}

func (h memoryHandle) Lines(ctx context.Context, s ledger.Span, yield func(ledger.Line) error) error {
	if err := h.ready(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	lines := slices.Clone(h.log)
	h.mu.Unlock()
	for _, l := range lines {
		if l.Outcome == ledger.Committed && h.fault == "rows have no line" || !h.within(s, l.At) {
			continue
		}
		if h.fault == "bypass not told" && l.Outcome == ledger.Committed {
			l.Reason = ""
		}
		if stop, err := h.heard(yield(l)); stop {
			return err
		}
	}
	return nil
}

func (h memoryHandle) Find(ctx context.Context, prefix string, limit int) (rows []ledger.Row, err error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	if prefix == "" || len(prefix) > 64 || strings.Trim(prefix, "0123456789abcdef") != "" {
		if h.fault == "any prefix" {
			return nil, nil
		}
		return nil, errors.New("cannot search for that")
	}
	if h.fault == "odd digit cut" {
		prefix = prefix[:len(prefix)&^1]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rows {
		if strings.HasPrefix(hex.EncodeToString(r.Keys.Idem.Hash[:]), prefix) && (len(rows) < limit || h.fault == "no limit") {
			rows = append(rows, r)
		}
	}
	return rows, nil
}

func (h memoryHandle) LinesOf(ctx context.Context, key idem.Key) (lines []ledger.Line, err error) {
	if err := h.ready(ctx); err != nil {
		return nil, err
	}
	if key.Kind != idem.Idem {
		return nil, errors.New("cannot look up that key")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.log {
		if l.Key == key && (l.Outcome == ledger.Committed || h.fault != "key finds its row only") {
			lines = append(lines, l)
		}
	}
	return lines, nil
}

func (h memoryHandle) Ping(ctx context.Context) error { return h.ready(ctx) }

func (h memoryHandle) Count(ctx context.Context) (int64, error) {
	if err := h.ready(ctx); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return int64(len(h.rows)), nil
}
