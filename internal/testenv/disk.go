package testenv

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Disk is a small file system of its own, in a file: it can be filled, and it can fail. It needs root.
type Disk struct {
	dir, image string
	mounted    bool
}

// NewDisk mounts one of size bytes at dir, an existing folder. It ends with the test.
func NewDisk(t testing.TB, dir string, size int64) *Disk {
	t.Helper()
	f, err := os.CreateTemp("", "scanonce-disk")
	if err != nil {
		t.Fatal(err)
	}
	d := &Disk{dir: dir, image: f.Name()}
	err = errors.Join(f.Truncate(size), f.Close())
	t.Cleanup(func() {
		if d.mounted {
			syscall.Unmount(dir, syscall.MNT_DETACH)
		}
		os.Remove(d.image)
	})
	if err != nil {
		t.Fatal(err)
	}
	d.run(t, "mkfs.ext4", "-q", "-F", "-m", "0", d.image)
	d.mount(t)
	return d
}

func (d *Disk) run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func (d *Disk) mount(t testing.TB) {
	t.Helper()
	d.run(t, "mount", "-o", "loop,errors=remount-ro", d.image, d.dir)
	d.mounted = true
}

func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// Fill takes all room but leave bytes, as another program does that writes without end.
func (d *Disk) Fill(t testing.TB, leave int64) {
	t.Helper()
	var fs syscall.Statfs_t
	if err := syscall.Statfs(d.dir, &fs); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := make([]byte, 64<<10)
	for n := int64(fs.Bavail)*fs.Bsize - leave; n > 0; n -= int64(len(chunk)) {
		_, err := f.Write(chunk[:min(n, int64(len(chunk)))])
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// What is promised to the file is taken from the others only when it is written.
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// Free gives the room back.
func (d *Disk) Free(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.ballast()); err != nil {
		t.Fatal(err)
	}
}

// Fail makes the disk read-only from one moment to the next, as the kernel does with one that has errors.
func (d *Disk) Fail(t testing.TB) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(mounts) {
		if f := strings.Fields(string(line)); f[1] == d.dir {
			if err := os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(f[0]), "trigger_fs_error"), []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("nothing is mounted at %s", d.dir)
}

// Repair checks the file system and mounts it again. No program may have a file of it open.
func (d *Disk) Repair(t testing.TB) {
	t.Helper()
	d.run(t, "umount", d.dir)
	d.mounted = false
	// In a new file: the kernel may still know the old one, which it has given up, for a mount namespace of others.
	mended := d.image + ".mended"
	d.run(t, "cp", "--sparse=always", d.image, mended)
	if err := os.Rename(mended, d.image); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("e2fsck", "-fy", d.image).Run(); err != nil {
		var ended *exec.ExitError
		if !errors.As(err, &ended) || ended.ExitCode() > 1 { // 1: it has mended something
			t.Fatalf("e2fsck: %v", err)
		}
	}
	d.mount(t)
}
