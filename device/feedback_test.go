package device

import "testing"

func TestFeedbackProfiles(t *testing.T) {
	for _, name := range FeedbackProfiles() {
		f, ok := FeedbackOf(name)
		if !ok || len(f.Good) == 0 {
			t.Errorf("%s: %v", name, f)
		}
		cfg := SerialConfig{ID: "S", Path: "/a", Feedback: f}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(FeedbackProfiles()) != len(feedbacks()) {
		t.Error("a profile has no name in the list")
	}
	if _, ok := FeedbackOf("none"); ok {
		t.Error("an unknown profile is known")
	}
	zebra, _ := FeedbackOf("zebra-ssi")
	if f := (Feedback{Good: []byte("G")}).Or(zebra); string(f.Good) != "G" || string(f.Reject) != string(zebra.Reject) {
		t.Errorf("own bytes go first: %q", f)
	}
}
