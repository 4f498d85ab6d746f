package launch

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// secretVariable is the environment variable of the job's secret.
const secretVariable = "CAIRN_SECRET"

// place is where the ranks of a job meet.
type place struct {
	addr   string
	port   int
	folder string // of the socket, or empty
}

// newPlace chooses where the ranks meet, as far as that is open.
func newPlace(c *Config) (place, error) {
	if c.Unix {
		dir, err := os.MkdirTemp("", "cairn-run-") // for this user only
		if err != nil {
			return place{}, err
		}
		return place{addr: "unix:" + filepath.Join(dir, "0.sock"), folder: dir}, nil
	}
	p := place{addr: c.Addr, port: c.Port}
	if p.port != 0 {
		return p, nil
	}
	var err error
	p.port, err = freePort(c.Addr)
	return p, err
}

// The ports among which one is chosen. They lie below those that systems give to
// whoever does not ask for a certain one, so that nobody gets it by accident
// before rank 0 listens there.
const (
	firstPort = 10_000
	lastPort  = 29_999
)

// freePort returns a port at which nobody listens.
func freePort(host string) (int, error) {
	var last error
	for range 64 {
		n, err := rand.Int(rand.Reader, big.NewInt(lastPort-firstPort+1))
		if err != nil {
			return 0, err
		}
		port := firstPort + int(n.Int64())
		ln, err := net.Listen("tcp", net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)))
		if err == nil {
			return port, ln.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

// environ returns what all processes have in their environment.
func (c *Config) environ(at place) ([]string, error) {
	env := append(os.Environ(), c.Env...)
	secret := c.secret(env)
	if secret == "" && c.Nodes > 1 {
		return nil, wrong("several hosts need one secret, and none is set")
	}
	if secret == "" {
		secret = rand.Text()
	}
	return append(env, "MASTER_ADDR="+at.addr, "MASTER_PORT="+strconv.Itoa(at.port), secretVariable+"="+secret,
		"WORLD_SIZE="+strconv.Itoa(c.Nodes*c.N), "LOCAL_WORLD_SIZE="+strconv.Itoa(c.N)), nil
}

// secret returns the job's secret, or "" where none is set.
func (c *Config) secret(env []string) string {
	secret := ""
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, secretVariable+"="); ok {
			secret = s // the last one counts
		}
	}
	return cmp.Or(c.Secret, secret)
}
