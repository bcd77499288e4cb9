// Package world is a deterministic simulation of several agents. Their own code runs, composed as in the
// program; a seed decides everything around it: the order of all steps, the clocks, the disks, the claim store,
// the ledger, the scanners and their users. An oracle knows what really moved, and checks the promise.
//
// It is all test side: see world_test.go for how to run a seed again.
package world
