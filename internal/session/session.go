// Package session holds what a scanner's user has set: the scan type, a one-shot quantity, "same again", and
// the prescription label that was scanned last. All instants are CLOCK_BOOTTIME, so that no clock step ends a
// mode early or late.
package session

import (
	"errors"
	"fmt"
	"time"

	"scanonce/window"
)

// Bounds of a quantity.
const (
	MinQuantity = 1
	MaxQuantity = 9999
)

// Settings of a scanner. Home is the scan type that it falls back to.
type Settings struct {
	Home            window.ScanType
	Shared          bool // several agents hear it: only command barcodes reach all of them
	ModeIdle        time.Duration
	QuantityTimeout time.Duration
	RxContext       time.Duration // how long a label belongs to the scans behind it
}

// ErrShared refuses an act that the other agents of a shared scanner would not see.
var ErrShared = errors.New("cannot do that at a shared scanner: the other workstations would not know")

// ErrQuantity refuses a quantity out of bounds.
var ErrQuantity = fmt.Errorf("cannot use that quantity: write %d to %d", MinQuantity, MaxQuantity)

// State is one scanner's session. It is a plain value: a copy restores it.
type State struct {
	Settings Settings

	mode     window.ScanType // 0: Home
	modeUsed time.Duration   // last use of the mode
	quantity int             // 0: none set
	quantAt  time.Duration
	armed    bool
	act      time.Duration
	rx       string          // token of the last label; "": none
	rxAt     time.Duration   // when it came
	rxMode   window.ScanType // the scan type in which it came
}

// New begins a session.
func New(s Settings) State { return State{Settings: s} }

// Current is the scan type and quantity of a scan at boottime now.
func (s *State) Current(now time.Duration) (t window.ScanType, quantity int) {
	t, quantity = s.Settings.Home, 1
	if s.modeSet(now) {
		t = s.mode
	}
	if s.quantitySet(now) {
		quantity = s.quantity
	}
	return t, quantity
}

func (s *State) modeSet(now time.Duration) bool {
	return s.mode != 0 && s.mode != s.Settings.Home && now-s.modeUsed < s.Settings.ModeIdle
}

func (s *State) quantitySet(now time.Duration) bool {
	return s.quantity != 0 && now-s.quantAt < s.Settings.QuantityTimeout
}

// Armed says that the next scan is a movement of its own even if it looks like the last.
func (s *State) Armed() bool { return s.armed }

// Act is when the user last did something on purpose, 0 for never. Automatic changes are no acts.
func (s *State) Act() time.Duration { return s.act }

// SetLabel makes the token of a label that of the scans that follow. It takes the place of the last one's.
func (s *State) SetLabel(token string, now time.Duration) {
	t, _ := s.Current(now)
	s.rx, s.rxAt, s.rxMode = token, now, t
	s.Heard(now)
}

// RxToken is the token of the label to which a scan at boottime now belongs; "" for none. A label ends with the
// next one, after RxContext, and with the scan type in which it was scanned: whoever begins to receive stock has
// left the prescription. A scan does not use it up, since a prescription may take several containers.
func (s *State) RxToken(now time.Duration) string {
	if t, _ := s.Current(now); t != s.rxMode || now-s.rxAt >= s.Settings.RxContext {
		return ""
	}
	return s.rx
}

// SetMode sets the scan type until the scanner has been idle for ModeIdle.
func (s *State) SetMode(t window.ScanType, now time.Duration) {
	if old, _ := s.Current(now); old != t {
		s.rx = ""
	}
	s.mode, s.modeUsed, s.act = t, now, now
}

// SetQuantity sets the quantity of the next scan.
func (s *State) SetQuantity(q int, now time.Duration) error {
	if q < MinQuantity || q > MaxQuantity {
		return ErrQuantity
	}
	s.quantity, s.quantAt, s.act = q, now, now
	return nil
}

// Arm makes the next scan a movement of its own.
func (s *State) Arm(now time.Duration) { s.armed, s.act = true, now }

// Accepted uses up what was set for one scan.
func (s *State) Accepted(now time.Duration) {
	s.quantity, s.armed = 0, false
	s.Heard(now)
}

// Heard keeps the mode alive: the scanner is in use.
func (s *State) Heard(now time.Duration) {
	if s.modeSet(now) {
		s.modeUsed = now
	}
}

// ModeEnds is the boottime at which the scan type falls back, if one is set.
func (s *State) ModeEnds(now time.Duration) (time.Duration, bool) {
	return s.modeUsed + s.Settings.ModeIdle, s.modeSet(now)
}

// QuantityEnds is the boottime at which the quantity falls back to 1, if one is set.
func (s *State) QuantityEnds(now time.Duration) (time.Duration, bool) {
	return s.quantAt + s.Settings.QuantityTimeout, s.quantitySet(now)
}

// Expire drops what has run out by now, and says whether anything had.
func (s *State) Expire(now time.Duration) bool {
	changed := false
	if s.mode != 0 && !s.modeSet(now) {
		changed = s.mode != s.Settings.Home
		s.mode = 0
	}
	if s.quantity != 0 && !s.quantitySet(now) {
		s.quantity, changed = 0, true
	}
	if s.RxToken(now) == "" {
		s.rx = "" // for good, though its scan type may come back; nobody is told
	}
	return changed
}

// NextExpiry is the earliest boottime at which Expire would change something.
func (s *State) NextExpiry(now time.Duration) (at time.Duration, ok bool) {
	at, ok = s.ModeEnds(now)
	if q, set := s.QuantityEnds(now); set && (!ok || q < at) {
		at, ok = q, true
	}
	return at, ok
}
