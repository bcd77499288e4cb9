package session

import (
	"testing"
	"time"

	"scanonce/window"
)

func fresh() State {
	return New(Settings{Home: window.Dispense, ModeIdle: 2 * time.Minute, QuantityTimeout: time.Minute, RxContext: 2 * time.Minute})
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

func TestALabelBelongsToTheScansBehindIt(t *testing.T) {
	const a, b = "rx1.a", "rx1.b"
	token := func(t *testing.T, s *State, now time.Duration, want string) {
		t.Helper()
		if got := s.RxToken(now); got != want {
			t.Fatalf("at %v: %q, want %q", now, got, want)
		}
	}
	t.Run("for its time", func(t *testing.T) {
		s := fresh()
		token(t, &s, time.Second, "")
		s.SetLabel(a, 10*time.Second)
		s.Accepted(20 * time.Second) // and for more than one scan
		s.Accepted(70 * time.Second)
		token(t, &s, 130*time.Second-1, a)
		token(t, &s, 130*time.Second, "")
		if s.Act() != 0 {
			t.Error("a label is no act that makes an echo a movement")
		}
	})
	t.Run("until the next label", func(t *testing.T) {
		s := fresh()
		s.SetLabel(a, 10*time.Second)
		saved := s
		s.SetLabel(b, 100*time.Second)
		token(t, &s, 219*time.Second, b)
		token(t, &saved, 101*time.Second, a)
	})
	t.Run("until another scan type", func(t *testing.T) {
		s := fresh()
		s.SetLabel(a, 10*time.Second)
		s.SetMode(window.Dispense, 11*time.Second) // the same
		token(t, &s, 12*time.Second, a)
		s.SetMode(window.Receive, 13*time.Second)
		token(t, &s, 14*time.Second, "")
		s.SetMode(window.Dispense, 15*time.Second)
		token(t, &s, 16*time.Second, "")
		s.SetMode(window.Return, 17*time.Second)
		s.SetLabel(b, 18*time.Second)
		token(t, &s, 19*time.Second, b)
	})
	t.Run("until the scan type falls back", func(t *testing.T) {
		s := fresh()
		s.Settings.ModeIdle = 20 * time.Second
		s.SetMode(window.Return, time.Second)
		s.SetLabel(a, 15*time.Second) // which keeps the mode alive
		token(t, &s, 34*time.Second, a)
		token(t, &s, 35*time.Second, "")
		if !s.Expire(35 * time.Second) {
			t.Error("the fall-back was not told")
		}
		s.SetMode(window.Return, 36*time.Second)
		token(t, &s, 37*time.Second, "")
	})
	t.Run("its end is told to nobody and wakes nobody", func(t *testing.T) {
		s := fresh()
		s.SetLabel(a, 10*time.Second)
		if at, ok := s.NextExpiry(11 * time.Second); ok {
			t.Errorf("something ends at %v", at)
		}
		if s.Expire(131*time.Second) || s.rx != "" {
			t.Errorf("after its time: %q", s.rx)
		}
	})
}
