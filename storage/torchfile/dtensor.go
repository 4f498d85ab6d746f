package torchfile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/value"
)

// dtensor is a DTensor of PyTorch, as torch.save pickles it: the part of one rank.
type dtensor struct {
	local *torchsave.Tensor
	shape []int64 // of the whole tensor
	// layout says which boxes of the tensor each place of the mesh holds. Its ranks are
	// the places of the mesh in row-major order, because the object of a rank does not
	// need the numbers of the other ranks. Nil: err says why it is unknown.
	layout shard.Layout
	place  int   // of this rank in the mesh
	mesh   *mesh // nil: err says why it is unknown
	err    error
}

// mesh is a DeviceMesh of PyTorch as one rank pickles it.
type mesh struct {
	sizes []int
	at    []int64 // the place of the rank
	// world is the number of ranks that the object mentions: of the mesh, or of the mesh
	// that it is a part of.
	world int
}

// meshes remembers the meshes of a file: all its DTensors refer to a few objects.
type meshes map[*value.Object]*mesh

// asDTensor returns the DTensor that a value of f, the file of a rank, is, or nil. The names of
// the attributes differ between releases of PyTorch.
func asDTensor(f *File, v any, rank int, known meshes) *dtensor {
	o := distributed(v, "DTensor")
	if o == nil {
		return nil
	}
	attrs := attributes(o.Args[3])
	local, ok := attrs["_local_tensor"].(*torchsave.Tensor)
	if !ok {
		return nil
	}
	d := &dtensor{local: f.OwnTensor(local)}
	spec := attributes(attrs["_spec"])
	if d.err = d.setShape(f.Own(spec["tensor_meta"]), f.Own(o.Args[2])); d.err == nil {
		d.err = d.setLayout(f, spec, rank, known)
	}
	return d
}

// distributed returns the call that makes a tensor of that class of torch.distributed, or nil.
// Its last argument is the state of the tensor.
func distributed(v any, class string) *value.Object {
	o, ok := v.(*value.Object)
	if !ok || o.QualifiedName() != "torch._tensor._rebuild_from_type_v2" || len(o.Args) != 4 {
		return nil
	}
	c, ok := o.Args[1].(*value.Object)
	if !ok || !strings.HasPrefix(c.Module, "torch.distributed.") || c.Name != class {
		return nil
	}
	return o
}

// attributes returns the attributes of an object, or of the state of one. The caller must not
// change them: most are not copied, because the files of a large run have millions of objects.
func attributes(v any) map[string]any {
	o, ok := v.(*value.Object)
	if !ok {
		o = &value.Object{State: v}
	}

	state := o.State
	if t, ok := state.(value.Tuple); ok && len(t) == 2 && t[0] == nil {
		state = t[1]
	}
	if m, ok := state.(map[string]any); ok {
		return m
	}
	return o.Attributes()
}

// setShape sets the shape of the whole tensor: of its TensorMeta, or of the arguments
// that make the tensor itself.
func (d *dtensor) setShape(meta, args any) error {
	if m, ok := meta.(*value.Object); ok {
		shape := attributes(m)["shape"]
		if len(m.Args) > 0 {
			shape = m.Args[0]
		}
		if d.shape, ok = integers(shape); ok {
			return nil
		}
	}
	if a, ok := args.(value.Tuple); ok && len(a) > 2 {
		if d.shape, ok = integers(a[2]); ok {
			return nil
		}
	}
	return fmt.Errorf("its shape is not in the object")
}

func (d *dtensor) setLayout(f *File, spec map[string]any, rank int, known meshes) error {
	m, err := meshOf(f, spec["mesh"], rank, known)
	if err != nil {
		return err
	}
	p := shard.Placed{Mesh: shard.Mesh{Shape: m.sizes}}
	for i, n := range m.sizes {
		d.place = d.place*n + int(m.at[i])
	}
	if p.Placements, err = placements(f.Own(spec["placements"])); err != nil {
		return err
	}
	if err := checkOrder(f.Own(spec["shard_order"])); err != nil {
		return err
	}
	d.layout, d.mesh = p, m
	return nil
}

// meshOf returns the mesh that an object describes.
func meshOf(f *File, v any, rank int, known meshes) (*mesh, error) {
	o, _ := v.(*value.Object)
	if m := known[o]; m != nil {
		return m, nil
	}

	attrs := attributes(f.Own(v))
	sizes, err := meshShape(attrs)
	if err != nil {
		return nil, err
	}
	m := &mesh{sizes: sizes, world: meshWorld(attrs, 0)}
	var ok bool
	if m.at, ok = integers(attrs["_coordinate_on_dim"]); !ok || len(m.at) != len(sizes) {
		m.at = placeIn(attrs, sizes, rank)
	}
	if m.at == nil {
		return nil, fmt.Errorf("the place of rank %d in a mesh of %v is not in the object", rank, sizes)
	}
	for i, n := range sizes {
		if m.at[i] < 0 || m.at[i] >= int64(n) {
			return nil, fmt.Errorf("place %v in a mesh of %v", m.at, sizes)
		}
	}
	if n, ok := attrs["_rank"].(int64); ok && n != int64(rank) {
		return nil, fmt.Errorf("its mesh was saved by rank %d: give each file the name that it was saved as", n)
	}

	if known != nil && o != nil {
		known[o] = m
	}
	return m, nil
}

// meshRanks returns the ranks of a mesh in row-major order. Newer releases of PyTorch list the
// ranks of the whole mesh that it is a part of.
func meshRanks(attrs map[string]any) []int64 {
	for _, name := range []string{"_flatten_mesh_list", "_flatten_rank_map"} {
		if l, ok := integers(attrs[name]); ok && len(l) > 0 {
			return l
		}
	}
	return nil
}

// meshWorld returns the number of ranks that a mesh mentions.
func meshWorld(attrs map[string]any, depth int) int {
	world := 0
	for _, n := range meshRanks(attrs) {
		if n >= 0 && n < maxMesh {
			world = max(world, int(n)+1)
		}
	}
	if root, ok := attrs["_root_mesh"].(*value.Object); ok && depth < 4 {
		world = max(world, meshWorld(attributes(root), depth+1))
	}
	return world
}

// placeIn returns the place of a rank in a mesh that lists its ranks, or nil. The ranks of a
// part of a mesh are some of those that it lists: its layout has a stride for each dimension,
// and the rank says which part it is.
func placeIn(attrs map[string]any, sizes []int, rank int) []int64 {
	ranks, total := meshRanks(attrs), int64(1)
	i := int64(slices.Index(ranks, int64(rank)))
	if i < 0 {
		return nil
	}
	strides := make([]int64, len(sizes))
	for d := len(sizes) - 1; d >= 0; d-- {
		strides[d], total = total, total*int64(sizes[d])
	}
	if axes, ok := list(attributes(attrs["_layout"])["axes"]); ok && len(axes) == len(sizes) {
		for d, a := range axes {
			stride, ok := integers(attributes(a)["stride"])
			if !ok || len(stride) != 1 || stride[0] < 1 {
				return nil
			}
			strides[d] = stride[0]
		}
	} else if int64(len(ranks)) != total {
		return nil
	}

	at := make([]int64, len(sizes))
	for d, n := range sizes {
		at[d] = i / strides[d] % int64(n)
	}
	return at
}

// maxMesh bounds the ranks of a mesh.
const maxMesh = 1 << 24

// meshShape returns the shape of a DeviceMesh: of its tensor of ranks or, in newer
// releases, of its layout.
func meshShape(mesh map[string]any) ([]int, error) {
	var dims []any
	for _, name := range []string{"mesh", "_mesh"} {
		if t, ok := mesh[name].(*torchsave.Tensor); ok {
			for _, n := range t.Shape {
				dims = append(dims, n)
			}
		}
	}
	layout := attributes(mesh["_layout"])
	if axes, ok := list(layout["axes"]); ok {
		for _, a := range axes {
			dims = append(dims, attributes(a)["shape"])
		}
	} else if shape, ok := list(layout["shape"]); ok {
		dims = shape
	} else if n, ok := layout["shape"].(int64); ok {
		dims = []any{n}
	}
	out, total := make([]int, len(dims)), int64(1)
	for i, d := range dims {
		n, ok := product(d, 0)
		if !ok || n > maxMesh/total {
			return nil, fmt.Errorf("a mesh of %v", dims)
		}
		out[i], total = int(n), total*n
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the shape of its mesh is not in the object")
	}
	return out, nil
}

// product returns the product of integers in nested tuples, which is positive and at
// most maxMesh.
func product(v any, depth int) (int64, bool) {
	if n, ok := v.(int64); ok {
		return n, n > 0 && n <= maxMesh
	}
	l, ok := list(v)
	total := int64(1)
	for i := 0; i < len(l) && ok; i++ {
		var n int64
		if n, ok = product(l[i], depth+1); ok {
			total *= n
			ok = total <= maxMesh
		}
	}
	return total, ok && depth < 8
}

// placements returns the placements of a DTensorSpec.
func placements(v any) ([]shard.Placement, error) {
	l, ok := list(v)
	if !ok {
		return nil, fmt.Errorf("its placements are not in the object")
	}
	var out []shard.Placement
	for _, p := range l {
		o, ok := p.(*value.Object)
		if !ok {
			return nil, fmt.Errorf("a placement is %T", p)
		}
		attrs := attributes(o)
		for i, name := range []string{"dim", "split_factor"} {
			if attrs[name] == nil && i < len(o.Args) {
				if attrs = maps.Clone(attrs); attrs == nil {
					attrs = map[string]any{}
				}
				attrs[name] = o.Args[i]
			}
		}
		made, err := placement(o.Name, attrs)
		if err != nil {
			return nil, err
		}
		out = append(out, made)
	}
	return out, nil
}

// placement returns the placement of a class of PyTorch with these attributes.
func placement(class string, attrs map[string]any) (shard.Placement, error) {
	dim, ok := attrs["dim"].(int64)
	ok = ok && dim >= -maxDims && dim <= maxDims
	switch class {
	case "Replicate":
		return shard.Replicate(), nil
	case "Shard":
		if ok {
			return shard.Shard(int(dim)), nil
		}
	case "StridedShard", "_StridedShard":
		if n, is := attrs["split_factor"].(int64); ok && is && n > 0 && n <= maxMesh {
			return shard.StridedShard(int(dim), int(n)), nil
		}
	case "Partial", "_Partial":
		return shard.Placement{}, shard.ErrPartial
	}
	return shard.Placement{}, fmt.Errorf("a placement %s %v", class, attrs)
}

// maxDims bounds the dimensions of a tensor.
const maxDims = 1 << 10

// checkOrder refuses an order of the cuts other than the order of the mesh.
func checkOrder(v any) error {
	entries, _ := list(v)
	for _, e := range entries {
		attrs := attributes(e)
		dims := attrs["mesh_dims"]
		if o, ok := e.(*value.Object); ok && dims == nil && len(o.Args) > 1 {
			dims = o.Args[1]
		}
		order, ok := integers(dims)
		for i := 1; i < len(order); i++ {
			ok = ok && order[i-1] < order[i]
		}
		if !ok {
			return fmt.Errorf("its dimension is cut in the order %v of the mesh", dims)
		}
	}
	return nil
}

// list returns the elements of a list or tuple.
func list(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case value.Tuple:
		return v, true
	}
	return nil, false
}

// integers returns a list, tuple or torch.Size of integers.
func integers(v any) ([]int64, bool) {
	if o, ok := v.(*value.Object); ok && o.QualifiedName() == "torch.Size" && len(o.Args) == 1 {
		v = o.Args[0]
	}
	l, ok := list(v)
	out := make([]int64, len(l))
	for i, e := range l {
		n, is := e.(int64)
		out[i], ok = n, ok && is
	}
	return out, ok
}
