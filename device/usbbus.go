package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"sync"
	"time"
)

const (
	// settle is how long a burst of events is left to end: a device that is plugged in sends a dozen.
	settle = 25 * time.Millisecond
	// rescanEvery finds what no event has told of. It is the only periodic work, and a safety net.
	rescanEvery = 30 * time.Second
	// blindRescan replaces it where nothing tells of changes.
	blindRescan = 2 * time.Second
)

// Bus is the task that knows what is attached by USB. It reads sysfs when the kernel tells of a change.
type Bus struct {
	root    string
	clock   Clock
	sources []busSource // in order of preference
	read    func() ([]USBDevice, error)
	ready   chan struct{}

	scanning sync.Mutex

	mu     sync.Mutex
	known  bool // devs are from a look at sysfs
	devs   []USBDevice
	subs   map[*busWatch]struct{}
	claims map[string]string // scanner by port and address
	stats  BusStats
}

// BusStats are the figures of a Bus.
type BusStats struct {
	// Told says what tells of changes: "netlink", "inotify", or "rescan" if nothing does. "" before Run.
	Told    string
	Detail  string // why it is not netlink; "" if it is
	Unread  string // why the bus could not be read the last time; "" if it could
	Devices int
	Events  uint64        // that might concern USB
	Scans   uint64        // looks at sysfs
	Lost    uint64        // times that the kernel had more events than room for them
	Last    time.Duration // CLOCK_BOOTTIME of the last change, 0 if there was none
}

// busEvents tells that something may have changed.
type busEvents interface {
	// next waits for an event. errEventsLost means that some were lost; any other error is final.
	next() error
	// close ends a next that waits.
	close()
}

type busSource struct {
	name string
	open func() (busEvents, error)
}

var errEventsLost = errors.New("events were lost")

// NewBus makes the task. root is the folder that holds sys and dev, "" for the machine's own; the kernel speaks
// of no other one, so that another one's dev is watched by inotify.
func NewBus(root string, clock Clock) *Bus {
	b := &Bus{root: usbRoot(root), clock: clock, ready: make(chan struct{}), subs: map[*busWatch]struct{}{}, claims: map[string]string{}}
	b.read = func() ([]USBDevice, error) { return ReadUSB(b.root) }
	if b.root == "/" {
		b.sources = append(b.sources, busSource{"netlink", openUevents})
	}
	b.sources = append(b.sources, busSource{"inotify", func() (busEvents, error) { return openDevEvents(b.root) }})
	return b
}

// String names the task.
func (b *Bus) String() string { return "usb bus" }

// Ready is closed once the bus has been looked at, after the subscription to its changes.
func (b *Bus) Ready() <-chan struct{} { return b.ready }

// Stats returns the figures so far.
func (b *Bus) Stats() BusStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// Devices returns what is attached, by port. The caller may keep it, and changes nothing in it.
func (b *Bus) Devices() []USBDevice {
	b.mu.Lock()
	known, devs := b.known, b.devs
	b.mu.Unlock()
	if !known {
		b.scan()
		b.mu.Lock()
		devs = b.devs
		b.mu.Unlock()
	}
	return devs
}

// Run follows the bus until ctx ends. A bus that cannot be read, or of which nothing tells, is no error.
func (b *Bus) Run(ctx context.Context) error {
	opened := sync.OnceFunc(func() { close(b.ready) })
	for ctx.Err() == nil {
		events := b.subscribe()
		b.look() // after the subscription, so that no change falls between the two
		opened()
		b.follow(ctx, events)
	}
	return nil
}

// subscribe returns the best source that works, nil if there is none.
func (b *Bus) subscribe() busEvents {
	var why error
	for _, s := range b.sources {
		events, err := s.open()
		if err == nil {
			b.told(s.name, why)
			return events
		}
		why = errors.Join(why, err)
	}
	b.told("rescan", why)
	return nil
}

func (b *Bus) told(how string, why error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Told, b.stats.Detail = how, ""
	if why != nil {
		b.stats.Detail = why.Error()
	}
}

// follow returns once ctx ends or the source has failed.
func (b *Bus) follow(ctx context.Context, events busEvents) {
	var (
		rescan = time.NewTimer(rescanEvery)
		burst  = time.NewTimer(settle)
		told   = make(chan error, 1)
		work   sync.WaitGroup
		every  = rescanEvery
	)
	defer rescan.Stop()
	defer burst.Stop()
	burst.Stop()
	done := make(chan struct{})
	if events == nil {
		every = blindRescan
		rescan.Reset(every)
	} else {
		work.Go(func() {
			for {
				err := events.next()
				select {
				case told <- err:
				case <-done:
					return
				}
				if err != nil && !errors.Is(err, errEventsLost) {
					return
				}
			}
		})
		defer work.Wait()
		defer events.close()
	}
	defer close(done)
	pending := false
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-told:
			switch {
			case err == nil:
				b.count(func(st *BusStats) { st.Events++ })
			case errors.Is(err, errEventsLost):
				b.count(func(st *BusStats) { st.Lost++ })
			default:
				b.failed(ctx, err)
				return
			}
			if !pending {
				pending = true
				burst.Reset(settle)
			}
		case <-burst.C:
			pending = false
			b.look()
			rescan.Reset(every)
		case <-rescan.C:
			b.look()
			rescan.Reset(every)
		}
	}
}

// failed waits before the next subscription, so that a source that fails at once does not spin.
func (b *Bus) failed(ctx context.Context, err error) {
	b.told("rescan", err)
	wait := time.NewTimer(blindRescan)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-wait.C:
	}
}

func (b *Bus) count(f func(*BusStats)) {
	b.mu.Lock()
	f(&b.stats)
	b.mu.Unlock()
}

// look reads sysfs and tells those whose devices have changed.
func (b *Bus) look() {
	if !b.scan() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.subs {
		w.look(b.devs)
	}
}

// scan reads sysfs and says whether something has changed.
func (b *Bus) scan() bool {
	b.scanning.Lock() // what is read last is kept last
	defer b.scanning.Unlock()
	devs, err := b.read()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Scans++
	if err != nil && !errors.Is(err, fs.ErrNotExist) && b.known {
		devs = b.devs // a look that failed tells of no change: no scanner is dropped for it
	}
	keepDescriptors(devs, b.devs)
	changed := !b.known || !reflect.DeepEqual(devs, b.devs)
	b.known, b.devs = true, devs
	b.stats.Devices = len(devs)
	b.stats.Unread = ""
	if err != nil {
		b.stats.Unread = err.Error()
	}
	if changed {
		b.stats.Last = b.clock.Now().Boot
		b.dropClaims()
	}
	return changed
}

// keepDescriptors gives interfaces that have lost their driver the descriptors that they had.
func keepDescriptors(devs, before []USBDevice) {
	for _, d := range devs {
		at := slices.IndexFunc(before, d.same)
		for n := range d.Interfaces {
			i := &d.Interfaces[n]
			if at < 0 || i.Class != classHID || i.Descriptor != nil {
				continue
			}
			for _, was := range before[at].Interfaces {
				if was.Number == i.Number {
					i.Descriptor = was.Descriptor
				}
			}
		}
	}
}

// Watch tells of every change of what is attached.
func (b *Bus) Watch() (watcher, error) { return b.watch(nil, nil), nil }

// WatchDevice tells of changes of the device that sel means, and of the appearance, replacement and permissions
// of the nodes that nodes returns of it.
func (b *Bus) WatchDevice(sel USBSelector, nodes func(USBDevice) []string) (watcher, error) {
	return b.watch(&sel, nodes), nil
}

func (b *Bus) watch(sel *USBSelector, nodes func(USBDevice) []string) *busWatch {
	w := &busWatch{bus: b, sel: sel, nodes: nodes, tell: make(chan struct{}, 1)}
	if nodes != nil {
		// Without it the nodes' permissions, which udev sets after the kernel has spoken, are found by trying again.
		w.paths, _ = watchPaths(w.tell)
	}
	w.seen = w.view(b.Devices())
	b.mu.Lock()
	b.subs[w] = struct{}{}
	w.look(b.devs)
	b.mu.Unlock()
	return w
}

// busWatch is one subscription.
type busWatch struct {
	bus   *Bus
	sel   *USBSelector // nil: all devices
	nodes func(USBDevice) []string
	paths *pathWatch // nil: none
	tell  chan struct{}
	seen  busView // under bus.mu once subscribed
}

// busView is what a subscriber would find.
type busView struct {
	devs []USBDevice
	err  string
}

func (w *busWatch) view(devs []USBDevice) busView {
	if w.sel == nil {
		return busView{devs: devs}
	}
	d, err := w.sel.Find(devs)
	if err != nil {
		return busView{err: err.Error()}
	}
	return busView{devs: []USBDevice{d}}
}

// look needs bus.mu.
func (w *busWatch) look(devs []USBDevice) {
	now := w.view(devs)
	if reflect.DeepEqual(now, w.seen) {
		return
	}
	w.seen = now
	select {
	case w.tell <- struct{}{}:
	default:
	}
}

func (w *busWatch) arm() {
	if w.paths == nil {
		return
	}
	w.bus.mu.Lock()
	now := w.seen
	w.bus.mu.Unlock()
	var paths []string
	if len(now.devs) == 1 {
		paths = w.nodes(now.devs[0])
	}
	w.paths.follow(paths)
	w.paths.arm()
}

func (w *busWatch) changed() <-chan struct{} { return w.tell }

func (w *busWatch) close() {
	w.bus.mu.Lock()
	delete(w.bus.subs, w)
	w.bus.mu.Unlock()
	if w.paths != nil {
		w.paths.close()
	}
}

// Claim takes an attached device for a scanner, until release or its unplugging, so that two tables cannot both
// have it: one of them may name its model, the other one its port.
func (b *Bus) Claim(d USBDevice, scanner string) (release func(), err error) {
	key := claimKey(d)
	b.mu.Lock()
	defer b.mu.Unlock()
	if by, taken := b.claims[key]; taken && by != scanner {
		return nil, fmt.Errorf("cannot take the USB device %s: it is scanner %s already: write usb with the serial number, or port, in both tables", key, by)
	}
	b.claims[key] = scanner
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.claims[key] == scanner {
			delete(b.claims, key)
		}
	}), nil
}

func claimKey(d USBDevice) string {
	return fmt.Sprintf("%04x:%04x at port %s (address %d)", d.Vendor, d.Product, d.Port, d.Address)
}

// dropClaims forgets those of devices that are gone. It needs mu.
func (b *Bus) dropClaims() {
	for key := range b.claims {
		if !slices.ContainsFunc(b.devs, func(d USBDevice) bool { return claimKey(d) == key }) {
			delete(b.claims, key)
		}
	}
}
