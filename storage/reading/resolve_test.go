package reading

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// invert is an example of Region.Resolve.
func invert(p []byte) {
	for i := range p {
		p[i] ^= 0xff
	}
}

// Region.Resolve converts each stored element once before the receiver gets it.
func TestReadResolvesElements(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		shape, strides []int64
		boxes          []tensor.Box
	}{
		"in one large run":       {shape: []int64{3 * mib}, boxes: []tensor.Box{box([]int64{5}, []int64{2 * mib})}},
		"in wide rows":           {shape: []int64{4, mib}, boxes: []tensor.Box{box([]int64{0, 0}, []int64{4, mib / 2})}},
		"in narrow columns":      {shape: []int64{64, 5000}, boxes: []tensor.Box{box([]int64{0, 100}, []int64{64, 1000})}},
		"with holes between":     {shape: []int64{64, 50_000}, boxes: []tensor.Box{box([]int64{0, 100}, []int64{64, 1000})}},
		"transposed":             {shape: []int64{1000, 3000}, strides: []int64{1, 1000}, boxes: []tensor.Box{box([]int64{1, 2}, []int64{999, 2998})}},
		"repeated":               {shape: []int64{1000, 300}, strides: []int64{0, 1}, boxes: []tensor.Box{box([]int64{0, 0}, []int64{1000, 300})}},
		"read for several items": {shape: []int64{100}, boxes: []tensor.Box{box([]int64{0}, []int64{60}), box([]int64{40}, []int64{60}), box([]int64{0}, []int64{100})}},
	} {
		t.Run(name, func(t *testing.T) {
			data := noise(4 * mib)
			ck, store := one(t, tensor.Uint8, c.shape, Region{End: int64(len(data)), DType: tensor.Uint8, Strides: c.strides, Resolve: invert}, data)
			var p plan.LoadPlan
			for _, b := range c.boxes {
				want(&p, "x", tensor.Whole(c.shape), b)
			}
			g := newTarget(t)
			g.fill(&p, tensor.Uint8)
			must.Get(read(t, ck, &p, g, storage.ReadOptions{BufferBytes: 2 * mib}))(t)
			invert(data)
			compare(t, &p, g, c.shape, c.strides, data)
			at := &Region{File: "data", End: int64(len(data)), DType: tensor.Uint8, Strides: c.strides, Resolve: invert}
			for i := range p.Items {
				it := &p.Items[i]
				must.Get(ReadBox(t.Context(), store, at, c.shape, it.SourceBox(), g.to[it], mib))(t)
			}
			compare(t, &p, g, c.shape, c.strides, data)
		})
	}
}

// Resolve gets the elements in the stored dtype, before they are converted.
func TestReadResolvesBeforeItConverts(t *testing.T) {
	shape := []int64{4}
	ck, _ := one(t, tensor.Uint8, shape, Region{End: 4, DType: tensor.Uint8, Resolve: invert}, []byte{0, 1, 254, 255})
	var p plan.LoadPlan
	want(&p, "x", tensor.Whole(shape), tensor.Whole(shape))
	g := newTarget(t)
	g.fill(&p, tensor.Float32)
	must.Get(read(t, ck, &p, g, storage.ReadOptions{}))(t)
	wanted := must.Get(tensor.Of(shape, []float32{255, 254, 1, 0}))(t)
	if got := g.to[&p.Items[0]]; !tensor.Equal(got, wanted) {
		t.Errorf("read %v; want %v", got, wanted)
	}
}
