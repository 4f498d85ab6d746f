package dcpmeta

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Decode returns the document in data. The error wraps ErrInvalid, and the error
// of package pickle or meta if there is one, if data is not a document, contains
// an unexpected class, has a chunk without a location, or does not pass
// meta.Validate. Decode drops duplicate chunks, and empty chunks that were not
// written. The result may refer to memory of the decoder, but not to data.
//
// The error wraps errors.ErrUnsupported instead if a name is not valid for
// meta.CheckFQN, such as the empty name: PyTorch permits such a document.
//
// Memory and work are proportional to the size of data. Decode stops if ctx is
// cancelled.
func Decode(ctx context.Context, data []byte) (*Document, error) {
	d, err := decode(ctx, data)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	return d, err
}

func decode(ctx context.Context, data []byte) (*Document, error) {
	g, n, err := pickle.Parse(data, classes, &pickle.Limits{Context: ctx})
	if err != nil {
		return nil, invalid("%w", err)
	}
	if n != len(data) {
		return nil, invalid("%d bytes after its end", len(data)-n)
	}
	d := &decoder{Graph: g, doc: &Document{Meta: new(meta.Metadata)}}
	if err := d.document(); errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	} else if err != nil {
		return nil, invalid("%w", err)
	}
	if err := d.doc.Meta.Validate(); err != nil {
		return nil, invalid("%w", err)
	}
	return d.doc, nil
}

// decoder turns the graph of a pickle into a document.
type decoder struct {
	*pickle.Graph
	doc       *Document
	entries   []meta.Entry
	byName    map[string]int
	byID      []int32          // by number of the name's string: one more than the entry's index
	files     map[string]int32 // one more than the index in fileNames
	fileIDs   []int32          // the same, by number of the name's string
	fileNames []string
	details   map[pickle.Cell]*meta.Detail
	chunks    []map[string]int // by entry: chunks by offset, built on demand
}

func (d *decoder) document() error {
	class, ok := d.Root.Class()
	if !ok || class > classHyper {
		return fmt.Errorf("%s is not a Metadata", d.describe(d.Root))
	}
	d.doc.Dialect = []Dialect{Torch, HyperOld, Hyper}[class]
	f, _ := d.Fields(d.Root)
	if err := d.readEntries(get(f, fieldEntries)); err != nil {
		return err
	}
	if err := d.readPlaces(get(f, fieldPlaces)); err != nil {
		return err
	}
	if err := d.settle(); err != nil {
		return err
	}
	if err := d.readPlanner(get(f, fieldPlanner)); err != nil {
		return err
	}
	own, err := d.optional(get(f, fieldOwnPlanner), ownPlannerData)
	if err != nil {
		return err
	}
	if own != "" {
		d.doc.Meta.PlannerData = []byte(own) // Decode validates it
	}
	if err := d.readSave(get(f, fieldSave)); err != nil {
		return err
	}
	if err := d.readOwnSave(get(f, fieldOwnSave)); err != nil {
		return err
	}
	version, err := d.optional(get(f, fieldVersion), "version")
	if err != nil {
		return err
	}
	d.doc.Version = version
	d.doc.Meta.Entries = d.entries
	slices.SortFunc(d.entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return nil
}

// get returns a field, or None if it is not set.
func get(fields []pickle.Cell, i int) pickle.Cell {
	if fields[i] == pickle.Unset {
		return pickle.Cell(pickle.None)
	}
	return fields[i]
}

func isNone(c pickle.Cell) bool { return c.Kind() == pickle.None }

func (d *decoder) readEntries(c pickle.Cell) error {
	pairs, ok := d.Dict(c)
	if !ok {
		return fmt.Errorf("state_dict_metadata is %s", d.describe(c))
	}
	n := len(pairs) / 2
	d.entries = make([]meta.Entry, 0, n)
	d.byName = make(map[string]int, n)
	d.byID = make([]int32, d.NumStrs())
	d.chunks = make([]map[string]int, n)
	for i := 0; i < len(pairs); i += 2 {
		name, ok, err := d.str(pairs[i], entryBytes)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("a name is %s", d.describe(pairs[i]))
		}
		if meta.CheckFQN(name) != nil {
			return fmt.Errorf("%w: the name %.40q of %d bytes, names have 1 to %d bytes of UTF-8",
				errors.ErrUnsupported, name, len(name), meta.MaxFQN)
		}
		if _, ok := d.byName[name]; ok {
			return fmt.Errorf("%q occurs twice", name)
		}
		e, err := d.entry(name, pairs[i+1])
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		id, _ := d.StrID(pairs[i])
		d.entries = append(d.entries, e)
		d.byName[name] = len(d.entries) - 1
		d.byID[id] = int32(len(d.entries))
	}
	return nil
}

func (d *decoder) entry(name string, c pickle.Cell) (meta.Entry, error) {
	switch class, _ := c.Class(); class {
	case classBytes:
		codec := CodecTorch
		if d.doc.Dialect != Torch {
			codec = CodecPickle
		}
		return meta.Entry{FQN: name, Bytes: &meta.Bytes{Codec: codec}}, nil
	case classTensor:
		t, err := d.tensor(c)
		return meta.Entry{FQN: name, Tensor: t}, err
	}
	return meta.Entry{}, fmt.Errorf("%s is neither a tensor's metadata nor that of bytes", d.describe(c))
}

// The memory of parts of a document, without their strings.
const (
	entryBytes  = 256
	chunkBytes  = 96
	stringBytes = 32
)

// str returns a copy of a string, or false. It charges the string and more bytes
// for its use, because many places may share a string.
func (d *decoder) str(c pickle.Cell, more int) (string, bool, error) {
	b, ok := d.Text(c)
	if !ok {
		return "", false, nil
	}
	if err := d.Charge(more + len(b)); err != nil {
		return "", false, err
	}
	return string(b), true, nil
}

// optional returns a string, or "" for None.
func (d *decoder) optional(c pickle.Cell, what string) (string, error) {
	if isNone(c) {
		return "", nil
	}
	s, ok, err := d.str(c, stringBytes)
	if err == nil && !ok {
		err = fmt.Errorf("%s is %s", what, d.describe(c))
	}
	return s, err
}

// readSave reads the properties of the whole save.
func (d *decoder) readSave(c pickle.Cell) error {
	if isNone(c) {
		return nil
	}
	if class, _ := c.Class(); class != classSave {
		return fmt.Errorf("storage_meta is %s", d.describe(c))
	}
	f, _ := d.Fields(c)
	var err error
	if d.doc.Meta.Storage.ID, err = d.path(get(f, 0)); err != nil {
		return err
	}
	if d.doc.Meta.Storage.SaveID, err = d.optional(get(f, 1), "save_id"); err != nil {
		return err
	}
	if modules := get(f, 3); !isNone(modules) {
		d.doc.Modules, err = d.strings(modules, "modules")
	}
	return err
}

// readOwnSave reads the number of ranks and the id of a save without a group.
func (d *decoder) readOwnSave(c pickle.Cell) error {
	if isNone(c) {
		return nil
	}
	pair, _ := d.List(c)
	if len(pair) != 2 {
		return fmt.Errorf("%s is %s", ownSave, d.describe(c))
	}
	n, isInt := pair[0].Int()
	id, isStr := d.Str(pair[1])
	if !isInt || n < 1 || n > maxRanks || !isStr || id == "" {
		return fmt.Errorf("%s holds %s and %s", ownSave, d.describe(pair[0]), d.describe(pair[1]))
	}
	d.doc.Ranks, d.doc.Meta.Storage.SaveID = int(n), id
	return nil
}

// maxRanks bounds the number of ranks of a save, as file names do.
const maxRanks = 1_000_000_000

// path returns the checkpoint's id: a string, or the text of a path.
func (d *decoder) path(c pickle.Cell) (string, error) {
	if module, _, ok := d.Name(c); !ok || module != "pathlib" {
		return d.optional(c, "checkpoint_id")
	}
	v, err := d.Value(c, nil)
	if err != nil {
		return "", err
	}
	if o, ok := v.(*value.Object); ok && len(o.Args) == 1 {
		if s, ok := o.Args[0].(string); ok {
			return s, nil
		}
	}
	return "", fmt.Errorf("checkpoint_id is %s with items that are not strings", d.describe(c))
}

func (d *decoder) strings(c pickle.Cell, what string) ([]string, error) {
	cells, ok := d.List(c)
	if ints, isInts := d.Ints(c); !ok && (!isInts || len(ints) > 0) {
		return nil, fmt.Errorf("%s is %s", what, d.describe(c))
	}
	var out []string
	for _, e := range cells {
		s, ok, err := d.str(e, stringBytes)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%s holds %s", what, d.describe(e))
		}
		out = append(out, s)
	}
	return out, nil
}

// describe describes c in error messages. It includes the name of the class.
func (d *decoder) describe(c pickle.Cell) string {
	if class, ok := c.Class(); ok {
		return classes[class].Names[0]
	}
	if module, name, ok := d.Name(c); ok {
		return fmt.Sprintf("%.100s.%.100s", module, name)
	}
	if c.Kind() == pickle.Big { // an int, but too large
		return "a number out of range"
	}
	return c.Kind().String()
}

// tensor reads a TensorStorageMetadata.
func (d *decoder) tensor(c pickle.Cell) (*meta.Tensor, error) {
	f, _ := d.Fields(c)
	props, err := d.properties(get(f, 0))
	if err != nil {
		return nil, err
	}
	shape, err := d.ints(get(f, 1), "size")
	if err != nil {
		return nil, err
	}
	list, ok := d.List(get(f, 2))
	if ints, isInts := d.Ints(get(f, 2)); !ok && (!isInts || len(ints) > 0) {
		return nil, fmt.Errorf("chunks are %s", d.describe(get(f, 2)))
	}
	if err := d.Charge(chunkBytes * len(list)); err != nil { // many names may share a list
		return nil, err
	}
	t := &meta.Tensor{Properties: props, Shape: shape}
	t.Chunks = make([]tensor.Box, len(list))
	t.Locs = make([]meta.Location, len(list))
	for i, c := range list {
		if t.Chunks[i], err = d.box(c); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	return t, nil
}

func (d *decoder) box(c pickle.Cell) (tensor.Box, error) {
	if class, _ := c.Class(); class != classChunk {
		return tensor.Box{}, fmt.Errorf("%s is not a chunk", d.describe(c))
	}
	f, _ := d.Fields(c)
	offsets, err := d.ints(f[0], "offsets")
	if err != nil {
		return tensor.Box{}, err
	}
	sizes, err := d.ints(f[1], "sizes")
	return tensor.Box{Offsets: offsets, Sizes: sizes}, err
}

// ints returns the integers of a size, a tuple or a list.
func (d *decoder) ints(c pickle.Cell, what string) ([]int64, error) {
	if v, ok := d.Ints(c); ok {
		return v, checkDims(len(v), what)
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && d.isName(c, "torch", "Size") {
		c = args[0]
	}
	list, ok := d.List(c)
	if !ok {
		return nil, fmt.Errorf("%s is %s", what, d.describe(c))
	}
	if err := checkDims(len(list), what); err != nil {
		return nil, err
	}
	if err := d.Charge(8 * len(list)); err != nil {
		return nil, err
	}
	out := make([]int64, len(list))
	for i, e := range list {
		if out[i], ok = e.Int(); !ok {
			return nil, fmt.Errorf("%s holds %s", what, d.describe(e))
		}
	}
	return out, nil
}

// checkDims returns an error if there are more dimensions than a tensor can have.
func checkDims(n int, what string) error {
	if n > tensor.MaxDims {
		return fmt.Errorf("%s has %d dimensions, at most %d", what, n, tensor.MaxDims)
	}
	return nil
}

func (d *decoder) isName(c pickle.Cell, module, name string) bool {
	m, n, ok := d.Name(c)
	return ok && m == module && n == name
}

func (d *decoder) properties(c pickle.Cell) (p meta.Properties, err error) {
	if class, _ := c.Class(); class != classProperties {
		return p, fmt.Errorf("properties are %s", d.describe(c))
	}
	f, _ := d.Fields(c)
	if p.DType, err = d.dtype(get(f, fieldDType)); err != nil {
		return p, err
	}
	if p.Layout, err = d.layout(get(f, fieldLayout)); err != nil {
		return p, err
	}
	if p.MemoryFormat, err = d.memoryFormat(get(f, fieldMemoryFormat)); err != nil {
		return p, err
	}
	if p.RequiresGrad, err = d.flag(get(f, fieldRequiresGrad), "requires_grad"); err != nil {
		return p, err
	}
	p.PinMemory, err = d.flag(get(f, fieldPinMemory), "pin_memory")
	return p, err
}

// flag returns a boolean, false for None.
func (d *decoder) flag(c pickle.Cell, what string) (bool, error) {
	v, ok := c.Bool()
	if !ok && !isNone(c) {
		return false, fmt.Errorf("%s is %s", what, d.describe(c))
	}
	return v && ok, nil
}

// dtype reads a dtype of PyTorch, or its name, which hyper_parallel writes.
func (d *decoder) dtype(c pickle.Cell) (tensor.DType, error) {
	name, ok, err := d.str(c, 0)
	if err != nil {
		return 0, err
	}
	if !ok {
		module, n, isName := d.Name(c)
		if !isName || c.Kind() != pickle.Global || module != "torch" {
			return 0, fmt.Errorf("dtype is %s", d.describe(c))
		}
		name = n
	}
	return tensor.ParseDType(strings.TrimPrefix(name, "mindspore."))
}

// layout returns the name of a layout, or "" for torch.strided.
func (d *decoder) layout(c pickle.Cell) (string, error) {
	if isNone(c) {
		return "", nil
	}
	module, name, ok := d.Name(c)
	if args, called := d.Args(c); called && len(args) == 1 && d.isName(c, "torch.serialization", "_get_layout") {
		text, _, err := d.str(args[0], 0)
		if err != nil {
			return "", err
		}
		name, ok = strings.CutPrefix(text, "torch.")
		module = "torch"
	}
	if !ok || module != "torch" || c.Kind() != pickle.Object && c.Kind() != pickle.Global {
		return "", fmt.Errorf("layout is %s", d.describe(c))
	}
	if name == "strided" {
		return "", nil
	}
	return name, nil
}

// memoryFormats are the memory formats by PyTorch's numbers.
var memoryFormats = []string{"", "channels_last", "preserve_format"}

// memoryFormat returns the name of a memory format, or "" for contiguous tensors.
func (d *decoder) memoryFormat(c pickle.Cell) (string, error) {
	if isNone(c) {
		return "", nil
	}
	if s, ok, err := d.str(c, 0); ok || err != nil {
		return plainFormat(strings.TrimPrefix(s, "torch.")), err
	}
	module, name, _ := d.Name(c)
	if c.Kind() == pickle.Global && module == "torch" {
		return plainFormat(name), nil
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && strings.TrimPrefix(name, "_") == "MEM_FORMAT_ENCODING" {
		if i, ok := args[0].Int(); ok && i >= 0 && i < int64(len(memoryFormats)) {
			return memoryFormats[i], nil
		}
	}
	return "", fmt.Errorf("memory_format is %s", d.describe(c))
}

func plainFormat(s string) string {
	if s == "contiguous_format" {
		return ""
	}
	return s
}

// readPlanner reads the planner data: the paths of the names, which default
// planners store, or other data of a planner.
func (d *decoder) readPlanner(c pickle.Cell) error {
	if isNone(c) {
		return nil
	}
	paths, ok, err := d.paths(c)
	if err != nil {
		return err
	}
	if ok {
		for name, p := range paths {
			if i, ok := d.byName[name]; ok {
				d.entries[i].Path = p
			}
		}
		return nil
	}
	v, err := d.Value(c, nil)
	if err != nil {
		return fmt.Errorf("planner_data: %w", err)
	}
	// The list ensures that bytes are encoded as JSON too.
	_, b, err := value.Encode([]any{v})
	if err != nil {
		return fmt.Errorf("planner_data: %w", err)
	}
	d.doc.Meta.PlannerData = b[1 : len(b)-1]
	return nil
}

// paths returns the paths by name, or false if the planner data is something
// else.
func (d *decoder) paths(c pickle.Cell) (map[string]meta.Path, bool, error) {
	pairs, ok := d.Dict(c)
	if !ok {
		return nil, false, nil
	}
	out := make(map[string]meta.Path, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok, err := d.str(pairs[i], stringBytes)
		if !ok || err != nil {
			return nil, false, err
		}
		if out[name], ok, err = d.nested(pairs[i+1]); !ok || err != nil {
			return nil, false, err
		}
	}
	return out, true, nil
}

// nested returns a path: a tuple of keys and indexes.
func (d *decoder) nested(c pickle.Cell) (meta.Path, bool, error) {
	list, ok := d.List(c)
	ints, isInts := d.Ints(c)
	if c.Kind() != pickle.Tuple && c.Kind() != pickle.Ints || !ok && !isInts {
		return nil, false, nil
	}
	if err := d.Charge(stringBytes * (len(list) + len(ints))); err != nil { // many names may share a path
		return nil, false, err
	}
	p := make(meta.Path, len(list)+len(ints))
	for i, n := range ints {
		if n < 0 {
			return nil, false, nil
		}
		p[i] = meta.Pos(int(n))
	}
	for i, e := range list {
		s, ok, err := d.str(e, 0)
		if err != nil {
			return nil, false, err
		}
		if ok {
			p[i] = meta.Key(s)
			continue
		}
		n, ok := e.Int()
		if !ok || n < 0 {
			return nil, false, nil
		}
		p[i] = meta.Pos(int(n))
	}
	return p, len(p) > 0, nil
}
