package agent

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/testenv"
)

// posOnly is a HID-POS scanner's report descriptor: of each report the length, the AIM identifier and 56 bytes.
var posOnly = []byte{0x05, 0x8c, 0x09, 0x02, 0xa1, 0x01, 0x85, 0x02, 0x15, 0x00, 0x26, 0xff, 0x00, 0x75, 0x08, 0x95, 0x01, 0x05, 0x01, 0x09, 0x3b, 0x81, 0x02,
	0x95, 0x03, 0x05, 0x8c, 0x09, 0xfb, 0x09, 0xfc, 0x09, 0xfd, 0x81, 0x02, 0x95, 0x38, 0x09, 0xfe, 0x82, 0x02, 0x01, 0xc0}

// record is what the process that reads a HID scanner writes: what it is, how long, when, and the data.
func record(what byte, data []byte) []byte {
	b := binary.LittleEndian.AppendUint16([]byte{what}, uint16(len(data)))
	return append(binary.LittleEndian.AppendUint64(b, math.MaxInt64), data...)
}

// A HID scanner is a scanner as any other one: in events, status and metrics; and if what reads it fails and fails,
// it is told.
func TestHIDInTheAgent(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(testenv.USBSpec{Port: "1-1", Vendor: "0c2e", Product: "0b81", Interfaces: []testenv.USBInterfaceSpec{{Class: 3, Driver: "usbhid", HIDRaw: "hidraw0", Descriptor: posOnly}}})
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const data = "0100300937214106"
	report := make([]byte, 61)
	report[0], report[1] = 2, byte(len(data))
	copy(report[2:], "]C1"+data)
	said := filepath.Join(dir, "said")
	if err := os.WriteFile(said, append(record('O', nil), record('R', report)...), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := load(t, fmt.Sprintf(`state_dir = %q
[api]
socket = %q
socket_group = ""
[[scanner]]
id = "POS"
transport = "hid-pos"
usb = "0c2e:0b81"
`, dir+"/state", dir+"/s"))
	if err != nil {
		t.Fatal(err)
	}
	folder, err := openFolder(cfg.Agent.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	var broken atomic.Bool
	worker := func() *exec.Cmd {
		if broken.Load() {
			return exec.Command("false")
		}
		return exec.Command("sh", "-c", `cat "$0"; exec cat 3>&1 >/dev/null`, said)
	}
	a, err := build(cfg, Options{Version: "test", Log: slog.New(slog.DiscardHandler), USBRoot: u.Root, HIDWorker: worker})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	from := a.events.Last()
	go func() { ended <- a.serve(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-a.server.Ready():
	case err := <-ended:
		t.Fatal(err)
	}
	c := api.NewClient(cfg.API.Socket)
	defer c.Close()
	follow, stop := context.WithCancel(ctx)
	defer stop()
	type event struct {
		Kind, State string
		Scanner     string `json:"scanner_id"`
	}
	seen := make(chan event, 1000)
	go c.Follow(follow, from, nil, func(e api.Event) error {
		var v event
		err := json.Unmarshal(e.Data, &v)
		seen <- v
		return err
	})
	await := func(kind, state string) {
		t.Helper()
		for deadline := time.After(testenv.Patience); ; {
			select {
			case e := <-seen:
				if e == (event{kind, state, "POS"}) {
					return
				}
			case <-deadline:
				t.Fatalf("never came: %s %s; %+v", kind, state, a.fleet.stats())
			}
		}
	}
	await("device", "reading")
	await("accepted", "")
	if st := a.fleet.stats(); len(st) != 1 || st[0].Frames != 1 || st[0].Crashes != 0 {
		t.Errorf("%+v", st)
	}
	broken.Store(true)
	u.Unplug("1-1")
	await("device", "absent")
	u.Plug(testenv.USBSpec{Port: "1-1", Vendor: "0c2e", Product: "0b81", Interfaces: []testenv.USBInterfaceSpec{{Class: 3, Driver: "usbhid", HIDRaw: "hidraw0", Descriptor: posOnly}}})
	await("device", "quarantined")
	var text strings.Builder
	for _, al := range a.alarms.list() {
		fmt.Fprintf(&text, "%s: %s\n", al.Code, al.Detail)
	}
	if !strings.Contains(text.String(), "device_absent: scanner POS is left alone") {
		t.Errorf("alarms: %s", text.String())
	}
}
