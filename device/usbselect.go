package device

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// USBSelector says which attached device a scanner is: a model, and one of its kind by serial number, by port,
// or by both. A node's name is none of it, since names go to whoever comes first.
type USBSelector struct {
	Vendor, Product uint16
	Serial          string // "" is any
	Port            string // "" is any
}

var (
	modelRE = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$`)
	portRE  = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)
)

// ErrAmbiguous is of a selector that fits several attached devices.
var ErrAmbiguous = errors.New("several devices fit")

// notAttached is fs.ErrNotExist in words that fit a device.
type notAttached struct{ sel USBSelector }

func (e notAttached) Error() string        { return "cannot find " + e.sel.String() + ": plug the scanner in" }
func (e notAttached) Is(target error) bool { return target == fs.ErrNotExist }

// ParseUSBSelector reads the keys usb, "vvvv:pppp" or "vvvv:pppp:serial", and port of a [[scanner]] table. A
// serial number may hold any printable characters, colons too.
func ParseUSBSelector(usb, port string) (USBSelector, error) {
	const want = `write "vvvv:pppp" or "vvvv:pppp:serial" as scanonce devices shows them, for example "0c2e:0b61"`
	if usb == "" {
		return USBSelector{}, errors.New("cannot find a USB scanner without its vendor and product id: " + want)
	}
	model, serial, named := usb, "", false
	if len(usb) > len("vvvv:pppp") {
		model, named = usb[:len("vvvv:pppp")], usb[len("vvvv:pppp")] == ':'
		serial = usb[len("vvvv:pppp")+1:]
	}
	switch {
	case !modelRE.MatchString(model), model != usb && !named:
		return USBSelector{}, fmt.Errorf("cannot use usb %q: %s", usb, want)
	case named && usbSerial(serial) == "":
		return USBSelector{}, fmt.Errorf("cannot use usb %q: its serial number is empty or does not print: leave it and its colon out, and write port beside it", usb)
	case port != "" && !portRE.MatchString(port):
		return USBSelector{}, fmt.Errorf(`cannot use port %q: write the port path as scanonce devices shows it, for example "1-1.2"`, port)
	}
	vendor, _ := strconv.ParseUint(model[:4], 16, 16)
	product, _ := strconv.ParseUint(model[5:], 16, 16)
	return USBSelector{uint16(vendor), uint16(product), serial, port}, nil
}

// String is the selector as a table's keys say it.
func (s USBSelector) String() string {
	text := fmt.Sprintf("%04x:%04x", s.Vendor, s.Product)
	if s.Serial != "" {
		text += ":" + s.Serial
	}
	if s.Port != "" {
		text += " at port " + s.Port
	}
	return text
}

// fits says that d may be meant.
func (s USBSelector) fits(d USBDevice) bool {
	return d.Vendor == s.Vendor && d.Product == s.Product && (s.Serial == "" || d.Serial == s.Serial) && (s.Port == "" || d.Port == s.Port)
}

// Find returns the one device that is meant. The error is fs.ErrNotExist if none is attached, ErrAmbiguous with
// what to write if several are.
func (s USBSelector) Find(devs []USBDevice) (USBDevice, error) {
	var found []USBDevice
	for _, d := range devs {
		if s.fits(d) {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 0:
		return USBDevice{}, notAttached{s}
	case 1:
		return found[0], nil
	}
	var ways []string
	for _, d := range found {
		if d.Ambiguous {
			ways = append(ways, fmt.Sprintf("port = %q", d.Port))
		} else {
			ways = append(ways, fmt.Sprintf(`usb = "%04x:%04x:%s"`, d.Vendor, d.Product, d.Serial))
		}
	}
	slices.Sort(ways)
	return USBDevice{}, fmt.Errorf("cannot tell which of %d attached devices %s is: %w: write %s in this scanner's table",
		len(found), s, ErrAmbiguous, strings.Join(ways, " or "))
}
