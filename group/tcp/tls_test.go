package tcp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// certificate makes one that is its own authority.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ranks"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must.Do(t, err)
	leaf, err := x509.ParseCertificate(der)
	must.Do(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// mutual returns a configuration by which ranks know each other.
func mutual(t *testing.T) (*tls.Config, *x509.CertPool) {
	cert, pool := certificate(t)
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}, pool
}

func TestGroupOverTLS(t *testing.T) {
	t.Parallel()
	conf, _ := mutual(t)
	open := func(t *testing.T, n int) []group.Group {
		cfg := pairConfig(t)
		cfg.Size, cfg.TLS = n, conf
		gs := make([]group.Group, n)
		for r, g := range several(t, cfg) {
			gs[r] = g
		}
		return gs
	}
	leave := func(g group.Group) { g.(*Group).Leave(nil) }
	grouptest.Run(t, open, &grouptest.Options{Sizes: []int{2}, Real: true, Reuse: true, Leave: leave})
}

// With mutual TLS ranks need no secret, and a process without a certificate is refused.
func TestMutualTLS(t *testing.T) {
	t.Setenv(SecretVariable, "")
	cfg := pairConfig(t)
	conf, pool := mutual(t)
	cfg.Secret, cfg.TLS = nil, conf
	if !cfg.authenticates() {
		t.Error("mutual TLS does not count as proof")
	}
	a, b := pair(t, cfg)
	both(t, a, b)
	must.Do(t, b.Send(limited(t), 0, 1, make([]byte, 3<<10)))
	if got, err := a.Recv(limited(t), 1, 1); err != nil || len(got) != 3<<10 {
		t.Fatalf("Recv = %d bytes, %v", len(got), err)
	}
	raw, err := net.Dial("tcp", a.host.addr)
	must.Do(t, err)
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	hi := hello{purpose: toLink, from: 1, size: 2, session: a.host.session, job: "pair"}
	if err := introduce(newConn(c), nil, hi); err == nil {
		t.Error("a rank without a certificate was let in")
	}
	if err := dialTime(t, a.host.addr, nil, hi); err == nil {
		t.Error("a rank without TLS was let in")
	}
	both(t, a, b)
}
