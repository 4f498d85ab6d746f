package orbax

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/orbax/flax"
	"github.com/cairn-ckpt/cairn/storage/orbax/ocdbt"
	"github.com/cairn-ckpt/cairn/storage/orbax/zarr"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// packed is the content of the file checkpoint, which has leaves of a tree.
type packed struct {
	file string
	root any
	err  error // why it cannot be read
}

// readPacked reads the file checkpoint. A file that is missing or damaged is an error of its leaves only.
func (it *item) readPacked(ctx context.Context) (*packed, error) {
	p := &packed{file: it.dir + msgpackFile}
	r, err := it.store.Open(ctx, p.file)
	if errors.Is(err, fs.ErrNotExist) {
		p.err = reading.Damaged(p.file, "the file is missing")
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()

	p.root, err = flax.Read(ctx, r)
	switch {
	case errors.Is(err, flax.ErrMalformed):
		p.err = reading.Damaged(p.file, "%w", err)
	case errors.Is(err, flax.ErrUnsupported):
		p.err = &storage.FileError{File: p.file, Err: fmt.Errorf("%w: %w", storage.ErrVersion, err)}
	case err != nil:
		return nil, err
	}
	return p, nil
}

// find returns the value at a path.
func (p *packed) find(path meta.Path) (any, bool) {
	v := p.root
	for _, s := range path {
		switch in := v.(type) {
		case flax.Map:
			next, ok := in[s.String()]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			n, err := strconv.Atoi(s.String())
			if err != nil || n < 0 || n >= len(in) {
				return nil, false
			}
			v = in[n]
		default:
			return nil, false
		}
	}
	return v, true
}

// addPacked adds a leaf that is in the file checkpoint.
func (it *item) addPacked(p *packed, l *leaf, path meta.Path) error {
	if p.err != nil {
		it.lose(path, p.err)
		return nil
	}
	v, ok := p.find(l.path)
	if !ok {
		it.lose(path, reading.Damaged(p.file, "it has no leaf %q", l.name()))
		return nil
	}

	a, ok := v.(*flax.Array)
	if !ok {
		x, ok := fromFlax(v)
		if !ok {
			it.lose(path, reading.Damaged(p.file, "the leaf %q is a container of arrays", l.name()))
			return nil
		}
		return it.addValue(p.file, path, x)
	}
	e, arr, err := packedTensor(p.file, a)
	if err != nil {
		it.lose(path, err)
		return nil
	}

	fqn := it.unused(nameOf(path, "tensor"))
	if err := meta.CheckFQN(fqn); err != nil {
		return reading.Damaged(p.file, "%w", err)
	}
	e.FQN, e.Path = fqn, path
	it.entries[fqn], it.checkpoint.arrays[fqn] = *e, arr
	if !slices.Contains(it.forms, "msgpack") {
		it.forms = append(it.forms, "msgpack")
	}
	if arr.Type.Raw {
		it.raw[arr.Type.Name] = append(it.raw[arr.Type.Name], fqn)
	}
	return nil
}

// packedTensor describes an array in a file of Flax.
func packedTensor(file string, a *flax.Array) (*meta.Entry, *array, error) {
	typ, ok := zarr.TypeOf(a.DType)
	if !ok {
		return nil, nil, &storage.FileError{File: file, Err: fmt.Errorf("%w: the dtype %.100q", storage.ErrVersion, a.DType)}
	}
	if n, err := tensor.NumBytes(typ.DType, a.Shape); err != nil || n != a.Length {
		return nil, nil, reading.Damaged(file, "an array %v of %s has %d bytes", a.Shape, a.DType, a.Length)
	}

	v := &ocdbt.Value{File: file, Offset: a.Offset, Length: a.Length}
	arr := &array{Array: &zarr.Array{Shape: a.Shape, Chunk: a.Shape, Type: typ}, cells: []*ocdbt.Value{v}}
	return &meta.Entry{Tensor: &meta.Tensor{
		Properties: meta.Properties{DType: typ.DType}, Shape: a.Shape,
		Chunks: []tensor.Box{tensor.Whole(a.Shape)}, Locs: []meta.Location{{File: file, Offset: a.Offset, Length: a.Length}},
	}}, arr, nil
}

// fromFlax returns a value of a file of Flax as a value of a checkpoint. It reports false for a container
// with arrays, which is no leaf.
func fromFlax(v any) (_ any, ok bool) {
	switch v := v.(type) {
	case flax.Map:
		out := map[string]any{}
		for k, x := range v {
			if out[k], ok = fromFlax(x); !ok {
				return nil, false
			}
		}
		return out, true
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			if out[i], ok = fromFlax(x); !ok {
				return nil, false
			}
		}
		return out, true
	case *flax.Array:
		return nil, false
	}
	return v, true
}

// numberOf returns the number in a tensor without dimensions, of type int64, float64 or bool.
func numberOf(t *tensor.Tensor) any {
	p := t.Contents()
	switch t.DType() {
	case tensor.Bool:
		return p[0] != 0
	case tensor.Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(p))
	}
	return int64(binary.LittleEndian.Uint64(p))
}
