//go:build usbrig

package guest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
)

// cuts is how many boots end with a power cut; internal/rig knows it too.
const cuts = 2

// label is a DataMatrix of GS1 whose serial number is the item's own: each is one movement.
func label(serial string) string {
	return "]d2010030093721410621" + serial + "\x1d1728113010A1207"
}

// The whole way on real USB: a serial and a HID-POS scanner send, the agent, as the service's user, takes what it
// reads into the embedded stores, and in mid-stream the machine loses its power. After the last boot the ledger has
// exactly what was typed and told accepted, once each, and of what was typed without an answer nothing twice.
func TestPowerCut(t *testing.T) {
	b, lines := openBox(t)
	boot := len(noted(lines, "BOOT"))
	b.note("BOOT " + strconv.Itoa(boot))

	serial, v := acmScanner("CDC-77"), posVendors()[0]
	line, pos := newACM(t, 0, serial), newPos(t, 1, v)
	line.plug()
	pos.plug()
	var h *testenv.Home
	if boot == 0 {
		h = newHome(t, acmTable("SCN-04", serial)+posTable("SCN-05", v.id, ""))
		unix.Sync() // what the installation has written, long before any power cut
	} else {
		h = lastHome(t)
	}
	p := startAgent(t, h)
	heardBy(t, h, "SCN-04")
	heardBy(t, h, "SCN-05")
	if boot == cuts {
		settled(t, h, p, lines)
		return
	}

	stream := h.Follow(t)
	go func() {
		for from := 0; ; {
			e, next, err := stream.Next(context.Background(), from, func(e *testenv.Event) bool { return e.Kind == "accepted" })
			if err != nil {
				return // the power is gone
			}
			if from = next; e.Item != nil && e.Item.Serial != nil {
				b.note("ACCEPTED " + *e.Item.Serial)
			}
		}
	}()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	after := 4000 + r.IntN(8000)
	fmt.Printf("@@CUT after %d ms\n", after) // the seed is told in the log's next line
	fmt.Printf("boot %d, seed %d\n", boot, seed)
	for i := 0; ; i++ {
		serial := fmt.Sprintf("B%dN%d", boot, i)
		b.note("TYPED " + serial)
		for range 1 + r.IntN(11)/10 { // at times the trigger bounces
			if i%2 == 0 {
				line.send(label(serial) + "\r")
			} else {
				pos.scan(v, "]d2", strings.TrimPrefix(label(serial), "]d2"))
			}
		}
		<-time.After(time.Duration(r.IntN(60)) * time.Millisecond)
	}
}

// settled compares the ledger with the notes of all boots.
func settled(t *testing.T, h *testenv.Home, p *testenv.Process, lines []string) {
	s := h.Await(t, "nothing waits", func(s *testenv.Status) bool { return s.Counts.Pending == 0 && s.Frames.InFlight == 0 })
	if s.Balance() != "" || s.Counts.Unaccounted != 0 || s.Counts.Quarantined != 0 {
		t.Errorf("%s: %+v", s.Balance(), s.Counts)
	}
	typed, accepted := noted(lines, "TYPED"), noted(lines, "ACCEPTED")
	var rows []string
	for _, row := range h.Ledger(t) {
		if row.Serial == nil {
			t.Fatalf("a row without the item's serial number: %+v", row)
		}
		rows = append(rows, *row.Serial)
	}
	t.Logf("%d typed, %d told accepted, %d rows", len(typed), len(accepted), len(rows))
	if len(accepted) < 20*cuts {
		t.Errorf("only %d were told accepted: that is no stream", len(accepted))
	}
	for i, serial := range rows {
		if slices.Contains(rows[:i], serial) {
			t.Errorf("%s has two rows", serial)
		}
		if !slices.Contains(typed, serial) {
			t.Errorf("%s has a row, and was never typed", serial)
		}
	}
	for i, serial := range accepted {
		if !slices.Contains(rows, serial) {
			t.Errorf("%s was told accepted, and has no row", serial)
		}
		if slices.Contains(accepted[:i], serial) {
			t.Errorf("%s was told accepted twice", serial)
		}
	}
	p.Stop(t)
	if r := h.Call(t, "audit", "verify"); r.Code != 0 {
		t.Errorf("audit verify: code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	os.RemoveAll(h.Dir)
}
