package demo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

const layers = 4

// model describes a transformer and the jobs that save and load it.
type model struct {
	width       int64
	mesh        []int // of the ranks that save
	ranks, load int
}

// newModel returns the model whose weights and Adam moments take about the given
// bytes: ten for each parameter, with 64 parameters for each square of the width.
func newModel(bytes int64, ranks, load int) model {
	return model{width: max(8, int64(math.Sqrt(float64(bytes)/640))), mesh: meshOf(ranks), ranks: ranks, load: load}
}

// meshOf arranges ranks in a grid that is as square as possible and not higher
// than wide.
func meshOf(ranks int) []int {
	a := int(math.Sqrt(float64(ranks)))
	for ranks%a != 0 {
		a--
	}
	return []int{a, ranks / a}
}

// weight is a tensor of the model, and how the two jobs shard it and its moments.
// A nil layout means that every rank has the whole tensor.
type weight struct {
	name                 string
	shape                []int64
	save, load           shard.Layout
	saveMoment, loadAdam shard.Layout
}

// weights lists the model's tensors. The vocabulary is odd, so that no even
// number of ranks divides it.
func (m model) weights() []weight {
	d, vocab := m.width, 8*m.width+5
	grid := func(a, b shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: m.mesh}, Placements: []shard.Placement{a, b}}
	}
	line := func(a shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{m.load}}, Placements: []shard.Placement{a}}
	}
	rows, columns := line(shard.Shard(0)), line(shard.Shard(1))
	both, crossed := grid(shard.Shard(0), shard.Shard(1)), grid(shard.Shard(1), shard.Shard(0))
	twice, tail := grid(shard.Shard(0), shard.Shard(0)), grid(shard.Replicate(), shard.Shard(0))
	zero, zeroLoad := shard.FlatEven(m.ranks), shard.FlatEven(m.load)
	ws := []weight{
		{"embed.weight", []int64{vocab, d}, tail, columns, zero, rows},
		{"head.weight", []int64{vocab, d}, both, rows, both, zeroLoad},
		{"norm.weight", []int64{d}, nil, nil, tail, rows},
	}
	for i := range layers {
		at := func(name string) string { return fmt.Sprintf("layers.%d.%s", i, name) }
		ws = append(ws,
			weight{at("attn.out"), []int64{d, d}, crossed, columns, crossed, rows},
			weight{at("attn.qkv"), []int64{3 * d, d}, both, rows, both, columns},
			weight{at("mlp.down"), []int64{d, 4 * d}, both, rows, zero, columns},
			weight{at("mlp.up"), []int64{4 * d, d}, twice, columns, zero, zeroLoad},
			weight{at("norm.weight"), []int64{d}, nil, nil, tail, rows},
		)
	}
	return ws
}

// spec is one tensor of the state.
type spec struct {
	fqn        string
	dtype      tensor.DType
	shape      []int64
	save, load shard.Layout
	look       look
}

func (m model) bytes() int64 {
	var n int64
	for _, s := range m.specs() {
		n += tensor.Whole(s.shape).Volume() * int64(s.dtype.Size())
	}
	return n
}

// held returns the total bytes of all ranks that save, wanted those of all ranks
// that load: some tensors are on several ranks.
func (m model) held() int64 {
	return m.spread(m.ranks, func(s *spec) shard.Layout { return s.save })
}

func (m model) wanted() int64 {
	return m.spread(m.load, func(s *spec) shard.Layout { return s.load })
}

func (m model) spread(ranks int, layout func(s *spec) shard.Layout) int64 {
	var n int64
	for _, s := range m.specs() {
		for rank := range ranks {
			n += localVolume(s.shape, layout(s), rank) * int64(s.dtype.Size())
		}
	}
	return n
}

// localVolume returns the number of elements that a rank holds, for progress. It
// is zero for an invalid layout.
func localVolume(shape []int64, l shard.Layout, rank int) int64 {
	if l == nil {
		return tensor.Whole(shape).Volume()
	}
	local, err := l.LocalShape(shape, rank)
	if err != nil {
		return 0
	}
	return tensor.Whole(local).Volume()
}

// specs lists the tensors of the state: the weights, and two moments of each.
func (m model) specs() map[string]*spec {
	out := map[string]*spec{}
	add := func(s spec) { out[s.fqn] = &s }
	for _, w := range m.weights() {
		add(spec{"model." + w.name, tensor.BFloat16, w.shape, w.save, w.load, weightLook})
		moment := "optimizer.state." + w.name
		add(spec{moment + ".exp_avg", tensor.Float32, w.shape, w.saveMoment, w.loadAdam, momentLook})
		add(spec{moment + ".exp_avg_sq", tensor.Float32, w.shape, w.saveMoment, w.loadAdam, squareLook})
	}
	return out
}

// maker returns one rank's part of a tensor.
type maker func(s *spec) (any, error)

// state returns a rank's state at a training step, with tensors from make: nested
// maps, a list of layers, and values in addition to the tensors.
func (m model) state(step int64, make maker) (cairn.State, error) {
	specs, err := m.specs(), error(nil)
	t := func(fqn string) any {
		v, e := make(specs[fqn])
		if err == nil && e != nil {
			err = fmt.Errorf("%s: %w", fqn, e)
		}
		return v
	}
	named := func(prefix string, names ...string) map[string]any {
		out := map[string]any{}
		for _, n := range names {
			out[n] = t(prefix + n)
		}
		return out
	}
	var list []any
	for i := range layers {
		at := fmt.Sprintf("model.layers.%d.", i)
		list = append(list, map[string]any{
			"attn": named(at+"attn.", "out", "qkv"),
			"mlp":  named(at+"mlp.", "down", "up"),
			"norm": named(at+"norm.", "weight"),
		})
	}
	adam := map[string]any{}
	for _, w := range m.weights() {
		moments := named("optimizer.state."+w.name+".", "exp_avg", "exp_avg_sq")
		moments["step"] = step
		adam[w.name] = moments
	}
	return cairn.State{
		"model": map[string]any{
			"embed": named("model.embed.", "weight"), "head": named("model.head.", "weight"),
			"norm": named("model.norm.", "weight"), "layers": list,
		},
		"optimizer": map[string]any{"state": adam, "groups": []any{m.group(step)}},
		"rng":       map[string]any{"seed": int64(7), "drawn": uint64(step) * 1e9, "state": rngState(step)},
		"config":    map[string]any{"layers": int64(layers), "width": m.width, "name": "demo", "tied": false},
		"step":      step,
	}, err
}

// group returns the optimizer's settings at a step.
func (m model) group(step int64) map[string]any {
	return map[string]any{
		"lr": 3e-4 / math.Sqrt(float64(step)), "betas": []any{0.9, 0.95}, "eps": 1e-8, "weight_decay": 0.1,
		"amsgrad": false, "clip": nil,
	}
}

func rngState(step int64) []byte {
	b := make([]byte, 64)
	newContent("rng", step, look{keep: math.MaxUint64}).fill(b, 0)
	return b
}

// look makes random words look like training state: it keeps some bits of each
// eight bytes and sets others.
type look struct{ keep, set uint64 }

// The looks: bfloat16 and float32 numbers between 2^-7 and 2^-3 with a sign, and
// squares, which are positive.
var (
	weightLook = look{keep: 0x81ff_81ff_81ff_81ff, set: 0x3c00_3c00_3c00_3c00}
	momentLook = look{keep: 0x81ff_ffff_81ff_ffff, set: 0x3c00_0000_3c00_0000}
	squareLook = look{keep: 0x01ff_ffff_01ff_ffff, set: 0x3c00_0000_3c00_0000}
)

// content is the content of a tensor at a training step. It is a function of the
// name and the step, so any rank can compute any part of it.
type content struct {
	seed uint64
	look look
}

func newContent(fqn string, step int64, l look) content {
	h := uint64(14695981039346656037)
	for _, c := range []byte(fqn) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return content{seed: mix(h + uint64(step)), look: l}
}

// mix is a step of the SplitMix64 generator.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (c content) word(i int64) uint64 { return mix(c.seed+uint64(i))&c.look.keep | c.look.set }

// fill sets p to the bytes of the flattened tensor at off.
func (c content) fill(p []byte, off int64) {
	i := off / 8
	if skip := int(off % 8); skip > 0 {
		w := c.word(i) >> (8 * skip)
		n := min(8-skip, len(p))
		for k := range n {
			p[k] = byte(w >> (8 * k))
		}
		p = p[n:]
		i++
	}
	for ; len(p) >= 8; i++ {
		binary.LittleEndian.PutUint64(p, c.word(i))
		p = p[8:]
	}
	for k, w := 0, c.word(i); k < len(p); k++ {
		p[k] = byte(w >> (8 * k))
	}
}

// newPart returns rank's part of a tensor, zeroed. Without a layout it is the
// whole tensor.
func newPart(s *spec, l shard.Layout, rank int) (any, error) {
	if l == nil {
		return tensor.New(s.dtype, s.shape)
	}
	return shard.Empty(l, s.dtype, s.shape, rank)
}

// run is a part of the memory that is contiguous in the flattened tensor too.
type run struct {
	mem []byte
	off int64 // in bytes
}

// eachRun calls fn for every run of a part from newPart.
func eachRun(s *spec, part any, fn func(r run) error) error {
	if t, ok := part.(*tensor.Tensor); ok {
		return boxRuns(s, tensor.Whole(s.shape), t, fn)
	}
	c, ok := part.(plan.Checkpointable)
	if !ok {
		return fmt.Errorf("a %T is no part of a tensor", part)
	}
	for i, box := range c.Boxes() {
		t, err := c.Part(i)
		if err != nil {
			return err
		}
		if err := boxRuns(s, box, t, fn); err != nil {
			return err
		}
	}
	return nil
}

// boxRuns divides the memory of a box, which must be contiguous, into runs: rows
// of the last dimension.
func boxRuns(s *spec, box tensor.Box, t *tensor.Tensor, fn func(r run) error) error {
	mem, ok := t.Bytes()
	if !ok {
		return fmt.Errorf("%w: the part at %v is not contiguous", tensor.ErrLayout, box)
	}
	if box.Empty() {
		return nil
	}
	size, last := int64(s.dtype.Size()), box.Dims()-1
	row := box.Sizes[last] * size
	at := make([]int64, box.Dims()) // relative to the box
	for ; len(mem) > 0; mem = mem[row:] {
		if err := fn(run{mem[:row], flatIndex(s.shape, box.Offsets, at) * size}); err != nil {
			return err
		}
		for d := last - 1; d >= 0; d-- {
			if at[d]++; at[d] < box.Sizes[d] {
				break
			}
			at[d] = 0
		}
	}
	return nil
}

// flatIndex returns the index of the element at offsets + at in the flattened
// tensor.
func flatIndex(shape, offsets, at []int64) int64 {
	var i int64
	for d, n := range shape {
		i = i*n + offsets[d] + at[d]
	}
	return i
}

// fillPart sets the content of a part at a step and returns its size.
func fillPart(s *spec, part any, step int64) (n int64, err error) {
	c := newContent(s.fqn, step, s.look)
	err = eachRun(s, part, func(r run) error {
		c.fill(r.mem, r.off)
		n += int64(len(r.mem))
		return nil
	})
	return n, err
}

// comparePart returns the size of a part, or an error that wraps ErrWrong if its
// content differs from that step's.
func comparePart(s *spec, part any, step int64) (int64, error) {
	c := newContent(s.fqn, step, s.look)
	var n int64
	var want []byte
	err := eachRun(s, part, func(r run) error {
		want = append(want[:0], r.mem...)
		c.fill(want, r.off)
		if !bytes.Equal(want, r.mem) {
			return fmt.Errorf("%w: %s: other bytes than were saved at %d+%d", ErrWrong, s.fqn, r.off, len(r.mem))
		}
		n += int64(len(r.mem))
		return nil
	})
	return n, err
}
