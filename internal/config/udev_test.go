package config

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// node is a device node as udev sees it: with its own subsystem and kernel name, and a USB device above it.
type node struct {
	subsystem, kernel string
	vendor, product   string // "" if it is not USB
}

// verdict is what rules make of a node. group "" leaves it as it was.
type verdict struct {
	group, mode string
	ignored     bool // by ModemManager
	awake       bool // power/control is on
}

func udevCases() map[node]verdict {
	ours := verdict{group: "scanonce", mode: "0640"} // to read from
	return map[node]verdict{
		{"tty", "ttyACM7", "05e0", "1701"}:     {group: "scanonce", mode: "0660", ignored: true},
		{"usb", "1-1", "05e0", "1701"}:         {ignored: true, awake: true},
		{"tty", "ttyUSB0", "065a", "0009"}:     {group: "scanonce", mode: "0660", ignored: true},
		{"usb", "1-1", "1eab", "0110"}:         {group: "scanonce", mode: "0660", awake: true},
		{"hidraw", "hidraw0", "1eab", "0110"}:  ours,
		{"usb", "1-1", "05f9", "2206"}:         {awake: true},
		{"hidraw", "hidraw0", "05f9", "2206"}:  ours,
		{"input", "event4", "05f9", "2206"}:    ours,
		{"input", "input4", "05f9", "2206"}:    {},
		{"input", "event4", "0c2e", "0b61"}:    ours, // of unknown mode
		{"tty", "ttyACM0", "0c2e", "0b61"}:     {group: "scanonce", mode: "0660", ignored: true},
		{"hidraw", "hidraw0", "05e0", "1900"}:  {}, // for other software
		{"usb", "1-1", "05e0", "1900"}:         {},
		{"hidraw", "hidraw0", "046d", "c31c"}:  {}, // a keyboard
		{"input", "event4", "046d", "c31c"}:    {},
		{"usb", "1-1", "046d", "c31c"}:         {},
		{"input", "event4", "04b4", "de61"}:    {}, // under an id of many kinds of devices
		{"tty", "ttyUSB0", "0403", "6001"}:     {}, // a converter with anything behind it
		{"tty", "ttyUSB0", "05e0", "0110"}:     {}, // one's vendor with another's product
		{"misc", "uinput", "", ""}:             {},
		{"sound", "controlC0", "05e0", "1701"}: {},
		{"block", "sda", "1eab", "0110"}:       {},
	}
}

func rulesFile(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(configs, "68-scanonce.rules"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// udevTerm is KEY{attribute}OP"value".
type udevTerm struct{ key, attribute, op, value string }

var udevTermRE = regexp.MustCompile(`^([A-Z]+)(?:\{([A-Za-z0-9_/]+)\})?(==|!=|\+=|=)"([^"]*)"$`)

// parseUdev reads the part of udev's language that the rules use, and finds what is wrong in it.
func parseUdev(text string) (rules [][]udevTerm, errs []string) {
	labels := map[string]int{}
	gotos := map[string]int{}
	for n, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(what string) { errs = append(errs, fmt.Sprintf("line %d: %s", n+1, what)) }
		var rule []udevTerm
		for _, part := range strings.Split(line, ", ") {
			m := udevTermRE.FindStringSubmatch(part)
			if m == nil {
				bad("no term: " + part)
				continue
			}
			rule = append(rule, udevTerm{m[1], m[2], m[3], m[4]})
			switch match := m[3] == "==" || m[3] == "!="; {
			case slices.Contains([]string{"ACTION", "SUBSYSTEM", "KERNEL", "ATTRS", "TEST"}, m[1]) && match, m[1] == "ATTR", m[1] == "ENV":
			case slices.Contains([]string{"GROUP", "MODE", "GOTO", "LABEL"}, m[1]) && m[3] == "=":
			default:
				bad("nothing is known of " + part)
			}
			if m[1] == "LABEL" {
				labels[m[4]] = n
			}
			if m[1] == "GOTO" {
				gotos[m[4]] = n
			}
		}
		has := func(key, attribute string) bool {
			return slices.ContainsFunc(rule, func(t udevTerm) bool { return t.key == key && t.attribute == attribute })
		}
		// Nobody gets a right on what is not named by vendor and product.
		if changes := slices.ContainsFunc(rule, func(t udevTerm) bool {
			return t.op == "=" && t.key != "GOTO" && t.key != "LABEL"
		}); changes && !(has("ATTR", "idVendor") && has("ATTR", "idProduct")) && !(has("ATTRS", "idVendor") && has("ATTRS", "idProduct")) {
			bad("it changes what is not named")
		}
		if has("GROUP", "") != has("MODE", "") {
			bad("a group without a mode, or the other way round")
		}
		rules = append(rules, rule)
	}
	for name, n := range gotos {
		if at, ok := labels[name]; !ok || at < n {
			errs = append(errs, fmt.Sprintf("line %d: no label %s below it", n+1, name))
		}
	}
	return rules, errs
}

func udevMatch(pattern, value string) bool {
	for _, p := range strings.Split(pattern, "|") {
		if ok, _ := filepath.Match(p, value); ok {
			return true
		}
	}
	return false
}

// applyUdev does with a node what udev would.
func applyUdev(rules [][]udevTerm, n node, action string) (v verdict) {
	facts := map[string]string{"ACTION": action, "SUBSYSTEM": n.subsystem, "KERNEL": n.kernel, "ATTRSidVendor": n.vendor, "ATTRSidProduct": n.product}
	if n.subsystem == "usb" {
		maps.Copy(facts, map[string]string{"ENVDEVTYPE": "usb_device", "ATTRidVendor": n.vendor, "ATTRidProduct": n.product})
	}
	label := ""
	for _, rule := range rules {
		if label != "" && rule[0] != (udevTerm{"LABEL", "", "=", label}) {
			continue
		}
		label = ""
		matches := !slices.ContainsFunc(rule, func(t udevTerm) bool {
			return t.key != "TEST" && (t.op == "==" && !udevMatch(t.value, facts[t.key+t.attribute]) || t.op == "!=" && udevMatch(t.value, facts[t.key+t.attribute]))
		})
		if !matches {
			continue
		}
		for _, t := range rule {
			switch {
			case t.op != "=":
			case t.key == "GOTO":
				label = t.value
			case t.key == "GROUP":
				v.group = t.value
			case t.key == "MODE":
				v.mode = t.value
			case t.key == "ENV" && t.attribute == "ID_MM_DEVICE_IGNORE":
				v.ignored = t.value == "1"
			case t.key == "ATTR" && t.attribute == "power/control":
				v.awake = t.value == "on"
			}
		}
	}
	return v
}

func TestUdevRules(t *testing.T) {
	text := rulesFile(t)
	rules, errs := parseUdev(text)
	if len(errs) > 0 || len(rules) < 50 {
		t.Fatalf("%d rules\n%s", len(rules), strings.Join(errs, "\n"))
	}
	for n, want := range udevCases() {
		if got := applyUdev(rules, n, "add"); got != want {
			t.Errorf("%+v: %+v, want %+v", n, got, want)
		}
		if got := applyUdev(rules, n, "remove"); got != (verdict{}) {
			t.Errorf("%+v removed: %+v", n, got)
		}
	}

	// The check must be able to fail.
	for _, c := range []struct{ from, to, want string }{
		{`GROUP="scanonce", MODE="0640"`, `GROUP="scanonce"`, "without a mode"},
		{`ATTRS{idVendor}==`, `ATTRS{vendor}==`, "not named"},
		{`LABEL="scanonce_end"`, `LABEL="end"`, "no label scanonce_end"},
		{`SUBSYSTEM=="tty"`, `SUBSYSTEM="tty"`, "nothing is known of SUBSYSTEM"},
		{`MODE="0660"`, `MOOD="0660"`, "nothing is known of MOOD"},
		{`MODE="0660"`, `MODE=0660`, "no term"},
	} {
		if _, errs := parseUdev(strings.ReplaceAll(text, c.from, c.to)); !strings.Contains(strings.Join(errs, "\n"), c.want) {
			t.Errorf("%s in place of %s: %q", c.to, c.from, errs)
		}
	}
}

// Where udev is installed and the test may have mounts of its own, udev itself reads the rules and says what it would
// do with the same nodes, in a sysfs that is made for it. TestUdevRules runs everywhere.
func TestUdevRulesInUdev(t *testing.T) {
	text := rulesFile(t)
	tool, err := exec.LookPath("udevadm")
	if err != nil || os.Getuid() != 0 || exec.Command("unshare", "--mount", "true").Run() != nil {
		if rules, _ := parseUdev(text); len(rules) < 50 {
			t.Errorf("only %d rules", len(rules))
		}
		return
	}
	out, err := exec.Command(tool, "--version").Output()
	version, _ := strconv.Atoi(strings.Fields(string(out) + " 0")[0])
	if err != nil || version == 0 {
		t.Fatalf("udevadm --version: %q %v", out, err)
	}
	if version >= 254 { // later ones say otherwise what they would do, and have a verb for it
		file := write(t, t.TempDir(), "68-scanonce.rules", text)
		if out, err := exec.Command(tool, "verify", "--resolve-names=never", file).CombinedOutput(); err != nil {
			t.Errorf("verify: %v\n%s", err, out)
		}
		return
	}
	cases := udevCases()
	for _, n := range []node{ // one of each kind: udev takes its time
		{"tty", "ttyACM7", "05e0", "1701"}, {"usb", "1-1", "05e0", "1701"}, {"usb", "1-1", "1eab", "0110"}, {"hidraw", "hidraw0", "1eab", "0110"},
		{"input", "event4", "05f9", "2206"}, {"input", "event4", "046d", "c31c"}, {"usb", "1-1", "046d", "c31c"}, {"misc", "uinput", "", ""},
	} {
		want, ok := cases[n]
		if got, noise := udevTest(t, tool, text, n); !ok || got != want || noise != "" {
			t.Errorf("%+v: %+v, want %+v\n%s", n, got, want, noise)
		}
	}
	if _, noise := udevTest(t, tool, strings.ReplaceAll(text, `MODE="0660"`, `MOOD="0660"`), node{"tty", "ttyACM7", "05e0", "1701"}); !strings.Contains(noise, "MOOD") {
		t.Errorf("udev takes anything: %q", noise)
	}
}

var udevSaysRE = regexp.MustCompile(`68-scanonce\.rules:\d+ (.*)`)

// udevTest makes a sysfs with the one node, and lets udev apply the rules to it. noise is what udev has to say
// against them.
func udevTest(t *testing.T, tool, text string, n node) (v verdict, noise string) {
	t.Helper()
	root := t.TempDir()
	write(t, root, "rules/68-scanonce.rules", text)
	const device = "devices/pci0000:00/usb1/1-1"
	at := device
	if n.vendor != "" {
		write(t, root, "sys/"+device+"/uevent", "MAJOR=189\nMINOR=1\nDEVNAME=bus/usb/001/002\nDEVTYPE=usb_device\n")
		write(t, root, "sys/"+device+"/idVendor", n.vendor+"\n")
		write(t, root, "sys/"+device+"/idProduct", n.product+"\n")
		write(t, root, "sys/"+device+"/power/control", "--\n") // as long as what is written: a file of sysfs is not cut
		subsystem(t, root, device, "usb")
	}
	if n.subsystem != "usb" {
		at = device + "/1-1:1.0/" + n.subsystem + "/" + n.kernel
		if n.vendor == "" {
			at = "devices/virtual/" + n.subsystem + "/" + n.kernel
		}
		write(t, root, "sys/"+at+"/uevent", "MAJOR=240\nMINOR=7\nDEVNAME="+n.kernel+"\n")
		subsystem(t, root, at, n.subsystem)
	}
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	write(t, root, "group", string(groups)+"\nscanonce:x:4711:\n")
	for _, dir := range []string{"run", "dev"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// udev wants its folders by these names; nothing of this is seen outside.
	const script = `set -e
		mount --make-rprivate / 2>/dev/null || true
		mount --bind "$1/group" /etc/group; mount --bind "$1/rules" /usr/lib/udev/rules.d
		mount --bind "$1/run" /run; mount --bind "$1/sys" /sys; mount --bind "$1/dev" /dev
		exec "$2" test --action=add "/sys/$3" 2>&1`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", root, tool, at)
	cmd.Env = append(os.Environ(), "SYSTEMD_DEVICE_VERIFY_SYSFS=0", "SYSTEMD_LOG_LEVEL=debug")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "68-scanonce.rules") {
		t.Fatalf("udevadm test: %v\n%s", err, out)
	}
	for _, line := range strings.Split(string(out), "\n") {
		m := udevSaysRE.FindStringSubmatch(line)
		switch {
		case line == "ID_MM_DEVICE_IGNORE=1":
			v.ignored = true
		case m == nil:
		case m[1] == "GROUP 4711":
			v.group = "scanonce"
		case strings.HasPrefix(m[1], "MODE "):
			v.mode = strings.TrimPrefix(m[1], "MODE ")
		case strings.HasPrefix(m[1], "ATTR '/sys/"+device+"/power/control' writing 'on'"):
			b, err := os.ReadFile(filepath.Join(root, "sys", device, "power/control"))
			v.awake = err == nil && strings.TrimSpace(string(b)) == "on"
		default:
			noise += line + "\n"
		}
	}
	return v, noise
}

func subsystem(t *testing.T, root, at, name string) {
	t.Helper()
	dir := "bus/"
	if name != "usb" {
		dir = "class/"
	}
	if err := os.MkdirAll(filepath.Join(root, "sys", dir+name), 0o755); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", strings.Count(at, "/")+1)
	if err := os.Symlink(up+dir+name, filepath.Join(root, "sys", at, "subsystem")); err != nil {
		t.Fatal(err)
	}
}
