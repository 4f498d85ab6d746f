package hyper

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/value"
)

// options are the options of a writer: options of the format and options of all formats.
type options struct {
	Format
	storage.WriteOptions
}

// metadataVersion is the version that hyper_parallel itself writes.
const metadataVersion = "1.0"

// Files describes the files of this format.
func Files() *commit.Format {
	return files.Published(Format{}.Name(), dataPrefix, ".rank0_metadata", files.RankName(0))
}

// checkTensor returns an error unless a tensor can be written.
func (o *options) checkTensor(it *plan.WriteItem) error {
	if it.Kind == plan.KindBytes {
		return nil
	}
	if _, ok := safetensors.DTypeName(it.Info.DType); !ok {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "elements of type " + it.Info.DType.String()}
	}
	if o.Old && it.FQN() == reservedKey {
		return &storage.NotRepresentable{FQN: it.FQN(), Why: "the name is a file's own"}
	}
	return nil
}

// layOut lays out the data files of a rank.
func (o *options) layOut(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*commit.DataFile, error) {
	files, err := o.layValues(p, data, rank, infix)
	if err != nil {
		return nil, err
	}
	tensors, err := o.layTensors(p, rank, infix)
	return append(files, tensors...), err
}

const (
	// headerAlign pads the header of a file of tensors, so that the data is
	// aligned for any element.
	headerAlign = 64
	// headerMax bounds the estimated length of a file's header. It is far below the
	// limit of safetensors.
	headerMax = safetensors.MaxHeader / 2
	// reservedKey names no tensor in a safetensors file.
	reservedKey = "__metadata__"
)

// bin is a file of tensors in the making.
type bin struct {
	items  []*plan.WriteItem
	names  map[string]bool
	bytes  int64
	header int64
}

// takes reports whether an item may go into the bin. In the older dialect the
// name is the key, so a file holds one chunk of it.
func (b *bin) takes(it *plan.WriteItem, o *options) bool {
	if b.header+headerCost(it) > headerMax || o.Old && b.names[it.FQN()] {
		return false
	}
	return len(b.items) == 0 || it.NumBytes() <= o.MaxFileBytes-b.bytes
}

func (b *bin) add(it *plan.WriteItem) {
	b.items = append(b.items, it)
	b.names[it.FQN()] = true
	b.bytes += it.NumBytes()
	b.header += headerCost(it)
}

// headerCost bounds the bytes of a header that describe an item.
func headerCost(it *plan.WriteItem) int64 {
	return int64(6*len(it.FQN()) + 24*len(it.Info.Shape) + 150)
}

// layTensors lays out the files of a plan's tensors.
func (o *options) layTensors(p *plan.SavePlan, rank int, infix string) ([]*commit.DataFile, error) {
	var out []*commit.DataFile
	for n, items := range spread(p, o) {
		f, err := layTensorFile(dataFileName(rank, infix, n, tensorSuffix), items, o.Old)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// spread distributes tensors over files: the largest first, each into the file with
// the fewest bytes among the files that take it. Within a file tensors with the largest
// elements come first, so that each is aligned for its elements.
func spread(p *plan.SavePlan, o *options) [][]*plan.WriteItem {
	var items []*plan.WriteItem
	for i := range p.Items {
		if p.Items[i].Kind != plan.KindBytes {
			items = append(items, &p.Items[i])
		}
	}
	slices.SortStableFunc(items, func(a, b *plan.WriteItem) int { return cmp.Compare(b.NumBytes(), a.NumBytes()) })
	var bins []*bin
	for _, it := range items {
		var best *bin
		for _, b := range bins {
			if b.takes(it, o) && (best == nil || b.bytes < best.bytes) {
				best = b
			}
		}
		if best == nil || len(bins) < o.FilesPerRank {
			best = &bin{names: map[string]bool{}}
			bins = append(bins, best)
		}
		best.add(it)
	}
	var out [][]*plan.WriteItem
	for _, b := range bins {
		slices.SortStableFunc(b.items, func(x, y *plan.WriteItem) int {
			return cmp.Or(cmp.Compare(y.Info.DType.Size(), x.Info.DType.Size()), cmp.Compare(x.FQN(), y.FQN()))
		})
		out = append(out, b.items)
	}
	return out
}

// layTensorFile lays out one safetensors file.
func layTensorFile(name string, items []*plan.WriteItem, old bool) (*commit.DataFile, error) {
	keys := keysOf(items)
	h := &safetensors.Header{Metadata: map[string]string{"format": "pt"}}
	results := make([]storage.WriteResult, len(items))
	var at int64
	for i, it := range items {
		d, _ := safetensors.DTypeName(it.Info.DType) // PrepareLocalPlan has looked
		n := it.NumBytes()
		h.Entries = append(h.Entries, safetensors.Entry{Name: keys[i], DType: d, Shape: it.Box.Sizes, Begin: at, End: at + n})
		results[i] = storage.WriteResult{Index: it.Index(), Loc: meta.Location{File: name, Offset: at, Length: n}}
		at += n
		if !old {
			results[i].Loc.Detail = &meta.Detail{Key: keys[i]}
		}
	}
	b, err := safetensors.Encode(h, headerAlign)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := &commit.DataFile{Name: name, Parts: []commit.Part{{Length: int64(len(b)), Literal: b}}}
	for i, it := range items {
		results[i].Loc.Offset += int64(len(b))
		f.Parts = append(f.Parts, commit.Part{Length: it.NumBytes(), Item: it})
	}
	f.Results = func() []storage.WriteResult { return results }
	return f, nil
}

// keysOf returns the keys of tensors in their file: their names. If a name is there
// several times, or cannot be a key, the number of the chunk follows the name.
func keysOf(items []*plan.WriteItem) []string {
	count := map[string]int{}
	for _, it := range items {
		count[it.FQN()]++
	}
	used, next := map[string]bool{}, map[string]int{}
	out := make([]string, len(items))
	for i, it := range items {
		key := it.FQN()
		if count[key] > 1 || key == reservedKey {
			key = fmt.Sprintf("%s.__dcp_chunk_%d", it.FQN(), next[it.FQN()])
			next[it.FQN()]++
			for count[key] > 0 || used[key] {
				key += "_"
			}
		}
		used[key] = true
		out[i] = key
	}
	return out
}

// layValues lays out the files of a plan's values: one after the other in a single
// file, or each in its own in the older dialect. The error names all values that
// cannot be written.
func (o *options) layValues(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*commit.DataFile, error) {
	var out []*commit.DataFile
	var results *[]storage.WriteResult // of the last file
	var size int64                     // of the last file
	var refused []error
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes {
			continue
		}
		part, err := dcpfiles.LayValue(it, data, encodeValue)
		if errors.Is(err, storage.ErrNotRepresentable) {
			refused = append(refused, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(out) == 0 || o.Old {
			list := new([]storage.WriteResult)
			results, size = list, 0
			name := dataFileName(rank, infix, len(out), valueSuffix)
			out = append(out, &commit.DataFile{Name: name, Results: func() []storage.WriteResult { return *list }})
		}
		f := out[len(out)-1]
		f.Parts = append(f.Parts, part)
		loc := meta.Location{File: f.Name, Offset: size, Length: part.Length}
		*results = append(*results, storage.WriteResult{Index: it.Index(), Loc: loc})
		size += part.Length
	}
	return out, errors.Join(refused...)
}

// encodeValue returns the pickle of the value that data encodes.
func encodeValue(it *plan.WriteItem, data []byte) ([]byte, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, plan.Named(it.FQN(), err)
	}
	b, err := pickle.Encode(v, nil)
	if err != nil {
		return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	return b, nil
}
