package extent

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
)

// Intervals never overlap, lie in the space, are at the lowest place that fits, and can be
// used again.
func TestFree(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		const size = 40
		f := New(size)
		var used [size]bool
		var held []interval
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "put") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				mark(used[:], held[i], false)
				f.Put(held[i].off, held[i].len)
				held = slices.Delete(held, i, i+1)
				continue
			}
			n := rapid.Int64Range(1, size/2).Draw(t, "n")
			want := int64(-1)
			for off := int64(0); off+n <= size && want < 0; off++ {
				if !slices.Contains(used[off:off+n], true) {
					want = off
				}
			}
			off, ok := f.Take(n)
			if ok != (want >= 0) || ok && off != want {
				t.Fatalf("Take(%d) = %d, %v; want %d", n, off, ok, want)
			}
			if ok {
				held = append(held, interval{off, n})
				mark(used[:], interval{off, n}, true)
			}
		}
		for _, h := range held {
			f.Put(h.off, h.len)
		}
		if off, ok := f.Take(size); !ok || off != 0 {
			t.Fatalf("the space is not free again: %+v", f.free)
		}
	})
}

func mark(used []bool, e interval, as bool) {
	for i := e.off; i < e.off+e.len; i++ {
		used[i] = as
	}
}
