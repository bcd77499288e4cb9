package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// Descriptors that name a HID-POS scanner's data, and a boot keyboard.
var (
	posDescriptor = []byte{0x05, 0x8c, 0x09, 0x02, 0xa1, 0x01, 0x85, 0x02, 0x15, 0x00, 0x26, 0xff, 0x00, 0x75, 0x08, 0x95, 0x38, 0x09, 0xfe, 0x82, 0x02, 0x01, 0xc0}
	keyDescriptor = []byte{0x05, 0x01, 0x09, 0x06, 0xa1, 0x01, 0x05, 0x07, 0x19, 0xe0, 0x29, 0xe7, 0x15, 0x00, 0x25, 0x01, 0x75, 0x01, 0x95, 0x08, 0x81, 0x02,
		0x95, 0x01, 0x75, 0x08, 0x81, 0x01, 0x95, 0x06, 0x75, 0x08, 0x15, 0x00, 0x26, 0xff, 0x00, 0x05, 0x07, 0x19, 0x00, 0x2a, 0xff, 0x00, 0x81, 0x00, 0xc0}
)

func cdc(port, tty, serial string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: "05e0", Product: "1701", Serial: serial, Name: "Symbol Bar Code Scanner",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: tty}, {Class: 10, Driver: "cdc_acm"}}}
}

func keyboard(port, vendor, event, name string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: vendor, Product: "2233", Name: name,
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", Event: event, Descriptor: keyDescriptor}}}
}

// fullTree has one of each kind of scanner, twins, things that are no scanner, and devices that say odd things of
// themselves.
func fullTree(t *testing.T) *testenv.USBTree {
	u := testenv.NewUSBTree(t)
	u.Plug(keyboard("1-1", "046d", "event0", "USB Keyboard"))
	u.Plug(cdc("1-2.1", "ttyACM0", `A "1"\:x`))
	u.Plug(testenv.USBSpec{Port: "1-2.2", Vendor: "0c2e", Product: "0b81", Name: "1900\n[[scanner]]\x1b[2J",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, Driver: "usbhid", HIDRaw: "hidraw0", Descriptor: posDescriptor}}})
	u.Plug(keyboard("1-2.3", "05f9", "event1", "Scanner"))
	u.Plug(keyboard("1-2.4", "05f9", "event2", "Scanner"))
	u.Plug(testenv.USBSpec{Port: "1-2.5", Vendor: "0403", Product: "6001", Serial: "FT0G8X", Name: "FT232R USB UART",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 0xff, SubClass: 0xff, Protocol: 0xff, Driver: "ftdi_sio", TTY: "ttyUSB0"}}})
	u.Plug(testenv.USBSpec{Port: "1-2.6", Vendor: "05e0", Product: "1900", Interfaces: []testenv.USBInterfaceSpec{{Class: 3, Driver: "usbhid", HIDRaw: "hidraw9", Descriptor: []byte{0x06, 0x45, 0xff}}}})
	u.Plug(testenv.USBSpec{Port: "1-2.7", Vendor: "046d", Product: "c077", Name: "Mouse",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 2, Driver: "usbhid", Event: "event7", Descriptor: []byte{0x05, 0x01, 0x09, 0x02, 0xa1, 0x01, 0xc0}}}})
	u.Plug(testenv.USBSpec{Port: "1-2.8", Vendor: "0781", Product: "5567", Serial: "DISK", Interfaces: []testenv.USBInterfaceSpec{{Class: 8, SubClass: 6, Protocol: 80, Driver: "usb-storage"}}})
	return u
}

func load(t *testing.T, tables string) (*config.Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("[agent]\nfacility_uuid = \"F\"\n"+tables), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load(config.Options{File: file, FileExplicit: true})
}

func TestListDevices(t *testing.T) {
	u := fullTree(t)
	devs, err := device.ReadUSB(u.Root)
	if err != nil {
		t.Fatal(err)
	}
	list := ListDevices(u.Root, devs, []config.Scanner{{ID: "SCN-01", Transport: "serial", Path: "/dev/pts/7"}}, nil)
	var got []string
	all := ""
	for _, d := range list {
		got = append(got, fmt.Sprintf("%s %s scanner=%v ambiguous=%v %s", d.ID, or(d.Transport), d.Scanner, d.Ambiguous, strings.TrimPrefix(or(d.Node), u.Root)))
		if d.State != nil {
			t.Errorf("a state without an agent: %+v", d)
		}
		c, err := load(t, d.Config)
		if err != nil {
			t.Errorf("the lines of %s are refused: %v\n%s", d.ID, err, d.Config)
			continue
		}
		if d.ScannerID != nil {
			continue
		}
		all += d.Config
		if !d.Scanner || d.Transport == nil {
			if len(c.Scanners) != 0 {
				t.Errorf("%s would be read without a decision:\n%s", d.ID, d.Config)
			}
			continue
		}
		if len(c.Scanners) != 1 || c.Scanners[0].Transport != *d.Transport {
			t.Errorf("the lines of %s:\n%s", d.ID, d.Config)
			continue
		}
		sel, err := device.ParseUSBSelector(c.Scanners[0].USB, c.Scanners[0].Port)
		if err != nil {
			t.Error(err)
		}
		if found, err := sel.Find(devs); err != nil || found.Port != *d.Port {
			t.Errorf("the lines of %s mean %+v, %v", d.ID, found, err)
		}
	}
	if want := []string{
		`05e0:1701:A "1"\:x serial scanner=true ambiguous=false /dev/ttyACM0`,
		"0c2e:0b81@1-2.2 hid-pos scanner=true ambiguous=false /dev/hidraw0",
		"05f9:2233@1-2.3 hid-keyboard scanner=true ambiguous=true /dev/input/event1",
		"05f9:2233@1-2.4 hid-keyboard scanner=true ambiguous=true /dev/input/event2",
		"0403:6001:FT0G8X serial scanner=true ambiguous=false /dev/ttyUSB0",
		"05e0:1900@1-2.6  scanner=true ambiguous=false ",
		"046d:2233@1-1 hid-keyboard scanner=false ambiguous=false /dev/input/event0",
		"/dev/pts/7 serial scanner=true ambiguous=false /dev/pts/7",
	}; !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	c, err := load(t, all)
	if err != nil {
		t.Fatalf("all lines together: %v\n%s", err, all)
	}
	var ids []string
	for _, s := range c.Scanners {
		ids = append(ids, s.ID)
	}
	if want := []string{"SCN-02", "SCN-03", "SCN-04", "SCN-05", "SCN-06"}; !slices.Equal(ids, want) {
		t.Errorf("ids %q, want %q", ids, want)
	}
	if !strings.Contains(list[6].Config, "#[[scanner]]") || !strings.Contains(list[5].Config, "snapi") {
		t.Errorf("told of the keyboard\n%s\nand of the scanner that is not read\n%s", list[6].Config, list[5].Config)
	}

	// Configured ones are told by their ids, wherever they are.
	scanners := []config.Scanner{
		{ID: "POS", Transport: "hid-pos", USB: "0c2e:0b81"}, {ID: "LEFT", Transport: "hid-keyboard", USB: "05f9:2233", Port: "1-2.3"},
		{ID: "EITHER", Transport: "hid-keyboard", USB: "05f9:2233"}, {ID: "KEYS", Transport: "hid-keyboard", USB: "046d:2233"},
		{ID: "AWAY", Transport: "serial", USB: "05e0:1701:B"}, {ID: "NODE", Transport: "serial", Path: u.Dev("ttyUSB0")},
	}
	state := "reading"
	type short struct {
		ambiguous, scanner bool
		port, state        string
	}
	told := map[string]short{}
	for _, d := range ListDevices(u.Root, devs, scanners, func(string) *string { return &state }) {
		if d.ScannerID != nil {
			told[*d.ScannerID] = short{d.Ambiguous, d.Scanner, or(d.Port), or(d.State)}
			if c, err := load(t, d.Config); err != nil || c.Scanner(*d.ScannerID) == nil {
				t.Errorf("the lines of %s: %v\n%s", *d.ScannerID, err, d.Config)
			}
		}
	}
	if want := map[string]short{"POS": {false, true, "1-2.2", state}, "LEFT": {true, true, "1-2.3", state}, "EITHER": {true, true, "", state}, "KEYS": {false, true, "1-1", state},
		"AWAY": {false, true, "", state}, "NODE": {false, true, "1-2.5", state}}; !reflect.DeepEqual(told, want) {
		t.Errorf("got %+v\nwant %+v", told, want)
	}
	for id, want := range map[string]bool{"POS": false, "LEFT": true, "EITHER": true, "KEYS": false, "AWAY": false, "NODE": false} {
		i := slices.IndexFunc(scanners, func(c config.Scanner) bool { return c.ID == id })
		if isAmbiguous(scanners[i], devs) != want {
			t.Errorf("%s: ambiguous is %v", id, !want)
		}
	}
}

func or(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// What the configuration takes for a device is what the device room takes.
func TestConfigAndDeviceAgree(t *testing.T) {
	for _, c := range []struct{ usb, port string }{
		{"0c2e:0b61", ""}, {"0C2E:0b61", "1-1.2"}, {"0c2e:0b61:SN", ""}, {"0c2e:0b61:a b:c\u2116\\\"", "12-3.4"},
		{"0c2e:0b6", ""}, {"0c2e:0b611", ""}, {"0c2e-0b61", ""}, {"0c2e:0b61:", ""}, {"0c2e:0b61: ", ""}, {"0c2e:0b61:\u0007", ""}, {"0c2e:0b61:\u200b", ""},
		{"0c2e:0b61", "1"}, {"0c2e:0b61", "usb1"}, {"0c2e:0b61", "1-1."}, {"", "1-1"}, {"", ""},
	} {
		cfg := config.Default()
		cfg.Agent.FacilityUUID = "F"
		s := config.DefaultScanner()
		s.ID, s.Transport, s.USB, s.Port = "A", "hid-pos", c.usb, c.port
		cfg.Scanners = []config.Scanner{s}
		_, err := device.ParseUSBSelector(c.usb, c.port)
		if cerr := cfg.Validate(); (err == nil) != (cerr == nil) {
			t.Errorf("usb %q port %q: the device room says %v, the configuration %v", c.usb, c.port, err, cerr)
		}
	}
	for _, l := range append(device.Layouts(), "dvorak") {
		cfg := config.Default()
		cfg.Agent.FacilityUUID = "F"
		s := config.DefaultScanner()
		s.ID, s.Transport, s.USB, s.Layout, s.Mode = "A", "hid-keyboard", "05f9:2233", l, "listen"
		cfg.Scanners = []config.Scanner{s}
		if err := cfg.Validate(); (err == nil) != (l != "dvorak") {
			t.Errorf("layout %s: %v", l, err)
		}
	}
	if d := config.DefaultScanner().Layout; d != device.Layouts()[0] {
		t.Errorf("the layout by default is %s, and %s", d, device.Layouts()[0])
	}
}

// SCENARIO 27, as far as it needs no kernel: twins are told by their ports and marked, whatever their nodes; half
// a frame comes to nothing.
func TestTwinsInTheAgent(t *testing.T) {
	u := testenv.NewUSBTree(t)
	plug := func(port, tty string) *sim.Scanner {
		t.Helper()
		line, err := sim.FramingOf("line")
		if err != nil {
			t.Fatal(err)
		}
		p, err := sim.Plug(port, u.Dev(tty), line)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		u.Plug(cdc(port, tty, ""))
		return p
	}
	left, right := plug("1-2.1", "ttyACM0"), plug("1-2.2", "ttyACM1")
	dir, err := os.MkdirTemp("", "agent") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg, err := load(t, fmt.Sprintf(`state_dir = %q
[api]
socket = %q
socket_group = ""
[[scanner]]
id = "LEFT"
usb = "05e0:1701"
port = "1-2.1"
[[scanner]]
id = "RIGHT"
usb = "05e0:1701"
port = "1-2.2"
`, dir+"/state", dir+"/s"))
	if err != nil {
		t.Fatal(err)
	}
	folder, err := openFolder(cfg.Agent.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	a, err := build(cfg, Options{Version: "test", Log: slog.New(slog.DiscardHandler), USBRoot: u.Root})
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
		Kind, State, Reason string
		Scanner             string `json:"scanner_id"`
		Ambiguous           bool
	}
	seen := make(chan event, 1000)
	go c.Follow(follow, from, nil, func(e api.Event) error {
		var v event
		err := json.Unmarshal(e.Data, &v)
		seen <- v
		return err
	})
	await := func(want ...event) { // in any order; ambiguous counts where it is wanted
		t.Helper()
		deadline := time.After(testenv.Patience)
		for len(want) > 0 {
			select {
			case e := <-seen:
				if i := slices.IndexFunc(want, func(w event) bool { e := e; e.Ambiguous = e.Ambiguous && w.Ambiguous; return w == e }); i >= 0 {
					want = slices.Delete(want, i, i+1)
				}
			case <-deadline:
				t.Fatalf("never came: %+v; %+v", want, a.fleet.stats())
			}
		}
	}
	reading := func(id string) event {
		return event{Kind: "device", Scanner: id, State: "reading", Ambiguous: true}
	}
	scan := func(p *sim.Scanner, id, text string) {
		t.Helper()
		if err := p.Write([]byte(text + "\r")); err != nil {
			t.Fatal(err)
		}
		await(event{Kind: "accepted", Scanner: id})
	}
	await(reading("LEFT"), reading("RIGHT"))
	left.Opened()
	right.Opened()
	scan(left, "LEFT", itemA)
	scan(right, "RIGHT", itemA)

	// Half a frame behind a whole one, which tells that the bytes have come through, and both out; then they have each
	// other's node.
	if err := left.Write([]byte(itemC + "\r30093")); err != nil {
		t.Fatal(err)
	}
	await(event{Kind: "accepted", Scanner: "LEFT"})
	tty, err := unix.Open(left.Path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for taken := time.After(testenv.Patience); ; { // what is not read yet is lost with the device
		n, err := unix.IoctlGetInt(tty, unix.TIOCINQ)
		if err != nil || n == 0 {
			break
		}
		select {
		case <-taken:
			t.Fatalf("%d bytes are not read", n)
		case <-time.After(time.Millisecond):
		}
	}
	unix.Close(tty)
	for port, p := range map[string]*sim.Scanner{"1-2.1": left, "1-2.2": right} {
		u.Unplug(port)
		if err := p.Unplug(); err != nil {
			t.Fatal(err)
		}
	}
	await(event{Kind: "not_accepted", Scanner: "LEFT", Reason: "incomplete"})
	right, left = plug("1-2.2", "ttyACM0"), plug("1-2.1", "ttyACM1")
	await(event{Kind: "device", Scanner: "LEFT", State: "reading"}, event{Kind: "device", Scanner: "RIGHT", State: "reading"})
	left.Opened()
	right.Opened()
	scan(left, "LEFT", itemB)
	scan(right, "RIGHT", itemB)

	var told []string
	if err := c.Devices(ctx, func(d api.Device) error {
		told = append(told, fmt.Sprintf("%s %s %s %s %v", d.ID, or(d.ScannerID), or(d.State), filepath.Base(or(d.Node)), d.Ambiguous))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"05e0:1701@1-2.1 LEFT reading ttyACM1 true", "05e0:1701@1-2.2 RIGHT reading ttyACM0 true"}; !slices.Equal(told, want) {
		t.Errorf("devices %q, want %q", told, want)
	}
	st, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.Scanners {
		if !s.Ambiguous || s.State != "reading" {
			t.Errorf("status %+v", s)
		}
	}
	if st.Counts.Captured != 5 || st.Frames.NotAccepted != 1 {
		t.Errorf("counts %+v, frames %+v", st.Counts, st.Frames)
	}
}
