package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"

	"scanonce/internal/testenv"
)

func TestReloadVerb(t *testing.T) {
	t.Parallel()
	h, _, _, g := bench(t, testenv.Setup{})
	post(t, h, "", "accepted", posted{Scanner: "phone", Data: matrix(bottleGTIN, "S1", "A")})
	type reloaded struct {
		OK            bool     `json:"ok"`
		RestartNeeded []string `json:"restart_needed"`
	}
	reload := func() (r reloaded) {
		t.Helper()
		out := h.Call(t, "--json", "reload")
		if out.Code != 0 || json.Unmarshal([]byte(out.Stdout), &r) != nil {
			t.Fatalf("reload ends with %d: %s%s", out.Code, out.Stdout, out.Stderr)
		}
		return r
	}
	if r := reload(); !r.OK || r.RestartNeeded == nil || len(r.RestartNeeded) != 0 {
		t.Errorf("nothing has changed: %+v", r)
	}
	h.Configure(t, testenv.Setup{Directory: directory, Scanners: []string{"SCN-04", "SCN-05"}, Sections: "[forward]\nbatch = 7\n[counter]\nmode_idle = \"5m\"\n"})
	if r := reload(); !r.OK || strings.Join(r.RestartNeeded, ",") != "forward.batch" {
		t.Errorf("%+v", r)
	}
	if out := h.Call(t, "reload"); out.Stdout != "reloaded; these need a restart: forward.batch\n" {
		t.Errorf("%+v", out)
	}
	s := h.Status(t)
	if s.Scanner("SCN-05") == nil || len(s.Scanners) != 3 {
		t.Errorf("scanners %+v", s.Scanners)
	}
	good, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(good), "batch = 7", "batch = \"many\"", 1)
	if err := os.WriteFile(h.Config, []byte(wrong), 0o644); err != nil {
		t.Fatal(err)
	}
	out := h.Call(t, "reload")
	if out.Code != 2 || !strings.Contains(out.Stderr, "scanonce: cannot use "+h.Config+":") || !strings.Contains(out.Stderr, "forward.batch") || !strings.Contains(out.Stderr, "hint: ") {
		t.Errorf("a wrong configuration: %+v", out)
	}
	if code, body := h.Ask(t, http.MethodPost, "/v1/reload", nil); code != http.StatusUnprocessableEntity || !strings.Contains(string(body), `"reason":"config"`) {
		t.Errorf("%d %s", code, body)
	}
	if s := h.Status(t); s.Alarm("config") == nil || s.Scanner("SCN-05") == nil {
		t.Errorf("alarms %+v", s.Alarms)
	}
	if err := os.WriteFile(h.Config, good, 0o644); err != nil {
		t.Fatal(err)
	}
	reload()
	if s := h.Status(t); s.Alarm("config") != nil {
		t.Errorf("alarms %+v", s.Alarms)
	}
	if e := g.scan(matrix(bottleGTIN, "S2", "A")); e.Kind != "accepted" {
		t.Errorf("event %s", e.Data)
	}
	if rows, _ := quiet(t, h); len(rows) != 2 {
		t.Errorf("%d rows", len(rows))
	}
}
