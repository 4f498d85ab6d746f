package convert_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// For any sharding of the source and of the target, and any casts and renames, the
// loaded state is the state of the source, cast and renamed.
func TestConvertedStateLoadsProperty(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		whole := drawTensors(rt, t)
		src := &mem.Store{Name: "source"}
		save(t, src, drawStates(rt, t, whole)...)
		o := drawOptions(rt)
		dst, _ := converted(t, src, o)
		got, _, err := cairn.LoadNew(context.Background(), dst, nil)
		if err != nil {
			rt.Fatal(err)
		}
		want := expected(t, src, o)
		if d := slices.Sorted(maps.Keys(got)); !slices.Equal(d, slices.Sorted(maps.Keys(want))) {
			rt.Fatalf("%+v: names %v; want %v", o, d, slices.Sorted(maps.Keys(want)))
		}
		for name, x := range want {
			if y, ok := got[name].(*tensor.Tensor); !ok || !tensor.Equal(x, y) {
				rt.Errorf("%+v: %s differs", o, name)
			}
		}
	})
}

// drawTensors returns the tensors of a state, whole. Some are larger than a single read with
// little memory.
func drawTensors(rt *rapid.T, t *testing.T) map[string]*tensor.Tensor {
	out := map[string]*tensor.Tensor{}
	dtypes := []tensor.DType{tensor.Float32, tensor.BFloat16, tensor.Int64, tensor.Uint8, tensor.Complex128}
	for i := range rapid.IntRange(1, 6).Draw(rt, "tensors") {
		shape := rapid.SliceOfN(rapid.Int64Range(0, 9), 0, 4).Draw(rt, "shape")
		if len(shape) > 0 && rapid.IntRange(0, 3).Draw(rt, "large") == 0 {
			shape[0] = rapid.Int64Range(300, 3000).Draw(rt, "rows")
		}
		d := rapid.SampledFrom(dtypes).Draw(rt, "dtype")
		out[fmt.Sprintf("t%d", i)] = storagetest.Filled(t, d, shape, byte(i))
	}
	return out
}

// drawStates cuts the tensors over some ranks.
func drawStates(rt *rapid.T, t *testing.T, whole map[string]*tensor.Tensor) []plan.State {
	ranks := rapid.IntRange(1, 4).Draw(rt, "ranks")
	states := make([]plan.State, ranks)
	for r := range states {
		states[r] = plan.State{}
	}
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		x := whole[name]
		var l shard.Layout = shard.FlatEven(ranks)
		if x.Dims() > 0 && rapid.Bool().Draw(rt, "by dimension") {
			l = storagetest.Along(rapid.IntRange(0, x.Dims()-1).Draw(rt, "dim"), ranks)
		}
		for r := range states {
			states[r][name] = storagetest.Cut(t, l, x, r)
		}
	}
	return states
}

func drawOptions(rt *rapid.T) *convert.Options {
	o := &convert.Options{
		Parallel: rapid.IntRange(0, 3).Draw(rt, "parallel"),
		Memory:   rapid.SampledFrom([]int64{0, 1}).Draw(rt, "memory"),
	}
	switch rapid.IntRange(0, 3).Draw(rt, "sharding") {
	case 0:
		o.Merge = true
	case 1:
		o.WorldSize = rapid.IntRange(1, 7).Draw(rt, "world")
	case 2:
		o.Mesh = []int{rapid.IntRange(1, 3).Draw(rt, "rows"), rapid.IntRange(1, 3).Draw(rt, "columns")}
		o.Placements = []string{rapid.SampledFrom([]string{"S(0),S(1)", "S(1),S(0)", "R,S(0)", "S(0),S(0)", "S(-1),R"}).Draw(rt, "placements")}
	}
	if rapid.Bool().Draw(rt, "cast") {
		o.DType = []string{rapid.SampledFrom([]string{"float16", "float64", "*=float32", "t0=uint8"}).Draw(rt, "dtype")}
		o.Cast = tensor.CastAny
	}
	if rapid.Bool().Draw(rt, "rename") {
		o.Rename = []string{rapid.SampledFrom([]string{"t*=model_*", "t0=z", "s/t/u/"}).Draw(rt, "rule")}
	}
	return o
}

// expected returns the state of the source, with the options' casts and names, by way of
// LoadNew and tensor.Convert.
func expected(t *testing.T, src *mem.Store, o *convert.Options) map[string]*tensor.Tensor {
	t.Helper()
	state, _, err := cairn.LoadNew(context.Background(), src, nil)
	if err != nil {
		t.Fatal(err)
	}
	rename := must.Get(convert.ParseRename(o.Rename))(t)
	out := map[string]*tensor.Tensor{}
	for name, v := range state {
		x := v.(*tensor.Tensor)
		y, err := tensor.New(castOf(t, name, x.DType(), o.DType), x.Shape())
		if err == nil {
			err = tensor.Convert(y, x, tensor.CastAny)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[rename.Apply(name)] = y
	}
	return out
}

// castOf applies the rules above.
func castOf(t *testing.T, name string, d tensor.DType, rules []string) tensor.DType {
	t.Helper()
	if len(rules) == 0 {
		return d
	}
	switch {
	case rules[0] == "float16" && (d == tensor.Float32 || d == tensor.BFloat16):
		return tensor.Float16
	case rules[0] == "float64" && (d == tensor.Float32 || d == tensor.BFloat16):
		return tensor.Float64
	case rules[0] == "*=float32":
		return tensor.Float32
	case rules[0] == "t0=uint8" && name == "t0":
		return tensor.Uint8
	}
	return d
}
