package device

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Defaults of a serial scanner.
const (
	DefaultBaud             = 9600
	DefaultInterByteTimeout = 200 * time.Millisecond
	DefaultRetryInterval    = 2 * time.Second
)

// Bounds of what a serial scanner may be set to.
const (
	maxScannerID   = 32
	minBaud        = 300
	maxBaud        = 4_000_000
	minInterByte   = 10 * time.Millisecond
	maxInterByte   = 10 * time.Second
	minRetry       = time.Millisecond
	maxRetry       = time.Minute
	maxFeedbackLen = 64
)

// SerialConfig sets one serial scanner. The zero values of Baud, Framing, InterByteTimeout and RetryInterval take
// the defaults.
type SerialConfig struct {
	ID               string // A-Z a-z 0-9 _ . -, at most 32
	Path             string // absolute; a device node, a pty, or a symlink to one. It need not exist yet
	Baud             int    // bit/s, 8 data bits, no parity, one stop bit
	Framing          Framing
	InterByteTimeout time.Duration // silence within a message that voids it
	// RetryInterval is the scanner's response timeout: how long it waits for an answer before it sends again. Of SSI,
	// it bounds the time between two packets of one scan; the other framings do not use it.
	RetryInterval time.Duration
	Feedback      Feedback
}

// Feedback holds the bytes that make a scanner beep or blink. Empty: nothing is sent.
type Feedback struct {
	Good      []byte // accepted, and understood commands
	Duplicate []byte // a retransmission
	Reject    []byte // refused, and not accepted
}

func (f Feedback) empty() bool { return len(f.Good)+len(f.Duplicate)+len(f.Reject) == 0 }

// Validate returns all that is wrong, joined, each with what to write instead.
func (c SerialConfig) Validate() error {
	var path error
	switch {
	case c.Path == "":
		path = fmt.Errorf(`cannot find scanner %s without a path: write path = "/dev/serial/by-id/…"`, c.ID)
	case !filepath.IsAbs(c.Path) || strings.ContainsRune(c.Path, 0):
		path = fmt.Errorf(`cannot use path %q of scanner %s: write an absolute path such as "/dev/serial/by-id/…"`, c.Path, c.ID)
	}
	return errors.Join(path, c.validateRest())
}

// validateUSB is Validate for a scanner that is found by USB.
func (c SerialConfig) validateUSB() error {
	var path error
	if c.Path != "" {
		path = fmt.Errorf("cannot find scanner %s by path and by USB at once: leave one out", c.ID)
	}
	return errors.Join(path, c.validateRest())
}

func (c SerialConfig) validateRest() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !validID(c.ID) {
		bad("cannot use scanner id %q: write 1 to %d of A-Z a-z 0-9 _ . -", c.ID, maxScannerID)
	}
	if c.Baud != 0 && (c.Baud < minBaud || c.Baud > maxBaud) {
		bad("cannot set scanner %s to %d baud: write %d to %d, for most scanners %d", c.ID, c.Baud, minBaud, maxBaud, DefaultBaud)
	}
	if _, err := NewFramer(c.Framing); err != nil && c.Framing != SSI {
		bad("cannot use framing %q of scanner %s: write one of %s", string(c.Framing), c.ID, framingNames())
	}
	if t := c.InterByteTimeout; t != 0 && (t < minInterByte || t > maxInterByte) {
		bad("cannot use inter_byte_timeout %v of scanner %s: write %v to %v, for most scanners %v", t, c.ID, minInterByte, maxInterByte, DefaultInterByteTimeout)
	}
	if t := c.RetryInterval; t != 0 && (t < minRetry || t > maxRetry) {
		bad("cannot use retry_interval %v of scanner %s: write %v to %v, for most scanners %v", t, c.ID, minRetry, maxRetry, DefaultRetryInterval)
	}
	for _, f := range []struct {
		key   string
		bytes []byte
	}{{"good", c.Feedback.Good}, {"duplicate", c.Feedback.Duplicate}, {"reject", c.Feedback.Reject}} {
		if len(f.bytes) > maxFeedbackLen {
			bad("cannot send feedback %s of scanner %s: write at most %d bytes", f.key, c.ID, maxFeedbackLen)
		}
	}
	return errors.Join(errs...)
}

func (c SerialConfig) withDefaults() SerialConfig {
	if c.Baud == 0 {
		c.Baud = DefaultBaud
	}
	if c.Framing == "" {
		c.Framing = Line
	}
	if c.InterByteTimeout == 0 {
		c.InterByteTimeout = DefaultInterByteTimeout
	}
	if c.RetryInterval == 0 {
		c.RetryInterval = DefaultRetryInterval
	}
	return c
}

func validID(s string) bool {
	if s == "" || len(s) > maxScannerID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}
