package main

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/tensor"
)

// sizes are the sizes of a model and of its training data.
type sizes struct {
	Layers, Heads, Width, Time int
	Batch                      int // sequences of a step, over all ranks
}

// String returns the sizes that two jobs must share to go on with each other's model.
func (s sizes) String() string {
	return fmt.Sprintf("%d layers, %d heads, width %d, time %d", s.Layers, s.Heads, s.Width, s.Time)
}

// model is a small transformer that predicts the next character. It is written for one
// process: parallel.go cuts its parameters and wraps its layers.
type model struct {
	*nn.Module
	sizes
	blocks []*nn.Module
	heads  int // that this rank computes
}

// newModel returns a model. init makes its parameters. The names of its parameters, such
// as "blocks.0.q.weight", are the names in the checkpoint.
func newModel(s sizes, init nn.Init) (*model, error) {
	m := &model{sizes: s, heads: s.Heads}
	blocks := nn.New(nn.Other, nil) // is not called: the model calls each block
	for i := range s.Layers {
		m.blocks = append(m.blocks, m.newBlock(init))
		blocks.AddChild(fmt.Sprint(i), m.blocks[i])
	}
	tokens, positions := nn.NewEmbedding(symbols, s.Width, init), nn.NewEmbedding(s.Time, s.Width, init)
	norm, head := nn.NewLayerNorm(s.Width, init), nn.NewLinear(s.Width, symbols, false, init)
	places, err := tensor.Arange[int64](0, int64(s.Time), 1)
	if err != nil {
		return nil, err
	}
	m.Module = nn.New(nn.Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		x := g.Add(tokens.Call(g, in[0]), positions.Call(g, autograd.Leaf(places)))
		for _, b := range m.blocks {
			x = b.Call(g, x)
		}
		return head.Call(g, norm.Call(g, x))
	})
	m.AddChild("tokens", tokens)
	m.AddChild("positions", positions)
	m.AddChild("blocks", blocks)
	m.AddChild("norm", norm)
	m.AddChild("head", head)
	return m, m.Err()
}

// newBlock returns a block: attention and a perceptron, each added to its input.
func (m *model) newBlock(init nn.Init) *nn.Module {
	w := m.Width
	norm1, norm2 := nn.NewLayerNorm(w, init), nn.NewLayerNorm(w, init)
	q, k, v := nn.NewLinear(w, w, false, init), nn.NewLinear(w, w, false, init), nn.NewLinear(w, w, false, init)
	out, up, down := nn.NewLinear(w, w, false, init), nn.NewLinear(w, 4*w, false, init), nn.NewLinear(4*w, w, false, init)
	b := nn.New(nn.Other, func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
		x := in[0]
		h := norm1.Call(g, x)
		a := g.CausalAttention(q.Call(g, h), k.Call(g, h), v.Call(g, h), m.heads)
		x = g.Add(x, out.Call(g, a))
		h = norm2.Call(g, x)
		return g.Add(x, down.Call(g, g.GELU(up.Call(g, h))))
	})
	b.AddChild("norm1", norm1)
	b.AddChild("q", q)
	b.AddChild("k", k)
	b.AddChild("v", v)
	b.AddChild("out", out)
	b.AddChild("norm2", norm2)
	b.AddChild("up", up)
	b.AddChild("down", down)
	return b
}

// loss returns how badly the model predicts y, the tokens that follow x.
func (m *model) loss(g *autograd.Graph, x, y *tensor.Tensor) *autograd.Var {
	logits := m.Call(g, autograd.Leaf(x))
	return g.CrossEntropy(g.Reshape(logits, y.NumElements(), symbols), y)
}
