package pacase_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"scanonce/sync/pacase"
	"scanonce/window"
)

func TestDerivedID(t *testing.T) {
	for _, c := range []struct{ member, gpi, window, want string }{
		{"MTOK_9f2a", "27100010100320", "2026-07-17", "1d12207def3071d4c706b6279fb28084"},
		{"MTOK_9f2a", "27100010100320", "2026-07-17T12:00Z/PT6H", "634be93f0aa7e4adc8c226f55b224678"},
		{"MTOK|9f2a", "2710", "2026-07-17", "cdbc4e7b36ab825b08c713da60c486f5"},
		{`MTOK\9f2a`, "2710", "2026-07-17", "7b7af96d6ccc36b8bd7adc18c0934d9c"},
	} {
		q := pacase.Question{MemberToken: c.member, GPI: c.gpi, Window: c.window}
		if got := q.DerivedID(); got != c.want {
			t.Errorf("%+v: %s, want %s", q, got, c.want)
		}
		o, err := q.Offline()
		if err != nil || o.RequestedID() != c.want || o.RejectCode() != "75" {
			t.Errorf("%+v without a store: %s, %s, %v", q, o.RequestedID(), o.RejectCode(), err)
		}
	}
}

// An answer without a store has nothing in which an approval could be said.
func TestOfflineSaysNoMore(t *testing.T) {
	o := reflect.TypeFor[pacase.Offline]()
	var has []string
	for i := range o.NumMethod() {
		has = append(has, o.Method(i).Name)
	}
	for i := range o.NumField() {
		if f := o.Field(i); f.IsExported() {
			has = append(has, f.Name)
		}
	}
	if got := strings.Join(has, " "); got != "RejectCode RequestedID" {
		t.Errorf("an answer without a store has %s", got)
	}
	if (pacase.Offline{}).RejectCode() != "75" {
		t.Error("an empty answer lets a claim pass")
	}
}

func TestWindows(t *testing.T) {
	at := func(s string) window.UTC {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return window.FromTime(v)
	}
	for _, c := range []struct{ window, zone, at, want string }{
		{"date", "UTC", "2026-07-17T00:00:00Z", "2026-07-17"},
		{"date", "UTC", "2026-07-17T23:59:59.999Z", "2026-07-17"},
		{"date", "UTC", "2028-02-29T12:00:00Z", "2028-02-29"},
		{"date", "America/Chicago", "2026-07-18T04:59:59Z", "2026-07-17"}, // CDT, UTC-5
		{"date", "America/Chicago", "2026-07-18T05:00:00Z", "2026-07-18"},
		{"date", "America/Chicago", "2026-01-18T05:59:59Z", "2026-01-17"}, // CST, UTC-6
		{"date", "America/Chicago", "2026-11-01T05:30:00Z", "2026-11-01"}, // the day with 25 hours
		{"date", "America/Chicago", "2026-11-02T05:59:59Z", "2026-11-01"},
		{"6h", "UTC", "2026-07-17T12:00:00Z", "2026-07-17T12:00Z/PT6H"},
		{"6h", "UTC", "2026-07-17T17:59:59.999Z", "2026-07-17T12:00Z/PT6H"},
		{"6h", "UTC", "2026-07-17T18:00:00Z", "2026-07-17T18:00Z/PT6H"},
		{"6h", "America/Chicago", "2026-07-17T12:00:00Z", "2026-07-17T12:00Z/PT6H"}, // the zone is the calendar's
		{"5h", "UTC", "1970-01-01T04:59:59Z", "1970-01-01T00:00Z/PT5H"},
		{"5h", "UTC", "1970-01-01T05:00:00Z", "1970-01-01T05:00Z/PT5H"},
		{"5h", "UTC", "1969-12-31T23:59:59.999Z", "1969-12-31T19:00Z/PT5H"},
		{"24h", "UTC", "2026-07-17T12:00:00Z", "2026-07-17T00:00Z/PT24H"},
		{"8760h", "UTC", "1970-12-31T23:00:00Z", "1970-01-01T00:00Z/PT8760H"},
		{"60m", "UTC", "2026-07-17T12:59:00Z", "2026-07-17T12:00Z/PT1H"},
	} {
		w, err := pacase.NewWindows(c.window, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.At(at(c.at)); got != c.want {
			t.Errorf("%s in windows of %s in %s: %s, want %s", c.at, c.window, c.zone, got, c.want)
		}
		if _, err := (pacase.Question{MemberToken: "M-1", GPI: "27", Window: c.want}).Offline(); err != nil {
			t.Errorf("%s is refused: %v", c.want, err)
		}
	}
	for _, c := range []struct{ window, zone, want string }{
		{"90m", "UTC", "pa.request_window"}, {"0h", "UTC", "pa.request_window"}, {"-1h", "UTC", "pa.request_window"},
		{"8761h", "UTC", "pa.request_window"}, {"day", "UTC", "pa.request_window"}, {"", "UTC", "pa.request_window"},
		{"date", "", "pa.zone"}, {"date", "Local", "pa.zone"}, {"date", "Nowhere/Town", "pa.zone"}, {"6h", "Nowhere/Town", "pa.zone"},
	} {
		var config *pacase.ConfigError
		if _, err := pacase.NewWindows(c.window, c.zone); !errors.As(err, &config) || !strings.Contains(config.Detail, c.want) || config.Hint == "" {
			t.Errorf("windows of %q in %q: %v", c.window, c.zone, err)
		}
	}
}

func TestQuestions(t *testing.T) {
	good := pacase.Question{MemberToken: "MTOK_9f2a", GPI: "27100010100320", Window: "2026-07-17"}
	set := func(field, value string) pacase.Question {
		q := good
		*map[string]*string{"member_token": &q.MemberToken, "gpi": &q.GPI, "request_window": &q.Window}[field] = value
		return q
	}
	for field, values := range map[string][]string{
		"member_token": {"M1", "tok-123456789", "tok-a", "MTOK_SMITH", "mTok:x", "019aceee-0000-7000-8000-000000000001", "A|1", `A\1`, "vault:v1:9f2a/+==",
			"0123456789abcdef0123456789abcdef", strings.Repeat("x", 127) + "1"},
		"gpi":            {"27", "2710", "271000", "58200060100105", "2717007000D220", "99"},
		"request_window": {"2028-02-29", "2026-07-17T00:00Z/PT1H", "1970-01-01T00:00Z/PT8760H"},
	} {
		for _, v := range values {
			if _, err := set(field, v).Offline(); err != nil {
				t.Errorf("%s %q: %v", field, v, err)
			}
		}
	}
	for field, values := range map[string][]string{
		"member_token": {"", "W123456789", "XYZ123456789012", "1EG4TE5MK73", "123456789", "123-45-6789", "555_123", "JANE DOE", "DOE,JANE", "DOE^JANE",
			"jane@example.com", "M\x00", "M\n1", "Mé1", "\xff", strings.Repeat("x", 129),
			"a", "JOHNSMITH", "SMITH_JOHN", "TOKENSMITH", "mTok", "mtoken", "mmtok-x", "xtok-x", "MTOK_É"},
		"gpi": {"", "2", "271", "27100010100", "00093721410", "271000101003200", "58-20-00-60-10-01-05", "2717007000d220", "A7", "2A", "0010", "27 0", "27|0",
			"00300937214106", "27\x00\x00"},
		"request_window": {"", "2026-02-30", "2026-7-17", "20260717", "2026-07-17T12:00Z", "2026-07-17T12:00Z/PT", "2026-07-17T12:00Z/PT6", "2026-07-17T12:00Z/PT0H",
			"2026-07-17T12:00Z/PT06H", "2026-07-17T12:00Z/PT-6H", "2026-07-17T13:00Z/PT6H", "2026-07-17T12:30Z/PT6H", "2026-07-17T12:00Z/PT8761H", "2026-07-17T12:00Z/PT6HH", "today"},
	} {
		for _, v := range values {
			_, err := set(field, v).Offline()
			var bad *pacase.RequestError
			if !errors.As(err, &bad) || bad.Field != field || bad.Detail == "" || bad.Hint == "" {
				t.Errorf("%s %q: %v", field, v, err)
				continue
			}
			if field == "member_token" && len(v) > 3 && strings.Contains(err.Error(), v) {
				t.Errorf("the error repeats the value: %v", err)
			}
		}
	}
}

func TestStates(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range pacase.States() {
		text, err := s.MarshalText()
		back, parseErr := pacase.ParseState(string(text))
		if err != nil || parseErr != nil || back != s || seen[s.String()] {
			t.Errorf("%s: %s, %v, %v, %v", s, text, err, back, parseErr)
		}
		seen[s.String()] = true
	}
	for _, s := range []pacase.State{0, 8, 255} {
		if s.Open() || s.May(pacase.Approved) || s.RejectCode() != "75" || seen[s.String()] {
			t.Errorf("%s counts as a state", s)
		}
	}
	for _, name := range []string{"", "pending", "PAUSED", "state 1"} {
		if s, err := pacase.ParseState(name); err == nil || s != 0 {
			t.Errorf("%q is %s", name, s)
		}
	}
	if got := fmt.Sprint(id(0)); got != "30303030-3030-3030-3030-303030303031" {
		t.Errorf("text of a UUID: %s", got)
	}
	if word(pacase.Transitioned{}) != "missing" {
		t.Error("an empty answer says something")
	}
}
