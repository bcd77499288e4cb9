package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// usbDevices is where the kernel lists what is attached (Documentation/ABI/stable/sysfs-bus-usb).
const usbDevices = "sys/bus/usb/devices"

const (
	classComm = 0x02 // communications (USB class codes); CDC-ACM is its subclass 2
	classHID  = 0x03
	classHub  = 0x09
)

// ReadUSB lists the attached USB devices but hubs, by port. It reads sysfs alone, which keeps copies of what it
// shows: no device is opened, woken or asked for anything. root is the folder that holds sys and dev, "" for
// the machine's own. Without a USB bus the error is fs.ErrNotExist.
func ReadUSB(root string) ([]USBDevice, error) {
	root = usbRoot(root)
	dir := filepath.Join(root, usbDevices)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list the USB devices: %w: load the host controller's driver, or mount /sys", err)
	}
	var out []USBDevice
	for _, e := range entries {
		if !portRE.MatchString(e.Name()) {
			continue // an interface, or a root hub
		}
		if d, ok := readUSBDevice(root, filepath.Join(dir, e.Name()), e.Name()); ok {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b USBDevice) int { return comparePorts(a.Port, b.Port) })
	markAmbiguous(out)
	return out, nil
}

func usbRoot(root string) string {
	if root == "" {
		return "/"
	}
	return root
}

// readUSBDevice is not ok for a hub, and for a device that goes away meanwhile.
func readUSBDevice(root, dir, port string) (d USBDevice, ok bool) {
	vendor, err1 := hexAttr(dir, "idVendor", 16)
	product, err2 := hexAttr(dir, "idProduct", 16)
	class, err3 := hexAttr(dir, "bDeviceClass", 8)
	if errors.Join(err1, err2, err3) != nil || class == classHub {
		return d, false
	}
	d = USBDevice{Vendor: uint16(vendor), Product: uint16(product), Port: port,
		Serial: usbSerial(attr(dir, "serial")), Manufacturer: strings.TrimSpace(attr(dir, "manufacturer")), Name: strings.TrimSpace(attr(dir, "product"))}
	d.Bus, _ = strconv.Atoi(attr(dir, "busnum"))
	d.Address, _ = strconv.Atoi(attr(dir, "devnum"))
	for _, name := range names(dir) {
		if strings.HasPrefix(name, port+":") {
			if i, ok := readUSBInterface(root, filepath.Join(dir, name)); ok {
				d.Interfaces = append(d.Interfaces, i)
			}
		}
	}
	slices.SortFunc(d.Interfaces, func(a, b USBInterface) int { return a.Number - b.Number })
	return d, true
}

func readUSBInterface(root, dir string) (i USBInterface, ok bool) {
	number, err := hexAttr(dir, "bInterfaceNumber", 8)
	if err != nil {
		return i, false
	}
	class, _ := hexAttr(dir, "bInterfaceClass", 8)
	sub, _ := hexAttr(dir, "bInterfaceSubClass", 8)
	protocol, _ := hexAttr(dir, "bInterfaceProtocol", 8)
	i = USBInterface{Number: int(number), Class: uint8(class), SubClass: uint8(sub), Protocol: uint8(protocol)}
	if driver, err := os.Readlink(filepath.Join(dir, "driver")); err == nil {
		i.Driver = filepath.Base(driver)
	}
	node := func(name string) string { return filepath.Join(root, "dev", name) }
	for _, name := range names(dir) {
		sub := filepath.Join(dir, name)
		switch {
		case name == "tty": // cdc_acm: <interface>/tty/ttyACM0
			if ttys := names(sub); len(ttys) > 0 {
				i.TTY = node(ttys[0])
			}
		case strings.HasPrefix(name, "tty"): // usbserial: <interface>/ttyUSB0/tty/ttyUSB0
			if ttys := names(filepath.Join(sub, "tty")); len(ttys) > 0 && i.TTY == "" {
				i.TTY = node(ttys[0])
			}
		case i.Class == classHID && i.Descriptor == nil: // usbhid: <interface>/0003:0C2E:0B61.0001
			d, err := os.ReadFile(filepath.Join(sub, "report_descriptor"))
			if err != nil {
				continue
			}
			i.Descriptor = d
			if raw := names(filepath.Join(sub, "hidraw")); len(raw) > 0 {
				i.HIDRaw = node(raw[0])
			}
			for _, input := range names(filepath.Join(sub, "input")) {
				for _, e := range names(filepath.Join(sub, "input", input)) {
					if strings.HasPrefix(e, "event") {
						i.Events = append(i.Events, node("input/"+e))
					}
				}
			}
		}
	}
	return i, true
}

// names are those of the folders and links in dir, in order; none if it is gone.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.Type()&(fs.ModeDir|fs.ModeSymlink) != 0 {
			out = append(out, e.Name())
		}
	}
	return out
}

// attr is an attribute's text without the newline that sysfs adds; "" if there is none.
func attr(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

func hexAttr(dir, name string, bits int) (uint64, error) {
	return strconv.ParseUint(attr(dir, name), 16, bits)
}

// usbSerial is a serial number as a selector can name it. One of blanks alone, or with what does not print,
// tells nothing apart that a person could write down.
func usbSerial(s string) string {
	if strings.TrimSpace(s) == "" || !printableText(s) {
		return ""
	}
	return s
}

func printableText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

func markAmbiguous(devs []USBDevice) {
	for i := range devs {
		d := &devs[i]
		d.Ambiguous = slices.ContainsFunc(devs, func(o USBDevice) bool {
			return o.Port != d.Port && o.Vendor == d.Vendor && o.Product == d.Product && (d.Serial == "" || o.Serial == d.Serial)
		})
	}
}

// comparePorts orders port paths by their numbers: "1-2" comes before "1-10".
func comparePorts(a, b string) int {
	isSep := func(r rune) bool { return r == '-' || r == '.' }
	x, y := strings.FieldsFunc(a, isSep), strings.FieldsFunc(b, isSep)
	return slices.CompareFunc(x, y, func(p, q string) int {
		m, _ := strconv.Atoi(p)
		n, _ := strconv.Atoi(q)
		return m - n
	})
}
