package spool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

// decide adds a candidate to the batch.
func (r *rig) decide(b *Batch, c Candidate) Decision {
	r.t.Helper()
	d, err := b.Decide(&c)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// A key with a window's number in it cannot tell a bounce over a window's boundary; the local rule does not
// look at windows at all.
func TestBounceAtEveryPhase(t *testing.T) {
	for _, tc := range []struct {
		typ     window.ScanType
		offsets []time.Duration
	}{
		{window.Dispense, []time.Duration{1, 50, 500, 2999}},
		{window.Count, []time.Duration{1, 50, 200, 399}},
	} {
		t.Run(tc.typ.String(), func(t *testing.T) {
			r := newRig(t)
			p := window.Default(tc.typ)
			start := p.Start(p.Index(r.clock.Now().T))
			b := r.spool.NewBatch()
			boot := r.os.boot
			for _, off := range tc.offsets {
				off *= time.Millisecond
				seedMisses := 0
				for phase := range p.Width / time.Millisecond {
					boot += 10 * time.Second
					c := r.candidate(fmt.Sprint(off, phase))
					c.Identity.Type, c.Policy = tc.typ, p
					c.At = window.Reading{T: start.Add(phase * time.Millisecond), Boot: boot}
					first := r.decide(b, c)
					r.wantNew(first, "first")
					c.At = window.Reading{T: c.At.T.Add(off), Boot: boot + off}
					if c.Identity.Keys(p, c.At.T).Idem != first.Record.Keys.Idem {
						seedMisses++
					}
					r.wantDuplicate(r.decide(b, c), first, ReasonBounce, fmt.Sprintf("phase %d, %v later", phase, off))
				}
				if seedMisses != int(off/time.Millisecond) {
					t.Errorf("a bare window key misses %d bounces after %v; every pair that straddles should be missed", seedMisses, off)
				}
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestLocalRuleIsAnchoredAndExact(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := newRig(t)
		span := 3 * time.Second
		if shared {
			span += 500 * time.Millisecond
		}
		next := func(d time.Duration) Decision {
			r.os.pass(d)
			c := r.candidate("A")
			c.Shared = shared
			return r.scan(c)
		}
		first := next(0)
		r.wantDuplicate(next(2*time.Second), first, ReasonBounce, "bounce")
		r.wantDuplicate(next(span-2*time.Second-time.Millisecond), first, ReasonBounce, "1 ms before the span is over")
		second := next(time.Millisecond)
		r.wantNew(second, "after the span")
		r.wantDuplicate(next(span-time.Millisecond), second, ReasonBounce, "bounce of the second")
		r.wantNew(next(time.Millisecond), "after the second's span")
	}
}

// The first has a one-shot quantity of 30, which is used up when the echo comes: its identity says 1.
func TestBounceInheritsOneShotQuantity(t *testing.T) {
	r := newRig(t)
	c := r.candidate("A")
	c.Identity.Quantity = 30
	first := r.scan(c)
	r.os.pass(120 * time.Millisecond)
	echo := r.candidate("A")
	if echo.Identity.Keys(echo.Policy, echo.At.T).Idem == first.Record.Keys.Idem {
		t.Fatal("the echo's own key is the first's: nothing is tested")
	}
	d := r.scan(echo)
	r.wantDuplicate(d, first, ReasonBounce, "echo")
	if d.Record.Quantity != 30 {
		t.Fatalf("quantity %d", d.Record.Quantity)
	}
}

func TestActOfTheUserInBetween(t *testing.T) {
	type step struct {
		after  time.Duration
		act    bool // just before the frame
		resend bool
		typ    window.ScanType
		want   int // the step that it repeats, -1 for new
	}
	const ms = time.Millisecond
	for name, steps := range map[string][]step{
		"type changed by the user":                     {{typ: window.Dispense, want: -1}, {after: 700 * ms, act: true, typ: window.Return, want: -1}},
		"type changed by itself":                       {{typ: window.Return, want: -1}, {after: 700 * ms, typ: window.Dispense, want: 0}},
		"echo within 300 ms":                           {{want: -1}, {after: 300 * ms, act: true, want: 0}},
		"just later than an echo":                      {{want: -1}, {after: 301 * ms, act: true, want: -1}},
		"echo of an echo":                              {{want: -1}, {after: 250 * ms, want: 0}, {after: 250 * ms, act: true, want: 0}, {after: 301 * ms, want: -1}},
		"known resend":                                 {{want: -1}, {after: 2000 * ms, act: true, resend: true, want: 0}},
		"act before the first":                         {{act: true, want: -1}, {after: 700 * ms, want: 0}},
		"same type again, by the user, is an act":      {{want: -1}, {after: 2900 * ms, act: true, want: -1}},
		"after the act the new one is what is matched": {{want: -1}, {after: 700 * ms, act: true, want: -1}, {after: 700 * ms, want: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var told []Decision
			var act time.Duration
			for i, s := range steps {
				r.os.pass(s.after)
				if s.act {
					act = r.os.boot - ms
				}
				c := r.candidate("A")
				c.Act, c.Resend = act, s.resend
				c.Heard, c.Resends = true, Resends{Interval: 2 * time.Second, Marked: true}
				if s.typ != 0 {
					c.Identity.Type = s.typ
				}
				d := r.scan(c)
				what := fmt.Sprintf("frame %d", i)
				reason := ReasonBounce
				if s.resend {
					reason = ReasonResend
				}
				if s.want < 0 {
					r.wantNew(d, what)
				} else {
					r.wantDuplicate(d, told[s.want], reason, what)
				}
				told = append(told, d)
			}
		})
	}
}

// An act that happens after the frame arrived, but before it is decided, lies not between.
func TestActAfterTheFrameDoesNotCount(t *testing.T) {
	r := newRig(t)
	first := r.later(0, "A")
	r.os.pass(time.Second)
	c := r.candidate("A")
	c.Act = c.At.Boot + 1
	r.wantDuplicate(r.scan(c), first, ReasonBounce, "frame before the act")
}

func TestDifferentThingsShareNothing(t *testing.T) {
	r := newRig(t)
	make := func(element string, set func(*idem.Identity)) Candidate {
		c := r.candidate("")
		c.Physical = idem.PhysicalKey("SCN-04", []byte(element))
		set(&c.Identity)
		return c
	}
	keys := map[idem.Key]string{}
	seed := map[string]string{}
	collides := 0
	for _, c := range []Candidate{
		make("bottle 1", func(id *idem.Identity) { id.Lot, id.Serial = "L", "S1" }),
		make("bottle 2", func(id *idem.Identity) { id.Lot, id.Serial = "L", "S2" }),
		make("lot with a bar", func(id *idem.Identity) { id.NDC, id.Lot = "N", "A|1" }),
		make("ndc with a bar", func(id *idem.Identity) { id.NDC, id.Lot = "N|A", "1" }),
	} {
		d := r.scan(c)
		r.wantNew(d, "another thing")
		if strings.Contains(d.Record.Extras, "again") {
			t.Fatalf("told apart only by its event: %s", d.Record.Extras)
		}
		id := c.Identity
		plain := fmt.Sprint(id.NDC, "|", id.Lot, "|", id.Quantity, "|", id.Type, "|", c.Policy.Index(c.At.T))
		for _, k := range []idem.Key{d.Record.Keys.Idem, d.Record.Keys.Edge} {
			if other, ok := keys[k]; ok && !k.IsZero() {
				t.Fatalf("%s and %s share a key", other, plain)
			}
			keys[k] = plain
		}
		if _, ok := seed[plain]; ok {
			collides++
		}
		seed[plain] = plain
		r.os.pass(100 * time.Millisecond)
	}
	if collides != 2 {
		t.Fatalf("plain joined fields collide %d times, expected 2: nothing is tested", collides)
	}
}

func wantAgain(t *testing.T, d Decision, id idem.Identity, p window.Policy) {
	t.Helper()
	id.Again = d.Record.Event.String()
	if want := id.Keys(p, d.Record.At); d.Record.Keys != want {
		t.Fatalf("keys %v, %v do not carry again=%s", d.Record.Keys.Idem, d.Record.Keys.Edge, id.Again)
	}
	if d.Record.Extras != "again="+id.Again {
		t.Fatalf("extras %q", d.Record.Extras)
	}
}

// atBoundary moves the clock off from a boundary, into its guard zone, where a scan has both keys.
func (r *rig) atBoundary(off time.Duration) {
	r.t.Helper()
	p := window.Default(window.Dispense)
	t := r.clock.Now().T
	r.os.pass(p.Start(p.Index(t) + 2).Add(off).Sub(t))
	if _, ok := p.Boundary(r.clock.Now().T); !ok {
		r.t.Fatal("not at a boundary")
	}
}

func TestSameAgain(t *testing.T) {
	t.Run("armed", func(t *testing.T) {
		r := newRig(t)
		r.atBoundary(10 * time.Millisecond)
		r.later(0, "A")
		r.os.pass(310 * time.Millisecond)
		c := r.candidate("A")
		c.Again, c.Act = true, c.At.Boot-1
		d := r.scan(c)
		r.wantNew(d, "armed")
		wantAgain(t, d, c.Identity, c.Policy)
	})
	t.Run("armed, in another window", func(t *testing.T) {
		r := newRig(t)
		r.later(0, "A")
		r.os.pass(10 * time.Second)
		c := r.candidate("A")
		c.Again = true
		wantAgain(t, r.scan(c), c.Identity, c.Policy)
	})
	t.Run("not used up by a bounce", func(t *testing.T) {
		r := newRig(t)
		first := r.later(0, "A")
		r.os.pass(200 * time.Millisecond)
		c := r.candidate("A")
		c.Again, c.Act = true, c.At.Boot-1
		r.wantDuplicate(r.scan(c), first, ReasonBounce, "echo while armed")
	})
	t.Run("converted", func(t *testing.T) {
		r := newRig(t)
		first := r.later(0, "A")
		dup := r.later(time.Second, "A")
		r.wantDuplicate(dup, first, ReasonBounce, "told duplicate")
		r.os.pass(1500 * time.Millisecond)
		c := r.candidate("A")
		c.Converts = dup.Record.Boot
		conv := r.scan(c)
		r.wantNew(conv, "converted")
		wantAgain(t, conv, c.Identity, c.Policy)
		if conv.Record.Anchor != dup.Record.Boot {
			t.Fatalf("anchored at %v, the frame came at %v", conv.Record.Anchor, dup.Record.Boot)
		}
		// The local rule counts from the frame that was converted, 1.5 s before the conversion.
		r.wantDuplicate(r.later(1499*time.Millisecond, "A"), conv, ReasonBounce, "bounce of the converted")
		r.reopen(true)
		r.wantNew(r.later(time.Millisecond, "A"), "W after the converted frame")
	})
}

func TestTakenKey(t *testing.T) {
	t.Run("after an act", func(t *testing.T) {
		r := newRig(t)
		r.atBoundary(10 * time.Millisecond)
		first := r.later(0, "A")
		r.os.pass(400 * time.Millisecond)
		c := r.candidate("A")
		c.Act = c.At.Boot - 1
		if c.Identity.Keys(c.Policy, c.At.T) != first.Record.Keys {
			t.Fatal("the keys are not taken: nothing is tested")
		}
		d := r.scan(c)
		r.wantNew(d, "the same, after an act, in the same window")
		wantAgain(t, d, c.Identity, c.Policy)
	})
	t.Run("edge key alone", func(t *testing.T) {
		r := newRig(t)
		r.atBoundary(-100 * time.Millisecond)
		first := r.later(0, "A")
		r.os.pass(400 * time.Millisecond)
		c := r.candidate("A")
		c.Act = c.At.Boot - 1
		if k := c.Identity.Keys(c.Policy, c.At.T); k.Idem == first.Record.Keys.Idem || k.Edge != first.Record.Keys.Edge {
			t.Fatal("not only the edge key is taken: nothing is tested")
		}
		d := r.scan(c)
		r.wantNew(d, "over the boundary")
		wantAgain(t, d, c.Identity, c.Policy)
	})
	t.Run("another barcode of the same item", func(t *testing.T) {
		r := newRig(t)
		r.later(0, "A")
		c := r.candidate("A")
		c.Physical = idem.PhysicalKey("SCN-04", []byte("the linear one"))
		d := r.scan(c)
		r.wantNew(d, "the other barcode")
		wantAgain(t, d, c.Identity, c.Policy)
	})
	t.Run("shared scanner", func(t *testing.T) {
		r := newRig(t)
		c := r.candidate("A")
		c.Shared = true
		first := r.scan(c)
		c = r.candidate("A")
		c.Shared, c.Physical = true, idem.PhysicalKey("SCN-04", []byte("the linear one"))
		r.wantDuplicate(r.scan(c), first, ReasonBounce, "a taken key at a shared scanner")
	})
}

// While t goes through instants that were used before, every key is fresh.
func TestSuspectClock(t *testing.T) {
	check := func(t *testing.T, r *rig, bound window.UTC) {
		t.Helper()
		p := window.Default(window.Dispense)
		over := bound.Add(p.Width + p.Guard)
		for _, at := range []window.UTC{bound - 1, bound, bound + 1, over} {
			now := r.clock.Now().T
			if at < now {
				continue // a new boot begins at the bound
			}
			r.os.pass(at.Sub(now))
			c := r.candidate(fmt.Sprint(at))
			if c.At.T != at {
				t.Fatalf("t is %v, want %v", c.At.T, at)
			}
			wantAgain(t, r.scan(c), c.Identity, p)
		}
		r.os.pass(time.Millisecond)
		if d := r.scan(r.candidate("over")); d.Record.Extras != "" {
			t.Fatalf("the bound is passed by W+G, and there is still %s", d.Record.Extras)
		}
	}
	t.Run("stepped back", func(t *testing.T) {
		r := newRig(t)
		bound := r.scan(r.candidate("A")).Record.At
		r.clock.Correct(bound.Add(-time.Hour), 0)
		check(t, r, bound)
	})
	t.Run("stepped back, then restarted", func(t *testing.T) {
		for _, clean := range []bool{false, true} {
			r := newRig(t)
			bound := r.scan(r.candidate("A")).Record.At
			r.os.wall, r.os.synced = r.os.wall.Add(-time.Hour), true
			r.os.pass(time.Minute)   // the kernel is asked
			r.scan(r.candidate("B")) // the newest record is not the highest
			r.reopen(clean)
			if d := r.scan(r.candidate("C")); d.Record.At > bound.Add(-50*time.Minute) || d.Record.Extras == "" {
				t.Fatalf("t %v after a step back from %v, extras %q", d.Record.At, bound, d.Record.Extras)
			}
		}
	})
	t.Run("stepped back long ago, then restarted", func(t *testing.T) {
		for _, clean := range []bool{false, true} {
			r := newRig(t)
			r.os.pass(50 * time.Second) // later than the sidecar's clock
			bound := r.scan(r.candidate("A")).Record.At
			r.clock.Correct(bound.Add(-time.Hour), 0)
			for i := range 15 { // until A is older than what a restart reads
				r.later(time.Minute, fmt.Sprint(i))
				if err := r.spool.Maintain(); err != nil {
					t.Fatal(err)
				}
			}
			r.reopen(clean)
			check(t, r, bound)
		}
	})
	t.Run("shared scanner", func(t *testing.T) {
		r := newRig(t)
		c := r.candidate("A")
		c.Shared = true
		at := r.scan(c).Record.At
		r.os.pass(6 * time.Minute)
		r.clock.Correct(at, 0)
		c = r.candidate("A")
		c.Shared = true
		r.wantNew(r.scan(c), "six minutes later, at the same t")
	})
	t.Run("a boot that proves nothing", func(t *testing.T) {
		r := newRig(t)
		r.scan(r.candidate("A"))
		r.reboot(-24 * time.Hour)
		check(t, r, r.clock.Mark(0).Reserved)
	})
}
