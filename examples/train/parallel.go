package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/autograd"
	"github.com/cairn-ckpt/cairn/platform/collective"
	"github.com/cairn-ckpt/cairn/platform/nn"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// How the ranks that see different data hold the parameters.
const (
	replicated = "replicated" // every rank has all of them
	sharded    = "sharded"    // each is cut into rows
	flat       = "flat"       // the parameters of a block are joined to one long row, which is cut
)

// grid is how the ranks are arranged. The ranks of a row see the same data, and each
// computes a part of the layers: tensor parallel. Those of a column compute the same, for
// other data: data parallel.
type grid struct {
	Data, Tensor int
	Kind         string // how the ranks of a column hold the parameters
}

func (g grid) String() string { return fmt.Sprintf("%d × %d, %s", g.Data, g.Tensor, g.Kind) }

// position is a rank's place in a grid, with the groups of its column, its row and all ranks.
type position struct {
	grid
	mesh             shard.Mesh
	rank             int
	column, row, all platform.TensorComm
	comms            *nn.Comms
	units            []*unit // flat parameters
}

// arrange makes the groups of a grid. All ranks call it.
func arrange(ctx context.Context, p platform.Platform, g grid) (*position, error) {
	world := p.World()
	switch {
	case g.Data < 1 || g.Tensor < 1 || g.Data*g.Tensor != world.Size():
		return nil, fmt.Errorf("-data %d × -tensor %d is not the number of ranks, %d", g.Data, g.Tensor, world.Size())
	case g.Kind == flat && g.Tensor > 1:
		return nil, fmt.Errorf("flat parameters cannot be tensor parallel; use -kind %s", sharded)
	case g.Kind != replicated && g.Kind != sharded && g.Kind != flat:
		return nil, fmt.Errorf("-kind %q is not %s, %s or %s", g.Kind, replicated, sharded, flat)
	}
	at := &position{grid: g, rank: world.Rank(), mesh: shard.Mesh{Shape: []int{g.Data, g.Tensor}}}
	line := shard.Mesh{Shape: []int{world.Size()}}
	var err error
	if at.comms, err = nn.Connect(ctx, p, at.mesh, line); err != nil {
		return nil, err
	}
	if at.column, err = at.comms.Line(at.mesh, 0); err != nil {
		return nil, err
	}
	if at.row, err = at.comms.Line(at.mesh, 1); err != nil {
		return nil, err
	}
	at.all, err = at.comms.Line(line, 0)
	return at, err
}

// share leaves this rank its share of the model's parameters, and makes the layers
// communicate.
func (at *position) share(m *model) error {
	if m.Heads%at.Tensor != 0 {
		return fmt.Errorf("%d heads cannot be shared by %d ranks", m.Heads, at.Tensor)
	}
	m.heads = m.Heads / at.Tensor
	if at.Kind == flat {
		return at.shareFlat(m)
	}
	for name, p := range m.Params() {
		if err := at.cut(name, p); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name, layer := range m.Modules() {
		if at.Tensor > 1 && (strings.HasSuffix(name, ".out") || strings.HasSuffix(name, ".down")) {
			// This rank has some columns of the matrix: its product is a term of the result.
			layer.Wrap(func(f autograd.Func) autograd.Func {
				return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
					return g.AllReduce(at.row, f(g, in...), collective.Sum)
				}
			})
		}
	}
	return nil
}

// cut gives a parameter its layout.
func (at *position) cut(name string, p *nn.Param) error {
	var inColumn, inRow shard.Placement // replicated
	switch layer := strings.Split(name, "."); layer[max(0, len(layer)-2)] {
	case "q", "k", "v", "up":
		inRow = shard.Shard(0)
	case "out", "down":
		inRow = shard.Shard(1)
	}
	rows := p.Shape()[0]
	if at.Kind == sharded {
		inColumn = shard.Shard(0)
		if inRow == shard.Shard(0) && at.Tensor > 1 {
			inColumn = shard.StridedShard(0, at.Tensor) // cuts the rows that this row of the grid has
			rows /= int64(at.Tensor)
		}
		// A layer needs all rows. They are gathered when it runs; in the backward pass the
		// gradients go to the ranks that hold the rows.
		p.SetView(func(g *autograd.Graph) *autograd.Var { return g.AllGatherConcat(at.column, p.Var(), 0, rows) })
	}
	return p.SetLayout(shard.Placed{Mesh: at.mesh, Placements: []shard.Placement{inColumn, inRow}}, at.rank)
}

// unit joins the parameters of a block, or of the rest of the model. Each rank holds an
// equal part of the whole.
type unit struct {
	leaf   *autograd.Var   // this rank's part
	params []*nn.Param     // their shares are views of it
	sizes  []int64         // of the whole parameters, and of the padding of the last part
	parts  []*autograd.Var // the whole parameters while the module runs
}

// shareFlat joins the parameters of each block, and those outside of the blocks.
func (at *position) shareFlat(m *model) error {
	inBlocks := map[*nn.Param]bool{}
	for _, b := range m.blocks {
		var params []*nn.Param
		for _, p := range b.Params() {
			params = append(params, p)
			inBlocks[p] = true
		}
		if err := at.join(b, params); err != nil {
			return err
		}
	}
	var rest []*nn.Param
	for _, p := range m.Params() {
		if !inBlocks[p] {
			rest = append(rest, p)
		}
	}
	return at.join(m.Module, rest)
}

// join makes a unit of some parameters, which are gathered when the module is called.
func (at *position) join(m *nn.Module, params []*nn.Param) error {
	u := &unit{params: params}
	at.units = append(at.units, u)
	var total int64
	for _, p := range params {
		u.sizes = append(u.sizes, p.Local().NumElements())
		total += p.Local().NumElements()
	}

	n := int64(at.Data)
	each := (total + n - 1) / n
	mine, err := tensor.New(tensor.Float32, []int64{each})
	if err != nil {
		return err
	}

	begin := int64(0) // of the parameter in the whole
	for i, p := range params {
		var layout shard.Flat
		for r := range n {
			layout.Intervals = append(layout.Intervals, [2]int64{inside(r*each-begin, u.sizes[i]), inside((r+1)*each-begin, u.sizes[i])})
		}
		shape := p.Shape()
		if err := p.SetLayout(layout, at.rank); err != nil {
			return err
		}

		lo := begin + layout.Intervals[at.rank][0] - int64(at.rank)*each // in mine
		view, err := mine.Slice(0, inside(lo, each), inside(lo, each)+p.Local().NumElements(), 1)
		if err != nil {
			return err
		}
		if err := tensor.Copy(view, p.Local()); err != nil {
			return err
		}
		if err := p.SetLocal(view); err != nil {
			return err
		}
		p.SetView(func(g *autograd.Graph) *autograd.Var { return g.Reshape(u.parts[i], shape...) })
		begin += u.sizes[i]
	}

	u.leaf = autograd.Leaf(mine)
	u.sizes = append(u.sizes, each*n-total)

	m.Wrap(func(f autograd.Func) autograd.Func {
		return func(g *autograd.Graph, in ...*autograd.Var) *autograd.Var {
			u.parts = g.Split(g.AllGatherConcat(at.column, u.leaf, 0, each*n), u.sizes...)
			return f(g, in...)
		}
	})
	return u.leaf.RequireGrad(true)
}

// inside returns the number in [0, n] that is nearest to v.
func inside(v, n int64) int64 { return min(max(v, 0), n) }

// overlap makes replicated blocks sum their gradients as soon as their backward pass is
// done, while the pass of the blocks before them goes on. Tensor-parallel blocks cannot do
// that: the backward pass uses the same groups.
func (j *job) overlap(ctx context.Context, p platform.Platform) error {
	if j.Kind != replicated || j.Tensor > 1 || j.Data == 1 {
		return nil
	}
	streams, err := platform.As[platform.Streams](p)
	if err != nil {
		return err
	}
	if j.stream, err = streams.NewStream(ctx); err != nil {
		return err
	}
	j.early = platform.NewGradQueue(j.stream)
	for _, b := range j.model.blocks {
		b.AfterBackward(nn.Last, func(b *nn.Module, _ []*tensor.Tensor, _ *tensor.Tensor) ([]*tensor.Tensor, error) {
			for _, p := range b.Params() {
				if err := j.early.Set(ctx, j.at.column.AllReduceAsync(ctx, p.Var().Grad(), collective.Sum), nil); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
	}
	return nil
}

// reduce sums the gradients over all ranks. The gradients of gathered parameters
// are summed already.
func (j *job) reduce(ctx context.Context) error {
	if err := j.at.deal(); err != nil {
		return err
	}
	if j.early == nil {
		return nn.ReduceGrads(ctx, j.model.Params(), j.at.comms)
	}
	if err := j.early.Wait(ctx); err != nil {
		return err
	}
	outside := func(yield func(string, *nn.Param) bool) {
		for name, p := range j.model.Params() {
			if !strings.HasPrefix(name, "blocks.") && !yield(name, p) {
				return
			}
		}
	}
	return nn.ReduceGrads(ctx, outside, j.at.comms)
}

// deal gives the parameters of the units their parts of the gradient.
func (at *position) deal() error {
	for _, u := range at.units {
		lo := int64(0)
		for _, p := range u.params {
			hi := lo + p.Local().NumElements()
			part, err := u.leaf.Grad().Slice(0, lo, hi, 1)
			if err != nil {
				return err
			}
			p.Var().SetGrad(part)
			lo = hi
		}
		u.leaf.SetGrad(nil)
	}
	return nil
}
