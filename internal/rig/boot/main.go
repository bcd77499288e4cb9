// Command boot is the first process of the rig's virtual machine. From the initramfs it loads the kernel modules,
// takes the disk's file system for root, starts udev, runs one program as the machine's work, and powers it off.
// What it and the program say goes to the fourth serial port.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	out, err := begin()
	if err != nil {
		fmt.Fprintln(os.Stderr, "boot:", err) // the kernel's console
		off()
	}
	code, err := work(out)
	if err != nil {
		fmt.Fprintln(out, "boot:", err)
	}
	fmt.Fprintf(out, "@@EXIT %d\n", code)
	unix.IoctlSetInt(int(out.Fd()), unix.TCSBRK, 1) // wait until it is sent: tcdrain(3)
	off()
}

func off() {
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// begin prepares the kernel and opens the port for results.
func begin() (*os.File, error) {
	for _, m := range []struct{ kind, at string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := mount(m.kind, m.kind, m.at, 0); err != nil {
			return nil, err
		}
	}
	if err := loadModules(); err != nil {
		return nil, err
	}
	out, err := os.OpenFile("/dev/ttyS3", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	tio, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	tio.Oflag, tio.Lflag = 0, 0
	return out, unix.IoctlSetTermios(int(out.Fd()), unix.TCSETS, tio)
}

// work runs the program in the file args, one argument a line, in front of it variables of the environment, and
// returns its exit code.
func work(out *os.File) (int, error) {
	args, err := os.ReadFile("/args")
	if err != nil {
		return 1, err
	}
	if err := switchRoot("/dev/vda"); err != nil {
		return 1, err
	}
	for _, m := range []struct{ kind, at string }{{"tmpfs", "/tmp"}, {"tmpfs", "/run"}, {"devpts", "/dev/pts"}, {"configfs", "/sys/kernel/config"}} {
		if err := mount(m.kind, m.kind, m.at, 0); err != nil {
			return 1, err
		}
	}
	os.Chmod("/tmp", 0o1777)
	os.Setenv("PATH", "/usr/sbin:/usr/bin")
	os.Setenv("HOME", "/tmp")
	for _, argv := range [][]string{
		{"/usr/lib/systemd/systemd-udevd", "--daemon"},
		{"/usr/bin/udevadm", "trigger", "--action=add"},
		{"/usr/bin/udevadm", "settle"},
	} {
		if code, err := run(out, argv); err != nil || code != 0 {
			return 1, fmt.Errorf("cannot run %v: code %d, %v", argv, code, err)
		}
	}
	const state = "/dev/vdb"
	if _, err := os.Stat(state); err == nil {
		if err := mount(state, "ext4", "/var/lib/scanonce", unix.MS_NOATIME); err != nil {
			return 1, err
		}
	}
	up, _ := os.ReadFile("/proc/uptime")
	fmt.Fprintf(out, "@@READY after %s s\n", strings.Fields(string(up) + " ?")[0])
	argv := strings.Split(strings.TrimSuffix(string(args), "\n"), "\n")
	for len(argv) > 1 && !strings.HasPrefix(argv[0], "/") {
		name, value, _ := strings.Cut(argv[0], "=")
		os.Setenv(name, value)
		argv = argv[1:]
	}
	return run(out, argv)
}

func mount(source, kind, at string, flags uintptr) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, kind, flags, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("cannot mount %s at %s: %w", kind, at, err)
	}
	return nil
}

// loadModules loads the files named in the file modules, one a line, with options behind a space.
func loadModules() error {
	list, err := os.ReadFile("/modules")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		path, options, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), options, 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("cannot load %s: %w", path, err)
		}
	}
	return nil
}

// switchRoot makes the file system of a disk the root, with what is mounted so far.
func switchRoot(disk string) error {
	const root = "/root"
	if err := mount(disk, "ext4", root, unix.MS_NOATIME); err != nil {
		return err
	}
	for _, at := range []string{"/dev", "/proc", "/sys"} {
		if err := unix.Mount(at, filepath.Join(root, at), "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("cannot move %s: %w", at, err)
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := unix.Mount(root, "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot make %s the root: %w", disk, err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// run runs a program and waits for it, and meanwhile for every orphan, as a first process must.
func run(out *os.File, argv []string) (int, error) {
	in, err := os.Open(os.DevNull)
	if err != nil {
		return 1, err
	}
	defer in.Close()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{Dir: "/tmp", Env: os.Environ(), Files: []*os.File{in, out, out}})
	if err != nil {
		return 1, err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 1, err
		case pid == p.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == p.Pid:
			return 1, fmt.Errorf("%s was ended by signal %d", argv[0], status.Signal())
		}
	}
}
