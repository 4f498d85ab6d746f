package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrOpen reports an address beyond this host where nobody would have to prove
// anything.
var ErrOpen = errors.New("open to strangers")

const unixPrefix = "unix:"

func isUnix(addr string) bool { return strings.HasPrefix(addr, unixPrefix) }

func joinHost(host, port string) string { return net.JoinHostPort(strings.Trim(host, "[]"), port) }

// split returns the network and address as package net wants them.
func split(addr string) (network, address string) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		return "unix", path
	}
	return "tcp", addr
}

// addrText returns an address of package net as this package writes it.
func addrText(a net.Addr) string {
	if a.Network() == "unix" {
		return unixPrefix + a.String()
	}
	return a.String()
}

// listen listens at addr, unless that is beyond this host and strangers would
// not be kept out.
func (c *Config) listen(ctx context.Context, addr string) (net.Listener, error) {
	network, address := split(addr)
	ln, err := new(net.ListenConfig).Listen(ctx, network, address)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		// The name stands for this host as others see it, behind an address that
		// is not this host's own.
		if _, port, e := net.SplitHostPort(address); e == nil {
			ln, err = new(net.ListenConfig).Listen(ctx, network, ":"+port)
		}
	}
	if err != nil {
		return nil, err
	}
	if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !c.proven() {
		ln.Close()
		return nil, fmt.Errorf("listen at %v: %w: set a secret (Config.Secret or %s) or TLS with verified client certificates",
			a, ErrOpen, SecretVariable)
	}
	return ln, nil
}

// socketIn returns an address for a new socket in the folder of a unix address.
func socketIn(folder string, rank int) string {
	return fmt.Sprintf("%s%s", unixPrefix, filepath.Join(folder, fmt.Sprintf("%d-%s.sock", rank, rand.Text()[:8])))
}

// place returns where a rank other than 0 listens, which reached rank 0 by c.
func (c *Config) place(rank int, conn net.Conn) string {
	local := conn.LocalAddr()
	switch {
	case isUnix(c.Listen):
		return socketIn(strings.TrimPrefix(c.Listen, unixPrefix), rank)
	case c.Listen != "":
		return c.Listen
	case local.Network() == "unix":
		return socketIn(filepath.Dir(conn.RemoteAddr().String()), rank)
	}
	host, _, err := net.SplitHostPort(local.String())
	if err != nil {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, "0")
}

// advertised returns the address of ln for others: where it listens at all
// addresses, the one by which rank 0 is reached.
func advertised(ln net.Listener, conn net.Conn) string {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok || !a.IP.IsUnspecified() || conn == nil {
		return addrText(ln.Addr())
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return addrText(ln.Addr())
	}
	return net.JoinHostPort(host, fmt.Sprint(a.Port))
}
