//go:build usbrig

package guest

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"scanonce/device"
)

// runBus follows the machine's own bus until the test's end.
func runBus(t *testing.T) *device.Bus {
	t.Helper()
	bus := device.NewBus("", hostClock(t))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- bus.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the bus returned %v", err)
		}
	})
	select {
	case <-bus.Ready():
	case <-time.After(patience):
		t.Fatal("the bus is not ready")
	}
	return bus
}

func at(bus *device.Bus, port string) (device.USBDevice, bool) {
	for _, d := range bus.Devices() {
		if d.Port == port {
			return d, true
		}
	}
	return device.USBDevice{}, false
}

// What the bus knows of each kind of scanner is what the device says, and the nodes are those that the kernel has
// made; it is known as soon as the kernel tells of it, and twins without serial numbers are marked.
func TestBusKnowsScanners(t *testing.T) {
	bus := runBus(t)
	if st := bus.Stats(); st.Told != "netlink" {
		t.Fatalf("%q tells of changes: %s", st.Told, st.Detail)
	}
	honeywell := posVendors()[0]
	pos, keyboard := newPos(t, 0, honeywell), newKeyboard(t, 1, identity{0x05e0, 0x1200, "KB-0001", "Bar Code Scanner"})
	twins := []*gadget{newACM(t, 2, acmScanner("")), newACM(t, 3, acmScanner(""))}
	for _, g := range append([]*gadget{pos, keyboard}, twins...) {
		g.plug()
	}
	var d device.USBDevice
	eventually(t, "the bus knows the HID-POS scanner's node", func() bool {
		d, _ = at(bus, pos.bus())
		return len(d.Interfaces) == 1 && d.Interfaces[0].HIDRaw != ""
	})
	i := d.Interfaces[0]
	if d.Vendor != 0x0c2e || d.Product != 0x0b8f || d.Serial != "HW-0001" || d.Name != "HID-POS Scanner" || d.Manufacturer != "Rig" || d.Ambiguous {
		t.Errorf("the HID-POS scanner is %+v", d)
	}
	if i.Class != 3 || i.Driver != "usbhid" || i.HIDRaw != pos.node("*/hidraw/*") || string(i.Descriptor) != descriptor(t, honeywell.desc) {
		t.Errorf("its interface is %+v", i)
	}
	eventually(t, "the bus knows the keyboard's nodes", func() bool {
		d, _ = at(bus, keyboard.bus())
		return len(d.Interfaces) == 1 && d.Interfaces[0].HIDRaw != "" && len(d.Interfaces[0].Events) == 1
	})
	if i := d.Interfaces[0]; i.SubClass != 1 || i.Protocol != 1 || i.Events[0] != keyboard.node("*/input/input*/event*") {
		t.Errorf("the keyboard's interface is %+v", i)
	}
	for _, g := range twins {
		eventually(t, "the bus knows both twins and that they are", func() bool {
			d, _ = at(bus, g.bus())
			return d.Ambiguous && len(d.Interfaces) == 2
		})
		tty := ""
		for _, i := range d.Interfaces {
			tty += i.TTY
		}
		if d.Serial != "" || tty != g.node("tty/*") {
			t.Errorf("the twin at %s is %+v, its port is %s", g.bus(), d, g.node("tty/*"))
		}
		sel, err := device.ParseUSBSelector("05e0:1701", g.bus())
		if err != nil {
			t.Fatal(err)
		}
		if found, err := sel.Find(bus.Devices()); err != nil || found.Port != g.bus() {
			t.Errorf("%s finds %+v, %v", sel, found, err)
		}
	}
	sel := device.USBSelector{Vendor: 0x05e0, Product: 0x1701}
	if _, err := sel.Find(bus.Devices()); !errors.Is(err, device.ErrAmbiguous) {
		t.Errorf("without a port, the twins: %v", err)
	}
	twins[1].unplug()
	eventually(t, "one twin alone is not ambiguous", func() bool {
		d, _ = at(bus, twins[0].bus())
		return !d.Ambiguous
	})
	if found, err := sel.Find(bus.Devices()); err != nil || found.Port != twins[0].bus() {
		t.Errorf("one twin alone: %+v, %v", found, err)
	}
	before, _ := at(bus, pos.bus())
	pos.unplug()
	eventually(t, "the bus knows that the scanner is gone", func() bool { _, there := at(bus, pos.bus()); return !there })
	if _, err := (device.USBSelector{Vendor: 0x0c2e, Product: 0x0b8f, Serial: "HW-0001"}).Find(bus.Devices()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a scanner that is gone: %v", err)
	}
	pos.plug()
	eventually(t, "the bus knows the scanner again", func() bool { d, _ = at(bus, pos.bus()); return len(d.Interfaces) == 1 && d.Interfaces[0].HIDRaw != "" })
	if d.Address == before.Address {
		t.Errorf("plugged in again it has the address %d as before", d.Address)
	}
}
