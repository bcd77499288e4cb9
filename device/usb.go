package device

import (
	"errors"
	"fmt"

	"github.com/karalabe/usb"
)

// USBSupported says whether this build can reach USB devices directly. A build without cgo cannot, and
// says nothing of it by itself: it merely finds no device.
func USBSupported() bool { return usb.Supported() }

// ProbeUSB says why USB devices cannot be reached directly, nil if they can. It lists devices of a vendor id that
// nobody has, and opens none.
func ProbeUSB() error {
	if !USBSupported() {
		return errors.New("cannot reach USB devices: this build has no cgo")
	}
	if _, err := usb.EnumerateRaw(0xffff, 0xffff); err != nil {
		return fmt.Errorf("cannot reach USB devices: %w", err)
	}
	return nil
}

// ProbeEvents says why the kernel does not tell of USB devices, nil if it does.
func ProbeEvents() error {
	events, err := openUevents()
	if err != nil {
		return err
	}
	events.close()
	return nil
}
