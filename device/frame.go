// Package device finds, opens and supervises scanners. It emits frames and knows nothing of what a
// barcode means.
package device

import (
	"fmt"
	"io"
	"log/slog"

	"scanonce/window"
)

// Payload is what a scanner sent. It may hold anything, a driver's licence included, so it never prints.
type Payload []byte

func (p Payload) String() string               { return fmt.Sprintf("[%d bytes]", len(p)) }
func (p Payload) Format(f fmt.State, _ rune)   { io.WriteString(f, p.String()) } // at every verb
func (p Payload) LogValue() slog.Value         { return slog.StringValue(p.String()) }
func (p Payload) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Fault says why a frame is no complete message.
type Fault string

// The faults. A faulty frame carries no data.
const (
	Incomplete Fault = "incomplete" // the inter-byte timeout ran out, or the device went away within the frame
	TooLong    Fault = "too_long"   // more than MaxFrame bytes without a terminator
)

// MaxFrame is the longest message, in bytes.
const MaxFrame = 4096

// Frame is one message of a scanner, without what the framing profile adds around it.
type Frame struct {
	Scanner string         // configured id
	Data    Payload        // owned by the receiver
	At      window.Reading // of the last byte, taken once
	Fault   Fault          // "" for a complete message
	Length  int            // bytes received, also of a faulty frame
	Resend  bool           // the device marks that it sends this again
	Reply   Replier        // nil if the device takes no answer
	mute    bool           // nor waits for one to this
}

// Answer is what the pipeline decided of a frame.
type Answer uint8

// The answers.
const (
	Accepted    Answer = 1 + iota // durable
	Duplicate                     // durable, counted as a retransmission
	Rejected                      // content refused; sending it again will not help
	Control                       // a command or a label: understood, nothing to count
	NotAccepted                   // not durable; the scanner should send it again
)

// Replier takes the answer to a frame back to its device. It never blocks.
type Replier interface{ Reply(Answer) }

// Sink takes frames from the sources. Offer returns false if the queue is full: then the frame is
// counted as overflow by the sink, and the source answers NotAccepted.
type Sink interface{ Offer(Frame) bool }
