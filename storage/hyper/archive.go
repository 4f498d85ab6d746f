package hyper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Open opens the checkpoint at the root of store: from a .metadata file, or
// else from the ranks' own metadata files together, or else from the
// layout files and the tensors beside them. If the store has no such files, the
// error wraps storage.ErrIncomplete if it has data files, and storage.ErrNotFound
// otherwise. Missing ranks are an ErrIncomplete too, and invalid metadata is a
// storage.ErrCorrupt.
//
// A missing or damaged data file is an error when it is needed, and a problem in
// the report of Verify, so that the other files can be read.
func (Format) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{dcpfiles.MetadataName}, func(ctx context.Context) (*reading.Source, error) {
		return describe(ctx, store)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// describe reads everything about the checkpoint except its data.
func describe(ctx context.Context, store blob.Store) (*reading.Source, error) {
	d, err := files.Describe(ctx, store)
	if errors.Is(err, dcpfiles.ErrNoMetadata) {
		src, layoutErr := fromLayouts(ctx, store)
		if src != nil || layoutErr != nil {
			return src, layoutErr
		}
	}
	if err != nil {
		return nil, err
	}

	a := newArchive(store)
	if err := a.open(ctx, d.Data); err != nil {
		return nil, err
	}

	a.place(d.Metadata)
	return a.source(d.Metadata, d.Files, d.Data), nil
}

const (
	// maxValue bounds the bytes of a value, so that no value takes all memory.
	maxValue = 1 << 30
	// opening is how many files are described at the same time.
	opening = 16
)

// archive reads the data files of a checkpoint.
type archive struct {
	store blob.Store
	files map[string]*container // files of tensors
	sizes map[string]int64      // of all data files that are there
	// parts are the places of chunks that are not a whole tensor of a file, by the
	// name and the number of the chunk.
	parts map[chunkKey]reading.Region
}

type chunkKey struct {
	fqn string
	i   int
}

func newArchive(store blob.Store) *archive {
	return &archive{store: store, files: map[string]*container{}, sizes: map[string]int64{}, parts: map[chunkKey]reading.Region{}}
}

// open describes the files of those names. A missing or damaged file is kept with
// its error; other errors end the call.
func (a *archive) open(ctx context.Context, names []string) error {
	found := make([]*container, len(names))
	err := work.Each(ctx, len(names), opening, func(ctx context.Context, i int) (err error) {
		found[i], err = a.openOne(ctx, names[i])
		return err
	})
	if err != nil {
		return err
	}

	for i, name := range names {
		if !errors.Is(found[i].err, fs.ErrNotExist) {
			a.sizes[name] = found[i].size
		}
		a.files[name] = found[i]
	}

	return nil
}

func (a *archive) openOne(ctx context.Context, name string) (*container, error) {
	info, err := a.store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return &container{err: reading.Damaged(name, "the file is missing: %w", err)}, nil
	}
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, valueSuffix) {
		return &container{size: info.Size}, nil
	}

	c, err := openContainer(ctx, a.store, name)
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrVersion) {
		return &container{size: info.Size, err: err}, nil
	}
	return c, err
}

// place fills in the places of the chunks, as far as they can be found: the
// metadata names only their files.
func (a *archive) place(md *meta.Metadata) {
	md.Entries = slices.Clone(md.Entries)
	for k := range md.Entries {
		e := &md.Entries[k]
		if e.Tensor == nil {
			continue
		}

		t := *e.Tensor
		t.Locs = slices.Clone(t.Locs)
		for i := range t.Locs {
			loc := &t.Locs[i]
			loc.Offset, loc.Length = 0, 0
			if h, err := a.find(e, i); err == nil {
				loc.Offset, loc.Length = h.region.Offset, h.region.End-h.region.Offset
			}
		}

		e.Tensor = &t
	}
}

// keyOf returns the key of a chunk in its file.
func keyOf(fqn string, loc *meta.Location) string {
	if loc.Detail != nil && loc.Detail.Key != "" {
		return loc.Detail.Key
	}
	return fqn
}

// find returns the tensor that is chunk i of an entry. It checks the tensor against the
// metadata.
func (a *archive) find(e *meta.Entry, i int) (*held, error) {
	loc, want := &e.Tensor.Locs[i], e.Tensor.Chunks[i].Sizes
	c := a.files[loc.File]
	if c.err != nil {
		return nil, c.err
	}

	h, ok := c.tensors[keyOf(e.FQN, loc)]
	if !ok {
		return nil, fmt.Errorf("%w: %s has no tensor %q", storage.ErrCorrupt, loc.File, keyOf(e.FQN, loc))
	}
	if h.region.DType != e.Tensor.DType || !slices.Equal(h.shape, want) {
		return nil, fmt.Errorf("%w: %s holds %v %v, the metadata says %v %v", storage.ErrCorrupt, loc.File, h.region.DType, h.shape, e.Tensor.DType, want)
	}
	return &h, nil
}

// chunk is reading.Source.Place.
func (a *archive) chunk(_ context.Context, e *meta.Entry, i int) (reading.Place, error) {
	if at, ok := a.parts[chunkKey{e.FQN, i}]; ok {
		return reading.Place{Region: &at}, nil
	}
	h, err := a.find(e, i)
	if err != nil {
		return reading.Place{}, fmt.Errorf("the chunk at %v: %w", e.Tensor.Chunks[i].Offsets, err)
	}
	return reading.Place{Region: &h.region}, nil
}

// check returns an error that wraps storage.ErrCorrupt unless the file of a
// value is there and holds it.
func (a *archive) check(loc *meta.Location) error {
	if c := a.files[loc.File]; c.err != nil {
		return c.err
	}
	size := a.sizes[loc.File]
	if loc.Offset < 0 || loc.Length < 0 || loc.Length > size || loc.Offset > size-loc.Length {
		return fmt.Errorf("%w: %d bytes at %d of %s, which has %d", storage.ErrCorrupt, loc.Length, loc.Offset, loc.File, size)
	}
	return nil
}

// value returns a value that is no tensor, encoded as package value does.
func (a *archive) value(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	v, err := a.decode(ctx, &e.Bytes.Loc)
	if err == nil {
		codec, data, err = value.Encode(v)
	}
	if err != nil {
		return "", nil, fmt.Errorf("in %s: %w", e.Bytes.Loc.File, err)
	}
	return codec, data, nil
}

// decode reads a value. hyper_parallel writes bytes as they are and all else as a pickle, and
// does not mark the pickles: bytes that do not look like a pickle are the value. Bytes that
// begin and end like a pickle but do not decode are a damaged pickle.
func (a *archive) decode(ctx context.Context, loc *meta.Location) (any, error) {
	if err := a.check(loc); err != nil {
		return nil, err
	}
	if loc.Length > maxValue {
		return nil, fmt.Errorf("%w: a value of %d bytes", storage.ErrCorrupt, loc.Length)
	}

	r, err := a.store.Open(ctx, loc.File)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	b := make([]byte, loc.Length)
	if err := r.ReadAt(ctx, b, loc.Offset); err != nil {
		return nil, err
	}
	if len(b) < 2 || b[0] != 0x80 { // no pickle of protocol 2 or later
		return b, nil
	}

	v, err := pickle.Decode(b, &pickle.DecodeOptions{Limits: &pickle.Limits{Context: ctx}})
	if errors.Is(err, pickle.ErrMalformed) && (b[1] > 5 || b[len(b)-1] != '.') {
		return b, nil
	}

	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return v, nil
}

// source describes the checkpoint to package reading.
func (a *archive) source(md *meta.Metadata, files []storage.File, names []string) *reading.Source {
	for _, name := range names {
		files = append(files, storage.File{Name: name, Size: a.sizes[name], Unsummed: true})
	}
	return &reading.Source{Metadata: md, Files: files, Place: a.chunk, Value: a.value, Check: a.checkFile}
}

// checkFile is reading.Source.Check. Only torch.save files have checksums. Other
// damage is found when chunks and values are located and decoded.
func (a *archive) checkFile(ctx context.Context, f *reading.FileCheck) (int64, error) {
	if err := f.Scan(ctx, nil); err != nil {
		return 0, err
	}

	file := f.File.Name
	c := a.files[file]
	switch {
	case c == nil || c.err != nil: // metadata, or an unreadable file
		return 0, nil
	case strings.HasSuffix(file, valueSuffix):
		return c.size, nil
	case c.saved == nil:
		return c.payload(), nil
	}

	r, err := a.store.Open(ctx, file)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return c.saved.Unsummed, c.saved.Check(ctx, r.ReadAt, func(key string, err error) { f.Problem("", fmt.Sprintf("storage %q: %v", key, err)) })
}

// container is a file of tensors, described.
type container struct {
	size    int64
	tensors map[string]held
	saved   *torchsave.File // nil: a safetensors file, which has no checksums
	err     error           // why it could not be described
}

// payload returns the bytes of all tensors.
func (c *container) payload() int64 {
	var n int64
	for _, h := range c.tensors {
		n += h.region.End - h.region.Offset
	}
	return n
}

// held is a tensor in a file.
type held struct {
	shape  []int64
	region reading.Region
}

// openContainer describes the tensors of a safetensors or torch.save file. Some
// versions write torch.save files under the name of safetensors files.
func openContainer(ctx context.Context, store blob.Store, name string) (*container, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	c := &container{size: r.Size(), tensors: map[string]held{}}
	head := make([]byte, min(4, c.size))
	if err := r.ReadAt(ctx, head, 0); err != nil {
		return nil, err
	}

	fill := c.fromSafetensors
	if string(head) == "PK\x03\x04" || len(head) > 0 && head[0] == 0x80 && string(head[1:]) != "\x00\x00\x00" {
		fill = c.fromTorchSave
	}

	if err := fill(ctx, r, name); err != nil {
		return nil, &storage.FileError{File: name, Err: err}
	}
	return c, nil
}

// fromSafetensors reads the header of a safetensors file.
func (c *container) fromSafetensors(ctx context.Context, r blob.Reader, name string) error {
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, c.size)
	if errors.Is(err, safetensors.ErrHeader) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return err
	}

	for _, e := range h.Entries {
		d, ok := safetensors.TensorDType(e.DType)
		if !ok {
			return fmt.Errorf("%w: %q has elements of type %s", storage.ErrVersion, e.Name, e.DType)
		}
		c.tensors[e.Name] = held{e.Shape, reading.Region{File: name, Offset: h.Size + e.Begin, End: h.Size + e.End, DType: d}}
	}

	return nil
}

// fromTorchSave reads the description of a torch.save file, which must hold a
// dict of tensors.
func (c *container) fromTorchSave(ctx context.Context, r blob.Reader, name string) error {
	f, err := torchsave.Open(ctx, r.ReadAt, c.size)
	if errors.Is(err, torchsave.ErrMalformed) {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return err
	}

	c.saved = f
	for _, p := range pairsOf(f.Root) {
		key, ok := p.Key.(string)
		t, isTensor := p.Value.(*torchsave.Tensor)
		if !ok || !isTensor {
			return fmt.Errorf("%w: %v is %T; want a name and a tensor", storage.ErrCorrupt, p.Key, p.Value)
		}
		c.tensors[key] = held{t.Shape, *torchfile.RegionOf(name, 0, t)}
	}

	if len(c.tensors) == 0 {
		return fmt.Errorf("%w: a torch.save file of %T; want a dict of tensors", storage.ErrCorrupt, f.Root)
	}
	return nil
}

// pairsOf returns the pairs of a dict of either kind.
func pairsOf(v any) []value.Pair {
	switch v := v.(type) {
	case map[string]any:
		var out []value.Pair
		for k, e := range v {
			out = append(out, value.Pair{Key: k, Value: e})
		}
		return out
	case *value.Dict:
		return v.Pairs
	}
	return nil
}

// part returns the region of a box of the tensor, which begins at local in it.
func (h *held) part(local []int64, box tensor.Box) reading.Region {
	at := h.region
	strides := at.Strides
	if strides == nil {
		strides = tensor.RowMajor(h.shape)
	}

	for d, o := range local {
		at.Offset += o * strides[d] * int64(at.DType.Size())
	}

	if !slices.Equal(h.shape, box.Sizes) {
		at.Strides = strides
	}
	if box.Empty() {
		at.Offset, at.Strides = h.region.Offset, nil
	}
	return at
}
