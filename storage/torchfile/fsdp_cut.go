package torchfile

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// cut is how the ranks hold the parts of a tensor. Tensors of one shape that ranks hold in the same
// way share it.
type cut struct {
	pieces []*piece // of each rank
	chunks []tensor.Box
	held   []held    // who holds each chunk
	again  [][2]held // parts with the same elements
	// problem says why the chunks do not make up the tensor. Empty: they do.
	problem string
}

// held is a part that a rank holds.
type held struct{ rank, part int }

func (x *cut) box(h held) tensor.Box { return x.pieces[h.rank].boxes[h.part] }

func newCut(pieces []*piece) *cut {
	x := &cut{pieces: pieces}
	var all []held
	for rank, p := range pieces {
		for i := range p.boxes {
			all = append(all, held{rank, i})
		}
	}
	slices.SortStableFunc(all, func(a, b held) int {
		return cmp.Or(slices.Compare(x.box(a).Offsets, x.box(b).Offsets), slices.Compare(x.box(a).Sizes, x.box(b).Sizes))
	})

	shape := pieces[0].shape
	empty := tensor.Whole(shape).Empty()
	for i, h := range all {
		b := x.box(h)
		switch {
		case b.Empty() && (!empty || len(x.held) > 0):
		case i > 0 && !empty && x.box(all[i-1]).Equal(b):
			x.again = append(x.again, [2]held{x.held[len(x.held)-1], h})
		default:
			x.chunks, x.held = append(x.chunks, b), append(x.held, h)
		}
	}

	if problems := plan.CheckCoverage(shape, x.chunks); len(problems) > 0 {
		x.problem = problems[0].Text
	} else if len(x.held) == 0 {
		x.problem = "no rank has a part of it"
	}
	return x
}

// ranksOf are the ranks of an item.
type ranksOf struct {
	// groups are the first ranks of groups whose files share one value, and of are the
	// groups of all ranks.
	groups, of []int
}

func newRanks(it *fsdpItem) *ranksOf {
	r, first := &ranksOf{}, map[*torchsave.File]int{}
	for rank, f := range it.files {
		like := f.Like()
		if like == nil {
			like = f.File
		}
		g, ok := first[like]
		if !ok {
			g = len(r.groups)
			first[like], r.groups = g, append(r.groups, rank)
		}
		r.of = append(r.of, g)
	}
	return r
}

// spread is a tensor in chunks that the files of ranks hold, many of them with one value.
type spread struct {
	*cut
	files  []*File             // of all ranks
	of     []int               // the group of each rank
	locals []*torchsave.Tensor // of the value of each group
	key    string              // equal keys mean equal cuts
	made   *meta.Tensor        // the description; see describeAll
}

// namesAtOnce is the number of names that are described one after the other.
const namesAtOnce = 1 << 10

// spreads returns the tensors that the values of all ranks are parts of, without their cuts. An
// element is nil if the values are not DTensors, or are too different: then pieces and join
// return the tensor, or an error.
func (it *fsdpItem) spreads(ctx context.Context, r *ranksOf, n int, of func(i, rank int) any) ([]*spread, error) {
	out := make([]*spread, n)
	err := work.Each(ctx, (n+namesAtOnce-1)/namesAtOnce, runtime.GOMAXPROCS(0), func(_ context.Context, part int) error {
		known := make([]meshes, len(r.groups))
		for g := range known {
			known[g] = meshes{}
		}
		var key []byte
		for i := part * namesAtOnce; i < min(n, (part+1)*namesAtOnce); i++ {
			s := &spread{files: it.files, of: r.of, locals: make([]*torchsave.Tensor, len(r.groups))}
			key = key[:0]
			for g, rank := range r.groups {
				if s.locals[g], key = it.describe(key, of(i, rank), rank, known[g]); s.locals[g] == nil {
					s = nil
					break
				}
			}
			if s != nil {
				s.key, out[i] = string(key), s
			}
		}
		return nil
	})
	return out, err
}

// cuts are the cuts of the tensors of an item, by their keys.
type cuts map[string]*cut

// cut sets the cut of a tensor.
func (c *fsdpSave) cut(it *fsdpItem, s *spread, made cuts, known []meshes, of func(rank int) any) error {
	if s.cut = made[s.key]; s.cut == nil {
		pieces, err := c.pieces(it, known, of)
		if err != nil {
			return err
		}
		s.cut = newCut(pieces)
		made[s.key] = s.cut
	}
	return nil
}

// describe adds everything to a key that decides which parts of a tensor the ranks of a group
// hold. It returns the local tensor, or nil if more decides it.
func (it *fsdpItem) describe(key []byte, v any, rank int, known meshes) (*torchsave.Tensor, []byte) {
	d := asDTensor(it.files[rank], v, rank, known)
	if d == nil || d.err != nil {
		return nil, key
	}
	o := distributed(v, "DTensor")
	attrs := attributes(o.Args[3])
	local, _ := attrs["_local_tensor"].(*torchsave.Tensor)
	spec := attributes(attrs["_spec"])
	mesh, _ := spec["mesh"].(*value.Object)
	if mesh == nil || torchsave.Varies(o.Args[2]) || torchsave.Varies(spec["tensor_meta"]) || torchsave.Varies(spec["placements"]) || torchsave.Varies(spec["shard_order"]) {
		return nil, key
	}

	key = append(fmt.Appendf(key, "%p", mesh), 0)
	for _, shape := range [][]int64{d.shape, local.Shape} {
		key = binary.AppendUvarint(key, uint64(len(shape)))
		for _, n := range shape {
			key = binary.AppendVarint(key, n)
		}
	}
	return local, append(fmt.Append(key, local.DType, d.layout), 0)
}

// tensor returns a part.
func (s *spread) tensor(h held) *torchsave.Tensor {
	return view(s.files[h.rank].OwnTensor(s.locals[s.of[h.rank]]), s.pieces[h.rank].cuts[h.part])
}

// elements returns the place of a chunk.
func (s *spread) elements(i int) Elements {
	h := s.held[i]
	return Elements{File: s.files[h.rank], Tensor: s.tensor(h)}
}

// describeAll describes tensors that have their cuts. Elements of all may be nil.
func describeAll(ctx context.Context, all []*spread) error {
	return work.Each(ctx, (len(all)+namesAtOnce-1)/namesAtOnce, runtime.GOMAXPROCS(0), func(_ context.Context, part int) error {
		for _, s := range all[part*namesAtOnce : min(len(all), (part+1)*namesAtOnce)] {
			if s != nil {
				s.made = s.describe()
			}
		}
		return nil
	})
}

func (s *spread) describe() *meta.Tensor {
	first := s.locals[s.of[s.held[0].rank]]
	out := &meta.Tensor{Shape: s.pieces[0].shape, Chunks: s.chunks, Locs: make([]meta.Location, len(s.held))}
	out.DType, out.RequiresGrad = first.DType, first.RequiresGrad

	var detail *meta.Detail
	for i, h := range s.held {
		f, t, part := s.files[h.rank], s.locals[s.of[h.rank]], &s.pieces[h.rank].cuts[h.part]
		if i == 0 || s.of[h.rank] != s.of[s.held[i-1].rank] || !slices.Equal(s.chunks[i].Sizes, s.chunks[i-1].Sizes) {
			detail = &meta.Detail{Key: viewKey(view(t, *part))}
		}
		here := *t
		here.Offset = f.Place(t)
		narrow(&here, part)
		out.Locs[i] = meta.Location{File: f.Name, Offset: here.Offset, Length: here.Span(), Detail: detail}
	}
	return out
}
