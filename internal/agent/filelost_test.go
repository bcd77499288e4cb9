package agent

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"scanonce/sync/forward"
)

// A file of claims or cases that is gone at a start is an alarm, which the new file does not end, nor another start, but
// only a person.
func TestLostFileIsAnAlarm(t *testing.T) {
	for _, x := range []struct {
		lane       forward.Lane
		code, file string
	}{{forward.Claims, alarmClaimsLost, "claims.db"}, {forward.Cases, alarmCasesLost, "pa.db"}} {
		synctest.Test(t, func(t *testing.T) {
			a := bubbleAgent(t)
			cfg := a.cfg
			path := filepath.Join(cfg.Agent.StateDir, x.file)
			a.close(true)
			start := func(name string, lost bool) {
				t.Helper()
				a, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: a.os})
				if err != nil {
					t.Fatal(err)
				}
				defer a.close(true)
				a.courier.Turn(t.Context(), x.lane)
				if cause, _ := a.courier.Down(x.lane); cause != nil {
					t.Errorf("%s: %v", name, cause)
				}
				switch alarms := a.alarms.list(); {
				case !lost && len(alarms) != 0:
					t.Errorf("%s: %+v", name, alarms)
				case lost && (len(alarms) != 1 || alarms[0].Code != x.code || !strings.Contains(alarms[0].Detail, path) || !strings.Contains(alarms[0].Hint, path+madeSuffix)):
					t.Errorf("%s: %+v", name, alarms)
				}
			}
			do := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			start("the first start", false)
			start("another", false)
			do(os.Rename(path, path+".copy"))
			start("the file is gone", true)
			start("a new one is there", true)
			do(errors.Join(os.Rename(path+".copy", path), os.Remove(path+madeSuffix)))
			start("put back", false)
			do(os.Remove(path))
			start("gone again", true)
			do(os.Remove(path + madeSuffix))
			start("given up", false)
			do(os.Remove(path))
			start("gone a third time", true)

			// A link to a disk that is not there is no loss: the operations wait for it.
			do(errors.Join(os.Remove(path+madeSuffix), os.Rename(path, path+".there"), os.Symlink(path+".there", path)))
			start("a link", false)
			do(os.Rename(path+".there", path+".away"))
			b, err := core(cfg, Options{Log: slog.New(slog.DiscardHandler)}, Edges{OS: a.os})
			do(err)
			b.courier.Turn(t.Context(), x.lane)
			if alarms := b.alarms.list(); len(alarms) != 1 || alarms[0].Code == x.code {
				t.Errorf("a link that leads nowhere: %+v", alarms)
			}
			b.close(true)
			do(os.Rename(path+".away", path+".there"))
			start("and somewhere again", false)
		})
	}
}
