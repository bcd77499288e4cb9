package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
)

// Report is a scan for people and programs that may see its content: decode prints it. Every key is
// present, null when unknown.
type Report struct {
	Kind          string            `json:"kind"`
	Symbology     *string           `json:"symbology"`
	GTIN          *string           `json:"gtin"`
	PkgLevel      *int              `json:"pkg_level"`
	NDC10         *string           `json:"ndc10"`
	Candidates10  []string          `json:"ndc10_candidates"`
	Candidates11  []string          `json:"ndc11_candidates"`
	NDC11         *string           `json:"ndc11"`
	NDC12         *string           `json:"ndc12"`
	Lot           *string           `json:"lot"`
	Expiry        *string           `json:"expiry"`
	ExpiryLastDay *string           `json:"expiry_last_day"`
	Serial        *string           `json:"serial"`
	AIs           map[string]string `json:"ais"`
	Flags         []string          `json:"flags"`
	AddOn         *string           `json:"addon"`
	HIBC          *ReportHIBC       `json:"hibc"`
	Rx            map[string]string `json:"rx"` // the groups that the pattern has
	RxProfile     *string           `json:"rx_profile"`
	Command       *string           `json:"command"`
}

// ReportHIBC holds the parts of an HIBC label that are there.
type ReportHIBC struct {
	LIC  string `json:"lic,omitempty"`
	PCN  string `json:"pcn,omitempty"`
	UOM  *int   `json:"uom,omitempty"`
	Qty  *int   `json:"qty,omitempty"`
	Link string `json:"link,omitempty"`
}

// String tells the kind, never content; only the JSON form shows it.
func (r Report) String() string             { return fmt.Sprintf("report of a %s", r.Kind) }
func (r Report) Format(f fmt.State, _ rune) { hide(f, r) }
func (r Report) LogValue() slog.Value       { return slog.StringValue(r.String()) }

// Report copies the scan's content. Without a directory, ndc_unresolved goes without saying and is left out.
func (s *Scan) Report() Report {
	flags := s.Flags
	if s.unlooked {
		flags &^= FlagNDCUnresolved
	}
	r := Report{
		Kind:      s.Kind.String(),
		Symbology: known(s.Symbology),
		GTIN:      known(s.GTIN),
		NDC10:     known(s.NDC10),
		NDC11:     known(s.NDC11),
		Lot:       known(s.Lot),
		Expiry:    known(s.Expiry.String()),
		Serial:    known(s.Serial),
		AIs:       map[string]string{},
		Flags:     flags.Names(),
		AddOn:     known(s.AddOn),
		Command:   known(s.Command.String()),
	}
	r.ExpiryLastDay = known(s.ExpiryLastDay.String())
	if s.PkgLevel >= 0 {
		level := int(s.PkgLevel)
		r.PkgLevel = &level
	}
	if n := s.NDC12; n != "" {
		r.NDC12 = known(n[:6] + "-" + n[6:10] + "-" + n[10:])
	}
	if s.NCandidates > 0 {
		n := s.NDC10
		r.Candidates10 = []string{
			n[:4] + "-" + n[4:8] + "-" + n[8:],
			n[:5] + "-" + n[5:8] + "-" + n[8:],
			n[:5] + "-" + n[5:9] + "-" + n[9:],
		}
		for _, c := range s.Candidates11 {
			r.Candidates11 = append(r.Candidates11, strings.Clone(c))
		}
	}
	s.AIs(func(ai, _, value string) bool {
		r.AIs[ai] = strings.Clone(value)
		return true
	})
	if s.Kind == KindHIBC {
		r.HIBC = s.HIBCData.report()
	}
	if s.Kind == KindRxLabel {
		r.RxProfile = known(s.Rx.Profile)
		r.Rx = map[string]string{"rx": strings.Clone(s.Rx.Rx.Reveal())}
		if s.Rx.hasRefill {
			r.Rx["refill"] = strings.Clone(s.Rx.Refill.Reveal())
		}
		if s.Rx.hasStore {
			r.Rx["store"] = strings.Clone(s.Rx.Store.Reveal())
		}
	}
	return r
}

func (h *HIBCData) report() *ReportHIBC {
	r := &ReportHIBC{LIC: strings.Clone(h.LIC), PCN: strings.Clone(h.PCN), Link: strings.Clone(h.Link)}
	if n, err := strconv.Atoi(h.UOM); err == nil {
		r.UOM = &n
	}
	if h.Quantity >= 0 {
		q := h.Quantity
		r.Qty = &q
	}
	return r
}

// known is a copy of s, nil for "".
func known(s string) *string {
	if s == "" {
		return nil
	}
	s = strings.Clone(s)
	return &s
}

// vectorIn is one line of a vector file.
type vectorIn struct {
	ID  json.RawMessage `json:"id"`
	In  string          `json:"in"`
	Ctx struct {
		Now          string    `json:"now"`
		GSSubstitute string    `json:"gs_substitute"`
		GunDigits    int       `json:"gun_digits"`
		BareDigits   string    `json:"bare_digits"`
		Prefix       string    `json:"symbology_prefix"`
		Directory    *[]string `json:"ndc_directory"`
		RxProfiles   []struct {
			Name string `json:"name"`
			RE   string `json:"re"`
		} `json:"rx_profiles"`
		AfterIDHeader bool `json:"after_id_header"`
	} `json:"ctx"`
}

type vectorOut struct {
	ID json.RawMessage `json:"id"`
	Report
}

type vectorError struct {
	ID     json.RawMessage `json:"id"`
	Error  ErrorKind       `json:"error"`
	Detail string          `json:"detail"`
}

// DecodeVectorLine reads one JSON object with in (the payload, one character a byte), and optionally id
// and ctx: now, gs_substitute, gun_digits, bare_digits, symbology_prefix, ndc_directory, rx_profiles and
// after_id_header. It returns the output line without newline: the id with a Report, or with error and
// detail. today holds where ctx has no now. An error means that the line is no such object.
func DecodeVectorLine(line []byte, today Date) (out []byte, err error) {
	var v vectorIn
	if t := bytes.TrimSpace(line); len(t) == 0 || t[0] != '{' {
		return nil, errors.New("cannot read the line: write one JSON object a line, with the payload in \"in\"")
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return nil, fmt.Errorf("cannot read the line: %w; write one JSON object a line, with the payload in \"in\"", err)
	}
	if v.ID == nil {
		v.ID = json.RawMessage("null")
	}
	s := new(Scan)
	r := v.decode(s, today)
	if !r.OK() {
		return encode(vectorError{ID: v.ID, Error: r.Kind, Detail: r.Detail})
	}
	return encode(vectorOut{ID: v.ID, Report: s.Report()})
}

func (v *vectorIn) decode(s *Scan, today Date) Refusal {
	badConfig := func(err error) Refusal { return refuse(BadConfig, err.Error()) }
	if v.Ctx.Now != "" {
		d, err := ParseDate(v.Ctx.Now)
		if err != nil {
			return badConfig(err)
		}
		today = d
	}
	profile := Profile{GunDigits: v.Ctx.GunDigits, BareDigits: v.Ctx.BareDigits, SymbologyPrefix: v.Ctx.Prefix}
	switch sub := latin1(v.Ctx.GSSubstitute); len(sub) {
	case 0:
	case 1:
		profile.GSSubstitute = sub[0]
	default:
		return refuse(BadConfig, detailSubstitute)
	}
	if err := profile.Validate(); err != nil {
		return badConfig(err)
	}
	config := DecoderConfig{}
	for _, p := range v.Ctx.RxProfiles {
		config.Rx = append(config.Rx, RxProfile{Name: p.Name, Pattern: p.RE})
	}
	if v.Ctx.Directory != nil {
		dir, err := ParseDirectory(*v.Ctx.Directory)
		if err != nil {
			return badConfig(err)
		}
		config.Directory = dir
	}
	d, err := NewDecoder(config)
	if err != nil {
		return badConfig(err)
	}
	data := latin1(v.In)
	if v.Ctx.AfterIDHeader {
		b := Burst{active: true}
		if b.Absorb(data, 0) {
			return refuse(IDDocument, detailID)
		}
	}
	return d.Decode(s, data, &profile, today)
}

// latin1 turns characters up to U+00FF into bytes; others stay UTF-8.
func latin1(s string) []byte {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		if c <= 0xff {
			b = append(b, byte(c))
		} else {
			b = append(b, string(c)...)
		}
	}
	return b
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("cannot write the result: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
