package world

import (
	"slices"
	"time"

	"scanonce/device"
	"scanonce/spool"
	"scanonce/window"
)

// user stands at a scanner: each thing is done when the one before has its answer.
type user struct {
	w     *world
	p     *userPlan
	nodes []*node

	pos                int
	m                  *movement // under way
	planned            int       // sendings that are still to come
	tries              int
	round              int // of the plan's sendings: those of an earlier one are called off
	idle               bool
	last               map[string]*movement
	free               time.Duration // no earlier than this
	acted              map[string]bool
	armed              bool
	dupAt              time.Duration // when a duplicate was told last, -1 for never
	mode               window.ScanType
	quantity           int
	actBorn            int // of the process that knows of both
	lastAt             time.Duration
	modeAt, quantityAt time.Duration // when they were set: they last for a while only
	command            *transmission
	commandAt          map[string]time.Duration // when a command was scanned last
	converts           *movement
}

func (u *user) done() bool {
	return u.idle && u.pos == len(u.p.items) && u.m == nil && u.command == nil
}

func (u *user) begin() {
	u.last, u.acted, u.dupAt, u.idle = map[string]*movement{}, map[string]bool{}, -1, true
	u.commandAt = map[string]time.Duration{}
	u.mode, u.quantity = window.Dispense, 1
	u.w.at(u.p.begins, u.look)
}

// again is when the user looks up the next time.
const again = 20 * time.Millisecond

// look is the user looking at what came, and doing the next thing.
func (u *user) look() {
	w := u.w
	switch {
	case u.command != nil:
		if u.command.answer == 0 && !u.command.lost {
			w.after(again, u.look)
			return
		}
		u.commanded()
	case u.m != nil:
		if !u.answered() {
			wait := again
			if u.nodes[0].stage == nil {
				wait = 10 * again
			}
			w.after(wait, u.look)
			return
		}
	}
	if u.m != nil || u.command != nil {
		w.after(again, u.look)
		return
	}
	if u.converts != nil {
		if last, ok := u.commandAt["SCANONCE-SAMEAGAIN"]; ok && w.now < last+3*time.Second {
			at := last + 3*time.Second
			w.at(at, u.look) // an echo, sooner
			return
		}
		m := u.converts
		u.converts = nil
		u.act("SCANONCE-SAMEAGAIN", m)
		return
	}
	if u.pos == len(u.p.items) {
		return
	}
	it := &u.p.items[u.pos]
	at := u.earliest(it)
	if at > w.now {
		w.at(at, u.look)
		return
	}
	u.pos++
	switch {
	case it.label:
		u.label(it.command)
	case it.command != "":
		u.act(it.command, nil)
	default:
		u.scan(it)
	}
}

// earliest is when the assumptions allow the next thing.
func (u *user) earliest(it *itemPlan) time.Duration {
	at := u.lastAt + it.gap
	if it.command != "" {
		at = max(at, u.free+310*time.Millisecond) // an act is no answer to an echo
		if it.arms && u.dupAt >= 0 {
			at = max(at, u.dupAt+61*time.Second) // or it would count what was told then
		}
		if last, ok := u.commandAt[it.command]; ok {
			at = max(at, last+3*time.Second) // an echo, sooner
		}
		return at
	}
	if it.meets {
		at = max(at, u.meeting(it))
	}
	before := u.last[it.item]
	if before == nil {
		return at
	}
	at = max(at, before.until+time.Millisecond)
	for _, t := range before.sent {
		taken := t.answer == device.Accepted || t.answer == device.Duplicate
		if t.answer == 0 && !t.lost || taken && t.rec == nil {
			return u.w.now + again // what became of it decides
		}
	}
	for _, t := range before.sent {
		if t.lost && len(u.nodes) > 1 { // a record that nobody has seen may be there, of which the other agent knows nothing
			at = max(at, t.sent+3500*time.Millisecond+u.p.margin)
		}
	}
	if it.sooner || u.armed || u.acted[it.item] {
		return max(at, u.free+310*time.Millisecond)
	}
	for _, n := range u.nodes {
		for _, r := range u.w.oracle.records[n.id] {
			if r.t.scanner == u.p.scanner && r.t.m.item == it.item && (r.of == nil || r.reason == spool.ReasonInDoubt) {
				at = max(at, r.t.sent+r.span+u.p.margin)
			}
		}
	}
	return at
}

// meeting is when the agent's clock shows again what it showed at an earlier scan of the same.
func (u *user) meeting(it *itemPlan) time.Duration {
	n := u.nodes[0]
	if n.stage == nil {
		return 0
	}
	t := n.stage.Clock().Now().T
	for _, r := range u.w.oracle.records[n.id] {
		if ahead := r.t.at.Sub(t); r.of == nil && r.t.m.item == it.item && r.t.scanner == u.p.scanner && ahead > time.Minute {
			return u.w.now + ahead
		}
	}
	return 0
}

// scan begins a movement.
func (u *user) scan(it *itemPlan) {
	w := u.w
	m := w.oracle.move(u, it.item)
	m.sooner = it.sooner
	if before := u.nodes[0]; u.armed || u.acted[it.item] {
		m.leans = u.actBorn
		m.sooner = m.sooner || before.born != u.actBorn
	}
	if u.actBorn != u.nodes[0].born { // what was set is forgotten
		clear(u.acted)
		u.mode, u.quantity, u.armed, u.actBorn = window.Dispense, 1, false, u.nodes[0].born
	}
	if (u.mode == window.Dispense || w.now-u.modeAt < 50*time.Second) && (u.quantity == 1 || w.now-u.quantityAt < 50*time.Second) {
		m.typ, m.quantity, m.born = u.mode, u.quantity, u.actBorn
	}
	u.armed = false
	u.acted[it.item] = false
	u.m, u.tries, u.lastAt = m, 0, w.now
	u.last[it.item] = m
	u.round++
	u.send(it, 0, 0)
	for i, b := range it.bounces {
		u.send(it, b, i+1)
	}
	w.after(again, u.look)
}

// send plans one sending to all who hear the scanner.
func (u *user) send(it *itemPlan, after time.Duration, nth int) {
	m, round := u.m, u.round
	for i, n := range u.nodes {
		jitter := time.Duration(0)
		if len(u.nodes) > 1 {
			jitter = it.apart[i][nth%len(it.apart[i])]
		}
		u.planned++
		born := n.born
		m.until = max(m.until, u.w.now+after+jitter)
		u.free = max(u.free, m.until)
		u.w.after(after+jitter, func() {
			u.planned--
			if round != u.round && m != u.last[m.item] {
				return
			}
			t := &transmission{m: m, nth: nth, scanner: u.p.scanner, partial: nth == 0 && it.partial && u.tries == 0}
			if nth > 0 && (n.born != born || n.dead || len(u.nodes) > 1 && !heardFirst(m, n)) {
				return // the scanner began anew, or its first word was not heard here
			}
			if u.w.verbose {
				u.w.note("movement %d: %s sends %s, sending %d", m.n, u.p.scanner, m.item, nth)
			}
			if !n.heard(t, items[m.item]) {
				t.lost, t.node, t.sent = true, n, u.w.now
			}
			m.sent = append(m.sent, t)
		})
	}
}

// heardFirst says that the first sending came to an agent.
func heardFirst(m *movement, n *node) bool {
	for _, t := range m.sent {
		if t.node == n && t.nth == 0 && !t.lost && t.born == n.born {
			return true
		}
	}
	return false
}

// answered looks whether the movement has its answer, sends it again if it never will, and says whether the user
// goes on.
func (u *user) answered() bool {
	w, m := u.w, u.m
	first := false
	for _, t := range m.sent {
		if t.answer == 0 && !t.lost {
			return false
		}
		first = true
	}
	if !first {
		return false
	}
	it := u.itemOf()
	if m.accepted || m.told {
		doubled := m.told && !m.accepted && !slices.ContainsFunc(m.sent, func(t *transmission) bool { return t.answer != device.Duplicate })
		if doubled && it.again && u.planned > 0 {
			return false
		}
		u.m = nil
		if m.told || len(it.bounces) > 0 {
			u.dupAt = w.now + 4*time.Second // the last echo may be told yet
		}
		if doubled && it.again && len(u.nodes) == 1 {
			u.converts = m
		}
		for _, t := range m.sent {
			if t.answer == device.Accepted {
				u.quantity = 1
			}
		}
		return true
	}
	if u.planned > 0 {
		return false
	}
	if len(u.nodes) > 1 || u.tries >= it.tries {
		u.m = nil
		return true
	}
	if n := u.nodes[0]; n.stage == nil || n.booting != nil || n.asleep() {
		return false
	}
	u.tries++
	u.round++
	u.send(it, it.pause, 0)
	return false
}

func (u *user) itemOf() *itemPlan { return &u.p.items[u.pos-1] }

// act scans a command barcode. With m it declares m, told as a duplicate, a movement of its own.
func (u *user) act(command string, m *movement) {
	w := u.w
	u.lastAt = w.now
	t := &transmission{m: m, scanner: u.p.scanner}
	u.command, u.commandAt[command] = t, w.now
	if !u.nodes[0].heard(t, command) {
		t.lost = true
	} else if m != nil {
		u.free = max(u.free, w.now) // it counts as a frame of the item
		m.sent = append(m.sent, t)
	}
	w.note("%s: command %s", u.p.scanner, command)
	w.after(again, u.look)
}

// commanded takes the answer to a command.
func (u *user) commanded() {
	t := u.command
	u.command = nil
	if t.answer != device.Control {
		return
	}
	if t.m != nil {
		if t.rec != nil {
			t.m.accepted = true
		}
		return
	}
	it := &u.p.items[u.pos-1]
	if it.label {
		return // the next scan is no other for it
	}
	if u.actBorn != t.born {
		u.mode, u.quantity, u.armed, u.actBorn = window.Dispense, 1, false, t.born
	}
	if it.mode != 0 {
		u.modeAt = u.w.now
		u.mode = it.mode
	}
	if it.quantity != 0 {
		u.quantityAt = u.w.now
		u.quantity = it.quantity
	}
	u.armed = u.armed || it.arms
	for item := range u.last {
		u.acted[item] = true
	}
}

// label scans an Rx label, which all who hear the scanner hear.
func (u *user) label(text string) {
	u.act(text, nil)
	for _, n := range u.nodes[1:] {
		n.heard(&transmission{scanner: u.p.scanner}, text)
	}
}
