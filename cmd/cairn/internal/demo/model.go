package demo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
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
	logger      *slog.Logger // of saves and loads; nil: none
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
	name                   string
	shape                  []int64
	save, load             shard.Layout
	saveMoment, loadMoment shard.Layout
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
	path       meta.Path
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
func (m model) specs() []*spec {
	var out []*spec
	for _, w := range m.weights() {
		out = append(out,
			&spec{weightPath(w.name), tensor.BFloat16, w.shape, w.save, w.load, weightLook},
			&spec{momentPath(w.name, "exp_avg"), tensor.Float32, w.shape, w.saveMoment, w.loadMoment, momentLook},
			&spec{momentPath(w.name, "exp_avg_sq"), tensor.Float32, w.shape, w.saveMoment, w.loadMoment, squareLook})
	}
	return out
}

// weightPath returns the path of a weight: its numbers are positions in lists.
func weightPath(name string) meta.Path {
	path := meta.Path{meta.Key("model")}
	for _, k := range strings.Split(name, ".") {
		if n, err := strconv.Atoi(k); err == nil {
			path = append(path, meta.Pos(n))
		} else {
			path = append(path, meta.Key(k))
		}
	}
	return path
}

// momentPath returns the path of what the optimizer holds for a weight.
func momentPath(weight, name string) meta.Path {
	return meta.Path{meta.Key("optimizer"), meta.Key("state"), meta.Key(weight), meta.Key(name)}
}

// state returns a rank's state at a training step, with tensors from make: nested
// maps, a list of layers, and values in addition to the tensors.
func (m model) state(step int64, make func(s *spec) (any, error)) (cairn.State, error) {
	out := cairn.State{
		"optimizer": map[string]any{"groups": []any{m.group(step)}},
		"rng":       map[string]any{"seed": int64(7), "drawn": uint64(step) * 1e9, "state": rngState(step)},
		"config":    map[string]any{"layers": int64(layers), "width": m.width, "name": "demo", "tied": false},
		"step":      step,
	}
	for _, s := range m.specs() {
		v, err := make(s)
		if err == nil {
			err = plan.Place(out, s.path, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.path.FQN(), err)
		}
	}
	for _, w := range m.weights() {
		if err := plan.Place(out, momentPath(w.name, "step"), step); err != nil {
			return nil, err
		}
	}
	return out, nil
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
func newPart(s *spec, l shard.Layout, rank int) (plan.Checkpointable, error) {
	if l != nil {
		return shard.Empty(l, s.dtype, s.shape, rank)
	}
	t, err := tensor.New(s.dtype, s.shape)
	return plan.Whole(t), err
}

// eachRow calls fn for every row of the last dimension of a part from newPart, with
// the row's memory and its offset in bytes in the flattened tensor.
func eachRow(s *spec, part plan.Checkpointable, fn func(mem []byte, off int64) error) error {
	size, strides, last := int64(s.dtype.Size()), tensor.RowMajor(s.shape), len(s.shape)-1
	for i, box := range part.Boxes() {
		t, err := part.Part(i)
		if err != nil {
			return err
		}
		mem, ok := t.Bytes()
		if !ok {
			return fmt.Errorf("%w: the part at %v is not contiguous", tensor.ErrLayout, box)
		}
		row := int(box.Sizes[last] * size)
		for n := int64(0); len(mem) > 0; n++ {
			at, left := box.Offsets[last], n
			for d := last - 1; d >= 0; d-- {
				at += (box.Offsets[d] + left%box.Sizes[d]) * strides[d]
				left /= box.Sizes[d]
			}
			if err := fn(mem[:row], at*size); err != nil {
				return err
			}
			mem = mem[row:]
		}
	}
	return nil
}

// fillPart sets the content of a part at a step and returns its size.
func fillPart(s *spec, part plan.Checkpointable, step int64) (n int64, err error) {
	c := newContent(s.path.FQN(), step, s.look)
	err = eachRow(s, part, func(mem []byte, off int64) error {
		c.fill(mem, off)
		n += int64(len(mem))
		return nil
	})
	return n, err
}

// comparePart returns the size of a part, or an error that wraps ErrWrong if its
// content differs from that step's.
func comparePart(s *spec, part plan.Checkpointable, step int64) (n int64, err error) {
	c := newContent(s.path.FQN(), step, s.look)
	var want []byte
	err = eachRow(s, part, func(mem []byte, off int64) error {
		want = append(want[:0], mem...)
		c.fill(want, off)
		if !bytes.Equal(want, mem) {
			return fmt.Errorf("%w: %s: other bytes than were saved at %d+%d", ErrWrong, s.path.FQN(), off, len(mem))
		}
		n += int64(len(mem))
		return nil
	})
	return n, err
}
