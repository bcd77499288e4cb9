package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// USBTree is a folder that looks as sysfs and dev do on a machine with one USB controller of two ports, of which
// the second one leads to a hub.
type USBTree struct {
	Root string // has sys and dev

	t       testing.TB
	address int
	hid     int
}

// USBSpec is a device to plug in.
type USBSpec struct {
	Port               string // such as "1-2.1"
	Vendor, Product    string // four hexadecimal digits
	Serial             string // "": the device has none
	Manufacturer, Name string
	Interfaces         []USBInterfaceSpec
}

// USBInterfaceSpec is an interface. The nodes are names below dev, "" for none.
type USBInterfaceSpec struct {
	Class, SubClass, Protocol byte
	Driver                    string
	TTY                       string // of cdc_acm or of usbserial, by the driver
	HIDRaw, Event             string
	Descriptor                []byte
}

const usbController = "sys/devices/pci0000:00/0000:00:14.0/usb1"

// NewUSBTree makes the tree, with nothing plugged in but the hub at port 1-2.
func NewUSBTree(t testing.TB) *USBTree {
	t.Helper()
	u := &USBTree{Root: t.TempDir(), t: t}
	for _, dir := range []string{"sys/bus/usb/devices", "sys/bus/usb/drivers", "sys/module", "dev/input", "dev/bus/usb/001", "new", usbController} {
		u.must(os.MkdirAll(filepath.Join(u.Root, dir), 0o755))
	}
	u.write(usbController, map[string]string{"idVendor": "1d6b", "idProduct": "0002", "bDeviceClass": "09", "busnum": "1", "devnum": "1", "product": "xHCI Host Controller"})
	u.link("sys/bus/usb/devices/usb1", usbController)
	u.address = 1
	u.plug(USBSpec{Port: "1-2", Vendor: "05e3", Product: "0610", Name: "USB2.1 Hub", Interfaces: []USBInterfaceSpec{{Class: 9, Driver: "hub"}}}, "09")
	return u
}

// Plug attaches a device, with the next address, and makes its nodes: plain files of mode 0600, unless they are
// there. The node of the whole device is the last one.
func (u *USBTree) Plug(s USBSpec) {
	u.t.Helper()
	u.plug(s, "00")
	for _, i := range s.Interfaces {
		for _, n := range []string{i.TTY, i.HIDRaw, i.Event} {
			if n == "" {
				continue
			}
			if _, err := os.Lstat(u.Dev(n)); err == nil {
				continue
			}
			u.must(os.WriteFile(u.Dev(n), nil, 0o600))
		}
	}
	u.must(os.WriteFile(u.whole(u.address), nil, 0o600))
}

// whole is the node of a whole device.
func (u *USBTree) whole(address int) string {
	return u.Dev(fmt.Sprintf("bus/usb/001/%03d", address))
}

// Lead lets a node lead to another one, such as a pseudo-terminal. It is called before Plug.
func (u *USBTree) Lead(name, target string) {
	u.t.Helper()
	u.must(os.Symlink(target, u.Dev(name)))
}

// Dev is the path of a node.
func (u *USBTree) Dev(name string) string {
	if strings.HasPrefix(name, "event") {
		name = "input/" + name
	}
	return filepath.Join(u.Root, "dev", name)
}

// Folder is the device's own, below sys/devices.
func (u *USBTree) Folder(port string) string {
	dir := usbController
	path, rest, _ := strings.Cut(port, ".")
	dir = filepath.Join(dir, path)
	for rest != "" {
		var n string
		n, rest, _ = strings.Cut(rest, ".")
		path += "." + n
		dir = filepath.Join(dir, path)
	}
	return filepath.Join(u.Root, dir)
}

func (u *USBTree) plug(s USBSpec, class string) {
	u.t.Helper()
	u.address++
	stage := filepath.Join("new", s.Port)
	text := map[string]string{"idVendor": s.Vendor, "idProduct": s.Product, "bDeviceClass": class, "busnum": "1", "devnum": fmt.Sprint(u.address),
		"bNumInterfaces": fmt.Sprintf("%2d", len(s.Interfaces)), "power/control": "on"}
	for name, value := range map[string]string{"serial": s.Serial, "manufacturer": s.Manufacturer, "product": s.Name} {
		if value != "" {
			text[name] = value
		}
	}
	u.write(stage, text)
	for n, i := range s.Interfaces {
		dir := fmt.Sprintf("%s/%s:1.%d", stage, s.Port, n)
		u.write(dir, map[string]string{"bInterfaceNumber": fmt.Sprintf("%02x", n), "bInterfaceClass": fmt.Sprintf("%02x", i.Class),
			"bInterfaceSubClass": fmt.Sprintf("%02x", i.SubClass), "bInterfaceProtocol": fmt.Sprintf("%02x", i.Protocol), "bAlternateSetting": " 0"})
		if i.Driver != "" {
			u.must(os.MkdirAll(filepath.Join(u.Root, "sys/bus/usb/drivers", i.Driver), 0o755))
			u.must(os.Symlink(filepath.Join(u.Root, "sys/bus/usb/drivers", i.Driver), filepath.Join(u.Root, dir, "driver")))
		}
		if i.TTY != "" {
			sub := "/tty/"
			if i.Driver != "cdc_acm" {
				sub = "/" + i.TTY + "/tty/"
			}
			u.write(dir+sub+i.TTY, map[string]string{"uevent": "MAJOR=166\nMINOR=0\nDEVNAME=" + i.TTY})
		}
		if i.Descriptor != nil {
			u.hid++
			hid := fmt.Sprintf("%s/0003:%s:%s.%04X", dir, strings.ToUpper(s.Vendor), strings.ToUpper(s.Product), u.hid)
			u.write(hid, nil)
			u.must(os.WriteFile(filepath.Join(u.Root, hid, "report_descriptor"), i.Descriptor, 0o444))
			if i.HIDRaw != "" {
				u.write(hid+"/hidraw/"+i.HIDRaw, map[string]string{"uevent": "DEVNAME=" + i.HIDRaw})
			}
			if i.Event != "" {
				u.write(fmt.Sprintf("%s/input/input%d/%s", hid, u.hid, i.Event), map[string]string{"uevent": "DEVNAME=input/" + i.Event})
			}
		}
	}
	u.must(os.Rename(filepath.Join(u.Root, stage), u.Folder(s.Port)))
	dir, err := filepath.Rel(u.Root, u.Folder(s.Port))
	u.must(err)
	u.link("sys/bus/usb/devices/"+s.Port, dir)
	for n := range s.Interfaces {
		name := fmt.Sprintf("%s:1.%d", s.Port, n)
		u.link("sys/bus/usb/devices/"+name, filepath.Join(dir, name))
	}
}

// Unplug takes the device away, and then its nodes.
func (u *USBTree) Unplug(port string) {
	u.t.Helper()
	dir := u.Folder(port)
	number, err := os.ReadFile(filepath.Join(dir, "devnum"))
	u.must(err)
	address, err := strconv.Atoi(strings.TrimSpace(string(number)))
	u.must(err)
	var nodes []string
	u.must(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == "uevent" {
			nodes = append(nodes, filepath.Base(filepath.Dir(path)))
		}
		return err
	}))
	links, err := filepath.Glob(filepath.Join(u.Root, "sys/bus/usb/devices", port+"*"))
	u.must(err)
	for _, l := range links {
		if name := filepath.Base(l); name == port || strings.HasPrefix(name, port+":") {
			u.must(os.Remove(l))
		}
	}
	gone := filepath.Join(u.Root, "new", "gone")
	u.must(os.Rename(dir, gone))
	u.must(os.RemoveAll(gone))
	for _, n := range nodes {
		if err := os.Remove(u.Dev(n)); err != nil && !os.IsNotExist(err) {
			u.must(err)
		}
	}
	u.must(os.Remove(u.whole(address)))
}

// write makes a folder and its attributes, each ended by a newline as in sysfs.
func (u *USBTree) write(dir string, attrs map[string]string) {
	u.t.Helper()
	dir = filepath.Join(u.Root, dir)
	u.must(os.MkdirAll(dir, 0o755))
	for name, text := range attrs {
		path := filepath.Join(dir, name)
		u.must(os.MkdirAll(filepath.Dir(path), 0o755))
		u.must(os.WriteFile(path, []byte(text+"\n"), 0o644))
	}
}

func (u *USBTree) link(name, target string) {
	u.t.Helper()
	rel, err := filepath.Rel(filepath.Dir(name), target)
	u.must(err)
	u.must(os.Symlink(rel, filepath.Join(u.Root, name)))
}

func (u *USBTree) must(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}
