package torchfile

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// piece is the part of a tensor that a rank holds: a DTensor or a ShardedTensor of PyTorch.
type piece struct {
	shape []int64 // of the whole tensor
	dtype tensor.DType
	// boxes are the parts of the tensor that the rank holds, and parts[i] has the elements
	// of boxes[i].
	boxes []tensor.Box
	parts []*torchsave.Tensor
	// cuts are the parts of the local tensor of a DTensor.
	cuts []shard.Part
	// world is the number of ranks that the object mentions.
	world int
	// shard is the number of the rank among the shards that ranks cut the tensor into, and
	// shards the number of shards. copied means that a rank before it holds the same.
	shard, shards int
	copied        bool
}

// asPiece returns the piece that a value of f, the file of a rank, is. It returns nil for values
// that are not sharded.
func asPiece(f *File, v any, rank int, known meshes) (*piece, error) {
	if d := asDTensor(f, v, rank, known); d != nil {
		p, err := d.piece()
		if err != nil {
			return nil, fmt.Errorf("the DTensor: %w", err)
		}
		return p, nil
	}
	if o := distributed(v, "ShardedTensor"); o != nil {
		o, _ = f.Own(o).(*value.Object)
		p, err := shardedTensor(o, rank)
		if err != nil {
			return nil, fmt.Errorf("the ShardedTensor: %w", err)
		}
		return p, nil
	}
	return nil, nil
}

func (d *dtensor) piece() (*piece, error) {
	if d.err != nil {
		return nil, d.err
	}
	layout, place := d.cutOrder()
	parts, err := partsOfLocal(layout, d.shape, place, d.local)
	if err != nil {
		var again error
		if parts, again = partsOfLocal(d.layout, d.shape, d.place, d.local); again != nil {
			return nil, err
		}
	}

	p := &piece{shape: d.shape, dtype: d.local.DType, world: d.mesh.world, shards: 1, cuts: parts}
	for _, part := range parts {
		p.boxes, p.parts = append(p.boxes, part.Box), append(p.parts, view(d.local, part))
	}
	for i, q := range d.layout.(shard.Placed).Placements {
		if q == shard.Replicate() {
			p.copied = p.copied || d.mesh.at[i] > 0
			continue
		}
		p.shard, p.shards = p.shard*d.mesh.sizes[i]+int(d.mesh.at[i]), p.shards*d.mesh.sizes[i]
	}
	return p, nil
}

// cutOrder returns the layout with the dimensions of the mesh in the order of the cuts, and the
// place of the rank in it. FSDP cuts what tensor parallelism has cut before, and describes its
// cut by a strided one: if cuts are uneven, the description means other pieces.
func (d *dtensor) cutOrder() (shard.Layout, int) {
	given := d.layout.(shard.Placed)
	order := make([]int, len(given.Placements))
	for i := range order {
		order[i] = i
	}
	made := slices.Clone(given.Placements)
	for i := len(made) - 1; i >= 0; i-- {
		for dim := range d.shape {
			split, last := 1, i
			for j := i + 1; j < len(made); j++ {
				if made[j] == shard.Shard(dim) {
					split, last = split*given.Mesh.Shape[j], j
				}
			}
			if last == i || made[i] != shard.StridedShard(dim, split) {
				continue
			}
			made[i] = shard.Shard(dim)
			from := slices.Index(order, i)
			order = slices.Delete(order, from, from+1)
			order = slices.Insert(order, slices.Index(order, last)+1, i)
			break
		}
	}

	var p shard.Placed
	place := 0
	for _, i := range order {
		p.Mesh.Shape, p.Placements = append(p.Mesh.Shape, given.Mesh.Shape[i]), append(p.Placements, made[i])
		place = place*given.Mesh.Shape[i] + int(d.mesh.at[i])
	}
	return p, place
}

// partsOfLocal returns the parts of a tensor that t, the local tensor of a place in a layout,
// holds. It returns an error if t has another shape than its place has.
func partsOfLocal(l shard.Layout, shape []int64, place int, t *torchsave.Tensor) ([]shard.Part, error) {
	local, err := l.LocalShape(shape, place)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(local, t.Shape) {
		return nil, fmt.Errorf("it has %v, and the part of %v at place %d of %v is %v", t.Shape, shape, place, l, local)
	}
	return l.Parts(shape, place)
}

// shardedTensor returns the piece of a ShardedTensor. Its state is a tuple: the shards of the
// rank, the metadata of all shards, and the ranks of its group.
func shardedTensor(o *value.Object, rank int) (*piece, error) {
	state, _ := o.Args[3].(value.Tuple)
	if len(state) < 3 {
		return nil, fmt.Errorf("its state has %d items", len(state))
	}

	all, group := attributes(state[1]), attributes(state[2])
	size := all["size"]
	p := &piece{shards: 1}
	var ok bool
	if p.shape, ok = integers(size); !ok {
		return nil, fmt.Errorf("its shape is %T", size)
	}
	if _, err := tensor.NumElements(p.shape); err != nil {
		return nil, err
	}

	if n, ok := group["global_rank"].(int64); ok && n != int64(rank) {
		return nil, fmt.Errorf("rank %d saved it: give each file the name that it was saved as", n)
	}
	if n, ok := group["global_world_size"].(int64); ok && n > 0 && n <= maxMesh {
		p.world = int(n)
	}

	listed, _ := list(all["shards_metadata"])
	p.shards = max(1, len(listed))
	for i, s := range listed {
		if n, ok := attributes(attributes(s)["placement"])["_rank"].(int64); ok && n >= 0 && n < maxMesh {
			p.world = max(p.world, int(n)+1)
			if n == int64(rank) {
				p.shard = i
			}
		}
	}

	shards, _ := list(state[0])
	for _, s := range shards {
		if err := p.addShard(attributes(s)); err != nil {
			return nil, err
		}
	}
	if len(p.parts) == 0 { // the dtype is in the arguments
		if args, _ := o.Args[2].(value.Tuple); len(args) > 1 {
			if d, ok := args[1].(*value.Object); ok {
				p.dtype, _ = tensor.ParseDType(d.Name)
			}
		}
	}
	return p, nil
}

// addShard adds a shard of a ShardedTensor.
func (p *piece) addShard(s map[string]any) error {
	t, ok := s["tensor"].(*torchsave.Tensor)
	md := attributes(s["metadata"])
	at, ok1 := integers(md["shard_offsets"])
	sizes, ok2 := integers(md["shard_sizes"])
	box := tensor.Box{Offsets: at, Sizes: sizes}
	if !ok || !ok1 || !ok2 || len(at) != len(p.shape) {
		return fmt.Errorf("a shard of %v has offsets %v and sizes %v", p.shape, md["shard_offsets"], md["shard_sizes"])
	}
	if err := box.Check(p.shape); err != nil {
		return err
	}
	if !slices.Equal(sizes, t.Shape) || len(p.parts) > 0 && t.DType != p.dtype {
		return fmt.Errorf("the shard %v has %v %v", box, t.DType, t.Shape)
	}
	p.dtype = t.DType
	p.boxes, p.parts = append(p.boxes, box), append(p.parts, t)
	return nil
}
