package capture

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// General Specifications 7.12: 51 to 99 years ahead is last century, 50 or more behind is next century.
func TestCentury(t *testing.T) {
	for _, c := range []struct{ now, yy, want int }{
		{2026, 26, 2026}, {2026, 0, 2000}, {2026, 76, 2076}, {2026, 77, 1977}, {2026, 99, 1999}, {2026, 25, 2025},
		{2049, 99, 2099}, {2049, 0, 2000}, {2050, 0, 2100}, {2050, 1, 2001}, {2051, 0, 2100}, {2051, 1, 2101},
		{2051, 2, 2002}, {2080, 29, 2129}, {2080, 30, 2130}, {2080, 31, 2031}, {2000, 50, 2050}, {2000, 51, 1951},
		{1999, 49, 2049}, {1999, 50, 1950}, {2099, 49, 2149}, {2099, 50, 2050}, {0, 99, 2099}, {0, 0, 2000},
	} {
		if got := fullYear(c.yy, Date{Year: c.now}); got != c.want {
			t.Errorf("in %d, %02d is %d, want %d", c.now, c.yy, got, c.want)
		}
	}
	// Every two-digit year falls within −49 to +50 years.
	for now := 1990; now < 2110; now++ {
		for yy := range 100 {
			y := fullYear(yy, Date{Year: now})
			if y%100 != yy || y-now < -49 || y-now > 50 {
				t.Fatalf("in %d, %02d is %d", now, yy, y)
			}
		}
	}
}

func TestExpiry(t *testing.T) {
	for _, c := range []struct {
		in, expiry, last string
		err              ErrorKind
	}{
		{"17280200", "2028-02", "2028-02-29", ""},
		{"17270200", "2027-02", "2027-02-28", ""},
		{"17000200", "2000-02", "2000-02-29", ""},
		{"17300400", "2030-04", "2030-04-30", ""},
		{"17280229", "2028-02-29", "2028-02-29", ""},
		{"17270229", "", "", BadDate},
		{"17270431", "", "", BadDate},
		{"17271301", "", "", BadDate},
		{"17270001", "", "", BadDate},
		{"17270000", "", "", BadDate},
		{"17270132", "", "", BadDate},
		{"70032706302359", "2027-06-30", "2027-06-30", ""},
		{"70032706300000", "2027-06-30", "2027-06-30", ""},
		{"70032706002359", "", "", BadDate},
		{"70032706302400", "", "", BadDate},
		{"70032706302360", "", "", BadDate},
		{"70032706312359", "", "", BadDate},
		{"70032706302359\x1d17270629", "2027-06-29", "2027-06-29", ""}, // the plain date stands
		{"17270629" + "70032706302359", "2027-06-29", "2027-06-29", ""},
		{"15270629", "", "", ""},
		{"16270629", "", "", ""},
		{"11270629", "", "", ""},
		{"7006270600", "", "", BadDate},
		{"7007270601270630", "", "", ""},
		{"7007270601270631", "", "", BadDate},
		{"70072706012706", "", "", BadLength},
		{"70112706012400", "", "", BadDate},
		{"800827060123", "", "", ""},
		{"8008270601235960", "", "", BadDate},
		{"43242706009999", "", "", ""},
		{"43242706002400", "", "", BadDate},
		{"4326270600", "", "", BadDate},
	} {
		s, r := decode(t, "]d20100312345678906"+c.in)
		if r.Kind != c.err || s.Expiry.String() != c.expiry || s.ExpiryLastDay.String() != c.last {
			t.Errorf("%q: %s, last day %s, %v", c.in, s.Expiry, s.ExpiryLastDay, r)
		}
	}
}

// Days agree with the calendar of package time, but nothing rolls over.
func TestCalendar(t *testing.T) {
	for y := 1999; y < 2101; y++ {
		n := 0
		for m := 1; m <= 12; m++ {
			for d := 1; d <= 32; d++ {
				c := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
				want := int(c.Month()) == m && d <= 31
				if got := (Date{y, m, d}).exists(); got != want {
					t.Fatalf("%d-%d-%d exists: %v", y, m, d, got)
				}
				if want {
					n++
					if got, ok := dayOfYear(y, n); !ok || got != DateOf(c) {
						t.Fatalf("day %d of %d is %v", n, y, got)
					}
				}
			}
		}
		if _, ok := dayOfYear(y, n+1); ok {
			t.Fatalf("%d has a day %d", y, n+1)
		}
		if _, ok := dayOfYear(y, 0); ok {
			t.Fatalf("%d has a day 0", y)
		}
	}
}

func TestDateText(t *testing.T) {
	for _, s := range []string{"2026-11-29", "2028-02", ""} {
		var d Date
		if err := d.UnmarshalText([]byte(s)); err != nil || d.String() != s {
			t.Errorf("%q: %v %v", s, d, err)
		}
		b, err := json.Marshal(d)
		if err != nil || string(b) != fmt.Sprintf("%q", s) {
			t.Errorf("%q: %s %v", s, b, err)
		}
	}
	for _, s := range []string{"2026-02-30", "2026-13", "26-11-29", "2026/11/29", "2026-1a-29", "x"} {
		var d Date
		if err := d.UnmarshalText([]byte(s)); err == nil || !d.IsZero() {
			t.Errorf("%q read as %v", s, d)
		}
	}
}
