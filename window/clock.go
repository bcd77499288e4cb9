package window

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// OS is what the clock reads of the machine.
type OS interface {
	// Wall is the kernel's idea of UTC.
	Wall() time.Time
	// WallSynced says whether the kernel's clock is disciplined by a time service, and its estimated error.
	// A step by hand ends the discipline.
	WallSynced() (bool, time.Duration)
	// Boot is the time since boot, suspend included (CLOCK_BOOTTIME).
	Boot() time.Duration
	// BootID names the boot: Boot values are comparable only under one id.
	BootID() string
}

type host struct{ bootID string }

// Host is the machine itself. A time namespace of its own counts as a boot of its own, since it shifts
// CLOCK_BOOTTIME.
func Host() (OS, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("cannot read the boot id: %w", err)
	}
	h := host{bootID: strings.TrimSpace(string(id))}
	if ns, err := os.Readlink("/proc/self/ns/time"); err == nil {
		h.bootID += "/" + ns
	}
	return h, nil
}

func (host) Wall() time.Time  { return time.Now() }
func (h host) BootID() string { return h.bootID }

func (host) Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // in Linux since 2.6.39
	}
	return time.Duration(ts.Nano())
}

func (host) WallSynced() (bool, time.Duration) {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	if err != nil || state == unix.TIME_ERROR || tx.Status&unix.STA_UNSYNC != 0 {
		return false, 0
	}
	return true, time.Duration(tx.Esterror) * time.Microsecond
}

// Mark is the state of a clock at one moment, kept over restarts.
type Mark struct {
	BootID   string        `json:"boot_id"`
	T        UTC           `json:"t_ms"`        // normalized UTC at Boot
	Boot     time.Duration `json:"boot_ns"`     // CLOCK_BOOTTIME
	Quality  Quality       `json:"quality"`     // at Boot
	Reserved UTC           `json:"reserved_ms"` // every t used so far lies before it
	Suspect  UTC           `json:"suspect_ms"`  // highest t of a time line that was left, 0 if none
}

// Reading is an instant on all scales.
type Reading struct {
	T       UTC           // normalized UTC; decreases only at a clock step
	Boot    time.Duration // CLOCK_BOOTTIME
	Quality Quality
	suspect UTC // highest t of the time line that was left
}

// Suspect says that keys made from T with policy p may collide with older ones, so that they must carry
// "again". Once T passes the highest t ever used by W + G, no key can be met a second time.
func (r Reading) Suspect(p Policy) bool {
	return r.suspect != 0 && r.T <= r.suspect.Add(p.Width+p.Guard)
}

// AsDevice is the instant t that a device or an application gave, at the same moment of this boot.
func (r Reading) AsDevice(t UTC) Reading { return Reading{T: t, Boot: r.Boot, Quality: Device} }

// Step tells of t going back because it was far ahead of the reference.
type Step struct {
	From, To UTC
}

// ClockStats is a snapshot of the clock's figures.
type ClockStats struct {
	Quality Quality
	Offset  time.Duration // reference − t at the last comparison; 0 if there was none
	Error   time.Duration // half-width of what the reference itself knows
	Steps   uint64
}

// ClockOptions are the clock's settings; the zero value takes the defaults.
type ClockOptions struct {
	Alarm time.Duration // further ahead of the reference than this, t steps back at once; default 5m
	// HighWater is the highest t found in durable records, 0 for none.
	HighWater UTC
	// NoKernelReference is set where a better reference (the ledger's clock) is fed through Correct.
	NoKernelReference bool
}

const (
	kernelCheckEvery = time.Minute      // an adjtimex call, only when somebody asks for the time
	referenceAge     = 15 * time.Minute // a reference fed through Correct is worth no more than this
	slewShare        = 10               // a backward correction takes at most 1/10 of the time that passes
	leastCorrection  = 2 * time.Millisecond
)

// Clock gives normalized UTC: an anchor plus elapsed CLOCK_BOOTTIME. Steps of the wall clock and daylight
// saving do not move it; a disciplined reference does. Safe for concurrent use.
type Clock struct {
	os   OS
	opts ClockOptions

	mu        sync.Mutex
	t         int64         // ns of UTC at boot
	boot      time.Duration // of the last advance
	debt      time.Duration // backward correction still to be slewed
	high      int64         // highest t ever given, ns
	suspect   UTC
	quality   Quality
	lastCheck time.Duration // of the reference
	checked   bool
	steps     []Step
	stats     ClockStats
}

// NewClock starts a clock. last is the mark kept from the run before, zero for none.
//
// A disciplined kernel clock is believed. Else, within the same boot, the time line of the run before goes
// on. Else nothing is proved: t begins at the later of the kernel's clock and the reserved bound, and is
// suspect until it has passed that bound.
func NewClock(o OS, last Mark, opts ClockOptions) *Clock {
	if opts.Alarm <= 0 {
		opts.Alarm = 5 * time.Minute
	}
	c := &Clock{os: o, opts: opts, boot: o.Boot(), suspect: last.Suspect}
	wall := o.Wall().UnixNano()
	synced, _ := o.WallSynced()
	sameBoot := last.BootID != "" && last.BootID == o.BootID() && c.boot >= last.Boot
	high := opts.HighWater
	start := wall
	switch {
	case synced: // proof enough to begin with; where a better reference follows, it has not confirmed it yet
		c.quality, c.lastCheck = Synced, c.boot
		if opts.NoKernelReference {
			c.quality = Holdover
		}
	case sameBoot:
		start = int64(last.T)*1e6 + int64(c.boot-last.Boot)
		if last.Quality == Synced || last.Quality == Holdover {
			c.quality = Holdover
		}
	default:
		if last.Reserved > 0 {
			start = max(wall, int64(last.Reserved)*1e6)
			c.suspect = max(c.suspect, last.Reserved)
		}
	}
	c.t, c.high = start, start
	if h := int64(high) * 1e6; high != 0 && h > start {
		// Records lie ahead of the time line that begins now: go back slowly, or at once and suspect.
		c.t, c.high = h, h
		c.correct(start, 0)
	}
	return c
}

// Now returns the current instant.
func (c *Clock) Now() Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	if !c.opts.NoKernelReference && (!c.checked || c.boot-c.lastCheck >= kernelCheckEvery) {
		c.checked, c.lastCheck = true, c.boot
		if synced, e := c.os.WallSynced(); synced {
			c.correct(c.os.Wall().UnixNano(), e)
			c.quality = Synced
		} else if c.quality == Synced {
			c.quality = Holdover
		}
	}
	if c.opts.NoKernelReference && c.quality == Synced && c.boot-c.lastCheck > referenceAge {
		c.quality = Holdover
	}
	c.high = max(c.high, c.t)
	return Reading{T: floorMilli(c.t), Boot: c.boot, Quality: c.quality, suspect: c.suspect}
}

// Boot returns CLOCK_BOOTTIME, for measuring elapsed time.
func (c *Clock) Boot() time.Duration { return c.os.Boot() }

// Correct compares t with a reference whose error is at most e. Forward corrections apply at once,
// backward ones are slewed, one beyond the alarm bound is a step.
func (c *Clock) Correct(reference UTC, e time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance()
	c.correct(int64(reference)*1e6, e)
	c.quality, c.lastCheck = Synced, c.boot
}

func (c *Clock) correct(ref int64, e time.Duration) {
	off := time.Duration(ref - c.t)
	c.stats.Offset, c.stats.Error = off, e
	if off.Abs() <= max(e, leastCorrection) {
		c.debt = 0 // what an earlier reference wanted is settled
		return
	}
	// The truth lies within e of the reference. To go further than to the nearer end of that may lead away from it:
	// behind a slow reply, by more than two agents' clocks may differ.
	switch {
	case off > 0:
		c.t, c.debt = ref-int64(e), 0
	case -off > c.opts.Alarm:
		c.suspect = max(c.suspect, floorMilli(max(c.high, c.t)))
		c.steps = append(c.steps, Step{From: floorMilli(c.t), To: floorMilli(ref)})
		c.stats.Steps++
		c.t, c.debt = ref, 0
	default:
		c.debt = -off - e
	}
}

func (c *Clock) advance() {
	now := c.os.Boot()
	d := now - c.boot
	if d < 0 {
		d = 0
	}
	c.boot = now
	pay := min(c.debt, d/slewShare)
	c.debt -= pay
	c.t += int64(d - pay)
}

// Mark returns what to keep over a restart, with every t below now + ahead reserved.
func (c *Clock) Mark(ahead time.Duration) Mark {
	r := c.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return Mark{BootID: c.os.BootID(), T: r.T, Boot: r.Boot, Quality: r.Quality,
		Reserved: max(floorMilli(c.high), c.suspect).Add(ahead), Suspect: c.suspect}
}

// BootID names the current boot.
func (c *Clock) BootID() string { return c.os.BootID() }

// TakeSteps returns the steps since the last call.
func (c *Clock) TakeSteps() []Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.steps
	c.steps = nil
	return s
}

// Stats returns the clock's figures.
func (c *Clock) Stats() ClockStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Quality = c.quality
	return s
}

func floorMilli(ns int64) UTC {
	ms := ns / 1e6
	if ns%1e6 < 0 {
		ms--
	}
	return UTC(ms)
}
