package dcpmeta

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// Encode returns the document's bytes, which the stock PyTorch (2.6 and later)
// or hyper_parallel loads. d.Meta must be valid and every entry must have its
// place; otherwise, and where the dialect cannot say something, the error wraps
// ErrInvalid. Of Meta.Storage it writes the ID and the SaveID. PyTorch always
// gets a path for each name: the one step of the name itself where the entry
// has none. hyper_parallel gets paths only if an entry has one. Planner data is
// planner_data itself if no entry has a path, as the other planners write it, and
// otherwise an attribute beside the paths. Equal documents give equal bytes.
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

// writer writes a document.
type writer struct {
	*pickle.Stream
	doc   *Document
	names names
	// props are the properties of tensors that were written, as values that the
	// stream writes once.
	layouts map[string]*value.Object
	formats map[string]*value.Object
}

// names is everything that a document has many times.
type names struct {
	metadata, tensor, bytes, chunk, properties, index, place, save, size pickle.Ref

	props, shape, chunks, offsets, sizes      pickle.Ref
	fqn, offset, hint, file, length, key, via pickle.Ref
}

// batch is how many items of a list or dict are written between two marks, as
// Python does it: the reader's stack need not hold more.
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

// size returns about how many bytes the names and chunks take: a buffer that grows
// would have twice the size for a while.
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

// has reports whether the document has an attribute of that name.
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
