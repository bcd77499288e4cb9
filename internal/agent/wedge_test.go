package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

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

func (n *notebook) Run(ctx context.Context)           { <-ctx.Done(); n.ended = true }
func (n *notebook) Type(text []byte, _ time.Duration) { n.texts = append(n.texts, string(text)) }
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
	before := len(books[0].texts)
	c.want("accepted", "SCN-04", itemB, nil)
	c.want("accepted", "cam", itemB, nil)
	c.want("duplicate", "SCN-04", itemB, nil)
	if _, err := c.a.SameAgain(t.Context(), "SCN-04", ""); err != nil {
		t.Fatal(err)
	}
	c.a.pipe.turn(t.Context(), func() {})
	if got := books[0].texts[before:]; len(got) > 0 {
		t.Errorf("of an application's scans are typed %q", got)
	}
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

// typing is an agent whose scanner SCN-04 is typed, on a clock that the test puts forward.
func typing(t *testing.T, change func(*config.Config)) (*agent, *advanced, *notebook) {
	t.Helper()
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.StateDir = "F", t.TempDir()
	s := config.DefaultScanner()
	s.ID, s.Wedge = "SCN-04", true
	cfg.Scanners = []config.Scanner{s}
	if change != nil {
		change(cfg)
	}
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	clock := &advanced{OS: host}
	a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(false) })
	book := &notebook{}
	a.wedge.make = func(device.WedgeConfig, func(error)) (typist, error) { return book, nil }
	a.wedge.reconfigure(cfg)
	t.Cleanup(a.wedge.close)
	return a, clock, book
}

// hears takes a frame of SCN-04 in.
func (a *agent) hears(f device.Frame) (got device.Answer) {
	f.Scanner, f.Length, f.At = "SCN-04", len(f.Data), a.clock.Now()
	answers := make(chan device.Answer, 1)
	f.Reply = replies(answers)
	b := a.spool.NewBatch()
	a.pipe.frame(b, f)
	a.pipe.deliver(b.Commit())
	return <-answers
}

// What a memory has sent before is not counted until a person says so, and not typed. What only began like it is typed, in
// its order, once that is known.
func TestRepeatedBatchIsNotTyped(t *testing.T) {
	a, clock, book := typing(t, nil)
	label := func(n int) string { return fmt.Sprintf("01003009372141062100B%02d\x1d17271130", n) }
	var want []string
	dump := func(labels ...int) {
		for _, n := range labels {
			clock.by += 20 * time.Millisecond
			if got := a.hears(device.Frame{Data: device.Payload("]d2" + label(n))}); got != device.Accepted {
				t.Fatalf("label %d is answered with %d", n, got)
			}
		}
	}
	quiet := func() {
		clock.by += time.Minute
		a.pipe.lapse()
	}
	typed := func(what string, labels ...int) {
		t.Helper()
		for _, n := range labels {
			want = append(want, label(n))
		}
		if !slices.Equal(book.texts, want) {
			t.Fatalf("%s: typed %q, want %q", what, book.texts, want)
		}
	}
	all := make([]int, 2*a.cfg.Batch.Count)
	for i := range all {
		all[i] = i
	}
	dump(all...)
	typed("the first copy", all...)
	quiet()
	dump(all...)
	quiet()
	typed("the second copy")
	if n := len(a.spool.WaitingBatches()); n != 1 {
		t.Fatalf("%d batches wait", n)
	}
	dump(0, 1, 2)
	typed("what may be the third copy")
	dump(50)
	typed("it is none", 0, 1, 2, 50)
	quiet()
	// A text that names no item goes behind the items before it, whatever these are waiting for.
	dump(5)
	clock.by += 20 * time.Millisecond
	a.hears(device.Frame{Data: device.Payload("]C0CONFIRM")})
	typed("an item that waits, and a text")
	quiet()
	want = append(want, label(5), "CONFIRM")
	typed("in their order")
	quiet()
	dump(3, 4)
	typed("what may be the third copy")
	quiet()
	typed("it was none", 3, 4)
}

// The frame by which a repeated batch is known may be a local duplicate: its memory holds one item twice.
func TestRepeatedBatchIsKnownByADuplicate(t *testing.T) {
	a, clock, book := typing(t, nil)
	dump := func() {
		for n := range a.cfg.Batch.Count {
			clock.by += 20 * time.Millisecond
			n = min(n, a.cfg.Batch.Count-2) // the last two are equal
			a.hears(device.Frame{Data: device.Payload(fmt.Sprintf("]d201003009372141062100B%02d\x1d17271130", n))})
		}
		clock.by += time.Minute
		a.pipe.lapse()
	}
	dump()
	first := len(book.texts)
	dump()
	if waiting := a.spool.WaitingBatches(); len(waiting) != 1 || first != a.cfg.Batch.Count-1 || len(book.texts) != first {
		t.Errorf("%d batches wait; of the first copy %d were typed, of the second %d", len(waiting), first, len(book.texts)-first)
	}
}

// A text that names no item is typed once for all its echoes, and for what a scanner sends again.
func TestEchoesOfATextAreTypedOnce(t *testing.T) {
	a, clock, book := typing(t, func(c *config.Config) {
		c.Scanners[0].Framing, c.Scanners[0].ScanType = "ssi", window.Receive // W is 400 ms
	})
	want := 0
	for _, s := range []struct {
		after  time.Duration
		data   string
		resend bool
		typed  bool
	}{
		{0, "]C0SHELF 12", false, true}, {200 * time.Millisecond, "]C0SHELF 12", false, false}, {2 * time.Second, "]C0SHELF 12", true, false},
		{2 * time.Second, "]C0SHELF 12", false, true}, {100 * time.Millisecond, "]C0SHELF 13", false, true},
		{100 * time.Millisecond, "]C0SHELF 14", true, true}, // the first time it was damaged
		{20 * time.Second, "]C0SHELF 14", true, true},
		{50 * time.Millisecond, itemA, false, true}, {50 * time.Millisecond, "]C0SHELF 14", false, true}, // behind an item
	} {
		clock.by += s.after
		answer := device.Control
		if s.data == itemA {
			answer = device.Accepted
		}
		if got := a.hears(device.Frame{Data: device.Payload(s.data), Resend: s.resend}); got != answer {
			t.Fatalf("answered with %d", got)
		}
		if s.typed {
			want++
		}
		if len(book.texts) != want {
			t.Fatalf("after %+v: typed %q", s, book.texts)
		}
	}
}

// What a scanner sends in place of GS is typed as GS.
func TestSubstituteIsTypedAsGS(t *testing.T) {
	a, _, book := typing(t, func(c *config.Config) { c.Scanners[0].GSSubstitute = "~" })
	a.hears(device.Frame{Data: device.Payload("]d2010030093721410621S1~1727113010A1")})
	a.hears(device.Frame{Data: device.Payload("]C0SHELF~12")})
	if want := []string{"010030093721410621S1\x1d1727113010A1", "SHELF~12"}; !slices.Equal(book.texts, want) {
		t.Errorf("typed %q, want %q", book.texts, want)
	}
}
