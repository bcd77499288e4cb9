package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"scanonce/internal/api"
	"scanonce/internal/testenv"
)

// A record that can never become a row is given up in somebody's name.
func TestDiscard(t *testing.T) {
	pg := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db := pg.NewDatabase(t)
	call(t, exitOK, "ledger", "migrate", "--dsn-file", dsnFile(t, pg.OwnerDSN(db)))
	pg.Exec(t, db, "ALTER TABLE scan_ledger ADD CONSTRAINT odd CHECK (quantity > 1)")
	r := startAgentWith(t, fmt.Sprintf("[ledger]\nbackend = \"postgres\"\n[postgres]\ndsn = %q\n", pg.AgentDSN(t, db)))
	with := func(args ...string) []string { return append([]string{"--config", r.config, "--json"}, args...) }
	out, _ := call(t, exitBad, with("simulate", "--scans", "1", "--retransmits", "1", "--rate", "20", "--seed", "3")...)
	winner := objects(t, out)[0]["event_id"].(string)
	discard := func(code int, want string, args ...string) {
		t.Helper()
		if out, _ := call(t, code, append([]string{"--config", r.config, "spool", "discard"}, args...)...); out != want {
			t.Errorf("discard %v: %q, want %q", args, out, want)
		}
	}
	status := func(code int) (api.Counts, string) {
		t.Helper()
		call(t, code, with("status")...)
		c := api.NewClient(r.socket)
		defer c.Close()
		st, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range st.Alarms {
			if a.Code == "quarantine" {
				return st.Counts, a.Hint
			}
		}
		return st.Counts, ""
	}
	if _, hint := status(exitPerson); !strings.Contains(hint, "spool requeue") || !strings.Contains(hint, "spool discard") {
		t.Errorf("the alarm says %q", hint)
	}
	if _, msg := call(t, exitUsage, "--config", r.config, "spool", "discard", winner); !strings.Contains(msg, "write --by NAME") {
		t.Errorf("nobody: %s", msg)
	}
	if _, msg := call(t, exitBad, "--config", r.config, "spool", "discard", winner, "--by", "<b>"); !strings.Contains(msg, "letters, digits, blanks, dots and hyphens") {
		t.Errorf("no name: %s", msg)
	}
	none := "nothing discarded: no such record is quarantined or held\n"
	discard(exitBad, none, "019aceee-0000-7000-8000-000000000001", "--by", "J. Doe")
	discard(exitOK, "2 records discarded\n", winner, "--by", "Zoë D-K.")
	discard(exitBad, none, winner, "--by", "Zoë D-K.")
	c, hint := status(exitOK)
	if c.Captured != 2 || c.Discarded != 2 || c.Quarantined != 0 || hint != "" {
		t.Errorf("%+v, %q", c, hint)
	}
	if code := r.stop(t, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM: exit code %d\n%s", code, r.log)
	}
	if rows := pg.Number(t, db, "SELECT count(*) FROM scan_audit_line WHERE outcome = 'discarded' AND reason = 'by Zoë D-K.' AND key IS NULL AND ref IS NULL"); rows != 2 {
		t.Errorf("%d lines of the audit", rows)
	}
	if out, _ := call(t, exitOK, with("audit", "verify", "--ledger")...); !strings.Contains(out, `"ok":true`) || !strings.Contains(out, `"declared_gaps":0`) {
		t.Errorf("audit verify: %s", out)
	}
}
