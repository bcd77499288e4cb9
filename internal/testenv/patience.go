//go:build !usbrig

package testenv

import "time"

// Patience is how long a test waits for what should happen at once, on a machine that is busy.
const Patience = time.Minute
