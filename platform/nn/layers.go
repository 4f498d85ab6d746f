package nn

import (
	"fmt"
	"math/rand/v2"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Init makes the values of a weight. Its result also decides the dtype of a layer's other
// parameters, and whether they are placeholders: biases are zeros, and the weight of a layer
// norm is ones.
type Init func(shape []int64) (*tensor.Tensor, error)

// Zeros makes float32 zeros.
func Zeros(shape []int64) (*tensor.Tensor, error) { return tensor.New(tensor.Float32, shape) }

// Meta makes placeholders: a module without memory, which layouts can cut. Before a load
// or a call, [tensor.Tensor.Materialize] of [Param.Local] gives a parameter the memory of
// this rank's share; [Param.Load] does so too.
func Meta(shape []int64) (*tensor.Tensor, error) { return tensor.Placeholder(tensor.Float32, shape) }

// Normal makes float32 numbers of a normal distribution around zero, in the order of the
// calls.
func Normal(std float64, r *rand.Rand) Init {
	return func(shape []int64) (*tensor.Tensor, error) {
		t, err := tensor.New(tensor.Float32, shape)
		if err != nil {
			return nil, err
		}
		v, err := tensor.Values[float32](t)
		for i := range v {
			v[i] = float32(std * r.NormFloat64())
		}
		return t, err
	}
}

// constant makes a parameter of equal elements, or a placeholder if init makes those.
func (init Init) constant(v float32, shape []int64) (*tensor.Tensor, error) {
	t, err := init(shape)
	if err != nil || t.IsPlaceholder() {
		return t, err
	}
	return tensor.Full(t.DType(), shape, v)
}

func sizes(n ...int) []int64 {
	out := make([]int64, len(n))
	for i, v := range n {
		out[i] = int64(v)
	}
	return out
}

// only returns the input of a layer, or nil, which operators refuse.
func only(in []*autograd.Var) *autograd.Var {
	if len(in) != 1 {
		return nil
	}
	return in[0]
}

// NewLinear returns a layer of kind [Linear] with the parameters "weight", [out, in], and
// "bias", [out]. Its input is [..., in].
func NewLinear(in, out int, bias bool, init Init) *Module {
	m := New(Linear, nil)
	m.forward = func(g *autograd.Graph, x ...*autograd.Var) *autograd.Var {
		return g.Linear(only(x), m.Param("weight").Value(g), m.Param("bias").Value(g))
	}
	w, err := init(sizes(out, in))
	m.add("weight", w, err)

	if bias {
		b, err := init.constant(0, sizes(out))
		m.add("bias", b, err)
	}
	return m
}

// NewEmbedding returns a layer of kind [Embedding] with the parameter "weight", [rows,
// cols]. Its input is a leaf of int64 numbers of rows.
func NewEmbedding(rows, cols int, init Init) *Module {
	m := New(Embedding, nil)
	m.forward = func(g *autograd.Graph, x ...*autograd.Var) *autograd.Var {
		ids := only(x)
		if ids == nil || ids.Data() == nil {
			return g.Fail("embedding", fmt.Errorf("no ids: %w", autograd.ErrShape))
		}
		return g.Embedding(m.Param("weight").Value(g), ids.Data())
	}

	w, err := init(sizes(rows, cols))
	m.add("weight", w, err)
	return m
}

// NewLayerNorm returns a layer that normalises the last dimension, of n elements, with the
// parameters "weight" and "bias", [n].
func NewLayerNorm(n int, init Init) *Module {
	m := New(Other, nil)
	m.forward = func(g *autograd.Graph, x ...*autograd.Var) *autograd.Var {
		return g.LayerNorm(only(x), m.Param("weight").Value(g), m.Param("bias").Value(g))
	}
	w, err := init.constant(1, sizes(n))
	m.add("weight", w, err)
	b, err := init.constant(0, sizes(n))
	m.add("bias", b, err)
	return m
}
