package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// machine is a virtual machine with its files.
type machine struct {
	kernel, initrd string // files
	root           string // image of the root disk; what the guest writes to it is forgotten
	state          string // image of the disk that outlives a boot; "" for none
	box            string // image of a disk for the tests' own notes; "" for none
	console        string // file for what the kernel says
}

// outcome is how a boot ended.
type outcome struct {
	code   int // of the guest's work
	exited bool
	cut    bool // the power was cut, as the guest had asked for
	passed []string
	failed []string
	ready  string // seconds from the kernel's start to the work's
}

func (o *outcome) ok() bool {
	return len(o.failed) == 0 && len(o.passed) > 0 && o.exited && o.code == 0
}

var (
	resultLine = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) `)
	exitLine   = regexp.MustCompile(`^@@EXIT (\d+)`)
	readyLine  = regexp.MustCompile(`^@@READY after (\S+) s`)
	cutLine    = regexp.MustCompile(`^@@CUT after (\d+) ms`)
)

// hear takes one line of the guest's. A test that is skipped has not shown anything: it counts as failed.
func (o *outcome) hear(line string) (cut time.Duration) {
	if m := resultLine.FindStringSubmatch(line); m != nil {
		if m[1] == "PASS" {
			o.passed = append(o.passed, m[2])
		} else {
			o.failed = append(o.failed, m[2])
		}
	}
	if m := exitLine.FindStringSubmatch(line); m != nil {
		o.exited = true
		o.code, _ = strconv.Atoi(m[1])
	}
	if m := readyLine.FindStringSubmatch(line); m != nil {
		o.ready = m[1]
	}
	if m := cutLine.FindStringSubmatch(line); m != nil {
		ms, _ := strconv.Atoi(m[1])
		return time.Duration(ms) * time.Millisecond
	}
	return 0
}

// The serial ports of the guest: the kernel's console; QEMU's own monitor, as a second client of its socket; the
// far end of the USB serial adapter; the results. The fifth, on the PCI bus, is the far end of a second adapter.
func (m machine) command(ctx context.Context, sockets string) *exec.Cmd {
	args := []string{
		"-machine", "q35,accel=tcg,i8042=off", "-cpu", "max", "-m", "1024", "-smp", "2",
		"-nodefaults", "-no-reboot", "-display", "none", "-rtc", "base=utc",
		"-kernel", m.kernel, "-initrd", m.initrd,
		"-append", "console=ttyS0 loglevel=5 panic=-1 oops=panic 8250.nr_uarts=6",
		"-chardev", "file,id=console,path=" + m.console, "-serial", "chardev:console",
	}
	looped := func(id string) string {
		path := filepath.Join(sockets, id)
		args = append(args, "-chardev", "socket,id="+id+",server=on,wait=off,path="+path)
		args = append(args, "-chardev", "socket,id="+id+"-far,path="+path)
		return "chardev:" + id + "-far"
	}
	monitor := looped("monitor")
	args = append(args, "-mon", "chardev=monitor,mode=control", "-serial", monitor)
	args = append(args, "-serial", looped("line0"))
	args = append(args, "-chardev", "stdio,id=results,signal=off", "-serial", "chardev:results")
	looped("line1")
	args = append(args, "-device", "pci-serial,chardev=line1-far",
		"-device", "qemu-xhci,id=xhci,p2=8,p3=8",
		"-drive", "if=none,id=root,format=raw,snapshot=on,file="+m.root, "-device", "virtio-blk-pci,drive=root")
	for _, d := range []struct{ id, file string }{{"state", m.state}, {"box", m.box}} {
		if d.file != "" {
			args = append(args, "-drive", "if=none,id="+d.id+",format=raw,cache=unsafe,file="+d.file, "-device", "virtio-blk-pci,drive="+d.id)
		}
	}
	return exec.CommandContext(ctx, "qemu-system-x86_64", args...)
}

// run boots the machine and copies what its work says to log, until it has powered itself off, its power is cut,
// or nothing was heard for quiet.
func (m machine) run(ctx context.Context, log io.Writer, quiet time.Duration) (o outcome, err error) {
	sockets, err := os.MkdirTemp("", "rig") // short: a socket's path has 107 bytes at most
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(sockets)
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := m.command(ctx, sockets)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return o, err
	}
	if err := cmd.Start(); err != nil {
		return o, fmt.Errorf("cannot start QEMU: %w: install qemu-system-x86", err)
	}
	silence := time.AfterFunc(quiet, func() { stop(fmt.Errorf("cannot go on: nothing was heard of the guest for %v", quiet)) })
	defer silence.Stop()
	lines := bufio.NewReader(out)
	for {
		line, readErr := lines.ReadString('\n')
		line = strings.TrimRight(line, "\r\n")
		silence.Reset(quiet)
		if line != "" {
			fmt.Fprintln(log, line)
		}
		if after := o.hear(line); after > 0 {
			o.cut = true
			time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
		if readErr != nil {
			break
		}
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return o, context.Cause(ctx)
	case o.cut && !o.exited:
		return o, nil
	case err != nil:
		return o, fmt.Errorf("cannot run QEMU: %w: %s", err, said.String())
	case !o.exited:
		return o, errors.New("cannot tell the verdict: the guest ended without one")
	}
	return o, nil
}

// complaint is what a kernel says of its own mistakes; the rig's results are worth nothing then.
var complaint = regexp.MustCompile(`BUG:|Oops|general protection|Kernel panic|KASAN|refcount_t:|blocked for more than|rcu: INFO|WARNING: CPU`)

// complaints returns the lines of a kernel's console that tell of a mistake of it.
func complaints(console string) (out []string, err error) {
	f, err := os.Open(console)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if complaint.MatchString(s.Text()) {
			out = append(out, s.Text())
		}
	}
	return out, s.Err()
}
