package device

// USBDevice is an attached USB device as the kernel describes it. Nothing of it comes from opening the device.
type USBDevice struct {
	Vendor, Product uint16
	Serial          string // iSerial; "" if it has none
	Port            string // the port path: bus, hyphen, ports from the root hub on, such as "1-1.2"
	Bus, Address    int    // Address is another one after each replug
	Manufacturer    string
	Name            string // iProduct
	Interfaces      []USBInterface
	// Ambiguous says that another attached device has the same vendor and product, and a serial number does not
	// tell the two apart: only the port does.
	Ambiguous bool
}

// USBInterface is one interface of a USBDevice, with the nodes that its driver has made.
type USBInterface struct {
	Number                    int
	Class, SubClass, Protocol uint8
	Driver                    string   // bound kernel driver, "" if there is none
	TTY                       string   // such as "/dev/ttyACM0"
	HIDRaw                    string   // such as "/dev/hidraw0"
	Events                    []string // evdev nodes, such as "/dev/input/event3"
	// Descriptor is the HID report descriptor; nil if it is no HID interface, or has had no driver since the bus is
	// followed: the kernel shows none of an interface that was taken from its driver.
	Descriptor []byte
}
