package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// keyOf returns a key of a job in the first generation.
func keyOf(job, name string) string { return "cairn/" + url.PathEscape(job) + "/" + name }

func slotKey(job string, rank int) string {
	return keyOf(job, fmt.Sprintf("seats/%016d/%08d", 1, rank))
}

// sit takes a slot that is given back at the end.
func sit(t *testing.T, r *etcd.Rendezvous) int {
	t.Helper()
	t.Cleanup(func() { r.Release() })
	rank, size, err := r.Slot(soon(t))
	if err != nil || size != r.Size {
		t.Fatalf("Slot = %d of %d, %v; want one of %d", rank, size, err, r.Size)
	}
	return rank
}

// endLease ends the lease of a key, as happens to a process that is away too long,
// and returns the revision at which the key was gone.
func endLease(t *testing.T, key string) int64 {
	t.Helper()
	c := client(t)
	res, err := c.Get(t.Context(), key)
	if err != nil || len(res.Kvs) != 1 {
		t.Fatalf("Get(%q) = %v, %v; want one", key, res, err)
	}
	gone, err := c.Revoke(t.Context(), clientv3.LeaseID(res.Kvs[0].Lease))
	must.Do(t, err)
	return gone.Header.Revision
}

// If the lease of a process has ended, because the cluster was away for example, the process
// takes its slot again and announces itself again, if no other process has taken the slot.
func TestSlotIsTakenAgain(t *testing.T) {
	for _, hold := range []bool{false, true} {
		t.Run(fmt.Sprintf("hold %t", hold), func(t *testing.T) {
			job := newJob(t)
			zero := at(job, 2)
			zero.Hold, zero.TTL = hold, time.Second // so it is noticed soon
			sit(t, zero)
			must.Do(t, zero.Announce(soon(t), "127.0.0.1:1"))
			keys := []string{slotKey(job, 0), keyOf(job, fmt.Sprintf("meeting/%016d", 1))}
			if hold {
				zero.Close()
				keys = keys[:1]
			}
			rev := endLease(t, slotKey(job, 0))
			for _, key := range keys {
				res := <-client(t).Watch(soon(t), key, clientv3.WithRev(rev), clientv3.WithFilterDelete())
				if len(res.Events) == 0 {
					t.Errorf("%s was not written again: %v", key, res.Err())
				}
			}
		})
	}
}

// If a process lost its slot or its meeting ended without it, it has the same rank in the
// next one.
func TestFindTakesSlotOfNextMeeting(t *testing.T) {
	for name, happens := range map[string]func(t *testing.T, job string, zero *etcd.Rendezvous){
		"its lease ended": func(t *testing.T, job string, _ *etcd.Rendezvous) { endLease(t, slotKey(job, 1)) },
		"rank 0 has gone": func(t *testing.T, _ string, zero *etcd.Rendezvous) { zero.Close() },
		"rank 0 goes first": func(t *testing.T, job string, zero *etcd.Rendezvous) {
			zero.Announce(soon(t), "127.0.0.1:1")
			zero.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			job := newJob(t)
			zero, one := at(job, 2), at(job, 2)
			if r0, r1 := sit(t, zero), sit(t, one); r0 != 0 || r1 != 1 {
				t.Fatalf("the ranks are %d, %d; want 0, 1", r0, r1)
			}
			happens(t, job, zero)
			var wg sync.WaitGroup
			wg.Go(func() {
				if addr, err := one.Find(soon(t)); addr != "127.0.0.1:2" || err != nil {
					t.Errorf("Find = %q, %v; want where the new rank 0 listens", addr, err)
				}
			})
			again := zero
			if name != "its lease ended" {
				again = at(job, 2)
				again.Rank = new(0)
				sit(t, again)
			}
			if err := again.Announce(soon(t), "127.0.0.1:2"); err != nil {
				t.Errorf("Announce = %v", err)
			}
			wg.Wait()
		})
	}
}

func TestProcessesThatDisagreeAboutTheSize(t *testing.T) {
	job := newJob(t)
	sit(t, at(job, 3))
	other := at(job, 4)
	defer other.Close()
	_, _, err := other.Slot(soon(t))
	if !errors.Is(err, etcd.ErrSize) || !strings.Contains(err.Error(), "others meet as 3 ranks, this process as one of 4") {
		t.Errorf("Slot of a process of 4 among processes of 3 = %v; want an error with both", err)
	}
}

// taken returns the error of a process that waits for a slot in vain. It waits as
// long as the process needs to see that.
func taken(t *testing.T, r *etcd.Rendezvous) error {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, _, err := r.Slot(ctx)
		cancel()
		if errors.Is(err, etcd.ErrTaken) {
			return err
		}
		if err == nil || limit > time.Minute {
			t.Fatalf("Slot = %v; want ErrTaken", err)
		}
	}
}

// One process too many waits until there is a slot.
func TestTooManyProcesses(t *testing.T) {
	job := newJob(t)
	first, second := at(job, 2), at(job, 2)
	sit(t, first)
	sit(t, second)
	third := at(job, 2)
	defer third.Close()
	err := taken(t, third)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "all 2 ranks are other processes") {
		t.Errorf("Slot of a third process of two = %v; want that all are taken", err)
	}
	given := at(job, 2)
	given.Rank = new(1)
	defer given.Close()
	if err := taken(t, given); !strings.Contains(err.Error(), "is rank 1") || !strings.Contains(err.Error(), "process ") {
		t.Errorf("Slot of a second rank 1 = %v; want the process that has it", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if rank, _, err := third.Slot(soon(t)); rank != 1 || err != nil {
			t.Errorf("Slot once one is free = %d, %v; want 1", rank, err)
		}
	})
	if err := second.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	wg.Wait()
}

// If processes hold their slots no other group of that name comes to be while
// theirs lives.
func TestHold(t *testing.T) {
	job := newJob(t)
	held := []*etcd.Rendezvous{at(job, 2), at(job, 2)}
	for _, r := range held {
		r.Hold = true
		defer r.Release()
	}
	meet(t, config(held[0]), config(held[1]))
	next := at(job, 3)
	defer next.Close()
	if err := taken(t, next); !strings.Contains(err.Error(), "processes that have not left: 2 ") {
		t.Errorf("Slot while a group lives = %v; want that slots are taken", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if rank, size, err := next.Slot(soon(t)); rank != 0 || size != 3 || err != nil {
			t.Errorf("Slot after it = %d of %d, %v; want 0 of 3", rank, size, err)
		}
	})
	for _, r := range held {
		if err := r.Release(); err != nil {
			t.Errorf("Release = %v", err)
		}
	}
	wg.Wait()
}

func TestSizeMustBeKnown(t *testing.T) {
	for claim, r := range map[string]*etcd.Rendezvous{
		"no size":            at("x", 0),
		"a negative size":    at("x", -1),
		"a huge size":        at("x", 1<<21),
		"a rank beyond it":   {Job: "x", Size: 2, Rank: new(2), Getenv: noEnv},
		"a negative rank":    {Job: "x", Size: 2, Rank: new(-1), Getenv: noEnv},
		"a rank of letters":  {Job: "x", Size: 2, Getenv: func(string) string { return "two" }},
		"no job":             at("", 2),
		"no cluster":         {Job: "x", Size: 2, Getenv: noEnv},
		"a negative lease":   {Job: "x", Size: 2, TTL: -1, Endpoints: []string{cluster()}, Getenv: noEnv},
		"a job of many byte": at(strings.Repeat("x", 257), 2),
	} {
		if rank, size, err := r.Slot(t.Context()); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("%s: Slot = %d, %d, %v; want an invalid argument", claim, rank, size, err)
		}
	}
}
