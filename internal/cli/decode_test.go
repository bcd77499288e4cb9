package cli

import (
	"strings"
	"testing"

	"scanonce/capture"
)

func TestEveryFlagHasWords(t *testing.T) {
	names := capture.Flags(^capture.Flags(0)).Names()
	if len(names) != 8 {
		t.Errorf("%d flags", len(names))
	}
	for _, f := range names {
		if flagText(f, new(capture.Scan)) == "" {
			t.Errorf("%s is not explained", f)
		}
	}
}

// A refusal's text is its kind, its words and at most an AIM identifier.
func TestRefusalText(t *testing.T) {
	r := capture.Refusal{Kind: capture.BadDate, Detail: "Set it aside."}
	for id, want := range map[string]string{
		"":    "refused   bad_date: a date that does not exist\n  Set it aside.\n",
		"]d2": "refused   bad_date: a date that does not exist  ]d2 GS1 DataMatrix\n  Set it aside.\n",
		"]X0": "refused   bad_date: a date that does not exist  ]X0\n  Set it aside.\n",
	} {
		if got := refusalText(r, id); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if strings.Contains(symbologyText("", "]C0"), "GS1") {
		t.Error("plain Code 128 is told as GS1")
	}
}
