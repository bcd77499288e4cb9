package storetest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"runtime"
	"strings"
	"sync"

	"scanonce/sync/pacase"
)

// paModel is what a store of prior-authorization cases must answer, in plain maps. The suite's self-test gives
// it faults; the suite's random histories compare a store with a sound one.
type paModel struct {
	fault string

	mu    sync.Mutex
	cases []*pacase.Case
	refs  map[string]*pacase.Case
	pends map[pacase.UUID]pacase.Pended // Case is not used
}

func newPAModel(fault string) *paModel {
	return &paModel{fault: fault, refs: map[string]*pacase.Case{}, pends: map[pacase.UUID]pacase.Pended{}}
}

// paMoves are the legal moves, written down a second time.
var paMoves = map[string]string{
	"PENDING":   "IN_REVIEW",
	"IN_REVIEW": "APPROVED DENIED CANCELLED EXPIRED",
	"DENIED":    "APPEALED",
	"APPEALED":  "APPROVED DENIED",
}

func paLegal(from, to pacase.State) bool {
	for _, s := range strings.Fields(paMoves[from.String()]) {
		if s == to.String() {
			return true
		}
	}
	return false
}

func paOpen(s pacase.State) bool {
	return s == pacase.Pending || s == pacase.InReview || s == pacase.Appealed
}

// derive is the derived id, computed a second time.
func (m *paModel) derive(q pacase.Question) string {
	escape := func(s string) string {
		if m.fault == "no escapes" {
			return s
		}
		return strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `|`, `\p`)
	}
	sum := sha256.Sum256([]byte(escape(q.MemberToken) + "|" + escape(q.GPI) + "|" + escape(q.Window)))
	return hex.EncodeToString(sum[:16])
}

// open finds the subject's open case, beside c.
func (m *paModel) open(member, gpi string, beside *pacase.Case) *pacase.Case {
	for _, c := range m.cases {
		if c != beside && c.MemberToken == member && c.GPI == gpi && paOpen(c.State) {
			return c
		}
	}
	return nil
}

// pause lets others in, as a check without a lock does.
func (m *paModel) pause(fault string) {
	if m.fault == fault {
		m.mu.Unlock()
		for range 50 {
			runtime.Gosched()
		}
		m.mu.Lock()
	}
}

func (m *paModel) pend(p pacase.Pend) (pacase.Pended, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.pends[p.Event]; ok && m.fault != "retry is a new pend" {
		c := m.refs[known.RequestedID]
		if c == nil { // by a fault
			return pacase.Pended{}, errors.New("the reference is lost")
		}
		if (c.MemberToken != p.MemberToken || c.GPI != p.GPI) && m.fault != "reused event answered" {
			return pacase.Pended{}, &pacase.RequestError{Field: "event_id", Detail: "reused", Hint: "make another"}
		}
		if id := m.derive(p.Question); m.refs[id] == nil && m.fault != "later attempt lost" || m.fault == "later attempt takes over" {
			m.refs[id] = c
		}
		known.Case = *c
		if m.fault == "retried winner told false" {
			known.Created = false
		}
		return known, nil
	}
	out := pacase.Pended{RequestedID: m.derive(p.Question)}
	c := m.refs[out.RequestedID]
	if c != nil && !paOpen(c.State) && m.fault == "decided window asked anew" {
		c = nil
	}
	if open := m.open(p.MemberToken, p.GPI, nil); open != nil && (c == nil || m.fault == "open case first") && m.fault != "day decides alone" {
		c = open
	}
	if c == nil && m.fault == "decided case for ever" {
		for _, x := range m.cases {
			if x.MemberToken == p.MemberToken && x.GPI == p.GPI {
				c = x
			}
		}
	}
	if c == nil || m.fault == "each pend a case" {
		m.pause("check, then insert")
		out.Created = m.fault != "never created"
		c = &pacase.Case{ID: out.RequestedID, MemberToken: p.MemberToken, GPI: p.GPI, Window: p.Window, State: pacase.Pending, Version: 1,
			CreatedBy: p.Event, LastOp: p.Event, CreatedAt: 1, UpdatedAt: 1}
		if m.refs[c.ID] != nil && m.refs[c.ID].ID == c.ID {
			c.ID = hex.EncodeToString(p.Event[:])
			m.refs[c.ID] = c
		}
		m.cases = append(m.cases, c)
	}
	if m.fault != "reference of an attach lost" || out.Created {
		m.refs[out.RequestedID] = c
	}
	m.pends[p.Event] = out
	out.Case = *c
	return out, nil
}

func (m *paModel) transition(t pacase.Transition) pacase.Transitioned {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.refs[t.ID]
	if c == nil {
		if m.fault == "missing is a conflict" {
			return pacase.Conflict(pacase.Case{})
		}
		return pacase.Missing()
	}
	mine := c.LastOp == t.Op && c.State == t.To && c.Version == t.Expected+1
	if m.fault == "any move of an operation is mine" {
		mine = c.LastOp == t.Op
	}
	if mine && m.fault != "operations forgotten" {
		return pacase.AlreadyMine(*c)
	}
	if c.Version != t.Expected && m.fault != "no version guard" {
		return pacase.Conflict(*c)
	}
	if !paLegal(c.State, t.To) && m.fault != "any move" {
		return pacase.Illegal(*c)
	}
	if other := m.open(c.MemberToken, c.GPI, c); other != nil && paOpen(t.To) && m.fault != "appeal beside an open case" {
		return pacase.OtherOpen(*other)
	}
	m.pause("read, then write")
	if t.To == pacase.Appealed {
		m.pause("appeal without a lock")
	}
	c.State, c.Version, c.LastOp = t.To, c.Version+1, t.Op
	if m.fault == "versions jump" {
		c.Version++
	}
	return pacase.Moved(*c)
}

func (m *paModel) get(id string) (pacase.Case, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.refs[id]; c != nil {
		return *c, true
	}
	return pacase.Case{}, false
}

func (m *paModel) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.cases)
}

// paHandle is an open paModel.
type paHandle struct {
	m      *paModel
	mu     sync.Mutex
	closed bool
}

func (h *paHandle) ready(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed && h.m.fault != "answers when closed" {
		return errors.New("it is closed")
	}
	if h.m.fault == "answers when cancelled" {
		return nil
	}
	return ctx.Err()
}

func (h *paHandle) Pend(ctx context.Context, p pacase.Pend) (pacase.Pended, error) {
	if err := h.ready(ctx); err != nil {
		return pacase.Pended{}, err
	}
	if h.m.fault != "anything asked" {
		if _, err := p.Question.Offline(); err != nil {
			return pacase.Pended{}, err
		}
		if p.Event.IsZero() {
			return pacase.Pended{}, &pacase.RequestError{Field: "event_id", Hint: "give one"}
		}
	}
	return h.m.pend(p)
}

func (h *paHandle) Transition(ctx context.Context, t pacase.Transition) (pacase.Transitioned, error) {
	if err := h.ready(ctx); err != nil {
		return pacase.Transitioned{}, err
	}
	if h.m.fault != "anything asked" && (t.ID == "" || len(t.ID) > 128 || strings.ContainsAny(t.ID, "\x00\xff") || t.Op.IsZero() || t.Expected < 1 || t.Expected > 1<<31-2 || t.To < pacase.Pending || t.To > pacase.Expired) {
		return pacase.Transitioned{}, &pacase.RequestError{}
	}
	return h.m.transition(t), nil
}

func (h *paHandle) Get(ctx context.Context, id string) (pacase.Case, bool, error) {
	if err := h.ready(ctx); err != nil {
		return pacase.Case{}, false, err
	}
	c, ok := h.m.get(id)
	return c, ok, nil
}

func (h *paHandle) Ping(ctx context.Context) error { return h.ready(ctx) }

func (h *paHandle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	return nil
}
