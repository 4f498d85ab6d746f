package collective

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/tensor"
)

// property: verdicts come to the same in whatever order they are merged, also
// if sets of ranks overlap.
func TestVerdictsMergeInAnyOrder(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(rt, "ranks")
		single := make([]verdict, n)
		for r := range single {
			v := voice{rank: r, call: call{count: rapid.Int64Range(0, 5).Draw(rt, "count")}}
			if rapid.IntRange(0, 9).Draw(rt, "error") == 0 {
				v.err = group.NewRemoteError(tensor.ErrShape)
			}
			single[r] = verdict{voices: []voice{v}, detail: rapid.Uint64Range(0, 1).Draw(rt, "detail")}
		}
		order := rapid.SliceOfN(rapid.IntRange(0, n-1), 0, 3*n).Draw(rt, "order")
		order = append(order, rapid.Permutation(indices(n)).Draw(rt, "all")...)
		want, got := merged(single, indices(n)), merged(single, order)
		if !reflect.DeepEqual(got.voices, want.voices) || got.differs != want.differs {
			rt.Fatalf("merged in the order %v: %+v; want %+v", order, got, want)
		}
	})
}

func merged(vs []verdict, order []int) verdict {
	out := verdict{voices: append([]voice(nil), vs[order[0]].voices...), detail: vs[order[0]].detail}
	for _, i := range order[1:] {
		out.merge(&vs[i])
	}
	return out
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
