// Package etcd lets the processes of a job meet through an etcd cluster, which also gives them
// their ranks if their environment does not. Once the ranks have met they do not need etcd any
// more. Only the address of rank 0 is written there, never the secret of the job. The contract is
// in the comment of [tcp.Rendezvous]; the keys in etcd are below.
//
// Only programs that import it have etcd's client. Such a program turns addresses of any
// kind into rendezvous with [ParseRendezvous]:
//
//	meet, err := etcd.ParseRendezvous("etcd://10.0.0.7:2379/job?size=8")
//	…
//	g, err := tcp.Join(ctx, tcp.Config{Meet: meet})
//
// # Keys
//
// Names of jobs are escaped as in a URL's path, so that no job's keys are among
// another's. Values are at most 4 KiB.
//
//	cairn/JOB/meeting                 {"generation":7,"size":8,"met":false}
//	cairn/JOB/meeting/GENERATION      where rank 0 listens, as text
//	cairn/JOB/seats/GENERATION/RANK   {"host":"n3","pid":4711}: the process with that rank
//
// The last two are bound to the lease of the process that wrote them, and so go
// with it. Only the first one stays.
//
// # Slots
//
// A process takes a slot in a transaction, on the condition that the slot is free
// and the record of the meeting unchanged. If its rank is not given it takes the
// lowest free slot, or one of the lowest few after other processes were quicker. A
// process waits if its slot is taken or no slot is free. If a process dies before
// the ranks have met, its lease ends and another process can take its slot.
//
// # Generations
//
// Rank 0 marks the record when it leaves the meeting. From then on no process takes a slot of
// that generation. A new generation begins in one transaction, with its first slot, when no
// slot of the previous generation is left. So a job can meet again under its name as soon as
// all processes of the old meeting have left; processes that died delay it by the time of a
// lease at most. If the lease of a process ended, the process takes its slot again, unless
// another process has it or a new generation has begun: in those cases it can neither
// announce an address nor end a meeting.
//
// # Liveness
//
// While ranks meet, leases show which processes are alive; afterwards the ranks themselves do.
// Slots are given back when the ranks have met, unless [Rendezvous.Hold] is set:
// then they are kept as long as the group lives, and no other one of that job's name
// can come to be beside it.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// Rendezvous is where the processes of a job meet through an etcd cluster. Its
// methods are for one goroutine at a time, and it serves one [tcp.Join] after the
// other.
type Rendezvous struct {
	// Client reaches the cluster. It stays open. Nil: the rendezvous makes one of the
	// next four fields, and closes it.
	Client *clientv3.Client
	// Endpoints are the members of the cluster, as "host:port".
	Endpoints []string
	// TLS is for connections to the cluster. Nil: connections and the password are not
	// encrypted.
	TLS *tls.Config
	// Username and Password are for a cluster that asks for them. They must allow to
	// read and write keys that begin with "cairn/" and the job's name.
	Username, Password string
	// Job is the name under which the processes meet, of at most 256 bytes.
	Job string
	// Rank is this process's rank. Nil: the environment variable RANK, and if
	// that is not set a free one. Either all processes set their rank or no process
	// does: a rank that is given out may be the one that another process has set.
	Rank *int
	// Size is how many processes there are, the same on all. Zero: the environment
	// variable WORLD_SIZE.
	Size int
	// TTL is how long a process that has died keeps its slot, in whole seconds;
	// etcd may raise it. A process that was stopped for this time may lose its slot
	// too. Zero: 10 s.
	TTL time.Duration
	// Hold keeps this process's slot after Close until Release is called or the
	// process dies. If all ranks hold theirs, no other group of that job comes to
	// be while one of this group's processes lives.
	Hold bool
	// Getenv is used instead of os.Getenv if it is not nil.
	Getenv func(string) string

	s    *session // nil: no connection is open
	held bool     // s is only there to hold the slot
}

var _ tcp.Rendezvous = (*Rendezvous)(nil)

// String returns the address, without its password.
func (r *Rendezvous) String() string {
	scheme := "etcd"
	if r.TLS != nil {
		scheme = "etcds"
	}
	return fmt.Sprintf("%s://%s/%s", scheme, strings.Join(r.endpoints(), ","), r.Job)
}

func (r *Rendezvous) endpoints() []string {
	if r.Client != nil {
		return r.Client.Endpoints()
	}
	return r.Endpoints
}

// Slot takes a slot and returns it. If no slot is free it waits for one until ctx
// ends; the error then wraps [ErrTaken]. If other processes meet under the same name
// with another number of ranks the error wraps [ErrSize].
func (r *Rendezvous) Slot(ctx context.Context) (rank, size int, err error) {
	defer func() {
		if err != nil {
			rank, size, err = 0, 0, fmt.Errorf("slot in job %q: %w", r.Job, err)
		}
	}()

	if size, err = r.size(); err != nil {
		return 0, 0, err
	}
	if size == 0 {
		return 0, 0, fmt.Errorf("the number of ranks is not known; set size in the address, Size or WORLD_SIZE: %w", group.ErrInvalid)
	}
	if rank, err = r.rank(); err != nil {
		return 0, 0, err
	}

	if rank >= size {
		return 0, 0, fmt.Errorf("rank %d of %d: %w", rank, size, group.ErrInvalid)
	}
	if err := r.connect(ctx); err != nil {
		return 0, 0, err
	}
	defer r.s.leave()

	if err := r.s.takeSlot(ctx, rank, size); err != nil {
		return 0, 0, err
	}
	return r.s.rank, size, nil
}

// size returns the number of ranks, or 0 if that is not known.
func (r *Rendezvous) size() (int, error) {
	n, err := r.Size, error(nil)
	if n == 0 {
		n, err = r.number("WORLD_SIZE", 0)
	}
	if err == nil && (n < 0 || n > maxSize) {
		err = fmt.Errorf("%d ranks, at most %d: %w", n, maxSize, group.ErrInvalid)
	}
	return n, err
}

// rank returns this process's rank, or anyRank.
func (r *Rendezvous) rank() (int, error) {
	if r.Rank == nil {
		return r.number("RANK", anyRank)
	}
	if *r.Rank < 0 {
		return 0, fmt.Errorf("rank %d: %w", *r.Rank, group.ErrInvalid)
	}
	return *r.Rank, nil
}

// number returns a variable of the environment, or unset.
func (r *Rendezvous) number(name string, unset int) (int, error) {
	n, set, err := (&tcp.Env{Getenv: r.Getenv}).Number(name)
	if err == nil && !set {
		return unset, nil
	}
	return n, err
}

// connect makes a session unless one exists, and begins a call. The caller must
// call r.s.leave.
func (r *Rendezvous) connect(ctx context.Context) error {
	if r.held {
		_ = r.Release() // of the last meeting; the lease ends by itself, too
	}

	if r.s != nil {
		return r.s.enter(ctx)
	}
	if err := checkJob(r.Job); err != nil {
		return err
	}

	if r.TTL < 0 {
		return fmt.Errorf("a lease of %v: %w", r.TTL, group.ErrInvalid)
	}
	if len(r.endpoints()) == 0 {
		return fmt.Errorf("no endpoints of a cluster: %w", group.ErrInvalid)
	}

	s, err := newSession(ctx, r)
	if err != nil {
		return err
	}

	r.s = s
	return s.enter(ctx)
}

// Announce publishes that rank 0 listens at addr. If Slot was not called, because
// the configuration says that this is rank 0, it takes that slot first. Its error
// wraps [ErrLost] if the lease ended and another process may have the slot.
func (r *Rendezvous) Announce(ctx context.Context, addr string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("announce rank 0 of job %q: %w", r.Job, err)
		}
	}()

	if err := tcp.CheckAddress(addr); err != nil {
		return err
	}
	if err := r.connect(ctx); err != nil {
		return err
	}
	defer r.s.leave()

	if !r.s.hadSlot {
		size, err := r.size()
		if err != nil {
			return err
		}
		if err := r.s.takeSlot(ctx, 0, size); err != nil {
			return err
		}
	}

	return r.s.announce(ctx, addr)
}

// Find returns where rank 0 listens, and waits until it does. If the meeting of this process
// has ended without it, Find first takes the same slot in the next one.
func (r *Rendezvous) Find(ctx context.Context) (addr string, err error) {
	if err = r.connect(ctx); err == nil {
		defer r.s.leave()
		addr, err = r.s.find(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("find rank 0 of job %q: %w", r.Job, err)
	}
	return addr, nil
}

// Close withdraws the announced address and gives the slot back, unless Hold is set.
// If the cluster cannot be reached for two seconds the slot is free when its
// lease ends.
func (r *Rendezvous) Close() error {
	if r.s == nil || r.held {
		return nil
	}
	err := r.s.end()
	if !r.Hold {
		return errors.Join(err, r.Release())
	}
	r.held = true
	return err
}

// Release gives back the slot that Hold keeps. It is called when the group has been
// closed, or could not be joined.
func (r *Rendezvous) Release() error {
	if r.s == nil {
		return nil
	}
	err := r.s.close()
	r.s, r.held = nil, false
	return err
}

// Place returns the address by which this process reaches the cluster, with any
// port: other processes that reach the cluster most likely reach this one there.
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

	c, err := new(net.Dialer).DialContext(ctx, "udp", endpoint) // sends no packet
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
