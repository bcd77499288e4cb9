package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
)

// Rebound is an interface that had no driver.
type Rebound struct {
	Interface       string // the kernel's name for it, such as "1-1.2:1.0"
	Vendor, Product uint16
	Err             error // why it still has none; nil if it has one now
}

const usbhid = "usbhid"

var interfaceRE = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*:[0-9]+\.[0-9]+$`)

// Rebind gives the HID interfaces without a driver of the attached devices that match back to the kernel's
// driver: libusb takes it away from a scanner that is read alone, and after an agent that was killed nothing
// brings it back. An interface with any driver is left as it is, one that somebody reads among them. root is as
// in ReadUSB. Only root may do it.
func Rebind(root string, match func(USBDevice) bool) ([]Rebound, error) {
	root = usbRoot(root)
	devs, err := ReadUSB(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no bus, nothing to give back
	}
	if err != nil {
		return nil, err
	}
	var out []Rebound
	for _, d := range devs {
		if !match(d) {
			continue
		}
		for _, dir := range interfaceFolders(root, d.Port) {
			if i, ok := readUSBInterface(root, dir); !ok || i.Class != classHID || i.Driver != "" {
				continue
			}
			out = append(out, Rebound{filepath.Base(dir), d.Vendor, d.Product, bindUSBHID(root, dir)})
		}
	}
	return out, nil
}

// interfaceFolders are those of the device's configuration in force.
func interfaceFolders(root, port string) []string {
	var out []string
	device := filepath.Join(root, usbDevices, port)
	for _, name := range names(device) {
		if interfaceRE.MatchString(name) {
			out = append(out, filepath.Join(device, name))
		}
	}
	return out
}

func bindUSBHID(root, dir string) error {
	name := filepath.Base(dir)
	// Not created: where the driver is, its file is.
	f, err := os.OpenFile(filepath.Join(root, "sys/bus/usb/drivers", usbhid, "bind"), os.O_WRONLY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("cannot give %s back: the driver %s is not loaded: modprobe %s", name, usbhid, usbhid)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("cannot give %s back: %w: run scanonce rebind as root", name, err)
	case err != nil:
		return fmt.Errorf("cannot give %s back: %w", name, err)
	}
	defer f.Close()
	_, err = f.WriteString(name)
	if err == nil || hasDriver(dir) {
		return nil // by this, or by somebody else meanwhile
	}
	if _, gone := os.Lstat(dir); gone != nil {
		return nil // unplugged meanwhile; plugged in again it gets its driver by itself
	}
	if errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("cannot give %s back: the driver %s does not take it: unplug the scanner and plug it in again", name, usbhid)
	}
	return fmt.Errorf("cannot give %s back: %w: unplug the scanner and plug it in again", name, err)
}

func hasDriver(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "driver"))
	return err == nil
}
