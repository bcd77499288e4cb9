// Command worker is the process that reads a HID device, and nothing else of the program: with the address sanitizer
// it is built in a moment.
package main

import (
	"fmt"
	"os"

	"scanonce/device"
)

func main() {
	if err := device.RunHIDWorker(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}
