package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	src   Source
	out   *answers
	ear   decoder
	quiet *time.Timer // runs while a message is under way, so that an idle line wakes nobody

	why     Void // of a message that ends without its end
	ended   bool // nobody is left to answer
	touched bool // something changed at the device's place
}

// chunk is what one Read gave.
type chunk struct {
	data []byte // valid until the next chunk is received
	at   window.Reading
	lost int // reports before it
	err  error
}

// serve hears the open source until ctx ends, it fails, or its place leads to another device. again says
// that the place changed meanwhile, so that there is no reason to wait. When serve returns the source is
// closed: a descriptor left open would make of a replugged device a new one. Only after the end of ctx it
// does not wait for that longer than closeFor.
func (s *supervisor) serve(ctx context.Context, src Source, w watcher, ready func()) (again bool) {
	var (
		o      = &session{supervisor: s, src: src, out: newAnswers(src, s), quiet: time.NewTimer(s.gap), why: VoidIncomplete}
		chunks = make(chan chunk)
		done   = make(chan struct{})
		ended  = make(chan struct{})
		work   sync.WaitGroup
	)
	o.quiet.Stop()
	defer o.quiet.Stop()
	ear, err := s.decode(src, o.offer)
	if err == nil {
		o.ear = ear
		if t, ok := ear.(talker); ok {
			t.talk(o.out.send)
		}
		work.Go(func() { o.read(chunks, done) })
		work.Go(o.out.write)
		s.state(Reading, "")
		ready()
		err = o.listen(ctx, chunks, w)
		o.end(ctx, err)
	} else {
		s.failed(err)
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

// end voids what is under way and tells why it is over. gone is the source's error, if it failed.
func (o *session) end(ctx context.Context, gone error) {
	o.ended, o.why = true, VoidUnplugged
	switch {
	case gone == nil && ctx.Err() != nil:
		o.why = VoidStopped
		o.void()
		o.state(Draining, "stopping")
		o.drain()
	case gone == nil && o.opener.Attached():
		o.void()
		o.state(Draining, o.place+" leads to another device now")
		o.drain()
	default:
		o.void()
		if !o.opener.Attached() {
			o.absent()
		} else {
			o.failed(awayError(o.place, gone))
		}
	}
}

// void gives up what is under way for good.
func (o *session) void() {
	o.ear.Expire()
	if p, ok := o.ear.(parter); ok {
		p.giveUp()
	}
}

func awayError(place string, err error) error {
	var crash crashError
	switch {
	case errors.As(err, &crash):
		return err
	case errors.Is(err, io.EOF):
		return errors.New("cannot read " + place + ": the device went away")
	}
	return fmt.Errorf("cannot read %s: %w", place, err)
}

// read passes on what the source sends until it fails or done is closed. The channel is unbuffered, so
// two buffers are enough: one is filled while the other one is being looked at.
func (o *session) read(chunks chan<- chunk, done <-chan struct{}) {
	var bufs [2][readSize]byte
	empty := 0
	for i := 0; ; i ^= 1 {
		n, err := o.src.Read(bufs[i][:])
		c := chunk{data: bufs[i][:n], at: o.clock.Now(), err: err}
		if st, ok := o.src.(stamped); ok && err == nil {
			var at time.Duration
			if at, c.lost = st.Stamp(); at < c.at.Boot {
				c.at.T, c.at.Boot = c.at.T.Add(at-c.at.Boot), at
			}
		}
		if n == 0 && c.lost == 0 && err == nil {
			if empty++; empty < emptyReads {
				continue
			}
			c.err = io.ErrNoProgress
		}
		empty = 0
		select {
		case chunks <- c:
		case <-done:
			return
		}
		if c.err != nil {
			return
		}
	}
}

// listen returns the source's error, or nil once ctx has ended or the place leads to another device.
func (o *session) listen(ctx context.Context, chunks <-chan chunk, w watcher) error {
	if o.moved() {
		o.touched = true
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-chunks:
			if o.hear(c); c.err != nil {
				return c.err
			}
		case <-o.quiet.C:
			select {
			case c := <-chunks: // no silence: this goroutine was late
				if o.hear(c); c.err != nil {
					return c.err
				}
			default:
				o.silence()
			}
		case <-w.changed():
			o.touched = o.touched || o.worth()
			w.arm()
			if o.moved() {
				o.lastWords(ctx, chunks)
				return nil
			}
		}
	}
}

// lastWords hears what was read of a device before its place told that it is gone: a whole scan may be in it.
func (o *session) lastWords(ctx context.Context, chunks <-chan chunk) {
	limit := time.NewTimer(lastWordsFor)
	defer limit.Stop()
	for {
		select {
		case c := <-chunks:
			if o.hear(c); c.err != nil {
				return
			}
		case <-limit.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (o *session) moved() bool {
	m, ok := o.src.(mover)
	return ok && m.Moved()
}

func (o *session) hear(c chunk) {
	if c.lost > 0 {
		o.count(func(st *Stats) { st.Lost += uint64(c.lost) })
		o.ear.Lost(c.at)
	}
	if len(c.data) > 0 {
		o.ear.Report(c.data, c.at)
	}
	o.await()
}

// await starts the time within which a message under way must go on.
func (o *session) await() {
	if o.ear.Pending() {
		o.quiet.Reset(o.gap)
	} else {
		o.quiet.Stop()
	}
}

// silence voids what is under way. It must never be joined to what comes next.
func (o *session) silence() {
	if st, ok := o.src.(stamped); !ok || !st.Waiting() {
		o.ear.Expire()
	}
	o.await()
}

// offer gives a message to the sink.
func (o *session) offer(f Frame) {
	why := o.why
	if f.Fault == TooLong {
		why = VoidTooLong
	}
	if !o.ended && !f.mute {
		f.Reply = o.out.expect()
	}
	o.count(func(st *Stats) {
		st.Frames++
		st.LastFrame = f.At.Boot
		if f.Fault != "" {
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

// stream makes frames of bytes that come as they like.
type stream struct {
	scanner string
	framer  *Framer
	gap     time.Duration
	emit    func(Frame)
	last    window.Reading // of the bytes pending in the framer
}

func (d *stream) Report(p []byte, at window.Reading) {
	// The timer may not have been served yet: the agent was slow, stopped or suspended.
	if at.Boot-d.last.Boot >= d.gap {
		d.Expire()
	}
	d.last = at
	for len(p) > 0 {
		m, n, ok := d.framer.Next(p)
		if p = p[n:]; ok {
			d.frame(m)
		}
	}
}

// Lost is never said of bytes.
func (d *stream) Lost(window.Reading) { d.Expire() }

func (d *stream) Pending() bool { return d.framer.Pending() }

func (d *stream) Expire() {
	if m, ok := d.framer.Expire(); ok {
		d.frame(m)
	}
}

func (d *stream) frame(m Message) {
	d.emit(Frame{Scanner: d.scanner, Data: Payload(bytes.Clone(m.Data)), At: d.last, Fault: m.Fault, Length: m.Length})
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
