// Package config is the agent's configuration: its keys, defaults, sources and rules.
//
// Values come from, each overriding the one before: built-in defaults, the file, conf.d/*.toml beside it in
// the order of their names, the environment (SCANONCE_SECTION_KEY), --set, --state-dir and --socket. Every
// error names its place, file and line if it has one, and says what to write instead.
package config

import (
	"log/slog"
	"path/filepath"
	"time"

	"scanonce/window"
)

// DefaultFile is read if no file is named; it may be absent.
const DefaultFile = "/etc/scanonce/scanonce.toml"

// Config holds every key of the configuration file. The tags are the reference: toml is the key's name,
// doc its explanation, enum its values, range its inclusive bounds, path marks absolute paths, and reload
// the keys that a running agent takes over without a restart. On a section, reload stands for all its keys.
type Config struct {
	Agent      Agent           `toml:"agent" doc:"The agent itself."`
	Window     window.Policies `toml:"window" reload:"yes" doc:"The window of each scan type: retransmissions within it are one movement. The same on all agents of a facility."`
	Counter    Counter         `toml:"counter" reload:"yes" doc:"What a scanner's user sets, and how long it lasts."`
	Spool      Spool           `toml:"spool" doc:"The durable outbox. Every scan is in it before the scanner gets its answer."`
	Claim      Claim           `toml:"claim" doc:"Who goes first when two agents heard one scan. It saves work; the ledger decides."`
	Ledger     Ledger          `toml:"ledger" doc:"The ledger of movements and the audit trail."`
	ClaimState ClaimState      `toml:"claimstate" doc:"The state of claims in adjudication."`
	PA         PA              `toml:"pa" doc:"Prior-authorization cases."`
	Redis      Redis           `toml:"redis" doc:"Used by the redis backends."`
	Postgres   Postgres        `toml:"postgres" doc:"Used by the postgres backends."`
	DynamoDB   DynamoDB        `toml:"dynamodb" doc:"Used by the dynamodb and split backends."`
	Forward    Forward         `toml:"forward" doc:"How the spool is drained into the stores."`
	API        API             `toml:"api" doc:"The local HTTP interface."`
	Events     Events          `toml:"events" doc:"The resumable stream of local events."`
	Batch      Batch           `toml:"batch" reload:"yes" doc:"Codes stored in a scanner's memory and sent in one run."`
	Clock      Clock           `toml:"clock" doc:"The normalized clock."`
	Audit      Audit           `toml:"audit" doc:"The audit trail."`
	NDC        NDC             `toml:"ndc" reload:"yes" doc:"The directory that decides between the readings of a 10-digit NDC."`
	Wedge      Wedge           `toml:"wedge" reload:"yes" doc:"How accepted scans of the scanners with wedge = true are typed."`
	RxProfiles []RxProfile     `toml:"rx_profile" reload:"yes" doc:"A pharmacy's own prescription labels. One table for each kind of label."`
	Scanners   []Scanner       `toml:"scanner" reload:"yes" doc:"One table for each scanner or base station."`

	at    map[string]Position // of keys, tables and list elements that were set
	files []string
}

// Agent names the workstation and its facility.
type Agent struct {
	FacilityUUID       string `toml:"facility_uuid" doc:"The facility, the same on all its agents: 1 to 64 printable ASCII characters. Required."`
	AgentID            string `toml:"agent_id" doc:"This agent: 1 to 64 of A-Z a-z 0-9 _ -. Empty: made at the first start and kept in agent.json."`
	StateDir           string `toml:"state_dir" path:"required" doc:"Folder of the spool, the embedded stores and the keys."`
	FacilitySecretFile string `toml:"facility_secret_file" path:"optional" doc:"File with the secret under which prescription numbers become tokens. Required with an rx_profile."`
	LogLevel           string `toml:"log_level" enum:"debug|info|warn|error" reload:"yes" doc:"Least severe level that is logged."`
}

// Level is LogLevel as slog's type; info if it is none.
func (a Agent) Level() slog.Level {
	var l slog.Level
	if err := l.UnmarshalText([]byte(a.LogLevel)); err != nil {
		return slog.LevelInfo
	}
	return l
}

// Counter bounds what a scanner's user has set.
type Counter struct {
	ModeIdle        time.Duration `toml:"mode_idle" range:"1s:24h" doc:"A scan type set by the user goes back to the scanner's own after this long without a scan."`
	QuantityTimeout time.Duration `toml:"quantity_timeout" range:"1s:24h" doc:"A one-shot quantity that no scan has used is forgotten after this long."`
	RxContext       time.Duration `toml:"rx_context" range:"1s:24h" doc:"A scanned prescription label belongs to the scans of this long."`
}

// Spool bounds the durable outbox. MaxRecords and MaxBytes bound it together: whichever is reached first.
type Spool struct {
	MaxRecords     int     `toml:"max_records" range:"1:100000000" doc:"Unsettled records, duplicates included. At the bound scans are refused aloud, and nothing accepted is dropped."`
	MaxBytes       Size    `toml:"max_bytes" range:"64KiB:1024TiB" doc:"Bytes on disk; whichever of both bounds comes first counts."`
	WarnAt         float64 `toml:"warn_at" range:"0:1" doc:"Share of either bound that raises an alarm; above 0, at most 1."`
	SegmentRecords int     `toml:"segment_records" range:"1:10000000" doc:"Records in a segment file."`
	KeyFile        string  `toml:"key_file" path:"optional" doc:"Key that seals the records. Empty: keys/spool.key in the state folder, made at the first start."`
}

// Claim chooses the claim authority.
type Claim struct {
	Backend string        `toml:"backend" enum:"embedded|redis" doc:"Where claims are made."`
	TTL     time.Duration `toml:"ttl" range:"1ms:24h" doc:"Life of a claim; at least width + guard of every window."`
	Timeout time.Duration `toml:"timeout" range:"1ms:1m" doc:"After this long without a reply a claim is unknown, and the ledger decides."`
}

// Ledger chooses the ledger.
type Ledger struct {
	Backend string `toml:"backend" enum:"embedded|postgres" doc:"Where rows and audit lines are kept."`
}

// ClaimState chooses the store of claim state.
type ClaimState struct {
	Backend string        `toml:"backend" enum:"embedded|redis|dynamodb|split" doc:"Where claim state is kept. split: redis, and dynamodb while pended."`
	TTL     time.Duration `toml:"ttl" range:"1s:8760h" doc:"Life of an idle claim."`
	PendTTL time.Duration `toml:"pend_ttl" range:"1s:26280h" doc:"Life of a pended claim."`
}

// PA chooses the store of prior-authorization cases.
type PA struct {
	Backend       string `toml:"backend" enum:"embedded|postgres" doc:"Where cases are kept."`
	RequestWindow string `toml:"request_window" doc:"Pends for one member and drug within it are one case: \"date\", or whole hours such as \"6h\"."`
	Zone          string `toml:"zone" doc:"Time zone of the date, an IANA name such as \"America/Chicago\"."`
}

// Redis is the connection of the redis backends.
type Redis struct {
	Addrs        []string `toml:"addrs" doc:"host:port of the server, of the sentinels, or of some cluster nodes."`
	Mode         string   `toml:"mode" enum:"single|sentinel|cluster" doc:"How the servers work together."`
	MasterName   string   `toml:"master_name" doc:"Name of the master that the sentinels watch. Required with mode = \"sentinel\"."`
	Username     string   `toml:"username" doc:"ACL user. Empty: the default user."`
	PasswordFile string   `toml:"password_file" path:"optional" doc:"File with the password. Empty: none."`
	DB           int      `toml:"db" range:"0:15" doc:"Database number; 0 with a cluster."`
	TLS          bool     `toml:"tls" doc:"Encrypt the connection."`
	CAFile       string   `toml:"ca_file" path:"optional" doc:"PEM file of the authorities to trust. Empty: the system's."`
	CertFile     string   `toml:"cert_file" path:"optional" doc:"PEM file of the client's certificate."`
	KeyFile      string   `toml:"key_file" path:"optional" doc:"PEM file of the client's key."`
}

// Postgres is the connection of the postgres backends.
type Postgres struct {
	DSN              string        `toml:"dsn" doc:"Connection string, without a password."`
	PasswordFile     string        `toml:"password_file" path:"optional" doc:"File with the password. Empty: none."`
	ConnectTimeout   time.Duration `toml:"connect_timeout" range:"10ms:5m" doc:"Longest time to connect."`
	StatementTimeout time.Duration `toml:"statement_timeout" range:"10ms:10m" doc:"Longest time for one statement."`
}

// DynamoDB is the connection of the dynamodb backends.
type DynamoDB struct {
	Endpoint    string `toml:"endpoint" doc:"URL of the endpoint. Empty: the region's."`
	Region      string `toml:"region" doc:"Region, for example \"us-east-1\"."`
	Table       string `toml:"table" doc:"Table name."`
	CreateTable bool   `toml:"create_table" doc:"Create the table if it is missing."`
}

// Forward bounds the draining of the spool.
type Forward struct {
	Batch      int           `toml:"batch" range:"1:10000" doc:"Most records settled in one batch."`
	BackoffMin time.Duration `toml:"backoff_min" range:"1ms:1h" doc:"First wait after a store failed."`
	BackoffMax time.Duration `toml:"backoff_max" range:"1ms:1h" doc:"Longest wait."`
	RateLimit  int           `toml:"rate_limit" range:"0:10000000" doc:"Rows a second while draining; 0 is no limit."`
}

// API says where the local interface listens.
type API struct {
	Socket         string   `toml:"socket" path:"required" doc:"Unix socket, at most 107 bytes. Without a value here and with --state-dir DIR: DIR/scanonce.sock."`
	SocketGroup    string   `toml:"socket_group" doc:"Group that may use the socket, if it exists. Empty: the agent's own."`
	Listen         string   `toml:"listen" doc:"Loopback address and port to listen on as well, for example \"127.0.0.1:7411\". Empty: none."`
	TokenFile      string   `toml:"token_file" path:"optional" doc:"File with the token for listen. Empty: keys/api.token in the state folder, made by the agent."`
	AllowedHosts   []string `toml:"allowed_hosts" doc:"Host names, without port, under which listen may be called."`
	AllowedOrigins []string `toml:"allowed_origins" doc:"Origins of web pages that may call, for example \"http://pms.local:8080\"."`
}

// Events bounds the stream of local events.
type Events struct {
	MaxEvents int           `toml:"max_events" range:"1:10000000" doc:"Events kept for clients that resume."`
	Retention time.Duration `toml:"retention" range:"1s:8760h" doc:"How long they are kept."`
}

// Batch says what counts as a stored batch.
type Batch struct {
	Count         int           `toml:"count" range:"2:10000" doc:"This many frames within the time below are a stored batch."`
	Within        time.Duration `toml:"within" range:"1ms:1m" doc:"See count."`
	RepeatHorizon time.Duration `toml:"repeat_horizon" range:"1m:87600h" doc:"A batch sent again within this time waits for a person."`
}

// Clock bounds the normalized clock.
type Clock struct {
	Alarm time.Duration `toml:"alarm" range:"1s:24h" doc:"Deviation from the reference that raises an alarm. Further ahead than this, the clock steps back at once."`
}

// Audit bounds the audit trail.
type Audit struct {
	RetentionDays int `toml:"retention_days" range:"1:36500" doc:"Days that audit lines are kept. 21 CFR 1304.04 asks for two years."`
}

// NDC names the directory.
type NDC struct {
	Directory string `toml:"directory" path:"optional" doc:"Index written by ndc import, or a text file with one hyphenated NDC a line. Empty: none."`
}

// Wedge says how accepted scans are typed.
type Wedge struct {
	Layout string `toml:"layout" enum:"us|uk|de|fr" doc:"The keyboard layout that the desktop is set to."`
	GS     string `toml:"gs" doc:"What is typed where a code has GS, one character. GS itself is Ctrl with the key of ]. Empty: nothing."`
	End    string `toml:"end" enum:"enter|tab|none" doc:"The key behind each scan."`
}

// RxProfile recognizes a pharmacy's own prescription labels.
type RxProfile struct {
	Name    string `toml:"name" doc:"Its name, unique: 1 to 32 of A-Z a-z 0-9 _ . -. Required."`
	Pattern string `toml:"pattern" doc:"RE2 regular expression with the group rx, and refill and store if the label has them: '^RX(?P<rx>\\d{7})-(?P<refill>\\d\\d)$'. Required."`
}

// Scanner is one scanner or base station.
type Scanner struct {
	ID               string          `toml:"id" doc:"Its name, unique in the facility: 1 to 32 of A-Z a-z 0-9 _ . -. Required."`
	Transport        string          `toml:"transport" enum:"serial|hid-pos|hid-keyboard" doc:"How it is attached."`
	Path             string          `toml:"path" path:"optional" doc:"Serial: device node, symlink to it, or pseudo-terminal. It may be absent at the start. Not with usb."`
	USB              string          `toml:"usb" doc:"USB vendor and product id, \"vvvv:pppp\", or with serial number, \"vvvv:pppp:serial\", as scanonce devices shows them. HID: required. Serial: in place of path; the port is found whatever its node is called."`
	Port             string          `toml:"port" doc:"With usb: USB port path, for example \"1-1.2\", where several alike have no serial number, or the same one."`
	Mode             string          `toml:"mode" enum:"exclusive|listen|grab" doc:"HID: take the device alone, listen beside other programs, or, of a hid-keyboard, take its keys and pass them on. A hid-keyboard without this key: listen."`
	Force            bool            `toml:"force" doc:"HID: allow exclusive on a keyboard interface. It takes the keyboard away from everything else."`
	Baud             int             `toml:"baud" range:"300:4000000" doc:"Serial: bits a second."`
	Framing          string          `toml:"framing" enum:"line|cr|lf|crlf|stx-etx|acknak|ssi" doc:"Serial: what ends a message. line: CR, LF or CRLF. acknak: as line, and the scanner waits for ACK or NAK. ssi: packets of Zebra's Simple Serial Interface, which are answered and marked when they come again."`
	InterByteTimeout time.Duration   `toml:"inter_byte_timeout" range:"1ms:10s" doc:"A message with a longer gap inside is incomplete, and no scan. A hid-keyboard without this key: \"100ms\"; people type more slowly."`
	Layout           string          `toml:"layout" enum:"us|uk|de|fr" doc:"HID keyboard: the layout that the scanner is set to."`
	GSSubstitute     string          `toml:"gs_substitute" doc:"One character that the scanner sends in place of GS, outside GS1's character set 82. Empty: none."`
	GunDigits        int             `toml:"gun_digits" range:"0:4" doc:"Digits of the gun's address in front of each message of a base station; 0 is none."`
	BareDigits       string          `toml:"bare_digits" enum:"|ndc11|ean8" doc:"What 8 or 11 digits without identifier are. Empty: refused as ambiguous."`
	SymbologyPrefix  string          `toml:"symbology_prefix" doc:"What the scanner sends in place of or before the ] of an AIM identifier. Empty: nothing."`
	Retries          int             `toml:"retries" range:"0:10" doc:"acknak, ssi: how often the scanner sends a message again without an answer."`
	RetryInterval    time.Duration   `toml:"retry_interval" range:"1ms:1m" doc:"acknak, ssi: how long it waits each time."`
	MarksResends     bool            `toml:"marks_resends" doc:"The scanner marks what it sends again, as ssi does, with or without this key. Of an acknak scanner it says that nothing is sent again that could be taken for the next item."`
	Shared           bool            `toml:"shared" doc:"Several agents hear this scanner under the same id."`
	Wedge            bool            `toml:"wedge" doc:"Accepted scans are also typed, as if the scanner were a keyboard, without identifier, for an application that knows no other scanners. Not beside listen or grab, whose keys the application has."`
	ScanType         window.ScanType `toml:"scan_type" doc:"What its scans are until the user says otherwise."`
	Feedback         Feedback        `toml:"feedback"`
}

// Feedback is what a device is told, byte for byte; empty is nothing.
type Feedback struct {
	Good      string `toml:"good" doc:"Written to the device after an accepted scan, after the framing's own answer: up to 64 ASCII characters, for example \"\\u0007\"."`
	Duplicate string `toml:"duplicate" doc:"The same after a duplicate."`
	Reject    string `toml:"reject" doc:"The same after a scan that was refused or not accepted."`
	Profile   string `toml:"profile" enum:"|zebra-ssi|honeywell-host-ack|datalogic" doc:"The bytes for a family of scanners, where the keys above are empty. honeywell-host-ack: Host ACK must be on. zebra-ssi needs framing = \"ssi\"."`
}

// Default returns the built-in defaults. They lack facility_uuid, so they do not validate as they are.
func Default() *Config {
	return &Config{
		Agent:      Agent{StateDir: "/var/lib/scanonce", LogLevel: "info"},
		Window:     window.Defaults(),
		Counter:    Counter{ModeIdle: 2 * time.Minute, QuantityTimeout: time.Minute, RxContext: 2 * time.Minute},
		Spool:      Spool{MaxRecords: 1000000, MaxBytes: 2 << 30, WarnAt: 0.8, SegmentRecords: 100000},
		Claim:      Claim{Backend: "embedded", TTL: time.Minute, Timeout: time.Second},
		Ledger:     Ledger{Backend: "embedded"},
		ClaimState: ClaimState{Backend: "embedded", TTL: 15 * time.Minute, PendTTL: 720 * time.Hour},
		PA:         PA{Backend: "embedded", RequestWindow: "date", Zone: "UTC"},
		Redis:      Redis{Addrs: []string{}, Mode: "single"},
		Postgres:   Postgres{ConnectTimeout: 5 * time.Second, StatementTimeout: 10 * time.Second},
		DynamoDB:   DynamoDB{Table: "scanonce_claims"},
		Forward:    Forward{Batch: 500, BackoffMin: 100 * time.Millisecond, BackoffMax: 5 * time.Second},
		API: API{Socket: "/run/scanonce/scanonce.sock", SocketGroup: "scanonce",
			AllowedHosts: []string{"localhost", "127.0.0.1"}, AllowedOrigins: []string{}},
		Events: Events{MaxEvents: 10000, Retention: 24 * time.Hour},
		Batch:  Batch{Count: 10, Within: 2 * time.Second, RepeatHorizon: 2160 * time.Hour},
		Clock:  Clock{Alarm: 5 * time.Minute},
		Audit:  Audit{RetentionDays: 730},
		Wedge:  Wedge{Layout: "us", GS: "\x1d", End: "enter"},
	}
}

// DefaultScanner returns the defaults of a [[scanner]] table. It lacks id and path.
func DefaultScanner() Scanner {
	return Scanner{Transport: "serial", Mode: "exclusive", Baud: 9600, Framing: "line",
		InterByteTimeout: 200 * time.Millisecond, Layout: "us", RetryInterval: 2 * time.Second,
		ScanType: window.Dispense}
}

// Scanner returns the scanner with the given id, nil if there is none.
func (c *Config) Scanner(id string) *Scanner {
	for i := range c.Scanners {
		if c.Scanners[i].ID == id {
			return &c.Scanners[i]
		}
	}
	return nil
}

// SpoolKeyFile is where the spool's key is: spool.key_file, or else in the state folder.
func (c *Config) SpoolKeyFile() string {
	if c.Spool.KeyFile != "" {
		return c.Spool.KeyFile
	}
	return filepath.Join(c.Agent.StateDir, "keys", "spool.key")
}

// TokenFile is where the token for api.listen is: api.token_file, or else in the state folder. In the
// latter case the agent makes it, mode 0600.
func (c *Config) TokenFile() string {
	if c.API.TokenFile != "" {
		return c.API.TokenFile
	}
	return filepath.Join(c.Agent.StateDir, "keys", "api.token")
}

// Files lists the files that were read, in order.
func (c *Config) Files() []string { return c.files }
