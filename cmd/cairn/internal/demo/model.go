package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

const layers = 4

// model is a transformer with the state of its optimizer. The ranks that save hold
// parts of its tensors.
type model struct {
	width   int64
	mesh    []int // of the ranks that save
	load    int   // the number of ranks that load
	bytes   int64
	tensors []*entry
	step    int64
}

// entry is a tensor of the model, and how the two jobs shard it. A nil layout means
// that every rank has the whole tensor.
type entry struct {
	path       meta.Path
	dtype      tensor.DType
	shape      []int64
	save, load shard.Layout
	look       look
	whole      *tensor.Tensor // nil until the first training step
}

// look makes random words look like numbers of a training state: it keeps some bits
// of each eight bytes and sets others.
type look struct{ keep, set uint64 }

// The looks are bfloat16 and float32 numbers between 2^-7 and 2^-3 with a sign, and
// squares, which are positive.
var (
	weightLook = look{keep: 0x81ff_81ff_81ff_81ff, set: 0x3c00_3c00_3c00_3c00}
	momentLook = look{keep: 0x81ff_ffff_81ff_ffff, set: 0x3c00_0000_3c00_0000}
	squareLook = look{keep: 0x01ff_ffff_01ff_ffff, set: 0x3c00_0000_3c00_0000}
)

// newModel returns a model with weights and Adam moments of about the given bytes:
// ten for each parameter, with 64 parameters for each square of the width. The
// vocabulary is odd, so that no even number of ranks divides it.
func newModel(bytes int64, ranks, load int) *model {
	d := max(8, int64(math.Sqrt(float64(bytes)/640)))
	m, vocab := &model{width: d, mesh: meshOf(ranks), load: load}, 8*d+5
	grid := func(a, b shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: m.mesh}, Placements: []shard.Placement{a, b}}
	}
	line := func(a shard.Placement) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{load}}, Placements: []shard.Placement{a}}
	}
	rows, columns := line(shard.Shard(0)), line(shard.Shard(1))
	both, crossed := grid(shard.Shard(0), shard.Shard(1)), grid(shard.Shard(1), shard.Shard(0))
	twice, tail := grid(shard.Shard(0), shard.Shard(0)), grid(shard.Replicate(), shard.Shard(0))
	zero, zeroLoad := shard.FlatEven(ranks), shard.FlatEven(load)
	// The layouts of a weight when it is saved and loaded, then of its moments.
	m.add("embed.weight", []int64{vocab, d}, tail, columns, zero, rows)
	m.add("head.weight", []int64{vocab, d}, both, rows, both, zeroLoad)
	m.add("norm.weight", []int64{d}, nil, nil, tail, rows)
	for i := range layers {
		at := func(name string) string { return fmt.Sprintf("layers.%d.%s", i, name) }
		m.add(at("attn.out"), []int64{d, d}, crossed, columns, crossed, rows)
		m.add(at("attn.qkv"), []int64{3 * d, d}, both, rows, both, columns)
		m.add(at("mlp.down"), []int64{d, 4 * d}, both, rows, zero, columns)
		m.add(at("mlp.up"), []int64{4 * d, d}, twice, columns, zero, zeroLoad)
		m.add(at("norm.weight"), []int64{d}, nil, nil, tail, rows)
	}
	for _, e := range m.tensors {
		m.bytes += tensor.Whole(e.shape).Volume() * int64(e.dtype.Size())
	}
	return m
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

// add adds a weight and its two moments. Numbers in the name of a weight are
// positions in lists.
func (m *model) add(name string, shape []int64, save, load, saveMoment, loadMoment shard.Layout) {
	path := meta.Path{meta.Key("model")}
	for _, k := range strings.Split(name, ".") {
		if n, err := strconv.Atoi(k); err == nil {
			path = append(path, meta.Pos(n))
		} else {
			path = append(path, meta.Key(k))
		}
	}
	moment := func(kind string) meta.Path {
		return meta.Path{meta.Key("optimizer"), meta.Key("state"), meta.Key(name), meta.Key(kind)}
	}
	m.tensors = append(m.tensors,
		&entry{path, tensor.BFloat16, shape, save, load, weightLook, nil},
		&entry{moment("exp_avg"), tensor.Float32, shape, saveMoment, loadMoment, momentLook, nil},
		&entry{moment("exp_avg_sq"), tensor.Float32, shape, saveMoment, loadMoment, squareLook, nil})
}

// train sets the state at a training step: every byte is a function of the
// tensor's name and the step.
func (m *model) train(ctx context.Context, step int64) (err error) {
	m.step = step
	for _, e := range m.tensors {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if e.whole == nil {
			if e.whole, err = tensor.New(e.dtype, e.shape); err != nil {
				return err
			}
		}
		h := fnv.New64a()
		h.Write([]byte(e.path.FQN()))
		words := rand.NewPCG(h.Sum64(), uint64(step))
		mem, _ := e.whole.Bytes() // it is contiguous
		var word [8]byte
		for len(mem) > 0 {
			binary.LittleEndian.PutUint64(word[:], words.Uint64()&e.look.keep|e.look.set)
			mem = mem[copy(mem, word[:]):]
		}
	}
	return nil
}

// values returns the values of the state at a training step that are not tensors.
func (m *model) values(step int64) cairn.State {
	seed := binary.LittleEndian.AppendUint64(nil, uint64(step))
	return cairn.State{
		"optimizer": map[string]any{"groups": []any{map[string]any{
			"lr": 3e-4 / math.Sqrt(float64(step)), "betas": []any{0.9, 0.95}, "eps": 1e-8, "weight_decay": 0.1,
			"amsgrad": false, "clip": nil,
		}}},
		"rng":    map[string]any{"seed": int64(7), "drawn": uint64(step) * 1e9, "state": slices.Repeat(seed, 8)},
		"config": map[string]any{"layers": int64(layers), "width": m.width, "name": "demo", "tied": false},
		"step":   step,
	}
}

// onlyValues returns the values of a state that are not tensors.
func onlyValues(s cairn.State) cairn.State {
	out := maps.Clone(s)
	delete(out, "model")
	out["optimizer"] = map[string]any{"groups": s["optimizer"].(map[string]any)["groups"]}
	return out
}

// part returns the state of a rank that saves: views of the whole tensors.
func (m *model) part(rank int) (cairn.State, error) {
	s := m.values(m.step)
	for _, e := range m.tensors {
		v := plan.Whole(e.whole)
		if e.save != nil {
			parts, err := e.save.Parts(e.shape, rank)
			if err != nil {
				return nil, err
			}
			v = &view{v, e.whole, parts}
		}
		if err := plan.Place(s, e.path, v); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// view is the part of a rank in a tensor that this process has as a whole. The
// tensor itself has the global shape and the dtype.
type view struct {
	plan.Checkpointable
	whole *tensor.Tensor
	parts []shard.Part
}

// Boxes implements [plan.Checkpointable].
func (v *view) Boxes() []tensor.Box {
	out := make([]tensor.Box, len(v.parts))
	for i, p := range v.parts {
		out[i] = p.Box
	}
	return out
}

// Part implements [plan.Checkpointable].
func (v *view) Part(i int) (*tensor.Tensor, error) { return v.whole.Narrow(v.parts[i].Box) }

// loaded is the part of a rank in a tensor that is loaded.
type loaded struct {
	plan.Checkpointable
	entry *entry
}

// empty returns the state of a rank that loads, with the values of another step, and
// its parts of tensors.
func (m *model) empty(rank int) (cairn.State, []loaded, error) {
	s, parts := m.values(1), []loaded(nil)
	for _, e := range m.tensors {
		part, err := e.empty(rank)
		if err == nil {
			err = plan.Place(s, e.path, part)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", e.path.FQN(), err)
		}
		parts = append(parts, loaded{part, e})
	}
	return s, parts, nil
}

func (e *entry) empty(rank int) (plan.Checkpointable, error) {
	if e.load != nil {
		return shard.Empty(e.load, e.dtype, e.shape, rank)
	}
	t, err := tensor.New(e.dtype, e.shape)
	return plan.Whole(t), err
}

// compare returns the number of bytes of the part, or an error if the part differs
// from the saved tensor.
func (l loaded) compare() (n int64, err error) {
	for i, box := range l.Boxes() {
		got, err := l.Part(i)
		if err != nil {
			return 0, err
		}
		want, err := l.entry.whole.Narrow(box)
		if err != nil {
			return 0, err
		}
		if !tensor.Equal(got, want) {
			return 0, fmt.Errorf("%w: %s: other bytes than were saved at %v", errWrong, l.entry.path.FQN(), box)
		}
		n += got.NumBytes()
	}
	return n, nil
}

// wanted returns the total bytes of the ranks that load: some tensors are on several
// ranks.
func (m *model) wanted() (n int64) {
	for _, e := range m.tensors {
		for rank := range m.load {
			shape := e.shape
			if e.load != nil {
				shape, _ = e.load.LocalShape(e.shape, rank) // the layouts are valid
			}
			n += tensor.Whole(shape).Volume() * int64(e.dtype.Size())
		}
	}
	return n
}
