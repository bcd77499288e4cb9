//go:build !cgo

package device

import "testing"

func TestUSBSupported(t *testing.T) {
	if USBSupported() {
		t.Error("a build without cgo says that it can reach USB devices")
	}
}
