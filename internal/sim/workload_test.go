package sim

import (
	"reflect"
	"strings"
	"testing"
)

// Check digits as published: the GS1 examples and a package of the field.
func TestCheckDigit(t *testing.T) {
	for digits, want := range map[string]byte{
		"0030093721410":     '6', // GTIN-14 of NDC 0093-7214-10
		"0030406051201":     '6',
		"629104150021":      '3', // GTIN-13
		"37610425002123456": '9', // SSCC
		"9638507":           '4', // GTIN-8
		"0000000000000":     '0',
	} {
		if got := CheckDigit(digits); got != want {
			t.Errorf("CheckDigit(%s) = %c, want %c", digits, got, want)
		}
	}
	if got := GTIN(0, "0093721410"); got != "00300937214106" {
		t.Errorf("GTIN = %s", got)
	}
}

func TestItemsAreAsLabelsAre(t *testing.T) {
	const n = 6000
	w := NewWorkload(7)
	seen, ndcs, serials, linear := map[string]bool{}, map[string]bool{}, map[string]bool{}, 0
	for range n {
		it := w.Next()
		if seen[it.Data] {
			t.Fatalf("%s comes twice", Printable(it.Data))
		}
		if ndcs[it.NDC] {
			t.Fatalf("NDC %s comes twice", it.NDC)
		}
		seen[it.Data], ndcs[it.NDC] = true, true
		ndc10 := strings.ReplaceAll(it.NDC, "-", "")
		if len(ndc10) != 10 || len(it.GTIN) != 14 || it.GTIN[:3] != "003" || it.GTIN[3:13] != ndc10 {
			t.Fatalf("GTIN %s of NDC %s", it.GTIN, it.NDC)
		}
		if CheckDigit(it.GTIN[:13]) != it.GTIN[13] {
			t.Fatalf("check digit of %s", it.GTIN)
		}
		if it.Serial == "" {
			linear++
			if it.Data != "]E0"+it.GTIN[1:] {
				t.Fatalf("linear code %q", it.Data)
			}
			continue
		}
		if serials[it.Serial] {
			t.Fatalf("serial %s comes twice", it.Serial)
		}
		serials[it.Serial] = true
		want := "]d201" + it.GTIN + "21" + it.Serial + "\x1d17" + it.Expiry + "10" + it.Lot
		if it.Data != want || len(it.Serial) > 20 || len(it.Lot) > 20 || len(it.Expiry) != 6 {
			t.Fatalf("DataMatrix %q", it.Data)
		}
	}
	if linear < n/10 || linear > n/3 {
		t.Errorf("%d of %d items have a linear code", linear, n)
	}
}

func TestWorkloadsFollowTheirSeed(t *testing.T) {
	plan := func(seed uint64) []Step {
		s, err := NewWorkload(seed).Steps(20, 6, 2)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if !reflect.DeepEqual(plan(1), plan(1)) {
		t.Error("one seed gave two workloads")
	}
	if reflect.DeepEqual(plan(1), plan(2)) {
		t.Error("two seeds gave one workload")
	}
}

func TestSteps(t *testing.T) {
	for seed := range uint64(50) {
		steps, err := NewWorkload(seed).Steps(20, 6, 2)
		if err != nil {
			t.Fatal(err)
		}
		scans, again, straddles := 0, 0, 0
		for i, s := range steps {
			if !s.Retransmit {
				scans++
				if s.Straddle {
					t.Errorf("seed %d: a first transmission straddles", seed)
				}
				continue
			}
			again++
			if s.Straddle {
				straddles++
			}
			if i == 0 || steps[i-1].Data != s.Data || steps[i-1].Retransmit {
				t.Errorf("seed %d: step %d does not repeat the one before", seed, i)
			}
			if ms := s.After.Milliseconds(); ms < 50 || ms > 400 {
				t.Errorf("seed %d: retransmitted after %d ms", seed, ms)
			}
		}
		if scans != 20 || again != 6 || straddles != 2 {
			t.Errorf("seed %d: %d scans, %d retransmits, %d straddles", seed, scans, again, straddles)
		}
	}
	for _, bad := range [][3]int{{0, 0, 0}, {3, 4, 0}, {3, -1, 0}, {3, 2, 3}, {3, 2, -1}} {
		if _, err := NewWorkload(1).Steps(bad[0], bad[1], bad[2]); err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestPrintable(t *testing.T) {
	if got := Printable("]d2\x1d\r\xffA"); got != "]d2<GS><0D><FF>A" {
		t.Errorf("Printable = %s", got)
	}
}
