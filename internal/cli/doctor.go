package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"scanonce/device"
	"scanonce/internal/config"
)

// finding is what one check of doctor found.
type finding struct {
	Category string `json:"category"`
	Check    string `json:"check"`
	OK       bool   `json:"ok"`
	Detail   string `json:"detail"`
	Hint     string `json:"hint"` // what to do; "" if it is well
}

func (a *app) doctorVerb() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps scanners from being read",
		Long: `Look for what keeps scanners from being read: whether this build and this machine reach USB devices, and of each
configured USB scanner whether it is attached, the agent's user has the rights, no other program probes it, it is
kept awake, and the kernel has a driver for it. Nothing is opened or changed. Run it as root or as the agent's
user. Exit code 1 says that something is not well.`,
		Args: takes(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadBasics()
			if err != nil {
				return err
			}
			running := false
			if c, err := a.client(); err == nil {
				running = !nobodyThere(c.Alive(cmd.Context()))
				c.Close()
			}
			well := true
			for _, f := range checkDevices(root, cfg, running) {
				mark, more := "ok  ", ""
				if !f.OK {
					well, mark, more = false, "BAD ", "      do: "+plain(f.Hint)+"\n"
				}
				if err := a.print(f, fmt.Sprintf("%s  %s %s: %s\n%s", mark, f.Category, plain(f.Check), plain(f.Detail), more)); err != nil {
					return err
				}
			}
			if !well {
				return bad()
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "folder that holds sys, dev, proc and run")
	cmd.Flags().MarkHidden("root")
	return cmd
}

// checkDevices looks at what the configured scanners need. running says that an agent does.
func checkDevices(root string, cfg *config.Config, running bool) []finding {
	e := &examiner{root: root, running: running}
	var usb []config.Scanner
	exclusive, types := false, false
	for _, s := range cfg.Scanners {
		types = types || s.Wedge
		if s.USB != "" {
			usb = append(usb, s)
			exclusive = exclusive || s.Transport != "serial" && s.Mode == "exclusive"
		}
	}
	if types {
		err := usable([]node{{e.path("dev/uinput"), true}})
		e.check("wedge", err, "scans can be typed", "load the module uinput; then, "+makeRules)
	}
	if len(usb) == 0 {
		e.well("usb", "no scanner is configured by USB")
		return e.found
	}
	devs, err := device.ReadUSB(root)
	e.check("usb bus", err, fmt.Sprintf("%d devices are attached", len(devs)), "load the host controller's driver (lspci -k tells of it), and let the service see /sys")
	e.check("usb events", device.ProbeEvents(), "the kernel tells of devices that come and go",
		"let the service use AF_NETLINK (RestrictAddressFamilies): until then a scanner that comes back is found later")
	if exclusive {
		e.check("usb library", device.ProbeUSB(), "scanners can be read alone", "use a build with cgo, on a machine with /dev/bus/usb that the service may enter; or write mode = \"listen\"")
	}
	for _, s := range usb {
		e.scanner(s, devs)
	}
	return e.found
}

// examiner collects findings.
type examiner struct {
	root    string
	running bool
	found   []finding
}

func (e *examiner) well(check, detail string) {
	e.found = append(e.found, finding{Category: "device", Check: check, OK: true, Detail: detail})
}

func (e *examiner) bad(check, detail, hint string) {
	e.found = append(e.found, finding{Category: "device", Check: check, Detail: detail, Hint: hint})
}

func (e *examiner) check(name string, err error, well, hint string) {
	if err != nil {
		e.bad(name, err.Error(), hint)
		return
	}
	e.well(name, well)
}

func (e *examiner) scanner(s config.Scanner, devs []device.USBDevice) {
	name := "scanner " + s.ID + " "
	sel, err := device.ParseUSBSelector(s.USB, s.Port)
	if err == nil {
		var d device.USBDevice
		if d, err = sel.Find(devs); err == nil {
			e.well(name+"attached", fmt.Sprintf("%s at port %s", d.ID(), d.Port))
			e.rights(name, s, d)
			e.awake(name, d)
			if s.Transport == "serial" {
				e.modemManager(name, d)
			} else {
				e.driver(name, s, d)
			}
			return
		}
	}
	hint := "plug it in, or write usb and port as scanonce devices shows them"
	if errors.Is(err, device.ErrAmbiguous) {
		hint = "write in its table what the message says"
	}
	e.bad(name+"attached", err.Error(), hint)
}
