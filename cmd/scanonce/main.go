// Command scanonce turns what pharmacy barcode scanners read into exactly one ledger row per movement.
package main

import (
	"os"

	"scanonce/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
