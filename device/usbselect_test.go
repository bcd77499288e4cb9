package device

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestParseUSBSelector(t *testing.T) {
	for _, c := range []struct {
		usb, port string
		want      USBSelector
	}{
		{"0c2e:0b61", "", USBSelector{Vendor: 0x0c2e, Product: 0x0b61}},
		{"0C2E:0B61", "1-1.2", USBSelector{Vendor: 0x0c2e, Product: 0x0b61, Port: "1-1.2"}},
		{"0c2e:0b61:SN1", "", USBSelector{Vendor: 0x0c2e, Product: 0x0b61, Serial: "SN1"}},
		{"05e0:1701:S/N:0123 A", "12-3", USBSelector{Vendor: 0x05e0, Product: 0x1701, Serial: "S/N:0123 A", Port: "12-3"}},
		{"05e0:1701:№ 7", "", USBSelector{Vendor: 0x05e0, Product: 0x1701, Serial: "№ 7"}},
		{"05e0:1701::", "", USBSelector{Vendor: 0x05e0, Product: 0x1701, Serial: ":"}},
	} {
		if got, err := ParseUSBSelector(c.usb, c.port); err != nil || got != c.want {
			t.Errorf("%q %q: %+v, %v", c.usb, c.port, got, err)
		}
	}
	for _, c := range []struct{ usb, port, want string }{
		{"", "1-1", "without its vendor and product id"},
		{"c2e:0b61", "", `write "vvvv:pppp" or`},
		{"0c2e-0b61", "", `write "vvvv:pppp" or`},
		{"0c2e:0b611", "", `write "vvvv:pppp" or`},
		{"0c2e:0b6", "", `write "vvvv:pppp" or`},
		{"0c2e:0b61 ", "", `write "vvvv:pppp" or`},
		{"0c2e:0b61:", "", "leave it and its colon out"},
		{"0c2e:0b61:  ", "", "leave it and its colon out"},
		{"0c2e:0b61:a\x00b", "", "leave it and its colon out"},
		{"0c2e:0b61:\xff", "", "leave it and its colon out"},
		{"0c2e:0b61", "1", `for example "1-1.2"`},
		{"0c2e:0b61", "usb1", `for example "1-1.2"`},
		{"0c2e:0b61", "1-1.2/..", `for example "1-1.2"`},
	} {
		if got, err := ParseUSBSelector(c.usb, c.port); err == nil || got != (USBSelector{}) || !strings.HasPrefix(err.Error(), "cannot ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %q: %+v, %v; want %q", c.usb, c.port, got, err, c.want)
		}
	}
}

func TestUSBSelectorFind(t *testing.T) {
	dev := func(port, serial string) USBDevice {
		return USBDevice{Vendor: 0x0c2e, Product: 0x0b81, Serial: serial, Port: port}
	}
	devs := []USBDevice{
		{Vendor: 0x0c2e, Product: 0x0b61, Port: "1-9", Serial: "A"},
		dev("1-1", "A"), dev("1-2", "B"), dev("1-3", ""), dev("1-4", "C"), dev("1-5", "C"),
	}
	markAmbiguous(devs)
	for _, c := range []struct{ usb, port, at, fail string }{
		{"0c2e:0b61", "", "1-9", ""},
		{"0c2e:0b81:A", "", "1-1", ""},
		{"0c2e:0b81:B", "1-2", "1-2", ""},
		{"0c2e:0b81", "1-3", "1-3", ""},
		{"0c2e:0b81", "1-5", "1-5", ""},
		{"0c2e:0b81:C", "1-4", "1-4", ""},
		{"0c2e:0b81:C", "", "", `write port = "1-4" or port = "1-5" in`},
		{"0c2e:0b81", "", "", `write port = "1-3" or port = "1-4" or port = "1-5" or usb = "0c2e:0b81:A" or usb = "0c2e:0b81:B" in`},
		{"0c2e:0b81:B", "1-1", "", "plug the scanner in"},
		{"0c2e:0b81:D", "", "", "plug the scanner in"},
		{"0c2e:0b81", "1-9", "", "plug the scanner in"},
		{"0c2e:ffff", "", "", "plug the scanner in"},
	} {
		sel, err := ParseUSBSelector(c.usb, c.port)
		must(t, err)
		d, err := sel.Find(devs)
		if d.Port != c.at {
			t.Errorf("%s: found at %q, want %q", sel, d.Port, c.at)
		}
		if c.fail == "" {
			if err != nil {
				t.Errorf("%s: %v", sel, err)
			}
			continue
		}
		absent := c.fail == "plug the scanner in"
		if err == nil || !strings.Contains(err.Error(), c.fail) || errors.Is(err, fs.ErrNotExist) != absent || errors.Is(err, ErrAmbiguous) == absent {
			t.Errorf("%s: %v, want %q", sel, err, c.fail)
		}
	}
}

// Twins that change places change their ids with their ports, whatever their nodes and addresses: a scanner is
// where its port is.
func TestFindTwinsByPort(t *testing.T) {
	sel := USBSelector{Vendor: 0x05f9, Product: 0x2206, Port: "1-2"}
	for _, devs := range [][]USBDevice{
		{{Vendor: 0x05f9, Product: 0x2206, Port: "1-1", Address: 4}, {Vendor: 0x05f9, Product: 0x2206, Port: "1-2", Address: 5}},
		{{Vendor: 0x05f9, Product: 0x2206, Port: "1-1", Address: 9}, {Vendor: 0x05f9, Product: 0x2206, Port: "1-2", Address: 8}},
	} {
		markAmbiguous(devs)
		if d, err := sel.Find(devs); err != nil || d.Port != "1-2" || !d.Ambiguous {
			t.Errorf("%+v, %v", d, err)
		}
	}
}
