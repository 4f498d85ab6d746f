package torchfile

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/foreign"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// maxInside bounds the tensors that are inside of values, in bytes for each
// file: values are held in memory.
const maxInside = 256 << 20

// maxValues bounds the values as we encode them, all together: a small pickle
// can name one large thing in many places.
const maxValues = 1 << 30

// inlineMax is the size up to which a value stands in the metadata.
const inlineMax = 64 << 10

// builder makes one source of some files.
type builder struct {
	store   blob.Store
	entries []meta.Entry
	files   []storage.File
	opened  map[string]*file
	// where is the place of each tensor, and values are those that are not
	// inline, both by name.
	where  map[string]location
	values map[string]encodedValue
	// encoded counts the bytes of all values.
	encoded int64
	// sharers are the names of the tensors of a storage, by file and key.
	sharers map[[2]string][]string
}

// location is a tensor of a file.
type location struct {
	file string
	*torchsave.Tensor
}

// encodedValue is a value in a codec of package value.
type encodedValue struct {
	codec string
	data  []byte
}

func newBuilder(store blob.Store) *builder {
	return &builder{
		store: store, opened: map[string]*file{}, where: map[string]location{}, values: map[string]encodedValue{}, sharers: map[[2]string][]string{},
	}
}

// add takes in what a file holds.
func (b *builder) add(ctx context.Context, f *file) error {
	leaves, err := flatten(f.Root)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	b.opened[f.name] = f
	b.files = append(b.files, storage.File{Name: f.name, Size: f.size, Unsummed: true})
	names := slices.Sorted(maps.Keys(leaves))
	values, err := f.values(ctx, b.store, names, leaves)
	if err != nil {
		return err
	}
	for i, fqn := range names {
		l := leaves[fqn]
		e := meta.Entry{FQN: fqn, Path: l.path}
		if t, ok := l.value.(*torchsave.Tensor); ok {
			e.Tensor = b.tensor(fqn, f, t)
		} else if e.Bytes, err = b.value(fqn, f, values[i]); err != nil {
			return fmt.Errorf("%s: %q: %w", f.name, fqn, err)
		}
		b.entries = append(b.entries, e)
	}
	return nil
}

// values returns the values among leaves, with the tensors inside of them in
// memory. They are read together, for the bound on them is one.
func (f *file) values(ctx context.Context, store blob.Store, names []string, leaves map[string]leaf) ([]any, error) {
	in := make([]any, len(names))
	for i, fqn := range names {
		if _, ok := leaves[fqn].value.(*torchsave.Tensor); !ok {
			in[i] = leaves[fqn].value
		}
	}
	var out any
	err := f.read(ctx, store, func(r blob.Reader) (err error) {
		out, err = torchsave.Materialise(ctx, in, r.ReadAt, maxInside)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out.([]any), nil
}

func (b *builder) tensor(fqn string, f *file, t *torchsave.Tensor) *meta.Tensor {
	b.where[fqn] = location{f.name, t}
	id := [2]string{f.name, t.StorageKey}
	b.sharers[id] = append(b.sharers[id], fqn)
	return &meta.Tensor{
		Properties: meta.Properties{DType: t.DType, RequiresGrad: t.RequiresGrad}, Shape: t.Shape,
		Chunks: []tensor.Box{tensor.Whole(t.Shape)},
		Locs:   []meta.Location{{File: f.name, Offset: t.Offset, Length: t.Span()}},
	}
}

// value encodes a value.
func (b *builder) value(fqn string, f *file, v any) (*meta.Bytes, error) {
	codec, data, err := value.Encode(v)
	if err != nil {
		return nil, err
	}
	if b.encoded += int64(len(data)); b.encoded > maxValues {
		return nil, fmt.Errorf("the values take more than %d bytes", maxValues)
	}
	out := &meta.Bytes{Codec: codec, Size: int64(len(data))}
	out.Loc = meta.Location{File: f.name, Offset: f.PickleOffset, Length: f.PickleEnd - f.PickleOffset}
	if len(data) <= inlineMax {
		out.Inline = append([]byte{}, data...)
		return out, nil
	}
	b.values[fqn] = encodedValue{codec, data}
	return out, nil
}

// source returns the source of what was added.
func (b *builder) source(version string) *foreign.Source {
	slices.SortFunc(b.entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	return &foreign.Source{
		Metadata: &meta.Metadata{
			Entries: b.entries, Storage: meta.Storage{ID: b.store.String(), Version: version},
		},
		Files: b.files, Chunk: b.chunk, Value: b.held, Check: b.check,
	}
}

// chunk says where a tensor lies.
func (b *builder) chunk(_ context.Context, e *meta.Entry, _ int) (foreign.Chunk, error) {
	t, ok := b.where[e.FQN]
	if !ok {
		return foreign.Chunk{}, fmt.Errorf("%w: no tensor %q", meta.ErrInvalid, e.FQN)
	}
	r := &foreign.Region{File: t.file, Offset: t.Offset, End: t.End, DType: t.DType, Sum: (*foreign.Sum)(t.Sum)}
	if !t.Contiguous() {
		r.Strides = t.Strides
	}
	if t.Lazy() {
		r.Resolve = t.Resolve
	}
	return foreign.Chunk{Region: r}, nil
}

func (b *builder) held(_ context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	v, ok := b.values[e.FQN]
	if !ok {
		return "", nil, fmt.Errorf("%w: no value %q", meta.ErrInvalid, e.FQN)
	}
	return v.codec, v.data, nil
}

// check compares the checksums of a file's records.
func (b *builder) check(ctx context.Context, name string, problem func(fqn, text string)) (unsummed int64, err error) {
	f := b.opened[name]
	if f == nil {
		return 0, nil // the index
	}
	err = f.read(ctx, b.store, func(r blob.Reader) error {
		if r.Size() != f.size {
			return nil // that is known already
		}
		return f.Check(ctx, r.ReadAt, func(key string, err error) {
			names := b.sharers[[2]string{name, key}]
			if len(names) == 0 {
				names = []string{""}
			}
			for _, fqn := range names {
				problem(fqn, err.Error())
			}
		})
	})
	return f.Unsummed, err
}
