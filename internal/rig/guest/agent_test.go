//go:build usbrig

package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/testenv"
)

// The service's user and the group that it has besides its own, as in the shipped unit: scanonce and dialout.
const (
	serviceUser  = 990
	serviceGroup = 20
)

// stateDisk is the file system that outlives a power cut.
const stateDisk = "/var/lib/scanonce"

// newHome makes the home of an agent on the state disk, with these tables for its scanners.
func newHome(t *testing.T, scanners string) *testenv.Home {
	t.Helper()
	t.Setenv("TMPDIR", stateDisk)
	h := program.NewHome(t, testenv.Setup{Scanners: []string{}, Sections: scanners})
	if err := os.Chown(h.Dir, serviceUser, serviceUser); err != nil {
		t.Fatal(err)
	}
	return h
}

// lastHome is the home that a power cut has left.
func lastHome(t *testing.T) *testenv.Home {
	t.Helper()
	t.Setenv("TMPDIR", stateDisk)
	found := glob(filepath.Join(stateDisk, "so*"))
	if len(found) != 1 {
		t.Fatalf("the homes %v; the power cut should have left one", found)
	}
	h := program.OpenHome(found[0])
	t.Cleanup(func() {
		if t.Failed() {
			log := text(h.Log)
			t.Logf("the end of the agent's log:\n%s", log[max(0, len(log)-4000):])
		}
	})
	return h
}

// startAgent starts the agent as the service does: without any privilege.
func startAgent(t *testing.T, h *testenv.Home) *testenv.Process {
	t.Helper()
	cmd := h.Command(context.Background(), "run")
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: serviceUser, Gid: serviceUser, Groups: []uint32{serviceGroup}}
	p := h.StartAs(t, cmd)
	status := text("/proc/" + strconv.Itoa(p.PID()) + "/status")
	for _, want := range []string{"\nUid:\t990\t990\t990\t990\n", "\nCapEff:\t0000000000000000\n"} {
		if !strings.Contains(status, want) {
			t.Fatalf("the agent has rights of its own: %s", status)
		}
	}
	return p
}

// heardBy waits until the agent reads a scanner.
func heardBy(t *testing.T, h *testenv.Home, scanner string) {
	t.Helper()
	h.Await(t, "the agent hears "+scanner, func(s *testenv.Status) bool {
		sc := s.Scanner(scanner)
		return sc != nil && sc.State == "reading"
	})
}

// acmTable is the table of a serial scanner, by what it says of itself.
func acmTable(id string, dev identity) string {
	return fmt.Sprintf("[[scanner]]\nid = %q\ntransport = \"serial\"\nusb = \"%04x:%04x:%s\"\n", id, dev.vendor, dev.product, dev.serial)
}

// posTable is the table of a HID-POS scanner.
func posTable(id string, dev identity, more string) string {
	return fmt.Sprintf("[[scanner]]\nid = %q\ntransport = \"hid-pos\"\nusb = \"%04x:%04x:%s\"\n%s\n", id, dev.vendor, dev.product, dev.serial, more)
}

// counter is an agent with one who watches its events.
type counter struct {
	t      *testing.T
	home   *testenv.Home
	agent  *testenv.Process
	events *testenv.Stream
	at     int // position in the events
}

// newCounter starts an agent with these tables for its scanners, and follows it.
func newCounter(t *testing.T, scanners string) *counter {
	t.Helper()
	return counterAt(t, newHome(t, scanners))
}

// counterAt starts the agent of a home, and follows it.
func counterAt(t *testing.T, h *testenv.Home) *counter {
	t.Helper()
	c := &counter{t: t, home: h}
	began := time.Now()
	c.home.Call(t, "version")
	t.Logf("a process takes %v to start", time.Since(began).Round(time.Millisecond))
	c.agent = startAgent(t, c.home)
	c.events = c.home.Follow(t)
	return c
}

// accepted waits until the item with this serial number and lot is the next one to be accepted.
func (c *counter) accepted(serial, lot string) {
	c.t.Helper()
	e := c.next(serial)
	if e.Kind != "accepted" || e.Item == nil || e.Item.Serial == nil || *e.Item.Serial != serial || e.Item.Lot == nil || *e.Item.Lot != lot {
		c.t.Fatalf("after a scan of %s, lot %s, came %s", serial, lot, e.Data)
	}
}

// voided waits until the next thing that is told of a scan is that a part of one came.
func (c *counter) voided() {
	c.t.Helper()
	if e := c.next("a part of a scan"); e.Kind != "not_accepted" || e.Reason != "incomplete" {
		c.t.Fatalf("after a part of a scan came %s", e.Data)
	}
}

// heard waits for an event that says that a scanner is read, from a position in the events on.
func (c *counter) heard(scanner string, from int) {
	c.t.Helper()
	c.state(scanner, from, "reading")
}

// state waits for an event that tells this state of a scanner.
func (c *counter) state(scanner string, from int, state string) {
	c.t.Helper()
	c.events.Wait(c.t, from, scanner+" is "+state, func(e *testenv.Event) bool {
		return e.Kind == "device" && e.ScannerID == scanner && e.State == state
	})
}

// next is the next event that tells of a scan.
func (c *counter) next(what string) testenv.Event {
	c.t.Helper()
	e, at := c.events.Wait(c.t, c.at, "something of "+what, func(e *testenv.Event) bool {
		switch e.Kind {
		case "accepted", "duplicate", "rejected", "not_accepted", "unknown":
			return true
		}
		return false
	})
	c.at = at
	return e
}

// rows are the ledger's, by the items' serial numbers; nothing waits any more, and no item has two.
func (c *counter) rows() map[string]testenv.Row {
	c.t.Helper()
	s := c.home.Await(c.t, "nothing waits", func(s *testenv.Status) bool { return s.Counts.Pending == 0 && s.Frames.InFlight == 0 })
	if s.Balance() != "" {
		c.t.Error(s.Balance())
	}
	out := map[string]testenv.Row{}
	for _, r := range c.home.Ledger(c.t) {
		if r.Serial == nil {
			c.t.Fatalf("a row without the item's serial number: %+v", r)
		}
		if _, twice := out[*r.Serial]; twice {
			c.t.Errorf("%s has two rows", *r.Serial)
		}
		out[*r.Serial] = r
	}
	return out
}

// grant gives the service's user the configured scanners, by the rules that the program makes of the configuration
// for those that the shipped rules do not know.
func grant(t *testing.T, h *testenv.Home) {
	t.Helper()
	r := h.Call(t, "udev")
	if r.Code != 0 {
		t.Fatalf("udev: code %d: %s", r.Code, r.Stderr)
	}
	const rules = "/etc/udev/rules.d/68-scanonce-local.rules"
	write(t, rules, r.Stdout)
	t.Cleanup(func() { os.Remove(rules) })
	for _, args := range [][]string{{"control", "--reload"}, {"trigger", "--action=add"}, {"settle"}} {
		if out, err := exec.Command("udevadm", args...).CombinedOutput(); err != nil {
			t.Fatalf("udevadm %v: %v: %s", args, err, out)
		}
	}
}
