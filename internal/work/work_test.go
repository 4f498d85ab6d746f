package work

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

func TestProgressSumsUpToThePlan(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		var told int64
		p := &Share{
			Plan:  rapid.Int64Range(0, math.MaxInt64).Draw(t, "plan"),
			Total: rapid.Int64Range(1, math.MaxInt64).Draw(t, "total"),
		}
		p.Tell = func(n int64) {
			if n <= 0 {
				t.Errorf("told of %d bytes", n)
			}
			told += n
		}
		for left := p.Total; left > 0; {
			n := rapid.Int64Range(1, left).Draw(t, "moved")
			if rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				n = left
			}
			left -= n
			p.Add(n)
			if told > p.Plan {
				t.Fatalf("told of %d bytes of %d", told, p.Plan)
			}
		}
		if told != p.Plan {
			t.Errorf("told of %d bytes in all; want %d", told, p.Plan)
		}
	})
}

func TestProgressWithoutListener(t *testing.T) {
	p := &Share{Plan: 10, Total: 10}
	p.Add(5) // does not panic
	if p.moved != 0 {
		t.Errorf("moved = %d; want 0 without Tell", p.moved)
	}
}

func TestEachCallsAllWithinTheLimit(t *testing.T) {
	var calls, now, most atomic.Int64
	err := Each(t.Context(), 100, 3, func(context.Context, int) error {
		for n := now.Add(1); ; {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		calls.Add(1)
		now.Add(-1)
		return nil
	})
	if err != nil || calls.Load() != 100 || most.Load() > 3 {
		t.Errorf("Each = %v after %d calls, %d at a time; want 100 calls, at most 3 at a time", err, calls.Load(), most.Load())
	}
}

func TestEachReturnsErrorsAndPanics(t *testing.T) {
	broken := errors.New("broken")
	for name, fail := range map[string]func() error{
		"an error": func() error { return broken },
		"a panic":  func() error { panic("broken") },
	} {
		err := Each(t.Context(), 5, 2, func(ctx context.Context, i int) error {
			if i == 1 {
				return fail()
			}
			<-ctx.Done()
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("%s: Each = %v; want it", name, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if err := Each(ctx, 5, 2, func(context.Context, int) error { return nil }); !errors.Is(err, broken) {
		t.Errorf("Each of a finished context = %v; want its cause", err)
	}
}
