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
	// ErrTaken reports a slot that another process has.
	ErrTaken = errors.New("slot is taken")
	// ErrSize reports processes that do not agree on how many they are.
	ErrSize = errors.New("another number of ranks")
	// ErrLost reports a process that has lost its lease, and with it its slot.
	ErrLost = errors.New("slot is lost")
)

// anyRank stands for a rank that is not given.
const anyRank = -1

// takeSlot takes the slot of rank want, or any slot. It waits if it cannot have one.
func (s *session) takeSlot(ctx context.Context, want, size int) error {
	for tries := 0; ; tries++ {
		if err := s.needLease(ctx); err != nil {
			return err
		}

		err := s.trySlot(ctx, want, size, tries)
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			s.lease = 0
		case !errors.Is(err, errChanged):
			return err
		}
	}
}

// trySlot takes a slot, or waits if it cannot. It returns errChanged if the record or
// the slots have changed.
func (s *session) trySlot(ctx context.Context, want, size, tries int) error {
	v, err := s.look(ctx)
	if err != nil {
		return err
	}

	taken, err := s.slots(ctx, v.Generation, want)
	if err != nil {
		return err
	}

	rank := taken.choose(want, size, tries)
	switch {
	case taken.mine >= 0: // by a transaction without an answer
		rank = taken.mine
	case taken.count == 0:
		rank = max(want, 0)
		err = s.begin(ctx, v, rank, size)
		v.Generation++ // the one that has begun
	case v.Met:
		return s.awaitSlot(ctx, v, taken, want)
	case v.Size != 0 && size != 0 && v.Size != size:
		return fmt.Errorf("others meet as %d ranks, this process as one of %d: %w", v.Size, size, ErrSize)
	case rank < 0:
		return s.awaitSlot(ctx, v, taken, want)
	default:
		err = s.take(ctx, v, rank)
	}
	if err == nil {
		s.gen, s.rank, s.size, s.hadSlot = v.Generation, rank, size, true
	}
	return err
}

// errChanged reports that the conditions of a transaction no longer hold.
var errChanged = errors.New("changed by another process")

// begin begins a new generation, with this process in a slot. No process may have one
// in the generation before.
func (s *session) begin(ctx context.Context, v view, rank, size int) error {
	m := meeting{Generation: v.Generation + 1, Size: size}
	return s.commit(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
		clientv3.Compare(clientv3.CreateRevision(s.key.slots(v.Generation)), "=", 0).WithPrefix(),
	}, clientv3.OpPut(s.key.meeting(), encode(m)), s.put(s.key.slot(m.Generation, rank), encode(self())))
}

// take takes a slot of a meeting that is as it was seen.
func (s *session) take(ctx context.Context, v view, rank int) error {
	slot := s.key.slot(v.Generation, rank)
	return s.commit(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.key.meeting()), "=", v.mod),
		clientv3.Compare(clientv3.CreateRevision(slot), "=", 0),
	}, s.put(slot, encode(self())))
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

// slots are the ranks that are taken.
type slots struct {
	count int
	mine  int          // this process's rank, or -1
	taken map[int]bool // if a rank is wanted, only that one
	who   string       // the process that has the wanted rank
}

// slots reads which ranks are taken in a generation. If a rank is wanted it reads no
// other.
func (s *session) slots(ctx context.Context, gen int64, want int) (slots, error) {
	prefix := s.key.slots(gen)
	ops := []clientv3.Op{clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())}
	if want != anyRank {
		ops = []clientv3.Op{
			clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()), clientv3.OpGet(s.key.slot(gen, want)),
		}
	}

	out := slots{mine: -1, taken: map[int]bool{}}
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

func (t *slots) add(prefix string, kv *mvccpb.KeyValue, lease clientv3.LeaseID) error {
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

// choose returns the wanted rank, or one of the lowest free ranks: of more of them
// after each try in which another process was quicker. It returns -1 if no slot is
// free.
func (t *slots) choose(want, size, tries int) int {
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

// awaitSlot waits until another process has left, and returns errChanged. Any other
// error names the process or the group that it waited for.
func (s *session) awaitSlot(ctx context.Context, v view, t slots, want int) error {
	key, opts := s.key.slots(v.Generation), []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithFilterPut()}
	if want != anyRank && !v.Met {
		key, opts = s.key.slot(v.Generation, want), opts[1:]
	}

	if s.await(ctx, v.rev, key, opts...) == nil {
		return errChanged
	}

	cause := group.ContextError(ctx)
	switch {
	case v.Met:
		return fmt.Errorf("a group of that name has met; processes that have not left: %d (generation %d): %w: %w", t.count, v.Generation, ErrTaken, cause)
	case want != anyRank:
		return fmt.Errorf("%s is rank %d (generation %d): %w: %w", t.who, want, v.Generation, ErrTaken, cause)
	}

	return fmt.Errorf("all %d ranks are other processes (generation %d): %w: %w", t.count, v.Generation, ErrTaken, cause)
}
