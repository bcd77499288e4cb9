package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"scanonce/capture"
	"scanonce/device"
	"scanonce/internal/events"
)

const (
	canaryRx   = "7654321"
	canaryText = "Zora Canary 1950"
)

// holders are values of every type that holds a payload or a patient's data.
func holders(t testing.TB) []any {
	t.Helper()
	d, err := capture.NewDecoder(capture.DecoderConfig{Rx: []capture.RxProfile{{Name: "a", Pattern: `R(?P<rx>\d{7})`}}})
	if err != nil {
		t.Fatal(err)
	}
	var s capture.Scan
	if r := d.Decode(&s, []byte("R"+canaryRx), nil, capture.Date{Year: 2026, Month: 11, Day: 29}); !r.OK() || s.Kind != capture.KindRxLabel {
		t.Fatal(r)
	}
	frame := device.Frame{Scanner: "SCN-04", Data: device.Payload(canaryText), Length: len(canaryText)}
	label, unknown := labelLive{rx: s.Rx}, unknownLive{text: canaryText}
	return []any{s, &s, s.Rx, s.Rx.Rx, frame, &frame, frame.Data, device.Message{Data: frame.Data}, label, &label, unknown, &unknown,
		outcome{frame: frame}, &outcome{frame: frame}, []outcome{{frame: frame}}, &pipeline{scan: s},
		events.Entry{Kind: "label", Live: label}, &events.Entry{Kind: "unknown", Live: unknown}}
}

func TestNothingPrintsWhatItHolds(t *testing.T) {
	var out strings.Builder
	text, js := slog.New(slog.NewTextHandler(&out, nil)), slog.New(slog.NewJSONHandler(&out, nil))
	for _, v := range holders(t) {
		out.Reset()
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%o", "%c", "%U"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		fmt.Fprintln(&out, v, fmt.Errorf("cannot: %v", v))
		text.Info("m", "v", v)
		if _, pipe := v.(*pipeline); !pipe { // has channels
			js.Info("m", "v", v)
			j, err := json.Marshal(v)
			if err != nil && !strings.Contains(err.Error(), "unsupported type") {
				t.Fatalf("%T: %v", v, err)
			}
			out.Write(j)
		}
		for _, plain := range []string{canaryRx, "Zora", "Canary"} {
			for _, form := range []string{plain, fmt.Sprintf("%x", plain), fmt.Sprintf("%X", plain), fmt.Sprintf("% x", plain), strings.Trim(fmt.Sprint([]byte(plain)), "[]"), strings.Trim(fmt.Sprintf("%o", []byte(plain)), "[]")} {
				if i := strings.Index(out.String(), form); i >= 0 {
					t.Errorf("%T shows %s as %q: …%s", v, plain, form, out.String()[max(0, i-100):i+len(form)])
				}
			}
		}
	}
	// And yet those who may see it get it.
	b := labelLive{rx: capture.Rx{Rx: canaryRx}}.AppendJSONFields(nil)
	b = unknownLive{text: "a \"b\"\x1d"}.AppendJSONFields(append(b, ','))
	if want := `"rx":"7654321","refill":null,"store":null,"text":"a \"b\"\u001d"`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
}

const panicTest = "SCANONCE_TEST_PANIC"

// What the runtime prints of a panic names no payload, be it the panic's value, an argument on the stack or in
// an error.
func TestAPanicPrintsNoPayload(t *testing.T) {
	if which := os.Getenv(panicTest); which != "" {
		var n int
		fmt.Sscan(which, &n)
		fail(holders(t)[n])
	}
	for i, v := range holders(t) {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAPanicPrintsNoPayload$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", panicTest, i), "GOTRACEBACK=all")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "panic: ") || !strings.Contains(string(out), "goroutine ") {
			t.Fatalf("%T: %v\n%s", v, err, out)
		}
		for _, plain := range []string{canaryRx, "Zora", "Canary 1950"} {
			if strings.Contains(string(out), plain) || strings.Contains(string(out), fmt.Sprintf("%x", plain)) {
				t.Errorf("%T: the trace shows %s:\n%s", v, plain, out)
			}
		}
	}
}

//go:noinline
func fail(v any) { panic(v) }

func TestForbidCores(t *testing.T) {
	if os.Getenv(panicTest) == "" { // what it forbids, it forbids for good
		cmd := exec.Command(os.Args[0], "-test.run=^TestForbidCores$", "-test.v")
		cmd.Env = append(os.Environ(), panicTest+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: TestForbidCores") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	var log strings.Builder
	forbidCores(slog.New(slog.NewTextHandler(&log, nil)))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil || limit != (unix.Rlimit{}) {
		t.Errorf("limit %+v, %v", limit, err)
	}
	if n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || n != 0 {
		t.Errorf("dumpable %d, %v", n, err)
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", log.String())
	}
}
