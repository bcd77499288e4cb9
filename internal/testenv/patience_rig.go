//go:build usbrig

package testenv

import "time"

// Patience is longer in the rig: its machine is emulated, and ten times slower than the one that emulates it.
const Patience = 2 * time.Minute
