//go:build usbrig

package guest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"scanonce/device"
)

// work is what a process has done since its start.
type work struct {
	busy   time.Duration // on a processor
	wakeup int           // how often one of its threads has begun to run after waiting
}

func workOf(t testing.TB, pid int) (w work) {
	t.Helper()
	for _, task := range glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid)) {
		var ns int64
		fmt.Sscan(text(task+"/schedstat"), &ns) // Linux' Documentation/scheduler/sched-stats.rst
		w.busy += time.Duration(ns)
		for line := range strings.Lines(text(task + "/status")) {
			var n int
			if _, err := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &n); err == nil {
				w.wakeup += n
			}
		}
	}
	return w
}

// idle measures an agent and the processes that read its scanners for a minute in which nobody scans. Together they take
// less than half a percent of the emulated processor, and none of them is awake in more than every third second: what it
// does then, and how often its threads hand over to each other for that, is counted once.
func idle(t *testing.T, agent int, readers []int) {
	t.Helper()
	<-time.After(15 * time.Second) // what the start has left to do
	const span = 60
	all := append([]int{agent}, readers...)
	before, last, awake := map[int]work{}, map[int]work{}, map[int]int{}
	for _, pid := range all {
		before[pid] = workOf(t, pid)
		last[pid] = before[pid]
	}
	began := time.Now()
	for range span {
		<-time.After(time.Second)
		for _, pid := range all {
			now := workOf(t, pid)
			if now.wakeup != last[pid].wakeup {
				awake[pid]++
			}
			last[pid] = now
		}
	}
	took := time.Since(began)
	var busy time.Duration
	for _, pid := range all {
		spent := last[pid].busy - before[pid].busy
		busy += spent
		t.Logf("process %d (%s): busy %v, awake in %d of %d seconds, %d times", pid, strings.ReplaceAll(text(fmt.Sprintf("/proc/%d/cmdline", pid)), "\x00", " "),
			spent, awake[pid], span, last[pid].wakeup-before[pid].wakeup)
		if awake[pid] > span/3 {
			t.Errorf("process %d is awake in %d of %d seconds", pid, awake[pid], span)
		}
	}
	share := float64(busy) / float64(took)
	t.Logf("%d processes take %.3f %% of a processor", len(all), 100*share)
	if share >= 0.005 {
		t.Errorf("%.3f %% of a processor, and 0.5 is the most", 100*share)
	}
}

// Four scanners, one of each kind and mode, and nobody scans.
func TestAgentIdle(t *testing.T) {
	v, w, serial := posVendors()[0], posVendors()[1], acmScanner("CDC-77")
	for _, g := range []*gadget{newPos(t, 0, v), newPos(t, 1, w), newKeyboard(t, 2, keyboardScanner()), newACM(t, 3, serial)} {
		g.plug()
	}
	c := newCounter(t, posTable("SCN-01", v.id, "")+posTable("SCN-02", w.id, `mode = "listen"`)+acmTable("SCN-03", serial)+keyboardTable("listen"))
	ids := []string{"SCN-01", "SCN-02", "SCN-03", "SCN-04"}
	for _, id := range ids {
		heardBy(t, c.home, id)
	}
	c.events.Close()
	all := family(t, c.agent.PID())
	if len(all) != 4 {
		t.Errorf("%d processes, want the agent and three that read HID scanners", len(all))
	}
	idle(t, all[0], all[1:])
	status := c.home.Status(t)
	for _, id := range ids {
		if s := status.Scanner(id); s == nil || s.State != string(device.Reading) {
			t.Errorf("%s is not heard any more: %+v", id, s)
		}
	}
}
