//go:build !race

package testenv

// Race says that the test has the race detector, which makes all that computes many times slower.
const Race = false
