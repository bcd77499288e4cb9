package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/spool"
	"scanonce/window"
)

// advanced is the machine's clock, put forward.
type advanced struct {
	window.OS
	by time.Duration
}

func (a *advanced) Boot() time.Duration { return a.OS.Boot() + a.by }
func (a *advanced) Wall() time.Time     { return a.OS.Wall().Add(a.by) }

// The alarm of a batch that came a second time is raised once it is listed, however often it could not be kept before.
func TestAlarmOfABatchThatIsKeptLate(t *testing.T) {
	cfg := config.Default()
	cfg.Agent.FacilityUUID, cfg.Agent.StateDir = "F", t.TempDir()
	cfg.Scanners = []config.Scanner{{ID: "SCN-04", ScanType: window.Dispense}}
	host, err := window.Host()
	if err != nil {
		t.Fatal(err)
	}
	clock := &advanced{OS: host}
	var broken error // the disk, for state.db
	a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: clock, Disk: func(_ spool.DiskStep, path string, do func() error) error {
		if broken != nil && strings.HasSuffix(path, "state.db") {
			return broken
		}
		return do()
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.close(false) })
	dump := func() {
		for n := range cfg.Batch.Count {
			clock.by += 20 * time.Millisecond
			data := fmt.Sprintf("]d201003009372141062100B%02d\x1d17271130", n)
			b := a.spool.NewBatch()
			a.pipe.frame(b, device.Frame{Scanner: "SCN-04", Data: device.Payload(data), Length: len(data), At: a.clock.Now()})
			a.pipe.deliver(b.Commit())
		}
		clock.by += time.Minute
	}
	raised := func() bool {
		return slices.ContainsFunc(a.alarms.list(), func(al api.Alarm) bool { return al.Code == alarmBatch })
	}
	dump()
	a.pipe.lapse()
	if raised() {
		t.Fatal("an alarm about the first copy")
	}
	dump()
	broken = errors.New("input/output error")
	a.pipe.lapse()
	a.pipe.lapse()
	if raised() {
		t.Error("an alarm about a batch that is not listed")
	}
	broken = nil
	clock.by += time.Minute
	a.pipe.lapse()
	if !raised() {
		t.Error("no alarm about the second copy")
	}
}
