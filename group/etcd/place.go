package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Place returns the address by which this process reaches the cluster, with any
// port: others that reach the cluster most likely reach it there.
func (r *Rendezvous) Place() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, e := range r.endpoints() {
		addr, err := localAddress(ctx, e)
		if err == nil {
			return addr, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("address by which etcd is reached: %w", errors.Join(errs...))
}

// localAddress returns this host's address on the way to an endpoint.
func localAddress(ctx context.Context, endpoint string) (string, error) {
	if scheme, rest, ok := strings.Cut(endpoint, "://"); ok {
		if strings.HasPrefix(scheme, "unix") {
			return "127.0.0.1:0", nil
		}
		endpoint = rest
	}
	c, err := new(net.Dialer).DialContext(ctx, "udp", endpoint) // sends nothing
	if err != nil {
		return "", err
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, "0"), nil
}
