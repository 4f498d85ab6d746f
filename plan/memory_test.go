package plan_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// failer is a *testing.T or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// counting returns a tensor of that shape with elements that count up from start.
func counting(t failer, start float32, shape ...int64) *tensor.Tensor {
	t.Helper()
	n := must.Get(tensor.NumElements(shape))(t)
	v := make([]float32, n)
	for i := range v {
		v[i] = start + float32(i)
	}
	x := must.Get(tensor.Of(shape, v))(t)
	return x
}

// zeros returns a tensor of zeros.
func zeros(t failer, d tensor.DType, shape ...int64) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.New(d, shape))(t)
	return x
}

// sharded returns rank's share of x by a layout, copied.
func sharded(t failer, l shard.Layout, x *tensor.Tensor, rank int) *shard.Tensor {
	t.Helper()
	s := must.Get(shard.Empty(l, x.DType(), x.Shape(), rank))(t)
	for i, b := range s.Boxes() {
		dst := must.Get(s.Part(i))(t)
		src := must.Get(x.Narrow(b))(t)
		must.Do(t, tensor.Copy(dst, src))
	}
	return s
}

// placed returns DTensor's layout on a mesh.
func placed(mesh []int, placements ...shard.Placement) shard.Layout {
	return shard.Placed{Mesh: shard.Mesh{Shape: mesh}, Placements: placements}
}

// rows cuts dimension 0 over n ranks, columns dimension 1.
func rows(n int) shard.Layout    { return placed([]int{n}, shard.Shard(0)) }
func columns(n int) shard.Layout { return placed([]int{n}, shard.Shard(1)) }

// localPlan returns a rank's plan for a state, and the planner that made it.
func localPlan(t failer, d *plan.DefaultSave, s plan.State) *plan.SavePlan {
	t.Helper()
	must.Do(t, d.SetUp(plan.SaveSetup{State: s}))
	p := must.Get(d.LocalPlan())(t)
	return p
}

// memory is a checkpoint in memory, in place of a storage.
type memory struct {
	md     *meta.Metadata
	chunks map[string]*tensor.Tensor // by name and offset
	values map[string][]byte
}

func key(i meta.Index) string { return fmt.Sprint(i.FQN, i.Offset) }

// save saves the ranks' states.
func save(t failer, states ...plan.State) *memory {
	t.Helper()
	return saveBy(t, plan.DefaultSave{}, states...)
}

// saveBy is save with the options of a planner.
func saveBy(t failer, options plan.DefaultSave, states ...plan.State) *memory {
	t.Helper()
	planners := make([]*plan.DefaultSave, len(states))
	plans := make([]*plan.SavePlan, len(states))
	for r, s := range states {
		d := options
		planners[r] = &d
		plans[r] = localPlan(t, planners[r], s)
	}
	finals, md, err := planners[0].GlobalPlan(plans)
	if err != nil {
		t.Fatal(err)
	}
	must.Do(t, md.Validate())
	m := &memory{md: md, chunks: map[string]*tensor.Tensor{}, values: map[string][]byte{}}
	for r, p := range finals {
		m.write(t, planners[r], p)
	}
	return m
}

// contents reads a tensor that is not in memory.
func contents(t failer, s plan.Stream) *tensor.Tensor {
	t.Helper()
	x := zeros(t, s.DType(), s.Shape()...)
	mem, _ := x.Bytes()
	must.Do(t, errors.Join(s.ReadAt(context.Background(), mem, 0), s.Close()))
	return x
}

func (m *memory) write(t failer, d *plan.DefaultSave, p *plan.SavePlan) {
	t.Helper()
	p = must.Get(d.FinishPlan(p))(t)
	for i := range p.Items {
		it := &p.Items[i]
		data := must.Get(d.Resolve(it))(t)
		k := key(it.Index())
		if m.chunks[k] != nil || m.values[k] != nil {
			t.Fatalf("%v is written twice", it.Index())
		}
		if it.Kind == plan.KindBytes {
			m.values[k] = slices.Clone(data.Bytes)
			continue
		}
		if data.Stream != nil {
			data.Tensor = contents(t, data.Stream)
		}
		if data.Tensor.DType() != it.Info.DType || !slices.Equal(data.Tensor.Shape(), it.Box.Sizes) {
			t.Fatalf("%v resolves to %v; want %v %v", it.Index(), data.Tensor, it.Info.DType, it.Box.Sizes)
		}
		m.chunks[k] = data.Tensor.Clone()
	}
}

// load fills the state of one rank.
func (m *memory) load(d *plan.DefaultLoad, s plan.State) error {
	if err := d.SetUp(plan.LoadSetup{State: s, Metadata: m.md, Size: 1, Coordinator: true}); err != nil {
		return err
	}
	p, err := d.LocalPlan()
	if err != nil {
		return err
	}
	plans, err := d.GlobalPlan([]*plan.LoadPlan{p})
	if err != nil {
		return err
	}
	if p, err = d.FinishPlan(plans[0]); err != nil {
		return err
	}
	for i := range p.Items {
		if err := m.read(d, &p.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *memory) read(d *plan.DefaultLoad, it *plan.ReadItem) error {
	if it.Kind == plan.KindBytes {
		e, _ := m.md.Find(it.Source.FQN)
		return d.LoadBytes(it, e.Bytes.Codec, m.values[key(it.Source)])
	}
	src, err := m.chunks[key(it.Source)].Narrow(it.SourceBox())
	if err != nil {
		return err
	}
	dst, err := d.ResolveTensor(it)
	if err != nil {
		return err
	}
	if err := tensor.Convert(dst, src, d.Cast); err != nil {
		return err
	}
	return d.CommitTensor(it, dst)
}

// mustLoad is load that must succeed, by a planner without options.
func (m *memory) mustLoad(t failer, s plan.State) {
	t.Helper()
	must.Do(t, m.load(new(plan.DefaultLoad), s))
}

// ramp is a caller's own sharded type: boxes of a tensor, each in memory of its
// own.
type ramp struct {
	shape []int64
	boxes []tensor.Box
	parts []*tensor.Tensor
	dtype tensor.DType // zero: Float32
}

func (r *ramp) GlobalShape() []int64 { return r.shape }
func (r *ramp) Boxes() []tensor.Box  { return r.boxes }
func (r *ramp) Part(i int) (*tensor.Tensor, error) {
	if i >= len(r.parts) {
		return nil, fmt.Errorf("part %d of %d", i, len(r.parts))
	}
	return r.parts[i], nil
}

func (r *ramp) DType() tensor.DType {
	if r.dtype == tensor.Invalid {
		return tensor.Float32
	}
	return r.dtype
}

// cut returns boxes of x as a ramp, copied.
func cut(t failer, x *tensor.Tensor, boxes ...tensor.Box) *ramp {
	t.Helper()
	r := &ramp{shape: x.Shape(), boxes: boxes, dtype: x.DType()}
	for _, b := range boxes {
		part := must.Get(x.Narrow(b))(t)
		r.parts = append(r.parts, part.Clone())
	}
	return r
}

func box(offsets, sizes []int64) tensor.Box { return tensor.Box{Offsets: offsets, Sizes: sizes} }

// span returns a box of a vector.
func span(offset, size int64) tensor.Box { return box([]int64{offset}, []int64{size}) }

var _ plan.Checkpointable = (*ramp)(nil)
var _ plan.Checkpointable = (*shard.Tensor)(nil)

func names(p *plan.SavePlan) []string {
	var out []string
	for i := range p.Items {
		out = append(out, p.Items[i].FQN())
	}
	return out
}

var _ failer = (*testing.T)(nil)
