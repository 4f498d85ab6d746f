package etcd

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// defaultPort is where etcd listens for clients.
const defaultPort = "2379"

// ParseRendezvous returns the rendezvous that an address stands for: of [Parse]
// for etcd and etcds, of [tcp.ParseRendezvous] for all others.
func ParseRendezvous(address string) (tcp.Rendezvous, error) {
	switch scheme, _, _ := strings.Cut(address, "://"); scheme {
	case "etcd", "etcds":
		r, err := Parse(address)
		if err != nil {
			return nil, err // not a nil *Rendezvous that is no nil
		}
		return r, nil
	}

	r, err := tcp.ParseRendezvous(address)
	if err != nil {
		return nil, fmt.Errorf("neither etcd nor etcds: %w", err)
	}
	return r, nil
}

// Parse returns the rendezvous that an address stands for:
//
//	etcd://[USER:PASSWORD@]HOST[:2379][,HOST…]/JOB[?size=N&rank=N&ttl=10s&hold=true]
//	etcds://…&ca=FILE&cert=FILE&key=FILE
//
// The second form is over TLS. Its files, all in PEM form, may be left out: ca is
// the authority of the cluster instead of those this host trusts, cert and key are
// this process's. All else is as in the fields of [Rendezvous].
func Parse(address string) (*Rendezvous, error) {
	r, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("rendezvous %q: %w: %w", tcp.Redact(address), group.ErrInvalid, err)
	}
	return r, nil
}

func parse(address string) (*Rendezvous, error) {
	scheme, rest, found := strings.Cut(address, "://")
	if !found || scheme != "etcd" && scheme != "etcds" {
		return nil, errors.New("the scheme is not etcd or etcds")
	}

	// Package url takes one host only, so the hosts are parsed here.
	authority, path := splitAuthority(rest)
	user, hosts := splitUser(authority)
	if user == "" && strings.Contains(path, "@") {
		// Any other error may quote a part of the password.
		return nil, errors.New("an @ behind the first /, ? or #: these characters must be written as %2F, %3F and %23 in a password, and @ as %40 elsewhere")
	}

	u, err := url.Parse("etcd://" + user + "host" + path)
	if err != nil {
		return nil, errors.New("not an address") // err may quote the password
	}

	r := &Rendezvous{Job: strings.TrimPrefix(u.Path, "/"), Username: u.User.Username()}
	r.Password, _ = u.User.Password()
	for host := range strings.SplitSeq(hosts, ",") {
		e, err := endpoint(host)
		if err != nil {
			return nil, err
		}
		r.Endpoints = append(r.Endpoints, e)
	}

	if err := checkJob(r.Job); err != nil {
		return nil, err
	}
	if u.Fragment != "" {
		return nil, errors.New("a part behind # means nothing")
	}
	return r, r.query(u.RawQuery, scheme == "etcds")
}

func splitAuthority(rest string) (authority, path string) {
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}

// splitUser returns the part up to and with the last "@", and the part behind it.
func splitUser(authority string) (user, hosts string) {
	i := strings.LastIndexByte(authority, '@') + 1
	return authority[:i], authority[i:]
}

// endpoint returns a host with its port.
func endpoint(host string) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port, err = net.SplitHostPort(host + ":" + defaultPort)
	}
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || name == "" || e != nil || n == 0 || strings.ContainsAny(name, " \t\n/") {
		return "", fmt.Errorf("%q is no host", host)
	}
	return net.JoinHostPort(name, port), nil
}

func checkJob(job string) error {
	if job == "" {
		return fmt.Errorf("the job has no name: %w", group.ErrInvalid)
	}
	return tcp.CheckJob(job)
}

// query sets the options behind the question mark.
func (r *Rendezvous) query(raw string, secure bool) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return err
	}

	var files tlsFiles
	for name, list := range values {
		v := list[len(list)-1]
		switch name {
		case "size":
			r.Size, err = strconv.Atoi(v)
			if err == nil && (r.Size < 1 || r.Size > maxSize) {
				err = strconv.ErrRange
			}
		case "rank":
			r.Rank = new(int)
			*r.Rank, err = strconv.Atoi(v)
		case "ttl":
			r.TTL, err = time.ParseDuration(v)
			if err == nil && r.TTL <= 0 {
				err = strconv.ErrRange
			}
		case "hold":
			r.Hold, err = strconv.ParseBool(v)
		case "ca":
			files.ca = v
		case "cert":
			files.cert = v
		case "key":
			files.key = v
		default:
			return fmt.Errorf("%q is not one of size, rank, ttl, hold, ca, cert, key", name)
		}
		if err != nil {
			return fmt.Errorf("%s=%q: %w", name, v, err)
		}
	}

	if !secure {
		if files != (tlsFiles{}) {
			return errors.New("ca, cert and key are for etcds")
		}
		return nil
	}

	r.TLS, err = files.load()
	return err
}

// tlsFiles are the names of files for TLS.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) load() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		b, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("%s holds no certificate", f.ca)
		}
	}

	if cmp.Or(f.cert, f.key) == "" {
		return cfg, nil
	}

	c, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, err
	}

	cfg.Certificates = []tls.Certificate{c}
	return cfg, nil
}
