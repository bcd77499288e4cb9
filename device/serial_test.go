package device

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(fakeHIDEnv); at != "" {
		os.Exit(fakeHIDWorker(at))
	}
	goleak.VerifyTestMain(m)
}

func TestSerialFramings(t *testing.T) {
	for _, tc := range []struct {
		framing Framing
		send    string
		want    []string
	}{
		{Line, "a\rb\nc\r\n]d201\x1d10A1207\r", []string{"a", "b", "c", "]d201\x1d10A1207"}},
		{CR, "a\nb\rc\r", []string{"a\nb", "c"}},
		{LF, "a\rb\nc\n", []string{"a\rb", "c"}},
		{CRLF, "a\rb\r\nc\r\n", []string{"a\rb", "c"}},
		{STXETX, "\x02a\r\x1db\x03\r\n\x02c\x03", []string{"a\r\x1db", "c"}},
		{ACKNAK, "a\r\n\x02b\x03c\n", []string{"a", "b", "c"}},
	} {
		for _, step := range []int{1, 3, len(tc.send)} {
			t.Run(fmt.Sprintf("%s by %d", tc.framing, step), func(t *testing.T) {
				r, p := plugged(t, func(c *SerialConfig) { c.Framing = tc.framing; c.InterByteTimeout = 5 * time.Second })
				for rest := tc.send; rest != ""; {
					n := min(step, len(rest))
					p.send(rest[:n])
					rest = rest[n:]
				}
				for _, w := range tc.want {
					r.data(w)
				}
				if st := r.serial.Stats(); st.Frames != uint64(len(tc.want)) || st.State != Reading || st.LastFrame == 0 {
					t.Errorf("stats %+v", st)
				}
			})
		}
	}
}

func TestSerialStatesAreTold(t *testing.T) {
	r := newRig(t, nil)
	r.start()
	if e := r.wait(Absent); e.scanner != "SCN-04" || !strings.Contains(e.detail, r.path) {
		t.Errorf("told %+v", e)
	}
	p := openPty(t)
	p.plug(r.path)
	for _, want := range []State{Opening, Reading} {
		if e := <-r.states; e.state != want {
			t.Errorf("told %+v, want %s", e, want)
		}
	}
	p.unplug()
	r.wait(Absent)
	r.stop()
	select {
	case e := <-r.states:
		t.Errorf("told %+v after the stop of an absent port", e)
	default:
	}
}

func TestSerialAnswers(t *testing.T) {
	tones := Feedback{Good: []byte("G"), Duplicate: []byte("D"), Reject: []byte("R")}
	for _, tc := range []struct {
		answer      Answer
		line, acked string
	}{
		{Accepted, "G", "\x06G"}, {Duplicate, "D", "\x06D"}, {Rejected, "R", "\x06R"}, {Control, "G", "\x06G"}, {NotAccepted, "R", "\x15R"},
	} {
		for framing, want := range map[Framing]string{Line: tc.line, ACKNAK: tc.acked} {
			r, p := plugged(t, func(c *SerialConfig) { c.Framing = framing; c.Feedback = tones })
			p.send("a\r")
			f := r.data("a")
			p.expectNothing()
			f.Reply.Reply(tc.answer)
			p.expect(want)
			r.stop()
			f.Reply.Reply(tc.answer)
			if st := r.serial.Stats(); st.AnswersDropped != 1 {
				t.Errorf("%s: %d answers dropped after the stop, want 1", framing, st.AnswersDropped)
			}
			p.expectNothing()
		}
	}
}

func TestSerialWithoutFeedbackTakesNoAnswer(t *testing.T) {
	r, p := plugged(t, nil)
	p.send("a\r")
	if f := r.data("a"); f.Reply != nil {
		t.Errorf("Reply is %v, want nil", f.Reply)
	}
}

func TestSerialAckWithoutTones(t *testing.T) {
	r, p := plugged(t, func(c *SerialConfig) { c.Framing = ACKNAK })
	r.reply = Duplicate
	p.send("a\rb\r")
	p.expect("\x06\x06")
}

// A sink that is full makes the source answer by itself, a faulty message too.
func TestSerialFullSink(t *testing.T) {
	r := newRig(t, func(c *SerialConfig) { c.Framing = ACKNAK; c.Feedback.Reject = []byte("R") })
	r.full = true
	p := openPty(t)
	p.plug(r.path)
	r.start()
	r.wait(Reading)
	p.send("a\rb\r")
	p.expect("\x15R\x15R")
	p.send("half")
	p.expect("\x15R")
	if st := r.serial.Stats(); st.Frames != 3 || st.Dropped != 3 || st.Voided[VoidIncomplete] != 1 || st.AnswersDropped != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestSerialInterByteTimeout(t *testing.T) {
	r, p := plugged(t, func(c *SerialConfig) { c.Framing = ACKNAK })
	r.reply = NotAccepted
	p.send("0100300")
	f := r.fault(Incomplete, 7)
	p.expect("\x15")
	p.send("937214106\r")
	if g := r.data("937214106"); g.At.Boot-f.At.Boot < DefaultInterByteTimeout {
		t.Errorf("the next message came %v after the last byte of the first", g.At.Boot-f.At.Boot)
	}
	if st := r.serial.Stats(); st.Frames != 2 || st.Voided[VoidIncomplete] != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestSerialNoTerminator(t *testing.T) {
	r, p := plugged(t, nil)
	p.send(strings.Repeat("x", 600))
	r.fault(Incomplete, 600)
	p.send(strings.Repeat("y", 5000) + "\r" + "ok\r")
	r.fault(TooLong, 5000)
	r.data("ok")
	p.send(strings.Repeat("z", 5000))
	r.fault(TooLong, 5000)
	p.send("clean again\r")
	r.data("clean again")
	if v := r.serial.Stats().Voided; v[VoidIncomplete] != 1 || v[VoidTooLong] != 2 || v[VoidUnplugged] != 0 {
		t.Errorf("voided %v", v)
	}
}

// Frames that end in one Read share its reading, and time goes on between Reads.
func TestSerialInstant(t *testing.T) {
	r, p := plugged(t, nil)
	before := hostClock(t).Now()
	p.send("a\rb\r")
	a, b := r.data("a"), r.data("b")
	p.send("c\r")
	c := r.data("c")
	if a.At.Boot < before.Boot || a.At.T == 0 || b.At.Boot < a.At.Boot || c.At.Boot <= b.At.Boot {
		t.Errorf("sent after %v, read at %v, %v, %v", before.Boot, a.At.Boot, b.At.Boot, c.At.Boot)
	}
	if last := r.serial.Stats().LastFrame; last != c.At.Boot {
		t.Errorf("last frame at %v, want %v", last, c.At.Boot)
	}
}

func TestSerialUnplugWithinMessage(t *testing.T) {
	r, p := plugged(t, func(c *SerialConfig) { c.Framing = ACKNAK; c.InterByteTimeout = 10 * time.Second })
	p.send("whole\rhalf")
	whole := r.data("whole")
	// The kernel throws away what nobody has read when the far side closes.
	_, fds := descriptors(t, p.port)
	eventually(t, "the half message is read", func() bool {
		n, err := unix.IoctlGetInt(fds[0], unix.TIOCINQ)
		must(t, err)
		return n == 0
	})
	p.unplug()
	if f := r.fault(Incomplete, 4); f.Reply != nil {
		t.Error("a device that is gone takes no answer")
	}
	r.wait(Absent)
	whole.Reply.Reply(Accepted)

	q := openPty(t)
	q.plug(r.path)
	r.wait(Reading)
	q.send("other half\r")
	f := r.data("other half")
	q.expectNothing() // the answer to the old device does not reach the new one
	f.Reply.Reply(Accepted)
	q.expect("\x06")
	if st := r.serial.Stats(); st.Frames != 3 || st.Voided[VoidUnplugged] != 1 || st.Reopens != 1 || st.AnswersDropped != 1 {
		t.Errorf("stats %+v", st)
	}
}

// A port that appears, in whatever way, is opened at once.
func TestSerialAppears(t *testing.T) {
	for name, appear := range map[string]func(t *testing.T, path, port string){
		"symlink renamed into place": func(t *testing.T, path, port string) {
			must(t, os.Symlink(port, path+".new"))
			must(t, os.Rename(path+".new", path))
		},
		"symlink made": func(t *testing.T, path, port string) { must(t, os.Symlink(port, path)) },
		"link to a link": func(t *testing.T, path, port string) {
			must(t, os.Mkdir(filepath.Dir(path)+"/other", 0o755))
			must(t, os.Symlink("other/tty", path))
			must(t, os.Symlink(port, filepath.Dir(path)+"/other/tty"))
		},
	} {
		for _, folders := range []string{"", "a", "a/b/c"} {
			t.Run(name+" in "+folders, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), folders)
				r := newRig(t, func(c *SerialConfig) { c.Path = filepath.Join(dir, "scn04") })
				r.start()
				r.wait(Absent)
				p := openPty(t)
				must(t, os.MkdirAll(dir, 0o755))
				testenv.Within(t, "the opening", time.Second, func() {
					appear(t, r.path, p.port)
					r.wait(Reading)
				})
				p.send("a\r")
				r.data("a")
			})
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The path leads to another device while the first one still works.
func TestSerialFollowsItsPath(t *testing.T) {
	r, p := plugged(t, func(c *SerialConfig) { c.Feedback.Good = []byte("G") })
	p.send("a\r")
	r.data("a").Reply.Reply(Accepted)
	p.expect("G")
	q := openPty(t)
	testenv.Within(t, "to follow", time.Second, func() {
		q.plug(r.path)
		r.wait(Draining)
		r.wait(Reading)
	})
	q.send("b\r")
	r.data("b")
	if _, fds := descriptors(t, p.port); len(fds) != 0 {
		t.Errorf("the first port is still open %d times", len(fds))
	}
	// A link that is renamed over by one to the same device changes nothing.
	q.plug(r.path)
	q.send("c\r")
	r.data("c")
	if st := r.serial.Stats(); st.Reopens != 1 || st.State != Reading {
		t.Errorf("stats %+v", st)
	}
}

// The old device is closed before the new one is opened, and within 50 ms nothing is lost.
func TestSerialReplugAtOnce(t *testing.T) {
	r, p := plugged(t, nil)
	for i := range 20 {
		q := openPty(t)
		if i%2 == 0 {
			p.unplug()
			q.plug(r.path)
		} else {
			q.plug(r.path)
			p.unplug()
		}
		testenv.Within(t, fmt.Sprint("the way back ", i), time.Second, func() { r.wait(Reading) })
		want := "scan " + strconv.Itoa(i)
		q.send(want + "\r")
		r.data(want)
		p = q
	}
	if st := r.serial.Stats(); st.Reopens != 20 || st.Frames != 20 {
		t.Errorf("stats %+v", st)
	}
}

func TestSerialUnplugsLeakNothing(t *testing.T) {
	r := newRig(t, nil)
	r.start()
	r.wait(Absent)
	cycle := func() {
		p := openPty(t)
		p.plug(r.path)
		r.wait(Reading)
		p.send("a\r")
		r.data("a")
		p.unplug()
		must(t, os.Remove(r.path))
		r.wait(Absent)
		eventually(t, "the port is closed", func() bool { _, fds := descriptors(t, p.port); return len(fds) == 0 })
	}
	for range 5 {
		cycle()
	}
	fds, _ := descriptors(t, "")
	routines := runtime.NumGoroutine()
	for range 100 {
		cycle()
	}
	eventually(t, "as many descriptors as before", func() bool { n, _ := descriptors(t, ""); return n == fds })
	eventually(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= routines })
	if st := r.serial.Stats(); st.Reopens != 104 {
		t.Errorf("stats %+v", st)
	}
}

// A device that is gone, or not there, costs no time; one that is silent wakes nobody.
func TestSerialIdle(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(t *testing.T) *rig
	}{
		{"reading", func(t *testing.T) *rig {
			r, p := plugged(t, nil)
			p.send("a\r")
			r.data("a")
			return r
		}},
		{"after an unplug", func(t *testing.T) *rig {
			r, p := plugged(t, nil)
			must(t, os.Remove(r.path)) // as udev does: the terminal's number goes to the next one who asks
			p.unplug()
			r.wait(Absent)
			return r
		}},
		{"absent", func(t *testing.T) *rig {
			r := newRig(t, nil)
			r.start()
			r.wait(Absent)
			return r
		}},
		{"not a port", func(t *testing.T) *rig {
			r := newRig(t, nil)
			must(t, os.WriteFile(r.path, nil, 0o600))
			r.start()
			r.wait(Backoff)
			return r
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := tc.setup(t)
			runtime.GC()
			var before, after unix.Rusage
			must(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
			select {
			case f := <-r.frames:
				t.Fatalf("heard %v", f)
			case <-time.After(2 * time.Second): // what is measured
			}
			must(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
			cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			t.Logf("%v of CPU, %d voluntary context switches in 2 s", cpu, after.Nvcsw-before.Nvcsw)
			if cpu > 50*time.Millisecond {
				t.Errorf("%v of CPU", cpu)
			}
			if n := after.Nvcsw - before.Nvcsw; n > 200 {
				t.Errorf("%d voluntary context switches", n)
			}
		})
	}
}

func TestSerialTwoScannersOneFailing(t *testing.T) {
	bad := newRig(t, nil)
	must(t, os.WriteFile(bad.path, []byte("no port"), 0o600))
	bad.start()
	if e := bad.wait(Backoff); !strings.HasPrefix(e.detail, "cannot set "+bad.path) || !strings.Contains(e.detail, "must lead to a serial port") {
		t.Errorf("told %q", e.detail)
	}
	good, p := plugged(t, nil)
	for i := range 50 {
		want := strconv.Itoa(i)
		p.send(want + "\r")
		good.data(want)
	}
	if st := bad.serial.Stats(); st.Frames != 0 || st.State != Backoff {
		t.Errorf("stats %+v", st)
	}
}

// A scanner that takes no answers loses answers, never scans.
func TestSerialWriterBlocked(t *testing.T) {
	tone := bytes.Repeat([]byte("G"), maxFeedbackLen)
	r, p := plugged(t, func(c *SerialConfig) { c.Feedback.Good = tone })
	r.reply = Accepted
	const n = 3000
	for i := range n {
		want := strconv.Itoa(i)
		p.send(want + "\r")
		r.data(want)
	}
	st := r.serial.Stats()
	if st.AnswersDropped == 0 || st.Frames != n || st.Dropped != 0 {
		t.Errorf("stats %+v", st)
	}
	r.stop() // within 1 s
}

// Beyond descriptor 1023 select(2) cannot be used.
func TestSerialManyDescriptors(t *testing.T) {
	var lim unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &lim))
	if lim.Cur < 1200 {
		old := lim
		lim.Cur = min(1200, lim.Max)
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lim))
		defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	}
	for range 1100 {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(fd)
	}
	r, p := plugged(t, nil)
	p.send("a\r")
	r.data("a")
	r.stop()
}

// One descriptor a port, not inherited by child processes, and nobody else may open the port.
func TestSerialDescriptor(t *testing.T) {
	_, p := plugged(t, func(c *SerialConfig) { c.Baud = 115200 })
	_, fds := descriptors(t, p.port)
	if len(fds) != 1 {
		t.Fatalf("the port is open as %v", fds)
	}
	flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0)
	must(t, err)
	if flags&unix.FD_CLOEXEC == 0 {
		t.Error("the port is inherited by child processes")
	}
	tio, err := unix.IoctlGetTermios(fds[0], unix.TCGETS)
	must(t, err)
	if tio.Cflag&unix.CBAUD != unix.B115200 || tio.Lflag&(unix.ICANON|unix.ECHO) != 0 {
		t.Errorf("termios %+v", tio)
	}
	if excl, err := unix.IoctlGetInt(fds[0], unix.TIOCGEXCL); err != nil || excl == 0 {
		t.Errorf("not exclusive: %d, %v", excl, err)
	}
}

func TestSerialPortWriteTimesOut(t *testing.T) {
	p := openPty(t)
	src, err := (&serialOpener{path: p.port, baud: DefaultBaud}).Open(t.Context())
	must(t, err)
	defer src.Close()
	start := time.Now()
	_, err = src.Write(make([]byte, 1<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
	if d := time.Since(start); d < writeTimeout || d > writeTimeout+patience {
		t.Errorf("gave up after %v", d)
	}
	// Once the far side takes bytes again, so does the near side.
	p.file.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, 1<<16)
	for p.queued() > 0 {
		if _, err := p.file.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := src.Write([]byte("G")); err != nil {
		t.Errorf("after the time-out: %v", err)
	}
}

func TestSerialPortCloseEndsReadAndWrite(t *testing.T) {
	p := openPty(t)
	src, err := (&serialOpener{path: p.port, baud: DefaultBaud}).Open(t.Context())
	must(t, err)
	ended := make(chan error, 2)
	go func() { _, err := src.Read(make([]byte, 1)); ended <- err }()
	go func() { _, err := src.Write(make([]byte, 1<<20)); ended <- err }()
	// What comes out of the far side shows that the writer is at work.
	p.expect("\x00")
	must(t, src.Close())
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Close did not end a Read or a Write")
		}
	}
}

func TestOpenHints(t *testing.T) {
	for err, want := range map[error]string{
		unix.EACCES: "dialout", unix.EPERM: "dialout", unix.EBUSY: "another program", unix.ENXIO: "", unix.EIO: "",
	} {
		if got := openHint(fmt.Errorf("cannot open: %w", err)); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%v: hint %q, want one with %q", err, got, want)
		}
	}
}

// A port whose node is there but whose device is not is no reason to say that it is absent.
func TestSerialOpenerErrors(t *testing.T) {
	dir := t.TempDir()
	o := &serialOpener{path: dir + "/none", baud: DefaultBaud}
	if _, err := o.Open(t.Context()); o.Attached() || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing there: attached %v, %v", o.Attached(), err)
	}
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	o.path = dir + "/dangling"
	if _, err := o.Open(t.Context()); o.Attached() || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("dangling link: attached %v, %v", o.Attached(), err)
	}
	o.path = dir
	if _, err := o.Open(t.Context()); !o.Attached() || err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder: attached %v, %v", o.Attached(), err)
	}
	before, _ := descriptors(t, "")
	must(t, os.WriteFile(dir+"/file", nil, 0o600))
	o.path = dir + "/file"
	if _, err := o.Open(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "cannot set "+o.path+" to 9600 baud: ") {
		t.Errorf("a file: %v", err)
	}
	if after, _ := descriptors(t, ""); after != before {
		t.Errorf("%d descriptors after a failed opening, %d before", after, before)
	}
}
