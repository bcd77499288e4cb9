package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultReportGap is the longest time between two reports of one scan of a HID-POS scanner, which sends them a
// few milliseconds apart.
const DefaultReportGap = 200 * time.Millisecond

// HIDMode says what the agent's use of a HID scanner leaves to others.
type HIDMode string

// The modes.
const (
	Exclusive HIDMode = "exclusive" // nothing: the kernel's driver loses the interface
	Listen    HIDMode = "listen"    // everything: the reports are read beside it
	Grab      HIDMode = "grab"      // its keys, which are taken from the keyboard and typed on another one
)

// HIDConfig sets one HID scanner. The zero value of Gap takes the default of its kind.
type HIDConfig struct {
	ID       string // A-Z a-z 0-9 _ . -, at most 32
	Device   USBSelector
	Keyboard bool // it types; else it is a HID-POS scanner
	Mode     HIDMode
	Force    bool          // Exclusive may take a keyboard
	Layout   string        // of a keyboard, one of Layouts
	Gap      time.Duration // silence within a scan that voids it
	// Worker makes the process that reads the device: a program that calls RunHIDWorker with its standard input
	// and output.
	Worker func() *exec.Cmd
}

// Validate returns all that is wrong, joined, each with what to write instead.
func (c HIDConfig) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !validID(c.ID) {
		bad("cannot use scanner id %q: write 1 to %d of A-Z a-z 0-9 _ . -", c.ID, maxScannerID)
	}
	switch c.Mode {
	case Listen:
	case Exclusive:
		if c.Keyboard && !c.Force {
			bad(`cannot take the keyboard of scanner %s alone: it would be lost to all other programs: write mode = "listen", or force = true if it is meant`, c.ID)
		}
	case Grab:
		if !c.Keyboard {
			bad(`cannot grab scanner %s: only keys can be passed on: write mode = "exclusive" or "listen"`, c.ID)
		}
	default:
		bad(`cannot use mode %q of scanner %s: write "exclusive", "listen" or "grab"`, string(c.Mode), c.ID)
	}
	if c.Keyboard && !slices.Contains(Layouts(), c.Layout) {
		bad("cannot use layout %q of scanner %s: write one of %q", c.Layout, c.ID, Layouts())
	}
	if t := c.Gap; t != 0 && (t < minInterByte || t > maxInterByte) {
		bad("cannot use inter_byte_timeout %v of scanner %s: write %v to %v", t, c.ID, minInterByte, maxInterByte)
	}
	if c.Worker == nil {
		bad("cannot read scanner %s: the program that reads it is not found: start the agent by the path of its file", c.ID)
	}
	return errors.Join(errs...)
}

// HID is the task that keeps one HID scanner open and offers its scans to a sink. Several run independently of
// each other; each has a process of its own that reads the device.
type HID struct {
	sup    *supervisor
	opener *hidOpener
}

// NewHID makes the task of one scanner, which is looked for on bus. onState may be nil.
func NewHID(cfg HIDConfig, bus *Bus, clock Clock, sink Sink, onState StateFunc) (*HID, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Gap == 0 {
		cfg.Gap = DefaultReportGap
		if cfg.Keyboard {
			cfg.Gap = DefaultKeyGap
		}
	}
	o := &hidOpener{cfg: cfg, bus: bus, clock: clock, openFor: hidOpenFor}
	s := supervise(cfg.ID, "the USB device "+cfg.Device.String(), o, clock, sink, onState)
	s.gap, s.decode = cfg.Gap, o.decoder
	s.watch = func() (watcher, error) { return bus.WatchDevice(cfg.Device, o.nodes) }
	return &HID{s, o}, nil
}

// Run supervises the scanner until ctx ends, then returns nil within a second. An absent or failing device is no
// error. It may be called once, while the bus runs.
func (h *HID) Run(ctx context.Context) error {
	h.opener.stopping = ctx.Done()
	return h.sup.run(ctx)
}

// Ready is closed once the device was looked for, whether or not it is there.
func (h *HID) Ready() <-chan struct{} { return h.sup.ready }

// String names the task.
func (h *HID) String() string { return "scanner " + h.sup.id }

// Stats returns the figures so far.
func (h *HID) Stats() Stats { return h.sup.snapshot() }

// driverFor is how long the kernel is left to find a driver for a device that was just plugged in.
const driverFor = time.Second

// hidOpener opens the device that its selector means, again and again.
type hidOpener struct {
	cfg      HIDConfig
	bus      *Bus
	clock    Clock
	openFor  time.Duration
	stopping <-chan struct{}

	mu      sync.Mutex
	device  string         // the last one found
	since   time.Duration  // CLOCK_BOOTTIME
	known   map[int][]byte // its report descriptors by interface: sysfs loses that of an interface without driver
	tried   string         // what the last Open found
	touched bool           // it may have made changes itself
}

// hidFound is what a look at the bus gives.
type hidFound struct {
	dev   USBDevice
	iface USBInterface
	req   hidRequest
}

// key changes with the device, and with the way to it.
func (f hidFound) key() string {
	return fmt.Sprint(f.req.Via, f.req.Port, f.req.Bus, f.req.Address, f.req.Interface, f.req.Nodes)
}

func (o *hidOpener) Attached() bool {
	_, err := o.cfg.Device.Find(o.bus.Devices())
	return !errors.Is(err, fs.ErrNotExist)
}

// nodes are the device's that the mode needs the right to.
func (o *hidOpener) nodes(d USBDevice) []string {
	if o.cfg.Mode == Exclusive {
		return []string{usbNode(o.bus.root, d.Bus, d.Address)}
	}
	var nodes []string
	for _, i := range d.Interfaces {
		if i.HIDRaw != "" {
			nodes = append(nodes, i.HIDRaw)
		}
		nodes = append(nodes, i.Events...)
	}
	if o.cfg.Mode == Grab {
		nodes = append(nodes, filepath.Join(o.bus.root, "dev/uinput"))
	}
	return nodes
}

// Worth says whether something is there that the last Open did not find. To open a device changes its drivers and
// nodes, and so does the end of it: that must not lead to the next attempt at once.
func (o *hidOpener) Worth() bool {
	f, err := o.find()
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.touched || err == nil && f.key() != o.tried || errors.Is(err, fs.ErrNotExist)
}

// find chooses the interface and the way to it.
func (o *hidOpener) find() (hidFound, error) {
	d, err := o.cfg.Device.Find(o.bus.Devices())
	if err != nil {
		return hidFound{}, err
	}
	i, err := o.choose(d)
	if err != nil {
		return hidFound{}, err
	}
	f := hidFound{d, i, hidRequest{Vendor: d.Vendor, Product: d.Product, Port: d.Port, Bus: d.Bus, Address: d.Address, Interface: i.Number}}
	switch o.cfg.Mode {
	case Exclusive:
		f.req.Via, f.req.Force, f.req.Describe = viaUSB, o.cfg.Force, i.Descriptor == nil
	case Grab:
		f.req.Via, f.req.Nodes = viaGrab, i.Events
	default:
		f.req.Via = viaHIDRaw
		if i.HIDRaw != "" {
			f.req.Nodes = []string{i.HIDRaw}
		}
		// A keyboard's keys are also to be had where the right to its reports is not.
		readable := func(node string) bool { return unix.Access(node, unix.R_OK) == nil }
		if o.cfg.Keyboard && !slices.ContainsFunc(f.req.Nodes, readable) && slices.ContainsFunc(i.Events, readable) {
			f.req.Via, f.req.Nodes = viaEvdev, i.Events
		}
	}
	return f, nil
}

// choose finds the interface that scans come from. Its descriptor is filled in if it was known once. One without
// any is taken if it alone can be meant: it has no driver, as an earlier agent may have left it.
func (o *hidOpener) choose(d USBDevice) (USBInterface, error) {
	fresh := o.remember(d)
	var blank []USBInterface
	other := false // it is a scanner of the other kind
	for _, i := range d.Interfaces {
		if i.Class != classHID {
			continue
		}
		if i.Descriptor == nil {
			i.Descriptor = o.descriptor(i.Number)
		}
		if i.Descriptor == nil {
			if bootKeyboard(i) == o.cfg.Keyboard {
				blank = append(blank, i)
			}
			continue
		}
		if _, err := o.form(d, i); err == nil {
			return i, nil
		}
		other = other || o.isOther(d, i)
	}
	switch {
	case len(blank) > 0 && (fresh || o.cfg.Mode != Exclusive || len(blank) > 1):
		return USBInterface{}, fmt.Errorf("cannot use %s: the kernel has no driver for it yet: if that stays, plug it in anew", o.cfg.Device)
	case len(blank) > 0:
		return blank[0], nil
	case other:
		return USBInterface{}, fmt.Errorf("cannot use %s as a %s scanner: it is set to another mode: scan the %s barcode of its manual, or write transport = %q", o.cfg.Device, o.kind(), o.kind(), o.otherTransport())
	}
	return USBInterface{}, o.unfit()
}

func (o *hidOpener) kind() string {
	if o.cfg.Keyboard {
		return "USB keyboard"
	}
	return "HID-POS"
}

func (o *hidOpener) otherTransport() string {
	if o.cfg.Keyboard {
		return "hid-pos"
	}
	return "hid-keyboard"
}

func (o *hidOpener) unfit() error {
	return fmt.Errorf("cannot use %s as a %s scanner: it has no such interface: scan the %s barcode of its manual", o.cfg.Device, o.kind(), o.kind())
}

func (o *hidOpener) isOther(d USBDevice, i USBInterface) bool {
	reports, err := ParseHIDDescriptor(i.Descriptor)
	_, pos := FindHIDPos(d.Vendor, reports)
	_, keys := FindHIDKeyboard(reports)
	return err == nil && (pos && o.cfg.Keyboard || keys && !o.cfg.Keyboard)
}

// hidForm says where an interface's reports hold what; one of the two.
type hidForm struct {
	pos  HIDPosLayout
	keys HIDKeyboard
}

// form is of an interface with a descriptor. Without one it is what the vendor's manual says, or the boot
// protocol's.
func (o *hidOpener) form(d USBDevice, i USBInterface) (f hidForm, err error) {
	if i.Descriptor == nil {
		return hidForm{hidPosVendor(d.Vendor), BootKeyboard()}, nil
	}
	reports, err := ParseHIDDescriptor(i.Descriptor)
	if err != nil {
		return f, err
	}
	ok := false
	if o.cfg.Keyboard {
		f.keys, ok = FindHIDKeyboard(reports)
	} else {
		f.pos, ok = FindHIDPos(d.Vendor, reports)
	}
	if !ok {
		return f, o.unfit()
	}
	return f, nil
}

// remember keeps what is known of the device that was found. fresh says that it was not there before.
func (o *hidOpener) remember(d USBDevice) (fresh bool) {
	now := o.clock.Now().Boot
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := claimKey(d); key != o.device {
		o.device, o.since, o.known = key, now, map[int][]byte{}
	}
	for _, i := range d.Interfaces {
		if i.Descriptor != nil {
			o.known[i.Number] = i.Descriptor
		}
	}
	return now-o.since < driverFor
}

func (o *hidOpener) descriptor(iface int) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[iface]
}

func (o *hidOpener) Open(ctx context.Context) (Source, error) {
	f, err := o.find()
	if err != nil {
		o.try("", false)
		return nil, err
	}
	release, err := o.bus.Claim(f.dev, o.cfg.ID)
	if err != nil {
		o.try(f.key(), false)
		return nil, err
	}
	o.try(f.key(), true)
	s, err := startHID(ctx, o.cfg.Worker, f.req, o.openFor)
	if err != nil {
		var e *hidError
		o.try(f.key(), !errors.As(err, &e) || e.kind == hidFailed)
		o.free(f, release)
		return nil, err
	}
	src := &hidOpened{hidSource: s, via: f.req.Via}
	s.freed = func() { o.free(f, release) }
	s.moved = func() bool { return o.moved(f.dev) }
	if f.iface.Descriptor == nil && len(s.desc) > 0 {
		f.iface.Descriptor = s.desc
	}
	if src.form, err = o.form(f.dev, f.iface); err != nil {
		s.Close()
		o.giveBack(f) // it is no scanner, and somebody may need it
		return nil, err
	}
	return src, nil
}

// try notes what is opened, and whether that may make changes on the bus.
func (o *hidOpener) try(key string, touched bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tried, o.touched = key, touched
}

// free is for when nobody has the device open any more. It goes back to its driver only once the agent does not
// want it: the driver's coming would make a keyboard of it for a moment.
func (o *hidOpener) free(f hidFound, release func()) {
	release()
	select {
	case <-o.stopping:
		o.giveBack(f)
	default:
	}
}

func (o *hidOpener) giveBack(f hidFound) {
	if f.req.Via == viaUSB {
		giveBack(o.bus.root, f.req) // if it fails, plugging it in anew does it
	}
}

// moved says that the device is not attached any more, or is not the one that is meant.
func (o *hidOpener) moved(d USBDevice) bool {
	devs := o.bus.Devices()
	now, err := o.cfg.Device.Find(devs)
	if err == nil {
		return claimKey(now) != claimKey(d)
	}
	// One more that fits does not make it another one.
	return !slices.ContainsFunc(devs, func(n USBDevice) bool { return claimKey(n) == claimKey(d) })
}

// hidOpened is a source whose reports can be decoded.
type hidOpened struct {
	*hidSource
	via  hidVia
	form hidForm
}

func (o *hidOpener) decoder(src Source, emit func(Frame)) (decoder, error) {
	s := src.(*hidOpened)
	switch {
	case !o.cfg.Keyboard:
		return NewHIDPos(o.cfg.ID, s.form.pos, o.cfg.Gap, emit)
	case s.via == viaEvdev || s.via == viaGrab:
		return NewKeyboard(o.cfg.ID, evdevKeyboard(), o.cfg.Layout, o.cfg.Gap, emit)
	}
	return NewKeyboard(o.cfg.ID, s.form.keys, o.cfg.Layout, o.cfg.Gap, emit)
}
