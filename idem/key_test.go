package idem_test

import (
	"strings"
	"time"

	"scanonce/idem"
	"scanonce/window"
)

var threeSeconds = window.Policy{Width: 3 * time.Second, Guard: 500 * time.Millisecond}

// plain is the identity of the golden vectors.
func plain() idem.Identity {
	return idem.Identity{Facility: strings.Repeat("F", 36), Scanner: "SCN-04", NDC: "00093721410", Lot: "A1207", Quantity: 1, Type: window.Dispense}
}
