package spool

import (
	"encoding/binary"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
)

// ChainRecord binds the audit lines of one settlement to all lines before them. The spool keeps it in the order
// of the settlements until it is forwarded, and knows the last one; what the hashes are of is its maker's business.
type ChainRecord struct {
	Epoch      string
	Seq        uint64 // from 1 in each epoch
	Events     []idem.EventID
	LineHashes []byte // 32 for each event
	Prev, Hash [32]byte
}

// ChainHead is where the next record goes.
type ChainHead struct {
	Epoch       string // of the spool now
	Seq         uint64 // of the epoch's last record, 0 if it has none
	Hash        [32]byte
	Unaccounted uint64 // records that were found lost and that no epoch's beginning has told of
}

// ChainHead returns the end of the audit chain. At the beginning of an epoch Hash is the last one known of the
// epoch before, or zero.
func (s *Spool) ChainHead() ChainHead {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.state.counters
	h := ChainHead{Epoch: s.epoch, Unaccounted: s.unaccounted() - c.ChainLost}
	copy(h.Hash[:], c.ChainHash)
	if c.ChainEpoch == s.epoch {
		h.Seq = c.ChainSeq
	}
	return h
}

// extend puts a record at the end of the chain.
func (c *counters) extend(r *ChainRecord, unaccounted uint64) error {
	var hash [32]byte
	copy(hash[:], c.ChainHash)
	seq := uint64(1)
	if c.ChainEpoch == r.Epoch {
		seq = c.ChainSeq + 1
	}
	if r.Prev != hash || r.Seq != seq || len(r.LineHashes) != 32*len(r.Events) {
		return errOrder
	}
	if r.Seq == 1 {
		c.ChainLost = unaccounted
	}
	c.ChainEpoch, c.ChainSeq, c.ChainHash = r.Epoch, r.Seq, r.Hash[:]
	return nil
}

// reasonRestated is that of the audit's notice that state.db went back to an earlier time, by a backup that was put
// back or a copy of the machine: what was settled since is settled again. Its length is how many records no longer count.
const reasonRestated = "restated"

// wentBack begins the chain anew: other records followed the last one that an older state.db knows. The epoch's
// beginning shows as a gap that is declared.
func (s *Spool) wentBack(st *settlement, gone int64) {
	st.counters.ChainEpoch, st.counters.ChainSeq, st.counters.ChainHash = "", 0, nil
	st.numbered = true
	l := s.notice(int(gone))
	l.Reason = reasonRestated
	st.lines = append(st.lines, l)
	s.healings = append(s.healings, Healing{File: stateName, Detail: "it is an older one than the last run had", Older: true, Records: gone})
}

// Chain returns up to n records that have not been forwarded and whose lines all have been.
func (s *Spool) Chain(n int) ([]ChainRecord, error) {
	st := s.state
	s.mu.Lock()
	from, to, lines := st.chain.delivered, st.chain.next, st.delivered
	s.mu.Unlock()
	var out []ChainRecord
	if from >= to {
		return nil, nil
	}
	err := st.view(func(tx *bolt.Tx) error {
		c := tx.Bucket(bucketChain).Cursor()
		for k, v := c.Seek(seqKey(from)); k != nil && len(out) < n; k, v = c.Next() {
			plain, err := st.seal.open(string(bucketChain), k, v)
			var r ChainRecord
			var behind uint64
			if err == nil {
				behind, err = r.decode(plain)
			}
			if err != nil {
				return garbled("a record of the audit chain", err)
			}
			if behind > lines {
				return nil
			}
			out = append(out, r)
		}
		return nil
	})
	return out, err
}

// ChainSent is the hash of the last record that was forwarded; zero if none was, as far as is known.
func (s *Spool) ChainSent() (hash [32]byte, err error) {
	st := s.state
	s.mu.Lock()
	from, to := st.chain.delivered, st.chain.next
	copy(hash[:], st.counters.ChainHash)
	s.mu.Unlock()
	if from >= to {
		return hash, nil
	}
	err = st.view(func(tx *bolt.Tx) error {
		v := tx.Bucket(bucketChain).Get(seqKey(from))
		if v == nil { // forwarded and deleted meanwhile
			return nil
		}
		plain, err := st.seal.open(string(bucketChain), seqKey(from), v)
		var r ChainRecord
		if err == nil {
			_, err = r.decode(plain)
		}
		if err != nil {
			return garbled("a record of the audit chain", err)
		}
		hash = r.Prev
		return nil
	})
	return hash, err
}

// PendingChain is the number of records that have not been forwarded.
func (s *Spool) PendingChain() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.state.chain.next - s.state.chain.delivered)
}

// ChainForwarded says that the first n of them are in the ledger; see LinesForwarded.
func (s *Spool) ChainForwarded(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.chain.delivered += uint64(n)
}

// queue numbers what waits in a bucket to be forwarded: first is the first that is there, next the next to come,
// and those below delivered are forwarded.
type queue struct{ first, next, delivered uint64 }

func queueOf(b *bolt.Bucket) queue {
	q := queue{1, 1, 1}
	if b == nil {
		return q
	}
	c := b.Cursor()
	if k, _ := c.First(); k != nil {
		q.first = binary.BigEndian.Uint64(k)
		q.next = q.first
		q.delivered = q.first
	}
	if k, _ := c.Last(); k != nil {
		q.next = binary.BigEndian.Uint64(k) + 1
	}
	return q
}

// append encodes the record, with the number of the first line behind its own.
func (r *ChainRecord) append(b []byte, behind uint64) []byte {
	e := encoder{append(b, codecVersion)}
	e.uint(behind)
	e.text(r.Epoch)
	e.uint(r.Seq)
	e.b = append(append(e.b, r.Prev[:]...), r.Hash[:]...)
	e.uint(uint64(len(r.Events)))
	for i := range r.Events {
		e.event(r.Events[i])
	}
	e.b = append(e.b, r.LineHashes...)
	return e.b
}

func (r *ChainRecord) decode(b []byte) (behind uint64, err error) {
	d := decoder{b: b}
	if v := d.take(1); v == nil || v[0] != codecVersion {
		return 0, errCodec
	}
	behind = d.uint()
	*r = ChainRecord{Epoch: d.text(), Seq: d.uint()}
	copy(r.Prev[:], d.take(32))
	copy(r.Hash[:], d.take(32))
	n := d.uint()
	if n > uint64(len(d.b))/48 {
		return 0, errCodec
	}
	for range n {
		r.Events = append(r.Events, d.event())
	}
	r.LineHashes = append(r.LineHashes, d.take(32*n)...)
	return behind, d.end()
}
