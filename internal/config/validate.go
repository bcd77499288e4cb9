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
	"unicode"
	"unicode/utf8"

	"scanonce/window"
)

var (
	nameRE  = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,32}$`)
	agentRE = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	groupRE = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	modelRE = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$`)
	portRE  = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)
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
	if gs := k.c.Wedge.GS; len(gs) > 1 || gs > "\x7f" {
		k.add("wedge.gs", asText(gs)+" does not fit", "write one ASCII character, \"\\u001d\" for GS itself, or \"\"")
	}
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

func isAlnum(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'A' && b <= 'Z' || b >= 'a' && b <= 'z'
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
	for _, b := range [...]struct{ key, value string }{{"claim.backend", c.Claim.Backend}, {"claimstate.backend", c.ClaimState.Backend}} {
		if (b.value == "redis" || b.value == "split") && len(r.Addrs) == 0 {
			k.add(k.set("redis.addrs", b.key), fmt.Sprintf("backend = %q needs redis.addrs", b.value), "write addrs = [\"host:6379\"] under [redis]")
		}
	}
	if c.ClaimState.PendTTL < c.ClaimState.TTL {
		k.add(k.set("claimstate.pend_ttl", "claimstate.ttl"), "pended claims would live for less time than others", "write for example pend_ttl = \"720h\"")
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

	for _, b := range [...]struct{ key, value string }{{"ledger.backend", c.Ledger.Backend}, {"pa.backend", c.PA.Backend}} {
		if b.value != "postgres" || c.Postgres.DSN != "" {
			continue
		}
		k.add(k.set("postgres.dsn", b.key), "backend = \"postgres\" needs postgres.dsn", "write dsn = \"postgres://scanonce@db.example:5432/scanonce?sslmode=verify-full\" under [postgres]")
	}
	// The string itself is never shown: a password may be in it.
	if dsn := c.Postgres.DSN; dsn != "" {
		secret := passwordRE.MatchString(dsn)
		if strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://") {
			u, err := url.Parse(dsn)
			if err != nil {
				k.add("postgres.dsn", "it is no URL", "write for example \"postgres://scanonce@db.example:5432/scanonce?sslmode=verify-full\"; of several hosts each one has its port")
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
	if s := c.ClaimState.Backend; (s == "dynamodb" || s == "split") && d.Endpoint == "" && d.Region == "" {
		k.add(k.set("dynamodb.region", "claimstate.backend"), fmt.Sprintf("backend = %q needs dynamodb.region or dynamodb.endpoint", s), "write region = \"us-east-1\" under [dynamodb]")
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
		switch {
		case s.Transport == "serial":
			k.serialPlace(path, s)
		case s.USB == "":
			k.add(path+".usb", "a USB scanner needs usb", "write usb = \"vvvv:pppp\" as scanonce devices shows it: no other keyboard is touched")
		case s.Path != "":
			k.add(path+".path", "a USB scanner has no path", "leave path out: usb, and port where several are alike, say which one it is")
		}
		k.scannerUSB(path, s, devices, i)
		if s.Path != "" {
			if first, dup := paths[filepath.Clean(s.Path)]; dup {
				k.add(path+".path", fmt.Sprintf("%s is also the path of %s%s", asText(s.Path), k.c.display(fmt.Sprintf("scanner[%d]", first)),
					k.where(fmt.Sprintf("scanner[%d].path", first))), "write another path; several guns on one base station are one scanner with gun_digits")
			} else {
				paths[filepath.Clean(s.Path)] = i
			}
		}
		k.scannerMode(path, s)
		if s.Wedge && s.Transport == "hid-keyboard" && s.Mode != "exclusive" {
			k.add(path+".wedge", "the application has the keys of a hid-keyboard that is not exclusive already: each scan would be typed twice", "leave wedge out")
		}
		k.scannerContent(path, s)
	}
}

func (k *checker) serialPlace(path string, s *Scanner) {
	switch {
	case s.Path == "" && s.USB == "" && s.Port == "":
		k.add(path+".path", "a serial scanner needs path or usb", "write path = \"/dev/serial/by-id/…\", or usb = \"vvvv:pppp:serial\" as scanonce devices shows it")
	case s.Path != "" && (s.USB != "" || s.Port != ""):
		k.add(k.set(path+".usb", path+".port"), "path says already where it is", "write either path, or usb with port where several are alike")
	case s.Path == "" && s.USB == "":
		k.add(path+".port", "port alone does not say which device is meant", "write usb = \"vvvv:pppp\" beside it")
	}
}

// scannerUSB checks how a device is named, and that no other table names the same one.
func (k *checker) scannerUSB(path string, s *Scanner, devices map[string]int, i int) {
	name, ok := usbName(s.USB)
	if s.USB != "" && !ok {
		k.add(path+".usb", asText(s.USB)+" does not fit", "write \"vvvv:pppp\" or \"vvvv:pppp:serial\", for example \"0c2e:0b61\"")
	}
	if s.Port != "" && !portRE.MatchString(s.Port) {
		k.add(path+".port", asText(s.Port)+" is no port path", "write for example \"1-1.2\"")
	}
	if !ok {
		return
	}
	if first, dup := devices[name+" "+s.Port]; dup {
		k.add(k.set(path+".usb", path+".port"), "it is the device of "+k.c.display(fmt.Sprintf("scanner[%d]", first)), "tell them apart by serial number or port")
	} else {
		devices[name+" "+s.Port] = i
	}
}

// usbName is usb with its ids in small letters. A serial number stays as it is, and may be whatever prints.
func usbName(usb string) (name string, ok bool) {
	const model = len("vvvv:pppp")
	if len(usb) < model || !modelRE.MatchString(usb[:model]) {
		return "", false
	}
	serial, named := strings.CutPrefix(usb[model:], ":")
	prints := utf8.ValidString(serial) && strings.IndexFunc(serial, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	return strings.ToLower(usb[:model]) + usb[model:], len(usb) == model || named && strings.TrimSpace(serial) != "" && prints
}

func (k *checker) scannerMode(path string, s *Scanner) {
	switch {
	case s.Transport == "serial" && s.Mode != "exclusive":
		k.add(path+".mode", "a serial scanner is the agent's alone", "leave mode out: a port cannot be shared")
	case s.Transport == "hid-pos" && s.Mode == "grab":
		k.add(path+".mode", "only the keys of a hid-keyboard can be passed on", "write mode = \"exclusive\", or \"listen\" beside another program")
	case s.Transport == "hid-keyboard" && s.Mode == "exclusive" && !s.Force:
		k.add(path+".mode", "exclusive takes a keyboard away from everything else", "write mode = \"listen\", or force = true if it is meant")
	}
}

// cset82 is GS1's character set 82 (GS1 General Specifications, figure 7.11-1) without letters and digits.
const cset82 = "!\"%&'()*+,-./:;<=>?_"

func (k *checker) scannerContent(path string, s *Scanner) {
	if g := s.GSSubstitute; g != "" {
		b := g[0]
		if len(g) != 1 || b > 0x7f || b == 0 || strings.IndexByte("\x02\x03\t\r\n", b) >= 0 || isAlnum(b) || strings.IndexByte(cset82, b) >= 0 {
			k.add(path+".gs_substitute", asText(g)+" does not fit", "write one ASCII character that no barcode's data has, for example \"~\" or \"|\"")
		}
	}
	if p := s.SymbologyPrefix; p != "" && (len(p) > 4 || !printable(p) || strings.Contains(p, " ") || isAlnum(p[0])) {
		k.add(path+".symbology_prefix", asText(p)+" does not fit", "write at most 4 printable ASCII characters, the first of them no letter and no digit")
	}
	for _, f := range []struct{ key, text string }{{"good", s.Feedback.Good}, {"duplicate", s.Feedback.Duplicate}, {"reject", s.Feedback.Reject}} {
		ascii := strings.IndexFunc(f.text, func(r rune) bool { return r > 0x7f }) < 0
		if len(f.text) > 64 || !ascii {
			k.add(path+".feedback."+f.key, asText(f.text)+" does not fit", "write at most 64 ASCII characters; \\u0007 is BEL")
		}
	}
	if s.Feedback.Profile == "zebra-ssi" && s.Framing != "ssi" {
		k.add(path+".feedback.profile", "zebra-ssi is for packets", "write framing = \"ssi\", and set the scanner to SSI with packeted decode data")
	}
	// Without a mark, what comes again is told by when it comes. Where two real movements may lie as far apart as that,
	// by the window, nobody could tell.
	if width := k.c.Window.For(s.ScanType).Width; s.Framing == "acknak" && s.Retries > 0 && !s.MarksResends && width < s.RetryInterval {
		k.add(k.set(path+".retries", path+".retry_interval", path+".scan_type"),
			fmt.Sprintf("what it sends again after %s would look like the next item: the window of %s is %s", quote(formatDuration(s.RetryInterval)), s.ScanType, quote(formatDuration(width))),
			"write retries = 0, or a retry_interval of less than the window, and set the scanner so")
	}
}
