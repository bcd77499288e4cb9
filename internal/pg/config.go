// Package pg is what the stores in PostgreSQL have in common: the configuration, few connections that live
// only while they are used, and the words for errors.
package pg

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SchemaVersion is the version of the database schema that this program needs: the number of the migrations
// of sync/ledger, which make the tables of all stores.
const SchemaVersion = 1

// Config says how to reach the database. The zero value of all but DSN is a default.
type Config struct {
	DSN              string               // URL or keywords as in libpq; no password in it
	PasswordFile     string               // read at each connect, so that it can be changed under way
	ConnectTimeout   time.Duration        // of one connect with its setup; 5 s
	StatementTimeout time.Duration        // the server's, for each statement; 10 s
	IdleTimeout      time.Duration        // an unused connection is closed after it; 3 s
	MaxConns         int                  // at once, exports apart; 3
	Agent            string               // ends the application_name
	Boot             func() time.Duration // elapsed time, for Clock; the system's CLOCK_BOOTTIME
}

func (c Config) withDefaults() Config {
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.StatementTimeout = cmp.Or(c.StatementTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 3*time.Second)
	c.MaxConns = cmp.Or(c.MaxConns, 3)
	return c
}

// ConfigError is an error that stays until a person changes something: credentials, schema, certificates.
// An unreachable server is none. Find it with errors.As.
type ConfigError struct {
	Detail string // what is wrong
	Hint   string // what to do
}

func (e *ConfigError) Error() string { return e.Detail + ": " + e.Hint }

// RefusedError says that the server refuses a value of the statement itself (SQLSTATE class 22 or 23): it does so at
// each attempt, until somebody changes the database. The server's message is not in it, as that may quote the value.
type RefusedError struct {
	Code       string // SQLSTATE
	Constraint string // "" if none was named
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the server refuses a value (%s)", strings.TrimSpace(e.Code+" "+e.Constraint))
}

// passwordWord finds a password in a DSN of keywords.
var passwordWord = regexp.MustCompile(`(?i)(^|[\s'])(ssl)?password\s*=`)

// Validate finds what can be known without the server: a DSN that can't be read or has a password in it, and
// one that could send rows in clear over a network.
func (c Config) Validate() error { return c.validate(false) }

// ValidateOwner is Validate for a DSN that may have a password in it: one that is read from a file of its own.
func (c Config) ValidateOwner() error { return c.validate(true) }

func (c Config) validate(password bool) error {
	wrong := func(detail, hint string) error {
		return fmt.Errorf("cannot use PostgreSQL: %w", &ConfigError{detail, hint})
	}
	if c.DSN == "" {
		return wrong("there is no postgres.dsn", "write one, for example postgres://scanonce@db.example.com/scanonce?sslmode=verify-full")
	}
	if c.ConnectTimeout < 0 || c.StatementTimeout < 0 || c.IdleTimeout < 0 || c.MaxConns < 0 {
		return wrong("a timeout or a number of connections is negative", "write a positive value, or none for the default")
	}
	has, err := hasPassword(c.DSN)
	if err != nil {
		// Not with the parser's words: they quote the text.
		return wrong("the DSN is not a URL", "write postgres://USER@HOST/DATABASE?sslmode=verify-full")
	}
	if has && !password {
		return wrong("there is a password in postgres.dsn", "write it into a file, take it out of the DSN, and name the file in postgres.password_file")
	}
	cc, err := c.parse()
	if err != nil {
		return fmt.Errorf("cannot use PostgreSQL: %w", err)
	}
	for _, f := range append([]*pgconn.FallbackConfig{{Host: cc.Host, TLSConfig: cc.TLSConfig}}, cc.Fallbacks...) {
		if f.TLSConfig == nil && !isLocal(f.Host) {
			return wrong(fmt.Sprintf("its DSN allows a connection to %s without TLS", f.Host), "write sslmode=verify-full and sslrootcert=FILE into the DSN")
		}
	}
	return nil
}

// hasPassword looks for one by the syntax, as the parser also takes it from the environment.
func hasPassword(dsn string) (bool, error) {
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return passwordWord.MatchString(dsn), nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return false, errors.New("not a URL")
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password") || u.Query().Has("sslpassword"), nil
}

// isLocal says that the host is this machine: a loopback address or the folder of a socket.
func isLocal(host string) bool {
	if filepath.IsAbs(host) || strings.HasPrefix(host, "@") || host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// parse reads the DSN and the certificate files that it names.
func (c Config) parse() (*pgx.ConnConfig, error) {
	cc, err := pgx.ParseConfig(c.DSN)
	if err == nil {
		return cc, nil
	}
	// The parser's own text quotes the DSN.
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) && parse.Unwrap() != nil {
		err = parse.Unwrap()
	}
	return nil, &ConfigError{fmt.Sprintf("the DSN or a file that it names cannot be read (%v)", err),
		"write postgres://USER@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE"}
}

// ConnConfig reads the DSN, its certificate files and the password file anew.
func (c Config) ConnConfig() (*pgx.ConnConfig, error) {
	cc, err := c.parse()
	if err != nil {
		return nil, err
	}
	if c.PasswordFile != "" {
		b, err := os.ReadFile(c.PasswordFile)
		if err != nil {
			return nil, &ConfigError{fmt.Sprintf("the password file cannot be read (%v)", err), "make postgres.password_file readable for the agent"}
		}
		cc.Password = strings.TrimRight(string(b), "\r\n")
	}
	cc.ConnectTimeout = c.ConnectTimeout / time.Duration(servers(cc)) // of each: one that never answers leaves time for the next
	cc.RuntimeParams["application_name"] = strings.TrimSpace("scanonce " + c.Agent)
	return cc, nil
}

// servers counts the servers of a DSN. With several the first that target_session_attrs fits is used.
func servers(cc *pgx.ConnConfig) int {
	type address struct {
		host string
		port uint16
	}
	all := map[address]bool{{cc.Host, cc.Port}: true}
	for _, f := range cc.Fallbacks {
		all[address{f.Host, f.Port}] = true
	}
	return len(all)
}

// NewerSchema is the error about a schema from the future.
func NewerSchema(version int) error {
	return &ConfigError{fmt.Sprintf("the database schema has version %d, newer than this program's %d", version, SchemaVersion), "install a newer scanonce"}
}

const migrateHint = "run scanonce ledger migrate with the owner's DSN"

// Explain finds the words for an error of pgx: a ConfigError where a person must act. The end of ctx goes
// before all that followed from it. owner says that it was a migration.
func Explain(ctx context.Context, err error, owner bool) error {
	if ctx.Err() != nil {
		if context.Cause(ctx) == errClosed {
			return errClosed
		}
		return ctx.Err()
	}
	if pg := ServerError(err); pg != nil {
		return explainServer(pg, owner)
	}
	if e := explainTLS(err); e != nil {
		return e
	}
	var config *ConfigError
	if errors.As(err, &config) {
		return config
	}
	// One line, whatever the number of addresses that were tried.
	return fmt.Errorf("PostgreSQL: %s", strings.Join(strings.Fields(err.Error()), " "))
}

// ServerError returns the server's own error, nil if err is none.
func ServerError(err error) *pgconn.PgError {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg
	}
	return nil
}

func explainServer(pg *pgconn.PgError, owner bool) error {
	said := fmt.Sprintf("the server says: %s (%s)", pg.Message, pg.Code)
	switch pg.Code {
	case "28P01":
		return &ConfigError{said, "write the login's password into postgres.password_file"}
	case "3D000":
		return &ConfigError{said, "create the database, or name the right one in the DSN"}
	case "42501":
		if owner {
			return &ConfigError{said, "migrate with the DSN of the database's owner, who may also create roles, or let a superuser create role scanonce_agent first"}
		}
		return &ConfigError{said, "grant the role scanonce_agent to the agent's login: GRANT scanonce_agent TO …"}
	case "3F000":
		if owner {
			return &ConfigError{said, "create the schema that the DSN's search_path names"}
		}
		return &ConfigError{said, migrateHint}
	case readOnly:
		return &ConfigError{said, "name the primary in the DSN, or all servers, and target_session_attrs=read-write"}
	case "42P01", "42703":
		return &ConfigError{said, migrateHint}
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "28":
		return &ConfigError{said, "check the login in the DSN, its sslmode, sslcert and sslkey, and the server's pg_hba.conf"}
	case "22", "23":
		return &RefusedError{pg.Code, pg.ConstraintName}
	}
	return errors.New(said)
}

func explainTLS(err error) error {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		verify    *tls.CertificateVerificationError
		remote    *net.OpError
	)
	switch {
	case errors.As(err, &authority):
		return &ConfigError{"the server's certificate is not from the authority that the DSN trusts", "name the right file in the DSN's sslrootcert"}
	case errors.As(err, &host):
		return &ConfigError{fmt.Sprintf("the server's certificate is for another host (%v)", host), "write the host's name as in the certificate, or give the server a certificate for it"}
	case errors.As(err, &verify):
		return &ConfigError{fmt.Sprintf("the server's certificate is not valid (%v)", verify.Err), "give the server a valid certificate, and check this machine's date"}
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert of the server's
		return &ConfigError{fmt.Sprintf("the server refuses the TLS connection (%v)", remote.Err), "name a valid certificate from an authority that the server trusts in the DSN's sslcert and sslkey"}
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return &ConfigError{"the server does not speak TLS", "set ssl = on at the server"}
	}
	return nil
}
