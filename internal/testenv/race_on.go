//go:build race

package testenv

const raceFlag = true
