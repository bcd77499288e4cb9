package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"scanonce": func() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())) },
	})
}

// The scripts have "exits N CMD…": CMD must end with exactly this code. $CONFIGS is the folder of shipped files.
func TestScripts(t *testing.T) {
	configs, err := filepath.Abs("../../configs")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Setup: func(env *testscript.Env) error {
			env.Setenv("CONFIGS", configs)
			return nil
		},
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
		},
	})
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command...")
	}
	err := ts.Exec(args[1], args[2:]...)
	code := "0"
	if err != nil {
		code = exitCode(err)
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s (%v)", code, args[0], err)
	}
}

func exitCode(err error) string {
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		return strconv.Itoa(e.ExitCode())
	}
	return err.Error()
}
