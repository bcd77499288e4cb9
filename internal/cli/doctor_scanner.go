package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"scanonce/device"
	"scanonce/internal/config"
)

const (
	makeRules = "as root: scanonce udev > /etc/udev/rules.d/69-scanonce-local.rules && udevadm control --reload && udevadm trigger --action=change"
	serialOld = "dialout" // the group of serial ports that no rule of ours covers
)

func (e *examiner) path(name string) string { return filepath.Join("/", e.root, name) }

// rights looks at the nodes that the agent opens.
func (e *examiner) rights(name string, s config.Scanner, d device.USBDevice) {
	need := device.RightsFor(s.Transport, s.Mode)
	var nodes []node
	if need.TTY {
		if d.SerialPort() == "" {
			e.bad(name+"port", "it has no serial port", "set the scanner to USB serial with the code in its manual, or load its driver (cdc_acm, or usbserial with the adapter's module)")
			return
		}
		nodes = append(nodes, node{d.SerialPort(), true})
	}
	if need.Keys && !need.Take && !need.USB {
		e.listens(name, d)
		return
	}
	for _, i := range d.Interfaces {
		switch {
		case !need.HID || need.USB:
		case s.Mode == "grab":
			for _, n := range i.Events {
				nodes = append(nodes, node{n, true})
			}
		case i.HIDRaw != "":
			nodes = append(nodes, node{i.HIDRaw, false})
		}
	}
	if need.USB {
		nodes = append(nodes, node{e.path(fmt.Sprintf("dev/bus/usb/%03d/%03d", d.Bus, d.Address)), true})
	}
	if s.Mode == "grab" {
		nodes = append(nodes, node{e.path("dev/uinput"), true})
	}
	e.check(name+"rights", usable(nodes), paths(nodes), makeRules)
}

// listens looks at the nodes of a keyboard that the agent listens to: its reports, or where it has no right to these,
// what the kernel makes of them.
func (e *examiner) listens(name string, d device.USBDevice) {
	name += "rights"
	i, ok := keyboardOf(d)
	var reports, events []node
	if i.HIDRaw != "" {
		reports = append(reports, node{i.HIDRaw, false})
	}
	for _, n := range i.Events {
		events = append(events, node{n, false})
	}
	err := usable(reports)
	switch {
	case !ok:
		e.bad(name, "it has no interface of a keyboard", "set the scanner to USB keyboard with the code in its manual, or write the transport that scanonce devices shows")
	case len(reports)+len(events) == 0 && i.Driver == "": // which is told by itself
	case len(reports)+len(events) == 0:
		e.bad(name, "the kernel has made no node of it", "load the modules hid and evdev")
	case len(reports) > 0 && err == nil:
		e.well(name, paths(reports)+": its reports")
	case len(events) > 0 && usable(events) == nil:
		e.well(name, paths(events)+": its keys, since its reports are not to be had")
	case err != nil:
		e.bad(name, err.Error(), makeRules)
	default:
		e.bad(name, usable(events).Error(), makeRules)
	}
}

// keyboardOf is the interface that the agent listens to: the first one whose descriptor is a keyboard's; without a
// descriptor its class tells.
func keyboardOf(d device.USBDevice) (device.USBInterface, bool) {
	for _, i := range d.Interfaces {
		typing := i.SubClass == 1 && i.Protocol == 1
		if i.Descriptor != nil {
			reports, err := device.ParseHIDDescriptor(i.Descriptor)
			_, typing = device.FindHIDKeyboard(reports)
			typing = typing && err == nil
		}
		if i.Class == 3 && typing {
			return i, true
		}
	}
	return device.USBInterface{}, false
}

func paths(nodes []node) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.path)
	}
	return strings.Join(all, ", ")
}

// usable says which of the nodes the agent has no right to.
func usable(nodes []node) error {
	for _, n := range nodes {
		if err := n.usable(); err != nil {
			return fmt.Errorf("the agent's user has no right to %s: %v", n.path, err)
		}
	}
	return nil
}

// node is one that the agent opens.
type node struct {
	path  string
	write bool
}

// usable asks the system as an ordinary user; root may all, so that for root the node's group must be the agent's.
func (n node) usable() error {
	fi, err := os.Stat(n.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("it does not exist")
		}
		return err
	}
	mode, bits := uint32(unix.R_OK), fs.FileMode(0o040)
	if n.write {
		mode, bits = unix.R_OK|unix.W_OK, 0o060
	}
	if os.Geteuid() != 0 {
		return unix.Access(n.path, mode)
	}
	group := groupOf(fi)
	if fi.Mode().Perm()&bits == bits && slices.Contains([]string{device.UdevGroup, serialOld}, group) {
		return nil
	}
	return fmt.Errorf("its group is %s and its mode %04o", group, fi.Mode().Perm())
}

func groupOf(fi os.FileInfo) string {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return "unknown"
	}
	id := strconv.FormatUint(uint64(st.Gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}

// awake: a scanner that was put to sleep loses what it is shown first.
func (e *examiner) awake(name string, d device.USBDevice) {
	b, err := os.ReadFile(e.path("sys/bus/usb/devices/" + d.Port + "/power/control"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.well(name+"awake", "this kernel puts no device to sleep")
	case err == nil && strings.TrimSpace(string(b)) == "on":
		e.well(name+"awake", "it is never put to sleep")
	default:
		e.bad(name+"awake", "the kernel may put it to sleep (power/control is "+strings.TrimSpace(string(b))+")", makeRules)
	}
}

// modemManager sends commands to every serial port that it is not told to leave alone.
func (e *examiner) modemManager(name string, d device.USBDevice) {
	name += "left alone"
	if !e.runs("ModemManager") {
		e.well(name, "ModemManager does not run")
		return
	}
	number, err := os.ReadFile(e.path("sys/class/tty/" + filepath.Base(d.SerialPort()) + "/dev"))
	if err == nil {
		// udev's data on the node: E: lines are its properties.
		data, err := os.ReadFile(e.path("run/udev/data/c" + strings.TrimSpace(string(number))))
		if err == nil && slices.Contains(strings.Split(string(data), "\n"), "E:ID_MM_DEVICE_IGNORE=1") {
			e.well(name, "ModemManager is told to ignore it")
			return
		}
	}
	e.bad(name, "ModemManager runs and is not told to ignore it: it sends commands to the scanner when it is plugged in", makeRules)
}

// runs looks for a process by name.
func (e *examiner) runs(program string) bool {
	names, err := filepath.Glob(e.path("proc/[0-9]*/comm"))
	return err == nil && slices.ContainsFunc(names, func(n string) bool {
		b, err := os.ReadFile(n)
		return err == nil && strings.TrimSpace(string(b)) == program
	})
}

// driver: an interface that a former agent has taken for itself has none until somebody gives it back.
func (e *examiner) driver(name string, s config.Scanner, d device.USBDevice) {
	for _, i := range d.Interfaces {
		if i.Class != 3 || i.Driver != "" {
			continue
		}
		if e.running && s.Mode == "exclusive" {
			e.well(name+"driver", "it is the agent's")
			return
		}
		e.bad(name+"driver", fmt.Sprintf("interface %d has no driver: it was read alone and not given back", i.Number), "as root: scanonce rebind; or plug the scanner in anew")
		return
	}
	e.well(name+"driver", "the kernel has one")
}
