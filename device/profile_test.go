package device

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestProfiles(t *testing.T) {
	table, err := parseProfiles(profilesText)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range table.profiles {
		want := []string{"maker", "name"}
		for field, there := range map[string]bool{"mode": p.Mode != ModeUnknown, "driver": p.Driver != "", "framing": p.Framing != "",
			"feedback good": p.Feedback.Good != nil, "feedback duplicate": p.Feedback.Duplicate != nil, "feedback reject": p.Feedback.Reject != nil,
			"needs": p.Needs != "", "notes": len(p.Notes) > 0} {
			if there {
				want = append(want, field)
			}
		}
		for mode := range p.Setup {
			want = append(want, "setup "+string(mode))
		}
		for _, field := range want {
			if len(p.Sources[field]) == 0 {
				t.Errorf("%04x:%04x: the field %s has no source", p.Vendor, p.Product, field)
			}
		}
		for field := range p.Sources {
			if !slices.Contains(want, field) {
				t.Errorf("%04x:%04x: a source for %s, which it lacks", p.Vendor, p.Product, field)
			}
		}
		if (p.Framing != "" || !p.Feedback.empty()) && p.Mode != ModeSerial {
			t.Errorf("%04x:%04x: framing and feedback are of serial scanners", p.Vendor, p.Product)
		}
	}
	for _, line := range strings.Split(profilesText, "\n") {
		if name, ok := strings.CutPrefix(line, "source "); ok {
			name, _, _ = strings.Cut(name, " ")
			if !strings.Contains(profilesText, "{"+name) && !strings.Contains(profilesText, " "+name+"}") {
				t.Errorf("nothing is from the source %s", name)
			}
		}
	}
}

func TestProfileOf(t *testing.T) {
	for _, c := range []struct {
		vendor, product uint16
		title           string
		mode            USBMode
		driver          string
	}{
		{0x05e0, 0x1701, "Zebra (Symbol, Motorola) Symbol bar code scanner", ModeSerial, "cdc_acm"},
		{0x05e0, 0x1900, "Zebra (Symbol, Motorola) Symbol scanner, SNAPI", ModeSNAPI, ""},
		{0x0c2e, 0x0720, "Honeywell (Metrologic) MS7120, both directions", ModeSerial, "metro-usb"},
		{0x0c2e, 0x0b61, "Honeywell (Metrologic) Vuquest 3310g", ModeUnknown, ""},
		{0x05f9, 0x2206, "Datalogic (PSC) Gryphon", ModeHIDKeyboard, ""},
		{0x1eab, 0x0110, "Newland HR200", ModeHIDPOS, ""},
		{0x11fa, 0x0206, "Code Code reader", ModeHIDPOS, ""},
		{0x04b4, 0xde61, "Cypress barcode reader", ModeUnknown, ""},
	} {
		p, ok := ProfileOf(c.vendor, c.product)
		if !ok || p.Title() != c.title || p.Mode != c.mode || p.Driver != c.driver {
			t.Errorf("%04x:%04x: %v %q %s %q", c.vendor, c.product, ok, p.Title(), p.Mode, p.Driver)
		}
	}
	if p, ok := ProfileOf(0x046d, 0xc31c); ok {
		t.Errorf("a keyboard is %s", p.Title())
	}

	p, _ := ProfileOf(0x0c2e, 0x0720)
	if p.Framing != Line || string(p.Feedback.Good) != "\x1b7," || string(p.Feedback.Reject) != "\x1b8,\x1b8," || p.Needs == "" || p.Setup[ModeHIDPOS] == "" {
		t.Errorf("a serial Honeywell: %+v", p)
	}
	if p, _ = ProfileOf(0x0c2e, 0x0b8f); p.Framing != "" || !p.Feedback.empty() || p.Needs != "" || p.Setup[ModeSerial] == "" {
		t.Errorf("a Honeywell in HID-POS mode: %+v", p)
	}
	if p, _ = ProfileOf(0x1eab, 0x0110); len(p.Sources["mode"]) != 2 || !strings.HasPrefix(p.Sources["mode"][0], "http://www.linux-usb.org/") {
		t.Errorf("sources of a mode: %q", p.Sources["mode"])
	}

	if name, ok := ScannerMaker(0x23d0); !ok || name != "Youjie" {
		t.Errorf("a maker without products: %q %v", name, ok)
	}
	for _, vendor := range []uint16{0x04b4, 0x046d} {
		if name, ok := ScannerMaker(vendor); ok {
			t.Errorf("%04x makes scanners: %q", vendor, name)
		}
	}
}

// The table for technicians has every maker of whom a product is known.
func TestMakersInDocument(t *testing.T) {
	doc, err := os.ReadFile("../docs/DEVICES.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Profiles() {
		_, maker := ScannerMaker(p.Vendor)
		if id := fmt.Sprintf("%04x", p.Vendor); maker && !regexp.MustCompile(`(?m)^\| .*\b`+id+`\b`).Match(doc) {
			t.Errorf("docs/DEVICES.md lacks %s, vendor id %s", p.Maker, id)
		}
	}
}

func TestTransportsOfModes(t *testing.T) {
	for mode, want := range map[USBMode]string{ModeHIDPOS: "hid-pos", ModeHIDKeyboard: "hid-keyboard", ModeSerial: "serial",
		ModeIBM: "", ModeSNAPI: "", ModeService: "", ModeUnknown: "", "": ""} {
		if got := mode.Transport(); got != want {
			t.Errorf("%s: %q", mode, got)
		}
	}
}

func TestProfilesRefused(t *testing.T) {
	const head = "source s http://s\nmaker 1234 Maker {s}\n"
	if _, err := parseProfiles(head + "0001 serial {s} Name {s} driver d {s}"); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"source s":                                         "says nothing",
		head + "source s again":                            "there twice",
		"0001 serial {-} Name {-}":                         "no maker is above it",
		head + "0001 serial {s} Name":                      "no source in braces",
		head + "0001 serial {s} Name {t}":                  `source "t" is not named`,
		head + "0001 serial {s} Name {-}":                  "the name has no source",
		head + "0001 serial {-} Name {s}":                  "not unknown",
		head + "0001 unknown {s} Name {s}":                 "not unknown",
		head + "0001 laser {s} Name {s}":                   `no mode "laser"`,
		head + "0001 serial {s} Name {s} cdc_acm {s}":      "no driver",
		head + "0001 serial {s}":                           "a product is",
		head + "00g1 serial {s} Name {s}":                  "00g1 has 2 fields",
		head + "colour blue {s}":                           "nothing begins",
		head + "0001 serial {s} A {s}\n0001 ibm {s} B {s}": "there twice",
		head + "setup snapi somehow {s}":                   "no mode to set",
		head + "setup serial somehow {-}":                  "has no source",
		head + "framing serial morse {s}":                  "no framing",
		head + "framing hid-pos line {s}":                  "no framing",
		head + `feedback good beep {s}`:                    "no bytes",
		head + `feedback loud "x" {s}`:                     `no feedback "loud"`,
		"source s x\nmaker 12 Maker {s}":                   "no vendor id",
		"source s x\nmaker 1234 Maker {-}":                 "a vendor is",
	} {
		if _, err := parseProfiles(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
