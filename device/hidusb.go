package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/karalabe/usb"
	"golang.org/x/sys/unix"
)

// usbNode is the node of a device, through which programs reach it without a driver.
func usbNode(root string, bus, address int) string {
	return filepath.Join(root, fmt.Sprintf("dev/bus/usb/%03d/%03d", bus, address))
}

// openHIDUSB opens an interface without the kernel's driver, which loses it: it is the process's alone. The device
// is named by its address and not looked for, as that would open all devices of its kind.
func openHIDUSB(root string, r hidRequest) (hidDevice, []byte, error) {
	if !usb.Supported() {
		return nil, nil, hidErrorf(hidRefuse, `cannot reach USB devices: this program was built without cgo: use one that was built with it, or write mode = "listen"`)
	}
	i, err := hidAttached(root, r)
	if err != nil {
		return nil, nil, err
	}
	if bootKeyboard(i) && !r.Force {
		return nil, nil, hidErrorf(hidRefuse, `cannot take interface %d alone: it is a keyboard, and would be lost to all other programs: write mode = "listen"`, i.Number)
	}
	node := usbNode(root, r.Bus, r.Address)
	if err := unix.Access(node, unix.R_OK|unix.W_OK); err != nil {
		return nil, nil, nodeError(node, r, err)
	}
	var desc []byte
	if r.Describe && i.Descriptor == nil {
		desc, _ = askHIDDescriptor(root, node, r) // without it the vendor's table serves
	}
	// The library's path of a device: bus, address and interface (make_path in its hid.c).
	info := usb.DeviceInfo{Path: fmt.Sprintf("%04x:%04x:%02x", r.Bus, r.Address, r.Interface), VendorID: r.Vendor, ProductID: r.Product, Interface: r.Interface}
	dev, failed := info.Open()
	now, err := hidAttached(root, r)
	switch {
	case err != nil: // gone, or another one at this address: what was opened, if it was, is of no use
		return nil, nil, err
	case failed != nil && now.Driver == "usbfs":
		return nil, nil, hidErrorf(hidRefuse, "cannot open interface %d of %s: another program holds it: stop that", r.Interface, node)
	case failed != nil:
		return nil, nil, hidErrorf(hidFailed, "cannot open interface %d of %s: %v: plug the scanner in anew", r.Interface, node, failed)
	}
	return dev, desc, nil
}

// hidAttached finds the interface, and checks that the address has not become another device's.
func hidAttached(root string, r hidRequest) (USBInterface, error) {
	d, ok := readUSBDevice(root, filepath.Join(root, usbDevices, r.Port), r.Port)
	if ok && d.Vendor == r.Vendor && d.Product == r.Product && d.Bus == r.Bus && d.Address == r.Address {
		for _, i := range d.Interfaces {
			if i.Number == r.Interface && i.Class == classHID {
				return i, nil
			}
		}
	}
	return USBInterface{}, hidErrorf(hidGone, "cannot find interface %d of %04x:%04x at port %s any more: plug the scanner in", r.Interface, r.Vendor, r.Product, r.Port)
}

// bootKeyboard says that an interface is one of a keyboard that works without reading its descriptor (USB HID
// 1.11, section 4.2 and 4.3).
func bootKeyboard(i USBInterface) bool { return i.SubClass == 1 && i.Protocol == 1 }

func nodeError(node string, r hidRequest, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return hidErrorf(hidGone, "cannot find %s: plug the scanner in", node)
	case errors.Is(err, fs.ErrPermission):
		return hidErrorf(hidRefuse, "cannot open %s: %v: give the agent's user the right to %04x:%04x with the rules of scanonce udev", node, err, r.Vendor, r.Product)
	}
	return hidErrorf(hidFailed, "cannot open %s: %v", node, err)
}

// The requests of a USB device's node (linux/usbdevice_fs.h).
const usbfsType = 'U'

func usbfsRequest(dir, nr, size uintptr) uintptr { return dir<<30 | size<<16 | usbfsType<<8 | nr }

// usbfsControl is struct usbdevfs_ctrltransfer.
type usbfsControl struct {
	requestType, request uint8
	value, index, length uint16
	timeout              uint32 // ms
	data                 unsafe.Pointer
}

// usbfsIoctl is struct usbdevfs_ioctl.
type usbfsIoctl struct {
	iface, code int32
	data        unsafe.Pointer
}

// askHIDDescriptor asks the device itself for the report descriptor of an interface that no driver has, so that
// sysfs does not show it: an agent before this one may have taken it.
func askHIDDescriptor(root, node string, r hidRequest) ([]byte, error) {
	n := hidDescriptorLen(root, r)
	if n == 0 || n > maxHIDDescriptor {
		return nil, errors.New("cannot read the length of the report descriptor")
	}
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", node, err)
	}
	defer unix.Close(fd) // releases the interface
	iface := uint32(r.Interface)
	if err := ioctlPtr(fd, usbfsRequest(2, 15, unsafe.Sizeof(iface)), unsafe.Pointer(&iface)); err != nil { // USBDEVFS_CLAIMINTERFACE
		return nil, fmt.Errorf("cannot claim interface %d: %w", r.Interface, err)
	}
	desc := make([]byte, n)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&desc[0])
	// GET_DESCRIPTOR of type Report (USB HID 1.11, section 7.1.1).
	c := usbfsControl{requestType: 0x81, request: 6, value: 0x2200, index: uint16(r.Interface), length: uint16(n), timeout: 1000, data: unsafe.Pointer(&desc[0])}
	if err := ioctlPtr(fd, usbfsRequest(3, 0, unsafe.Sizeof(c)), unsafe.Pointer(&c)); err != nil { // USBDEVFS_CONTROL
		return nil, fmt.Errorf("cannot ask for the report descriptor: %w", err)
	}
	return desc, nil
}

// hidDescriptorLen finds the length of the report descriptor among the device's other descriptors, which sysfs
// keeps: bytes 7 and 8 of the HID descriptor (USB HID 1.11, section 6.2.1) behind that of the interface.
func hidDescriptorLen(root string, r hidRequest) int {
	b, err := os.ReadFile(filepath.Join(root, usbDevices, r.Port, "descriptors"))
	if err != nil {
		return 0
	}
	within := false
	for len(b) >= 2 && int(b[0]) >= 2 && int(b[0]) <= len(b) {
		d := b[:b[0]]
		b = b[b[0]:]
		switch {
		case d[1] == 4 && len(d) >= 9: // interface
			within = int(d[2]) == r.Interface && d[5] == classHID
		case d[1] == 0x21 && len(d) >= 9 && within && d[6] == 0x22:
			return int(d[7]) | int(d[8])<<8
		}
	}
	return 0
}

// giveBack lets the kernel's driver have an interface again that the library has taken from it and does not return.
// Nobody may hold the interface. The right to the device's node is enough.
func giveBack(root string, r hidRequest) error {
	if _, err := hidAttached(root, r); err != nil {
		return err
	}
	node := usbNode(root, r.Bus, r.Address)
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open %s: %w", node, err)
	}
	defer unix.Close(fd)
	c := usbfsIoctl{iface: int32(r.Interface), code: usbfsType<<8 | 23}                             // USBDEVFS_CONNECT
	if err := ioctlPtr(fd, usbfsRequest(3, 18, unsafe.Sizeof(c)), unsafe.Pointer(&c)); err != nil { // USBDEVFS_IOCTL
		return fmt.Errorf("cannot give interface %d of %s back to its driver: %w", r.Interface, node, err)
	}
	return nil
}

func ioctlPtr(fd int, req uintptr, p unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(p)); errno != 0 {
		return errno
	}
	return nil
}
