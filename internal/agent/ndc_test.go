package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/capture"
	"scanonce/internal/config"
	"scanonce/internal/events"
	"scanonce/window"
)

// movedOS is a machine whose time a test moves.
type movedOS struct{ passed time.Duration }

var movedFrom = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func (o *movedOS) Wall() time.Time                   { return movedFrom.Add(o.passed) }
func (o *movedOS) WallSynced() (bool, time.Duration) { return true, time.Millisecond }
func (o *movedOS) Boot() time.Duration               { return time.Hour + o.passed }
func (o *movedOS) BootID() string                    { return "one" }

// ndcPipeline is a pipeline with what its NDC directory needs, and the alarms that were told.
func ndcPipeline() (p *pipeline, now *movedOS, told *[]alarmBody) {
	now, told = new(movedOS), new([]alarmBody)
	clock := window.NewClock(now, window.Mark{}, window.ClockOptions{})
	a := &agent{clock: clock, alarms: newAlarms(clock, func(entries ...events.Entry) {
		for _, e := range entries {
			*told = append(*told, e.Body.(alarmBody))
		}
	})}
	return &pipeline{a: a}, now, told
}

func (p *pipeline) alarmCodes() string {
	var codes []string
	for _, al := range p.a.alarms.list() {
		codes = append(codes, al.Code)
	}
	return strings.Join(codes, " ")
}

func listFile(t *testing.T, text string, changed time.Time) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ndc.txt")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, changed, changed); err != nil {
		t.Fatal(err)
	}
	return name
}

// A directory grows old while the agent runs, and is told of once; a newer one ends the alarm.
func TestDirectoryGrowsOld(t *testing.T) {
	p, now, told := ndcPipeline()
	take := func(d ndcDirectory) {
		t.Helper()
		if d.problem != nil {
			t.Fatal(d.problem)
		}
		p.tellNDC(d)
		p.ndc = d
	}
	take(loadNDC(listFile(t, "0093-7214-10\n", movedFrom.Add(-59*24*time.Hour)), p.ndc))
	p.watchNDC()
	if codes := p.alarmCodes(); codes != "" {
		t.Fatalf("59 days old: %s", codes)
	}
	now.passed = 25 * time.Hour
	p.watchNDC()
	p.watchNDC()
	if codes := p.alarmCodes(); codes != "ndc_stale" || len(*told) != 1 || !strings.Contains((*told)[0].Detail, "of 2026-10-01") ||
		!strings.Contains((*told)[0].Hint, "scanonce ndc import ndctext.zip") || !strings.Contains((*told)[0].Hint, "systemctl reload scanonce") {
		t.Fatalf("60 days and an hour: %s, told %+v", codes, *told)
	}
	take(loadNDC(listFile(t, "0093-7214-10\n", movedFrom.Add(-100*24*time.Hour)), p.ndc))
	if al := p.a.alarms.list(); len(al) != 1 || !strings.Contains(al[0].Detail, "of 2026-08-21") {
		t.Fatalf("an older one still: %+v", al)
	}
	take(loadNDC(listFile(t, "0093-7214-10\n", movedFrom), p.ndc))
	if codes := p.alarmCodes(); codes != "" {
		t.Fatalf("a new one: %s", codes)
	}
	now.passed = 100 * 24 * time.Hour
	p.watchNDC()
	take(ndcDirectory{}) // taken out of the configuration
	if codes := p.alarmCodes(); codes != "" {
		t.Fatalf("none: %s", codes)
	}
}

// A reload with a directory that cannot be used keeps the one in use, and says so; taking it out of the
// configuration does not.
func TestReloadKeepsTheDirectoryInUse(t *testing.T) {
	p, _, _ := ndcPipeline()
	p.ndc = loadNDC(listFile(t, "0093-7214-10\n", movedFrom), ndcDirectory{})
	absent := filepath.Join(t.TempDir(), "absent.idx")
	next := loadNDC(absent, p.ndc)
	p.tellNDC(next)
	if st := next.status(); st == nil || st.Packages != 1 || *st.Dated != window.FromTime(movedFrom) {
		t.Errorf("status %+v", st)
	}
	al := p.a.alarms.list()
	if len(al) != 1 || al[0].Code != "ndc_directory" || al[0].Detail != "cannot read ndc.directory "+absent+": no such file or directory" ||
		!strings.Contains(al[0].Hint, "the directory from before stays in use") {
		t.Errorf("alarms %+v", al)
	}
	p.tellNDC(loadNDC(absent, ndcDirectory{}))
	if al := p.a.alarms.list(); len(al) != 1 || !strings.Contains(al[0].Hint, "scans are accepted meanwhile") {
		t.Errorf("without one before: %+v", al)
	}
	none := loadNDC("", p.ndc)
	if p.tellNDC(none); none.list != nil || none.status() != nil || p.alarmCodes() != "" {
		t.Errorf("taken out: %+v, alarms %s", none, p.alarmCodes())
	}
}

func TestReadNDCSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	list, err := capture.ParseDirectory([]string{"0093-7214-10", "0406-0512-01"})
	if err != nil {
		t.Fatal(err)
	}
	index := list.AppendIndex(nil, window.FromTime(movedFrom))
	damaged := append([]byte(nil), index...)
	damaged[30] ^= 1
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][2]string{
		write("damaged", damaged):           {"it is damaged", "make it anew: scanonce ndc import"},
		write("cut", index[:len(index)-3]):  {"it is damaged", "make it anew: scanonce ndc import"},
		write("zeros", make([]byte, 64)):    {"it is damaged", "make it anew: scanonce ndc import"},
		write("empty", nil):                 {"it lists no package", "mend the text list"},
		write("list", []byte("123456789")):  {"line 1", "mend the text list"},
		filepath.Join(dir, "absent"):        {"no such file", "make it: scanonce ndc import"},
		dir:                                 {"a folder", "name an index"},
		pipe:                                {"a device", "name an index"},
		filepath.Join(dir, "list", "below"): {"not a directory", "healthy disk"},
	} {
		d, _, err := ReadNDC(path)
		var exit *ExitError
		if !errors.As(err, &exit) || d != nil || exit.Code != ExitUsage || !strings.HasPrefix(exit.Detail, "cannot ") || !strings.Contains(exit.Detail, path) ||
			!strings.Contains(exit.Detail, want[0]) || !strings.Contains(exit.Hint, want[1]) {
			t.Errorf("%s: %+v", path, err)
		}
	}
	d, dated, err := ReadNDC(write("index", index))
	if err != nil || d.Len() != 2 || dated != window.FromTime(movedFrom) {
		t.Errorf("%v, dated %v, %v", d, dated, err)
	}
}

// check-config says of a directory that cannot be used what the running agent would raise an alarm about.
func TestCheckReadsTheDirectory(t *testing.T) {
	cfg := config.Default()
	for path, ok := range map[string]bool{"": true, listFile(t, "0093-7214-10\n", movedFrom): true, os.DevNull: false, t.TempDir(): false, filepath.Join(t.TempDir(), "absent"): false} {
		cfg.NDC.Directory = path
		if err := Check(cfg); (err == nil) != ok {
			t.Errorf("%q: %v", path, err)
		}
	}
}
