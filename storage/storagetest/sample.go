package storagetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Filled returns a tensor of bytes that count up from seed. If the elements are bools, they
// are 0 and 1.
func Filled(t testing.TB, d tensor.DType, shape []int64, seed byte) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.New(d, shape))(t)
	p, _ := x.Bytes()
	for i := range p {
		p[i] = seed + byte(i*7+i>>8)
		if d == tensor.Bool {
			p[i] &= 1
		}
	}

	return x
}

// Cut returns rank's share of x by a layout, copied.
func Cut(t testing.TB, l shard.Layout, x *tensor.Tensor, rank int) *shard.Tensor {
	t.Helper()
	s := must.Get(shard.Empty(l, x.DType(), x.Shape(), rank))(t)
	for i, b := range s.Boxes() {
		must.Do(t, tensor.Copy(must.Get(s.Part(i))(t), must.Get(x.Narrow(b))(t)))
	}
	return s
}

// Along returns the layout that cuts dimension dim over that number of ranks.
func Along(dim, ranks int) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: []int{ranks}}, Placements: []shard.Placement{shard.Shard(dim)}}
}

// sample returns one rank's state of everything that the format holds: tensors
// of each type, of no dimensions and of no elements, views, values small and
// large, names of all sorts. Blank copies have the same structure and no
// content.
func (s *Options) sample(t testing.TB, seed byte) plan.State {
	tensors := map[string]any{}
	for i, d := range s.DTypes {
		tensors[d.String()] = Filled(t, d, []int64{3, 5}, seed+byte(i))
	}

	d := s.DTypes[0]
	wide := Filled(t, d, []int64{6, 8}, seed)
	odd := map[string]any{
		"scalar":     Filled(t, d, nil, seed),
		"empty":      Filled(t, d, []int64{0, 4}, seed),
		"long":       Filled(t, d, []int64{20001}, seed),
		"wide":       Filled(t, d, []int64{3, 3000}, seed),
		"transposed": must.Get(wide.Transpose(0, 1))(t),
		"strided":    must.Get(wide.Slice(1, 1, 7, 2))(t),
		"repeated":   must.Get(must.Get(wide.Slice(0, 2, 3, 1))(t).Expand([]int64{4, 8}))(t),
	}

	names := map[string]any{
		"sp ace/slash.dot": Filled(t, d, []int64{1}, seed), `quo"te\`: Filled(t, d, []int64{2}, seed),
		"ünï☃": Filled(t, d, []int64{3}, seed), "__metadata__": Filled(t, d, []int64{4}, seed),
		strings.Repeat("long", 200): Filled(t, d, []int64{5}, seed),
	}
	state := plan.State{"t": tensors, "odd": odd, "names": names, "__metadata__": Filled(t, d, []int64{6}, seed)}
	for _, name := range s.Reserved {
		delete(state, name)
	}

	if !s.NoValues {
		state["v"] = map[string]any{
			"int": int64(seed), "float": 0.5, "text": "a\x00b☃", "nil": nil, "bytes": []byte{1, seed, 0}, "none": []byte{},
			"big": slices.Repeat([]byte{seed, 1, 2}, 20_000), "list": []any{int64(1), "two", nil},
		}
	}
	return state
}

// blank returns a copy of a state that has lost its content.
func blank(t testing.TB, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = blank(t, e)
		}
		return out
	case *tensor.Tensor:
		return must.Get(tensor.New(v.DType(), v.Shape()))(t)
	}
	return nil
}

func blankState(t testing.TB, s plan.State) plan.State { return blank(t, s).(plan.State) }

// sameTensor lets cmp compare tensors.
var sameTensor = cmp.Comparer(func(a, b *tensor.Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return tensor.Equal(a, b)
})

// checkState compares the loaded state with the saved state.
func checkState(t testing.TB, want, got plan.State) {
	t.Helper()
	if diff := cmp.Diff(want, got, sameTensor, cmp.Comparer(bytes.Equal)); diff != "" {
		t.Errorf("loaded state (-want +got):\n%s", shorten(diff))
	}
}

func shorten(diff string) string {
	const most = 4000
	if len(diff) > most {
		return fmt.Sprintf("%s… (%d bytes)", diff[:most], len(diff))
	}
	return diff
}

// small returns a state that is quickly saved, and different for each seed.
func (s *Options) small(t testing.TB, seed byte) plan.State {
	state := plan.State{"w": Filled(t, s.DTypes[0], []int64{4, 3}, seed), "b": Filled(t, s.DTypes[0], []int64{2}, seed+1)}
	if !s.NoValues {
		state["step"] = int64(seed)
	}
	return state
}
