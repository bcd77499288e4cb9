package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a process has used so far, over all of its threads.
type usage struct {
	ticks    int64         // of processor time, 1/100 s each
	cpu      time.Duration // the same, as the scheduler counts it
	switches int64         // times a thread gave up or lost its core: before each it had been woken
}

func (u usage) minus(v usage) usage {
	return usage{u.ticks - v.ticks, u.cpu - v.cpu, u.switches - v.switches}
}

func (u usage) plus(v usage) usage {
	return usage{u.ticks + v.ticks, u.cpu + v.cpu, u.switches + v.switches}
}

func usageOf(pid int) (u usage, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return u, err
	}
	// The second field is the name in brackets; utime and stime are fields 14 and 15, see proc_pid_stat(5).
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(f) < 13 {
		return u, errors.New("cannot read /proc/PID/stat: it is too short")
	}
	for _, v := range f[11:13] {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return u, err
		}
		u.ticks += n
	}
	tasks, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil {
		return u, err
	}
	for _, t := range tasks {
		sched, err := os.ReadFile(filepath.Join(proc, "task", t.Name(), "schedstat"))
		if err != nil {
			return u, err
		}
		var ran int64
		if _, err := fmt.Sscan(string(sched), &ran); err != nil {
			return u, err
		}
		u.cpu += time.Duration(ran)
		status, err := os.ReadFile(filepath.Join(proc, "task", t.Name(), "status"))
		if err != nil {
			return u, err
		}
		for line := range strings.Lines(string(status)) {
			name, v, _ := strings.Cut(line, ":")
			if !strings.HasSuffix(name, "voluntary_ctxt_switches") { // the name of the nonvoluntary ones ends so too
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			if err != nil {
				return u, err
			}
			u.switches += n
		}
	}
	return u, nil
}

// neighbours counts the pseudo terminals that other programs make and remove. The agent watches the folder of
// its scanner's device, as it must, and is woken by each; a real scanner's folder is as good as never touched.
type neighbours struct {
	file *os.File
	n    atomic.Int64
}

func watchNeighbours() (*neighbours, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &neighbours{file: os.NewFile(uintptr(fd), "inotify")}
	if _, err := unix.InotifyAddWatch(fd, "/dev/pts", unix.IN_CREATE|unix.IN_DELETE|unix.IN_ATTRIB); err != nil {
		w.file.Close()
		return nil, err
	}
	go func() {
		var buf [4096]byte
		for {
			n, err := w.file.Read(buf[:])
			if err != nil {
				return
			}
			// struct inotify_event of inotify(7): wd, mask, cookie, len, name.
			for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; b = b[unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])):] {
				w.n.Add(1)
			}
		}
	}()
	return w, nil
}

func (w *neighbours) close() error { return w.file.Close() }

// idleSettle is how long an agent may take to come to rest after a scan: its drain, its events, the timers that
// a scan sets off, and the runtime's own.
const idleSettle = 5 * time.Second

// idle is F8 under way: an agent whose scanner is silent, while the other rows are measured.
type idle struct {
	agent *attended
	done  chan struct{}
	row   row
	err   error
}

func (m *bench) watchIdle(program string, span time.Duration) (*idle, error) {
	a, err := attend(program, filepath.Join(m.dir, "f8-agent"), "", false)
	if err != nil {
		return nil, err
	}
	w := &idle{agent: a, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.row, w.err = m.idleRow(a.cmd.Process.Pid, span)
	}()
	return w, nil
}

// idleRow looks once a second, which the process looked at does not notice, and leaves out the seconds in
// which a neighbour woke it, and those behind them.
func (m *bench) idleRow(pid int, span time.Duration) (row, error) {
	near, err := watchNeighbours()
	if err != nil {
		return row{}, err
	}
	defer near.close()
	<-time.After(idleSettle)
	const step = time.Second
	tick := time.NewTicker(step)
	defer tick.Stop()
	before, err := usageOf(pid)
	if err != nil {
		return row{}, err
	}
	var quiet, all usage
	var took time.Duration
	seen, from, disturbed := near.n.Load(), m.host.Boot(), false
	seconds := int(span / step)
	for range seconds {
		<-tick.C
		now, err := usageOf(pid)
		if err != nil {
			return row{}, err
		}
		at, n := m.host.Boot(), near.n.Load()
		used := now.minus(before)
		all = all.plus(used)
		wasDisturbed := disturbed
		if disturbed = n != seen; !disturbed && !wasDisturbed {
			quiet = quiet.plus(used)
			took += at - from
		}
		before, seen, from = now, n, at
	}
	r := row{id: "F8", what: "idle agent with one scanner: share of a core, wake-ups a second", goal: "<= 0.05 %, <= 1/s", stretch: "0 ticks in 60 s",
		medians: fmt.Sprintf("%d ticks, %s, %d switches in %.0f quiet seconds; %d ticks, %d switches in all %d", quiet.ticks, micros(quiet.cpu), quiet.switches, took.Seconds(), all.ticks, all.switches, seconds)}
	if took < span/6 {
		r.measured, r.verdict = "too many neighbours", informs
		return r, nil
	}
	share := 100 * quiet.cpu.Seconds() / took.Seconds()
	wakes := float64(quiet.switches) / took.Seconds()
	r.measured, r.verdict = fmt.Sprintf("%.4f %%, %.2f/s", share, wakes), pass
	switch {
	case share > 0.05 || wakes > 1:
		r.verdict = miss
	case quiet.ticks == 0 && took >= 50*time.Second:
		r.verdict = beyond
	}
	return r, nil
}

// rows waits for the end of the watch and stops the agent.
func (w *idle) rows() ([]row, error) {
	<-w.done
	return []row{w.row}, errors.Join(w.err, w.agent.close())
}
