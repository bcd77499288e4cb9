package session

import (
	"testing"
	"time"

	"scanonce/window"
)

func fresh() State {
	return New(Settings{Home: window.Dispense, ModeIdle: 2 * time.Minute, QuantityTimeout: time.Minute})
}

func want(t *testing.T, s *State, now time.Duration, typ window.ScanType, quantity int) {
	t.Helper()
	if gt, gq := s.Current(now); gt != typ || gq != quantity {
		t.Fatalf("at %v: %v × %d, want %v × %d", now, gt, gq, typ, quantity)
	}
}

func TestModeFallsBackAfterIdleTimeAndLivesWhileUsed(t *testing.T) {
	s := fresh()
	want(t, &s, time.Second, window.Dispense, 1)
	s.SetMode(window.Return, 10*time.Second)
	want(t, &s, 129*time.Second, window.Return, 1)
	s.Accepted(129 * time.Second)
	want(t, &s, 248*time.Second, window.Return, 1)
	if at, ok := s.NextExpiry(200 * time.Second); !ok || at != 249*time.Second {
		t.Fatalf("next expiry %v, %v", at, ok)
	}
	want(t, &s, 249*time.Second, window.Dispense, 1)
	if !s.Expire(249*time.Second) || s.Expire(249*time.Second) {
		t.Fatal("the fall-back must be told once")
	}
	if s.Act() != 10*time.Second {
		t.Fatalf("an automatic change counts as an act: %v", s.Act())
	}
}

func TestQuantityIsOneShotAndRunsOut(t *testing.T) {
	s := fresh()
	if err := s.SetQuantity(30, time.Second); err != nil {
		t.Fatal(err)
	}
	want(t, &s, 60*time.Second, window.Dispense, 30)
	want(t, &s, 61*time.Second, window.Dispense, 1)
	s.SetQuantity(30, 70*time.Second)
	s.Accepted(71 * time.Second)
	want(t, &s, 71*time.Second, window.Dispense, 1)
	for _, q := range []int{0, -1, 10000, 1e9} {
		if s.SetQuantity(q, 80*time.Second) == nil {
			t.Fatalf("quantity %d was taken", q)
		}
	}
	if s.Act() != 70*time.Second {
		t.Fatalf("a refused quantity counts as an act: %v", s.Act())
	}
}

func TestSameAgainIsUsedByOneScan(t *testing.T) {
	s := fresh()
	s.Arm(time.Second)
	saved := s
	s.Accepted(2 * time.Second)
	if s.Armed() || !saved.Armed() {
		t.Fatalf("armed %v, in the copy %v", s.Armed(), saved.Armed())
	}
}

func TestTheHomeTypeSetByHandDoesNotRunOut(t *testing.T) {
	s := fresh()
	s.SetMode(window.Dispense, time.Second)
	if _, ok := s.NextExpiry(2 * time.Second); ok {
		t.Fatal("the scanner's own type has an end")
	}
	if s.Expire(time.Hour) {
		t.Fatal("nothing changed, and yet it was told")
	}
}
