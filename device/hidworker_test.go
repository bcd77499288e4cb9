package device

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// played is a device whose Reads a test gives. It may know of losses.
type played struct {
	reads chan func([]byte) (int, error)
	lost  int
}

func (p *played) Read(b []byte) (int, error) { return (<-p.reads)(b) }
func (p *played) Stamp() (time.Duration, int) {
	n := p.lost
	p.lost = 0
	return 0, n
}

func gives(report string) func([]byte) (int, error) {
	return func(b []byte) (int, error) { return copy(b, report), nil }
}

// workerBench is the process's code with its two pipes.
type workerBench struct {
	t     *testing.T
	dev   *played
	stdin *io.PipeWriter
	out   *io.PipeReader
	ended chan error
}

func startWorker(t *testing.T, open func(hidRequest) (hidDevice, []byte, error)) *workerBench {
	b := &workerBench{t: t, dev: &played{reads: make(chan func([]byte) (int, error))}, ended: make(chan error, 1)}
	if open == nil {
		open = func(hidRequest) (hidDevice, []byte, error) { return b.dev, []byte("descriptor"), nil }
	}
	in, stdin := io.Pipe()
	out, stdout := io.Pipe()
	b.stdin, b.out = stdin, out
	clock := &bubbleClock{start: time.Now()}
	go func() {
		b.ended <- hidWorker{open: open, boot: func() time.Duration { return clock.Now().Boot }}.run(in, stdout)
	}()
	line, err := json.Marshal(hidRequest{Via: viaUSB, Port: "1-1"})
	must(t, err)
	_, err = stdin.Write(append(line, '\n'))
	must(t, err)
	return b
}

// end waits for the end of the process, and for what its end ends.
func (b *workerBench) end() error {
	err := <-b.ended
	b.stdin.Close()
	b.out.Close()
	return err
}

func (b *workerBench) play(reads ...func([]byte) (int, error)) {
	for _, r := range reads {
		b.dev.reads <- r
	}
}

// record returns the next one as a text.
func (b *workerBench) record() string {
	b.t.Helper()
	rec, err := readHIDRecord(b.out, make([]byte, maxHIDReport))
	if err != nil {
		b.t.Fatal(err)
	}
	if rec.what == recLost {
		return fmt.Sprintf("L%d", binary.LittleEndian.Uint32(rec.data))
	}
	return string(rec.what) + string(rec.data)
}

func (b *workerBench) expect(want ...string) {
	b.t.Helper()
	for _, w := range want {
		if got := b.record(); got != w {
			b.t.Fatalf("got %q, want %q", got, w)
		}
	}
}

func TestHIDWorkerCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startWorker(t, nil)
		b.expect("Odescriptor")
		b.play(gives("one"), gives(""), gives(""), gives("two"))
		b.expect("Rone", "Rtwo")
		time.Sleep(time.Second)
		b.play(gives("three"))
		rec, err := readHIDRecord(b.out, make([]byte, maxHIDReport))
		if err != nil || rec.at != time.Second || string(rec.data) != "three" {
			t.Errorf("got %+v, %v", rec, err)
		}
		b.dev.lost = 3
		b.play(gives("four"))
		b.expect("L3", "Rfour")
		b.dev.lost = 1
		b.play(gives(""))
		b.expect("L1")
		b.play(func([]byte) (int, error) { return 0, errUnplugged })
		b.expect("Ef" + errUnplugged.Error())
		if err := b.end(); err != nil {
			t.Error(err)
		}
	})
}

// A device that gives nothing for ever must not keep a core busy.
func TestHIDWorkerNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startWorker(t, nil)
		b.expect("Odescriptor")
		for range emptyReads - 1 {
			b.play(gives(""))
		}
		b.play(gives("one"))
		b.expect("Rone")
		for range emptyReads {
			b.play(gives(""))
		}
		b.expect("Ef" + io.ErrNoProgress.Error())
		b.end()
	})
}

// The agent does not read: the device is drained all the same, and what is lost is counted in its place.
func TestHIDWorkerOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startWorker(t, nil)
		synctest.Wait() // the writer is stuck with the first record
		for i := range hidQueue + 5 {
			b.play(gives(fmt.Sprint(i)))
		}
		synctest.Wait()
		b.expect("Odescriptor")
		for i := range hidQueue {
			b.expect(fmt.Sprintf("R%d", i))
		}
		b.expect("L5")
		b.play(gives("next"))
		b.expect("Rnext")
		b.play(func([]byte) (int, error) { return 0, errUnplugged })
		b.expect("Ef" + errUnplugged.Error())
		b.end()
	})
}

// After an error the device may be a nil pointer that is no nil interface.
func TestHIDWorkerOpenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startWorker(t, func(hidRequest) (hidDevice, []byte, error) {
			var none *played
			return none, nil, hidErrorf(hidRefuse, "cannot open it: %s", strings.Repeat("x", 5000))
		})
		rec, err := readHIDRecord(b.out, make([]byte, maxHIDReport))
		must(t, err)
		if e := rec.err(); !strings.HasPrefix(e.Error(), "cannot open it: xxx") || len(e.Error()) > 1000 || errors.Is(e, fs.ErrNotExist) {
			t.Errorf("got %v", e)
		}
		b.end()
	})
}

// The process ends with the agent, whatever the device does.
func TestHIDWorkerEndsWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := startWorker(t, func(hidRequest) (hidDevice, []byte, error) { <-hang; return nil, nil, errUnplugged })
		b.stdin.Close()
		if err := <-b.ended; err != nil {
			t.Error(err)
		}
		close(hang)
		b.expect("Ef" + errUnplugged.Error()) // its goroutines end too
	})
	synctest.Test(t, func(t *testing.T) {
		b := startWorker(t, nil)
		b.out.Close()
		if err := b.end(); err == nil {
			t.Error("nobody reads, and nothing is said")
		}
		b.play(func([]byte) (int, error) { return 0, errUnplugged })
	})
}

func TestHIDWorkerRequest(t *testing.T) {
	for _, in := range []string{"", "{}", "x\n", strings.Repeat("x", maxHIDRequest+1) + "\n"} {
		var out bytes.Buffer
		err := hidWorker{open: func(hidRequest) (hidDevice, []byte, error) { panic("opened") }}.run(strings.NewReader(in), &out)
		if err == nil || !strings.HasPrefix(err.Error(), "cannot read which device is meant") || out.Len() > 0 {
			t.Errorf("%.10q: %v, wrote %q", in, err, out.Bytes())
		}
	}
	if _, _, err := openHID(hidRequest{Via: "elsewhere"}); err == nil {
		t.Error("opened by no known way")
	}
}

func TestHIDRecords(t *testing.T) {
	whole := appendHIDRecord(nil, hidRecord{recReport, 5, []byte("abc")})
	if rec, err := readHIDRecord(bytes.NewReader(whole), make([]byte, 3)); err != nil || rec.at != 5 || string(rec.data) != "abc" {
		t.Errorf("got %+v, %v", rec, err)
	}
	for name, b := range map[string][]byte{
		"unknown":     appendHIDRecord(nil, hidRecord{'x', 0, nil}),
		"too long":    appendHIDRecord(nil, hidRecord{recReport, 0, make([]byte, 4)}),
		"cut off":     whole[:len(whole)-1],
		"short count": appendHIDRecord(nil, hidRecord{recLost, 0, []byte{1}}),
	} {
		if _, err := readHIDRecord(bytes.NewReader(b), make([]byte, 3)); !errors.Is(err, errHIDRecord) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readHIDRecord(bytes.NewReader(nil), nil); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for _, r := range []hidRecord{{what: recError}, {what: recError, data: []byte("xtext")}} {
		if err := r.err(); !errors.Is(err, errHIDRecord) {
			t.Errorf("%q: %v", r.data, err)
		}
	}
	gone := hidErrorRecord(hidErrorf(hidGone, "cannot find it"), 0)
	if err := gone.err(); !errors.Is(err, fs.ErrNotExist) || err.Error() != "cannot find it" {
		t.Errorf("got %v", err)
	}
}

func FuzzHIDRecords(f *testing.F) {
	f.Add(appendHIDRecord(appendHIDRecord(nil, hidRecord{recOpened, 1, []byte("d")}), hidRecord{recReport, 2, []byte("abc")}))
	f.Add([]byte("a half barcode"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		buf := make([]byte, 64)
		for {
			rec, err := readHIDRecord(r, buf)
			if err != nil {
				return
			}
			if len(rec.data) > len(buf) {
				t.Fatalf("%d bytes", len(rec.data))
			}
			if rec.what == recError {
				if rec.err() == nil {
					t.Fatal("an error that is none")
				}
			}
		}
	})
}
