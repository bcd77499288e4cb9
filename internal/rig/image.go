package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// guestModules are those of the guest: its disks, the emulated USB host and devices, and the gadgets with their
// host, four ports that lead nowhere but back.
func guestModules() []string {
	return []string{
		"virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "configfs", "unix", "af_packet",
		"xhci_pci", "usbhid", "hid_generic", "evdev", "uinput", "uhid",
		"usbserial", "ftdi_sio", "cdc_acm",
		"libcomposite", "usb_f_hid", "usb_f_acm", "dummy_hcd num=4",
	}
}

// writeInitrd writes an initramfs with the first process and the kernel's modules.
func writeInitrd(path, boot, modules string) error {
	program, err := os.ReadFile(boot)
	if err != nil {
		return err
	}
	files := []entry{{"init", 0o755, program}}
	found, err := findModules(modules, guestModules())
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, m := range found {
		data, err := os.ReadFile(m.path)
		if err != nil {
			return err
		}
		name := "lib/modules/" + m.name + ".ko"
		files = append(files, entry{name, 0o644, data})
		fmt.Fprintln(&list, strings.TrimSpace("/"+name+" "+m.options))
	}
	files = append(files, entry{"modules", 0o644, []byte(list.String())})
	return writeArchive(path, files)
}

func writeArchive(path string, files []entry) error {
	var b bytes.Buffer
	if err := writeCPIO(&b, files); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// withArgs writes an initramfs that is another one and the guest's work: a program and its arguments.
func withArgs(path, initrd string, args []string) error {
	base, err := os.ReadFile(initrd)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(base)
	if err := writeCPIO(&b, []entry{{"args", 0o644, []byte(strings.Join(args, "\n") + "\n")}}); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// tree is the root file system of the guest under construction.
type tree struct{ dir string }

// newTree makes an empty one below dir, with the folders that Debian has.
func newTree(dir string) (*tree, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "proc", "sys", "run", "tmp", "etc/udev/rules.d", "var/lib/scanonce"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+d, filepath.Join(dir, d)); err != nil {
			return nil, err
		}
	}
	return &tree{dir}, os.Symlink("/run", filepath.Join(dir, "var/run"))
}

// place copies a file, following symlinks, to a path of the guest.
func (t *tree) place(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return t.write(to, data, mode)
}

func (t *tree) write(to string, data []byte, mode os.FileMode) error {
	path := filepath.Join(t.dir, to)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, mode)
}

// program places a program with the libraries that it is linked to.
func (t *tree) program(from, to string) error {
	if err := t.place(from, to, 0o755); err != nil {
		return err
	}
	out, err := exec.Command("ldd", from).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot tell the libraries of %s: %w: %s", from, err, out)
	}
	for _, lib := range libraries(string(out)) {
		if _, err := os.Stat(filepath.Join(t.dir, lib)); err == nil {
			continue
		}
		if err := t.place(lib, lib, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// libraries are the paths in what ldd(1) says.
func libraries(ldd string) (out []string) {
	for word := range strings.FieldsSeq(ldd) {
		if strings.HasPrefix(word, "/") {
			out = append(out, word)
		}
	}
	return out
}

// folder places the files of a folder, not those below.
func (t *tree) folder(from, to string, want func(name string) bool) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.IsDir() || !want(f.Name()) {
			continue
		}
		if err := t.place(filepath.Join(from, f.Name()), filepath.Join(to, f.Name()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// The service's user has the number of systemd-sysusers' range; the other groups are Debian's.
const (
	passwdFile = `root:x:0:0:root:/root:/bin/sh
scanonce:x:990:990:Scan-once agent:/var/lib/scanonce:/usr/sbin/nologin
someone:x:1000:1000:Somebody else:/tmp:/usr/sbin/nologin
`
	groupFile = `root:x:0:
tty:x:5:
disk:x:6:
lp:x:7:
kmem:x:15:
dialout:x:20:
cdrom:x:24:
tape:x:26:
audio:x:29:
video:x:44:
sgx:x:103:
input:x:104:
kvm:x:105:
render:x:106:
scanonce:x:990:
someone:x:1000:
`
)

// rootTree makes the guest's root: the programs, udev with the rules that matter to scanners and the project's
// own. The C library's character converters (gconv), which the library for USB devices reads their strings with, are
// left out: the agent must not need them.
func rootTree(dir, programs, configs string) error {
	t, err := newTree(dir)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(programs)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := t.program(filepath.Join(programs, f.Name()), "/usr/bin/"+f.Name()); err != nil {
			return err
		}
	}
	if err := t.program("/usr/bin/udevadm", "/usr/bin/udevadm"); err != nil {
		return fmt.Errorf("%w: install udev", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "usr/lib/systemd"), 0o755); err != nil {
		return err
	}
	if err := os.Symlink("/usr/bin/udevadm", filepath.Join(dir, "usr/lib/systemd/systemd-udevd")); err != nil {
		return err
	}
	rules := map[string]bool{"50-udev-default.rules": true, "60-input-id.rules": true, "60-persistent-input.rules": true, "60-serial.rules": true}
	if err := t.folder("/usr/lib/udev/rules.d", "/usr/lib/udev/rules.d", func(name string) bool { return rules[name] }); err != nil {
		return err
	}
	if err := t.folder(configs, "/usr/lib/udev/rules.d", func(name string) bool { return strings.HasSuffix(name, ".rules") }); err != nil {
		return err
	}
	for to, text := range map[string]string{"/etc/passwd": passwdFile, "/etc/group": groupFile, "/etc/nsswitch.conf": "passwd: files\ngroup: files\n"} {
		if err := t.write(to, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeDisk makes an image with an ext4 file system of a size such as "64M", holding what is below dir, if any.
func makeDisk(path, dir, size string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	args := []string{"-q", "-F", "-E", "root_owner=0:0"}
	if dir != "" {
		args = append(args, "-d", dir)
	}
	if out, err := exec.Command("mkfs.ext4", append(args, path, size)...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make the disk %s: %w: %s", path, err, out)
	}
	return nil
}
