package capture

import (
	"encoding/json"
	"strings"
	"testing"
)

func report(t *testing.T, line string) map[string]any {
	t.Helper()
	out, err := DecodeVectorLine([]byte(line), vectorDay)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(out), "\n\r") {
		t.Errorf("%q is not one line", out)
	}
	var m map[string]any
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestReportHasEveryKey(t *testing.T) {
	keys := []string{"id", "kind", "symbology", "gtin", "pkg_level", "ndc10", "ndc10_candidates", "ndc11_candidates", "ndc11", "ndc12", "lot", "expiry", "expiry_last_day", "serial", "ais", "flags", "addon", "hibc", "rx", "rx_profile", "command"}
	m := report(t, `{"in":"X"}`)
	for _, k := range keys {
		v, ok := m[k]
		switch {
		case !ok:
			t.Errorf("%s is missing", k)
		case k == "kind" && v != "opaque", k != "kind" && k != "ais" && k != "flags" && v != nil:
			t.Errorf("%s is %v", k, v)
		}
	}
	if len(m) != len(keys) {
		t.Errorf("%d keys: %v", len(m), m)
	}
	if a, ok := m["ais"].(map[string]any); !ok || len(a) != 0 {
		t.Errorf("ais is %v", m["ais"])
	}
	if f, ok := m["flags"].([]any); !ok || len(f) != 0 {
		t.Errorf("flags is %v", m["flags"])
	}
	if m := report(t, `{"in":"SCANONCE-QTY-30"}`); m["command"] != "SCANONCE-QTY-30" || m["kind"] != "command" {
		t.Errorf("%v", m)
	}
}

func TestVectorLines(t *testing.T) {
	for line, want := range map[string]string{
		`{"id":7,"in":""}`:                      `{"id":7,"error":"empty","detail":"` + detailEmpty + `"}`,
		`{"id":{"a":[1]},"in":"  "}`:            `{"id":{"a":[1]},"error":"empty","detail":"` + detailEmpty + `"}`,
		` {} `:                                  `{"id":null,"error":"empty","detail":"` + detailEmpty + `"}`,
		`{"in":"]d2010031234567890610L\u00e9"}`: `{"id":null,"error":"bad_charset","detail":"` + detailCharset + `"}`,
		`{"in":"DCSSAMPLE\n","ctx":{"after_id_header":true}}`: `{"id":null,"error":"id_document","detail":"` + detailID + `"}`,
		`{"in":"]d210A||21B","ctx":{"gs_substitute":"||"}}`:   `{"id":null,"error":"bad_config","detail":"` + detailSubstitute + `"}`,
		`{"in":"00000000","ctx":{"bare_digits":"ean8"}}`:      `{"id":null,"error":"bad_value","detail":"` + detailZeroGTIN + `"}`,
		`{"in":"02]E00300937214107","ctx":{"gun_digits":2}}`:  `{"id":null,"error":"check_digit","detail":"` + detailCheckDigit + `"}`,
	} {
		out, err := DecodeVectorLine([]byte(line), vectorDay)
		if err != nil || string(out) != want {
			t.Errorf("%s: %s %v", line, out, err)
		}
	}
	for _, line := range []string{
		`{"in":"X","ctx":{"now":"2026-02-30"}}`, `{"in":"X","ctx":{"gs_substitute":"_"}}`, `{"in":"X","ctx":{"gun_digits":-1}}`,
		`{"in":"X","ctx":{"ndc_directory":["0093721410"]}}`, `{"in":"X","ctx":{"rx_profiles":[{"name":"a","re":"("}]}}`,
		`{"in":"X","ctx":{"rx_profiles":[{"name":"a","re":"\\d"}]}}`, `{"in":"X","ctx":{"bare_digits":"x"}}`,
	} {
		if m := report(t, line); m["error"] != "bad_config" {
			t.Errorf("%s: %v", line, m)
		}
	}
	for _, line := range []string{``, `  `, `x`, `[]`, `"a"`, `null`, `{"in":`, `{"in":5}`, `{"in":"a"} x`} {
		if out, err := DecodeVectorLine([]byte(line), vectorDay); err == nil || !strings.HasPrefix(err.Error(), "cannot read the line") {
			t.Errorf("%q: %s %v", line, out, err)
		}
	}
	// ctx.now moves the century, and stands before today.
	if m := report(t, `{"in":"]d210A\u001d17990101","ctx":{"now":"2060-01-01"}}`); m["expiry"] != "2099-01-01" {
		t.Errorf("%v", m["expiry"])
	}
	// A group that the pattern lacks is no key; without a directory nothing was looked up.
	m := report(t, `{"in":"RX77","ctx":{"rx_profiles":[{"name":"a","re":"RX(?P<rx>\\d+)"}]}}`)
	if rx := m["rx"].(map[string]any); len(rx) != 1 || rx["rx"] != "77" || m["rx_profile"] != "a" {
		t.Errorf("%v", m)
	}
	for dir, want := range map[string]int{`{}`: 0, `{"ndc_directory":[]}`: 1} {
		if f := report(t, `{"in":"]E00300937214106","ctx":`+dir+`}`)["flags"].([]any); len(f) != want {
			t.Errorf("%s: flags %v", dir, f)
		}
	}
	// Characters beyond a byte stay text.
	if string(latin1("é€")) != "\xe9€" {
		t.Errorf("%q", latin1("é€"))
	}
}

func TestNames(t *testing.T) {
	if Kind(99).String() != "Kind(99)" || KindGS1.String() != "gs1" || KindCommand.String() != "command" {
		t.Error("kind names")
	}
	all := Flags(0xff).Names()
	if strings.Join(all, " ") != "no_item_id looks_like_gs1 url missing_separator_suspected ndc_unresolved ndc_ambiguous assumed_5_4_2 needs_primary" {
		t.Errorf("%v", all)
	}
	if b, err := json.Marshal(KindHRI); err != nil || string(b) != `"hri"` {
		t.Errorf("%s %v", b, err)
	}
	if (Refusal{}).String() != "" || refuse(Empty, detailEmpty).String() != "empty: "+detailEmpty {
		t.Error("refusal text")
	}
}
