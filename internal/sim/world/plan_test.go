package world

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"scanonce/window"
)

// plan is all that a seed decides beforehand: who does what, and what goes wrong. A shorter one may show the
// same mistake.
type plan struct {
	seed     uint64
	begin    time.Time
	uptime   time.Duration
	ttl      time.Duration // of claims
	batch    int
	segment  int // records
	patience time.Duration
	lasts    time.Duration
	ages     bool // the world grows old behind the quiet, so that segments go
	client   bool // claims go through the program's Redis client
	nodes    []nodePlan
	users    []*userPlan
	faults   []faultPlan

	life  time.Duration // of claims in adjudication
	twice bool          // their store and that of the cases may get a request a second time
	pms   []*pmsPlan
}

type nodePlan struct {
	id      string
	wallOff time.Duration
	policy  func(*window.Policies)
}

type userPlan struct {
	scanner string
	nodes   []string
	begins  time.Duration
	margin  time.Duration // beyond W or W+G until the same item is moved again
	items   []itemPlan
}

// itemPlan is one thing that a user does.
type itemPlan struct {
	item    string
	gap     time.Duration
	bounces []time.Duration   // further sendings
	apart   [][]time.Duration // when the sendings reach each who hears them
	sooner  bool              // the same item, sooner than the assumptions allow
	again   bool              // and "same again", if it is told as a duplicate
	partial bool              // the plug comes out within the first frame
	tries   int               // further tries while there is no answer
	pause   time.Duration     // before each

	command  string
	label    bool // the command is an Rx label
	mode     window.ScanType
	quantity int
	arms     bool
	meets    bool // at the instant that an earlier scan of it has, by a clock that was ahead then
}

// faultPlan is one thing that goes wrong.
type faultPlan struct {
	at   time.Duration
	kind string
	node int
	dur  time.Duration
	how  int
}

func (f faultPlan) String() string {
	return fmt.Sprintf("%v %s node=%d for %v how=%d", f.at, f.kind, f.node, f.dur, f.how)
}

// late is when a statement of which nobody hears any more is done.
func (p *plan) late(rng *rand.Rand) time.Duration {
	return time.Duration(rng.Int64N(int64(20 * time.Second)))
}

// items are what is moved, as the scanners send it.
var items = map[string]string{
	"serial-1": "]d20100300937214106211\x1d17271130" + "10A1207",
	"serial-2": "]d20100300937214106212\x1d17271130" + "10A1207",
	"lot":      "]d2010030093721410617271130" + "10A1207",
	"lot-2":    "]d2010030093721410617271130" + "10B77",
	"poison":   "]d2010030406051201617271130" + "10P1",
	"upc":      "]E00300937214106",
}

var itemNames = []string{"lot", "upc", "serial-1", "serial-2", "lot-2", "poison"}

// newPlan makes the plan of a seed, within the assumptions.
func newPlan(seed uint64) *plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	pick := func(d ...time.Duration) time.Duration { return d[rng.IntN(len(d))] }
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(d/time.Millisecond))) * time.Millisecond
	}
	ms := time.Millisecond
	p := &plan{seed: seed, begin: base.Add(upTo(9 * time.Second)), uptime: 5*time.Minute + upTo(time.Hour),
		ttl: pick(4*time.Second, 10*time.Second, time.Minute), batch: []int{2, 3, 500}[rng.IntN(3)], segment: []int{3, 8, 1000}[rng.IntN(3)],
		patience: pick(0, 5*ms, 200*ms, 3*time.Second), ages: rng.IntN(3) == 0, client: rng.IntN(3) == 0}
	sharing := rng.IntN(3) == 0
	exact := rng.IntN(2) == 0 // clocks without error
	agents := 1 + rng.IntN(2)
	if sharing {
		agents = 2 + rng.IntN(2)
	}
	const off = 40 * time.Millisecond
	for i := range agents {
		n := nodePlan{id: fmt.Sprintf("a%d", i+1)}
		if !exact {
			n.wallOff = upTo(2*off) - off
		}
		p.nodes = append(p.nodes, n)
	}
	item := func(names []string) itemPlan {
		it := itemPlan{item: names[rng.IntN(len(names))], gap: pick(0, 50*ms, 400*ms, upTo(4*time.Second)), tries: rng.IntN(5), pause: 200*ms + upTo(3*time.Second), again: rng.IntN(2) == 0}
		for range rng.IntN(4) - 1 {
			it.bounces = append(it.bounces, 1*ms+upTo(2800*ms))
		}
		return it
	}
	if sharing {
		u := &userPlan{scanner: "SHARED", nodes: []string{"a1", "a2"}, begins: time.Second + upTo(time.Second)}
		apart := 500 * ms
		if !exact {
			apart -= 2*off + 10*ms
			u.margin = 2*off + 20*ms
		}
		for range 2 + rng.IntN(4) {
			it := item([]string{"lot", "upc", "serial-1"})
			for i := range it.bounces {
				it.bounces[i] = min(it.bounces[i], 2900*ms-apart)
			}
			side := rng.IntN(2)
			for i := range 2 {
				var at []time.Duration
				for k := range 4 {
					d := time.Duration(0)
					if i == side || k > 0 {
						d = pick(0, ms, apart, upTo(apart), upTo(apart))
					}
					at = append(at, d)
				}
				it.apart = append(it.apart, at)
			}
			u.items = append(u.items, it)
		}
		p.users = append(p.users, u)
	}
	for i := range 3 {
		n := p.nodes[i%agents]
		if (sharing || i > 0) && rng.IntN(2) == 0 {
			continue
		}
		u := &userPlan{scanner: fmt.Sprintf("SCN-%d", i+1), nodes: []string{n.id}, begins: time.Second + upTo(time.Second)}
		names := slices.Clone(itemNames[:1+rng.IntN(len(itemNames))])
		receives := false
		for range 2 + rng.IntN(8) {
			it := item(names)
			it.partial = rng.IntN(12) == 0
			switch rng.IntN(10) {
			case 0:
				modes := []window.ScanType{window.Return, window.Dispense, window.Receive, window.Waste}
				m := modes[rng.IntN(len(modes))]
				receives = receives || m == window.Receive
				it = itemPlan{command: map[window.ScanType]string{window.Return: "SCANONCE-MODE-RETURN", window.Dispense: "SCANONCE-MODE-DISPENSE",
					window.Receive: "SCANONCE-MODE-RECEIVE", window.Waste: "SCANONCE-MODE-WASTE"}[m], gap: it.gap, mode: m}
			case 1, 2:
				it = itemPlan{command: "SCANONCE-QTY-5", gap: it.gap, quantity: 5}
			case 3:
				it = itemPlan{command: "SCANONCE-SAMEAGAIN", gap: it.gap, arms: true}
			case 4:
				it.sooner = true
			}
			if receives { // W is 400 ms then
				for k := range it.bounces {
					it.bounces[k] = min(it.bounces[k], 380*ms)
				}
			}
			u.items = append(u.items, it)
		}
		p.users = append(p.users, u)
	}
	p.lasts = 5*time.Second + upTo(20*time.Second)
	switch rng.IntN(12) {
	case 0: // hours at the counter, while something is refused or away
		p.lasts = 12*time.Minute + upTo(20*time.Minute)
		for _, u := range p.users {
			u.items[rng.IntN(len(u.items))].gap = 11*time.Minute + upTo(time.Minute)
		}
		if rng.IntN(2) == 0 {
			p.faults = append(p.faults, faultPlan{at: upTo(10 * time.Second), kind: "ledger", dur: upTo(p.lasts), how: 3 * rng.IntN(20)})
		}
	case 1: // a clock far ahead at the start, that the reference puts right; then the instants come again
		if sharing {
			break
		}
		n := &p.nodes[0]
		n.wallOff = 11*time.Minute + upTo(time.Minute)
		p.faults = append(p.faults, faultPlan{at: 0, kind: "ledger", dur: 5*time.Second + upTo(10*time.Second)})
		for range 2 {
			it := item(itemNames[:2])
			it.meets, it.gap, it.bounces = true, 0, nil
			p.users[0].items = append(p.users[0].items, it)
		}
	}
	kinds := []string{"redis", "redis", "lose", "ledger", "ledger", "ledger", "crash", "crash", "ambush", "ambush", "ambush", "stop", "suspend"}
	if !sharing {
		kinds = append(kinds, "disk", "disk", "disk", "wall", "wall")
	}
	for range rng.IntN(9) {
		p.faults = append(p.faults, faultPlan{at: time.Second + upTo(p.lasts), kind: kinds[rng.IntN(len(kinds))], node: rng.IntN(agents),
			dur: pick(100*ms, time.Second, upTo(20*time.Second)), how: rng.IntN(64)})
	}
	p.life = time.Minute
	if rng := rand.New(rand.NewPCG(seed, 3)); rng.IntN(4) > 0 {
		p.adjudicate(rng)
	}
	return p
}

// pmsPlan is a part of the pharmacy system: it does one thing behind the other.
type pmsPlan struct {
	begins time.Duration
	ops    []opPlan
}

// opPlan is one operation that a pharmacy system asks an agent for.
type opPlan struct {
	gap    time.Duration
	node   int
	kind   string // put, advance, claim, pend, transition, case
	which  int    // claim, or question, or case of those known
	pick   int    // of what can be asked for
	stale  bool   // with an older version than the one known
	keyed  bool   // with an Idempotency-Key
	tries  int    // further tries while there is no answer
	pause  time.Duration
	repeat bool // asked for again although it was answered
}

// labels are Rx labels, one for each fill.
var labels = []string{"RX1000001", "RX1000002", "RX1000003"}

// adjudicate adds prescriptions, and what pharmacy systems do with the claims and cases of them.
func (p *plan) adjudicate(rng *rand.Rand) {
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(rng.Int64N(int64(d/time.Millisecond))) * time.Millisecond
	}
	pick := func(d ...time.Duration) time.Duration { return d[rng.IntN(len(d))] }
	if rng.IntN(3) == 0 { // over midnight
		p.begin = p.begin.Add(14*time.Hour + 59*time.Minute + 45*time.Second)
	}
	p.life = pick(6*time.Second, 20*time.Second, 2*time.Minute)
	p.twice = rng.IntN(2) == 0
	for _, u := range p.users {
		var items []itemPlan
		for _, it := range u.items {
			if rng.IntN(3) == 0 && !it.meets {
				items = append(items, itemPlan{command: labels[rng.IntN(len(labels))], label: true, gap: it.gap})
			}
			items = append(items, it)
		}
		u.items = items
	}
	kinds := []string{"put", "put", "advance", "advance", "advance", "advance", "claim", "pend", "pend", "transition", "transition", "case"}
	for range 1 + rng.IntN(3) {
		u := &pmsPlan{begins: time.Second + upTo(4*time.Second)}
		home, claim := rng.IntN(len(p.nodes)), rng.IntN(5)
		for range 3 + rng.IntN(10) {
			op := opPlan{gap: pick(0, 0, 100*time.Millisecond, upTo(4*time.Second)), node: home, kind: kinds[rng.IntN(len(kinds))], which: claim, pick: rng.IntN(720),
				stale: rng.IntN(10) == 0, keyed: rng.IntN(2) == 0, tries: rng.IntN(4), pause: upTo(3 * time.Second), repeat: rng.IntN(6) == 0}
			if rng.IntN(4) == 0 {
				op.node = rng.IntN(len(p.nodes))
			}
			if rng.IntN(3) == 0 {
				op.which = rng.IntN(5)
			}
			if rng.IntN(24) == 0 {
				op.gap = p.life + upTo(p.life)
			}
			u.ops = append(u.ops, op)
		}
		p.pms = append(p.pms, u)
	}
	faults := []string{"states", "states", "cases", "cases", "ambush operations", "ambush operations", "crash"}
	if rng.IntN(4) == 0 {
		faults = append(faults, "failover", "failover")
	}
	for range rng.IntN(7) {
		p.faults = append(p.faults, faultPlan{at: time.Second + upTo(min(p.lasts, 12*time.Second)), kind: faults[rng.IntN(len(faults))], node: rng.IntN(len(p.nodes)),
			dur: pick(100*time.Millisecond, upTo(5*time.Second), upTo(20*time.Second), upTo(20*time.Second), p.life+upTo(p.life)), how: rng.IntN(64)})
	}
}
