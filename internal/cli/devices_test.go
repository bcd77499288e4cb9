package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

// devicesIn runs the verb without an agent, and with a configuration of its own.
func devicesIn(t *testing.T, root, tables string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	text := "[agent]\nfacility_uuid = \"F\"\n[api]\nsocket = \"" + dir + "/none\"\n" + tables
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = Main(append([]string{"devices", "--config", file, "--root", root}, args...), strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

func TestDevicesWithoutAgent(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(testenv.USBSpec{Port: "1-1", Vendor: "05e0", Product: "1701", Serial: "S1\x1b", Name: "\x1b[2JScanner",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 2, SubClass: 2, Protocol: 1, Driver: "cdc_acm", TTY: "ttyACM0"}}})
	u.Plug(testenv.USBSpec{Port: "1-2.4", Vendor: "1234", Product: "5678", Name: "\x1b[2JKeys",
		Interfaces: []testenv.USBInterfaceSpec{{Class: 3, SubClass: 1, Protocol: 1, Driver: "usbhid", Event: "event0"}}})

	code, out, errs := devicesIn(t, u.Root, "")
	if code != exitOK || errs != "" || strings.ContainsRune(out, 0x1b) {
		t.Errorf("exit code %d, %q\n%q", code, errs, out)
	}
	for _, want := range []string{"05e0:1701@1-1  serial  Zebra", "not configured\n", "    [[scanner]]\n    id = \"SCN-01\"\n    transport = \"serial\"\n    usb = \"05e0:1701\"\n",
		"1234:5678@1-2.4  KEYBOARD, NOT KNOWN AS A SCANNER  ?[2JKeys\n", "    #[[scanner]]\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	if strings.Index(out, "05e0:1701") > strings.Index(out, "1234:5678") {
		t.Errorf("the scanner is not the first one:\n%s", out)
	}

	code, out, errs = devicesIn(t, u.Root, "[[scanner]]\nid = \"SCN-01\"\nusb = \"05e0:1701\"\n", "--json")
	var first struct {
		ScannerID *string `json:"scanner_id"`
		State     *string `json:"state"`
		Config    string  `json:"config"`
	}
	line, _, _ := strings.Cut(out, "\n")
	if err := json.Unmarshal([]byte(line), &first); code != exitOK || err != nil || first.ScannerID == nil || *first.ScannerID != "SCN-01" || first.State != nil || !strings.Contains(first.Config, `usb = "05e0:1701"`) {
		t.Errorf("exit code %d, %v, %q\n%s", code, err, errs, out)
	}

	for _, c := range []struct{ root, want string }{{testenv.NewUSBTree(t).Root, "No scanner is attached by USB."}, {t.TempDir(), "No USB bus can be seen"}} {
		if code, out, _ := devicesIn(t, c.root, ""); code != exitOK || !strings.HasPrefix(out, c.want) {
			t.Errorf("exit code %d, %s; want %s", code, out, c.want)
		}
		if code, out, _ := devicesIn(t, c.root, "", "--json"); code != exitOK || out != "" {
			t.Errorf("exit code %d, %s", code, out)
		}
	}
}
