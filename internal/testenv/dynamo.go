package testenv

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Dynamo is one private DynamoDB-compatible server (dynalite, in memory), a child that dies with the test. It has
// no transactions and no removal of expired items.
type Dynamo struct {
	Addr        string // 127.0.0.1:port
	Credentials string // a shared credentials file; the server takes any

	t   testing.TB
	cmd *exec.Cmd
}

// dynaliteFolder is where .ci/test-deps installs the server. Its name has the version.
const dynaliteFolder = ".cache/dynalite-4.0.0"

// StartDynamo starts a server. Tables are there as soon as they are made.
func StartDynamo(t testing.TB) *Dynamo {
	t.Helper()
	port := FreePort(t)
	d := &Dynamo{Addr: "127.0.0.1:" + strconv.Itoa(port), Credentials: filepath.Join(t.TempDir(), "credentials"), t: t}
	text := "[default]\naws_access_key_id = test\naws_secret_access_key = test\n"
	if err := os.WriteFile(d.Credentials, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cli := dynaliteProgram(t)
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is missing: run make test-deps, or apt-get install nodejs npm")
	}
	d.cmd = exec.Command(node, cli, "--host", "127.0.0.1", "--port", strconv.Itoa(port), "--createTableMs", "0")
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints strings.Builder
	d.cmd.Stderr = &complaints
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	listening := make(chan bool, 1)
	go func() {
		r := bufio.NewReader(out)
		line, _ := r.ReadString('\n')
		listening <- strings.Contains(line, "listening")
		io.Copy(io.Discard, r) // until the server ends
	}()
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	select {
	case ok := <-listening:
		if !ok {
			d.Kill()
			t.Fatalf("dynalite does not start:\n%s", complaints.String())
		}
	case <-limit.C:
		t.Fatal("dynalite does not answer")
	}
	return d
}

// moduleRoot is the folder of go.mod.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = up
	}
}

// dynaliteProgram finds the server under the module's root.
func dynaliteProgram(t testing.TB) string {
	t.Helper()
	cli := filepath.Join(moduleRoot(t), dynaliteFolder, "node_modules/dynalite/cli.js")
	if _, err := os.Stat(cli); err != nil {
		t.Fatalf("dynalite is missing: run make test-deps, which installs it into %s", dynaliteFolder)
	}
	return cli
}

// URL is the server's endpoint.
func (d *Dynamo) URL() string { return "http://" + d.Addr }

// Kill ends the server at once, and with it what it holds.
func (d *Dynamo) Kill() {
	if d.cmd == nil {
		return
	}
	d.cmd.Process.Kill()
	d.cmd.Wait()
	d.cmd = nil
}
