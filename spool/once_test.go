package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"scanonce/idem"
	"scanonce/window"
)

// keyed is a candidate with a request.
func (r *rig) keyed(item string, n byte) Candidate {
	c := r.candidate(item)
	c.Once = Once{Key: [16]byte{n}, Request: [16]byte{n, n}}
	return c
}

// wantAnswer looks a request up as after a start.
func (r *rig) wantAnswer(n byte, d Decision, what string) {
	r.t.Helper()
	if err := r.spool.Recall(context.Background()); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	got, ok := r.spool.Answer([16]byte{n}, r.clock.Now().T)
	rec := d.Record
	want := Answer{Request: [16]byte{n, n}, Event: rec.Event, Of: rec.Of, Key: rec.Keys.Idem, Window: rec.Keys.Window}
	if !ok || got != want {
		r.t.Fatalf("%s: %+v (%v), want %+v", what, got, ok, want)
	}
}

func (r *rig) wantNoAnswer(n byte, what string) {
	r.t.Helper()
	if err := r.spool.Recall(context.Background()); err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
	if got, ok := r.spool.Answer([16]byte{n}, r.clock.Now().T); ok {
		r.t.Fatalf("%s: %+v", what, got)
	}
}

// forgetSegments settles everything and lets the segments go.
func (r *rig) forgetSegments() {
	r.t.Helper()
	r.drain()
	r.os.pass(time.Hour)
	r.spool.Prune()
	if err := r.spool.Maintain(); err != nil {
		r.t.Fatal(err)
	}
	if n := len(r.spool.segments); n != 1 {
		r.t.Fatalf("%d segments are left", n)
	}
}

// The answer of a request is found wherever a kill meets it, for 24 h.
func TestARequestIsFoundAgain(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	r.wantNoAnswer(1, "before")
	first := r.scan(r.keyed("A", 1))
	r.os.pass(100 * time.Millisecond)
	echo := r.scan(r.keyed("A", 2))
	r.wantDuplicate(echo, first, ReasonBounce, "the echo")
	all := func(what string) {
		t.Helper()
		r.wantAnswer(1, first, what)
		r.wantAnswer(2, echo, what)
		r.wantNoAnswer(3, what)
	}
	all("in the process that took it")
	r.reopen(false)
	if _, ok := r.spool.Answer([16]byte{1}, r.clock.Now().T); ok {
		t.Fatal("known without Recall: the rest of this proves nothing")
	}
	all("after a kill, from the segment")
	r.reopen(false)
	r.drain() // by a process that has not been asked yet
	all("settled by the next process")
	r.reopen(false)
	all("after a kill, from state.db")
	r.later(time.Second, "B")
	r.later(time.Second, "C")
	r.forgetSegments()
	r.reopen(false)
	all("its segment is gone")
	r.os.pass(keepAnswers - 2*time.Hour)
	r.reopen(true)
	all("23 h later")
	r.os.pass(2 * time.Hour)
	r.wantNoAnswer(1, "after 24 h")
	again := r.scan(r.keyed("A", 1)) // the same key, for another scan
	r.wantNew(again, "the key once more")
	r.drain()
	r.reopen(false)
	r.wantAnswer(1, again, "the key once more")
	r.wantNoAnswer(2, "after 24 h and a start")
	kept := 0
	if err := r.spool.state.db.View(func(tx *bolt.Tx) error { kept = tx.Bucket(bucketAnswers).Stats().KeyN; return nil }); err != nil {
		t.Fatal(err)
	}
	if n := len(r.spool.state.answers.byKey); n != 1 || kept != 1 {
		t.Errorf("%d answers are in memory, %d in %s", n, kept, stateName)
	}
}

// A lost state.db is made anew from the segments, answers too.
func TestAnswersOutliveStateDB(t *testing.T) {
	r := newRig(t)
	first := r.scan(r.keyed("A", 1))
	r.drain()
	r.kill()
	if err := os.Remove(r.path(stateName)); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.wantAnswer(1, first, "from the segment")
	if err := r.spool.roll(); err != nil {
		t.Fatal(err)
	}
	r.forgetSegments()
	r.reopen(false)
	r.wantAnswer(1, first, "from the new state.db")
}

// What was not accepted is not remembered.
func TestAFailedCommitAnswersNobody(t *testing.T) {
	r := newRig(t)
	r.sabotage()
	if _, err := r.try(r.keyed("A", 1)); err == nil {
		t.Fatal("accepted on a closed file")
	}
	r.wantNoAnswer(1, "after the failure")
	d := r.scan(r.keyed("A", 1))
	r.wantNew(d, "the retry")
	r.wantAnswer(1, d, "the retry")
	full := newRig(t, func(o *Options) { o.MaxRecords = 1 })
	full.scan(full.candidate("A"))
	if _, err := full.try(full.keyed("B", 1)); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	full.wantNoAnswer(1, "refused by a full spool")
}

// While a segment is damaged nobody knows whether a request is new.
func TestADamagedSegmentKeepsRequestsWaiting(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SegmentRecords = 2 })
	first := r.scan(r.keyed("A", 1))
	r.later(time.Second, "B")
	r.later(time.Second, "C")
	r.reopen(true)
	r.spool.ails(r.spool.segments[0], &DamageError{r.spool.segments[0].name, "a test says so"})
	if err := r.spool.Recall(t.Context()); !errors.Is(err, ErrHealing) {
		t.Fatalf("%v, want ErrHealing", err)
	}
	if healed := r.tend(); len(healed) != 1 {
		t.Fatalf("healed %+v", healed)
	}
	r.wantAnswer(1, first, "after the healing")
}

// A record of before has no request, and its bytes are as they were.
func TestRecordsWithoutRequestKeepTheirForm(t *testing.T) {
	r := Record{Event: idem.EventID{1}, Item: Item{PkgLevel: -1}}
	old := r.append(nil)
	r.Once = Once{Key: [16]byte{7}, Request: [16]byte{8}}
	with := r.append(nil)
	if old[0] != 1 || with[0] != 2 || string(old[1:]) != string(with[1:len(old)]) || len(with) != len(old)+32 {
		t.Fatalf("version %d of %d bytes, version %d of %d", old[0], len(old), with[0], len(with))
	}
	var got Record
	if err := got.decode(with[:len(with)-1]); err == nil {
		t.Error("a request cut short is read")
	}
	if err := got.decode(old); err != nil || !got.Once.IsZero() {
		t.Errorf("%+v, %v", got.Once, err)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	r := newRig(t)
	now := r.clock.Now().T
	for i := range maxAnswers {
		if !r.spool.RoomForKey(now) {
			t.Fatalf("no room after %d", i)
		}
		r.spool.state.answers.add([16]byte([]byte(fmt.Sprintf("%016d", i))), Answer{Event: newEvent(now)})
	}
	if r.spool.RoomForKey(now) {
		t.Error("room for more")
	}
	if !r.spool.RoomForKey(now.Add(keepAnswers + time.Second)) {
		t.Error("no room a day later")
	}
}

// A scan that brings its time has the request's key in its own, obeys no duplicate rule and makes none.
func TestAGivenTime(t *testing.T) {
	r := newRig(t)
	at := r.clock.Now().T.Add(-48 * time.Hour)
	given := func(key string, at window.UTC) Candidate {
		c := r.candidate("A")
		c.Given, c.GivenAt = key, at
		return c
	}
	live := r.scan(r.candidate("A"))
	r.os.pass(100 * time.Millisecond)
	first := r.scan(given("k1", at))
	r.wantNew(first, "beside a live one")
	rec := first.Record
	id := r.candidate("A").Identity
	id.Again = "k1"
	if rec.Keys != id.Keys(window.Default(window.Dispense), at) || rec.At != at || rec.Quality != window.Device || rec.Extras != "again=k1" {
		t.Errorf("%+v", rec)
	}
	if d := r.clock.Now().T.Sub(rec.Taken()); d < 0 || d > time.Second {
		t.Errorf("taken in %v ago", d)
	}
	same := r.scan(given("k1", at))
	r.wantNew(same, "once more") // the ledger tells
	if same.Record.Keys != rec.Keys || same.Record.Event == rec.Event {
		t.Errorf("other keys: %+v", same.Record.Keys)
	}
	if other := r.scan(given("k2", at)); other.Record.Keys.Idem == rec.Keys.Idem {
		t.Error("another request has the same key")
	}
	r.os.pass(100 * time.Millisecond)
	r.wantDuplicate(r.scan(r.candidate("A")), live, ReasonBounce, "the live one's echo behind them")
	// Nothing of it counts after a restart either: neither for the local rule nor as the scanner's last scan.
	r.os.pass(4 * time.Second)
	last := r.scan(r.candidate("B"))
	r.os.pass(time.Second)
	r.scan(given("k3", at))
	r.reopen(false)
	r.os.pass(4 * time.Second)
	r.wantDuplicate(r.scan(r.candidate("B")), last, ReasonInDoubt, "the last live one, in doubt")
	r.os.pass(time.Second)
	r.wantNew(r.scan(r.candidate("A")), "a live one behind a given one, after a restart")
	if m := r.memory(); len(r.spool.recent.physical) != 2 {
		t.Errorf("the memory is %s", m)
	}
}
