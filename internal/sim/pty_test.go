package sim

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func plug(t *testing.T, f Framing) *Scanner {
	t.Helper()
	s, err := Plug("SCN-04", filepath.Join(t.TempDir(), "scn04"), f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// open opens the device as the agent does.
func open(t *testing.T, s *Scanner) *os.File {
	t.Helper()
	dev, err := os.OpenFile(s.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestBytesPassUnchanged(t *testing.T) {
	s := plug(t, Framing{Suffix: "\r"})
	dev := open(t, s)
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	if err := s.Type(string(every)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 257)
	if _, err := io.ReadFull(dev, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(every)+"\r" {
		t.Errorf("the device read %q", got)
	}
	if _, err := dev.Write(every); err != nil {
		t.Fatal(err)
	}
	fed, err := s.Feedback(deadline(t), 256)
	if err != nil || fed != string(every) {
		t.Errorf("feedback %q, %v", fed, err)
	}
}

// Feedback goes on after the agent closed the device and opened it again.
func TestFeedbackOutlivesTheReader(t *testing.T) {
	s := plug(t, Framing{})
	dev := open(t, s)
	s.Opened()
	for _, beep := range []string{"G", "D", "R"} {
		if _, err := io.WriteString(dev, beep); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Feedback(deadline(t), 1); err != nil || got != beep {
			t.Fatalf("feedback %q, %v, want %q", got, err, beep)
		}
		dev.Close()
		dev = open(t, s)
	}
}

func TestFeedbackTellsWhyItEnds(t *testing.T) {
	s := plug(t, Framing{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Feedback(ctx, 1); err == nil || !strings.Contains(err.Error(), "0 came") {
		t.Errorf("with a context that ended: %v", err)
	}
	told := make(chan error)
	go func() {
		_, err := s.Feedback(deadline(t), 1)
		told <- err
	}()
	if err := s.Unplug(); err != nil {
		t.Fatal(err)
	}
	if err := <-told; err == nil || !strings.Contains(err.Error(), "unplugged") {
		t.Errorf("after the unplug: %v", err)
	}
}

func TestUnplugAndReplug(t *testing.T) {
	s := plug(t, Framing{Suffix: "\r"})
	dev := open(t, s)
	s.Opened()
	if err := s.Replug(); err == nil {
		t.Error("a plugged scanner was plugged in again")
	}
	if err := s.Unplug(); err != nil {
		t.Fatal(err)
	}
	if n, err := dev.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("read of an unplugged device: %d bytes, %v", n, err)
	}
	if err := s.Type("x"); err == nil || !strings.Contains(err.Error(), "unplugged") {
		t.Errorf("typing on an unplugged scanner: %v", err)
	}
	if err := s.Replug(); err != nil {
		t.Fatal(err)
	}
	dev2 := open(t, s)
	if err := s.Type("x"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2)
	if _, err := io.ReadFull(dev2, got); err != nil || string(got) != "x\r" {
		t.Errorf("after the replug: %q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(s.Path); !os.IsNotExist(err) {
		t.Errorf("the link stays after Close: %v", err)
	}
}

func TestPlugSparesWhatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		s, err := Plug("SCN-04", path, Framing{})
		if err == nil {
			s.Close()
			t.Fatalf("%s was replaced", path)
		}
		if !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), path) {
			t.Errorf("unclear error: %v", err)
		}
		if b, err := os.ReadFile(path); string(b) != "kept" {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	gone := filepath.Join(dir, "gone")
	if err := os.Symlink("/dev/pts/no-such", gone); err != nil {
		t.Fatal(err)
	}
	s, err := Plug("SCN-04", gone, Framing{})
	if err != nil {
		t.Fatalf("a link that leads nowhere is in the way: %v", err)
	}
	// Close leaves a link that somebody else has put in the place of its own.
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, gone); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if to, err := os.Readlink(gone); err != nil || to != file {
		t.Errorf("another's link: %q, %v", to, err)
	}
}

func TestFramings(t *testing.T) {
	for profile, want := range map[string]string{
		"line": "x\r", "cr": "x\r", "lf": "x\n", "crlf": "x\r\n", "stx-etx": "\x02x\x03", "acknak": "x\r",
	} {
		f, err := FramingOf(profile)
		if got := f.Frame("x"); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", profile, got, err, want)
		}
	}
	if _, err := FramingOf("morse"); err == nil {
		t.Error("an unknown profile was taken")
	}
}
