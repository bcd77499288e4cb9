package device

import (
	"strings"
	"testing"
)

func TestRightsFor(t *testing.T) {
	for _, c := range []struct {
		transport, mode string
		want            Rights
	}{
		{"serial", "exclusive", Rights{TTY: true}},
		{"hid-pos", "", Rights{HID: true, USB: true}},
		{"hid-pos", "exclusive", Rights{HID: true, USB: true}},
		{"hid-pos", "listen", Rights{HID: true}},
		{"hid-keyboard", "", Rights{HID: true, Keys: true}},
		{"hid-keyboard", "listen", Rights{HID: true, Keys: true}},
		{"hid-keyboard", "grab", Rights{HID: true, Keys: true, Take: true}},
		{"hid-keyboard", "exclusive", Rights{HID: true, Keys: true, USB: true}},
		{"", "", Rights{TTY: true, HID: true, Keys: true, USB: true}},
	} {
		if got := RightsFor(c.transport, c.mode); got != c.want {
			t.Errorf("%s %s: %+v, want %+v", c.transport, c.mode, got, c.want)
		}
	}
}

func TestKnownUdevDevices(t *testing.T) {
	rights := map[USBSelector]Rights{}
	for _, d := range KnownUdevDevices() {
		rights[USBSelector{Vendor: d.Vendor, Product: d.Product}] = d.Rights
	}
	for text, want := range map[string]Rights{
		"05e0:1701": RightsFor("serial", ""),
		"05e0:1900": {}, // SNAPI
		"05e0:1200": RightsFor("hid-keyboard", ""),
		"0c2e:0b8f": RightsFor("hid-pos", ""),
		"0c2e:0b61": RightsFor("", ""), // of unknown mode
		"04b4:de61": {},                // and under an id of many kinds of devices
		"05f9:5204": {},                // for settings
	} {
		sel, err := ParseUSBSelector(text, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := rights[sel]; got != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestUdevRules(t *testing.T) {
	got := UdevRules([]UdevDevice{
		{"one", 0x1eab, 0x0106, RightsFor("serial", "")},
		{"two\nSUBSYSTEM==\"mem\", MODE=\"0666\" \\", 0x05e0, 0x1200, RightsFor("hid-keyboard", "exclusive")},
		{"one", 0x1eab, 0x0c06, RightsFor("serial", "")},
		{"three", 0x05e0, 0x1200, RightsFor("hid-keyboard", "grab")},
		{"one", 0x1eab, 0x0c06, RightsFor("serial", "")}, // a twin
	}, true)
	want := `ACTION=="remove", GOTO="scanonce_end"

# Whoever may write to it can type anything. Only grab and wedge need it, to type what was scanned.
SUBSYSTEM=="misc", KERNEL=="uinput", GROUP="scanonce", MODE="0660", OPTIONS+="static_node=uinput"

SUBSYSTEM!="usb|tty|hidraw|input", GOTO="scanonce_end"

# one
SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", ATTR{idVendor}=="1eab", ATTR{idProduct}=="0106|0c06", ENV{ID_MM_DEVICE_IGNORE}="1", TEST=="power/control", ATTR{power/control}="on"
SUBSYSTEM=="tty", ATTRS{idVendor}=="1eab", ATTRS{idProduct}=="0106|0c06", ENV{ID_MM_DEVICE_IGNORE}="1", GROUP="scanonce", MODE="0660"

# two SUBSYSTEM=="mem", MODE="0666"  
SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", ATTR{idVendor}=="05e0", ATTR{idProduct}=="1200", GROUP="scanonce", MODE="0660", TEST=="power/control", ATTR{power/control}="on"
SUBSYSTEM=="hidraw", ATTRS{idVendor}=="05e0", ATTRS{idProduct}=="1200", GROUP="scanonce", MODE="0640"
SUBSYSTEM=="input", KERNEL=="event*", ATTRS{idVendor}=="05e0", ATTRS{idProduct}=="1200", GROUP="scanonce", MODE="0640"

# three
SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", ATTR{idVendor}=="05e0", ATTR{idProduct}=="1200", TEST=="power/control", ATTR{power/control}="on"
SUBSYSTEM=="hidraw", ATTRS{idVendor}=="05e0", ATTRS{idProduct}=="1200", GROUP="scanonce", MODE="0640"
SUBSYSTEM=="input", KERNEL=="event*", ATTRS{idVendor}=="05e0", ATTRS{idProduct}=="1200", GROUP="scanonce", MODE="0660"

LABEL="scanonce_end"
`
	if got != want {
		t.Errorf("%s", got)
	}
	if strings.Contains(UdevRules(KnownUdevDevices(), false), "uinput") {
		t.Error("known scanners let the agent type")
	}
}
