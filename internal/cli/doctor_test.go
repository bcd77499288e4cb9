package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"scanonce/device"
	"scanonce/internal/config"
	"scanonce/internal/testenv"
)

// forAgent gives a node to a group that the agent's user is in.
func forAgent(t *testing.T, node string, mode fs.FileMode) {
	t.Helper()
	g, err := user.LookupGroup("dialout")
	if err != nil {
		t.Fatal(err)
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		err = os.Chown(node, -1, gid)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(node, mode); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Descriptors of a boot keyboard, and of a HID-POS scanner's data.
var (
	keyboardDescriptor = []byte{0x05, 0x01, 0x09, 0x06, 0xa1, 0x01, 0x05, 0x07, 0x19, 0xe0, 0x29, 0xe7, 0x15, 0x00, 0x25, 0x01, 0x75, 0x01, 0x95, 0x08, 0x81, 0x02,
		0x95, 0x01, 0x75, 0x08, 0x81, 0x01, 0x95, 0x06, 0x75, 0x08, 0x15, 0x00, 0x26, 0xff, 0x00, 0x05, 0x07, 0x19, 0x00, 0x2a, 0xff, 0x00, 0x81, 0x00, 0xc0}
	posDescriptor = []byte{0x05, 0x8c, 0x09, 0x02, 0xa1, 0x01, 0x85, 0x02, 0x15, 0x00, 0x26, 0xff, 0x00, 0x75, 0x08, 0x95, 0x38, 0x09, 0xfe, 0x82, 0x02, 0x01, 0xc0}
)

// Each thing that keeps a scanner from being read is found, with what to do, and it alone.
func TestCheckDevices(t *testing.T) {
	serial := testenv.USBSpec{Port: "1-1", Vendor: "05e0", Product: "1701", Interfaces: []testenv.USBInterfaceSpec{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: "ttyACM0"}}}
	keys := testenv.USBSpec{Port: "1-2.1", Vendor: "05f9", Product: "2206",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", HIDRaw: "hidraw0", Event: "event0", Descriptor: keyboardDescriptor}, {Class: 3, Driver: "usbhid", HIDRaw: "hidraw1", Descriptor: posDescriptor}}}
	for _, c := range []struct {
		name    string
		spoil   func(t *testing.T, u *testenv.USBTree, cfg *config.Config)
		running bool
		want    string // the one bad check, "" for none
		hint    string
	}{
		{"well", nil, false, "", ""},
		{"nothing by USB", func(_ *testing.T, _ *testenv.USBTree, cfg *config.Config) { cfg.Scanners = nil }, false, "", ""},
		{"not attached", func(_ *testing.T, u *testenv.USBTree, _ *config.Config) { u.Unplug("1-1") }, false, "scanner SER attached", "plug it in"},
		{"twins", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			twin := serial
			twin.Port, twin.Interfaces = "1-2.2", []testenv.USBInterfaceSpec{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: "ttyACM1"}}
			u.Plug(twin)
		}, false, "scanner SER attached", "what the message says"},
		{"no right to the port", func(t *testing.T, u *testenv.USBTree, _ *config.Config) { denied(t, u.Dev("ttyACM0")) }, false, "scanner SER rights", "scanonce udev"},
		{"no right to the keys", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			denied(t, u.Dev("hidraw0"))
			denied(t, u.Dev("event0"))
		}, false, "scanner KEY rights", "scanonce udev"},
		{"no keyboard", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			u.Unplug("1-2.1")
			none := keys
			none.Interfaces = keys.Interfaces[1:]
			u.Plug(none)
		}, false, "scanner KEY rights", "USB keyboard"},
		{"no node", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			u.Unplug("1-2.1")
			none := keys
			none.Interfaces = []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", Descriptor: keyboardDescriptor}}
			u.Plug(none)
		}, false, "scanner KEY rights", "modules"},
		{"no uinput to pass keys on", func(t *testing.T, u *testenv.USBTree, cfg *config.Config) {
			cfg.Scanners[1].Mode = "grab"
			forAgent(t, u.Dev("event0"), 0o660)
		}, false, "scanner KEY rights", "scanonce udev"},
		{"no uinput to type with", func(_ *testing.T, _ *testenv.USBTree, cfg *config.Config) { cfg.Scanners[0].Wedge = true }, false, "wedge", "scanonce udev"},
		{"uinput to type with", func(t *testing.T, u *testenv.USBTree, cfg *config.Config) {
			cfg.Scanners[0].Wedge = true
			put(t, u.Dev("uinput"), "")
			forAgent(t, u.Dev("uinput"), 0o660)
		}, false, "", ""},
		{"no port", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			if err := os.RemoveAll(filepath.Join(u.Folder("1-1"), "1-1:1.0/tty")); err != nil {
				t.Fatal(err)
			}
		}, false, "scanner SER port", "USB serial"},
		{"asleep", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			put(t, filepath.Join(u.Folder("1-2.1"), "power/control"), "auto\n")
		}, false, "scanner KEY awake", "scanonce udev"},
		{"ModemManager", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			put(t, u.Root+"/proc/17/comm", "ModemManager\n")
			put(t, u.Root+"/sys/class/tty/ttyACM0/dev", "166:0\n")
			put(t, u.Root+"/run/udev/data/c166:0", "E:ID_MM_DEVICE_IGNORE=0\n")
		}, false, "scanner SER left alone", "scanonce udev"},
		{"ModemManager that is told", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			put(t, u.Root+"/proc/17/comm", "ModemManager\n")
			put(t, u.Root+"/sys/class/tty/ttyACM0/dev", "166:0\n")
			put(t, u.Root+"/run/udev/data/c166:0", "I:1\nE:ID_MM_DEVICE_IGNORE=1\nE:ID_BUS=usb\n")
		}, false, "", ""},
		{"no driver, so no node", func(t *testing.T, u *testenv.USBTree, _ *config.Config) {
			u.Unplug("1-2.1")
			none := keys
			none.Interfaces = []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1}}
			u.Plug(none)
		}, false, "scanner KEY driver", "scanonce rebind"},
		{"not given back", func(t *testing.T, u *testenv.USBTree, _ *config.Config) { unbound(t, u) }, true, "scanner KEY driver", "scanonce rebind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := testenv.NewUSBTree(t)
			u.Plug(serial)
			u.Plug(keys)
			forAgent(t, u.Dev("ttyACM0"), 0o660)
			forAgent(t, u.Dev("hidraw0"), 0o640)
			denied(t, u.Dev("event0"))
			denied(t, u.Dev("hidraw1")) // nothing is read of it
			cfg := config.Default()
			a, b := config.DefaultScanner(), config.DefaultScanner()
			a.ID, a.USB = "SER", "05e0:1701"
			b.ID, b.USB, b.Transport, b.Mode = "KEY", "05f9:2206", "hid-keyboard", "listen"
			cfg.Scanners = []config.Scanner{a, b}
			if c.spoil != nil {
				c.spoil(t, u, cfg)
			}
			var bad []finding
			for _, f := range checkDevices(u.Root, cfg, c.running) {
				if f.Category != "device" || f.Check == "" || f.Detail == "" || f.OK != (f.Hint == "") {
					t.Errorf("%+v", f)
				}
				if !f.OK {
					bad = append(bad, f)
				}
			}
			switch {
			case c.want == "" && len(bad) > 0, c.want != "" && (len(bad) != 1 || bad[0].Check != c.want || !strings.Contains(bad[0].Hint, c.hint)):
				t.Errorf("got %+v, want %q | %q", bad, c.want, c.hint)
			}
		})
	}
}

// The agent listens to a keyboard's reports, or to its keys; which of the two it may is told.
func TestCheckListens(t *testing.T) {
	for _, c := range []struct {
		hidraw         string // "" for none
		reports, event bool   // the agent has the right to them
		ok             bool
		want           string
	}{
		{"hidraw0", true, true, true, "hidraw0: its reports"},
		{"hidraw0", true, false, true, "hidraw0: its reports"},
		{"hidraw0", false, true, true, "event0: its keys, since its reports are not to be had"},
		{"hidraw0", false, false, false, "no right to "},
		{"", false, true, true, "event0: its keys, since its reports are not to be had"},
		{"", false, false, false, "no right to "},
	} {
		u := testenv.NewUSBTree(t)
		u.Plug(testenv.USBSpec{Port: "1-1", Vendor: "05f9", Product: "2206",
			Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", HIDRaw: c.hidraw, Event: "event0", Descriptor: keyboardDescriptor}}})
		for node, may := range map[string]bool{"hidraw0": c.reports, "event0": c.event} {
			switch {
			case may:
				forAgent(t, u.Dev(node), 0o640)
			case node != "hidraw0" || c.hidraw != "":
				denied(t, u.Dev(node))
			}
		}
		cfg := config.Default()
		s := config.DefaultScanner()
		s.ID, s.USB, s.Transport, s.Mode = "KEY", "05f9:2206", "hid-keyboard", "listen"
		cfg.Scanners = []config.Scanner{s}
		found := checkDevices(u.Root, cfg, false)
		i := slices.IndexFunc(found, func(f finding) bool { return f.Check == "scanner KEY rights" })
		if i < 0 || found[i].OK != c.ok || !strings.Contains(found[i].Detail, c.want) || strings.Contains(found[i].Detail, "reports") && !c.ok {
			t.Errorf("%+v: %+v", c, found)
		}
	}
}

func denied(t *testing.T, node string) {
	t.Helper()
	if err := os.Chmod(node, 0); err != nil {
		t.Fatal(err)
	}
}

func unbound(t *testing.T, u *testenv.USBTree) {
	t.Helper()
	if err := os.Remove(filepath.Join(u.Folder("1-2.1"), "1-2.1:1.0/driver")); err != nil {
		t.Fatal(err)
	}
}

// What is read alone by a running agent has no driver, and that is well; the library is probed for it.
func TestCheckExclusive(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(testenv.USBSpec{Port: "1-2.1", Vendor: "0c2e", Product: "0b81", Interfaces: []testenv.USBInterfaceSpec{{Class: 3}}})
	cfg := config.Default()
	s := config.DefaultScanner()
	s.ID, s.USB, s.Transport = "POS", "0c2e:0b81", "hid-pos"
	cfg.Scanners = []config.Scanner{s}
	for _, running := range []bool{true, false} {
		found := map[string]bool{}
		for _, f := range checkDevices(u.Root, cfg, running) {
			found[f.Check] = f.OK
		}
		probed, ok := found["usb library"]
		if found["scanner POS driver"] != running || !ok || probed != (device.ProbeUSB() == nil) {
			t.Errorf("running %v: %v", running, found)
		}
	}
}

func TestDoctor(t *testing.T) {
	u := testenv.NewUSBTree(t)
	file := filepath.Join(t.TempDir(), "c.toml")
	run := func(tables string, args ...string) (int, string) {
		put(t, file, "[agent]\nfacility_uuid = \"F\"\n[api]\nsocket = \""+filepath.Dir(file)+"/none\"\n"+tables)
		var out, errs bytes.Buffer
		code := Main(append([]string{"doctor", "--config", file, "--root", u.Root}, args...), strings.NewReader(""), &out, &errs, nil)
		if errs.Len() > 0 {
			t.Errorf("stderr: %s", errs.String())
		}
		return code, out.String()
	}
	if code, out := run(""); code != exitOK || out != "ok    device usb: no scanner is configured by USB\n" {
		t.Errorf("exit code %d, %q", code, out)
	}
	absent := "[[scanner]]\nid = \"A\"\nusb = \"05e0:1701\"\n"
	if code, out := run(absent); code != exitBad || !strings.Contains(out, "BAD   device scanner A attached: cannot find 05e0:1701") || !strings.Contains(out, "      do: plug it in") {
		t.Errorf("exit code %d, %s", code, out)
	}
	code, out := run(absent, "--json")
	var checks []string
	for line := range strings.Lines(out) {
		var f map[string]any
		if err := json.Unmarshal([]byte(line), &f); err != nil || len(f) != 5 {
			t.Errorf("%s: %v", line, err)
		}
		checks = append(checks, fmt.Sprint(f["category"], " ", f["check"], " ", f["ok"]))
	}
	if want := []string{"device usb bus true", "device usb events true", "device scanner A attached false"}; code != exitBad || !slices.Equal(checks, want) {
		t.Errorf("exit code %d, %q", code, checks)
	}
}
