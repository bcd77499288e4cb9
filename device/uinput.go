package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uinputName is the keyboard that passes on what was typed on one that is taken.
const uinputName = "scanonce keyboard"

const busVirtual = 0x06

func uinputRequest(dir, nr, size uintptr) uint { return uint(dir<<30 | size<<16 | 'U'<<8 | nr) }

// Requests that say what a keyboard can (linux/uinput.h).
const (
	uiSetEvents = 100
	uiSetKeys   = 101
	uiSetRel    = 102
	uiSetMisc   = 104
	uiSetLEDs   = 105
)

// openUinput opens the way to make keyboards. The error begins with what cannot be done then; else is what may be written
// instead.
func openUinput(root, what, instead string) (*os.File, error) {
	node := filepath.Join(root, "dev/uinput")
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV):
		return nil, hidErrorf(hidRefuse, `%s: there is no %s: load the module uinput, or %s`, what, node, instead)
	case errors.Is(err, fs.ErrPermission):
		return nil, hidErrorf(hidRefuse, `%s: %s: %v: give the agent's user the right to it with the rules of scanonce udev, or %s`, what, node, err, instead)
	case err != nil:
		return nil, hidErrorf(hidFailed, "%s: %s: %v", what, node, err)
	}
	return os.NewFile(uintptr(fd), node), nil
}

// cloneKeyboard makes a keyboard that can what f can, and lights f's lamps as its own are lit. It is gone once
// the process ends.
func cloneKeyboard(root string, f evdevFile, r hidRequest) (*os.File, error) {
	out, err := openUinput(root, "cannot pass keys on", `write mode = "listen"`)
	if err != nil {
		return nil, err
	}
	if err := control(out, func(fd int) error { return shapeKeyboard(fd, f, r) }); err != nil {
		out.Close()
		return nil, hidErrorf(hidFailed, "cannot pass keys on: %v", err)
	}
	go light(out, f)
	return out, nil
}

func shapeKeyboard(fd int, f evdevFile, r hidRequest) error {
	kinds, err := f.can(0)
	if err != nil {
		return err
	}
	set := func(nr uintptr, v int) {
		if err == nil {
			err = unix.IoctlSetInt(fd, uinputRequest(1, nr, 4), v)
		}
	}
	for kind, nr := range map[uint16]uintptr{evKey: uiSetKeys, evRel: uiSetRel, evMsc: uiSetMisc, evLED: uiSetLEDs, evRep: 0} {
		if !kinds.has(kind) {
			continue
		}
		set(uiSetEvents, int(kind))
		if nr == 0 {
			continue
		}
		can, failed := f.can(kind)
		err = errors.Join(err, failed)
		for code := range uint16(keyCodes) {
			if can.has(code) {
				set(nr, int(code))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("cannot shape a keyboard: %w", err)
	}
	return createKeyboard(fd, r.Vendor, r.Product, uinputName)
}

func createKeyboard(fd int, vendor, product uint16, name string) error {
	// struct uinput_setup: bus, vendor, product and version, a name of 80 bytes, and the force feedback's effects.
	var setup [8 + 80 + 4]byte
	binary.NativeEndian.PutUint16(setup[0:], busVirtual)
	binary.NativeEndian.PutUint16(setup[2:], vendor)
	binary.NativeEndian.PutUint16(setup[4:], product)
	copy(setup[8:], name)
	if err := ioctlPtr(fd, uintptr(uinputRequest(1, 3, unsafe.Sizeof(setup))), unsafe.Pointer(&setup)); err != nil { // UI_DEV_SETUP
		return fmt.Errorf("cannot name a keyboard: %w", err)
	}
	if err := unix.IoctlSetInt(fd, uinputRequest(0, 1, 0), 0); err != nil { // UI_DEV_CREATE
		return fmt.Errorf("cannot make a keyboard: %w", err)
	}
	return nil
}

// light passes on which lamps are lit until one of the two is gone, which the reader of keys notices.
func light(from *os.File, to evdevFile) {
	var buf [16 * evdevEvent]byte
	for {
		n, err := from.Read(buf[:])
		if err != nil {
			return
		}
		if out := lamps(buf[:n]); len(out) > 0 {
			if _, err := to.Write(out); err != nil {
				return
			}
		}
	}
}

// lamps are the events about lamps among others.
func lamps(events []byte) (out []byte) {
	for ; len(events) >= evdevEvent; events = events[evdevEvent:] {
		if e := readEvent(events); e.kind == evLED {
			out = appendEvent(out, evLED, e.code, e.value)
		}
	}
	if len(out) > 0 {
		out = appendEvent(out, evSyn, synReport, 0)
	}
	return out
}
