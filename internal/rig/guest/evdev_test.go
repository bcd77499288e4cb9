//go:build usbrig

package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// console is one who reads a keyboard beside the agent, as the desktop does.
type console struct {
	t    testing.TB
	file *os.File
	keys chan string // "16 down", "16 up"
}

// openConsole reads an input device until the test's end, or until the device is gone.
func openConsole(t testing.TB, node string) *console {
	t.Helper()
	f, err := os.OpenFile(node, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, file: f, keys: make(chan string, 1<<12)}
	ended := make(chan struct{})
	t.Cleanup(func() { f.Close(); <-ended })
	go func() {
		defer close(ended)
		// struct input_event of linux/input.h on a machine of 64 bits: time, type, code, value.
		const size = 24
		var buf [64 * size]byte
		for {
			n, err := f.Read(buf[:])
			if err != nil {
				if !errors.Is(err, os.ErrClosed) && !errors.Is(err, unix.ENODEV) {
					t.Error(err)
				}
				return
			}
			for e := buf[:n]; len(e) >= size; e = e[size:] {
				kind, code, value := binary.NativeEndian.Uint16(e[16:]), binary.NativeEndian.Uint16(e[18:]), binary.NativeEndian.Uint32(e[20:])
				if kind == evKey && value != 2 { // what the kernel repeats while a key is held is nobody's key
					c.keys <- fmt.Sprintf("%d %s", code, [...]string{"up", "down"}[value])
				}
			}
		}
	}()
	return c
}

const evKey = 1 // EV_KEY of linux/input-event-codes.h

// inputDevice is the node of an input device of this name; "" if there is none.
func inputDevice(name string) string {
	for _, f := range glob("/sys/class/input/event*/device/name") {
		if text(f) == name {
			return "/dev/input/" + strings.Split(f, "/")[4]
		}
	}
	return ""
}

// pressed waits for these keys of linux/input-event-codes.h, each pressed and released, and nothing in between.
func (c *console) pressed(codes ...int) {
	c.t.Helper()
	for _, code := range codes {
		for _, want := range []string{fmt.Sprintf("%d down", code), fmt.Sprintf("%d up", code)} {
			select {
			case got := <-c.keys:
				if got != want {
					c.t.Fatalf("the console has the key %s, want %s", got, want)
				}
			case <-time.After(patience):
				c.t.Fatalf("the console never has the key %s", want)
			}
		}
	}
}

// silent checks that the console has no key.
func (c *console) silent() {
	c.t.Helper()
	select {
	case got := <-c.keys:
		c.t.Fatalf("the console has the key %s, and was to have none", got)
	default:
	}
}

// skip waits for as many presses and releases, whatever they are.
func (c *console) skip(n int) {
	c.t.Helper()
	for i := range n {
		select {
		case <-c.keys:
		case <-time.After(patience):
			c.t.Fatalf("the console has %d of %d presses and releases", i, n)
		}
	}
}
