package cli

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"scanonce/device"
	"scanonce/internal/agent"
	"scanonce/internal/api"
	"scanonce/internal/config"
)

func (a *app) devicesVerb() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List attached scanners, with the lines that configure them",
		Long: `List what is attached by USB and is a scanner, or could be, with the lines to paste into the configuration, and
the configured scanners that are not attached. Scanners come first. A keyboard of a maker who is not known for
scanners is marked, and its lines are comments: the agent reads no keyboard that it was not told to.

The running agent is asked, which knows the scanners' states; without one the list is made of what the kernel
shows. No device is opened for it.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, none := 0, "No scanner is attached by USB. "
			show := func(d api.Device) error {
				n++
				return a.print(d, deviceText(d))
			}
			err := a.withAgent(cmd.Context(), func(c *api.Client) error { return c.Devices(cmd.Context(), show) }, func() error {
				devs, err := device.ReadUSB(root)
				if err != nil {
					none = "No USB bus can be seen (scanonce doctor tells more). "
				}
				for _, d := range agent.ListDevices(root, devs, a.configuredScanners(), nil) {
					if err := show(d); err != nil {
						return err
					}
				}
				return nil
			})
			if err == nil && n == 0 && !a.json {
				return a.print(nil, none+"Serial ports of the machine itself are not listed: write their path.\n")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "folder that holds sys and dev")
	cmd.Flags().MarkHidden("root")
	return cmd
}

// configuredScanners are those of the configuration, none if it does not load: what is attached is shown all the
// same.
func (a *app) configuredScanners() []config.Scanner {
	cfg, err := a.loadBasics()
	if err != nil {
		return nil
	}
	return cfg.Scanners
}

func deviceText(d api.Device) string {
	var b strings.Builder
	kind := orDash(d.Transport)
	if !d.Scanner {
		kind = "KEYBOARD, NOT KNOWN AS A SCANNER"
	} else if d.Transport == nil {
		kind = "scanner in a mode that is not read"
	}
	fmt.Fprintf(&b, "%s  %s", plain(d.ID), kind)
	if d.Name != nil {
		fmt.Fprintf(&b, "  %s", plain(*d.Name))
	}
	fmt.Fprintf(&b, "\n  port %s  node %s", plain(orDash(d.Port)), plain(orDash(d.Node)))
	switch {
	case d.ScannerID == nil:
		b.WriteString("  not configured")
	case d.State != nil:
		fmt.Fprintf(&b, "  scanner %s, %s", *d.ScannerID, *d.State)
	default:
		fmt.Fprintf(&b, "  scanner %s", *d.ScannerID)
	}
	if d.Ambiguous {
		b.WriteString("  AMBIGUOUS: told apart by its port only")
	}
	b.WriteByte('\n')
	if d.ScannerID == nil {
		for line := range strings.Lines(d.Config) {
			b.WriteString("    " + plain(strings.TrimSuffix(line, "\n")) + "\n")
		}
	}
	return b.String()
}

func orDash(s *string) string {
	if s == nil {
		return "–"
	}
	return *s
}

// plain keeps what a device says of itself from steering the terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
