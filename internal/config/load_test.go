package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

// write puts a file below a new folder and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	p := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

const minimal = "[agent]\nfacility_uuid = \"F\"\n"

func mustLoad(t *testing.T, o Options) *Config {
	t.Helper()
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func loadText(t *testing.T, text string) *Config {
	t.Helper()
	return mustLoad(t, Options{File: write(t, t.TempDir(), "scanonce.toml", text), FileExplicit: true})
}

// A wrong file, and for each of its problems "LINE KEY: DETAIL | HINT"; of detail and hint a part suffices.
var wrongFiles = []struct {
	name, text string
	want       []string
}{
	{"unknown key", minimal + "\n[spool]\nmax_record = 5\n",
		[]string{"5 spool.max_record: there is no such key | did you mean spool.max_records?"}},
	{"unknown section", minimal + "[spol]\nmax_records = 5\n",
		[]string{"3 spol: there is no such section | did you mean spool?"}},
	{"unknown top-level key", "facility_uuid = \"F\"\n" + minimal,
		[]string{"1 facility_uuid: there is no such section | did you mean agent.facility_uuid?"}},
	{"key of another section", minimal + "[ledger]\nrate_limit = 1\n",
		[]string{"4 ledger.rate_limit: there is no such key | did you mean forward.rate_limit?"}},
	{"password where a file is meant", minimal + "[redis]\npassword = \"hunter2\"\n",
		[]string{"4 redis.password: there is no such key | did you mean redis.password_file?"}},
	{"nothing like it", minimal + "[agent.frobnicate]\nx = 1\n",
		[]string{"3 agent.frobnicate: there is no such key | config reference"}},
	{"unknown key of a scanner, dotted and quoted", minimal + "[[scanner]]\nid = \"A\"\npath = \"/dev/a\"\n\"feedback\" . goood = \"G\"\n",
		[]string{"6 scanner.A.feedback.goood: there is no such key | did you mean scanner.feedback.good?"}},
	{"inline table", minimal + "[[scanner]]\nid = \"A\"\npath = \"/dev/a\"\nfeedback = { good = \"G\", reject = 7 }\n",
		[]string{"6 scanner.A.feedback.reject: 7 does not fit | text in quotes"}},
	{"two on a line", minimal + "spool = { x = 1, warn_at = 2, max_records = 0, a = 1 }\n[pa]\nzone = \"\"\n", []string{"3 agent.spool: no such key", "5 pa.zone: no fixed zone"}},
	{"several on a line", "spool = { x = 1, warn_at = 2, max_records = 0, a = 1 }\n" + minimal, []string{
		"1 spool.x: no such key", "1 spool.warn_at: out of range", "1 spool.max_records: out of range", "1 spool.a: no such key"}},
	{"inline table over lines", minimal + "[[scanner]]\nid = \"A\"\npath = \"/dev/a\"\nfeedback = {\n  good = \"G\",\n  # why\n  rejekt = \"R\",\n}\n",
		[]string{"9 scanner.A.feedback.rejekt: no such key | scanner.feedback.reject?"}},
	{"dotted section", "agent.facility_uuid = \"F\"\nspool.warn_at = \"much\"\n",
		[]string{"2 spool.warn_at: \"much\" does not fit | a number, without quotes"}},
	{"sub-table of the second scanner", minimal + "[[scanner]]\nid = \"A\"\npath = \"/dev/a\"\n[scanner.feedback]\ngood = \"G\"\n[[scanner]]\nid = \"B\"\npath = \"/dev/b\"\n[scanner.feedback]\ngood = 1\n",
		[]string{"12 scanner.B.feedback.good: 1 does not fit"}},
	{"list of inline tables", "scanner = [\n  { id = \"A\", path = \"/dev/a\" },\n  { id = \"B\", baud = \"fast\", path = \"/dev/b\" },\n]\n" + minimal,
		[]string{"3 scanner.B.baud: \"fast\" does not fit | whole number"}},
	{"strings that look like keys", minimal + "[pa]\nzone = \"\"\"\n[spool]\nmax_records = 0\n\"\"\"\n[spool]\nmax_records = 0 # [x]\n",
		[]string{"4 pa.zone: is not known", "9 spool.max_records: 0 is out of range | from 1 to 100000000"}},
	{"quotes at the end of a long string", minimal + "[pa]\nzone = \"\"\"\"x\"\"\"\"\"\nrequest_window = 'z'\n",
		[]string{"4 pa.zone: is not known", "5 pa.request_window: \"z\" does not fit"}},
	{"escaped quote, literal backslash", minimal + "[pa]\nzone = \"a\\\"b # \"\nrequest_window = 'c\\'\n[events]\nmax_events = 0\n",
		[]string{"4 pa.zone: is not known", "5 pa.request_window: does not fit", "7 events.max_events: 0 is out of range"}},
	{"lists over lines", minimal + "[redis]\naddrs = [\n  \"127.0.0.1:1\", # [comment]\n  \"nonsense\",\n]\ndb = 16\n",
		[]string{"4 redis.addrs: \"nonsense\" is not host:port", "8 redis.db: 16 is out of range"}},
	{"CRLF and BOM", "\ufeff[agent]\r\nfacility_uuid = \"F\"\r\n\r\nlog_level = \"loud\"\r\n",
		[]string{"4 agent.log_level: \"loud\" is none of its values | \"debug\", \"info\", \"warn\" or \"error\""}},

	{"no TOML: no quotes", minimal + "agent_id = abc\n", []string{"3 : expected value | double quotes"}},
	{"no TOML: set twice", minimal + "[spool]\nmax_records = 1\nmax_records = 2\n", []string{"5 : already"}},
	{"no TOML: section twice", minimal + "[spool]\nmax_records = 1\n\n[spool]\n", []string{"6 : already"}},
	{"no TOML: open string", "[agent]\nfacility_uuid = \"F\n", []string{"2 : newline"}},
	{"no TOML: open header", minimal + "[spool\nmax_records = 1\n", []string{"3 : table name"}},
	{"no TOML: no value", minimal + "agent_id =\n\n", []string{"3 : expected value"}},
	{"no TOML: escape in a long string", minimal + "agent_id = \"\"\"\na\n\\q\"\"\"\n", []string{"5 : invalid escape"}},
	{"no TOML: hides no other problem, invents none", "[agent]\n= 3\n", []string{"2 : "}},

	{"number as text", minimal + "[spool]\nmax_records = \"many\"\n", []string{"4 spool.max_records: \"many\" does not fit | whole number, without quotes"}},
	{"fraction", minimal + "[spool]\nmax_records = 1.5\n", []string{"4 spool.max_records: 1.5 does not fit | whole number"}},
	{"text as number", minimal + "agent_id = 7\n", []string{"3 agent.agent_id: 7 does not fit | text in quotes"}},
	{"duration as number", minimal + "[claim]\nttl = 60\n", []string{"4 claim.ttl: 60 does not fit | a duration in quotes"}},
	{"duration without unit", minimal + "[claim]\nttl = \"60\"\n", []string{"4 claim.ttl: \"60\" does not fit | a duration in quotes"}},
	{"size of another kind", minimal + "[spool]\nmax_bytes = \"2GB\"\n", []string{"4 spool.max_bytes: \"2GB\" does not fit | \"2GiB\""}},
	{"size below zero", minimal + "[spool]\nmax_bytes = \"-1GiB\"\n", []string{"4 spool.max_bytes: \"-1GiB\" does not fit"}},
	{"size beyond all", minimal + "[spool]\nmax_bytes = \"9000000TiB\"\n", []string{"4 spool.max_bytes: does not fit | \"2GiB\""}},
	{"truth as text", minimal + "[redis]\ntls = \"yes\"\n", []string{"4 redis.tls: \"yes\" does not fit | true or false"}},
	{"list of numbers", minimal + "[redis]\naddrs = [6379]\n", []string{"4 redis.addrs: [6379] does not fit | list of texts"}},
	{"scan type", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nscan_type = \"dispence\"\n", []string{"6 scanner.A.scan_type: \"dispence\" does not fit | \"receive\", \"dispense\""}},
	{"section as value", minimal + "[window]\ndispense = \"3s\"\n", []string{"4 window.dispense: it is a table | [window.dispense]"}},
	{"list as table", minimal + "[scanner]\nid = \"A\"\n", []string{"3 scanner: it is a list of tables | [[scanner]]"}},
	{"list as value", "scanner = 3\n" + minimal, []string{"1 scanner: it is a list of tables | [[scanner]]"}},
	{"table as list", "[[agent]]\nfacility_uuid = \"F\"\n", []string{"1 agent: it is a table"}},
	{"window of no type", minimal + "[window.dispnse]\nwidth = \"3s\"\n", []string{"3 window.dispnse: no such key | did you mean window.dispense?"}},

	{"no facility", "[agent]\n\nagent_id = \"a\"\n", []string{"1 agent.facility_uuid: it is not set | facility_uuid ="}},
	{"facility too long", "[agent]\nfacility_uuid = \"" + strings.Repeat("F", 65) + "\"\n", []string{"2 agent.facility_uuid: does not fit | 64 printable"}},
	{"facility not ASCII", "[agent]\nfacility_uuid = \"Fä\"\n", []string{"2 agent.facility_uuid: does not fit"}},
	{"agent id", minimal + "agent_id = \"a.b\"\n", []string{"3 agent.agent_id: \"a.b\" does not fit"}},
	{"relative folder", minimal + "state_dir = \"state\"\n", []string{"3 agent.state_dir: \"state\" is not an absolute path | from / on"}},
	{"no folder", minimal + "state_dir = \"\"\n", []string{"3 agent.state_dir: it is empty"}},

	{"guard too wide", minimal + "[window.dispense]\nwidth = \"3s\"\nguard = \"1501ms\"\n", []string{"5 window.dispense.guard: more than half | \"1.5s\" or less"}},
	{"width too narrow for the default guard", minimal + "[window.count]\nwidth = \"399ms\"\n", []string{"4 window.count.width: guard \"200ms\" is more than half of width \"399ms\" | \"199ms\" or less, or width = \"400ms\""}},
	{"no width", minimal + "[window.count]\nwidth = \"0s\"\n", []string{"4 window.count.width: out of range"}},
	{"odd guard", minimal + "[window.waste]\nguard = \"1500us\"\n", []string{"4 window.waste.guard: not whole milliseconds"}},
	{"odd width", minimal + "[window.waste]\nwidth = \"3000500us\"\n", []string{"4 window.waste.width: not whole milliseconds"}},
	{"ttl too short", minimal + "[claim]\nttl = \"3s\"\n", []string{
		"4 claim.ttl: less than width + guard of window.dispense, \"3.5s\" | \"3.5s\" or more", "4 claim.ttl: window.waste",
		"4 claim.ttl: window.return", "4 claim.ttl: window.adjust", "4 claim.ttl: window.transfer"}},
	{"width beyond the default ttl", minimal + "[window.adjust]\nwidth = \"2m\"\n", []string{"4 window.adjust.width: less than width + guard | claim.ttl = \"2m0.5s\""}},

	{"always warning", minimal + "[spool]\nwarn_at = 0\n", []string{"4 spool.warn_at: 0 would always warn"}},
	{"percent", minimal + "[spool]\nwarn_at = 80\n", []string{"4 spool.warn_at: 80 is out of range | from 0 to 1"}},
	{"not a number", minimal + "[spool]\nwarn_at = nan\n", []string{"4 spool.warn_at: out of range"}},
	{"tiny spool", minimal + "[spool]\nmax_bytes = \"1KiB\"\n", []string{"4 spool.max_bytes: \"1KiB\" is out of range | \"64KiB\""}},
	{"no batch", minimal + "[forward]\nbatch = 0\nbackoff_min = \"10s\"\n", []string{"4 forward.batch: 0 is out of range", "5 forward.backoff_min: more than forward.backoff_max | at most \"5s\""}},
	{"endless duration", minimal + "[counter]\nmode_idle = \"100000h\"\n", []string{"4 counter.mode_idle: out of range | \"24h\""}},

	{"claim state and cases without a place", minimal + "[claimstate]\nbackend = \"split\"\n[pa]\nbackend = \"postgres\"\n", []string{
		"4 claimstate.backend: needs redis.addrs | addrs = [", "4 claimstate.backend: needs dynamodb.region or dynamodb.endpoint | region = ", "6 pa.backend: needs postgres.dsn"}},
	{"pended for less", minimal + "[claimstate]\nttl = \"2h\"\npend_ttl = \"1h\"\n", []string{"5 claimstate.pend_ttl: less time than others | 720h"}},
	{"stores without a place", minimal + "[claim]\nbackend = \"redis\"\n[ledger]\nbackend = \"postgres\"\n", []string{
		"4 claim.backend: needs redis.addrs | addrs = [", "6 ledger.backend: needs postgres.dsn | dsn = \""}},
	{"backend misspelt", minimal + "[ledger]\nbackend = \"postgre\"\n", []string{"4 ledger.backend: none of its values | did you mean \"postgres\"?"}},

	{"request window", minimal + "[pa]\nrequest_window = \"90m\"\n", []string{"4 pa.request_window: \"90m\" does not fit | whole hours"}},
	{"local zone", minimal + "[pa]\nzone = \"Local\"\n", []string{"4 pa.zone: no fixed zone"}},
	{"sentinel without master", minimal + "[redis]\nmode = \"sentinel\"\n", []string{"4 redis.mode: needs master_name"}},
	{"cluster with database", minimal + "[redis]\nmode = \"cluster\"\ndb = 3\n", []string{"5 redis.db: only database 0"}},
	{"certificate without key", minimal + "[redis]\ncert_file = \"/c.pem\"\n", []string{"4 redis.cert_file: go together"}},
	{"password in a URL", minimal + "[postgres]\ndsn = \"postgres://u:hunter2@db/x\"\n", []string{"4 postgres.dsn: it has a password in it | password_file"}},
	{"password in a query", minimal + "[postgres]\ndsn = \"postgres://u@db/x?password=hunter2\"\n", []string{"4 postgres.dsn: it has a password in it"}},
	{"password as keyword", minimal + "[postgres]\ndsn = \"host=db password = hunter2\"\n", []string{"4 postgres.dsn: it has a password in it"}},
	{"no URL", minimal + "[postgres]\ndsn = \"postgres://u:hunter2@db:port/x\"\n", []string{"4 postgres.dsn: it is no URL"}},
	{"endpoint", minimal + "[dynamodb]\nendpoint = \"127.0.0.1:8000\"\ntable = \"\"\n", []string{"4 dynamodb.endpoint: no URL", "5 dynamodb.table: it is empty"}},

	{"two characters for GS", minimal + "[wedge]\ngs = \"^]\"\n", []string{"4 wedge.gs: \"^]\" does not fit | \\u001d"}},
	{"no ASCII for GS", minimal + "[wedge]\ngs = \"ß\"\n", []string{"4 wedge.gs: \"ß\" does not fit"}},
	{"listening to the world", minimal + "[api]\nlisten = \"0.0.0.0:7411\"\n", []string{"4 api.listen: \"0.0.0.0:7411\" is not a loopback address | 127.0.0.1:7411"}},
	{"listening on all", minimal + "[api]\nlisten = \":7411\"\n", []string{"4 api.listen: not a loopback address"}},
	{"listening by name", minimal + "[api]\nlisten = \"pms.local:7411\"\n", []string{"4 api.listen: not a loopback address"}},
	{"no port", minimal + "[api]\nlisten = \"127.0.0.1\"\n", []string{"4 api.listen: not address:port"}},
	{"port too high", minimal + "[api]\nlisten = \"127.0.0.1:70000\"\n", []string{"4 api.listen: not address:port"}},
	{"socket too long", minimal + "[api]\nsocket = \"/" + strings.Repeat("s", 107) + "\"\n", []string{"4 api.socket: 108 bytes are too long | 107 bytes"}},
	{"group", minimal + "[api]\nsocket_group = \"scan once\"\n", []string{"4 api.socket_group: no group name"}},
	{"host with port", minimal + "[api]\nallowed_hosts = [\"localhost:7411\"]\n", []string{"4 api.allowed_hosts: no host name | without scheme and port"}},
	{"origin with path", minimal + "[api]\nallowed_origins = [\"http://pms/x\"]\n", []string{"4 api.allowed_origins: no origin"}},

	{"profile without name and group", minimal + "facility_secret_file = \"/s\"\n[[rx_profile]]\npattern = 'RX(?P<num>\\d+)'\n", []string{
		"4 rx_profile number 1, name: it is not set", "5 rx_profile number 1, pattern: group \"num\" has no meaning", "5 rx_profile number 1, pattern: no group rx"}},
	{"profile that is no RE2", minimal + "facility_secret_file = \"/s\"\n[[rx_profile]]\nname = \"own\"\npattern = '(?P<rx>\\d+)(?=x)'\n", []string{"6 rx_profile.own.pattern: invalid or unsupported Perl syntax | RE2"}},
	{"profile without pattern", minimal + "facility_secret_file = \"/s\"\n[[rx_profile]]\nname = \"own\"\n", []string{"4 rx_profile.own.pattern: it is not set"}},
	{"profiles without secret", minimal + "[[rx_profile]]\nname = \"own\"\npattern = '(?P<rx>\\d+)'\n[[rx_profile]]\nname = \"own\"\npattern = '(?P<rx>\\d+)'\n", []string{
		"3 rx_profile.own: needs agent.facility_secret_file | below [agent]", "7 rx_profile.own.name: \"own\" is there twice | another name"}},

	{"scanner without anything", minimal + "[[scanner]]\n", []string{"3 scanner number 1, id: it is not set", "3 scanner number 1, path: needs path or usb | path = "}},
	{"scanner id", minimal + "[[scanner]]\nid = \"gun 1\"\npath = \"/a\"\n", []string{"4 scanner number 1, id: \"gun 1\" does not fit"}},
	{"scanner with id of no text", minimal + "[[scanner]]\nid = 4\npath = \"/a\"\n", []string{"4 scanner number 1, id: 4 does not fit"}},
	{"scanner twice", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\n[[scanner]]\nid = \"A\"\npath = \"/b\"\n", []string{"7 scanner.A.id: \"A\" is there twice | scanonce.toml:4)"}},
	{"path twice", minimal + "[[scanner]]\nid = \"A\"\npath = \"/dev/a\"\n[[scanner]]\nid = \"B\"\npath = \"/dev/../dev/a\"\n", []string{"8 scanner.B.path: is also the path of scanner.A | gun_digits"}},
	{"USB ids", minimal + "[[scanner]]\nid = \"A\"\nusb = \"0c2e\"\nport = \"1.2\"\n", []string{"5 scanner.A.usb: \"0c2e\" does not fit", "6 scanner.A.port: no port path"}},
	{"content keys", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nlayout = \"qwerty!\"\ngs_substitute = \"+\"\ngun_digits = 9\nbare_digits = \"ndc10\"\nsymbology_prefix = \"long prefix\"\nframing = \"nul\"\nbaud = 0\n", []string{
		"6 scanner.A.layout: none of its values", "7 scanner.A.gs_substitute: does not fit", "8 scanner.A.gun_digits: out of range", "9 scanner.A.bare_digits: none of its values",
		"10 scanner.A.symbology_prefix: does not fit", "11 scanner.A.framing: none of its values | \"acknak\" or \"ssi\"", "12 scanner.A.baud: out of range"}},
	{"content keys that capture would refuse", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\ngs_substitute = \"\\t\"\nsymbology_prefix = \"x*\"\n[[scanner]]\nid = \"B\"\npath = \"/b\"\nsymbology_prefix = \"*****\"\n", []string{
		"6 scanner.A.gs_substitute: does not fit", "7 scanner.A.symbology_prefix: does not fit | no letter and no digit", "11 scanner.B.symbology_prefix: does not fit"}},
	{"feedback", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nfeedback = { good = \"✓\" }\n", []string{"6 scanner.A.feedback.good: does not fit | ASCII"}},
	{"resends like the next item", minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nretries = 2\nscan_type = \"receive\"\n", []string{
		"7 scanner.A.retries: after \"2s\" would look like the next item: the window of receive is \"400ms\" | retries = 0"}},
	{"resends like the next item of a window made narrow", minimal + "[window.dispense]\nwidth = \"1s\"\n[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nretries = 1\n", []string{"9 scanner.A.retries: the window of dispense is \"1s\""}},

	{"one-letter key", minimal + "[spool]\nx = 1\n", []string{"4 spool.x: there is no such key | config reference"}},
	{"a long value is cut", minimal + "log_level = \"" + strings.Repeat("x", 200) + "\"\n", []string{"3 agent.log_level: \"" + strings.Repeat("x", 56) + "... is none"}},
	{"several problems, in order", "[agent]\nfacility_uid = \"F\"\nlog_level = \"x\"\n[spool]\nmax_records = \"a\"\nwarn_at = 2\n", []string{
		"1 agent.facility_uuid: it is not set", "2 agent.facility_uid: did you mean", "3 agent.log_level: ", "5 spool.max_records: ", "6 spool.warn_at: "}},
}

func TestWrongFiles(t *testing.T) {
	for _, tt := range wrongFiles {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, t.TempDir(), "scanonce.toml", tt.text)
			_, err := Load(Options{File: path, FileExplicit: true})
			var errs Errors
			if !errors.As(err, &errs) {
				t.Fatalf("err = %v, want Errors", err)
			}
			if len(errs) != len(tt.want) {
				t.Fatalf("%d problems, want %d:\n%v", len(errs), len(tt.want), err)
			}
			for i, e := range errs {
				place, rest, _ := strings.Cut(tt.want[i], ": ")
				detail, hint, _ := strings.Cut(rest, " | ")
				if got := fmt.Sprintf("%d %s", e.Line, e.Key); got != place || e.File != path {
					t.Errorf("problem %d is at %s in %s, want %s in %s\n%v", i, got, e.File, place, path, err)
				}
				if !strings.Contains(e.Detail+" "+e.Hint, detail) || !strings.Contains(e.Hint, hint) {
					t.Errorf("problem %d is %q, hint %q; want %q, hint %q", i, e.Detail, e.Hint, detail, hint)
				}
				if e.Hint == "" {
					t.Errorf("problem %d has no hint: %v", i, e)
				}
				if !strings.HasPrefix(e.Error(), fmt.Sprintf("cannot use %s:%d: ", path, e.Line)) || strings.Contains(e.Error(), "\n") {
					t.Errorf("text %q", e.Error())
				}
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("a password is in the text: %v", err)
			}
			if n := strings.Count(err.Error(), "\nhint: "); n != len(errs) {
				t.Errorf("%d hints in the text, want %d", n, len(errs))
			}
		})
	}
}

func TestRightFiles(t *testing.T) {
	for name, text := range map[string]string{
		"loopbacks":              minimal + "[api]\nlisten = \"[::1]:0\"\n",
		"loopback net":           minimal + "[api]\nlisten = \"127.8.9.10:65535\"\n",
		"localhost":              minimal + "[api]\nlisten = \"localhost:7411\"\n",
		"widest guard":           minimal + "[window.dispense]\nguard = \"1500ms\"\n",
		"ttl at its bound":       minimal + "[claim]\nttl = \"3500ms\"\n",
		"warn at all":            minimal + "[spool]\nwarn_at = 1\n",
		"hours":                  minimal + "[pa]\nrequest_window = \"6h\"\n",
		"dsn":                    minimal + "[postgres]\ndsn = \"postgres://scanonce@127.0.0.1:5432/scanonce?sslmode=disable\"\npassword_file = \"/p\"\n",
		"resends, none":          minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nscan_type = \"count\"\n",
		"resends, by their time": minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nretries = 2\n",
		"resends, marked":        minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nretries = 2\nmarks_resends = true\nscan_type = \"receive\"\n",
		"resends, packets":       minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"ssi\"\nretries = 2\nscan_type = \"receive\"\n",
		"resends, window":        minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nframing = \"acknak\"\nretries = 2\nretry_interval = \"1400ms\"\n",
		"retries, no acknak":     minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\nretries = 2\nscan_type = \"count\"\n",
		"ids of full length":     "[agent]\nfacility_uuid = \"" + strings.Repeat("~", 64) + "\"\nagent_id = \"" + strings.Repeat("_", 64) + "\"\n",
		"other sections":         minimal + "[redis]\naddrs = [\"r1:26379\", \"[::1]:26379\"]\nmode = \"sentinel\"\nmaster_name = \"m\"\n[dynamodb]\nendpoint = \"http://127.0.0.1:8000\"\n",
		"profile":                minimal + "facility_secret_file = \"/s\"\n[[rx_profile]]\nname = \"own\"\npattern = '^RX(?P<store>\\d{3})(?P<rx>\\d{7})(?P<refill>\\d\\d)(?:X)?$'\n",
		"gs substitutes":         minimal + "[[scanner]]\nid = \"A\"\npath = \"/a\"\ngs_substitute = \"|\"\n[[scanner]]\nid = \"B\"\npath = \"/b\"\ngs_substitute = \"\\u001d\"\n",
		"nothing but comment":    "# nothing\n" + minimal,
	} {
		t.Run(name, func(t *testing.T) {
			if c := loadText(t, text); c.Agent.FacilityUUID == "" {
				t.Error("nothing was loaded")
			}
		})
	}
}

func TestEverythingIsSet(t *testing.T) {
	c := loadText(t, `
[agent]
facility_uuid = "F"
[window]
receive = { width = "500ms", guard = "250ms" }
[spool]
max_bytes = 1048576
[events]
retention = "90m"
[redis]
addrs = ["a:1", "b:2"]
tls = true
[[scanner]]
id = "SCN-04"
path = "/dev/a"
inter_byte_timeout = "50ms"
scan_type = "return"
feedback.good = "\u0007"
[[scanner]]
id = "SCN-05"
path = "/dev/b"
`)
	want := Default()
	want.Agent.FacilityUUID = "F"
	want.Window[window.Receive] = window.Policy{Width: 500 * time.Millisecond, Guard: 250 * time.Millisecond}
	want.Spool.MaxBytes = 1 << 20
	want.Events.Retention = 90 * time.Minute
	want.Redis.Addrs, want.Redis.TLS = []string{"a:1", "b:2"}, true
	a, b := DefaultScanner(), DefaultScanner()
	a.ID, a.Path, a.InterByteTimeout, a.ScanType, a.Feedback.Good = "SCN-04", "/dev/a", 50*time.Millisecond, window.Return, "\a"
	b.ID, b.Path = "SCN-05", "/dev/b"
	want.Scanners = []Scanner{a, b}
	equal(t, c, want)
	if s := c.Scanner("SCN-05"); s != &c.Scanners[1] {
		t.Errorf("Scanner(SCN-05) = %v", s)
	}
	if c.Scanner("SCN-06") != nil {
		t.Error("a scanner that is not there was found")
	}
}

// equal compares all keys.
func equal(t *testing.T, got, want *Config) {
	t.Helper()
	g, w := *got, *want
	g.at, g.files, w.at, w.files = nil, nil, nil, nil
	if !reflect.DeepEqual(g, w) {
		t.Errorf("got\n%s\nwant\n%s", Dump(got), Dump(want))
	}
}

func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "scanonce.toml", minimal+"[spool]\nmax_records = 1\nsegment_records = 1\n[forward]\nbatch = 1\nrate_limit = 1\n[batch]\ncount = 11\n[api]\nsocket = \"/1\"\n")
	write(t, dir, "conf.d/20.toml", "[forward]\nbatch = 3\nrate_limit = 3\n[batch]\ncount = 13\n[api]\nsocket = \"/3\"\n")
	write(t, dir, "conf.d/10.toml", "[spool]\nsegment_records = 2\n[forward]\nbatch = 2\nrate_limit = 2\n[batch]\ncount = 12\n[api]\nsocket = \"/2\"\n")
	write(t, dir, "conf.d/30.toml.bak", "[spool]\nmax_records = 9\n")
	write(t, dir, "conf.d/40.toml/x", "")
	c := mustLoad(t, Options{File: file, FileExplicit: true,
		Env:    []string{"PATH=/bin", "SCANONCE_FORWARD_RATE_LIMIT=4", "SCANONCE_BATCH_COUNT=14", "SCANONCE_API_SOCKET=/4", "SCANONCE_CLOCK_ALARM=4s"},
		Set:    []string{"batch.count=15", "batch.count=16", "api.socket=/5"},
		Socket: "/6"})
	got := []any{c.Spool.MaxRecords, c.Spool.SegmentRecords, c.Forward.Batch, c.Forward.RateLimit, c.Batch.Count, c.API.Socket, c.Clock.Alarm}
	want := []any{1, 2, 3, 4, 16, "/6", 4 * time.Second}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if f := c.Files(); !slices.Equal(f, []string{file, filepath.Join(dir, "conf.d/10.toml"), filepath.Join(dir, "conf.d/20.toml")}) {
		t.Errorf("files %v", f)
	}
}

func TestScannersOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "scanonce.toml", minimal+"[[scanner]]\nid = \"A\"\npath = \"/a\"\nbaud = 19200\n[[scanner]]\nid = \"SCN.04\"\npath = \"/b\"\n")
	second := write(t, dir, "conf.d/1.toml", "[[scanner]]\nid = \"SCN.04\"\nbaud = 115200\n[scanner.feedback]\ngood = \"G\"\n[[scanner]]\nid = \"C\"\npath = \"/c\"\n")
	o := Options{File: file, FileExplicit: true, Set: []string{"scanner.SCN.04.path=/x", "scanner.SCN.04.feedback.reject=R", "scanner.C.shared=true"}}
	c := mustLoad(t, o)
	want := []Scanner{DefaultScanner(), DefaultScanner(), DefaultScanner()}
	want[0].ID, want[0].Path, want[0].Baud = "A", "/a", 19200
	want[1].ID, want[1].Path, want[1].Baud, want[1].Feedback = "SCN.04", "/x", 115200, Feedback{Good: "G", Reject: "R"}
	want[2].ID, want[2].Path, want[2].Shared = "C", "/c", true
	if !reflect.DeepEqual(c.Scanners, want) {
		t.Errorf("got %+v\nwant %+v", c.Scanners, want)
	}

	// A problem is told where the value came from.
	write(t, dir, "conf.d/1.toml", "[[scanner]]\nid = \"SCN.04\"\nbaud = 1\n")
	_, err := Load(Options{File: file, FileExplicit: true})
	if err == nil || !strings.Contains(err.Error(), second+":3: scanner.SCN.04.baud: ") {
		t.Errorf("err = %v", err)
	}
	// The same name twice in one file is no change of the first.
	write(t, dir, "conf.d/1.toml", "[[scanner]]\nid = \"A\"\nbaud = 300\n[[scanner]]\nid = \"A\"\nbaud = 600\n")
	_, err = Load(Options{File: file, FileExplicit: true})
	if err == nil || !strings.Contains(err.Error(), second+":5: scanner.A.id: \"A\" is there twice") {
		t.Errorf("err = %v", err)
	}
}

func TestRxProfilesOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "scanonce.toml", minimal+"facility_secret_file = \"/s\"\n[[rx_profile]]\nname = \"own\"\npattern = '(?P<rx>1)'\n")
	write(t, dir, "conf.d/1.toml", "[[rx_profile]]\nname = \"own\"\npattern = '(?P<rx>2)'\n[[rx_profile]]\nname = \"two\"\npattern = '(?P<rx>3)'\n")
	c := mustLoad(t, Options{File: file, FileExplicit: true, Set: []string{"rx_profile.two.pattern=(?P<rx>4)"}})
	want := []RxProfile{{"own", "(?P<rx>2)"}, {"two", "(?P<rx>4)"}}
	if !slices.Equal(c.RxProfiles, want) {
		t.Errorf("got %v, want %v", c.RxProfiles, want)
	}
}

func TestEnvironmentAndSetTakeEveryType(t *testing.T) {
	file := write(t, t.TempDir(), "scanonce.toml", minimal)
	c := mustLoad(t, Options{File: file, FileExplicit: true,
		Env: []string{"SCANONCE_REDIS_ADDRS=127.0.0.1:6379, h:1", "SCANONCE_WINDOW_DISPENSE_WIDTH=4s", "SCANONCE_SPOOL_MAX_BYTES=1GiB",
			"SCANONCE_SPOOL_WARN_AT=0.5", "SCANONCE_REDIS_TLS=true", "SCANONCE_API_ALLOWED_ORIGINS=", "SCANONCE_NDC_DIRECTORY=/n"},
		Set: []string{`api.allowed_hosts=["a", "b"]`, "spool.key_file=/k=v", "window.count.guard=100ms"}})
	got := []any{c.Redis.Addrs, c.Window[window.Dispense].Width, c.Spool.MaxBytes, c.Spool.WarnAt, c.Redis.TLS, c.API.AllowedOrigins,
		c.NDC.Directory, c.API.AllowedHosts, c.Spool.KeyFile, c.Window[window.Count].Guard}
	want := []any{[]string{"127.0.0.1:6379", "h:1"}, 4 * time.Second, Size(1 << 30), 0.5, true, []string{}, "/n", []string{"a", "b"}, "/k=v", 100 * time.Millisecond}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestEnvironmentAndSetProblems(t *testing.T) {
	file := write(t, t.TempDir(), "scanonce.toml", minimal+"[[scanner]]\nid = \"A\"\npath = \"/a\"\n")
	for _, tt := range []struct{ env, set, want, hint string }{
		{env: "SCANONCE_SPOOL_MAX_RECORD=1", want: "cannot use environment SCANONCE_SPOOL_MAX_RECORD: there is no such key", hint: "did you mean SCANONCE_SPOOL_MAX_RECORDS?"},
		{env: "SCANONCE_CONFIG=/x", want: "cannot use environment SCANONCE_CONFIG: there is no such key", hint: "config reference"},
		{env: "SCANONCE_SCANNER_A_PATH=/x", want: "cannot use environment SCANONCE_SCANNER_A_PATH: there is no such key", hint: "--set scanner.ID.key"},
		{env: "SCANONCE_SPOOL_WARN_AT=80%", want: "cannot use environment SCANONCE_SPOOL_WARN_AT: spool.warn_at: \"80%\" does not fit", hint: "a number"},
		{env: "SCANONCE_SPOOL_WARN_AT=7", want: "cannot use environment SCANONCE_SPOOL_WARN_AT: spool.warn_at: 7 is out of range", hint: "0 to 1"},
		{env: "SCANONCE_REDIS_TLS=", want: "cannot use environment SCANONCE_REDIS_TLS: redis.tls: \"\" does not fit", hint: "true or false"},
		{env: "SCANONCE_PA_BACKEND=postgres", want: "cannot use environment SCANONCE_PA_BACKEND: pa.backend: backend = \"postgres\" needs postgres.dsn", hint: "under [postgres]"},
		{set: "spool.max_records", want: "cannot use --set spool.max_records: it has no value", hint: "section.key=value"},
		{set: "spool.max_rekords=1", want: "cannot use --set spool.max_rekords: spool.max_rekords: there is no such key", hint: "did you mean spool.max_records?"},
		{set: "spool.max_records=0", want: "cannot use --set spool.max_records: spool.max_records: 0 is out of range", hint: "from 1"},
		{set: "spool=0", want: "cannot use --set spool: spool: there is no such section", hint: ""},
		{set: "scanner.B.path=/b", want: "cannot use --set scanner.B.path: there is no scanner \"B\"", hint: "write one of \"A\""},
		{set: "scanner.A.pth=/b", want: "cannot use --set scanner.A.pth: scanner.A.pth: there is no such key", hint: "did you mean scanner.path?"},
		{set: "rx_profile.A.pattern=x", want: "cannot use --set rx_profile.A.pattern: there is no rx_profile \"A\"", hint: "it adds none"},
		{set: "redis.addrs=[1", want: "cannot use --set redis.addrs: redis.addrs: \"[1\" does not fit", hint: "a list"},
		{set: "redis.password=hunter2", want: "cannot use --set redis.password: redis.password: there is no such key", hint: "redis.password_file"},
	} {
		t.Run(tt.env+tt.set, func(t *testing.T) {
			o := Options{File: file, FileExplicit: true}
			if tt.env != "" {
				o.Env = []string{tt.env}
			} else {
				o.Set = []string{tt.set}
			}
			_, err := Load(o)
			var errs Errors
			if !errors.As(err, &errs) || len(errs) != 1 {
				t.Fatalf("err = %v, want one problem", err)
			}
			if !strings.HasPrefix(errs[0].Error(), tt.want) || !strings.Contains(errs[0].Hint, tt.hint) || errs[0].Hint == "" {
				t.Errorf("got %q, hint %q", errs[0], errs[0].Hint)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("a password is in the text")
			}
		})
	}
}

func TestALaterSourceRepairsAnEarlierOne(t *testing.T) {
	file := write(t, t.TempDir(), "scanonce.toml", minimal+"[spool]\nmax_records = 0\n[forward]\nbatch = \"x\"\n")
	_, err := Load(Options{File: file, FileExplicit: true, Set: []string{"spool.max_records=5", "forward.batch=7"}})
	var errs Errors
	// A value that is out of range no longer counts; one that could not be read at all is still told.
	if !errors.As(err, &errs) || len(errs) != 1 || errs[0].Key != "forward.batch" || errs[0].Line != 6 {
		t.Errorf("err = %v", err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent.toml")
	_, err := Load(Options{File: absent, FileExplicit: true})
	var errs Errors
	if !errors.As(err, &errs) || errs[0].File != absent || errs[0].Hint == "" || !strings.HasPrefix(err.Error(), "cannot use "+absent+": no such file") {
		t.Errorf("an absent file that was named: %v", err)
	}
	c := mustLoad(t, Options{File: absent, Env: []string{"SCANONCE_AGENT_FACILITY_UUID=F"}})
	want := Default()
	want.Agent.FacilityUUID = "F"
	equal(t, c, want)
	if _, err := Load(Options{File: dir, FileExplicit: true}); err == nil || !strings.HasPrefix(err.Error(), "cannot use "+dir+": is a directory") {
		t.Errorf("a folder as file: %v", err)
	}
	// Without any file the defaults lack only the facility, and there is no file to blame.
	_, err = Load(Options{File: absent})
	if !errors.As(err, &errs) || len(errs) != 1 || errs[0].File != "" || errs[0].Error() != "cannot use the configuration: agent.facility_uuid: it is not set" {
		t.Errorf("err = %v", err)
	}
	// A file that does not mention the section is blamed as a whole.
	file := write(t, dir, "empty.toml", "")
	_, err = Load(Options{File: file, FileExplicit: true})
	if !errors.As(err, &errs) || errs[0].Error() != "cannot use "+file+": agent.facility_uuid: it is not set" {
		t.Errorf("err = %v", err)
	}
	// conf.d counts even if the main file is absent, and all files' problems are told.
	write(t, dir, "conf.d/1.toml", "[spool]\nx = 1\n")
	write(t, dir, "conf.d/2.toml", "[spool\n")
	_, err = Load(Options{File: file, FileExplicit: true})
	if !errors.As(err, &errs) || len(errs) != 2 || errs[0].Line != 2 || strings.Contains(errs[0].Hint, "did you") || errs[1].Line != 1 || !strings.HasSuffix(errs[1].File, "2.toml") {
		t.Errorf("err = %v", err)
	}
}

func TestStateDirAndSocket(t *testing.T) {
	file := write(t, t.TempDir(), "scanonce.toml", minimal)
	withSocket := write(t, t.TempDir(), "scanonce.toml", minimal+"[api]\nsocket = \"/s\"\n")
	inFile := write(t, t.TempDir(), "scanonce.toml", minimal+"state_dir = \"/var/x\"\n")
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		o             Options
		state, socket string
	}{
		"defaults":           {Options{File: file}, "/var/lib/scanonce", "/run/scanonce/scanonce.sock"},
		"flag":               {Options{File: file, StateDir: "/x"}, "/x", "/x/scanonce.sock"},
		"flag, relative":     {Options{File: file, StateDir: "x"}, wd + "/x", wd + "/x/scanonce.sock"},
		"flag over file":     {Options{File: inFile, StateDir: "/x"}, "/x", "/x/scanonce.sock"},
		"socket in file":     {Options{File: withSocket, StateDir: "/x"}, "/x", "/s"},
		"socket by set":      {Options{File: file, StateDir: "/x", Set: []string{"api.socket=/t"}}, "/x", "/t"},
		"socket by env":      {Options{File: file, StateDir: "/x", Env: []string{"SCANONCE_API_SOCKET=/e"}}, "/x", "/e"},
		"both flags":         {Options{File: withSocket, StateDir: "/x", Socket: "/y"}, "/x", "/y"},
		"socket flag":        {Options{File: file, Socket: "y"}, "/var/lib/scanonce", wd + "/y"},
		"state_dir, no flag": {Options{File: inFile}, "/var/x", "/run/scanonce/scanonce.sock"},
	} {
		c := mustLoad(t, tt.o)
		if c.Agent.StateDir != tt.state || c.API.Socket != tt.socket {
			t.Errorf("%s: %s and %s, want %s and %s", name, c.Agent.StateDir, c.API.Socket, tt.state, tt.socket)
		}
	}
	long := "/" + strings.Repeat("x", 100)
	_, err = Load(Options{File: file, StateDir: long})
	if err == nil || !strings.HasPrefix(err.Error(), "cannot use --state-dir "+long+": api.socket: 115 bytes are too long") {
		t.Errorf("err = %v", err)
	}
}

func TestResolvedPaths(t *testing.T) {
	c := Default()
	c.Agent.StateDir = "/x"
	if c.SpoolKeyFile() != "/x/keys/spool.key" || c.TokenFile() != "/x/keys/api.token" {
		t.Errorf("%s, %s", c.SpoolKeyFile(), c.TokenFile())
	}
	c.Spool.KeyFile, c.API.TokenFile = "/k", "/t"
	if c.SpoolKeyFile() != "/k" || c.TokenFile() != "/t" {
		t.Errorf("%s, %s", c.SpoolKeyFile(), c.TokenFile())
	}
}

func scannerTable(id, keys string) string { return "[[scanner]]\nid = \"" + id + "\"\n" + keys }

func TestRulesOfUSBScanners(t *testing.T) {
	const (
		pos      = "transport = \"hid-pos\"\nusb = \"0c2e:0b61\"\n"
		keyboard = "transport = \"hid-keyboard\"\nusb = \"05f9:2206\"\n"
	)
	for _, c := range []struct {
		name, text string
		want       string // line, key and detail of the one problem, "" for none
		hint       string
	}{
		{"HID-POS", scannerTable("A", pos), "", ""},
		{"HID-POS beside another program", scannerTable("A", pos+"mode = \"listen\"\n"), "", ""},
		{"HID-POS is no keyboard", scannerTable("A", pos+"mode = \"grab\"\n"), "7 scanner.A.mode: only the keys of a hid-keyboard can be passed on", "\"exclusive\", or \"listen\""},
		{"keyboard", scannerTable("A", keyboard), "", ""},
		{"keyboard grabbed", scannerTable("A", keyboard+"mode = \"grab\"\nlayout = \"fr\"\n"), "", ""},
		{"keyboard taken away", scannerTable("A", keyboard+"mode = \"exclusive\"\n"), "7 scanner.A.mode: exclusive takes a keyboard away from everything else", "force = true"},
		{"keyboard taken away on purpose", scannerTable("A", keyboard+"mode = \"exclusive\"\nforce = true\n"), "", ""},
		{"keyboard typed once more", scannerTable("A", keyboard+"mode = \"grab\"\nwedge = true\n"), "8 scanner.A.wedge: the application has the keys of a hid-keyboard that is not exclusive already: each scan would be typed twice", "leave wedge out"},
		{"HID-POS typed", scannerTable("A", pos+"wedge = true\n"), "", ""},
		{"keyboard taken away and typed", scannerTable("A", keyboard+"mode = \"exclusive\"\nforce = true\nwedge = true\n"), "", ""},
		{"layout", scannerTable("A", keyboard+"layout = \"dvorak\"\n"), "7 scanner.A.layout: \"dvorak\" is none of its values", "\"us\", \"uk\", \"de\" or \"fr\""},
		{"any keyboard", scannerTable("A", "transport = \"hid-keyboard\"\n"), "3 scanner.A.usb: a USB scanner needs usb", "no other keyboard is touched"},
		{"whatever is at a port", scannerTable("A", "transport = \"hid-pos\"\nport = \"1-1\"\n"), "3 scanner.A.usb: a USB scanner needs usb", "usb = \"vvvv:pppp\""},
		{"HID by path", scannerTable("A", pos+"path = \"/dev/hidraw0\"\n"), "7 scanner.A.path: a USB scanner has no path", "leave path out"},

		{"serial by USB", scannerTable("A", "usb = \"05e0:1701\"\n"), "", ""},
		{"serial by serial number", scannerTable("A", "usb = \"05e0:1701:S/N:0123 Ä\"\nport = \"1-1.2\"\n"), "", ""},
		{"serial nowhere", scannerTable("A", ""), "3 scanner.A.path: a serial scanner needs path or usb", "scanonce devices"},
		{"serial by both", scannerTable("A", "path = \"/dev/ttyACM0\"\nusb = \"05e0:1701\"\n"), "6 scanner.A.usb: path says already where it is", "either path, or usb"},
		{"serial by path and port", scannerTable("A", "path = \"/dev/ttyACM0\"\nport = \"1-1\"\n"), "6 scanner.A.port: path says already where it is", "either path, or usb"},
		{"serial by port alone", scannerTable("A", "port = \"1-1\"\n"), "5 scanner.A.port: port alone does not say which device is meant", "usb = \"vvvv:pppp\" beside it"},
		{"serial shared", scannerTable("A", "usb = \"05e0:1701\"\nmode = \"listen\"\n"), "6 scanner.A.mode: a serial scanner is the agent's alone", "leave mode out"},

		{"no ids", scannerTable("A", "usb = \"5e0:1701\"\n"), "5 scanner.A.usb: \"5e0:1701\" does not fit", "0c2e:0b61"},
		{"blank serial number", scannerTable("A", "usb = \"05e0:1701: \"\n"), "5 scanner.A.usb: \"05e0:1701: \" does not fit", "0c2e:0b61"},
		{"serial number that does not print", scannerTable("A", "usb = \"05e0:1701:a\\u0007\"\n"), "5 scanner.A.usb: \"05e0:1701:a\\a\" does not fit", "0c2e:0b61"},
		{"no port path", scannerTable("A", "usb = \"05e0:1701\"\nport = \"usb1\"\n"), "6 scanner.A.port: \"usb1\" is no port path", "1-1.2"},

		{"one device twice", scannerTable("A", pos) + scannerTable("B", "transport = \"serial\"\nusb = \"0C2E:0B61\"\n"), "10 scanner.B.usb: it is the device of scanner.A", "serial number or port"},
		{"one port twice", scannerTable("A", pos+"port = \"1-1\"\n") + scannerTable("B", pos+"port = \"1-1\"\n"), "11 scanner.B.usb: it is the device of scanner.A", "serial number or port"},
		{"two ports", scannerTable("A", pos+"port = \"1-1\"\n") + scannerTable("B", pos+"port = \"1-2\"\n"), "", ""},
		{"two serial numbers", scannerTable("A", "usb = \"05e0:1701:a\"\n") + scannerTable("B", "usb = \"05e0:1701:A\"\n"), "", ""},
	} {
		_, err := Load(Options{File: write(t, t.TempDir(), "scanonce.toml", minimal+c.text), FileExplicit: true})
		var errs Errors
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
		case !errors.As(err, &errs) || len(errs) != 1:
			t.Errorf("%s: %v; want one problem", c.name, err)
		default:
			if got := fmt.Sprintf("%d %s: %s", errs[0].Line, errs[0].Key, errs[0].Detail); got != c.want || !strings.Contains(errs[0].Hint, c.hint) {
				t.Errorf("%s: got %s | %s\nwant %s | %s", c.name, got, errs[0].Hint, c.want, c.hint)
			}
		}
	}
	c := Default()
	c.Scanners = []Scanner{DefaultScanner(), DefaultScanner(), DefaultScanner()}
	c.Scanners[1].Transport, c.Scanners[2].Transport = "hid-keyboard", "hid-pos"
	c.byTransport()
	if got := []string{c.Scanners[0].Mode, c.Scanners[1].Mode, c.Scanners[2].Mode}; !slices.Equal(got, []string{"exclusive", "listen", "exclusive"}) {
		t.Errorf("modes %q", got)
	}
}

func TestValidateWithoutFile(t *testing.T) {
	c := Default()
	err := c.Validate()
	if err == nil || !strings.HasPrefix(err.Error(), "cannot use the configuration: agent.facility_uuid: it is not set\nhint: ") {
		t.Errorf("err = %v", err)
	}
	c.Agent.FacilityUUID = "F"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	var one *Error
	c.Spool.MaxRecords = 0
	if !errors.As(c.Validate(), &one) || one.Key != "spool.max_records" {
		t.Errorf("errors.As gave %v", one)
	}
}

// What a keyboard has otherwise holds only where the file does not say it.
func TestKeyboardDefaults(t *testing.T) {
	const table = "[[scanner]]\nid = %q\nusb = \"05f9:2206\"\nport = \"1-%d\"\ntransport = %q\n%s"
	c := loadText(t, minimal+fmt.Sprintf(table, "A", 1, "hid-keyboard", "")+fmt.Sprintf(table, "B", 2, "hid-keyboard", "mode = \"grab\"\ninter_byte_timeout = \"200ms\"\n")+
		fmt.Sprintf(table, "C", 3, "hid-pos", ""))
	for i, want := range []string{"listen 100ms", "grab 200ms", "exclusive 200ms"} {
		if got := fmt.Sprint(c.Scanners[i].Mode, " ", c.Scanners[i].InterByteTimeout); got != want {
			t.Errorf("%s: %s, want %s", c.Scanners[i].ID, got, want)
		}
	}
}
