package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"scanonce/device"
	"scanonce/internal/config"
)

// rebound is an interface that had no driver.
type rebound struct {
	Interface string  `json:"interface"`
	VID       string  `json:"vid"`
	PID       string  `json:"pid"`
	OK        bool    `json:"ok"`
	Detail    *string `json:"detail"`
}

func (a *app) rebindVerb() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "rebind",
		Short: "Give scanners that were read alone back to the kernel",
		Long: `Give USB scanners that were read alone (mode "exclusive") back to the kernel's driver, as root. The agent does it
when it stops. One that was killed cannot: until they are plugged in again, nothing but the next agent reads them.
The unit runs this whenever the agent has ended. It touches HID interfaces without a driver of the configured
exclusive scanners, and nothing else; without a readable configuration, those of known scanners.`,
		Args: takes(),
		RunE: func(*cobra.Command, []string) error {
			match := knownScanner
			if c, err := a.load(); err == nil {
				match = exclusiveScanner(c)
			} else {
				fmt.Fprintln(a.stderr, "scanonce: cannot read the configuration: known scanners are given back; scanonce check-config tells what is wrong")
			}
			done, err := device.Rebind(root, match)
			if err != nil {
				return &failure{code: exitBad, kind: "failed", detail: err.Error()}
			}
			return a.tellRebound(done)
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "folder `DIR` that holds sys, in place of the machine's own")
	cmd.Flags().MarkHidden("root")
	return cmd
}

func (a *app) tellRebound(done []device.Rebound) error {
	out, failed := []rebound{}, false
	var text strings.Builder
	for _, d := range done {
		r := rebound{Interface: d.Interface, VID: fmt.Sprintf("%04x", d.Vendor), PID: fmt.Sprintf("%04x", d.Product), OK: d.Err == nil}
		if d.Err != nil {
			why := d.Err.Error()
			r.Detail, failed = &why, true
			fmt.Fprintf(&text, "%s  %s:%s  %s\n", r.Interface, r.VID, r.PID, why)
		} else {
			fmt.Fprintf(&text, "%s  %s:%s  given back\n", r.Interface, r.VID, r.PID)
		}
		out = append(out, r)
	}
	if len(done) == 0 {
		text.WriteString("nothing to give back\n")
	}
	if a.json {
		for _, r := range out {
			if err := writeJSON(a.stdout, r); err != nil {
				return err
			}
		}
	} else if _, err := fmt.Fprint(a.stdout, text.String()); err != nil {
		return err
	}
	if failed {
		return bad()
	}
	return nil
}

// exclusiveScanner matches what the configuration reads alone by USB.
func exclusiveScanner(c *config.Config) func(device.USBDevice) bool {
	var models []device.USBSelector
	for _, s := range c.Scanners {
		if s.Mode != "exclusive" || s.Transport != "hid-pos" && s.Transport != "hid-keyboard" {
			continue
		}
		if sel, err := device.ParseUSBSelector(s.USB, ""); err == nil {
			models = append(models, sel)
		}
	}
	return func(d device.USBDevice) bool {
		for _, m := range models { // by model: a twin without a driver was the agent's as well
			if m.Vendor == d.Vendor && m.Product == d.Product {
				return true
			}
		}
		return false
	}
}

func knownScanner(d device.USBDevice) bool {
	_, ok := device.ProfileOf(d.Vendor, d.Product)
	return ok
}
