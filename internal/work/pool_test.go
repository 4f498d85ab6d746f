package work

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

const page = blob.Align

func TestPoolCountFollowsBudget(t *testing.T) {
	for _, c := range []struct {
		size        int
		budget, min int64
		want        int
	}{
		{page, 10 * page, 1, 10},
		{page, 10*page + page - 1, 1, 10},
		{4 * page, 10 * page, 1, 2},
		{4 * page, 0, 1, 1},
		{4 * page, -5, 2, 2},
		{page, 10 * page, 20, 20},
	} {
		if got := NewPool(c.size, c.budget, c.min).Count(); got != c.want {
			t.Errorf("NewPool(%d, %d, %d).Count() = %d; want %d", c.size, c.budget, c.min, got, c.want)
		}
	}
}

func TestNewPoolRefusesInvalidSizes(t *testing.T) {
	for _, c := range [][2]int64{{0, 1}, {-page, 1}, {page + 1, 1}, {page, 0}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewPool(%d, 0, %d) did not panic", c[0], c[1])
				}
			}()
			NewPool(int(c[0]), 0, c[1])
		}()
	}
}

func TestBuffersAreWholeAndAligned(t *testing.T) {
	p := NewPool(3*page, 0, 1)
	for range 3 {
		b := must.Get(p.Get(t.Context()))(t)
		if len(b) != 3*page || len(b) != p.Size() || !blob.Aligned(b) {
			t.Errorf("Get = %d bytes, aligned %v; want %d, aligned", len(b), blob.Aligned(b), 3*page)
		}
		p.Put(b[:1])
	}
}

func TestGetWaitsForPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(page, 0, 1)
		b := must.Get(p.Get(t.Context()))(t)
		got := make(chan error)
		go func() {
			c, err := p.Get(t.Context())
			if err == nil {
				p.Put(c)
			}
			got <- err
		}()
		synctest.Wait()
		select {
		case <-got:
			t.Error("a second Get returned while the only buffer was lent")
		default:
		}
		p.Put(b)
		if err := <-got; err != nil {
			t.Errorf("Get after Put = %v; want nil", err)
		}
	})
}

func TestGetReturnsContextCause(t *testing.T) {
	p := NewPool(page, 0, 1)
	b := must.Get(p.Get(t.Context()))(t)
	defer p.Put(b)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	before := Stats().Lent
	if _, err := p.Get(ctx); !errors.Is(err, why) {
		t.Errorf("Get = %v; want %v", err, why)
	}
	if got := Stats().Lent; got != before {
		t.Errorf("a Get that failed lent %d bytes", got-before)
	}
}

func TestStatsCountLentBytes(t *testing.T) {
	p := NewPool(2*page, 8*page, 1)
	ResetPeak()
	before := Stats()
	var held [][]byte
	for range 3 {
		b := must.Get(p.Get(t.Context()))(t)
		held = append(held, b)
	}
	if got := Stats().Lent - before.Lent; got != 6*page {
		t.Errorf("lent = %d; want %d", got, 6*page)
	}
	for _, b := range held {
		p.Put(b)
	}
	after := Stats()
	if after.Lent != before.Lent || after.Peak-before.Lent != 6*page {
		t.Errorf("after Put: lent %d, peak %d more; want 0 and %d", after.Lent-before.Lent, after.Peak-before.Lent, 6*page)
	}
	if ResetPeak(); Stats().Peak != before.Lent {
		t.Errorf("peak after ResetPeak = %d; want %d", Stats().Peak, before.Lent)
	}
}

func TestFreeBuffersAreBounded(t *testing.T) {
	s := &buffers{keep: 8 * page, bySize: map[int][][]byte{}}
	check := func(kept int64, when string) {
		t.Helper()
		var have int64
		for size, l := range s.bySize {
			have += int64(size * len(l))
		}
		if have != s.usage.Kept || s.usage.Kept != kept || s.usage.Kept > s.keep || s.usage.Lent != 0 {
			t.Errorf("%s: %d bytes, usage %+v; want %d kept and none lent", when, have, s.usage, kept)
		}
	}
	cycle := func(size, n int) {
		var held [][]byte
		for range n {
			held = append(held, s.take(size))
		}
		for _, b := range held {
			s.give(b)
		}
	}
	cycle(page, 5)
	check(5*page, "after five small ones")
	cycle(page, 20)
	check(8*page, "after twenty small ones")
	cycle(3*page, 2)
	check(8*page, "after two of another size")
	if got := len(s.bySize[3*page]); got != 2 {
		t.Errorf("%d of the size in use were kept; want 2", got)
	}
	cycle(9*page, 1)
	if len(s.bySize[9*page]) != 0 {
		t.Error("a buffer above the bound was kept")
	}
	if b := s.take(3 * page); len(b) != 3*page {
		t.Errorf("take = %d bytes; want %d", len(b), 3*page)
	}
}

func TestPoolsAreSafeForConcurrentUse(t *testing.T) {
	before := Stats().Lent
	var wg sync.WaitGroup
	for size := 1; size <= 3; size++ {
		p := NewPool(size*page, 4*page, 1)
		for w := range 8 {
			wg.Go(func() {
				for range 200 {
					b, err := p.Get(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					b[0], b[len(b)-1] = byte(w), byte(w)
					if b[0] != byte(w) || b[len(b)-1] != byte(w) {
						t.Error("two hold one buffer")
					}
					p.Put(b)
				}
			})
		}
	}
	wg.Wait()
	if got := Stats().Lent; got != before {
		t.Errorf("%d bytes are still lent", got-before)
	}
}
