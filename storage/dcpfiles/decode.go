package dcpfiles

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
	d := &decoder{Graph: g, doc: &Document{Meta: new(meta.Metadata)}, chunk: -1}
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

// decoder turns the graph of a pickle into a document. Its methods call
// pickle.Fail if the document is invalid.
type decoder struct {
	*pickle.Graph
	doc       *Document
	name      string // of the entry that is being read, for errors
	chunk     int    // the number of the chunk that is being read, for errors; negative: no chunk
	entries   []meta.Entry
	byName    map[string]int
	byID      []int32          // by number of the name's string: one more than the entry's index
	files     map[string]int32 // one more than the index in fileNames
	fileIDs   []int32          // the same, by number of the name's string
	fileNames []string
	details   map[pickle.Cell]*meta.Detail
	chunks    []map[string]int // by entry: chunks by offset, built on demand
}

// fail fails with an error that names the entry and the chunk that are being read.
func (d *decoder) fail(format string, args ...any) {
	if d.chunk >= 0 {
		format, args = "chunk %d: "+format, append([]any{d.chunk}, args...)
	}
	if d.name != "" {
		format, args = "%q: "+format, append([]any{d.name}, args...)
	}
	pickle.Fail(format, args...)
}

func (d *decoder) document() (err error) {
	defer pickle.Catch(&err)
	class, ok := d.Root.Class()
	if !ok || class > classHyper {
		d.fail("%s is not a Metadata", d.describe(d.Root))
	}
	d.doc.Dialect = []Dialect{Torch, HyperOld, Hyper}[class]
	f, _ := d.Fields(d.Root)
	d.readEntries(get(f, fieldEntries))
	d.readPlaces(get(f, fieldPlaces))
	d.settle()
	d.readPlanner(get(f, fieldPlanner))
	if own := d.optional(get(f, fieldOwnPlanner), ownPlannerData); own != "" {
		d.doc.Meta.PlannerData = []byte(own) // Decode validates it
	}
	d.readSave(get(f, fieldSave))
	d.readOwnSave(get(f, fieldOwnSave))
	d.doc.Version = d.optional(get(f, fieldVersion), "version")
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

func (d *decoder) readEntries(c pickle.Cell) {
	pairs, ok := d.Dict(c)
	if !ok {
		d.fail("state_dict_metadata is %s", d.describe(c))
	}
	n := len(pairs) / 2
	d.entries = make([]meta.Entry, 0, n)
	d.byName = make(map[string]int, n)
	d.byID = make([]int32, d.NumStrs())
	d.chunks = make([]map[string]int, n)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := d.str(pairs[i], entryBytes)
		if !ok {
			d.fail("a name is %s", d.describe(pairs[i]))
		}
		if meta.CheckFQN(name) != nil {
			d.fail("%w: the name %.40q of %d bytes, names have 1 to %d bytes of UTF-8",
				errors.ErrUnsupported, name, len(name), meta.MaxFQN)
		}
		if _, ok := d.byName[name]; ok {
			d.fail("%q occurs twice", name)
		}
		d.name = name
		d.entries = append(d.entries, d.entry(name, pairs[i+1]))
		d.name = ""
		id, _ := d.StrID(pairs[i])
		d.byName[name] = len(d.entries) - 1
		d.byID[id] = int32(len(d.entries))
	}
}

func (d *decoder) entry(name string, c pickle.Cell) meta.Entry {
	switch class, _ := c.Class(); class {
	case classBytes:
		codec := CodecTorch
		if d.doc.Dialect != Torch {
			codec = CodecPickle
		}
		return meta.Entry{FQN: name, Bytes: &meta.Bytes{Codec: codec}}
	case classTensor:
		return meta.Entry{FQN: name, Tensor: d.tensor(c)}
	}
	d.fail("%s is neither metadata of a tensor nor metadata of bytes", d.describe(c))
	return meta.Entry{}
}

// The memory of parts of a document, without their strings.
const (
	entryBytes  = 256
	chunkBytes  = 96
	stringBytes = 32
)

// str returns a copy of a string, or false. It charges the string and more bytes
// for its use, because many places may share a string.
func (d *decoder) str(c pickle.Cell, more int) (string, bool) {
	b, ok := d.Text(c)
	if !ok {
		return "", false
	}
	d.Charge(more + len(b))
	return string(b), true
}

// optional returns a string, or "" for None.
func (d *decoder) optional(c pickle.Cell, what string) string {
	s, ok := d.str(c, stringBytes)
	if !ok && !isNone(c) {
		d.fail("%s is %s", what, d.describe(c))
	}
	return s
}

// readSave reads the properties of the whole save.
func (d *decoder) readSave(c pickle.Cell) {
	if isNone(c) {
		return
	}
	if class, _ := c.Class(); class != classSave {
		d.fail("storage_meta is %s", d.describe(c))
	}
	f, _ := d.Fields(c)
	d.doc.Meta.Storage.ID = d.path(get(f, 0))
	d.doc.Meta.Storage.SaveID = d.optional(get(f, 1), "save_id")
	if modules := get(f, 3); !isNone(modules) {
		d.doc.Modules = d.strings(modules, "modules")
	}
}

// readOwnSave reads the number of ranks and the id of a save without a group.
func (d *decoder) readOwnSave(c pickle.Cell) {
	if isNone(c) {
		return
	}
	pair, _ := d.List(c)
	if len(pair) != 2 {
		d.fail("%s is %s", ownSave, d.describe(c))
	}
	n, isInt := pair[0].Int()
	id, isStr := d.str(pair[1], 0)
	if !isInt || n < 1 || n > maxRanks || !isStr || id == "" {
		d.fail("%s holds %s and %s", ownSave, d.describe(pair[0]), d.describe(pair[1]))
	}
	d.doc.Ranks, d.doc.Meta.Storage.SaveID = int(n), id
}

// maxRanks bounds the number of ranks of a save, as file names do.
const maxRanks = 1_000_000_000

// path returns the checkpoint's id: a string, or the text of a path.
func (d *decoder) path(c pickle.Cell) string {
	if module, _, ok := d.Name(c); !ok || module != "pathlib" {
		return d.optional(c, "checkpoint_id")
	}
	v, err := d.Value(c, nil)
	if err != nil {
		d.fail("%w", err)
	}
	if o, ok := v.(*value.Object); ok && len(o.Args) == 1 {
		if s, ok := o.Args[0].(string); ok {
			return s
		}
	}
	d.fail("checkpoint_id is %s with items that are not strings", d.describe(c))
	return ""
}

func (d *decoder) strings(c pickle.Cell, what string) []string {
	var out []string
	for _, e := range d.list(c, what) {
		s, ok := d.str(e, stringBytes)
		if !ok {
			d.fail("%s holds %s", what, d.describe(e))
		}
		out = append(out, s)
	}
	return out
}

// list returns the items of a list or tuple that are not integers.
func (d *decoder) list(c pickle.Cell, what string) []pickle.Cell {
	list, ok := d.List(c)
	if ints, isInts := d.Ints(c); !ok && (!isInts || len(ints) > 0) {
		d.fail("%s is %s", what, d.describe(c))
	}
	return list
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
func (d *decoder) tensor(c pickle.Cell) *meta.Tensor {
	f, _ := d.Fields(c)
	t := &meta.Tensor{Properties: d.properties(get(f, 0)), Shape: d.ints(get(f, 1), "size")}
	list := d.list(get(f, 2), "chunks")
	d.Charge(chunkBytes * len(list)) // many names may share a list
	t.Chunks = make([]tensor.Box, len(list))
	t.Locs = make([]meta.Location, len(list))
	for i, c := range list {
		d.chunk = i
		if class, _ := c.Class(); class != classChunk {
			d.fail("%s is not a chunk", d.describe(c))
		}
		f, _ := d.Fields(c)
		t.Chunks[i] = tensor.Box{Offsets: d.ints(f[0], "offsets"), Sizes: d.ints(f[1], "sizes")}
	}
	d.chunk = -1
	return t
}

// ints returns the integers of a size, a tuple or a list.
func (d *decoder) ints(c pickle.Cell, what string) []int64 {
	if v, ok := d.Ints(c); ok {
		d.checkDims(len(v), what)
		return v
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && d.isName(c, "torch", "Size") {
		c = args[0]
	}
	list, ok := d.List(c)
	if !ok {
		d.fail("%s is %s", what, d.describe(c))
	}
	d.checkDims(len(list), what)
	d.Charge(8 * len(list))
	out := make([]int64, len(list))
	for i, e := range list {
		if out[i], ok = e.Int(); !ok {
			d.fail("%s holds %s", what, d.describe(e))
		}
	}
	return out
}

// checkDims fails if there are more dimensions than a tensor can have.
func (d *decoder) checkDims(n int, what string) {
	if n > tensor.MaxDims {
		d.fail("%s has %d dimensions, at most %d", what, n, tensor.MaxDims)
	}
}

func (d *decoder) isName(c pickle.Cell, module, name string) bool {
	m, n, ok := d.Name(c)
	return ok && m == module && n == name
}

func (d *decoder) properties(c pickle.Cell) meta.Properties {
	if class, _ := c.Class(); class != classProperties {
		d.fail("properties are %s", d.describe(c))
	}
	f, _ := d.Fields(c)
	return meta.Properties{
		DType:        d.dtype(get(f, fieldDType)),
		Layout:       d.layout(get(f, fieldLayout)),
		MemoryFormat: d.memoryFormat(get(f, fieldMemoryFormat)),
		RequiresGrad: d.flag(get(f, fieldRequiresGrad), "requires_grad"),
		PinMemory:    d.flag(get(f, fieldPinMemory), "pin_memory"),
	}
}

// flag returns a boolean, false for None.
func (d *decoder) flag(c pickle.Cell, what string) bool {
	v, ok := c.Bool()
	if !ok && !isNone(c) {
		d.fail("%s is %s", what, d.describe(c))
	}
	return v && ok
}

// dtype reads a dtype of PyTorch, or its name, which hyper_parallel writes.
func (d *decoder) dtype(c pickle.Cell) tensor.DType {
	name, ok := d.str(c, 0)
	if module, n, isName := d.Name(c); isName && c.Kind() == pickle.Global && module == "torch" {
		name = n
	} else if !ok {
		d.fail("dtype is %s", d.describe(c))
	}
	t, err := tensor.ParseDType(strings.TrimPrefix(name, "mindspore."))
	if err != nil {
		d.fail("%w", err)
	}
	return t
}

// layout returns the name of a layout, or "" for torch.strided.
func (d *decoder) layout(c pickle.Cell) string {
	if isNone(c) {
		return ""
	}
	module, name, ok := d.Name(c)
	if args, called := d.Args(c); called && len(args) == 1 && d.isName(c, "torch.serialization", "_get_layout") {
		text, _ := d.str(args[0], 0)
		name, ok = strings.CutPrefix(text, "torch.")
		module = "torch"
	}
	if !ok || module != "torch" || c.Kind() != pickle.Object && c.Kind() != pickle.Global {
		d.fail("layout is %s", d.describe(c))
	}
	if name == "strided" {
		return ""
	}
	return name
}

// memoryFormats are the memory formats by PyTorch's numbers.
var memoryFormats = []string{"", "channels_last", "preserve_format"}

// memoryFormat returns the name of a memory format, or "" for contiguous tensors.
func (d *decoder) memoryFormat(c pickle.Cell) string {
	if isNone(c) {
		return ""
	}
	if s, ok := d.str(c, 0); ok {
		return plainFormat(strings.TrimPrefix(s, "torch."))
	}
	module, name, _ := d.Name(c)
	if c.Kind() == pickle.Global && module == "torch" {
		return plainFormat(name)
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && strings.TrimPrefix(name, "_") == "MEM_FORMAT_ENCODING" {
		if i, ok := args[0].Int(); ok && i >= 0 && i < int64(len(memoryFormats)) {
			return memoryFormats[i]
		}
	}
	d.fail("memory_format is %s", d.describe(c))
	return ""
}

func plainFormat(s string) string {
	if s == "contiguous_format" {
		return ""
	}
	return s
}

// readPlanner reads the planner data: the paths of the names, which default
// planners store, or other data of a planner.
func (d *decoder) readPlanner(c pickle.Cell) {
	if isNone(c) {
		return
	}
	if paths, ok := d.paths(c); ok {
		for name, p := range paths {
			if i, ok := d.byName[name]; ok {
				d.entries[i].Path = p
			}
		}
		return
	}
	v, err := d.Value(c, nil)
	if err != nil {
		d.fail("planner_data: %w", err)
	}
	// The list ensures that bytes are encoded as JSON too.
	_, b, err := value.Encode([]any{v})
	if err != nil {
		d.fail("planner_data: %w", err)
	}
	d.doc.Meta.PlannerData = b[1 : len(b)-1]
}

// paths returns the paths by name, or false if the planner data is something
// else.
func (d *decoder) paths(c pickle.Cell) (map[string]meta.Path, bool) {
	pairs, ok := d.Dict(c)
	if !ok {
		return nil, false
	}
	out := make(map[string]meta.Path, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		name, ok := d.str(pairs[i], stringBytes)
		if !ok {
			return nil, false
		}
		if out[name], ok = d.nested(pairs[i+1]); !ok {
			return nil, false
		}
	}
	return out, true
}

// nested returns a path: a tuple of keys and indexes.
func (d *decoder) nested(c pickle.Cell) (meta.Path, bool) {
	list, _ := d.List(c)
	ints, _ := d.Ints(c)
	if c.Kind() != pickle.Tuple && c.Kind() != pickle.Ints {
		return nil, false
	}
	d.Charge(stringBytes * (len(list) + len(ints))) // many names may share a path
	p := make(meta.Path, 0, len(list)+len(ints))
	for _, n := range ints {
		if n < 0 {
			return nil, false
		}
		p = append(p, meta.Pos(int(n)))
	}
	for _, e := range list {
		if s, ok := d.str(e, 0); ok {
			p = append(p, meta.Key(s))
			continue
		}
		n, ok := e.Int()
		if !ok || n < 0 {
			return nil, false
		}
		p = append(p, meta.Pos(int(n)))
	}
	return p, len(p) > 0
}
