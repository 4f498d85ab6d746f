package native

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// The keys of a data file's string metadata. The first three are PyTorch's: its
// readers place the chunks of a folder of such files by them.
const (
	metaSharding = "DCP_SHARDING_INFO"
	metaVersion  = "DCP_VERSION"
	metaFormat   = "format"
	metaSelf     = "cairn"
)

// selfDescription is the part of a data file's description that safetensors cannot
// express. From the descriptions of all data files a lost record and index can be
// rebuilt.
type selfDescription struct {
	Version   int                 `json:"version"`
	SaveID    string              `json:"save_id"`
	Step      *int64              `json:"step,omitempty"`
	Time      time.Time           `json:"time"`
	WorldSize int                 `json:"world_size"`
	Ranks     int                 `json:"ranks,omitempty"` // how many ranks wrote data files; 0: unknown
	Rank      int                 `json:"rank"`
	Files     int                 `json:"files"`  // how many data files the rank wrote
	Number    int                 `json:"number"` // of this one among them
	Writer    string              `json:"writer"`
	Tags      map[string]string   `json:"tags,omitempty"`
	Items     map[string]selfItem `json:"items"`
	Values    []selfValue         `json:"values,omitempty"`
}

// selfItem describes the entry of one key.
type selfItem struct {
	FQN     string   `json:"fqn,omitempty"` // if it is not the key
	Path    pathJSON `json:"path,omitempty"`
	DType   string   `json:"dtype,omitempty"` // of a tensor
	Shape   []int64  `json:"shape,omitempty"` // of the global tensor
	Chunk   int32    `json:"chunk,omitempty"` // its position among the tensor's chunks
	Offsets []int64  `json:"offsets,omitempty"`
	Sizes   []int64  `json:"sizes,omitempty"` // if the header's shape is not the chunk's
	Codec   string   `json:"codec,omitempty"` // of a value
	// The properties that only PyTorch gives a meaning.
	RequiresGrad bool   `json:"requires_grad,omitempty"`
	MemoryFormat string `json:"memory_format,omitempty"`
	Layout       string `json:"layout,omitempty"`
	PinMemory    bool   `json:"pin_memory,omitempty"`
	// Tied are the other names of the tensor.
	Tied []selfTied `json:"tied,omitempty"`
}

// selfTied is a further name of a tensor, which has the same dtype, shape and chunks.
type selfTied struct {
	FQN          string   `json:"fqn"`
	Path         pathJSON `json:"path,omitempty"`
	Chunk        int32    `json:"chunk,omitempty"`
	RequiresGrad bool     `json:"requires_grad,omitempty"`
	MemoryFormat string   `json:"memory_format,omitempty"`
	Layout       string   `json:"layout,omitempty"`
	PinMemory    bool     `json:"pin_memory,omitempty"`
}

// selfValue is a small value that is stored in the index.
type selfValue struct {
	FQN   string   `json:"fqn"`
	Path  pathJSON `json:"path,omitempty"`
	Codec string   `json:"codec"`
	Data  []byte   `json:"data"`
}

// describeItem returns the description of an item under key.
func describeItem(p *placed) selfItem {
	it, key, in := p.item, p.key, p.item.Info
	s := selfItem{
		Path: pathJSON(in.Path), Shape: in.Shape, Codec: in.Codec,
		RequiresGrad: in.RequiresGrad, MemoryFormat: in.MemoryFormat, Layout: in.Layout, PinMemory: in.PinMemory,
	}
	if it.Kind != plan.KindBytes {
		s.DType = in.DType.String()
		s.Chunk, s.Offsets = it.Hint, it.Box.Offsets
	}

	if key != in.FQN {
		s.FQN = in.FQN
		s.Sizes = it.Box.Sizes
	}

	for _, t := range p.ties {
		in := t.Info
		s.Tied = append(s.Tied, selfTied{
			FQN: in.FQN, Path: pathJSON(in.Path), Chunk: t.Hint,
			RequiresGrad: in.RequiresGrad, MemoryFormat: in.MemoryFormat, Layout: in.Layout, PinMemory: in.PinMemory,
		})
	}

	return s
}

// append appends s as encoding/json does, which takes too long for very many items.
func (s *selfItem) append(b []byte) []byte {
	o := object{append(b, '{')}
	o.text("fqn", s.FQN)
	if len(s.Path) > 0 {
		o.b = s.Path.append(o.key("path"))
	}

	o.text("dtype", s.DType)
	o.ints("shape", s.Shape)
	if s.Chunk != 0 {
		o.b = strconv.AppendInt(o.key("chunk"), int64(s.Chunk), 10)
	}

	o.ints("offsets", s.Offsets)
	o.ints("sizes", s.Sizes)
	o.text("codec", s.Codec)
	o.flag("requires_grad", s.RequiresGrad)
	o.text("memory_format", s.MemoryFormat)
	o.text("layout", s.Layout)
	o.flag("pin_memory", s.PinMemory)

	if len(s.Tied) > 0 {
		o.b = append(o.key("tied"), '[')
		for i := range s.Tied {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			o.b = s.Tied[i].append(o.b)
		}
		o.b = append(o.b, ']')
	}

	return append(o.b, '}')
}

// append appends t as encoding/json does.
func (t *selfTied) append(b []byte) []byte {
	o := object{append(b, '{')}
	o.b = appendText(o.key("fqn"), t.FQN)
	if len(t.Path) > 0 {
		o.b = t.Path.append(o.key("path"))
	}
	if t.Chunk != 0 {
		o.b = strconv.AppendInt(o.key("chunk"), int64(t.Chunk), 10)
	}

	o.flag("requires_grad", t.RequiresGrad)
	o.text("memory_format", t.MemoryFormat)
	o.text("layout", t.Layout)
	o.flag("pin_memory", t.PinMemory)
	return append(o.b, '}')
}

// appendSharding appends the description of an item for PyTorch's readers: the
// offsets at which it begins in its tensor, and the tensor's name if it is not the
// key. Readers that ignore the name take the key for a tensor of its own.
func appendSharding(b []byte, p *placed) []byte {
	b = append(b, `{"saved_offsets":`...)
	switch headerEntry(p.item).Name {
	case "":
		b = append(b, "[0]"...)
	case p.key:
		b = appendInts(b, p.item.Box.Offsets)
	default:
		b = append(appendInts(b, p.item.Box.Offsets), `,"logical_fqn":`...)
		b = appendText(b, p.item.FQN())
	}

	return append(b, '}')
}

// fill writes the description of a file with these items into a header's
// metadata, and for PyTorch the place of every chunk.
func (s *selfDescription) fill(m map[string]string, items []placed) error {
	byKey := slices.Clone(items)
	slices.SortFunc(byKey, func(a, b placed) int { return strings.Compare(a.key, b.key) })
	sharding := appendItems(nil, byKey, appendSharding)

	s.Items = map[string]selfItem{}
	self, err := json.Marshal(s)
	if err != nil {
		return err
	}

	before, after, _ := bytes.Cut(self, []byte(`"items":{}`)) // cannot be in a string, because quotes are escaped there
	self = append(slices.Clip(before), `"items":`...)
	self = appendItems(self, byKey, func(b []byte, p *placed) []byte {
		item := describeItem(p)
		return item.append(b)
	})
	self = append(self, after...)
	m[metaSharding], m[metaVersion], m[metaFormat], m[metaSelf] = string(sharding), "1.0", "pt", string(self)
	return nil
}

// appendItems appends an object with a member for each item, under its key.
func appendItems(b []byte, items []placed, member func(b []byte, p *placed) []byte) []byte {
	room := 0
	for i := range items {
		room += 2*len(items[i].key) + 96 // about: the key, a path, some numbers
	}

	b = append(slices.Grow(b, room), '{')
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, items[i].key), ':')
		b = member(b, &items[i])
	}

	return append(b, '}')
}

// decodeSelf decodes the description of a data file. The error wraps
// storage.ErrCorrupt or storage.ErrVersion.
func decodeSelf(text string) (*selfDescription, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal([]byte(text), &version); err != nil {
		return nil, fmt.Errorf("%w: it has no valid description of itself: %w", storage.ErrCorrupt, err)
	}
	if version.Version < formatVersion || version.Version > tiedVersion {
		return nil, versionError(uint64(version.Version), tiedVersion)
	}

	var s selfDescription
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("%w: it has no valid description of itself: %w", storage.ErrCorrupt, err)
	}

	for i := range s.Values {
		if err := meta.CheckFQN(s.Values[i].FQN); err != nil {
			return nil, fmt.Errorf("%w: value %d: %w", storage.ErrCorrupt, i, err)
		}
	}

	return &s, nil
}

// pathJSON writes a path as a list of keys, positions and, as objects, keys that
// are integers.
type pathJSON meta.Path

// MarshalJSON returns the list.
func (p pathJSON) MarshalJSON() ([]byte, error) { return p.append(nil), nil }

func (p pathJSON) append(b []byte) []byte {
	b = append(b, '[')
	for i, s := range p {
		if i > 0 {
			b = append(b, ',')
		}
		switch {
		case s.List:
			b = strconv.AppendInt(b, int64(s.Pos), 10)
		case s.Int:
			b = append(appendText(append(b, `{"int":`...), s.Key), '}')
		default:
			b = appendText(b, s.Key)
		}
	}

	return append(b, ']')
}

// UnmarshalJSON reads the list.
func (p *pathJSON) UnmarshalJSON(b []byte) error {
	var list []any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&list); err != nil {
		return err
	}

	*p = make(pathJSON, len(list))
	for i, v := range list {
		s, ok := stepOf(v)
		if !ok || s.Check() != nil {
			return fmt.Errorf("path step %v is neither a key nor a position", v)
		}
		(*p)[i] = s
	}

	return nil
}

// stepOf returns the step that a JSON value represents.
func stepOf(v any) (meta.Step, bool) {
	switch v := v.(type) {
	case string:
		return meta.Key(v), true
	case json.Number:
		pos, err := strconv.Atoi(v.String())
		return meta.Pos(pos), err == nil
	case map[string]any:
		key, ok := v["int"].(string)
		return meta.Step{Key: key, Int: true}, ok && len(v) == 1
	}
	return meta.Step{}, false
}

// object is a JSON object without its closing brace. Its methods
// append members as encoding/json does for fields with omitempty.
type object struct{ b []byte }

// key begins a member and returns the bytes for its value to be appended to.
func (o *object) key(name string) []byte {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	return append(appendText(o.b, name), ':')
}

func (o *object) text(name, v string) {
	if v != "" {
		o.b = appendText(o.key(name), v)
	}
}

func (o *object) ints(name string, v []int64) {
	if len(v) > 0 {
		o.b = appendInts(o.key(name), v)
	}
}

func (o *object) flag(name string, v bool) {
	if v {
		o.b = append(o.key(name), "true"...)
	}
}

func appendInts(b []byte, v []int64) []byte {
	b = append(b, '[')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

// appendText appends a string as encoding/json writes it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // never fails for a string
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
