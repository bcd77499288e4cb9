//go:build usbrig

package guest

import (
	"testing"

	"scanonce/internal/testenv"
)

// What a serial scanner sends and the agent accepts reaches the console as if the scanner were a keyboard, once, through
// a keyboard of the agent's own, to which the rules give its user the right.
func TestAgentTypes(t *testing.T) {
	id := acmScanner("CDC-78")
	g := newACM(t, 0, id)
	g.plug()
	h := newHome(t, acmTable("SCN-04", id)+"wedge = true\n")
	c := counterAt(t, h)
	h.Await(t, "it has no right to type", func(s *testenv.Status) bool { return s.Alarm("wedge") != nil })
	grant(t, h)
	own := ownKeyboard(t)
	h.Await(t, "it can type", func(s *testenv.Status) bool { return s.Alarm("wedge") == nil })
	screen := openConsole(t, own)
	heardBy(t, h, "SCN-04")
	g.send("]E00" + upc + "\r")
	screen.pressed(append([]int{11}, upcCodes()...)...)
	g.send("]E00" + upc + "\r") // a duplicate
	g.send("]C012345\r")        // no item, but the application may know it
	screen.pressed(2, 3, 4, 5, 6, keyEnter)
	for _, want := range []string{"accepted", "duplicate", "unknown"} {
		if e := c.next(want); e.Kind != want {
			t.Errorf("told %s, want %s", e.Data, want)
		}
	}
	g.send(label("W1") + "\r")
	c.accepted("W1", "A1207")
	// Shift with W and with A, Ctrl+] for GS.
	screen.skip(2*len("010030093721410621W1\x1d1728113010A1207\r") + 6)
	screen.silent()
	c.agent.Stop(t)
	eventually(t, "the agent's own keyboard is gone", func() bool { return len(glob(virtualKeyboards)) == 0 })
}
