package native

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/tensor"
)

// drawTarget returns a tensor of that shape in memory of some layout: as it is,
// with its dimensions exchanged, or every other element of a larger one.
func drawTarget(t *rapid.T, d tensor.DType, shape []int64) *tensor.Tensor {
	must := func(x *tensor.Tensor, err error) *tensor.Tensor {
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	switch rapid.SampledFrom([]string{"plain", "transposed", "sliced"}).Draw(t, "target") {
	case "transposed":
		n := len(shape)
		if n < 2 {
			break
		}
		a, b := rapid.IntRange(0, n-1).Draw(t, "a"), rapid.IntRange(0, n-1).Draw(t, "b")
		swapped := append([]int64{}, shape...)
		swapped[a], swapped[b] = swapped[b], swapped[a]
		return must(must(tensor.New(d, swapped)).Transpose(a, b))
	case "sliced":
		wide := make([]int64, len(shape))
		for i, n := range shape {
			wide[i] = 2 * n
		}
		x := must(tensor.New(d, wide))
		for i := range shape {
			x = must(x.Slice(i, 0, wide[i], 2))
		}
		return x
	}
	return must(tensor.New(d, shape))
}

func TestFillReproducesTheBox(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPiece(t)
		to := p.dtype
		if rapid.Bool().Draw(t, "cast") {
			to = rapid.SampledFrom(tensor.DTypes()).Draw(t, "to")
		}
		chunk, err := tensor.FromBytes(p.dtype, p.sizes, p.data)
		if err != nil {
			t.Fatal(err)
		}
		part, err := chunk.Narrow(p.box)
		if err != nil {
			t.Fatal(err)
		}
		want, err := tensor.New(to, p.box.Sizes)
		if err != nil {
			t.Fatal(err)
		}
		if err := tensor.Convert(want, part, tensor.CastAny); err != nil {
			t.Fatal(err)
		}
		got := drawTarget(t, to, p.box.Sizes)
		for _, s := range p.spans() {
			if err := p.fill(got, p.sizes, p.dtype, p.box, s, p.bytes(s)); err != nil {
				t.Fatal(err)
			}
		}
		if !tensor.Equal(got, want) {
			t.Errorf("%v of %v %v as %v: other elements than in the chunk", p.box, p.dtype, p.sizes, to)
		}
	})
}
