package ram

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/hosts"
)

func init() {
	blob.Register("memory", func(ctx context.Context, address string) (blob.Store, error) {
		run, folder, err := Split(address)
		if err != nil {
			return nil, err
		}
		root, err := Here()
		if err != nil {
			return nil, err
		}
		s, err := root.Open(ctx, run)
		if err != nil {
			return nil, err
		}
		return blob.NewSub(s, folder)
	})
}

// OpenLocal returns the store of the files of a run on this host.
func (r Root) OpenLocal(run string) (*file.Store, error) {
	folder, err := r.Folder(run)
	if err != nil {
		return nil, err
	}
	// Files in memory do not survive a loss of power, whatever a program waits for.
	return file.Open(folder, &file.Options{NoSync: true, NoDirect: true, InMemory: true})
}

// OpenOptions change how a run is opened. Nil means the defaults.
type OpenOptions struct {
	// Stall is how long a host may make no progress. Zero: 20 seconds.
	Stall time.Duration
	// Hosts are the ids of the hosts that are needed. If one of them does not answer, operations fail
	// and name it. Nil: all hosts of the run.
	Hosts []string
	// Rate bounds the bytes per second of all calls of Fetch together. Zero: no bound.
	Rate int64
	// Check, if not nil, is called before each change, if the run has other hosts. Its error refuses the change.
	// Nil: the Check of the context.
	Check func() error
}

// checkKey is the key of WithCheck.
type checkKey struct{}

// WithCheck returns a context for opening runs by their addresses: check is called with the name of a run
// before each change of it, if it has other hosts. Its error refuses the change.
func WithCheck(ctx context.Context, check func(run string) error) context.Context {
	return context.WithValue(ctx, checkKey{}, check)
}

// Open is OpenWith without options.
func (r Root) Open(ctx context.Context, run string) (blob.Store, error) {
	return r.OpenWith(ctx, run, nil)
}

// OpenWith returns the store of the files of a run on all of its hosts. A host is left out if no process
// there serves the run any more, or if it has left the job and does not answer: a checkpoint that needs its
// files is then incomplete.
func (r Root) OpenWith(ctx context.Context, run string, opts *OpenOptions) (blob.Store, error) {
	var o OpenOptions
	if opts != nil {
		o = *opts
	}
	if check, ok := ctx.Value(checkKey{}).(func(string) error); ok && o.Check == nil {
		o.Check = func() error { return check(run) }
	}
	local, err := r.OpenLocal(run)
	if err != nil {
		return nil, err
	}
	m, err := r.ReadMembers(run)
	if err != nil {
		return nil, err
	}
	own, err := r.HostID()
	if err != nil {
		return nil, err
	}
	var here []string
	for _, h := range m.Hosts {
		if h.ID == own {
			here = h.Addresses
		}
	}
	others := slices.DeleteFunc(m.Hosts, func(h Host) bool {
		return h.ID == own || o.Hosts != nil && !slices.Contains(o.Hosts, h.ID)
	})
	if len(others) == 0 {
		return local, nil
	}
	peers := make([]hosts.Peer, len(others))
	var wg sync.WaitGroup
	for i, h := range others {
		wg.Go(func() {
			addr, err := h.Reach(ctx, m.Secret)
			peers[i] = hosts.Peer{Host: h.Label(), Addr: addr}
			if o.Hosts == nil {
				// A host of the job may only be slow. If it refuses connections, its processes have ended.
				peers[i].Left, peers[i].Lost = h.Left, err != nil && (h.Left || errors.Is(err, syscall.ECONNREFUSED))
			}
		})
	}
	wg.Wait()
	s, err := hosts.New(local, hosts.Config{Peers: peers, Own: here, Secret: m.Secret, Stall: o.Stall, Rate: o.Rate, Check: o.Check, Logger: blob.Logger(ctx)})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMembers, err)
	}
	return s, nil
}

// Label returns the name of the host in messages. Two hosts may have the same name.
func (h *Host) Label() string { return h.Name + "-" + h.ID[:min(8, len(h.ID))] }

// reachTime bounds how long Open waits for a host, and nextTime how long for one of its addresses
// before it also tries the next one.
const (
	reachTime = 2 * time.Second
	nextTime  = reachTime / 8
)

var errNoAddress = errors.New("the host has no address")

// Reach returns an address at which a process of the host answers that has the secret of the run. If there is
// none, it returns the first address and an error, which wraps syscall.ECONNREFUSED if the host is there and
// no process listens at any of them.
func (h *Host) Reach(ctx context.Context, secret []byte) (address string, err error) {
	if len(h.Addresses) == 0 {
		return "", errNoAddress
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()

	type answer struct {
		address string
		err     error
	}
	answers := make(chan answer, len(h.Addresses))
	next := time.NewTimer(0)
	defer next.Stop()
	var refused error
	silent, left := false, h.Addresses
	for range h.Addresses {
		var a answer
		for got := false; !got; {
			select {
			case <-next.C:
				if len(left) > 0 {
					at := left[0]
					left = left[1:]
					go func() { answers <- answer{at, hosts.Reach(ctx, at, secret)} }()
					next.Reset(nextTime)
				}
			case a = <-answers:
				got = true
			}
		}
		if a.err == nil {
			return a.address, nil
		}
		next.Reset(0)
		if errors.Is(a.err, syscall.ECONNREFUSED) {
			refused = a.err
		} else {
			silent, err = true, a.err
		}
	}
	if !silent {
		err = refused
	}
	return h.Addresses[0], err
}
