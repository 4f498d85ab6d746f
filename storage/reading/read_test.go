package reading

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// drawRegion draws a shape and strides, and how many elements they span: dense
// in some order of the dimensions, or with holes, overlaps and repetitions.
func drawRegion(t *rapid.T) (shape, strides []int64, span int64) {
	dims := rapid.IntRange(0, 4).Draw(t, "dims")
	shape = rapid.SliceOfN(rapid.Int64Range(1, 7), dims, dims).Draw(t, "shape")
	strides = make([]int64, dims)
	dense := rapid.Bool().Draw(t, "dense")
	at := int64(1)
	for _, d := range rapid.Permutation(indexes(dims)).Draw(t, "order") {
		strides[d] = at
		at *= shape[d]
		if !dense {
			strides[d] = rapid.Int64Range(0, 2*at).Draw(t, "stride")
			at = max(at, strides[d]*shape[d]) % 300
		}
	}
	span = 1
	for d, s := range strides {
		span += (shape[d] - 1) * s
	}
	return shape, strides, span
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func drawBox(t *rapid.T, shape []int64) tensor.Box {
	b := tensor.Box{Offsets: make([]int64, len(shape)), Sizes: make([]int64, len(shape))}
	for d, n := range shape {
		b.Offsets[d] = rapid.Int64Range(0, n).Draw(t, "offset")
		b.Sizes[d] = rapid.Int64Range(min(1, n-b.Offsets[d]), n-b.Offsets[d]).Draw(t, "size")
	}
	return b
}

// drawMemory draws a tensor to read a box into: of some dtype, contiguous,
// transposed, or a part of a larger one.
func drawMemory(t *rapid.T, d tensor.DType, shape []int64) *tensor.Tensor {
	dtype := rapid.SampledFrom([]tensor.DType{d, d, tensor.Float64}).Draw(t, "to")
	wide := make([]int64, len(shape))
	for i, n := range shape {
		wide[len(shape)-1-i] = n + rapid.Int64Range(0, 1).Draw(t, "margin")
	}
	x, err := tensor.New(dtype, wide)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(shape) / 2 {
		if x, err = x.Transpose(i, len(shape)-1-i); err != nil {
			t.Fatal(err)
		}
	}
	if x, err = x.Narrow(tensor.Whole(shape)); err != nil {
		t.Fatal(err)
	}
	if rapid.Bool().Draw(t, "contiguous") {
		x = x.Clone()
	}
	return x
}

// For any strides, boxes, memory and limits, Read returns the same elements as a view of
// the bytes of the file.
func TestReadBoxesOfStridedRegions(t *testing.T) {
	data := noise(2 << 20) // as large as any region that is drawn
	store := new(mem.Store)
	put(t, store, "data", data)
	deep.Check(t, func(rt *rapid.T) {
		d := rapid.SampledFrom([]tensor.DType{tensor.Uint8, tensor.Int16, tensor.Float32, tensor.Complex128}).Draw(rt, "dtype")
		shape, strides, span := drawRegion(rt)
		offset := rapid.Int64Range(0, 40).Draw(rt, "offset")
		end := offset + span*int64(d.Size())
		s := scene{files: []storage.File{{Name: "data", Size: int64(len(data))}}}
		s.tensor("x", d, shape, Place{Region: &Region{File: "data", Offset: offset, End: end, DType: d, Strides: strides}})
		model := must.Get(tensor.FromStrided(d, shape, strides, 0, data[offset:end]))(rt)
		var p plan.LoadPlan
		for range rapid.IntRange(1, 4).Draw(rt, "boxes") {
			want(&p, "x", tensor.Whole(shape), drawBox(rt, shape))
		}
		g := newTarget(t)
		for i := range p.Items {
			g.to[&p.Items[i]] = drawMemory(rt, d, p.Items[i].Lengths).Lossy()
		}
		b := newBatch(Open(store, s.source()), g, storage.ReadOptions{Parallel: 2})
		b.limits = limits{
			most: rapid.Int64Range(1, 600).Draw(rt, "most"), gap: rapid.Int64Range(0, 60).Draw(rt, "gap"), small: rapid.Int64Range(0, 100).Draw(rt, "small"),
		}
		for i := range p.Items {
			must.Do(rt, b.add(&p.Items[i], &s.md.Entries[0]))
		}
		must.Do(rt, b.run(t.Context()))
		for i := range p.Items {
			check(rt, &p.Items[i], g, model)
		}
	})
}

// check compares the tensor that was read for an item with the model of its chunk.
func check(t *rapid.T, it *plan.ReadItem, g *target, model *tensor.Tensor) {
	part := must.Get(model.Narrow(it.SourceBox()))(t)
	got := g.to[it]
	want, err := tensor.New(got.DType(), part.Shape())
	if err == nil {
		err = tensor.Convert(want, part, tensor.CastAny)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !tensor.Equal(got, want) {
		t.Fatalf("box %v = %x; want %x", it.SourceBox(), got.Contents(), want.Contents())
	}
	if g.done[it] != 1 {
		t.Fatalf("box %v was handed over %d times", it.SourceBox(), g.done[it])
	}
}

// slowStore is a store with slow requests.
type slowStore struct{ blob.Store }

func (slowStore) ReadGap() int64 { return 64 << 10 }
