package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"scanonce/device"
)

// Set by the linker (-X).
var version, commit, buildDate string

type build struct {
	Version      string `json:"version"`
	Commit       string `json:"commit"`
	Go           string `json:"go"`
	BuildDate    string `json:"build_date"`
	USBSupported bool   `json:"usb_supported"`
}

// thisBuild takes from the module's own record what the linker was not told.
func thisBuild() build {
	b := build{Version: version, Commit: commit, Go: runtime.Version(), BuildDate: buildDate, USBSupported: device.USBSupported()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if b.Commit == "" {
		b.Commit = or(settings["vcs.revision"], "unknown")
	}
	if b.BuildDate == "" {
		b.BuildDate = or(settings["vcs.time"], "unknown")
	}
	if b.Version == "" {
		b.Version = or(info.Main.Version, "(devel)")
	}
	return b
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (a *app) versionVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  takes(),
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			usb := "supported"
			if !b.USBSupported {
				usb = "not supported: this build has no cgo"
			}
			return a.print(b, fmt.Sprintf("scanonce %s\ncommit  %s\nbuilt   %s with %s\nUSB     %s\n",
				b.Version, b.Commit, b.BuildDate, b.Go, usb))
		},
	}
}
