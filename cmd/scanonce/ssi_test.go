package main

import (
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// ssiPacket is DECODE_DATA of Zebra's Simple Serial Interface; status 1 marks what is sent again.
func ssiPacket(status byte, data string) string {
	p := append([]byte{byte(5 + len(data)), 0xf3, 0, status, 0x1b}, data...)
	var sum uint16
	for _, b := range p {
		sum -= uint16(b)
	}
	return string(append(p, byte(sum>>8), byte(sum)))
}

// A scanner that sends packets is answered once a scan is durable; what it marks as sent again counts once, however late;
// what is damaged on the way is asked for again, and is no scan.
func TestPacketScanner(t *testing.T) {
	t.Parallel()
	const ack, nak = "\x04\xd0\x04\x00\xff\x28", "\x05\xd1\x04\x00\x01\xff\x25"
	h := program.NewHome(t, testenv.Setup{Directory: directory, Scanner: "framing = \"ssi\"\nscan_type = \"receive\"\nfeedback = { profile = \"zebra-ssi\" }\n"})
	p := h.Start(t)
	st := h.Follow(t)
	g := plugAs(t, h, st, "SCN-04", "")
	beep := map[string]string{"accepted": "\x05\xe6\x04\x00\x00\xff\x11", "duplicate": "\x05\xe6\x04\x00\x01\xff\x10", "not_accepted": "\x05\xe6\x04\x00\x06\xff\x0b"}
	send := func(kind, packet string) testenv.Event {
		t.Helper()
		e := g.scan(packet)
		if e.Kind != kind {
			t.Fatalf("the answer is %s, want %s", e.Data, kind)
		}
		want := ack
		if kind == "not_accepted" {
			want = nak
		}
		g.tone(want + beep[kind])
		return e
	}
	a := send("accepted", ssiPacket(0, matrix(bottleGTIN, "", "L1")))
	pace(t, time.Second) // out of the window of receive
	if e := send("duplicate", ssiPacket(1, matrix(bottleGTIN, "", "L1"))); e.DuplicateOf != a.EventID || e.Reason != "resend" {
		t.Errorf("what was sent again is told as %s", e.Data)
	}
	pace(t, 500*time.Millisecond)
	send("accepted", ssiPacket(0, matrix(bottleGTIN, "", "L1"))) // the next bottle
	damaged := []byte(ssiPacket(0, matrix(bottleGTIN, "", "L2")))
	damaged[10] ^= 1
	if e := send("not_accepted", string(damaged)); e.Reason != "incomplete" {
		t.Errorf("what is damaged is told as %s", e.Data)
	}
	b := send("accepted", ssiPacket(1, matrix(bottleGTIN, "", "L2")))

	// Killed before its answer: the resend is of the scan that is on disk.
	g.committed(b.EventID)
	p.Kill()
	h.Start(t)
	g.reading()
	if e := send("duplicate", ssiPacket(1, matrix(bottleGTIN, "", "L2"))); e.DuplicateOf != b.EventID || e.Reason != "in_doubt" {
		t.Errorf("behind a kill, what was sent again is told as %s", e.Data)
	}
	if rows, _ := quiet(t, h); len(rows) != 3 {
		t.Errorf("%d rows", len(rows))
	}
}

// The guns of one base are scanners of their own, each with what its user has set.
func TestGunsOfOneBase(t *testing.T) {
	t.Parallel()
	h, _, st, g := bench(t, testenv.Setup{Scanner: "gun_digits = 2\n"})
	gun := func(address, kind, data string) testenv.Event {
		t.Helper()
		if err := g.Type(address + data); err != nil {
			t.Fatal(err)
		}
		var e testenv.Event
		e, g.pos = st.Wait(t, g.pos, "gun "+address+" has an answer", isAnswer("SCN-04/"+address))
		if e.Kind != kind {
			t.Fatalf("gun %s: %s, want %s", address, e.Data, kind)
		}
		return e
	}
	for _, address := range []string{"01", "02", "03", "04", "05", "06"} {
		gun(address, "accepted", bottle)
	}
	gun("02", "duplicate", bottle)
	gun("03", "mode", "SCANONCE-MODE-RETURN")
	gun("03", "accepted", matrix(bottleGTIN, "S3", ""))
	gun("04", "accepted", matrix(bottleGTIN, "S4", ""))
	s := h.Status(t)
	if a, b := s.Scanner("SCN-04/03"), s.Scanner("SCN-04/04"); a == nil || b == nil || a.ScanType != "return" || b.ScanType != "dispense" {
		t.Errorf("scanners %+v", s.Scanners)
	}
	rows, _ := quiet(t, h)
	types := map[string]int{}
	for _, r := range rows {
		types[r.ScannerID+" "+r.ScanType]++
	}
	if len(rows) != 8 || types["SCN-04/01 dispense"] != 1 || types["SCN-04/02 dispense"] != 1 || types["SCN-04/03 return"] != 1 || types["SCN-04/04 dispense"] != 2 {
		t.Errorf("%d rows: %v", len(rows), types)
	}
}
