package capture

import (
	"errors"
	"time"
)

// Date is a civil day without zone. Day 0 is a whole month, as labels with day 00 give it; the zero Date
// is no date.
type Date struct{ Year, Month, Day int }

// DateOf is the civil day of t in t's location.
func DateOf(t time.Time) Date {
	y, m, d := t.Date()
	return Date{Year: y, Month: int(m), Day: d}
}

// ParseDate reads YYYY-MM-DD.
func ParseDate(s string) (Date, error) {
	bad := errors.New("cannot read the date: write YYYY-MM-DD, for example 2026-11-29")
	if len(s) != 10 || s[4] != '-' || s[7] != '-' {
		return Date{}, bad
	}
	y, okY := number([]byte(s[:4]))
	m, okM := number([]byte(s[5:7]))
	day, okD := number([]byte(s[8:]))
	d := Date{Year: y, Month: m, Day: day}
	if !okY || !okM || !okD || !d.exists() {
		return Date{}, bad
	}
	return d, nil
}

// IsZero says that there is no date.
func (d Date) IsZero() bool { return d == Date{} }

// String is YYYY-MM-DD, YYYY-MM for a whole month, "" for no date.
func (d Date) String() string {
	if d.IsZero() {
		return ""
	}
	digits := func(b []byte, v int) []byte { return append(b, byte('0'+v/10%10), byte('0'+v%10)) }
	b := append(digits(digits(make([]byte, 0, 10), d.Year/100), d.Year), '-')
	b = digits(b, d.Month)
	if d.Day != 0 {
		b = digits(append(b, '-'), d.Day)
	}
	return string(b)
}

// MarshalText writes String's form.
func (d Date) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads String's form.
func (d *Date) UnmarshalText(b []byte) error {
	s := string(b)
	switch len(s) {
	case 0:
		*d = Date{}
		return nil
	case 7:
		v, err := ParseDate(s + "-01")
		if err != nil {
			return err
		}
		*d = Date{Year: v.Year, Month: v.Month}
		return nil
	}
	v, err := ParseDate(s)
	if err == nil {
		*d = v
	}
	return err
}

// LastDay is the day itself, or the last day of a whole month.
func (d Date) LastDay() Date {
	if d.Day == 0 && d.Month != 0 {
		d.Day = daysIn(d.Year, d.Month)
	}
	return d
}

func (d Date) exists() bool {
	return d.Month >= 1 && d.Month <= 12 && d.Day >= 1 && d.Day <= daysIn(d.Year, d.Month)
}

func leap(y int) bool { return y%4 == 0 && (y%100 != 0 || y%400 == 0) }

func daysIn(y, m int) int {
	switch m {
	case 2:
		if leap(y) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// fullYear puts a two-digit year into its century by GS1 General Specifications 7.12: a difference to the
// current year of 51 to 99 is the last century, of −50 or less the next one. Without a today it is 20YY.
func fullYear(yy int, today Date) int {
	if today.Year == 0 {
		return 2000 + yy
	}
	century := today.Year - today.Year%100
	switch diff := yy - today.Year%100; {
	case diff >= 51:
		return century - 100 + yy
	case diff <= -50:
		return century + 100 + yy
	}
	return century + yy
}

// yymmdd reads six digits. Day 00 is the whole month if wholeMonth allows it.
func yymmdd(b []byte, today Date, wholeMonth bool) (Date, bool) {
	d := Date{Year: fullYear(two(b), today), Month: two(b[2:]), Day: two(b[4:])}
	if d.Day == 0 && wholeMonth {
		return d, d.Month >= 1 && d.Month <= 12
	}
	return d, d.exists()
}

// dayOfYear turns day n (from 1) of a year into a date.
func dayOfYear(year, n int) (Date, bool) {
	if n < 1 {
		return Date{}, false
	}
	for m := 1; m <= 12; m++ {
		if n <= daysIn(year, m) {
			return Date{Year: year, Month: m, Day: n}, true
		}
		n -= daysIn(year, m)
	}
	return Date{}, false
}

func hhmm(b []byte) bool { return two(b) <= 23 && two(b[2:]) <= 59 }

// two reads two digits that are known to be digits.
func two(b []byte) int { return int(b[0]-'0')*10 + int(b[1]-'0') }

// number reads up to nine ASCII digits.
func number(b []byte) (int, bool) {
	if len(b) == 0 || len(b) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}
