package device

import (
	"fmt"
	"path/filepath"
	"slices"
)

// Attached is an attached device as something to scan with.
type Attached struct {
	USBDevice
	Transport string // serial, hid-pos or hid-keyboard; "" if the agent cannot read the mode that it is set to
	Node      string // that is read, "" if it has none
	Title     string // maker and model, as far as they are known
	// Scanner says that it looks like one. A keyboard does if a maker of scanners has made it; any other one is
	// somebody's keyboard, until a person says that it is a scanner.
	Scanner bool
	Profile Profile // zero if the id is not known
}

// FindAttached returns the devices that are scanners or could be, those first that look like one. root is that of
// the bus.
func FindAttached(root string, devs []USBDevice) []Attached {
	var out []Attached
	for _, d := range devs {
		if a, ok := attached(root, d); ok {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b Attached) int {
		switch {
		case a.Scanner == b.Scanner:
			return 0
		case a.Scanner:
			return -1
		}
		return 1
	})
	return out
}

func attached(root string, d USBDevice) (a Attached, ok bool) {
	profile, known := ProfileOf(d.Vendor, d.Product)
	maker, made := ScannerMaker(d.Vendor)
	a = Attached{USBDevice: d, Profile: profile}
	switch {
	case known:
		a.Title = profile.Title()
	case made && d.Name != "":
		a.Title = maker + " " + d.Name
	case made:
		a.Title = maker
	default:
		a.Title = d.Name
	}
	pos, keyboard := d.hid(ModeHIDPOS), d.hid(ModeHIDKeyboard)
	serial := d.SerialPort() != "" || slices.ContainsFunc(d.Interfaces, func(i USBInterface) bool { return i.Class == classComm && i.SubClass == subClassACM })
	switch {
	case pos != nil:
		a.Transport, a.Scanner, a.Node = string(ModeHIDPOS), true, pos.HIDRaw
		if a.Node == "" {
			a.Node = filepath.Join(usbRoot(root), "dev", fmt.Sprintf("bus/usb/%03d/%03d", d.Bus, d.Address))
		}
	case serial:
		a.Transport, a.Scanner, a.Node = string(ModeSerial), true, d.SerialPort()
	case keyboard != nil:
		a.Transport, a.Scanner, a.Node = string(ModeHIDKeyboard), known || made, keyboard.HIDRaw
		if a.Node == "" && len(keyboard.Events) > 0 {
			a.Node = keyboard.Events[0]
		}
	case known:
		a.Transport, a.Scanner = profile.Mode.Transport(), true
	default:
		return a, false
	}
	return a, true
}

// subClassACM is the abstract control model of classComm (USB CDC 1.2, table 4).
const subClassACM = 0x02

// hid returns the first interface of the mode, nil if there is none. Without a descriptor, as of one that was taken
// from its driver, a boot keyboard alone can be told.
func (d USBDevice) hid(mode USBMode) *USBInterface {
	for n := range d.Interfaces {
		i := &d.Interfaces[n]
		if i.Class != classHID {
			continue
		}
		reports, err := ParseHIDDescriptor(i.Descriptor)
		isPOS := err == nil && slices.ContainsFunc(reports, func(r HIDReport) bool {
			return slices.ContainsFunc(r.Fields, func(f HIDField) bool { return f.App == usageScanner })
		})
		_, isKeyboard := FindHIDKeyboard(reports)
		isKeyboard = isKeyboard || i.BootKeyboard()
		if mode == ModeHIDPOS && isPOS || mode == ModeHIDKeyboard && isKeyboard && !isPOS {
			return i
		}
	}
	return nil
}

// BootKeyboard says that the interface is a keyboard by its protocol (USB HID 1.11, sections 4.2 and 4.3).
func (i USBInterface) BootKeyboard() bool {
	return i.Class == classHID && i.SubClass == 1 && i.Protocol == 1
}

// ID names the device in lists: by its serial number, or by its port if that does not tell it apart.
func (d USBDevice) ID() string {
	id := fmt.Sprintf("%04x:%04x", d.Vendor, d.Product)
	if d.Serial == "" || d.Ambiguous {
		return id + "@" + d.Port
	}
	return id + ":" + d.Serial
}

// Selector means the device, by what tells it apart: its serial number, and its port where that does not.
func (d USBDevice) Selector() USBSelector {
	s := USBSelector{Vendor: d.Vendor, Product: d.Product, Serial: d.Serial}
	if d.Ambiguous {
		s.Serial, s.Port = "", d.Port
	}
	return s
}
