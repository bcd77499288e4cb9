package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/api"
	"scanonce/internal/testenv"
	"scanonce/sync/ledger"
)

func dsnFile(t *testing.T, dsn string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "owner.dsn")
	if err := os.WriteFile(path, []byte(dsn+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMigrate(t *testing.T) {
	pg := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true, Password: true})
	db := pg.NewDatabase(t)
	as := func(login, password, database string) string {
		return dsnFile(t, strings.Replace(pg.DSN(login, database), login+"@", login+":"+password+"@", 1))
	}
	const password, wrong = "correct%20horse", "hunter2"
	owner := as(testenv.PostgresOwner, password, db)
	migrate := func(code int, file string, args ...string) (out, msg string) {
		t.Helper()
		out, msg = call(t, code, append([]string{"ledger", "migrate", "--dsn-file", file}, args...)...)
		for _, secret := range []string{wrong, "correct horse", password} {
			if strings.Contains(out+msg, secret) {
				t.Errorf("the password is printed: %s%s", out, msg)
			}
		}
		return out, msg
	}
	refused := func(code int, file, detail, hint string) {
		t.Helper()
		out, msg := migrate(code, file)
		lines := strings.Split(msg, "\n")
		if out != "" || len(lines) != 3 || !strings.HasPrefix(lines[0], "scanonce: cannot migrate the ledger: ") || !strings.Contains(lines[0], detail) ||
			!strings.HasPrefix(lines[1], "hint: ") || !strings.Contains(lines[1], hint) {
			t.Errorf("it says %q, want %q and the hint %q", msg, detail, hint)
		}
	}

	file := as(testenv.PostgresOwner, wrong, db)
	refused(exitUnreachable, file, "28P01", "write the owner's password into the DSN in "+file)
	refused(exitUnreachable, as(testenv.PostgresOwner, password, "nowhere"), "3D000", "create the database")
	refused(exitUnreachable, as(testenv.PostgresLogin, password, db), "42501", "migrate with the DSN of the database's owner")

	newest := fmt.Sprint(ledger.SchemaVersion)
	if out, _ := migrate(exitOK, owner, "--json", "--to", "1"); out != `{"from":0,"to":1}`+"\n" {
		t.Errorf("the first time: %s", out)
	}
	migrate(exitOK, owner)
	if out, _ := migrate(exitOK, owner, "--json"); out != `{"from":`+newest+`,"to":`+newest+"}\n" {
		t.Errorf("once more: %s", out)
	}
	if out, _ := migrate(exitOK, owner); out != "the ledger's schema has version "+newest+" already\n" {
		t.Errorf("for people: %s", out)
	}
	second := as(testenv.PostgresOwner, password, pg.NewDatabase(t))
	if out, _ := migrate(exitOK, second); out != "the ledger's schema has version "+newest+", it had 0\n" {
		t.Errorf("for people: %s", out)
	}

	pg.Exec(t, db, "INSERT INTO scan_schema (version) VALUES (99)")
	refused(exitBad, owner, "version 99", "install a newer scanonce")
	pg.Stop(t)
	refused(exitUnreachable, owner, "connection refused", "see that PostgreSQL runs at the host and port of the DSN in "+owner)
}

// A record that the ledger refuses for good waits for a person, who mends the cause and requeues it.
func TestRequeue(t *testing.T) {
	pg := testenv.NewPostgres(t, testenv.PostgresOptions{NoFsync: true})
	db := pg.NewDatabase(t)
	call(t, exitOK, "ledger", "migrate", "--dsn-file", dsnFile(t, pg.OwnerDSN(db)))
	pg.Exec(t, db, "ALTER TABLE scan_ledger ADD CONSTRAINT odd CHECK (quantity > 1)")
	r := startAgentWith(t, fmt.Sprintf("[ledger]\nbackend = \"postgres\"\n[postgres]\ndsn = %q\n", pg.AgentDSN(t, db)))
	with := func(args ...string) []string { return append([]string{"--config", r.config, "--json"}, args...) }
	requeue := func(code int, want string, args ...string) {
		t.Helper()
		if out, _ := call(t, code, with(append([]string{"spool", "requeue"}, args...)...)...); out != want+"\n" {
			t.Errorf("requeue %v: %s, want %s", args, out, want)
		}
	}
	verify := func(want string) {
		t.Helper()
		out, _ := call(t, exitOK, with("audit", "verify", "--ledger")...)
		if out = regexp.MustCompile(`"records":[1-9]\d*,`).ReplaceAllString(out, ""); out != want+"\n" { // as many as there were batches
			t.Errorf("audit verify: %s, want %s", out, want)
		}
	}

	out, _ := call(t, exitBad, with("simulate", "--scans", "1", "--retransmits", "1", "--rate", "20", "--seed", "3")...)
	lines := objects(t, out)
	if sum := lines[len(lines)-1]; sum["quarantined"] != 2.0 || sum["ledger_rows"] != 0.0 {
		t.Fatalf("summary %v", sum)
	}
	winner := lines[0]["event_id"].(string)
	out, _ = call(t, exitOK, with("spool", "ls")...)
	if n := strings.Count(out, `"state":"quarantined"`); n != 2 || !strings.Contains(out, winner) {
		t.Fatalf("spool ls: %s", out)
	}
	alarm := func() bool {
		t.Helper()
		c := api.NewClient(r.socket)
		defer c.Close()
		st, err := c.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range st.Alarms {
			if a.Code == "quarantine" {
				return true
			}
		}
		return false
	}
	if call(t, exitPerson, with("status")...); !alarm() {
		t.Error("no alarm tells of the quarantine")
	}
	requeue(exitBad, `{"requeued":0}`, "019aceee-0000-7000-8000-000000000001")

	// Before the cause is mended it comes back, and the alarm with it.
	came := r.follow(t)
	requeue(exitOK, `{"requeued":2}`, "--all")
	came(func(kind string, e map[string]any) bool {
		return kind == "alarm" && e["code"] == "quarantine" && e["active"] == false
	})
	came(func(kind string, e map[string]any) bool {
		return kind == "alarm" && e["code"] == "quarantine" && e["active"] == true
	})
	verify(`{"ok":true,"lines":5,"declared_gaps":0,"first_bad":null,"ledger_only":[],"audit_only":[]}`)

	// The winner takes its duplicate along.
	pg.Exec(t, db, "ALTER TABLE scan_ledger DROP CONSTRAINT odd")
	requeue(exitOK, `{"requeued":2}`, winner)
	came(func(kind string, e map[string]any) bool { return kind == "committed" && e["event_id"] == winner })
	if call(t, exitOK, with("status")...); alarm() {
		t.Error("the alarm outlives the quarantine")
	}
	requeue(exitOK, `{"requeued":0}`, "--all")
	if out, _ := call(t, exitBad, "--config", r.config, "spool", "requeue", winner); out != "nothing requeued: no such record is quarantined\n" {
		t.Errorf("for people: %s", out)
	}
	if code := r.stop(t, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM: exit code %d\n%s", code, r.log)
	}
	verify(`{"ok":true,"lines":7,"declared_gaps":0,"first_bad":null,"ledger_only":[],"audit_only":[]}`)
	if _, msg := call(t, exitUnreachable, with("spool", "requeue", "--all")...); !strings.Contains(msg, "start the agent with scanonce run") {
		t.Errorf("without an agent: %s", msg)
	}
}

// follow reads the agent's events from now on. What it returns waits for the next one that is wanted.
func (r *running) follow(t *testing.T) func(wanted func(kind string, e map[string]any) bool) {
	t.Helper()
	c := api.NewClient(r.socket)
	from, err := c.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan api.Event, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Follow(ctx, from, nil, func(e api.Event) error {
			select {
			case events <- e:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-ended; c.Close() })
	return func(wanted func(string, map[string]any) bool) {
		t.Helper()
		limit := time.NewTimer(agentTime)
		defer limit.Stop()
		for {
			select {
			case e := <-events:
				var data map[string]any
				if err := json.Unmarshal(e.Data, &data); err != nil {
					t.Fatal(err)
				}
				if wanted(e.Kind, data) {
					return
				}
			case <-limit.C:
				t.Fatalf("the event does not come\n%s", r.log)
			}
		}
	}
}
