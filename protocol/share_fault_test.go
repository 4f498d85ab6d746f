package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// trapped is a group with a trap at its messages, or with changed messages.
type trapped struct {
	*inproc.Group
	trap
	seen   *atomic.Int64                  // messages that were sent
	tamper func(n int64, b []byte) []byte // nil: they are left alone
	leave  func(n int64, g *inproc.Group) // nil: no rank leaves
}

func (g *trapped) Send(ctx context.Context, to, tag int, b []byte) error {
	if err := g.enter("mail.Send"); err != nil {
		return err
	}
	n := int64(0)
	if g.seen != nil {
		n = g.seen.Add(1)
	}
	if g.leave != nil {
		g.leave(n, g.Group)
	}
	if g.tamper != nil {
		b = g.tamper(n, bytes.Clone(b))
	}
	return g.Group.Send(ctx, to, tag, b)
}

func (g *trapped) Recv(ctx context.Context, from, tag int) ([]byte, error) {
	if err := g.enter("mail.Recv"); err != nil {
		return nil, err
	}
	return g.Group.Recv(ctx, from, tag)
}

func (g *trapped) RecvInto(ctx context.Context, from, tag int, b []byte) error {
	if err := g.enter("mail.RecvInto"); err != nil {
		return err
	}
	return g.Group.RecvInto(ctx, from, tag, b)
}

// If anything fails on a rank while ranks read for each other, every rank returns the
// error, and none waits forever.
func TestSharedLoadFailureReachesAllRanks(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	for _, m := range []method{
		{"planner.FinishPlan", "read", false},
		{"planner.ResolveTensor", "read", false},
		{"planner.CommitTensor", "read", false},
		{"planner.LoadBytes", "read", false},
		{"reader.ReadData", "read", false},
		{"mail.Send", "read", false},
		{"mail.Recv", "read", false},
		{"mail.RecvInto", "read", false},
	} {
		for how, want := range waysOut {
			for _, ranks := range m.victims(how) {
				t.Run(fmt.Sprint(m.name, " ", how, " ", ranks), func(t *testing.T) {
					errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
						ctx, cancel := context.WithCancelCause(ctx)
						defer cancel(nil)
						job := shareJob(t, g, s)
						if slices.Contains(ranks, g.Rank()) {
							p := trap{m.name, how, cancel}
							job.Planner = &LoadPlanner{Share: true, Hook: p.enter}
							job.Reader = &Reader{Reader: job.Reader, Hook: p.enter}
							job.Group = &trapped{Group: g, trap: p}
						}
						_, err := protocol.Load(ctx, job)
						return err
					})
					checkSame(t, errs, m.step, ranks)
					for r, err := range errs {
						if !errors.Is(err, want) || !errors.Is(err, errOnPurpose) {
							t.Errorf("rank %d returned %v; want %v and %v", r, err, want, errOnPurpose)
						}
					}
				})
			}
		}
	}
}

// A message that was changed on its way is refused, whichever message and bit of it. The
// group goes on working: messages of a failed load are not taken for messages of the next
// one.
func TestShareRefusesTamperedMessages(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	changes := []func(b []byte) []byte{
		func(b []byte) []byte { b[0] ^= 1; return b },
		func(b []byte) []byte { b[len(b)-1] ^= 0x80; return b },
		func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b },
		func(b []byte) []byte { return b[:len(b)-1] },
		func(b []byte) []byte { return append(b, 0) },
		func([]byte) []byte { return nil },
	}
	for nth := range deep.Steps[int64]() {
		var seen atomic.Int64
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := shareJob(t, g, s)
			job.Group = &trapped{Group: g, seen: &seen, tamper: func(n int64, b []byte) []byte {
				if n == nth {
					return changes[n%int64(len(changes))](b)
				}
				return b
			}}
			_, err := protocol.Load(ctx, job)
			if err == nil {
				return nil
			}
			again := shareJob(t, g, s)
			if _, err := protocol.Load(ctx, again); err != nil {
				return fmt.Errorf("load again: %w", err)
			}
			return errors.Join(err, checkReplica(t, again.State, g.Rank()))
		})
		if seen.Load() < nth {
			if err := errors.Join(errs...); err != nil || nth < 12 {
				t.Errorf("%d messages, and then: %v", nth-1, err)
			}
			return
		}
		for r, err := range errs {
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "rank") || strings.Contains(err.Error(), "again") {
				t.Fatalf("message %d: rank %d returned %v; want %v", nth, r, err, storage.ErrCorrupt)
			}
		}
	}
}

// A rank that goes away for good, before whichever message.
func TestShareRankLeaves(t *testing.T) {
	s := new(mem.Store)
	saveReplicas(t, s)
	for nth := range deep.Steps[int64]() {
		var seen atomic.Int64
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := shareJob(t, g, s)
			job.Group = &trapped{Group: g, seen: &seen, leave: func(n int64, g *inproc.Group) {
				if n == nth {
					g.Leave(errOnPurpose)
				}
			}}
			_, err := protocol.Load(ctx, job)
			return err
		})
		if seen.Load() < nth {
			if err := errors.Join(errs...); err != nil || nth < 12 {
				t.Errorf("%d messages, and then: %v", nth-1, err)
			}
			return
		}
		for r, err := range errs {
			if !errors.Is(err, group.ErrGone) {
				t.Fatalf("before message %d: rank %d returned %v; want %v", nth, r, err, group.ErrGone)
			}
		}
	}
}

// A damaged file fails the load on all ranks, whoever reads it.
func TestShareDamagedFile(t *testing.T) {
	clean := new(mem.Store)
	saveReplicas(t, clean)
	var files []string
	for _, name := range storagetest.Names(t, clean) {
		if strings.HasSuffix(name, ".safetensors") {
			files = append(files, name)
		}
	}
	for _, name := range files {
		s := storagetest.CopyOf(t, clean)
		storagetest.Flip(t, s, name)
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			_, err := protocol.Load(ctx, shareJob(t, g, s))
			return err
		})
		checkSame(t, errs, "read", []int{0, 1, 2, 3})
		for r, err := range errs {
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("%s: rank %d returned %v; want %v", name, r, err, storage.ErrCorrupt)
			}
		}
	}
}
