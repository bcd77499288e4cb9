package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"scanonce/internal/sim"
	"scanonce/internal/testenv"
)

// nobody is a user that owns nothing.
const nobody = 65534

// wantError checks a failed call: its code, the one line that says what cannot be done, and the hint.
func wantError(t *testing.T, r testenv.Result, code int, texts ...string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d: %s", r.Code, code, r.Stderr)
	}
	if !strings.Contains(r.Stderr, "scanonce: cannot ") || !strings.Contains(r.Stderr, "\nhint: ") {
		t.Errorf("stderr %q, want what cannot be done and what to do", r.Stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.Stderr, text) {
			t.Errorf("stderr %q lacks %q", r.Stderr, text)
		}
	}
}

// snapshot has the contents of a folder's files.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Sections: "[forward]\nbatch = 0\nnonsense = 1\n"})
	cfg, err := os.ReadFile(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	line := 0
	for i, l := range strings.Split(string(cfg), "\n") {
		if l == "batch = 0" {
			line = i + 1
		}
	}
	for _, verb := range []string{"run", "check-config"} {
		wantError(t, h.Call(t, verb), 2, fmt.Sprintf("%s:%d", h.Config, line), fmt.Sprintf("%s:%d", h.Config, line+1), "nonsense", "1 to 10000")
	}
	if _, err := os.Stat(h.State); err == nil {
		t.Error("a wrong configuration made a state folder")
	}
	r := h.Call(t, "--json", "check-config")
	var e struct{ Error, Detail, Hint string }
	if err := json.Unmarshal([]byte(strings.SplitN(r.Stderr, "\n", 2)[0]), &e); r.Code != 2 || err != nil || e.Error != "config" || e.Hint == "" {
		t.Errorf("check-config --json: %d %q", r.Code, r.Stderr)
	}
	h.Configure(t, testenv.Setup{})
	if r := h.Call(t, "check-config"); r.Code != 0 {
		t.Errorf("check-config of a good one: %d %s", r.Code, r.Stderr)
	}
	token := filepath.Join(h.Dir, "token")
	if err := os.WriteFile(token, []byte(" \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Configure(t, testenv.Setup{Sections: fmt.Sprintf("[api]\nsocket = %q\nsocket_group = \"\"\nlisten = \"127.0.0.1:0\"\ntoken_file = %q\n", h.Socket, token)})
	for _, verb := range []string{"check-config", "run"} {
		wantError(t, h.Call(t, verb), 2, token, "a long random token")
	}
}

// A port that is not there is waited for, aloud.
func TestMissingPort(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{})
	h.Start(t)
	st := h.Follow(t)
	s := h.Await(t, "the alarm", func(s *testenv.Status) bool { return s.Alarm("device_absent") != nil })
	if a := s.Alarm("device_absent"); !strings.Contains(a.Detail, "SCN-04") || a.Hint == "" || s.Scanner("SCN-04").State != "absent" || !s.Accepting {
		t.Errorf("status %+v", s)
	}
	if r := h.Call(t, "status"); r.Code != 0 {
		t.Errorf("status ends with %d", r.Code)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, b := h.Ask(t, http.MethodGet, path, nil); code != http.StatusOK || string(b) != "ok\n" {
			t.Errorf("%s: %d %q", path, code, b)
		}
	}
	g := plug(t, h, st, "SCN-04")
	st.Wait(t, 0, "the end of the alarm", alarm("device_absent", false))
	g.expect("accepted", bottle)
	// Unplugged within a scan: the half is never joined to what comes next.
	if err := g.Write([]byte("]d201")); err != nil {
		t.Fatal(err)
	}
	unplug(g.Scanner)
	st.Wait(t, g.pos, "the unplug", func(e *testenv.Event) bool { return e.Kind == "device" && e.State == "absent" || e.State == "backoff" })
	g.pos = st.Len()
	if err := g.Replug(); err != nil {
		t.Fatal(err)
	}
	g.reading()
	g.pos = st.Len()
	e := g.scan(matrix(ciiGTIN, "U1", "A1"))
	if e.Kind == "not_accepted" && e.Reason == "incomplete" { // the half, if the agent got it before the unplug
		e = g.answer()
	}
	if e.Kind != "accepted" || deref(e.Item.Serial) != "U1" {
		t.Errorf("the scan behind the half is answered with %s", e.Data)
	}
	if rows, _ := quiet(t, h); len(rows) != 2 {
		t.Errorf("%d rows, want 2", len(rows))
	}
}

func TestUnusableStateFolder(t *testing.T) {
	t.Parallel()
	t.Run("a file in its place", func(t *testing.T) {
		t.Parallel()
		h := program.NewHome(t, testenv.Setup{Sections: "[api]\nsocket = \"/tmp/never.sock\"\n"})
		if err := os.WriteFile(h.State, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		wantError(t, h.Call(t, "run"), 4, h.State, "--state-dir")
		if b, _ := os.ReadFile(h.State); string(b) != "mine" {
			t.Error("the file was touched")
		}
	})
	t.Run("another user's", func(t *testing.T) {
		t.Parallel()
		h := program.NewHome(t, testenv.Setup{})
		h.Start(t).Stop(t)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		cmd := h.Command(ctx, "run")
		if os.Geteuid() == 0 { // who ignores modes
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, NoSetGroups: true}
		} else if err := os.Chmod(h.State, 0o500); err != nil {
			t.Fatal(err)
		}
		wantError(t, testenv.Finish(t, cmd), 4, h.State, "permission denied")
	})
}

func TestSecondAgent(t *testing.T) {
	t.Parallel()
	h, p, _, g := bench(t, testenv.Setup{})
	before := h.Status(t)
	w := testenv.NewWatch(t)
	r := h.Call(t, "run")
	w.Within(t, "the second agent, to see the first,", time.Second)
	wantError(t, r, 5, h.State, fmt.Sprint(p.PID()))
	g.expect("accepted", bottle)
	if after := h.Status(t); after.Instance != before.Instance || after.Spool.Epoch != before.Spool.Epoch {
		t.Errorf("the first agent is another one now: %+v", after)
	}
	quiet(t, h)
}

func TestWrongSpoolKey(t *testing.T) {
	t.Parallel()
	h, p, st, g, release := outage(t, testenv.Setup{})
	a := g.expect("accepted", bottle)
	p.Kill()
	keyFile := filepath.Join(h.State, "keys", "spool.key")
	right, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	other := program.NewHome(t, testenv.Setup{})
	other.Start(t).Stop(t)
	wrong, err := os.ReadFile(filepath.Join(other.State, "keys", "spool.key"))
	if err != nil {
		t.Fatal(err)
	}
	spool := filepath.Join(h.State, "spool")
	before := snapshot(t, spool)
	var side struct {
		KeyID string `json:"key_id"`
	}
	json.Unmarshal([]byte(before["sidecar.json"]), &side)
	for name, put := range map[string]func() error{
		"another key": func() error { return os.WriteFile(keyFile, wrong, 0o600) },
		"no key":      func() error { return os.Remove(keyFile) },
		"no key at all": func() error {
			return os.WriteFile(keyFile, nil, 0o600)
		},
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		r := h.Call(t, "run")
		wantError(t, r, 4, keyFile)
		if name == "another key" && !strings.Contains(r.Stderr, "with id ") {
			t.Errorf("%s: the key wanted is not named: %s", name, r.Stderr)
		}
		if after := snapshot(t, spool); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the spool's files have changed", name)
		}
		if name == "no key" {
			if _, err := os.Stat(keyFile); err == nil {
				t.Errorf("%s: a new key was made over a spool of another", name)
			}
		}
	}
	if err := os.WriteFile(keyFile, right, 0o600); err != nil {
		t.Fatal(err)
	}
	release()
	h.Start(t)
	committed(t, st, a.EventID)
	if rows, _ := quiet(t, h); len(rows) != 1 || rows[0].EventID != a.EventID {
		t.Errorf("rows %+v", rows)
	}
}

// An agent that cannot be asked still captures.
func TestUnwritableSocket(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Sections: "[api]\nsocket = \"/dev/null/scanonce.sock\"\n", Directory: directory})
	p := h.Start(t)
	s, err := sim.Plug("SCN-04", h.Port("SCN-04"), sim.Framing{Suffix: "\r"})
	if err != nil {
		t.Fatal(err)
	}
	defer unplug(s)
	if err := s.Type(bottle); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if tone, err := s.Feedback(ctx, 1); tone != "G" {
		t.Fatalf("tone %q, %v", tone, err)
	}
	if r := h.Call(t, "status"); r.Code != 3 {
		t.Errorf("status ends with %d, want 3", r.Code)
	}
	log, err := os.ReadFile(h.Log)
	if err != nil || !strings.Contains(string(log), "/dev/null/scanonce.sock") {
		t.Errorf("the log does not say that the socket cannot be used: %s", log)
	}
	p.Stop(t)
	h.Configure(t, testenv.Setup{})
	rows := h.Ledger(t)
	checkStores(t, rows, h.Audit(t))
	if len(rows) != 1 || rows[0].NDC != bottleNDC {
		t.Errorf("rows %+v", rows)
	}
}

// A ledger that cannot be used is an outage, whatever is wrong with it, and nothing of it is overwritten.
func TestDamagedLedger(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(good []byte) []byte{
		"garbage":   func(b []byte) []byte { return []byte(strings.Repeat("garbage ", len(b)/8)) },
		"empty":     func([]byte) []byte { return nil },
		"no header": func(b []byte) []byte { return append(make([]byte, 8192), b[8192:]...) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, p, _, g := bench(t, testenv.Setup{})
			first := g.expect("accepted", matrix(bottleGTIN, "D1", "A1"))
			quiet(t, h)
			p.Stop(t)
			path := filepath.Join(h.State, "ledger.db")
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := damage(good)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			g.pos = g.stream.Len()
			p = h.Start(t)
			g.reading()
			s := h.Await(t, "OFFLINE", func(s *testenv.Status) bool { return s.State == "OFFLINE" })
			if !s.Accepting || s.Alarm("offline") == nil && s.Alarm("ledger_config") == nil {
				t.Errorf("status %+v", s)
			}
			a := g.expect("accepted", matrix(bottleGTIN, "D2", "A1"))
			g.expect("duplicate", matrix(bottleGTIN, "D2", "A1"))
			if now, err := os.ReadFile(path); err != nil || string(now) != string(bad) {
				t.Errorf("the damaged ledger was changed: %v", err)
			}
			p.Stop(t)
			if err := os.WriteFile(path, good, 0o600); err != nil {
				t.Fatal(err)
			}
			h.Start(t)
			rows, _ := quiet(t, h)
			if len(rows) != 2 || rowByEvent(t, rows, a.EventID).Lot != "A1" || rowByEvent(t, rows, first.EventID).Lot != "A1" {
				t.Errorf("rows %+v", rows)
			}
		})
	}
}

// An event log that cannot be opened is a state folder that cannot be used, and what it holds stays readable.
func TestUnwritableEvents(t *testing.T) {
	t.Parallel()
	h, p, _, g := bench(t, testenv.Setup{})
	g.expect("accepted", matrix(bottleGTIN, "E1", "A1"))
	quiet(t, h)
	p.Stop(t)
	path := filepath.Join(h.State, "events.log")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, h.Call(t, "run"), 4, path)
	if rows := h.Ledger(t); len(rows) != 1 {
		t.Errorf("rows %+v", rows)
	}
}

// A full disk refuses scans aloud and drains all the same; with room again it goes on by itself.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if uid := os.Geteuid(); uid != 0 { // mounting needs root, if only in a namespace of its own
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestFullDisk")) {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	h := program.NewHome(t, testenv.Setup{Directory: directory})
	if err := os.Mkdir(h.State, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", h.State, "tmpfs", 0, "size=6m,mode=0700"); err != nil {
		t.Fatalf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(h.State, syscall.MNT_DETACH) })
	h.Start(t).Stop(t)
	release := hold(t, h)
	h.Start(t)
	st := h.Follow(t)
	g := plug(t, h, st, "SCN-04")
	ballast := filepath.Join(h.State, "ballast")
	fill := func(leave int64) {
		t.Helper()
		var fs syscall.Statfs_t
		if err := syscall.Statfs(h.State, &fs); err != nil {
			t.Fatal(err)
		}
		if n := int64(fs.Bavail)*fs.Bsize - leave; n > 0 {
			if err := os.WriteFile(ballast, make([]byte, n), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	accepted := map[string]bool{}
	for i := range 20 {
		accepted[g.expect("accepted", matrix(bottleGTIN, fmt.Sprintf("K%d", i), "A1")).EventID] = true
	}
	fill(64 << 10)
	var refused []string
	for i := 20; i < 5000 && len(refused) < 5; i++ {
		label := matrix(bottleGTIN, fmt.Sprintf("K%d", i), "A1")
		switch e := g.scan(label); e.Kind {
		case "accepted":
			g.tone("G")
			if len(refused) > 0 {
				t.Fatalf("accepted behind a refusal: %s", e.Data)
			}
			accepted[e.EventID] = true
		case "not_accepted":
			g.tone("R")
			if e.Reason != "disk_full" {
				t.Fatalf("event %s", e.Data)
			}
			refused = append(refused, label)
		default:
			t.Fatalf("event %s", e.Data)
		}
	}
	if len(refused) == 0 {
		t.Fatal("the disk never filled up")
	}
	if s := h.Status(t); s.Accepting || s.Alarm("disk_full") == nil || s.Counts.Pending != int64(len(accepted)) {
		t.Errorf("status %+v", s)
	}
	if r := h.Call(t, "status"); r.Code != 6 {
		t.Errorf("status ends with %d, want 6", r.Code)
	}
	release()
	for id := range accepted {
		committed(t, st, id)
	}
	if s := h.Status(t); s.Balance() != "" {
		t.Error(s.Balance())
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	h.Await(t, "that scans are accepted again", func(s *testenv.Status) bool { return s.Accepting })
	st.Wait(t, 0, "the end of the alarm", alarm("disk_full", false))
	accepted[g.expect("accepted", refused[0]).EventID] = true
	rows, _ := quiet(t, h)
	if len(rows) != len(accepted) {
		t.Errorf("%d rows of %d accepted scans", len(rows), len(accepted))
	}
	for _, r := range rows {
		if !accepted[r.EventID] {
			t.Errorf("row %s was never told", r.EventID)
		}
	}
}

// SIGTERM in the middle of the work: what was answered is in the ledger, within the time.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	h, p, st, g := bench(t, testenv.Setup{})
	work := sim.NewWorkload(7)
	// A person holds the trigger: a few scans are always under way, and each answer brings the next.
	const ahead = 8
	heard, half := make(chan int, 1), make(chan struct{})
	go func() {
		n := 0
		defer func() { heard <- n }()
		for i := 0; ; i++ {
			if i == 100 {
				close(half)
			}
			if i >= ahead {
				if tone, err := g.Feedback(t.Context(), 1); err != nil || tone != "G" {
					return
				}
				n++
			}
			if g.Type(work.Next().Data) != nil {
				return
			}
		}
	}()
	<-half
	p.Stop(t)
	rows := h.Ledger(t)
	checkStores(t, rows, h.Audit(t))
	unplug(g.Scanner)
	n := <-heard
	tones, _ := g.Feedback(canceled(), 2*ahead)
	if n += strings.Count(tones, "G"); n != len(rows) || n < 100-ahead {
		t.Errorf("%d rows of %d scans that were answered", len(rows), n)
	}
	h.Start(t)
	for _, r := range rows {
		committed(t, st, r.EventID)
	}
	t.Logf("%d scans were answered before the end", len(rows))
}

func TestReload(t *testing.T) {
	t.Parallel()
	h, p, st, g := bench(t, testenv.Setup{})
	g.expect("accepted", bottle)
	log := func(text string) bool {
		b, err := os.ReadFile(h.Log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(b), text)
	}
	// A wrong one changes nothing.
	h.Configure(t, testenv.Setup{Sections: "[forward]\nbatch = 0\n", Scanners: []string{"SCN-09"}, Directory: directory})
	p.Signal(syscall.SIGHUP)
	h.Await(t, "the alarm", func(s *testenv.Status) bool { return s.Alarm("config") != nil && s.Scanner("SCN-09") == nil })
	h.Configure(t, testenv.Setup{Scanners: []string{"SCN-04", "SCN-09"}, Directory: directory})
	p.Signal(syscall.SIGHUP)
	h.Await(t, "the end of the alarm", func(s *testenv.Status) bool { return s.Alarm("config") == nil && s.Scanner("SCN-09") != nil })
	if !log("reloaded") {
		t.Error("the log does not tell of the reload")
	}
	plug(t, h, st, "SCN-09").expect("accepted", bottle)
	g.pos = st.Len()
	g.expect("accepted", matrix(ciiGTIN, "R1", "A1")) // the old one goes on
	// And one that is taken away.
	h.Configure(t, testenv.Setup{Scanners: []string{"SCN-09"}, Directory: directory})
	p.Signal(syscall.SIGHUP)
	h.Await(t, "that SCN-04 is gone", func(s *testenv.Status) bool { return s.Scanner("SCN-04") == nil })
	if rows, _ := quiet(t, h); len(rows) != 3 {
		t.Errorf("%d rows, want 3", len(rows))
	}
}

// A reload that is asked for while the agent starts waits for it, and ends nothing.
func TestReloadWhileStarting(t *testing.T) {
	t.Parallel()
	h := program.NewHome(t, testenv.Setup{Directory: directory})
	for range 20 {
		cmd := h.Command(t.Context(), "run")
		log, err := os.Create(h.Log)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		says := func(text string) {
			t.Helper()
			for end := time.Now().Add(testenv.Patience); ; pace(t, time.Millisecond) {
				b, err := os.ReadFile(h.Log)
				if err != nil || strings.Contains(string(b), text) {
					break
				}
				if time.Now().After(end) || cmd.ProcessState != nil {
					t.Fatalf("never %q: %s", text, b)
				}
				cmd.Process.Signal(syscall.SIGHUP)
			}
		}
		for {
			b, _ := os.ReadFile(h.Log)
			if strings.Contains(string(b), `"starting"`) {
				break
			}
			pace(t, time.Millisecond)
		}
		says(`"reloaded"`)
		cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("the agent ended: %v", err)
		}
		log.Close()
	}
}

// What the verbs say of real state, with an agent and without.
func TestVerbs(t *testing.T) {
	t.Parallel()
	h, p, st, g := bench(t, testenv.Setup{})
	start := st.LastID()
	a := g.expect("accepted", bottle)
	b := g.expect("duplicate", bottle)
	g.expect("rejected", "]E0300937214107")
	g.committed(a.EventID)
	quiet(t, h)
	digits := strings.TrimPrefix(a.Key, "scan:idem:")
	explain := func() {
		t.Helper()
		for _, key := range []string{a.Key, digits, digits[:8], digits[:8] + "…"} {
			r := h.Call(t, "--json", "explain", key)
			var x struct {
				Key    string
				Ledger *testenv.Row
				Audit  []testenv.Line
				Text   string
			}
			if err := json.Unmarshal([]byte(r.Stdout), &x); r.Code != 0 || err != nil || x.Key != a.Key || x.Ledger == nil || x.Ledger.EventID != a.EventID || len(x.Audit) != 2 || x.Text == "" {
				t.Errorf("explain %s: %d %s%s", key, r.Code, r.Stdout, r.Stderr)
			}
		}
		if r := h.Call(t, "explain", a.Key); r.Code != 0 || !strings.Contains(r.Stdout, "dispense") || !strings.Contains(r.Stdout, "not counted") {
			t.Errorf("explain: %d %s", r.Code, r.Stdout)
		}
		if r := h.Call(t, "explain", "scan:idem:"+strings.Repeat("0", 64)); r.Code != 1 {
			t.Errorf("explain of an unknown key: %d %s", r.Code, r.Stdout)
		}
		wantError(t, h.Call(t, "explain", "1234567"), 2)
		if r := h.Call(t, "ledger", "export", "--format", "csv"); r.Code != 0 || strings.Count(r.Stdout, "\n") != 2 || !strings.HasPrefix(r.Stdout, "idem_key,edge_key,event_id,") {
			t.Errorf("ledger export: %d %s", r.Code, r.Stdout)
		}
		if r := h.Call(t, "ledger", "export", "--until", "2020-01-01"); r.Code != 0 || strings.Contains(r.Stdout, a.EventID) {
			t.Errorf("ledger export --until: %d %s", r.Code, r.Stdout)
		}
	}
	explain()

	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	tail := h.Command(ctx, "--json", "tail", "--since", start, "--kind", "duplicate", "--kind", "committed")
	out, err := tail.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tail.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	kinds := map[string]string{}
	for range 2 {
		line, err := lines.ReadString('\n')
		var e testenv.Event
		if err != nil || json.Unmarshal([]byte(line), &e) != nil {
			t.Fatalf("tail: %q, %v", line, err)
		}
		kinds[e.Kind] = e.EventID
	}
	if kinds["duplicate"] != b.EventID || kinds["committed"] != a.EventID {
		t.Errorf("tail --since: %v", kinds)
	}
	tail.Process.Signal(syscall.SIGINT)
	if err := tail.Wait(); err != nil {
		t.Errorf("tail after SIGINT: %v", err)
	}

	decode := func(code int, want string, input string, args ...string) {
		t.Helper()
		cmd := h.Command(ctx, append([]string{"decode"}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		if r := testenv.Finish(t, cmd); r.Code != code || !strings.Contains(r.Stdout, want) {
			t.Errorf("decode %q: %d %s%s", input, r.Code, r.Stdout, r.Stderr)
		}
	}
	decode(0, bottleNDC, matrix(bottleGTIN, "S", "L")+"\n")
	decode(1, "check_digit", "]E00300937214107\n")
	decode(0, `"ndc11":null`, `{"in":"]E00300937214106"}`+"\n", "--jsonl")
	decode(2, "", "no JSON\n", "--jsonl")

	p.Stop(t)
	explain()
	if w := h.Spool(t); len(w) != 0 {
		t.Errorf("the spool lists %+v", w)
	}
	for _, verb := range []string{"status", "tail"} {
		wantError(t, h.Call(t, verb), 3, h.Socket)
	}
}
