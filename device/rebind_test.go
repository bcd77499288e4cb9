package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"scanonce/internal/testenv"
)

// orphan is a scanner that libusb has taken from its driver and left.
func orphan(port, vendor, product string) testenv.USBSpec {
	return testenv.USBSpec{Port: port, Vendor: vendor, Product: product, Interfaces: []testenv.USBInterfaceSpec{{Class: 3}}}
}

// bindFile makes the driver's file bind, a pipe, so that each name that is written to it stays to be read.
func bindFile(t *testing.T, u *testenv.USBTree) *os.File {
	t.Helper()
	dir := filepath.Join(u.Root, "sys/bus/usb/drivers/usbhid")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "bind"), 0o200); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "bind"), os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func written(t *testing.T, bind *os.File) string {
	t.Helper()
	if _, err := bind.WriteString("."); err != nil { // so that there is something to read
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, err := bind.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(buf[:n]), ".")
}

func anyOf(models ...string) func(USBDevice) bool {
	return func(d USBDevice) bool {
		return slices.Contains(models, USBSelector{Vendor: d.Vendor, Product: d.Product}.String())
	}
}

func TestRebind(t *testing.T) {
	u := testenv.NewUSBTree(t)
	bind := bindFile(t, u)
	u.Plug(orphan("1-1", "0c2e", "0b8f"))
	u.Plug(testenv.USBSpec{Port: "1-2.1", Vendor: "05e0", Product: "1200", Interfaces: []testenv.USBInterfaceSpec{
		{Class: 3, Driver: "usbhid"}, {Class: 3}, {Class: 0xff}, {Class: 3, Driver: "usbfs"}}})
	u.Plug(orphan("1-2.2", "1d6b", "0104")) // not configured
	// No name of the kernel's.
	odd := filepath.Join(u.Folder("1-1"), "1-1:1.0 x")
	if err := os.MkdirAll(odd, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"bInterfaceNumber": "01\n", "bInterfaceClass": "03\n"} {
		if err := os.WriteFile(filepath.Join(odd, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	done, err := Rebind(u.Root, anyOf("0c2e:0b8f", "05e0:1200", "ffff:ffff"))
	want := []Rebound{{"1-1:1.0", 0x0c2e, 0x0b8f, nil}, {"1-2.1:1.1", 0x05e0, 0x1200, nil}}
	if err != nil || !slices.Equal(done, want) {
		t.Errorf("%+v %v, want %+v", done, err, want)
	}
	if got := written(t, bind); got != "1-1:1.01-2.1:1.1" {
		t.Errorf("bound %q", got)
	}

	// What has its driver again is left alone, whoever gave it.
	for _, i := range []string{"1-1/1-1:1.0", "1-2.1/1-2.1:1.1"} {
		port, name, _ := strings.Cut(i, "/")
		if err := os.Symlink(filepath.Join(u.Root, "sys/bus/usb/drivers/usbhid"), filepath.Join(u.Folder(port), name, "driver")); err != nil {
			t.Fatal(err)
		}
	}
	if done, err := Rebind(u.Root, anyOf("0c2e:0b8f", "05e0:1200")); err != nil || len(done) != 0 {
		t.Errorf("the second time: %+v %v", done, err)
	}
	if got := written(t, bind); got != "" {
		t.Errorf("the second time bound %q", got)
	}
}

func TestRebindFails(t *testing.T) {
	u := testenv.NewUSBTree(t)
	u.Plug(orphan("1-1", "0c2e", "0b8f"))
	all := func(USBDevice) bool { return true }
	fails := func(want string) {
		t.Helper()
		done, err := Rebind(u.Root, all)
		if err != nil || len(done) != 1 || done[0].Err == nil || !strings.HasPrefix(done[0].Err.Error(), "cannot give 1-1:1.0 back: ") || !strings.Contains(done[0].Err.Error(), want) {
			t.Errorf("%+v %v, want %q", done, err, want)
		}
	}
	fails("modprobe usbhid")
	file := filepath.Join(u.Root, "sys/bus/usb/drivers/usbhid/bind")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("the driver's file was made")
	}
	if err := os.Symlink("/dev/full", file); err != nil { // a write that fails
		t.Fatal(err)
	}
	fails("plug it in again")

	// Bound by somebody else while the write failed.
	if err := os.Symlink("usbhid", filepath.Join(u.Folder("1-1"), "1-1:1.0", "driver")); err != nil {
		t.Fatal(err)
	}
	if err := bindUSBHID(u.Root, filepath.Join(u.Folder("1-1"), "1-1:1.0")); err != nil {
		t.Errorf("it has a driver: %v", err)
	}
	u.Unplug("1-1")
	if err := bindUSBHID(u.Root, filepath.Join(u.Folder("1-1"), "1-1:1.0")); err != nil {
		t.Errorf("it is gone: %v", err)
	}

	if done, err := Rebind(t.TempDir(), all); err != nil || len(done) != 0 {
		t.Errorf("without a bus: %v %v", done, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "sys/bus/usb"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, usbDevices), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Rebind(root, all); err == nil || os.IsNotExist(err) || !strings.HasPrefix(err.Error(), "cannot ") {
		t.Errorf("a bus that cannot be read: %v", err)
	}
}
