package device

import (
	"fmt"
	"slices"
	"strings"
)

// UdevGroup is the group that gets the scanners: the service user's.
const UdevGroup = "scanonce"

// Rights say what of a scanner the agent must reach. They are what udev rules are made for.
type Rights struct {
	TTY  bool // its serial port
	HID  bool // its reports
	Keys bool // what it types
	Take bool // its keys, from all others: the lamps of the keyboard are then the agent's to light
	USB  bool // the whole device: taking it from its driver
}

// RightsFor are those that a transport and a mode of the configuration need, "" for the mode by default. Of a
// transport that is not known they are all that any of them needs by default.
func RightsFor(transport, mode string) Rights {
	switch transport {
	case "serial":
		return Rights{TTY: true}
	case "hid-pos":
		return Rights{HID: true, USB: mode != "listen"}
	case "hid-keyboard":
		return Rights{HID: true, Keys: true, Take: mode == "grab", USB: mode == "exclusive"}
	}
	return Rights{TTY: true, HID: true, Keys: true, USB: true}
}

// UdevDevice is a scanner to make rules for.
type UdevDevice struct {
	Title           string // of the comment above its rules
	Vendor, Product uint16
	Rights
}

// KnownUdevDevices are the scanners of the profiles that the agent can read: none in a mode for other software, and
// none of unknown mode under a vendor id of many kinds of devices.
func KnownUdevDevices() []UdevDevice {
	var out []UdevDevice
	for _, p := range Profiles() {
		_, maker := ScannerMaker(p.Vendor)
		if p.Mode.Transport() == "" && (p.Mode != ModeUnknown || !maker) {
			continue
		}
		out = append(out, UdevDevice{Title: p.Maker + ": " + string(p.Mode), Vendor: p.Vendor, Product: p.Product,
			Rights: RightsFor(p.Mode.Transport(), "")})
	}
	return out
}

// UdevRules are the lines of a rules file that give the devices to the agent's group, keep ModemManager away from
// their serial ports, and keep them awake. With uinput the group may type, which grab and a Wedge need.
func UdevRules(devices []UdevDevice, uinput bool) string {
	var b strings.Builder
	b.WriteString("ACTION==\"remove\", GOTO=\"scanonce_end\"\n")
	if uinput {
		b.WriteString("\n# Whoever may write to it can type anything. Only grab and wedge need it, to type what was scanned.\n")
		fmt.Fprintf(&b, "SUBSYSTEM==\"misc\", KERNEL==\"uinput\", GROUP=%q, MODE=\"0660\", OPTIONS+=\"static_node=uinput\"\n", UdevGroup)
	}
	b.WriteString("\nSUBSYSTEM!=\"usb|tty|hidraw|input\", GOTO=\"scanonce_end\"\n")
	for _, g := range udevGroups(devices) {
		g.write(&b)
	}
	b.WriteString("\nLABEL=\"scanonce_end\"\n")
	return b.String()
}

// udevGroup are products of one vendor with the same rights.
type udevGroup struct {
	UdevDevice
	products []string
}

func udevGroups(devices []UdevDevice) []udevGroup {
	var out []udevGroup
	for _, d := range devices {
		product := fmt.Sprintf("%04x", d.Product)
		i := slices.IndexFunc(out, func(g udevGroup) bool {
			return g.Title == d.Title && g.Vendor == d.Vendor && g.Rights == d.Rights
		})
		if i < 0 {
			i = len(out)
			out = append(out, udevGroup{UdevDevice: d})
		}
		if !slices.Contains(out[i].products, product) {
			out[i].products = append(out[i].products, product)
		}
	}
	return out
}

func (g udevGroup) write(b *strings.Builder) {
	id := func(match string) string {
		return fmt.Sprintf(`%s{idVendor}=="%04x", %s{idProduct}=="%s"`, match, g.Vendor, match, strings.Join(g.products, "|"))
	}
	give := fmt.Sprintf(`GROUP=%q, MODE="0660"`, UdevGroup)
	show := fmt.Sprintf(`GROUP=%q, MODE="0640"`, UdevGroup)
	const ignore = `ENV{ID_MM_DEVICE_IGNORE}="1"`

	fmt.Fprintf(b, "\n# %s\n", comment(g.Title))
	fmt.Fprintf(b, `SUBSYSTEM=="usb", ENV{DEVTYPE}=="usb_device", %s`, id("ATTR"))
	if g.TTY {
		b.WriteString(", " + ignore)
	}
	if g.USB {
		b.WriteString(", " + give)
	}
	b.WriteString(`, TEST=="power/control", ATTR{power/control}="on"` + "\n")
	if g.TTY {
		fmt.Fprintf(b, `SUBSYSTEM=="tty", %s, %s, %s`+"\n", id("ATTRS"), ignore, give)
	}
	if g.HID {
		fmt.Fprintf(b, `SUBSYSTEM=="hidraw", %s, %s`+"\n", id("ATTRS"), show)
	}
	if g.Keys {
		if g.Take {
			show = give
		}
		fmt.Fprintf(b, `SUBSYSTEM=="input", KERNEL=="event*", %s, %s`+"\n", id("ATTRS"), show)
	}
}

// comment keeps a title, which may come from a configuration, within its line.
func comment(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\\' {
			return ' '
		}
		return r
	}, s)
}
