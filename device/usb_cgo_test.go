//go:build cgo

package device

import "testing"

func TestUSBSupported(t *testing.T) {
	if !USBSupported() {
		t.Error("a build with cgo cannot reach USB devices")
	}
}
