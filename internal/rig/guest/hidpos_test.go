//go:build usbrig

package guest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/device"
	"scanonce/internal/testenv"
)

// hidScanner supervises a HID scanner in this process; what reads the device is the product's own child process.
func hidScanner(t *testing.T, bus *device.Bus, cfg device.HIDConfig) *scanner {
	t.Helper()
	cfg.ID = "SCN-04"
	cfg.Worker = workerCommand
	clock := hostClock(t)
	return supervise(t, func(sink device.Sink, onState device.StateFunc) (task, error) {
		return device.NewHID(cfg, bus, clock, sink, onState)
	})
}

// A thousand scans of each make's scanners, of one, two, and more reports: none is lost, none merged, none split, and
// each is as it was sent. They come without a pause in bursts that the library's own queue of 30 reports can hold:
// what a scanner sends while nobody reads for longer is lost without a word, which no scanner's user can bring about.
func TestHIDPosThousand(t *testing.T) {
	bus := runBus(t)
	for i, v := range posVendors() {
		t.Run(v.name, func(t *testing.T) {
			g := newPos(t, i, v)
			g.plug()
			s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive, Gap: 10 * time.Second})
			s.wait(device.Reading)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 0))
			const scans, burst = 1000, 24
			var due []string
			reports, queued := 0, 0
			hear := func() {
				for _, want := range due {
					s.data(want)
				}
				due, queued = nil, 0
			}
			for n := range scans {
				data := fmt.Sprintf("%d:", n)
				for want := r.IntN(150) * r.IntN(2); len(data) < want; {
					data += string(byte('A' + r.IntN(26)))
				}
				if len("]d2"+data)%v.size == 0 && v.name == "microscan" {
					data += "+" // of a full last report nobody can tell that it is the last
				}
				all := v.reports("]d2", data)
				if queued+len(all) > burst {
					hear()
				}
				for _, p := range all {
					g.report(p)
				}
				reports, queued = reports+len(all), queued+len(all)
				due = append(due, "]d2"+data)
			}
			hear()
			s.stop()
			s.nothing()
			if st := s.task.Stats(); st.Frames != scans || st.Dropped != 0 {
				t.Errorf("%+v", st)
			}
			t.Logf("%d scans in %d reports", scans, reports)
		})
	}
}

// Unplugged within a scan of several reports, that scan alone is void; plugged in again at once or later, the
// scanner is heard in time, and what it sends first is whole. The rights to its node are those of the rules.
func TestHIDPosUnplugged(t *testing.T) {
	bus := runBus(t)
	v := posVendors()[0]
	g := newPos(t, 0, v)
	g.plug()
	s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive, Gap: 10 * time.Second})
	s.wait(device.Reading)
	pauses := []time.Duration{0, 50 * time.Millisecond, 50 * time.Millisecond, 10 * time.Second}
	for i, pause := range pauses {
		g.scan(v, "]d2", fmt.Sprintf("BEFORE%d", i))
		s.data(fmt.Sprintf("]d2BEFORE%d", i))
		half(g, v)
		g.unplug()
		<-time.After(pause)
		w := testenv.NewWatch(t)
		g.plug()
		eventually(t, "the host has the device", g.attached)
		heardAgain(t, s, w, fmt.Sprintf("unplugged for %v", pause))
		after := fmt.Sprintf("AFTER%d%s", i, strings.Repeat("A", 100))
		g.scan(v, "]d2", after)
		s.void(v.size + len("]d2"))
		s.data("]d2" + after)
	}
	s.stop()
	s.nothing()
	if st := s.task.Stats(); st.Voided[device.VoidUnplugged] == 0 || st.Reopens != uint64(len(pauses)) {
		t.Errorf("%+v", st)
	}
}

// half sends the first one of a scan's two reports, and leaves it the time to be read.
func half(g *gadget, v posVendor) {
	g.t.Helper()
	g.report(v.reports("]d2", strings.Repeat("H", 90))[0])
	g.fetched()
	<-time.After(200 * time.Millisecond)
}

// heardAgain waits until a scanner is read and holds that to the promise. To start the process that reads it takes
// the emulated machine far longer than any other one: that is measured beside it.
func heardAgain(t testing.TB, s *scanner, w *testenv.Watch, what string) {
	t.Helper()
	s.wait(device.Reading)
	took := w.Stop()
	began := time.Now()
	workerCommand().Run() // nobody tells it what to do, so that it ends at once
	start := time.Since(began)
	t.Logf("%s: heard again after %v; a process takes %v to start", what, took, start.Round(time.Millisecond))
	w.Within(t, what+": to be heard again", resume+3*start)
}

// Plugged in and unplugged again and again, who reads it holds as many descriptors, threads and processes as before, and
// hardly more memory.
func TestWorkerPluggedOften(t *testing.T) {
	bus := runBus(t)
	v := posVendors()[0]
	g := newPos(t, 0, v)
	s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive})
	cycle := func(i int) {
		g.plug()
		s.wait(device.Reading)
		g.scan(v, "]d2", fmt.Sprintf("C%d", i))
		s.data(fmt.Sprintf("]d2C%d", i))
		g.unplug()
		s.wait(device.Absent)
		eventually(t, "the process is gone", func() bool { return len(family(t, os.Getpid())) == 1 })
	}
	const warm, cycles = 10, 40 // the agent's own test has more
	for i := range warm {
		cycle(i)
	}
	runtime.GC()
	before := usageOf(t, os.Getpid())
	for i := range cycles {
		cycle(warm + i)
	}
	runtime.GC()
	after := usageOf(t, os.Getpid())
	t.Logf("after %d cycles %+v, after %d more %+v", warm, before, cycles, after)
	if after.files > before.files || after.threads > before.threads+4 || after.resident > before.resident+16<<10 {
		t.Errorf("after %d cycles it holds %+v, before %+v", cycles, after, before)
	}
	s.stop()
	s.nothing()
}

// Unplugged at every moment of its opening, the scanner is heard the next time, and no process stays behind.
func TestHIDPosUnpluggedAtOnce(t *testing.T) {
	bus := runBus(t)
	v := posVendors()[0]
	g := newPos(t, 0, v)
	s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive})
	for i := range 30 {
		g.plug()
		eventually(t, "the host has the device", g.attached)
		<-time.After(time.Duration(i) * 10 * time.Millisecond)
		g.unplug()
		eventually(t, "the host has lost the device", func() bool { return !g.attached() })
	}
	g.plug()
	eventually(t, "the host has the device", g.attached)
	for len(s.states) > 0 {
		<-s.states
	}
	eventually(t, "the scanner is heard", func() bool { return s.task.Stats().State == device.Reading })
	g.scan(v, "]d2", "HEARD")
	s.data("]d2HEARD")
	s.stop()
	s.nothing()
	eventually(t, "no process stays behind", func() bool { return len(family(t, os.Getpid())) == 1 })
}

// A process that is killed or stands still within a scan voids that scan alone, and the scanner is heard again.
func TestHIDPosWorkerHarmed(t *testing.T) {
	bus := runBus(t)
	v := posVendors()[0]
	g := newPos(t, 0, v)
	g.plug()
	s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive, Gap: 2 * time.Second})
	s.wait(device.Reading)
	for i := range 3 {
		g.scan(v, "]d2", fmt.Sprintf("BEFORE%d", i))
		s.data(fmt.Sprintf("]d2BEFORE%d", i))
		half(g, v)
		w := testenv.NewWatch(t)
		if err := syscall.Kill(worker(t, os.Getpid()), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		heardAgain(t, s, w, "its process was killed")
		g.scan(v, "]d2", fmt.Sprintf("AFTER%d", i))
		s.void(v.size + len("]d2"))
		s.data(fmt.Sprintf("]d2AFTER%d", i))
	}
	standing := worker(t, os.Getpid())
	if err := syscall.Kill(standing, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.scan(v, "]d2", "LATE")
	if err := syscall.Kill(standing, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.data("]d2LATE")
	if err := syscall.Kill(standing, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.stop() // in time, whatever the process does
	eventually(t, "no process stays behind", func() bool { return len(family(t, os.Getpid())) == 1 })
}

// family are a process and those below it.
func family(t testing.TB, pid int) (all []int) {
	t.Helper()
	all = []int{pid}
	children := map[int][]int{}
	for _, stat := range glob("/proc/[0-9]*/stat") {
		s := text(stat)
		if i := strings.LastIndexByte(s, ')'); i >= 0 {
			f := strings.Fields(s[i+1:])
			parent, _ := strconv.Atoi(f[1])
			child, _ := strconv.Atoi(strings.Split(stat, "/")[2])
			children[parent] = append(children[parent], child)
		}
	}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// worker is the only child process of another one.
func worker(t *testing.T, parent int) (pid int) {
	t.Helper()
	eventually(t, "there is one process that reads a device", func() bool {
		all := family(t, parent)
		pid = all[len(all)-1]
		return len(all) == 2
	})
	return pid
}

// workerCommand makes the process that reads a device.
func workerCommand() *exec.Cmd {
	cmd := exec.Command(workerProgram(), "hidworker")
	cmd.Env = []string{"ASAN_OPTIONS=detect_leaks=0:log_path=" + asanLog}
	return cmd
}

// Read alone, a scanner loses the kernel's driver. Who stops gives it back; for who was killed, the helper that the
// unit runs behind the agent's end does. On a scanner that is being read that changes nothing.
func TestHIDPosRebind(t *testing.T) {
	v := posVendors()[0]
	g := newPos(t, 0, v)
	g.plug()
	g.node("*/hidraw/*")
	h := newHome(t, posTable("SCN-04", v.id, ""))
	bus := runBus(t)
	s := hidScanner(t, bus, device.HIDConfig{Device: v.selector(), Mode: device.Exclusive})
	s.wait(device.Reading)
	rebind := func() {
		t.Helper()
		if r := h.Call(t, "rebind"); r.Code != 0 {
			t.Errorf("rebind: code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	if got := g.driver(); got != "usbfs" {
		t.Errorf("the driver of a scanner that is read is %q", got)
	}
	rebind()
	g.scan(v, "]d2", "STILL")
	s.data("]d2STILL")
	if err := syscall.Kill(worker(t, os.Getpid()), syscall.SIGSTOP); err != nil { // it can give nothing back
		t.Fatal(err)
	}
	s.stop()
	eventually(t, "the scanner is given back by who stops", func() bool { return g.driver() == "usbhid" })
	g.node("*/hidraw/*")

	write(t, "/sys/bus/usb/drivers/usbhid/unbind", g.bus()+":1.0") // as who is killed leaves it
	if got := g.driver(); got != "" {
		t.Fatalf("taken away, the driver is %q", got)
	}
	rebind()
	if got := g.driver(); got != "usbhid" {
		t.Errorf("given back, the driver is %q", got)
	}
	g.node("*/hidraw/*")
	rebind() // again: nothing is left to do
}
