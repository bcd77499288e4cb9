package device

import (
	"context"
	"time"

	"scanonce/window"
)

// Source is an open device. One goroutine reads, another one writes.
type Source interface {
	// Read blocks until at least one byte has come or the device is gone. Its first error is final.
	Read(p []byte) (int, error)
	// Write sends p whole or fails; it may block while the device takes nothing.
	Write(p []byte) (int, error)
	// Close ends a blocked Read and a blocked Write.
	Close() error
}

// Opener opens one device, again after each unplug.
type Opener interface {
	// Attached says, at little cost, whether there is a device to open.
	Attached() bool
	// Open opens the device, and may give up once ctx ends. An error that is fs.ErrNotExist means that it is not
	// attached; any other one is tried again.
	Open(ctx context.Context) (Source, error)
}

// stamped is a Source of whole reports that knows more of what the last Read gave. A Read that gives nothing
// may tell of losses.
type stamped interface {
	// Stamp returns when the report came (CLOCK_BOOTTIME), and how many before it were lost.
	Stamp() (at time.Duration, lost int)
	// Waiting says that there is something to read.
	Waiting() bool
}

// decoder makes frames of what one opening of a device sends. Not for concurrent use.
type decoder interface {
	// Report takes what one Read gave, at the instant at.
	Report(p []byte, at window.Reading)
	// Lost says that something was sent and not passed on, before the instant at.
	Lost(at window.Reading)
	// Pending says that a frame has begun and not ended.
	Pending() bool
	// Expire voids it: the device was silent for too long, or is gone.
	Expire()
}

// mover is a Source that knows whether its configured name now leads to another device.
type mover interface{ Moved() bool }

// State is where the supervision of a scanner stands.
type State string

// The states.
const (
	Absent      State = "absent"      // no device at its place, which is watched
	Opening     State = "opening"     // found, being opened
	Reading     State = "reading"     // open; scans are heard
	Draining    State = "draining"    // hears no more; answers still due are being sent
	Backoff     State = "backoff"     // could not be opened, or went away; tried again after a while
	Quarantined State = "quarantined" // reading it failed again and again; tried once it is plugged in anew, or rarely
)

// StateFunc is told of each change of a scanner's state. detail says why, for a technician; it holds
// nothing that was scanned. It is called from the scanner's own task and must not block.
type StateFunc func(scanner string, s State, detail string)

// Void says why a message was voided.
type Void string

// The reasons for which a message is voided.
const (
	VoidIncomplete Void = "incomplete" // the inter-byte timeout ran out, or framing was broken
	VoidTooLong    Void = "too_long"   // longer than MaxFrame
	VoidUnplugged  Void = "unplugged"  // the device went away within the message
	VoidStopped    Void = "stopped"    // the agent stopped within the message
)

// Stats are the figures of one scanner since its task was made.
type Stats struct {
	Scanner string
	State   State
	Detail  string // of State
	// Frames counts every message, voided ones included; each was offered to the sink exactly once.
	Frames  uint64
	Dropped uint64          // of Frames: refused by a full sink
	Voided  map[Void]uint64 // of Frames: carried no data; all reasons are present
	Reopens uint64          // successful openings after the first
	Lost    uint64          // reports of a HID device that were read and not passed on; each voids the scan it is of
	Crashes uint64          // failures of the process that reads a HID device
	// AnswersDropped counts answers that did not reach their device: it went away, or took nothing.
	AnswersDropped uint64
	LastFrame      time.Duration // CLOCK_BOOTTIME of the last message, 0 if there was none
}
