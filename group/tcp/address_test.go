package tcp

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// hostnames resolves names as a cluster might.
func hostnames(_ context.Context, name string) ([]string, error) {
	addrs := map[string][]string{
		"in-hosts-file": {"127.0.1.1"},
		"service":       {"203.0.113.7"},
		"both":          {"203.0.113.7", "127.0.0.1", "10.1.2.3"},
	}[name]
	if addrs == nil {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	return addrs, nil
}

// Rank 0 listens where the others reach it by its name, whatever the name stands
// for on its own host.
func TestPlacesOfAName(t *testing.T) {
	for _, c := range []struct {
		address          string
		proven, unproven []string // nil: an error
	}{
		{"127.0.0.1:1", []string{"127.0.0.1:1", ":1"}, []string{"127.0.0.1:1", ":1"}},
		{"localhost:1", []string{"localhost:1", ":1"}, []string{"localhost:1", ":1"}},
		{":1", []string{":1", ":1"}, []string{":1", ":1"}},
		{"in-hosts-file:1", []string{":1"}, []string{"127.0.1.1:1", ":1"}},
		{"service:1", []string{"203.0.113.7:1", ":1"}, []string{"203.0.113.7:1", ":1"}},
		{"both:1", []string{"203.0.113.7:1", "10.1.2.3:1", ":1"}, []string{"203.0.113.7:1", "127.0.0.1:1", "10.1.2.3:1", ":1"}},
		{"not-ready:1", []string{":1"}, nil},
		{"no port", nil, nil},
	} {
		for secret, want := range map[string][]string{"s": c.proven, "": c.unproven} {
			cfg := Config{Secret: []byte(secret), lookup: hostnames}
			got, err := cfg.listenAddrs(limited(t), c.address)
			if !slices.Equal(got, want) || (err == nil) != (want != nil) {
				t.Errorf("places of %s with secret %q = %q, %v; want %q", c.address, secret, got, err, want)
			}
		}
	}
}

// A name that stands for a service, or does not resolve yet, makes rank 0 listen at all
// addresses, if connections are authenticated.
func TestListenByName(t *testing.T) {
	for _, name := range []string{"service:0", "not-ready:0", "in-hosts-file:0", "203.0.113.7:0"} {
		cfg := Config{Secret: testSecret, lookup: hostnames, listener: new(net.ListenConfig).Listen}
		ln, err := cfg.listen(limited(t), name)
		if err != nil {
			t.Errorf("listen at %s = %v; want no error", name, err)
			continue
		}
		if a := ln.Addr().(*net.TCPAddr); !a.IP.IsUnspecified() {
			t.Errorf("listen at %s listens at %v; want all addresses", name, a)
		}
		if host, _, err := net.SplitHostPort(advertised(ln, nil)); err != nil || net.ParseIP(host).IsUnspecified() {
			t.Errorf("address for others = %s, %v; want one that they can use", host, err)
		}
		ln.Close()
	}
	cfg := Config{lookup: hostnames, listener: new(net.ListenConfig).Listen}
	if _, err := cfg.listen(limited(t), "service:0"); !errors.Is(err, ErrOpen) {
		t.Errorf("listen at a service without a secret = %v; want %v", err, ErrOpen)
	}
	if _, err := cfg.listen(limited(t), "not-ready:0"); err == nil || errors.Is(err, ErrOpen) {
		t.Errorf("listen at a name that is not known, without a secret = %v; want why", err)
	}
	if _, err := cfg.listen(limited(t), "nonsense"); !errors.Is(err, group.ErrInvalid) {
		t.Errorf("listen at an address without a port = %v; want %v", err, group.ErrInvalid)
	}
}

// A rank on the host of rank 0 that reaches it by loopback still listens where
// ranks of other hosts reach it, if rank 0 goes by a name.
func TestPlaceBesideRank0(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	must.Do(t, err)
	defer conn.Close()
	for _, c := range []struct{ addr, secret, want string }{
		{"127.0.0.1:7", "s", "127.0.0.1:0"},
		{"localhost:7", "s", "127.0.0.1:0"},
		{"node7:7", "s", ":0"},
		{"node7:7", "", "127.0.0.1:0"},
	} {
		cfg := Config{Secret: []byte(c.secret)}
		if got := cfg.listenAddr(1, c.addr, conn); got != c.want {
			t.Errorf("place beside rank 0 at %s with secret %q = %s; want %s", c.addr, c.secret, got, c.want)
		}
	}
}

// An address that is in use is waited for, but not for long; a socket that a
// process left behind is not in use.
func TestAddressesInUse(t *testing.T) {
	t.Parallel()
	cfg := Config{Secret: testSecret, lookup: hostnames, listener: new(net.ListenConfig).Listen}
	var ln net.Listener
	for try := range 10 { // another program may take the port in between
		old, err := cfg.listen(limited(t), "127.0.0.1:0")
		must.Do(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := cfg.listen(ctx, old.Addr().String()); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("listen where another does = %v; want %v", err, syscall.EADDRINUSE)
		}
		cancel()
		time.AfterFunc(50*time.Millisecond, func() { old.Close() })
		if ln, err = cfg.listen(limited(t), old.Addr().String()); err == nil {
			ln.Close()
			break
		}
		if try == 9 {
			t.Fatalf("listen where another does not any more = %v", err)
		}
	}
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must.Do(t, err)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if ln, err = cfg.listen(limited(t), unixPrefix+path); err != nil {
		t.Fatalf("listen at the socket of a dead process = %v", err)
	}
	if !strings.HasSuffix(addrText(ln.Addr()), path) {
		t.Errorf("listens at %v; want %s", ln.Addr(), path)
	}
	ln.Close()
}
