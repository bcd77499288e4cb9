package claimstate_test

import (
	"regexp"
	"strings"
	"testing"

	"scanonce/sync/claimstate"
)

// The forms of values are these expressions: each text here, and each that differs from it by one byte put in, taken
// out or changed, is judged as by them.
func TestFormsOfValues(t *testing.T) {
	move := func(change func(m *claimstate.Move)) bool {
		m := claimstate.Move{CorrelationID: "c", Version: 1, From: claimstate.Ingested, To: claimstate.ResponseDispatched, RejectCode: "75", OpID: "o"}
		change(&m)
		return m.Validate() == nil
	}
	ids := []string{"aZ09_-x", strings.Repeat("a", 64), strings.Repeat("7", 19), strings.Repeat("7", 20), strings.Repeat("7", 21),
		"453-2015_112830366", "1234-5678-9012-3456-7890", strings.Repeat("7", 32), "W123456789", "rxa12345678", "abc" + strings.Repeat("7", 20), "CLM-12345678", "ab" + strings.Repeat("7", 30),
		"claim-000001", "CORR_2026_0001", "019aceee-0000-8000-8000-000000000001"}
	idRE, numberRE, cardRE := regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`), regexp.MustCompile(`\A[_-]*([0-9][_-]*){1,20}\z`), regexp.MustCompile(`\A[A-Za-z]{1,3}[0-9]{8,20}\z`)
	id := func(s string) bool { return idRE.MatchString(s) && !numberRE.MatchString(s) && !cardRE.MatchString(s) }
	costRE := regexp.MustCompile(`\A-?(0|[1-9][0-9]{0,5})\.[0-9]{2}\z`)
	for _, f := range []struct {
		name  string
		texts []string
		want  func(s string) bool
		got   func(s string) bool
	}{
		{"token", []string{"rx1.0a1b2c3d.00112233445566778899aabbccddeeff"}, regexp.MustCompile(`\Arx1\.[0-9a-f]{8}\.[0-9a-f]{32}\z`).MatchString,
			func(s string) bool { return claimstate.Token(s).Validate() == nil }},
		{"cost", []string{"42.10", "-42.10", "0.00", "-0.00", "-0.01", "00.10", "123456.78"},
			func(s string) bool { return costRE.MatchString(s) && s != "-0.00" },
			func(s string) bool { return claimstate.Cost(s).Validate() == nil }},
		{"reject code", []string{"7", "A1B", "75"}, regexp.MustCompile(`\A[0-9A-Z]{1,3}\z`).MatchString,
			func(s string) bool { return move(func(m *claimstate.Move) { m.RejectCode = s }) }},
		{"correlation id", ids, id, func(s string) bool { return move(func(m *claimstate.Move) { m.CorrelationID = s }) }},
		{"op id", ids, id, func(s string) bool { return move(func(m *claimstate.Move) { m.OpID = s }) }},
	} {
		judge := func(s string) {
			if got, want := f.got(s), f.want(s); got != want {
				t.Errorf("%s %q is taken: %v, want %v", f.name, s, got, want)
			}
		}
		for _, s := range f.texts {
			judge(s)
			for at := range len(s) + 1 {
				for x := range 256 {
					judge(s[:at] + string([]byte{byte(x)}) + s[at:])
					if at < len(s) {
						judge(s[:at] + string([]byte{byte(x)}) + s[at+1:])
					}
				}
				if at < len(s) {
					judge(s[:at] + s[at+1:])
				}
			}
		}
	}
}
