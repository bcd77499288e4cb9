//go:build usbrig

// Package guest holds the tests of scanners that run inside the virtual machine of internal/rig, as root: they plug
// and unplug their own USB devices, which are the kernel's gadgets on emulated ports, or QEMU's.
package guest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scanonce/internal/testenv"
	"scanonce/window"
)

// patience bounds every wait; it is no part of what is measured.
const patience = testenv.Patience

// program is the product's binary in the machine.
const program = testenv.Binary("/usr/bin/scanonce")

// workerProgram is what reads a HID device: the program itself, or one with the address sanitizer.
func workerProgram() string {
	if p := os.Getenv("RIG_WORKER"); p != "" {
		return p
	}
	return string(program)
}

// asanLog begins the names of the files into which the address sanitizer writes what it finds.
const asanLog = "/tmp/asan"

func TestMain(m *testing.M) {
	if _, err := os.Stat(gadgets); err != nil {
		fmt.Fprintln(os.Stderr, "cannot run outside of the rig's machine: make test-usb")
		os.Exit(1)
	}
	code := m.Run()
	for _, f := range glob(asanLog + ".*") {
		fmt.Printf("the address sanitizer has found something:\n%s\n", text(f))
		code = 1
	}
	os.Exit(code)
}

// eventually polls what nobody signals: the state of the kernel.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); wait() {
		if time.Now().After(deadline) {
			t.Fatal("never: " + what)
		}
	}
}

// wait lets the emulated machine do something else for a moment.
func wait() {
	runtime.Gosched()
	unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// text is the content of a small file, such as an attribute of sysfs; "" if there is none.
func text(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

func write(t testing.TB, path, s string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
}

func glob(pattern string) []string {
	found, _ := filepath.Glob(pattern)
	return found
}

func hostClock(t testing.TB) *window.Clock {
	t.Helper()
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	return window.NewClock(host, window.Mark{}, window.ClockOptions{})
}

// usage is what a process holds.
type usage struct {
	files, threads int
	resident       int // KiB
}

func usageOf(t testing.TB, pid int) (u usage) {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	u.files = len(fds)
	for line := range strings.Lines(text(fmt.Sprintf("/proc/%d/status", pid))) {
		fmt.Sscanf(line, "Threads: %d", &u.threads)
		fmt.Sscanf(line, "VmRSS: %d kB", &u.resident)
	}
	return u
}

func number(t testing.TB, path string) int {
	t.Helper()
	n, err := strconv.Atoi(text(path))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func busNode(bus, address int) string { return fmt.Sprintf("/dev/bus/usb/%03d/%03d", bus, address) }
