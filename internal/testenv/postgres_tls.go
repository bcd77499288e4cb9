package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is a certificate authority of a test.
type Authority struct {
	PEM  []byte // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// The validity of every certificate here.
func validity() (from, until time.Time) {
	return time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
}

// NewAuthority makes a certificate authority that nobody else knows.
func NewAuthority() (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	from, until := validity()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate authority: %w", err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return &Authority{PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert: c, key: key}, nil
}

// Issue makes a certificate for the host names and addresses, good for servers and clients, and its key,
// both PEM.
func (a *Authority) Issue(hosts ...string) (cert, key []byte, err error) {
	_, until := validity()
	return a.issue(until, hosts...)
}

// IssueExpired is Issue of a certificate that was valid once.
func (a *Authority) IssueExpired(hosts ...string) (cert, key []byte, err error) {
	from, _ := validity()
	return a.issue(from.AddDate(1, 0, 0), hosts...)
}

// Files is Issue into two files.
func (a *Authority) Files(t testing.TB, hosts ...string) (cert, key string) {
	t.Helper()
	c, k, err := a.Issue(hosts...)
	return pemFiles(t, c, k, err)
}

// ExpiredFiles is IssueExpired into two files.
func (a *Authority) ExpiredFiles(t testing.TB, hosts ...string) (cert, key string) {
	t.Helper()
	c, k, err := a.IssueExpired(hosts...)
	return pemFiles(t, c, k, err)
}

func pemFiles(t testing.TB, c, k []byte, err error) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := errors.Join(err, os.WriteFile(cert, c, 0o600), os.WriteFile(key, k, 0o600)); err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// File writes the authority's own certificate.
func (a *Authority) File(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, a.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// MustAuthority is NewAuthority for a test.
func MustAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *Authority) issue(until time.Time, hosts ...string) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, err
	}
	from, _ := validity()
	c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: hosts[0]}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot issue a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), nil
}
