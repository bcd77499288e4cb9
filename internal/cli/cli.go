// Package cli is the command line: one file for each verb. Results go to stdout, everything else to stderr.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/internal/config"
)

// app is one call of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string

	configFile, stateDir, socket string // "" if not given
	sets                         []string
	json                         bool
}

// Main runs the program with arguments that do not include its name, and returns its exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, env: env}
	root := a.root()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return exitOK
	}
	var f *failure
	if !errors.As(err, &f) {
		f = usage(err.Error(), "scanonce --help lists the verbs")
	}
	a.report(f, a.json || wantsJSON(args))
	return f.code
}

// wantsJSON looks for --json among arguments that could not be parsed.
func wantsJSON(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "--":
			return false
		case "--json", "--json=true":
			return true
		}
	}
	return false
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "scanonce",
		Short: "From pharmacy barcode scanners to exactly one ledger row per movement",
		Long: `scanonce runs beside pharmacy barcode scanners and writes one ledger row for each physical movement,
whatever is scanned twice, unplugged, killed or cut off.

Exit codes:
  0  done, or healthy
  1  done, and the answer is bad: a refused scan, a failed check, other outcomes than expected
  2  the command line or the configuration is wrong
  3  the agent or a store is not reachable, or refuses the credentials
  4  the state folder is unusable
  5  another agent holds the state folder
  6  status: it runs, but needs a person`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		Args:              cobra.ArbitraryArgs, // noVerb tells of them
		RunE:              noVerb,
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("cannot use the command line: "+err.Error(), cmd.CommandPath()+" --help lists the flags")
	})
	g := root.PersistentFlags()
	g.StringVar(&a.configFile, "config", "", "configuration `FILE` (default "+config.DefaultFile+", which may be absent)")
	g.StringVar(&a.stateDir, "state-dir", "", "state folder `DIR`, in place of agent.state_dir")
	g.StringVar(&a.socket, "socket", "", "the agent's unix socket `PATH`, in place of api.socket")
	g.StringArrayVar(&a.sets, "set", nil, "set `section.key=value` of the configuration; may be repeated")
	g.BoolVar(&a.json, "json", false, "write results as JSON, lists as one object a line, and errors too")
	root.AddCommand(
		a.runVerb(), a.simulateVerb(), a.demoVerb(),
		a.decodeVerb(), a.keyVerb(), a.sheetVerb(),
		a.statusVerb(), a.tailVerb(), a.explainVerb(), a.conflictsVerb(), a.batchesVerb(),
		group("spool", "Look into the durable outbox", a.spoolListVerb(), a.spoolExportVerb(), a.spoolRequeueVerb(), a.spoolDiscardVerb(),
			a.spoolVerifyVerb(), a.spoolSalvageVerb(), a.spoolBackupVerb()),
		group("ledger", "Read the ledger of movements, and make its tables", a.ledgerExportVerb(), a.ledgerMigrateVerb()),
		group("audit", "Read and verify the audit trail", a.auditExportVerb(), a.auditVerifyVerb()),
		group("ndc", "Keep the directory that decides ten-digit NDCs", a.ndcImportVerb()),
		a.checkConfigVerb(), a.reloadVerb(),
		group("config", "Show the configuration", a.configReferenceVerb(), a.configDumpVerb()),
		a.devicesVerb(), a.doctorVerb(), a.udevVerb(), a.rebindVerb(), a.versionVerb(), a.completionVerb(), a.spoolProbeVerb(), a.hidWorkerVerb(),
	)
	return root
}

// group holds verbs of two words.
func group(name, short string, verbs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: name, Short: short, Args: cobra.ArbitraryArgs, RunE: noVerb}
	g.AddCommand(verbs...)
	return g
}

// noVerb answers a command line that ends before a verb, or goes on with an unknown one.
func noVerb(cmd *cobra.Command, args []string) error {
	hint := cmd.CommandPath() + " --help lists the verbs"
	if len(args) == 0 {
		return usage(fmt.Sprintf("cannot run %s without a verb", cmd.CommandPath()), hint)
	}
	if cmd.SuggestionsMinimumDistance == 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		hint = "did you mean " + cmd.CommandPath() + " " + strings.Join(s, " or ") + "?"
	}
	return usage(fmt.Sprintf("cannot find the verb %q of %s", args[0], cmd.CommandPath()), hint)
}

// takes demands exactly the named arguments.
func takes(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		hint := "write " + strings.Join(append([]string{cmd.CommandPath()}, names...), " ")
		switch {
		case len(args) < len(names):
			return usage(fmt.Sprintf("cannot run %s without %s", cmd.CommandPath(), names[len(args)]), hint)
		case len(args) > len(names):
			return usage(fmt.Sprintf("cannot use the argument %q of %s", args[len(names)], cmd.CommandPath()), hint)
		}
		return nil
	}
}

// atMost allows the named arguments, in order.
func atMost(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usage(fmt.Sprintf("cannot use the argument %q of %s", args[len(names)], cmd.CommandPath()), "write "+cmd.CommandPath()+" ["+strings.Join(names, "] [")+"]")
		}
		return nil
	}
}

// load reads the configuration from all its sources.
func (a *app) load() (*config.Config, error) {
	c, err := config.Load(a.options())
	if err != nil {
		return nil, badConfig(err)
	}
	return c, nil
}

// loadBasics is load for verbs that need no facility: without a configuration the built-in defaults serve.
func (a *app) loadBasics() (*config.Config, error) {
	o := a.options()
	c, err := config.Load(o)
	var all config.Errors
	if errors.As(err, &all) && lacksFacilityOnly(all) {
		o.Set = append([]string{"agent.facility_uuid=" + noFacility}, o.Set...)
		if c, err = config.Load(o); err == nil {
			c.Agent.FacilityUUID = ""
		}
	}
	if err != nil {
		return nil, badConfig(err)
	}
	return c, nil
}

// noFacility stands in for a facility where none is needed.
const noFacility = "none"

func lacksFacilityOnly(errs config.Errors) bool {
	return len(errs) == 1 && errs[0].Key == "agent.facility_uuid" && errs[0].Detail == "it is not set"
}

func (a *app) options() config.Options {
	return config.Options{
		File: a.configFile, FileExplicit: a.configFile != "",
		Set: a.sets, Env: a.env, StateDir: a.stateDir, Socket: a.socket,
	}
}

func badConfig(err error) error {
	f := &failure{code: exitUsage, kind: "config", detail: err.Error()}
	var all config.Errors
	var one *config.Error
	switch {
	case errors.As(err, &all):
		for _, e := range all {
			f.lines = append(f.lines, line{e.Error(), e.Hint})
		}
	case errors.As(err, &one):
		f.lines = []line{{one.Error(), one.Hint}}
	}
	return f
}
