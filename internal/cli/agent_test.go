package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// running is an agent as a process of its own, with its configuration.
type running struct {
	dir, config, socket string
	cmd                 *exec.Cmd
	log                 *bytes.Buffer
}

const agentTime = 30 * time.Second

// startAgentProcess runs the agent in a new folder until it says that it is ready.
func startAgentProcess(t *testing.T) *running { return startAgentWith(t, "") }

// startAgentWith is startAgentProcess with more tables in the configuration.
func startAgentWith(t *testing.T, tables string) *running {
	t.Helper()
	// The socket's path must be short.
	dir, err := os.MkdirTemp("", "scanonce-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &running{dir: dir, config: filepath.Join(dir, "scanonce.toml"), socket: filepath.Join(dir, "state", "scanonce.sock"), log: new(bytes.Buffer)}
	text := tables + fmt.Sprintf("\n[agent]\nfacility_uuid = \"FAC-1\"\nstate_dir = %q\n[api]\nsocket = %q\n[[scanner]]\nid = \"SCN-04\"\npath = %q\nfeedback = { good = \"G\", duplicate = \"D\" }\n",
		filepath.Join(dir, "state"), r.socket, filepath.Join(dir, "scn04"))
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start(t)
	return r
}

func (r *running) start(t *testing.T) {
	t.Helper()
	notify := filepath.Join(r.dir, "notify")
	os.Remove(notify)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(agentTime)); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r.log.Reset()
	r.cmd = &exec.Cmd{
		Path: exe, Args: []string{"scanonce", "--config", r.config, "run"}, Stderr: r.log,
		Env: append(os.Environ(), "NOTIFY_SOCKET="+notify),
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.cmd.Process.Kill(); r.cmd.Wait() })
	if err := awaitReady(conn); err != nil {
		t.Fatalf("the agent is not ready: %v\n%s", err, r.log)
	}
}

// stop sends a signal and returns the exit code.
func (r *running) stop(t *testing.T, sig syscall.Signal) int {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(agentTime, func() { r.cmd.Process.Kill() })
	defer kill.Stop()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// call runs a verb in this process.
func call(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, msg bytes.Buffer
	if got := Main(args, strings.NewReader(""), &out, &msg, nil); got != want {
		t.Errorf("scanonce %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, want, &out, &msg)
	}
	return out.String(), msg.String()
}

func objects(t *testing.T, lines string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for l := range strings.Lines(lines) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		out = append(out, m)
	}
	return out
}

func TestVerbsBesideAnAgent(t *testing.T) {
	r := startAgentProcess(t)
	cfg := []string{"--config", r.config}
	with := func(args ...string) []string { return append(cfg[:len(cfg):len(cfg)], args...) }

	out, _ := call(t, exitOK, with("--json", "simulate", "--scans", "3", "--retransmits", "1", "--seed", "5", "--rate", "50")...)
	lines := objects(t, out)
	if len(lines) != 5 {
		t.Fatalf("simulate wrote %d lines:\n%s", len(lines), out)
	}
	for _, key := range []string{"n", "scanner_id", "retransmit", "straddle", "outcome", "event_id", "key", "duplicate_of", "accept_ms"} {
		if _, ok := lines[0][key]; !ok {
			t.Errorf("a transmission lacks %s", key)
		}
	}
	sum := lines[4]
	if sum["captured"] != 4.0 || sum["committed"] != 3.0 || sum["suppressed"] != 1.0 || sum["ledger_rows"] != 3.0 || sum["ok"] != true || sum["seed"] != 5.0 {
		t.Errorf("summary %v", sum)
	}
	if _, err := os.Lstat(filepath.Join(r.dir, "scn04")); !os.IsNotExist(err) {
		t.Errorf("the virtual scanner's link stays: %v", err)
	}

	// The device has just gone away: that alone needs nobody.
	out, _ = call(t, exitOK, with("status")...)
	for _, want := range []string{"state     ONLINE, accepting scans\n", "captured=4 committed=3 suppressed=1", "scanners  SCN-04  "} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	out, _ = call(t, exitOK, "--socket", r.socket, "--json", "status")
	if st := objects(t, out)[0]; st["facility_uuid"] != "FAC-1" || st["accepting"] != true {
		t.Errorf("status %v", st)
	}

	call(t, exitHeld, with("run")...)
	if _, msg := call(t, exitHeld, with("--json", "run")...); !regexp.MustCompile(`^\{"error":"[a-z_]+","detail":"cannot .+","hint":".+"\}\n$`).MatchString(msg) {
		t.Errorf("a second agent says %q", msg)
	}

	// A reload changes the level of the log, and a refused one nothing.
	if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	call(t, exitOK, with("status")...)

	// The same answers come from the agent and, without it, from its folder.
	key := lines[0]["key"].(string)
	ask := func(ended bool) string {
		ledger, _ := call(t, exitOK, with("ledger", "export")...)
		if n := strings.Count(ledger, "\n"); n != 4 || !strings.HasPrefix(ledger, "idem_key,edge_key,event_id,") {
			t.Errorf("ledger export:\n%s", ledger)
		}
		audit, _ := call(t, exitOK, with("audit", "export")...)
		if n := strings.Count(audit, `"outcome":"committed"`); n != 3 {
			t.Errorf("audit export has %d committed lines:\n%s", n, audit)
		}
		verify, _ := call(t, exitOK, with("--json", "audit", "verify", "--ledger")...)
		if want := regexp.MustCompile(`^{"ok":true,"lines":5,"records":[1-9]\d*,"declared_gaps":0,"first_bad":null,"ledger_only":\[\],"audit_only":\[\]}\n$`); !want.MatchString(verify) {
			t.Errorf("audit verify: %s, want %s", verify, want)
		}
		trail := filepath.Join(r.dir, "audit.jsonl")
		call(t, exitOK, with("audit", "export", "-o", trail)...)
		if out, _ := call(t, exitOK, with("audit", "verify", trail, "--ledger")...); !strings.HasPrefix(out, "ok: 5 lines, ") {
			t.Errorf("audit verify of a file: %s", out)
		}
		b, err := os.ReadFile(trail)
		if err != nil {
			t.Fatal(err)
		}
		// Without the committed line of a key, and with a key that the ledger does not have.
		forged := strings.Replace(string(b), key, "scan:idem:"+strings.Repeat("0", 64), 1)
		if err := os.WriteFile(trail, []byte(forged), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := call(t, exitBad, with("--json", "audit", "verify", trail, "--ledger")...)
		if v := objects(t, out)[0]; fmt.Sprint(v["ledger_only"]) != "["+key+"]" || fmt.Sprint(v["audit_only"]) != "[scan:idem:"+strings.Repeat("0", 64)+"]" {
			t.Errorf("audit verify of a forged file: %s", out)
		}
		explain, _ := call(t, exitOK, with("--json", "explain", shortKey(key))...)
		if e := objects(t, explain)[0]; e["key"] != key || e["ledger"] == nil {
			t.Errorf("explain: %v", e)
		}
		call(t, exitOK, with("explain", key)...)
		call(t, exitBad, with("explain", "0123456789abcdef")...)
		spool, _ := call(t, exitOK, with("spool", "ls")...)
		file := filepath.Join(r.dir, "out.jsonl")
		call(t, exitOK, with("spool", "export", "-o", file)...)
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("spool export: %v, %v", info, err)
		}
		// Records of the chain may still be on their way from the agent.
		trailing := regexp.MustCompile(`(?m)^.*"line_hashes".*\n`)
		if n := len(trailing.FindAllString(audit, -1)); ended && n == 0 {
			t.Errorf("no record of the chain in\n%s", audit)
		}
		return ledger + trailing.ReplaceAllString(audit, "") + spool
	}
	live := ask(false)
	if code := r.stop(t, syscall.SIGTERM); code != exitOK {
		t.Errorf("after SIGTERM: exit code %d\n%s", code, r.log)
	}
	for l := range strings.Lines(r.log.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(l), &m); err != nil || m["time"] == nil || m["level"] == nil || m["msg"] == nil {
			t.Errorf("log line %q: %v", l, err)
		}
	}
	if stored := ask(true); stored != live {
		t.Errorf("from the folder:\n%s\nfrom the agent:\n%s", stored, live)
	}
	call(t, exitUnreachable, with("status")...)
}

func TestRunOnAnUnusableFolder(t *testing.T) {
	_, msg := call(t, exitState, "--set", "agent.facility_uuid=FAC-1", "--state-dir", "/dev/null/state", "run")
	if !strings.HasPrefix(msg, "scanonce: cannot ") || !strings.Contains(msg, "\nhint: ") {
		t.Errorf("it says %q", msg)
	}
}

func TestSignalInterrupts(t *testing.T) {
	r := startAgentProcess(t)
	if code := r.stop(t, syscall.SIGINT); code != exitOK {
		t.Errorf("after SIGINT: exit code %d\n%s", code, r.log)
	}
}

// The page's server is for loopback, its token in a file: what the demo prints must work.
func TestDemoServes(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	named := filepath.Join(dir, "scanonce") // the demo starts itself by its own path
	if err := os.Link(exe, named); err != nil {
		text, err := os.ReadFile(exe)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(named, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var msg bytes.Buffer
	cmd := exec.Command(named, "demo")
	cmd.Env = append(os.Environ(), "TMPDIR=/tmp")
	cmd.Stderr = &msg
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := time.AfterFunc(2*agentTime, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var page, token, socket string
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		if rest, ok := strings.CutPrefix(sc.Text(), "serving "); ok {
			page, token, _ = strings.Cut(rest, "#token=")
		}
		if rest, ok := strings.CutPrefix(sc.Text(), "socket "); ok {
			socket = rest
			break
		}
	}
	req, err := http.NewRequest(http.MethodGet, page+"v1/status", nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, &msg)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s answers %s", page, resp.Status)
	}
	call(t, exitOK, "--socket", socket, "status")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGINT: %v\n%s", err, &msg)
	}
	call(t, exitUnreachable, "--socket", socket, "status")
	if _, err := os.Stat(filepath.Dir(filepath.Dir(socket))); !os.IsNotExist(err) {
		t.Errorf("the demo's folder stays: %v", err)
	}
}
