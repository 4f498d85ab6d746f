package tcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// SecretVariable is the environment variable with the job's secret.
const SecretVariable = "CAIRN_SECRET"

// maxJob bounds the bytes of a job's name.
const maxJob = 256

// Config describes how a process joins a group.
type Config struct {
	// Rendezvous is how the ranks find each other: "env://" or
	// "file:///shared/path". Empty: "env://".
	Rendezvous string
	// Meet is used instead of Rendezvous if it is not nil.
	Meet Rendezvous
	// Rank and Size are this process's rank and the number of ranks. If Size is zero,
	// both come from the rendezvous.
	Rank, Size int
	// Job is a name that all ranks of a job share, of at most 256 bytes.
	// Ranks of other jobs are refused.
	Job string
	// Secret must be the same on all ranks of the job. Both ends of a connection prove
	// that they have it before anything else. Nil: the environment variable
	// CAIRN_SECRET.
	Secret []byte
	// TLS is for both sides of every connection, if it is not nil. It needs a
	// certificate; with ClientAuth set to RequireAndVerifyClientCert a secret is
	// not needed.
	TLS *tls.Config
	// Listen is the address to listen at: "host:port" with port 0 for any, or
	// "unix:/folder" for a socket in that folder. Empty: on rank 0 the address of the
	// rendezvous, on the other ranks the local address from which they reach rank 0.
	Listen string
	// Timeout is how long a rank may be silent before it counts as gone. All ranks use
	// the value of rank 0. Zero: 20 s.
	Timeout time.Duration
	// Arity is the number of connections that a rank holds to ranks below it in the
	// tree. All ranks use the value of rank 0. Zero: [tree.DefaultArity].
	Arity int
	// MaxMessage bounds the bytes of one value or message. Zero: 1 GiB.
	MaxMessage int
	// MaxSize bounds the number of ranks. Zero: 65,536.
	MaxSize int
	// IdleTimeout is how long a connection for messages may be unused before it is
	// closed. Zero: one minute.
	IdleTimeout time.Duration
	// Wrap, if it is not nil, replaces each connection. Tests use it to lose or delay
	// bytes, programs to count them; under TLS these are the encrypted bytes. A
	// CloseWrite method of the connection must stay.
	Wrap func(net.Conn) net.Conn
	// Logger receives a warning if [Join] waits for longer than a few seconds, and again
	// in growing intervals: which ranks are missing, and at which address. Nil:
	// slog.Default().
	Logger *slog.Logger

	// lookup, dialer and listener replace the functions of package net; tests set them.
	lookup   func(ctx context.Context, name string) ([]string, error)
	dialer   func(ctx context.Context, network, address string) (net.Conn, error)
	listener func(ctx context.Context, network, address string) (net.Listener, error)
	// parting, search and interval replace partingTime, searchTime and rollInterval if they
	// are not zero; tests set them.
	parting, search, interval time.Duration
}

// partingTime bounds how long a rank that closes or gives up waits until the other
// ranks have received its last messages.
func (c *Config) partingTime() time.Duration {
	return cmp.Or(c.parting, min(c.Timeout, 5*time.Second))
}

// searchTime is how long a rank looks for a new rank 0 if rank 0 no longer calls
// it, and how long it tries again if rank 0 refuses it.
func (c *Config) searchTime() time.Duration {
	return cmp.Or(c.search, max(c.Timeout, 20*time.Second))
}

// rollInterval is how long rank 0 of a group of size ranks waits between two roll calls.
func (c *Config) rollInterval(size int) time.Duration {
	return cmp.Or(c.interval, time.Second+time.Duration(size)*time.Second/4000)
}

// maxArity bounds the arity that rank 0 may set for all ranks.
const maxArity = 1 << 16

// handshakeTimeout bounds how long the handshake of a connection may take.
const handshakeTimeout = 10 * time.Second

func (c Config) withDefaults() (Config, error) {
	if c.Secret == nil {
		c.Secret = []byte(os.Getenv(SecretVariable))
	}

	if err := c.check(); err != nil {
		return c, err
	}

	c.Timeout = cmp.Or(c.Timeout, 20*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, time.Minute)
	c.Arity = cmp.Or(c.Arity, tree.DefaultArity)
	c.MaxMessage = cmp.Or(c.MaxMessage, 1<<30)
	c.MaxSize = cmp.Or(c.MaxSize, 1<<16)
	if c.Wrap == nil {
		c.Wrap = func(conn net.Conn) net.Conn { return conn }
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.lookup == nil {
		c.lookup = net.DefaultResolver.LookupHost
	}
	if c.dialer == nil {
		c.dialer = new(net.Dialer).DialContext
	}
	if c.listener == nil {
		c.listener = new(net.ListenConfig).Listen
	}

	if c.Meet == nil {
		r, err := ParseRendezvous(c.Rendezvous)
		if err != nil {
			return c, err
		}
		c.Meet = r
	}
	return c, nil
}

// check returns an error if a field is out of range.
func (c *Config) check() error {
	for _, f := range []struct {
		name     string
		negative bool
	}{
		{"Timeout", c.Timeout < 0}, {"IdleTimeout", c.IdleTimeout < 0}, {"Arity", c.Arity < 0},
		{"MaxMessage", c.MaxMessage < 0}, {"MaxSize", c.MaxSize < 0},
	} {
		if f.negative {
			return fmt.Errorf("%s of the configuration is negative: %w", f.name, group.ErrInvalid)
		}
	}

	if c.Arity > maxArity || c.Timeout > 0 && c.Timeout < time.Millisecond {
		return fmt.Errorf("arity %d (at most %d), timeout %v (at least 1ms): %w", c.Arity, maxArity, c.Timeout, group.ErrInvalid)
	}
	return CheckJob(c.Job)
}

// CheckJob returns an error that wraps [group.ErrInvalid] if the name of a job is too
// long.
func CheckJob(name string) error {
	if len(name) > maxJob {
		return fmt.Errorf("job name of %d bytes, more than %d: %w", len(name), maxJob, group.ErrInvalid)
	}
	return nil
}

// authenticates reports whether both ends of a connection must prove that they belong
// to the job.
func (c *Config) authenticates() bool {
	return len(c.Secret) > 0 || c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

// checkRank returns an error if rank or size is out of range.
func (c *Config) checkRank(rank, size int) error {
	switch {
	case size < 1 || size > c.MaxSize:
		return fmt.Errorf("group of %d ranks, at most %d: %w", size, c.MaxSize, group.ErrInvalid)
	case rank < 0 || rank >= size:
		return fmt.Errorf("rank %d of %d: %w", rank, size, group.ErrInvalid)
	}
	return nil
}

// ErrOpen reports an address that programs of other hosts can reach, while the
// configuration does not authenticate connections: any program could join.
var ErrOpen = errors.New("connections are not authenticated")

// maxAddress bounds the bytes of an address.
const maxAddress = 512

// CheckAddress returns an error that wraps [group.ErrInvalid] unless addr can be an
// address: not empty, not too long, without control characters. It is for
// implementations of [Rendezvous].
func CheckAddress(addr string) error {
	if addr == "" || len(addr) > maxAddress || !utf8.ValidString(addr) || strings.ContainsFunc(addr, unicode.IsControl) {
		return fmt.Errorf("a text of %d bytes is not an address: %w", len(addr), group.ErrInvalid)
	}
	return nil
}

const unixPrefix = "unix:"

func isUnix(addr string) bool { return strings.HasPrefix(addr, unixPrefix) }

// split returns the network and the address for package net.
func split(addr string) (network, address string) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		return "unix", path
	}
	return "tcp", addr
}

// addrText returns the text of an address of package net, the inverse of split.
func addrText(a net.Addr) string {
	if a.Network() == "unix" {
		return unixPrefix + a.String()
	}
	return a.String()
}

// listen listens at addr. It returns ErrOpen if other hosts can reach addr and
// connections are not authenticated.
func (c *Config) listen(ctx context.Context, addr string) (net.Listener, error) {
	network, address := split(addr)
	addrs := []string{address}
	if network == "tcp" {
		var err error
		if addrs, err = c.listenAddrs(ctx, address); err != nil {
			return nil, err
		}
	}

	var ln net.Listener
	err := error(syscall.EADDRNOTAVAIL)
	for i := 0; i < len(addrs) && errors.Is(err, syscall.EADDRNOTAVAIL); i++ {
		ln, err = c.listenRetry(ctx, network, addrs[i])
	}
	if err != nil {
		return nil, err
	}

	if a, ok := ln.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() && !c.authenticates() {
		ln.Close()
		return nil, fmt.Errorf("listen at %s: %w: set a secret (Config.Secret or %s) or TLS with verified client certificates",
			addr, ErrOpen, SecretVariable)
	}
	return ln, nil
}

// listenAddrs returns the local addresses to try in turn, for an address at which other
// ranks reach this host.
//
// If the address contains a host name, this host may resolve it differently from other hosts:
// not at all, if a cluster only names hosts that are ready; to the address of a service in
// front of this host; or to loopback, if the host's own name is in /etc/hosts. Then this rank
// listens at all its addresses, if connections are authenticated.
func (c *Config) listenAddrs(ctx context.Context, address string) ([]string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w: %w", address, group.ErrInvalid, err)
	}

	all := net.JoinHostPort("", port)
	if !isName(host) {
		return []string{address, all}, nil
	}

	found, err := c.lookup(ctx, host)
	if err != nil && !c.authenticates() {
		return nil, fmt.Errorf("listen at %s: %w", address, err)
	}

	var addrs []string
	for _, a := range found {
		if ip := net.ParseIP(a); !c.authenticates() || ip == nil || !ip.IsLoopback() {
			addrs = append(addrs, net.JoinHostPort(a, port))
		}
	}

	return append(addrs, all), nil
}

// isName reports whether host is a host name that other hosts may use too.
func isName(host string) bool {
	return host != "" && host != "localhost" && net.ParseIP(host) == nil
}

// inUseTimeout is how long listenRetry waits for an address that is in use, for example
// by the rank 0 of an earlier run.
const inUseTimeout = 2 * time.Second

// listenRetry listens at an address, and tries again for inUseTimeout if it is in use.
func (c *Config) listenRetry(ctx context.Context, network, address string) (net.Listener, error) {
	for end := time.Now().Add(inUseTimeout); ; {
		ln, err := c.listener(ctx, network, address)
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

// removeDead removes the socket of a process that was killed.
func removeDead(ctx context.Context, path string) {
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&os.ModeSocket == 0 {
		return // a file that is not a socket refuses connections too
	}

	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // if it fails the address stays in use
	}
}

// socketIn returns an address for a new socket in the folder of a unix address.
func socketIn(folder string, rank int) string {
	return fmt.Sprintf("%s%s", unixPrefix, filepath.Join(folder, fmt.Sprintf("%d-%s.sock", rank, rand.Text()[:8])))
}

// listenAddr returns the address at which a rank other than 0 listens. The rank has
// reached rank 0 at addr over conn.
func (c *Config) listenAddr(rank int, addr string, conn net.Conn) string {
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
	if name, _, err := net.SplitHostPort(addr); err == nil && isName(name) && isLoopback(local) && c.authenticates() {
		host = "" // the ranks of other hosts do not use loopback
	}
	return net.JoinHostPort(host, "0")
}

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// advertised returns the address of ln for other ranks. If ln listens at all
// addresses, it is the local address of conn, over which this rank reached rank 0, or
// the result of outward.
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

// outward returns the address from which this host reaches other hosts, or loopback
// if it has no network.
func outward() string {
	// An address for documentation. No packet is sent there: the system only chooses the local
	// address for it.
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
