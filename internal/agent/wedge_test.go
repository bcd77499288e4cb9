package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/window"
)

// notebook is a typist that writes down what it is to type.
type notebook struct {
	cfg    device.WedgeConfig
	notice func(error)
	texts  []string
	ended  bool
}

func (n *notebook) Run(ctx context.Context) { <-ctx.Done(); n.ended = true }
func (n *notebook) Type(text []byte)        { n.texts = append(n.texts, string(text)) }
func (n *notebook) Stats() device.WedgeStats {
	return device.WedgeStats{Typed: uint64(len(n.texts)), Lost: 1}
}

func (c *counter) alarmed(code string) bool {
	return slices.ContainsFunc(c.a.alarms.list(), func(al api.Alarm) bool { return al.Code == code })
}

// What is accepted is typed once, as a scanner in keyboard mode would, and nothing else is.
func TestWhatIsAcceptedIsTypedOnce(t *testing.T) {
	c := newCounter(t, func(cfg *config.Config) {
		cfg.Scanners[0].Wedge, cfg.Scanners[0].SymbologyPrefix = true, "~"
		cfg.Scanners[2].Wedge = true
		cfg.Wedge = config.Wedge{Layout: "de", GS: "|", End: "tab"}
	})
	var books []*notebook
	c.a.wedge.make = func(cfg device.WedgeConfig, notice func(error)) (typist, error) {
		books = append(books, &notebook{cfg: cfg, notice: notice})
		return books[len(books)-1], nil
	}
	c.a.wedge.reconfigure(c.cfg)
	c.a.wedge.reconfigure(c.cfg) // nothing new
	if len(books) != 1 || books[0].cfg != (device.WedgeConfig{Layout: "de", GS: "|", End: "tab"}) {
		t.Fatalf("%+v", books)
	}
	scan := func(scanner, data string, want device.Answer, typed ...string) {
		t.Helper()
		before := len(books[0].texts)
		answers := make(chan device.Answer, 1)
		c.a.pipe.Offer(device.Frame{Scanner: scanner, Data: device.Payload(data), Length: len(data), At: c.a.clock.Now(), Reply: replies(answers)})
		if got := <-answers; got != want {
			t.Fatalf("%q is answered with %d, want %d", data, got, want)
		}
		c.a.pipe.turn(t.Context(), func() {}) // the turn is over
		if got := books[0].texts[before:]; !slices.Equal(got, typed) {
			t.Errorf("after %q are typed %q, want %q", data, got, typed)
		}
	}
	scan("SCN-04", itemA, device.Accepted, itemA[3:])
	scan("SCN-04", itemA, device.Duplicate)
	scan("SCN-04", "]C0SCANONCE-SAMEAGAIN", device.Control, itemA[3:])
	scan("SCN-04", "]C0R1234567", device.Control, "R1234567")
	scan("SCN-04", "]C0SHELF 12", device.Control, "SHELF 12")
	scan("SCN-04", "~Q3SHELF 13", device.Rejected) // an identifier that nobody knows
	scan("SCN-04", "]d2010030093721410017271130", device.Rejected)
	scan("BASE", "07"+itemB, device.Accepted, itemB[3:])
	scan("SHARED", itemA, device.Accepted) // not configured
	c.want("accepted", "SCN-04", itemB, nil)
	c.want("accepted", "cam", itemB, nil)
	c.disk(errors.New("broken"))
	scan("SCN-04", itemC, device.NotAccepted)
	c.disk(nil)
	scan("SCN-04", itemC, device.Accepted, itemC[3:])

	books[0].notice(errors.New("cannot type scans: there is no /dev/uinput"))
	if !c.alarmed(alarmWedge) {
		t.Error("no alarm")
	}
	books[0].notice(nil)
	if c.alarmed(alarmWedge) {
		t.Error("the alarm stays")
	}

	// A reload: another layout, and nobody who wants it.
	next := *c.cfg
	next.Wedge.Layout = "us"
	typed := uint64(len(books[0].texts))
	c.a.wedge.reconfigure(&next)
	if len(books) != 2 || !books[0].ended || books[1].cfg.Layout != "us" {
		t.Fatalf("%+v", books)
	}
	if st := c.a.wedge.stats(); st != (device.WedgeStats{Typed: typed, Lost: 2}) {
		t.Errorf("stats %+v, want %d", st, typed)
	}
	books[1].notice(errors.New("cannot type scans"))
	next.Scanners = []config.Scanner{{ID: "SCN-04", ScanType: window.Dispense}}
	c.a.wedge.reconfigure(&next)
	if !books[1].ended || c.alarmed(alarmWedge) {
		t.Error("it goes on, or its alarm does")
	}
	c.a.wedge.close()
	c.a.wedge.reconfigure(c.cfg)
	if len(books) != 2 {
		t.Error("it began after its end")
	}
}
