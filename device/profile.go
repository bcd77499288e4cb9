package device

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:embed profiles.txt
var profilesText string

// USBMode is what a scanner is by USB. The first three are also what the configuration calls its transport.
type USBMode string

// The modes.
const (
	ModeHIDPOS      USBMode = "hid-pos"
	ModeHIDKeyboard USBMode = "hid-keyboard"
	ModeSerial      USBMode = "serial" // CDC-ACM or a serial converter
	ModeIBM         USBMode = "ibm"    // for POS software: IBM's interfaces, OPOS
	ModeSNAPI       USBMode = "snapi"  // for Zebra's software
	ModeService     USBMode = "service"
	ModeUnknown     USBMode = "unknown"
)

// Transport is the configuration's word for the mode, "" if the agent does not read it.
func (m USBMode) Transport() string {
	switch m {
	case ModeHIDPOS, ModeHIDKeyboard, ModeSerial:
		return string(m)
	}
	return ""
}

func (m USBMode) valid() bool {
	return m.Transport() != "" || m == ModeIBM || m == ModeSNAPI || m == ModeService || m == ModeUnknown
}

// Profile is what is publicly known of one USB id of a scanner. Most scanners have an id for each mode.
type Profile struct {
	Vendor, Product uint16
	Maker, Name     string
	Mode            USBMode
	Driver          string // of the kernel; "" if no source tells

	// Of the maker's scanners in general, and for the mode where it matters.
	Framing  Framing            // "" if no source tells; of a serial scanner
	Feedback Feedback           // bytes for a tone; of a serial scanner
	Needs    string             // what the scanner must be set to before Feedback may be sent; "" if nothing
	Setup    map[USBMode]string // how the scanner is set to a mode
	Notes    []string

	// Sources say where each of these is from, by the field's name in small letters, or "setup hid-pos".
	Sources map[string][]string
}

// Title is maker and model in one line.
func (p Profile) Title() string { return p.Maker + " " + p.Name }

// ProfileOf returns what is known of a USB id.
func ProfileOf(vendor, product uint16) (Profile, bool) {
	for _, p := range Profiles() {
		if p.Vendor == vendor && p.Product == product {
			return p, true
		}
	}
	return Profile{}, false
}

// Profiles returns all that are known, by id.
func Profiles() []Profile {
	t, _ := parseProfiles(profilesText) // a test reads it
	return t.profiles
}

// ScannerMaker names the maker of a vendor id under which scanners are sold. It is not ok for an id that all
// kinds of devices share.
func ScannerMaker(vendor uint16) (name string, ok bool) {
	t, _ := parseProfiles(profilesText)
	name, ok = t.makers[vendor]
	return name, ok
}

type profileTable struct {
	profiles []Profile
	makers   map[uint16]string
}

// profileParser reads profiles.txt, which explains itself. Every source must be named before it is used.
type profileParser struct {
	profileTable
	sources map[string]string
	vendor  Profile // what all products of the vendor share
	from    int     // index of its first product
	open    bool
}

func parseProfiles(text string) (profileTable, error) {
	p := profileParser{profileTable: profileTable{makers: map[uint16]string{}}, sources: map[string]string{}}
	var errs []error
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line); err != nil {
			errs = append(errs, fmt.Errorf("cannot read line %d of the profiles: %w", n+1, err))
		}
	}
	p.endVendor()
	slices.SortStableFunc(p.profiles, func(a, b Profile) int {
		return int(a.Vendor)<<16 + int(a.Product) - int(b.Vendor)<<16 - int(b.Product)
	})
	for i := 1; i < len(p.profiles); i++ {
		if a, b := p.profiles[i-1], p.profiles[i]; a.Vendor == b.Vendor && a.Product == b.Product {
			errs = append(errs, fmt.Errorf("cannot read the profiles: %04x:%04x is there twice", a.Vendor, a.Product))
		}
	}
	return p.profileTable, errors.Join(errs...)
}

var productLineRE = regexp.MustCompile(`^[0-9a-f]{4} `)

func (p *profileParser) line(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	if word == "source" {
		name, where, _ := strings.Cut(rest, " ")
		if where == "" || p.sources[name] != "" {
			return fmt.Errorf("source %q says nothing, or is there twice", name)
		}
		p.sources[name] = where
		return nil
	}
	fields, err := p.fields(rest)
	if err != nil {
		return err
	}
	switch {
	case word == "maker" || word == "shared":
		return p.startVendor(word == "maker", fields)
	case !p.open:
		return errors.New("no maker is above it")
	case productLineRE.MatchString(line):
		return p.product(word, fields)
	case len(fields) != 1:
		return fmt.Errorf("%s has %d fields", word, len(fields))
	}
	return p.shared(word, fields[0])
}

// sourced is a field with what the braces behind it name.
type sourced struct {
	text    string
	sources []string
}

func (p *profileParser) fields(s string) ([]sourced, error) {
	var out []sourced
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		text, rest, ok := strings.Cut(s, "{")
		names, rest, ended := strings.Cut(rest, "}")
		if !ok || !ended || strings.TrimSpace(text) == "" || strings.TrimSpace(names) == "" {
			return nil, fmt.Errorf("%q has no source in braces", s)
		}
		f := sourced{text: strings.TrimSpace(text)}
		for _, name := range strings.Fields(names) {
			if name == "-" {
				continue
			}
			where, ok := p.sources[name]
			if !ok {
				return nil, fmt.Errorf("source %q is not named above", name)
			}
			f.sources = append(f.sources, where)
		}
		out, s = append(out, f), rest
	}
	return out, nil
}

func (p *profileParser) startVendor(maker bool, fields []sourced) error {
	p.endVendor()
	if len(fields) != 1 || len(fields[0].sources) == 0 {
		return errors.New("a vendor is an id, a name and its source")
	}
	id, name, _ := strings.Cut(fields[0].text, " ")
	vendor, err := hexID(id)
	if err != nil || name == "" {
		return fmt.Errorf("%q is no vendor id and name", fields[0].text)
	}
	p.open, p.from = true, len(p.profiles)
	p.vendor = Profile{Vendor: vendor, Maker: name, Setup: map[USBMode]string{}, Sources: map[string][]string{"maker": fields[0].sources}}
	if maker {
		p.makers[vendor] = name
	}
	return nil
}

// endVendor gives the vendor's products what was said of all of them.
func (p *profileParser) endVendor() {
	if !p.open {
		return
	}
	p.open = false
	for i := p.from; i < len(p.profiles); i++ {
		one := &p.profiles[i]
		for field, from := range p.vendor.Sources {
			serial := field == "framing" || field == "needs" || strings.HasPrefix(field, "feedback")
			if !serial || one.Mode == ModeSerial {
				one.Sources[field] = from
			}
		}
		one.Maker, one.Setup, one.Notes = p.vendor.Maker, p.vendor.Setup, p.vendor.Notes
		if one.Mode == ModeSerial {
			one.Framing, one.Feedback, one.Needs = p.vendor.Framing, p.vendor.Feedback, p.vendor.Needs
		}
	}
}

func (p *profileParser) product(id string, fields []sourced) error {
	product, err := hexID(id)
	if err != nil || len(fields) < 2 || len(fields) > 3 {
		return errors.New("a product is an id, a mode, a name and perhaps a driver, each with its sources")
	}
	mode, name := fields[0], fields[1]
	one := Profile{Vendor: p.vendor.Vendor, Product: product, Name: name.text, Mode: USBMode(mode.text),
		Sources: map[string][]string{"name": name.sources}}
	switch {
	case !one.Mode.valid():
		return fmt.Errorf("there is no mode %q", mode.text)
	case one.Mode == ModeUnknown != (len(mode.sources) == 0):
		return errors.New("a mode that a source tells is not unknown, and the other way round")
	case len(name.sources) == 0:
		return errors.New("the name has no source")
	}
	if one.Mode != ModeUnknown {
		one.Sources["mode"] = mode.sources
	}
	if len(fields) == 3 {
		driver, ok := strings.CutPrefix(fields[2].text, "driver ")
		if !ok || len(fields[2].sources) == 0 {
			return fmt.Errorf("%q is no driver with its source", fields[2].text)
		}
		one.Driver, one.Sources["driver"] = driver, fields[2].sources
	}
	p.profiles = append(p.profiles, one)
	return nil
}

// shared reads what holds for all of a vendor's products.
func (p *profileParser) shared(word string, f sourced) error {
	if len(f.sources) == 0 {
		return fmt.Errorf("%s has no source", word)
	}
	first, rest, _ := strings.Cut(f.text, " ")
	from := word
	switch word {
	case "setup":
		if USBMode(first).Transport() == "" || rest == "" {
			return fmt.Errorf("%q is no mode to set a scanner to, and how", f.text)
		}
		p.vendor.Setup[USBMode(first)] = rest
		from += " " + first
	case "framing":
		if _, err := NewFramer(Framing(rest)); err != nil || first != string(ModeSerial) {
			return fmt.Errorf("%q is no framing of a serial scanner", f.text)
		}
		p.vendor.Framing = Framing(rest)
	case "feedback":
		bytes, err := strconv.Unquote(rest)
		if err != nil || bytes == "" || len(bytes) > maxFeedbackLen {
			return fmt.Errorf("%q are no bytes", rest)
		}
		switch first {
		case "good":
			p.vendor.Feedback.Good = []byte(bytes)
		case "duplicate":
			p.vendor.Feedback.Duplicate = []byte(bytes)
		case "reject":
			p.vendor.Feedback.Reject = []byte(bytes)
		default:
			return fmt.Errorf("there is no feedback %q", first)
		}
		from += " " + first
	case "needs":
		p.vendor.Needs = f.text
	case "note":
		p.vendor.Notes = append(p.vendor.Notes, f.text)
		from = "notes"
	default:
		return fmt.Errorf("nothing begins with %q", word)
	}
	p.vendor.Sources[from] = append(p.vendor.Sources[from], f.sources...)
	return nil
}

func hexID(s string) (uint16, error) {
	if len(s) != 4 || s != strings.ToLower(s) {
		return 0, strconv.ErrSyntax
	}
	n, err := strconv.ParseUint(s, 16, 16)
	return uint16(n), err
}
