package host_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

// Ranks on different hosts all get ErrHosts, and can go on.
func TestSymmetricMemoryNeedsOneHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := goroutines(t, 3)
		ps[2].(*host.Platform).PretendHost("far away")
		var wg sync.WaitGroup
		for r, p := range ps {
			wg.Go(func() {
				s, err := p.(*host.Platform).Symmetric(t.Context(), p.World(), 8)
				if !errors.Is(err, platform.ErrHosts) || !strings.Contains(err.Error(), "ranks 0 and 2") || s != nil {
					t.Errorf("rank %d: Symmetric = %v, %v; want ErrHosts that names ranks 0 and 2", r, s, err)
				}
				if err := p.Barrier(t.Context(), p.World()); err != nil {
					t.Errorf("rank %d: Barrier after that = %v", r, err)
				}
			})
		}
		wg.Wait()
	})
}

// If the context of a rank has ended, all ranks get an error.
func TestSymmetricMemoryOfACancelledRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, p := range goroutines(t, 3) {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if r == 1 {
					cancel()
				}
				s, err := p.(*host.Platform).Symmetric(ctx, p.World(), 8)
				if !errors.Is(err, context.Canceled) || s != nil {
					t.Errorf("rank %d: Symmetric = %v, %v; want context.Canceled", r, s, err)
				}
			})
		}
		wg.Wait()
	})
}

// A closed group has no symmetric memory.
func TestSymmetricMemoryOfAClosedGroup(t *testing.T) {
	p := goroutines(t, 1)[0].(*host.Platform)
	if err := p.Close(t.Context(), p.World()); err != nil {
		t.Fatal(err)
	}
	if s, err := p.Symmetric(t.Context(), p.World(), 1); !errors.Is(err, group.ErrGone) || s != nil {
		t.Errorf("Symmetric = %v, %v; want ErrGone", s, err)
	}
}

// The memory of goroutines is garbage once the ranks have closed it.
func TestSymmetricMemoryIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, p := range goroutines(t, 2) {
			wg.Go(func() {
				s, err := p.(*host.Platform).Symmetric(t.Context(), p.World(), 8)
				if err != nil || s.Close() != nil {
					t.Errorf("rank %d: Symmetric = %v", r, err)
				}
			})
		}
		wg.Wait()
	})
	if n := host.OfferedMemory(); n > 0 {
		t.Errorf("%d memories can still be found", n)
	}
}
