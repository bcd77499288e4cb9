package window_test

import (
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

const ms = time.Millisecond

func TestDefaults(t *testing.T) {
	p := window.Defaults()
	for _, c := range []struct {
		types []window.ScanType
		want  window.Policy
	}{
		{[]window.ScanType{window.Receive, window.Count}, window.Policy{Width: 400 * ms, Guard: 200 * ms}},
		{[]window.ScanType{window.Dispense, window.Return, window.Waste, window.Adjust, window.Transfer}, window.Policy{Width: 3000 * ms, Guard: 500 * ms}},
	} {
		for _, s := range c.types {
			if got := p.For(s); got != c.want || got != window.Default(s) {
				t.Errorf("%s: %+v, want %+v", s, got, c.want)
			}
			if err := p.For(s).Validate(time.Minute); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
	if got := p.Longest(); got != 3500*ms {
		t.Errorf("longest W+G %v, want 3.5s", got)
	}
	p[window.Count] = window.Policy{Width: 5 * time.Second, Guard: time.Second}
	if got := p.Longest(); got != 6*time.Second {
		t.Errorf("longest W+G %v, want 6s", got)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		width, guard, ttl time.Duration
		ok                bool
	}{
		{3000 * ms, 500 * ms, time.Minute, true},
		{3000 * ms, 500 * ms, 3500 * ms, true},
		{3000 * ms, 500 * ms, 3500*ms - 1, false},
		{30 * ms, 15 * ms, time.Minute, true},
		{30 * ms, 16 * ms, time.Minute, false},
		{31 * ms, 15 * ms, time.Minute, true},
		{31 * ms, 16 * ms, time.Minute, false},
		{2 * ms, ms, time.Minute, true},
		{ms, ms, time.Minute, false},
		{0, 0, time.Minute, false},
		{3000 * ms, 0, time.Minute, false},
		{3000 * ms, -ms, time.Minute, false},
		{-3000 * ms, 500 * ms, time.Minute, false},
		{3000*ms + 1, 500 * ms, time.Minute, false},
		{3000 * ms, 500*ms + 1, time.Minute, false},
		{3000 * ms, 500 * ms, 0, false},
	} {
		err := window.Policy{Width: c.width, Guard: c.guard}.Validate(c.ttl)
		if (err == nil) != c.ok {
			t.Errorf("W=%v G=%v ttl=%v: %v, want ok=%v", c.width, c.guard, c.ttl, err, c.ok)
		}
		if err != nil && !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("error %q does not begin with cannot", err)
		}
	}
}

// missed counts the pairs up to G apart that straddle a boundary and have no boundary in common.
func missed(p window.Policy) (n int) {
	w, g := int(p.Width/ms), int(p.Guard/ms)
	for phase := range w {
		for d := 1; d <= g; d++ {
			a, b := window.UTC(phase), window.UTC(phase+d)
			ab, aok := p.Boundary(a)
			bb, bok := p.Boundary(b)
			if p.Index(a) != p.Index(b) && !(aok && bok && ab == bb) {
				n++
			}
		}
	}
	return n
}

// 2G ≤ W is exact: at half the width nothing is missed, a millisecond more and straddling pairs are.
func TestGuardMayBeHalfTheWidth(t *testing.T) {
	for w := 2; w <= 40; w += 2 {
		p := window.Policy{Width: time.Duration(w) * ms}
		for p.Guard = ms; 2*p.Guard <= p.Width; p.Guard += ms {
			if n := missed(p); n != 0 || p.Validate(time.Minute) != nil {
				t.Errorf("W=%v G=%v: %d pairs missed, validate: %v", p.Width, p.Guard, n, p.Validate(time.Minute))
			}
		}
		if n := missed(p); w > 2 && n == 0 || p.Validate(time.Minute) == nil {
			t.Errorf("W=%v G=%v: %d pairs missed, and it is valid: %v", p.Width, p.Guard, n, p.Validate(time.Minute) == nil)
		}
	}
	if n := missed(window.Policy{Width: 30 * ms, Guard: 15 * ms}); n != 0 {
		t.Errorf("W=30 G=15: %d pairs missed, want 0", n)
	}
	if n := missed(window.Policy{Width: 30 * ms, Guard: 16 * ms}); n != 3 {
		t.Errorf("W=30 G=16: %d pairs missed, want 3", n)
	}
}

func TestIndexAndBoundaryAtEveryPhase(t *testing.T) {
	for _, p := range []window.Policy{
		{Width: 3000 * ms, Guard: 500 * ms}, {Width: 400 * ms, Guard: 200 * ms}, {Width: 6 * ms, Guard: 3 * ms}, {Width: 7 * ms, Guard: ms},
	} {
		w, g := int64(p.Width/ms), int64(p.Guard/ms)
		for _, i := range []int64{-587402113, -2, -1, 0, 1, 587402113} {
			if got := p.Start(window.Index(i)); int64(got) != i*w {
				t.Errorf("start of %d: %d, want %d", i, got, i*w)
			}
			for in := range w {
				at := window.UTC(i*w + in)
				if got := p.Index(at); int64(got) != i {
					t.Fatalf("W=%d: index of %d is %d, want %d", w, at, got, i)
				}
				want, inside := int64(0), false
				switch {
				case in < g:
					want, inside = i, true
				case in >= w-g:
					want, inside = i+1, true
				}
				if got, ok := p.Boundary(at); ok != inside || int64(got) != want {
					t.Fatalf("W=%d G=%d: boundary of %d is %d, %v, want %d, %v", w, g, at, got, ok, want, inside)
				}
			}
		}
	}
	if got := (window.Policy{Width: 3000 * ms}).Index(-1); got != -1 {
		t.Errorf("index of -1 ms is %d, want -1", got)
	}
	golden, _ := time.Parse(time.RFC3339, "2025-11-03T21:45:39Z")
	if got := window.Default(window.Dispense).Index(window.FromTime(golden)); got != 587402113 {
		t.Errorf("index of %v is %d, want 587402113", golden, got)
	}
}

func TestUTC(t *testing.T) {
	for _, c := range []struct {
		t    window.UTC
		text string
	}{
		{0, "1970-01-01T00:00:00.000Z"},
		{-1, "1969-12-31T23:59:59.999Z"},
		{1762206339000, "2025-11-03T21:45:39.000Z"},
		{1762206339007, "2025-11-03T21:45:39.007Z"},
	} {
		text, _ := c.t.MarshalText()
		if c.t.String() != c.text || string(text) != c.text {
			t.Errorf("%d: %s, %s, want %s", int64(c.t), c.t, text, c.text)
		}
		var back window.UTC
		if err := back.UnmarshalText([]byte(c.text)); err != nil || back != c.t {
			t.Errorf("%s is read as %d, %v", c.text, int64(back), err)
		}
		if window.FromTime(c.t.Time()) != c.t {
			t.Errorf("%s as a time.Time is another instant", c.text)
		}
	}
	// Finer parts of a second are cut towards the past, also before the epoch; zones are applied.
	for text, want := range map[string]window.UTC{
		"1969-12-31T23:59:59.9999Z": -1, "1970-01-01T00:00:00.0009Z": 0, "1970-01-01T02:00:00+02:00": 0, "1970-01-01T00:00:01-00:30": 1801000,
	} {
		var got window.UTC
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s is read as %d, %v, want %d", text, int64(got), err, int64(want))
		}
	}
	var bad window.UTC = 7
	if err := bad.UnmarshalText([]byte("yesterday")); err == nil || bad != 7 || !strings.HasPrefix(err.Error(), "cannot ") {
		t.Errorf("yesterday is read as %d, %v", bad, err)
	}
	if a := window.UTC(5).Add(1500 * time.Microsecond); a != 6 {
		t.Errorf("5 ms + 1.5 ms = %d, want 6", a)
	}
	if d := window.UTC(5).Sub(7); d != -2*ms {
		t.Errorf("5 − 7 ms = %v", d)
	}
}

func TestNames(t *testing.T) {
	names := []string{"receive", "dispense", "waste", "return", "adjust", "transfer", "count"}
	if len(window.ScanTypes()) != len(names) {
		t.Fatalf("%d scan types", len(window.ScanTypes()))
	}
	for i, s := range window.ScanTypes() {
		var back window.ScanType
		if s.String() != names[i] || back.UnmarshalText([]byte(names[i])) != nil || back != s {
			t.Errorf("scan type %d: %s, read back %d, want %s", i+1, s, back, names[i])
		}
	}
	for _, bad := range []string{"", "Dispense", "sale"} {
		if s, err := window.ParseScanType(bad); err == nil || s != 0 || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("scan type %q is read as %d, %v", bad, s, err)
		}
	}
	if s := window.ScanType(99).String(); s != "ScanType(99)" {
		t.Errorf("ScanType(99) is %q", s)
	}
	for i, n := range []string{"unsynced", "holdover", "synced", "device"} {
		var q window.Quality
		if text, _ := window.Quality(i).MarshalText(); string(text) != n || q.UnmarshalText(text) != nil || int(q) != i {
			t.Errorf("quality %d: %s, read back %d, want %s", i, text, q, n)
		}
	}
	var q window.Quality
	if q.UnmarshalText([]byte("good")) == nil || window.Quality(9).String() != "Quality(9)" {
		t.Error("a quality that is none is accepted")
	}
}
