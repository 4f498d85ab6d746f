package torchfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
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

// Builder describes a checkpoint with bytes in files of torch.save. Formats with other files
// than this package use it to give names to the content of their files. It is not safe for
// concurrent use.
type Builder struct {
	store   blob.Store
	entries []meta.Entry
	files   []storage.File
	opened  map[string]*File
	// where are the places of the chunks of each tensor, and values are the values that
	// are not inline, both by name.
	where  map[string][]Elements
	spread map[string]*spread
	values map[string]encodedValue
	// encoded counts the bytes of all values.
	encoded int64
	// again is the rest of maxAgain.
	again int64
	names names
	// sharers are the names of the tensors of a storage, by file and key.
	sharers map[[2]string][]string

	mu       sync.Mutex
	spreadIn struct { // see spreadWith; guarded by mu
		file  *File
		names map[string][]string
	}
}

// Elements is the place of a chunk: a tensor of a file or, if the chunk has another shape
// than the tensor, the elements of a contiguous tensor from the element From on.
type Elements struct {
	File *File
	*torchsave.Tensor
	From int64
	made reading.Decoder // computes the chunk; then there is no tensor
}

// sharded is a tensor in chunks of one dtype, which several files may hold. There is a
// part for each chunk, and at least one.
type sharded struct {
	shape  []int64
	chunks []tensor.Box
	parts  []Elements
}

// encodedValue is a value in a codec of package value.
type encodedValue struct {
	codec string
	data  []byte
}

// NewBuilder returns a builder for a checkpoint in store.
func NewBuilder(store blob.Store) *Builder {
	return &Builder{
		store: store, again: maxAgain, opened: map[string]*File{}, where: map[string][]Elements{}, spread: map[string]*spread{}, values: map[string]encodedValue{}, sharers: map[[2]string][]string{},
		names: names{taken: map[string]bool{}, next: map[string]int{}},
	}
}

// AddFile adds a file to the files of the checkpoint. Verify compares its checksums.
func (b *Builder) AddFile(f *File) {
	if b.opened[f.Name] != nil {
		return
	}
	b.opened[f.Name] = f
	b.files = append(b.files, storage.File{Name: f.Name, Size: f.Size, Unsummed: true})
}

// Add adds v, a part of the content of a file, below a path: its leaves, and the tensors
// inside of leaves that are values. Format.Open describes the names, which begin with the
// path.
func (b *Builder) Add(f *File, at meta.Path, v any) error {
	leaves, err := flatten(f, at, v)
	if err != nil {
		return err
	}
	b.AddFile(f)
	return b.addLeaves(b.names.give(f.Name, leaves))
}

// addLeaves adds leaves, and the tensors inside of leaves that are values.
func (b *Builder) addLeaves(named []namedLeaf) error {
	var values []namedLeaf
	for _, l := range named {
		var t *meta.Tensor
		switch v := l.value.(type) {
		case *torchsave.Tensor:
			t = b.whole(l.fqn, l.file, v)
		case *sharded:
			t = b.sharded(l.fqn, v)
		case *spread:
			t = v.made
			b.spread[l.fqn] = v
		default:
			values = append(values, l)
			continue
		}

		b.entries = append(b.entries, meta.Entry{FQN: l.fqn, Path: l.path, Tensor: t})
	}

	var in namedLeaf // the value around the tensors that are being replaced
	inside := value.Replacer{Again: b.again, With: torchsave.Inside(func(at []string, t *torchsave.Tensor) (any, error) {
		return value.Ref{FQN: b.inside(in, at, t)}, nil
	})}
	for _, in = range values {
		v, err := inside.Replace(in.value)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", in.file.Name, in.fqn, err)
		}
		e := meta.Entry{FQN: in.fqn, Path: in.path}
		if e.Bytes, err = b.value(in.fqn, in.file, v); err != nil {
			return fmt.Errorf("%s: %q: %w", in.file.Name, in.fqn, err)
		}
		b.entries = append(b.entries, e)
	}

	b.again = inside.Again
	return nil
}

// inside adds a tensor that is inside of a value and returns its name: the name of
// the value and the steps to the tensor.
func (b *Builder) inside(in namedLeaf, at []string, t *torchsave.Tensor) string {
	path := slices.Clone(in.path)
	for _, s := range at {
		path = append(path, meta.Key(s))
	}
	fqn := b.names.unused(strings.Join(append([]string{in.fqn}, at...), "."))
	b.entries = append(b.entries, meta.Entry{FQN: fqn, Path: path, Tensor: b.whole(fqn, in.file, t)})
	return fqn
}

// whole describes a tensor that is whole in one file.
func (b *Builder) whole(fqn string, f *File, t *torchsave.Tensor) *meta.Tensor {
	return b.sharded(fqn, &sharded{t.Shape, []tensor.Box{tensor.Whole(t.Shape)}, []Elements{{File: f, Tensor: t}}})
}

// sharded describes a tensor in chunks, with the properties of the first one.
func (b *Builder) sharded(fqn string, s *sharded) *meta.Tensor {
	out := &meta.Tensor{Shape: s.shape, Chunks: s.chunks, Locs: make([]meta.Location, len(s.parts))}
	if first := s.parts[0].Tensor; first != nil {
		out.DType, out.RequiresGrad = first.DType, first.RequiresGrad
	}

	b.where[fqn] = s.parts
	var detail *meta.Detail
	for i := range s.parts {
		p := &s.parts[i]
		if i == 0 || p.File != s.parts[i-1].File || p.Tensor != s.parts[i-1].Tensor {
			detail = &meta.Detail{Key: b.share(fqn, p)}
		}
		out.Locs[i] = meta.Location{File: p.File.Name, Detail: detail}
		out.Locs[i].Offset, out.Locs[i].Length = p.span(s.chunks[i])
	}

	return out
}

// share notes that a name needs the storage of a part. It returns the key of the part:
// parts of one key and one place are the same.
func (b *Builder) share(fqn string, p *Elements) string {
	b.AddFile(p.File)
	if p.made != nil {
		return fqn
	}
	id := [2]string{p.File.Name, p.StorageKey}
	if of := b.sharers[id]; len(of) == 0 || of[len(of)-1] != fqn {
		b.sharers[id] = append(of, fqn)
	}
	return viewKey(p.Tensor)
}

// span returns the range of a chunk in its file: its offset and its length.
func (p *Elements) span(chunk tensor.Box) (offset, length int64) {
	switch {
	case p.made != nil:
		return p.File.offset + p.File.PickleOffset, 0
	case p.is(chunk):
		return p.File.offset + p.Offset, p.Span()
	}
	size := int64(p.DType.Size())
	return p.File.offset + p.Offset + p.From*size, chunk.Volume() * size
}

// is reports whether a chunk is the tensor, and not some of its elements.
func (p *Elements) is(chunk tensor.Box) bool { return slices.Equal(p.Shape, chunk.Sizes) }

// View returns the entry of a tensor of a file, under the name of the path or a name like
// it. If dtype is not the tensor's, readers convert its elements. key distinguishes
// tensors at one place that are not tied; empty: they are. The entry is part of the
// checkpoint only if it is passed to Append.
func (b *Builder) View(path meta.Path, dtype tensor.DType, key string, f *File, t *torchsave.Tensor) meta.Entry {
	e := b.Gathered(path, dtype, t.Shape, []tensor.Box{tensor.Whole(t.Shape)}, []Elements{{File: f, Tensor: t}})
	if key != "" {
		e.Tensor.Locs[0].Detail.Key += "/" + key
	}
	return e
}

// Gathered is View for a tensor in chunks: chunks[i] is at parts[i]. There is at least one.
// The builder keeps both slices.
func (b *Builder) Gathered(path meta.Path, dtype tensor.DType, shape []int64, chunks []tensor.Box, parts []Elements) meta.Entry {
	fqn := b.names.unused(path.FQN())
	e := meta.Entry{FQN: fqn, Path: path, Tensor: b.sharded(fqn, &sharded{shape, chunks, parts})}
	e.Tensor.Properties = meta.Properties{DType: dtype}
	return e
}

// Constant is View for a tensor without dimensions that has its value in the pickle of a
// file.
func (b *Builder) Constant(path meta.Path, dtype tensor.DType, f *File, v float64) meta.Entry {
	return b.Gathered(path, dtype, []int64{}, []tensor.Box{tensor.Whole(nil)}, []Elements{{File: f, made: constant(v)}})
}

// Again returns an entry of the same tensor as e, under another name.
func (b *Builder) Again(path meta.Path, e meta.Entry) meta.Entry {
	fqn := b.names.unused(path.FQN())
	b.where[fqn] = b.where[e.FQN]
	return meta.Entry{FQN: fqn, Path: path, Tensor: e.Tensor}
}

// Append adds entries to the checkpoint.
func (b *Builder) Append(es ...meta.Entry) { b.entries = append(b.entries, es...) }

// constant is a number as the only element of a tensor.
type constant float64

// Cut returns the box.
func (constant) Cut(box tensor.Box, _ int64) []tensor.Box { return []tensor.Box{box} }

// Decode fills dst with the number. It reads no file.
func (c constant) Decode(_ context.Context, _ tensor.Box, dst *tensor.Tensor, _ int64) (int64, error) {
	src, err := tensor.Of(nil, []float64{float64(c)})
	if err != nil {
		return 0, err
	}
	return 0, tensor.Convert(dst, src, tensor.CastInRange)
}

// viewKey returns the key of a tensor's storage and, if its elements are not
// the elements of the storage in their order, how they follow from them. Tensors of one
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
func (b *Builder) value(fqn string, f *File, v any) (*meta.Bytes, error) {
	codec, data, err := value.Encode(v)
	if err != nil {
		return nil, err
	}

	if b.encoded += int64(len(data)); b.encoded > maxValues {
		return nil, fmt.Errorf("the values take more than %d bytes", maxValues)
	}

	out := &meta.Bytes{Codec: codec, Size: int64(len(data))}
	out.Loc = meta.Location{File: f.Name, Offset: f.offset + f.PickleOffset, Length: f.PickleEnd - f.PickleOffset}
	if len(data) <= inlineMax {
		out.Inline = append([]byte{}, data...)
		return out, nil
	}

	b.values[fqn] = encodedValue{codec, data}
	return out, nil
}

// Source returns the source of everything that was added.
func (b *Builder) Source(version string) *reading.Source {
	slices.SortFunc(b.entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	return &reading.Source{
		Metadata: &meta.Metadata{
			Entries: b.entries, Storage: meta.Storage{ID: b.store.String(), Version: version},
		},
		Files: b.files, Place: b.chunk, Value: b.held, Check: b.check,
	}
}

// chunk is reading.Source.Place.
func (b *Builder) chunk(_ context.Context, e *meta.Entry, i int) (reading.Place, error) {
	var p *Elements
	if s, at := b.spread[e.FQN], b.where[e.FQN]; s != nil && i < len(s.held) {
		x := s.elements(i)
		p = &x
	} else if i < len(at) {
		p = &at[i]
	} else {
		return reading.Place{}, fmt.Errorf("%w: no chunk %d of %q", meta.ErrInvalid, i, e.FQN)
	}

	if p.made != nil {
		return reading.Place{Decoder: p.made}, nil
	}

	r := RegionOf(p.File.Name, p.File.offset, p.Tensor)
	if !p.is(e.Tensor.Chunks[i]) {
		offset, length := p.span(e.Tensor.Chunks[i])
		r.Offset, r.End, r.Strides = offset, offset+length, nil
	}
	return reading.Place{Region: r}, nil
}

// RegionOf returns the region of t in the file with that name. The file of torch.save
// that holds t begins at the offset.
func RegionOf(name string, offset int64, t *torchsave.Tensor) *reading.Region {
	r := &reading.Region{File: name, Offset: offset + t.Offset, End: offset + t.End, DType: t.DType}
	if !t.Contiguous() {
		r.Strides = t.Strides
	}
	if t.Conj || t.Neg {
		r.Resolve = t.Resolve
	}

	if t.Sum != nil {
		s := reading.Sum(*t.Sum)
		s.Offset, s.End = offset+s.Offset, offset+s.End
		r.Sum = &s
	}
	return r
}

func (b *Builder) held(_ context.Context, e *meta.Entry) (codec string, data []byte, err error) {
	v, ok := b.values[e.FQN]
	if !ok {
		return "", nil, fmt.Errorf("%w: no value %q", meta.ErrInvalid, e.FQN)
	}
	return v.codec, v.data, nil
}

// check compares the checksums of a file's records.
func (b *Builder) check(ctx context.Context, c *reading.FileCheck) (unsummed int64, err error) {
	if err := c.Scan(ctx, nil); err != nil {
		return 0, err
	}

	f := b.opened[c.File.Name]
	if f == nil {
		return 0, nil // the index
	}

	err = f.read(ctx, b.store, func(r blob.Reader) error {
		if r.Size() != f.Size {
			return nil // Verify reports it
		}
		return f.Check(ctx, r.ReadAt, func(key string, err error) {
			names := slices.Concat(b.sharers[[2]string{f.Name, key}], b.spreadWith(f)[key])
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

// spreadWith returns the names of the tensors that are spread over files and have a part in f, by
// the keys of storages.
func (b *Builder) spreadWith(f *File) map[string][]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spreadIn.file != f {
		b.spreadIn.file, b.spreadIn.names = f, map[string][]string{}
		for _, fqn := range slices.Sorted(maps.Keys(b.spread)) {
			s := b.spread[fqn]
			for _, h := range s.held {
				if s.files[h.rank] == f {
					key := s.locals[s.of[h.rank]].StorageKey
					b.spreadIn.names[key] = append(b.spreadIn.names[key], fqn)
					break
				}
			}
		}
	}
	return b.spreadIn.names
}

// missing returns the names of the index that are not in the files that it says.
func (b *Builder) missing(name string, idx *index, lost reading.LostFiles) []meta.Missing {
	in := make(map[string]string, len(b.entries))
	for i := range b.entries {
		in[b.entries[i].FQN] = fileOf(&b.entries[i])
	}

	var out []meta.Missing
	for w, f := range idx.WeightMap {
		if in[w] == f {
			continue
		}
		err := lost[f]
		if err == nil {
			err = reading.Damaged(f, "%s has %q in it, and it is not there", name, w)
		}
		out = append(out, meta.Missing{FQN: w, File: f, Err: err})
	}

	return out
}

// The names of a root that is not a dict.
const (
	rootTensor = "tensor"
	rootValue  = "value"
)

// maxLeaves bounds the values of a file: a small pickle can refer to one list many
// times, from lists that it refers to many times.
const maxLeaves = 1 << 22

// leaf is one value of a file, with its path.
type leaf struct {
	path  meta.Path
	value any // a *torchsave.Tensor, a *sharded, or a value that is no tensor
	file  *File
}

// flatten opens the dicts and lists of root, a value in the file from, as PyTorch does before
// it saves a checkpoint. If at is not empty, it is the path of root. A dict by strings and
// integers is opened, unless it is empty: an empty dict is a leaf, because a program that
// loads the state may want it, as optimizers without state do. A list is opened only if a
// tensor or such a dict is somewhere inside. All other values are leaves. Leaves are in a
// fixed order. A root that is a tuple counts as a list if at is empty, so that its tensors
// have names.
func flatten(from *File, at meta.Path, root any) ([]leaf, error) {
	f := &flattener{file: from, holds: map[any]bool{}}
	pairs, ok := asDict(root)
	var err error
	switch {
	case len(at) > 0:
		err = f.visit(at, root)
	case ok:
		err = f.dict(nil, pairs)
	default:
		name := rootValue
		switch t := root.(type) {
		case *torchsave.Tensor:
			name = rootTensor
		case value.Tuple:
			root = []any(t) // several states in one file
		}
		err = f.visit(meta.Path{meta.Key(name)}, root)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from.Name, err)
	}
	return f.out, nil
}

type flattener struct {
	file  *File
	out   []leaf
	nodes int
	holds map[any]bool // whether a list is opened, by the address of its first element
}

func (f *flattener) visit(at meta.Path, v any) error {
	if f.nodes++; f.nodes > maxLeaves {
		return fmt.Errorf("more than %d values", maxLeaves)
	}
	if len(at) > plan.MaxDepth {
		return fmt.Errorf("%q… is nested deeper than %d", at[:8].FQN(), plan.MaxDepth)
	}

	if pairs, ok := asDict(v); ok && len(pairs) > 0 {
		return f.dict(at, pairs)
	}
	if l, ok := v.([]any); ok && f.opens(l, 0) {
		for i, e := range l {
			if err := f.visit(step(at, meta.Pos(i)), e); err != nil {
				return err
			}
		}
		return nil
	}

	f.out = append(f.out, leaf{at, v, f.file})
	return nil
}

func (f *flattener) dict(at meta.Path, pairs []value.Pair) error {
	for _, p := range pairs {
		if err := f.visit(step(at, p.Key.(meta.Step)), p.Value); err != nil {
			return err
		}
	}
	return nil
}

// step returns the path one step further, in memory of its own.
func step(at meta.Path, s meta.Step) meta.Path {
	out := make(meta.Path, len(at), len(at)+1)
	copy(out, at)
	return append(out, s)
}

// opens reports whether a tensor or a dict that is opened is somewhere inside a
// list.
func (f *flattener) opens(l []any, depth int) bool {
	if len(l) == 0 {
		return false
	}
	if known, ok := f.holds[&l[0]]; ok {
		return known
	}

	found := depth > plan.MaxDepth // the walk refuses it then
	for i := 0; i < len(l) && !found; i++ {
		switch e := l[i].(type) {
		case *torchsave.Tensor:
			found = true
		case []any:
			found = f.opens(e, depth+1)
		default:
			pairs, ok := asDict(e)
			found = ok && len(pairs) > 0
		}
	}

	f.holds[&l[0]] = found
	return found
}

// asDict returns the pairs of a dict by strings and integers, the keys as steps.
func asDict(v any) ([]value.Pair, bool) {
	var out []value.Pair
	switch d := v.(type) {
	case map[string]any:
		out = make([]value.Pair, 0, len(d))
		for _, k := range slices.Sorted(maps.Keys(d)) {
			out = append(out, value.Pair{Key: meta.Key(k), Value: d[k]})
		}
		return out, true
	case *value.Dict:
		out = make([]value.Pair, len(d.Pairs))
		for i, p := range d.Pairs {
			k, ok := keyStep(p.Key)
			if !ok {
				return nil, false
			}
			out[i] = value.Pair{Key: k, Value: p.Value}
		}
		return out, true
	}

	return nil, false
}

// keyStep returns the step to a key that is a string or an integer.
func keyStep(k any) (meta.Step, bool) {
	switch k := k.(type) {
	case string:
		return meta.Key(k), true
	case int64:
		return meta.IntKey(k), true
	case uint64:
		return meta.Step{Key: strconv.FormatUint(k, 10), Int: true}, true
	case *big.Int:
		if k.BitLen() > 8*meta.MaxFQN { // too long for a name
			return meta.Step{}, false
		}
		return meta.Step{Key: k.String(), Int: true}, true
	}
	return meta.Step{}, false
}

// names gives out the names of a checkpoint, no name twice.
type names struct {
	// file returns the file with the value that gets a name, if several files have a value of
	// that name. Nil, or an empty result: the file that is added first.
	file  func(fqn string) string
	taken map[string]bool
	next  map[string]int // the number to try next, by name
}

// namedLeaf is a leaf with its name.
type namedLeaf struct {
	fqn string
	leaf
}

// give names the leaves of a file and returns them in the order of their names.
// A name is the steps of the path, joined by dots. If several paths give one
// name, the shortest path has it, and the names of the others end in "#2", "#3"
// and so on.
func (n *names) give(file string, leaves []leaf) []namedLeaf {
	out := make([]namedLeaf, len(leaves))
	for i, l := range leaves {
		out[i] = namedLeaf{possible(l.path.FQN()), l}
	}

	slices.SortStableFunc(out, func(a, b namedLeaf) int {
		return cmp.Or(cmp.Compare(a.fqn, b.fqn), cmp.Compare(len(a.path), len(b.path)), slices.CompareFunc(a.path, b.path, compareSteps))
	})
	var again []int
	for i, l := range out {
		other := ""
		if n.file != nil {
			other = n.file(l.fqn)
		}
		if n.taken[l.fqn] || other != "" && other != file {
			again = append(again, i)
		} else {
			n.taken[l.fqn] = true
		}
	}

	for _, i := range again {
		out[i].fqn = n.numbered(out[i].fqn)
	}

	slices.SortFunc(out, func(a, b namedLeaf) int { return cmp.Compare(a.fqn, b.fqn) })
	return out
}

// unused takes a name, or one like it if it is taken.
func (n *names) unused(fqn string) string {
	fqn = possible(fqn)
	if n.taken[fqn] {
		return n.numbered(fqn)
	}
	n.taken[fqn] = true
	return fqn
}

// numbered takes the first free name that is fqn and a number.
func (n *names) numbered(fqn string) string {
	for i := max(2, n.next[fqn]); ; i++ {
		if s := fqn + "#" + strconv.Itoa(i); !n.taken[s] {
			n.taken[s], n.next[fqn] = true, i+1
			return s
		}
	}
}

// nameRoom is left in every name for a number behind it.
const nameRoom = 32

// possible returns fqn, or a valid name instead of it: a file may have keys that are empty,
// too long, or not Unicode text.
func possible(fqn string) string {
	if fqn == "" {
		return "''"
	}
	if fqn = strings.ToValidUTF8(fqn, "\uFFFD"); len(fqn) > meta.MaxFQN-nameRoom {
		fqn = strings.ToValidUTF8(fqn[:meta.MaxFQN-nameRoom], "")
	}
	return fqn
}

// compareSteps orders steps of the same text: positions, integers, strings.
func compareSteps(a, b meta.Step) int {
	kind := func(s meta.Step) int {
		switch {
		case s.List:
			return 0
		case s.Int:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(a.String(), b.String()))
}
