package main

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// Scenario 25: a workstation sleeps for longer than a window, and the stores' line is gone when it wakes up. The same
// bottle again is a movement of its own; the scanner is read; and nobody is told that the line is there.
func TestSleep(t *testing.T) {
	t.Parallel()
	c := newCentral(t)
	h, p, st, g := c.bench(t, testenv.Setup{})
	label := matrix(bottleGTIN, "", "A1207")
	first := g.expect("accepted", label)
	g.committed(first.EventID)
	p.Signal(syscall.SIGSTOP)
	c.mode(t, testenv.Refuse)
	pace(t, 3500*time.Millisecond)
	p.Signal(syscall.SIGCONT)
	second := g.expect("accepted", label)
	if second.CapturedAt.Sub(first.CapturedAt) < 3500*time.Millisecond {
		t.Errorf("captured at %s, before the sleep at %s: the clock slept too", second.CapturedAt, first.CapturedAt)
	}
	st.Wait(t, 0, "OFFLINE", link("OFFLINE"))
	third := g.expect("accepted", matrix(bottleGTIN, "", "A1208"))
	if third.Online == nil || *third.Online {
		t.Errorf("after the sleep, with the stores away, a scan is told as %s", third.Data)
	}
	if s := h.Status(t); s.State != "OFFLINE" || s.Scanner("SCN-04").State != "reading" {
		t.Errorf("status after the sleep %+v", s)
	}
	// It sleeps again, and the scanner is another one when it wakes up.
	p.Signal(syscall.SIGSTOP)
	unplug(g.Scanner)
	if err := g.Replug(); err != nil {
		t.Fatal(err)
	}
	g.pos = st.Len()
	c.mode(t, testenv.Pass)
	pace(t, 3500*time.Millisecond)
	p.Signal(syscall.SIGCONT)
	g.reading()
	fourth := g.expect("accepted", label)
	rows, lines := c.settled(t, h)
	if len(rows) != 4 || len(linesOf(lines, "suppressed")) != 0 || rowByEvent(t, rows, fourth.EventID).IdemKey == rowByEvent(t, rows, second.EventID).IdemKey {
		t.Errorf("%d rows, lines %+v", len(rows), lines)
	}
}

// The machine starts anew, so that elapsed time begins again: a bottle scanned before and after is two movements,
// and no key of before comes back, whichever way elapsed time has gone.
func TestAnotherBoot(t *testing.T) {
	t.Parallel()
	for name, offset := range map[string]string{"elapsed time is ahead": "864000", "elapsed time is behind": "-600"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, p, st, g := bench(t, testenv.Setup{})
			label := matrix(bottleGTIN, "", "A1207")
			first := g.expect("accepted", label)
			p.Stop(t)
			unplug(g.Scanner)
			// A time namespace, where CLOCK_BOOTTIME is another; see time_namespaces(7).
			cmd := h.Command(t.Context(), "run")
			cmd.Args = append([]string{"unshare", "--time", "--boottime", offset, "--fork", "--kill-child", cmd.Path}, cmd.Args[1:]...)
			path, err := exec.LookPath("unshare")
			if err != nil {
				t.Fatal(err)
			}
			cmd.Path = path
			pace(t, 3500*time.Millisecond)
			g.pos = st.Len()
			p = h.StartAs(t, cmd)
			if err := g.Replug(); err != nil {
				t.Fatal(err)
			}
			g.reading()
			second := g.expect("accepted", label)
			bounce := g.expect("duplicate", label)
			if second.Key == first.Key || bounce.DuplicateOf != second.EventID || !second.CapturedAt.After(first.CapturedAt) {
				t.Errorf("before %s, after %s, its echo %s", first.Data, second.Data, bounce.Data)
			}
			rows, _ := quiet(t, h)
			if len(rows) != 2 {
				t.Errorf("%d rows, want 2", len(rows))
			}
			p.Kill()
		})
	}
}
