package config

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"scanonce/window"
)

var update = flag.Bool("update", false, "write configs/reference.toml")

var configs = filepath.Join("..", "..", "configs")

func TestReferenceFile(t *testing.T) {
	path := filepath.Join(configs, "reference.toml")
	if *update {
		if err := os.WriteFile(path, []byte(Reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Reference() {
		t.Error("configs/reference.toml is not what the code says: run go test ./internal/config -run TestReferenceFile -update")
	}
}

func TestReferenceLoadsToTheDefaults(t *testing.T) {
	ref := strings.Replace(Reference(), "facility_uuid = \"\"", "facility_uuid = \"F\"", 1)
	want := Default()
	want.Agent.FacilityUUID = "F"
	equal(t, loadText(t, ref), want)

	// With the two examples of lists switched on, filled in where a value is required.
	on := regexp.MustCompile(`(?m)^#([^ \n])`).ReplaceAllString(ref, "$1")
	on = strings.Replace(on, "\nid = \"\"", "\nid = \"A\"", 1)
	on = strings.Replace(on, "\npath = \"\"", "\npath = \"/a\"", 1)
	on = strings.Replace(on, "\nname = \"\"", "\nname = \"N\"", 1)
	on = strings.Replace(on, "pattern = \"\"", "pattern = \"(?P<rx>1)\"", 1)
	on = strings.Replace(on, "facility_secret_file = \"\"", "facility_secret_file = \"/s\"", 1)
	want.Agent.FacilitySecretFile = "/s"
	want.Scanners = []Scanner{DefaultScanner()}
	want.Scanners[0].ID, want.Scanners[0].Path = "A", "/a"
	want.RxProfiles = []RxProfile{{"N", "(?P<rx>1)"}}
	equal(t, loadText(t, on), want)

	for _, line := range strings.Split(Reference(), "\n") {
		if len(line) > 120 {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
}

// The file format is a contract: this is every key with its default.
func TestKeysAndDefaults(t *testing.T) {
	want := strings.Fields(`
agent.facility_uuid="" agent.agent_id="" agent.state_dir="/var/lib/scanonce" agent.facility_secret_file="" agent.log_level="info"
window.receive.width="400ms" window.receive.guard="200ms" window.dispense.width="3s" window.dispense.guard="500ms"
window.waste.width="3s" window.waste.guard="500ms" window.return.width="3s" window.return.guard="500ms" window.adjust.width="3s" window.adjust.guard="500ms"
window.transfer.width="3s" window.transfer.guard="500ms" window.count.width="400ms" window.count.guard="200ms"
counter.mode_idle="2m" counter.quantity_timeout="1m" counter.rx_context="2m"
spool.max_records=1000000 spool.max_bytes="2GiB" spool.warn_at=0.8 spool.segment_records=100000 spool.key_file=""
claim.backend="embedded" claim.ttl="1m" claim.timeout="1s" ledger.backend="embedded"
claimstate.backend="embedded" claimstate.ttl="15m" claimstate.pend_ttl="720h"
pa.backend="embedded" pa.request_window="date" pa.zone="UTC"
redis.addrs=[] redis.mode="single" redis.master_name="" redis.username="" redis.password_file="" redis.db=0 redis.tls=false redis.ca_file="" redis.cert_file="" redis.key_file=""
postgres.dsn="" postgres.password_file="" postgres.connect_timeout="5s" postgres.statement_timeout="10s"
dynamodb.endpoint="" dynamodb.region="" dynamodb.table="scanonce_claims" dynamodb.create_table=false
forward.batch=500 forward.backoff_min="100ms" forward.backoff_max="5s" forward.rate_limit=0
api.socket="/run/scanonce/scanonce.sock" api.socket_group="scanonce" api.listen="" api.token_file="" api.allowed_hosts=["localhost",_"127.0.0.1"] api.allowed_origins=[]
events.max_events=10000 events.retention="24h"
batch.count=10 batch.within="2s" batch.repeat_horizon="2160h"
clock.alarm="5m" audit.retention_days=730 ndc.directory="" wedge.layout="us" wedge.gs="\u001D" wedge.end="enter"
rx_profile[0].name="" rx_profile[0].pattern=""
scanner[0].id="" scanner[0].transport="serial" scanner[0].path="" scanner[0].usb="" scanner[0].port="" scanner[0].mode="exclusive" scanner[0].force=false
scanner[0].baud=9600 scanner[0].framing="line" scanner[0].inter_byte_timeout="200ms" scanner[0].layout="us" scanner[0].gs_substitute="" scanner[0].gun_digits=0
scanner[0].bare_digits="" scanner[0].symbology_prefix="" scanner[0].retries=0 scanner[0].retry_interval="2s" scanner[0].marks_resends=false scanner[0].shared=false
scanner[0].wedge=false scanner[0].scan_type="dispense" scanner[0].feedback.good="" scanner[0].feedback.duplicate="" scanner[0].feedback.reject="" scanner[0].feedback.profile=""`)
	var got []string
	for _, s := range prototype().sections() {
		for _, f := range s.fields {
			got = append(got, f.path+"="+strings.ReplaceAll(toTOML(f.value), " ", "_"))
			if f.tag.Get("doc") == "" {
				t.Errorf("%s has no explanation", f.path)
			}
			if k := f.value.Kind(); (k == reflect.Int || k == reflect.Int64 || k == reflect.Float64) && f.tag.Get("range") == "" {
				t.Errorf("%s has no bounds", f.path)
			}
			if strings.HasSuffix(f.name, "_file") && f.tag.Get("path") == "" {
				t.Errorf("%s is no path", f.path)
			}
		}
	}
	for i := range max(len(got), len(want)) {
		g, w := "", ""
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("key %d is %s, want %s", i, g, w)
		}
	}
}

func TestEnvironmentNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, k := range known() {
		if other, ok := seen[envName(k)]; ok {
			t.Errorf("%s and %s have the same name in the environment", k, other)
		}
		seen[envName(k)] = k
	}
}

// full has a value other than the default for every key.
func full(t *testing.T) *Config {
	t.Helper()
	c := prototype()
	c.RxProfiles[0] = RxProfile{"own", `^"'(?P<rx>\d+)`}
	c.Scanners = append(c.Scanners, DefaultScanner())
	for path, f := range c.fields() {
		switch p := f.value.Addr().Interface().(type) {
		case *time.Duration:
			*p += time.Millisecond
		case *window.ScanType:
			*p = window.Count
		case *Size:
			*p++
		case *int:
			*p++
		case *float64:
			*p /= 2
		case *bool:
			*p = !*p
		case *[]string:
			*p = []string{"a:1", "b\x1d\"\\é"}
		case *string:
			if !strings.HasPrefix(path, "rx_profile") {
				*p = "/" + path + "\x07'\"\\"
			}
		default:
			t.Fatalf("%s is a %T", path, p)
		}
	}
	return c
}

func TestDumpLoadsToTheSame(t *testing.T) {
	c := loadText(t, minimal+`facility_secret_file = "/s"
[window.count]
width = "401ms"
[pa]
request_window = "6h"
[redis]
addrs = ["a:1", "b:2"]
tls = true
[api]
listen = "127.0.0.1:0"
[[rx_profile]]
name = "own"
pattern = '^"(?P<rx>\d+)'
[[scanner]]
id = "A"
path = "/a"
scan_type = "count"
gs_substitute = "\u001e"
feedback = { good = "\u0007\"\\'", reject = "" }
[[scanner]]
id = "B"
path = "/b"
`)
	text := Dump(c)
	again := loadText(t, text)
	if again.Spool.KeyFile != "/var/lib/scanonce/keys/spool.key" || again.API.TokenFile != "/var/lib/scanonce/keys/api.token" {
		t.Errorf("files %q and %q", again.Spool.KeyFile, again.API.TokenFile)
	}
	again.Spool.KeyFile, again.API.TokenFile = "", ""
	equal(t, again, c)
	if Dump(c) != text {
		t.Error("a dump changes the configuration")
	}
}

func TestEveryValueSurvivesTheText(t *testing.T) {
	c := full(t)
	l := &loader{c: Default(), bad: map[string]bool{}}
	l.c.at = map[string]Position{}
	l.file("dump", []byte(Dump(c)))
	if len(l.errs) > 0 {
		t.Fatal(l.errs)
	}
	equal(t, l.c, c)
}

func TestJSON(t *testing.T) {
	c := loadText(t, minimal+"[[scanner]]\nid = \"A\"\npath = \"/a\"\nscan_type = \"count\"\nfeedback.good = \"G\"\n")
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	at := func(path ...any) any {
		var v any = got
		for _, p := range path {
			switch p := p.(type) {
			case string:
				m, _ := v.(map[string]any)
				v = m[p]
			case int:
				s, _ := v.([]any)
				if p >= len(s) {
					return nil
				}
				v = s[p]
			}
		}
		return v
	}
	for _, tt := range []struct {
		path []any
		want any
	}{
		{[]any{"agent", "facility_uuid"}, "F"},
		{[]any{"spool", "max_bytes"}, "2GiB"},
		{[]any{"spool", "key_file"}, "/var/lib/scanonce/keys/spool.key"},
		{[]any{"api", "token_file"}, ""},
		{[]any{"window", "count", "width"}, "400ms"},
		{[]any{"claimstate", "pend_ttl"}, "720h"},
		{[]any{"redis", "addrs"}, []any{}},
		{[]any{"rx_profile"}, []any{}},
		{[]any{"scanner", 0, "scan_type"}, "count"},
		{[]any{"scanner", 0, "feedback", "good"}, "G"},
		{[]any{"forward", "batch"}, 500.0},
	} {
		if v := at(tt.path...); !reflect.DeepEqual(v, tt.want) {
			t.Errorf("%v is %v, want %v", tt.path, v, tt.want)
		}
	}
}

func TestNeedsRestart(t *testing.T) {
	a, b := Default(), full(t)
	got := NeedsRestart(a, b)
	for _, s := range b.sections() {
		for _, f := range s.fields {
			section, _, _ := strings.Cut(element.ReplaceAllString(f.path, ""), ".")
			live := f.path == "agent.log_level" || slices.Contains([]string{"scanner", "window", "counter", "rx_profile", "batch", "ndc", "wedge"}, section)
			if slices.Contains(got, f.path) == live {
				t.Errorf("%s: live %v, in the list %v", f.path, live, !live)
			}
		}
	}
	if r := NeedsRestart(a, Default()); r != nil {
		t.Errorf("nothing changed, but %v", r)
	}
	c := Default()
	c.Redis.Addrs = append(c.Redis.Addrs, "x:1")
	c.Scanners = append(c.Scanners, DefaultScanner())
	if r := NeedsRestart(a, c); !slices.Equal(r, []string{"redis.addrs"}) {
		t.Errorf("got %v", r)
	}
	if r := NeedsRestart(c, a); !slices.Equal(r, []string{"redis.addrs"}) {
		t.Errorf("back: %v", r)
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"2GiB": 2 << 30, "512MiB": 512 << 20, "1TiB": 1 << 40, "3KiB": 3072, "1025B": 1025, "7": 7, "0B": 0} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
		b, err := s.MarshalText()
		if err != nil || string(b) != strings.TrimSuffix(text, "B")+"B" {
			t.Errorf("%s comes back as %s", text, b)
		}
	}
	for _, text := range []string{"", "B", "GiB", "2GB", "2 GiB", "-1", "1.5GiB", "9223372036854775807KiB", "2gib"} {
		s := Size(-5)
		if err := s.UnmarshalText([]byte(text)); err == nil || s != -5 {
			t.Errorf("%q was read as %d", text, s)
		}
	}
}

func TestStandaloneFile(t *testing.T) {
	c := mustLoad(t, Options{File: filepath.Join(configs, "standalone.toml"), FileExplicit: true})
	want := Default()
	want.Agent.FacilityUUID, want.Agent.StateDir = strings.Repeat("F", 36), "/tmp/t1"
	want.Scanners = []Scanner{DefaultScanner()}
	s := &want.Scanners[0]
	s.ID, s.Path, s.Feedback = "SCN-04", "/tmp/t1/scn04", Feedback{Good: "G", Duplicate: "D", Reject: "R"}
	equal(t, c, want)
	// A whole fleet may ship one file: sections of stores that are not used do no harm.
	mustLoad(t, Options{File: filepath.Join(configs, "standalone.toml"), FileExplicit: true,
		Set: []string{"redis.addrs=127.0.0.1:6379", "postgres.dsn=postgres://scanonce@127.0.0.1:5432/scanonce?sslmode=disable"}})
}
