package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"scanonce/sync/claimstate"
	"scanonce/sync/forward"
	"scanonce/sync/pacase"
)

// A file of claims or cases that cannot be used is an alarm, whatever the cause, until it can.
func TestUnusableFileIsAnAlarm(t *testing.T) {
	for _, x := range []struct {
		lane forward.Lane
		code string
		file string
		hold func(a *agent, path string) (interface{ Close() error }, error)
	}{
		{forward.Claims, alarmClaimState, "claims.db", func(a *agent, path string) (interface{ Close() error }, error) {
			return claimstate.OpenEmbedded(path, livesOf(a.cfg), nil)
		}},
		{forward.Cases, alarmCases, "pa.db", func(_ *agent, path string) (interface{ Close() error }, error) {
			return pacase.OpenEmbedded(path, nil)
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := bubbleAgent(t)
			defer a.close(true)
			path := filepath.Join(a.cfg.Agent.StateDir, x.file)
			turn := func(want string) {
				t.Helper()
				a.courier.Turn(t.Context(), x.lane)
				alarms := a.alarms.list()
				if want == "" {
					if len(alarms) != 0 {
						t.Errorf("%s: alarms %+v", x.file, alarms)
					}
				} else if len(alarms) != 1 || alarms[0].Code != x.code || !strings.Contains(alarms[0].Detail, want) || alarms[0].Hint == "" {
					t.Errorf("%s: alarms %+v, want %q", x.file, alarms, want)
				}
			}
			held, err := x.hold(a, path)
			if err != nil {
				t.Fatal(err)
			}
			turn("another process holds it")
			if err := held.Close(); err != nil {
				t.Fatal(err)
			}
			turn("")
			for _, content := range []string{"hello\n", "", strings.Repeat("not a page ", 1200)} {
				b := bubbleAgent(t)
				if err := os.WriteFile(filepath.Join(b.cfg.Agent.StateDir, x.file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				b.courier.Turn(t.Context(), x.lane)
				if alarms := b.alarms.list(); len(alarms) != 1 || alarms[0].Code != x.code || !strings.Contains(alarms[0].Hint, "from a copy") {
					t.Errorf("%s of %d bytes: alarms %+v", x.file, len(content), alarms)
				}
				b.close(true)
			}
		})
	}
}
