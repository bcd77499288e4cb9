//go:build usbrig

package guest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// item is a label of a length of its own: the lot stands at its end, so that a lost or a foreign report is seen.
func item(serial string, filler int) (data, lot string) {
	lot = "L" + serial
	data = "0100300937214106" + "21" + serial + "\x1d"
	for filler > 0 {
		n := min(filler, 90)
		data += "91" + strings.Repeat("F", n) + "\x1d"
		filler -= n
	}
	return data + "10" + lot, lot
}

// Plugged in and unplugged 200 times, the agent holds as many descriptors, threads and processes as before, and
// hardly more memory.
func TestAgentPluggedOften(t *testing.T) {
	v := posVendors()[0]
	g := newPos(t, 0, v)
	c := newCounter(t, posTable("SCN-04", v.id, ""))
	cycle := func(i int) {
		from := c.events.Len()
		g.plug()
		c.heard("SCN-04", from)
		serial := fmt.Sprintf("C%d", i)
		data, lot := item(serial, 0)
		g.scan(v, "]d2", data)
		c.accepted(serial, lot)
		from = c.events.Len()
		g.unplug()
		c.state("SCN-04", from, "absent")
		eventually(t, "the worker is gone", func() bool { return len(family(t, c.agent.PID())) == 1 })
	}
	const warm, cycles = 20, 200
	for i := range warm {
		cycle(i)
	}
	before := usageOf(t, c.agent.PID())
	for i := range cycles {
		cycle(warm + i)
	}
	after := usageOf(t, c.agent.PID())
	t.Logf("after %d cycles %+v, after %d more %+v", warm, before, cycles, after)
	if after.files > before.files || after.threads > before.threads+4 || after.resident > before.resident+16<<10 {
		t.Errorf("after %d cycles the agent holds %+v, before %+v", cycles, after, before)
	}
	if rows := c.rows(); len(rows) != warm+cycles {
		t.Errorf("%d rows of %d scans", len(rows), warm+cycles)
	}
}

// A worker that is killed, or stands still, harms nobody else: the other scanner is heard all the time, and its own
// comes back.
func TestAgentWorkerHarmed(t *testing.T) {
	v, w := posVendors()[0], posVendors()[1]
	g, other := newPos(t, 0, v), newPos(t, 1, w)
	g.plug()
	c := newCounter(t, posTable("SCN-04", v.id, "")+posTable("SCN-05", w.id, ""))
	heardBy(t, c.home, "SCN-04")
	victim := worker(t, c.agent.PID())
	other.plug()
	heardBy(t, c.home, "SCN-05")
	n := 0
	hear := func(g *gadget, v posVendor) {
		t.Helper()
		serial := fmt.Sprintf("W%d", n)
		n++
		data, lot := item(serial, 70)
		g.scan(v, "]d2", data)
		c.accepted(serial, lot)
	}
	hear(g, v)
	for i := range 5 {
		from := c.events.Len()
		if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		hear(other, w)
		c.heard("SCN-04", from)
		hear(g, v)
		t.Logf("killed %d times", i+1)
		for _, pid := range family(t, c.agent.PID())[1:] {
			if pid > victim {
				victim = pid
			}
		}
	}
	// It stands still: nothing of it is heard, and nothing of it stands in anybody's way.
	if err := syscall.Kill(victim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		hear(other, w)
	}
	if err := syscall.Kill(victim, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	hear(g, v)
	if err := syscall.Kill(victim, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.agent.Stop(t) // in time, whatever the worker does
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", victim)); err == nil {
		eventually(t, "the worker is gone with the agent", func() bool { return !exists(fmt.Sprintf("/proc/%d", victim)) })
	}
}

// An agent that is killed gives no scanner back: its unit's helper does.
func TestAgentKilledRebind(t *testing.T) {
	v := posVendors()[0]
	g := newPos(t, 0, v)
	g.plug()
	c := newCounter(t, posTable("SCN-04", v.id, ""))
	heardBy(t, c.home, "SCN-04")
	reader := worker(t, c.agent.PID())
	c.agent.Kill()
	eventually(t, "its process dies with it", func() bool { return !exists(fmt.Sprintf("/proc/%d", reader)) })
	if driver := g.driver(); driver != "" {
		t.Errorf("behind a killed agent, the driver is %q", driver)
	}
	if r := c.home.Call(t, "rebind"); r.Code != 0 {
		t.Errorf("rebind: code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if driver := g.driver(); driver != "usbhid" {
		t.Errorf("given back, the driver is %q", driver)
	}
	g.node("*/hidraw/*")
}
