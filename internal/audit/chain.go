package audit

import (
	"encoding/hex"
	"time"

	"scanonce/idem"
	"scanonce/internal/api"
	"scanonce/sync/ledger"
	"scanonce/window"
)

// chainColumns is how many columns scan_audit_chain has.
const chainColumns = 7

// lineSeen is what the chain's check needs of a line.
type lineSeen struct {
	place    int64
	agent    string
	at       window.UTC
	recorded window.UTC // which no hash covers
	start    bool       // of an epoch
	lost     bool       // and it tells of lost records
	hash     [32]byte
}

// chainSeen is a record of the chain.
type chainSeen struct {
	place int64
	ledger.ChainRecord
}

// unboundFor is how much older than the newest line that its agent's chain binds an unbound one must be to be
// wrong: those that came last may still have to be bound.
const unboundFor = time.Minute

// aheadBy is by how much the clock of whoever recorded a line may be ahead of the verifier's.
const aheadBy = 5 * time.Minute

func (c *checker) addRecord(e *api.AuditRecord) {
	c.place++
	r := chainSeen{place: c.place, ChainRecord: ledger.ChainRecord{Agent: e.AgentID, Epoch: e.SpoolEpoch, Seq: uint64(max(0, e.Seq))}}
	ok := agentIDForm.MatchString(e.AgentID) && len(e.SpoolEpoch) == 16
	hash := func(s string) (h [32]byte) {
		b, err := hex.DecodeString(s)
		ok = ok && err == nil && len(b) == len(h)
		copy(h[:], b)
		return h
	}
	r.Prev, r.Hash = hash(e.PrevHash), hash(e.Hash)
	for _, s := range e.EventIDs {
		id, err := idem.ParseEventID(s)
		ok = ok && err == nil && id.String() == s
		r.Events = append(r.Events, id)
	}
	var err error
	r.LineHashes, err = hex.DecodeString(e.LineHashes)
	switch ok = ok && err == nil; {
	case !ok:
		c.broken = true
		c.fault(api.AuditFault{Line: r.place, Reason: lineAltered, Detail: "it is no record of the audit chain"})
	case r.Flaw() != "":
		c.faultRecord(&r, lineAltered, r.Flaw())
	default:
		c.records = append(c.records, r)
	}
}

// faultRecord tells of a record.
func (c *checker) faultRecord(r *chainSeen, reason, detail string) {
	c.broken = true
	agent, epoch, seq := r.Agent, r.Epoch, int64(r.Seq)
	c.fault(api.AuditFault{Line: r.place, AgentID: &agent, SpoolEpoch: &epoch, Seq: &seq, Reason: reason, Detail: detail})
}

// judgeChains compares the chains with the lines, once all are read.
func (c *checker) judgeChains() {
	fresh := c.judgeLinks()
	// An event that was settled twice, since the memory of the first time was lost, is in two records: the line that
	// stands is that of one of them.
	fits := map[idem.EventID]bool{}
	newest := map[string]window.UTC{}
	for i := range c.records {
		r := &c.records[i]
		for n, e := range r.Events {
			l, there := c.events[e]
			fits[e] = fits[e] || there && l.hash == [32]byte(r.LineHashes[32*n:])
			if there {
				newest[l.agent] = max(newest[l.agent], l.recorded, l.at)
			}
		}
	}
	for i := range c.records {
		r := &c.records[i]
		for _, e := range r.Events {
			l, there := c.events[e]
			if fits[e] || !there && eventTime(e) < c.retained {
				continue
			}
			agent, epoch, seq, event := r.Agent, r.Epoch, int64(r.Seq), e.String()
			f := api.AuditFault{Line: r.place, AgentID: &agent, SpoolEpoch: &epoch, Seq: &seq, EventID: &event, Reason: lineMissing,
				Detail: "the chain binds a line that is not there"}
			if there {
				f.Line, f.Reason, f.Detail = l.place, lineAltered, "it is not the line that the chain binds"
			}
			c.fault(f)
		}
	}
	c.judgeTimes()
	for e, l := range c.events {
		if _, bound := fits[e]; !bound && !c.broken && l.recorded >= fresh[l.agent] && l.recorded.Add(unboundFor) < newest[l.agent] {
			agent, event := l.agent, e.String()
			c.fault(api.AuditFault{Line: l.place, AgentID: &agent, EventID: &event, Reason: lineMissing, Detail: "no record of the chain binds it, and later lines are bound"})
		}
	}
}

// judgeTimes finds lines that claim to be younger than now, as a forged one that is never bound would, and agents whose
// whole chain is gone.
func (c *checker) judgeTimes() {
	type span struct{ oldest, newest window.UTC }
	unbound := map[string]*span{}
	chains := map[string]bool{}
	for i := range c.records {
		chains[c.records[i].Agent] = true
	}
	for e, l := range c.events {
		if c.now != 0 && max(l.recorded, l.at) > c.now.Add(aheadBy) {
			agent, event := l.agent, e.String()
			c.fault(api.AuditFault{Line: l.place, AgentID: &agent, EventID: &event, Reason: lineAltered, Detail: "it is of a time that has not come"})
		}
		if chains[l.agent] {
			continue
		}
		s := unbound[l.agent]
		if s == nil {
			s = &span{oldest: l.recorded}
			unbound[l.agent] = s
		}
		s.oldest, s.newest = min(s.oldest, l.recorded), max(s.newest, l.recorded)
	}
	for agent, s := range unbound {
		if !c.broken && s.oldest.Add(unboundFor) < max(s.newest, c.now) {
			c.fault(api.AuditFault{Line: c.place + 1, AgentID: &agent, Reason: lineMissing, Detail: "the agent has lines and no record of a chain that binds them"})
		}
	}
}

// judgeLinks follows each chain from record to record, and from epoch to epoch. It returns when each agent last began
// without all memory of the time before: what it did then, nobody may have bound.
func (c *checker) judgeLinks() (began map[string]window.UTC) {
	began = map[string]window.UTC{}
	type chain struct{ agent, epoch string }
	last := map[chain]*chainSeen{}
	followed := map[string]map[[32]byte]bool{} // by agent and a record's hash: whether another one follows it
	var starts []*chainSeen
	for i := range c.records {
		r := &c.records[i]
		k := chain{r.Agent, r.Epoch}
		if followed[r.Agent] == nil {
			followed[r.Agent] = map[[32]byte]bool{}
		}
		followed[r.Agent][r.Hash] = false
		before := last[k]
		want := uint64(1)
		if before != nil {
			want = before.Seq + 1
		}
		switch {
		case r.Seq < want:
			c.faultRecord(r, lineOrder, "a record with its number, or a later one, came before")
			continue
		case r.Seq > want:
			c.faultRecord(r, lineMissing, "the record before it is not there")
		case before == nil:
			starts = append(starts, r)
			if l, there := c.events[firstOf(r)]; there && !l.start || !there && eventTime(firstOf(r)) >= c.retained {
				c.faultRecord(r, lineAltered, "it does not begin its epoch as it must")
			}
		case r.Prev != before.Hash:
			c.faultRecord(r, lineAltered, "it does not follow the record before it")
		}
		if before != nil {
			followed[r.Agent][before.Hash] = true
		}
		last[k] = r
	}
	fresh := map[string]int{}
	for _, r := range starts {
		if l := c.events[firstOf(r)]; r.Prev == ([32]byte{}) || l.lost {
			began[r.Agent] = max(began[r.Agent], l.recorded)
		}
		if r.Prev == ([32]byte{}) {
			fresh[r.Agent]++
			continue
		}
		again, there := followed[r.Agent][r.Prev]
		switch {
		case !there:
			c.faultRecord(r, lineMissing, "the record that it follows, the last of another epoch, is not there")
		case again:
			c.faultRecord(r, lineOrder, "another record follows the one that it follows")
		default:
			followed[r.Agent][r.Prev] = true
		}
	}
	for _, n := range fresh { // an agent begins once; again only without memory of the time before, and says so
		c.gaps += int64(n - 1)
	}
	for agent, hash := range c.heads {
		h, err := hex.DecodeString(hash)
		if _, there := followed[agent][[32]byte(append(h, make([]byte, 32)...))]; err != nil || !there {
			c.fault(api.AuditFault{Line: c.place + 1, AgentID: &agent, Reason: lineMissing, Detail: "the agent has sent a record of its chain that is not there"})
		}
	}
	return began
}

// eventTime is the instant in a UUIDv7: a line is not older than its event id.
func eventTime(e idem.EventID) window.UTC {
	var ms window.UTC
	for _, b := range e[:6] {
		ms = ms<<8 | window.UTC(b)
	}
	return ms
}

func firstOf(r *chainSeen) idem.EventID {
	if len(r.Events) == 0 {
		return idem.EventID{}
	}
	return r.Events[0]
}
