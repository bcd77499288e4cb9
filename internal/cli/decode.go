package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/capture"
	"scanonce/internal/agent"
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
		list, _, err := agent.ReadNDC(name)
		if err != nil {
			return nil, told(err)
		}
		dc.Directory = list
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
	host, err := window.Host()
	if err != nil {
		return told(err)
	}
	refused := false
	var s capture.Scan
	var document capture.Burst // a driver's licence comes as many lines
	err = a.eachLine(func(_ int, in []byte) error {
		r := capture.DocumentRefused()
		if document.Absorb(in, host.Boot()) {
			d.Decode(&s, nil, p, today) // forgets the line before
		} else {
			r = d.Decode(&s, in, p, today)
		}
		if r.OK() {
			return a.print(s.Report().Redacted(), scanText(&s, today))
		}
		refused = true
		return a.print(struct {
			Error  capture.ErrorKind `json:"error"`
			Detail string            `json:"detail"`
		}{r.Kind, r.Detail}, refusalText(r, s.Symbology))
	})
	if err == nil && refused {
		return bad()
	}
	return err
}

// refusalText tells people what is wrong and what to do, and nothing of the payload.
func refusalText(r capture.Refusal, symbology string) string {
	return fmt.Sprintf("refused   %s: %s%s\n  %s\n", r.Kind, r.Kind.Meaning(), symbologyText("  ", symbology), r.Detail)
}

// symbologyText is an AIM identifier with its name, "" without one.
func symbologyText(before, id string) string {
	if id == "" {
		return ""
	}
	if name := capture.SymbologyName(id); name != "" {
		return before + id + " " + name
	}
	return before + id
}

// scanText tells people what a scan says and what follows from it.
func scanText(s *capture.Scan, today capture.Date) string {
	var b strings.Builder
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", name, value)
		}
	}
	fmt.Fprintf(&b, "%s%s\n", s.Kind, symbologyText("  ", s.Symbology))
	s.AIs(func(ai, title, value string) bool {
		fmt.Fprintf(&b, "  %-6s %-22s %s", "("+ai+")", title, value)
		if words := capture.Plain(ai, value, today); words != "" {
			fmt.Fprintf(&b, "   %s", words)
		}
		b.WriteByte('\n')
		return true
	})
	row("gun", s.Gun)
	itemRows(s, row)
	row("lot", s.Lot)
	row("serial", s.Serial)
	if !s.Expiry.IsZero() {
		row("expiry", fmt.Sprintf("%s: %s, usable through %s", s.Expiry, s.Expiry.Words(), s.ExpiryLastDay.Words()))
	}
	if s.Kind == capture.KindHIBC {
		hibcRows(s, row)
	}
	row("add-on", s.AddOn)
	if s.Kind == capture.KindCommand {
		row("command", s.Command.String()+": "+s.Command.Title())
		row("", s.Command.Meaning())
	}
	if s.Kind == capture.KindRxLabel {
		row("Rx label", "profile "+s.Rx.Profile)
		for _, group := range [...]string{"rx", "refill", "store"} { // in the order of the patterns' groups
			row(group, s.Report().Redacted().Rx[group])
		}
	}
	switch {
	case s.Kind == capture.KindOpaque:
		row("meaning", fmt.Sprintf("none known: %d bytes, which are not shown", s.Length))
	case s.IsMovement():
		row("identity", identityText(s))
	case s.Kind != capture.KindCommand && s.Kind != capture.KindRxLabel:
		row("identity", "none: the scan names no item, and makes no row")
	}
	for _, f := range s.Report().Flags {
		row("flag", f+": "+flagText(f, s))
	}
	return b.String()
}

// itemRows tells the item's number and what was concluded from it, and why.
func itemRows(s *capture.Scan, row func(name, value string)) {
	rep := s.Report()
	row("GTIN", s.GTIN)
	if s.PkgLevel > 0 {
		row("level", fmt.Sprintf("%d: a carton or case, not the single package", s.PkgLevel))
	}
	if s.NDC12 != "" {
		decided := *rep.NDC12
		if s.NDC11 != "" {
			decided = s.NDC11 + ", in 12 digits " + decided
		} else {
			decided += ": this labeler's codes have no form of 11 digits"
		}
		row("NDC", decided)
		row("", s.NDCReason())
		return
	}
	row("NDC", s.NDCReason())
	for i, c := range rep.Candidates10 {
		row("", fmt.Sprintf("could be %s, in 11 digits %s", c, rep.Candidates11[i]))
	}
}

// hibcRows tells the parts of an HIBC label.
func hibcRows(s *capture.Scan, row func(name, value string)) {
	h := s.HIBCData
	row("HIBC", s.HIBC)
	row("labeler", h.LIC)
	row("product", h.PCN)
	if h.UOM != "" {
		row("unit", h.UOM+": the packaging level, 0 for the unit of use, 9 for a varying quantity")
	}
	if h.Quantity >= 0 {
		row("quantity", fmt.Sprintf("%d: the label's own figure, never the quantity of the scan", h.Quantity))
	}
	if h.Link != "" {
		row("link", fmt.Sprintf("%q: the check character of the barcode that names the item", h.Link))
	}
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

// flagText tells what a flag of the scan means and what to do.
func flagText(flag string, s *capture.Scan) string {
	switch flag {
	case "no_item_id":
		return "the label names no item: scan the item's own barcode too"
	case "looks_like_gs1":
		return "plain text that reads like GS1 data: the label is badly made, or the scanner's GS1 setting is off"
	case "url":
		return "an ordinary link, which is not opened"
	case "missing_separator_suspected":
		last, hidden := s.LostSeparator()
		if hidden == last {
			hidden = "another element"
		}
		return fmt.Sprintf("%s may hold %s, too: the separator (GS) between them may be missing. Let the scanner send GS and AIM identifiers", last, hidden)
	case "ndc_unresolved":
		return "the NDC directory lists none of the readings: import a newer one"
	case "ndc_ambiguous":
		return "more than one NDC fits: the directory lists several readings, or the label's two numbers differ"
	case "assumed_5_4_2":
		return "11 digits were taken as 5-4-2"
	case "needs_primary":
		return "lot or expiry without the item: scan the other barcode too"
	}
	return ""
}
