package hf

import (
	"maps"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// schemeFixtures returns the names of the fixtures of quantised weights.
func schemeFixtures(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, d := range must.Get(os.ReadDir("testdata/quant"))(t) {
		if d.IsDir() {
			out = append(out, d.Name())
		}
	}
	if len(out) < 13 {
		t.Fatalf("%d fixtures", len(out))
	}
	return out
}

// Weights of each kind are the numbers that its own program makes of them, bit by bit.
func TestSchemesEqualTheirPrograms(t *testing.T) {
	for _, name := range schemeFixtures(t) {
		t.Run(name, func(t *testing.T) {
			got := loadAll(t, testdata(t, "quant/"+name+"/input"), Format{Dequantize: true})
			want := loadAll(t, must.Get(file.Open("testdata/quant/"+name+"/expected", nil))(t), Format{})
			if a, b := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(a, b) {
				t.Fatalf("names %v; want %v", a, b)
			}
			for name, w := range want {
				g, w := got[name].(*tensor.Tensor), w.(*tensor.Tensor)
				if g.DType() != w.DType() || !tensor.Equal(g, w) {
					t.Errorf("%q = %v; want %v, or other numbers", name, g, w)
				}
			}
		})
	}
}

// A slice of a weight of each kind equals the slice of the whole weight, with the smallest budget.
func TestSlicesOfSchemes(t *testing.T) {
	for _, name := range schemeFixtures(t) {
		s := testdata(t, "quant/"+name+"/input")
		f := Format{Dequantize: true}
		p := storagetest.Place{Reader: func() storage.Reader {
			return storage.NewReader(f.Open, s, storage.ReadOptions{BufferBytes: 1})
		}}
		all := loadAll(t, s, f)
		names := slices.Sorted(maps.Keys(all))
		deep.Check(t, func(rt *rapid.T) {
			weight := rapid.SampledFrom(names).Draw(rt, "name")
			x := all[weight].(*tensor.Tensor)
			box := tensor.Box{}
			for _, n := range x.Shape() {
				o := rapid.Int64Range(0, n).Draw(rt, "offset")
				box.Offsets = append(box.Offsets, o)
				box.Sizes = append(box.Sizes, rapid.Int64Range(0, n-o).Draw(rt, "size"))
			}
			part := must.Get(shard.Empty(shard.Boxes(map[int]tensor.Box{0: box}), x.DType(), x.Shape(), 0))(rt)
			must.Do(rt, storagetest.Load(t.Context(), p, plan.State{weight: part}))
			if want := must.Get(x.Narrow(box))(rt); !tensor.Equal(part.Local(), want) {
				rt.Fatalf("%s: %s %v: other numbers than in the whole", name, weight, box)
			}
		})
	}
}

// Numbers for a caller that wants another type than the kind's are rounded only once.
func TestTypeOfTheNumbers(t *testing.T) {
	for _, name := range []string{"ct_int8_channel", "byhand_gptq_4bit"} {
		s := testdata(t, "quant/"+name+"/input")
		own := loadAll(t, s, Format{Dequantize: true})
		wide := loadAll(t, s, Format{Dequantize: true, DType: tensor.Float32})
		for weight := range own {
			x, y := own[weight].(*tensor.Tensor), wide[weight].(*tensor.Tensor)
			if weight == "lm_head.weight" || weight == "model.layers.0.norm.weight" {
				continue
			}
			if y.DType() != tensor.Float32 || !tensor.Equal(must.Get(tensor.Cast(y, x.DType()))(t), x) {
				t.Errorf("%s: %s is %v, which does not round to %v", name, weight, y, x)
			}
		}
	}
}
