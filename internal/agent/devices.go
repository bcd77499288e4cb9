package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"scanonce/device"
	"scanonce/internal/api"
	"scanonce/internal/config"
)

// Devices yields what is attached, and configured scanners that are not; see api.Devices.
func (a *agent) Devices(_ context.Context, yield func(api.Device) error) error {
	f := a.fleet
	f.mu.Lock()
	var scanners []config.Scanner
	for _, c := range f.scanners {
		scanners = append(scanners, c)
	}
	f.mu.Unlock()
	for _, d := range ListDevices(a.opts.USBRoot, f.bus.Devices(), scanners, func(id string) *string { return nullable(string(f.state(id))) }) {
		if err := yield(d); err != nil {
			return err
		}
	}
	return nil
}

// ListDevices is the list of what is attached beside the configured scanners. root is that of the bus; state is nil
// without an agent.
func ListDevices(root string, devs []device.USBDevice, scanners []config.Scanner, state func(id string) *string) []api.Device {
	if state == nil {
		state = func(string) *string { return nil }
	}
	var out []api.Device
	ids := freeIDs(scanners)
	listed := map[string]bool{}
	for _, at := range device.FindAttached(root, devs) {
		d := api.Device{ID: at.ID(), Transport: nullable(at.Transport), VID: hexText(at.Vendor), PID: hexText(at.Product), Serial: nullable(at.Serial),
			Port: nullable(at.Port), Node: nullable(at.Node), Ambiguous: at.Ambiguous, Name: nullable(at.Title), Scanner: at.Scanner}
		for _, c := range scanners {
			if !listed[c.ID] && means(c, at.USBDevice, devs) {
				listed[c.ID] = true
				d.ScannerID, d.State, d.Transport, d.Scanner = nullable(c.ID), state(c.ID), nullable(c.Transport), true
				d.Config = configured(c)
				break
			}
		}
		if d.ScannerID == nil {
			d.Config = proposed(at, ids)
		}
		out = append(out, d)
	}
	for _, c := range scanners {
		if listed[c.ID] {
			continue
		}
		d := api.Device{ID: c.Path, Transport: nullable(c.Transport), State: state(c.ID), ScannerID: nullable(c.ID), Scanner: true, Config: configured(c)}
		sel, err := device.ParseUSBSelector(c.USB, c.Port)
		if err != nil {
			d.Node = nullable(c.Path)
			out = append(out, d)
			continue
		}
		d.ID, d.VID, d.PID, d.Serial, d.Port = c.USB, hexText(sel.Vendor), hexText(sel.Product), nullable(sel.Serial), nullable(sel.Port)
		if sel.Port != "" {
			d.ID += "@" + sel.Port
		}
		if at, err := sel.Find(devs); err == nil { // nothing but the table says that it is a scanner
			d.ID, d.Serial, d.Port, d.Ambiguous, d.Name = at.ID(), nullable(at.Serial), nullable(at.Port), at.Ambiguous, nullable(at.Name)
		} else {
			d.Ambiguous = errors.Is(err, device.ErrAmbiguous)
		}
		out = append(out, d)
	}
	return out
}

// means says that a scanner's table means an attached device, by USB identity or by a path to its port.
func means(c config.Scanner, d device.USBDevice, devs []device.USBDevice) bool {
	if c.USB != "" {
		sel, err := device.ParseUSBSelector(c.USB, c.Port)
		if err != nil {
			return false
		}
		found, err := sel.Find(devs)
		return err == nil && found.Port == d.Port
	}
	node, err := filepath.EvalSymlinks(c.Path)
	return err == nil && slices.ContainsFunc(d.Interfaces, func(i device.USBInterface) bool { return i.TTY == node })
}

// isAmbiguous says that only its port tells a scanner from another device, or that nothing does.
func isAmbiguous(c config.Scanner, devs []device.USBDevice) bool {
	if sel, err := device.ParseUSBSelector(c.USB, c.Port); err == nil {
		if _, err := sel.Find(devs); errors.Is(err, device.ErrAmbiguous) {
			return true
		}
	}
	return slices.ContainsFunc(devs, func(d device.USBDevice) bool { return d.Ambiguous && means(c, d, devs) })
}

func hexText(n uint16) *string { return nullable(fmt.Sprintf("%04x", n)) }

// freeIDs proposes ids that no scanner has.
func freeIDs(scanners []config.Scanner) func() string {
	n := 0
	return func() string {
		for {
			n++
			id := fmt.Sprintf("SCN-%02d", n)
			if !slices.ContainsFunc(scanners, func(c config.Scanner) bool { return c.ID == id }) {
				return id
			}
		}
	}
}

// lines writes what prints as TOML takes it. Everything in it is printable: a selector's serial number is.
type lines struct{ strings.Builder }

func (l *lines) key(name, value string) { fmt.Fprintf(l, "%s = %s\n", name, tomlText(value)) }

func tomlText(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func (l *lines) say(format string, v ...any) {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, fmt.Sprintf(format, v...))
	fmt.Fprintf(l, "# %s\n", strings.ToValidUTF8(text, "?"))
}

// configured are the lines that say where a configured scanner is.
func configured(c config.Scanner) string {
	var l lines
	l.WriteString("[[scanner]]\n")
	l.key("id", c.ID)
	l.key("transport", c.Transport)
	for _, k := range []struct{ name, value string }{{"path", c.Path}, {"usb", c.USB}, {"port", c.Port}} {
		if k.value != "" {
			l.key(k.name, k.value)
		}
	}
	return l.String()
}

// proposed are the lines to paste for a device that no table means.
func proposed(at device.Attached, id func() string) string {
	var l lines
	if at.Title != "" {
		l.say("%s", at.Title)
	}
	if at.Transport == "" {
		l.say("The agent does not read the mode that it is set to (%s). Set it to another one:", at.Profile.Mode)
		for _, m := range []device.USBMode{device.ModeHIDPOS, device.ModeSerial, device.ModeHIDKeyboard} {
			if how := at.Profile.Setup[m]; how != "" {
				l.say("%s: %s", m, how)
			}
		}
		for _, note := range at.Profile.Notes {
			l.say("%s", note)
		}
		return l.String()
	}
	sel := at.Selector()
	var table lines
	table.WriteString("[[scanner]]\n")
	table.key("id", id())
	table.key("transport", at.Transport)
	sel.Port = ""
	table.key("usb", sel.String())
	switch {
	case at.Ambiguous:
		table.say("Another one like it is attached: this is the one at this port, whichever that is.")
		table.key("port", at.Port)
	case at.Serial == "":
		table.say("It has no serial number. With a second one like it, say which is which: port = %q", at.Port)
	}
	if f := at.Profile.Framing; at.Transport == "serial" && f != "" && f != device.Line {
		table.key("framing", string(f))
	}
	if at.Transport == "hid-keyboard" {
		table.key("layout", device.Layouts()[0])
	}
	if at.Scanner {
		return l.String() + table.String()
	}
	l.say("A keyboard whose maker is not known for scanners. Only if it is the scanner, take the signs # away below:")
	for line := range strings.Lines(table.String()) {
		l.WriteString("#" + line)
	}
	return l.String()
}
