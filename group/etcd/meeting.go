package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// view is a meeting as it was at one revision.
type view struct {
	meeting
	mod     int64            // when the record was last written; 0: never
	rev     int64            // of the view
	address []byte           // of rank 0; nil: it has not announced it
	holder  clientv3.LeaseID // of this process's slot; zero: it is free
	hasSlot bool             // this process has its slot
}

// look reads the record and the keys that concern this process.
func (s *session) look(ctx context.Context) (view, error) {
	ops := []clientv3.Op{clientv3.OpGet(s.key.meeting(), clientv3.WithPrefix())}
	if s.gen != 0 {
		ops = append(ops, clientv3.OpGet(s.key.slot(s.gen, s.rank)))
	}

	res, err := s.txn(ctx, nil, ops...)
	if err != nil {
		return view{}, err
	}

	v := view{rev: res.Header.Revision}
	kvs := res.Responses[0].GetResponseRange().Kvs
	if len(kvs) > 0 && string(kvs[0].Key) == s.key.meeting() {
		if v.meeting, err = decodeMeeting(kvs[0].Value); err != nil {
			return view{}, fmt.Errorf("key %q: %w", kvs[0].Key, err)
		}
		v.mod = kvs[0].ModRevision
	}

	for _, kv := range kvs {
		if string(kv.Key) == s.key.address(v.Generation) {
			v.address = append([]byte{}, kv.Value...)
		}
	}

	if s.gen != 0 {
		for _, kv := range res.Responses[1].GetResponseRange().Kvs {
			v.holder = clientv3.LeaseID(kv.Lease)
			v.hasSlot = s.gen == v.Generation && v.holder == s.lease
		}
	}
	return v, nil
}

// await returns nil when the record, the address of rank 0, or one of the keys that
// key and opts select has changed since rev, or may have, or the lease has ended.
func (s *session) await(ctx context.Context, rev int64, key string, opts ...clientv3.OpOption) error {
	wctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()

	since := clientv3.WithRev(rev + 1)
	record := s.cli.Watch(wctx, s.key.meeting(), clientv3.WithPrefix(), since)
	var other clientv3.WatchChan
	if key != "" {
		other = s.cli.Watch(wctx, key, append(opts, since)...)
	}

	var res clientv3.WatchResponse
	select {
	case res = <-record:
	case res = <-other:
	case <-s.lost:
		return nil
	case <-ctx.Done():
	}

	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(res.Events) == 0 { // compacted, or the cluster does not answer
		return pause(ctx, firstWait)
	}
	return nil
}

// announce writes where rank 0 listens.
func (s *session) announce(ctx context.Context, addr string) error {
	err := s.commit(ctx, s.mine(), s.put(s.key.address(s.gen), addr))
	if errors.Is(err, errChanged) {
		return fmt.Errorf("rank %d in generation %d: %w", s.rank, s.gen, ErrLost)
	}
	if err == nil {
		s.addr = addr
	}
	return err
}

// mine is the condition that this process still has its slot.
func (s *session) mine() []clientv3.Cmp {
	return []clientv3.Cmp{clientv3.Compare(clientv3.LeaseValue(s.key.slot(s.gen, s.rank)), "=", s.lease)}
}

// find waits until rank 0 has announced its address, and returns that.
func (s *session) find(ctx context.Context) (string, error) {
	for {
		v, err := s.look(ctx)
		switch {
		case err != nil:
			return "", err
		case s.hadSlot && (v.Met || !v.hasSlot):
			if err := s.retakeSlot(ctx); err != nil {
				return "", err
			}
			continue
		case v.address != nil && !v.Met:
			addr, err := decodeAddress(v.address)
			if err != nil {
				return "", fmt.Errorf("key %q: %w", s.key.address(v.Generation), err)
			}
			return addr, nil
		}

		if s.await(ctx, v.rev, "") != nil {
			return "", fmt.Errorf("it has not announced its address (generation %d): %w", v.Generation, group.ContextError(ctx))
		}
	}
}

// retakeSlot takes the same slot again, in this meeting or the next one.
func (s *session) retakeSlot(ctx context.Context) error {
	rank, size := s.rank, s.size
	if err := s.dropLease(ctx); err != nil {
		return err
	}
	err := s.takeSlot(ctx, rank, size)
	s.rank, s.size = rank, size
	return err
}

// end ends the meeting if this is rank 0: no process can take a slot any more. The
// slot goes with the lease; until then it keeps the next meeting from beginning.
func (s *session) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()

	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()

	s.left, s.addr = true, ""
	if s.gen == 0 || s.rank != 0 {
		return nil
	}

	m := meeting{Generation: s.gen, Size: s.size, Met: true}
	err := s.commit(ctx, s.mine(), clientv3.OpPut(s.key.meeting(), encode(m)), clientv3.OpDelete(s.key.address(s.gen)))
	if errors.Is(err, errChanged) {
		return nil // the meeting is another's
	}
	return err
}

// ErrMalformed reports a value in etcd that this package did not write.
var ErrMalformed = errors.New("malformed value in etcd")

const (
	maxValue   = 4 << 10 // of a value in etcd
	maxSize    = 1 << 20 // of a group
	maxHost    = 512     // of the name of a host
	lastNumber = 1 << 53 // of a generation: JSON has no larger integers
)

// keys makes the names of a job's keys in etcd. Numbers in them have as many digits, so that
// they sort.
type keys string

func keysOf(job string) keys { return keys("cairn/" + url.PathEscape(job) + "/") }

// meeting is the record, and where the addresses begin.
func (k keys) meeting() string                 { return string(k) + "meeting" }
func (k keys) address(gen int64) string        { return fmt.Sprintf("%smeeting/%016d", k, gen) }
func (k keys) slots(gen int64) string          { return fmt.Sprintf("%sseats/%016d/", k, gen) }
func (k keys) slot(gen int64, rank int) string { return fmt.Sprintf("%s%08d", k.slots(gen), rank) }

// meeting is the record of a job's latest meeting. The zero value means that the
// job never met.
type meeting struct {
	Generation int64 `json:"generation"`
	Size       int   `json:"size"` // zero: rank 0 did not say
	Met        bool  `json:"met"`  // rank 0 has left
}

// encode returns a value as JSON. It is for values that always have one.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func decodeMeeting(b []byte) (meeting, error) {
	var m meeting
	if len(b) > maxValue {
		return m, fmt.Errorf("record of %d bytes: %w", len(b), ErrMalformed)
	}

	if err := json.Unmarshal(b, &m); err != nil {
		return meeting{}, fmt.Errorf("record: %w: %w", ErrMalformed, err)
	}
	if m.Generation < 1 || m.Generation >= lastNumber || m.Size < 0 || m.Size > maxSize {
		return meeting{}, fmt.Errorf("record: generation %d, size %d: %w", m.Generation, m.Size, ErrMalformed)
	}
	return m, nil
}

// decodeAddress returns where rank 0 listens.
func decodeAddress(b []byte) (string, error) {
	if err := tcp.CheckAddress(string(b)); err != nil {
		return "", fmt.Errorf("address: %w: %v", ErrMalformed, err) // not an argument of the caller
	}
	return string(b), nil
}

// holder is the process that has a slot, for the errors of other processes.
type holder struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
}

// self returns this process.
func self() holder {
	host, _ := os.Hostname() // "" is as good as any
	if len(host) > maxHost {
		host = host[:maxHost]
	}
	return holder{host, os.Getpid()}
}

// describeHolder returns the process that has a slot, in words.
func describeHolder(b []byte) string {
	var h holder
	if len(b) > maxValue || json.Unmarshal(b, &h) != nil || len(h.Host) > maxHost {
		return "an unknown process"
	}
	return fmt.Sprintf("process %d on %q", h.PID, h.Host)
}
