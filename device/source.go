package device

import "time"

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
	// Open opens the device. An error that is fs.ErrNotExist means that it is not attached; any other one
	// is tried again.
	Open() (Source, error)
}

// mover is a Source that knows whether its configured name now leads to another device.
type mover interface{ Moved() bool }

// State is where the supervision of a scanner stands.
type State string

// The states.
const (
	Absent   State = "absent"   // no device at its place; its folder is watched
	Opening  State = "opening"  // found, being opened
	Reading  State = "reading"  // open; scans are heard
	Draining State = "draining" // hears no more; answers still due are being sent
	Backoff  State = "backoff"  // could not be opened, or went away; tried again after a while
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
	// AnswersDropped counts answers that did not reach their device: it went away, or took nothing.
	AnswersDropped uint64
	LastFrame      time.Duration // CLOCK_BOOTTIME of the last message, 0 if there was none
}
