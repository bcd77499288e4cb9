package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/capture"
	"scanonce/internal/config"
	"scanonce/window"
)

func (a *app) decodeVerb() *cobra.Command {
	var jsonl bool
	var now, scanner string
	cmd := &cobra.Command{
		Use:   "decode",
		Short: "Tell what scans mean, one a line on standard input",
		Long: `Tell what scans mean, one a line on standard input, as a scanner sends them: with or without AIM identifier,
GS as the byte 1D. It touches no device and no state. The NDC directory and the prescription labels are those
of the configuration, and with --scanner that scanner's peculiarities. Exit code 1: a line was refused.

With --jsonl each line is a JSON object: "in" is the scan with \u001d for GS, "ctx" (optional) sets now,
gs_substitute, ndc_directory and rx_profiles for this line, "id" is repeated. Then the exit code is 0 unless
a line is no such object, 2. Without now and --now its day is 2026-11-29, as in the published vectors, so that
the output does not depend on the day.`,
		Example: `  printf ']d20100300937214106211\x1d1727113010A1207\n' | scanonce decode
  scanonce decode --jsonl < vectors.jsonl`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			today, err := day(now, jsonl, localDay)
			if err != nil {
				return err
			}
			if jsonl {
				return a.decodeObjects(today)
			}
			cfg, err := a.loadBasics()
			if err != nil {
				return err
			}
			d, err := decoder(cfg)
			if err != nil {
				return err
			}
			var p capture.Profile
			if scanner != "" {
				s := cfg.Scanner(scanner)
				if s == nil {
					return usage(fmt.Sprintf("cannot find scanner %q in the configuration", scanner), "write the id of one of its [[scanner]] tables")
				}
				p = profileOf(s)
			}
			return a.decodeLines(d, &p, today)
		},
	}
	cmd.Flags().BoolVar(&jsonl, "jsonl", false, "read a JSON object a line")
	cmd.Flags().StringVar(&now, "now", "", "the local `DATE`, which decides the century of two-digit years (default: today; with --jsonl "+vectorDay+")")
	cmd.Flags().StringVar(&scanner, "scanner", "", "read as from the configured scanner `ID`")
	return cmd
}

// vectorDay is the day of a vector that names none.
const vectorDay = "2026-11-29"

// day is the one that --now says, else that of vectors, or for raw lines the machine's.
func day(now string, vectors bool, machine func() (capture.Date, error)) (capture.Date, error) {
	if now == "" && !vectors {
		return machine()
	}
	d, err := capture.ParseDate(or(now, vectorDay))
	if err != nil {
		return d, usage(err.Error(), "write --now as 2026-11-29")
	}
	return d, nil
}

// localDay is the machine's local day.
func localDay() (capture.Date, error) {
	host, err := window.Host()
	if err != nil {
		return capture.Date{}, told(err)
	}
	return capture.DateOf(host.Wall().Local()), nil
}

// decoder is the configuration's decoder.
func decoder(cfg *config.Config) (*capture.Decoder, error) {
	var dc capture.DecoderConfig
	for _, p := range cfg.RxProfiles {
		dc.Rx = append(dc.Rx, capture.RxProfile{Name: p.Name, Pattern: p.Pattern})
	}
	if name := cfg.NDC.Directory; name != "" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &failure{code: exitUsage, kind: "config", detail: fmt.Sprintf("cannot read ndc.directory: %v", err), hint: "name a text file with one hyphenated NDC a line"}
		}
		defer f.Close()
		if dc.Directory, err = capture.LoadDirectory(f); err != nil {
			return nil, &failure{code: exitUsage, kind: "config", detail: fmt.Sprintf("cannot use ndc.directory %s: %v", name, err)}
		}
	}
	d, err := capture.NewDecoder(dc)
	if err != nil {
		return nil, &failure{code: exitUsage, kind: "config", detail: err.Error()}
	}
	return d, nil
}

func profileOf(s *config.Scanner) capture.Profile {
	p := capture.Profile{GunDigits: s.GunDigits, BareDigits: s.BareDigits, SymbologyPrefix: s.SymbologyPrefix}
	if s.GSSubstitute != "" {
		p.GSSubstitute = s.GSSubstitute[0]
	}
	return p
}

// eachLine calls do with every line of stdin, without its newline.
func (a *app) eachLine(do func(n int, line []byte) error) error {
	r := bufio.NewReader(a.stdin)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if len(line) > 0 {
			if err := do(n, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return told(fmt.Errorf("cannot read standard input: %w", err))
		}
	}
}

func (a *app) decodeObjects(today capture.Date) error {
	var wrong []line
	err := a.eachLine(func(n int, in []byte) error {
		out, err := capture.DecodeVectorLine(in, today)
		if err != nil {
			wrong = append(wrong, line{detail: fmt.Sprintf("cannot use line %d: %v", n, err)})
			return nil
		}
		_, err = a.stdout.Write(append(out, '\n'))
		return err
	})
	if err == nil && len(wrong) > 0 {
		return &failure{code: exitUsage, kind: "usage", lines: wrong}
	}
	return err
}

func (a *app) decodeLines(d *capture.Decoder, p *capture.Profile, today capture.Date) error {
	refused := false
	var s capture.Scan
	err := a.eachLine(func(_ int, in []byte) error {
		r := d.Decode(&s, in, p, today)
		if r.OK() {
			return a.print(s.Report(), scanText(&s))
		}
		refused = true
		return a.print(struct {
			Error  capture.ErrorKind `json:"error"`
			Detail string            `json:"detail"`
		}{r.Kind, r.Detail}, fmt.Sprintf("refused   %s\n  %s\n", r.Kind, r.Detail))
	})
	if err == nil && refused {
		return bad()
	}
	return err
}

// scanText tells people what a scan says and what follows from it.
func scanText(s *capture.Scan) string {
	var b strings.Builder
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", name, value)
		}
	}
	if s.Symbology == "" {
		fmt.Fprintf(&b, "%s\n", s.Kind)
	} else {
		fmt.Fprintf(&b, "%s  %s\n", s.Kind, s.Symbology)
	}
	s.AIs(func(ai, title, value string) bool {
		fmt.Fprintf(&b, "  (%s) %-16s %s\n", ai, title, value)
		return true
	})
	rep := s.Report()
	row("gun", s.Gun)
	row("GTIN", s.GTIN)
	if s.PkgLevel > 0 {
		row("level", fmt.Sprintf("%d: a carton or case, not the single package", s.PkgLevel))
	}
	switch {
	case s.NDC11 != "" && rep.NDC12 != nil:
		row("NDC", s.NDC11+", in 12 digits "+*rep.NDC12)
	case rep.NDC12 != nil:
		row("NDC", *rep.NDC12)
	case s.NDC11 != "":
		row("NDC", s.NDC11)
	case s.NCandidates > 0:
		row("NDC", fmt.Sprintf("not decided: %s", strings.Join(rep.Candidates10, ", ")))
	}
	row("lot", s.Lot)
	row("serial", s.Serial)
	if !s.Expiry.IsZero() {
		row("expiry", fmt.Sprintf("%s, usable through %s", s.Expiry, s.ExpiryLastDay))
	}
	row("HIBC", s.HIBC)
	row("add-on", s.AddOn)
	row("command", s.Command.String())
	if s.Kind == capture.KindRxLabel {
		row("Rx label", fmt.Sprintf("profile %s, number %s", s.Rx.Profile, s.Rx.Rx))
	}
	switch {
	case s.Kind == capture.KindOpaque:
		row("meaning", fmt.Sprintf("none known, %d bytes", s.Length))
	case s.IsMovement():
		row("identity", identityText(s))
	}
	for _, f := range rep.Flags {
		row("flag", f+": "+flagText(f))
	}
	return b.String()
}

// identityText tells what makes the item's key.
func identityText(s *capture.Scan) string {
	id := "HIBC"
	switch {
	case s.NDC() != "":
		id = "NDC"
	case s.GTIN != "":
		id = "GTIN"
	}
	if s.Lot != "" {
		id += ", lot"
	}
	if s.Serial != "" {
		id += ", serial"
	}
	return id
}

func flagText(flag string) string {
	switch flag {
	case "no_item_id":
		return "the label names no item"
	case "looks_like_gs1":
		return "plain text that reads like GS1 data: the label is badly made"
	case "url":
		return "an ordinary link"
	case "missing_separator_suspected":
		return "the scanner may drop GS: the last value may hold another element"
	case "ndc_unresolved":
		return "the NDC directory lists none of the readings; the GTIN is the identity"
	case "ndc_ambiguous":
		return "more than one reading of the NDC is listed; the GTIN is the identity"
	case "assumed_5_4_2":
		return "11 digits were taken as 5-4-2"
	case "needs_primary":
		return "lot or expiry without the item: scan the other barcode too"
	}
	return "see the documentation"
}
