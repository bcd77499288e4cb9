package testenv

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// RedisTLS starts a server that listens with TLS besides, with a certificate for 127.0.0.1, and lets nobody in there
// without one of the authority. It returns the address.
func RedisTLS(t testing.TB, a *Authority, cert, key string, args ...string) (s *Redis, addr string) {
	t.Helper()
	port := strconv.Itoa(FreePort(t))
	s = StartRedis(t, append([]string{"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.File(t),
		"--tls-auth-clients", "yes"}, args...)...)
	return s, net.JoinHostPort("127.0.0.1", port)
}

// RedisTLSCase is a way to reach a server and what must come of it.
type RedisTLSCase struct {
	Name, Addr   string
	TLS          *tls.Config
	Detail, Hint string // parts of the mistake that is told; "" if it works
}

// RedisTLSCases are the ways to servers with TLS.
func RedisTLSCases(t testing.TB) []RedisTLSCase {
	t.Helper()
	right, wrong := MustAuthority(t), MustAuthority(t)
	cert, key := right.Files(t, "127.0.0.1")
	_, addr := RedisTLS(t, right, cert, key)
	cert, key = right.ExpiredFiles(t, "127.0.0.1")
	_, expired := RedisTLS(t, right, cert, key)
	_, port, _ := net.SplitHostPort(addr)
	// config trusts an authority, and has the certificate of the files.
	config := func(ca *Authority, files ...string) *tls.Config {
		c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		c.RootCAs.AppendCertsFromPEM(ca.PEM)
		if len(files) > 0 {
			pair, err := tls.LoadX509KeyPair(files[0], files[1])
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		return c
	}
	files := func(cert, key string) []string { return []string{cert, key} }
	mine := files(right.Files(t, "agent"))
	old := config(right, mine...)
	old.MaxVersion = tls.VersionTLS12
	bare := config(right)
	bare.MaxVersion = tls.VersionTLS12
	return []RedisTLSCase{
		{"all right", addr, config(right, mine...), "", ""},
		{"TLS 1.2", addr, old, "", ""},
		{"another authority", addr, config(wrong, mine...), "cannot trust the Redis server's certificate", "redis.ca_file"},
		{"another host", "localhost:" + port, config(right, mine...), "localhost", "the name in the certificate"},
		{"an expired certificate", expired, config(right, mine...), "expired", "this machine's date"},
		{"no certificate of one's own", addr, config(right), "refuses the TLS connection", "redis.cert_file"},
		{"none by TLS 1.2", addr, bare, "refuses the TLS connection", "redis.cert_file"},
		{"one of another authority", addr, config(right, files(wrong.Files(t, "agent"))...), "refuses the TLS connection", "redis.cert_file"},
		{"one that has expired", addr, config(right, files(right.ExpiredFiles(t, "agent"))...), "refuses the TLS connection", "redis.cert_file"},
		{"plaintext beyond this machine", "192.0.2.1:6379", nil, "cannot send claims and the password to 192.0.2.1 in plaintext", "redis.tls = true"},
		{"plaintext to a name", "redis.example:6379", nil, "to redis.example in plaintext", "redis.tls = true"},
	}
}

// PastReset calls f again while the connection is reset under it, and returns what it comes to: a server that ends a
// connection over which it was being written to may have its reason lost.
func PastReset(f func() error) (err error) {
	for range 20 {
		if err = f(); err == nil || !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			break
		}
	}
	return err
}
