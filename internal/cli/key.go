package cli

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/idem"
	"scanonce/window"
)

type keyResult struct {
	Key         *string `json:"key"`
	WindowIndex *int64  `json:"window_index"`
	Boundary    *int64  `json:"boundary"`
	EdgeKey     *string `json:"edge_key"`
	Material    string  `json:"material"`
}

func (a *app) keyVerb() *cobra.Command {
	var (
		id           idem.Identity
		typ, at      string
		win, border  int64
		quantityHelp = "quantity, 1 to 9999"
	)
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Compute the idempotency key of a scan",
		Long: `Compute the idempotency key of a scan, and its edge key near a window boundary.

The window is given by its number (--window), or by an instant in it (--at). With --at the edge key is
computed if the instant lies within the guard of a boundary; --boundary N gives the edge key of boundary N.
--gtin goes into the key only without --ndc, --hibc only without both. The facility is agent.facility_uuid
of the configuration unless --facility is given; the widths of the windows are the configuration's.`,
		Example: `  scanonce key --facility FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF --scanner SCN-04 --ndc 00093721410 --lot A1207 --window 587402113
  scanonce key --scanner SCN-04 --gtin 00300937214106 --serial SN0001 --at 2025-11-03T21:45:41.900Z --json`,
		Args: takes(),
	}
	f := cmd.Flags()
	f.StringVar(&id.Facility, "facility", "", "facility, 1 to 64 printable ASCII characters")
	f.StringVar(&id.Scanner, "scanner", "", "scanner id (required)")
	f.StringVar(&id.NDC, "ndc", "", "NDC, 11 digits, or 12 of a labeler that has no shorter form")
	f.StringVar(&id.Lot, "lot", "", "lot number")
	f.IntVar(&id.Quantity, "quantity", 1, quantityHelp)
	f.StringVar(&typ, "type", "dispense", "scan type: receive, dispense, waste, return, adjust, transfer or count")
	f.StringVar(&id.GTIN, "gtin", "", "GTIN, 14 digits; used without --ndc")
	f.StringVar(&id.HIBC, "hibc", "", "HIBC identity (LIC, PCN and unit); used without --ndc and --gtin")
	f.StringVar(&id.Serial, "serial", "", "serial number")
	f.StringVar(&id.Again, "again", "", "what makes the scan fresh: an event id or an Idempotency-Key")
	f.Int64Var(&win, "window", 0, "window number `N`")
	f.StringVar(&at, "at", "", "instant `TIME` of the scan, RFC 3339")
	f.Int64Var(&border, "boundary", 0, "boundary number `N` of the edge key")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.loadBasics()
		if err != nil {
			return err
		}
		if id.Facility == "" {
			id.Facility = cfg.Agent.FacilityUUID
		}
		if id.Type, err = window.ParseScanType(typ); err != nil {
			return usage(err.Error(), "")
		}
		if err := checkIdentity(&id); err != nil {
			return err
		}
		policy := cfg.Window.For(id.Type)
		hasWindow, hasAt, hasBoundary := f.Changed("window"), f.Changed("at"), f.Changed("boundary")
		var keys idem.Keys
		var boundary *window.Index
		if hasBoundary {
			b := window.Index(border)
			boundary = &b
		}
		switch {
		case hasWindow && hasAt:
			return usage("cannot use --window and --at together", "an instant lies in one window: give one of the two")
		case hasWindow:
			keys = id.KeysAt(policy, window.Index(win), boundary)
		case hasAt:
			var t window.UTC
			if err := t.UnmarshalText([]byte(at)); err != nil {
				return usage(err.Error(), "")
			}
			if b, ok := policy.Boundary(t); ok && boundary == nil {
				boundary = &b
			}
			keys = id.KeysAt(policy, policy.Index(t), boundary)
		case hasBoundary:
			edge := id.KeysAt(policy, *boundary, boundary).Edge
			return a.printKey(keyResult{
				Boundary: number(*boundary), EdgeKey: text(edge),
				Material: string(id.AppendMaterial([]byte("edge|"), policy, *boundary)),
			})
		default:
			return usage("cannot compute a key without a window", "give --window N, or --at with the time of the scan")
		}
		r := keyResult{
			Key: text(keys.Idem), WindowIndex: number(keys.Window), EdgeKey: text(keys.Edge),
			Material: string(id.AppendMaterial(nil, policy, keys.Window)),
		}
		if boundary != nil {
			r.Boundary = number(*boundary)
		}
		return a.printKey(r)
	}
	return cmd
}

func (a *app) printKey(r keyResult) error {
	var b strings.Builder
	if r.Key != nil {
		fmt.Fprintln(&b, *r.Key)
	}
	if r.EdgeKey != nil {
		fmt.Fprintln(&b, *r.EdgeKey)
	}
	if r.WindowIndex != nil {
		fmt.Fprintf(&b, "window    %d\n", *r.WindowIndex)
	}
	if r.Boundary != nil {
		fmt.Fprintf(&b, "boundary  %d\n", *r.Boundary)
	}
	fmt.Fprintf(&b, "material  %s\n", r.Material)
	return a.print(r, b.String())
}

func number(i window.Index) *int64 {
	n := int64(i)
	return &n
}

func text(k idem.Key) *string {
	if k.IsZero() {
		return nil
	}
	s := k.String()
	return &s
}

// checkIdentity checks the fields, and drops those that do not apply.
func checkIdentity(id *idem.Identity) error {
	digits := func(s string, lengths ...int) bool {
		for _, n := range lengths {
			if len(s) == n && strings.Trim(s, "0123456789") == "" {
				return true
			}
		}
		return false
	}
	printable := regexp.MustCompile(`^[ -~]{1,64}$`)
	// Behind the configured id stands a gun's address; before it, for derived ids, the agent's.
	scanner := regexp.MustCompile(`^([A-Za-z0-9_-]{1,64}/)?[A-Za-z0-9_.-]{1,32}(/[0-9]{1,4})?$`)
	switch {
	case id.Facility == "":
		return usage("cannot compute a key without a facility", "give --facility, or --config with agent.facility_uuid")
	case !printable.MatchString(id.Facility):
		return usage(fmt.Sprintf("cannot use facility %q", id.Facility), "write 1 to 64 printable ASCII characters")
	case id.Scanner == "":
		return usage("cannot compute a key without a scanner", "give --scanner with the scanner's id")
	case !scanner.MatchString(id.Scanner):
		return usage(fmt.Sprintf("cannot use scanner %q", id.Scanner), "write 1 to 32 of A-Z a-z 0-9 _ . -, for a gun of a base with its address as in SCN-04/02")
	case id.NDC != "" && !digits(id.NDC, 11, 12):
		return usage(fmt.Sprintf("cannot use NDC %q", id.NDC), "write 11 digits (5-4-2, no hyphens), or the 12 digits of a 6-4-2 code")
	case id.GTIN != "" && !digits(id.GTIN, 14):
		return usage(fmt.Sprintf("cannot use GTIN %q", id.GTIN), "write 14 digits, with zeros in front")
	case id.Quantity < 1 || id.Quantity > 9999:
		return usage(fmt.Sprintf("cannot use quantity %d", id.Quantity), "write 1 to 9999")
	}
	if id.NDC != "" {
		id.GTIN = ""
	}
	if id.NDC != "" || id.GTIN != "" {
		id.HIBC = ""
	}
	return nil
}
