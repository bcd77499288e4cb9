package world

import (
	"fmt"
	"time"

	"scanonce/spool"
)

// setUp makes the agents and the users, and plans what goes wrong.
func (w *world) setUp() {
	for _, np := range w.plan.nodes {
		n := w.newNode(np.id)
		n.wallOff = np.wallOff
		if np.policy != nil {
			np.policy(&n.cfg.Window)
		}
		w.nodes = append(w.nodes, n)
		w.after(0, n.start)
	}
	for _, up := range w.plan.users {
		u := &user{w: w, p: up}
		for _, id := range up.nodes {
			for _, n := range w.nodes {
				if n.id == id {
					u.nodes = append(u.nodes, n)
				}
			}
		}
		w.users = append(w.users, u)
		u.begin()
	}
	for _, pp := range w.plan.pms {
		u := &pms{w: w, p: pp}
		w.pms = append(w.pms, u)
		w.at(pp.begins, u.next)
	}
	w.rows.poison["P1"] = true
	for _, f := range w.plan.faults {
		w.at(f.at, func() { w.befall(f) })
	}
	for at := 10 * time.Second; at < w.plan.lasts; at *= 2 {
		w.at(at, func() {})
	}
	w.at(w.plan.lasts, func() {})
}

// befall lets one thing go wrong.
func (w *world) befall(f faultPlan) {
	if w.healed {
		return
	}
	n := w.nodes[f.node]
	w.note("fault: %v", f)
	switch f.kind {
	case "redis":
		w.redis.away, w.redis.until = outage(1+f.how%4), w.now+f.dur
	case "lose":
		w.redis.lose(1 + f.how%3)
	case "ledger":
		w.rows.away, w.rows.until = outage(1+f.how%3), w.now+f.dur
	case "states":
		w.states.breaks(n, f)
	case "cases":
		w.cases.breaks(n, f)
	case "failover":
		w.states.fail(time.Duration(1+f.how) * 50 * time.Millisecond)
	case "crash":
		w.crash(n, f)
	case "ambush", "ambush operations":
		n.ambush = &f
	case "stop":
		if n.stage != nil && !n.dead && n.booting == nil && !n.asleep() {
			n.stop(f.how%2 == 0)
			n.restart(min(f.dur, 5*time.Second))
		}
	case "suspend":
		n.asleepT = max(n.asleepT, w.now+f.dur)
		w.at(n.asleepT, func() {})
	case "disk":
		d := &diskFault{until: w.now + f.dur, after: f.how%3 == 0, state: f.how%4 < 2, err: errSync}
		if f.how%5 == 0 {
			d.err, d.after = errNoSpace, false
			for n.drain != nil && n.drain.settles {
				n.move(&n.drain)
			}
			n.narrow = true
		}
		n.fault = d
	case "rows lost": // a failover to a replica that is behind: no ledger of the assumptions does it
		for _, r := range w.rows.order {
			delete(w.rows.rows, r.Keys.Idem)
			delete(w.rows.rows, r.Keys.Edge)
			delete(w.rows.events, r.Event)
		}
		w.rows.order = nil
	case "wall":
		n.wallOff += []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -6 * 365 * 24 * time.Hour, 10 * time.Second, -2 * time.Second}[f.how%6]
		n.synced = f.how%4 == 3 && n.wallOff.Abs() < 2*time.Hour
	}
}

// breaks takes a store away, from one agent or from all.
func (r *remote) breaks(n *node, f faultPlan) {
	r.away, r.until, r.only = outage(1+f.how%3), r.w.now+f.dur, nil
	if f.how%2 == 0 {
		r.only = n
	}
}

// crash kills an agent, or cuts the power of its machine.
func (w *world) crash(n *node, f faultPlan) {
	if n.dead || n.stage == nil && n.booting == nil {
		return
	}
	power := f.how%2 == 0
	n.crash(power)
	if power {
		n.restart(8*time.Second + f.dur) // a machine takes its time
	} else {
		n.restart(min(f.dur, 5*time.Second))
	}
}

func (n *node) restart(d time.Duration) {
	w := n.w
	n.starts = w.now + d
	w.at(n.starts, n.startIfDue)
}

// sprung crashes a node that waits for an ambush and stands at a disk step, or at any edge.
func (w *world) sprung() {
	for _, n := range w.nodes {
		if n.ambush == nil || n.dead {
			continue
		}
		f := *n.ambush
		for _, p := range n.actors() {
			a := *p
			if f.how%4 < 2 && a.step == nil {
				continue
			}
			of := a == n.booting || a == n.intake || a == n.drain
			if of != (f.kind == "ambush") || of && f.how%8 < 4 && a == n.drain || !w.chance(3) {
				continue
			}
			n.ambush = nil
			w.crash(n, f)
			break
		}
	}
}

// heal ends all that is wrong, for good.
func (w *world) heal() {
	w.note("healed")
	w.healed = true
	for _, n := range w.nodes {
		n.fault, n.asleepT, n.ambush = nil, 0, nil
		if n.dead && n.starts == 0 {
			n.restart(0)
		}
	}
	w.healedAt = w.now
}

// quiet says that nothing is under way or waits.
func (w *world) quiet() bool {
	for _, n := range w.nodes {
		if n.stage == nil || n.booting != nil || n.early != nil || n.stage.Queued() || len(n.actors()) > 0 {
			return false
		}
		st := n.stage.Spool().Stats()
		if st.Pending > 0 || n.stage.Spool().PendingLines() > 0 || n.stage.Spool().PendingChain() > 0 {
			return false
		}
		if st.Quarantined == 0 && n.stage.Spool().Journal().Pending() > 0 { // operations wait for what is in quarantine
			return false
		}
	}
	return true
}

// place is a record of an agent.
type place struct {
	n   *node
	seq uint64
}

// retried sees that a record which a claim refused is settled at its next attempt, whoever holds the claim: the ledger
// answers. since has when each was met.
func (w *world) retried(since map[place]time.Duration) {
	for _, n := range w.nodes {
		if n.stage == nil || n.booting != nil {
			continue
		}
		for _, x := range n.stage.Spool().Exceptions() {
			p := place{n, x.Seq}
			switch met, ok := since[p]; {
			case x.State != spool.Deferred:
				delete(since, p)
			case !ok:
				since[p] = w.now
			case w.now > met+deferredTime:
				w.fail("I10: record %d of %s is deferred for %v, and the ledger answers", x.Seq, n.id, w.now-met)
			}
		}
	}
}

// settle waits for the quiet. What is quarantined is tried again, since nothing is refused any more.
func (w *world) settle() {
	deferred := map[place]time.Duration{}
	for range 2 {
		for !w.quiet() {
			w.retried(deferred)
			if w.now > w.healedAt+settleTime {
				w.fail("I10: not settled %v after all is well: %s", settleTime, w.unsettled())
			}
			if len(w.due) == 0 {
				w.after(time.Second, func() {})
			}
			w.turn()
		}
		for _, n := range w.nodes {
			n.requeue()
		}
	}
	if !w.plan.ages {
		return
	}
	// Long enough for everything to be old, and then what that lets go.
	for range 4 {
		w.now += horizon
		for _, n := range w.nodes {
			n.nextDrain = w.now
			n.beginDrain()
			for n.drain != nil {
				n.move(&n.drain)
			}
			n.beginTurn()
			for n.intake != nil {
				n.move(&n.intake)
			}
		}
	}
	for !w.quiet() {
		w.after(time.Second, func() {})
		w.turn()
	}
}

func (w *world) tearDown() {
	for _, n := range w.nodes {
		if err := n.stage.Close(true); err != nil {
			w.fail("%s does not close: %v", n.id, err)
		}
		n.stage = nil
		n.claims.Close()
	}
}

// wreck frees what a run that ended early still holds.
func (w *world) wreck() {
	for _, n := range w.nodes {
		n.dead = true
		for _, a := range n.actors() {
			for *a != nil {
				func() {
					defer func() {
						if recover() != nil {
							*a = nil
						}
					}()
					n.move(a)
				}()
			}
		}
		n.unhear()
		if n.stage != nil {
			n.stage.Close(false)
		}
		if n.claims != nil {
			n.claims.Close()
		}
	}
}

// unsettled says what the agents still hold.
func (w *world) unsettled() string {
	s := ""
	for _, n := range w.nodes {
		if n.stage == nil {
			s += n.id + " does not run; "
			continue
		}
		s += fmt.Sprintf("%s %+v, %d lines, %+v; ", n.id, n.stage.Spool().Stats(), n.stage.Spool().PendingLines(), n.stage.Spool().Exceptions())
		s += fmt.Sprintf("%d operations; ", n.stage.Spool().Journal().Pending())
	}
	return s
}
