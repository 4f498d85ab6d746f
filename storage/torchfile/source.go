package torchfile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// maxValues bounds the values as we encode them, all together: a small pickle
// can name one large thing in many places.
const maxValues = 1 << 30

// maxAgain bounds the memory for the names of tensors in containers that stand at
// several places: see value.Replacer.
const maxAgain = 128 << 20

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
	// again is what is left of maxAgain.
	again int64
	names names
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
		store: store, again: maxAgain, opened: map[string]*file{}, where: map[string]location{}, values: map[string]encodedValue{}, sharers: map[[2]string][]string{},
		names: names{taken: map[string]bool{}, next: map[string]int{}},
	}
}

// add adds the content of a file: its leaves, and the tensors inside of leaves that
// are values.
func (b *builder) add(f *file) error {
	leaves, err := flatten(f.Root)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	b.opened[f.name] = f
	b.files = append(b.files, storage.File{Name: f.name, Size: f.size, Unsummed: true})
	named := b.names.give(f.name, leaves)
	for _, l := range named {
		if t, ok := l.value.(*torchsave.Tensor); ok {
			b.entries = append(b.entries, meta.Entry{FQN: l.fqn, Path: l.path, Tensor: b.tensor(l.fqn, f, t)})
		}
	}
	var in namedLeaf // the value whose tensors are being replaced
	inside := value.Replacer{Again: b.again, With: torchsave.Inside(func(at []string, t *torchsave.Tensor) (any, error) {
		return value.Ref{FQN: b.inside(f, in, at, t)}, nil
	})}
	for _, in = range named {
		if _, ok := in.value.(*torchsave.Tensor); ok {
			continue
		}
		v, err := inside.Replace(in.value)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", f.name, in.fqn, err)
		}
		e := meta.Entry{FQN: in.fqn, Path: in.path}
		if e.Bytes, err = b.value(in.fqn, f, v); err != nil {
			return fmt.Errorf("%s: %q: %w", f.name, in.fqn, err)
		}
		b.entries = append(b.entries, e)
	}
	b.again = inside.Again
	return nil
}

// inside adds a tensor that is inside of a value and returns its name: that of
// the value and the steps to the tensor.
func (b *builder) inside(f *file, in namedLeaf, at []string, t *torchsave.Tensor) string {
	path := slices.Clone(in.path)
	for _, s := range at {
		path = append(path, meta.Key(s))
	}
	fqn := b.names.unused(strings.Join(append([]string{in.fqn}, at...), "."))
	b.entries = append(b.entries, meta.Entry{FQN: fqn, Path: path, Tensor: b.tensor(fqn, f, t)})
	return fqn
}

func (b *builder) tensor(fqn string, f *file, t *torchsave.Tensor) *meta.Tensor {
	b.where[fqn] = location{f.name, t}
	id := [2]string{f.name, t.StorageKey}
	b.sharers[id] = append(b.sharers[id], fqn)
	return &meta.Tensor{
		Properties: meta.Properties{DType: t.DType, RequiresGrad: t.RequiresGrad}, Shape: t.Shape,
		Chunks: []tensor.Box{tensor.Whole(t.Shape)},
		Locs: []meta.Location{{
			File: f.name, Offset: t.Offset, Length: t.Span(), Detail: &meta.Detail{Key: viewKey(t)},
		}},
	}
}

// viewKey returns the key of a tensor's storage and, if its elements are not
// those of the storage in their order, how they follow from them. Tensors of one
// file, place, type, shape and key are the same.
func viewKey(t *torchsave.Tensor) string {
	key := t.StorageKey
	if !t.Contiguous() {
		key += fmt.Sprint(t.Strides)
	}
	if t.Conj {
		key += "*"
	}
	if t.Neg {
		key += "-"
	}
	return key
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
func (b *builder) source(version string) *reading.Source {
	slices.SortFunc(b.entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	return &reading.Source{
		Metadata: &meta.Metadata{
			Entries: b.entries, Storage: meta.Storage{ID: b.store.String(), Version: version},
		},
		Files: b.files, Chunk: b.chunk, Value: b.held, Check: b.check,
	}
}

// chunk says where a tensor lies.
func (b *builder) chunk(_ context.Context, e *meta.Entry, _ int) (reading.Chunk, error) {
	t, ok := b.where[e.FQN]
	if !ok {
		return reading.Chunk{}, fmt.Errorf("%w: no tensor %q", meta.ErrInvalid, e.FQN)
	}
	r := &reading.Region{File: t.file, Offset: t.Offset, End: t.End, DType: t.DType, Sum: (*reading.Sum)(t.Sum)}
	if !t.Contiguous() {
		r.Strides = t.Strides
	}
	if t.Lazy() {
		r.Resolve = t.Resolve
	}
	return reading.Chunk{Region: r}, nil
}

func (b *builder) held(_ context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	v, ok := b.values[e.FQN]
	if !ok {
		return "", nil, fmt.Errorf("%w: no value %q", meta.ErrInvalid, e.FQN)
	}
	return v.codec, v.data, nil
}

// check compares the checksums of a file's records.
func (b *builder) check(ctx context.Context, c *reading.FileCheck) (unsummed int64, err error) {
	if err := c.Scan(ctx, nil); err != nil {
		return 0, err
	}
	f := b.opened[c.File.Name]
	if f == nil {
		return 0, nil // the index
	}
	err = f.read(ctx, b.store, func(r blob.Reader) error {
		if r.Size() != f.size {
			return nil // Verify reports it
		}
		return f.Check(ctx, r.ReadAt, func(key string, err error) {
			names := b.sharers[[2]string{f.name, key}]
			if len(names) == 0 {
				names = []string{""}
			}
			for _, fqn := range names {
				c.Problem(fqn, err.Error())
			}
		})
	})
	return f.Unsummed, err
}
