package dcpmeta

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

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
// which does not need torch.
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

// format returns PyTorch's number of a memory format.
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

// places writes where everything lies.
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
			return fmt.Errorf("%q: %d places for %d chunks", e.FQN, len(e.Tensor.Locs), len(e.Tensor.Chunks))
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

// place writes the index of a chunk, or of a value with the hint -1, and where it
// lies.
func (w *writer) place(e *meta.Entry, offset []int64, hint int, l *meta.Location) error {
	if l.File == "" {
		return fmt.Errorf("%q has no place", e.FQN)
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
		offset, length = 0, -1 // the file itself says it
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

// planner writes the mapping of names to paths. Planner data takes its place if
// there are no paths.
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
