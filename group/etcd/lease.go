package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// needLease makes a lease, where there is none that is alive.
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

// keep keeps a lease. When it has ended, because this process or the cluster was
// away for a while, it takes the seat again, where that is nobody else's: while this
// process talks to rank 0, or is rank 0, there is no call in which to do so.
func (s *session) keep(id clientv3.LeaseID, kept <-chan *clientv3.LeaseKeepAliveResponse, lost chan<- struct{}) {
	for range kept { // answers say nothing new
	}
	close(lost)
	if s.enter(s.keepers) != nil {
		return
	}
	defer s.leave()
	if s.lease == id && s.gen != 0 {
		_ = s.restore(s.keepers) // Find sees whether the seat is there, and Announce
	}
}

// restore takes the seat again under a new lease, and announces again what was
// announced. Its error wraps ErrLost where the seat or the meeting is another's.
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
		case v.seated:
			return nil
		case v.Generation != s.gen || v.Met && !s.left || v.holder != 0 && v.holder != old:
			return fmt.Errorf("rank %d in generation %d: %w", s.rank, s.gen, ErrLost)
		}
		seat := s.key.seat(s.gen, s.rank)
		ops := []clientv3.Op{s.put(seat, self().encode())}
		if s.addr != "" {
			ops = append(ops, s.put(s.key.address(s.gen), s.addr))
		}
		err = s.commit(ctx, []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
			clientv3.Compare(clientv3.LeaseValue(seat), "=", v.holder),
		}, ops...)
		if err != nil && !errors.Is(err, errChanged) {
			return err
		}
	}
}

// dropLease ends the lease, and with it the seat.
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
