package device

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stampedSource is a device whose reports a test gives, with what is known of each.
type stampedSource struct {
	*fakeSource
	at      atomic.Int64 // of the next report; 0: now
	lost    atomic.Int64 // before it
	waiting atomic.Bool
	clock   *bubbleClock
}

func (s *stampedSource) Stamp() (time.Duration, int) {
	at := time.Duration(s.at.Swap(0))
	if at == 0 {
		at = s.clock.Now().Boot
	}
	return at, int(s.lost.Swap(0))
}

func (s *stampedSource) Waiting() bool { return s.waiting.Load() }

// newHIDBench starts a supervisor over a scanner with a Honeywell's reports, within a synctest bubble.
func newHIDBench(t *testing.T) (*bench, *stampedSource) {
	t.Helper()
	src := &stampedSource{fakeSource: newFakeSource()}
	b := newBench(t, SerialConfig{}, func() (Source, error) { return nil, errors.New("not yet") })
	b.stop(t)
	src.clock = b.clock
	b.opener.open = func() (Source, error) { return src, nil }
	b.ready = make(chan struct{})
	b.supervisor.gap = DefaultReportGap
	b.decode = func(_ Source, emit func(Frame)) (decoder, error) {
		return NewHIDPos("SCN-04", hidPosHoneywell, DefaultReportGap, emit)
	}
	b.begin(t)
	return b, src
}

func sendTo(src *stampedSource, reports ...[]byte) {
	for _, r := range reports {
		src.in <- r
		synctest.Wait()
	}
}

func TestHIDSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newHIDBench(t)
		long := posVendors[0].send("]d2", body(1, 150))
		sendTo(src, long[0])
		time.Sleep(150 * time.Millisecond)
		sendTo(src, nil, long[1], nil)
		time.Sleep(150 * time.Millisecond)
		sendTo(src, long[2])
		b.expect(t, Frame{Data: Payload("]d2" + body(1, 150))})
		// Silence voids a scan by itself, and what comes then is none of it.
		sendTo(src, long[0])
		time.Sleep(DefaultReportGap - time.Millisecond)
		b.expect(t)
		time.Sleep(time.Millisecond)
		b.expect(t, Frame{Fault: Incomplete, Length: 59})
		sendTo(src, posVendors[0].send("]C1", "next")...)
		b.expect(t, Frame{Data: Payload("]C1next")})
		b.stop(t)
	})
}

// The instants are those of the process that read the reports: it is not silence if the agent is late.
func TestHIDLateAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newHIDBench(t)
		long := posVendors[0].send("]d2", body(1, 150))
		sendTo(src, long[0])
		src.waiting.Store(true) // the next one lies in the pipe
		time.Sleep(5 * DefaultReportGap)
		b.expect(t)
		src.at.Store(int64(b.clock.Now().Boot - 5*DefaultReportGap + time.Millisecond))
		sendTo(src, long[1])
		src.waiting.Store(false)
		src.at.Store(int64(b.clock.Now().Boot - 5*DefaultReportGap + 2*time.Millisecond))
		at := b.clock.Now().Boot - 5*DefaultReportGap + 2*time.Millisecond
		src.in <- long[2]
		synctest.Wait()
		f := <-b.frames
		if string(f.Data) != "]d2"+body(1, 150) || f.At.Boot != at || f.At.T.Sub(0) != at {
			t.Errorf("got %q at %v and %v, want it at %v", []byte(f.Data), f.At.Boot, f.At.T, at)
		}
		// And two that come together are apart if they were apart.
		src.at.Store(int64(b.clock.Now().Boot - 2*DefaultReportGap))
		sendTo(src, long[0])
		sendTo(src, posVendors[0].send("]d2", "x")...)
		b.expect(t, Frame{Fault: Incomplete, Length: 59}, Frame{Data: Payload("]d2x")})
		// No instant lies ahead.
		src.at.Store(int64(b.clock.Now().Boot + time.Hour))
		sendTo(src, posVendors[0].send("]d2", "y")...)
		if f := <-b.frames; f.At.Boot != b.clock.Now().Boot {
			t.Errorf("at %v, now is %v", f.At.Boot, b.clock.Now().Boot)
		}
		b.stop(t)
	})
}

// A lost report voids the scan that it may be of, with others after it or not.
func TestHIDLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newHIDBench(t)
		long := posVendors[0].send("]d2", body(1, 150))
		sendTo(src, long[0])
		src.lost.Store(2)
		sendTo(src, long[2])
		b.expect(t, Frame{Fault: Incomplete, Length: 97})
		src.lost.Store(1)
		sendTo(src, nil)
		b.expect(t)
		time.Sleep(DefaultReportGap)
		b.expect(t, Frame{Fault: Incomplete, Length: 0})
		sendTo(src, long...)
		b.expect(t, Frame{Data: Payload("]d2" + body(1, 150))})
		if st := b.snapshot(); st.Lost != 3 || st.Voided[VoidIncomplete] != 2 || st.Frames != 3 {
			t.Errorf("stats %+v", st)
		}
		b.stop(t)
	})
}

// Whatever the end, a scan under way is one void frame.
func TestHIDEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(*bench, *stampedSource)
		want Void
	}{
		"unplugged": {func(b *bench, src *stampedSource) { src.fail <- errUnplugged }, VoidUnplugged},
		"stopped":   {func(b *bench, src *stampedSource) { b.cancel() }, VoidStopped},
		"nothing":   {func(b *bench, src *stampedSource) { sendTo(src, make([][]byte, emptyReads)...) }, VoidUnplugged},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, src := newHIDBench(t)
				sendTo(src, posVendors[0].send("]d2", body(1, 150))[0])
				tc.end(b, src)
				b.expect(t, Frame{Fault: Incomplete, Length: 59})
				if v := b.snapshot().Voided; v[tc.want] != 1 {
					t.Errorf("voided %v", v)
				}
				b.stop(t)
			})
		})
	}
}

// A crash is not the device's fault; a few of them are.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, SerialConfig{}, func() (Source, error) { return nil, crashError{errors.New("cannot go on: it crashed")} })
		time.Sleep(quarantineRetry / 2)
		synctest.Wait()
		st := b.snapshot()
		if st.State != Quarantined || !strings.HasPrefix(st.Detail, "cannot go on: it crashed") || st.Crashes != quarantineAfter || len(b.opener.tries()) != quarantineAfter {
			t.Errorf("%d tries, stats %+v", len(b.opener.tries()), st)
		}
		told := len(b.told)
		time.Sleep(10 * quarantineRetry)
		synctest.Wait()
		if n := len(b.opener.tries()) - quarantineAfter; n != 10 || len(b.told) != told {
			t.Errorf("%d more tries, told %v", n, b.told[told:])
		}
		b.stop(t)
	})
}
