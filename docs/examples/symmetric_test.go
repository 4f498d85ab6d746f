package examples

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

// passOn puts a byte into the memory of the next rank and returns the byte that this rank
// gets from the rank before it.
func passOn(ctx context.Context, p platform.Platform, b byte) (byte, error) {
	memory, err := platform.As[platform.SymmetricMemory](p)
	if err != nil {
		return 0, err
	}
	world := p.World()
	s, err := memory.Symmetric(ctx, world, 1)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	next := (world.Rank() + 1) % world.Size()
	s.Memory(next)[0] = b
	if err := s.Barrier(ctx); err != nil {
		return 0, err
	}
	got := s.Memory(world.Rank())[0]
	return got, s.Barrier(ctx) // no rank closes its memory before all have read
}

func TestPassOn(t *testing.T) {
	err := inproc.Run(t.Context(), 3, func(ctx context.Context, g group.Group) error {
		got, err := passOn(ctx, host.New(g), byte(g.Rank()))
		if want := byte((g.Rank() + 2) % 3); err == nil && got != want {
			t.Errorf("rank %d got %d; want %d", g.Rank(), got, want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
