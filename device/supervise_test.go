package device

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"scanonce/window"
)

// bubbleClock gives the time of a synctest bubble, from 0. skip is time that passed while timers did not
// run: the agent was stopped, or the machine suspended.
type bubbleClock struct {
	start time.Time
	mu    sync.Mutex
	skip  time.Duration
}

func (c *bubbleClock) Now() window.Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	boot := time.Since(c.start) + c.skip
	return window.Reading{T: window.UTC(boot.Milliseconds()), Boot: boot}
}

type fakeSource struct {
	in      chan []byte
	fail    chan error // ends Read
	closed  chan struct{}
	written chan string
	// blocked holds Writes back while it is open, whatever Close does; nil lets them pass.
	blocked chan struct{}
	// hang holds Close back; nil lets it pass.
	hang chan struct{}
	once sync.Once
}

func newFakeSource() *fakeSource {
	return &fakeSource{in: make(chan []byte, 100), fail: make(chan error, 1), closed: make(chan struct{}), written: make(chan string, 100)}
}

func (f *fakeSource) Read(p []byte) (int, error) {
	select {
	case b := <-f.in:
		return copy(p, b), nil
	case err := <-f.fail:
		return 0, err
	case <-f.closed:
		return 0, os.ErrClosed
	}
}

func (f *fakeSource) Write(p []byte) (int, error) {
	if f.blocked != nil {
		<-f.blocked
	}
	select {
	case <-f.closed:
		return 0, os.ErrClosed
	default:
	}
	f.written <- string(p)
	return len(p), nil
}

func (f *fakeSource) Close() error {
	if f.hang != nil {
		<-f.hang
	}
	f.once.Do(func() { close(f.closed) })
	return nil
}

type fakeOpener struct {
	open  func() (Source, error)
	clock *bubbleClock

	mu   sync.Mutex
	when []time.Duration
}

func (o *fakeOpener) Attached() bool { return true }

// tries are the instants at which it was opened.
func (o *fakeOpener) tries() []time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.when)
}

func (o *fakeOpener) Open(context.Context) (Source, error) {
	o.mu.Lock()
	o.when = append(o.when, o.clock.Now().Boot)
	o.mu.Unlock()
	return o.open()
}

type bench struct {
	*supervisor
	opener *fakeOpener
	clock  *bubbleClock
	frames chan Frame
	told   []State
	cancel func()
	ended  chan error
}

func (b *bench) Offer(f Frame) bool { b.frames <- f; return true }

// newBench starts a supervisor over open within a synctest bubble.
func newBench(t *testing.T, cfg SerialConfig, open func() (Source, error)) *bench {
	t.Helper()
	return newWatchedBench(t, cfg, open, nil)
}

func newWatchedBench(t *testing.T, cfg SerialConfig, open func() (Source, error), w watcher) *bench {
	t.Helper()
	cfg.ID, cfg.Path = "SCN-04", "/dev/fake"
	clock := &bubbleClock{start: time.Now()}
	b := &bench{clock: clock, opener: &fakeOpener{open: open, clock: clock}, frames: make(chan Frame, 100), ended: make(chan error, 1)}
	var err error
	b.supervisor, err = newSupervisor(cfg.withDefaults(), b.opener, clock, b, func(_ string, s State, _ string) { b.told = append(b.told, s) })
	if err != nil {
		t.Fatal(err)
	}
	if w != nil {
		b.watch = func() (watcher, error) { return w, nil }
	}
	b.begin(t)
	return b
}

func (b *bench) begin(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b.cancel = cancel
	go func() { b.ended <- b.run(ctx) }()
	synctest.Wait()
}

// stop returns how long the stop took.
func (b *bench) stop(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	b.cancel()
	if err := <-b.ended; err != nil {
		t.Errorf("run returned %v", err)
	}
	return time.Since(start)
}

func (b *bench) expect(t *testing.T, want ...Frame) {
	t.Helper()
	synctest.Wait()
	for _, w := range want {
		select {
		case f := <-b.frames:
			if string(f.Data) != string(w.Data) || f.Fault != w.Fault || w.Fault != "" && f.Length != w.Length {
				t.Errorf("got %q, fault %q, length %d; want %q, %q, %d", []byte(f.Data), f.Fault, f.Length, []byte(w.Data), w.Fault, w.Length)
			}
		default:
			t.Fatalf("no frame, want %q %q", []byte(w.Data), w.Fault)
		}
	}
	select {
	case f := <-b.frames:
		t.Errorf("one frame too many: %q, fault %q", []byte(f.Data), f.Fault)
	default:
	}
}

func always(src Source) func() (Source, error) { return func() (Source, error) { return src, nil } }

func TestBackoffIsCappedAndToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := errors.New("cannot open: permission denied")
		src := newFakeSource()
		var granted atomic.Bool
		b := newBench(t, SerialConfig{}, func() (Source, error) {
			if granted.Load() {
				return src, nil
			}
			return nil, late
		})
		select {
		case <-b.ready:
		default:
			t.Error("not ready, though the port was looked at")
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		tries := b.opener.tries()
		for i := 1; i < len(tries); i++ {
			if gap := tries[i] - tries[i-1]; gap > min(backoffMax, backoffFirst<<min(i-1, 10)) {
				t.Errorf("%v between attempts %d and %d", gap, i-1, i)
			}
		}
		// 5 s with full jitter is 2.5 s on the average.
		if n := len(tries); n < 150 || n > 400 {
			t.Errorf("%d attempts in 10 minutes", n)
		}
		if want := []State{Opening, Backoff}; !slices.Equal(b.told, want) {
			t.Errorf("told %v, want %v", b.told, want)
		}
		granted.Store(true) // at last
		time.Sleep(backoffMax)
		synctest.Wait()
		if st := b.snapshot(); st.State != Reading || st.Reopens != 0 {
			t.Errorf("stats %+v", st)
		}
		b.stop(t)
	})
}

func TestBackoffIsResetOnlyAfterHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *fakeSource
		b := newBench(t, SerialConfig{}, func() (Source, error) { src = newFakeSource(); return src, nil })
		// session lets the device live for d, takes it away, and returns how long it then stayed away.
		session := func(d time.Duration) time.Duration {
			time.Sleep(d)
			n := len(b.opener.tries())
			gone := b.clock.Now().Boot
			src.fail <- io.EOF
			for synctest.Wait(); len(b.opener.tries()) == n; synctest.Wait() {
				time.Sleep(time.Millisecond)
			}
			return b.opener.tries()[n] - gone
		}
		var longest time.Duration
		for range 40 {
			longest = max(longest, session(healthyAfter-time.Second))
		}
		if longest < time.Second || longest > backoffMax {
			t.Errorf("waited at most %v for a device that goes away again and again", longest)
		}
		if d := session(healthyAfter); d > backoffFirst {
			t.Errorf("waited %v after a healthy session", d)
		}
		if n := b.snapshot().Reopens; n != 41 {
			t.Errorf("%d reopens", n)
		}
		b.stop(t)
	})
}

func TestUnwatchedPlaceIsLookedAtEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &bubbleClock{start: time.Now()}
		opener := &fakeOpener{clock: clock, open: func() (Source, error) { return nil, fs.ErrNotExist }}
		s, err := newSupervisor(SerialConfig{ID: "a"}.withDefaults(), opener, clock, &bench{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.watch = func() (watcher, error) { return nil, syscall.EMFILE }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.run(ctx) }()
		time.Sleep(time.Minute)
		cancel()
		<-ended
		tries := opener.tries()
		for i := 1; i < len(tries); i++ {
			if gap := tries[i] - tries[i-1]; gap > time.Second {
				t.Errorf("%v between two looks", gap)
			}
		}
		if st := s.snapshot(); len(tries) < 60 || st.State != Absent {
			t.Errorf("%d looks, stats %+v", len(tries), st)
		}
	})
}

func TestInterByteTimeoutIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{InterByteTimeout: 150 * time.Millisecond}, always(src))
		src.in <- []byte("ab")
		time.Sleep(149 * time.Millisecond)
		src.in <- []byte("c")
		time.Sleep(149 * time.Millisecond)
		src.in <- []byte("d\r")
		b.expect(t, Frame{Data: Payload("abcd")})
		src.in <- []byte("ab")
		at := b.clock.Now().Boot
		time.Sleep(150 * time.Millisecond)
		synctest.Wait()
		f := <-b.frames
		if f.Fault != Incomplete || f.Length != 2 || f.At.Boot != at {
			t.Errorf("got %q, length %d, at %v; its last byte came at %v", f.Fault, f.Length, f.At.Boot, at)
		}
		src.in <- []byte("c\r")
		b.expect(t, Frame{Data: Payload("c")})
		b.stop(t)
	})
}

// Timers stand still while the machine sleeps; what comes after is still another message.
func TestGapWhileTimersStoodStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{}, always(src))
		src.in <- []byte("half")
		synctest.Wait()
		b.clock.mu.Lock()
		b.clock.skip = time.Hour
		b.clock.mu.Unlock()
		src.in <- []byte("other\r")
		b.expect(t, Frame{Fault: Incomplete, Length: 4}, Frame{Data: Payload("other")})
		b.stop(t)
	})
}

func TestDataThatComesWithTheErrorCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		n := 0
		b := newBench(t, SerialConfig{}, func() (Source, error) {
			if n++; n > 1 {
				return src, nil
			}
			return lastWords{newFakeSource(), "whole\rhalf"}, nil
		})
		b.expect(t, Frame{Data: Payload("whole")}, Frame{Fault: Incomplete, Length: 4})
		time.Sleep(backoffFirst)
		src.in <- []byte("next\r")
		b.expect(t, Frame{Data: Payload("next")})
		b.stop(t)
	})
}

type lastWords struct {
	*fakeSource
	words string
}

func (l lastWords) Read(p []byte) (int, error) { return copy(p, l.words), syscall.EIO }

// A source that returns nothing for ever must not spin.
func TestEmptyReadsEndTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, SerialConfig{}, always(mute{newFakeSource()}))
		if st := b.snapshot(); st.State != Backoff || !strings.Contains(st.Detail, io.ErrNoProgress.Error()) {
			t.Errorf("stats %+v", st)
		}
		b.stop(t)
	})
}

type mute struct{ *fakeSource }

func (mute) Read([]byte) (int, error) { return 0, nil }

// Whatever hangs, the stop takes less than a second.
func TestStopWithinASecond(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(src *fakeSource, release chan struct{})
		hangs   bool // Open
		meet    State
	}{
		"opening":                 {hangs: true, meet: Opening},
		"reading":                 {meet: Reading},
		"close hangs":             {prepare: func(f *fakeSource, r chan struct{}) { f.hang = r }, meet: Reading},
		"write hangs":             {prepare: func(f *fakeSource, r chan struct{}) { f.blocked = r }, meet: Reading},
		"close hangs, unplugged":  {prepare: func(f *fakeSource, r chan struct{}) { f.hang = r; f.fail <- io.EOF }, meet: Backoff},
		"write hangs, unplugging": {prepare: func(f *fakeSource, r chan struct{}) { f.blocked = r; f.fail <- syscall.EIO }, meet: Backoff},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				src := newFakeSource()
				src.in <- []byte("a\r")
				b := newBench(t, SerialConfig{Framing: ACKNAK}, func() (Source, error) {
					if tc.hangs {
						<-release
					}
					return src, nil
				})
				if !tc.hangs {
					f := <-b.frames
					if tc.prepare != nil {
						tc.prepare(src, release)
					}
					f.Reply.Reply(Accepted)
				}
				synctest.Wait()
				if st := b.snapshot().State; st != tc.meet {
					t.Errorf("state %s, want %s", st, tc.meet)
				}
				if d := b.stop(t); d >= time.Second {
					t.Errorf("the stop took %v", d)
				}
				close(release) // and then nothing is left behind: synctest checks
				synctest.Wait()
				if !tc.hangs {
					return
				}
				select {
				case <-src.closed:
				default:
					t.Error("a source that was opened too late is not closed")
				}
			})
		})
	}
}

// Frames flow, and the source is not opened twice, while a Write hangs.
func TestHangingWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.blocked = make(chan struct{})
		b := newBench(t, SerialConfig{Framing: ACKNAK}, always(src))
		for i := range 2*answerQueue + 1 {
			src.in <- []byte("a\r")
			synctest.Wait()
			f := <-b.frames
			f.Reply.Reply(Accepted)
			synctest.Wait()
			if n, want := b.snapshot().AnswersDropped, max(0, i-answerQueue); n != uint64(want) {
				t.Fatalf("%d answers dropped after frame %d, want %d", n, i, want)
			}
		}
		src.fail <- io.EOF
		time.Sleep(time.Minute)
		if n := len(b.opener.tries()); n != 1 {
			t.Errorf("opened %d times before the first one was closed", n)
		}
		close(src.blocked)
		synctest.Wait()
		if n := b.snapshot().AnswersDropped; n != 2*answerQueue+1 {
			t.Errorf("%d answers dropped, want all %d", n, 2*answerQueue+1)
		}
		b.stop(t)
	})
}

// An answer that found no room is not waited for.
func TestStopAfterLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.blocked = make(chan struct{})
		b := newBench(t, SerialConfig{Framing: ACKNAK}, always(src))
		for range 2 * answerQueue {
			src.in <- []byte("a\r")
			synctest.Wait()
			f := <-b.frames
			f.Reply.Reply(Accepted)
		}
		close(src.blocked)
		synctest.Wait()
		if d := b.stop(t); d != 0 {
			t.Errorf("the stop took %v", d)
		}
	})
}

// An ACK that comes too late would be taken for that of the next message.
func TestStaleAnswersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		src.blocked = make(chan struct{})
		b := newBench(t, SerialConfig{Framing: ACKNAK}, always(src))
		src.in <- []byte("a\rb\rc\r")
		synctest.Wait()
		fa, fb, fc := <-b.frames, <-b.frames, <-b.frames
		fa.Reply.Reply(Accepted)
		fb.Reply.Reply(NotAccepted)
		time.Sleep(writeTimeout)
		fc.Reply.Reply(NotAccepted)
		close(src.blocked)
		synctest.Wait()
		if a, c := <-src.written, <-src.written; a != "\x06" || c != "\x15" {
			t.Errorf("sent %q and %q", a, c)
		}
		if n := b.snapshot().AnswersDropped; n != 1 || len(src.written) != 0 {
			t.Errorf("%d answers dropped, %d more written", n, len(src.written))
		}
		b.stop(t)
	})
}

// A stop waits for the answers that are still due, so that what is durable is ACKed.
func TestStopDrainsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{Framing: ACKNAK}, always(src))
		src.in <- []byte("a\r")
		synctest.Wait()
		f := <-b.frames
		time.AfterFunc(300*time.Millisecond, func() { f.Reply.Reply(Accepted) })
		if d := b.stop(t); d != 300*time.Millisecond {
			t.Errorf("the stop took %v", d)
		}
		if got := <-src.written; got != "\x06" {
			t.Errorf("sent %q", got)
		}
		if want := []State{Opening, Reading, Draining}; !slices.Equal(b.told, want) {
			t.Errorf("told %v, want %v", b.told, want)
		}
	})
}

func TestStopDoesNotWaitForAnswersForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{Framing: ACKNAK}, always(src))
		src.in <- []byte("a\r")
		synctest.Wait()
		f := <-b.frames
		if d := b.stop(t); d != drainFor {
			t.Errorf("the stop took %v", d)
		}
		f.Reply.Reply(Accepted)
		if st := b.snapshot(); st.AnswersDropped != 1 || len(src.written) != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestStopWithinAMessageVoidsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{}, always(src))
		src.in <- []byte("half")
		synctest.Wait()
		if d := b.stop(t); d != 0 {
			t.Errorf("the stop took %v", d)
		}
		b.expect(t, Frame{Fault: Incomplete, Length: 4})
		if v := b.snapshot().Voided; v[VoidStopped] != 1 {
			t.Errorf("voided %v", v)
		}
	})
}

// The packets so far of a scan in several are one void when their device goes away, and when the agent stops, and
// nobody waits for an answer to it.
func TestHalfOfAScanInPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *fakeSource
		b := newBench(t, SerialConfig{Framing: SSI}, func() (Source, error) { src = newFakeSource(); return src, nil })
		half := func(why Void, end func()) {
			t.Helper()
			for range 2 {
				src.in <- decoderPacket(ssiMore, "PART")
				synctest.Wait()
				if got := <-src.written; got != string(ssiPacket(ssiAck)) {
					t.Errorf("sent % x", got)
				}
			}
			from := src
			end()
			synctest.Wait()
			if len(b.frames) != 1 {
				t.Fatalf("%s: %d frames", why, len(b.frames))
			}
			if f := <-b.frames; f.Fault != Incomplete || f.Length != 8 || f.Data != nil || !f.mute || f.Reply != nil {
				t.Errorf("%s: %+v", why, f)
			}
			if v := b.snapshot().Voided; v[why] != 1 || len(from.written) != 0 {
				t.Errorf("%s: voided %v, %d answers", why, v, len(from.written))
			}
		}
		half(VoidUnplugged, func() {
			src.fail <- io.EOF
			synctest.Wait()
			time.Sleep(backoffFirst)
		})
		src.in <- decoderPacket(0, "WHOLE")
		b.expect(t, Frame{Data: Payload("WHOLE")})
		half(VoidStopped, func() {
			if d := b.stop(t); d != drainFor { // for the answer to the whole one
				t.Errorf("the stop took %v", d)
			}
		})
	})
}

// How long two packets of one scan may be apart is the scanner's response timeout, as it is configured.
func TestPacketsWithinTheResponseTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource()
		b := newBench(t, SerialConfig{Framing: SSI, RetryInterval: 9 * time.Second}, always(src))
		src.in <- decoderPacket(ssiMore, "PART")
		time.Sleep(9*time.Second - 1)
		src.in <- decoderPacket(0, "END")
		b.expect(t, Frame{Data: Payload("PARTEND")})
		src.in <- decoderPacket(ssiMore, "PART")
		time.Sleep(9 * time.Second)
		src.in <- decoderPacket(0, "TWO")
		b.expect(t, Frame{Fault: Incomplete, Length: 4}, Frame{Data: Payload("TWO")})
		b.stop(t)
	})
}

type fakeWatch chan struct{}

func (fakeWatch) arm()                       {}
func (w fakeWatch) changed() <-chan struct{} { return w }
func (fakeWatch) close()                     {}

// How often a scanner was looked for in vain does not count once it is plugged in: when its first session fails, it is
// soon tried again.
func TestBackoffBeginsAnewWithAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := make(fakeWatch, 1)
		src := newFakeSource()
		plugged := false
		b := newWatchedBench(t, SerialConfig{}, func() (Source, error) {
			if !plugged {
				return nil, errors.New("cannot open: no such device")
			}
			return src, nil
		}, w)
		for range 20 {
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			before := len(b.opener.tries())
			plugged = true
			w <- struct{}{}
			time.Sleep(time.Second)
			synctest.Wait()
			plugged = false
			fail := b.clock.Now().Boot
			src.fail <- errUnplugged
			src = newFakeSource()
			time.Sleep(time.Minute)
			synctest.Wait()
			tries := b.opener.tries()[before:]
			if len(tries) < 2 || tries[1]-fail > backoffFirst {
				t.Fatalf("failed at %v, tried at %v", fail, tries[:2])
			}
		}
		b.stop(t)
	})
}

// What a device did before a change at its place does not count: neither its crashes, nor that its failure was told.
func TestCrashesCountAnewWithAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *fakeSource
		harmed := crashError{errors.New("cannot read: the reader was killed")}
		var opens atomic.Bool
		w := make(fakeWatch, 1)
		b := newWatchedBench(t, SerialConfig{}, func() (Source, error) {
			if src = newFakeSource(); opens.Load() {
				return src, nil
			}
			return nil, harmed
		}, w)
		until := func(tries int) {
			t.Helper()
			for len(b.opener.tries()) < tries {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
		}
		for i := range 3 { // while it is waited for
			until((i + 1) * (quarantineAfter - 1))
			opens.Store(i == 2) // what follows is within sessions
			w <- struct{}{}
			synctest.Wait()
			if st := b.snapshot(); st.State == Quarantined {
				t.Fatalf("after %d changes: %+v", i+1, st)
			}
		}
		for i := range 2 * quarantineAfter { // while it is read
			w <- struct{}{}
			synctest.Wait()
			src.fail <- harmed
			synctest.Wait()
			if slices.Contains(b.told, Quarantined) {
				t.Fatalf("left alone after %d crashes, each behind a change", i+1)
			}
		}
		for range quarantineAfter { // and without a change
			n := len(b.opener.tries())
			src.fail <- harmed
			synctest.Wait()
			if b.snapshot().State != Quarantined {
				until(n + 1)
			}
		}
		if st := b.snapshot(); st.State != Quarantined {
			t.Errorf("%+v", st)
		}
		b.stop(t)
	})
}

// A failure that is repeated is told once; behind a change the attempt is told anew.
func TestAttemptsAreToldAnewWithAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *fakeSource
		var granted atomic.Bool
		w := make(fakeWatch, 1)
		b := newWatchedBench(t, SerialConfig{}, func() (Source, error) {
			if src = newFakeSource(); granted.Load() {
				return src, nil
			}
			return nil, syscall.EACCES
		}, w)
		for range 2 { // while it is waited for
			time.Sleep(time.Minute)
			synctest.Wait()
			w <- struct{}{}
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		granted.Store(true)
		time.Sleep(backoffMax)
		synctest.Wait()
		w <- struct{}{} // while it is read
		synctest.Wait()
		src.fail <- syscall.EIO
		synctest.Wait()
		want := []State{Opening, Backoff, Opening, Backoff, Opening, Backoff, Reading, Backoff, Opening, Reading}
		if !slices.Equal(b.told, want) {
			t.Errorf("told %v, want %v", b.told, want)
		}
		b.stop(t)
	})
}

// A sign of the new device may come before the old one is known to be gone; it cuts the wait all the same.
func TestChangeCutsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *fakeSource
		ok := true
		w := make(fakeWatch, 1)
		b := newWatchedBench(t, SerialConfig{}, func() (Source, error) {
			if src = newFakeSource(); ok {
				return src, nil
			}
			return nil, syscall.EACCES
		}, w)
		for range 20 {
			w <- struct{}{}
			synctest.Wait()
			n, at := len(b.opener.tries()), b.clock.Now().Boot
			src.fail <- io.EOF
			synctest.Wait()
			if got := b.opener.tries(); len(got) != n+1 || got[n] != at {
				t.Fatalf("opened at %v, gone at %v", got[n:], at)
			}
		}
		ok = false
		src.fail <- io.EOF
		synctest.Wait()
		for range 20 {
			n, at := len(b.opener.tries()), b.clock.Now().Boot
			w <- struct{}{}
			synctest.Wait()
			if got := b.opener.tries(); len(got) != n+1 || got[n] != at {
				t.Fatalf("tried at %v, told at %v", got[n:], at)
			}
		}
		b.stop(t)
	})
}

type movedSource struct {
	*fakeSource
	gone atomic.Bool
}

func (m *movedSource) Moved() bool { return m.gone.Load() }

// What is known to have gone may have sent a scan that is still on its way here; half of one is void.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var src *movedSource
		w := make(fakeWatch, 1)
		b := newWatchedBench(t, SerialConfig{}, func() (Source, error) {
			src = &movedSource{fakeSource: newFakeSource()}
			return src, nil
		}, w)
		src.gone.Store(true)
		w <- struct{}{}
		src.in <- []byte("ABC\rDE")
		time.Sleep(lastWordsFor)
		b.expect(t, Frame{Data: Payload("ABC")}, Frame{Fault: Incomplete, Length: 2})
		if st := b.snapshot(); st.Voided[VoidUnplugged] != 1 || st.State != Reading || st.Reopens != 1 {
			t.Errorf("stats %+v", st)
		}
		b.stop(t)
	})
}
