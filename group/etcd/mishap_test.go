package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// nowhere returns an address at which no process listens.
func nowhere(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

// silent returns an address that takes connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func TestUnreachableCluster(t *testing.T) {
	why := map[string]string{"no listener": "refused", "no answer": "has not answered"}
	for claim, endpoint := range map[string]string{"no listener": nowhere(t), "no answer": silent(t)} {
		for call, f := range map[string]func(ctx context.Context, r *etcd.Rendezvous) error{
			"Slot":     func(ctx context.Context, r *etcd.Rendezvous) error { _, _, err := r.Slot(ctx); return err },
			"Find":     func(ctx context.Context, r *etcd.Rendezvous) error { _, err := r.Find(ctx); return err },
			"Announce": func(ctx context.Context, r *etcd.Rendezvous) error { return r.Announce(ctx, "a:1") },
			"Join":     func(ctx context.Context, r *etcd.Rendezvous) error { _, err := tcp.Join(ctx, config(r)); return err },
			"Slot with a password": func(ctx context.Context, r *etcd.Rendezvous) error {
				r.Username, r.Password = "rank", "hush"
				_, _, err := r.Slot(ctx)
				return err
			},
		} {
			t.Run(claim+", "+call, func(t *testing.T) {
				t.Parallel()
				r := at("job", 2)
				r.Endpoints = []string{endpoint}
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				err := f(ctx, r)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "etcd at "+endpoint) || !strings.Contains(err.Error(), why[claim]) {
					t.Errorf("%s = %v; want that the time is over, the endpoint, and %q", call, err, why[claim])
				}
				if err := r.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
			})
		}
	}
}

// If one member of the cluster does not answer another one does.
func TestClusterWithOneMemberDown(t *testing.T) {
	cfgs := assigned(newJob(t), 2)
	for _, cfg := range cfgs {
		r := cfg.Meet.(*etcd.Rendezvous)
		r.Endpoints = []string{nowhere(t), cluster(), silent(t)}
	}
	meet(t, cfgs...)
}

func TestMalformedValues(t *testing.T) {
	c := client(t)
	for claim, value := range map[string]string{
		"no record":              "",
		"not JSON":               "{",
		"no generation":          `{"size":2}`,
		"a negative generation":  `{"generation":-1,"size":2}`,
		"the last generation":    `{"generation":9007199254740992,"size":2}`,
		"an enormous generation": `{"generation":1e300,"size":2}`,
		"a negative size":        `{"generation":1,"size":-2}`,
		"a huge size":            `{"generation":1,"size":2000000}`,
		"a long record":          `{"generation":1,"size":2,"x":"` + strings.Repeat("x", 5000) + `"}`,
	} {
		t.Run(claim, func(t *testing.T) {
			job := newJob(t)
			if _, err := c.Put(t.Context(), keyOf(job, "meeting"), value); err != nil {
				t.Fatal(err)
			}
			r := at(job, 2)
			defer r.Close()
			if rank, _, err := r.Slot(soon(t)); !errors.Is(err, etcd.ErrMalformed) || !strings.Contains(err.Error(), "meeting") {
				t.Errorf("Slot = %d, %v; want a malformed value and its key", rank, err)
			}
			if got := contents(t, job)[keyOf(job, "meeting")]; got != value {
				t.Errorf("the record is %q; want it as it was", got)
			}
		})
	}
}

func TestMalformedAddressesAndSlots(t *testing.T) {
	c := client(t)
	for claim, value := range map[string]string{
		"empty": "", "long": strings.Repeat("x", 600), "two lines": "a:1\nb:2", "no text": "\xff:1",
	} {
		job := newJob(t)
		zero, one := at(job, 2), at(job, 2)
		sit(t, zero)
		sit(t, one)
		if _, err := c.Put(t.Context(), keyOf(job, fmt.Sprintf("meeting/%016d", 1)), value); err != nil {
			t.Fatal(err)
		}
		if addr, err := one.Find(soon(t)); !errors.Is(err, etcd.ErrMalformed) {
			t.Errorf("%s: Find = %q, %v; want a malformed value", claim, addr, err)
		}
		if err := zero.Announce(soon(t), value); err == nil {
			t.Errorf("%s: Announce = nil; want an error", claim)
		}
	}
	job := newJob(t)
	sit(t, at(job, 3))
	if _, err := c.Put(t.Context(), keyOf(job, fmt.Sprintf("seats/%016d/first", 1)), "me"); err != nil {
		t.Fatal(err)
	}
	r := at(job, 3)
	defer r.Close()
	if _, _, err := r.Slot(soon(t)); !errors.Is(err, etcd.ErrMalformed) {
		t.Errorf("Slot beside one that is no number = %v; want a malformed value", err)
	}
}

// Processes of which one does not know the secret do not meet, and the slot of that
// one is free for another.
func TestWrongSecret(t *testing.T) {
	job := newJob(t)
	stranger := config(at(job, 2))
	stranger.Secret = []byte("guessed")
	stranger.Meet.(*etcd.Rendezvous).Rank = new(1)
	zero := config(at(job, 2))
	zero.Meet.(*etcd.Rendezvous).Rank = new(0)
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	done := make(chan []*tcp.Group)
	go func() {
		gs, _ := joinAll(ctx, zero)
		done <- gs
	}()
	if _, err := tcp.Join(soon(t), stranger); !errors.Is(err, tcp.ErrSecret) {
		t.Errorf("Join with another secret = %v; want that it does not match", err)
	}
	one, errs := joinAll(soon(t), config(at(job, 2)))
	gs := append(<-done, one...)
	defer tcptest.Close(gs)
	if gs[0] == nil || gs[1] == nil {
		t.Errorf("Join = %v, %v; want a group", gs, errs)
	}
}
