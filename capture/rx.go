package capture

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"regexp"
)

// Secret is text that may be PHI. It prints as its length; Reveal gives the text.
type Secret string

// Reveal returns the text. Whatever takes it must not log or store it.
func (t Secret) Reveal() string { return string(t) }

func (t Secret) String() string               { return fmt.Sprintf("[%d characters]", len(t)) }
func (t Secret) Format(f fmt.State, _ rune)   { hide(f, t) }
func (t Secret) LogValue() slog.Value         { return slog.StringValue(t.String()) }
func (t Secret) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// hide prints v's String whatever the verb: fmt asks for a String at some verbs only.
func hide(f fmt.State, v fmt.Stringer) { io.WriteString(f, v.String()) }

// Rx is what a pharmacy's own label says. A group that the pattern lacks is empty.
type Rx struct {
	Profile           string // the profile's name
	Rx, Refill, Store Secret

	hasRefill, hasStore bool // the pattern has the group
}

// RxProfile is one format of a pharmacy's Rx labels: an RE2 pattern with the group rx, and refill and
// store if the label has them, for example R(?P<rx>\d{7})(?P<refill>\d{2})(?P<store>\d{4}). It must match
// the whole text.
type RxProfile struct{ Name, Pattern string }

// maxRxText bounds the work of a pattern; no Rx label is near it.
const maxRxText = 128

const (
	detailTwoRx   = "The text fits two Rx label formats that read it differently: make the patterns of the rx_profiles stricter."
	detailRxEmpty = "The Rx label has no number in it: print the label again."
)

type rxPattern struct {
	name              string
	re                *regexp.Regexp
	rx, refill, store int // group numbers, −1 if absent
}

func compileRx(profiles []RxProfile) ([]rxPattern, error) {
	var out []rxPattern
	for i, p := range profiles {
		if p.Name == "" {
			return nil, fmt.Errorf("cannot use rx_profile %d: give it a name", i+1)
		}
		for _, q := range out {
			if q.name == p.Name {
				return nil, fmt.Errorf("cannot use rx_profile %q twice: give each its own name", p.Name)
			}
		}
		_, err := regexp.Compile(p.Pattern) // alone: a bracket too many would end the group that makes it match the whole text
		if err != nil {
			return nil, fmt.Errorf("cannot use the pattern of rx_profile %q: %w; write RE2 syntax", p.Name, err)
		}
		re, err := regexp.Compile(`\A(?:` + p.Pattern + `)\z`)
		if err != nil {
			return nil, fmt.Errorf("cannot use the pattern of rx_profile %q: %w; write RE2 syntax", p.Name, err)
		}
		x := rxPattern{name: p.Name, re: re, rx: re.SubexpIndex("rx"), refill: re.SubexpIndex("refill"), store: re.SubexpIndex("store")}
		if x.rx < 0 {
			return nil, fmt.Errorf(`cannot use the pattern of rx_profile %q: it needs a group (?P<rx>…)`, p.Name)
		}
		if re.MatchString("") {
			return nil, fmt.Errorf("cannot use the pattern of rx_profile %q: it matches an empty text; make a part of it required", p.Name)
		}
		out = append(out, x)
	}
	return out, nil
}

// rxMatches says that a profile fits the whole text.
func (d *Decoder) rxMatches(text []byte) bool {
	if len(text) > maxRxText {
		return false
	}
	for i := range d.rx {
		if d.rx[i].re.Match(text) {
			return true
		}
	}
	return false
}

// takeRx reads the text by the profiles. Two that fit and differ in what they read are ambiguous.
func (d *Decoder) takeRx(s *Scan, text []byte) (taken bool, r Refusal) {
	if len(text) > maxRxText {
		return false, Refusal{}
	}
	var first Rx
	for i := range d.rx {
		p := &d.rx[i]
		m := p.re.FindSubmatchIndex(text)
		if m == nil {
			continue
		}
		group := func(n int) Secret {
			if n < 0 || m[2*n] < 0 {
				return ""
			}
			return Secret(alias(text[m[2*n]:m[2*n+1]]))
		}
		x := Rx{Profile: p.name, Rx: group(p.rx), Refill: group(p.refill), Store: group(p.store), hasRefill: p.refill >= 0, hasStore: p.store >= 0}
		if !taken {
			first, taken = x, true
		} else if x.Rx != first.Rx || x.Refill != first.Refill || x.Store != first.Store {
			return false, refuse(Ambiguous, detailTwoRx)
		}
	}
	if !taken {
		return false, Refusal{}
	}
	if first.Rx == "" {
		return false, refuse(BadValue, detailRxEmpty)
	}
	if bytes.IndexByte(text, gs) >= 0 {
		return false, refuse(ControlChar, detailControl)
	}
	s.Kind, s.Rx = KindRxLabel, first
	return true, Refusal{}
}
