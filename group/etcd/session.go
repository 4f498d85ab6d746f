package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cairn-ckpt/cairn/group"
)

const (
	defaultTTL = 10 * time.Second
	// closeTimeout bounds how long leaving takes if the cluster does not answer.
	closeTimeout = 2 * time.Second
	// A call that reached no member is made again, soon at first and then less and less
	// often.
	firstWait = 20 * time.Millisecond
	lastWait  = time.Second
)

// session is a process's connection to the cluster, with its lease and its slot.
type session struct {
	cli    *clientv3.Client
	own    bool // the session closes cli
	key    keys
	ttl    time.Duration
	where  string          // the cluster, in words
	ctx    context.Context // ends with the client
	cancel context.CancelFunc

	keepers       context.Context // ends with the lease's keepers
	cancelKeepers context.CancelFunc
	wg            sync.WaitGroup // of the keepers

	busy  chan struct{}    // has room while the fields below are not in use
	lease clientv3.LeaseID // zero: no lease
	lost  chan struct{}    // closed when the lease has ended

	hadSlot    bool  // this process has, or had, a slot
	gen        int64 // of the slot; zero: it is lost
	rank, size int
	addr       string // that was announced
	left       bool   // this process has left the meeting, and holds its slot
}

func newSession(ctx context.Context, r *Rendezvous) (*session, error) {
	s := &session{cli: r.Client, own: r.Client == nil, key: keysOf(r.Job), ttl: cmp.Or(r.TTL, defaultTTL), busy: make(chan struct{}, 1)}
	s.where = strings.Join(r.endpoints(), ", ")
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.keepers, s.cancelKeepers = context.WithCancel(s.ctx)
	if !s.own {
		return s, nil
	}

	err := s.do(ctx, func(ctx context.Context) (err error) {
		stop := context.AfterFunc(ctx, s.cancel) // the client proves its identity, without ctx
		defer stop()
		s.cli, err = clientv3.New(clientv3.Config{
			Endpoints: r.Endpoints, TLS: r.TLS, Username: r.Username, Password: r.Password,
			Context: s.ctx, DialTimeout: 5 * time.Second, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
			MaxUnaryRetries: 1, Logger: zap.NewNop(), // do tries again, and says why
		})
		return err
	})
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// do calls f until it succeeds, its error is one that does not pass, or ctx ends.
func (s *session) do(ctx context.Context, f func(context.Context) error) error {
	var last error
	for wait := firstWait; ; wait = min(2*wait, lastWait) {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil && !passes(err) {
			return fmt.Errorf("etcd at %s: %w", s.where, err)
		}

		if ctx.Err() == nil || last == nil {
			last = err
		}
		if pause(ctx, wait) != nil {
			if errors.Is(last, context.DeadlineExceeded) || errors.Is(last, context.Canceled) {
				last = dialError(strings.Split(s.where, ", ")) // the client does not say why no member answered
			}
			return fmt.Errorf("etcd at %s: %w (%w)", s.where, group.ContextError(ctx), last)
		}
	}
}

// dialError returns why no member of the cluster answers.
func dialError(endpoints []string) error {
	var errs []error
	for _, e := range endpoints {
		_, address, found := strings.Cut(e, "://")
		if !found {
			address = e
		}

		c, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
		if err == nil {
			c.Close()
			err = fmt.Errorf("%s takes connections, but has not answered: it is busy, or is not etcd, or one side has TLS and the other has not", address)
		}
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// passes reports whether an error is of a cluster that does not answer now.
func passes(err error) bool {
	code := status.Code(err)
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = e.Code()
	}
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) // the client's own
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// txn makes a transaction. If the cluster's answer is lost it is made again, so
// its conditions must tell whether it was made before.
func (s *session) txn(ctx context.Context, conditions []clientv3.Cmp, then ...clientv3.Op) (*clientv3.TxnResponse, error) {
	var res *clientv3.TxnResponse
	err := s.do(ctx, func(ctx context.Context) (err error) {
		res, err = s.cli.Txn(ctx).If(conditions...).Then(then...).Commit()
		return err
	})
	return res, err
}

// enter begins a call. Calls and the lease's keeper do not run at once.
func (s *session) enter(ctx context.Context) error {
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("etcd at %s: %w", s.where, group.ContextError(ctx))
	}
}

func (s *session) leave() { <-s.busy }

// close ends the lease and all that is open. The session is not used again.
func (s *session) close() error {
	s.cancelKeepers()
	s.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()

	err := s.dropLease(ctx)
	s.cancel()
	if s.own {
		_ = s.cli.Close() // its error only reports that s.ctx has ended
	}
	return err
}

// needLease makes a lease unless one is alive.
func (s *session) needLease(ctx context.Context) error {
	if s.lease != 0 {
		select {
		case <-s.lost:
		default:
			return nil
		}
	}
	s.gen = 0
	return s.newLease(ctx)
}

// newLease makes a lease and a keeper for it.
func (s *session) newLease(ctx context.Context) error {
	return s.do(ctx, func(ctx context.Context) error {
		g, err := s.cli.Grant(ctx, int64((s.ttl+time.Second-1)/time.Second))
		if err != nil {
			return err
		}

		kept, err := s.cli.KeepAlive(s.keepers, g.ID)
		if err != nil {
			return err
		}

		lost := make(chan struct{})
		s.lease, s.lost = g.ID, lost
		s.wg.Go(func() { s.keep(g.ID, kept, lost) })
		return nil
	})
}

// keep keeps a lease alive. When the lease has ended, because this process or the
// cluster did not run for a while, keep takes the slot again, unless another process
// has it. No call does so while this process talks to rank 0, or is rank 0.
func (s *session) keep(id clientv3.LeaseID, kept <-chan *clientv3.LeaseKeepAliveResponse, lost chan<- struct{}) {
	for range kept { // answers carry no news
	}
	close(lost)
	if s.enter(s.keepers) != nil {
		return
	}

	defer s.leave()
	if s.lease == id && s.gen != 0 {
		_ = s.restore(s.keepers) // Find sees whether the slot is there, and Announce
	}
}

// restore takes the slot again under a new lease, and repeats the announcement. Its error
// wraps ErrLost if the slot or the meeting is another's.
func (s *session) restore(ctx context.Context) error {
	old := s.lease
	if err := s.newLease(ctx); err != nil {
		return err
	}

	for {
		v, err := s.look(ctx)
		switch {
		case err != nil:
			return err
		case v.hasSlot:
			return nil
		case v.Generation != s.gen || v.Met && !s.left || v.holder != 0 && v.holder != old:
			return fmt.Errorf("rank %d in generation %d: %w", s.rank, s.gen, ErrLost)
		}

		slot := s.key.slot(s.gen, s.rank)
		ops := []clientv3.Op{s.put(slot, encode(self()))}
		if s.addr != "" {
			ops = append(ops, s.put(s.key.address(s.gen), s.addr))
		}

		err = s.commit(ctx, []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
			clientv3.Compare(clientv3.LeaseValue(slot), "=", v.holder),
		}, ops...)
		if err != nil && !errors.Is(err, errChanged) {
			return err
		}
	}
}

// dropLease ends the lease, and with it the slot.
func (s *session) dropLease(ctx context.Context) error {
	if s.lease == 0 {
		return nil
	}

	id := s.lease
	s.lease, s.gen, s.addr = 0, 0, ""
	err := s.do(ctx, func(ctx context.Context) error {
		_, err := s.cli.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil // has ended
	}
	return err
}
