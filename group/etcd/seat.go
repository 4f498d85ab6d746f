package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cairn-ckpt/cairn/group"
)

var (
	// ErrTaken reports a seat that another process has.
	ErrTaken = errors.New("seat is taken")
	// ErrSize reports processes that do not agree on how many they are.
	ErrSize = errors.New("another number of ranks")
	// ErrLost reports a process whose lease has ended, and with it its seat.
	ErrLost = errors.New("seat is lost")
)

// anyRank stands for a rank that is not given.
const anyRank = -1

// sit takes a seat: that of rank want, or any. It waits where it cannot have one.
func (s *session) sit(ctx context.Context, want, size int) error {
	for tries := 0; ; tries++ {
		if err := s.needLease(ctx); err != nil {
			return err
		}
		err := s.trySeat(ctx, want, size, tries)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.lease = 0
		case !errors.Is(err, errChanged):
			return err
		}
	}
}

// trySeat takes a seat, or waits where it cannot. It returns errChanged where things
// are not as they were.
func (s *session) trySeat(ctx context.Context, want, size, tries int) error {
	v, err := s.look(ctx)
	if err != nil {
		return err
	}
	taken, err := s.seats(ctx, v.Generation, want)
	if err != nil {
		return err
	}
	rank := taken.choose(want, size, tries)
	switch {
	case taken.mine >= 0: // by a transaction whose answer was lost
		rank = taken.mine
	case taken.count == 0:
		rank = max(want, 0)
		err = s.begin(ctx, v, rank, size)
		v.Generation++ // the one that has begun
	case v.Met:
		return s.awaitSeat(ctx, v, taken, want)
	case differ(v.Size, size):
		return fmt.Errorf("others meet as %d ranks, this process as one of %d: %w", v.Size, size, ErrSize)
	case rank < 0:
		return s.awaitSeat(ctx, v, taken, want)
	default:
		err = s.take(ctx, v, rank)
	}
	if err == nil {
		s.gen, s.rank, s.size, s.sits = v.Generation, rank, size, true
	}
	return err
}

// differ reports whether both are known and not the same.
func differ(a, b int) bool { return a != 0 && b != 0 && a != b }

// errChanged reports a transaction that others came before.
var errChanged = errors.New("changed by others")

// begin begins a new generation, with this process in a seat. Nobody must have one
// in the generation before.
func (s *session) begin(ctx context.Context, v view, rank, size int) error {
	m := meeting{Generation: v.Generation + 1, Size: size}
	return s.commit(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
		clientv3.Compare(clientv3.CreateRevision(s.key.seats(v.Generation)), "=", 0).WithPrefix(),
	}, clientv3.OpPut(s.key.meeting(), m.encode()), s.put(s.key.seat(m.Generation, rank), self().encode()))
}

// take takes a seat of a meeting that is as it was seen.
func (s *session) take(ctx context.Context, v view, rank int) error {
	seat := s.key.seat(v.Generation, rank)
	return s.commit(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
		clientv3.Compare(clientv3.CreateRevision(seat), "=", 0),
	}, s.put(seat, self().encode()))
}

// put writes a value that is there as long as the lease.
func (s *session) put(key, value string) clientv3.Op {
	return clientv3.OpPut(key, value, clientv3.WithLease(s.lease))
}

// commit makes a transaction, or returns errChanged.
func (s *session) commit(ctx context.Context, conditions []clientv3.Cmp, then ...clientv3.Op) error {
	res, err := s.txn(ctx, conditions, then...)
	if err == nil && !res.Succeeded {
		return errChanged
	}
	return err
}

// seats is who sits where.
type seats struct {
	count int
	mine  int          // this process's rank, or -1
	taken map[int]bool // where a rank is wanted, only that one
	who   string       // has the wanted one
}

// seats reads who sits where in a generation. Where a rank is wanted it reads no
// other.
func (s *session) seats(ctx context.Context, gen int64, want int) (seats, error) {
	prefix := s.key.seats(gen)
	ops := []clientv3.Op{clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())}
	if want != anyRank {
		ops = []clientv3.Op{
			clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()), clientv3.OpGet(s.key.seat(gen, want)),
		}
	}
	out := seats{mine: -1, taken: map[int]bool{}}
	res, err := s.txn(ctx, nil, ops...)
	if err != nil {
		return out, err
	}
	out.count = int(res.Responses[0].GetResponseRange().Count)
	for _, kv := range res.Responses[len(ops)-1].GetResponseRange().Kvs {
		if err := out.add(prefix, kv, s.lease); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (t *seats) add(prefix string, kv *mvccpb.KeyValue, lease clientv3.LeaseID) error {
	rank, err := strconv.Atoi(strings.TrimPrefix(string(kv.Key), prefix))
	if err != nil || rank < 0 || rank >= maxSize {
		return fmt.Errorf("key %.200q: %w", kv.Key, ErrMalformed)
	}
	t.taken[rank] = true
	if clientv3.LeaseID(kv.Lease) == lease {
		t.mine = rank
	}
	t.who = describeHolder(kv.Value)
	return nil
}

// choose returns the wanted rank, or one of the lowest that are free, of the more
// the more often others were quicker. It returns -1 where there is none.
func (t *seats) choose(want, size, tries int) int {
	if want != anyRank {
		if t.taken[want] {
			return -1
		}
		return want
	}
	few := 1 << (2 * min(tries, 10))
	var free []int
	for r := 0; r < size && len(free) < few; r++ {
		if !t.taken[r] {
			free = append(free, r)
		}
	}
	if len(free) == 0 {
		return -1
	}
	return free[rand.IntN(len(free))]
}

// awaitSeat waits until others have left, and returns errChanged. Any other error
// says what was waited for.
func (s *session) awaitSeat(ctx context.Context, v view, t seats, want int) error {
	key, opts := s.key.seats(v.Generation), []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithFilterPut()}
	if want != anyRank && !v.Met {
		key, opts = s.key.seat(v.Generation, want), opts[1:]
	}
	if s.await(ctx, v.rev, key, opts...) == nil {
		return errChanged
	}
	cause := group.ContextError(ctx)
	switch {
	case v.Met:
		return fmt.Errorf("a group of that name has met, and %d of its processes have not left (generation %d): %w: %w", t.count, v.Generation, ErrTaken, cause)
	case want != anyRank:
		return fmt.Errorf("%s is rank %d (generation %d): %w: %w", t.who, want, v.Generation, ErrTaken, cause)
	}
	return fmt.Errorf("all %d ranks are other processes (generation %d): %w: %w", t.count, v.Generation, ErrTaken, cause)
}
