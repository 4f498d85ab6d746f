package dcpmeta

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Encode returns the document's bytes, which PyTorch (2.6 and later) or
// hyper_parallel loads. d.Meta must be valid and every entry must have its
// locations; otherwise, or if the dialect cannot express something, the error
// wraps ErrInvalid. Of Meta.Storage it writes the ID and the SaveID. For PyTorch
// every name gets a path: the name itself if the entry has no path. For
// hyper_parallel there are paths only if an entry has one. Planner data is
// planner_data itself if no entry has a path, like that of other planners, and
// otherwise an attribute in addition to the paths. Equal documents give equal
// bytes.
func Encode(d *Document) ([]byte, error) {
	if err := d.Meta.Validate(); err != nil {
		return nil, invalid("%w", err)
	}
	w, err := newWriter(d)
	if err != nil {
		return nil, invalid("%w", err)
	}
	if err := w.document(); err != nil {
		return nil, invalid("%w", err)
	}
	return w.Bytes(), nil
}

type writer struct {
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

func newWriter(d *Document) (*writer, error) {
	s, err := pickle.NewStream(&pickle.EncodeOptions{Allow: func(module, name string) bool {
		return module == torchModule+".metadata" && name == "_MEM_FORMAT_ENCODING"
	}})
	if err != nil {
		return nil, err
	}
	w := &writer{Stream: s, doc: d, layouts: map[string]*value.Object{}, formats: map[string]*value.Object{}}
	module, place := d.Dialect.String(), "StorageInfo"
	storage := module + ".storage"
	switch d.Dialect {
	case Torch:
		storage, place = module+".filesystem", "_StorageInfo"
	case Hyper, HyperOld:
	default:
		return nil, fmt.Errorf("%v", d.Dialect)
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
	return w, nil
}

func (w *writer) document() error {
	w.Grow(w.size())
	w.New(&w.names.metadata)
	w.BeginState()
	for _, part := range []struct {
		name  string
		write func() error
	}{
		{"state_dict_metadata", w.entries},
		{"planner_data", w.planner},
		{"storage_data", w.places},
		{"storage_meta", w.save},
		{"version", w.version},
		{ownPlannerData, w.ownPlanner},
		{ownSave, w.ownSave},
	} {
		if !w.has(part.name) {
			continue
		}
		if err := w.Str(part.name); err != nil {
			return err
		}
		if err := part.write(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	w.EndState()
	return nil
}

// size estimates the bytes of names and chunks, because a growing buffer would
// temporarily take twice its size.
func (w *writer) size() int {
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

// has reports whether the document has an attribute with that name.
func (w *writer) has(name string) bool {
	switch name {
	case "storage_meta":
		return w.doc.Dialect == Torch
	case ownPlannerData:
		return w.doc.Meta.PlannerData != nil && w.nested()
	case ownSave:
		return w.doc.Ranks > 0
	}
	return true
}

// eachEntry writes a dict with one item for each entry.
func (w *writer) eachEntry(item func(e *meta.Entry) error) error {
	w.NewDict()
	entries := w.doc.Meta.Entries
	for i := range entries {
		if i%batch == 0 {
			w.Begin()
		}
		if err := w.Str(entries[i].FQN); err != nil {
			return err
		}
		if err := item(&entries[i]); err != nil {
			return fmt.Errorf("%q: %w", entries[i].FQN, err)
		}
		if i%batch == batch-1 || i == len(entries)-1 {
			w.EndDict()
		}
	}
	return nil
}

func (w *writer) entries() error {
	return w.eachEntry(func(e *meta.Entry) error {
		if e.Tensor == nil {
			w.New(&w.names.bytes)
			return nil
		}
		return w.tensor(e.Tensor)
	})
}

func (w *writer) save() error {
	s := &w.doc.Meta.Storage
	if s.ID == "" && s.SaveID == "" && len(w.doc.Modules) == 0 {
		return w.Value(nil)
	}
	w.New(&w.names.save)
	w.BeginState()
	modules := []any{}
	for _, m := range w.doc.Modules {
		modules = append(modules, m)
	}
	for _, v := range []any{"checkpoint_id", orNone(s.ID), "save_id", orNone(s.SaveID), "load_id", nil, "modules", modules} {
		if err := w.Value(v); err != nil {
			return err
		}
	}
	w.EndState()
	return nil
}

func (w *writer) version() error { return w.Value(orNone(w.doc.Version)) }

func orNone(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func (w *writer) tensor(t *meta.Tensor) error {
	w.New(&w.names.tensor)
	w.BeginState()
	w.Ref(&w.names.props)
	if err := w.properties(&t.Properties); err != nil {
		return err
	}
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
	return nil
}

func (w *writer) chunk(b *tensor.Box) {
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
func (w *writer) ints(v []int64) {
	if w.doc.Dialect == Torch {
		w.Call(&w.names.size, v)
		return
	}
	w.Ints(v)
}

func (w *writer) properties(p *meta.Properties) error {
	w.New(&w.names.properties)
	if w.doc.Dialect != Torch {
		w.BeginState()
		for _, v := range []any{"dtype", "torch." + p.DType.String(), "requires_grad", p.RequiresGrad,
			"memory_format", orNone(p.MemoryFormat)} {
			if err := w.Value(v); err != nil {
				return err
			}
		}
		w.EndState()
		return nil
	}
	format, err := w.format(p.MemoryFormat)
	if err != nil {
		return err
	}
	w.Begin()
	dtype := &value.Object{Module: "torch", Name: p.DType.String()}
	for _, v := range []any{dtype, w.layout(p.Layout), p.RequiresGrad, format, p.PinMemory} {
		if err := w.Value(v); err != nil {
			return err
		}
	}
	w.EndTuple()
	w.Build()
	return nil
}

// format returns PyTorch's number for a memory format.
func (w *writer) format(name string) (*value.Object, error) {
	if o := w.formats[name]; o != nil {
		return o, nil
	}
	i := slices.Index(memoryFormats, name)
	if i < 0 {
		return nil, fmt.Errorf("the memory format %q has no number", name)
	}
	o := &value.Object{Module: torchModule + ".metadata", Name: "_MEM_FORMAT_ENCODING", Call: true, Args: value.Tuple{int64(i)}}
	w.formats[name] = o
	return o, nil
}

func (w *writer) layout(name string) *value.Object {
	if name == "" {
		name = "strided"
	}
	if w.layouts[name] == nil {
		w.layouts[name] = &value.Object{Module: "torch", Name: name}
	}
	return w.layouts[name]
}

// places writes the locations of all chunks and values.
func (w *writer) places() error {
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
			if err := w.place(e, nil, -1, &e.Bytes.Loc); err != nil {
				return err
			}
			end()
			continue
		}
		if len(e.Tensor.Locs) != len(e.Tensor.Chunks) {
			return fmt.Errorf("%q: %d locations for %d chunks", e.FQN, len(e.Tensor.Locs), len(e.Tensor.Chunks))
		}
		w.Grow(64 * len(e.Tensor.Chunks))
		for j := range e.Tensor.Chunks {
			if err := w.place(e, e.Tensor.Chunks[j].Offsets, j, &e.Tensor.Locs[j]); err != nil {
				return err
			}
			end()
		}
	}
	w.EndDict()
	return nil
}

// place writes the index of a chunk, or of a value with the hint -1, and its
// location.
func (w *writer) place(e *meta.Entry, offset []int64, hint int, l *meta.Location) error {
	if l.File == "" {
		return fmt.Errorf("%q has no location", e.FQN)
	}
	w.New(&w.names.index)
	w.BeginState()
	w.Ref(&w.names.fqn)
	if err := w.Str(e.FQN); err != nil {
		return err
	}
	w.Ref(&w.names.hint)
	if hint >= 0 {
		w.Int(int64(hint))
	} else if err := w.Value(nil); err != nil {
		return err
	}
	if hint >= 0 || w.doc.Dialect != Torch {
		w.Ref(&w.names.offset)
		w.ints(offset)
	}
	w.EndState()
	if err := w.location(e, l); err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	return nil
}

func (w *writer) location(e *meta.Entry, l *meta.Location) error {
	offset, length := l.Offset, l.Length
	if w.doc.Dialect != Torch && e.Tensor != nil {
		offset, length = 0, -1 // the file contains them
	}
	w.New(&w.names.place)
	w.BeginState()
	w.Ref(&w.names.file)
	if err := w.Str(l.File); err != nil {
		return err
	}
	w.Ref(&w.names.offset)
	w.Int(offset)
	w.Ref(&w.names.length)
	w.Int(length)
	if l.Detail != nil {
		if err := w.detail(l.Detail); err != nil {
			return err
		}
	}
	w.EndState()
	return nil
}

func (w *writer) detail(d *meta.Detail) error {
	switch w.doc.Dialect {
	case Torch:
		if d.Key != "" {
			return fmt.Errorf("PyTorch's metadata has no key inside of a file: %q", d.Key)
		}
	default:
		if len(d.Transforms) > 0 {
			return fmt.Errorf("hyper_parallel's metadata has no transformations: %q", d.Transforms)
		}
	}
	if len(d.Transforms) > 0 {
		w.Ref(&w.names.via)
		if err := w.Value(d.Transforms); err != nil {
			return err
		}
	}
	if d.Key == "" {
		return nil
	}
	if w.doc.Dialect == HyperOld {
		return fmt.Errorf("%v has no key inside of a file: %q", w.doc.Dialect, d.Key)
	}
	w.Ref(&w.names.key)
	return w.Str(d.Key)
}

// nested reports whether an entry has a path.
func (w *writer) nested() bool {
	return slices.ContainsFunc(w.doc.Meta.Entries, func(e meta.Entry) bool { return e.Path != nil })
}

// ownPlanner writes the planner data as text.
func (w *writer) ownPlanner() error { return w.Str(string(w.doc.Meta.PlannerData)) }

// ownSave writes the number of ranks and the id of their save.
func (w *writer) ownSave() error {
	return w.Value(value.Tuple{int64(w.doc.Ranks), w.doc.Meta.Storage.SaveID})
}

// planner writes the paths by name, or the planner data if there are no paths.
func (w *writer) planner() error {
	nested := w.nested()
	if data := w.doc.Meta.PlannerData; data != nil && !nested {
		v, err := value.Decode(value.JSON, data)
		if err != nil {
			return err
		}
		return w.Value(v)
	}
	if w.doc.Dialect != Torch && !nested {
		return w.Value(nil)
	}
	return w.eachEntry(func(e *meta.Entry) error {
		if e.Path == nil {
			return w.Tuple(value.Tuple{e.FQN})
		}
		t := make(value.Tuple, len(e.Path))
		for i, s := range e.Path {
			t[i] = s.Key
			if s.List {
				t[i] = int64(s.Pos)
			}
		}
		return w.Tuple(t)
	})
}
