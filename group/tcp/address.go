package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/group"
)

// ErrOpen reports an address beyond this host where nobody would have to prove
// anything.
var ErrOpen = errors.New("open to strangers")

// MaxAddress bounds the bytes of an address.
const MaxAddress = 512

// CheckAddress returns an error that wraps [group.ErrInvalid] unless addr is text
// that can be an address: not empty, not too long, without control characters.
// It is for those who implement [Rendezvous].
func CheckAddress(addr string) error {
	if addr == "" || len(addr) > MaxAddress || !utf8.ValidString(addr) || strings.ContainsFunc(addr, unicode.IsControl) {
		return fmt.Errorf("%d bytes are no address: %w", len(addr), group.ErrInvalid)
	}
	return nil
}

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
	places := []string{address}
	if network == "tcp" {
		var err error
		if places, err = c.places(ctx, address); err != nil {
			return nil, err
		}
	}
	var ln net.Listener
	err := error(syscall.EADDRNOTAVAIL)
	for i := 0; i < len(places) && errors.Is(err, syscall.EADDRNOTAVAIL); i++ {
		ln, err = listenSoon(ctx, network, places[i])
	}
	if err != nil {
		return nil, err
	}
	if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !c.proven() {
		ln.Close()
		return nil, fmt.Errorf("listen at %s: %w: set a secret (Config.Secret or %s) or TLS with verified client certificates",
			addr, ErrOpen, SecretVariable)
	}
	return ln, nil
}

// places returns where to listen for an address, in the order in which to try.
//
// A name is how others reach this host. What it stands for here may be another
// matter: nothing yet, as where a cluster names what is ready; a service that is
// in front of this host; or loopback, as where a host has its own name in
// /etc/hosts. Then all addresses serve, which needs proof.
func (c *Config) places(ctx context.Context, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w: %w", address, group.ErrInvalid, err)
	}
	all := net.JoinHostPort("", port)
	if !isName(host) {
		return []string{address, all}, nil
	}
	addrs, err := c.lookup(ctx, host)
	if err != nil && !c.proven() {
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}
	var places []string
	for _, a := range addrs {
		if ip := net.ParseIP(a); !c.proven() || ip == nil || !ip.IsLoopback() {
			places = append(places, net.JoinHostPort(a, port))
		}
	}
	return append(places, all), nil
}

// isName reports whether host is the name of a host, as others may use it too.
func isName(host string) bool {
	return host != "" && host != "localhost" && net.ParseIP(host) == nil
}

// inUse is how long an address may be in use by who listened there before: the
// rank 0 of a job that starts again.
const inUse = 2 * time.Second

// listenSoon listens at an address, for which it may have to wait a moment.
func listenSoon(ctx context.Context, network, address string) (net.Listener, error) {
	for end := time.Now().Add(inUse); ; {
		ln, err := new(net.ListenConfig).Listen(ctx, network, address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return ln, err
		}
		if network == "unix" {
			removeDead(ctx, address)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// removeDead removes a socket that a process left behind which was killed.
func removeDead(ctx context.Context, path string) {
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&os.ModeSocket == 0 {
		return // a file that is no socket refuses connections too
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // where that does not go the address stays in use
	}
}

// socketIn returns an address for a new socket in the folder of a unix address.
func socketIn(folder string, rank int) string {
	return fmt.Sprintf("%s%s", unixPrefix, filepath.Join(folder, fmt.Sprintf("%d-%s.sock", rank, rand.Text()[:8])))
}

// place returns where a rank other than 0 listens, which reached rank 0 at addr
// by conn.
func (c *Config) place(rank int, addr string, conn net.Conn) string {
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
	if name, _, err := net.SplitHostPort(addr); err == nil && isName(name) && isLoopback(local) && c.proven() {
		host = "" // the ranks of other hosts reach rank 0 by another way
	}
	return net.JoinHostPort(host, "0")
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// advertised returns the address of ln for others. Where it listens at all
// addresses that is the one by which rank 0 is reached, or others are.
func advertised(ln net.Listener, conn net.Conn) string {
	a, ok := ln.Addr().(*net.TCPAddr)
	if !ok || !a.IP.IsUnspecified() {
		return addrText(ln.Addr())
	}
	ip := outward()
	if conn != nil && !isLoopback(conn.LocalAddr()) {
		if local, ok := conn.LocalAddr().(*net.TCPAddr); ok {
			ip = local.IP.String()
		}
	}
	return net.JoinHostPort(ip, fmt.Sprint(a.Port))
}

// outward returns this host's address towards others, or that of loopback where
// there are no others.
func outward() string {
	// An address for documentation. Nothing is sent there: the system only
	// says which way it would go.
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		c.Close()
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
			return a.IP.String()
		}
	}
	return "127.0.0.1"
}
