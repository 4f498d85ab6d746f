package torchfile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Ranked is the format of PyTorch's package torch_checkpointing: a folder with a file
// for each item of the state and each rank, and usually a metadata.pkl that describes
// the tensors. It is only read.
type Ranked struct{}

var _ storage.Format = Ranked{}

// Name returns "torch_checkpointing".
func (Ranked) Name() string { return "torch_checkpointing" }

// NewWriter refuses to write.
func (f Ranked) NewWriter(blob.Store, storage.WriteOptions) (storage.Writer, error) {
	return nil, storage.RefuseIf(true, "the format %s is only read; native and torchdcp hold all that it holds", f.Name())
}

// Open opens the checkpoint at the root of store.
//
// The names begin with the item: "model.layers.0.w" is in the files of the item model.
// Below it they are the names that Format.Open gives. A DTensor is one tensor, in chunks
// of all ranks that hold it. Its place is in metadata.pkl, or else in the DTensor itself.
// Other tensors and values that are equal on all ranks have one name. If they differ, the
// name has the value of the lowest rank, and the values of the other ranks have names
// that end in "#rank1", "#rank2" and so on.
//
// The error wraps storage.ErrNotFound if there are no such files, storage.ErrCorrupt if
// metadata.pkl contradicts itself, and storage.ErrVersion if its version is unknown. Files
// that are missing or damaged are in Metadata.Missing, with the names of their tensors as
// far as metadata.pkl says them.
func (f Ranked) Open(ctx context.Context, store blob.Store) (storage.Checkpoint, error) {
	src, err := reading.Watch(ctx, store, []string{rankedRecord}, func(ctx context.Context) (*reading.Source, error) {
		return describeRanked(ctx, store)
	})
	if err != nil {
		return nil, err
	}
	return reading.Open(store, src), nil
}

// rankedRecord describes the tensors of a Ranked checkpoint. The second save of a
// synchronous manager of torch_checkpointing 0.1 does not write it.
const rankedRecord = "metadata.pkl"

// errRankedVersion reports an unknown version of metadata.pkl.
var errRankedVersion = errors.New("metadata.pkl of torch_checkpointing")

// byItem matches the default names of files. Files of JSON and of bytes have a name of
// the user's choice, for which this form is usual.
var byItem = regexp.MustCompile(`^(.+)_(0|[1-9][0-9]{0,5})(\.pt|\.json|\.bin|\.safetensors)$`)

// RecognizeRanked reports whether a file of that name at the root of a store may describe
// a checkpoint of the format Ranked, or may hold data of one: other programs use such
// names too. See IsRanked.
func RecognizeRanked(name string) (describes, holds bool) {
	return name == rankedRecord, byItem.MatchString(name)
}

// IsRanked reports whether the files at the root of a store are a checkpoint of the
// format Ranked: there is a metadata.pkl of torch_checkpointing, or the files of
// torch.save belong to at least two items and to the ranks 0, 1, 2 and so on.
func IsRanked(ctx context.Context, store blob.Store, names []string) (bool, error) {
	if slices.Contains(names, rankedRecord) {
		r, err := store.Open(ctx, rankedRecord)
		if err != nil {
			return false, err
		}
		defer r.Close()
		head := make([]byte, min(4096, r.Size()))
		if err := r.ReadAt(ctx, head, 0); err != nil {
			return false, err
		}
		return bytes.Contains(head, []byte("nested_path_to_metadata")) || bytes.Contains(head, []byte("sharding_metadata")) ||
			bytes.Contains(head, []byte("rank_to_layout_info")), nil
	}
	items, ranks, models := map[string]bool{}, map[int]bool{}, false
	for _, name := range names {
		if _, holds := Recognize(name); !holds || path.Ext(name) == ".bin" {
			continue
		}
		m := byItem.FindStringSubmatch(name)
		if m == nil || m[3] != ".pt" {
			return false, nil
		}
		rank, _ := strconv.Atoi(m[2])
		items[m[1]], ranks[rank], models = true, true, models || !Auxiliary(name)
	}
	return models && len(items) > 1 && slices.Max(slices.Collect(maps.Keys(ranks))) == len(ranks)-1, nil
}

// rankFile is the file of an item and a rank.
type rankFile struct {
	item string
	rank int
	rankedFile
	file *File // nil: it is missing or damaged
}

// The kinds of files.
const (
	kindTorch  = "TorchSerialization"
	kindTensor = "SafetensorsSerialization"
	kindJSON   = "JsonSerialization"
	kindRaw    = "RawSerialization"
)

// kinds are the kinds of files with default names.
var kinds = map[string]string{".pt": kindTorch, ".safetensors": kindTensor, ".json": kindJSON, ".bin": kindRaw}

// noteRanked is the note about a checkpoint with items that metadata.pkl does not list.
const noteRanked = "nothing lists all files of this checkpoint, so it cannot be checked whether one is missing"

// describeRanked reads everything about the checkpoint except its data.
func describeRanked(ctx context.Context, store blob.Store) (*reading.Source, error) {
	b := NewBuilder(store)
	md, err := b.readRanked(ctx)
	if err != nil {
		return nil, err
	}
	files, err := findRanked(ctx, store, md)
	if err != nil {
		return nil, err
	}
	kindOf, names := map[string]string{}, make([]string, len(files))
	for i, f := range files {
		names[i], kindOf[f.name] = f.name, f.kind
	}
	opened, lost, err := openFiles(ctx, names, func(ctx context.Context, name string) (*File, error) {
		return openKind(ctx, store, name, kindOf[name])
	})
	if err != nil {
		return nil, err
	}
	for _, f := range opened {
		b.AddFile(f)
	}
	world := md.world
	for _, f := range files {
		f.file, world = b.opened[f.name], max(world, f.rank+1)
	}
	m := &merger{md: md, several: map[string]bool{}, held: map[string]*ranksValue{}, lost: lost, again: maxAgain}
	leaves, err := m.merge(files)
	if err == nil {
		err = b.addLeaves(b.names.give("", leaves))
	}
	if err != nil {
		return nil, err
	}
	src := b.Source("torch_checkpointing " + cmp.Or(md.version, "without "+rankedRecord))
	src.Metadata.Storage.WorldSize = world
	if slices.ContainsFunc(files, func(f *rankFile) bool { return md.items[f.item] == nil }) {
		src.Metadata.Storage.Notes = []string{noteRanked}
	}
	src.Problems, err = lost.Note(src.Metadata, m.missing, rankedRecord)
	return src, err
}

// readRanked reads metadata.pkl. Without that file, no item is described.
func (b *Builder) readRanked(ctx context.Context) (*rankedMetadata, error) {
	data, err := blob.ReadAll(ctx, b.store, rankedRecord, maxMetadata)
	if errors.Is(err, fs.ErrNotExist) {
		return &rankedMetadata{}, nil
	}
	if err != nil {
		return nil, err
	}
	md, err := decodeRanked(data)
	if errors.Is(err, errRankedVersion) {
		return nil, fmt.Errorf("%w: %w", storage.ErrVersion, err)
	}
	if err != nil {
		return nil, reading.Damaged(rankedRecord, "%w", err)
	}
	b.files = append(b.files, storage.File{Name: rankedRecord, Size: int64(len(data)), Unsummed: true})
	return md, nil
}

// findRanked returns the files of a checkpoint: those that md names, and those at the
// root of the store with a default name. They are in the order of items and ranks.
func findRanked(ctx context.Context, store blob.Store, md *rankedMetadata) ([]*rankFile, error) {
	var out []*rankFile
	owner := map[string]string{rankedRecord: rankedRecord} // the item of a file
	for _, item := range slices.Sorted(maps.Keys(md.items)) {
		files := md.items[item].files
		for _, rank := range slices.Sorted(maps.Keys(files)) {
			f := files[rank]
			if f.name == "" {
				f = rankedFile{fmt.Sprintf("%s_%d.pt", item, rank), kindTorch}
			}
			if err := blob.CheckName(f.name); err != nil {
				return nil, reading.Damaged(rankedRecord, "%w", err)
			}
			switch other, ok := owner[f.name]; {
			case !ok:
				owner[f.name] = item
				out = append(out, &rankFile{item: item, rank: rank, rankedFile: f})
			case other != item:
				return nil, reading.Damaged(rankedRecord, "%s holds %q and %q", f.name, other, item)
			} // otherwise all ranks have written one file
		}
	}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if m := byItem.FindStringSubmatch(info.Name); m != nil && owner[info.Name] == "" && !strings.Contains(info.Name, "/") {
			rank, _ := strconv.Atoi(m[2])
			out = append(out, &rankFile{item: m[1], rank: rank, rankedFile: rankedFile{info.Name, kinds[m[3]]}})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: %s holds no file of an item and a rank", storage.ErrNotFound, store)
	}
	slices.SortFunc(out, func(x, y *rankFile) int {
		return cmp.Or(strings.Compare(x.item, y.item), cmp.Compare(x.rank, y.rank), strings.Compare(x.name, y.name))
	})
	return out, nil
}

// openKind opens a file of any kind as a file of torch.save. Files of the other kinds
// have no checksums.
func openKind(ctx context.Context, store blob.Store, name, kind string) (*File, error) {
	switch kind {
	case kindTorch:
		return openFile(ctx, store, name)
	case kindTensor:
		return openTensors(ctx, store, name)
	}
	data, err := blob.ReadAll(ctx, store, name, maxIndex)
	if err != nil {
		return nil, err
	}
	f := &File{Name: name, Size: int64(len(data)), File: &torchsave.File{Root: data, PickleEnd: int64(len(data)), Unsummed: int64(len(data))}}
	switch kind {
	case kindJSON:
		if f.Root, err = decodeJSON(data); err != nil {
			return nil, reading.Damaged(name, "%w", err)
		}
	case kindRaw:
	default:
		return nil, fmt.Errorf("%w: %s is a file of %q, which is unknown", storage.ErrVersion, name, kind)
	}
	return f, nil
}

// openTensors opens a file of safetensors. Its root is a dict of all tensors.
func openTensors(ctx context.Context, store blob.Store, name string) (*File, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) {
		return nil, reading.Damaged(name, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	root := make(map[string]any, len(h.Entries))
	for _, e := range h.Entries {
		d, ok := safetensors.TensorDType(e.DType)
		if !ok {
			return nil, fmt.Errorf("%w: %s: %q has elements of %s", storage.ErrVersion, name, e.Name, e.DType)
		}
		root[e.Name] = &torchsave.Tensor{
			DType: d, Shape: e.Shape, Strides: tensor.RowMajor(e.Shape), Offset: h.Size + e.Begin, End: h.Size + e.End, StorageKey: e.Name,
		}
	}
	return &File{Name: name, Size: r.Size(), File: &torchsave.File{Root: root, Unsummed: r.Size() - h.Size}}, nil
}

// decodeJSON decodes JSON into the types of package value.
func decodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var plain func(v any) any
	plain = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				v[k] = plain(e)
			}
		case []any:
			for i, e := range v {
				v[i] = plain(e)
			}
		case json.Number:
			if n, err := v.Int64(); err == nil {
				return n
			}
			f, _ := v.Float64() // infinite beyond its range, as in Python
			return f
		}
		return v
	}
	return plain(v), nil
}
