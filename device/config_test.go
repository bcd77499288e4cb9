package device

import (
	"strings"
	"testing"
	"time"
)

func TestSerialConfigValidate(t *testing.T) {
	good := SerialConfig{ID: "SCN-04", Path: "/dev/ttyACM0"}
	for _, tc := range []struct {
		name string
		set  func(*SerialConfig)
		want []string // one for each line; none: valid
	}{
		{"defaults", func(*SerialConfig) {}, nil},
		{"all set", func(c *SerialConfig) {
			*c = SerialConfig{ID: "a.b_C-9", Path: "/tmp/t1/scn04", Baud: 115200, Framing: ACKNAK, InterByteTimeout: time.Second, RetryInterval: time.Minute,
				Feedback: Feedback{Good: []byte("G")}}
		}, nil},
		{"id", func(c *SerialConfig) { c.ID = "SCN 04" }, []string{`cannot use scanner id "SCN 04": write 1 to 32 of`}},
		{"long id", func(c *SerialConfig) { c.ID = strings.Repeat("x", 33) }, []string{"write 1 to 32"}},
		{"gun address", func(c *SerialConfig) { c.ID = "SCN-04/02" }, []string{"write 1 to 32"}},
		{"no path", func(c *SerialConfig) { c.Path = "" }, []string{`cannot find scanner SCN-04 without a path: write path = "/dev/serial/by-id/…"`}},
		{"relative", func(c *SerialConfig) { c.Path = "ttyACM0" }, []string{`cannot use path "ttyACM0" of scanner SCN-04: write an absolute path`}},
		{"baud", func(c *SerialConfig) { c.Baud = 12 }, []string{"cannot set scanner SCN-04 to 12 baud: write 300 to 4000000, for most scanners 9600"}},
		{"framing", func(c *SerialConfig) { c.Framing = "etx" }, []string{`cannot use framing "etx" of scanner SCN-04: write one of "line", "cr", "lf", "crlf", "stx-etx", "acknak"`}},
		{"retry", func(c *SerialConfig) { c.RetryInterval = 2 * time.Minute }, []string{"cannot use retry_interval 2m0s of scanner SCN-04: write 1ms to 1m0s, for most scanners 2s"}},
		{"timeout", func(c *SerialConfig) { c.InterByteTimeout = time.Millisecond }, []string{"cannot use inter_byte_timeout 1ms of scanner SCN-04: write 10ms to 10s"}},
		{"feedback", func(c *SerialConfig) { c.Feedback.Duplicate = make([]byte, 65) }, []string{"cannot send feedback duplicate of scanner SCN-04: write at most 64 bytes"}},
		{"two", func(c *SerialConfig) { c.Path = ""; c.Baud = -1 }, []string{"cannot find scanner", "cannot set scanner"}},
	} {
		c := good
		tc.set(&c)
		err := c.Validate()
		if len(tc.want) == 0 {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: valid", tc.name)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(tc.want) {
			t.Errorf("%s: %q", tc.name, lines)
			continue
		}
		for i, w := range tc.want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("%s: %q, want %q", tc.name, lines[i], w)
			}
		}
		if _, err := NewSerial(c, nil, nil, nil); err == nil {
			t.Errorf("%s: a scanner was made of it", tc.name)
		}
	}
}
