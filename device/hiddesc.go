package device

import (
	"fmt"
	"slices"
)

// HIDUsage is a usage with its page in the upper 16 bits (USB HID 1.11, section 5.5).
type HIDUsage uint32

// The usages that tell a scanner or a keyboard: HID Usage Tables, pages 0x01 and 0x07, and HID Point of Sale
// Usage Tables, page 0x8c.
const (
	usageKeyboard  HIDUsage = 0x01_0006 // application
	usageByteCount HIDUsage = 0x01_003b
	usageFirstKey  HIDUsage = 0x07_0000
	usageModifiers HIDUsage = 0x07_00e0 // the first of eight
	usageLastKey   HIDUsage = 0x07_ffff
	usageScanner   HIDUsage = 0x8c_0002 // application
	usageAIM       HIDUsage = 0x8c_00fb // symbology identifier 1, followed by 2 and 3
	usageData      HIDUsage = 0x8c_00fe // decoded data
	usageContinued HIDUsage = 0x8c_00ff // decoded data continued
	vendorUsages   HIDUsage = 0xff00_0000
)

// HIDRange holds the usages from First to Last.
type HIDRange struct{ First, Last HIDUsage }

// HIDField is one Input item of a report descriptor: Count elements of Size bits each.
type HIDField struct {
	Bit    int        // offset of the first element in the report as read, the id's byte included
	Size   int        // bits of an element
	Count  int        // elements
	Usages []HIDRange // of the elements in order if Variable; of what an element may name if not
	Flags  uint32     // the item's data (section 6.2.2.5)
	App    HIDUsage   // application collection around it, 0 if there is none
}

// Constant says that the field is padding.
func (f HIDField) Constant() bool { return f.Flags&1 != 0 }

// Variable says that each element is a control of its own, and not the name of one that is active.
func (f HIDField) Variable() bool { return f.Flags&2 != 0 }

// Find returns where the elements of usage u begin, as a bit offset like Bit, and how many follow each other.
// The last usage of a field stands for all elements that are left (section 6.2.2.8). n is 0 if there are none.
func (f HIDField) Find(u HIDUsage) (bit, n int) {
	for i, skipped := 0, 0; i < len(f.Usages) && skipped < f.Count; i++ {
		r := f.Usages[i]
		if r.First <= u && u <= r.Last {
			skipped += int(u - r.First)
			switch {
			case skipped >= f.Count:
				return 0, 0
			case i == len(f.Usages)-1 && u == r.Last:
				n = f.Count - skipped
			default:
				n = 1
			}
			return f.Bit + skipped*f.Size, n
		}
		skipped += int(r.Last-r.First) + 1
	}
	return 0, 0
}

// HIDReport is one input report.
type HIDReport struct {
	ID     uint8 // 0: the device does not number its reports, and they have no byte for the id
	Size   int   // bytes as read, the id's byte included
	Fields []HIDField
}

// Bounds of a descriptor: Linux takes no longer one, and no report comes near the other two.
const (
	maxHIDDescriptor = 4096 // bytes
	maxHIDReport     = 4096 // bytes
	maxHIDPush       = 16
)

// hidGlobals are the global items that matter here (section 6.2.2.7).
type hidGlobals struct {
	page, size, count uint32
	id                uint8
}

// hidLocal is a usage or a range of usages as it was written (section 6.2.2.8).
type hidLocal struct {
	first, last uint32
	extended    bool // holds its page
}

type hidParser struct {
	hidGlobals
	pushed   []hidGlobals
	apps     []HIDUsage // of the open collections
	locals   []hidLocal
	min      uint32
	minLong  bool
	within   bool // a delimiter is open: alternatives for one control follow, the preferred one first
	skip     bool // the preferred one was seen
	numbered bool
	reports  []HIDReport
	at       [256]int // 1 + index in reports by id
	bits     [256]int // of the input report by id, without the id's byte
}

// ParseHIDDescriptor reads a report descriptor (USB HID 1.11, section 6.2.2) and returns the input reports in
// the order of their first field. Its time and memory grow with len(d) only.
func ParseHIDDescriptor(d []byte) ([]HIDReport, error) {
	bad := func(at int, what string) ([]HIDReport, error) {
		return nil, fmt.Errorf("cannot read the report descriptor: %s at byte %d", what, at)
	}
	if len(d) > maxHIDDescriptor {
		return nil, fmt.Errorf("cannot read the report descriptor: %d bytes, and %d are the most", len(d), maxHIDDescriptor)
	}
	var p hidParser
	for i := 0; i < len(d); {
		prefix, at := d[i], i
		i++
		if prefix == 0xfe { // a long item (section 6.2.2.3): size, tag, data. None is defined
			if i == len(d) || len(d)-i-2 < int(d[i]) {
				return bad(at, "an item that is cut off")
			}
			i += 2 + int(d[i])
			continue
		}
		n := int(prefix & 3)
		if n == 3 {
			n = 4
		}
		if len(d)-i < n {
			return bad(at, "an item that is cut off")
		}
		var v uint32
		for k := range n {
			v |= uint32(d[i+k]) << (8 * k)
		}
		i += n
		if what := p.item(prefix>>2&3, prefix>>4, v, n == 4); what != "" {
			return bad(at, what)
		}
	}
	if len(p.apps) != 0 {
		return bad(len(d), "the end within a collection")
	}
	return p.result(), nil
}

// item takes one short item (section 6.2.2.2). It returns what is wrong.
func (p *hidParser) item(kind, tag byte, v uint32, long bool) string {
	switch kind {
	case 0:
		return p.main(tag, v)
	case 1:
		return p.global(tag, v)
	case 2:
		return p.local(tag, v, long)
	}
	return "" // reserved
}

func (p *hidParser) main(tag byte, v uint32) string {
	defer func() { p.locals, p.min, p.minLong, p.within, p.skip = p.locals[:0], 0, false, false, false }()
	switch tag {
	case 0x8: // Input
		return p.input(v)
	case 0xa: // Collection
		app := HIDUsage(0)
		if len(p.apps) > 0 {
			app = p.apps[len(p.apps)-1]
		}
		if us := p.usages(); v&0xff == 1 && len(us) > 0 {
			app = us[0].First
		}
		p.apps = append(p.apps, app)
	case 0xc: // End Collection
		if len(p.apps) == 0 {
			return "the end of a collection that has not begun"
		}
		p.apps = p.apps[:len(p.apps)-1]
	}
	return ""
}

func (p *hidParser) input(flags uint32) string {
	bits := uint64(p.size) * uint64(p.count)
	if bits == 0 {
		return ""
	}
	if bits+uint64(p.bits[p.id]) > 8*maxHIDReport {
		return fmt.Sprintf("a report of more than %d bytes", maxHIDReport)
	}
	if p.at[p.id] == 0 {
		p.reports = append(p.reports, HIDReport{ID: p.id})
		p.at[p.id] = len(p.reports)
	}
	f := HIDField{Bit: p.bits[p.id], Size: int(p.size), Count: int(p.count), Usages: p.usages(), Flags: flags}
	if len(p.apps) > 0 {
		f.App = p.apps[len(p.apps)-1]
	}
	r := &p.reports[p.at[p.id]-1]
	r.Fields = append(r.Fields, f)
	p.bits[p.id] += int(bits)
	return ""
}

// usages completes the usages with the page that is in force at the main item, however it was before (section
// 6.2.2.8).
func (p *hidParser) usages() []HIDRange {
	var out []HIDRange
	for _, l := range p.locals {
		r := HIDRange{HIDUsage(l.first), HIDUsage(l.last)}
		if !l.extended {
			page := HIDUsage(p.page) << 16
			r = HIDRange{page | r.First&0xffff, page | r.Last&0xffff}
		}
		out = append(out, r)
	}
	return out
}

func (p *hidParser) global(tag byte, v uint32) string {
	switch tag {
	case 0x0: // Usage Page
		p.page = v & 0xffff
	case 0x7: // Report Size
		p.size = v
	case 0x8: // Report ID
		if v == 0 || v > 255 {
			return fmt.Sprintf("report id %d, which cannot be", v)
		}
		p.id, p.numbered = uint8(v), true
	case 0x9: // Report Count
		p.count = v
	case 0xa: // Push
		if len(p.pushed) == maxHIDPush {
			return "too many Push items"
		}
		p.pushed = append(p.pushed, p.hidGlobals)
	case 0xb: // Pop
		if len(p.pushed) == 0 {
			return "a Pop without its Push"
		}
		p.hidGlobals = p.pushed[len(p.pushed)-1]
		p.pushed = p.pushed[:len(p.pushed)-1]
	}
	return ""
}

func (p *hidParser) local(tag byte, v uint32, long bool) string {
	switch tag {
	case 0x0: // Usage
		p.usage(hidLocal{v, v, long})
	case 0x1: // Usage Minimum
		p.min, p.minLong = v, long
	case 0x2: // Usage Maximum. What cannot be is no range, as for Linux
		if p.min <= v && p.minLong == long && (!long || p.min>>16 == v>>16) {
			p.usage(hidLocal{p.min, v, long})
		}
	case 0xa: // Delimiter
		if open := v&1 != 0; open == p.within {
			return "a delimiter within another one"
		}
		p.within, p.skip = !p.within, false
	}
	return ""
}

func (p *hidParser) usage(l hidLocal) {
	if !p.skip {
		p.locals = append(p.locals, l)
	}
	p.skip = p.within
}

// result sets what is known at the end only: whether reports begin with their id (section 5.6). Fields before
// the first id belong to a report that such a device cannot send.
func (p *hidParser) result() []HIDReport {
	if p.numbered {
		p.reports = slices.DeleteFunc(p.reports, func(r HIDReport) bool { return r.ID == 0 })
	}
	for i := range p.reports {
		r := &p.reports[i]
		bits := p.bits[r.ID]
		if p.numbered {
			bits += 8
			for k := range r.Fields {
				r.Fields[k].Bit += 8
			}
		}
		r.Size = (bits + 7) / 8
	}
	return p.reports
}
