// The program bench measures the agent against the baselines that it carries and prints a table: what, the
// goal, the measured ratio, the medians behind it. The programs run in turn, in interleaved rounds; ratios are
// medians over the rounds. Latency is reported and never fails a build: what is gated is in the package's test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"scanonce/window"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := fs.Int("rounds", 7, "interleaved `rounds` of each comparison")
	quick := fs.Bool("quick", false, "watch the idle agent for 30 s, not 60")
	only := fs.String("rows", "F2,F3,F7,F8,S5", "`ids` of the rows to measure")
	scratch := fs.String("dir", os.TempDir(), "`folder` for the measured files: its file system is what is measured")
	program := fs.String("program", "", "scanonce `binary` to measure; built if empty")
	profile := fs.String("cpuprofile", "", "write a CPU profile of this process to `file`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 {
		return errors.New("cannot measure in less than one round")
	}
	host, err := window.Host()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*scratch, "scanonce-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &bench{host: host, dir: dir, rounds: *rounds}
	fmt.Println("machine:", machine(dir))
	busy, err := newBusy()
	if err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	want := strings.Split(*only, ",")
	has := func(id string) bool { return slices.Contains(want, id) }
	if *program == "" && (has("F2") || has("F8")) {
		if *program, err = build(context.Background(), dir); err != nil {
			return err
		}
	}
	var rows []row
	measure := func(id string, f func() ([]row, error)) error {
		if !has(id) {
			return nil
		}
		r, err := f()
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		rows = append(rows, r...)
		return nil
	}
	var watch *idle
	if has("F8") { // it needs only time, and takes nothing from the others
		span := 60 * time.Second
		if *quick {
			span = 30 * time.Second
		}
		if watch, err = m.watchIdle(*program, span); err != nil {
			return fmt.Errorf("F8: %w", err)
		}
	}
	err = measure("F2", func() ([]row, error) { return m.local(*program) })
	if err == nil {
		err = measure("F3", m.intake)
	}
	if err == nil {
		err = measure("S5", m.size)
	}
	if err == nil {
		err = measure("F7", m.compute)
	}
	if watch != nil {
		r, werr := watch.rows()
		rows = append(rows, r...)
		err = errors.Join(err, werr)
	}
	if err != nil {
		return err
	}
	if err := printTable(os.Stdout, rows); err != nil {
		return err
	}
	share, err := busy.others()
	if err != nil {
		return err
	}
	fmt.Printf("other programs had %.0f %% of the cores meanwhile\n", 100*share)
	return nil
}
