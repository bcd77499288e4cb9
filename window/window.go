// Package window turns an instant into a window index: the normalized UTC clock, the window policy of
// each scan type, and the index arithmetic. It is pure but for the clock.
package window

import (
	"fmt"
	"time"
)

// UTC is an instant of normalized UTC, in milliseconds since the Unix epoch. It may be negative.
type UTC int64

const utcLayout = "2006-01-02T15:04:05.000Z"

// FromTime truncates t towards the past to a whole millisecond.
func FromTime(t time.Time) UTC { return UTC(t.UnixMilli()) }

// Time returns the instant as a time.Time in UTC.
func (t UTC) Time() time.Time { return time.UnixMilli(int64(t)).UTC() }

// String is RFC 3339 in UTC with milliseconds, e.g. 2025-11-03T21:45:39.000Z.
func (t UTC) String() string { return t.Time().Format(utcLayout) }

// MarshalText writes String's form.
func (t UTC) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads RFC 3339 with any fraction and zone.
func (t *UTC) UnmarshalText(b []byte) error {
	p, err := time.Parse(time.RFC3339Nano, string(b))
	if err != nil {
		return fmt.Errorf("cannot read %q as a time: write RFC 3339, for example 2026-11-29T08:15:00.000Z", b)
	}
	*t = FromTime(p)
	return nil
}

// Add returns t moved by d, truncated to whole milliseconds.
func (t UTC) Add(d time.Duration) UTC { return t + UTC(d.Milliseconds()) }

// Sub returns t − u.
func (t UTC) Sub(u UTC) time.Duration { return time.Duration(t-u) * time.Millisecond }

// ScanType says what a movement does to the stock.
type ScanType uint8

// The scan types, in the order of their wire numbers; 0 is no type.
const (
	Receive ScanType = 1 + iota
	Dispense
	Waste
	Return
	Adjust
	Transfer
	Count
)

var typeNames = [...]string{"", "receive", "dispense", "waste", "return", "adjust", "transfer", "count"}

// ScanTypes lists every scan type.
func ScanTypes() []ScanType {
	return []ScanType{Receive, Dispense, Waste, Return, Adjust, Transfer, Count}
}

// String is the lower-case name, or "" for no type.
func (s ScanType) String() string {
	if int(s) < len(typeNames) {
		return typeNames[s]
	}
	return fmt.Sprintf("ScanType(%d)", uint8(s))
}

// ParseScanType reads a lower-case name.
func ParseScanType(name string) (ScanType, error) {
	for i, n := range typeNames {
		if i > 0 && n == name {
			return ScanType(i), nil
		}
	}
	return 0, fmt.Errorf("cannot use scan type %q: write receive, dispense, waste, return, adjust, transfer or count", name)
}

// MarshalText writes the name.
func (s ScanType) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the name.
func (s *ScanType) UnmarshalText(b []byte) error {
	v, err := ParseScanType(string(b))
	if err == nil {
		*s = v
	}
	return err
}

// Index numbers the windows of one width: floor(t / width).
type Index int64

// Policy is the window of one scan type. All agents of a facility must use the same.
type Policy struct {
	Width time.Duration // W, whole milliseconds
	Guard time.Duration // G, whole milliseconds; the zone on both sides of a boundary that has an edge key
}

// Default returns the built-in policy of a scan type.
func Default(s ScanType) Policy {
	if s == Receive || s == Count {
		return Policy{Width: 400 * time.Millisecond, Guard: 200 * time.Millisecond}
	}
	return Policy{Width: 3 * time.Second, Guard: 500 * time.Millisecond}
}

// Validate checks 0 < G, 2G ≤ W, ttl ≥ W+G and whole milliseconds. With 2G > W one movement can lie in
// the guard zones of two boundaries at once, and a straddling pair is missed.
func (p Policy) Validate(ttl time.Duration) error {
	switch {
	case p.Width <= 0 || p.Width%time.Millisecond != 0:
		return fmt.Errorf("cannot use window width %v: write whole milliseconds above 0, for example \"3s\"", p.Width)
	case p.Guard <= 0 || p.Guard%time.Millisecond != 0:
		return fmt.Errorf("cannot use window guard %v: write whole milliseconds above 0, for example \"500ms\"", p.Guard)
	case 2*p.Guard > p.Width:
		return fmt.Errorf("cannot use window guard %v with width %v: the guard may be at most half the width, %v", p.Guard, p.Width, p.Width/2)
	case ttl < p.Width+p.Guard:
		return fmt.Errorf("cannot use claim ttl %v: it must be at least width + guard, %v", ttl, p.Width+p.Guard)
	}
	return nil
}

// Index is a true floor: −1 ms lies in window −1.
func (p Policy) Index(t UTC) Index {
	w := UTC(p.Width / time.Millisecond)
	q := t / w
	if t%w < 0 {
		q--
	}
	return Index(q)
}

// Start is the first instant of window i.
func (p Policy) Start(i Index) UTC { return UTC(i) * UTC(p.Width/time.Millisecond) }

// Boundary numbers the boundary within G of t: the index in the first G of a window, index+1 in the last G.
func (p Policy) Boundary(t UTC) (Index, bool) {
	i := p.Index(t)
	in := t - p.Start(i)
	switch {
	case in < UTC(p.Guard/time.Millisecond):
		return i, true
	case in >= UTC((p.Width-p.Guard)/time.Millisecond):
		return i + 1, true
	}
	return 0, false
}

// Policies holds a policy for each scan type.
type Policies [Count + 1]Policy

// Defaults are the built-in policies.
func Defaults() Policies {
	var p Policies
	for _, s := range ScanTypes() {
		p[s] = Default(s)
	}
	return p
}

// For returns the policy of s.
func (p *Policies) For(s ScanType) Policy { return p[s] }

// Longest returns the largest W+G.
func (p *Policies) Longest() time.Duration {
	var d time.Duration
	for _, s := range ScanTypes() {
		d = max(d, p[s].Width+p[s].Guard)
	}
	return d
}

// Quality says what stands behind an instant's UTC.
type Quality uint8

// The qualities. Device is an instant that a device or an application gave.
const (
	Unsynced Quality = iota
	Holdover
	Synced
	Device
)

var qualityNames = [...]string{"unsynced", "holdover", "synced", "device"}

func (q Quality) String() string {
	if int(q) < len(qualityNames) {
		return qualityNames[q]
	}
	return fmt.Sprintf("Quality(%d)", uint8(q))
}

// MarshalText writes the name.
func (q Quality) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText reads the name.
func (q *Quality) UnmarshalText(b []byte) error {
	for i, n := range qualityNames {
		if n == string(b) {
			*q = Quality(i)
			return nil
		}
	}
	return fmt.Errorf("cannot read %q as a clock quality", b)
}
