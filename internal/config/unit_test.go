package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// unit reads a systemd unit: section.Key to its values in order.
func unit(t *testing.T, path string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, section := map[string][]string{}, ""
	for i, line := range strings.Split(string(b), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("%s:%d: %q is no directive", path, i+1, line)
		}
		out[section+"."+key] = append(out[section+"."+key], value)
	}
	return out
}

func TestUnitDirectives(t *testing.T) {
	u := unit(t, filepath.Join(configs, "scanonce.service"))
	for key, want := range map[string][]string{
		"Unit.StartLimitIntervalSec":      {"0"},
		"Service.Type":                    {"notify"},
		"Service.WatchdogSec":             {"30"},
		"Service.Restart":                 {"always"},
		"Service.RestartSec":              {"2"},
		"Service.User":                    {"scanonce"},
		"Service.Group":                   {"scanonce"},
		"Service.StateDirectory":          {"scanonce"},
		"Service.RuntimeDirectory":        {"scanonce"},
		"Service.ExecStartPre":            {"-/usr/bin/scanonce check-config"},
		"Service.ExecStart":               {"/usr/bin/scanonce run"},
		"Service.ExecReload":              {"/usr/bin/scanonce check-config", "/bin/kill -HUP $MAINPID"},
		"Service.ExecStopPost":            {"-+/usr/bin/scanonce rebind"},
		"Service.RestrictAddressFamilies": {"AF_UNIX AF_NETLINK AF_INET AF_INET6"},
		"Service.DevicePolicy":            {"closed"},
		"Service.CapabilityBoundingSet":   {""},
		"Service.LimitCORE":               {"0"},
		// adjtimex and chown come after the group that has them, or they would stay forbidden.
		"Service.SystemCallFilter": {"@system-service", "~@privileged @resources @mount", "adjtimex @chown"},
		"Service.ProtectClock":     nil,
		"Service.DynamicUser":      nil,
		"Service.ProcSubset":       nil,
		"Install.WantedBy":         {"multi-user.target"},
	} {
		if !slices.Equal(u[key], want) {
			t.Errorf("%s is %q, want %q", key, u[key], want)
		}
	}
	// The unit's folders are the defaults of the configuration.
	c := Default()
	if c.Agent.StateDir != "/var/lib/"+u["Service.StateDirectory"][0] || filepath.Dir(c.API.Socket) != "/run/"+u["Service.RuntimeDirectory"][0] {
		t.Errorf("defaults %s and %s are not the unit's folders", c.Agent.StateDir, c.API.Socket)
	}
	if c.API.SocketGroup != u["Service.Group"][0] {
		t.Errorf("default group %s is not the unit's", c.API.SocketGroup)
	}

	// Each class of device of a module that may load late has that module in modules-load.d.
	b, err := os.ReadFile(filepath.Join(configs, "scanonce.modules-load"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, line := range strings.Split(string(b), "\n") {
		if line != "" && line[0] != '#' {
			modules = append(modules, line)
		}
	}
	for class, module := range map[string]string{"char-ttyACM rw": "cdc_acm", "char-ttyUSB rw": "usbserial", "char-ttyS rw": "", "char-pts rw": "",
		"char-hidraw rw": "usbhid", "char-usb_device rw": "usbhid", "char-input rw": "", "/dev/uinput rw": "uinput"} {
		if !slices.Contains(u["Service.DeviceAllow"], class) || module != "" && !slices.Contains(modules, module) {
			t.Errorf("class %q in %q, module %q in %q", class, u["Service.DeviceAllow"], module, modules)
		}
	}

	b, err = os.ReadFile(filepath.Join(configs, "scanonce.sysusers"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^u ` + u["Service.User"][0] + ` - "[^"]+" ` + c.Agent.StateDir + `$`).Match(b) {
		t.Errorf("sysusers does not make the unit's user:\n%s", b)
	}
}

// Where systemd-analyze is installed, it has the last word on the unit; TestUnitDirectives runs everywhere.
func TestUnitIsSoundToSystemd(t *testing.T) {
	src := filepath.Join(configs, "scanonce.service")
	u := unit(t, src)
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if len(u) < 30 {
			t.Errorf("the unit has only %d directives", len(u))
		}
		return
	}
	// A root of its own: verify then asks neither for the installed program nor for the machine's units.
	root := t.TempDir()
	b, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	file := write(t, root, "usr/lib/systemd/system/scanonce.service", string(b))
	for _, name := range []string{"sysinit.target", "basic.target", "shutdown.target", "multi-user.target", "local-fs.target", "time-sync.target"} {
		write(t, root, "usr/lib/systemd/system/"+name, "[Unit]\nDescription="+name+"\nDefaultDependencies=no\n")
	}
	for _, name := range []string{"usr/bin/scanonce", "bin/kill"} {
		if err := os.Chmod(write(t, root, name, "#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(tool, "verify", "--root="+root, "scanonce.service").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v\n%s", err, out)
	}
	if out, err := exec.Command(tool, "security", "--offline=true", "--threshold=20", "--no-pager", file).CombinedOutput(); err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}

	// Both checks must be able to fail.
	write(t, root, "usr/lib/systemd/system/scanonce.service", strings.Replace(string(b), "WatchdogSec=30", "WatchdogSec=half", 1))
	if out, err := exec.Command(tool, "verify", "--root="+root, "scanonce.service").CombinedOutput(); err == nil && len(out) == 0 {
		t.Error("verify takes anything")
	}
	write(t, root, "usr/lib/systemd/system/scanonce.service", strings.Replace(string(b), "CapabilityBoundingSet=\n", "", 1))
	if err := exec.Command(tool, "security", "--offline=true", "--threshold=20", "--no-pager", file).Run(); err == nil {
		t.Error("security takes anything")
	}
}
