package device

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"scanonce/window"
)

const (
	readSize = 4096
	// emptyReads in a row mean a source that does not keep its contract; it must not spin.
	emptyReads = 100
)

// session is one device from its opening to its closing.
type session struct {
	*supervisor
	src  Source
	out  *answers
	last window.Reading // of the bytes pending in the framer
	gap  *time.Timer    // runs while bytes are pending, so that an idle line wakes nobody

	touched bool // something changed at the device's place
}

// chunk is what one Read gave.
type chunk struct {
	data []byte // valid until the next chunk is received
	at   window.Reading
	err  error
}

// serve hears the open source until ctx ends, it fails, or its place leads to another device. again says
// that the place changed meanwhile, so that there is no reason to wait. When serve returns the source is
// closed: a descriptor left open would make of a replugged device a new one. Only after the end of ctx it
// does not wait for that longer than closeFor.
func (s *supervisor) serve(ctx context.Context, src Source, w watcher, ready func()) (again bool) {
	var (
		o      = &session{supervisor: s, src: src, out: newAnswers(src, s), gap: time.NewTimer(s.interByte)}
		chunks = make(chan chunk)
		done   = make(chan struct{})
		ended  = make(chan struct{})
		work   sync.WaitGroup
	)
	o.gap.Stop()
	defer o.gap.Stop()
	work.Go(func() { o.read(chunks, done) })
	work.Go(o.out.write)
	s.state(Reading, "")
	ready()

	switch gone := o.listen(ctx, chunks, w); {
	case gone != nil:
		o.expire(nil, VoidUnplugged)
		if s.opener.Attached() {
			s.state(Backoff, awayDetail(s.place, gone))
		} else {
			s.absent()
		}
	case ctx.Err() != nil:
		o.expire(nil, VoidStopped)
		s.state(Draining, "stopping")
		o.drain()
	default:
		o.expire(nil, VoidUnplugged)
		s.state(Draining, s.place+" leads to another device now")
		o.drain()
	}

	o.out.close()
	close(done)
	go func() {
		src.Close() // its error changes nothing: the device is given up
		work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		limit := time.NewTimer(closeFor)
		defer limit.Stop()
		select {
		case <-ended:
		case <-limit.C:
		}
	}
	return o.touched
}

func awayDetail(place string, err error) string {
	if errors.Is(err, io.EOF) {
		return "cannot read " + place + ": the device went away"
	}
	return "cannot read " + place + ": " + err.Error()
}

// read passes on what the source sends until it fails or done is closed. The channel is unbuffered, so
// two buffers are enough: one is filled while the other one is being looked at.
func (o *session) read(chunks chan<- chunk, done <-chan struct{}) {
	var bufs [2][readSize]byte
	empty := 0
	for i := 0; ; i ^= 1 {
		n, err := o.src.Read(bufs[i][:])
		if n == 0 && err == nil {
			if empty++; empty < emptyReads {
				continue
			}
			err = io.ErrNoProgress
		}
		empty = 0
		select {
		case chunks <- chunk{bufs[i][:n], o.clock.Now(), err}:
		case <-done:
			return
		}
		if err != nil {
			return
		}
	}
}

// listen returns the source's error, or nil once ctx has ended or the place leads to another device.
func (o *session) listen(ctx context.Context, chunks <-chan chunk, w watcher) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-chunks:
			if o.hear(c); c.err != nil {
				return c.err
			}
		case <-o.gap.C:
			o.expire(o.out, VoidIncomplete)
		case <-w.changed():
			o.touched = true
			w.arm()
			if m, ok := o.src.(mover); ok && m.Moved() {
				return nil
			}
		}
	}
}

func (o *session) hear(c chunk) {
	if len(c.data) == 0 {
		return
	}
	// The timer may not have been served yet: the agent was slow, stopped or suspended.
	if c.at.Boot-o.last.Boot >= o.interByte {
		o.expire(o.out, VoidIncomplete)
	}
	o.last = c.at
	for rest := c.data; len(rest) > 0; {
		m, n, ok := o.framer.Next(rest)
		if rest = rest[n:]; ok {
			o.offer(m, o.out, VoidIncomplete)
		}
	}
	if o.framer.Pending() {
		o.gap.Reset(o.interByte)
	} else {
		o.gap.Stop()
	}
}

// expire voids what is pending. It must never be joined to what comes next.
func (o *session) expire(out *answers, why Void) {
	if m, ok := o.framer.Expire(); ok {
		o.offer(m, out, why)
	}
}

// offer gives a message to the sink. why is the reason of an incomplete one; out is nil if there is nobody
// left to answer.
func (o *session) offer(m Message, out *answers, why Void) {
	f := Frame{Scanner: o.id, Data: Payload(bytes.Clone(m.Data)), At: o.last, Fault: m.Fault, Length: m.Length}
	if m.Fault == TooLong {
		why = VoidTooLong
	}
	if out != nil {
		f.Reply = out.expect()
	}
	o.count(func(st *Stats) {
		st.Frames++
		st.LastFrame = f.At.Boot
		if m.Fault != "" {
			st.Voided[why]++
		}
	})
	if o.sink.Offer(f) {
		return
	}
	o.count(func(st *Stats) { st.Dropped++ })
	if f.Reply != nil {
		f.Reply.Reply(NotAccepted)
	}
}

// drain waits, not for long, until what was heard is answered: an ACK that is lost makes the scanner send
// the message again.
func (o *session) drain() {
	limit := time.NewTimer(drainFor)
	defer limit.Stop()
	select {
	case <-o.out.allSent():
	case <-limit.C:
	}
}
