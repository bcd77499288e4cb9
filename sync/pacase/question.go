package pacase

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"scanonce/window"
)

// escaper keeps a field from running into the next, as in the keys of movements.
var escaper = strings.NewReplacer(`\`, `\\`, `|`, `\p`)

// subject is what at most one open case may be about: the member and the drug.
func (q Question) subject() string {
	return escaper.Replace(q.MemberToken) + "|" + escaper.Replace(q.GPI)
}

// DerivedID is the first 32 hexadecimal digits of SHA-256(member_token|gpi|request_window), each field escaped:
// what every agent computes for the same question, with or without a store.
func (q Question) DerivedID() string {
	sum := sha256.Sum256([]byte(q.subject() + "|" + escaper.Replace(q.Window)))
	return hex.EncodeToString(sum[:])[:32]
}

// Offline is the answer to a question that no store could be asked. It has no state and no case: what memory
// says about either may be out of date, and a claim must not be paid on it.
type Offline struct{ requested string }

// Offline answers without a store. The error is a RequestError.
func (q Question) Offline() (Offline, error) {
	if err := q.check(); err != nil {
		return Offline{}, err
	}
	return Offline{q.DerivedID()}, nil
}

// RequestedID is the question's derived id, under which Store.Get finds the case once the pend has arrived.
func (o Offline) RequestedID() string { return o.requested }

// RejectCode is always 75.
func (Offline) RejectCode() string { return RejectPriorAuthorization }

// Windows says which requests of a member for a drug are one question: those of one calendar day, or of one
// window of some hours.
type Windows struct {
	hours int64 // 0: a day
	zone  *time.Location
}

const (
	maxHours     = 8760
	hourMs       = int64(time.Hour / time.Millisecond)
	windowStart  = "2006-01-02T15:04Z" // always on the hour, UTC
	windowLength = "/PT"               // between a window's start and its hours
)

// NewWindows reads pa.request_window ("date", or hours such as "6h") and pa.zone, whose calendar a date is of;
// its rules are the system's. The error is a ConfigError.
func NewWindows(requestWindow, zone string) (Windows, error) {
	w := Windows{}
	if requestWindow != "date" {
		d, err := time.ParseDuration(requestWindow)
		if err != nil || d <= 0 || d%time.Hour != 0 || d > maxHours*time.Hour {
			return w, configError(fmt.Sprintf("pa.request_window %q does not fit", requestWindow), `write "date", or whole hours from "1h" to "8760h"`)
		}
		w.hours = int64(d / time.Hour)
	}
	var err error
	if w.zone, err = time.LoadLocation(zone); err != nil || zone == "" || zone == "Local" {
		return w, configError(fmt.Sprintf("pa.zone %q is not known on this machine", zone), `write "UTC" or a name such as "America/Chicago" (package tzdata has them)`)
	}
	return w, nil
}

// At is the window that t lies in: the date in the zone, 2026-07-17, or the window's start and length as an
// ISO 8601 interval in UTC, 2026-07-17T12:00Z/PT6H. Windows of n hours are counted from the Unix epoch.
func (w Windows) At(t window.UTC) string {
	if w.hours == 0 {
		return t.Time().In(w.zone).Format(time.DateOnly)
	}
	width := w.hours * hourMs
	start := int64(t) / width * width
	if int64(t)%width < 0 {
		start -= width
	}
	return window.UTC(start).Time().Format(windowStart) + windowLength + strconv.FormatInt(w.hours, 10) + "H"
}

// isWindow says that s is what some Windows makes.
func isWindow(s string) bool {
	if _, err := time.Parse(time.DateOnly, s); err == nil {
		return true
	}
	start, length, ok := strings.Cut(s, windowLength)
	if !ok {
		return false
	}
	t, err := time.Parse(windowStart, start)
	if err != nil {
		return false
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(length, "H"), 10, 64)
	return err == nil && n >= 1 && n <= maxHours && Windows{hours: n}.At(window.FromTime(t)) == s
}
