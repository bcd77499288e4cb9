package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/api"
)

// The documented restore, and an older state.db, leave a trail that verifies: one gap, and it is declared.
func TestAuditBehindARestore(t *testing.T) {
	for _, c := range []struct {
		name    string
		restore func(t *testing.T, r *running, state string)
	}{
		{"a backup", func(t *testing.T, r *running, state string) {
			if err := os.RemoveAll(filepath.Join(state, "spool")); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("tar", "-xf", filepath.Join(r.dir, "b.tar"), "-C", state).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}},
		{"an older state.db", func(t *testing.T, r *running, state string) {
			if out, err := exec.Command("tar", "-xf", filepath.Join(r.dir, "b.tar"), "-C", state, "spool/state.db").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startAgentProcess(t)
			state := filepath.Join(r.dir, "state")
			with := func(args ...string) []string { return append([]string{"--config", r.config, "--json"}, args...) }
			scan := func(seed string) {
				t.Helper()
				call(t, exitOK, with("simulate", "--scans", "6", "--retransmits", "3", "--rate", "40", "--seed", seed)...)
			}
			verify := func(when, gaps string) {
				t.Helper()
				out, _ := call(t, exitOK, with("audit", "verify", "--ledger")...)
				if !strings.Contains(out, `"ok":true`) || !strings.Contains(out, `"declared_gaps":`+gaps+`,`) {
					t.Errorf("%s: %s", when, out)
				}
			}
			scan("1")
			call(t, exitOK, with("spool", "backup", filepath.Join(r.dir, "b.tar"))...)
			scan("2")
			if code := r.stop(t, syscall.SIGTERM); code != exitOK {
				t.Fatalf("exit code %d\n%s", code, r.log)
			}
			verify("before", "0")
			c.restore(t, r, state)
			r.start(t)
			cl := api.NewClient(r.socket)
			told, st := false, api.Status{}
			for end := time.Now().Add(agentTime); !told && time.Now().Before(end); { // who tells it begins when all else is ready
				var err error
				if st, err = cl.Status(t.Context()); err != nil {
					t.Fatal(err)
				}
				for _, a := range st.Alarms {
					told = told || a.Code == "spool_older"
				}
			}
			cl.Close()
			if !told || st.Counts.Unaccounted != 0 {
				t.Errorf("nobody is told: %+v, %+v", st.Alarms, st.Counts)
			}
			scan("3")
			if code := r.stop(t, syscall.SIGTERM); code != exitOK {
				t.Fatalf("exit code %d\n%s", code, r.log)
			}
			verify("behind it", "1")
			r.start(t)
			scan("4")
			if code := r.stop(t, syscall.SIGTERM); code != exitOK {
				t.Fatalf("exit code %d\n%s", code, r.log)
			}
			verify("a run later", "1")
		})
	}
}
