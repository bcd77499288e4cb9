package device

import "github.com/karalabe/usb"

// USBSupported says whether this build can reach USB devices directly. A build without cgo cannot, and
// says nothing of it by itself: it merely finds no device.
func USBSupported() bool { return usb.Supported() }
