package spool

import (
	"fmt"
	"testing"
)

// Refusals have audit lines too, and a storm of them must not take the room of scans: near the bound on bytes
// they wait, and are written when the drain has made room.
func TestNotesDoNotTakeTheRoomOfScans(t *testing.T) {
	r := newRig(t)
	r.spool.Close(true)
	r.opts.MaxBytes = 1 << 20
	r.open()
	for n := range 200 {
		b := r.spool.NewBatch()
		for i := range 50 {
			b.Note(Line{Event: NewEvent(r.clock.Now().T), Outcome: "rejected", Reason: fmt.Sprint("noise ", n, " ", i)})
		}
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	st := r.spool.Stats()
	if !st.Accepting || st.Fill() >= 1 {
		t.Fatalf("noise has filled the spool: %d of %d bytes", st.Bytes, st.MaxBytes)
	}
	r.scan(r.candidate("A"))
	waiting := len(r.spool.waiting)
	if waiting == 0 || waiting > waitingNotes {
		t.Fatalf("%d notes wait", waiting)
	}
	before := r.spool.active.notes
	r.spool.opts.MaxBytes = 1 << 30 // as if the drain had made room
	if err := r.spool.Maintain(); err != nil {
		t.Fatal(err)
	}
	if got := r.spool.active.notes - before; len(r.spool.waiting) != 0 || got != uint64(waiting) {
		t.Fatalf("%d notes still wait, %d of %d were written", len(r.spool.waiting), got, waiting)
	}
}
