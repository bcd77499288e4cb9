package device

import (
	"sync"
	"time"
)

// answerQueue bounds the answers that wait for their device. A scanner has one message under way, or a few
// if it does not wait for ACKs.
const answerQueue = 32

// answers takes the answers to the frames of one open source back to it. It is the Replier of those frames:
// once the source is gone, whatever is said to them is dropped and counted.
type answers struct {
	src   Source
	sup   *supervisor
	queue chan answer

	mu     sync.Mutex
	closed bool
	due    int           // frames offered and not answered, and answers not yet written
	settle chan struct{} // closed once due is 0, if somebody waits
}

type answer struct {
	Answer
	own []byte        // in place of Answer's: the protocol's business alone
	at  time.Duration // CLOCK_BOOTTIME
}

func newAnswers(src Source, s *supervisor) *answers {
	return &answers{src: src, sup: s, queue: make(chan answer, answerQueue)}
}

func (a *answers) drop() { a.sup.count(func(st *Stats) { st.AnswersDropped++ }) }

// expect notes that a frame is offered: an answer is due. It returns nil for a device that takes none.
func (a *answers) expect() Replier {
	if a.sup.good == nil && a.sup.tones.empty() {
		return nil
	}
	a.mu.Lock()
	a.due++
	a.mu.Unlock()
	return a
}

// Reply never blocks.
func (a *answers) Reply(r Answer) { a.put(answer{Answer: r}) }

// send writes what no frame is answered with, in its turn. It never blocks.
func (a *answers) send(own []byte) {
	a.mu.Lock()
	a.due++
	a.mu.Unlock()
	a.put(answer{own: own})
}

func (a *answers) put(r answer) {
	r.at = a.sup.clock.Now().Boot
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		a.drop()
		return
	}
	select {
	case a.queue <- r:
	default:
		a.drop()
		a.settled()
	}
}

// settled is called under mu.
func (a *answers) settled() {
	a.due--
	if a.due <= 0 && a.settle != nil {
		close(a.settle)
		a.settle = nil
	}
}

// allSent returns a channel that is closed once every frame offered so far is answered and every answer
// written or dropped.
func (a *answers) allSent() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := make(chan struct{})
	if a.due <= 0 {
		close(c)
		return c
	}
	a.settle = c
	return c
}

// write sends answers until close. An answer that has waited for longer than a scanner waits for it is
// dropped: it would be taken for the answer to the next message.
func (a *answers) write() {
	for r := range a.queue {
		sent := true
		b := r.own
		if b == nil {
			b = a.bytes(r.Answer)
		}
		if len(b) > 0 {
			if a.sup.clock.Now().Boot-r.at >= writeTimeout {
				sent = false
			} else if _, err := a.src.Write(b); err != nil {
				sent = false // an unplug is the reader's to notice
			}
		}
		if !sent {
			a.drop()
		}
		a.mu.Lock()
		a.settled()
		a.mu.Unlock()
	}
}

// close ends write. Answers still queued are dropped once the source is closed.
func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		close(a.queue)
	}
}

// bytes are what the device is sent: the protocol's answer first, then the tone.
func (a *answers) bytes(r Answer) []byte {
	var b []byte
	if r == NotAccepted {
		b = append(b, a.sup.bad...)
	} else {
		b = append(b, a.sup.good...)
	}
	switch r {
	case Accepted, Control:
		b = append(b, a.sup.tones.Good...)
	case Duplicate:
		b = append(b, a.sup.tones.Duplicate...)
	case Rejected, NotAccepted:
		b = append(b, a.sup.tones.Reject...)
	}
	return b
}
