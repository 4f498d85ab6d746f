package tcp

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tree"
)

// SecretVariable is the environment variable with the job's secret.
const SecretVariable = "CAIRN_SECRET"

// MaxJob bounds the bytes of a job's name.
const MaxJob = 256

// Config says how a process joins a group.
type Config struct {
	// Rendezvous is where the ranks find each other: "env://" or
	// "file:///shared/path". Empty: "env://".
	Rendezvous string
	// Meet is used instead of Rendezvous where it is not nil.
	Meet Rendezvous
	// Rank and Size are this process's number and how many there are. Where
	// Size is zero both come from the rendezvous.
	Rank, Size int
	// Job is a name that all ranks of a job share, of at most [MaxJob] bytes.
	// Ranks of another one are refused.
	Job string
	// Secret is what ranks prove to know before anything else they say is
	// believed. Nil: the environment variable CAIRN_SECRET.
	Secret []byte
	// TLS is for both sides of every connection, where it is not nil. It needs a
	// certificate; with ClientAuth set to RequireAndVerifyClientCert a secret is
	// not needed.
	TLS *tls.Config
	// Listen is the address to listen at: "host:port" with port 0 for any, or
	// "unix:/folder" for a socket in that folder. Empty: where the rendezvous
	// says, or the address by which rank 0 is reached.
	Listen string
	// Timeout is how long a rank may be silent before it counts as gone. That of
	// rank 0 holds for all. Zero: 20 s.
	Timeout time.Duration
	// Arity is how many connections a rank holds to ranks below it. That of rank
	// 0 holds for all. Zero: [tree.DefaultArity].
	Arity int
	// MaxMessage bounds the bytes of one value or message. Zero: 1 GiB.
	MaxMessage int
	// MaxSize bounds the number of ranks. Zero: 65,536.
	MaxSize int
	// IdleTimeout is after how long a connection is closed that only messages
	// needed. Zero: one minute.
	IdleTimeout time.Duration
	// Wrap makes the connections that are used out of those that there are, where
	// it is not nil. It is for tests, which lose or delay what goes through them,
	// and for who counts that; under TLS that is what is encrypted. A CloseWrite of
	// the connection must stay.
	Wrap func(net.Conn) net.Conn

	// lookup resolves names; tests set it.
	lookup func(ctx context.Context, name string) ([]string, error)
	// parting and search replace partingTime and searchTime if they are not zero;
	// tests set them.
	parting, search time.Duration
}

// partingTime is how long a rank that closes or gives up waits until the other
// ranks have received its last messages.
func (c *Config) partingTime() time.Duration {
	return cmp.Or(c.parting, min(c.Timeout, 5*time.Second))
}

// searchTime is how long a rank looks for a new rank 0 if rank 0 no longer calls
// it, and how long it tries again if rank 0 refuses it.
func (c *Config) searchTime() time.Duration {
	return cmp.Or(c.search, max(c.Timeout, 20*time.Second))
}

// maxArity bounds what rank 0 may set for all.
const maxArity = 1 << 16

// hasty bounds how long a stranger may take to prove who it is.
const hasty = 10 * time.Second

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
	if c.lookup == nil {
		c.lookup = net.DefaultResolver.LookupHost
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

// check returns an error where a field makes no sense.
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

// CheckJob returns an error that wraps [group.ErrInvalid] where a name is too
// long for a job's.
func CheckJob(name string) error {
	if len(name) > MaxJob {
		return fmt.Errorf("job name of %d bytes, more than %d: %w", len(name), MaxJob, group.ErrInvalid)
	}
	return nil
}

// proven reports whether strangers are kept out.
func (c *Config) proven() bool {
	return len(c.Secret) > 0 || c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

// checkSeat returns an error where rank and size make no sense.
func (c *Config) checkSeat(rank, size int) error {
	switch {
	case size < 1 || size > c.MaxSize:
		return fmt.Errorf("group of %d ranks, at most %d: %w", size, c.MaxSize, group.ErrInvalid)
	case rank < 0 || rank >= size:
		return fmt.Errorf("rank %d of %d: %w", rank, size, group.ErrInvalid)
	}
	return nil
}
