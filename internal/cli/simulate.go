package cli

import (
	"bufio"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scanonce/internal/api"
	"scanonce/internal/config"
	"scanonce/internal/sim"
	"scanonce/window"
)

// simulation is what a user asks of simulate.
type simulation struct {
	scanner                       string
	scans, retransmits, straddles int
	rate                          float64
	seed                          uint64
	script                        string
	hold                          bool
	timeout                       time.Duration
}

func (a *app) simulateVerb() *cobra.Command {
	var s simulation
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Type scans into the running agent from a virtual scanner",
		Long: `Type scans into the running agent from a virtual scanner: a pseudo terminal in the place of one of the serial
scanners of its configuration, which must not be plugged in. Each transmission is matched with its event; a
line tells its outcome. A straddle is a retransmission over a window boundary: the first transmission just
before, the second just behind it. At the end come the agent's durable counts and the number of rows in its
ledger. Exit code 1 says that an outcome, a count or the ledger is not as it must be; stderr says which.

--script types lines of a file in place of made-up scans, one JSON object a line:
  {"after_ms":0,"in":"]d201003009372141062100001\u001d17271130","retransmit":false}
after_ms counts from the line before. "retransmit":true expects the fate of the line's first transmission:
its duplicate, if that was committed. The terminator of the scanner's framing is added.

The scans are real to the agent: use it on a test system.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.script != "" {
				for _, f := range []string{"scans", "retransmits", "straddles", "rate", "seed"} {
					if cmd.Flags().Changed(f) {
						return usage("cannot use --script and --"+f+" together", "the script says what is typed and when")
					}
				}
			}
			steps, err := a.steps(&s, cmd.Flags().Changed("seed"))
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			cfg, err := a.loadBasics()
			if err != nil {
				return err
			}
			if a.socket != "" {
				cfg.API.Socket = a.socket
			}
			v, err := virtualScanner(cfg, s.scanner)
			if err != nil {
				return err
			}
			defer v.Close()
			err = a.simulate(ctx, cfg, v, &s, steps)
			if s.hold && (err == nil || isBad(err)) {
				fmt.Fprintf(a.stderr, "scanner %s stays at %s until interrupted\n", v.ID, v.Path)
				<-ctx.Done()
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.scanner, "scanner", "", "scanner `ID` (default: the first serial one of the configuration)")
	f.IntVar(&s.scans, "scans", 10, "`N` movements")
	f.IntVar(&s.retransmits, "retransmits", 0, "`N` of them are sent a second time, 50 to 400 ms later")
	f.IntVar(&s.straddles, "straddles", 0, "`N` of the retransmissions cross a window boundary")
	f.Float64Var(&s.rate, "rate", 4, "at most `R` movements a second")
	f.Uint64Var(&s.seed, "seed", 0, "make the scans from seed `S` (default: a random one, told on stderr)")
	f.StringVar(&s.script, "script", "", "type the lines of `FILE`; - is stdin")
	f.BoolVar(&s.hold, "hold", false, "keep the scanner plugged in afterwards until interrupted")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "longest wait for each answer of the agent")
	return cmd
}

func isBad(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.code == exitBad && f.kind == differs
}

// differs is the kind of a run whose outcomes are not as they must be.
const differs = "differs"

// steps makes or reads what is typed.
func (a *app) steps(s *simulation, seeded bool) ([]sim.Step, error) {
	if s.timeout <= 0 {
		return nil, usage(fmt.Sprintf("cannot wait %v for an answer", s.timeout), "write a --timeout such as 10s")
	}
	if s.script != "" {
		return a.readScript(s.script)
	}
	if s.rate <= 0 {
		return nil, usage(fmt.Sprintf("cannot simulate %v scans a second", s.rate), "write a --rate above 0")
	}
	if !seeded {
		var b [8]byte
		crand.Read(b[:]) // never fails
		s.seed = binary.LittleEndian.Uint64(b[:])
		if !a.json {
			fmt.Fprintf(a.stderr, "seed %d\n", s.seed)
		}
	}
	steps, err := sim.NewWorkload(s.seed).Steps(s.scans, s.retransmits, s.straddles)
	if err != nil {
		return nil, usage(err.Error(), "")
	}
	for i := range steps {
		if i > 0 && !steps[i].Retransmit {
			steps[i].After = time.Duration(float64(time.Second) / s.rate)
		}
	}
	return steps, nil
}

func (a *app) readScript(name string) ([]sim.Step, error) {
	in := a.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, usage(fmt.Sprintf("cannot read the script: %v", err), "name a file with one JSON object a line")
		}
		defer f.Close()
		in = f
	}
	var steps []sim.Step
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 64<<10)
	for n := 1; sc.Scan(); n++ {
		if strings.TrimSpace(sc.Text()) == "" {
			continue
		}
		var l struct {
			AfterMS    int64   `json:"after_ms"`
			In         *string `json:"in"`
			Retransmit bool    `json:"retransmit"`
		}
		d := json.NewDecoder(strings.NewReader(sc.Text()))
		d.DisallowUnknownFields()
		err := d.Decode(&l)
		var data string
		switch {
		case err == nil && l.In == nil:
			err = errors.New(`it has no "in"`)
		case err == nil && l.AfterMS < 0:
			err = errors.New("after_ms is less than 0")
		case err == nil:
			data, err = latin1(*l.In)
		}
		if err != nil {
			return nil, usage(fmt.Sprintf("cannot use line %d of the script: %v", n, err), `write {"after_ms":0,"in":"…","retransmit":false}, with bytes below 0x20 as \u001d`)
		}
		steps = append(steps, sim.Step{After: time.Duration(l.AfterMS) * time.Millisecond, Data: data, Retransmit: l.Retransmit})
	}
	if err := sc.Err(); err != nil {
		return nil, usage(fmt.Sprintf("cannot read the script: %v", err), "")
	}
	if len(steps) == 0 {
		return nil, usage("cannot simulate an empty script", "write one JSON object a line")
	}
	return steps, nil
}

// latin1 is JSON text as bytes: each character is one byte.
func latin1(s string) (string, error) {
	b := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return "", fmt.Errorf("%q is no byte", r)
		}
		b = append(b, byte(r))
	}
	return string(b), nil
}

// virtualScanner is a scanner that can take the place of one in the configuration. It is not plugged in.
func virtualScanner(cfg *config.Config, id string) (*sim.Scanner, error) {
	hint := "the configuration of the agent is needed: give --config"
	for _, s := range cfg.Scanners {
		switch {
		case id != "" && s.ID != id, id == "" && s.Transport != "serial":
			continue
		case s.Transport != "serial":
			return nil, usage(fmt.Sprintf("cannot simulate scanner %s: its transport is %s", s.ID, s.Transport), "name a serial scanner")
		}
		f, err := sim.FramingOf(s.Framing)
		if err != nil {
			return nil, usage(err.Error(), "")
		}
		return &sim.Scanner{ID: s.ID, Path: s.Path, Framing: f}, nil
	}
	if id != "" {
		return nil, usage(fmt.Sprintf("cannot find scanner %s in the configuration", id), hint)
	}
	return nil, usage("cannot find a serial scanner in the configuration", hint)
}

// simulate runs steps on v and prints what came out. The scanner stays plugged in.
func (a *app) simulate(ctx context.Context, cfg *config.Config, v *sim.Scanner, s *simulation, steps []sim.Step) error {
	c := api.NewClient(cfg.API.Socket)
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return told(err)
	}
	typ := window.Dispense
	for _, d := range st.Scanners {
		if d.ID == v.ID {
			typ = d.ScanType
		}
	}
	host, err := window.Host()
	if err != nil {
		return told(err)
	}
	if s.script == "" {
		for i := range steps {
			steps[i].Data = asSent(cfg.Scanner(v.ID), steps[i].Data)
		}
	}
	r := sim.Run{
		Agent: c, Scanner: v, Steps: steps, Scripted: s.script != "", Policy: cfg.Window.For(typ),
		Host: host, Timeout: s.timeout,
		Report: func(r *sim.Result) error { return a.print(r, resultText(r)) },
	}
	sum, err := r.Do(ctx)
	if err != nil {
		return told(err)
	}
	out := struct {
		sim.Summary
		Seed *uint64 `json:"seed"`
	}{Summary: sum}
	if s.script == "" {
		out.Seed = &s.seed
	}
	if err := a.print(out, fmt.Sprintf("%s\nledger rows=%d\n", countsText(sum.Counts), sum.LedgerRows)); err != nil {
		return err
	}
	if sum.OK {
		return nil
	}
	f := &failure{code: exitBad, kind: differs}
	for _, p := range sum.Problems {
		f.lines = append(f.lines, line{detail: p})
	}
	return f
}

// asSent is data as a scanner with the settings of s sends it, the first gun of a base.
func asSent(s *config.Scanner, data string) string {
	if s.GSSubstitute != "" {
		data = strings.ReplaceAll(data, "\x1d", s.GSSubstitute)
	}
	if rest, ok := strings.CutPrefix(data, "]"); ok && s.SymbologyPrefix != "" {
		data = s.SymbologyPrefix + rest
	}
	if s.GunDigits > 0 {
		data = fmt.Sprintf("%0*d", s.GunDigits, 1) + data
	}
	return data
}

func resultText(r *sim.Result) string {
	words := []string{fmt.Sprintf("scan %02d", r.N), fmt.Sprintf("%-9s", r.Outcome)}
	switch {
	case r.Of > 0:
		words = append(words, fmt.Sprintf("of scan %02d", r.Of))
	case r.DuplicateOf != nil:
		words = append(words, "of "+*r.DuplicateOf)
	}
	if r.Straddle {
		words = append(words, "straddle")
	}
	if t := itemText(r.Item); t != "" {
		words = append(words, t)
	}
	switch {
	case r.Outcome == sim.Committed || r.Outcome == sim.Duplicate:
	case r.Detail != "":
		words = append(words, r.Detail)
	case r.Reason != nil:
		words = append(words, *r.Reason)
	}
	if r.Key != nil {
		words = append(words, shortKey(*r.Key))
	}
	return strings.Join(words, "  ") + "\n"
}
