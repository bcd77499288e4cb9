package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// NewUSBSerial makes the task of the serial scanner that sel means, wherever its port turns up. Its cfg has no
// path. onState may be nil.
func NewUSBSerial(cfg SerialConfig, sel USBSelector, bus *Bus, clock Clock, sink Sink, onState StateFunc) (*Serial, error) {
	if err := cfg.validateUSB(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	cfg.Path = sel.String() // in messages
	o := &usbSerialOpener{scanner: cfg.ID, sel: sel, bus: bus, baud: cfg.Baud}
	s, err := newSupervisor(cfg, o, clock, sink, onState)
	if err != nil {
		return nil, err
	}
	s.watch = func() (watcher, error) {
		return bus.WatchDevice(sel, func(d USBDevice) []string { return []string{d.SerialPort()} })
	}
	return &Serial{s}, nil
}

// SerialPort is the node of the device's serial port, "" if it has none: that of its first interface for
// communications (CDC-ACM), else of the first one that has any. What a scanner has behind that is for service.
func (d USBDevice) SerialPort() string {
	first := ""
	for _, i := range d.Interfaces {
		switch {
		case i.TTY == "":
		case i.Class == classComm:
			return i.TTY
		case first == "":
			first = i.TTY
		}
	}
	return first
}

// usbSerialOpener opens the port that the device has now.
type usbSerialOpener struct {
	scanner string
	sel     USBSelector
	bus     *Bus
	baud    int
}

func (o *usbSerialOpener) Attached() bool {
	_, err := o.sel.Find(o.bus.Devices())
	return !errors.Is(err, fs.ErrNotExist)
}

func (o *usbSerialOpener) Open(ctx context.Context) (Source, error) {
	d, err := o.sel.Find(o.bus.Devices())
	if err != nil {
		return nil, err
	}
	path := d.SerialPort()
	if path == "" {
		return nil, fmt.Errorf("cannot find a serial port of %s: %s", o.sel, d.whyNoPort())
	}
	release, err := o.bus.Claim(d, o.scanner)
	if err != nil {
		return nil, err
	}
	src, err := (&serialOpener{path: path, baud: o.baud}).Open(ctx)
	if err != nil {
		release()
		return nil, err
	}
	// A port's number goes to another device once its own is gone, but not while it is open: if it is the device's
	// now, it is the one that was opened.
	if now, ok := o.bus.Again(d); !ok || now.SerialPort() != path {
		src.Close()
		release()
		return nil, fmt.Errorf("cannot keep %s: it was unplugged while its port was opened", o.sel)
	}
	return &usbSerialPort{src.(*serialPort), d, o, release}, nil
}

func (d USBDevice) whyNoPort() string {
	for _, i := range d.Interfaces {
		if i.Class == classHID && len(d.Interfaces) == 1 {
			return "it is set to a HID mode: set it to USB serial with the code in its manual, or write the transport that scanonce devices shows"
		}
	}
	return "wait for its driver, or load it (cdc_acm, or usbserial with the module of its adapter)"
}

// usbSerialPort is an open port that belongs to a device.
type usbSerialPort struct {
	*serialPort
	device  USBDevice
	opener  *usbSerialOpener
	release func()
}

func (p *usbSerialPort) Close() error {
	defer p.release()
	return p.serialPort.Close()
}

// Moved says that another device is meant now: the scanner was plugged in anew. A second one that fits as well is
// no reason to let go of this one.
func (p *usbSerialPort) Moved() bool {
	d, err := p.opener.sel.Find(p.opener.bus.Devices())
	return err == nil && !d.same(p.device)
}

// same says that both are one device since one plugging in.
func (d USBDevice) same(o USBDevice) bool {
	return d.Port == o.Port && d.Address == o.Address && d.Vendor == o.Vendor && d.Product == o.Product && d.Serial == o.Serial
}

// Again looks at sysfs anew, and is not ok if d is not attached any more.
func (b *Bus) Again(d USBDevice) (now USBDevice, ok bool) {
	devs, _ := b.read() // of a bus that cannot be read there is none
	for _, o := range devs {
		if o.same(d) {
			return o, true
		}
	}
	return USBDevice{}, false
}
