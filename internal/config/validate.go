package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"scanonce/window"
)

// takes lists the values for which this build has an implementation, for the keys where the file format
// knows more.
func takes() map[string][]string {
	return map[string][]string{
		"claim.backend":      {"embedded", "redis"},
		"ledger.backend":     {"embedded", "postgres"},
		"claimstate.backend": {"embedded"},
		"pa.backend":         {"embedded"},
		"scanner.transport":  {"serial"},
	}
}

var (
	nameRE   = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`)
	agentRE  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	groupRE  = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	usbRE    = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}(:[!-~]{1,126})?$`)
	portRE   = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)
	layoutRE = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)?$`)
	// A password in a connection string's keyword form, or in its URL's query.
	passwordRE = regexp.MustCompile(`(?i)(^|[\s?&])(ssl)?password\s*=`)
)

// Validate checks all rules and returns Errors with every problem, or nil.
func (c *Config) Validate() error {
	if errs := c.problems(); len(errs) > 0 {
		return errs
	}
	return nil
}

type checker struct {
	c    *Config
	errs Errors
}

func (c *Config) problems() Errors {
	k := &checker{c: c}
	for _, s := range c.sections() {
		for _, f := range s.fields {
			k.field(f)
		}
	}
	k.agent()
	k.windows()
	k.stores()
	k.api()
	k.rxProfiles()
	k.scanners()
	return k.errs.sorted()
}

// origin finds where the key at path was set; failing that, its table; failing that, the main file.
func (c *Config) origin(path string) Position {
	for p := path; ; {
		if pos, ok := c.at[p]; ok {
			return pos
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	if len(c.files) > 0 {
		return Position{File: c.files[0]}
	}
	return Position{}
}

func (k *checker) add(path, detail, hint string) {
	p := k.c.origin(path)
	k.errs = append(k.errs, &Error{File: p.File, Line: p.Line, Column: p.Column, Key: k.c.display(path),
		Detail: detail, Hint: hint, rank: p.rank, path: path})
}

// where names the place of another key in a hint.
func (k *checker) where(path string) string {
	p := k.c.origin(path)
	switch {
	case p.File == "":
		return ""
	case p.Line == 0:
		return " (" + p.File + ")"
	}
	return fmt.Sprintf(" (%s:%d)", p.File, p.Line)
}

// field checks what a key's tags say.
func (k *checker) field(f field) {
	text, _ := f.value.Interface().(string)
	if enum, ok := f.tag.Lookup("enum"); ok {
		values := strings.Split(enum, "|")
		if !slices.Contains(values, text) {
			hint := "write one of " + list(values)
			if n := nearest(text, values); n != "" {
				hint = fmt.Sprintf("did you mean %q? %s", n, hint)
			}
			k.add(f.path, asText(text)+" is none of its values", hint)
			return
		}
		if have, ok := takes()[element.ReplaceAllString(f.path, "")]; ok && !slices.Contains(have, text) {
			k.add(f.path, "this build has no "+asText(text), fmt.Sprintf("write %s = %s", f.name, list(have)))
		}
	}
	if r := f.tag.Get("range"); r != "" {
		if lo, hi, ok := inRange(f.value, r); !ok {
			k.add(f.path, toTOML(f.value)+" is out of range", fmt.Sprintf("write a value from %s to %s", lo, hi))
		}
	}
	if p := f.tag.Get("path"); p != "" {
		switch {
		case text == "" && p == "required":
			k.add(f.path, "it is empty", "write an absolute path")
		case text != "" && !filepath.IsAbs(text):
			k.add(f.path, asText(text)+" is not an absolute path", "write the path from / on: the agent's working folder is not yours")
		case strings.ContainsRune(text, 0):
			k.add(f.path, "it has a zero byte", "write an absolute path")
		}
	}
}

func inRange(v reflect.Value, r string) (lo, hi string, ok bool) {
	lo, hi, _ = strings.Cut(r, ":")
	switch x := v.Interface().(type) {
	case time.Duration:
		a, _ := time.ParseDuration(lo)
		b, _ := time.ParseDuration(hi)
		return quote(lo), quote(hi), a <= x && x <= b
	case Size:
		var a, b Size
		_ = a.UnmarshalText([]byte(lo))
		_ = b.UnmarshalText([]byte(hi))
		return quote(lo), quote(hi), a <= x && x <= b
	case int:
		a, _ := strconv.Atoi(lo)
		b, _ := strconv.Atoi(hi)
		return lo, hi, a <= x && x <= b
	case float64:
		a, _ := strconv.ParseFloat(lo, 64)
		b, _ := strconv.ParseFloat(hi, 64)
		return lo, hi, a <= x && x <= b // false for NaN
	}
	return lo, hi, false
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func (k *checker) agent() {
	a := &k.c.Agent
	switch {
	case a.FacilityUUID == "":
		k.add("agent.facility_uuid", "it is not set", "write facility_uuid = \"…\" below [agent]: the facility's id, the same on all its agents")
	case len(a.FacilityUUID) > 64 || !printable(a.FacilityUUID):
		k.add("agent.facility_uuid", asText(a.FacilityUUID)+" does not fit", "write 1 to 64 printable ASCII characters")
	}
	if a.AgentID != "" && !agentRE.MatchString(a.AgentID) {
		k.add("agent.agent_id", asText(a.AgentID)+" does not fit", "write 1 to 64 of A-Z a-z 0-9 _ -, or leave it empty")
	}
	if k.c.Spool.WarnAt == 0 {
		k.add("spool.warn_at", "0 would always warn", "write a share above 0, at most 1, for example 0.8")
	}
	if f := &k.c.Forward; f.BackoffMin > f.BackoffMax {
		k.add("forward.backoff_min", fmt.Sprintf("%s is more than forward.backoff_max", quote(formatDuration(f.BackoffMin))),
			fmt.Sprintf("write at most %s, or raise backoff_max", quote(formatDuration(f.BackoffMax))))
	}
}

func (k *checker) windows() {
	ttl := k.c.Claim.TTL
	for _, t := range window.ScanTypes() {
		p := k.c.Window.For(t)
		path := "window." + t.String()
		if p.Width <= 0 || p.Guard <= 0 {
			continue // out of range, told already
		}
		err := p.Validate(ttl)
		if err == nil {
			continue
		}
		// The rule is the policy's; which key to blame, and what fits there, is told here.
		switch {
		case p.Width%time.Millisecond != 0:
			k.add(path+".width", quote(formatDuration(p.Width))+" is not whole milliseconds", "write for example \"3s\" or \"400ms\"")
		case p.Guard%time.Millisecond != 0:
			k.add(path+".guard", quote(formatDuration(p.Guard))+" is not whole milliseconds", "write for example \"500ms\"")
		case 2*p.Guard > p.Width:
			k.add(k.set(path+".guard", path+".width"), fmt.Sprintf("guard %s is more than half of width %s", quote(formatDuration(p.Guard)), quote(formatDuration(p.Width))),
				fmt.Sprintf("write guard = %s or less, or width = %s or more", quote(formatDuration((p.Width/2).Truncate(time.Millisecond))), quote(formatDuration(2*p.Guard))))
		case ttl < p.Width+p.Guard:
			k.add(k.set("claim.ttl", path+".width", path+".guard"), fmt.Sprintf("claim.ttl %s is less than width + guard of %s, %s",
				quote(formatDuration(ttl)), path, quote(formatDuration(p.Width+p.Guard))),
				fmt.Sprintf("write claim.ttl = %s or more", quote(formatDuration(p.Width+p.Guard))))
		default:
			k.add(path+".width", strings.TrimPrefix(err.Error(), "cannot use "), "")
		}
	}
}

// set returns the first of the paths that some source has set, so that it is blamed rather than a default.
func (k *checker) set(paths ...string) string {
	for _, p := range paths {
		if _, ok := k.c.at[p]; ok {
			return p
		}
	}
	return paths[0]
}

func (k *checker) stores() {
	c := k.c
	if w := c.PA.RequestWindow; w != "date" {
		d, err := time.ParseDuration(w)
		if err != nil || d <= 0 || d%time.Hour != 0 || d > 8760*time.Hour {
			k.add("pa.request_window", asText(w)+" does not fit", "write \"date\", or whole hours from \"1h\" to \"8760h\"")
		}
	}
	if z := c.PA.Zone; z == "" || z == "Local" {
		k.add("pa.zone", asText(z)+" is no fixed zone", "write \"UTC\" or a name such as \"America/Chicago\"")
	} else if _, err := time.LoadLocation(z); err != nil {
		k.add("pa.zone", asText(z)+" is not known on this machine", "write \"UTC\" or a name such as \"America/Chicago\" (package tzdata has them)")
	}

	r := &c.Redis
	for _, a := range r.Addrs {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || !portOK(port, 1) {
			k.add("redis.addrs", asText(a)+" is not host:port", "write for example [\"127.0.0.1:6379\"]")
		}
	}
	if c.Claim.Backend == "redis" && len(r.Addrs) == 0 {
		k.add(k.set("redis.addrs", "claim.backend"), "backend = \"redis\" needs redis.addrs", "write addrs = [\"host:6379\"] under [redis]")
	}
	if r.Mode == "sentinel" && r.MasterName == "" {
		k.add(k.set("redis.master_name", "redis.mode"), "mode = \"sentinel\" needs master_name", "write master_name = \"…\", the name that the sentinels watch")
	}
	if r.Mode == "cluster" && r.DB != 0 {
		k.add("redis.db", "a cluster has only database 0", "write db = 0, or leave the key out")
	}
	if (r.CertFile == "") != (r.KeyFile == "") {
		k.add(k.set("redis.cert_file", "redis.key_file"), "cert_file and key_file go together", "write both or none")
	}

	if c.Ledger.Backend == "postgres" && c.Postgres.DSN == "" {
		k.add(k.set("postgres.dsn", "ledger.backend"), "backend = \"postgres\" needs postgres.dsn", "write dsn = \"postgres://scanonce@db.example:5432/scanonce?sslmode=verify-full\" under [postgres]")
	}
	// The string itself is never shown: a password may be in it.
	if dsn := c.Postgres.DSN; dsn != "" {
		secret := passwordRE.MatchString(dsn)
		if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
			u, err := url.Parse(dsn)
			if err != nil {
				k.add("postgres.dsn", "it is no URL", "write for example \"postgres://scanonce@db.example:5432/scanonce?sslmode=verify-full\"")
			} else if u.User != nil {
				_, has := u.User.Password()
				secret = secret || has
			}
		}
		if secret {
			k.add("postgres.dsn", "it has a password in it", "take it out, put it into a file that only the agent can read, and write password_file = \"/path\"")
		}
	}

	d := &c.DynamoDB
	if d.Endpoint != "" && !isOrigin(strings.TrimSuffix(d.Endpoint, "/")) {
		k.add("dynamodb.endpoint", asText(d.Endpoint)+" is no URL of a server", "write for example \"http://127.0.0.1:8000\"")
	}
	if d.Table == "" {
		k.add("dynamodb.table", "it is empty", "write a table name, for example \"scanonce_claims\"")
	}
}

func portOK(s string, least uint64) bool {
	p, err := strconv.ParseUint(s, 10, 16)
	return err == nil && p >= least
}

// isOrigin says that s is scheme://host[:port] and no more.
func isOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil &&
		u.Path == "" && u.RawQuery == "" && u.Fragment == ""
}

func (k *checker) api() {
	a := &k.c.API
	// sun_path of sockaddr_un has 108 bytes, the last one zero (unix(7)).
	if len(a.Socket) > 107 {
		k.add("api.socket", fmt.Sprintf("%d bytes are too long for a socket's path", len(a.Socket)), "write a path of at most 107 bytes")
	}
	if a.SocketGroup != "" && !groupRE.MatchString(a.SocketGroup) {
		k.add("api.socket_group", asText(a.SocketGroup)+" is no group name", "write a group name, for example \"scanonce\"")
	}
	if a.Listen != "" {
		host, port, err := net.SplitHostPort(a.Listen)
		ip, ipErr := netip.ParseAddr(host)
		switch {
		case err != nil || !portOK(port, 0):
			k.add("api.listen", asText(a.Listen)+" is not address:port", "write for example \"127.0.0.1:7411\"")
		case host == "localhost" || ipErr == nil && ip.IsLoopback():
		default:
			k.add("api.listen", asText(a.Listen)+" is not a loopback address", "write for example \"127.0.0.1:7411\": the interface is for this workstation only")
		}
	}
	for _, h := range a.AllowedHosts {
		_, port, err := net.SplitHostPort(h)
		if h == "" || !printable(h) || strings.ContainsAny(h, " /@") || err == nil && port != "" {
			k.add("api.allowed_hosts", asText(h)+" is no host name", "write names without scheme and port, for example [\"localhost\", \"127.0.0.1\"]")
		}
	}
	for _, o := range a.AllowedOrigins {
		if !isOrigin(o) {
			k.add("api.allowed_origins", asText(o)+" is no origin", "write scheme://host:port without a path, for example [\"http://pms.local:8080\"]")
		}
	}
}

func (k *checker) rxProfiles() {
	seen := map[string]int{}
	for i, p := range k.c.RxProfiles {
		path := fmt.Sprintf("rx_profile[%d]", i)
		k.name(path+".name", p.Name, seen, i)
		if p.Pattern == "" {
			k.add(path+".pattern", "it is not set", `write pattern = '^RX(?P<rx>\d{7})$', with the form of your labels`)
			continue
		}
		re, err := regexp.Compile(p.Pattern)
		if err != nil {
			k.add(path+".pattern", strings.TrimPrefix(err.Error(), "error parsing regexp: "), "write an RE2 regular expression in single quotes, so that \\ stays as it is")
			continue
		}
		groups := map[string]bool{}
		for _, g := range re.SubexpNames() {
			switch {
			case g == "":
			case g != "rx" && g != "refill" && g != "store":
				k.add(path+".pattern", fmt.Sprintf("group %q has no meaning", g), "name the groups rx, refill and store; (?:…) groups without a name")
			case groups[g]:
				k.add(path+".pattern", fmt.Sprintf("group %q is there twice", g), "name each group once")
			}
			groups[g] = true
		}
		if !groups["rx"] {
			k.add(path+".pattern", "it has no group rx", `write (?P<rx>\d{7}) where the prescription number is`)
		}
	}
	if len(k.c.RxProfiles) > 0 && k.c.Agent.FacilitySecretFile == "" {
		k.add(k.set("agent.facility_secret_file", "rx_profile[0]"), "an rx_profile needs agent.facility_secret_file",
			"write facility_secret_file = \"/path\" below [agent]: prescription numbers are kept only as tokens under that secret")
	}
}

// name checks the name of a list's element.
func (k *checker) name(path, name string, seen map[string]int, i int) {
	switch first, dup := seen[name]; {
	case name == "":
		k.add(path, "it is not set", "write 1 to 32 of A-Z a-z 0-9 _ . -")
	case !nameRE.MatchString(name):
		k.add(path, asText(name)+" does not fit", "write 1 to 32 of A-Z a-z 0-9 _ . -")
	case dup:
		list, _, _ := strings.Cut(path, "[")
		key := path[strings.LastIndexByte(path, '.'):]
		k.add(path, asText(name)+" is there twice", fmt.Sprintf("write another %s, or put both tables together%s",
			key[1:], k.where(fmt.Sprintf("%s[%d]%s", list, first, key))))
	default:
		seen[name] = i
	}
}

func (k *checker) scanners() {
	ids, paths, devices := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range k.c.Scanners {
		s := &k.c.Scanners[i]
		path := fmt.Sprintf("scanner[%d]", i)
		k.name(path+".id", s.ID, ids, i)
		if s.Transport == "serial" {
			switch first, dup := paths[filepath.Clean(s.Path)]; {
			case s.Path == "":
				k.add(path+".path", "a serial scanner needs a path", "write path = \"/dev/serial/by-id/…\"")
			case dup:
				k.add(path+".path", fmt.Sprintf("%s is also the path of %s%s", asText(s.Path), k.c.display(fmt.Sprintf("scanner[%d]", first)),
					k.where(fmt.Sprintf("scanner[%d].path", first))), "write another path; several guns on one base station are one scanner with gun_digits")
			default:
				paths[filepath.Clean(s.Path)] = i
			}
		} else if s.USB == "" && s.Port == "" {
			k.add(path+".usb", "a USB scanner needs usb or port", "write usb = \"vvvv:pppp\" as the device has it")
		} else if first, dup := devices[strings.ToLower(s.USB)+" "+s.Port]; dup {
			k.add(k.set(path+".usb", path+".port"), "it is the device of "+k.c.display(fmt.Sprintf("scanner[%d]", first)), "tell them apart by serial number or port")
		} else {
			devices[strings.ToLower(s.USB)+" "+s.Port] = i
		}
		if s.USB != "" && !usbRE.MatchString(s.USB) {
			k.add(path+".usb", asText(s.USB)+" does not fit", "write \"vvvv:pppp\" or \"vvvv:pppp:serial\", for example \"0c2e:0b61\"")
		}
		if s.Port != "" && !portRE.MatchString(s.Port) {
			k.add(path+".port", asText(s.Port)+" is no port path", "write for example \"1-1.2\"")
		}
		if s.Transport == "hid-keyboard" && s.Mode == "exclusive" && !s.Force {
			k.add(path+".mode", "exclusive takes a keyboard away from everything else", "write mode = \"listen\", or force = true if it is meant")
		}
		k.scannerContent(path, s)
	}
}

// cset82 is GS1's character set 82 (GS1 General Specifications, figure 7.11-1) without letters and digits.
const cset82 = "!\"%&'()*+,-./:;<=>?_"

func (k *checker) scannerContent(path string, s *Scanner) {
	if !layoutRE.MatchString(s.Layout) {
		k.add(path+".layout", asText(s.Layout)+" is no layout", "write for example \"us\" or \"de\"")
	}
	if g := s.GSSubstitute; g != "" {
		b := g[0]
		alnum := b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z'
		if len(g) != 1 || b > 0x7f || b == 0 || b == '\r' || b == '\n' || alnum || strings.IndexByte(cset82, b) >= 0 {
			k.add(path+".gs_substitute", asText(g)+" does not fit", "write one ASCII character that no barcode's data has, for example \"~\" or \"|\"")
		}
	}
	if len(s.SymbologyPrefix) > 8 || !printable(s.SymbologyPrefix) {
		k.add(path+".symbology_prefix", asText(s.SymbologyPrefix)+" does not fit", "write at most 8 printable ASCII characters")
	}
	for _, f := range []struct{ key, text string }{{"good", s.Feedback.Good}, {"duplicate", s.Feedback.Duplicate}, {"reject", s.Feedback.Reject}} {
		ascii := strings.IndexFunc(f.text, func(r rune) bool { return r > 0x7f }) < 0
		if len(f.text) > 64 || !ascii {
			k.add(path+".feedback."+f.key, asText(f.text)+" does not fit", "write at most 64 ASCII characters; \\u0007 is BEL")
		}
	}
	// The last resend comes retries × interval after its original. Outside the window it would be a movement of
	// its own: this build tells resends by the window alone, and reads no marks.
	if last, width := time.Duration(s.Retries)*s.RetryInterval, k.c.Window.For(s.ScanType).Width; s.Framing == "acknak" && s.Retries > 0 && last >= width {
		k.add(k.set(path+".retries", path+".retry_interval", path+".scan_type"),
			fmt.Sprintf("what it sends again after %s is outside the window of %s, %s, and would count twice", quote(formatDuration(last)), s.ScanType, quote(formatDuration(width))),
			"write retries = 0, or a shorter retry_interval so that retries × retry_interval is less than the window, and set the scanner so")
	}
}
