package dcpfiles

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Encode returns the document's bytes, which PyTorch (2.6 and later) or
// hyper_parallel loads. d.Meta must be valid and every entry must have its
// locations; otherwise, or if the dialect cannot express something, the error
// wraps ErrInvalid. Of Meta.Storage it writes the ID and the SaveID. For PyTorch
// every name gets a path: the name itself if the entry has no path. For
// hyper_parallel there are paths only if an entry has one. Planner data is
// planner_data itself if no entry has a path, as other planners write it, and
// otherwise an attribute in addition to the paths. Equal documents give equal
// bytes.
func Encode(d *Document) ([]byte, error) {
	if err := d.Meta.Validate(); err != nil {
		return nil, invalid("%w", err)
	}
	if d.Dialect < Torch || d.Dialect > Hyper {
		return nil, invalid("%v", d.Dialect)
	}
	w := newDocumentWriter(d)
	w.document()
	b, err := w.Bytes()
	if err != nil {
		return nil, invalid("%w", err)
	}
	return b, nil
}

// documentWriter writes the pickle of a document.
type documentWriter struct {
	*pickle.Stream
	doc   *Document
	names names
	// layouts has the written layouts, so that each is written once.
	layouts map[string]*value.Object
	formats map[string]*value.Object
}

// names has everything that occurs many times in a document.
type names struct {
	metadata, tensor, bytes, chunk, properties, index, place, save, size pickle.Ref

	props, shape, chunks, offsets, sizes      pickle.Ref
	fqn, offset, hint, file, length, key, via pickle.Ref
}

// batch is the number of items of a list or dict between two marks, as in Python.
// It bounds the reader's stack.
const batch = 1000

func newDocumentWriter(d *Document) *documentWriter {
	s := pickle.NewStream(&pickle.EncodeOptions{Allow: func(module, name string) bool {
		return module == torchModule+".metadata" && name == "_MEM_FORMAT_ENCODING"
	}})
	w := &documentWriter{Stream: s, doc: d, layouts: map[string]*value.Object{}, formats: map[string]*value.Object{}}
	module := d.Dialect.String()
	storage, place := module+".storage", "StorageInfo"
	if d.Dialect == Torch {
		storage, place = module+".filesystem", "_StorageInfo"
	}
	class := func(name string) pickle.Ref { return pickle.Ref{Module: module + ".metadata", Name: name} }
	word := func(s string) pickle.Ref { return pickle.Ref{Name: s} }
	w.names = names{
		metadata: class("Metadata"), tensor: class("TensorStorageMetadata"), bytes: class("BytesStorageMetadata"),
		chunk: class("ChunkStorageMetadata"), properties: class("TensorProperties"), index: class("MetadataIndex"),
		save: class("StorageMeta"), place: pickle.Ref{Module: storage, Name: place}, size: pickle.Ref{Module: "torch", Name: "Size"},
		props: word("properties"), shape: word("size"), chunks: word("chunks"), offsets: word("offsets"), sizes: word("sizes"),
		fqn: word("fqn"), offset: word("offset"), hint: word("index"), file: word("relative_path"), length: word("length"),
		key: word("tensor_key"), via: word("transform_descriptors"),
	}
	return w
}

func (w *documentWriter) document() {
	w.Grow(w.size())
	w.New(&w.names.metadata)
	w.BeginState()
	for _, part := range []struct {
		name  string
		has   bool
		write func()
	}{
		{"state_dict_metadata", true, w.entries},
		{"planner_data", true, w.planner},
		{"storage_data", true, w.places},
		{"storage_meta", w.doc.Dialect == Torch, w.save},
		{"version", true, func() { w.Values(orNone(w.doc.Version)) }},
		{ownPlannerData, w.doc.Meta.PlannerData != nil && w.nested(), func() { w.Str(string(w.doc.Meta.PlannerData)) }},
		{ownSave, w.doc.Ranks > 0, func() { w.Values(value.Tuple{int64(w.doc.Ranks), w.doc.Meta.Storage.SaveID}) }},
	} {
		if part.has {
			w.Str(part.name)
			part.write()
		}
	}
	w.EndState()
}

// fail makes Encode return an error about an entry.
func (w *documentWriter) fail(e *meta.Entry, format string, args ...any) {
	w.Fail(fmt.Errorf("%q: %w", e.FQN, fmt.Errorf(format, args...)))
}

// size estimates the bytes of names and chunks, because a growing buffer would
// temporarily take twice its size.
func (w *documentWriter) size() int {
	n := 0
	for i := range w.doc.Meta.Entries {
		e := &w.doc.Meta.Entries[i]
		n += len(e.FQN) + 8*len(e.Path) + 70
		if t := e.Tensor; t != nil {
			n += 5*len(t.Shape) + len(t.Chunks)*(80+15*len(t.Shape))
		}
	}
	return n
}

// eachEntry writes a dict with one item for each entry.
func (w *documentWriter) eachEntry(item func(e *meta.Entry)) {
	w.NewDict()
	entries := w.doc.Meta.Entries
	for i := range entries {
		if i%batch == 0 {
			w.Begin()
		}
		w.Str(entries[i].FQN)
		item(&entries[i])
		if i%batch == batch-1 || i == len(entries)-1 {
			w.EndDict()
		}
	}
}

func (w *documentWriter) entries() {
	w.eachEntry(func(e *meta.Entry) {
		if e.Tensor == nil {
			w.New(&w.names.bytes)
		} else {
			w.tensor(e)
		}
	})
}

func (w *documentWriter) save() {
	s := &w.doc.Meta.Storage
	if s.ID == "" && s.SaveID == "" && len(w.doc.Modules) == 0 {
		w.Values(nil)
		return
	}
	modules := []any{}
	for _, m := range w.doc.Modules {
		modules = append(modules, m)
	}
	w.New(&w.names.save)
	w.BeginState()
	w.Values("checkpoint_id", orNone(s.ID), "save_id", orNone(s.SaveID), "load_id", nil, "modules", modules)
	w.EndState()
}

func orNone(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (w *documentWriter) tensor(e *meta.Entry) {
	t := e.Tensor
	w.New(&w.names.tensor)
	w.BeginState()
	w.Ref(&w.names.props)
	w.properties(e)
	w.Ref(&w.names.shape)
	w.ints(t.Shape)
	w.Ref(&w.names.chunks)
	w.NewList()
	w.Grow(24 * len(t.Chunks))
	for part := range slices.Chunk(t.Chunks, batch) {
		w.Begin()
		for i := range part {
			w.chunk(&part[i])
		}
		w.EndList()
	}
	w.EndState()
}

func (w *documentWriter) chunk(b *tensor.Box) {
	w.New(&w.names.chunk)
	w.BeginState()
	w.Ref(&w.names.offsets)
	w.ints(b.Offsets)
	w.Ref(&w.names.sizes)
	w.ints(b.Sizes)
	w.EndState()
}

// ints writes a shape or an offset: a torch.Size, or a tuple for hyper_parallel,
// which may run without torch.
func (w *documentWriter) ints(v []int64) {
	if w.doc.Dialect == Torch {
		w.Call(&w.names.size, v)
		return
	}
	w.Ints(v)
}

func (w *documentWriter) properties(e *meta.Entry) {
	p := &e.Tensor.Properties
	w.New(&w.names.properties)
	if w.doc.Dialect != Torch {
		w.BeginState()
		w.Values("dtype", "torch."+p.DType.String(), "requires_grad", p.RequiresGrad, "memory_format", orNone(p.MemoryFormat))
		w.EndState()
		return
	}
	w.Begin()
	w.Values(&value.Object{Module: "torch", Name: p.DType.String()}, w.layout(p.Layout), p.RequiresGrad, w.format(e), p.PinMemory)
	w.EndTuple()
	w.Build()
}

// format returns PyTorch's number for the memory format of a tensor.
func (w *documentWriter) format(e *meta.Entry) *value.Object {
	name := e.Tensor.MemoryFormat
	if w.formats[name] == nil {
		i := slices.Index(memoryFormats, name)
		if i < 0 {
			w.fail(e, "the memory format %q has no number", name)
		}
		w.formats[name] = &value.Object{Module: torchModule + ".metadata", Name: "_MEM_FORMAT_ENCODING", Call: true, Args: value.Tuple{int64(i)}}
	}
	return w.formats[name]
}

func (w *documentWriter) layout(name string) *value.Object {
	if name == "" {
		name = "strided"
	}
	if w.layouts[name] == nil {
		w.layouts[name] = &value.Object{Module: "torch", Name: name}
	}
	return w.layouts[name]
}

// places writes the locations of all chunks and values.
func (w *documentWriter) places() {
	w.NewDict()
	n := 0
	end := func() {
		if n++; n%batch == 0 {
			w.EndDict()
			w.Begin()
		}
	}
	w.Begin()
	for i := range w.doc.Meta.Entries {
		e := &w.doc.Meta.Entries[i]
		if e.Bytes != nil {
			w.place(e, nil, -1, &e.Bytes.Loc)
			end()
			continue
		}
		if len(e.Tensor.Locs) != len(e.Tensor.Chunks) {
			w.fail(e, "%d locations for %d chunks", len(e.Tensor.Locs), len(e.Tensor.Chunks))
			return
		}
		w.Grow(64 * len(e.Tensor.Chunks))
		for j := range e.Tensor.Chunks {
			w.place(e, e.Tensor.Chunks[j].Offsets, j, &e.Tensor.Locs[j])
			end()
		}
	}
	w.EndDict()
}

// place writes the index of a chunk, or of a value with the hint -1, and its
// location.
func (w *documentWriter) place(e *meta.Entry, offset []int64, hint int, l *meta.Location) {
	if l.File == "" {
		w.fail(e, "no location")
	}
	w.New(&w.names.index)
	w.BeginState()
	w.Ref(&w.names.fqn)
	w.Str(e.FQN)
	w.Ref(&w.names.hint)
	if hint >= 0 {
		w.Int(int64(hint))
	} else {
		w.Values(nil)
	}
	if hint >= 0 || w.doc.Dialect != Torch {
		w.Ref(&w.names.offset)
		w.ints(offset)
	}
	w.EndState()
	at, length := l.Offset, l.Length
	if w.doc.Dialect != Torch && e.Tensor != nil {
		at, length = 0, -1 // the file contains them
	}
	w.New(&w.names.place)
	w.BeginState()
	w.Ref(&w.names.file)
	w.Str(l.File)
	w.Ref(&w.names.offset)
	w.Int(at)
	w.Ref(&w.names.length)
	w.Int(length)
	if l.Detail != nil {
		w.detail(e, l.Detail)
	}
	w.EndState()
}

func (w *documentWriter) detail(e *meta.Entry, d *meta.Detail) {
	if w.doc.Dialect != Hyper && d.Key != "" {
		w.fail(e, "metadata of %v has no key inside of a file: %q", w.doc.Dialect, d.Key)
	}
	if w.doc.Dialect != Torch && len(d.Transforms) > 0 {
		w.fail(e, "metadata of %v has no transformations: %q", w.doc.Dialect, d.Transforms)
	}
	if len(d.StorageData) > 0 {
		w.fail(e, "%w: metadata of %v has no place for storage data", storage.ErrNotRepresentable, w.doc.Dialect)
	}
	if len(d.Transforms) > 0 {
		w.Ref(&w.names.via)
		w.Values(d.Transforms)
	}
	if d.Key != "" {
		w.Ref(&w.names.key)
		w.Str(d.Key)
	}
}

// nested reports whether an entry has a path.
func (w *documentWriter) nested() bool {
	return slices.ContainsFunc(w.doc.Meta.Entries, func(e meta.Entry) bool { return e.Path != nil })
}

// planner writes the paths by name, or the planner data if there are no paths.
func (w *documentWriter) planner() {
	nested := w.nested()
	if data := w.doc.Meta.PlannerData; data != nil && !nested {
		v, err := value.Decode(value.JSON, data)
		if err != nil {
			w.Fail(fmt.Errorf("planner_data: %w", err))
		}
		w.Values(v)
		return
	}
	if w.doc.Dialect != Torch && !nested {
		w.Values(nil)
		return
	}
	w.eachEntry(func(e *meta.Entry) {
		if e.Path == nil {
			w.Tuple(value.Tuple{e.FQN})
			return
		}
		t := make(value.Tuple, len(e.Path))
		for i, s := range e.Path {
			t[i] = s.Key
			if s.List {
				t[i] = int64(s.Pos)
			}
		}
		w.Tuple(t)
	})
}
