package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"scanonce/device"
	"scanonce/internal/config"
)

const (
	knownRules = `# For /usr/lib/udev/rules.d/68-scanonce.rules: scanners that the agent knows. Made by "scanonce udev --known".
# After 60-autosuspend, whose power setting it replaces, and the groups of 50-udev-default; before 73-seat-late, so
# that no seat is given what is tagged later, and before ModemManager's own rules, 77 and 80.
# Rights go by vendor and product id alone, and to no keyboard that is not a scanner. What is not here, and
# uinput for grab and wedge, is a file beside it that "scanonce udev" makes of the configuration.
`
	localRules = `# For /etc/udev/rules.d/69-scanonce-local.rules: %s. Made by "scanonce udev".
# Then: udevadm control --reload && udevadm trigger --action=change
`
)

func (a *app) udevVerb() *cobra.Command {
	var known bool
	cmd := &cobra.Command{
		Use:   "udev [VVVV:PPPP]…",
		Short: "Print udev rules that let the agent reach scanners",
		Long: `Print udev rules that give scanners to the agent's group, keep ModemManager away from their serial ports and
keep them awake. They are for the configured scanners that have the key usb, or for the vendor and product ids
that are given. The package brings rules for the scanners that it knows; --known prints those.`,
		Example: `  scanonce udev > /etc/udev/rules.d/69-scanonce-local.rules
  udevadm control --reload && udevadm trigger --action=change`,
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := a.udevRules(known, args)
			if err != nil {
				return err
			}
			return a.print(struct {
				Rules string `json:"rules"`
			}{text}, text)
		},
	}
	cmd.Flags().BoolVar(&known, "known", false, "rules for all scanners that this version knows")
	return cmd
}

func (a *app) udevRules(known bool, ids []string) (string, error) {
	switch {
	case known && len(ids) > 0:
		return "", usage("cannot print the rules of known scanners and of others at once", "leave --known or the ids out")
	case known:
		return knownRules + device.UdevRules(device.KnownUdevDevices(), false), nil
	case len(ids) > 0:
		return rulesOfIDs(ids)
	}
	c, err := a.load()
	if err != nil {
		return "", err
	}
	return rulesOfConfig(c)
}

func rulesOfIDs(ids []string) (string, error) {
	var devices []device.UdevDevice
	for _, id := range ids {
		sel, err := device.ParseUSBSelector(id, "")
		if err != nil {
			return "", usage(err.Error(), "scanonce devices lists what is attached")
		}
		d := device.UdevDevice{Title: fmt.Sprintf("%04x:%04x", sel.Vendor, sel.Product), Vendor: sel.Vendor, Product: sel.Product, Rights: device.RightsFor("", "")}
		if p, ok := device.ProfileOf(sel.Vendor, sel.Product); ok {
			d.Title, d.Rights = p.Title(), device.RightsFor(p.Mode.Transport(), "")
		}
		devices = append(devices, d)
	}
	return fmt.Sprintf(localRules, "what was named") + device.UdevRules(devices, false), nil
}

func rulesOfConfig(c *config.Config) (string, error) {
	var devices []device.UdevDevice
	types := false // somebody's keys
	for _, s := range c.Scanners {
		types = types || s.Wedge || s.Transport == "hid-keyboard" && s.Mode == "grab"
		if s.USB == "" {
			continue
		}
		sel, err := device.ParseUSBSelector(s.USB, s.Port)
		if err != nil {
			return "", usage(err.Error(), "scanonce check-config tells where")
		}
		devices = append(devices, device.UdevDevice{Title: "scanner " + s.ID, Vendor: sel.Vendor, Product: sel.Product, Rights: device.RightsFor(s.Transport, s.Mode)})
	}
	if len(devices) == 0 && !types {
		return "", usage("cannot make rules: no scanner of the configuration has the key usb",
			"name ids, such as 05e0:1701, or write usb into the scanner's table; scanonce devices shows both")
	}
	return fmt.Sprintf(localRules, "the scanners of the configuration") + device.UdevRules(devices, types), nil
}
