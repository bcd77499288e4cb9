// Command rig runs the tests of internal/rig/guest inside a virtual machine with a real kernel and real USB, whose
// devices the tests plug and unplug themselves. .ci/usb-rig calls it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// group is what is tested in one go. Each of its boots runs one selection of tests; all have the same disks.
type group struct {
	name  string
	boots []string // what -test.run selects
	cuts  int      // of these, from the first one on, that end with a power cut
	asan  bool     // what reads HID devices has the address sanitizer
}

// The kernel numbers at most four HID gadgets, and a mistake in it shall not spoil everything: each group has a
// machine of its own.
func groups() []group {
	return []group{
		{"serial", []string{"^Test(Serial|Bus)"}, 0, false},
		{"hidpos", []string{"^TestHIDPos"}, 0, false},
		{"keyboard", []string{"^TestKeyboard"}, 0, false},
		{"agent", []string{"^TestAgent"}, 0, false},
		{"power", []string{"^TestPower", "^TestPower", "^TestPower"}, 2, false},
		{"asan", []string{"^Test(HIDPosUnplugged|HIDPosUnpluggedAtOnce|HIDPosWorkerHarmed|WorkerPluggedOften)$"}, 0, true},
	}
}

// quick are the tests of every transport that one boot and a minute are enough for.
func quick() []group {
	return []group{{"quick", []string{"^Test(BusKnowsScanners|SerialTwins|SerialFTDI|HIDPosRebind|KeyboardListen)$"}, 0, false}}
}

func main() {
	kernel := flag.String("kernel", "", "folder of an unpacked kernel package: boot/vmlinuz-*, lib/modules/*")
	dir := flag.String("dir", "bin/usb", "folder for what is built and for the logs")
	short := flag.Bool("quick", false, "one boot with a few tests")
	only := flag.String("groups", "", "run only the groups whose names this expression matches")
	tests := flag.String("tests", "", "run only these tests (as -test.run) of each group, in one boot")
	quiet := flag.Duration("quiet", 4*time.Minute, "end a machine of which nothing is heard for this long")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &rig{kernel: *kernel, dir: *dir, quiet: *quiet, out: os.Stdout}
	list := groups()
	if *short {
		list = quick()
	}
	if err := r.main(ctx, list, *only, *tests); err != nil {
		fmt.Fprintln(os.Stderr, "rig:", err)
		stop()
		os.Exit(1)
	}
}

type rig struct {
	kernel string
	dir    string
	quiet  time.Duration
	out    io.Writer
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) main(ctx context.Context, list []group, only, tests string) error {
	want, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(g group) bool { return !want.MatchString(g.name) })
	if len(list) == 0 {
		return fmt.Errorf("cannot find a group that %q matches", only)
	}
	began := time.Now()
	vmlinuz, err := r.build(ctx, list)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.out, "built in %.0f s\n", time.Since(began).Seconds())
	var failed []string
	for _, g := range list {
		if tests != "" {
			g.boots, g.cuts = []string{tests}, 0
		}
		if err := r.group(ctx, vmlinuz, g); err != nil {
			fmt.Fprintf(r.out, "%s: %v\n", g.name, err)
			failed = append(failed, g.name)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if failed != nil {
		return fmt.Errorf("cannot pass: %s; see the logs in %s", strings.Join(failed, ", "), r.dir)
	}
	fmt.Fprintf(r.out, "ok, %.0f s\n", time.Since(began).Seconds())
	return nil
}

// build makes the programs and disks, and returns the kernel's file.
func (r *rig) build(ctx context.Context, list []group) (vmlinuz string, err error) {
	if vmlinuz, err = one(filepath.Join(r.kernel, "boot", "vmlinuz-*")); err != nil {
		return "", err
	}
	modules, err := one(filepath.Join(r.kernel, "lib", "modules", "*"))
	if err != nil {
		return "", err
	}
	programs := r.path("programs")
	if err := os.RemoveAll(programs); err != nil {
		return "", err
	}
	if err := os.MkdirAll(programs, 0o755); err != nil {
		return "", err
	}
	jobs := [][]string{
		{"CGO_ENABLED=0", "go", "build", "-o", r.path("boot"), "./internal/rig/boot"},
		{"CGO_ENABLED=1", "go", "build", "-o", filepath.Join(programs, "scanonce"), "./cmd/scanonce"},
		{"CGO_ENABLED=1", "go", "test", "-c", "-tags", "usbrig", "-o", filepath.Join(programs, "guest.test"), "./internal/rig/guest"},
	}
	if slices.ContainsFunc(list, func(g group) bool { return g.asan }) {
		jobs = append(jobs, []string{"CGO_ENABLED=1", "go", "build", "-asan", "-o", filepath.Join(programs, "worker-asan"), "./internal/rig/worker"})
	}
	for _, j := range jobs {
		cmd := exec.CommandContext(ctx, j[1], j[2:]...)
		cmd.Env = append(os.Environ(), j[0])
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot build %s: %w\n%s", j[len(j)-1], err, out)
		}
	}
	if err := writeInitrd(r.path("initrd"), r.path("boot"), modules); err != nil {
		return "", err
	}
	if err := rootTree(r.path("root"), programs, "configs"); err != nil {
		return "", err
	}
	return vmlinuz, makeDisk(r.path("root.img"), r.path("root"), "600M")
}

// one returns the only file that a pattern matches.
func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("cannot find one file %s, but %d: unpack one kernel package there", pattern, len(found))
	}
	return found[0], nil
}

// group boots the machines of a group and tells their results.
func (r *rig) group(ctx context.Context, vmlinuz string, g group) error {
	log, err := os.Create(r.path(g.name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	m := machine{kernel: vmlinuz, initrd: r.path(g.name + ".initrd"), root: r.path("root.img"), state: r.path(g.name + ".state"), box: r.path(g.name + ".box")}
	defer func() {
		for _, f := range []string{m.initrd, m.state, m.box} {
			os.Remove(f)
		}
	}()
	if err := makeDisk(m.state, "", "256M"); err != nil {
		return err
	}
	if err := os.WriteFile(m.box, make([]byte, 1<<20), 0o644); err != nil {
		return err
	}
	var all []error
	for i, tests := range g.boots {
		began := time.Now()
		m.console = r.path(fmt.Sprintf("%s.%d.console.log", g.name, i+1))
		args := []string{"/usr/bin/guest.test", "-test.v", "-test.timeout=10m", "-test.run=" + tests}
		if g.asan {
			args = append([]string{"RIG_WORKER=/usr/bin/worker-asan"}, args...)
		}
		if err := withArgs(m.initrd, r.path("initrd"), args); err != nil {
			return err
		}
		o, err := m.run(ctx, log, r.quiet)
		fmt.Fprintf(r.out, "%s, boot %d: %.0f s, of these %s until ready\n", g.name, i+1, time.Since(began).Seconds(), o.ready)
		for _, name := range o.passed {
			fmt.Fprintf(r.out, "  ok   %s\n", name)
		}
		for _, name := range o.failed {
			fmt.Fprintf(r.out, "  FAIL %s\n", name)
		}
		switch cut := i < g.cuts; {
		case err != nil:
		case cut && o.cut && !o.exited:
			fmt.Fprintln(r.out, "  the power was cut")
		case cut:
			err = errors.New("cannot go on: the power was to be cut, and was not")
		case !o.ok():
			err = fmt.Errorf("cannot pass: %d tests failed, code %d", len(o.failed), o.code)
		}
		lines, readErr := complaints(m.console)
		if len(lines) > 0 {
			err = errors.Join(err, fmt.Errorf("the kernel complains, see %s:\n%s", m.console, strings.Join(lines, "\n")))
		}
		if err = errors.Join(err, readErr); err != nil {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}
