package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scanonce/internal/api"
	"scanonce/internal/config"

	"scanonce/spool"
)

// damageAlarm runs the keeper for a moment and returns what it says of the spool.
func (c *counter) damageAlarm() *api.Alarm {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	k := newKeeper(c.a)
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	<-k.Ready()
	cancel() // what is known is told all the same
	if err := <-done; err != nil {
		c.t.Error(err)
	}
	for _, al := range c.a.alarms.list() {
		if al.Code == alarmSpoolDamage {
			return &al
		}
	}
	return nil
}

func (c *counter) in(name string) string { return filepath.Join(c.cfg.Agent.StateDir, name) }

// exit starts the agent, which refuses.
func (c *counter) exit() *ExitError {
	c.t.Helper()
	folder, err := build(c.cfg, Options{Log: c.a.log})
	var exit *ExitError
	if !errors.As(err, &exit) {
		if err == nil {
			folder.close(false)
		}
		c.t.Fatalf("it starts: %v", err)
	}
	return exit
}

// Without agent.json the agent is the one whose spool stands there, and goes on.
func TestAgentIDIsTakenFromTheSpool(t *testing.T) {
	c := newCounter(t, func(cfg *config.Config) { cfg.Agent.AgentID = "" })
	if c.damageAlarm() != nil {
		t.Error("an alarm at the very first start")
	}
	id := c.a.id
	c.kill()
	if err := os.Remove(c.in("agent.json")); err != nil {
		t.Fatal(err)
	}
	c.start()
	b, err := os.ReadFile(c.in("agent.json"))
	if c.a.id != id || err != nil || !strings.Contains(string(b), id) {
		t.Errorf("agent %s is %s now, agent.json has %s, %v", id, c.a.id, b, err)
	}
}

// Where another id is given, nothing is changed, and the hint names the right one.
func TestAgentIDOfAnother(t *testing.T) {
	c := newCounter(t, func(cfg *config.Config) { cfg.Agent.AgentID = "" })
	id := c.a.id
	c.kill()
	for _, content := range []string{`{"agent_id":"agent-other"}`, "{"} {
		if err := os.WriteFile(c.in("agent.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if e := c.exit(); e.Kind != "agent_id" || e.Code != ExitState || !strings.Contains(e.Hint, id) {
			t.Errorf("%s: %+v", content, e)
		}
		if b, err := os.ReadFile(c.in("agent.json")); err != nil || string(b) != content {
			t.Errorf("agent.json is changed: %s, %v", b, err)
		}
	}
	if err := os.Remove(c.in("agent.json")); err != nil {
		t.Fatal(err)
	}
	c.cfg.Agent.AgentID = "agent-configured"
	if e := c.exit(); e.Kind != "agent_id" || !strings.Contains(e.Hint, id) {
		t.Errorf("%+v", e)
	}
	if _, err := os.Stat(c.in("agent.json")); err == nil {
		t.Error("a wrong id was kept")
	}
}

// An agent whose spool is gone goes on with a new one, and says what may be lost until a person has seen it.
func TestSpoolIsGone(t *testing.T) {
	for name, harm := range map[string]func(c *counter) error{
		"removed": func(c *counter) error { return os.RemoveAll(c.in("spool")) },
		"moved":   func(c *counter) error { return os.Rename(c.in("spool"), c.in("spool.old")) },
		"empty": func(c *counter) error {
			return errors.Join(os.RemoveAll(c.in("spool")), os.Mkdir(c.in("spool"), 0o700))
		},
		"a file": func(c *counter) error {
			return errors.Join(os.RemoveAll(c.in("spool")), os.WriteFile(c.in("spool"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCounter(t, nil)
			c.kill()
			if err := harm(c); err != nil {
				t.Fatal(err)
			}
			for range 2 { // also after a restart
				c.start()
				if al := c.damageAlarm(); al == nil || !strings.Contains(al.Detail, "gone") || strings.Contains(al.Detail, "nothing is lost") || !strings.Contains(al.Hint, bereftName) {
					t.Errorf("alarm: %+v", al)
				}
				if !c.a.spool.Stats().Accepting {
					t.Error("no scan is accepted")
				}
				c.kill()
			}
			if err := os.Remove(c.in(bereftName)); err != nil {
				t.Fatal(err)
			}
			c.start()
			if al := c.damageAlarm(); al != nil {
				t.Errorf("alarm: %+v", al)
			}
		})
	}
}

// A link to a disk that is not there is not for the agent to replace.
func TestSpoolIsALinkToNowhere(t *testing.T) {
	c := newCounter(t, nil)
	c.kill()
	if err := errors.Join(os.RemoveAll(c.in("spool")), os.Symlink("nowhere", c.in("spool"))); err != nil {
		t.Fatal(err)
	}
	if e := c.exit(); e.Code != ExitState || !strings.Contains(e.Hint, "mount") {
		t.Errorf("%+v", e)
	}
}

// A spool that is moved under a running agent is told of.
func TestSpoolIsMovedWhileRunning(t *testing.T) {
	c := newCounter(t, nil)
	if err := os.Rename(c.in("spool"), c.in("spool.old")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the look comes behind a turn's answer, and before the next turn
		if err := c.a.pipe.do(t.Context(), func(*spool.Batch) func(error) { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if al := c.damageAlarm(); al == nil || !strings.Contains(al.Detail, "moved") || !strings.Contains(al.Hint, "stop it first") {
		t.Errorf("alarm: %+v", al)
	}
	if _, err := os.Stat(c.in("spool/sidecar.json")); err != nil {
		t.Error(err)
	}
}
