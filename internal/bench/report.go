package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// row is one line of the table. A row without a goal informs.
type row struct {
	id, what      string
	goal, stretch string
	measured      string
	medians       string
	verdict       verdict
}

type verdict string

const (
	pass    verdict = "pass"
	beyond  verdict = "pass, stretch too"
	miss    verdict = "miss"
	informs verdict = "-"
)

// atMost judges a figure that should be small.
func atMost(v, goal, stretch float64) verdict {
	switch {
	case v <= stretch:
		return beyond
	case v <= goal:
		return pass
	}
	return miss
}

// atLeast judges a figure that should be large.
func atLeast(v, goal, stretch float64) verdict { return atMost(-v, -goal, -stretch) }

func printTable(w io.Writer, rows []row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "id\twhat\tgoal\tstretch\tmeasured\tmedians\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.id, r.what, r.goal, r.stretch, r.measured, r.medians, r.verdict)
	}
	return t.Flush()
}

// median of v, which it sorts; 0 of none.
func median[T float64 | time.Duration](v []T) T { return quantile(v, 0.5) }

func quantile[T float64 | time.Duration](v []T, q float64) T {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

func micros(d time.Duration) string { return fmt.Sprintf("%.0f µs", float64(d)/1e3) }

// machine describes what the figures were measured on: processor, kernel, Go, and the file system of dir.
func machine(dir string) string {
	var u unix.Utsname
	kernel := "unknown kernel"
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %d cores, %s, %s on %s, %s %s/%s", cpuModel(), runtime.NumCPU(), kernel, fileSystem(dir), dir,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH + " processor"
}

// fileSystem names the type and device of the mount that holds dir, as proc_pid_mountinfo(5) lists them.
func fileSystem(dir string) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "unknown file system"
	}
	if abs, err := filepath.EvalSymlinks(dir); err == nil {
		dir = abs
	}
	best, name := -1, "unknown file system"
	for line := range strings.Lines(string(b)) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 2 {
			continue
		}
		at := f[4]
		if rel, err := filepath.Rel(at, dir); err != nil || rel == ".." || strings.HasPrefix(rel, "../") || len(at) < best {
			continue
		}
		best, name = len(at), g[0]+" ("+g[1]+")"
	}
	return name
}

// busy tells how much of the machine other programs used since it was made: ratios of what waits for the disk
// to what computes suffer from them.
type busy struct{ total, used, own float64 } // seconds of processor time

func newBusy() (busy, error) {
	var b busy
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return b, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, f := range strings.Fields(line)[1:] { // user nice system idle iowait irq softirq steal, see proc_stat(5)
		v, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return b, err
		}
		if i < 8 {
			b.total += v / 100
			if i != 3 && i != 4 {
				b.used += v / 100
			}
		}
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return b, err
		}
		b.own += float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
	}
	return b, nil
}

func (b busy) others() (float64, error) {
	now, err := newBusy()
	if err != nil || now.total == b.total {
		return 0, err
	}
	return max(0, (now.used-b.used)-(now.own-b.own)) / (now.total - b.total), nil
}

// allocated is what a file takes on disk; a sparse file takes less than its length.
func allocated(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("cannot measure %s: %w", path, err)
	}
	return st.Blocks * 512, nil
}
