// The program bench measures the agent against the baselines that it carries and prints a table: what, the
// goal, the measured ratio, the medians behind it. The programs run in turn, in interleaved rounds; ratios are
// medians over the rounds. Latency is reported and never fails a build: what is gated is in the package's test.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
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

func run(args []string) (err error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := fs.Int("rounds", 7, "interleaved `rounds` of each comparison")
	quick := fs.Bool("quick", false, "watch the idle agent for 30 s, not 60")
	only := fs.String("rows", "F1,F2,F3,F4,F5,F6,F7,F8,S1,S2,S3,S4,S5,C1", "`ids` of the rows to measure")
	scratch := fs.String("dir", os.TempDir(), "`folder` for the measured files: its file system is what is measured")
	program := fs.String("program", "", "scanonce `binary` to measure; built if empty")
	allocs := fs.String("memprofile", "", "write the allocations of this process to `file` at the end")
	profile := fs.String("cpuprofile", "", "write a CPU profile of this process to `file`")
	child := fs.String("spooled", "", "for this program's own use")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *child != "" {
		return spooledAgent(*child)
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
	m := &bench{host: host, dir: dir, rounds: *rounds, sizes: fullStores(), tb: &process{dir: dir}}
	defer func() { err = errors.Join(err, m.tb.end()) }()
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
	if *program == "" && (has("F1") || has("F2") || has("F6") || has("F8")) {
		if *program, err = build(context.Background(), dir); err != nil {
			return err
		}
	}
	measured := map[string][]row{} // by id; measured in another order than printed
	measure := func(id string, f func() ([]row, error)) {
		if err != nil || !has(id) {
			return
		}
		r, ferr := f()
		if ferr != nil {
			err = fmt.Errorf("%s: %w", id, ferr)
		}
		measured[id] = append(measured[id], r...)
	}
	var watch *idle
	if has("F8") { // it needs only time, and takes nothing from rows that do not count this process's time
		span := 60 * time.Second
		if *quick {
			span = 30 * time.Second
		}
		if watch, err = m.watchIdle(*program, span); err != nil {
			return fmt.Errorf("F8: %w", err)
		}
	}
	measure("F2", func() ([]row, error) { return m.local(*program) })
	measure("F3", m.intake)
	measure("S5", m.size)
	measure("F7", m.compute)
	if watch != nil {
		r, werr := watch.rows()
		measured["F8"] = r
		err = errors.Join(err, werr)
	}
	measure("F1", func() ([]row, error) { return m.lone(*program) })
	measure("F4", m.drain)
	if !has("F5") {
		measure("F6", m.burst)
	} else {
		measure("F5", m.burst)
	}
	measure("F6", func() ([]row, error) { return m.pacedCost(*program) })
	measure("C1", m.claimState)
	for _, id := range []string{"S1", "S2", "S3", "S4"} { // they are measured together
		if has(id) {
			measure(id, m.spooled)
			break
		}
	}
	if err != nil {
		return err
	}
	if m.central != nil {
		fmt.Println("stores:", m.central.version(context.Background()))
	}
	var rows []row
	for _, id := range slices.Sorted(maps.Keys(measured)) {
		rows = append(rows, measured[id]...)
	}
	if *allocs != "" {
		if err := writeAllocs(*allocs); err != nil {
			return err
		}
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

func writeAllocs(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
